//! No entry expires without an attempt.

use jiff::{SignedDuration, Timestamp};
use qm_api::tracked_field::Delivery;
use qm_api::{ContactPoint, TrackedField};
use serde_json::{Value, json};
use testbed::receiver::Receiver;
use testbed::wait::until;

use super::{is, status, write_history};
use crate::support::{Bed, Operator, SOON, Settings, changes, series};

/// Returns a waiting entry as left by a process that has another clock, or that ran days ago.
fn waiting(bed: &Bed, id: &str, hours_ago: i64) -> Value {
    let time = Timestamp::now() - SignedDuration::from_hours(hours_ago);
    json!({
        "time": format!("{time:.0}"), "action": "Updated", "value": "1", "delivery": "Pending", "id": id,
        "subject": format!("Deployment/{}/web/replicas", bed.namespace),
    })
}

/// Creates a `TrackedField` of a Deployment with one replica, and writes its history.
async fn tracked(bed: &Bed, name: &str, point: &str, history: &[Value]) {
    bed.track(name, "Deployment", "web", "replicas", point)
        .await;
    write_history(bed, name, &json!(history)).await;
}

/// The cluster was off for a weekend, or the clock is 25 hours ahead.
#[tokio::test]
async fn old_entry_is_delivered_if_the_first_attempt_succeeds() {
    let bed = Bed::shared("old").await;
    let receiver = Receiver::start().unwrap();
    bed.deployment("web", 1).await;
    tracked(
        &bed,
        "it",
        "hook",
        &[waiting(&bed, "one", 60), waiting(&bed, "two", 25)],
    )
    .await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    // An entry without an attempt must not expire.
    bed.waiting("it", "ContactPointNotFound: ").await;
    assert!(
        bed.history("it")
            .await
            .iter()
            .all(|entry| is(entry, Delivery::Pending))
    );
    bed.webhook("hook", &receiver.url()).await;
    bed.delivered("it", &[("Updated", Some("1")), ("Updated", Some("1"))])
        .await;
    assert_eq!(changes(&receiver).len(), 2);
    assert_eq!(bed.events("it", "DeliveryFailed").await.len(), 0);
}

#[tokio::test]
async fn old_entry_expires_when_an_attempt_fails_and_younger_ones_do_not() {
    let bed = Bed::shared("attempt").await;
    let receiver = Receiver::start().unwrap();
    bed.deployment("web", 1).await;
    bed.webhook("hook", &receiver.url()).await;
    tracked(&bed, "old", "hook", &[waiting(&bed, "old", 25)]).await;
    tracked(&bed, "young", "hook", &[waiting(&bed, "young", 23)]).await;
    tracked(&bed, "future", "hook", &[waiting(&bed, "future", -25)]).await;
    // The entry was suspended for 28 of 50 hours, before this process and while there was none.
    let since = Timestamp::now() - SignedDuration::from_hours(21);
    let mut suspended = waiting(&bed, "suspended", 50);
    suspended["suspendedSince"] = json!(format!("{since:.0}"));
    suspended["suspendedSeconds"] = json!(7 * 3600);
    tracked(&bed, "suspended", "hook", &[suspended]).await;
    // The clock was wrong when the entry was suspended.
    let mut ahead = waiting(&bed, "ahead", 1);
    ahead["suspendedSince"] = json!(format!(
        "{:.0}",
        Timestamp::now() + SignedDuration::from_hours(30)
    ));
    tracked(&bed, "ahead", "hook", &[ahead]).await;
    receiver.always(status(503));
    let operator = Operator::start(&bed, Settings::default()).await;
    // The test message comes first.
    bed.not_ready("hook", "Unreachable").await;
    assert!(
        is(&bed.history("old").await[0], Delivery::Pending),
        "no attempt was made with the entry"
    );
    receiver.at_text("\"trackedField\"", status(503));
    receiver.always(testbed::receiver::Reply::ok());
    let failed = |field: &TrackedField| is(&field.history().unwrap()[0], Delivery::Failed);
    let reason = bed.until("old", "expires", failed).await.history().unwrap()[0]
        .reason
        .clone()
        .unwrap();
    assert!(
        reason.starts_with("not delivered within 24 h; the last attempt: "),
        "{reason}"
    );
    assert!(reason.contains("503"), "{reason}");
    assert_eq!(
        bed.event("old", "DeliveryFailed").await,
        format!("failed to deliver the change Updated 1: {reason}")
    );
    let attempts = receiver.requests().len();
    receiver
        .wait_for(crate::support::SOON, |requests| {
            requests.len() >= attempts + 3
        })
        .await
        .unwrap();
    for name in ["young", "future", "suspended", "ahead"] {
        assert!(is(&bed.history(name).await[0], Delivery::Pending), "{name}");
    }
    let metrics = operator.metrics().await;
    assert!(
        metrics
            .lines()
            .any(|line| line == "quartermaster_entries_failed_total{reason=\"expired\"} 1"),
        "{metrics}"
    );
    receiver.behave();
    for name in ["young", "future", "suspended", "ahead"] {
        bed.delivered(name, &[("Updated", Some("1"))]).await;
    }
}

/// The operator itself rejects the address, which does not count as an attempt.
#[tokio::test]
async fn old_entry_does_not_expire_if_its_address_is_denied() {
    let bed = Bed::shared("refused-address").await;
    let receiver = Receiver::start().unwrap();
    bed.deployment("web", 1).await;
    bed.webhook("hook", "http://169.254.169.254/").await;
    for name in ["it", "other"] {
        tracked(&bed, name, "hook", &[waiting(&bed, name, 25)]).await;
    }
    let operator = Operator::start(
        &bed,
        Settings::default().flag("--stopped-retry-period=200ms"),
    )
    .await;
    bed.not_ready("hook", "AddressNotAllowed").await;
    // The first attempt is the test message's.
    until("several attempts", SOON, async || {
        let stopped = "quartermaster_delivery_attempts_total{type=\"webhook\",outcome=\"stopped\"}";
        let count = series(&operator.metrics().await, stopped);
        Ok(count.filter(|count| *count >= 6.0))
    })
    .await
    .unwrap();
    for name in ["it", "other"] {
        assert!(is(&bed.history(name).await[0], Delivery::Pending), "{name}");
    }
    bed.patch::<ContactPoint>(
        "hook",
        json!({ "spec": { "webhookSpec": { "url": receiver.url() } } }),
    )
    .await;
    for name in ["it", "other"] {
        bed.delivered(name, &[("Updated", Some("1"))]).await;
        assert_eq!(bed.events(name, "DeliveryFailed").await.len(), 0);
    }
}
