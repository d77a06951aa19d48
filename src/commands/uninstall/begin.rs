//! What is looked at, shown and asked before anything is deleted.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal as _};
use std::ops::ControlFlow;
use std::process::ExitCode;

use jiff::Timestamp;
use qm_api::common::SCHEMA;
use tokio::time::{Instant, sleep, timeout_at};

use super::target::Target;
use super::{Busy, Crd, LOOK_EVERY, TELL_AFTER, USAGE, Uninstall, told, ways};
use crate::commands::lease::{self, Looks, Operator};
use crate::commands::paper::Paper;
use crate::commands::{objects, words};

impl Uninstall<'_> {
    /// Shows what is to go from the cluster `called`, and asks. Where it is to go on: what is known of the operator, and
    /// until when all is to be gone; otherwise the exit code.
    pub(super) async fn begin(
        &self,
        called: &str,
        out: &mut Paper,
    ) -> anyhow::Result<ControlFlow<ExitCode, (Looks, Instant)>> {
        let timeout = self.args.timeout;
        let deadline = Instant::now() + timeout;
        let Ok(there) = timeout_at(deadline, self.there(out)).await else {
            anyhow::bail!("the cluster did not answer within {timeout:?}: run it again");
        };
        let (targets, crds) = there?;
        if targets.is_empty() && !crds.iter().any(|crd| self.args.purge || crd.deleting) {
            out.line(format!("There is nothing to delete{}.", self.place()))?;
            self.left_alone(out)?;
            return Ok(ControlFlow::Break(ExitCode::SUCCESS));
        }
        out.line(format!("Cluster: {called}"))?;
        out.line("")?;
        self.show(&targets, &crds, out)?;
        let mut looks = Looks::default();
        let guarded = targets.iter().any(Target::needs_operator);
        if guarded && !self.how.without_operator {
            // Whoever is asked is to know it.
            if let Ok(said) =
                timeout_at(deadline, lease::read(&self.client, &self.args.lease.key())).await
            {
                if let Some(words) = ways::unlikely(&lease::at_a_glance(&said, Timestamp::now())) {
                    out.line(words)?;
                    out.line("")?;
                }
                looks.look(said, Instant::now());
            }
        }
        if self.how.without_operator && !targets.is_empty() {
            let lease = self.args.lease.key();
            let proof = async {
                let operator = looks.settle(&self.client, &lease, LOOK_EVERY).await;
                if let Some(why) = ways::unproved(&operator, &self.args.lease) {
                    anyhow::bail!(why);
                }
                let others = lease::others(&self.client, &lease, LOOK_EVERY).await;
                if let Some(why) = ways::beside(&operator, &others, self.args) {
                    anyhow::bail!(why);
                }
                Ok((operator, others))
            };
            let Ok(proof) = timeout_at(deadline, proof).await else {
                anyhow::bail!(
                    "within {timeout:?} it could not be told whether the operator runs: give --timeout more"
                );
            };
            let (operator, others) = proof?;
            let why = if let Operator::Stopped(why) = operator {
                why
            } else {
                "it has no Lease".into()
            };
            out.line(format!("The operator counts as gone ({lease}): {why}."))?;
            if let Some(words) = ways::neighbours(&others) {
                out.line(words)?;
            }
            out.line("")?;
        }
        if self.args.dry_run {
            out.line("Dry run: nothing was deleted.")?;
            return Ok(ControlFlow::Break(ExitCode::SUCCESS));
        }
        let asked = Instant::now();
        if !self.args.yes && !agreed(out).await? {
            return Ok(ControlFlow::Break(ExitCode::from(USAGE)));
        }
        // Who is asked may take their time.
        Ok(ControlFlow::Continue((looks, deadline + asked.elapsed())))
    }

    /// What there is. A server that is busy is asked again; one that is not there, or refuses, is not.
    async fn there(&self, out: &mut Paper) -> anyhow::Result<(Vec<Target>, Vec<Crd>)> {
        let mut silent = String::new();
        loop {
            let came = async {
                let (targets, crds) = (self.targets().await?, self.crds().await?);
                if targets.is_empty() && crds.is_empty() {
                    let known = objects::is_kubernetes(&self.client).await;
                    anyhow::ensure!(
                        known.map_err(|error| told(&error, &words(&error)))?,
                        objects::NO_KUBERNETES
                    );
                }
                anyhow::Ok((targets, crds))
            }
            .await;
            let came = came.and_then(|(targets, crds)| self.ours(targets, crds));
            match came {
                Err(error) if error.is::<Busy>() => away(&error, &mut silent, out)?,
                came => return came,
            }
            sleep(TELL_AFTER).await;
        }
    }

    /// What of it is ours; the rest is left alone from now on.
    fn ours(
        &self,
        mut targets: Vec<Target>,
        mut crds: Vec<Crd>,
    ) -> anyhow::Result<(Vec<Target>, Vec<Crd>)> {
        let foreign: BTreeSet<_> = crds
            .iter()
            .filter(|crd| !crd.ours)
            .map(|crd| crd.name.clone())
            .collect();
        let is_foreign = |target: &Target| foreign.contains(&target.kind.crd_name());
        // No operator serves such a CRD; once ours is gone nobody would ever let them go.
        if let Some(target) = targets
            .iter()
            .find(|target| is_foreign(target) && target.needs_operator())
        {
            anyhow::bail!(
                "CRD {} is not this program's (no annotation {SCHEMA}), but {} has a finalizer of this program's. Nothing was \
                 deleted. Install this program's CRDs over it, and run this again: {}",
                target.kind.crd_name(),
                target.title(),
                self.cluster().command(crate::REPLACE_CRDS)
            );
        }
        targets.retain(|target| !is_foreign(target));
        // Those of the cluster go with all its objects, or not at all.
        crds.retain(|crd| crd.ours && self.namespace().is_none());
        self.foreign.replace(foreign);
        Ok((targets, crds))
    }
}

/// Says that the cluster does not answer, unless `silent` says that it was said.
pub(super) fn away(error: &anyhow::Error, silent: &mut String, out: &mut Paper) -> io::Result<()> {
    let text = format!("the cluster does not answer, which is tried again: {error:#}");
    if text != *silent {
        out.line(&text)?;
        *silent = text;
    }
    Ok(())
}

/// Whether somebody says yes.
async fn agreed(out: &mut Paper) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() || !out.is_terminal() {
        out.line("Nothing was deleted: nobody is here to be asked. Say --yes.")?;
        return Ok(false);
    }
    out.raw("Delete all this? [y/N] ")?;
    // A read that waits would keep signals from being heard.
    let read = || {
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).map(|_| answer)
    };
    let answer = tokio::task::spawn_blocking(read).await??;
    let yes = ["y", "yes"].contains(&answer.trim().to_lowercase().as_str());
    if !yes {
        out.line("Nothing was deleted.")?;
    }
    Ok(yes)
}
