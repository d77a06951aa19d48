//! The end of a process that leads: no pass begins any more, and what is under way comes to rest.

use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

/// Runs the passes until `stop`, and on until `rest` has come.
pub async fn work(
    passes: Vec<BoxFuture<'static, ()>>,
    stop: CancellationToken,
    rest: impl Future<Output = ()>,
) {
    // Each controller runs in a task of its own, because the task that renews the lease polls this future.
    let mut running = JoinSet::new();
    for passes in passes {
        running.spawn(passes);
    }
    stop.cancelled().await;
    info!("draining");
    rest.await;
}

/// Drains within the time `drain`: first the work of the controllers outside reconciles, whose results running reconciles still
/// record, then the running reconciles; no other begins.
pub async fn rest(
    draining: CancellationToken,
    landings: Vec<BoxFuture<'static, ()>>,
    under_way: TaskTracker,
    drain: Duration,
) {
    draining.cancel();
    let rest = async {
        join_all(landings).await;
        under_way.close();
        under_way.wait().await;
    };
    let _ = tokio::time::timeout(drain, rest).await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use futures::FutureExt;
    use tokio::time::Instant;

    use super::*;

    const DRAIN: Duration = Duration::from_millis(500);

    #[tokio::test(start_paused = true)]
    async fn a_pass_that_runs_is_waited_for_when_nothing_is_in_the_air() {
        let (draining, under_way) = (CancellationToken::new(), TaskTracker::new());
        let pass = under_way.token();
        let resting = tokio::spawn(rest(draining.clone(), Vec::new(), under_way.clone(), DRAIN));
        draining.cancelled().await;
        tokio::time::sleep(DRAIN / 2).await;
        assert!(!resting.is_finished() && under_way.is_closed());
        let ended = Instant::now();
        drop(pass);
        resting.await.unwrap();
        assert_eq!(ended.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_waited_for_longer_than_a_moment() {
        let began = Instant::now();
        let under_way = TaskTracker::new();
        let _pass = under_way.token();
        rest(CancellationToken::new(), Vec::new(), under_way, DRAIN).await;
        let hangs = vec![std::future::pending().boxed()];
        rest(CancellationToken::new(), hangs, TaskTracker::new(), DRAIN).await;
        assert_eq!(began.elapsed(), DRAIN * 2);
    }
}
