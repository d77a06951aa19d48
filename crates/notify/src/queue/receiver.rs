//! Receiver of a contact point: its configuration, and its state after the responses.

use std::sync::Arc;
use std::time::{Duration, Instant};

use qm_runtime::backoff::Backoff;

use super::entries::BatchEntry;
use super::refusals::Refusals;
use super::{InitialState, ReceiverState, RequestedTest, RetryPolicy, TestMessage};
use crate::rate_limit::LONGEST_PAUSE;
use crate::{Endpoint, Refusal, SendError, SendFailure, SendReceipt};

/// Number of failures in a row from which messages count as failing; a single failure is not reported.
pub(super) const FAILING_FROM: u32 = 2;

/// Minimum length of a pause that is reported at once.
const REPORTED_PAUSE: Duration = Duration::from_secs(30);

/// Beginning of the text about such a pause.
const PAUSE: &str = " (the receiver asks for a pause of ";

/// Receiver of one configuration of a contact point.
pub(super) struct Receiver {
    /// The endpoint; none while the contact point is suspended or its Secrets cannot be read. The receiver's state
    /// stays meanwhile, because the same configuration may return.
    pub(super) endpoint: Option<Endpoint>,
    /// Revision of the configuration, unique over all queues. A response to a request of another revision does not
    /// count.
    pub(super) revision: u64,
    pub(super) test: TestMessage,
    /// Last test message that a user requested.
    pub(super) requested_test: Option<RequestedTest>,
    /// Age of the oldest waiting entry at which a request begins.
    pub(super) digest_delay: Duration,
    /// Newest entry that waited when a user last requested an attempt: this entry and older ones no longer wait for a
    /// digest.
    pub(super) due_up_to: Option<Arc<str>>,
    pub(super) state: QueueState,
    /// State for the contact point's status.
    pub(super) reported: ReceiverState,
    pub(super) refusals: Refusals,
    /// Number of failures since the last accepted or refused request.
    pub(super) failures: u32,
    backoff: Option<Backoff>,
    /// Earliest time of the next request.
    pub(super) not_before: Option<Instant>,
    /// Earliest time of the test message while no entry waits. After a restart the queue first learns which entries
    /// wait: one of them goes in place of the test message.
    pub(super) test_not_before: Option<Instant>,
}

/// State of a receiver's queue, by the message that the queue sends next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueState {
    /// The test message.
    Testing,
    /// Nothing: the receiver accepted the test message; the contact point's status does not say so yet.
    Tested,
    /// The pending entries.
    Open,
    /// The oldest pending entry, or the test message, once per retry period.
    Stopped,
}

impl Receiver {
    /// Creates a receiver. A receiver that starts stopped gets no test message before `retry_at`.
    pub(super) fn new(
        endpoint: Endpoint,
        digest_delay: Duration,
        revision: u64,
        initial_state: InitialState,
        test: TestMessage,
        retry_at: Instant,
    ) -> Self {
        Self {
            endpoint: Some(endpoint),
            revision,
            test,
            requested_test: None,
            digest_delay,
            due_up_to: None,
            state: match initial_state {
                InitialState::Test => QueueState::Testing,
                InitialState::Open => QueueState::Open,
                InitialState::Probe => QueueState::Stopped,
            },
            reported: ReceiverState::Untried,
            refusals: Refusals::default(),
            failures: 0,
            backoff: None,
            not_before: None,
            test_not_before: (initial_state == InitialState::Probe).then_some(retry_at),
        }
    }

    /// Records that the receiver accepted the test message, which a user may have requested, or these entries; returns
    /// whether the contact point's status changes.
    pub(super) fn record_accepted(
        &mut self,
        receipt: &SendReceipt,
        entries: &[BatchEntry],
        is_requested_test: bool,
    ) -> bool {
        self.clear_backoff();
        self.refusals
            .record_accepted(entries.iter().map(|entry| &entry.key));
        let is_test = entries.is_empty();
        let tests = &mut self.test.accepted;
        let is_counted = self.state == QueueState::Stopped && !is_requested_test;
        let while_stopped = is_test && (tests.while_stopped || is_counted);
        let may_test_changes = tests.while_stopped != while_stopped;
        tests.while_stopped = while_stopped;
        tests.count += i64::from(is_test);
        self.state = match self.state {
            QueueState::Testing => QueueState::Tested,
            QueueState::Stopped => QueueState::Open,
            state => state,
        };
        if let (Some(to), Some(endpoint)) = (receipt.migrated_to, &mut self.endpoint) {
            endpoint.migrate(to);
        }
        // A migration stays reported.
        let is_known = matches!(self.reported, ReceiverState::Accepted { migrated_to }
            if receipt.migrated_to.is_none() || receipt.migrated_to == migrated_to);
        if !is_known {
            let migrated_to = receipt.migrated_to;
            self.reported = ReceiverState::Accepted { migrated_to };
        }
        !is_known || is_test || may_test_changes
    }

    /// Records that the receiver did not respond, or may accept the same request later; returns whether the contact
    /// point's status changes.
    pub(super) fn record_failure(
        &mut self,
        message: &str,
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
        let message = if requested < REPORTED_PAUSE {
            message.to_owned()
        } else {
            // The status reports a pause of this length at once.
            self.failures = self.failures.max(FAILING_FROM);
            format!("{message}{PAUSE}{} s)", requested.as_secs())
        };
        self.not_before = Some(now + delay.max(requested).min(LONGEST_PAUSE));
        // A single failure of a stopped receiver is not reported: the cause of the stop may persist.
        let is_new = self.state != QueueState::Stopped || self.failures >= FAILING_FROM;
        is_new && self.report(ReceiverState::Retrying(message))
    }

    /// Stops the queue for the reason of the last refusal, until `retry_at`. Returns whether the contact point must be
    /// reconciled: its status changes, or a 401 asks for a new read of its Secret, which somebody may have fixed.
    pub(super) fn stop(&mut self, retry_at: Instant) -> bool {
        self.stop_silently();
        self.not_before = Some(retry_at);
        let Some((reason, message)) = self.refusals.last().cloned() else {
            return false;
        };
        let is_new = self.report(ReceiverState::Stopped {
            reason: reason.as_str(),
            message,
        });
        is_new || reason == Refusal::Unauthorized
    }

    /// Stops the queue without a pause and without a status change.
    pub(super) fn stop_silently(&mut self) {
        self.state = QueueState::Stopped;
        self.clear_backoff();
    }

    /// Returns whether a requested test message was not attempted yet.
    pub(super) fn has_test_request(&self) -> bool {
        self.requested_test
            .as_ref()
            .is_some_and(|test| test.answer.is_none())
    }

    /// Records the response to a test message as the answer to a requested one. Returns whether there was one.
    pub(super) fn answer_test_request(
        &mut self,
        response: &Result<SendReceipt, SendFailure>,
    ) -> bool {
        let answer = match response {
            Ok(_) => Ok(()),
            Err(SendFailure { error, .. }) => match error {
                SendError::Retry { message, .. } | SendError::Refused { message, .. } => {
                    Err(message.clone())
                }
                SendError::Unsent { .. } => return false,
            },
        };
        match &mut self.requested_test {
            Some(test) if test.answer.is_none() => {
                test.answer = Some(answer);
                true
            }
            _ => false,
        }
    }

    /// Allows the next request at `now`, and begins the backoff again.
    pub(super) fn retry_now(&mut self, now: Instant) {
        self.backoff = None;
        self.not_before = self.not_before.map(|_| now);
        self.test_not_before = None;
    }

    /// Allows the next request at once.
    pub(super) fn clear_backoff(&mut self) {
        self.failures = 0;
        self.backoff = None;
        self.not_before = None;
    }

    /// Returns whether the stopped receiver may get the test message: people see it, so at most one is accepted between
    /// two accepted entries.
    pub(super) fn may_test(&self) -> bool {
        !self.test.accepted.while_stopped
    }

    fn report(&mut self, state: ReceiverState) -> bool {
        let is_new = !is_same_failure(&self.reported, &state);
        if is_new {
            self.reported = state;
        }
        is_new
    }
}

/// Returns whether two states report the same failure.
fn is_same_failure(one: &ReceiverState, other: &ReceiverState) -> bool {
    match (one, other) {
        (ReceiverState::Retrying(one), ReceiverState::Retrying(other)) => {
            let ((one, pause), (other, other_pause)) = (split_pause(one), split_pause(other));
            pause == other_pause && without_quote(one) == without_quote(other)
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

/// Splits off the pause for which the receiver asks, which is reported even if nothing else is new.
fn split_pause(message: &str) -> (&str, &str) {
    message.rsplit_once(PAUSE).unwrap_or((message, ""))
}

/// Splits off the receiver's own text, in parentheses after the status code: a new text alone is not reported.
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
