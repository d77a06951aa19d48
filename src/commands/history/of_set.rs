//! The timeline of all children of a `TrackedFieldSet`.

use std::process::ExitCode;
use std::rc::Rc;

use anyhow::Context as _;
use jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client};
use qm_api::tracked_field::{Entry, TargetReference};
use qm_api::tracked_field_set::SET;
use qm_api::{TrackedField, TrackedFieldSet};
use qm_notify::when::When;
use qm_runtime::pages::all_pages;
use serde_json::{Value, json};

use super::super::objects::{changes, set_of};
use super::super::printer::{Cell, Printer, count};
use super::super::{FailedRequest, find};
use super::cells::{action, changed_by, delivery, sends, sends_cell, target_name, time, value};
use crate::cli::commands::{HistoryArgs, Output};

/// Maximum number of shown entries.
const MAX_SHOWN: usize = 200;

/// The parts of a child that its entries share.
struct Child {
    name: String,
    target: TargetReference,
    field: String,
}

/// An entry of a child.
struct RecordedEntry {
    /// Sort key: the time in seconds, then the id, which begins with the exact time of the observation.
    order: (Option<Timestamp>, Option<String>),
    child: Rc<Child>,
    entry: Entry,
    /// Result of `--when`: true if it sends a message.
    sends: Option<Result<bool, String>>,
}

/// The newest entries of all children.
#[derive(Default)]
struct Timeline {
    newest: Vec<RecordedEntry>,
    children: usize,
    entries: usize,
    pending: usize,
    unreadable: Vec<String>,
}

pub(super) async fn show(
    client: &Client,
    namespace: &str,
    name: &str,
    args: &HistoryArgs,
    out: &mut Printer,
) -> anyhow::Result<ExitCode> {
    let set: TrackedFieldSet = find::get(client, namespace, name, &args.cluster).await?;
    let api: Api<TrackedField> = Api::namespaced(client.clone(), namespace);
    let mut timeline = Timeline::default();
    let add = |field: TrackedField| {
        if set_of(&field.metadata).as_deref() == Some(name) {
            timeline.add(&field, args.when.as_deref());
        }
    };
    let params = ListParams::default().labels(&format!("{SET}={name}"));
    let list = async |page| api.list(&page).await;
    all_pages(params, list, add)
        .await
        .map_err(FailedRequest::from)
        .context("the trackedfields could not be listed")?;
    timeline.limit();
    match args.output {
        Output::Json => out.json(&json!({
            "namespace": namespace,
            "name": name,
            "target": set.spec.target,
            "fields": set.spec.fields,
            "contactPoint": set.spec.template.contact_point,
            "history": timeline.newest.iter().map(as_json).collect::<Vec<_>>(),
            "unreadable": timeline.unreadable,
        }))?,
        Output::Table => print(&set, &timeline, args, out)?,
    }
    Ok(if timeline.unreadable.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

impl Timeline {
    fn add(&mut self, field: &TrackedField, when: Option<&When>) {
        let name = field.metadata.name.clone().unwrap_or_default();
        let history = match field.history() {
            Ok(history) => history,
            Err(error) => {
                self.unreadable
                    .push(format!("trackedfield/{name}: {error}"));
                return;
            }
        };
        self.children += 1;
        self.entries += history.len();
        self.pending += changes(&history, Entry::is_pending);
        let sends: Vec<_> = match when {
            Some(when) => sends(&history, when).map(Some).collect(),
            None => vec![None; history.len()],
        };
        let child = Rc::new(Child {
            name,
            target: field.spec.target.clone(),
            field: field.spec.field.clone(),
        });
        let mut order = (None, None);
        for (entry, sends) in history.into_iter().zip(sends) {
            // Entries of one child stay in their order, even if a clock was wrong.
            let own = (entry.time.as_ref().map(|time| time.0), entry.id.clone());
            order = order.max(own);
            self.newest.push(RecordedEntry {
                order: order.clone(),
                child: Rc::clone(&child),
                entry,
                sends,
            });
        }
        // A set of 10,000 children may have 2 million entries.
        if self.newest.len() > 10 * MAX_SHOWN {
            self.limit();
        }
    }

    /// Sorts the entries, and drops all but the newest.
    fn limit(&mut self) {
        self.newest.sort_by(|a, b| a.order.cmp(&b.order));
        let excess = self.newest.len().saturating_sub(MAX_SHOWN);
        self.newest.drain(..excess);
    }
}

fn as_json(recorded: &RecordedEntry) -> Value {
    let RecordedEntry {
        child,
        entry,
        sends,
        ..
    } = recorded;
    let mut shown = json!({
        "trackedField": child.name,
        "target": child.target,
        "field": child.field,
        "entry": entry,
    });
    if let Some(sends) = sends {
        shown["sends"] = json!(sends.as_ref().ok());
    }
    shown
}

fn print(
    set: &TrackedFieldSet,
    timeline: &Timeline,
    args: &HistoryArgs,
    out: &mut Printer,
) -> anyhow::Result<()> {
    let spec = &set.spec;
    out.line(format!(
        "{} of {}, sent to contact point {}",
        spec.fields.join(", "),
        count(timeline.children, "TrackedField", "TrackedFields"),
        spec.template.contact_point
    ))?;
    out.line("")?;
    for unreadable in &timeline.unreadable {
        out.line(format!("Not shown: the history of {unreadable}"))?;
    }
    if timeline.newest.is_empty() {
        out.line("Nothing is recorded yet.")?;
        return Ok(());
    }
    let has_fields = spec.fields.len() > 1;
    let mut head = vec!["TIME", "TARGET"];
    if has_fields {
        head.push("FIELD");
    }
    head.extend(["ACTION", "VALUE", "DELIVERY", "BY"]);
    if args.when.is_some() {
        head.push("SENDS");
    }
    let rows: Vec<_> = timeline
        .newest
        .iter()
        .map(|recorded| row(recorded, has_fields))
        .collect();
    out.table(&head, &rows)?;
    out.line("")?;
    let (shown, all) = (timeline.newest.len(), timeline.entries);
    let mut text = count(all, "entry", "entries");
    if shown < all {
        text = format!("the newest {shown} of {text}");
    }
    if timeline.pending > 0 {
        text = format!(
            "{text}, {} pending",
            count(timeline.pending, "change", "changes")
        );
    }
    out.line(text)?;
    Ok(())
}

fn row(recorded: &RecordedEntry, has_fields: bool) -> Vec<Cell> {
    let RecordedEntry {
        child,
        entry,
        sends,
        ..
    } = recorded;
    let mut row: Vec<Cell> = vec![time(entry).into(), target_name(&child.target).into()];
    if has_fields {
        row.push((&child.field).into());
    }
    let (_, colour) = action(entry);
    row.extend([
        Cell::new(entry.action.as_str(), colour),
        value(entry, None).into(),
        delivery(entry),
        changed_by(entry).into(),
    ]);
    row.extend(sends.as_ref().map(|sends| sends_cell(entry, sends)));
    row
}
