//! A set of the fields of Services.

use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt as _;
use kube::api::ListParams;
use kube::core::ApiResource;
use qm_api::{ContactPoint, TrackedField, TrackedFieldSet};
use serde_json::json;
use testbed::proxy::ApiRequest;

use super::contact_point::ports;
use super::{Scene, damage, delete, resource};

pub fn resources() -> Vec<ApiResource> {
    vec![
        resource::<ContactPoint>(),
        resource::<TrackedField>(),
        resource::<TrackedFieldSet>(),
    ]
}

pub fn owns(request: &ApiRequest) -> bool {
    let name = request.name.as_deref().unwrap_or_default();
    match request.resource.as_str() {
        "contactpoints" => name == "hook",
        "trackedfieldsets" => name == "all",
        "trackedfields" => name.starts_with("all-"),
        _ => false,
    }
}

pub async fn prepare(scene: &Scene<'_>) {
    let url = scene.receiver.url();
    scene.bed.webhook("hook", &url).await;
}

pub async fn change(scene: &Scene<'_>) {
    let bed = &scene.bed;
    bed.ready("hook").await;
    bed.service("a", ports(8080)).await;
    bed.service("b", ports(8080)).await;
    // Is not selected.
    bed.service("other", ports(8080)).await;
    let target = json!({ "kind": "Service", "names": { "include": ["a", "b", "c"] } });
    let spec = json!({
        "target": target,
        "fields": ["targetPort"],
        "template": { "contactPoint": "hook" },
        "keepSeconds": 0,
    });
    bed.create::<TrackedFieldSet>("all", json!({ "spec": spec }))
        .await;
    scene.checkpoint("created").await;
    let template = |limit| json!({ "spec": { "template": { "historyLimit": limit } } });
    bed.patch::<TrackedFieldSet>("all", template(Some(7))).await;
    scene.checkpoint("changed").await;
    bed.patch::<TrackedFieldSet>("all", template(None)).await;
    scene.checkpoint("changed back").await;
    let spec = json!({ "spec": { "ports": ports(8081) } });
    bed.patch::<Service>("a", spec).await;
    scene.checkpoint("target changed").await;
    // A second later than the set, as the apiserver rounds.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    bed.service("c", ports(8080)).await;
    scene.checkpoint("target added").await;
    bed.delete::<Service>("c").await;
    scene.checkpoint("target deleted").await;

    let child = child(scene, "b").await;
    damage::<TrackedField>(scene, &child, json!({ "spec": { "historyLimit": 3 } })).await;
    scene.checkpoint("child corrected").await;
    bed.delete::<TrackedField>(&child).await;
    scene.checkpoint("child recreated").await;
}

pub async fn delete_all(scene: &Scene<'_>) {
    delete::<TrackedFieldSet>(scene, "all").await;
}

/// Returns the name of the child for this target.
async fn child(scene: &Scene<'_>, target: &str) -> String {
    let children = scene.bed.api::<TrackedField>();
    let children = children.list(&ListParams::default()).await.unwrap();
    let mut children = children.iter();
    let found = children.find(|it| it.spec.target.name == target);
    found.unwrap().name_any()
}
