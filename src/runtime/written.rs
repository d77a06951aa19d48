//! What we wrote last, while the cache does not show it yet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};

use super::{Key, is_newer};

/// The last state of each object that our own write brought about, until the cache has caught up: a pass that decided
/// on an older one would repeat itself.
pub struct Written<K: Resource<DynamicType = ()> + Clone + 'static> {
    cache: Store<K>,
    objects: Mutex<HashMap<Key, Arc<K>>>,
}

impl<K: Resource<DynamicType = ()> + Clone> Written<K> {
    /// Nothing was written yet of the objects in `cache`.
    pub fn new(cache: Store<K>) -> Self {
        Self { cache, objects: Mutex::default() }
    }

    fn objects(&self) -> MutexGuard<'_, HashMap<Key, Arc<K>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newer of what is cached and what we wrote; `handed` where it is no longer cached.
    pub fn newest(&self, key: &Key, handed: Arc<K>) -> Arc<K> {
        let mut objects = self.objects();
        // Looked up only now: what was handed to the pass may be older than what was `shown` since.
        let cached = self.cache.get(&ObjectRef::new(&key.name).within(&key.namespace)).unwrap_or(handed);
        match objects.get(key) {
            Some(ours) if ours.uid() == cached.uid() && newer(ours.as_ref(), cached.as_ref()) => Arc::clone(ours),
            _ => {
                objects.remove(key);
                cached
            }
        }
    }

    /// We wrote `object`.
    pub fn wrote(&self, key: &Key, object: K) -> Arc<K> {
        let object = Arc::new(object);
        self.objects().insert(key.clone(), Arc::clone(&object));
        object
    }

    /// The cache has this state of an object. Whether it is the one that we brought about, or an older one. Ours is kept
    /// no longer than until then.
    pub fn shown(&self, key: &Key, cached: &K) -> bool {
        let mut objects = self.objects();
        let Some(ours) = objects.get(key) else { return false };
        let known = ours.uid() == cached.uid() && !newer(cached, ours.as_ref());
        if !(known && newer(ours.as_ref(), cached)) {
            objects.remove(key);
        }
        known
    }

    /// The object is gone.
    pub fn forget(&self, key: &Key) {
        self.objects().remove(key);
    }
}

fn newer(one: &impl Resource, other: &impl Resource) -> bool {
    is_newer(one.meta().resource_version.as_deref(), other.meta().resource_version.as_deref())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::ObjectMeta;
    use kube::runtime::reflector::store;
    use kube::runtime::reflector::store::Writer;
    use kube::runtime::watcher::Event;

    use super::*;

    fn state(uid: &str, version: u64) -> ConfigMap {
        let metadata = ObjectMeta {
            namespace: Some("a".into()),
            name: Some("x".into()),
            uid: Some(uid.into()),
            resource_version: Some(version.to_string()),
            ..ObjectMeta::default()
        };
        ConfigMap { metadata, ..ConfigMap::default() }
    }

    struct Scene {
        cache: Writer<ConfigMap>,
        written: Written<ConfigMap>,
        key: Key,
    }

    impl Scene {
        fn new() -> Self {
            let (store, cache) = store();
            Self { cache, written: Written::new(store), key: Key::new("a", "x") }
        }

        /// The watch shows a state; whether it is none but ours.
        fn shows(&mut self, uid: &str, version: u64) -> bool {
            self.cache.apply_watcher_event(&Event::Apply(state(uid, version)));
            self.written.shown(&self.key, &state(uid, version))
        }

        fn wrote(&self, version: u64) {
            self.written.wrote(&self.key, state("1", version));
        }

        /// What a pass decides on that was handed this version.
        fn decides_on(&self, handed: u64) -> String {
            self.written.newest(&self.key, Arc::new(state("1", handed))).resource_version().unwrap()
        }

        fn keeps_none(&self) -> bool {
            self.written.objects().is_empty()
        }
    }

    #[test]
    fn ours_is_kept_until_the_cache_shows_it() {
        let mut scene = Scene::new();
        assert!(!scene.shows("1", 5));
        scene.wrote(7);
        assert!(scene.shows("1", 6), "what our write has overtaken is no news");
        assert_eq!(scene.decides_on(5), "7");
        assert!(scene.shows("1", 7), "our own write is no news");
        assert!(scene.keeps_none());
        assert_eq!(scene.decides_on(5), "7", "a pass that was handed an older one before");
    }

    #[test]
    fn what_others_wrote_is_news() {
        let mut scene = Scene::new();
        scene.wrote(7);
        assert!(!scene.shows("1", 8));
        assert!(scene.keeps_none());
        scene.wrote(9);
        assert!(!scene.shows("2", 6), "another object of that name");
        assert!(scene.keeps_none());
        assert_eq!(scene.decides_on(5), "6");
    }
}
