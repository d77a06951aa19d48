//! Rate limits of AWS calls.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use tokio::sync::Mutex;

use super::action::AwsAction;

/// Burst and period of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Number of calls without delay.
    pub burst: NonZeroU32,
    /// Interval between further calls.
    pub period: Duration,
}

/// Half of AWS's bucket for `Describe*` calls of an account and region, which has 40 tokens and gains 10 a second
/// (<https://docs.aws.amazon.com/elasticloadbalancing/latest/userguide/elb-api-throttling.html>): other clients use the
/// account too.
pub(crate) const READ_BURST: NonZeroU32 = NonZeroU32::new(20).unwrap();
/// Changing calls have a smaller bucket.
pub(crate) const WRITE_BURST: NonZeroU32 = NonZeroU32::new(10).unwrap();

/// Delays calls so that AWS throttles none of them, however many `MyIngress` there are.
pub(super) struct AwsRateLimiter {
    reads: FairLimiter,
    writes: FairLimiter,
}

/// Rate limiter that serves callers in order of arrival; governor's limiter serves whichever task wakes first.
struct FairLimiter {
    limiter: DefaultDirectRateLimiter,
    queue: Mutex<()>,
}

impl AwsRateLimiter {
    pub(super) fn new(reads: Rate, writes: Rate) -> Self {
        let fair = |rate| FairLimiter {
            limiter: limiter(rate),
            queue: Mutex::new(()),
        };
        Self {
            reads: fair(reads),
            writes: fair(writes),
        }
    }

    /// Waits until the rate limit allows the call.
    pub(super) async fn acquire(&self, action: AwsAction) {
        let fair = if action.writes() {
            &self.writes
        } else {
            &self.reads
        };
        let _first = fair.queue.lock().await;
        fair.limiter.until_ready().await;
    }
}

fn limiter(Rate { burst, period }: Rate) -> DefaultDirectRateLimiter {
    // Only a period of zero gives `None`.
    let quota = Quota::with_period(period).unwrap_or(Quota::per_second(burst));
    RateLimiter::direct(quota.allow_burst(burst))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AwsTimings;

    /// AWS's bucket has 40 tokens and gains 10 a second.
    #[test]
    fn rates_stay_below_half_of_the_aws_limits() {
        let times = AwsTimings::default();
        assert!(READ_BURST.get() <= 20 && times.read_period >= Duration::from_millis(200));
        assert!(WRITE_BURST <= READ_BURST && times.write_period >= times.read_period);
    }

    #[tokio::test]
    async fn empty_bucket_delays_calls() {
        let rate = Rate {
            burst: READ_BURST,
            period: Duration::from_millis(100),
        };
        let rate_limit = AwsRateLimiter::new(rate, rate);
        let began = std::time::Instant::now();
        for _ in 0..READ_BURST.get() + 2 {
            rate_limit.acquire(AwsAction::DescribeTags).await;
        }
        assert!(
            began.elapsed() >= rate.period,
            "two calls more than the burst"
        );
        rate_limit.acquire(AwsAction::AddTags).await;
    }

    #[tokio::test]
    async fn callers_are_served_in_order_of_arrival() {
        let rate = Rate {
            burst: NonZeroU32::MIN,
            period: Duration::from_millis(500),
        };
        let rate_limit = AwsRateLimiter::new(rate, rate);
        rate_limit.acquire(AwsAction::DescribeTags).await;
        let mut first = std::pin::pin!(rate_limit.acquire(AwsAction::DescribeTags));
        assert!(futures::poll!(&mut first).is_pending());
        // A token is available, but the first caller has not woken yet.
        std::thread::sleep(rate.period * 2);
        let mut second = std::pin::pin!(rate_limit.acquire(AwsAction::DescribeTags));
        assert!(futures::poll!(&mut second).is_pending());
        first.await;
        second.await;
    }
}
