//! What is done for each kind.

pub mod contact_point;
pub mod my_app;
pub mod notifications;
pub mod tracked_field;
