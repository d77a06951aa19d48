//! Backoff: growing delays with jitter, for each object.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// First and longest delay of an exponential backoff.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackoffPolicy {
    /// First delay.
    pub min: Duration,
    /// Longest delay.
    pub max: Duration,
}

impl BackoffPolicy {
    /// Starts a backoff. Each delay is random, so that objects that failed together do not retry together. The range
    /// doubles each time: first from `min` to twice `min`, in the end from half of `max` to `max`.
    pub fn start(self) -> Backoff {
        Backoff {
            policy: self,
            least: self.min,
        }
    }
}

/// Backoff of one series of failures.
#[derive(Clone, Debug)]
pub struct Backoff {
    policy: BackoffPolicy,
    /// Lower bound of the next delay; the upper bound is twice as long.
    least: Duration,
}

impl Backoff {
    /// Returns the next delay. Delays grow up to the maximum.
    pub fn next_delay(&mut self) -> Duration {
        let BackoffPolicy { min, max } = self.policy;
        let least = self.least;
        self.least = (least * 2).min(max / 2).max(min);
        rand::random_range(least..=(least * 2).min(max).max(least))
    }
}

/// Backoff of each key whose last attempt failed.
#[derive(Debug)]
pub struct Backoffs<K> {
    policy: BackoffPolicy,
    backoffs: Mutex<HashMap<K, Backoff>>,
}

impl<K: Clone + Eq + Hash> Backoffs<K> {
    /// Creates an empty set; each key starts a backoff of this policy at its first failure.
    pub fn new(policy: BackoffPolicy) -> Self {
        Self {
            policy,
            backoffs: Mutex::default(),
        }
    }

    /// Returns the delay after this failure of `key`.
    pub fn next_delay(&self, key: &K) -> Duration {
        let mut backoffs = self.backoffs.lock().unwrap_or_else(PoisonError::into_inner);
        backoffs
            .entry(key.clone())
            .or_insert_with(|| self.policy.start())
            .next_delay()
    }

    /// Resets the backoff of `key` after a success or a deletion.
    pub fn reset(&self, key: &K) {
        self.backoffs
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
    fn delays_grow_up_to_the_maximum() {
        let mut backoff = POLICY.start();
        let delays: Vec<_> = (0..40).map(|_| backoff.next_delay()).collect();
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
    fn lasting_failure_costs_at_most_31_attempts_an_hour() {
        let timings = crate::settings::RuntimeTimings::default();
        let (min, max) = (timings.backoff_min, timings.backoff_max);
        let mut backoff = BackoffPolicy { min, max }.start();
        let (mut attempts, mut elapsed) = (0, Duration::ZERO);
        while elapsed < Duration::from_hours(1) {
            attempts += 1;
            elapsed += backoff.least;
            backoff.next_delay();
        }
        assert_eq!(attempts, 31);
    }

    #[test]
    fn delays_stay_within_a_narrow_policy() {
        let second = Duration::from_secs(1);
        for (min, max) in [(second, second), (second, second * 3 / 2)] {
            let mut backoff = BackoffPolicy { min, max }.start();
            assert!(
                (0..9)
                    .map(|_| backoff.next_delay())
                    .all(|delay| delay >= min && delay <= max)
            );
        }
    }

    #[test]
    fn delays_start_again_after_a_reset() {
        let backoffs = Backoffs::new(POLICY);
        for _ in 0..10 {
            backoffs.next_delay(&"a");
        }
        backoffs.reset(&"a");
        assert!(backoffs.next_delay(&"a") <= POLICY.min * 2);
    }
}
