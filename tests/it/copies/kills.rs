//! The operator's watches stall: the copies still match their source. Faults at each write: `crate::every_write`.

use kube::ResourceExt as _;
use testbed::proxy::Match;

use super::*;

/// The operator does not trust its cache for ever.
#[tokio::test]
async fn silent_watch_hides_nothing_for_ever() {
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
