//! Finds what has to be deleted, shows it, and asks the user.

use std::io::{self, IsTerminal as _};
use std::ops::ControlFlow;
use std::process::ExitCode;

use crate::REPLACE_CRDS;
use qm_api::common::SCHEMA;
use tokio::time::{Instant, sleep, timeout_at};

use super::messages::foreign;
use super::step::UninstallTarget;
use super::{Discovery, NOT_CONFIRMED, ROUND_INTERVAL, Uninstall};
use crate::commands::printer::Printer;
use crate::commands::{OutageReporter, RequestError, in_namespace, objects};
use crate::kinds;

impl Uninstall<'_> {
    /// Returns the deadline of the deletion, or an exit code if nothing is to be deleted.
    pub(super) async fn confirm(
        &mut self,
        cluster_name: &str,
        out: &mut Printer,
    ) -> anyhow::Result<ControlFlow<ExitCode, Instant>> {
        let timeout = self.args.timeout;
        let deadline = Instant::now() + timeout;
        let Ok(found) = timeout_at(deadline, self.discover(out)).await else {
            anyhow::bail!("the cluster did not answer within {timeout:?}: run it again");
        };
        let found = found?;
        self.kinds
            .retain(|kind| !found.foreign.contains(&kind.crd_name()));
        if found.targets.is_empty() && found.crds.is_empty() {
            let place = in_namespace(self.namespace());
            out.line(format!("There is nothing to delete{place}."))?;
            out.paragraph(found.foreign.iter().map(|crd| foreign(crd)))?;
            return Ok(ControlFlow::Break(ExitCode::SUCCESS));
        }
        out.line(format!("Cluster: {cluster_name}"))?;
        self.print_plan(&found, out)?;
        let Ok(notes) = timeout_at(deadline, self.operator_notes(&found.targets)).await else {
            anyhow::bail!(
                "whether the operator runs is not known after {timeout:?}: raise --timeout"
            );
        };
        out.paragraph(notes?)?;
        out.line("")?;
        if self.args.dry_run {
            out.line("Dry run: nothing was deleted.")?;
            return Ok(ControlFlow::Break(ExitCode::SUCCESS));
        }
        let asked = Instant::now();
        if !self.args.yes && !is_confirmed(out).await? {
            return Ok(ControlFlow::Break(ExitCode::from(NOT_CONFIRMED)));
        }
        // The time of the question does not count.
        Ok(ControlFlow::Continue(deadline + asked.elapsed()))
    }

    /// Waits for a busy apiserver. Fails at once if the apiserver does not answer or refuses.
    async fn discover(&self, out: &mut Printer) -> anyhow::Result<Discovery> {
        let mut outage = OutageReporter::default();
        loop {
            match self.discover_once().await {
                Err(error) if RequestError::is_busy(&error) => outage.report(&error, out)?,
                found => return found,
            }
            sleep(ROUND_INTERVAL).await;
        }
    }

    async fn discover_once(&self) -> anyhow::Result<Discovery> {
        let mut targets = Vec::new();
        for kind in kinds::uninstall_order() {
            targets.extend(self.list(kind).await?);
        }
        let (mut crds, unknown) = self.crds().await?;
        if targets.is_empty() && crds.is_empty() {
            objects::ensure_kubernetes(&self.client).await?;
        }
        let foreign = crds.iter().filter(|crd| !crd.is_owned);
        let foreign: Vec<_> = foreign.map(|crd| crd.name.clone()).collect();
        crds.retain(|crd| self.is_purged(crd));
        let (foreign_targets, targets): (Vec<_>, Vec<_>) = targets
            .into_iter()
            .partition(|target| foreign.contains(&target.kind.crd_name()));
        // No operator serves such a CRD, so the finalizer would stay.
        let mut foreign_targets = foreign_targets.iter();
        if let Some(target) = foreign_targets.find(|target| target.object.needs_operator()) {
            anyhow::bail!(
                "CRD {} is not this program's (no annotation {SCHEMA}), but {} has a finalizer of this program's. Nothing was \
                 deleted. Install this program's CRDs over it, and run this again: {}",
                target.kind.crd_name(),
                target.object.title(),
                self.cluster().command(REPLACE_CRDS)
            );
        }
        Ok(Discovery {
            targets,
            crds,
            foreign,
            unknown,
        })
    }

    /// Returns notes for the user, if the operator may not run.
    async fn operator_notes(&mut self, targets: &[UninstallTarget]) -> anyhow::Result<Vec<String>> {
        if self.args.without_operator && !targets.is_empty() {
            return self.prove_gone().await;
        }
        if !targets
            .iter()
            .any(|target| target.needs_operator(self.args))
        {
            return Ok(Vec::new());
        }
        let operator = self.operator().await;
        let note = |problem| format!("{problem}. Objects that need the operator will wait for it.");
        Ok(operator.problem().map(note).into_iter().collect())
    }
}

async fn is_confirmed(out: &mut Printer) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() || !out.is_terminal() {
        out.line("Nothing was deleted: there is no terminal to ask on. Add --yes.")?;
        return Ok(false);
    }
    out.raw("Delete all this? [y/N] ")?;
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
