//! Contract between an API type and the operator that serves it: the kind and the permissions of its controller, the
//! version of its schema, its readiness. The crate has no client, so API types can be used without one.

#![warn(missing_docs)]

pub mod conditions;
pub mod kind;
pub mod names;
pub mod nearest;
pub mod readiness;
pub mod schema;
pub mod shared;
pub mod time;
pub mod validation;
