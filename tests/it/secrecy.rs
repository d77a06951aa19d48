//! No token, no secret URL, no key: after any error, no log, status, Event or metric contains one of them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use k8s_openapi::api::core::v1::Secret;
use qm_api::{ContactPoint, TrackedField};
use serde_json::{Value, json};
use testbed::bot_api::{BotApi, Chat, Fault, Kind, Pace};
use testbed::receiver::{Receiver, Reply};
use testbed::tls::Authority;
use testbed::wait::until;

use crate::support::{Bed, Operator, SOON, Settings};

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
