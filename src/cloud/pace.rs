//! How fast AWS is asked.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

use super::action::Action;

/// Half of what AWS gives an account and region for its `Describe*` calls, a bucket of 40 that gains 10 a second
/// (<https://docs.aws.amazon.com/elasticloadbalancing/latest/userguide/elb-api-throttling.html>): others live there too.
const READS: (NonZeroU32, Duration) = (NonZeroU32::new(20).unwrap(), Duration::from_millis(200));
/// What changes something has a smaller bucket.
const WRITES: (NonZeroU32, Duration) = (NonZeroU32::new(10).unwrap(), Duration::from_millis(500));

/// Has callers wait so that AWS throttles none of them, however many `MyIngress` there are.
pub(super) struct Pace {
    reads: DefaultDirectRateLimiter,
    writes: DefaultDirectRateLimiter,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self { reads: limiter(READS), writes: limiter(WRITES) }
    }

    /// Returns once it is this call's turn.
    pub(super) async fn turn(&self, action: Action) {
        if action.writes() {
            self.writes.until_ready().await;
        } else {
            self.reads.until_ready().await;
        }
    }
}

fn limiter((burst, period): (NonZeroU32, Duration)) -> DefaultDirectRateLimiter {
    // None only for a period of zero.
    let quota = Quota::with_period(period).unwrap_or(Quota::per_second(burst));
    RateLimiter::direct(quota.allow_burst(burst))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What AWS lets through, in the same time: a bucket of 40 that gains 10 a second.
    #[test]
    fn we_stay_below_half_of_what_aws_lets_through() {
        let (burst, period) = READS;
        assert!(burst.get() <= 20 && period >= Duration::from_millis(200));
        let (burst, period) = WRITES;
        assert!(burst.get() <= 10 && period >= Duration::from_millis(500));
    }

    #[tokio::test]
    async fn a_bucket_that_is_empty_is_waited_for() {
        let pace = Pace::new();
        let burst = READS.0.get();
        let began = std::time::Instant::now();
        for _ in 0..burst + 2 {
            pace.turn(Action::DescribeTags).await;
        }
        assert!(began.elapsed() >= READS.1, "two more than there are at once");
        pace.turn(Action::AddTags).await;
    }
}
