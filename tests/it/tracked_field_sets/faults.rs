//! Watches that show nothing, a kind that disappears, an operator that is down, and kills.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams, PostParams};
use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};
use qm_api::tracked_field::Entry;
use qm_api::{ContactPoint, TrackedField, TrackedFieldSet};
use quartermaster::controllers::tracked_field_set::writes::RECHECK_INTERVAL;
use serde_json::{Value, json};
use testbed::Options;
use testbed::proxy::{Fault, Match, Point, Proxy, Seen, Times, Verb};
use testbed::receiver::Receiver;
use testbed::wait::until;

use super::{is_quiet, replicas};
use crate::faults::replicas::candidate;
use crate::fields::Widgets;
use crate::pins::metrics::reconciles;
use crate::support::{
    Bed, Operator, SOON, Settings, accepted, changes, kill_at_each_write, kill_at_write,
};

#[tokio::test]
async fn nothing_leaves_while_a_running_watch_is_frozen() {
    let bed = Bed::on_own_plane_with(Options::apiserver_only(), "sets-frozen").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    bed.deployment("api", 1).await;
    let (proxy, kubeconfig) = bed.through_proxy().await;
    let _operator = Operator::start(&bed, Settings::default().kubeconfig(kubeconfig)).await;
    bed.set("all", replicas(json!({ "keepSeconds": 0 }))).await;
    bed.child_history("all", "web", is_quiet).await;
    bed.set_reads("all", "Ready").await;
    let before = bed.children("all").await;

    let frozen = proxy.freeze_running(Match::watch("deployments"));
    bed.delete::<Deployment>("web").await;
    frozen.wait_for_hits(1, SOON).await.unwrap();
    // A reconcile of the whole set passes meanwhile.
    bed.patch::<TrackedFieldSet>("all", json!({ "spec": { "maxTargets": 400 } }))
        .await;
    bed.set_reads("all", "Ready").await;
    let now = bed.children_of("all", &["api", "web"]).await;
    for (name, child) in &now {
        assert_eq!(child.uid(), before[name].uid());
    }
    assert_eq!(now["web"].history().unwrap().len(), 1);

    frozen.cancel();
    bed.children_of("all", &["api"]).await;
    assert!(
        changes(&receiver)
            .iter()
            .any(|change| change["action"] == "Deleted")
    );
}

/// Creates Deployments `a` and `b`, and set `all` with a child for each, behind a proxy.
async fn with_two_children(bed: &Bed) -> (Proxy, Operator, Receiver) {
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("a", 1).await;
    bed.deployment("b", 1).await;
    let (proxy, kubeconfig) = bed.through_proxy().await;
    let operator = Operator::start(bed, Settings::default().kubeconfig(kubeconfig)).await;
    bed.set("all", replicas(json!({}))).await;
    for name in ["a", "b"] {
        bed.child_history("all", name, is_quiet).await;
    }
    (proxy, operator, receiver)
}

fn exclude(names: &[&str]) -> Value {
    json!({ "spec": { "target": { "names": { "exclude": names } } } })
}

#[tokio::test]
async fn rejected_deletion_waits_and_delays_no_other_write() {
    let bed = Bed::shared("sets-undeleted").await;
    let (proxy, _operator, _receiver) = with_two_children(&bed).await;
    let deletions = Match::verb(Verb::Delete).resource("trackedfields");
    let fault = proxy.inject(
        deletions,
        Times::Always,
        Fault::status(StatusCode::FORBIDDEN),
    );
    bed.patch::<TrackedFieldSet>("all", exclude(&["a"])).await;
    bed.set_reads("all", "Forbidden").await;
    // Every event and every change of the set begins a reconcile.
    bed.deployment("c", 1).await;
    bed.children_of("all", &["a", "b", "c"]).await;
    bed.patch::<TrackedFieldSet>("all", exclude(&["a", "x"]))
        .await;
    bed.set_reads("all", "Forbidden").await;
    assert!(fault.hits() <= 2, "{} deletions", fault.hits());
    fault.cancel();
    bed.children_of("all", &["b", "c"]).await;
    bed.set_reads("all", "Ready").await;
}

#[tokio::test]
async fn single_failed_write_is_not_reported() {
    let bed = Bed::shared("sets-hiccup").await;
    let (proxy, _operator, _receiver) = with_two_children(&bed).await;
    bed.set_reads("all", "Ready").await;
    let creations = Match::verb(Verb::Create).resource("trackedfields");
    let fault = proxy.inject(
        creations,
        Times::First(1),
        Fault::status(StatusCode::INTERNAL_SERVER_ERROR),
    );
    bed.deployment("c", 1).await;
    bed.children_of("all", &["a", "b", "c"]).await;
    bed.set_reads("all", "Ready").await;
    assert_eq!(fault.hits(), 1);
    assert!(bed.events("all", "WriteFailed").await.is_empty());
}

/// The version of the child is a precondition of its deletion.
#[tokio::test]
async fn deletion_of_a_changed_child_waits_for_the_watch() {
    let bed = Bed::shared("sets-changed").await;
    let (proxy, _operator, _receiver) = with_two_children(&bed).await;
    bed.set_reads("all", "Ready").await;
    let frozen = proxy.freeze_running(Match::watch("trackedfields"));
    let child = bed.children("all").await.remove("a").unwrap();
    let labels = json!({ "metadata": { "labels": { "changed": "yes" } } });
    bed.patch::<TrackedField>(&child.name_any(), labels).await;
    frozen.wait_for_hits(1, SOON).await.unwrap();
    bed.patch::<TrackedFieldSet>("all", exclude(&["a"])).await;
    let deletions = Match::verb(Verb::Delete).resource("trackedfields");
    let attempts = |requests: &[Arc<Seen>]| {
        let deletions = requests.iter().filter(|it| deletions.matches(&it.request));
        deletions.map(|it| it.at).collect::<Vec<_>>()
    };
    let seen = proxy
        .wait_for(SOON, |requests| attempts(requests).len() == 3)
        .await
        .unwrap();
    // A recheck that an earlier reconcile has scheduled may repeat the first attempt sooner.
    let times = attempts(&seen);
    let between = times[2].duration_since(times[0]);
    assert!(between >= RECHECK_INTERVAL, "twice within {between:?}");
    bed.children_of("all", &["a", "b"]).await;

    frozen.cancel();
    bed.children_of("all", &["b"]).await;
    bed.set_reads("all", "Ready").await;
}

#[tokio::test]
async fn set_whose_child_cannot_be_read_delays_no_other_set() {
    let bed = Bed::shared("sets-busy").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    let (proxy, kubeconfig) = bed.through_proxy().await;
    let settings = Settings::default().kubeconfig(kubeconfig);
    let settings = settings
        .flag("--reconcile-timeout=1h")
        .flag("--api-timeout=1h");
    let _operator = Operator::start(&bed, settings).await;
    bed.set("busy", replicas(json!({}))).await;
    bed.child_history("busy", "web", is_quiet).await;
    bed.set_reads("busy", "Ready").await;
    let reads = Match::verb(Verb::Get).resource("trackedfields");
    let reads = reads.and(|request| {
        let name = request.name.as_deref().unwrap_or_default();
        name.starts_with("busy-")
    });
    let hang = proxy.inject(reads, Times::Always, Fault::Hang);
    let child = bed.children("busy").await.remove("web").unwrap();
    let drift = json!({ "spec": { "historyLimit": 3 } });
    bed.patch::<TrackedField>(&child.name_any(), drift).await;
    hang.wait_for_hits(1, SOON).await.unwrap();

    bed.webhook("other", &receiver.url()).await;
    let contact_point = json!({ "template": { "contactPoint": "other" } });
    bed.set("other", replicas(contact_point)).await;
    bed.set_reads("other", "Ready").await;
    bed.child_history("other", "web", is_quiet).await;
}

#[tokio::test]
async fn write_that_hangs_is_reported_and_delays_no_other_write() {
    let bed = Bed::shared("sets-hanging").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("a", 1).await;
    bed.deployment("b", 1).await;
    let (proxy, kubeconfig) = bed.through_proxy().await;
    let settings = Settings::default().kubeconfig(kubeconfig);
    let settings = settings
        .flag("--reconcile-timeout=12s")
        .flag("--api-timeout=1h");
    let _operator = Operator::start(&bed, settings).await;
    bed.set("all", replicas(json!({}))).await;
    bed.set_reads("all", "Ready").await;
    let hanging = bed.children("all").await["a"].name_any();
    let writes = Match::writes().resource("trackedfields").name(&hanging);
    let hang = proxy.inject(writes.subresource(""), Times::Always, Fault::Hang);

    let quiet = json!({ "spec": { "template": { "historyLimit": 3 } } });
    bed.patch::<TrackedFieldSet>("all", quiet).await;
    let message = bed.set_reads("all", "WriteFailed").await;
    assert!(
        message.contains("could not be written in time"),
        "{message}"
    );
    let changed = bed.children("all").await;
    assert_eq!(changed["b"].spec.notification.history_limit, Some(3));
    assert_ne!(changed["a"].spec.notification.history_limit, Some(3));
    hang.cancel();
    bed.set_reads("all", "Ready").await;
    assert_eq!(
        bed.children("all").await["a"]
            .spec
            .notification
            .history_limit,
        Some(3)
    );
}

#[tokio::test]
async fn discovery_that_hangs_is_reported_and_retried() {
    let bed = Bed::shared("sets-undiscovered").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    let (proxy, kubeconfig) = bed.through_proxy().await;
    let settings = Settings::default().kubeconfig(kubeconfig);
    let settings = settings
        .flag("--reconcile-timeout=4s")
        .flag("--api-timeout=1h");
    let _operator = Operator::start(&bed, settings).await;
    bed.ready("hook").await;
    let discovery = Match::verb(Verb::Other).and(|request| request.path == "/apis/batch/v1");
    let discovery = proxy.inject(discovery, Times::Always, Fault::Hang);
    let target = json!({ "apiVersion": "batch/v1", "kind": "CronJob", "resource": "cronjobs" });
    let spec = json!({ "target": target, "fields": ["{.spec.schedule}"] });
    bed.set("all", replicas(spec)).await;
    let message = bed.set_reads("all", "TargetUnreadable").await;
    assert!(message.contains("could not be read in time"), "{message}");
    discovery.cancel();
    bed.set_reads("all", "NothingMatches").await;
}

#[tokio::test]
async fn nothing_leaves_while_the_kind_is_not_served() {
    let bed = Bed::shared("sets-crd").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    let widgets = Widgets::new(&bed);
    widgets.serve(&bed).await;
    widgets.grant(&bed).await;
    widgets.put_text(&bed, "one", r#"{"size":1}"#).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let target = json!({
        "kind": "Widget", "apiVersion": format!("{}/v1", widgets.group), "resource": "widgets",
    });
    let spec = json!({ "target": target, "fields": ["{.spec.size}"] });
    bed.set("all", replicas(spec)).await;
    bed.child_history("all", "one", is_quiet).await;
    bed.set_reads("all", "Ready").await;
    let before = bed.children("all").await;

    widgets.end(&bed).await;
    bed.set_reads("all", "ResourceMismatch").await;
    let now = bed.children_of("all", &["one"]).await;
    assert_eq!(now["one"].uid(), before["one"].uid());
    widgets.serve(&bed).await;
    widgets.put_text(&bed, "one", r#"{"size":2}"#).await;
    bed.set_reads("all", "Ready").await;
    let is_seen = |history: &[Entry]| {
        let last = history.last().and_then(|last| last.value.as_deref());
        last == Some("2")
    };
    bed.child_history("all", "one", is_seen).await;
    let now = bed.children_of("all", &["one"]).await;
    assert_eq!(now["one"].uid(), before["one"].uid(), "the child goes on");
}

#[tokio::test]
async fn resource_that_is_created_while_no_operator_runs_is_sent() {
    let bed = Bed::shared("sets-downtime").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    let mut operator = Operator::start(&bed, Settings::default()).await;
    bed.set("all", replicas(json!({}))).await;
    bed.child_history("all", "web", is_quiet).await;
    bed.set_reads("all", "Ready").await;
    operator.kill();
    // A second later than the set, as the apiserver rounds.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    bed.deployment("api", 3).await;
    operator.restart();
    bed.child_history("all", "api", |history| {
        history.len() == 1 && !history[0].is_pending() && history[0].skipped.is_none()
    })
    .await;
    let changes = changes(&receiver);
    let sent: Vec<_> = changes.iter().map(|change| &change["name"]).collect();
    assert_eq!(sent, ["api"], "web was known");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_at_any_write_sends_what_when_selects_with_the_token() {
    // A kill before a write equals a kill after the previous write.
    let points = [Point::AfterApplied, Point::AfterAnswer];
    let writes = kill_at_each_write(&points, async |point, write| {
        Box::pin(filtered(point, write)).await
    });
    let writes = Box::pin(writes).await;
    // At least: the contact point; two changes with their deliveries; a change that is not sent.
    assert!(
        writes.iter().all(|writes| *writes >= 6),
        "{writes:?} writes"
    );
}

/// A Deployment is scaled twice, `when` selects the second change, and the token goes into the body, while the operator is
/// killed at this write. Returns whether the write happened, and the history.
async fn filtered(point: Point, write: u64) -> (bool, Value) {
    const TOKEN: &str = "T0kenOfTheKillTest";
    let bed = Bed::without_controllers("when-killed").await;
    let receiver = Receiver::start().unwrap();
    bed.secret("token", TOKEN).await;
    let body = r#"{"key": "{{ token }}", "value": {{ value | tojson }}}"#;
    let webhook = json!({ "url": receiver.url(), "tokenIn": "Body", "body": body });
    let token = json!({ "secretName": "token", "key": "token" });
    let spec = json!({ "type": "Webhook", "apiToken": token, "webhookSpec": webhook });
    bed.point("hook", spec).await;
    bed.deployment("web", 1).await;
    let target = json!({ "kind": "Deployment", "namespace": bed.namespace, "name": "web" });
    let scene = async {
        let spec = json!({ "target": target, "field": "replicas", "contactPoint": "hook", "when": "value != '2'" });
        bed.create::<TrackedField>("web", json!({ "spec": spec }))
            .await;
        let mut history = Vec::new();
        for (index, replicas) in [1, 2, 3].into_iter().enumerate() {
            if index > 0 {
                bed.scale("web", replicas).await;
            }
            let is_finished = |field: &TrackedField| {
                let history = field.history().unwrap();
                history.len() == index + 1 && !history.iter().any(Entry::is_pending)
            };
            let field = bed.until("web", "is finished", is_finished).await;
            history = field.history().unwrap();
        }
        let shown =
            |entry: &Entry| json!([entry.action, entry.value, entry.skipped, entry.delivery]);
        Value::Array(history.iter().map(shown).collect())
    };
    let writes = Match::writes().except_resource("events");
    let settings = Settings::default().flag("--controllers=contactpoint,trackedfield");
    let killed = Box::pin(kill_at_write(&bed, settings, writes, point, write, scene)).await;
    let sent: Vec<_> = accepted(&receiver)
        .iter()
        .map(|request| request.json().unwrap())
        .collect();
    assert!(sent.iter().all(|body| body["key"] == TOKEN), "{sent:?}");
    for (value, is_sent) in [("1", true), ("2", false), ("3", true)] {
        assert_eq!(
            sent.iter().any(|body| body["value"] == value),
            is_sent,
            "{value}: {sent:?}"
        );
    }
    killed
}

/// Without its children, the set would create them again.
#[tokio::test]
async fn set_waits_while_its_children_cannot_be_listed() {
    let bed = Bed::shared("sets-blind").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("a", 1).await;
    let mut leader = Operator::start(&bed, candidate(0)).await;
    leader.leads().await;
    let (proxy, kubeconfig) = bed.through_proxy().await;
    let standby = Operator::start(&bed, candidate(1).kubeconfig(kubeconfig)).await;
    let denied = proxy.forbid(&Match::watches_and_lists("trackedfields"));
    leader.kill();
    standby.leads().await;
    standby.reports_denied_list(&denied).await;
    bed.track("by-hand", "Deployment", "a", "replicas", "hook")
        .await;
    bed.set("all", replicas(json!({}))).await;
    let message = bed.set_reads("all", "TrackedFieldsNotServed").await;
    assert!(message.contains("TrackedFields"), "{message}");
    denied.cancel();
    bed.set_reads("all", "Ready").await;
    assert!(bed.children("all").await.is_empty());
}

/// Waits until a child is as the set made it, and returns it.
async fn child_is_restored(bed: &Bed, made: &TrackedField) -> TrackedField {
    let parts = |child: &TrackedField| {
        let owners = child.metadata.owner_references.clone();
        (child.spec.clone(), child.labels().clone(), owners)
    };
    let what = "is as the set made it";
    let restored = |child: &TrackedField| parts(child) == parts(made);
    bed.until(&made.name_any(), what, restored).await
}

#[tokio::test]
async fn edited_child_replaces_no_sibling() {
    let bed = Bed::shared("sets-edited").await;
    let (_proxy, _operator, _receiver) = with_two_children(&bed).await;
    let fields = json!({ "spec": { "fields": ["replicas", "images"] } });
    bed.patch::<TrackedFieldSet>("all", fields).await;
    let all = async || {
        let by_field =
            |it: TrackedField| ((it.spec.target.name.clone(), it.spec.field.clone()), it);
        let children = bed.all_children("all").await;
        children
            .into_iter()
            .map(by_field)
            .collect::<BTreeMap<_, _>>()
    };
    until("each field of each target has a child", SOON, async || {
        Ok((all().await.len() == 4).then_some(()))
    })
    .await
    .unwrap();
    bed.set_reads("all", "Ready").await;
    let before = all().await;
    let child = |target: &str, field: &str| &before[&(target.to_owned(), field.to_owned())];
    for (edited, spec) in [
        (child("a", "images"), json!({ "field": "replicas" })),
        (child("b", "images"), json!({ "target": { "name": "a" } })),
    ] {
        let spec = json!({ "spec": spec });
        bed.patch::<TrackedField>(&edited.name_any(), spec).await;
        child_is_restored(&bed, edited).await;
    }
    bed.set_reads("all", "Ready").await;
    let uids = |children: &BTreeMap<_, TrackedField>| {
        let uids = children
            .iter()
            .map(|(key, it)| (Clone::clone(key), it.uid()));
        uids.collect::<BTreeMap<(String, String), _>>()
    };
    assert_eq!(uids(&all().await), uids(&before));
}

/// Somebody who may not read the target of a child could otherwise read it through a context that they set together with
/// a target of their own.
#[tokio::test]
async fn child_with_another_target_loses_what_was_set_with_it() {
    let bed = Bed::shared("sets-retargeted").await;
    let (_proxy, _operator, _receiver) = with_two_children(&bed).await;
    bed.set_reads("all", "Ready").await;
    let child = bed.children("all").await.remove("a").unwrap();
    let name = child.name_any();
    let mut spec = json!({
        "target": { "name": "b" }, "context": { "x": "{.spec.paused}" }, "template": "x", "when": "false", "suspend": true,
    });
    bed.patch::<TrackedField>(&name, json!({ "spec": spec }))
        .await;
    let restored = child_is_restored(&bed, &child).await;
    assert_eq!(restored.uid(), child.uid());

    // An apply of another manager, which would also own its fields after the set's apply.
    spec["target"] = json!({ "kind": "Deployment", "namespace": bed.namespace, "name": "b" });
    let applied = json!({
        "apiVersion": TrackedField::api_version(&()), "kind": "TrackedField", "metadata": { "name": name }, "spec": spec,
    });
    let parameters = PatchParams::apply("them").force();
    let applied = bed
        .api::<TrackedField>()
        .patch(&name, &parameters, &Patch::Apply(&applied))
        .await
        .unwrap();
    assert_eq!(applied.spec.notification.suspend, Some(true));
    child_is_restored(&bed, &child).await;

    // The policy admits a change without another target for this one, so the change stays.
    let suspend = json!({ "spec": { "suspend": true } });
    bed.patch::<TrackedField>(&name, suspend).await;
    let drift = json!({ "spec": { "historyLimit": 3 } });
    bed.patch::<TrackedField>(&name, drift).await;
    let what = "is corrected";
    let limit = child.spec.notification.history_limit;
    let corrected = bed
        .until::<TrackedField>(&name, what, |it| {
            it.spec.notification.history_limit == limit
        })
        .await;
    assert_eq!(corrected.spec.notification.suspend, Some(true));
    bed.set_reads("all", "Ready").await;
}

#[tokio::test]
async fn copy_of_a_child_does_not_replace_it() {
    let bed = Bed::shared("sets-copied").await;
    let (_proxy, _operator, _receiver) = with_two_children(&bed).await;
    let original = bed.children("all").await.remove("a").unwrap();
    let mut copy = original.clone();
    copy.metadata = ObjectMeta {
        name: Some("a-copy".into()),
        labels: original.metadata.labels.clone(),
        annotations: original.metadata.annotations.clone(),
        owner_references: original.metadata.owner_references.clone(),
        ..ObjectMeta::default()
    };
    bed.api::<TrackedField>()
        .create(&PostParams::default(), &copy)
        .await
        .unwrap();
    let fields = bed.api::<TrackedField>();
    until("the set deletes the copy", SOON, async || {
        Ok(fields.get_opt("a-copy").await?.is_none().then_some(()))
    })
    .await
    .unwrap();
    let child = fields.get(&original.name_any()).await.unwrap();
    assert_eq!(child.uid(), original.uid());
}

#[tokio::test]
async fn adopted_tracked_field_replaces_the_child() {
    let bed = Bed::shared("sets-replaced").await;
    let (_proxy, _operator, _receiver) = with_two_children(&bed).await;
    let other = Receiver::start().unwrap();
    bed.webhook("other", &other.url()).await;
    bed.track("mine", "Deployment", "a", "replicas", "other")
        .await;
    let mine = bed.delivered("mine", &[("Created", Some("1"))]).await;
    let consent = json!({ "metadata": { "annotations": {
        "quartermaster.dev/adopt-by": format!("{}/all", bed.namespace),
    } } });
    bed.patch::<TrackedField>("mine", consent).await;
    let what = "the TrackedField is the only child of its target";
    until(what, SOON, async || {
        let children = bed.all_children("all").await;
        let of_a = children.iter().filter(|it| it.spec.target.name == "a");
        let names: Vec<_> = of_a.map(ResourceExt::name_any).collect();
        Ok((names == ["mine"]).then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(bed.history("mine").await[0].id, mine[0].id);

    // The name of an adopted child does not tell what it tracks, and it is changed back nevertheless.
    bed.set_reads("all", "Ready").await;
    let mine = bed.api::<TrackedField>().get("mine").await.unwrap();
    for edit in [
        json!({ "field": "images" }),
        json!({ "target": { "name": "b" } }),
    ] {
        bed.patch::<TrackedField>("mine", json!({ "spec": edit }))
            .await;
        let restored = child_is_restored(&bed, &mine).await;
        assert_eq!(restored.uid(), mine.uid());
    }
    assert_eq!(bed.all_children("all").await.len(), 2);
}

#[tokio::test]
async fn second_consent_replaces_no_adopted_tracked_field() {
    let bed = Bed::shared("sets-adopted-once").await;
    let (_proxy, _operator, _receiver) = with_two_children(&bed).await;
    let other = Receiver::start().unwrap();
    bed.webhook("other", &other.url()).await;
    let mut uids = Vec::new();
    for name in ["x", "y", "z"] {
        let field = bed.track(name, "Deployment", "a", "replicas", "other");
        uids.push((name, field.await.uid()));
        bed.delivered(name, &[("Created", Some("1"))]).await;
    }
    let adopt = async |name: &str| {
        let consent = json!({ "metadata": { "annotations": {
            "quartermaster.dev/adopt-by": format!("{}/all", bed.namespace),
        } } });
        bed.patch::<TrackedField>(name, consent).await;
    };
    adopt("y").await;
    let what = "is adopted";
    let is_adopted = |field: &TrackedField| field.metadata.owner_references.is_some();
    bed.until("y", what, is_adopted).await;
    adopt("x").await;
    adopt("z").await;
    // A reconcile of the whole set passes.
    bed.patch::<TrackedFieldSet>("all", json!({ "spec": { "maxTargets": 400 } }))
        .await;
    bed.set_reads("all", "Ready").await;

    // The set changes an edited child back, and adopts no other instead.
    let adopted = bed.api::<TrackedField>().get("y").await.unwrap();
    bed.patch::<TrackedField>("y", json!({ "spec": { "field": "images" } }))
        .await;
    child_is_restored(&bed, &adopted).await;
    bed.set_reads("all", "Ready").await;
    for (name, uid) in uids {
        let field = bed.api::<TrackedField>().get(name).await.unwrap();
        assert_eq!(field.uid(), uid, "{name}");
        assert_eq!(is_adopted(&field), name == "y", "{name}");
    }
}

#[tokio::test]
async fn tracked_field_of_another_controller_is_not_adopted() {
    let bed = Bed::shared("sets-controlled").await;
    let (_proxy, _operator, _receiver) = with_two_children(&bed).await;
    let child = bed.children("all").await.remove("a").unwrap();
    let owner = bed
        .create::<ConfigMap>("owner", json!({}))
        .await
        .controller_owner_ref(&())
        .unwrap();
    let other = Receiver::start().unwrap();
    bed.webhook("other", &other.url()).await;
    bed.track("mine", "Deployment", "a", "replicas", "other")
        .await;
    bed.delivered("mine", &[("Created", Some("1"))]).await;
    let metadata = json!({ "metadata": {
        "annotations": { "quartermaster.dev/adopt-by": format!("{}/all", bed.namespace) },
        "ownerReferences": [owner],
    } });
    bed.patch::<TrackedField>("mine", metadata).await;
    bed.scale("a", 2).await;
    let sent = [("Created", Some("1")), ("Updated", Some("2"))];
    bed.delivered("mine", &sent).await;
    bed.child_history("all", "a", |history| {
        history.last().and_then(|it| it.value.as_deref()) == Some("2")
    })
    .await;
    let same = bed.children("all").await.remove("a").unwrap();
    assert_eq!(same.uid(), child.uid());
    bed.set_reads("all", "Ready").await;
}

/// The write of a new selection must not store the condition of a status that waits: its Event would be lost.
#[tokio::test]
async fn waiting_status_is_reported_after_a_change_of_the_fields() {
    let bed = Bed::shared("sets-waiting").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("a", 1).await;
    let settings = Settings::default().flag("--set-status-period=15s");
    let operator = Operator::start(&bed, settings).await;
    bed.set("all", replicas(json!({}))).await;
    bed.set_reads("all", "Ready").await;
    let reconciled = async || reconciles(&operator.metrics().await, "trackedfieldset");
    let before = reconciled().await;
    bed.delete::<ContactPoint>("hook").await;
    until("the set is reconciled", SOON, async || {
        Ok((reconciled().await > before).then_some(()))
    })
    .await
    .unwrap();
    let fields = json!({ "spec": { "fields": ["replicas", "images"] } });
    bed.patch::<TrackedFieldSet>("all", fields).await;
    bed.event("all", "ContactPointNotFound").await;
}

/// The label or the controller reference alone proves the ownership.
#[tokio::test]
async fn child_without_a_part_of_its_ownership_gets_it_back() {
    let bed = Bed::shared("sets-proofs").await;
    let (_proxy, _operator, _receiver) = with_two_children(&bed).await;
    bed.set_reads("all", "Ready").await;
    let child = bed.children("all").await.remove("a").unwrap();
    for metadata in [
        json!({ "labels": { "quartermaster.dev/owner-uid": null } }),
        json!({ "labels": { "quartermaster.dev/set": null } }),
        json!({ "ownerReferences": null }),
        json!({ "annotations": { "quartermaster.dev/owner": null } }),
    ] {
        let edit = json!({ "metadata": metadata, "spec": { "contactPoint": "other" } });
        bed.patch::<TrackedField>(&child.name_any(), edit).await;
        child_is_restored(&bed, &child).await;
        // The child may have reported the missing contact point before.
        let is_restored = |it: &TrackedField| it.annotations() == child.annotations();
        let what = "has the annotations of before";
        bed.until(&child.name_any(), what, is_restored).await;
    }
    let set = bed.api::<TrackedFieldSet>().get("all").await.unwrap();
    assert_eq!(set.status.unwrap().covered, Some(0));
}

#[tokio::test]
async fn restart_leaves_the_status_of_a_set() {
    let bed = Bed::shared("sets-restarted").await;
    let (proxy, mut operator, _receiver) = with_two_children(&bed).await;
    bed.set_reads("all", "Ready").await;
    let before: TrackedFieldSet = bed.api().get("all").await.unwrap();
    operator.kill();
    let slow = proxy.freeze(Match::watch("deployments"));
    operator.restart();
    slow.wait_for_hits(1, SOON).await.unwrap();
    // Transition times have seconds.
    tokio::time::sleep(Duration::from_secs(2)).await;
    slow.cancel();
    // The operator follows the set again.
    bed.deployment("c", 1).await;
    bed.children_of("all", &["a", "b", "c"]).await;
    bed.set_reads("all", "Ready").await;
    let after: TrackedFieldSet = bed.api().get("all").await.unwrap();
    let since = |set: &TrackedFieldSet| {
        let conditions = &set.status.as_ref().unwrap().conditions;
        conditions[0].last_transition_time.clone()
    };
    assert_eq!(since(&after), since(&before), "the set was always ready");
}
