//! The controllers, one for each kind, and the list of kinds.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;
use qm_core::kind::KindInfo;
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

/// Defines the list: for each line the function that adds the controllers, and the controller's module with the API type of each.
macro_rules! kinds {
    ($($start:path: $($module:ident $kind:ident),+;)+) => {
        /// All kinds.
        pub const KINDS: &[KindInfo] = &[$($($module::KIND,)+)+];

        /// Adds the check of the admission policies and the controllers.
        pub const START: &[fn(&mut Manager, &RunConfig) -> anyhow::Result<()>] =
            &[admission_policies::start, $($start,)+];

        /// Generators of the CRDs. The operator has the CRDs as text, so its binary contains no generator.
        pub(crate) const CRDS: [fn() -> CustomResourceDefinition; KINDS.len()] =
            [$($(qm_api::$kind::crd,)+)+];
    };
}

kinds! {
    notifications::start: contact_point ContactPoint, tracked_field TrackedField, tracked_field_set TrackedFieldSet;
    config_map_sync::start: config_map_sync ConfigMapSync;
    my_app::start: my_app MyApp;
    app_service::start: app_service AppService;
    my_ingress::start: my_ingress MyIngress;
}
