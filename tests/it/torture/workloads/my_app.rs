//! An app with its Pod.

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::core::ApiResource;
use qm_api::MyApp;
use serde_json::{Value, json};
use testbed::proxy::ApiRequest;
use testbed::wait::until;

use super::{Scene, delete, harm, resource};
use crate::support::SOON;

pub fn resources() -> Vec<ApiResource> {
    vec![resource::<MyApp>(), resource::<Pod>()]
}

pub fn owns(request: &ApiRequest) -> bool {
    let object = (request.resource.as_str(), request.name.as_deref());
    matches!(object, ("myapps", Some("web")) | ("pods", Some("web-pod")))
}

pub async fn prepare(scene: &Scene<'_>) {
    scene.bed.accepts_pods().await;
    // Looks like a child.
    let container = json!({ "name": "web", "image": "nginx:0" });
    let pod = json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [container] } });
    scene.bed.create::<Pod>("other-pod", pod).await;
}

pub async fn live(scene: &Scene<'_>) {
    let bed = &scene.bed;
    let first = json!({ "image": "nginx:1", "banner": "one" });
    let second = json!({ "image": "nginx:2", "banner": "two" });
    bed.create::<MyApp>("web", json!({ "spec": first })).await;
    is_ready(scene, "nginx:1").await;
    scene.checkpoint("created").await;
    bed.patch::<MyApp>("web", json!({ "spec": second })).await;
    is_ready(scene, "nginx:2").await;
    scene.checkpoint("changed").await;
    bed.patch::<MyApp>("web", json!({ "spec": first })).await;
    is_ready(scene, "nginx:1").await;
    scene.checkpoint("changed back").await;

    let image = json!([{ "name": "web", "image": "evil" }]);
    harm_pod(scene, json!({ "spec": { "containers": image } })).await;
    scene.checkpoint("image corrected").await;
    harm_pod(scene, json!({ "metadata": { "labels": { "app": null } } })).await;
    scene.checkpoint("label corrected").await;
    let label = json!({ "quartermaster.dev/owner-uid": null });
    harm_pod(scene, json!({ "metadata": { "labels": label } })).await;
    scene.checkpoint("ownership label corrected").await;
    harm_pod(scene, json!({ "metadata": { "ownerReferences": null } })).await;
    scene.checkpoint("owner reference corrected").await;
    let deleted = bed.api::<Pod>().get("web-pod").await.unwrap().uid();
    bed.delete::<Pod>("web-pod").await;
    // Until then, the state equals that of the checkpoint: kwok may take seconds to start the Pod.
    until("another Pod runs", SOON, async || {
        let pod = bed.api::<Pod>().get_opt("web-pod").await?;
        let phase = |pod: &Pod| pod.status.as_ref()?.phase.clone();
        let runs = pod
            .filter(|pod| pod.uid() != deleted)
            .is_some_and(|pod| phase(&pod).as_deref() == Some("Running"));
        Ok(runs.then_some(()))
    })
    .await
    .unwrap();
    scene.checkpoint("Pod recreated").await;
}

pub async fn end(scene: &Scene<'_>) {
    delete::<MyApp>(scene, "web").await;
}

/// Changes the Pod with a strategic merge of its containers.
async fn harm_pod(scene: &Scene<'_>, patch: Value) {
    if patch["spec"].is_null() {
        harm::<Pod>(scene, "web-pod", patch).await;
        return;
    }
    let pods = scene.bed.api::<Pod>();
    let params = kube::api::PatchParams {
        field_manager: Some("somebody".into()),
        ..Default::default()
    };
    pods.patch("web-pod", &params, &kube::api::Patch::Strategic(patch))
        .await
        .unwrap();
}

/// Waits until the status says that the app is ready with the current spec. The Pod must be so at that moment.
async fn is_ready(scene: &Scene<'_>, image: &str) {
    let ready = |app: &MyApp| {
        let status = app.status.as_ref();
        status.is_some_and(|it| it.observed_generation == app.metadata.generation && it.ready)
    };
    scene.bed.until("web", "is ready", ready).await;
    // kwok deletes by name, and at times another Pod than the Terminating one that it has seen.
    let pod = scene.bed.api::<Pod>().get_opt("web-pod").await.unwrap();
    if let Some(spec) = pod.and_then(|pod| pod.spec) {
        assert_eq!(
            spec.containers[0].image.as_deref(),
            Some(image),
            "the status says that the app is ready"
        );
    }
}
