//! `MyApp`: what its Pod is to be ([`build`]), and what it is ([`seen`]).

pub mod build;
pub mod seen;
