//! The operator is killed at each of its writes: before the write, after it is stored, and after its answer has
//! arrived.

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt as _;
use qm_api::{ContactPoint, TrackedField};
use serde_json::{Value, json};
use testbed::proxy::{Match, Point};
use testbed::receiver::Receiver;

use super::bed_without_controllers;
use super::deliveries::{Delivery, deliveries};
use crate::support::{Bed, Settings, kill_at_each_write, kill_at_write};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_at_any_write_only_repeats_a_message() {
    let points = [Point::Before, Point::AfterApplied, Point::AfterAnswer];
    let writes = kill_at_each_write(&points, run).await;
    // At least: the contact point is ready; for each of three changes, Pending and Delivered; finally the annotation.
    assert!(
        writes.iter().all(|writes| *writes >= 9),
        "{writes:?} writes"
    );
}

/// A Deployment with one replica is scaled to three and deleted, while the operator is killed at this write. Returns
/// whether the write happened, and the end state.
async fn run(point: Point, write: u64) -> (bool, Value) {
    let bed = bed_without_controllers("each").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    bed.track("web", "Deployment", "web", "replicas", "hook")
        .await;
    let changes = async {
        recorded(&bed, 1).await;
        bed.scale("web", 3).await;
        recorded(&bed, 2).await;
        bed.delete::<Deployment>("web").await;
        bed.delivered(
            "web",
            &[
                ("Created", Some("1")),
                ("Updated", Some("3")),
                ("Deleted", None),
            ],
        )
        .await;
        bed.ready("hook").await;
        bed.waiting("web", "TargetNotFound").await;
        bed.event("web", "TargetNotFound").await;
    };
    let (killed, ()) = kill_at_write(
        &bed,
        Settings::default().flag("--controllers=contactpoint,trackedfield"),
        Match::writes(),
        point,
        write,
        changes,
    )
    .await;
    assert_sent(&receiver);
    (killed, end_state(&bed).await)
}

/// Asserts that all three changes were sent, and that at most the request in flight was repeated.
fn assert_sent(receiver: &Receiver) {
    let deliveries = deliveries(receiver);
    let tests = receiver.requests().len() - deliveries.len();
    let mut ids: Vec<_> = deliveries
        .iter()
        .flat_map(|request| &request.entries)
        .map(|entry| &entry.id)
        .collect();
    ids.sort();
    let repeated: Vec<_> = ids
        .windows(2)
        .filter(|pair| pair[0] == pair[1])
        .map(|pair| pair[0])
        .collect();
    let within = |request: &Delivery| {
        repeated
            .iter()
            .all(|id| request.entries.iter().any(|entry| entry.id == **id))
    };
    assert!(
        !ids.windows(3).any(|three| three[0] == three[2]),
        "an entry was sent three times: {deliveries:?}"
    );
    assert_eq!(
        ids.len() - repeated.len(),
        3,
        "an entry was never sent: {deliveries:?}"
    );
    let well = if repeated.is_empty() {
        tests <= 2
    } else {
        tests == 1 && deliveries.iter().any(within)
    };
    assert!(
        well,
        "more than one request was repeated: {deliveries:?} and {tests} test messages"
    );
}

async fn recorded(bed: &Bed, entries: usize) {
    let long = |field: &TrackedField| field.history().unwrap().len() == entries;
    bed.until("web", &format!("has {entries} entries"), long)
        .await;
}

/// Returns the end state without ids, times and versions.
async fn end_state(bed: &Bed) -> Value {
    let field = bed.api::<TrackedField>().get("web").await.unwrap();
    let mut history = serde_json::to_value(field.status.as_ref().unwrap()).unwrap();
    for entry in history.as_array_mut().unwrap() {
        for name in ["id", "time", "uid", "resourceVersion", "subject"] {
            entry.as_object_mut().unwrap().remove(name);
        }
        if let Some(changed_by) = entry.get_mut("changedBy") {
            changed_by.as_object_mut().unwrap().remove("time");
        }
    }
    let point = bed.api::<ContactPoint>().get("hook").await.unwrap();
    let status = point.status.as_ref().unwrap();
    let condition = |condition: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
        json!([
            condition.type_,
            condition.status,
            condition.reason,
            condition.message
        ])
    };
    json!({
        "history": history,
        "waiting": field.annotations()["quartermaster.dev/waiting"].replace(&bed.namespace, "NAMESPACE"),
        "annotations": [field.annotations().len(), point.annotations().len()],
        "ready": [status.initialized, status.ready],
        "conditions": status.conditions.iter().map(condition).collect::<Vec<_>>(),
    })
}
