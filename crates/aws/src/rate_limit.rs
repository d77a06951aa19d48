//! How fast AWS is asked.

use std::num::NonZeroU32;
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use tokio::sync::Mutex;

use super::action::AwsAction;

/// How many calls are made at once, and how often one is made after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// So many at once.
    pub burst: NonZeroU32,
    /// Then one so often.
    pub period: Duration,
}

/// Half of the bucket that AWS gives an account and region for its `Describe*` calls, which has 40 and gains 10 a second
/// (<https://docs.aws.amazon.com/elasticloadbalancing/latest/userguide/elb-api-throttling.html>): others live there too.
pub const READ_BURST: NonZeroU32 = NonZeroU32::new(20).unwrap();
/// What changes something has a smaller bucket.
pub const WRITE_BURST: NonZeroU32 = NonZeroU32::new(10).unwrap();

/// Has callers wait so that AWS throttles none of them, however many `MyIngress` there are.
pub(super) struct AwsRateLimiter {
    reads: FairLimiter,
    writes: FairLimiter,
}

/// Those who wait are served as they came: a limiter alone lets whoever wakes first go first.
struct FairLimiter {
    limiter: DefaultDirectRateLimiter,
    line: Mutex<()>,
}

impl AwsRateLimiter {
    pub(super) fn new(reads: Rate, writes: Rate) -> Self {
        let turns = |rate| FairLimiter {
            limiter: limiter(rate),
            line: Mutex::new(()),
        };
        Self {
            reads: turns(reads),
            writes: turns(writes),
        }
    }

    /// Returns once it is this call's turn.
    pub(super) async fn turn(&self, action: AwsAction) {
        let turns = if action.writes() {
            &self.writes
        } else {
            &self.reads
        };
        let _first = turns.line.lock().await;
        turns.limiter.until_ready().await;
    }
}

fn limiter(Rate { burst, period }: Rate) -> DefaultDirectRateLimiter {
    // None only for a period of zero.
    let quota = Quota::with_period(period).unwrap_or(Quota::per_second(burst));
    RateLimiter::direct(quota.allow_burst(burst))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Timings;

    /// What AWS lets through, in the same time: a bucket of 40 that gains 10 a second.
    #[test]
    fn we_stay_below_half_of_what_aws_lets_through() {
        let times = Timings::default();
        assert!(READ_BURST.get() <= 20 && times.read_period >= Duration::from_millis(200));
        assert!(WRITE_BURST <= READ_BURST && times.write_period >= times.read_period);
    }

    #[tokio::test]
    async fn a_bucket_that_is_empty_is_waited_for() {
        let rate = Rate {
            burst: READ_BURST,
            period: Duration::from_millis(100),
        };
        let rate_limit = AwsRateLimiter::new(rate, rate);
        let began = std::time::Instant::now();
        for _ in 0..READ_BURST.get() + 2 {
            rate_limit.turn(AwsAction::DescribeTags).await;
        }
        assert!(
            began.elapsed() >= rate.period,
            "two more than there are at once"
        );
        rate_limit.turn(AwsAction::AddTags).await;
    }

    #[tokio::test]
    async fn who_came_first_is_served_first() {
        let rate = Rate {
            burst: NonZeroU32::MIN,
            period: Duration::from_millis(500),
        };
        let rate_limit = AwsRateLimiter::new(rate, rate);
        rate_limit.turn(AwsAction::DescribeTags).await;
        let mut first = std::pin::pin!(rate_limit.turn(AwsAction::DescribeTags));
        assert!(futures::poll!(&mut first).is_pending());
        // There is a turn by now, and who waits for it has not noticed.
        std::thread::sleep(rate.period * 2);
        let mut second = std::pin::pin!(rate_limit.turn(AwsAction::DescribeTags));
        assert!(futures::poll!(&mut second).is_pending());
        first.await;
        second.await;
    }
}
