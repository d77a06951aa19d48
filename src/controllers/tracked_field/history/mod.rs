//! What becomes of the history: pure, no client, no clock.
