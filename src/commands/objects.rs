//! Lists of the objects of all kinds, and their summaries.

use std::fmt;

use anyhow::Context as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::ListParams;
use kube::core::{DynamicObject, ObjectMeta, PartialObjectMeta};
use kube::{Api, Client, ResourceExt};
use qm_api::common::{NAMES, WAITING};
use qm_api::tracked_field::{Delivery, Entry, History, from_waiting, waiting};
use qm_api::tracked_field_set::SET;
use qm_core::conditions::READY;
use qm_core::kind::KindInfo;
use qm_core::readiness::{Readiness, from_condition};
use qm_runtime::outcome::SUSPENDED;
use qm_runtime::ownership::owner_of;
use qm_runtime::pages::all_pages;
use serde::Serialize;
use serde_json::Value;

use super::printer::Colour;
use super::{FailedRequest, has_code};
use crate::controllers;
use crate::controllers::contact_point::status::OUTCOMES_RECORDED;
use crate::controllers::tracked_field;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) enum ObjectState {
    Ready,
    NotReady,
    /// Messages are Pending, and none has failed.
    Delivering,
    Suspended,
    Terminating,
    /// The status does not report the current spec.
    #[default]
    NotObserved,
}

impl ObjectState {
    pub(crate) fn colour(self) -> Colour {
        match self {
            Self::Ready => Colour::Green,
            Self::NotReady => Colour::Red,
            _ => Colour::Yellow,
        }
    }
}

impl From<Readiness> for ObjectState {
    fn from(ready: Readiness) -> Self {
        match ready {
            Readiness::True => Self::Ready,
            Readiness::False => Self::NotReady,
            Readiness::Unknown => Self::NotObserved,
        }
    }
}

impl fmt::Display for ObjectState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A change that is Pending.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Undelivered {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) time: Option<jiff::Timestamp>,
    pub(crate) action: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<String>,
}

/// Summary of an object for the commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ObjectSummary {
    pub(crate) kind: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Name of the set that owns a `TrackedField`. A report removes the name of a set that does not exist.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) set: Option<String>,
    pub(crate) state: ObjectState,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
    /// Start of the state, or time of the oldest Pending change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<jiff::Timestamp>,
    /// Number of Pending changes.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) pending: usize,
    /// Number of failed changes in the history.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) failed: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_undelivered: Option<Undelivered>,
    /// Blockers of the deletion.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) blockers: Vec<String>,
    #[serde(skip)]
    pub(crate) created: Option<jiff::Timestamp>,
    #[serde(skip)]
    pub(crate) uid: String,
    #[serde(skip)]
    pub(crate) finalizers: Vec<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_zero(number: &usize) -> bool {
    *number == 0
}

impl ObjectSummary {
    pub(crate) fn new(kind: &KindInfo, object: &DynamicObject) -> Self {
        let metadata = &object.metadata;
        let mut summary = Self {
            kind: kind.resource().kind,
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            created: metadata.creation_timestamp.as_ref().map(|time| time.0),
            uid: object.uid().unwrap_or_default(),
            finalizers: object.finalizers().to_vec(),
            ..Self::default()
        };
        if kind.controller == tracked_field::NAME {
            summary.set = set_of(metadata);
            summary.read_history(object);
        } else {
            summary.read_conditions(object);
        }
        // A set whose template suspends delivery also has the reason `Suspended`.
        let is_suspended =
            object.data["spec"]["suspend"] == Value::Bool(true) || summary.reason == SUSPENDED;
        if is_suspended && summary.state != ObjectState::NotObserved {
            summary.state = ObjectState::Suspended;
            summary.reason = SUSPENDED.into();
        }
        if let Some(since) = &metadata.deletion_timestamp {
            summary.state = ObjectState::Terminating;
            summary.since = Some(since.0);
            // The deletion raises the generation, so the condition of an older generation names no blocker.
            let blocker = condition(object, READY)
                .filter(|ready| ready.status != "True" && !is_of_older_spec(object, ready));
            if blocker.is_none() {
                summary.reason.clear();
                summary.message.clear();
            }
        }
        summary
    }

    /// Reads the status of a `TrackedField`, which is a list.
    fn read_history(&mut self, object: &DynamicObject) {
        let status = &object.data["status"];
        let history = match serde_json::from_value::<Option<History>>(status.clone()) {
            Ok(history) => history.unwrap_or_default(),
            Err(error) => {
                self.state = ObjectState::NotReady;
                self.reason = "HistoryUnreadable".into();
                self.message = error.to_string();
                return;
            }
        };
        self.pending = changes(&history, Entry::is_pending);
        self.failed = changes(&history, |it| it.delivery == Some(Delivery::Failed));
        let waiting = waiting(object);
        let (ready, _) = from_waiting(waiting, !history.is_empty());
        self.state = ready.into();
        if let Some((reason, message)) = waiting {
            self.reason = reason.into();
            self.message = message.into();
            self.since = annotated_at(&object.metadata, WAITING);
        }
        if let Some(oldest) = history.iter().find(|entry| entry.is_pending()) {
            let time = oldest.time.as_ref().map(|time| time.0);
            self.oldest_undelivered = Some(Undelivered {
                time,
                action: oldest.action.as_str(),
                value: oldest.value.clone(),
            });
            self.since = time;
            if ready == Readiness::True {
                self.state = ObjectState::Delivering;
            }
        }
    }

    fn read_conditions(&mut self, object: &DynamicObject) {
        let status = &object.data["status"];
        let Some(ready) = condition(object, READY) else {
            // The original program (document 000) wrote no conditions to ContactPoints.
            if status["ready"] == Value::Bool(true) {
                self.state = ObjectState::Ready;
            }
            return;
        };
        let generation = object.metadata.generation;
        let observed = observed_generation(object, &ready);
        let shown = Some((observed, &*ready.status, &*ready.reason));
        self.state = from_condition(generation, shown).0.into();
        self.since = Some(ready.last_transition_time.0);
        let unrecorded = condition(object, OUTCOMES_RECORDED);
        if ready.status != "True" {
            let of_older = if is_of_older_spec(object, &ready) {
                "of an older spec: "
            } else {
                ""
            };
            self.reason = ready.reason;
            self.message = format!("{of_older}{}", ready.message);
            if let Some(unrecorded) = unrecorded {
                self.message = format!("{}; {}", self.message, unrecorded.message);
            }
        } else if let Some(unrecorded) = unrecorded {
            // A ContactPoint can be ready although outcomes of some TrackedFields cannot be written.
            self.state = ObjectState::NotReady;
            self.reason = unrecorded.reason;
            self.message = unrecorded.message;
            self.since = Some(unrecorded.last_transition_time.0);
        }
    }

    /// Returns `KIND/NAME in NAMESPACE`.
    pub(crate) fn title(&self) -> String {
        format!("{} in {}", self.short_title(), self.namespace)
    }

    /// Returns `KIND/NAME`, as kubectl writes it.
    pub(crate) fn short_title(&self) -> String {
        format!("{}/{}", self.kind.to_lowercase(), self.name)
    }

    /// Returns the set of a `TrackedField` that has no problem.
    pub(crate) fn healthy_child_of(&self) -> Option<&str> {
        let is_healthy = matches!(
            self.state,
            ObjectState::Ready | ObjectState::Delivering | ObjectState::Suspended
        );
        self.set.as_deref().filter(|_| is_healthy)
    }

    /// Returns whether the object has a finalizer that the operator removes after its cleanup.
    pub(crate) fn needs_operator(&self) -> bool {
        let mut finalizers = self.finalizers.iter();
        finalizers.any(|it| is_own_finalizer(&self.kind, it))
    }
}

/// Returns the name of the set that owns a `TrackedField`. Any client may set the label.
pub(crate) fn set_of(metadata: &ObjectMeta) -> Option<String> {
    let (owner, _) = owner_of(metadata, &NAMES)?;
    let set = metadata.labels.as_ref()?.get(SET)?;
    let is_here = metadata.namespace.as_deref() == Some(&owner.namespace);
    (is_here && *owner.name == **set).then(|| set.clone())
}

/// Returns when a client last wrote the annotation, by the metadata's `managedFields`.
fn annotated_at(metadata: &ObjectMeta, annotation: &str) -> Option<jiff::Timestamp> {
    let name = format!("f:{annotation}");
    let mut writers = metadata.managed_fields.iter().flatten();
    let writer = writers.find(|writer| {
        let fields = writer.fields_v1.as_ref().map(|fields| &fields.0);
        let annotations = fields.map(|fields| &fields["f:metadata"]["f:annotations"]);
        annotations.is_some_and(|annotations| annotations.get(&name).is_some())
    })?;
    writer.time.as_ref().map(|time| time.0)
}

/// Returns whether the operator removes this finalizer from objects of this kind.
pub(crate) fn is_own_finalizer(kind: &str, finalizer: &str) -> bool {
    let mut kinds = controllers::KINDS.iter();
    kinds.any(|it| it.finalizer == Some(finalizer) && it.resource().kind == kind)
}

/// Counts the changes of these entries; a merged entry has several.
pub(crate) fn changes(history: &[Entry], is_counted: impl Fn(&Entry) -> bool) -> usize {
    let counted = history.iter().filter(|entry| is_counted(entry));
    let changes: u64 = counted.map(Entry::changes).sum();
    changes.try_into().unwrap_or(usize::MAX)
}

pub(crate) fn condition(object: &DynamicObject, type_: &str) -> Option<Condition> {
    let conditions = object.data["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|it| it["type"] == type_)?;
    serde_json::from_value(found.clone()).ok()
}

/// Returns the observed generation of the status with this condition `Ready`.
fn observed_generation(object: &DynamicObject, ready: &Condition) -> Option<i64> {
    let observed = object.data["status"]["observedGeneration"].as_i64();
    observed.or(ready.observed_generation)
}

/// Returns whether the status with this condition `Ready` describes an older generation than the object's.
fn is_of_older_spec(object: &DynamicObject, ready: &Condition) -> bool {
    object.metadata.generation > observed_generation(object, ready)
}

pub(crate) fn api(client: &Client, kind: &KindInfo, namespace: Option<&str>) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind.resource()),
        None => Api::all_with(client.clone(), &kind.resource()),
    }
}

/// Lists the objects of a kind and returns `convert` of each; none if the CRD is not installed.
pub(crate) async fn list<T>(
    client: &Client,
    kind: &KindInfo,
    namespace: Option<&str>,
    convert: impl FnMut(DynamicObject) -> T,
) -> anyhow::Result<Option<Vec<T>>> {
    match pages(&api(client, kind, namespace), convert).await {
        Ok(listed) => Ok(Some(listed)),
        Err(error) if has_code(&error, 404) => Ok(None),
        Err(error) => Err(FailedRequest::of_list(&error, namespace))
            .with_context(|| format!("the {} could not be listed", kind.resource().plural)),
    }
}

/// Lists objects in pages and returns `convert` of each.
pub(crate) async fn pages<K, T>(api: &Api<K>, convert: impl FnMut(K) -> T) -> kube::Result<Vec<T>>
where
    K: Clone + fmt::Debug + serde::de::DeserializeOwned,
{
    let list = async |page: ListParams| api.list(&page).await;
    all_pages(ListParams::default(), list, convert).await
}

/// Reads the metadata of a kind's CRD; none if the CRD is not installed.
pub(crate) async fn crd(
    client: &Client,
    kind: &KindInfo,
) -> kube::Result<Option<PartialObjectMeta<CustomResourceDefinition>>> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    match api.get_metadata_opt(&kind.crd_name()).await {
        Err(error) if has_code(&error, 404) => Ok(None),
        read => read,
    }
}

/// Checks that the server is an apiserver. Without this check, any other server would look like a cluster without
/// Quartermaster's CRDs.
pub(crate) async fn ensure_kubernetes(client: &Client) -> anyhow::Result<()> {
    match client.apiserver_version().await {
        Ok(_) => Ok(()),
        Err(error) if has_code(&error, 403) => Ok(()),
        Err(error) if has_code(&error, 404) || matches!(error, kube::Error::SerdeError(_)) => {
            anyhow::bail!("the server is not a Kubernetes apiserver: it reports no version")
        }
        Err(error) => Err(FailedRequest::from(error).into()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;
    use serde_json::json;

    use super::*;

    pub(crate) fn kind(controller: &str) -> &'static KindInfo {
        let mut kinds = controllers::KINDS.iter();
        kinds.find(|kind| kind.controller == controller).unwrap()
    }

    pub(crate) fn object(controller: &str, more: &Value) -> ObjectSummary {
        let mut object = json!({ "metadata": { "namespace": "shop", "name": "web", "generation": 2 }, "spec": {} });
        for (field, value) in more.as_object().unwrap() {
            if field == "metadata" {
                object["metadata"]
                    .as_object_mut()
                    .unwrap()
                    .extend(value.as_object().unwrap().clone());
            } else {
                object[field] = value.clone();
            }
        }
        ObjectSummary::new(kind(controller), &serde_json::from_value(object).unwrap())
    }

    pub(crate) fn conditions(status: &str, reason: &str, observed: i64) -> Value {
        let condition = json!({ "type": "Ready", "status": status, "reason": reason, "message": "why",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": observed });
        json!({ "status": { "conditions": [condition], "observedGeneration": observed } })
    }

    fn without_outcomes(ready: &str, reason: &str) -> Value {
        let mut status = conditions(ready, reason, 2);
        let all = status["status"]["conditions"].as_array_mut().unwrap();
        let mut unrecorded =
            conditions("False", "WriteRejected", 2)["status"]["conditions"][0].clone();
        unrecorded["type"] = json!(OUTCOMES_RECORDED);
        unrecorded["message"] = json!("why");
        all.push(unrecorded);
        status
    }

    fn with(mut value: Value, more: &Value) -> Value {
        value
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        value
    }

    #[rstest]
    #[case::new("myapp", json!({}), ObjectState::NotObserved, "")]
    #[case::ready("myapp", conditions("True", "Ready", 2), ObjectState::Ready, "")]
    #[case::not_ready(
        "myapp",
        conditions("False", "Conflict", 2),
        ObjectState::NotReady,
        "Conflict"
    )]
    #[case::of_an_older_spec("myapp", conditions("True", "Ready", 1), ObjectState::NotObserved, "")]
    #[case::not_ready_of_an_older_spec(
        "myapp",
        conditions("False", "Conflict", 1),
        ObjectState::NotObserved,
        "Conflict"
    )]
    #[case::suspended("myapp", with(conditions("False", "Suspended", 2), &json!({ "spec": { "suspend": true } })), ObjectState::Suspended, "Suspended")]
    #[case::suspended_template("trackedfieldset", with(conditions("False", "Suspended", 2), &json!({ "spec": { "template": { "suspend": true } } })), ObjectState::Suspended, "Suspended")]
    #[case::resumed(
        "contactpoint",
        conditions("False", "Suspended", 1),
        ObjectState::NotObserved,
        "Suspended"
    )]
    #[case::to_be_suspended("myapp", with(conditions("True", "Ready", 1), &json!({ "spec": { "suspend": true } })), ObjectState::NotObserved, "")]
    #[case::deleting("myingress", with(conditions("False", "DeletionProtected", 2), &json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } })), ObjectState::Terminating, "DeletionProtected")]
    #[case::deleting_unobserved("configmapsync", with(conditions("False", "SourceNotFound", 1), &json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } })), ObjectState::Terminating, "")]
    #[case::deleting_while_ready("myapp", with(conditions("True", "Ready", 2), &json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } })), ObjectState::Terminating, "")]
    #[case::of_the_original_program("contactpoint", json!({ "status": { "initialized": true, "ready": true } }), ObjectState::Ready, "")]
    #[case::of_the_original_program("contactpoint", json!({ "status": { "initialized": true, "ready": false } }), ObjectState::NotObserved, "")]
    #[case::with_unrecorded_outcomes(
        "contactpoint",
        without_outcomes("True", "Ready"),
        ObjectState::NotReady,
        "WriteRejected"
    )]
    #[case::no_history("trackedfield", json!({}), ObjectState::NotObserved, "")]
    #[case::waiting("trackedfield", json!({ "metadata": { "annotations": { WAITING: "TargetNotFound: no such" } } }), ObjectState::NotReady, "TargetNotFound")]
    #[case::delivered("trackedfield", json!({ "status": [{ "action": "Created", "value": "1" }] }), ObjectState::Ready, "")]
    #[case::unreadable_history("trackedfield", json!({ "status": { "a": 1 } }), ObjectState::NotReady, "HistoryUnreadable")]
    fn object_state_follows_status(
        #[case] controller: &str,
        #[case] more: Value,
        #[case] state: ObjectState,
        #[case] reason: &str,
    ) {
        let object = object(controller, &more);
        assert_eq!(
            (object.state, object.reason.as_str()),
            (state, reason),
            "{object:?}"
        );
    }

    #[test]
    fn stopped_contact_point_also_names_unrecorded_outcomes() {
        let object = object("contactpoint", &without_outcomes("False", "Forbidden"));
        assert_eq!(
            (&*object.reason, &*object.message),
            ("Forbidden", "why; why")
        );
    }

    #[rstest]
    #[case::version(200, r#"{"major":"1","minor":"36","gitVersion":"","gitCommit":"","gitTreeState":"","buildDate":"","goVersion":"","compiler":"","platform":""}"#, "")]
    #[case::forbidden(403, "forbidden", "")]
    #[case::no_version(404, "not found", "not a Kubernetes apiserver")]
    #[case::another_page(200, "<html>", "not a Kubernetes apiserver")]
    #[case::unauthorized(401, "unauthorized", "unauthorized")]
    #[case::busy(429, "busy", "busy")]
    #[case::starting(503, "unavailable", "unavailable")]
    #[tokio::test]
    async fn server_without_version_is_not_kubernetes(
        #[case] code: u16,
        #[case] body: &'static str,
        #[case] problem: &str,
    ) {
        let answer = tower::service_fn(move |_: http::Request<kube::client::Body>| async move {
            let body = kube::client::Body::from(body.as_bytes().to_vec());
            Ok::<_, std::convert::Infallible>(
                http::Response::builder().status(code).body(body).unwrap(),
            )
        });
        let checked = ensure_kubernetes(&Client::new(answer, "default")).await;
        let error = checked.err().map(|error| format!("{error:#}"));
        assert_eq!(error.is_none(), problem.is_empty(), "{error:?}");
        assert!(error.unwrap_or_default().contains(problem));
    }

    #[test]
    fn waiting_tracked_field_has_the_time_of_its_annotation() {
        let writer = |manager: &str, fields: Value, time: &str| {
            json!({ "manager": manager, "operation": "Update", "fieldsType": "FieldsV1",
                "fieldsV1": { "f:metadata": { "f:annotations": fields } }, "time": time })
        };
        let metadata = json!({
            "annotations": { WAITING: "WhenInvalid: no such variable" },
            "managedFields": [
                writer("kubectl", json!({ ".": {} }), "2026-01-01T00:00:00Z"),
                writer("quartermaster", json!({ format!("f:{WAITING}"): {} }), "2026-01-02T00:00:00Z"),
            ],
        });
        let status = json!([{ "action": "Created", "value": "1", "delivery": "Delivered" }]);
        let object = object(
            "trackedfield",
            &json!({ "metadata": metadata, "status": status }),
        );
        assert_eq!(object.since, "2026-01-02T00:00:00Z".parse().ok());
    }

    #[test]
    fn pending_entries_are_counted_in_changes() {
        let entry = |second: u8, delivery: &str, merged: Option<u8>| {
            json!({ "time": format!("2026-01-01T00:00:0{second}Z"), "action": "Updated", "value": second.to_string(),
                "delivery": delivery, "merged": merged })
        };
        let history = json!([
            entry(1, "Failed", None),
            entry(2, "Pending", Some(3)),
            entry(3, "Pending", None)
        ]);
        let object = object("trackedfield", &json!({ "status": history }));
        assert_eq!(
            (object.state, object.pending, object.failed),
            (ObjectState::Delivering, 4, 1)
        );
        let oldest = object.oldest_undelivered.unwrap();
        assert_eq!(
            (oldest.value.as_deref(), oldest.time),
            (Some("2"), object.since)
        );
    }
}
