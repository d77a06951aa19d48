//! Shutdown of the leader: work in flight finishes, and then no new reconcile begins.

use std::time::Duration;

use futures::future::{BoxFuture, join_all};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::info;

/// Reconciles, status writes and Events that the shutdown waits for. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct InFlight {
    tracker: TaskTracker,
    closed: CancellationToken,
}

impl InFlight {
    /// Returns a token; the shutdown waits until the token is dropped.
    pub fn token(&self) -> TaskTrackerToken {
        self.tracker.token()
    }

    /// Returns whether no reconcile may begin any more.
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Waits until no reconcile may begin any more.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Lets no reconcile begin any more. Statuses that wait are written at once.
    pub fn close(&self) {
        self.tracker.close();
        self.closed.cancel();
    }

    /// Waits until all tokens are dropped, after [`InFlight::close`].
    pub async fn wait(&self) {
        self.tracker.wait().await;
    }
}

/// Runs the controllers until `stop` is cancelled and `drained` has finished.
pub async fn run(
    controllers: Vec<BoxFuture<'static, ()>>,
    stop: CancellationToken,
    drained: impl Future<Output = ()>,
) {
    // Each controller has its own task, because the task that renews the lease polls this future.
    let mut running = JoinSet::new();
    for controller in controllers {
        running.spawn(controller);
    }
    stop.cancelled().await;
    info!("draining");
    drained.await;
}

/// Waits, for `timeout` at most, first for the controllers' work outside reconciles, whose results reconciles still
/// record. Then no new reconcile begins, and the function waits for the running ones and for unwritten statuses.
pub async fn drain(
    draining: CancellationToken,
    drains: Vec<BoxFuture<'static, ()>>,
    in_flight: InFlight,
    timeout: Duration,
) {
    draining.cancel();
    let drained = async {
        join_all(drains).await;
        in_flight.close();
        in_flight.wait().await;
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
    async fn drain_waits_for_running_reconciles() {
        let (draining, in_flight) = (CancellationToken::new(), InFlight::default());
        let reconcile = in_flight.token();
        let draining_task = tokio::spawn(drain(
            draining.clone(),
            Vec::new(),
            in_flight.clone(),
            TIMEOUT,
        ));
        draining.cancelled().await;
        tokio::time::sleep(TIMEOUT / 2).await;
        assert!(!draining_task.is_finished() && in_flight.is_closed());
        let ended = Instant::now();
        drop(reconcile);
        draining_task.await.unwrap();
        assert_eq!(ended.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn drain_gives_up_after_timeout() {
        let began = Instant::now();
        let in_flight = InFlight::default();
        let _reconcile = in_flight.token();
        drain(CancellationToken::new(), Vec::new(), in_flight, TIMEOUT).await;
        let hangs = vec![std::future::pending().boxed()];
        drain(
            CancellationToken::new(),
            hangs,
            InFlight::default(),
            TIMEOUT,
        )
        .await;
        assert_eq!(began.elapsed(), TIMEOUT * 2);
    }
}
