//! Ownership of copies: the operator never changes an unowned `ConfigMap`.

use std::time::Duration;

use http::StatusCode;
use qm_api::config_map_sync::FINALIZER;
use testbed::proxy::{Fault, Match, Times, Verb};

use super::*;

#[tokio::test]
async fn foreign_config_map_is_unchanged_until_adoption() {
    let shop = Shop::shared("foreign").await;
    let far = shop.open("far", json!({})).await;
    let operator = shop.operator(&["far"]).await;
    let here = shop.bed.namespace.clone();
    let foreign = shop
        .map(&far, "settings", json!({ "data": { "their": "own" } }))
        .await;
    shop.map(&here, "settings", json!({ "data": { "a": "1" } }))
        .await;
    shop.sync("s", json!({ "destinationNamespace": far })).await;
    let message = shop.reads("s", "Conflict").await;
    let command = format!(
        "kubectl annotate configmaps settings -n {far} quartermaster.dev/adopt-by={here}/s"
    );
    assert!(message.ends_with(&command), "{message}");
    // Triggers of every kind: the source and the ConfigMap are edited, the sync is changed, the operator restarts.
    shop.edit(&here, "settings", json!({ "data": { "a": "2" } }))
        .await;
    shop.assert_at_rest("s").await;
    let edited = shop
        .edit(&far, "settings", json!({ "data": { "their": "new" } }))
        .await;
    shop.assert_at_rest("s").await;
    assert_eq!(edited.uid(), foreign.uid());
    drop(operator);
    let _operator = shop.operator(&["far"]).await;
    shop.assert_at_rest("s").await;
    assert_eq!(
        version(&shop.maps(&far).get("settings").await.unwrap()),
        version(&edited)
    );

    // The message ends with a command that works.
    let arguments: Vec<_> = command.split(' ').skip(1).collect();
    shop.bed.plane.run_kubectl(&arguments, "").await.unwrap();
    let copy = shop.copied(&far, "settings", json!({ "a": "2" })).await;
    assert!(
        copy.uid() == foreign.uid()
            && !copy
                .annotations()
                .contains_key("quartermaster.dev/adopt-by")
    );
    shop.reads("s", "Synced").await;
    shop.assert_at_rest("s").await;

    // Without the label nothing proves ownership, not even the annotation.
    let stripped = shop
        .edit(
            &far,
            "settings",
            json!({ "metadata": { "labels": { OWNER_LABEL: null } } }),
        )
        .await;
    shop.reads("s", "Conflict").await;
    shop.edit(&here, "settings", json!({ "data": { "a": "3" } }))
        .await;
    shop.assert_at_rest("s").await;
    assert_eq!(
        version(&shop.maps(&far).get("settings").await.unwrap()),
        version(&stripped)
    );
    // The deletion of the sync keeps the ConfigMap.
    shop.bed.delete::<ConfigMapSync>("s").await;
    shop.ended("s").await;
    assert_eq!(
        version(&shop.maps(&far).get("settings").await.unwrap()),
        version(&stripped)
    );
}

#[tokio::test]
async fn foreign_config_map_newer_than_the_sync_is_unchanged() {
    let shop = Shop::shared("later").await;
    let far = shop.open("far", json!({})).await;
    let _operator = shop.operator(&["far"]).await;
    let here = shop.bed.namespace.clone();
    shop.sync("s", json!({ "destinationNamespace": far })).await;
    shop.reads("s", "SourceNotFound").await;
    let foreign = shop
        .map(&far, "settings", json!({ "data": { "their": "own" } }))
        .await;
    shop.map(&here, "settings", json!({ "data": { "a": "1" } }))
        .await;
    shop.reads("s", "Conflict").await;
    shop.assert_at_rest("s").await;
    assert_eq!(
        version(&shop.maps(&far).get("settings").await.unwrap()),
        version(&foreign)
    );
    // Once the ConfigMap is deleted, the operator creates the copy immediately, because the watch shows the deletion.
    shop.drop(&far, "settings").await;
    shop.copied(&far, "settings", json!({ "a": "1" })).await;
}

#[tokio::test]
async fn first_of_two_syncs_keeps_the_copy() {
    let shop = Shop::shared("two").await;
    let far = shop.open("far", json!({})).await;
    let _operator = shop.operator(&["far"]).await;
    let here = shop.bed.namespace.clone();
    shop.map(&here, "settings", json!({ "data": { "a": "first" } }))
        .await;
    shop.map(&here, "others", json!({ "data": { "a": "second" } }))
        .await;
    shop.sync("first", json!({ "destinationNamespace": far }))
        .await;
    let copy = shop.copied(&far, "settings", json!({ "a": "first" })).await;
    shop.sync(
        "second",
        json!({ "configMapName": "others", "destinationName": "settings", "destinationNamespace": far }),
    )
    .await;
    let message = shop.reads("second", "Conflict").await;
    assert!(
        message.contains(&format!("belongs to ConfigMapSync {here}/first")),
        "{message}"
    );
    shop.assert_at_rest("second").await;
    assert_eq!(
        version(&shop.maps(&far).get("settings").await.unwrap()),
        version(&copy)
    );
    // The command in the message moves the copy from one sync to the other, and back.
    let message = run_adopt_command(&shop, &message, "second").await;
    shop.reads("first", "Conflict").await;
    assert_eq!(
        shop.copied(&far, "settings", json!({ "a": "second" }))
            .await
            .uid(),
        copy.uid()
    );
    assert!(
        message.contains(&format!("belongs to ConfigMapSync {here}/second")),
        "{message}"
    );
    run_adopt_command(&shop, &message, "first").await;
    shop.copied(&far, "settings", json!({ "a": "first" })).await;
    shop.reads("second", "Conflict").await;
    shop.assert_at_rest("second").await;
    shop.assert_at_rest("first").await;
    // The second sync adopts the copy once the first is deleted.
    shop.bed.delete::<ConfigMapSync>("first").await;
    shop.copied(&far, "settings", json!({ "a": "second" }))
        .await;
    shop.reads("second", "Synced").await;
}

/// Runs the command at the end of a conflict's message, for `sync`; returns the other sync's message.
async fn run_adopt_command(shop: &Shop, message: &str, sync: &str) -> String {
    let (_, command) = message.split_once("kubectl ").unwrap();
    shop.bed
        .plane
        .run_kubectl(&command.split(' ').collect::<Vec<_>>(), "")
        .await
        .unwrap();
    shop.reads(sync, "Synced").await;
    shop.reads(if sync == "first" { "second" } else { "first" }, "Conflict")
        .await
}

#[tokio::test]
async fn chain_works_and_loop_does_not_spin() {
    let shop = Shop::shared("chain").await;
    let (b, c) = (
        shop.open("b", json!({})).await,
        shop.open("c", json!({})).await,
    );
    let _operator = shop.operator(&["b", "c"]).await;
    let here = shop.bed.namespace.clone();
    shop.map(&here, "settings", json!({ "data": { "a": "1" } }))
        .await;
    shop.sync("ab", json!({ "destinationNamespace": b })).await;
    shop.copied(&b, "settings", json!({ "a": "1" })).await;
    // A second path of the loop: this sync takes over once the first is deleted.
    shop.sync("also", json!({ "destinationNamespace": b }))
        .await;
    shop.reads("also", "Conflict").await;
    shop.sync(
        "bc",
        json!({ "sourceNamespace": b, "destinationNamespace": c }),
    )
    .await;
    shop.copied(&c, "settings", json!({ "a": "1" })).await;
    shop.edit(&here, "settings", json!({ "data": { "a": "2" } }))
        .await;
    shop.copied(&c, "settings", json!({ "a": "2" })).await;

    // The ConfigMap is adoptable, so that only the rule against loops prevents writes to it.
    let adopt = json!({ "metadata": { "annotations": { "quartermaster.dev/adopt-by": format!("{here}/ca") } } });
    shop.edit(&here, "settings", adopt).await;
    // The creation times have whole seconds.
    let second: ConfigMapSync = shop.bed.api().get("bc").await.unwrap();
    let then = second.metadata.creation_timestamp.unwrap().0 + Duration::from_secs(1);
    until("the next second", SOON, async || {
        Ok((jiff::Timestamp::now() >= then).then_some(()))
    })
    .await
    .unwrap();
    shop.sync(
        "ca",
        json!({ "sourceNamespace": c, "destinationNamespace": here }),
    )
    .await;
    let message = shop.reads("ca", "Loop").await;
    for link in ["ab", "also", "bc"] {
        assert!(
            message.contains(&format!("ConfigMapSync {here}/{link}")),
            "{message}"
        );
    }
    let source = shop
        .edit(&here, "settings", json!({ "data": { "a": "3" } }))
        .await;
    shop.copied(&c, "settings", json!({ "a": "3" })).await;
    shop.assert_at_rest("ab").await;
    assert_eq!(
        version(&shop.maps(&here).get("settings").await.unwrap()),
        version(&source)
    );
    // Once the chain no longer loops, the sync continues.
    shop.bed.delete::<ConfigMapSync>("also").await;
    shop.bed.delete::<ConfigMapSync>("ab").await;
    shop.reads("ca", "Synced").await;
}

/// A tenant's status must not reveal the objects of other tenants.
#[tokio::test]
async fn loop_message_names_no_object_of_another_namespace() {
    let shop = Shop::shared("links").await;
    let (b, c) = (
        shop.open("b", json!({})).await,
        shop.open("c", json!({})).await,
    );
    let operator = shop.operator(&["b", "c"]).await;
    let here = shop.bed.namespace.clone();
    let of_another = async |namespace: &str, name: &str, from: &str, to: &str| {
        let spec = json!({ "sourceNamespace": from, "destinationNamespace": to, "configMapName": "settings" });
        let sync =
            serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec })).unwrap();
        let syncs: Api<ConfigMapSync> = Api::namespaced(shop.bed.client.clone(), namespace);
        syncs
            .create(&PostParams::default(), &sync)
            .await
            .unwrap()
            .metadata
            .creation_timestamp
            .unwrap()
            .0
    };
    shop.map(&here, "settings", json!({ "data": { "a": "1" } }))
        .await;
    shop.sync("mine", json!({ "destinationNamespace": b }))
        .await;
    let last = of_another(&b, "confidential", &b, &c).await;
    shop.copied(&c, "settings", json!({ "a": "1" })).await;
    // The creation times have whole seconds.
    let then = last + Duration::from_secs(1);
    until("the next second", SOON, async || {
        Ok((jiff::Timestamp::now() >= then).then_some(()))
    })
    .await
    .unwrap();
    shop.sync(
        "closing",
        json!({ "sourceNamespace": c, "destinationNamespace": here }),
    )
    .await;
    let message = shop.reads("closing", "Loop").await;
    assert!(
        message.contains(&format!(
            "ConfigMapSync {here}/mine and a ConfigMapSync of another namespace"
        )),
        "{message}"
    );
    assert!(!message.contains("confidential"), "{message}");
    let noted = shop.bed.event("closing", "Loop").await;
    assert!(!noted.contains("confidential"), "{noted}");
    drop(operator);
}

/// No policy checks the spec of a sync that is being deleted, and its deletion may take for ever.
#[tokio::test]
async fn deleted_sync_closes_no_loop() {
    let shop = Shop::shared("going").await;
    let far = shop.open("far", json!({})).await;
    let here = shop.bed.namespace.clone();
    let (proxy, file) = shop.bed.through_proxy().await;
    let settings = shop.serving(&["far"]).kubeconfig(file);
    let _operator = Operator::start(&shop.bed, settings).await;
    shop.map(&here, "settings", json!({ "data": { "a": "1" } }))
        .await;
    for (name, copy) in [("a-old", "held"), ("b-new", "settings")] {
        let spec = json!({ "destinationNamespace": far, "destinationName": copy });
        shop.sync(name, spec).await;
        shop.copied(&far, copy, json!({ "a": "1" })).await;
    }
    let deletions = Match::verb(Verb::Delete)
        .resource("configmaps")
        .namespace(&far);
    let forbidden = Fault::status(StatusCode::FORBIDDEN);
    let order = proxy.inject(deletions, Times::Always, forbidden);
    shop.bed.delete::<ConfigMapSync>("a-old").await;
    let back = json!({ "sourceNamespace": far, "destinationNamespace": here, "destinationName": "settings" });
    shop.bed
        .patch::<ConfigMapSync>("a-old", json!({ "spec": back }))
        .await;
    shop.reads("a-old", "Forbidden").await;
    shop.edit(&here, "settings", json!({ "data": { "a": "2" } }))
        .await;
    shop.copied(&far, "settings", json!({ "a": "2" })).await;
    shop.reads("b-new", "Synced").await;
    order.cancel();
    shop.ended("a-old").await;
}

#[tokio::test]
async fn deletion_of_a_copy_is_reported_unless_the_operator_replaces() {
    let shop = Shop::shared("lost").await;
    let far = shop.open("far", json!({})).await;
    let _operator = shop.operator(&["far"]).await;
    shop.map(
        &shop.bed.namespace,
        "settings",
        json!({ "data": { "a": "1" } }),
    )
    .await;
    shop.sync("s", json!({ "destinationNamespace": far })).await;
    shop.copied(&far, "settings", json!({ "a": "1" })).await;
    shop.reads("s", "Synced").await;
    // An immutable copy is deleted and created again by the operator.
    shop.edit(
        &shop.bed.namespace,
        "settings",
        json!({ "immutable": true }),
    )
    .await;
    shop.until(&far, "settings", "is immutable", |map| {
        map.immutable == Some(true)
    })
    .await;
    shop.drop(&shop.bed.namespace, "settings").await;
    shop.map(
        &shop.bed.namespace,
        "settings",
        json!({ "data": { "a": "2" } }),
    )
    .await;
    shop.copied(&far, "settings", json!({ "a": "2" })).await;
    shop.assert_at_rest("s").await;
    assert!(shop.bed.events("s", "Recreated").await.is_empty());
    shop.drop(&far, "settings").await;
    shop.copied(&far, "settings", json!({ "a": "2" })).await;
    let message = shop.bed.event("s", "Recreated").await;
    assert!(
        message.starts_with(&format!("recreated ConfigMap {far}/settings")),
        "{message}"
    );
}

#[tokio::test]
async fn copy_restored_from_a_backup_is_owned_again() {
    let shop = Shop::shared("restored").await;
    let far = shop.open("far", json!({})).await;
    let _operator = shop.operator(&["far"]).await;
    let here = shop.bed.namespace.clone();
    let ownership = json!({ "labels": { OWNER_LABEL: uuid::Uuid::new_v4().to_string() }, "annotations": { "quartermaster.dev/owner": format!("{here}/s") } });
    let restored = shop
        .map(
            &far,
            "settings",
            json!({ "metadata": ownership, "data": { "a": "old" } }),
        )
        .await;
    shop.map(&here, "settings", json!({ "data": { "a": "1" } }))
        .await;
    let sync = shop.sync("s", json!({ "destinationNamespace": far })).await;
    let copy = shop.copied(&far, "settings", json!({ "a": "1" })).await;
    assert_eq!(
        (copy.uid(), &copy.labels()[OWNER_LABEL]),
        (restored.uid(), &sync.uid().unwrap())
    );
    // The deletion of the sync deletes its copies elsewhere, and those of its predecessor; a copy of an existing sync
    // stays.
    let other = shop
        .sync(
            "other",
            json!({ "destinationNamespace": far, "destinationName": "others" }),
        )
        .await;
    shop.copied(&far, "others", json!({ "a": "1" })).await;
    for (name, uid) in [
        ("former", uuid::Uuid::new_v4().to_string()),
        ("mixed", other.uid().unwrap()),
    ] {
        let ownership = json!({ "labels": { OWNER_LABEL: uid }, "annotations": { "quartermaster.dev/owner": format!("{here}/s") } });
        shop.bed
            .patch::<ConfigMapSync>("s", json!({ "spec": { "suspend": true } }))
            .await;
        shop.reads("s", "Suspended").await;
        shop.map(
            &far,
            name,
            json!({ "metadata": ownership, "data": { "a": "old" } }),
        )
        .await;
    }
    // Once this drift is corrected, the operator has handled the earlier events.
    shop.edit(&far, "others", json!({ "data": { "a": "x" } }))
        .await;
    shop.copied(&far, "others", json!({ "a": "1" })).await;
    shop.bed.delete::<ConfigMapSync>("s").await;
    shop.ended("s").await;
    shop.is_deleted(&far, "settings").await;
    shop.is_deleted(&far, "former").await;
    shop.maps(&far).get("others").await.unwrap();
}

#[tokio::test]
async fn owner_reference_or_label_proves_ownership_in_the_own_namespace() {
    let shop = Shop::shared("near").await;
    let _operator = shop.operator(&[]).await;
    let here = shop.bed.namespace.clone();
    shop.map(&here, "settings", json!({ "data": { "a": "1" } }))
        .await;
    shop.sync(
        "s",
        json!({ "destinationNamespace": here, "destinationName": "copy" }),
    )
    .await;
    let copy = shop.copied(&here, "copy", json!({ "a": "1" })).await;
    assert_eq!(copy.owner_references().len(), 1);
    for patch in [
        json!({ "labels": { OWNER_LABEL: null } }),
        json!({ "ownerReferences": null }),
    ] {
        shop.edit(&here, "copy", json!({ "metadata": patch })).await;
        let whole = |map: &ConfigMap| {
            map.labels().contains_key(OWNER_LABEL) && map.owner_references().len() == 1
        };
        shop.until(&here, "copy", "has label and owner reference", whole)
            .await;
    }
    let stripped = shop
        .edit(
            &here,
            "copy",
            json!({ "metadata": { "labels": { OWNER_LABEL: null }, "ownerReferences": null } }),
        )
        .await;
    shop.reads("s", "Conflict").await;
    shop.assert_at_rest("s").await;
    assert_eq!(
        version(&shop.maps(&here).get("copy").await.unwrap()),
        version(&stripped)
    );
}

/// Creates two further namespaces, an operator, and a source with this data.
async fn with_source(name: &str, data: &Value) -> (Shop, Operator, String, String) {
    let shop = Shop::shared(name).await;
    let (b, c) = (
        shop.open("b", json!({})).await,
        shop.open("c", json!({})).await,
    );
    let operator = shop.operator(&["b", "c"]).await;
    let here = &shop.bed.namespace;
    shop.map(here, "settings", json!({ "data": data })).await;
    (shop, operator, b, c)
}

/// A user moves the source to where a copy is.
#[tokio::test]
async fn copy_that_becomes_the_source_stays() {
    let data = json!({ "a": "1" });
    let (shop, _operator, b, c) = with_source("promoted", &data).await;
    shop.sync("s", json!({ "destinationNamespaces": [b] }))
        .await;
    shop.copied(&b, "settings", data.clone()).await;
    let promoted = json!({ "spec": { "sourceNamespace": b, "destinationNamespaces": [c] } });
    shop.bed.patch::<ConfigMapSync>("s", promoted).await;
    shop.copied(&c, "settings", data.clone()).await;
    until("the source has no owner", SOON, async || {
        let source = shop.maps(&b).get("settings").await?;
        Ok((!source.labels().contains_key(OWNER_LABEL)).then_some(()))
    })
    .await
    .unwrap();
    shop.reads("s", "Synced").await;
    shop.bed.delete::<ConfigMapSync>("s").await;
    shop.ended("s").await;
    shop.is_deleted(&c, "settings").await;
    let source = shop.maps(&b).get("settings").await.unwrap();
    assert_eq!(json!(source.data), data);
}

#[tokio::test]
async fn unneeded_copy_is_deleted_or_released() {
    let data = json!({ "a": "1" });
    let (shop, _operator, b, c) = with_source("policy", &data).await;
    let here = shop.bed.namespace.clone();
    shop.sync("s", json!({ "destinationNamespaces": [b, c] }))
        .await;
    shop.copied(&b, "settings", data.clone()).await;
    shop.copied(&c, "settings", data.clone()).await;
    shop.bed
        .patch::<ConfigMapSync>("s", json!({ "spec": { "destinationNamespaces": [c] } }))
        .await;
    shop.is_deleted(&b, "settings").await;
    shop.bed
        .patch::<ConfigMapSync>("s", json!({ "spec": { "destinationName": "renamed" } }))
        .await;
    shop.copied(&c, "renamed", data.clone()).await;
    shop.is_deleted(&c, "settings").await;
    shop.bed
        .patch::<ConfigMapSync>(
            "s",
            json!({ "spec": { "destinationNamespaces": [b, c, here] } }),
        )
        .await;
    shop.reads("s", "Synced").await;
    // In that namespace the owner reference proves ownership.
    shop.bed
        .patch::<ConfigMapSync>(
            "s",
            json!({ "spec": { "deletionPolicy": "Orphan", "suspend": true } }),
        )
        .await;
    shop.reads("s", "Suspended").await;
    shop.edit(
        &here,
        "renamed",
        json!({ "metadata": { "labels": { OWNER_LABEL: null } } }),
    )
    .await;

    shop.edit(&here, "settings", json!({ "data": { "a": "2" } }))
        .await;
    shop.bed.delete::<ConfigMapSync>("s").await;
    shop.ended("s").await;
    for namespace in [b, c, here] {
        let copy = shop.maps(&namespace).get("renamed").await.unwrap();
        assert!(
            !copy.labels().contains_key(OWNER_LABEL)
                && !copy.annotations().contains_key("quartermaster.dev/owner")
        );
        assert!(
            copy.owner_references().is_empty(),
            "the copy would be deleted after the sync"
        );
        assert_eq!(
            serde_json::to_value(copy.data).unwrap(),
            data,
            "nothing is copied while the sync is suspended"
        );
    }
}

/// The garbage collector deletes every object with a reference to an owner that is deleted in the foreground, and does
/// not wait for the operator.
#[tokio::test]
async fn orphaned_copy_survives_foreground_deletion_of_its_sync() {
    let shop = Shop::shared("foreground").await;
    let operator = shop.operator(&[]).await;
    let here = shop.bed.namespace.clone();
    let data = json!({ "a": "1" });
    shop.map(&here, "settings", json!({ "data": data })).await;
    let spec = json!({ "destinationNamespace": here, "destinationName": "copy", "deletionPolicy": "Orphan" });
    shop.sync("s", spec).await;
    let copy = shop.copied(&here, "copy", data).await;
    shop.reads("s", "Synced").await;
    drop(operator);
    let syncs = shop.bed.api::<ConfigMapSync>();
    syncs
        .delete("s", &DeleteParams::foreground())
        .await
        .unwrap();
    // Kubernetes' finalizer of a foreground deletion stays until the garbage collector has deleted the dependents.
    let is_collected = |sync: &ConfigMapSync| sync.finalizers() == [FINALIZER];
    shop.bed
        .until("s", "waits for the operator alone", is_collected)
        .await;
    let _operator = shop.operator(&[]).await;
    shop.ended("s").await;
    let left = shop.maps(&here).get("copy").await.unwrap();
    assert_eq!(left.uid(), copy.uid());
    assert_eq!(left.owner_references(), []);
    assert!(!left.labels().contains_key(OWNER_LABEL));
}

/// A wrong name never leaves users without a copy, with a source and without.
#[tokio::test]
async fn old_copy_is_deleted_after_the_new_one_exists() {
    let shop = Shop::shared("moves").await;
    let (b, c) = (
        shop.open("b", json!({})).await,
        shop.open("c", json!({})).await,
    );
    let _operator = shop.operator(&["b", "c", "typo"]).await;
    let here = shop.bed.namespace.clone();
    let data = json!({ "a": "1" });
    shop.map(&here, "settings", json!({ "data": data })).await;
    shop.map(&b, "theirs", json!({ "data": { "whose": "theirs" } }))
        .await;
    shop.sync("s", json!({ "destinationNamespaces": [b] }))
        .await;
    let copy = version(&shop.copied(&b, "settings", data.clone()).await);
    let stays = "; one earlier copy stays until its replacement exists";
    shop.bed
        .patch::<ConfigMapSync>("s", json!({ "spec": { "destinationName": "theirs" } }))
        .await;
    let message = shop.reads("s", "Conflict").await;
    assert!(
        message.starts_with("0 of 1 copies") && message.ends_with(stays),
        "{message}"
    );
    let typo =
        json!({ "destinationName": null, "destinationNamespaces": [shop.other_namespace("typo")] });
    shop.bed
        .patch::<ConfigMapSync>("s", json!({ "spec": typo }))
        .await;
    let message = shop.reads("s", "NamespaceNotFound").await;
    assert!(message.ends_with(stays), "{message}");
    shop.drop(&here, "settings").await;
    shop.reads("s", "SourceNotFound").await;
    shop.bed
        .patch::<ConfigMapSync>("s", json!({ "spec": { "destinationNamespaces": [c] } }))
        .await;
    shop.assert_at_rest("s").await;
    assert_eq!(
        version(&shop.copied(&b, "settings", data.clone()).await),
        copy,
        "nobody touched it"
    );
    shop.map(&here, "settings", json!({ "data": data })).await;
    shop.copied(&c, "settings", data.clone()).await;
    shop.is_deleted(&b, "settings").await;
    shop.reads("s", "Synced").await;
    // A single existing namespace of several is enough.
    let spec = json!({ "destinationNamespaces": [b, shop.other_namespace("typo")] });
    shop.bed
        .patch::<ConfigMapSync>("s", json!({ "spec": spec }))
        .await;
    shop.copied(&b, "settings", data.clone()).await;
    shop.is_deleted(&c, "settings").await;
}

/// An object belongs to its controller, whatever label a user adds.
#[tokio::test]
async fn object_of_another_controller_is_neither_deleted_nor_awaited() {
    let shop = Shop::shared("controlled").await;
    let far = shop.open("far", json!({})).await;
    let _operator = shop.operator(&["far"]).await;
    let here = shop.bed.namespace.clone();
    shop.map(&here, "settings", json!({ "data": { "a": "1" } }))
        .await;
    shop.sync("s", json!({ "destinationNamespace": far })).await;
    let copy = shop.copied(&far, "settings", json!({ "a": "1" })).await;
    shop.reads("s", "Synced").await;
    let owner = shop.map(&far, "owner", json!({})).await;
    let reference = json!([{ "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner.uid(), "controller": true }]);
    shop.edit(
        &far,
        "settings",
        json!({ "metadata": { "ownerReferences": reference } }),
    )
    .await;
    assert!(
        shop.reads("s", "Conflict")
            .await
            .contains("controlled by ConfigMap owner")
    );
    shop.bed.delete::<ConfigMapSync>("s").await;
    shop.ended("s").await;
    assert_eq!(
        shop.maps(&far).get("settings").await.unwrap().uid(),
        copy.uid()
    );
}

/// A client that replaces the sync drops the finalizer, and changes the spec with the same write.
#[tokio::test]
async fn copies_are_deleted_although_the_finalizer_was_removed() {
    let shop = Shop::shared("replaced").await;
    let far = shop.open("far", json!({})).await;
    let _operator = shop.operator(&["far"]).await;
    let here = shop.bed.namespace.clone();
    shop.map(&here, "settings", json!({ "data": { "a": "1" } }))
        .await;
    let unwatched = json!({ "sourceNamespace": shop.other_namespace("unwatched") });
    for (spec, reason) in [
        (json!({ "suspend": true }), "Suspended"),
        (unwatched, "OutOfScope"),
    ] {
        shop.sync("s", json!({ "destinationNamespace": far })).await;
        shop.copied(&far, "settings", json!({ "a": "1" })).await;
        shop.reads("s", "Synced").await;
        let replaced = json!({ "metadata": { "finalizers": null }, "spec": spec });
        shop.bed.patch::<ConfigMapSync>("s", replaced).await;
        shop.reads("s", reason).await;
        shop.bed.delete::<ConfigMapSync>("s").await;
        shop.ended("s").await;
        shop.is_deleted(&far, "settings").await;
    }
}

/// The cache keeps no list of this size.
#[tokio::test]
async fn finalizers_of_others_stay_in_any_number() {
    let shop = Shop::shared("finalizers").await;
    let far = shop.open("far", json!({})).await;
    let here = shop.bed.namespace.clone();
    shop.map(&here, "settings", json!({ "data": { "a": "1" } }))
        .await;
    let others: Vec<_> = (0..1000)
        .map(|number| format!("example.com/finalizer-{number}"))
        .collect();
    let spec = json!({ "sourceNamespace": here, "configMapName": "settings", "destinationNamespace": far });
    let sync = json!({ "metadata": { "finalizers": others }, "spec": spec });
    shop.bed.create::<ConfigMapSync>("s", sync).await;
    let _operator = shop.operator(&["far"]).await;
    shop.copied(&far, "settings", json!({ "a": "1" })).await;
    let all: Vec<_> = others
        .iter()
        .cloned()
        .chain([FINALIZER.to_owned()])
        .collect();
    assert!(
        shop.bed
            .api::<ConfigMapSync>()
            .get("s")
            .await
            .unwrap()
            .finalizers()
            == all
    );
    shop.bed.delete::<ConfigMapSync>("s").await;
    shop.is_deleted(&far, "settings").await;
    shop.bed
        .until(
            "s",
            "has others' finalizers alone",
            |sync: &ConfigMapSync| sync.finalizers() == others,
        )
        .await;
    // The placeholder of the cache can never be written.
    let empty = Patch::Merge(json!({ "metadata": { "finalizers": [""] } }));
    let refused = shop
        .bed
        .api::<ConfigMapSync>()
        .patch("s", &PatchParams::default(), &empty)
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, kube::Error::Api(error) if error.code == 422),
        "{refused}"
    );
    shop.bed
        .patch::<ConfigMapSync>("s", json!({ "metadata": { "finalizers": [] } }))
        .await;
    shop.ended("s").await;
}
