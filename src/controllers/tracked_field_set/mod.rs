//! `TrackedFieldSet`: one `TrackedField` for each field of each selected resource.
//!
//! The [`index`] keeps the names of the selected resources. A reconcile compares the index with the set's children,
//! creates and changes `TrackedField`s, and deletes those that the set no longer needs (`deletions` decides when).
//! While the watch of the resource fails or lists, a missing name proves nothing, so the set deletes no child.

use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::ResourceExt;
use qm_api::spec_size::StoredSpec as _;
use qm_api::tracked_field::{GROUP, Initial};
use qm_api::tracked_field_set::{TrackedFieldSetSpec, TrackedFieldSetStatus};
use qm_api::{TrackedField, TrackedFieldSet};
use qm_core::kind::{DelegatedAccess, EVENTS, Kind as _, KindInfo, Permission};
use qm_core::time::whole_seconds;
use qm_notify::Transport;
use qm_runtime::cache::CacheStatus;
use qm_runtime::children::{Children, Ensured};
use qm_runtime::controller::{Context, Controller};
use qm_runtime::drift::CONTESTED;
use qm_runtime::error::{Class, Error, FORBIDDEN, QUOTA_EXCEEDED, Result, WRITE_FAILED};
use qm_runtime::objects::Objects;
use qm_runtime::outcome::{Outcome, Progress, Requeue, SPEC_INVALID};
use qm_runtime::ownership::Owner;
use qm_runtime::watch::ResourceName;
use qm_runtime::{ObjectKey, SpecRevision, WatchScope, short_digest};
use tokio::time::timeout_at;

use self::child::{Identity, LiveChild};
use self::index::{SetIndex, Target};
use self::metrics::{ChildCounts, SetMetrics};
use self::plan::{Deletions, DesiredTrackedField, OwnedChildren, Plan, PlannedDeletion};
use self::precedence::{Claimant, Demand, Existing, Tracking};
use self::selection::{SelectedNamespaces, Selection, SelectionError};
use self::writes::{ChildWrite, RECHECK_INTERVAL, Rejections};
use super::reasons::OUT_OF_SCOPE;
use super::tracked_field::contact_points::ContactPointView;
use super::tracked_field::grants::Grant;
use super::tracked_field::requests::{MAX_SINGLE_READS, TrackError};
use super::tracked_field::resolver::Resolved;
use super::tracked_field::targets::Targets;
use super::tracked_field::waiting::{RESOURCE_MISMATCH, ReportedObstacles, WaitingReason};
use crate::cli::NO_CROSS_NAMESPACE_REFS;

pub mod child;
mod deletions;
pub mod index;
mod list;
pub mod metrics;
mod plan;
pub mod precedence;
pub mod selection;
pub mod status;
pub mod writes;

/// Name of the controller in logs, metrics and `--controllers`.
pub const NAME: &str = "trackedfieldset";
pub const KIND: KindInfo = KindInfo::of::<TrackedFieldSet>(
    NAME,
    &["340894059b5fd8bd"],
    DelegatedAccess::SelectedTargets,
    &[
        Permission::namespaced(GROUP, &["trackedfieldsets"], &["get", "list", "watch"]),
        Permission::namespaced(GROUP, &["trackedfieldsets/status"], &["patch"]),
        // The admission plugin OwnerReferencesPermissionEnforcement requires `update` to set references that block the
        // owner's deletion.
        Permission::namespaced(GROUP, &["trackedfieldsets/finalizers"], &["update"]),
        Permission::namespaced(
            GROUP,
            &["trackedfields"],
            &["create", "delete", "get", "list", "patch", "watch"],
        ),
        Permission::cluster_scoped("", &["namespaces"], &["list", "watch"]),
        EVENTS,
    ],
)
// The sets are deleted before the TrackedFields, which they would otherwise recreate.
.with_uninstall_rank(5);

/// Maximum number of concurrent requests of one reconcile.
const MAX_CONCURRENT_REQUESTS: usize = 8;
/// Age up to which a resource that was created while no operator ran is reported.
const REPORTED_AGE: Duration = Duration::from_hours(24);
/// Minimum interval between two Events about created and deleted children.
const REPORT_INTERVAL: Duration = Duration::from_mins(1);

pub(crate) struct TrackedFieldSets<T> {
    pub(super) index: Arc<SetIndex>,
    pub(super) children: Arc<Children<TrackedField, LiveChild>>,
    pub(super) sets: Objects<TrackedFieldSet>,
    /// All `TrackedField`s.
    pub(super) tracked_fields: Objects<TrackedField>,
    /// State of the cache of `TrackedField`s.
    pub(super) tracked_fields_cache: CacheStatus,
    pub(super) targets: Arc<Targets>,
    pub(super) contact_points: Arc<ContactPointView<T>>,
    pub(super) metrics: SetMetrics,
    /// Time for which a checked child is not compared again unless it changes.
    pub(super) sync_period: Duration,
    /// Minimum time between two writes of a set's status, whose numbers change with every child.
    pub(super) status_interval: Duration,
    pub(super) states: Mutex<HashMap<ObjectKey, SetState>>,
    /// Obstacles that each set reports instead of its children.
    pub(super) reported: Mutex<HashMap<ObjectKey, ReportedObstacles>>,
}

/// State of a set between two reconciles.
#[derive(Default)]
pub(crate) struct SetState {
    /// Desired children, as of the last reconcile; `None` if the next reconcile must compare everything.
    plan: Option<Plan>,
    rejected: Rejections,
    /// Children created and deleted since the last Event about them.
    created: usize,
    deleted: usize,
    reported: Option<Instant>,
    /// Time since which the resources are not listed.
    listing_since: Option<Instant>,
    /// Identities that the adopted children track, as last planned. Only the name of a created child contains its
    /// identity.
    adopted: HashMap<ObjectKey, Identity>,
}

/// A target, with its children and its demand for a slot.
struct Planned {
    target: ObjectKey,
    known: Target,
    children: Vec<PlannedChild>,
    covered: usize,
    demand: Demand,
}

/// The `TrackedField` for a field of a target.
struct PlannedChild {
    key: ObjectKey,
    /// Child that the set has created and that this `TrackedField`, once adopted, replaces.
    replaces: Option<ObjectKey>,
    /// Index in `spec.fields`.
    field_index: usize,
    identity: Identity,
}

/// Results of the writes.
#[derive(Default)]
struct Written {
    created: usize,
    changed: usize,
    deleted: usize,
    /// Number of children that needed no write.
    matching: usize,
    /// Number of writes that a later reconcile makes.
    remaining: usize,
    /// Number of rejected writes of children that have changed meanwhile. The watch event of the change triggers a
    /// reconcile.
    stale: usize,
    /// Reason and message of a child that other clients keep changing, and the delay until it is corrected.
    contested: Option<(String, Duration)>,
    /// Failure that ends the reconcile; the runtime retries.
    error: Option<Error>,
}

/// Result of a write of one child.
enum WriteResult {
    Created,
    Changed,
    /// The child needs no write: it has fields that the set leaves to others.
    Matches,
    /// The write waits for a rate limit, which triggers a reconcile.
    Waits,
    Deleted,
}

impl<T: Transport> Controller for TrackedFieldSets<T> {
    type Kind = TrackedFieldSet;
    const KIND: &'static KindInfo = &KIND;
    const FIELD_MANAGER: &'static str = "quartermaster/trackedfieldset";

    async fn reconcile(&self, cx: &mut Context<TrackedFieldSet>) -> Result<Outcome> {
        // Writes that hang end before the runtime drops the reconcile, and the results of the others with it.
        let deadline = Instant::now() + self.targets.timeout * 5 / 6;
        let resolved = match self.select(cx).await {
            Ok(Continue(resolved)) => resolved,
            Ok(Break(outcome)) => return Ok(self.unplanned(cx, outcome)),
            Err(Error::WithOutcome { outcome, error }) => {
                return Err(error.with_outcome(self.unplanned(cx, *outcome)));
            }
            Err(error) => return Err(error),
        };
        let set = Arc::clone(&cx.object);
        let resource = ResourceName::from(&resolved.resource);
        self.children.synced().await;
        if let Some(state) = self.states().get_mut(&cx.key) {
            state.listing_since = None;
        }

        // A reconcile that ends early stores no plan, so the next one compares everything.
        let mut plan = self.plan(cx, &resource);
        let unchecked = self.children.owned_where(cx, |key, child| {
            let desired = plan.desired.get(key);
            child.terminating || desired.and_then(|it| it.checked) != Some(child.fingerprint)
        });
        let deletions = self.deletions(cx, &resolved, &unchecked, &plan).await;
        let leaving = deletions.due.len() + deletions.waiting;
        let check_after = deletions.check_after;
        let written = self
            .write(cx, &resource, &unchecked, &mut plan, deletions, deadline)
            .await?;
        let covered = plan.covered.values().sum();
        let counts = ChildCounts {
            current: plan.desired.len(),
            leaving: leaving.saturating_sub(written.deleted),
            covered,
            left_out: plan.left_out.len() * set.spec.fields.len(),
        };
        self.metrics.set(&cx.key, counts);
        let targets = self.index.target_count(&cx.key);
        let status = &mut cx.status;
        status.targets = count(targets);
        status.covered = count(covered);
        status.leaving = count(counts.leaving);
        status.left_out = count(plan.left_out.len());
        let report_after = self.report(cx, &written);
        let (outcome, retry_after) = self.outcome(cx, targets, &plan, &written);
        self.states().entry(cx.key.clone()).or_default().plan = Some(plan);
        let made = written.created + written.changed + written.deleted + written.matching;
        let stale_after = (written.stale > 0).then_some(RECHECK_INTERVAL);
        let delays = [check_after, report_after, retry_after, stale_after];
        let requeue = writes::requeue(made, written.remaining, delays);
        let outcome = outcome.requeue(requeue);
        match written.error {
            // A single failed request is not reported.
            Some(error) if outcome.reason == WRITE_FAILED && !cx.is_failing => Err(error),
            Some(error) => Err(error.with_outcome(outcome)),
            None => Ok(outcome),
        }
    }

    fn fill_status(&self, cx: &mut Context<TrackedFieldSet>) {
        let unserved = self.tracked_fields_cache.unavailable(&cx.key.namespace);
        let children = unserved.is_none().then(|| self.children.owned_count(cx));
        cx.status.children = children.and_then(count);
        if cx.object.is_suspended() {
            status::clear_counts(&mut cx.status);
        }
        if cx.status.targets.is_none() {
            // Without a plan, all children stay.
            let counts = ChildCounts {
                current: children.unwrap_or_default(),
                ..ChildCounts::default()
            };
            self.metrics.set(&cx.key, counts);
        }
    }

    fn status_interval(&self) -> Duration {
        self.status_interval
    }

    fn on_applied(&self, set: &Arc<TrackedFieldSet>, _is_listed: bool) {
        let is_changed = reported_changed(&mut self.reported(), set);
        if is_changed && let Some(owner) = Owner::of(set.as_ref()) {
            self.targets
                .trigger
                .wake_all(&self.children.keys_of(&owner));
        }
    }

    fn on_deleted(&self, set: &Arc<TrackedFieldSet>) {
        // A set that was terminating has woken its children before. Those of any other set are deleted by the garbage
        // collector, and until then their reports would only cause thousands of writes.
        self.reported().remove(&ObjectKey::of(set.as_ref()));
    }

    fn forget(&self, key: &ObjectKey) {
        let state = self.states().remove(key);
        let plan = state.and_then(|state| state.plan);
        for child in plan.iter().flat_map(|plan| plan.desired.keys()) {
            self.children.forget(child);
        }
        self.metrics.forget(key);
        if self.index.forget(key) {
            self.targets.end_idle_watches();
        }
    }
}

impl<T: Transport> TrackedFieldSets<T> {
    fn states(&self) -> MutexGuard<'_, HashMap<ObjectKey, SetState>> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reported(&self) -> MutexGuard<'_, HashMap<ObjectKey, ReportedObstacles>> {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that the operator watches the namespaces that the set names.
    fn check_scope(&self, set: &TrackedFieldSet) -> Result<(), Outcome> {
        let namespaces = set.spec.target.namespaces.clone().unwrap_or_default();
        let Targets {
            scope,
            no_cross_namespace_refs,
            ..
        } = &*self.targets;
        if namespaces.selector.is_some() {
            let advice = match scope {
                WatchScope::Namespaces(_) => {
                    "name the namespaces in spec.target.namespaces.names, because the operator watches only some \
                     (--watch-namespace)"
                        .to_owned()
                }
                WatchScope::Cluster if *no_cross_namespace_refs => {
                    format!("remove spec.target.namespaces, or run the operator without {NO_CROSS_NAMESPACE_REFS}")
                }
                WatchScope::Cluster => return Ok(()),
            };
            let message =
                format!("spec.target.namespaces.selector selects other namespaces: {advice}");
            return Err(Outcome::stalled(OUT_OF_SCOPE, message));
        }
        let mut named = namespaces.names;
        if named.is_empty() {
            named.extend(set.namespace());
        }
        named.iter().try_for_each(|namespace| {
            let reached = self.targets.reaches(&set.metadata, namespace);
            reached.map_err(|waiting| waiting.outcome())
        })
    }

    async fn resolve(&self, set: &TrackedFieldSet) -> Result<Resolved, TrackError> {
        let reference = set.spec.target.reference("", "");
        let Targets {
            resolver,
            client,
            timeout,
            ..
        } = &*self.targets;
        let epoch = self.targets.epoch(&reference);
        let resolved = resolver.resolve(client, &reference, epoch);
        // Half of the reconcile's own timeout, so that the reconcile has time to report a timeout of discovery.
        if let Ok(resolved) = tokio::time::timeout(*timeout / 2, resolved).await {
            return Ok(resolved?);
        }
        let message = "the apiserver's list of resources could not be read in time";
        let waiting = WaitingReason::TargetUnreadable(message.into());
        let error = Error::other(Class::Transient, waiting.reason(), message);
        Err(TrackError {
            waiting,
            error: Some(Box::new(error)),
        })
    }

    /// Selects the resources of a set. Returns the outcome instead if the set cannot be compared with its children.
    async fn select(
        &self,
        cx: &mut Context<TrackedFieldSet>,
    ) -> Result<ControlFlow<Outcome, Resolved>> {
        let set = Arc::clone(&cx.object);
        if let Err(message) = set.spec.check_size() {
            return Ok(Break(Outcome::failed(SPEC_INVALID, message)));
        }
        if let Err(outcome) = status::check(&set.spec).and_then(|()| self.check_scope(&set)) {
            return Ok(Break(outcome));
        }
        if let Some(why) = self.tracked_fields_cache.unavailable(&cx.key.namespace) {
            return Ok(Break(
                status::fields_not_served(&why).requeue(Requeue::Poll),
            ));
        }
        let resolved = match self.resolve(&set).await {
            Ok(resolved) => resolved,
            Err(TrackError { waiting, error }) => {
                return status::blocked(&waiting, error).map(Break);
            }
        };
        let resource = ResourceName::from(&resolved.resource);
        if let Grant::Missing(message) = self.targets.grants.of(&resource) {
            return Ok(Break(Outcome::failed(FORBIDDEN, message)));
        }
        let selection = match Selection::new(
            &set.spec.target,
            resource.clone(),
            resolved.namespaced,
            &cx.key.namespace,
        ) {
            Ok(selection) => selection,
            Err(error @ SelectionError::SelectorInvalid(_)) => {
                return Ok(Break(Outcome::failed(SPEC_INVALID, error.to_string())));
            }
            Err(error @ SelectionError::ClusterScoped(_)) => {
                // The resource may be recreated with the other scope.
                self.targets
                    .resolver
                    .forget(&set.spec.target.reference("", ""));
                let outcome = Outcome::failed(RESOURCE_MISMATCH, error.to_string());
                return Ok(Break(outcome.requeue(Requeue::Poll)));
            }
        };
        if matches!(selection.namespaces, SelectedNamespaces::Labelled(_))
            && let Some(sync) = &self.index.namespaces_sync
        {
            sync.synced().await;
            if let Some(why) = sync.denied() {
                let message = format!("the selected namespaces are unknown: {why}");
                return Ok(Break(
                    Outcome::failed(FORBIDDEN, message).requeue(Requeue::Poll),
                ));
            }
        }
        self.record_selection(cx).await?;
        let selected_by = serde_json::to_string(&set.spec.target).unwrap_or_default();
        let digest = short_digest(format!("{resolved:?} {selected_by}"));
        self.index.select(&cx.key, selection, &digest);
        self.targets.end_idle_watches();
        self.targets.ensure_watch(&resolved);
        if let Some(problem) = self.index.watch_problem(&cx.key) {
            return Ok(Break(
                status::watch_outcome(&resource, problem).requeue(Requeue::Poll),
            ));
        }
        if !self.index.is_listed(&cx.key) {
            // A restart or a relist makes no set unready.
            return Ok(Break(self.listing(cx, &resource, cx.owner.is_observed())));
        }
        if !list::list(&self.index, &self.targets.client, &resolved, &cx.key).await? {
            // The end of the list of another reconcile triggers this one. Until then, a set keeps the status of its spec.
            if cx.owner.is_observed() {
                let in_flight = Requeue::InFlight(status::LISTING_GRACE);
                return Ok(Break(Outcome::unchanged().requeue(in_flight)));
            }
            return Ok(Break(self.listing(cx, &resource, true)));
        }
        Ok(Continue(resolved))
    }

    /// Completes the outcome of a reconcile that compared no children.
    fn unplanned(&self, cx: &mut Context<TrackedFieldSet>, outcome: Outcome) -> Outcome {
        if outcome.progress != Progress::Unchanged {
            status::clear_counts(&mut cx.status);
        }
        let contact_point = &cx.object.spec.template.contact_point;
        let obstacle = self
            .contact_points
            .obstacle(&cx.key.namespace, contact_point, true);
        status::with_contact_point(outcome, obstacle.as_ref())
    }

    fn listing(
        &self,
        cx: &Context<TrackedFieldSet>,
        resource: &ResourceName,
        keeps_status: bool,
    ) -> Outcome {
        let mut states = self.states();
        let state = states.entry(cx.key.clone()).or_default();
        let since = *state.listing_since.get_or_insert_with(Instant::now);
        status::listing(keeps_status, resource, since.elapsed())
    }

    /// Records the selection and its start. After a crash, the set must not report resources that it selected before.
    async fn record_selection(&self, cx: &mut Context<TrackedFieldSet>) -> Result<()> {
        let TrackedFieldSetSpec { target, fields, .. } = &cx.object.spec;
        let text = serde_json::to_string(&(target, fields)).unwrap_or_default();
        let digest = short_digest(text);
        if cx.status.selection.as_ref() == Some(&digest) {
            return Ok(());
        }
        let since = match cx.status.selection {
            None => cx.object.metadata.creation_timestamp.clone(),
            Some(_) => Some(whole_seconds(Timestamp::now())),
        };
        let mut draft = cx.status.clone();
        (draft.selection, draft.since) = (Some(digest), since);
        // The draft may have a condition that is not written yet. Its Event follows the write at the end of a reconcile.
        let written = cx.object.status.clone().unwrap_or_default();
        cx.status = TrackedFieldSetStatus {
            selection: draft.selection.clone(),
            since: draft.since.clone(),
            ..written
        };
        cx.write_status().await?;
        cx.status = draft;
        Ok(())
    }

    /// Returns the desired children. Plans only targets that have changed since the last reconcile, but all targets
    /// after a change of the spec, a reconcile request or a complete list, and at each periodic reconcile.
    fn plan(&self, cx: &Context<TrackedFieldSet>, resource: &ResourceName) -> Plan {
        let revision = SpecRevision::of(cx.object.as_ref());
        let before = {
            let mut states = self.states();
            states.get_mut(&cx.key).and_then(|state| state.plan.take())
        };
        let changes = self.index.take_changes(&cx.key);
        let before = before.filter(|plan| {
            !changes.all && plan.revision == revision && plan.compared.elapsed() < self.sync_period
        });
        let adopted = {
            let mut states = self.states();
            let state = states.entry(cx.key.clone()).or_default();
            state
                .adopted
                .retain(|key, _| self.children.owned(cx, key).is_some());
            state.adopted.clone()
        };
        let slots = cx.object.spec.max_targets();
        if let Some(mut plan) = before {
            plan.desired
                .retain(|_, it| !changes.targets.contains(&it.target));
            for target in &changes.targets {
                plan.covered.remove(target);
                plan.left_out.remove(target);
            }
            let changed = changes.targets.into_iter();
            let changed = changed.filter_map(|key| Some((self.index.target(&cx.key, &key)?, key)));
            let planned: Vec<_> = changed
                .map(|(known, target)| self.planned(cx, resource, target, known, &adopted))
                .collect();
            let occupied = plan.desired.values().filter(|it| it.takes_slot).count();
            let slots = slots.saturating_sub(occupied);
            let demands: Vec<_> = planned.iter().map(|it| it.demand).collect();
            // The first targets by name get the free slots, so a free slot requires a plan of all targets.
            if plan.left_out.is_empty() || precedence::free_slots(&demands, slots) == 0 {
                self.fill_slots(cx, &mut plan, planned, slots);
                return plan;
            }
        }
        let targets = self.index.targets(&cx.key).into_iter();
        let planned: Vec<_> = targets
            .map(|(target, known)| self.planned(cx, resource, target, known, &adopted))
            .collect();
        let mut plan = Plan {
            revision,
            compared: Instant::now(),
            desired: HashMap::new(),
            covered: HashMap::new(),
            left_out: BTreeSet::new(),
            leaving: HashMap::new(),
        };
        self.fill_slots(cx, &mut plan, planned, slots);
        plan
    }

    /// Returns the children of a target. `adopted` has what each adopted child tracks: one that tracks something else has
    /// been edited, and is changed back.
    fn planned(
        &self,
        cx: &Context<TrackedFieldSet>,
        resource: &ResourceName,
        target: ObjectKey,
        known: Target,
        adopted: &HashMap<ObjectKey, Identity>,
    ) -> Planned {
        let spec = &cx.object.spec;
        let claimant = Claimant {
            key: &cx.key,
            contact_point: &spec.template.contact_point,
            seniority: Some(child::seniority(&cx.object.metadata)),
        };
        let seniority_of = |set: &ObjectKey| Some(child::seniority(&self.sets.get(set)?.metadata));
        let is_owned = |key: &ObjectKey| self.children.owned(cx, key).is_some();
        let reference = spec.target.reference(&target.namespace, &target.name);
        let (mut children, mut covered) = (Vec::new(), 0);
        for (field_index, field) in spec.fields.iter().enumerate() {
            let identity = child::identity_of(&cx.key.namespace, &reference, field);
            let derived = child::name(&cx.key.name, resource, &target, field);
            let derived = ObjectKey::new(&cx.key.namespace, &derived);
            let is_edited = |key: &ObjectKey| adopted.get(key).is_some_and(|it| *it != identity);
            let candidates = self.index.tracking(identity).into_iter();
            let candidates = candidates.filter(|(key, _)| !is_edited(key));
            let owns = |key: &ObjectKey, _: &Tracking| is_owned(key);
            let existing = claimant.existing(candidates, &derived, owns, seniority_of);
            // An adopted child that has been edited is changed back, and not replaced.
            let edited = || adopted.iter().find(|(_, it)| **it == identity);
            let (key, replaces) = match existing {
                Existing::Covered(_) => {
                    covered += 1;
                    continue;
                }
                Existing::Own(key) => (key, None),
                Existing::Adoptable(key) if edited().is_none() => (key, Some(derived)),
                Existing::Adoptable(_) | Existing::None => {
                    (edited().map_or(derived, |(key, _)| key.clone()), None)
                }
            };
            children.push(PlannedChild {
                key,
                replaces,
                field_index,
                identity,
            });
        }
        let demand = Demand::of(children.iter().map(|child| is_owned(&child.key)));
        Planned {
            target,
            known,
            children,
            covered,
            demand,
        }
    }

    /// Adds the children of the targets that get one of these slots.
    fn fill_slots(
        &self,
        cx: &Context<TrackedFieldSet>,
        plan: &mut Plan,
        planned: Vec<Planned>,
        slots: usize,
    ) {
        let demands: Vec<_> = planned.iter().map(|it| it.demand).collect();
        let left_out = precedence::left_out(&demands, slots);
        let (mut with_child, mut adopted) = (Vec::new(), Vec::new());
        for (planned, is_left_out) in planned.into_iter().zip(left_out) {
            let Planned { target, known, .. } = planned;
            if planned.covered > 0 {
                plan.covered.insert(target.clone(), planned.covered);
            }
            if is_left_out {
                plan.left_out.insert(target);
                continue;
            }
            for (at, child) in planned.children.into_iter().enumerate() {
                let PlannedChild {
                    key,
                    replaces,
                    field_index,
                    identity,
                } = child;
                let initial = match self.children.owned(cx, &key) {
                    // `initial` of an existing child never changes.
                    Some(child) => {
                        with_child.push((target.clone(), identity));
                        if !child::is_derived_name(&cx.key.name, &key.name) {
                            adopted.push((key.clone(), identity));
                        }
                        child.summary.initial
                    }
                    // An adopted TrackedField has already sent its first value.
                    None if self.index.has_tracked_field(&key) => Initial::Quiet,
                    None => initial(cx, &known, identity),
                };
                let desired = DesiredTrackedField {
                    target: target.clone(),
                    replaces,
                    field_index,
                    initial,
                    takes_slot: at == 0,
                    checked: None,
                    is_contested: false,
                };
                plan.desired.insert(key, desired);
            }
        }
        let with_child = with_child
            .iter()
            .map(|(target, identity)| (target, *identity));
        self.index.record_children(&cx.key, with_child);
        let mut states = self.states();
        let state = states.entry(cx.key.clone()).or_default();
        state.adopted.extend(adopted);
    }

    /// Sends one write, except a creation while the quota is exceeded.
    async fn perform(
        &self,
        cx: &Context<TrackedFieldSet>,
        write: &ChildWrite,
        is_quota_exceeded: &AtomicBool,
    ) -> Result<WriteResult> {
        let (target, child, applied) = match write {
            ChildWrite::Delete(PlannedDeletion { key, known }) => {
                return match self.children.delete(key, known).await {
                    Err(error) if !error.is_not_found() => Err(error),
                    _ => Ok(WriteResult::Deleted),
                };
            }
            ChildWrite::Create { .. } if is_quota_exceeded.load(Ordering::Relaxed) => {
                return Ok(WriteResult::Waits);
            }
            ChildWrite::Create { target, child } => {
                let desired = (**child).clone();
                let applied = self.children.create(cx, desired, child::quirks()).await;
                (target, child, applied)
            }
            ChildWrite::Change { target, child } => {
                let desired = (**child).clone();
                let applied = self.children.apply(cx, desired, child::quirks()).await;
                (target, child, applied)
            }
        };
        if let Err(error) = &applied {
            let is_quota = error.classify().1 == QUOTA_EXCEEDED;
            is_quota_exceeded.fetch_or(is_quota, Ordering::Relaxed);
        } else {
            let identity = child::identity(child);
            self.index.record_children(&cx.key, [(target, identity)]);
        }
        applied.map(|ensured| match ensured {
            Ensured::Created(_) => WriteResult::Created,
            Ensured::Kept(_) => WriteResult::Matches,
            Ensured::Waits(_) => WriteResult::Waits,
            _ => WriteResult::Changed,
        })
    }

    /// Sends these writes; returns the result of each, `None` if its answer did not arrive before the deadline.
    async fn send(
        &self,
        cx: &Context<TrackedFieldSet>,
        resource: &ResourceName,
        writes: Vec<ChildWrite>,
        deadline: Instant,
    ) -> Result<Vec<(ChildWrite, Option<Result<WriteResult>>)>> {
        let is_creation = |write: &&ChildWrite| matches!(write, ChildWrite::Create { .. });
        let created = writes.iter().filter(is_creation).count();
        if created > 0 {
            cx.confirm_owner().await?;
        }
        // The targets are read by one list, after the last creation.
        let reads = &self.targets.requests;
        let is_gathering = created > MAX_SINGLE_READS || (created > 0 && reads.gathers(resource));
        if is_gathering {
            reads.gather(resource);
        }
        let is_quota_exceeded = &AtomicBool::new(false);
        let results = writes.into_iter().map(|write| async move {
            let performed = self.perform(cx, &write, is_quota_exceeded);
            let result = timeout_at(deadline.into(), performed).await.ok();
            if is_gathering {
                reads.gather(resource);
            }
            (write, result)
        });
        Ok(stream::iter(results)
            .buffer_unordered(MAX_CONCURRENT_REQUESTS)
            .collect()
            .await)
    }

    /// Creates, changes and deletes children, up to the limit of one reconcile, until `deadline`. `unchecked` are the children that are
    /// not known to match.
    async fn write(
        &self,
        cx: &Context<TrackedFieldSet>,
        resource: &ResourceName,
        unchecked: &OwnedChildren,
        plan: &mut Plan,
        mut deletions: Deletions,
        deadline: Instant,
    ) -> Result<Written> {
        let now = Instant::now();
        let (waiting, quota_is_exceeded) = {
            let mut states = self.states();
            let rejected = &mut states.entry(cx.key.clone()).or_default().rejected;
            rejected.retain(
                |key| plan.desired.contains_key(key) || deletions.unsent.contains_key(key),
                |key| unchecked.contains_key(key),
            );
            (rejected.waiting(now), rejected.creations_wait(now))
        };
        let due = &mut deletions.due;
        due.retain(|deletion| !waiting.contains(&deletion.key));
        // A deletion may free a part of the quota.
        let creations_wait = quota_is_exceeded && due.is_empty();
        let (set, owner) = (&cx.object, &cx.owner);
        let chosen = writes::choose(
            set,
            owner,
            plan,
            unchecked,
            deletions,
            &waiting,
            creations_wait,
        );
        let mut written = Written {
            remaining: chosen.remaining,
            ..Written::default()
        };
        let results = self.send(cx, resource, chosen.writes, deadline).await?;
        let mut states = self.states();
        let state = states.entry(cx.key.clone()).or_default();
        for key in chosen.matching {
            state.rejected.forget(&key);
        }
        let mut quota = None;
        for (write, result) in results {
            let key = write.key();
            let Some(result) = result else {
                written.remaining += 1;
                written.error = Some(Error::other(
                    Class::Transient,
                    WRITE_FAILED,
                    "TrackedFields could not be written in time",
                ));
                continue;
            };
            match result {
                Ok(WriteResult::Waits) => {
                    if let Some(contested) = self.children.contested(&key) {
                        written.contested = Some(contested);
                        if let Some(desired) = plan.desired.get_mut(&key) {
                            desired.is_contested = true;
                        }
                    }
                }
                Ok(done) => {
                    match done {
                        WriteResult::Created => written.created += 1,
                        WriteResult::Deleted => written.deleted += 1,
                        WriteResult::Matches => written.matching += 1,
                        _ => written.changed += 1,
                    }
                    state.rejected.forget(&key);
                    let fingerprint = self.children.cached_fingerprint(&key);
                    if let Some(desired) = plan.desired.get_mut(&key) {
                        desired.checked = fingerprint;
                        desired.is_contested = false;
                    } else if let Some(fingerprint) = fingerprint {
                        plan.leaving.insert(key, fingerprint);
                    }
                }
                // The child has changed, so the next reconcile decides again.
                Err(error) if error.is_stale() => written.stale += 1,
                Err(error) => match error.classify() {
                    (Class::Transient | Class::Stale, _) => written.error = Some(error),
                    (_, reason) => {
                        let is_quota = reason == QUOTA_EXCEEDED;
                        let why = (reason, error.to_string());
                        if is_quota && matches!(write, ChildWrite::Create { .. }) {
                            quota = Some(why);
                        } else {
                            let is_deletion = matches!(write, ChildWrite::Delete(_));
                            state.rejected.reject(key, is_deletion, why, Instant::now());
                        }
                    }
                },
            }
        }
        match quota {
            Some(why) => state.rejected.reject_creations(why, Instant::now()),
            None if creations_wait && chosen.lacks_children => {}
            None => state.rejected.allow_creations(),
        }
        state.created += written.created;
        state.deleted += written.deleted;
        Ok(written)
    }

    /// Emits an Event about created and deleted children once no writes remain, at most one a minute. Returns the
    /// delay until a pending Event is due.
    fn report(&self, cx: &Context<TrackedFieldSet>, written: &Written) -> Option<Duration> {
        let mut states = self.states();
        let state = states.entry(cx.key.clone()).or_default();
        if state.created + state.deleted == 0 || written.remaining > 0 {
            return None;
        }
        let since = state.reported.map(|reported| reported.elapsed());
        if let Some(left) = since.and_then(|since| REPORT_INTERVAL.checked_sub(since)) {
            return Some(left);
        }
        let (created, deleted) = (
            std::mem::take(&mut state.created),
            std::mem::take(&mut state.deleted),
        );
        state.reported = Some(Instant::now());
        let note = format!("TrackedFields created: {created}, deleted: {deleted}");
        cx.event("Reconcile", "TrackedFieldsChanged", note);
        None
    }

    /// Returns the outcome, and when to retry rejected writes.
    fn outcome(
        &self,
        cx: &Context<TrackedFieldSet>,
        targets: usize,
        plan: &Plan,
        written: &Written,
    ) -> (Outcome, Option<Duration>) {
        let states = self.states();
        let rejected = states.get(&cx.key).map(|state| &state.rejected);
        let mut retry_after = rejected.and_then(|all| all.retry_after(Instant::now()));
        let spec = &cx.object.spec;
        let contact_point = &spec.template.contact_point;
        if let Some(waiting) = self
            .contact_points
            .obstacle(&cx.key.namespace, contact_point, true)
        {
            return (waiting.outcome(), retry_after);
        }
        if let Some(outcome) = rejected.and_then(status::rejected) {
            return (outcome, retry_after);
        }
        if let Some((message, delay)) = &written.contested {
            retry_after = Some(*delay);
            return (Outcome::failed(CONTESTED, message), retry_after);
        }
        if let Some(error) = &written.error {
            return (
                Outcome::failed(error.classify().1, error.to_string()),
                retry_after,
            );
        }
        let named = spec.target.namespaces.iter().flat_map(|it| &it.names);
        let missing: Vec<_> = named
            .filter(|name| self.index.lacks_namespace(name))
            .map(String::as_str)
            .collect();
        let remaining = written.remaining + written.stale;
        let outcome = status::matched(spec, targets, plan, &missing, remaining);
        (outcome, retry_after)
    }
}

/// Returns a number of the status.
fn count(number: usize) -> Option<i64> {
    i64::try_from(number).ok()
}

/// Records in `reported` which obstacles `set` reports instead of its children. Returns whether that has changed; the
/// children must then cease to report them, or begin to.
fn reported_changed(
    reported: &mut HashMap<ObjectKey, ReportedObstacles>,
    set: &TrackedFieldSet,
) -> bool {
    let now = ReportedObstacles::of(set);
    let before = reported.insert(ObjectKey::of(set), now.clone());
    before.unwrap_or_default() != now
}

/// Returns whether a new child sends its first entry: if the set says so, or if the target was created after the
/// selection of the set began, less than 24 hours ago. The entry is not sent if only the labels of the namespace began
/// to match, or if the set has had a child for the field before.
fn initial(cx: &Context<TrackedFieldSet>, known: &Target, identity: Identity) -> Initial {
    if cx.object.spec.initial.as_deref() == Some("Notify") {
        return Initial::Notify;
    }
    let since = cx.status.since.as_ref().map(|since| since.0);
    let is_new = known.created.is_some_and(|created| {
        let age = Timestamp::now().duration_since(created);
        Some(created) > since && Duration::try_from(age).unwrap_or_default() < REPORTED_AGE
    });
    if is_new && !known.from_namespace_change && !known.had_children.contains(&identity) {
        Initial::Notify
    } else {
        Initial::Quiet
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use serde_json::{Value, json};

    use super::*;

    /// A change of anything else must not wake thousands of children.
    #[test]
    fn children_are_woken_when_their_set_begins_or_ceases_to_report() {
        let set = |metadata: Value, spec: Value| -> TrackedFieldSet {
            let mut set = json!({
                "apiVersion": "tg.azamaton.ru/v1", "kind": "TrackedFieldSet",
                "metadata": { "namespace": "ops", "name": "all" },
                "spec": {
                    "target": { "kind": "Deployment" }, "fields": ["replicas"],
                    "template": { "contactPoint": "hook" },
                },
            });
            for (part, more) in [("metadata", metadata), ("spec", spec)] {
                let more = more.as_object().unwrap().clone();
                set[part].as_object_mut().unwrap().extend(more);
            }
            serde_json::from_value(set).unwrap()
        };
        let none = || json!({});
        let suspended = || set(none(), json!({ "suspend": true }));
        let terminating = json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" });
        let stalled = |reason: &str| {
            let conditions = ["Ready", "Stalled"].map(|type_| {
                json!({
                    "type": type_, "status": if type_ == "Ready" { "False" } else { "True" }, "reason": reason,
                    "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
                })
            });
            let mut set = set(none(), none());
            set.status = serde_json::from_value(json!({ "conditions": conditions })).unwrap();
            set
        };
        let mut reported = HashMap::new();
        for (set, is_woken) in [
            (suspended(), false),
            (set(none(), none()), true),
            (set(json!({ "resourceVersion": "2" }), none()), false),
            (set(none(), json!({ "maxTargets": 2 })), false),
            (suspended(), true),
            (suspended(), false),
            (set(none(), none()), true),
            (stalled("WhenInvalid"), true),
            (stalled("WhenInvalid"), false),
            (stalled("OutOfScope"), true),
            (set(none(), none()), true),
            (set(terminating.clone(), none()), true),
            (set(terminating, json!({ "suspend": true })), false),
        ] {
            assert_eq!(reported_changed(&mut reported, &set), is_woken, "{set:?}");
        }
    }
}
