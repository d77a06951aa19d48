//! What is posted: a `CloudEvent` in binary mode, or a body of the user's own.

use std::fmt::Write;

use http::{HeaderMap, HeaderName, HeaderValue, header};
use jiff::Timestamp;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::Hook;
use crate::message::template::Body;
use crate::message::{self, BODY, Limit, MAX_ENTRIES, View, digest};
use crate::{Content, Item};

/// One change.
const CHANGED: &str = "dev.quartermaster.trackedfield.changed";
/// Several changes.
const DIGEST: &str = "dev.quartermaster.trackedfield.digest";
/// A test message.
const READY: &str = "dev.quartermaster.contactpoint.ready";

/// A request's headers and body.
#[derive(Debug)]
pub struct Event {
    /// `ce-id` and `Idempotency-Key`: the id of the entry or of the test message; a digest's follows from its entries' ids.
    pub id: String,
    /// `ce-type`.
    pub kind: &'static str,
    /// `ce-source`: the path of the object that speaks.
    pub source: String,
    /// `ce-subject`: what it speaks of.
    pub subject: Option<String>,
    /// `ce-time`.
    pub time: String,
    /// `Content-Type`.
    pub content_type: HeaderValue,
    /// The body.
    pub body: Vec<u8>,
    /// How many entries it carries.
    pub taken: usize,
}

/// Data of a [`CHANGED`] event, and each entry of a [`DIGEST`]'s.
#[derive(Serialize)]
struct Change<'a> {
    #[serde(flatten)]
    view: &'a View,
    /// The message, as a chat would show it.
    text: &'a str,
}

/// Data of a [`READY`] event.
#[derive(Serialize)]
struct Ready<'a> {
    cluster: Option<&'a str>,
    namespace: &'a str,
    name: &'a str,
    text: &'a str,
}

impl Event {
    /// Renders `content` for `hook`. A body template that fails is left out: the event's own data is sent instead.
    pub fn render(hook: &Hook, content: Content<'_>, cluster: Option<&str>, plain: bool) -> Self {
        match content {
            Content::Test {
                namespace,
                name,
                id,
            } => Self::test(hook, namespace, name, id, cluster),
            Content::Entries(items) => {
                let own = hook
                    .body
                    .as_ref()
                    .and_then(|body| Self::with_body(hook, body, items, cluster, plain));
                own.unwrap_or_else(|| Self::with_data(items, cluster, plain))
            }
        }
    }

    fn test(hook: &Hook, namespace: &str, name: &str, id: &str, cluster: Option<&str>) -> Self {
        let text = message::ready(cluster);
        let data = Ready {
            cluster,
            namespace,
            name,
            text: &text,
        };
        let own = hook.body.as_ref().and_then(|body| {
            let view = View {
                kind: "ContactPoint".into(),
                namespace: namespace.into(),
                name: name.into(),
                action: "Ready".into(),
                cluster: cluster.map(Into::into),
                ..View::default()
            };
            logged(body.render(&view, &[], &text))
        });
        let (body, content_type) = match own {
            Some(body) => (body.into_bytes(), hook.content_type.clone()),
            None => (json(&data), JSON),
        };
        Self {
            id: id.to_owned(),
            kind: READY,
            source: format!("/apis/tg.azamaton.ru/v1/namespaces/{namespace}/contactpoints/{name}"),
            subject: None,
            time: Timestamp::now().to_string(),
            content_type,
            body,
            taken: 0,
        }
    }

    /// The user's own body. Fewer entries are tried while it is too long or fails; none is left when it always does.
    fn with_body(
        hook: &Hook,
        body: &Body,
        items: &[Item],
        cluster: Option<&str>,
        plain: bool,
    ) -> Option<Self> {
        let mut offered = items;
        loop {
            let text = message::render(offered, cluster, plain, Limit::WEBHOOK);
            let views: Vec<_> = offered[..text.taken]
                .iter()
                .map(|item| View::of(item, cluster))
                .collect();
            if let Some(body) = logged(body.render(views.first()?, &views, &text.text)) {
                let mut event = Self::about(&offered[..text.taken], body.into_bytes());
                event.content_type = hook.content_type.clone();
                return Some(event);
            }
            if text.taken == 1 {
                return None;
            }
            offered = &offered[..text.taken / 2];
        }
    }

    /// The event's own data: as many entries as fit.
    fn with_data(items: &[Item], cluster: Option<&str>, plain: bool) -> Self {
        let change = |item: &Item| {
            let view = View::of(item, cluster);
            let text = digest::entry_text(item, &view, plain);
            json(&Change {
                view: &view,
                text: &Limit::WEBHOOK.cut(&text),
            })
        };
        if items.len() > 1 {
            let cluster = json(&cluster);
            // What surrounds the entries: names and braces, the cluster's name, and each id with its quotes and comma.
            let mut room = BODY.saturating_sub(64 + cluster.len());
            let mut ids = Vec::new();
            let mut entries = Vec::new();
            for item in &items[..items.len().min(MAX_ENTRIES)] {
                let (id, entry) = (message::entry_id(item), change(item));
                let needed = entry.len() + json(&id).len() + 2;
                if needed > room {
                    break;
                }
                room -= needed;
                ids.push(id);
                entries.push(entry);
            }
            if entries.len() > 1 {
                return Self::about(&items[..entries.len()], changes(&cluster, &ids, &entries));
            }
        }
        match items.first() {
            Some(item) => Self::about(&items[..1], change(item)),
            None => Self::about(items, b"{}".to_vec()),
        }
    }

    /// An event that carries exactly `items`.
    fn about(items: &[Item], body: Vec<u8>) -> Self {
        let time = |item: &Item| item.entry.time.as_ref().map(|time| time.0.to_string());
        let (id, kind, source, subject) = match items {
            [item] => (
                message::entry_id(item),
                CHANGED,
                format!(
                    "/apis/tg.azamaton.ru/v1/namespaces/{}/trackedfields/{}",
                    item.namespace, item.name
                ),
                item.entry.subject.as_ref().map(ToString::to_string),
            ),
            _ => (
                digest_id(items),
                DIGEST,
                "/apis/tg.azamaton.ru/v1/trackedfields".into(),
                None,
            ),
        };
        Self {
            id,
            kind,
            source,
            subject,
            time: items
                .last()
                .and_then(time)
                .unwrap_or_else(|| Timestamp::now().to_string()),
            content_type: JSON,
            body,
            taken: items.len(),
        }
    }

    /// Sets what the binding's binary mode asks for (`datacontenttype` is `Content-Type` there), and `Idempotency-Key`.
    pub(super) fn write_headers(&self, headers: &mut HeaderMap) {
        let mut set = |name: &'static str, value: &str| {
            // What is percent-encoded is ASCII.
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

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Data of a [`DIGEST`] event: the cluster, the ids of all its entries in order, and the entries as [`CHANGED`] has them.
fn changes(cluster: &[u8], ids: &[String], entries: &[Vec<u8>]) -> Vec<u8> {
    let parts: [&[u8]; 7] = [
        b"{\"cluster\":",
        cluster,
        b",\"ids\":",
        &json(ids),
        b",\"entries\":[",
        &entries.join(&b','),
        b"]}",
    ];
    parts.concat()
}

/// None of the types above can fail to serialise.
fn json<T: Serialize + ?Sized>(data: &T) -> Vec<u8> {
    serde_json::to_vec(data).unwrap_or_default()
}

fn logged(rendered: Result<String, String>) -> Option<String> {
    rendered
        .inspect_err(|error| {
            tracing::warn!(
                error,
                "the body template failed: the event's own data is sent"
            );
        })
        .ok()
}

/// The same entries have the same id, so that a receiver can tell a repeated digest.
fn digest_id(items: &[Item]) -> String {
    let mut digest = Sha256::new();
    for item in items {
        digest.update(message::entry_id(item));
        digest.update(b"\n");
    }
    // Half of it is unique enough, and leaves the header short.
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

/// A header's value as the binding (section 3.1.3.2) writes it: space, quote, percent and all that is not printable ASCII
/// are percent-encoded. At most 1 KiB of it, because servers bound their headers.
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
