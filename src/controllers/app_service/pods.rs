//! Finds out why the Pods of an app do not run.

use k8s_openapi::api::core::v1::PodStatus;
use kube::ResourceExt;
use kube::core::object::Object;
use kube::core::{NotUsed, ObjectList};

use crate::controllers::pod::{self, PodProblem};

/// Pod without its spec: metadata and status.
pub type PodWithStatus = Object<NotUsed, PodStatus>;

/// Returns the problem of the app's first Pod that reports one.
pub(crate) fn problem(app: &str, pods: &ObjectList<PodWithStatus>) -> Option<PodProblem> {
    let mut problems: Vec<_> = pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none() && belongs_to(app, pod))
        .filter_map(|pod| {
            let status = pod.status.as_ref().filter(|status| !has_ended(status))?;
            let PodProblem { reason, message } = pod::problem(status)?;
            Some((
                pod.name_any(),
                PodProblem {
                    message: format!("Pod {}: {message}", pod.name_any()),
                    reason,
                },
            ))
        })
        .collect();
    problems.sort_by(|(one, _), (other, _)| one.cmp(other));
    problems.into_iter().map(|(_, problem)| problem).next()
}

/// Returns whether the Pod never runs again, such as an evicted one. The `ReplicaSet` has replaced the Pod, but the
/// apiserver may keep it for days.
fn has_ended(status: &PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Failed" | "Succeeded"))
}

/// Returns whether the Pod belongs to the app. A Pod's labels prove nothing, because any client may set them.
fn belongs_to(app: &str, pod: &PodWithStatus) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    owners.any(|owner| {
        let hash = owner
            .name
            .strip_prefix(app)
            .and_then(|rest| rest.strip_prefix('-'));
        owner.kind == "ReplicaSet" && hash.is_some_and(|hash| !hash.contains('-'))
    })
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::needless_pass_by_value
    )]

    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, status: Value) -> Value {
        let owner = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-abc12", "uid": "1" });
        json!({ "metadata": { "name": name, "ownerReferences": [owner] }, "spec": {}, "status": status })
    }

    fn list(pods: Vec<Value>) -> ObjectList<PodWithStatus> {
        serde_json::from_value(
            json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": pods }),
        )
        .unwrap()
    }

    fn waiting(reason: &str, message: &str) -> Value {
        let state = json!({ "waiting": { "reason": reason, "message": message } });
        let container = json!({ "name": "web", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state });
        json!({ "phase": "Pending", "containerStatuses": [container] })
    }

    #[test]
    fn first_problem_of_the_apps_own_pods_is_reported() {
        let mut foreign = pod("a", waiting("InvalidImageName", "x"));
        foreign["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("ownerReferences");
        let mut sibling = pod("b", waiting("InvalidImageName", "x"));
        sibling["metadata"]["ownerReferences"][0]["name"] = json!("web-two-abc12");
        let mut leaving = pod("c", waiting("InvalidImageName", "x"));
        leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let pods = list(vec![
            foreign,
            sibling,
            leaving,
            pod("web-2", waiting("CreateContainerError", "two")),
            pod("web-1", waiting("CreateContainerConfigError", "one")),
            pod("web-0", waiting("ContainerCreating", "")),
        ]);
        assert_eq!(problem("web", &pods).unwrap().message, "Pod web-1: one");
    }

    #[test]
    fn evicted_pod_hides_no_problem() {
        let state = json!({ "terminated": { "exitCode": 137, "reason": "Error" } });
        let container = json!({ "name": "web", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state });
        let evicted =
            json!({ "phase": "Failed", "reason": "Evicted", "containerStatuses": [container] });
        let evicted = pod("web-0", evicted);
        assert_eq!(problem("web", &list(vec![evicted.clone()])), None);
        let waits = pod("web-1", waiting("ErrImagePull", "not found"));
        let found = problem("web", &list(vec![evicted, waits])).unwrap();
        assert_eq!(
            (&*found.reason, &*found.message),
            (pod::PULL_BACK_OFF, "Pod web-1: not found")
        );
    }
}
