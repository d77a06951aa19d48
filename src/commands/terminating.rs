//! Blockers of deletions, and their remedies.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};
use qm_api::common::OWNER_UID;
use qm_api::my_ingress;
use qm_core::kind::KindInfo;
use serde_json::json;

use super::objects::{ObjectSummary, is_own_finalizer};
use crate::cli::LeaseArgs;
use crate::cli::commands::ClusterArgs;

/// Kubernetes' own finalizers: an object is deleted after its children, or after they are orphaned
/// (<https://kubernetes.io/docs/concepts/architecture/garbage-collection/#cascading-deletion>).
const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

/// Describes for each finalizer what has to happen first, with the command that helps.
pub(crate) fn blockers(
    kind: &KindInfo,
    object: &ObjectSummary,
    cluster: &ClusterArgs,
) -> Vec<String> {
    let (namespace, name) = (&object.namespace, &object.name);
    let mut blockers = Vec::new();
    for (index, finalizer) in object.finalizers.iter().enumerate() {
        let blocker = match finalizer.as_str() {
            FOREGROUND => match resources_of_children(kind) {
                None => format!(
                    "objects of other programs that have the {} as their owner are deleted first, and some remain",
                    object.kind
                ),
                Some(resources) => {
                    let command = cluster.command(&format!(
                        "kubectl get {resources} -n {namespace} -l {OWNER_UID}={}",
                        object.uid
                    ));
                    format!(
                        "its children are deleted first, and some remain; to list them: {command}"
                    )
                }
            },
            ORPHAN => "Kubernetes' garbage collector has not orphaned its children yet".into(),
            own if is_own_finalizer(&object.kind, own) && !object.reason.is_empty() => {
                format!("{}: {}", object.reason, object.message)
            }
            own if is_own_finalizer(&object.kind, own) => {
                let guarded = if own == my_ingress::FINALIZER {
                    "the load balancer in AWS"
                } else {
                    "the copies in other namespaces"
                };
                format!(
                    "the operator has not deleted {guarded} yet; an operator that excludes this kind or namespace \
                     (--controllers, --watch-namespace) never will"
                )
            }
            // The command removes this finalizer only: the cleanup for another one may be unfinished.
            foreign => {
                let path = format!("/metadata/finalizers/{index}");
                let patch = json!([
                    { "op": "test", "path": path, "value": foreign },
                    { "op": "remove", "path": path },
                ]);
                let command = cluster.command(&format!(
                    "kubectl patch {} {name} -n {namespace} --type=json -p '{patch}'",
                    kind.crd_name()
                ));
                format!(
                    "the program that set the finalizer must remove it; if that program no longer runs: {command}"
                )
            }
        };
        blockers.push(format!("{finalizer}: {blocker}"));
    }
    blockers
}

/// Returns the resources that the operator creates for objects of a kind, as kubectl names them, if there are any.
fn resources_of_children(kind: &KindInfo) -> Option<String> {
    let names = kind.created_resources().map(|(group, resource)| {
        let name = format!("{resource}.{group}");
        name.trim_end_matches('.').to_owned()
    });
    let names: Vec<_> = names.collect();
    (!names.is_empty()).then(|| names.join(","))
}

/// Returns a remedy for each namespace that is being deleted and holds objects that need the operator. An operator with
/// `--watch-namespace` may have lost its Role in the namespace before it could finish.
pub(crate) async fn namespace_remedies<'a>(
    client: &Client,
    objects: impl Iterator<Item = &'a ObjectSummary>,
    lease: &LeaseArgs,
    cluster: &ClusterArgs,
) -> BTreeMap<String, String> {
    let api: Api<Namespace> = Api::all(client.clone());
    let guarded = objects.filter(|object| object.needs_operator());
    let namespaces: BTreeSet<_> = guarded.map(|object| object.namespace.clone()).collect();
    let mut remedies = BTreeMap::new();
    for namespace in namespaces {
        // Without the permission to read the namespace there is no remedy.
        let read = api.get_metadata_opt(&namespace).await.ok().flatten();
        if read.is_none_or(|it| it.metadata.deletion_timestamp.is_none()) {
            continue;
        }
        let flags = lease.flags();
        let command = cluster.command(&format!(
            "quartermaster uninstall --without-operator -n {namespace}{flags}"
        ));
        let remedy = format!(
            "namespace {namespace} is being deleted: an operator with --watch-namespace has lost its Role there. Stop the \
             operator, remove its finalizers ({command}), and start it again"
        );
        remedies.insert(namespace, remedy);
    }
    remedies
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_api::my_ingress as ingress;
    use rstest::rstest;

    use super::*;
    use crate::commands::objects::tests::{conditions, kind, object};
    use crate::controllers;
    use crate::controllers::{app_service, config_map_sync, my_app, my_ingress, tracked_field_set};

    fn terminating() -> ObjectSummary {
        let finalizers = [ingress::FINALIZER, "kopf.zalando.org/x", FOREGROUND];
        ObjectSummary {
            kind: "MyIngress".into(),
            namespace: "shop".into(),
            name: "web".into(),
            uid: "u".into(),
            finalizers: finalizers.map(str::to_owned).into(),
            ..ObjectSummary::default()
        }
    }

    #[test]
    fn blockers_name_each_finalizer_with_its_remedy() {
        let (kind, here) = (kind(my_ingress::NAME), ClusterArgs::default());
        let mut object = terminating();
        let named = blockers(kind, &object, &here);
        let cleanup =
            "quartermaster.dev/load-balancer: the operator has not deleted the load balancer";
        assert!(named[0].starts_with(cleanup), "{named:?}");
        let excluded = "(--controllers, --watch-namespace) never will";
        assert!(named[0].contains(excluded), "{named:?}");
        let patch = "kubectl patch myingresses.demo.rtfm.co.ua web -n shop --type=json -p \
             '[{\"op\":\"test\",\"path\":\"/metadata/finalizers/1\",\"value\":\"kopf.zalando.org/x\"},\
             {\"op\":\"remove\",\"path\":\"/metadata/finalizers/1\"}]'";
        assert!(named[1].ends_with(patch), "{named:?}");
        let others =
            "foregroundDeletion: objects of other programs that have the MyIngress as their owner";
        assert!(named[2].starts_with(others), "{named:?}");

        object.reason = "DeletionProtected".into();
        object.message = "may not be deleted".into();
        let named = blockers(kind, &object, &here);
        assert!(named[0].ends_with(": DeletionProtected: may not be deleted"));
    }

    #[test]
    fn condition_from_before_the_deletion_is_no_blocker() {
        let mut deleted = conditions("False", "SourceNotFound", 1);
        deleted["metadata"] = json!({
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "finalizers": ["quartermaster.dev/copies"],
        });
        let sync = object(config_map_sync::NAME, &deleted);
        let named = blockers(kind(config_map_sync::NAME), &sync, &ClusterArgs::default());
        let cleanup = "quartermaster.dev/copies: the operator has not deleted the copies";
        assert!(
            named.len() == 1 && named[0].starts_with(cleanup),
            "{named:?}"
        );
    }

    #[rstest]
    #[case::app_service(
        app_service::NAME,
        "deployments.apps,services,horizontalpodautoscalers.autoscaling,ingresses.networking.k8s.io"
    )]
    #[case::my_app(my_app::NAME, "pods")]
    #[case::config_map_sync(config_map_sync::NAME, "configmaps")]
    #[case::tracked_field_set(tracked_field_set::NAME, "trackedfields.tg.azamaton.ru")]
    fn children_of_each_kind_can_be_listed(#[case] name: &str, #[case] resources: &str) {
        let object = ObjectSummary {
            namespace: "shop".into(),
            uid: "u".into(),
            finalizers: vec![FOREGROUND.into()],
            ..ObjectSummary::default()
        };
        let named = blockers(kind(name), &object, &ClusterArgs::default());
        let command = format!("kubectl get {resources} -n shop -l quartermaster.dev/owner-uid=u");
        assert!(named[0].ends_with(&command), "{named:?}");
    }

    #[test]
    fn commands_are_for_the_same_cluster() {
        let prod = ClusterArgs {
            context: Some("prod".into()),
            ..ClusterArgs::default()
        };
        let named = blockers(kind(my_ingress::NAME), &terminating(), &prod);
        assert!(named[1].ends_with(" --context=prod"));
        let named = blockers(kind(my_app::NAME), &terminating(), &prod);
        assert!(named[2].ends_with(" --context=prod"));
    }

    #[test]
    fn finalizers_are_known_here_and_to_the_script_that_checks_for_them() {
        let root = env!("CARGO_MANIFEST_DIR");
        let read = |path: &str| std::fs::read_to_string(format!("{root}/{path}")).unwrap();
        let mut declared = Vec::new();
        for file in std::fs::read_dir(format!("{root}/crates/api/src")).unwrap() {
            let path = file.unwrap().path();
            let text = if path.is_file() {
                std::fs::read_to_string(path).unwrap()
            } else {
                String::new()
            };
            let values = text.lines().filter_map(|line| {
                let (_, value) = line.split_once("const FINALIZER: &str = ")?;
                Some(value.trim_end_matches(';').trim_matches('"').to_owned())
            });
            declared.extend(values);
        }
        let guarded = controllers::KINDS
            .iter()
            .filter(|it| it.finalizer.is_some());
        let guarded: Vec<_> = guarded.collect();
        let mut known: Vec<_> = guarded.iter().filter_map(|kind| kind.finalizer).collect();
        known.sort_unstable();
        declared.sort_unstable();
        assert_eq!(known, declared);
        for kind in &guarded {
            let finalizer = kind.finalizer.unwrap_or_default();
            assert!(is_own_finalizer(&kind.resource().kind, finalizer));
        }
        assert!(!is_own_finalizer("MyIngress", "example.com/theirs"));
        assert!(!is_own_finalizer("AppService", known[0]), "of another kind");

        let script = read("hack/guarded.sh");
        let mut lines = script.lines();
        let list = lines.find_map(|line| line.strip_prefix("kinds=(")?.strip_suffix(')'));
        let mut named: Vec<_> = list
            .unwrap()
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        let mut kinds: Vec<_> = guarded.iter().map(|kind| kind.crd_name()).collect();
        named.sort_unstable();
        kinds.sort_unstable();
        assert_eq!(named, kinds);
        // The script finds finalizers by this prefix.
        assert!(
            known
                .iter()
                .all(|name| name.starts_with("quartermaster.dev/"))
        );
    }
}
