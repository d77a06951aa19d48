//! A receiver's view of an entry, and the default texts.

use std::borrow::Cow;
use std::collections::BTreeMap;

use qm_api::tracked_field::{ChangeAction, ChangedBy, Entry, Truncation};
use serde::Serialize;

use crate::OutgoingEntry;

pub(super) fn cluster_line(cluster: &str) -> String {
    format!("Cluster: {cluster}")
}

/// Returns `text` with the contact point's footer on the last line.
pub(super) fn with_footer(mut text: String, footer: Option<&str>) -> String {
    if let Some(footer) = footer {
        text.push('\n');
        text.push_str(footer);
    }
    text
}

/// Text for a field that the resource does not have.
pub(crate) const NOT_SET: &str = "(not set)";

/// Text for the value of a deleted resource.
pub const DELETED: &str = "-1";

/// Receiver's view of an entry: the fields of a `CloudEvent`'s data and, with `value` always a text, the variables of a
/// template.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// Id of the entry, by which a receiver recognises a repetition.
    pub id: String,
    /// Time at which the operator observed the change, RFC 3339.
    pub time: Option<String>,
    /// `--cluster-name`.
    pub cluster: Option<String>,
    /// Name of the `TrackedField`.
    pub tracked_field: String,
    /// Namespace of the `TrackedField`.
    pub tracked_field_namespace: String,
    /// Kind of the resource.
    pub kind: String,
    /// Namespace of the resource; empty for a cluster-scoped one.
    pub namespace: String,
    /// Name of the resource.
    pub name: String,
    /// `spec.field`.
    pub field: String,
    /// `Created`, `Updated` or `Deleted`.
    pub action: String,
    /// Value; `None` if the resource is deleted or has no such field.
    pub value: Option<String>,
    /// Whether the resource has no such field.
    pub missing: bool,
    /// Whole length in bytes and SHA-256 of a truncated value.
    pub truncated: Option<Truncation>,
    /// Previous value, if any.
    pub previous: Option<String>,
    /// Whole length in bytes and SHA-256 of a truncated previous value.
    pub previous_truncated: Option<Truncation>,
    /// Last writer of the value, if known.
    pub changed_by: Option<Box<ChangedBy>>,
    /// Values of `spec.context`.
    pub context: BTreeMap<String, String>,
    /// Number of changes that the entry stands for; 1 unless the entry is merged.
    pub merged: u64,
    /// First value of a merged entry, unless the first change has none or another subject. `value` is the last one.
    pub first_value: Option<String>,
}

impl View {
    /// Creates the view of `item`.
    pub fn of(item: &OutgoingEntry, cluster: Option<&str>) -> Self {
        let entry = &item.entry;
        let subject = entry.subject.as_ref();
        // A deleted resource had no value.
        let previous = item
            .previous
            .as_ref()
            .filter(|previous| previous.action != ChangeAction::Deleted);
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
            value: if entry.action == ChangeAction::Deleted || entry.missing {
                None
            } else {
                entry.value.clone()
            },
            missing: entry.missing,
            truncated: entry.truncated.clone(),
            previous: previous.map(shown_value),
            previous_truncated: previous.and_then(|previous| previous.truncated.clone()),
            changed_by: entry.changed_by.clone(),
            context: entry.context.clone(),
            merged: entry.merged.unwrap_or(1),
            first_value: entry.first_value.clone(),
        }
    }

    /// Returns the value as a message shows it.
    pub fn shown(&self) -> &str {
        match &self.value {
            Some(value) => value,
            None if self.action == ChangeAction::Deleted.to_string() => DELETED,
            None => NOT_SET,
        }
    }

    /// Returns the default message: the four lines of the specification, then further ones.
    pub fn text(&self) -> String {
        let mut lines = vec![
            format!("Resource kind: {}", one_line(&self.kind)),
            format!("Name: {}", one_line(&self.name)),
            format!("Status: {}", self.action),
            format!(
                "Value: {}",
                with_length(self.shown(), self.truncated.as_ref())
            ),
        ];
        if !self.namespace.is_empty() {
            lines.push(format!("Namespace: {}", one_line(&self.namespace)));
        }
        if let Some(previous) = &self.previous {
            lines.push(format!(
                "Previous: {}",
                with_length(previous, self.previous_truncated.as_ref())
            ));
        }
        // The first entry of a series has not changed.
        let is_first = self.previous.is_none() && self.action == ChangeAction::Created.to_string();
        if !is_first && let Some(changed_by) = &self.changed_by {
            lines.push(format!("Changed by: {}", one_line(&changed_by.to_string())));
        }
        if self.merged > 1 {
            let last = one_line(self.shown());
            let values = match self.first_value.as_deref().map(one_line) {
                Some(first) => format!("the first value {first}, the last {last}"),
                None => format!("the last value {last}"),
            };
            lines.push(format!("Merged: {} changes, {values}", self.merged));
        }
        if let Some(cluster) = &self.cluster {
            lines.push(cluster_line(cluster));
        }
        lines.join("\n")
    }

    /// Returns the line of a digest.
    pub fn digest_line(&self) -> String {
        let prefix = if self.namespace.is_empty() {
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
        let subject = format!("{} {prefix}{} {}", self.kind, self.name, self.field);
        format!("{}: {change}{merged}", one_line(&subject))
    }
}

/// Returns the id of an entry. Entries that Quartermaster did not write have no id and are never sent; they still get a
/// stable id.
pub(crate) fn entry_id(item: &OutgoingEntry) -> String {
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

/// Returns the value in one line, with its whole length if it was truncated.
fn with_length<'a>(value: &'a str, truncation: Option<&Truncation>) -> Cow<'a, str> {
    let shown = one_line(value);
    match truncation {
        Some(truncation) => format!(
            "{shown}… (the first {} of {} bytes)",
            value.len(),
            truncation.length
        )
        .into(),
        None => shown,
    }
}

/// Returns `text` with a space for each character that could start another line of the message.
fn one_line(text: &str) -> Cow<'_, str> {
    if text.contains(breaks_line) {
        text.replace(breaks_line, " ").into()
    } else {
        text.into()
    }
}

/// Returns whether a receiver may show what follows the character on another line, or in another direction.
pub(crate) fn breaks_line(char: char) -> bool {
    char.is_control()
        || matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Returns a value in one line of at most 100 characters.
fn brief(value: &str) -> String {
    const CHARS: usize = 100;
    let mut brief: String = value
        .chars()
        .take(CHARS)
        .map(|char| if breaks_line(char) { ' ' } else { char })
        .collect();
    if value.chars().nth(CHARS).is_some() {
        brief.push('…');
    }
    brief
}
