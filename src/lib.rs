//! Quartermaster: one small binary for the everyday chores of a Kubernetes cluster.
//!
//! [`api`] holds the kinds, [`controllers`] what is done for each of them, [`runtime`] what every controller needs,
//! [`notify`] the sending of messages, [`cloud`] the load balancers of AWS, [`registry`] the one list of kinds, [`manifests`] what is generated from it,
//! [`commands`] what people run beside the operator.

pub mod api;
pub mod cli;
pub mod cloud;
pub mod commands;
pub mod controllers;
pub mod manifests;
pub mod notify;
pub mod registry;
pub mod runtime;
