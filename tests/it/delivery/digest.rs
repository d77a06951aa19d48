//! `digestSeconds`: entries that wait for a digest.

use std::time::{Duration, Instant};

use qm_api::tracked_field::{Delivery, Entry};
use qm_api::{ContactPoint, TrackedField};
use serde_json::{Value, json};
use testbed::receiver::Receiver;

use super::{is, tests, write_history};
use crate::support::{Bed, Operator, SOON, Settings, accepted, changes};

/// Creates a webhook that gathers entries, and waits until it is ready.
async fn digesting_contact_point(bed: &Bed, receiver: &Receiver, seconds: u64) -> ContactPoint {
    let spec = json!({
        "type": "Webhook",
        "webhookSpec": { "url": receiver.url() },
        "digestSeconds": seconds,
    });
    bed.point("hook", spec).await;
    bed.ready("hook").await
}

/// Waits until the last entry of a `TrackedField` is Pending.
async fn pending(bed: &Bed, name: &str) -> Entry {
    let field = bed.until(name, "has a Pending entry", |field: &TrackedField| {
        let history = field.history().unwrap();
        history
            .last()
            .is_some_and(|last| is(last, Delivery::Pending))
    });
    field.await.history().unwrap().pop().unwrap()
}

async fn request_attempt(bed: &Bed, value: &str) {
    let annotations = json!({ "quartermaster.dev/requested-at": value });
    let patch = json!({ "metadata": { "annotations": annotations } });
    bed.patch::<ContactPoint>("hook", patch).await;
}

#[tokio::test]
async fn waiting_entries_become_one_digest_that_a_request_sends_at_once() {
    let bed = Bed::shared("digest").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    // Longer than every deadline of the test.
    let point = digesting_contact_point(&bed, &receiver, 300).await;
    let mut ids = Vec::new();
    for name in ["a", "b", "c"] {
        bed.deployment(name, 1).await;
        bed.track(name, "Deployment", name, "replicas", "hook")
            .await;
        ids.push(pending(&bed, name).await.id.unwrap());
    }
    bed.scale("a", 2).await;
    bed.until("a", "has two entries", |field: &TrackedField| {
        field.history().unwrap().len() == 2
    })
    .await;
    ids.push(pending(&bed, "a").await.id.unwrap());
    assert_eq!(receiver.requests().len(), 1, "only the test message");

    request_attempt(&bed, "1").await;
    receiver
        .wait_for(SOON, |requests| requests.len() == 2)
        .await
        .unwrap();
    let digest = receiver.requests()[1].json().unwrap();
    assert_eq!(digest["ids"], json!(ids));
    let expected = [("Created", Some("1")), ("Updated", Some("2"))];
    bed.delivered("a", &expected).await;

    // The next entry waits again. A change of the delay applies to it, and sends no test message.
    bed.scale("b", 2).await;
    bed.until("b", "has two entries", |field: &TrackedField| {
        field.history().unwrap().len() == 2
    })
    .await;
    assert_eq!(receiver.requests().len(), 2);
    bed.patch::<ContactPoint>("hook", json!({ "spec": { "digestSeconds": 0 } }))
        .await;
    bed.delivered("b", &expected).await;
    let changed = bed.until("hook", "is observed", |point: &ContactPoint| {
        let status = point.status.as_ref().unwrap();
        status.observed_generation == point.metadata.generation
    });
    assert_eq!(
        changed.await.status.unwrap().last_test,
        point.status.unwrap().last_test
    );
    assert_eq!((tests(&receiver).len(), accepted(&receiver).len()), (1, 3));
}

#[tokio::test]
async fn entry_waits_for_the_delay_and_is_then_sent_without_a_request() {
    const DELAY: u64 = 5;
    let bed = Bed::shared("delay").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    digesting_contact_point(&bed, &receiver, DELAY).await;
    bed.deployment("web", 1).await;
    let start = Instant::now();
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    bed.delivered("it", &[("Created", Some("1"))]).await;
    let waited = receiver.requests()[1].at - start;
    // The entry's time has whole seconds.
    assert!(waited >= Duration::from_secs(DELAY - 1), "{waited:?}");
}

#[tokio::test]
async fn restart_does_not_restart_the_wait() {
    let bed = Bed::shared("wait-on").await;
    let receiver = Receiver::start().unwrap();
    let mut operator = Operator::start(&bed, Settings::default()).await;
    digesting_contact_point(&bed, &receiver, 300).await;
    bed.deployment("web", 1).await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    pending(&bed, "it").await;
    operator.kill();
    // The operator was away for longer than the wait.
    let mut history: Value = serde_json::to_value(bed.history("it").await).unwrap();
    let before = jiff::Timestamp::now() - Duration::from_mins(10);
    history[0]["time"] = before.strftime("%Y-%m-%dT%H:%M:%SZ").to_string().into();
    write_history(&bed, "it", &history).await;
    assert_eq!(receiver.requests().len(), 1);
    operator.restart();
    bed.delivered("it", &[("Created", Some("1"))]).await;
    assert_eq!((tests(&receiver).len(), changes(&receiver).len()), (1, 1));
}

#[tokio::test]
async fn retried_digest_does_not_wait_again() {
    let bed = Bed::shared("again").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    digesting_contact_point(&bed, &receiver, 300).await;
    for name in ["a", "b"] {
        bed.deployment(name, 1).await;
        bed.track(name, "Deployment", name, "replicas", "hook")
            .await;
        pending(&bed, name).await;
    }
    receiver.next(2, super::status(503));
    request_attempt(&bed, "1").await;
    for name in ["a", "b"] {
        bed.delivered(name, &[("Created", Some("1"))]).await;
    }
    let requests = receiver.requests();
    let ids: Vec<_> = requests[1..]
        .iter()
        .map(|request| request.header("ce-id").unwrap())
        .collect();
    assert_eq!(ids, [ids[0]; 3], "the same digest");
}
