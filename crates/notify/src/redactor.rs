//! Quotes of receivers' responses and errors of connections, without the secrets of the request.

use std::error::Error;
use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};

use super::address::AddressDenied;
use super::message::{breaks_line, escape_markup};
use super::{Refusal, SendError};

/// Maximum length of a quote, in characters.
const MAX_QUOTE_CHARS: usize = 200;
/// Minimum length of a redacted piece of a secret, in bytes.
const MIN_PIECE: usize = 8;
/// Minimum length of a redacted whole secret, in bytes. A message quotes nothing if a secret is shorter.
const MIN_SECRET: usize = 4;

/// Maximum number of secrets of a request and their pieces. Each has some ten forms, and each form takes a pass over the
/// response.
const MAX_PIECES: usize = 64;

/// Redactor of the secrets that a request carries.
pub(super) struct Redactor {
    forms: Vec<String>,
    /// True if a secret is too short to be found in a text.
    is_too_short: bool,
    /// True if the secrets have too many pieces, so that there are no forms.
    is_too_long: bool,
}

impl Redactor {
    /// Creates a redactor of each secret as a whole, of its parts (a URL's path segments and query values, a header's
    /// words), and of their JSON, HTML and percent-decoded forms.
    pub(super) fn new<'a>(secrets: impl IntoIterator<Item = &'a SecretString>) -> Self {
        let mut forms: Vec<String> = Vec::new();
        let mut is_too_short = false;
        for secret in secrets {
            let secret = secret.expose_secret();
            is_too_short |= secret.len() < MIN_SECRET;
            forms.push(secret.to_owned());
            let separators = |char: char| "/?&=# \t,;@:".contains(char);
            forms.extend(
                secret
                    .split(separators)
                    .filter(|piece| piece.len() >= MIN_PIECE)
                    .take(MAX_PIECES)
                    .map(Into::into),
            );
            if forms.len() > MAX_PIECES {
                return Self {
                    forms: Vec::new(),
                    is_too_short,
                    is_too_long: true,
                };
            }
            // A receiver's 404 page usually quotes the path with its query.
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
                let json = json.trim_matches('"');
                // PHP escapes slashes, and Go HTML's special characters.
                encoded.push(json.replace('/', "\\/"));
                encoded.push(
                    json.replace('&', "\\u0026")
                        .replace('<', "\\u003c")
                        .replace('>', "\\u003e"),
                );
                encoded.push(json.into());
            }
            encoded.push(escape_markup(form));
            if let Some(decoded) = percent_decoded(form) {
                encoded.push(decoded);
            }
        }
        forms.extend(encoded);
        // A receiver may wrap lines within a secret.
        let in_one_line: Vec<_> = forms.iter().map(|form| one_line(form)).collect();
        forms.extend(in_one_line);
        forms.retain(|form| form.len() >= MIN_SECRET);
        // Longest first: if a piece inside were replaced first, the rest of the secret would stay.
        forms.sort_by_key(|form| std::cmp::Reverse(form.len()));
        forms.dedup();
        Self {
            forms,
            is_too_short,
            is_too_long: false,
        }
    }

    /// Returns `text` with every secret replaced.
    pub(super) fn redact(&self, text: &str) -> String {
        if self.is_too_long {
            return format!(
                "(not shown: a text cannot be redacted if the secrets have more than {MAX_PIECES} parts)"
            );
        }
        self.forms.iter().fold(text.to_owned(), |text, form| {
            text.replace(form.as_str(), "[redacted]")
        })
    }

    /// Returns the beginning of a response body in one line, for a message.
    pub(super) fn quote(&self, body: &[u8]) -> String {
        if self.is_too_short {
            return format!(
                "(not shown: a response cannot be redacted if a secret has fewer than {MIN_SECRET} characters)"
            );
        }
        let text = self.redact(&one_line(&String::from_utf8_lossy(body)));
        match text.char_indices().nth(MAX_QUOTE_CHARS) {
            Some((end, _)) => format!("{}…", &text[..end]),
            None => text,
        }
    }

    /// Converts an error of the connection. `url_is_secret`: the request's URL comes from a Secret.
    pub(super) fn error(
        &self,
        error: reqwest::Error,
        timeout: Duration,
        url_is_secret: bool,
    ) -> SendError {
        // reqwest puts the URL into its errors.
        let error = error.without_url();
        let mut cause: &(dyn Error + 'static) = &error;
        loop {
            if let Some(denied) = cause.downcast_ref::<AddressDenied>() {
                return SendError::Refused {
                    reason: Refusal::AddressNotAllowed,
                    message: denied.message(url_is_secret),
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
                "; the server does not use TLS: write http://"
            } else {
                ""
            };
            format!("cannot connect: {}{hint}", self.redact(&cause))
        } else {
            format!("the connection failed: {}", self.redact(&cause.to_string()))
        };
        SendError::Retry {
            message,
            after: None,
        }
    }
}

/// Returns `text` in one line, with single spaces.
fn one_line(text: &str) -> String {
    let text = text.replace(breaks_line, " ");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns `text` percent-decoded, or `None` if it has no percent-encoding or decodes to invalid UTF-8.
pub(super) fn percent_decoded(text: &str) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// Whoever may write a Secret could otherwise make each response cost seconds.
    #[test]
    fn secrets_of_many_pieces_have_no_forms() {
        let of = |pieces: usize| {
            let pieces: Vec<_> = (0..pieces).map(|it| format!("\"<\"<{it:04}")).collect();
            Redactor::new([&pieces.join("/").into()])
        };
        let (few, many) = (of(MAX_PIECES - 2), of(900));
        assert!(!few.is_too_long && few.forms.len() < 1_000);
        assert!(many.is_too_long && many.forms.is_empty());
        for quote in [many.quote(b"\"<\"<0001"), many.redact("\"<\"<0001")] {
            assert!(quote.starts_with("(not shown: ") && !quote.contains('<'));
        }
    }

    #[rstest]
    #[case::whole("token 12 34 56 is unknown")]
    #[case::wrapped("token 12 34\n 56 is unknown")]
    #[case::control_character("token 12\u{0}34\u{2028}56 is unknown")]
    fn quote_contains_no_secret_with_spaces(#[case] body: &str) {
        for secret in ["12 34 56", "12  34 56"] {
            let redactor = Redactor::new([&secret.into()]);
            let quote = redactor.quote(body.as_bytes());
            assert_eq!(quote, "token [redacted] is unknown");
        }
    }
}
