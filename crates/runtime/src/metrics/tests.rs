#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;

use http::header::{ACCEPT, CONTENT_TYPE};
use tokio::net::TcpListener;

use super::*;

/// The samples' names and labels, without buckets and values.
fn names(text: &str) -> BTreeSet<String> {
    let samples = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.contains("_bucket"));
    samples
        .map(|line| line.rsplit_once(' ').unwrap().0.to_owned())
        .collect()
}

/// Dashboards, alerts and docs rest on these names: whoever changes one changes those.
#[test]
fn the_names() {
    let metrics = Metrics::new();
    let controller = metrics.controller("trackedfield", 8);
    controller.reconciled(Reconciled::Success, Duration::from_millis(3));
    metrics.show_queue("trackedfield", || QueueState {
        depth: 3,
        unfinished: Duration::from_millis(1500),
    });
    metrics.api_request("10.0.0.1:443", "GET", Some(200));
    metrics.show_leadership("quartermaster", Fence::shut());
    metrics.notified(Receiver::Telegram, Notified::Delivered);
    metrics.status_write_rejected(403);
    let _watch = metrics.watch("deployments.apps", Purpose::Target);
    metrics.show_resources("trackedfield", || {
        Some([(("True", "Ready".to_owned()), 3)].into())
    });
    metrics.show_resources("myapp", || None);
    metrics.show_oldest_pending(|| Some(Timestamp::UNIX_EPOCH));
    let text = metrics.encode();
    let expected = "\
controller_runtime_active_workers{controller=\"trackedfield\"}
controller_runtime_max_concurrent_reconciles{controller=\"trackedfield\"}
controller_runtime_reconcile_errors_total{controller=\"trackedfield\"}
controller_runtime_reconcile_panics_total{controller=\"trackedfield\"}
controller_runtime_reconcile_time_seconds_count{controller=\"trackedfield\"}
controller_runtime_reconcile_time_seconds_sum{controller=\"trackedfield\"}
controller_runtime_reconcile_total{controller=\"trackedfield\",result=\"error\"}
controller_runtime_reconcile_total{controller=\"trackedfield\",result=\"requeue\"}
controller_runtime_reconcile_total{controller=\"trackedfield\",result=\"requeue_after\"}
controller_runtime_reconcile_total{controller=\"trackedfield\",result=\"success\"}
leader_election_master_status{name=\"quartermaster\"}
process_cpu_seconds_total
process_max_fds
process_open_fds
process_resident_memory_bytes
process_start_time_seconds
process_threads
process_virtual_memory_bytes
quartermaster_build_info{version=\"VERSION\"}
quartermaster_entries_expired_total
quartermaster_entries_merged_total
quartermaster_entries_rejected_total
quartermaster_notification_latency_seconds_count
quartermaster_notification_latency_seconds_sum
quartermaster_notifications_oldest_pending_timestamp_seconds
quartermaster_notifications_pending
quartermaster_notifications_total{type=\"telegram\",outcome=\"delivered\"}
quartermaster_resources{controller=\"trackedfield\",ready=\"True\",reason=\"Ready\"}
quartermaster_status_writes_rejected_total{code=\"403\"}
quartermaster_watch_restarts_total{resource=\"deployments.apps\"}
quartermaster_watches{resource=\"deployments.apps\",state=\"failing\"}
quartermaster_watches{resource=\"deployments.apps\",state=\"refused\"}
quartermaster_watches{resource=\"deployments.apps\",state=\"standing\"}
rest_client_requests_total{code=\"200\",method=\"GET\",host=\"10.0.0.1:443\"}
workqueue_adds_total{name=\"trackedfield\",controller=\"trackedfield\"}
workqueue_depth{name=\"trackedfield\",controller=\"trackedfield\"}
workqueue_queue_duration_seconds_count{name=\"trackedfield\",controller=\"trackedfield\"}
workqueue_queue_duration_seconds_sum{name=\"trackedfield\",controller=\"trackedfield\"}
workqueue_unfinished_work_seconds{name=\"trackedfield\",controller=\"trackedfield\"}";
    let expected = expected.replace("VERSION", VERSION);
    let expected: BTreeSet<String> = expected.lines().map(str::to_owned).collect();
    assert_eq!(names(&text), expected, "{text}");
    assert!(text.ends_with("# EOF\n"));
    for line in text.lines().filter(|line| line.starts_with("# HELP")) {
        assert!(line.ends_with('.') && !line.ends_with(".."), "{line}");
    }
}

#[test]
fn values() {
    let metrics = Metrics::new();
    let has = |line: &str| {
        let text = metrics.encode();
        assert!(text.lines().any(|l| l == line), "no {line} in\n{text}");
    };
    let controller = metrics.controller("trackedfield", 8);
    has("controller_runtime_max_concurrent_reconciles{controller=\"trackedfield\"} 8");
    let (first, second) = (controller.started(), controller.started());
    has("controller_runtime_active_workers{controller=\"trackedfield\"} 2");
    drop(first);
    has("controller_runtime_active_workers{controller=\"trackedfield\"} 1");
    drop(second);
    for result in Reconciled::ALL {
        controller.reconciled(result, Duration::from_millis(30));
    }
    controller.reconciled(Reconciled::Error, Duration::from_secs(3));
    for (result, count) in [
        ("success", 1),
        ("requeue", 1),
        ("requeue_after", 1),
        ("error", 2),
    ] {
        has(&format!(
            "controller_runtime_reconcile_total{{controller=\"trackedfield\",result=\"{result}\"}} {count}"
        ));
    }
    has("controller_runtime_reconcile_errors_total{controller=\"trackedfield\"} 2");
    has(
        "controller_runtime_reconcile_time_seconds_bucket{le=\"0.05\",controller=\"trackedfield\"} 4",
    );
    controller.panicked();
    has("controller_runtime_reconcile_panics_total{controller=\"trackedfield\"} 1");
    let queue = "name=\"trackedfield\",controller=\"trackedfield\"";
    metrics.show_queue("trackedfield", || QueueState {
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
    metrics.pending_changed(3);
    metrics.pending_changed(-2);
    has("quartermaster_notifications_pending 1");
    metrics.entries_merged(7);
    has("quartermaster_entries_merged_total 7");
    metrics.entries_rejected(2);
    has("quartermaster_entries_rejected_total 2");
    let _watches = ["pods", "pods"].map(|resource| metrics.watch(resource, Purpose::Own));
    has("quartermaster_watches{resource=\"pods\",state=\"standing\"} 2");
    has("quartermaster_watches{resource=\"pods\",state=\"failing\"} 0");
    metrics.notification_latency(Duration::from_millis(20));
    has("quartermaster_notification_latency_seconds_bucket{le=\"0.025\"} 1");
    let fence = Fence::open();
    metrics.show_leadership("quartermaster", fence.clone());
    has("leader_election_master_status{name=\"quartermaster\"} 1");
    fence.close();
    has("leader_election_master_status{name=\"quartermaster\"} 0");
}

#[test]
fn how_long_messages_wait_is_told_while_one_does() {
    let metrics = Metrics::new();
    let since = Arc::new(std::sync::Mutex::new(None));
    let told = Arc::clone(&since);
    metrics.show_oldest_pending(move || *told.lock().unwrap());
    let name = "quartermaster_notifications_oldest_pending_timestamp_seconds";
    assert!(!metrics.encode().contains(name));
    *since.lock().unwrap() = Some(Timestamp::from_second(12).unwrap());
    assert!(
        metrics.encode().contains(&format!("\n{name} 12\n")),
        "{}",
        metrics.encode()
    );
}

#[test]
fn without_leader_election_there_is_no_status_of_it() {
    assert!(!Metrics::new().encode().contains("leader_election"));
}

#[tokio::test]
async fn the_server_speaks_both_formats() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/metrics", listener.local_addr().unwrap());
    let server = tokio::spawn(serve(listener, Metrics::new()));
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
        assert!(text.contains("quartermaster_build_info{version="));
        // Where counters are declared by the name of their samples, and nothing marks the end.
        let older = expected.starts_with("text/plain");
        assert_eq!(
            text.contains("# TYPE quartermaster_entries_expired_total counter\n"),
            older,
            "{text}"
        );
        assert_eq!(text.contains("# EOF"), !older);
    }
    server.abort();
}
