//! What we wrote last, while the cache does not show it yet.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::{Resource, ResourceExt};

use super::{Key, is_newer};

/// The last state of each object that our own write brought about, until the cache has caught up: a pass that decided
/// on an older one would repeat itself.
pub struct Written<K>(Mutex<HashMap<Key, Arc<K>>>);

impl<K> Default for Written<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Resource> Written<K> {
    fn objects(&self) -> MutexGuard<'_, HashMap<Key, Arc<K>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newer of what is cached and what we wrote.
    pub fn newest(&self, key: &Key, cached: Arc<K>) -> Arc<K> {
        let mut objects = self.objects();
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

    /// Whether this state of an object, as the cache shows it, is the one that we brought about, or an older one.
    pub fn knows(&self, key: &Key, cached: &Arc<K>) -> bool {
        let mut objects = self.objects();
        let Some(ours) = objects.get_mut(key) else { return false };
        if ours.uid() != cached.uid() || newer(cached.as_ref(), ours.as_ref()) {
            return false;
        }
        if !newer(ours.as_ref(), cached.as_ref()) {
            // The next pass may be long in coming: no second copy until then.
            *ours = Arc::clone(cached);
        }
        true
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
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn object(uid: &str, version: &str) -> ConfigMap {
        let mut object = ConfigMap::default();
        object.metadata.uid = Some(uid.into());
        object.metadata.resource_version = Some(version.into());
        object
    }

    #[test]
    fn our_own_write_is_known_again_and_kept_once() {
        let (written, key) = (Written::default(), Key::new("a", "x"));
        let ours = Arc::downgrade(&written.wrote(&key, object("1", "7")));
        assert!(written.knows(&key, &Arc::new(object("1", "6"))), "an older state is no news");
        assert!(ours.upgrade().is_some(), "the cache has not caught up");
        let cached = Arc::new(object("1", "7"));
        assert!(written.knows(&key, &cached));
        assert!(ours.upgrade().is_none(), "the cache's copy is enough");
        assert!(written.knows(&key, &cached), "shown again, it is still no news");
        assert!(!written.knows(&key, &Arc::new(object("1", "8"))));
        assert!(!written.knows(&key, &Arc::new(object("2", "7"))));
    }

    #[test]
    fn the_newest_is_decided_on() {
        let (written, key) = (Written::default(), Key::new("a", "x"));
        written.wrote(&key, object("1", "7"));
        let version = |cached| written.newest(&key, Arc::new(cached)).metadata.resource_version.clone().unwrap();
        assert_eq!(version(object("1", "6")), "7");
        assert_eq!(version(object("1", "8")), "8");
        assert_eq!(version(object("1", "6")), "6", "once the cache has caught up nothing is kept");
    }
}
