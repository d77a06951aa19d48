//! Queue of one contact point, with the state that its receiver's responses lead to.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use qm_api::TrackedField;
use qm_runtime::ObjectKey;
use qm_runtime::backoff::Backoff;
use qm_runtime::telemetry::traces::{self, Origin};
use tokio::sync::Notify;

use super::{AcceptedTests, ReceiverState, RetryPolicy, TestMessage};
use crate::history;
use crate::{Endpoint, LONGEST_PAUSE, Refusal, SendReceipt};

/// Number of failures in a row from which messages count as failing; a single failure is not reported.
pub(super) const FAILING_FROM: u32 = 2;

/// Number of different messages rejected in a row that stops the contact point.
const MAX_REJECTED_IN_A_ROW: u32 = 3;

/// Minimum length of a pause that is reported at once.
const LONG_PAUSE: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct ContactPointQueue {
    pub(super) endpoint: Option<Endpoint>,
    pub(super) state: QueueState,
    pub(super) receiver: Option<ReceiverState>,
    pub(super) pending: BTreeMap<ObjectKey, PendingEntries>,
    pub(super) batch: Option<Batch>,
    pub(super) failures: u32,
    pub(super) backoff: Option<Backoff>,
    pub(super) not_before: Option<Instant>,
    pub(super) responses: Responses,
    /// The test message of the last configuration; none without a contact point.
    pub(super) test: Option<TestMessage>,
    /// Revision of the configuration, unique over all queues: a response to a request of another revision does not
    /// concern this endpoint.
    pub(super) revision: u64,
    /// Whether a request is in flight, whose response will come whatever happens to the queue.
    pub(super) sending: bool,
    pub(super) changed: Arc<Notify>,
    pub(super) has_worker: bool,
}

/// Responses of a receiver so far, in memory only, except [`Responses::test_accepted`]: after a restart a refused entry
/// gets one more attempt before it can fail.
#[derive(Default)]
pub(super) struct Responses {
    /// Number of messages that the receiver accepted.
    accepted: u64,
    /// Number of messages rejected since the last accepted one; each may have been rejected for its own content.
    rejected_in_a_row: u32,
    /// Whether the last response failed an entry: other messages go before the next entry that may fail.
    just_failed: bool,
    /// See [`AcceptedTests::while_stopped`].
    test_accepted: bool,
    /// The last refusal.
    refusal: Option<(Refusal, String)>,
    by_field: HashMap<ObjectKey, FieldResponses>,
    /// Sequence number of the last refused test message, as [`FieldResponses::last_refusal`].
    last_test_refusal: u64,
    sequence: u64,
}

/// Responses of a receiver to the messages of one `TrackedField`.
#[derive(Default)]
struct FieldResponses {
    /// Refused entry, and the number of messages accepted before its refusal. No entry of the `TrackedField` overtakes
    /// the refused one.
    refused: Option<(Arc<str>, u64)>,
    /// Entries of a refused digest: each goes alone.
    alone: HashSet<Arc<str>>,
    /// Sequence number of the last refusal: the smallest is next. Zero: no refusal since the receiver last accepted a
    /// message.
    last_refusal: u64,
}

/// State of an entry after the receiver's responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryState {
    /// Not refused.
    Fresh,
    /// Refused, and no message accepted since.
    Refused,
    /// Refused, and another message accepted since: the next refusal fails the entry.
    LastAttempt,
}

/// Consequence of a refused entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterRefusal {
    /// The queue continues at once.
    Continue,
    /// The contact point stops.
    Stop,
}

impl Responses {
    /// Continues from the contact point's status.
    pub(super) fn resume(&mut self, tests: AcceptedTests) {
        self.test_accepted = tests.while_stopped;
    }

    /// Records that the receiver accepted the test message, or these entries.
    pub(super) fn accept<'a>(
        &mut self,
        entries: impl Iterator<Item = &'a BatchEntry>,
        is_stopped: bool,
    ) {
        self.accepted += 1;
        self.rejected_in_a_row = 0;
        self.just_failed = false;
        let mut is_test = true;
        for entry in entries {
            is_test = false;
            self.forget_entry(&entry.field, &entry.id);
        }
        self.test_accepted = is_test && (self.test_accepted || is_stopped);
        for responses in self.by_field.values_mut() {
            responses.last_refusal = 0;
        }
        self.by_field.retain(|_, responses| !responses.is_empty());
    }

    /// Records a refused test message.
    pub(super) fn refuse_test(&mut self, reason: Refusal, message: &str) {
        self.refusal = Some((reason, message.to_owned()));
        self.sequence += 1;
        self.last_test_refusal = self.sequence;
    }

    /// Records a refused digest, which does not identify the refused entry.
    pub(super) fn refuse_digest<'a>(
        &mut self,
        reason: Refusal,
        message: &str,
        entries: impl Iterator<Item = &'a BatchEntry>,
    ) {
        self.refusal = Some((reason, message.to_owned()));
        for entry in entries {
            self.by_field
                .entry(entry.field.clone())
                .or_default()
                .alone
                .insert(Arc::clone(&entry.id));
        }
    }

    /// Records the refusal of a single entry. An entry that is not `kept` has an outcome.
    pub(super) fn refuse_entry(
        &mut self,
        reason: Refusal,
        message: &str,
        entry: &BatchEntry,
        kept: bool,
    ) -> AfterRefusal {
        self.refusal = Some((reason, message.to_owned()));
        self.sequence += 1;
        let accepted = self.accepted;
        let responses = self.by_field.entry(entry.field.clone()).or_default();
        responses.last_refusal = self.sequence;
        responses.alone.remove(&entry.id);
        responses.refused = kept.then(|| (Arc::clone(&entry.id), accepted));
        if !reason.suggests_message() {
            return AfterRefusal::Stop;
        }
        self.rejected_in_a_row += 1;
        if self.rejected_in_a_row < MAX_REJECTED_IN_A_ROW {
            AfterRefusal::Continue
        } else {
            AfterRefusal::Stop
        }
    }

    /// Records that the receiver refused an entry again, after accepting another message.
    pub(super) fn fail_entry(&mut self, entry: &BatchEntry) {
        self.just_failed = true;
        self.forget_entry(&entry.field, &entry.id);
    }

    fn forget_entry(&mut self, field: &ObjectKey, id: &Arc<str>) {
        let Some(responses) = self.by_field.get_mut(field) else {
            return;
        };
        responses.alone.remove(id);
        responses.refused.take_if(|(refused, _)| refused == id);
        if responses.is_empty() {
            self.by_field.remove(field);
        }
    }

    /// Forgets a `TrackedField` without pending entries.
    pub(super) fn forget(&mut self, field: &ObjectKey) {
        self.by_field.remove(field);
    }

    /// Forgets the responses to all entries of that `TrackedField` except the `pending` ones.
    pub(super) fn renew(&mut self, field: &ObjectKey, pending: &[Arc<str>]) {
        let Some(responses) = self.by_field.get_mut(field) else {
            return;
        };
        responses.alone.retain(|id| pending.contains(id));
        responses
            .refused
            .take_if(|(id, _)| pending.first() != Some(id));
        if pending.is_empty() || responses.is_empty() {
            self.by_field.remove(field);
        }
    }

    /// Returns the state of that entry after the responses so far.
    pub(super) fn entry_state(&self, field: &ObjectKey, id: &Arc<str>) -> EntryState {
        match self
            .by_field
            .get(field)
            .and_then(|responses| responses.refused.as_ref())
        {
            Some((refused, accepted)) if refused == id => {
                if self.accepted > *accepted {
                    EntryState::LastAttempt
                } else {
                    EntryState::Refused
                }
            }
            _ => EntryState::Fresh,
        }
    }

    #[cfg(test)]
    pub(super) fn knows(&self, field: &ObjectKey) -> bool {
        self.by_field.contains_key(field)
    }

    /// Returns whether that entry was in a refused digest.
    pub(super) fn goes_alone(&self, field: &ObjectKey, id: &Arc<str>) -> bool {
        self.by_field
            .get(field)
            .is_some_and(|responses| responses.alone.contains(id))
    }

    /// Returns whether the receiver rejected a message, perhaps for its content, and accepted none since.
    pub(super) fn is_rejecting(&self) -> bool {
        self.rejected_in_a_row > 0
    }

    /// Returns whether other messages go before the next entry that may fail.
    pub(super) fn has_just_failed(&self) -> bool {
        self.just_failed
    }

    /// Returns the sequence number of the last refused entry of that `TrackedField`: the smallest is next.
    pub(super) fn last_refusal(&self, field: &ObjectKey) -> u64 {
        self.by_field
            .get(field)
            .map_or(0, |responses| responses.last_refusal)
    }

    /// Returns whether a stopped receiver may get the test message.
    pub(super) fn may_test(&self) -> bool {
        !self.test_accepted
    }

    /// Returns whether the test message is next, where it alternates with the only `TrackedField` that has pending
    /// entries.
    pub(super) fn test_is_next(&self, field: &ObjectKey) -> bool {
        self.may_test() && self.last_test_refusal < self.last_refusal(field)
    }

    /// Allows a test message, because somebody requested an attempt and no entry is pending.
    pub(super) fn allow_test(&mut self) {
        self.test_accepted = false;
    }
}

impl FieldResponses {
    fn is_empty(&self) -> bool {
        self.refused.is_none() && self.alone.is_empty() && self.last_refusal == 0
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum QueueState {
    /// The queue sends nothing.
    #[default]
    Closed,
    /// The queue sends the test message.
    Test,
    /// The receiver accepted the test message; the contact point's status does not say so yet.
    Tested,
    /// The queue sends its pending entries.
    Open,
    /// The queue tries the oldest pending entry, or the test message, once per retry period.
    Stopped,
}

/// Pending entries of one `TrackedField`.
pub struct PendingEntries {
    pub(super) object: Arc<TrackedField>,
    /// Ids of the entries, oldest first.
    pub(super) ids: Vec<Arc<str>>,
    /// Trace of the reconcile that enqueued the entries.
    pub(super) origin: Option<Origin>,
    /// Time since when the oldest entry is pending, plus its suspended time; `None` while suspended.
    pub(super) since: Option<Timestamp>,
}

impl PendingEntries {
    /// Returns the pending entries of `object`.
    ///
    /// # Errors
    /// Errors of [`TrackedField::history`].
    pub fn of(object: &Arc<TrackedField>) -> serde_json::Result<Self> {
        let history = object.history()?;
        let ids = history::pending(&history)
            .filter_map(|(entry, _)| entry.id.as_deref().map(Arc::from))
            .collect();
        let since = history::waiting_since(&history);
        Ok(Self {
            object: Arc::clone(object),
            ids,
            since,
            origin: traces::current(),
        })
    }
}

/// Entry of a request.
#[derive(Clone, Debug)]
pub(super) struct BatchEntry {
    pub(super) field: ObjectKey,
    pub(super) object: Arc<TrackedField>,
    pub(super) id: Arc<str>,
    pub(super) origin: Option<Origin>,
}

#[derive(Clone)]
pub(super) struct Batch {
    pub(super) entries: Vec<BatchEntry>,
    pub(super) plain: bool,
}

impl ContactPointQueue {
    /// Resets the queue: no request to retry, nothing known about the receiver.
    pub(super) fn reset(&mut self) {
        self.batch = None;
        self.responses = Responses::default();
        self.clear_backoff();
        self.changed.notify_one();
    }

    /// Allows the next request at once.
    pub(super) fn clear_backoff(&mut self) {
        self.failures = 0;
        self.backoff = None;
        self.not_before = None;
    }

    /// Records that the receiver accepted the test message or these entries; returns whether the contact point's status
    /// changes.
    pub(super) fn accept(&mut self, receipt: &SendReceipt, entries: &[BatchEntry]) -> bool {
        self.clear_backoff();
        let could_test = self.responses.may_test();
        self.responses.accept(
            entries.iter().take(receipt.accepted),
            self.state == QueueState::Stopped,
        );
        let is_test = entries.is_empty();
        if is_test && let Some(test) = &mut self.test {
            test.accepted.count += 1;
        }
        self.state = match self.state {
            QueueState::Test => QueueState::Tested,
            QueueState::Stopped => QueueState::Open,
            state => state,
        };
        if let (Some(to), Some(endpoint)) = (receipt.migrated_to, &mut self.endpoint) {
            endpoint.migrate(to);
        }
        let receiver = ReceiverState::Accepted {
            migrated_to: receipt.migrated_to,
        };
        let is_new = match (&self.receiver, &receiver) {
            (
                Some(ReceiverState::Accepted { .. }),
                ReceiverState::Accepted { migrated_to: None },
            ) => false,
            (known, new) => known.as_ref() != Some(new),
        };
        if is_new {
            self.receiver = Some(receiver);
        }
        is_new || is_test || could_test != self.responses.may_test()
    }

    /// Records that the receiver did not respond, or may accept the same request later; returns whether the contact
    /// point's status changes.
    pub(super) fn retry(
        &mut self,
        message: String,
        after: Option<Duration>,
        retry_policy: RetryPolicy,
        now: Instant,
    ) -> bool {
        self.failures += 1;
        let delay = self
            .backoff
            .get_or_insert_with(|| retry_policy.backoff.start())
            .next_delay();
        let requested = after.unwrap_or_default();
        let message = if requested < LONG_PAUSE {
            message
        } else {
            // The status reports a pause of this length at once.
            self.failures = self.failures.max(FAILING_FROM);
            format!(
                "{message} (not before {} s have passed)",
                requested.as_secs()
            )
        };
        self.not_before = Some(now + delay.max(requested).min(LONGEST_PAUSE));
        // A single failure of a stopped receiver is not reported: the cause of the stop may persist.
        let is_new = self.state != QueueState::Stopped || self.failures >= FAILING_FROM;
        is_new && self.set_receiver(ReceiverState::Retrying(message))
    }

    /// Stops the contact point for the reason of the last refusal; returns whether the contact point's status changes.
    pub(super) fn stop(&mut self, retry_policy: RetryPolicy, now: Instant) -> bool {
        self.stop_silently();
        self.not_before = Some(now + retry_policy.stopped);
        let Some((reason, message)) = self.responses.refusal.clone() else {
            return false;
        };
        let is_new = self.set_receiver(ReceiverState::Stopped {
            reason: reason.as_str(),
            message,
        });
        // Each 401 triggers a new read of the Secret, which somebody may have fixed.
        is_new || reason == Refusal::Unauthorized
    }

    /// Stops the contact point without a status change. The test message goes next and shows whether the receiver
    /// accepts anything, so single rejected messages do not change the status.
    pub(super) fn stop_silently(&mut self) {
        self.state = QueueState::Stopped;
        self.batch = None;
        self.clear_backoff();
    }

    fn set_receiver(&mut self, receiver: ReceiverState) -> bool {
        let is_new = !self
            .receiver
            .as_ref()
            .is_some_and(|known| is_same_failure(known, &receiver));
        if is_new {
            self.receiver = Some(receiver);
        }
        is_new
    }

    /// Replaces the batch's copies of `field`, so that a retry keeps no older version in memory.
    pub(super) fn update_batch(&mut self, field: &ObjectKey, object: &Arc<TrackedField>) {
        let entries = self.batch.iter_mut().flat_map(|batch| &mut batch.entries);
        for entry in entries.filter(|entry| entry.field == *field) {
            entry.object = Arc::clone(object);
        }
    }

    /// Returns whether every entry of the batch is still pending. A retry sends the same request, so that the receiver
    /// recognises it; a batch with an entry that has expired is dropped.
    pub(super) fn is_pending(&self, batch: &Batch) -> bool {
        let is_pending = |entry: &BatchEntry| {
            self.pending
                .get(&entry.field)
                .is_some_and(|pending| pending.ids.contains(&entry.id))
        };
        batch.entries.iter().all(is_pending)
    }
}

/// Returns whether two states report the same failure.
fn is_same_failure(one: &ReceiverState, other: &ReceiverState) -> bool {
    match (one, other) {
        (ReceiverState::Retrying(one), ReceiverState::Retrying(other)) => {
            without_quote(one) == without_quote(other)
        }
        (
            ReceiverState::Stopped { reason, message },
            ReceiverState::Stopped {
                reason: other_reason,
                message: other,
            },
        ) => reason == other_reason && without_quote(message) == without_quote(other),
        _ => one == other,
    }
}

/// Splits off the receiver's own text, which stands in parentheses after the status code and may differ each time: a
/// new text alone is not reported.
fn without_quote(message: &str) -> (&str, &str, &str) {
    match (message.find('('), message.rfind(')')) {
        (Some(open), Some(close)) if open < close => {
            let code = message[open + 1..close]
                .split([' ', ',', ')'])
                .next()
                .unwrap_or_default();
            (&message[..open], code, &message[close + 1..])
        }
        _ => (message, "", ""),
    }
}
