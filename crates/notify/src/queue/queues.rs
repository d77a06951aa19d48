//! Pending entries of all queues, and the choice of the next request: no clock, no network.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, hash_map};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use qm_api::TrackedField;
use qm_api::tracked_field::Entry;
use qm_runtime::ObjectKey;
use qm_runtime::telemetry::traces::Origin;
use serde::de::Error as _;
use tokio::sync::Notify;

use super::contact_point_queue::{
    Batch, BatchEntry, ContactPointQueue, EntryState, FAILING_FROM, PendingEntries, QueueState,
};
use super::in_flight::InFlight;
use super::{AcceptedTests, Circumstances, InitialState, ReceiverState, RetryPolicy, TestMessage};
use crate::history::{self, Ages, DeliveryOutcome, Now};
use crate::{Endpoint, OutgoingEntry};

/// Maximum number of entries in a batch. A full outbox cannot merge entries in flight, so the number must stay well
/// below its limit of 500.
const MAX_BATCH: usize = 100;

/// Queues of all contact points.
pub struct Queues {
    pub(super) retry_policy: RetryPolicy,
    pub(super) by_contact_point: HashMap<ObjectKey, ContactPointQueue>,
    /// Queue that has the entries of each `TrackedField`.
    queue_by_field: HashMap<ObjectKey, ObjectKey>,
    pub(super) in_flight: InFlight,
    /// Ages of the Pending entries of each `TrackedField`.
    pub(super) ages: HashMap<ObjectKey, Ages>,
    /// Number of configurations so far.
    revisions: u64,
}

/// Request to a receiver.
pub struct DeliveryRequest {
    pub endpoint: Endpoint,
    /// Entries of the request; none for the test message.
    pub(super) entries: Vec<BatchEntry>,
    /// Id of the test message.
    pub test_id: String,
    /// Start of the attempt.
    pub(super) started: Instant,
    /// Whether the request uses no template of a `TrackedField`.
    pub plain: bool,
    pub(super) revision: u64,
}

impl DeliveryRequest {
    /// Returns whether this is the test message.
    pub fn is_test(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the ids of the entries.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| &*entry.id)
    }

    /// Returns the traces of the reconciles that enqueued the entries.
    pub fn origins(&self) -> impl Iterator<Item = &Origin> {
        self.entries
            .iter()
            .filter_map(|entry| entry.origin.as_ref())
    }

    /// Returns the entries with the context that their messages need.
    ///
    /// # Errors
    /// Errors of [`TrackedField::history`].
    pub fn outgoing_entries(&self) -> serde_json::Result<Vec<OutgoingEntry>> {
        let (mut outgoing, mut opened) = (Vec::with_capacity(self.entries.len()), HashMap::new());
        for BatchEntry {
            field, object, id, ..
        } in &self.entries
        {
            let (template, history) = match opened.entry(field) {
                hash_map::Entry::Occupied(known) => known.into_mut(),
                hash_map::Entry::Vacant(new) => new.insert((
                    object.spec.template.as_deref().map(Arc::<str>::from),
                    object.history()?,
                )),
            };
            let (entry, previous) = history::pending(history)
                .find(|(entry, _)| entry.id.as_deref() == Some(&**id))
                .ok_or_else(|| serde_json::Error::custom(format!("entry {id} is not pending")))?;
            outgoing.push(OutgoingEntry::of(object, template.clone(), entry, previous));
        }
        Ok(outgoing)
    }
}

/// Next step of a queue.
pub enum QueueStep {
    /// Send a request.
    Send,
    /// Wait for a change, at most until this instant.
    Wait(Option<Instant>),
    /// Report in the contact point's status that the receiver has stopped.
    Stopped,
}

/// Choice of the next request.
enum Choice {
    Entries(Batch),
    Test,
    Nothing,
    /// Entries wait, but since the last accepted message the receiver has rejected an entry of each `TrackedField`.
    NoneLeft,
}

impl Queues {
    /// Creates an empty set of queues.
    pub fn new(retry_policy: RetryPolicy) -> Self {
        Self {
            retry_policy,
            by_contact_point: HashMap::new(),
            queue_by_field: HashMap::new(),
            in_flight: InFlight::default(),
            ages: HashMap::new(),
            revisions: 0,
        }
    }

    /// Configures the queue of `point`. Returns the notification for a new worker, or `None` if the queue has one.
    pub fn configure(
        &mut self,
        point: &ObjectKey,
        endpoint: Endpoint,
        initial_state: InitialState,
        mut test: TestMessage,
    ) -> Option<Arc<Notify>> {
        self.abort(point);
        let queue = self.by_contact_point.entry(point.clone()).or_default();
        queue.endpoint = Some(endpoint);
        let known = queue.test.take();
        // The status may lag behind.
        test.accepted.count = known
            .as_ref()
            .map_or(0, |known| known.accepted.count)
            .max(test.accepted.count);
        if known.is_none_or(|known| known.configuration != test.configuration) {
            self.revisions += 1;
            queue.revision = self.revisions;
            queue.receiver = None;
            queue.state = match initial_state {
                InitialState::Test => QueueState::Test,
                InitialState::Open => QueueState::Open,
                InitialState::Probe => QueueState::Stopped,
            };
            queue.reset();
            queue.responses.resume(test.accepted);
        }
        queue.test = Some(test);
        queue.changed.notify_one();
        (!std::mem::replace(&mut queue.has_worker, true)).then(|| Arc::clone(&queue.changed))
    }

    pub fn open(&mut self, point: &ObjectKey) {
        let Some(queue) = self.by_contact_point.get_mut(point) else {
            return;
        };
        if queue.state == QueueState::Tested {
            queue.state = QueueState::Open;
            queue.changed.notify_one();
        }
    }

    /// Closes the queue. Knowledge of the receiver stays, because the same configuration may return.
    pub fn close(&mut self, point: &ObjectKey) {
        self.abort(point);
        let Some(queue) = self.by_contact_point.get_mut(point) else {
            return;
        };
        queue.endpoint = None;
        queue.batch = None;
        queue.changed.notify_one();
    }

    pub fn remove(&mut self, point: &ObjectKey) {
        self.close(point);
        if let Some(queue) = self.by_contact_point.get_mut(point) {
            self.revisions += 1;
            queue.revision = self.revisions;
            queue.state = QueueState::Closed;
            queue.receiver = None;
            queue.test = None;
            queue.reset();
        }
        self.drop_if_idle(point);
    }

    /// Removes the queue of a deleted contact point, unless entries are pending or a request is in flight.
    pub(super) fn drop_if_idle(&mut self, point: &ObjectKey) {
        let idle = |queue: &ContactPointQueue| {
            queue.test.is_none() && queue.pending.is_empty() && !queue.sending
        };
        if self.by_contact_point.get(point).is_some_and(idle)
            && let Some(queue) = self.by_contact_point.remove(point)
        {
            queue.changed.notify_one();
        }
    }

    pub fn retry_now(&mut self, point: &ObjectKey, now: Instant) {
        let Some(queue) = self.by_contact_point.get_mut(point) else {
            return;
        };
        queue.backoff = None;
        queue.not_before = queue.not_before.map(|_| now);
        if queue.pending.is_empty() {
            queue.responses.allow_test();
        }
        queue.changed.notify_one();
    }

    pub fn receiver_state(&self, point: &ObjectKey) -> ReceiverState {
        self.by_contact_point
            .get(point)
            .and_then(|queue| queue.receiver.clone())
            .unwrap_or(ReceiverState::Untried)
    }

    /// Returns the test messages that receivers of `point` accepted.
    pub fn tests_accepted(&self, point: &ObjectKey) -> AcceptedTests {
        let Some(queue) = self.by_contact_point.get(point) else {
            return AcceptedTests::default();
        };
        let count = queue.test.as_ref().map_or(0, |test| test.accepted.count);
        AcceptedTests {
            count,
            while_stopped: !queue.responses.may_test(),
        }
    }

    /// Returns why messages to `point` have failed more than once in a row, if any wait.
    pub fn failing(&self, point: &ObjectKey) -> Option<String> {
        let queue = self.by_contact_point.get(point)?;
        match &queue.receiver {
            Some(ReceiverState::Retrying(message))
                if queue.failures >= FAILING_FROM && self.has_messages(queue) =>
            {
                Some(message.clone())
            }
            _ => None,
        }
    }

    /// Returns whether messages wait to be sent, or are retried.
    pub(super) fn has_messages(&self, queue: &ContactPointQueue) -> bool {
        queue.batch.is_some()
            || queue
                .pending
                .keys()
                .any(|field| self.in_flight.left_out(field).is_none())
    }

    /// Returns the contact point whose queue holds entries of `field`.
    pub fn queue_of(&self, field: &ObjectKey) -> Option<&ObjectKey> {
        self.queue_by_field.get(field)
    }

    /// Returns the time since when the oldest unsuspended entry is pending.
    pub fn oldest_since(&self) -> Option<Timestamp> {
        self.by_contact_point
            .values()
            .flat_map(|queue| queue.pending.values())
            .filter_map(|pending| pending.since)
            .min()
    }

    /// Returns the change of the number of pending entries.
    pub fn enqueue(&mut self, point: &ObjectKey, pending: PendingEntries) -> i64 {
        let field = ObjectKey::of(pending.object.as_ref());
        let before = self.remove_pending(&field);
        let before = before.map_or(0, |(queue_key, waited)| {
            if queue_key != *point {
                self.forget(&queue_key, &field);
                self.drop_stale_batch(&queue_key);
                self.drop_if_idle(&queue_key);
            }
            waited
        });
        let count = pending.ids.len();
        if let Some(queue) = self.by_contact_point.get_mut(point) {
            queue.responses.renew(&field, &pending.ids);
        }
        if count > 0 {
            let queue = self.by_contact_point.entry(point.clone()).or_default();
            queue.update_batch(&field, &pending.object);
            queue.pending.insert(field.clone(), pending);
            self.queue_by_field.insert(field, point.clone());
        }
        self.drop_stale_batch(point);
        self.drop_if_idle(point);
        self.notify(point);
        signed(count) - signed(before)
    }

    /// Replaces the queue's copy of `object` by the cached one if both have the same version.
    pub fn cached(&mut self, object: &Arc<TrackedField>) {
        let field = ObjectKey::of(object.as_ref());
        let queue = self
            .queue_by_field
            .get(&field)
            .and_then(|queue_key| self.by_contact_point.get_mut(queue_key));
        let Some(queue) = queue else { return };
        if let Some(pending) = queue.pending.get_mut(&field)
            && pending.object.metadata == object.metadata
        {
            pending.object = Arc::clone(object);
            queue.update_batch(&field, object);
        }
    }

    /// Returns whether entries of `field` are enqueued.
    pub fn has_pending(&self, field: &ObjectKey) -> bool {
        self.queue_by_field.contains_key(field)
    }

    /// Forgets `field`, which was deleted; returns the contact point whose queue continued without it.
    pub fn no_longer_left_out(&mut self, field: &ObjectKey) -> Option<ObjectKey> {
        self.in_flight.write_accepted(field)
    }

    /// Returns the change of the number of pending entries.
    pub fn dequeue(&mut self, field: &ObjectKey, deleted: bool) -> i64 {
        let before = self.remove_pending(field);
        if deleted {
            self.ages.remove(field);
            for queue in self.by_contact_point.values_mut() {
                queue.responses.forget(field);
            }
            for queue in self.in_flight.forget(field) {
                self.notify(&queue);
            }
        }
        let Some((queue_key, waited)) = before else {
            return 0;
        };
        self.drop_stale_batch(&queue_key);
        self.drop_if_idle(&queue_key);
        -signed(waited)
    }

    /// Returns the `TrackedField`s of these entries that were deleted or moved away from `point`.
    pub(super) fn departed(&self, point: &ObjectKey, entries: &[BatchEntry]) -> Vec<ObjectKey> {
        let moved = |field: &ObjectKey| {
            self.queue_by_field
                .get(field)
                .is_some_and(|queue_key| queue_key != point)
        };
        let departed = entries
            .iter()
            .filter(|entry| !self.in_flight.contains(entry) || moved(&entry.field));
        departed.map(|entry| entry.field.clone()).collect()
    }

    pub(super) fn forget(&mut self, point: &ObjectKey, field: &ObjectKey) {
        if let Some(queue) = self.by_contact_point.get_mut(point) {
            queue.responses.forget(field);
        }
    }

    /// Updates the ages of the entries of `field` from its status. `held`: the entries are suspended from now on.
    /// Returns the suspended time of each entry, by id.
    pub fn observe(
        &mut self,
        field: &ObjectKey,
        history: &[Entry],
        held: bool,
        now: Now,
    ) -> BTreeMap<String, Duration> {
        let ages = self.ages.entry(field.clone()).or_default();
        ages.observe(history, held, now);
        let held_for = ages.held();
        if ages.is_empty() {
            self.ages.remove(field);
        }
        held_for
    }

    pub fn outcomes(&self, field: &ObjectKey) -> Vec<(String, DeliveryOutcome)> {
        self.in_flight.outcomes(field)
    }

    /// Removes recorded outcomes. Returns the contact point whose queue continued without `field`, and no longer does.
    pub fn recorded(
        &mut self,
        field: &ObjectKey,
        outcomes: &[(String, DeliveryOutcome)],
    ) -> Option<ObjectKey> {
        for queue in self.in_flight.recorded(field, outcomes) {
            self.notify(&queue);
        }
        if let Some(queue_key) = self.queue_by_field.get(field) {
            self.notify(queue_key);
        }
        self.in_flight.write_accepted(field)
    }

    /// Records that the apiserver rejected the status of `field`, which sends to `point`, with this code and message.
    /// Returns whether the queues continue without `field` from now on.
    pub fn write_rejected(
        &mut self,
        field: &ObjectKey,
        point: &ObjectKey,
        response: (u16, &str),
        circumstances: Circumstances,
        now: Instant,
    ) -> bool {
        let is_newly_left_out = self.in_flight.write_rejected(
            field,
            point,
            response,
            circumstances,
            self.retry_policy.backoff,
            now,
        );
        if is_newly_left_out {
            // The unrecorded outcome may belong to another contact point.
            for queue in self.by_contact_point.values() {
                queue.changed.notify_one();
            }
        }
        is_newly_left_out
    }

    /// Returns the time until the next status write of `field`, if the apiserver rejected the last one and the next one
    /// is not due.
    pub fn rejected_write_due(
        &self,
        field: &ObjectKey,
        circumstances: &Circumstances,
        now: Instant,
    ) -> Option<Duration> {
        self.in_flight.rejected_write_due(field, circumstances, now)
    }

    /// Returns the cause if the queues continue without `field`.
    pub fn left_out(&self, field: &ObjectKey) -> Option<String> {
        self.in_flight.left_out(field).map(str::to_owned)
    }

    /// Returns the `TrackedField`s that the queue of `point` continues without, with the causes.
    pub fn left_out_of(&self, point: &ObjectKey) -> Vec<(ObjectKey, String)> {
        let mut left_out = self.in_flight.left_out_of(point);
        left_out.sort();
        left_out
    }

    pub fn in_flight(&self, field: &ObjectKey) -> HashSet<String> {
        self.in_flight.ids(field)
    }

    /// Returns whether no request is in flight and every outcome is recorded.
    pub fn is_idle(&self) -> bool {
        let sending = self.by_contact_point.values().any(|queue| queue.sending);
        !sending && self.in_flight.all_recorded()
    }

    /// Returns whether `changed` belongs to the queue of `point`: a new queue of that name has a new worker.
    pub fn is_current_worker(&self, point: &ObjectKey, changed: &Arc<Notify>) -> bool {
        self.by_contact_point
            .get(point)
            .is_some_and(|queue| Arc::ptr_eq(&queue.changed, changed))
    }

    /// Returns the endpoint of the queue of `point`, with the revision of its configuration.
    pub fn endpoint(&self, point: &ObjectKey) -> Option<(Endpoint, u64)> {
        let queue = self.by_contact_point.get(point)?;
        Some((queue.endpoint.clone()?, queue.revision))
    }

    /// Returns whether the queue of `point` still has the configuration of that revision.
    pub fn is_configured(&self, point: &ObjectKey, revision: u64) -> bool {
        self.by_contact_point
            .get(point)
            .is_some_and(|queue| queue.revision == revision)
    }

    /// Returns the next step of the queue of `point` at `now`.
    pub fn next(&mut self, point: &ObjectKey, now: Instant) -> QueueStep {
        loop {
            let Some(queue) = self.by_contact_point.get(point) else {
                return QueueStep::Wait(None);
            };
            if queue.sending || queue.endpoint.is_none() || self.in_flight.has_unrecorded(point) {
                return QueueStep::Wait(None);
            }
            if let Some(instant) = queue.not_before.filter(|instant| *instant > now) {
                let has_request = match queue.state {
                    QueueState::Closed | QueueState::Tested => false,
                    QueueState::Test => true,
                    QueueState::Stopped if queue.responses.may_test() => true,
                    QueueState::Stopped | QueueState::Open => {
                        queue.batch.is_some() || self.sendable(queue).next().is_some()
                    }
                };
                return QueueStep::Wait(has_request.then_some(instant));
            }
            match self.choose(queue) {
                Choice::Entries(_) | Choice::Test => return QueueStep::Send,
                Choice::Nothing => return QueueStep::Wait(None),
                Choice::NoneLeft => {
                    let (alternates, retry_policy) = (self.alternates(point), self.retry_policy);
                    let Some(queue) = self.by_contact_point.get_mut(point) else {
                        return QueueStep::Wait(None);
                    };
                    if alternates {
                        queue.stop_silently();
                    } else if queue.stop(retry_policy, now) {
                        return QueueStep::Stopped;
                    }
                }
            }
        }
    }

    /// Returns the pending entries of each `TrackedField` without entries in flight.
    pub(super) fn sendable<'a>(
        &'a self,
        queue: &'a ContactPointQueue,
    ) -> impl Iterator<Item = (&'a ObjectKey, &'a PendingEntries)> {
        queue
            .pending
            .iter()
            .filter(|(field, _)| !self.in_flight.has(field))
    }

    /// Returns whether the test message alternates with the oldest entry, because only one `TrackedField` has pending
    /// entries.
    pub(super) fn alternates(&self, point: &ObjectKey) -> bool {
        let queue = self.by_contact_point.get(point);
        queue.is_some_and(|queue| queue.responses.may_test() && self.sendable(queue).count() == 1)
    }

    fn choose(&self, queue: &ContactPointQueue) -> Choice {
        match (&queue.batch, queue.state) {
            (_, QueueState::Closed | QueueState::Tested) => Choice::Nothing,
            (_, QueueState::Test) => Choice::Test,
            (Some(batch), QueueState::Open | QueueState::Stopped) => Choice::Entries(batch.clone()),
            (None, QueueState::Open) => self.choose_when_open(queue),
            (None, QueueState::Stopped) => self.choose_when_stopped(queue),
        }
    }

    /// Chooses the next request of an open queue: refused entries go alone, and only after an accepted message; all
    /// others go oldest first.
    fn choose_when_open(&self, queue: &ContactPointQueue) -> Choice {
        let (mut fresh, mut last, mut has_refused) = (Vec::new(), Vec::new(), false);
        for (field, pending) in self.sendable(queue) {
            let Some(head) = pending.ids.first() else {
                continue;
            };
            match queue.responses.entry_state(field, head) {
                EntryState::Fresh => fresh.push((field, pending)),
                EntryState::LastAttempt => last.push((field, pending)),
                EntryState::Refused => has_refused = true,
            }
        }
        let is_waiting = has_refused || !last.is_empty();
        let fresh = |count| Self::oldest(queue, &fresh, count);
        let last = || Self::oldest(queue, &last, 1);
        let entries = if queue.responses.is_rejecting() {
            fresh(1)
        } else if queue.responses.has_just_failed() {
            Some(fresh(MAX_BATCH))
                .filter(|entries| !entries.is_empty())
                .unwrap_or_else(last)
        } else {
            Some(last())
                .filter(|entries| !entries.is_empty())
                .unwrap_or_else(|| fresh(MAX_BATCH))
        };
        match entries.is_empty() {
            false => Choice::Entries(Batch {
                entries,
                plain: false,
            }),
            true if is_waiting => Choice::NoneLeft,
            true => Choice::Nothing,
        }
    }

    /// Chooses the next request of a stopped queue: the oldest entry of each `TrackedField` in turn, alone; the test
    /// message if no entry is pending, and alternately if only one `TrackedField` has entries.
    fn choose_when_stopped(&self, queue: &ContactPointQueue) -> Choice {
        let waiting: Vec<_> = self.sendable(queue).collect();
        match waiting.as_slice() {
            [] if queue.responses.may_test() => return Choice::Test,
            [] => return Choice::Nothing,
            [(field, _)] if queue.responses.test_is_next(field) => return Choice::Test,
            _ => {}
        }
        let next = waiting.into_iter().min_by_key(|(field, pending)| {
            (queue.responses.last_refusal(field), pending.ids.first())
        });
        let entries = Self::oldest(queue, next.as_slice(), 1);
        Choice::Entries(Batch {
            entries,
            plain: false,
        })
    }

    /// Returns the next request, if there is one and the queue still has the configuration of that revision. The
    /// entries of the request are in flight from now on.
    pub fn start_request(
        &mut self,
        point: &ObjectKey,
        revision: u64,
        now: Instant,
    ) -> Option<DeliveryRequest> {
        if !self.is_configured(point, revision) || !matches!(self.next(point, now), QueueStep::Send)
        {
            return None;
        }
        self.abort(point);
        let batch = match self.choose(self.by_contact_point.get(point)?) {
            Choice::Entries(batch) => Some(batch),
            Choice::Test => None,
            Choice::Nothing | Choice::NoneLeft => return None,
        };
        for entry in batch.iter().flat_map(|batch| &batch.entries) {
            self.in_flight.insert(point, entry);
        }
        let queue = self.by_contact_point.get_mut(point)?;
        let endpoint = queue.endpoint.clone()?;
        let (entries, plain) = batch
            .as_ref()
            .map(|batch| (batch.entries.clone(), batch.plain))
            .unwrap_or_default();
        let test_id = queue.test.as_ref().map(TestMessage::id).unwrap_or_default();
        let request = DeliveryRequest {
            endpoint,
            entries,
            test_id,
            started: now,
            plain,
            revision: queue.revision,
        };
        queue.batch = batch;
        queue.sending = true;
        Some(request)
    }

    /// Returns the oldest of these pending entries, up to the first that goes alone. Ids are `UUIDv7`, which sort by
    /// time.
    fn oldest(
        queue: &ContactPointQueue,
        pending: &[(&ObjectKey, &PendingEntries)],
        count: usize,
    ) -> Vec<BatchEntry> {
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
            && let Some(Reverse((id, index, at))) = heads.pop()
        {
            let (field, PendingEntries { object, origin, .. }) = pending[index];
            let goes_alone = queue.responses.goes_alone(field, id);
            if goes_alone && !oldest.is_empty() {
                break;
            }
            let (object, id) = (Arc::clone(object), Arc::clone(id));
            oldest.push(BatchEntry {
                field: field.clone(),
                object,
                id,
                origin: origin.clone(),
            });
            if goes_alone {
                break;
            }
            heads.extend(head(index, at + 1));
        }
        oldest
    }

    /// Removes entries without an outcome from the in-flight entries of `point`, unless a response is still to come.
    pub(super) fn abort(&mut self, point: &ObjectKey) {
        if self
            .by_contact_point
            .get(point)
            .is_some_and(|queue| queue.sending)
        {
            return;
        }
        for field in self.in_flight.abort(point) {
            // The other entries of the field may be in another queue now.
            if let Some(queue_key) = self.queue_by_field.get(&field) {
                self.notify(queue_key);
            }
        }
    }

    /// Removes the pending entries of `field`; returns their queue and number.
    fn remove_pending(&mut self, field: &ObjectKey) -> Option<(ObjectKey, usize)> {
        let queue_key = self.queue_by_field.remove(field)?;
        let queue = self.by_contact_point.get_mut(&queue_key)?;
        let waited = queue
            .pending
            .remove(field)
            .map_or(0, |pending| pending.ids.len());
        queue.changed.notify_one();
        Some((queue_key, waited))
    }

    /// Drops the batch to retry if one of its entries is no longer pending here: the request would differ.
    pub(super) fn drop_stale_batch(&mut self, point: &ObjectKey) {
        let Some(queue) = self.by_contact_point.get_mut(point) else {
            return;
        };
        if !queue.sending
            && queue
                .batch
                .as_ref()
                .is_some_and(|batch| !queue.is_pending(batch))
        {
            queue.batch = None;
            self.abort(point);
        }
    }

    /// Aborts the request of `point`, whose worker panicked: no response will come.
    pub fn abort_request(&mut self, point: &ObjectKey) {
        if let Some(queue) = self.by_contact_point.get_mut(point) {
            queue.sending = false;
        }
        self.abort(point);
        self.drop_if_idle(point);
    }

    pub(super) fn notify(&self, point: &ObjectKey) {
        if let Some(queue) = self.by_contact_point.get(point) {
            queue.changed.notify_one();
        }
    }
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
