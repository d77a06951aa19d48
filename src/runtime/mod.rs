//! What every controller needs.
