//! A load balancer without listeners.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::core::ApiResource;
use qm_api::MyIngress;
use qm_core::conditions;
use serde_json::{Value, json};
use testbed::aws::{Aws, Balancer, SUBNETS};
use testbed::proxy::ApiRequest;

use super::{Scene, delete, resource};
use crate::torture::scene::requested_now;

pub fn resources() -> Vec<ApiResource> {
    vec![resource::<MyIngress>()]
}

pub fn owns(request: &ApiRequest) -> bool {
    request.resource == "myingresses" && request.name.as_deref() == Some("web")
}

fn aws<'a>(scene: &'a Scene<'_>) -> &'a Aws {
    scene.aws.as_ref().unwrap()
}

pub fn prepare(scene: &Scene<'_>) {
    aws(scene).provisioning(Duration::from_millis(200));
}

pub async fn live(scene: &Scene<'_>) {
    let (bed, aws) = (&scene.bed, aws(scene));
    let group = aws.security_groups().remove(0);
    let first = json!({
        "subnets": SUBNETS[..2],
        "tags": { "team": "a", "stage": null },
        "securityGroups": null,
        "ipAddressType": null,
    });
    let second = json!({
        "subnets": SUBNETS[..3],
        "tags": { "team": null, "stage": "test" },
        "securityGroups": [group],
        "ipAddressType": "dualstack",
    });
    let mut created = first.clone();
    created
        .as_object_mut()
        .unwrap()
        .retain(|_, it| !it.is_null());
    created["tags"].as_object_mut().unwrap().remove("stage");
    bed.create::<MyIngress>("web", json!({ "spec": created }))
        .await;
    is_ready(scene, 2).await;
    scene.checkpoint("created").await;
    bed.patch::<MyIngress>("web", json!({ "spec": second }))
        .await;
    is_ready(scene, 3).await;
    scene.checkpoint("changed").await;
    bed.patch::<MyIngress>("web", json!({ "spec": first }))
        .await;
    is_ready(scene, 2).await;
    scene.checkpoint("changed back").await;

    let arn = balancer(scene).await.arn;
    aws.set_subnets(&arn, &SUBNETS[1..3]).await.unwrap();
    reconcile(scene).await;
    scene.checkpoint("subnets corrected").await;
    aws.tag(&arn, "team", "evil").await.unwrap();
    reconcile(scene).await;
    scene.checkpoint("tag corrected").await;
    aws.delete(&arn).await.unwrap();
    reconcile(scene).await;
    scene.checkpoint("recreated").await;
}

pub async fn end(scene: &Scene<'_>) {
    delete::<MyIngress>(scene, "web").await;
}

/// Returns what exists in AWS.
pub async fn outside(scene: &Scene<'_>) -> anyhow::Result<Value> {
    let shown = |balancer: Balancer| {
        // The others have UIDs and the namespace.
        let tags: BTreeMap<_, _> = balancer
            .tags
            .into_iter()
            .filter(|(key, _)| !key.contains("quartermaster.dev/"))
            .collect();
        json!({
            "name": balancer.name,
            "subnets": balancer.subnets,
            "securityGroups": balancer.security_groups.len(),
            "ipAddressType": balancer.ip_address_type,
            "state": balancer.state,
            "tags": tags,
        })
    };
    let aws = aws(scene);
    let balancers = aws.balancers().await?.into_iter().map(shown);
    let groups = aws.target_groups().await?.len();
    Ok(json!({ "balancers": balancers.collect::<Vec<_>>(), "targetGroups": groups }))
}

async fn balancer(scene: &Scene<'_>) -> Balancer {
    aws(scene).balancer("web-alb").await.unwrap().unwrap()
}

/// Lets the operator read AWS again.
async fn reconcile(scene: &Scene<'_>) {
    scene.bed.patch::<MyIngress>("web", requested_now()).await;
}

/// Waits until the status says that the load balancer is ready with the current spec. It must be so at that moment.
async fn is_ready(scene: &Scene<'_>, subnets: usize) {
    let ready = |ingress: &MyIngress| {
        let status = ingress.status.as_ref();
        status.is_some_and(|status| {
            status.observed_generation == ingress.metadata.generation
                && conditions::ready(&status.conditions).is_some_and(|it| it.is_true())
        })
    };
    scene.bed.until("web", "is ready", ready).await;
    let balancer = balancer(scene).await;
    assert_eq!(
        (balancer.subnets.len(), balancer.state.as_str()),
        (subnets, "active"),
        "the status says that the load balancer is ready"
    );
}
