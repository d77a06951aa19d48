//! Templates of webhook bodies. The template gets a placeholder, which the token replaces after rendering.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, LazyLock};

use minijinja::Environment;
use qm_api::contact_point::WebhookSpec;
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde::de::IgnoredAny;
use uuid::Uuid;

use super::template::cost::{self, TemplateLimits};
use super::template::{VARIABLES, environment, render, shown};
use super::{BODY, View};

/// Limits of a webhook's `body`; a request renders one.
const LIMITS: TemplateLimits = TemplateLimits {
    budget: 16 * 1024 * 1024,
    fuel: 100_000,
    output: BODY,
};
/// Further variables of a webhook's `body`.
const BODY_VARIABLES: [&str; 3] = ["entries", "eventId", "text"];
/// Variable of a webhook's `body` with `tokenIn: Body`.
const TOKEN: &str = "token";
/// Beginning of a placeholder. Each filter that changes the case of letters changes it.
const PLACEHOLDER: &str = "QuartermasterToken";
/// Placeholder of a body that is only checked. An error may quote it, and errors must not differ between two checks.
const CHECKED_PLACEHOLDER: &str = "QuartermasterToken00000000000000000000000000000000";
/// ID of the event in a body that is only checked.
const CHECKED_ID: &str = "digest-00000000000000000000000000000000";
const INCOMPLETE: &str = "the body does not contain the whole token: write \"{{ token }}\" or {{ token | tojson }} at its \
    place, without another filter or a slice";
const NOT_QUOTED: &str =
    "the token is not in a JSON string: write \"{{ token }}\" or {{ token | tojson }}";

/// Checks a webhook's `body` without rendering it. The token is not among its variables.
///
/// # Errors
/// Returns the error message.
pub fn check_body(source: &str) -> Result<(), String> {
    check(source, false)
}

fn check(source: &str, has_token: bool) -> Result<(), String> {
    let variables = [&VARIABLES[..], &BODY_VARIABLES].concat();
    let with_token = [&variables[..], &[TOKEN]].concat();
    if has_token {
        return cost::check(source, &with_token, LIMITS);
    }
    cost::check(source, &variables, LIMITS).map_err(|error| {
        match cost::check(source, &with_token, LIMITS) {
            Ok(()) => format!("the variable `{TOKEN}` needs webhookSpec.tokenIn: Body"),
            Err(_) => error,
        }
    })
}

/// Format of a body that contains a token, from `contentType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenFormat {
    Json,
    Form,
    /// XML or HTML.
    Markup,
    Other,
}

impl TokenFormat {
    /// Returns the format of `contentType`, which defaults to JSON.
    pub fn of(content_type: Option<&str>) -> Self {
        let media_type = content_type.unwrap_or("application/json");
        let media_type = media_type.split(';').next().unwrap_or_default();
        let media_type = media_type.trim().to_ascii_lowercase();
        let subtype = media_type
            .split_once('/')
            .map_or("", |(_, subtype)| subtype);
        match subtype.rsplit('+').next().unwrap_or_default() {
            "json" => Self::Json,
            "x-www-form-urlencoded" => Self::Form,
            "xml" | "html" => Self::Markup,
            _ => Self::Other,
        }
    }

    /// Returns `token` as the inside of a JSON string, a form value, or text or an attribute of XML. In any other format, the
    /// token stays as it is.
    pub(crate) fn escape(self, token: &str) -> String {
        match self {
            // Serialising a string cannot fail.
            Self::Json => serde_json::to_string(token)
                .ok()
                .and_then(|json| Some(json.strip_prefix('"')?.strip_suffix('"')?.to_owned()))
                .unwrap_or_default(),
            Self::Form => form_urlencoded::byte_serialize(token.as_bytes()).collect(),
            Self::Markup => escape_markup(token),
            Self::Other => token.to_owned(),
        }
    }
}

/// Returns `text` with XML's special characters escaped.
pub(crate) fn escape_markup(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

/// Checked `body` of a webhook.
#[derive(Clone, Debug)]
pub struct Body {
    source: Arc<str>,
    /// Format of the body if it contains the token.
    token_format: Option<TokenFormat>,
}

impl Body {
    /// Checks `source` once for all renderings.
    ///
    /// # Errors
    /// Returns the error message.
    pub fn new(source: &str) -> Result<Self, String> {
        Self::checked(source, None)
    }

    /// Checks `source`, which contains the token, once for all renderings.
    ///
    /// # Errors
    /// Returns the error message.
    pub fn with_token(source: &str, format: TokenFormat) -> Result<Self, String> {
        Self::checked(source, Some(format))
    }

    fn checked(source: &str, token_format: Option<TokenFormat>) -> Result<Self, String> {
        check(source, token_format.is_some())?;
        Ok(Self {
            source: source.into(),
            token_format,
        })
    }

    /// Checks the body of `webhook`, if it has one.
    ///
    /// # Errors
    /// Returns the error message.
    pub fn of(webhook: &WebhookSpec) -> Result<Option<Self>, String> {
        let token_format = webhook
            .has_token_in_body()
            .then(|| TokenFormat::of(webhook.content_type.as_deref()));
        webhook
            .body
            .as_deref()
            .map(|source| Self::checked(source, token_format))
            .transpose()
    }

    pub(crate) fn token_format(&self) -> Option<TokenFormat> {
        self.token_format
    }

    /// Renders the body. `event_id` is the ID of the event, `view` is the first entry, `entries` are all entries, `text` is the
    /// whole message.
    ///
    /// # Errors
    /// Returns the error message.
    pub fn render(
        &self,
        event_id: &str,
        view: &View,
        entries: &[View],
        text: &str,
    ) -> Result<RenderedBody, String> {
        // Nobody can guess the placeholder, so no value puts the token into a message's text.
        let placeholder = self
            .token_format
            .map(|_| format!("{PLACEHOLDER}{}", Uuid::new_v4().simple()).into());
        self.render_with(placeholder, event_id, view, entries, text)
    }

    /// Checks that the body can be rendered, with the whole token. The token itself is not needed.
    ///
    /// # Errors
    /// Returns the error message.
    pub fn check(&self, view: &View, entries: &[View], text: &str) -> Result<(), String> {
        let placeholder = self.token_format.map(|_| CHECKED_PLACEHOLDER.into());
        self.render_with(placeholder, CHECKED_ID, view, entries, text)
            .map(|_| ())
    }

    fn render_with(
        &self,
        placeholder: Option<Cow<'static, str>>,
        event_id: &str,
        view: &View,
        entries: &[View],
        text: &str,
    ) -> Result<RenderedBody, String> {
        #[derive(Serialize)]
        struct Variables<'a> {
            #[serde(flatten)]
            view: View,
            entries: Vec<View>,
            #[serde(rename = "eventId")]
            event_id: &'a str,
            text: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            token: Option<&'a str>,
        }
        static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| environment(LIMITS));
        let variables = Variables {
            view: shown(view),
            entries: entries.iter().map(shown).collect(),
            event_id,
            text,
            token: placeholder.as_deref(),
        };
        let text = render(&ENVIRONMENT, &self.source, &variables, LIMITS.output)?;
        if let Some(placeholder) = &placeholder {
            if !text.contains(&**placeholder) {
                return Err(INCOMPLETE.into());
            }
            if self.token_format == Some(TokenFormat::Json) && is_unquoted(&text, placeholder) {
                return Err(NOT_QUOTED.into());
            }
        }
        Ok(RenderedBody { text, placeholder })
    }
}

/// Returns whether `text` would be JSON if the placeholder were not a bare word.
fn is_unquoted(text: &str, placeholder: &str) -> bool {
    let is_json = |text: &str| serde_json::from_str::<IgnoredAny>(text).is_ok();
    text.trim_start().starts_with(['{', '['])
        && !is_json(text)
        && is_json(&text.replace(placeholder, "0"))
}

/// Rendered body, in which the token is still a placeholder.
pub struct RenderedBody {
    text: String,
    placeholder: Option<Cow<'static, str>>,
}

impl fmt::Display for RenderedBody {
    /// Writes the body with the placeholder.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl RenderedBody {
    /// Returns the body with the token, which is escaped already, at each of its places.
    ///
    /// # Errors
    /// Returns the error message if the token is missing, or makes the body too long.
    pub(crate) fn with_token(self, token: Option<&SecretString>) -> Result<String, String> {
        let Some(placeholder) = self.placeholder else {
            return Ok(self.text);
        };
        let token = token.ok_or("the token is missing")?.expose_secret();
        let places = self.text.matches(&*placeholder).count();
        let rest = self.text.len() - places * placeholder.len();
        if rest.saturating_add(places.saturating_mul(token.len())) > BODY {
            return Err(format!(
                "the result with the token has more than {BODY} bytes"
            ));
        }
        Ok(self.text.replace(&*placeholder, token))
    }
}

#[cfg(test)]
mod tests;
