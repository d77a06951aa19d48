//! Webhooks: an HTTP POST of a `CloudEvents` 1.0 event for each message
//! (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md>).

use std::time::Duration;

use jiff::Timestamp;

use super::address::is_private;
use super::redactor::Redactor;
use super::resolve::{Names, RequestContext};
use super::{Refusal, SendError, SendReceipt, response};

mod endpoint;
pub mod event;
pub mod sign;
pub mod tls;

pub use endpoint::{InvalidWebhook, Parts, Token, WebhookEndpoint};
pub use sign::SigningKey;
pub use tls::Tls;

/// Addresses whose answers and connection errors a message may quote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quote {
    Every,
    Public,
    None,
}

impl Quote {
    /// Returns whether a message may quote an address; `is_public` if the address is known to be public.
    fn allows(self, is_public: bool) -> bool {
        match self {
            Self::Every => true,
            Self::Public => is_public,
            Self::None => false,
        }
    }
}

/// Message about every missing response from an address that is not quoted: the cause would reveal whether a server
/// listens there.
const NO_ANSWER: &str = "no answer from the endpoint; the operator hides the cause for a private address and behind a proxy. \
    Check URL, TLS and NetworkPolicies";

/// Text after the status code of a response from an address that is not quoted.
const NOT_QUOTED: &str =
    "; the operator hides the response of a private address and behind a proxy";

/// Context of a request to an endpoint.
pub(super) struct WebhookRequest<'a> {
    pub(super) client: &'a reqwest::Client,
    pub(super) timeout: Duration,
    pub(super) max_retry_after: Duration,
    pub(super) check_lease: &'a (dyn Fn() -> Result<(), SendError> + Sync),
    pub(super) names: &'a Names,
    pub(super) context: &'a RequestContext,
    pub(super) quote: Quote,
}

impl WebhookRequest<'_> {
    /// Sends one event.
    pub(super) async fn send(
        &self,
        webhook: &WebhookEndpoint,
        event: event::CloudEvent,
    ) -> Result<SendReceipt, SendError> {
        let redactor = Redactor::new(&webhook.secrets);
        let carried = event.carried;
        let mut headers = webhook.headers.clone();
        event.write_headers(&mut headers);
        if let Some(key) = &webhook.signing_key {
            key.write_headers(
                &event.id,
                Timestamp::now().as_second(),
                &event.body,
                &mut headers,
            );
        }
        let request = self
            .client
            .post(webhook.url.clone())
            .headers(headers)
            .timeout(self.timeout)
            .body(event.body);
        (self.check_lease)()?;
        let mut response = request.send().await.map_err(|error| {
            // The endpoint may have a new address.
            self.names
                .forget(webhook.url.host_str().unwrap_or_default());
            self.hide_cause(redactor.error(error, self.timeout, webhook.url_is_secret))
        })?;
        let status = response.status().as_u16();
        let quotable = self.quote.allows(
            response
                .remote_addr()
                .is_some_and(|address| !is_private(address.ip())),
        );
        let after = response::retry_after(&response, Timestamp::now())
            .map(|after| after.min(self.max_retry_after));
        let body = if (200..300).contains(&status) {
            // The receiver accepted the request. Reading a short rest lets the client reuse the connection.
            let _ = tokio::time::timeout(DRAIN_TIMEOUT, response::body(&mut response)).await;
            Vec::new()
        } else {
            response::body(&mut response).await
        };
        let quote = if quotable {
            match redactor.quote(&body) {
                quote if quote.is_empty() => quote,
                quote => format!(" {quote}"),
            }
        } else {
            NOT_QUOTED.into()
        };
        interpret(status, after, &quote, carried)
    }

    /// Returns the error with its cause only if the address may be quoted.
    fn hide_cause(&self, error: SendError) -> SendError {
        let quotable = self.quote.allows(self.context.is_public());
        match error {
            SendError::Retry { message, after } if !quotable => {
                tracing::debug!(
                    error = message,
                    "request to a private address failed; will retry"
                );
                SendError::Retry {
                    message: NO_ANSWER.into(),
                    after,
                }
            }
            error => error,
        }
    }
}

/// Maximum time to read the rest of a successful response.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);

pub(super) fn interpret(
    status: u16,
    after: Option<Duration>,
    quote: &str,
    carried: usize,
) -> Result<SendReceipt, SendError> {
    let answer = format!("{status}{quote}");
    let refused = |reason, message| Err(SendError::Refused { reason, message });
    match status {
        200..=299 => Ok(SendReceipt {
            accepted: carried,
            migrated_to: None,
        }),
        300..=399 => refused(
            Refusal::Redirected,
            format!(
                "the endpoint answered with a redirect ({status}), which the operator does not follow; set the final URL"
            ),
        ),
        400 | 413 | 415 | 422 => refused(
            Refusal::Rejected,
            format!("the endpoint rejected the message ({answer})"),
        ),
        401 => refused(
            Refusal::Unauthorized,
            format!(
                "the endpoint requires a valid token ({answer}); check apiToken, headerName and signingKey"
            ),
        ),
        403 => refused(
            Refusal::Forbidden,
            format!(
                "the endpoint forbids the request ({answer}); check the permissions of the token at the endpoint"
            ),
        ),
        404 => refused(
            Refusal::NotFound,
            format!("the URL was not found ({answer}); correct the URL"),
        ),
        408 | 429 | 500.. => Err(SendError::Retry {
            message: format!("the endpoint failed ({answer})"),
            after,
        }),
        410 => refused(
            Refusal::Gone,
            format!("the endpoint was removed ({answer}); restore it, or set another URL"),
        ),
        400..=499 => refused(
            Refusal::UnexpectedStatus,
            format!(
                "the endpoint answered with an unexpected status ({answer}); check the URL and the proxies in front of the endpoint"
            ),
        ),
        ..200 => Err(SendError::Retry {
            message: format!("unexpected answer ({answer})"),
            after,
        }),
    }
}

#[cfg(test)]
mod tests;
