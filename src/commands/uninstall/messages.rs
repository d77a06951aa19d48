//! The messages of `uninstall`: the plan, and what remains of it.

use std::collections::HashMap;
use std::io;
use std::process::ExitCode;

use qm_api::common::{OWNER_UID, SCHEMA};
use qm_aws::NAME_SUFFIX;
use qm_core::kind::{DelegatedAccess, KindInfo};
use tokio::time::timeout;

use super::step::UninstallTarget;
use super::{Discovery, MAX_NAMED, PATIENCE, Remaining, Uninstall};
use crate::cli::commands::{ClusterArgs, UninstallArgs};
use crate::commands::in_namespace;
use crate::commands::operator_state::OperatorState;
use crate::commands::printer::{Cell, Printer, count};
use crate::commands::terminating::namespace_remedies;
use crate::controllers::{app_service, config_map_sync, my_app, my_ingress};
use crate::kinds;

impl Uninstall<'_> {
    /// Prints the objects to delete, and what becomes of their children.
    pub(super) fn print_plan(&self, plan: &Discovery, out: &mut Printer) -> io::Result<()> {
        let place = in_namespace(self.namespace());
        out.paragraph([format!("To be deleted{place}:")])?;
        out.line("")?;
        let mut rows = Vec::new();
        for kind in kinds::uninstall_order() {
            let targets = plan.targets.iter().filter(|target| target.is(kind));
            let targets: Vec<_> = targets.collect();
            if targets.is_empty() {
                continue;
            }
            let objects = targets.iter().map(|target| &target.object);
            let names = objects.map(|it| format!("{}/{}", it.namespace, it.name));
            let mut names: Vec<_> = names.take(3).collect();
            if targets.len() > names.len() {
                names.push("...".into());
            }
            rows.push(vec![
                kind.resource().kind.into(),
                targets.len().to_string().into(),
                names.join(", ").into(),
                self.children(kind, &targets).into(),
            ]);
        }
        for crd in &plan.crds {
            let is_deleting = "is being deleted already";
            let note = if crd.is_deleting { is_deleting } else { "" };
            rows.push(["CRD", "1", &crd.name, note].map(Cell::from).into());
        }
        out.table(&["KIND", "COUNT", "NAMES", "WITH IT"], &rows)?;
        if self.args.without_operator {
            let left = plan.targets.iter();
            let left = left.filter(|target| target.object.needs_operator());
            let left = left.filter_map(|target| left_behind(target, self.cluster()));
            let left: Vec<_> = left.collect();
            out.section("Left behind, to be deleted by hand:", &left)?;
        }
        out.paragraph(plan.foreign.iter().map(|crd| foreign(crd)))?;
        out.paragraph(plan.unknown.iter().map(|why| {
            format!(
                "Some of these objects may belong to another program: the owners of the CRDs are not known: {why}"
            )
        }))
    }

    /// Describes what becomes of the children of these objects, all of one kind, or of their messages.
    fn children(&self, kind: &KindInfo, targets: &[&UninstallTarget]) -> String {
        let keeps = self.args.keep_children;
        let stays = keeps || self.args.without_operator;
        let pending = targets.iter().map(|target| target.object.pending).sum();
        let children = match kind.controller {
            my_ingress::NAME if stays => "load balancers in AWS stay",
            my_ingress::NAME => "load balancers in AWS",
            // The deletion that has begun decided about copies in the sync's own namespace.
            config_map_sync::NAME if stays && targets.iter().any(|it| it.is_deleting()) => {
                "copies in other namespaces stay"
            }
            config_map_sync::NAME if stays => "copies stay",
            config_map_sync::NAME => "copies, unless deletionPolicy: Orphan",
            app_service::NAME if keeps => "Deployments, Services, autoscalers, Ingresses stay",
            app_service::NAME => "Deployments, Services, autoscalers, Ingresses",
            my_app::NAME if keeps => "Pods stay",
            my_app::NAME => "Pods",
            _ if matches!(kind.delegated_access, DelegatedAccess::Children(_)) => {
                if keeps {
                    "children stay"
                } else {
                    "children"
                }
            }
            _ if pending == 0 => "",
            _ => return count(pending, "undelivered message", "undelivered messages"),
        };
        children.into()
    }

    /// Prints what blocks each object, unless the same was `printed` before.
    pub(super) fn print_blockers(
        &self,
        remaining: &Remaining,
        printed: &mut HashMap<String, String>,
        out: &mut Printer,
    ) -> io::Result<()> {
        for target in remaining.targets.iter().take(MAX_NAMED) {
            let title = target.object.title();
            let blockers = target.blockers(self.args).join("; ");
            let last = printed.insert(target.object.uid.clone(), blockers.clone());
            if !blockers.is_empty() && last.as_ref() != Some(&blockers) {
                out.line(format!("waiting for {title}: {blockers}"))?;
            }
        }
        Ok(())
    }

    pub(super) fn print_success(&self, out: &mut Printer) -> anyhow::Result<ExitCode> {
        let place = in_namespace(self.namespace());
        out.line(format!("Everything is deleted{place}."))?;
        if self.namespace().is_none() && !self.args.purge {
            out.line("CRDs that are installed stay, and so does the operator: delete it the way it was installed.")?;
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Prints what is left, what blocks it, and the remedies.
    pub(super) async fn print_remaining(
        &self,
        remaining: &Remaining,
        out: &mut Printer,
    ) -> anyhow::Result<ExitCode> {
        out.line("")?;
        for target in &remaining.targets {
            out.line(format!("Remaining: {}", target.object.title()))?;
            for blocker in target.blockers(self.args) {
                out.line(format!("  {blocker}"))?;
            }
        }
        for crd in &remaining.crds {
            out.line(format!("Remaining: CRD {}", crd.name))?;
            if let Some(problem) = &crd.problem {
                out.line(format!("  {problem}"))?;
            }
        }
        let objects = remaining.targets.iter().map(|target| &target.object);
        let namespaces =
            namespace_remedies(&self.client, objects, &self.args.lease, self.cluster());
        let namespaces = timeout(PATIENCE, namespaces).await.unwrap_or_default();
        let operator = timeout(PATIENCE, self.operator()).await;
        let operator = operator.unwrap_or_else(|_| OperatorState::Unknown {
            message: "the cluster does not answer".into(),
        });
        let objects = remedies(remaining, &operator, self.args);
        for remedy in namespaces.into_values().chain(objects) {
            out.paragraph([remedy])?;
        }
        let left = remaining.targets.len() + remaining.crds.len();
        let left = count(left, "object remains", "objects remain");
        out.paragraph([format!(
            "{left}: run it again to continue, once the problem is fixed."
        )])?;
        Ok(ExitCode::FAILURE)
    }

    /// Prints the commands that undo changes of objects that were not deleted.
    pub(super) fn print_undo(&self, out: &mut Printer) -> io::Result<()> {
        let undo = self.changes.borrow().undo(self.cluster());
        out.section("Changed, but not deleted. To undo the changes:", &undo)
    }
}

/// Returns the remedies for objects that wait for the operator. Pure.
fn remedies(remaining: &Remaining, operator: &OperatorState, args: &UninstallArgs) -> Vec<String> {
    let UninstallArgs {
        scope,
        lease,
        keep_children,
        ..
    } = args;
    let targets = remaining.targets.iter();
    let waiting: Vec<_> = targets
        .filter(|target| target.waits_for_operator(args))
        .collect();
    let mut remedies = Vec::new();
    if waiting.is_empty() {
        return remedies;
    }
    let namespace = scope.namespace();
    let namespace = namespace.map_or_else(String::new, |it| format!(" -n {it}"));
    let uninstall = |flags: String| {
        let command = format!("quartermaster uninstall {flags}");
        scope.cluster.command(&command)
    };
    if !operator.is_running()
        && let Some(problem) = operator.problem()
    {
        let is_known = operator.is_gone() || lease.explicit_namespace().is_some();
        let (place, note) = if is_known {
            (lease.key().namespace.to_string(), "")
        } else {
            ("NAMESPACE".into(), " (the namespace that it ran in)")
        };
        let keep = if *keep_children {
            " --keep-children"
        } else {
            ""
        };
        let name = lease.name_flag();
        let command = uninstall(format!(
            "--without-operator{keep}{namespace} --operator-namespace={place}{name}"
        ));
        remedies.push(format!(
            "{problem}. Start it and run this again; or, if it is gone for good, remove its finalizers: {command}{note}"
        ));
    }
    if waiting.iter().any(|target| target.is(&my_ingress::KIND)) {
        let command = uninstall(format!("--keep-children{namespace}{}", lease.flags()));
        remedies.push(format!(
            "To keep load balancers in AWS, and all other children: {command}"
        ));
    }
    remedies
}

/// Returns a line for a CRD that is another program's.
pub(super) fn foreign(crd: &str) -> String {
    format!(
        "Unchanged, with its objects: CRD {crd}, which is not this program's (no annotation {SCHEMA})"
    )
}

/// Returns what stays after the operator's finalizers are removed, with the command that deletes it.
fn left_behind(target: &UninstallTarget, cluster: &ClusterArgs) -> Option<String> {
    let title = target.object.title();
    if target.is(&config_map_sync::KIND) {
        let label = format!("{OWNER_UID}={}", target.object.uid);
        let command = format!("kubectl delete configmaps --all-namespaces -l {label}");
        let command = cluster.command(&command);
        return Some(format!("the copies of {title}: {command}"));
    }
    if !target.is(&my_ingress::KIND) {
        return None;
    }
    let Some(arn) = &target.arn else {
        // AWS may have created one whose ARN is not recorded yet.
        let name = format!("{}{NAME_SUFFIX}", target.object.name);
        return Some(format!(
            "the load balancer {name} of {title}, if there is one: aws elbv2 describe-load-balancers --names {name}"
        ));
    };
    Some(format!(
        "the load balancer of {title} (and its target groups qm-...): {} delete-load-balancer --load-balancer-arn {}",
        qm_aws::command(arn),
        // Other clients may write the status.
        shell_words::quote(arn)
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::super::step::tests::{args, target};
    use super::*;

    fn printed(target: UninstallTarget, operator: &OperatorState, flags: &[&str]) -> String {
        let remaining = Remaining {
            targets: vec![target],
            crds: Vec::new(),
        };
        remedies(&remaining, operator, &args(flags)).join("\n")
    }

    #[test]
    fn remedies_follow_the_operator_and_the_flags() {
        let runs = OperatorState::Running {
            holder: "a".into(),
            overdue: Some(jiff::Timestamp::UNIX_EPOCH),
        };
        let gone = OperatorState::Gone {
            message: "why".into(),
        };
        let unknown = OperatorState::Unknown {
            message: "why".into(),
        };
        let ingress = || target("myingress", "gd");
        let runs = printed(ingress(), &runs, &[]);
        assert!(!runs.contains("--without-operator") && runs.contains("--keep-children"));
        let seen = "--without-operator -n shop --operator-namespace=quartermaster-system\n";
        assert!(printed(ingress(), &gone, &["-n", "shop"]).contains(seen));
        let sync = printed(target("configmapsync", "gd"), &gone, &[]);
        assert!(!sync.contains("--keep-children"), "{sync}");
        assert_eq!(printed(target("myapp", "d"), &gone, &[]), "");
        let app = printed(target("myapp", "s"), &gone, &["--keep-children"]);
        assert!(
            app.contains("--without-operator --keep-children --op"),
            "{app}"
        );

        // The command repeats flags that select Lease and cluster, and asks for the missing namespace.
        assert!(
            printed(ingress(), &unknown, &[])
                .contains("--without-operator --operator-namespace=NAMESPACE (the")
        );
        let given = [
            "-n",
            "shop",
            "--operator-namespace=ops",
            "--leader-election-id=id",
            "--context=a b",
        ];
        let text = printed(ingress(), &unknown, &given);
        let rest = "-n shop --operator-namespace=ops --leader-election-id=id --context='a b'";
        let alone = format!("quartermaster uninstall --without-operator {rest}\n");
        let kept = format!("quartermaster uninstall --keep-children {rest}");
        assert!(text.contains(&alone) && text.ends_with(&kept), "{text}");
    }

    #[test]
    fn load_balancer_is_left_behind_with_or_without_its_arn() {
        let here = ClusterArgs::default();
        let mut web = target("myingress", "g");
        let left = left_behind(&web, &here).unwrap();
        let describe = "web-alb of myingress/web in shop, if there is one: aws elbv2 describe";
        assert!(left.contains(describe), "{left}");
        web.arn = Some("arn:aws:elasticloadbalancing:eu-west-1:1:x".into());
        let left = left_behind(&web, &here).unwrap();
        let delete = "aws --region eu-west-1 elbv2 delete-load-balancer --load-balancer-arn arn:";
        assert!(left.contains(delete), "{left}");
        web.arn = Some("a:b:c:$(x):d; rm -rf ~".into());
        let left = left_behind(&web, &here).unwrap();
        let quoted = "aws --region '$(x)' elbv2 delete-load-balancer --load-balancer-arn 'a:b:c:$(x):d; rm -rf ~'";
        assert!(left.ends_with(quoted), "{left}");
    }

    #[test]
    fn copies_are_left_behind_in_the_same_cluster() {
        let prod = ClusterArgs {
            context: Some("prod".into()),
            ..ClusterArgs::default()
        };
        let left = left_behind(&target("configmapsync", "g"), &prod).unwrap();
        let label = "-l quartermaster.dev/owner-uid=u --context=prod";
        assert!(left.ends_with(label), "{left}");
        assert_eq!(left_behind(&target("myapp", ""), &prod), None);
    }
}
