//! `quartermaster status`: everything that there is, what is not well and why, the oldest message that is not delivered.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use futures::join;
use jiff::Timestamp;
use kube::Client;
use kube::core::DynamicObject;
use qm_runtime::crds;
use tokio::time::{Instant, sleep};

use super::admission::{Policy, Unchecked};
use super::objects::{self, Object, State};
use super::paper::{Cell, Ink, Paper, count, shorten, span};
use super::report::{Report, Seen, Who, Without, oldest, report};
use super::uninstall::target::{How, Target};
use super::{admission, going, is, lease, words, words_of_list};
use crate::cli::commands::{Output, StatusArgs};
use crate::registry;

/// How many objects that are older than the policies are printed.
const UNCHECKED: usize = 20;

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
            return Ok(if report.seen.not_listed.is_empty() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            });
        }
        shown = Some(report);
        sleep(args.interval.max(started.elapsed() * 9)).await;
    }
}

async fn gather(client: &Client, args: &StatusArgs) -> anyhow::Result<Report> {
    let mut seen = Seen::default();
    for kind in registry::KINDS {
        let row = |object: DynamicObject| {
            let mut row = Object::of(kind, &object);
            if row.state == State::Deleting {
                let target = Target::of(kind, &object);
                row.held = target.held(How::default(), &args.scope.cluster);
                row.needs_operator = target.needs_operator();
            }
            row
        };
        let (listed, crd) = join!(
            objects::list(client, kind, args.scope.namespace(), row),
            objects::crd(client, kind)
        );
        let name = kind.crd_name();
        match listed {
            Ok(Some(listed)) => {
                seen.objects.extend(listed);
                let crd = crd.map_err(|error| {
                    anyhow::anyhow!("CRD {name} could not be read: {}", words(&error))
                })?;
                let why = crd.and_then(|crd| crds::unlike(&crd, kind.names, &kind.schema()));
                seen.not_served
                    .extend(why.map(|message| Without { name, message }));
            }
            Ok(None) => seen.absent.push(name),
            Err(error) if is(&error, 403) => {
                let message = words_of_list(&error, args.scope.namespace());
                seen.not_listed.push(Without {
                    name: kind.resource().plural,
                    message,
                });
            }
            Err(error) => {
                anyhow::bail!(
                    "the {} could not be listed: {}",
                    kind.resource().plural,
                    words(&error)
                );
            }
        }
    }
    if let Some(Without { name, message }) = seen.not_listed.first().filter(|_| seen.sees_none()) {
        anyhow::bail!("the {name} could not be listed: {message}");
    }
    if seen.absent.len() == registry::KINDS.len() {
        let known = objects::is_kubernetes(client).await;
        anyhow::ensure!(
            known.map_err(|error| anyhow::anyhow!(words(&error)))?,
            objects::NO_KUBERNETES
        );
    }
    seen.admission_policies = admission::read(client).await?;
    let stuck = seen.objects.iter().filter(|row| row.needs_operator);
    let namespaces = stuck.map(|row| &*row.namespace).collect();
    let ways = going::ways_out(client, namespaces, &args.lease, &args.scope.cluster).await;
    for row in seen.objects.iter_mut().filter(|row| row.needs_operator) {
        row.held.extend(ways.get(&row.namespace).cloned());
    }
    let operator = lease::at_a_glance(
        &lease::read(client, &args.lease.key()).await,
        Timestamp::now(),
    );
    Ok(report(operator, seen))
}

fn print(report: &Report, args: &StatusArgs, out: &mut Paper) -> std::io::Result<()> {
    let now = Timestamp::now();
    let ago = |time: Option<Timestamp>| time.map_or_else(String::new, |time| span(past(now, time)));
    let Seen {
        absent,
        not_served,
        not_listed,
        objects,
        ..
    } = &report.seen;
    let cluster = &args.scope.cluster;
    if objects.is_empty() {
        let place = args
            .scope
            .namespace()
            .map_or_else(String::new, |namespace| {
                format!(" in namespace {namespace}")
            });
        let explain = format!(": {}", cluster.command("kubectl explain trackedfield.spec"));
        let explain = if absent.is_empty() && not_listed.is_empty() {
            explain
        } else {
            String::new()
        };
        out.line(format!(
            "There is nothing of Quartermaster{place} yet{explain}"
        ))?;
    } else {
        let rows: Vec<_> = objects
            .iter()
            .map(|object| {
                let state = Cell::new(object.state.to_string(), object.state.ink());
                let reason = Some(object.reason.clone())
                    .filter(|it| !it.is_empty() && it != objects::SUSPENDED);
                let pending = Some(object.pending).filter(|number| *number > 0);
                let pending = pending.map(|number| format!("{number} undelivered"));
                let reason = reason
                    .into_iter()
                    .chain(pending)
                    .collect::<Vec<_>>()
                    .join(", ");
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
        for object in objects
            .iter()
            .filter(|object| object.state != State::Suspended)
        {
            let Object {
                namespace,
                state,
                reason,
                message,
                held,
                ..
            } = object;
            // What holds it up says the reason, too.
            let lines = if held.is_empty() {
                std::slice::from_ref(message)
            } else {
                held
            };
            if lines.iter().all(String::is_empty) {
                continue;
            }
            let head = if held.is_empty() {
                reason.clone()
            } else {
                state.to_string()
            };
            out.line("")?;
            out.line(format!("{} in {namespace}: {head}", object.title()))?;
            for line in lines {
                out.line(format!("  {line}"))?;
            }
        }
        out.line("")?;
        out.line(report.summary.words())?;
        if let Some(object) = oldest(objects)
            && let Some(message) = &object.oldest_undelivered
        {
            let value = message
                .value
                .as_deref()
                .map_or_else(String::new, |value| format!(" {:?}", shorten(value)));
            let since = message.time.map_or_else(String::new, |time| {
                format!(", for {}", span(past(now, time)))
            });
            let all = usize::try_from(report.summary.undelivered).unwrap_or(usize::MAX);
            out.line(format!(
                "Oldest undelivered message: {} in {}, {}{value}{since}; {} in all",
                object.title(),
                object.namespace,
                message.action,
                count(all, "change waits", "changes wait"),
            ))?;
        }
    }
    for Without { name, message } in not_listed {
        out.line(format!(
            "Not shown: {name}, which could not be listed: {message}"
        ))?;
    }
    let Who {
        holder,
        message,
        renewed,
        ..
    } = &report.operator;
    let operator = match (report.operator.state, holder, message) {
        ("Runs", Some(holder), _) => {
            let late = renewed.map_or_else(String::new, |at| {
                format!(", last renewed {} ago", span(past(now, at)))
            });
            format!("The operator runs: {holder} leads{late}")
        }
        ("Stopped", _, Some(why)) => format!("The operator does not run: {why}"),
        (_, _, why) => format!(
            "Whether the operator runs is not known: {}",
            why.as_deref().unwrap_or_default()
        ),
    };
    out.line(operator)?;
    print_admission(&report.seen, out)?;
    for Without { name, message } in not_served {
        // It may be of the operator's version, which this program need not be: to replace it would be wrong then.
        if report.operator.state == "Runs" {
            out.line(format!(
                "Served only by an operator of its version: {name} {message}"
            ))?;
        } else {
            out.line(format!(
                "Not served: {name} {message} ({})",
                cluster.command(crate::REPLACE_CRDS)
            ))?;
        }
    }
    if !absent.is_empty() {
        let install = cluster.command(crate::INSTALL_CRDS);
        out.line(format!("Not installed: {} ({install})", absent.join(", ")))?;
    }
    Ok(())
}

/// Prints nothing while all policies are in force and no object is older than they are.
fn print_admission(seen: &Seen, out: &mut Paper) -> std::io::Result<()> {
    let missing: Vec<_> = seen
        .admission_policies
        .iter()
        .filter(|policy| policy.state == "NotInForce")
        .collect();
    if !missing.is_empty() {
        out.line("Admission policies that are not in force, so the permissions of authors may go unchecked:")?;
        for Policy { message, .. } in missing {
            out.line(format!("  {message}"))?;
        }
        out.line("  To install them: use what installed the operator (make deploy, kubectl apply or helm upgrade)")?;
    }
    if let Some(Policy { message, .. }) = seen
        .admission_policies
        .iter()
        .find(|policy| policy.state == "Unknown")
    {
        out.line(format!(
            "Whether the admission policies are in force is not known: {message}"
        ))?;
    }
    if !seen.unchecked.is_empty() {
        let number = count(seen.unchecked.len(), "object is older", "objects are older");
        let authors = if seen.unchecked.len() == 1 {
            "its author's"
        } else {
            "their authors'"
        };
        out.line(format!(
            "{number} than the admission policies, which did not check {authors} permissions:"
        ))?;
        for Unchecked {
            kind,
            namespace,
            name,
        } in seen.unchecked.iter().take(UNCHECKED)
        {
            out.line(format!("  {}/{name} in {namespace}", kind.to_lowercase()))?;
        }
        if seen.unchecked.len() > UNCHECKED {
            out.line("  ... (-o json lists them all)")?;
        }
        out.line(
            "  To have one checked, have its author change its spec, such as suspend, and back; it stays in this list.",
        )?;
        out.line("  Delete what you do not trust. That also deletes its children, copies and undelivered messages.")?;
    }
    Ok(())
}

fn past(now: Timestamp, time: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(time)).unwrap_or_default()
}
