//! Cache of the objects of one of the operator's own kinds.

use std::sync::Arc;

use kube::ResourceExt;
use qm_core::conditions::MAX_MESSAGE;
use qm_core::kind::Kind;
use tokio::sync::watch;
use tracing::{info, warn};

use super::health::{KindReadiness, Probes};
use super::objects::Objects;
use super::watch::{Index, SyncState, WatchPhase};
use super::{ObjectKey, short_digest};

/// Maximum memory for an object's finalizers, in bytes. The apiserver limits the length of each, but not their number;
/// more than a few are a mistake or an attack.
const MAX_FINALIZERS: usize = 16 * 1024;

/// Maximum length of a cached annotation, in bytes. The longest value that the operator writes is the reason and the
/// message of a condition.
const MAX_ANNOTATION: usize = 2 * MAX_MESSAGE;

/// Placeholder for finalizers that [`strip`] removed. The apiserver rejects an empty name, and therefore any write of a
/// shortened list.
const REMOVED_FINALIZERS: &str = "";

/// Index that fills [`Objects`], and sets the kind's state for the probes.
pub(crate) struct Cache<K: Kind + Clone + 'static> {
    name: &'static str,
    objects: Objects<K>,
    on: Box<dyn Fn(CacheChange<K>, bool) + Send + Sync>,
    sync: SyncState,
    probes: Probes,
    state: watch::Sender<KindCacheState>,
}

/// State of the cache of a kind: what the probes report, and the relist that the cache has reached. Reconciles read it
/// through [`CacheStatus`].
#[derive(Clone, Debug)]
pub(crate) struct KindCacheState {
    pub kind: KindReadiness,
    /// Number of the last complete relist; `None` before the first, and once the watch has stopped. A list that the
    /// apiserver denies counts as complete.
    pub relist: Option<u64>,
}

impl KindCacheState {
    /// Returns the state before the first list.
    pub(crate) fn syncing() -> Self {
        Self {
            kind: KindReadiness::Syncing,
            relist: None,
        }
    }
}

/// View of the cache of a kind for the reconciles of this kind and of others.
#[derive(Clone)]
pub struct CacheStatus {
    state: watch::Receiver<KindCacheState>,
    /// First relist that counts. A watch that stalled on a standby is stale, and a reconcile of stale state would undo
    /// the changes of the previous leader: a replica that begins to lead lists every kind again.
    required: u64,
}

impl CacheStatus {
    /// Creates the view of `state`. With leader election, the list of a standby does not count as synced.
    pub(super) fn new(state: &watch::Sender<KindCacheState>, leader_elect: bool) -> Self {
        Self {
            state: state.subscribe(),
            required: leader_elect.into(),
        }
    }

    /// Returns why objects of this kind are not served in `namespace`: the CRD is missing or incompatible, the
    /// controller is off, or the apiserver denies the list. Returns `None` while they are served, and while the cache
    /// is syncing. While the cache is syncing, an object that is not cached may exist.
    pub fn unavailable(&self, namespace: &str) -> Option<String> {
        match &self.state.borrow().kind {
            KindReadiness::Absent(why) => Some(why.clone()),
            KindReadiness::PartiallySynced(denied) => denied
                .get(&None)
                .or_else(|| denied.get(&Some(namespace.to_owned())))
                .cloned(),
            KindReadiness::Syncing | KindReadiness::Synced => None,
        }
    }

    /// Returns whether objects are cached, in the namespaces that may be listed.
    pub(super) fn is_served(&self) -> bool {
        matches!(
            self.state.borrow().kind,
            KindReadiness::Synced | KindReadiness::PartiallySynced(_)
        )
    }

    /// Waits until the cache is synced, as far as the apiserver allows lists, or the kind is known not to be served.
    pub async fn synced(mut self) {
        let required = Some(self.required);
        let is_synced = |state: &KindCacheState| {
            state.relist >= required || matches!(state.kind, KindReadiness::Absent(_))
        };
        // The wait fails only while the process ends.
        let _ = self.state.wait_for(is_synced).await;
    }
}

/// Change of the cache.
pub(crate) enum CacheChange<K> {
    /// The object exists: new, changed or unchanged.
    Present(Arc<K>),
    /// The object, as last cached, was deleted.
    Deleted(Arc<K>),
}

impl<K: Kind + Clone + 'static> Cache<K> {
    /// Creates a cache of the kind whose controller is `name`, which fills `objects`. `on` gets each change of the
    /// cache, and whether all objects have been listed; after the list, and after a list that was denied before, `on`
    /// gets each object again. While the watch is stopped, the cache is empty: an older CRD may have pruned fields of
    /// the objects.
    pub fn new(
        name: &'static str,
        objects: Objects<K>,
        sync: SyncState,
        on: impl Fn(CacheChange<K>, bool) + Send + Sync + 'static,
        probes: Probes,
        state: watch::Sender<KindCacheState>,
    ) -> Self {
        Self {
            name,
            objects,
            on: Box::new(on),
            sync,
            probes,
            state,
        }
    }

    fn notify(&self, change: CacheChange<K>) {
        (self.on)(change, self.sync.synced_relist().is_some());
    }

    fn notify_all(&self, namespace: Option<&str>) {
        let objects = match namespace {
            Some(namespace) => self.objects.in_namespace(namespace, |_| true),
            None => self.objects.all(),
        };
        for object in objects {
            self.notify(CacheChange::Present(object));
        }
    }

    fn set_state(&self, kind: KindReadiness, relist: Option<u64>) {
        if self.state.borrow().kind != kind {
            match &kind {
                KindReadiness::Absent(why) => warn!(kind = self.name, why, "kind is not served"),
                KindReadiness::Syncing => info!(kind = self.name, "listing the kind"),
                KindReadiness::PartiallySynced(denied) => {
                    warn!(
                        kind = self.name,
                        ?denied,
                        "kind is served only in namespaces where the operator may list it"
                    );
                }
                KindReadiness::Synced => info!(kind = self.name, "kind is served"),
            }
            self.probes.set(self.name, kind.clone());
        }
        self.state.send_replace(KindCacheState { kind, relist });
    }
}

impl<K: Kind + Clone + Send + Sync + 'static> Index<K> for Cache<K> {
    /// Inserts an object. A cached object of that name with another UID was deleted: an interrupted watch may never
    /// have shown the deletion.
    fn apply(&self, mut object: K) -> bool {
        strip(&mut object);
        let key = ObjectKey::of(&object);
        let before = self.objects.get(&key);
        if let Some(replaced) = before.filter(|before| before.uid() != object.uid()) {
            // A reconcile of the new object must not begin before the old one is forgotten.
            self.objects.remove(&key);
            self.notify(CacheChange::Deleted(replaced));
        }
        let object = self.objects.insert(object);
        self.notify(CacheChange::Present(object));
        true
    }

    fn delete(&self, key: &ObjectKey, last: Option<K>) {
        let cached = || self.objects.get(key);
        if let Some(object) = last.map(Arc::new).or_else(cached) {
            self.objects.remove(key);
            self.notify(CacheChange::Deleted(object));
        }
    }

    fn keys(&self, namespace: Option<&str>) -> Vec<ObjectKey> {
        self.objects.keys(namespace)
    }

    fn phase(&self, namespace: Option<&str>, phase: &WatchPhase) {
        if let WatchPhase::Stopped(why) = phase {
            return self.set_state(KindReadiness::Absent(why.clone()), None);
        }
        let before = self.state.borrow().clone();
        let relist = self.sync.synced_relist();
        if relist.is_none() {
            // During a relist the kind is still served.
            if matches!(before.kind, KindReadiness::Absent(_)) {
                self.set_state(KindReadiness::Syncing, before.relist);
            }
            return;
        }
        if before.relist != relist {
            self.notify_all(None);
        } else if let KindReadiness::PartiallySynced(_) = before.kind
            && *phase == WatchPhase::Listed
        {
            // While the list was denied, no object of the namespace was reconciled.
            self.notify_all(namespace);
        }
        let denied = self.sync.unlisted();
        let kind = if denied.is_empty() {
            KindReadiness::Synced
        } else {
            KindReadiness::PartiallySynced(denied)
        };
        self.set_state(kind, relist);
    }
}

/// Removes metadata that no controller reads from a cache: `managedFields`, labels, owner references, and most
/// annotations, which may be as large as the object. [`Kind::ANNOTATIONS`] and `requested-at` keep their values, or, if
/// longer than [`MAX_ANNOTATION`], digests of them. [`Kind::FOREIGN_ANNOTATIONS`] keep their names only. If the
/// finalizers are larger than [`MAX_FINALIZERS`], [`has_all_finalizers`] returns false for the result. Equal values of
/// several objects become shared copies.
pub fn strip<K: Kind>(object: &mut K) {
    object.share();
    let metadata = object.meta_mut();
    metadata.managed_fields = None;
    metadata.labels = None;
    metadata.owner_references = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|name, value| {
            let name = name.as_str();
            let is_own = name == K::NAMES.requested_at || K::ANNOTATIONS.contains(&name);
            let is_foreign = K::FOREIGN_ANNOTATIONS.contains(&name);
            if is_foreign {
                *value = String::new();
            } else if is_own && value.len() > MAX_ANNOTATION {
                // Another value of that length is still a change.
                *value = short_digest(&*value);
            }
            is_own || is_foreign
        });
    }
    metadata
        .annotations
        .take_if(|annotations| annotations.is_empty());
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
pub(crate) fn has_all_finalizers(object: &impl ResourceExt) -> bool {
    object
        .finalizers()
        .iter()
        .all(|name| name != REMOVED_FINALIZERS)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use futures::FutureExt as _;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, OwnerReference};
    use kube::Api;
    use kube::core::{ApiResource, ObjectMeta};
    use kube::runtime::watcher;
    use tokio::sync::mpsc;

    use super::*;
    use crate::availability::Availability;
    use crate::metrics::{Metrics, Purpose};
    use crate::testing::{ANNOTATION, FINALIZER, FOREIGN_ANNOTATION, NAMES, PROGRAM, Widget};
    use crate::watch::tests::{WatchRequest, api, object as json_object};
    use crate::watch::{ResourceName, ResourceWatch, WatchCommand};

    fn json(name: &str) -> serde_json::Value {
        json_object(name, "5")
    }

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

    struct Scene {
        cache: Arc<Cache<Widget>>,
        /// Each change, as `+NAME` with whether all objects are listed, or `-NAME`.
        changes: mpsc::UnboundedReceiver<String>,
        state: watch::Receiver<KindCacheState>,
        /// State of the kind at each change.
        kinds: Arc<Mutex<Vec<KindReadiness>>>,
        commands: watch::Sender<WatchCommand>,
    }

    /// Runs the cache of these watched namespaces.
    fn run(apis: Vec<(Option<String>, Api<Widget>)>) -> Scene {
        let (sender, changes) = mpsc::unbounded_channel();
        let (state, state_receiver) = watch::channel(KindCacheState::syncing());
        let kinds = Arc::<Mutex<Vec<_>>>::default();
        let (seen, shown) = (Arc::clone(&kinds), state_receiver.clone());
        let on = move |change: CacheChange<Widget>, is_listed: bool| {
            seen.lock().unwrap().push(shown.borrow().kind.clone());
            let text = match change {
                CacheChange::Present(object) => format!("+{} {is_listed}", object.name_any()),
                CacheChange::Deleted(object) => format!("-{}", object.name_any()),
            };
            sender.send(text).unwrap();
        };
        let cache = Arc::new(Cache::new(
            "widget",
            Objects::default(),
            SyncState::default(),
            on,
            Probes::new(),
            state,
        ));
        let commands = watch::Sender::<WatchCommand>::default();
        let resource = ResourceWatch {
            resource: ResourceName::from(&ApiResource::erase::<Widget>(&())),
            apis,
            config: watcher::Config::default(),
            index: Arc::clone(&cache) as Arc<dyn Index<Widget>>,
            sync: cache.sync.clone(),
            metrics: Metrics::new(&PROGRAM),
            availability: Availability::default(),
            purpose: Purpose::Own,
            watchdog: Probes::new().watchdog("cache", Duration::from_mins(1)),
        };
        tokio::spawn(resource.run(commands.subscribe()));
        Scene {
            cache,
            changes,
            state: state_receiver,
            kinds,
            commands,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn denied_namespace_does_not_block_the_others() {
        let (served, _) = api(|_, _| (200, vec![json("x")]));
        let (denied, _) = api(|_, before| match before {
            0..=2 => (403, vec![]),
            _ => (200, vec![json("y")]),
        });
        let mut scene = run(vec![(Some("a".into()), served), (Some("b".into()), denied)]);
        let partly = KindReadiness::PartiallySynced([(Some("b".into()), "no".into())].into());
        let changed = scene
            .state
            .wait_for(|state| state.kind != KindReadiness::Syncing);
        assert_eq!(changed.await.unwrap().kind, partly);
        for expected in ["+x false", "+x true"] {
            assert_eq!(scene.changes.recv().await.unwrap(), expected);
        }
        let synced = scene
            .state
            .wait_for(|state| state.kind == KindReadiness::Synced);
        synced.await.unwrap();
        for expected in ["+y true", "+y true"] {
            assert_eq!(scene.changes.recv().await.unwrap(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn cache_is_empty_while_the_crd_is_incompatible() {
        let (apis, _) = api(|_, _| (200, vec![json("x")]));
        let mut scene = run(vec![(None, apis)]);
        let stop = |reason: Option<&str>| {
            let stop = reason.map(str::to_owned);
            scene.commands.send_modify(|command| command.stop = stop);
        };
        for _ in 0..2 {
            let synced = scene
                .state
                .wait_for(|state| state.kind == KindReadiness::Synced);
            synced.await.unwrap();
            for expected in ["+x false", "+x true"] {
                assert_eq!(scene.changes.recv().await.unwrap(), expected);
            }
            stop(Some("older"));
            assert_eq!(scene.changes.recv().await.unwrap(), "-x");
            let absent = KindReadiness::Absent("older".into());
            assert_eq!(scene.state.borrow().kind, absent);
            assert!(scene.cache.objects.is_empty());
            stop(None);
        }
    }

    /// The watch of a standby may be stale.
    #[tokio::test(start_paused = true)]
    async fn new_leader_relists_its_objects() {
        let listed = |before: usize| json(if before == 0 { "x" } else { "y" });
        let (apis, log) = api(move |request, before| match request {
            WatchRequest::List => (200, vec![listed(before)]),
            _ => (200, vec![]),
        });
        let mut scene = run(vec![(None, apis)]);
        let commands = scene.commands.clone();
        let names = async |states: &mut watch::Receiver<KindCacheState>, relist| {
            let is_listed = |state: &KindCacheState| state.relist == Some(relist);
            states.wait_for(is_listed).await.unwrap();
            let objects = scene.cache.objects.all();
            let names: Vec<_> = objects.iter().map(|object| object.name_any()).collect();
            (log.count(WatchRequest::List), names)
        };
        assert_eq!(names(&mut scene.state, 0).await, (1, vec!["x".into()]));
        scene.kinds.lock().unwrap().clear();
        commands.send_modify(|command| command.relist += 1);
        assert_eq!(names(&mut scene.state, 1).await, (2, vec!["y".into()]));
        let kinds = scene.kinds.lock().unwrap();
        assert!(
            !kinds.is_empty() && kinds.iter().all(|kind| *kind == KindReadiness::Synced),
            "the kind is served throughout: {kinds:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn recreated_object_is_reported_deleted_first() {
        let recreated = |before: usize| {
            let mut object = json("x");
            object["metadata"]["uid"] = before.to_string().into();
            object
        };
        let (apis, _) = api(move |request, before| match request {
            WatchRequest::List => (200, vec![recreated(before)]),
            _ => (200, vec![]),
        });
        let mut scene = run(vec![(None, apis)]);
        let listed = scene.state.wait_for(|state| state.relist == Some(0));
        listed.await.unwrap();
        scene.commands.send_modify(|command| command.relist += 1);
        for expected in ["+x false", "+x true", "-x", "+x false", "+x true"] {
            assert_eq!(scene.changes.recv().await.unwrap(), expected);
        }
    }

    #[test]
    fn recreated_object_is_cached_once_the_former_one_is_forgotten() {
        let objects = Objects::<Widget>::default();
        let uids = Arc::<Mutex<Vec<Option<String>>>>::default();
        let (cached, seen) = (objects.clone(), Arc::clone(&uids));
        let on = move |_: CacheChange<Widget>, _: bool| {
            let cached = cached.get(&ObjectKey::new("a", "x"));
            let uid = cached.and_then(|object| object.uid());
            seen.lock().unwrap().push(uid);
        };
        let state = watch::Sender::new(KindCacheState::syncing());
        let (sync, probes) = (SyncState::default(), Probes::new());
        let cache = Cache::new("widget", objects, sync, on, probes, state);
        for uid in ["1", "2"] {
            let mut object = object("a", "x");
            object.metadata.uid = Some(uid.into());
            cache.apply(object);
        }
        let expected = [Some("1".to_owned()), None, Some("2".to_owned())];
        assert_eq!(*uids.lock().unwrap(), expected);
    }

    #[test]
    fn unused_metadata_is_dropped() {
        let large = || "x".repeat(1000);
        let annotations = [
            ("kubectl.kubernetes.io/last-applied-configuration", large()),
            ("example.org/notes", large()),
            ("example.com/notes", large()),
            (NAMES.requested_at, "now".into()),
            (ANNOTATION, "green".into()),
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
                (ANNOTATION, "green"),
                (NAMES.requested_at, "now"),
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

    #[test]
    fn long_annotations_are_digests() {
        let cached = |value: String| {
            let mut object = object("a", "x");
            object.annotations_mut().insert(ANNOTATION.into(), value);
            strip(&mut object);
            object.annotations()[ANNOTATION].clone()
        };
        let longest = "x".repeat(MAX_ANNOTATION);
        assert_eq!(cached(longest.clone()), longest);
        let [one, other] = ["y", "z"].map(|end| cached(longest.clone() + end));
        assert!(one.len() < 100 && one != other, "{one} {other}");
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

    #[test]
    fn status_returns_why_its_kind_is_not_served() {
        let (state, status) = status(false);
        let becomes = |kind: KindReadiness| state.send_modify(|state| state.kind = kind);
        assert_eq!(status.unavailable("a"), None, "that is not known yet");
        becomes(KindReadiness::Absent("switched off".into()));
        assert_eq!(status.unavailable("a").as_deref(), Some("switched off"));
        becomes(KindReadiness::PartiallySynced(
            [(Some("b".into()), "no".into())].into(),
        ));
        assert_eq!(
            (status.unavailable("a"), status.unavailable("b")),
            (None, Some("no".into()))
        );
        becomes(KindReadiness::PartiallySynced([(None, "no".into())].into()));
        assert_eq!(status.unavailable("a").as_deref(), Some("no"));
        becomes(KindReadiness::Synced);
        assert_eq!(status.unavailable("a"), None);
    }

    #[tokio::test]
    async fn leader_waits_for_a_list_of_its_own_or_for_a_kind_that_is_not_served() {
        let (state, status) = status(true);
        let becomes = |kind, relist| _ = state.send_replace(KindCacheState { kind, relist });
        let is_synced = || status.clone().synced().now_or_never().is_some();
        becomes(KindReadiness::Synced, Some(0));
        assert!(!is_synced(), "the list is that of the standby");
        becomes(KindReadiness::Synced, Some(1));
        assert!(is_synced());
        becomes(KindReadiness::Synced, None);
        assert!(!is_synced());
        becomes(KindReadiness::Absent("switched off".into()), None);
        assert!(is_synced());
    }

    fn status(leader_elect: bool) -> (watch::Sender<KindCacheState>, CacheStatus) {
        let state = watch::Sender::new(KindCacheState::syncing());
        let status = CacheStatus::new(&state, leader_elect);
        (state, status)
    }
}
