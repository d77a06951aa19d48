//! Walk-through of a `TrackedField` that tracks a Deployment.

use k8s_openapi::api::apps::v1::Deployment;
use qm_api::{ContactPoint, TrackedField};
use serde_json::{Value, json};
use testbed::receiver::Receiver;

use super::metrics::{environment, families};
use super::{Coverage, Walkthrough, assert_pinned, bed};
use crate::support::Settings;

/// Changes the Deployment's image.
async fn set_image(walk: &Walkthrough, image: &str) {
    let container = json!({ "name": "nginx", "image": image });
    let patch = json!({ "spec": { "template": { "spec": { "containers": [container] } } } });
    walk.bed.patch::<Deployment>("web", patch).await;
}

/// Waits until the history has `entries` entries and the last entry is Pending.
async fn is_pending(walk: &Walkthrough, entries: usize) {
    walk.bed
        .until("it", "is pending", |field: &TrackedField| {
            let history = field.history().unwrap();
            history.len() == entries && history[entries - 1].is_pending()
        })
        .await;
}

fn spec(spec: &Value) -> Value {
    json!({ "spec": spec })
}

#[tokio::test]
async fn tracked_field_behaves_as_pinned() {
    let receiver = Receiver::start().unwrap();
    let settings = Settings::default().flag("--controllers=*,-myingress");
    let coverage = Coverage::of("trackedfield", &[]);
    let mut walk = Walkthrough::start(bed("field").await, settings, coverage).await;
    walk.bed.webhook("hook", &receiver.url()).await;
    walk.bed.ready("hook").await;
    walk.events("hook", "Ready", 1).await;
    walk.bed.deployment("web", 1).await;
    walk.record("Deployment and ContactPoint created").await;

    walk.follow::<TrackedField>("it");
    walk.bed
        .track("it", "Deployment", "web", "replicas", "hook")
        .await;
    let mut entries = vec![("Created", Some("1"))];
    walk.bed.delivered("it", &entries).await;
    walk.record("TrackedField created").await;

    walk.bed.scale("web", 3).await;
    entries.push(("Updated", Some("3")));
    walk.bed.delivered("it", &entries).await;
    walk.record("tracked field changed").await;

    set_image(&walk, "nginx:1.29").await;
    walk.record("another field changed").await;

    walk.bed.delete::<Deployment>("web").await;
    entries.push(("Deleted", None));
    walk.bed.delivered("it", &entries).await;
    walk.events("it", "TargetNotFound", 1).await;
    walk.record("Deployment deleted").await;

    walk.bed.deployment("web", 2).await;
    entries.push(("Created", Some("2")));
    walk.bed.delivered("it", &entries).await;
    walk.record("Deployment created again").await;

    walk.bed
        .patch::<TrackedField>("it", spec(&json!({ "field": "image" })))
        .await;
    entries.push(("Created", Some("nginx:latest")));
    walk.bed.delivered("it", &entries).await;
    walk.record("spec.field changed").await;

    walk.request::<TrackedField>("it").await;
    walk.record("reconcile requested").await;

    walk.bed
        .patch::<TrackedField>("it", spec(&json!({ "suspend": true })))
        .await;
    walk.bed.waiting("it", "Suspended").await;
    walk.events("it", "Suspended", 1).await;
    set_image(&walk, "nginx:1.28").await;
    is_pending(&walk, 6).await;
    walk.record("TrackedField suspended, tracked field changed")
        .await;

    walk.bed
        .patch::<TrackedField>("it", spec(&json!({ "suspend": false })))
        .await;
    entries.push(("Updated", Some("nginx:1.28")));
    walk.bed.delivered("it", &entries).await;
    walk.bed.waiting("it", "").await;
    walk.record("TrackedField resumed").await;

    walk.follow::<TrackedField>("lost");
    walk.bed
        .track("lost", "Deployment", "wep", "replicas", "hook")
        .await;
    walk.bed.waiting("lost", "TargetNotFound").await;
    walk.events("lost", "TargetNotFound", 1).await;
    walk.record("TrackedField without a target created").await;

    walk.request::<TrackedField>("lost").await;
    walk.record("reconcile of the TrackedField without a target requested")
        .await;

    walk.bed.delete::<ContactPoint>("hook").await;
    walk.bed.waiting("it", "ContactPointNotFound").await;
    walk.events("it", "ContactPointNotFound", 1).await;
    walk.record("ContactPoint deleted").await;

    set_image(&walk, "nginx:1.29").await;
    is_pending(&walk, 7).await;
    walk.record("tracked field changed without a ContactPoint")
        .await;

    let metrics = walk.metrics.read().await;
    walk.bed.delete::<TrackedField>("it").await;
    walk.bed.delete::<TrackedField>("lost").await;
    walk.record("TrackedFields deleted").await;

    set_image(&walk, "nginx:1.30").await;
    walk.record("Deployment changed, nothing tracks it").await;
    assert_pinned!("tracked_field", walk.end().await);
    assert_pinned!("metrics", (families(&metrics), environment(&metrics)));
}
