//! Decides the next step for the Pod of a `MyApp`, and the condition. Pure.

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::core::ObjectMeta;
use qm_core::conditions::READY;
use qm_runtime::ObjectKey;
use qm_runtime::child_cache::ConfirmedMatch;
use qm_runtime::children::{ChildAction, DesiredChild};
use qm_runtime::error::{
    CHILD_TERMINATING, CONFLICT, FORBIDDEN, NAMESPACE_TERMINATING, QUOTA_EXCEEDED, WRITE_FAILED,
    WRITE_REJECTED,
};
use qm_runtime::outcome::{EventPolicy, Outcome, Requeue, SPEC_INVALID, SUSPENDED};
use qm_runtime::ownership::{Owner, Ownership};

use super::build::{self, APP, DesiredPod, IMAGE_MISSING};
use super::pod_state::{FAILED, NOT_READY, PENDING, PodLifecycle, PodState, SUCCEEDED};

/// Reason of an app whose Pod is on a node that no longer exists.
pub(crate) const NODE_NOT_FOUND: &str = "NodeNotFound";
/// Reason of an app whose Pod is on a node that is not ready.
pub(crate) const NODE_NOT_READY: &str = "NodeNotReady";

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

/// The Pod that a `MyApp` needs. A Pod is never applied: most of its fields are immutable, and admission plugins and
/// the kubelet write others.
pub(crate) struct PodPlan<'a> {
    pub owner: &'a Owner,
    pub desired: DesiredPod<'a>,
}

impl DesiredChild<Pod, PodState> for PodPlan<'_> {
    fn key(&self) -> ObjectKey {
        build::pod_key(self.owner.namespace(), self.owner.name())
    }

    /// Returns no digest, because the Pod's status counts too.
    fn digest(&self) -> &'static str {
        ""
    }

    fn build(&self) -> Pod {
        build::pod(self.owner, &self.desired)
    }

    fn plan(
        &self,
        live: &Pod,
        _: &Ownership,
        _: Option<&ConfirmedMatch>,
    ) -> Option<ChildAction<'_, Pod>> {
        self.plan_cached(&PodState::of(live))
    }

    fn cached_metadata<'s>(&self, pod: &'s PodState) -> Option<&'s ObjectMeta> {
        Some(&pod.metadata)
    }

    fn plan_cached(&self, pod: &PodState) -> Option<ChildAction<'_, Pod>> {
        if let Some(difference) = pod.difference(&self.desired) {
            return Some(ChildAction::Delete(difference));
        }
        let is_owned = self.owner.has_ownership(&pod.metadata) && !pod.lacks_label();
        // The controller deletes a Pod that has ended, after a delay.
        if is_owned || pod.lifecycle == PodLifecycle::Ended {
            return None;
        }
        let mut patch = self.owner.ownership_patch(&pod.metadata);
        if pod.lacks_label() {
            patch["labels"][APP] = self.owner.name().into();
        }
        Some(ChildAction::Patch(patch))
    }

    fn matched(&self, _: &Pod) -> Option<ConfirmedMatch> {
        None
    }

    /// Returns `false`: the controller reports a recreation itself, because the status of the `MyApp` shows even after a
    /// restart whether the app had a Pod.
    fn reports_recreation(&self) -> bool {
        false
    }
}

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

    fn app() -> MyApp {
        serde_json::from_value(json!({
            "apiVersion": "demo.rtfm.co.ua/v1", "kind": "MyApp",
            "metadata": { "namespace": "shop", "name": "web", "uid": "ours" },
            "spec": { "image": "nginx", "banner": "hello" },
        }))
        .unwrap()
    }

    /// Returns the action for the desired Pod with this change: "keep", a patch of the labels, or why it is deleted.
    fn planned(change: &Value) -> Value {
        let app = app();
        let (owner, desired) = (Owner::of(&app).unwrap(), build::validate(&app).unwrap());
        let mut pod = serde_json::to_value(build::pod(&owner, &desired)).unwrap();
        merge(&mut pod, change);
        let plan = PodPlan {
            owner: &owner,
            desired,
        };
        let pod = serde_json::from_value(pod).unwrap();
        match plan.plan(&pod, &Ownership::Owned, None) {
            None => json!("keep"),
            Some(ChildAction::Patch(patch)) => {
                assert_eq!(patch["ownerReferences"][0]["uid"], "ours");
                patch["labels"].clone()
            }
            Some(ChildAction::Delete(why)) => why.into(),
            Some(_) => panic!("no action for a Pod"),
        }
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

    const OWNER_UID: &str = "quartermaster.dev/owner-uid";

    #[rstest]
    #[case::matching(json!({}), json!("keep"))]
    #[case::no_reference(json!({ "metadata": { "ownerReferences": null } }), json!({ OWNER_UID: "ours" }))]
    #[case::no_label(json!({ "metadata": { "labels": null } }), json!({ OWNER_UID: "ours", "app": "web" }))]
    #[case::no_label_of_its_own(json!({ "metadata": { "labels": { "app": null } } }), json!({ OWNER_UID: "ours", "app": "web" }))]
    #[case::another_label(json!({ "metadata": { "labels": { "app": "other" } } }), json!({ OWNER_UID: "ours", "app": "web" }))]
    #[case::created_by_another_client(json!({ "metadata": { "labels": { "app": "other" }, "annotations": { "quartermaster.dev/spec-digest": null } } }), json!("keep"))]
    #[case::adoptable(json!({ "metadata": { "labels": { OWNER_UID: null }, "ownerReferences": null, "annotations": { "quartermaster.dev/adopt-by": "shop/web" } } }), json!({ OWNER_UID: "ours" }))]
    #[case::restored(json!({ "metadata": { "labels": { OWNER_UID: "gone" }, "ownerReferences": null } }), json!({ OWNER_UID: "ours" }))]
    #[case::failed(json!({ "status": { "phase": "Failed" } }), json!("keep"))]
    #[case::ended_without_a_label(json!({ "status": { "phase": "Succeeded" }, "metadata": { "labels": null } }), json!("keep"))]
    #[case::failed_and_different(json!({ "status": { "phase": "Failed" }, "metadata": { "annotations": { "quartermaster.dev/spec-digest": "x" } } }), json!("podSecurity has changed"))]
    fn next_action_for_a_pod(#[case] change: Value, #[case] expected: Value) {
        assert_eq!(planned(&change), expected);
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
