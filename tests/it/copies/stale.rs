//! What a replica that stood by knows may be of the past: its watch may have fallen silent.

use testbed::Options;
use testbed::proxy::Match;

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_leads_next_undoes_nothing_that_was_done_meanwhile() {
    let shop = Shop { bed: Bed::own_with(Options::apiserver_only(), "stale-copies").await };
    let (bed, here) = (&shop.bed, shop.bed.namespace.as_str());
    let (one, two) = (shop.open("one", json!({})).await, shop.open("two", json!({})).await);
    let flags = ["--leader-elect", "--lease-duration=3s", "--lease-renew-deadline=2s", "--lease-retry-period=200ms"];
    let candidate = || flags.iter().fold(shop.serving(&["one", "two"]), |settings, flag| settings.flag(flag));
    let mut leader = Operator::start(bed, candidate()).await;
    shop.map(here, "settings", json!({ "data": { "a": "1" } })).await;
    for name in ["deleted", "moved", "marker"] {
        shop.sync(name, json!({ "destinationNamespace": one, "destinationName": name })).await;
        shop.reads(name, "Synced").await;
    }
    let (proxy, file) = bed.through_proxy().await;
    let _standby = Operator::start(bed, candidate().kubeconfig(file)).await;
    let silent = proxy.freeze(Match::watch("configmapsyncs"));
    bed.delete::<ConfigMapSync>("deleted").await;
    shop.ended("deleted").await;
    bed.patch::<ConfigMapSync>("moved", json!({ "spec": { "destinationNamespace": two } })).await;
    shop.reads("moved", "Synced").await;
    silent.wait_for_hits(2, SOON).await.unwrap();
    leader.kill();

    for (value, heard) in [("2", false), ("3", true)] {
        if heard {
            silent.take_back();
        }
        shop.edit(here, "settings", json!({ "data": { "a": value } })).await;
        for (namespace, name) in [(&one, "marker"), (&two, "moved")] {
            shop.copied(namespace, name, json!({ "a": value })).await;
        }
    }
    for name in ["deleted", "moved"] {
        assert_eq!(shop.maps(&one).get_opt(name).await.unwrap(), None);
    }
}
