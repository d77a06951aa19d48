//! A load balancer without listeners, beside objects of somebody else.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::core::ApiResource;
use qm_api::MyIngress;
use serde_json::{Value, json};
use testbed::aws::{Aws, Balancer, SUBNETS};
use testbed::proxy::ApiRequest;

use super::{Reader, Scene, becomes_ready, delete, resource};

pub fn resources() -> Vec<ApiResource> {
    vec![resource::<MyIngress>()]
}

pub fn owns(request: &ApiRequest) -> bool {
    request.resource == "myingresses" && request.name.as_deref() == Some("web")
}

fn aws<'a>(scene: &'a Scene<'_>) -> &'a Aws {
    scene.aws.as_ref().unwrap()
}

pub async fn prepare(scene: &Scene<'_>) {
    let aws = aws(scene);
    // Objects of somebody else, which stay for later cases.
    if aws.balancer("other-alb").await.unwrap().is_none() {
        aws.provisioning(Duration::ZERO);
        aws.create("other-alb", &SUBNETS[..2], "internal", &[("team", "b")])
            .await
            .unwrap();
        aws.create_target_group("other", 80).await.unwrap();
    }
    aws.provisioning(Duration::from_millis(200));
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
    becomes_ready::<MyIngress>(scene, "web").await;
    scene.checkpoint("created").await;
    bed.patch::<MyIngress>("web", json!({ "spec": second }))
        .await;
    becomes_ready::<MyIngress>(scene, "web").await;
    scene.checkpoint("changed").await;
    bed.patch::<MyIngress>("web", json!({ "spec": first }))
        .await;
    becomes_ready::<MyIngress>(scene, "web").await;
    scene.checkpoint("changed back").await;

    let arn = balancer(scene).await.arn;
    aws.set_subnets(&arn, &SUBNETS[1..3]).await.unwrap();
    bed.request_reconcile::<MyIngress>("web").await;
    scene.checkpoint("subnets corrected").await;
    aws.tag(&arn, "team", "evil").await.unwrap();
    bed.request_reconcile::<MyIngress>("web").await;
    scene.checkpoint("tag corrected").await;
    aws.delete(&arn).await.unwrap();
    bed.request_reconcile::<MyIngress>("web").await;
    scene.checkpoint("recreated").await;
}

pub async fn end(scene: &Scene<'_>) {
    delete::<MyIngress>(scene, "web").await;
}

/// Returns what exists in AWS.
pub async fn outside(scene: &Scene<'_>) -> anyhow::Result<Value> {
    let shown = |balancer: Balancer| {
        json!({
            "name": balancer.name,
            "subnets": balancer.subnets,
            "securityGroups": balancer.security_groups.len(),
            "ipAddressType": balancer.ip_address_type,
            "state": balancer.state,
            "tags": tags(balancer.tags),
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

/// Returns what the load balancer of a ready object must be, and what it is.
pub async fn expected_and_found(reader: &Reader, spec: &Value) -> anyhow::Result<(Value, Value)> {
    let aws = reader.aws.as_ref().unwrap();
    let balancer = aws.balancer("web-alb").await?;
    let address_type = &spec["ipAddressType"];
    let mut expected = json!({
        "state": "active",
        "subnets": spec["subnets"],
        "ipAddressType": address_type,
        "tags": spec["tags"],
    });
    expected["tags"]["ManagedBy"] = "quartermaster".into();
    let found = balancer.map(|it| {
        // The operator leaves what the spec does not set.
        let found_type = (!address_type.is_null()).then_some(it.ip_address_type);
        json!({
            "state": it.state,
            "subnets": it.subnets,
            "ipAddressType": found_type,
            "tags": tags(it.tags),
        })
    });
    Ok((expected, json!(found)))
}

/// Returns the tags without those with UIDs and the namespace.
fn tags(mut tags: BTreeMap<String, String>) -> BTreeMap<String, String> {
    tags.retain(|key, _| !key.contains("quartermaster.dev/"));
    tags
}
