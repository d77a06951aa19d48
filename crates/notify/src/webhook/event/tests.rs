#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use qm_api::tracked_field::ChangeAction;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{item, subject, updated};
use crate::message::{Body, TokenFormat};
use crate::webhook::{Parts, SigningKey, Token};

fn webhook(body: Option<&str>, content_type: Option<&str>) -> WebhookEndpoint {
    let parts = Parts {
        url: "https://receiver.test/".into(),
        body: body.map(|body| Body::new(body).unwrap()),
        content_type: content_type.map(Into::into),
        ..Parts::default()
    };
    WebhookEndpoint::new(parts).unwrap()
}

fn webhook_with_footer(body: Option<&str>, footer: &str) -> WebhookEndpoint {
    let parts = Parts {
        url: "https://receiver.test/".into(),
        body: body.map(|body| Body::new(body).unwrap()),
        footer: Some(footer.into()),
        ..Parts::default()
    };
    WebhookEndpoint::new(parts).unwrap()
}

fn entries(count: usize) -> Vec<OutgoingEntry> {
    (0..count)
        .map(|index| {
            let mut item = updated(&index.to_string(), &(index + 1).to_string());
            item.entry.id = Some(format!("e{index}"));
            item
        })
        .collect()
}

fn render(webhook: &WebhookEndpoint, items: &[OutgoingEntry]) -> CloudEvent {
    CloudEvent::render(webhook, MessageContent::Entries(items), Some("prod"), false)
}

fn data(event: &CloudEvent) -> Value {
    serde_json::from_slice(&event.body).unwrap()
}

fn headers(event: &CloudEvent) -> BTreeMap<String, String> {
    let mut headers = HeaderMap::new();
    event.write_headers(&mut headers);
    headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect()
}

#[test]
fn single_entry_is_a_changed_event() {
    let event = render(&webhook(None, None), &[updated("1", "3")]);
    insta::assert_json_snapshot!(headers(&event), @r#"
    {
      "ce-id": "e1",
      "ce-source": "/apis/tg.azamaton.ru/v1/namespaces/team/trackedfields/replicas-of-nginx",
      "ce-specversion": "1.0",
      "ce-subject": "Deployment/default/nginx/replicas",
      "ce-time": "2026-01-02T03:04:05Z",
      "ce-type": "dev.quartermaster.trackedfield.changed",
      "content-type": "application/json",
      "idempotency-key": "e1"
    }
    "#);
    insta::assert_snapshot!(String::from_utf8(event.body).unwrap(), @r#"{"id":"e1","time":"2026-01-02T03:04:05Z","cluster":"prod","trackedField":"replicas-of-nginx","trackedFieldNamespace":"team","kind":"Deployment","namespace":"default","name":"nginx","field":"replicas","action":"Updated","value":"3","missing":false,"truncated":null,"previous":"1","previousTruncated":null,"changedBy":null,"context":{},"merged":1,"firstValue":null,"text":"Resource kind: Deployment\nName: nginx\nStatus: Updated\nValue: 3\nNamespace: default\nPrevious: 1\nCluster: prod"}"#);
}

#[test]
fn missing_and_deleted_have_no_value() {
    let deleted = data(&render(
        &webhook(None, None),
        &[item(ChangeAction::Deleted, None, None)],
    ));
    assert_eq!(
        (&deleted["value"], &deleted["missing"]),
        (&Value::Null, &json!(false))
    );
    let mut missing = item(ChangeAction::Created, None, None);
    missing.entry.missing = true;
    let missing = data(&render(&webhook(None, None), &[missing]));
    assert_eq!(
        (&missing["value"], &missing["missing"]),
        (&Value::Null, &json!(true))
    );
    let empty = data(&render(
        &webhook(None, None),
        &[item(ChangeAction::Created, Some(""), None)],
    ));
    assert_eq!(empty["value"], "");
}

#[test]
fn footer_is_in_the_data_and_in_the_text() {
    let footer = "Owner: \"shop\" & co";
    let hook = webhook_with_footer(None, footer);
    let test = MessageContent::Test {
        namespace: "team",
        name: "hook",
        id: "test-1",
    };
    let test = data(&CloudEvent::render(&hook, test, Some("prod"), false));
    let one = data(&render(&hook, &entries(1)));
    for event in [&test, &one] {
        assert_eq!(event["footer"], footer);
        let text = event["text"].as_str().unwrap();
        assert!(
            text.ends_with(&format!("\nCluster: prod\n{footer}")),
            "{text}"
        );
    }
    // A digest has the footer once.
    let digest = data(&render(&hook, &entries(2)));
    assert_eq!(digest["footer"], footer);
    let without = data(&render(&webhook(None, None), &entries(2)));
    assert_eq!(digest["entries"], without["entries"]);
    assert!(without.get("footer").is_none());
    let body = webhook_with_footer(Some("{{ text }}"), footer);
    for items in [entries(1), entries(2)] {
        let body = String::from_utf8(render(&body, &items).body).unwrap();
        assert!(body.ends_with(&format!("\n{footer}")), "{body}");
    }
}

#[test]
fn several_entries_are_a_digest_event() {
    let event = render(&webhook(None, None), &entries(3));
    assert_eq!(
        (event.carried, event.kind),
        (3, "dev.quartermaster.trackedfield.digest")
    );
    let (headers, data) = (headers(&event), data(&event));
    assert_eq!(
        headers["ce-source"],
        "/apis/tg.azamaton.ru/v1/trackedfields"
    );
    assert_eq!(headers["ce-id"], headers["idempotency-key"]);
    assert!(!headers.contains_key("ce-subject"));
    assert_eq!(data["cluster"], "prod");
    assert_eq!(data["ids"], json!(["e0", "e1", "e2"]));
    let one = self::data(&render(&webhook(None, None), &entries(2)[1..]));
    assert_eq!(data["entries"][1], one);
}

#[test]
fn digest_id_depends_on_its_entries() {
    let id = |items: &[OutgoingEntry]| render(&webhook(None, None), items).id;
    assert_eq!(id(&entries(3)), id(&entries(3)));
    assert_ne!(id(&entries(3)), id(&entries(2)));
    assert_ne!(id(&entries(3)[1..]), id(&entries(2)));
    insta::assert_snapshot!(id(&entries(3)), @"digest-8595101e9a05b7128018cec75e005bdc");
}

/// An alert with the key of another message would swallow this one.
#[test]
fn body_has_the_id_of_its_event() {
    let hook = webhook(Some("{{ eventId }}"), None);
    let test = MessageContent::Test {
        namespace: "team",
        name: "hook",
        id: "test-1",
    };
    let test = CloudEvent::render(&hook, test, None, false);
    for event in [test, render(&hook, &entries(1)), render(&hook, &entries(3))] {
        assert_eq!(String::from_utf8_lossy(&event.body), event.id);
    }
}

#[test]
fn test_message_is_a_ready_event() {
    let content = MessageContent::Test {
        namespace: "team",
        name: "webhook",
        id: "test-1",
    };
    let event = CloudEvent::render(&webhook(None, None), content, None, false);
    assert_eq!(
        data(&event),
        json!({ "cluster": null, "namespace": "team", "name": "webhook", "text": "Contact point is ready" })
    );
    let headers = headers(&event);
    assert_eq!(headers["ce-type"], "dev.quartermaster.contactpoint.ready");
    assert_eq!(
        headers["ce-source"],
        "/apis/tg.azamaton.ru/v1/namespaces/team/contactpoints/webhook"
    );
    assert_eq!(event.carried, 0);
}

#[test]
fn attributes_are_percent_encoded() {
    // Examples of section 3.1.3.2: a space, a quote, a percent sign and characters that are not ASCII.
    assert_eq!(header_text("Euro € 😀"), "Euro%20%E2%82%AC%20%F0%9F%98%80");
    assert_eq!(header_text("a\"b%c\r\n~!"), "a%22b%25c%0D%0A~!");
    assert!(header_text(&"€".repeat(1000)).len() <= 1024);
    let mut odd = updated("1", "2");
    odd.entry.subject = Some(subject("ConfigMap", "default", "x", "{.data['a b']}"));
    assert_eq!(
        headers(&render(&webhook(None, None), &[odd]))["ce-subject"],
        "ConfigMap/default/x/{.data['a%20b']}"
    );
}

/// <https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks>: a JSON object with `text`.
const SLACK: &str = r#"{"text": {{ text|replace("&", "&amp;")|replace("<", "&lt;")|replace(">", "&gt;")|tojson }}}"#;
/// <https://discord.com/developers/docs/resources/webhook#execute-webhook>: `content`, 2,000 characters at most.
const DISCORD: &str =
    r#"{"content": {{ text|truncate(2000)|tojson }}, "allowed_mentions": {"parse": []}}"#;
/// <https://learn.microsoft.com/en-us/connectors/teams/#microsoft-teams-webhook>: a message with one Adaptive Card.
const TEAMS: &str = r#"{"type": "message", "attachments": [{"contentType": "application/vnd.microsoft.card.adaptive",
  "contentUrl": null, "content": {"$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
  "type": "AdaptiveCard", "version": "1.2",
  "body": [{"type": "TextBlock", "wrap": true, "text": {{ text|replace("\n", "\n\n")|tojson }}}]}}]}"#;
/// <https://docs.ntfy.sh/publish/>: the text itself; what is over 4,096 bytes would become an attachment.
const NTFY: &str = "{{ text|truncate(1024) }}";

fn samples() -> Vec<Vec<OutgoingEntry>> {
    let mut odd = updated("\"<&>\\", "é😀\n\t'}}{{ x }}");
    odd.template = Some("{{ value }} \"quoted\" {{ previous }}".into());
    vec![
        vec![updated("1", "3")],
        vec![odd.clone()],
        vec![odd, updated("1", "3")],
        entries(100),
    ]
}

fn each(template: &str, content_type: Option<&str>, check: impl Fn(&str, &str)) {
    assert_eq!(crate::message::check_body(template), Ok(()));
    let webhook = webhook(Some(template), content_type);
    for items in samples() {
        let event = render(&webhook, &items);
        assert_eq!(
            (event.carried, &event.content_type),
            (items.len(), &webhook.content_type)
        );
        let text =
            crate::message::render(&items, Some("prod"), None, false, TextLimit::WEBHOOK).text;
        check(std::str::from_utf8(&event.body).unwrap(), &text);
    }
    let test = CloudEvent::render(
        &webhook,
        MessageContent::Test {
            namespace: "team",
            name: "webhook",
            id: "test-1",
        },
        None,
        false,
    );
    assert_eq!(test.content_type, webhook.content_type);
    check(
        std::str::from_utf8(&test.body).unwrap(),
        "Contact point is ready",
    );
}

#[test]
fn slack_accepts_the_body() {
    each(SLACK, None, |body, text| {
        let body: Value = serde_json::from_str(body).unwrap();
        let expected = text
            .replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;");
        assert_eq!(body, json!({ "text": expected }));
    });
}

#[test]
fn discord_accepts_the_body() {
    each(DISCORD, None, |body, text| {
        let body: Value = serde_json::from_str(body).unwrap();
        let content = body["content"].as_str().unwrap();
        assert!((1..=2000).contains(&content.chars().count()));
        assert!(text.starts_with(content.trim_end_matches('…')));
    });
}

#[test]
fn teams_accepts_the_body() {
    each(TEAMS, None, |body, text| {
        let body: Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["type"], "message");
        let card = &body["attachments"][0];
        assert_eq!(
            card["contentType"],
            "application/vnd.microsoft.card.adaptive"
        );
        assert_eq!(
            (&card["content"]["type"], &card["content"]["version"]),
            (&json!("AdaptiveCard"), &json!("1.2"))
        );
        let block = &card["content"]["body"][0];
        assert_eq!(block["type"], "TextBlock");
        assert_eq!(block["text"], text.replace('\n', "\n\n"));
    });
}

#[test]
fn ntfy_accepts_the_body() {
    each(NTFY, Some("text/plain; charset=utf-8"), |body, text| {
        assert!(body.len() <= 4096);
        assert!(text.starts_with(body.trim_end_matches('…')));
    });
}

#[test]
fn failing_body_is_replaced_by_the_default_data() {
    let event = render(
        &webhook(Some("{{ name.no.thing }}"), Some("text/plain")),
        &[updated("1", "3")],
    );
    assert_eq!(event.content_type, "application/json");
    assert_eq!(data(&event)["value"], "3");
}

#[test]
fn body_that_fails_for_the_first_entry_wraps_the_others() {
    let hook = webhook(Some("{{ context.owner }}: {{ text }}"), Some("text/plain"));
    let mut items = entries(3);
    for item in &mut items[1..] {
        item.entry.context.insert("owner".into(), "shop".into());
    }
    let first = render(&hook, &items);
    assert_eq!((first.carried, &*first.id), (1, "e0"));
    assert_eq!(first.content_type, "application/json");
    assert_eq!(data(&first)["value"], "1");
    let others = render(&hook, &items[1..]);
    assert_eq!(
        (others.carried, &others.content_type),
        (2, &hook.content_type)
    );
    let body = String::from_utf8(others.body).unwrap();
    assert!(body.starts_with("shop: 2 changes in prod\n"), "{body}");
}

fn with_token(body: &str, token: &str) -> WebhookEndpoint {
    let parts = Parts {
        url: "https://receiver.test/".into(),
        body: Some(Body::with_token(body, TokenFormat::Json).unwrap()),
        token: Some(Token::InBody(token.into())),
        ..Parts::default()
    };
    WebhookEndpoint::new(parts).unwrap()
}

const TEST: MessageContent<'_> = MessageContent::Test {
    namespace: "team",
    name: "hook",
    id: "test-1",
};

#[test]
fn token_is_in_the_body_and_in_no_header() {
    let body = r#"{"key": {{ token | tojson }}, "text": {{ text | tojson }}}"#;
    let hook = with_token(body, "t0p \"s3cr3t\"");
    assert!(hook.headers.is_empty());
    for event in [
        render(&hook, &entries(1)),
        render(&hook, &entries(3)),
        CloudEvent::render(&hook, TEST, None, false),
    ] {
        assert_eq!(data(&event)["key"], "t0p \"s3cr3t\"");
        let headers = format!("{:?}", headers(&event));
        assert!(!headers.contains("s3cr3t"), "{headers}");
        // The token does not change the ids.
        let body = Body::new(r#"{"text": {{ text | tojson }}}"#).unwrap();
        let without = WebhookEndpoint::new(Parts {
            url: "https://receiver.test/".into(),
            body: Some(body),
            ..Parts::default()
        });
        let other = match event.carried {
            0 => CloudEvent::render(&without.unwrap(), TEST, None, false),
            carried => render(&without.unwrap(), &entries(carried)),
        };
        assert_eq!(
            (&event.id, &data(&event)["text"]),
            (&other.id, &data(&other)["text"])
        );
    }
}

#[test]
fn body_without_its_token_is_replaced_by_the_default_data() {
    let hook = with_token(
        r#"{"key": "{{ token if action == 'Ready' else token[:4] }}"}"#,
        "t0p-s3cr3t",
    );
    let test = CloudEvent::render(&hook, TEST, None, false);
    assert_eq!(data(&test)["key"], "t0p-s3cr3t");
    let event = render(&hook, &entries(1));
    assert_eq!(data(&event)["value"], "1");
    let body = String::from_utf8(event.body).unwrap();
    assert!(!body.contains("t0p"), "{body}");
}

#[test]
fn test_message_without_the_token_is_an_error_of_the_body() {
    let check = |body: &Body| check_test(body, "team", "hook", Some("prod"), None);
    let body = |source| Body::with_token(source, TokenFormat::Json).unwrap();
    assert_eq!(check(&body(r#"{"key": "{{ token }}"}"#)), Ok(()));
    assert_eq!(check(&body("{{ token ~ cluster | upper }}")), Ok(()));
    assert!(check(&body("{{ token | upper }}")).is_err());
    assert!(check(&body("{{ token ~ value.x.y }}")).is_err());
    // Without a token, the default data does.
    assert_eq!(check(&Body::new("{{ value.x.y }}").unwrap()), Ok(()));
}

#[test]
fn long_token_leaves_room_for_fewer_entries() {
    let body = r#"[{% for e in entries %}"{{ token }}",{% endfor %}"{{ token }}"]"#;
    let event = render(&with_token(body, &"t".repeat(8000)), &entries(100));
    assert_eq!(event.carried, 25);
    assert_eq!(data(&event).as_array().unwrap().len(), 26);
    assert!(event.body.len() <= BODY);
}

#[test]
fn body_with_too_many_entries_carries_fewer() {
    let long = "{% for e in entries %}{{ e.value }}{{ e.value }}{{ e.value }}{% endfor %}";
    let mut items = entries(100);
    for item in &mut items {
        item.entry.value = Some("x".repeat(1024));
    }
    let event = render(&webhook(Some(long), None), &items);
    assert_eq!((event.carried, event.body.len()), (50, 50 * 3 * 1024));
}

#[test]
fn plain_request_keeps_the_body_template() {
    let mut templated = updated("1", "3");
    templated.template = Some("mine".into());
    let body = |plain| {
        let content = MessageContent::Entries(std::slice::from_ref(&templated));
        data(&CloudEvent::render(
            &webhook(Some(SLACK), None),
            content,
            None,
            plain,
        ))["text"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(body(false), "mine");
    assert!(body(true).starts_with("Resource kind: Deployment"));
}

#[test]
fn signed_request_has_signature_headers() {
    let key = SigningKey::new(b"key").unwrap();
    let mut headers = HeaderMap::new();
    key.write_headers("e1", 1_767_323_045, b"{}", &mut headers);
    insta::assert_debug_snapshot!(headers, @r#"
    {
        "webhook-id": "e1",
        "webhook-signature": "v1,Jp6h7CPiU78YW1VLD7yYkuvNzplsJndaQx8ZmRxLVXE=",
        "webhook-timestamp": "1767323045",
    }
    "#);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn body_is_within_the_limit_and_no_entry_is_lost(
        sizes in prop::collection::vec(0_usize..1024, 1..150),
        fill in prop::sample::select(vec!["x", "\"", "\u{1}", "😀"]),
        own in any::<bool>(),
        footer in prop::option::of(prop::sample::select(vec!["\"", "😀"])),
    ) {
        let hook = match footer {
            Some(fill) => webhook_with_footer(None, &fill.repeat(256)),
            None => webhook(None, None),
        };
        let items: Vec<_> = sizes.iter().enumerate().map(|(index, size)| {
            let value = fill.repeat(*size / fill.len());
            let mut item = updated(&value, &value);
            item.entry.id = Some(format!("e{index}"));
            item.template = own.then(|| "{{ value }}{{ value }}{{ value }}{{ value }}".into());
            item
        }).collect();
        let mut rest = &items[..];
        let mut delivered = Vec::new();
        while !rest.is_empty() {
            let event = render(&hook, rest);
            prop_assert!((1..=rest.len()).contains(&event.carried));
            prop_assert!(event.body.len() <= BODY);
            let data = data(&event);
            match data["ids"].as_array() {
                Some(ids) => delivered.extend(ids.iter().map(|id| id.as_str().unwrap().to_owned())),
                None => delivered.push(data["id"].as_str().unwrap().to_owned()),
            }
            rest = &rest[event.carried..];
        }
        let expected: Vec<_> = items.iter().map(|item| item.entry.id.clone().unwrap()).collect();
        prop_assert_eq!(delivered, expected);
    }
}
