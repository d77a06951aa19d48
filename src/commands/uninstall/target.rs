//! An object to delete: its next step, the blockers of its deletion, and the commands that undo a change.

use std::collections::{BTreeMap, BTreeSet};

use kube::api::PropagationPolicy;
use kube::core::DynamicObject;
use kube::{Client, ResourceExt};
use qm_core::conditions::READY;
use qm_core::kind::{DelegatedAccess, KindInfo};
use qm_runtime::outcome::SUSPENDED;
use serde_json::Value;

use crate::cli::commands::{ClusterArgs, UninstallArgs};
use crate::commands::objects::{self, ObjectState, ObjectSummary, condition};
use crate::commands::{FailedRequest, terminating};
use crate::controllers::{config_map_sync, my_ingress};

#[derive(Clone, Debug, PartialEq)]
pub(super) enum UninstallStep {
    /// The operator, the garbage collector or another program has to act first.
    Wait,
    /// Set this field of the spec, so that the children are kept.
    Change(&'static str, Value),
    /// Remove the operator's finalizers; while an operator may run, also delete the object at once.
    RemoveFinalizers,
    Delete(PropagationPolicy),
}

#[derive(Debug)]
pub(super) struct UninstallTarget {
    pub(super) kind: &'static KindInfo,
    pub(super) object: ObjectSummary,
    pub(super) version: String,
    /// ARN of the owned load balancer, if it is known.
    pub(super) arn: Option<String>,
    /// Why the last step failed.
    pub(super) problem: Option<FailedRequest>,
    is_suspended: bool,
    is_suspension_observed: bool,
    orphans_copies: bool,
}

impl UninstallTarget {
    pub(super) fn new(kind: &'static KindInfo, object: &DynamicObject) -> Self {
        let (spec, status) = (&object.data["spec"], &object.data["status"]);
        let is_observed = status["observedGeneration"].as_i64() == object.metadata.generation;
        let ready = condition(object, READY);
        let alb = &status["alb"];
        // The status of an object that does not own its load balancer has no field but the ARN.
        let arn = alb["arn"].as_str().filter(|_| alb["dns"].is_string());
        Self {
            kind,
            object: ObjectSummary::new(kind, object),
            version: object.resource_version().unwrap_or_default(),
            arn: arn.map(Into::into),
            problem: None,
            is_suspended: spec["suspend"] == Value::Bool(true),
            is_suspension_observed: is_observed && ready.is_some_and(|it| it.reason == SUSPENDED),
            orphans_copies: spec["deletionPolicy"] == "Orphan",
        }
    }

    /// Lists the objects of a kind; none if the CRD is not installed.
    pub(super) async fn list(
        client: &Client,
        kind: &'static KindInfo,
        args: &UninstallArgs,
    ) -> anyhow::Result<Vec<Self>> {
        let namespace = args.scope.namespace();
        let target = |object| Self::new(kind, &object);
        Ok(objects::list(client, kind, namespace, target)
            .await?
            .unwrap_or_default())
    }

    /// Decides what `uninstall` does with the object next. Pure.
    pub(super) fn step(&self, args: &UninstallArgs) -> UninstallStep {
        let (keep_children, without_operator) = (args.keep_children, args.without_operator);
        let is_guarded = self.object.needs_operator();
        if is_guarded && without_operator {
            return UninstallStep::RemoveFinalizers;
        }
        let is_sync = self.is_of(&config_map_sync::KIND);
        if is_guarded && keep_children && is_sync && !self.orphans_copies {
            return UninstallStep::Change("deletionPolicy", "Orphan".into());
        }
        if is_guarded && keep_children && self.is_of(&my_ingress::KIND) {
            // A MyIngress that is not suspended could still change its load balancer.
            return if self.is_deleting() || self.is_suspended {
                UninstallStep::RemoveFinalizers
            } else {
                UninstallStep::Change("suspend", true.into())
            };
        }
        if self.is_deleting() {
            return UninstallStep::Wait;
        }
        if self.has_children() && keep_children && !without_operator {
            // A reconcile in progress could restore the owner references, through which the children would be deleted.
            if !self.is_suspended {
                return UninstallStep::Change("suspend", true.into());
            }
            if !self.is_suspension_observed {
                return UninstallStep::Wait;
            }
        }
        // The copy in a sync's own namespace may have an owner reference, unlike those elsewhere.
        let keeps = keep_children || without_operator && is_sync;
        UninstallStep::Delete(match (keeps, self.has_children()) {
            (true, _) => PropagationPolicy::Orphan,
            (false, true) => PropagationPolicy::Foreground,
            (false, false) => PropagationPolicy::Background,
        })
    }

    pub(super) fn is_of(&self, kind: &KindInfo) -> bool {
        self.kind.controller == kind.controller
    }

    fn has_children(&self) -> bool {
        matches!(self.kind.delegated_access, DelegatedAccess::Children(_))
    }

    pub(super) fn is_deleting(&self) -> bool {
        self.object.state == ObjectState::Terminating
    }

    /// Returns whether the object cannot be deleted before the operator has acted.
    pub(super) fn needs_operator(&self, args: &UninstallArgs) -> bool {
        let is_kept_owner = args.keep_children && self.has_children() && !self.is_deleting();
        is_kept_owner || self.object.needs_operator()
    }

    /// Returns whether only the operator can take the next step.
    pub(super) fn waits_for_operator(&self, args: &UninstallArgs) -> bool {
        self.step(args) == UninstallStep::Wait && self.needs_operator(args)
    }

    /// Describes what blocks the next step or the deletion of the object.
    pub(super) fn blockers(&self, args: &UninstallArgs) -> Vec<String> {
        let mut blockers: Vec<_> = self.problem.iter().map(ToString::to_string).collect();
        let of_finalizers = terminating::blockers(self.kind, &self.object, &args.scope.cluster);
        blockers.extend(of_finalizers);
        if !self.is_deleting() && self.waits_for_operator(args) {
            blockers.push("the operator has not observed spec.suspend yet".into());
        }
        blockers
    }
}

/// Changes that keep the children of objects that are not deleted yet: by namespace and field of the spec, the
/// resources as kubectl names them.
#[derive(Debug, Default)]
pub(super) struct PendingChanges(BTreeMap<(String, &'static str), BTreeSet<String>>);

impl PendingChanges {
    pub(super) fn add(&mut self, target: &UninstallTarget, field: &'static str) {
        let key = (target.object.namespace.clone(), field);
        self.0.entry(key).or_default().insert(resource(target));
    }

    /// Forgets the changes of an object that is deleted, or was not changed after all.
    pub(super) fn remove(&mut self, target: &UninstallTarget) {
        for ((namespace, _), resources) in &mut self.0 {
            if *namespace == target.object.namespace {
                resources.remove(&resource(target));
            }
        }
    }

    /// Returns the commands that undo the changes, one for each namespace and field.
    pub(super) fn undo(&self, cluster: &ClusterArgs) -> Vec<String> {
        let mut commands = Vec::new();
        for ((namespace, field), resources) in &self.0 {
            if !resources.is_empty() {
                let resources = resources.iter().cloned().collect::<Vec<_>>().join(" ");
                commands.push(cluster.command(&format!(
                    "kubectl patch {resources} -n {namespace} --type=merge -p '{{\"spec\":{{\"{field}\":null}}}}'"
                )));
            }
        }
        commands
    }
}

fn resource(target: &UninstallTarget) -> String {
    format!("{}/{}", target.kind.crd_name(), target.object.name)
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use clap::{Args as _, FromArgMatches as _};
    use qm_api::{config_map_sync as sync, my_ingress as ingress};
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::commands::objects::tests::kind;

    pub(in super::super) fn args(flags: &[&str]) -> UninstallArgs {
        let flags = ["uninstall"].iter().chain(flags);
        let command = UninstallArgs::augment_args(clap::Command::new("uninstall"));
        UninstallArgs::from_arg_matches(&command.get_matches_from(flags)).unwrap()
    }

    /// Returns an object with these `marks`: with `g` the object has a finalizer of the operator, with `d` it is being
    /// deleted, with `s` it is suspended, with `n` the operator has observed the suspension, with `o` it orphans its
    /// copies.
    pub(in super::super) fn target(controller: &str, marks: &str) -> UninstallTarget {
        let finalizer = if controller == my_ingress::NAME {
            ingress::FINALIZER
        } else {
            sync::FINALIZER
        };
        let has = |mark| marks.contains(mark);
        let observed = json!({ "observedGeneration": 2, "conditions": [{ "type": "Ready", "status": "False",
            "reason": "Suspended", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] });
        let object = json!({
            "metadata": {
                "namespace": "shop", "name": "web", "uid": "u", "generation": 2,
                "finalizers": if has('g') { vec![finalizer] } else { vec![] },
                "deletionTimestamp": has('d').then_some("2026-01-01T00:00:00Z"),
            },
            "spec": { "suspend": has('s'), "deletionPolicy": has('o').then_some("Orphan") },
            "status": has('n').then_some(observed),
        });
        UninstallTarget::new(kind(controller), &serde_json::from_value(object).unwrap())
    }

    #[rstest]
    #[case::owned(json!({ "arn": "a", "dns": "d" }), Some("a"))]
    #[case::of_another_owner(json!({ "arn": "a" }), None)]
    #[case::unknown(json!(null), None)]
    fn arn_is_that_of_an_owned_load_balancer(#[case] alb: Value, #[case] expected: Option<&str>) {
        let object = json!({ "metadata": { "name": "web" }, "status": { "alb": alb } });
        let object = serde_json::from_value(object).unwrap();
        let target = UninstallTarget::new(kind(my_ingress::NAME), &object);
        assert_eq!(target.arn.as_deref(), expected);
    }

    const PLAIN: &[&str] = &[];
    const KEEP: &[&str] = &["--keep-children"];
    const WITHOUT: &[&str] = &["--without-operator"];
    const BOTH: &[&str] = &["--keep-children", "--without-operator"];
    const BACKGROUND: UninstallStep = UninstallStep::Delete(PropagationPolicy::Background);
    const FOREGROUND: UninstallStep = UninstallStep::Delete(PropagationPolicy::Foreground);
    const ORPHAN: UninstallStep = UninstallStep::Delete(PropagationPolicy::Orphan);
    const SUSPEND: UninstallStep = UninstallStep::Change("suspend", Value::Bool(true));

    fn orphan_copies() -> UninstallStep {
        UninstallStep::Change("deletionPolicy", "Orphan".into())
    }

    #[rstest]
    #[case::app("appservice", "", PLAIN, FOREGROUND)]
    #[case::field("trackedfield", "", PLAIN, BACKGROUND)]
    #[case::sync("configmapsync", "g", PLAIN, BACKGROUND)]
    #[case::deleted_sync("configmapsync", "gd", PLAIN, UninstallStep::Wait)]
    #[case::kept_app("appservice", "", KEEP, SUSPEND)]
    #[case::suspended_app("myapp", "s", KEEP, UninstallStep::Wait)]
    #[case::observed_app("myapp", "sn", KEEP, ORPHAN)]
    #[case::deleted_app("myapp", "d", KEEP, UninstallStep::Wait)]
    #[case::kept_sync("configmapsync", "g", KEEP, orphan_copies())]
    #[case::orphaning_sync("configmapsync", "go", KEEP, ORPHAN)]
    #[case::deleted_kept_sync("configmapsync", "gd", KEEP, orphan_copies())]
    #[case::ingress("myingress", "g", PLAIN, BACKGROUND)]
    #[case::kept_ingress("myingress", "g", KEEP, SUSPEND)]
    #[case::suspended_ingress("myingress", "gs", KEEP, UninstallStep::RemoveFinalizers)]
    #[case::deleted_ingress("myingress", "gd", KEEP, UninstallStep::RemoveFinalizers)]
    #[case::freed_ingress("myingress", "s", KEEP, ORPHAN)]
    #[case::ingress_alone("myingress", "gd", WITHOUT, UninstallStep::RemoveFinalizers)]
    #[case::sync_alone("configmapsync", "g", WITHOUT, UninstallStep::RemoveFinalizers)]
    #[case::freed_sync_alone("configmapsync", "", WITHOUT, ORPHAN)]
    #[case::freed_ingress_alone("myingress", "", WITHOUT, BACKGROUND)]
    #[case::freed_sync_kept_alone("configmapsync", "", BOTH, ORPHAN)]
    #[case::app_kept_alone("myapp", "", BOTH, ORPHAN)]
    fn step_follows_object_and_flags(
        #[case] controller: &str,
        #[case] marks: &str,
        #[case] flags: &[&str],
        #[case] step: UninstallStep,
    ) {
        assert_eq!(target(controller, marks).step(&args(flags)), step);
    }

    #[rstest]
    #[case::sync("configmapsync", "gd", PLAIN, true)]
    #[case::deleted_app("myapp", "d", PLAIN, false)]
    #[case::suspended_app("myapp", "s", KEEP, true)]
    #[case::deleted_kept_app("myapp", "d", KEEP, false)]
    #[case::deleted_kept_ingress("myingress", "gd", KEEP, false)]
    fn target_waits_for_the_operator(
        #[case] controller: &str,
        #[case] marks: &str,
        #[case] flags: &[&str],
        #[case] waits: bool,
    ) {
        let target = target(controller, marks);
        assert_eq!(target.waits_for_operator(&args(flags)), waits);
    }

    #[test]
    fn blockers_name_a_suspension_that_is_not_observed_and_the_last_problem() {
        let mut app = target("myapp", "s");
        assert_eq!(
            app.blockers(&args(KEEP)),
            ["the operator has not observed spec.suspend yet"]
        );
        app = target("myapp", "sn");
        assert_eq!(app.blockers(&args(KEEP)), [""; 0]);
        let error = kube::core::Status::failure("you may not", "Forbidden").with_code(403);
        app.problem = Some(kube::Error::Api(error.boxed()).into());
        assert_eq!(app.blockers(&args(KEEP)), ["you may not"]);
    }

    #[test]
    fn changes_are_undone_together_unless_the_object_is_deleted() {
        let named = |controller: &str, name: &str| {
            let mut target = target(controller, "");
            target.object.name = name.into();
            target
        };
        let (a, b) = (named("myapp", "a"), named("myapp", "b"));
        let sync = named("configmapsync", "c");
        let mut changes = PendingChanges::default();
        changes.add(&a, "suspend");
        changes.add(&b, "suspend");
        changes.add(&sync, "deletionPolicy");
        let prod = ClusterArgs {
            context: Some("prod".into()),
            ..ClusterArgs::default()
        };
        let undo = |resources: &str, field: &str| {
            format!(
                "kubectl patch {resources} -n shop --type=merge -p '{{\"spec\":{{\"{field}\":null}}}}' --context=prod"
            )
        };
        let copies = undo("configmapsyncs.apps.bixbite.io/c", "deletionPolicy");
        let apps = "myapps.demo.rtfm.co.ua/a myapps.demo.rtfm.co.ua/b";
        assert_eq!(changes.undo(&prod), [copies.clone(), undo(apps, "suspend")]);
        changes.remove(&a);
        assert_eq!(
            changes.undo(&prod),
            [copies.clone(), undo("myapps.demo.rtfm.co.ua/b", "suspend")]
        );
        changes.remove(&b);
        assert_eq!(changes.undo(&prod), [copies]);
    }
}
