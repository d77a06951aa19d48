//! A stand-in for AWS's Elastic Load Balancing (the `ELBv2` API), as strict as the real one.
//!
//! moto's server keeps what there is. In front of it stands a layer that adds what moto leaves out: AWS's rules and limits,
//! states that take their time, the faults that a test orders, and a journal of what was called. What the layer says in
//! moto's place is in `rules`: the API reference (2015-12-01) and the words that AWS is known to answer.

mod account;
mod admin;
mod answer;
mod call;
mod faults;
mod form;
mod gate;
mod health;
mod layer;
mod moto;
mod network;
mod rules;
mod server;
mod sight;
mod state;
#[cfg(test)]
mod tests;
mod views;
mod xml;

pub use self::account::{ACCESS_KEY, FOREIGN, OTHER_SUBNETS, REGION, SUBNETS};
pub use self::answer::Refused;
pub use self::faults::{Fault, On, Order, Times};
pub use self::gate::{Gate, Point};
pub use self::layer::{Call, Outcome};
pub use self::moto::api_model;
pub use self::server::Aws;
pub use self::views::{Balancer, Listener, Target, TargetGroup};
