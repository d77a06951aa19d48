//! An app with its Pod.

use k8s_openapi::api::core::v1::Pod;
use kube::core::ApiResource;
use kube::{Resource as _, ResourceExt as _};
use qm_api::MyApp;
use serde_json::{Value, json};
use testbed::proxy::ApiRequest;
use testbed::wait::until;

use super::{Reader, Scene, becomes_ready, damage, delete, resource};
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

pub async fn change(scene: &Scene<'_>) {
    let bed = &scene.bed;
    let first = json!({ "image": "nginx:1", "banner": "one" });
    let second = json!({ "image": "nginx:2", "banner": "two" });
    bed.create::<MyApp>("web", json!({ "spec": first })).await;
    becomes_ready::<MyApp>(scene, "web").await;
    scene.checkpoint("created").await;
    bed.patch::<MyApp>("web", json!({ "spec": second })).await;
    becomes_ready::<MyApp>(scene, "web").await;
    scene.checkpoint("changed").await;
    bed.patch::<MyApp>("web", json!({ "spec": first })).await;
    becomes_ready::<MyApp>(scene, "web").await;
    scene.checkpoint("changed back").await;

    let image = json!([{ "name": "web", "image": "evil" }]);
    damage_pod(scene, json!({ "spec": { "containers": image } })).await;
    scene.checkpoint("image corrected").await;
    damage_pod(scene, json!({ "metadata": { "labels": { "app": null } } })).await;
    scene.checkpoint("label corrected").await;
    let label = json!({ "quartermaster.dev/owner-uid": null });
    damage_pod(scene, json!({ "metadata": { "labels": label } })).await;
    scene.checkpoint("ownership label corrected").await;
    damage_pod(scene, json!({ "metadata": { "ownerReferences": null } })).await;
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

pub async fn delete_all(scene: &Scene<'_>) {
    delete::<MyApp>(scene, "web").await;
}

/// Changes the Pod with a strategic merge of its containers.
async fn damage_pod(scene: &Scene<'_>, patch: Value) {
    if patch["spec"].is_null() {
        damage::<Pod>(scene, "web-pod", patch).await;
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

/// Returns what the Pod of a ready app must show, and what it shows.
pub async fn expected_and_found(reader: &Reader, spec: &Value) -> anyhow::Result<(Value, Value)> {
    let pod = reader.api::<Pod>().get_opt("web-pod").await?;
    let pod = pod.filter(|pod| pod.meta().deletion_timestamp.is_none());
    Ok((
        json!([spec["image"], true]),
        json!(pod.as_ref().map(image_and_readiness)),
    ))
}

/// Returns the image of a Pod, and whether it is ready.
pub fn image_and_readiness(pod: &Pod) -> Value {
    let spec = json!(pod.spec);
    let status = json!(pod.status);
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let is_ready = conditions.any(|it| it["type"] == "Ready" && it["status"] == "True");
    json!([spec["containers"][0]["image"], is_ready])
}
