//! Walk-through of a `ConfigMapSync` with a copy in another namespace.

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use qm_api::ConfigMapSync;
use serde_json::{Value, json};
use testbed::wait::until;

use super::{Coverage, Walkthrough, assert_pinned, bed};
use crate::support::{SOON, Settings};

/// Waits until the copy has this content; `None`: until there is no copy.
async fn has_content(copies: &Api<ConfigMap>, name: &str, content: Option<Value>) {
    until(format!("copy {name}: {content:?}"), SOON, async || {
        let copy = copies.get_opt(name).await?;
        let data = copy.map(|copy| json!(copy.data.unwrap_or_default()));
        Ok((data == content).then_some(()))
    })
    .await
    .unwrap();
}

/// Waits until the condition `Ready` of the current generation has this reason.
async fn has_reason(walk: &Walkthrough, reason: &str) -> ConfigMapSync {
    walk.bed
        .until("it", reason, |sync: &ConfigMapSync| {
            sync.status.as_ref().is_some_and(|status| {
                status.observed_generation == sync.metadata.generation
                    && status.conditions[0].reason == reason
            })
        })
        .await
}

/// Waits until `lastSyncTime` differs from that of `before`.
async fn is_synced_again(walk: &Walkthrough, before: &ConfigMapSync) -> ConfigMapSync {
    let time = |sync: &ConfigMapSync| {
        sync.status
            .as_ref()
            .and_then(|it| it.last_sync_time.clone())
    };
    let before = time(before);
    walk.bed
        .until("it", "is synced again", |sync| time(sync) != before)
        .await
}

#[tokio::test]
async fn config_map_sync_behaves_as_pinned() {
    let bed = bed("sync").await;
    let far = format!("{}-far", bed.namespace);
    let namespace = serde_json::from_value(json!({ "metadata": { "name": far } })).unwrap();
    Api::<Namespace>::all(bed.client.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let settings = Settings::default()
        .flag("--controllers=*,-myingress")
        .flag(&format!("--watch-namespace={},{far}", bed.namespace));
    let copies: Api<ConfigMap> = Api::namespaced(bed.client.clone(), &far);
    let edit = async |patch: Value| {
        let other = PatchParams {
            field_manager: Some("other-client".into()),
            ..PatchParams::default()
        };
        copies
            .patch("settings", &other, &Patch::Merge(&patch))
            .await
            .unwrap();
    };
    let coverage = Coverage::of(
        "configmapsync",
        &[
            "get configmaps settings",
            "get: 404 configmaps settings",
            "list configmaps in <namespace>",
            "list configmaps in <namespace>-far",
        ],
    );
    let mut walk = Walkthrough::start(bed, settings, coverage).await;

    walk.follow::<ConfigMapSync>("it");
    walk.follow_in::<ConfigMap>(&far, "settings");
    let content = json!({ "colour": "green" });
    walk.bed
        .create::<ConfigMap>("settings", json!({ "data": content }))
        .await;
    let spec = json!({
        "sourceNamespace": walk.bed.namespace,
        "configMapName": "settings",
        "destinationNamespace": far,
    });
    walk.bed
        .create::<ConfigMapSync>("it", json!({ "spec": spec }))
        .await;
    let mut sync = has_reason(&walk, "Synced").await;
    walk.events("it", "Synced", 1).await;
    walk.record("ConfigMapSync created").await;

    let content = json!({ "colour": "blue" });
    walk.bed
        .patch::<ConfigMap>("settings", json!({ "data": content }))
        .await;
    sync = is_synced_again(&walk, &sync).await;
    has_content(&copies, "settings", Some(content.clone())).await;
    walk.record("source changed").await;

    edit(json!({ "data": { "colour": "red", "more": "1" } })).await;
    sync = is_synced_again(&walk, &sync).await;
    has_content(&copies, "settings", Some(content.clone())).await;
    walk.events("it", "DriftCorrected", 1).await;
    walk.record("copy edited by another client").await;

    edit(json!({ "data": { "colour": "red", "more": "1" } })).await;
    sync = is_synced_again(&walk, &sync).await;
    has_content(&copies, "settings", Some(content.clone())).await;
    walk.record("copy edited a second time").await;

    copies
        .delete("settings", &DeleteParams::default())
        .await
        .unwrap();
    sync = is_synced_again(&walk, &sync).await;
    has_content(&copies, "settings", Some(content.clone())).await;
    walk.events("it", "Recreated", 1).await;
    walk.record("copy deleted by another client").await;

    walk.request::<ConfigMapSync>("it").await;
    walk.record("reconcile requested").await;

    walk.bed.delete::<ConfigMap>("settings").await;
    has_reason(&walk, "SourceNotFound").await;
    walk.events("it", "SourceNotFound", 1).await;
    walk.record("source deleted").await;

    walk.bed
        .create::<ConfigMap>("settings", json!({ "data": content }))
        .await;
    has_reason(&walk, "Synced").await;
    walk.events("it", "Synced", 2).await;
    walk.record("source created again").await;

    walk.follow_in::<ConfigMap>(&far, "renamed");
    let patch = json!({ "spec": { "destinationName": "renamed" } });
    walk.bed.patch::<ConfigMapSync>("it", patch).await;
    is_synced_again(&walk, &sync).await;
    has_content(&copies, "renamed", Some(content.clone())).await;
    has_content(&copies, "settings", None).await;
    has_reason(&walk, "Synced").await;
    walk.record("spec.destinationName changed").await;

    let patch = json!({ "spec": { "suspend": true } });
    walk.bed.patch::<ConfigMapSync>("it", patch).await;
    has_reason(&walk, "Suspended").await;
    walk.events("it", "Suspended", 1).await;
    let content = json!({ "colour": "black" });
    walk.bed
        .patch::<ConfigMap>("settings", json!({ "data": content }))
        .await;
    walk.record("ConfigMapSync suspended, source changed").await;

    let patch = json!({ "spec": { "suspend": false } });
    walk.bed.patch::<ConfigMapSync>("it", patch).await;
    has_reason(&walk, "Synced").await;
    has_content(&copies, "renamed", Some(content)).await;
    walk.events("it", "Synced", 3).await;
    walk.record("ConfigMapSync resumed").await;

    walk.bed.delete::<ConfigMapSync>("it").await;
    has_content(&copies, "renamed", None).await;
    let syncs: Api<ConfigMapSync> = walk.bed.api();
    until("the ConfigMapSync is deleted", SOON, async || {
        Ok(syncs.get_opt("it").await?.is_none().then_some(()))
    })
    .await
    .unwrap();
    walk.record("ConfigMapSync deleted").await;
    assert_pinned!("config_map_sync", walk.end().await);
}
