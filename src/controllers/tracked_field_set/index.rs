//! Index of the resources that sets select, of the namespaces, and of all `TrackedField`s. Of a resource, the index
//! keeps only the name and the age, and only while a set selects it, or once its labels no longer match.
//!
//! Only a reconcile registers a selection, so a standby keeps no resources. A running watch does not repeat unchanged
//! resources, so the reconcile lists those that the watch may have shown before ([`SetIndex::unlisted`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::ObjectMeta;
use qm_api::{TrackedField, TrackedFieldSet};
use qm_runtime::manager::NamespaceMeta;
use qm_runtime::objects::in_namespace;
use qm_runtime::raw_object::RawObject;
use qm_runtime::trigger::Trigger;
use qm_runtime::watch::{self, NewIndex, ResourceName, SyncState, WatchPhase, WatchProblem};
use qm_runtime::{ObjectKey, WatchScope, version};

use super::child::Identity;
use super::precedence::Tracking;
use super::selection::{SelectedNamespaces, Selection};
use crate::controllers::tracked_field::targets::Sets;

/// Maximum number of changed resources that a set remembers. Beyond that, the next reconcile compares everything.
const MAX_CHANGES: usize = 1000;
/// Maximum number of resources that the watch may show during a list. Beyond that, the reconcile lists again.
const MAX_SHOWN_DURING_LIST: usize = 10_000;
/// Maximum number of resources that a set remembers although their labels no longer match.
const MAX_FORMER: usize = 10_000;

/// Index of the resources that sets select.
pub(crate) struct SetIndex {
    scope: WatchScope,
    /// State of the list of namespaces; `None` if the operator does not watch them.
    pub(crate) namespaces_sync: Option<SyncState>,
    state: Mutex<IndexState>,
    trigger: Trigger<TrackedFieldSet>,
}

#[derive(Default)]
struct IndexState {
    sets: BTreeMap<ObjectKey, Selected>,
    /// The keys of `sets` by the resource that they select.
    by_resource: HashMap<ResourceName, SetsOfResource>,
    /// Labels of each namespace.
    namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// Watches by resource and watched namespace.
    watches: HashMap<(ResourceName, Option<String>), Watch>,
    fields: BTreeMap<ObjectKey, Tracking>,
    /// The keys of `fields` by identity.
    identities: BTreeSet<(Identity, ObjectKey)>,
}

/// The sets that select one resource.
#[derive(Default)]
struct SetsOfResource {
    /// Keys by each namespace that a set names, `None` for a set that names none.
    keys: BTreeSet<(Option<String>, ObjectKey)>,
    /// Number of sets that searches visited.
    #[cfg(test)]
    visits: std::cell::Cell<usize>,
}

/// Selection of a set and the resources that match.
struct Selected {
    selection: Arc<Selection>,
    /// Digest of the selection.
    digest: String,
    targets: BTreeMap<ObjectKey, Target>,
    /// Resources whose labels no longer match: if a label returns, the resource is not new.
    former: HashMap<ObjectKey, Target>,
    unlisted: Unlisted,
    changes: Changes,
    /// Resources that the watch has shown since the reconcile began to list, selected or not; `None` without a running
    /// list, and once the list is outdated.
    shown_since_list: Option<HashSet<ObjectKey>>,
}

/// Resources that the watch may have shown before the set selected them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unlisted {
    /// True if all resources have to be listed.
    pub all: bool,
    /// Namespaces that have begun to match.
    pub namespaces: BTreeSet<String>,
    /// The namespaces of `namespaces` that existed before they began to match: their resources are not new.
    relabelled: BTreeSet<String>,
}

/// Changes since the last reconcile of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// True if anything may have changed.
    pub all: bool,
    /// Resources that were selected or deleted, or whose `TrackedField`s were created, changed or deleted.
    pub targets: BTreeSet<ObjectKey>,
}

/// A selected resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    version: u64,
    pub created: Option<Timestamp>,
    /// True if the set selects the resource because the namespace began to match.
    pub(crate) from_namespace_change: bool,
    /// Identities of the fields for which the set has had a child.
    pub(crate) had_children: Vec<Identity>,
}

#[derive(Default)]
struct Watch {
    is_listed: bool,
    problem: Option<WatchProblem>,
}

impl SetIndex {
    /// Creates an empty index. `trigger` reconciles the sets that a change affects.
    pub fn new(
        scope: WatchScope,
        namespaces_sync: SyncState,
        trigger: Trigger<TrackedFieldSet>,
    ) -> Self {
        Self {
            namespaces_sync: (scope == WatchScope::Cluster).then_some(namespaces_sync),
            scope,
            state: Mutex::default(),
            trigger,
        }
    }

    /// Returns the function that creates the index of a resource's selected objects, which passes each object on to the
    /// index that `then` creates.
    pub(crate) fn new_index(self: &Arc<Self>, then: NewIndex) -> NewIndex {
        let sets = Arc::clone(self);
        Box::new(move |resource| {
            Arc::new(SelectedIndex {
                sets: Arc::clone(&sets),
                then: then(resource.clone()),
                resource,
            })
        })
    }

    fn state(&self) -> MutexGuard<'_, IndexState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Selects resources for the set, unless it already has the selection of this digest.
    pub fn select(&self, set: &ObjectKey, selection: Selection, digest: &str) {
        let mut state = self.state();
        if state
            .sets
            .get(set)
            .is_some_and(|known| known.digest == digest)
        {
            return;
        }
        let mut watches = state.watches.keys();
        let all = watches.any(|(resource, _)| *resource == selection.resource);
        let unlisted = Unlisted {
            all,
            ..Unlisted::default()
        };
        let selected = Selected {
            selection: Arc::new(selection),
            digest: digest.to_owned(),
            targets: BTreeMap::new(),
            former: HashMap::new(),
            unlisted,
            changes: Changes {
                all: true,
                ..Changes::default()
            },
            shown_since_list: None,
        };
        state.insert_set(set, selected);
    }

    /// Forgets the selection of the set. Returns whether there was one.
    pub fn forget(&self, set: &ObjectKey) -> bool {
        self.state().remove_set(set).is_some()
    }

    /// Returns the problem of a watch that shows resources of the set.
    pub(crate) fn watch_problem(&self, set: &ObjectKey) -> Option<WatchProblem> {
        let state = self.state();
        let watches = self.watches_of(&state, set).into_iter().flatten();
        watches.flatten().find_map(|watch| watch.problem.clone())
    }

    /// Returns whether every watch that shows resources of the set has listed them.
    pub fn is_listed(&self, set: &ObjectKey) -> bool {
        self.is_listed_in(&self.state(), set)
    }

    fn is_listed_in(&self, state: &IndexState, set: &ObjectKey) -> bool {
        self.watches_of(state, set).is_some_and(|mut watches| {
            watches.all(|watch| watch.is_some_and(|it| it.is_listed && it.problem.is_none()))
        })
    }

    fn watches_of<'a>(
        &'a self,
        state: &'a IndexState,
        set: &ObjectKey,
    ) -> Option<impl Iterator<Item = Option<&'a Watch>>> {
        let selection = &state.sets.get(set)?.selection;
        let namespaces = match (&selection.namespaces, &self.scope) {
            (SelectedNamespaces::Named(names), WatchScope::Namespaces(_)) => {
                names.iter().cloned().map(Some).collect()
            }
            (SelectedNamespaces::Cluster, _) => vec![None],
            _ => self.scope.namespaces(),
        };
        let watch = |namespace| state.watches.get(&(selection.resource.clone(), namespace));
        Some(namespaces.into_iter().map(watch))
    }

    /// Returns the resources that the set's reconcile has to list, and starts to remember what the watch shows
    /// meanwhile.
    pub(crate) fn unlisted(&self, set: &ObjectKey) -> Unlisted {
        let mut state = self.state();
        let is_listed = self.is_listed_in(&state, set);
        let Some(selected) = state.sets.get_mut(set) else {
            return Unlisted::default();
        };
        if selected.unlisted != Unlisted::default() {
            selected.shown_since_list = is_listed.then(HashSet::new);
        }
        selected.unlisted.clone()
    }

    /// Returns whether the set selects an object with this metadata. Of namespace selectors, only the empty one selects
    /// a namespace whose labels are unknown.
    pub(crate) fn selects_object(&self, set: &ObjectKey, metadata: &ObjectMeta) -> bool {
        let state = self.state();
        let selected = state.sets.get(set);
        selected.is_some_and(|selected| state.is_selected(&selected.selection, metadata))
    }

    /// Returns whether the namespace of a target is known to exist, so that its labels are known.
    pub(crate) fn knows_namespace(&self, name: &str) -> bool {
        self.namespaces_sync.is_none()
            || name.is_empty()
            || self.state().namespaces.contains_key(name)
    }

    /// Ends a list; does nothing after [`SetIndex::listed`].
    pub(crate) fn end_list(&self, set: &ObjectKey) {
        if let Some(selected) = self.state().sets.get_mut(set) {
            selected.shown_since_list = None;
        }
    }

    /// Adds selected resources that a reconcile has listed, except those that the watch has shown meanwhile. Returns
    /// `false` if the reconcile must list again: the watch has shown too many resources meanwhile, or has begun a list,
    /// and only the watch's list reveals deleted resources.
    pub fn listed(
        &self,
        set: &ObjectKey,
        unlisted: &Unlisted,
        listed: Vec<(ObjectKey, Target)>,
    ) -> bool {
        let mut state = self.state();
        let Some(selected) = state.sets.get_mut(set) else {
            return false;
        };
        let Some(seen) = selected.shown_since_list.take() else {
            return false;
        };
        for (key, target) in listed {
            if !seen.contains(&key) {
                let is_relabelled = unlisted.relabelled.contains(&*key.namespace);
                selected.targets.entry(key).or_insert(Target {
                    from_namespace_change: !unlisted.all && is_relabelled,
                    ..target
                });
            }
        }
        selected.changes.all = true;
        selected.unlisted.all &= !unlisted.all;
        for namespace in &unlisted.namespaces {
            selected.unlisted.remove(namespace);
        }
        true
    }

    /// Returns the selected resources, in order.
    pub fn targets(&self, set: &ObjectKey) -> Vec<(ObjectKey, Target)> {
        let state = self.state();
        let targets = state.sets.get(set).into_iter().flat_map(|it| &it.targets);
        targets
            .map(|(key, target)| (key.clone(), target.clone()))
            .collect()
    }

    /// Returns a selected resource.
    pub fn target(&self, set: &ObjectKey, key: &ObjectKey) -> Option<Target> {
        self.state().sets.get(set)?.targets.get(key).cloned()
    }

    /// Returns the number of selected resources.
    pub(crate) fn target_count(&self, set: &ObjectKey) -> usize {
        let state = self.state();
        state.sets.get(set).map_or(0, |it| it.targets.len())
    }

    /// Returns the changes since the last call.
    pub(crate) fn take_changes(&self, set: &ObjectKey) -> Changes {
        let mut state = self.state();
        let selected = state.sets.get_mut(set);
        selected
            .map(|it| std::mem::take(&mut it.changes))
            .unwrap_or_default()
    }

    /// Records that the set has children for these fields of targets.
    pub(crate) fn record_children<'a>(
        &self,
        set: &ObjectKey,
        children: impl IntoIterator<Item = (&'a ObjectKey, Identity)>,
    ) {
        let mut state = self.state();
        let Some(selected) = state.sets.get_mut(set) else {
            return;
        };
        let Selected {
            targets, former, ..
        } = selected;
        for (target, identity) in children {
            let known = targets.get_mut(target).or_else(|| former.get_mut(target));
            if let Some(target) = known
                && !target.had_children.contains(&identity)
            {
                target.had_children.push(identity);
            }
        }
    }

    /// Returns whether a namespace is known not to exist.
    pub(crate) fn lacks_namespace(&self, name: &str) -> bool {
        let is_listed = self
            .namespaces_sync
            .as_ref()
            .is_some_and(SyncState::is_listed);
        is_listed && !self.state().namespaces.contains_key(name)
    }

    /// Returns the `TrackedField`s with this identity.
    pub(crate) fn tracking(&self, identity: Identity) -> Vec<(ObjectKey, Tracking)> {
        let state = self.state();
        let keys = state.identities.range((identity, first_key())..);
        keys.take_while(|(of, _)| *of == identity)
            .filter_map(|(_, key)| Some((key.clone(), state.fields.get(key)?.clone())))
            .collect()
    }

    /// Returns whether there is a `TrackedField` of this key.
    pub(crate) fn has_field(&self, key: &ObjectKey) -> bool {
        self.state().fields.contains_key(key)
    }

    /// Records a `TrackedField`. If its [`Tracking`] has changed, triggers reconciles of the other sets in its
    /// namespace.
    pub(crate) fn field_changed(&self, field: &TrackedField) {
        let key = ObjectKey::of(field);
        let tracking = Tracking::of(field);
        let mut state = self.state();
        if state.fields.get(&key) == Some(&tracking) {
            return;
        }
        state.forget_field(&key);
        state.target_changed(&key.namespace, &tracking.target);
        state.identities.insert((tracking.identity, key.clone()));
        let owner = tracking.owner.clone();
        state.fields.insert(key.clone(), tracking);
        // The cache of children triggers the owner.
        let others = state.sets_in(&key.namespace);
        self.trigger
            .wake_all(others.filter(|set| Some(*set) != owner.as_ref()));
    }

    /// Forgets a deleted `TrackedField`.
    pub(crate) fn field_deleted(&self, key: &ObjectKey) {
        let mut state = self.state();
        if state.forget_field(key) {
            self.trigger.wake_all(state.sets_in(&key.namespace));
        }
    }

    /// Applies the state of an object. Returns whether a set selects it.
    fn apply(&self, resource: &ResourceName, seen: ShownObject) -> bool {
        let ShownObject {
            key,
            version,
            created,
            labels,
        } = seen;
        let namespace = key.namespace.to_string();
        let (mut is_kept, mut changed) = (false, Vec::new());
        let mut state = self.state();
        let IndexState {
            sets,
            by_resource,
            namespaces,
            ..
        } = &mut *state;
        let of_resource = by_resource.get(resource).into_iter();
        for set in of_resource.flat_map(|it| it.reaching(&namespace)) {
            let Some(selected) = sets.get_mut(set) else {
                continue;
            };
            if selected.record_shown(&key) {
                changed.push(set.clone());
            }
            let selection = &selected.selection;
            let known = selected.targets.get(&key);
            // The reconcile's list was newer than this event.
            if known.is_some_and(|known| version < known.version) {
                is_kept = true;
                continue;
            }
            let is_selected = selection.reaches(&namespace, namespaces.get(&namespace))
                && selection.matches(&key.name, &labels);
            if is_selected {
                is_kept = true;
                let same = known.or_else(|| selected.former.get(&key));
                let same = same.filter(|known| known.created == created);
                let is_relabelled = selected.unlisted.relabelled.contains(&namespace);
                let target = Target {
                    version,
                    created,
                    from_namespace_change: is_relabelled
                        || same.is_some_and(|it| it.from_namespace_change),
                    had_children: same.map(|it| it.had_children.clone()).unwrap_or_default(),
                };
                if known.is_none_or(|known| known.created != created) {
                    selected.changes.add(&key);
                    changed.push(set.clone());
                }
                selected.targets.insert(key.clone(), target);
                selected.former.remove(&key);
            } else if let Some(target) = selected.targets.remove(&key) {
                selected.remember(key.clone(), target);
                selected.changes.add(&key);
                changed.push(set.clone());
            }
        }
        drop(state);
        self.trigger.wake_all(&changed);
        is_kept
    }

    fn delete(&self, resource: &ResourceName, key: &ObjectKey, last: Option<u64>) {
        let mut changed = Vec::new();
        let mut state = self.state();
        let IndexState {
            sets, by_resource, ..
        } = &mut *state;
        let of_resource = by_resource.get(resource).into_iter();
        for set in of_resource.flat_map(|it| it.reaching(&key.namespace)) {
            let Some(selected) = sets.get_mut(set) else {
                continue;
            };
            if selected.record_shown(key) {
                changed.push(set.clone());
            }
            selected.former.remove(key);
            // The event may be older than the reconcile's list.
            let known = selected.targets.get(key);
            if known.is_some_and(|known| last.is_none_or(|last| last >= known.version)) {
                selected.targets.remove(key);
                selected.changes.add(key);
                changed.push(set.clone());
            }
        }
        drop(state);
        self.trigger.wake_all(&changed);
    }

    fn phase(&self, resource: &ResourceName, namespace: Option<&str>, phase: &WatchPhase) {
        let mut state = self.state();
        let watch = (resource.clone(), namespace.map(str::to_owned));
        let watch = state.watches.entry(watch).or_default();
        match phase {
            WatchPhase::Listing { .. } => watch.is_listed = false,
            WatchPhase::Listed => watch.is_listed = true,
            WatchPhase::Healthy => watch.problem = None,
            WatchPhase::Failed(problem) => watch.problem = Some(problem.clone()),
            WatchPhase::Stopped(_) => *watch = Watch::default(),
        }
        let of_resource = state.by_resource.get(resource);
        let concerned = of_resource.map(|it| it.of_watch(namespace));
        let concerned = concerned.unwrap_or_default();
        for set in &concerned {
            let Some(selected) = state.sets.get_mut(set) else {
                continue;
            };
            selected.changes.all |= matches!(phase, WatchPhase::Listed | WatchPhase::Stopped(_));
            // After a restore of etcd, the versions in a newer list are lower than the known ones.
            if let WatchPhase::Listing { .. } = phase {
                selected.shown_since_list = None;
                let first = ObjectKey::new(namespace.unwrap_or_default(), "");
                let targets = selected.targets.range_mut(first..);
                for (_, target) in targets.take_while(|(key, _)| key.is_in(namespace)) {
                    target.version = 0;
                }
            }
        }
        drop(state);
        if !matches!(phase, WatchPhase::Listing { .. }) {
            self.trigger.wake_all(&concerned);
        }
    }

    /// Records the labels of a namespace, `None` after its deletion.
    fn set_namespace(&self, name: &str, labels: Option<&BTreeMap<String, String>>) {
        let mut state = self.state();
        let before = match labels {
            Some(labels) => state.namespaces.insert(name.to_owned(), labels.clone()),
            None => state.namespaces.remove(name),
        };
        if before.as_ref() == labels {
            return;
        }
        let mut changed = Vec::new();
        let IndexState {
            sets, by_resource, ..
        } = &mut *state;
        for set in by_resource.values().flat_map(|it| it.reaching(name)) {
            let Some(selected) = sets.get_mut(set) else {
                continue;
            };
            let reaches = |labels| selected.selection.reaches(name, labels);
            match (reaches(before.as_ref()), reaches(labels)) {
                (false, true) => {
                    selected.unlisted.namespaces.insert(name.to_owned());
                    if before.is_some() {
                        selected.unlisted.relabelled.insert(name.to_owned());
                    }
                }
                // The watch of the resource shows the deletion of the resources of a deleted namespace.
                (true, false) if labels.is_none() => {}
                (true, false) => {
                    selected.unlisted.remove(name);
                    selected.changes.all = true;
                    selected.targets.retain(|key, _| *key.namespace != *name);
                }
                // A set that names the namespace reports its absence.
                _ if !matches!(selected.selection.namespaces, SelectedNamespaces::Named(_)) => {
                    continue;
                }
                _ => {}
            }
            changed.push(set.clone());
        }
        drop(state);
        self.trigger.wake_all(&changed);
    }
}

impl SetsOfResource {
    /// Returns the sets that name `namespace`, and those that name none.
    fn reaching(&self, namespace: &str) -> impl Iterator<Item = &ObjectKey> {
        let named = [None, Some(namespace.to_owned())].into_iter();
        let found = named.flat_map(move |named| {
            let keys = self.keys.range((named.clone(), first_key())..);
            keys.take_while(move |(of, _)| *of == named)
        });
        found.map(|(_, set)| set).inspect(move |_| {
            #[cfg(test)]
            self.visits.set(self.visits.get() + 1);
        })
    }

    /// Returns the sets with resources that a watch of this namespace shows; `None` is all namespaces.
    fn of_watch(&self, watched_namespace: Option<&str>) -> BTreeSet<ObjectKey> {
        match watched_namespace {
            Some(namespace) => self.reaching(namespace).cloned().collect(),
            None => self.keys.iter().map(|(_, set)| set.clone()).collect(),
        }
    }
}

impl Selected {
    /// Remembers a resource whose labels no longer match. Beyond the limit, forgets the older half, because old resources
    /// never count as new.
    fn remember(&mut self, key: ObjectKey, target: Target) {
        self.former.insert(key, target);
        if self.former.len() > MAX_FORMER {
            let mut times: Vec<_> = self.former.values().map(|it| it.created).collect();
            let (_, median, _) = times.select_nth_unstable(MAX_FORMER / 2);
            self.former.retain(|_, target| target.created > *median);
        }
    }

    /// Records that the watch has shown `key`. Returns true if the running list is now outdated: the reconcile must list
    /// again.
    fn record_shown(&mut self, key: &ObjectKey) -> bool {
        let Some(seen) = &mut self.shown_since_list else {
            return false;
        };
        seen.insert(key.clone());
        let is_outdated = seen.len() > MAX_SHOWN_DURING_LIST;
        if is_outdated {
            self.shown_since_list = None;
        }
        is_outdated
    }
}

impl Unlisted {
    fn remove(&mut self, namespace: &str) {
        self.namespaces.remove(namespace);
        self.relabelled.remove(namespace);
    }
}

impl Changes {
    /// Adds a resource. The number is bounded, because a suspended set keeps its selection, and no reconcile takes the
    /// changes.
    fn add(&mut self, target: &ObjectKey) {
        if !self.all {
            self.targets.insert(target.clone());
        }
        if self.targets.len() > MAX_CHANGES {
            *self = Self {
                all: true,
                ..Self::default()
            };
        }
    }
}

impl Target {
    /// Returns the target with this metadata.
    pub fn of(metadata: &ObjectMeta) -> (ObjectKey, Self) {
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let key = ObjectKey::new(namespace, metadata.name.as_deref().unwrap_or_default());
        let target = Self {
            version: version(metadata.resource_version.as_deref()),
            created: metadata.creation_timestamp.as_ref().map(|time| time.0),
            from_namespace_change: false,
            had_children: Vec::new(),
        };
        (key, target)
    }
}

impl IndexState {
    fn is_selected(&self, selection: &Selection, metadata: &ObjectMeta) -> bool {
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let none = BTreeMap::new();
        let labels = metadata.labels.as_ref().unwrap_or(&none);
        selection.reaches(namespace, self.namespaces.get(namespace))
            && selection.matches(metadata.name.as_deref().unwrap_or_default(), labels)
    }

    fn insert_set(&mut self, set: &ObjectKey, selected: Selected) {
        self.remove_set(set);
        let Selection {
            resource,
            namespaces,
            ..
        } = &*selected.selection;
        let of_resource = self.by_resource.entry(resource.clone()).or_default();
        let names = namespaces.names().into_iter();
        of_resource
            .keys
            .extend(names.map(|name| (name, set.clone())));
        self.sets.insert(set.clone(), selected);
    }

    fn remove_set(&mut self, set: &ObjectKey) -> Option<Selected> {
        let selected = self.sets.remove(set)?;
        let Selection {
            resource,
            namespaces,
            ..
        } = &*selected.selection;
        if let Some(of_resource) = self.by_resource.get_mut(resource) {
            for name in namespaces.names() {
                of_resource.keys.remove(&(name, set.clone()));
            }
            if of_resource.keys.is_empty() {
                self.by_resource.remove(resource);
            }
        }
        Some(selected)
    }

    fn sets_in(&self, namespace: &str) -> impl Iterator<Item = &ObjectKey> {
        in_namespace(&self.sets, Some(namespace)).map(|(set, _)| set)
    }

    /// Records for the sets of a namespace that a `TrackedField` of a resource has changed.
    fn target_changed(&mut self, namespace: &str, target: &ObjectKey) {
        let sets = self.sets.range_mut(ObjectKey::new(namespace, "")..);
        for (_, selected) in sets.take_while(|(set, _)| set.is_in(Some(namespace))) {
            selected.changes.add(target);
        }
    }

    fn forget_field(&mut self, key: &ObjectKey) -> bool {
        let Some(tracking) = self.fields.remove(key) else {
            return false;
        };
        let Tracking {
            identity, target, ..
        } = tracking;
        self.target_changed(&key.namespace, &target);
        self.identities.remove(&(identity, key.clone()));
        true
    }
}

/// Returns the first key in the order of keys.
fn first_key() -> ObjectKey {
    ObjectKey::new("", "")
}

/// The parts of a watched object that sets need.
struct ShownObject {
    key: ObjectKey,
    version: u64,
    created: Option<Timestamp>,
    labels: BTreeMap<String, String>,
}

impl ShownObject {
    fn of(object: &RawObject) -> Self {
        Self {
            key: ObjectKey::new(&object.namespace().unwrap_or_default(), &object.name_any()),
            version: version(object.resource_version().as_deref()),
            created: object.creation_timestamp().map(|time| time.0),
            labels: object.labels(),
        }
    }
}

/// Index of the selected objects of one resource, which passes each object on to another index.
struct SelectedIndex {
    sets: Arc<SetIndex>,
    then: Arc<dyn watch::Index<RawObject>>,
    resource: ResourceName,
}

impl watch::Index<RawObject> for SelectedIndex {
    fn apply(&self, object: RawObject) -> bool {
        let is_needed = self.sets.selects(&self.resource);
        // Parsing a long text under the lock would delay everything else.
        let seen = is_needed.then(|| ShownObject::of(&object));
        // The tracker comes first, because the reconcile of a set reads the tracker's state.
        let is_kept = self.then.apply(object);
        seen.is_some_and(|seen| self.sets.apply(&self.resource, seen)) || is_kept
    }

    fn delete(&self, key: &ObjectKey, last: Option<RawObject>) {
        let seen = last
            .as_ref()
            .map(|last| version(last.resource_version().as_deref()));
        self.then.delete(key, last);
        self.sets.delete(&self.resource, key, seen);
    }

    fn keys(&self, namespace: Option<&str>) -> Vec<ObjectKey> {
        let mut keys: HashSet<_> = self.then.keys(namespace).into_iter().collect();
        let state = self.sets.state();
        let of_resource = state.by_resource.get(&self.resource);
        let sets = of_resource.map(|it| it.of_watch(namespace));
        for selected in sets.iter().flatten().filter_map(|set| state.sets.get(set)) {
            let targets = in_namespace(&selected.targets, namespace);
            keys.extend(targets.map(|(key, _)| key.clone()));
        }
        keys.into_iter().collect()
    }

    fn phase(&self, namespace: Option<&str>, phase: &WatchPhase) {
        self.then.phase(namespace, phase);
        self.sets.phase(&self.resource, namespace, phase);
    }
}

impl Sets for SetIndex {
    fn selects(&self, resource: &ResourceName) -> bool {
        self.state().by_resource.contains_key(resource)
    }

    fn forget_watch(&self, resource: &ResourceName) {
        self.state().watches.retain(|(of, _), _| of != resource);
    }

    fn owner(&self, field: &ObjectKey) -> Option<ObjectKey> {
        self.state().fields.get(field)?.owner.clone()
    }
}

impl watch::Observer<NamespaceMeta> for SetIndex {
    fn apply(&self, namespace: &NamespaceMeta) -> bool {
        self.set_namespace(&namespace.name_any(), Some(namespace.labels()));
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

impl watch::Observer<TrackedField> for SetIndex {
    fn apply(&self, field: &TrackedField) -> bool {
        self.field_changed(field);
        true
    }

    fn delete(&self, key: &ObjectKey, _last: Option<&TrackedField>) {
        self.field_deleted(key);
    }

    fn keys(&self, namespace: Option<&str>) -> Vec<ObjectKey> {
        let state = self.state();
        let fields = in_namespace(&state.fields, namespace);
        fields.map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_api::tracked_field_set::TargetSelector;
    use serde_json::{Value, json};

    use super::super::child::tests::deployments;
    use super::*;

    fn set() -> ObjectKey {
        ObjectKey::new("ops", "all")
    }

    /// An index with one set, and the index of its resource.
    struct Fixture {
        sets: Arc<SetIndex>,
        watched: Arc<dyn watch::Index<RawObject>>,
    }

    impl Fixture {
        fn new(target: Value) -> Self {
            let sets = Arc::new(SetIndex::new(
                WatchScope::Cluster,
                SyncState::default(),
                Trigger::default(),
            ));
            let then: NewIndex = Box::new(|_| Arc::new(Nothing));
            let watched = sets.new_index(then)(deployments());
            let fixture = Self { sets, watched };
            fixture.select(target, "1");
            fixture
        }

        /// Selects Deployments in the namespaces of production, and lists them.
        fn of_production() -> Self {
            let target = json!({ "kind": "Deployment", "namespaces": { "selector": { "matchLabels": { "env": "prod" } } } });
            let fixture = Self::new(target);
            let listing = WatchPhase::Listing { relist: 0 };
            for phase in [listing, WatchPhase::Listed] {
                fixture.watched.phase(None, &phase);
            }
            fixture
        }

        fn select(&self, target: Value, digest: &str) {
            let target: TargetSelector = serde_json::from_value(target).unwrap();
            let selection = Selection::new(&target, deployments(), true, "ops").unwrap();
            self.sets.select(&set(), selection, digest);
        }

        fn show(&self, name: &str, version: u64, labels: &Value) -> bool {
            self.watched.apply(object(name, version, labels))
        }

        fn names(&self) -> Vec<String> {
            let targets = self.sets.targets(&set()).into_iter();
            targets.map(|(key, _)| key.to_string()).collect()
        }
    }

    struct Nothing;

    impl watch::Index<RawObject> for Nothing {
        fn apply(&self, _: RawObject) -> bool {
            false
        }

        fn delete(&self, _: &ObjectKey, _: Option<RawObject>) {}

        fn keys(&self, _: Option<&str>) -> Vec<ObjectKey> {
            Vec::new()
        }
    }

    fn metadata(path: &str, version: u64, labels: &Value) -> ObjectMeta {
        let (namespace, name) = path.split_once('/').unwrap();
        let metadata = json!({
            "namespace": namespace, "name": name, "labels": labels, "resourceVersion": version.to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        });
        serde_json::from_value(metadata).unwrap()
    }

    fn object(path: &str, version: u64, labels: &Value) -> RawObject {
        let metadata = metadata(path, version, labels);
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    fn web() -> Value {
        json!({ "tier": "web" })
    }

    fn of_web() -> Value {
        json!({ "kind": "Deployment", "selector": { "matchLabels": web() }, "namespaces": { "names": ["shop"] } })
    }

    #[test]
    fn index_keeps_only_selected_objects() {
        let fixture = Fixture::new(of_web());
        assert!(fixture.show("shop/a", 1, &web()));
        assert!(!fixture.show("shop/b", 2, &json!({})));
        assert!(!fixture.show("ops/a", 3, &web()));
        assert_eq!(fixture.names(), ["shop/a"]);
        assert_eq!(fixture.watched.keys(None), [ObjectKey::new("shop", "a")]);
        assert_eq!(fixture.watched.keys(Some("ops")), []);
        assert!(!fixture.show("shop/a", 4, &json!({})));
        assert_eq!(fixture.names(), [""; 0]);
        fixture.show("shop/a", 5, &web());
        fixture.watched.delete(&ObjectKey::new("shop", "a"), None);
        assert_eq!(fixture.names(), [""; 0]);
    }

    #[test]
    fn sets_of_other_namespaces_are_neither_visited_nor_woken() {
        let fixture = Fixture::new(of_web());
        let select = |namespace: &str, target: Value| {
            let target: TargetSelector = serde_json::from_value(target).unwrap();
            let selection = Selection::new(&target, deployments(), true, namespace).unwrap();
            let set = ObjectKey::new(namespace, "all");
            fixture.sets.select(&set, selection, "1");
        };
        for number in 0..100 {
            select(&format!("tenant-{number}"), json!({ "kind": "Deployment" }));
        }
        let everywhere = json!({ "kind": "Deployment", "namespaces": { "selector": {} } });
        select("everywhere", everywhere);
        let visits = |change: &dyn Fn()| {
            let visits = || {
                fixture.sets.state().by_resource[&deployments()]
                    .visits
                    .get()
            };
            let before = visits();
            change();
            visits() - before
        };
        let shop = Some("shop");
        assert_eq!(visits(&|| _ = fixture.show("shop/a", 1, &web())), 2);
        assert_eq!(visits(&|| _ = fixture.watched.keys(shop)), 2);
        let listed = || fixture.watched.phase(shop, &WatchPhase::Listed);
        assert_eq!(visits(&listed), 2);
        let delete = || fixture.watched.delete(&ObjectKey::new("shop", "a"), None);
        assert_eq!(visits(&delete), 2);

        let mut trigger = fixture.sets.trigger.open();
        let create = || {
            let labels = BTreeMap::new();
            fixture.sets.set_namespace("tenant-7", Some(&labels));
        };
        assert_eq!(visits(&create), 2);
        let woken: Vec<_> = std::iter::from_fn(|| trigger.try_recv().ok()).collect();
        assert_eq!(woken, [ObjectKey::new("tenant-7", "all")]);

        for number in 0..100 {
            let set = ObjectKey::new(&format!("tenant-{number}"), "all");
            assert!(fixture.sets.forget(&set));
        }
        assert!(fixture.sets.selects(&deployments()));
        for set in [&set(), &ObjectKey::new("everywhere", "all")] {
            assert!(fixture.sets.forget(set));
        }
        assert!(!fixture.sets.selects(&deployments()));
    }

    /// A rollout may remove a label and add it again, which creates no resource.
    #[test]
    fn resource_that_matches_again_is_known() {
        let fixture = Fixture::new(of_web());
        let key = ObjectKey::new("shop", "a");
        let had_children = || {
            let target = fixture.sets.target(&set(), &key);
            target.map(|target| target.had_children)
        };
        fixture.show("shop/a", 1, &web());
        fixture.sets.record_children(&set(), [(&key, 7)]);
        fixture.show("shop/a", 2, &json!({}));
        assert_eq!(had_children(), None);
        // The creation of this child has taken longer than the change of the labels.
        fixture.sets.record_children(&set(), [(&key, 8)]);
        fixture.show("shop/a", 3, &web());
        assert_eq!(had_children(), Some(vec![7, 8]));
        fixture.show("shop/a", 4, &json!({}));
        fixture.watched.delete(&key, None);
        fixture.show("shop/a", 5, &web());
        assert_eq!(had_children(), Some(vec![]), "another resource");
    }

    #[test]
    fn resources_that_no_longer_match_are_bounded() {
        let fixture = Fixture::new(of_web());
        let mut selected = fixture.sets.state().sets.remove(&set()).unwrap();
        for second in 0..=MAX_FORMER {
            let created = i64::try_from(second).unwrap();
            let target = Target {
                version: 1,
                created: Timestamp::from_second(created).ok(),
                from_namespace_change: false,
                had_children: Vec::new(),
            };
            selected.remember(ObjectKey::new("shop", &second.to_string()), target);
        }
        assert_eq!(selected.former.len(), MAX_FORMER / 2);
        let newest = ObjectKey::new("shop", &MAX_FORMER.to_string());
        assert!(selected.former.contains_key(&newest));
    }

    /// The watch may lag behind the list of a reconcile.
    #[test]
    fn stale_event_does_not_undo_a_list() {
        let fixture = Fixture::new(of_web());
        fixture
            .watched
            .phase(None, &WatchPhase::Listing { relist: 0 });
        fixture.watched.phase(None, &WatchPhase::Listed);
        fixture.select(of_web(), "2");
        let unlisted = fixture.sets.unlisted(&set());
        assert!(unlisted.all, "the watch has already shown everything");
        // The watch shows `b` without its label while the reconcile lists.
        fixture.show("shop/b", 9, &json!({}));
        let listed =
            ["shop/a", "shop/b", "shop/c"].map(|path| Target::of(&metadata(path, 5, &web())));
        assert!(fixture.sets.listed(&set(), &unlisted, listed.into()));
        assert_eq!(fixture.names(), ["shop/a", "shop/c"]);
        assert_eq!(fixture.sets.unlisted(&set()), Unlisted::default());
        fixture.show("shop/a", 4, &json!({}));
        assert_eq!(fixture.names(), ["shop/a", "shop/c"], "an older version");
        fixture.show("shop/a", 6, &json!({}));
        assert_eq!(fixture.names(), ["shop/c"]);
    }

    /// An object that is deleted while the watch is interrupted is in the list of the reconcile alone.
    #[test]
    fn relist_of_the_watch_voids_the_list_of_a_reconcile() {
        let fixture = Fixture::new(of_web());
        let phase = |phase: WatchPhase| fixture.watched.phase(None, &phase);
        phase(WatchPhase::Listing { relist: 0 });
        phase(WatchPhase::Listed);
        fixture.select(of_web(), "2");
        let list = || fixture.sets.unlisted(&set());
        let listed = |unlisted: &Unlisted| {
            let listed = vec![Target::of(&metadata("shop/a", 5, &web()))];
            fixture.sets.listed(&set(), unlisted, listed)
        };
        let unlisted = list();
        phase(WatchPhase::Listing { relist: 1 });
        assert!(!listed(&unlisted));
        let unlisted = list();
        phase(WatchPhase::Listed);
        assert!(!listed(&unlisted), "the list began during the relist");
        let unlisted = list();
        fixture.sets.end_list(&set());
        assert!(!listed(&unlisted), "the reconcile was dropped");
        assert_eq!(fixture.names(), [""; 0]);
        assert!(listed(&list()));
        assert_eq!(fixture.names(), ["shop/a"]);
    }

    #[test]
    fn list_during_which_the_watch_shows_too_much_is_repeated() {
        let fixture = Fixture::new(of_web());
        for phase in [WatchPhase::Listing { relist: 0 }, WatchPhase::Listed] {
            fixture.watched.phase(None, &phase);
        }
        fixture.select(of_web(), "2");
        let mut trigger = fixture.sets.trigger.open();
        let mut woken = || std::iter::from_fn(|| trigger.try_recv().ok()).collect::<Vec<_>>();
        let listed = |unlisted: &Unlisted| {
            let listed = vec![Target::of(&metadata("shop/a", 1, &web()))];
            fixture.sets.listed(&set(), unlisted, listed)
        };
        let unlisted = fixture.sets.unlisted(&set());
        let show = |number: usize| fixture.show(&format!("shop/{number}"), 2, &json!({}));
        (0..MAX_SHOWN_DURING_LIST).for_each(|number| _ = show(number));
        assert_eq!(woken(), []);
        fixture.watched.delete(&ObjectKey::new("shop", "a"), None);
        assert_eq!(woken(), [set()], "the set lists again");
        show(MAX_SHOWN_DURING_LIST);
        assert_eq!(woken(), []);
        assert!(!listed(&unlisted), "the deletion is forgotten");
        assert!(listed(&fixture.sets.unlisted(&set())));
        assert_eq!(fixture.names(), ["shop/a"]);
    }

    #[test]
    fn changes_that_no_reconcile_takes_are_bounded() {
        let mut changes = Changes::default();
        for number in 0..=MAX_CHANGES {
            assert!(!changes.all);
            changes.add(&ObjectKey::new("ops", &number.to_string()));
        }
        let all = Changes {
            all: true,
            ..Changes::default()
        };
        assert_eq!(changes, all);
        changes.add(&ObjectKey::new("ops", "more"));
        assert_eq!(changes, all);
    }

    #[test]
    fn reconcile_gets_what_has_changed_since_the_last_one() {
        let fixture = Fixture::new(json!({ "kind": "Deployment" }));
        let changes = || fixture.sets.take_changes(&set());
        let of = |name: &str| Changes {
            all: false,
            targets: [ObjectKey::new("ops", name)].into(),
        };
        let all = Changes {
            all: true,
            ..Changes::default()
        };
        assert_eq!(changes(), all, "the selection is new");
        fixture.show("ops/web", 1, &json!({}));
        assert_eq!(changes(), of("web"));
        fixture.show("ops/web", 2, &json!({}));
        assert_eq!(changes(), Changes::default(), "the set knows it");
        let target = json!({ "kind": "Deployment", "namespace": "ops", "name": "api" });
        let spec = json!({ "target": target, "field": "replicas", "contactPoint": "hook" });
        let field = json!({
            "apiVersion": "tg.azamaton.ru/v1", "kind": "TrackedField",
            "metadata": { "namespace": "ops", "name": "mine" }, "spec": spec,
        });
        let field: TrackedField = serde_json::from_value(field).unwrap();
        fixture.sets.field_changed(&field);
        assert_eq!(changes(), of("api"));
        fixture.sets.field_changed(&field);
        assert_eq!(changes(), Changes::default());
        fixture.sets.field_deleted(&ObjectKey::of(&field));
        assert_eq!(changes(), of("api"));
        fixture.watched.delete(&ObjectKey::new("ops", "web"), None);
        assert_eq!(changes(), of("web"));
        fixture.watched.phase(None, &WatchPhase::Listed);
        assert_eq!(changes(), all);
    }

    #[test]
    fn namespace_that_begins_to_match_is_listed_and_its_resources_are_late() {
        let fixture = Fixture::of_production();
        let label = |env: &str| {
            let labels = [("env".to_owned(), env.to_owned())].into();
            fixture.sets.set_namespace("shop", Some(&labels));
        };
        label("test");
        assert!(!fixture.show("shop/a", 1, &json!({})));
        assert_eq!(fixture.sets.unlisted(&set()), Unlisted::default());
        label("prod");
        let unlisted = fixture.sets.unlisted(&set());
        assert_eq!(unlisted.namespaces, ["shop".to_owned()].into());
        let listed = vec![Target::of(&metadata("shop/a", 1, &json!({})))];
        assert!(fixture.sets.listed(&set(), &unlisted, listed));
        fixture.show("shop/b", 2, &json!({}));
        let late = fixture.sets.targets(&set()).into_iter();
        let late: Vec<_> = late.map(|(_, target)| target).collect();
        assert_eq!(
            late.iter()
                .map(|it| it.from_namespace_change)
                .collect::<Vec<_>>(),
            [true, false]
        );
        label("test");
        assert_eq!(fixture.names(), [""; 0]);
        assert_eq!(fixture.sets.unlisted(&set()), Unlisted::default());
    }

    /// A namespace and a resource are created from one file: both are new.
    #[test]
    fn new_namespace_is_listed_and_its_resources_are_not_late() {
        let fixture = Fixture::of_production();
        let labels = [("env".to_owned(), "prod".to_owned())].into();
        fixture.sets.set_namespace("shop", Some(&labels));
        let unlisted = fixture.sets.unlisted(&set());
        assert_eq!(unlisted.namespaces, ["shop".to_owned()].into());
        fixture.show("shop/a", 1, &json!({}));
        let listed = vec![Target::of(&metadata("shop/b", 2, &json!({})))];
        assert!(fixture.sets.listed(&set(), &unlisted, listed));
        let targets = fixture.sets.targets(&set());
        assert_eq!(targets.len(), 2);
        assert!(targets.iter().all(|(_, it)| !it.from_namespace_change));
    }

    #[test]
    fn resource_is_listed_while_every_watch_is_healthy() {
        let fixture = Fixture::new(of_web());
        let phase = |phase: WatchPhase| fixture.watched.phase(None, &phase);
        let is_listed = || fixture.sets.is_listed(&set());
        assert!(!is_listed());
        phase(WatchPhase::Listing { relist: 0 });
        assert!(!is_listed());
        phase(WatchPhase::Listed);
        assert!(is_listed());
        phase(WatchPhase::Failed(WatchProblem::NotServed));
        assert!(!is_listed());
        assert_eq!(
            fixture.sets.watch_problem(&set()),
            Some(WatchProblem::NotServed)
        );
        phase(WatchPhase::Healthy);
        assert!(is_listed());
        fixture.sets.forget_watch(&deployments());
        assert!(!is_listed());
    }

    #[test]
    fn tracked_fields_are_found_by_what_they_track() {
        let fixture = Fixture::new(of_web());
        let field = |name: &str, target: &str, annotations: Value| -> TrackedField {
            let target = json!({ "kind": "Deployment", "namespace": "shop", "name": target });
            let field = json!({
                "apiVersion": "tg.azamaton.ru/v1", "kind": "TrackedField",
                "metadata": { "namespace": "ops", "name": name, "annotations": annotations },
                "spec": { "target": target, "field": "replicas", "contactPoint": "hook" },
            });
            serde_json::from_value(field).unwrap()
        };
        let mine = field("mine", "web", json!({}));
        let owned = field(
            "owned",
            "web",
            json!({ "quartermaster.dev/owner": "ops/all" }),
        );
        for field in [&mine, &owned, &field("other", "api", json!({}))] {
            fixture.sets.field_changed(field);
        }
        let found = || {
            let found = fixture
                .sets
                .tracking(super::super::child::identity(&mine))
                .into_iter();
            found
                .map(|(key, it)| {
                    (
                        key.name.to_string(),
                        it.owner.map(|owner| owner.to_string()),
                    )
                })
                .collect::<Vec<_>>()
        };
        let expected = [
            ("mine".to_owned(), None),
            ("owned".to_owned(), Some("ops/all".to_owned())),
        ];
        assert_eq!(found(), expected);
        fixture.sets.field_changed(&field("mine", "api", json!({})));
        assert_eq!(found(), expected[1..]);
        fixture.sets.field_deleted(&ObjectKey::of(&owned));
        assert_eq!(found(), []);
    }
}
