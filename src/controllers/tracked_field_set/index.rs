//! Index of the resources that sets select, of the namespaces, and of all `TrackedField`s. Of a resource, the index
//! keeps only the name and the age, and only while a set selects it, or once its labels no longer match.
//!
//! Only a reconcile registers a selection, so a standby keeps no resources. A running watch does not repeat unchanged
//! resources, so a reconcile lists those that the watch may have shown before, for all sets that need the same list
//! ([`SetIndex::begin_list`]).

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::ObjectMeta;
use qm_api::{TrackedField, TrackedFieldSet};
use qm_runtime::error::{Class, Error, Result, WRITE_FAILED};
use qm_runtime::manager::NamespaceMeta;
use qm_runtime::objects::{in_namespace, keys_of};
use qm_runtime::raw_object::RawObject;
use qm_runtime::trigger::Trigger;
use qm_runtime::watch::{self, NewIndex, ResourceName, SyncState, WatchPhase, WatchProblem};
use qm_runtime::{ObjectKey, WatchScope, version};
use tokio::time::Instant;

use super::child::Identity;
use super::precedence::Tracking;
use super::selection::{SelectedNamespaces, Selection};
use crate::controllers::tracked_field::requests::FAILED_LIST_PERIOD;
use crate::controllers::tracked_field::targets::Sets;

/// Maximum number of changed resources that a set remembers. Beyond that, the next reconcile compares everything.
const MAX_CHANGES: usize = 1000;
/// Maximum number of resources that the watch may show during a list. Beyond that, the reconcile lists again.
const MAX_SHOWN_DURING_LIST: usize = 10_000;
/// Maximum number of label selectors with a list each, which transfers only what the selector matches. For more, the
/// apiserver reads all resources too often, so one list of all resources serves the sets.
const MAX_LABELLED_LISTS: usize = 8;
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
    tracked_fields: BTreeMap<ObjectKey, Tracking>,
    /// Running lists by resource and listed namespace.
    lists: HashMap<ListKey, RunningList>,
    /// The last failure of each list, with its label selector, that has not succeeded since.
    failed_lists: HashMap<(ListKey, Option<String>), (Instant, String)>,
    /// The keys of `tracked_fields` by identity.
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
    /// Deleted resources whose children stay. If such a resource is created again and does not match, its child leaves.
    deleted: HashSet<ObjectKey>,
    unlisted: Unlisted,
    changes: Changes,
    /// Namespaces of the running lists that serve the set.
    lists: BTreeSet<Option<String>>,
}

/// Resource and namespace of a list; `None` is all namespaces, or a cluster-scoped resource.
type ListKey = (ResourceName, Option<String>);

/// A list that the reconcile of one set makes for all sets that need it.
struct RunningList {
    /// Resources that the watch has shown since the list began, selected or not; `None` once the list is outdated.
    shown: Option<HashSet<ObjectKey>>,
    /// Sets to reconcile at the end of the list.
    waiting: BTreeSet<ObjectKey>,
}

/// Next step of a set's reconcile for resources that the watch may have shown before the set selected them.
pub(super) enum ListStep<'a> {
    /// Nothing: the set has every resource that it selects.
    Done,
    /// Waits for the watch's list, or for a list of another reconcile, whose end triggers this one.
    Wait,
    /// Makes this list, and then asks for the next step.
    List(SharedList<'a>),
}

/// A running list, which ends when this value is dropped.
pub(super) struct SharedList<'a> {
    index: &'a SetIndex,
    key: ListKey,
    /// Label selector of the list; `None` lists all resources.
    pub(super) labels: Option<String>,
}

/// Resources that the watch may have shown before the set selected them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Unlisted {
    /// True if the resources of all namespaces have to be listed.
    all: bool,
    /// Namespaces to list: those that the set names, or that have begun to match.
    namespaces: BTreeSet<String>,
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
        let is_watched = watches.any(|(resource, _)| *resource == selection.resource);
        let unlisted = if is_watched {
            Unlisted::of(&selection.namespaces)
        } else {
            Unlisted::default()
        };
        let selected = Selected {
            selection: Arc::new(selection),
            digest: digest.to_owned(),
            targets: BTreeMap::new(),
            former: HashMap::new(),
            deleted: HashSet::new(),
            unlisted,
            changes: Changes {
                all: true,
                ..Changes::default()
            },
            lists: BTreeSet::new(),
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

    /// Returns the next step of the set's reconcile towards all resources that the set selects. A list serves all sets
    /// that need it when it begins: otherwise each of hundreds of sets would list the resource at every start.
    ///
    /// # Errors
    /// If the list has just failed.
    pub(super) fn begin_list(&self, set: &ObjectKey) -> Result<ListStep<'_>> {
        let mut state = self.state();
        // Only a watch that has listed reveals what is deleted during the list.
        let selected = state.sets.get(set);
        let Some(selected) = selected.filter(|_| self.is_listed_in(&state, set)) else {
            return Ok(ListStep::Wait);
        };
        let resource = selected.selection.resource.clone();
        let list_of = |namespace: Option<&str>| (resource.clone(), namespace.map(str::to_owned));
        let lists = || selected.unlisted.lists().map(list_of);
        let Some(first) = lists().next() else {
            return Ok(ListStep::Done);
        };
        let next = lists().find(|key| !state.lists.contains_key(key));
        let Some(key) = next else {
            if let Some(running) = state.lists.get_mut(&first) {
                running.waiting.insert(set.clone());
            }
            return Ok(ListStep::Wait);
        };
        let own_labels = selected.selection.list_params().label_selector;
        let concerned = state.sets_shown_by(&key);
        let needing = concerned
            .iter()
            .filter_map(|set| Some((set, state.sets.get(set)?)))
            .filter(|(set, selected)| selected.needs(&key) && self.is_listed_in(&state, set));
        let needing: Vec<_> = needing
            .map(|(set, it)| (set.clone(), it.selection.list_params().label_selector))
            .collect();
        let selectors: BTreeSet<_> = needing.iter().map(|(_, labels)| labels).collect();
        let are_few = selectors.len() <= MAX_LABELLED_LISTS;
        let are_labelled = needing.iter().all(|(_, labels)| labels.is_some());
        let labels = own_labels.filter(|_| are_few && are_labelled);
        let failed = state.failed_lists.get(&(key.clone(), labels.clone()));
        if let Some((at, message)) = failed
            && at.elapsed() < FAILED_LIST_PERIOD
        {
            let message = message.clone();
            return Err(Error::other(Class::Transient, WRITE_FAILED, message));
        }
        for (set, its_labels) in &needing {
            if (labels.is_none() || *its_labels == labels)
                && let Some(selected) = state.sets.get_mut(set)
            {
                selected.list_begins(key.1.clone());
            }
        }
        let running = RunningList {
            shown: Some(HashSet::new()),
            waiting: BTreeSet::new(),
        };
        state.lists.insert(key.clone(), running);
        Ok(ListStep::List(SharedList {
            index: self,
            key,
            labels,
        }))
    }

    /// Returns whether the set selects an object with this metadata. Of namespace selectors, only the empty one selects
    /// a namespace whose labels are unknown.
    pub(crate) fn selects_object(&self, set: &ObjectKey, metadata: &ObjectMeta) -> bool {
        let state = self.state();
        let selected = state.sets.get(set);
        selected.is_some_and(|it| is_selected(&state.namespaces, &it.selection, metadata))
    }

    /// Returns whether the namespace of a target is known to exist, so that its labels are known.
    pub(crate) fn knows_namespace(&self, name: &str) -> bool {
        self.namespaces_sync.is_none()
            || name.is_empty()
            || self.state().namespaces.contains_key(name)
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

    /// Records that the child of a deleted resource stays. The set is then woken when the resource is created again.
    pub(super) fn record_deleted(&self, set: &ObjectKey, target: ObjectKey) {
        if let Some(selected) = self.state().sets.get_mut(set) {
            selected.deleted.insert(target);
        }
    }

    /// Forgets the deleted resources whose children the set has kept. Each reconcile records them anew.
    pub(super) fn forget_deleted(&self, set: &ObjectKey) {
        if let Some(selected) = self.state().sets.get_mut(set) {
            selected.deleted.clear();
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
        keys_of(&state.identities, identity)
            .filter_map(|key| Some((key.clone(), state.tracked_fields.get(key)?.clone())))
            .collect()
    }

    /// Returns whether there is a `TrackedField` of this key.
    pub(crate) fn has_tracked_field(&self, key: &ObjectKey) -> bool {
        self.state().tracked_fields.contains_key(key)
    }

    /// Records a `TrackedField`. If its [`Tracking`] has changed, triggers reconciles of the other sets in its
    /// namespace.
    pub(crate) fn on_tracked_field_applied(&self, field: &TrackedField) {
        let key = ObjectKey::of(field);
        let tracking = Tracking::of(field);
        let mut state = self.state();
        if state.tracked_fields.get(&key) == Some(&tracking) {
            return;
        }
        state.forget_tracked_field(&key);
        state.target_changed(&key.namespace, &tracking.target);
        state.identities.insert((tracking.identity, key.clone()));
        // The cache of children triggers the owner, if a UID proves it.
        let owner = tracking.owner.clone().filter(|_| tracking.is_owner_proven);
        state.tracked_fields.insert(key.clone(), tracking);
        let others = state.sets_in(&key.namespace);
        self.trigger
            .wake_all(others.filter(|set| Some(*set) != owner.as_ref()));
    }

    /// Forgets a deleted `TrackedField`.
    pub(crate) fn on_tracked_field_deleted(&self, key: &ObjectKey) {
        let mut state = self.state();
        if state.forget_tracked_field(key) {
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
        state.record_shown(resource, &key);
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
            let selection = &selected.selection;
            let known = selected.targets.get(&key);
            // The list of a reconcile was newer than this event.
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
            } else if selected.deleted.contains(&key) {
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
        state.record_shown(resource, key);
        let IndexState {
            sets, by_resource, ..
        } = &mut *state;
        let of_resource = by_resource.get(resource).into_iter();
        for set in of_resource.flat_map(|it| it.reaching(&key.namespace)) {
            let Some(selected) = sets.get_mut(set) else {
                continue;
            };
            selected.former.remove(key);
            // The event may be older than the list of a reconcile.
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
            WatchPhase::Recovered => watch.problem = None,
            WatchPhase::Failed(problem) => watch.problem = Some(problem.clone()),
            WatchPhase::Stopped(_) => *watch = Watch::default(),
        }
        if let WatchPhase::Listing { .. } = phase {
            // Only the watch's list reveals what was deleted while the watch was interrupted.
            let relists = |listed: Option<&str>| {
                listed.is_none() || namespace.is_none() || listed == namespace
            };
            for ((of, listed), list) in &mut state.lists {
                if of == resource && relists(listed.as_deref()) {
                    list.shown = None;
                }
            }
        }
        let concerned = state.sets_shown_by(&(resource.clone(), namespace.map(str::to_owned)));
        for set in &concerned {
            let Some(selected) = state.sets.get_mut(set) else {
                continue;
            };
            selected.changes.all |= matches!(phase, WatchPhase::Listed | WatchPhase::Stopped(_));
            // After a restore of etcd, the versions in a newer list are lower than the known ones.
            if let WatchPhase::Listing { .. } = phase {
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
                    // A running list may have passed the resources while the namespace did not match.
                    selected.lists.remove(&Some(name.to_owned()));
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
        let found = named.flat_map(move |named| keys_of(&self.keys, named));
        found.inspect(move |_| {
            #[cfg(test)]
            self.visits.set(self.visits.get() + 1);
        })
    }

    /// Returns the sets that reach this namespace; `None` is any namespace.
    fn shown_in(&self, namespace: Option<&str>) -> BTreeSet<ObjectKey> {
        match namespace {
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

    fn needs(&self, (resource, namespace): &ListKey) -> bool {
        let unlisted = &self.unlisted;
        self.selection.resource == *resource
            && match namespace {
                None => unlisted.all,
                Some(namespace) => !unlisted.all && unlisted.namespaces.contains(namespace),
            }
    }

    /// Returns whether this running list serves the set.
    fn is_served_by(&self, (resource, namespace): &ListKey) -> bool {
        self.selection.resource == *resource && self.lists.contains(namespace)
    }

    fn list_begins(&mut self, namespace: Option<String>) {
        if namespace.is_none() {
            // The list covers these namespaces, and those that begin to match later are listed on their own.
            self.unlisted = Unlisted {
                all: true,
                ..Unlisted::default()
            };
        }
        self.lists.insert(namespace);
    }
}

impl SharedList<'_> {
    /// Returns the listed namespace; `None` is all namespaces, or a cluster-scoped resource.
    pub(super) fn namespace(&self) -> Option<&str> {
        self.key.1.as_deref()
    }

    /// Adds a listed object to the sets that the list serves and that select the object, unless the watch has shown
    /// the object meanwhile. The watch goes on to keep what an unfinished list has added up to date.
    pub(super) fn add(&self, metadata: &ObjectMeta) {
        let (key, target) = Target::of(metadata);
        let mut state = self.index.state();
        let IndexState {
            sets,
            by_resource,
            namespaces,
            lists,
            ..
        } = &mut *state;
        let shown = lists.get(&self.key).and_then(|list| list.shown.as_ref());
        if shown.is_none_or(|shown| shown.contains(&key)) {
            return;
        }
        let of_resource = by_resource.get(&self.key.0).into_iter();
        for set in of_resource.flat_map(|it| it.reaching(&key.namespace)) {
            if let Some(selected) = sets.get_mut(set)
                && selected.is_served_by(&self.key)
                && is_selected(namespaces, &selected.selection, metadata)
            {
                let relabelled = &selected.unlisted.relabelled;
                let target = Target {
                    from_namespace_change: relabelled.contains(&*key.namespace),
                    ..target.clone()
                };
                selected.targets.entry(key.clone()).or_insert(target);
            }
        }
    }

    /// Records that the list is complete. Without effect if the list is outdated: the watch has shown too many
    /// resources meanwhile, or has begun a list.
    pub(super) fn complete(&self) {
        let mut state = self.index.state();
        state
            .failed_lists
            .remove(&(self.key.clone(), self.labels.clone()));
        let list = state.lists.get(&self.key);
        if list.is_none_or(|list| list.shown.is_none()) {
            return;
        }
        for set in state.sets_shown_by(&self.key) {
            if let Some(selected) = state.sets.get_mut(&set)
                && selected.is_served_by(&self.key)
            {
                match self.namespace() {
                    None => selected.unlisted.all = false,
                    Some(namespace) => selected.unlisted.remove(namespace),
                }
                selected.changes.all = true;
            }
        }
    }

    /// Records that the list has failed, for all sets that need it soon.
    pub(super) fn failed(&self, error: &Error) {
        let failure = (Instant::now(), error.to_string());
        let mut state = self.index.state();
        let failed_lists = &mut state.failed_lists;
        if failed_lists.len() == failed_lists.capacity() {
            failed_lists.retain(|_, (at, _)| at.elapsed() < FAILED_LIST_PERIOD);
        }
        failed_lists.insert((self.key.clone(), self.labels.clone()), failure);
    }
}

impl Drop for SharedList<'_> {
    fn drop(&mut self) {
        let mut state = self.index.state();
        for set in state.sets_shown_by(&self.key) {
            if let Some(selected) = state.sets.get_mut(&set) {
                selected.lists.remove(&self.key.1);
            }
        }
        let ended = state.lists.remove(&self.key);
        drop(state);
        let waiting = ended.iter().flat_map(|list| &list.waiting);
        self.index.trigger.wake_all(waiting);
    }
}

impl Unlisted {
    fn of(namespaces: &SelectedNamespaces) -> Self {
        let mut unlisted = Self::default();
        match namespaces {
            SelectedNamespaces::Named(names) => unlisted.namespaces.clone_from(names),
            SelectedNamespaces::Cluster | SelectedNamespaces::Labelled(_) => unlisted.all = true,
        }
        unlisted
    }

    /// Returns the namespaces to list, `None` for all.
    fn lists(&self) -> impl Iterator<Item = Option<&str>> {
        let all = self.all.then_some(None);
        let namespaces = self.namespaces.iter().filter(|_| !self.all);
        all.into_iter()
            .chain(namespaces.map(|namespace| Some(namespace.as_str())))
    }

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
    /// Records for the running lists that the watch has shown an object. Too many such objects make a list outdated.
    fn record_shown(&mut self, resource: &ResourceName, key: &ObjectKey) {
        for ((of, namespace), list) in &mut self.lists {
            if of == resource
                && key.is_in(namespace.as_deref())
                && let Some(shown) = &mut list.shown
            {
                shown.insert(key.clone());
                if shown.len() > MAX_SHOWN_DURING_LIST {
                    list.shown = None;
                }
            }
        }
    }

    /// Returns the sets with resources that a watch or list shows.
    fn sets_shown_by(&self, (resource, namespace): &ListKey) -> BTreeSet<ObjectKey> {
        let of_resource = self.by_resource.get(resource);
        let sets = of_resource.map(|it| it.shown_in(namespace.as_deref()));
        sets.unwrap_or_default()
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

    fn forget_tracked_field(&mut self, key: &ObjectKey) -> bool {
        let Some(tracking) = self.tracked_fields.remove(key) else {
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

/// Returns whether the selection includes an object with this metadata. `namespaces` are the labels of each namespace.
fn is_selected(
    namespaces: &BTreeMap<String, BTreeMap<String, String>>,
    selection: &Selection,
    metadata: &ObjectMeta,
) -> bool {
    let namespace = metadata.namespace.as_deref().unwrap_or_default();
    let none = BTreeMap::new();
    let labels = metadata.labels.as_ref().unwrap_or(&none);
    selection.reaches(namespace, namespaces.get(namespace))
        && selection.matches(metadata.name.as_deref().unwrap_or_default(), labels)
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
        let sets = state.sets_shown_by(&(self.resource.clone(), namespace.map(str::to_owned)));
        for selected in sets.iter().filter_map(|set| state.sets.get(set)) {
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
        let mut state = self.state();
        state.watches.retain(|(of, _), _| of != resource);
        state.failed_lists.retain(|((of, _), _), _| of != resource);
    }

    fn owner(&self, field: &ObjectKey) -> Option<ObjectKey> {
        self.state().tracked_fields.get(field)?.owner.clone()
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
        self.on_tracked_field_applied(field);
        true
    }

    fn delete(&self, key: &ObjectKey, _last: Option<&TrackedField>) {
        self.on_tracked_field_deleted(key);
    }

    fn keys(&self, namespace: Option<&str>) -> Vec<ObjectKey> {
        let state = self.state();
        let fields = in_namespace(&state.tracked_fields, namespace);
        fields.map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_api::tracked_field_set::TargetSelector;
    use serde_json::{Value, json};

    use super::super::child::tests::deployments;
    use super::*;

    fn set() -> ObjectKey {
        ObjectKey::new("ops", "all")
    }

    /// An index with one set, and the index of its resource.
    pub struct Fixture {
        pub sets: Arc<SetIndex>,
        watched: Arc<dyn watch::Index<RawObject>>,
    }

    impl Fixture {
        pub fn new(target: Value) -> Self {
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
            fixture.list();
            fixture
        }

        /// Completes a list of the watch.
        pub fn list(&self) {
            for phase in [WatchPhase::Listing { relist: 0 }, WatchPhase::Listed] {
                self.watched.phase(None, &phase);
            }
        }

        fn select(&self, target: Value, digest: &str) {
            self.select_for(&set(), target, digest);
        }

        pub fn select_for(&self, set: &ObjectKey, target: Value, digest: &str) {
            let target: TargetSelector = serde_json::from_value(target).unwrap();
            let selection = Selection::new(&target, deployments(), true, "ops").unwrap();
            self.sets.select(set, selection, digest);
        }

        fn begin_list(&self) -> SharedList<'_> {
            let step = self.sets.begin_list(&set()).unwrap();
            let ListStep::List(list) = step else {
                panic!("no list begins")
            };
            list
        }

        fn unlisted(&self) -> Unlisted {
            self.sets.state().sets[&set()].unlisted.clone()
        }

        /// Returns a function that returns the sets that were woken since its last call.
        pub fn woken(&self) -> impl FnMut() -> Vec<ObjectKey> + use<> {
            let mut trigger = self.sets.trigger.open();
            move || std::iter::from_fn(|| trigger.try_recv().ok()).collect()
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

    /// The child of the deleted resource would report the new one.
    #[test]
    fn deleted_resource_that_is_created_again_wakes_the_set() {
        let fixture = Fixture::new(of_web());
        let key = ObjectKey::new("shop", "a");
        fixture.show("shop/a", 1, &web());
        fixture.watched.delete(&key, None);
        let mut woken = fixture.woken();
        fixture.sets.record_deleted(&set(), key);
        fixture.show("shop/b", 2, &json!({}));
        assert_eq!(woken(), []);
        fixture.show("shop/a", 3, &json!({}));
        assert_eq!(woken(), [set()]);
        fixture.sets.forget_deleted(&set());
        fixture.show("shop/a", 4, &json!({}));
        assert_eq!(woken(), []);
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
        fixture.list();
        fixture.select(of_web(), "2");
        let unlisted = fixture.unlisted().namespaces;
        assert_eq!(
            unlisted,
            ["shop".to_owned()].into(),
            "the watch has already shown everything"
        );
        let list = fixture.begin_list();
        // The watch shows `b` without its label while the reconcile lists.
        fixture.show("shop/b", 9, &json!({}));
        for path in ["shop/a", "shop/b", "shop/c"] {
            list.add(&metadata(path, 5, &web()));
        }
        list.complete();
        drop(list);
        assert_eq!(fixture.names(), ["shop/a", "shop/c"]);
        assert_eq!(fixture.unlisted(), Unlisted::default());
        fixture.show("shop/a", 4, &json!({}));
        assert_eq!(fixture.names(), ["shop/a", "shop/c"], "an older version");
        fixture.show("shop/a", 6, &json!({}));
        assert_eq!(fixture.names(), ["shop/c"]);
    }

    /// An object that is deleted while the watch is interrupted is in the list of the reconcile alone.
    #[test]
    fn relist_of_the_watch_voids_the_list_of_a_reconcile() {
        let fixture = Fixture::new(of_web());
        fixture.list();
        fixture.select(of_web(), "2");
        let [a, b] = ["shop/a", "shop/b"].map(|path| metadata(path, 5, &web()));
        let list = fixture.begin_list();
        list.add(&a);
        let listing = WatchPhase::Listing { relist: 1 };
        fixture.watched.phase(None, &listing);
        list.add(&b);
        list.complete();
        drop(list);
        let a = ObjectKey::new("shop", "a");
        assert_eq!(
            fixture.watched.keys(None),
            [a],
            "the watch deletes it unless its list shows it"
        );
        assert_ne!(fixture.unlisted(), Unlisted::default());
        let step = fixture.sets.begin_list(&set());
        assert!(matches!(step, Ok(ListStep::Wait)), "during the relist");
        fixture.watched.phase(None, &WatchPhase::Listed);
        drop(fixture.begin_list());
        assert_ne!(
            fixture.unlisted(),
            Unlisted::default(),
            "the reconcile was dropped"
        );
        let list = fixture.begin_list();
        list.add(&b);
        list.complete();
        assert_eq!(fixture.unlisted(), Unlisted::default());
        assert_eq!(fixture.names(), ["shop/a", "shop/b"]);
    }

    #[test]
    fn list_during_which_the_watch_shows_too_much_is_repeated() {
        let fixture = Fixture::new(of_web());
        fixture.list();
        fixture.select(of_web(), "2");
        let a = metadata("shop/a", 1, &web());
        let list = fixture.begin_list();
        for number in 0..MAX_SHOWN_DURING_LIST {
            fixture.show(&format!("shop/{number}"), 2, &json!({}));
        }
        fixture.watched.delete(&ObjectKey::new("shop", "a"), None);
        list.add(&a);
        list.complete();
        drop(list);
        assert_eq!(fixture.names(), [""; 0], "the deletion is forgotten");
        let list = fixture.begin_list();
        list.add(&a);
        list.complete();
        drop(list);
        assert_eq!(fixture.names(), ["shop/a"]);
        assert_eq!(fixture.unlisted(), Unlisted::default());
    }

    /// A list that began for an earlier selection lacks what only the later one selects.
    #[test]
    fn running_list_does_not_serve_a_later_selection() {
        let fixture = Fixture::new(of_web());
        fixture.list();
        fixture.select(of_web(), "2");
        let list = fixture.begin_list();
        fixture.select(of_web(), "3");
        list.add(&metadata("shop/a", 1, &web()));
        list.complete();
        let step = fixture.sets.begin_list(&set());
        assert!(matches!(step, Ok(ListStep::Wait)));
        assert_eq!(fixture.names(), [""; 0]);
        drop(list);
        fixture.begin_list().complete();
        assert_eq!(fixture.unlisted(), Unlisted::default());
    }

    #[test]
    fn namespace_that_matches_again_during_a_list_is_listed_again() {
        let fixture = Fixture::of_production();
        let label = |env: &str| {
            let labels = [("env".to_owned(), env.to_owned())].into();
            fixture.sets.set_namespace("shop", Some(&labels));
        };
        label("prod");
        let list = fixture.begin_list();
        label("test");
        list.add(&metadata("shop/a", 1, &json!({})));
        label("prod");
        list.complete();
        drop(list);
        assert_eq!(fixture.begin_list().namespace(), Some("shop"));
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
        fixture.sets.on_tracked_field_applied(&field);
        assert_eq!(changes(), of("api"));
        fixture.sets.on_tracked_field_applied(&field);
        assert_eq!(changes(), Changes::default());
        fixture
            .sets
            .on_tracked_field_deleted(&ObjectKey::of(&field));
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
        assert_eq!(fixture.unlisted(), Unlisted::default());
        label("prod");
        let list = fixture.begin_list();
        assert_eq!(list.namespace(), Some("shop"));
        list.add(&metadata("shop/a", 1, &json!({})));
        list.complete();
        drop(list);
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
        assert_eq!(fixture.unlisted(), Unlisted::default());
    }

    /// Any client may write the annotation: without the label, the set is not the owner and yields to the `TrackedField`.
    #[test]
    fn only_a_proven_owner_is_left_to_the_cache_of_children() {
        let fixture = Fixture::new(of_web());
        let mut woken = fixture.woken();
        let mut change = |name: &str, labels: Value| {
            let annotations = json!({ "quartermaster.dev/owner": "ops/all" });
            let target = json!({ "kind": "Deployment", "namespace": "shop", "name": "web" });
            let field = json!({
                "apiVersion": "tg.azamaton.ru/v1", "kind": "TrackedField",
                "metadata": { "namespace": "ops", "name": name, "annotations": annotations, "labels": labels },
                "spec": { "target": target, "field": "replicas", "contactPoint": "hook" },
            });
            let field: TrackedField = serde_json::from_value(field).unwrap();
            fixture.sets.on_tracked_field_applied(&field);
            woken()
        };
        assert_eq!(change("named", json!({})), [set()]);
        let owner_uid = json!({ "quartermaster.dev/owner-uid": "1" });
        assert_eq!(change("owned", owner_uid), []);
    }

    /// A namespace and a resource are created from one file: both are new.
    #[test]
    fn new_namespace_is_listed_and_its_resources_are_not_late() {
        let fixture = Fixture::of_production();
        let labels = [("env".to_owned(), "prod".to_owned())].into();
        fixture.sets.set_namespace("shop", Some(&labels));
        let list = fixture.begin_list();
        assert_eq!(list.namespace(), Some("shop"));
        fixture.show("shop/a", 1, &json!({}));
        list.add(&metadata("shop/b", 2, &json!({})));
        list.complete();
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
        phase(WatchPhase::Recovered);
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
            fixture.sets.on_tracked_field_applied(field);
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
        fixture
            .sets
            .on_tracked_field_applied(&field("mine", "api", json!({})));
        assert_eq!(found(), expected[1..]);
        fixture
            .sets
            .on_tracked_field_deleted(&ObjectKey::of(&owned));
        assert_eq!(found(), []);
    }
}
