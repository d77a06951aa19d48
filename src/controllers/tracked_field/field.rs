//! Which field of an object is tracked, and its value.
