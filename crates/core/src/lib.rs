//! What an API type tells the operator that serves it: its kind and the permissions that its controller needs, the version of
//! its schema, its readiness. No client: types that depend on this crate can be used without one.

#![warn(missing_docs)]

pub mod conditions;
pub mod kind;
pub mod readiness;
pub mod schema;

/// Prefix of the names of the operator's labels and annotations.
pub const OURS: &str = "quartermaster.dev/";
/// Annotation: any new value triggers a reconcile and resets the object's backoff.
pub const REQUESTED_AT: &str = "quartermaster.dev/requested-at";
/// Annotation of a CRD: number and digest of its schema, such as `2-8b29606cd506f2d3`. A CRD with a lower number, or without
/// the annotation, prunes newer fields, so it counts as absent.
pub const SCHEMA: &str = "quartermaster.dev/schema";
