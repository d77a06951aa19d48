//! Every write to Kubernetes. Nothing is sent that would change nothing: callers compare first.

use std::fmt::Debug;

use kube::api::{Patch, PatchParams};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::cache::strip;

/// Writes `status` as computed from `object`: refused with 409 when the object has changed since, so that nothing
/// written in the meantime is lost. Gives the object as it then is.
pub async fn status<K>(api: &Api<K>, manager: &str, object: &K, status: &impl Serialize) -> kube::Result<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Serialize,
{
    let mut status = serde_json::to_value(status).map_err(kube::Error::SerdeError)?;
    // A list is replaced as a whole.
    if status.is_object() {
        let before = serde_json::to_value(object).map_err(kube::Error::SerdeError)?;
        take_away(&before["status"], &mut status);
    }
    let patch = json!({
        "metadata": { "uid": object.uid(), "resourceVersion": object.resource_version() },
        "status": status,
    });
    let parameters = PatchParams { field_manager: Some(manager.into()), ..PatchParams::default() };
    let mut written = api.patch_status(&object.name_any(), &parameters, &Patch::Merge(&patch)).await?;
    strip(&mut written);
    Ok(written)
}

/// Has a merge patch (RFC 7386) take away what is no longer there: a field that it leaves out stays.
fn take_away(before: &Value, patch: &mut Value) {
    let (Value::Object(before), Value::Object(patch)) = (before, patch) else { return };
    for (name, value) in before {
        take_away(value, patch.entry(name).or_insert(Value::Null));
    }
}

/// Sets one annotation of `object`, or takes it away; pinned to the object's UID. Gives the object as it then is.
pub async fn annotate<K>(api: &Api<K>, manager: &str, object: &K, name: &str, value: Option<&str>) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let patch = json!({ "metadata": { "uid": object.uid(), "annotations": { name: value } } });
    let parameters = PatchParams { field_manager: Some(manager.into()), ..PatchParams::default() };
    let mut written = api.patch(&object.name_any(), &parameters, &Patch::Merge(&patch)).await?;
    strip(&mut written);
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_gone_is_taken_away_at_every_depth() {
        let before = json!({ "a": 1, "b": { "c": [1], "d": { "e": true } }, "f": [{ "g": 1 }] });
        let mut patch = json!({ "b": { "d": {} }, "f": [{}], "h": 2 });
        take_away(&before, &mut patch);
        assert_eq!(patch, json!({ "a": null, "b": { "c": null, "d": { "e": null } }, "f": [{}], "h": 2 }));
        take_away(&Value::Null, &mut patch);
        assert_eq!(patch["h"], 2);
    }
}
