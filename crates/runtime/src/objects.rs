//! The cached objects of a kind, by key.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use kube::ResourceExt;

use crate::ObjectKey;

/// The cached objects of a kind. Cheap to clone; all clones have the same objects.
#[derive(Debug)]
pub struct Objects<K>(Arc<RwLock<ObjectsState<K>>>);

#[derive(Debug)]
struct ObjectsState<K> {
    by_key: BTreeMap<ObjectKey, Arc<K>>,
    /// The keys of `by_key` by UID.
    by_uid: HashMap<String, ObjectKey>,
}

impl<K> Clone for Objects<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> Default for Objects<K> {
    fn default() -> Self {
        Self(Arc::new(RwLock::new(ObjectsState {
            by_key: BTreeMap::new(),
            by_uid: HashMap::new(),
        })))
    }
}

impl<K> Objects<K> {
    fn state(&self) -> RwLockReadGuard<'_, ObjectsState<K>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn state_mut(&self) -> RwLockWriteGuard<'_, ObjectsState<K>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn read<T>(&self, read: impl FnOnce(&BTreeMap<ObjectKey, Arc<K>>) -> T) -> T {
        read(&self.state().by_key)
    }

    /// Returns the object of this key.
    pub fn get(&self, key: &ObjectKey) -> Option<Arc<K>> {
        self.read(|objects| objects.get(key).cloned())
    }

    /// Returns whether an object has this UID.
    pub fn has_uid(&self, uid: &str) -> bool {
        self.state().by_uid.contains_key(uid)
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
}

impl<K: ResourceExt> Objects<K> {
    /// Inserts an object instead of the one of its name.
    pub fn insert(&self, object: K) -> Arc<K> {
        let (key, object) = (ObjectKey::of(&object), Arc::new(object));
        let mut state = self.state_mut();
        state.remove(&key);
        if let Some(uid) = object.uid() {
            state.by_uid.insert(uid, key.clone());
        }
        state.by_key.insert(key, Arc::clone(&object));
        object
    }

    /// Removes the object of this key.
    pub fn remove(&self, key: &ObjectKey) {
        self.state_mut().remove(key);
    }
}

impl<K: ResourceExt> ObjectsState<K> {
    fn remove(&mut self, key: &ObjectKey) {
        let removed = self.by_key.remove(key);
        if let Some(uid) = removed.and_then(|object| object.uid())
            && self.by_uid.get(&uid) == Some(key)
        {
            self.by_uid.remove(&uid);
        }
    }
}

/// Returns the keys that an index has for `value`. Keys for other values cost nothing.
pub fn keys_of<V: Ord + Clone>(
    index: &BTreeSet<(V, ObjectKey)>,
    value: V,
) -> impl Iterator<Item = &ObjectKey> {
    // No name is empty.
    let first = (value.clone(), ObjectKey::new("", ""));
    index
        .range(first..)
        .take_while(move |(of, _)| *of == value)
        .map(|(_, key)| key)
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

    #[test]
    fn uid_is_known_as_long_as_its_object() {
        let objects = Objects::<Widget>::default();
        let insert = |name: &str, uid: &str| {
            objects.insert(Widget {
                metadata: ObjectMeta {
                    namespace: Some("a".into()),
                    name: Some(name.into()),
                    uid: Some(uid.into()),
                    ..ObjectMeta::default()
                },
                ..Widget::default()
            });
        };
        insert("x", "1");
        insert("y", "2");
        insert("x", "1");
        assert!(objects.has_uid("1") && objects.has_uid("2"));
        insert("x", "3");
        assert!(!objects.has_uid("1") && objects.has_uid("3"), "recreated");
        objects.remove(&ObjectKey::new("a", "x"));
        assert!(!objects.has_uid("3") && objects.has_uid("2"));
    }
}
