//! Cells of a timeline: what each column shows of an entry.

use qm_api::tracked_field::{ChangeAction, Delivery, Entry, Skipped, TargetReference};
use qm_notify::history;
use qm_notify::when::When;

use super::super::printer::{Cell, Colour, count, format_time, shorten};

/// Length of the longest bar.
const MAX_BAR: usize = 24;

/// Returns `NAMESPACE/NAME` of a target, or the name of a cluster-scoped one.
pub(super) fn target_name(target: &TargetReference) -> String {
    match target.namespace.as_str() {
        "" => target.name.clone(),
        namespace => format!("{namespace}/{}", target.name),
    }
}

/// Returns for each entry whether `when` sends a message: always for a merged one, never for a quiet first value.
pub(super) fn sends<'a>(
    history: &'a [Entry],
    when: &'a When,
) -> impl Iterator<Item = Result<bool, String>> + 'a {
    (0..history.len()).map(move |at| match history::newest_recorded(&history[..=at]) {
        Some((entry, _)) if is_quiet(entry) => Ok(false),
        Some((entry, previous)) if entry.merged.is_none() => when.evaluate(entry, previous),
        _ => Ok(true),
    })
}

/// Returns whether the entry is a first value that `spec.initial` keeps quiet, whatever `spec.when` is.
fn is_quiet(entry: &Entry) -> bool {
    entry.skipped == Some(Skipped::Initial)
}

pub(super) fn sends_cell(entry: &Entry, sends: &Result<bool, String>) -> Cell {
    match sends {
        Ok(false) if is_quiet(entry) => Cell::new("no: initial is Quiet", Colour::Dim),
        Ok(true) => Cell::new("yes", Colour::Green),
        Ok(false) => Cell::new("no", Colour::Dim),
        Err(error) => Cell::new(format!("yes: {error}"), Colour::Yellow),
    }
}

pub(super) fn time(entry: &Entry) -> String {
    let time = entry.time.as_ref();
    time.map_or_else(|| "?".into(), |time| format_time(time.0))
}

/// Returns the sign of an action in a timeline, and its colour.
pub(super) fn action(entry: &Entry) -> (&'static str, Colour) {
    match entry.action {
        ChangeAction::Created => ("┌", Colour::Green),
        ChangeAction::Updated => ("│", Colour::Plain),
        ChangeAction::Deleted => ("└", Colour::Red),
    }
}

pub(super) fn number(entry: &Entry) -> Option<f64> {
    let number: f64 = entry.value.as_deref()?.parse().ok()?;
    (number.is_finite() && number >= 0.0 && entry.truncated.is_none()).then_some(number)
}

pub(super) fn value(entry: &Entry, largest: Option<f64>) -> String {
    let mut text = match &entry.value {
        Some(value) => shorten(value),
        None if entry.missing => "(not set)".into(),
        None => String::new(),
    };
    if let (Some(largest), Some(number)) = (largest, number(entry)) {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss
        )]
        let length = (number / largest * MAX_BAR as f64).ceil() as usize;
        if length > 0 {
            text = format!("{text:<6} {}", "▇".repeat(length.min(MAX_BAR)));
        }
    }
    if let Some(truncation) = &entry.truncated {
        text = format!("{text} ({} bytes)", truncation.length);
    }
    if let Some(merged) = entry.merged {
        let merged = usize::try_from(merged).unwrap_or(usize::MAX);
        let first = entry.first_value.as_deref();
        let first = first.map(|first| format!(", the first {}", shorten(first)));
        text = format!(
            "{text} ({} in one{})",
            count(merged, "change", "changes"),
            first.unwrap_or_default()
        );
    }
    text
}

pub(super) fn delivery(entry: &Entry) -> Cell {
    let reason = entry.reason.as_deref();
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    match entry.delivery {
        Some(Delivery::Pending) => Cell::new(format!("Pending{reason}"), Colour::Yellow),
        Some(Delivery::Failed) => Cell::new(format!("Failed{reason}"), Colour::Red),
        Some(Delivery::Delivered) => Cell::new("Delivered", Colour::Green),
        // An entry that Quartermaster did not write counts as delivered.
        None => Cell::new(entry.skipped.map_or("-", Skipped::as_str), Colour::Dim),
    }
}

pub(super) fn changed_by(entry: &Entry) -> String {
    let changed_by = entry.changed_by.as_ref();
    changed_by.map_or_else(String::new, |it| shorten(&it.to_string()))
}
