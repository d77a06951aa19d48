//! Limits of a set: its scope, the number of its children, its reports and its reads.

use std::sync::Arc;

use http::StatusCode;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::DynamicObject;
use kube::core::ApiResource;
use kube::{Api, ResourceExt};
use qm_api::tracked_field::{ChangeAction, Entry, Skipped};
use qm_api::{TrackedField, TrackedFieldSet};
use qm_runtime::ObjectKey;
use qm_runtime::watch::ResourceName;
use quartermaster::controllers::tracked_field_set::child;
use serde_json::{Value, json};
use testbed::proxy::{Fault, Match, Times, Verb};
use testbed::receiver::{Receiver, Reply};
use tokio::sync::Semaphore;

use super::{is_quiet, replicas};
use crate::delivery::write_history;
use crate::support::{Bed, Operator, Settings, changes};

#[tokio::test]
async fn set_reaches_only_watched_namespaces() {
    let bed = Bed::shared("sets-scope").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    for (name, namespaces) in [
        ("selector", json!({ "selector": {} })),
        ("other", json!({ "names": [bed.namespace, "kube-system"] })),
    ] {
        bed.set(
            name,
            replicas(json!({ "target": { "namespaces": namespaces } })),
        )
        .await;
        let message = bed.set_reads(name, "OutOfScope").await;
        assert!(message.contains("--watch-namespace"), "{message}");
        assert!(bed.children(name).await.is_empty());
    }
    bed.set("own", replicas(json!({}))).await;
    bed.children_of("own", &["web"]).await;
}

#[tokio::test]
async fn set_without_cross_namespace_refs_reaches_its_own_namespace() {
    let bed = Bed::on_own_plane("sets-refs").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    let settings = Settings::default().whole_cluster();
    let _operator = Operator::start(&bed, settings.flag("--no-cross-namespace-refs")).await;
    for (name, namespaces) in [
        ("selector", json!({ "selector": {} })),
        ("other", json!({ "names": ["kube-system"] })),
    ] {
        bed.set(
            name,
            replicas(json!({ "target": { "namespaces": namespaces } })),
        )
        .await;
        let message = bed.set_reads(name, "OutOfScope").await;
        assert!(message.contains("--no-cross-namespace-refs"), "{message}");
        assert!(bed.children(name).await.is_empty());
    }
    bed.set("own", replicas(json!({}))).await;
    bed.children_of("own", &["web"]).await;
}

/// A child with a field that the set leaves to users needs no write, but the set does not know that before it tries.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn muted_children_do_not_delay_those_of_new_targets() {
    /// More than the writes of one reconcile.
    const MUTED: usize = 300;
    let bed = Bed::without_controllers("sets-muted").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    for number in 0..MUTED {
        bed.deployment(&format!("web-{number}"), 0).await;
    }
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.set("all", replicas(json!({}))).await;
    let is_complete = |children: usize| {
        move |set: &TrackedFieldSet| {
            let status = set.status.as_ref();
            status.is_some_and(|status| {
                usize::try_from(status.children.unwrap_or_default()) == Ok(children)
                    && status.conditions[0].status == "True"
            })
        }
    };
    bed.until("all", "is complete", is_complete(MUTED)).await;
    for child in bed.children("all").await.into_values() {
        let muted = json!({ "spec": { "suspend": true } });
        bed.patch::<TrackedField>(&child.name_any(), muted).await;
    }
    bed.deployment("new", 0).await;
    bed.until("all", "is complete", is_complete(MUTED + 1))
        .await;
}

#[tokio::test]
async fn oldest_leaving_children_make_room_for_new_ones_and_when_max_targets_shrinks() {
    let bed = Bed::shared("sets-room").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("a", 1).await;
    bed.deployment("b", 1).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.set("all", replicas(json!({ "maxTargets": 2 }))).await;
    for name in ["a", "b"] {
        bed.child_history("all", name, is_quiet).await;
    }
    // The first one to leave has the later name.
    for name in ["b", "a"] {
        bed.delete::<Deployment>(name).await;
        bed.child_history("all", name, |history| {
            history.len() == 2 && !history[1].is_pending()
        })
        .await;
    }
    bed.children_of("all", &["a", "b"]).await;
    bed.deployment("c", 1).await;
    bed.children_of("all", &["a", "c"]).await;

    let max_targets = |number: usize| json!({ "spec": { "maxTargets": number } });
    bed.patch::<TrackedFieldSet>("all", max_targets(3)).await;
    bed.deployment("d", 1).await;
    bed.children_of("all", &["a", "c", "d"]).await;
    // A child without an entry leaves with its target.
    bed.child_history("all", "d", |history| history.len() == 1)
        .await;
    bed.delete::<Deployment>("d").await;
    bed.child_history("all", "d", |history| {
        history.len() == 2 && !history[1].is_pending()
    })
    .await;
    for (number, left) in [(2, &["c", "d"][..]), (1, &["c"])] {
        bed.patch::<TrackedFieldSet>("all", max_targets(number))
            .await;
        bed.children_of("all", left).await;
    }
    // Targets that exist keep their children.
    bed.patch::<TrackedFieldSet>("all", max_targets(2)).await;
    bed.deployment("e", 1).await;
    bed.children_of("all", &["c", "e"]).await;
    bed.patch::<TrackedFieldSet>("all", max_targets(1)).await;
    bed.set_reads("all", "Ready").await;
    bed.children_of("all", &["c", "e"]).await;
}

#[tokio::test]
async fn child_with_pending_entries_makes_no_room() {
    let bed = Bed::shared("sets-unsent").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("a", 1).await;
    bed.deployment("b", 1).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let spec = json!({ "maxTargets": 1, "keepSeconds": 0 });
    bed.set("all", replicas(spec)).await;
    bed.child_history("all", "a", is_quiet).await;
    bed.set_reads("all", "TooManyTargets").await;
    receiver.always(Reply::status(StatusCode::SERVICE_UNAVAILABLE));
    bed.delete::<Deployment>("a").await;
    // The target that was left out takes the place.
    bed.child_history("all", "b", is_quiet).await;
    let history = bed
        .child_history("all", "a", |history| history.len() == 2)
        .await;
    assert!(history[1].is_pending());
    // A reconcile of the whole set passes meanwhile.
    bed.patch::<TrackedFieldSet>("all", json!({ "spec": { "keepSeconds": 1 } }))
        .await;
    bed.set_reads("all", "DeliveryFailing").await;
    bed.children_of("all", &["a", "b"]).await;
    receiver.always(Reply::ok());
    bed.children_of("all", &["b"]).await;
    let sent = changes(&receiver);
    assert!(sent.iter().any(|change| change["action"] == "Deleted"));
}

/// A contact point that is missing would keep the child for ever.
#[tokio::test]
async fn unsent_entries_keep_a_child_for_a_day() {
    let bed = Bed::shared("sets-day").await;
    bed.deployment("a", 1).await;
    bed.deployment("b", 1).await;
    let mut operator = Operator::start(&bed, Settings::default()).await;
    bed.set("all", replicas(json!({ "initial": "Notify" })))
        .await;
    let is_unsent = |history: &[Entry]| matches!(history, [first] if first.is_pending());
    for name in ["a", "b"] {
        bed.child_history("all", name, is_unsent).await;
    }
    let exclude = json!({ "spec": { "target": { "names": { "exclude": ["a"] } } } });
    bed.patch::<TrackedFieldSet>("all", exclude).await;
    bed.set_reads("all", "ContactPointNotFound").await;
    let children = bed.children_of("all", &["a", "b"]).await;

    operator.kill();
    let a_day_ago = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(25);
    let a_day_ago = a_day_ago.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    for name in ["a", "b"] {
        let child = &children[name];
        let mut history = serde_json::to_value(child.history().unwrap()).unwrap();
        history[0]["time"] = a_day_ago.clone().into();
        write_history(&bed, &child.name_any(), &history).await;
    }
    operator.restart();
    let left = bed.children_of("all", &["b"]).await;
    assert!(is_unsent(&left["b"].history().unwrap()), "the set needs it");
}

/// The pause of a set, or a contact point that is missing, would keep the entries of a child that leaves.
#[tokio::test]
async fn leaving_child_with_unsent_entries_follows_the_template() {
    let bed = Bed::shared("sets-template").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("a", 1).await;
    bed.deployment("b", 1).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let spec = json!({ "keepSeconds": 0, "template": { "suspend": true } });
    bed.set("all", replicas(spec)).await;
    for name in ["a", "b"] {
        bed.child_history("all", name, is_quiet).await;
    }
    let message = bed.set_reads("all", "Suspended").await;
    assert!(
        message.starts_with("spec.template.suspend is true"),
        "{message}"
    );
    let template = async |template: Value| {
        let spec = json!({ "spec": { "template": template } });
        bed.patch::<TrackedFieldSet>("all", spec).await;
    };
    let deletion_is_recorded = async |name: &str| {
        bed.delete::<Deployment>(name).await;
        let is_unsent = |history: &[Entry]| {
            let last = history.last();
            last.is_some_and(|last| last.action == ChangeAction::Deleted && last.is_pending())
        };
        bed.child_history("all", name, is_unsent).await;
    };
    deletion_is_recorded("a").await;
    template(json!({ "suspend": false })).await;
    bed.children_of("all", &["b"]).await;

    template(json!({ "contactPoint": "missing" })).await;
    bed.set_reads("all", "ContactPointNotFound").await;
    deletion_is_recorded("b").await;
    template(json!({ "contactPoint": "hook" })).await;
    bed.children_of("all", &[]).await;
    let sent = changes(&receiver);
    let sent: Vec<_> = sent
        .iter()
        .map(|change| json!([change["name"], change["action"]]))
        .collect();
    assert_eq!(sent, [json!(["a", "Deleted"]), json!(["b", "Deleted"])]);
}

#[tokio::test]
async fn created_children_are_one_event_in_a_minute() {
    let bed = Bed::shared("sets-events").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("a", 1).await;
    bed.deployment("b", 1).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.set("all", replicas(json!({}))).await;
    let note = bed.event("all", "TrackedFieldsChanged").await;
    assert_eq!(note, "TrackedFields created: 2, deleted: 0");
    for (number, name) in [(3, "c"), (4, "d")] {
        bed.deployment(name, 1).await;
        bed.until("all", "has the child", |set: &TrackedFieldSet| {
            set.status.as_ref().and_then(|status| status.children) == Some(number)
        })
        .await;
    }
    // The Event of a later reason arrives after those of the children.
    bed.patch::<TrackedFieldSet>("all", json!({ "spec": { "maxTargets": 3 } }))
        .await;
    bed.set_reads("all", "Ready").await;
    bed.deployment("e", 1).await;
    bed.event("all", "TooManyTargets").await;
    assert_eq!(bed.events("all", "TrackedFieldsChanged").await.len(), 1);
}

#[tokio::test]
async fn adopted_tracked_field_of_another_target_sends_nothing() {
    let bed = Bed::shared("sets-adopted").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("other", 1).await;
    let deployments = ResourceName {
        api_version: "apps/v1".into(),
        plural: "deployments".into(),
    };
    let target = ObjectKey::new(&bed.namespace, "a");
    let taken = child::name("all", &deployments, &target, "replicas");
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.track(&taken, "Deployment", "other", "replicas", "hook")
        .await;
    bed.delivered(&taken, &[("Created", Some("1"))]).await;
    // The target is younger than the TrackedField, and older than its adoption.
    let second = std::time::Duration::from_millis(1100);
    tokio::time::sleep(second).await;
    bed.deployment("a", 4).await;
    tokio::time::sleep(second).await;
    let names = json!({ "target": { "names": { "include": ["a"] } } });
    bed.set("all", replicas(names)).await;
    bed.set_reads("all", "Conflict").await;
    let consent = format!("{}/all", bed.namespace);
    let annotations = json!({ "quartermaster.dev/adopt-by": consent });
    bed.patch::<TrackedField>(
        &taken,
        json!({ "metadata": { "annotations": annotations } }),
    )
    .await;
    let children = bed.children_of("all", &["a"]).await;
    assert_eq!(children["a"].name_any(), taken);
    let history = bed
        .child_history("all", "a", |history| history.len() == 2)
        .await;
    assert_eq!(history[0].value.as_deref(), Some("1"), "the history stays");
    assert_eq!(history[1].skipped, Some(Skipped::Initial));
    bed.scale("a", 5).await;
    bed.child_history("all", "a", |history| {
        history.len() == 3 && !history[2].is_pending()
    })
    .await;
    let changes = changes(&receiver);
    let sent: Vec<_> = changes.iter().map(|change| &change["value"]).collect();
    assert_eq!(sent, ["1", "5"]);
}

#[tokio::test]
async fn child_names_the_field_of_its_set() {
    let bed = Bed::shared("sets-when").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let spec = json!({ "fields": ["image"], "template": { "when": "number(value) > 1.0" } });
    bed.set("all", replicas(spec)).await;
    let child = bed
        .children_of("all", &["web"])
        .await
        .remove("web")
        .unwrap();
    let message = bed.waiting(&child.name_any(), "WhenInvalid").await;
    let advice = "; correct spec.template.when of TrackedFieldSet \"all\", which writes this field";
    assert!(message.ends_with(advice), "{message}");
}

#[tokio::test]
async fn many_children_are_created_and_read_without_single_reads() {
    const TARGETS: usize = 70;
    let bed = Bed::shared("sets-many").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    for number in 0..TARGETS {
        bed.deployment(&format!("d-{number:02}"), 1).await;
    }
    let (proxy, kubeconfig) = bed.through_proxy().await;
    // On a slow machine a read would be over before the next child exists.
    let allowed = Arc::new(Semaphore::new(0));
    let held = Fault::hold(&allowed);
    let targets = Match::verb(Verb::Get).resource("deployments");
    proxy.inject(targets, Times::Always, held);
    let _operator = Operator::start(&bed, Settings::default().kubeconfig(kubeconfig)).await;
    bed.set("all", replicas(json!({}))).await;
    bed.set_reads("all", "Ready").await;
    allowed.add_permits(Semaphore::MAX_PERMITS);
    for number in 0..TARGETS {
        bed.child_history("all", &format!("d-{number:02}"), is_quiet)
            .await;
    }
    let reads = |resource| proxy.count(&Match::verb(Verb::Get).resource(resource));
    assert_eq!(reads("trackedfields"), 0);
    // The first and the last targets may be read one by one, because few others are known.
    assert!(
        reads("deployments") <= TARGETS * 2 / 3,
        "{}",
        reads("deployments")
    );
}

/// The program before `when` and sets reads `delivery` strictly, and an object that it cannot read ends its whole watch.
mod older {
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase")]
    #[expect(dead_code, reason = "only read")]
    pub struct TrackedField {
        pub spec: Spec,
        #[serde(default)]
        pub status: Vec<Entry>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase")]
    #[expect(dead_code, reason = "only read")]
    pub struct Spec {
        pub contact_point: String,
        pub field: String,
        pub template: Option<String>,
        pub history_limit: Option<i64>,
        pub suspend: Option<bool>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase")]
    #[expect(dead_code, reason = "only read")]
    pub struct Entry {
        pub action: Action,
        pub value: Option<String>,
        pub delivery: Option<Delivery>,
    }

    #[derive(Debug, Deserialize)]
    pub enum Action {
        Created,
        Updated,
        Deleted,
    }

    #[derive(Debug, PartialEq, Eq, Deserialize)]
    pub enum Delivery {
        Pending,
        Delivered,
        Failed,
    }
}

#[tokio::test]
async fn older_program_reads_skipped_entries_as_delivered() {
    let bed = Bed::shared("sets-older").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let spec = json!({ "template": { "when": "value != '2'" } });
    bed.set("all", replicas(spec)).await;
    bed.child_history("all", "web", is_quiet).await;
    let is_finished = |number: usize| {
        move |history: &[Entry]| history.len() == number && !history.iter().any(Entry::is_pending)
    };
    bed.scale("web", 2).await;
    bed.child_history("all", "web", is_finished(2)).await;
    bed.scale("web", 3).await;
    let history = bed.child_history("all", "web", is_finished(3)).await;
    let skipped: Vec<_> = history.iter().map(|entry| entry.skipped).collect();
    assert_eq!(skipped, [Some(Skipped::Initial), Some(Skipped::When), None]);

    let child = bed.children("all").await.remove("web").unwrap();
    let kind = ApiResource::erase::<TrackedField>(&());
    let api: Api<DynamicObject> = Api::namespaced_with(bed.client.clone(), &bed.namespace, &kind);
    let object = api.get(&child.name_any()).await.unwrap();
    let older: older::TrackedField =
        serde_json::from_value(serde_json::to_value(object).unwrap()).unwrap();
    let delivery: Vec<_> = older.status.iter().map(|entry| &entry.delivery).collect();
    assert_eq!(delivery, [&None, &None, &Some(older::Delivery::Delivered)]);
}
