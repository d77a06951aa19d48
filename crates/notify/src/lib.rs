//! Delivery of notifications: histories, queues, messages, receivers.
//!
//! Each contact point has one queue ([`queue`]). A queue renders its pending entries ([`message`]), waits for the
//! receiver's rate limit ([`rate_limit`]) and sends one request at a time ([`telegram`], [`webhook`]). This crate never
//! writes to Kubernetes: reconciles of the objects record the outcomes.

mod address;
pub mod client;
mod content;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fixtures;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod history;
pub mod message;
pub mod metrics;
pub mod queue;
pub mod rate_limit;
mod redactor;
pub mod resolve;
mod response;
mod result;
mod semaphores;
pub mod telegram;
pub mod webhook;
pub mod when;
mod without_panic;

pub use content::{MessageContent, OutgoingEntry};
pub use result::{Refusal, SendError, SendFailure, SendReceipt};

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

/// Sender of requests. [`client::HttpSender`] is the real sender; tests of the queue use fakes.
pub trait Transport: Send + Sync + 'static {
    /// Waits until the rate limit of this endpoint's receiver, which all its contact points share, allows one request
    /// of a contact point in `namespace`, and counts that request.
    fn acquire(&self, endpoint: &Endpoint, namespace: &str) -> impl Future<Output = ()> + Send;

    /// Renders `content` for `endpoint` and sends one request. Waits only for the rate limit of a supergroup that
    /// replaced the chat. A `plain` request uses no `TrackedField`'s template; a webhook's `body` stays, because the
    /// receiver needs its shape.
    fn send(
        &self,
        endpoint: &Endpoint,
        content: MessageContent<'_>,
        plain: bool,
    ) -> impl Future<Output = Result<SendReceipt, SendFailure>> + Send;
}
