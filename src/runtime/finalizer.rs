//! Finalizers: what is outside an object's own namespace goes before the object does.

use std::fmt::Debug;
use std::sync::Arc;

use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::written::Written;
use super::{Key, apply};

/// Whether the object has it.
pub fn is_on(object: &impl ResourceExt, finalizer: &str) -> bool {
    object.finalizers().iter().any(|name| name == finalizer)
}

/// Has the finalizer be there before anything is that it stands for. Gives the object as it then is.
///
/// # Errors
/// What the apiserver answers, 409 among it: the object has changed since.
pub async fn put<K>(
    written: &Written<K>,
    api: &Api<K>,
    manager: &str,
    object: Arc<K>,
    finalizer: &str,
) -> kube::Result<Arc<K>>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + 'static,
{
    if is_on(object.as_ref(), finalizer) {
        return Ok(object);
    }
    let all: Vec<_> = object.finalizers().iter().map(String::as_str).chain([finalizer]).collect();
    let put = apply::finalizers(api, manager, object.as_ref(), &all);
    written.object(&Key::of(object.as_ref()), put).await
}

/// Takes the finalizer away, once all is done. An object that is gone is no error.
///
/// # Errors
/// What the apiserver answers, 409 among it: the object has changed since.
pub async fn take<K>(api: &Api<K>, manager: &str, object: &K, finalizer: &str) -> kube::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let left: Vec<_> = object.finalizers().iter().map(String::as_str).filter(|name| *name != finalizer).collect();
    match apply::finalizers(api, manager, object, &left).await {
        Err(kube::Error::Api(said)) if said.code == 404 => Ok(()),
        taken => taken.map(drop),
    }
}
