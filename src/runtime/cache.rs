//! The objects of one of our own kinds, as the watches of the operator's scope show them.

use std::collections::HashSet;
use std::fmt::Debug;
use std::sync::Arc;

use kube::runtime::reflector::{ObjectRef, Store, store};
use kube::runtime::watcher::Event;
use kube::{Resource, ResourceExt};

/// Feeds a [`Store`] from one watch a shard (the cluster, or one namespace each), none of which may wipe what the
/// others hold when it lists again.
pub struct Cache<K: Resource<DynamicType = ()> + Clone + 'static> {
    writer: kube::runtime::reflector::store::Writer<K>,
    store: Store<K>,
    shards: Vec<Shard<K>>,
    ready: bool,
}

struct Shard<K: Resource<DynamicType = ()>> {
    namespace: Option<String>,
    synced: bool,
    listed: HashSet<ObjectRef<K>>,
}

/// What an event did to the cache.
pub enum Touched<K> {
    /// An object is there, new or as it was.
    Present(Arc<K>),
    /// An object is gone: this is the last that was known of it.
    Gone(Arc<K>),
}

impl<K> Cache<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static,
{
    /// A cache that is fed by one watch for each of `shards`; `None` is the whole cluster.
    pub fn new(shards: Vec<Option<String>>) -> Self {
        let (store, writer) = store();
        let shards =
            shards.into_iter().map(|namespace| Shard { namespace, synced: false, listed: HashSet::new() }).collect();
        Self { writer, store, shards, ready: false }
    }

    /// The objects.
    pub fn store(&self) -> Store<K> {
        self.store.clone()
    }

    /// Whether every shard has been listed.
    pub fn synced(&self) -> bool {
        self.shards.iter().all(|shard| shard.synced)
    }

    /// The watches begin anew.
    pub fn restart(&mut self) {
        for shard in &mut self.shards {
            shard.synced = false;
            shard.listed.clear();
        }
    }

    /// Takes in what the watch of shard number `index` shows.
    pub fn apply(&mut self, index: usize, event: Event<K>) -> Vec<Touched<K>> {
        match event {
            Event::Apply(object) => vec![self.insert(object)],
            Event::Delete(object) => vec![self.remove(object)],
            Event::Init => {
                self.shards[index].listed.clear();
                Vec::new()
            }
            Event::InitApply(object) => {
                self.shards[index].listed.insert(ObjectRef::from_obj(&object));
                vec![self.insert(object)]
            }
            Event::InitDone => self.listed(index),
        }
    }

    fn insert(&mut self, mut object: K) -> Touched<K> {
        strip(&mut object);
        let key = ObjectRef::from_obj(&object);
        self.writer.apply_watcher_event(&Event::Apply(object.clone()));
        Touched::Present(self.store.get(&key).unwrap_or_else(|| Arc::new(object)))
    }

    fn remove(&mut self, object: K) -> Touched<K> {
        self.writer.apply_watcher_event(&Event::Delete(object.clone()));
        Touched::Gone(Arc::new(object))
    }

    /// A shard has been listed: what it held and was not listed is gone.
    fn listed(&mut self, index: usize) -> Vec<Touched<K>> {
        let shard = &mut self.shards[index];
        shard.synced = true;
        let listed = std::mem::take(&mut shard.listed);
        let namespace = shard.namespace.clone();
        let missing: Vec<_> = self
            .store
            .state()
            .into_iter()
            .filter(|object| namespace.is_none() || object.namespace() == namespace)
            .filter(|object| !listed.contains(&ObjectRef::from_obj(object.as_ref())))
            .collect();
        let gone = missing.into_iter().map(|object| self.remove(object.as_ref().clone())).collect();
        if self.synced() && !self.ready {
            self.ready = true;
            self.release_store();
        }
        gone
    }

    /// The store tells its readers that it is ready after a whole list only: give it one of what it holds.
    fn release_store(&mut self) {
        let state = self.store.state();
        self.writer.apply_watcher_event(&Event::Init);
        for object in state {
            self.writer.apply_watcher_event(&Event::InitApply(object.as_ref().clone()));
        }
        self.writer.apply_watcher_event(&Event::InitDone);
    }
}

/// Drops what no controller reads and what may be as large as the object itself.
pub fn strip(object: &mut impl ResourceExt) {
    object.meta_mut().managed_fields = None;
    if let Some(annotations) = &mut object.meta_mut().annotations {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::ObjectMeta;

    use super::*;

    fn object(namespace: &str, name: &str) -> ConfigMap {
        let metadata =
            ObjectMeta { namespace: Some(namespace.into()), name: Some(name.into()), ..ObjectMeta::default() };
        ConfigMap { metadata, ..ConfigMap::default() }
    }

    fn names(cache: &Cache<ConfigMap>) -> Vec<String> {
        let mut names: Vec<_> = cache.store().state().iter().map(|object| object.name_any()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_list_of_one_namespace_leaves_the_others() {
        let mut cache = Cache::new(vec![Some("a".into()), Some("b".into())]);
        for (index, namespace) in ["a", "b"].into_iter().enumerate() {
            cache.apply(index, Event::Init);
            cache.apply(index, Event::InitApply(object(namespace, &format!("{namespace}1"))));
            cache.apply(index, Event::InitApply(object(namespace, &format!("{namespace}2"))));
            assert!(!cache.synced());
            cache.apply(index, Event::InitDone);
        }
        assert!(cache.synced());
        cache.apply(0, Event::Init);
        cache.apply(0, Event::InitApply(object("a", "a1")));
        let gone = cache.apply(0, Event::InitDone);
        assert!(matches!(&gone[..], [Touched::Gone(object)] if object.name_any() == "a2"));
        assert_eq!(names(&cache), ["a1", "b1", "b2"]);
    }

    #[tokio::test]
    async fn readers_are_released_with_everything_in_place() {
        let mut cache = Cache::new(vec![None]);
        cache.apply(0, Event::Init);
        cache.apply(0, Event::InitApply(object("a", "a1")));
        cache.apply(0, Event::InitDone);
        cache.store().wait_until_ready().await.unwrap();
        assert_eq!(names(&cache), ["a1"]);
    }
}
