//! Tests of the report of a reconcile.

use qm_aws::AwsError;
use qm_runtime::error::Class;
use qm_runtime::outcome::Requeue;
use rstest::rstest;
use serde_json::{Value, json};

use super::fake::{
    GROUP, LISTENER, LOAD_BALANCER, World, ago, aws_error, health_of, http, tags, target,
};

/// Returns the requeue, or the class of the error.
fn ended(requeue: &Result<Requeue, AwsError>) -> Result<Requeue, Class> {
    requeue.clone().map_err(|error| error.class)
}

fn set_health(world: &mut World, states: [&str; 2]) {
    let targets = ["i-1", "i-2"].into_iter().zip(states);
    let health = targets.map(|(id, state)| health_of(target(id, 30_080), state));
    world.aws.health.insert(GROUP.into(), health.collect());
}

fn set_state(world: &mut World, state: &str) {
    world.aws.load_balancer.as_mut().unwrap().state = state.into();
}

type Change = fn(&mut World);

#[rstest]
#[case::healthy(|_: &mut World| {}, "Ready", "web.elb is active", Ok(Requeue::OnChange))]
#[case::provisioning(|world: &mut World| set_state(world, "provisioning"), "Provisioning", "AWS is creating the load balancer", Ok(Requeue::Poll))]
#[case::provisioning_comes_before_its_targets(|world: &mut World| {
    set_state(world, "provisioning");
    set_health(world, ["unhealthy"; 2]);
}, "Provisioning", "AWS is creating", Ok(Requeue::Poll))]
#[case::impaired(|world: &mut World| set_state(world, "active_impaired"), "ActiveImpaired", "web.elb works", Ok(Requeue::OnChange))]
#[case::failed(|world: &mut World| set_state(world, "failed"), "ProvisioningFailed", "AWS could not create", Ok(Requeue::OnChange))]
#[case::initial(|world: &mut World| set_health(world, ["initial"; 2]), "TargetsInitial", "the targets of port 80 are in initial health checks", Ok(Requeue::Poll))]
#[case::unhealthy(|world: &mut World| set_health(world, ["unhealthy"; 2]), "TargetsUnhealthy", "no target of port 80 is healthy (unhealthy)",
    Ok(Requeue::Poll))]
#[case::one_is_enough(|world: &mut World| set_health(world, ["healthy", "unhealthy"]), "Ready", "web.elb is active", Ok(Requeue::OnChange))]
#[case::one_more_soon(|world: &mut World| set_health(world, ["healthy", "initial"]), "Ready", "web.elb is active", Ok(Requeue::Poll))]
#[case::target_added(|world: &mut World| world.nodes = Ok(vec!["i-1", "i-2", "i-3"]), "Ready", "web.elb is active", Ok(Requeue::Poll))]
#[case::unroutable(|world: &mut World| world.services.clear(), "ServiceNotFound", "port 80: Service shop does not exist: create it", Ok(Requeue::OnChange))]
#[case::unroutable_while_provisioning(|world: &mut World| { set_state(world, "provisioning"); world.services.clear(); }, "Provisioning",
    "AWS is creating", Ok(Requeue::Poll))]
#[case::listener_conflict(|world: &mut World| { world.aws.tags.insert(LISTENER.into(), tags(&[("theirs", "x")])); }, "Conflict",
    "the listener of port 80 is not owned", Ok(Requeue::OnChange))]
#[case::group_conflict(|world: &mut World| { world.aws.tags.insert(GROUP.into(), tags(&[("theirs", "x")])); }, "Conflict",
    "target group qm-", Ok(Requeue::OnChange))]
#[case::unowned(|world: &mut World| { world.aws.tags.insert(LOAD_BALANCER.into(), tags(&[])); }, "Conflict", "load balancer web-alb is not owned",
    Ok(Requeue::OnChange))]
#[case::unowned_and_recent(|world: &mut World| {
    world.aws.tags.insert(LOAD_BALANCER.into(), tags(&[]));
    world.object["status"]["alb"]["creationRequestedAt"] = json!(ago(30));
}, "Conflict", "load balancer web-alb is not owned", Ok(Requeue::Poll))]
#[case::incompatible(|world: &mut World| world.object["spec"]["scheme"] = json!("internal"), "Incompatible", "the scheme of load balancer web-alb is internet-facing",
    Ok(Requeue::OnChange))]
#[case::other_region(|world: &mut World| world.object["status"]["alb"]["arn"] = json!("arn:aws:elb:us-1:1:web"), "RegionMismatch",
    "arn:aws:elb:us-1:1:web is not in eu-1, the region that the operator is configured for: the operator changes nothing, and deletion waits; give \
     the operator region us-1, or", Err(Class::Slow))]
#[case::other_account(|world: &mut World| world.object["status"]["alb"]["arn"] = json!("arn:aws:elb:eu-1:2:web"), "AccountMismatch",
    "arn:aws:elb:eu-1:2:web is not in 1, the account of the operator's credentials: the operator changes nothing, and deletion waits; give the \
     operator credentials of account 2, or", Err(Class::Slow))]
#[tokio::test]
async fn state_gives_condition_and_requeue(
    #[case] change: Change,
    #[case] reason: &str,
    #[case] message: &str,
    #[case] requeue: Result<Requeue, Class>,
) {
    let mut world = World::new();
    change(&mut world);
    let reconciled = world.reconcile().await;
    let report = reconciled.report();
    let readiness = &report.readiness;
    assert_eq!(readiness.reason, reason);
    assert!(
        readiness.message.starts_with(message),
        "{}",
        readiness.message
    );
    assert_eq!(readiness.ready, reason == "Ready");
    assert_eq!(ended(&report.requeue), requeue);
}

/// The status says nothing of a load balancer that no longer exists.
#[tokio::test]
async fn deleted_load_balancer_whose_creation_is_rejected_has_no_traffic() {
    let mut world = World::new();
    world.aws.load_balancer = None;
    let error = aws_error(Class::Slow, "QuotaExceeded", "TooManyLoadBalancers");
    world.rejected = vec![("CreateLoadBalancer", error)];
    world.reconcile_and_store().await;
    let status = &world.object["status"];
    assert_eq!(status["alb"], json!({ "arn": LOAD_BALANCER }));
    let listener = json!({ "port": 80, "healthy": 0, "total": 2, "reason": "QuotaExceeded" });
    assert_eq!(status["listeners"], json!([listener]));
}

/// A rejected listener does not end the polls of a load balancer that AWS still creates.
#[tokio::test]
async fn provisioning_is_polled_although_a_listener_is_rejected() {
    let mut world = World::new();
    set_state(&mut world, "provisioning");
    world.object["spec"]["listeners"][0]["healthCheckPath"] = json!("/healthz");
    let error = aws_error(Class::Terminal, "SpecRejected", "ValidationError");
    world.rejected = vec![("SetHealthCheck", error)];
    let reconciled = world.reconcile().await;
    assert_eq!(reconciled.report().readiness.reason, "SpecRejected");
    assert_eq!(reconciled.report().requeue, Ok(Requeue::Poll));
}

/// A problem that a person has to fix comes before a transient one, whatever the listeners' order.
#[tokio::test]
async fn lasting_problem_comes_first() {
    let mut world = World::new();
    world.listen(
        "arn:aws:elb:eu-1:1:listener-81",
        "arn:aws:elb:eu-1:1:group-81",
        81,
    );
    world.object["spec"]["listeners"] = json!([http(80), http(81)]);
    world.object["spec"]["listeners"][1]["service"]["name"] = json!("none");
    world.object["status"]["listeners"] = json!([{ "port": 80 }, { "port": 81 }]);
    set_health(&mut world, ["initial"; 2]);
    let reconciled = world.reconcile().await;
    let readiness = &reconciled.report().readiness;
    assert_eq!(
        (readiness.reason, readiness.message.as_str()),
        (
            "ServiceNotFound",
            "port 81: Service none does not exist: create it; the targets of port 80 are in initial health checks"
        )
    );
    assert_eq!(reconciled.report().requeue, Ok(Requeue::Poll));
}

/// The most urgent error is reported, followed by the other listeners' problems.
#[rstest]
#[case::urgent(Class::Transient, Err(Class::Transient))]
#[case::slow(Class::Slow, Ok(Requeue::Poll))]
#[case::terminal(Class::Terminal, Ok(Requeue::Poll))]
#[tokio::test]
async fn rejected_listener_is_reported(
    #[case] class: Class,
    #[case] requeue: Result<Requeue, Class>,
) {
    let mut world = World::new();
    world.listen(
        "arn:aws:elb:eu-1:1:listener-81",
        "arn:aws:elb:eu-1:1:group-81",
        81,
    );
    world.object["spec"]["listeners"] = json!([http(80), http(81)]);
    world.object["spec"]["listeners"][1]["healthCheckPath"] = json!("/healthz");
    world.object["status"]["listeners"] =
        json!([{ "port": 80 }, { "port": 81, "creationRequestedAt": ago(30) }]);
    world.rejected = vec![(
        "SetHealthCheck",
        aws_error(class, "OperationInProgress", "Code"),
    )];
    set_health(&mut world, ["initial"; 2]);
    let reconciled = world.reconcile().await;
    let report = reconciled.report();
    let readiness = &report.readiness;
    assert_eq!(
        (readiness.reason, readiness.message.as_str()),
        (
            "OperationInProgress",
            "port 81: AWS returned Code: words; the targets of port 80 are in initial health checks"
        )
    );
    // Transient states are checked again soon, unless the error is terminal.
    assert_eq!(ended(&report.requeue), requeue);
    assert_eq!(report.has_all_warnings, class != Class::Transient);
    assert!(
        report.listeners[1].creation_requested_at.is_some(),
        "AWS may not show it yet"
    );
}

#[tokio::test]
async fn most_urgent_error_counts() {
    let mut world = World::new();
    for port in [81, 82] {
        let arn = |kind: &str| format!("arn:aws:elb:eu-1:1:{kind}-{port}");
        world.listen(&arn("listener"), &arn("group"), port);
    }
    world.object["spec"]["listeners"] = json!([http(80), http(81)]);
    world.object["spec"]["listeners"][0]["healthCheckPath"] = json!("/healthz");
    world.object["status"]["listeners"] = json!([{ "port": 80 }, { "port": 81 }, { "port": 82 }]);
    world.rejected = vec![
        (
            "SetHealthCheck",
            aws_error(Class::Terminal, "SpecRejected", "ValidationError"),
        ),
        (
            "DeleteListener",
            aws_error(Class::Slow, "NotPermitted", "OperationNotPermitted"),
        ),
    ];
    let reconciled = world.reconcile().await;
    let report = reconciled.report();
    assert_eq!(report.readiness.reason, "NotPermitted");
    assert_eq!(ended(&report.requeue), Err(Class::Slow));
    let reasons = report
        .listeners
        .iter()
        .map(|it| (it.port, it.reason.as_str()));
    let expected = [(80, "SpecRejected"), (81, ""), (82, "NotPermitted")];
    assert_eq!(reasons.collect::<Vec<_>>(), expected);
}

/// The status has `creationRequestedAt` until AWS shows the load balancer as active, and has no details of an unowned
/// load balancer.
#[rstest]
#[case::active(|_: &mut World| {}, json!({ "arn": LOAD_BALANCER, "dns": "web.elb", "state": "active" }))]
#[case::provisioning(|world: &mut World| set_state(world, "provisioning"),
    json!({ "arn": LOAD_BALANCER, "dns": "web.elb", "state": "provisioning", "creationRequestedAt": "some" }))]
#[case::unowned(|world: &mut World| { world.aws.tags.insert(LOAD_BALANCER.into(), tags(&[])); },
    json!({ "arn": LOAD_BALANCER, "creationRequestedAt": "some" }))]
#[case::unowned_and_another(|world: &mut World| {
    world.aws.tags.insert(LOAD_BALANCER.into(), tags(&[]));
    world.object["status"]["alb"]["arn"] = json!("arn:aws:elb:eu-1:1:former");
}, json!({ "creationRequestedAt": "some" }))]
#[case::not_found_in_time(|world: &mut World| { world.aws.hidden.insert(LOAD_BALANCER.into()); },
    json!({ "arn": LOAD_BALANCER, "dns": "web.elb", "state": "active", "creationRequestedAt": "some" }))]
#[tokio::test]
async fn status_describes_the_load_balancer(#[case] change: Change, #[case] expected: Value) {
    let mut world = World::plain();
    world.object["status"]["alb"]["creationRequestedAt"] = json!(ago(30));
    change(&mut world);
    world.reconcile_and_store().await;
    let mut alb = world.object["status"]["alb"].clone();
    if alb["creationRequestedAt"].is_string() {
        alb["creationRequestedAt"] = json!("some");
    } else {
        alb.as_object_mut().unwrap().remove("creationRequestedAt");
    }
    assert_eq!(alb, expected);
}

/// While no traffic arrives at the load balancer, none arrives at a listener.
#[tokio::test]
async fn listeners_of_an_unowned_load_balancer_have_no_traffic() {
    let mut world = World::new();
    world.aws.tags.insert(LOAD_BALANCER.into(), tags(&[]));
    world.reconcile_and_store().await;
    let listeners = &world.object["status"]["listeners"];
    assert_eq!(
        *listeners,
        json!([{ "port": 80, "healthy": 0, "total": 2, "reason": "Conflict" }])
    );
}
