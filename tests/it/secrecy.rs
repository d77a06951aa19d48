//! No token, no secret URL, no key: after any error, no log, status, Event or metric contains one of them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use k8s_openapi::api::core::v1::Secret;
use qm_api::{ContactPoint, TrackedField};
use serde_json::{Value, json};
use testbed::bot_api::{BotApi, Chat, Fault, Kind, Pace};
use testbed::receiver::{Receiver, Reply, Request};
use testbed::tls::Authority;
use testbed::wait::until;

use crate::hooks::verify;
use crate::support::{Bed, Operator, SOON, Settings, condition};

/// Secret values, by their description.
struct Secrets {
    all: Vec<(&'static str, String)>,
}

impl Secrets {
    /// Returns every encoding of the values.
    fn forms(&self) -> Vec<(String, String)> {
        let hex = |text: &str| {
            text.bytes()
                .fold(String::new(), |all, byte| all + &format!("{byte:02x}"))
        };
        let mut forms = Vec::new();
        for (what, secret) in &self.all {
            forms.push(((*what).to_owned(), secret.clone()));
            forms.push((format!("{what} in base64"), STANDARD.encode(secret)));
            let json = Value::from(&**secret).to_string();
            forms.push((
                format!("{what} in JSON"),
                json[1..json.len() - 1].to_owned(),
            ));
            forms.push((format!("{what} in hexadecimal"), hex(secret)));
            forms.push((
                format!("{what}, half"),
                secret[secret.len() / 2..].to_owned(),
            ));
            let bytes: Vec<_> = secret
                .bytes()
                .take(12)
                .map(|byte| byte.to_string())
                .collect();
            forms.push((format!("{what} in bytes"), bytes.join(", ")));
        }
        forms
    }

    fn search(&self, source: &str, text: &str) {
        for (what, form) in self.forms() {
            if let Some(at) = text.find(&form) {
                let around: String = text[..at]
                    .chars()
                    .rev()
                    .take(300)
                    .collect::<Vec<_>>()
                    .into_iter()
                    .rev()
                    .collect();
                panic!("{what} is in {source}, after: {around}");
            }
        }
    }
}

fn code(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap()
}

/// Returns the body of `request` with HTML's special characters escaped.
fn html(request: &Request) -> String {
    text(request)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// Decodes a form as receivers do.
fn form_pairs(form: &str) -> Vec<(String, String)> {
    let pairs = form_urlencoded::parse(form.as_bytes());
    pairs.into_owned().collect()
}

fn text(request: &Request) -> String {
    String::from_utf8(request.body.to_vec()).unwrap()
}

/// The receivers repeat the body, raw and in other encodings.
#[tokio::test]
async fn token_of_a_body_never_appears_in_any_output() {
    let bed = Bed::shared("secrecy-body").await;
    let secrets = Secrets {
        all: vec![
            ("the token", r#"pd"Qw7\Er9/Ty1&Ui3<Op5>As "2Df4=Gh6"#.into()),
            ("the next token", "N3xtT0k3nN3xtT0k3nN3xtT0k3n".into()),
            ("a token with a newline", "NeWlInEbOdYNeWlInEbOdY".into()),
        ],
    };
    let [token, next, newline] = [0, 1, 2].map(|index| secrets.all[index].1.clone());
    let (receiver, collector) = (Receiver::start().unwrap(), Receiver::start().unwrap());
    let settings = Settings::default()
        .flag("--log-level=trace")
        .flag("--secret-refresh-period=200ms")
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url())
        .env("OTEL_BSP_SCHEDULE_DELAY", "50");
    let mut operator = Operator::start(&bed, settings).await;
    let key = "a signing key of thirty-two bytes";
    let data = json!({ "token": token, "newline": format!("{newline}\n"), "key": key });
    bed.create::<Secret>("all", json!({ "stringData": data }))
        .await;
    let from = |key: &str| json!({ "secretName": "all", "key": key });
    let point = async |name: &str, token: &str, body: &str, content_type: &str| {
        let webhook = json!({
            "url": format!("{}/{name}", receiver.url()),
            "tokenIn": "Body",
            "body": body,
            "contentType": content_type,
            "signingKey": from("key"),
        });
        let spec = json!({ "type": "Webhook", "apiToken": from(token), "webhookSpec": webhook });
        bed.point(name, spec).await;
    };
    let body = r#"{"a": "{{ token }}", "b": {{ token | tojson }}, "text": {{ text | tojson }}}"#;
    point("json", "token", body, "application/json").await;
    let body = "a={{ token }}&b=1";
    point("form", "token", body, "application/x-www-form-urlencoded").await;
    point("newline", "newline", body, "text/plain").await;
    point(
        "part",
        "token",
        r#"{"a": "{{ token[:8] }}"}"#,
        "application/json",
    )
    .await;
    bed.not_ready("newline", "SecretInvalid").await;
    bed.not_ready("part", "BodyInvalid").await;
    bed.deployment("web", 1).await;
    for name in ["json", "form"] {
        bed.ready(name).await;
        bed.track(name, "Deployment", "web", "replicas", name).await;
        bed.delivered(name, &[("Created", Some("1"))]).await;
    }

    // The token is in the body, which the signature covers, and in no header.
    let check = |token: &str| {
        let requests = receiver.requests();
        let last = |path: &str| requests.iter().rfind(|it| it.path == path).unwrap().clone();
        let (json, form) = (last("/json"), last("/form"));
        let data = json.json().unwrap();
        assert_eq!((&data["a"], &data["b"]), (&json!(token), &json!(token)));
        assert!(data["text"].as_str().unwrap().contains("Value: "), "{data}");
        let pairs = form_pairs(&text(&form));
        let expected = [("a", token), ("b", "1")].map(|(name, value)| (name.into(), value.into()));
        assert_eq!(pairs, expected);
        for request in [json, form] {
            verify(&request, key.as_bytes());
            assert_eq!(request.header("x-token"), None);
            secrets.search("the headers", &format!("{:?}", request.headers));
        }
    };
    check(&token);

    let sent = |name: &str| {
        let path = format!("/{name}");
        let requests = receiver.requests();
        requests.iter().rfind(|it| it.path == path).unwrap().clone()
    };
    let mut value = 1;
    for name in ["json", "form"] {
        let request = sent(name);
        let echoes = [
            text(&request),
            json!({ "error": text(&request) }).to_string(),
            json!({ "error": json!({ "body": text(&request) }).to_string() }).to_string(),
            json!({ "token": token }).to_string().replace('/', "\\/"),
            html(&request),
            format!("the token {token} is unknown"),
        ];
        for (status, echo) in [500, 503, 500, 503, 500, 503].into_iter().zip(echoes) {
            receiver.behave();
            bed.ready(name).await;
            bed.waiting(name, "").await;
            receiver.always(Reply::status(code(status)).body(echo));
            value += 1;
            bed.scale("web", value).await;
            let failing = format!("DeliveryFailing: {name:?}: the endpoint failed ({status}");
            let message = bed.waiting(name, &failing).await;
            assert!(message.contains("[redacted]"), "{message}");
            secrets.search("the annotation", &message);
        }
    }
    // Refusals: the condition, its Event, and the answer to a requested test message.
    for (status, reason) in [(404, "NotFound"), (401, "Unauthorized"), (403, "Forbidden")] {
        receiver.behave();
        // Only an entry opens a receiver again that accepted a test message while it was stopped.
        value += 1;
        bed.scale("web", value).await;
        bed.ready("json").await;
        bed.waiting("json", "").await;
        receiver.always(Reply::status(code(status)).body(text(&sent("json"))));
        let annotations = json!({ "quartermaster.dev/test-at": status.to_string() });
        bed.patch::<ContactPoint>(
            "json",
            json!({ "metadata": { "annotations": annotations } }),
        )
        .await;
        let point = bed.not_ready("json", reason).await;
        let (_, message) = condition(&point);
        assert!(message.contains("[redacted]"), "{message}");
    }

    // The next message after a rotation has the new token.
    receiver.behave();
    bed.patch::<Secret>("all", json!({ "stringData": { "token": next } }))
        .await;
    for name in ["json", "form"] {
        bed.ready(name).await;
        until("the test message has the new token", SOON, async || {
            Ok(text(&sent(name)).contains(&next).then_some(()))
        })
        .await
        .unwrap();
        bed.waiting(name, "").await;
    }
    bed.scale("web", 100).await;
    for name in ["json", "form"] {
        bed.until(name, "is sent", |field: &TrackedField| {
            let history = field.history().unwrap();
            let last = history.last().unwrap();
            last.value.as_deref() == Some("100") && !last.is_pending()
        })
        .await;
    }
    check(&next);

    secrets.search("the metrics", &operator.metrics().await);
    operator.child().terminate().unwrap();
    until("the operator exits", SOON, async || {
        Ok(operator.child().ended()?)
    })
    .await
    .unwrap();
    let logs = operator.logs();
    assert!(logs.contains("\"level\":\"debug\"") && !logs.contains("panicked"));
    secrets.search("the logs", &logs);
    secrets.search(
        "the logs",
        &logs.replace("\\\"", "\"").replace("\\\\", "\\"),
    );
    let traces = collector.requests();
    assert!(traces.len() > 3);
    for trace in traces {
        secrets.search("a trace", &String::from_utf8_lossy(&trace.body));
    }
    for kind in [
        "contactpoints",
        "trackedfields",
        "events.events.k8s.io",
        "events",
    ] {
        let yaml = bed
            .kubectl(&["get", kind, "-o", "yaml", "--show-managed-fields"])
            .await;
        secrets.search(kind, &yaml);
        let objects = bed.kubectl(&["get", kind, "-o", "json"]).await;
        let objects: Value = serde_json::from_str(&objects).unwrap();
        let objects = objects["items"].as_array().unwrap();
        assert!(!objects.is_empty(), "{kind}");
        for object in objects {
            secrets.search(kind, &object.to_string());
        }
    }
}

/// Errors of all kinds, with receivers that repeat their requests; then the test searches all output.
#[tokio::test]
async fn secrets_never_appear_in_any_output() {
    let bed = Bed::shared("secrecy").await;
    let secrets = Secrets {
        all: vec![
            (
                "the bot's token",
                "71829304:QdJxWmTzKpLsYbVnRcHgFeUaOi5E3t".into(),
            ),
            (
                "the wrong bot's token",
                "60718293:ZxCvBnMaSdFgHjKlQwErTyUiOp9876".into(),
            ),
            (
                "the webhook's token",
                "hGfTrDeSwAqZxCvBnMkLoPiUy12345".into(),
            ),
            ("the URL's path", "T0pS3cr3tP4thOfTh3H00k/B9vYcXuZ".into()),
            ("the URL's query", "qU3rYt0k3nW1thL0ts0fCh4rs".into()),
            (
                "the signing key",
                STANDARD.encode("a signing key of 32 bytes, or so"),
            ),
            (
                "a token with a newline",
                "82930415:NeWlInEtOkEnNeWlInEtOkEn77".into(),
            ),
        ],
    };
    let secret = |what: &str| {
        secrets
            .all
            .iter()
            .find(|(name, _)| *name == what)
            .unwrap()
            .1
            .clone()
    };
    let receiver = Receiver::start().unwrap();
    let telegram = BotApi::start().unwrap();
    telegram.set_pace(Pace::unlimited());
    telegram.add_token(&secret("the bot's token"));
    telegram.add_chat(Chat::new(Kind::Private, 1).unwrap());
    let settings = Settings::default()
        .telegram(&telegram.url())
        .flag("--log-level=trace");
    let mut operator = Operator::start(&bed, settings).await;

    let path = format!("/{}", secret("the URL's path"));
    let whole = format!("{}{path}?key={}", receiver.url(), secret("the URL's query"));
    let authority = Authority::new("ours").unwrap();
    let client = authority.client("operator").unwrap();
    let data = json!({
        "bot": secret("the bot's token"),
        "wrong": secret("the wrong bot's token"),
        "newline": format!("{}\n", secret("a token with a newline")),
        "token": secret("the webhook's token"),
        "bad-header": format!("{}\r\nX: y", secret("the webhook's token")),
        "url": whole,
        "bad-url": whole.replace("http://", "htp//"),
        "refused-url": format!("http://169.254.169.254{path}"),
        "nowhere-url": format!("http://nowhere.invalid{path}?key={}", secret("the URL's query")),
        "key": format!("whsec_{}", secret("the signing key")),
        "bad-key": format!("whsec_!{}", secret("the signing key")),
        "tls.crt": client.cert_pem,
        "tls.key": client.key_pem,
    });
    bed.create::<Secret>("all", json!({ "stringData": data }))
        .await;
    let from = |key: &str| json!({ "secretName": "all", "key": key });
    let chat = |key: &str| json!({ "type": "Telegram", "apiToken": from(key), "telegramSpec": { "chatId": 1 } });
    let hook = |url: &str, token: &str, key: &str| {
        let webhook =
            json!({ "urlFrom": from(url), "headerName": "X-Token", "signingKey": from(key) });
        json!({ "type": "Webhook", "apiToken": from(token), "webhookSpec": webhook })
    };
    let tls = json!({ "type": "Webhook", "webhookSpec": { "urlFrom": from("url"), "tls": { "secretName": "all" } } });
    let points = [
        ("chat", chat("bot"), "Ready"),
        ("chat-wrong", chat("wrong"), "Unauthorized"),
        ("chat-newline", chat("newline"), "SecretInvalid"),
        ("chat-key", chat("none"), "SecretKeyMissing"),
        ("hook", hook("url", "token", "key"), "Ready"),
        (
            "hook-header",
            hook("url", "bad-header", "key"),
            "SecretInvalid",
        ),
        ("hook-url", hook("bad-url", "token", "key"), "SecretInvalid"),
        (
            "hook-refused",
            hook("refused-url", "token", "key"),
            "AddressNotAllowed",
        ),
        (
            "hook-nowhere",
            hook("nowhere-url", "token", "key"),
            "Unreachable",
        ),
        ("hook-key", hook("url", "token", "bad-key"), "SecretInvalid"),
        ("hook-tls", tls, "Ready"),
    ];
    for (name, spec, _) in &points {
        bed.point(name, spec.clone()).await;
    }
    for (name, _, reason) in &points {
        if *reason == "Ready" {
            bed.ready(name).await;
        } else {
            bed.not_ready(name, reason).await;
        }
    }
    // From here on the Bot API repeats the good token in every answer.
    bed.patch::<ContactPoint>("chat-wrong", json!({ "spec": { "suspend": true } }))
        .await;
    bed.deployment("web", 1).await;
    for name in ["chat", "hook"] {
        bed.track(name, "Deployment", "web", "replicas", name).await;
        bed.delivered(name, &[("Created", Some("1"))]).await;
    }

    // The receivers repeat their requests, whole and in part, in bodies and in headers.
    let seen = receiver.requests();
    let request = seen
        .iter()
        .find(|request| request.header("x-token").is_some())
        .unwrap();
    let headers: Vec<_> = request
        .headers
        .iter()
        .map(|(name, value)| format!("{name}: {value:?}"))
        .collect();
    assert!(
        request.header("x-token") == Some(&*secret("the webhook's token")) && request.path == path
    );
    let echo = format!(
        "no route {path}?{} for {}",
        request.query,
        headers.join("; ")
    );
    let echoes = |status: u16| {
        let location = http::HeaderValue::from_str(&whole).unwrap();
        Reply::status(code(status))
            .header(http::header::LOCATION, location)
            .body(echo.clone())
    };
    let key = secret("the signing key");
    let bodies = [
        json!({ "token": secret("the webhook's token"), "url": whole, "key": key }).to_string(),
        secret("the URL's query"),
        format!("{}/", path.replace('/', "%2F")),
    ];
    let mut value = 1;
    for status in [429, 500, 400, 413, 302, 401, 403, 404] {
        value += 1;
        receiver.always(echoes(status));
        let bot = format!(
            "bot{} said {}",
            secret("the bot's token"),
            secret("the bot's token")
        );
        let body = json!({ "ok": false, "error_code": status, "description": bot });
        telegram.fault_always(Fault::Instead(Reply::status(code(status)).json(&body)));
        let (hooks, chats) = (receiver.requests().len(), telegram.rejected().len());
        bed.scale("web", value).await;
        receiver
            .wait_for(SOON, |all| all.len() > hooks)
            .await
            .unwrap();
        telegram
            .wait_for_rejected(SOON, |all| all.len() > chats)
            .await
            .unwrap();
        if status == 500 {
            for name in ["hook", "chat"] {
                let message = bed.waiting(name, "DeliveryFailing: ").await;
                assert!(message.contains("[redacted]"), "{message}");
            }
        }
    }
    bed.not_ready("hook", "NotFound").await;
    bed.not_ready("chat", "Unauthorized").await;
    for body in bodies {
        receiver.behave();
        bed.ready("hook").await;
        bed.waiting("hook", "").await;
        receiver.always(Reply::status(code(500)).body(body));
        value += 1;
        bed.scale("web", value).await;
        let message = bed
            .waiting(
                "hook",
                "DeliveryFailing: \"hook\": the endpoint failed (500",
            )
            .await;
        secrets.search("the annotation", &message);
    }
    for reply in [
        Reply::reset(),
        Reply::hang(),
        Reply::junk(100_000).cut_midway(),
    ] {
        let attempts = receiver.requests().len();
        receiver.always(reply);
        receiver
            .wait_for(SOON, |all| all.len() > attempts)
            .await
            .unwrap();
    }
    telegram.refuse().await.unwrap();
    receiver.refuse().await.unwrap();
    bed.scale("web", 100).await;
    until("both are away", SOON, async || {
        let logs = operator.logs();
        Ok((logs.matches("cannot connect").count() > 3).then_some(()))
    })
    .await
    .unwrap();

    secrets.search("the metrics", &operator.metrics().await);
    for path in ["livez", "readyz"] {
        secrets.search(path, &operator.probe(path).await.unwrap().1);
    }
    operator.child().terminate().unwrap();
    until("the operator exits", SOON, async || {
        Ok(operator.child().ended()?)
    })
    .await
    .unwrap();
    let logs = operator.logs();
    assert!(
        logs.contains("\"level\":\"debug\"") && !logs.contains("panicked"),
        "{}",
        &logs[..1000]
    );
    secrets.search("the logs", &logs);
    secrets.search("the logs", &logs.replace("\\/", "/").replace("%2F", "/"));
    let key_lines: Vec<_> = client
        .key_pem
        .lines()
        .filter(|line| !line.starts_with('-'))
        .collect();
    assert!(
        !key_lines.is_empty() && key_lines.iter().all(|line| !logs.contains(line)),
        "the TLS key"
    );
    for kind in [
        "contactpoints",
        "trackedfields",
        "events.events.k8s.io",
        "events",
    ] {
        let text = bed
            .kubectl(&["get", kind, "-o", "yaml", "--show-managed-fields"])
            .await;
        secrets.search(kind, &text);
        let objects: Value =
            serde_json::from_str(&bed.kubectl(&["get", kind, "-o", "json"]).await).unwrap();
        let objects = objects["items"].as_array().unwrap();
        assert!(!objects.is_empty(), "{kind}");
        for object in objects {
            secrets.search(kind, &object.to_string());
        }
    }
    assert!(
        bed.api::<ContactPoint>()
            .list(&Default::default())
            .await
            .unwrap()
            .items
            .len()
            == points.len()
    );
    assert!(
        bed.api::<TrackedField>()
            .list(&Default::default())
            .await
            .unwrap()
            .items
            .len()
            == 2
    );
}
