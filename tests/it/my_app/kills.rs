//! The operator is killed at each of its writes, loses answers, and is told nothing: there is one Pod, as it is wanted, and it
//! says so.

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use qm_api::MyApp;
use serde_json::{Value, json};
use testbed::proxy::{Fault, Lost, Match, Point, Times, Verb};

use super::{by_hand, running, says};
use crate::support::{Bed, Operator, SOON, Settings, at_each_write, killed_at};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_write_changes_nothing() {
    // Before a write is as good as after the one before.
    let points = [Point::AfterApplied, Point::AfterAnswer];
    let writes = at_each_write(&points, run).await;
    // At least: a Pod, that it is there, that it goes, another one, that it is there.
    assert!(
        writes.iter().all(|writes| *writes >= 5),
        "{writes:?} writes"
    );
    tokio::join!(answers_that_are_lost(), a_watch_that_is_silent());
}

/// A `MyApp` is made, and given another image, while the operator is killed at that write. Says whether it came to that, and
/// how all of it ends.
async fn run(point: Point, write: u64) -> (bool, Value) {
    let bed = by_hand("kills").await;
    let changes = async {
        bed.app("web", json!({ "image": "nginx:1" })).await;
        bed.app_says("web", "PodPending").await;
        bed.patch::<MyApp>("web", json!({ "spec": { "image": "nginx:2" } }))
            .await;
        bed.app_says("web", "PodPending").await;
    };
    // Events are best effort.
    let writes = Match::writes().except_resource("events");
    let (killed, ()) = killed_at(&bed, Settings::default(), writes, point, write, changes).await;
    (killed, end_state(&bed).await)
}

/// Without names, times and versions.
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
    json!({ "pods": specs, "says": says(&app), "status": [status.pod_name, status.phase, status.observed_generation] })
}

/// The Pod is made, and nobody learns of it: it is found, and not made again.
async fn answers_that_are_lost() {
    let bed = by_hand("lost").await;
    let (proxy, file) = bed.through_proxy().await;
    let lost = proxy.inject(
        Match::verb(Verb::Create).resource("pods"),
        Times::First(1),
        Fault::LoseAnswer(Lost::Cut),
    );
    let _operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    bed.app("web", json!({ "image": "nginx" })).await;
    bed.app_says("web", "PodPending").await;
    assert_eq!(lost.hits(), 1);
    let pods = bed
        .api::<Pod>()
        .list(&ListParams::default())
        .await
        .unwrap()
        .items;
    assert_eq!(pods.len(), 1);
}

/// Nothing is believed for ever, and nothing is done twice because nobody says that it is done.
async fn a_watch_that_is_silent() {
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
    bed.app_says("web", "PodPending").await;
    let first = bed.pod("web").await.unwrap();
    let hidden = proxy.hide(Match::watch("pods"), |event| event.kind == "DELETED");
    bed.delete::<Pod>("web-pod").await;
    let second = bed.another("web", &first).await;
    hidden.wait_for_hits(1, SOON).await.unwrap();
    assert_eq!(hidden.hits(), 1);
    proxy.behave();

    bed.app_says("web", "PodPending").await;
    proxy.freeze(Match::watch("pods"));
    bed.pod_is("web", running(true)).await;
    bed.patch::<MyApp>("web", json!({ "spec": { "image": "nginx:2" } }))
        .await;
    let third = bed.another("web", &second).await;
    assert_eq!(
        third.spec.unwrap().containers[0].image.as_deref(),
        Some("nginx:2")
    );
    bed.app_says("web", "PodPending").await;
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
        "{deletes}: in the state that was shown, and in the one that is there"
    );
}
