#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};

use rstest::rstest;
use serde_json::{Value, json};
use tokio::time::Instant;
use wiremock::matchers::{any, body_partial_json, method, path};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use super::*;
use crate::api::contact_point::ChatId;
use crate::notify::Item;
use crate::notify::fixtures::updated;
use crate::notify::pace::Limit as Pacing;
use crate::notify::webhook::{Parts, SigningKey};

const TOKEN: &str = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw";
const TEST: Content<'_> = Content::Test { namespace: "team", name: "point" };

fn config() -> Config {
    Config { allow_loopback: true, attempt_timeout: Duration::from_secs(5), ..Config::default() }
}

fn sender(config: Config) -> Sender {
    Sender::new(config).unwrap()
}

fn telegram(base: &str) -> Sender {
    sender(Config { telegram_api_url: base.into(), ..config() })
}

fn chat(id: i64) -> Endpoint {
    Endpoint::Telegram(Chat::new(TOKEN.as_bytes(), ChatId::Id(id), None, false).unwrap())
}

fn parts(url: &str) -> Parts {
    Parts { url: url.into(), ..Parts::default() }
}

fn hook(parts: Parts) -> Endpoint {
    Endpoint::Webhook(Box::new(Hook::new(parts).unwrap()))
}

async fn answering(template: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(template).mount(&server).await;
    server
}

fn kind(result: &Result<Sent, Failure>) -> &'static str {
    match result {
        Ok(_) => "Sent",
        Err(Failure::Retry { .. }) => "Retry",
        Err(Failure::Rejected { .. }) => "Rejected",
        Err(Failure::Stop { reason, .. }) => reason.as_str(),
    }
}

/// A server that lets `each` have every connection; what it does not write is a reset or an end.
fn raw(each: impl Fn(std::net::TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || listener.incoming().flatten().for_each(each));
    address
}

#[tokio::test]
async fn a_telegram_message_is_one_post() {
    let server = MockServer::start().await;
    Mock::given(method("POST"))
        .and(path(format!("/bot{TOKEN}/sendMessage")))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({ "ok": true, "result": { "message_id": 1 } })))
        .mount(&server)
        .await;
    let sender = telegram(&server.uri());
    assert_eq!(sender.send(&chat(7), TEST, false).await, Ok(Sent::default()));
    let items = [updated("1", "3"), updated("3", "4")];
    let sent = sender.send(&chat(7), Content::Entries(&items), false).await;
    assert_eq!(sent, Ok(Sent { taken: 2, migrated_to: None }));
    let requests = server.received_requests().await.unwrap();
    let bodies: Vec<Value> = requests.iter().map(|request| request.body_json().unwrap()).collect();
    assert_eq!(bodies[0], json!({ "chat_id": 7, "text": "Contact point is ready" }));
    assert!(bodies[1]["text"].as_str().unwrap().starts_with("2 changes\n"));
    assert_eq!(requests[0].headers["content-type"], "application/json");
}

#[tokio::test]
async fn the_clusters_name_is_a_line_of_every_message() {
    let server = answering(ResponseTemplate::new(200).set_body_json(json!({ "ok": true }))).await;
    let cluster_name = Some("prod".to_owned());
    let sender = sender(Config { telegram_api_url: server.uri(), cluster_name, ..config() });
    sender.send(&chat(7), TEST, false).await.unwrap();
    sender.send(&chat(7), Content::Entries(&[updated("1", "3")]), false).await.unwrap();
    let requests = server.received_requests().await.unwrap();
    let text = |index: usize| requests[index].body_json::<Value>().unwrap()["text"].as_str().unwrap().to_owned();
    assert_eq!(text(0), "Contact point is ready\nCluster: prod");
    assert!(text(1).ends_with("\nCluster: prod"), "{}", text(1));
}

/// The rules for what is permanent and what is retried; each also with an answer that is no JSON.
#[rstest]
#[case("{\"ok\":false,\"description\":\"x\"}")]
#[case("<html>")]
#[tokio::test]
async fn every_status_of_the_bot_api(#[case] body: &'static str) {
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
            _ => "Rejected",
        };
        assert_eq!(kind(&result), expected, "{code}: {result:?}");
    }
}

#[tokio::test]
async fn every_status_of_a_webhook() {
    let (server, status) = by_status("no").await;
    let (sender, hook) = (sender(config()), hook(parts(&server.uri())));
    for code in 200..=599 {
        status.store(code, Ordering::SeqCst);
        let result = sender.send(&hook, Content::Entries(&[updated("1", "3")]), false).await;
        let expected = match code {
            200..=299 => "Sent",
            300..=399 => "Redirected",
            401 => "Unauthorized",
            403 => "Forbidden",
            404 => "NotFound",
            408 | 429 | 500.. => "Retry",
            _ => "Rejected",
        };
        assert_eq!(kind(&result), expected, "{code}: {result:?}");
        match result {
            Ok(sent) => assert_eq!(sent.taken, 1),
            Err(Failure::Rejected { carried, .. }) => assert_eq!(carried, 1),
            Err(_) => {}
        }
    }
}

async fn by_status(body: &'static str) -> (MockServer, Arc<AtomicU16>) {
    let (server, status) = (MockServer::start().await, Arc::new(AtomicU16::new(200)));
    let current = Arc::clone(&status);
    let respond = move |_: &Request| {
        let code = current.load(Ordering::SeqCst);
        let template = ResponseTemplate::new(code);
        // These have no body.
        let template = if matches!(code, 204 | 205 | 304) { template } else { template.set_body_string(body) };
        if (300..400).contains(&code) { template.insert_header("Location", "/elsewhere") } else { template }
    };
    Mock::given(path("/elsewhere")).respond_with(ResponseTemplate::new(200)).expect(0).mount(&server).await;
    Mock::given(any()).respond_with(respond).mount(&server).await;
    (server, status)
}

#[rstest]
#[case(200, "", "Retry")]
#[case(200, "{\"ok\":", "Retry")]
#[case(200, "[]", "Retry")]
#[case(200, "{\"ok\":\"yes\"}", "Retry")]
#[case(200, "{\"ok\":false}", "Retry")]
#[case(200, "{\"ok\":false,\"error_code\":403,\"description\":\"bot was blocked\"}", "Forbidden")]
#[case(201, "{\"ok\":true}", "Retry")]
#[case(400, "{\"ok\":false,\"description\":\"Bad Request: chat not found\"}", "ChatNotFound")]
#[tokio::test]
async fn success_is_200_and_ok(#[case] status: u16, #[case] body: &str, #[case] expected: &str) {
    let server = answering(ResponseTemplate::new(status).set_body_string(body)).await;
    let result = telegram(&server.uri()).send(&chat(7), TEST, false).await;
    assert_eq!(kind(&result), expected, "{result:?}");
}

#[tokio::test]
async fn retry_after_is_honoured_to_the_second_and_without_bound() {
    let body = json!({ "ok": false, "error_code": 429, "description": "Too Many Requests: retry after 90000",
        "parameters": { "retry_after": 90_000 } });
    let server = answering(ResponseTemplate::new(429).set_body_json(body).insert_header("Retry-After", "1")).await;
    let sender = telegram(&server.uri());
    let result = sender.send(&chat(7), TEST, false).await;
    assert!(
        matches!(&result, Err(Failure::Retry { after: Some(after), .. }) if after.as_secs() == 90_000),
        "{result:?}"
    );
    // It holds that chat for all, and no other.
    sender.slot(&chat(8)).await;
    let waited = tokio::time::timeout(Duration::from_millis(200), sender.slot(&chat(7))).await;
    assert!(waited.is_err());
}

/// An answer that asks for more than a clock can tell panics nobody: the line adds it to the present.
#[rstest]
#[case(json!({ "ok": false, "parameters": { "retry_after": u64::MAX } }), "1")]
#[case(json!({ "ok": false }), "18446744073709551615")]
#[case(json!({ "ok": false }), "99999999999999999999999")]
#[tokio::test]
async fn a_wait_is_never_too_long_for_the_clock(#[case] body: Value, #[case] header: &str) {
    let server = answering(ResponseTemplate::new(429).set_body_json(body).insert_header("Retry-After", header)).await;
    let result = telegram(&server.uri()).send(&chat(7), TEST, false).await;
    let Err(Failure::Retry { after: Some(after), .. }) = result else { panic!("{result:?}") };
    assert!(after > Duration::from_hours(50 * 365 * 24), "{after:?}");
    assert!(std::time::Instant::now().checked_add(after).is_some());
}

#[tokio::test]
async fn without_parameters_the_header_counts() {
    let server = answering(ResponseTemplate::new(429).insert_header("Retry-After", "7200")).await;
    let result = telegram(&server.uri()).send(&chat(7), TEST, false).await;
    assert!(matches!(result, Err(Failure::Retry { after: Some(after), .. }) if after.as_secs() == 7200));
}

#[tokio::test]
async fn a_chat_that_moved_is_followed_once() {
    let server = MockServer::start().await;
    let moved = |to: i64| {
        ResponseTemplate::new(400).set_body_json(json!({ "ok": false, "error_code": 400,
            "description": "Bad Request: group chat was upgraded to a supergroup chat",
            "parameters": { "migrate_to_chat_id": to } }))
    };
    let to = -1_001_234_567_890_i64;
    Mock::given(body_partial_json(json!({ "chat_id": -7 }))).respond_with(moved(to)).mount(&server).await;
    Mock::given(body_partial_json(json!({ "chat_id": to })))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({ "ok": true })))
        .mount(&server)
        .await;
    Mock::given(body_partial_json(json!({ "chat_id": -8 }))).respond_with(moved(-8)).mount(&server).await;
    let sender = telegram(&server.uri());
    let sent = sender.send(&chat(-7), Content::Entries(&[updated("1", "3")]), false).await;
    assert_eq!(sent, Ok(Sent { taken: 1, migrated_to: Some(to) }));
    assert_eq!(kind(&sender.send(&chat(-8), TEST, false).await), "Retry");
    assert_eq!(server.received_requests().await.unwrap().len(), 4);
}

/// The chat that a message was moved to has its own pace, and its own silence.
#[tokio::test]
async fn the_pace_is_that_of_the_chat_it_moved_to() {
    const TO: i64 = -1_001_234_567_890;
    let server = MockServer::start().await;
    let answer = |code: u16, parameters: Value| {
        let body = json!({ "ok": false, "error_code": code, "parameters": parameters });
        ResponseTemplate::new(code).set_body_json(body)
    };
    let (moved, busy) = (json!({ "migrate_to_chat_id": TO }), json!({ "retry_after": 90_000 }));
    Mock::given(body_partial_json(json!({ "chat_id": -7 }))).respond_with(answer(400, moved)).mount(&server).await;
    let new = || Mock::given(body_partial_json(json!({ "chat_id": TO })));
    new()
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({ "ok": true })))
        .up_to_n_times(1)
        .mount(&server)
        .await;
    new().respond_with(answer(429, busy)).mount(&server).await;
    let window = Duration::from_millis(300);
    let pace = Limits { chat: Pacing { requests: 1, window }, ..Limits::default() };
    let sender = sender(Config { telegram_api_url: server.uri(), pace, ..config() });

    let start = Instant::now();
    assert_eq!(kind(&sender.send(&chat(-7), TEST, false).await), "Sent");
    assert_eq!(kind(&sender.send(&chat(-7), TEST, false).await), "Retry");
    assert!(start.elapsed() >= window, "one request in each window");
    sender.slot(&chat(-7)).await;
    let waited = tokio::time::timeout(2 * window, sender.slot(&chat(TO))).await;
    assert!(waited.is_err(), "it asked to be left alone");
}

#[rstest]
#[case("3", 3)]
#[case("0", 0)]
#[case("86400", 3600)]
#[case("99999999999999999999999", 3600)]
#[tokio::test]
async fn a_webhooks_retry_after_is_capped(#[case] value: &str, #[case] seconds: u64) {
    let server = answering(ResponseTemplate::new(503).insert_header("Retry-After", value)).await;
    let result = sender(config()).send(&hook(parts(&server.uri())), TEST, false).await;
    assert!(matches!(result, Err(Failure::Retry { after: Some(after), .. }) if after.as_secs() == seconds));
}

#[rstest]
#[case(60, 50..=60)]
#[case(-60, 0..=0)]
#[case(86400, 3600..=3600)]
#[tokio::test]
async fn retry_after_may_be_a_date(#[case] ahead: i64, #[case] expected: std::ops::RangeInclusive<u64>) {
    let date = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(ahead);
    let date = date.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let server = answering(ResponseTemplate::new(429).insert_header("Retry-After", date.as_str())).await;
    let result = sender(config()).send(&hook(parts(&server.uri())), TEST, false).await;
    let Err(Failure::Retry { after: Some(after), .. }) = result else { panic!("{result:?}") };
    assert!(expected.contains(&after.as_secs()), "{after:?}");
}

#[tokio::test]
async fn a_webhook_gets_token_headers_and_signature() {
    let server = answering(ResponseTemplate::new(202)).await;
    let hook = hook(Parts {
        token: Some(("Authorization".into(), "Bearer s3cr3t".into())),
        headers: [("X-Team".to_owned(), "blue".to_owned())].into(),
        signing_key: Some(SigningKey::new(b"key").unwrap()),
        ..parts(&format!("{}/in?x=1", server.uri()))
    });
    let sender = sender(Config { cluster_name: Some("prod".into()), ..config() });
    sender.send(&hook, Content::Entries(&[updated("1", "3")]), false).await.unwrap();
    let request = &server.received_requests().await.unwrap()[0];
    let header = |name: &str| request.headers[name].to_str().unwrap();
    assert_eq!((request.method.as_str(), request.url.path(), request.url.query()), ("POST", "/in", Some("x=1")));
    assert_eq!((header("authorization"), header("x-team")), ("Bearer s3cr3t", "blue"));
    assert_eq!((header("ce-id"), header("webhook-id"), header("idempotency-key")), ("e1", "e1", "e1"));
    assert_eq!(request.body_json::<Value>().unwrap()["cluster"], "prod");
    sender.send(&hook, TEST, false).await.unwrap();
    let test: Value = server.received_requests().await.unwrap()[1].body_json().unwrap();
    assert_eq!((&test["cluster"], &test["text"]), (&json!("prod"), &json!("Contact point is ready\nCluster: prod")));
    // As a receiver checks it.
    let signed = format!("e1.{}.{}", header("webhook-timestamp"), std::str::from_utf8(&request.body).unwrap());
    let mut mac = <hmac::Hmac<sha2::Sha256> as hmac::KeyInit>::new_from_slice(b"key").unwrap();
    hmac::Mac::update(&mut mac, signed.as_bytes());
    let expected = hmac::Mac::finalize(mac).into_bytes();
    let expected = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, expected);
    assert_eq!(header("webhook-signature"), format!("v1,{expected}"));
    let age = jiff::Timestamp::now().as_second() - header("webhook-timestamp").parse::<i64>().unwrap();
    assert!((0..60).contains(&age));
}

#[rstest]
#[case::metadata(&["169.254.169.254"], "metadata")]
#[case::loopback(&["127.0.0.1", "::1"], "--webhook-allow-loopback")]
#[case::denied(&["10.1.2.3"], "--webhook-deny-cidr=10.0.0.0/8")]
#[tokio::test]
async fn a_name_is_refused_for_what_it_resolves_to(#[case] addresses: &'static [&str], #[case] said: &str) {
    let lookup: Lookup = Arc::new(move |_| {
        let found = addresses.iter().map(|address| SocketAddr::new(address.parse().unwrap(), 0)).collect();
        Box::pin(async move { Ok(found) })
    });
    let sender =
        sender(Config { allow_loopback: false, deny_cidrs: vec!["10.0.0.0/8".parse().unwrap()], lookup, ..config() });
    let result = sender.send(&hook(parts("http://receiver.test/")), TEST, false).await;
    let Err(Failure::Stop { reason: StopReason::AddressRefused, message }) = result else { panic!("{result:?}") };
    assert!(message.contains(said), "{message}");
}

#[tokio::test]
async fn a_name_that_resolves_to_an_allowed_address_is_reached_there() {
    let server = answering(ResponseTemplate::new(204)).await;
    let lookup: Lookup = Arc::new(move |name| {
        assert_eq!(name, "receiver.test");
        let found = ["169.254.169.254", "127.0.0.1"].map(|address| SocketAddr::new(address.parse().unwrap(), 0));
        Box::pin(async move { Ok(found.to_vec()) })
    });
    let url = format!("http://receiver.test:{}/", server.address().port());
    assert_eq!(kind(&sender(Config { lookup, ..config() }).send(&hook(parts(&url)), TEST, false).await), "Sent");
}

#[tokio::test]
async fn an_address_in_the_url_is_refused_too() {
    let server = answering(ResponseTemplate::new(204)).await;
    let closed = sender(Config { allow_loopback: false, ..config() });
    assert_eq!(kind(&closed.send(&hook(parts(&server.uri())), TEST, false).await), "AddressRefused");
    assert_eq!(server.received_requests().await.unwrap().len(), 0);
    for url in ["http://169.254.169.254/latest/", "http://[::ffff:a9fe:a9fe]/", "http://2852039166/"] {
        assert_eq!(kind(&sender(config()).send(&hook(parts(url)), TEST, false).await), "AddressRefused", "{url}");
    }
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_retried() {
    let lookup: Lookup = Arc::new(|_| Box::pin(async { Err(io::Error::other("no such name")) }));
    let result = sender(Config { lookup, ..config() }).send(&hook(parts("http://receiver.test/")), TEST, false).await;
    assert_eq!(kind(&result), "Retry");
    assert!(result.unwrap_err().to_string().contains("no such name"));
}

#[tokio::test]
async fn a_proxy_takes_webhooks_when_it_is_given() {
    let proxy = answering(ResponseTemplate::new(204)).await;
    let sender = sender(Config { webhook_proxy: Some(proxy.uri().into()), allow_loopback: false, ..config() });
    assert_eq!(kind(&sender.send(&hook(parts("http://receiver.test/in")), TEST, false).await), "Sent");
    let request = &proxy.received_requests().await.unwrap()[0];
    assert_eq!(request.headers["host"], "receiver.test");
    assert_eq!(kind(&sender.send(&hook(parts("http://169.254.169.254/")), TEST, false).await), "AddressRefused");
}

#[tokio::test]
async fn nothing_is_sent_without_the_lease() {
    let server = answering(ResponseTemplate::new(200).set_body_json(json!({ "ok": true }))).await;
    let holding = Arc::new(AtomicBool::new(false));
    let asked = Arc::clone(&holding);
    let held: Held = Arc::new(move || asked.load(Ordering::SeqCst));
    let sender = sender(Config { telegram_api_url: server.uri(), held, ..config() });
    for endpoint in [chat(7), hook(parts(&server.uri()))] {
        let result = sender.send(&endpoint, TEST, false).await;
        assert_eq!(result, Err(Failure::Retry { message: "the leader lease is not held".into(), after: None }));
    }
    assert_eq!(server.received_requests().await.unwrap().len(), 0);
    holding.store(true, Ordering::SeqCst);
    assert_eq!(kind(&sender.send(&chat(7), TEST, false).await), "Sent");
}

/// Between the two requests of a move, too.
#[tokio::test]
async fn a_move_is_not_followed_without_the_lease() {
    let body = json!({ "ok": false, "parameters": { "migrate_to_chat_id": -100 } });
    let server = answering(ResponseTemplate::new(400).set_body_json(body)).await;
    let asked = AtomicU16::new(0);
    let held: Held = Arc::new(move || asked.fetch_add(1, Ordering::SeqCst) == 0);
    let sender = sender(Config { telegram_api_url: server.uri(), held, ..config() });
    assert_eq!(kind(&sender.send(&chat(-7), TEST, false).await), "Retry");
    assert_eq!(server.received_requests().await.unwrap().len(), 1);
}

#[tokio::test]
async fn ten_mebibytes_of_junk_are_not_read() {
    let junk = "j".repeat(10 * 1024 * 1024);
    for (status, webhook, telegram) in [(200, "Sent", "Retry"), (400, "Rejected", "Rejected"), (500, "Retry", "Retry")]
    {
        let server = answering(ResponseTemplate::new(status).set_body_string(junk.clone())).await;
        for (endpoint, expected) in [(hook(parts(&server.uri())), webhook), (chat(7), telegram)] {
            let result = self::telegram(&server.uri()).send(&endpoint, TEST, false).await;
            assert_eq!(kind(&result), expected, "{status}");
            if let Err(failure) = result {
                assert!(failure.to_string().len() < 400, "{failure}");
            }
        }
    }
}

#[tokio::test]
async fn broken_connections_are_retried() {
    let refused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let reset = raw(drop);
    let halfway = raw(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 100\r\n\r\nhalf");
    });
    let nonsense = raw(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"SSH-2.0-x\r\n");
    });
    for address in [refused, reset, halfway, nonsense] {
        for scheme in ["http", "https"] {
            let url = format!("{scheme}://{address}");
            for endpoint in [hook(parts(&url)), chat(7)] {
                let result = telegram(&url).send(&endpoint, TEST, false).await;
                assert_eq!(kind(&result), "Retry", "{url}: {result:?}");
            }
        }
    }
}

#[tokio::test]
async fn a_receiver_that_hangs_is_left_in_time() {
    let hanging = raw(std::mem::forget);
    let url = format!("http://{hanging}");
    let start = Instant::now();
    let short = Duration::from_millis(200);
    let sender = sender(Config { telegram_api_url: url.clone(), attempt_timeout: short, ..config() });
    for endpoint in [chat(7), hook(parts(&url)), hook(Parts { timeout: Some(short), ..parts(&url) })] {
        let result = sender.send(&endpoint, TEST, false).await;
        assert!(
            matches!(&result, Err(Failure::Retry { message, .. }) if message == "no answer within 0.2 s"),
            "{result:?}"
        );
    }
    assert!(start.elapsed() < Duration::from_secs(4));
}

#[tokio::test]
async fn a_good_answer_that_never_ends_is_still_good() {
    let dripping = raw(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf");
        std::mem::forget(stream);
    });
    let start = Instant::now();
    let result = sender(config()).send(&hook(parts(&format!("http://{dripping}"))), TEST, false).await;
    assert_eq!(kind(&result), "Sent");
    assert!(start.elapsed() < Duration::from_secs(4));
}

#[tokio::test]
async fn what_a_receiver_echoes_is_redacted() {
    let server = MockServer::start().await;
    let echo = |request: &Request| {
        let header = request.headers.get("x-token").map(|value| value.to_str().unwrap()).unwrap_or_default();
        let path = request.url.path();
        let all =
            json!({ "url": request.url.as_str(), "path": path, "escaped": path.replace('/', "\\/"), "token": header });
        ResponseTemplate::new(400)
            .set_body_json(json!({ "ok": false, "description": format!("{path} {header} {all}") }))
    };
    Mock::given(any()).respond_with(echo).mount(&server).await;
    let hook = hook(Parts {
        url_is_secret: true,
        token: Some(("X-Token".into(), "Bearer hunter2hunter2".into())),
        ..parts(&format!("{}/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX?key=abcdefghijkl", server.uri()))
    });
    for endpoint in [hook, chat(7)] {
        let said = telegram(&server.uri()).send(&endpoint, TEST, false).await.unwrap_err().to_string();
        for secret in ["T00000000", "XXXXXXXX", "abcdefghijkl", "hunter2", "110201543", "AAHdqTcv"] {
            assert!(!said.contains(secret), "{said}");
        }
        assert!(said.contains("[redacted]"), "{said}");
    }
}

/// With logs at their most talkative, of every crate on the way.
#[test]
fn no_secret_is_logged_or_said() {
    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);
    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let log = Log::default();
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(move || writer.clone()).finish();
    let secrets = [TOKEN, "hunter2hunter2", "T00000000", "wh-signing-key"];
    let endpoints = |base: &str| {
        let own = hook(Parts {
            url_is_secret: true,
            token: Some(("X-Token".into(), "hunter2hunter2".into())),
            signing_key: Some(SigningKey::new(b"wh-signing-key").unwrap()),
            ..parts(&format!("{base}/services/T00000000"))
        });
        [chat(7), own]
    };
    let mut said = Vec::new();
    tracing::subscriber::with_default(subscriber, || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let server = answering(ResponseTemplate::new(302).insert_header("Location", "/x")).await;
            let refused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let reset = raw(drop);
            for base in
                [server.uri(), format!("http://{refused}"), format!("http://{reset}"), format!("https://{reset}")]
            {
                for endpoint in endpoints(&base) {
                    let result = telegram(&base).send(&endpoint, TEST, false).await;
                    writeln!(said, "{endpoint:?} {result:?} {}", result.as_ref().unwrap_err()).unwrap();
                    tracing::info!(?endpoint, ?result, "sent");
                }
            }
        });
    });
    let said = String::from_utf8(said).unwrap();
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(log.contains("hyper_util"), "the crates on the way are heard");
    for secret in secrets {
        // wiremock, on the other side, logs nothing of the request's content.
        assert!(!said.contains(secret), "{secret}: {said}");
        assert!(!log.contains(secret), "{secret} in the log");
    }
}

#[tokio::test]
async fn telegrams_pace_is_shared_and_a_webhook_has_none() {
    let window = Duration::from_millis(300);
    let pace = Limits { chat: Pacing { requests: 1, window }, ..Limits::default() };
    let sender = sender(Config { pace, ..config() });
    let start = Instant::now();
    for _ in 0..3 {
        sender.slot(&chat(7)).await;
    }
    assert!(start.elapsed() >= 2 * window);
    let hook = hook(parts("http://x/"));
    let start = Instant::now();
    for _ in 0..100 {
        sender.slot(&hook).await;
    }
    assert!(start.elapsed() < window);
}

#[test]
fn settings_are_checked_without_being_shown() {
    let with = |url: &str, proxy: Option<&str>| {
        let webhook_proxy = proxy.map(Into::into);
        Sender::new(Config { telegram_api_url: url.into(), webhook_proxy, ..config() }).unwrap_err()
    };
    assert!(with("nonsense", None).starts_with("--telegram-api-url: "));
    assert!(with("ftp://x", None).starts_with("--telegram-api-url: "));
    let error = with("https://x", Some("http://u:s3cr3t@:x"));
    assert!(error.starts_with("--webhook-proxy: ") && !error.contains("s3cr3t"), "{error}");
}

#[tokio::test]
async fn one_client_for_the_same_tls_material() {
    let certificate = rcgen::generate_simple_self_signed(["receiver.test".to_owned()]).unwrap().cert.pem();
    let tls = || Tls::new(Some(certificate.as_bytes()), None, None).unwrap();
    let sender = sender(config());
    let (one, two) = (tls(), tls());
    let client = sender.client_with(&one).unwrap();
    assert!(Arc::ptr_eq(&client, &sender.client_with(&two).unwrap()));
    drop((client, one));
    assert_eq!(sender.with_tls.lock().unwrap().values().filter(|client| client.strong_count() > 0).count(), 1);
    drop(two);
    assert_eq!(sender.with_tls.lock().unwrap().values().filter(|client| client.strong_count() > 0).count(), 0);
}

/// An endpoint that asks for a client's certificate and answers 204 to whoever shows the right one.
#[tokio::test]
async fn tls_material_is_trusted_and_shown() {
    let authority = rcgen::generate_simple_self_signed(["receiver.test".to_owned()]).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(authority.signing_key.serialize_der().into());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .build()
        .unwrap();
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![authority.cert.der().clone()], key)
        .unwrap();
    let server = Arc::new(server);
    let address = raw(move |mut stream| {
        let mut connection = rustls::ServerConnection::new(Arc::clone(&server)).unwrap();
        let mut tls = rustls::Stream::new(&mut connection, &mut stream);
        if tls.read(&mut [0; 4096]).is_ok() {
            let _ = tls.write_all(b"HTTP/1.1 204 No Content\r\n\r\n");
        }
    });
    let lookup: Lookup = Arc::new(move |_| Box::pin(async move { Ok(vec![address]) }));
    let sender = sender(Config { lookup, ..config() });
    let (pem, key) = (authority.cert.pem(), authority.signing_key.serialize_pem());
    let to = |tls: Option<Tls>| hook(Parts { tls, ..parts(&format!("https://receiver.test:{}/", address.port())) });
    let tls = |own: bool| {
        let own = own.then_some((pem.as_bytes(), key.as_bytes()));
        Tls::new(Some(pem.as_bytes()), own.map(|own| own.0), own.map(|own| own.1)).unwrap()
    };
    let send = async |tls| sender.send(&to(tls), Content::Entries(&[updated("1", "3")] as &[Item]), false).await;
    assert_eq!(kind(&send(Some(tls(true))).await), "Sent");
    assert_eq!(kind(&send(Some(tls(false))).await), "Retry");
    let untrusted = send(None).await;
    assert_eq!(kind(&untrusted), "Retry");
    assert!(untrusted.unwrap_err().to_string().contains("certificate"));
}
