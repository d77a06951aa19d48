//! Page of the permissions: the operator's, with the reason for each, and those of the roles for users.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use qm_core::kind::Permission;
use quartermaster::cli::LEASE;
use quartermaster::controllers::KINDS;
use quartermaster::permissions::{
    AGGREGATE_TO_TRACKER, CRD_VERBS, LEASE_VERBS, LEASES, METRICS_PERMISSIONS, POLICY_VERBS,
    TARGET_PERMISSIONS, TRACKER_ROLE_VERBS,
};

use crate::policies;
use crate::rbac::{ADMIN, EDITOR, VIEWER};

const BEGIN: &str = "\
# Permissions

The operator has exactly these permissions, generated from the code into `config/rbac`, `deploy/` and the chart. The names are those
of `make deploy`; the chart puts the release's name before them. Why this is safe: [Permissions](../security/permissions.md).

## The operator

ClusterRole `quartermaster-manager-role`. With the chart's `controllers`, the operator has only the permissions of the kinds that it
serves. With `watchNamespaces`, those on namespaced resources are Roles in these namespaces.

| resource | verbs | for | why |
| --- | --- | --- | --- |
";

/// Why the operator needs its permissions on a resource. `KIND` stands for the resources of the operator's own kinds.
#[rustfmt::skip]
const PURPOSES: &[(&str, &str)] = &[
    ("configmaps", "Reads sources, and writes copies that it owns or adopts. Watches metadata only."),
    ("customresourcedefinitions", "Of its own CRDs, by name: reads which exist and whether they are compatible."),
    ("deployments", "Writes those that it owns or adopts. It never deletes one; OpenShift requires the verb for owner references that block deletion."),
    ("events", "Reports changes."),
    ("horizontalpodautoscalers", "Writes those that it owns or adopts."),
    ("ingresses", "Writes those that it owns or adopts."),
    ("namespaces", "Selects namespaces by label, and reads the UID of the cluster from `kube-system`, the only namespace that the operator may `get`. Watches metadata only."),
    ("nodes", "Finds out whether the node of a Pod still exists, and which instances listeners lead to."),
    ("pods", "Writes those that it owns or adopts, and reads why a Pod does not run."),
    ("secrets", "Reads the Secrets that a ContactPoint names, one by one. It can neither list nor watch them."),
    ("services", "Writes those that it owns or adopts, and reads those that listeners lead to."),
    ("contactpoints", "Watches the resources, to serve them."),
    ("trackedfields", "Watches the resources, annotates one that waits, and creates and deletes those of a TrackedFieldSet."),
    ("trackedfieldsets", "Watches the resources, to serve them."),
    ("configmapsyncs", "Watches the resources, and adds and removes the finalizer."),
    ("myapps", "Watches the resources, to serve them."),
    ("appservices", "Watches the resources, and removes the annotation of the original program."),
    ("myingresses", "Watches the resources, and adds and removes the finalizer."),
];

/// Returns why the operator needs a permission on a resource; none if the tables lack it.
fn purpose(resource: &str) -> Option<&'static str> {
    match resource.split_once('/') {
        Some((_, "status")) => Some("Writes the status."),
        Some((_, "finalizers")) => Some(
            "Sets owner references that block the owner's deletion, where the cluster checks that (OpenShift).",
        ),
        _ => PURPOSES
            .iter()
            .find(|(of, _)| *of == resource)
            .map(|(_, why)| *why),
    }
}

pub fn page() -> String {
    let mut page = BEGIN.to_owned();
    let mut rows = BTreeMap::<(&str, &str), (BTreeSet<&str>, BTreeSet<String>)>::new();
    for kind in KINDS {
        for permission in kind.permissions {
            for resource in permission.resources {
                let (verbs, kinds) = rows.entry((permission.group, resource)).or_default();
                verbs.extend(permission.verbs);
                kinds.insert(kind.resource().kind);
            }
        }
    }
    for ((group, resource), (verbs, kinds)) in rows {
        let kinds = if kinds.len() == KINDS.len() {
            "all kinds".to_owned()
        } else {
            kinds.into_iter().collect::<Vec<_>>().join(", ")
        };
        let verbs = verbs.into_iter().collect::<Vec<_>>();
        page.push_str(&row(
            group,
            resource,
            &verbs,
            &kinds,
            purpose(resource).unwrap_or_default(),
        ));
    }
    for (group, resource, verbs, why) in [
        (
            "apiextensions.k8s.io",
            "customresourcedefinitions",
            CRD_VERBS,
            purpose("customresourcedefinitions").unwrap_or_default(),
        ),
        (
            policies::GROUP,
            "validatingadmissionpolicies",
            POLICY_VERBS,
            "Of its own policies, by name: checks that they are in force.",
        ),
        (
            policies::GROUP,
            "validatingadmissionpolicybindings",
            POLICY_VERBS,
            "Of its own bindings, by name: likewise.",
        ),
        (
            "rbac.authorization.k8s.io",
            "clusterroles",
            TRACKER_ROLE_VERBS,
            "Of the tracker role, by name: reads what may be tracked.",
        ),
    ] {
        page.push_str(&row(group, resource, verbs, "the operator", why));
    }
    // Writing to a String does not fail.
    let _ = write!(
        page,
        "\n## Leader election\n\nRole `quartermaster-leader-election-role` in the operator's namespace.\n\n| resource | verbs | for | why |\n\
         | --- | --- | --- | --- |\n"
    );
    page.push_str(&rows_of(&LEASES, "the operator", "Creates the Lease."));
    page.push_str(&row(
        LEASES.group,
        LEASES.resources[0],
        LEASE_VERBS,
        "the operator",
        &format!("Of the Lease `{LEASE}` (`--leader-election-id`): acquires and renews it."),
    ));
    let _ = write!(
        page,
        "\n## Metrics\n\nClusterRole `quartermaster-metrics-auth-role`, for `--metrics-secure`. Readers of the metrics need the ClusterRole\n\
         `quartermaster-metrics-reader`: `get` on the URL `/metrics`.\n\n| resource | verbs | for | why |\n| --- | --- | --- | --- |\n"
    );
    for (permission, why) in METRICS_PERMISSIONS.iter().zip([
        "Asks the apiserver whose token a reader sends.",
        "Asks the apiserver whether that account may read `/metrics`.",
    ]) {
        page.push_str(&rows_of(permission, "the operator", why));
    }
    let _ = write!(
        page,
        "\n## What may be tracked\n\nClusterRole `quartermaster-tracker-role`. Kubernetes fills it from every ClusterRole with the label\n\
         `{AGGREGATE_TO_TRACKER}: \"true\"`; as installed, `quartermaster-tracker-targets-role`.\n\n| resource | verbs | for | why |\n\
         | --- | --- | --- | --- |\n"
    );
    for permission in TARGET_PERMISSIONS {
        page.push_str(&rows_of(
            permission,
            "TrackedField, TrackedFieldSet",
            "Follows the targets.",
        ));
    }
    let _ = write!(
        page,
        "\n## Users\n\nThree ClusterRoles for each kind, such as `quartermaster-contactpoint-viewer-role`. They are aggregated into\n\
         `view`, `edit` and `admin`. For a kind without an admission policy that checks the author, only the viewer role is.\n\n\
         | role | verbs on the kind | aggregated into |\n| --- | --- | --- |\n"
    );
    for (role, verbs, into) in [
        ("viewer", VIEWER, "view"),
        ("editor", EDITOR, "edit"),
        ("admin", ADMIN, "admin"),
    ] {
        let _ = writeln!(page, "| {role} | {} | `{into}` |", verbs.join(", "));
    }
    let unchecked = KINDS
        .iter()
        .filter(|kind| !policies::has_author_policy(kind));
    let unchecked: Vec<_> = unchecked.map(|kind| kind.resource().kind).collect();
    let _ = writeln!(
        page,
        "\nEach also has `get` on `status`, and on `scale` where the kind has it (editors and admins: `patch` and `update` too). Not\n\
         aggregated into `edit` and `admin`: {}.",
        unchecked.join(", ")
    );
    page
}

fn rows_of(permission: &Permission, of: &str, why: &str) -> String {
    let rows = permission.resources.iter();
    rows.map(|resource| row(permission.group, resource, permission.verbs, of, why))
        .collect()
}

fn row(group: &str, resource: &str, verbs: &[&str], of: &str, why: &str) -> String {
    let group = if group.is_empty() {
        String::new()
    } else {
        format!(" ({group})")
    };
    format!(
        "| `{resource}`{group} | {} | {of} | {why} |\n",
        verbs.join(", ")
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn permission_has_a_purpose_and_no_purpose_is_unused() {
        let permissions = KINDS.iter().flat_map(|kind| kind.permissions);
        let resources: BTreeSet<_> = permissions
            .flat_map(|permission| permission.resources)
            .copied()
            .chain(["customresourcedefinitions"])
            .collect();
        for resource in &resources {
            assert!(purpose(resource).is_some(), "{resource} has no purpose");
        }
        for (resource, _) in PURPOSES {
            assert!(resources.contains(resource), "{resource}");
        }
    }
}
