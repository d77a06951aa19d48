//! Decides the next step for the Pod of a `MyApp`, and the condition. Pure.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use qm_core::conditions::READY;
use qm_runtime::error::{
    CHILD_TERMINATING, CONFLICT, FORBIDDEN, NAMESPACE_TERMINATING, QUOTA_EXCEEDED, WRITE_FAILED,
    WRITE_REJECTED,
};
use qm_runtime::outcome::{EventPolicy, Outcome, Requeue, SPEC_INVALID, SUSPENDED};
use qm_runtime::ownership::{ForeignOwner, Owner, Ownership};

use super::build::{DesiredPod, IMAGE_MISSING};
use super::pod_state::{FAILED, NOT_READY, PENDING, PodLifecycle, PodState, SUCCEEDED};

/// Reason of an app whose Pod is on a node that no longer exists.
pub const NODE_NOT_FOUND: &str = "NodeNotFound";
/// Reason of an app whose Pod is on a node that is not ready.
pub const NODE_NOT_READY: &str = "NodeNotReady";

/// The operator's own reasons; any other comes from a container.
pub const REASONS: [&str; 17] = [
    READY,
    IMAGE_MISSING,
    SPEC_INVALID,
    SUSPENDED,
    CONFLICT,
    NAMESPACE_TERMINATING,
    FORBIDDEN,
    QUOTA_EXCEEDED,
    WRITE_REJECTED,
    WRITE_FAILED,
    PENDING,
    NOT_READY,
    CHILD_TERMINATING,
    FAILED,
    SUCCEEDED,
    NODE_NOT_READY,
    NODE_NOT_FOUND,
];

/// Next step for a Pod.
#[derive(Clone, Debug, PartialEq)]
pub enum PodStep {
    /// The Pod is not owned.
    Ignore(ForeignOwner),
    /// The Pod is being deleted.
    Wait,
    /// The Pod differs from the desired state in this field: delete it.
    Replace(String),
    /// The Pod has ended: delete it after a delay.
    Recreate,
    /// The Pod lacks a label, or an ownership mark. Contains the claim from before.
    RestoreOwnership(Ownership),
    /// The Pod matches.
    Keep,
}

/// Returns the next step. `exists` returns whether a `MyApp` has that UID.
pub fn next(
    owner: &Owner,
    desired: &DesiredPod<'_>,
    pod: &PodState,
    exists: impl Fn(&str) -> bool,
) -> PodStep {
    let claim = owner.ownership(&pod.ownership, exists);
    if let Ownership::Foreign(foreign) = claim {
        return PodStep::Ignore(foreign);
    }
    if pod.is_terminating {
        return PodStep::Wait;
    }
    if let Some(difference) = pod.difference(desired) {
        return PodStep::Replace(difference);
    }
    if pod.lifecycle == PodLifecycle::Ended {
        return PodStep::Recreate;
    }
    if owner.has_ownership(&pod.ownership) && !pod.lacks_label() {
        PodStep::Keep
    } else {
        PodStep::RestoreOwnership(claim)
    }
}

/// Reports a Pod that matches the desired state.
pub fn outcome_of(pod: &PodState) -> Outcome {
    if pod.lifecycle == PodLifecycle::Ready {
        return Outcome::ready(format!("{} runs", pod.name())).event(EventPolicy::OnRecovery);
    }
    let (reason, message) = (pod.why.reason.clone(), pod.why.message.clone());
    if pod.why.is_passing() {
        Outcome::in_progress(reason, message)
    } else {
        Outcome::failed(reason, message)
    }
}

/// Reports a Pod that is being deleted.
pub fn terminating(pod: &PodState) -> Outcome {
    let message = format!(
        "{} is being deleted; the operator recreates it afterwards",
        pod.name()
    );
    Outcome::in_progress(CHILD_TERMINATING, message).requeue(Requeue::Poll)
}

/// Reports a Pod whose node no longer exists.
pub fn node_not_found(pod: &PodState, node: &str) -> Outcome {
    let message = format!(
        "node {node} of {} no longer exists; the operator recreates the Pod once it is deleted",
        pod.name()
    );
    Outcome::failed(NODE_NOT_FOUND, message).requeue(Requeue::Poll)
}

/// Reports a Pod whose node is not ready.
pub fn node_not_ready(pod: &PodState, node: &str, why: &str) -> Outcome {
    let message = format!(
        "node {node} of {} is not ready ({why}), and the Pod stays until the node is ready; if the node does not return: \
         kubectl delete node {node}",
        pod.name()
    );
    Outcome::failed(NODE_NOT_READY, message).requeue(Requeue::Poll)
}

/// Returns why a node is not ready, in its own words; `None` if it is ready.
pub fn not_ready(node: &Node) -> Option<String> {
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    let Some(ready) = conditions
        .into_iter()
        .find(|condition| condition.type_ == READY)
    else {
        return Some(format!("{} has no condition {READY}", node.name_any()));
    };
    let texts = [&ready.reason, &ready.message].map(|text| text.as_deref().unwrap_or_default());
    let texts: Vec<_> = texts.into_iter().filter(|text| !text.is_empty()).collect();
    (ready.status != "True").then(|| texts.join(": "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_api::MyApp;
    use qm_runtime::outcome::Progress;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::controllers::my_app::build;

    fn app() -> MyApp {
        serde_json::from_value(json!({
            "apiVersion": "demo.rtfm.co.ua/v1", "kind": "MyApp",
            "metadata": { "namespace": "shop", "name": "web", "uid": "ours" },
            "spec": { "image": "nginx", "banner": "hello" },
        }))
        .unwrap()
    }

    /// Returns the step for the desired Pod with this change.
    fn step_for(change: &Value) -> PodStep {
        let app = app();
        let (owner, desired) = (Owner::of(&app).unwrap(), build::validate(&app).unwrap());
        let mut pod = serde_json::to_value(build::pod(&owner, &desired)).unwrap();
        merge(&mut pod, change);
        next(
            &owner,
            &desired,
            &PodState::of(&serde_json::from_value(pod).unwrap()),
            |uid| uid == "lives",
        )
    }

    fn merge(into: &mut Value, change: &Value) {
        match change {
            Value::Object(change) => change.iter().for_each(|(key, value)| match value {
                Value::Null => drop(into.as_object_mut().unwrap().remove(key)),
                _ => merge(&mut into[key], value),
            }),
            _ => *into = change.clone(),
        }
    }

    fn unmarked(adopt_by: &str) -> Value {
        let annotations = json!({ "quartermaster.dev/adopt-by": adopt_by });
        json!({ "metadata": { "labels": null, "ownerReferences": null, "annotations": annotations } })
    }

    #[rstest]
    #[case::matching(json!({}), PodStep::Keep)]
    #[case::no_reference(json!({ "metadata": { "ownerReferences": null } }), PodStep::RestoreOwnership(Ownership::Owned))]
    #[case::no_label(json!({ "metadata": { "labels": null } }), PodStep::RestoreOwnership(Ownership::Owned))]
    #[case::no_label_of_its_own(json!({ "metadata": { "labels": { "app": null } } }), PodStep::RestoreOwnership(Ownership::Owned))]
    #[case::another_label(json!({ "metadata": { "labels": { "app": "other" } } }), PodStep::RestoreOwnership(Ownership::Owned))]
    #[case::created_by_another_client(json!({ "metadata": { "labels": { "app": "other" }, "annotations": { "quartermaster.dev/spec-digest": null } } }), PodStep::Keep)]
    #[case::both_stripped(unmarked("shop/other"), PodStep::Ignore(ForeignOwner::Promised("shop/other".into())))]
    #[case::adoptable(unmarked("shop/web"), PodStep::RestoreOwnership(Ownership::Adoptable))]
    #[case::restored(json!({ "metadata": { "labels": { "quartermaster.dev/owner-uid": "gone" }, "ownerReferences": null } }), PodStep::RestoreOwnership(Ownership::Restored))]
    #[case::terminating(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }), PodStep::Wait)]
    #[case::terminating_and_different(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": { "quartermaster.dev/spec-digest": "x" } } }), PodStep::Wait)]
    #[case::failed(json!({ "status": { "phase": "Failed" } }), PodStep::Recreate)]
    #[case::ended(json!({ "status": { "phase": "Succeeded" } }), PodStep::Recreate)]
    #[case::foreign_and_failed(json!({ "metadata": unmarked("")["metadata"], "status": { "phase": "Failed" } }), PodStep::Ignore(ForeignOwner::Promised(String::new())))]
    #[case::failed_and_different(json!({ "status": { "phase": "Failed" }, "metadata": { "annotations": { "quartermaster.dev/spec-digest": "x" } } }), PodStep::Replace("podSecurity has changed".into()))]
    fn next_step_for_a_pod(#[case] change: Value, #[case] expected: PodStep) {
        assert_eq!(step_for(&change), expected);
    }

    #[rstest]
    #[case::ready(json!([{ "type": "Ready", "status": "True" }]), None)]
    #[case::quiet(json!([{ "type": "MemoryPressure", "status": "False" }, { "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "stopped posting" }]), Some("NodeStatusUnknown: stopped posting"))]
    #[case::new(json!([]), Some("n1 has no condition Ready"))]
    fn node_is_not_ready(#[case] conditions: Value, #[case] expected: Option<&str>) {
        let node = json!({ "metadata": { "name": "n1" }, "status": { "conditions": conditions } });
        assert_eq!(
            not_ready(&serde_json::from_value(node).unwrap()).as_deref(),
            expected
        );
    }

    #[rstest]
    #[case::ready("Running", "True", "", ("Ready", Progress::Ready, EventPolicy::OnRecovery))]
    #[case::pending("Pending", "False", "", (PENDING, Progress::InProgress, EventPolicy::Never))]
    #[case::not_ready("Running", "False", "", (NOT_READY, Progress::Failed, EventPolicy::OnReason))]
    #[case::crashing("Running", "False", "CrashLoopBackOff", ("CrashLoopBackOff", Progress::Failed, EventPolicy::OnReason))]
    fn outcome_of_a_pod(
        #[case] phase: &str,
        #[case] ready: &str,
        #[case] waits: &str,
        #[case] expected: (&str, Progress, EventPolicy),
    ) {
        let container =
            json!({ "name": "web", "ready": false, "state": { "waiting": { "reason": waits } } });
        let containers = if waits.is_empty() {
            json!([])
        } else {
            json!([container])
        };
        let pod = json!({ "metadata": { "name": "web-pod" }, "status": { "phase": phase,
            "conditions": [{ "type": "Ready", "status": ready }], "containerStatuses": containers } });
        let outcome = outcome_of(&PodState::of(&serde_json::from_value(pod).unwrap()));
        assert_eq!(
            (&*outcome.reason, outcome.progress, outcome.event),
            expected
        );
    }
}
