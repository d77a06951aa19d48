//! Invalid stored objects: no panic, no loop, and other objects work.

use std::collections::BTreeMap;

use futures::future::join_all;
use kube::Api;
use kube::api::{Patch, PatchParams};
use kube::core::DynamicObject;
use kube::{CustomResourceExt, ResourceExt};
use qm_api::tracked_field::Delivery;
use qm_api::{ContactPoint, TrackedField};
use serde_json::{Value, json};
use testbed::receiver::Receiver;

use crate::support::{
    ACCOUNT, Bed, Operator, SYSTEM, Settings, accepted, actions_and_values, changes, condition,
};

/// Returns histories that no version of the operator writes, although the schema accepts them.
fn histories() -> Vec<(&'static str, Value)> {
    let id = |n: u32| format!("00000000-0000-7000-8000-{n:012}");
    let pending = |more: Value| {
        let mut entry = json!({ "time": "2026-01-01T00:00:00Z", "action": "Updated", "value": "9", "delivery": "Pending", "id": id(1) });
        for (key, value) in more.as_object().unwrap() {
            entry[key] = value.clone();
        }
        entry
    };
    let many: Vec<Value> = (0..700)
        .map(|n| pending(json!({ "id": id(n), "value": n.to_string() })))
        .collect();
    vec![
        ("empty", json!([])),
        (
            "original",
            json!([{ "time": "2025-02-11T20:44:21Z", "action": "Created", "value": "1" }]),
        ),
        (
            "no-id",
            json!([pending(json!({ "id": null })), { "action": "Updated", "delivery": "Pending" }]),
        ),
        (
            "same-id",
            json!([
                pending(json!({})),
                pending(json!({})),
                pending(json!({ "value": "10" }))
            ]),
        ),
        (
            "odd-ids",
            json!([
                pending(json!({ "id": "" })),
                pending(json!({ "id": "\u{1F600} \n\"" })),
                pending(json!({ "id": "z".repeat(9000) }))
            ]),
        ),
        (
            "odd-subject",
            json!([
                pending(json!({ "subject": "" })),
                pending(json!({ "subject": "////////", "id": id(2) }))
            ]),
        ),
        (
            "times",
            json!([
                pending(json!({ "time": "9999-12-30T21:59:59Z", "id": id(3) })),
                pending(json!({ "time": "0001-01-01T00:00:00Z", "id": id(4) })),
                pending(json!({ "time": null, "id": id(5) })),
            ]),
        ),
        (
            "held",
            json!([
                pending(
                    json!({ "suspendedSince": "9999-12-30T21:59:59Z", "suspendedSeconds": i64::MAX, "id": id(6) })
                ),
                pending(
                    json!({ "suspendedSince": "0001-01-01T00:00:00Z", "suspendedSeconds": 0, "id": id(7) })
                ),
            ]),
        ),
        (
            "numbers",
            json!([
                pending(json!({ "merged": i64::MAX, "firstValue": "x", "id": id(8) })),
                pending(
                    json!({ "merged": 0, "truncated": { "length": i64::MAX, "sha256": "" }, "id": id(9) })
                ),
                pending(json!({ "resourceVersion": "banana", "uid": "\u{0}", "id": id(10) })),
                pending(json!({ "resourceVersion": "99999999999999999999999", "id": id(11) })),
            ]),
        ),
        (
            "failed",
            json!([{ "action": "Updated", "id": "f", "delivery": "Failed" }, pending(json!({ "reason": "x", "missing": true }))]),
        ),
        (
            "long",
            json!([pending(json!({ "value": "v".repeat(200_000) }))]),
        ),
        ("many", Value::Array(many)),
    ]
}

fn statuses() -> Vec<(&'static str, Value)> {
    let condition = |kind: &str, status: &str| {
        json!({ "type": kind, "status": status, "reason": "Odd", "message": "x".repeat(32_768),
            "lastTransitionTime": "9999-12-30T21:59:59Z", "observedGeneration": 999 })
    };
    vec![
        ("none", json!({})),
        ("original", json!({ "initialized": true, "ready": true })),
        ("not-ready", json!({ "initialized": true, "ready": false })),
        (
            "tested",
            json!({ "ready": true, "observedGeneration": 999, "lastTest": { "spec": "", "secrets": ["", "/", "a/b/c"] } }),
        ),
        (
            "moved",
            json!({ "ready": true, "observedGeneration": 1, "migratedToChatId": i64::MIN, "lastTest": { "spec": "0" } }),
        ),
        (
            "conditions",
            json!({ "conditions": [condition("Ready", "Unknown"), condition("Other", "True")] }),
        ),
    ]
}

async fn put_status(bed: &Bed, kind: &kube::core::ApiResource, name: &str, status: Value) {
    let api = Api::<DynamicObject>::namespaced_with(bed.client.clone(), &bed.namespace, kind);
    let patch = Patch::Merge(json!({ "status": status }));
    api.patch_status(name, &PatchParams::default(), &patch)
        .await
        .unwrap_or_else(|error| panic!("{name}: {error}"));
}

async fn writes(bed: &Bed, since: testbed::control_plane::audit::Mark) -> BTreeMap<String, usize> {
    let me = format!("system:serviceaccount:{SYSTEM}:{ACCOUNT}");
    let mut counts = BTreeMap::new();
    for (subject, count) in bed.plane.audit().writes(since).await.unwrap() {
        if subject.user == me
            && subject.namespace == bed.namespace
            && subject.group == "tg.azamaton.ru"
        {
            *counts
                .entry(format!("{}/{}", subject.resource, subject.name))
                .or_default() += count;
        }
    }
    counts
}

#[tokio::test]
async fn invalid_stored_objects_cause_no_panic_and_no_loop() {
    let bed = Bed::shared("nonsense").await;
    let receiver = Receiver::start().unwrap();
    bed.deployment("web", 1).await;
    for (name, status) in statuses() {
        bed.webhook(name, &format!("{}/{name}", receiver.url()))
            .await;
        put_status(&bed, &ContactPoint::api_resource(), name, status).await;
    }
    join_all(histories().into_iter().map(|(name, status)| {
        let bed = &bed;
        async move {
            bed.track(name, "Deployment", "web", "replicas", "original")
                .await;
            put_status(bed, &TrackedField::api_resource(), name, status).await;
        }
    }))
    .await;
    let operator = Operator::start(&bed, Settings::default()).await;
    for (name, status) in statuses() {
        let says_so = |point: &ContactPoint| {
            point
                .status
                .as_ref()
                .is_some_and(|status| status.conditions.iter().any(|it| it.reason == "Ready"))
        };
        let point = bed
            .until(name, "is reported as ready by this version", says_so)
            .await;
        assert_eq!(condition(&point).0, "Ready");
        assert_eq!(
            point.status.as_ref().unwrap().observed_generation,
            Some(1),
            "{name}"
        );
        let path = format!("/{name}");
        let tests = accepted(&receiver)
            .iter()
            .filter(|r| r.path == path && r.header("ce-type") == Some(crate::support::READY))
            .count();
        // The operator tests a contact point that the original program called ready.
        assert_eq!(
            tests,
            usize::from(status != json!({ "initialized": true, "ready": true })),
            "{name}"
        );
    }
    let point = bed.ready("conditions").await;
    assert_eq!(
        point.status.unwrap().conditions.len(),
        2,
        "another's condition stays"
    );

    // Each field's newest value is recorded and sent, whatever the history was.
    let tells_one = |field: &TrackedField| {
        let history = field.history().unwrap();
        let done = history
            .iter()
            .all(|entry| entry.id.is_none() || entry.delivery != Some(Delivery::Pending));
        done && history
            .last()
            .is_some_and(|last| last.value.as_deref() == Some("1"))
    };
    for (name, _) in histories() {
        bed.until(name, "settles", tells_one).await;
    }
    let ids: Vec<String> = changes(&receiver)
        .iter()
        .map(|change| change["trackedField"].to_string())
        .collect();
    assert!(
        !ids.contains(&"\"original\"".to_owned()),
        "nothing changed there"
    );
    assert_eq!(
        actions_and_values(&bed.history("original").await),
        [("Created", Some("1"))]
    );

    // Every field still follows its target.
    bed.scale("web", 2).await;
    for (name, _) in histories() {
        bed.until(name, "continues", |field: &TrackedField| {
            field.history().unwrap().last().is_some_and(|last| {
                last.value.as_deref() == Some("2") && last.delivery == Some(Delivery::Delivered)
            })
        })
        .await;
    }

    // After a requested reconcile, no field has anything more to write.
    let since = bed.plane.audit().mark().await.unwrap();
    let request =
        json!({ "metadata": { "annotations": { "quartermaster.dev/requested-at": "1" } } });
    for (name, _) in statuses() {
        bed.patch::<ContactPoint>(name, request.clone()).await;
    }
    for (name, _) in histories() {
        bed.patch::<TrackedField>(name, request.clone()).await;
    }
    bed.webhook("marker", &receiver.url()).await;
    bed.track("marker", "Deployment", "web", "replicas", "marker")
        .await;
    bed.delivered("marker", &[("Created", Some("2"))]).await;
    let mut written = writes(&bed, since).await;
    written.retain(|name, _| !name.ends_with("/marker"));
    assert_eq!(written, BTreeMap::new());
    let metrics = operator.metrics().await;
    let panics = metrics
        .lines()
        .filter(|line| line.starts_with("controller_runtime_reconcile_panics_total{"));
    assert!(
        panics.into_iter().all(|line| line.ends_with(" 0")),
        "{metrics}"
    );
    assert!(!operator.logs().contains("panicked"));
}

/// Templates that parse and then fail, or render nothing: the default message is sent, once.
#[tokio::test]
async fn failing_template_costs_no_message() {
    let bed = Bed::shared("fails").await;
    let receiver = Receiver::start().unwrap();
    let operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    bed.deployment("web", 1).await;
    let templates = [
        ("type", "{{ value + 1 }}"),
        ("missing-key", "{{ truncated.length }}"),
        ("nothing", "{% if value == 'x' %}x{% endif %}"),
        ("blank", " \n\t "),
        ("division", "{{ 1 // (merged - 1) }}"),
        (
            "large",
            "{% set a = 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' | replace('x', 'yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy') %}{{ a | replace('y', a) | replace('y', a) }}",
        ),
        ("include", "{% include '/etc/passwd' %}"),
    ];
    for (name, template) in templates {
        let target = json!({ "kind": "Deployment", "namespace": bed.namespace, "name": "web" });
        let spec = json!({ "target": target, "contactPoint": "hook", "field": "replicas", "template": template });
        bed.create::<TrackedField>(name, json!({ "spec": spec }))
            .await;
        bed.delivered(name, &[("Created", Some("1"))]).await;
    }
    let actions_and_values = changes(&receiver);
    assert_eq!(actions_and_values.len(), templates.len());
    for change in actions_and_values {
        let text = change["text"].as_str().unwrap();
        assert!(
            text.starts_with("Resource kind: Deployment\nName: web\nStatus: Created\nValue: 1\n"),
            "{change}"
        );
    }
    // Each field is reconciled once for each change, not for ever.
    bed.scale("web", 2).await;
    for (name, _) in templates {
        bed.delivered(name, &[("Created", Some("1")), ("Updated", Some("2"))])
            .await;
    }
    assert!(accepted(&receiver).len() <= 1 + 2 * templates.len());
    assert!(!operator.logs().contains("panicked"));

    // The contact point's own template: an unparsable one is reported, a failing one is replaced by the default
    // message.
    let body = |body: &str| json!({ "type": "Webhook", "webhookSpec": { "url": receiver.url(), "body": body } });
    bed.point("no-template", body("{{ text")).await;
    let (_, message) = condition(&bed.not_ready("no-template", "SpecInvalid").await);
    assert!(
        message.starts_with("spec.webhookSpec.body: line 1: "),
        "{message}"
    );
    receiver.forget();
    bed.point("failing", body("{{ entries[0].value + 1 }}"))
        .await;
    bed.track("failing", "Deployment", "web", "replicas", "failing")
        .await;
    bed.delivered("failing", &[("Created", Some("2"))]).await;
    assert_eq!(changes(&receiver)[0]["value"], "2");
    let point = bed.ready("failing").await;
    bed.patch::<ContactPoint>(
        &point.name_any(),
        json!({ "spec": { "webhookSpec": { "body": "{{ nonsense }}" } } }),
    )
    .await;
    bed.not_ready("failing", "SpecInvalid").await;
    bed.waiting(
        "failing",
        "ContactPointNotReady: \"failing\": SpecInvalid: ",
    )
    .await;
}
