//! The operator loses answers, and its watches stall: the one desired Pod exists, and the status says so. Faults at each
//! write: `crate::every_write`.

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use qm_api::MyApp;
use serde_json::json;
use testbed::proxy::{Fault, Lost, Match, Times, Verb};

use super::{by_hand, running};
use crate::support::{Operator, SOON, Settings};

/// The Pod is created and the answer is lost: the operator finds the Pod, and does not create it again.
#[tokio::test]
async fn pod_with_lost_answer_is_found() {
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
#[tokio::test]
async fn silent_watch_hides_nothing_for_ever() {
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
