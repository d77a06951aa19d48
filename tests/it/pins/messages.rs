//! Messages as a webhook receiver and the Bot API get them: all headers and the whole body.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use qm_api::{ContactPoint, TrackedField};
use serde_json::{Value, json};
use testbed::receiver::{Receiver, Reply, Request};

use super::{assert_pinned, bed};
use crate::support::mask::Mask;
use crate::support::{Bed, CHAT, Operator, Settings, TOKEN};

/// Returns a request for the snapshot. The length depends on masked values.
fn recorded_request(request: &Request, mask: &Mask) -> Value {
    let headers = request.headers.iter().map(|(name, value)| {
        let value = mask.text(value.to_str().unwrap());
        let value = value.replace(env!("CARGO_PKG_VERSION"), "<version>");
        (name.to_string(), value.into())
    });
    let mut headers: BTreeMap<String, Value> = headers.collect();
    headers.remove("content-length");
    let path = request.path.replace(TOKEN, "<token>");
    json!({
        "request": format!("{} {path}?{}", request.method, request.query),
        "headers": headers,
        "body": mask.json(&request.json().unwrap()),
    })
}

async fn is_pending(bed: &Bed, name: &str, entries: usize) {
    bed.until(name, "has pending entries", |field: &TrackedField| {
        let history = field.history().unwrap();
        history.len() == entries && history[entries - 1].is_pending()
    })
    .await;
}

#[tokio::test]
async fn messages_are_as_pinned() {
    let bed = bed("messages").await;
    let (webhook, telegram) = (Receiver::start().unwrap(), Receiver::start().unwrap());
    telegram.always(Reply::ok().json(&json!({ "ok": true, "result": { "message_id": 1 } })));
    let settings = Settings::default()
        .telegram(&telegram.url())
        .flag("--cluster-name=prod")
        .flag("--controllers=*,-myingress");
    let _operator = Operator::start(&bed, settings).await;

    let mut recorded = Vec::new();
    let mut record = |message: &'static str| {
        let mask = Mask::new(&bed.namespace, Timestamp::UNIX_EPOCH);
        for (receiver, to) in [(&webhook, "webhook"), (&telegram, "telegram")] {
            let requests = receiver.requests();
            let [request] = &requests[..] else {
                panic!("{message} to {to}: {requests:?}");
            };
            receiver.forget();
            recorded.push(
                json!({ "message": message, "to": to, "sent": recorded_request(request, &mask) }),
            );
        }
    };
    bed.secret("webhook-token", "first-token").await;
    let spec = json!({
        "type": "Webhook",
        "webhookSpec": { "url": format!("{}/hook?a=b", webhook.url()), "headerName": "X-Token" },
        "apiToken": { "secretName": "webhook-token", "key": "token" },
    });
    bed.point("webhook", spec).await;
    bed.telegram("telegram", TOKEN, CHAT).await;
    let points = ["webhook", "telegram"];
    for point in points {
        bed.ready(point).await;
    }
    record("test message");

    let mut entries = vec![("Created", Some("1"))];
    bed.deployment("web", 1).await;
    for point in points {
        bed.track(point, "Deployment", "web", "replicas", point)
            .await;
        bed.delivered(point, &entries).await;
    }
    record("Created");

    bed.scale("web", 3).await;
    entries.push(("Updated", Some("3")));
    for point in points {
        bed.delivered(point, &entries).await;
    }
    record("Updated");

    for point in points {
        bed.patch::<ContactPoint>(point, json!({ "spec": { "suspend": true } }))
            .await;
        bed.not_ready(point, "Suspended").await;
    }
    for replicas in [4, 5] {
        bed.scale("web", replicas).await;
        for point in points {
            is_pending(&bed, point, entries.len() + 1).await;
        }
        entries.push(("Updated", Some(if replicas == 4 { "4" } else { "5" })));
    }
    for point in points {
        bed.patch::<ContactPoint>(point, json!({ "spec": { "suspend": false } }))
            .await;
        bed.delivered(point, &entries).await;
    }
    record("digest");

    bed.delete::<Deployment>("web").await;
    entries.push(("Deleted", None));
    for point in points {
        bed.delivered(point, &entries).await;
    }
    record("Deleted");
    assert_pinned!("messages", recorded);
}
