//! The observed state of a Pod. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, Pod, PodStatus};
use kube::ResourceExt;
use kube::core::ObjectMeta;
use qm_api::common::{ADOPT_BY, OWNER, OWNER_UID};
use qm_core::validation::is_condition_reason;
use qm_runtime::managed_fields;

use super::build::{APP, BANNER, DesiredPod, Digested, SPEC_DIGEST, app_name};
use crate::controllers::pod::{self, PodProblem};

/// Field manager of the controller's writes.
pub(crate) const FIELD_MANAGER: &str = "quartermaster/myapp";
/// Maximum size of a cached image, in bytes.
const MAX_IMAGE: usize = 4096;
/// Reasons of a Pod that is starting.
const STARTING: [&str; 4] = [
    PENDING,
    "ContainerCreating",
    "PodInitializing",
    "SchedulingGated",
];
/// Reason of a Pod that is starting without a more specific reason.
pub const PENDING: &str = "PodPending";
/// Reason of a Pod that runs and is not ready, whose container gives no reason.
pub(crate) const NOT_READY: &str = "PodNotReady";
/// Reason of a Pod that failed or was evicted.
pub(crate) const FAILED: &str = "PodFailed";
/// Reason of a Pod whose container exited with code 0 and is not restarted.
pub(crate) const SUCCEEDED: &str = "PodSucceeded";

/// Cached summary of a Pod.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct PodState {
    /// Identity, ownership and deletion of the Pod.
    pub metadata: ObjectMeta,
    /// False if only the Pod's metadata was decoded; the other fields are then unknown.
    pub is_whole: bool,
    /// The container's image, truncated to [`MAX_IMAGE`] bytes, which no image of a spec has.
    image: String,
    /// The last value of the container's variable, as the kubelet uses it; `None` if it is not a plain value.
    banner: Option<Digested>,
    /// Digest of the desired state that the Pod was created from; `None` if another client created it.
    spec_digest: Option<String>,
    /// Whether another client has changed the container's image since the Pod was created.
    is_edited: bool,
    /// The Pod's phase; may be empty.
    pub phase: String,
    pub(crate) lifecycle: PodLifecycle,
    /// The node that the scheduler chose.
    pub node: Option<String>,
    pub created: Option<Timestamp>,
    /// Why the Pod is not ready: the container's reason if there is one.
    pub why: PodReason,
}

/// Stage of a Pod's lifecycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodLifecycle {
    NotReady,
    /// The Pod runs and is ready.
    Ready,
    /// The Pod succeeded or failed for good.
    Ended,
}

/// A condition's reason and message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PodReason {
    pub reason: String,
    /// May be empty.
    pub message: String,
}

impl PodReason {
    fn new(reason: &str, message: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            message: message.into(),
        }
    }

    /// Returns whether the reason is transient: the Pod is starting.
    pub(crate) fn is_transient(&self) -> bool {
        STARTING.contains(&self.reason.as_str())
    }
}

impl PodState {
    /// Extracts the summary.
    pub fn of(pod: &Pod) -> Self {
        let name = pod.name_any();
        let none = PodStatus::default();
        let status = pod.status.as_ref().unwrap_or(&none);
        let container = pod
            .spec
            .as_ref()
            .and_then(|spec| container(&spec.containers, app_name(&name)));
        let phase = status.phase.clone().unwrap_or_default();
        let lifecycle = match phase.as_str() {
            "Failed" | "Succeeded" => PodLifecycle::Ended,
            "Running" if condition(status, "Ready").is_some_and(|(well, _)| well) => {
                PodLifecycle::Ready
            }
            _ => PodLifecycle::NotReady,
        };
        Self {
            metadata: kept_metadata(&pod.metadata),
            // The apiserver stores no Pod without a spec.
            is_whole: pod.spec.is_some(),
            image: container
                .and_then(|container| container.image.as_deref())
                .map(|image| image[..image.floor_char_boundary(MAX_IMAGE)].to_owned())
                .unwrap_or_default(),
            banner: container.and_then(banner),
            spec_digest: pod.annotations().get(SPEC_DIGEST).cloned(),
            is_edited: container.is_some_and(|container| is_edited(&pod.metadata, &container.name)),
            lifecycle,
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

    pub fn name(&self) -> &str {
        self.metadata.name.as_deref().unwrap_or_default()
    }

    /// Returns how the Pod differs from the desired state.
    pub fn difference(&self, desired: &DesiredPod<'_>) -> Option<String> {
        let other_image = self.image != desired.image;
        let from_to = || {
            format!(
                "its image is {}, and the spec says {}",
                self.image, desired.image
            )
        };
        match &self.spec_digest {
            // Admission may replace the image, so only the digest shows the requested one.
            Some(spec_digest) if *spec_digest == desired.digest() => {
                (other_image && self.is_edited).then(from_to)
            }
            _ if other_image => Some(from_to()),
            _ if !self.has_banner(desired) => Some("the banner has changed".into()),
            Some(_) => Some("podSecurity has changed".into()),
            // An adopted Pod may have another profile.
            None => None,
        }
    }

    /// Returns whether a Pod that the operator created lacks the label that Services select by.
    pub(crate) fn lacks_label(&self) -> bool {
        let label = self
            .metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(APP));
        self.spec_digest.is_some() && label.map(String::as_str) != Some(app_name(self.name()))
    }

    fn has_banner(&self, desired: &DesiredPod<'_>) -> bool {
        let is_adopted = self.spec_digest.is_none();
        self.banner
            .as_ref()
            .is_some_and(|banner| desired.has_banner(banner, is_adopted))
    }
}

/// Returns the app's container: a sidecar may precede it.
fn container<'a>(containers: &'a [Container], name: &str) -> Option<&'a Container> {
    containers
        .iter()
        .find(|container| container.name == name)
        .or(containers.first())
}

/// Returns whether another client has changed the container's image since the Pod was created. Changes by admission
/// count as the creator's. A client that creates the Pod from a backup, or applies the same image, changes nothing.
fn is_edited(metadata: &ObjectMeta, container: &str) -> bool {
    let item = format!("k:{{\"name\":\"{container}\"}}");
    let image = ["f:spec", "f:containers", &item, "f:image"];
    let managed = metadata.managed_fields.as_deref().unwrap_or_default();
    if managed_fields::is_owned_by(managed, FIELD_MANAGER, &image) {
        return false;
    }
    // The creator keeps the rest of the container. The times have whole seconds, so they cannot show a change in the
    // second of the creation.
    let is_creator = managed_fields::is_owned_by(managed, FIELD_MANAGER, &image[..3]);
    let created = metadata.creation_timestamp.as_ref();
    let owned_since = managed_fields::owners(managed, &image).map(|entry| entry.time.as_ref());
    owned_since
        .min()
        .is_some_and(|first| is_creator || first > created)
}

/// Returns the banner. The tutorial's Kopf operator (document 003) sets the variable twice, first empty.
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

/// Returns the metadata that decisions depend on: the rest may be long and change at any time.
fn kept_metadata(metadata: &ObjectMeta) -> ObjectMeta {
    let kept = |entries: &Option<BTreeMap<String, String>>| {
        let mut entries = entries.clone()?;
        entries.retain(|name, _| [APP, OWNER_UID, OWNER, ADOPT_BY].contains(&name.as_str()));
        Some(entries)
    };
    ObjectMeta {
        namespace: metadata.namespace.clone(),
        name: metadata.name.clone(),
        uid: metadata.uid.clone(),
        deletion_timestamp: metadata.deletion_timestamp.clone(),
        labels: kept(&metadata.labels),
        annotations: kept(&metadata.annotations),
        owner_references: metadata.owner_references.clone(),
        ..ObjectMeta::default()
    }
}

/// Returns whether a condition is true, and why not.
fn condition(status: &PodStatus, type_: &str) -> Option<(bool, PodReason)> {
    let condition = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == type_)?;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    Some((
        condition.status == "True",
        PodReason {
            reason: text(&condition.reason),
            message: text(&condition.message),
        },
    ))
}

/// Returns the most specific reason in the Pod's status for not being ready.
fn why(name: &str, phase: &str, status: &PodStatus) -> PodReason {
    match phase {
        "Failed" => return PodReason::new(FAILED, format!("{name} failed: {}", end(status))),
        "Succeeded" => return PodReason::new(SUCCEEDED, format!("{name} exited: {}", end(status))),
        _ => {}
    }
    if let Some(PodProblem { reason, message }) = pod::problem(status) {
        return PodReason { reason, message };
    }
    let unscheduled = condition(status, "PodScheduled")
        .filter(|(well, _)| !well)
        .map(|(_, why)| why);
    let containers = status
        .init_container_statuses
        .iter()
        .chain(&status.container_statuses)
        .flatten();
    let mut waits = unscheduled
        .into_iter()
        .chain(containers.filter_map(waiting));
    waits
        .find(|why| is_condition_reason(&why.reason))
        .unwrap_or_else(|| match (phase, condition(status, "Ready")) {
            ("Running", Some((false, why))) if !why.message.is_empty() => {
                PodReason::new(NOT_READY, why.message)
            }
            ("Running", _) => PodReason::new(NOT_READY, format!("{name} runs and is not ready")),
            _ => PodReason::new(PENDING, format!("{name} is not running yet")),
        })
}

fn waiting(status: &ContainerStatus) -> Option<PodReason> {
    let waiting = status.state.as_ref()?.waiting.as_ref()?;
    let message = waiting
        .message
        .clone()
        .unwrap_or_else(|| format!("container {} waits", status.name));
    Some(PodReason {
        reason: waiting.reason.clone()?,
        message,
    })
}

/// Returns why a Pod ended, from the Pod's or its container's status.
fn end(status: &PodStatus) -> String {
    let texts = [&status.reason, &status.message].map(|text| text.as_deref().unwrap_or_default());
    let texts = texts
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join(": ");
    if !texts.is_empty() {
        return texts;
    }
    let ended = |status: &ContainerStatus| {
        let terminated = status.state.as_ref()?.terminated.as_ref()?;
        let reason = terminated.reason.as_deref().unwrap_or("Ended");
        Some(format!(
            "{reason}: container {} exited with code {}",
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

    fn pod(spec: &Value, status: &Value) -> PodState {
        let metadata = json!({ "namespace": "default", "name": "web-pod", "generation": 1 });
        PodState::of(
            &serde_json::from_value(
                json!({ "metadata": metadata, "spec": spec, "status": status }),
            )
            .unwrap(),
        )
    }

    fn with(status: &Value) -> PodState {
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
    #[case::crashed(json!({ "phase": "Running", "containerStatuses": state(&json!({ "terminated": { "reason": "OOMKilled", "exitCode": 137 } })) }), "CrashLoopBackOff", "container web exited with code 137 (OOMKilled) and restarts")]
    #[case::not_ready(json!({ "phase": "Running", "conditions": conditions("Ready", "NodeLost", "gone quiet"), "containerStatuses": state(&json!({ "running": {} })) }), "PodNotReady", "gone quiet")]
    #[case::evicted(json!({ "phase": "Failed", "reason": "Evicted", "message": "low on memory" }), "PodFailed", "web-pod failed: Evicted: low on memory")]
    #[case::failed(json!({ "phase": "Failed", "containerStatuses": state(&json!({ "terminated": { "reason": "Error", "exitCode": 2 } })) }), "PodFailed", "web-pod failed: Error: container web exited with code 2")]
    #[case::ended(json!({ "phase": "Succeeded" }), "PodSucceeded", "web-pod exited: no reason is given")]
    #[case::no_reason_at_all(json!({ "phase": "Pending", "containerStatuses": waits("my reason", "x") }), "PodPending", "web-pod is not running yet")]
    fn reason_of_a_pod_that_is_not_ready(
        #[case] status: Value,
        #[case] reason: &str,
        #[case] message: &str,
    ) {
        let pod = with(&status);
        assert_eq!(pod.why, PodReason::new(reason, message));
        let ended = ["PodFailed", "PodSucceeded"].contains(&reason);
        assert_eq!(
            pod.lifecycle,
            if ended {
                PodLifecycle::Ended
            } else {
                PodLifecycle::NotReady
            }
        );
    }

    /// A sidecar that pulls its image must not hide the problem of the app's container.
    #[test]
    fn lasting_problem_precedes_a_transient_one() {
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
    fn pod_is_ready_if_it_runs_and_is_ready() {
        let ready = json!([{ "type": "Ready", "status": "True" }]);
        assert_eq!(
            with(&json!({ "phase": "Running", "conditions": ready })).lifecycle,
            PodLifecycle::Ready
        );
        assert_eq!(
            with(&json!({ "phase": "Failed", "conditions": ready })).lifecycle,
            PodLifecycle::Ended
        );
    }

    const DESIRED: DesiredPod<'_> = DesiredPod {
        image: "nginx",
        banner: "hello $$",
        restricted: true,
    };

    /// Returns a Pod of the tutorial's Kopf operator (document 003): `BANNER` twice, no annotation.
    fn adopted_pod(image: &str, banner: &str) -> PodState {
        let env = json!([{ "name": "BANNER", "value": "" }, { "name": "BANNER", "value": banner }]);
        pod(
            &json!({ "containers": [{ "name": "web", "image": image, "env": env }] }),
            &json!({}),
        )
    }

    #[test]
    fn adopted_pod_differs_only_in_image_and_banner() {
        assert_eq!(adopted_pod("nginx", "hello $$").difference(&DESIRED), None);
        assert!(
            adopted_pod("nginx", "hello")
                .difference(&DESIRED)
                .unwrap()
                .contains("banner")
        );
        assert!(
            adopted_pod("httpd", "hello $$")
                .difference(&DESIRED)
                .unwrap()
                .contains("its image is httpd, and the spec says nginx")
        );
        // The first of the two variables does not count, and a variable from another source differs.
        assert_eq!(
            adopted_pod("nginx", "").difference(&DesiredPod {
                banner: "",
                ..DESIRED
            }),
            None
        );
        let none = pod(
            &json!({ "containers": [{ "name": "web", "image": "nginx" }] }),
            &json!({}),
        );
        assert_eq!(
            none.difference(&DesiredPod {
                banner: "",
                ..DESIRED
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
                .difference(&DesiredPod {
                    banner: "",
                    ..DESIRED
                })
                .is_some()
        );
    }

    const CREATED: &str = "2026-01-01T00:00:00Z";
    const LATER: &str = "2026-01-01T00:00:01Z";

    /// Returns an entry of `managedFields` that owns these fields of the container.
    fn entry(manager: &str, operation: &str, time: &str, fields: &[&str]) -> Value {
        let fields: Value = fields
            .iter()
            .map(|it| ((*it).to_owned(), json!({})))
            .collect();
        json!({ "manager": manager, "operation": operation, "time": time, "fieldsV1":
            { "f:spec": { "f:containers": { "k:{\"name\":\"web\"}": fields } } } })
    }

    /// Fields of the container in the entry of its creator.
    const CONTAINER: [&str; 3] = [".", "f:image", "f:name"];
    /// Fields that the creator keeps after another client has changed the image.
    const REST: [&str; 2] = [".", "f:name"];

    fn owned_pod(image: &str, recorded: &DesiredPod<'_>, edited: bool) -> PodState {
        let managed = if edited {
            json!([
                entry(FIELD_MANAGER, "Update", CREATED, &REST),
                entry("kubectl-set", "Update", LATER, &["f:image"]),
            ])
        } else {
            json!([entry(FIELD_MANAGER, "Update", CREATED, &CONTAINER)])
        };
        pod_of_managers(image, recorded, &managed)
    }

    fn pod_of_managers(image: &str, recorded: &DesiredPod<'_>, managed: &Value) -> PodState {
        let annotations = json!({ SPEC_DIGEST: recorded.digest() });
        let metadata = json!({ "name": "web-pod", "annotations": annotations, "managedFields": managed,
            "creationTimestamp": CREATED,
            // Fields that other clients may change.
            "generation": 2 });
        let sidecar = json!({ "name": "proxy", "image": "proxy" });
        let env = json!([{ "name": "BANNER", "value": recorded.banner.replace('$', "$$") }]);
        let spec =
            json!({ "containers": [sidecar, { "name": "web", "image": image, "env": env }] });
        PodState::of(
            &serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap(),
        )
    }

    #[rstest]
    #[case::unchanged("nginx", DESIRED, false, "")]
    #[case::another_image("httpd", DesiredPod { image: "httpd", ..DESIRED }, false, "its image is httpd, and the spec says nginx")]
    #[case::another_banner("nginx", DesiredPod { banner: "bye", ..DESIRED }, false, "the banner has changed")]
    // The variable of this Pod is `hello $$`.
    #[case::another_escape("nginx", DesiredPod { banner: "hello $", ..DESIRED }, false, "the banner has changed")]
    #[case::another_profile("nginx", DesiredPod { restricted: false, ..DESIRED }, false, "podSecurity has changed")]
    // Admission may replace images: comparing them would replace such a Pod forever.
    #[case::changed_by_admission("mirror.example.com/nginx", DESIRED, false, "")]
    #[case::edited("httpd", DESIRED, true, "its image is httpd, and the spec says nginx")]
    #[case::edited_elsewhere("nginx", DESIRED, true, "")]
    fn owned_pod_differs_from_its_digest(
        #[case] image: &str,
        #[case] recorded: DesiredPod<'_>,
        #[case] edited: bool,
        #[case] expected: &str,
    ) {
        assert_eq!(
            owned_pod(image, &recorded, edited)
                .difference(&DESIRED)
                .unwrap_or_default(),
            expected
        );
    }

    /// Admission has replaced the image of the Pod, so that only `managedFields` show an edit.
    #[rstest]
    #[case::created(json!([entry(FIELD_MANAGER, "Update", CREATED, &CONTAINER)]), false)]
    #[case::edited(json!([
        entry(FIELD_MANAGER, "Update", CREATED, &REST),
        entry("kubectl-set", "Update", LATER, &["f:image"]),
    ]), true)]
    #[case::edited_in_the_second_of_its_creation(json!([
        entry(FIELD_MANAGER, "Update", CREATED, &REST),
        entry("kubectl-set", "Update", CREATED, &["f:image"]),
    ]), true)]
    #[case::applied_with_the_same_image(json!([
        entry(FIELD_MANAGER, "Update", CREATED, &CONTAINER),
        entry("kubectl", "Apply", LATER, &CONTAINER),
    ]), false)]
    #[case::applied_with_another_image(json!([
        entry(FIELD_MANAGER, "Update", CREATED, &REST),
        entry("kubectl", "Apply", LATER, &CONTAINER),
    ]), true)]
    #[case::restored(json!([entry("velero-server", "Update", CREATED, &CONTAINER)]), false)]
    #[case::restored_and_applied(json!([
        entry("velero-server", "Update", CREATED, &CONTAINER),
        entry("kubectl", "Apply", LATER, &CONTAINER),
    ]), false)]
    #[case::restored_and_edited(json!([
        entry("velero-server", "Update", CREATED, &REST),
        entry("kubectl-set", "Update", LATER, &["f:image"]),
    ]), true)]
    fn image_of_another_client_is_an_edit(#[case] managed: Value, #[case] is_edited: bool) {
        let pod = pod_of_managers("nginx@sha256:1", &DESIRED, &managed);
        assert_eq!(pod.difference(&DESIRED).is_some(), is_edited);
    }
}
