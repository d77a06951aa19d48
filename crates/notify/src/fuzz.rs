//! Targets of the fuzzer (`make fuzz`), which the tests call with the inputs of `fuzz/corpus`.
//!
//! A target passes an input to a parser as the operator does, and asserts what holds for every input. The parts of an
//! input are separated by lines `---`.

#![allow(clippy::missing_panics_doc)] // a target panics if the parser is wrong

use std::time::Duration;

use futures::executor::block_on;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use jiff::Timestamp;
use qm_api::contact_point::ChatId;
use qm_api::tracked_field::{ChangedBy, Entry};
use secrecy::{ExposeSecret, SecretString};

use crate::fixtures::updated;
use crate::message::{self, BODY, Body, TextLimit, TokenFormat, View, template};
use crate::rate_limit::LONGEST_PAUSE;
use crate::redactor::{Redactor, percent_decoded};
use crate::telegram::{self, SendMessageReply, TelegramChat};
use crate::webhook::event::CloudEvent;
use crate::webhook::{self, Parts, Token, WebhookEndpoint};
use crate::when::When;
use crate::{MessageContent, OutgoingEntry, SendError, response};

/// Maximum length of an error message, in bytes.
const MAX_ERROR: usize = 8 * 1024;

/// Time at which answers arrive.
const NOW: Timestamp = Timestamp::constant(1_767_323_045, 0);

fn parts<const N: usize>(input: &str) -> [&str; N] {
    let mut parts = input.splitn(N, "\n---\n");
    std::array::from_fn(|_| parts.next().unwrap_or_default())
}

fn check_error(error: &str) {
    assert!(!error.is_empty(), "an error has no message");
    assert!(error.len() <= MAX_ERROR, "long error: {error}");
}

/// Evaluates `spec.when`: the expression, a value, the previous value.
pub fn when(input: &str) {
    let [expression, value, previous] = parts(input);
    let when = match When::parse(expression) {
        Ok(when) => when,
        Err(error) => return check_error(&error),
    };
    let mut item = updated(previous, value);
    item.entry.context = [("owner".into(), value.into())].into();
    item.entry.changed_by = Some(Box::new(ChangedBy {
        manager: value.into(),
        operation: Some("Update".into()),
        subresource: None,
        time: item.entry.time.clone(),
    }));
    let with_previous = when.evaluate(&item.entry, item.previous.as_ref());
    let again = when.evaluate(&item.entry, item.previous.as_ref());
    assert_eq!(with_previous, again, "two results");
    item.entry.value = None;
    item.entry.changed_by = None;
    for result in [with_previous, when.evaluate(&item.entry, None)] {
        if let Err(error) = result {
            check_error(&error);
        }
    }
}

/// Renders `spec.template` and a webhook's `body`: the template, a value, the previous value.
pub fn template(input: &str) {
    let [source, value, previous] = parts(input);
    let mut item = updated(previous, value);
    item.entry.context = [("owner".into(), value.into())].into();
    item.template = Some(source.into());
    let view = View::of(&item, Some("prod"));
    let checked = message::check_template(source);
    let rendered = template::message(source, &view);
    match (checked, &rendered) {
        (Err(error), rendered) => {
            check_error(&error);
            assert_eq!(rendered, &Err(error), "the check differs from rendering");
        }
        (Ok(()), Err(error)) => check_error(error),
        (Ok(()), Ok(text)) => assert!(text.len() <= TextLimit::WEBHOOK.max(), "long text"),
    }
    let items = [item.clone(), item];
    for (count, limit) in [
        (1, TextLimit::TELEGRAM),
        (2, TextLimit::TELEGRAM),
        (2, TextLimit::WEBHOOK),
    ] {
        let digest = message::render(&items[..count], Some("prod"), Some("footer"), false, limit);
        assert!(limit.measure(&digest.text) <= limit.max(), "long message");
        assert!(!digest.text.is_empty() && digest.carried > 0, "no message");
    }
    body(source, &view);
}

fn body(source: &str, view: &View) {
    let entries = [view.clone(), view.clone()];
    for format in [None, Some(TokenFormat::Json), Some(TokenFormat::Markup)] {
        let body = match format {
            None => Body::new(source),
            Some(format) => Body::with_token(source, format),
        };
        let body = match body {
            Ok(body) => body,
            Err(error) => {
                check_error(&error);
                continue;
            }
        };
        let checked = body.check(view, &entries, "text");
        let rendered = body.render("1", view, &entries, "text");
        assert_eq!(checked.is_ok(), rendered.is_ok(), "the check differs");
        let token = SecretString::from(TOKEN);
        match rendered.and_then(|body| body.with_token(format.map(|_| &token))) {
            Ok(text) => {
                assert!(text.len() <= BODY, "long body");
                let has_token = text.contains(TOKEN) || source.contains(TOKEN);
                assert!(has_token || format.is_none(), "no token");
            }
            Err(error) => {
                check_error(&error);
                assert!(source.contains(TOKEN) || !error.contains(TOKEN), "token");
            }
        }
    }
}

const TOKEN: &str = "12345678:AbCdEf-0123_456789";

/// Returns an answer with this status, `Retry-After` and body. Leaves out an invalid status or header.
fn answer(status: &str, retry_after: &str, body: &str) -> reqwest::Response {
    let status = status.parse().ok();
    let status = status.and_then(|status: u16| StatusCode::from_u16(status).ok());
    let mut answer = http::Response::new(body.to_owned());
    *answer.status_mut() = status.unwrap_or_default();
    if let Ok(value) = HeaderValue::from_str(retry_after) {
        answer.headers_mut().insert(header::RETRY_AFTER, value);
    }
    answer.into()
}

fn check_send_error(error: &SendError) {
    let message = error.to_string();
    check_error(&message);
    assert!(message.chars().count() <= 600, "long message: {message}");
    if let SendError::Retry { after, .. } = error {
        assert!(after.is_none_or(|after| after <= LONGEST_PAUSE));
    }
}

/// Interprets an answer of the Bot API: the status, `Retry-After`, the body, which may have [`TOKEN`].
pub fn telegram(input: &str) {
    let [status, retry_after, body] = parts(input);
    let mut answer = answer(status, retry_after, body);
    let token = SecretString::from(TOKEN);
    let redactor = Redactor::new([&token]);
    let status = answer.status().as_u16();
    let header = response::retry_after(&answer, NOW);
    let body = block_on(response::body(&mut answer));
    match telegram::interpret(status, header, &body, &redactor) {
        SendMessageReply::Accepted => assert_eq!(status, 200),
        SendMessageReply::Migrated(_) => {}
        SendMessageReply::Failed(error) => {
            check_send_error(&error);
            let message = error.to_string();
            for part in TOKEN.split(':') {
                assert!(!message.contains(part), "token in {message}");
            }
        }
    }
    // The bytes of a token come from a Secret.
    if let Err(error) = TelegramChat::new(&body, ChatId::Id(1), None, false) {
        let error = error.to_string();
        check_error(&error);
        check_hidden(&String::from_utf8_lossy(&body), &error);
    }
}

/// Interprets an answer of a webhook: the status, `Retry-After`, the URL, the token, the body.
pub fn webhook(input: &str) {
    let [status, retry_after, url, token, body] = parts(input);
    let mut answer = answer(status, retry_after, body);
    let endpoint = WebhookEndpoint::new(Parts {
        url: url.into(),
        url_is_secret: true,
        token: Some(Token::InHeader("X-Token".into(), token.into())),
        ..Parts::default()
    });
    let endpoint = match endpoint {
        Ok(endpoint) => endpoint,
        Err(error) => {
            let error = error.to_string();
            check_error(&error);
            check_hidden(url, &error);
            check_hidden(token, &error);
            return;
        }
    };
    let redactor = Redactor::new(&endpoint.secrets);
    let status = answer.status().as_u16();
    let after = response::retry_after(&answer, NOW);
    let body = block_on(response::body(&mut answer));
    let quote = redactor.quote(&body);
    assert!(quote.chars().count() <= 201, "long quote: {quote}");
    let error = webhook::interpret(status, after, &quote, 1).err();
    let message = error.as_ref().map(SendError::to_string).unwrap_or_default();
    for secret in endpoint.secrets.iter().map(ExposeSecret::expose_secret) {
        let shows = |text: &str| is_distinct(secret) && text.contains(secret);
        assert!(!shows(&quote) && !shows(&message), "secret in {message}");
    }
    if let Some(error) = error {
        check_send_error(&error);
    }
}

/// Asserts that an error does not quote a secret. A short one may be a word of the error.
fn check_hidden(secret: &str, error: &str) {
    let is_long = secret.len() >= 16 && is_distinct(secret);
    assert!(!is_long || !error.contains(secret), "secret in {error}");
}

/// Returns whether a secret differs from the texts that replace secrets.
fn is_distinct(secret: &str) -> bool {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "-_.~:/?=%+ ".contains(char);
    secret.len() >= 4
        && secret.chars().all(is_plain)
        && !"redacted (not shown: a response cannot be redacted if a secret has fewer than 4 characters)"
            .contains(secret)
}

/// Renders events: the cluster, the footer, a `body`, a history. An entry precedes the next one.
pub fn cloud_event(input: &str) {
    let [cluster, footer, body, history] = parts(input);
    let Ok(history) = serde_json::from_str::<Vec<Entry>>(history) else {
        return;
    };
    if let Ok(written) = serde_json::to_string(&history) {
        let read = serde_json::from_str::<Vec<Entry>>(&written);
        let again = read.and_then(|read| serde_json::to_string(&read));
        assert_eq!(again.ok(), Some(written), "a history changes when read");
    }
    let mut previous = None;
    let items = history.into_iter().map(|entry| OutgoingEntry {
        previous: previous.replace(entry.clone()),
        ..OutgoingEntry {
            entry,
            ..updated("", "")
        }
    });
    let items: Vec<_> = items.collect();
    let test = MessageContent::Test {
        namespace: "team",
        name: cluster,
        id: "t1",
    };
    let own = Body::new(body).ok().map(Some);
    for body in std::iter::once(None).chain(own) {
        let has_body = body.is_some();
        let endpoint = WebhookEndpoint::new(Parts {
            url: "https://example.com/".into(),
            body,
            footer: (!footer.is_empty()).then(|| footer.to_owned()),
            ..Parts::default()
        });
        let Ok(endpoint) = endpoint else {
            unreachable!("the URL is valid")
        };
        for content in [test, MessageContent::Entries(&items)] {
            let event = CloudEvent::render(&endpoint, content, Some(cluster), false);
            check_event(&event, has_body, items.len());
        }
    }
}

fn check_event(event: &CloudEvent, has_body: bool, entries: usize) {
    assert!(event.carried <= entries);
    assert!(event.body.len() <= BODY, "a body of {}", event.body.len());
    if !has_body {
        let data: Result<serde_json::Value, _> = serde_json::from_slice(&event.body);
        assert!(data.is_ok_and(|data| data.is_object()), "no JSON object");
    }
    let mut headers = HeaderMap::new();
    event.write_headers(&mut headers);
    for name in [
        "ce-id",
        "ce-source",
        "ce-type",
        "ce-time",
        "ce-specversion",
        "content-type",
    ] {
        assert!(headers.contains_key(name), "no {name}");
    }
    for (name, value) in &headers {
        check_header(name, value);
    }
    let id = headers.get("ce-id").and_then(|id| id.to_str().ok());
    let id = id.unwrap_or_default();
    let decoded = percent_decoded(id).unwrap_or_else(|| id.to_owned());
    if event.id.len() <= 256 {
        assert_eq!(decoded, event.id);
    } else {
        assert!(event.id.starts_with(&decoded), "ce-id {decoded:?}");
    }
}

fn check_header(name: &HeaderName, value: &HeaderValue) {
    let is_graphic = value.as_bytes().iter().all(u8::is_ascii_graphic);
    assert!(is_graphic && value.len() <= 1024, "{name}: {value:?}");
}

/// Parses `Retry-After`.
pub fn retry_after(input: &str) {
    let pause = response::parse_retry_after(input.trim(), NOW);
    assert!(pause.unwrap_or(Duration::ZERO) <= LONGEST_PAUSE);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("when", when)]
    #[case("template", template)]
    #[case("telegram", telegram)]
    #[case("webhook", webhook)]
    #[case("cloud_event", cloud_event)]
    #[case("duration", retry_after)]
    fn target_accepts_the_corpus(#[case] name: &str, #[case] target: fn(&str)) {
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus");
        let files = std::fs::read_dir(format!("{corpus}/{name}")).unwrap();
        let mut inputs = 0;
        for file in files {
            let file = file.unwrap().path();
            println!("{}", file.display());
            target(&std::fs::read_to_string(file).unwrap());
            inputs += 1;
        }
        assert!(inputs > 0, "{name} has no inputs");
    }
}
