//! The integration tests: one binary, one module a subject, on a real control plane.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod answers;
mod bad_input;
mod crds;
mod docs;
mod faults;
mod field_paths;
mod fields;
mod hooks;
mod installed;
mod outages;
mod points;
mod secrecy;
mod secrets;
mod served;
mod support;
mod waiting;
mod walkthrough;
