//! The object that a user names, or an error with the choices.

use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use qm_api::{TrackedField, TrackedFieldSet};
use serde::de::DeserializeOwned;

use super::{FailedRequest, has_code};
use crate::cli::commands::ClusterArgs;

/// Maximum number of suggested names.
const MAX_SUGGESTED: u32 = 20;

/// Reads an object.
///
/// # Errors
/// The request fails, or no such object exists. The error then names the `TrackedFieldSet` of the name of a missing
/// `TrackedField`, the namespaces that have an object of this name, or the objects in this namespace.
pub(super) async fn get<K>(
    client: &Client,
    namespace: &str,
    name: &str,
    cluster: &ClusterArgs,
) -> anyhow::Result<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    match api.get(name).await {
        Err(error) if has_code(&error, 404) => {
            Err(not_found::<K>(client, namespace, name, cluster).await)
        }
        object => Ok(object.map_err(FailedRequest::from)?),
    }
}

async fn not_found<K>(
    client: &Client,
    namespace: &str,
    name: &str,
    cluster: &ClusterArgs,
) -> anyhow::Error
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let kind = K::kind(&());
    let missing = |others: String| {
        anyhow::anyhow!("there is no {kind} {name} in namespace {namespace}; {others}")
    };
    if kind == TrackedField::kind(&()) {
        let sets: Api<TrackedFieldSet> = Api::namespaced(client.clone(), namespace);
        if sets.get_metadata(name).await.is_ok() {
            return missing(format!("there is tfs/{name}"));
        }
    }
    let some = ListParams::default().limit(MAX_SUGGESTED);
    let everywhere: Api<K> = Api::all(client.clone());
    let same_name = some.clone().fields(&format!("metadata.name={name}"));
    let elsewhere = everywhere.list_metadata(&same_name).await;
    let elsewhere = elsewhere.map(|list| list.items).unwrap_or_default();
    let namespaces = elsewhere.iter().filter_map(ResourceExt::namespace);
    let namespaces: Vec<_> = namespaces.map(|it| format!("-n {it}")).collect();
    if !namespaces.is_empty() {
        return missing(format!("there is one with {}", namespaces.join(" or ")));
    }
    let here: Api<K> = Api::namespaced(client.clone(), namespace);
    match here.list_metadata(&some).await {
        Ok(list) if !list.items.is_empty() => {
            let names: Vec<_> = list.items.iter().map(ResourceExt::name_any).collect();
            missing(format!("the namespace has {}", names.join(", ")))
        }
        Err(error) if has_code(&error, 404) => {
            let install = cluster.command(crate::INSTALL_CRDS);
            anyhow::anyhow!("the CRD of {kind}s is not installed ({install})")
        }
        _ => missing(format!("the namespace has no {kind}")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;
    use serde_json::json;

    use super::*;

    /// A namespace with the set `images` and the `TrackedField` `web`.
    fn client() -> Client {
        let answer = |request: http::Request<kube::client::Body>| async move {
            let metadata = |name: &str| {
                json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                    "metadata": { "namespace": "ops", "name": name } })
            };
            let list = |items| {
                json!({ "apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList",
                    "metadata": {}, "items": items })
            };
            let (code, body) = match request.uri().path().rsplit_once('/').unwrap() {
                (parent, "images") if parent.ends_with("trackedfieldsets") => {
                    (200, metadata("images"))
                }
                (parent, "trackedfields") if parent.ends_with("ops") => {
                    (200, list(json!([metadata("web")])))
                }
                (_, "trackedfields") => (200, list(json!([]))),
                _ => {
                    let status = json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure",
                        "reason": "NotFound", "code": 404 });
                    (404, status)
                }
            };
            let body = kube::client::Body::from(body.to_string().into_bytes());
            let response = http::Response::builder().status(code).body(body);
            Ok::<_, std::convert::Infallible>(response.unwrap())
        };
        Client::new(tower::service_fn(answer), "default")
    }

    #[rstest]
    #[case::set("images", "there is tfs/images")]
    #[case::typo("webb", "the namespace has web")]
    #[tokio::test]
    async fn missing_tracked_field_is_explained(#[case] name: &str, #[case] expected: &str) {
        let cluster = ClusterArgs::default();
        let found = get::<TrackedField>(&client(), "ops", name, &cluster).await;
        assert_eq!(
            found.unwrap_err().to_string(),
            format!("there is no TrackedField {name} in namespace ops; {expected}")
        );
    }
}
