//! An app with every child: Deployment, Service, Ingress and autoscaler.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use kube::core::ApiResource;
use qm_api::AppService;
use serde_json::{Value, json};
use testbed::proxy::ApiRequest;

use super::{Scene, delete, harm, resource};

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
    is_ready(scene, "nginx:1.7.9", true).await;
    scene.checkpoint("created").await;
    bed.patch::<AppService>("web", json!({ "spec": second() }))
        .await;
    is_ready(scene, "nginx:1.27", false).await;
    scene.checkpoint("changed").await;
    bed.patch::<AppService>("web", json!({ "spec": first() }))
        .await;
    is_ready(scene, "nginx:1.7.9", false).await;
    scene.checkpoint("changed back").await;

    let container = json!([{ "name": "web", "image": "evil" }]);
    let template = json!({ "spec": { "template": { "spec": { "containers": container } } } });
    harm::<Deployment>(scene, "web", template).await;
    let port = json!({ "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": 666 }] } });
    harm::<Service>(scene, "web", port).await;
    let rules = json!({ "spec": { "rules": [{ "host": "evil.example.com" }] } });
    harm::<Ingress>(scene, "web", rules).await;
    harm::<HorizontalPodAutoscaler>(scene, "web", json!({ "spec": { "maxReplicas": 9 } })).await;
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

/// Waits until the status says that the app is ready with the current spec. The Deployment must be so at that moment.
async fn is_ready(scene: &Scene<'_>, image: &str, is_new: bool) {
    let ready = |app: &AppService| {
        let status = app.status.as_ref();
        status.is_some_and(|status| {
            status.observed_generation == app.metadata.generation
                && status
                    .condition("Ready")
                    .is_some_and(|it| it.status == "True")
        })
    };
    scene.bed.until("web", "is ready", ready).await;
    let deployment = scene.bed.api::<Deployment>().get("web").await.unwrap();
    let template = json!(deployment.spec.unwrap().template);
    assert_eq!(
        template["spec"]["containers"][0]["image"], image,
        "the status says that the app is ready"
    );
    let status = deployment.status.unwrap();
    // Once the autoscaler exists, the operator gives up `spec.replicas` of a new Deployment. The digest of what it applied
    // is an annotation, whose change counts as a generation of a Deployment.
    if !is_new {
        assert_eq!(status.observed_generation, deployment.metadata.generation);
    }
    assert!(status.unavailable_replicas.unwrap_or_default() == 0);
}
