//! Stale objects: an app's watch may have stalled.

use testbed::proxy::{Match, Proxy, Verb};

use super::*;
use crate::support::{Operator, Settings};

/// Creates an app with a Pod, and freezes its watch.
async fn known_app(name: &str) -> (Bed, Proxy, Operator) {
    let bed = by_hand(name).await;
    let (proxy, file) = bed.through_proxy().await;
    let operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    bed.app("web", json!({ "image": "nginx" })).await;
    bed.app_has_reason("web", "PodPending").await;
    (bed, proxy, operator)
}

/// Waits until the operator has read whether the app in its cache still exists.
async fn existence_checked(proxy: &Proxy) {
    let asked = Match::verb(Verb::Get).resource("myapps").name("web");
    until(
        "the operator reads whether the app exists",
        SOON,
        async || Ok((proxy.count(&asked) > 0).then_some(())),
    )
    .await
    .unwrap();
}

/// In the cache, no app has the UID of the Pod's owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_app_restores_no_ownership() {
    let (bed, proxy, _operator) = known_app("pod-restored").await;
    let silent = proxy.freeze(Match::watch("myapps"));
    bed.delete::<MyApp>("web").await;
    silent.wait_for_hits(1, SOON).await.unwrap();
    let new = bed.app("web", json!({ "image": "nginx" })).await;
    let mut former_owners = bed.pod("web").await.unwrap().owner_references().to_vec();
    former_owners[0].uid = new.uid().unwrap();
    proxy.forget();
    let labels = json!({ "quartermaster.dev/owner-uid": new.uid() });
    let pod = bed
        .patch::<Pod>(
            "web-pod",
            json!({ "metadata": { "labels": labels, "ownerReferences": former_owners } }),
        )
        .await;
    existence_checked(&proxy).await;
    assert!(is_owned_by(&bed.pod("web").await.unwrap(), &new));
    silent.cancel();
    bed.app_has_reason("web", "PodPending").await;
    assert!(is_owned_by(&bed.pod("web").await.unwrap(), &new));
    assert_eq!(bed.pod("web").await.unwrap().uid(), pod.uid());
}

/// Before the garbage collector deletes an app whose Pod is to stay, it removes the owner reference.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_app_restores_no_reference_of_an_orphan() {
    let (bed, proxy, _operator) = known_app("pod-orphaned").await;
    let silent = proxy.freeze(Match::watch("myapps"));
    let apps = bed.api::<MyApp>();
    apps.delete("web", &DeleteParams::orphan()).await.unwrap();
    silent.wait_for_hits(1, SOON).await.unwrap();
    proxy.forget();
    let orphaned = json!({ "metadata": { "ownerReferences": null } });
    bed.patch::<Pod>("web-pod", orphaned).await;
    existence_checked(&proxy).await;
    silent.cancel();
    bed.marker("marker").await;
    assert_eq!(bed.pod("web").await.unwrap().owner_references(), []);
}

/// The operator does not recreate the Pod of a deleted app, which the garbage collector would delete again and again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_app_creates_no_pod() {
    let (bed, proxy, _operator) = known_app("pod-gone").await;
    let silent = proxy.freeze(Match::watch("myapps"));
    bed.delete::<MyApp>("web").await;
    silent.wait_for_hits(1, SOON).await.unwrap();
    proxy.forget();
    bed.pod_ends("web").await;
    existence_checked(&proxy).await;
    assert_eq!(proxy.count(&Match::verb(Verb::Create).resource("pods")), 0);
    silent.cancel();
    bed.marker("marker").await;
    assert_eq!(bed.pod("web").await, None);
}
