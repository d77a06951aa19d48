//! Requests to webhooks: a `CloudEvent` in binary mode, or the user's own body.

use std::fmt::{self, Write};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use jiff::Timestamp;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::WebhookEndpoint;
use crate::message::{self, BODY, Body, MAX_ENTRIES, TextLimit, View};
use crate::{MessageContent, OutgoingEntry};

/// Type of an event with one change.
const CHANGED_TYPE: &str = "dev.quartermaster.trackedfield.changed";
/// Type of an event with several changes.
const DIGEST_TYPE: &str = "dev.quartermaster.trackedfield.digest";
/// Type of a test message.
const READY_TYPE: &str = "dev.quartermaster.contactpoint.ready";

/// Headers and body of a request.
pub struct CloudEvent {
    /// `ce-id` and `Idempotency-Key`: the id of the entry or test message; of a digest, derived from its entries' ids.
    pub id: String,
    /// `ce-type`.
    pub kind: &'static str,
    /// `ce-source`: path of the object that the event is about.
    pub source: String,
    /// `ce-subject`: subject of the entry.
    pub subject: Option<String>,
    /// `ce-time`.
    pub time: String,
    /// `Content-Type`.
    pub content_type: HeaderValue,
    /// Body, which may contain the token.
    pub body: Vec<u8>,
    /// Number of entries in the event.
    pub carried: usize,
}

/// Data of a [`CHANGED_TYPE`] event, and of each entry in a [`DIGEST_TYPE`].
#[derive(Serialize)]
struct ChangeData<'a> {
    #[serde(flatten)]
    view: &'a View,
    /// Message text, as in a chat.
    text: &'a str,
    /// Last line of the text; an entry of a digest has none, because the digest has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    footer: Option<&'a str>,
}

/// Data of a [`READY_TYPE`] event.
#[derive(Serialize)]
struct TestData<'a> {
    cluster: Option<&'a str>,
    namespace: &'a str,
    name: &'a str,
    text: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    footer: Option<&'a str>,
}

impl CloudEvent {
    /// Renders `content` for `webhook`. If the body template fails even for the first entry alone, the event has that entry
    /// with its default data.
    pub fn render(
        webhook: &WebhookEndpoint,
        content: MessageContent<'_>,
        cluster: Option<&str>,
        plain: bool,
    ) -> Self {
        match content {
            MessageContent::Test {
                namespace,
                name,
                id,
            } => Self::test(webhook, namespace, name, id, cluster),
            MessageContent::Entries(items) => match &webhook.body {
                Some(body) => {
                    Self::with_body(webhook, body, items, cluster, plain).unwrap_or_else(|| {
                        // The body may succeed for the other entries.
                        let first = items.get(..1).unwrap_or_default();
                        Self::with_data(webhook, first, cluster, plain)
                    })
                }
                None => Self::with_data(webhook, items, cluster, plain),
            },
        }
    }

    fn test(
        webhook: &WebhookEndpoint,
        namespace: &str,
        name: &str,
        id: &str,
        cluster: Option<&str>,
    ) -> Self {
        let footer = webhook.footer.as_deref();
        let text = message::ready(cluster, footer);
        let data = TestData {
            cluster,
            namespace,
            name,
            text: &text,
            footer,
        };
        let own = webhook.body.as_ref().and_then(|body| {
            let view = test_view(namespace, name, cluster);
            log_error(webhook.render(body, id, &view, &[], &text))
        });
        let (body, content_type) = match own {
            Some(body) => (body.into_bytes(), webhook.content_type.clone()),
            None => (json(&data), JSON),
        };
        Self {
            id: id.to_owned(),
            kind: READY_TYPE,
            source: format!("/apis/tg.azamaton.ru/v1/namespaces/{namespace}/contactpoints/{name}"),
            subject: None,
            time: Timestamp::now().to_string(),
            content_type,
            body,
            carried: 0,
        }
    }

    /// Renders the user's own body. Tries fewer entries while the body is too long or the template fails; returns
    /// `None` if every attempt fails.
    fn with_body(
        webhook: &WebhookEndpoint,
        body: &Body,
        items: &[OutgoingEntry],
        cluster: Option<&str>,
        plain: bool,
    ) -> Option<Self> {
        let footer = webhook.footer.as_deref();
        let mut candidates = items;
        loop {
            let text = message::render(candidates, cluster, footer, plain, TextLimit::WEBHOOK);
            let views: Vec<_> = candidates[..text.carried]
                .iter()
                .map(|item| View::of(item, cluster))
                .collect();
            let (carried, first) = (&candidates[..text.carried], views.first()?);
            let body = webhook.render(body, &event_id(carried), first, &views, &text.text);
            if let Some(body) = log_error(body) {
                let mut event = Self::about(carried, body.into_bytes());
                event.content_type = webhook.content_type.clone();
                return Some(event);
            }
            if text.carried == 1 {
                return None;
            }
            candidates = &candidates[..text.carried / 2];
        }
    }

    /// Renders the default data with as many entries as fit.
    fn with_data(
        webhook: &WebhookEndpoint,
        items: &[OutgoingEntry],
        cluster: Option<&str>,
        plain: bool,
    ) -> Self {
        let footer = webhook.footer.as_deref();
        let change = |item: &OutgoingEntry, footer: Option<&str>| {
            let view = View::of(item, cluster);
            let text = message::entry_text(item, &view, footer, plain, TextLimit::WEBHOOK);
            json(&ChangeData {
                view: &view,
                text: &text,
                footer,
            })
        };
        if items.len() > 1 {
            let (cluster, footer) = (json(&cluster), footer.map(json));
            // Reserved bytes: names and braces, the cluster's name, the footer, and each id with its quotes and comma.
            let footer_length = footer.as_ref().map_or(0, Vec::len);
            let mut room = BODY.saturating_sub(80 + cluster.len() + footer_length);
            let mut ids = Vec::new();
            let mut entries = Vec::new();
            for item in &items[..items.len().min(MAX_ENTRIES)] {
                let (id, entry) = (message::entry_id(item), change(item, None));
                let needed = entry.len() + json(&id).len() + 2;
                if needed > room {
                    break;
                }
                room -= needed;
                ids.push(id);
                entries.push(entry);
            }
            if entries.len() > 1 {
                return Self::about(
                    &items[..entries.len()],
                    digest_data(&cluster, footer.as_deref(), &ids, &entries),
                );
            }
        }
        match items.first() {
            Some(item) => Self::about(&items[..1], change(item, footer)),
            None => Self::about(items, b"{}".to_vec()),
        }
    }

    /// Creates an event with exactly these entries.
    fn about(items: &[OutgoingEntry], body: Vec<u8>) -> Self {
        let time = |item: &OutgoingEntry| item.entry.time.as_ref().map(|time| time.0.to_string());
        let (kind, source, subject) = match items {
            [item] => (
                CHANGED_TYPE,
                format!(
                    "/apis/tg.azamaton.ru/v1/namespaces/{}/trackedfields/{}",
                    item.namespace, item.name
                ),
                item.entry.subject.as_ref().map(ToString::to_string),
            ),
            _ => (
                DIGEST_TYPE,
                "/apis/tg.azamaton.ru/v1/trackedfields".into(),
                None,
            ),
        };
        Self {
            id: event_id(items),
            kind,
            source,
            subject,
            time: items
                .last()
                .and_then(time)
                .unwrap_or_else(|| Timestamp::now().to_string()),
            content_type: JSON,
            body,
            carried: items.len(),
        }
    }

    /// Sets the headers of the binding's binary mode (`Content-Type` is `datacontenttype` there) and `Idempotency-Key`.
    pub(crate) fn write_headers(&self, headers: &mut HeaderMap) {
        let mut set = |name: &'static str, value: &str| {
            // Percent-encoding yields ASCII.
            if let Ok(value) = HeaderValue::from_str(&header_text(value)) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        set("ce-specversion", "1.0");
        set("ce-id", &self.id);
        set("ce-type", self.kind);
        set("ce-source", &self.source);
        set("ce-time", &self.time);
        set("idempotency-key", &self.id);
        if let Some(subject) = &self.subject {
            set("ce-subject", subject);
        }
        headers.insert(header::CONTENT_TYPE, self.content_type.clone());
    }
}

impl fmt::Debug for CloudEvent {
    /// Omits the body.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CloudEvent")
            .field("id", &self.id)
            .field("kind", &self.kind)
            .field("source", &self.source)
            .field("carried", &self.carried)
            .finish_non_exhaustive()
    }
}

/// Returns the variables of a test message's body.
fn test_view(namespace: &str, name: &str, cluster: Option<&str>) -> View {
    View {
        kind: "ContactPoint".into(),
        namespace: namespace.into(),
        name: name.into(),
        action: "Ready".into(),
        cluster: cluster.map(Into::into),
        ..View::default()
    }
}

/// Checks the test message of a contact point whose token goes into the body: without the token, the receiver would refuse
/// the message.
///
/// # Errors
/// Returns the error message.
pub fn check_test(
    body: &Body,
    namespace: &str,
    name: &str,
    cluster: Option<&str>,
    footer: Option<&str>,
) -> Result<(), String> {
    if body.token_format().is_none() {
        return Ok(());
    }
    let view = test_view(namespace, name, cluster);
    body.check(&view, &[], &message::ready(cluster, footer))
}

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Returns the data of a [`DIGEST_TYPE`] event: the cluster, the footer, the ids of all its entries in order, and the entries
/// as in [`CHANGED_TYPE`].
fn digest_data(
    cluster: &[u8],
    footer: Option<&[u8]>,
    ids: &[String],
    entries: &[Vec<u8>],
) -> Vec<u8> {
    let footer = footer.map_or_else(Vec::new, |footer| [b",\"footer\":", footer].concat());
    let parts: [&[u8]; 8] = [
        b"{\"cluster\":",
        cluster,
        &footer,
        b",\"ids\":",
        &json(ids),
        b",\"entries\":[",
        &entries.join(&b','),
        b"]}",
    ];
    parts.concat()
}

/// Serialises event data; the types above cannot fail.
fn json<T: Serialize + ?Sized>(data: &T) -> Vec<u8> {
    serde_json::to_vec(data).unwrap_or_default()
}

fn log_error(rendered: Result<String, String>) -> Option<String> {
    rendered
        .inspect_err(|error| {
            tracing::warn!(error, "body template failed; sending default data");
        })
        .ok()
}

/// Returns the id of an event with exactly these entries.
fn event_id(items: &[OutgoingEntry]) -> String {
    match items {
        [item] => message::entry_id(item),
        _ => digest_id(items),
    }
}

/// Returns the id of a digest, which depends only on its entries, so that a receiver can recognise a repetition.
fn digest_id(items: &[OutgoingEntry]) -> String {
    let mut digest = Sha256::new();
    for item in items {
        digest.update(message::entry_id(item));
        digest.update(b"\n");
    }
    // Half of the digest is unique enough and keeps the header short.
    digest
        .finalize()
        .iter()
        .take(16)
        .fold("digest-".to_owned(), |mut id, byte| {
            // Writing into a String cannot fail.
            let _ = write!(id, "{byte:02x}");
            id
        })
}

/// Encodes a header's value as the binding requires (section 3.1.3.2): percent-encodes space, quote, percent and
/// everything that is not printable ASCII. Keeps at most 1 KiB, because servers limit headers.
fn header_text(value: &str) -> String {
    const BYTES: usize = 1024;
    let mut text = String::new();
    for char in value.chars() {
        let before = text.len();
        if matches!(char, '!' | '#' | '$' | '&'..='~') {
            text.push(char);
        } else {
            for byte in char.encode_utf8(&mut [0; 4]).bytes() {
                let _ = write!(text, "%{byte:02X}");
            }
        }
        if text.len() > BYTES {
            text.truncate(before);
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests;
