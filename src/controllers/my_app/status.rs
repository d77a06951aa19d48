//! The status of a `MyApp`: reasons and messages for each state of its Pod. Pure.

use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;
use qm_core::conditions::READY;
use qm_runtime::error::{
    CHILD_TERMINATING, CONFLICT, FORBIDDEN, NAMESPACE_TERMINATING, QUOTA_EXCEEDED, WRITE_FAILED,
    WRITE_REJECTED,
};
use qm_runtime::outcome::{EventPolicy, Outcome, Requeue, SPEC_INVALID, SUSPENDED};

use super::build::IMAGE_MISSING;
use super::pod_state::{FAILED, NOT_READY, PENDING, PodLifecycle, PodState, SUCCEEDED};

/// Reason of an app whose Pod is on a node that no longer exists.
pub(crate) const NODE_NOT_FOUND: &str = "NodeNotFound";
/// Reason of an app whose Pod is on a node that is not ready.
pub(crate) const NODE_NOT_READY: &str = "NodeNotReady";

/// The operator's own reasons; any other comes from the Pod's conditions or a container.
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

/// Reports a Pod that matches the desired state.
pub(crate) fn outcome_of(pod: &PodState) -> Outcome {
    if pod.lifecycle == PodLifecycle::Ready {
        return Outcome::ready(format!("{} runs", pod.name())).event(EventPolicy::OnRecovery);
    }
    let (reason, message) = (pod.why.reason.clone(), pod.why.message.clone());
    if pod.why.is_transient() {
        Outcome::in_progress(reason, message)
    } else {
        Outcome::failed(reason, message)
    }
}

/// Reports a Pod that is being deleted.
pub(crate) fn terminating(pod: &PodState) -> Outcome {
    let message = format!(
        "{} is being deleted; the operator recreates it afterwards",
        pod.name()
    );
    Outcome::in_progress(CHILD_TERMINATING, message).requeue(Requeue::Poll)
}

/// Reports a Pod whose node no longer exists.
pub(crate) fn node_not_found(pod: &PodState, node: &str) -> Outcome {
    let message = format!(
        "node {node} of {} no longer exists; the operator recreates the Pod once Kubernetes has deleted it",
        pod.name()
    );
    Outcome::failed(NODE_NOT_FOUND, message).requeue(Requeue::Poll)
}

/// Reports a Pod whose node is not ready.
pub(crate) fn node_not_ready(pod: &PodState, node: &str, why: &str) -> Outcome {
    let message = format!(
        "node {node} of {} is not ready ({why}); the Pod waits for the node. If the node is gone for good: \
         kubectl delete node {node}",
        pod.name()
    );
    Outcome::failed(NODE_NOT_READY, message).requeue(Requeue::Poll)
}

/// Returns the node's own message about why the node is not ready; `None` if it is ready.
pub(crate) fn node_problem(node: &Node) -> Option<String> {
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

    use qm_runtime::outcome::Progress;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::ready(json!([{ "type": "Ready", "status": "True" }]), None)]
    #[case::quiet(json!([{ "type": "MemoryPressure", "status": "False" }, { "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "stopped posting" }]), Some("NodeStatusUnknown: stopped posting"))]
    #[case::new(json!([]), Some("n1 has no condition Ready"))]
    fn node_is_not_ready(#[case] conditions: Value, #[case] expected: Option<&str>) {
        let node = json!({ "metadata": { "name": "n1" }, "status": { "conditions": conditions } });
        assert_eq!(
            node_problem(&serde_json::from_value(node).unwrap()).as_deref(),
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
