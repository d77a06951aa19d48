//! Index of the watched `ConfigMap`s and namespaces, and of the syncs that they concern. The index keeps the labels of
//! every namespace, and of `ConfigMap`s only the copies, without their content.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use qm_api::ConfigMapSync;
use qm_api::common::{NAMES, OWNER_UID};
use qm_runtime::child_cache::{ChildCache, KnownChild};
use qm_runtime::manager::NamespaceMeta;
use qm_runtime::objects::keys_of;
use qm_runtime::ownership::owner_of;
use qm_runtime::trigger::Trigger;
use qm_runtime::watch::{self, SyncState, WatchPhase};
use qm_runtime::{ObjectKey, WatchScope, version};

use super::plan::{CopyPlan, Destinations};

/// Index of copies, syncs and namespaces.
pub(crate) struct SyncIndex {
    /// Copies: all `ConfigMap`s with the ownership label.
    pub copies: Arc<ChildCache<()>>,
    /// State of the lists of `ConfigMap`s.
    pub(crate) map_lists: SyncState,
    /// State of the list of namespaces; `None` if the operator does not watch them.
    pub(crate) namespace_lists: Option<SyncState>,
    state: Mutex<SyncIndexState>,
    trigger: Trigger<ConfigMapSync>,
}

#[derive(Default)]
struct SyncIndexState {
    syncs: BTreeMap<ObjectKey, SyncReferences>,
    /// The keys of `syncs` by reference. Ordered, so that a message always names the links of a loop in the same order.
    references: BTreeSet<(Reference, ObjectKey)>,
    namespaces: BTreeMap<String, NamespaceInfo>,
    /// Syncs that would close a loop.
    looping: BTreeSet<ObjectKey>,
    /// Number of syncs that searches visited.
    #[cfg(test)]
    visits: std::cell::Cell<usize>,
}

/// Reference of a plan to `ConfigMap`s.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reference {
    /// The source.
    Source(ObjectKey),
    /// The copy in a named namespace.
    Copy(ObjectKey),
    /// The copies of this name in selected namespaces.
    SelectedCopies(String),
}

struct SyncReferences {
    plan: CopyPlan,
    /// Creation time and UID: the older sync comes first.
    created: (Option<Time>, String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct NamespaceInfo {
    labels: BTreeMap<String, String>,
    is_terminating: bool,
}

/// State of a destination's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamespacePresence {
    /// The namespace exists, or may exist if that is unknown.
    Exists,
    /// The namespace does not exist.
    Missing,
    /// The namespace is being deleted.
    Terminating,
}

impl SyncIndex {
    /// Creates an empty index, which fills the cache `copies`. `trigger` wakes the syncs that a change concerns.
    pub fn new(
        scope: &WatchScope,
        namespace_lists: SyncState,
        copies: Arc<ChildCache<()>>,
        trigger: Trigger<ConfigMapSync>,
    ) -> Self {
        Self {
            copies,
            map_lists: SyncState::default(),
            namespace_lists: (*scope == WatchScope::Cluster).then_some(namespace_lists),
            state: Mutex::default(),
            trigger,
        }
    }

    fn state(&self) -> MutexGuard<'_, SyncIndexState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the operator has listed all `ConfigMap`s and namespaces that it may list.
    pub async fn ready(&self) {
        self.map_lists.synced().await;
        if let Some(lists) = &self.namespace_lists {
            lists.synced().await;
        }
    }

    /// Returns why the namespaces are unknown.
    pub(crate) fn namespaces_unknown(&self) -> Option<String> {
        match &self.namespace_lists {
            Some(lists) => lists.denied(),
            None => Some("the operator does not watch namespaces".into()),
        }
    }

    /// Follows a sync and the objects that its plan refers to; `None` for a spec without a plan.
    pub fn follow(&self, key: &ObjectKey, sync: &ConfigMapSync, plan: Option<CopyPlan>) {
        let mut state = self.state();
        if state.syncs.get(key).map(|known| &known.plan) == plan.as_ref() {
            return;
        }
        state.forget(key);
        if let Some(plan) = plan {
            let references = Reference::all(&plan).into_iter();
            state
                .references
                .extend(references.map(|reference| (reference, key.clone())));
            let created = (
                sync.metadata.creation_timestamp.clone(),
                sync.uid().unwrap_or_default(),
            );
            state
                .syncs
                .insert(key.clone(), SyncReferences { plan, created });
        }
        let looping = std::mem::take(&mut state.looping);
        drop(state);
        self.trigger.wake_all(&looping);
    }

    /// Forgets a deleted sync.
    pub fn forget(&self, key: &ObjectKey) {
        let mut state = self.state();
        if !state.forget(key) {
            return;
        }
        state.looping.remove(key);
        let looping = std::mem::take(&mut state.looping);
        drop(state);
        self.trigger.wake_all(&looping);
    }

    /// Returns the namespaces that need a copy according to `plan`.
    pub fn destinations(&self, plan: &CopyPlan) -> Vec<(String, NamespacePresence)> {
        let state = self.state();
        match &plan.to {
            Destinations::Named(names) => names
                .iter()
                .map(|name| (name.clone(), self.presence(&state, name)))
                .collect(),
            Destinations::Selected { .. } => {
                let reached = state
                    .namespaces
                    .iter()
                    .filter(|(name, info)| plan.reaches(name, Some(&info.labels)));
                // A namespace that is being deleted takes its copy with it.
                reached
                    .filter(|(_, info)| !info.is_terminating)
                    .map(|(name, _)| (name.clone(), NamespacePresence::Exists))
                    .collect()
            }
        }
    }

    /// Returns whether the namespace of the source is known not to exist.
    pub(crate) fn lacks_source_namespace(&self, plan: &CopyPlan) -> bool {
        self.presence(&self.state(), &plan.source.namespace) == NamespacePresence::Missing
    }

    fn presence(&self, state: &SyncIndexState, namespace: &str) -> NamespacePresence {
        let lists = self.namespace_lists.as_ref();
        let known = lists.is_some_and(SyncState::is_listed);
        match state.namespaces.get(namespace) {
            Some(info) if known && info.is_terminating => NamespacePresence::Terminating,
            None if known => NamespacePresence::Missing,
            _ => NamespacePresence::Exists,
        }
    }

    /// Returns the older syncs through which the copies of this one would overwrite its source, in the order of the
    /// copies. The sync is woken when the result may change.
    pub(crate) fn older_syncs_in_loop(&self, key: &ObjectKey) -> Option<Vec<ObjectKey>> {
        let mut state = self.state();
        let found = state.older_syncs_in_loop(key);
        if found.is_some() {
            state.looping.insert(key.clone());
        } else {
            state.looping.remove(key);
        }
        found
    }

    /// Wakes the syncs that a `ConfigMap` concerns, except `writer`, which made the change.
    fn wake_concerned(&self, map: &ObjectKey, writer: Option<&ObjectKey>) {
        let state = self.state();
        let concerned: Vec<_> = state
            .readers(map)
            .chain(state.writers(map))
            .map(|(sync, _)| sync)
            .filter(|sync| Some(*sync) != writer)
            .cloned()
            .collect();
        drop(state);
        self.trigger.wake_all(&concerned);
    }

    fn wake_all(&self) {
        let syncs: Vec<_> = self.state().syncs.keys().cloned().collect();
        self.trigger.wake_all(&syncs);
    }

    /// Records the state of a namespace, `None` after its deletion.
    fn set_namespace(&self, name: &str, info: Option<NamespaceInfo>) {
        let mut state = self.state();
        if state.namespaces.get(name) == info.as_ref() {
            return;
        }
        let before = state.namespaces.remove(name);
        let labels = [&before, &info].map(|info| info.as_ref().map(|info| &info.labels));
        // The deletion of a copy that is left in a namespace without the labels wakes the sync by itself.
        let is_concerned = |plan: &CopyPlan| {
            *plan.source.namespace == *name
                || labels.iter().any(|labels| plan.reaches(name, *labels))
        };
        let concerned = state.referring_to_namespace(name);
        let concerned = concerned.filter(|(_, it)| is_concerned(&it.plan));
        let mut concerned: BTreeSet<_> = concerned.map(|(key, _)| key.clone()).collect();
        if let Some(info) = info {
            state.namespaces.insert(name.to_owned(), info);
        }
        // Loops change only with the namespaces that a plan reaches.
        if !concerned.is_empty() {
            concerned.append(&mut state.looping);
        }
        drop(state);
        self.trigger.wake_all(&concerned);
    }
}

impl Reference {
    /// Returns all references of a plan.
    fn all(plan: &CopyPlan) -> Vec<Self> {
        let mut all: Vec<_> = match &plan.to {
            Destinations::Named(namespaces) => namespaces
                .iter()
                .map(|namespace| Self::Copy(ObjectKey::new(namespace, &plan.name)))
                .collect(),
            Destinations::Selected { .. } => vec![Self::SelectedCopies(plan.name.clone())],
        };
        all.push(Self::Source(plan.source.clone()));
        all
    }

    /// Returns the start of each range of references that the state of a namespace may concern.
    fn starts_of_namespace(namespace: &str) -> [Self; 3] {
        // No name is empty.
        let start = ObjectKey::new(namespace, "");
        [
            Self::Source(start.clone()),
            Self::Copy(start),
            Self::SelectedCopies(String::new()),
        ]
    }

    /// Returns whether this reference is in the range with this start.
    fn is_in_range_of(&self, start: &Self) -> bool {
        match (self, start) {
            (Self::Source(map), Self::Source(start)) | (Self::Copy(map), Self::Copy(start)) => {
                map.namespace == start.namespace
            }
            (Self::SelectedCopies(_), Self::SelectedCopies(_)) => true,
            _ => false,
        }
    }
}

impl SyncIndexState {
    fn forget(&mut self, key: &ObjectKey) -> bool {
        let Some(SyncReferences { plan, .. }) = self.syncs.remove(key) else {
            return false;
        };
        for reference in Reference::all(&plan) {
            self.references.remove(&(reference, key.clone()));
        }
        true
    }

    /// Returns the syncs whose source is `map`.
    fn readers(&self, map: &ObjectKey) -> impl Iterator<Item = (&ObjectKey, &SyncReferences)> {
        self.referring(Reference::Source(map.clone()))
    }

    /// Returns the syncs that copy to `map`.
    fn writers(&self, map: &ObjectKey) -> impl Iterator<Item = (&ObjectKey, &SyncReferences)> {
        let info = self.namespaces.get(&*map.namespace);
        let labels = info.map(|info| &info.labels);
        let selected = self.referring(Reference::SelectedCopies(map.name.to_string()));
        self.referring(Reference::Copy(map.clone()))
            .chain(selected.filter(move |(_, it)| it.plan.reaches(&map.namespace, labels)))
    }

    fn referring(
        &self,
        reference: Reference,
    ) -> impl Iterator<Item = (&ObjectKey, &SyncReferences)> {
        keys_of(&self.references, reference).filter_map(move |sync| self.visit(sync))
    }

    /// Returns the syncs with a source or a named copy in the namespace, and all that select namespaces.
    fn referring_to_namespace(
        &self,
        namespace: &str,
    ) -> impl Iterator<Item = (&ObjectKey, &SyncReferences)> {
        let starts = Reference::starts_of_namespace(namespace).into_iter();
        let found = starts.flat_map(move |start| {
            let references = self
                .references
                .range((start.clone(), ObjectKey::new("", ""))..);
            references.take_while(move |(of, _)| of.is_in_range_of(&start))
        });
        found.filter_map(move |(_, sync)| self.visit(sync))
    }

    fn visit(&self, sync: &ObjectKey) -> Option<(&ObjectKey, &SyncReferences)> {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
        self.syncs.get_key_value(sync)
    }

    /// Returns every older sync on a path from the copies of this one back to its source, in the order of the copies.
    fn older_syncs_in_loop(&self, key: &ObjectKey) -> Option<Vec<ObjectKey>> {
        let this = self.syncs.get(key)?;
        // Back from the source: the ConfigMaps whose data reaches it, and those that each older sync writes.
        let mut reaching = BTreeSet::from([&this.plan.source]);
        let mut written: HashMap<_, Vec<_>> = HashMap::new();
        let mut copied = VecDeque::new();
        let mut next = vec![&this.plan.source];
        while let Some(map) = next.pop() {
            for (sync, it) in self.writers(map) {
                if sync == key {
                    copied.push_back(map);
                } else if it.created < this.created {
                    written.entry(sync).or_default().push(map);
                    if reaching.insert(&it.plan.source) {
                        next.push(&it.plan.source);
                    }
                }
            }
        }
        // Forward from the copies, through each ConfigMap once.
        let mut links = Vec::new();
        while let Some(map) = copied.pop_front() {
            if !reaching.remove(map) {
                continue;
            }
            for (link, _) in self.readers(map) {
                if let Some(maps) = written.remove(link) {
                    links.push(link.clone());
                    copied.extend(maps);
                }
            }
        }
        (!links.is_empty()).then_some(links)
    }
}

/// Returns the state of a copy that the cache keeps.
fn known(copy: &PartialObjectMeta<ConfigMap>) -> KnownChild<()> {
    // Metadata does not show which fields changed.
    let fingerprint = version(copy.metadata.resource_version.as_deref());
    KnownChild::of(&copy.metadata, &NAMES, fingerprint, ())
}

impl watch::Index<PartialObjectMeta<ConfigMap>> for SyncIndex {
    /// Keeps only `ConfigMap`s with the ownership label.
    fn apply(&self, map: PartialObjectMeta<ConfigMap>) -> bool {
        let key = ObjectKey::of(&map);
        let is_copy = map.labels().contains_key(OWNER_UID);
        let (owner, woken) = if is_copy {
            (
                owner_of(&map.metadata, &NAMES).map(|(owner, _)| owner),
                self.copies.on_applied(key.clone(), known(&map)),
            )
        } else {
            let version = version(map.metadata.resource_version.as_deref());
            let uid = map.uid().unwrap_or_default();
            let owner = self.copies.on_disowned(&key, &uid, version);
            (None, owner.into_iter().collect())
        };
        self.trigger.wake_all(&woken);
        // The owner that wrote the copy knows of the change; an owner that got the copy from another owner does not.
        let writer = owner.filter(|owner| woken.iter().all(|woken| woken == owner));
        self.wake_concerned(&key, writer.as_ref());
        is_copy
    }

    fn delete(&self, key: &ObjectKey, last: Option<PartialObjectMeta<ConfigMap>>) {
        let owner = match last {
            Some(map) => self.copies.on_deleted(key, &map.uid().unwrap_or_default()),
            None => self.copies.on_missing(key),
        };
        if let Some(owner) = &owner {
            self.trigger.wake(owner);
        }
        self.wake_concerned(key, None);
    }

    fn keys(&self, namespace: Option<&str>) -> Vec<ObjectKey> {
        self.copies.keys(namespace)
    }

    fn phase(&self, _namespace: Option<&str>, phase: &WatchPhase) {
        if *phase == WatchPhase::Listed {
            // Other ConfigMaps are not kept, so their deletion may have been missed.
            self.wake_all();
        }
    }
}

impl watch::Observer<NamespaceMeta> for SyncIndex {
    fn apply(&self, namespace: &NamespaceMeta) -> bool {
        let name = namespace.name_any();
        let is_terminating = namespace.metadata.deletion_timestamp.is_some();
        self.set_namespace(
            &name,
            Some(NamespaceInfo {
                labels: namespace.labels().clone(),
                is_terminating,
            }),
        );
        true
    }

    fn delete(&self, key: &ObjectKey, _last: Option<&NamespaceMeta>) {
        self.set_namespace(&key.name, None);
    }

    fn keys(&self, _namespace: Option<&str>) -> Vec<ObjectKey> {
        let state = self.state();
        let names = state.namespaces.keys();
        names.map(|name| ObjectKey::new("", name)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::time::Duration;

    use serde_json::{Value, json};
    use tokio::sync::mpsc::UnboundedReceiver;

    use super::*;

    /// An index, and the keys that it wakes.
    struct Fixture {
        index: SyncIndex,
        woken: UnboundedReceiver<ObjectKey>,
    }

    impl Fixture {
        fn new() -> Self {
            let trigger = Trigger::default();
            let woken = trigger.open();
            let copies = Arc::new(ChildCache::new(Duration::from_secs(1)));
            let scope = WatchScope::Cluster;
            Self {
                index: SyncIndex::new(&scope, SyncState::default(), copies, trigger),
                woken,
            }
        }

        /// Follows a sync that was created at this second.
        fn follow(&self, key: &ObjectKey, created: i64, spec: Value) {
            let mut sync = ConfigMapSync {
                spec: serde_json::from_value(spec).unwrap(),
                ..ConfigMapSync::default()
            };
            let created = jiff::Timestamp::from_second(created).unwrap();
            sync.metadata.creation_timestamp = Some(Time(created));
            let plan = CopyPlan::of(&sync.spec, &WatchScope::Cluster, false, None).unwrap();
            self.index.follow(key, &sync, Some(plan));
        }

        fn set_labels(&self, namespace: &str, labels: &Value) {
            let info = NamespaceInfo {
                labels: serde_json::from_value(labels.clone()).unwrap(),
                is_terminating: false,
            };
            self.index.set_namespace(namespace, Some(info));
        }

        fn woken(&mut self) -> Vec<String> {
            let woken = std::iter::from_fn(|| self.woken.try_recv().ok());
            woken.map(|key| key.to_string()).collect()
        }

        fn links(&self, name: &str) -> Vec<String> {
            let links = self.index.older_syncs_in_loop(&shop(name));
            let links = links.unwrap_or_default();
            links.iter().map(|link| link.name.to_string()).collect()
        }

        /// Returns the number of visits since the last call.
        fn visits(&self) -> usize {
            self.index.state().visits.take()
        }
    }

    fn shop(name: &str) -> ObjectKey {
        ObjectKey::new("shop", name)
    }

    #[test]
    fn searches_visit_no_sync_of_another_namespace() {
        const TEAMS: i64 = 5_000;
        let mut fixture = Fixture::new();
        for number in 0..TEAMS {
            let spec = json!({
                "sourceNamespace": format!("team-{number}"),
                "configMapName": "app-config",
                "destinationNamespace": format!("copies-{number}"),
            });
            let sync = ObjectKey::new(&format!("team-{number}"), "config");
            fixture.follow(&sync, number, spec);
        }
        for namespace in ["team-7", "copies-7"] {
            let map = ObjectKey::new(namespace, "app-config");
            let sync = ObjectKey::new("team-7", "config");
            for (writer, woken) in [(None, vec!["team-7/config"]), (Some(&sync), vec![])] {
                fixture.index.wake_concerned(&map, writer);
                assert_eq!(fixture.woken(), woken);
                assert_eq!(fixture.visits(), 1);
            }
        }
        for (namespace, woken) in [
            ("team-7", vec!["team-7/config"]),
            ("copies-7", vec!["team-7/config"]),
            ("elsewhere", vec![]),
        ] {
            fixture.set_labels(namespace, &json!({}));
            assert_eq!(fixture.woken(), woken);
            assert_eq!(fixture.visits(), woken.len());
        }
        let last = ObjectKey::new(&format!("team-{}", TEAMS - 1), "config");
        assert_eq!(fixture.index.older_syncs_in_loop(&last), None);
        assert_eq!(fixture.visits(), 0);
        for number in 0..TEAMS {
            let sync = ObjectKey::new(&format!("team-{number}"), "config");
            fixture.index.forget(&sync);
        }
        assert!(fixture.index.state().references.is_empty());
    }

    #[test]
    fn copy_stays_known_until_a_newer_version_lacks_the_label() {
        let mut fixture = Fixture::new();
        let mut show = |version: &str, is_labelled: bool| {
            let mut map = PartialObjectMeta::<ConfigMap>::default();
            map.metadata.namespace = Some("shop".into());
            map.metadata.name = Some("copy".into());
            map.metadata.uid = Some("1".into());
            map.metadata.resource_version = Some(version.into());
            map.metadata.annotations = Some([(NAMES.owner.into(), "shop/config".into())].into());
            if is_labelled {
                map.metadata.labels = Some([(OWNER_UID.into(), "2".into())].into());
            }
            watch::Index::apply(&fixture.index, map);
            let known = fixture.index.copies.known(&shop("copy"));
            (known.map(|copy| copy.version), fixture.woken())
        };
        let owner = vec!["shop/config".to_owned()];
        assert_eq!(show("8", true), (Some(8), owner.clone()));
        // A late event shows the version before the adoption.
        assert_eq!(show("7", false), (Some(8), vec![]));
        assert_eq!(show("9", false), (None, owner));
    }

    #[test]
    fn search_for_loops_visits_each_sync_of_a_chain_twice_at_most() {
        for (length, is_closed) in [
            (500_usize, false),
            (500, true),
            (2_000, false),
            (2_000, true),
        ] {
            let fixture = Fixture::new();
            let last = length - 1;
            for number in 0..length {
                let next = number + 1;
                let to = if is_closed { next % length } else { next };
                let spec = json!({
                    "sourceNamespace": "shop",
                    "configMapName": format!("c{number}"),
                    "destinationNamespace": "shop",
                    "destinationName": format!("c{to}"),
                });
                let created = i64::try_from(number).unwrap();
                fixture.follow(&shop(&number.to_string()), created, spec);
            }
            let links = fixture.links(&last.to_string());
            let older: Vec<_> = (0..last).map(|number| number.to_string()).collect();
            assert_eq!(links, if is_closed { older } else { Vec::new() });
            let visits = fixture.visits();
            assert!(visits <= 2 * length, "{visits} visits of {length}");
        }
    }

    #[test]
    fn loop_has_the_older_syncs_of_every_path() {
        let mut fixture = Fixture::new();
        let spec = |from: &str, to: &str| json!({ "sourceNamespace": from, "configMapName": "c", "destinationNamespace": to });
        let team = json!({ "team": "x" });
        fixture.set_labels("b", &team);
        let selects_b = json!({
            "sourceNamespace": "a",
            "configMapName": "c",
            "destinationNamespaceSelector": { "matchLabels": team },
        });
        fixture.follow(&shop("ab"), 1, selects_b.clone());
        fixture.follow(&shop("also"), 2, selects_b);
        fixture.follow(&shop("bc"), 3, spec("b", "c"));
        fixture.follow(&shop("not-back"), 4, spec("a", "d"));
        fixture.follow(&shop("not-from"), 5, spec("e", "c"));
        fixture.follow(&shop("ca"), 6, spec("c", "a"));
        fixture.follow(&shop("younger"), 7, spec("a", "c"));
        assert_eq!(fixture.links("ca"), ["ab", "also", "bc"]);
        assert_eq!(fixture.links("younger"), ["ca", "ab", "also", "bc"]);
        for older in ["ab", "also", "bc", "not-back", "not-from"] {
            assert!(fixture.links(older).is_empty(), "{older}");
        }
        // A namespace that no sync refers to cannot open the loop.
        fixture.woken();
        fixture.set_labels("elsewhere", &json!({}));
        assert!(fixture.woken().is_empty());
        // Without the label, the chain is not closed.
        fixture.set_labels("b", &json!({}));
        assert!(fixture.woken().contains(&"shop/ca".into()));
        assert!(fixture.links("ca").is_empty());
        assert_eq!(fixture.links("younger"), ["ca"]);
        // A deletion wakes the syncs that it may concern.
        fixture.index.forget(&shop("ca"));
        assert_eq!(fixture.woken(), ["shop/younger"]);
        assert!(fixture.links("younger").is_empty());
    }

    #[test]
    fn namespace_wakes_only_the_selectors_that_match_before_or_after() {
        let mut fixture = Fixture::new();
        let spec = |team: &str| {
            json!({
                "sourceNamespace": "source",
                "configMapName": "c",
                "destinationNamespaceSelector": { "matchLabels": { "team": team } },
            })
        };
        fixture.follow(&shop("a"), 1, spec("a"));
        fixture.follow(&shop("b"), 2, spec("b"));
        let label = |team: &str| json!({ "team": team });
        let of = |labels: Value, is_terminating| {
            let labels = serde_json::from_value(labels).unwrap();
            Some(NamespaceInfo {
                labels,
                is_terminating,
            })
        };
        for (change, info, woken) in [
            ("created", of(label("b"), false), vec!["shop/b"]),
            ("unchanged", of(label("b"), false), vec![]),
            (
                "relabelled",
                of(label("a"), false),
                vec!["shop/a", "shop/b"],
            ),
            ("label removed", of(json!({}), false), vec!["shop/a"]),
            ("other label", of(label("c"), false), vec![]),
            ("label added", of(label("a"), false), vec!["shop/a"]),
            ("terminating", of(label("a"), true), vec!["shop/a"]),
            ("deleted", None, vec!["shop/a"]),
            ("recreated", of(label("a"), false), vec!["shop/a"]),
            ("replaced", of(label("b"), false), vec!["shop/a", "shop/b"]),
            ("deleted again", None, vec!["shop/b"]),
        ] {
            fixture.index.set_namespace("n", info);
            assert_eq!(fixture.woken(), woken, "{change}");
        }
        // The state of the source's namespace decides the message about a missing source.
        fixture.set_labels("source", &json!({}));
        assert_eq!(fixture.woken(), ["shop/a", "shop/b"]);
    }
}
