#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::updated;
use crate::message::check_template;

fn view() -> View {
    View::of(&updated("1", "3"), Some("prod"))
}

fn rendered(source: &str, format: TokenFormat) -> Result<RenderedBody, String> {
    Body::with_token(source, format)?.render("1", &view(), &[view()], "text")
}

/// Returns the body with `token`, as a receiver gets it.
fn sent(source: &str, format: TokenFormat, token: &str) -> Result<String, String> {
    let escaped = format.escape(token).into();
    rendered(source, format)?.with_token(Some(&escaped))
}

#[rstest]
#[case(None, TokenFormat::Json)]
#[case(Some("application/json"), TokenFormat::Json)]
#[case(Some("Application/JSON; charset=utf-8"), TokenFormat::Json)]
#[case(Some("application/vnd.api+json"), TokenFormat::Json)]
#[case(Some("application/x-www-form-urlencoded"), TokenFormat::Form)]
#[case(
    Some("application/x-www-form-urlencoded ;charset=utf-8"),
    TokenFormat::Form
)]
#[case(Some("text/xml"), TokenFormat::Markup)]
#[case(Some("application/soap+xml"), TokenFormat::Markup)]
#[case(Some("text/html"), TokenFormat::Markup)]
#[case(Some("text/plain; charset=utf-8"), TokenFormat::Other)]
#[case(Some("application/jsonp"), TokenFormat::Other)]
fn content_type_sets_the_format(#[case] content_type: Option<&str>, #[case] expected: TokenFormat) {
    assert_eq!(TokenFormat::of(content_type), expected);
}

#[rstest]
#[case(TokenFormat::Json, r#"{"k": "a\"b\\c/d&e=f g<h>'%+"}"#)]
#[case(
    TokenFormat::Form,
    r#"{"k": "a%22b%5Cc%2Fd%26e%3Df+g%3Ch%3E%27%25%2B"}"#
)]
#[case(
    TokenFormat::Markup,
    r#"{"k": "a&quot;b\c/d&amp;e=f g&lt;h&gt;&#39;%+"}"#
)]
#[case(TokenFormat::Other, r#"{"k": "a"b\c/d&e=f g<h>'%+"}"#)]
fn token_is_escaped_for_the_format(#[case] format: TokenFormat, #[case] expected: &str) {
    let token = r#"a"b\c/d&e=f g<h>'%+"#;
    for source in [
        r#"{"k": "{{ token }}"}"#,
        r#"{"k": {{ token | tojson }}}"#,
        r#"{"k": "{{ token | urlencode }}"}"#,
    ] {
        assert_eq!(sent(source, format, token), Ok(expected.into()));
    }
}

#[rstest]
#[case("{{ token }}", "s3cr3t")]
#[case("{{ token }} and {{ token }}", "s3cr3t and s3cr3t")]
#[case("{% for e in [1, 2] %}{{ token }};{% endfor %}", "s3cr3t;s3cr3t;")]
#[case("{{ ('GenieKey ' ~ token) | tojson }}", r#""GenieKey s3cr3t""#)]
#[case("{{ {'k': token} | tojson }}", r#"{"k":"s3cr3t"}"#)]
#[case("{% set t = token %}{{ t }}", "s3cr3t")]
#[case("{{ token | trim }}", "s3cr3t")]
#[case("{{ token | urlencode }}", "s3cr3t")]
#[case("{{ token | truncate(100) }}", "s3cr3t")]
#[case("{% if token == 's3cr3t' %}equal {% endif %}{{ token }}", "s3cr3t")]
fn whole_token_takes_each_place(#[case] source: &str, #[case] expected: &str) {
    let format = TokenFormat::of(Some("text/plain"));
    assert_eq!(sent(source, format, "s3cr3t"), Ok(expected.into()));
}

#[rstest]
#[case("no token at all")]
#[case("{{ token | upper }}")]
#[case("{{ token | lower }}")]
#[case("{{ token | capitalize }}")]
#[case("{{ token | length }}")]
#[case("{{ token | first }}{{ token | last }}")]
#[case("{{ token | truncate(20) }}")]
#[case("{{ token | replace('Token', '') }}")]
#[case("{{ token[:3] }}")]
#[case("{{ token[3:] }}")]
#[case("{{ token[:-1] }}")]
#[case("{{ token[::-1] }}")]
#[case("{{ token[:20] }} {{ token[20:] }}")]
#[case("{% if action == 'Created' %}{{ token }}{% endif %}")]
#[case("{% for letter in token %}{{ letter }},{% endfor %}")]
#[case("{% set token = 'mine' %}{{ token }}")]
fn body_without_the_whole_token_is_an_error(#[case] source: &str) {
    for format in [TokenFormat::Json, TokenFormat::Form, TokenFormat::Other] {
        let error = sent(source, format, "s3cr3t").unwrap_err();
        assert!(
            error.starts_with("the body does not contain the whole token: write \"{{ token }}\""),
            "{error}"
        );
        let body = Body::with_token(source, format).unwrap();
        assert_eq!(body.check(&view(), &[view()], "text"), Err(error));
    }
}

#[test]
fn filters_for_a_token_that_do_not_exist_are_rejected_by_the_check() {
    let error = Body::with_token("{{ token | escape }}", TokenFormat::Form).unwrap_err();
    assert!(error.contains("there is no filter `escape`"), "{error}");
    assert!(error.ends_with("upper, urlencode"), "{error}");
}

#[test]
fn token_outside_of_a_json_string_is_an_error() {
    for source in [
        r#"{"routing_key": {{ token }}}"#,
        r#" [{{ token }}, "{{ token }}"]"#,
    ] {
        let error = rendered(source, TokenFormat::Json).map(|_| ()).unwrap_err();
        assert!(error.contains("not in a JSON string"), "{error}");
        assert!(rendered(source, TokenFormat::Other).is_ok());
    }
    // The receiver says what is wrong with a body that is no JSON for another reason.
    assert!(rendered(r#"{"k": "{{ token }}",}"#, TokenFormat::Json).is_ok());
}

/// The author of a value must not be able to place the token into the message's text.
#[test]
fn values_cannot_contain_the_placeholder() {
    let body = Body::with_token("{{ value }} {{ token }}", TokenFormat::Other).unwrap();
    let first = body.render("1", &view(), &[], "text").unwrap().to_string();
    let (_, placeholder) = first.split_once(' ').unwrap();
    assert!(placeholder.starts_with(PLACEHOLDER));
    for value in [placeholder, CHECKED_PLACEHOLDER] {
        let view = View {
            value: Some(value.into()),
            ..view()
        };
        let second = body.render("1", &view, &[], "text").unwrap();
        let sent = second.with_token(Some(&"s3cr3t".into())).unwrap();
        assert_eq!(sent, format!("{value} s3cr3t"));
    }
}

#[test]
fn error_of_a_check_does_not_change() {
    for source in ["{{ token | int }}", "{{ 1 / token }}", "{{ token.x.y }}"] {
        let check = || {
            let body = Body::with_token(source, TokenFormat::Json).unwrap();
            body.check(&view(), &[], "text").unwrap_err()
        };
        assert_eq!(check(), check());
    }
}

#[test]
fn token_is_a_variable_of_bodies_with_a_token_only() {
    assert!(
        check_template("{{ token }}")
            .unwrap_err()
            .contains("there is no variable `token`")
    );
    assert_eq!(
        check_body("{{ token }}"),
        Err("the variable `token` needs webhookSpec.tokenIn: Body".into())
    );
    assert!(
        check_body("{{ token }} {{ tokens }}")
            .unwrap_err()
            .contains("there is no variable `token`")
    );
    let webhook = |token_in: Option<&str>, content_type: Option<&str>| WebhookSpec {
        body: Some("{{ token }}".into()),
        token_in: token_in.map(Into::into),
        content_type: content_type.map(Into::into),
        ..WebhookSpec::default()
    };
    assert!(Body::of(&webhook(None, None)).is_err());
    assert!(Body::of(&webhook(Some("Header"), None)).is_err());
    for (content_type, format) in [(None, TokenFormat::Json), (Some("a/b"), TokenFormat::Other)] {
        let body = Body::of(&webhook(Some("Body"), content_type)).unwrap();
        assert_eq!(body.unwrap().token_format(), Some(format));
    }
    assert!(Body::of(&WebhookSpec::default()).unwrap().is_none());
}

/// The placeholder is longer than a short token and shorter than a long one.
#[test]
fn limit_counts_the_token_itself() {
    let source = "{{ token }}{{ text }}";
    let body = Body::with_token(source, TokenFormat::Other).unwrap();
    let length = |text: usize, token: usize| {
        let text = "x".repeat(text);
        let token = "t".repeat(token).into();
        body.render("1", &view(), &[], &text)
            .unwrap()
            .with_token(Some(&token))
            .map(|body| body.len())
    };
    assert_eq!(length(BODY - 200, 200), Ok(BODY));
    let error = length(BODY - 200, 201).unwrap_err();
    assert_eq!(
        error,
        format!("the result with the token has more than {BODY} bytes")
    );
    let many = Body::with_token(
        "{% for a in entries %}{% for b in entries %}{{ token }}{% endfor %}{% endfor %}",
        TokenFormat::Other,
    );
    let many = many
        .unwrap()
        .render("1", &view(), &vec![view(); 50], "text");
    assert!(
        many.unwrap()
            .with_token(Some(&"t".repeat(8192).into()))
            .is_err()
    );
}

proptest! {
    /// Neither the token nor the text of a message adds a field to a form.
    #[test]
    fn receiver_reads_a_form_back(token in "[ -~]{1,60}", text in "\\PC{0,60}") {
        let body = Body::with_token("token={{ token }}&message={{ text | urlencode }}&b=2", TokenFormat::Form);
        let body = body.unwrap().render("1", &view(), &[view()], &text).unwrap();
        let token_in_body = TokenFormat::Form.escape(&token).into();
        let form = body.with_token(Some(&token_in_body)).unwrap();
        let pairs: Vec<(String, String)> = form_urlencoded::parse(form.as_bytes()).into_owned().collect();
        let expected = [("token", &*token), ("message", &*text), ("b", "2")];
        prop_assert_eq!(pairs, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    /// A parser of the format reads exactly the token, whatever its characters.
    #[test]
    fn receiver_reads_the_token_back(token in "[ -~]{1,60}") {
        for source in [r#"{"k": "{{ token }}", "t": {{ text | tojson }}}"#, r#"{"k": {{ token | tojson }}, "t": "text"}"#] {
            let body: Value = serde_json::from_str(&sent(source, TokenFormat::Json, &token).unwrap()).unwrap();
            prop_assert_eq!(body, json!({ "k": token, "t": "text" }));
        }
        let form = sent("a=1&k={{ token }}&b=2", TokenFormat::Form, &token).unwrap();
        let pairs: Vec<_> = form_urlencoded::parse(form.as_bytes()).collect();
        prop_assert_eq!(pairs.len(), 3);
        prop_assert_eq!(&pairs[1].1, &token);
        let markup = sent("<k a=\"{{ token }}\">", TokenFormat::Markup, &token).unwrap();
        prop_assert!(!markup[6..markup.len() - 2].contains(['<', '>', '"', '\'']));
    }
}
