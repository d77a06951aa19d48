//! An HTTP endpoint: a POST of a `CloudEvents` 1.0 event for each message
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
use super::answer::{self, Secrets};
use super::message::template::Body;
use super::resolve::{Names, RequestContext};
use super::{Failure, Refusal, Sent};

pub mod event;
pub mod sign;
pub mod tls;

pub use sign::SigningKey;
pub use tls::Tls;

/// What a contact point's spec and Secrets say of an endpoint.
#[derive(Default)]
pub struct Parts {
    /// `url`, or what `urlFrom` names.
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

/// What is wrong with an endpoint, without any secret in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Invalid {
    /// The field of `webhookSpec` (or `apiToken`) to mend.
    pub field: &'static str,
    /// What is wrong and what to write instead.
    pub message: String,
}

impl Invalid {
    fn new(field: &'static str, message: impl Into<String>) -> Self {
        Self {
            field,
            message: message.into(),
        }
    }
}

/// An HTTP endpoint, ready to be sent to.
#[derive(Clone)]
pub struct Hook {
    pub(super) url: reqwest::Url,
    headers: http::HeaderMap,
    secrets: Vec<SecretString>,
    pub(super) body: Option<Body>,
    pub(super) content_type: HeaderValue,
    signing_key: Option<SigningKey>,
    pub(super) timeout: Option<Duration>,
    pub(super) tls: Option<Arc<Tls>>,
}

impl Hook {
    /// Checks the parts.
    ///
    /// # Errors
    /// The first thing that is wrong with them.
    pub fn new(parts: Parts) -> Result<Self, Invalid> {
        let url_field = if parts.url_is_secret {
            "urlFrom"
        } else {
            "url"
        };
        let url = parse_url(parts.url.expose_secret())
            .map_err(|message| Invalid::new(url_field, message))?;
        let mut headers = http::HeaderMap::new();
        for (name, value) in &parts.headers {
            let name = header_name(name).map_err(|message| Invalid::new("headers", message))?;
            let value = HeaderValue::from_str(value).map_err(|_| {
                Invalid::new(
                    "headers",
                    format!("the value of {name} holds a control character"),
                )
            })?;
            headers.insert(name, value);
        }
        let mut secrets = vec![parts.url];
        if let Some((name, token)) = parts.token {
            let name = header_name(&name).map_err(|message| Invalid::new("headerName", message))?;
            let mut value = HeaderValue::from_str(token.expose_secret()).map_err(|_| {
                Invalid::new(
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
            .map_err(|message| Invalid::new("body", message))?;
        let content_type = parts
            .content_type
            .as_deref()
            .filter(|_| body.is_some())
            .unwrap_or("application/json");
        let content_type = HeaderValue::from_str(content_type).map_err(|_| {
            Invalid::new(
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

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hook")
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

/// http or https, with a host, without credentials, spaces and fragment.
fn parse_url(text: &str) -> Result<reqwest::Url, String> {
    if text.trim().len() != text.len() {
        return Err(
            "the URL begins or ends with a space or a newline; make the Secret with `printf` or `echo -n`".into()
        );
    }
    // They would be taken out, or be sent as %20: to another path than was meant.
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
        return Err("what stands after # in a URL is not sent; remove it, or write %23".into());
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

/// Message of every request without an answer from an address that is not quoted: the cause would tell whether something
/// listens there.
const NO_ANSWER: &str = "no answer from the endpoint; the operator tells no more of a private address. Check URL, TLS and \
    NetworkPolicies";

/// In place of the answer of an address that is not quoted.
const NOT_QUOTED: &str = "(not shown: a private address)";

/// What a request needs besides the hook.
pub(super) struct Call<'a> {
    pub(super) client: &'a reqwest::Client,
    pub(super) timeout: Duration,
    pub(super) retry_after_cap: Duration,
    pub(super) held: &'a (dyn Fn() -> Result<(), Failure> + Sync),
    pub(super) names: &'a Names,
    pub(super) context: &'a RequestContext,
    pub(super) quote: Quote,
}

impl Call<'_> {
    /// Sends one event.
    pub(super) async fn send(&self, hook: &Hook, event: event::Event) -> Result<Sent, Failure> {
        let secrets = Secrets::new(&hook.secrets);
        let taken = event.taken;
        let mut headers = hook.headers.clone();
        event.write_headers(&mut headers);
        if let Some(key) = &hook.signing_key {
            key.write_headers(
                &event.id,
                Timestamp::now().as_second(),
                &event.body,
                &mut headers,
            );
        }
        let request = self
            .client
            .post(hook.url.clone())
            .headers(headers)
            .timeout(self.timeout)
            .body(event.body);
        (self.held)()?;
        let mut response = request.send().await.map_err(|error| {
            // The endpoint may have moved.
            self.names.forget(hook.url.host_str().unwrap_or_default());
            self.without_answer(secrets.failure(error, self.timeout))
        })?;
        let status = response.status().as_u16();
        let quotable = self.quote.allows(
            response
                .remote_addr()
                .is_some_and(|address| !is_private(address.ip())),
        );
        let after = answer::retry_after(&response, Timestamp::now())
            .map(|after| after.min(self.retry_after_cap));
        let body = if (200..300).contains(&status) {
            // It is taken, whatever is still said; the connection is kept when that is short.
            let _ = tokio::time::timeout(DRAIN, answer::body(&mut response)).await;
            Vec::new()
        } else {
            answer::body(&mut response).await
        };
        let said = if quotable {
            secrets.quote(&body)
        } else {
            NOT_QUOTED.into()
        };
        understand(status, after, &said, taken)
    }

    /// Returns `failure` with the cause only if the address may be quoted.
    fn without_answer(&self, failure: Failure) -> Failure {
        let quotable = self.quote.allows(self.context.is_public());
        match failure {
            Failure::Retry { message, after } if !quotable => {
                tracing::debug!(
                    error = message,
                    "request to a private address failed; will retry"
                );
                Failure::Retry {
                    message: NO_ANSWER.into(),
                    after,
                }
            }
            failure => failure,
        }
    }
}

/// How long the rest of a good answer is listened to.
const DRAIN: Duration = Duration::from_millis(500);

fn understand(
    status: u16,
    after: Option<Duration>,
    said: &str,
    taken: usize,
) -> Result<Sent, Failure> {
    let said = if said.is_empty() {
        status.to_string()
    } else {
        format!("{status} {said}")
    };
    let refused = |reason, message| Err(Failure::Refused { reason, message });
    match status {
        200..=299 => Ok(Sent {
            taken,
            migrated_to: None,
        }),
        300..=399 => refused(
            Refusal::Redirected,
            format!(
                "the endpoint answered with a redirect ({status}), which is not followed; give the final URL"
            ),
        ),
        400 | 413 | 415 | 422 => refused(
            Refusal::Rejected,
            format!("the endpoint rejected the message ({said})"),
        ),
        401 => refused(
            Refusal::Unauthorized,
            format!("the endpoint accepts no message without a valid token ({said})"),
        ),
        403 => refused(
            Refusal::Forbidden,
            format!("the endpoint refuses us ({said})"),
        ),
        404 => refused(
            Refusal::NotFound,
            format!("there is nothing at this URL ({said})"),
        ),
        408 | 429 | 500.. => Err(Failure::Retry {
            message: format!("the endpoint is in trouble ({said})"),
            after,
        }),
        410 => refused(
            Refusal::Gone,
            format!("the endpoint is gone ({said}); restore it, or give another URL"),
        ),
        400..=499 => refused(
            Refusal::UnexpectedStatus,
            format!(
                "the endpoint answered with an unexpected status ({said}); check the URL and what stands before it"
            ),
        ),
        ..200 => Err(Failure::Retry {
            message: format!("an answer that makes no sense ({said})"),
            after,
        }),
    }
}

#[cfg(test)]
mod tests;
