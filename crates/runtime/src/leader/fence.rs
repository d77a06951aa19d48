//! The right to write.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// Says whether this process may write now. Cheap to clone and to ask.
#[derive(Clone)]
pub struct Fence(Arc<FenceState>);

struct FenceState {
    /// Instants are kept as nanoseconds since this one.
    origin: Instant,
    /// Held until then; zero: not held.
    until: AtomicU64,
    /// Closed for good, whatever is renewed later.
    closed: AtomicBool,
}

impl Fence {
    fn new(until: u64) -> Self {
        let until = AtomicU64::new(until);
        Self(Arc::new(FenceState {
            origin: Instant::now(),
            until,
            closed: AtomicBool::new(false),
        }))
    }

    /// Without leader election: held until it is closed.
    pub fn open() -> Self {
        Self::new(u64::MAX)
    }

    /// With leader election: held from the first renewal on.
    pub fn shut() -> Self {
        Self::new(0)
    }

    /// True while this process may write: the last renewal's validity has not passed, and the fence was not closed.
    pub fn held(&self) -> bool {
        !self.0.closed.load(Ordering::Acquire)
            && self.nanos(Instant::now()) < self.0.until.load(Ordering::Acquire)
    }

    /// The lease was renewed by a request that began at `started`, and is good for `validity` from then.
    pub fn renewed(&self, started: Instant, validity: Duration) {
        self.0
            .until
            .store(self.nanos(started + validity), Ordering::Release);
    }

    /// Never held again.
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
    }

    fn nanos(&self, at: Instant) -> u64 {
        // 584 years fit.
        u64::try_from(at.saturating_duration_since(self.0.origin).as_nanos())
            .unwrap_or(u64::MAX - 1)
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fence").field(&self.held()).finish()
    }
}
