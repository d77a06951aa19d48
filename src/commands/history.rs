//! `quartermaster history`: the timeline of a `TrackedField`, or of all `TrackedField`s of a set.

use std::process::ExitCode;

use anyhow::Context as _;
use kube::{Client, ResourceExt};
use qm_api::TrackedField;
use qm_api::common::WAITING;
use qm_api::tracked_field::{Delivery, Entry};
use qm_notify::when::When;
use serde_json::json;

use self::cells::{
    action, changed_by, delivery, number, sends, sends_cell, target_name, time, value,
};
use super::find;
use super::objects::changes;
use super::printer::{Cell, Colour, Printer, count};
use crate::cli::commands::{HistoryArgs, Output, RecordedObject};

mod cells;
mod of_set;

const COLUMNS: [&str; 6] = ["TIME", "", "ACTION", "VALUE", "DELIVERY", "BY"];

pub(crate) async fn run(
    client: Client,
    args: &HistoryArgs,
    out: &mut Printer,
) -> anyhow::Result<ExitCode> {
    let namespace = args.namespace.as_deref();
    let namespace = namespace.unwrap_or_else(|| client.default_namespace());
    match &args.resource {
        RecordedObject::Field(name) => of_field(&client, namespace, name, args, out).await,
        RecordedObject::Set(name) => of_set::show(&client, namespace, name, args, out).await,
    }
}

async fn of_field(
    client: &Client,
    namespace: &str,
    name: &str,
    args: &HistoryArgs,
    out: &mut Printer,
) -> anyhow::Result<ExitCode> {
    let field: TrackedField = find::get(client, namespace, name, &args.cluster).await?;
    let history = field.history().with_context(|| {
        format!("the history of TrackedField {namespace}/{name} cannot be read")
    })?;
    let waiting = field.annotations().get(WAITING);
    let target = &field.spec.target;
    if args.output == Output::Json {
        let mut shown = json!({
            "namespace": namespace,
            "name": name,
            "target": target,
            "field": field.spec.field,
            "contactPoint": field.spec.notification.contact_point,
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
    out.line(format!(
        "{} of {} {}, sent to contact point {}",
        field.spec.field,
        target.kind,
        target_name(target),
        field.spec.notification.contact_point
    ))?;
    if let Some(waiting) = waiting {
        out.line(format!("Waiting: {waiting}"))?;
    }
    out.line("")?;
    if history.is_empty() {
        out.line("Nothing is recorded yet.")?;
    } else {
        let (mut head, mut rows) = (COLUMNS.to_vec(), rows(&history));
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
        // An entry that Quartermaster did not write has no subject.
        if let Some(subject) = &entry.subject {
            if last.is_some_and(|last| last != subject) {
                let dim = |text: &str| Cell::new(text, Colour::Dim);
                rows.push(vec!["".into(), dim("╌"), "".into(), dim(subject.as_str())]);
            }
            last = Some(subject);
        }
        let (sign, colour) = action(entry);
        rows.push(vec![
            time(entry).into(),
            Cell::new(sign, colour),
            Cell::new(entry.action.as_str(), colour),
            value(entry, largest).into(),
            delivery(entry),
            changed_by(entry).into(),
        ]);
    }
    rows
}

/// Adds the column SENDS to the rows of entries. A row that names another subject is shorter.
fn add_sends(rows: &mut [Vec<Cell>], history: &[Entry], when: &When) {
    let entries = rows.iter_mut().filter(|row| row.len() == COLUMNS.len());
    for ((row, entry), sends) in entries.zip(history).zip(sends(history, when)) {
        row.push(sends_cell(entry, &sends));
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
        let table = printer::draw(&COLUMNS, &rows(&history), false);
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
    fn quiet_first_value_is_never_sent() {
        let history = json!([
            { "time": "2026-01-01T00:00:00Z", "action": "Created", "value": "1", "skipped": "Initial" },
            { "time": "2026-01-01T00:00:01Z", "action": "Updated", "value": "2", "skipped": "When" },
        ]);
        let history: Vec<Entry> = serde_json::from_value(history).unwrap();
        let when = When::parse("true").unwrap();
        let shown: Vec<_> = sends(&history, &when).collect();
        assert_eq!(shown, [Ok(false), Ok(true)]);
        let mut rows = rows(&history);
        add_sends(&mut rows, &history, &when);
        let cells: Vec<_> = rows.iter().filter_map(|row| row.last()).collect();
        let expected = [
            Cell::new("no: initial is Quiet", Colour::Dim),
            Cell::new("yes", Colour::Green),
        ];
        assert_eq!(cells, expected.iter().collect::<Vec<_>>());
    }

    #[test]
    fn entry_without_a_message_shows_the_reason() {
        let text = drawn(json!([
            { "time": "2026-01-01T00:00:00Z", "action": "Created", "value": "1", "skipped": "Initial" },
            { "time": "2026-01-01T00:00:01Z", "action": "Updated", "value": "2", "skipped": "When" },
        ]));
        assert!(
            text.contains("  Initial") && text.contains("  When"),
            "{text}"
        );
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
