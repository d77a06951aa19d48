//! The list of kinds: CRDs, permissions, readiness, metrics and the documentation's tables derive from it.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use qm_api::{AppService, ConfigMapSync, ContactPoint, MyApp, MyIngress, TrackedField};
use qm_core::kind::{KindInfo, Permission};
use qm_core::schema;
use qm_runtime::manager::Manager;

use crate::admission_policies;
use crate::cli::RunConfig;
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

/// Adds the check of the policies and the controllers; kinds that share state have one function.
pub const START: &[fn(&mut Manager, &RunConfig) -> anyhow::Result<()>] = &[
    admission_policies::start,
    notifications::start,
    config_map_sync::start,
    my_app::start,
    app_service::start,
    my_ingress::start,
];

/// Verbs on the CRDs, by name: the operator checks which exist and whether it owns them.
pub const CRD_VERBS: &[&str] = &["list", "watch"];

/// Verbs on the admission policies and their bindings, by name.
pub const POLICY_VERBS: &[&str] = &["get"];

/// Permission of leader election in the operator's namespace: the verb `create` cannot be limited to names.
pub const LEASES: Permission =
    Permission::namespaced("coordination.k8s.io", &["leases"], &["create"]);
/// Verbs on the Lease that `--leader-election-id` names.
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

/// Verbs on the tracker role, by name.
pub const TRACKER_ROLE_VERBS: &[&str] = &["list", "watch"];

const READ: &[&str] = &["get", "list", "watch"];

/// Targets that a `TrackedField` may name without `apiVersion`. A `ClusterRole` with [`AGGREGATE_TO_TRACKER`] grants
/// other kinds.
pub const TARGET_RIGHTS: &[Permission] = &[
    Permission::namespaced("", &["services"], READ),
    Permission::namespaced("apps", &["deployments", "statefulsets"], READ),
];

/// Label of a `ClusterRole`: `"true"` adds its rules to the trackable resources.
pub const AGGREGATE_TO_TRACKER: &str = "quartermaster.dev/aggregate-to-tracker";

/// Generators of the kinds' CRDs, in the order of [`KINDS`].
const MADE: [fn() -> CustomResourceDefinition; KINDS.len()] = [
    ContactPoint::crd,
    TrackedField::crd,
    ConfigMapSync::crd,
    MyApp::crd,
    AppService::crd,
    MyIngress::crd,
];

/// Returns the CRDs of all kinds, in the order of [`KINDS`], as they are installed. The operator itself contains them
/// as text, without the generators.
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

    /// A replica compares CRDs by the number alone: it must grow with each change.
    #[test]
    fn changed_schema_has_a_new_number() {
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
                "a restored schema still has a new number"
            );
        }
    }
}
