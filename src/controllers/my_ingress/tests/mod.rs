//! The rules of a reconcile, with an AWS and an apiserver in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod convergence;
mod fake;
mod plan;
mod report;
