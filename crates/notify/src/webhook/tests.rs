#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use kube::CustomResourceExt as _;
use qm_api::ContactPoint;
use rstest::rstest;

use super::*;
use crate::message::{Body, TokenFormat};

fn parts(url: &str) -> Parts {
    Parts {
        url: url.into(),
        ..Parts::default()
    }
}

/// Returns parts with this token in the body.
fn in_body(token: &str) -> Parts {
    let body = Body::with_token("{{ token }}", TokenFormat::Json);
    Parts {
        token: Some(Token::InBody(token.into())),
        body: Some(body.unwrap()),
        ..parts("http://x/")
    }
}

#[rstest]
#[case(parts("ftp://x/"), "url: not an http:// or https:// URL")]
#[case(parts("nonsense"), "url: not a URL")]
#[case(parts("https://u:s3cr3t@x/"), "url: credentials")]
#[case(Parts { url_is_secret: true, ..parts("https://x/s3cr3t\n") }, "urlFrom: the URL begins or ends with")]
#[case(Parts { url_is_secret: true, ..parts("s3cr3t") }, "urlFrom: not a URL")]
#[case(Parts { url_is_secret: true, ..parts("https://x/s3cr3t 2") }, "urlFrom: the URL contains a space")]
#[case(Parts { url_is_secret: true, ..parts("https://x/s3\ncr3t") }, "urlFrom: the URL contains a space or a control")]
#[case(Parts { url_is_secret: true, ..parts("https://x/s3cr3t#a") }, "urlFrom: a URL's fragment")]
#[case(Parts { token: Some(Token::InHeader("X Y".into(), "s3cr3t".into())), ..parts("http://x/") }, "headerName: \"X Y\" is not")]
#[case(Parts { token: Some(Token::InHeader("Host".into(), "s3cr3t".into())), ..parts("http://x/") }, "headerName: the operator sets the header host")]
#[case(Parts { token: Some(Token::InHeader("ce-id".into(), "s3cr3t".into())), ..parts("http://x/") }, "headerName: the operator sets the header ce-id")]
#[case(Parts { token: Some(Token::InHeader("X".into(), "s3cr3t\n".into())), ..parts("http://x/") }, "apiToken: the token contains a newline")]
#[case(in_body("s3cr3t\n"), "apiToken: the token contains a newline")]
#[case(
    in_body("s3\tcr3t"),
    "apiToken: the token contains a newline or another character"
)]
#[case(
    in_body("s3cr3té"),
    "apiToken: the token contains a newline or another character"
)]
#[case(in_body(" s3cr3t"), "apiToken: the token begins or ends with a space")]
#[case(in_body(""), "apiToken: the token is empty")]
#[case(in_body(&"s3cr3t".repeat(1366)), "apiToken: the token has more than 8192 bytes")]
#[case(Parts { body: None, ..in_body("s3cr3t") }, "tokenIn: Body needs body")]
#[case(Parts { token: None, ..in_body("s3cr3t") }, "tokenIn: Body needs a token")]
#[case(Parts { headers: [("X".into(), "a\nb".into())].into(), ..parts("http://x/") }, "headers: the value of x contains")]
fn error_of_an_invalid_field_contains_no_secret(#[case] parts: Parts, #[case] expected: &str) {
    let error = WebhookEndpoint::new(parts).unwrap_err().to_string();
    assert!(error.starts_with(expected), "{error}");
    assert!(!error.contains("s3cr3t"), "{error}");
}

/// The apiserver rejects exactly the headers that the operator would not send.
#[rstest]
#[case("Host", true)]
#[case("Connection", true)]
#[case("Keep-Alive", true)]
#[case("TE", true)]
#[case("Trailer", true)]
#[case("Transfer-Encoding", true)]
#[case("Upgrade", true)]
#[case("HTTP2-Settings", true)]
#[case("Content-Length", true)]
#[case("Content-Type", true)]
#[case("Content-Encoding", true)]
#[case("Expect", true)]
#[case("User-Agent", true)]
#[case("Idempotency-Key", true)]
#[case("Proxy-Authorization", true)]
#[case("Proxy-Connection", true)]
#[case("Proxy-Anything", true)]
#[case("CE-Id", true)]
#[case("Webhook-Signature", true)]
#[case("Authorization", false)]
#[case("X-Token", false)]
#[case("Cookie", false)]
#[case("Hosts", false)]
#[case("X-Host", false)]
#[case("Team", false)]
#[case("Proxy", false)]
#[case("Accept", false)]
fn reserved_headers_are_the_same_in_api_and_sender(#[case] name: &str, #[case] reserved: bool) {
    let of_token = WebhookEndpoint::new(Parts {
        token: Some(Token::InHeader(name.into(), "x".into())),
        ..parts("http://x/")
    });
    let of_headers = WebhookEndpoint::new(Parts {
        headers: [(name.into(), "x".into())].into(),
        ..parts("http://x/")
    });
    assert_eq!(
        (of_token.is_err(), of_headers.is_err()),
        (reserved, reserved)
    );
    let crd = ContactPoint::crd();
    let schema = serde_json::to_value(&crd.spec.versions[0].schema).unwrap();
    for field in ["headerName", "headers"] {
        let path = "/openAPIV3Schema/properties/spec/properties/webhookSpec/properties";
        let rules = schema
            .pointer(&format!("{path}/{field}/x-kubernetes-validations"))
            .unwrap()
            .as_array()
            .unwrap();
        let rule = rules
            .iter()
            .find_map(|rule| rule["rule"].as_str().unwrap().split_once("(?i)^("))
            .unwrap()
            .1;
        let (pattern, _) = rule.split_once(")$").unwrap();
        let name = name.to_lowercase();
        let matches = |part: &str| {
            part.strip_suffix(".*")
                .map_or(part == name, |prefix| name.starts_with(prefix))
        };
        assert_eq!(pattern.split('|').any(matches), reserved, "{field}: {rule}");
    }
}

#[test]
fn debug_output_contains_no_secret() {
    let webhook = WebhookEndpoint::new(Parts {
        token: Some(Token::InHeader(
            "Authorization".into(),
            "Bearer s3cr3t".into(),
        )),
        headers: [("X-Team".into(), "s3cr3t".into())].into(),
        signing_key: Some(SigningKey::new(b"s3cr3t").unwrap()),
        ..parts("https://x/s3cr3t")
    })
    .unwrap();
    let shown = format!("{webhook:?}");
    assert!(
        shown.contains("authorization") && !shown.contains("s3cr3t"),
        "{shown}"
    );
    let webhook = WebhookEndpoint::new(in_body("s3cr3t")).unwrap();
    let content = crate::MessageContent::Test {
        namespace: "team",
        name: "hook",
        id: "test-1",
    };
    let event = event::CloudEvent::render(&webhook, content, None, false);
    assert_eq!(event.body, b"s3cr3t");
    let (bytes, shown) = (
        format!("{:?}", event.body),
        format!("{webhook:?} {event:?}"),
    );
    assert!(
        shown.contains("test-1") && !shown.contains("s3cr3t") && !shown.contains(&bytes),
        "{shown}"
    );
}

#[rstest]
#[case(Tls::new(None, None, None), "neither")]
#[case(Tls::new(Some(b"x"), None, None), "ca.crt contains no PEM")]
#[case(Tls::new(None, Some(b"x"), None), "no tls.key")]
#[case(Tls::new(None, None, Some(b"x")), "no tls.crt")]
#[case(
    Tls::new(None, Some(b"x"), Some(b"s3cr3t")),
    "not a PEM certificate and key"
)]
fn tls_material_is_checked(#[case] tls: Result<Tls, String>, #[case] expected: &str) {
    let error = tls.unwrap_err();
    assert!(
        error.contains(expected) && !error.contains("s3cr3t"),
        "{error}"
    );
}

#[test]
fn key_of_another_certificate_is_rejected() {
    let make = || rcgen::generate_simple_self_signed(["receiver.test".to_owned()]).unwrap();
    let (one, other) = (make(), make());
    let pem = one.cert.pem();
    let tls = |key: String| Tls::new(None, Some(pem.as_bytes()), Some(key.as_bytes()));
    assert!(
        tls(other.signing_key.serialize_pem())
            .unwrap_err()
            .contains("does not belong")
    );
    assert!(tls(one.signing_key.serialize_pem()).is_ok());
}

/// A proxy may have a public address and pass on the answer of a private one.
#[rstest]
#[case::any_address(Quote::Every, true, true)]
#[case::public_address(Quote::Public, true, false)]
#[case::behind_a_proxy(Quote::None, false, false)]
fn answer_is_quoted_by_setting_and_address(
    #[case] quote: Quote,
    #[case] from_public: bool,
    #[case] from_private: bool,
) {
    assert_eq!(
        (quote.allows(true), quote.allows(false)),
        (from_public, from_private)
    );
}
