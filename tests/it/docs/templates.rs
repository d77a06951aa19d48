//! Descriptions of templates and of events on the pages.

use std::collections::BTreeSet;
use std::fs;

use qm_api::tracked_field::Entry;
use qm_notify::message::{Body, TokenFormat, check_body, check_template};
use qm_notify::webhook::event::CloudEvent;
use qm_notify::webhook::{Parts, WebhookEndpoint};
use qm_notify::{MessageContent, OutgoingEntry};
use serde_json::{Value, json};

use super::{page, pages_of_the_book, root};

/// Returns the text of all pages that are written by hand.
fn written() -> String {
    let reference = root().join("docs/reference");
    pages_of_the_book()
        .iter()
        .filter(|path| !path.starts_with(&reference))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect()
}

/// Returns the names that an error lists: `there is no variable `x`; there are a, b`.
fn listed(refusal: Result<(), String>) -> Vec<String> {
    let message = refusal.unwrap_err();
    let list = message
        .split_once("there are ")
        .unwrap_or_else(|| panic!("{message}"))
        .1;
    list.split(", ").map(str::to_owned).collect()
}

#[test]
fn every_template_variable_is_documented() {
    let pages = written();
    let variables = listed(check_template("{{ nothing }}"));
    let names = variables
        .iter()
        .cloned()
        .chain(listed(check_template("{{ name | nothing }}")))
        .chain(listed(check_template("{{ name is nothing }}")));
    for name in names {
        assert!(
            pages.contains(&format!("`{name}`")),
            "{name} is not documented"
        );
    }
    let of_body = listed(check_body("{{ nothing }}"));
    let with_token = Body::with_token("{{ nothing }}", TokenFormat::Json).map(|_| ());
    let of_token = listed(with_token);
    assert!(of_token.len() > of_body.len());
    for name in of_token
        .into_iter()
        .filter(|name| !variables.contains(name))
    {
        assert!(
            pages.contains(&format!("| `{name}` |")),
            "{name} has no row"
        );
    }
}

#[test]
fn every_example_is_a_template() {
    let page = page("kinds/templates.md");
    let examples: Vec<_> = page
        .split("```jinja\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect();
    assert!(examples.len() >= 5, "{examples:?}");
    for example in examples {
        let result = check_template(example).or_else(|_| check_body(example));
        assert_eq!(result, Ok(()), "{example}");
    }
}

fn item(id: &str) -> OutgoingEntry {
    let entry: Entry = serde_json::from_value(json!({
        "time": "2026-02-11T20:44:21Z",
        "action": "Updated",
        "value": "3",
        "id": id,
        "delivery": "Pending",
        "subject": "Deployment/default/nginx/replicas",
    }))
    .unwrap();
    let name = "nginx-deployment-replicas".to_owned();
    OutgoingEntry {
        namespace: "default".into(),
        name,
        uid: "u".into(),
        template: None,
        entry,
        previous: None,
    }
}

#[test]
fn every_event_field_is_documented() {
    let page = written();
    let hook = WebhookEndpoint::new(Parts {
        url: "http://hooks.test/".into(),
        ..Parts::default()
    })
    .unwrap();
    let items = [item("a"), item("b")];
    let mut names = BTreeSet::new();
    for content in [
        MessageContent::Test {
            namespace: "default",
            name: "hook",
            id: "test-1",
        },
        MessageContent::Entries(&items[..1]),
        MessageContent::Entries(&items),
    ] {
        let event = CloudEvent::render(&hook, content, None, false);
        assert!(
            page.contains(&format!("`{}`", event.kind)),
            "{}",
            event.kind
        );
        let source = event
            .source
            .replace("default", "NAMESPACE")
            .replace("nginx-deployment-replicas", "NAME");
        assert!(
            page.contains(&format!("`{}`", source.replace("/hook", "/NAME"))),
            "{source}"
        );
        let data: Value = serde_json::from_slice(&event.body).unwrap();
        names.extend(data.as_object().unwrap().keys().cloned());
    }
    assert!(names.len() > 15, "{names:?}");
    for name in names {
        assert!(
            page.contains(&format!("`{name}`")),
            "{name} is not documented"
        );
    }
}

/// The page of `TrackedField` shows the default message.
#[test]
fn default_message_matches_the_page() {
    let previous: Entry =
        serde_json::from_value(json!({ "action": "Created", "value": "1" })).unwrap();
    let mut item = OutgoingEntry {
        previous: Some(previous),
        ..item("a")
    };
    let changed_by = json!({ "manager": "kubectl-edit" });
    item.entry.changed_by = serde_json::from_value(changed_by).unwrap();
    let view = qm_notify::message::View::of(&item, None);
    let page = written();
    assert!(
        page.contains(&format!("```\n{}\n```", view.text())),
        "{}",
        view.text()
    );
    assert!(
        page.contains(&format!("`{}`", view.digest_line())),
        "{}",
        view.digest_line()
    );
}
