//! What an API type tells the operator that serves it: its kind and the permissions that its controller needs, the version of
//! its schema, its readiness. No client: types that depend on this crate can be used without one.

#![warn(missing_docs)]

pub mod conditions;
pub mod kind;
pub mod names;
pub mod readiness;
pub mod schema;
