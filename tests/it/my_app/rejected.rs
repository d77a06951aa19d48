//! Pods that the apiserver rejects: the status quotes the apiserver, no hot loop, and the app is ready once the
//! apiserver accepts the Pod.

use k8s_openapi::api::core::v1::{Namespace, ResourceQuota};
use kube::Api;
use kube::api::{Patch, PatchParams};
use qm_api::MyApp;
use serde_json::json;

use super::reason_and_message;
use crate::support::{Bed, Operator, SOON, Settings};

async fn label(bed: &Bed, profile: &str) {
    let patch =
        json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": profile } } });
    let namespaces: Api<Namespace> = Api::all(bed.client.clone());
    namespaces
        .patch(
            &bed.namespace,
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .await
        .unwrap();
}

#[tokio::test]
async fn restricted_profile_accepts_the_pod_unless_baseline_is_set() {
    let bed = Bed::shared("apps").await;
    label(&bed, "restricted").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.app("web", json!({ "image": "nginx:latest", "banner": "hello" }))
        .await;
    let pod = bed.app_runs("web").await;
    assert_eq!(
        pod.spec.unwrap().automount_service_account_token,
        Some(false),
        "no token of the namespace's account"
    );
    bed.app(
        "root",
        json!({ "image": "nginx:latest", "podSecurity": "Baseline" }),
    )
    .await;
    let refused = |app: &MyApp| {
        reason_and_message(app)
            .1
            .contains("violates PodSecurity \"restricted")
    };
    bed.until("root", "reports it", refused).await;
    let message = bed.app_has_reason("root", "Forbidden").await;
    assert_eq!(
        bed.event("root", "Forbidden")
            .await
            .chars()
            .take(20)
            .collect::<String>(),
        message.chars().take(20).collect::<String>()
    );
    assert!(bed.pod("root").await.is_none());
    label(&bed, "baseline").await;
    bed.app_runs("root").await;
    bed.event("root", "Ready").await;
}

/// The apiserver would reject the Pod that is to replace the running one, which therefore stays.
#[tokio::test]
async fn rejected_replacement_keeps_the_pod() {
    let bed = Bed::shared("apps").await;
    label(&bed, "restricted").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.app("web", json!({ "image": "nginx:1" })).await;
    let pod = bed.app_runs("web").await;
    let spec = json!({ "spec": { "podSecurity": "Baseline" } });
    bed.patch::<MyApp>("web", spec).await;
    let message = bed.app_has_reason("web", "Forbidden").await;
    assert!(message.contains("violates PodSecurity"), "{message}");
    assert_eq!(bed.pod("web").await.unwrap().metadata.uid, pod.metadata.uid);

    let spec = json!({ "spec": { "podSecurity": null } });
    bed.patch::<MyApp>("web", spec).await;
    assert_eq!(bed.app_runs("web").await.metadata.uid, pod.metadata.uid);
    bed.patch::<MyApp>("web", json!({ "spec": { "image": "nginx:2" } }))
        .await;
    bed.app_runs_again("web", &pod).await;
}

/// The quota counts the old Pod, too.
#[tokio::test]
async fn pod_is_replaced_within_a_full_quota() {
    let bed = Bed::shared("apps").await;
    bed.accepts_pods().await;
    let quota = json!({ "spec": { "hard": { "pods": "1" } } });
    bed.create::<ResourceQuota>("one", quota).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.app("web", json!({ "image": "nginx:1" })).await;
    let pod = bed.app_runs("web").await;
    let is_full =
        |quota: &ResourceQuota| serde_json::to_value(&quota.status).unwrap()["used"]["pods"] == "1";
    bed.until("one", "is full", is_full).await;
    bed.patch::<MyApp>("web", json!({ "spec": { "image": "nginx:2" } }))
        .await;
    bed.app_runs_again("web", &pod).await;
}

#[tokio::test]
async fn exceeded_quota_is_retried_with_backoff() {
    let bed = Bed::shared("apps").await;
    bed.accepts_pods().await;
    let quota: ResourceQuota = bed
        .create("none", json!({ "spec": { "hard": { "pods": "0" } } }))
        .await;
    assert!(quota.spec.is_some());
    bed.until("none", "is in force", |quota: &ResourceQuota| {
        quota.status.as_ref().is_some_and(|s| s.hard.is_some())
    })
    .await;
    let since = bed.plane.audit().mark().await.unwrap();
    // The users' defaults: retries after 1 s, 2 s, 4 s ...
    let settings = Settings::default()
        .flag("--backoff-min=1s")
        .flag("--backoff-max=5m");
    let _operator = Operator::start(&bed, settings).await;
    let began = std::time::Instant::now();
    bed.app("web", json!({ "image": "nginx" })).await;
    let message = bed.app_has_reason("web", "QuotaExceeded").await;
    assert!(message.contains("exceeded quota: none"), "{message}");
    bed.marker("marker").await;
    let requests = bed.requests(since).await;
    // A delay may be half as long, because of its jitter.
    let most = 2 + usize::try_from(began.elapsed().as_secs()).unwrap();
    assert!(
        requests["create pods web-pod"] <= most && requests["patch myapps/status web"] == 1,
        "{requests:?}"
    );

    // A user who fixes the problem need not wait for the next retry.
    bed.patch::<ResourceQuota>("none", json!({ "spec": { "hard": { "pods": "5" } } }))
        .await;
    let raised =
        |quota: &ResourceQuota| serde_json::to_value(&quota.status).unwrap()["hard"]["pods"] == "5";
    bed.until("none", "is raised", raised).await;
    let mut asks = 0;
    testbed::wait::until("it runs", SOON, async || {
        asks += 1;
        let at = json!({ "metadata": { "annotations": { "quartermaster.dev/requested-at": asks.to_string() } } });
        bed.patch::<MyApp>("web", at).await;
        Ok(bed.pod("web").await)
    })
    .await
    .unwrap();
    bed.app_runs("web").await;
}
