//! The operator is killed at each of its writes, loses answers, and its watches stall: the one desired Pod exists, and
//! the status says so.

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use qm_api::MyApp;
use serde_json::{Value, json};
use testbed::proxy::{Fault, Lost, Match, Point, Times, Verb};

use super::{by_hand, reason_and_message, running};
use crate::support::{Bed, Operator, SOON, Settings, kill_at_each_write, kill_at_write};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_at_any_write_keeps_the_end_state() {
    // A kill before a write equals a kill after the previous write.
    let points = [Point::AfterApplied, Point::AfterAnswer];
    let writes = kill_at_each_write(&points, run).await;
    // At least: the Pod's creation and its status, its deletion, the other Pod's creation and its status.
    assert!(
        writes.iter().all(|writes| *writes >= 5),
        "{writes:?} writes"
    );
    tokio::join!(run_with_lost_answers(), run_with_a_silent_watch());
}

/// A `MyApp` is created, and gets another image, while the operator is killed at this write. Returns whether the write
/// happened, and the end state.
async fn run(point: Point, write: u64) -> (bool, Value) {
    let bed = by_hand("kills").await;
    let changes = async {
        bed.app("web", json!({ "image": "nginx:1" })).await;
        bed.app_has_reason("web", "PodPending").await;
        bed.patch::<MyApp>("web", json!({ "spec": { "image": "nginx:2" } }))
            .await;
        bed.app_has_reason("web", "PodPending").await;
    };
    // Events are best effort.
    let writes = Match::writes().except_resource("events");
    let settings = Settings::default().flag("--controllers=myapp");
    let (killed, ()) = kill_at_write(&bed, settings, writes, point, write, changes).await;
    (killed, end_state(&bed).await)
}

/// Returns the end state without names, times and versions.
async fn end_state(bed: &Bed) -> Value {
    let pods = bed
        .api::<Pod>()
        .list(&ListParams::default())
        .await
        .unwrap()
        .items;
    let app = bed.api::<MyApp>().get("web").await.unwrap();
    let specs: Vec<_> = pods.iter().map(|pod| json!(pod.spec)).collect();
    let status = app.status.as_ref().unwrap();
    json!({ "pods": specs, "says": reason_and_message(&app), "status": [status.pod_name, status.phase, status.observed_generation] })
}

/// The Pod is created and the answer is lost: the operator finds the Pod, and does not create it again.
async fn run_with_lost_answers() {
    let bed = by_hand("lost").await;
    let (proxy, file) = bed.through_proxy().await;
    let lost = proxy.inject(
        Match::verb(Verb::Create).resource("pods"),
        Times::First(1),
        Fault::LoseAnswer(Lost::Cut),
    );
    let _operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    bed.app("web", json!({ "image": "nginx" })).await;
    bed.app_has_reason("web", "PodPending").await;
    assert_eq!(lost.hits(), 1);
    let pods = bed
        .api::<Pod>()
        .list(&ListParams::default())
        .await
        .unwrap()
        .items;
    assert_eq!(pods.len(), 1);
}

/// The operator does not trust its cache for ever, and repeats no write because of a stalled watch.
async fn run_with_a_silent_watch() {
    let bed = by_hand("silent").await;
    let (proxy, file) = bed.through_proxy().await;
    let _operator = Operator::start(
        &bed,
        Settings::default()
            .kubeconfig(file)
            .flag("--sync-period=1s"),
    )
    .await;
    bed.app("web", json!({ "image": "nginx:1" })).await;
    bed.app_has_reason("web", "PodPending").await;
    let first = bed.pod("web").await.unwrap();
    let hidden = proxy.hide(Match::watch("pods"), |event| event.kind == "DELETED");
    bed.delete::<Pod>("web-pod").await;
    let second = bed.another("web", &first).await;
    hidden.wait_for_hits(1, SOON).await.unwrap();
    assert_eq!(hidden.hits(), 1);
    proxy.behave();

    bed.app_has_reason("web", "PodPending").await;
    proxy.freeze(Match::watch("pods"));
    bed.pod_is("web", running(true)).await;
    bed.patch::<MyApp>("web", json!({ "spec": { "image": "nginx:2" } }))
        .await;
    let third = bed.another("web", &second).await;
    assert_eq!(
        third.spec.unwrap().containers[0].image.as_deref(),
        Some("nginx:2")
    );
    bed.app_has_reason("web", "PodPending").await;
    bed.event("web", "Replaced").await;
    bed.event("web", "Recreated").await;
    assert_eq!(bed.events("web", "Replaced").await.len(), 1);
    let deletes = proxy
        .requests()
        .iter()
        .filter(|seen| seen.request.verb == Verb::Delete)
        .count();
    assert!(
        deletes <= 2,
        "{deletes}: once for the stale state, and once for the present one"
    );
}
