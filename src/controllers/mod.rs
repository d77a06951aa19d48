//! The controllers, one for each kind.

pub mod app_service;
pub mod config_map_sync;
pub mod contact_point;
pub mod my_app;
pub mod my_ingress;
pub mod notifications;
pub mod pod;
pub mod tracked_field;
