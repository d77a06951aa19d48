//! What is done for each kind.

pub mod app_service;
pub mod contact_point;
pub mod notifications;
pub mod tracked_field;
