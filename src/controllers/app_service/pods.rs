//! Why Pods do not run, from what the kubelet and the scheduler say of them.

use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use kube::ResourceExt;
use kube::core::object::Object;
use kube::core::{NotUsed, ObjectList};

/// A Pod, of which only the status is read.
pub type Pod = Object<NotUsed, PodStatus>;

/// The reason of a Pod that no node takes.
pub const UNSCHEDULABLE: &str = "Unschedulable";
/// What the kubelet says while all goes as it should.
const ON_THE_WAY: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// What the kubelet says by turns with [`PULL_BACK_OFF`].
const PULL_FAILED: &str = "ErrImagePull";
/// An image that cannot be pulled.
pub const PULL_BACK_OFF: &str = "ImagePullBackOff";
/// A container that ends again and again.
pub const CRASH_LOOP: &str = "CrashLoopBackOff";

/// Why a Pod does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The kubelet's or the scheduler's own word.
    pub reason: String,
    /// Their words.
    pub message: String,
}

/// Why the Pods of the app do not run: of the first that says why. What is said of a Pod does not alternate with what the
/// kubelet tries at the moment, so that it is not news again and again.
pub fn trouble(app: &str, pods: &ObjectList<Pod>) -> Option<Trouble> {
    let mut troubles: Vec<_> = pods
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none() && is_of(app, pod))
        .filter_map(|pod| {
            let Trouble { reason, message } = of(pod.status.as_ref()?)?;
            Some((pod.name_any(), Trouble { message: format!("Pod {}: {message}", pod.name_any()), reason }))
        })
        .collect();
    troubles.sort_by(|(one, _), (other, _)| one.cmp(other));
    troubles.into_iter().map(|(_, trouble)| trouble).next()
}

/// Anybody may give a Pod the label that the Deployment selects by.
fn is_of(app: &str, pod: &Pod) -> bool {
    let mut owners = pod.metadata.owner_references.iter().flatten();
    owners.any(|owner| {
        let hash = owner.name.strip_prefix(app).and_then(|rest| rest.strip_prefix('-'));
        owner.kind == "ReplicaSet" && hash.is_some_and(|hash| !hash.contains('-'))
    })
}

fn of(status: &PodStatus) -> Option<Trouble> {
    let unscheduled = status.conditions.iter().flatten().find(|condition| {
        condition.type_ == "PodScheduled"
            && condition.status == "False"
            && condition.reason.as_deref() == Some(UNSCHEDULABLE)
    });
    if let Some(condition) = unscheduled {
        return Some(Trouble { reason: UNSCHEDULABLE.into(), message: condition.message.clone().unwrap_or_default() });
    }
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    containers.filter(|container| !container.ready).find_map(of_container)
}

fn of_container(container: &ContainerStatus) -> Option<Trouble> {
    let state = container.state.as_ref()?;
    let waiting = state.waiting.as_ref();
    let reason = waiting.and_then(|waiting| waiting.reason.as_deref()).unwrap_or_default();
    let message = waiting.and_then(|waiting| waiting.message.as_deref()).unwrap_or_default();
    let last = container.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    if reason == CRASH_LOOP || (reason.is_empty() && container.restart_count > 0 && last.is_some()) {
        let message = last.map_or_else(
            || message.to_owned(),
            |last| {
                let why = last.reason.as_deref().unwrap_or("Error");
                format!(
                    "container {} ended with exit code {} ({why}) and is started again",
                    container.name, last.exit_code
                )
            },
        );
        return Some(Trouble { reason: CRASH_LOOP.into(), message });
    }
    if reason.is_empty() || ON_THE_WAY.contains(&reason) {
        return None;
    }
    if reason == PULL_FAILED || reason == PULL_BACK_OFF {
        // The one quotes the other.
        let cause = message.split_once("ErrImagePull: ").map_or(message, |(_, cause)| cause);
        return Some(Trouble { reason: PULL_BACK_OFF.into(), message: cause.to_owned() });
    }
    Some(Trouble { reason: reason.to_owned(), message: message.to_owned() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::needless_pass_by_value)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, status: Value) -> Value {
        let owner = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-abc12", "uid": "1" });
        json!({ "metadata": { "name": name, "ownerReferences": [owner] }, "spec": {}, "status": status })
    }

    fn list(pods: Vec<Value>) -> ObjectList<Pod> {
        serde_json::from_value(json!({ "apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": pods })).unwrap()
    }

    fn container(rest: Value) -> Value {
        let mut container = json!({ "name": "web", "image": "i", "imageID": "", "ready": false, "restartCount": 0 });
        container.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        json!({ "phase": "Pending", "containerStatuses": [container] })
    }

    fn waiting(reason: &str, message: &str) -> Value {
        container(json!({ "state": { "waiting": { "reason": reason, "message": message } } }))
    }

    #[rstest]
    #[case::no_status(json!({}), None)]
    #[case::on_the_way(waiting("ContainerCreating", ""), None)]
    #[case::its_init(waiting("PodInitializing", ""), None)]
    #[case::runs(container(json!({ "state": { "running": {} }, "ready": true, "restartCount": 3, "lastState": { "terminated": { "exitCode": 1 } } })), None)]
    #[case::not_ready_yet(container(json!({ "state": { "running": {} } })), None)]
    #[case::pull(waiting("ErrImagePull", "rpc error: not found"), Some(("ImagePullBackOff", "rpc error: not found")))]
    #[case::back_off(waiting("ImagePullBackOff", "Back-off pulling image \"x\": ErrImagePull: rpc error: not found"), Some(("ImagePullBackOff", "rpc error: not found")))]
    #[case::old_back_off(waiting("ImagePullBackOff", "Back-off pulling image \"x\""), Some(("ImagePullBackOff", "Back-off pulling image \"x\"")))]
    #[case::config(waiting("CreateContainerConfigError", "secret \"x\" not found"), Some(("CreateContainerConfigError", "secret \"x\" not found")))]
    #[case::crash(container(json!({ "restartCount": 3, "state": { "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 40s restarting" } }, "lastState": { "terminated": { "exitCode": 7, "reason": "Error" } } })), Some(("CrashLoopBackOff", "container web ended with exit code 7 (Error) and is started again")))]
    #[case::between_crashes(container(json!({ "restartCount": 4, "state": { "running": {} }, "lastState": { "terminated": { "exitCode": 7, "reason": "Error" } } })), Some(("CrashLoopBackOff", "container web ended with exit code 7 (Error) and is started again")))]
    #[case::crash_unexplained(waiting("CrashLoopBackOff", "back-off 10s"), Some(("CrashLoopBackOff", "back-off 10s")))]
    #[case::no_node(json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available" }] }), Some(("Unschedulable", "0/1 nodes are available")))]
    #[case::scheduled(json!({ "conditions": [{ "type": "PodScheduled", "status": "True" }] }), None)]
    fn what_is_said_of_a_pod(#[case] status: Value, #[case] said: Option<(&str, &str)>) {
        let found = trouble("web", &list(vec![pod("web-abc12-1", status)]));
        let said =
            said.map(|(reason, words)| Trouble { reason: reason.into(), message: format!("Pod web-abc12-1: {words}") });
        assert_eq!(found, said);
    }

    #[test]
    fn the_first_that_says_why_and_is_of_the_app() {
        let mut foreign = pod("a", waiting("InvalidImageName", "x"));
        foreign["metadata"].as_object_mut().unwrap().remove("ownerReferences");
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
        assert_eq!(trouble("web", &pods).unwrap().message, "Pod web-1: one");
    }
}
