//! Every write to Kubernetes. Nothing is sent that would change nothing: callers compare first.

use std::fmt::Debug;

use kube::api::{Patch, PatchParams};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::cache::strip;

/// Writes `status` as computed from `object`: refused with 409 when the object has changed since, so that nothing
/// written in the meantime is lost. Gives the object as it then is.
pub async fn status<K>(api: &Api<K>, manager: &str, object: &K, status: &impl Serialize) -> kube::Result<K>
where
    K: Resource + Clone + Debug + DeserializeOwned,
{
    let patch = json!({
        "metadata": { "uid": object.uid(), "resourceVersion": object.resource_version() },
        "status": status,
    });
    let parameters = PatchParams { field_manager: Some(manager.into()), ..PatchParams::default() };
    let mut written = api.patch_status(&object.name_any(), &parameters, &Patch::Merge(&patch)).await?;
    strip(&mut written);
    Ok(written)
}

/// Sets one annotation of `object`, or takes it away: refused with 409 when the object has changed since, so that the
/// answer shows nothing that its reader has not yet looked at. Gives the object as it then is.
pub async fn annotate<K>(api: &Api<K>, manager: &str, object: &K, name: &str, value: Option<&str>) -> kube::Result<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let patch = json!({ "metadata": {
        "uid": object.uid(),
        "resourceVersion": object.resource_version(),
        "annotations": { name: value },
    } });
    let parameters = PatchParams { field_manager: Some(manager.into()), ..PatchParams::default() };
    let mut written = api.patch(&object.name_any(), &parameters, &Patch::Merge(&patch)).await?;
    strip(&mut written);
    Ok(written)
}
