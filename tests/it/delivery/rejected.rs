//! Rejected messages are kept, unless the receiver accepts others.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use http::StatusCode;
use qm_api::tracked_field::Delivery;
use qm_api::{ContactPoint, TrackedField};
use rstest::rstest;
use serde_json::json;
use testbed::bot_api::{Chat, Kind};
use testbed::receiver::{Receiver, Reply, Request};
use testbed::wait::until;

use super::{is, status, tests, track_long};
use crate::support::{Bed, Operator, SOON, Settings, TOKEN, accepted, bot_api, changes, condition};

/// A user archived a channel, or a proxy is misconfigured.
#[rstest]
#[case::gone(410, "Gone")]
#[case::bad_request(400, "Rejected")]
#[case::method_not_allowed(405, "UnexpectedStatus")]
#[tokio::test]
async fn receiver_that_rejects_everything_for_a_while_loses_no_entry(
    #[case] code: u16,
    #[case] reason: &str,
) {
    const FIELDS: usize = 5;
    const CHANGES: usize = 60;
    let bed = Bed::shared("backlog").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(
        &bed,
        Settings::default().flag("--stopped-retry-period=500ms"),
    )
    .await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    receiver.always(status(code).body("channel_is_archived"));
    join_all((0..FIELDS).map(async |field| {
        let (name, target) = (format!("it-{field}"), format!("web-{field}"));
        bed.deployment(&target, 0).await;
        track_long(&bed, &name, &target, "hook").await;
        bed.until(&name, "its first value", |field: &TrackedField| {
            !field.history().unwrap().is_empty()
        })
        .await;
        for replicas in 1..CHANGES {
            bed.scale(&target, i32::try_from(replicas).unwrap()).await;
        }
        let all = |field: &TrackedField| field.history().unwrap().len() == CHANGES;
        bed.until(&name, "all changes", all).await;
    }))
    .await;
    let (_, message) = condition(&bed.not_ready("hook", reason).await);
    assert!(
        message.contains(&format!("({code} channel_is_archived)")),
        "{message}"
    );
    // Each entry was rejected more than once.
    let refused = receiver.requests().len();
    receiver
        .wait_for(SOON, |requests| requests.len() >= refused + 3 * FIELDS)
        .await
        .unwrap();
    for field in 0..FIELDS {
        let history = bed.history(&format!("it-{field}")).await;
        assert!(
            history.iter().all(|entry| is(entry, Delivery::Pending)),
            "{history:#?}"
        );
    }

    receiver.behave();
    for field in 0..FIELDS {
        let delivered = |field: &TrackedField| {
            let history = field.history().unwrap();
            history.len() == CHANGES && history.iter().all(|entry| is(entry, Delivery::Delivered))
        };
        bed.until(&format!("it-{field}"), "all delivered", delivered)
            .await;
    }
    bed.ready("hook").await;
    let mut values = BTreeMap::<String, Vec<String>>::new();
    for change in changes(&receiver) {
        let of = |what: &str| change[what].as_str().unwrap().to_owned();
        values
            .entry(of("trackedField"))
            .or_default()
            .push(of("value"));
    }
    let expected: Vec<_> = (0..CHANGES).map(|value| value.to_string()).collect();
    assert_eq!(values.len(), FIELDS);
    assert!(
        values.values().all(|values| *values == expected),
        "each once, in order: {values:#?}"
    );
    assert!(
        tests(&receiver).len() <= 2,
        "the first test message, and one that showed the recovery"
    );
}

#[tokio::test]
async fn three_messages_rejected_in_a_row_stop_the_contact_point() {
    let bed = Bed::shared("three").await;
    let (receiver, other) = (Receiver::start().unwrap(), Receiver::start().unwrap());
    // Longer than the test.
    let _operator =
        Operator::start(&bed, Settings::default().flag("--stopped-retry-period=1h")).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.webhook("other", &other.url()).await;
    bed.ready("hook").await;
    bed.deployment("web", 1).await;
    // All entries wait before the receiver rejects the first one.
    receiver.always(status(503));
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        bed.track(name, "Deployment", "web", "replicas", "hook")
            .await;
        bed.until(name, "its first value", |field: &TrackedField| {
            !field.history().unwrap().is_empty()
        })
        .await;
    }
    receiver.always(status(400));
    bed.not_ready("hook", "Rejected").await;
    // A message of another contact point, sent later, shows that nothing more was tried.
    bed.track("marker", "Deployment", "web", "replicas", "other")
        .await;
    bed.delivered("marker", &[("Created", Some("1"))]).await;
    let requests = receiver.requests();
    let rejected: BTreeSet<_> = requests
        .iter()
        .filter(|request| request.answered.unwrap() == StatusCode::BAD_REQUEST)
        .map(|request| request.json().unwrap())
        // A rejected digest accuses none of its entries.
        .filter(|message| message["entries"].is_null())
        .map(|message| message["trackedField"].to_string())
        .collect();
    assert_eq!(rejected.len(), 3, "{rejected:?}");
    for name in names {
        assert!(is(&bed.history(name).await[0], Delivery::Pending), "{name}");
    }
}

#[rstest]
#[case::forbidden(403)]
#[case::bad_request(400)]
#[case::not_found(404)]
#[case::redirect(302)]
#[tokio::test]
async fn poisonous_value_delays_the_others_for_one_retry_period(#[case] code: u16) {
    let bed = Bed::shared("poison").await;
    let receiver = Receiver::start().unwrap();
    let _operator =
        Operator::start(&bed, Settings::default().flag("--stopped-retry-period=2s")).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    let names = ["a", "b", "c", "d", "e"];
    for name in names {
        bed.deployment(name, 1).await;
        bed.track(name, "Deployment", name, "replicas", "hook")
            .await;
        bed.delivered(name, &[("Created", Some("1"))]).await;
    }
    receiver.at_text("\"value\":\"13\"", status(code).body("poisonous"));
    receiver.forget();
    bed.scale("c", 13).await;
    for name in ["a", "b", "d", "e"] {
        bed.scale(name, 2).await;
    }
    bed.scale("c", 14).await;
    for name in ["a", "b", "d", "e"] {
        bed.delivered(name, &[("Created", Some("1")), ("Updated", Some("2"))])
            .await;
    }
    let done = |field: &TrackedField| {
        let history = field.history().unwrap();
        let last = history.last().unwrap();
        last.value.as_deref() == Some("14") && is(last, Delivery::Delivered)
    };
    let history = bed
        .until("c", "continues after it", done)
        .await
        .history()
        .unwrap();
    let poisonous = &history[1];
    assert!(is(poisonous, Delivery::Failed), "{history:#?}");
    let reason = poisonous.reason.as_deref().unwrap();
    assert!(reason.contains(&code.to_string()), "{reason}");
    assert_eq!(
        bed.event("c", "DeliveryFailed").await,
        format!("failed to deliver the change Updated 13: {reason}")
    );
    bed.ready("hook").await;
    // The message went in a digest, alone, and once more after another message was accepted.
    let refused = receiver
        .requests()
        .iter()
        .filter(|request| !request.answered.unwrap().is_success())
        .count();
    assert!(
        (2..=3).contains(&refused),
        "{refused} requests were refused"
    );
    assert!(
        tests(&receiver).len() <= 1,
        "at most one, if it alone waited"
    );
}

/// A receiver rejects every message that contains a certain text, even as the previous value of the next message.
#[tokio::test]
async fn values_behind_a_poisonous_one_of_the_only_tracked_field_are_delivered() {
    let bed = Bed::shared("alone").await;
    let receiver = Receiver::start().unwrap();
    let _operator =
        Operator::start(&bed, Settings::default().flag("--stopped-retry-period=1s")).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    bed.deployment("web", 1).await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    bed.delivered("it", &[("Created", Some("1"))]).await;
    // The later values wait behind the poisonous one before the receiver rejects it.
    receiver.always(status(503));
    for replicas in [13, 2, 3] {
        bed.scale("web", replicas).await;
        let recorded = replicas.to_string();
        let is_recorded = |field: &TrackedField| {
            field
                .history()
                .unwrap()
                .last()
                .is_some_and(|last| last.value.as_deref() == Some(&*recorded))
        };
        bed.until("it", "the value is recorded", is_recorded).await;
    }
    receiver.at_text(r#""13""#, status(422));
    receiver.always(Reply::ok());
    let done = |field: &TrackedField| {
        let history = field.history().unwrap();
        history.len() == 4
            && history
                .iter()
                .skip(2)
                .all(|entry| is(entry, Delivery::Delivered))
    };
    let history = bed
        .until("it", "the rest is delivered", done)
        .await
        .history()
        .unwrap();
    assert!(is(&history[1], Delivery::Failed), "{history:#?}");
    let previous: Vec<_> = changes(&receiver)
        .iter()
        .map(|change| change["previous"].clone())
        .collect();
    assert_eq!(previous, [json!(null), json!(null), json!("2")]);
    let requests = receiver.requests();
    let carries = |value: &str| {
        let value = format!(r#""value":"{value}""#);
        move |request: &Request| request.text().contains(&value)
    };
    let (is_poisonous, is_next) = (carries("13"), carries("2"));
    let last = requests.iter().rposition(|it| is_poisonous(it));
    let next = requests
        .iter()
        .position(|it| is_next(it) && !is_poisonous(it));
    assert!(last < next, "no later value overtakes the poisonous one");
}

#[rstest]
#[case::forbidden(403, "Forbidden")]
#[case::bad_request(400, "Rejected")]
#[tokio::test]
async fn receiver_that_accepts_only_test_messages_costs_one_entry_and_one_test_message(
    #[case] code: u16,
    #[case] reason: &str,
) {
    let bed = Bed::shared("only-tests").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(
        &bed,
        Settings::default().flag("--stopped-retry-period=300ms"),
    )
    .await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    receiver.at_text("\"trackedField\"", status(code));
    bed.deployment("web", 0).await;
    track_long(&bed, "it", "web", "hook").await;
    bed.until("it", "its first value", |field: &TrackedField| {
        !field.history().unwrap().is_empty()
    })
    .await;
    for replicas in 1..5 {
        bed.scale("web", replicas).await;
    }
    let all = |field: &TrackedField| {
        let history = field.history().unwrap();
        history.len() == 5 && is(&history[0], Delivery::Failed)
    };
    bed.until("it", "costs one entry", all).await;
    bed.not_ready("hook", reason).await;
    let now = receiver.requests().len();
    receiver
        .wait_for(SOON, |requests| requests.len() >= now + 8)
        .await
        .unwrap();
    let history = bed.history("it").await;
    assert!(
        history[1..]
            .iter()
            .all(|entry| is(entry, Delivery::Pending)),
        "{history:#?}"
    );
    assert_eq!(
        tests(&receiver).len(),
        2,
        "the first test message, and the one that cost an entry"
    );
    // The rejection is reported once, not with each attempt.
    assert!(
        bed.events("hook", reason).await.len() <= 2,
        "{:#?}",
        bed.events("hook", reason).await
    );

    receiver.behave();
    let delivered = |field: &TrackedField| {
        field.history().unwrap()[1..]
            .iter()
            .all(|e| is(e, Delivery::Delivered))
    };
    bed.until("it", "the rest arrives", delivered).await;
    assert_eq!(tests(&receiver).len(), 2);
}

/// The queue learns only from the first reconciles which entries wait.
#[tokio::test]
async fn stopped_contact_point_gets_an_entry_and_no_test_message_after_a_restart() {
    let bed = Bed::shared("restart-entry").await;
    let receiver = Receiver::start().unwrap();
    let settings = Settings::default().flag("--stopped-retry-period=1h");
    let mut operator = Operator::start(&bed, settings).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    receiver.at_text("\"trackedField\"", status(410));
    bed.deployment("web", 0).await;
    track_long(&bed, "a", "web", "hook").await;
    track_long(&bed, "b", "web", "hook").await;
    bed.not_ready("hook", "Gone").await;
    for name in ["a", "b"] {
        let is_recorded = |field: &TrackedField| !field.history().unwrap().is_empty();
        bed.until(name, "records its value", is_recorded).await;
    }
    for _ in 0..3 {
        operator.kill();
        let before = receiver.requests().len();
        operator.restart();
        receiver
            .wait_for(SOON, |requests| requests.len() > before)
            .await
            .unwrap();
        assert_eq!(tests(&receiver).len(), 1, "the first test message only");
    }
}

/// The first process may have reported the rejection; the next ones must remember.
#[rstest]
#[case::forbidden(403, "Forbidden")]
#[case::bad_request(400, "Rejected")]
#[tokio::test]
async fn restarts_send_no_further_test_message_to_a_stopped_contact_point(
    #[case] code: u16,
    #[case] reason: &str,
) {
    let bed = Bed::shared("restarts").await;
    let receiver = Receiver::start().unwrap();
    let mut operator = Operator::start(
        &bed,
        Settings::default().flag("--stopped-retry-period=300ms"),
    )
    .await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    receiver.at_text("\"trackedField\"", status(code));
    bed.deployment("web", 0).await;
    track_long(&bed, "it", "web", "hook").await;
    bed.until("it", "its first value", |field: &TrackedField| {
        !field.history().unwrap().is_empty()
    })
    .await;
    bed.scale("web", 1).await;
    let failed = |field: &TrackedField| {
        field
            .history()
            .unwrap()
            .first()
            .is_some_and(|it| is(it, Delivery::Failed))
    };
    bed.until("it", "costs one entry", failed).await;
    for _ in 0..2 {
        bed.not_ready("hook", reason).await;
        operator.kill();
        operator.restart();
        operator.ready().await;
        let before = receiver.requests().len();
        receiver
            .wait_for(SOON, |requests| requests.len() >= before + 5)
            .await
            .unwrap();
    }
    assert_eq!(
        tests(&receiver).len(),
        2,
        "the first test message, and the one that cost an entry"
    );

    // An accepted entry allows the next one, whichever process sends it.
    receiver.behave();
    bed.until("it", "the rest arrives", |field: &TrackedField| {
        field
            .history()
            .unwrap()
            .last()
            .is_some_and(|last| is(last, Delivery::Delivered))
    })
    .await;
    bed.until("hook", "may be tested again", |point: &ContactPoint| {
        let status = point.status.as_ref().unwrap();
        status.ready && status.tested_while_stopped.is_none()
    })
    .await;
    operator.kill();
    receiver.at_text("\"trackedField\"", status(code));
    operator.restart();
    bed.scale("web", 2).await;
    receiver
        .wait_for(SOON, |_| tests(&receiver).len() == 3)
        .await
        .unwrap();
}

/// The receiver accepts single messages only: no entry is at fault, and nothing waits.
#[rstest]
#[case::forbidden(403)]
#[case::bad_request(400)]
#[tokio::test]
async fn rejected_digest_does_not_stop_the_contact_point(#[case] code: u16) {
    let bed = Bed::shared("digest").await;
    let receiver = Receiver::start().unwrap();
    // Longer than the test.
    let _operator =
        Operator::start(&bed, Settings::default().flag("--stopped-retry-period=1h")).await;
    bed.webhook("hook", &receiver.url()).await;
    let before = bed.ready("hook").await;
    receiver.at_text("\"entries\"", status(code));
    receiver.always(status(503));
    bed.deployment("web", 1).await;
    for name in ["a", "b"] {
        bed.track(name, "Deployment", "web", "replicas", "hook")
            .await;
        bed.waiting(name, "DeliveryFailing: ").await;
    }
    bed.until(
        "hook",
        "is ready, without an Event about messages",
        |point: &ContactPoint| {
            point.status.as_ref().unwrap().ready
                && condition(point)
                    .1
                    .contains("the receiver does not accept messages")
        },
    )
    .await;
    for replicas in 2..4 {
        bed.scale("web", replicas).await;
    }
    for name in ["a", "b"] {
        bed.until(name, "all changes", |field: &TrackedField| {
            field.history().unwrap().len() == 3
        })
        .await;
    }
    receiver.always(status(200));
    for name in ["a", "b"] {
        bed.delivered(
            name,
            &[
                ("Created", Some("1")),
                ("Updated", Some("2")),
                ("Updated", Some("3")),
            ],
        )
        .await;
    }
    let refused = receiver
        .requests()
        .iter()
        .filter(|request| request.answered.unwrap().as_u16() == code)
        .count();
    assert!(refused > 0, "there was no digest");
    bed.until("hook", "is as before", |after: &ContactPoint| {
        let readiness = |point: &ContactPoint| {
            point
                .status
                .clone()
                .map(|status| (status.ready, status.conditions))
        };
        readiness(after) == readiness(&before)
    })
    .await;
}

/// A rejected message does not change the contact point while others are accepted.
#[tokio::test]
async fn contact_point_stays_ready_while_single_messages_are_rejected() {
    let bed = Bed::shared("steady").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    let before = bed.ready("hook").await;
    receiver.at_text("\"value\":\"13\"", status(422));
    bed.deployment("web", 13).await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    let failed = |field: &TrackedField| {
        field
            .history()
            .unwrap()
            .iter()
            .any(|entry| is(entry, Delivery::Failed))
    };
    bed.until("it", "fails", failed).await;
    bed.scale("web", 1).await;
    let delivered = |field: &TrackedField| {
        field
            .history()
            .unwrap()
            .iter()
            .any(|entry| is(entry, Delivery::Delivered))
    };
    bed.until("it", "continues", delivered).await;
    let after = bed.api::<ContactPoint>().get("hook").await.unwrap();
    let conditions = |point: &ContactPoint| point.status.as_ref().unwrap().conditions.clone();
    assert_eq!(conditions(&after), conditions(&before));
    assert_eq!(bed.events("hook", "Rejected").await.len(), 0);
}

#[tokio::test]
async fn message_behind_a_poisonous_one_arrives_on_request() {
    let bed = Bed::shared("asked").await;
    let receiver = Receiver::start().unwrap();
    // Longer than the test.
    let _operator =
        Operator::start(&bed, Settings::default().flag("--stopped-retry-period=1h")).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    receiver.at_text("\"value\":\"13\"", status(403));
    bed.deployment("web", 13).await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    bed.not_ready("hook", "Forbidden").await;
    bed.scale("web", 1).await;
    let mut attempts = 0;
    until("the next entry is delivered", SOON, async || {
        attempts += 1;
        let annotation = json!({ "quartermaster.dev/requested-at": attempts.to_string() });
        bed.patch::<ContactPoint>("hook", json!({ "metadata": { "annotations": annotation } }))
            .await;
        let history = bed.history("it").await;
        Ok(history
            .get(1)
            .is_some_and(|entry| is(entry, Delivery::Delivered))
            .then_some(()))
    })
    .await
    .unwrap();
    assert!(is(&bed.history("it").await[0], Delivery::Failed));
}

#[tokio::test]
async fn closed_topic_stops_the_contact_point_and_keeps_the_entries() {
    const FORUM: i64 = -1_000_000_000_070;
    let bed = Bed::shared("topic").await;
    let telegram = bot_api();
    let forum = || Chat::new(Kind::Supergroup, FORUM).unwrap();
    telegram.add_chat(forum().with_topic(3));
    let _operator = Operator::start(&bed, Settings::default().telegram(&telegram.url())).await;
    bed.secret("bot", TOKEN).await;
    let spec = json!({
        "type": "Telegram",
        "telegramSpec": { "chatId": FORUM, "messageThreadId": 3 },
        "apiToken": { "secretName": "bot", "key": "token" },
    });
    bed.point("topic", spec).await;
    bed.ready("topic").await;
    bed.deployment("web", 1).await;
    for (round, (chat, description)) in [
        (forum().with_closed_topic(3), "TOPIC_CLOSED"),
        (forum(), "message thread not found"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("it-{round}");
        telegram.add_chat(chat);
        bed.track(&name, "Deployment", "web", "replicas", "topic")
            .await;
        let (_, message) = condition(&bed.not_ready("topic", "TopicUnavailable").await);
        assert!(message.contains(description), "{message}");
        assert!(is(&bed.history(&name).await[0], Delivery::Pending));
        telegram.add_chat(forum().with_topic(3));
        bed.delivered(&name, &[("Created", Some("1"))]).await;
        bed.ready("topic").await;
    }
    assert!(
        telegram
            .messages()
            .iter()
            .all(|message| message.message_thread_id == Some(3))
    );
}

/// A rejected template text is not the only text: the default text remains.
#[tokio::test]
async fn rejected_template_text_is_replaced_by_the_default_text_before_an_entry_fails() {
    let bed = Bed::shared("default-text").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    receiver.at_text("poison", status(400));
    bed.deployment("web", 1).await;
    let target = json!({ "kind": "Deployment", "namespace": bed.namespace, "name": "web" });
    let spec = json!({ "target": target, "contactPoint": "hook", "field": "replicas", "template": "poison {{ value }}" });
    bed.create::<TrackedField>("it", json!({ "spec": spec }))
        .await;
    bed.delivered("it", &[("Created", Some("1"))]).await;
    assert_eq!(
        (receiver.requests().len(), accepted(&receiver).len()),
        (3, 2)
    );
}
