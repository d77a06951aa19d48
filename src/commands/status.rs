//! `quartermaster status`: everything that there is, what is not well and why, the oldest message that is not delivered.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;
use kube::Client;
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::lease::{self, Operator};
use super::objects::{self, Object, State};
use super::paper::{Cell, Ink, Paper, count, span};
use super::words;
use crate::cli::commands::{Output, StatusArgs};
use crate::registry;

/// All that is shown.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Whether the operator runs, as far as is known.
    pub operator: Who,
    /// The CRDs that are not installed.
    pub absent: Vec<String>,
    /// Every object.
    pub objects: Vec<Object>,
    /// How many there are of each state, and what is oldest.
    pub summary: Summary,
}

/// Whether the operator runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Who {
    /// `Runs`, `Stopped` or `Unknown`.
    pub state: &'static str,
    /// Who acts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Why nobody does, or why it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl From<Operator> for Who {
    fn from(operator: Operator) -> Self {
        match operator {
            Operator::Runs(holder) | Operator::NotYet(holder) => {
                Self { state: "Runs", holder: Some(holder), message: None }
            }
            Operator::Stopped(why) => Self { state: "Stopped", holder: None, message: Some(why) },
            Operator::Absent(why) | Operator::Unread(why) | Operator::Unknown(why) => {
                Self { state: "Unknown", holder: None, message: Some(why) }
            }
        }
    }
}

/// What all of it comes to.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Summary {
    /// How many objects there are.
    pub objects: usize,
    /// Those that are well.
    pub ready: usize,
    /// Those that are not.
    pub not_ready: usize,
    /// How many changes wait to be told.
    pub undelivered: u64,
    /// The `TrackedField` with the oldest of them, `NAMESPACE/NAME`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_undelivered: Option<String>,
}

/// What all of it comes to. Pure.
pub fn report(operator: Operator, absent: Vec<String>, mut objects: Vec<Object>) -> Report {
    objects.sort_by(|one, other| {
        (&one.namespace, &one.kind, &one.name).cmp(&(&other.namespace, &other.kind, &other.name))
    });
    let are = |state: State| objects.iter().filter(|object| object.state == state).count();
    let summary = Summary {
        objects: objects.len(),
        ready: are(State::Ready),
        not_ready: are(State::NotReady),
        undelivered: objects.iter().map(|object| object.pending).sum(),
        oldest_undelivered: oldest(&objects).map(|object| format!("{}/{}", object.namespace, object.name)),
    };
    Report { operator: operator.into(), absent, objects, summary }
}

fn oldest(objects: &[Object]) -> Option<&Object> {
    objects
        .iter()
        .filter(|object| object.oldest_undelivered.is_some())
        .min_by_key(|object| object.oldest_undelivered.as_ref().and_then(|oldest| oldest.time))
}

/// Shows it.
///
/// # Errors
/// The cluster cannot be asked; once something was shown, that is told and tried again.
pub async fn run(client: Client, args: &StatusArgs, out: &mut Paper) -> anyhow::Result<ExitCode> {
    let mut shown: Option<Report> = None;
    let mut failed = String::new();
    loop {
        let started = Instant::now();
        let report = match gather(&client, args).await {
            Ok(report) => report,
            // It could be asked before: an apiserver that is away for a moment ends nothing.
            Err(error) if shown.is_some() => {
                let text = format!("the cluster does not answer, which is tried again: {error:#}");
                if failed != text {
                    match args.output {
                        Output::Table => out.line(&text)?,
                        // What is printed there is JSON.
                        Output::Json => Paper::new(io::stderr(), false).line(&text)?,
                    }
                    failed = text;
                }
                sleep(args.interval.max(started.elapsed() * 9)).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        failed.clear();
        let again = shown.as_ref() == Some(&report);
        if out.is_terminal() || !again {
            if args.watch && args.output == Output::Table {
                out.anew()?;
                if shown.is_some() && !out.is_terminal() {
                    out.line("")?;
                }
            }
            match args.output {
                Output::Json => out.json(&report)?,
                Output::Table => print(&report, args, out)?,
            }
        }
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        shown = Some(report);
        sleep(args.interval.max(started.elapsed() * 9)).await;
    }
}

async fn gather(client: &Client, args: &StatusArgs) -> anyhow::Result<Report> {
    let (mut absent, mut objects) = (Vec::new(), Vec::new());
    for kind in registry::KINDS {
        let listed = objects::list(client, kind, args.scope.namespace(), |object| Object::of(kind, &object)).await;
        let listed = listed.map_err(|error| anyhow::anyhow!(words(&error)));
        match listed.with_context(|| format!("the {} could not be listed", kind.resource().plural))? {
            Some(listed) => objects.extend(listed),
            None => absent.push(kind.crd_name()),
        }
    }
    let operator = lease::at_a_glance(&lease::read(client, &args.lease).await, Timestamp::now());
    Ok(report(operator, absent, objects))
}

fn print(report: &Report, args: &StatusArgs, out: &mut Paper) -> std::io::Result<()> {
    let now = Timestamp::now();
    let ago = |time: Option<Timestamp>| time.map_or_else(String::new, |time| span(past(now, time)));
    let objects = &report.objects;
    if objects.is_empty() {
        let place = args.scope.namespace().map_or_else(String::new, |namespace| format!(" in namespace {namespace}"));
        let explain = args.scope.cluster.command("kubectl explain trackedfield.spec");
        out.line(format!("There is nothing of Quartermaster{place} yet: {explain}"))?;
    } else {
        let rows: Vec<_> = objects
            .iter()
            .map(|object| {
                let state = Cell::new(object.state.to_string(), object.state.ink());
                let reason = if object.reason == objects::SUSPENDED { "" } else { &object.reason };
                let reason = match object.pending {
                    0 => reason.to_owned(),
                    pending => format!("{reason} {pending} undelivered").trim().to_owned(),
                };
                vec![
                    (&object.namespace).into(),
                    object.title().into(),
                    state,
                    Cell::new(ago(object.since), Ink::Dim),
                    reason.into(),
                ]
            })
            .collect();
        out.table(&["NAMESPACE", "OBJECT", "STATE", "FOR", "REASON"], &rows)?;
        for object in objects.iter().filter(|object| !object.message.is_empty() && object.state != State::Suspended) {
            let Object { namespace, reason, message, .. } = object;
            out.line(format!("\n{} in {namespace}: {reason}", object.title()))?;
            out.line(format!("  {message}"))?;
        }
        let Summary { objects: all, ready, not_ready, undelivered, .. } = &report.summary;
        out.line(format!("\n{}: {ready} ready, {not_ready} not ready", count(*all, "object", "objects")))?;
        if let Some(object) = oldest(objects)
            && let Some(message) = &object.oldest_undelivered
        {
            let value = message.value.as_deref().map_or_else(String::new, |value| format!(" {value:?}"));
            let since = message.time.map_or_else(String::new, |time| format!(", for {}", span(past(now, time))));
            let all = usize::try_from(*undelivered).unwrap_or(usize::MAX);
            out.line(format!(
                "Oldest undelivered message: {} in {}, {}{value}{since}; {} in all",
                object.title(),
                object.namespace,
                message.action,
                count(all, "change waits", "changes wait"),
            ))?;
        }
    }
    let Who { holder, message, .. } = &report.operator;
    let operator = match (report.operator.state, holder, message) {
        ("Runs", Some(holder), _) => format!("The operator runs: {holder} leads"),
        ("Stopped", _, Some(why)) => format!("The operator does not run: {why}"),
        (_, _, why) => format!("Whether the operator runs is not known: {}", why.as_deref().unwrap_or_default()),
    };
    out.line(operator)?;
    if !report.absent.is_empty() {
        let install = args.scope.cluster.command("quartermaster crds | kubectl apply --server-side -f -");
        out.line(format!("Not installed: {} ({install})", report.absent.join(", ")))?;
    }
    Ok(())
}

fn past(now: Timestamp, time: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(time)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use serde_json::{Value, json};

    use super::*;

    fn object(controller: &str, namespace: &str, name: &str, status: &Value) -> Object {
        let object = json!({ "metadata": { "namespace": namespace, "name": name }, "spec": {}, "status": status });
        Object::of(objects::kind(controller).unwrap(), &serde_json::from_value(object).unwrap())
    }

    /// Or else one that is written into a file has a new report with every look.
    #[test]
    fn an_operator_that_stopped_is_the_same_report_however_long_ago() {
        let said = lease::Said::Lease {
            holder: "a".into(),
            duration: Duration::from_secs(9),
            renewed: Some("2026-01-01T00:00:00Z".parse().unwrap()),
        };
        let at = |time: &str| report(lease::at_a_glance(&said, time.parse().unwrap()), vec![], vec![]);
        let one = at("2026-01-01T00:01:00Z");
        assert_eq!(one, at("2026-01-01T00:01:01Z"));
        let why = "a has not renewed its Lease since 2026-01-01 00:00:00Z";
        assert_eq!((one.operator.state, one.operator.message.as_deref()), ("Stopped", Some(why)));
    }

    #[test]
    fn the_oldest_undelivered_of_all_is_found_and_all_are_counted() {
        let pending = |time: &str| json!([{ "time": time, "action": "Updated", "value": "1", "delivery": "Pending" }]);
        let objects = vec![
            object("trackedfield", "b", "old", &pending("2026-01-01T00:00:00Z")),
            object("trackedfield", "a", "young", &pending("2026-01-02T00:00:00Z")),
            object("contactpoint", "b", "web", &json!({ "ready": true })),
        ];
        let report = report(Operator::Unknown("why".into()), vec![], objects);
        let order: Vec<_> = report.objects.iter().map(|object| (object.namespace.as_str(), object.title())).collect();
        let title = |text: &str| text.to_owned();
        assert_eq!(
            order,
            [("a", title("trackedfield/young")), ("b", title("contactpoint/web")), ("b", title("trackedfield/old"))]
        );
        let summary =
            Summary { objects: 3, ready: 1, not_ready: 0, undelivered: 2, oldest_undelivered: Some("b/old".into()) };
        assert_eq!(report.summary, summary);
    }
}
