//! Base of the testbed's servers: their runtime, a listener that can close and reopen on the same port, and connections
//! that can be reset.

mod http;
mod server;
mod wire;

pub use self::http::Reply;
pub(crate) use self::http::{Arrived, serve_http};
pub(crate) use self::server::{Server, runtime};
pub(crate) use self::wire::{Line, Moment, Wire};
