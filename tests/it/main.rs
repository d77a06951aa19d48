//! Integration tests on a real control plane, one module a subject.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod crds;
