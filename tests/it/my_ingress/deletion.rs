//! Deletion: the finalizer stays until the load balancer is deleted.

use std::time::Duration;

use rstest::rstest;
use testbed::aws::{Fault, On, Times};

use super::nodes::http;
use super::*;

#[tokio::test]
async fn deletion_without_load_balancer_completes() {
    let site = Site::new("never").await;
    let _operator = site.operator().await;
    // AWS rejected the creation.
    site.ingress("web", json!({ "subnets": ["subnet-abc", "subnet-0000"] }))
        .await;
    let message = site.has_reason("web", "SpecRejected").await;
    assert!(message.contains("SubnetNotFound"), "{message}");
    site.bed.delete::<MyIngress>("web").await;
    site.is_deleted("web").await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);
}

/// A status may lose some of its fields.
#[tokio::test]
async fn deletion_without_status_reads_aws() {
    let site = Site::new("lost").await;
    let operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    drop(operator);
    let lost = kube::api::Patch::Merge(json!({ "status": { "alb": null } }));
    site.bed
        .api::<MyIngress>()
        .patch_status("web", &Default::default(), &lost)
        .await
        .unwrap();
    site.bed.delete::<MyIngress>("web").await;
    let _operator = site.operator().await;
    site.is_deleted("web").await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);
}

/// The operator never called AWS, so nothing has to be deleted.
#[tokio::test]
async fn deletion_without_aws_completes_at_once() {
    let bed = Bed::shared("noaws").await;
    let settings = Settings::default()
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("AWS_CONFIG_FILE", "/nowhere");
    let _operator = Operator::start(&bed, settings.env("AWS_REGION", "")).await;
    let spec = json!({ "spec": { "subnets": SUBNETS } });
    bed.create::<MyIngress>("web", spec).await;
    let says = |ingress: &MyIngress| super::reason_and_message(ingress).0 == "RegionMissing";
    bed.until("web", "has no region", says).await;
    bed.delete::<MyIngress>("web").await;
    let api: Api<MyIngress> = bed.api();
    until("the MyIngress is deleted", SOON, async || {
        Ok(api.get_opt("web").await?.is_none().then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn protected_load_balancer_is_not_deleted() {
    let site = Site::new("protected").await;
    let _operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    let made = site.balancer("web").await.unwrap();
    site.aws.protect(&made.arn, true).await.unwrap();
    site.bed.delete::<MyIngress>("web").await;
    let message = site.has_reason("web", "DeletionProtected").await;
    let command = format!(
        "aws --region us-east-1 elbv2 modify-load-balancer-attributes --load-balancer-arn {} --attributes \
         Key=deletion_protection.enabled,Value=false && kubectl annotate myingress web -n {}",
        made.arn, site.bed.namespace
    );
    assert!(message.contains(&command), "{message}");
    let kept = site.balancer("web").await.unwrap();
    assert!(
        kept.deletion_protection,
        "the operator does not disable the protection"
    );
    assert!(
        !site
            .aws
            .calls()
            .iter()
            .any(|call| call.action.starts_with("Modify"))
    );
    site.aws.protect(&made.arn, false).await.unwrap();
    site.reconcile("web").await;
    site.is_deleted("web").await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);
}

#[tokio::test]
async fn deletion_completes_for_missing_and_suspended_load_balancers() {
    let site = Site::new("gone").await;
    let _operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    site.aws
        .delete(&site.balancer("web").await.unwrap().arn)
        .await
        .unwrap();
    site.bed.delete::<MyIngress>("web").await;
    site.is_deleted("web").await;

    site.ingress("idle", json!({})).await;
    site.ready("idle").await;
    site.respec("idle", json!({ "suspend": true })).await;
    site.has_reason("idle", "Suspended").await;
    site.bed.delete::<MyIngress>("idle").await;
    site.is_deleted("idle").await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);
}

/// A client that replaces the object drops the finalizer, and changes the spec with the same write.
#[rstest]
#[case::suspended(json!({ "suspend": true }), "Suspended")]
#[case::refused(json!({ "listeners": [http(80, "shop")] }), "OutOfScope")]
#[tokio::test]
async fn load_balancer_is_deleted_although_the_finalizer_was_removed(
    #[case] spec: Value,
    #[case] reason: &str,
) {
    let site = Site::new("replaced").await;
    let _operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    let replaced = json!({ "metadata": { "finalizers": null }, "spec": spec });
    site.bed.patch::<MyIngress>("web", replaced).await;
    site.has_reason("web", reason).await;
    site.bed.delete::<MyIngress>("web").await;
    site.is_deleted("web").await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);
}

/// The operator owns nothing in AWS for an object that it has never reconciled.
#[tokio::test]
async fn new_suspended_object_gets_no_finalizer() {
    let site = Site::new("unused").await;
    let _operator = site.operator().await;
    site.ingress("web", json!({ "suspend": true })).await;
    for spec in [json!({}), json!({ "securityGroups": ["sg-1"] })] {
        site.respec("web", spec).await;
        site.has_reason("web", "Suspended").await;
        let ingress: MyIngress = site.bed.api().get("web").await.unwrap();
        assert!(ingress.finalizers().is_empty());
    }
}

#[tokio::test]
async fn deletion_waits_while_aws_is_down() {
    let site = Site::new("down").await;
    let _operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    site.aws.down(true);
    site.aws.clear();
    site.bed.delete::<MyIngress>("web").await;
    let message = site.has_reason("web", "AWSUnavailable").await;
    assert!(message.contains("ServiceUnavailable"), "{message}");
    site.aws
        .wait_for(SOON, |calls| calls.len() > 8)
        .await
        .unwrap();
    let ingress: MyIngress = site.bed.api().get("web").await.unwrap();
    assert_eq!(ingress.finalizers(), ["quartermaster.dev/load-balancer"]);
    // AWS accepts the deletion, and its answer is lost.
    site.aws.fault(
        On::action("DeleteLoadBalancer"),
        Times::First(1),
        Fault::CutAfter,
    );
    site.aws.down(false);
    site.is_deleted("web").await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);
}

/// AWS shows a new load balancer late: an empty list does not mean that there is none.
#[tokio::test]
async fn deletion_before_aws_shows_the_load_balancer_leaves_nothing() {
    let site = Site::new("hidden").await;
    let for_now = Duration::from_hours(1);
    site.aws.hide_new(for_now);
    let mut operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.has_reason("web", "Creating").await;
    site.bed.delete::<MyIngress>("web").await;
    site.has_reason("web", "Terminating").await;
    site.aws.hide_new(Duration::ZERO);
    site.is_deleted("web").await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);

    // Nothing is left either if the operator never learned of the creation.
    site.aws.hide_new(for_now);
    site.aws.fault(
        On::action("CreateLoadBalancer"),
        Times::First(1),
        Fault::CutAfter,
    );
    let creation = site.aws.gate(
        On::action("DescribeLoadBalancers"),
        2,
        testbed::aws::Point::Before,
    );
    site.ingress("again", json!({})).await;
    creation.reached(SOON).await.unwrap();
    operator.kill();
    creation.cut();
    site.bed.delete::<MyIngress>("again").await;
    operator.restart();
    site.has_reason("again", "Terminating").await;
    site.aws.hide_new(Duration::ZERO);
    site.is_deleted("again").await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);
}
