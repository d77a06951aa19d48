//! The operator is killed at each of its writes.

use std::fmt::Debug;
use std::sync::Arc;

use serde_json::Value;
use testbed::proxy::{Fault, Injection, Match, Point, Proxy, Then, Times};
use tokio::sync::{Notify, watch};

use super::{Bed, Operator, Settings};

/// Calls `run`, which kills the operator at a write, for one write after the other and for each of these points in
/// parallel, until no further write happens. The end state must equal the undisturbed one. `run` returns whether the
/// write happened, and the end state. Returns the number of writes for each point.
pub async fn kill_at_each_write<P: Copy + Debug>(
    points: &[P],
    run: impl AsyncFn(P, u64) -> (bool, Value),
) -> Vec<u64> {
    let (_, undisturbed) = run(points[0], u64::MAX).await;
    let (run, undisturbed) = (&run, &undisturbed);
    let kills = points.iter().map(|point| async move {
        let mut write = 1;
        loop {
            let (killed, state) = run(*point, write).await;
            assert_eq!(state, *undisturbed, "killed at write {write}, {point:?}");
            if !killed {
                break write - 1;
            }
            write += 1;
        }
    });
    futures::future::join_all(kills).await
}

/// A trap that kills the operator at one request.
pub struct Trap {
    injection: Injection,
    /// True once the request is at the trap. A request that another kill cuts before may never be.
    reached: watch::Sender<bool>,
    dead: Arc<Notify>,
}

impl Trap {
    /// Sets a trap for the request of this number (the first is 1) among those that match.
    pub fn set(proxy: &Proxy, requests: Match, point: Point, number: u64) -> Self {
        let (reached, dead) = (watch::Sender::new(false), Arc::new(Notify::new()));
        let hook = {
            let (reached, dead) = (reached.clone(), Arc::clone(&dead));
            Fault::hook(point, move |_| {
                let (reached, dead) = (reached.clone(), Arc::clone(&dead));
                async move {
                    reached.send_replace(true);
                    dead.notified().await;
                    Then::Cut
                }
            })
        };
        Self {
            injection: proxy.inject(requests, Times::Nth(number), hook),
            reached,
            dead,
        }
    }

    /// Returns whether the request came.
    pub fn was_reached(&self) -> bool {
        *self.reached.borrow()
    }

    /// Waits for the request.
    pub async fn reached(&self) {
        let mut reached = self.reached.subscribe();
        reached.wait_for(|reached| *reached).await.unwrap();
    }

    /// Kills the operator once it sends that request.
    pub async fn spring(&self, operator: &mut Operator) {
        self.reached().await;
        operator.kill();
        self.dead.notify_one();
    }
}

/// Plays `scene` with an operator of these settings that is killed at matching write number `write`, and restarted.
/// Returns whether the write happened, and the scene's result.
pub async fn kill_at_write<T>(
    bed: &Bed,
    settings: Settings,
    writes: Match,
    point: Point,
    write: u64,
    scene: impl Future<Output = T>,
) -> (bool, T) {
    let (proxy, file) = bed.through_proxy().await;
    let trap = Trap::set(&proxy, writes, point, write);
    let operator = Operator::launch(bed, settings.kubeconfig(file)).await;
    let result = restart_during(
        operator,
        async |operator| trap.spring(operator).await,
        scene,
    )
    .await;
    (trap.was_reached(), result)
}

/// Plays `scene` with an operator that `kill` kills and the function restarts. Returns the scene's result.
pub async fn restart_during<T>(
    mut operator: Operator,
    kill: impl AsyncFnOnce(&mut Operator),
    scene: impl Future<Output = T>,
) -> T {
    let restart = async {
        kill(&mut operator).await;
        operator.restart();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = scene => result,
        () = restart => unreachable!(),
    }
}
