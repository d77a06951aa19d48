//! Reading a receiver's answer, and speaking of it without a secret.

use std::error::Error;
use std::time::Duration;

use jiff::Timestamp;
use secrecy::{ExposeSecret, SecretString};

use super::address::Refused;
use super::message::leaves_line;
use super::{Failure, LONGEST_PAUSE, Refusal};

/// As much of an answer is read.
const READ: usize = 64 * 1024;
/// As much of it is quoted, in characters.
const QUOTED: usize = 200;
/// A piece of a secret is recognised from this length on, in bytes.
const PIECE: usize = 8;
/// A whole secret is recognised from this length on, in bytes; beside a shorter one nothing is quoted.
const WHOLE: usize = 4;

/// The body of `response` as far as it is read. What fails midway counts as the end.
pub(super) async fn body(response: &mut reqwest::Response) -> Vec<u8> {
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        let room = READ - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() == READ {
            break;
        }
    }
    body
}

/// `Retry-After`: seconds or a date (RFC 9110, section 10.2.3). A date in the past is no wait.
pub(super) fn retry_after(response: &reqwest::Response, now: Timestamp) -> Option<Duration> {
    let value = response
        .headers()
        .get(http::header::RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim();
    parse_retry_after(value, now)
}

fn parse_retry_after(value: &str, now: Timestamp) -> Option<Duration> {
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(seconds(value.parse().unwrap_or(u64::MAX)));
    }
    let date = jiff::fmt::rfc2822::DateTimeParser::new()
        .parse_timestamp(value)
        .ok()?;
    Some(
        Duration::try_from(date.duration_since(now))
            .unwrap_or_default()
            .min(LONGEST_PAUSE),
    )
}

/// So many seconds, [`LONGEST_PAUSE`] at most.
pub(super) fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds).min(LONGEST_PAUSE)
}

/// Secrets that a request carries, to be kept out of what is said about its answer.
pub(super) struct Secrets {
    forms: Vec<String>,
    quotable: bool,
}

impl Secrets {
    /// Knows each of `secrets` whole, in its parts (a URL's path segments and query values, a header's words), and as
    /// JSON writes it.
    pub(super) fn new<'a>(secrets: impl IntoIterator<Item = &'a SecretString>) -> Self {
        let mut forms = Vec::new();
        let mut quotable = true;
        for secret in secrets {
            let secret = secret.expose_secret();
            quotable &= secret.len() >= WHOLE;
            forms.push(secret.to_owned());
            let separators = |char: char| "/?&=# \t,;@:".contains(char);
            forms.extend(
                secret
                    .split(separators)
                    .filter(|piece| piece.len() >= PIECE)
                    .map(Into::into),
            );
            // The path with its query, as a receiver that cannot find it says it.
            forms.extend(
                secret
                    .split_once("://")
                    .and_then(|(_, rest)| rest.split_once('/'))
                    .map(|(_, path)| path.into()),
            );
        }
        let mut encoded = Vec::new();
        for form in &forms {
            if let Ok(json) = serde_json::to_string(form) {
                encoded.push(json.trim_matches('"').replace('/', "\\/"));
                encoded.push(json.trim_matches('"').into());
            }
            if let Some(decoded) = percent_decoded(form) {
                encoded.push(decoded);
            }
        }
        forms.extend(encoded);
        forms.retain(|form| form.len() >= WHOLE);
        // The longest first: a piece that is replaced inside the whole would leave the rest of it.
        forms.sort_by_key(|form| std::cmp::Reverse(form.len()));
        forms.dedup();
        Self { forms, quotable }
    }

    /// `text` with every secret in it replaced.
    pub(super) fn redact(&self, text: &str) -> String {
        self.forms.iter().fold(text.to_owned(), |text, form| {
            text.replace(form.as_str(), "[redacted]")
        })
    }

    /// The beginning of what a receiver said, for a message.
    pub(super) fn quote(&self, body: &[u8]) -> String {
        if !self.quotable {
            return format!(
                "(not shown: a secret of fewer than {WHOLE} characters cannot be redacted in it)"
            );
        }
        let text = self.redact(&String::from_utf8_lossy(body));
        let text = text.replace(leaves_line, " ");
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        match text.char_indices().nth(QUOTED) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    }

    /// What went wrong on the way to the receiver, in words.
    pub(super) fn failure(&self, error: reqwest::Error, timeout: Duration) -> Failure {
        // reqwest puts the URL into its errors.
        let error = error.without_url();
        let mut cause: &(dyn Error + 'static) = &error;
        loop {
            if let Some(refused) = cause.downcast_ref::<Refused>() {
                return Failure::Refused {
                    reason: Refusal::AddressNotAllowed,
                    message: refused.to_string(),
                };
            }
            match cause.source() {
                Some(source) => cause = source,
                None => break,
            }
        }
        let message = if error.is_timeout() {
            format!("no answer within {} s", timeout.as_secs_f64())
        } else if error.is_connect() {
            let cause = cause.to_string();
            let hint = if cause.contains("InvalidContentType") {
                "; it speaks no TLS there: write http://"
            } else {
                ""
            };
            format!("cannot connect: {}{hint}", self.redact(&cause))
        } else {
            format!("the connection failed: {}", self.redact(&cause.to_string()))
        };
        Failure::Retry {
            message,
            after: None,
        }
    }
}

/// `text` with its percent-encoding undone; none if it has none or is no text then.
fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    let mut decoded = false;
    while let [first, tail @ ..] = rest {
        let hex = (*first == b'%').then(|| tail.get(..2)).flatten();
        let byte = hex
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        if let Some(byte) = byte {
            bytes.push(byte);
            rest = &tail[2..];
            decoded = true;
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    if decoded {
        String::from_utf8(bytes).ok()
    } else {
        None
    }
}
