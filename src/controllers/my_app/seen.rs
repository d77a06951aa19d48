//! What is kept of a Pod, and how it is. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodStatus};
use kube::ResourceExt;
use kube::core::ObjectMeta;
use qm_api::common::{ADOPT_BY, OWNER, OWNER_UID};
use qm_runtime::managed_fields;

use super::MANAGER;
use super::build::{APP, BANNER, BUILT_FROM, Digested, Wanted, app_name};
use crate::controllers::pod::{self, Trouble};

/// Reasons that pass by themselves: nobody need be told.
const PASSING: [&str; 4] = [
    PENDING,
    "ContainerCreating",
    "PodInitializing",
    "SchedulingGated",
];
/// Nothing is said of the Pod yet.
pub const PENDING: &str = "PodPending";
/// It runs and is not ready, and its container gives no reason.
pub const NOT_READY: &str = "PodNotReady";
/// It failed, or was evicted.
pub const FAILED: &str = "PodFailed";
/// Its container ended well, and is not started again.
pub const SUCCEEDED: &str = "PodSucceeded";
/// It is being deleted.
pub const TERMINATING: &str = "PodTerminating";

/// A Pod, as far as its `MyApp` is concerned.
#[derive(Clone, Debug, PartialEq)]
pub struct Seen {
    /// What tells whose it is.
    pub marks: ObjectMeta,
    /// The container's image.
    image: String,
    /// The last value of the container's variable, which is the one that counts. None where it is no plain value.
    banner: Option<Digested>,
    /// What we made it from; none if somebody else made it.
    built_from: Option<String>,
    /// Whether somebody gave the container another image after it was made.
    edited: bool,
    /// Its phase.
    pub phase: String,
    /// How far it is.
    pub life: Life,
    /// Whether it is being deleted.
    pub going: bool,
    /// The node that it was given.
    pub node: Option<String>,
    /// When it was made.
    pub created: Option<Timestamp>,
    /// Why it is not ready; the container's own reason where it has one.
    pub why: Why,
}

/// How far a Pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It is not ready, yet or any more.
    NotReady,
    /// It runs and is ready.
    Ready,
    /// It has come to an end from which it does not return.
    Ended,
}

/// A reason and its words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Why {
    /// In one word.
    pub reason: String,
    /// In full; may be empty.
    pub message: String,
}

impl Why {
    /// `reason`, in these words.
    pub fn new(reason: &str, message: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// Whether it passes by itself.
    fn is_passing(&self) -> bool {
        PASSING.contains(&self.reason.as_str())
    }

    /// Whether somebody should be told.
    pub fn is_news(&self) -> bool {
        !self.is_passing() && self.reason != TERMINATING
    }
}

impl Seen {
    /// What `pod` shows.
    pub fn of(pod: &Pod) -> Self {
        let name = pod.name_any();
        let none = PodStatus::default();
        let status = pod.status.as_ref().unwrap_or(&none);
        let container = pod
            .spec
            .as_ref()
            .and_then(|spec| container(&spec.containers, app_name(&name)));
        let phase = status.phase.clone().unwrap_or_default();
        let life = match phase.as_str() {
            "Failed" | "Succeeded" => Life::Ended,
            "Running" if condition(status, "Ready").is_some_and(|(well, _)| well) => Life::Ready,
            _ => Life::NotReady,
        };
        Self {
            marks: marks(&pod.metadata),
            image: container
                .and_then(|container| container.image.clone())
                .unwrap_or_default(),
            banner: container.and_then(banner),
            built_from: pod.annotations().get(BUILT_FROM).cloned(),
            // What is put in while it is admitted counts as ours.
            edited: container.is_some_and(|container| {
                let path = [
                    "f:spec",
                    "f:containers",
                    &format!("k:{{\"name\":\"{}\"}}", container.name),
                    "f:image",
                ];
                managed_fields::is_others(
                    pod.metadata.managed_fields.as_deref().unwrap_or_default(),
                    MANAGER,
                    &path,
                )
            }),
            life,
            going: pod.metadata.deletion_timestamp.is_some(),
            node: pod
                .spec
                .as_ref()
                .and_then(|spec| spec.node_name.clone())
                .filter(|node| !node.is_empty()),
            created: pod.metadata.creation_timestamp.as_ref().map(|time| time.0),
            why: why(&name, &phase, status),
            phase,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.marks.name.as_deref().unwrap_or_default()
    }

    /// In what the Pod is not as it is wanted.
    pub fn differs(&self, wanted: &Wanted<'_>) -> Option<String> {
        let other_image = self.image != wanted.image;
        let from_to = || format!("its image is {}, and is to be {}", self.image, wanted.image);
        match &self.built_from {
            // Whoever admits Pods may have another image put in: what we asked for is told by what it was made from.
            Some(built_from) if *built_from == wanted.digest() => {
                (other_image && self.edited).then(from_to)
            }
            _ if other_image => Some(from_to()),
            _ if !self.has_banner(wanted) => Some("the banner is another one now".into()),
            Some(_) => Some("podSecurity is another one now".into()),
            // Somebody else made it, under a profile of its own.
            None => None,
        }
    }

    /// Whether it lacks the label by which Services find it: ours has it, and what somebody else made is as they made it.
    pub fn lacks_label(&self) -> bool {
        let label = self
            .marks
            .labels
            .as_ref()
            .and_then(|labels| labels.get(APP));
        self.built_from.is_some() && label.map(String::as_str) != Some(app_name(self.name()))
    }

    fn has_banner(&self, wanted: &Wanted<'_>) -> bool {
        self.banner
            .as_ref()
            .is_some_and(|banner| wanted.has_banner(banner))
    }
}

/// The container that is ours: a sidecar may stand before it.
fn container<'a>(containers: &'a [Container], name: &str) -> Option<&'a Container> {
    containers
        .iter()
        .find(|container| container.name == name)
        .or(containers.first())
}

/// Document 003's program names the variable twice, first empty.
fn banner(container: &Container) -> Option<Digested> {
    match container
        .env
        .iter()
        .flatten()
        .rfind(|variable| variable.name == BANNER)
    {
        Some(variable) if variable.value_from.is_some() => None,
        Some(variable) => Some(Digested::of(variable.value.as_deref().unwrap_or_default())),
        None => Some(Digested::of("")),
    }
}

/// The rest may be long, and may change at any time.
fn marks(metadata: &ObjectMeta) -> ObjectMeta {
    let kept = |entries: &Option<BTreeMap<String, String>>| {
        let mut entries = entries.clone()?;
        entries.retain(|name, _| [APP, OWNER_UID, OWNER, ADOPT_BY].contains(&name.as_str()));
        Some(entries)
    };
    ObjectMeta {
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        labels: kept(&metadata.labels),
        annotations: kept(&metadata.annotations),
        owner_references: metadata.owner_references.clone(),
        ..ObjectMeta::default()
    }
}

/// Whether a condition is true, and why not.
fn condition(status: &PodStatus, type_: &str) -> Option<(bool, Why)> {
    let condition = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == type_)?;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Some((
        condition.status == "True",
        Why {
            reason: text(&condition.reason),
            message: text(&condition.message),
        },
    ))
}

/// The most telling thing that a Pod's status has to say of why it is not ready.
fn why(name: &str, phase: &str, status: &PodStatus) -> Why {
    match phase {
        "Failed" => return Why::new(FAILED, format!("{name} failed: {}", end(status))),
        "Succeeded" => return Why::new(SUCCEEDED, format!("{name} ended: {}", end(status))),
        _ => {}
    }
    if let Some(Trouble { reason, message }) = pod::trouble(status) {
        return Why { reason, message };
    }
    let unscheduled = condition(status, "PodScheduled")
        .filter(|(well, _)| !well)
        .map(|(_, why)| why);
    let containers = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .flatten();
    let mut passing = unscheduled
        .into_iter()
        .chain(containers.filter_map(waiting));
    passing
        .find(|why| pod::is_reason(&why.reason))
        .unwrap_or_else(|| match (phase, condition(status, "Ready")) {
            ("Running", Some((false, why))) if !why.message.is_empty() => {
                Why::new(NOT_READY, why.message)
            }
            ("Running", _) => Why::new(NOT_READY, format!("{name} runs and is not ready")),
            _ => Why::new(PENDING, format!("{name} is not running yet")),
        })
}

fn waiting(status: &ContainerStatus) -> Option<Why> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let message = waiting
        .message
        .clone()
        .unwrap_or_else(|| format!("container {} waits", status.name));
    Some(Why {
        reason: waiting.reason.clone()?,
        message,
    })
}

/// How a Pod came to its end: what the kubelet says of the Pod, or what its container says.
fn end(status: &PodStatus) -> String {
    let said = [&status.reason, &status.message].map(|text| text.as_deref().unwrap_or_default());
    let said = said
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join(": ");
    if !said.is_empty() {
        return said;
    }
    let ended = |status: &ContainerStatus| {
        let terminated = status.state.as_ref()?.terminated.as_ref()?;
        let reason = terminated.reason.as_deref().unwrap_or("Ended");
        Some(format!(
            "{reason}: container {} ended with code {}",
            status.name, terminated.exit_code
        ))
    };
    status
        .container_statuses
        .iter()
        .flatten()
        .find_map(ended)
        .unwrap_or_else(|| "no reason is given".into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: &Value, status: &Value) -> Seen {
        let metadata = json!({ "namespace": "default", "name": "web-pod", "generation": 1 });
        Seen::of(
            &serde_json::from_value(
                json!({ "metadata": metadata, "spec": spec, "status": status }),
            )
            .unwrap(),
        )
    }

    fn with(status: &Value) -> Seen {
        pod(&json!({ "containers": [{ "name": "web" }] }), status)
    }

    fn state(state: &Value) -> Value {
        json!([{ "name": "web", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state }])
    }

    fn waits(reason: &str, message: &str) -> Value {
        state(&json!({ "waiting": { "reason": reason, "message": message } }))
    }

    fn conditions(type_: &str, reason: &str, message: &str) -> Value {
        json!([{ "type": type_, "status": "False", "reason": reason, "message": message }])
    }

    #[rstest]
    #[case::nothing(json!({}), "PodPending", "web-pod is not running yet")]
    #[case::no_node(json!({ "phase": "Pending", "conditions": conditions("PodScheduled", "Unschedulable", "0/3 nodes") }), "Unschedulable", "0/3 nodes")]
    #[case::starting(json!({ "phase": "Pending", "containerStatuses": state(&json!({ "waiting": { "reason": "ContainerCreating" } })) }), "ContainerCreating", "container web waits")]
    #[case::no_image(json!({ "phase": "Pending", "containerStatuses": waits("ImagePullBackOff", "Back-off pulling") }), "ImagePullBackOff", "Back-off pulling")]
    #[case::crashes(json!({ "phase": "Running", "containerStatuses": waits("CrashLoopBackOff", "back-off 10s") }), "CrashLoopBackOff", "back-off 10s")]
    #[case::crashed(json!({ "phase": "Running", "containerStatuses": state(&json!({ "terminated": { "reason": "OOMKilled", "exitCode": 137 } })) }), "CrashLoopBackOff", "container web ended with exit code 137 (OOMKilled) and is started again")]
    #[case::not_ready(json!({ "phase": "Running", "conditions": conditions("Ready", "NodeLost", "gone quiet"), "containerStatuses": state(&json!({ "running": {} })) }), "PodNotReady", "gone quiet")]
    #[case::evicted(json!({ "phase": "Failed", "reason": "Evicted", "message": "low on memory" }), "PodFailed", "web-pod failed: Evicted: low on memory")]
    #[case::failed(json!({ "phase": "Failed", "containerStatuses": state(&json!({ "terminated": { "reason": "Error", "exitCode": 2 } })) }), "PodFailed", "web-pod failed: Error: container web ended with code 2")]
    #[case::ended(json!({ "phase": "Succeeded" }), "PodSucceeded", "web-pod ended: no reason is given")]
    #[case::no_reason_at_all(json!({ "phase": "Pending", "containerStatuses": waits("my reason", "x") }), "PodPending", "web-pod is not running yet")]
    fn why_it_is_not_ready(#[case] status: Value, #[case] reason: &str, #[case] message: &str) {
        let seen = with(&status);
        assert_eq!(seen.why, Why::new(reason, message));
        let ended = ["PodFailed", "PodSucceeded"].contains(&reason);
        assert_eq!(seen.life, if ended { Life::Ended } else { Life::NotReady });
    }

    /// A sidecar that pulls its image must not hide what the container itself complains of.
    #[test]
    fn what_lasts_is_told_before_what_passes() {
        let container = |name: &str, reason: &str| json!({ "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": { "waiting": { "reason": reason } } });
        let statuses = json!([
            container("a", "ContainerCreating"),
            container("web", "CreateContainerConfigError")
        ]);
        assert_eq!(
            with(&json!({ "phase": "Pending", "containerStatuses": statuses }))
                .why
                .reason,
            "CreateContainerConfigError"
        );
    }

    #[test]
    fn ready_is_running_and_ready() {
        let ready = json!([{ "type": "Ready", "status": "True" }]);
        assert_eq!(
            with(&json!({ "phase": "Running", "conditions": ready })).life,
            Life::Ready
        );
        assert_eq!(
            with(&json!({ "phase": "Failed", "conditions": ready })).life,
            Life::Ended
        );
    }

    const WANTED: Wanted<'_> = Wanted {
        image: "nginx",
        banner: "hello $",
        restricted: true,
    };

    /// Document 003's: `BANNER` twice, no annotation.
    fn theirs(image: &str, banner: &str) -> Seen {
        let env = json!([{ "name": "BANNER", "value": "" }, { "name": "BANNER", "value": banner }]);
        pod(
            &json!({ "containers": [{ "name": "web", "image": image, "env": env }] }),
            &json!({}),
        )
    }

    #[test]
    fn a_pod_that_was_taken_over_differs_in_image_and_banner_only() {
        assert_eq!(theirs("nginx", "hello $").differs(&WANTED), None);
        assert!(
            theirs("nginx", "hello")
                .differs(&WANTED)
                .unwrap()
                .contains("banner")
        );
        assert!(
            theirs("httpd", "hello $")
                .differs(&WANTED)
                .unwrap()
                .contains("its image is httpd, and is to be nginx")
        );
        // The first of the two does not count, and one that comes from elsewhere is another.
        assert_eq!(
            theirs("nginx", "").differs(&Wanted {
                banner: "",
                ..WANTED
            }),
            None
        );
        let none = pod(
            &json!({ "containers": [{ "name": "web", "image": "nginx" }] }),
            &json!({}),
        );
        assert_eq!(
            none.differs(&Wanted {
                banner: "",
                ..WANTED
            }),
            None
        );
        let env = json!([{ "name": "BANNER", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }]);
        let elsewhere = pod(
            &json!({ "containers": [{ "name": "web", "image": "nginx", "env": env }] }),
            &json!({}),
        );
        assert!(
            elsewhere
                .differs(&Wanted {
                    banner: "",
                    ..WANTED
                })
                .is_some()
        );
    }

    fn ours(image: &str, built_from: &Wanted<'_>, edited: bool) -> Seen {
        let annotations = json!({ BUILT_FROM: built_from.digest() });
        let said = |manager: &str| {
            json!({ "manager": manager, "operation": "Update", "fieldsV1":
            { "f:spec": { "f:containers": { "k:{\"name\":\"web\"}": { "f:image": {} } } } } })
        };
        let managed = if edited {
            json!([said("kubectl-set")])
        } else {
            json!([said(MANAGER)])
        };
        let metadata = json!({ "name": "web-pod", "annotations": annotations, "managedFields": managed,
            // A toleration, a resize: whatever else somebody changes.
            "generation": 2 });
        let sidecar = json!({ "name": "proxy", "image": "proxy" });
        let env = json!([{ "name": "BANNER", "value": built_from.banner.replace('$', "$$") }]);
        let spec =
            json!({ "containers": [sidecar, { "name": "web", "image": image, "env": env }] });
        Seen::of(&serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap())
    }

    #[rstest]
    #[case::as_it_was("nginx", WANTED, false, "")]
    #[case::another_image("httpd", Wanted { image: "httpd", ..WANTED }, false, "its image is httpd, and is to be nginx")]
    #[case::another_banner("nginx", Wanted { banner: "bye", ..WANTED }, false, "the banner is another one now")]
    #[case::another_profile("nginx", Wanted { restricted: false, ..WANTED }, false, "podSecurity is another one now")]
    // Whoever admits Pods takes images from elsewhere: such a one would be replaced for ever.
    #[case::admitted_so("mirror.example.com/nginx", WANTED, false, "")]
    #[case::edited("httpd", WANTED, true, "its image is httpd, and is to be nginx")]
    #[case::edited_elsewhere("nginx", WANTED, true, "")]
    fn a_pod_of_ours_differs_from_what_it_was_made_from(
        #[case] image: &str,
        #[case] built_from: Wanted<'_>,
        #[case] edited: bool,
        #[case] words: &str,
    ) {
        assert_eq!(
            ours(image, &built_from, edited)
                .differs(&WANTED)
                .unwrap_or_default(),
            words
        );
    }
}
