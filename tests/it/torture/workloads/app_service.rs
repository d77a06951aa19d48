//! An app with every child: Deployment, Service, Ingress and autoscaler.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::networking::v1::Ingress;
use kube::Resource as _;
use kube::api::ListParams;
use kube::core::ApiResource;
use qm_api::AppService;
use serde_json::{Value, json};
use testbed::proxy::ApiRequest;

use super::my_app::shown;
use super::{Reader, Scene, becomes_ready, damage, delete, resource};

pub fn resources() -> Vec<ApiResource> {
    vec![
        resource::<AppService>(),
        resource::<Deployment>(),
        resource::<Service>(),
        resource::<Ingress>(),
        resource::<HorizontalPodAutoscaler>(),
    ]
}

pub fn owns(request: &ApiRequest) -> bool {
    let kinds = [
        "appservices",
        "deployments",
        "services",
        "ingresses",
        "horizontalpodautoscalers",
    ];
    kinds.contains(&request.resource.as_str()) && request.name.as_deref() == Some("web")
}

pub async fn prepare(scene: &Scene<'_>) {
    scene.bed.accepts_pods().await;
    // Looks like a child.
    scene.bed.deployment("other", 0).await;
    let labels = json!({ "metadata": { "labels": { "app": "web" } } });
    scene.bed.patch::<Deployment>("other", labels).await;
}

fn first() -> Value {
    json!({
        "size": 1,
        "image": "nginx:1.7.9",
        "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }],
        "ingress": { "host": "web.example.com" },
        "resources": { "requests": { "cpu": "100m" } },
        "autoscaling": { "min": 1, "max": 3 },
    })
}

fn second() -> Value {
    json!({
        "size": 2,
        "image": "nginx:1.27",
        "ports": [{ "name": "http", "port": 80, "targetPort": 8081 }, { "name": "admin", "port": 81, "targetPort": 81 }],
        "ingress": { "host": "shop.example.com" },
        "resources": { "requests": { "cpu": "200m" } },
        "autoscaling": null,
    })
}

pub async fn live(scene: &Scene<'_>) {
    let bed = &scene.bed;
    bed.create::<AppService>("web", json!({ "spec": first() }))
        .await;
    becomes_ready::<AppService>(scene, "web").await;
    scene.checkpoint("created").await;
    bed.patch::<AppService>("web", json!({ "spec": second() }))
        .await;
    becomes_ready::<AppService>(scene, "web").await;
    scene.checkpoint("changed").await;
    bed.patch::<AppService>("web", json!({ "spec": first() }))
        .await;
    becomes_ready::<AppService>(scene, "web").await;
    scene.checkpoint("changed back").await;

    let container = json!([{ "name": "web", "image": "evil" }]);
    let template = json!({ "spec": { "template": { "spec": { "containers": container } } } });
    damage::<Deployment>(scene, "web", template).await;
    let port = json!({ "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": 666 }] } });
    damage::<Service>(scene, "web", port).await;
    let rules = json!({ "spec": { "rules": [{ "host": "evil.example.com" }] } });
    damage::<Ingress>(scene, "web", rules).await;
    damage::<HorizontalPodAutoscaler>(scene, "web", json!({ "spec": { "maxReplicas": 9 } })).await;
    scene.checkpoint("children corrected").await;

    bed.delete::<Deployment>("web").await;
    bed.delete::<Service>("web").await;
    bed.delete::<Ingress>("web").await;
    bed.delete::<HorizontalPodAutoscaler>("web").await;
    scene.checkpoint("children recreated").await;
}

pub async fn end(scene: &Scene<'_>) {
    delete::<AppService>(scene, "web").await;
}

/// Returns what the children of a ready app must show, and what they show.
pub async fn expected_and_found(reader: &Reader, spec: &Value) -> anyhow::Result<(Value, Value)> {
    let pods = reader.api::<Pod>().list(&ListParams::default()).await?;
    let pods = pods
        .iter()
        .filter(|pod| pod.meta().deletion_timestamp.is_none());
    // Once each: the autoscaler may keep any number.
    let pods: BTreeSet<_> = pods.map(|pod| shown(pod).to_string()).collect();
    let pods = pods.into_iter().collect::<Vec<_>>();
    let service = reader.api::<Service>().get_opt("web").await?;
    let ingress = reader.api::<Ingress>().get_opt("web").await?;
    let scaler = reader
        .api::<HorizontalPodAutoscaler>()
        .get_opt("web")
        .await?;
    let (service, ingress, scaler) = (json!(service), json!(ingress), json!(scaler));
    let expected = json!({
        "pods": [json!([spec["image"], true]).to_string()],
        "ports": ports(&spec["ports"]),
        "host": spec["ingress"]["host"],
        "maxReplicas": spec["autoscaling"]["max"],
    });
    let found = json!({
        "pods": pods,
        "ports": ports(&service["spec"]["ports"]),
        "host": ingress["spec"]["rules"][0]["host"],
        "maxReplicas": scaler["spec"]["maxReplicas"],
    });
    Ok((expected, found))
}

fn ports(ports: &Value) -> Vec<Value> {
    let ports = ports.as_array().into_iter().flatten();
    ports
        .map(|it| json!([it["name"], it["port"], it["targetPort"]]))
        .collect()
}
