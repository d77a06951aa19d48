//! Settings and states of a queue, as reconciles read and write them.

use std::time::Duration;

use qm_runtime::backoff::BackoffPolicy;
use qm_runtime::{SpecRevision, short_digest};

/// Delays between requests of a queue.
#[derive(Clone, Copy, Debug)]
pub struct RetryPolicy {
    /// Backoff after an error that may pass.
    pub backoff: BackoffPolicy,
    /// Delay while the receiver accepts nothing until somebody fixes it.
    pub stopped: Duration,
    /// Age at the start of an attempt from which an entry expires if the attempt fails.
    pub max_age: Duration,
}

/// Test message of one configuration of a contact point.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TestMessage {
    /// Identity of the configuration.
    pub configuration: String,
    /// Accepted test messages so far.
    pub accepted: AcceptedTests,
}

/// Accepted test messages of a contact point, as its status keeps them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AcceptedTests {
    /// Number over all configurations, part of the message id: each acceptance gives the next test message a new id,
    /// even if an earlier configuration returns.
    pub count: i64,
    /// True if a stopped receiver accepted a test message, and no entry since. People see test messages, so no process
    /// sends a second one.
    pub while_stopped: bool,
}

/// Test message that a user requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestedTest {
    /// Value of the `test-at` annotation.
    pub requested_at: String,
    /// Answer of the receiver; `None` before the attempt, the message of the error if the receiver did not accept.
    pub answer: Option<Result<(), String>>,
}

impl TestMessage {
    /// Returns the message id, by which a receiver recognises a repetition.
    pub(super) fn id(&self) -> String {
        format!(
            "test-{}",
            short_digest(format!("{}/{}", self.configuration, self.accepted.count))
        )
    }
}

/// State of the object and the apiserver at a rejected status write. Any change of this state makes the next write due
/// at once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Circumstances {
    /// Revision of the object.
    pub revision: SpecRevision,
    /// Number of apiserver outages that have ended.
    pub outages_ended: u64,
}

/// State of a contact point's receiver after the last request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiverState {
    /// No request was sent to this endpoint yet.
    Untried,
    /// The receiver accepted the request.
    Accepted {
        /// Supergroup that Telegram migrated the chat to.
        migrated_to: Option<i64>,
    },
    /// The receiver may accept the request later.
    Retrying(String),
    /// The receiver accepts nothing until somebody fixes it.
    Stopped {
        /// Reason of the condition.
        reason: &'static str,
        /// Message of the condition.
        message: String,
    },
}

/// Initial state of a contact point's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InitialState {
    /// The queue sends the test message, and nothing else until the contact point's status says ready.
    Test,
    /// The queue sends its pending entries.
    Open,
    /// The status says stopped: the oldest pending entry, or the test message, shows whether the receiver is fixed.
    Probe,
}
