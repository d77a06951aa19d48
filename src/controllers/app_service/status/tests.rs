#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value
)]

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use qm_api::AppService;
use qm_core::kind::HasReadyCondition as _;
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn key() -> ObjectKey {
    ObjectKey::new("shop", "web")
}

fn at(text: &str) -> Time {
    Time(text.parse().unwrap())
}

fn deployment(desired: i32, observed: i64, status: Value) -> Deployment {
    let mut object = json!({
        "metadata": { "name": "web", "namespace": "shop", "generation": 3 },
        "spec": { "replicas": desired, "selector": {}, "template": {} },
        "status": { "observedGeneration": observed },
    });
    object["status"]
        .as_object_mut()
        .unwrap()
        .extend(status.as_object().unwrap().clone());
    serde_json::from_value(object).unwrap()
}

fn counts(replicas: i32, updated: i32, available: i32) -> Value {
    json!({ "replicas": replicas, "updatedReplicas": updated, "availableReplicas": available })
}

fn condition(type_: &str, status: &str, reason: &str, message: &str) -> Value {
    json!({ "conditions": [{ "type": type_, "status": status, "reason": reason, "message": message }] })
}

fn both(one: Value, other: &Value) -> Value {
    let mut both = one;
    both.as_object_mut()
        .unwrap()
        .extend(other.as_object().unwrap().clone());
    both
}

fn pull() -> PodProblem {
    PodProblem {
        reason: "ImagePullBackOff".into(),
        message: "not found".into(),
    }
}

#[rstest]
#[case::complete(2, 3, counts(2, 2, 2), true, "Ready", "all 2 Pods are available")]
#[case::one(1, 3, counts(1, 1, 1), true, "Ready", "the Pod is available")]
#[case::none_desired(0, 3, json!({}), true, "Ready", "no Pods are desired")]
#[case::not_observed_yet(
    2,
    2,
    counts(2, 2, 2),
    false,
    "Progressing",
    "2 of 2 Pods are available"
)]
#[case::not_started(2, 3, json!({}), false, "Progressing", "0 of 2 Pods are available")]
#[case::some(
    3,
    3,
    counts(3, 3, 1),
    false,
    "Progressing",
    "1 of 3 Pods are available"
)]
#[case::old_pods(
    2,
    3,
    counts(3, 2, 2),
    false,
    "Progressing",
    "outdated Pods still exist: 1"
)]
#[case::more_than_desired(
    1,
    3,
    counts(2, 2, 2),
    false,
    "Progressing",
    "1 of 1 Pods are available"
)]
#[case::old_pods_serve(
    2,
    3,
    counts(3, 1, 2),
    false,
    "Progressing",
    "outdated Pods still exist: 2"
)]
#[case::quota(2, 3, both(counts(1, 1, 1), &condition("ReplicaFailure", "True", "FailedCreate", "exceeded quota")), false, "FailedCreate", "exceeded quota")]
#[case::paused(2, 3, both(counts(2, 0, 2), &condition("Progressing", "Unknown", "DeploymentPaused", "Deployment is paused")), false, "DeploymentPaused", "Deployment is paused; to resume: kubectl rollout resume deployment/web -n shop")]
#[case::resumed(2, 3, both(counts(2, 2, 1), &condition("Progressing", "Unknown", "DeploymentResumed", "Deployment is resumed")), false, "Progressing", "1 of 2 Pods are available")]
#[case::late(2, 3, both(counts(2, 2, 1), &condition("Progressing", "False", "ProgressDeadlineExceeded", "timed out")), false, "ProgressDeadlineExceeded", "timed out")]
#[case::late_before(2, 2, both(counts(2, 2, 1), &condition("Progressing", "False", "ProgressDeadlineExceeded", "timed out")), false, "Progressing", "1 of 2 Pods are available")]
#[case::quota_over(2, 3, both(counts(2, 2, 2), &condition("ReplicaFailure", "True", "FailedCreate", "exceeded quota")), true, "Ready", "all 2 Pods are available")]
fn deployment_gives_the_outcome(
    #[case] desired: i32,
    #[case] observed: i64,
    #[case] status: Value,
    #[case] ready: bool,
    #[case] reason: &str,
    #[case] message: &str,
) {
    let outcome = Rollout::of(&deployment(desired, observed, status)).outcome(&key(), None);
    assert_eq!(
        (
            outcome.progress == Progress::Ready,
            &*outcome.reason,
            &*outcome.message
        ),
        (ready, reason, message)
    );
}

#[test]
fn pod_problem_is_reported_unless_the_deployment_explains_it() {
    let reason = |status: Value, observed: i64| {
        Rollout::of(&deployment(2, observed, status))
            .outcome(&key(), Some(pull()))
            .reason
    };
    assert_eq!(reason(counts(2, 2, 1), 3), "ImagePullBackOff");
    assert_eq!(reason(counts(2, 2, 2), 3), "Ready");
    assert_eq!(
        reason(counts(2, 2, 1), 2),
        "Progressing",
        "these Pods have another spec"
    );
    let late = condition(
        "Progressing",
        "False",
        "ProgressDeadlineExceeded",
        "timed out",
    );
    assert_eq!(reason(both(counts(2, 2, 1), &late), 3), "ImagePullBackOff");
    let quota = condition("ReplicaFailure", "True", "FailedCreate", "exceeded quota");
    assert_eq!(reason(both(counts(1, 1, 0), &quota), 3), "FailedCreate");
}

#[test]
fn status_mirrors_the_deployment_and_the_service() {
    let conditions = json!([
        { "type": "Available", "status": "True", "reason": "MinimumReplicasAvailable", "message": "m",
          "lastTransitionTime": "2026-01-01T00:00:00Z", "lastUpdateTime": "2026-01-01T00:00:01Z" },
    ]);
    let deployment = deployment(
        2,
        3,
        json!({ "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 1, "unavailableReplicas": 1,
            "collisionCount": 1, "terminatingReplicas": 1, "conditions": conditions }),
    );
    let service = json!({ "metadata": {}, "spec": { "clusterIP": "10.0.0.7", "ports": [
        { "port": 80, "targetPort": 80, "nodePort": 30002, "protocol": "TCP" },
        { "name": "dns", "port": 53, "nodePort": 0, "protocol": "UDP" },
    ] } });
    let service = ServiceSummary::of(&serde_json::from_value(service).unwrap());
    let rollout = Rollout::of(&deployment);
    let outcome = rollout.outcome(&key(), None);
    let mut status = AppServiceStatus::default();
    fill_status(&mut status, "web", Some(rollout), Some(service));
    set_ready(&mut status, &outcome, 7, "2026-01-02T00:00:00Z");
    insta::assert_yaml_snapshot!(status);
}

fn set_ready(status: &mut AppServiceStatus, outcome: &Outcome, generation: i64, now: &str) {
    AppService::set_ready_condition(status, &outcome.condition(), generation, at(now));
}

#[test]
fn ready_condition_keeps_its_time_while_its_status_is_the_same() {
    let mut status = AppServiceStatus::default();
    let mut report = |outcome: &Outcome, generation, now| {
        fill_status(&mut status, "web", None, None);
        set_ready(&mut status, outcome, generation, now);
        status.clone()
    };
    report(
        &Outcome::failed("Conflict", "no"),
        1,
        "2026-01-01T00:00:00Z",
    );
    let after = report(
        &Outcome::in_progress("Progressing", "soon"),
        2,
        "2026-01-02T00:00:00Z",
    );
    let ready = after.condition(READY).unwrap();
    assert_eq!(ready.last_transition_time, Some(at("2026-01-01T00:00:00Z")));
    assert_eq!(
        (ready.reason.as_deref(), ready.observed_generation),
        (Some("Progressing"), Some(2))
    );
    let progressing = Outcome::in_progress("Progressing", "soon");
    let unchanged = report(&progressing, 2, "2026-01-02T12:00:00Z");
    assert_eq!(unchanged, after, "an unchanged outcome needs no write");
    let well = Outcome::ready("\u{e4}".repeat(2000));
    let last = report(&well, 2, "2026-01-03T00:00:00Z");
    let ready = last.condition(READY).unwrap();
    assert_eq!(ready.last_transition_time, Some(at("2026-01-03T00:00:00Z")));
    assert_eq!(
        (ready.message.as_ref().unwrap().len(), last.conditions.len()),
        (1024, 1)
    );
    assert_eq!(
        report(&well, 2, "2026-01-04T00:00:00Z"),
        last,
        "nothing to write"
    );
}

#[rstest]
#[case::active("True", 999, true, None)]
#[case::not_reconciled("Unknown", 999, true, None)]
#[case::new("False", 0, true, Some(300))]
#[case::for_less_than_the_grace_period("False", 299, true, Some(1))]
#[case::for_the_grace_period("False", 300, false, None)]
#[case::clock_is_ahead("False", -60, true, Some(300))]
fn app_stays_ready_within_the_grace_period_of_inactive_scaling(
    #[case] active: &str,
    #[case] seconds: i64,
    #[case] ready: bool,
    #[case] remaining: Option<u64>,
) {
    let now: Timestamp = "2026-01-01T01:00:00Z".parse().unwrap();
    let since = Timestamp::from_second(now.as_second() - seconds).unwrap();
    let conditions = json!([
        { "type": "AbleToScale", "status": "True" },
        { "type": "ScalingActive", "status": active, "message": "no metrics", "lastTransitionTime": since.to_string() },
    ]);
    let autoscaler =
        serde_json::from_value(json!({ "metadata": {}, "status": { "conditions": conditions } }))
            .unwrap();
    let inactive = InactiveScaling::of(&autoscaler);
    assert_eq!(inactive.is_some(), active == "False");
    let (well, grace) = (Outcome::ready("well"), Duration::from_mins(5));
    let after = |seconds: Option<u64>| {
        seconds.map_or(Requeue::OnChange, |seconds| {
            Requeue::After(Duration::from_secs(seconds))
        })
    };
    let outcome = with_scaling(well.clone(), inactive.as_ref(), None, grace, now);
    assert_eq!(
        (outcome.progress == Progress::Ready, outcome.requeue),
        (ready, after(remaining))
    );
    assert_eq!(outcome.reason, if ready { READY } else { SCALING_INACTIVE });
    assert_eq!(outcome.message.contains("no metrics"), active == "False");
    let crash = Outcome::failed("CrashLoopBackOff", "crashes");
    let outcome = with_scaling(crash, inactive.as_ref(), None, grace, now);
    assert_eq!(
        (&*outcome.reason, outcome.requeue),
        ("CrashLoopBackOff", Requeue::OnChange),
        "the Pods' problem comes first"
    );
    if inactive.is_some() {
        let outcome = with_scaling(well, inactive.as_ref(), Some(now), grace, now);
        assert_eq!(
            (outcome.progress, outcome.requeue),
            (Progress::Ready, Requeue::After(grace)),
            "the Pods have only just become available"
        );
    }
}
