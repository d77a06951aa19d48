#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;

use http::header::{ACCEPT, CONTENT_TYPE};
use tokio::net::TcpListener;

use super::*;
use crate::metrics_server::serve;
use crate::testing::PROGRAM;

/// Returns names and labels of the samples, without buckets and values.
fn names(text: &str) -> BTreeSet<String> {
    let samples = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.contains("_bucket"));
    samples
        .map(|line| line.rsplit_once(' ').unwrap().0.to_owned())
        .collect()
}

/// Dashboards and alerts of every program that uses the runtime depend on these names.
#[test]
fn metrics_have_these_names() {
    let metrics = Metrics::new(&PROGRAM);
    let controller = metrics.controller("widget", 8);
    controller.reconciled(ReconcileResult::Success, Duration::from_millis(3));
    metrics.set_queue("widget", || WorkQueueState {
        depth: 3,
        unfinished: Duration::from_millis(1500),
    });
    metrics.api_request("10.0.0.1:443", "GET", Some(200));
    metrics.set_leadership("lease", Fence::shut());
    metrics.drift_corrections("widget");
    let _watch = metrics.watch("deployments.apps", Purpose::Target);
    metrics.set_resources("widget", || {
        Some([(("True", "Ready".to_owned()), 3)].into())
    });
    metrics.set_resources("gadget", || None);
    let text = metrics.encode();
    let expected = "\
controller_runtime_active_workers{controller=\"widget\"}
controller_runtime_max_concurrent_reconciles{controller=\"widget\"}
controller_runtime_reconcile_errors_total{controller=\"widget\"}
controller_runtime_reconcile_panics_total{controller=\"widget\"}
controller_runtime_reconcile_time_seconds_count{controller=\"widget\"}
controller_runtime_reconcile_time_seconds_sum{controller=\"widget\"}
controller_runtime_reconcile_total{controller=\"widget\",result=\"error\"}
controller_runtime_reconcile_total{controller=\"widget\",result=\"requeue\"}
controller_runtime_reconcile_total{controller=\"widget\",result=\"requeue_after\"}
controller_runtime_reconcile_total{controller=\"widget\",result=\"success\"}
leader_election_master_status{name=\"lease\"}
process_cpu_seconds_total
process_max_fds
process_open_fds
process_resident_memory_bytes
process_start_time_seconds
process_threads
process_virtual_memory_bytes
rest_client_requests_total{code=\"200\",method=\"GET\",host=\"10.0.0.1:443\"}
tokio_alive_tasks
widget_operator_build_info{version=\"1.2.3\"}
widget_operator_drift_corrections_total{controller=\"widget\"}
widget_operator_resources{controller=\"widget\",ready=\"True\",reason=\"Ready\"}
widget_operator_watch_failures_total{resource=\"deployments.apps\"}
widget_operator_watches{resource=\"deployments.apps\",state=\"denied\"}
widget_operator_watches{resource=\"deployments.apps\",state=\"failing\"}
widget_operator_watches{resource=\"deployments.apps\",state=\"healthy\"}
workqueue_adds_total{name=\"widget\",controller=\"widget\"}
workqueue_depth{name=\"widget\",controller=\"widget\"}
workqueue_queue_duration_seconds_count{name=\"widget\",controller=\"widget\"}
workqueue_queue_duration_seconds_sum{name=\"widget\",controller=\"widget\"}
workqueue_unfinished_work_seconds{name=\"widget\",controller=\"widget\"}";
    let expected: BTreeSet<String> = expected.lines().map(str::to_owned).collect();
    assert_eq!(names(&text), expected, "{text}");
    assert!(text.ends_with("# EOF\n"));
    for line in text.lines().filter(|line| line.starts_with("# HELP")) {
        assert!(line.ends_with('.') && !line.ends_with(".."), "{line}");
    }
}

#[test]
fn metrics_have_their_values() {
    let metrics = Metrics::new(&PROGRAM);
    let has = |line: &str| {
        let text = metrics.encode();
        assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
    };
    let controller = metrics.controller("widget", 8);
    has("controller_runtime_max_concurrent_reconciles{controller=\"widget\"} 8");
    let (first, second) = (controller.started(), controller.started());
    has("controller_runtime_active_workers{controller=\"widget\"} 2");
    drop(first);
    has("controller_runtime_active_workers{controller=\"widget\"} 1");
    drop(second);
    for result in ReconcileResult::ALL {
        controller.reconciled(result, Duration::from_millis(30));
    }
    controller.reconciled(ReconcileResult::Error, Duration::from_secs(3));
    for (result, count) in [
        ("success", 1),
        ("requeue", 1),
        ("requeue_after", 1),
        ("error", 2),
    ] {
        has(&format!(
            "controller_runtime_reconcile_total{{controller=\"widget\",result=\"{result}\"}} {count}"
        ));
    }
    has("controller_runtime_reconcile_errors_total{controller=\"widget\"} 2");
    has("controller_runtime_reconcile_time_seconds_bucket{le=\"0.05\",controller=\"widget\"} 4");
    controller.panicked();
    has("controller_runtime_reconcile_panics_total{controller=\"widget\"} 1");
    let queue = "name=\"widget\",controller=\"widget\"";
    metrics.set_queue("widget", || WorkQueueState {
        depth: 3,
        unfinished: Duration::from_millis(1500),
    });
    controller.added();
    controller.queued(Duration::from_millis(5));
    has(&format!("workqueue_depth{{{queue}}} 3"));
    has(&format!("workqueue_unfinished_work_seconds{{{queue}}} 1.5"));
    has(&format!("workqueue_adds_total{{{queue}}} 1"));
    has(&format!(
        "workqueue_queue_duration_seconds_bucket{{le=\"0.01\",{queue}}} 1"
    ));
    let _watches = ["pods", "pods"].map(|resource| metrics.watch(resource, Purpose::Own));
    has("widget_operator_watches{resource=\"pods\",state=\"healthy\"} 2");
    has("widget_operator_watches{resource=\"pods\",state=\"failing\"} 0");
    let fence = Fence::open();
    metrics.set_leadership("lease", fence.clone());
    has("leader_election_master_status{name=\"lease\"} 1");
    fence.close();
    has("leader_election_master_status{name=\"lease\"} 0");
}

/// Collector of a program, which does not know the prefix.
#[derive(Debug)]
struct Answer;

impl Collector for Answer {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let value = ConstGauge::new(42);
        value.encode(encoder.encode_descriptor("answer", "The answer.", None, MetricType::Gauge)?)
    }
}

#[test]
fn registered_metrics_have_the_prefix_of_the_program() {
    let metrics = Metrics::new(&PROGRAM);
    let calls = metrics.register(|registry| {
        let calls = Family::<[(&'static str, &'static str); 1], Counter>::default();
        registry.register("calls", "Calls", calls.clone());
        registry.register_collector(Box::new(Answer));
        calls
    });
    calls.get_or_create(&[("code", "OK")]).inc();
    let text = metrics.encode();
    for line in [
        "widget_operator_calls_total{code=\"OK\"} 1",
        "widget_operator_answer 42",
    ] {
        assert!(text.lines().any(|it| it == line), "no {line} in\n{text}");
    }
}

#[test]
fn leadership_is_absent_before_it_is_set() {
    assert!(!Metrics::new(&PROGRAM).encode().contains("leader_election"));
}

#[tokio::test]
async fn server_speaks_both_formats() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/metrics", listener.local_addr().unwrap());
    let metrics = Metrics::new(&PROGRAM);
    metrics.controller("widget", 1);
    let server = tokio::spawn(serve(listener, metrics));
    let client = reqwest::Client::new();
    for (accept, expected) in [
        (
            "application/openmetrics-text;version=1.0.0,text/plain;q=0.5",
            "application/openmetrics-text; version=1.0.0",
        ),
        ("*/*", "text/plain; version=0.0.4"),
    ] {
        let response = client
            .get(&url)
            .header(ACCEPT, accept)
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 200);
        assert!(
            response.headers()[CONTENT_TYPE]
                .to_str()
                .unwrap()
                .starts_with(expected)
        );
        let text = response.text().await.unwrap();
        assert!(text.contains("widget_operator_build_info{version="));
        // The older format declares a counter by the name of its samples and has no end mark.
        let older = expected.starts_with("text/plain");
        assert_eq!(
            text.contains("# TYPE controller_runtime_reconcile_panics_total counter\n"),
            older,
            "{text}"
        );
        assert_eq!(text.contains("# EOF"), !older);
    }
    server.abort();
}
