//! What is to be done about a Pod, and what its `MyApp` says of it. Pure.

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use qm_api::my_app::MyAppStatus;
use qm_core::conditions::{self, READY};
use qm_runtime::ownership::{Claim, Foreign, Owner};

use super::build::{IMAGE_MISSING, Invalid, SPEC_INVALID, Wanted};
use super::seen::{FAILED, Life, NOT_READY, PENDING, SUCCEEDED, Seen, TERMINATING, Why};

/// The reason of one whose `spec.suspend` is true.
pub const SUSPENDED: &str = "Suspended";
/// The Pod of that name is not ours.
pub const CONFLICT: &str = "Conflict";
/// The Pod's node does not exist any more.
pub const NODE_GONE: &str = "NodeGone";
/// The Pod's node is there, and does not answer.
pub const NODE_NOT_READY: &str = "NodeNotReady";

/// The namespace is being deleted.
pub const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";
/// The apiserver does not take the Pod.
pub const REFUSED: &str = "PodRefused";
/// The reasons that are ours; any other is a container's own.
pub const REASONS: [&str; 14] = [
    READY,
    IMAGE_MISSING,
    SPEC_INVALID,
    SUSPENDED,
    CONFLICT,
    NAMESPACE_TERMINATING,
    REFUSED,
    PENDING,
    NOT_READY,
    TERMINATING,
    FAILED,
    SUCCEEDED,
    NODE_NOT_READY,
    NODE_GONE,
];

/// What is to be done about a Pod.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing: it is not ours.
    Leave(Foreign),
    /// Nothing: it is being deleted.
    Wait,
    /// It is not as it is wanted, in these words: to be deleted.
    Replace(String),
    /// It has come to its end: to be deleted after a while.
    Retry,
    /// It lacks a label or a mark of ours: what it was to us before.
    Mark(Claim),
    /// Nothing: it is as it is wanted.
    Keep,
}

/// What is to be done. `lives` says whether a `MyApp` has that UID.
pub fn step(owner: &Owner, wanted: &Wanted<'_>, seen: &Seen, lives: impl Fn(&str) -> bool) -> Step {
    let claim = owner.claim(&seen.marks, lives);
    if let Claim::Foreign(foreign) = claim {
        return Step::Leave(foreign);
    }
    if seen.going {
        return Step::Wait;
    }
    if let Some(differs) = seen.differs(wanted) {
        return Step::Replace(differs);
    }
    if seen.life == Life::Ended {
        return Step::Retry;
    }
    if owner.has_marked(&seen.marks) && !seen.lacks_label() {
        Step::Keep
    } else {
        Step::Mark(claim)
    }
}

/// What a `MyApp` says of itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Standing {
    /// Its Pod, if it has one.
    pub pod: Option<Seen>,
    /// Why it is not well.
    pub why: Why,
    /// Whether it is well.
    pub ready: bool,
}

impl Standing {
    /// It has this Pod, which is as it is wanted.
    pub fn of(pod: Seen) -> Self {
        let ready = pod.life == Life::Ready;
        let why = if ready {
            Why::new(READY, format!("{} runs", pod.name()))
        } else {
            pod.why.clone()
        };
        Self {
            ready,
            why,
            pod: Some(pod),
        }
    }

    /// It is not well, for this reason.
    pub fn not(why: Why, pod: Option<Seen>) -> Self {
        Self {
            pod,
            why,
            ready: false,
        }
    }

    /// Its spec cannot be had.
    pub fn invalid(invalid: Invalid, pod: Option<Seen>) -> Self {
        Self::not(Why::new(invalid.reason(), invalid.to_string()), pod)
    }

    /// It is left alone.
    pub fn suspended(pod: Option<Seen>) -> Self {
        Self::not(
            Why::new(SUSPENDED, "spec.suspend is true: the Pod is left alone"),
            pod,
        )
    }

    /// Its Pod is being deleted.
    pub fn terminating(pod: Seen) -> Self {
        let words = format!(
            "{} is being deleted; it is made again once it is gone",
            pod.name()
        );
        Self::not(Why::new(TERMINATING, words), Some(pod))
    }

    /// Its Pod's node does not exist any more.
    pub fn node_gone(pod: Seen, node: &str) -> Self {
        let words = format!(
            "node {node} of {} is gone; the Pod is made again once it is gone too",
            pod.name()
        );
        Self::not(Why::new(NODE_GONE, words), Some(pod))
    }

    /// Its Pod's node does not answer.
    pub fn node_not_ready(pod: Seen, node: &str, said: &str) -> Self {
        let words = format!(
            "node {node} of {} is not ready ({said}): it is waited for, and nothing is deleted; if it does not come back: \
             kubectl delete node {node}",
            pod.name()
        );
        Self::not(Why::new(NODE_NOT_READY, words), Some(pod))
    }

    /// The status that says so. `before` is the one that stands.
    pub fn status(&self, before: Option<&MyAppStatus>, generation: i64, now: Time) -> MyAppStatus {
        let mut conditions = before
            .map(|before| before.conditions.clone())
            .unwrap_or_default();
        conditions::set(
            &mut conditions,
            READY,
            self.ready,
            &self.why.reason,
            &self.why.message,
            generation,
            now,
        );
        MyAppStatus {
            pod_name: self.pod.as_ref().map(|pod| pod.name().to_owned()),
            phase: self
                .pod
                .as_ref()
                .map(|pod| pod.phase.clone())
                .filter(|phase| !phase.is_empty()),
            ready: self.ready,
            observed_generation: Some(generation),
            conditions,
        }
    }
}

/// Why a node is not ready, in its own words; none if it is.
pub fn not_ready(node: &Node) -> Option<String> {
    let conditions = node
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten());
    match conditions
        .into_iter()
        .find(|condition| condition.type_ == READY)
    {
        Some(condition) if condition.status == "True" => None,
        Some(condition) => {
            let said = [&condition.reason, &condition.message]
                .map(|text| text.as_deref().unwrap_or_default());
            Some(
                said.into_iter()
                    .filter(|text| !text.is_empty())
                    .collect::<Vec<_>>()
                    .join(": "),
            )
        }
        None => Some(format!("{} says nothing of itself", node.name_any())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_api::MyApp;
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

    /// The step for the Pod that we build with this merged into it.
    fn step_for(change: &Value) -> Step {
        let app = app();
        let (owner, wanted) = (Owner::of(&app).unwrap(), build::validate(&app).unwrap());
        let mut pod = serde_json::to_value(build::pod(&owner, &wanted)).unwrap();
        merge(&mut pod, change);
        step(
            &owner,
            &wanted,
            &Seen::of(&serde_json::from_value(pod).unwrap()),
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
    #[case::as_it_is_wanted(json!({}), Step::Keep)]
    #[case::no_reference(json!({ "metadata": { "ownerReferences": null } }), Step::Mark(Claim::Ours))]
    #[case::no_label(json!({ "metadata": { "labels": null } }), Step::Mark(Claim::Ours))]
    #[case::no_label_of_its_own(json!({ "metadata": { "labels": { "app": null } } }), Step::Mark(Claim::Ours))]
    #[case::another_label(json!({ "metadata": { "labels": { "app": "other" } } }), Step::Mark(Claim::Ours))]
    #[case::as_somebody_else_made_it(json!({ "metadata": { "labels": { "app": "other" }, "annotations": { "quartermaster.dev/built-from": null } } }), Step::Keep)]
    #[case::both_stripped(unmarked("shop/other"), Step::Leave(Foreign::Promised("shop/other".into())))]
    #[case::handed_over(unmarked("shop/web"), Step::Mark(Claim::HandedOver))]
    #[case::restored(json!({ "metadata": { "labels": { "quartermaster.dev/owner-uid": "gone" }, "ownerReferences": null } }), Step::Mark(Claim::Restored))]
    #[case::going(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } }), Step::Wait)]
    #[case::going_and_other(json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z", "annotations": { "quartermaster.dev/built-from": "x" } } }), Step::Wait)]
    #[case::failed(json!({ "status": { "phase": "Failed" } }), Step::Retry)]
    #[case::ended(json!({ "status": { "phase": "Succeeded" } }), Step::Retry)]
    #[case::foreign_and_failed(json!({ "metadata": unmarked("")["metadata"], "status": { "phase": "Failed" } }), Step::Leave(Foreign::Promised(String::new())))]
    #[case::failed_and_other(json!({ "status": { "phase": "Failed" }, "metadata": { "annotations": { "quartermaster.dev/built-from": "x" } } }), Step::Replace("podSecurity is another one now".into()))]
    fn what_is_to_be_done(#[case] change: Value, #[case] wanted: Step) {
        assert_eq!(step_for(&change), wanted);
    }

    #[rstest]
    #[case::ready(json!([{ "type": "Ready", "status": "True" }]), None)]
    #[case::quiet(json!([{ "type": "MemoryPressure", "status": "False" }, { "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": "stopped posting" }]), Some("NodeStatusUnknown: stopped posting"))]
    #[case::new(json!([]), Some("n1 says nothing of itself"))]
    fn a_node(#[case] conditions: Value, #[case] said: Option<&str>) {
        let node = json!({ "metadata": { "name": "n1" }, "status": { "conditions": conditions } });
        assert_eq!(
            not_ready(&serde_json::from_value(node).unwrap()).as_deref(),
            said
        );
    }

    #[test]
    fn the_status_says_what_stands() {
        let pod: Value = json!({ "metadata": { "name": "web-pod" }, "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] } });
        let seen = Seen::of(&serde_json::from_value(pod).unwrap());
        let at = |text: &str| Time(text.parse().unwrap());
        let ready = Standing::of(seen.clone()).status(None, 3, at("2026-01-01T00:00:00Z"));
        assert!(ready.ready);
        assert_eq!(
            (ready.pod_name.as_deref(), ready.phase.as_deref()),
            (Some("web-pod"), Some("Running"))
        );
        assert_eq!(ready.observed_generation, Some(3));
        let again = Standing::of(seen.clone()).status(Some(&ready), 3, at("2026-01-01T00:00:09Z"));
        assert_eq!(again, ready, "nothing has changed, so nothing is written");
        let going = Standing::terminating(seen).status(Some(&ready), 4, at("2026-01-01T00:00:09Z"));
        assert!(!going.ready && going.phase.as_deref() == Some("Running"));
        assert_eq!(going.conditions.len(), 1);
        assert_eq!(going.conditions[0].reason, TERMINATING);
        assert_eq!(
            going.conditions[0].last_transition_time,
            at("2026-01-01T00:00:09Z")
        );
        let foreign = Standing::not(Why::new(CONFLICT, "x"), None).status(
            Some(&going),
            4,
            at("2026-01-01T00:00:09Z"),
        );
        assert_eq!((foreign.pod_name, foreign.phase), (None, None));
    }
}
