//! The kinds: spec, status, CEL rules, printer columns. No client code.
//!
//! Every type here reads each object that any earlier CRD accepted: a field that a rule requires today is still optional in
//! Rust, because one unreadable object would stop the watch of its kind.

#![warn(missing_docs)]
#![allow(clippy::duplicated_attributes)] // reports equal arguments of two printer columns
#![allow(dead_code)] // the schema of a spec derives from a copy of the struct that nothing reads

pub mod app_service;
pub mod common;
pub mod config_map_sync;
pub mod contact_point;
mod kind;
pub mod my_app;
pub mod my_ingress;
pub mod spec_size;
pub mod tracked_field;
pub mod tracked_field_set;

pub use app_service::AppService;
pub use config_map_sync::ConfigMapSync;
pub use contact_point::ContactPoint;
pub use my_app::MyApp;
pub use my_ingress::MyIngress;
pub use tracked_field::TrackedField;
pub use tracked_field_set::TrackedFieldSet;
