//! Walk-through of a `MyApp`. The test plays the kubelet.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use qm_api::MyApp;
use serde_json::{Value, json};
use testbed::wait::until;

use super::{Coverage, Walkthrough, assert_pinned, bed};
use crate::support::{Bed, SOON, Settings};

const LABEL: &str = "quartermaster.dev/owner-uid";

/// Waits until the condition `Ready` of the current generation has this reason.
async fn has_reason(bed: &Bed, reason: &str) {
    bed.until("web", reason, |app: &MyApp| {
        app.status.as_ref().is_some_and(|status| {
            status.observed_generation == app.metadata.generation
                && status.conditions[0].reason == reason
        })
    })
    .await;
}

/// Writes the Pod's status as a kubelet does.
async fn write_pod_status(bed: &Bed, status: Value) {
    let patch = Patch::Merge(json!({ "status": status }));
    let pods: Api<Pod> = bed.api();
    pods.patch_status("web-pod", &PatchParams::default(), &patch)
        .await
        .unwrap();
}

async fn pod_runs(bed: &Bed) {
    let ready = json!([{ "type": "Ready", "status": "True" }]);
    let status = json!({ "phase": "Running", "conditions": ready, "containerStatuses": null });
    write_pod_status(bed, status).await;
}

async fn pod_crashes(bed: &Bed) {
    let waiting = json!({ "reason": "CrashLoopBackOff", "message": "back-off 10s" });
    let container = json!({ "name": "web", "image": "nginx", "imageID": "", "ready": false,
        "restartCount": 1, "state": { "waiting": waiting } });
    let conditions = json!([{ "type": "Ready", "status": "False" }]);
    let status =
        json!({ "phase": "Running", "conditions": conditions, "containerStatuses": [container] });
    write_pod_status(bed, status).await;
}

/// Adds a finalizer to the Pod, or removes the finalizer.
async fn set_finalizer(bed: &Bed, present: bool) {
    let finalizers = if present {
        json!(["example.com/keep"])
    } else {
        Value::Null
    };
    let patch = json!({ "metadata": { "finalizers": finalizers } });
    bed.patch::<Pod>("web-pod", patch).await;
}

async fn pod(bed: &Bed) -> Pod {
    bed.api().get("web-pod").await.unwrap()
}

/// Waits until there is a Pod other than `before`.
async fn is_recreated(bed: &Bed, before: &Pod) {
    let pods: Api<Pod> = bed.api();
    until("another Pod", SOON, async || {
        let now = pods.get_opt("web-pod").await?;
        Ok(now.filter(|now| now.uid() != before.uid()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn my_app_behaves_as_pinned() {
    let settings = Settings::default().flag("--controllers=*,-myingress");
    let coverage = Coverage::of("myapp", &[]);
    let mut walk = Walkthrough::start(bed("myapp").await, settings, coverage).await;

    walk.follow::<MyApp>("web");
    walk.follow::<Pod>("web-pod");
    let spec = json!({ "image": "nginx:1.29", "banner": "Hello" });
    walk.bed
        .create::<MyApp>("web", json!({ "spec": spec }))
        .await;
    has_reason(&walk.bed, "PodPending").await;
    walk.record("MyApp created").await;

    pod_runs(&walk.bed).await;
    has_reason(&walk.bed, "Ready").await;
    walk.record("Pod runs").await;

    let before = pod(&walk.bed).await;
    let patch = json!({ "spec": { "banner": "Hello again" } });
    walk.bed.patch::<MyApp>("web", patch).await;
    is_recreated(&walk.bed, &before).await;
    has_reason(&walk.bed, "PodPending").await;
    walk.events("web", "Replaced", 1).await;
    walk.record("banner changed").await;

    pod_runs(&walk.bed).await;
    has_reason(&walk.bed, "Ready").await;
    walk.record("new Pod runs").await;

    let patch = json!({ "metadata": { "labels": { LABEL: null, "app": "other" } } });
    walk.bed.patch::<Pod>("web-pod", patch).await;
    walk.bed
        .until("web-pod", "has its labels", |pod: &Pod| {
            pod.labels().contains_key(LABEL) && pod.labels()["app"] == "web"
        })
        .await;
    has_reason(&walk.bed, "Ready").await;
    walk.record("labels of the Pod edited by another client")
        .await;

    // The apiserver marks a Pod without a node as Terminating and immediately deletes it. The finalizer lets the
    // operator see both.
    set_finalizer(&walk.bed, true).await;
    let before = pod(&walk.bed).await;
    walk.bed.delete::<Pod>("web-pod").await;
    has_reason(&walk.bed, "ChildTerminating").await;
    set_finalizer(&walk.bed, false).await;
    is_recreated(&walk.bed, &before).await;
    has_reason(&walk.bed, "PodPending").await;
    walk.events("web", "Recreated", 1).await;
    walk.record("Pod deleted by another client").await;

    pod_crashes(&walk.bed).await;
    has_reason(&walk.bed, "CrashLoopBackOff").await;
    walk.events("web", "CrashLoopBackOff", 1).await;
    walk.record("Pod crashes").await;

    pod_runs(&walk.bed).await;
    has_reason(&walk.bed, "Ready").await;
    walk.events("web", "Ready", 1).await;
    walk.record("Pod runs again").await;

    pod_crashes(&walk.bed).await;
    has_reason(&walk.bed, "CrashLoopBackOff").await;
    walk.record("Pod crashes again").await;

    pod_runs(&walk.bed).await;
    has_reason(&walk.bed, "Ready").await;
    walk.record("Pod runs once more").await;

    walk.request::<MyApp>("web").await;
    walk.record("reconcile requested").await;

    let suspend = |suspend: bool| json!({ "spec": { "suspend": suspend } });
    walk.bed.patch::<MyApp>("web", suspend(true)).await;
    has_reason(&walk.bed, "Suspended").await;
    walk.events("web", "Suspended", 1).await;
    walk.bed.delete::<Pod>("web-pod").await;
    walk.record("MyApp suspended, Pod deleted").await;

    walk.bed.patch::<MyApp>("web", suspend(false)).await;
    has_reason(&walk.bed, "PodPending").await;
    walk.record("MyApp resumed").await;

    walk.bed.delete::<MyApp>("web").await;
    walk.record("MyApp deleted").await;
    assert_pinned!("my_app", walk.end().await);
}
