//! Objects of all kinds, as the commands look at them: how one stands ([`Object::of`], pure), and how all are listed.

use std::fmt;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::ListParams;
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::{Api, Client, ResourceExt};
use qm_api::readiness;
use qm_api::tracked_field::{Delivery, Entry, History};
use qm_core::conditions::READY;
use qm_core::kind::KindInfo;
use qm_core::readiness::{Readiness, from_condition};
use serde::Serialize;
use serde_json::Value;

use super::is;
use super::paper::Ink;
use crate::controllers::contact_point::standing::OUTCOMES_RECORDED;
use crate::controllers::tracked_field;
use crate::registry;

/// How many objects a list holds at once.
pub const PAGE: u32 = 500;
/// What something that is no apiserver is told to be.
pub const NO_KUBERNETES: &str = "this is no apiserver of Kubernetes: it tells no version";
/// The reason of every kind's condition while `spec.suspend` is true.
pub const SUSPENDED: &str = "Suspended";

/// How an object stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum State {
    /// All is well.
    Ready,
    /// It is not.
    NotReady,
    /// Messages are on their way.
    Delivering,
    /// `spec.suspend` is true.
    Suspended,
    /// It is being deleted.
    Deleting,
    /// Nobody has looked at it as it is now.
    Unseen,
}

impl State {
    /// Its colour.
    pub fn ink(self) -> Ink {
        match self {
            Self::Ready => Ink::Green,
            Self::NotReady => Ink::Red,
            _ => Ink::Yellow,
        }
    }
}

impl From<Readiness> for State {
    fn from(ready: Readiness) -> Self {
        match ready {
            Readiness::True => Self::Ready,
            Readiness::False => Self::NotReady,
            Readiness::Unknown => Self::Unseen,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A message that is not delivered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Undelivered {
    /// When the change was seen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time: Option<jiff::Timestamp>,
    /// What happened.
    pub action: &'static str,
    /// The field's value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
}

/// What is of interest of an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Object {
    /// Its kind, as the API spells it.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// How it stands.
    pub state: State,
    /// Why it is not well, in a word; empty where it is.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The same in words.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Since when it is or is not well, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<jiff::Timestamp>,
    /// How many changes wait to be told.
    #[serde(skip_serializing_if = "is_zero")]
    pub pending: u64,
    /// How many changes of its history could not be told.
    #[serde(skip_serializing_if = "is_zero")]
    pub failed: u64,
    /// The oldest change that waits to be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_undelivered: Option<Undelivered>,
    /// What holds it up, where it is being deleted and somebody looked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<String>,
    /// When it was created.
    #[serde(skip)]
    pub created: Option<jiff::Timestamp>,
    /// Only the operator lets it go, where somebody looked.
    #[serde(skip)]
    pub needs_operator: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde asks so
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Object {
    /// How an object of that kind stands.
    pub fn of(kind: &KindInfo, object: &DynamicObject) -> Self {
        let mut row = Self {
            kind: kind.resource().kind,
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
            state: State::Unseen,
            reason: String::new(),
            message: String::new(),
            since: None,
            pending: 0,
            failed: 0,
            oldest_undelivered: None,
            held: Vec::new(),
            created: object
                .metadata
                .creation_timestamp
                .as_ref()
                .map(|time| time.0),
            needs_operator: false,
        };
        if kind.controller == tracked_field::NAME {
            row.track(object);
        } else {
            row.judge(object);
        }
        let suspended = object.data["spec"]["suspend"] == Value::Bool(true);
        if suspended && row.state != State::Unseen {
            row.state = State::Suspended;
            row.reason = SUSPENDED.into();
        }
        if let Some(since) = &object.metadata.deletion_timestamp {
            row.state = State::Deleting;
            row.since = Some(since.0);
            if condition(object).is_none_or(|condition| condition.status == "True") {
                row.reason = String::new();
                row.message = String::new();
            }
        }
        row
    }

    /// The kind whose status is a list.
    fn track(&mut self, object: &DynamicObject) {
        let status = &object.data["status"];
        let history = if status.is_null() {
            Ok(History::new())
        } else {
            serde_json::from_value::<History>(status.clone())
        };
        let changes = |is: fn(&Entry) -> bool, history: &History| {
            history
                .iter()
                .filter(|entry| is(entry))
                .map(Entry::changes)
                .sum()
        };
        let history = match history {
            Ok(history) => history,
            Err(error) => {
                (self.state, self.reason, self.message) = (
                    State::NotReady,
                    "HistoryUnreadable".into(),
                    error.to_string(),
                );
                return;
            }
        };
        self.pending = changes(Entry::is_pending, &history);
        self.failed = changes(|entry| entry.delivery == Some(Delivery::Failed), &history);
        self.oldest_undelivered = history
            .iter()
            .find(|entry| entry.is_pending())
            .map(|entry| Undelivered {
                time: entry.time.as_ref().map(|time| time.0),
                action: entry.action.as_str(),
                value: entry.value.clone(),
            });
        let oldest = self.oldest_undelivered.as_ref();
        let waiting = readiness::waiting(object);
        let (ready, _) = readiness::from_waiting(waiting, !history.is_empty());
        self.state = if ready == Readiness::True && oldest.is_some() {
            State::Delivering
        } else {
            ready.into()
        };
        if let Some((reason, words)) = waiting {
            (self.reason, self.message) = (reason.into(), words.into());
        }
        self.since = oldest.and_then(|oldest| oldest.time);
    }

    /// A kind with a condition.
    fn judge(&mut self, object: &DynamicObject) {
        let status = &object.data["status"];
        let Some(condition) = condition(object) else {
            // The original program of ContactPoint wrote no conditions.
            if status["ready"] == Value::Bool(true) {
                self.state = State::Ready;
            }
            return;
        };
        self.since = Some(condition.last_transition_time.0);
        let observed = status["observedGeneration"]
            .as_i64()
            .or(condition.observed_generation);
        let said = Some((observed, &*condition.status, &*condition.reason));
        let (ready, _) = from_condition(object.metadata.generation, said);
        self.state = ready.into();
        // That an older spec was had tells nothing of this one.
        let unrecorded = condition_of(object, OUTCOMES_RECORDED);
        if condition.status != "True" {
            self.reason = condition.reason;
            let of = if object.metadata.generation > observed {
                "of an older spec: "
            } else {
                ""
            };
            let also = unrecorded
                .map(|condition| format!("; {}", condition.message))
                .unwrap_or_default();
            self.message = format!("{of}{}{also}", condition.message);
        } else if let Some(condition) = unrecorded {
            // Ready can be True although messages of some `TrackedField`s cannot be sent.
            (self.state, self.reason, self.message) =
                (State::NotReady, condition.reason, condition.message);
            self.since = Some(condition.last_transition_time.0);
        }
    }

    /// `KIND/NAME`, as kubectl writes it.
    pub fn title(&self) -> String {
        format!("{}/{}", self.kind.to_lowercase(), self.name)
    }
}

/// The condition that says how it is.
pub fn condition(object: &DynamicObject) -> Option<Condition> {
    condition_of(object, READY)
}

fn condition_of(object: &DynamicObject, type_: &str) -> Option<Condition> {
    let conditions = object.data["status"]["conditions"].as_array()?;
    let found = conditions
        .iter()
        .find(|condition| condition["type"] == type_)?;
    serde_json::from_value(found.clone()).ok()
}

/// The objects of a kind.
pub fn api(client: &Client, kind: &KindInfo, namespace: Option<&str>) -> Api<DynamicObject> {
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &kind.resource()),
        None => Api::all_with(client.clone(), &kind.resource()),
    }
}

/// What is made of each object of a kind; none where its CRD is absent.
///
/// # Errors
/// They may not be listed, or the apiserver cannot.
pub async fn list<T>(
    client: &Client,
    kind: &KindInfo,
    namespace: Option<&str>,
    mut keep: impl FnMut(DynamicObject) -> T,
) -> kube::Result<Option<Vec<T>>> {
    match pages(&api(client, kind, namespace), &mut keep).await {
        Err(error) if is(&error, 404) => Ok(None),
        listed => listed.map(Some),
    }
}

/// What is made of each object there is, which are read in pages.
///
/// # Errors
/// They may not be listed, or the apiserver cannot.
pub async fn pages<K, T>(api: &Api<K>, mut keep: impl FnMut(K) -> T) -> kube::Result<Vec<T>>
where
    K: Clone + fmt::Debug + serde::de::DeserializeOwned,
{
    let mut kept = Vec::new();
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = api.list(&page).await?;
        kept.extend(list.items.into_iter().map(&mut keep));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page.continue_token = Some(token),
            None => return Ok(kept),
        }
    }
}

/// Its CRD; none where there is none, or it may not be read: that is a right of the cluster's.
///
/// # Errors
/// The apiserver cannot be asked.
pub async fn crd(
    client: &Client,
    kind: &KindInfo,
) -> kube::Result<Option<PartialObjectMeta<CustomResourceDefinition>>> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    match api.get_metadata_opt(&kind.crd_name()).await {
        Err(error) if is(&error, 403) => Ok(None),
        read => read,
    }
}

/// Whether it is an apiserver: something else knows none of our kinds either.
///
/// # Errors
/// It cannot be asked now.
pub async fn is_kubernetes(client: &Client) -> kube::Result<bool> {
    match client.apiserver_version().await {
        Ok(_) => Ok(true),
        Err(error) if is(&error, 403) => Ok(true),
        Err(error) if is(&error, 404) || matches!(error, kube::Error::SerdeError(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The kind that a controller of that name acts on.
pub fn kind(controller: &str) -> Option<&'static KindInfo> {
    registry::KINDS
        .iter()
        .find(|kind| kind.controller == controller)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_api::common::WAITING;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn object(controller: &str, more: &Value) -> Object {
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
        Object::of(
            kind(controller).unwrap(),
            &serde_json::from_value(object).unwrap(),
        )
    }

    fn conditions(status: &str, reason: &str, observed: i64) -> Value {
        let condition = json!({ "type": "Ready", "status": status, "reason": reason, "message": "words",
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
    #[case::new("myapp", json!({}), State::Unseen, "")]
    #[case::well("myapp", conditions("True", "Ready", 2), State::Ready, "")]
    #[case::ill(
        "myapp",
        conditions("False", "Conflict", 2),
        State::NotReady,
        "Conflict"
    )]
    #[case::of_an_older_spec("myapp", conditions("True", "Ready", 1), State::Unseen, "")]
    #[case::ill_of_an_older_spec(
        "myapp",
        conditions("False", "Conflict", 1),
        State::Unseen,
        "Conflict"
    )]
    #[case::suspended("myapp", with(conditions("False", "Suspended", 2), &json!({ "spec": { "suspend": true } })), State::Suspended, "Suspended")]
    #[case::to_be_suspended("myapp", with(conditions("True", "Ready", 1), &json!({ "spec": { "suspend": true } })), State::Unseen, "")]
    #[case::going("myingress", with(conditions("False", "DeletionProtected", 2), &json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } })), State::Deleting, "DeletionProtected")]
    #[case::going_well("myapp", with(conditions("True", "Ready", 2), &json!({ "metadata": { "deletionTimestamp": "2026-01-01T00:00:00Z" } })), State::Deleting, "")]
    #[case::of_the_original_program("contactpoint", json!({ "status": { "initialized": true, "ready": true } }), State::Ready, "")]
    #[case::of_the_original_program("contactpoint", json!({ "status": { "initialized": true, "ready": false } }), State::Unseen, "")]
    #[case::of_which_one_cannot_be_written(
        "contactpoint",
        without_outcomes("True", "Ready"),
        State::NotReady,
        "WriteRejected"
    )]
    #[case::no_history("trackedfield", json!({}), State::Unseen, "")]
    #[case::waits("trackedfield", json!({ "metadata": { "annotations": { WAITING: "TargetNotFound: no such" } } }), State::NotReady, "TargetNotFound")]
    #[case::told("trackedfield", json!({ "status": [{ "action": "Created", "value": "1" }] }), State::Ready, "")]
    #[case::unreadable("trackedfield", json!({ "status": { "a": 1 } }), State::NotReady, "HistoryUnreadable")]
    fn how_it_stands(
        #[case] controller: &str,
        #[case] more: Value,
        #[case] state: State,
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
    fn a_stopped_contact_point_also_names_the_objects_that_cannot_be_written() {
        let object = object("contactpoint", &without_outcomes("False", "Forbidden"));
        assert_eq!(
            (&*object.reason, &*object.message),
            ("Forbidden", "words; why")
        );
    }

    #[rstest]
    #[case::it_says_so(200, r#"{"major":"1","minor":"36","gitVersion":"","gitCommit":"","gitTreeState":"","buildDate":"","goVersion":"","compiler":"","platform":""}"#, Some(true))]
    #[case::it_may_not_be_asked(403, "forbidden", Some(true))]
    #[case::it_knows_nothing(404, "not found", Some(false))]
    #[case::it_says_something_else(200, "<html>", Some(false))]
    #[case::nobody_is_logged_in(401, "unauthorized", None)]
    #[case::busy(429, "busy", None)]
    #[case::away(503, "unavailable", None)]
    #[tokio::test]
    async fn only_what_has_no_version_is_no_kubernetes(
        #[case] code: u16,
        #[case] body: &'static str,
        #[case] is: Option<bool>,
    ) {
        let answer = tower::service_fn(move |_: http::Request<kube::client::Body>| async move {
            let body = kube::client::Body::from(body.as_bytes().to_vec());
            Ok::<_, std::convert::Infallible>(
                http::Response::builder().status(code).body(body).unwrap(),
            )
        });
        assert_eq!(
            is_kubernetes(&Client::new(answer, "default")).await.ok(),
            is
        );
    }

    #[test]
    fn what_waits_to_be_told_is_counted_in_changes() {
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
            (State::Delivering, 4, 1)
        );
        let oldest = object.oldest_undelivered.unwrap();
        assert_eq!(
            (oldest.value.as_deref(), oldest.time),
            (Some("2"), object.since)
        );
    }
}
