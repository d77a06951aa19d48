//! The cached objects of a kind, by key.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use kube::ResourceExt;

use crate::ObjectKey;

/// The cached objects of a kind. Cheap to clone; all clones have the same objects.
#[derive(Debug)]
pub struct Objects<K>(Arc<RwLock<BTreeMap<ObjectKey, Arc<K>>>>);

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
    fn read<T>(&self, read: impl FnOnce(&BTreeMap<ObjectKey, Arc<K>>) -> T) -> T {
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

    /// Returns the objects of `namespace` that satisfy the predicate. Objects of other namespaces cost nothing.
    pub fn in_namespace(&self, namespace: &str, is_selected: impl Fn(&K) -> bool) -> Vec<Arc<K>> {
        self.read(|objects| {
            in_namespace(objects, Some(namespace))
                .map(|(_, object)| object)
                .filter(|object| is_selected(object))
                .cloned()
                .collect()
        })
    }

    /// Returns all objects.
    pub fn all(&self) -> Vec<Arc<K>> {
        self.read(|objects| objects.values().cloned().collect())
    }

    /// Returns the keys of the objects in `namespace`, `None` for all namespaces.
    pub fn keys(&self, namespace: Option<&str>) -> Vec<ObjectKey> {
        self.read(|objects| {
            let entries = in_namespace(objects, namespace);
            entries.map(|(key, _)| key.clone()).collect()
        })
    }

    /// Returns whether there is no object.
    pub fn is_empty(&self) -> bool {
        self.read(BTreeMap::is_empty)
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

/// Returns the entries in `namespace`, `None` for all namespaces. Entries of other namespaces cost nothing.
pub fn in_namespace<'a, V>(
    entries: &'a BTreeMap<ObjectKey, V>,
    namespace: Option<&str>,
) -> impl Iterator<Item = (&'a ObjectKey, &'a V)> {
    // The keys sort by namespace, and no name is empty.
    let first = ObjectKey::new(namespace.unwrap_or_default(), "");
    entries
        .range(first..)
        .take_while(move |(key, _)| key.is_in(namespace))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use kube::core::ObjectMeta;

    use super::*;
    use crate::testing::Widget;

    #[test]
    fn objects_of_other_namespaces_are_not_visited() {
        let objects = Objects::<Widget>::default();
        let insert = |namespace: &str, name: &str| {
            objects.insert(Widget {
                metadata: ObjectMeta {
                    namespace: Some(namespace.into()),
                    name: Some(name.into()),
                    ..ObjectMeta::default()
                },
                ..Widget::default()
            });
        };
        for number in 0..100 {
            for namespace in ["a", "b-a", "bb", "c"] {
                insert(namespace, &format!("w-{number}"));
            }
        }
        for name in ["x", "y"] {
            insert("b", name);
        }
        let visits = Cell::new(0);
        let selected = objects.in_namespace("b", |object| {
            visits.set(visits.get() + 1);
            object.name_any() == "y"
        });
        let names: Vec<_> = selected.iter().map(|object| object.name_any()).collect();
        assert_eq!((names, visits.get()), (vec!["y".to_owned()], 2));
        assert_eq!(objects.in_namespace("bb", |_| true).len(), 100);
        assert!(objects.in_namespace("d", |_| true).is_empty());
        let keys = ["x", "y"].map(|name| ObjectKey::new("b", name));
        assert_eq!(objects.keys(Some("b")), keys);
        assert_eq!(objects.keys(None).len(), 402);
    }
}
