//! A real control plane on this machine, and the outside world that the product talks to. Never ships.

pub mod aws;
pub mod bot_api;
pub mod control_plane;
pub mod dns;
mod journal;
pub mod kubelet;
mod orders;
pub mod process;
pub mod proxy;
pub mod receiver;
mod serve;
mod timing;
pub mod tls;
pub mod usage;
pub mod wait;

pub use control_plane::{ControlPlane, Options};
