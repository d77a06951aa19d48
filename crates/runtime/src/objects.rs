//! The cached objects of a kind, by key.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use kube::ResourceExt;

use crate::ObjectKey;

/// The cached objects of a kind. Cheap to clone; all clones have the same objects.
#[derive(Debug)]
pub struct Objects<K>(Arc<RwLock<HashMap<ObjectKey, Arc<K>>>>);

impl<K> Clone for Objects<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> Default for Objects<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K> Objects<K> {
    fn read<T>(&self, read: impl FnOnce(&HashMap<ObjectKey, Arc<K>>) -> T) -> T {
        read(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the object of this key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read(|objects| objects.get(key).cloned())
    }

    /// Returns an object that satisfies the predicate.
    pub fn find(&self, is_selected: impl Fn(&K) -> bool) -> Option<Arc<K>> {
        self.read(|objects| objects.values().find(|object| is_selected(object)).cloned())
    }

    /// Returns all objects.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.read(|objects| objects.values().cloned().collect())
    }

    /// Returns the keys of all objects.
    pub fn keys(&self) -> Vec<ObjectKey> {
        self.read(|objects| objects.keys().cloned().collect())
    }

    /// Returns whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.read(HashMap::is_empty)
    }

    /// Removes the object of this key.
    pub fn remove(&self, key: &ObjectKey) {
        let mut objects = self.0.write().unwrap_or_else(PoisonError::into_inner);
        objects.remove(key);
    }
}

impl<K: ResourceExt> Objects<K> {
    /// Inserts an object instead of the one of its name.
    pub fn insert(&self, object: K) -> Arc<K> {
        let (key, object) = (ObjectKey::of(&object), Arc::new(object));
        let mut objects = self.0.write().unwrap_or_else(PoisonError::into_inner);
        objects.insert(key, Arc::clone(&object));
        object
    }
}
