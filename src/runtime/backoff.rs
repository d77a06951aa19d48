//! Growing, jittered delays, one series an object.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};

/// The first and the longest delay of a series that doubles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The first delay.
    pub min: Duration,
    /// The longest delay.
    pub max: Duration,
}

impl Policy {
    /// A series by this policy. Each delay is lengthened by up to the first one, at random, so that what failed
    /// together does not come back together.
    pub fn series(self) -> Series {
        Series(
            ExponentialBuilder::default()
                .with_min_delay(self.min)
                .with_max_delay(self.max)
                .with_jitter()
                .without_max_times()
                .build(),
            self.max,
        )
    }
}

/// Delays that grow.
#[derive(Debug)]
pub struct Series(ExponentialBackoff, Duration);

impl Series {
    /// The next delay.
    pub fn next_delay(&mut self) -> Duration {
        self.0.next().unwrap_or(self.1)
    }
}

/// A series for each key that failed last time.
#[derive(Debug)]
pub struct Backoffs<K> {
    policy: Policy,
    series: Mutex<HashMap<K, Series>>,
}

impl<K: Clone + Eq + Hash> Backoffs<K> {
    /// No series yet.
    pub fn new(policy: Policy) -> Self {
        Self { policy, series: Mutex::default() }
    }

    /// How long to wait after this failure of `key`.
    pub fn next_delay(&self, key: &K) -> Duration {
        let mut series = self.series.lock().unwrap_or_else(PoisonError::into_inner);
        series.entry(key.clone()).or_insert_with(|| self.policy.series()).next_delay()
    }

    /// `key` is well again, or gone.
    pub fn reset(&self, key: &K) {
        self.series.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: Policy = Policy { min: Duration::from_secs(1), max: Duration::from_mins(5) };

    #[test]
    fn delays_grow_to_the_longest_and_stay_there() {
        let mut series = POLICY.series();
        let delays: Vec<_> = (0..40).map(|_| series.next_delay()).collect();
        assert!(delays[0] >= POLICY.min && delays[0] <= POLICY.min * 2, "{:?}", delays[0]);
        assert!(delays[5] > delays[0]);
        assert!(delays.iter().all(|delay| *delay <= POLICY.max * 2), "{delays:?}");
        assert!(delays[39] >= POLICY.max);
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
