//! Observed effects: Events, and messages at receivers.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::events::v1::Event;
use qm_api::ContactPoint;
use serde_json::{Value, json};
use testbed::bot_api::{BotApi, Chat, Kind, Pace};
use testbed::control_plane::audit::{Mark, Subject};
use testbed::receiver::{Receiver, Request};
use testbed::wait::until;

use super::{ACCOUNT, Bed, SOON, SYSTEM, TOKEN};

/// Id of a private chat of the tests' Bot API.
pub const CHAT: i64 = 12_345_678;

/// Returns a Bot API that knows [`TOKEN`] and [`CHAT`], without the rate limits of the real one.
pub fn bot_api() -> BotApi {
    let telegram = BotApi::start().unwrap();
    telegram.set_pace(Pace::unlimited());
    telegram.add_token(TOKEN);
    telegram.add_chat(Chat::new(Kind::Private, CHAT).unwrap());
    telegram
}

impl Bed {
    /// Returns the Events about an object of this name that have this reason.
    pub async fn events(&self, name: &str, reason: &str) -> Vec<Event> {
        let all = self
            .api::<Event>()
            .list(&kube::api::ListParams::default())
            .await
            .unwrap()
            .items;
        let about = |event: &Event| {
            event
                .regarding
                .as_ref()
                .is_some_and(|it| it.name.as_deref() == Some(name))
        };
        all.into_iter()
            .filter(|event| about(event) && event.reason.as_deref() == Some(reason))
            .collect()
    }

    /// Waits until there is such an Event; returns its message.
    pub async fn event(&self, name: &str, reason: &str) -> String {
        let found = until(format!("an Event {reason} of {name}"), SOON, async || {
            Ok(self.events(name, reason).await.into_iter().next())
        });
        found.await.unwrap().note.unwrap_or_default()
    }

    /// Returns the operator's requests about objects of the test's namespace since `since`.
    pub async fn operator_requests(&self, since: Mark) -> impl Iterator<Item = Subject> {
        let operator = format!("system:serviceaccount:{SYSTEM}:{ACCOUNT}");
        let requests = self.plane.audit().requests(since).await.unwrap();
        let subjects = requests.into_iter().map(|request| request.subject);
        subjects.filter(move |it| it.user == operator && it.namespace == self.namespace)
    }

    /// Runs kubectl with these arguments in the test's namespace; returns the output.
    pub async fn kubectl(&self, arguments: &[&str]) -> String {
        self.plane
            .run_kubectl(&[&["-n", &self.namespace], arguments].concat(), "")
            .await
            .unwrap()
    }

    /// Applies manifests in the test's namespace.
    pub async fn apply(&self, manifests: &str) {
        let arguments = ["-n", &self.namespace, "apply", "--server-side", "-f", "-"];
        until("the manifests apply", SOON, async || {
            self.plane
                .run_kubectl(&arguments, manifests)
                .await
                .map(Some)
        })
        .await
        .unwrap();
    }

    /// Creates a Service with these ports, as JSON of the API.
    pub async fn service(&self, name: &str, ports: Value) -> Service {
        self.create(
            name,
            json!({ "spec": { "selector": { "app": name }, "ports": ports } }),
        )
        .await
    }
}

/// Returns reason and message of a contact point's condition; empty before the operator has written one.
pub fn condition(point: &ContactPoint) -> (String, String) {
    let conditions = point.status.iter().flat_map(|status| &status.conditions);
    conditions
        .map(|condition| (condition.reason.clone(), condition.message.clone()))
        .next()
        .unwrap_or_default()
}

/// Returns the requests that the receiver answered with a 2xx.
pub fn accepted(receiver: &Receiver) -> Vec<Arc<Request>> {
    let good = |request: &Arc<Request>| request.answered.is_some_and(|status| status.is_success());
    receiver.requests().into_iter().filter(good).collect()
}

/// Returns the changes that the receiver accepted as `CloudEvents`, in order, those of digests one by one.
pub fn changes(receiver: &Receiver) -> Vec<Value> {
    let data = accepted(receiver)
        .into_iter()
        .filter(|request| request.header("ce-type") != Some(READY));
    data.flat_map(|request| {
        let data = request.json().unwrap();
        match data.get("entries") {
            Some(entries) => entries.as_array().unwrap().clone(),
            None => vec![data],
        }
    })
    .collect()
}

/// Event type of a test message.
pub const READY: &str = "dev.quartermaster.contactpoint.ready";

/// Returns the texts of all requests that the receiver accepted, those of digests one by one.
pub fn texts(receiver: &Receiver) -> Vec<String> {
    let mut texts = Vec::new();
    for request in accepted(receiver) {
        let data = request.json().unwrap();
        let text = |data: &Value| data["text"].as_str().unwrap_or_default().to_owned();
        match data.get("entries") {
            Some(entries) => texts.extend(entries.as_array().unwrap().iter().map(text)),
            None => texts.push(text(&data)),
        }
    }
    texts
}
