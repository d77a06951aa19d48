//! Explains from a Pod's status why the Pod does not run, and makes a Pod fit the restricted profile. Pure.

use k8s_openapi::api::core::v1::{
    Capabilities, ContainerStatus, PodSecurityContext, PodStatus, SeccompProfile, SecurityContext,
};
use qm_core::validation::is_condition_reason;

/// User of a Pod under the restricted profile. The image's own user may be root or a name, which the kubelet rejects.
const USER_ID: i64 = 65_532;

/// Returns the security context of a Pod under the restricted profile
/// (<https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted>).
pub(crate) fn restricted_pod() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(USER_ID),
        run_as_group: Some(USER_ID),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".into(),
            localhost_profile: None,
        }),
        ..PodSecurityContext::default()
    }
}

/// Returns the security context of each container under the restricted profile.
pub(crate) fn restricted_container() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".into()]),
            add: None,
        }),
        ..SecurityContext::default()
    }
}

/// Reason of a Pod without a suitable node.
pub const UNSCHEDULABLE: &str = "Unschedulable";
/// The kubelet's reasons during a normal start.
const ON_THE_WAY: [&str; 2] = ["ContainerCreating", "PodInitializing"];
/// The kubelet's reason that alternates with [`PULL_BACK_OFF`].
const PULL_FAILED: &str = "ErrImagePull";
/// Reason of an image that cannot be pulled.
pub const PULL_BACK_OFF: &str = "ImagePullBackOff";
/// Reason of a container that keeps crashing.
pub const CRASH_LOOP: &str = "CrashLoopBackOff";

/// Reason that a Pod does not run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodProblem {
    /// Reason from the kubelet or the scheduler.
    pub reason: String,
    /// Message from the kubelet or the scheduler.
    pub message: String,
}

/// Returns the problem of a Pod with this status; `None` while it starts normally, or runs.
pub(crate) fn problem(status: &PodStatus) -> Option<PodProblem> {
    let unscheduled = status.conditions.iter().flatten().find(|condition| {
        condition.type_ == "PodScheduled"
            && condition.status == "False"
            && condition.reason.as_deref() == Some(UNSCHEDULABLE)
    });
    if let Some(condition) = unscheduled {
        return Some(PodProblem {
            reason: UNSCHEDULABLE.into(),
            message: condition.message.clone().unwrap_or_default(),
        });
    }
    let containers = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .flatten();
    containers
        .filter(|container| !container.ready)
        .filter_map(of_container)
        .find(|problem| is_condition_reason(&problem.reason))
}

fn of_container(container: &ContainerStatus) -> Option<PodProblem> {
    let state = container.state.as_ref()?;
    let waiting = state.waiting.as_ref();
    let reason = waiting
        .and_then(|waiting| waiting.reason.as_deref())
        .unwrap_or_default();
    let message = waiting
        .and_then(|waiting| waiting.message.as_deref())
        .unwrap_or_default();
    let ended = state
        .terminated
        .as_ref()
        .filter(|ended| ended.exit_code != 0);
    let before = container
        .last_state
        .as_ref()
        .and_then(|last| last.terminated.as_ref());
    let last = ended.or(before);
    if reason == CRASH_LOOP || ended.is_some() {
        let message = last.map_or_else(
            || message.to_owned(),
            |last| {
                let why = last.reason.as_deref().unwrap_or("Error");
                format!(
                    "container {} exited with code {} ({why}) and restarts",
                    container.name, last.exit_code
                )
            },
        );
        return Some(PodProblem {
            reason: CRASH_LOOP.into(),
            message,
        });
    }
    if reason.is_empty() || ON_THE_WAY.contains(&reason) {
        return None;
    }
    if reason == PULL_FAILED || reason == PULL_BACK_OFF {
        // The message of the back-off quotes the error.
        let cause = message
            .split_once("ErrImagePull: ")
            .map_or(message, |(_, cause)| cause);
        return Some(PodProblem {
            reason: PULL_BACK_OFF.into(),
            message: cause.to_owned(),
        });
    }
    Some(PodProblem {
        reason: reason.to_owned(),
        message: message.to_owned(),
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

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn container(rest: Value) -> Value {
        let mut container = json!({ "name": "web", "image": "i", "imageID": "", "ready": false, "restartCount": 0 });
        container
            .as_object_mut()
            .unwrap()
            .extend(rest.as_object().unwrap().clone());
        json!({ "phase": "Pending", "containerStatuses": [container] })
    }

    fn waiting(reason: &str, message: &str) -> Value {
        container(json!({ "state": { "waiting": { "reason": reason, "message": message } } }))
    }

    #[rstest]
    #[case::no_status(json!({}), None)]
    #[case::starting(waiting("ContainerCreating", ""), None)]
    #[case::init_container(waiting("PodInitializing", ""), None)]
    #[case::runs(container(json!({ "state": { "running": {} }, "ready": true, "restartCount": 3, "lastState": { "terminated": { "exitCode": 1 } } })), None)]
    #[case::not_ready_yet(container(json!({ "state": { "running": {} } })), None)]
    #[case::pull(waiting("ErrImagePull", "rpc error: not found"), Some(("ImagePullBackOff", "rpc error: not found")))]
    #[case::back_off(waiting("ImagePullBackOff", "Back-off pulling image \"x\": ErrImagePull: rpc error: not found"), Some(("ImagePullBackOff", "rpc error: not found")))]
    #[case::old_back_off(waiting("ImagePullBackOff", "Back-off pulling image \"x\""), Some(("ImagePullBackOff", "Back-off pulling image \"x\"")))]
    #[case::config(waiting("CreateContainerConfigError", "secret \"x\" not found"), Some(("CreateContainerConfigError", "secret \"x\" not found")))]
    #[case::crash(container(json!({ "restartCount": 3, "state": { "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 40s restarting" } }, "lastState": { "terminated": { "exitCode": 7, "reason": "Error" } } })), Some(("CrashLoopBackOff", "container web exited with code 7 (Error) and restarts")))]
    #[case::between_crashes(container(json!({ "restartCount": 4, "state": { "running": {} }, "lastState": { "terminated": { "exitCode": 7, "reason": "Error" } } })), None)]
    #[case::first_crash(container(json!({ "state": { "terminated": { "exitCode": 137, "reason": "OOMKilled" } } })), Some(("CrashLoopBackOff", "container web exited with code 137 (OOMKilled) and restarts")))]
    #[case::done(container(json!({ "state": { "terminated": { "exitCode": 0, "reason": "Completed" } } })), None)]
    #[case::no_reason(waiting("my reason", "x"), None)]
    #[case::crash_unexplained(waiting("CrashLoopBackOff", "back-off 10s"), Some(("CrashLoopBackOff", "back-off 10s")))]
    #[case::no_node(json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available" }] }), Some(("Unschedulable", "0/1 nodes are available")))]
    #[case::scheduled(json!({ "conditions": [{ "type": "PodScheduled", "status": "True" }] }), None)]
    fn status_gives_the_problem(#[case] status: Value, #[case] expected: Option<(&str, &str)>) {
        let found = problem(&serde_json::from_value(status).unwrap());
        assert_eq!(
            found,
            expected.map(|(reason, message)| PodProblem {
                reason: reason.into(),
                message: message.into()
            })
        );
    }
}
