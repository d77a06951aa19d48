//! Endpoint of a webhook.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderName, HeaderValue};
use qm_api::contact_point::is_reserved;
use secrecy::{ExposeSecret, SecretString};

use super::{SigningKey, Tls};
use crate::message::{Body, View};

/// Maximum length of a token in a body, in bytes.
const MAX_BODY_TOKEN: usize = 8 * 1024;

/// Token of a request, with its place.
pub enum Token {
    /// `headerName` and `apiToken`.
    InHeader(String, SecretString),
    /// `apiToken`, at the place that `body` gives it.
    InBody(SecretString),
}

/// Unchecked fields of an endpoint, from a contact point's spec and Secrets.
#[derive(Default)]
pub struct Parts {
    /// `url`, or the value that `urlFrom` references.
    pub url: SecretString,
    /// Whether the URL came from a Secret.
    pub url_is_secret: bool,
    pub token: Option<Token>,
    pub headers: BTreeMap<String, String>,
    pub body: Option<Body>,
    pub content_type: Option<String>,
    pub signing_key: Option<SigningKey>,
    /// `timeoutSeconds`.
    pub timeout: Option<Duration>,
    /// `tls.secretName`.
    pub tls: Option<Tls>,
    /// `spec.footer`.
    pub footer: Option<String>,
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
    pub(crate) url: reqwest::Url,
    pub(crate) url_is_secret: bool,
    pub(super) headers: http::HeaderMap,
    pub(crate) secrets: Vec<SecretString>,
    pub(super) body: Option<Body>,
    /// Token of the body, escaped for its format.
    body_token: Option<SecretString>,
    pub(super) content_type: HeaderValue,
    pub(super) signing_key: Option<SigningKey>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(super) footer: Option<String>,
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
                    format!("the value of {name} contains a control character; remove it"),
                )
            })?;
            headers.insert(name, value);
        }
        let mut secrets = vec![parts.url];
        let token_format = parts.body.as_ref().and_then(Body::token_format);
        let mut body_token = None;
        match (parts.token, token_format) {
            (Some(Token::InHeader(name, token)), None) => {
                let name = header_name(&name)
                    .map_err(|message| InvalidWebhook::new("headerName", message))?;
                let mut value = HeaderValue::from_str(token.expose_secret()).map_err(|_| {
                InvalidWebhook::new(
                    "apiToken",
                    "the token contains a newline or another control character; make the Secret with `printf` or `echo -n`",
                )
            })?;
                value.set_sensitive(true);
                headers.insert(name, value);
                secrets.push(token);
            }
            (Some(Token::InBody(token)), Some(format)) => {
                check_body_token(token.expose_secret())
                    .map_err(|message| InvalidWebhook::new("apiToken", message))?;
                let escaped = SecretString::from(format.escape(token.expose_secret()));
                // A receiver may quote the body as it is.
                secrets.extend([token, escaped.clone()]);
                body_token = Some(escaped);
            }
            (None, None) => {}
            (_, Some(_)) => {
                return Err(InvalidWebhook::new(
                    "tokenIn",
                    "Body needs a token: add spec.apiToken, or write tokenIn: Header",
                ));
            }
            (Some(Token::InBody(_)), None) => {
                return Err(InvalidWebhook::new(
                    "tokenIn",
                    "Body needs body: add a body with {{ token }} at the token's place, or write tokenIn: Header",
                ));
            }
        }
        if let Some(key) = &parts.signing_key {
            secrets.extend(key.secrets());
        }
        let content_type = parts
            .content_type
            .as_deref()
            .filter(|_| parts.body.is_some())
            .unwrap_or("application/json");
        let content_type = HeaderValue::from_str(content_type).map_err(|_| {
            InvalidWebhook::new(
                "contentType",
                "contains a control character; write for example text/plain",
            )
        })?;
        Ok(Self {
            url,
            url_is_secret: parts.url_is_secret,
            headers,
            secrets,
            body: parts.body,
            body_token,
            content_type,
            signing_key: parts.signing_key,
            timeout: parts.timeout,
            tls: parts.tls.map(Arc::new),
            footer: parts.footer,
        })
    }

    /// Renders `body` with the token. See [`Body::render`].
    pub(super) fn render(
        &self,
        body: &Body,
        event_id: &str,
        view: &View,
        entries: &[View],
        text: &str,
    ) -> Result<String, String> {
        body.render(event_id, view, entries, text)?
            .with_token(self.body_token.as_ref())
    }
}

/// Checks a token that goes into a body. Characters other than printable ASCII are mistakes in the Secret, and the
/// redaction would not find all their encodings in a receiver's response.
fn check_body_token(token: &str) -> Result<(), String> {
    let is_printable = |byte: u8| byte == b' ' || byte.is_ascii_graphic();
    if token.is_empty() {
        return Err("the token is empty".into());
    }
    if token.len() > MAX_BODY_TOKEN {
        return Err(format!(
            "the token has more than {MAX_BODY_TOKEN} bytes; check the key in apiToken"
        ));
    }
    if !token.bytes().all(is_printable) {
        return Err(
            "the token contains a newline or another character that is not printable ASCII; make the Secret with `printf` or \
             `echo -n`"
                .into(),
        );
    }
    if token.trim().len() != token.len() {
        return Err(
            "the token begins or ends with a space; make the Secret with `printf` or `echo -n`"
                .into(),
        );
    }
    Ok(())
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
pub(super) fn parse_url(text: &str) -> Result<reqwest::Url, String> {
    if text.trim().len() != text.len() {
        return Err(
            "the URL begins or ends with a space or a newline; make the Secret with `printf` or `echo -n`".into()
        );
    }
    // The URL parser would remove them or encode them as %20, which changes the path.
    if text.contains(|char: char| char.is_whitespace() || char.is_control()) {
        return Err(
            "the URL contains a space or a control character; write %20 for a space".into(),
        );
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
            "the operator sets the header {name} itself; use another header"
        ));
    }
    Ok(name)
}
