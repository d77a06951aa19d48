//! The next request of a queue.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::Instant;

use qm_runtime::ObjectKey;

use super::entries::{BatchEntry, DeliveryRequest, EntryKey, PendingEntries};
use super::queues::{Batch, ContactPointQueue, Queues, RequestState};
use super::receiver::{QueueState, Receiver};
use super::refusals::{EntryState, Refusals};

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
    /// Entries wait, but since the last accepted message the receiver has refused an entry of each `TrackedField`.
    NoneLeft,
}

impl Queues {
    /// Returns the next step of the queue of `point` at `now`.
    pub fn next(&mut self, point: &ObjectKey, now: Instant) -> QueueStep {
        loop {
            match self.choose(point, now) {
                Choice::Send(_) => return QueueStep::Send,
                Choice::Wait(until) => return QueueStep::Wait(until),
                Choice::NoneLeft => {
                    if self.stop(point, true, now) {
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
                ..request.retry().cloned().unwrap_or_default()
            }),
            (RequestState::Retrying(batch), _) => Choice::Send(batch.clone()),
            (RequestState::Idle, QueueState::Testing) => Choice::Send(Batch::default()),
            (RequestState::Idle, QueueState::Open) => match self.digest_due(queue, receiver, now) {
                Some(due) => Choice::Wait(Some(due)),
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
        let (delay, refusals) = (receiver.digest_delay, &receiver.refusals);
        if delay.is_zero() || receiver.failures > 0 {
            return None;
        }
        let mut oldest = None;
        for (field, pending) in self.sendable(queue) {
            let Some(head) = pending.ids.first() else {
                continue;
            };
            let is_due = receiver.due_up_to.as_ref().is_some_and(|due| head <= due)
                || refusals.goes_alone(field, head)
                || refusals.entry_state(field, head) != EntryState::Fresh;
            if is_due {
                return None;
            }
            let age = self.ages.get(field).map(|ages| ages.waited(head, now));
            oldest = oldest.max(Some(age.unwrap_or_default()));
        }
        let left = delay.saturating_sub(oldest?);
        (!left.is_zero()).then(|| now + left)
    }

    /// Chooses the next request of an open queue: refused entries go alone, and only after an accepted message; all
    /// others go oldest first.
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
        } else if !last.is_empty() && (fresh.is_empty() || !refusals.has_just_failed()) {
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
            [(field, _)] => receiver.may_test() && refusals.refused_since_test(field),
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

    /// Stops the receiver of `point`; returns whether the contact point's status changes. A stop that `may_alternate`
    /// is not reported if only one `TrackedField` has pending entries: the test message goes next, at once, and shows
    /// whether the receiver accepts anything.
    pub(super) fn stop(&mut self, point: &ObjectKey, may_alternate: bool, now: Instant) -> bool {
        let alternates = may_alternate
            && self.receiver(point).is_some_and(Receiver::may_test)
            && self
                .by_contact_point
                .get(point)
                .is_some_and(|queue| self.sendable(queue).count() == 1);
        let retry_at = now + self.retry_policy.stopped;
        let Some(receiver) = self.receiver_mut(point) else {
            return false;
        };
        if alternates {
            receiver.stop_silently();
            return false;
        }
        receiver.stop(retry_at)
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
