//! A sync with copies in two namespaces.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, DeleteParams, PostParams};
use kube::core::ApiResource;
use qm_api::ConfigMapSync;
use serde_json::{Value, json};
use testbed::proxy::ApiRequest;

use super::{Reader, Scene, becomes_ready, damage_in, delete, resource};

pub fn resources() -> Vec<ApiResource> {
    vec![resource::<ConfigMapSync>(), resource::<ConfigMap>()]
}

pub fn owns(request: &ApiRequest) -> bool {
    let is_destination = ["-one", "-two"].iter().any(|suffix| {
        let namespace = request.namespace.as_deref();
        namespace.is_some_and(|it| it.ends_with(suffix))
    });
    match (request.resource.as_str(), request.name.as_deref()) {
        ("configmapsyncs", Some("sync")) => !is_destination,
        ("configmaps", Some("settings")) => is_destination,
        _ => false,
    }
}

/// Returns the namespaces of the copies.
pub fn destinations(namespace: &str) -> [String; 2] {
    ["one", "two"].map(|name| format!("{namespace}-{name}"))
}

pub async fn prepare(scene: &Scene<'_>) {
    let namespaces: Api<Namespace> = Api::all(scene.bed.client.clone());
    for name in destinations(&scene.bed.namespace) {
        let object = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        namespaces
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
        // An object that is no copy.
        let other = json!({ "metadata": { "name": "other" }, "data": { "a": "0" } });
        maps(scene, &name)
            .create(
                &PostParams::default(),
                &serde_json::from_value(other).unwrap(),
            )
            .await
            .unwrap();
    }
    source(scene).await;
}

async fn source(scene: &Scene<'_>) {
    let rest = json!({ "data": { "a": "1" }, "binaryData": { "b": "AAE=" } });
    scene.bed.create::<ConfigMap>("settings", rest).await;
}

pub async fn change(scene: &Scene<'_>) {
    let bed = &scene.bed;
    let [one, two] = destinations(&bed.namespace);
    let spec = json!({
        "sourceNamespace": bed.namespace,
        "configMapName": "settings",
        "destinationNamespaces": [one, two],
    });
    bed.create::<ConfigMapSync>("sync", json!({ "spec": spec }))
        .await;
    becomes_ready::<ConfigMapSync>(scene, "sync").await;
    scene.checkpoint("created").await;
    edit_source(scene, "2").await;
    scene.checkpoint("source changed").await;
    edit_source(scene, "1").await;
    scene.checkpoint("source changed back").await;
    let destinations = |names: Value| json!({ "spec": { "destinationNamespaces": names } });
    bed.patch::<ConfigMapSync>("sync", destinations(json!([one])))
        .await;
    becomes_ready::<ConfigMapSync>(scene, "sync").await;
    scene.checkpoint("destination removed").await;
    bed.patch::<ConfigMapSync>("sync", destinations(json!([one, two])))
        .await;
    becomes_ready::<ConfigMapSync>(scene, "sync").await;
    scene.checkpoint("destination added").await;

    damage_in::<ConfigMap>(
        scene,
        &one,
        "settings",
        json!({ "data": { "a": "3", "more": "x" } }),
    )
    .await;
    scene.checkpoint("copy corrected").await;
    maps(scene, &two)
        .delete("settings", &DeleteParams::default())
        .await
        .unwrap();
    scene.checkpoint("copy recreated").await;
    bed.delete::<ConfigMap>("settings").await;
    scene.checkpoint("source deleted").await;
    let rest = json!({ "data": { "a": "2" }, "immutable": true });
    bed.create::<ConfigMap>("settings", rest).await;
    scene.checkpoint("source recreated, immutable").await;
    bed.delete::<ConfigMap>("settings").await;
    source(scene).await;
    scene.checkpoint("immutable copies replaced").await;
}

pub async fn delete_all(scene: &Scene<'_>) {
    delete::<ConfigMapSync>(scene, "sync").await;
}

fn maps(scene: &Scene<'_>, namespace: &str) -> Api<ConfigMap> {
    Api::namespaced(scene.bed.client.clone(), namespace)
}

async fn edit_source(scene: &Scene<'_>, value: &str) {
    let data = json!({ "data": { "a": value } });
    scene.bed.patch::<ConfigMap>("settings", data).await;
}

/// Returns what the copies of a synced source must be, and what they are.
pub async fn expected_and_found(reader: &Reader, spec: &Value) -> anyhow::Result<(Value, Value)> {
    let source = reader.api::<ConfigMap>().get("settings").await?;
    let wanted = spec["destinationNamespaces"].as_array();
    let (mut expected, mut found) = (json!({}), json!({}));
    for namespace in destinations(&reader.namespace) {
        let is_wanted = wanted.is_some_and(|it| it.contains(&json!(namespace)));
        let maps: Api<ConfigMap> = Api::namespaced(reader.client.clone(), &namespace);
        let copy = maps.get_opt("settings").await?;
        let data = |map: ConfigMap| json!([map.data, map.binary_data]);
        expected[&namespace] = json!(is_wanted.then(|| data(source.clone())));
        found[&namespace] = json!(copy.map(data));
    }
    Ok((expected, found))
}
