#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

use qm_api::contact_point::ChatId;
use rstest::rstest;
use serde_json::{Value, json};
use tokio::time::Instant;
use wiremock::matchers::{any, body_partial_json, method, path};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use super::*;
use crate::OutgoingEntry;
use crate::fixtures::updated;
use crate::message::{Body, TokenFormat};
use crate::rate_limit::WindowLimit;
use crate::webhook::{Parts, SigningKey, Token};

mod telegram;
mod webhook;

const TOKEN: &str = "110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw";
const TEST: MessageContent<'_> = MessageContent::Test {
    namespace: "team",
    name: "point",
    id: "test-1",
};

fn config() -> SenderConfig {
    SenderConfig {
        allow_loopback: true,
        quote_private: true,
        attempt_timeout: Duration::from_secs(5),
        ..SenderConfig::default()
    }
}

fn sender(config: SenderConfig) -> HttpSender {
    HttpSender::new(config).unwrap()
}

fn telegram(base: &str) -> HttpSender {
    sender(SenderConfig {
        telegram_api_url: base.into(),
        ..config()
    })
}

fn chat(id: i64) -> Endpoint {
    Endpoint::Telegram(TelegramChat::new(TOKEN.as_bytes(), ChatId::Id(id), None, false).unwrap())
}

fn parts(url: &str) -> Parts {
    Parts {
        url: url.into(),
        ..Parts::default()
    }
}

fn webhook(parts: Parts) -> Endpoint {
    Endpoint::Webhook(Box::new(WebhookEndpoint::new(parts).unwrap()))
}

async fn answering(template: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(any())
        .respond_with(template)
        .mount(&server)
        .await;
    server
}

fn kind(result: &Result<SendReceipt, SendFailure>) -> &'static str {
    match result.as_ref().map_err(|error| &error.error) {
        Ok(_) => "Sent",
        Err(SendError::Retry { .. }) => "Retry",
        Err(SendError::Unsent { .. }) => "Unsent",
        Err(SendError::Refused { reason, .. }) => reason.as_str(),
    }
}

fn after(result: &Result<SendReceipt, SendFailure>) -> Option<Duration> {
    match result {
        Err(SendFailure {
            error: SendError::Retry { after, .. },
            ..
        }) => *after,
        _ => None,
    }
}

/// Starts a server that passes each connection to `each`; a connection without a response is reset or closed.
fn raw(each: impl Fn(std::net::TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || listener.incoming().flatten().for_each(each));
    address
}

#[tokio::test]
async fn every_message_has_the_cluster_name() {
    let server = answering(ResponseTemplate::new(200).set_body_json(json!({ "ok": true }))).await;
    let cluster_name = Some("prod".to_owned());
    let sender = sender(SenderConfig {
        telegram_api_url: server.uri(),
        cluster_name,
        ..config()
    });
    sender.send(&chat(7), TEST, false).await.unwrap();
    sender
        .send(
            &chat(7),
            MessageContent::Entries(&[updated("1", "3")]),
            false,
        )
        .await
        .unwrap();
    let requests = server.received_requests().await.unwrap();
    let text = |index: usize| {
        requests[index].body_json::<Value>().unwrap()["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(text(0), "Contact point is ready\nCluster: prod");
    assert!(text(1).ends_with("\nCluster: prod"), "{}", text(1));
}

async fn by_status(body: &'static str) -> (MockServer, Arc<AtomicU16>) {
    let (server, status) = (MockServer::start().await, Arc::new(AtomicU16::new(200)));
    let current = Arc::clone(&status);
    let respond = move |_: &Request| {
        let code = current.load(Ordering::SeqCst);
        let template = ResponseTemplate::new(code);
        // These statuses have no body.
        let template = if matches!(code, 204 | 205 | 304) {
            template
        } else {
            template.set_body_string(body)
        };
        if (300..400).contains(&code) {
            template.insert_header("Location", "/elsewhere")
        } else {
            template
        }
    };
    Mock::given(path("/elsewhere"))
        .respond_with(ResponseTemplate::new(200))
        .expect(0)
        .mount(&server)
        .await;
    Mock::given(any())
        .respond_with(respond)
        .mount(&server)
        .await;
    (server, status)
}

#[tokio::test]
async fn sender_sends_nothing_without_the_lease() {
    let server = answering(ResponseTemplate::new(200).set_body_json(json!({ "ok": true }))).await;
    let fence = Fence::shut();
    let sender = sender(SenderConfig {
        telegram_api_url: server.uri(),
        fence: fence.clone(),
        ..config()
    });
    for endpoint in [chat(7), webhook(parts(&server.uri()))] {
        let result = sender.send(&endpoint, TEST, false).await;
        let error = SendError::Unsent {
            message: "this replica does not hold the lease".into(),
        };
        assert_eq!(result, Err(SendFailure { error, carried: 0 }));
    }
    assert_eq!(server.received_requests().await.unwrap().len(), 0);
    fence.renewed(Instant::now(), Duration::from_mins(1));
    assert_eq!(kind(&sender.send(&chat(7), TEST, false).await), "Sent");
}

/// The lease may also expire between the two requests of a migration.
#[tokio::test]
async fn migration_is_not_followed_without_the_lease() {
    let body = json!({ "ok": false, "parameters": { "migrate_to_chat_id": -100 } });
    let (server, fence) = (MockServer::start().await, Fence::open());
    let lost = fence.clone();
    let respond = move |_: &Request| {
        lost.close();
        ResponseTemplate::new(400).set_body_json(&body)
    };
    Mock::given(any())
        .respond_with(respond)
        .mount(&server)
        .await;
    let sender = sender(SenderConfig {
        telegram_api_url: server.uri(),
        fence,
        ..config()
    });
    assert_eq!(kind(&sender.send(&chat(-7), TEST, false).await), "Unsent");
    assert_eq!(server.received_requests().await.unwrap().len(), 1);
}

#[tokio::test]
async fn oversized_response_is_not_read() {
    let junk = "j".repeat(10 * 1024 * 1024);
    for (status, by_webhook, by_telegram) in [
        (200, "Sent", "Retry"),
        (400, "Rejected", "Rejected"),
        (500, "Retry", "Retry"),
    ] {
        let server = answering(ResponseTemplate::new(status).set_body_string(junk.clone())).await;
        for (endpoint, expected) in [
            (webhook(parts(&server.uri())), by_webhook),
            (chat(7), by_telegram),
        ] {
            let result = telegram(&server.uri()).send(&endpoint, TEST, false).await;
            assert_eq!(kind(&result), expected, "{status}");
            if let Err(failure) = result {
                assert!(failure.to_string().len() < 400, "{failure}");
            }
        }
    }
}

#[tokio::test]
async fn broken_connections_are_retried() {
    let refused = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let reset = raw(drop);
    let halfway = raw(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream
            .write_all(b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 100\r\n\r\nhalf");
    });
    let nonsense = raw(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"SSH-2.0-x\r\n");
    });
    for address in [refused, reset, halfway, nonsense] {
        for scheme in ["http", "https"] {
            let url = format!("{scheme}://{address}");
            for endpoint in [webhook(parts(&url)), chat(7)] {
                let result = telegram(&url).send(&endpoint, TEST, false).await;
                assert_eq!(kind(&result), "Retry", "{url}: {result:?}");
            }
        }
    }
}

#[tokio::test]
async fn attempt_times_out_when_the_receiver_hangs() {
    let hanging = raw(std::mem::forget);
    let url = format!("http://{hanging}");
    let start = Instant::now();
    let short = Duration::from_millis(200);
    let sender = sender(SenderConfig {
        telegram_api_url: url.clone(),
        attempt_timeout: short,
        ..config()
    });
    for endpoint in [
        chat(7),
        webhook(parts(&url)),
        webhook(Parts {
            timeout: Some(short),
            ..parts(&url)
        }),
    ] {
        let result = sender.send(&endpoint, TEST, false).await;
        assert!(
            result
                .as_ref()
                .is_err_and(|error| error.to_string() == "no answer within 0.2 s"),
            "{result:?}"
        );
    }
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn successful_response_without_an_end_is_accepted() {
    let dripping = raw(|mut stream| {
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf");
        std::mem::forget(stream);
    });
    let start = Instant::now();
    let sender = sender(SenderConfig {
        attempt_timeout: Duration::from_hours(1),
        ..config()
    });
    let result = sender
        .send(&webhook(parts(&format!("http://{dripping}"))), TEST, false)
        .await;
    assert_eq!(kind(&result), "Sent");
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[tokio::test]
async fn echoed_secrets_are_redacted() {
    let server = MockServer::start().await;
    let echo = |request: &Request| {
        let header = request
            .headers
            .get("x-token")
            .map(|value| value.to_str().unwrap())
            .unwrap_or_default();
        let path = request.url.path();
        let all = json!({ "url": request.url.as_str(), "path": path, "escaped": path.replace('/', "\\/"), "token": header });
        ResponseTemplate::new(400)
            .set_body_json(json!({ "ok": false, "description": format!("{path} {header} {all}") }))
    };
    Mock::given(any()).respond_with(echo).mount(&server).await;
    let webhook = webhook(Parts {
        url_is_secret: true,
        token: Some(Token::InHeader(
            "X-Token".into(),
            "Bearer hunter2hunter2".into(),
        )),
        ..parts(&format!(
            "{}/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX?key=abcdefghijkl",
            server.uri()
        ))
    });
    for endpoint in [webhook, chat(7)] {
        let message = telegram(&server.uri())
            .send(&endpoint, TEST, false)
            .await
            .unwrap_err()
            .to_string();
        for secret in [
            "T00000000",
            "XXXXXXXX",
            "abcdefghijkl",
            "hunter2",
            "110201543",
            "AAHdqTcv",
        ] {
            assert!(!message.contains(secret), "{message}");
        }
        assert!(message.contains("[redacted]"), "{message}");
    }
}

/// A receiver quotes the body as it came, or its value in another encoding.
#[tokio::test]
async fn token_of_a_body_is_redacted_in_every_encoding() {
    const TOKEN: &str = r#"ab"cd\ef/gh&ij<kl>mn op%qr"#;
    let server = MockServer::start().await;
    let echo = |request: &Request| {
        let body = std::str::from_utf8(&request.body).unwrap();
        let html = body
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
            .replace('"', "&quot;");
        let answer = match request.url.path() {
            "/raw" => body.to_owned(),
            "/json" => json!({ "error": body }).to_string(),
            "/php" => json!({ "error": TOKEN }).to_string().replace('/', "\\/"),
            "/go" => json!({ "error": TOKEN })
                .to_string()
                .replace('&', "\\u0026")
                .replace('<', "\\u003c")
                .replace('>', "\\u003e"),
            "/html" => html,
            _ => format!("the token {TOKEN} is unknown"),
        };
        ResponseTemplate::new(400).set_body_string(answer)
    };
    Mock::given(any()).respond_with(echo).mount(&server).await;
    for content_type in [
        "application/json",
        "application/x-www-form-urlencoded",
        "text/xml",
        "text/plain",
    ] {
        let body = Body::with_token("key={{ token }}.", TokenFormat::of(Some(content_type)));
        let endpoint = webhook(Parts {
            token: Some(Token::InBody(TOKEN.into())),
            body: Some(body.unwrap()),
            content_type: Some(content_type.into()),
            ..parts(&server.uri())
        });
        for path in ["/raw", "/json", "/php", "/go", "/html", "/text"] {
            let Endpoint::Webhook(mut hook) = endpoint.clone() else {
                panic!("a webhook")
            };
            hook.url.set_path(path);
            let message = sender(config())
                .send(&Endpoint::Webhook(hook), TEST, false)
                .await
                .unwrap_err()
                .to_string();
            assert!(
                message.contains("[redacted]"),
                "{path} {content_type}: {message}"
            );
            for piece in ["ab", "cd", "ef", "gh", "ij", "kl", "mn", "op", "qr"] {
                let words = [
                    "the endpoint rejected the message",
                    "application",
                    "unknown",
                    "the token",
                    "error",
                    "[redacted]",
                ];
                let rest = words
                    .iter()
                    .fold(message.clone(), |text, word| text.replace(word, ""));
                assert!(!rest.contains(piece), "{path} {content_type}: {message}");
            }
        }
    }
}

/// Logs have the finest level, for every crate involved.
#[test]
fn no_secret_is_in_logs_or_errors() {
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
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    let secrets = [
        TOKEN,
        "hunter2hunter2",
        "T00000000",
        "wh-signing-key",
        "body-t0ken",
    ];
    let endpoints = |base: &str| {
        let own = webhook(Parts {
            url_is_secret: true,
            token: Some(Token::InHeader("X-Token".into(), "hunter2hunter2".into())),
            signing_key: Some(SigningKey::new(b"wh-signing-key").unwrap()),
            ..parts(&format!("{base}/services/T00000000"))
        });
        let body = Body::with_token("{{ token }}", TokenFormat::Json);
        let in_body = webhook(Parts {
            token: Some(Token::InBody("body-t0ken-body-t0ken".into())),
            body: Some(body.unwrap()),
            ..parts(base)
        });
        [chat(7), own, in_body]
    };
    let mut output = Vec::new();
    tracing::subscriber::with_default(subscriber, || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let server =
                answering(ResponseTemplate::new(302).insert_header("Location", "/x")).await;
            let refused = TcpListener::bind("127.0.0.1:0")
                .unwrap()
                .local_addr()
                .unwrap();
            let reset = raw(drop);
            for base in [
                server.uri(),
                format!("http://{refused}"),
                format!("http://{reset}"),
                format!("https://{reset}"),
            ] {
                // A thread of another test, which has no subscriber, may have registered a callsite as disabled.
                tracing::callsite::rebuild_interest_cache();
                for endpoint in endpoints(&base) {
                    let result = telegram(&base).send(&endpoint, TEST, false).await;
                    writeln!(
                        output,
                        "{endpoint:?} {result:?} {}",
                        result.as_ref().unwrap_err()
                    )
                    .unwrap();
                    tracing::info!(?endpoint, ?result, "sent");
                }
            }
        });
    });
    let output = String::from_utf8(output).unwrap();
    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(
        log.contains("hyper_util"),
        "the log has the involved crates"
    );
    for secret in secrets {
        // wiremock, as the server, does not log the content of requests.
        assert!(!output.contains(secret), "{secret}: {output}");
        assert!(!log.contains(secret), "{secret} in the log");
    }
}

#[test]
fn configuration_errors_contain_no_secret() {
    let with = |url: &str, proxy: Option<&str>| {
        let webhook_proxy = proxy.map(Into::into);
        HttpSender::new(SenderConfig {
            telegram_api_url: url.into(),
            webhook_proxy,
            ..config()
        })
        .unwrap_err()
    };
    assert!(with("nonsense", None).starts_with("--telegram-api-url: "));
    assert!(with("ftp://x", None).starts_with("--telegram-api-url: "));
    let error = with("https://x", Some("http://u:s3cr3t@:x"));
    assert!(
        error.starts_with("--webhook-proxy: ") && !error.contains("s3cr3t"),
        "{error}"
    );
}
