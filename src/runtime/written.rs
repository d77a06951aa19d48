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

    /// Whether this state of an object is the one that we brought about, or an older one.
    pub fn knows(&self, key: &Key, object: &K) -> bool {
        self.objects().get(key).is_some_and(|ours| ours.uid() == object.uid() && !newer(object, ours.as_ref()))
    }

    /// The object is gone.
    pub fn forget(&self, key: &Key) {
        self.objects().remove(key);
    }
}

fn newer(one: &impl Resource, other: &impl Resource) -> bool {
    is_newer(one.meta().resource_version.as_deref(), other.meta().resource_version.as_deref())
}
