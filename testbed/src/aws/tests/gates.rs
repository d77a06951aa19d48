use super::super::{Gate, On, Point};
use super::*;

#[tokio::test]
async fn call_is_held_before_it_is_performed() {
    let aws = Aws::start().await.unwrap();
    let gate = aws.gate(On::action("CreateLoadBalancer"), 2, Point::Before);
    balancer_by_call(&aws, "one").await.unwrap();
    assert!(!gate.was_reached());
    let second = held(&aws, &gate, "two").await;
    assert_eq!(names(&aws).await, ["one"]);
    gate.release();
    second.await.unwrap().unwrap();
    assert_eq!(names(&aws).await, ["one", "two"]);
}

#[tokio::test]
async fn call_is_held_after_it_is_performed() {
    let aws = Aws::start().await.unwrap();
    let gate = aws.gate(On::all(), 1, Point::After);
    let first = held(&aws, &gate, "one").await;
    assert_eq!(names(&aws).await, ["one"]);
    assert!(!first.is_finished());
    assert!(aws.calls().is_empty());
    gate.release();
    assert_eq!(first.await.unwrap().unwrap().status, StatusCode::OK);
    assert_eq!(aws.calls().len(), 1);
}

#[tokio::test]
async fn held_call_is_not_performed_after_client_disconnects() {
    let aws = Aws::start().await.unwrap();
    let gate = aws.gate(On::writes(), 1, Point::Before);
    let call = held(&aws, &gate, "one").await;
    call.abort();
    assert!(call.await.unwrap_err().is_cancelled());
    gate.release();
    let calls = aws
        .wait_for(DEADLINE, |calls| !calls.is_empty())
        .await
        .unwrap();
    assert_eq!(
        (calls[0].answer.clone(), calls[0].done),
        (Outcome::Cut, false)
    );
    assert!(names(&aws).await.is_empty());
    // A call held at the other point is performed.
    let gate = aws.gate(On::writes(), 1, Point::After);
    held(&aws, &gate, "two").await.abort();
    let calls = aws
        .wait_for(DEADLINE, |calls| calls.len() == 2)
        .await
        .unwrap();
    assert_eq!(
        (calls[1].answer.clone(), calls[1].done),
        (Outcome::Cut, true)
    );
    assert_eq!(names(&aws).await, ["two"]);
}

#[tokio::test]
async fn held_call_fails_when_gate_cuts_it() {
    let aws = Aws::start().await.unwrap();
    for (point, there) in [(Point::Before, false), (Point::After, true)] {
        let gate = aws.gate(On::action("CreateLoadBalancer"), 1, point);
        let call = held(&aws, &gate, "one").await;
        gate.cut();
        call.await.unwrap().unwrap_err();
        assert_eq!(
            names(&aws).await,
            if there { vec!["one"] } else { Vec::new() }
        );
    }
}

#[tokio::test]
async fn gate_opens_on_drop_and_on_behave() {
    let aws = Aws::start().await.unwrap();
    let gate = aws.gate(On::reads(), 1, Point::Before);
    let describe = {
        let aws = aws.clone();
        tokio::spawn(async move { call(&aws, "DescribeLoadBalancers", &[]).await })
    };
    gate.reached(DEADLINE).await.unwrap();
    drop(gate);
    describe.await.unwrap().unwrap();
    let gate = aws.gate(On::all(), 1, Point::Before);
    let create = held(&aws, &gate, "one").await;
    aws.behave();
    create.await.unwrap().unwrap();
    // A dropped gate that no call reached holds nothing either.
    drop(aws.gate(On::all(), 1, Point::Before));
    ok(&aws, "DescribeLoadBalancers", &[]).await;
}

#[tokio::test]
async fn gate_reports_timeout_without_a_call() {
    let aws = Aws::start().await.unwrap();
    let gate = aws.gate(On::action("DeleteLoadBalancer"), 1, Point::Before);
    ok(&aws, "DescribeLoadBalancers", &[]).await;
    gate.reached(Duration::from_millis(1)).await.unwrap_err();
}

async fn balancer_by_call(aws: &Aws, name: &str) -> reqwest::Result<Answer> {
    call(aws, "CreateLoadBalancer", &in_two(&[("Name", name)])).await
}

/// Starts a create and waits until the gate holds it.
async fn held(
    aws: &Aws,
    gate: &Gate,
    name: &'static str,
) -> tokio::task::JoinHandle<reqwest::Result<Answer>> {
    let create = {
        let aws = aws.clone();
        tokio::spawn(async move { balancer_by_call(&aws, name).await })
    };
    gate.reached(DEADLINE).await.unwrap();
    create
}

async fn names(aws: &Aws) -> Vec<String> {
    aws.balancers()
        .await
        .unwrap()
        .into_iter()
        .map(|balancer| balancer.name)
        .collect()
}
