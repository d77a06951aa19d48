//! At rest nothing is written, however often the operator reconciles.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, stream};
use http::StatusCode;
use kube::api::ListParams;
use qm_api::{ContactPoint, TrackedField};
use serde_json::json;
use testbed::receiver::{Receiver, Reply, Request};
use testbed::wait::until;

use super::bed_on_own_plane;
use crate::support::{ACCOUNT, Operator, SOON, SYSTEM, Settings, TOKEN};

const FIELDS: usize = 1000;
const TARGETS: usize = 20;
/// Time in which nothing may be written.
const WINDOW: Duration = Duration::from_mins(1);

/// Returns the number of entries that the receiver accepted with a request.
fn entries(request: &Request) -> usize {
    if !request.answered.is_some_and(|status| status.is_success()) {
        return 0;
    }
    let body = request.json().unwrap();
    body["entries"]
        .as_array()
        .map_or(usize::from(body.get("id").is_some()), Vec::len)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: run by make test-long"]
async fn thousand_fields_at_rest_cost_no_write() {
    let bed = bed_on_own_plane("rest").await;
    let receiver = Receiver::start().unwrap();
    receiver.at_path("/stopped", Reply::status(StatusCode::FORBIDDEN));
    bed.secret("token", TOKEN).await;
    let point = |path: &str| {
        json!({ "spec": {
            "type": "Webhook",
            "webhookSpec": { "url": format!("{}/{path}", receiver.url()), "headerName": "X-Token" },
            "apiToken": { "secretName": "token", "key": "token" },
        } })
    };
    for name in ["hook", "stopped"] {
        bed.create::<ContactPoint>(name, point(name)).await;
    }
    for target in 0..TARGETS {
        bed.deployment(&format!("target-{target}"), 1).await;
    }
    let (bed, receiver) = (&bed, &receiver);
    stream::iter(0..FIELDS)
        .for_each_concurrent(16, async |field| {
            let target = format!("target-{}", field % TARGETS);
            bed.track(
                &format!("field-{field}"),
                "Deployment",
                &target,
                "replicas",
                "hook",
            )
            .await;
        })
        .await;
    // Waiting fields are at rest too.
    bed.track("no-target", "Deployment", "nothing", "replicas", "hook")
        .await;
    bed.track("no-point", "Deployment", "target-0", "replicas", "nothing")
        .await;
    bed.track("stopped", "Deployment", "target-0", "replicas", "stopped")
        .await;

    let mut settings = Settings::default().leader_election(100);
    for flag in [
        "--sync-period=15s",
        "--secret-refresh-period=5s",
        "--stopped-retry-period=5s",
    ] {
        settings = settings.flag(flag);
    }
    let _operator = Operator::start(bed, settings).await;
    // This assertion is first: repeated reconciles of all objects would cost more than writes of all statuses.
    let all = |requests: &[Arc<Request>]| {
        requests
            .iter()
            .map(|request| entries(request))
            .sum::<usize>()
            >= FIELDS
    };
    receiver.wait_for(SOON, all).await.unwrap();
    let settled = until("every status is final", SOON, async || {
        let fields = bed
            .api::<TrackedField>()
            .list(&ListParams::default())
            .await?
            .items;
        let histories = fields.iter().map(|field| field.history().unwrap());
        let all_sent = histories
            .filter(|entries| matches!(&entries[..], [entry] if !entry.is_pending()))
            .count();
        anyhow::ensure!(all_sent == FIELDS, "{all_sent} do");
        Ok(Some(()))
    });
    settled.await.unwrap();
    for (name, reason) in [
        ("no-target", "TargetNotFound"),
        ("no-point", "ContactPointNotFound"),
        ("stopped", "ContactPointNotReady"),
    ] {
        bed.waiting(name, reason).await;
        bed.event(name, reason).await;
    }

    let mark = bed.plane.audit().mark().await.unwrap();
    let before = receiver.requests().len();
    tokio::time::sleep(WINDOW).await;
    let requests = bed.plane.audit().requests(mark).await.unwrap();
    let operator_user = format!("system:serviceaccount:{SYSTEM}:{ACCOUNT}");
    let (writes, reads): (Vec<_>, Vec<_>) = requests
        .iter()
        .map(|request| &request.subject)
        .filter(|it| it.user == operator_user)
        .partition(|it| it.is_write());
    let (lease, others): (Vec<_>, Vec<_>) =
        writes.into_iter().partition(|it| it.resource == "leases");
    assert!(others.is_empty(), "{others:?}");
    // The operator was alive: it renewed its lease, read every target and the Secret, and retried the stopped
    // contact point.
    assert!(lease.len() > 10, "{}", lease.len());
    let of = |resource: &str| {
        reads
            .iter()
            .filter(|it| it.verb == "get" && it.resource == resource)
            .count()
    };
    // The targets of many fields are read by one list.
    let lists = reads.iter();
    let lists = lists.filter(|it| it.verb == "list" && it.resource == "deployments");
    assert!(lists.count() > 0, "{reads:?}");
    assert!(of("secrets") > 5, "{}", of("secrets"));
    let late = receiver.requests()[before..].to_vec();
    assert!(
        late.iter().all(|request| request.path == "/stopped") && late.len() > 3,
        "{late:?}"
    );
}
