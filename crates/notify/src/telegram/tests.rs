#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rstest::rstest;

use super::*;

#[rstest]
#[case(b"110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw")]
#[case(b"1234567890:AAAAAAAAAAAAAAAAAAAAAAAAAAAA")]
#[case(b"1:a")]
#[case(b"1:a_B-9")]
fn a_token_of_any_length_is_one(#[case] token: &[u8]) {
    assert!(Chat::new(token, ChatId::Id(1), None, false).is_ok());
}

#[rstest]
#[case(b"", BadToken::Shape)]
#[case(b"s3cr3t", BadToken::Shape)]
#[case(b"x1:s3cr3t", BadToken::Shape)]
#[case(b":s3cr3t", BadToken::Shape)]
#[case(b"12:", BadToken::Shape)]
#[case(b"12:s3cr3t/../x", BadToken::Shape)]
#[case(b"12:s3cr3t x", BadToken::Shape)]
#[case(b"12:s3\ncr3t", BadToken::Shape)]
#[case(b"12:s3:cr3t", BadToken::Shape)]
#[case(b"12:s3cr3t=", BadToken::Shape)]
#[case(b"12:s3.cr3t", BadToken::Shape)]
#[case(b"12:s3+cr3t", BadToken::Shape)]
#[case("12:s3cr3t\u{e9}".as_bytes(), BadToken::Shape)]
#[case(b"12:s3cr3t\0", BadToken::Shape)]
#[case(b"12:s3cr3t\n", BadToken::Padded)]
#[case(b" 12:s3cr3t", BadToken::Padded)]
#[case(b"12:s3cr3t\xff", BadToken::NotText)]
fn a_bad_token_is_refused_without_being_shown(#[case] token: &[u8], #[case] why: BadToken) {
    let error = Chat::new(token, ChatId::Id(1), None, false).unwrap_err();
    assert_eq!(error, why);
    assert!(!format!("{error} {error:?}").contains("s3"), "{error}");
}

#[test]
fn debug_shows_no_token() {
    let chat = Chat::new(
        b"12:s3cr3t",
        ChatId::Id(-100_123_456_789_012),
        Some(5),
        true,
    )
    .unwrap();
    let shown = format!("{chat:?}");
    assert!(
        shown.contains("-100123456789012") && !shown.contains("s3cr3t"),
        "{shown}"
    );
}

#[rstest]
#[case(
    "https://api.telegram.org",
    "https://api.telegram.org/bot12:s3cr3t/sendMessage"
)]
#[case("http://bot-api:8081/", "http://bot-api:8081/bot12:s3cr3t/sendMessage")]
#[case(
    "http://proxy/telegram/",
    "http://proxy/telegram/bot12:s3cr3t/sendMessage"
)]
fn the_method_is_below_the_base(#[case] base: &str, #[case] expected: &str) {
    assert_eq!(
        method_url(&base.parse().unwrap(), &"12:s3cr3t".into()).as_str(),
        expected
    );
}

#[test]
fn a_token_cannot_leave_its_segment() {
    let url = method_url(&"https://x".parse().unwrap(), &"12:a?b#c%2f".into());
    assert_eq!(url.path(), "/bot12:a%3Fb%23c%252f/sendMessage");
}

#[test]
fn the_payload() {
    let chat = Chat::new(b"12:s3cr3t", ChatId::Name("@news".into()), Some(5), true).unwrap();
    assert_eq!(
        payload(&chat, "x"),
        json!({ "chat_id": "@news", "text": "x", "message_thread_id": 5, "disable_notification": true })
    );
    let chat = Chat::new(b"12:s3cr3t", ChatId::Id(-100_123_456_789_012), None, false).unwrap();
    assert_eq!(
        payload(&chat, "x"),
        json!({ "chat_id": -100_123_456_789_012_i64, "text": "x" })
    );
}

/// Descriptions as the Bot API words them.
#[rstest]
#[case(400, "Bad Request: chat not found", "ChatNotFound")]
#[case(
    400,
    "Bad Request: not enough rights to send text messages to the chat",
    "Forbidden"
)]
#[case(
    400,
    "Bad Request: need administrator rights in the channel chat",
    "Forbidden"
)]
#[case(400, "Bad Request: message text is empty", "Rejected")]
#[case(400, "Bad Request: TOPIC_CLOSED", "TopicUnavailable")]
#[case(400, "Bad Request: TOPIC_DELETED", "TopicUnavailable")]
#[case(400, "Bad Request: message thread not found", "TopicUnavailable")]
#[case(410, "Gone", "Gone")]
#[case(421, "Misdirected Request", "UnexpectedStatus")]
#[case(401, "Unauthorized", "Unauthorized")]
#[case(404, "Not Found", "Unauthorized")]
#[case(403, "Forbidden: bot was blocked by the user", "Forbidden")]
#[case(429, "Too Many Requests: retry after 7", "Retry")]
#[case(502, "Bad Gateway", "Retry")]
fn refusals_are_told_apart(#[case] code: u16, #[case] description: &str, #[case] expected: &str) {
    let body = json!({ "ok": false, "error_code": code, "description": description }).to_string();
    // A proxy on the way may answer 200 for each.
    for status in [code, 200] {
        let Reply::Failed(failure) = understand(status, None, body.as_bytes(), &Secrets::new([]))
        else {
            panic!("{description}");
        };
        let kind = match &failure {
            Failure::Retry { .. } => "Retry",
            Failure::Unsent { .. } => "Unsent",
            Failure::Refused { reason, .. } => reason.as_str(),
        };
        assert_eq!(kind, expected, "{description}");
        assert!(failure.to_string().contains(description), "{failure}");
    }
}
