//! Quartermaster: one small binary for the everyday chores of a Kubernetes cluster.
//!
//! [`kinds`] is the list of kinds, [`controllers`] reconciles them, and [`commands`] are run by people beside
//! the operator.

use qm_runtime::settings::{Hints, Program};

pub mod admission_policies;
pub mod cli;
pub mod commands;
pub mod controllers;
pub mod kinds;
pub mod permissions;

/// Command that installs the CRDs of this version where there are none.
pub const INSTALL_CRDS: &str = "quartermaster crds | kubectl apply --server-side -f -";
/// Command that replaces existing CRDs by those of this version.
pub const REPLACE_CRDS: &str =
    "quartermaster crds | kubectl apply --server-side --force-conflicts -f -";

/// The program, as the runtime knows it.
pub const PROGRAM: Program = Program {
    log_targets: &["quartermaster", "qm_"],
    hints: Hints {
        replace_crds: Some(REPLACE_CRDS),
        select_controllers: "--controllers",
        metrics_reader_role: Some("quartermaster-metrics-reader"),
    },
    ..Program::new("quartermaster", env!("CARGO_PKG_VERSION"))
};
