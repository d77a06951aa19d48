//! The controllers' writes to Kubernetes, and what a rejection of one means. Callers compare first, so that they send
//! no write without a change.

use std::collections::BTreeMap;
use std::fmt::Debug;

use http::HeaderValue;
use http::header::{ACCEPT, CONTENT_TYPE};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::object::HasStatus;
use kube::core::{ObjectMeta, PartialObjectMeta, Request, Status};
use kube::{Api, Resource, ResourceExt};
use qm_core::kind::Kind;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};

use super::cache::strip;
use super::client;
use super::raw_object::BoundedObject;

/// Media type that asks the apiserver to answer with the metadata alone.
const METADATA: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");

/// Media type of a JSON Patch, RFC 6902.
const JSON_PATCH: HeaderValue = HeaderValue::from_static("application/json-patch+json");

/// Writes `status`, computed from `object`: fails with 409 if the object has changed since, so that no other change is
/// lost. Removes fields that the object's status has and `status` lacks. Returns the written object. The apiserver
/// answers with the metadata alone, because a stored spec may be large.
///
/// # Errors
/// The apiserver's error, such as 409 or 404.
pub async fn status<K>(
    api: &Api<K>,
    manager: &str,
    object: &K,
    status: &K::Status,
) -> kube::Result<K>
where
    K: Kind + HasStatus<Status: Serialize + DeserializeOwned> + Clone + Debug + DeserializeOwned,
{
    // Text, because a history of hundreds of entries takes several MiB as JSON values.
    let mut text = to_raw_value(status).map_err(kube::Error::SerdeError)?;
    let stored = serde_json::from_str(text.get()).map_err(kube::Error::SerdeError)?;
    // A merge patch replaces a list as a whole, so a status that is a list needs no nulls.
    if text.get().starts_with('{')
        && let Some(before) = object.status()
    {
        text = with_nulls(before, status).map_err(kube::Error::SerdeError)?;
    }
    let patch = StatusPatch {
        metadata: json!({ "uid": object.uid(), "resourceVersion": object.resource_version() }),
        status: text,
    };
    let request = Request::new(api.resource_url());
    let request = request.patch_subresource(
        "status",
        &object.name_any(),
        &patched_by(manager),
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

#[derive(Debug, Serialize)]
struct StatusPatch {
    metadata: Value,
    status: Box<RawValue>,
}

/// Returns `after` with a null for each field that `before` has and `after` lacks.
fn with_nulls<S: Serialize>(before: &S, after: &S) -> serde_json::Result<Box<RawValue>> {
    let mut after = serde_json::to_value(after)?;
    null_removed(&serde_json::to_value(before)?, &mut after);
    to_raw_value(&after)
}

/// Returns `object` with the metadata that a write returned.
fn with_metadata<K: Kind + Clone>(object: &K, written: PartialObjectMeta<K>) -> K {
    let mut object = object.clone();
    *object.meta_mut() = written.metadata;
    strip(&mut object);
    object
}

/// Adds a null for each field that `before` has and `after` lacks, because a merge patch (RFC 7386) keeps fields that
/// it does not name.
fn null_removed(before: &Value, after: &mut Value) {
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return;
    };
    for (key, before) in before {
        null_removed(before, after.entry(key.clone()).or_insert(Value::Null));
    }
}

/// Returns whether the status that is `stored` has a field that the `written` one lacks.
pub(crate) fn keeps_a_field<S: PartialEq + Serialize>(
    stored: Option<&S>,
    written: Option<&S>,
) -> bool {
    if stored == written {
        return false;
    }
    let value = |status: Option<&S>| status.and_then(|status| serde_json::to_value(status).ok());
    let (Some(stored), Some(written)) = (value(stored), value(written)) else {
        return false;
    };
    let mut both = written.clone();
    null_removed(&stored, &mut both);
    both != written
}

/// Sets annotations of `object`, or removes those without a value: fails with 409 if the object has changed since, so
/// that the response contains no change that the caller has not seen. Returns the written object.
///
/// # Errors
/// The apiserver's error, such as 409 or 404.
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

/// Replaces the finalizers of `object`: fails with 409 if the object has changed since. Returns the written object.
///
/// # Errors
/// The apiserver's error, such as 409 or 404.
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

/// Returns whether the apiserver rejects a new object because its namespace is being deleted.
pub fn is_terminating(status: &Status) -> bool {
    status
        .details
        .iter()
        .flat_map(|details| &details.causes)
        .any(|cause| cause.reason == "NamespaceTerminating")
}

/// Returns whether the apiserver rejected a write that is pinned to a UID, because another object has the name (422).
pub fn is_replaced(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 422
        && causes
            .into_iter()
            .any(|cause| cause.field == "metadata.uid")
}

/// Returns whether the apiserver rejected a write because of what the object was created with: a field that cannot change,
/// or a headless Service, which keeps `clusterIP: None` and so cannot get another type.
pub(crate) fn is_immutable(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 422
        && causes.into_iter().any(|cause| {
            cause.message.contains("field is immutable")
                || cause.message.contains("may not be set to 'None'")
        })
}

/// Returns whether an admission policy or a webhook denied the request. The status code may be any.
pub(crate) fn is_denied(status: &Status) -> bool {
    status.message.contains("denied the request")
        || status.message.contains("ValidatingAdmissionPolicy")
}

/// Returns whether the apiserver rejected a write because of its object, or because an admission webhook failed on the
/// object: other writes may still succeed. 401, and 403 for a missing permission, concern the operator; 409 and 429 are
/// temporary.
fn is_rejected(status: &Status) -> bool {
    match status.code {
        _ if is_replaced(status) => false,
        403 if status.message.contains(" cannot patch resource ") => false,
        401 | 409 | 429 => false,
        400..=499 => true,
        500 => status.message.contains("failed calling webhook"),
        _ => false,
    }
}

/// Returns status code and message if a write failed because of its object. A write without a response counts too, with
/// code 504, because an admission webhook may hang, unless the apiserver `is_in_outage`.
pub fn object_rejection(error: &kube::Error, is_in_outage: bool) -> Option<(u16, String)> {
    match error {
        kube::Error::Api(status)
            if is_rejected(status) || (status.code == 504 && !is_in_outage) =>
        {
            Some((status.code, status.message.clone()))
        }
        error if !is_in_outage => {
            let message = client::timed_out(error)?;
            Some((504, format!("{message}: an admission webhook may hang")))
        }
        _ => None,
    }
}

/// Creates `object`. Returns `None` and changes nothing if an object of that name exists.
///
/// # Errors
/// The apiserver's error, except "already exists".
pub async fn create<K>(
    api: &Api<BoundedObject<K>>,
    manager: &str,
    object: K,
) -> kube::Result<Option<K>>
where
    K: Resource<DynamicType = ()> + Default + Clone + Debug + Serialize + DeserializeOwned,
{
    let parameters = PostParams {
        field_manager: Some(manager.into()),
        ..PostParams::default()
    };
    match api.create(&parameters, &BoundedObject::new(object)).await {
        Ok(created) => created.whole().map(Some),
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Dry-runs the creation of `object` alone, whether or not an object of its name exists.
///
/// # Errors
/// The apiserver's error, except "already exists", with which the apiserver answers only for valid objects.
pub async fn try_create<K>(
    api: &Api<BoundedObject<K>>,
    manager: &str,
    object: K,
) -> kube::Result<()>
where
    K: Resource<DynamicType = ()> + Default + Clone + Debug + Serialize + DeserializeOwned,
{
    let parameters = PostParams {
        dry_run: true,
        field_manager: Some(manager.into()),
    };
    match api.create(&parameters, &BoundedObject::new(object)).await {
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
            Ok(())
        }
        answer => answer.map(drop),
    }
}

/// Replaces an object as a whole: fails with 409 unless `object` carries the current UID and resourceVersion. Fields of
/// other managers, which server-side apply would keep, are removed.
///
/// # Errors
/// The apiserver's error, such as 409 or 404.
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

/// Applies `object` server-side, with force, as all fields of `manager`. The write is pinned to the UID that `object`
/// carries: another object of its name stays unchanged (409, or 422 on `metadata.uid`).
///
/// # Errors
/// The apiserver's error.
pub async fn apply<K>(api: &Api<BoundedObject<K>>, manager: &str, object: &K) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Default + Clone + Debug + Serialize + DeserializeOwned,
{
    send_apply(api, manager, object, false).await
}

/// Dry-runs [`apply`].
///
/// # Errors
/// The apiserver's error.
pub(crate) async fn try_apply<K>(
    api: &Api<BoundedObject<K>>,
    manager: &str,
    object: &K,
) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Default + Clone + Debug + Serialize + DeserializeOwned,
{
    send_apply(api, manager, object, true).await
}

async fn send_apply<K>(
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
    let mut sent = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
    sent["apiVersion"] = K::api_version(&()).into();
    sent["kind"] = K::kind(&()).into();
    api.patch(&object.name_any(), &parameters, &Patch::Apply(&sent))
        .await?
        .whole()
}

/// Merges `patch` into the metadata of the object that had `metadata`: fails with 409 if the object has changed since.
/// Returns the written object.
///
/// # Errors
/// The apiserver's error, such as 409 or 404.
pub async fn metadata<K>(
    api: &Api<BoundedObject<K>>,
    manager: &str,
    metadata: &ObjectMeta,
    patch: Value,
) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Default + Clone + Debug + DeserializeOwned,
{
    let name = metadata.name.as_deref().unwrap_or_default();
    api.patch(name, &patched_by(manager), &pinned(metadata, patch))
        .await?
        .whole()
}

/// Replaces the whole spec of the object that had `metadata`, whoever owns its fields: fails with 409 if the object has
/// changed since. Returns the written object.
///
/// # Errors
/// The apiserver's error, such as 409 or 404.
pub(crate) async fn spec<K>(
    api: &Api<BoundedObject<K>>,
    manager: &str,
    metadata: &ObjectMeta,
    spec: &Value,
) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Default + Clone + Debug + DeserializeOwned,
{
    let operations = json!([
        { "op": "replace", "path": "/metadata/uid", "value": metadata.uid },
        { "op": "replace", "path": "/metadata/resourceVersion", "value": metadata.resource_version },
        { "op": "replace", "path": "/spec", "value": spec },
    ]);
    let name = metadata.name.as_deref().unwrap_or_default();
    let request = Request::new(api.resource_url());
    let request = request.patch(name, &patched_by(manager), &Patch::Merge(&operations));
    let mut request = request.map_err(kube::Error::BuildRequest)?;
    request.headers_mut().insert(CONTENT_TYPE, JSON_PATCH);
    let client = api.clone().into_client();
    client.request::<BoundedObject<K>>(request).await?.whole()
}

/// Merges `patch` into the metadata of an object of the operator's own kinds. The apiserver answers with the metadata
/// alone, because the caller has the other fields.
async fn own_metadata<K>(api: &Api<K>, manager: &str, object: &K, patch: Value) -> kube::Result<K>
where
    K: Kind + Clone + Debug + DeserializeOwned,
{
    let written = api
        .patch_metadata(
            &object.name_any(),
            &patched_by(manager),
            &pinned(object.meta(), patch),
        )
        .await?;
    Ok(with_metadata(object, written))
}

fn patched_by(manager: &str) -> PatchParams {
    PatchParams {
        field_manager: Some(manager.into()),
        ..PatchParams::default()
    }
}

/// Returns a patch of the metadata of an object, pinned to its UID and resourceVersion.
fn pinned(metadata: &ObjectMeta, mut patch: Value) -> Patch<Value> {
    patch["uid"] = metadata.uid.clone().into();
    patch["resourceVersion"] = metadata.resource_version.clone().into();
    Patch::Merge(json!({ "metadata": patch }))
}

/// Deletes the object that had `metadata`, and its dependents in the background. A missing object is no error.
///
/// # Errors
/// The apiserver's error, such as 409 if the object has changed since or was replaced.
pub async fn remove<K>(api: &Api<K>, metadata: &ObjectMeta) -> kube::Result<()>
where
    K: Clone + Debug + DeserializeOwned,
{
    let parameters = DeleteParams::background().preconditions(Preconditions {
        resource_version: metadata.resource_version.clone(),
        uid: metadata.uid.clone(),
    });
    let name = metadata.name.as_deref().unwrap_or_default();
    match api.delete(name, &parameters).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns whether a failed write certainly changed nothing. After other errors, such as a timeout, the object may have
/// changed.
pub(crate) fn is_without_effect(error: &kube::Error) -> bool {
    // 408 comes from a proxy, which may have forwarded the request.
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && status.code != 408)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http_body_util::BodyExt as _;
    use kube::Client;

    use super::*;
    use crate::testing::Widget;

    #[test]
    fn rejection_differs_from_a_transient_error() {
        let rejected = |code: u16, message: &str| {
            let status =
                json!({ "status": "Failure", "message": message, "reason": "", "code": code });
            is_rejected(&serde_json::from_value(status).unwrap())
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
    fn write_without_a_response_is_a_rejection_unless_the_apiserver_is_out() {
        let hangs = || {
            kube::Error::Service(Box::new(client::RequestError::Timeout(
                std::time::Duration::from_secs(30),
            )))
        };
        let late = json!({ "status": "Failure", "message": "Timeout: request did not complete", "reason": "Timeout", "code": 504 });
        let late = || kube::Error::Api(Box::new(serde_json::from_value(late.clone()).unwrap()));
        for error in [hangs(), late()] {
            assert_eq!(object_rejection(&error, false).unwrap().0, 504);
            assert_eq!(object_rejection(&error, true), None);
        }
        assert!(
            object_rejection(&hangs(), false)
                .unwrap()
                .1
                .starts_with("the apiserver did not answer within 30s")
        );
        let not_leading = kube::Error::Service(Box::new(client::RequestError::NotLeading));
        assert_eq!(object_rejection(&not_leading, false), None);
    }

    /// Applies a merge patch (RFC 7386), as the apiserver does.
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
    async fn status_equals_the_computed_one_after_the_write() {
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
