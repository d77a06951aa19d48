//! Requests to the Bot API.

use super::*;

#[tokio::test]
async fn telegram_message_is_one_post() {
    let server = MockServer::start().await;
    Mock::given(method("POST"))
        .and(path(format!("/bot{TOKEN}/sendMessage")))
        .respond_with(
            ResponseTemplate::new(200)
                .set_body_json(json!({ "ok": true, "result": { "message_id": 1 } })),
        )
        .mount(&server)
        .await;
    let sender = telegram(&server.uri());
    assert_eq!(
        sender.send(&chat(7), TEST, false).await,
        Ok(SendReceipt::default())
    );
    let items = [updated("1", "3"), updated("3", "4")];
    let sent = sender
        .send(&chat(7), MessageContent::Entries(&items), false)
        .await;
    assert_eq!(
        sent,
        Ok(SendReceipt {
            accepted: 2,
            migrated_to: None
        })
    );
    let requests = server.received_requests().await.unwrap();
    let bodies: Vec<Value> = requests
        .iter()
        .map(|request| request.body_json().unwrap())
        .collect();
    assert_eq!(
        bodies[0],
        json!({ "chat_id": 7, "text": "Contact point is ready" })
    );
    assert!(
        bodies[1]["text"]
            .as_str()
            .unwrap()
            .starts_with("2 changes\n")
    );
    assert_eq!(requests[0].headers["content-type"], "application/json");
}

/// Permanent and temporary errors, with a JSON response and without.
#[rstest]
#[case("{\"ok\":false,\"description\":\"x\"}")]
#[case("<html>")]
#[tokio::test]
async fn every_status_of_the_bot_api_has_its_error(#[case] body: &'static str) {
    let (server, status) = by_status(body).await;
    let sender = telegram(&server.uri());
    for code in 300..=599 {
        status.store(code, Ordering::SeqCst);
        let result = sender.send(&chat(7), TEST, false).await;
        let expected = match code {
            300..=399 => "Redirected",
            401 | 404 => "Unauthorized",
            403 => "Forbidden",
            408 | 429 | 500.. => "Retry",
            410 => "Gone",
            400 | 413 | 415 | 422 => "Rejected",
            _ => "UnexpectedStatus",
        };
        assert_eq!(kind(&result), expected, "{code}: {result:?}");
    }
}

#[rstest]
#[case(200, "", "Retry")]
#[case(200, "{\"ok\":", "Retry")]
#[case(200, "[]", "Retry")]
#[case(200, "{\"ok\":\"yes\"}", "Retry")]
#[case(200, "{\"ok\":false}", "Retry")]
#[case(
    200,
    "{\"ok\":false,\"error_code\":403,\"description\":\"bot was blocked\"}",
    "Forbidden"
)]
#[case(201, "{\"ok\":true}", "Retry")]
#[case(
    400,
    "{\"ok\":false,\"description\":\"Bad Request: chat not found\"}",
    "ChatNotFound"
)]
#[tokio::test]
async fn success_needs_status_200_and_ok(
    #[case] status: u16,
    #[case] body: &str,
    #[case] expected: &str,
) {
    let server = answering(ResponseTemplate::new(status).set_body_string(body)).await;
    let result = telegram(&server.uri()).send(&chat(7), TEST, false).await;
    assert_eq!(kind(&result), expected, "{result:?}");
}

#[tokio::test]
async fn retry_after_of_telegram_has_no_cap() {
    let body = json!({ "ok": false, "error_code": 429, "description": "Too Many Requests: retry after 90000",
        "parameters": { "retry_after": 90_000 } });
    let server = answering(
        ResponseTemplate::new(429)
            .set_body_json(body)
            .insert_header("Retry-After", "1"),
    )
    .await;
    let sender = telegram(&server.uri());
    let result = sender.send(&chat(7), TEST, false).await;
    assert!(
        after(&result) == Some(Duration::from_hours(25)),
        "{result:?}"
    );
    // The pause applies to that chat for all contact points, and to no other chat.
    sender.acquire(&chat(8), "team").await;
    let waited =
        tokio::time::timeout(Duration::from_millis(200), sender.acquire(&chat(7), "team")).await;
    assert!(waited.is_err());
}

/// A pause that is longer than the clock's range must not panic in the queue.
#[tokio::test]
async fn longest_pause_does_not_overflow_the_clock() {
    let body = json!({ "ok": false, "parameters": { "retry_after": u64::MAX } });
    let server = answering(ResponseTemplate::new(429).set_body_json(body)).await;
    let result = telegram(&server.uri()).send(&chat(7), TEST, false).await;
    let after = after(&result).unwrap();
    assert!(after > Duration::from_hours(50 * 365 * 24), "{after:?}");
    assert!(std::time::Instant::now().checked_add(after).is_some());
}

/// A header without parameters comes from a proxy. Nothing but a restart ends the pause of the chat early.
#[rstest]
#[case("60", 60)]
#[case("604800", 3600)]
#[case("18446744073709551615", 3600)]
#[case("99999999999999999999999", 3600)]
#[tokio::test]
async fn header_applies_without_parameters_up_to_an_hour(
    #[case] header: &str,
    #[case] seconds: u64,
) {
    for status in [429_u16, 503] {
        let template = ResponseTemplate::new(status).set_body_string("<html>");
        let server = answering(template.insert_header("Retry-After", header)).await;
        let result = telegram(&server.uri()).send(&chat(7), TEST, false).await;
        assert_eq!(after(&result), Some(Duration::from_secs(seconds)));
    }
}

#[tokio::test]
async fn migrated_chat_is_followed_once() {
    let server = MockServer::start().await;
    let moved = |to: i64| {
        ResponseTemplate::new(400).set_body_json(json!({ "ok": false, "error_code": 400,
            "description": "Bad Request: group chat was upgraded to a supergroup chat",
            "parameters": { "migrate_to_chat_id": to } }))
    };
    let to = -1_001_234_567_890_i64;
    Mock::given(body_partial_json(json!({ "chat_id": -7 })))
        .respond_with(moved(to))
        .mount(&server)
        .await;
    Mock::given(body_partial_json(json!({ "chat_id": to })))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({ "ok": true })))
        .mount(&server)
        .await;
    Mock::given(body_partial_json(json!({ "chat_id": -8 })))
        .respond_with(moved(-8))
        .mount(&server)
        .await;
    let sender = telegram(&server.uri());
    let sent = sender
        .send(
            &chat(-7),
            MessageContent::Entries(&[updated("1", "3")]),
            false,
        )
        .await;
    assert_eq!(
        sent,
        Ok(SendReceipt {
            accepted: 1,
            migrated_to: Some(to)
        })
    );
    assert_eq!(kind(&sender.send(&chat(-8), TEST, false).await), "Retry");
    assert_eq!(server.received_requests().await.unwrap().len(), 4);
}

/// The supergroup has its own rate limit and its own pause.
#[tokio::test]
async fn rate_limit_of_the_supergroup_applies_after_a_migration() {
    const TO: i64 = -1_001_234_567_890;
    let server = MockServer::start().await;
    let answer = |code: u16, parameters: Value| {
        let body = json!({ "ok": false, "error_code": code, "parameters": parameters });
        ResponseTemplate::new(code).set_body_json(body)
    };
    let (moved, busy) = (
        json!({ "migrate_to_chat_id": TO }),
        json!({ "retry_after": 90_000 }),
    );
    Mock::given(body_partial_json(json!({ "chat_id": -7 })))
        .respond_with(answer(400, moved))
        .mount(&server)
        .await;
    let new = || Mock::given(body_partial_json(json!({ "chat_id": TO })));
    new()
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({ "ok": true })))
        .up_to_n_times(1)
        .mount(&server)
        .await;
    new().respond_with(answer(429, busy)).mount(&server).await;
    let window = Duration::from_millis(300);
    let telegram_limits = TelegramLimits {
        chat: WindowLimit {
            requests: 1,
            window,
        },
        ..TelegramLimits::default()
    };
    let sender = sender(SenderConfig {
        telegram_api_url: server.uri(),
        telegram_limits,
        ..config()
    });

    let start = Instant::now();
    assert_eq!(kind(&sender.send(&chat(-7), TEST, false).await), "Sent");
    assert_eq!(kind(&sender.send(&chat(-7), TEST, false).await), "Retry");
    assert!(start.elapsed() >= window, "one request in each window");
    sender.acquire(&chat(-7), "team").await;
    let waited = tokio::time::timeout(2 * window, sender.acquire(&chat(TO), "team")).await;
    assert!(waited.is_err(), "the chat asked for a pause");
    // The queue waits for the end of the pause, not the request.
    let former = chat(-7);
    let sent = sender.send(&former, TEST, false);
    let sent = tokio::time::timeout(Duration::from_secs(30), sent).await;
    let left = after(&sent.unwrap()).unwrap();
    assert!(left > Duration::from_hours(24), "{left:?}");
}

#[tokio::test]
async fn rate_limit_is_shared_by_chats_and_not_used_by_webhooks() {
    let window = Duration::from_millis(300);
    let telegram_limits = TelegramLimits {
        chat: WindowLimit {
            requests: 1,
            window,
        },
        ..TelegramLimits::default()
    };
    let sender = sender(SenderConfig {
        telegram_limits,
        ..config()
    });
    let start = Instant::now();
    for _ in 0..3 {
        sender.acquire(&chat(7), "team").await;
    }
    assert!(start.elapsed() >= 2 * window);
    let webhook = webhook(parts("http://x/"));
    let start = Instant::now();
    for _ in 0..100 {
        sender.acquire(&webhook, "team").await;
    }
    assert!(start.elapsed() < window);
}
