#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::pace::{Meters, TooMany};
use super::{BotApi, Chat, Fault, Kind, Limit, Pace, Reply};

const TOKEN: &str = "12345:AAbbCCddEEffGGhhIIjjKKllMM";
const SOON: Duration = Duration::from_secs(5);

fn api() -> BotApi {
    let api = BotApi::start().unwrap();
    api.add_token(TOKEN);
    api.set_pace(Pace::unlimited());
    api.add_chat(Chat::new(Kind::Private, 7).unwrap());
    api.add_chat(Chat::new(Kind::Private, 8).unwrap().closed());
    api.add_chat(
        Chat::new(Kind::Group, -70)
            .unwrap()
            .upgraded_to(-1_000_000_000_070),
    );
    api.add_chat(Chat::new(Kind::Group, -71).unwrap());
    api.add_chat(
        Chat::new(Kind::Supergroup, -1_000_000_000_070)
            .unwrap()
            .with_topic(3),
    );
    api.add_chat(
        Chat::new(Kind::Channel, -1_000_000_000_071)
            .unwrap()
            .named("@News"),
    );
    api
}

async fn send(
    api: &BotApi,
    token: &str,
    content_type: &str,
    body: impl Into<reqwest::Body>,
) -> (u16, Value) {
    let client = reqwest::Client::builder()
        .no_proxy()
        .timeout(SOON)
        .build()
        .unwrap();
    let url = format!("{}/bot{token}/sendMessage", api.url());
    let answer = client
        .post(url)
        .header("content-type", content_type)
        .body(body)
        .send()
        .await
        .unwrap();
    let retry_after = answer
        .headers()
        .get("retry-after")
        .map(|value| value.to_str().unwrap().to_owned());
    let code = answer.status().as_u16();
    let body: Value = serde_json::from_slice(&answer.bytes().await.unwrap()).unwrap();
    assert_eq!(
        retry_after,
        body.pointer("/parameters/retry_after")
            .map(ToString::to_string)
    );
    (code, body)
}

async fn send_json(api: &BotApi, body: Value) -> (u16, Value) {
    send(api, TOKEN, "application/json", body.to_string()).await
}

#[tokio::test]
async fn message_is_accepted_like_the_real_api() {
    let api = api();
    let (code, answer) = send_json(
        &api,
        json!({"chat_id": 7, "text": "hello\n", "disable_notification": true}),
    )
    .await;
    assert_eq!((code, &answer["ok"]), (200, &json!(true)));
    let result = &answer["result"];
    assert_eq!(
        (&result["message_id"], &result["text"]),
        (&json!(1), &json!("hello"))
    );
    assert_eq!(
        result["chat"],
        json!({"id": 7, "type": "private", "first_name": "testbed"})
    );
    assert_eq!(result["from"]["id"], 12345);
    assert!(result["date"].as_u64().unwrap() > 1_700_000_000);
    let form = "chat_id=-1000000000070&text=a%20b+c%0A%E2%82%AC&message_thread_id=3";
    let (code, answer) = send(&api, TOKEN, "application/x-www-form-urlencoded", form).await;
    assert_eq!(
        (code, &answer["result"]["message_thread_id"]),
        (200, &json!(3))
    );
    let (code, answer) = send_json(&api, json!({"chat_id": "@nEWS", "text": "to all"})).await;
    assert_eq!(
        (code, &answer["result"]["chat"]["username"]),
        (200, &json!("news"))
    );
    let (_, answer) = send_json(&api, json!({"chat_id": "7", "text": "again"})).await;
    assert_eq!(answer["result"]["message_id"], 2);
    let accepted: Vec<_> = api
        .messages()
        .iter()
        .map(|message| (message.chat_id, message.text.clone()))
        .collect();
    let want = [
        (7, "hello\n"),
        (-1_000_000_000_070, "a b c\n€"),
        (-1_000_000_000_071, "to all"),
        (7, "again"),
    ];
    assert_eq!(accepted, want.map(|(chat, text)| (chat, text.to_owned())));
    assert_eq!(api.messages()[0].bot, "12345");
    assert!(api.messages()[0].disable_notification && !api.messages()[1].disable_notification);
    assert_eq!(api.messages()[1].message_thread_id, Some(3));
}

#[tokio::test]
async fn invalid_request_is_rejected_like_the_real_api() {
    let api = api();
    let longest = "\u{1F600}".repeat(2048);
    let longer = format!("{longest}x");
    let cases = [
        (
            json!({"chat_id": 7}),
            400,
            "Bad Request: message text is empty",
        ),
        (
            json!({"chat_id": 7, "text": " \n"}),
            400,
            "Bad Request: message text is empty",
        ),
        (
            json!({"chat_id": 7, "text": longer}),
            400,
            "Bad Request: message is too long",
        ),
        (json!({"text": "x"}), 400, "Bad Request: chat_id is empty"),
        (
            json!({"chat_id": 9, "text": "x"}),
            400,
            "Bad Request: chat not found",
        ),
        (
            json!({"chat_id": "news", "text": "x"}),
            400,
            "Bad Request: chat not found",
        ),
        (
            json!({"chat_id": "@other", "text": "x"}),
            400,
            "Bad Request: chat not found",
        ),
        (
            json!({"chat_id": 8, "text": "x"}),
            403,
            "Forbidden: bot was blocked by the user",
        ),
        (
            json!({"chat_id": 7, "text": "x", "message_thread_id": 3}),
            400,
            "Bad Request: message thread not found",
        ),
        (
            json!({"chat_id": -1_000_000_000_070_i64, "text": "x", "message_thread_id": 4}),
            400,
            "Bad Request: message thread not found",
        ),
        (json!([]), 400, "Bad Request: can't parse the JSON object"),
    ];
    let count = cases.len();
    for (body, code, description) in cases {
        let want = json!({"ok": false, "error_code": code, "description": description});
        assert_eq!(send_json(&api, body).await, (code, want));
    }
    assert_eq!(
        send_json(&api, json!({"chat_id": 7, "text": longest}))
            .await
            .0,
        200
    );
    let rejected = api
        .wait_for_rejected(SOON, |rejected| rejected.len() == count)
        .await
        .unwrap();
    assert_eq!(
        (rejected[4].code, rejected[4].chat_id.as_deref()),
        (Some(400), Some("9"))
    );
    assert_eq!(api.messages().len(), 1);
    let (_, answer) = send_json(&api, json!({"chat_id": -70, "text": "x"})).await;
    assert_eq!(
        answer["description"],
        "Bad Request: group chat was upgraded to a supergroup chat"
    );
    assert_eq!(
        answer["parameters"],
        json!({"migrate_to_chat_id": -1_000_000_000_070_i64})
    );
    let (code, answer) = send(
        &api,
        TOKEN,
        "application/x-www-form-urlencoded",
        "chat_id=7&text=%FF",
    )
    .await;
    assert_eq!(
        (code, &answer["description"]),
        (400, &json!("Bad Request: strings must be encoded in UTF-8"))
    );
}

#[tokio::test]
async fn unknown_and_malformed_tokens_are_rejected() {
    let api = api();
    let body = json!({"chat_id": 7, "text": "x"}).to_string();
    let not_found = (
        404,
        json!({"ok": false, "error_code": 404, "description": "Not Found"}),
    );
    let unauthorized = (
        401,
        json!({"ok": false, "error_code": 401, "description": "Unauthorized"}),
    );
    for malformed in ["", "12345", "12345:", ":abc", "abc:def", "12345:a.b"] {
        assert_eq!(
            send(&api, malformed, "application/json", body.clone()).await,
            not_found,
            "{malformed:?}"
        );
    }
    assert_eq!(
        send(&api, "12345:other", "application/json", body.clone()).await,
        unauthorized
    );
    api.revoke_token(TOKEN);
    assert_eq!(
        send(&api, TOKEN, "application/json", body).await,
        unauthorized
    );
    assert!(api.messages().is_empty());
    assert!(!format!("{:?}", api.rejected()).contains("AAbb"));
}

#[tokio::test]
async fn excess_messages_are_rejected_and_violations_recorded() {
    let api = api();
    api.set_pace(Pace {
        group: Limit {
            count: 2,
            window: Duration::from_mins(1),
        },
        ..Pace::unlimited()
    });
    let body = json!({"chat_id": -71, "text": "x"});
    let first = Instant::now();
    for _ in 0..2 {
        assert_eq!(send_json(&api, body.clone()).await.0, 200);
    }
    let (code, answer) = send_json(&api, body.clone()).await;
    let wait = answer["parameters"]["retry_after"].as_u64().unwrap();
    assert_eq!(code, 429);
    assert!(
        wait <= 60 && wait + first.elapsed().as_secs() >= 59,
        "{wait}"
    );
    assert_eq!(
        answer["description"],
        format!("Too Many Requests: retry after {wait}")
    );
    assert!(api.violations().is_empty());
    assert_eq!(send_json(&api, body).await.0, 429);
    assert_eq!(api.violations().len(), 1);
    assert_eq!(
        send_json(&api, json!({"chat_id": 7, "text": "another chat"}))
            .await
            .0,
        200
    );
    assert_eq!(api.rejected().len(), 2);
}

const CHAT: i64 = 7;

fn at(begin: Instant, milliseconds: u64) -> Instant {
    begin + Duration::from_millis(milliseconds)
}

#[test]
fn rate_limit_windows_slide() {
    let (mut meters, begin) = (Meters::default(), Instant::now());
    // A chat accepts one message a second, a group 20 a minute: the 21st may come 60 s after the first.
    for second in 0..20 {
        assert_eq!(
            meters.count("t", -CHAT, true, at(begin, second * 1000)),
            Ok(())
        );
    }
    let refused = meters.count("t", -CHAT, true, at(begin, 30_500));
    assert_eq!(
        refused,
        Err(TooMany {
            retry_after: 30,
            violation: false
        })
    );
    assert_eq!(
        meters.check_retry_after("t", -CHAT, at(begin, 60_000)),
        Err(TooMany {
            retry_after: 1,
            violation: true
        })
    );
    assert_eq!(
        meters.check_retry_after("t", -CHAT, at(begin, 60_500)),
        Ok(())
    );
    assert_eq!(meters.count("t", -CHAT, true, at(begin, 60_500)), Ok(()));
    assert_eq!(meters.count("t", -CHAT, true, at(begin, 61_500)), Ok(()));
    assert!(meters.count("t", -CHAT, true, at(begin, 61_600)).is_err());
    // A private chat has no limit per minute.
    for second in 0..30 {
        assert_eq!(
            meters.count("t", CHAT, false, at(begin, 70_000 + second * 1000)),
            Ok(())
        );
    }
    assert!(meters.count("t", CHAT, false, at(begin, 99_900)).is_err());
    // Each token has separate limits.
    assert_eq!(meters.count("u", CHAT, false, at(begin, 99_900)), Ok(()));
}

#[test]
fn chats_of_a_token_share_thirty_messages_a_second() {
    let (mut meters, begin) = (Meters::default(), Instant::now());
    for chat in 0..30 {
        assert_eq!(meters.count("t", chat, false, at(begin, 10)), Ok(()));
    }
    assert_eq!(
        meters.count("t", 31, false, at(begin, 20)),
        Err(TooMany {
            retry_after: 1,
            violation: false
        })
    );
    // The whole token must wait, not only the chat.
    assert_eq!(
        meters.check_retry_after("t", 5, at(begin, 100)),
        Err(TooMany {
            retry_after: 1,
            violation: true
        })
    );
    assert_eq!(meters.check_retry_after("u", 5, at(begin, 100)), Ok(()));
    assert_eq!(meters.count("t", 31, false, at(begin, 1010)), Ok(()));
}

#[test]
fn chat_id_has_the_format_of_its_kind() {
    for (kind, good, bad) in [
        (Kind::Private, 5_000_000_000, -5),
        (Kind::Group, -5, 5),
        (Kind::Group, -100, -1_001_234_567_890),
        (Kind::Supergroup, -1_001_234_567_890, -1_234_567),
        (Kind::Channel, -1_001_234_567_890, 10),
    ] {
        assert!(
            Chat::new(kind, good).is_ok() && Chat::new(kind, bad).is_err(),
            "{kind:?}"
        );
    }
}

#[tokio::test]
async fn faults_apply_in_order_until_heal() {
    let api = api();
    let client = reqwest::Client::builder()
        .no_proxy()
        .timeout(Duration::from_secs(2))
        .build()
        .unwrap();
    let url = format!("{}/bot{TOKEN}/sendMessage", api.url());
    let post = async || {
        let body = json!({"chat_id": 7, "text": "x"}).to_string();
        let answer = client
            .post(&url)
            .header("content-type", "application/json")
            .body(body)
            .send()
            .await?;
        Ok::<_, reqwest::Error>((answer.status().as_u16(), answer.text().await?))
    };
    api.fault_always(Fault::Instead(Reply::status(http::StatusCode::BAD_GATEWAY)));
    api.fault_next(1, Fault::not_ok());
    api.fault_next(1, Fault::bad_json());
    api.fault_next(1, Fault::Instead(Reply::hang()));
    api.fault_next(1, Fault::AnswerLost(Reply::reset()));
    let (code, body) = post().await.unwrap();
    assert_eq!(
        (
            code,
            serde_json::from_str::<Value>(&body).unwrap()["ok"].clone()
        ),
        (200, json!(false))
    );
    let (code, body) = post().await.unwrap();
    assert_eq!(code, 200);
    assert!(serde_json::from_str::<Value>(&body).is_err());
    assert!(post().await.unwrap_err().is_timeout());
    assert!(api.messages().is_empty());
    assert!(post().await.is_err());
    assert_eq!(api.messages().len(), 1);
    assert_eq!(post().await.unwrap().0, 502);
    api.heal();
    assert_eq!(post().await.unwrap().0, 200);
    let codes: Vec<_> = api
        .rejected()
        .iter()
        .map(|rejected| rejected.code)
        .collect();
    assert_eq!(codes, [Some(200), Some(200), None, Some(502)]);
    let messages = api
        .wait_for(SOON, |messages| messages.len() == 2)
        .await
        .unwrap();
    assert_eq!(messages[1].message_id, 2);
}
