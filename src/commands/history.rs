//! `quartermaster history`: the timeline of a `TrackedField`.

use std::process::ExitCode;

use anyhow::Context as _;
use kube::{Client, ResourceExt};
use qm_api::TrackedField;
use qm_api::common::WAITING;
use qm_api::tracked_field::{ChangeAction, Delivery, Entry};
use qm_notify::history;
use qm_notify::when::When;
use serde_json::json;

use super::find;
use super::objects::changes;
use super::printer::{Cell, Colour, Printer, count, format_time, shorten};
use crate::cli::commands::{HistoryArgs, Output};

/// Length of the longest bar.
const MAX_BAR: usize = 24;
const HEAD: [&str; 6] = ["TIME", "", "ACTION", "VALUE", "DELIVERY", "BY"];

pub(crate) async fn run(
    client: Client,
    args: &HistoryArgs,
    out: &mut Printer,
) -> anyhow::Result<ExitCode> {
    let namespace = args.namespace.as_deref();
    let namespace = namespace.unwrap_or_else(|| client.default_namespace());
    let field: TrackedField = find::get(&client, namespace, &args.name, &args.cluster).await?;
    let history = field.history().context("its history cannot be read")?;
    let waiting = field.annotations().get(WAITING);
    let target = &field.spec.target;
    if args.output == Output::Json {
        let mut shown = json!({
            "namespace": namespace,
            "name": args.name,
            "target": target,
            "field": field.spec.field,
            "contactPoint": field.spec.contact_point,
            "waiting": waiting,
            "history": history,
        });
        if let Some(when) = &args.when {
            let sends = sends(&history, when);
            shown["sends"] = sends.map(Result::ok).collect();
        }
        out.json(&shown)?;
        return Ok(ExitCode::SUCCESS);
    }
    let name = match target.namespace.as_str() {
        "" => target.name.clone(),
        namespace => format!("{namespace}/{}", target.name),
    };
    out.line(format!(
        "{} of {} {name}, sent to contact point {}",
        field.spec.field, target.kind, field.spec.contact_point
    ))?;
    if let Some(waiting) = waiting {
        out.line(format!("Waiting: {waiting}"))?;
    }
    out.line("")?;
    if history.is_empty() {
        out.line("Nothing is recorded yet.")?;
    } else {
        let (mut head, mut rows) = (HEAD.to_vec(), rows(&history));
        if let Some(when) = &args.when {
            head.push("SENDS");
            add_sends(&mut rows, &history, when);
        }
        out.table(&head, &rows)?;
        out.line("")?;
        out.line(summary(&history))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a row for each entry, and one where target or field have changed. Pure.
fn rows(history: &[Entry]) -> Vec<Vec<Cell>> {
    let largest = largest(history);
    let mut last = None;
    let mut rows = Vec::new();
    for entry in history {
        // An entry of the original program has no subject.
        if let Some(subject) = &entry.subject {
            if last.is_some_and(|last| last != subject) {
                let dim = |text: &str| Cell::new(text, Colour::Dim);
                rows.push(vec!["".into(), dim("╌"), "".into(), dim(subject.as_str())]);
            }
            last = Some(subject);
        }
        let time = entry.time.as_ref();
        let time = time.map_or_else(|| "?".into(), |time| format_time(time.0));
        let (sign, colour) = match entry.action {
            ChangeAction::Created => ("┌", Colour::Green),
            ChangeAction::Updated => ("│", Colour::Plain),
            ChangeAction::Deleted => ("└", Colour::Red),
        };
        rows.push(vec![
            time.into(),
            Cell::new(sign, colour),
            Cell::new(entry.action.as_str(), colour),
            value(entry, largest).into(),
            delivery(entry),
            changed_by(entry).into(),
        ]);
    }
    rows
}

/// Returns for each entry whether `when` sends a message: always for a merged one.
fn sends<'a>(
    history: &'a [Entry],
    when: &'a When,
) -> impl Iterator<Item = Result<bool, String>> + 'a {
    (0..history.len()).map(move |at| match history::newest(&history[..=at]) {
        Some((entry, previous)) if entry.merged.is_none() => when.evaluate(entry, previous),
        _ => Ok(true),
    })
}

/// Adds the column SENDS to the rows of entries. A row that names another subject is shorter.
fn add_sends(rows: &mut [Vec<Cell>], history: &[Entry], when: &When) {
    let entries = rows.iter_mut().filter(|row| row.len() == HEAD.len());
    for (row, sends) in entries.zip(sends(history, when)) {
        row.push(match sends {
            Ok(true) => Cell::new("yes", Colour::Green),
            Ok(false) => Cell::new("no", Colour::Dim),
            Err(error) => Cell::new(format!("yes: {error}"), Colour::Yellow),
        });
    }
}

/// Returns the largest value, if all values are numbers that bars can show.
fn largest(history: &[Entry]) -> Option<f64> {
    let mut largest = 0.0_f64;
    for entry in history.iter().filter(|entry| entry.value.is_some()) {
        largest = largest.max(number(entry)?);
    }
    (largest > 0.0).then_some(largest)
}

fn number(entry: &Entry) -> Option<f64> {
    let number: f64 = entry.value.as_deref()?.parse().ok()?;
    (number.is_finite() && number >= 0.0 && entry.truncated.is_none()).then_some(number)
}

fn value(entry: &Entry, largest: Option<f64>) -> String {
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

fn delivery(entry: &Entry) -> Cell {
    let reason = entry.reason.as_deref();
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    match entry.delivery {
        Some(Delivery::Pending) => Cell::new(format!("Pending{reason}"), Colour::Yellow),
        Some(Delivery::Failed) => Cell::new(format!("Failed{reason}"), Colour::Red),
        Some(Delivery::Delivered) => Cell::new("Delivered", Colour::Green),
        None if entry.skipped.is_some() => Cell::new("Skipped", Colour::Dim),
        // An entry of the original program counts as delivered.
        None => Cell::new("-", Colour::Dim),
    }
}

fn changed_by(entry: &Entry) -> String {
    let changed_by = entry.changed_by.as_ref();
    changed_by.map_or_else(String::new, |it| shorten(&it.to_string()))
}

fn summary(history: &[Entry]) -> String {
    let mut text = format!(
        "{} in {}",
        count(changes(history, |_| true), "change", "changes"),
        count(history.len(), "entry", "entries")
    );
    let pending = changes(history, Entry::is_pending);
    let failed = changes(history, |it| it.delivery == Some(Delivery::Failed));
    let skipped = changes(history, |it| it.skipped.is_some());
    for (number, delivery) in [
        (pending, "pending"),
        (failed, "failed"),
        (skipped, "skipped"),
    ] {
        if number > 0 {
            text = format!("{text}, {number} {delivery}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use serde_json::Value;

    use super::*;
    use crate::commands::printer;

    fn drawn(history: Value) -> String {
        let history: Vec<Entry> = serde_json::from_value(history).unwrap();
        let table = printer::draw(&HEAD, &rows(&history), false);
        format!("{table}{}", summary(&history))
    }

    #[test]
    fn numbers_have_bars() {
        let all = json!([
            { "time": "2026-01-01T00:00:00Z", "action": "Created", "value": "1" },
            { "time": "2026-01-01T00:00:01.5Z", "action": "Updated", "value": "12", "delivery": "Delivered", "subject": "Deployment/shop/web/replicas" },
            { "time": "2026-01-01T00:00:02Z", "action": "Updated", "value": "3", "delivery": "Pending", "merged": 4, "firstValue": "9", "changedBy": { "manager": "kube-controller-manager", "subresource": "scale" }, "subject": "Deployment/shop/web/replicas" },
            { "time": "2026-01-01T00:00:03Z", "action": "Updated", "missing": true, "delivery": "Failed", "reason": "Expired", "subject": "Deployment/shop/web/replicas" },
            { "time": "2026-01-01T00:00:04Z", "action": "Deleted", "delivery": "Delivered", "subject": "Deployment/shop/web/replicas" },
            { "time": "2026-01-01T00:00:05Z", "action": "Created", "value": "0", "delivery": "Delivered", "subject": "Deployment/shop/api/replicas" },
        ]);
        insta::assert_snapshot!(drawn(all));
    }

    #[test]
    fn texts_are_escaped_and_shortened() {
        let long = "x".repeat(100);
        let all = json!([
            { "time": "2026-01-01T00:00:00Z", "action": "Created", "value": "nginx\u{1b}[2J\n", "delivery": "Delivered" },
            { "action": "Updated", "value": long, "delivery": "Delivered", "truncated": { "length": 5000, "sha256": "x" } },
            { "time": "2026-01-01T00:00:02Z", "action": "Updated", "value": "7", "delivery": "Delivered" },
        ]);
        insta::assert_snapshot!(drawn(all));
    }
}
