//! The operator's rights as shipped: what it needs is granted, what it does not is not.

use std::pin::pin;

use futures::StreamExt;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams, WatchEvent, WatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use testbed::control_plane::{ControlPlane, Options};

use super::wait_until;

const CONFIG: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/local");
const NAMESPACE: &str = "quartermaster-system";
const ACCOUNT: &str = "quartermaster-controller-manager";

/// Verb, `RESOURCE[/SUBRESOURCE].GROUP`, namespace (all of them where empty), and whether it is granted.
#[rustfmt::skip] // one line a case
const CASES: &[(&str, &str, &str, bool)] = &[
    ("watch",  "contactpoints.tg.azamaton.ru",        "",        true),
    ("get",    "contactpoints.tg.azamaton.ru",        "",        false),
    ("patch",  "contactpoints/status.tg.azamaton.ru", "",        true),
    ("patch",  "contactpoints.tg.azamaton.ru",        "",        false),
    ("delete", "contactpoints.tg.azamaton.ru",        "",        false),
    ("watch",  "trackedfields.tg.azamaton.ru",        "",        true),
    ("patch",  "trackedfields.tg.azamaton.ru",        "",        true),
    ("patch",  "trackedfields/status.tg.azamaton.ru", "",        true),
    ("update", "trackedfields/status.tg.azamaton.ru", "",        false),
    ("create", "trackedfields.tg.azamaton.ru",        "",        false),
    ("get",    "secrets.",                            "",        true),
    ("list",   "secrets.",                            "",        false),
    ("watch",  "secrets.",                            "",        false),
    ("create", "events.events.k8s.io",                "",        true),
    ("patch",  "events.events.k8s.io",                "",        false),
    ("update", "leases.coordination.k8s.io",          NAMESPACE, true),
    ("create", "leases.coordination.k8s.io",          NAMESPACE, true),
    ("update", "leases.coordination.k8s.io",          "default", false),
    ("list",   "customresourcedefinitions.apiextensions.k8s.io", "", false),
    ("watch",  "configmaps.",                         "",        false),
    ("update", "deployments.apps",                    "",        false),
];

#[tokio::test]
async fn the_operator_may_do_what_it_needs_and_no_more() {
    let options = Options { controller_manager: true, ..Options::apiserver_only() };
    let plane = ControlPlane::start(options).await.unwrap();
    plane.run_kubectl(&["apply", "--warnings-as-errors", "-k", CONFIG], "").await.unwrap();
    let path = plane.kubeconfig_for_service_account(NAMESPACE, ACCOUNT).await.unwrap();
    let (file, options) = (Kubeconfig::read_from(path).unwrap(), KubeConfigOptions::default());
    let operator = Client::try_from(Config::from_custom_kubeconfig(file, &options).await.unwrap()).unwrap();

    for (verb, resource, namespace, granted) in CASES {
        assert_eq!(may(&operator, verb, resource, namespace).await, *granted, "{verb} {resource} in '{namespace}'");
    }

    // A right by name covers list and watch with a field selector for that name.
    let crds = Api::<CustomResourceDefinition>::all(operator.clone());
    for name in ["contactpoints.tg.azamaton.ru", "trackedfields.tg.azamaton.ru"] {
        let selector = format!("metadata.name={name}");
        assert_eq!(crds.list(&ListParams::default().fields(&selector)).await.unwrap().items.len(), 1);
        let watch = crds.watch(&WatchParams::default().fields(&selector).timeout(5), "0").await.unwrap();
        let first = pin!(watch).next().await.unwrap().unwrap();
        assert!(matches!(first, WatchEvent::Added(crd) if crd.name_any() == name));
    }
    let other = crds.list(&ListParams::default().fields("metadata.name=others.example.com")).await;
    assert!(matches!(other, Err(kube::Error::Api(said)) if said.code == 403));

    // Targets come by aggregation, and so do further kinds.
    for resource in ["deployments.apps", "statefulsets.apps", "services."] {
        wait_until(resource, async || may(&operator, "watch", resource, "").await).await;
    }
    plane
        .run_kubectl(&["create", "clusterrole", "more", "--verb=get,list,watch", "--resource=configmaps"], "")
        .await
        .unwrap();
    let label = ["label", "clusterrole", "more", "quartermaster.dev/aggregate-to-tracker=true"];
    plane.run_kubectl(&label, "").await.unwrap();
    wait_until("configmaps", async || may(&operator, "watch", "configmaps.", "").await).await;

    // A second installation takes nothing away, not for a moment.
    plane.run_kubectl(&["apply", "-k", CONFIG], "").await.unwrap();
    assert!(may(&operator, "watch", "deployments.apps", "").await);
}

async fn may(client: &Client, verb: &str, resource: &str, namespace: &str) -> bool {
    let (resource, group) = resource.split_once('.').unwrap();
    let (resource, subresource) = resource.split_once('/').map_or((resource, None), |(r, s)| (r, Some(s)));
    let attributes = ResourceAttributes {
        verb: Some(verb.into()),
        group: Some(group.into()),
        resource: Some(resource.into()),
        subresource: subresource.map(Into::into),
        namespace: Some(namespace.into()),
        ..Default::default()
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() },
        ..Default::default()
    };
    let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await.unwrap();
    answer.status.unwrap().allowed
}
