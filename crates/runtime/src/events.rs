//! Kubernetes Events, written outside of the reconciles: a slow or rejected Event never delays or fails a reconcile.
//!
//! Each Event is written separately. kube's `Recorder` would merge all Events of one reason into a series with the
//! first note; callers here emit an Event only if its note is new.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::sync::Notify;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{debug, warn};

use super::drain::InFlight;
use super::write::is_terminating;

/// Maximum number of Events that wait for their write. A further Event makes the queue drop the newest one of the
/// namespace with most, with a warning in the log.
const QUEUE_SIZE: usize = 1024;
/// The API's limit of an Event's note, in bytes.
const MAX_NOTE: usize = 1024;
/// The API's limit of the reporting instance, in bytes.
const MAX_INSTANCE: usize = 128;
/// Length of a `generateName` that the API keeps, without the hyphen at its end.
const MAX_NAME: usize = 57;

/// Emitter of Events.
#[derive(Clone)]
pub struct Events {
    reporter: Arc<str>,
    instance: Arc<str>,
    queue: Arc<EventQueue>,
    in_flight: InFlight,
}

impl Events {
    /// Creates an emitter whose Events name `reporter` as their source. The returned future writes them, one at a
    /// time.
    pub fn new(
        client: Client,
        reporter: &str,
        instance: &str,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let queue = Arc::<EventQueue>::default();
        let write = write_events(client, Arc::clone(&queue));
        (
            Self {
                reporter: reporter.into(),
                instance: instance[..instance.floor_char_boundary(MAX_INSTANCE)].into(),
                queue,
                in_flight: InFlight::default(),
            },
            write,
        )
    }

    /// Returns the emitter whose Events count as work in flight until they are written.
    pub(crate) fn counted_by(self, in_flight: InFlight) -> Self {
        Self { in_flight, ..self }
    }

    /// Emits a Normal Event.
    pub fn normal(&self, regarding: ObjectReference, action: &str, reason: &str, note: String) {
        self.emit("Normal", regarding, action, reason, note);
    }

    /// Emits a Warning Event.
    pub fn warning(&self, regarding: ObjectReference, action: &str, reason: &str, note: String) {
        self.emit("Warning", regarding, action, reason, note);
    }

    fn emit(
        &self,
        type_: &str,
        regarding: ObjectReference,
        action: &str,
        reason: &str,
        mut note: String,
    ) {
        note.truncate(note.floor_char_boundary(MAX_NOTE));
        // The name with the apiserver's suffix must be a DNS subdomain.
        let name = regarding.name.as_deref().unwrap_or_default();
        let name = name[..name.floor_char_boundary(MAX_NAME)]
            .trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
        let event = Event {
            metadata: ObjectMeta {
                generate_name: Some(format!("{name}-")),
                namespace: regarding.namespace.clone(),
                ..ObjectMeta::default()
            },
            type_: Some(type_.into()),
            action: Some(action.into()),
            reason: Some(reason.into()),
            note: Some(note),
            event_time: Some(MicroTime(Timestamp::now())),
            regarding: Some(regarding),
            reporting_controller: Some(self.reporter.to_string()),
            reporting_instance: Some(self.instance.to_string()),
            ..Event::default()
        };
        let queued = (Box::new(event), self.in_flight.token());
        if let Some((dropped, _)) = self.queue.push(queued) {
            warn!(
                namespace = dropped.metadata.namespace,
                reason = dropped.reason,
                "dropped an Event; too many Events are waiting"
            );
        }
    }
}

/// Event that waits for its write, with the token for which a shutdown waits.
type QueuedEvent = (Box<Event>, TaskTrackerToken);

/// Queue between the emitters and the writer.
#[derive(Default)]
struct EventQueue {
    waiting: Mutex<WaitingEvents>,
    added: Notify,
}

impl EventQueue {
    fn waiting(&self) -> MutexGuard<'_, WaitingEvents> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an Event. Returns the one that is dropped if the queue is full.
    fn push(&self, event: QueuedEvent) -> Option<QueuedEvent> {
        let dropped = self.waiting().push(event);
        self.added.notify_one();
        dropped
    }

    /// Waits for the next Event and takes it.
    async fn next(&self) -> QueuedEvent {
        loop {
            let next = self.waiting().pop();
            if let Some(event) = next {
                return event;
            }
            self.added.notified().await;
        }
    }
}

/// Waiting Events. Their namespaces take turns, so that a namespace with many delays and displaces its own only.
#[derive(Default)]
struct WaitingEvents {
    by_namespace: HashMap<String, VecDeque<QueuedEvent>>,
    /// Namespaces with Events, in the order of their turns.
    turns: VecDeque<String>,
    count: usize,
}

impl WaitingEvents {
    fn push(&mut self, event: QueuedEvent) -> Option<QueuedEvent> {
        let namespace = event.0.metadata.namespace.clone().unwrap_or_default();
        let mut dropped = None;
        if self.count == QUEUE_SIZE {
            let own = self.by_namespace.get(&namespace).map_or(0, VecDeque::len);
            let most = self.by_namespace.values_mut().max_by_key(|all| all.len());
            let Some(most) = most.filter(|all| all.len() > own + 1) else {
                return Some(event);
            };
            dropped = most.pop_back();
            self.count -= 1;
        }
        let all = self.by_namespace.entry(namespace.clone()).or_default();
        if all.is_empty() {
            self.turns.push_back(namespace);
        }
        all.push_back(event);
        self.count += 1;
        dropped
    }

    fn pop(&mut self) -> Option<QueuedEvent> {
        let namespace = self.turns.pop_front()?;
        let all = self.by_namespace.get_mut(&namespace)?;
        let event = all.pop_front();
        if all.is_empty() {
            self.by_namespace.remove(&namespace);
        } else {
            self.turns.push_back(namespace);
        }
        self.count -= 1;
        event
    }
}

/// Writes the Events of the queue, one at a time.
async fn write_events(client: Client, queue: Arc<EventQueue>) {
    loop {
        let (event, _token) = queue.next().await;
        let api = Api::namespaced(
            client.clone(),
            event.metadata.namespace.as_deref().unwrap_or("default"),
        );
        if let Err(error) = api.create(&PostParams::default(), event.as_ref()).await {
            if is_namespace_terminating(&error) {
                debug!(
                    reason = event.reason,
                    "an Event was not written: its namespace is being deleted"
                );
                continue;
            }
            warn!(
                reason = event.reason,
                error = &error as &dyn std::error::Error,
                "an Event was not written"
            );
        }
    }
}

/// Returns whether the apiserver rejected an Event because its namespace is being deleted or does not exist.
fn is_namespace_terminating(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404 || is_terminating(status))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::time::Duration;

    use http::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::json;
    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;
    use tower::{BoxError, service_fn};

    use super::*;
    use crate::drain::drain;

    fn regarding(name: &str) -> ObjectReference {
        ObjectReference {
            name: Some(name.into()),
            namespace: Some("shop".into()),
            ..ObjectReference::default()
        }
    }

    /// Emits Events; returns the requests that write them.
    async fn written(emit: impl FnOnce(&Events), count: usize) -> Vec<(Method, String, Event)> {
        let (seen, mut requests) = mpsc::unbounded_channel();
        let server = service_fn(move |request: Request<Body>| {
            let seen = seen.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await?;
                let event: Event = serde_json::from_slice(&body)?;
                seen.send((parts.method, parts.uri.path().to_owned(), event))
                    .unwrap();
                Ok::<_, BoxError>(Response::new(Body::from(body)))
            }
        });
        let (events, write) = Events::new(
            Client::new(server, "default"),
            "example",
            &"qm-0".repeat(50),
        );
        emit(&events);
        let writer = tokio::spawn(write);
        let mut written = Vec::new();
        while written.len() < count {
            written.push(requests.recv().await.unwrap());
        }
        writer.abort();
        written
    }

    #[tokio::test(start_paused = true)]
    async fn shutdown_waits_for_events() {
        let (seen, requests) = mpsc::unbounded_channel();
        let server = service_fn(move |request: Request<Body>| {
            let seen = seen.clone();
            async move {
                tokio::time::sleep(Duration::from_millis(100)).await;
                seen.send(()).unwrap();
                Ok::<_, BoxError>(Response::new(request.into_body()))
            }
        });
        let in_flight = InFlight::default();
        let (events, write) = Events::new(Client::new(server, "default"), "example", "qm-0");
        let events = events.counted_by(in_flight.clone());
        tokio::spawn(write);
        for note in ["one", "two"] {
            events.normal(regarding("web"), "Test", "Ready", note.into());
        }
        let timeout = Duration::from_secs(5);
        drain(CancellationToken::new(), Vec::new(), in_flight, timeout).await;
        assert_eq!(requests.len(), 2);
    }

    #[tokio::test]
    async fn each_event_is_written_with_its_own_note() {
        let emit = |events: &Events| {
            events.warning(
                regarding("web"),
                "Reconcile",
                "WriteFailed",
                "1: too old".into(),
            );
            events.warning(
                regarding("web"),
                "Reconcile",
                "WriteFailed",
                "2: too old".into(),
            );
            events.normal(
                regarding("web"),
                "Test",
                "Ready",
                "messages can be sent".into(),
            );
        };
        let written = written(emit, 3).await;
        let notes: Vec<_> = written
            .iter()
            .map(|(_, _, event)| event.note.clone().unwrap())
            .collect();
        assert_eq!(notes, ["1: too old", "2: too old", "messages can be sent"]);
        for (method, path, event) in &written {
            assert_eq!(
                (method, path.as_str()),
                (
                    &Method::POST,
                    "/apis/events.k8s.io/v1/namespaces/shop/events"
                )
            );
            assert_eq!(event.metadata.generate_name.as_deref(), Some("web-"));
            assert_eq!(event.reporting_controller.as_deref(), Some("example"));
            assert!(event.event_time.is_some() && event.regarding == Some(regarding("web")));
        }
        let types: Vec<_> = written
            .iter()
            .map(|(_, _, event)| event.type_.clone().unwrap())
            .collect();
        assert_eq!(types, ["Warning", "Warning", "Normal"]);
    }

    #[tokio::test]
    async fn namespace_with_many_events_displaces_none_of_another() {
        let emit = |events: &Events| {
            let crowd = ObjectReference {
                namespace: Some("crowd".into()),
                ..regarding("web")
            };
            for number in 0..QUEUE_SIZE + 10 {
                events.normal(crowd.clone(), "Test", "Ready", number.to_string());
            }
            events.normal(regarding("web"), "Test", "Ready", "shop".into());
        };
        let written = written(emit, QUEUE_SIZE).await;
        let notes: Vec<_> = written
            .into_iter()
            .map(|(_, _, event)| event.note.unwrap())
            .collect();
        let mut expected: Vec<_> = (0..QUEUE_SIZE - 1)
            .map(|number| number.to_string())
            .collect();
        expected.insert(1, "shop".into());
        assert_eq!(notes, expected, "the newest of the crowd are dropped");
    }

    #[test]
    fn event_in_a_terminating_namespace_is_no_problem() {
        let is_namespace = |code: u16, cause: Option<&str>| {
            let causes: Vec<_> = cause
                .iter()
                .map(|cause| json!({ "reason": cause }))
                .collect();
            let status = json!({ "message": "", "reason": "", "code": code, "details": { "causes": causes } });
            is_namespace_terminating(&kube::Error::Api(Box::new(
                serde_json::from_value(status).unwrap(),
            )))
        };
        assert!(is_namespace(403, Some("NamespaceTerminating")) && is_namespace(404, None));
        assert!(!is_namespace(403, None) && !is_namespace(422, Some("FieldValueInvalid")));
    }

    #[tokio::test]
    async fn long_fields_are_truncated_to_the_limits_of_the_api() {
        let long = format!("{}.{}", "a".repeat(MAX_NAME - 1), "b".repeat(200));
        let emit = |events: &Events| {
            events.warning(
                regarding(&long),
                "Reconcile",
                "WriteFailed",
                format!("a{}", "\u{e4}".repeat(1000)),
            );
        };
        let (_, _, event) = written(emit, 1).await.remove(0);
        let note = event.note.unwrap();
        assert_eq!(note.len(), MAX_NOTE - 1, "in whole characters");
        assert_eq!(
            event.metadata.generate_name.unwrap(),
            format!("{}-", "a".repeat(MAX_NAME - 1))
        );
        assert_eq!(event.reporting_instance.unwrap().len(), MAX_INSTANCE);
    }
}
