//! Delivery and failure of entries, and test messages that people see.

use http::StatusCode;
use qm_api::TrackedField;
use qm_api::tracked_field::{Delivery, Entry};
use serde_json::{Value, json};
use testbed::receiver::{Receiver, Reply, Request};

use crate::support::{Bed, READY, accepted};

mod digest;
mod expiry;
mod pauses;
mod rejected;
mod test_message;
mod write_rejected;

fn status(code: u16) -> Reply {
    Reply::status(StatusCode::from_u16(code).unwrap())
}

/// Returns the test messages that the receiver accepted.
fn tests(receiver: &Receiver) -> Vec<std::sync::Arc<Request>> {
    accepted(receiver)
        .into_iter()
        .filter(|request| request.header("ce-type") == Some(READY))
        .collect()
}

fn is(entry: &Entry, delivery: Delivery) -> bool {
    entry.delivery == Some(delivery)
}

/// Creates a `TrackedField` of a Deployment's replicas that keeps a long history.
async fn track_long(bed: &Bed, name: &str, target: &str, point: &str) {
    let target = json!({ "kind": "Deployment", "namespace": bed.namespace, "name": target });
    let spec = json!({ "target": target, "contactPoint": point, "field": "replicas", "historyLimit": 200 });
    bed.create::<TrackedField>(name, json!({ "spec": spec }))
        .await;
}

/// Writes the history of a `TrackedField`, as another process would have left it.
pub async fn write_history(bed: &Bed, name: &str, history: &Value) {
    let patch = json!({ "status": history }).to_string();
    bed.kubectl(&[
        "patch",
        "trackedfield",
        name,
        "--subresource=status",
        "--type=merge",
        "-p",
        &patch,
    ])
    .await;
}
