//! Stale caches, above all of a standby: a watch may have stalled.

use qm_core::conditions;
use testbed::proxy::{Ending, Fault, Injection, Match, Proxy, Times, Verb};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_leader_undoes_no_later_change() {
    let shop = Shop::without_controllers("stale-copies").await;
    let (bed, here) = (&shop.bed, shop.bed.namespace.as_str());
    let (one, two) = (
        shop.open("one", json!({})).await,
        shop.open("two", json!({})).await,
    );
    let candidate = || shop.serving(&["one", "two"]).leader_election(20);
    let mut leader = Operator::start(bed, candidate()).await;
    shop.map(here, "settings", json!({ "data": { "a": "1" } }))
        .await;
    for name in ["deleted", "moved", "marker"] {
        shop.sync(
            name,
            json!({ "destinationNamespace": one, "destinationName": name }),
        )
        .await;
        shop.reads(name, "Synced").await;
    }
    let (proxy, file) = bed.through_proxy().await;
    let _standby = Operator::start(bed, candidate().kubeconfig(file)).await;
    let silent = proxy.freeze(Match::watch("configmapsyncs"));
    bed.delete::<ConfigMapSync>("deleted").await;
    shop.ended("deleted").await;
    bed.patch::<ConfigMapSync>("moved", json!({ "spec": { "destinationNamespace": two } }))
        .await;
    shop.reads("moved", "Synced").await;
    silent.wait_for_hits(2, SOON).await.unwrap();
    leader.kill();

    for (value, heard) in [("2", false), ("3", true)] {
        if heard {
            silent.cancel();
        }
        shop.edit(here, "settings", json!({ "data": { "a": value } }))
            .await;
        for (namespace, name) in [(&one, "marker"), (&two, "moved")] {
            shop.copied(namespace, name, json!({ "a": value })).await;
        }
    }
    for name in ["deleted", "moved"] {
        assert_eq!(shop.maps(&one).get_opt(name).await.unwrap(), None);
    }
}

/// An older CRD hid a field of the status when the operator listed the syncs, and does not hide it any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn field_that_an_older_crd_hid_is_removed() {
    let shop = Shop::without_controllers("hidden-field").await;
    let (bed, here) = (&shop.bed, shop.bed.namespace.as_str());
    let far = shop.open("far", json!({})).await;
    let (proxy, file) = bed.through_proxy().await;
    let _operator = Operator::start(bed, shop.serving(&["far"]).kubeconfig(file)).await;
    shop.map(here, "settings", json!({ "data": { "a": "1" } }))
        .await;
    shop.sync("s", json!({ "destinationNamespace": far })).await;
    shop.reads("s", "Synced").await;
    let mut hidden = json!(bed.api::<ConfigMapSync>().get("s").await.unwrap());
    let copies = hidden["status"].as_object_mut().unwrap().remove("copies");
    assert_eq!(copies, Some(json!(1)));

    let list = json!({
        "apiVersion": hidden["apiVersion"],
        "kind": "ConfigMapSyncList",
        "metadata": { "resourceVersion": hidden["metadata"]["resourceVersion"] },
        "items": [hidden],
    });
    let of_syncs = |verb| Match::verb(verb).resource("configmapsyncs").namespace(here);
    let listed = proxy.inject(
        of_syncs(Verb::List),
        Times::First(1),
        Fault::Respond(list.to_string()),
    );
    let watch = of_syncs(Verb::Watch);
    proxy.end_watches(&watch, Ending::Gone);
    listed.wait_for_hits(1, SOON).await.unwrap();
    until("the list is read", SOON, async || {
        Ok((proxy.running_watches(&watch) > 0).then_some(()))
    })
    .await
    .unwrap();
    shop.drop(here, "settings").await;
    let has_no_copies = |sync: &ConfigMapSync| {
        let status = sync.status.as_ref().unwrap();
        let ready = conditions::ready(&status.conditions).unwrap();
        !ready.is_true() && status.copies.is_none()
    };
    bed.until::<ConfigMapSync>("s", "has no copies in its status", has_no_copies)
        .await;
}

/// A sync with copies, and its successor of the same name, which the watch does not show.
struct StaleSync {
    shop: Shop,
    far: String,
    proxy: Proxy,
    silent: Injection,
    new: ConfigMapSync,
    _operator: Operator,
}

impl StaleSync {
    async fn new(name: &str, spec: Value) -> Self {
        let shop = Shop::without_controllers(name).await;
        let far = shop.open("far", json!({})).await;
        let (proxy, file) = shop.bed.through_proxy().await;
        let operator = Operator::start(&shop.bed, shop.serving(&["far"]).kubeconfig(file)).await;
        let here = shop.bed.namespace.clone();
        shop.map(&here, "settings", json!({ "data": { "a": "1" } }))
            .await;
        shop.sync("s", json!({ "destinationNamespace": far })).await;
        shop.reads("s", "Synced").await;
        let silent = proxy.freeze(Match::watch("configmapsyncs"));
        shop.bed.delete::<ConfigMapSync>("s").await;
        silent.wait_for_hits(1, SOON).await.unwrap();
        shop.bed
            .patch::<ConfigMapSync>("s", json!({ "metadata": { "finalizers": null } }))
            .await;
        shop.ended("s").await;
        let mut wanted = json!({ "destinationNamespace": far });
        wanted
            .as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        let new = shop.sync("s", wanted).await;
        proxy.forget();
        Self {
            shop,
            far,
            proxy,
            silent,
            new,
            _operator: operator,
        }
    }

    /// Returns the ownership metadata of the successor.
    fn ownership(&self) -> Value {
        let path = format!("{}/s", self.shop.bed.namespace);
        json!({ "labels": { OWNER_LABEL: self.new.uid() }, "annotations": { "quartermaster.dev/owner": path } })
    }

    /// Waits until the operator has read whether the sync in its cache still exists.
    async fn existence_checked(&self) {
        let asked = Match::verb(Verb::Get).resource("configmapsyncs").name("s");
        let asks = async || Ok((self.proxy.count(&asked) > 0).then_some(()));
        until("the operator reads whether the sync exists", SOON, asks)
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_sync_restores_no_ownership() {
    let past = StaleSync::new("taken-back", json!({})).await;
    let StaleSync { shop, far, .. } = &past;
    let copy = shop
        .edit(far, "settings", json!({ "metadata": past.ownership() }))
        .await;
    past.existence_checked().await;
    assert_eq!(
        version(&shop.maps(far).get("settings").await.unwrap()),
        version(&copy)
    );
    past.silent.cancel();
    shop.reads("s", "Synced").await;
    assert_eq!(
        shop.maps(far).get("settings").await.unwrap().labels()[OWNER_LABEL],
        past.new.uid().unwrap()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_sync_deletes_nothing() {
    let past = StaleSync::new("let-go", json!({ "destinationName": "moved" })).await;
    let StaleSync { shop, far, .. } = &past;
    let copy = shop
        .map(
            far,
            "moved",
            json!({ "metadata": past.ownership(), "data": { "a": "1" } }),
        )
        .await;
    past.existence_checked().await;
    assert_eq!(
        version(&shop.maps(far).get("moved").await.unwrap()),
        version(&copy)
    );
    past.silent.cancel();
    // The copies of the predecessor are deleted with it.
    shop.is_deleted(far, "settings").await;
    assert_eq!(shop.maps(far).get("moved").await.unwrap().uid(), copy.uid());
}

/// The watch has not shown that the operator has deleted the copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_copy_that_is_needed_again_does_not_count_as_existing() {
    let shop = Shop::without_controllers("needed-again").await;
    let (one, two) = (
        shop.open("one", json!({})).await,
        shop.open("two", json!({})).await,
    );
    let (proxy, file) = shop.bed.through_proxy().await;
    let settings = shop.serving(&["one", "two"]).kubeconfig(file);
    let _operator = Operator::start(&shop.bed, settings).await;
    let here = shop.bed.namespace.clone();
    let data = json!({ "a": "1" });
    shop.map(&here, "settings", json!({ "data": data })).await;
    shop.sync("s", json!({ "destinationNamespaces": [one, two] }))
        .await;
    shop.reads("s", "Synced").await;
    let silent = proxy.freeze(Match::watch("configmaps").namespace(&two));
    let copy_to = async |namespaces: Value| {
        let spec = json!({ "spec": { "destinationNamespaces": namespaces } });
        shop.bed.patch::<ConfigMapSync>("s", spec).await;
        shop.reads("s", "Synced").await;
    };
    copy_to(json!([one])).await;
    silent.wait_for_hits(1, SOON).await.unwrap();
    copy_to(json!([one, two])).await;
    let copy = shop.maps(&two).get_opt("settings").await.unwrap();
    assert!(copy.is_some(), "the status says that the copy exists");
}
