//! `TrackedField`: changes become entries, entries become messages.

pub mod field;
pub mod history;
