//! A fake of AWS's Elastic Load Balancing (the `ELBv2` API), as strict as the real API.
//!
//! moto's server stores the resources. A layer in front of moto adds AWS's rules and limits, states that take time, the
//! faults that a test injects, and a journal of calls. Module `rules` holds the layer's own responses, taken from the
//! API reference (2015-12-01) and from messages that AWS is known to return.

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
mod state;
#[cfg(test)]
mod tests;
mod views;
mod visibility;
mod xml;

pub use self::account::{ACCESS_KEY, FOREIGN, OTHER_SUBNETS, REGION, SUBNETS};
pub use self::answer::AwsErrorResponse;
pub use self::faults::{Fault, Injection, On, Times};
pub use self::gate::{Gate, Point};
pub use self::layer::{Call, Outcome};
pub use self::moto::api_model;
pub use self::server::Aws;
pub use self::views::{Balancer, Listener, Target, TargetGroup};
