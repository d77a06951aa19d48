//! Contact points: the time of the test message, and a Telegram receiver's answers.

use std::time::{Duration, Instant};

use http::StatusCode;
use k8s_openapi::api::core::v1::Secret;
use qm_api::{ContactPoint, TrackedField};
use serde_json::{Value, json};
use testbed::bot_api::{Chat, Kind};
use testbed::receiver::{Receiver, Reply};
use testbed::wait::until;

use crate::support::{Bed, CHAT, Operator, SOON, Settings, TOKEN, accepted, bot_api, condition};

fn status(code: u16) -> Reply {
    Reply::status(StatusCode::from_u16(code).unwrap())
}

#[tokio::test]
async fn each_endpoint_gets_one_test_message() {
    let bed = Bed::shared("tested").await;
    let receiver = Receiver::start().unwrap();
    let mut operator = Operator::start(
        &bed,
        Settings::default().flag("--secret-refresh-period=200ms"),
    )
    .await;
    bed.secret("token", "first-token").await;
    let spec = json!({
        "type": "Webhook",
        "webhookSpec": { "url": receiver.url(), "headerName": "X-Token" },
        "apiToken": { "secretName": "token", "key": "token" },
    });
    bed.create::<ContactPoint>("hook", json!({ "spec": spec }))
        .await;
    bed.deployment("web", 1).await;
    bed.track("replicas", "Deployment", "web", "replicas", "hook")
        .await;
    bed.delivered("replicas", &[("Created", Some("1"))]).await;
    let tests = || {
        let all = accepted(&receiver);
        all.iter()
            .filter(|request| request.json().unwrap()["text"] == "Contact point is ready")
            .count()
    };
    assert_eq!(tests(), 1);

    // A label, a suspension and its end, reconciles on request and by the clock, a restart: none causes a test message.
    bed.patch::<ContactPoint>("hook", json!({ "metadata": { "labels": { "a": "b" } } }))
        .await;
    bed.patch::<ContactPoint>(
        "hook",
        json!({ "metadata": { "annotations": { "quartermaster.dev/requested-at": "1" } } }),
    )
    .await;
    bed.patch::<ContactPoint>("hook", json!({ "spec": { "suspend": true } }))
        .await;
    bed.scale("web", 2).await;
    let message = bed.waiting("replicas", "ContactPointNotReady: ").await;
    assert!(message.contains("suspended"), "{message}");
    let suspended = bed.not_ready("hook", "Suspended").await;
    assert_eq!(
        suspended.status.as_ref().unwrap().observed_generation,
        suspended.metadata.generation
    );
    // A suspended contact point can be resumed after a restart.
    operator.kill();
    operator.restart();
    operator.ready().await;
    bed.patch::<ContactPoint>("hook", json!({ "spec": { "suspend": false } }))
        .await;
    let resumed = bed.ready("hook").await;
    assert_eq!(
        resumed.status.as_ref().unwrap().observed_generation,
        resumed.metadata.generation
    );
    assert_eq!(condition(&resumed).0, "Ready");
    bed.delivered(
        "replicas",
        &[("Created", Some("1")), ("Updated", Some("2"))],
    )
    .await;
    operator.kill();
    operator.restart();
    operator.ready().await;
    bed.scale("web", 3).await;
    let mut expected = vec![
        ("Created", Some("1")),
        ("Updated", Some("2")),
        ("Updated", Some("3")),
    ];
    bed.delivered("replicas", &expected).await;
    assert_eq!(tests(), 1);

    bed.patch::<ContactPoint>(
        "hook",
        json!({ "spec": { "webhookSpec": { "headers": { "X-More": "1" } } } }),
    )
    .await;
    receiver.wait_for(SOON, |_| tests() == 2).await.unwrap();
    bed.patch::<k8s_openapi::api::core::v1::Secret>(
        "token",
        json!({ "stringData": { "token": "second-token" } }),
    )
    .await;
    receiver.wait_for(SOON, |_| tests() == 3).await.unwrap();
    assert_eq!(
        accepted(&receiver).last().unwrap().header("x-token"),
        Some("second-token")
    );
    bed.scale("web", 4).await;
    expected.push(("Updated", Some("4")));
    bed.delivered("replicas", &expected).await;
    assert_eq!((tests(), accepted(&receiver).len()), (3, 7));
}

#[tokio::test]
async fn footer_ends_every_message_and_is_tested() {
    const FOOTER: &str = "Owner: <b>shop</b> & \"co\"";
    let bed = Bed::shared("footer").await;
    let receiver = Receiver::start().unwrap();
    let telegram = bot_api();
    let _operator = Operator::start(&bed, Settings::default().telegram(&telegram.url())).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    assert!(
        receiver.requests()[0]
            .json()
            .unwrap()
            .get("footer")
            .is_none()
    );
    // The new text is shown at once.
    bed.patch::<ContactPoint>("hook", json!({ "spec": { "footer": FOOTER } }))
        .await;
    receiver
        .wait_for(SOON, |requests| requests.len() == 2)
        .await
        .unwrap();
    bed.telegram("chat", TOKEN, CHAT).await;
    bed.patch::<ContactPoint>("chat", json!({ "spec": { "footer": FOOTER } }))
        .await;
    let ends = |text: &str| text.ends_with(&format!("\n{FOOTER}"));
    until("a test message with the footer", SOON, async || {
        let messages = telegram.messages();
        Ok(messages
            .last()
            .is_some_and(|it| ends(&it.text))
            .then_some(()))
    })
    .await
    .unwrap();
    for (name, point) in [("hooked", "hook"), ("chatted", "chat")] {
        bed.deployment(name, 1).await;
        bed.track(name, "Deployment", name, "replicas", point).await;
        bed.delivered(name, &[("Created", Some("1"))]).await;
    }
    for request in &receiver.requests()[1..] {
        let data = request.json().unwrap();
        assert_eq!(data["footer"], FOOTER);
        assert!(ends(data["text"].as_str().unwrap()), "{data}");
    }
    let text = telegram.messages().last().unwrap().text.clone();
    assert!(text.starts_with("Resource kind: ") && ends(&text), "{text}");

    // A digest.
    bed.patch::<ContactPoint>("hook", json!({ "spec": { "digestSeconds": 300 } }))
        .await;
    bed.until("hook", "gathers entries", |point: &ContactPoint| {
        let status = point.status.as_ref().unwrap();
        status.observed_generation == point.metadata.generation
    })
    .await;
    for replicas in [2, 3] {
        bed.scale("hooked", replicas).await;
        bed.until("hooked", "has the entry", |field: &TrackedField| {
            let history = field.history().unwrap();
            history.last().unwrap().value.as_deref() == Some(&*replicas.to_string())
        })
        .await;
    }
    bed.patch::<ContactPoint>("hook", json!({ "spec": { "digestSeconds": 0 } }))
        .await;
    let all = [
        ("Created", Some("1")),
        ("Updated", Some("2")),
        ("Updated", Some("3")),
    ];
    bed.delivered("hooked", &all).await;
    let digest = receiver.requests().last().unwrap().json().unwrap();
    assert_eq!(digest["footer"], FOOTER, "{digest}");
    assert_eq!(digest["entries"].as_array().unwrap().len(), 2);
}

/// Anybody who may annotate can request a test message without the command.
#[tokio::test]
async fn annotation_sends_one_test_message_for_each_value() {
    let bed = Bed::shared("test-at").await;
    let receiver = Receiver::start().unwrap();
    let settings = || Settings::default().leader_election(20);
    let mut first = Operator::start(&bed, settings()).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    let request = async |value: &str| {
        let annotations = json!({ "quartermaster.dev/test-at": value });
        let patch = json!({ "metadata": { "annotations": annotations } });
        bed.patch::<ContactPoint>("hook", patch).await;
    };
    let answered = async |value: &str| {
        let point = bed.until("hook", "has the answer", |point: &ContactPoint| {
            let status = point.status.as_ref().unwrap();
            let test = status.last_test.as_ref().unwrap();
            test.requested_at.as_deref() == Some(value)
        });
        point.await.status.unwrap().last_test.unwrap().error
    };
    request("1").await;
    assert_eq!(answered("1").await, None);
    assert_eq!(accepted(&receiver).len(), 2);
    let ids = || {
        let all = accepted(&receiver);
        let ids = all
            .iter()
            .map(|request| request.header("ce-id").unwrap().to_owned());
        ids.collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(ids().len(), 2, "another message than the first one");

    // A request that failed is not repeated, and the contact point stays ready.
    receiver.next(1, status(503));
    request("2").await;
    let error = answered("2").await.unwrap();
    assert!(error.contains("503"), "{error}");
    bed.ready("hook").await;

    // Neither a restart nor a failover sends the message again. A message to be sent would precede the change's.
    first.kill();
    first.restart();
    first.ready().await;
    bed.deployment("web", 1).await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    let mut expected = vec![("Created", Some("1"))];
    bed.delivered("it", &expected).await;
    assert_eq!(receiver.requests().len(), 4);
    let _second = Operator::start(&bed, settings()).await;
    first.kill();
    bed.scale("web", 2).await;
    expected.push(("Updated", Some("2")));
    bed.delivered("it", &expected).await;
    assert_eq!(receiver.requests().len(), 5);
    request("3").await;
    assert_eq!(answered("3").await, None);
    assert_eq!(receiver.requests().len(), 6);
}

#[tokio::test]
async fn requested_test_message_that_is_refused_stops_the_contact_point() {
    let bed = Bed::shared("test-refused").await;
    let receiver = Receiver::start().unwrap();
    let _operator =
        Operator::start(&bed, Settings::default().flag("--stopped-retry-period=1h")).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    receiver.always(status(404));
    let request = async |value: &str| {
        let annotations = json!({ "quartermaster.dev/test-at": value });
        let patch = json!({ "metadata": { "annotations": annotations } });
        bed.patch::<ContactPoint>("hook", patch).await;
    };
    request("1").await;
    let stopped = bed.not_ready("hook", "NotFound").await;
    let test = stopped.status.unwrap().last_test.unwrap();
    assert_eq!(test.requested_at.as_deref(), Some("1"));
    assert!(test.error.unwrap().contains("404"));
    // The next one opens it again.
    receiver.behave();
    request("2").await;
    let ready = bed.ready("hook").await;
    let test = ready.status.unwrap().last_test.unwrap();
    assert_eq!(
        (test.requested_at.as_deref(), test.error),
        (Some("2"), None)
    );
}

#[tokio::test]
async fn status_drops_fields_of_the_former_spec() {
    let bed = Bed::shared("leaves").await;
    let receiver = Receiver::start().unwrap();
    let mut operator = Operator::start(&bed, Settings::default()).await;
    bed.secret("token", "a-token").await;
    let spec = json!({
        "type": "Webhook",
        "webhookSpec": { "url": receiver.url(), "headerName": "X-Token" },
        "apiToken": { "secretName": "token", "key": "token" },
    });
    bed.create::<ContactPoint>("hook", json!({ "spec": spec }))
        .await;
    assert_eq!(
        bed.ready("hook")
            .await
            .status
            .unwrap()
            .last_test
            .unwrap()
            .secrets
            .len(),
        1
    );
    bed.patch::<ContactPoint>(
        "hook",
        json!({ "spec": { "apiToken": null, "webhookSpec": { "headerName": null } } }),
    )
    .await;
    receiver
        .wait_for(SOON, |requests| requests.len() == 2)
        .await
        .unwrap();
    let point = bed.until("hook", "no Secret", |point: &ContactPoint| {
        let status = point.status.as_ref().unwrap();
        status.observed_generation == point.metadata.generation
            && status.last_test.as_ref().unwrap().secrets.is_empty()
    });
    let point = point.await;

    // Nothing is left to report or to send, not even after a restart. A message to be sent would precede the next
    // change's message.
    operator.kill();
    operator.restart();
    operator.ready().await;
    bed.deployment("web", 1).await;
    bed.track("replicas", "Deployment", "web", "replicas", "hook")
        .await;
    bed.delivered("replicas", &[("Created", Some("1"))]).await;
    assert_eq!(
        bed.ready("hook").await.metadata.resource_version,
        point.metadata.resource_version
    );
    assert_eq!(accepted(&receiver).len(), 3);
}

/// A user who may create a `ContactPoint` must not reach the operator's own ports.
#[tokio::test]
async fn webhook_to_the_operator_itself_is_rejected() {
    let bed = Bed::shared("itself").await;
    let receiver = Receiver::start().unwrap();
    let settings = Settings::default().flag("--pod-ip=127.0.0.1,fd00::7");
    let _operator = Operator::start(&bed, settings).await;
    bed.webhook("hook", &receiver.url()).await;
    let (_, message) = condition(&bed.not_ready("hook", "AddressNotAllowed").await);
    assert!(
        message.contains(
            "the address 127.0.0.1 is not allowed: the operator's own address is always denied"
        ),
        "{message}"
    );
    assert_eq!(receiver.requests().len(), 0);
}

#[tokio::test]
async fn first_status_has_both_fields() {
    let bed = Bed::shared("first").await;
    let receiver = Receiver::start().unwrap();
    receiver.refuse().await.unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.telegram("no-api", TOKEN, CHAT).await;
    bed.webhook("away", &receiver.url()).await;
    let first = |status: &Value| !status.is_null();
    let status = async |name: &str| {
        let arguments = ["get", "contactpoint", name, "-o", "jsonpath={.status}"];
        until("a status", SOON, async || {
            let text = bed.kubectl(&arguments).await;
            Ok(serde_json::from_str::<Value>(&text).ok().filter(first))
        })
        .await
        .unwrap()
    };
    let spec = json!({ "type": "Telegram", "telegramSpec": { "chatId": CHAT }, "apiToken": { "secretName": "none", "key": "token" } });
    bed.create::<ContactPoint>("no-secret", json!({ "spec": spec }))
        .await;
    let unreachable = status("away").await;
    assert_eq!(
        (&unreachable["initialized"], &unreachable["ready"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(unreachable["conditions"][0]["reason"], "Unreachable");
    let none = status("no-secret").await;
    assert_eq!(
        (&none["initialized"], &none["ready"]),
        (&json!(false), &json!(false)),
        "no Secret, no attempt"
    );
    receiver.accept().await.unwrap();
    let ready = bed.ready("away").await;
    assert_eq!(ready.status.unwrap().observed_generation, Some(1));
    bed.kubectl(&[
        "wait",
        "--for=condition=Ready",
        "contactpoint/away",
        "--timeout=10s",
    ])
    .await;
}

#[tokio::test]
async fn telegram_rejections_are_reported_and_recover() {
    let bed = Bed::shared("refusals").await;
    let telegram = bot_api();
    let _operator = Operator::start(&bed, Settings::default().telegram(&telegram.url())).await;

    // 401: the operator reads the Secret again after each answer, and not only when its five minutes are over.
    let wrong = "99999999:ZZZZZZZZZZZZZZZZZZZZZZZZZZZZ";
    bed.telegram("token", wrong, CHAT).await;
    let point = bed.not_ready("token", "Unauthorized").await;
    assert!(point.status.as_ref().unwrap().initialized);
    let (_, message) = condition(&point);
    assert!(
        message.contains("401") && message.contains("BotFather") && !message.contains(wrong),
        "{message}"
    );
    let attempts = telegram.rejected().len();
    until("the operator retries now and then", SOON, async || {
        Ok((telegram.rejected().len() >= attempts + 2).then_some(()))
    })
    .await
    .unwrap();
    bed.patch::<k8s_openapi::api::core::v1::Secret>(
        "token-token",
        json!({ "stringData": { "token": TOKEN } }),
    )
    .await;
    bed.ready("token").await;

    // A chat that does not exist, and then does.
    bed.telegram("chat", TOKEN, 777).await;
    bed.not_ready("chat", "ChatNotFound").await;
    telegram.add_chat(Chat::new(Kind::Private, 777).unwrap());
    bed.ready("chat").await;

    // A user who blocks the bot while a message waits.
    telegram.add_chat(Chat::new(Kind::Private, 888).unwrap());
    bed.telegram("blocked", TOKEN, 888).await;
    bed.ready("blocked").await;
    telegram.add_chat(Chat::new(Kind::Private, 888).unwrap().closed());
    bed.deployment("web", 1).await;
    bed.track("replicas", "Deployment", "web", "replicas", "blocked")
        .await;
    let (_, message) = condition(&bed.not_ready("blocked", "Forbidden").await);
    assert!(message.contains("bot was blocked by the user"), "{message}");
    let waiting = bed
        .waiting("replicas", "ContactPointNotReady: \"blocked\": Forbidden: ")
        .await;
    assert!(waiting.contains("blocked by the user"), "{waiting}");
    telegram.add_chat(Chat::new(Kind::Private, 888).unwrap());
    bed.delivered("replicas", &[("Created", Some("1"))]).await;
    bed.ready("blocked").await;
    bed.waiting("replicas", "").await;
    let texts: Vec<_> = telegram
        .messages()
        .iter()
        .filter(|m| m.chat_id == 888)
        .map(|m| m.text.clone())
        .collect();
    assert!(
        (2..=3).contains(&texts.len()),
        "a message showed the recovery: {texts:?}"
    );
    bed.event("blocked", "Forbidden").await;
}

#[tokio::test]
async fn migrated_group_is_followed_and_reported() {
    const OLD: i64 = -4_242;
    const NEW: i64 = -1_001_234_567_890;
    let bed = Bed::shared("moved").await;
    let telegram = bot_api();
    telegram.add_chat(Chat::new(Kind::Group, OLD).unwrap());
    telegram.add_chat(Chat::new(Kind::Supergroup, NEW).unwrap());
    let mut operator = Operator::start(&bed, Settings::default().telegram(&telegram.url())).await;
    bed.telegram("group", TOKEN, OLD).await;
    bed.ready("group").await;
    telegram.add_chat(Chat::new(Kind::Group, OLD).unwrap().upgraded_to(NEW));
    bed.deployment("web", 1).await;
    bed.track("replicas", "Deployment", "web", "replicas", "group")
        .await;
    bed.delivered("replicas", &[("Created", Some("1"))]).await;
    let point = bed.until("group", "the new chat", |point: &ContactPoint| {
        point
            .status
            .as_ref()
            .is_some_and(|status| status.migrated_to_chat_id == Some(NEW))
    });
    let (reason, message) = condition(&point.await);
    assert!(
        reason == "Ready" && message.contains(&NEW.to_string()),
        "{reason}: {message}"
    );
    assert_eq!(bed.event("group", "Ready").await.len().min(1), 1);

    // The operator does not use the old chat id again, not even after a restart.
    let refused = telegram.rejected().len();
    let mut expected = vec![("Created", Some("1")), ("Updated", Some("2"))];
    bed.scale("web", 2).await;
    bed.delivered("replicas", &expected).await;
    operator.kill();
    operator.restart();
    bed.scale("web", 3).await;
    expected.push(("Updated", Some("3")));
    bed.delivered("replicas", &expected).await;
    assert_eq!(telegram.rejected().len(), refused);
    let chats = || {
        telegram
            .messages()
            .iter()
            .map(|message| message.chat_id)
            .collect::<Vec<_>>()
    };
    assert_eq!(chats(), [OLD, NEW, NEW, NEW]);
    let (_, message) = condition(&bed.ready("group").await);
    assert!(
        message.contains(&NEW.to_string()),
        "a restart keeps the chat id: {message}"
    );

    // A changed chat id is another chat.
    telegram.add_chat(Chat::new(Kind::Private, CHAT).unwrap());
    bed.patch::<ContactPoint>(
        "group",
        json!({ "spec": { "telegramSpec": { "chatId": CHAT } } }),
    )
    .await;
    let forgotten = bed.until("group", "the chat of the spec", |point: &ContactPoint| {
        point
            .status
            .as_ref()
            .is_some_and(|status| status.observed_generation == point.metadata.generation)
    });
    assert_eq!(forgotten.await.status.unwrap().migrated_to_chat_id, None);
    bed.scale("web", 4).await;
    expected.push(("Updated", Some("4")));
    bed.delivered("replicas", &expected).await;
    assert_eq!(chats()[4..], [CHAT, CHAT]);
}

#[tokio::test]
async fn retry_after_is_kept_to_the_second() {
    let bed = Bed::shared("later").await;
    let telegram = bot_api();
    let _operator = Operator::start(&bed, Settings::default().telegram(&telegram.url())).await;
    bed.telegram("chat", TOKEN, CHAT).await;
    bed.ready("chat").await;
    let body = json!({ "ok": false, "error_code": 429, "description": "Too Many Requests: retry after 30", "parameters": { "retry_after": 30 } });
    let later = testbed::bot_api::Reply::status(http::StatusCode::TOO_MANY_REQUESTS).json(&body);
    telegram.fault_next(1, testbed::bot_api::Fault::Instead(later));
    bed.deployment("web", 1).await;
    bed.track("replicas", "Deployment", "web", "replicas", "chat")
        .await;
    let refused = until("the 429", SOON, async || {
        Ok(telegram.rejected().first().cloned())
    })
    .await
    .unwrap();
    // Another chat is not blocked.
    telegram.add_chat(Chat::new(Kind::Private, 999).unwrap());
    bed.telegram("other", TOKEN, 999).await;
    bed.ready("other").await;
    bed.delivered("replicas", &[("Created", Some("1"))]).await;
    let messages = telegram.messages();
    let at = |chat: i64, nth: usize| {
        messages
            .iter()
            .filter(|message| message.chat_id == chat)
            .nth(nth)
            .unwrap()
            .at
    };
    assert!(
        at(CHAT, 1) - refused.at >= Duration::from_secs(30),
        "{:?}",
        at(CHAT, 1) - refused.at
    );
    assert!(at(999, 0) < at(CHAT, 1));
    assert_eq!(telegram.rejected().len(), 1);
    bed.ready("chat").await;
}

/// The pause delays the test message.
#[tokio::test]
async fn contact_point_reports_no_former_obstacle_during_a_pause_of_telegram() {
    let bed = Bed::shared("obstacle").await;
    let telegram = bot_api();
    let _operator = Operator::start(&bed, Settings::default().telegram(&telegram.url())).await;
    bed.telegram("chat", TOKEN, CHAT).await;
    bed.ready("chat").await;
    let body = json!({ "ok": false, "error_code": 429, "description": "Too Many Requests: retry after 3600", "parameters": { "retry_after": 3600 } });
    let later = testbed::bot_api::Reply::status(StatusCode::TOO_MANY_REQUESTS).json(&body);
    telegram.fault_next(1, testbed::bot_api::Fault::Instead(later));
    bed.deployment("web", 1).await;
    bed.track("replicas", "Deployment", "web", "replicas", "chat")
        .await;
    bed.waiting("replicas", "DeliveryFailing: ").await;

    bed.delete::<Secret>("chat-token").await;
    bed.request_reconcile::<ContactPoint>("chat").await;
    bed.not_ready("chat", "SecretNotFound").await;
    bed.secret("chat-token", TOKEN).await;
    bed.not_ready("chat", "Progressing").await;
    let untested = "ContactPointNotReady: \"chat\": the operator has not tested it yet";
    bed.waiting("replicas", untested).await;

    bed.patch::<ContactPoint>("chat", json!({ "spec": { "suspend": true } }))
        .await;
    bed.not_ready("chat", "Suspended").await;
    bed.patch::<ContactPoint>("chat", json!({ "spec": { "suspend": false } }))
        .await;
    bed.not_ready("chat", "Progressing").await;
    assert_eq!(telegram.messages().len(), 1, "nothing during the pause");
}

#[tokio::test]
async fn changed_secret_takes_effect_within_a_second() {
    let bed = Bed::shared("acting").await;
    let telegram = bot_api();
    // The first delay is the product's own; the longest is more than a slow machine needs.
    let settings = Settings::default()
        .telegram(&telegram.url())
        .flag("--poll-min=1s")
        .flag("--poll-max=5m");
    let _operator = Operator::start(&bed, settings).await;
    let spec = json!({ "type": "Telegram", "telegramSpec": { "chatId": CHAT }, "apiToken": { "secretName": "late", "key": "token" } });
    bed.create::<ContactPoint>("late", json!({ "spec": spec }))
        .await;
    bed.not_ready("late", "SecretNotFound").await;
    bed.secret("late", TOKEN).await;
    let since = Instant::now();
    bed.ready("late").await;
    // The rule allows one to two seconds.
    assert!(
        since.elapsed() < Duration::from_mins(2),
        "{:?}",
        since.elapsed()
    );
    assert_eq!(telegram.messages().len(), 1);
}
