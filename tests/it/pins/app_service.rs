//! Walk-through of an `AppService`. The test plays the Deployment controller.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use qm_api::AppService;
use serde_json::{Value, json};
use testbed::wait::until;

use super::{Coverage, Walkthrough, assert_pinned, bed};
use crate::support::{Bed, SOON, Settings};

/// Writes the Deployment's status as the Deployment controller does once all Pods are available.
async fn roll_out(bed: &Bed) {
    let deployments: Api<Deployment> = bed.api();
    let deployment = deployments.get("web").await.unwrap();
    let replicas = deployment.spec.unwrap().replicas;
    let at = "2026-01-01T00:00:00Z";
    let status = json!({
        "observedGeneration": deployment.metadata.generation,
        "replicas": replicas,
        "updatedReplicas": replicas,
        "readyReplicas": replicas,
        "availableReplicas": replicas,
        "conditions": [{
            "type": "Available",
            "status": "True",
            "reason": "MinimumReplicasAvailable",
            "message": "Deployment has minimum availability.",
            "lastTransitionTime": at,
            "lastUpdateTime": at,
        }],
    });
    let patch = Patch::Merge(json!({ "status": status }));
    deployments
        .patch_status("web", &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// Waits until the condition `Ready` of the current generation has this reason.
async fn has_reason(bed: &Bed, reason: &str) {
    bed.until("web", reason, |app: &AppService| {
        app.status.as_ref().is_some_and(|status| {
            let ready = status.condition("Ready");
            status.observed_generation == app.metadata.generation
                && ready.is_some_and(|ready| ready.reason.as_deref() == Some(reason))
        })
    })
    .await;
}

/// Waits until the operator has written children and status of the current generation.
async fn is_observed(bed: &Bed) {
    bed.until("web", "is observed", |app: &AppService| {
        let status = app.status.as_ref();
        status.and_then(|status| status.observed_generation) == app.metadata.generation
    })
    .await;
}

async fn patch_spec(bed: &Bed, spec: Value) {
    bed.patch::<AppService>("web", json!({ "spec": spec }))
        .await;
}

/// Points the Service elsewhere, as another client.
async fn edit_service(bed: &Bed) {
    let other = PatchParams {
        field_manager: Some("other-client".into()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(json!({ "spec": { "selector": { "app": "other" } } }));
    let services: Api<Service> = bed.api();
    services.patch("web", &other, &patch).await.unwrap();
}

/// Waits until the Service points to the app again.
async fn is_corrected(bed: &Bed) {
    bed.until("web", "points to the app", |service: &Service| {
        let selector = service
            .spec
            .as_ref()
            .and_then(|spec| spec.selector.as_ref());
        selector.is_some_and(|selector| selector["app"] == "web")
    })
    .await;
}

#[tokio::test]
async fn app_service_behaves_as_pinned() {
    let settings = Settings::default().flag("--controllers=*,-myingress");
    let coverage = Coverage::of("appservice", &["list pods in <namespace>"]);
    let mut walk = Walkthrough::start(bed("app").await, settings, coverage).await;

    walk.follow::<AppService>("web");
    walk.follow::<Deployment>("web");
    walk.follow::<Service>("web");
    let ports = json!([{ "port": 80, "targetPort": 8080 }]);
    let resources = json!({ "requests": { "cpu": "100m" } });
    let spec = json!({ "size": 2, "image": "nginx:1.29", "ports": ports, "resources": resources });
    walk.bed
        .create::<AppService>("web", json!({ "spec": spec }))
        .await;
    has_reason(&walk.bed, "Progressing").await;
    walk.record("AppService created").await;

    roll_out(&walk.bed).await;
    has_reason(&walk.bed, "Ready").await;
    walk.events("web", "Ready", 1).await;
    walk.record("Deployment rolled out").await;

    patch_spec(&walk.bed, json!({ "size": 3, "image": "nginx:1.30" })).await;
    has_reason(&walk.bed, "Progressing").await;
    walk.record("image and size changed").await;

    roll_out(&walk.bed).await;
    has_reason(&walk.bed, "Ready").await;
    walk.events("web", "Ready", 2).await;
    walk.record("Deployment rolled out again").await;

    edit_service(&walk.bed).await;
    is_corrected(&walk.bed).await;
    walk.events("web", "DriftCorrected", 1).await;
    walk.record("Service edited by another client").await;

    edit_service(&walk.bed).await;
    is_corrected(&walk.bed).await;
    walk.record("Service edited a second time").await;

    edit_service(&walk.bed).await;
    is_corrected(&walk.bed).await;
    has_reason(&walk.bed, "DriftContested").await;
    walk.events("web", "DriftContested", 1).await;
    walk.record("Service edited a third time").await;

    walk.request::<AppService>("web").await;
    has_reason(&walk.bed, "DriftContested").await;
    walk.record("reconcile requested").await;

    let before = walk.bed.api::<Service>().get("web").await.unwrap().uid();
    walk.bed.delete::<Service>("web").await;
    let services: Api<Service> = walk.bed.api();
    until("another Service", SOON, async || {
        let now = services.get_opt("web").await?;
        Ok(now.filter(|now| now.uid() != before))
    })
    .await
    .unwrap();
    walk.events("web", "Recreated", 1).await;
    has_reason(&walk.bed, "Ready").await;
    walk.record("Service deleted by another client").await;

    walk.follow::<HorizontalPodAutoscaler>("web");
    walk.follow::<Ingress>("web");
    let more =
        json!({ "autoscaling": { "min": 2, "max": 5 }, "ingress": { "host": "web.example.com" } });
    patch_spec(&walk.bed, more).await;
    is_observed(&walk.bed).await;
    roll_out(&walk.bed).await;
    has_reason(&walk.bed, "Ready").await;
    walk.events("web", "Ready", 3).await;
    walk.record("autoscaling and ingress added").await;

    patch_spec(&walk.bed, json!({ "autoscaling": null, "ingress": null })).await;
    let scalers: Api<HorizontalPodAutoscaler> = walk.bed.api();
    let ingresses: Api<Ingress> = walk.bed.api();
    until(
        "HorizontalPodAutoscaler and Ingress are deleted",
        SOON,
        async || {
            let left = (
                scalers.get_opt("web").await?,
                ingresses.get_opt("web").await?,
            );
            Ok((left == (None, None)).then_some(()))
        },
    )
    .await
    .unwrap();
    is_observed(&walk.bed).await;
    roll_out(&walk.bed).await;
    has_reason(&walk.bed, "Ready").await;
    walk.events("web", "AutoscalingDisabled", 1).await;
    walk.events("web", "Ready", 4).await;
    walk.record("autoscaling and ingress removed").await;

    patch_spec(&walk.bed, json!({ "suspend": true })).await;
    has_reason(&walk.bed, "Suspended").await;
    walk.events("web", "Suspended", 1).await;
    edit_service(&walk.bed).await;
    walk.record("AppService suspended, Service edited").await;

    patch_spec(&walk.bed, json!({ "suspend": false })).await;
    is_corrected(&walk.bed).await;
    has_reason(&walk.bed, "Ready").await;
    walk.events("web", "DriftCorrected", 2).await;
    walk.events("web", "Ready", 5).await;
    walk.record("AppService resumed").await;

    walk.bed.delete::<AppService>("web").await;
    walk.record("AppService deleted").await;
    assert_pinned!("app_service", walk.end().await);
}
