//! An app with every child: Deployment, Service, Ingress and autoscaler.

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

use super::my_app::image_and_readiness;
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

pub async fn change(scene: &Scene<'_>) {
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

pub async fn delete_all(scene: &Scene<'_>) {
    delete::<AppService>(scene, "web").await;
}

/// Returns what the children of a ready app must show, and what they show.
pub async fn expected_and_found(reader: &Reader, spec: &Value) -> anyhow::Result<(Value, Value)> {
    let pods = reader.api::<Pod>().list(&ListParams::default()).await?;
    let pods = pods
        .iter()
        .filter(|pod| pod.meta().deletion_timestamp.is_none());
    let mut pods: Vec<_> = pods.map(image_and_readiness).collect();
    let mut size = spec["size"].as_u64().unwrap_or(1);
    if !spec["autoscaling"].is_null() {
        // The autoscaler may keep any number.
        pods.dedup();
        size = 1;
    }
    let deployment = reader.api::<Deployment>().get_opt("web").await?;
    let service = reader.api::<Service>().get_opt("web").await?;
    let ingress = reader.api::<Ingress>().get_opt("web").await?;
    let scaler = reader
        .api::<HorizontalPodAutoscaler>()
        .get_opt("web")
        .await?;
    let (deployment, service) = (json!(deployment), json!(service));
    let (ingress, scaler) = (json!(ingress), json!(scaler));
    let pod = json!([spec["image"], true]);
    let backend = json!({ "name": "web", "port": { "number": spec["ports"][0]["port"] } });
    let expected = json!({
        "pods": (0..size).map(|_| pod.clone()).collect::<Vec<_>>(),
        "resources": spec["resources"],
        "ports": ports(&spec["ports"]),
        "host": spec["ingress"]["host"],
        "backend": backend,
        "replicas": [spec["autoscaling"]["min"], spec["autoscaling"]["max"]],
    });
    let rule = &ingress["spec"]["rules"][0];
    let found = json!({
        "pods": pods,
        "resources": deployment["spec"]["template"]["spec"]["containers"][0]["resources"],
        "ports": ports(&service["spec"]["ports"]),
        "host": rule["host"],
        "backend": rule["http"]["paths"][0]["backend"]["service"],
        "replicas": [scaler["spec"]["minReplicas"], scaler["spec"]["maxReplicas"]],
    });
    Ok((expected, found))
}

fn ports(ports: &Value) -> Vec<Value> {
    let ports = ports.as_array().into_iter().flatten();
    ports
        .map(|it| json!([it["name"], it["port"], it["targetPort"]]))
        .collect()
}
