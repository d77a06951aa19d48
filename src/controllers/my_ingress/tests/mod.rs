//! Tests of the rules of a reconcile, with fakes of AWS and the apiserver.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod convergence;
mod fake;
mod plan;
mod report;
