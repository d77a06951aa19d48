//! Many `ConfigMap`s that no sync needs, and `ConfigMap`s of many keys.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use testbed::usage::Memory;

use super::*;
use crate::support::{LIMIT, Peak, create_large, only_large_test, patch_large};

const CROWD: usize = 10_000;
const SYNCS: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: run by make test-long"]
async fn ten_thousand_foreign_config_maps_are_not_cached_and_hide_nothing() {
    let _guard = only_large_test().await;
    let plane = testbed::Options::apiserver_only();
    let shop = Shop {
        bed: Bed::on_own_plane_with(plane, "crowd").await,
    };
    let here = shop.bed.namespace.clone();
    let (crowd, far) = (
        shop.open("crowd", json!({})).await,
        shop.open("far", json!({})).await,
    );
    let content = "x".repeat(20_000);
    let maps = shop.maps(&crowd);
    let unrelated = |number: usize| {
        let mut map =
            json!({ "metadata": { "name": format!("m{number}") }, "data": { "content": content } });
        if number.is_multiple_of(2) {
            // An object as kubectl apply writes it.
            map["metadata"]["annotations"] =
                json!({ "kubectl.kubernetes.io/last-applied-configuration": map.to_string() });
        }
        let (maps, map) = (maps.clone(), serde_json::from_value(map).unwrap());
        async move { maps.create(&PostParams::default(), &map).await }
    };
    stream::iter(0..CROWD)
        .map(unrelated)
        .buffer_unordered(32)
        .try_collect::<Vec<_>>()
        .await
        .unwrap();
    let names: Vec<_> = (0..SYNCS).map(|number| format!("s{number}")).collect();
    let (shop, names) = (&shop, &names);
    stream::iter(names)
        .for_each_concurrent(16, async |name| {
            shop.map(&here, name, json!({ "data": { "a": name } }))
                .await;
            shop.sync(
                name,
                json!({ "configMapName": name, "destinationNamespace": far }),
            )
            .await;
        })
        .await;
    let mut operator = Operator::start(&shop.bed, Settings::default().whole_cluster()).await;
    for name in names {
        shop.copied(&far, name, json!({ "a": name })).await;
    }
    for name in names {
        shop.edit(&here, name, json!({ "data": { "a": "edited" } }))
            .await;
    }
    for name in names {
        shop.copied(&far, name, json!({ "a": "edited" })).await;
        shop.drop(&far, name).await;
    }
    for name in names {
        shop.copied(&far, name, json!({ "a": "edited" })).await;
    }
    // The bench has the real figures; a cache of the whole crowd would take ten times as much, also in a debug build.
    let memory = Memory::of(operator.child().id()).unwrap();
    assert!(memory.anonymous < 48.0, "{memory:?}");
}

/// `ConfigMap`s of many short keys: decoded, with `managedFields`, each would take 12 MB, and its copies are written
/// concurrently. Those that somebody adds to small copies are read concurrently.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "long: run by make test-long"]
async fn config_maps_of_many_keys_fit_into_memory() {
    const SOURCES: usize = 6;
    const DESTINATIONS: usize = 4;
    const KEYS: usize = 40_000;
    let _guard = only_large_test().await;
    let plane = testbed::Options::apiserver_only();
    let shop = Shop {
        bed: Bed::on_own_plane_with(plane, "keys").await,
    };
    let here = shop.bed.namespace.clone();
    let mut destinations = Vec::new();
    for number in 0..DESTINATIONS {
        destinations.push(shop.open(&number.to_string(), json!({})).await);
    }
    let keys = (0..KEYS).map(|key| (format!("{key:x}"), json!("")));
    let keys = Value::Object(keys.collect());
    let small = "small";
    shop.map(&here, small, json!({ "data": {} })).await;
    let names: Vec<_> = (0..SOURCES)
        .map(|number| format!("large-{number}"))
        .collect();
    let maps = shop.maps(&here);
    for name in &names {
        let map = json!({ "metadata": { "name": name }, "data": keys });
        create_large(&maps, &serde_json::from_value(map).unwrap()).await;
    }

    let mut operator = Operator::start(&shop.bed, Settings::default().whole_cluster()).await;
    let peak = Peak::watch(operator.child().id());
    for name in names.iter().map(String::as_str).chain([small]) {
        let spec = json!({ "configMapName": name, "destinationNamespaces": destinations });
        shop.sync(name, spec).await;
    }
    for name in &names {
        for namespace in &destinations {
            shop.copied(namespace, name, keys.clone()).await;
        }
    }
    let change = Patch::Merge(json!({ "data": keys }));
    stream::iter(&destinations)
        .for_each_concurrent(None, async |namespace| {
            patch_large(&shop.maps(namespace), small, &change).await;
        })
        .await;
    for namespace in &destinations {
        shop.copied(namespace, small, json!({})).await;
    }
    let peak = peak.end();
    println!("peak of RssAnon, many keys: {peak:.1} MiB");
    assert!(peak < LIMIT * 0.75, "{peak} MiB");
}
