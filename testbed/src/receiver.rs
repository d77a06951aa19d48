//! A webhook receiver that records what reaches it, and misbehaves on request.
