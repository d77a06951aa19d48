//! Endpoints and output of the process: probes, metrics, logs; and disabled kinds.

use std::collections::BTreeSet;

use kube::ResourceExt;
use qm_api::{ContactPoint, TrackedField};
use quartermaster::controllers;
use serde_json::{Value, json};
use testbed::receiver::Receiver;
use testbed::wait::until;

use crate::support::{ACCOUNT, Bed, Operator, SOON, SYSTEM, Settings, series};

/// Returns the text of `/readyz` when everything works and the selected kinds are disabled.
fn ready(off: impl Fn(&str) -> bool) -> String {
    let mut kinds: Vec<_> = controllers::KINDS
        .iter()
        .map(|kind| kind.controller)
        .collect();
    kinds.sort_unstable();
    let state = |kind: &str| {
        if off(kind) {
            "absent: disabled by --controllers"
        } else {
            "synced"
        }
    };
    let lines = kinds
        .iter()
        .map(|kind| format!("[+]{kind} {}\n", state(kind)));
    lines.collect::<String>() + "ready\n"
}

#[tokio::test]
async fn operator_serves_probes_metrics_and_logs() {
    let bed = Bed::shared("served").await;
    let receiver = Receiver::start().unwrap();
    let operator = Operator::start(&bed, Settings::default()).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    bed.track("none", "Deployment", "nothing", "replicas", "hook")
        .await;
    bed.delivered("it", &[("Created", Some("1"))]).await;
    bed.waiting("none", "TargetNotFound").await;

    for path in ["livez", "healthz"] {
        let (code, text) = operator.probe(path).await.unwrap();
        assert_eq!(code, 200, "{text}");
        for name in ["contactpoint", "trackedfield"] {
            assert!(
                text.lines()
                    .any(|line| line.starts_with(&format!("[+]{name} "))),
                "{text}"
            );
        }
        assert!(text.ends_with("\nlive\n"), "{text}");
    }
    assert_eq!(
        operator.probe("readyz").await.unwrap(),
        (200, ready(|_| false))
    );
    assert_eq!(operator.probe("nothing").await.unwrap().0, 404);

    let metrics = operator.metrics().await;
    let names: BTreeSet<&str> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    for name in [
        "controller_runtime_reconcile",
        "controller_runtime_reconcile_errors",
        "controller_runtime_reconcile_time_seconds",
        "controller_runtime_active_workers",
        "controller_runtime_max_concurrent_reconciles",
        "rest_client_requests",
        "quartermaster_delivery_attempts",
        "quartermaster_delivery_latency_seconds",
        "quartermaster_entries_pending",
        "process_resident_memory_bytes",
    ] {
        assert!(
            names
                .iter()
                .any(|found| found.trim_end_matches("_total") == name),
            "{name} is not among {names:?}"
        );
    }
    for (start, least) in [
        (
            "controller_runtime_reconcile_total{controller=\"contactpoint\",result=\"requeue_after\"}",
            1.0,
        ),
        (
            "controller_runtime_reconcile_total{controller=\"trackedfield\",result=\"requeue_after\"}",
            2.0,
        ),
        (
            "quartermaster_delivery_attempts_total{type=\"webhook\",outcome=\"delivered\"}",
            2.0,
        ),
        ("quartermaster_delivery_latency_seconds_count", 1.0),
    ] {
        assert!(
            series(&metrics, start).is_some_and(|value| value >= least),
            "{start}\n{metrics}"
        );
    }
    assert_eq!(series(&metrics, "quartermaster_entries_pending"), Some(0.0));
    let leads = "leader_election_master_status{name=\"quartermaster\"}";
    assert_eq!(
        series(&metrics, leads),
        Some(1.0),
        "the operator acts, because there is no election"
    );
    for controller in ["contactpoint", "trackedfield"] {
        let of = |metric: &str| {
            format!("workqueue_{metric}{{name=\"{controller}\",controller=\"{controller}\"}}")
        };
        let value = |metric: &str| {
            series(&metrics, &of(metric)).unwrap_or_else(|| panic!("no {metric}\n{metrics}"))
        };
        assert!(
            value("adds_total") >= 1.0 && value("queue_duration_seconds_count") >= 1.0,
            "{metrics}"
        );
        assert!(value("depth") >= 0.0 && value("unfinished_work_seconds") >= 0.0);
    }
    assert!(
        !metrics.contains(&bed.namespace),
        "no label names an object"
    );

    let mut reconciles = 0;
    for line in operator.logs().lines() {
        let line: Value =
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        for key in ["ts", "level", "logger", "msg"] {
            assert!(
                line[key].is_string() || line[key].is_number(),
                "no {key}: {line}"
            );
        }
        if line["controller"].is_string() {
            reconciles += 1;
            for key in ["controllerGroup", "controllerKind", "namespace", "name"] {
                assert!(line[key].is_string(), "no {key}: {line}");
            }
            // A read of a target belongs to no reconcile.
            let is_read =
                line["method"] == "GET" && line["path"].as_str().unwrap().contains("/deployments/");
            assert!(
                is_read || line["reconcileID"].is_string(),
                "no reconcileID: {line}"
            );
        }
    }
    assert!(reconciles > 3);
}

/// The operator writes no status for a deleted `ContactPoint`, and the deletion raises the generation.
#[tokio::test]
async fn object_that_another_finalizer_keeps_counts_as_terminating() {
    let bed = Bed::shared("undeleted").await;
    let receiver = Receiver::start().unwrap();
    let operator = Operator::start(&bed, Settings::default()).await;
    let finalizers = |all: Value| json!({ "metadata": { "finalizers": all } });
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    bed.patch::<ContactPoint>("hook", finalizers(json!(["example.com/theirs"])))
        .await;
    bed.delete::<ContactPoint>("hook").await;
    let terminating = "quartermaster_resources{controller=\"contactpoint\",ready=\"Unknown\",reason=\"Terminating\"}";
    let metrics = until("the deleted object is counted", SOON, async || {
        let metrics = operator.metrics().await;
        Ok((series(&metrics, terminating) == Some(1.0)).then_some(metrics))
    })
    .await
    .unwrap();
    assert!(!metrics.contains("reason=\"NotObserved\""), "{metrics}");
    bed.patch::<ContactPoint>("hook", finalizers(Value::Null))
        .await;
}

#[tokio::test]
async fn disabled_kind_is_unchanged() {
    let bed = Bed::shared("subset").await;
    let receiver = Receiver::start().unwrap();
    let operator = Operator::start(
        &bed,
        Settings::default().flag("--controllers=*,-trackedfield"),
    )
    .await;
    assert_eq!(
        operator.probe("readyz").await.unwrap(),
        (200, ready(|kind| kind == "trackedfield"))
    );
    let since = bed.plane.audit().mark().await.unwrap();
    bed.deployment("web", 1).await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
    let me = format!("system:serviceaccount:{SYSTEM}:{ACCOUNT}");
    let requests = bed.plane.audit().requests(since).await.unwrap();
    let touched = |resource: &str| {
        requests.iter().any(|request| {
            request.subject.user == me
                && request.subject.namespace == bed.namespace
                && request.subject.resource.starts_with(resource)
        })
    };
    assert!(touched("contactpoints") && !touched("trackedfields") && !touched("deployments"));
    let field = bed.api::<TrackedField>().get("it").await.unwrap();
    assert!(field.status.is_none() && field.annotations().is_empty());

    // In the other direction, recorded entries wait for an operator that sends.
    drop(operator);
    let fields =
        Operator::start(&bed, Settings::default().flag("--controllers=trackedfield")).await;
    assert_eq!(
        fields.probe("readyz").await.unwrap(),
        (200, ready(|kind| kind != "trackedfield"))
    );
    bed.until("it", "is recorded", |field: &TrackedField| {
        field.history().unwrap().len() == 1
    })
    .await;
    bed.waiting(
        "it",
        "ContactPointNotReady: \"hook\": this operator does not serve contact points: ",
    )
    .await;
    drop(fields);
    let _both = Operator::start(&bed, Settings::default()).await;
    bed.delivered("it", &[("Created", Some("1"))]).await;
    bed.waiting("it", "").await;
}

/// `HTTPS_PROXY` applies to Telegram: the operator reaches the apiserver and webhooks directly.
#[tokio::test]
async fn proxy_of_the_environment_is_not_used_for_the_apiserver() {
    let bed = Bed::shared("proxied").await;
    let receiver = Receiver::start().unwrap();
    let nowhere = "http://127.0.0.1:9";
    let settings = Settings::default()
        .env("HTTPS_PROXY", nowhere)
        .env("https_proxy", nowhere)
        .env("NO_PROXY", "");
    let _operator = Operator::start(&bed, settings).await;
    bed.webhook("hook", &receiver.url()).await;
    bed.ready("hook").await;
}

/// Namespaces outside of the scope belong to other operators.
#[tokio::test]
async fn other_namespaces_are_unchanged() {
    let bed = Bed::shared("mine").await;
    let other = Bed::on(bed.plane.clone(), "theirs").await;
    let third = Bed::on(bed.plane.clone(), "also").await;
    let receiver = Receiver::start().unwrap();
    for bed in [&bed, &other, &third] {
        bed.webhook("hook", &receiver.url()).await;
        bed.deployment("web", 1).await;
        bed.track("it", "Deployment", "web", "replicas", "hook")
            .await;
    }
    // Two installs, each with its own namespaces; the flag given twice and with a comma.
    let since = bed.plane.audit().mark().await.unwrap();
    let both = Settings::default().flag(&format!(
        "--watch-namespace={},{}",
        bed.namespace, third.namespace
    ));
    let _mine = Operator::start(&bed, both).await;
    bed.delivered("it", &[("Created", Some("1"))]).await;
    third.delivered("it", &[("Created", Some("1"))]).await;
    let me = format!("system:serviceaccount:{SYSTEM}:{ACCOUNT}");
    let requests = bed.plane.audit().requests(since).await.unwrap();
    let of = |namespace: &str| {
        requests
            .iter()
            .filter(|r| r.subject.user == me && r.subject.namespace == namespace)
            .count()
    };
    assert!(of(&bed.namespace) > 0 && of(&other.namespace) == 0);
    let point = other.api::<ContactPoint>().get("hook").await.unwrap();
    assert_eq!(point.status.unwrap().observed_generation, Some(-1));
    let _theirs = Operator::start(&other, Settings::default()).await;
    other.delivered("it", &[("Created", Some("1"))]).await;
    let delivered = receiver
        .requests()
        .iter()
        .filter(|request| request.json().unwrap()["action"] == "Created")
        .count();
    assert_eq!(delivered, 3, "each change is sent once");
}
