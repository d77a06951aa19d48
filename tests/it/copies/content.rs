//! Content of copies, and corrections of their drift.

use std::time::Duration;

use rstest::rstest;

use super::*;

#[tokio::test]
async fn copy_follows_creation_edit_and_deletion_of_the_source() {
    let shop = Shop::shared("copy").await;
    let far = shop.open("far", json!({})).await;
    let _operator = shop.operator(&["far"]).await;
    let here = shop.bed.namespace.clone();

    shop.sync("s", json!({ "destinationNamespace": far })).await;
    let message = shop.reads("s", "SourceNotFound").await;
    assert!(message.contains(&format!("{here}/settings")), "{message}");

    shop.map(
        &here,
        "settings",
        json!({ "data": { "a": "1", "b": "2" }, "binaryData": { "c": "AAEC" } }),
    )
    .await;
    let copy = shop
        .copied(&far, "settings", json!({ "a": "1", "b": "2" }))
        .await;
    assert_eq!(copy.binary_data.unwrap()["c"].0, [0, 1, 2]);
    shop.reads("s", "Synced").await;
    let status = shop
        .bed
        .api::<ConfigMapSync>()
        .get("s")
        .await
        .unwrap()
        .status
        .unwrap();
    assert_eq!((status.copies, status.destinations), (Some(1), Some(1)));
    let first = status.last_sync_time.unwrap();
    shop.assert_at_rest("s").await;
    let status = shop
        .bed
        .api::<ConfigMapSync>()
        .get("s")
        .await
        .unwrap()
        .status
        .unwrap();
    assert_eq!(
        status.last_sync_time,
        Some(first.clone()),
        "the time changes only with a write"
    );

    // The creation time has whole seconds.
    until("the next second", SOON, async || {
        Ok((jiff::Timestamp::now() > first.0 + Duration::from_secs(1)).then_some(()))
    })
    .await
    .unwrap();
    shop.edit(
        &here,
        "settings",
        json!({ "data": { "a": "x", "b": null, "d": "" }, "binaryData": null }),
    )
    .await;
    let copy = shop
        .copied(&far, "settings", json!({ "a": "x", "d": "" }))
        .await;
    assert_eq!(copy.binary_data, None);
    shop.bed
        .until("s", "has the time of the write", |sync: &ConfigMapSync| {
            sync.status
                .as_ref()
                .and_then(|status| status.last_sync_time.clone())
                > Some(first.clone())
        })
        .await;
    shop.assert_at_rest("s").await;

    shop.drop(&here, "settings").await;
    shop.reads("s", "SourceNotFound").await;
    assert_eq!(
        version(
            &shop
                .copied(&far, "settings", json!({ "a": "x", "d": "" }))
                .await
        ),
        version(&copy)
    );
}

#[tokio::test]
async fn namespace_of_the_source_is_named_while_it_does_not_exist() {
    let shop = Shop {
        bed: Bed::on_own_plane("nowhere").await,
    };
    let here = shop.bed.namespace.clone();
    let _operator = Operator::start(&shop.bed, Settings::default().whole_cluster()).await;
    let far = shop.other_namespace("later");
    shop.sync(
        "s",
        json!({ "sourceNamespace": far, "destinationNamespace": here }),
    )
    .await;
    let message = shop.reads("s", "SourceNotFound").await;
    assert_eq!(
        message,
        format!(
            "namespace {far} of ConfigMap settings does not exist: correct spec.sourceNamespace, or create both \
             (existing copies are kept)"
        )
    );
    shop.open("later", json!({})).await;
    shop.bed
        .until(
            "s",
            "reports the missing ConfigMap",
            |sync: &ConfigMapSync| {
                let message = format!(
                    "ConfigMap {far}/settings does not exist: create it (existing copies are kept)"
                );
                sync.status.as_ref().is_some_and(|status| {
                    status
                        .conditions
                        .first()
                        .is_some_and(|it| it.message == message)
                })
            },
        )
        .await;
    shop.map(&far, "settings", json!({ "data": { "a": "1" } }))
        .await;
    shop.copied(&here, "settings", json!({ "a": "1" })).await;
}

#[tokio::test]
async fn correction_of_a_copy_is_reported_once_an_episode() {
    let shop = Shop::shared("told").await;
    let far = shop.open("far", json!({})).await;
    let operator = shop.operator(&["far"]).await;
    let here = shop.bed.namespace.clone();
    let data = json!({ "a": "1" });
    shop.map(&here, "settings", json!({ "data": data })).await;
    shop.sync("s", json!({ "destinationNamespace": far })).await;
    shop.copied(&far, "settings", data.clone()).await;
    shop.reads("s", "Synced").await;
    for value in ["edited", "edited again"] {
        shop.edit(&far, "settings", json!({ "data": { "a": value } }))
            .await;
        shop.copied(&far, "settings", data.clone()).await;
    }
    let message = shop.bed.event("s", "DriftCorrected").await;
    let expected = format!("corrected data.a of ConfigMap {far}/settings, changed by ");
    assert!(
        message.starts_with(&expected) && message.ends_with(": change the source instead"),
        "{message}"
    );
    // A change of the source is not drift.
    shop.edit(&here, "settings", json!({ "data": { "a": "2" } }))
        .await;
    shop.copied(&far, "settings", json!({ "a": "2" })).await;
    shop.reads("s", "Synced").await;
    assert_eq!(shop.bed.events("s", "DriftCorrected").await.len(), 1);
    let metrics = operator.metrics().await;
    assert!(
        metrics.contains("quartermaster_drift_corrections_total{controller=\"configmapsync\"} 2"),
        "{metrics}"
    );
}

#[tokio::test]
async fn edited_copy_is_corrected() {
    let shop = Shop::shared("drift").await;
    let far = shop.open("far", json!({})).await;
    let _operator = shop.operator(&["far"]).await;
    let here = shop.bed.namespace.clone();
    let data = json!({ "a": "1", "b": "2" });
    let labels = json!({ "team": "x", "tier": "1" });
    shop.map(
        &here,
        "settings",
        json!({ "metadata": { "labels": labels }, "data": data, "binaryData": { "c": "AAEC" } }),
    )
    .await;
    shop.sync(
        "s",
        json!({ "destinationNamespace": far, "copyLabels": true }),
    )
    .await;
    shop.copied(&far, "settings", data.clone()).await;
    let uid = shop
        .bed
        .api::<ConfigMapSync>()
        .get("s")
        .await
        .unwrap()
        .uid()
        .unwrap();
    for patch in [
        json!({ "data": { "a": "edited" } }),
        json!({ "data": { "more": "x" } }),
        json!({ "data": { "b": null } }),
        json!({ "data": null }),
        json!({ "binaryData": { "c": "AAEE" } }),
        json!({ "binaryData": null }),
        json!({ "metadata": { "labels": { "team": "y" } } }),
        json!({ "metadata": { "labels": { "tier": null } } }),
        json!({ "metadata": { "labels": { "other": "z" } } }),
        json!({ "metadata": { "annotations": { "quartermaster.dev/owner": null } } }),
    ] {
        let edited = shop.edit(&far, "settings", patch.clone()).await;
        let right = |map: &ConfigMap| {
            version(map) != version(&edited)
                && serde_json::to_value(&map.data).unwrap() == data
                && map
                    .binary_data
                    .as_ref()
                    .is_some_and(|data| data["c"].0 == [0, 1, 2])
                && map.labels().len() == 3
                && map.labels()["team"] == "x"
                && map.labels()["tier"] == "1"
                && map.labels()["quartermaster.dev/owner-uid"] == uid
                && map.annotations()["quartermaster.dev/owner"] == format!("{here}/s")
        };
        shop.until(
            &far,
            "settings",
            &format!("is corrected after {patch}"),
            right,
        )
        .await;
    }
    shop.drop(&far, "settings").await;
    shop.copied(&far, "settings", data.clone()).await;
    shop.reads("s", "Synced").await;
    shop.assert_at_rest("s").await;

    // Labels that the spec no longer copies disappear, and the operator then ignores those of others.
    shop.bed
        .patch::<ConfigMapSync>("s", json!({ "spec": { "copyLabels": null } }))
        .await;
    let alone = |map: &ConfigMap| map.labels().keys().eq(["quartermaster.dev/owner-uid"]);
    shop.until(&far, "settings", "has the operator's label alone", alone)
        .await;
    shop.reads("s", "Synced").await;
    let labelled = shop
        .edit(
            &far,
            "settings",
            json!({ "metadata": { "labels": { "theirs": "x" } } }),
        )
        .await;
    shop.assert_at_rest("s").await;
    assert_eq!(
        version(&shop.maps(&far).get("settings").await.unwrap()),
        version(&labelled)
    );
}

#[tokio::test]
async fn annotations_are_copied_on_request_without_those_of_kubectl() {
    let shop = Shop::shared("notes").await;
    let far = shop.open("far", json!({})).await;
    let _operator = shop.operator(&["far"]).await;
    let manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings, annotations: {note: x}}\ndata: {a: '1'}\n";
    shop.bed
        .plane
        .run_kubectl(&["-n", &shop.bed.namespace, "apply", "-f", "-"], manifest)
        .await
        .unwrap();
    shop.sync(
        "s",
        json!({ "destinationNamespace": far, "destinationName": "other", "copyAnnotations": true }),
    )
    .await;
    let copy = shop.copied(&far, "other", json!({ "a": "1" })).await;
    let names: Vec<_> = copy.annotations().keys().map(String::as_str).collect();
    assert_eq!(names, ["note", "quartermaster.dev/owner"]);
    assert!(shop.maps(&far).get_opt("settings").await.unwrap().is_none());
}

#[tokio::test]
async fn replaced_immutable_source_replaces_its_copy() {
    let shop = Shop::shared("immutable").await;
    let far = shop.open("far", json!({})).await;
    let _operator = shop.operator(&["far"]).await;
    let here = shop.bed.namespace.clone();
    shop.map(
        &here,
        "settings",
        json!({ "data": { "a": "1" }, "immutable": true }),
    )
    .await;
    shop.sync("s", json!({ "destinationNamespace": far })).await;
    let first = shop.copied(&far, "settings", json!({ "a": "1" })).await;
    assert_eq!(first.immutable, Some(true));
    shop.drop(&here, "settings").await;
    shop.map(
        &here,
        "settings",
        json!({ "data": { "a": "2" }, "immutable": true }),
    )
    .await;
    let second = shop.copied(&far, "settings", json!({ "a": "2" })).await;
    assert_eq!(
        (second.immutable, second.uid() == first.uid()),
        (Some(true), false)
    );
    shop.drop(&here, "settings").await;
    shop.map(&here, "settings", json!({ "data": { "a": "2" } }))
        .await;
    shop.until(&far, "settings", "may be edited", |map| {
        map.immutable != Some(true)
    })
    .await;
    shop.reads("s", "Synced").await;
    shop.assert_at_rest("s").await;
}

#[rstest]
#[case::text("data", "x".repeat(1024 * 1024 - 64))]
#[case::bytes("binaryData", "AAAA".repeat((1024 * 1024 - 64) / 3))]
#[tokio::test]
async fn value_of_nearly_a_mebibyte_is_copied(#[case] field: &str, #[case] value: String) {
    let shop = Shop::shared("large").await;
    let far = shop.open("far", json!({})).await;
    let _operator = shop.operator(&["far"]).await;
    let here = shop.bed.namespace.clone();
    shop.sync("s", json!({ "destinationNamespace": far })).await;
    let source = shop
        .map(&here, "settings", json!({ field: { "large": value } }))
        .await;
    let same = |map: &ConfigMap| map.data == source.data && map.binary_data == source.binary_data;
    shop.until(&far, "settings", "is as large", same).await;
    shop.reads("s", "Synced").await;
}
