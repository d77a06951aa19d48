//! `TrackedField`: records the changes of a field as entries, and sends the entries as messages.
//!
//! The [`tracker`] observes the changes, [`history`] computes the next status, the reconcile writes it, and the outbox
//! (`qm_notify::queue`) sends Pending entries. The reconcile is the only writer of a `TrackedField`.

use std::collections::HashSet;
use std::fmt::Display;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::time::Duration;

use qm_api::spec_size::StoredSpec as _;
use qm_api::tracked_field::{Entry, GROUP, History, Initial, Skipped, StoredHistory};
use qm_api::{ContactPoint, TrackedField, TrackedFieldSet};
use qm_core::kind::{DelegatedAccess, EVENTS, KindInfo, Permission};
use qm_notify::history::{FailedEntries, HistoryChanges, NewestState};
use qm_notify::metrics::{DeliveryMetrics, EntryFailure};
use qm_notify::queue::{Circumstances, Outbox, PendingEntries};
use qm_notify::{Transport, history};
use qm_runtime::availability::Availability;
use qm_runtime::controller::{Context, Controller};
use qm_runtime::error::{Class, Error, Result, WRITE_FAILED};
use qm_runtime::objects::Objects;
use qm_runtime::outcome::{EventPolicy, Outcome, Requeue};
use qm_runtime::watch::WatchProblem;
use qm_runtime::{ObjectKey, SpecRevision, write};
use tracing::debug;
use uuid::Uuid;

use self::contact_points::ContactPointView;
use self::follower::FollowIdentity;
use self::requests::{Answer, TrackError};
use self::targets::{FollowedTarget, Targets};
use self::waiting::WaitingReason;
use self::when::{ParsedWhen, ParsedWhens};

pub mod contact_points;
pub mod field;
pub(crate) mod follower;
mod followers;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
pub mod grants;
mod lookup;
pub mod requests;
pub mod resolver;
pub mod targets;
pub mod tracker;
pub mod waiting;
mod watch_event;
pub mod when;

/// Name of the controller in logs, metrics and `--controllers`.
pub const NAME: &str = "trackedfield";
pub const KIND: KindInfo = KindInfo::of::<TrackedField>(
    NAME,
    &["0b3989b04d8a36dd", "3e0ffed4494661a3"],
    DelegatedAccess::Targets,
    &[
        // `get`: to read the newest object after a conflict. `patch`: the annotation with the waiting reason.
        Permission::namespaced(
            GROUP,
            &["trackedfields"],
            &["get", "list", "patch", "watch"],
        ),
        Permission::namespaced(GROUP, &["trackedfields/status"], &["patch"]),
        EVENTS,
    ],
)
// TrackedFields are deleted first, so that nobody is notified of the other deletions.
.with_uninstall_rank(10);

pub(crate) struct TrackedFields<T> {
    /// Targets of all `TrackedField`s.
    pub(super) targets: Arc<Targets>,
    /// All sets, some of which own `TrackedField`s.
    pub(super) sets: Objects<TrackedFieldSet>,
    pub(super) contact_points: Arc<ContactPointView<T>>,
    /// Entries that wait to be sent.
    pub(super) outbox: Arc<Outbox<T>>,
    /// The parsed `spec.when` of each `TrackedField`.
    pub(super) whens: ParsedWhens,
    pub(super) metrics: DeliveryMetrics,
    /// Time after which the Event that reports an obstacle is emitted again.
    pub(super) renew_event: Duration,
    /// Name of the cluster in messages.
    pub(super) cluster: Option<String>,
    pub(super) availability: Availability,
}

/// Results of a reconcile that decide whether the object waits.
struct Findings<'a> {
    tracked: &'a Result<Option<FollowedTarget>, TrackError>,
    /// True if an answer about the target is awaited.
    is_requested: bool,
    point: Option<&'a ContactPoint>,
    when: Option<&'a ParsedWhen>,
}

/// Obstacle of a `TrackedField`, as far as known.
enum Obstacle {
    /// The target's state is not known yet, so the condition stays.
    Unknown,
    /// The obstacle is known; `None` if nothing waits.
    Known(Option<WaitingReason>),
}

/// Leaves the condition unchanged after a failure without an outcome.
fn keep_condition(error: Error) -> Error {
    match error {
        Error::WithOutcome { .. } => error,
        error => error.with_outcome(Outcome::unchanged()),
    }
}

/// Returns the UID of the target if its first values are not sent: the target existed before the object, or before the
/// spec named the target instead of the one that `history` is about.
fn quiet<'a>(
    object: &TrackedField,
    identity: &FollowIdentity,
    history: &[Entry],
    newest: Option<&'a NewestState>,
) -> Option<&'a str> {
    let NewestState {
        observation,
        created,
        existed,
        ..
    } = newest?;
    let created_before = object
        .metadata
        .creation_timestamp
        .as_ref()
        .is_some_and(|own| created.is_some_and(|created| created <= own.0));
    let last = history.last().and_then(|last| last.subject.as_ref());
    let is_renamed = last.is_some_and(|subject| *subject != identity.subject);
    let is_quiet =
        Initial::of(object) == Initial::Quiet && (created_before || (is_renamed && *existed));
    observation.uid.as_deref().filter(|_| is_quiet)
}

fn unreadable_history(error: impl Display) -> Error {
    Error::other(
        Class::Transient,
        WRITE_FAILED,
        format!("the stored history could not be read: {error}"),
    )
}

impl<T: Transport> TrackedFields<T> {
    fn circumstances(&self, object: &TrackedField) -> Circumstances {
        Circumstances {
            revision: SpecRevision::of(object),
            outages_ended: self.availability.outages_ended(),
        }
    }

    /// Returns the outcome of an object that `set` owns, or no set.
    fn outcome(&self, waiting: Option<&WaitingReason>, set: Option<&TrackedFieldSet>) -> Outcome {
        let mut outcome = Outcome::ready("");
        if let Some(waiting) = waiting {
            outcome = waiting.outcome();
            outcome.message += &waiting.advice_of(set);
        }
        outcome.event(EventPolicy::Renew(self.renew_event))
    }

    /// Brings the status up to date with observations and delivery outcomes, and returns the history. `ends_tracking`: the
    /// target is no longer followed afterwards.
    ///
    /// # Errors
    /// [`Error::Stale`] if the next reconcile needs a newer object.
    async fn record(
        &self,
        cx: &mut Context<TrackedField>,
        point: &ObjectKey,
        outcomes: &[(String, history::DeliveryOutcome)],
        suspended: bool,
        ends_tracking: bool,
    ) -> Result<History> {
        let key = cx.key.clone();
        let (identity, circumstances) = (
            FollowIdentity::of(&cx.object),
            self.circumstances(&cx.object),
        );
        let tracker = &self.targets.tracker;
        let (observations, newest) = if ends_tracking {
            tracker.last_pending(&key, &identity)
        } else {
            tracker.pending(&key, &identity)
        };
        let mut raced = false;
        // Entries of a request, also of one that the queue gives up below, may have reached the receiver under their IDs.
        let mut in_flight = HashSet::new();
        loop {
            in_flight.extend(self.outbox.in_flight(&key));
            let before = cx.object.history().map_err(unreadable_history)?;
            let is_there = |id: &String| before.iter().any(|entry| entry.id.as_ref() == Some(id));
            if !raced && !outcomes.iter().all(|(id, _)| is_there(id)) {
                // The operator sends only stored entries, so a status without a sent entry is an older version.
                raced = true;
                cx.reread().await?;
                continue;
            }
            let now = history::Now::read();
            let when = self.whens.of(&key, &cx.object.spec);
            let inputs = history::Inputs {
                subject: &identity.subject,
                observations: &observations.entries,
                newest: newest.as_ref(),
                outcomes,
                in_flight: &in_flight,
                suspended,
                when: when.as_deref().map(ParsedWhen::when),
                quiet: quiet(&cx.object, &identity, &before, newest.as_ref()),
                limit: cx.object.spec.notification.history_limit,
                suspended_for: &self.outbox.update_ages(&key, &before, suspended, now),
                now: now.wall,
            };
            let mut changes = history::next(&before, &inputs, || Uuid::now_v7().to_string());
            if changes.merged > 0 && self.outbox.has_pending(&key) {
                // An entry that is merged now must not be sent meanwhile, or its changes are sent twice.
                self.outbox.dequeue(&key);
                continue;
            }
            if changes.changed {
                cx.status = StoredHistory::try_from(&*changes.history).map_err(|error| {
                    Error::api("the status could not be written")(kube::Error::SerdeError(error))
                })?;
                match cx.write_status().await {
                    Ok(()) => {}
                    Err(error) if !raced && error.status().is_some_and(|it| it.code == 409) => {
                        debug!("conflict; will compute the history again");
                        raced = true;
                        cx.reread().await?;
                        continue;
                    }
                    Err(error) => {
                        cx.status = cx.object.status.clone().unwrap_or_default();
                        return Err(self.write_failed(&key, point, error, circumstances));
                    }
                }
            }
            self.outbox
                .update_ages(&key, &changes.history, suspended, history::Now::read());
            changes.merged += observations.merged;
            tracker.recorded(&key, &identity, &observations);
            if let Some(version) = changes.contradicted {
                tracker.contradict(&key, &identity, version);
            }
            self.emit_events(cx, &before, &changes);
            return Ok(changes.history);
        }
    }

    /// Records a rejected write of the history in the outbox. Once the queues continue without this object, the
    /// returned error has an outcome that says so.
    fn write_failed(
        &self,
        key: &ObjectKey,
        point: &ObjectKey,
        error: Error,
        circumstances: Circumstances,
    ) -> Error {
        if let Error::Api { source, .. } = &error
            && let Some((code, message)) =
                write::object_rejection(source, self.availability.is_in_outage())
        {
            self.metrics.status_write_rejected(code);
            self.outbox
                .write_rejected(key, point, (code, &message), circumstances);
            if let Some(why) = self.outbox.left_out(key) {
                let waiting = WaitingReason::WriteRejected(why);
                return error.with_outcome(self.outcome(Some(&waiting), None));
            }
        }
        error
    }

    /// Emits Events and counts metrics of the changes that were written. `before` is the history before the
    /// changes.
    fn emit_events(&self, cx: &Context<TrackedField>, before: &[Entry], changes: &HistoryChanges) {
        let FailedEntries { entries, expired } = &changes.failed;
        if let Some((last, others)) = entries.split_last() {
            let reason = last.reason.as_deref().unwrap_or_default();
            let value = last.value.as_deref().unwrap_or("(no value)");
            let note = match others.len() {
                0 => format!(
                    "failed to deliver the change {} {value}: {reason}",
                    last.action
                ),
                others => format!(
                    "failed to deliver the change {} {value} and {others} before it: {reason}",
                    last.action
                ),
            };
            cx.warning("Notify", "DeliveryFailed", note);
        }
        let refused = entries.len().saturating_sub(*expired);
        self.metrics
            .entries_failed(EntryFailure::Expired, *expired as u64);
        self.metrics
            .entries_failed(EntryFailure::Refused, refused as u64);
        if changes.quiet > 0 {
            self.metrics
                .entries_skipped(Skipped::Initial, changes.quiet as u64);
        }
        if changes.skipped > 0 {
            self.metrics
                .entries_skipped(Skipped::When, changes.skipped as u64);
        }
        self.metrics.when_failed(changes.when_errors as u64);
        if changes.merged > 0 {
            self.metrics.entries_merged(changes.merged as u64);
            // The Event appears once while a merged entry waits.
            if !before
                .iter()
                .any(|entry| entry.is_pending() && entry.merged.is_some())
            {
                let note = "merged waiting changes with their neighbours: the outbox is full";
                cx.warning("Merge", "EntriesMerged", note);
            }
        }
    }

    /// Returns the obstacle of the object. Obstacles to sending Pending entries come first.
    fn obstacle(
        &self,
        key: &ObjectKey,
        object: &TrackedField,
        history: &[Entry],
        findings: &Findings,
    ) -> Obstacle {
        let Findings {
            tracked,
            is_requested,
            point,
            when,
        } = *findings;
        let pending = history.iter().any(Entry::is_pending);
        let of_point = if object.spec.notification.suspend.unwrap_or_default() {
            Some(WaitingReason::Suspended)
        } else {
            let contact_point = &object.spec.notification.contact_point;
            self.contact_points
                .obstacle(&key.namespace, contact_point, pending)
        };
        if of_point.is_some() && pending {
            return Obstacle::Known(of_point);
        }
        let Targets {
            tracker, requests, ..
        } = &*self.targets;
        let is_unknown = tracker.exists(key).is_none();
        let failure = requests.failure(key, &FollowIdentity::of(object));
        let of_target = match tracked {
            Err(untracked) => Some(untracked.waiting.clone()),
            // The last failure counts until the next answer.
            Ok(_) if is_requested && failure.is_some() => failure,
            Ok(_) if is_requested && is_unknown => return Obstacle::Unknown,
            Ok(tracked) => tracked.as_ref().and_then(|it| {
                waiting::of_target(
                    tracker,
                    key,
                    it.watched_namespace.as_deref(),
                    &it.target,
                    object,
                )
            }),
        };
        if of_target.is_none() && is_unknown {
            return Obstacle::Unknown;
        }
        let cluster = self.cluster.as_deref();
        Obstacle::Known(
            of_target
                .or_else(|| waiting::of_when(when?.when(), history))
                .or_else(|| waiting::of_template(object, history, cluster))
                .or_else(|| waiting::of_body(object, history, point?, cluster))
                .or(of_point),
        )
    }

    fn requeue(&self, key: &ObjectKey, findings: &Findings) -> Requeue {
        let Findings {
            tracked,
            is_requested,
            ..
        } = *findings;
        let tracker = &self.targets.tracker;
        let period = self.targets.sync_period;
        let is_unserved = self
            .contact_points
            .cache
            .unavailable(&key.namespace)
            .is_some();
        match tracked {
            Err(TrackError { waiting, .. }) if waiting.needs_poll() => Requeue::Poll,
            Ok(_) if is_requested => Requeue::InFlight(period),
            Ok(Some(FollowedTarget {
                target,
                watched_namespace,
                ..
            })) if tracker.watch_problem(&target.resource, watched_namespace.as_deref())
                == Some(WatchProblem::NotServed) =>
            {
                Requeue::Poll
            }
            _ if is_unserved => Requeue::Poll,
            // The read has not resolved the contradiction yet.
            Ok(Some(_)) if self.targets.is_unread(key) => {
                Requeue::After(follower::CONTRADICTION_GRACE)
            }
            Ok(_) => Requeue::After(period.mul_f64(rand::random_range(1.0..1.2))),
            Err(_) => Requeue::After(period),
        }
    }

    async fn reconcile_target(&self, cx: &mut Context<TrackedField>) -> Result<Outcome> {
        let (key, object) = (cx.key.clone(), Arc::clone(&cx.object));
        if let Err(message) = object.spec.check_size() {
            // The history stays unchanged. The outbox forgets outcomes that the history lacks, because other entries of
            // the queue wait until all outcomes are recorded.
            self.targets.unfollow(&key);
            self.outbox.forget(&key);
            return Ok(self.outcome(Some(&WaitingReason::SpecInvalid(message)), None));
        }
        let point_key = ObjectKey::new(&key.namespace, &object.spec.notification.contact_point);
        let is_object_suspended = object.spec.notification.suspend.unwrap_or_default();
        // A queue that the spec excludes must send nothing more, even if the status cannot be written.
        if is_object_suspended {
            self.outbox.dequeue(&key);
        } else {
            self.outbox.dequeue_elsewhere(&key, &point_key);
        }
        // Each observed change wakes the object: a rejected write must not be repeated that often.
        let circumstances = self.circumstances(&object);
        if let Some(delay) = self.outbox.rejected_write_due(&key, &circumstances) {
            return Ok(Outcome::unchanged().requeue(Requeue::After(delay)));
        }
        let (answer, panic) = match self
            .targets
            .requests
            .take(&key, &FollowIdentity::of(&object))
        {
            Some(Err(panic)) => (None, Some(panic)),
            Some(Ok(answer)) => (Some(answer), None),
            None => (None, None),
        };
        let was_read = panic.is_some() || matches!(answer, Some(Ok(Answer::Read) | Err(_)));
        let tracked = match answer {
            Some(Err(untracked)) => Err(untracked),
            _ => self.targets.track(&object),
        };
        let point = self
            .contact_points
            .get(&point_key.namespace, &point_key.name);
        let suspended = is_object_suspended
            || point
                .as_ref()
                .is_some_and(|point| point.spec.suspend.unwrap_or_default());

        let outcomes = self.outbox.outcomes(&key);
        let ends_tracking = tracked
            .as_ref()
            .is_err_and(|untracked| untracked.waiting.ends_tracking());
        let history = self
            .record(cx, &point_key, &outcomes, suspended, ends_tracking)
            .await?;
        // The target is unfollowed only now, so that earlier observations, such as its deletion along with its CRD, are
        // recorded.
        if ends_tracking {
            self.targets.unfollow(&key);
        }
        // The request runs outside this reconcile: a target that hangs must not block outcomes and other objects.
        let is_outdated = was_read && self.targets.tracker.is_outdated(&key);
        let object = Arc::clone(&cx.object);
        let is_requested = match &tracked {
            Ok(tracked) if !was_read || is_outdated => {
                self.targets.request(&object, tracked.as_ref())
            }
            _ => false,
        };
        // The queue gets the entries before the outcomes are confirmed, so that it continues with the new status.
        if !is_object_suspended {
            let entries = PendingEntries::of(&object, &history);
            self.outbox.enqueue(&point_key, entries);
        }
        self.outbox.recorded(&key, &outcomes);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }

        let when = self.whens.of(&key, &object.spec);
        let findings = Findings {
            tracked: &tracked,
            is_requested,
            point: point.as_deref(),
            when: when.as_deref(),
        };
        let owner = self.targets.sets.owner(&key);
        let set = owner.and_then(|owner| self.sets.get(&owner));
        let set = set.filter(|set| waiting::is_reconciled(set));
        let is_reported_by_set = |waiting: &WaitingReason| {
            let set = set.as_ref();
            set.is_some_and(|set| waiting.is_reported_by(set, &object))
        };
        let outcome = match self.obstacle(&key, &object, &history, &findings) {
            Obstacle::Unknown => Outcome::unchanged(),
            Obstacle::Known(waiting) => {
                let waiting = waiting.filter(|waiting| !is_reported_by_set(waiting));
                self.outcome(waiting.as_ref(), set.as_deref())
            }
        };
        let outcome = outcome.requeue(self.requeue(&key, &findings));
        match tracked {
            Err(TrackError {
                error: Some(error), ..
            }) => Err(error.with_outcome(outcome)),
            _ => Ok(outcome),
        }
    }
}

impl<T: Transport> Controller for TrackedFields<T> {
    type Kind = TrackedField;

    const KIND: &'static KindInfo = &KIND;
    const FIELD_MANAGER: &'static str = "quartermaster/trackedfield";
    // The status has the history, which later steps rely on.
    const STATUS_CAN_WAIT: bool = false;

    async fn reconcile(&self, cx: &mut Context<TrackedField>) -> Result<Outcome> {
        self.reconcile_target(cx).await.map_err(keep_condition)
    }

    fn on_applied(&self, field: &Arc<TrackedField>, is_listed: bool) {
        self.targets.follow(field);
        if is_listed {
            self.targets.watch(field);
            self.outbox.share_cached(field);
        }
    }

    fn on_started_leading(&self) {
        let Targets { tracker, hub, .. } = &*self.targets;
        if !tracker.leads() {
            hub.relist(|relist| tracker.start_leading(relist));
        }
    }

    fn forget(&self, key: &ObjectKey) {
        self.targets.unfollow(key);
        self.targets.requests.forget(key);
        self.whens.forget(key);
        self.outbox.forget(key);
    }
}
