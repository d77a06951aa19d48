//! An apiserver that hangs for one kind only: a conversion webhook or an aggregated API does not answer.

use std::sync::Arc;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use testbed::proxy::{Fault, Injection, Match, Point, Proxy, Then, Times, Verb};
use testbed::receiver::Receiver;
use testbed::wait::until;
use tokio::sync::Notify;

use super::bed_without_controllers;
use super::deliveries::deliveries;
use super::flood::{maps as api, set_map, track_map};
use crate::support::{Bed, Operator, SOON, Settings};

/// More objects than concurrent reconciles.
const HANGING: usize = 24;

/// Starts an operator that never times out a request, and that reads each target every second.
async fn operator(bed: &Bed) -> (Proxy, Operator) {
    let (proxy, file) = bed.through_proxy().await;
    let flags = [
        "--sync-period=1s",
        "--api-timeout=1h",
        "--reconcile-timeout=1h",
    ];
    let settings = flags
        .iter()
        .fold(Settings::default().kubeconfig(file), |settings, flag| {
            settings.flag(flag)
        });
    let operator = Operator::start(bed, settings).await;
    (proxy, operator)
}

/// systemd's default limit is far lower than the maximum, and each request that hangs has a connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operator_raises_its_limit_of_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let maximum = limit.maximum.expect("a finite maximum");
    // The operator inherits the limit of this process.
    let lower = Rlimit {
        current: Some(maximum - 1),
        ..limit
    };
    setrlimit(Resource::Nofile, lower).unwrap();
    let bed = bed_without_controllers("open-files").await;
    let operator = Operator::start(&bed, Settings::default()).await;
    let metrics = operator.metrics().await;
    let raised = format!("\nprocess_max_fds {maximum}\n");
    assert!(metrics.contains(&raised), "{metrics}");
}

fn hang(proxy: &Proxy, matching: Match) -> Injection {
    proxy.inject(matching, Times::Always, Fault::Hang)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_continue_when_reads_of_one_kind_hang() {
    let bed = bed_without_controllers("hanging").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    bed.track("web", "Deployment", "web", "replicas", "hook")
        .await;
    let maps: Vec<String> = (0..HANGING).map(|map| format!("map-{map}")).collect();
    for map in &maps {
        track_map(&bed, map, "1").await;
    }
    let (proxy, _operator) = operator(&bed).await;
    let mut expected = vec![("Created", Some("1"))];
    for field in maps.iter().map(String::as_str).chain(["web"]) {
        bed.delivered(field, &expected).await;
    }
    let reads = hang(&proxy, Match::verb(Verb::Get).resource("maps"));
    reads.wait_for_hits(4, SOON).await.unwrap();
    let values = ["2", "3", "4"];
    for value in values {
        for map in &maps {
            set_map(&api(&bed), map, value).await;
        }
        bed.scale("web", value.parse().unwrap()).await;
        expected.push(("Updated", Some(value)));
        for field in maps.iter().map(String::as_str).chain(["web"]) {
            bed.delivered(field, &expected).await;
        }
    }
    // The watch already runs, so this target needs a read.
    bed.deployment("new", 7).await;
    bed.track("new", "Deployment", "new", "replicas", "hook")
        .await;
    bed.delivered("new", &[("Created", Some("7"))]).await;
    assert!(
        reads.hits() < HANGING as u64,
        "{} requests hang at once",
        reads.hits()
    );
    reads.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_continue_when_discovery_of_one_group_hangs() {
    let bed = bed_without_controllers("undiscovered").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    let (proxy, _operator) = operator(&bed).await;
    bed.ready("hook").await;
    let discovery = hang(
        &proxy,
        Match::verb(Verb::Other).and(|request| request.path == "/apis/batch/v1"),
    );
    for job in 0..HANGING {
        let target = serde_json::json!({
            "apiVersion": "batch/v1", "kind": "CronJob", "resource": "cronjobs", "namespace": bed.namespace, "name": "job",
        });
        let spec = serde_json::json!({ "target": target, "contactPoint": "hook", "field": "{.spec.schedule}" });
        let name = format!("job-{job}");
        bed.create::<qm_api::TrackedField>(&name, serde_json::json!({ "spec": spec }))
            .await;
    }
    discovery.wait_for_hits(1, SOON).await.unwrap();
    bed.deployment("web", 1).await;
    bed.track("web", "Deployment", "web", "replicas", "hook")
        .await;
    bed.delivered("web", &[("Created", Some("1"))]).await;
    bed.scale("web", 2).await;
    bed.delivered("web", &[("Created", Some("1")), ("Updated", Some("2"))])
        .await;
    assert!(
        discovery.hits() < HANGING as u64,
        "{} requests hang at once",
        discovery.hits()
    );
    discovery.cancel();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permanently_unreadable_target_costs_no_write() {
    let bed = bed_without_controllers("unreadable").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    bed.track("web", "Deployment", "web", "replicas", "hook")
        .await;
    let (proxy, _operator) = operator(&bed).await;
    bed.delivered("web", &[("Created", Some("1"))]).await;
    let reads = Match::verb(Verb::Get).resource("deployments");
    let refused = proxy.inject(
        reads,
        Times::Always,
        Fault::status(http::StatusCode::INTERNAL_SERVER_ERROR),
    );
    bed.waiting("web", "TargetUnreadable").await;
    let writes = Match::writes().resource("trackedfields");
    let before = proxy.count(&writes);
    refused
        .wait_for_hits(refused.hits() + 5, SOON)
        .await
        .unwrap();
    bed.scale("web", 2).await;
    bed.delivered("web", &[("Created", Some("1")), ("Updated", Some("2"))])
        .await;
    // Writes of the entry, of its outcome, and of its annotation while it waits.
    let after = proxy.count(&writes) - before;
    assert!((2..=4).contains(&after), "{after} writes");
    refused.cancel();
    bed.waiting("web", "").await;
}

/// An observation made during a status write, and the outcome that arrives meanwhile, need one write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outcome_and_observation_are_one_write_when_nothing_hangs() {
    let bed = bed_without_controllers("onewrite").await;
    let (receiver, other) = (Receiver::start().unwrap(), Receiver::start().unwrap());
    bed.webhook("hook", &receiver.url()).await;
    bed.webhook("other", &other.url()).await;
    let (proxy, file) = bed.through_proxy().await;
    let operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    for point in ["hook", "other"] {
        bed.ready(point).await;
    }
    receiver.refuse().await.unwrap();
    bed.deployment("web", 1).await;
    for (name, point) in [("web", "hook"), ("marker", "other")] {
        bed.track(name, "Deployment", "web", "replicas", point)
            .await;
    }
    let mut expected = vec![("Created", Some("1"))];
    bed.delivered("marker", &expected).await;
    bed.waiting("web", "DeliveryFailing").await;

    let writes = Match::verb(Verb::Patch)
        .resource("trackedfields")
        .subresource("status")
        .name("web");
    let (reached, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let hold = Fault::hook(Point::Before, {
        let (reached, go_on) = (Arc::clone(&reached), Arc::clone(&go_on));
        move |_| {
            let (reached, go_on) = (Arc::clone(&reached), Arc::clone(&go_on));
            async move {
                reached.notify_one();
                go_on.notified().await;
                Then::GoOn
            }
        }
    });
    assert_eq!(proxy.count(&writes), 1, "the first entry");
    proxy.inject(writes.clone(), Times::First(1), hold);
    for (replicas, value) in [(2, "2"), (3, "3")] {
        bed.scale("web", replicas).await;
        expected.push(("Updated", Some(value)));
        bed.delivered("marker", &expected).await;
        if value == "2" {
            tokio::time::timeout(SOON, reached.notified())
                .await
                .expect("the second entry is written");
        }
    }
    receiver.accept().await.unwrap();
    until("the first message is delivered", SOON, async || {
        Ok(deliveries(&receiver)
            .iter()
            .any(|request| request.accepted)
            .then_some(()))
    })
    .await
    .unwrap();
    let metric = "quartermaster_delivery_attempts_total{type=\"webhook\",outcome=\"delivered\"} ";
    let sent = 2 + deliveries(&receiver).len() + deliveries(&other).len();
    until("the outcome is known", SOON, async || {
        let metrics = operator.metrics().await;
        let count = metrics
            .lines()
            .find_map(|line| line.strip_prefix(metric))
            .map(str::parse::<usize>)
            .transpose()?;
        Ok((count == Some(sent)).then_some(()))
    })
    .await
    .unwrap();
    go_on.notify_one();
    bed.delivered("web", &expected).await;
    // Writes: the first entry alone, the second alone, the third with the first's outcome; then the outcomes of both.
    assert_eq!(proxy.count(&writes), 4);
}
