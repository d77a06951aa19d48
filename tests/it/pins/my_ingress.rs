//! Walk-through of a `MyIngress`, with a listener for a while.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Service};
use kube::api::{Api, PostParams};
use qm_api::MyIngress;
use serde_json::{Value, json};
use testbed::aws::{Aws, SUBNETS};
use testbed::wait::until;

use super::mask::Mask;
use super::{Coverage, Walkthrough, assert_pinned, bed, metrics};
use crate::support::{Bed, SOON, Settings};

const CONTROLLER: &str = "myingress";
/// Resources that only this operator reads outside the namespaces of the pins.
const CLUSTER_WIDE: [&str; 4] = ["myingresses", "namespaces", "nodes", "services"];

/// Waits until the condition `Ready` of the current generation has this reason.
async fn has_reason(bed: &Bed, reason: &str) {
    bed.until("web", reason, |ingress: &MyIngress| {
        ingress.status.as_ref().is_some_and(|status| {
            status.observed_generation == ingress.metadata.generation
                && status.conditions[0].reason == reason
        })
    })
    .await;
}

async fn patch_spec(bed: &Bed, spec: Value) {
    bed.patch::<MyIngress>("web", json!({ "spec": spec })).await;
}

/// Ends a step, and records the calls of AWS too.
async fn record(walk: &mut Walkthrough, aws: &Aws, step: &'static str) {
    walk.record_with(step, |mask| calls(aws, mask)).await;
}

/// Returns the calls since the last step: the number of reads by action, and the other calls in order.
fn calls(aws: &Aws, mask: &Mask) -> Value {
    let (mut reads, mut changes) = (BTreeMap::<_, usize>::new(), Vec::new());
    for call in aws.calls() {
        if call.is_read() {
            *reads.entry(call.action.clone()).or_default() += 1;
            continue;
        }
        let mut change = json!({ "action": call.action, "params": mask.json(&json!(call.params)) });
        if let Some(code) = call.code() {
            change["refused"] = code.into();
        }
        changes.push(change);
    }
    aws.clear();
    json!({ "reads": reads, "changes": changes })
}

#[tokio::test]
async fn my_ingress_behaves_as_pinned() {
    let aws = Aws::start().await.unwrap();
    aws.target_times(Duration::ZERO, Duration::ZERO);
    aws.keep_provisioning(true);
    let settings = Settings::default().aws(&aws).whole_cluster();
    let settings = settings.flag(&format!("--controllers={CONTROLLER}"));
    let bed = bed("ingress").await;
    aws.add_instance("i-1", 'a');
    let node =
        json!({ "metadata": { "name": "i-1" }, "spec": { "providerID": "aws:///us-east-1a/i-1" } });
    Api::<Node>::all(bed.client.clone())
        .create(
            &PostParams::default(),
            &serde_json::from_value(node).unwrap(),
        )
        .await
        .unwrap();
    let coverage = Coverage {
        controller: CONTROLLER,
        reads_per_reconcile: &["get services shop", "get: 404 services shop"],
        elsewhere: |subject| {
            let is_own = subject.namespace.is_empty() || subject.namespace == "kube-system";
            is_own && CLUSTER_WIDE.contains(&subject.resource.as_str())
        },
    };
    let mut walk = Walkthrough::start(bed, settings, coverage).await;

    walk.follow::<MyIngress>("web");
    let spec = json!({ "subnets": SUBNETS[..2] });
    walk.bed
        .create::<MyIngress>("web", json!({ "spec": spec }))
        .await;
    has_reason(&walk.bed, "Provisioning").await;
    walk.events("web", "Created", 1).await;
    walk.events("web", "Provisioning", 1).await;
    record(&mut walk, &aws, "MyIngress created").await;

    aws.keep_provisioning(false);
    aws.provisioning(Duration::ZERO);
    walk.request::<MyIngress>("web").await;
    has_reason(&walk.bed, "Ready").await;
    walk.events("web", "Ready", 1).await;
    record(&mut walk, &aws, "load balancer active, reconcile requested").await;

    walk.request::<MyIngress>("web").await;
    record(&mut walk, &aws, "reconcile requested").await;

    patch_spec(
        &walk.bed,
        json!({ "subnets": SUBNETS, "tags": { "team": "shop" } }),
    )
    .await;
    has_reason(&walk.bed, "Ready").await;
    walk.events("web", "Updated", 1).await;
    record(&mut walk, &aws, "subnets and tags changed").await;

    let balancer = aws.balancer("web-alb").await.unwrap().unwrap();
    aws.set_subnets(&balancer.arn, &SUBNETS[..2]).await.unwrap();
    aws.tag(&balancer.arn, "team", "other").await.unwrap();
    walk.request::<MyIngress>("web").await;
    walk.events("web", "Updated", 2).await;
    record(
        &mut walk,
        &aws,
        "load balancer edited by another client, reconcile requested",
    )
    .await;

    let listener = json!({ "port": 80, "service": { "name": "shop", "port": 80 } });
    patch_spec(&walk.bed, json!({ "listeners": [listener] })).await;
    has_reason(&walk.bed, "ServiceNotFound").await;
    walk.events("web", "ServiceNotFound", 1).await;
    // The first listener starts watches. A list that comes after the reconcile triggers another reconcile, so reads are
    // not counted.
    walk.record_with(
        "listener added, Service missing",
        |mask| json!({ "changes": calls(&aws, mask)["changes"] }),
    )
    .await;

    let ports = json!([{ "port": 80, "nodePort": 30_080 }]);
    let spec = json!({ "type": "NodePort", "selector": { "app": "shop" }, "ports": ports });
    walk.bed
        .create::<Service>("shop", json!({ "spec": spec }))
        .await;
    has_reason(&walk.bed, "TargetsInitial").await;
    walk.events("web", "Updated", 3).await;
    walk.events("web", "TargetsInitial", 1).await;
    record(&mut walk, &aws, "Service created").await;

    walk.request::<MyIngress>("web").await;
    has_reason(&walk.bed, "Ready").await;
    walk.events("web", "Ready", 2).await;
    record(&mut walk, &aws, "targets healthy, reconcile requested").await;

    walk.request::<MyIngress>("web").await;
    record(&mut walk, &aws, "reconcile with a listener requested").await;

    patch_spec(&walk.bed, json!({ "listeners": null })).await;
    has_reason(&walk.bed, "Ready").await;
    walk.events("web", "Updated", 4).await;
    record(&mut walk, &aws, "listener removed").await;

    patch_spec(&walk.bed, json!({ "suspend": true })).await;
    has_reason(&walk.bed, "Suspended").await;
    walk.events("web", "Suspended", 1).await;
    record(&mut walk, &aws, "MyIngress suspended").await;

    patch_spec(&walk.bed, json!({ "suspend": false })).await;
    has_reason(&walk.bed, "Ready").await;
    walk.events("web", "Ready", 3).await;
    record(&mut walk, &aws, "MyIngress resumed").await;

    walk.bed.delete::<MyIngress>("web").await;
    let ingresses: Api<MyIngress> = walk.bed.api();
    until("the MyIngress is deleted", SOON, async || {
        Ok(ingresses.get_opt("web").await?.is_none().then_some(()))
    })
    .await
    .unwrap();
    walk.events("web", "Deleted", 1).await;
    record(&mut walk, &aws, "MyIngress deleted").await;
    let families = metrics::families(&walk.metrics.read().await);
    let calls = families
        .into_iter()
        .filter(|(name, _)| name.starts_with("quartermaster_aws"));
    assert_pinned!("metrics_aws", calls.collect::<BTreeMap<_, _>>());
    assert_pinned!("my_ingress", walk.end().await);
}
