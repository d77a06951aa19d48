//! Permissions of the operator in addition to those of its controllers ([`KINDS`](crate::controllers::KINDS)).

use qm_core::kind::Permission;

/// Verbs on the CRDs of the kinds, by name: the operator reads which CRDs exist and whether they are compatible.
pub const CRD_VERBS: &[&str] = &["list", "watch"];

/// Verbs on the admission policies and their bindings, by name.
pub const POLICY_VERBS: &[&str] = &["get"];

/// Permission of leader election to create the Lease in the operator's own namespace. RBAC cannot limit `create` by
/// name.
pub const LEASES: Permission =
    Permission::namespaced("coordination.k8s.io", &["leases"], &["create"]);
/// Verbs of leader election on the Lease that `--leader-election-id` names.
pub const LEASE_VERBS: &[&str] = &["get", "update"];

/// Permissions to authenticate and authorize readers of the metrics.
pub const METRICS_PERMISSIONS: &[Permission] = &[
    Permission::cluster_scoped("authentication.k8s.io", &["tokenreviews"], &["create"]),
    Permission::cluster_scoped(
        "authorization.k8s.io",
        &["subjectaccessreviews"],
        &["create"],
    ),
];

/// Verbs on the tracker role, by name.
pub const TRACKER_ROLE_VERBS: &[&str] = &["list", "watch"];

/// Verbs on targets: the operator watches, lists and reads them.
pub(crate) const TARGET_VERBS: &[&str] = &["get", "list", "watch"];

/// Permissions on the targets that a `TrackedField` may name without `apiVersion`. Any `ClusterRole` with
/// [`AGGREGATE_TO_TRACKER`] grants others.
pub const TARGET_PERMISSIONS: &[Permission] = &[
    Permission::namespaced("", &["services"], TARGET_VERBS),
    Permission::namespaced(
        "apps",
        &["daemonsets", "deployments", "statefulsets"],
        TARGET_VERBS,
    ),
    Permission::namespaced("autoscaling", &["horizontalpodautoscalers"], TARGET_VERBS),
    Permission::namespaced("batch", &["cronjobs", "jobs"], TARGET_VERBS),
    Permission::namespaced("networking.k8s.io", &["ingresses"], TARGET_VERBS),
];

/// Label of a `ClusterRole`: `"true"` adds its rules to what the operator may track.
pub const AGGREGATE_TO_TRACKER: &str = "quartermaster.dev/aggregate-to-tracker";
