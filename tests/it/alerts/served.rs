//! Metrics of resources, messages and watches that a running operator serves.

use http::StatusCode;
use k8s_openapi::api::core::v1::ConfigMap;
use qm_api::{ConfigMapSync, TrackedField};
use serde_json::json;
use testbed::Options;
use testbed::proxy::{Ending, Fault, Match, Times};
use testbed::receiver::{Receiver, Reply};
use testbed::wait::until;

use crate::support::{Bed, Operator, SOON, Settings, fill_tracker_role, series};

/// Waits until each sample has this value; `None`: until there is no such sample.
async fn has_samples(operator: &Operator, expected: &[(&str, Option<f64>)]) {
    let observed = until("the metrics have the expected samples", SOON, async || {
        let metrics = operator.metrics().await;
        for (sample, expected) in expected {
            let observed = series(&metrics, sample);
            anyhow::ensure!(
                observed == *expected,
                "{sample}: {observed:?}, not {expected:?}"
            );
        }
        Ok(Some(()))
    });
    observed.await.unwrap_or_else(|error| panic!("{error:#}"));
}

const CONFLICT: &str =
    "quartermaster_resources{controller=\"configmapsync\",ready=\"False\",reason=\"Conflict\"}";
const SYNCED: &str =
    "quartermaster_resources{controller=\"configmapsync\",ready=\"True\",reason=\"Synced\"}";
const LOST: &str = "quartermaster_resources{controller=\"trackedfield\",ready=\"False\",reason=\"TargetNotFound\"}";
const LEADS: &str = "leader_election_master_status{name=\"counted\"}";

#[tokio::test]
async fn resources_are_counted_by_leader_and_standby_after_a_deletion_and_after_a_restart() {
    let bed = Bed::shared("counted").await;
    let here = &bed.namespace;
    let flags = ["--leader-elect", "--leader-election-id=counted"];
    let settings = || {
        flags
            .iter()
            .fold(Settings::default(), |settings, flag| settings.flag(flag))
    };
    let leader = Operator::start(&bed, settings()).await;
    has_samples(&leader, &[(LEADS, Some(1.0)), (CONFLICT, None)]).await;
    let mut standby = Operator::start(&bed, settings()).await;

    bed.create::<ConfigMap>("settings", json!({ "data": { "a": "1" } }))
        .await;
    bed.create::<ConfigMap>("theirs", json!({ "data": { "a": "2" } }))
        .await;
    for (name, copy) in [("well", "copy"), ("ill", "theirs")] {
        let spec = json!({ "sourceNamespace": here, "destinationNamespace": here, "configMapName": "settings",
            "destinationName": copy });
        bed.create::<ConfigMapSync>(name, json!({ "spec": spec }))
            .await;
    }
    bed.webhook("hook", "http://127.0.0.1:9/").await;
    bed.track("lost", "Deployment", "nowhere", "replicas", "hook")
        .await;
    let all = [
        (CONFLICT, Some(1.0)),
        (SYNCED, Some(1.0)),
        (LOST, Some(1.0)),
    ];
    has_samples(&leader, &all).await;
    has_samples(&standby, &[&all[..], &[(LEADS, Some(0.0))]].concat()).await;

    bed.delete::<ConfigMapSync>("ill").await;
    bed.delete::<TrackedField>("lost").await;
    let rest = [(CONFLICT, None), (SYNCED, Some(1.0)), (LOST, None)];
    has_samples(&leader, &rest).await;
    has_samples(&standby, &rest).await;
    standby.kill();
    standby.restart();
    standby.ready().await;
    has_samples(&standby, &rest).await;
}

const REFUSED: &str = "quartermaster_entries_failed_total{reason=\"refused\"}";
const OLDEST: &str = "quartermaster_entries_oldest_pending_timestamp_seconds";
const PENDING: &str = "quartermaster_entries_pending";

#[tokio::test]
async fn metrics_show_waiting_and_rejected_messages() {
    let bed = Bed::shared("backlog").await;
    let receiver = Receiver::start().unwrap();
    let operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    bed.track("web", "Deployment", "web", "replicas", "hook")
        .await;
    bed.delivered("web", &[("Created", Some("1"))]).await;
    has_samples(
        &operator,
        &[(OLDEST, None), (PENDING, Some(0.0)), (REFUSED, Some(0.0))],
    )
    .await;

    receiver.always(Reply::status(StatusCode::SERVICE_UNAVAILABLE));
    bed.scale("web", 2).await;
    has_samples(&operator, &[(PENDING, Some(1.0))]).await;
    bed.scale("web", 3).await;
    has_samples(&operator, &[(PENDING, Some(2.0))]).await;
    let history = bed.history("web").await;
    let seen = history[1].time.as_ref().unwrap().0.as_second();
    #[allow(clippy::cast_precision_loss)] // seconds since 1970
    has_samples(&operator, &[(OLDEST, Some(seen as f64))]).await;
    // A suspended entry does not count as waiting.
    bed.patch::<TrackedField>("web", json!({ "spec": { "suspend": true } }))
        .await;
    has_samples(&operator, &[(OLDEST, None), (PENDING, Some(0.0))]).await;
    receiver.always(Reply::ok());
    receiver.at_text(
        "\"value\":\"2\"",
        Reply::status(StatusCode::UNPROCESSABLE_ENTITY),
    );
    bed.patch::<TrackedField>("web", json!({ "spec": { "suspend": false } }))
        .await;
    has_samples(
        &operator,
        &[(OLDEST, None), (PENDING, Some(0.0)), (REFUSED, Some(1.0))],
    )
    .await;
    assert_eq!(
        series(
            &operator.metrics().await,
            "quartermaster_entries_failed_total{reason=\"expired\"}"
        ),
        Some(0.0)
    );
}

fn watches(resource: &str, state: &str) -> String {
    format!("quartermaster_watches{{resource=\"{resource}\",state=\"{state}\"}}")
}

#[tokio::test]
async fn failing_watch_is_reported_until_it_recovers() {
    let bed = Bed::on_own_plane_with(Options::apiserver_only(), "watches").await;
    fill_tracker_role(&bed.plane, &[("batch", "cronjobs")]).await;
    let (proxy, kubeconfig) = bed.through_proxy().await;
    proxy.inject(
        Match::any().resource("cronjobs"),
        Times::Always,
        Fault::status(StatusCode::FORBIDDEN),
    );
    let operator = Operator::start(&bed, Settings::default().kubeconfig(kubeconfig)).await;
    bed.webhook("hook", "http://127.0.0.1:9/").await;
    bed.track("web", "StatefulSet", "web", "replicas", "hook")
        .await;
    bed.track("jobs", "Deployment", "web", "replicas", "hook")
        .await;
    let target = json!({ "kind": "CronJob", "apiVersion": "batch/v1", "resource": "cronjobs" });
    bed.patch::<TrackedField>(
        "jobs",
        json!({ "spec": { "target": target, "field": "{.spec.suspend}" } }),
    )
    .await;
    let (healthy, failing) = (
        watches("statefulsets.apps", "healthy"),
        watches("statefulsets.apps", "failing"),
    );
    let denied = watches("cronjobs.batch", "denied");
    // No alert fires for objects that the operator may not read: the TrackedField's status reports those.
    has_samples(
        &operator,
        &[
            (&healthy, Some(1.0)),
            (&failing, Some(0.0)),
            (&denied, Some(1.0)),
        ],
    )
    .await;
    // An apiserver that has just started may reject a watch once, and a quiet watch counts as failing for a minute then.
    until(
        "no watch fails with the shipped permissions",
        SOON,
        async || {
            let metrics = operator.metrics().await;
            let ill: Vec<_> = metrics
                .lines()
                .filter(|line| {
                    line.starts_with("quartermaster_watches{")
                        && line.contains("\"failing\"")
                        && !line.ends_with(" 0")
                })
                .collect();
            anyhow::ensure!(ill.is_empty(), "{ill:?}");
            Ok(Some(()))
        },
    )
    .await
    .unwrap();

    let statefulsets = Match::any().resource("statefulsets");
    let fault = proxy.inject(
        statefulsets.clone(),
        Times::Always,
        Fault::status(StatusCode::SERVICE_UNAVAILABLE),
    );
    proxy.end_watches(&statefulsets, Ending::MidEvent);
    has_samples(&operator, &[(&healthy, Some(0.0)), (&failing, Some(1.0))]).await;
    fault.cancel();
    bed.create::<k8s_openapi::api::apps::v1::StatefulSet>(
        "web",
        json!({ "spec": { "serviceName": "web", "selector": { "matchLabels": { "app": "web" } }, "template": {
            "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "web", "image": "web" }] } } } }),
    )
    .await;
    has_samples(&operator, &[(&healthy, Some(1.0)), (&failing, Some(0.0))]).await;
    bed.delete::<TrackedField>("web").await;
    has_samples(&operator, &[(&healthy, None), (&failing, None)]).await;
}
