//! Namespaces that appear, change and disappear, on a separate control plane, because a selector covers the whole
//! cluster.

use std::collections::BTreeSet;

use futures::{StreamExt as _, stream};
use kube::api::ListParams;
use testbed::proxy::{Match, Point, Verb};

use super::*;
use crate::support::Trap;

/// Returns the names of the namespaces that have a copy of this name.
async fn where_copied(shop: &Shop, name: &str) -> BTreeSet<String> {
    let all: Api<ConfigMap> = Api::all(shop.bed.client.clone());
    let list = all
        .list(&ListParams::default().fields(&format!("metadata.name={name}")))
        .await
        .unwrap();
    let copies = list
        .items
        .into_iter()
        .filter(|map| map.labels().contains_key("quartermaster.dev/owner-uid"));
    copies.map(|map| map.namespace().unwrap()).collect()
}

async fn until_copied(shop: &Shop, name: &str, expected: &BTreeSet<String>) {
    until(
        format!("{name} is in {} namespaces", expected.len()),
        SOON,
        async || Ok((where_copied(shop, name).await == *expected).then_some(())),
    )
    .await
    .unwrap();
}

async fn open_many(shop: &Shop, names: &[String], labels: &Value) -> BTreeSet<String> {
    stream::iter(names)
        .map(|name| shop.open(name, labels.clone()))
        .buffer_unordered(16)
        .collect()
        .await
}

async fn relabel(shop: &Shop, namespace: &str, labels: Value) {
    let all: Api<Namespace> = Api::all(shop.bed.client.clone());
    let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
    all.patch(namespace, &PatchParams::default(), &patch)
        .await
        .unwrap();
}

async fn close(shop: &Shop, namespace: &str) {
    let all: Api<Namespace> = Api::all(shop.bed.client.clone());
    all.delete(namespace, &DeleteParams::default())
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn selector_covers_every_matching_namespace() {
    let shop = Shop {
        bed: Bed::on_own_plane("many").await,
    };
    let here = shop.bed.namespace.clone();
    let (proxy, file) = shop.bed.through_proxy().await;
    let mut operator = Operator::start(
        &shop.bed,
        Settings::default().whole_cluster().kubeconfig(file),
    )
    .await;
    let labels = json!({ "team": "x" });
    let names: Vec<_> = (0..200).map(|number| format!("n{number}")).collect();
    let mut expected = open_many(&shop, &names, &labels).await;
    relabel(&shop, &here, labels.clone()).await;
    relabel(&shop, "kube-public", labels.clone()).await;
    shop.map(&here, "settings", json!({ "data": { "a": "1" } }))
        .await;
    let selector = json!({ "matchLabels": labels });
    shop.sync("s", json!({ "destinationNamespaceSelector": selector }))
        .await;
    // The sync's own namespace and those of Kubernetes are excluded.
    until_copied(&shop, "settings", &expected).await;
    shop.reads("s", "Synced").await;
    shop.assert_at_rest("s").await;
    // An apiserver that lags behind the others would show some namespaces without the label.
    let before = proxy.requests();
    let mut lists = before
        .iter()
        .map(|seen| &seen.request)
        .filter(|request| request.resource == "namespaces");
    assert!(lists.clone().any(|request| request.verb == Verb::List));
    assert!(lists.all(|request| !request.query.contains("sendInitialEvents")));

    // Some namespaces appear, lose the label, disappear.
    expected.insert(shop.open("new", labels.clone()).await);
    let lost = shop.other_namespace("n0");
    relabel(&shop, &lost, json!({ "team": null })).await;
    expected.remove(&lost);
    let closed = shop.other_namespace("n1");
    close(&shop, &closed).await;
    expected.remove(&closed);
    let unlabelled = shop.open("later", json!({})).await;
    until_copied(&shop, "settings", &expected).await;
    relabel(&shop, &unlabelled, labels.clone()).await;
    expected.insert(unlabelled);
    until_copied(&shop, "settings", &expected).await;
    shop.edit(&here, "settings", json!({ "data": { "a": "2" } }))
        .await;
    for namespace in &expected {
        shop.copied(namespace, "settings", json!({ "a": "2" }))
            .await;
    }
    shop.reads("s", "Synced").await;

    // A `ConfigMap` of that name which is not a copy, and copies of another sync, outlive the sync. The operator is
    // killed in the middle.
    let foreign = shop
        .map(&lost, "settings", json!({ "data": { "their": "own" } }))
        .await;
    shop.sync(
        "other",
        json!({ "destinationNamespaces": [shop.other_namespace("n2"), shop.other_namespace("n3")], "destinationName": "others" }),
    )
    .await;
    let others = BTreeSet::from([shop.other_namespace("n2"), shop.other_namespace("n3")]);
    until_copied(&shop, "others", &others).await;
    let middle = Trap::set(
        &proxy,
        Match::verb(Verb::Delete).resource("configmaps"),
        Point::Before,
        100,
    );
    shop.bed.delete::<ConfigMapSync>("s").await;
    middle.spring(&mut operator).await;
    let left = where_copied(&shop, "settings").await.len();
    assert!(
        0 < left && left < expected.len(),
        "{left} of {}",
        expected.len()
    );
    assert!(
        shop.bed
            .api::<ConfigMapSync>()
            .get("s")
            .await
            .unwrap()
            .metadata
            .deletion_timestamp
            .is_some()
    );
    operator.restart();
    until_copied(&shop, "settings", &BTreeSet::new()).await;
    shop.ended("s").await;
    assert_eq!(where_copied(&shop, "others").await, others);
    assert_eq!(
        version(&shop.maps(&lost).get("settings").await.unwrap()),
        version(&foreign)
    );

    // A namespace does not exist, is created, is Terminating, and is recreated.
    let destination = shop.other_namespace("destination");
    shop.sync("p", json!({ "destinationNamespace": destination }))
        .await;
    assert!(
        shop.reads("p", "NamespaceNotFound")
            .await
            .contains(&format!("create namespace {destination}"))
    );
    shop.assert_at_rest("p").await;
    shop.open("destination", json!({})).await;
    shop.copied(&destination, "settings", json!({ "a": "2" }))
        .await;
    shop.edit(
        &destination,
        "settings",
        json!({ "metadata": { "finalizers": ["example.com/held"] } }),
    )
    .await;
    close(&shop, &destination).await;
    shop.reads("p", "NamespaceTerminating").await;
    shop.assert_at_rest("p").await;
    shop.edit(
        &destination,
        "settings",
        json!({ "metadata": { "finalizers": null } }),
    )
    .await;
    shop.reads("p", "NamespaceNotFound").await;
    shop.open("destination", json!({})).await;
    shop.copied(&destination, "settings", json!({ "a": "2" }))
        .await;
    shop.reads("p", "Synced").await;

    // The operator writes nothing to the namespaces of Kubernetes unless a flag allows it.
    for (name, spec) in [
        ("system", json!({ "destinationNamespace": "kube-system" })),
        (
            "ca",
            json!({ "destinationNamespace": destination, "destinationName": "kube-root-ca.crt" }),
        ),
    ] {
        shop.sync(name, spec).await;
        assert!(
            shop.reads(name, "DestinationNotAllowed")
                .await
                .contains("--allow-protected-destinations")
        );
    }
    drop(operator);
    let settings = Settings::default()
        .whole_cluster()
        .flag("--allow-protected-destinations");
    let operator = Operator::start(&shop.bed, settings).await;
    shop.copied("kube-system", "settings", json!({ "a": "2" }))
        .await;
    // The cluster itself has a ConfigMap of that name there.
    shop.reads("ca", "Conflict").await;

    // Without the flag, copies stay, but are not updated.
    let both = json!(["kube-system", destination]);
    let names = json!([{ "key": "kubernetes.io/metadata.name", "operator": "In", "values": both }]);
    for (name, to) in [
        ("named", json!({ "destinationNamespaces": both })),
        (
            "selected",
            json!({ "destinationNamespaceSelector": { "matchExpressions": names } }),
        ),
    ] {
        let mut spec = to;
        spec["destinationName"] = name.into();
        shop.sync(name, spec).await;
        shop.copied("kube-system", name, json!({ "a": "2" })).await;
    }
    drop(operator);
    let settings = Settings::default().whole_cluster();
    let _operator = Operator::start(&shop.bed, settings).await;
    let here = shop.bed.namespace.clone();
    shop.edit(&here, "settings", json!({ "data": { "a": "3" } }))
        .await;
    for name in ["named", "selected"] {
        shop.copied(&destination, name, json!({ "a": "3" })).await;
    }
    shop.reads("named", "DestinationNotAllowed").await;
    shop.reads("selected", "Synced").await;
    for name in ["named", "selected"] {
        shop.assert_at_rest(name).await;
        shop.copied("kube-system", name, json!({ "a": "2" })).await;
        shop.bed.delete::<ConfigMapSync>(name).await;
        shop.ended(name).await;
        shop.is_deleted("kube-system", name).await;
    }
}
