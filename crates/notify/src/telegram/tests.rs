#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use rstest::rstest;

use super::*;

#[rstest]
#[case(b"110201543:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw")]
#[case(b"1234567890:AAAAAAAAAAAAAAAAAAAAAAAAAAAA")]
#[case(b"1:a")]
#[case(b"1:a_B-9")]
fn token_may_have_any_length(#[case] token: &[u8]) {
    assert!(TelegramChat::new(token, ChatId::Id(1), None, false).is_ok());
}

#[rstest]
#[case(b"", InvalidToken::Shape)]
#[case(b"s3cr3t", InvalidToken::Shape)]
#[case(b"x1:s3cr3t", InvalidToken::Shape)]
#[case(b":s3cr3t", InvalidToken::Shape)]
#[case(b"12:", InvalidToken::Shape)]
#[case(b"12:s3cr3t/../x", InvalidToken::Shape)]
#[case(b"12:s3cr3t x", InvalidToken::Shape)]
#[case(b"12:s3\ncr3t", InvalidToken::Shape)]
#[case(b"12:s3:cr3t", InvalidToken::Shape)]
#[case(b"12:s3cr3t=", InvalidToken::Shape)]
#[case(b"12:s3.cr3t", InvalidToken::Shape)]
#[case(b"12:s3+cr3t", InvalidToken::Shape)]
#[case("12:s3cr3t\u{e9}".as_bytes(), InvalidToken::Shape)]
#[case(b"12:s3cr3t\0", InvalidToken::Shape)]
#[case(b"12:s3cr3t\n", InvalidToken::Padded)]
#[case(b" 12:s3cr3t", InvalidToken::Padded)]
#[case(b"12:s3cr3t\xff", InvalidToken::NotText)]
fn invalid_token_is_rejected_without_being_quoted(#[case] token: &[u8], #[case] why: InvalidToken) {
    let error = TelegramChat::new(token, ChatId::Id(1), None, false).unwrap_err();
    assert_eq!(error, why);
    assert!(!format!("{error} {error:?}").contains("s3"), "{error}");
}

#[test]
fn debug_output_contains_no_token() {
    let chat = TelegramChat::new(
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
fn method_url_extends_the_base_url(#[case] base: &str, #[case] expected: &str) {
    assert_eq!(
        method_url(&base.parse().unwrap(), &"12:s3cr3t".into()).as_str(),
        expected
    );
}

#[test]
fn token_cannot_leave_its_path_segment() {
    let url = method_url(&"https://x".parse().unwrap(), &"12:a?b#c%2f".into());
    assert_eq!(url.path(), "/bot12:a%3Fb%23c%252f/sendMessage");
}

#[test]
fn payload_has_the_chats_settings() {
    let chat =
        TelegramChat::new(b"12:s3cr3t", ChatId::Name("@news".into()), Some(5), true).unwrap();
    assert_eq!(
        payload(&chat, "x"),
        json!({ "chat_id": "@news", "text": "x", "message_thread_id": 5, "disable_notification": true })
    );
    let chat =
        TelegramChat::new(b"12:s3cr3t", ChatId::Id(-100_123_456_789_012), None, false).unwrap();
    assert_eq!(
        payload(&chat, "x"),
        json!({ "chat_id": -100_123_456_789_012_i64, "text": "x" })
    );
}

/// Descriptions of the Bot API.
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
fn refusals_are_distinguished(
    #[case] code: u16,
    #[case] description: &str,
    #[case] expected: &str,
) {
    let body = json!({ "ok": false, "error_code": code, "description": description }).to_string();
    // A proxy may respond 200 for each.
    for status in [code, 200] {
        let SendMessageReply::Failed(failure) =
            interpret(status, None, body.as_bytes(), &Redactor::new([]))
        else {
            panic!("{description}");
        };
        let kind = match &failure {
            SendError::Retry { .. } => "Retry",
            SendError::Unsent { .. } => "Unsent",
            SendError::Refused { reason, .. } => reason.as_str(),
        };
        assert_eq!(kind, expected, "{description}");
        assert!(failure.to_string().contains(description), "{failure}");
    }
}
