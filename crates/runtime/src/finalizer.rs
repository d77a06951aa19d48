//! Finalizers: resources that an object owns outside its namespace are deleted before the object.

use std::fmt::Debug;
use std::sync::Arc;

use kube::{Api, ResourceExt};
use qm_core::kind::Kind;
use serde::de::DeserializeOwned;

use super::own_writes::OwnWrites;
use super::reconciled_kind::ReconciledKind;
use super::{ObjectKey, cache, write};

/// Returns whether the object has the finalizer.
pub fn has(object: &impl ResourceExt, finalizer: &str) -> bool {
    object.finalizers().iter().any(|name| name == finalizer)
}

/// Adds the finalizer, before the first resource that it protects is created. Returns the written object.
///
/// # Errors
/// The apiserver's error, such as 409 if the object has changed since.
pub(crate) async fn add<K: ReconciledKind>(
    own_writes: &OwnWrites<K>,
    api: &Api<K>,
    manager: &str,
    object: Arc<K>,
    finalizer: &str,
) -> kube::Result<Arc<K>> {
    if has(object.as_ref(), finalizer) {
        return Ok(object);
    }
    let present = all(api, object.as_ref()).await?;
    let all: Vec<_> = present
        .iter()
        .map(String::as_str)
        .chain([finalizer])
        .collect();
    let writing = write::finalizers(api, manager, object.as_ref(), &all);
    own_writes
        .write(&ObjectKey::of(object.as_ref()), writing)
        .await
}

/// Removes the finalizer, after the last resource that it protects is deleted. A missing object is not an error. The write
/// is recorded, because the deletion of the last resource may trigger a reconcile before the cache shows it.
///
/// # Errors
/// The apiserver's error, such as 409 if the object has changed since.
pub(crate) async fn remove<K: ReconciledKind>(
    own_writes: &OwnWrites<K>,
    api: &Api<K>,
    manager: &str,
    object: &K,
    finalizer: &str,
) -> kube::Result<()> {
    let removed = async {
        let present = all(api, object).await?;
        let left: Vec<_> = present
            .iter()
            .map(String::as_str)
            .filter(|name| *name != finalizer)
            .collect();
        write::finalizers(api, manager, object, &left).await
    };
    match own_writes.write(&ObjectKey::of(object), removed).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        removed => removed.map(drop),
    }
}

/// Returns all finalizers of `object`. If the object has changed since it was read, the write of its finalizers fails
/// with 409.
async fn all<K>(api: &Api<K>, object: &K) -> kube::Result<Vec<String>>
where
    K: Kind + Clone + Debug + DeserializeOwned,
{
    if cache::has_all_finalizers(object) {
        return Ok(object.finalizers().to_vec());
    }
    Ok(api
        .get_metadata(&object.name_any())
        .await?
        .finalizers()
        .to_vec())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use http::{Method, Request, Response};
    use http_body_util::BodyExt as _;
    use kube::Client;
    use kube::client::Body;
    use serde_json::{Value, json};

    use super::*;
    use crate::cache::strip;
    use crate::testing::{FINALIZER, Widget};
    use crate::trigger::Trigger;

    /// Returns a stored object with more finalizers than the cache keeps.
    fn stored(has_own: bool) -> Value {
        let foreign = (0..1000).map(|number| format!("example.com/finalizer-{number}"));
        let finalizers: Vec<_> = has_own
            .then(|| FINALIZER.to_owned())
            .into_iter()
            .chain(foreign)
            .collect();
        json!({
            "apiVersion": "example.com/v1",
            "kind": "Widget",
            "metadata": { "namespace": "n", "name": "s", "uid": "u", "resourceVersion": "7", "finalizers": finalizers },
            "spec": { "sourceNamespace": "n", "configMapName": "s", "destinationNamespace": "o" },
        })
    }

    /// Runs `change` on the cached form of `object`; returns its result and the finalizers that it wrote.
    async fn written<T>(
        object: &Value,
        change: impl AsyncFnOnce(Api<Widget>, Widget) -> T,
    ) -> (T, Vec<String>) {
        let (service, mut apiserver) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
        let api: Api<Widget> = Api::namespaced(Client::new(service, "n"), "n");
        let mut cached: Widget = serde_json::from_value(object.clone()).unwrap();
        strip(&mut cached);
        let answers = async {
            let (request, answer) = apiserver.next_request().await.unwrap();
            assert_eq!(
                request.method(),
                Method::GET,
                "the cached list is not written"
            );
            answer.send_response(Response::new(serde_json::to_vec(object).unwrap().into()));
            let (request, answer) = apiserver.next_request().await.unwrap();
            let patch = request.into_body().collect().await.unwrap().to_bytes();
            let patch: Value = serde_json::from_slice(&patch).unwrap();
            let mut stored = object.clone();
            for (field, value) in patch["metadata"].as_object().unwrap() {
                assert!(
                    field == "finalizers" || object["metadata"][field] == *value,
                    "{field} is pinned"
                );
                stored["metadata"][field] = value.clone();
            }
            stored["metadata"]["resourceVersion"] = "8".into();
            answer.send_response(Response::new(serde_json::to_vec(&stored).unwrap().into()));
            serde_json::from_value(stored["metadata"]["finalizers"].clone()).unwrap()
        };
        tokio::join!(change(api, cached), answers)
    }

    #[tokio::test]
    async fn add_keeps_finalizers_that_the_cache_dropped() {
        let object = stored(false);
        let own_writes = OwnWrites::new(Trigger::default());
        let (put, finalizers) = written(&object, async |api, cached| {
            add(&own_writes, &api, "m", Arc::new(cached), FINALIZER)
                .await
                .unwrap()
        })
        .await;
        assert!(has(put.as_ref(), FINALIZER) && !cache::has_all_finalizers(put.as_ref()));
        assert_eq!(finalizers.len(), 1001);
        assert!(finalizers.iter().any(|name| name == FINALIZER));
    }

    #[tokio::test]
    async fn remove_keeps_finalizers_that_the_cache_dropped() {
        let object = stored(true);
        let own_writes = OwnWrites::new(Trigger::default());
        let (newest, finalizers) = written(&object, async |api, cached| {
            assert!(has(&cached, FINALIZER));
            remove(&own_writes, &api, "m", &cached, FINALIZER)
                .await
                .unwrap();
            own_writes.newest(&ObjectKey::of(&cached), Arc::new(cached))
        })
        .await;
        assert!(!has(newest.as_ref(), FINALIZER), "the cache is older");
        assert_eq!(finalizers.len(), 1000);
        assert!(finalizers.iter().all(|name| name != FINALIZER));
    }
}
