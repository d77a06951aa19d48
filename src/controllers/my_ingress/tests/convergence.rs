//! Properties: reconciles converge and leave unowned resources unchanged, whatever AWS has and rejects.

use std::time::Duration;

use proptest::prelude::*;
use qm_api::common::{ADOPT_BY, OWNER_UID};
use qm_aws::error::INVALID_TARGET;
use qm_aws::{AwsError, Tags};
use qm_runtime::ObjectKey;
use qm_runtime::error::Class;
use qm_runtime::outcome::{Progress, Requeue};
use rstest::rstest;
use serde_json::{Value, json};

use super::super::tags::CLUSTER;
use super::fake::{
    GROUP, LISTENER, LOAD_BALANCER, UNKNOWN_CERTIFICATE, World, aws_error, http, owner_tags, tags,
};

/// Steps that AWS may reject.
const CALLS: [&str; 21] = [
    "FindLoadBalancer",
    "ReadTags",
    "ReadListeners",
    "ReadTargetGroups",
    "ReadOwnership",
    "FindTargetGroup",
    "ReadTargetHealth",
    "CreateLoadBalancer",
    "AddTags",
    "RemoveTags",
    "SetSubnets",
    "SetSecurityGroups",
    "DeleteLoadBalancer",
    "CreateTargetGroup",
    "SetHealthCheck",
    "RegisterTargets",
    "DeregisterTargets",
    "DeleteTargetGroup",
    "CreateListener",
    "ModifyListener",
    "DeleteListener",
];

fn some_tags() -> impl Strategy<Value = Tags> {
    prop_oneof![
        4 => Just(owner_tags()),
        1 => Just(tags(&[(CLUSTER, "c1"), (OWNER_UID, "u1"), ("theirs", "x")])),
        1 => Just(tags(&[(ADOPT_BY, "shop/web")])),
        1 => Just(tags(&[("theirs", "x")])),
        1 => Just(Tags::new()),
    ]
}

fn some_spec() -> impl Strategy<Value = Value> {
    let listeners = prop::sample::subsequence(vec![80_u16, 81, 82], 0..=3);
    let subnets = prop::sample::subsequence(vec!["subnet-1", "subnet-2", "subnet-3"], 2..=3);
    let path = prop::option::of(Just("/healthz"));
    (listeners, subnets, path, any::<bool>()).prop_map(|(ports, subnets, path, is_tagged)| {
        let listener = |port| {
            let mut listener = http(port);
            if let Some(path) = path {
                listener["healthCheckPath"] = json!(path);
            }
            listener
        };
        let tags = if is_tagged {
            json!({ "a": "1" })
        } else {
            json!({})
        };
        let listeners: Vec<_> = ports.into_iter().map(listener).collect();
        json!({ "subnets": subnets, "tags": tags, "listeners": listeners })
    })
}

fn some_error() -> impl Strategy<Value = (&'static str, AwsError)> {
    let error = prop_oneof![
        Just(aws_error(Class::Transient, "Throttled", "Throttling")),
        Just(aws_error(
            Class::Terminal,
            "SpecRejected",
            "ValidationError"
        )),
        Just(aws_error(
            Class::Slow,
            "NotPermitted",
            "OperationNotPermitted"
        )),
    ];
    (prop::sample::select(CALLS.to_vec()), error, any::<bool>()).prop_map(
        |(call, error, had_no_effect)| {
            let is_read = ["Find", "Read"].iter().any(|verb| call.starts_with(verb));
            let had_no_effect = had_no_effect || is_read;
            (
                call,
                AwsError {
                    had_no_effect,
                    ..error
                },
            )
        },
    )
}

fn some_world() -> impl Strategy<Value = World> {
    let owners = (some_tags(), some_tags(), some_tags());
    let nodes = prop::sample::subsequence(vec!["i-1", "i-2", "i-3"], 1..=3);
    let has = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    (owners, some_spec(), nodes, has).prop_map(|(owners, spec, nodes, has)| {
        let (has_load_balancer, has_listener, has_group, has_status) = has;
        let mut world = World::new();
        let (of_load_balancer, of_listener, of_group) = owners;
        world
            .aws
            .tags
            .insert(LOAD_BALANCER.into(), of_load_balancer);
        world.aws.tags.insert(LISTENER.into(), of_listener);
        world.aws.tags.insert(GROUP.into(), of_group);
        if !has_load_balancer {
            world.aws.load_balancer = None;
        }
        if !has_listener || !has_load_balancer || !has_group {
            world.aws.listeners.clear();
        }
        if !has_group {
            world.aws.groups.clear();
        }
        if !has_status {
            world.object["status"] = json!({});
        }
        world.object["spec"] = spec;
        world.nodes = Ok(nodes);
        world
    })
}

/// Reconciles until only reads are left; the fake fails the test if an unowned resource changes.
async fn converge(world: &mut World) {
    for _ in 0..6 {
        let steps = world.reconcile_and_store().await.steps;
        world.aws.health.values_mut().for_each(|health| {
            health.retain(|it| !it.is_draining());
            for target in health.iter_mut() {
                target.state = "healthy".into();
            }
        });
        if steps
            .iter()
            .all(|it| it.starts_with("Read") || it.starts_with("Find"))
        {
            return;
        }
    }
    panic!("no convergence: {:?}", world.reconcile().await.steps);
}

/// The rate limits of AWS calls may delay the steps. With a timeout of zero, each change of a listener is late.
#[tokio::test]
async fn late_reconcile_leaves_listeners_to_the_next_one() {
    let new = || {
        let mut world = World::empty();
        world.object["spec"]["listeners"] = json!([http(80), http(81), http(82)]);
        world
    };
    let mut world = new();
    // Each listener needs a target group, targets and the listener itself.
    for number in 0..8 {
        let outcome = world.reconcile_within(Duration::ZERO).await.unwrap();
        let progress = match number {
            0 => Progress::InProgress,
            _ => Progress::Unchanged,
        };
        assert_eq!(outcome.progress, progress, "{outcome:?}");
        assert_eq!(outcome.requeue, Requeue::After(Duration::ZERO));
        let (status, created) = (&world.object["status"], world.aws.load_balancer.as_ref());
        assert_eq!(status["conditions"][0]["reason"], "Provisioning");
        assert_eq!(status["alb"]["arn"], created.unwrap().arn);
        assert_eq!(status["listeners"].as_array().unwrap().len(), 3);
    }
    let outcome = world.reconcile_within(Duration::ZERO).await.unwrap();
    assert_eq!(outcome.reason, "Provisioning");
    assert_eq!((world.aws.listeners.len(), world.aws.groups.len()), (3, 3));
    assert_eq!(world.aws.created, 7, "nothing is created twice");

    let outcome = new()
        .reconcile_within(Duration::from_hours(1))
        .await
        .unwrap();
    assert_eq!(outcome.reason, "Provisioning");
}

/// A condition of the current spec stays.
#[rstest]
#[case::current_spec(1, Progress::Unchanged)]
#[case::older_spec(2, Progress::InProgress)]
#[tokio::test]
async fn late_reconcile_leaves_tags_to_the_next_one(
    #[case] generation: i64,
    #[case] progress: Progress,
) {
    let mut world = World::new();
    let outcome = world.reconcile_within(Duration::ZERO).await.unwrap();
    assert_eq!(outcome.reason, "Ready");
    world.object["metadata"]["generation"] = json!(generation);
    for arn in [LISTENER, GROUP] {
        world.aws.tags.get_mut(arn).unwrap().remove("ManagedBy");
    }
    let outcome = world.reconcile_within(Duration::ZERO).await.unwrap();
    let at_once = Requeue::After(Duration::ZERO);
    assert_eq!((outcome.progress, outcome.requeue), (progress, at_once));
    let outcome = world.reconcile_within(Duration::ZERO).await.unwrap();
    assert_eq!(outcome.reason, "Ready");
    for arn in [LISTENER, GROUP] {
        assert_eq!(world.aws.tags[arn], owner_tags());
    }
}

#[tokio::test]
async fn late_deletion_is_reported() {
    let mut world = World::new();
    world.listen(
        "arn:aws:elb:eu-1:1:listener-81",
        "arn:aws:elb:eu-1:1:group-81",
        81,
    );
    world.delete();
    let outcome = world.reconcile_within(Duration::ZERO).await.unwrap();
    assert_eq!(outcome.reason, "Terminating");
    assert_eq!(outcome.requeue, Requeue::After(Duration::ZERO));
    assert_eq!(world.aws.groups.len(), 1);
}

/// The operator does not keep the note about a removed node for as long as AWS rejects another listener.
#[tokio::test]
async fn removed_node_ends_its_warning_although_a_listener_is_rejected() {
    let mut world = World::new();
    let mut rejected = http(443);
    rejected["protocol"] = json!("HTTPS");
    rejected["certificateArn"] = json!(UNKNOWN_CERTIFICATE);
    world.object["spec"]["listeners"] = json!([http(80), rejected]);
    world.nodes = Ok(vec!["i-1", "i-2", "i-3"]);
    world.aws.rejected = ["i-3".into()].into();
    let key = ObjectKey::new("shop", "web");
    let note = format!(
        "Port 80: AWS rejected some nodes as targets: AWS returned {INVALID_TARGET}: not running: 'i-3'"
    );
    for is_new in [false, true] {
        let error = world
            .reconcile_within(Duration::from_hours(1))
            .await
            .unwrap_err();
        assert_eq!(error.classify().1, "SpecRejected", "{error}");
        assert_eq!(world.warnings.insert(&key, &note), is_new);
        world.nodes = Ok(vec!["i-1", "i-2"]);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn reconciles_converge(
        mut world in some_world(),
        refusals in prop::collection::vec(some_error(), 0..3),
        is_deleted in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for error in refusals {
                world.rejected = vec![error];
                let steps = world.reconcile_and_store().await.steps;
                let repeated = steps.iter().enumerate().any(|(at, step)| {
                    step.starts_with('!') && steps[..at].iter().filter(|it| *it == step).count() > 3
                });
                assert!(!repeated, "{steps:?}");
            }
            world.rejected.clear();
            let foreign: Vec<_> = world.aws.tags.iter()
                .filter(|(_, tags)| tags.contains_key("theirs") && tags.len() == 1)
                .map(|(arn, tags)| (arn.clone(), tags.clone()))
                .collect();
            converge(&mut world).await;
            for (arn, tags) in foreign {
                assert_eq!(world.aws.tags[&arn], tags);
            }
            if is_deleted {
                world.delete();
                let reconciled = world.reconcile().await;
                assert!(reconciled.report.is_none(), "{:?}", reconciled.report);
                let owned = |arn: &str| world.aws.tags[arn].get(OWNER_UID).is_some_and(|it| it == "u1");
                let left = world.aws.load_balancer.iter().any(|it| owned(&it.arn));
                assert!(!left);
            }
        });
    }
}
