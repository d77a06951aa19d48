//! Sending messages: what to say, where, and how a receiver's answer is understood.
//!
//! Each contact point has one queue ([`queue`]); it renders what waits ([`message`]), asks the pace of its receiver
//! ([`pace`]) and sends one request at a time ([`telegram`], [`webhook`]). It never writes to Kubernetes: outcomes go
//! back to the objects' own passes.

use std::sync::Arc;
use std::time::Duration;

use kube::ResourceExt;
use qm_api::TrackedField;
use qm_api::tracked_field::Entry;
use qm_runtime::Key;

pub mod address;
mod answer;
pub mod client;
#[cfg(test)]
pub(crate) mod fixtures;
pub mod history;
pub mod message;
pub mod metrics;
pub mod pace;
pub mod queue;
pub mod resolve;
pub mod telegram;
pub mod webhook;

/// The longest pause that a receiver is given, whatever it asks for: a hundred years. Any later an instant could not be
/// told.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_hours(100 * 365 * 24);

/// A contact point with its Secrets read and its spec checked: all that sending needs.
#[derive(Clone, Debug)]
pub enum Endpoint {
    /// A chat of the Bot API.
    Telegram(telegram::Chat),
    /// An HTTP endpoint.
    Webhook(Box<webhook::Hook>),
}

impl Endpoint {
    /// Sends to the supergroup `to` from here on, which a chat became.
    pub fn follow(&mut self, to: i64) {
        if let Self::Telegram(chat) = self {
            *chat = chat.moved(to);
        }
    }
}

/// One entry of a `TrackedField`, with what its message needs to know besides.
#[derive(Clone, Debug)]
pub struct Item {
    /// Namespace of the `TrackedField`.
    pub namespace: String,
    /// Name of the `TrackedField`.
    pub name: String,
    /// UID of the `TrackedField`.
    pub uid: String,
    /// `spec.template`, if it has one.
    pub template: Option<Arc<str>>,
    /// The entry.
    pub entry: Entry,
    /// The entry before it in the history, if it speaks of the same subject: its value is the previous one.
    pub previous: Option<Entry>,
}

impl Item {
    /// An entry of that object, and the one before it. `template` is the object's, shared by all its items.
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

    /// The `TrackedField`.
    pub fn field(&self) -> Key {
        Key::new(&self.namespace, &self.name)
    }
}

/// What a request is to say.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// "Contact point is ready", from this contact point.
    Test {
        /// Namespace of the contact point.
        namespace: &'a str,
        /// Its name.
        name: &'a str,
        /// Message id; a repeated message keeps it.
        id: &'a str,
    },
    /// As many of these entries as fit, in this order; more than one make a digest. Never empty.
    Entries(&'a [Item]),
}

impl Content<'_> {
    /// Returns the namespace of the contact point, which is that of the entries.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Test { namespace, .. } => namespace,
            Self::Entries(items) => items.first().map_or("", |item| &item.namespace),
        }
    }
}

/// A receiver took the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// How many of the entries it carried, from the first; at least one. Zero for a test message.
    pub taken: usize,
    /// The chat that Telegram moved this one to (`migrate_to_chat_id`), where the message then went.
    pub migrated_to: Option<i64>,
}

/// A request that its receiver did not accept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{failure}")]
pub struct SendError {
    /// Failure of the request.
    pub failure: Failure,
    /// Number of entries in the request, from the first. Zero for a test message, or if no request was sent.
    pub carried: usize,
}

impl SendError {
    /// Creates the failure of a request with this many entries.
    pub fn new(failure: Failure, carried: usize) -> Self {
        let unsent = matches!(
            failure,
            Failure::Unsent { .. }
                | Failure::Refused {
                    reason: Refusal::AddressNotAllowed,
                    ..
                }
        );
        Self {
            failure,
            carried: if unsent { 0 } else { carried },
        }
    }
}

/// Reason why a request was not accepted. Messages contain no secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The receiver may accept it later: no connection, 408, 429, 5xx.
    #[error("{message}")]
    Retry {
        /// Error message.
        message: String,
        /// How long the receiver asked to be left alone.
        after: Option<Duration>,
    },
    /// The receiver refused the request.
    #[error("{message}")]
    Refused {
        /// Why.
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
#[allow(missing_docs)] // each is what its name says
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
    /// The condition's reason.
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

/// Sends requests. [`client::Sender`] is the real one; tests of the queue have their own.
pub trait Transport: Send + Sync + 'static {
    /// Waits until the pace of this endpoint's receiver (shared by all contact points that use it) lets one request
    /// through, and takes that place.
    fn slot(&self, endpoint: &Endpoint) -> impl Future<Output = ()> + Send;

    /// Renders `content` for `endpoint` and sends it once, without waiting but for the pace of a chat that it moved to. A `plain` request uses no `TrackedField`'s
    /// template; a webhook's `body` stays, because it is the shape that its receiver asks for.
    fn send(
        &self,
        endpoint: &Endpoint,
        content: Content<'_>,
        plain: bool,
    ) -> impl Future<Output = Result<Sent, SendError>> + Send;
}
