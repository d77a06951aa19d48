//! `quartermaster status`: shows all objects, what is wrong with them, and the oldest message that is not delivered.

use std::io;
use std::process::ExitCode;

use anyhow::Context as _;
use kube::Client;
use kube::core::DynamicObject;
use qm_core::kind::KindInfo;
use qm_runtime::watch::crds::{self, CrdMismatch};
use tokio::time::{Instant, sleep};

use super::objects::{self, ObjectState, ObjectSummary};
use super::operator_state::OperatorState;
use super::printer::Printer;
use super::report::{ClusterSnapshot, IncompatibleCrd, StatusReport, UnavailableKind};
use super::terminating::{blockers, namespace_remedies};
use super::{FailedRequest, OutageReporter, admission, has_code};
use crate::cli::commands::{Output, StatusArgs};
use crate::controllers::KINDS;

pub(crate) async fn run(
    client: Client,
    args: &StatusArgs,
    out: &mut Printer,
) -> anyhow::Result<ExitCode> {
    let mut shown = None;
    let mut outage = OutageReporter::default();
    loop {
        let began = Instant::now();
        match collect(&client, args).await {
            Ok(report) => {
                outage = OutageReporter::default();
                if out.is_terminal() || shown.as_ref() != Some(&report) {
                    show(&report, shown.is_some(), args, out)?;
                }
                if !args.watch {
                    return Ok(if report.is_complete() {
                        ExitCode::SUCCESS
                    } else {
                        ExitCode::FAILURE
                    });
                }
                shown = Some(report);
            }
            Err(error) if shown.is_none() => return Err(error),
            Err(error) => match args.output {
                Output::Table => outage.report(&error, out)?,
                Output::Json => outage.report(&error, &mut Printer::new(io::stderr(), false))?,
            },
        }
        // At most a tenth of the time is spent on requests.
        sleep(args.interval.max(began.elapsed() * 9)).await;
    }
}

fn show(
    report: &StatusReport,
    is_update: bool,
    args: &StatusArgs,
    out: &mut Printer,
) -> io::Result<()> {
    if args.output == Output::Json {
        return out.json(report);
    }
    if args.watch {
        out.clear_screen()?;
    }
    if is_update && !out.is_terminal() {
        out.line("")?;
    }
    report.print(&args.scope, out)
}

async fn collect(client: &Client, args: &StatusArgs) -> anyhow::Result<StatusReport> {
    let mut snapshot = ClusterSnapshot::default();
    for kind in KINDS {
        collect_kind(client, kind, args, &mut snapshot).await?;
    }
    if let [UnavailableKind { name, message }, ..] = &*snapshot.forbidden_kinds
        && snapshot.forbidden_kinds.len() == KINDS.len()
    {
        anyhow::bail!("the {name} could not be listed: {message}");
    }
    if snapshot.missing_crds.len() == KINDS.len() {
        objects::ensure_kubernetes(client).await?;
    }
    snapshot.admission_policies = admission::read(client).await?;

    let is_terminating = |object: &&ObjectSummary| object.state == ObjectState::Terminating;
    let terminating = snapshot.objects.iter().filter(is_terminating);
    let remedies = namespace_remedies(client, terminating, &args.lease, &args.scope.cluster).await;
    for object in &mut snapshot.objects {
        if !object.blockers.is_empty() && object.needs_operator() {
            object
                .blockers
                .extend(remedies.get(&object.namespace).cloned());
        }
    }
    let operator = OperatorState::read(client, &args.lease.key()).await;
    Ok(StatusReport::new(operator, snapshot))
}

async fn collect_kind(
    client: &Client,
    kind: &KindInfo,
    args: &StatusArgs,
    snapshot: &mut ClusterSnapshot,
) -> anyhow::Result<()> {
    let summarise = |object: DynamicObject| {
        let mut summary = ObjectSummary::new(kind, &object);
        if summary.state == ObjectState::Terminating {
            summary.blockers = blockers(kind, &summary, &args.scope.cluster);
        }
        summary
    };
    let listed = objects::list(client, kind, args.scope.namespace(), summarise);
    let (listed, crd) = futures::join!(listed, objects::crd(client, kind));
    let name = kind.crd_name();
    match listed {
        Ok(Some(listed)) => {
            snapshot.objects.extend(listed);
            let crd = match crd {
                // CRDs belong to the whole cluster: a user of one namespace may not read them.
                Err(error) if has_code(&error, 403) => None,
                crd => crd
                    .map_err(FailedRequest::from)
                    .with_context(|| format!("CRD {name} could not be read"))?,
            };
            let mismatch = crd.and_then(|crd| crds::mismatch(&crd, kind.names, &kind.schema()));
            let incompatible = mismatch.map(|mismatch| IncompatibleCrd {
                name,
                message: mismatch.to_string(),
                is_foreign: mismatch == CrdMismatch::Foreign,
            });
            snapshot.incompatible_crds.extend(incompatible);
        }
        Ok(None) => snapshot.missing_crds.push(name),
        Err(error) if FailedRequest::is_forbidden(&error) => {
            snapshot.forbidden_kinds.push(UnavailableKind {
                name: kind.resource().plural,
                message: error.root_cause().to_string(),
            });
        }
        Err(error) => return Err(error),
    }
    Ok(())
}
