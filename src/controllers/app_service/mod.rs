//! `AppService`: what was written is checked ([`validate`]), its objects are built ([`build`]) and put into the cluster, and
//! what became of them is its status ([`standing`], [`pods`]).

pub mod build;
pub mod pods;
pub mod standing;
pub mod validate;
