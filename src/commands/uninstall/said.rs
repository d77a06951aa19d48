//! What `uninstall` says before it begins, and at its end.

use std::collections::BTreeMap;
use std::io;
use std::process::ExitCode;

use qm_api::common::SCHEMA;

use super::target::{ORDER, Target};
use super::{Crd, NAMED, Standing, Uninstall, ways};
use crate::commands::paper::{Cell, Paper, count};
use crate::controllers::{app_service, config_map_sync, my_app, my_ingress};

impl Uninstall<'_> {
    /// What is to go, and what goes or stays with it.
    pub(super) fn show(&self, targets: &[Target], crds: &[Crd], out: &mut Paper) -> io::Result<()> {
        out.line(format!("To be deleted{}:", self.place()))?;
        out.line("")?;
        let mut rows = Vec::new();
        for controller in ORDER {
            let of = || {
                targets
                    .iter()
                    .filter(|target| target.kind.controller == controller)
            };
            let Some(first) = of().next() else { continue };
            let mut names: Vec<_> = of()
                .take(3)
                .map(|it| format!("{}/{}", it.object.namespace, it.object.name))
                .collect();
            if of().count() > names.len() {
                names.push("...".into());
            }
            rows.push(vec![
                Cell::from(&first.object.kind),
                of().count().to_string().into(),
                names.join(", ").into(),
                self.fate(controller, &of().collect::<Vec<_>>()).into(),
            ]);
        }
        for crd in crds.iter().filter(|crd| self.args.purge || crd.deleting) {
            let why = if crd.deleting {
                "is being deleted already"
            } else {
                ""
            };
            rows.push(vec![
                "CRD".into(),
                "1".into(),
                Cell::from(&crd.name),
                why.into(),
            ]);
        }
        out.table(&["KIND", "COUNT", "NAMES", "WITH IT"], &rows)?;
        if self.how.without_operator {
            let left: Vec<_> = targets
                .iter()
                .filter(|it| it.needs_operator())
                .filter_map(|it| it.left_behind(self.cluster()))
                .collect();
            if !left.is_empty() {
                out.line("")?;
                out.line("Left behind, to be taken away by hand:")?;
                for line in left {
                    out.line(format!("  {line}"))?;
                }
            }
        }
        if !self.foreign.borrow().is_empty() {
            out.line("")?;
            self.left_alone(out)?;
        }
        if let Some(why) = &*self.unseen.borrow() {
            out.line("")?;
            out.line(format!(
                "Some of this may be another program's: whose the CRDs are is not known: {why}"
            ))?;
        }
        out.line("")
    }

    /// What has the names of our kinds, and is another program's.
    pub(super) fn left_alone(&self, out: &mut Paper) -> io::Result<()> {
        for crd in &*self.foreign.borrow() {
            out.line(format!(
                "Left alone, with its objects: CRD {crd}, which is not this program's (no annotation {SCHEMA})"
            ))?;
        }
        Ok(())
    }

    /// What becomes of what the objects of a kind made.
    fn fate(&self, controller: &str, targets: &[&Target]) -> String {
        let undelivered: u64 = targets.iter().map(|target| target.object.pending).sum();
        let going = targets.iter().any(|target| target.deleting);
        let stays = self.how.keep_children || self.how.without_operator;
        match controller {
            my_ingress::NAME if stays => "load balancers stay in AWS".into(),
            my_ingress::NAME => "load balancers in AWS".into(),
            // How an object is deleted is settled when that begins.
            config_map_sync::NAME if stays && going => {
                "copies stay; of what is being deleted already, those in other namespaces".into()
            }
            config_map_sync::NAME if stays => "copies stay".into(),
            config_map_sync::NAME => "copies, unless deletionPolicy: Orphan".into(),
            app_service::NAME | my_app::NAME if self.how.keep_children => {
                "what they run stays".into()
            }
            app_service::NAME => "Deployments, Services, autoscalers, Ingresses".into(),
            my_app::NAME => "Pods".into(),
            _ if undelivered > 0 => count(
                usize::try_from(undelivered).unwrap_or(usize::MAX),
                "undelivered message",
                "undelivered messages",
            ),
            _ => String::new(),
        }
    }

    /// Nothing is left.
    pub(super) fn done(&self, out: &mut Paper) -> anyhow::Result<ExitCode> {
        out.line(format!("All is gone{}.", self.place()))?;
        if self.namespace().is_none() && !self.args.purge {
            out.line("CRDs that are installed stay, and so does the operator: delete it the way it was installed.")?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// What was changed so that it can be deleted, and was not deleted after all.
    pub(super) fn undone(&self, out: &mut Paper) -> io::Result<()> {
        let undo = self.asked.borrow().undo(self.cluster());
        if !undo.is_empty() {
            out.line("")?;
            out.line("Changed, but not deleted. What has it as it was:")?;
            for line in undo {
                out.line(format!("  {line}"))?;
            }
        }
        Ok(())
    }

    /// Something is left; the ways out of namespaces that are being deleted.
    pub(super) fn failed(
        &self,
        standing: &Standing,
        ways: BTreeMap<String, String>,
        out: &mut Paper,
    ) -> anyhow::Result<ExitCode> {
        let Standing {
            left,
            crds,
            operator,
        } = standing;
        let mut number = left.targets.len();
        out.line("")?;
        for target in left.targets.iter().take(NAMED) {
            out.line(format!("Left: {}", target.title()))?;
            for line in left
                .troubles
                .get(&target.uid)
                .cloned()
                .into_iter()
                .chain(target.held(self.how, self.cluster()))
            {
                out.line(format!("  {line}"))?;
            }
        }
        if number > NAMED {
            out.line(format!("Left: and {} more", number - NAMED))?;
        }
        for crd in crds {
            number += 1;
            out.line(format!("Left: CRD {}", crd.name))?;
        }
        for way in ways
            .into_values()
            .chain(ways::ways_out(&left.targets, operator, self.args))
        {
            out.line("")?;
            out.line(way)?;
        }
        self.undone(out)?;
        if number == 0 {
            anyhow::bail!("the cluster did not answer in time: run it again");
        }
        let words = count(number, "object is left", "objects are left");
        out.line("")?;
        out.line(format!(
            "{words}: run it again once that is mended; it goes on where it was."
        ))?;
        Ok(ExitCode::FAILURE)
    }
}
