//! Quartermaster: one small binary for the everyday chores of a Kubernetes cluster.
//!
//! [`controllers`] lists and reconciles the kinds, and users run [`commands`].

use qm_runtime::settings::{Hints, Program};

pub mod admission_policies;
pub mod cli;
pub mod commands;
pub mod controllers;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod permissions;

/// Command that installs this version's CRDs.
pub(crate) const INSTALL_CRDS: &str = "quartermaster crds | kubectl apply --server-side -f -";
/// Command that replaces existing CRDs with this version's.
pub(crate) const REPLACE_CRDS: &str =
    "quartermaster crds | kubectl apply --server-side --force-conflicts -f -";

/// Description of the program for the runtime.
pub const PROGRAM: Program = Program {
    log_targets: &["quartermaster", "qm_"],
    hints: Hints {
        replace_crds: Some(REPLACE_CRDS),
        select_controllers: "--controllers",
        // Each install has its own prefix.
        metrics_reader_hint: Some("the ClusterRole ...-metrics-reader of this install"),
    },
    ..Program::new("quartermaster", env!("CARGO_PKG_VERSION"))
};
