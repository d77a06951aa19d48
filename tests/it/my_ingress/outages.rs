//! AWS is slow, down, or rejects calls.

use std::time::Duration;

use rstest::rstest;
use testbed::aws::{Fault, On, Times};

use super::*;

/// The fault is reported, the call is retried, and in the end there is one load balancer.
#[rstest]
#[case::throttled(Fault::Throttled, "Throttled")]
#[case::failing(Fault::internal_failure(), "AWSUnavailable")]
#[case::unavailable(Fault::Bare(503), "AWSUnavailable")]
#[case::cut_before(Fault::CutBefore, "AWSUnavailable")]
#[case::silent(Fault::Hang, "AWSUnavailable")]
#[case::expired(Fault::Expired, "CredentialsMissing")]
#[case::quota(
    Fault::code(
        "TooManyLoadBalancers",
        "The maximum number of load balancers has been reached"
    ),
    "QuotaExceeded"
)]
#[case::denied(
    Fault::code("AccessDenied", "User is not authorized to perform"),
    "AccessDenied"
)]
#[case::unfit(
    Fault::code("InvalidSubnet", "Not enough IP space available in subnet-abc"),
    "SubnetInvalid"
)]
#[case::taken(
    Fault::code(
        "DuplicateLoadBalancerName",
        "A load balancer with that name already exists"
    ),
    "NameTaken"
)]
#[case::unknown(Fault::code("NeverHeardOf", "words"), "AWSRequestFailed")]
#[tokio::test]
async fn fault_at_the_creation_is_reported_and_retried(#[case] fault: Fault, #[case] reason: &str) {
    let site = Site::new("fault").await;
    let order = site
        .aws
        .fault(On::action("CreateLoadBalancer"), Times::Always, fault);
    // Less than a call takes that hangs.
    let settings = site.settings().flag("--aws-timeout=10s");
    let _operator = Operator::start(&site.bed, settings).await;
    site.ingress("web", json!({})).await;
    site.bed.event("web", reason).await;
    order.wait_for_hits(2, SOON).await.unwrap();
    order.cancel();
    site.ready("web").await;
    assert_eq!(site.aws.balancers().await.unwrap().len(), 1);
}

/// AWS creates the load balancer and the answer is lost. The next reconcile finds the load balancer.
#[tokio::test]
async fn creation_without_an_answer_is_not_repeated() {
    let site = Site::new("unanswered").await;
    let create = On::action("CreateLoadBalancer");
    let order = site.aws.fault(create, Times::Always, Fault::CutAfter);
    let _operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    assert_eq!(order.hits(), 1);
    assert_eq!(site.aws.balancers().await.unwrap().len(), 1);
}

/// A rejection that only a change to the spec can fix leads to no second call.
#[tokio::test]
async fn error_of_the_spec_is_not_retried() {
    let site = Site::new("terminal").await;
    let _operator = site.operator().await;
    site.ingress("web", json!({ "securityGroups": ["sg-0000"] }))
        .await;
    let message = site.has_reason("web", "SpecRejected").await;
    assert!(
        message.starts_with("AWS returned InvalidSecurityGroup: "),
        "{message}"
    );
    // The operator has handled another object meanwhile.
    site.ingress("marker", json!({})).await;
    site.ready("marker").await;
    let names = |name: &str| {
        let of = |call: &&Arc<Call>| {
            call.params
                .get("Name")
                .is_some_and(|it| *it == format!("{name}-alb"))
        };
        site.aws.calls().iter().filter(of).count()
    };
    assert_eq!((names("web"), names("marker")), (1, 1));
    site.respec("web", json!({ "securityGroups": null })).await;
    site.ready("web").await;
}

/// Describes do not show a new load balancer for a while: the operator still creates the load balancer only once.
#[tokio::test]
async fn late_load_balancer_is_created_once() {
    let site = Site::new("late").await;
    site.aws.hide_new(Duration::from_secs(20));
    let _operator = site.operator().await;
    let since = site.bed.plane.audit().mark().await.unwrap();
    site.ingress("web", json!({})).await;
    let message = site.has_reason("web", "Creating").await;
    assert!(message.contains("does not show it yet"), "{message}");
    site.ready("web").await;
    assert_eq!(site.aws.balancers().await.unwrap().len(), 1);
    assert_eq!(counted(&site.aws.calls())["CreateLoadBalancer"], 1);
    site.bed.event("web", "Created").await;
    assert_eq!(site.bed.events("web", "Created").await.len(), 1);
    let writes = site.writes(since).await;
    assert!(
        writes.len() <= 5,
        "the finalizer, the request, Creating, Provisioning, Ready: {writes:?}"
    );
}

/// A single failed read is not reported; a lasting outage is.
#[tokio::test]
async fn transient_error_is_not_reported() {
    let site = Site::new("hiccup").await;
    let _operator = site.operator().await;
    site.ingress("web", json!({})).await;
    site.ready("web").await;
    for fault in [Fault::Throttled, Fault::internal_failure()] {
        let since = site.bed.plane.audit().mark().await.unwrap();
        let order = site
            .aws
            .fault(On::action("DescribeTags"), Times::First(1), fault);
        site.aws.clear();
        site.reconcile("web").await;
        let well = |calls: &[Arc<Call>]| {
            calls
                .iter()
                .any(|call| call.action == "DescribeTags" && call.code().is_none() && call.done)
        };
        site.aws.wait_for(SOON, well).await.unwrap();
        assert_eq!(order.hits(), 1);
        // Another reconcile, whose read has ended.
        site.respec(
            "web",
            json!({ "tags": { "marker": uuid::Uuid::new_v4().to_string() } }),
        )
        .await;
        site.ready("web").await;
        let writes = site.writes(since).await;
        assert!(writes.len() <= 2, "the marker's key, Ready: {writes:?}");
    }
    site.aws.down(true);
    site.reconcile("web").await;
    site.has_reason("web", "AWSUnavailable").await;
    site.aws.down(false);
    site.ready("web").await;
}

/// Credentials expire later: the status keeps the load balancer's state, and the reason names the problem.
#[tokio::test]
async fn expired_credentials_are_reported_until_renewed() {
    let site = Site::new("expired").await;
    let operator = site.operator().await;
    site.ingress("web", json!({})).await;
    let ready = site.ready("web").await;
    site.aws.access_key(testbed::aws::ACCESS_KEY, true);
    site.reconcile("web").await;
    let message = site.has_reason("web", "CredentialsMissing").await;
    assert!(
        message.contains("ExpiredToken") && message.contains("docs/security/aws-iam.md"),
        "{message}"
    );
    let ill: MyIngress = site.bed.api().get("web").await.unwrap();
    assert_eq!(ill.status.unwrap().alb, ready.status.unwrap().alb);
    // Everything else works.
    assert_eq!(operator.probe("readyz").await.unwrap().0, 200);
    site.aws.access_key(testbed::aws::ACCESS_KEY, false);
    site.ready("web").await;
}

#[tokio::test]
async fn missing_credentials_are_reported() {
    let site = Site::new("nobody").await;
    let mut settings = site.settings();
    settings.env.retain(|(name, _)| !name.contains("KEY"));
    let operator = Operator::start(&site.bed, settings).await;
    site.ingress("web", json!({})).await;
    let message = site.has_reason("web", "CredentialsMissing").await;
    assert!(message.contains("docs/security/aws-iam.md"), "{message}");
    assert_eq!(site.aws.calls().len(), 0);
    assert_eq!(operator.probe("readyz").await.unwrap().0, 200);
    site.bed.delete::<MyIngress>("web").await;
    site.is_deleted("web").await;
}
