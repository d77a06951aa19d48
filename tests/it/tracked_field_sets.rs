//! Sets: selected resources, messages, deletions, and owners of `TrackedField`s.

use std::collections::BTreeMap;

use http::StatusCode;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ResourceQuota};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PropagationPolicy};
use kube::{Api, ResourceExt};
use qm_api::tracked_field::{ChangeAction, Entry, Skipped};
use qm_api::tracked_field_set::SET;
use qm_api::{TrackedField, TrackedFieldSet};
use qm_core::conditions;
use qm_runtime::ObjectKey;
use qm_runtime::watch::ResourceName;
use quartermaster::controllers::tracked_field_set::child;
use serde_json::{Value, json};
use testbed::Options;
use testbed::proxy::{Ending, Fault, Match, Times};
use testbed::receiver::{Receiver, Reply};
use testbed::wait::until;

use crate::support::{Bed, Operator, SOON, Settings, changes, fill_tracker_role, texts};

mod faults;
mod limits;

/// Spec of a set that tracks the replicas of Deployments of its own namespace.
fn replicas(more: Value) -> Value {
    let mut spec = json!({
        "target": { "kind": "Deployment" },
        "fields": ["replicas"],
        "template": { "contactPoint": "hook" },
    });
    merge(&mut spec, more);
    json!({ "spec": spec })
}

/// Returns a change of a set's spec to a resource that the apiserver does not serve.
fn unserved() -> Value {
    let target = json!({
        "kind": "Unserved", "apiVersion": "unserved.example.com/v1", "resource": "unserveds",
    });
    json!({ "spec": { "target": target, "fields": ["{.spec.size}"] } })
}

fn merge(into: &mut Value, from: Value) {
    match from {
        Value::Object(from) if into.is_object() => {
            for (name, value) in from {
                merge(&mut into[name], value);
            }
        }
        from => *into = from,
    }
}

impl Bed {
    async fn set(&self, name: &str, spec: Value) -> TrackedFieldSet {
        self.create(name, spec).await
    }

    /// Waits until the condition `Ready` has this reason and describes the current spec; returns its message.
    async fn set_reads(&self, name: &str, reason: &str) -> String {
        let set = self
            .until(name, reason, |set: &TrackedFieldSet| {
                let generation = set.metadata.generation;
                let status = set.status.as_ref();
                status.is_some_and(|status| {
                    status.observed_generation == generation
                        && conditions::ready(&status.conditions)
                            .is_some_and(|ready| ready.reason == reason)
                })
            })
            .await;
        let conditions = set.status.unwrap().conditions;
        conditions::ready(&conditions).unwrap().message.to_owned()
    }

    /// Returns the children of a set by the name of their target.
    async fn children(&self, set: &str) -> BTreeMap<String, TrackedField> {
        let by_target = |child: TrackedField| (child.spec.target.name.clone(), child);
        let children = self.all_children(set).await.into_iter();
        children.map(by_target).collect()
    }

    /// Returns the children of a set.
    async fn all_children(&self, set: &str) -> Vec<TrackedField> {
        let params = ListParams::default().labels(&format!("{SET}={set}"));
        let children = self.api::<TrackedField>().list(&params).await.unwrap();
        children.items
    }

    /// Waits until the set has children for exactly these targets.
    async fn children_of(&self, set: &str, targets: &[&str]) -> BTreeMap<String, TrackedField> {
        let what = format!("children of {set}: {targets:?}");
        until(what, SOON, async || {
            let children = self.children(set).await;
            let names: Vec<_> = children.keys().map(String::as_str).collect();
            anyhow::ensure!(names == targets, "{names:?}");
            Ok(Some(children))
        })
        .await
        .unwrap()
    }

    /// Waits until the history of the child for `target` satisfies `look`.
    async fn child_history(
        &self,
        set: &str,
        target: &str,
        look: impl Fn(&[Entry]) -> bool,
    ) -> Vec<Entry> {
        until(format!("history of {set}'s {target}"), SOON, async || {
            let children = self.children(set).await;
            let Some(child) = children.get(target) else {
                anyhow::bail!("no child");
            };
            let history = child.history()?;
            anyhow::ensure!(look(&history), "{history:#?}");
            Ok(Some(history))
        })
        .await
        .unwrap()
    }

    pub(crate) async fn label_namespace(&self, name: &str, labels: Value) {
        Api::<Namespace>::all(self.client.clone())
            .patch(
                name,
                &PatchParams::default(),
                &Patch::Merge(json!({ "metadata": { "labels": labels } })),
            )
            .await
            .unwrap();
    }
}

fn is_quiet(history: &[Entry]) -> bool {
    matches!(history, [first] if first.skipped == Some(Skipped::Initial) && first.delivery.is_none())
}

#[tokio::test]
async fn existing_resources_are_quiet_and_changes_and_new_ones_are_sent() {
    let bed = Bed::shared("sets").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    bed.deployment("web-canary", 1).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let spec =
        json!({ "target": { "names": { "include": ["web*", "api"], "exclude": ["*-canary"] } } });
    bed.set("all", replicas(spec)).await;
    bed.children_of("all", &["web"]).await;
    bed.child_history("all", "web", is_quiet).await;
    bed.set_reads("all", "Ready").await;

    bed.scale("web", 2).await;
    let history = bed
        .child_history("all", "web", |history| {
            history.len() == 2 && !history[1].is_pending()
        })
        .await;
    assert_eq!(history[1].action, ChangeAction::Updated);
    // A second later than the set, as the apiserver rounds.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    bed.deployment("api", 3).await;
    bed.deployment("db", 3).await;
    let history = bed
        .child_history("all", "api", |history| {
            history.len() == 1 && !history[0].is_pending()
        })
        .await;
    assert_eq!(history[0].skipped, None);
    let set = bed.api::<TrackedFieldSet>().get("all").await.unwrap();
    let children = bed.children("all").await;
    let child = &children["api"];
    assert_eq!(
        child.metadata.owner_references.as_ref().unwrap()[0].uid,
        set.uid().unwrap()
    );
    assert_eq!(child.spec.notification.history_limit, Some(10));
    let texts = texts(&receiver);
    assert_eq!(
        texts.len(),
        3,
        "the test message and two changes: {texts:?}"
    );

    // A child that somebody deletes comes back without a message, and a change of it is corrected.
    bed.delete::<TrackedField>(&child.name_any()).await;
    let before = child.uid();
    until("the child is created again", SOON, async || {
        let children = bed.children("all").await;
        Ok(children
            .get("api")
            .is_some_and(|it| it.uid() != before)
            .then_some(()))
    })
    .await
    .unwrap();
    bed.child_history("all", "api", is_quiet).await;
    bed.patch::<TrackedField>(
        &child.name_any(),
        json!({ "spec": { "historyLimit": 7, "suspend": true } }),
    )
    .await;
    let child = bed
        .until(&child.name_any(), "is corrected", |it: &TrackedField| {
            it.spec.notification.history_limit == Some(10)
        })
        .await;
    assert_eq!(
        child.spec.notification.suspend,
        Some(true),
        "belongs to whoever sets it"
    );
}

#[tokio::test]
async fn selection_follows_labels_of_resources_and_namespaces() {
    let bed = Bed::on_own_plane("sets-labels").await;
    let other = Bed::on(bed.plane.clone(), "shop").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    for (at, name) in [(&bed, "own"), (&other, "a"), (&other, "b")] {
        at.deployment(name, 1).await;
    }
    other
        .patch::<Deployment>("a", json!({ "metadata": { "labels": { "tier": "web" } } }))
        .await;
    let _operator = Operator::start(&bed, Settings::default().whole_cluster()).await;
    let spec = json!({ "target": {
        "selector": { "matchLabels": { "tier": "web" } },
        "namespaces": { "selector": { "matchLabels": { "env": "prod" } } },
    } });
    bed.set("labels", replicas(spec)).await;
    let message = bed.set_reads("labels", "NothingMatches").await;
    assert!(message.contains("no resource matches"), "{message}");

    other
        .label_namespace(&other.namespace, json!({ "env": "prod" }))
        .await;
    bed.children_of("labels", &["a"]).await;
    bed.child_history("labels", "a", is_quiet).await;
    other
        .patch::<Deployment>("b", json!({ "metadata": { "labels": { "tier": "web" } } }))
        .await;
    bed.children_of("labels", &["a", "b"]).await;
    bed.child_history("labels", "b", is_quiet).await;
    other
        .patch::<Deployment>("a", json!({ "metadata": { "labels": { "tier": "db" } } }))
        .await;
    bed.children_of("labels", &["b"]).await;
    other
        .label_namespace(&other.namespace, json!({ "env": null }))
        .await;
    bed.children_of("labels", &[]).await;
    bed.set_reads("labels", "NothingMatches").await;
    assert_eq!(texts(&receiver).len(), 1, "the test message");

    let named = json!({ "spec": { "target": { "selector": null, "namespaces": { "selector": null, "names": [other.namespace, "nowhere"] } } } });
    bed.patch::<TrackedFieldSet>("labels", named).await;
    bed.children_of("labels", &["a", "b"]).await;
    let message = bed.set_reads("labels", "NamespaceNotFound").await;
    assert!(
        message.contains("namespaces not found: nowhere"),
        "{message}"
    );
}

#[tokio::test]
async fn child_of_a_deleted_resource_reports_that_and_leaves() {
    let bed = Bed::shared("sets-gone").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    bed.deployment("api", 1).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.set("keep", replicas(json!({}))).await;
    bed.set(
        "drop",
        replicas(json!({ "keepSeconds": 0, "template": { "contactPoint": "other" } })),
    )
    .await;
    bed.webhook("other", &receiver.url()).await;
    for set in ["keep", "drop"] {
        bed.children_of(set, &["api", "web"]).await;
        bed.child_history(set, "web", is_quiet).await;
    }
    receiver.always(Reply::status(StatusCode::SERVICE_UNAVAILABLE));
    bed.delete::<Deployment>("web").await;
    let deleted = |history: &[Entry]| {
        history
            .last()
            .is_some_and(|last| last.action == ChangeAction::Deleted)
    };
    for set in ["keep", "drop"] {
        let history = bed.child_history(set, "web", deleted).await;
        assert!(history.last().unwrap().is_pending());
    }
    bed.set_reads("drop", "DeliveryFailing").await;
    let children = bed.children_of("drop", &["api", "web"]).await;
    for child in children.values() {
        let waiting = child.annotations().get("quartermaster.dev/waiting");
        assert_eq!(waiting, None, "the set alone reports the receiver");
    }
    receiver.always(Reply::ok());
    bed.children_of("drop", &["api"]).await;
    bed.children_of("keep", &["api", "web"]).await;
    let keeps = bed.api::<TrackedFieldSet>().get("keep").await.unwrap();
    assert_eq!(keeps.status.unwrap().leaving, Some(1));

    // The child that stayed goes on when the resource is created again.
    bed.deployment("web", 5).await;
    let history = bed
        .child_history("keep", "web", |history| {
            history
                .last()
                .is_some_and(|last| last.value.as_deref() == Some("5"))
        })
        .await;
    assert_eq!(
        history.iter().map(|entry| entry.action).collect::<Vec<_>>(),
        [
            ChangeAction::Created,
            ChangeAction::Deleted,
            ChangeAction::Created
        ]
    );
}

/// Nothing but the receiver's answers wakes the set.
#[tokio::test]
async fn set_reports_the_failure_and_the_recovery_of_its_receiver() {
    let bed = Bed::shared("sets-outage").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.set("all", replicas(json!({}))).await;
    bed.set_reads("all", "Ready").await;
    receiver.always(Reply::status(StatusCode::SERVICE_UNAVAILABLE));
    bed.scale("web", 2).await;
    let message = bed.set_reads("all", "DeliveryFailing").await;
    assert!(message.contains("the endpoint failed (503"), "{message}");
    receiver.always(Reply::status(StatusCode::INTERNAL_SERVER_ERROR));
    bed.until(
        "all",
        "reports the present cause",
        |set: &TrackedFieldSet| {
            let conditions = &set.status.as_ref().unwrap().conditions;
            conditions::ready(conditions)
                .is_some_and(|ready| ready.message.contains("the endpoint failed (500"))
        },
    )
    .await;
    receiver.always(Reply::ok());
    bed.set_reads("all", "Ready").await;
}

#[tokio::test]
async fn hand_made_tracked_field_and_the_older_set_win() {
    let bed = Bed::shared("sets-cover").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    bed.deployment("api", 1).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.track("mine", "Deployment", "web", "replicas", "hook")
        .await;
    bed.set("first", replicas(json!({}))).await;
    bed.children_of("first", &["api"]).await;
    bed.set_reads("first", "Ready").await;
    let covered = async |set: &str, number: i64| {
        bed.until(set, "covered", |set: &TrackedFieldSet| {
            set.status.as_ref().and_then(|it| it.covered) == Some(number)
        })
        .await;
    };
    covered("first", 1).await;
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    bed.set("second", replicas(json!({}))).await;
    covered("second", 2).await;
    assert!(bed.children("second").await.is_empty());

    bed.delete::<TrackedFieldSet>("first").await;
    bed.children_of("second", &["api"]).await;
    // With consent, the set adopts the hand-made one under its name.
    let consent = format!("{}/second", bed.namespace);
    bed.patch::<TrackedField>(
        "mine",
        json!({ "metadata": { "annotations": { "quartermaster.dev/adopt-by": consent } } }),
    )
    .await;
    let children = bed.children_of("second", &["api", "web"]).await;
    assert_eq!(children["web"].name_any(), "mine");
    assert_eq!(
        children["web"].history().unwrap().len(),
        1,
        "the history stays"
    );

    // A hand-made one replaces a child.
    bed.track("own", "Deployment", "api", "replicas", "hook")
        .await;
    bed.children_of("second", &["web"]).await;
}

#[tokio::test]
async fn limits_and_quotas_are_reported_and_the_rest_is_served() {
    let bed = Bed::shared("sets-full").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    for name in ["a", "b", "c", "d"] {
        bed.deployment(name, 1).await;
    }
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.set("few", replicas(json!({ "maxTargets": 2 }))).await;
    bed.children_of("few", &["a", "b"]).await;
    let message = bed.set_reads("few", "TooManyTargets").await;
    assert!(
        message.starts_with(
            "4 resources are selected, and 2 are not tracked: raise spec.maxTargets to 4, or"
        ),
        "{message}"
    );
    // Targets that have a child keep it.
    bed.deployment("0", 1).await;
    bed.delete::<Deployment>("d").await;
    bed.children_of("few", &["a", "b"]).await;
    bed.patch::<TrackedFieldSet>(
        "few",
        json!({ "spec": { "suspend": true, "maxTargets": 10 } }),
    )
    .await;
    bed.set_reads("few", "Suspended").await;
    assert_eq!(bed.children("few").await.len(), 2);

    let quota = json!({ "spec": { "hard": { "count/trackedfields.tg.azamaton.ru": "3" } } });
    bed.create::<ResourceQuota>("quota", quota).await;
    bed.until("quota", "is observed", |quota: &ResourceQuota| {
        quota.status.as_ref().is_some_and(|it| it.used.is_some())
    })
    .await;
    bed.patch::<TrackedFieldSet>("few", json!({ "spec": { "suspend": false } }))
        .await;
    let message = bed.set_reads("few", "QuotaExceeded").await;
    assert!(message.contains("exceeded quota"), "{message}");
    assert_eq!(bed.children("few").await.len(), 3);
    bed.delete::<ResourceQuota>("quota").await;
    bed.children_of("few", &["0", "a", "b", "c"]).await;
    bed.set_reads("few", "Ready").await;
}

#[tokio::test]
async fn nothing_leaves_while_the_watch_shows_nothing() {
    let bed = Bed::on_own_plane_with(Options::apiserver_only(), "sets-blind").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    let (proxy, kubeconfig) = bed.through_proxy().await;
    let mut operator = Operator::start(&bed, Settings::default().kubeconfig(kubeconfig)).await;
    bed.set("all", replicas(json!({ "keepSeconds": 0 }))).await;
    let children = bed.children_of("all", &["web"]).await;
    bed.set_reads("all", "Ready").await;

    for code in [
        StatusCode::FORBIDDEN,
        StatusCode::GONE,
        StatusCode::NOT_FOUND,
    ] {
        let fault = proxy.inject(
            Match::any().resource("deployments"),
            Times::Always,
            Fault::status(code),
        );
        operator.restart();
        operator.ready().await;
        bed.patch::<TrackedFieldSet>(
            "all",
            json!({ "metadata": { "annotations": { "quartermaster.dev/requested-at": code.as_str() } } }),
        )
        .await;
        let set = bed
            .until("all", "is not ready", |set: &TrackedFieldSet| {
                let status = set.status.as_ref();
                status.is_some_and(|status| {
                    conditions::ready(&status.conditions).is_some_and(|ready| !ready.is_true())
                })
            })
            .await;
        let now = bed.children("all").await;
        assert_eq!(
            now["web"].uid(),
            children["web"].uid(),
            "{code}: {:?}",
            set.status
        );
        fault.cancel();
        bed.set_reads("all", "Ready").await;
    }
    assert_eq!(
        bed.children("all").await["web"].uid(),
        children["web"].uid()
    );
}

#[tokio::test]
async fn deletion_that_the_watch_missed_is_recorded_before_the_child_leaves() {
    let bed = Bed::on_own_plane_with(Options::apiserver_only(), "sets-missed").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    bed.deployment("api", 1).await;
    let (proxy, kubeconfig) = bed.through_proxy().await;
    let _operator = Operator::start(&bed, Settings::default().kubeconfig(kubeconfig)).await;
    bed.set("all", replicas(json!({}))).await;
    bed.child_history("all", "web", is_quiet).await;
    bed.set_reads("all", "Ready").await;
    let watches = Match::watch("deployments");
    let hidden = proxy.hide(watches.clone(), |event| event.kind == "DELETED");
    bed.delete::<Deployment>("web").await;
    hidden.wait_for_hits(1, SOON).await.unwrap();
    // The watch lists anew, without the Deployment.
    proxy.end_watches(&watches, Ending::Gone);
    let history = bed
        .child_history("all", "web", |history| {
            history.len() == 2 && !history[1].is_pending()
        })
        .await;
    assert_eq!(history[1].action, ChangeAction::Deleted);
}

#[tokio::test]
async fn last_change_of_a_resource_that_is_no_longer_selected_is_sent() {
    let bed = Bed::shared("sets-last").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    let labelled = |value: Value, replicas: i32| json!({ "metadata": { "labels": { "tier": value } }, "spec": { "replicas": replicas } });
    for name in ["a", "b"] {
        bed.deployment(name, 1).await;
        bed.patch::<Deployment>(name, labelled(json!("web"), 1))
            .await;
    }
    let _operator = Operator::start(&bed, Settings::default()).await;
    let spec = json!({ "target": { "selector": { "matchLabels": { "tier": "web" } } } });
    bed.set("web", replicas(spec)).await;
    for name in ["a", "b"] {
        bed.child_history("web", name, is_quiet).await;
    }
    bed.patch::<Deployment>("a", labelled(json!(null), 7)).await;
    bed.children_of("web", &["b"]).await;
    let sent = changes(&receiver);
    assert!(sent.iter().any(|change| change["value"] == "7"), "{sent:?}");

    // Without the annotation that names its owner, a child is still one.
    let child = bed.children("web").await.remove("b").unwrap();
    let without = json!({ "metadata": { "annotations": { "quartermaster.dev/owner": null } } });
    bed.patch::<TrackedField>(&child.name_any(), without).await;
    let corrected = bed
        .until(
            &child.name_any(),
            "has the annotation",
            |child: &TrackedField| child.annotations().contains_key("quartermaster.dev/owner"),
        )
        .await;
    assert_eq!(corrected.uid(), child.uid());
}

#[tokio::test]
async fn resource_that_is_selected_again_is_quiet() {
    let bed = Bed::shared("sets-again").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let spec = json!({ "target": { "selector": { "matchLabels": { "tier": "web" } } } });
    bed.set("web", replicas(spec)).await;
    bed.set_reads("web", "NothingMatches").await;
    // A second later than the set, as the apiserver rounds.
    tokio::time::sleep(std::time::Duration::from_millis(1100)).await;
    bed.deployment("a", 1).await;
    let label = async |value: Value| {
        let labels = json!({ "metadata": { "labels": { "tier": value } } });
        bed.patch::<Deployment>("a", labels).await;
    };
    label(json!("web")).await;
    let history = bed
        .child_history("web", "a", |history| {
            history.len() == 1 && !history[0].is_pending()
        })
        .await;
    assert_eq!(history[0].skipped, None, "the resource is new");
    label(json!(null)).await;
    bed.children_of("web", &[]).await;
    label(json!("web")).await;
    bed.child_history("web", "a", is_quiet).await;
    assert_eq!(changes(&receiver).len(), 1);
}

#[tokio::test]
async fn child_leaves_when_its_deleted_resource_is_created_again_unselected() {
    let bed = Bed::shared("sets-recreated").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    let labels = json!({ "metadata": { "labels": { "tier": "web" } } });
    for name in ["a", "b"] {
        bed.deployment(name, 1).await;
        bed.patch::<Deployment>(name, labels.clone()).await;
    }
    let _operator = Operator::start(&bed, Settings::default()).await;
    let spec = json!({ "target": { "selector": { "matchLabels": { "tier": "web" } } } });
    bed.set("web", replicas(spec)).await;
    for name in ["a", "b"] {
        bed.child_history("web", name, is_quiet).await;
    }
    bed.delete::<Deployment>("a").await;
    bed.child_history("web", "a", |history| {
        let last = history.last().unwrap();
        last.action == ChangeAction::Deleted && !last.is_pending()
    })
    .await;
    // A reconcile decides to keep the child for an hour.
    bed.patch::<TrackedFieldSet>("web", json!({ "spec": { "maxTargets": 400 } }))
        .await;
    bed.set_reads("web", "Ready").await;
    bed.children_of("web", &["a", "b"]).await;

    bed.deployment("a", 5).await;
    bed.children_of("web", &["b"]).await;
    for name in ["a", "b"] {
        bed.scale(name, 7).await;
    }
    bed.child_history("web", "b", |history| {
        let last = history.last().unwrap();
        last.value.as_deref() == Some("7") && !last.is_pending()
    })
    .await;
    let sent = changes(&receiver);
    let sevens = sent.iter().filter(|change| change["value"] == "7");
    assert_eq!(sevens.count(), 1, "{sent:?}");
}

/// The watch of `ConfigMap`s shows no data, and the operator reads each at most once a second.
#[tokio::test]
async fn last_change_of_a_config_map_that_is_no_longer_selected_is_sent() {
    let bed = Bed::on_own_plane_with(Options::apiserver_only(), "sets-unread").await;
    fill_tracker_role(&bed.plane, &[("", "configmaps")]).await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    let labelled = |value: Value, data: &str| json!({ "metadata": { "labels": { "tier": value } }, "data": { "a": data } });
    bed.create::<ConfigMap>("a", labelled(json!("web"), "1"))
        .await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let spec = json!({
        "target": {
            "kind": "ConfigMap", "apiVersion": "v1", "resource": "configmaps",
            "selector": { "matchLabels": { "tier": "web" } },
        },
        "fields": ["{.data.a}"],
        "template": { "contactPoint": "hook" },
    });
    bed.set("web", json!({ "spec": spec })).await;
    bed.child_history("web", "a", is_quiet).await;
    bed.patch::<ConfigMap>("a", labelled(json!("web"), "2"))
        .await;
    let is_recorded = |history: &[Entry]| {
        history
            .iter()
            .any(|entry| entry.value.as_deref() == Some("2"))
    };
    bed.child_history("web", "a", is_recorded).await;
    bed.patch::<ConfigMap>("a", labelled(json!(null), "3"))
        .await;
    bed.children_of("web", &[]).await;
    let sent = changes(&receiver);
    assert!(sent.iter().any(|change| change["value"] == "3"), "{sent:?}");
}

#[tokio::test]
async fn rejected_child_delays_no_other() {
    let bed = Bed::shared("sets-conflict").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("a", 1).await;
    bed.deployment("b", 1).await;
    let deployments = ResourceName {
        api_version: "apps/v1".into(),
        plural: "deployments".into(),
    };
    let target = ObjectKey::new(&bed.namespace, "a");
    let taken = child::name("all", &deployments, &target, "replicas");
    bed.track(&taken, "Deployment", "other", "replicas", "hook")
        .await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.set("all", replicas(json!({}))).await;
    bed.children_of("all", &["b"]).await;
    let message = bed.set_reads("all", "Conflict").await;
    assert!(message.contains("quartermaster.dev/adopt-by="), "{message}");
    bed.deployment("c", 1).await;
    bed.children_of("all", &["b", "c"]).await;
    bed.delete::<TrackedField>(&taken).await;
    bed.children_of("all", &["a", "b", "c"]).await;
    bed.set_reads("all", "Ready").await;
}

#[tokio::test]
async fn deletion_of_a_set_deletes_its_children_unless_they_are_orphaned() {
    let bed = Bed::shared("sets-deleted").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    for (name, policy) in [
        ("orphaned", PropagationPolicy::Orphan),
        ("all", PropagationPolicy::Background),
    ] {
        bed.set(name, replicas(json!({}))).await;
        let children = bed.children_of(name, &["web"]).await;
        let params = DeleteParams {
            propagation_policy: Some(policy.clone()),
            ..DeleteParams::default()
        };
        bed.api::<TrackedFieldSet>()
            .delete(name, &params)
            .await
            .unwrap();
        until(format!("{name} is gone"), SOON, async || {
            Ok(bed
                .api::<TrackedFieldSet>()
                .get_opt(name)
                .await?
                .is_none()
                .then_some(()))
        })
        .await
        .unwrap();
        if policy == PropagationPolicy::Orphan {
            let child = bed.children(name).await.remove("web").unwrap();
            assert_eq!(child.uid(), children["web"].uid());
            bed.scale("web", 2).await;
            bed.child_history(name, "web", |history| history.len() == 2)
                .await;
            bed.delete::<TrackedField>(&child.name_any()).await;
        } else {
            bed.children_of(name, &[]).await;
        }
    }
}

#[tokio::test]
async fn children_report_what_their_suspended_stalled_or_terminating_set_does_not() {
    // Without the garbage collector, the orphaned set stays terminating.
    let bed = Bed::without_controllers("sets-unreported").await;
    bed.deployment("web", 1).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.set("all", replicas(json!({ "initial": "Notify" })))
        .await;
    let is_unsent = |history: &[Entry]| matches!(history, [first] if first.is_pending());
    bed.child_history("all", "web", is_unsent).await;
    bed.set_reads("all", "ContactPointNotFound").await;
    let child = bed.children("all").await["web"].name_any();
    bed.waiting(&child, "").await;

    let suspend = async |suspend: bool| {
        let spec = json!({ "spec": { "suspend": suspend } });
        bed.patch::<TrackedFieldSet>("all", spec).await;
    };
    suspend(true).await;
    bed.waiting(&child, "ContactPointNotFound").await;
    suspend(false).await;
    bed.waiting(&child, "").await;

    let when = async |when: Value| {
        let spec = json!({ "spec": { "template": { "when": when } } });
        bed.patch::<TrackedFieldSet>("all", spec).await;
    };
    when(json!("value >")).await;
    bed.waiting(&child, "ContactPointNotFound").await;
    when(json!(null)).await;
    bed.waiting(&child, "").await;
    bed.set_reads("all", "ContactPointNotFound").await;

    let params = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Orphan),
        ..DeleteParams::default()
    };
    let sets = bed.api::<TrackedFieldSet>();
    sets.delete("all", &params).await.unwrap();
    bed.waiting(&child, "ContactPointNotFound").await;
}

/// A set that cannot select its resources still reports why its children send nothing.
#[tokio::test]
async fn set_with_another_problem_also_reports_its_contact_point() {
    let bed = Bed::shared("sets-two-problems").await;
    bed.deployment("web", 1).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.set("all", replicas(json!({ "initial": "Notify" })))
        .await;
    let is_unsent = |history: &[Entry]| matches!(history, [first] if first.is_pending());
    bed.child_history("all", "web", is_unsent).await;
    bed.set_reads("all", "ContactPointNotFound").await;
    bed.patch::<TrackedFieldSet>("all", unserved()).await;
    let message = bed.set_reads("all", "ResourceMismatch").await;
    let missing = "; ContactPointNotFound: \"hook\" not found";
    assert!(message.contains(missing), "{message}");
    let child = bed.children("all").await["web"].name_any();
    bed.waiting(&child, "").await;
}

/// The numbers of an earlier spec would stand beside the generation of the current one.
#[tokio::test]
async fn suspended_or_blocked_set_counts_only_its_children() {
    let bed = Bed::shared("sets-counts").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("a", 1).await;
    bed.deployment("b", 1).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.set("all", replicas(json!({ "maxTargets": 1 }))).await;
    let counts = async |reason: &str, planned: [Option<i64>; 4], children: i64| {
        bed.set_reads("all", reason).await;
        let what = format!("{planned:?} and {children} children");
        bed.until("all", &what, |set: &TrackedFieldSet| {
            set.status.as_ref().is_some_and(|status| {
                let counts = [
                    status.targets,
                    status.covered,
                    status.leaving,
                    status.left_out,
                ];
                counts == planned && status.children == Some(children)
            })
        })
        .await;
    };
    let planned = [2, 0, 0, 1].map(Some);
    counts("TooManyTargets", planned, 1).await;

    let suspend = async |suspend: bool| {
        let spec = json!({ "spec": { "suspend": suspend } });
        bed.patch::<TrackedFieldSet>("all", spec).await;
    };
    suspend(true).await;
    counts("Suspended", [None; 4], 1).await;
    let child = bed.children("all").await["a"].name_any();
    bed.delete::<TrackedField>(&child).await;
    counts("Suspended", [None; 4], 0).await;
    suspend(false).await;
    counts("TooManyTargets", planned, 1).await;

    bed.patch::<TrackedFieldSet>("all", unserved()).await;
    counts("ResourceMismatch", [None; 4], 1).await;
}

/// Only a set that is neither suspended nor blocked makes a plan.
#[tokio::test]
async fn metric_counts_the_children_of_suspended_and_blocked_sets_after_a_restart() {
    let bed = Bed::shared("sets-metric").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.webhook("other", &receiver.url()).await;
    bed.deployment("web", 1).await;
    let mut operator = Operator::start(&bed, Settings::default()).await;
    bed.set("suspended", replicas(json!({}))).await;
    let other = json!({ "template": { "contactPoint": "other" } });
    bed.set("blocked", replicas(other)).await;
    for set in ["suspended", "blocked"] {
        bed.children_of(set, &["web"]).await;
        bed.set_reads(set, "Ready").await;
    }
    bed.patch::<TrackedFieldSet>("suspended", json!({ "spec": { "suspend": true } }))
        .await;
    bed.set_reads("suspended", "Suspended").await;
    bed.patch::<TrackedFieldSet>("blocked", unserved()).await;
    bed.set_reads("blocked", "ResourceMismatch").await;
    operator.restart();
    let current = "quartermaster_set_children{state=\"current\"} 2";
    until(current, SOON, async || {
        let metrics = operator.try_metrics().await?;
        Ok(metrics.lines().any(|line| line == current).then_some(()))
    })
    .await
    .unwrap();
}
