//! The kinds: spec, status, CEL rules, printer columns. No client code.
//!
//! Every type here reads what any earlier CRD let in: a field that a rule demands today is still optional in Rust,
//! because one object that cannot be read would stop the watch of all.

#![warn(missing_docs)]
#![allow(clippy::duplicated_attributes)] // it takes equal arguments of two printer columns for a repetition
#![allow(dead_code)] // the derived schema of a spec is that of a copy which nothing reads

pub mod app_service;
pub mod common;
pub mod config_map_sync;
pub mod contact_point;
mod kind;
pub mod my_app;
pub mod my_ingress;
#[cfg(test)]
mod schema_tests;
pub mod spec_size;
pub mod tracked_field;

pub use app_service::AppService;
pub use config_map_sync::ConfigMapSync;
pub use contact_point::ContactPoint;
pub use my_app::MyApp;
pub use my_ingress::MyIngress;
pub use tracked_field::TrackedField;
