//! Objects of one of the operator's own kinds, as the watches of the operator's scope show them.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;

use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};
use qm_core::kind::Kind;

/// Most bytes of memory for an object's finalizers. The apiserver bounds the length of each, and not their number; more
/// than a few are a mistake or an attack.
const MAX_FINALIZERS: usize = 16 * 1024;

/// Placeholder for finalizers that [`strip`] removed. The apiserver rejects an empty name, and therefore any write of a
/// shortened list.
const REMOVED_FINALIZERS: &str = "";

/// Cache that feeds a [`Store`] from one watch per place (the cluster, or a namespace each). A relist of one place
/// leaves the objects of the others.
pub struct Cache<K: Resource<DynamicType = ()> + Clone + 'static> {
    writer: Writer<K>,
    store: Store<K>,
    places: Vec<Place<K>>,
}

struct Place<K: Resource<DynamicType = ()>> {
    namespace: Option<String>,
    list: ListState,
    listed: HashSet<ObjectRef<K>>,
}

/// State of the list of a place.
enum ListState {
    Pending,
    /// The apiserver denies the list, with its message.
    Denied(String),
    /// The place has been listed.
    Listed,
}

/// Change of the cache.
pub enum CacheChange<K> {
    /// The object exists: new, changed or unchanged.
    Present(Arc<K>),
    /// The object, as last cached, was deleted.
    Deleted(Arc<K>),
}

impl<K> Cache<K>
where
    K: Kind + Clone + Debug + Send + Sync + 'static,
{
    /// Creates an empty cache with one watch for each of `places`; `None` is the whole cluster.
    pub fn new(places: Vec<Option<String>>) -> Self {
        let (store, mut writer) = store();
        // A store is ready after one complete list. Readers of this store wait for the kind's phase instead.
        empty(&mut writer);
        let places = places
            .into_iter()
            .map(|namespace| Place {
                namespace,
                list: ListState::Pending,
                listed: HashSet::new(),
            })
            .collect();
        Self {
            writer,
            store,
            places,
        }
    }

    /// Returns the store of the objects.
    pub fn store(&self) -> Store<K> {
        self.store.clone()
    }

    /// Returns whether every place has been listed or its list was denied: a denied place does not block the others.
    pub fn is_synced(&self) -> bool {
        self.places
            .iter()
            .all(|place| !matches!(place.list, ListState::Pending))
    }

    /// Returns the places whose list is denied, with the apiserver's messages.
    pub fn denied(&self) -> BTreeMap<Option<String>, String> {
        let denied = self.places.iter().filter_map(|place| match &place.list {
            ListState::Denied(why) => Some((place.namespace.clone(), why.clone())),
            ListState::Pending | ListState::Listed => None,
        });
        denied.collect()
    }

    /// Records that the list of place number `index` is denied. Cached objects stay if the place was listed before.
    pub fn deny(&mut self, index: usize, why: String) {
        let list = &mut self.places[index].list;
        if !matches!(list, ListState::Listed) {
            *list = ListState::Denied(why);
        }
    }

    /// Starts all lists again. Cached objects stay until their place has been listed.
    pub fn restart(&mut self) {
        for place in &mut self.places {
            place.list = ListState::Pending;
            place.listed.clear();
        }
    }

    /// Removes all objects and starts all lists again. Returns the removed objects.
    pub fn clear(&mut self) -> Vec<CacheChange<K>> {
        self.restart();
        let objects = self.store.state();
        empty(&mut self.writer);
        objects.into_iter().map(CacheChange::Deleted).collect()
    }

    /// Applies an event of the watch of place number `index`.
    pub fn apply(&mut self, index: usize, event: Event<K>) -> Vec<CacheChange<K>> {
        match event {
            Event::Apply(object) => self.insert(object),
            Event::Delete(object) => vec![self.remove(Arc::new(object))],
            Event::Init => {
                self.places[index].listed.clear();
                Vec::new()
            }
            Event::InitApply(object) => {
                self.places[index]
                    .listed
                    .insert(ObjectRef::from_obj(&object));
                self.insert(object)
            }
            Event::InitDone => self.listed(index),
        }
    }

    /// Inserts an object. An object of its name with another UID was deleted: a watch that was interrupted may never
    /// have shown that.
    fn insert(&mut self, mut object: K) -> Vec<CacheChange<K>> {
        strip(&mut object);
        let key = ObjectRef::from_obj(&object);
        let replaced = self
            .store
            .get(&key)
            .filter(|before| before.uid() != object.uid());
        self.writer.apply_watcher_event(&Event::Apply(object));
        let present = self.store.get(&key).map(CacheChange::Present);
        replaced
            .map(CacheChange::Deleted)
            .into_iter()
            .chain(present)
            .collect()
    }

    fn remove(&mut self, object: Arc<K>) -> CacheChange<K> {
        self.writer
            .apply_watcher_event(&Event::Delete(object.as_ref().clone()));
        CacheChange::Deleted(object)
    }

    /// Ends the list of a place: cached objects that it did not show were deleted.
    fn listed(&mut self, index: usize) -> Vec<CacheChange<K>> {
        let place = &mut self.places[index];
        place.list = ListState::Listed;
        let listed = std::mem::take(&mut place.listed);
        let namespace = place.namespace.clone();
        let missing: Vec<_> = self
            .store
            .state()
            .into_iter()
            .filter(|object| namespace.is_none() || object.namespace() == namespace)
            .filter(|object| !listed.contains(&ObjectRef::from_obj(object.as_ref())))
            .collect();
        missing
            .into_iter()
            .map(|object| self.remove(object))
            .collect()
    }
}

/// Empties the store, as an empty list would.
fn empty<K: Resource<DynamicType = ()> + Clone>(writer: &mut Writer<K>) {
    writer.apply_watcher_event(&Event::Init);
    writer.apply_watcher_event(&Event::InitDone);
}

/// Removes metadata that no controller reads: `managedFields`, labels, owner references and other programs'
/// annotations, which may be as large as the object. [`Kind::FOREIGN_ANNOTATIONS`] keep their names only. If the
/// finalizers are larger than [`MAX_FINALIZERS`], [`has_all_finalizers`] returns false for the result.
pub fn strip<K: Kind>(object: &mut K) {
    let metadata = object.meta_mut();
    metadata.managed_fields = None;
    metadata.labels = None;
    metadata.owner_references = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|name, _| {
            name.starts_with(K::NAMES.prefix) || K::FOREIGN_ANNOTATIONS.contains(&&**name)
        });
        for name in K::FOREIGN_ANNOTATIONS {
            if let Some(value) = annotations.get_mut(*name) {
                *value = String::new();
            }
        }
    }
    if let Some(finalizers) = &mut metadata.finalizers
        && finalizers
            .iter()
            .map(|name| size_of::<String>() + name.len())
            .sum::<usize>()
            > MAX_FINALIZERS
    {
        // The apiserver also stores repeated finalizers.
        let own = K::FINALIZER
            .into_iter()
            .filter(|own| finalizers.iter().any(|name| name == own));
        *finalizers = own.chain([REMOVED_FINALIZERS]).map(str::to_owned).collect();
    }
}

/// Returns whether `object` has all of its finalizers, because [`strip`] removed none.
pub fn has_all_finalizers(object: &impl ResourceExt) -> bool {
    object
        .finalizers()
        .iter()
        .all(|name| name != REMOVED_FINALIZERS)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, OwnerReference};
    use kube::core::ObjectMeta;

    use super::*;
    use crate::testing::{FINALIZER, FOREIGN_ANNOTATION, Widget};

    fn object(namespace: &str, name: &str) -> Widget {
        let metadata = ObjectMeta {
            namespace: Some(namespace.into()),
            name: Some(name.into()),
            ..ObjectMeta::default()
        };
        Widget {
            metadata,
            ..Widget::default()
        }
    }

    fn names(cache: &Cache<Widget>) -> Vec<String> {
        let mut names: Vec<_> = cache
            .store()
            .state()
            .iter()
            .map(|object| object.name_any())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn relist_of_one_namespace_keeps_the_others() {
        let mut cache = Cache::new(vec![Some("a".into()), Some("b".into())]);
        for (index, namespace) in ["a", "b"].into_iter().enumerate() {
            cache.apply(index, Event::Init);
            cache.apply(
                index,
                Event::InitApply(object(namespace, &format!("{namespace}1"))),
            );
            cache.apply(
                index,
                Event::InitApply(object(namespace, &format!("{namespace}2"))),
            );
            assert!(!cache.is_synced());
            cache.apply(index, Event::InitDone);
        }
        assert!(cache.is_synced());
        cache.apply(0, Event::Init);
        cache.apply(0, Event::InitApply(object("a", "a1")));
        let changes = cache.apply(0, Event::InitDone);
        assert!(
            matches!(&changes[..], [CacheChange::Deleted(object)] if object.name_any() == "a2")
        );
        assert_eq!(names(&cache), ["a1", "b1", "b2"]);
    }

    #[test]
    fn denied_place_does_not_block_the_others() {
        let mut cache = Cache::new(vec![Some("a".into()), Some("b".into())]);
        cache.apply(0, Event::Init);
        cache.apply(0, Event::InitDone);
        cache.deny(0, "too late".into());
        assert!(!cache.is_synced());
        cache.deny(1, "no".into());
        assert!(cache.is_synced());
        assert_eq!(cache.denied(), [(Some("b".into()), "no".into())].into());
        cache.apply(1, Event::Init);
        assert!(
            cache.is_synced() && !cache.denied().is_empty(),
            "the place stays denied until its list ends"
        );
        cache.apply(1, Event::InitApply(object("b", "b1")));
        cache.apply(1, Event::InitDone);
        assert!(cache.is_synced() && cache.denied().is_empty());
        cache.clear();
        assert!(!cache.is_synced());
    }

    #[test]
    fn objects_stay_cached_during_a_relist() {
        let mut cache = Cache::new(vec![None]);
        cache.apply(0, Event::Init);
        cache.apply(0, Event::InitApply(object("a", "x")));
        cache.apply(0, Event::InitDone);
        cache.restart();
        assert!(!cache.is_synced());
        assert_eq!(names(&cache), ["x"]);
        cache.apply(0, Event::Init);
        let changes = cache.apply(0, Event::InitDone);
        assert!(matches!(&changes[..], [CacheChange::Deleted(object)] if object.name_any() == "x"));
        assert!(cache.is_synced() && names(&cache).is_empty());
    }

    fn with_uid(name: &str, uid: &str) -> Widget {
        let mut object = object("a", name);
        object.metadata.uid = Some(uid.into());
        object
    }

    /// Formats changes as `+UID` for present and `-UID` for deleted objects.
    fn changes(all: &[CacheChange<Widget>]) -> Vec<String> {
        let change = |change: &CacheChange<Widget>| match change {
            CacheChange::Present(object) => format!("+{}", object.uid().unwrap_or_default()),
            CacheChange::Deleted(object) => format!("-{}", object.uid().unwrap_or_default()),
        };
        all.iter().map(change).collect()
    }

    #[test]
    fn recreated_object_is_reported_deleted_first() {
        let mut cache = Cache::new(vec![None]);
        cache.apply(0, Event::Init);
        assert_eq!(
            changes(&cache.apply(0, Event::InitApply(with_uid("x", "1")))),
            ["+1"]
        );
        cache.apply(0, Event::InitDone);
        assert_eq!(
            changes(&cache.apply(0, Event::Apply(with_uid("x", "1")))),
            ["+1"]
        );
        cache.apply(0, Event::Init);
        assert_eq!(
            changes(&cache.apply(0, Event::InitApply(with_uid("x", "2")))),
            ["-1", "+2"]
        );
        assert!(cache.apply(0, Event::InitDone).is_empty());
    }

    #[test]
    fn unused_metadata_is_dropped() {
        let large = || "x".repeat(1000);
        let annotations = [
            ("kubectl.kubernetes.io/last-applied-configuration", large()),
            ("example.org/notes", large()),
            ("example.com/requested-at", "now".into()),
            (FOREIGN_ANNOTATION, large()),
        ];
        let mut object = object("a", "x");
        object.metadata.annotations = Some(
            annotations
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
        );
        object.metadata.managed_fields = Some(vec![ManagedFieldsEntry::default()]);
        object.metadata.labels = Some(
            [("example.com/team", large()), ("example.com/x", large())]
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
        );
        object.metadata.owner_references = Some(vec![OwnerReference {
            name: large(),
            ..OwnerReference::default()
        }]);
        strip(&mut object);
        let kept: Vec<_> = object
            .annotations()
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(
            kept,
            [
                ("example.com/requested-at", "now"),
                (FOREIGN_ANNOTATION, "")
            ]
        );
        let ObjectMeta {
            managed_fields,
            labels,
            owner_references,
            ..
        } = object.metadata;
        assert_eq!(
            (managed_fields, labels, owner_references),
            (None, None, None)
        );
    }

    fn with_finalizers(names: impl IntoIterator<Item = String>) -> Widget {
        let mut object = object("a", "x");
        object.metadata.finalizers = Some(names.into_iter().collect());
        strip(&mut object);
        object
    }

    #[test]
    fn finalizers_are_kept_up_to_a_bound() {
        let name = |number: usize| format!("example.com/{number:04}");
        let most = MAX_FINALIZERS / (size_of::<String>() + name(0).len());
        let kept = with_finalizers((0..most).map(name));
        assert!(kept.finalizers().len() == most && has_all_finalizers(&kept));
        let shortened = with_finalizers((0..=most).map(name));
        assert!(shortened.finalizers().len() == 1 && !has_all_finalizers(&shortened));
        assert!(has_all_finalizers(&object("a", "x")));
        let short = with_finalizers((0..1000).map(|_| "a".to_owned()));
        assert!(!has_all_finalizers(&short));
    }

    #[test]
    fn own_finalizers_are_kept_once_in_a_shortened_list() {
        let own_repeated = (0..=MAX_FINALIZERS / FINALIZER.len()).map(|_| FINALIZER.to_owned());
        let foreign = (0..1000).map(|number| format!("example.org/{number}"));
        let shortened = with_finalizers(own_repeated.chain(foreign));
        assert_eq!(shortened.finalizers(), [FINALIZER, REMOVED_FINALIZERS]);
    }

    #[tokio::test]
    async fn cache_is_empty_after_a_clear_until_the_next_list() {
        let mut cache = Cache::new(vec![None]);
        let store = cache.store();
        store.wait_until_ready().await.unwrap();
        for _ in 0..2 {
            cache.apply(0, Event::Init);
            assert_eq!(
                changes(&cache.apply(0, Event::InitApply(with_uid("x", "1")))),
                ["+1"]
            );
            cache.apply(0, Event::InitDone);
            assert!(cache.is_synced() && store.len() == 1);
            assert_eq!(changes(&cache.clear()), ["-1"]);
            assert!(!cache.is_synced() && store.is_empty());
        }
    }
}
