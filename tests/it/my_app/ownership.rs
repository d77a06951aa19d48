//! The operator never changes an unowned Pod, and adopts a Pod without changes.

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, PropagationPolicy};
use kube::{Api, ResourceExt as _};
use qm_api::MyApp;
use serde_json::json;
use testbed::wait::until;

use super::{documents_pod, is_owned_by};
use crate::support::{Bed, Operator, SOON, Settings};

const BANNER: &str = "This pod was created for $5 \u{1F680}";

#[tokio::test]
async fn pod_of_the_document_is_adopted_without_restart() {
    let bed = Bed::shared("apps").await;
    bed.accepts_pods().await;
    let original_pod: Pod = bed
        .create("web-pod", documents_pod("web", "nginx:1", BANNER))
        .await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let since = bed.plane.audit().mark().await.unwrap();
    let app = bed
        .app("web", json!({ "image": "nginx:1", "banner": BANNER }))
        .await;
    let message = bed.app_has_reason("web", "Conflict").await;
    let (_, command) = message.split_once("to adopt it: kubectl ").unwrap();
    let here = &bed.namespace;
    assert_eq!(
        command,
        format!("annotate pods web-pod -n {here} quartermaster.dev/adopt-by={here}/web")
    );
    assert_eq!(bed.event("web", "Conflict").await, message);
    // The operator keeps checking, and writes nothing.
    let requests = until("the creation is retried", SOON, async || {
        let requests = bed.requests(since).await;
        Ok(requests
            .get("get pods web-pod")
            .is_some_and(|times| *times > 3)
            .then_some(requests))
    });
    let mut requests = requests.await.unwrap();
    requests.remove("get pods web-pod");
    let once = ["create pods web-pod", "patch myapps/status web"].map(|what| (what.to_owned(), 1));
    assert_eq!(requests, once.into(), "one rejection, and one Event");
    let live = bed.pod("web").await.unwrap();
    assert_eq!(
        (live.labels(), live.annotations(), live.owner_references()),
        (
            original_pod.labels(),
            original_pod.annotations(),
            original_pod.owner_references()
        )
    );

    bed.plane
        .run_kubectl(&command.split(' ').collect::<Vec<_>>(), "")
        .await
        .unwrap();
    let adopted = bed.app_runs("web").await;
    assert_eq!(
        bed.event("web", "Adopted").await,
        "adopted web-pod unchanged"
    );
    assert!(is_owned_by(&adopted, &app));
    assert!(
        !adopted
            .annotations()
            .contains_key("quartermaster.dev/adopt-by")
    );
    assert_eq!(adopted.uid(), original_pod.uid());
    assert_eq!(
        adopted.metadata.generation,
        Some(1),
        "the spec is unchanged"
    );
    let env = json!([{ "name": "BANNER" }, { "name": "BANNER", "value": BANNER }]);
    assert_eq!(
        serde_json::to_value(&adopted.spec.as_ref().unwrap().containers[0].env).unwrap(),
        env
    );
    assert_eq!(adopted.labels()["app"], "web");

    // The adopted Pod keeps its security profile until there is another reason to recreate it.
    bed.patch::<MyApp>("web", json!({ "spec": { "podSecurity": "Baseline" } }))
        .await;
    assert_eq!(bed.app_runs("web").await.uid(), original_pod.uid());
    bed.patch::<MyApp>("web", json!({ "spec": { "banner": "another" } }))
        .await;
    let recreated = bed.app_runs_again("web", &adopted).await;
    assert!(is_owned_by(&recreated, &app));
    assert_eq!(
        recreated.spec.unwrap().containers[0]
            .env
            .as_ref()
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test]
async fn differing_pod_is_adopted_and_recreated() {
    let bed = Bed::shared("apps").await;
    bed.accepts_pods().await;
    let mut pod = documents_pod("web", "nginx:1", BANNER);
    pod["metadata"]["annotations"] =
        json!({ "quartermaster.dev/adopt-by": format!("{}/web", bed.namespace) });
    let original_pod: Pod = bed.create("web-pod", pod).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.app("web", json!({ "image": "nginx:2", "banner": BANNER }))
        .await;
    let recreated = bed.app_runs_again("web", &original_pod).await;
    assert_eq!(
        recreated.spec.unwrap().containers[0].image.as_deref(),
        Some("nginx:2")
    );
}

#[tokio::test]
async fn pod_of_another_controller_is_unchanged() {
    let bed = Bed::shared("apps").await;
    bed.accepts_pods().await;
    let map: ConfigMap = bed.create("boss", json!({})).await;
    let mut pod = documents_pod("web", "nginx:1", BANNER);
    let owner = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "boss", "uid": map.uid(), "controller": true });
    pod["metadata"]["ownerReferences"] = json!([owner]);
    pod["metadata"]["annotations"] =
        json!({ "quartermaster.dev/adopt-by": format!("{}/web", bed.namespace) });
    let original_pod: Pod = bed.create("web-pod", pod).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.app("web", json!({ "image": "nginx:1", "banner": BANNER }))
        .await;
    let message = bed.app_has_reason("web", "Conflict").await;
    assert!(
        message.contains("is controlled by ConfigMap boss"),
        "{message}"
    );
    bed.marker("marker").await;
    let live = bed.pod("web").await.unwrap();
    assert_eq!(
        (live.uid(), live.annotations()),
        (original_pod.uid(), original_pod.annotations())
    );

    // Once that Pod is deleted, the operator creates its own.
    bed.delete::<Pod>("web-pod").await;
    bed.app_runs_again("web", &original_pod).await;
}

#[tokio::test]
async fn one_removed_ownership_mark_is_restored_and_two_release_the_pod() {
    let bed = Bed::shared("apps").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let app = bed.app("web", json!({ "image": "nginx" })).await;
    let pod = bed.app_runs("web").await;
    let label = json!({ "metadata": { "labels": { "quartermaster.dev/owner-uid": null } } });
    let reference = json!({ "metadata": { "ownerReferences": null } });
    for patch in [&label, &reference] {
        bed.patch::<Pod>("web-pod", patch.clone()).await;
        let marked = |pod: &Pod| is_owned_by(pod, &app);
        let again = bed.until("web-pod", "has both marks again", marked).await;
        assert_eq!(again.uid(), pod.uid());
    }

    let since = bed.plane.audit().mark().await.unwrap();
    let both = json!({ "metadata": { "labels": { "quartermaster.dev/owner-uid": null }, "ownerReferences": null } });
    bed.patch::<Pod>("web-pod", both).await;
    bed.app_has_reason("web", "Conflict").await;
    let app = bed.api::<MyApp>().get("web").await.unwrap();
    assert_eq!(app.status.unwrap().pod_name, None);
    bed.patch::<MyApp>("web", json!({ "spec": { "image": "nginx:2" } }))
        .await;
    bed.app_has_reason("web", "Conflict").await;
    bed.marker("marker").await;
    let mut requests = bed.requests(since).await;
    requests.retain(|what, _| what.contains("pods") && !what.starts_with("get"));
    assert_eq!(requests, [].into());
    assert_eq!(bed.pod("web").await.unwrap().uid(), pod.uid());
}

#[tokio::test]
async fn pod_ownership_is_restored_after_a_backup() {
    let bed = Bed::shared("apps").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let spec = json!({ "image": "nginx", "banner": "$" });
    bed.app("web", spec.clone()).await;
    let pod = bed.app_runs("web").await;
    let apps: Api<MyApp> = bed.api();
    let orphan = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Orphan),
        ..DeleteParams::default()
    };
    apps.delete("web", &orphan).await.unwrap();
    // The garbage collector, which deletes it, discovers new kinds only every 30 s.
    until("the Pod is deleted", SOON, async || {
        Ok(apps.get_opt("web").await?.is_none().then_some(()))
    })
    .await
    .unwrap();
    let again = bed.app("web", spec).await;
    let adopted = bed.app_runs("web").await;
    assert_eq!(adopted.uid(), pod.uid());
    assert!(is_owned_by(&adopted, &again));

    // The default deletion deletes the Pod, too.
    bed.delete::<MyApp>("web").await;
    until("the Pod is deleted", SOON, async || {
        Ok(bed.pod("web").await.is_none().then_some(()))
    })
    .await
    .unwrap();
}
