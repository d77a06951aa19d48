//! Plan of an uninstall: the objects that the command deletes, and which of their children stay.

use std::io;

use kube::{Client, ResourceExt};
use qm_api::common::{OWNER_UID, SCHEMA};
use qm_aws::NAME_SUFFIX;
use qm_core::kind::{DelegatedAccess, KindInfo};

use super::crds::{self, Crd};
use super::target::UninstallTarget;
use crate::REPLACE_CRDS;
use crate::cli::commands::{ClusterArgs, UninstallArgs};
use crate::commands::printer::{Cell, Printer, count};
use crate::commands::{in_namespace, objects};
use crate::controllers;
use crate::controllers::{app_service, config_map_sync, my_app, my_ingress};

pub(super) struct UninstallPlan {
    /// The kinds in the order of their deletion, without those whose CRD is another program's.
    pub(super) kinds: Vec<&'static KindInfo>,
    pub(super) targets: Vec<UninstallTarget>,
    /// The CRDs to delete.
    pub(super) crds: Vec<Crd>,
    /// Names of the CRDs of another program.
    foreign: Vec<String>,
    /// Error of the CRDs that the user may not read, whose objects may belong to another program.
    unknown: Option<String>,
}

impl UninstallPlan {
    /// Lists everything in the cluster that belongs to Quartermaster's kinds.
    pub(super) async fn discover(client: &Client, args: &UninstallArgs) -> anyhow::Result<Self> {
        let mut targets = Vec::new();
        for kind in controllers::uninstall_order() {
            targets.extend(UninstallTarget::list(client, kind, args).await?);
        }
        let (mut crds, unknown) = crds::read(client, args).await?;
        if targets.is_empty() && crds.is_empty() {
            objects::ensure_kubernetes(client).await?;
        }
        let foreign = crds.iter().filter(|crd| !crds::is_owned(crd));
        let foreign: Vec<_> = foreign.map(ResourceExt::name_any).collect();
        let is_foreign = |kind: &KindInfo| foreign.contains(&kind.crd_name());
        // No operator serves such a CRD, so the finalizer would stay.
        let mut guarded = targets.iter().filter(|it| it.object.needs_operator());
        if let Some(target) = guarded.find(|target| is_foreign(target.kind)) {
            anyhow::bail!(
                "CRD {} belongs to another program (it has no annotation {SCHEMA}), but {} has a finalizer of Quartermaster. \
                 Nothing was deleted. Install Quartermaster's CRDs, then run the command again: {}",
                target.kind.crd_name(),
                target.object.title(),
                args.scope.cluster.command(REPLACE_CRDS)
            );
        }
        targets.retain(|target| !is_foreign(target.kind));
        crds.retain(|crd| crds::is_purged(crd, args));
        let mut kinds = controllers::uninstall_order();
        kinds.retain(|kind| !is_foreign(kind));
        Ok(Self {
            kinds,
            targets,
            crds,
            foreign,
            unknown,
        })
    }

    pub(super) fn print(&self, args: &UninstallArgs, out: &mut Printer) -> io::Result<()> {
        let in_namespace = in_namespace(args.scope.namespace());
        out.paragraph([format!("To be deleted{in_namespace}:")])?;
        out.line("")?;
        let mut rows = Vec::new();
        for kind in &self.kinds {
            let targets = self.targets.iter().filter(|target| target.is_of(kind));
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
                children(kind, &targets, args).into(),
            ]);
        }
        for crd in &self.crds {
            let note = if crds::is_deleting(crd) {
                "already being deleted"
            } else {
                ""
            };
            rows.push(["CRD", "1", &crd.name_any(), note].map(Cell::from).into());
        }
        out.table(&["KIND", "COUNT", "NAMES", "ALSO AFFECTED"], &rows)?;
        if args.without_operator {
            let guarded = self.targets.iter().filter(|it| it.object.needs_operator());
            let left = guarded.filter_map(|target| left_behind(target, &args.scope.cluster));
            let left: Vec<_> = left.collect();
            out.section("These objects stay; delete them by hand:", &left)?;
        }
        self.print_foreign(out)?;
        out.paragraph(self.unknown.iter().map(|why| {
            format!(
                "Some of these objects may belong to another program, because not every CRD could be read: {why}"
            )
        }))
    }

    /// Prints a line for each CRD that is another program's.
    pub(super) fn print_foreign(&self, out: &mut Printer) -> io::Result<()> {
        out.paragraph(self.foreign.iter().map(|crd| {
            format!(
                "CRD {crd} and its objects stay: the CRD belongs to another program (it has no annotation {SCHEMA})"
            )
        }))
    }
}

/// Describes which children of these objects, all of one kind, stay or are deleted, or how many of their messages are
/// lost.
fn children(kind: &KindInfo, targets: &[&UninstallTarget], args: &UninstallArgs) -> String {
    let keeps = args.keep_children;
    let stays = keeps || args.without_operator;
    let pending = targets.iter().map(|target| target.object.pending).sum();
    let children = match kind.controller {
        my_ingress::NAME if stays => "load balancers in AWS stay",
        my_ingress::NAME => "load balancers in AWS",
        // The policy of the deletion in progress applies to a copy in the sync's own namespace.
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

/// Returns what stays after the operator's finalizers are removed, with the command that deletes it.
fn left_behind(target: &UninstallTarget, cluster: &ClusterArgs) -> Option<String> {
    let title = target.object.title();
    if target.is_of(&config_map_sync::KIND) {
        let label = format!("{OWNER_UID}={}", target.object.uid);
        let command = format!("kubectl delete configmaps --all-namespaces -l {label}");
        let command = cluster.command(&command);
        return Some(format!("the copies of {title}: {command}"));
    }
    if !target.is_of(&my_ingress::KIND) {
        return None;
    }
    let Some(arn) = &target.arn else {
        // AWS may have created a load balancer whose ARN is not recorded yet.
        let name = format!("{}{NAME_SUFFIX}", target.object.name);
        return Some(format!(
            "the load balancer {name} of {title}, if there is one: aws elbv2 describe-load-balancers --names {name}"
        ));
    };
    Some(format!(
        "the load balancer of {title} (and its target groups qm-...): {} delete-load-balancer --load-balancer-arn {}",
        qm_aws::command(arn),
        // Other clients may write the status, so the ARN may be any text.
        shell_words::quote(arn)
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::super::target::tests::target;
    use super::*;

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
