//! Decides the next step for the Pod of a `MyApp`. Pure.

use k8s_openapi::api::core::v1::Pod;
use kube::core::ObjectMeta;
use qm_runtime::ObjectKey;
use qm_runtime::child_cache::ConfirmedMatch;
use qm_runtime::children::{ChildAction, DesiredChild};
use qm_runtime::ownership::{Owner, Ownership};

use super::build::{self, APP, DesiredPod};
use super::pod_state::{PodLifecycle, PodState};

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

    /// Returns `None` for a Pod of which only the metadata was decoded: its read fails, and the app reports the error.
    fn cached_metadata<'s>(&self, pod: &'s PodState) -> Option<&'s ObjectMeta> {
        pod.is_whole.then_some(&pod.metadata)
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_api::MyApp;
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

    /// The Pod without a spec would count as one with another image, and be deleted.
    #[test]
    fn pod_that_was_not_decoded_is_read() {
        let app = app();
        let (owner, desired) = (Owner::of(&app).unwrap(), build::validate(&app).unwrap());
        let whole = build::pod(&owner, &desired);
        let reduced = Pod {
            spec: None,
            ..whole.clone()
        };
        let plan = PodPlan {
            owner: &owner,
            desired,
        };
        for (pod, is_decided) in [(whole, true), (reduced, false)] {
            let state = PodState::of(&pod);
            assert_eq!(plan.cached_metadata(&state).is_some(), is_decided);
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
}
