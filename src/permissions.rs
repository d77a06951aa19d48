//! Permissions of the operator beside those of its controllers ([`KINDS`](crate::kinds::KINDS)).

use qm_core::kind::Permission;

/// Reads the CRDs themselves: which are there, and whether they are ours. For these the rights are by name.
pub const CRD_VERBS: &[&str] = &["list", "watch"];

/// Reads the admission policies and their bindings, by name.
pub const POLICY_VERBS: &[&str] = &["get"];

/// Permission of leader election in the operator's own namespace to create the Lease, which cannot be limited by name.
pub const LEASES: Permission =
    Permission::namespaced("coordination.k8s.io", &["leases"], &["create"]);
/// Verbs of leader election on the Lease that `--leader-election-id` names.
pub const LEASE_VERBS: &[&str] = &["get", "update"];

/// Permissions to authenticate and authorize readers of the metrics.
pub const METRICS_RIGHTS: &[Permission] = &[
    Permission::cluster_scoped("authentication.k8s.io", &["tokenreviews"], &["create"]),
    Permission::cluster_scoped(
        "authorization.k8s.io",
        &["subjectaccessreviews"],
        &["create"],
    ),
];

/// Reads the tracker role, a right by name.
pub const TRACKER_ROLE_VERBS: &[&str] = &["list", "watch"];

const READ: &[&str] = &["get", "list", "watch"];

/// The targets that a `TrackedField` may name without `apiVersion`. Other kinds are granted by any `ClusterRole` with
/// [`AGGREGATE_TO_TRACKER`].
pub const TARGET_RIGHTS: &[Permission] = &[
    Permission::namespaced("", &["services"], READ),
    Permission::namespaced("apps", &["deployments", "statefulsets"], READ),
];

/// Label of a `ClusterRole`: `"true"` adds its rules to what the operator may track.
pub const AGGREGATE_TO_TRACKER: &str = "quartermaster.dev/aggregate-to-tracker";
