//! Names in a set that do not exist.

use std::collections::BTreeSet;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, Resource, ResourceExt};
use qm_api::{ContactPoint, TrackedFieldSet};
use qm_runtime::ObjectKey;
use serde::de::DeserializeOwned;

use super::super::{FailedRequest, has_code};
use crate::controllers::tracked_field::waiting::CONTACT_POINT_NOT_FOUND;
use crate::controllers::tracked_field_set::status::namespaces_not_found;

/// Returns a line about the namespaces that the set names and that do not exist, and one about a missing contact point.
/// `targets` are the selected resources, whose namespaces exist.
pub(super) async fn problems(
    client: &Client,
    set: &TrackedFieldSet,
    targets: &BTreeSet<ObjectKey>,
) -> anyhow::Result<Vec<String>> {
    let api: Api<Namespace> = Api::all(client.clone());
    let known: BTreeSet<&str> = targets.iter().map(|target| &*target.namespace).collect();
    let named = set.spec.target.namespaces.iter().flat_map(|it| &it.names);
    let mut missing = Vec::new();
    for name in named.filter(|name| !known.contains(name.as_str())) {
        if is_missing(&api, name).await? {
            missing.push(name.as_str());
        }
    }
    let mut problems = Vec::new();
    if !missing.is_empty() {
        let outcome = namespaces_not_found(&missing);
        problems.push(format!("{}: {}", outcome.reason, outcome.message));
    }
    let namespace = set.namespace().unwrap_or_default();
    let api: Api<ContactPoint> = Api::namespaced(client.clone(), &namespace);
    let name = &set.spec.template.contact_point;
    if is_missing(&api, name).await? {
        problems.push(format!(
            "{CONTACT_POINT_NOT_FOUND}: {name:?} not found; create the ContactPoint in namespace {namespace}"
        ));
    }
    Ok(problems)
}

/// Returns whether the apiserver says that there is no such object. An author needs no permission to read the object:
/// without the permission, the answer is false.
async fn is_missing<K>(api: &Api<K>, name: &str) -> anyhow::Result<bool>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    match api.get_metadata(name).await {
        Ok(_) => Ok(false),
        Err(error) if has_code(&error, 404) => Ok(true),
        Err(error) if has_code(&error, 403) => Ok(false),
        Err(error) => Err(FailedRequest::from(error))
            .with_context(|| format!("{} {name} could not be read", K::kind(&()))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// Requests for `nosuch` find nothing, those for `secret` are forbidden, and all others find an object.
    fn client() -> Client {
        let answer = |request: http::Request<kube::client::Body>| async move {
            let name = request.uri().path().rsplit('/').next().unwrap();
            let code = match name {
                "nosuch" => 404,
                "secret" => 403,
                _ => 200,
            };
            let body = if code == 200 {
                json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": { "name": name } })
            } else {
                json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code })
            };
            let body = kube::client::Body::from(body.to_string().into_bytes());
            let response = http::Response::builder().status(code).body(body);
            Ok::<_, std::convert::Infallible>(response.unwrap())
        };
        Client::new(tower::service_fn(answer), "default")
    }

    #[rstest]
    #[case::all_exist(&["shop"], "hook", &[])]
    #[case::unreadable(&["secret"], "secret", &[])]
    #[case::namespace(
        &["shop", "nosuch"],
        "hook",
        &["NamespaceNotFound: namespaces not found: nosuch; create them, or correct spec.target.namespaces.names"]
    )]
    #[case::contact_point(
        &[],
        "nosuch",
        &[r#"ContactPointNotFound: "nosuch" not found; create the ContactPoint in namespace ops"#]
    )]
    #[tokio::test]
    async fn missing_names_are_reported(
        #[case] namespaces: &[&str],
        #[case] contact_point: &str,
        #[case] expected: &[&str],
    ) {
        let spec = json!({ "target": { "kind": "Deployment", "namespaces": { "names": namespaces } },
            "fields": ["replicas"], "template": { "contactPoint": contact_point } });
        let set = json!({ "apiVersion": "tg.azamaton.ru/v1", "kind": "TrackedFieldSet",
            "metadata": { "namespace": "ops", "name": "all" }, "spec": spec });
        let set: TrackedFieldSet = serde_json::from_value(set).unwrap();
        let found = problems(&client(), &set, &BTreeSet::new()).await.unwrap();
        assert_eq!(found, expected);
    }
}
