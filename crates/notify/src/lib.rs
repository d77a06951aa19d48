//! Delivery of notifications: histories, queues, messages, receivers.
//!
//! Each contact point has one queue ([`queue`]). A queue renders its pending entries ([`message`]), waits for the
//! receiver's rate limit ([`rate_limit`]) and sends one request at a time ([`telegram`], [`webhook`]). This crate never
//! writes to Kubernetes: reconciles of the objects record the outcomes.

use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use qm_api::TrackedField;
use qm_api::tracked_field::Entry;
use qm_runtime::Key;

pub mod address;
pub mod client;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod history;
pub mod message;
pub mod metrics;
pub mod queue;
pub mod rate_limit;
pub mod resolve;
mod response;
pub mod telegram;
pub mod webhook;

/// Upper limit of a receiver's `Retry-After`: a hundred years. A later instant could overflow the clock.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_hours(100 * 365 * 24);

/// Endpoint of a contact point, with its Secrets read and its spec checked.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// A chat of the Bot API.
    Telegram(telegram::TelegramChat),
    /// An HTTP endpoint.
    Webhook(Box<webhook::WebhookEndpoint>),
}

impl Endpoint {
    /// Sends to the supergroup `to` from now on, because Telegram migrated the chat.
    pub fn migrate(&mut self, to: i64) {
        if let Self::Telegram(chat) = self {
            *chat = chat.migrated(to);
        }
    }
}

/// Entry of a `TrackedField` with the context that its message needs.
#[derive(Clone, Debug)]
pub struct OutgoingEntry {
    /// Namespace of the `TrackedField`.
    pub namespace: String,
    /// Name of the `TrackedField`.
    pub name: String,
    /// UID of the `TrackedField`.
    pub uid: String,
    /// `spec.template`.
    pub template: Option<Arc<str>>,
    /// The entry.
    pub entry: Entry,
    /// Preceding entry in the history, if it has the same subject: its value is the previous one.
    pub previous: Option<Entry>,
}

impl OutgoingEntry {
    /// Creates an outgoing entry of `object`; all entries of an object share its `template`.
    pub fn of(
        object: &TrackedField,
        template: Option<Arc<str>>,
        entry: &Entry,
        previous: Option<&Entry>,
    ) -> Self {
        Self {
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            uid: object.uid().unwrap_or_default(),
            template,
            entry: entry.clone(),
            previous: previous.cloned(),
        }
    }

    /// Returns the key of the `TrackedField`.
    pub fn field(&self) -> Key {
        Key::new(&self.namespace, &self.name)
    }
}

/// Content of a request.
#[derive(Clone, Copy, Debug)]
pub enum MessageContent<'a> {
    /// Test message of a contact point: "Contact point is ready".
    Test {
        /// Namespace of the contact point.
        namespace: &'a str,
        /// Name of the contact point.
        name: &'a str,
        /// Message id; a repeated message keeps it.
        id: &'a str,
    },
    /// Entries to send, in this order; the request carries as many as fit. More than one make a digest. Never empty.
    Entries(&'a [OutgoingEntry]),
}

impl MessageContent<'_> {
    /// Returns the namespace of the contact point, which is that of the entries.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Test { namespace, .. } => namespace,
            Self::Entries(items) => items.first().map_or("", |item| &item.namespace),
        }
    }
}

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
    /// The receiver may accept it later: no connection, 408, 429, 5xx.
    #[error("{message}")]
    Retry {
        /// Error message.
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
    Unsent {
        /// Error message.
        message: String,
    },
}

/// Reason why a receiver refuses a request, named as a condition reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names are the documentation
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
    /// The operator refuses the address itself.
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

    /// Returns whether the answer suggests that another message is accepted.
    pub fn suggests_message(self) -> bool {
        self == Self::Rejected
    }

    /// Returns whether the message can be the cause.
    pub fn may_be_message(self) -> bool {
        self != Self::AddressNotAllowed
    }
}

/// Sender of requests. [`client::HttpSender`] is the real one; tests of the queue use fakes.
pub trait Transport: Send + Sync + 'static {
    /// Waits until the rate limit of this endpoint's receiver, which all its contact points share, allows one request,
    /// and counts that request.
    fn acquire(&self, endpoint: &Endpoint) -> impl Future<Output = ()> + Send;

    /// Renders `content` for `endpoint` and sends one request. The only wait is for the rate limit of a chat that
    /// Telegram migrated this one to. A `plain` request uses no `TrackedField`'s template; a webhook's `body` stays,
    /// because the receiver needs its shape.
    fn send(
        &self,
        endpoint: &Endpoint,
        content: MessageContent<'_>,
        plain: bool,
    ) -> impl Future<Output = Result<SendReceipt, SendFailure>> + Send;
}
