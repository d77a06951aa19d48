//! Queues of pending entries. No clock, no network.
//!
//! A queue has at most one request: it chooses the entries ([`Queues::next`]), sends them ([`Queues::start_request`]),
//! sends the same request again if it fails ([`Queues::on_response`]), and waits until the statuses have the outcomes
//! ([`Queues::recorded`]). While entries of a `TrackedField` are in flight, no queue sends other entries of that
//! `TrackedField`.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};
use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use qm_api::TrackedField;
use qm_api::tracked_field::Entry;
use qm_runtime::ObjectKey;
use qm_runtime::objects::in_namespace;
use tokio::sync::Notify;

use super::entries::{BatchEntry, DeliveryRequest, EntryKey, PendingEntries};
use super::receiver::{FAILING_FROM, QueueState, Receiver};
use super::refusals::{EntryState, Refusals};
use super::rejected_writes::RejectedWrites;
use super::{
    AcceptedTests, Circumstances, InitialState, ReceiverState, RequestedTest, RetryPolicy,
    TestMessage,
};
use crate::Endpoint;
use crate::history::{Ages, DeliveryOutcome, Now};

/// Maximum number of entries in a batch. Entries in flight cannot be merged, so the number must stay well below the 500
/// Pending entries that a `TrackedField` may have.
const MAX_BATCH: usize = 100;

/// Next step of a queue.
pub(crate) enum QueueStep {
    /// Send a request.
    Send,
    /// Wait for a change, at most until this instant.
    Wait(Option<Instant>),
    /// Report in the contact point's status that the receiver has stopped.
    Stopped,
}

/// Choice of the next request.
enum Choice {
    Send(Batch),
    Wait(Option<Instant>),
    /// Entries wait for a digest until this instant.
    WaitForDigest(Instant),
    /// Entries wait, but the receiver has refused the oldest entry of each `TrackedField`, and accepted no message since,
    /// or none since it last failed an entry.
    NoneLeft,
}

/// Queues of all contact points.
pub struct Queues {
    pub(super) retry_policy: RetryPolicy,
    pub(super) by_contact_point: HashMap<ObjectKey, ContactPointQueue>,
    /// Queue that has the pending entries of each `TrackedField`.
    queue_by_field: HashMap<ObjectKey, ObjectKey>,
    /// Queue that has entries of a `TrackedField` in flight: in its request, or with an unrecorded outcome.
    pub(super) in_flight: HashMap<ObjectKey, ObjectKey>,
    /// Contact point whose receiver last refused an entry of each `TrackedField`; the others have no refusals of that
    /// `TrackedField`.
    refused_by: HashMap<ObjectKey, ObjectKey>,
    /// Ages of the Pending entries of each `TrackedField`.
    pub(super) ages: HashMap<ObjectKey, Ages>,
    /// `TrackedField`s whose status the apiserver rejects.
    rejected: BTreeMap<ObjectKey, RejectedWrites>,
    /// Number of configurations so far.
    revisions: u64,
}

/// Queue of one contact point.
#[derive(Default)]
pub(super) struct ContactPointQueue {
    /// Receiver of the last configuration; none without a contact point.
    pub(super) receiver: Option<Receiver>,
    /// Pending entries of each `TrackedField`.
    pub(super) waiting: BTreeMap<ObjectKey, PendingEntries>,
    pub(super) request: RequestState,
    /// Outcomes of the last request that statuses do not have yet, by `TrackedField`. The queue waits for all of them,
    /// except for those of objects whose status the apiserver keeps rejecting.
    pub(super) unrecorded: BTreeMap<ObjectKey, Vec<(Arc<str>, DeliveryOutcome)>>,
    /// Wakes the worker; none before the first configuration.
    worker: Option<Arc<Notify>>,
    /// Instant until which the worker waits for a digest, unless something else wakes it.
    digest_until: Option<Instant>,
}

/// State of a queue's request.
#[derive(Default)]
pub(super) enum RequestState {
    #[default]
    Idle,
    /// The response arrives, whatever happens to the queue.
    InFlight(Batch),
    /// The queue sends the same request again, so that the receiver recognises it.
    Retrying(Batch),
}

/// Entries of one request; none for the test message.
#[derive(Clone, Default)]
pub(super) struct Batch {
    pub(super) entries: Vec<EntryKey>,
    /// True if the request uses the default text in place of each `TrackedField`'s template.
    pub(super) plain: bool,
    /// True if a requested test message goes first, alone. The entries, which the queue sends again afterwards, stay in
    /// flight meanwhile.
    pub(super) test_first: bool,
}

/// Contact points: their configurations, and what their reconciles report.
impl Queues {
    /// Creates an empty set of queues.
    pub fn new(retry_policy: RetryPolicy) -> Self {
        Self {
            retry_policy,
            by_contact_point: HashMap::new(),
            queue_by_field: HashMap::new(),
            in_flight: HashMap::new(),
            refused_by: HashMap::new(),
            ages: HashMap::new(),
            rejected: BTreeMap::new(),
            revisions: 0,
        }
    }

    /// Configures the queue of `point`. A request begins once the oldest waiting entry has the age `digest_delay`.
    /// Returns the notification for a new worker, or `None` if the queue has one.
    pub fn configure(
        &mut self,
        point: &ObjectKey,
        endpoint: Endpoint,
        digest_delay: Duration,
        initial_state: InitialState,
        mut test: TestMessage,
        now: Instant,
    ) -> Option<Arc<Notify>> {
        self.close(point);
        let queue = self.by_contact_point.entry(point.clone()).or_default();
        let known = queue.receiver.take();
        if let Some(known) = &known {
            // The status may lag behind.
            test.accepted.count = test.accepted.count.max(known.test.accepted.count);
        }
        let receiver = match known {
            Some(mut known) if known.test.configuration == test.configuration => {
                known.endpoint = Some(endpoint);
                known.digest_delay = digest_delay;
                known.test.accepted.count = test.accepted.count;
                known
            }
            _ => {
                self.revisions += 1;
                let (revision, retry_at) = (self.revisions, now + self.retry_policy.stopped);
                Receiver::new(
                    endpoint,
                    digest_delay,
                    revision,
                    initial_state,
                    test,
                    retry_at,
                )
            }
        };
        queue.receiver = Some(receiver);
        queue.wake_worker();
        if queue.worker.is_some() {
            return None;
        }
        queue.worker = Some(Arc::default());
        queue.worker.clone()
    }

    /// Opens the queue, because the contact point's status says ready.
    pub fn open(&mut self, point: &ObjectKey) {
        if let Some(receiver) = self.receiver_mut(point)
            && receiver.state == QueueState::Tested
        {
            receiver.state = QueueState::Open;
            self.wake_worker_of(point);
        }
    }

    /// Closes the queue until its next configuration.
    pub fn close(&mut self, point: &ObjectKey) {
        if let Some(receiver) = self.receiver_mut(point) {
            receiver.endpoint = None;
        }
        self.drop_stale_retry(point);
        self.wake_worker_of(point);
    }

    /// Forgets the receiver of a deleted contact point.
    pub fn remove(&mut self, point: &ObjectKey) {
        if let Some(queue) = self.by_contact_point.get_mut(point) {
            queue.receiver = None;
        }
        self.drop_stale_retry(point);
        self.wake_worker_of(point);
        self.drop_if_idle(point);
    }

    /// Retries the request of `point` now, or sends the entries that wait for a digest.
    pub fn retry_now(&mut self, point: &ObjectKey, now: Instant) {
        let Some(queue) = self.by_contact_point.get_mut(point) else {
            return;
        };
        let is_empty = queue.waiting.is_empty();
        let waiting = queue.waiting.values().flat_map(|pending| &pending.ids);
        let newest = waiting.max().cloned();
        if let Some(receiver) = &mut queue.receiver {
            receiver.retry_now(now);
            receiver.due_up_to = newest;
            if is_empty {
                // A user requested an attempt, and only the test message can make it.
                receiver.test.accepted.while_stopped = false;
            }
        }
        self.wake_worker_of(point);
    }

    /// Requests a test message for `point`, now, unless the last request was for this value of the annotation.
    pub fn request_test(&mut self, point: &ObjectKey, requested_at: &str, now: Instant) {
        let Some(receiver) = self.receiver_mut(point) else {
            return;
        };
        let known = receiver.requested_test.as_ref();
        if known.is_some_and(|known| known.requested_at == requested_at) {
            return;
        }
        receiver.requested_test = Some(RequestedTest {
            requested_at: requested_at.to_owned(),
            answer: None,
        });
        receiver.retry_now(now);
        self.wake_worker_of(point);
    }

    /// Returns the last test message that a user requested of `point`.
    pub fn requested_test(&self, point: &ObjectKey) -> Option<RequestedTest> {
        self.receiver(point)?.requested_test.clone()
    }

    /// Returns the endpoint of the queue of `point`, with the revision of its configuration.
    pub fn endpoint(&self, point: &ObjectKey) -> Option<(Endpoint, u64)> {
        let receiver = self.receiver(point)?;
        Some((receiver.endpoint.clone()?, receiver.revision))
    }

    /// Returns whether the queue of `point` still has the configuration of that revision.
    pub(crate) fn is_configured(&self, point: &ObjectKey, revision: u64) -> bool {
        self.receiver(point)
            .is_some_and(|receiver| receiver.revision == revision)
    }

    /// Returns whether `changed` belongs to the current queue of `point`: a new queue of that name has another worker.
    pub(crate) fn is_current_worker(&self, point: &ObjectKey, changed: &Arc<Notify>) -> bool {
        let queue = self.by_contact_point.get(point);
        let worker = queue.and_then(|queue| queue.worker.as_ref());
        worker.is_some_and(|worker| Arc::ptr_eq(worker, changed))
    }

    /// Returns the state of the receiver of `point`.
    pub fn receiver_state(&self, point: &ObjectKey) -> ReceiverState {
        self.receiver(point)
            .map_or(ReceiverState::Untried, |receiver| receiver.reported.clone())
    }

    /// Returns the test messages that receivers of `point` accepted.
    pub fn tests_accepted(&self, point: &ObjectKey) -> AcceptedTests {
        self.receiver(point)
            .map_or_else(AcceptedTests::default, |receiver| receiver.test.accepted)
    }

    /// Returns the cause if messages to `point` wait and have failed more than once in a row.
    pub fn failing(&self, point: &ObjectKey) -> Option<String> {
        let queue = self.by_contact_point.get(point)?;
        match queue.receiver.as_ref()? {
            Receiver {
                reported: ReceiverState::Retrying(message),
                failures: FAILING_FROM..,
                ..
            } if self.has_messages(queue) => Some(message.clone()),
            _ => None,
        }
    }

    /// Returns whether messages wait to be sent, or are being sent.
    pub(super) fn has_messages(&self, queue: &ContactPointQueue) -> bool {
        !queue.request.entries().is_empty()
            || queue.waiting.keys().any(|field| !self.is_left_out(field))
    }

    pub(super) fn receiver(&self, point: &ObjectKey) -> Option<&Receiver> {
        self.by_contact_point.get(point)?.receiver.as_ref()
    }

    pub(super) fn receiver_mut(&mut self, point: &ObjectKey) -> Option<&mut Receiver> {
        self.by_contact_point.get_mut(point)?.receiver.as_mut()
    }
}

/// `TrackedField`s: their pending entries, and the outcomes that their reconciles record.
impl Queues {
    /// Enqueues the pending entries of an object in the queue of `point`, in place of its earlier ones. Returns the
    /// change of the number of pending entries.
    pub fn enqueue(&mut self, point: &ObjectKey, pending: PendingEntries, now: Instant) -> i64 {
        let field = ObjectKey::of(pending.object.as_ref());
        let moved = self.dequeue_elsewhere(&field, point);
        let before = self.remove_pending(&field).map_or(0, |(_, count)| count);
        let count = pending.ids.len();
        if let Some(receiver) = self.receiver_mut(point) {
            receiver.refusals.retain(&field, &pending.ids);
        }
        if count > 0 {
            let queue = self.by_contact_point.entry(point.clone()).or_default();
            queue.waiting.insert(field.clone(), pending);
            self.queue_by_field.insert(field.clone(), point.clone());
        }
        self.drop_stale_retry(point);
        self.drop_if_idle(point);
        self.wake_worker_for(point, &field, now);
        moved + signed(count) - signed(before)
    }

    /// Replaces the queue's copy of `object` by the cached one if both have the same version.
    pub fn share_cached(&mut self, object: &Arc<TrackedField>) {
        let field = ObjectKey::of(object.as_ref());
        let queue = self
            .queue_by_field
            .get(&field)
            .and_then(|point| self.by_contact_point.get_mut(point));
        if let Some(pending) = queue.and_then(|queue| queue.waiting.get_mut(&field))
            && pending.object.metadata == object.metadata
        {
            pending.object = Arc::clone(object);
        }
    }

    /// Removes the pending entries of `field`. Returns the change of the number of pending entries.
    pub fn dequeue(&mut self, field: &ObjectKey) -> i64 {
        let Some((point, count)) = self.remove_pending(field) else {
            return 0;
        };
        self.drop_stale_retry(&point);
        self.drop_if_idle(&point);
        -signed(count)
    }

    /// Removes the pending entries of `field` from the queue of a contact point other than `point`, and forgets the
    /// refusals of that contact point. Returns the change of the number of pending entries.
    pub fn dequeue_elsewhere(&mut self, field: &ObjectKey, point: &ObjectKey) -> i64 {
        let former = self.refused_by.get(field).filter(|former| *former != point);
        if let Some(former) = former.cloned() {
            self.forget_refusals(&former, field);
        }
        if self.queue_of(field).is_none_or(|queue| queue == point) {
            return 0;
        }
        self.dequeue(field)
    }

    /// Forgets `field`: its pending entries, and the outcomes that its status does not have. Returns the change of the
    /// number of pending entries.
    pub fn forget(&mut self, field: &ObjectKey) -> i64 {
        self.ages.remove(field);
        if let Some(point) = self.refused_by.get(field).cloned() {
            self.forget_refusals(&point, field);
        }
        if let Some(point) = self.in_flight.remove(field)
            && let Some(queue) = self.by_contact_point.get_mut(&point)
        {
            queue.unrecorded.remove(field);
            queue.wake_worker();
            self.drop_if_idle(&point);
        }
        self.dequeue(field)
    }

    /// Removes the pending entries of `field`; returns their queue and number.
    fn remove_pending(&mut self, field: &ObjectKey) -> Option<(ObjectKey, usize)> {
        let point = self.queue_by_field.remove(field)?;
        let queue = self.by_contact_point.get_mut(&point)?;
        let pending = queue.waiting.remove(field)?;
        // No digest is due earlier without these entries.
        if queue.digest_until.is_none() {
            queue.wake_worker();
        }
        Some((point, pending.ids.len()))
    }

    /// Returns whether entries of `field` are enqueued.
    pub fn has_pending(&self, field: &ObjectKey) -> bool {
        self.queue_by_field.contains_key(field)
    }

    /// Returns the contact point whose queue holds entries of `field`.
    pub(crate) fn queue_of(&self, field: &ObjectKey) -> Option<&ObjectKey> {
        self.queue_by_field.get(field)
    }

    /// Returns the time since which the oldest unsuspended entry has been pending.
    pub(crate) fn oldest_since(&self) -> Option<Timestamp> {
        self.by_contact_point
            .values()
            .flat_map(|queue| queue.waiting.values())
            .filter_map(|pending| pending.since)
            .min()
    }

    /// Returns the age of a Pending entry of `field`, zero if the entry is unknown.
    pub(super) fn waited(&self, field: &ObjectKey, id: &str, now: Instant) -> Duration {
        self.ages
            .get(field)
            .map_or(Duration::ZERO, |ages| ages.waited(id, now))
    }

    /// Updates the ages of the entries of `field` from its status. `suspended`: the entries are suspended from now on.
    /// Returns the suspended time of each entry, by id.
    pub fn update_ages(
        &mut self,
        field: &ObjectKey,
        history: &[Entry],
        suspended: bool,
        now: Now,
    ) -> BTreeMap<String, Duration> {
        let ages = self.ages.entry(field.clone()).or_default();
        ages.update(history, suspended, now);
        let suspended_for = ages.suspended();
        if ages.is_empty() {
            self.ages.remove(field);
        }
        suspended_for
    }

    /// Returns the queue that has entries of `field` in flight.
    fn in_flight_queue(&self, field: &ObjectKey) -> Option<&ContactPointQueue> {
        self.by_contact_point.get(self.in_flight.get(field)?)
    }

    /// Returns the ids of entries of `field` that are in flight or, once the response has arrived, those whose outcomes
    /// are unrecorded.
    pub fn in_flight(&self, field: &ObjectKey) -> HashSet<String> {
        let Some(queue) = self.in_flight_queue(field) else {
            return HashSet::new();
        };
        if let Some(outcomes) = queue.unrecorded.get(field) {
            return outcomes.iter().map(|(id, _)| id.to_string()).collect();
        }
        let entries = queue.request.entries().iter();
        let of_field = entries.filter(|entry| entry.field == *field);
        of_field.map(|entry| entry.id.to_string()).collect()
    }

    /// Returns the outcomes of entries of `field` that its status does not have yet, by entry id.
    pub fn outcomes(&self, field: &ObjectKey) -> Vec<(String, DeliveryOutcome)> {
        let queue = self.in_flight_queue(field);
        let outcomes = queue.and_then(|queue| queue.unrecorded.get(field));
        let outcomes = outcomes.into_iter().flatten();
        outcomes
            .map(|(id, outcome)| (id.to_string(), outcome.clone()))
            .collect()
    }

    /// Removes recorded outcomes. Returns the contact point whose queue continued without `field`, and no longer does.
    pub fn recorded(
        &mut self,
        field: &ObjectKey,
        recorded: &[(String, DeliveryOutcome)],
    ) -> Option<ObjectKey> {
        if let Some(point) = self.in_flight.get(field).cloned()
            && let Some(queue) = self.by_contact_point.get_mut(&point)
            && let Some(outcomes) = queue.unrecorded.get_mut(field)
        {
            outcomes.retain(|(id, _)| recorded.iter().all(|(other, _)| **other != **id));
            if outcomes.is_empty() {
                queue.unrecorded.remove(field);
                self.in_flight.remove(field);
            }
            self.wake_worker_of(&point);
            self.drop_if_idle(&point);
            // The other entries of the field may be in another queue now.
            if let Some(point) = self.queue_by_field.get(field) {
                self.wake_worker_of(point);
            }
        }
        self.forget_rejected_writes(field)
    }

    /// Records that the apiserver rejected the status of `field`, which sends to `point`, with this code and message.
    /// Returns the contact points whose status changes, because the queues continue without `field` from now on, or for
    /// another cause or with another contact point than before.
    pub fn write_rejected(
        &mut self,
        field: &ObjectKey,
        point: &ObjectKey,
        response: (u16, &str),
        circumstances: Circumstances,
        now: Instant,
    ) -> Vec<ObjectKey> {
        let known = self.rejected.remove(field);
        let former = known
            .as_ref()
            .filter(|known| known.left_out().is_some() && known.point != *point)
            .map(|known| known.point.clone());
        let backoff = self.retry_policy.backoff;
        let (writes, is_new) =
            RejectedWrites::add(known, point, response, circumstances, backoff, now);
        self.rejected.insert(field.clone(), writes);
        if !is_new {
            return Vec::new();
        }
        // The unrecorded outcome may belong to another contact point.
        if let Some(queue) = self.in_flight_queue(field) {
            queue.wake_worker();
        }
        former.into_iter().chain([point.clone()]).collect()
    }

    /// Returns the time until the next status write of `field`, if the apiserver rejected the last one and the next one
    /// is not due.
    pub fn rejected_write_due(
        &self,
        field: &ObjectKey,
        circumstances: &Circumstances,
        now: Instant,
    ) -> Option<Duration> {
        self.rejected.get(field)?.due(circumstances, now)
    }

    /// Forgets the rejected writes of `field`, whose status was written, or which was deleted. Returns the contact
    /// point whose queue continued without it.
    pub(crate) fn forget_rejected_writes(&mut self, field: &ObjectKey) -> Option<ObjectKey> {
        let writes = self.rejected.remove(field)?;
        writes.left_out().is_some().then_some(writes.point)
    }

    /// Returns the cause if the queues continue without `field`.
    pub fn left_out(&self, field: &ObjectKey) -> Option<&str> {
        self.rejected.get(field)?.left_out()
    }

    fn is_left_out(&self, field: &ObjectKey) -> bool {
        self.left_out(field).is_some()
    }

    /// Returns the `TrackedField`s that the queue of `point` continues without, with the causes.
    pub fn left_out_of(&self, point: &ObjectKey) -> Vec<(ObjectKey, String)> {
        // A contact point gets entries from its own namespace only.
        let of_point = in_namespace(&self.rejected, Some(&*point.namespace))
            .filter(|(_, writes)| writes.point == *point);
        of_point
            .filter_map(|(field, writes)| Some((field.clone(), writes.left_out()?.to_owned())))
            .collect()
    }

    /// Returns whether no request is in flight and every outcome is recorded.
    pub fn is_idle(&self) -> bool {
        self.by_contact_point.values().all(|queue| {
            !matches!(queue.request, RequestState::InFlight(_)) && !self.is_recording(queue)
        })
    }

    /// Returns whether the queue waits until statuses have the outcomes of its last request.
    fn is_recording(&self, queue: &ContactPointQueue) -> bool {
        queue
            .unrecorded
            .keys()
            .any(|field| !self.is_left_out(field))
    }
}

/// Requests and workers.
impl Queues {
    /// Drops the request to retry if the queue was closed or the request would differ, because one of its entries is no
    /// longer pending here.
    pub(super) fn drop_stale_retry(&mut self, point: &ObjectKey) {
        let is_stale = |queue: &ContactPointQueue| match &queue.request {
            RequestState::Retrying(batch) => queue.endpoint().is_none() || !queue.is_pending(batch),
            RequestState::Idle | RequestState::InFlight(_) => false,
        };
        if self.by_contact_point.get(point).is_some_and(is_stale) {
            self.set_request(point, RequestState::Idle);
        }
    }

    /// Replaces the request of `point`. Entries without an outcome that the `next` request lacks are no longer in
    /// flight.
    pub(super) fn set_request(&mut self, point: &ObjectKey, next: RequestState) {
        let Some(queue) = self.by_contact_point.get_mut(point) else {
            return;
        };
        let former = mem::replace(&mut queue.request, next);
        let (RequestState::InFlight(former) | RequestState::Retrying(former)) = former else {
            return;
        };
        let mut released = Vec::new();
        for EntryKey { field, .. } in former.entries {
            let is_kept = queue.unrecorded.contains_key(&field)
                || queue
                    .request
                    .entries()
                    .iter()
                    .any(|next| next.field == field);
            if !is_kept && self.in_flight.get(&field) == Some(point) {
                self.in_flight.remove(&field);
                released.push(field);
            }
        }
        for field in released {
            // The other entries of the field may be in another queue now.
            if let Some(point) = self.queue_by_field.get(&field) {
                self.wake_worker_of(point);
            }
        }
    }

    /// Records that the receiver of `point` has refused an entry of `field`.
    pub(super) fn record_refused(&mut self, point: &ObjectKey, field: &ObjectKey) {
        let former = self.refused_by.insert(field.clone(), point.clone());
        if let Some(former) = former.filter(|former| former != point) {
            self.forget_refusals(&former, field);
        }
    }

    pub(super) fn forget_refusals(&mut self, point: &ObjectKey, field: &ObjectKey) {
        if self.refused_by.get(field) == Some(point) {
            self.refused_by.remove(field);
        }
        if let Some(receiver) = self.receiver_mut(point) {
            receiver.refusals.forget(field);
        }
    }

    /// Removes the queue of a deleted contact point, unless it has entries or a request.
    pub(super) fn drop_if_idle(&mut self, point: &ObjectKey) {
        let is_idle = |queue: &ContactPointQueue| {
            queue.receiver.is_none()
                && queue.waiting.is_empty()
                && queue.unrecorded.is_empty()
                && matches!(queue.request, RequestState::Idle)
        };
        if self.by_contact_point.get(point).is_some_and(is_idle)
            && let Some(queue) = self.by_contact_point.remove(point)
        {
            queue.wake_worker();
        }
    }

    pub(super) fn wake_worker_of(&self, point: &ObjectKey) {
        if let Some(queue) = self.by_contact_point.get(point) {
            queue.wake_worker();
        }
    }

    /// Wakes the worker of `point` for the pending entries of `field`, if there are any. A worker that waits for a
    /// digest is woken only if they make it due earlier: each choice visits all entries of the queue.
    fn wake_worker_for(&self, point: &ObjectKey, field: &ObjectKey, now: Instant) {
        let Some(queue) = self.by_contact_point.get(point) else {
            return;
        };
        let Some(head) = queue
            .waiting
            .get(field)
            .and_then(|pending| pending.ids.first())
        else {
            return;
        };
        let is_due_earlier = |(until, receiver): (Instant, &Receiver)| {
            now + self.digest_wait(receiver, field, head, now) < until
        };
        let digest = queue.digest_until.zip(queue.receiver.as_ref());
        if digest.is_none_or(is_due_earlier) {
            queue.wake_worker();
        }
    }
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// The next request.
impl Queues {
    /// Returns the next step of the queue of `point` at `now`.
    pub fn next(&mut self, point: &ObjectKey, now: Instant) -> QueueStep {
        loop {
            let choice = self.choose(point, now);
            if let Some(queue) = self.by_contact_point.get_mut(point) {
                queue.digest_until = match choice {
                    Choice::WaitForDigest(until) => Some(until),
                    _ => None,
                };
            }
            match choice {
                Choice::Send(_) => return QueueStep::Send,
                Choice::Wait(until) => return QueueStep::Wait(until),
                Choice::WaitForDigest(until) => return QueueStep::Wait(Some(until)),
                Choice::NoneLeft => {
                    if self.stop_or_alternate(point, now) {
                        return QueueStep::Stopped;
                    }
                }
            }
        }
    }

    fn choose(&self, point: &ObjectKey, now: Instant) -> Choice {
        let Some((queue, receiver)) = self
            .by_contact_point
            .get(point)
            .and_then(|queue| Some((queue, queue.receiver.as_ref()?)))
            .filter(|(_, receiver)| receiver.endpoint.is_some())
        else {
            return Choice::Wait(None);
        };
        if self.is_recording(queue) {
            return Choice::Wait(None);
        }
        let due = receiver.not_before.filter(|instant| *instant > now);
        match (&queue.request, receiver.state) {
            (RequestState::InFlight(_), _) | (_, QueueState::Tested) => Choice::Wait(None),
            _ if due.is_some() => Choice::Wait(due),
            (request, _) if receiver.has_test_request() => Choice::Send(Batch {
                test_first: true,
                ..request.batch_to_retry().cloned().unwrap_or_default()
            }),
            (RequestState::Retrying(batch), _) => Choice::Send(batch.clone()),
            (RequestState::Idle, QueueState::Testing) => Choice::Send(Batch::default()),
            (RequestState::Idle, QueueState::Open) => match self.digest_due(queue, receiver, now) {
                Some(due) => Choice::WaitForDigest(due),
                None => self.choose_when_open(queue, receiver),
            },
            (RequestState::Idle, QueueState::Stopped) => {
                self.choose_when_stopped(queue, receiver, now)
            }
        }
    }

    /// Returns the instant until which the entries of an open queue wait for a digest; `None` if they wait no longer.
    /// Entries that were sent before do not wait.
    fn digest_due(
        &self,
        queue: &ContactPointQueue,
        receiver: &Receiver,
        now: Instant,
    ) -> Option<Instant> {
        if receiver.digest_delay.is_zero() || receiver.failures > 0 {
            return None;
        }
        let waits = self.sendable(queue).filter_map(|(field, pending)| {
            let head = pending.ids.first()?;
            Some(self.digest_wait(receiver, field, head, now))
        });
        let left = waits.min()?;
        (!left.is_zero()).then(|| now + left)
    }

    /// Returns how long the oldest entry `head` of `field` still waits for a digest; zero if the entry waits no longer.
    fn digest_wait(
        &self,
        receiver: &Receiver,
        field: &ObjectKey,
        head: &Arc<str>,
        now: Instant,
    ) -> Duration {
        let refusals = &receiver.refusals;
        let is_due = receiver.due_up_to.as_ref().is_some_and(|due| head <= due)
            || refusals.goes_alone(field, head)
            || refusals.entry_state(field, head) != EntryState::Fresh;
        if is_due {
            return Duration::ZERO;
        }
        receiver
            .digest_delay
            .saturating_sub(self.waited(field, head, now))
    }

    /// Chooses the next request of an open queue: refused entries go alone, and only after an accepted message, of which
    /// each may fail one entry; all others go oldest first.
    fn choose_when_open(&self, queue: &ContactPointQueue, receiver: &Receiver) -> Choice {
        let refusals = &receiver.refusals;
        let (mut fresh, mut last, mut has_refused) = (Vec::new(), Vec::new(), false);
        for (field, pending) in self.sendable(queue) {
            let Some(head) = pending.ids.first() else {
                continue;
            };
            match refusals.entry_state(field, head) {
                EntryState::Fresh => fresh.push((field, pending)),
                EntryState::LastAttempt => last.push((field, pending)),
                EntryState::Refused => has_refused = true,
            }
        }
        let entries = if refusals.is_rejecting() {
            oldest(refusals, &fresh, 1)
        } else if !last.is_empty() && !refusals.has_just_failed() {
            oldest(refusals, &last, 1)
        } else {
            oldest(refusals, &fresh, MAX_BATCH)
        };
        match entries.is_empty() {
            false => Choice::Send(Batch::of(entries)),
            true if has_refused || !last.is_empty() => Choice::NoneLeft,
            true => Choice::Wait(None),
        }
    }

    /// Chooses the next request of a stopped queue: the oldest entry of each `TrackedField` in turn, alone; the test
    /// message if no entry is pending, and alternately if only one `TrackedField` has entries.
    fn choose_when_stopped(
        &self,
        queue: &ContactPointQueue,
        receiver: &Receiver,
        now: Instant,
    ) -> Choice {
        let refusals = &receiver.refusals;
        let waiting: Vec<_> = self.sendable(queue).collect();
        let is_test = match waiting.as_slice() {
            [] if !receiver.may_test() => return Choice::Wait(None),
            [] if receiver.test_not_before > Some(now) => {
                return Choice::Wait(receiver.test_not_before);
            }
            [] => true,
            [(field, _)] => self.alternates(queue, receiver) && refusals.refused_since_test(field),
            _ => false,
        };
        if is_test {
            return Choice::Send(Batch::default());
        }
        let next = waiting
            .into_iter()
            .min_by_key(|(field, pending)| (refusals.last_refusal(field), pending.ids.first()));
        Choice::Send(Batch::of(oldest(refusals, next.as_slice(), 1)))
    }

    /// Returns the pending entries of each `TrackedField` that has none in flight, neither in another queue nor with an
    /// unrecorded outcome.
    fn sendable<'a>(
        &'a self,
        queue: &'a ContactPointQueue,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a PendingEntries)> {
        queue
            .waiting
            .iter()
            .filter(|(field, _)| !self.in_flight.contains_key(*field))
    }

    /// Returns whether a stopped queue sends the test message and the entries of its only `TrackedField` in turn.
    fn alternates(&self, queue: &ContactPointQueue, receiver: &Receiver) -> bool {
        receiver.may_test() && self.sendable(queue).count() == 1
    }

    /// Stops the receiver of `point`; returns whether the contact point's status changes.
    pub(super) fn stop(&mut self, point: &ObjectKey, now: Instant) -> bool {
        let retry_at = now + self.retry_policy.stopped;
        self.receiver_mut(point)
            .is_some_and(|receiver| receiver.stop(retry_at))
    }

    /// Stops the receiver of `point` after it refused an entry; returns whether the contact point's status changes. If
    /// the queue [alternates](Self::alternates), the test message goes next, at once, and shows whether the receiver
    /// accepts anything; until then the stop is not reported.
    pub(super) fn stop_or_alternate(&mut self, point: &ObjectKey, now: Instant) -> bool {
        let (queue, receiver) = (self.by_contact_point.get(point), self.receiver(point));
        let alternates = queue
            .zip(receiver)
            .is_some_and(|(queue, receiver)| self.alternates(queue, receiver));
        if !alternates {
            return self.stop(point, now);
        }
        if let Some(receiver) = self.receiver_mut(point) {
            receiver.stop_silently();
        }
        false
    }

    /// Returns the next request, if there is one and the queue still has the configuration of that revision. The
    /// entries of the request are in flight from now on.
    pub fn start_request(
        &mut self,
        point: &ObjectKey,
        revision: u64,
        now: Instant,
    ) -> Option<DeliveryRequest> {
        let Choice::Send(batch) = self.choose(point, now) else {
            return None;
        };
        let queue = self.by_contact_point.get_mut(point)?;
        let receiver = queue.receiver.as_ref()?;
        if receiver.revision != revision {
            return None;
        }
        let entry = |key: &EntryKey| {
            let PendingEntries { object, origin, .. } = queue.waiting.get(&key.field)?;
            Some(BatchEntry {
                key: key.clone(),
                object: Arc::clone(object),
                origin: origin.clone(),
            })
        };
        let request = DeliveryRequest {
            endpoint: receiver.endpoint.clone()?,
            entries: batch.sent().iter().map(entry).collect::<Option<_>>()?,
            test_id: receiver.test.id(),
            started: now,
            plain: batch.plain,
            revision,
        };
        for entry in &batch.entries {
            self.in_flight.insert(entry.field.clone(), point.clone());
        }
        queue.request = RequestState::InFlight(batch);
        Some(request)
    }
}

impl RequestState {
    fn entries(&self) -> &[EntryKey] {
        match self {
            Self::Idle => &[],
            Self::InFlight(batch) | Self::Retrying(batch) => &batch.entries,
        }
    }

    /// Returns the batch to send again.
    pub(super) fn batch_to_retry(&self) -> Option<&Batch> {
        match self {
            Self::Retrying(batch) => Some(batch),
            Self::Idle | Self::InFlight(_) => None,
        }
    }
}

impl Batch {
    pub(super) fn of(entries: Vec<EntryKey>) -> Self {
        Self {
            entries,
            ..Self::default()
        }
    }

    /// Returns the entries that the next request carries; none for the test message.
    fn sent(&self) -> &[EntryKey] {
        if self.test_first { &[] } else { &self.entries }
    }
}

impl ContactPointQueue {
    /// Returns the endpoint, if the queue may send.
    fn endpoint(&self) -> Option<&Endpoint> {
        self.receiver.as_ref()?.endpoint.as_ref()
    }

    /// Returns the entries of the request in flight, to send them again; none for the test message alone, which may be
    /// replaced.
    pub(super) fn in_flight(&self) -> Option<Batch> {
        match &self.request {
            RequestState::InFlight(batch) if !batch.entries.is_empty() => Some(Batch {
                test_first: false,
                ..batch.clone()
            }),
            _ => None,
        }
    }

    fn wake_worker(&self) {
        if let Some(worker) = &self.worker {
            worker.notify_one();
        }
    }

    /// Returns whether every entry of the batch is still pending.
    fn is_pending(&self, batch: &Batch) -> bool {
        let is_pending = |EntryKey { field, id }: &EntryKey| {
            self.waiting
                .get(field)
                .is_some_and(|pending| pending.ids.contains(id))
        };
        batch.entries.iter().all(is_pending)
    }
}

/// Returns the oldest of these pending entries, up to the first that goes alone. Ids are `UUIDv7`, so they sort by
/// time.
fn oldest(
    refusals: &Refusals,
    pending: &[(&ObjectKey, &PendingEntries)],
    count: usize,
) -> Vec<EntryKey> {
    let head = |object: usize, at: usize| {
        pending[object]
            .1
            .ids
            .get(at)
            .map(|id| Reverse((id, object, at)))
    };
    let mut heads: BinaryHeap<_> = (0..pending.len())
        .filter_map(|object| head(object, 0))
        .collect();
    let mut oldest = Vec::new();
    while oldest.len() < count
        && let Some(Reverse((id, object, at))) = heads.pop()
    {
        let (field, _) = pending[object];
        let goes_alone = refusals.goes_alone(field, id);
        if goes_alone && !oldest.is_empty() {
            break;
        }
        let (field, id) = (field.clone(), Arc::clone(id));
        oldest.push(EntryKey { field, id });
        if goes_alone {
            break;
        }
        heads.extend(head(object, at + 1));
    }
    oldest
}
