//! What every controller needs.

pub mod client;
pub mod health;
pub mod leader;
pub mod metrics;
pub mod telemetry;
