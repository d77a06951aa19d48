//! The controllers, one for each kind, and the list of kinds. CRDs, permissions, policies, metrics, commands and the
//! reference pages follow from the list.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use qm_core::kind::KindInfo;
use qm_core::schema;
use qm_runtime::manager::Manager;

use crate::admission_policies;
use crate::cli::RunConfig;

pub mod app_service;
pub mod config_map_sync;
pub mod contact_point;
pub mod my_app;
pub mod my_ingress;
mod notifications;
pub mod pod;
mod reasons;
pub mod tracked_field;
pub mod tracked_field_set;

/// Defines the list of kinds. Each line has the function that adds the controllers, then the module and the API type of
/// each controller.
macro_rules! kinds {
    ($($add_to:path: $($module:ident $kind:ident),+;)+) => {
        /// All kinds.
        pub const KINDS: &[KindInfo] = &[$($($module::KIND,)+)+];

        /// Adds the check of the admission policies and the controllers.
        ///
        /// # Errors
        /// The receivers' HTTP client cannot be created.
        pub fn add_to(manager: &mut Manager, config: &RunConfig) -> anyhow::Result<()> {
            admission_policies::add_to(manager, config);
            $($add_to(manager, config)?;)+
            Ok(())
        }

        /// Generators of the CRDs. The operator has the CRDs as text, so its binary contains no generator.
        const CRD_GENERATORS: [fn() -> CustomResourceDefinition; KINDS.len()] =
            [$($(qm_api::$kind::crd,)+)+];
    };
}

kinds! {
    notifications::add_to: contact_point ContactPoint, tracked_field TrackedField, tracked_field_set TrackedFieldSet;
    config_map_sync::add_to: config_map_sync ConfigMapSync;
    my_app::add_to: my_app MyApp;
    app_service::add_to: app_service AppService;
    my_ingress::add_to: my_ingress MyIngress;
}

/// Returns the CRDs of all kinds, in their order, as they are installed.
pub fn crds() -> Vec<CustomResourceDefinition> {
    KINDS
        .iter()
        .zip(CRD_GENERATORS)
        .map(|(kind, crd)| schema::finish(crd(), kind.schemas.len(), kind.names))
        .collect()
}

/// Returns the kinds in the order in which `quartermaster uninstall` deletes their objects.
pub(crate) fn uninstall_order() -> Vec<&'static KindInfo> {
    let mut kinds: Vec<_> = KINDS.iter().collect();
    kinds.sort_by_key(|kind| kind.uninstall_rank);
    kinds
}

#[cfg(test)]
mod schema_tests;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_core::schema::SchemaVersion;

    use super::*;

    /// Notifications stop first, so that nobody is notified of the rest. Load balancers go before the apps, and the apps
    /// before the `ConfigMap`s that they read. Other kinds may go at any time.
    #[test]
    fn uninstall_deletes_kinds_in_this_order() {
        let order = [
            tracked_field::NAME,
            contact_point::NAME,
            my_ingress::NAME,
            app_service::NAME,
            my_app::NAME,
            config_map_sync::NAME,
        ];
        let kinds = uninstall_order().into_iter().map(|kind| kind.controller);
        let kinds: Vec<_> = kinds.filter(|name| order.contains(name)).collect();
        assert_eq!(kinds, order);
    }

    /// A replica tells an older CRD from a newer one by the number alone, so the number must grow with each change.
    #[test]
    fn a_changed_schema_has_a_new_number() {
        let mut changed = Vec::new();
        for (kind, crd) in KINDS.iter().zip(crds()) {
            assert_eq!(crd.metadata.name, Some(kind.crd_name()));
            let SchemaVersion { digest, .. } = SchemaVersion::of(&crd, kind.schemas.len());
            if kind.schemas.last() != Some(&digest.as_str()) {
                changed.push((kind.crd_name(), digest));
            }
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
        assert_eq!(
            changed,
            [],
            "these schemas have changed: add each digest to the end of the list in its controller's KIND (in place of the last \
             one only if no release had that), and run `make manifests`"
        );
    }
}
