//! Fence that lets only the leader write.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

/// Fence of this process, closed unless it may write. Cheap to clone and to check.
#[derive(Clone)]
pub struct Fence(Arc<FenceState>);

struct FenceState {
    /// Time from which `until` counts, in nanoseconds.
    origin: Instant,
    /// End of the last renewal's validity; 0 before the first renewal.
    until: AtomicU64,
    /// True if the fence is closed for good, even if a renewal follows.
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

    /// Creates a fence without leader election: open until [`Fence::close`].
    pub fn open() -> Self {
        Self::new(u64::MAX)
    }

    /// Creates a fence with leader election: open from the first renewal on.
    pub fn shut() -> Self {
        Self::new(0)
    }

    /// Returns whether this process may write: the last renewal is still valid, and the fence was not closed.
    pub fn is_open(&self) -> bool {
        !self.0.closed.load(Ordering::Acquire)
            && self.nanos(Instant::now()) < self.0.until.load(Ordering::Acquire)
    }

    /// Makes a request while this process may write; returns `None` once it may not. The lease may be lost while the
    /// connection is set up, so the fence is checked at every step.
    pub async fn guard<T>(&self, request: impl Future<Output = T>) -> Option<T> {
        let mut request = pin!(request);
        poll_fn(|context| {
            if self.is_open() {
                request.as_mut().poll(context).map(Some)
            } else {
                Poll::Ready(None)
            }
        })
        .await
    }

    /// Records a renewal of the lease by a request that began at `started`. The renewal is valid for `validity` from
    /// then.
    pub fn renewed(&self, started: Instant, validity: Duration) {
        self.0
            .until
            .store(self.nanos(started + validity), Ordering::Release);
    }

    /// Closes the fence for good.
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::Release);
    }

    fn nanos(&self, at: Instant) -> u64 {
        // The range is 584 years.
        u64::try_from(at.saturating_duration_since(self.0.origin).as_nanos())
            .unwrap_or(u64::MAX - 1)
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fence").field(&self.is_open()).finish()
    }
}
