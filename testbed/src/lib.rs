//! A real control plane on this machine, and fakes of the services that the operator talks to. Not part of any release.

pub mod aws;
pub mod bot_api;
pub mod control_plane;
pub mod dns;
mod injections;
mod journal;
pub mod kubelet;
pub mod process;
pub mod proxy;
pub mod receiver;
mod serve;
mod timing;
pub mod tls;
pub mod usage;
pub mod wait;

pub use control_plane::{ControlPlane, Options};
