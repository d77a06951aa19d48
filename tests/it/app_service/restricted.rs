//! An app in a namespace that enforces the restricted pod security profile.

use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;
use testbed::wait::until;

use super::{app, ready};
use crate::support::{Bed, Operator, SOON, Settings};

#[tokio::test]
async fn app_runs_in_a_restricted_namespace_when_it_asks_for_the_profile() {
    let bed = Bed::shared("restricted").await;
    let label =
        json!({ "metadata": { "labels": { "pod-security.kubernetes.io/enforce": "restricted" } } });
    let namespaces: Api<Namespace> = Api::all(bed.client.clone());
    namespaces
        .patch(
            &bed.namespace,
            &PatchParams::default(),
            &Patch::Merge(label),
        )
        .await
        .unwrap();
    let _operator = Operator::start(&bed, Settings::default()).await;
    // Without the field the template equals the original program's, and the profile rejects its Pods.
    app(&bed, "plain", json!({ "size": 1, "image": "nginx" })).await;
    app(
        &bed,
        "web",
        json!({ "size": 1, "image": "nginx", "podSecurity": "Restricted" }),
    )
    .await;
    ready(&bed, "web").await;
    let pods = bed
        .api::<Pod>()
        .list(&ListParams::default())
        .await
        .unwrap()
        .items;
    let users: Vec<_> = pods
        .iter()
        .map(|pod| {
            let spec = pod.spec.as_ref().unwrap();
            let labels = pod.metadata.labels.as_ref().unwrap();
            (
                labels["app"].as_str(),
                spec.security_context
                    .as_ref()
                    .and_then(|context| context.run_as_user),
            )
        })
        .collect();
    assert_eq!(users, [("web", Some(65_532))]);
    let deployment = |name: &'static str| {
        let api = bed.api::<k8s_openapi::api::apps::v1::Deployment>();
        async move {
            until("it is there", SOON, async || Ok(api.get_opt(name).await?))
                .await
                .unwrap()
        }
    };
    let spec = deployment("plain")
        .await
        .spec
        .unwrap()
        .template
        .spec
        .unwrap();
    assert_eq!(spec.containers[0].security_context, None);
}
