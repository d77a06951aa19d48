//! A cluster full of `ConfigMap`s that no sync needs.

use futures::{StreamExt as _, TryStreamExt as _, stream};
use testbed::usage::Memory;

use super::*;
use crate::support::only_large_test;

const CROWD: usize = 10_000;
const SYNCS: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
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
