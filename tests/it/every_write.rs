//! A fault at each write of the operator: the part of `make torture` that `make test` runs. `TrackedFieldSet` and
//! `MyIngress` have kill tests of their own, which cover each write.
//!
//! Each write takes one fault, in turn: the operator is killed once the write is applied, or once it has the
//! answer, or the answer is lost. `make torture` adds the other faults, every combination, Events and the
//! status of `AppService`s.

use futures::{StreamExt as _, stream};
use testbed::proxy::ApiRequest;
use tokio::sync::Semaphore;

use crate::torture::{Case, Fault, Kind, Place, Setting, observe, run};

/// Number of cases that run side by side for each kind.
const SIDE_BY_SIDE: usize = 2;

/// Time in which nothing may be written after a fault. A slow machine only waits longer for such a time.
const REST: std::time::Duration = std::time::Duration::from_secs(1);

const FAULTS: [Fault; 3] = [Fault::KillApplied, Fault::KillAnswered, Fault::LostAnswer];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn contact_point_survives_faults_at_writes() {
    survives(Kind::ContactPoint, 14).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn config_map_sync_survives_faults_at_writes() {
    survives(Kind::ConfigMapSync, 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn app_service_survives_faults_at_writes_of_children() {
    survives(Kind::AppService, 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn my_app_survives_faults_at_writes() {
    survives(Kind::MyApp, 14).await;
}

/// Returns whether the fixed part counts a write.
fn is_counted(request: &ApiRequest) -> bool {
    request.resource != "events" && request.resource != "appservices"
}

/// Plays the workload with a fault at every write, until a run has fewer requests. There are at least this many faults.
async fn survives(kind: Kind, at_least: usize) {
    let active = Semaphore::new(SIDE_BY_SIDE);
    let setting = Setting {
        active: &active,
        rest: REST,
        counted: is_counted,
        program: None,
        failure_log: None,
    };
    let reference = Box::pin(observe(kind, &setting)).await.unwrap();
    let cases = (1..)
        .zip(FAULTS.into_iter().cycle())
        .map(|(number, fault)| Case {
            kind,
            place: Place::Write(number),
            fault,
        });
    let runs = cases.map(|case| {
        let (reference, setting) = (&reference, &setting);
        Box::pin(async move {
            let result = run(case.clone(), reference, setting).await;
            result.unwrap_or_else(|error| panic!("{case}: {error}"))
        })
    });
    let runs = stream::iter(runs).buffered(SIDE_BY_SIDE);
    let struck = runs
        .take_while(|report| std::future::ready(report.struck))
        .count();
    let struck = Box::pin(struck).await;
    assert!(struck >= at_least, "{struck} faults");
}
