//! The recorded state of a receiver outlasts a pause of its contact point.

use std::time::Duration;

use http::{HeaderValue, StatusCode, header};
use qm_api::{ContactPoint, TrackedField};
use rstest::rstest;
use serde_json::json;
use testbed::proxy::{Fault, Match, Times, Verb};
use testbed::receiver::{Receiver, Reply};

use super::{status, tests};
use crate::support::{Bed, Operator, SOON, Settings, condition};

#[rstest]
#[case::suspended_and_resumed(false)]
#[case::without_its_secret(true)]
#[tokio::test]
async fn retry_after_outlasts_a_pause_of_its_contact_point(#[case] without_secret: bool) {
    const AFTER: u64 = 12;
    let bed = Bed::shared("pause").await;
    let receiver = Receiver::start().unwrap();
    let (proxy, file) = bed.through_proxy().await;
    let settings = Settings::default()
        .kubeconfig(file)
        .flag("--secret-refresh-period=200ms");
    let _operator = Operator::start(&bed, settings).await;
    bed.secret("url", &receiver.url()).await;
    let from = json!({ "urlFrom": { "secretName": "url", "key": "token" } });
    bed.point("hook", json!({ "type": "Webhook", "webhookSpec": from }))
        .await;
    bed.ready("hook").await;
    let later = Reply::status(StatusCode::TOO_MANY_REQUESTS)
        .header(header::RETRY_AFTER, HeaderValue::from(AFTER));
    receiver.next(1, later);
    bed.deployment("web", 1).await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    receiver
        .wait_for(SOON, |requests| requests.len() == 2)
        .await
        .unwrap();
    if without_secret {
        let secrets = Match::verb(Verb::Get).resource("secrets").name("url");
        let order = proxy.inject(secrets, Times::Always, Fault::status(StatusCode::FORBIDDEN));
        bed.not_ready("hook", "SecretForbidden").await;
        order.cancel();
    } else {
        bed.patch::<ContactPoint>("hook", json!({ "spec": { "suspend": true } }))
            .await;
        bed.not_ready("hook", "Suspended").await;
        bed.patch::<ContactPoint>("hook", json!({ "spec": { "suspend": false } }))
            .await;
    }
    bed.ready("hook").await;
    bed.delivered("it", &[("Created", Some("1"))]).await;
    let requests = receiver.requests();
    assert_eq!(requests.len(), 3, "no request before the time");
    let waited = requests[2].at - requests[1].at;
    assert!(waited >= Duration::from_secs(AFTER), "{waited:?}");
}

/// A contact point that was stopped reports so as soon as it is resumed, without another request.
#[tokio::test]
async fn stopped_contact_point_is_stopped_again_once_it_is_resumed() {
    let bed = Bed::shared("resumed").await;
    let receiver = Receiver::start().unwrap();
    // Longer than the test.
    let _operator =
        Operator::start(&bed, Settings::default().flag("--stopped-retry-period=1h")).await;
    receiver.always(status(403));
    bed.webhook("hook", &receiver.url()).await;
    bed.not_ready("hook", "Forbidden").await;
    bed.patch::<ContactPoint>("hook", json!({ "spec": { "suspend": true } }))
        .await;
    bed.not_ready("hook", "Suspended").await;
    bed.patch::<ContactPoint>("hook", json!({ "spec": { "suspend": false } }))
        .await;
    bed.not_ready("hook", "Forbidden").await;
    assert_eq!(receiver.requests().len(), 1);
    // A user requests an attempt while the contact point is suspended.
    receiver.behave();
    bed.patch::<ContactPoint>("hook", json!({ "spec": { "suspend": true } }))
        .await;
    bed.not_ready("hook", "Suspended").await;
    let annotations = json!({ "quartermaster.dev/requested-at": "1" });
    bed.patch::<ContactPoint>(
        "hook",
        json!({ "metadata": { "annotations": annotations } }),
    )
    .await;
    bed.patch::<ContactPoint>("hook", json!({ "spec": { "suspend": false } }))
        .await;
    bed.ready("hook").await;
    assert_eq!(tests(&receiver).len(), 1);
}

#[tokio::test]
async fn stopped_contact_point_keeps_its_reason_when_one_attempt_meets_a_503() {
    let bed = Bed::shared("blink").await;
    let receiver = Receiver::start().unwrap();
    let settings = Settings::default()
        .flag("--stopped-retry-period=300ms")
        .flag("--backoff-min=300ms");
    let _operator = Operator::start(&bed, settings).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    receiver.always(status(403));
    bed.deployment("web", 1).await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    let stopped = bed.not_ready("hook", "Forbidden").await;
    receiver.next(1, status(503));
    let now = receiver.requests().len();
    receiver
        .wait_for(SOON, |requests| requests.len() >= now + 4)
        .await
        .unwrap();
    let after = bed.api::<ContactPoint>().get("hook").await.unwrap();
    assert_eq!(
        after.metadata.resource_version, stopped.metadata.resource_version,
        "{:?}",
        after.status
    );
}

#[tokio::test]
async fn contact_point_mentions_messages_only_while_some_wait() {
    let bed = Bed::shared("forgone").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default().flag("--backoff-min=300ms")).await;
    bed.webhook("hook", &receiver.url()).await;
    let ready = condition(&bed.ready("hook").await);
    receiver.always(status(503));
    bed.deployment("web", 1).await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    bed.until("hook", "has waiting messages", |point| {
        condition(point).1.contains("they wait")
    })
    .await;
    bed.delete::<TrackedField>("it").await;
    bed.until("hook", "has no waiting message", |point| {
        condition(point) == ready
    })
    .await;
}
