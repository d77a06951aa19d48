//! A real control plane on this machine, and the outside world that the product talks to. Never ships.

pub mod bot_api;
pub mod control_plane;
pub mod process;
pub mod proxy;
pub mod receiver;
pub mod wait;

pub use control_plane::{ControlPlane, Options, shared};
