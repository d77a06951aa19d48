//! Stale objects: an app's watch may have stalled.

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::DeleteParams;
use rstest::rstest;
use testbed::proxy::{Match, Proxy, Verb};

use super::*;
use crate::support::{Operator, Settings};

const UID: &str = "quartermaster.dev/owner-uid";

/// Returns the spec of an app that has a Service.
fn served() -> Value {
    json!({ "size": 1, "image": "i", "ports": [{ "port": 80, "targetPort": 80 }] })
}

/// Creates an app that the operator knows, freezes its watch, on a control plane without garbage collector.
async fn known_app(name: &str, spec: Value) -> (Bed, Proxy, Operator) {
    let bed = Bed::without_controllers(name).await;
    let (proxy, file) = bed.through_proxy().await;
    let operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    app(&bed, "web", spec).await;
    not_ready(&bed, "web", "Progressing").await;
    (bed, proxy, operator)
}

/// Waits until the operator has read whether the app in its cache still exists.
async fn existence_checked(proxy: &Proxy) {
    let existence_read = Match::verb(Verb::Get).resource("appservices").name("web");
    until(
        "the operator reads whether the app exists",
        SOON,
        async || Ok((proxy.count(&existence_read) > 0).then_some(())),
    )
    .await
    .unwrap();
}

async fn owners(bed: &Bed) -> Vec<OwnerReference> {
    deployment(bed, "web").await.owner_references().to_vec()
}

/// In the cache, no app has the UID of the Deployment's owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_app_restores_no_ownership() {
    let (bed, proxy, _operator) = known_app("app-restored", served()).await;
    let silent = proxy.freeze(Match::watch("appservices"));
    bed.delete::<AppService>("web").await;
    silent.wait_for_hits(1, SOON).await.unwrap();
    let new = app(&bed, "web", served()).await;
    let mut former_owners = owners(&bed).await;
    former_owners[0].uid = new.uid().unwrap();
    proxy.forget();
    let metadata = json!({ "labels": { UID: new.uid() }, "ownerReferences": former_owners });
    bed.patch::<Deployment>("web", json!({ "metadata": metadata }))
        .await;
    existence_checked(&proxy).await;
    assert_eq!(owners(&bed).await, former_owners);
    silent.cancel();
    // The children of the deleted app get the new owner.
    until("the app has a Service", SOON, async || {
        Ok((service(&bed, "web").await.labels().get(UID) == new.uid().as_ref()).then_some(()))
    })
    .await
    .unwrap();
    assert_eq!(owners(&bed).await, former_owners);
}

/// The operator does not delete objects that the deleted app did not have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_app_deletes_nothing() {
    let (bed, proxy, _operator) =
        known_app("app-unserved", json!({ "size": 1, "image": "i" })).await;
    let silent = proxy.freeze(Match::watch("appservices"));
    bed.delete::<AppService>("web").await;
    silent.wait_for_hits(1, SOON).await.unwrap();
    let new = app(&bed, "web", served()).await;
    proxy.forget();
    let owner = OwnerReference {
        controller: Some(true),
        ..new.owner_ref(&()).unwrap()
    };
    let ownership = json!({ "labels": { UID: new.uid() }, "ownerReferences": [owner] });
    let made = bed
        .create::<Service>(
            "web",
            json!({ "metadata": ownership, "spec": { "ports": [{ "port": 80 }] } }),
        )
        .await;
    existence_checked(&proxy).await;
    assert_eq!(service(&bed, "web").await.metadata, made.metadata);
    silent.cancel();
    not_ready(&bed, "web", "Progressing").await;
    assert_eq!(service(&bed, "web").await.uid(), made.uid());
}

/// Before the garbage collector deletes an app whose children are to stay, it removes their owner references.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_app_restores_no_reference_of_an_orphan() {
    let (bed, proxy, _operator) = known_app("app-orphaned", served()).await;
    let silent = proxy.freeze(Match::watch("appservices"));
    let apps = bed.api::<AppService>();
    apps.delete("web", &DeleteParams::orphan()).await.unwrap();
    silent.wait_for_hits(1, SOON).await.unwrap();
    proxy.forget();
    let orphaned = json!({ "metadata": { "ownerReferences": null } });
    bed.patch::<Deployment>("web", orphaned).await;
    existence_checked(&proxy).await;
    silent.cancel();
    app(&bed, "marker", served()).await;
    not_ready(&bed, "marker", "Progressing").await;
    assert_eq!(owners(&bed).await, []);
}

/// The operator does not recreate children of a deleted app, which the garbage collector would delete again and again.
/// In the foreground, the app is deleted after its children.
#[rstest]
#[case::background(DeleteParams::background())]
#[case::foreground(DeleteParams::foreground())]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_app_creates_nothing(#[case] deletion: DeleteParams) {
    let (bed, proxy, _operator) = known_app("app-gone", served()).await;
    let silent = proxy.freeze(Match::watch("appservices"));
    let apps = bed.api::<AppService>();
    apps.delete("web", &deletion).await.unwrap();
    silent.wait_for_hits(1, SOON).await.unwrap();
    proxy.forget();
    bed.delete::<Deployment>("web").await;
    existence_checked(&proxy).await;
    assert_eq!(
        proxy.count(&Match::verb(Verb::Create).resource("deployments")),
        0
    );
    silent.cancel();
    app(&bed, "marker", served()).await;
    not_ready(&bed, "marker", "Progressing").await;
    assert_eq!(bed.api::<Deployment>().get_opt("web").await.unwrap(), None);
}

/// The deletion ends before the watch shows the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recreated_deployment_of_an_autoscaled_app_starts_with_the_size() {
    let mut spec = served();
    spec["size"] = json!(3);
    spec["autoscaling"] = json!({ "min": 1, "max": 5 });
    spec["resources"] = json!({ "requests": { "cpu": "100m" } });
    let (bed, proxy, _operator) = known_app("app-recreated", spec.clone()).await;
    bed.until("web", "exists", |_: &HorizontalPodAutoscaler| true)
        .await;
    let held = json!({ "metadata": { "finalizers": ["example.com/held"] } });
    let deleted = bed.patch::<Deployment>("web", held).await;
    bed.delete::<Deployment>("web").await;
    not_ready(&bed, "web", "ChildTerminating").await;
    let silent = proxy.freeze(Match::watch("deployments"));
    let released = json!({ "metadata": { "finalizers": null } });
    bed.patch::<Deployment>("web", released).await;
    silent.wait_for_hits(1, SOON).await.unwrap();
    spec["image"] = json!("j");
    respec(&bed, "web", spec).await;
    let recreated = until("the Deployment exists again", SOON, async || {
        let live = bed.api::<Deployment>().get_opt("web").await?;
        Ok(live.filter(|live| live.uid() != deleted.uid()))
    });
    let recreated = recreated.await.unwrap();
    assert_eq!(recreated.spec.unwrap().replicas, Some(3));
}
