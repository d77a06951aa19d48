//! Permissions that the Helm chart grants, by its values.

use std::collections::BTreeSet;

use qm_core::kind::KindInfo;

use super::chart::rendered;
use super::*;
use crate::support::SYSTEM;

/// Permissions: verbs, and a resource (`RESOURCE[/SUBRESOURCE].GROUP[ NAME]`, or a path).
type Permissions = [(&'static str, &'static str)];

/// Permissions that `ConfigMapSync`s need where they act.
const COPIES: &Permissions = &[
    ("get list patch watch", "configmapsyncs.apps.bixbite.io"),
    ("patch", "configmapsyncs/status.apps.bixbite.io"),
    ("update", "configmapsyncs/finalizers.apps.bixbite.io"),
    ("create delete get list update watch", "configmaps."),
    ("create", "events.events.k8s.io"),
];

/// Permissions that all other kinds need there.
const OTHERS: &Permissions = &[
    ("list watch", "contactpoints.tg.azamaton.ru"),
    ("patch", "contactpoints/status.tg.azamaton.ru"),
    ("get", "secrets."),
    (
        "create delete get list patch watch",
        "trackedfields.tg.azamaton.ru",
    ),
    ("patch", "trackedfields/status.tg.azamaton.ru"),
    ("get list watch", "trackedfieldsets.tg.azamaton.ru"),
    ("patch", "trackedfieldsets/status.tg.azamaton.ru"),
    ("update", "trackedfieldsets/finalizers.tg.azamaton.ru"),
    ("get list patch watch", "appservices.kosmos.io"),
    ("patch", "appservices/status.kosmos.io"),
    ("update", "appservices/finalizers.kosmos.io"),
    ("create delete get list patch watch", "deployments.apps"),
    ("create delete get list patch watch", "services."),
    (
        "create delete get list patch watch",
        "horizontalpodautoscalers.autoscaling",
    ),
    (
        "create delete get list patch watch",
        "ingresses.networking.k8s.io",
    ),
    ("get list watch", "myapps.demo.rtfm.co.ua"),
    ("patch", "myapps/status.demo.rtfm.co.ua"),
    ("update", "myapps/finalizers.demo.rtfm.co.ua"),
    ("create delete get list patch watch", "pods."),
    ("get list patch watch", "myingresses.demo.rtfm.co.ua"),
    ("patch", "myingresses/status.demo.rtfm.co.ua"),
];

/// Kinds that may be tracked; the role is bound where the operator acts.
const TRACKED: &Permissions = &[
    ("get list watch", "cronjobs.batch"),
    ("get list watch", "daemonsets.apps"),
    ("get list watch", "deployments.apps"),
    ("get list watch", "horizontalpodautoscalers.autoscaling"),
    ("get list watch", "ingresses.networking.k8s.io"),
    ("get list watch", "jobs.batch"),
    ("get list watch", "services."),
    ("get list watch", "statefulsets.apps"),
];

/// Permission to read the kinds that may be tracked.
const ROLE: &Permissions = &[(
    "list watch",
    "clusterroles.rbac.authorization.k8s.io quartermaster-tracker-role",
)];

/// Permissions to review clients that read metrics, and to read them.
const METRICS: &Permissions = &[
    ("create", "tokenreviews.authentication.k8s.io"),
    ("create", "subjectaccessreviews.authorization.k8s.io"),
    ("get", "/metrics"),
];

/// Returns every permission that a set of values grants: `NAMESPACE VERB WHAT`, with `-` for all of them.
async fn permissions(values: &str) -> BTreeSet<String> {
    let rendered = rendered(&["--set", values]).await;
    let of_people = |name: &str| {
        ["-viewer-role", "-editor-role", "-admin-role"]
            .iter()
            .any(|end| name.ends_with(end))
    };
    let roles = rendered.iter().filter(|(name, object)| {
        matches!(object["kind"].as_str(), Some("Role" | "ClusterRole")) && !of_people(name)
    });
    let mut permissions = BTreeSet::new();
    for (_, role) in roles {
        let namespace = role["metadata"]["namespace"].as_str().unwrap_or("-");
        for rule in role["rules"].as_array().into_iter().flatten() {
            let words = |field: &str| {
                let words = rule[field].as_array().into_iter().flatten();
                words
                    .map(|word| word.as_str().unwrap().to_owned())
                    .collect::<Vec<_>>()
            };
            let of_groups = |resource: &String| {
                words("apiGroups")
                    .into_iter()
                    .map(move |group| format!("{resource}.{group}"))
                    .collect::<Vec<_>>()
            };
            let mut what: Vec<_> = words("resources").iter().flat_map(of_groups).collect();
            if rule["resourceNames"].is_array() {
                let named = |what: &String| {
                    words("resourceNames")
                        .into_iter()
                        .map(move |name| format!("{what} {name}"))
                        .collect::<Vec<_>>()
                };
                what = what.iter().flat_map(named).collect();
            }
            for what in what.into_iter().chain(words("nonResourceURLs")) {
                permissions.extend(
                    words("verbs")
                        .into_iter()
                        .map(|verb| format!("{namespace} {verb} {what}")),
                );
            }
        }
    }
    permissions
}

/// Returns the expected permissions of a namespace in the same form.
fn listed(namespace: &str, permissions: &[&Permissions]) -> BTreeSet<String> {
    let each = |(verbs, what): &(&str, &str)| {
        verbs
            .split(' ')
            .map(|verb| format!("{namespace} {verb} {what}"))
            .collect::<Vec<_>>()
    };
    permissions
        .iter()
        .flat_map(|permissions| permissions.iter())
        .flat_map(each)
        .collect()
}

/// Permission for a Lease, and for no other of the namespace: releases that share one have a Lease each.
const LEASE: &Permissions = &[
    ("create", "leases.coordination.k8s.io"),
    ("get update", "leases.coordination.k8s.io quartermaster"),
];

/// Returns what every operator needs, whatever runs: its own CRDs, the policies, and its Lease.
fn always() -> BTreeSet<String> {
    let crd = |kind: &KindInfo| {
        let name = kind.crd_name();
        ["list", "watch"]
            .map(|verb| format!("- {verb} customresourcedefinitions.apiextensions.k8s.io {name}"))
    };
    let policies = xtask::policies::names().into_iter().flat_map(|name| {
        [
            format!("- get validatingadmissionpolicies.admissionregistration.k8s.io quartermaster-{name}"),
            format!("- get validatingadmissionpolicybindings.admissionregistration.k8s.io quartermaster-{name}binding"),
        ]
    });
    let crds = controllers::KINDS.iter().flat_map(crd);
    &crds.chain(policies).collect::<BTreeSet<_>>() | &listed(SYSTEM, &[LEASE])
}

#[tokio::test]
async fn chart_grants_the_needed_permissions_and_no_others() {
    let everywhere: &Permissions = &[
        ("list watch", "namespaces."),
        ("get", "namespaces. kube-system"),
        ("get list watch", "nodes."),
    ];
    let whole = &listed("-", &[COPIES, OTHERS, TRACKED, ROLE, METRICS, everywhere]) | &always();
    assert_eq!(permissions("replicas=2").await, whole);

    // In one namespace: Roles there, and the shared ones in the operator's.
    let beside: &Permissions = &[("get", "nodes."), ("get", "namespaces. kube-system")];
    let some = &(&listed("a", &[COPIES, OTHERS]) | &listed("-", &[TRACKED, ROLE, METRICS, beside]))
        | &always();
    assert_eq!(
        permissions("watchNamespaces={a},sharedSecrets=off").await,
        some
    );
    assert_eq!(
        permissions("watchNamespaces={a},noCrossNamespaceRefs=true").await,
        some
    );
    let shared = listed(SYSTEM, &[&[("get", "secrets.")]]);
    assert_eq!(permissions("watchNamespaces={a}").await, &some | &shared);
    let rendered = rendered(&["--set", "watchNamespaces={a}"]).await;
    assert!(rendered.contains_key(
        "rbac.authorization.k8s.io/v1 RoleBinding a/quartermaster-tracker-rolebinding"
    ));
    let bound: Vec<_> = rendered
        .keys()
        .filter(|name| name.contains(" ClusterRoleBinding "))
        .collect();
    assert_eq!(
        bound.len(),
        2,
        "its own, and the reviews of clients that read metrics: {bound:?}"
    );
}

#[tokio::test]
async fn permissions_follow_the_controllers() {
    let namespaces: &Permissions = &[("list watch", "namespaces.")];
    let plain = &listed("-", &[COPIES, namespaces]) | &always();
    for value in ["metrics.secure=false", "metrics.enabled=false"] {
        assert_eq!(
            permissions(&format!("controllers={{configmapsync}},{value}")).await,
            plain
        );
    }
    let metrics = listed("-", &[METRICS]);
    assert_eq!(
        permissions("controllers={configmapsync}").await,
        &plain | &metrics
    );
    let some = &(&listed("a", &[COPIES]) | &listed("b", &[COPIES])) | &always();
    assert_eq!(
        permissions("controllers={configmapsync},watchNamespaces={a,b}").await,
        &some | &metrics
    );
}

#[tokio::test]
async fn lease_permission_follows_the_name_of_the_lease() {
    let other: &Permissions = &[
        ("create", "leases.coordination.k8s.io"),
        ("get update", "leases.coordination.k8s.io mine"),
    ];
    let (usual, named) = (
        permissions("replicas=2").await,
        permissions("leaderElection.id=mine").await,
    );
    assert_eq!(
        &usual - &named,
        &listed(SYSTEM, &[LEASE]) - &listed(SYSTEM, &[other])
    );
    assert_eq!(
        &named - &usual,
        &listed(SYSTEM, &[other]) - &listed(SYSTEM, &[LEASE])
    );
}

/// Without the policies, an editor of one namespace would reach into others.
#[tokio::test]
async fn no_role_joins_edit_without_the_policies() {
    let joining = async |values: &[&str]| {
        let joins = |object: &Value| {
            object["metadata"]["labels"]
                .to_string()
                .contains("rbac.authorization.k8s.io/aggregate-to-")
        };
        rendered(values)
            .await
            .values()
            .filter(|object| joins(object))
            .count()
    };
    let kinds = quartermaster::controllers::KINDS.len();
    // Besides the viewers of each kind: two for each kind whose policy compares permissions. One more policy is the operator's.
    let compared = xtask::policies::names().len() - 1;
    assert_eq!(joining(&[]).await, kinds + 2 * compared);
    for value in [
        "admissionPolicies.enabled=false",
        "rbac.aggregateToEdit=false",
    ] {
        assert_eq!(
            joining(&["--set", value]).await,
            kinds,
            "{value}: the viewers"
        );
    }
}
