//! `quartermaster history`: the timeline of a `TrackedField`.

use std::process::ExitCode;

use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use qm_api::TrackedField;
use qm_api::common::WAITING;
use qm_api::tracked_field::{Action, Delivery, Entry};
use qm_runtime::telemetry::causes;
use serde_json::json;

use super::paper::{Cell, Ink, Paper, count, shorten, stamp};
use super::{is, words};
use crate::cli::commands::{HistoryArgs, Output};

/// How long the longest bar is.
const BAR: usize = 24;

/// Draws it.
///
/// # Errors
/// There is none of that name, or the cluster cannot be asked.
pub async fn run(client: Client, args: &HistoryArgs, out: &mut Paper) -> anyhow::Result<ExitCode> {
    let namespace = args
        .namespace
        .as_deref()
        .unwrap_or_else(|| client.default_namespace())
        .to_owned();
    let api: Api<TrackedField> = Api::namespaced(client.clone(), &namespace);
    let field = match api.get(&args.name).await {
        Ok(field) => field,
        Err(error) if is(&error, 404) => {
            let elsewhere: Api<TrackedField> = Api::all(client);
            let named = ListParams::default()
                .limit(20)
                .fields(&format!("metadata.name={}", args.name));
            let elsewhere = elsewhere
                .list_metadata(&named)
                .await
                .map(|list| list.items)
                .unwrap_or_default();
            if !elsewhere.is_empty() {
                let places = elsewhere.iter().filter_map(ResourceExt::namespace);
                let places = places
                    .map(|place| format!("-n {place}"))
                    .collect::<Vec<_>>()
                    .join(" or ");
                anyhow::bail!(
                    "there is no TrackedField {} in namespace {namespace}; there is one with {places}",
                    args.name
                );
            }
            let there = match api.list_metadata(&ListParams::default().limit(20)).await {
                Err(error) if is(&error, 404) => {
                    let install = args.cluster.command(crate::INSTALL_CRDS);
                    anyhow::bail!("the CRD of TrackedFields is not installed ({install})");
                }
                list => list.map_or_else(
                    |_| Vec::new(),
                    |list| list.items.iter().map(ResourceExt::name_any).collect(),
                ),
            };
            let there = if there.is_empty() {
                "none at all there".to_owned()
            } else {
                there.join(", ")
            };
            anyhow::bail!(
                "there is no TrackedField {} in namespace {namespace}; there is {there}",
                args.name
            );
        }
        Err(error) => anyhow::bail!(words(&error)),
    };
    let history = field
        .history()
        .map_err(|error| anyhow::anyhow!("its history cannot be read: {}", causes(&error)))?;
    let waiting = field.annotations().get(WAITING);
    if args.output == Output::Json {
        let shown = json!({
            "namespace": namespace,
            "name": args.name,
            "target": field.spec.target,
            "field": field.spec.field,
            "contactPoint": field.spec.contact_point,
            "waiting": waiting,
            "history": history,
        });
        out.json(&shown)?;
        return Ok(ExitCode::SUCCESS);
    }
    let target = &field.spec.target;
    let of = if target.namespace.is_empty() {
        String::new()
    } else {
        format!("{}/", target.namespace)
    };
    out.line(format!(
        "{} of {} {of}{}, told to contact point {}",
        field.spec.field, target.kind, target.name, field.spec.contact_point
    ))?;
    if let Some(waiting) = waiting {
        out.line(format!("It waits: {waiting}"))?;
    }
    out.line("")?;
    if history.is_empty() {
        out.line("Nothing is recorded yet.")?;
        return Ok(ExitCode::SUCCESS);
    }
    out.table(
        &["TIME", "", "ACTION", "VALUE", "DELIVERY"],
        &draw(&history),
    )?;
    out.line("")?;
    out.line(summary(&history))?;
    Ok(ExitCode::SUCCESS)
}

/// A row for each entry, and one where another subject begins. Pure.
pub fn draw(history: &[Entry]) -> Vec<Vec<Cell>> {
    let most = most(history);
    let mut subject = None;
    let mut rows = Vec::new();
    for entry in history {
        // What another program wrote names none.
        if let Some(next) = &entry.subject {
            if subject.is_some_and(|subject| subject != next) {
                rows.push(vec![
                    "".into(),
                    Cell::new("╌", Ink::Dim),
                    "".into(),
                    Cell::new(next.as_str(), Ink::Dim),
                ]);
            }
            subject = Some(next);
        }
        let time = entry
            .time
            .as_ref()
            .map_or_else(|| "?".into(), |time| stamp(time.0));
        let (sign, ink) = match entry.action {
            Action::Created => ("┌", Ink::Green),
            Action::Updated => ("│", Ink::Plain),
            Action::Deleted => ("└", Ink::Red),
        };
        rows.push(vec![
            time.into(),
            Cell::new(sign, ink),
            Cell::new(entry.action.as_str(), ink),
            value(entry, most).into(),
            delivery(entry),
        ]);
    }
    rows
}

/// The largest value, if all are numbers that a bar can show: none is below 0, one is above.
fn most(history: &[Entry]) -> Option<f64> {
    let mut most = 0.0_f64;
    for entry in history.iter().filter(|entry| entry.value.is_some()) {
        most = most.max(number(entry)?);
    }
    (most > 0.0).then_some(most)
}

fn number(entry: &Entry) -> Option<f64> {
    let number: f64 = entry.value.as_deref()?.parse().ok()?;
    (number.is_finite() && number >= 0.0 && entry.cut.is_none()).then_some(number)
}

fn value(entry: &Entry, most: Option<f64>) -> String {
    let mut text = match (&entry.value, entry.missing) {
        (Some(value), _) => shorten(value),
        (None, true) => "(not set)".into(),
        (None, false) => String::new(),
    };
    if let (Some(most), Some(number)) = (most, number(entry)) {
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss
        )]
        let length = (number / most * BAR as f64).ceil() as usize;
        let bar = "▇".repeat(length.min(BAR));
        text = if bar.is_empty() {
            text
        } else {
            format!("{text:<6} {bar}")
        };
    }
    if let Some(cut) = &entry.cut {
        text = format!("{text} ({} bytes)", cut.length);
    }
    if let Some(merged) = entry.merged {
        let first = entry
            .first_value
            .as_deref()
            .map_or_else(String::new, |first| {
                format!(", the first {}", shorten(first))
            });
        text = format!(
            "{text} ({} in one{first})",
            count(
                usize::try_from(merged).unwrap_or(usize::MAX),
                "change",
                "changes"
            )
        );
    }
    text
}

fn delivery(entry: &Entry) -> Cell {
    let reason = entry
        .reason
        .as_deref()
        .map_or_else(String::new, |reason| format!(": {reason}"));
    match entry.delivery {
        Some(Delivery::Pending) => Cell::new(format!("Pending{reason}"), Ink::Yellow),
        Some(Delivery::Failed) => Cell::new(format!("Failed{reason}"), Ink::Red),
        Some(Delivery::Delivered) => Cell::new("Delivered", Ink::Green),
        // What another program wrote counts as delivered.
        None => Cell::new("-", Ink::Dim),
    }
}

fn summary(history: &[Entry]) -> String {
    let changes = |is: fn(&Entry) -> bool| {
        history
            .iter()
            .filter(|entry| is(entry))
            .map(Entry::changes)
            .sum::<u64>()
    };
    let all = usize::try_from(changes(|_| true)).unwrap_or(usize::MAX);
    let mut words = format!(
        "{} in {}",
        count(all, "change", "changes"),
        count(history.len(), "entry", "entries")
    );
    for (number, what) in [
        (changes(Entry::is_pending), "wait to be told"),
        (
            changes(|entry| entry.delivery == Some(Delivery::Failed)),
            "could not be told",
        ),
    ] {
        if number > 0 {
            words = format!("{words}, {number} {what}");
        }
    }
    words
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use serde_json::Value;

    use super::super::paper;
    use super::*;

    fn drawn(history: Value) -> String {
        let history: Vec<Entry> = serde_json::from_value(history).unwrap();
        let table = paper::draw(
            &["TIME", "", "ACTION", "VALUE", "DELIVERY"],
            &draw(&history),
            false,
        );
        format!("{table}{}", summary(&history))
    }

    #[test]
    fn a_timeline_of_numbers_has_bars() {
        let all = json!([
            { "time": "2026-01-01T00:00:00Z", "action": "Created", "value": "1" },
            { "time": "2026-01-01T00:00:01.5Z", "action": "Updated", "value": "12", "delivery": "Delivered", "subject": "Deployment/shop/web/replicas" },
            { "time": "2026-01-01T00:00:02Z", "action": "Updated", "value": "3", "delivery": "Pending", "merged": 4, "firstValue": "9", "subject": "Deployment/shop/web/replicas" },
            { "time": "2026-01-01T00:00:03Z", "action": "Updated", "missing": true, "delivery": "Failed", "reason": "Expired", "subject": "Deployment/shop/web/replicas" },
            { "time": "2026-01-01T00:00:04Z", "action": "Deleted", "delivery": "Delivered", "subject": "Deployment/shop/web/replicas" },
            { "time": "2026-01-01T00:00:05Z", "action": "Created", "value": "0", "delivery": "Delivered", "subject": "Deployment/shop/api/replicas" },
        ]);
        insta::assert_snapshot!(drawn(all));
    }

    #[test]
    fn words_have_none_and_are_harmless_and_short() {
        let long = "x".repeat(100);
        let all = json!([
            { "time": "2026-01-01T00:00:00Z", "action": "Created", "value": "nginx\u{1b}[2J\n", "delivery": "Delivered" },
            { "action": "Updated", "value": long, "delivery": "Delivered", "cut": { "length": 5000, "sha256": "x" } },
            { "time": "2026-01-01T00:00:02Z", "action": "Updated", "value": "7", "delivery": "Delivered" },
        ]);
        insta::assert_snapshot!(drawn(all));
    }
}
