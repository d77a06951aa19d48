//! Result of a request: the receiver's acceptance, or the reason why the receiver did not accept.

use std::time::Duration;

/// Acceptance of a request by its receiver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SendReceipt {
    /// Number of accepted entries, from the first; at least one. Zero for a test message.
    pub accepted: usize,
    /// Supergroup that Telegram migrated the chat to (`migrate_to_chat_id`), which got the message.
    pub migrated_to: Option<i64>,
}

/// Request that its receiver did not accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct SendFailure {
    /// Cause.
    pub error: SendError,
    /// Number of entries in the request, from the first. Zero for a test message, or if no request was sent.
    pub carried: usize,
}

impl SendFailure {
    /// Creates the failure of a request with this many entries.
    pub fn new(error: SendError, carried: usize) -> Self {
        let unsent = matches!(
            error,
            SendError::Unsent { .. }
                | SendError::Refused {
                    reason: Refusal::AddressNotAllowed,
                    ..
                }
        );
        Self {
            error,
            carried: if unsent { 0 } else { carried },
        }
    }
}

/// Reason why a request was not accepted. Messages contain no secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The receiver may accept the request later: no connection, 408, 429, 5xx.
    #[error("{message}")]
    Retry {
        message: String,
        /// Pause that the receiver asked for.
        after: Option<Duration>,
    },
    /// The receiver refused the request.
    #[error("{message}")]
    Refused {
        /// Reason of the refusal.
        reason: Refusal,
        /// Error message, with what to fix.
        message: String,
    },
    /// No request was sent; a later attempt follows.
    #[error("{message}")]
    Unsent { message: String },
}

/// Reason why a receiver refuses a request, named as a condition reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    Unauthorized,
    Forbidden,
    NotFound,
    Gone,
    ChatNotFound,
    TopicUnavailable,
    Redirected,
    UnexpectedStatus,
    /// Status 400, 413, 415 or 422.
    Rejected,
    /// The operator itself refuses to connect to the address.
    AddressNotAllowed,
}

impl Refusal {
    /// Returns the reason of the condition.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unauthorized => "Unauthorized",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "NotFound",
            Self::Gone => "Gone",
            Self::ChatNotFound => "ChatNotFound",
            Self::TopicUnavailable => "TopicUnavailable",
            Self::Redirected => "Redirected",
            Self::UnexpectedStatus => "UnexpectedStatus",
            Self::Rejected => "Rejected",
            Self::AddressNotAllowed => "AddressNotAllowed",
        }
    }

    /// Returns whether the receiver rejected this message, and may accept another one.
    pub(crate) fn is_rejection(self) -> bool {
        self == Self::Rejected
    }

    /// Returns whether the receiver refused, and not the operator itself: the message can be the cause.
    pub(crate) fn is_of_receiver(self) -> bool {
        self != Self::AddressNotAllowed
    }
}
