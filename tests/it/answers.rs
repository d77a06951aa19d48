//! Effects of a receiver's answer on the contact point, the message, and the messages behind it.

use std::time::Duration;

use futures::{StreamExt, stream};
use http::StatusCode;
use k8s_openapi::api::core::v1::Secret;
use kube::ResourceExt;
use kube::api::ListParams;
use qm_api::tracked_field::Delivery;
use qm_api::{ContactPoint, TrackedField};
use serde_json::{Value, json};
use testbed::bot_api::Fault;
use testbed::receiver::{Receiver, Reply};
use testbed::wait::until;

use crate::support::{Bed, CHAT, Operator, SOON, Settings, TOKEN, bot_api, changes, condition};

fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap()
}

/// Returns the reason for each status, as the condition of a contact point whose test message
/// gets this answer.
fn webhook_reason(code: u16) -> &'static str {
    match code {
        300..=399 => "Redirected",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        408 | 429 | 500..=599 => "Unreachable",
        410 => "Gone",
        400 | 413 | 415 | 422 => "Rejected",
        _ => "UnexpectedStatus",
    }
}

fn telegram_reason(code: u16) -> &'static str {
    if code == 404 {
        "Unauthorized"
    } else {
        webhook_reason(code)
    }
}

/// Returns whether the rules name this status; some further ones count too. Chats test only these, because each chat
/// needs a Secret too.
fn is_named(code: u16) -> bool {
    matches!(code, 300..=308 | 400..=429 | 451 | 499..=511 | 599) || code.is_multiple_of(20)
}

/// Three hundred webhooks, one for each status, and nearly a hundred chats. A receiver plays the Bot API here, so that
/// each bot's path can have its own answer.
#[tokio::test]
async fn contact_point_reports_every_status_from_300_to_599_and_recovers() {
    let bed = Bed::shared("statuses").await;
    let receiver = Receiver::start().unwrap();
    // An answer of a Bot API, with a description and without.
    let error_answer = json!({ "ok": false, "description": "no" });
    let token = |code: u16| format!("{code}:{}", "A".repeat(28));
    for code in 300..=599_u16 {
        let reply = Reply::status(status(code)).header(
            http::header::LOCATION,
            http::HeaderValue::from_static("/ok"),
        );
        receiver.at_path(&format!("/hook/{code}"), reply.clone());
        let reply = if matches!(code, 304) || code % 2 == 0 {
            reply
        } else {
            reply.json(&error_answer)
        };
        receiver.at_path(&format!("/bot{}/sendMessage", token(code)), reply);
    }
    let settings = Settings::default()
        .telegram(&receiver.url())
        .flag("--backoff-max=2s")
        .flag("--stopped-retry-period=2s")
        .flag("--log-level=info");
    let operator = Operator::start(&bed, settings).await;
    let made = stream::iter(300..=599_u16).for_each_concurrent(16, |code| {
        let (bed, url, token) = (&bed, format!("{}/hook/{code}", receiver.url()), token(code));
        async move {
            bed.webhook(&format!("hook-{code}"), &url).await;
            if is_named(code) {
                bed.telegram(&format!("chat-{code}"), &token, i64::from(code))
                    .await;
            }
        }
    });
    made.await;

    let all = async || {
        let points = bed
            .api::<ContactPoint>()
            .list(&ListParams::default())
            .await?
            .items;
        anyhow::ensure!(points.len() == 300 + (300..=599).filter(|code| is_named(*code)).count());
        anyhow::Ok(points)
    };
    let reason = |point: &ContactPoint| point.status.as_ref().map(|_| condition(point).0);
    let wrong = |point: &ContactPoint| {
        let name = point.name_any();
        let code = name.rsplit('-').next().unwrap().parse().unwrap();
        let expected = if name.starts_with("hook") {
            webhook_reason(code)
        } else {
            telegram_reason(code)
        };
        let observed = reason(point);
        let matches =
            observed.as_deref() == Some(expected) && !point.status.as_ref().unwrap().ready;
        (!matches).then(|| format!("{name}: {observed:?}, not {expected}"))
    };
    let answered = until("each contact point has its reason", 3 * SOON, async || {
        let wrong: Vec<_> = all().await?.iter().filter_map(wrong).collect();
        anyhow::ensure!(wrong.is_empty(), "{wrong:?}");
        Ok(Some(()))
    });
    answered.await.unwrap();
    for point in all().await.unwrap() {
        let (_, message) = condition(&point);
        let code = point.name_any().rsplit('-').next().unwrap().to_owned();
        assert!(message.contains(&code), "{}: {message}", point.name_any());
    }
    assert!(
        !receiver
            .requests()
            .iter()
            .any(|request| request.path == "/ok"),
        "a redirect was followed"
    );

    receiver.behave();
    receiver.always(Reply::ok().json(&json!({ "ok": true, "result": {} })));
    let recovered = until("all are ready", 3 * SOON, async || {
        let points = all().await?;
        let left: Vec<_> = points
            .iter()
            .filter(|p| !p.status.as_ref().is_some_and(|s| s.ready))
            .collect();
        anyhow::ensure!(
            left.is_empty(),
            "{} are not, such as {:?}",
            left.len(),
            left[0]
        );
        Ok(Some(()))
    });
    recovered.await.unwrap();
    assert!(!operator.logs().contains("panicked"));
}

/// Outcome of a message that gets an answer after the contact point was ready.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fate {
    /// The contact point stops, for this reason; the message waits.
    Stops(&'static str),
    /// The message waits, the contact point stays ready.
    Waits,
    /// The message fails after an accepted test message; later messages go out.
    Fails,
}

#[tokio::test]
async fn message_waits_or_fails_by_its_answer() {
    let cases: [(u16, Fate); 14] = [
        (302, Fate::Stops("Redirected")),
        (308, Fate::Stops("Redirected")),
        (400, Fate::Fails),
        (401, Fate::Stops("Unauthorized")),
        (403, Fate::Stops("Forbidden")),
        (404, Fate::Stops("NotFound")),
        (408, Fate::Waits),
        (410, Fate::Stops("Gone")),
        (413, Fate::Fails),
        (422, Fate::Fails),
        (429, Fate::Waits),
        (500, Fate::Waits),
        (503, Fate::Waits),
        (599, Fate::Waits),
    ];
    let bed = Bed::shared("fates").await;
    let operator = Operator::start(&bed, Settings::default()).await;
    bed.deployment("web", 1).await;
    let scenes: Vec<_> = cases
        .map(|(code, fate)| (code, fate, Receiver::start().unwrap()))
        .into_iter()
        .collect();
    for (code, fate, receiver) in &scenes {
        let name = code.to_string();
        bed.webhook(&name, &receiver.url()).await;
        bed.ready(&name).await;
        // The rejection concerns the receiver as a whole, or only the message.
        let reply = Reply::status(status(*code)).body(format!("because-{code}"));
        match fate {
            Fate::Fails => receiver.at_text("\"trackedField\"", reply),
            Fate::Stops(_) | Fate::Waits => receiver.always(reply),
        }
        bed.track(&name, "Deployment", "web", "replicas", &name)
            .await;
    }
    for (code, fate, receiver) in &scenes {
        let name = code.to_string();
        match fate {
            Fate::Stops(reason) => {
                let (_, message) = condition(&bed.not_ready(&name, reason).await);
                assert!(message.contains(&name), "{message}");
                assert_eq!(bed.event(&name, reason).await, message);
                let waiting = bed
                    .waiting(
                        &name,
                        &format!("ContactPointNotReady: {name:?}: {reason}: "),
                    )
                    .await;
                assert!(waiting.ends_with(&message), "{waiting}");
                assert_eq!(
                    bed.history(&name).await[0].delivery,
                    Some(Delivery::Pending)
                );
            }
            Fate::Waits => {
                let message = bed
                    .waiting(&name, &format!("DeliveryFailing: {name:?}: "))
                    .await;
                assert!(
                    message.contains(&format!("{code} because-{code}"))
                        && message.ends_with("the operator retries")
                );
                bed.event(&name, "DeliveryFailing").await;
                assert_eq!(
                    bed.history(&name).await[0].delivery,
                    Some(Delivery::Pending)
                );
                assert!(
                    bed.ready(&name).await.status.unwrap().ready,
                    "a tested contact point stays ready"
                );
            }
            Fate::Fails => {
                let failed = |field: &TrackedField| {
                    field
                        .history()
                        .unwrap()
                        .iter()
                        .any(|e| e.delivery == Some(Delivery::Failed))
                };
                let history = bed
                    .until(&name, "given up", failed)
                    .await
                    .history()
                    .unwrap();
                let reason = history[0].reason.clone().unwrap();
                assert!(
                    reason.contains(&format!("{code} because-{code}")),
                    "{reason}"
                );
                assert_eq!(
                    bed.event(&name, "DeliveryFailed").await,
                    format!("failed to deliver the change Created 1: {reason}")
                );
                assert!(
                    bed.ready(&name).await.status.unwrap().ready,
                    "only the message is at fault"
                );
                let attempts = receiver.requests().len();
                assert_eq!(
                    attempts, 4,
                    "the test message, one attempt, another test message, the last attempt"
                );
            }
        }
    }
    for (_, _, receiver) in &scenes {
        receiver.behave();
    }
    bed.scale("web", 2).await;
    for (code, fate, receiver) in &scenes {
        let name = code.to_string();
        let first = if *fate == Fate::Fails {
            Delivery::Failed
        } else {
            Delivery::Delivered
        };
        bed.until(&name, "continues without action", |field: &TrackedField| {
            let all: Vec<_> = field
                .history()
                .unwrap()
                .iter()
                .map(|entry| entry.delivery)
                .collect();
            all == [Some(first), Some(Delivery::Delivered)]
        })
        .await;
        bed.waiting(&name, "").await;
        bed.ready(&name).await;
        let answered: Vec<_> = changes(receiver)
            .iter()
            .map(|change| change["value"].clone())
            .collect();
        let expected = if *fate == Fate::Fails {
            vec!["2"]
        } else {
            vec!["1", "2"]
        };
        assert_eq!(answered, expected, "{code}");
        // A retried request is identical.
        let keys = |value: &str| {
            let about = |request: &&std::sync::Arc<testbed::receiver::Request>| {
                request
                    .json()
                    .is_ok_and(|data: Value| data["value"] == value)
            };
            let all = receiver.requests();
            all.iter()
                .filter(about)
                .map(|r| r.header("idempotency-key").unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert!(
            keys("1").windows(2).all(|pair| pair[0] == pair[1]),
            "{code}"
        );
    }
    let metrics = operator.metrics().await;
    for outcome in ["delivered", "retried", "stopped", "rejected"] {
        let line = format!(
            "quartermaster_delivery_attempts_total{{type=\"webhook\",outcome=\"{outcome}\"}}"
        );
        let count = metrics
            .lines()
            .find_map(|found| found.strip_prefix(&line)?.trim().parse::<f64>().ok());
        assert!(
            count.is_some_and(|count| count >= 4.0),
            "{outcome}: {count:?}\n{metrics}"
        );
    }
}

fn refusal(code: u16, description: &str) -> Fault {
    let body = json!({ "ok": false, "error_code": code, "description": description });
    Fault::Instead(Reply::status(status(code)).json(&body))
}

async fn with_template(bed: &Bed, name: &str, template: &str) {
    let target = json!({ "kind": "Deployment", "namespace": bed.namespace, "name": "web" });
    let spec = json!({ "target": target, "contactPoint": "chat", "field": "replicas", "template": template });
    bed.create::<TrackedField>(name, json!({ "spec": spec }))
        .await;
}

#[tokio::test]
async fn message_that_the_bot_api_rejects_fails_alone() {
    let bed = Bed::shared("refused").await;
    let telegram = bot_api();
    let _operator = Operator::start(&bed, Settings::default().telegram(&telegram.url())).await;
    bed.telegram("chat", TOKEN, CHAT).await;
    bed.ready("chat").await;
    bed.deployment("web", 1).await;
    let text = |nth: usize| {
        telegram
            .messages()
            .get(nth)
            .map(|message| message.text.clone())
            .unwrap_or_default()
    };

    // A template made the text: one more attempt follows, with the default message.
    telegram.fault_next(1, refusal(400, "Bad Request: can't parse entities"));
    with_template(&bed, "templated", "{{ name }} has {{ value }}").await;
    bed.delivered("templated", &[("Created", Some("1"))]).await;
    assert_eq!(telegram.rejected()[0].text.as_deref(), Some("web has 1"));
    assert!(
        text(1).starts_with("Resource kind: Deployment\nName: web\nStatus: Created\nValue: 1\n"),
        "{}",
        text(1)
    );
    // Only that message gets the default text: the next one uses its template again.
    bed.scale("web", 2).await;
    bed.delivered(
        "templated",
        &[("Created", Some("1")), ("Updated", Some("2"))],
    )
    .await;
    assert_eq!(text(2), "web has 2");

    // The default message is rejected too, and once more after a test message was accepted: the entry fails, and the
    // queue goes on.
    let mut replicas = 2;
    for (code, message) in [
        (400, "Bad Request: message is too long"),
        (413, "Request Entity Too Large"),
    ] {
        let before = telegram.rejected().len();
        let name = format!("failed-{code}");
        telegram.fault_next(2, refusal(code, message));
        telegram.fault_next(1, Fault::Nothing);
        telegram.fault_next(2, refusal(code, message));
        with_template(&bed, &name, "{{ value }}").await;
        let failed = |field: &TrackedField| {
            field
                .history()
                .unwrap()
                .iter()
                .any(|e| e.delivery == Some(Delivery::Failed))
        };
        let reason = bed.until(&name, "failed", failed).await.history().unwrap()[0]
            .reason
            .clone()
            .unwrap();
        assert!(reason.contains(&format!("({code} {message})")), "{reason}");
        assert!(bed.event(&name, "DeliveryFailed").await.ends_with(&reason));
        assert_eq!(
            telegram.rejected().len(),
            before + 4,
            "its template, then the default, twice"
        );
        replicas += 1;
        bed.scale("web", replicas).await;
        bed.until(&name, "continues", |field: &TrackedField| {
            field
                .history()
                .unwrap()
                .iter()
                .last()
                .is_some_and(|entry| entry.delivery == Some(Delivery::Delivered))
        })
        .await;
    }
    bed.ready("chat").await;
    assert_eq!(bed.events("chat", "Rejected").await.len(), 0);
}

/// An invalid answer, or one that is not a Bot API's, is retried.
#[tokio::test]
async fn invalid_answers_of_the_bot_api_are_retried() {
    let bed = Bed::shared("badly").await;
    let telegram = bot_api();
    let _operator = Operator::start(&bed, Settings::default().telegram(&telegram.url())).await;
    bed.telegram("chat", TOKEN, CHAT).await;
    bed.ready("chat").await;
    bed.deployment("web", 0).await;
    bed.track("it", "Deployment", "web", "replicas", "chat")
        .await;
    let mut expected = vec![("Created".to_owned(), "0".to_owned())];
    let delivered = async |expected: &[(String, String)]| {
        let expected: Vec<_> = expected
            .iter()
            .map(|(action, value)| (action.as_str(), Some(value.as_str())))
            .collect();
        bed.delivered("it", &expected).await
    };
    delivered(&expected).await;
    let faults = [
        (
            "bad JSON",
            Fault::bad_json(),
            "the response does not come from a Bot API",
        ),
        ("not ok", Fault::not_ok(), "Internal Server Error"),
        (
            "junk",
            Fault::Instead(Reply::junk(10 * 1024 * 1024)),
            "the response does not come from a Bot API",
        ),
        (
            "reset",
            Fault::Instead(Reply::reset()),
            "the connection failed",
        ),
        (
            "502",
            Fault::Instead(Reply::status(status(502)).body("<html>bad gateway</html>")),
            "502",
        ),
    ];
    for (replicas, (what, fault, message)) in faults.into_iter().enumerate() {
        telegram.fault_always(fault);
        let replicas = i32::try_from(replicas).unwrap() + 1;
        bed.scale("web", replicas).await;
        let waiting = bed.waiting("it", "DeliveryFailing: ").await;
        assert!(waiting.contains(message), "{what}: {waiting}");
        assert!(waiting.len() < 600, "{what}: {} bytes", waiting.len());
        telegram.heal();
        expected.push(("Updated".into(), replicas.to_string()));
        delivered(&expected).await;
        bed.waiting("it", "").await;
        bed.ready("chat").await;
    }
    assert_eq!(
        telegram.messages().len(),
        1 + expected.len(),
        "each message arrives once"
    );
}

/// After a 401 the operator reads the Secret immediately, even if the entry's own attempt got the 401.
#[tokio::test]
async fn changed_secret_replaces_a_revoked_token() {
    let bed = Bed::shared("revoked").await;
    let telegram = bot_api();
    let settings = Settings::default()
        .telegram(&telegram.url())
        .flag("--secret-refresh-period=1h")
        .flag("--stopped-retry-period=500ms");
    let _operator = Operator::start(&bed, settings).await;
    bed.telegram("chat", TOKEN, CHAT).await;
    bed.ready("chat").await;
    telegram.revoke_token(TOKEN);
    bed.deployment("web", 1).await;
    bed.track("it", "Deployment", "web", "replicas", "chat")
        .await;
    bed.not_ready("chat", "Unauthorized").await;
    bed.waiting("it", "ContactPointNotReady: \"chat\": Unauthorized: ")
        .await;
    let new = "12345678:NEWNEWNEWNEWNEWNEWNEWNEWNEWN";
    telegram.add_token(new);
    bed.patch::<Secret>("chat-token", json!({ "stringData": { "token": new } }))
        .await;
    bed.delivered("it", &[("Created", Some("1"))]).await;
    bed.ready("chat").await;
    bed.waiting("it", "").await;
    let attempts = telegram.rejected().len();
    assert!(attempts < 200, "{attempts} attempts: a hot loop");
    assert!(
        telegram
            .rejected()
            .windows(2)
            .all(|pair| pair[1].at - pair[0].at >= Duration::from_millis(250))
    );
}
