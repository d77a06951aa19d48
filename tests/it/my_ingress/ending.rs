//! The end: the finalizer goes only after the balancer is gone.

use std::time::Duration;

use testbed::aws::{Fault, On, Times};

use super::*;

#[tokio::test]
async fn what_was_never_created_does_not_hold_it_up() {
    let site = Site::new("never").await;
    let _operator = site.operator().await;
    // AWS refused it.
    site.ingress("web", json!({ "subnets": ["subnet-abc", "subnet-0000"] }))
        .await;
    let words = site.says("web", "SpecRejected").await;
    assert!(words.contains("SubnetNotFound"), "{words}");
    site.bed.delete::<MyIngress>("web").await;
    site.gone("web").await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);
}

/// A status may be lost in part.
#[tokio::test]
async fn without_a_word_of_it_in_the_status_aws_is_asked() {
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
    site.gone("web").await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);
}

/// Nobody was ever asked, so nobody has to be.
#[tokio::test]
async fn without_aws_it_goes_at_once() {
    let bed = Bed::shared("noaws").await;
    let settings = Settings::default()
        .env("AWS_EC2_METADATA_DISABLED", "true")
        .env("AWS_CONFIG_FILE", "/nowhere");
    let _operator = Operator::start(&bed, settings.env("AWS_REGION", "")).await;
    let spec = json!({ "spec": { "subnets": SUBNETS } });
    bed.create::<MyIngress>("web", spec).await;
    let says = |ingress: &MyIngress| super::says(ingress).0 == "RegionMissing";
    bed.until("web", "has no region", says).await;
    bed.delete::<MyIngress>("web").await;
    let api: Api<MyIngress> = bed.api();
    until("it is gone", SOON, async || {
        Ok(api.get_opt("web").await?.is_none().then_some(()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_protected_balancer_is_not_deleted() {
    let site = Site::new("protected").await;
    let _operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    let made = site.balancer("web").await.unwrap();
    site.aws.protect(&made.arn, true).await.unwrap();
    site.bed.delete::<MyIngress>("web").await;
    let words = site.says("web", "DeletionProtected").await;
    let command = format!(
        "aws --region us-east-1 elbv2 modify-load-balancer-attributes --load-balancer-arn {} --attributes \
         Key=deletion_protection.enabled,Value=false && kubectl annotate myingress web -n {}",
        made.arn, site.bed.namespace
    );
    assert!(words.contains(&command), "{words}");
    let kept = site.balancer("web").await.unwrap();
    assert!(kept.deletion_protection, "it is not for us to switch off");
    assert!(
        !site
            .aws
            .calls()
            .iter()
            .any(|call| call.action.starts_with("Modify"))
    );
    site.aws.protect(&made.arn, false).await.unwrap();
    site.look_again("web").await;
    site.gone("web").await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);
}

#[tokio::test]
async fn one_that_is_gone_already_and_one_that_is_suspended() {
    let site = Site::new("gone").await;
    let _operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    site.aws
        .delete(&site.balancer("web").await.unwrap().arn)
        .await
        .unwrap();
    site.bed.delete::<MyIngress>("web").await;
    site.gone("web").await;

    site.ingress("idle", json!({})).await;
    site.ready("idle").await;
    site.respec("idle", json!({ "suspend": true })).await;
    site.says("idle", "Suspended").await;
    site.bed.delete::<MyIngress>("idle").await;
    site.gone("idle").await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);
}

#[tokio::test]
async fn while_aws_is_down_it_waits() {
    let site = Site::new("down").await;
    let _operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    site.aws.down(true);
    site.aws.clear();
    site.bed.delete::<MyIngress>("web").await;
    let words = site.says("web", "AWSUnavailable").await;
    assert!(words.contains("ServiceUnavailable"), "{words}");
    site.aws
        .wait_for(SOON, |calls| calls.len() > 8)
        .await
        .unwrap();
    let ingress: MyIngress = site.bed.api().get("web").await.unwrap();
    assert_eq!(ingress.finalizers(), ["quartermaster.dev/load-balancer"]);
    // It lets the balancer be deleted, and does not say so.
    site.aws.fault(
        On::action("DeleteLoadBalancer"),
        Times::First(1),
        Fault::CutAfter,
    );
    site.aws.down(false);
    site.gone("web").await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);
}

/// AWS shows a new balancer late: that it shows none does not mean that there is none.
#[tokio::test]
async fn deleted_before_aws_shows_it() {
    let site = Site::new("hidden").await;
    let for_now = Duration::from_hours(1);
    site.aws.hide_new(for_now);
    let mut operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.says("web", "Creating").await;
    site.bed.delete::<MyIngress>("web").await;
    site.says("web", "Terminating").await;
    site.aws.hide_new(Duration::ZERO);
    site.gone("web").await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);

    // Also when who asked for it never learned that it was made.
    site.aws.hide_new(for_now);
    site.aws.fault(
        On::action("CreateLoadBalancer"),
        Times::First(1),
        Fault::CutAfter,
    );
    let asked = site.aws.gate(
        On::action("DescribeLoadBalancers"),
        2,
        testbed::aws::Point::Before,
    );
    site.ingress("again", json!({})).await;
    asked.reached(SOON).await.unwrap();
    operator.kill();
    asked.cut();
    site.bed.delete::<MyIngress>("again").await;
    operator.restart();
    site.says("again", "Terminating").await;
    site.aws.hide_new(Duration::ZERO);
    site.gone("again").await;
    assert_eq!(site.aws.balancers().await.unwrap(), []);
}
