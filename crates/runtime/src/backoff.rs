//! Growing, jittered delays, one series an object.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The first and the longest delay of a series that doubles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffPolicy {
    /// The first delay.
    pub min: Duration,
    /// The longest delay.
    pub max: Duration,
}

impl BackoffPolicy {
    /// A series by this policy. Each delay is drawn at random from a range that doubles, so that what failed together does
    /// not come back together: 1 s to 2 s at first where `min` is 1 s, and half of `max` to all of it in the end. None is
    /// shorter than `min` or longer than `max`.
    pub fn start(self) -> Backoff {
        Backoff {
            policy: self,
            least: self.min,
        }
    }
}

/// Delays that grow.
#[derive(Clone, Debug)]
pub struct Backoff {
    policy: BackoffPolicy,
    /// The next delay is at least this, and at most twice as long.
    least: Duration,
}

impl Backoff {
    /// The next delay.
    pub fn next_delay(&mut self) -> Duration {
        let BackoffPolicy { min, max } = self.policy;
        let least = self.least;
        self.least = (least * 2).min(max / 2).max(min);
        rand::random_range(least..=(least * 2).min(max).max(least))
    }
}

/// A series for each key that failed last time.
#[derive(Debug)]
pub struct Backoffs<K> {
    policy: BackoffPolicy,
    series: Mutex<HashMap<K, Backoff>>,
}

impl<K: Clone + Eq + Hash> Backoffs<K> {
    /// No series yet.
    pub fn new(policy: BackoffPolicy) -> Self {
        Self {
            policy,
            series: Mutex::default(),
        }
    }

    /// How long to wait after this failure of `key`.
    pub fn next_delay(&self, key: &K) -> Duration {
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        series
            .entry(key.clone())
            .or_insert_with(|| self.policy.start())
            .next_delay()
    }

    /// `key` is well again, or gone.
    pub fn reset(&self, key: &K) {
        self.series
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: BackoffPolicy = BackoffPolicy {
        min: Duration::from_secs(1),
        max: Duration::from_mins(5),
    };

    #[test]
    fn delays_grow_to_the_longest_and_never_beyond() {
        let mut series = POLICY.start();
        let delays: Vec<_> = (0..40).map(|_| series.next_delay()).collect();
        assert!(
            delays[0] >= POLICY.min && delays[0] <= POLICY.min * 2,
            "{:?}",
            delays[0]
        );
        assert!(
            delays[5] >= POLICY.min * 32 && delays[5] <= POLICY.min * 64,
            "{:?}",
            delays[5]
        );
        assert!(
            delays.iter().all(|delay| *delay <= POLICY.max),
            "{delays:?}"
        );
        assert!(
            delays[10..].iter().all(|delay| *delay >= POLICY.max / 2),
            "{delays:?}"
        );
        assert!(
            delays[10..].windows(2).any(|pair| pair[0] != pair[1]),
            "the longest delays are drawn too"
        );
    }

    #[test]
    fn a_narrow_policy_is_kept_to() {
        let second = Duration::from_secs(1);
        for (min, max) in [(second, second), (second, second * 3 / 2)] {
            let mut series = BackoffPolicy { min, max }.start();
            assert!(
                (0..9)
                    .map(|_| series.next_delay())
                    .all(|delay| delay >= min && delay <= max)
            );
        }
    }

    #[test]
    fn a_reset_starts_again() {
        let backoffs = Backoffs::new(POLICY);
        for _ in 0..10 {
            backoffs.next_delay(&"a");
        }
        backoffs.reset(&"a");
        assert!(backoffs.next_delay(&"a") <= POLICY.min * 2);
    }
}
