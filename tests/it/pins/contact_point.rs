//! Walk-through of a `ContactPoint` of type Webhook.

use http::StatusCode;
use k8s_openapi::api::core::v1::Secret;
use qm_api::ContactPoint;
use serde_json::json;
use testbed::receiver::{Receiver, Reply};

use super::{Coverage, Walkthrough, assert_pinned, bed};
use crate::support::{SOON, Settings};

/// Waits until the condition `Ready` of the current generation has this reason.
async fn has_reason(walk: &Walkthrough, reason: &str) {
    walk.bed
        .until("hook", reason, |point: &ContactPoint| {
            point.status.as_ref().is_some_and(|status| {
                status.observed_generation == point.metadata.generation
                    && status.conditions[0].reason == reason
            })
        })
        .await;
}

/// Waits until `sent` test messages were sent, and the status counts `accepted` ones.
async fn is_tested(walk: &Walkthrough, receiver: &Receiver, sent: usize, accepted: i64) {
    receiver
        .wait_for(SOON, |requests| requests.len() == sent)
        .await
        .unwrap();
    walk.bed
        .until("hook", "is tested", |point: &ContactPoint| {
            let status = point.status.as_ref();
            status.and_then(|status| status.tests_accepted) == Some(accepted)
        })
        .await;
}

#[tokio::test]
async fn contact_point_behaves_as_pinned() {
    let receiver = Receiver::start().unwrap();
    let settings = Settings::default().flag("--controllers=*,-myingress");
    let coverage = Coverage::of(
        "contactpoint",
        &["get secrets token", "get: 404 secrets token"],
    );
    let mut walk = Walkthrough::start(bed("point").await, settings, coverage).await;

    walk.follow::<ContactPoint>("hook");
    walk.bed.secret("token", "first-token").await;
    let spec = json!({
        "type": "Webhook",
        "webhookSpec": { "url": receiver.url(), "headerName": "X-Token" },
        "apiToken": { "secretName": "token", "key": "token" },
    });
    walk.bed.point("hook", spec).await;
    is_tested(&walk, &receiver, 1, 1).await;
    walk.events("hook", "Ready", 1).await;
    walk.record("ContactPoint created").await;

    let headers =
        |value: &str| json!({ "spec": { "webhookSpec": { "headers": { "X-More": value } } } });
    walk.bed.patch::<ContactPoint>("hook", headers("1")).await;
    is_tested(&walk, &receiver, 2, 2).await;
    has_reason(&walk, "Ready").await;
    walk.record("spec changed").await;

    let content = json!({ "stringData": { "token": "second-token" } });
    walk.bed.patch::<Secret>("token", content).await;
    walk.request::<ContactPoint>("hook").await;
    is_tested(&walk, &receiver, 3, 3).await;
    has_reason(&walk, "Ready").await;
    walk.record("Secret changed, reconcile requested").await;

    walk.request::<ContactPoint>("hook").await;
    walk.record("reconcile requested").await;

    walk.bed.delete::<Secret>("token").await;
    walk.request::<ContactPoint>("hook").await;
    has_reason(&walk, "SecretNotFound").await;
    walk.events("hook", "SecretNotFound", 1).await;
    walk.record("Secret deleted, reconcile requested").await;

    walk.bed.secret("token", "second-token").await;
    walk.request::<ContactPoint>("hook").await;
    is_tested(&walk, &receiver, 4, 4).await;
    has_reason(&walk, "Ready").await;
    walk.events("hook", "Ready", 2).await;
    walk.record("Secret created again, reconcile requested")
        .await;

    receiver.always(Reply::status(StatusCode::FORBIDDEN).body("go away"));
    walk.bed.patch::<ContactPoint>("hook", headers("2")).await;
    has_reason(&walk, "Forbidden").await;
    walk.events("hook", "Forbidden", 1).await;
    walk.record("spec changed, test message refused").await;

    for sent in [6, 7] {
        walk.request::<ContactPoint>("hook").await;
        receiver
            .wait_for(SOON, |requests| requests.len() == sent)
            .await
            .unwrap();
    }
    walk.record("two reconciles requested, two test messages refused")
        .await;

    receiver.behave();
    walk.request::<ContactPoint>("hook").await;
    is_tested(&walk, &receiver, 8, 5).await;
    has_reason(&walk, "Ready").await;
    walk.events("hook", "Ready", 3).await;
    walk.record("reconcile requested, test message accepted")
        .await;

    let suspend = |suspend: bool| json!({ "spec": { "suspend": suspend } });
    walk.bed.patch::<ContactPoint>("hook", suspend(true)).await;
    has_reason(&walk, "Suspended").await;
    walk.events("hook", "Suspended", 1).await;
    walk.record("ContactPoint suspended").await;

    walk.bed.patch::<ContactPoint>("hook", suspend(false)).await;
    has_reason(&walk, "Ready").await;
    walk.events("hook", "Ready", 4).await;
    walk.record("ContactPoint resumed").await;

    walk.bed.delete::<ContactPoint>("hook").await;
    walk.record("ContactPoint deleted").await;
    assert_eq!(receiver.requests().len(), 8);
    assert_pinned!("contact_point", walk.end().await);
}
