//! The integration tests: one binary, one module for each subject, on a real control plane.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// A test is one scenario from beginning to end, and the API's parameters are the usual ones.
#![allow(
    clippy::too_many_lines,
    clippy::default_trait_access,
    clippy::wrong_self_convention
)]

mod alerts;
mod answers;
mod app_service;
mod bad_input;
mod bundle;
mod changed_by;
mod commands;
mod contact_points;
mod copies;
mod crates;
mod crds;
mod delivery;
mod demo;
mod dns;
mod docs;
mod every_write;
mod example;
mod expensive_paths;
mod faults;
mod field_paths;
mod fields;
mod generated_input;
mod hooks;
mod imports;
mod install;
mod installed;
mod my_app;
mod my_ingress;
mod nesting;
mod oldest_kubernetes;
mod outages;
mod own_namespace;
mod pins;
mod policies;
mod receivers;
mod secrecy;
mod secrets;
mod secure_metrics;
mod served;
mod stored;
mod support;
mod torture;
mod traces;
mod tracked_field_sets;
mod tracker_role;
mod type_names;
mod waiting;
mod walkthrough;
