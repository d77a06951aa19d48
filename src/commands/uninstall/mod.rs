//! `quartermaster uninstall`: deletes all objects of Quartermaster's kinds while the operator runs, and names what
//! blocks a deletion. The command ends within `--timeout`, whatever the cluster does.

use std::cell::RefCell;
use std::io::{self, IsTerminal as _};
use std::ops::ControlFlow;
use std::process::ExitCode;

use kube::Client;
use qm_runtime::signals::Signals;
use tokio::time::{Instant, sleep, timeout_at};

use self::deletion::Deletion;
use self::plan::UninstallPlan;
use self::target::UninstallTarget;
use super::operator_state::{LeaseVersion, OperatorState};
use super::printer::Printer;
use super::{FailedRequest, OutageReporter, RETRY_INTERVAL, in_namespace};
use crate::cli::commands::UninstallArgs;

mod crds;
mod deletion;
mod plan;
mod proof;
mod remaining;
mod target;

/// Exit code if the user did not confirm.
const NOT_CONFIRMED: u8 = 2;

pub(crate) async fn run(
    client: Client,
    cluster_name: &str,
    args: &UninstallArgs,
    out: &mut Printer,
) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    let deletion = tokio::select! {
        confirmed = confirm(client, cluster_name, args, out) => match confirmed? {
            ControlFlow::Continue(deletion) => deletion,
            ControlFlow::Break(code) => return Ok(code),
        },
        () = signals.next() => {
            out.line("")?;
            out.line("Interrupted: nothing was deleted.")?;
            return Ok(ExitCode::from(NOT_CONFIRMED));
        }
    };
    let result = tokio::select! {
        remaining = deletion.run(out) => match remaining {
            Ok(None) => return print_success(args, out),
            Ok(Some(remaining)) => remaining.print(&deletion.client, args, out).await,
            Err(error) => Err(error),
        },
        () = signals.next() => {
            out.line("")?;
            out.line("Interrupted. Run the command again to continue.")?;
            Ok(ExitCode::FAILURE)
        }
    };
    let undo = deletion.changes.borrow().undo(&args.scope.cluster);
    out.section(
        "These objects were changed but not deleted. To undo the changes:",
        &undo,
    )?;
    result
}

/// Shows the objects to delete, and asks the user. Returns an exit code if the command deletes nothing.
async fn confirm<'a>(
    client: Client,
    cluster_name: &str,
    args: &'a UninstallArgs,
    out: &mut Printer,
) -> anyhow::Result<ControlFlow<ExitCode, Deletion<'a>>> {
    let timeout = args.timeout;
    let deadline = Instant::now() + timeout;
    let Ok(plan) = timeout_at(deadline, discover(&client, args, out)).await else {
        anyhow::bail!(
            "the apiserver did not answer within {timeout:?}: run the command again, or raise --timeout"
        );
    };
    let plan = plan?;
    if plan.targets.is_empty() && plan.crds.is_empty() {
        let in_namespace = in_namespace(args.scope.namespace());
        out.line(format!("There is nothing to delete{in_namespace}."))?;
        plan.print_foreign(out)?;
        return Ok(ControlFlow::Break(ExitCode::SUCCESS));
    }
    out.line(format!("Cluster: {cluster_name}"))?;
    plan.print(args, out)?;

    let notes = operator_notes(&client, args, &plan.targets);
    let Ok(notes) = timeout_at(deadline, notes).await else {
        anyhow::bail!(
            "cannot tell within {timeout:?} whether the operator is running: raise --timeout"
        );
    };
    let (expired_lease, notes) = notes?;
    out.paragraph(notes)?;
    out.line("")?;
    if args.dry_run {
        out.line("Dry run: nothing was deleted.")?;
        return Ok(ControlFlow::Break(ExitCode::SUCCESS));
    }
    let asked = Instant::now();
    if !args.yes && !is_confirmed(out).await? {
        return Ok(ControlFlow::Break(ExitCode::from(NOT_CONFIRMED)));
    }
    // The time that the user takes to answer does not count towards `--timeout`.
    let deadline = deadline + asked.elapsed();
    Ok(ControlFlow::Continue(Deletion {
        client,
        args,
        kinds: plan.kinds,
        expired_lease,
        deadline,
        changes: RefCell::default(),
    }))
}

/// Retries while the apiserver is busy. Fails at once if the apiserver does not answer, or rejects a request.
async fn discover(
    client: &Client,
    args: &UninstallArgs,
    out: &mut Printer,
) -> anyhow::Result<UninstallPlan> {
    let mut outage = OutageReporter::default();
    loop {
        match UninstallPlan::discover(client, args).await {
            Err(error) if FailedRequest::is_busy(&error) => outage.report(&error, out)?,
            plan => return plan,
        }
        sleep(RETRY_INTERVAL).await;
    }
}

/// Returns notes for the user if the operator may not be running. With `--without-operator`, fails unless the operator
/// has certainly stopped, and also returns the Lease that proves it.
async fn operator_notes(
    client: &Client,
    args: &UninstallArgs,
    targets: &[UninstallTarget],
) -> anyhow::Result<(Option<LeaseVersion>, Vec<String>)> {
    // Objects may be created until the CRDs are deleted.
    if args.without_operator {
        return proof::prove_gone(client, args).await;
    }
    let mut notes = Vec::new();
    if targets.iter().any(|target| target.needs_operator(args)) {
        let operator = OperatorState::read(client, &args.lease.key()).await;
        let problem = operator.problem();
        notes.extend(problem.map(|problem| {
            format!("{problem}. Objects with its finalizers stay until the operator runs.")
        }));
    }
    Ok((None, notes))
}

async fn is_confirmed(out: &mut Printer) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() || !out.is_terminal() {
        out.line("Nothing was deleted: without a terminal, this command needs --yes.")?;
        return Ok(false);
    }
    out.raw("Delete all of this? [y/N] ")?;
    // A blocking read on this thread would delay Ctrl-C.
    let answer = tokio::task::spawn_blocking(|| {
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).map(|_| answer)
    });
    let answer = answer.await??.trim().to_lowercase();
    let is_confirmed = answer == "y" || answer == "yes";
    if !is_confirmed {
        out.line("Nothing was deleted.")?;
    }
    Ok(is_confirmed)
}

fn print_success(args: &UninstallArgs, out: &mut Printer) -> anyhow::Result<ExitCode> {
    let in_namespace = in_namespace(args.scope.namespace());
    out.line(format!("Everything is deleted{in_namespace}."))?;
    if args.scope.namespace().is_none() && !args.purge {
        out.line("The operator and its CRDs stay: uninstall them the way they were installed.")?;
    }
    Ok(ExitCode::SUCCESS)
}
