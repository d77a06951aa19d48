//! What a message says: the default text, a user's template, a digest of several entries, and what fits.

use std::borrow::Cow;

use qm_api::tracked_field::{Action, Entry, Truncation};
use serde::Serialize;

use super::Item;

pub mod digest;
pub mod template;

pub use digest::{Rendered, render};
pub use template::{check_body, check_template};

/// What a test message says.
pub const READY: &str = "Contact point is ready";
/// The text of a test message, with `--cluster-name` in a line below.
pub fn ready(cluster: Option<&str>) -> String {
    match cluster {
        Some(cluster) => format!("{READY}\n{}", cluster_line(cluster)),
        None => READY.to_owned(),
    }
}

fn cluster_line(cluster: &str) -> String {
    format!("Cluster: {cluster}")
}

/// What is shown of a field that the resource does not have.
pub const NOT_SET: &str = "(not set)";
/// What is shown as the value of a resource that is gone.
pub const DELETED: &str = "-1";

/// A webhook's body is at most this long, in bytes.
pub const BODY: usize = 256 * 1024;

/// One digest stands for at most this many entries, so that rendering it stays short.
pub const MAX_ENTRIES: usize = 100;

/// How long a text may be, in the unit that its receiver counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// UTF-16 code units, as Telegram counts.
    Utf16(usize),
    /// Bytes of UTF-8.
    Bytes(usize),
}

impl Limit {
    /// A Telegram text: 4096 UTF-16 code units (<https://core.telegram.org/bots/api#sendmessage>).
    pub const TELEGRAM: Self = Self::Utf16(4096);
    /// A webhook's text, in bytes. Escaped in JSON (six bytes for one at worst) it stays within a body of 256 KiB.
    pub const WEBHOOK: Self = Self::Bytes(32 * 1024);

    /// The limit, in its unit.
    pub const fn max(self) -> usize {
        match self {
            Self::Utf16(max) | Self::Bytes(max) => max,
        }
    }

    /// The length of `text` in this limit's unit.
    pub fn measure(self, text: &str) -> usize {
        match self {
            Self::Utf16(_) => text.chars().map(char::len_utf16).sum(),
            Self::Bytes(_) => text.len(),
        }
    }

    /// `text`, or as much of it as fits with an ellipsis behind it. Characters stay whole.
    pub fn cut(self, text: &str) -> Cow<'_, str> {
        const ELLIPSIS: &str = "…";
        if self.measure(text) <= self.max() {
            return text.into();
        }
        let room = self.max().saturating_sub(self.measure(ELLIPSIS));
        let mut used = 0;
        let end = text.char_indices().find_map(|(at, char)| {
            used += self.measure(char.encode_utf8(&mut [0; 4]));
            (used > room).then_some(at)
        });
        format!("{}{ELLIPSIS}", &text[..end.unwrap_or(text.len())]).into()
    }
}

/// One entry as its reader sees it. These are the fields of a `CloudEvent`'s data, and (with `value` always a text) the
/// variables of a template.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// The entry's id; a receiver can tell a repeated entry by it.
    pub id: String,
    /// When the operator saw the change, RFC 3339.
    pub time: Option<String>,
    /// `--cluster-name`.
    pub cluster: Option<String>,
    /// Name of the `TrackedField`.
    pub tracked_field: String,
    /// Its namespace.
    pub tracked_field_namespace: String,
    /// Kind of the resource.
    pub kind: String,
    /// Namespace of the resource; empty for a cluster-scoped one.
    pub namespace: String,
    /// Name of the resource.
    pub name: String,
    /// The field, as the `TrackedField` gives it.
    pub field: String,
    /// `Created`, `Updated` or `Deleted`.
    pub action: String,
    /// The value; none when the resource is gone or has no such field.
    pub value: Option<String>,
    /// The resource has no such field.
    pub missing: bool,
    /// Of a truncated value: its whole length in bytes and its SHA-256.
    pub truncated: Option<Truncation>,
    /// The value before; none when there was none.
    pub previous: Option<String>,
    /// Of a truncated previous value: its whole length in bytes and its SHA-256.
    pub previous_truncated: Option<Truncation>,
    /// How many changes the entry stands for; 1 but for a merged entry.
    pub merged: u64,
    /// Of a merged entry: the first of its values. `value` is the last.
    pub first_value: Option<String>,
}

impl View {
    /// What is to be said of `item`.
    pub fn of(item: &Item, cluster: Option<&str>) -> Self {
        let entry = &item.entry;
        let subject = entry.subject.as_ref();
        // A resource that was gone had no value.
        let previous = item
            .previous
            .as_ref()
            .filter(|previous| previous.action != Action::Deleted);
        Self {
            id: entry_id(item),
            time: entry.time.as_ref().map(|time| time.0.to_string()),
            cluster: cluster.map(Into::into),
            tracked_field: item.name.clone(),
            tracked_field_namespace: item.namespace.clone(),
            kind: subject
                .map(|subject| subject.kind().into())
                .unwrap_or_default(),
            namespace: subject
                .map(|subject| subject.namespace().into())
                .unwrap_or_default(),
            name: subject
                .map(|subject| subject.name().into())
                .unwrap_or_default(),
            field: subject
                .map(|subject| subject.field().into())
                .unwrap_or_default(),
            action: entry.action.to_string(),
            value: if entry.action == Action::Deleted || entry.missing {
                None
            } else {
                entry.value.clone()
            },
            missing: entry.missing,
            truncated: entry.truncated.clone(),
            previous: previous.map(shown_value),
            previous_truncated: previous.and_then(|previous| previous.truncated.clone()),
            merged: entry.merged.unwrap_or(1),
            first_value: entry.first_value.clone(),
        }
    }

    /// The value as a message shows it.
    pub fn shown(&self) -> &str {
        match &self.value {
            Some(value) => value,
            None if self.action == Action::Deleted.to_string() => DELETED,
            None => NOT_SET,
        }
    }

    /// The default message: the document's four lines, then ours.
    pub fn text(&self) -> String {
        let mut lines = vec![
            format!("Resource kind: {}", one_line(&self.kind)),
            format!("Name: {}", one_line(&self.name)),
            format!("Status: {}", self.action),
            format!("Value: {}", with_cut(self.shown(), self.truncated.as_ref())),
        ];
        if !self.namespace.is_empty() {
            lines.push(format!("Namespace: {}", one_line(&self.namespace)));
        }
        if let Some(previous) = &self.previous {
            lines.push(format!(
                "Previous: {}",
                with_cut(previous, self.previous_truncated.as_ref())
            ));
        }
        if self.merged > 1 {
            let first = self.first_value.as_deref().unwrap_or(NOT_SET);
            let (first, last) = (one_line(first), one_line(self.shown()));
            lines.push(format!(
                "Merged: {} changes, the first value {first}, the last {last}",
                self.merged
            ));
        }
        if let Some(cluster) = &self.cluster {
            lines.push(cluster_line(cluster));
        }
        lines.join("\n")
    }

    /// One line of a digest.
    pub fn line(&self) -> String {
        let place = if self.namespace.is_empty() {
            String::new()
        } else {
            format!("{}/", self.namespace)
        };
        let change = match (&self.previous, &self.first_value) {
            _ if self.value.is_none() && !self.missing => self.action.clone(),
            (Some(previous), _) => format!("{} -> {}", brief(previous), brief(self.shown())),
            (None, Some(first)) if self.merged > 1 => {
                format!("{} -> {}", brief(first), brief(self.shown()))
            }
            (None, _) => format!("{} {}", self.action, brief(self.shown())),
        };
        let merged = if self.merged > 1 {
            format!(" ({} changes)", self.merged)
        } else {
            String::new()
        };
        let subject = format!("{} {place}{} {}", self.kind, self.name, self.field);
        format!("{}: {change}{merged}", one_line(&subject))
    }
}

/// The id of an entry. One that the original program wrote has none and is never sent; it still gets a stable one.
pub fn entry_id(item: &Item) -> String {
    item.entry.id.clone().unwrap_or_else(|| {
        let time = item
            .entry
            .time
            .as_ref()
            .map(|time| time.0.to_string())
            .unwrap_or_default();
        format!("{}.{time}.{}", item.uid, item.entry.action)
    })
}

fn shown_value(entry: &Entry) -> String {
    match &entry.value {
        Some(value) if !entry.missing => value.clone(),
        _ => NOT_SET.into(),
    }
}

/// Returns the value in one line, with its whole length if it was cut.
fn with_cut<'a>(value: &'a str, cut: Option<&Truncation>) -> Cow<'a, str> {
    let shown = one_line(value);
    match cut {
        Some(cut) => format!(
            "{shown}… (the first {} of {} bytes)",
            value.len(),
            cut.length
        )
        .into(),
        None => shown,
    }
}

/// Returns `text` with a space for each character that could make it read as another line of the message.
fn one_line(text: &str) -> Cow<'_, str> {
    if text.contains(leaves_line) {
        text.replace(leaves_line, " ").into()
    } else {
        text.into()
    }
}

/// Returns whether a receiver may show what follows the character on another line, or in another direction.
pub(super) fn leaves_line(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A value within one line, 100 characters at most.
fn brief(value: &str) -> String {
    const CHARS: usize = 100;
    let mut brief: String = value
        .chars()
        .take(CHARS)
        .map(|char| if leaves_line(char) { ' ' } else { char })
        .collect();
    if value.chars().nth(CHARS).is_some() {
        brief.push('…');
    }
    brief
}

#[cfg(test)]
mod tests;
