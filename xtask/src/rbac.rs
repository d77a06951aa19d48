//! Permissions: the operator's, those on trackable resources, and the roles for users, kind by kind.
//!
//! As in kubebuilder, `config/default` adds the prefix of the names and replaces the namespace.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::{
    AggregationRule, ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding,
};
use k8s_openapi::api::rbac::v1::{RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use qm_core::kind::{KindInfo, Permission};
use quartermaster::cli::{LEASE, POLICY_PREFIX};
use quartermaster::controllers::{self, KINDS};
use quartermaster::permissions::{
    AGGREGATE_TO_TRACKER, CRD_VERBS, LEASE_VERBS, LEASES, METRICS_PERMISSIONS, POLICY_VERBS,
    TARGET_PERMISSIONS, TRACKER_ROLE_VERBS,
};
use serde_json::{Value, json};

use super::objects::{file, labels, meta};
use super::policies;

pub(super) const SERVICE_ACCOUNT: &str = "controller-manager";
pub(super) const NAMESPACE: &str = "system";
/// The `ClusterRole` for trackable resources.
const TRACKER_ROLE: &str = "tracker-role";

/// Label of the operator's `ClusterRole`: the scope of its watches. The chart reads the label to detect other
/// installations.
pub(super) const SCOPE: &str = "quartermaster.dev/watch-scope";

/// Returns all objects, each with the name of its file.
pub fn objects() -> Vec<(String, Value)> {
    let mut objects = vec![
        file("service_account", &service_account()),
        file("role", &manager()),
        file(
            "role_binding",
            &cluster_binding("manager-rolebinding", "manager-role"),
        ),
        file("leader_election_role", &leader_election()),
        file("leader_election_role_binding", &leader_election_binding()),
        file("tracker_role", &tracker()),
        file(
            "tracker_role_binding",
            &cluster_binding("tracker-rolebinding", TRACKER_ROLE),
        ),
        file("tracker_targets_role", &tracker_targets()),
        file("metrics_auth_role", &metrics_auth()),
        file(
            "metrics_auth_role_binding",
            &cluster_binding("metrics-auth-rolebinding", "metrics-auth-role"),
        ),
        file("metrics_reader_role", &metrics_reader()),
    ];
    objects.extend(for_people());
    objects
}

/// Returns the configuration of the fields with the tracker role's name, which kustomize does not know.
pub fn kustomize_config() -> Value {
    let target =
        |group: &str, kind: &str, path: &str| json!({ "group": group, "kind": kind, "path": path });
    json!({
        "nameReference": [{
            "group": "rbac.authorization.k8s.io",
            "kind": "ClusterRole",
            "fieldSpecs": [
                target("rbac.authorization.k8s.io", "ClusterRole", "rules/resourceNames"),
                target("apps", "Deployment", "spec/template/spec/containers/env/value"),
            ],
        }],
    })
}

/// Returns the roles for users.
pub fn for_people() -> Vec<(String, Value)> {
    let of = |kind: &'static KindInfo| {
        [("viewer", VIEWER), ("editor", EDITOR), ("admin", ADMIN)].map(|(who, verbs)| {
            file(
                &format!("{}_{who}_role", kind.controller),
                &people(kind, who, verbs),
            )
        })
    };
    KINDS.iter().flat_map(of).collect()
}

/// Returns the role with the permissions of all controllers in all namespaces; permissions on the same objects that
/// several kinds share appear once.
fn manager() -> ClusterRole {
    let mut verbs = BTreeMap::<(&str, &str, &[&str]), Vec<&str>>::new();
    for permission in KINDS.iter().flat_map(|kind| kind.permissions) {
        for resource in permission.resources {
            verbs
                .entry((permission.group, resource, permission.resource_names))
                .or_default()
                .extend(permission.verbs);
        }
    }
    let mut rules: Vec<_> = verbs
        .into_iter()
        .map(|((group, resource, names), mut verbs)| {
            verbs.sort_unstable();
            verbs.dedup();
            named(rule(group, &[resource], &verbs), names)
        })
        .collect();
    rules.push(PolicyRule {
        resource_names: Some(KINDS.iter().map(KindInfo::crd_name).collect()),
        ..rule(
            "apiextensions.k8s.io",
            &["customresourcedefinitions"],
            CRD_VERBS,
        )
    });
    // Kustomize does not add its prefix to the names in a rule.
    let policies = policies::names()
        .into_iter()
        .map(|name| format!("{POLICY_PREFIX}-{name}"));
    let policies: Vec<_> = policies.collect();
    let bindings = policies
        .iter()
        .map(|name| quartermaster::admission_policies::binding_name(name))
        .collect();
    for (resource, names) in [
        ("validatingadmissionpolicies", policies),
        ("validatingadmissionpolicybindings", bindings),
    ] {
        rules.push(PolicyRule {
            resource_names: Some(names),
            ..rule(policies::GROUP, &[resource], POLICY_VERBS)
        });
    }
    rules.push(PolicyRule {
        resource_names: Some(vec![TRACKER_ROLE.into()]),
        ..rule(
            "rbac.authorization.k8s.io",
            &["clusterroles"],
            TRACKER_ROLE_VERBS,
        )
    });
    let mut metadata = meta("manager-role");
    metadata
        .labels
        .get_or_insert_default()
        .extend(labels([(SCOPE, "cluster")]));
    ClusterRole {
        metadata,
        rules: Some(rules),
        aggregation_rule: None,
    }
}

fn leader_election() -> Role {
    let of_one = PolicyRule {
        resource_names: Some(vec![LEASE.into()]),
        ..rule(LEASES.group, LEASES.resources, LEASE_VERBS)
    };
    let rules = vec![policy(&LEASES), of_one];
    Role {
        metadata: namespaced("leader-election-role"),
        rules: Some(rules),
    }
}

/// Returns the role of trackable resources: empty, and aggregated by label. The controller-manager fills it.
fn tracker() -> ClusterRole {
    let selector = LabelSelector {
        match_labels: Some(labels([(AGGREGATE_TO_TRACKER, "true")])),
        ..Default::default()
    };
    ClusterRole {
        metadata: meta(TRACKER_ROLE),
        aggregation_rule: Some(AggregationRule {
            cluster_role_selectors: Some(vec![selector]),
        }),
        rules: None, // an apply with rules would remove the aggregated ones for a moment
    }
}

fn tracker_targets() -> ClusterRole {
    let mut metadata = meta("tracker-targets-role");
    metadata
        .labels
        .get_or_insert_default()
        .extend(labels([(AGGREGATE_TO_TRACKER, "true")]));
    ClusterRole {
        metadata,
        rules: Some(TARGET_PERMISSIONS.iter().map(policy).collect()),
        aggregation_rule: None,
    }
}

/// Returns the role for `--metrics-secure`.
fn metrics_auth() -> ClusterRole {
    let rules = METRICS_PERMISSIONS.iter().map(policy).collect();
    ClusterRole {
        metadata: meta("metrics-auth-role"),
        rules: Some(rules),
        aggregation_rule: None,
    }
}

/// Returns the role for readers of the secured metrics, such as Prometheus. The role has no binding.
fn metrics_reader() -> ClusterRole {
    let rule = PolicyRule {
        non_resource_urls: Some(vec!["/metrics".into()]),
        verbs: vec!["get".into()],
        ..PolicyRule::default()
    };
    ClusterRole {
        metadata: meta("metrics-reader"),
        rules: Some(vec![rule]),
        aggregation_rule: None,
    }
}

pub(super) const VIEWER: &[&str] = &["get", "list", "watch"];
pub(super) const EDITOR: &[&str] = &[
    "create", "delete", "get", "list", "patch", "update", "watch",
];
pub(super) const ADMIN: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];

/// Returns the role for users, aggregated into the cluster's own role of that rank. Policies keep editors of one
/// namespace from reaching further; of a kind without a policy, only the viewer's role is aggregated.
fn people(kind: &KindInfo, who: &str, verbs: &[&str]) -> ClusterRole {
    let resource = kind.resource();
    let mut metadata = meta(&format!("{}-{who}-role", kind.controller));
    let joins = match who {
        "viewer" => Some("rbac.authorization.k8s.io/aggregate-to-view"),
        _ if !policies::has_author_policy(kind) => None,
        "editor" => Some("rbac.authorization.k8s.io/aggregate-to-edit"),
        _ => Some("rbac.authorization.k8s.io/aggregate-to-admin"),
    };
    metadata
        .labels
        .get_or_insert_default()
        .extend(joins.map(|role| (role.to_owned(), "true".to_owned())));
    let of = |subresource: &str| format!("{}/{subresource}", resource.plural);
    let mut rules = vec![
        rule(&resource.group, &[&resource.plural], verbs),
        rule(&resource.group, &[&of("status")], &["get"]),
    ];
    let crd = controllers::crds()
        .into_iter()
        .find(|crd| crd.metadata.name == Some(kind.crd_name()));
    let versions = crd.map(|crd| crd.spec.versions).unwrap_or_default();
    if versions
        .iter()
        .filter_map(|version| version.subresources.as_ref())
        .any(|it| it.scale.is_some())
    {
        let verbs: &[&str] = if who == "viewer" {
            &["get"]
        } else {
            &["get", "patch", "update"]
        };
        rules.push(rule(&resource.group, &[&of("scale")], verbs));
    }
    ClusterRole {
        metadata,
        rules: Some(rules),
        aggregation_rule: None,
    }
}

fn service_account() -> ServiceAccount {
    // The operator's Pod requests its token; other Pods of the account get none automatically.
    ServiceAccount {
        metadata: namespaced(SERVICE_ACCOUNT),
        automount_service_account_token: Some(false),
        ..Default::default()
    }
}

fn cluster_binding(name: &str, role: &str) -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: meta(name),
        role_ref: role_ref("ClusterRole", role),
        subjects: Some(vec![operator()]),
    }
}

fn leader_election_binding() -> RoleBinding {
    RoleBinding {
        metadata: namespaced("leader-election-rolebinding"),
        role_ref: role_ref("Role", "leader-election-role"),
        subjects: Some(vec![operator()]),
    }
}

fn operator() -> Subject {
    Subject {
        kind: "ServiceAccount".into(),
        name: SERVICE_ACCOUNT.into(),
        namespace: Some(NAMESPACE.into()),
        ..Default::default()
    }
}

fn role_ref(kind: &str, name: &str) -> RoleRef {
    RoleRef {
        api_group: "rbac.authorization.k8s.io".into(),
        kind: kind.into(),
        name: name.into(),
    }
}

pub(super) fn policy(permission: &Permission) -> PolicyRule {
    let rule = rule(permission.group, permission.resources, permission.verbs);
    named(rule, permission.resource_names)
}

/// Limits a rule to the objects of these names, if there are any.
fn named(rule: PolicyRule, names: &[&str]) -> PolicyRule {
    PolicyRule {
        resource_names: (!names.is_empty()).then(|| owned(names)),
        ..rule
    }
}

fn owned(strings: &[&str]) -> Vec<String> {
    strings.iter().map(ToString::to_string).collect()
}

fn rule(group: &str, resources: &[&str], verbs: &[&str]) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.into()]),
        resources: Some(owned(resources)),
        verbs: owned(verbs),
        ..Default::default()
    }
}

fn namespaced(name: &str) -> ObjectMeta {
    ObjectMeta {
        namespace: Some(NAMESPACE.into()),
        ..meta(name)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use clap::CommandFactory as _;
    use quartermaster::cli::Cli;

    use super::*;

    #[test]
    fn permitted_lease_is_the_default_lease() {
        let program = Cli::command();
        let mut flags = program.find_subcommand("run").unwrap().get_arguments();
        let id = flags
            .find(|flag| flag.get_long() == Some("leader-election-id"))
            .unwrap();
        assert_eq!(id.get_default_values(), [LEASE]);
    }
}
