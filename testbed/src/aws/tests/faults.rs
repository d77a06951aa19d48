use std::time::Instant;

use super::super::{AwsErrorResponse, Fault, On, Times};
use super::*;

async fn describe(aws: &Aws) -> reqwest::Result<Answer> {
    call(aws, "DescribeLoadBalancers", &[]).await
}

#[tokio::test]
async fn error_fault_replaces_the_response() {
    let aws = Aws::start().await.unwrap();
    let cases = [
        (Fault::Throttled, 400, "Throttling"),
        (Fault::Expired, 403, "ExpiredToken"),
        (
            Fault::code("TooManyLoadBalancers", "message"),
            400,
            "TooManyLoadBalancers",
        ),
        (
            Fault::Code(AwsErrorResponse::with_status(
                429,
                "PriorRequestNotComplete",
                "message",
            )),
            429,
            "PriorRequestNotComplete",
        ),
        (Fault::internal_failure(), 500, "InternalFailure"),
        (Fault::unavailable(), 503, "ServiceUnavailable"),
        (Fault::Bare(500), 500, ""),
        (Fault::Bare(503), 503, ""),
    ];
    for (fault, status, code) in cases {
        let order = aws.fault(On::action("CreateLoadBalancer"), Times::First(2), fault);
        describe(&aws).await.unwrap().items();
        for hits in 1..=2 {
            let answer = call(&aws, "CreateLoadBalancer", &in_two(&[("Name", "one")]))
                .await
                .unwrap();
            assert_eq!((answer.status.as_u16(), answer.code()), (status, code));
            order.wait_for_hits(hits, DEADLINE).await.unwrap();
        }
        assert!(aws.balancers().await.unwrap().is_empty());
        let code = (!code.is_empty()).then(|| code.to_owned());
        let last = aws.calls().last().unwrap().clone();
        assert_eq!(
            (last.answer.clone(), last.done),
            (Outcome::Answered { http: status, code }, false)
        );
    }
    ok(&aws, "CreateLoadBalancer", &in_two(&[("Name", "one")])).await;
}

#[tokio::test]
async fn order_applies_until_it_is_cancelled() {
    let aws = Aws::start().await.unwrap();
    let order = aws.fault(On::reads(), Times::Always, Fault::Throttled);
    assert_eq!(describe(&aws).await.unwrap().code(), "Throttling");
    assert_eq!(describe(&aws).await.unwrap().code(), "Throttling");
    ok(&aws, "CreateLoadBalancer", &in_two(&[("Name", "one")])).await;
    assert!(
        aws.ask("DescribeLoadBalancers", &[])
            .await
            .unwrap()
            .contains("<LoadBalancerName>one<")
    );
    order.cancel();
    describe(&aws).await.unwrap().only();
    aws.fault(On::all(), Times::Nth(2), Fault::Throttled);
    describe(&aws).await.unwrap().only();
    assert_eq!(describe(&aws).await.unwrap().code(), "Throttling");
    describe(&aws).await.unwrap().only();
    aws.fault(On::all(), Times::Always, Fault::Throttled);
    aws.down(true);
    aws.behave();
    describe(&aws).await.unwrap().only();
}

#[tokio::test]
async fn cut_fault_closes_connection_before_or_after_the_call() {
    let aws = Aws::start().await.unwrap();
    for (fault, done) in [(Fault::CutBefore, false), (Fault::CutAfter, true)] {
        aws.fault(On::all(), Times::First(1), fault);
        call(&aws, "CreateLoadBalancer", &in_two(&[("Name", "one")]))
            .await
            .unwrap_err();
        assert_eq!(aws.balancer("one").await.unwrap().is_some(), done);
        let last = aws.calls().last().unwrap().clone();
        assert_eq!((last.answer.clone(), last.done), (Outcome::Cut, done));
    }
}

#[tokio::test]
async fn slow_and_hang_faults_delay_the_response() {
    let aws = Aws::start().await.unwrap();
    let late = Duration::from_millis(300);
    aws.fault(On::all(), Times::First(1), Fault::Slow(late));
    let began = Instant::now();
    describe(&aws).await.unwrap().items();
    assert!(began.elapsed() >= late);
    let order = aws.fault(On::writes(), Times::First(1), Fault::Hang);
    let hanging = {
        let aws = aws.clone();
        tokio::spawn(
            async move { call(&aws, "CreateLoadBalancer", &in_two(&[("Name", "one")])).await },
        )
    };
    order.wait_for_hits(1, DEADLINE).await.unwrap();
    describe(&aws).await.unwrap().items();
    assert!(!hanging.is_finished());
    hanging.abort();
    let calls = aws
        .wait_for(DEADLINE, |calls| {
            calls.iter().any(|call| call.action == "CreateLoadBalancer")
        })
        .await;
    assert!(
        calls
            .unwrap()
            .iter()
            .any(|call| call.answer == Outcome::Cut && !call.done)
    );
    assert!(aws.balancers().await.unwrap().is_empty());
}

#[tokio::test]
async fn every_call_fails_during_an_outage() {
    let aws = Aws::start().await.unwrap();
    aws.down(true);
    let answer = describe(&aws).await.unwrap();
    assert_eq!(
        (answer.status.as_u16(), answer.code()),
        (503, "ServiceUnavailable")
    );
    balancer(&aws, "one").await; // the administrator bypasses the outage
    aws.down(false);
    assert_eq!(describe(&aws).await.unwrap().get("LoadBalancerName"), "one");
}

#[tokio::test]
async fn calls_with_invalid_credentials_are_rejected() {
    let aws = Aws::start().await.unwrap();
    let service = "elasticloadbalancing";
    let cases = [
        (None, "MissingAuthenticationToken"),
        (Some("Bearer what".to_owned()), "IncompleteSignature"),
        (
            Some(signature("AKIAWHO", REGION, service)),
            "InvalidClientTokenId",
        ),
        (
            Some(signature(ACCESS_KEY, "eu-west-1", service)),
            "SignatureDoesNotMatch",
        ),
        (
            Some(signature(ACCESS_KEY, REGION, "ec3")),
            "SignatureDoesNotMatch",
        ),
    ];
    for (authorization, code) in cases {
        let answer = call_as(&aws, authorization.as_deref(), "DescribeLoadBalancers", &[])
            .await
            .unwrap();
        assert_eq!((answer.status.as_u16(), answer.code()), (403, code));
        assert_eq!(aws.calls().last().unwrap().code(), Some(code));
    }
    aws.access_key(ACCESS_KEY, true);
    let answer = describe(&aws).await.unwrap();
    assert_eq!(
        (answer.status.as_u16(), answer.code()),
        (403, "ExpiredToken")
    );
    assert!(answer.message().contains("expired"));
    aws.access_key(ACCESS_KEY, false);
    aws.access_key("AKIAWHO", false);
    describe(&aws).await.unwrap().items();
    let other = signature("AKIAWHO", REGION, service);
    call_as(&aws, Some(&other), "DescribeLoadBalancers", &[])
        .await
        .unwrap()
        .items();
}
