use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::super::network::Network;
use super::super::state;
use super::*;

/// Returns an account with an active load balancer `web` in the first two subnets, a group on port 30080, and a
/// listener on port 80.
async fn web() -> (Aws, String, String) {
    let aws = Aws::start().await.unwrap();
    aws.provisioning(Duration::ZERO);
    let arn = balancer(&aws, "web").await;
    let group = aws.create_target_group("web", 30080).await.unwrap();
    for (id, zone) in [("i-1", 'a'), ("i-2", 'b'), ("i-3", 'c')] {
        aws.add_instance(id, zone);
    }
    (aws, arn, group)
}

async fn with_targets(aws: &Aws, action: &str, group: &str, targets: &[&str]) -> Answer {
    let mut params = vec![("TargetGroupArn".to_owned(), group.to_owned())];
    for (at, target) in (1..).zip(targets) {
        let (id, port) = target.split_once(':').unwrap_or((target, ""));
        params.push((format!("Targets.member.{at}.Id"), id.to_owned()));
        if !port.is_empty() {
            params.push((format!("Targets.member.{at}.Port"), port.to_owned()));
        }
    }
    let params: Vec<_> = params
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    call(aws, action, &params).await.unwrap()
}

/// Returns `DescribeTargetHealth` as `ID:PORT STATE REASON`.
async fn health(aws: &Aws, group: &str, targets: &[&str]) -> Vec<String> {
    let answer = with_targets(aws, "DescribeTargetHealth", group, targets).await;
    let lines = answer.items().iter().map(|item| {
        let (target, health) = (
            item.child("Target").unwrap(),
            item.child("TargetHealth").unwrap(),
        );
        let line = format!(
            "{}:{} {} {}",
            target.get("Id"),
            target.get("Port"),
            health.get("State"),
            health.get("Reason")
        );
        line.trim_end().to_owned()
    });
    lines.collect()
}

/// Returns the reason and description of a group's only target.
async fn described(aws: &Aws, group: &str) -> (String, String) {
    let answer = with_targets(aws, "DescribeTargetHealth", group, &[]).await;
    let health = answer.only().child("TargetHealth").unwrap();
    (
        health.get("Reason").to_owned(),
        health.get("Description").to_owned(),
    )
}

async fn until_healthy(aws: &Aws, group: &str, count: usize) {
    let healthy = async || {
        let healthy = aws
            .targets(group)
            .into_iter()
            .filter(|target| target.health == "healthy")
            .count();
        Ok((healthy == count).then_some(()))
    };
    wait::until("the targets to be healthy", DEADLINE, healthy)
        .await
        .unwrap();
}

#[tokio::test]
async fn traffic_reaches_healthy_targets() {
    let (aws, arn, group) = web().await;
    aws.target_times(LONG, LONG);
    ok(
        &aws,
        "RegisterTargets",
        &[("TargetGroupArn", &group), ("Targets.member.1.Id", "i-1")],
    )
    .await;
    assert_eq!(
        health(&aws, &group, &[]).await,
        ["i-1:30080 unused Target.NotInUse"]
    );
    aws.create_listener(&arn, 80, &group).await.unwrap();
    assert_eq!(
        health(&aws, &group, &[]).await,
        ["i-1:30080 initial Elb.RegistrationInProgress"]
    );
    assert!(aws.route("web", 80).is_empty());
    aws.target_times(Duration::ZERO, LONG);
    assert_eq!(health(&aws, &group, &[]).await, ["i-1:30080 healthy"]);
    with_targets(
        &aws,
        "RegisterTargets",
        &group,
        &["i-2", "i-1:30081", "i-1"],
    )
    .await;
    assert_eq!(
        health(&aws, &group, &[]).await,
        [
            "i-1:30080 healthy",
            "i-1:30081 healthy",
            "i-2:30080 healthy"
        ]
    );
    let at = |id: &str, port| (id.to_owned(), port);
    assert_eq!(
        aws.route("web", 80),
        [at("i-1", 30080), at("i-1", 30081), at("i-2", 30080)]
    );
    aws.health("web", "i-1", "unhealthy", "Target.FailedHealthChecks")
        .unwrap();
    assert_eq!(
        health(&aws, &group, &["i-1"]).await,
        ["i-1:30080 unhealthy Target.FailedHealthChecks"]
    );
    assert_eq!(aws.route(&arn, 80), [at("i-2", 30080)]);
    assert!(aws.route(&arn, 81).is_empty() && aws.route("other", 80).is_empty());
    // Without a healthy target, AWS routes to all.
    aws.health(&group, "i-2", "unhealthy", "Target.Timeout")
        .unwrap();
    assert_eq!(aws.route("web", 80).len(), 3);
    aws.set_state("web", "provisioning", "").unwrap();
    assert!(aws.route("web", 80).is_empty());
}

#[tokio::test]
async fn deregistered_target_drains_before_it_disappears() {
    let (aws, arn, group) = web().await;
    aws.target_times(Duration::ZERO, LONG);
    with_targets(&aws, "RegisterTargets", &group, &["i-1", "i-2"]).await;
    // Targets without traffic do not drain.
    with_targets(&aws, "DeregisterTargets", &group, &["i-2"]).await;
    assert_eq!(
        health(&aws, &group, &["i-2"]).await,
        ["i-2:30080 unused Target.NotRegistered"]
    );
    aws.create_listener(&arn, 80, &group).await.unwrap();
    with_targets(&aws, "RegisterTargets", &group, &["i-2"]).await;
    with_targets(&aws, "DeregisterTargets", &group, &["i-1", "i-3", "i-2:1"]).await; // two were never registered
    let draining = "i-1:30080 draining Target.DeregistrationInProgress";
    assert_eq!(
        health(&aws, &group, &[]).await,
        [draining, "i-2:30080 healthy"]
    );
    assert_eq!(aws.route("web", 80), [("i-2".to_owned(), 30080)]);
    with_targets(&aws, "RegisterTargets", &group, &["i-1"]).await;
    until_healthy(&aws, &group, 2).await;
    with_targets(&aws, "DeregisterTargets", &group, &["i-1"]).await;
    aws.target_times(Duration::ZERO, Duration::ZERO);
    assert_eq!(health(&aws, &group, &[]).await, ["i-2:30080 healthy"]);
    aws.end_instance("i-2");
    assert!(health(&aws, &group, &[]).await.is_empty());
}

#[tokio::test]
async fn unreachable_targets_are_rejected_or_unused() {
    let (aws, arn, group) = web().await;
    aws.target_times(Duration::ZERO, LONG);
    aws.create_listener(&arn, 80, &group).await.unwrap();
    aws.end_instance("i-2");
    for target in ["i-nowhere", "i-2"] {
        assert_eq!(
            with_targets(&aws, "RegisterTargets", &group, &["i-1", target])
                .await
                .code(),
            "InvalidTarget"
        );
    }
    assert!(aws.targets(&group).is_empty());
    for targets in [&["i-1:0"][..], &["i-1:what"], &[""], &[]] {
        assert_eq!(
            with_targets(&aws, "RegisterTargets", &group, targets)
                .await
                .code(),
            "ValidationError"
        );
    }
    let vpc = aws.other_vpc();
    let foreign = [
        ("Name", "foreign"),
        ("Protocol", "HTTP"),
        ("Port", "80"),
        ("VpcId", vpc.as_str()),
    ];
    let foreign = ok(&aws, "CreateTargetGroup", &foreign)
        .await
        .get("TargetGroupArn")
        .to_owned();
    assert_eq!(
        with_targets(&aws, "RegisterTargets", &foreign, &["i-1"])
            .await
            .code(),
        "InvalidTarget"
    );
    // Traffic reaches a zone only if the load balancer has a subnet there.
    with_targets(&aws, "RegisterTargets", &group, &["i-3"]).await;
    assert_eq!(
        health(&aws, &group, &[]).await,
        ["i-3:30080 unused Target.NotInUse"]
    );
    aws.set_subnets(&arn, &SUBNETS).await.unwrap();
    assert_eq!(health(&aws, &group, &[]).await, ["i-3:30080 healthy"]);
    ok(&aws, "DeleteTargetGroup", &[("TargetGroupArn", &foreign)]).await;
    for action in [
        "RegisterTargets",
        "DeregisterTargets",
        "DescribeTargetHealth",
    ] {
        assert_eq!(
            with_targets(&aws, action, &foreign, &["i-1"]).await.code(),
            "TargetGroupNotFound"
        );
    }
}

#[tokio::test]
async fn health_reasons_have_their_descriptions() {
    let (aws, arn, group) = web().await;
    aws.target_times(Duration::ZERO, LONG);
    let says = async |reason: &str, description: &str| {
        assert_eq!(
            described(&aws, &group).await,
            (reason.to_owned(), description.to_owned())
        );
    };
    with_targets(&aws, "RegisterTargets", &group, &["i-3"]).await;
    let no_listener = "Target group is not configured to receive traffic from the load balancer";
    says("Target.NotInUse", no_listener).await;
    aws.create_listener(&arn, 80, &group).await.unwrap();
    let no_zone = "Target is in an Availability Zone that is not enabled for the load balancer";
    says("Target.NotInUse", no_zone).await;
    aws.set_subnets(&arn, &SUBNETS).await.unwrap();
    says("", "").await;
    let cases = [
        (
            "initial",
            "Elb.InitialHealthChecking",
            "Initial health checks in progress",
        ),
        ("unhealthy", "Target.Timeout", "Request timed out"),
        (
            "unhealthy",
            "Target.FailedHealthChecks",
            "Health checks failed",
        ),
        (
            "unhealthy",
            "Target.ResponseCodeMismatch",
            "Health checks failed with these codes: [404]",
        ),
    ];
    for (health, reason, description) in cases {
        aws.health(&group, "i-3", health, reason).unwrap();
        says(reason, description).await;
    }
    with_targets(&aws, "DeregisterTargets", &group, &["i-3"]).await;
    says(
        "Target.DeregistrationInProgress",
        "Target deregistration is in progress",
    )
    .await;
}

#[tokio::test]
async fn every_health_reason_of_aws_has_a_description() {
    let model = super::super::api_model().await.unwrap();
    let reasons = model["shapes"]["TargetHealthReasonEnum"]["enum"]
        .as_array()
        .unwrap();
    let reasons: BTreeSet<&str> = reasons
        .iter()
        .filter_map(serde_json::Value::as_str)
        .collect();
    let described: BTreeSet<&str> = super::super::health::DESCRIPTIONS
        .iter()
        .map(|(reason, _)| *reason)
        .collect();
    assert_eq!(described, reasons);
}

/// Health checks begin when a listener forwards to the group, however long the target has been registered.
#[test]
fn health_checks_begin_with_the_listener() {
    let now = Instant::now();
    let hours_ago = now.checked_sub(LONG).unwrap();
    let mut state = state::State::new(Network::default());
    let (vpc, port, protocol) = (String::new(), 80, "HTTP".to_owned());
    let (forced, protected, zones) = (None, false, BTreeSet::new());
    let (name, created) = ("web".to_owned(), hours_ago);
    let balancer = state::Balancer {
        name,
        vpc,
        zones,
        created,
        forced,
        protected,
    };
    state.balancers.insert("balancer".to_owned(), balancer);
    let target = ("10.0.0.1".to_owned(), 80);
    let registered = state::Registered {
        since: hours_ago,
        leaving: None,
    };
    let (name, settings, forced) = ("web".to_owned(), BTreeMap::new(), BTreeMap::new());
    let group = state::Group {
        name,
        settings,
        targets: [(target.clone(), registered)].into(),
        forced,
    };
    state.groups.insert("group".to_owned(), group);
    let (balancer, groups, settings) = (
        "balancer".to_owned(),
        vec!["group".to_owned()],
        BTreeMap::new(),
    );
    let listener = state::Listener {
        balancer,
        port,
        protocol,
        groups,
        settings,
        since: now,
    };
    state.listeners.insert("listener".to_owned(), listener);
    state.times.initial = LONG / 2;
    assert_eq!(state.health("group", &target).state, "initial");
    state.listeners.get_mut("listener").unwrap().since = hours_ago;
    assert_eq!(state.health("group", &target).state, "healthy");
}
