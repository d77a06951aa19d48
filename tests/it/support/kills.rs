//! The operator is killed at each of its writes.

use std::sync::Arc;

use serde_json::Value;
use testbed::proxy::{Fault, Match, Point, Then, Times};
use tokio::sync::Notify;

use super::{Bed, Operator, Settings};

/// Has `run` be killed at one write after the other, at each of these points side by side, until there is no such write any
/// more: all must end as it does undisturbed. `run` says whether it came to the kill, and how all of it ends. How many writes
/// there were, for each point.
pub async fn at_each_write(points: &[Point], run: impl AsyncFn(Point, u64) -> (bool, Value)) -> Vec<u64> {
    let (_, undisturbed) = run(Point::Before, u64::MAX).await;
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

/// Plays `scene` with an operator that is killed at write number `write` of those that match, and started again. Whether it
/// came to that, and what the scene gives.
pub async fn killed_at<T>(
    bed: &Bed,
    writes: Match,
    point: Point,
    write: u64,
    scene: impl Future<Output = T>,
) -> (bool, T) {
    let (proxy, file) = bed.through_proxy().await;
    let (reached, dead) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let hook = {
        let (reached, dead) = (Arc::clone(&reached), Arc::clone(&dead));
        Fault::hook(point, move |_| {
            let (reached, dead) = (Arc::clone(&reached), Arc::clone(&dead));
            async move {
                reached.notify_one();
                dead.notified().await;
                Then::Cut
            }
        })
    };
    let order = proxy.inject(writes, Times::Nth(write), hook);
    let mut operator = Operator::launch(bed, Settings::default().kubeconfig(file)).await;
    let kill = async {
        reached.notified().await;
        operator.kill();
        dead.notify_one();
        operator.restart();
        std::future::pending::<()>().await;
    };
    let given = tokio::select! {
        given = scene => given,
        () = kill => unreachable!(),
    };
    drop(operator);
    (order.hits() > 0, given)
}
