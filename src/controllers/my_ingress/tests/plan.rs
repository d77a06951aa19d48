//! Tests of the steps that a reconcile takes, and of their order.

use qm_api::common::{ADOPT_BY, OWNER, OWNER_UID};
use qm_aws::AwsError;
use qm_aws::error::{IN_USE, OPERATION_NOT_PERMITTED};
use qm_aws::listeners::TargetHealth;
use qm_runtime::error::Class;
use qm_runtime::outcome::Requeue;
use rstest::rstest;
use serde_json::{Value, json};

use super::super::tags::CLUSTER;
use super::fake::{
    GROUP, LISTENER, LOAD_BALANCER, Reconciled, World, ago, aws_error, http, owner_tags, tags,
};

/// Steps up to the tags of a load balancer whose ARN the status has.
const FOUND: &str = "ReadRegion FindLoadBalancer ReadTags";
/// Steps from there to the nodes.
const LISTENERS: &str = "ReadListeners ReadTargetGroups ReadOwnership";

fn throttled() -> AwsError {
    aws_error(Class::Transient, "Throttled", "Throttling")
}

fn spec_rejected() -> AwsError {
    aws_error(Class::Terminal, "SpecRejected", "SubnetNotFound")
}

fn denied() -> AwsError {
    aws_error(Class::Slow, "AccessDenied", "AccessDenied")
}

fn too_many_targets() -> AwsError {
    aws_error(Class::Slow, "QuotaExceeded", "TooManyTargets")
}

/// Returns the error of a lost answer.
fn lost() -> AwsError {
    AwsError {
        had_no_effect: false,
        ..aws_error(Class::Transient, "AWSUnavailable", "InternalFailure")
    }
}

/// Reconciles the world after `change`, and compares the steps and the reason.
async fn check(
    mut world: World,
    change: impl FnOnce(&mut World),
    steps: &str,
    reason: &str,
) -> (World, Reconciled) {
    change(&mut world);
    let reconciled = world.reconcile().await;
    assert_eq!(reconciled.steps.join(" "), steps);
    let report = reconciled.report.as_ref();
    let reported = report.map_or("", |report| report.readiness.reason);
    assert_eq!(reported, reason, "{report:?}");
    (world, reconciled)
}

fn alb(world: &mut World) -> &mut Value {
    &mut world.object["status"]["alb"]
}

fn requested(world: &mut World, seconds: i64) {
    alb(world)["creationRequestedAt"] = json!(ago(seconds));
}

fn requested_for(world: &mut World, at: usize, seconds: i64) {
    world.object["status"]["listeners"][at]["creationRequestedAt"] = json!(ago(seconds));
}

fn tag(world: &mut World, arn: &str, pairs: &[(&str, &str)]) {
    world.aws.tags.insert(arn.into(), tags(pairs));
}

/// Returns the steps that read the load balancer's listeners.
fn inventory(world: &World) -> &'static str {
    if world.aws.listeners.is_empty() {
        "ReadListeners ReadTargetGroups"
    } else {
        LISTENERS
    }
}

type Change = fn(&mut World);

/// Cases of finding and creating the load balancer.
#[rstest]
#[case::steady(|_: &mut World| {}, "", "Ready")]
#[case::in_another_region(|world: &mut World| alb(world)["arn"] = json!("arn:aws:elb:us-1:1:web"), "ReadRegion", "RegionMismatch")]
#[case::in_another_account(|world: &mut World| alb(world)["arn"] = json!("arn:aws:elb:eu-1:2:web"), "ReadRegion FindLoadBalancer", "AccountMismatch")]
#[case::missing_in_another_account(|world: &mut World| {
    world.aws.load_balancer = None;
    world.aws.account = "2".into();
}, "ReadRegion FindLoadBalancer ReadAccount", "AccountMismatch")]
#[case::deleted(|world: &mut World| world.aws.load_balancer = None,
    "ReadRegion FindLoadBalancer ReadAccount RecordCreateLoadBalancer CreateLoadBalancer ReadTags Emit:Created", "Provisioning")]
#[case::not_visible(|world: &mut World| { requested(world, 30); world.aws.hidden.insert(LOAD_BALANCER.into()); },
    "ReadRegion FindLoadBalancer", "Creating")]
#[case::not_visible_for_too_long(|world: &mut World| { requested(world, 90); world.aws.load_balancer = None; },
    "ReadRegion FindLoadBalancer ReadAccount RecordCreateLoadBalancer CreateLoadBalancer ReadTags Emit:Created", "Provisioning")]
#[case::clock_of_the_writer_is_ahead(|world: &mut World| { requested(world, -30); world.aws.load_balancer = None; },
    "ReadRegion FindLoadBalancer", "Creating")]
#[case::answer_to_the_creation_was_lost(|world: &mut World| {
    *alb(world) = json!({ "creationRequestedAt": ago(5) });
    world.aws.hidden.insert(LOAD_BALANCER.into());
}, "FindLoadBalancer RecordCreateLoadBalancer CreateLoadBalancer ReadTags", "Creating")]
#[case::shown_late(|world: &mut World| *alb(world) = json!({ "arn": LOAD_BALANCER, "creationRequestedAt": ago(30) }),
    "ReadRegion FindLoadBalancer ReadTags Emit:Created", "Ready")]
#[case::shown_after_a_lost_answer(|world: &mut World| *alb(world) = json!({ "creationRequestedAt": ago(5) }),
    "FindLoadBalancer ReadTags Emit:Created", "Ready")]
#[tokio::test]
async fn load_balancer_is_found_or_created(
    #[case] change: Change,
    #[case] steps: &str,
    #[case] reason: &str,
) {
    let steps = if steps.is_empty() { FOUND } else { steps };
    check(World::plain(), change, steps, reason).await;
}

#[rstest]
#[case::new(|_: &mut World| {}, "ReadTags Emit:Created", "Provisioning")]
#[case::with_tags_of_the_spec(|world: &mut World| world.object["spec"]["tags"] = json!({ "a": "b" }), "ReadTags Emit:Created", "Provisioning")]
#[case::late(|world: &mut World| world.aws.is_late = true, "ReadTags", "Creating")]
#[case::late_with_its_tags(|world: &mut World| world.aws.is_late_with_tags = true, "ReadTags", "Conflict")]
#[case::listening(|world: &mut World| world.object["spec"]["listeners"] = json!([http(80)]),
    "ReadTags Emit:Created ReadListeners ReadTargetGroups RecordPorts ReadNodes ReadService FindTargetGroup RecordCreateFor \
     CreateTargetGroup ReadOwnership ReadTargetHealth RegisterTargets CreateListener Emit:Updated", "Provisioning")]
#[tokio::test]
async fn creation_follows_finalizer_and_intent(
    #[case] change: Change,
    #[case] rest: &str,
    #[case] reason: &str,
) {
    let steps =
        format!("FindLoadBalancer AddFinalizer RecordCreateLoadBalancer CreateLoadBalancer {rest}");
    let (world, _) = check(World::empty(), change, &steps, reason).await;
    assert!(world.object["status"]["alb"]["creationRequestedAt"].is_string());
    let condition = &world.object["status"]["conditions"][0];
    assert_eq!(
        condition["reason"], "Creating",
        "while the reconcile continues"
    );
}

/// The status drops a creation that certainly had no effect, so that no reconcile waits for it.
#[rstest]
#[case::no_effect(spec_rejected(), None)]
#[case::lost(lost(), Some(()))]
#[tokio::test]
async fn failed_creation_is_recorded_only_if_it_may_have_happened(
    #[case] error: AwsError,
    #[case] requested: Option<()>,
) {
    let reason = error.reason;
    let refuse = |world: &mut World| world.rejected = vec![("CreateLoadBalancer", error)];
    let steps = "FindLoadBalancer AddFinalizer RecordCreateLoadBalancer !CreateLoadBalancer";
    let (_, reconciled) = check(World::empty(), refuse, steps, reason).await;
    let alb = reconciled.report().readiness.alb.as_ref();
    assert_eq!(alb.map(|_| ()), requested);
    assert!(reconciled.report().requeue.is_err());
}

/// An unowned load balancer is not changed.
#[rstest]
#[case::untagged(&[], &[], "Conflict")]
#[case::articles_program(&[("ManagedBy", "kopf")], &[], "Conflict")]
#[case::another_cluster(&[(CLUSTER, "c2"), (OWNER_UID, "u1"), (OWNER, "shop/web")], &[], "Conflict")]
#[case::name_alone(&[(CLUSTER, "c1"), (OWNER, "shop/web")], &[], "Conflict")]
#[case::promised(&[(ADOPT_BY, "shop/other")], &[], "Conflict")]
#[case::sibling(&[(CLUSTER, "c1"), (OWNER_UID, "u2"), (OWNER, "a/web")], &["u2"], "NameTaken")]
#[case::deleted_sibling(&[(CLUSTER, "c1"), (OWNER_UID, "u2"), (OWNER, "a/web")], &[], "Conflict")]
#[tokio::test]
async fn unowned_load_balancer_is_left_unchanged(
    #[case] actual: &[(&str, &str)],
    #[case] siblings: &[&'static str],
    #[case] reason: &str,
) {
    let change = |world: &mut World| {
        tag(world, LOAD_BALANCER, actual);
        world.siblings = siblings.to_vec();
    };
    check(World::new(), change, FOUND, reason).await;
}

/// An operator of some namespaces does not see whether a sibling in another one exists.
#[tokio::test]
async fn sibling_that_is_not_watched_may_exist() {
    let change = |world: &mut World| {
        let siblings = [(CLUSTER, "c1"), (OWNER_UID, "u2"), (OWNER, "a/web")];
        tag(world, LOAD_BALANCER, &siblings);
        world.scope = Some("shop");
    };
    check(World::plain(), change, FOUND, "NameTaken").await;
}

#[rstest]
#[case::consent(&[("ManagedBy", "kopf"), (ADOPT_BY, "shop/web")], "AddTags RemoveTags Emit:Adopted")]
#[case::restored(&[(CLUSTER, "c1"), (OWNER_UID, "u9"), (OWNER, "shop/web")], "AddTags Emit:Adopted")]
#[tokio::test]
async fn adoptable_load_balancer_is_adopted(#[case] actual: &[(&str, &str)], #[case] rest: &str) {
    let is_restored = actual.len() == 3;
    let change = |world: &mut World| tag(world, LOAD_BALANCER, actual);
    let confirm = if is_restored { "ConfirmOwner " } else { "" };
    // Listeners are read while the status may lack some, before anything says that the load balancer is known.
    let steps = format!(
        "FindLoadBalancer ReadTags {confirm}AddFinalizer ReadListeners ReadTargetGroups {rest}"
    );
    let mut world = World::plain();
    world.object["status"] = json!({});
    world.object["metadata"]["finalizers"] = json!([]);
    let (world, _) = check(world, change, &steps, "Ready").await;
    let actual = &world.aws.tags[LOAD_BALANCER];
    assert!(
        owner_tags()
            .iter()
            .all(|(key, value)| actual.get(key) == Some(value))
    );
    assert!(!actual.contains_key(ADOPT_BY));
}

/// A load balancer that cannot be changed is never adopted.
#[rstest]
#[case::scheme(|world: &mut World| world.object["spec"]["scheme"] = json!("internal"))]
#[case::kind(|world: &mut World| world.aws.load_balancer.as_mut().unwrap().kind = "network".into())]
#[case::unowned(|world: &mut World| {
    world.object["spec"]["scheme"] = json!("internal");
    tag(world, LOAD_BALANCER, &[(ADOPT_BY, "shop/web")]);
})]
#[tokio::test]
async fn incompatible_load_balancer_is_left_unchanged(#[case] change: Change) {
    check(World::new(), change, FOUND, "Incompatible").await;
}

#[rstest]
#[case::all(json!({ "subnets": ["subnet-1", "subnet-3"], "securityGroups": ["sg-2"], "ipAddressType": "dualstack" }),
    "SetSubnets SetIpAddressType SetSecurityGroups Emit:Updated")]
#[case::fewer_address_types_first(json!({ "subnets": ["subnet-1", "subnet-3"], "ipAddressType": "ipv4" }),
    "SetIpAddressType SetSubnets Emit:Updated")]
#[case::not_in_the_spec(json!({}), "")]
#[tokio::test]
async fn drift_is_corrected(#[case] spec: Value, #[case] steps: &str) {
    let change = |world: &mut World| {
        for (field, value) in spec.as_object().unwrap() {
            world.object["spec"][field] = value.clone();
        }
        if spec["ipAddressType"] == "ipv4" {
            world.aws.load_balancer.as_mut().unwrap().ip_address_type = "dualstack".into();
        }
    };
    let steps = format!("{FOUND} {steps}");
    check(World::plain(), change, steps.trim(), "Ready").await;
}

#[rstest]
#[case::changed_by_others(json!({}), json!([]), &[("ManagedBy", "them")], "AddTags Emit:Updated", &[])]
#[case::of_others(json!({}), json!([]), &[("theirs", "x"), (ADOPT_BY, "a/other")], "", &[("theirs", "x"), (ADOPT_BY, "a/other")])]
#[case::new(json!({ "a": "1" }), json!([]), &[], "RecordTag AddTags Emit:Updated", &[("a", "1")])]
#[case::known(json!({ "a": "1" }), json!(["a"]), &[], "AddTags Emit:Updated", &[("a", "1")])]
#[case::dropped(json!({ "b": "2" }), json!(["a"]), &[("a", "1"), ("c", "3")], "RecordTag RemoveTags AddTags Emit:Updated",
    &[("b", "2"), ("c", "3")])]
#[case::dropped_and_missing(json!({}), json!(["a"]), &[], "", &[])]
#[tokio::test]
async fn tags_of_the_spec_are_ensured(
    #[case] spec: Value,
    #[case] recorded: Value,
    #[case] actual: &[(&str, &str)],
    #[case] steps: &str,
    #[case] expected: &[(&str, &str)],
) {
    let keys: Vec<_> = spec.as_object().unwrap().keys().cloned().collect();
    let change = |world: &mut World| {
        world.object["spec"]["tags"] = spec;
        alb(world)["managedTagKeys"] = recorded;
        world
            .aws
            .tags
            .get_mut(LOAD_BALANCER)
            .unwrap()
            .extend(tags(actual));
    };
    let steps = format!("{FOUND} {steps}");
    let (world, reconciled) = check(World::plain(), change, steps.trim(), "Ready").await;
    let mut all = owner_tags();
    all.extend(tags(expected));
    assert_eq!(world.aws.tags[LOAD_BALANCER], all);
    let alb = reconciled.report().readiness.alb.as_ref().unwrap();
    assert_eq!(alb.managed_tag_keys, keys);
}

/// An error of one part does not block the correction of other parts and listeners; an error of all calls does.
#[rstest]
#[case::one_resource(vec![("SetSubnets", spec_rejected())],
    "!SetSubnets SetIpAddressType SetSecurityGroups Emit:Updated ReadListeners ReadTargetGroups ReadOwnership ReadNodes ReadService \
     ReadTargetHealth", "SpecRejected")]
#[case::all_calls(vec![("SetSubnets", throttled())], "!SetSubnets", "Throttled")]
#[case::first_counts(vec![("SetSubnets", denied()), ("SetSecurityGroups", spec_rejected())],
    "!SetSubnets SetIpAddressType !SetSecurityGroups Emit:Updated ReadListeners ReadTargetGroups ReadOwnership ReadNodes ReadService \
     ReadTargetHealth", "AccessDenied")]
#[case::listeners_count_before(vec![("SetSubnets", spec_rejected()), ("ReadListeners", throttled())],
    "!SetSubnets SetIpAddressType SetSecurityGroups Emit:Updated !ReadListeners", "Throttled")]
#[case::tags(vec![("AddTags", spec_rejected())],
    "!AddTags SetSubnets SetIpAddressType SetSecurityGroups Emit:Updated ReadListeners ReadTargetGroups ReadOwnership ReadNodes ReadService \
     ReadTargetHealth", "SpecRejected")]
#[case::tags_of_all_calls(vec![("AddTags", throttled())], "!AddTags", "Throttled")]
#[case::permission(vec![("SetSubnets", denied())],
    "!SetSubnets SetIpAddressType SetSecurityGroups Emit:Updated ReadListeners ReadTargetGroups ReadOwnership ReadNodes ReadService \
     ReadTargetHealth", "AccessDenied")]
#[tokio::test]
async fn rejected_correction_does_not_block_the_others(
    #[case] rejected: Vec<(&'static str, AwsError)>,
    #[case] steps: &str,
    #[case] reason: &str,
) {
    let change = |world: &mut World| {
        world.rejected = rejected;
        world.object["spec"]["subnets"] = json!(["subnet-1", "subnet-3"]);
        world.object["spec"]["securityGroups"] = json!(["sg-2"]);
        world.object["spec"]["ipAddressType"] = json!("dualstack");
        if steps.contains("AddTags") {
            tag(world, LOAD_BALANCER, &[(CLUSTER, "c1"), (OWNER_UID, "u1")]);
        }
    };
    let steps = format!("{FOUND} {steps}");
    let (_, reconciled) = check(World::new(), change, &steps, reason).await;
    assert!(reconciled.report().requeue.is_err());
}

/// The Event about a creation does not wait for the tags; the Event about an adoption does.
#[rstest]
#[case::created(json!({}), &[(CLUSTER, "c1"), (OWNER_UID, "u1")],
    "FindLoadBalancer RecordCreateLoadBalancer CreateLoadBalancer ReadTags !AddTags Emit:Created")]
#[case::adopted(json!({ "alb": { "arn": LOAD_BALANCER } }), &[(ADOPT_BY, "shop/web")],
    "ReadRegion FindLoadBalancer ReadTags !AddTags")]
#[tokio::test]
async fn event_of_a_creation_precedes_the_tags(
    #[case] status: Value,
    #[case] actual: &[(&str, &str)],
    #[case] steps: &str,
) {
    let change = |world: &mut World| {
        world.rejected = vec![("AddTags", denied())];
        tag(world, LOAD_BALANCER, actual);
        if status == json!({}) {
            // AWS answers the creation with the load balancer that it did not show.
            world.aws.unlisted.insert(LOAD_BALANCER.into());
        }
        world.object["status"] = status;
    };
    check(World::plain(), change, steps, "AccessDenied").await;
}

/// AWS answers a creation with another owner's load balancer that has the same settings.
#[tokio::test]
async fn created_load_balancer_may_have_another_owner() {
    let change = |world: &mut World| {
        world.aws = World::plain().aws;
        world.aws.unlisted.insert(LOAD_BALANCER.into());
        tag(world, LOAD_BALANCER, &[("theirs", "x")]);
    };
    let steps =
        "FindLoadBalancer AddFinalizer RecordCreateLoadBalancer CreateLoadBalancer ReadTags";
    let (_, reconciled) = check(World::empty(), change, steps, "Conflict").await;
    // Tags may be shown late.
    assert_eq!(reconciled.report().requeue, Ok(Requeue::Poll));
}

/// No order of steps makes a listener forward to a group without targets.
#[rstest]
#[case::steady(|_: &mut World| {}, "ReadService ReadTargetHealth", "Ready")]
#[case::new(|world: &mut World| { world.aws.listeners.clear(); world.aws.groups.clear(); },
    "ReadService FindTargetGroup RecordCreateFor CreateTargetGroup ReadOwnership ReadTargetHealth RegisterTargets CreateListener \
     Emit:Updated", "TargetsInitial")]
#[case::new_and_just_recorded(|world: &mut World| { world.aws.listeners.clear(); world.aws.groups.clear(); requested_for(world, 0, 10); },
    "ReadService FindTargetGroup CreateTargetGroup ReadOwnership ReadTargetHealth RegisterTargets CreateListener Emit:Updated",
    "TargetsInitial")]
#[case::former_group(|world: &mut World| world.aws.listeners.clear(),
    "ReadService FindTargetGroup ReadOwnership ReadTargetHealth RecordCreateFor CreateListener Emit:Updated", "TargetsInitial")]
#[case::group_of_another_network(|world: &mut World| {
    world.aws.listeners.clear();
    world.aws.groups[0].vpc = "vpc-2".into();
}, "ReadService FindTargetGroup ReadOwnership DeleteTargetGroup RecordCreateFor CreateTargetGroup ReadOwnership ReadTargetHealth \
    RegisterTargets CreateListener Emit:Updated", "TargetsInitial")]
#[case::leads_elsewhere(|world: &mut World| {
    world.aws.listeners[0].group = None;
    world.aws.health.get_mut(GROUP).unwrap().clear();
}, "ReadService FindTargetGroup ReadOwnership ReadTargetHealth RegisterTargets ModifyListener Emit:Updated", "TargetsInitial")]
#[case::tags_of_both(|world: &mut World| {
    for arn in [LISTENER, GROUP] {
        tag(world, arn, &[(CLUSTER, "c1"), (OWNER_UID, "u1")]);
    }
}, "ReadService AddTags ReadTargetHealth AddTags", "Ready")]
#[case::adopted(|world: &mut World| {
    for arn in [LISTENER, GROUP] {
        tag(world, arn, &[(ADOPT_BY, "shop/web")]);
    }
}, "ReadService AddTags RemoveTags Emit:Adopted ReadTargetHealth AddTags RemoveTags Emit:Adopted", "Ready")]
#[case::health_check(|world: &mut World| world.object["spec"]["listeners"][0]["healthCheckPath"] = json!("/healthz"),
    "ReadService SetHealthCheck ReadTargetHealth", "Ready")]
#[case::protocol(|world: &mut World| {
    world.object["spec"]["listeners"][0]["protocol"] = json!("HTTPS");
    world.object["spec"]["listeners"][0]["certificateArn"] = json!("arn:c");
}, "ReadService ReadTargetHealth ModifyListener Emit:Updated", "Ready")]
#[case::policy_of_others(|world: &mut World| world.aws.listeners[0].ssl_policy = Some("p".into()), "ReadService ReadTargetHealth", "Ready")]
#[case::new_node(|world: &mut World| world.nodes = Ok(vec!["i-1", "i-2", "i-3"]), "ReadService ReadTargetHealth RegisterTargets", "Ready")]
#[case::other_node(|world: &mut World| world.nodes = Ok(vec!["i-2", "i-3"]), "ReadService ReadTargetHealth RegisterTargets DeregisterTargets",
    "Ready")]
#[case::only_the_old_ones_serve(|world: &mut World| world.nodes = Ok(vec!["i-3"]), "ReadService ReadTargetHealth RegisterTargets",
    "TargetsInitial")]
#[tokio::test]
async fn listener_is_ensured(#[case] change: Change, #[case] steps: &str, #[case] reason: &str) {
    let mut world = World::new();
    change(&mut world);
    let inventory = inventory(&world);
    let steps = format!("{FOUND} {inventory} ReadNodes {steps}");
    let (world, _) = check(world, |_| {}, &steps, reason).await;
    let listener = &world.aws.listeners[0];
    let group = world
        .aws
        .groups
        .iter()
        .find(|it| listener.group.as_ref() == Some(&it.arn));
    assert!(group.is_some_and(|it| it.name == world.group_name(80) && it.vpc == "vpc-1"));
    for arn in [&listener.arn, &group.unwrap().arn] {
        assert_eq!(world.aws.tags[arn], owner_tags());
    }
    if listener.protocol == "HTTPS" {
        assert_eq!(
            listener.ssl_policy.as_deref(),
            Some("ELBSecurityPolicy-2016-08")
        );
    }
}

/// Unowned resources, and those that may be unowned, are left unchanged.
#[rstest]
#[case::listener(|world: &mut World| tag(world, LISTENER, &[("theirs", "x")]), "ReadService ReadTargetHealth", "Conflict")]
#[case::listener_without_tags(|world: &mut World| tag(world, LISTENER, &[]), "ReadService ReadTargetHealth", "Conflict")]
#[case::listener_with_late_tags(|world: &mut World| { tag(world, LISTENER, &[]); requested_for(world, 0, 30); }, "ReadService", "TargetsInitial")]
#[case::group(|world: &mut World| tag(world, GROUP, &[("theirs", "x")]), "ReadService", "Conflict")]
#[case::group_with_late_tags(|world: &mut World| { tag(world, GROUP, &[]); requested_for(world, 0, 30); }, "ReadService", "TargetsInitial")]
#[case::adoptable_group_of_another_network(|world: &mut World| {
    tag(world, GROUP, &[(ADOPT_BY, "shop/web")]);
    world.aws.groups[0].vpc = "vpc-2".into();
}, "ReadService", "Conflict")]
#[case::created_group_is_hidden(|world: &mut World| {
    world.object["spec"]["listeners"] = json!([http(81)]);
    world.object["status"]["listeners"] = json!([{ "port": 81 }]);
    world.aws.listeners.clear();
    world.aws.groups.clear();
    world.aws.is_late = true;
}, "ReadService FindTargetGroup RecordCreateFor CreateTargetGroup !ReadOwnership", "TargetsInitial")]
#[case::created_group_has_late_tags(|world: &mut World| {
    world.aws.listeners.clear();
    world.aws.groups.clear();
    world.aws.is_late_with_tags = true;
}, "ReadService FindTargetGroup RecordCreateFor CreateTargetGroup ReadOwnership", "TargetsInitial")]
#[tokio::test]
async fn unowned_listener_or_group_is_left_unchanged(
    #[case] change: Change,
    #[case] steps: &str,
    #[case] reason: &str,
) {
    let mut world = World::new();
    change(&mut world);
    let inventory = inventory(&world);
    let steps = format!("{FOUND} {inventory} ReadNodes {steps}");
    check(world, |_| {}, &steps, reason).await;
}

/// AWS answers a creation with another owner's group that has the same settings.
#[tokio::test]
async fn created_group_may_have_another_owner() {
    let change = |world: &mut World| {
        world.aws.listeners.clear();
        world.aws.unlisted.insert(GROUP.into());
        tag(world, GROUP, &[("theirs", "x")]);
    };
    let steps = format!(
        "{FOUND} ReadListeners ReadTargetGroups ReadNodes ReadService FindTargetGroup RecordCreateFor CreateTargetGroup ReadOwnership"
    );
    check(World::new(), change, &steps, "Conflict").await;
}

/// Without a route, targets stay as long as the Service holds their node port.
#[rstest]
#[case::no_service(|world: &mut World| world.services.clear(), "ReadTargetHealth DeregisterTargets Emit:Updated", "ServiceNotFound", (0, 0))]
#[case::port_released(|world: &mut World| port(world, &json!({ "port": 81, "nodePort": 30_081 })), "ReadTargetHealth DeregisterTargets Emit:Updated",
    "ServicePortNotFound", (0, 0))]
#[case::port_held(|world: &mut World| port(world, &json!({ "port": 81, "nodePort": 30_080 })), "ReadTargetHealth", "ServicePortNotFound", (2, 2))]
#[case::no_node_port(|world: &mut World| port(world, &json!({ "port": 80 })), "ReadTargetHealth DeregisterTargets Emit:Updated", "NoNodePort", (0, 0))]
#[case::no_nodes(|world: &mut World| world.nodes = Ok(Vec::new()), "ReadTargetHealth", "NoNodes", (2, 2))]
#[case::nodes_forbidden(|world: &mut World| world.nodes = Err("no"), "ReadTargetHealth", "NodesUnreadable", (2, 2))]
#[case::nothing_leads_there(|world: &mut World| { world.nodes = Ok(Vec::new()); world.aws.listeners.clear(); }, "", "NoNodes", (2, 2))]
#[tokio::test]
async fn unroutable_listener_keeps_targets_of_held_ports(
    #[case] change: Change,
    #[case] steps: &str,
    #[case] reason: &str,
    #[case] counts: (u32, u32),
) {
    let mut world = World::new();
    change(&mut world);
    let inventory = inventory(&world);
    let steps = format!("{FOUND} {inventory} ReadNodes ReadService {steps}");
    let (world, reconciled) = check(world, |_| {}, steps.trim(), reason).await;
    let status = &reconciled.report().listeners[0];
    assert_eq!((status.healthy, status.total), counts);
    let draining = world.aws.health[GROUP].iter().filter(|it| it.is_draining());
    assert_eq!(
        draining.count(),
        if steps.contains("Deregister") { 2 } else { 0 }
    );
}

/// Targets at a released node port are removed even if AWS rejects a step of their listener, or the listener is not
/// owned.
#[rstest]
#[case::rejected(|world: &mut World| {
    port(world, &json!({ "port": 80, "nodePort": 30_081 }));
    world.rejected = vec![("RegisterTargets", too_many_targets())];
}, "!RegisterTargets DeregisterTargets", "QuotaExceeded")]
#[case::not_owned(|world: &mut World| {
    world.services.clear();
    tag(world, LISTENER, &[("theirs", "x")]);
}, "DeregisterTargets", "Conflict")]
#[tokio::test]
async fn unmaintainable_listener_loses_targets_of_released_ports(
    #[case] change: Change,
    #[case] steps: &str,
    #[case] reason: &str,
) {
    let steps =
        format!("{FOUND} {LISTENERS} ReadNodes ReadService ReadTargetHealth {steps} Emit:Updated");
    let (world, reconciled) = check(World::new(), change, &steps, reason).await;
    let status = &reconciled.report().listeners[0];
    assert_eq!((status.healthy, status.total), (0, 0));
    assert!(
        world.aws.health[GROUP]
            .iter()
            .all(TargetHealth::is_draining)
    );
}

fn port(world: &mut World, port: &Value) {
    world.services.insert(
        "shop",
        json!({ "metadata": { "name": "shop" }, "spec": { "ports": [port] } }),
    );
}

/// A target that AWS rejects does not block the others.
#[rstest]
#[case::one_of_two(&["i-2", "i-3", "i-4"], "i-3", "!RegisterTargets RegisterTargets Emit:TargetsRejected DeregisterTargets", "Ready")]
#[case::the_only_new_one(&["i-1", "i-2", "i-3"], "i-3", "!RegisterTargets Emit:TargetsRejected", "Ready")]
#[case::not_a_longer_id(&["i-2", "i-3", "i-33"], "i-3", "!RegisterTargets RegisterTargets Emit:TargetsRejected DeregisterTargets", "Ready")]
#[case::all(&["i-3", "i-4"], "i-3, i-4", "!RegisterTargets", "TargetsRejected")]
#[case::unnamed(&["i-1", "i-2", "i-3"], "some", "!RegisterTargets", "TargetsRejected")]
#[tokio::test]
async fn rejected_target_does_not_block_the_others(
    #[case] nodes: &[&'static str],
    #[case] named: &str,
    #[case] steps: &str,
    #[case] reason: &str,
) {
    let mut world = World::new();
    world.nodes = Ok(nodes.to_vec());
    world.aws.rejected = named.split(", ").map(Into::into).collect();
    let steps = format!("{FOUND} {LISTENERS} ReadNodes ReadService ReadTargetHealth {steps}");
    check(world, |_| {}, &steps, reason).await;
}

/// No target waits for the health of one that AWS rejects.
#[tokio::test]
async fn rejected_target_does_not_hold_old_ones() {
    let change = |world: &mut World| {
        world.nodes = Ok(vec!["i-2", "i-3"]);
        world.aws.rejected = ["i-3".into()].into();
        world.aws.health.get_mut(GROUP).unwrap()[1].state = "unhealthy".into();
    };
    let steps = format!(
        "{FOUND} {LISTENERS} ReadNodes ReadService ReadTargetHealth !RegisterTargets Emit:TargetsRejected DeregisterTargets"
    );
    let (world, _) = check(World::new(), change, &steps, "TargetsUnhealthy").await;
    assert!(world.aws.health[GROUP][0].is_draining());
}

/// A target whose node is excluded gets no more traffic, even if AWS lastingly rejects another step of the listener.
#[rstest]
#[case::forwarding(|world: &mut World| {
    world.nodes = Ok(vec!["i-2"]);
    world.object["spec"]["listeners"][0]["protocol"] = json!("HTTPS");
    world.object["spec"]["listeners"][0]["certificateArn"] = json!("arn:c");
    world.rejected = vec![("ModifyListener", spec_rejected())];
}, "!ModifyListener DeregisterTargets", "SpecRejected")]
#[case::registration(|world: &mut World| world.rejected = vec![("RegisterTargets", too_many_targets())],
    "!RegisterTargets DeregisterTargets", "QuotaExceeded")]
#[case::registration_of_the_only_targets(|world: &mut World| {
    world.nodes = Ok(vec!["i-3"]);
    world.aws.health.get_mut(GROUP).unwrap().iter_mut().for_each(|it| it.state = "unhealthy".into());
    world.rejected = vec![("RegisterTargets", too_many_targets())];
}, "!RegisterTargets", "QuotaExceeded")]
#[case::all_calls(|world: &mut World| world.rejected = vec![("RegisterTargets", throttled())], "!RegisterTargets", "Throttled")]
#[tokio::test]
async fn excluded_target_is_removed_despite_a_rejection(
    #[case] change: Change,
    #[case] steps: &str,
    #[case] reason: &str,
) {
    let mut world = World::new();
    world.nodes = Ok(vec!["i-2", "i-3"]);
    let is_removed = steps.contains("Deregister");
    let steps = format!("{FOUND} {LISTENERS} ReadNodes ReadService ReadTargetHealth {steps}");
    let (world, _) = check(world, change, &steps, reason).await;
    let mut health = world.aws.health[GROUP].iter();
    let removed = health.find(|it| it.is_draining());
    let removed = removed.map(|it| &*it.target.instance);
    assert_eq!(removed, is_removed.then_some("i-1"));
}

/// A listener that AWS rejects does not block the others; an error of all calls does.
#[rstest]
#[case::one_resource(
    spec_rejected(),
    "!SetHealthCheck ReadTargetHealth ReadService ReadTargetHealth",
    "SpecRejected"
)]
#[case::all_calls(throttled(), "!SetHealthCheck", "Throttled")]
#[tokio::test]
async fn rejected_listener_does_not_block_the_others(
    #[case] error: AwsError,
    #[case] steps: &str,
    #[case] reason: &str,
) {
    let mut world = World::new();
    world.listen(
        "arn:aws:elb:eu-1:1:listener-81",
        "arn:aws:elb:eu-1:1:group-81",
        81,
    );
    world.object["spec"]["listeners"] = json!([http(80), http(81)]);
    world.object["spec"]["listeners"][0]["healthCheckPath"] = json!("/healthz");
    world.object["status"]["listeners"] =
        json!([{ "port": 80, "healthy": 1, "total": 2 }, { "port": 81 }]);
    world.rejected = vec![("SetHealthCheck", error)];
    let steps = format!("{FOUND} {LISTENERS} ReadNodes ReadService {steps}");
    let (_, reconciled) = check(world, |_| {}, &steps, reason).await;
    let report = reconciled.report();
    if reason == "SpecRejected" {
        assert!(
            report
                .readiness
                .message
                .starts_with("port 80: AWS returned")
        );
        let (first, second) = (&report.listeners[0], &report.listeners[1]);
        assert_eq!(
            (first.healthy, &*first.reason),
            (2, "SpecRejected"),
            "the targets are those that AWS shows"
        );
        assert_eq!((second.healthy, &*second.reason), (2, ""));
    }
}

/// Listeners and groups that the spec no longer has are removed, the listener before its group.
#[rstest]
#[case::both(|_: &mut World| {}, "DeleteListener Emit:Updated FindTargetGroup ReadOwnership DeleteTargetGroup", "Ready", 0)]
#[case::group_alone(|world: &mut World| world.aws.listeners.clear(), "FindTargetGroup ReadOwnership DeleteTargetGroup", "Ready", 0)]
#[case::neither(|world: &mut World| { world.aws.listeners.clear(); world.aws.groups.clear(); }, "FindTargetGroup", "Ready", 0)]
#[case::neither_is_visible(|world: &mut World| { world.aws.listeners.clear(); world.aws.groups.clear(); requested_for(world, 0, 30); },
    "FindTargetGroup", "Ready", 1)]
#[case::foreign(|world: &mut World| for arn in [LISTENER, GROUP] { tag(world, arn, &[("theirs", "x")]); }, "FindTargetGroup ReadOwnership", "Ready", 0)]
#[case::late_tags(|world: &mut World| { for arn in [LISTENER, GROUP] { tag(world, arn, &[]); } requested_for(world, 0, 30); },
    "FindTargetGroup ReadOwnership", "Ready", 1)]
#[case::held_by_another(|world: &mut World| tag(world, LISTENER, &[("theirs", "x")]), "FindTargetGroup ReadOwnership", "Conflict", 1)]
#[case::status_was_lost(|world: &mut World| world.object["status"] = json!({}),
    "RecordPorts DeleteListener Emit:Updated FindTargetGroup ReadOwnership DeleteTargetGroup", "Ready", 0)]
#[tokio::test]
async fn undesired_listener_is_removed(
    #[case] change: Change,
    #[case] steps: &str,
    #[case] reason: &str,
    #[case] left: usize,
) {
    let mut world = World::new();
    world.object["spec"]["listeners"] = json!([]);
    change(&mut world);
    let is_lost = world.object["status"] == json!({});
    let found = if is_lost {
        "FindLoadBalancer ReadTags"
    } else {
        FOUND
    };
    let inventory = inventory(&world);
    let steps = format!("{found} {inventory} {steps}");
    let (_, reconciled) = check(world, |_| {}, &steps, reason).await;
    assert_eq!(reconciled.report().listeners.len(), left);
}

/// The restored status is older than the listener.
#[tokio::test]
async fn listener_that_a_restored_status_lacks_is_removed() {
    let change = |world: &mut World| {
        world.object["spec"]["listeners"] = json!([]);
        world.object["status"]["listeners"] = json!([]);
        for arn in [LOAD_BALANCER, LISTENER, GROUP] {
            tag(
                world,
                arn,
                &[(CLUSTER, "c1"), (OWNER_UID, "u9"), (OWNER, "shop/web")],
            );
        }
    };
    let steps = format!(
        "{FOUND} ConfirmOwner {LISTENERS} RecordPorts AddTags Emit:Adopted DeleteListener Emit:Updated FindTargetGroup \
         ReadOwnership DeleteTargetGroup"
    );
    check(World::new(), change, &steps, "Ready").await;
}

/// A listener that the lost status does not mention is removed, whatever AWS rejects before.
#[rstest]
#[case::listeners("ReadListeners")]
#[case::groups("ReadTargetGroups")]
#[case::tags("ReadOwnership")]
#[case::load_balancer("SetSubnets")]
#[tokio::test]
async fn listener_of_a_lost_status_is_removed_after_a_failure(#[case] rejected: &'static str) {
    let mut world = World::new();
    world.object["spec"]["listeners"] = json!([]);
    world.object["spec"]["subnets"] = json!(["subnet-1", "subnet-3"]);
    world.object["spec"]["tags"] = json!({ "a": "1" });
    world.object["status"] = json!({});
    world.rejected = vec![(rejected, throttled())];
    world.reconcile_and_store().await;
    assert_eq!(world.aws.listeners.len(), 1);
    world.rejected.clear();
    world.reconcile_and_store().await;
    assert_eq!((world.aws.listeners.len(), world.aws.groups.len()), (0, 0));
}

/// Tags that the spec dropped are removed once AWS allows their removal.
#[tokio::test]
async fn rejected_removal_of_a_tag_is_repeated() {
    let mut world = World::plain();
    alb(&mut world)["managedTagKeys"] = json!(["a"]);
    let actual = world.aws.tags.get_mut(LOAD_BALANCER).unwrap();
    actual.insert("a".into(), "1".into());
    world.rejected = vec![("RemoveTags", denied())];
    world.reconcile_and_store().await;
    assert_eq!(
        *alb(&mut world),
        json!({ "arn": LOAD_BALANCER, "dns": "web.elb", "state": "active", "managedTagKeys": ["a"] })
    );
    world.rejected.clear();
    world.reconcile_and_store().await;
    assert_eq!(world.aws.tags[LOAD_BALANCER], owner_tags());
}

/// A removal that AWS rejects does not block the next one.
#[tokio::test]
async fn rejected_removal_does_not_block_the_others() {
    let mut world = World::new();
    world.listen(
        "arn:aws:elb:eu-1:1:listener-81",
        "arn:aws:elb:eu-1:1:group-81",
        81,
    );
    world.object["spec"]["listeners"] = json!([]);
    world.object["status"]["listeners"] = json!([{ "port": 80, "healthy": 2 }, { "port": 81 }]);
    world.rejected = vec![("DeleteListener", denied())];
    let steps = format!("{FOUND} {LISTENERS} !DeleteListener !DeleteListener");
    let (_, reconciled) = check(world, |_| {}, &steps, "AccessDenied").await;
    let listeners = &reconciled.report().listeners;
    assert_eq!(
        (listeners.len(), listeners[0].healthy, &*listeners[0].reason),
        (2, 0, "AccessDenied")
    );
}

#[tokio::test]
async fn failed_load_balancer_has_no_listeners() {
    let fail = |world: &mut World| {
        world.aws.load_balancer.as_mut().unwrap().state = "failed".into();
    };
    check(World::new(), fail, FOUND, "ProvisioningFailed").await;
}

/// The finalizer is removed only once no owned resource is left.
#[rstest]
#[case::plain(|_: &mut World| {}, "ReadTags ConfirmOwner DeleteLoadBalancer VerifyDeletion ListTargetGroups Emit:Deleted", "")]
#[case::lingers(|world: &mut World| world.aws.lingers = true, "ReadTags ConfirmOwner DeleteLoadBalancer VerifyDeletion", "Terminating")]
#[case::already_deleted(|world: &mut World| world.aws.load_balancer = None, "ReadAccount ReadTags ListTargetGroups Emit:AlreadyDeleted", "")]
#[case::left_out_of_a_list(|world: &mut World| { world.aws.unlisted.insert(LOAD_BALANCER.into()); }, "ReadAccount ReadTags", "Terminating")]
#[case::in_use(|world: &mut World| world.rejected = vec![("DeleteLoadBalancer", aws_error(Class::Transient, "OperationInProgress", IN_USE))],
    "ReadTags ConfirmOwner !DeleteLoadBalancer", "NotPermitted")]
#[case::not_visible(|world: &mut World| { requested(world, 30); world.aws.hidden.insert(LOAD_BALANCER.into()); }, "", "Terminating")]
#[case::tags_not_visible(|world: &mut World| { requested(world, 30); tag(world, LOAD_BALANCER, &[]); }, "ReadTags", "Terminating")]
#[case::not_owned(|world: &mut World| tag(world, LOAD_BALANCER, &[("theirs", "x")]), "ReadTags ListTargetGroups Emit:Orphaned", "")]
#[case::only_adoptable(|world: &mut World| tag(world, LOAD_BALANCER, &[(ADOPT_BY, "shop/web")]), "ReadTags ListTargetGroups Emit:Orphaned", "")]
#[case::never_owned(|world: &mut World| {
    tag(world, LOAD_BALANCER, &[("theirs", "x")]);
    alb(world)["arn"] = json!("arn:aws:elb:eu-1:1:former");
}, "ReadTags ListTargetGroups", "")]
#[case::restored(|world: &mut World| tag(world, LOAD_BALANCER, &[(CLUSTER, "c1"), (OWNER_UID, "u9"), (OWNER, "shop/web")]),
    "ReadTags ConfirmOwner DeleteLoadBalancer VerifyDeletion ListTargetGroups Emit:Deleted", "")]
#[case::transient_refusal(|world: &mut World| world.rejected = vec![("DeleteLoadBalancer", throttled())],
    "ReadTags ConfirmOwner !DeleteLoadBalancer", "Throttled")]
#[case::suspended(|world: &mut World| world.object["spec"]["suspend"] = json!(true),
    "ReadTags ConfirmOwner DeleteLoadBalancer VerifyDeletion ListTargetGroups Emit:Deleted", "")]
#[tokio::test]
async fn load_balancer_is_deleted(
    #[case] change: Change,
    #[case] steps: &str,
    #[case] reason: &str,
) {
    let mut world = World::plain();
    world.delete();
    let steps = format!("ReadRegion FindLoadBalancer {steps}");
    let (_, reconciled) = check(world, change, steps.trim(), reason).await;
    assert_eq!(reconciled.report.is_none(), reason.is_empty());
}

/// Groups are deleted after the load balancer, even if another client deleted the load balancer.
#[rstest]
#[case::with_the_load_balancer(|_: &mut World| {},
    "ReadTags ConfirmOwner DeleteLoadBalancer VerifyDeletion ListTargetGroups ReadOwnership ConfirmOwner DeleteTargetGroup Emit:Deleted", "")]
#[case::after_the_load_balancer(|world: &mut World| { world.aws.load_balancer = None; world.aws.listeners.clear(); },
    "ReadAccount ReadTags ListTargetGroups ReadOwnership ConfirmOwner DeleteTargetGroup Emit:AlreadyDeleted", "")]
#[case::foreign_group(|world: &mut World| tag(world, GROUP, &[("theirs", "x")]),
    "ReadTags ConfirmOwner DeleteLoadBalancer VerifyDeletion ListTargetGroups ReadOwnership Emit:Deleted", "")]
#[case::load_balancer_is_left(|world: &mut World| tag(world, LOAD_BALANCER, &[("theirs", "x")]),
    "ReadTags ListTargetGroups ReadOwnership ConfirmOwner !DeleteTargetGroup Emit:Orphaned", "")]
#[case::still_in_use(|world: &mut World| { world.aws.load_balancer = None; },
    "ReadAccount ReadTags ListTargetGroups ReadOwnership ConfirmOwner !DeleteTargetGroup", "OperationInProgress")]
#[case::group_not_visible(|world: &mut World| {
    world.aws.load_balancer = None;
    world.aws.hidden.insert(GROUP.into());
    requested_for(world, 0, 30);
}, "ReadAccount ReadTags ListTargetGroups", "Terminating")]
#[case::group_tags_not_visible(|world: &mut World| {
    world.aws.load_balancer = None;
    world.aws.untagged.insert(GROUP.into());
    requested_for(world, 0, 30);
}, "ReadAccount ReadTags ListTargetGroups ReadOwnership", "Terminating")]
#[tokio::test]
async fn target_groups_are_deleted_after_the_load_balancer(
    #[case] change: Change,
    #[case] steps: &str,
    #[case] reason: &str,
) {
    let mut world = World::new();
    world.delete();
    let steps = format!("ReadRegion FindLoadBalancer {steps}");
    check(world, change, &steps, reason).await;
}

/// An empty status may be a lost one, so the operator asks AWS.
#[tokio::test]
async fn deletion_without_a_status_asks_aws() {
    let mut world = World::empty();
    world.delete();
    let steps = "FindLoadBalancer ListTargetGroups";
    check(world, |_| {}, steps, "").await;
}

/// A load balancer with deletion protection follows its nodes.
#[rstest]
#[case::steady(|_: &mut World| {}, "ReadListeners ReadTargetGroups ReadOwnership ReadNodes ReadService ReadTargetHealth", true)]
#[case::new_node(|world: &mut World| world.nodes = Ok(vec!["i-1", "i-2", "i-3"]),
    "ReadListeners ReadTargetGroups ReadOwnership ReadNodes ReadService ReadTargetHealth RegisterTargets", false)]
#[case::listeners_are_refused(|world: &mut World| world.rejected.push(("ReadListeners", throttled())), "!ReadListeners", true)]
#[case::spec_is_unreadable(|world: &mut World| world.object["spec"]["tags"] = json!({ "a": "x".repeat(300 * 1024) }), "", true)]
#[tokio::test]
async fn protected_load_balancer_follows_its_nodes(
    #[case] change: Change,
    #[case] steps: &str,
    #[case] is_refused: bool,
) {
    let mut world = World::new();
    world.delete();
    let message = "AWS returned OperationNotPermitted: deletion protection is enabled";
    let protected = AwsError {
        message: message.into(),
        ..aws_error(Class::Slow, "NotPermitted", OPERATION_NOT_PERMITTED)
    };
    world.rejected = vec![("DeleteLoadBalancer", protected)];
    let steps = format!("{FOUND} ConfirmOwner !DeleteLoadBalancer {steps}");
    let (_, reconciled) = check(world, change, steps.trim(), "DeletionProtected").await;
    let report = reconciled.report();
    assert_eq!(report.requeue.is_err(), is_refused);
    let message = &report.readiness.message;
    assert!(message.contains("Key=deletion_protection.enabled,Value=false && kubectl annotate"));
}
