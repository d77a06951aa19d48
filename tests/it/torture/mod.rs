//! Campaigns of faults: a workload for each kind, faults at each write, each call of AWS and each watch of the operator,
//! and an oracle.
//!
//! The program `tests/torture` runs every case, and `tests/it/every_write.rs` a fixed part.
#![allow(dead_code)] // each of them uses some parts only

mod case;
mod differences;
mod readiness;
mod scene;
pub mod snapshot;
mod staleness;
mod steps;
mod strike;
mod workloads;

#[allow(unused_imports)] // as above
pub use self::case::{Answer, Case, Fault, Place, PlaceKind};
#[allow(unused_imports)] // as above
pub use self::differences::differences;
#[allow(unused_imports)] // as above
pub use self::scene::{
    FLAGS, Reference, Report, RunOptions, catch_panic, is_sound, keep_panics, last_write, observe,
    rests_for, run, run_against,
};
#[allow(unused_imports)] // as above
pub use self::strike::{is_write, writes};
#[allow(unused_imports)] // as above
pub use self::workloads::{Kind, lease_aws};
