//! A new leader relies on the history, not on state observed as a standby.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams};
use qm_api::{AppService, ConfigMapSync, TrackedField};
use serde_json::json;
use testbed::Options;
use testbed::proxy::{Ending, Fault, Match, Proxy, Times, Verb};
use testbed::receiver::Receiver;
use testbed::wait::until;

use super::bed_without_controllers;
use super::deliveries::deliveries;
use super::ledger::Ledger;
use super::replicas::candidate;
use super::{assert_no_repeats, assert_order};
use crate::support::{Bed, Operator, SOON, Settings};

/// Two replicas with synced caches, and one field recorded once, with the value 1.
struct Pair {
    receiver: Receiver,
    ledger: Ledger,
    leader: Operator,
    standby: Operator,
    /// Proxy between the apiserver and the standby.
    proxy: Proxy,
    bed: Bed,
}

impl Pair {
    async fn start(name: &str) -> Self {
        let bed = bed_without_controllers(name).await;
        let receiver = Receiver::start().unwrap();
        bed.webhook("hook", &receiver.url()).await;
        bed.deployment("web", 1).await;
        let ledger = Ledger::open(&bed);
        let leader = Operator::start(&bed, candidate(0)).await;
        leader.leads().await;
        bed.track("web", "Deployment", "web", "replicas", "hook")
            .await;
        bed.delivered("web", &[("Created", Some("1"))]).await;
        let (proxy, file) = bed.through_proxy().await;
        let standby = Operator::start(&bed, candidate(1).kubeconfig(file)).await;
        let pair = Self {
            receiver,
            ledger,
            leader,
            standby,
            proxy,
            bed,
        };
        pair.standby_listed(1).await;
        pair
    }

    /// Waits until the standby has listed the Deployments `times` times.
    async fn standby_listed(&self, times: usize) {
        let listed = |line: &&str| line.contains("\"listed\"") && line.contains("deployments");
        until(
            format!("the standby has listed {times} times"),
            SOON,
            async || {
                Ok((self.standby.logs().lines().filter(listed).count() >= times).then_some(()))
            },
        )
        .await
        .unwrap();
    }

    /// Returns how often the standby requested a list of Deployments, and a single one.
    fn request_counts(&self) -> (usize, usize) {
        let listed = Match::any().resource("deployments").and(|request| {
            request.verb == Verb::List || request.query.contains("sendInitialEvents=true")
        });
        let read = Match::verb(Verb::Get).resource("deployments");
        (self.proxy.count(&listed), self.proxy.count(&read))
    }

    fn assert_sent_in_order(&self) {
        let deliveries = deliveries(&self.receiver);
        assert_order(&self.ledger, &deliveries);
        assert_no_repeats(&deliveries);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_leader_records_a_return_to_its_last_seen_value() {
    let mut pair = Pair::start("back").await;
    let watch = Match::watch("deployments");
    let cut = pair.proxy.freeze(watch.clone());
    pair.bed.scale("web", 2).await;
    cut.wait_for_hits(1, SOON).await.unwrap();
    let mut expected = vec![("Created", Some("1")), ("Updated", Some("2"))];
    pair.bed.delivered("web", &expected).await;
    pair.leader.kill();
    pair.bed.scale("web", 1).await;
    // The standby relists, and never sees the value 2.
    assert_eq!(pair.proxy.end_watches(&watch, Ending::Gone), 1);
    cut.cancel();
    pair.standby_listed(2).await;
    pair.standby.leads().await;
    expected.push(("Updated", Some("1")));
    pair.bed.delivered("web", &expected).await;
    pair.assert_sent_in_order();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_leader_lists_once_whatever_is_tracked() {
    let mut pair = Pair::start("once").await;
    let fields: Vec<String> = (0..20).map(|field| format!("field-{field}")).collect();
    for field in &fields {
        pair.bed.deployment(field, 1).await;
        pair.bed
            .track(field, "Deployment", field, "replicas", "hook")
            .await;
        pair.bed.delivered(field, &[("Created", Some("1"))]).await;
    }
    assert_eq!(pair.request_counts(), (1, 0));
    pair.leader.kill();
    for field in &fields {
        pair.bed.scale(field, 2).await;
    }
    pair.standby.leads().await;
    for field in &fields {
        pair.bed
            .delivered(field, &[("Created", Some("1")), ("Updated", Some("2"))])
            .await;
    }
    assert_eq!(pair.request_counts(), (2, 0));
    pair.assert_sent_in_order();
}

/// A connection died silently while this replica was a standby.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_leader_finds_changes_missing_from_a_silent_watch() {
    let mut pair = Pair::start("silent").await;
    let silent = pair.proxy.freeze_running(Match::watch("deployments"));
    pair.leader.kill();
    pair.bed.scale("web", 2).await;
    silent.wait_for_hits(1, SOON).await.unwrap();
    pair.standby.leads().await;
    let mut expected = vec![("Created", Some("1")), ("Updated", Some("2"))];
    pair.bed.delivered("web", &expected).await;
    for (replicas, value) in [(3, "3"), (2, "2")] {
        pair.bed.scale("web", replicas).await;
        expected.push(("Updated", Some(value)));
    }
    pair.bed.delivered("web", &expected).await;
    pair.assert_sent_in_order();
}

/// A user restored the `TrackedField` from a backup.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newest_value_is_recorded_again_after_its_loss_from_the_history() {
    let bed = bed_without_controllers("restored").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    bed.track("web", "Deployment", "web", "replicas", "hook")
        .await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.delivered("web", &[("Created", Some("1"))]).await;
    bed.scale("web", 2).await;
    let expected = [("Created", Some("1")), ("Updated", Some("2"))];
    let before = bed.delivered("web", &expected).await;
    let lost = Patch::Merge(json!({ "status": &before[..1] }));
    bed.api::<TrackedField>()
        .patch_status("web", &PatchParams::default(), &lost)
        .await
        .unwrap();
    until(
        "the value is recorded once more, and sent",
        SOON,
        async || {
            let history = bed.history("web").await;
            let again = history
                .last()
                .is_some_and(|last| last.id != before[1].id && !last.is_pending());
            Ok((history.len() == 2 && again).then_some(()))
        },
    )
    .await
    .unwrap();
    bed.delivered("web", &expected).await;
    let deliveries = deliveries(&receiver);
    assert_eq!(
        deliveries
            .iter()
            .map(|request| request.entries.len())
            .sum::<usize>(),
        3
    );
    assert_no_repeats(&deliveries);
}

/// A streamed list comes from the apiserver's cache, which may be staler than the last leader's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_leader_never_records_a_stale_value() {
    let mut pair = Pair::start("lagging").await;
    let past = pair.bed.api::<Deployment>().get("web").await.unwrap();
    pair.bed.scale("web", 2).await;
    let mut expected = vec![("Created", Some("1")), ("Updated", Some("2"))];
    pair.bed.delivered("web", &expected).await;
    let end = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {
            "resourceVersion": past.metadata.resource_version,
            "annotations": { "k8s.io/initial-events-end": "true" },
        },
    });
    // The operator cannot read an event whose type does not come first, as the apiserver writes it.
    let events = [("ADDED", json!(past)), ("BOOKMARK", end)]
        .map(|(kind, object)| format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n"));
    let streamed =
        Match::watch("deployments").and(|request| request.query.contains("sendInitialEvents=true"));
    let lagging = Fault::Respond(events.concat());
    let lagging = pair.proxy.inject(streamed, Times::First(1), lagging);
    // Events after that list are late, too.
    let late = pair.proxy.freeze(Match::watch("deployments"));
    pair.leader.kill();
    pair.bed.scale("web", 3).await;
    pair.standby.leads().await;
    lagging.wait_for_hits(1, SOON).await.unwrap();
    pair.standby_listed(2).await;
    // Only a read shows the value.
    expected.push(("Updated", Some("3")));
    pair.bed.delivered("web", &expected).await;
    late.cancel();
    pair.bed.scale("web", 4).await;
    expected.push(("Updated", Some("4")));
    pair.bed.delivered("web", &expected).await;
    pair.assert_sent_in_order();
}

/// The standby's watch of namespaces has stalled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_leader_deletes_no_copy_in_a_namespace_whose_labels_it_has_missed() {
    let bed = Bed::on_own_plane_with(Options::apiserver_only(), "missed-labels").await;
    let shop = Bed::on(bed.plane.clone(), "shop").await;
    let settings = json!({ "data": { "a": "1" } });
    bed.create::<ConfigMap>("settings", settings).await;
    let mut leader = Operator::start(&bed, candidate(0).whole_cluster()).await;
    leader.leads().await;
    let spec = json!({
        "sourceNamespace": bed.namespace, "configMapName": "settings",
        "destinationNamespaceSelector": { "matchLabels": { "copies": "yes" } },
    });
    bed.create::<ConfigMapSync>("sync", json!({ "spec": spec }))
        .await;
    let (proxy, file) = bed.through_proxy().await;
    let settings = candidate(1).kubeconfig(file).whole_cluster();
    let standby = Operator::start(&bed, settings).await;
    let watch = Match::watch("namespaces");
    until("the standby watches namespaces", SOON, async || {
        Ok((proxy.running_watches(&watch) > 0).then_some(()))
    })
    .await
    .unwrap();
    let stalled = proxy.freeze_running(watch);
    shop.label_namespace(&shop.namespace, json!({ "copies": "yes" }))
        .await;
    let has = |value: &'static str| {
        move |copy: &ConfigMap| copy.data.as_ref().is_some_and(|data| data["a"] == value)
    };
    let copied = shop.until("settings", "is a copy", has("1")).await;
    stalled.wait_for_hits(1, SOON).await.unwrap();
    leader.kill();
    standby.leads().await;
    bed.patch::<ConfigMap>("settings", json!({ "data": { "a": "2" } }))
        .await;
    let updated = shop.until("settings", "is updated", has("2")).await;
    assert_eq!(updated.uid(), copied.uid());
}

/// The standby's view is older than the last leader's writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_leader_changes_nothing_for_objects_that_it_may_not_list() {
    let bed = Bed::without_controllers("unlisted").await;
    let mut leader = Operator::start(&bed, candidate(0)).await;
    leader.leads().await;
    let app = json!({ "spec": { "image": "nginx:1.27", "size": 1 } });
    let _: AppService = bed.create("web", app).await;
    let deployment_has = async |replicas| {
        let has = |it: &Deployment| it.spec.as_ref().unwrap().replicas == Some(replicas);
        bed.until("web", "the replicas of the app", has).await;
    };
    deployment_has(1).await;
    let (proxy, file) = bed.through_proxy().await;
    let standby = Operator::start(&bed, candidate(1).kubeconfig(file)).await;
    let denied = proxy.forbid(&Match::watches_and_lists("appservices"));
    denied.wait_for_hits(1, SOON).await.unwrap();
    let scale = async |replicas| {
        let spec = json!({ "spec": { "size": replicas } });
        bed.patch::<AppService>("web", spec).await;
    };
    scale(2).await;
    deployment_has(2).await;

    leader.kill();
    standby.leads().await;
    standby.reports_denied_list(&denied).await;
    for resource in ["deployments", "appservices"] {
        assert_eq!(proxy.count(&Match::writes().resource(resource)), 0);
    }
    denied.cancel();
    scale(3).await;
    deployment_has(3).await;
}
