//! Result of a reconcile.

use std::borrow::Cow;
use std::time::Duration;

use qm_core::conditions::{Activity, READY, ReadyCondition};
use qm_core::readiness::Readiness;

/// Reason of an object whose spec the operator cannot act on.
pub const SPEC_INVALID: &str = "SpecInvalid";
/// Reason of an object that its spec suspends.
pub const SUSPENDED: &str = "Suspended";

/// Result of a reconcile: the condition `Ready`, its Event, and when to reconcile again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Progress of the object.
    pub progress: Progress,
    /// Reason of the condition `Ready`.
    pub reason: Cow<'static, str>,
    /// Message of the condition `Ready`.
    pub message: String,
    /// Changes of the condition that an Event reports.
    pub event: EventPolicy,
    /// When to reconcile again.
    pub requeue: Requeue,
}

/// Progress of an object towards its desired state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The object matches its desired state: `Ready` is `True`.
    Ready,
    /// The operator is still finding out whether the object matches its desired state: `Ready` is `Unknown`, and its Event
    /// is Normal.
    Unknown,
    /// The operator is working towards the desired state: `Ready` is `False`, and its Event is Normal.
    InProgress,
    /// The spec suspends the object: `Ready` is `False`, and its Event is Normal.
    Suspended,
    /// Something is wrong, and the operator retries: `Ready` is `False`, and its Event is a Warning.
    Failed,
    /// Something is wrong that only a change to the spec can fix: `Ready` is `False`, and its Event is a Warning.
    Stalled,
    /// Nothing new is known: the condition stays as last written.
    Unchanged,
}

/// Changes of the condition `Ready` that an Event reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventPolicy {
    /// No change.
    Never,
    /// A new reason, once until the object has been ready for 10 minutes or has another generation.
    OnReason,
    /// Each change of the reason, and of the message while the object is not ready.
    OnMessage,
    /// A reason that follows a reported problem: the object has recovered.
    OnRecovery,
    /// Each change of the reason or the message while the object is not ready, and a repetition after this time,
    /// because the apiserver deletes Events after a while (by default, an hour).
    Renew(Duration),
}

/// When to reconcile an object again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Requeue {
    /// When something changes. The periodic reconcile still comes, because a watch may have missed an event.
    #[default]
    OnChange,
    /// With growing delays: the object waits for something that no watch shows.
    Poll,
    /// After this delay.
    After(Duration),
    /// When the response to a request outside the reconcile arrives, at the latest after this delay. The request may
    /// still fail, so the backoff is not reset.
    InFlight(Duration),
}

impl Outcome {
    /// Creates the outcome of an object that matches its desired state.
    pub fn ready(message: impl Into<String>) -> Self {
        Self {
            progress: Progress::Ready,
            reason: READY.into(),
            message: message.into(),
            event: EventPolicy::OnReason,
            requeue: Requeue::OnChange,
        }
    }

    /// Creates the outcome of an object whose desired state is in progress, without an Event.
    pub fn in_progress(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            progress: Progress::InProgress,
            reason: reason.into(),
            event: EventPolicy::Never,
            ..Self::ready(message)
        }
    }

    /// Creates the outcome of an object whose state the operator is still finding out, without an Event.
    pub fn unknown(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            progress: Progress::Unknown,
            ..Self::in_progress(reason, message)
        }
    }

    /// Creates the outcome of an object with a problem. An invalid spec stalls the object; otherwise the operator
    /// retries.
    pub fn failed(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        let reason = reason.into();
        Self {
            progress: if reason == SPEC_INVALID {
                Progress::Stalled
            } else {
                Progress::Failed
            },
            reason,
            ..Self::ready(message)
        }
    }

    /// Creates the outcome of an object with a problem that only a change to the spec can fix.
    pub fn stalled(reason: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            progress: Progress::Stalled,
            ..Self::failed(reason, message)
        }
    }

    /// Creates the outcome of an object whose spec suspends it.
    pub fn suspended(message: impl Into<String>) -> Self {
        Self {
            progress: Progress::Suspended,
            reason: SUSPENDED.into(),
            ..Self::ready(message)
        }
    }

    /// Returns whether something is wrong.
    pub(crate) fn is_failed(&self) -> bool {
        matches!(self.progress, Progress::Failed | Progress::Stalled)
    }

    /// Creates the outcome of an object about which nothing new is known.
    pub fn unchanged() -> Self {
        Self {
            progress: Progress::Unchanged,
            reason: "".into(),
            event: EventPolicy::Never,
            ..Self::ready("")
        }
    }

    /// Sets when to reconcile again.
    #[must_use]
    pub fn requeue(self, requeue: Requeue) -> Self {
        Self { requeue, ..self }
    }

    /// Sets which changes an Event reports.
    #[must_use]
    pub fn event(self, event: EventPolicy) -> Self {
        Self { event, ..self }
    }

    /// Returns the condition `Ready`.
    pub fn condition(&self) -> ReadyCondition<'_> {
        ReadyCondition {
            status: match self.progress {
                Progress::Ready => Readiness::True,
                Progress::Unknown => Readiness::Unknown,
                _ => Readiness::False,
            },
            reason: &self.reason,
            message: &self.message,
            activity: match self.progress {
                Progress::Ready | Progress::Suspended | Progress::Unchanged => Activity::Idle,
                Progress::Unknown | Progress::InProgress | Progress::Failed => {
                    Activity::Reconciling
                }
                Progress::Stalled => Activity::Stalled,
            },
        }
    }
}
