//! What is done for each kind.

pub mod tracked_field;
