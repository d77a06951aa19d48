//! The list of kinds: CRDs, rights, readiness, metrics and the documentation's tables derive from it.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use qm_api::{AppService, ConfigMapSync, ContactPoint, MyApp, MyIngress, TrackedField};
use qm_core::kind::{KindInfo, Permission};
use qm_core::schema;
use qm_runtime::manager::Manager;

use crate::admission_policies;
use crate::cli::Config;
use crate::controllers::{
    app_service, config_map_sync, contact_point, my_app, my_ingress, notifications, tracked_field,
};

/// All kinds.
pub const KINDS: &[KindInfo] = &[
    contact_point::KIND,
    tracked_field::KIND,
    config_map_sync::KIND,
    my_app::KIND,
    app_service::KIND,
    my_ingress::KIND,
];

/// Adds the check of the policies, and the controllers: one function for kinds that share something.
pub const START: &[fn(&mut Manager, &Config) -> anyhow::Result<()>] = &[
    admission_policies::start,
    notifications::start,
    config_map_sync::start,
    my_app::start,
    app_service::start,
    my_ingress::start,
];

/// Reads the CRDs themselves: which are there, and whether they are ours. For these the rights are by name.
pub const CRD_VERBS: &[&str] = &["list", "watch"];

/// Reads the admission policies and their bindings, by name.
pub const POLICY_VERBS: &[&str] = &["get"];

/// What leader election needs in the operator's own namespace: to make the Lease, a right that cannot be by name,
pub const LEASES: Permission =
    Permission::namespaced("coordination.k8s.io", &["leases"], &["create"]);
/// and this of the one Lease whose name `--leader-election-id` gives.
pub const LEASE_VERBS: &[&str] = &["get", "update"];

/// What it takes to ask who reads the metrics, and whether that one may.
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

/// What makes the CRD of each kind, in their order.
const MADE: [fn() -> CustomResourceDefinition; KINDS.len()] = [
    ContactPoint::crd,
    TrackedField::crd,
    ConfigMapSync::crd,
    MyApp::crd,
    AppService::crd,
    MyIngress::crd,
];

/// The CRDs of all kinds, in their order, as they are installed. The operator itself has them as text: what makes them is
/// no part of it.
pub fn crds() -> Vec<CustomResourceDefinition> {
    KINDS
        .iter()
        .zip(MADE)
        .map(|(kind, made)| schema::finish(made(), kind.schemas.len(), kind.names))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_core::schema::SchemaVersion;

    use super::*;

    /// A replica tells an older CRD from a newer one by the number alone: it must grow with each change.
    #[test]
    fn a_changed_schema_has_a_new_number() {
        for (kind, crd) in KINDS.iter().zip(crds()) {
            assert_eq!(crd.metadata.name, Some(kind.crd_name()));
            let SchemaVersion { digest, .. } = SchemaVersion::of(&crd, kind.schemas.len());
            assert_eq!(
                kind.schemas.last(),
                Some(&digest.as_str()),
                "the schema of {} has changed: add {digest:?} to the end of the list in its controller's KIND (in place \
                 of the last one only if no release had that), and run `make manifests`",
                kind.crd_name()
            );
            let once = kind
                .schemas
                .iter()
                .collect::<std::collections::BTreeSet<_>>()
                .len();
            assert_eq!(
                once,
                kind.schemas.len(),
                "a schema that comes back still has a new number"
            );
        }
    }
}
