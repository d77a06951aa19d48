//! A fault at each write of the operator: the part of `make torture` that `make test` runs.
//!
//! Each workload runs three times, each time with another fault: the operator is killed once the write is applied, or
//! once it has the answer, or the answer is lost. Run 1 meets its fault at the first write and every third one after
//! it, run 2 begins at the second write, and run 3 at the third. `make torture` adds the other faults, every
//! combination, one fault alone in each run, Events and the status of `AppService`s.

use futures::future::join_all;
use rstest::rstest;
use testbed::proxy::ApiRequest;
use tokio::sync::Semaphore;

use crate::torture::{Case, Fault, Kind, Place, RunOptions, observe, run};

/// Number of runs of each workload, and the distance between two faults of a run, in writes.
const RUNS: usize = FAULTS.len();

/// Permits for the concurrent runs of all workloads: more would only slow down each other.
static ACTIVE: Semaphore = Semaphore::const_new(6);

/// Time in which nothing may be written after a fault: three times the longest backoff, so that a write that is retried
/// for ever shows. A slow machine only waits longer for such a time.
const REST: std::time::Duration = std::time::Duration::from_secs(3);

const FAULTS: [Fault; 3] = [Fault::KillApplied, Fault::KillAnswered, Fault::LostAnswer];

/// Returns whether the fixed part counts a write.
fn is_counted(request: &ApiRequest) -> bool {
    request.resource != "events" && request.resource != "appservices"
}

/// Runs the workload with faults, of which at least this many must occur.
#[rstest]
#[case::contact_point(Kind::ContactPoint, 14)]
#[case::tracked_field_set(Kind::TrackedFieldSet, 16)]
#[case::config_map_sync(Kind::ConfigMapSync, 20)]
#[case::app_service(Kind::AppService, 20)]
#[case::my_app(Kind::MyApp, 14)]
#[case::my_ingress(Kind::MyIngress, 6)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kind_survives_faults_at_writes(#[case] kind: Kind, #[case] at_least: usize) {
    let options = RunOptions {
        active: &ACTIVE,
        rest: REST,
        counted: is_counted,
        program: None,
        failure_log: None,
    };
    let reference = Box::pin(observe(kind, &options)).await.unwrap();
    // Faults repeat writes.
    let last = 2 * reference.writes;
    let runs = (0..RUNS).map(|first| {
        let case = |number| Case {
            kind,
            place: Place::Write(u64::try_from(number).unwrap()),
            fault: FAULTS[first],
        };
        let cases: Vec<_> = (first + 1..=last).step_by(RUNS).map(case).collect();
        let name = format!("{}, and again after every {RUNS} writes", cases[0]);
        let (reference, options) = (&reference, &options);
        Box::pin(async move {
            let result = run(kind, cases, reference, options).await;
            let report = result.unwrap_or_else(|error| panic!("{name}: {error}"));
            report.struck
        })
    });
    let struck: usize = join_all(runs).await.into_iter().sum();
    assert!(struck >= at_least, "{struck} faults");
}
