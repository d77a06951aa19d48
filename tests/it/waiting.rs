//! Reasons why a `TrackedField` waits: each reason is in the annotation and in an Event, and disappears once the
//! problem is fixed.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::StatusCode;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::ResourceExt;
use kube::api::PostParams;
use qm_api::tracked_field::Delivery;
use qm_api::{ContactPoint, TrackedField};
use serde_json::{Value, json};
use testbed::receiver::{Receiver, Reply, Request};
use testbed::wait::until;

use crate::support::{
    ACCOUNT, Bed, Operator, READY, SOON, SYSTEM, Settings, actions_and_values, changes, texts,
};

fn requested_at(value: &str) -> Value {
    json!({ "metadata": { "annotations": { "quartermaster.dev/requested-at": value } } })
}

/// Tracks the replicas of `web`, with `change` merged into the spec.
async fn track(bed: &Bed, name: &str, change: Value) {
    let mut spec = json!({
        "target": { "kind": "Deployment", "namespace": bed.namespace, "name": "web" },
        "contactPoint": "hook",
        "field": "replicas",
    });
    for (key, value) in change.as_object().unwrap() {
        spec[key] = value.clone();
    }
    bed.create::<TrackedField>(name, json!({ "spec": spec }))
        .await;
}

#[tokio::test]
async fn every_reason_is_reported_and_cleared() {
    let bed = Bed::shared("waits").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    bed.deployment("web", 1).await;
    let since = bed.plane.audit().mark().await.unwrap();
    let other: Namespace = serde_json::from_value(
        json!({ "metadata": { "name": format!("{}-other", bed.namespace) } }),
    )
    .unwrap();
    Api::all(bed.client.clone())
        .create(&PostParams::default(), &other)
        .await
        .unwrap();

    let target = |kind: &str, namespace: &str, name: &str| json!({ "kind": kind, "namespace": namespace, "name": name });
    let here = bed.namespace.as_str();
    let elsewhere = format!("{here}-other");
    // Name, unusual part of the spec, reason, message, and the fix of the spec.
    let cases = [
        (
            "target",
            json!({ "target": target("StatefulSet", here, "db") }),
            "TargetNotFound",
            format!("StatefulSet {here}/db does not exist"),
            json!({}),
        ),
        (
            "path",
            json!({ "field": "{.spec.replicas" .to_owned() + "[}" }),
            "PathInvalid",
            String::new(),
            json!({ "field": "{.spec.replicas}" }),
        ),
        (
            "template",
            json!({ "template": "{{ nonsense }}" }),
            "TemplateInvalid",
            "nonsense".into(),
            json!({ "template": "{{ value }}!" }),
        ),
        (
            "loops",
            json!({ "template": "{% for a in range(1000000000) %}x{% endfor %}" }),
            "TemplateInvalid",
            "spec.template: ".into(),
            json!({ "template": null }),
        ),
        (
            "scope",
            json!({ "target": target("Deployment", &elsewhere, "web") }),
            "OutOfScope",
            format!("does not watch namespace {elsewhere:?}"),
            json!({ "target": target("Deployment", here, "web") }),
        ),
        (
            "point",
            json!({ "contactPoint": "hooks" }),
            "ContactPointNotFound",
            "\"hooks\" not found; there is \"hook\"".into(),
            json!({ "contactPoint": "hook" }),
        ),
        (
            "nowhere",
            json!({ "contactPoint": "zzz" }),
            "ContactPointNotFound",
            "\"zzz\" not found; create the ContactPoint in the namespace of this resource".into(),
            json!({ "contactPoint": "hook" }),
        ),
    ];
    for (name, change, ..) in &cases {
        track(&bed, name, change.clone()).await;
    }
    for (name, _, reason, expected, _) in &cases {
        let annotation = bed.waiting(name, &format!("{reason}: ")).await;
        assert!(
            annotation.contains(expected.as_str()),
            "{name}: {annotation}"
        );
        assert_eq!(
            format!("{reason}: {}", bed.event(name, reason).await),
            annotation
        );
        let event = bed.events(name, reason).await.remove(0);
        assert_eq!(event.reporting_controller.as_deref(), Some("quartermaster"));
        let column = bed.kubectl(&["get", "trackedfield", name]).await;
        assert!(
            column.contains("WAITING") && column.contains(reason) && !column.contains(&annotation),
            "{column}"
        );
    }
    // Without a contact point, changes are recorded and not sent; without a target, a field or a permission, nothing is
    // recorded.
    for (name, expected_entries) in [
        ("nowhere", &[("Created", Some("1"))][..]),
        ("target", &[]),
        ("scope", &[]),
    ] {
        assert_eq!(
            actions_and_values(&bed.history(name).await),
            expected_entries,
            "{name}"
        );
    }
    bed.until("point", "pending", |field: &TrackedField| {
        field
            .history()
            .unwrap()
            .iter()
            .map(|entry| entry.delivery)
            .collect::<Vec<_>>()
            == [Some(Delivery::Pending)]
    })
    .await;
    // An invalid template costs no message.
    bed.delivered("template", &[("Created", Some("1"))]).await;
    assert!(
        texts(&receiver)
            .iter()
            .any(|text| text.starts_with("Resource kind: Deployment"))
    );

    let labels = json!({ "app": "db" });
    let template = json!({ "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "db", "image": "db" }] } });
    let spec = json!({ "replicas": 1, "serviceName": "db", "selector": { "matchLabels": labels }, "template": template });
    bed.create::<k8s_openapi::api::apps::v1::StatefulSet>("db", json!({ "spec": spec }))
        .await;
    for (name, _, _, _, mend) in &cases {
        if mend.as_object().is_some_and(|mend| !mend.is_empty()) {
            bed.patch::<TrackedField>(name, json!({ "spec": mend }))
                .await;
        }
    }
    for (name, ..) in &cases {
        bed.waiting(name, "").await;
        let delivered = |field: &TrackedField| {
            let all = field.history().unwrap();
            !all.is_empty()
                && all
                    .iter()
                    .all(|entry| entry.delivery == Some(Delivery::Delivered))
        };
        bed.until(name, "all delivered", delivered).await;
    }
    bed.scale("web", 2).await;
    bed.until("template", "the template is used", |_: &TrackedField| {
        texts(&receiver).iter().any(|text| text == "2!")
    })
    .await;

    // An Event when the reason appeared, and another when it disappeared.
    let me = format!("system:serviceaccount:{SYSTEM}:{ACCOUNT}");
    let mut writes = BTreeMap::<String, usize>::new();
    for (subject, count) in bed.plane.audit().writes(since).await.unwrap() {
        if subject.user == me && subject.namespace == here && subject.resource == "trackedfields" {
            writes.insert(subject.name, count);
        }
    }
    let expected: BTreeMap<_, _> = cases
        .iter()
        .map(|(name, ..)| ((*name).to_owned(), 2))
        .collect();
    assert_eq!(writes, expected);
}

#[tokio::test]
async fn entries_wait_for_deleted_contact_points() {
    let bed = Bed::shared("comes").await;
    let receiver = Receiver::start().unwrap();
    let other = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.deployment("web", 1).await;
    track(&bed, "it", json!({})).await;
    bed.waiting("it", "ContactPointNotFound: \"hook\" not found")
        .await;
    let pending = async |count: usize| {
        bed.until("it", "all recorded, none sent", |field: &TrackedField| {
            let pending = field
                .history()
                .unwrap()
                .iter()
                .filter(|entry| entry.is_pending())
                .count();
            pending == count
        })
        .await
    };
    pending(1).await;
    bed.scale("web", 2).await;
    pending(2).await;
    bed.webhook("hook", &receiver.url()).await;
    let mut expected_entries = vec![("Created", Some("1")), ("Updated", Some("2"))];
    bed.delivered("it", &expected_entries).await;
    bed.waiting("it", "").await;

    // Entries are kept for the next contact point of that name.
    bed.delete::<ContactPoint>("hook").await;
    bed.waiting("it", "ContactPointNotFound: \"hook\" not found")
        .await;
    bed.scale("web", 3).await;
    pending(1).await;
    // The hint with the nearest name appears and disappears, too.
    bed.webhook("hooks", &other.url()).await;
    bed.waiting(
        "it",
        "ContactPointNotFound: \"hook\" not found; there is \"hooks\"",
    )
    .await;
    bed.delete::<ContactPoint>("hooks").await;
    let names_none = |field: &TrackedField| {
        field
            .annotations()
            .values()
            .any(|expected| expected.ends_with("namespace of this resource"))
    };
    bed.until("it", "names none", names_none).await;
    bed.webhook("hook", &other.url()).await;
    expected_entries.push(("Updated", Some("3")));
    bed.delivered("it", &expected_entries).await;
    bed.waiting("it", "").await;
    assert_eq!(
        changes(&other)
            .iter()
            .map(|change| change["value"].clone())
            .collect::<Vec<_>>(),
        ["3"]
    );

    // Waiting entries go to the contact point that the spec names now.
    bed.webhook("spare", &receiver.url()).await;
    bed.ready("spare").await;
    other.refuse().await.unwrap();
    bed.scale("web", 4).await;
    bed.waiting("it", "DeliveryFailing: \"hook\": cannot connect")
        .await;
    bed.patch::<TrackedField>("it", json!({ "spec": { "contactPoint": "spare" } }))
        .await;
    expected_entries.push(("Updated", Some("4")));
    bed.delivered("it", &expected_entries).await;
    bed.waiting("it", "").await;
    assert_eq!(changes(&receiver).last().unwrap()["value"], "4");
}

#[tokio::test]
async fn waiting_field_reports_the_present_failure_of_its_receiver() {
    let bed = Bed::shared("cause").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    bed.deployment("web", 1).await;
    receiver.always(Reply::status(StatusCode::SERVICE_UNAVAILABLE));
    track(&bed, "it", json!({})).await;
    let failed = "DeliveryFailing: \"hook\": the endpoint failed";
    bed.waiting("it", &format!("{failed} (503")).await;
    receiver.always(Reply::status(StatusCode::BAD_GATEWAY));
    bed.waiting("it", &format!("{failed} (502")).await;
}

#[tokio::test]
async fn suspended_field_records_and_sends_later() {
    let bed = Bed::shared("suspended").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    track(&bed, "it", json!({})).await;
    track(&bed, "marker", json!({})).await;
    bed.delivered("it", &[("Created", Some("1"))]).await;
    bed.delivered("marker", &[("Created", Some("1"))]).await;

    // Suspension of one field.
    bed.patch::<TrackedField>("it", json!({ "spec": { "suspend": true } }))
        .await;
    bed.waiting("it", "Suspended: changes are recorded").await;
    bed.event("it", "Suspended").await;
    bed.scale("web", 2).await;
    bed.scale("web", 3).await;
    bed.delivered(
        "marker",
        &[
            ("Created", Some("1")),
            ("Updated", Some("2")),
            ("Updated", Some("3")),
        ],
    )
    .await;
    let suspended = |field: &TrackedField| {
        field
            .history()
            .unwrap()
            .iter()
            .filter(|e| e.suspended_since.is_some())
            .count()
            == 2
    };
    bed.until("it", "recorded and suspended", suspended).await;
    let of = |name: &str| {
        let all = changes(&receiver)
            .into_iter()
            .filter(|change| change["trackedField"] == name);
        all.map(|change| change["value"].as_str().unwrap_or("gone").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(of("it"), ["1"]);
    bed.patch::<TrackedField>("it", json!({ "spec": { "suspend": false } }))
        .await;
    let history = bed
        .delivered(
            "it",
            &[
                ("Created", Some("1")),
                ("Updated", Some("2")),
                ("Updated", Some("3")),
            ],
        )
        .await;
    assert_eq!(of("it"), ["1", "2", "3"]);
    assert!(
        history
            .iter()
            .all(|entry| entry.suspended_since.is_none() && entry.suspended_seconds.is_none())
    );

    // Suspension of the contact point.
    let other = Receiver::start().unwrap();
    bed.webhook("other", &other.url()).await;
    bed.patch::<TrackedField>("marker", json!({ "spec": { "contactPoint": "other" } }))
        .await;
    bed.ready("other").await;
    bed.patch::<ContactPoint>("hook", json!({ "spec": { "suspend": true } }))
        .await;
    bed.waiting("it", "ContactPointNotReady: \"hook\": it is suspended")
        .await;
    bed.event("it", "ContactPointNotReady").await;
    bed.scale("web", 4).await;
    other
        .wait_for(SOON, |_| changes(&other).len() == 1)
        .await
        .unwrap();
    bed.until("it", "suspended", |field: &TrackedField| {
        field
            .history()
            .unwrap()
            .iter()
            .filter(|entry| entry.suspended_since.is_some())
            .count()
            == 1
    })
    .await;
    assert_eq!(of("it"), ["1", "2", "3"]);
    // The end of the suspension sends no test message.
    bed.patch::<ContactPoint>("hook", json!({ "spec": { "suspend": null } }))
        .await;
    until("the rest", SOON, async || {
        Ok((of("it") == ["1", "2", "3", "4"]).then_some(()))
    })
    .await
    .unwrap();
    bed.waiting("it", "").await;
    let is_test = |request: &Arc<Request>| request.header("ce-type") == Some(READY);
    assert_eq!(
        receiver
            .requests()
            .iter()
            .filter(|request| is_test(request))
            .count(),
        1
    );

    // A field that is suspended from the start can be deleted.
    bed.patch::<TrackedField>("it", json!({ "spec": { "suspend": true } }))
        .await;
    bed.delete::<TrackedField>("it").await;
    bed.point(
        "never",
        json!({ "type": "Webhook", "suspend": true, "webhookSpec": { "url": other.url() } }),
    )
    .await;
    bed.patch::<TrackedField>("marker", json!({ "spec": { "contactPoint": "never" } }))
        .await;
    bed.waiting("marker", "ContactPointNotReady: \"never\": it is suspended")
        .await;
    let before = other.requests().len();
    bed.webhook("after", &other.url()).await;
    bed.ready("after").await;
    assert_eq!(
        other.requests().len(),
        before + 1,
        "nothing but the test message of the other one"
    );
    bed.delete::<ContactPoint>("never").await;
}

#[tokio::test]
async fn entries_expire_without_counting_suspended_time() {
    let bed = Bed::shared("expires").await;
    let (away, suspended) = (Receiver::start().unwrap(), Receiver::start().unwrap());
    let operator = Operator::start(&bed, Settings::default().flag("--delivery-max-age=20s")).await;
    bed.webhook("away", &away.url()).await;
    bed.webhook("suspended", &suspended.url()).await;
    bed.ready("away").await;
    bed.ready("suspended").await;
    away.refuse().await.unwrap();
    bed.deployment("web", 1).await;
    track(
        &bed,
        "suspended",
        json!({ "contactPoint": "suspended", "suspend": true }),
    )
    .await;
    bed.patch::<ContactPoint>("suspended", json!({ "spec": { "suspend": true } }))
        .await;
    // The two kinds come by two watches.
    bed.not_ready("suspended", "Suspended").await;
    track(&bed, "by-point", json!({ "contactPoint": "suspended" })).await;
    for name in ["suspended", "by-point"] {
        bed.until(name, "suspended", |field: &TrackedField| {
            field
                .history()
                .unwrap()
                .iter()
                .any(|entry| entry.suspended_since.is_some())
        })
        .await;
    }
    // A field younger than those two, whose entries expire before theirs.
    track(&bed, "it", json!({ "contactPoint": "away" })).await;
    let failed = |field: &TrackedField| {
        field
            .history()
            .unwrap()
            .iter()
            .any(|e| e.delivery == Some(Delivery::Failed))
    };
    let field = bed.until("it", "given up", failed).await;
    let entry = field.history().unwrap()[0].clone();
    let reason = entry.reason.unwrap();
    assert!(
        reason.starts_with("not delivered within 20 s; the last attempt: cannot connect: "),
        "{reason}"
    );
    assert_eq!(
        bed.event("it", "DeliveryFailed").await,
        format!("failed to deliver the change Created 1: {reason}")
    );
    let metrics = operator.metrics().await;
    assert!(
        metrics
            .lines()
            .any(|line| line == "quartermaster_entries_failed_total{reason=\"expired\"} 1"),
        "{metrics}"
    );
    bed.waiting("it", "").await;

    bed.patch::<ContactPoint>("suspended", json!({ "spec": { "suspend": false } }))
        .await;
    bed.patch::<TrackedField>("suspended", json!({ "spec": { "suspend": false } }))
        .await;
    for name in ["suspended", "by-point"] {
        bed.delivered(name, &[("Created", Some("1"))]).await;
    }
    // The next message is sent.
    away.accept().await.unwrap();
    bed.scale("web", 2).await;
    bed.until("it", "the next message is sent", |field: &TrackedField| {
        let all: Vec<_> = field
            .history()
            .unwrap()
            .iter()
            .map(|entry| entry.delivery)
            .collect();
        all == [Some(Delivery::Failed), Some(Delivery::Delivered)]
    })
    .await;
    assert!(
        changes(&away).iter().all(|change| change["value"] == "2"),
        "expired entries are not sent"
    );
}

#[tokio::test]
async fn requested_reconcile_ends_every_wait() {
    let bed = Bed::shared("requested").await;
    let receiver = Receiver::start().unwrap();
    // Longer than the test: only the request can end the wait.
    let settings = [
        "--poll-min=10m",
        "--poll-max=10m",
        "--stopped-retry-period=10m",
        "--backoff-min=10m",
        "--backoff-max=10m",
    ]
    .into_iter()
    .fold(Settings::default(), Settings::flag);
    let _operator = Operator::start(&bed, settings).await;
    let url_from = json!({ "type": "Webhook", "webhookSpec": { "urlFrom": { "secretName": "late", "key": "token" } } });
    bed.point("secret", url_from).await;
    bed.not_ready("secret", "SecretNotFound").await;
    bed.secret("late", &receiver.url()).await;

    for (path, code) in [("/stopped", 404), ("/down", 503), ("/late", 503)] {
        receiver.at_path(path, Reply::status(StatusCode::from_u16(code).unwrap()));
    }
    bed.webhook("stopped", &format!("{}/stopped", receiver.url()))
        .await;
    bed.not_ready("stopped", "NotFound").await;
    bed.webhook("down", &format!("{}/down", receiver.url()))
        .await;
    bed.not_ready("down", "Unreachable").await;
    for path in ["/stopped", "/down"] {
        receiver.at_path(path, Reply::ok());
    }
    for name in ["secret", "stopped", "down"] {
        bed.patch::<ContactPoint>(name, requested_at("1")).await;
        bed.ready(name).await;
    }
}

/// The apiserver forgets Events after an hour: the operator writes the Event of a lasting state again.
#[tokio::test]
async fn event_of_a_wait_is_renewed_while_it_lasts() {
    let bed = Bed::shared("renewed").await;
    let receiver = Receiver::start().unwrap();
    let _operator = Operator::start(&bed, Settings::default().flag("--event-renewal=500ms")).await;
    bed.webhook("hook", &receiver.url()).await;
    track(&bed, "it", json!({})).await;
    let count = async || {
        let events = bed.events("it", "TargetNotFound").await;
        events.len()
    };
    until("three times", SOON, async || {
        Ok((count().await >= 3).then_some(()))
    })
    .await
    .unwrap();
    bed.deployment("web", 1).await;
    bed.delivered("it", &[("Created", Some("1"))]).await;
    bed.waiting("it", "").await;
    let last = count().await;
    track(&bed, "marker", json!({ "contactPoint": "none" })).await;
    until("the other's is renewed", SOON, async || {
        let events = bed.events("marker", "ContactPointNotFound").await;
        Ok((events.len() >= 3).then_some(()))
    })
    .await
    .unwrap();
    // A write may have been in flight.
    assert!(count().await <= last + 1);
    bed.delete::<Deployment>("web").await;
    bed.delivered("it", &[("Created", Some("1")), ("Deleted", None)])
        .await;
}
