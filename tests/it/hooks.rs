//! Webhooks: content of a request, trust, and forbidden addresses.

use std::net::TcpListener;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::StatusCode;
use k8s_openapi::api::core::v1::Secret;
use qm_api::{ContactPoint, TrackedField};
use serde_json::json;
use sha2::{Digest, Sha256};
use testbed::receiver::{Receiver, Reply, Request};
use testbed::tls::{Authority, Identity};

use crate::support::{Bed, Operator, READY, Settings, accepted, condition};

/// Returns HMAC-SHA256 as RFC 2104 defines it, so that the product's library does not check its own signature.
fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    const BLOCK: usize = 64;
    let mut key = if key.len() > BLOCK {
        Sha256::digest(key).to_vec()
    } else {
        key.to_vec()
    };
    key.resize(BLOCK, 0);
    let padded = |pad: u8| key.iter().map(|byte| byte ^ pad).collect::<Vec<u8>>();
    let inner = Sha256::digest([&padded(0x36), message].concat());
    Sha256::digest([&padded(0x5c), &inner[..]].concat()).to_vec()
}

/// Checks a request as a receiver does by Standard Webhooks: one of the signatures matches, and the time is near.
pub fn verify(request: &Request, key: &[u8]) {
    let header = |name: &str| {
        request
            .header(name)
            .unwrap_or_else(|| panic!("no {name}"))
            .to_owned()
    };
    let (id, timestamp) = (header("webhook-id"), header("webhook-timestamp"));
    let message = [format!("{id}.{timestamp}.").as_bytes(), &request.body].concat();
    let expected = format!("v1,{}", STANDARD.encode(hmac(key, &message)));
    assert!(
        header("webhook-signature")
            .split(' ')
            .any(|signature| signature == expected),
        "{id}"
    );
    let sent = Duration::from_secs(timestamp.parse().unwrap());
    let arrived = request
        .time
        .duration_since(std::time::SystemTime::UNIX_EPOCH)
        .unwrap();
    assert!(
        arrived.abs_diff(sent) < Duration::from_mins(5),
        "{timestamp}"
    );
}

#[test]
fn hmac_of_the_tests_matches_rfc_4231() {
    let hex = |bytes: Vec<u8>| {
        bytes
            .iter()
            .fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
    };
    let short = hmac(b"Jefe", b"what do ya want for nothing?");
    assert_eq!(
        hex(short),
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"
    );
    let long = hmac(
        &[0xaa; 131],
        b"Test Using Larger Than Block-Size Key - Hash Key First",
    );
    assert_eq!(
        hex(long),
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"
    );
}

/// All options of a request at once.
#[tokio::test]
async fn request_carries_the_options_of_the_spec() {
    let bed = Bed::shared("carries").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default().flag("--cluster-name=prod eu")).await;
    let key = b"a key of thirty-two bytes, or so".to_vec();
    let data = json!({
        "token": "Bearer s3cr3t-t0ken",
        "url": format!("{}/in/path?q=a%20b&c=%C3%A9", receiver.url()),
        "key": format!("whsec_{}", STANDARD.encode(&key)),
    });
    bed.create::<Secret>("hook", json!({ "stringData": data }))
        .await;
    let from = |key: &str| json!({ "secretName": "hook", "key": key });
    let webhook = json!({
        "urlFrom": from("url"),
        "headerName": "Authorization",
        "headers": { "X-Team": "one, two", "x-empty": "" },
        "signingKey": from("key"),
    });
    bed.point(
        "hook",
        json!({ "type": "Webhook", "apiToken": from("token"), "webhookSpec": webhook }),
    )
    .await;
    bed.deployment("web", 1).await;
    bed.track("replicas", "Deployment", "web", "replicas", "hook")
        .await;
    let history = bed.delivered("replicas", &[("Created", Some("1"))]).await;
    // A digest, after one failed attempt.
    receiver.next(1, Reply::status(http::StatusCode::SERVICE_UNAVAILABLE));
    bed.patch::<ContactPoint>("hook", json!({ "spec": { "suspend": true } }))
        .await;
    bed.waiting("replicas", "ContactPointNotReady").await;
    bed.scale("web", 2).await;
    bed.scale("web", 3).await;
    bed.until("replicas", "recorded", |field: &TrackedField| {
        field.history().unwrap().len() == 3
    })
    .await;
    bed.patch::<ContactPoint>("hook", json!({ "spec": { "suspend": false } }))
        .await;
    bed.delivered(
        "replicas",
        &[
            ("Created", Some("1")),
            ("Updated", Some("2")),
            ("Updated", Some("3")),
        ],
    )
    .await;

    let requests = receiver.requests();
    assert_eq!(requests.len(), 4);
    for request in &requests {
        verify(request, &key);
        let header = |name: &str| request.header(name);
        assert_eq!(
            (request.method.as_str(), request.path.as_str()),
            ("POST", "/in/path")
        );
        assert_eq!(request.query, "q=a%20b&c=%C3%A9");
        assert_eq!(header("authorization"), Some("Bearer s3cr3t-t0ken"));
        assert_eq!(
            (header("x-team"), header("x-empty")),
            (Some("one, two"), Some(""))
        );
        assert_eq!(header("content-type"), Some("application/json"));
        assert_eq!(header("ce-specversion"), Some("1.0"));
        assert!(header("user-agent").unwrap().starts_with("quartermaster/"));
        assert_eq!(header("ce-id"), header("idempotency-key"));
        assert_eq!(header("ce-id"), header("webhook-id"));
        header("ce-time")
            .unwrap()
            .parse::<jiff::Timestamp>()
            .unwrap();
        assert_eq!(request.json().unwrap()["cluster"], "prod eu");
    }
    let namespace = &bed.namespace;
    let attribute = |index: usize, name: &str| requests[index].header(name);
    let base = format!("/apis/tg.azamaton.ru/v1/namespaces/{namespace}");
    assert_eq!(attribute(0, "ce-type"), Some(READY));
    assert_eq!(
        attribute(0, "ce-source"),
        Some(format!("{base}/contactpoints/hook").as_str())
    );
    assert_eq!(attribute(0, "ce-subject"), None);
    assert_eq!(
        attribute(1, "ce-type"),
        Some("dev.quartermaster.trackedfield.changed")
    );
    assert_eq!(
        attribute(1, "ce-source"),
        Some(format!("{base}/trackedfields/replicas").as_str())
    );
    assert_eq!(
        attribute(1, "ce-subject"),
        Some(format!("Deployment/{namespace}/web/replicas").as_str())
    );
    assert_eq!(attribute(1, "ce-id"), history[0].id.as_deref());
    assert_eq!(
        attribute(3, "ce-type"),
        Some("dev.quartermaster.trackedfield.digest")
    );
    assert_eq!(
        attribute(3, "ce-source"),
        Some("/apis/tg.azamaton.ru/v1/trackedfields")
    );
    // The failed attempt was the same request; its signature has its own time.
    assert_eq!(requests[2].body, requests[3].body);
    assert_eq!(
        attribute(2, "idempotency-key"),
        attribute(3, "idempotency-key")
    );
    let data = requests[3].json().unwrap();
    assert_eq!(data["entries"].as_array().unwrap().len(), 2);
    assert_eq!(
        requests[0].json().unwrap()["text"],
        "Contact point is ready\nCluster: prod eu"
    );
    assert!(
        requests[1].json().unwrap()["text"]
            .as_str()
            .unwrap()
            .ends_with("\nCluster: prod eu")
    );
}

/// Creates a Secret of TLS material.
async fn tls_secret(bed: &Bed, name: &str, ca: &Authority, client: Option<&Identity>) {
    let mut data = json!({ "ca.crt": ca.ca_pem() });
    if let Some(Identity { cert_pem, key_pem }) = client {
        data["tls.crt"] = cert_pem.as_str().into();
        data["tls.key"] = key_pem.as_str().into();
    }
    bed.create::<Secret>(name, json!({ "stringData": data }))
        .await;
}

#[tokio::test]
async fn tls_material_is_trusted_and_presented() {
    let bed = Bed::shared("tls").await;
    let _operator = Operator::start(
        &bed,
        Settings::default().flag("--secret-refresh-period=300ms"),
    )
    .await;
    let (trusted, other) = (
        Authority::new("ours").unwrap(),
        Authority::new("other").unwrap(),
    );
    let identity = trusted.server(&["127.0.0.1", "localhost"]).unwrap();
    let open = Receiver::start_tls(&identity, None).unwrap();
    let closed = Receiver::start_tls(&identity, Some(other.ca_pem())).unwrap();
    let elsewhere =
        Receiver::start_tls(&trusted.server(&["elsewhere.test"]).unwrap(), None).unwrap();
    tls_secret(&bed, "ours", &trusted, None).await;
    tls_secret(&bed, "other", &other, None).await;
    tls_secret(
        &bed,
        "with-client",
        &trusted,
        Some(&other.client("operator").unwrap()),
    )
    .await;
    tls_secret(
        &bed,
        "with-stranger",
        &trusted,
        Some(&trusted.client("stranger").unwrap()),
    )
    .await;
    let point = async |name: &str, receiver: &Receiver, secret: Option<&str>| {
        let mut webhook = json!({ "url": receiver.url() });
        if let Some(secret) = secret {
            webhook["tls"] = json!({ "secretName": secret });
        }
        bed.point(name, json!({ "type": "Webhook", "webhookSpec": webhook }))
            .await;
    };
    point("open", &open, Some("ours")).await;
    point("closed", &closed, Some("with-client")).await;
    let refused = [
        ("no-ca", &open, None),
        ("wrong-ca", &open, Some("other")),
        ("wrong-name", &elsewhere, Some("ours")),
        ("no-client", &closed, Some("ours")),
        ("stranger", &closed, Some("with-stranger")),
    ];
    for (name, receiver, secret) in refused {
        point(name, receiver, secret).await;
    }
    bed.ready("open").await;
    bed.ready("closed").await;
    for (name, ..) in refused {
        bed.not_ready(name, "Unreachable").await;
    }
    assert_eq!(
        (
            accepted(&open).len(),
            accepted(&closed).len(),
            accepted(&elsewhere).len()
        ),
        (1, 1, 0)
    );

    // The Secret alone fixes the problem.
    bed.patch::<Secret>(
        "other",
        json!({ "stringData": { "ca.crt": trusted.ca_pem() } }),
    )
    .await;
    bed.ready("wrong-ca").await;

    // Contents of a Secret that are not TLS material.
    let client = other.client("operator").unwrap();
    let cases = [
        (
            "empty",
            json!({ "other": "x" }),
            "neither ca.crt nor tls.crt and tls.key",
        ),
        (
            "no-key",
            json!({ "tls.crt": client.cert_pem }),
            "tls.crt but no tls.key",
        ),
        (
            "no-crt",
            json!({ "tls.key": client.key_pem }),
            "tls.key but no tls.crt",
        ),
        (
            "no-pem",
            json!({ "ca.crt": "PRIVATE" }),
            "ca.crt contains no PEM certificate",
        ),
        (
            "mixed",
            json!({ "tls.crt": client.cert_pem, "tls.key": identity.key_pem }),
            "tls.key does not belong to tls.crt",
        ),
    ];
    for (name, data, expected) in cases {
        bed.create::<Secret>(name, json!({ "stringData": data }))
            .await;
        point(name, &open, Some(name)).await;
        let (_, message) = condition(&bed.not_ready(name, "SecretInvalid").await);
        assert!(
            message.contains(expected)
                && message.contains(&format!("{name:?}"))
                && !message.contains("PRIVATE"),
            "{message}"
        );
    }
}

#[tokio::test]
async fn webhook_rejects_denied_addresses() {
    let bed = Bed::shared("refuses").await;
    let receiver = Receiver::start().unwrap();
    let target = Receiver::start().unwrap();
    let settings = Settings::default()
        .flag("--webhook-allow-loopback=false")
        .flag("--webhook-deny-cidr=10.96.0.0/12");
    let _operator = Operator::start(&bed, settings).await;
    let port = receiver.port();
    let cases = [
        (
            "loopback",
            format!("http://127.0.0.1:{port}/"),
            "--webhook-allow-loopback",
        ),
        // An allowed name that resolves to a denied address.
        (
            "by-name",
            format!("http://localhost:{port}/"),
            "--webhook-allow-loopback",
        ),
        (
            "mapped",
            format!("http://[::ffff:127.0.0.1]:{port}/"),
            "--webhook-allow-loopback",
        ),
        (
            "metadata",
            "http://169.254.169.254/latest/meta-data/".into(),
            "metadata addresses are always denied",
        ),
        (
            "decimal",
            "http://2852039166/".into(),
            "metadata addresses are always denied",
        ),
        (
            "nat64",
            "http://[64:ff9b::a9fe:a9fe]/".into(),
            "metadata addresses are always denied",
        ),
        (
            "unspecified",
            format!("http://0.0.0.0:{port}/"),
            "unspecified",
        ),
        (
            "denied",
            "http://10.96.0.1/".into(),
            "--webhook-deny-cidr=10.96.0.0/12",
        ),
    ];
    for (name, url, _) in &cases {
        bed.webhook(name, url).await;
    }
    bed.secret("url", &format!("http://127.0.0.1:{port}/"))
        .await;
    let from = json!({ "urlFrom": { "secretName": "url", "key": "token" } });
    bed.point(
        "from-secret",
        json!({ "type": "Webhook", "webhookSpec": from }),
    )
    .await;
    for (name, _, expected) in &cases {
        let (_, message) = condition(&bed.not_ready(name, "AddressNotAllowed").await);
        assert!(message.contains(expected), "{name}: {message}");
        assert_eq!(bed.event(name, "AddressNotAllowed").await, message);
    }
    let (_, message) = condition(&bed.not_ready("from-secret", "AddressNotAllowed").await);
    assert!(
        message.contains("the address of the URL is not allowed: loopback needs")
            && !message.contains("127.0.0.1")
            && !message.contains(&port.to_string()),
        "{message}"
    );
    assert!(receiver.requests().is_empty());

    // With the flag the request is sent, but a redirect is not followed.
    let allowed = Bed::on(bed.plane.clone(), "allowed").await;
    let _operator = Operator::start(&allowed, Settings::default()).await;
    let location = http::HeaderValue::from_str(&target.url()).unwrap();
    receiver.at_path("/moved", Reply::redirect(location));
    allowed
        .webhook("by-name", &format!("http://localhost:{port}/"))
        .await;
    allowed
        .webhook("moved", &format!("{}/moved", receiver.url()))
        .await;
    allowed.webhook("metadata", "http://169.254.169.254/").await;
    allowed.ready("by-name").await;
    let (_, message) = condition(&allowed.not_ready("moved", "Redirected").await);
    assert!(
        message.contains("302") && message.contains("set the final URL"),
        "{message}"
    );
    allowed.not_ready("metadata", "AddressNotAllowed").await;
    assert!(target.requests().is_empty());
}

/// A webhook must not reveal services that only the cluster can reach: neither an answer nor the cause of a missing
/// answer.
#[tokio::test]
async fn answer_of_a_private_address_is_not_shown_by_default() {
    let bed = Bed::shared("probe").await;
    let receiver = Receiver::start().unwrap();
    receiver.always(Reply::status(StatusCode::NOT_FOUND).body("internal words"));
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    // A bound port without a listener refuses connections, and no other process gets it.
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let closed = bound.local_addr().unwrap();
    let (port, other) = (receiver.port(), silent.local_addr().unwrap().port());
    let settings = Settings::default()
        .flag("--webhook-quote-private=false")
        .flag("--send-timeout=1s")
        .flag(&format!(
            "--webhook-allow-port={port},{other},{}",
            closed.port()
        ));
    let _operator = Operator::start(&bed, settings).await;
    bed.webhook("answers", &receiver.url()).await;
    bed.webhook("by-name", &format!("http://localhost:{port}/"))
        .await;
    bed.webhook("silent", &format!("http://localhost:{other}/"))
        .await;
    bed.webhook("closed", &format!("http://{closed}/")).await;
    bed.webhook("port", "http://127.0.0.1:1/").await;
    for name in ["answers", "by-name"] {
        let (_, message) = condition(&bed.not_ready(name, "NotFound").await);
        assert!(
            message.contains(
                "(404; the operator hides the response of a private address and behind a proxy)"
            ) && !message.contains("words"),
            "{message}"
        );
        assert_eq!(bed.event(name, "NotFound").await, message);
    }
    let (_, silent) = condition(&bed.not_ready("silent", "Unreachable").await);
    let (_, closed) = condition(&bed.not_ready("closed", "Unreachable").await);
    assert_eq!(silent, closed);
    let (_, message) = condition(&bed.not_ready("port", "AddressNotAllowed").await);
    assert!(
        message.contains("port 1 is not allowed: it is not in --webhook-allow-port="),
        "{message}"
    );

    // With the flag the same answer is quoted.
    let quoted = Bed::on(bed.plane.clone(), "quoted").await;
    let _operator = Operator::start(&quoted, Settings::default()).await;
    quoted.webhook("answers", &receiver.url()).await;
    let (_, message) = condition(&quoted.not_ready("answers", "NotFound").await);
    assert!(message.contains("internal words"), "{message}");
}

/// Validation cannot find a body that fails on some messages only.
#[tokio::test]
async fn body_that_fails_on_a_message_is_reported() {
    let bed = Bed::shared("body").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default().flag("--cluster-name=prod")).await;
    let in_cluster = "{{ cluster | replace('p', 'P') }} {{ value }}";
    let body = format!("{in_cluster}{{% if action == 'Updated' %}}{{{{ 1 / 0 }}}}{{% endif %}}");
    bed.point(
        "hook",
        json!({ "type": "Webhook", "webhookSpec": { "url": receiver.url(), "body": body } }),
    )
    .await;
    bed.deployment("web", 1).await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    bed.patch::<TrackedField>("it", json!({ "spec": { "template": in_cluster } }))
        .await;
    bed.delivered("it", &[("Created", Some("1"))]).await;
    bed.waiting("it", "").await;
    assert_eq!(&accepted(&receiver).last().unwrap().body[..], b"Prod 1");
    bed.scale("web", 2).await;
    let message = bed
        .waiting(
            "it",
            "BodyInvalid: webhookSpec.body of \"hook\" fails for the newest change: ",
        )
        .await;
    assert!(message.contains("line 1"), "{message}");
    bed.event("it", "BodyInvalid").await;
    bed.delivered("it", &[("Created", Some("1")), ("Updated", Some("2"))])
        .await;
    assert_eq!(
        receiver.requests().last().unwrap().json().unwrap()["value"],
        "2",
        "the event's own data"
    );
    bed.patch::<ContactPoint>(
        "hook",
        json!({ "spec": { "webhookSpec": { "body": "{{ text }}" } } }),
    )
    .await;
    bed.waiting("it", "").await;
}

/// A body that leaves its token out of a message, or changes the token. The Secret does not exist, so it was not read.
#[tokio::test]
async fn body_without_its_whole_token_is_reported() {
    const TOKEN: &str = "T0kenOfTheBodyInvalidTest";
    let bed = Bed::shared("body-token").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default().flag("--cluster-name=prod")).await;
    let point = async |name: &str, body: &str| {
        let webhook = json!({ "url": receiver.url(), "tokenIn": "Body", "body": body });
        let token = json!({ "secretName": "token", "key": "token" });
        let spec = json!({ "type": "Webhook", "apiToken": token, "webhookSpec": webhook });
        bed.point(name, spec).await;
    };
    let good = r#"{"key": "{{ token }}", "value": {{ value | tojson }}, "of": "{{ cluster | replace('p', 'P') }}"}"#;
    for (name, body) in [
        ("upper", r#"{"key": "{{ token | upper }}"}"#),
        ("part", r#"{"key": "{{ token[:8] }}"}"#),
        ("length", r#"{"key": {{ token | length }}}"#),
        ("none", r#"{"text": {{ text | tojson }}}"#),
    ] {
        point(name, body).await;
        let (_, message) = condition(&bed.not_ready(name, "BodyInvalid").await);
        assert!(
            message.contains("write \"{{ token }}\" or {{ token | tojson }}"),
            "{message}"
        );
        assert_eq!(bed.event(name, "BodyInvalid").await, message);
    }
    point("bare", r#"{"key": {{ token }}}"#).await;
    let (_, message) = condition(&bed.not_ready("bare", "BodyInvalid").await);
    assert!(message.contains("not in a JSON string"), "{message}");
    point("word", "{{ token | escape }}").await;
    let (_, message) = condition(&bed.not_ready("word", "SpecInvalid").await);
    assert!(message.contains("there is no filter `escape`"), "{message}");
    point("hook", good).await;
    bed.not_ready("hook", "SecretNotFound").await;

    // Fields wait with the same reason. Once the body is corrected, the entry is sent.
    bed.deployment("web", 1).await;
    bed.track("waits", "Deployment", "web", "replicas", "upper")
        .await;
    let waiting = bed.waiting("waits", "BodyInvalid: \"upper\": ").await;
    assert!(waiting.contains("for the test message"), "{waiting}");
    bed.secret("token", TOKEN).await;
    bed.ready("hook").await;
    assert_eq!(
        receiver.requests().len(),
        1,
        "the test message of one point"
    );
    bed.patch::<ContactPoint>(
        "upper",
        json!({ "spec": { "webhookSpec": { "body": good } } }),
    )
    .await;
    bed.delivered("waits", &[("Created", Some("1"))]).await;
    bed.waiting("waits", "").await;
    let sent = receiver.requests().last().unwrap().json().unwrap();
    assert_eq!(sent, json!({ "key": TOKEN, "value": "1", "of": "Prod" }));

    // A body that fails on some messages only: the event's own data is sent, without any part of the token.
    let body = r#"{"key": "{{ token if action != 'Updated' else token[:8] }}"}"#;
    bed.patch::<ContactPoint>(
        "hook",
        json!({ "spec": { "webhookSpec": { "body": body } } }),
    )
    .await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    bed.delivered("it", &[("Created", Some("1"))]).await;
    bed.waiting("it", "").await;
    receiver.forget();
    bed.scale("web", 2).await;
    let message = bed
        .waiting(
            "it",
            "BodyInvalid: webhookSpec.body of \"hook\" fails for the newest change: ",
        )
        .await;
    assert!(message.contains("the whole token"), "{message}");
    bed.delivered("it", &[("Created", Some("1")), ("Updated", Some("2"))])
        .await;
    let requests = receiver.requests();
    let event = requests
        .iter()
        .map(|request| request.json().unwrap())
        .find(|data| data["trackedField"] == "it");
    let event = event.unwrap();
    assert_eq!(event["value"], "2");
    assert!(!event.to_string().contains(&TOKEN[..4]), "{event}");
}
