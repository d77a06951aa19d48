//! Every write to Kubernetes. Nothing is sent that would change nothing: callers compare first.

use std::collections::BTreeMap;
use std::fmt::Debug;

use http::HeaderValue;
use http::header::ACCEPT;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::object::HasStatus;
use kube::core::{PartialObjectMeta, Request, Status};
use kube::{Api, Resource, ResourceExt};
use qm_core::kind::Kind;
use serde::de::DeserializeOwned;
use serde::{Deserialize as _, Serialize};
use serde_json::{Value, json};

use super::cache::strip;
use super::client;
use super::raw_object::BoundedObject;

/// Asks the apiserver to answer with the metadata alone.
const METADATA: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");

/// Writes `status` as computed from `object`: refused with 409 when the object has changed since, so that nothing
/// written in the meantime is lost. What the object's status says and `status` does not goes. Gives the object as it then
/// is. The apiserver answers with the metadata alone: a stored spec may be large.
///
/// # Errors
/// What the apiserver answers, 409 and 404 among it.
pub async fn status<K>(
    api: &Api<K>,
    manager: &str,
    object: &K,
    status: &K::Status,
) -> kube::Result<K>
where
    K: Kind + HasStatus<Status: Serialize + DeserializeOwned> + Clone + Debug + DeserializeOwned,
{
    let mut status = serde_json::to_value(status).map_err(kube::Error::SerdeError)?;
    let stored = K::Status::deserialize(&status).map_err(kube::Error::SerdeError)?;
    // A list is replaced whole: a history need not be written down once more to be compared.
    if status.is_object()
        && let Some(before) = object.status()
    {
        take_away(
            &serde_json::to_value(before).map_err(kube::Error::SerdeError)?,
            &mut status,
        );
    }
    let patch = json!({
        "metadata": { "uid": object.uid(), "resourceVersion": object.resource_version() },
        "status": status,
    });
    let parameters = PatchParams {
        field_manager: Some(manager.into()),
        ..PatchParams::default()
    };
    let request = Request::new(api.resource_url());
    let request = request.patch_subresource(
        "status",
        &object.name_any(),
        &parameters,
        &Patch::Merge(&patch),
    );
    let mut request = request.map_err(kube::Error::BuildRequest)?;
    request.headers_mut().insert(ACCEPT, METADATA);
    let written = api
        .clone()
        .into_client()
        .request::<PartialObjectMeta<K>>(request)
        .await?;
    let mut object = with_metadata(object, written);
    *object.status_mut() = Some(stored);
    Ok(object)
}

/// Returns `object` with what a write has made of its metadata.
fn with_metadata<K: Kind + Clone>(object: &K, written: PartialObjectMeta<K>) -> K {
    let mut object = object.clone();
    *object.meta_mut() = written.metadata;
    strip(&mut object);
    object
}

/// A merge patch (RFC 7386) leaves what it does not name: what `before` has and `after` has not is named, as null.
fn take_away(before: &Value, after: &mut Value) {
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return;
    };
    for (key, before) in before {
        take_away(before, after.entry(key.clone()).or_insert(Value::Null));
    }
}

/// Sets annotations of `object`, or removes those without a value: refused with 409 when the object has changed since, so that the
/// answer shows nothing that its reader has not yet looked at. Gives the object as it then is.
///
/// # Errors
/// What the apiserver answers, 409 and 404 among it.
pub async fn annotate<K>(
    api: &Api<K>,
    manager: &str,
    object: &K,
    annotations: &BTreeMap<&str, Option<&str>>,
) -> kube::Result<K>
where
    K: Kind + Clone + Debug + DeserializeOwned,
{
    let patch = json!({ "annotations": annotations });
    own_metadata(api, manager, object, patch).await
}

/// Has `object` have these finalizers: refused with 409 when it has changed since. Gives the object as it then is.
///
/// # Errors
/// What the apiserver answers, 409 and 404 among it.
pub async fn finalizers<K>(
    api: &Api<K>,
    manager: &str,
    object: &K,
    finalizers: &[&str],
) -> kube::Result<K>
where
    K: Kind + Clone + Debug + DeserializeOwned,
{
    let patch = json!({ "finalizers": finalizers });
    own_metadata(api, manager, object, patch).await
}

/// Whether a namespace that is being deleted refuses to take anything new.
pub fn is_terminating(said: &Status) -> bool {
    said.details
        .iter()
        .flat_map(|details| &details.causes)
        .any(|cause| cause.reason == "NamespaceTerminating")
}

/// Returns whether a write that is pinned to a UID met another object of the same name (422).
pub fn is_replaced(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 422
        && causes
            .into_iter()
            .any(|cause| cause.field == "metadata.uid")
}

/// Whether a field is to be changed that nobody can change.
pub fn is_immutable(said: &Status) -> bool {
    let causes = said.details.iter().flat_map(|details| &details.causes);
    said.code == 422
        && causes
            .into_iter()
            .any(|cause| cause.message.contains("field is immutable"))
}

/// Whether a policy or a webhook refused it: with any code, and for as long as that stands.
pub fn is_denied(said: &Status) -> bool {
    said.message.contains("denied the request")
        || said.message.contains("ValidatingAdmissionPolicy")
}

/// Returns whether the apiserver refused a write because of this object, or because an admission webhook failed on it:
/// other objects may still be written. 401, and 403 for a missing permission, concern the operator itself; 409 and 429 are
/// temporary.
fn is_rejected(said: &Status) -> bool {
    match said.code {
        _ if is_replaced(said) => false,
        403 if said.message.contains(" cannot patch resource ") => false,
        401 | 409 | 429 => false,
        400..=499 => true,
        500 => said.message.contains("failed calling webhook"),
        _ => false,
    }
}

/// Returns the status code and message of a write that failed because of this object, by [`is_rejected`]. A write that
/// gets no answer in time counts as one, with code 504: an admission webhook may take as long as the operator waits. While
/// the apiserver `is_out`, no answer says anything about the object.
pub fn rejection(error: &kube::Error, is_out: bool) -> Option<(u16, String)> {
    match error {
        kube::Error::Api(said) if is_rejected(said) || (said.code == 504 && !is_out) => {
            Some((said.code, said.message.clone()))
        }
        error if !is_out => {
            let message = client::timed_out(error)?;
            Some((504, format!("{message}: an admission webhook may hang")))
        }
        _ => None,
    }
}

/// Creates `object`; none if there is one of its name. Nothing that is there is touched.
///
/// # Errors
/// What the apiserver answers, other than "already exists".
pub async fn create<K>(
    api: &Api<BoundedObject<K>>,
    manager: &str,
    object: &K,
) -> kube::Result<Option<K>>
where
    K: Resource<DynamicType = ()> + Default + Clone + Debug + Serialize + DeserializeOwned,
{
    let parameters = PostParams {
        field_manager: Some(manager.into()),
        ..PostParams::default()
    };
    match api
        .create(&parameters, &BoundedObject(object.clone()))
        .await
    {
        Ok(created) => Ok(Some(created.0)),
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Dry-runs the creation of `object` alone, regardless of an existing object of its name.
///
/// # Errors
/// The apiserver's error, except "already exists", which only valid objects get.
pub async fn try_create<K>(
    api: &Api<BoundedObject<K>>,
    manager: &str,
    object: &K,
) -> kube::Result<()>
where
    K: Resource<DynamicType = ()> + Default + Clone + Debug + Serialize + DeserializeOwned,
{
    let parameters = PostParams {
        dry_run: true,
        field_manager: Some(manager.into()),
    };
    match api
        .create(&parameters, &BoundedObject(object.clone()))
        .await
    {
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
            Ok(())
        }
        answer => answer.map(drop),
    }
}

/// Writes `object` in place of what stands there, whole: refused with 409 unless it carries the UID and resourceVersion of
/// that. What server-side apply would leave, because somebody else added it, goes.
///
/// # Errors
/// What the apiserver answers, 409 and 404 among it.
pub async fn replace<K>(api: &Api<K>, manager: &str, object: &K) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let parameters = PostParams {
        field_manager: Some(manager.into()),
        ..PostParams::default()
    };
    api.replace(&object.name_any(), &parameters, object).await
}

/// Server-side apply of `object` as the whole of what `manager` says about it, whoever says otherwise. It is pinned to the
/// UID that `object` carries: another object of its name is not touched (409, or 422 on `metadata.uid`).
///
/// # Errors
/// What the apiserver answers.
pub async fn apply<K>(api: &Api<BoundedObject<K>>, manager: &str, object: &K) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Default + Clone + Debug + Serialize + DeserializeOwned,
{
    applied(api, manager, object, false).await
}

/// What would come of [`apply`]: nothing is changed.
///
/// # Errors
/// What the apiserver answers.
pub async fn try_apply<K>(api: &Api<BoundedObject<K>>, manager: &str, object: &K) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Default + Clone + Debug + Serialize + DeserializeOwned,
{
    applied(api, manager, object, true).await
}

async fn applied<K>(
    api: &Api<BoundedObject<K>>,
    manager: &str,
    object: &K,
    dry_run: bool,
) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Default + Clone + Debug + Serialize + DeserializeOwned,
{
    let parameters = PatchParams {
        field_manager: Some(manager.into()),
        force: true,
        dry_run,
        ..PatchParams::default()
    };
    let mut whole = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
    whole["apiVersion"] = K::api_version(&()).into();
    whole["kind"] = K::kind(&()).into();
    Ok(api
        .patch(&object.name_any(), &parameters, &Patch::Apply(&whole))
        .await?
        .0)
}

/// Merges `patch` into the metadata of `object`: refused with 409 when the object has changed since. Gives the object as it
/// then is.
///
/// # Errors
/// What the apiserver answers, 409 and 404 among it.
pub async fn metadata<K>(
    api: &Api<BoundedObject<K>>,
    manager: &str,
    object: &K,
    patch: Value,
) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Default + Clone + Debug + DeserializeOwned,
{
    let parameters = PatchParams {
        field_manager: Some(manager.into()),
        ..PatchParams::default()
    };
    Ok(api
        .patch(&object.name_any(), &parameters, &pinned(object, patch))
        .await?
        .0)
}

/// The same for an object whose other fields the operator has: the apiserver answers with the metadata alone.
async fn own_metadata<K>(api: &Api<K>, manager: &str, object: &K, patch: Value) -> kube::Result<K>
where
    K: Kind + Clone + Debug + DeserializeOwned,
{
    let parameters = PatchParams {
        field_manager: Some(manager.into()),
        ..PatchParams::default()
    };
    let written = api
        .patch_metadata(&object.name_any(), &parameters, &pinned(object, patch))
        .await?;
    Ok(with_metadata(object, written))
}

/// A change of the metadata of `object` as it was read.
fn pinned(object: &impl ResourceExt, mut patch: Value) -> Patch<Value> {
    patch["uid"] = object.uid().into();
    patch["resourceVersion"] = object.resource_version().into();
    Patch::Merge(json!({ "metadata": patch }))
}

/// Deletes `object` in the state in which it was read, and its dependents after it; that it is gone already is well.
///
/// # Errors
/// What the apiserver answers: 409 when it has changed since, or is another one.
pub async fn remove<K>(api: &Api<K>, object: &impl ResourceExt) -> kube::Result<()>
where
    K: Clone + Debug + DeserializeOwned,
{
    let (uid, resource_version) = (object.uid(), object.resource_version());
    let parameters = DeleteParams::background().preconditions(Preconditions {
        resource_version,
        uid,
    });
    match api.delete(&object.name_any(), &parameters).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns whether the apiserver answered that a write changed nothing. A write that failed in another way, such as by a
/// timeout, may still have changed the object.
pub fn is_without_effect(error: &kube::Error) -> bool {
    // 408 is a proxy's: the request may have passed it.
    matches!(error, kube::Error::Api(said) if (400..500).contains(&said.code) && said.code != 408)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http_body_util::BodyExt as _;
    use kube::Client;

    use super::*;
    use crate::testing::Widget;

    #[test]
    fn an_answer_about_the_object_is_told_from_one_that_passes() {
        let rejected = |code: u16, message: &str| {
            let said =
                json!({ "status": "Failure", "message": message, "reason": "", "code": code });
            is_rejected(&serde_json::from_value(said).unwrap())
        };
        for code in [400, 403, 404, 413, 422] {
            assert!(rejected(code, "denied"), "{code}");
        }
        for code in [401, 409, 429, 500, 503, 504] {
            assert!(!rejected(code, "etcdserver: request timed out"), "{code}");
        }
        assert!(rejected(
            500,
            "Internal error occurred: failed calling webhook \"a.example.com\": failed to call webhook"
        ));
    }

    #[test]
    fn a_write_without_an_answer_is_about_the_object_unless_the_apiserver_is_out() {
        let hangs = || {
            kube::Error::Service(Box::new(client::RequestError::Timeout(
                std::time::Duration::from_secs(30),
            )))
        };
        let late = json!({ "status": "Failure", "message": "Timeout: request did not complete", "reason": "Timeout", "code": 504 });
        let late = || kube::Error::Api(Box::new(serde_json::from_value(late.clone()).unwrap()));
        for error in [hangs(), late()] {
            assert_eq!(rejection(&error, false).unwrap().0, 504);
            assert_eq!(rejection(&error, true), None);
        }
        assert!(
            rejection(&hangs(), false)
                .unwrap()
                .1
                .starts_with("the apiserver did not answer within 30s")
        );
        let not_leading = kube::Error::Service(Box::new(client::RequestError::NotLeading));
        assert_eq!(rejection(&not_leading, false), None);
    }

    /// RFC 7386, as the apiserver does it.
    fn merge(target: &mut Value, patch: Value) {
        let Value::Object(patch) = patch else {
            *target = patch;
            return;
        };
        if !target.is_object() {
            *target = json!({});
        }
        let target = target.as_object_mut().unwrap();
        for (key, value) in patch {
            if value.is_null() {
                target.remove(&key);
            } else {
                merge(target.entry(key).or_insert(Value::Null), value);
            }
        }
    }

    #[tokio::test]
    async fn what_stands_is_what_was_computed() {
        let stands = json!({
            "initialized": true,
            "ready": true,
            "observedGeneration": 1,
            "lastTest": { "spec": "abc", "secrets": ["uid/1"] },
            "migratedToChatId": -100,
            "conditions": [
                { "type": "Ready", "status": "True", "reason": "Ready", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" },
            ],
        });
        let object = json!({
            "apiVersion": "example.com/v1",
            "kind": "Widget",
            "metadata": { "namespace": "n", "name": "p", "uid": "u", "resourceVersion": "7" },
            "spec": { "type": "Webhook" },
            "status": stands,
        });
        let before: Widget = serde_json::from_value(object.clone()).unwrap();
        for computed in [
            json!({ "initialized": true, "ready": false, "lastTest": { "spec": "def" } }),
            json!({ "initialized": true, "ready": true, "migratedToChatId": -100 }),
            stands.clone(),
        ] {
            let (service, mut apiserver) = tower_test::mock::pair::<
                http::Request<kube::client::Body>,
                http::Response<kube::client::Body>,
            >();
            let api: Api<Widget> = Api::namespaced(Client::new(service, "n"), "n");
            let written = serde_json::from_value(computed.clone()).unwrap();
            let mut stored = object.clone();
            let answer = async {
                let (request, answer) = apiserver.next_request().await.unwrap();
                let patch: Value = serde_json::from_slice(
                    &request.into_body().collect().await.unwrap().to_bytes(),
                )
                .unwrap();
                assert_eq!(
                    patch["metadata"],
                    json!({ "uid": "u", "resourceVersion": "7" })
                );
                merge(&mut stored, patch);
                answer.send_response(http::Response::new(
                    serde_json::to_vec(&stored).unwrap().into(),
                ));
                stored["status"].clone()
            };
            let (result, stored) = tokio::join!(status(&api, "m", &before, &written), answer);
            assert_eq!(stored, computed);
            assert_eq!(result.unwrap().status, Some(written));
        }
    }
}
