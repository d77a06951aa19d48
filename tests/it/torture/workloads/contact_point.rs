//! A contact point with a token, and a `TrackedField`.

use k8s_openapi::api::core::v1::Service;
use kube::core::ApiResource;
use qm_api::{ContactPoint, TrackedField};
use serde_json::{Value, json};
use testbed::proxy::ApiRequest;

use super::{Scene, delete, resource};
use crate::support::TOKEN;

pub fn resources() -> Vec<ApiResource> {
    vec![resource::<ContactPoint>(), resource::<TrackedField>()]
}

pub fn owns(request: &ApiRequest) -> bool {
    let object = (request.resource.as_str(), request.name.as_deref());
    matches!(
        object,
        ("contactpoints", Some("hook")) | ("trackedfields", Some("web"))
    )
}

pub async fn change(scene: &Scene<'_>) {
    let bed = &scene.bed;
    bed.secret("token", TOKEN).await;
    let spec = json!({
        "type": "Webhook",
        "webhookSpec": { "url": scene.receiver.url(), "headerName": "X-Token" },
        "apiToken": { "secretName": "token", "key": "token" },
    });
    bed.point("hook", spec).await;
    bed.service("web", ports(8080)).await;
    bed.track("web", "Service", "web", "targetPort", "hook")
        .await;
    scene.checkpoint("created").await;
    retarget(scene, 8081).await;
    scene.checkpoint("changed").await;
    retarget(scene, 8080).await;
    scene.checkpoint("changed back").await;
    bed.delete::<Service>("web").await;
    scene.checkpoint("target deleted").await;
    bed.service("web", ports(8080)).await;
    scene.checkpoint("target recreated").await;
    let timeout = json!({ "spec": { "webhookSpec": { "timeoutSeconds": 7 } } });
    bed.patch::<ContactPoint>("hook", timeout).await;
    scene.checkpoint("receiver changed").await;
    retarget(scene, 8082).await;
    scene.checkpoint("changed for the new receiver").await;
}

pub async fn delete_all(scene: &Scene<'_>) {
    delete::<TrackedField>(scene, "web").await;
    delete::<ContactPoint>(scene, "hook").await;
}

pub fn ports(target: u16) -> Value {
    json!([{ "port": 80, "targetPort": target }])
}

async fn retarget(scene: &Scene<'_>, target: u16) {
    let spec = json!({ "spec": { "ports": ports(target) } });
    scene.bed.patch::<Service>("web", spec).await;
}
