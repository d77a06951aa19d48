//! A copy of all outboxes in memory: a queue of pending entries for each contact point. The outbox of a `TrackedField`
//! is its status, from which a restart rebuilds the queues.
//!
//! [`queues`] has the entries and chooses the next request; [`response`] interprets the response; [`worker`] waits and
//! sends, one request at a time for each contact point. The status of a `TrackedField` has its entries; the reconciles
//! enqueue those whose delivery is Pending, and record the outcomes. A queue sends its next request only after every
//! outcome of the last one is recorded, so a kill at any instant repeats at most the entries of one request. If the
//! apiserver keeps rejecting an object's status, the queue continues without that object until its outcomes are
//! recorded.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use qm_api::tracked_field::Entry;
use qm_api::{ContactPoint, TrackedField};
use qm_runtime::ObjectKey;
use qm_runtime::trigger::Trigger;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub use self::entries::PendingEntries;
use self::queues::Queues;
pub use self::state::{
    AcceptedTests, Circumstances, InitialState, ReceiverState, RequestedTest, RetryPolicy,
    TestMessage,
};
use super::Transport;
use crate::history::{DeliveryOutcome, Now};
use crate::metrics::DeliveryMetrics;

mod entries;
mod queues;
mod receiver;
mod refusals;
mod rejected_writes;
mod response;
mod state;
#[cfg(test)]
mod tests;
mod worker;

/// Queues of all contact points, which copy the outboxes that the statuses of `TrackedField`s are.
pub struct Outbox<T> {
    transport: T,
    queues: Mutex<Queues>,
    retry_policy: RetryPolicy,
    metrics: DeliveryMetrics,
    field_trigger: Trigger<TrackedField>,
    point_trigger: Trigger<ContactPoint>,
    draining: CancellationToken,
    progress: Notify,
    /// Cancelled when the workers must abort requests in flight.
    aborted: CancellationToken,
}

impl<T: Transport> Outbox<T> {
    /// Creates an outbox without queues. The triggers wake affected objects; once `draining` is cancelled, workers
    /// start no new request.
    pub fn new(
        transport: T,
        retry_policy: RetryPolicy,
        metrics: DeliveryMetrics,
        field_trigger: Trigger<TrackedField>,
        point_trigger: Trigger<ContactPoint>,
        draining: CancellationToken,
    ) -> Arc<Self> {
        let queues = Mutex::new(Queues::new(retry_policy));
        let (progress, aborted) = (Notify::new(), CancellationToken::new());
        let outbox = Arc::new(Self {
            transport,
            queues,
            retry_policy,
            metrics,
            field_trigger,
            point_trigger,
            draining,
            progress,
            aborted,
        });
        let weak = Arc::downgrade(&outbox);
        outbox
            .metrics
            .show_oldest_pending(move || weak.upgrade()?.queues().oldest_since());
        outbox
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the queue of `point`, because its status says ready.
    pub fn open(&self, point: &ObjectKey) {
        self.queues().open(point);
    }

    /// Closes the queue of `point` until its next configuration.
    pub fn close(&self, point: &ObjectKey) {
        self.queues().close(point);
    }

    /// Removes the queue of `point`, which was deleted.
    pub fn remove(&self, point: &ObjectKey) {
        self.queues().remove(point);
    }

    /// Retries the request of `point` now, or sends the entries that wait for a digest.
    pub fn retry_now(&self, point: &ObjectKey) {
        self.queues().retry_now(point, Instant::now());
    }

    /// Requests a test message for `point`, now, unless the last request was for this value of the annotation.
    pub fn request_test(&self, point: &ObjectKey, requested_at: &str) {
        self.queues()
            .request_test(point, requested_at, Instant::now());
    }

    /// Returns the last test message that a user requested of `point`.
    pub fn requested_test(&self, point: &ObjectKey) -> Option<RequestedTest> {
        self.queues().requested_test(point)
    }

    /// Returns the state of the receiver of `point`.
    pub fn receiver_state(&self, point: &ObjectKey) -> ReceiverState {
        self.queues().receiver_state(point)
    }

    /// Returns the test messages that receivers of `point` accepted.
    pub fn tests_accepted(&self, point: &ObjectKey) -> AcceptedTests {
        self.queues().tests_accepted(point)
    }

    /// Returns the cause if messages to `point` wait and have failed more than once in a row.
    pub fn failing(&self, point: &ObjectKey) -> Option<String> {
        self.queues().failing(point)
    }

    /// Enqueues the pending entries of an object in the queue of `point`, in place of its earlier ones.
    pub fn enqueue(&self, point: &ObjectKey, pending: PendingEntries) {
        let field = ObjectKey::of(pending.object.as_ref());
        self.change_pending(&field, Some(point), |queues| {
            queues.enqueue(point, pending, Instant::now())
        });
    }

    /// Replaces the queue's copy of `object` by the cached one if both have the same version.
    pub fn share_cached(&self, object: &Arc<TrackedField>) {
        self.queues().share_cached(object);
    }

    /// Removes the pending entries of `field`.
    pub fn dequeue(&self, field: &ObjectKey) {
        self.change_pending(field, None, |queues| queues.dequeue(field));
    }

    /// Removes the pending entries of `field` from the queue of a contact point other than `point`.
    pub fn dequeue_elsewhere(&self, field: &ObjectKey, point: &ObjectKey) {
        self.change_pending(field, None, |queues| queues.dequeue_elsewhere(field, point));
    }

    /// Forgets `field`: its pending entries, the outcomes that its status does not have, and its rejected writes.
    pub fn forget(&self, field: &ObjectKey) {
        let mut point = None;
        self.change_pending(field, None, |queues| {
            point = queues.forget_rejected_writes(field);
            queues.forget(field)
        });
        self.progress.notify_waiters();
        if let Some(point) = point {
            self.point_trigger.wake(&point);
        }
    }

    /// Applies `change` to the pending entries of `field`, in its queue or that of `point`. Wakes each contact point
    /// that starts or stops reporting waiting messages.
    fn change_pending(
        &self,
        field: &ObjectKey,
        point: Option<&ObjectKey>,
        change: impl FnOnce(&mut Queues) -> i64,
    ) {
        let mut queues = self.queues();
        let points: BTreeSet<_> = queues
            .queue_of(field)
            .into_iter()
            .chain(point)
            .cloned()
            .collect();
        let before: Vec<_> = points
            .into_iter()
            .map(|point| (queues.failing(&point).is_some(), point))
            .collect();
        let change = change(&mut queues);
        let changed = before
            .into_iter()
            .filter(|(was, point)| queues.failing(point).is_some() != *was);
        let changed: Vec<_> = changed.map(|(_, point)| point).collect();
        drop(queues);
        self.metrics.pending_changed(change);
        for point in &changed {
            self.point_trigger.wake(point);
        }
    }

    /// Returns whether entries of `field` are enqueued.
    pub fn has_pending(&self, field: &ObjectKey) -> bool {
        self.queues().has_pending(field)
    }

    /// Returns the outcomes of entries of `field` that its status does not have yet, by entry id.
    pub fn outcomes(&self, field: &ObjectKey) -> Vec<(String, DeliveryOutcome)> {
        self.queues().outcomes(field)
    }

    /// Removes outcomes that the status of `field` now has.
    pub fn recorded(&self, field: &ObjectKey, ids: &[(String, DeliveryOutcome)]) {
        let point = self.queues().recorded(field, ids);
        self.progress.notify_waiters();
        if let Some(point) = point {
            self.point_trigger.wake(&point);
        }
    }

    /// Records that the apiserver rejected the status of `field`, which sends to `point`, with this code and message.
    /// After five rejections the queues continue without `field`.
    pub fn write_rejected(
        &self,
        field: &ObjectKey,
        point: &ObjectKey,
        response: (u16, &str),
        circumstances: Circumstances,
    ) {
        let changed =
            self.queues()
                .write_rejected(field, point, response, circumstances, Instant::now());
        if !changed.is_empty() {
            self.progress.notify_waiters();
        }
        for point in &changed {
            self.point_trigger.wake(point);
        }
    }

    /// Returns the time until the next status write of `field`, if the apiserver rejected the last one and the next one
    /// is not due.
    pub fn rejected_write_due(
        &self,
        field: &ObjectKey,
        circumstances: &Circumstances,
    ) -> Option<Duration> {
        self.queues()
            .rejected_write_due(field, circumstances, Instant::now())
    }

    /// Returns the cause if the queues continue without `field`.
    pub fn left_out(&self, field: &ObjectKey) -> Option<String> {
        self.queues().left_out(field).map(str::to_owned)
    }

    /// Returns the `TrackedField`s that the queue of `point` continues without, with the causes.
    pub fn left_out_of(&self, point: &ObjectKey) -> Vec<(ObjectKey, String)> {
        self.queues().left_out_of(point)
    }

    /// Updates the ages of the entries of `field` from its status. `suspended`: the entries are suspended from now on.
    /// Returns the suspended time of each entry, by id.
    pub fn update_ages(
        &self,
        field: &ObjectKey,
        history: &[Entry],
        suspended: bool,
        now: Now,
    ) -> BTreeMap<String, Duration> {
        self.queues().update_ages(field, history, suspended, now)
    }

    /// Returns the age of a Pending entry of `field`, without the time during which it was suspended.
    pub fn waited(&self, field: &ObjectKey, id: &str) -> Duration {
        self.queues().waited(field, id, Instant::now())
    }

    /// Returns the ids of entries of `field` that are in flight or have an unrecorded outcome.
    pub fn in_flight(&self, field: &ObjectKey) -> HashSet<String> {
        self.queues().in_flight(field)
    }

    /// Waits until no request is in flight and every outcome is recorded. Dropping the future aborts the requests in
    /// flight.
    pub async fn drain(&self) {
        let _abort = self.aborted.clone().drop_guard();
        loop {
            let progress = self.progress.notified();
            if self.queues().is_idle() {
                return;
            }
            progress.await;
        }
    }
}
