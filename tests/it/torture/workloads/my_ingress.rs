//! A load balancer without listeners, beside objects of somebody else.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use kube::core::ApiResource;
use qm_api::MyIngress;
use serde_json::{Value, json};
use testbed::aws::{Aws, Balancer, SUBNETS};
use testbed::proxy::ApiRequest;

use super::{Reader, Scene, becomes_ready, delete, resource};

/// Stands for a UID in a tag.
const UID: &str = "<uid>";

/// Stands for the namespace in a tag.
const NAMESPACE: &str = "<namespace>";

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

pub async fn change(scene: &Scene<'_>) {
    let (bed, aws) = (&scene.bed, aws(scene));
    let groups = aws.security_groups();
    let first = json!({
        "subnets": SUBNETS[..2],
        "tags": { "team": "a", "stage": null },
        "securityGroups": [groups[0]],
        "ipAddressType": "ipv4",
    });
    let second = json!({
        "subnets": SUBNETS[..3],
        "tags": { "team": null, "stage": "test" },
        "securityGroups": [groups[1]],
        "ipAddressType": "dualstack",
    });
    let mut created = first.clone();
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

pub async fn delete_all(scene: &Scene<'_>) {
    delete::<MyIngress>(scene, "web").await;
}

/// Returns what exists in AWS.
pub async fn outside(scene: &Scene<'_>) -> anyhow::Result<Value> {
    let (aws, namespace) = (aws(scene), &*scene.bed.namespace);
    let balancers = aws.balancers().await?.into_iter().map(|it| {
        // IDs differ from run to run.
        let groups = it.security_groups.iter();
        let groups: BTreeSet<_> = groups.map(|id| aws.security_group_name(id)).collect();
        json!({
            "name": it.name,
            "subnets": it.subnets,
            "securityGroups": groups,
            "ipAddressType": it.ip_address_type,
            "state": it.state,
            "tags": comparable(it.tags, namespace),
        })
    });
    let groups = aws.target_groups().await?.into_iter();
    let groups = groups.map(|it| json!([it.name, it.port, comparable(it.tags, namespace)]));
    Ok(json!({
        "balancers": balancers.collect::<Vec<_>>(),
        "targetGroups": groups.collect::<Vec<_>>(),
    }))
}

async fn balancer(scene: &Scene<'_>) -> Balancer {
    aws(scene).balancer("web-alb").await.unwrap().unwrap()
}

/// Returns what the load balancer of a ready object must be, and what it is.
pub async fn expected_and_found(reader: &Reader, spec: &Value) -> anyhow::Result<(Value, Value)> {
    let aws = reader.aws.as_ref().unwrap();
    let balancer = aws.balancer("web-alb").await?;
    let mut expected = json!({
        "state": "active",
        "subnets": spec["subnets"],
        "securityGroups": spec["securityGroups"],
        "ipAddressType": spec["ipAddressType"],
        "tags": spec["tags"],
    });
    let ownership = [
        ("ManagedBy", "quartermaster"),
        ("quartermaster.dev/cluster", UID),
        ("quartermaster.dev/owner", &format!("{NAMESPACE}/web")),
        ("quartermaster.dev/owner-uid", UID),
    ];
    for (key, value) in ownership {
        expected["tags"][key] = value.into();
    }
    let found = balancer.map(|it| {
        json!({
            "state": it.state,
            "subnets": it.subnets,
            "securityGroups": it.security_groups,
            "ipAddressType": it.ip_address_type,
            "tags": comparable(it.tags, &reader.namespace),
        })
    });
    Ok((expected, json!(found)))
}

/// Returns the tags with [`UID`] and [`NAMESPACE`] in place of values that differ from run to run.
fn comparable(mut tags: BTreeMap<String, String>, namespace: &str) -> BTreeMap<String, String> {
    for value in tags.values_mut() {
        *value = match uuid::Uuid::parse_str(value) {
            Ok(_) => UID.into(),
            Err(_) => value.replace(namespace, NAMESPACE),
        };
    }
    tags
}
