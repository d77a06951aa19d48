//! What is to be done about each object, and what holds one up. Pure.

use kube::ResourceExt;
use kube::core::DynamicObject;
use qm_api::common::OWNER_UID;
use qm_api::my_ingress as ingress;
use qm_aws;
use qm_core::kind::KindInfo;
use serde_json::{Value, json};
use shell_words::quote;

use crate::cli::commands::Cluster;
use crate::commands::objects::{self, Object};
use crate::controllers::{
    app_service, config_map_sync, contact_point, my_app, my_ingress, tracked_field,
};
use crate::registry;

/// The order of the kinds: first who tells of changes, so that nobody is told of this; then who leads traffic somewhere, then
/// what runs, last what that reads.
pub const ORDER: [&str; 6] = [
    tracked_field::NAME,
    contact_point::NAME,
    my_ingress::NAME,
    app_service::NAME,
    my_app::NAME,
    config_map_sync::NAME,
];
/// Kubernetes' own: the object goes after what it made, or once that is let go
/// (<https://kubernetes.io/docs/concepts/architecture/garbage-collection/#cascading-deletion>).
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// How things are deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    /// What the objects made stays.
    pub keep_children: bool,
    /// There is no operator.
    pub without_operator: bool,
}

/// What becomes of what an object made (`propagationPolicy`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Children {
    /// It goes later, if at all.
    Background,
    /// It goes first, and is waited for.
    Foreground,
    /// It stays.
    Orphan,
}

/// What is to be done about an object now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing: others have to do something.
    Wait,
    /// The operator is to leave it alone from now on.
    Suspend,
    /// Its copies are to stay.
    KeepCopies,
    /// Our finalizers are taken away.
    LetGo,
    /// It is deleted.
    Delete(Children),
}

/// An object that is to go.
#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools)] // each stands for a field of the object
pub struct Target {
    /// Its kind.
    pub kind: &'static KindInfo,
    /// How it stands.
    pub object: Object,
    /// Its UID.
    pub uid: String,
    /// Its version.
    pub version: String,
    /// Its finalizers.
    pub finalizers: Vec<String>,
    /// It is being deleted.
    pub deleting: bool,
    /// The operator is to leave it alone.
    pub suspended: bool,
    keeps_copies: bool,
    noted: bool,
    balancer: Option<String>,
}

/// Whether this finalizer is one of ours: only the operator takes away what it stands for.
pub fn is_ours(finalizer: &str) -> bool {
    registry::KINDS
        .iter()
        .any(|kind| kind.finalizer == Some(finalizer))
}

impl Target {
    /// Of an object of this kind.
    pub fn of(kind: &'static KindInfo, object: &DynamicObject) -> Self {
        let (spec, status) = (&object.data["spec"], &object.data["status"]);
        Self {
            kind,
            object: Object::of(kind, object),
            uid: object.uid().unwrap_or_default(),
            version: object.resource_version().unwrap_or_default(),
            finalizers: object.finalizers().to_vec(),
            deleting: object.metadata.deletion_timestamp.is_some(),
            suspended: spec["suspend"] == Value::Bool(true),
            keeps_copies: spec["deletionPolicy"] == "Orphan",
            noted: status["observedGeneration"].as_i64() == object.metadata.generation
                && objects::condition(object)
                    .is_some_and(|condition| condition.reason == objects::SUSPENDED),
            balancer: status["alb"]["arn"].as_str().map(Into::into),
        }
    }

    /// Whether it is of this controller's kind.
    pub fn is(&self, controller: &str) -> bool {
        self.kind.controller == controller
    }

    /// Whether only the operator lets it go.
    pub fn needs_operator(&self) -> bool {
        self.finalizers.iter().any(|name| is_ours(name))
    }

    /// What is to be done now. `patient`: the operator may still be about to take note of what was asked before.
    pub fn step(&self, how: How, patient: bool) -> Step {
        let guarded = self.needs_operator();
        if guarded && how.without_operator {
            return Step::LetGo;
        }
        if how.keep_children && guarded && self.is(config_map_sync::NAME) && !self.keeps_copies {
            return Step::KeepCopies;
        }
        if how.keep_children && guarded && self.is(my_ingress::NAME) {
            // While it is not suspended, the operator would put the finalizer back.
            return if self.deleting || self.suspended {
                Step::LetGo
            } else {
                Step::Suspend
            };
        }
        if self.deleting {
            return Step::Wait;
        }
        let apps = self.is(app_service::NAME) || self.is(my_app::NAME);
        if how.keep_children && apps && !how.without_operator {
            // A pass under way would put back the mark that has what it made go with it.
            if !self.suspended {
                return Step::Suspend;
            }
            if !self.noted && patient {
                return Step::Wait;
            }
        }
        // A copy in the sync's own namespace has it as its owner: it would go, where those elsewhere stay.
        let stays = how.keep_children || how.without_operator && self.is(config_map_sync::NAME);
        Step::Delete(match (apps, stays) {
            (_, true) => Children::Orphan,
            (true, false) => Children::Foreground,
            (false, false) => Children::Background,
        })
    }

    /// `KIND/NAME in NAMESPACE`.
    pub fn title(&self) -> String {
        format!("{} in {}", self.object.title(), self.object.namespace)
    }

    /// What holds it up in this cluster, and what gets out of that.
    pub fn held(&self, how: How, cluster: &Cluster) -> Vec<String> {
        let Object {
            name,
            namespace,
            reason,
            message,
            ..
        } = &self.object;
        let resource = self.kind.crd_name();
        let words = |(place, finalizer): (usize, &String)| {
            match finalizer.as_str() {
            FOREGROUND => format!(
                "{finalizer}: what it made goes first, and is not gone: {}",
                cluster.command(&format!(
                    "kubectl get deployments,services,pods,ingresses,hpa -n {namespace} -l {OWNER_UID}={}",
                    self.uid
                ))
            ),
            ORPHAN => format!("{finalizer}: Kubernetes' garbage collector has not let go what it made"),
            ours if is_ours(ours) && !reason.is_empty() => format!("{finalizer}: {reason}: {message}"),
            ours if is_ours(ours) => {
                let what = if ours == ingress::FINALIZER {
                    "the load balancer in AWS"
                } else {
                    "the copies in other namespaces"
                };
                format!(
                    "{finalizer}: the operator has not taken away {what} yet; one that leaves this kind or namespace out \
                     (--controllers, --watch-namespace) never will"
                )
            }
            // That one alone: ours may stand beside it, and what it waits for is not done.
            _ => {
                let path = format!("/metadata/finalizers/{place}");
                let patch = json!([
                    { "op": "test", "path": path, "value": finalizer },
                    { "op": "remove", "path": path },
                ]);
                format!(
                    "{finalizer}: whoever set it has to take it away; where that program is gone: {}",
                    cluster
                        .command(&format!("kubectl patch {resource} {name} -n {namespace} --type=json -p '{patch}'"))
                )
            }
        }
        };
        let mut held: Vec<_> = self.finalizers.iter().enumerate().map(words).collect();
        if self.step(how, true) == Step::Wait && !self.deleting {
            held.push("it is suspended, and the operator has not taken note of that yet".into());
        }
        held
    }

    /// What stays when our finalizers are taken away, and how it is taken away by hand.
    pub fn left_behind(&self, cluster: &Cluster) -> Option<String> {
        let title = self.title();
        if self.is(config_map_sync::NAME) {
            let delete = format!(
                "kubectl delete configmaps --all-namespaces -l {OWNER_UID}={}",
                self.uid
            );
            return Some(format!(
                "the copies of {title}: {}",
                cluster.command(&delete)
            ));
        }
        if !self.is(my_ingress::NAME) {
            return None;
        }
        let Some(arn) = &self.balancer else {
            // It may have been asked for, and its ARN not be known yet.
            return Some(format!(
                "the load balancer {name} of {title}, if there is one: aws elbv2 describe-load-balancers --names {name}",
                name = format_args!("{}{}", self.object.name, qm_aws::NAME_SUFFIX)
            ));
        };
        Some(format!(
            "the load balancer of {title} (and its target groups qm-...): {} delete-load-balancer --load-balancer-arn {}",
            qm_aws::command(arn),
            // It stands in a status, which others write, too.
            quote(arn)
        ))
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_api::config_map_sync as sync;
    use rstest::rstest;

    use super::*;
    use crate::cli::commands::Program;

    const KEEP: How = How {
        keep_children: true,
        without_operator: false,
    };
    const WITHOUT: How = How {
        keep_children: false,
        without_operator: true,
    };
    const BOTH: How = How {
        keep_children: true,
        without_operator: true,
    };
    const PLAIN: How = How {
        keep_children: false,
        without_operator: false,
    };
    const HERE: Cluster = Cluster {
        kubeconfig: None,
        context: None,
        program: Program("quartermaster"),
    };

    /// `marks`: `g` guarded by our finalizer, `d` being deleted, `s` suspended, `n` and the operator has taken note, `o` orphans.
    pub fn target(controller: &str, marks: &str) -> Target {
        let finalizer = if controller == my_ingress::NAME {
            ingress::FINALIZER
        } else {
            sync::FINALIZER
        };
        let has = |mark| marks.contains(mark);
        let object = json!({
            "metadata": {
                "namespace": "shop", "name": "web", "uid": "u", "generation": 2,
                "finalizers": if has('g') { vec![finalizer] } else { vec![] },
                "deletionTimestamp": has('d').then_some("2026-01-01T00:00:00Z"),
            },
            "spec": { "suspend": has('s'), "deletionPolicy": has('o').then_some("Orphan") },
            "status": if has('n') { json!({ "observedGeneration": 2, "conditions": [{ "type": "Ready", "status": "False",
                "reason": "Suspended", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] }) } else { json!(null) },
        });
        Target::of(
            objects::kind(controller).unwrap(),
            &serde_json::from_value(object).unwrap(),
        )
    }

    #[rstest]
    #[case::app("appservice", "", PLAIN, Step::Delete(Children::Foreground))]
    #[case::field("trackedfield", "", PLAIN, Step::Delete(Children::Background))]
    #[case::sync("configmapsync", "g", PLAIN, Step::Delete(Children::Background))]
    #[case::going("configmapsync", "gd", PLAIN, Step::Wait)]
    #[case::app_kept("appservice", "", KEEP, Step::Suspend)]
    #[case::app_suspended("myapp", "s", KEEP, Step::Wait)]
    #[case::app_noted("myapp", "sn", KEEP, Step::Delete(Children::Orphan))]
    #[case::app_going("myapp", "d", KEEP, Step::Wait)]
    #[case::sync_kept("configmapsync", "g", KEEP, Step::KeepCopies)]
    #[case::sync_orphans("configmapsync", "go", KEEP, Step::Delete(Children::Orphan))]
    #[case::sync_going("configmapsync", "gd", KEEP, Step::KeepCopies)]
    #[case::balancer("myingress", "g", PLAIN, Step::Delete(Children::Background))]
    #[case::balancer_kept("myingress", "g", KEEP, Step::Suspend)]
    #[case::balancer_suspended("myingress", "gs", KEEP, Step::LetGo)]
    #[case::balancer_going("myingress", "gd", KEEP, Step::LetGo)]
    #[case::balancer_free("myingress", "s", KEEP, Step::Delete(Children::Orphan))]
    #[case::alone("myingress", "gd", WITHOUT, Step::LetGo)]
    #[case::alone("configmapsync", "g", WITHOUT, Step::LetGo)]
    #[case::alone_and_free("configmapsync", "", WITHOUT, Step::Delete(Children::Orphan))]
    #[case::alone_and_free("myingress", "", WITHOUT, Step::Delete(Children::Background))]
    #[case::alone_and_kept("configmapsync", "", BOTH, Step::Delete(Children::Orphan))]
    #[case::alone_app("myapp", "", BOTH, Step::Delete(Children::Orphan))]
    fn what_is_done(
        #[case] controller: &str,
        #[case] marks: &str,
        #[case] how: How,
        #[case] step: Step,
    ) {
        assert_eq!(target(controller, marks).step(how, true), step);
    }

    #[test]
    fn nobody_waits_for_ever_until_it_is_noted() {
        assert_eq!(
            target("myapp", "s").step(KEEP, false),
            Step::Delete(Children::Orphan)
        );
        let held = target("myapp", "s").held(KEEP, &HERE);
        assert_eq!(
            held,
            ["it is suspended, and the operator has not taken note of that yet"]
        );
        assert_eq!(target("myapp", "sn").held(KEEP, &HERE), [""; 0]);
    }

    #[test]
    fn every_kind_has_its_turn() {
        let mut order: Vec<_> = ORDER.into();
        let mut kinds: Vec<_> = registry::KINDS.iter().map(|kind| kind.controller).collect();
        order.sort_unstable();
        kinds.sort_unstable();
        assert_eq!(order, kinds);
    }

    #[test]
    fn every_finalizer_of_ours_is_known_here_and_to_the_script_that_guards() {
        let mut declared = Vec::new();
        for file in
            std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/crates/api/src")).unwrap()
        {
            let path = file.unwrap().path();
            let text = if path.is_file() {
                std::fs::read_to_string(path).unwrap()
            } else {
                String::new()
            };
            let lines = text
                .lines()
                .filter_map(|line| line.split_once("const FINALIZER: &str = "));
            declared.extend(
                lines.map(|(_, value)| value.trim_end_matches(';').trim_matches('"').to_owned()),
            );
        }
        let guarded = || {
            registry::KINDS
                .iter()
                .filter(|kind| kind.finalizer.is_some())
        };
        let mut known: Vec<_> = guarded().filter_map(|kind| kind.finalizer).collect();
        known.sort_unstable();
        declared.sort_unstable();
        assert_eq!(known, declared);
        assert!(known.iter().all(|name| is_ours(name)) && !is_ours("example.com/theirs"));

        let script =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/hack/guarded.sh"))
                .unwrap();
        let list = script
            .lines()
            .find_map(|line| line.strip_prefix("kinds=(")?.strip_suffix(')'))
            .unwrap();
        let mut named: Vec<_> = list.split_whitespace().map(str::to_owned).collect();
        let mut kinds: Vec<_> = guarded().map(KindInfo::crd_name).collect();
        named.sort_unstable();
        kinds.sort_unstable();
        assert_eq!(named, kinds);
        // It finds them by what their names begin with.
        assert!(
            known
                .iter()
                .all(|name| name.starts_with("quartermaster.dev/"))
        );
    }

    #[test]
    fn what_holds_one_up_is_named_with_the_way_out() {
        let mut held = target("myingress", "gd");
        held.finalizers
            .extend(["kopf.zalando.org/x".into(), FOREGROUND.into()]);
        let words = held.held(PLAIN, &HERE);
        assert!(
            words[0].contains("has not taken away the load balancer"),
            "{words:?}"
        );
        assert!(
            words[0].contains("(--controllers, --watch-namespace) never will"),
            "{words:?}"
        );
        let patch = "kubectl patch myingresses.demo.rtfm.co.ua web -n shop --type=json -p \
             '[{\"op\":\"test\",\"path\":\"/metadata/finalizers/1\",\"value\":\"kopf.zalando.org/x\"},\
             {\"op\":\"remove\",\"path\":\"/metadata/finalizers/1\"}]'";
        assert!(words[1].ends_with(patch), "{words:?}");
        assert!(
            words[2].ends_with("quartermaster.dev/owner-uid=u"),
            "{words:?}"
        );
        let prod = Cluster {
            context: Some("prod".into()),
            ..HERE
        };
        assert!(
            held.held(PLAIN, &prod)[1..]
                .iter()
                .all(|words| words.ends_with(" --context=prod"))
        );
        (held.object.reason, held.object.message) =
            ("DeletionProtected".into(), "may not be deleted".into());
        assert!(held.held(PLAIN, &HERE)[0].ends_with(": DeletionProtected: may not be deleted"));
    }

    #[test]
    fn what_is_left_behind_is_named_with_and_without_its_arn() {
        let mut web = target("myingress", "g");
        let words = web.left_behind(&HERE).unwrap();
        assert!(
            words.contains("web-alb of myingress/web in shop, if there is one: aws elbv2 describe"),
            "{words}"
        );
        web.balancer = Some("arn:aws:elasticloadbalancing:eu-west-1:1:x".into());
        let words = web.left_behind(&HERE).unwrap();
        assert!(
            words.contains(
                "aws --region eu-west-1 elbv2 delete-load-balancer --load-balancer-arn arn:"
            ),
            "{words}"
        );
        web.balancer = Some("a:b:c:$(x):d; rm -rf ~".into());
        let words = web.left_behind(&HERE).unwrap();
        let quoted = "aws --region '$(x)' elbv2 delete-load-balancer --load-balancer-arn 'a:b:c:$(x):d; rm -rf ~'";
        assert!(words.ends_with(quoted), "{words}");
        let prod = Cluster {
            context: Some("prod".into()),
            ..HERE
        };
        let words = target("configmapsync", "g").left_behind(&prod).unwrap();
        assert!(
            words.ends_with("-l quartermaster.dev/owner-uid=u --context=prod"),
            "{words}"
        );
        assert_eq!(target("myapp", "").left_behind(&HERE), None);
    }
}
