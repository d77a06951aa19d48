//! The end of a process that leads: no pass begins any more, and what is under way comes to rest.

use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;

/// Runs the passes until `stop`, and on until `rest` has come.
pub async fn run(
    controllers: Vec<BoxFuture<'static, ()>>,
    stop: CancellationToken,
    drained: impl Future<Output = ()>,
) {
    // Each controller runs in a task of its own, because the task that renews the lease polls this future.
    let mut running = JoinSet::new();
    for controller in controllers {
        running.spawn(controller);
    }
    stop.cancelled().await;
    info!("draining");
    drained.await;
}

/// Drains within the time `drain`: first the work of the controllers outside reconciles, whose results running reconciles still
/// record, then the running reconciles; no other begins.
pub async fn drain(
    draining: CancellationToken,
    drains: Vec<BoxFuture<'static, ()>>,
    reconciles: TaskTracker,
    timeout: Duration,
) {
    draining.cancel();
    let drained = async {
        join_all(drains).await;
        reconciles.close();
        reconciles.wait().await;
    };
    let _ = tokio::time::timeout(timeout, drained).await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use futures::FutureExt;
    use tokio::time::Instant;

    use super::*;

    const TIMEOUT: Duration = Duration::from_millis(500);

    #[tokio::test(start_paused = true)]
    async fn a_pass_that_runs_is_waited_for_when_nothing_is_in_the_air() {
        let (draining, reconciles) = (CancellationToken::new(), TaskTracker::new());
        let reconcile = reconciles.token();
        let draining_task = tokio::spawn(drain(
            draining.clone(),
            Vec::new(),
            reconciles.clone(),
            TIMEOUT,
        ));
        draining.cancelled().await;
        tokio::time::sleep(TIMEOUT / 2).await;
        assert!(!draining_task.is_finished() && reconciles.is_closed());
        let ended = Instant::now();
        drop(reconcile);
        draining_task.await.unwrap();
        assert_eq!(ended.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_is_waited_for_longer_than_a_moment() {
        let began = Instant::now();
        let reconciles = TaskTracker::new();
        let _reconcile = reconciles.token();
        drain(CancellationToken::new(), Vec::new(), reconciles, TIMEOUT).await;
        let hangs = vec![std::future::pending().boxed()];
        drain(CancellationToken::new(), hangs, TaskTracker::new(), TIMEOUT).await;
        assert_eq!(began.elapsed(), TIMEOUT * 2);
    }
}
