//! Why a Pod does not run, from what the kubelet and the scheduler say of it, and how a Pod fits the restricted profile: one
//! rule for all who run Pods. Pure.

use k8s_openapi::api::core::v1::{
    Capabilities, ContainerStatus, PodSecurityContext, PodStatus, SeccompProfile, SecurityContext,
};

/// User of a Pod under the restricted profile: nobody in particular. An image's own user will not do, because it may be root
/// or a name, and the kubelet then refuses to start it.
const USER: i64 = 65_532;

/// Returns what a Pod says so that it fits the restricted profile
/// (<https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted>).
pub fn restricted_pod() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".into(),
            localhost_profile: None,
        }),
        ..PodSecurityContext::default()
    }
}

/// Returns what each container of such a Pod says.
pub fn restricted_container() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".into()]),
            add: None,
        }),
        ..SecurityContext::default()
    }
}

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
pub struct PodProblem {
    /// The kubelet's or the scheduler's own word.
    pub reason: String,
    /// Their words.
    pub message: String,
}

/// Why a Pod of this status does not run; none while it is on its way, or runs.
pub fn problem(status: &PodStatus) -> Option<PodProblem> {
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
        .find(|problem| is_reason(&problem.reason))
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
                    "container {} ended with exit code {} ({why}) and is started again",
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
        // The one quotes the other.
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

/// Whether it may be a condition's reason
/// (<https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/condition-v1-meta/>).
pub fn is_reason(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"_,:".contains(&byte);
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.ends_with(|last: char| last.is_ascii_alphanumeric() || last == '_')
        && text.bytes().all(inner)
        && text.len() <= 1024
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
    #[case::on_the_way(waiting("ContainerCreating", ""), None)]
    #[case::its_init(waiting("PodInitializing", ""), None)]
    #[case::runs(container(json!({ "state": { "running": {} }, "ready": true, "restartCount": 3, "lastState": { "terminated": { "exitCode": 1 } } })), None)]
    #[case::not_ready_yet(container(json!({ "state": { "running": {} } })), None)]
    #[case::pull(waiting("ErrImagePull", "rpc error: not found"), Some(("ImagePullBackOff", "rpc error: not found")))]
    #[case::back_off(waiting("ImagePullBackOff", "Back-off pulling image \"x\": ErrImagePull: rpc error: not found"), Some(("ImagePullBackOff", "rpc error: not found")))]
    #[case::old_back_off(waiting("ImagePullBackOff", "Back-off pulling image \"x\""), Some(("ImagePullBackOff", "Back-off pulling image \"x\"")))]
    #[case::config(waiting("CreateContainerConfigError", "secret \"x\" not found"), Some(("CreateContainerConfigError", "secret \"x\" not found")))]
    #[case::crash(container(json!({ "restartCount": 3, "state": { "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 40s restarting" } }, "lastState": { "terminated": { "exitCode": 7, "reason": "Error" } } })), Some(("CrashLoopBackOff", "container web ended with exit code 7 (Error) and is started again")))]
    #[case::between_crashes(container(json!({ "restartCount": 4, "state": { "running": {} }, "lastState": { "terminated": { "exitCode": 7, "reason": "Error" } } })), None)]
    #[case::first_crash(container(json!({ "state": { "terminated": { "exitCode": 137, "reason": "OOMKilled" } } })), Some(("CrashLoopBackOff", "container web ended with exit code 137 (OOMKilled) and is started again")))]
    #[case::done(container(json!({ "state": { "terminated": { "exitCode": 0, "reason": "Completed" } } })), None)]
    #[case::no_reason(waiting("my reason", "x"), None)]
    #[case::crash_unexplained(waiting("CrashLoopBackOff", "back-off 10s"), Some(("CrashLoopBackOff", "back-off 10s")))]
    #[case::no_node(json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes are available" }] }), Some(("Unschedulable", "0/1 nodes are available")))]
    #[case::scheduled(json!({ "conditions": [{ "type": "PodScheduled", "status": "True" }] }), None)]
    fn what_is_said_of_a_pod(#[case] status: Value, #[case] said: Option<(&str, &str)>) {
        let found = problem(&serde_json::from_value(status).unwrap());
        assert_eq!(
            found,
            said.map(|(reason, words)| PodProblem {
                reason: reason.into(),
                message: words.into()
            })
        );
    }
}
