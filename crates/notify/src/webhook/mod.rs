//! Webhooks: an HTTP POST of a `CloudEvents` 1.0 event for each message
//! (<https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/http-protocol-binding.md>).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use jiff::Timestamp;
use qm_api::contact_point::is_reserved;
use secrecy::{ExposeSecret, SecretString};

use super::address::is_private;
use super::message::template::Body;
use super::resolve::{Names, RequestContext};
use super::response::{self, Redactor};
use super::{Refusal, SendError, SendReceipt};

pub mod event;
pub mod sign;
pub mod tls;

pub use sign::SigningKey;
pub use tls::Tls;

/// Unchecked fields of an endpoint, from a contact point's spec and Secrets.
#[derive(Default)]
pub struct Parts {
    /// `url`, or the value that `urlFrom` references.
    pub url: SecretString,
    /// Whether the URL came from a Secret.
    pub url_is_secret: bool,
    /// `headerName` and `apiToken`.
    pub token: Option<(String, SecretString)>,
    /// `headers`.
    pub headers: BTreeMap<String, String>,
    /// `body`.
    pub body: Option<String>,
    /// `contentType`.
    pub content_type: Option<String>,
    /// `signingKey`.
    pub signing_key: Option<SigningKey>,
    /// `timeoutSeconds`.
    pub timeout: Option<Duration>,
    /// `tls.secretName`.
    pub tls: Option<Tls>,
}

/// Error of an endpoint, without secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct InvalidWebhook {
    /// Field of `webhookSpec` to fix, or `apiToken`.
    pub field: &'static str,
    /// Error message, with what to write instead.
    pub message: String,
}

impl InvalidWebhook {
    fn new(field: &'static str, message: impl Into<String>) -> Self {
        Self {
            field,
            message: message.into(),
        }
    }
}

/// Endpoint of a webhook, with checked fields.
#[derive(Clone)]
pub struct WebhookEndpoint {
    pub(super) url: reqwest::Url,
    headers: http::HeaderMap,
    secrets: Vec<SecretString>,
    pub(super) body: Option<Body>,
    pub(super) content_type: HeaderValue,
    signing_key: Option<SigningKey>,
    pub(super) timeout: Option<Duration>,
    pub(super) tls: Option<Arc<Tls>>,
}

impl WebhookEndpoint {
    /// Checks `parts`.
    ///
    /// # Errors
    /// Returns the first error.
    pub fn new(parts: Parts) -> Result<Self, InvalidWebhook> {
        let url_field = if parts.url_is_secret {
            "urlFrom"
        } else {
            "url"
        };
        let url = parse_url(parts.url.expose_secret())
            .map_err(|message| InvalidWebhook::new(url_field, message))?;
        let mut headers = http::HeaderMap::new();
        for (name, value) in &parts.headers {
            let name =
                header_name(name).map_err(|message| InvalidWebhook::new("headers", message))?;
            let value = HeaderValue::from_str(value).map_err(|_| {
                InvalidWebhook::new(
                    "headers",
                    format!("the value of {name} holds a control character"),
                )
            })?;
            headers.insert(name, value);
        }
        let mut secrets = vec![parts.url];
        if let Some((name, token)) = parts.token {
            let name =
                header_name(&name).map_err(|message| InvalidWebhook::new("headerName", message))?;
            let mut value = HeaderValue::from_str(token.expose_secret()).map_err(|_| {
                InvalidWebhook::new(
                    "apiToken",
                    "the token holds a newline or another control character; make the Secret with `printf` or `echo -n`",
                )
            })?;
            value.set_sensitive(true);
            headers.insert(name, value);
            secrets.push(token);
        }
        if let Some(key) = &parts.signing_key {
            secrets.extend(key.secrets());
        }
        let body = parts
            .body
            .as_deref()
            .map(Body::new)
            .transpose()
            .map_err(|message| InvalidWebhook::new("body", message))?;
        let content_type = parts
            .content_type
            .as_deref()
            .filter(|_| body.is_some())
            .unwrap_or("application/json");
        let content_type = HeaderValue::from_str(content_type).map_err(|_| {
            InvalidWebhook::new(
                "contentType",
                "holds a control character; write for example text/plain",
            )
        })?;
        Ok(Self {
            url,
            headers,
            secrets,
            body,
            content_type,
            signing_key: parts.signing_key,
            timeout: parts.timeout,
            tls: parts.tls.map(Arc::new),
        })
    }
}

impl fmt::Debug for WebhookEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookEndpoint")
            .field(
                "headers",
                &self
                    .headers
                    .keys()
                    .map(HeaderName::as_str)
                    .collect::<Vec<_>>(),
            )
            .field("body", &self.body.is_some())
            .field("signed", &self.signing_key.is_some())
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Parses an http or https URL with a host, without credentials, spaces and fragment.
fn parse_url(text: &str) -> Result<reqwest::Url, String> {
    if text.trim().len() != text.len() {
        return Err(
            "the URL begins or ends with a space or a newline; make the Secret with `printf` or `echo -n`".into()
        );
    }
    // The URL parser would remove them or encode them as %20, which changes the path.
    if text.contains(|char: char| char.is_whitespace() || char.is_control()) {
        return Err("the URL holds a space or a control character; write %20 for a space".into());
    }
    let url: reqwest::Url = text
        .parse()
        .map_err(|error| format!("not a URL ({error}); write http:// or https://"))?;
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
        return Err("not an http:// or https:// URL".into());
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err("credentials in a URL are not sent; use apiToken and headerName".into());
    }
    if url.fragment().is_some() {
        return Err("a URL's fragment is not sent; remove the fragment, or write %23".into());
    }
    Ok(url)
}

fn header_name(name: &str) -> Result<HeaderName, String> {
    let name = HeaderName::from_bytes(name.as_bytes())
        .map_err(|_| format!("{name:?} is not a header's name"))?;
    if is_reserved(name.as_str()) {
        return Err(format!(
            "{name} is set by the request itself; use another header"
        ));
    }
    Ok(name)
}

/// Addresses whose answers and connection errors a message may quote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quote {
    Every,
    Public,
    None,
}

impl Quote {
    /// Returns whether a message may quote an address that is known to be public or not.
    fn allows(self, is_public: bool) -> bool {
        match self {
            Self::Every => true,
            Self::Public => is_public,
            Self::None => false,
        }
    }
}

/// Message of every request without a response from an address that is not quoted: the cause would reveal whether a
/// server listens there.
const NO_ANSWER: &str = "no answer from the endpoint; the operator hides the cause for a private address. Check URL, TLS and \
    NetworkPolicies";

/// Replacement for the response of an address that is not quoted.
const NOT_QUOTED: &str = "(not shown: a private address)";

/// Context of a request to an endpoint.
pub(super) struct WebhookRequest<'a> {
    pub(super) client: &'a reqwest::Client,
    pub(super) timeout: Duration,
    pub(super) retry_after_cap: Duration,
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
            self.hide_cause(redactor.error(error, self.timeout))
        })?;
        let status = response.status().as_u16();
        let quotable = self.quote.allows(
            response
                .remote_addr()
                .is_some_and(|address| !is_private(address.ip())),
        );
        let after = response::retry_after(&response, Timestamp::now())
            .map(|after| after.min(self.retry_after_cap));
        let body = if (200..300).contains(&status) {
            // The receiver accepted the request. Reading a short rest lets the client reuse the connection.
            let _ = tokio::time::timeout(DRAIN_TIMEOUT, response::body(&mut response)).await;
            Vec::new()
        } else {
            response::body(&mut response).await
        };
        let quote = if quotable {
            redactor.quote(&body)
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

fn interpret(
    status: u16,
    after: Option<Duration>,
    quote: &str,
    carried: usize,
) -> Result<SendReceipt, SendError> {
    let answer = if quote.is_empty() {
        status.to_string()
    } else {
        format!("{status} {quote}")
    };
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
            format!("the endpoint requires a valid token ({answer})"),
        ),
        403 => refused(
            Refusal::Forbidden,
            format!("the endpoint forbids the request ({answer})"),
        ),
        404 => refused(
            Refusal::NotFound,
            format!("the URL was not found ({answer})"),
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
