//! Kubernetes Events, written beside the passes: a slow or refused one never holds up or fails a pass.

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder, Reporter};
use tokio::sync::mpsc;
use tracing::warn;

/// How many Events may wait to be written; beyond that they are dropped and counted in a log line.
const WAITING: usize = 1024;
/// The API's limit of an Event's note, in bytes.
const MAX_NOTE: usize = 1024;

/// Publishes the Events of one controller.
#[derive(Clone)]
pub struct Events(mpsc::Sender<(Event, ObjectReference)>);

impl Events {
    /// A publisher whose Events name `controller` and are written by the returned future, one at a time.
    pub fn new(client: Client, controller: &str, instance: &str) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (sender, mut receiver) = mpsc::channel::<(Event, ObjectReference)>(WAITING);
        // One recorder a controller: it aggregates what is repeated in a cache of its own.
        let reporter = Reporter { controller: controller.into(), instance: Some(instance.into()) };
        let recorder = Recorder::new(client, reporter);
        let write = async move {
            while let Some((event, regarding)) = receiver.recv().await {
                if let Err(error) = recorder.publish(&event, &regarding).await {
                    // A namespace that is going takes no Events.
                    warn!(reason = event.reason, error = &error as &dyn std::error::Error, "an Event was not written");
                }
            }
            // Nobody is left to publish one: the process ends.
            std::future::pending::<()>().await;
        };
        (Self(sender), write)
    }

    /// Something that is as it should be.
    pub fn normal(&self, regarding: ObjectReference, action: &str, reason: &str, note: String) {
        self.publish(EventType::Normal, regarding, action, reason, note);
    }

    /// Something that somebody should look at.
    pub fn warning(&self, regarding: ObjectReference, action: &str, reason: &str, note: String) {
        self.publish(EventType::Warning, regarding, action, reason, note);
    }

    fn publish(&self, type_: EventType, regarding: ObjectReference, action: &str, reason: &str, mut note: String) {
        let mut cut = note.len().min(MAX_NOTE);
        while !note.is_char_boundary(cut) {
            cut -= 1;
        }
        note.truncate(cut);
        let event = Event { type_, reason: reason.into(), note: Some(note), action: action.into(), secondary: None };
        if self.0.try_send((event, regarding)).is_err() {
            warn!(reason, "an Event was dropped: too many wait to be written");
        }
    }
}
