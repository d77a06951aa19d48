//! The rows of the table.

pub mod appear;
pub mod apps;
pub mod copies;
pub mod expensive_paths;
pub mod growth;
pub mod latency;
pub mod load;
pub mod replicas;
pub mod rest;
pub mod rules;
pub mod sets;
