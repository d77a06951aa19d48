//! Index of the watched `ConfigMap`s and namespaces, and of the syncs that they concern. The index keeps only objects
//! that some `ConfigMapSync` refers to, without their content.

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
    pub(crate) maps_sync: SyncState,
    /// State of the list of namespaces; `None` if the operator does not watch them.
    pub(crate) namespaces_sync: Option<SyncState>,
    state: Mutex<SyncIndexState>,
    trigger: Trigger<ConfigMapSync>,
}

#[derive(Default)]
struct SyncIndexState {
    /// Ordered, so that a message always names the links of a loop in the same order.
    syncs: BTreeMap<ObjectKey, SyncReferences>,
    /// Syncs by the name of their source and of their copies.
    names: HashMap<String, BTreeSet<ObjectKey>>,
    namespaces: BTreeMap<String, NamespaceInfo>,
    /// Syncs that would close a loop.
    looping: BTreeSet<ObjectKey>,
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
        namespaces_sync: SyncState,
        copies: Arc<ChildCache<()>>,
        trigger: Trigger<ConfigMapSync>,
    ) -> Self {
        Self {
            copies,
            maps_sync: SyncState::default(),
            namespaces_sync: (*scope == WatchScope::Cluster).then_some(namespaces_sync),
            state: Mutex::default(),
            trigger,
        }
    }

    fn state(&self) -> MutexGuard<'_, SyncIndexState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the operator has listed all `ConfigMap`s and namespaces that it may list.
    pub async fn ready(&self) {
        self.maps_sync.synced().await;
        if let Some(namespaces) = &self.namespaces_sync {
            namespaces.synced().await;
        }
    }

    /// Returns why the namespaces are unknown.
    pub(crate) fn namespaces_unknown(&self) -> Option<String> {
        match &self.namespaces_sync {
            Some(namespaces) => namespaces.denied(),
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
            for name in [&*plan.source.name, &plan.name] {
                state
                    .names
                    .entry(name.to_owned())
                    .or_default()
                    .insert(key.clone());
            }
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
        let sync = self.namespaces_sync.as_ref();
        let known = sync.is_some_and(SyncState::is_listed);
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
            .names
            .get(&*map.name)
            .into_iter()
            .flatten()
            .filter(|sync| Some(*sync) != writer && state.concerns(sync, map))
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
        match info {
            Some(info) => state.namespaces.insert(name.to_owned(), info),
            None => state.namespaces.remove(name),
        };
        let is_concerned = |plan: &CopyPlan| {
            plan.selects() || plan.reaches(name, None) || *plan.source.namespace == *name
        };
        let concerned = state.syncs.iter().filter(|(_, it)| is_concerned(&it.plan));
        let mut concerned: BTreeSet<_> = concerned.map(|(key, _)| key.clone()).collect();
        concerned.append(&mut state.looping);
        drop(state);
        self.trigger.wake_all(&concerned);
    }
}

impl SyncIndexState {
    fn forget(&mut self, key: &ObjectKey) -> bool {
        let Some(SyncReferences { plan, .. }) = self.syncs.remove(key) else {
            return false;
        };
        for name in [&*plan.source.name, &plan.name] {
            if let Some(concerned) = self.names.get_mut(name) {
                concerned.remove(key);
                if concerned.is_empty() {
                    self.names.remove(name);
                }
            }
        }
        true
    }

    fn concerns(&self, sync: &ObjectKey, map: &ObjectKey) -> bool {
        self.syncs
            .get(sync)
            .is_some_and(|it| it.plan.source == *map || self.copies_to(&it.plan, map))
    }

    fn copies_to(&self, plan: &CopyPlan, map: &ObjectKey) -> bool {
        let labels = || {
            let namespace = self.namespaces.get(&*map.namespace);
            namespace.map(|info| &info.labels)
        };
        *plan.name == *map.name && plan.reaches(&map.namespace, labels())
    }

    /// Returns every older sync on a path from the copies of this one back to its source, in the order of the copies.
    fn older_syncs_in_loop(&self, key: &ObjectKey) -> Option<Vec<ObjectKey>> {
        let this = self.syncs.get(key)?;
        let mut older: Vec<_> = self
            .syncs
            .iter()
            .filter(|(_, it)| it.created < this.created)
            .collect();
        let mut reaching = Vec::new();
        let mut sources = vec![&this.plan.source];
        let mut visited = BTreeSet::new();
        while let Some(source) = sources.pop() {
            if !visited.insert(source) {
                continue;
            }
            let (into, rest): (Vec<_>, Vec<_>) = older
                .into_iter()
                .partition(|(_, it)| self.copies_to(&it.plan, source));
            sources.extend(into.iter().map(|(_, it)| &it.plan.source));
            reaching.extend(into);
            older = rest;
        }
        let mut links = Vec::new();
        let mut plans = VecDeque::from([&this.plan]);
        while let Some(plan) = plans.pop_front() {
            let (next, rest): (Vec<_>, Vec<_>) = reaching
                .into_iter()
                .partition(|(_, it)| self.copies_to(plan, &it.plan.source));
            plans.extend(next.iter().map(|(_, it)| &it.plan));
            links.extend(next.into_iter().map(|(link, _)| link.clone()));
            reaching = rest;
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
        let (owner, woken) = match map.labels().get(OWNER_UID) {
            Some(_) => (
                owner_of(&map.metadata, &NAMES).map(|(owner, _)| owner),
                self.copies.on_applied(key.clone(), known(&map)),
            ),
            None => (
                None,
                self.copies.on_deleted(&key, &map.uid().unwrap_or_default()),
            ),
        };
        if let Some(owner) = &woken {
            self.trigger.wake(owner);
        }
        // The owner that wrote the copy knows of the change; an owner that got the copy from another owner does not.
        let writer = owner.filter(|owner| woken.as_ref().is_none_or(|woken| woken == owner));
        self.wake_concerned(&key, writer.as_ref());
        map.labels().contains_key(OWNER_UID)
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
