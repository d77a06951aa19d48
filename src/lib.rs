//! Quartermaster: one small binary for the everyday chores of a Kubernetes cluster.
//!
//! [`registry`] is the list of kinds, [`controllers`] reconciles them, and [`commands`] are run by people beside
//! the operator.

pub mod admission_policies;
pub mod cli;
pub mod commands;
pub mod controllers;
pub mod registry;
