#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use qm_api::tracked_field::Action;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{item, subject, updated};
use crate::webhook::{Parts, SigningKey};

fn hook(body: Option<&str>, content_type: Option<&str>) -> Hook {
    let parts = Parts {
        url: "https://receiver.test/".into(),
        body: body.map(Into::into),
        content_type: content_type.map(Into::into),
        ..Parts::default()
    };
    Hook::new(parts).unwrap()
}

fn entries(count: usize) -> Vec<Item> {
    (0..count)
        .map(|index| {
            let mut item = updated(&index.to_string(), &(index + 1).to_string());
            item.entry.id = Some(format!("e{index}"));
            item
        })
        .collect()
}

fn render(hook: &Hook, items: &[Item]) -> Event {
    Event::render(hook, Content::Entries(items), Some("prod"), false)
}

fn data(event: &Event) -> Value {
    serde_json::from_slice(&event.body).unwrap()
}

fn headers(event: &Event) -> BTreeMap<String, String> {
    let mut headers = HeaderMap::new();
    event.write_headers(&mut headers);
    headers
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
        .collect()
}

#[test]
fn one_change() {
    let event = render(&hook(None, None), &[updated("1", "3")]);
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
    insta::assert_snapshot!(String::from_utf8(event.body).unwrap(), @r#"{"id":"e1","time":"2026-01-02T03:04:05Z","cluster":"prod","trackedField":"replicas-of-nginx","trackedFieldNamespace":"team","kind":"Deployment","namespace":"default","name":"nginx","field":"replicas","action":"Updated","value":"3","missing":false,"truncated":null,"previous":"1","previousTruncated":null,"merged":1,"firstValue":null,"text":"Resource kind: Deployment\nName: nginx\nStatus: Updated\nValue: 3\nNamespace: default\nPrevious: 1\nCluster: prod"}"#);
}

#[test]
fn missing_and_deleted_have_no_value() {
    let deleted = data(&render(
        &hook(None, None),
        &[item(Action::Deleted, None, None)],
    ));
    assert_eq!(
        (&deleted["value"], &deleted["missing"]),
        (&Value::Null, &json!(false))
    );
    let mut missing = item(Action::Created, None, None);
    missing.entry.missing = true;
    let missing = data(&render(&hook(None, None), &[missing]));
    assert_eq!(
        (&missing["value"], &missing["missing"]),
        (&Value::Null, &json!(true))
    );
    let empty = data(&render(
        &hook(None, None),
        &[item(Action::Created, Some(""), None)],
    ));
    assert_eq!(empty["value"], "");
}

#[test]
fn several_changes() {
    let event = render(&hook(None, None), &entries(3));
    assert_eq!(
        (event.taken, event.kind),
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
    let one = self::data(&render(&hook(None, None), &entries(2)[1..]));
    assert_eq!(data["entries"][1], one);
}

#[test]
fn a_digests_id_follows_from_its_entries() {
    let id = |items: &[Item]| render(&hook(None, None), items).id;
    assert_eq!(id(&entries(3)), id(&entries(3)));
    assert_ne!(id(&entries(3)), id(&entries(2)));
    assert_ne!(id(&entries(3)[1..]), id(&entries(2)));
    insta::assert_snapshot!(id(&entries(3)), @"digest-8595101e9a05b7128018cec75e005bdc");
}

#[test]
fn a_test_message() {
    let content = Content::Test {
        namespace: "team",
        name: "hook",
        id: "test-1",
    };
    let event = Event::render(&hook(None, None), content, None, false);
    assert_eq!(
        data(&event),
        json!({ "cluster": null, "namespace": "team", "name": "hook", "text": "Contact point is ready" })
    );
    let headers = headers(&event);
    assert_eq!(headers["ce-type"], "dev.quartermaster.contactpoint.ready");
    assert_eq!(
        headers["ce-source"],
        "/apis/tg.azamaton.ru/v1/namespaces/team/contactpoints/hook"
    );
    assert_eq!(event.taken, 0);
}

#[test]
fn attributes_are_encoded_as_the_binding_says() {
    // The examples of section 3.1.3.2: a space, a quote, a percent sign and what is not ASCII.
    assert_eq!(header_text("Euro € 😀"), "Euro%20%E2%82%AC%20%F0%9F%98%80");
    assert_eq!(header_text("a\"b%c\r\n~!"), "a%22b%25c%0D%0A~!");
    assert!(header_text(&"€".repeat(1000)).len() <= 1024);
    let mut odd = updated("1", "2");
    odd.entry.subject = Some(subject("ConfigMap", "default", "x", "{.data['a b']}"));
    assert_eq!(
        headers(&render(&hook(None, None), &[odd]))["ce-subject"],
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

fn samples() -> Vec<Vec<Item>> {
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
    let hook = hook(Some(template), content_type);
    for items in samples() {
        let event = render(&hook, &items);
        assert_eq!(
            (event.taken, &event.content_type),
            (items.len(), &hook.content_type)
        );
        let text = crate::message::render(&items, Some("prod"), false, Limit::WEBHOOK).text;
        check(std::str::from_utf8(&event.body).unwrap(), &text);
    }
    let test = Event::render(
        &hook,
        Content::Test {
            namespace: "team",
            name: "hook",
            id: "test-1",
        },
        None,
        false,
    );
    assert_eq!(test.content_type, hook.content_type);
    check(
        std::str::from_utf8(&test.body).unwrap(),
        "Contact point is ready",
    );
}

#[test]
fn slack_takes_it() {
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
fn discord_takes_it() {
    each(DISCORD, None, |body, text| {
        let body: Value = serde_json::from_str(body).unwrap();
        let content = body["content"].as_str().unwrap();
        assert!((1..=2000).contains(&content.chars().count()));
        assert!(text.starts_with(content.trim_end_matches('…')));
    });
}

#[test]
fn teams_takes_it() {
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
fn ntfy_takes_it() {
    each(NTFY, Some("text/plain; charset=utf-8"), |body, text| {
        assert!(body.len() <= 4096);
        assert!(text.starts_with(body.trim_end_matches('…')));
    });
}

#[test]
fn a_body_that_fails_gives_way_to_the_events_own() {
    let event = render(
        &hook(Some("{{ name.no.thing }}"), Some("text/plain")),
        &[updated("1", "3")],
    );
    assert_eq!(event.content_type, "application/json");
    assert_eq!(data(&event)["value"], "3");
}

#[test]
fn a_body_too_long_for_all_takes_fewer() {
    let long = "{% for e in entries %}{{ e.value }}{{ e.value }}{{ e.value }}{% endfor %}";
    let mut items = entries(100);
    for item in &mut items {
        item.entry.value = Some("x".repeat(1024));
    }
    let event = render(&hook(Some(long), None), &items);
    assert_eq!((event.taken, event.body.len()), (50, 50 * 3 * 1024));
}

#[test]
fn a_plain_request_keeps_the_receivers_shape() {
    let mut templated = updated("1", "3");
    templated.template = Some("mine".into());
    let body = |plain| {
        let content = Content::Entries(std::slice::from_ref(&templated));
        data(&Event::render(
            &hook(Some(SLACK), None),
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
fn signed_requests_say_so() {
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
    fn no_body_is_over_the_limit_and_no_entry_is_lost(
        sizes in prop::collection::vec(0_usize..1024, 1..150),
        fill in prop::sample::select(vec!["x", "\"", "\u{1}", "😀"]),
        own in any::<bool>(),
    ) {
        let items: Vec<_> = sizes.iter().enumerate().map(|(index, size)| {
            let value = fill.repeat(*size / fill.len());
            let mut item = updated(&value, &value);
            item.entry.id = Some(format!("e{index}"));
            item.template = own.then(|| "{{ value }}{{ value }}{{ value }}{{ value }}".into());
            item
        }).collect();
        let mut rest = &items[..];
        let mut told = Vec::new();
        while !rest.is_empty() {
            let event = render(&hook(None, None), rest);
            prop_assert!((1..=rest.len()).contains(&event.taken));
            prop_assert!(event.body.len() <= BODY);
            let data = data(&event);
            match data["ids"].as_array() {
                Some(ids) => told.extend(ids.iter().map(|id| id.as_str().unwrap().to_owned())),
                None => told.push(data["id"].as_str().unwrap().to_owned()),
            }
            rest = &rest[event.taken..];
        }
        let expected: Vec<_> = items.iter().map(|item| item.entry.id.clone().unwrap()).collect();
        prop_assert_eq!(told, expected);
    }
}
