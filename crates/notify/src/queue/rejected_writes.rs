//! Status writes of one `TrackedField` that the apiserver rejects.

use std::time::{Duration, Instant};

use qm_runtime::ObjectKey;
use qm_runtime::backoff::{Backoff, BackoffPolicy};

use super::Circumstances;

/// Number of rejected status writes of one `TrackedField` after which the queues continue without it.
pub(super) const MAX_REJECTED_WRITES: u32 = 5;

/// Rejected writes since the last accepted one.
pub(super) struct RejectedWrites {
    count: u32,
    /// Status code of the last rejection; 504 also if the apiserver did not answer.
    code: u16,
    /// First message with that code; a new message alone is not reported again.
    message: String,
    /// Contact point of the `TrackedField`.
    pub(super) point: ObjectKey,
    backoff: Backoff,
    /// Time of the next write, unless the circumstances change.
    not_before: Instant,
    circumstances: Circumstances,
}

impl RejectedWrites {
    /// Adds a rejection with this code and message to the `known` ones of a `TrackedField` that sends to `point`;
    /// `retry` sets the time of the next write. Also returns whether the queues continue without the `TrackedField`
    /// from now on, or for another cause or with another contact point than before.
    pub(super) fn add(
        known: Option<Self>,
        point: &ObjectKey,
        (code, message): (u16, &str),
        circumstances: Circumstances,
        retry: BackoffPolicy,
        now: Instant,
    ) -> (Self, bool) {
        let count = known.as_ref().map_or(0, |known| known.count) + 1;
        let mut backoff = match &known {
            Some(known) if known.circumstances == circumstances => known.backoff.clone(),
            _ => retry.start(),
        };
        let not_before = now + backoff.next_delay();
        let is_moved = known.as_ref().is_some_and(|known| known.point != *point);
        // The message may have a part that differs each time.
        let same_code = known.filter(|known| known.code == code);
        let is_new = count == MAX_REJECTED_WRITES
            || (count > MAX_REJECTED_WRITES && (same_code.is_none() || is_moved));
        let writes = Self {
            count,
            code,
            message: same_code.map_or_else(|| message.to_owned(), |known| known.message),
            point: point.clone(),
            backoff,
            not_before,
            circumstances,
        };
        (writes, is_new)
    }

    /// Returns the time until the next write, if it is not due.
    pub(super) fn due(&self, circumstances: &Circumstances, now: Instant) -> Option<Duration> {
        if self.circumstances != *circumstances {
            return None;
        }
        let left = self.not_before.checked_duration_since(now);
        left.filter(|left| !left.is_zero())
    }

    /// Returns the cause if the queues continue without the `TrackedField`.
    pub(super) fn left_out(&self) -> Option<&str> {
        (self.count >= MAX_REJECTED_WRITES).then_some(&*self.message)
    }
}
