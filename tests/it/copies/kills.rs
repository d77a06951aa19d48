//! The operator is killed at each of its writes, and its watches stall: the copies still match their source.

use kube::ResourceExt as _;
use testbed::proxy::{Match, Point};

use super::*;
use crate::support::{kill_at_each_write, kill_at_write};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_at_any_write_keeps_the_end_state() {
    // A kill before a write equals a kill after the previous write.
    let points = [Point::AfterApplied, Point::AfterAnswer];
    let writes = kill_at_each_write(&points, async |point, write| {
        Box::pin(run(point, write)).await
    });
    let writes = Box::pin(writes).await;
    // At least: the finalizer; two copies, twice; one deletion; a status for each of the three; the other deletion, and
    // the finalizer.
    assert!(
        writes.iter().all(|writes| *writes >= 11),
        "{writes:?} writes"
    );
    run_with_a_silent_watch().await;
}

/// A sync is created, its immutable source replaced, one of its destinations removed, and the sync is deleted, while
/// the operator is killed at this write. Returns whether the write happened, and the observed states.
async fn run(point: Point, write: u64) -> (bool, Value) {
    let shop = Shop::without_controllers("kills").await;
    let here = shop.bed.namespace.clone();
    let (one, two) = (
        shop.open("one", json!({})).await,
        shop.open("two", json!({})).await,
    );
    let source = |value: &str| json!({ "immutable": true, "data": { "a": value } });
    shop.map(&here, "settings", source("1")).await;
    let changes = async {
        shop.sync("s", json!({ "destinationNamespaces": [one, two] }))
            .await;
        shop.reads("s", "Synced").await;
        shop.drop(&here, "settings").await;
        shop.map(&here, "settings", source("2")).await;
        shop.copied(&one, "settings", json!({ "a": "2" })).await;
        shop.copied(&two, "settings", json!({ "a": "2" })).await;
        shop.reads("s", "Synced").await;
        shop.bed
            .patch::<ConfigMapSync>("s", json!({ "spec": { "destinationNamespaces": [one] } }))
            .await;
        shop.reads("s", "Synced").await;
        let between = copies(&shop).await;
        shop.bed.delete::<ConfigMapSync>("s").await;
        shop.ended("s").await;
        let copy = json!({ "data": { "a": "2" }, "immutable": true });
        assert_eq!(between, json!([copy, null]));
        assert_eq!(copies(&shop).await, json!([null, null]));
        between
    };
    // Events are best effort.
    let writes = Match::writes().except_resource("events");
    Box::pin(kill_at_write(
        &shop.bed,
        shop.serving(&["one", "two"])
            .flag("--controllers=configmapsync"),
        writes,
        point,
        write,
        changes,
    ))
    .await
}

/// Returns the copies in the two namespaces.
async fn copies(shop: &Shop) -> Value {
    let mut copies = Vec::new();
    for name in ["one", "two"] {
        let copy = shop
            .maps(&shop.other_namespace(name))
            .get_opt("settings")
            .await
            .unwrap();
        copies.push(copy.map(|copy| json!({ "data": copy.data, "immutable": copy.immutable })));
    }
    json!(copies)
}

/// The operator does not trust its cache for ever.
async fn run_with_a_silent_watch() {
    let shop = Shop::without_controllers("silent").await;
    let (proxy, file) = shop.bed.through_proxy().await;
    let here = shop.bed.namespace.clone();
    let far = shop.open("far", json!({})).await;
    let settings = shop
        .serving(&["far"])
        .kubeconfig(file)
        .flag("--sync-period=1s");
    let _operator = Operator::start(&shop.bed, settings).await;
    shop.map(&here, "settings", json!({ "data": { "a": "1" } }))
        .await;
    shop.sync("s", json!({ "destinationNamespace": far })).await;
    let first = shop.copied(&far, "settings", json!({ "a": "1" })).await;
    shop.reads("s", "Synced").await;
    let hidden = proxy.hide(Match::watch("configmaps"), |event| event.kind == "DELETED");
    shop.drop(&far, "settings").await;
    let second = shop.copied(&far, "settings", json!({ "a": "1" })).await;
    assert_ne!(first.uid(), second.uid());
    hidden.wait_for_hits(1, SOON).await.unwrap();
    assert_eq!(hidden.hits(), 1);
    proxy.behave();

    proxy.freeze(Match::watch("configmaps"));
    shop.edit(&here, "settings", json!({ "data": { "a": "2" } }))
        .await;
    shop.copied(&far, "settings", json!({ "a": "2" })).await;
    shop.edit(&far, "settings", json!({ "data": { "a": "3" } }))
        .await;
    shop.copied(&far, "settings", json!({ "a": "2" })).await;
}
