//! `TrackedField`: changes become entries, entries become messages.
//!
//! [`tracker`] sees the changes, [`history`] decides what becomes of the status, this pass writes it, and the outbox
//! (`notify::queue`) sends what is pending. The pass is the only writer of a `TrackedField`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::core::DynamicObject;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, Resource, ResourceExt};
use tracing::debug;
use uuid::Uuid;

use self::field::Field;
use self::history::Changes;
use self::target::{Resolved, Resolver, TargetError};
use self::tracker::{TargetKey, Tracker};
use self::waiting::Waiting;
use crate::api::common::{REQUESTED_AT, WAITING};
use crate::api::tracked_field::{Entry, Subject};
use crate::api::{ContactPoint, TrackedField};
use crate::notify::Transport;
use crate::notify::queue::Outbox;
use crate::runtime::cache::strip;
use crate::runtime::events::Events;
use crate::runtime::metrics::Metrics;
use crate::runtime::reconciler::{Class, Failure, Outcome, Reconciler};
use crate::runtime::watch_hub::{ResourceName, WatchHub};
use crate::runtime::written::Written;
use crate::runtime::{Key, Scope, apply};

pub mod field;
pub mod history;
pub mod target;
pub mod tracker;
pub mod waiting;

/// What the controller is called in logs, metrics and as a field manager.
pub const NAME: &str = "trackedfield";
/// The field manager of its writes.
pub const MANAGER: &str = "quartermaster/trackedfield";

/// How long a watch may lag behind a read before the read is believed.
const DOUBT: Duration = Duration::from_secs(5);

/// What can go wrong in a pass.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The target's present state could not be read.
    #[error("the target could not be read: {0}")]
    ReadTarget(#[source] kube::Error),
    /// The apiserver's list of resources could not be read.
    #[error(transparent)]
    Discovery(TargetError),
    /// The object itself could not be read again.
    #[error("the object could not be read again: {0}")]
    ReadAgain(#[source] kube::Error),
    /// The history could not be written.
    #[error("the status could not be written: {0}")]
    WriteStatus(#[source] kube::Error),
    /// The annotation that says why it waits could not be written.
    #[error("the annotation could not be written: {0}")]
    WriteWaiting(#[source] kube::Error),
}

impl Failure for Error {
    fn class(&self) -> Class {
        match self {
            Self::ReadTarget(error) | Self::ReadAgain(error) | Self::WriteStatus(error) | Self::WriteWaiting(error) => {
                error.class()
            }
            Self::Discovery(_) => Class::Transient,
        }
    }
}

/// How long things last.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// An entry that could not be delivered for this long is given up.
    pub max_age: Duration,
    /// The Event that says why a `TrackedField` waits is written again after this.
    pub renew_event: Duration,
    /// A target of which nothing certain was heard for this long is read.
    pub resync: Duration,
}

/// The controller.
pub struct TrackedFields<T> {
    /// Talks to the apiserver.
    pub client: Client,
    /// What part of the cluster is served.
    pub scope: Scope,
    /// The contact points.
    pub points: Store<ContactPoint>,
    /// What the watches show.
    pub tracker: Arc<Tracker>,
    /// The watches.
    pub hub: WatchHub,
    /// What waits to be sent.
    pub outbox: Arc<Outbox<T>>,
    /// What the resources are.
    pub resolver: Resolver,
    /// Where Events go.
    pub events: Events,
    /// What is counted.
    pub metrics: Metrics,
    /// How long things last.
    pub terms: Terms,
    /// What was written last.
    pub written: Written<TrackedField>,
    /// When the Event that says why was written, for each object that waits.
    pub told: Mutex<HashMap<Key, (Waiting, Timestamp)>>,
}

fn subject(object: &TrackedField) -> Subject {
    Subject::new(&object.spec.target, &object.spec.field)
}

/// What a `TrackedField` tracks, once its spec is understood.
struct Tracked {
    target: TargetKey,
    api: Api<DynamicObject>,
    shard: Option<String>,
    /// The read and the watch of the target disagree, which may pass.
    doubted: bool,
}

/// Why nothing is tracked.
struct Untracked {
    waiting: Waiting,
    /// The pass failed for it.
    error: Option<Error>,
}

impl From<Waiting> for Untracked {
    fn from(waiting: Waiting) -> Self {
        Self { waiting, error: None }
    }
}

impl From<Error> for Untracked {
    fn from(error: Error) -> Self {
        Self { waiting: Waiting::TargetUnreadable(error.to_string()), error: Some(error) }
    }
}

impl<T: Transport> TrackedFields<T> {
    fn unfollow(&self, key: &Key) {
        if self.tracker.forget(key) {
            self.end_idle_watches();
        }
    }

    fn end_idle_watches(&self) {
        self.hub.retain(|resource| self.tracker.follows(resource));
    }

    /// Follows the target as soon as the object is cached, so that the first list of its watch already counts and
    /// nothing need be read. The watch itself begins with [`TrackedFields::watch`].
    pub fn follow(&self, object: &TrackedField) {
        let Ok(field) = Field::compile(&object.spec.target.kind, &object.spec.field) else { return };
        let Some(resolved) = self.resolver.known(&object.spec.target) else { return };
        if let Ok(tracked) = self.tracked(object, &resolved) {
            self.follow_as(object, &tracked, &field);
        }
        if let Some(last) = object.status.as_ref().and_then(|history| history.last()) {
            self.tracker.told(&Key::of(object), &subject(object), last);
        }
    }

    fn follow_as(&self, object: &TrackedField, tracked: &Tracked, field: &Field) {
        let key = Key::of(object);
        if self.tracker.follow(&key, &subject(object), &tracked.target, field, tracked.shard.clone()) {
            self.end_idle_watches();
        }
    }

    /// Sees to it that the target of `object` is watched.
    pub fn watch(&self, object: &TrackedField) {
        let target = &object.spec.target;
        if let Some(resolved) = self.resolver.known(target)
            && self.scope.covers(resolved.place(target))
        {
            self.hub.ensure(&resolved.resource, resolved.namespaced);
        }
    }

    fn tracked(&self, object: &TrackedField, resolved: &Resolved) -> Result<Tracked, Waiting> {
        let target = &object.spec.target;
        let namespace = resolved.place(target);
        if resolved.namespaced && namespace.is_empty() {
            let words = format!("{} lie in namespaces: write target.namespace", resolved.resource.plural);
            return Err(Waiting::ResourceMismatch(words));
        }
        if !self.scope.covers(namespace) {
            return Err(Waiting::OutOfScope { namespace: namespace.into() });
        }
        let api = if resolved.namespaced {
            Api::namespaced_with(self.client.clone(), namespace, &resolved.resource)
        } else {
            Api::all_with(self.client.clone(), &resolved.resource)
        };
        let shard = match &self.scope {
            Scope::Namespaces(_) if resolved.namespaced => Some(namespace.to_owned()),
            _ => None,
        };
        let key = TargetKey {
            resource: ResourceName::from(&resolved.resource),
            namespace: namespace.into(),
            name: target.name.clone(),
        };
        Ok(Tracked { target: key, api, shard, doubted: false })
    }

    /// Sees to it that the target is followed; `Err` says why it cannot be.
    async fn track(&self, key: &Key, object: &TrackedField) -> Result<Tracked, Untracked> {
        let target = &object.spec.target;
        let field = Field::compile(&target.kind, &object.spec.field)
            .map_err(|error| Waiting::Field { reason: error.reason(), message: error.to_string() })?;
        let resolved = match self.resolver.resolve(&self.client, target).await {
            Ok(resolved) => resolved,
            Err(error @ TargetError::Discovery(_)) => return Err(Error::Discovery(error).into()),
            Err(error) => return Err(Waiting::ResourceMismatch(error.to_string()).into()),
        };
        let mut tracked = self.tracked(object, &resolved)?;
        self.follow_as(object, &tracked, &field);
        self.hub.ensure(&resolved.resource, resolved.namespaced);
        if self.tracker.unread(key, self.terms.resync) {
            match tracked.api.get_opt(&target.name).await {
                Ok(object) => tracked.doubted = !self.tracker.read(key, object.as_ref()),
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    let message = status.message.clone();
                    return Err(Waiting::Forbidden { resource: tracked.target.resource, message }.into());
                }
                Err(error) => return Err(Error::ReadTarget(error).into()),
            }
        }
        Ok(tracked)
    }

    /// The object with what is Pending in it for certain: what is offered for the first time may come from a cache that
    /// does not show yet what another replica delivered. None if it is gone, or another one.
    async fn certain(&self, key: &Key, object: Arc<TrackedField>) -> Result<Option<Arc<TrackedField>>, Error> {
        let pending = object.status.iter().flatten().any(Entry::is_pending);
        if !pending || self.outbox.holds(key) {
            return Ok(Some(object));
        }
        self.read_again(key, &object).await
    }

    /// The object as it now stands. None if it is gone, or if somebody changed what a pass goes by: then the watch shows
    /// that, and wakes another pass.
    async fn read_again(&self, key: &Key, object: &TrackedField) -> Result<Option<Arc<TrackedField>>, Error> {
        let api: Api<TrackedField> = Api::namespaced(self.client.clone(), &key.namespace);
        let requested = |object: &TrackedField| object.annotations().get(REQUESTED_AT).cloned();
        let newest = api.get_opt(&key.name).await.map_err(Error::ReadAgain)?.filter(|newest| {
            newest.uid() == object.uid()
                && newest.metadata.generation == object.metadata.generation
                && requested(newest) == requested(object)
        });
        Ok(newest.map(|mut newest| {
            strip(&mut newest);
            Arc::new(newest)
        }))
    }

    /// Brings the status up to what was seen and sent. Gives the object as it then stands; none where another pass has
    /// to look at it, because it is gone or its spec is another one.
    async fn record(
        &self,
        key: &Key,
        mut object: Arc<TrackedField>,
        outcomes: &[(String, history::Outcome)],
        held: bool,
    ) -> Result<Option<Arc<TrackedField>>, Error> {
        let subject = subject(&object);
        let seen = self.tracker.seen(key, &subject);
        let api: Api<TrackedField> = Api::namespaced(self.client.clone(), &key.namespace);
        let mut raced = false;
        loop {
            let inputs = history::Inputs {
                subject: &subject,
                observations: &seen.observations,
                outcomes,
                in_flight: &self.outbox.in_flight(key),
                held,
                limit: object.spec.history_limit,
                max_age: self.terms.max_age,
                now: Timestamp::now(),
            };
            let before = object.status.as_deref().unwrap_or_default();
            let mut changes = history::next(before, &inputs, || Uuid::now_v7().to_string());
            if changes.merged > 0 && self.outbox.holds(key) {
                // Nothing of what becomes one entry may be taken meanwhile: it would be told twice.
                self.outbox.withdraw(key, false);
                continue;
            }
            if changes.changed {
                match apply::status(&api, MANAGER, object.as_ref(), &changes.history).await {
                    Ok(written) => object = self.written.wrote(key, written),
                    Err(kube::Error::Api(status)) if status.code == 409 && !raced => {
                        debug!("the object changed in the meantime; its history is computed again");
                        raced = true;
                        let Some(newest) = self.read_again(key, &object).await? else { return Ok(None) };
                        object = newest;
                        continue;
                    }
                    Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
                    Err(error) => return Err(Error::WriteStatus(error)),
                }
            }
            changes.merged += seen.merged;
            seen.recorded();
            self.tell(&object, &changes);
            return Ok(Some(object));
        }
    }

    /// Events and metrics of what a pass wrote.
    fn tell(&self, object: &TrackedField, changes: &Changes) {
        for failed in &changes.failed {
            let reason = failed.reason.as_deref().unwrap_or_default();
            let value = failed.value.as_deref().unwrap_or("(no value)");
            let note = format!("{} {value}: not delivered: {reason}", failed.action);
            self.events.warning(object.object_ref(&()), "Notify", "DeliveryFailed", note);
        }
        self.metrics.entries_expired(changes.expired as u64);
        if changes.merged > 0 {
            self.metrics.entries_merged(changes.merged as u64);
            let note = format!(
                "{} changes that wait to be sent were joined with their neighbours: the outbox is full",
                changes.merged
            );
            self.events.warning(object.object_ref(&()), "Record", "EntriesMerged", note);
        }
    }

    /// Why messages of this object cannot be sent now.
    fn point_trouble(&self, key: &Key, object: &TrackedField, point: Option<&ContactPoint>) -> Option<Waiting> {
        let name = &object.spec.contact_point;
        let Some(point) = point else {
            let points = self.points.state();
            let names: Vec<String> = points
                .iter()
                .filter(|point| point.namespace().as_deref() == Some(&*key.namespace))
                .map(|point| point.name_any())
                .collect();
            let nearest = target::nearest(name, names.iter().map(String::as_str)).map(str::to_owned);
            return Some(Waiting::ContactPointNotFound { name: name.clone(), nearest });
        };
        waiting::of_point(point).or_else(|| {
            let message = self.outbox.failing(&Key::of(point))?;
            let entries = object.status.as_deref().unwrap_or_default();
            entries.iter().any(Entry::is_pending).then(|| Waiting::DeliveryFailing { name: name.clone(), message })
        })
    }

    /// Why the object waits. What keeps messages that are there from being sent comes first.
    fn waiting(
        &self,
        key: &Key,
        object: &TrackedField,
        tracked: &Result<Tracked, Untracked>,
        point: Option<&ContactPoint>,
    ) -> Option<Waiting> {
        let of_point = self.point_trouble(key, object, point);
        if of_point.is_some() && object.status.iter().flatten().any(Entry::is_pending) {
            return of_point;
        }
        match tracked {
            Err(untracked) => Some(untracked.waiting.clone()),
            Ok(tracked) => waiting::of_target(&self.tracker, key, tracked.shard.as_deref(), &tracked.target, object)
                .or_else(|| waiting::of_template(object))
                .or(of_point),
        }
    }

    /// Writes why the object waits, when that changed, and renews its Event.
    async fn say(
        &self,
        key: &Key,
        object: Arc<TrackedField>,
        waiting: Option<Waiting>,
    ) -> Result<Option<Duration>, Error> {
        let text = waiting.as_ref().map(Waiting::to_string);
        let written = object.annotations().get(WAITING).cloned();
        if text != written {
            let api: Api<TrackedField> = Api::namespaced(self.client.clone(), &key.namespace);
            let annotated = apply::annotate(&api, MANAGER, object.as_ref(), WAITING, text.as_deref()).await;
            match annotated {
                Ok(written) => {
                    self.written.wrote(key, written);
                }
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(None),
                Err(error) => return Err(Error::WriteWaiting(error)),
            }
        }
        Ok(self.say_event(key, &object.object_ref(&()), waiting))
    }

    /// Publishes the Event that says why an object waits, once for each change and again before it is forgotten. Gives
    /// when it is due again.
    fn say_event(&self, key: &Key, regarding: &ObjectReference, waiting: Option<Waiting>) -> Option<Duration> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(waiting) = waiting else {
            told.remove(key);
            return None;
        };
        let now = Timestamp::now();
        if let Some((known, at)) = told.get(key)
            && *known == waiting
        {
            let age = Duration::try_from(now.duration_since(*at)).unwrap_or_default();
            let left = self.terms.renew_event.saturating_sub(age);
            if !left.is_zero() {
                return Some(left);
            }
        }
        self.events.warning(regarding.clone(), "Wait", waiting.reason(), waiting.message());
        told.insert(key.clone(), (waiting, now));
        Some(self.terms.renew_event)
    }
}

impl<T: Transport> Reconciler for TrackedFields<T> {
    type Object = TrackedField;
    type Error = Error;

    async fn reconcile(&self, object: Arc<TrackedField>) -> Result<Outcome, Error> {
        let key = Key::of(object.as_ref());
        let object = self.written.newest(&key, object);
        if object.meta().deletion_timestamp.is_some() {
            self.gone(&key);
            return Ok(Outcome::Done);
        }
        let tracked = self.track(&key, &object).await;
        if tracked.as_ref().is_err_and(|untracked| untracked.waiting.ends_tracking()) {
            self.unfollow(&key);
        }
        let Some(object) = self.certain(&key, object).await? else { return Ok(Outcome::Done) };
        let point_key = Key::new(&key.namespace, &object.spec.contact_point);
        let point = self.points.get(&ObjectRef::new(&point_key.name).within(&point_key.namespace));
        let suspended = object.spec.suspend.unwrap_or_default();
        let held = suspended || point.as_ref().is_some_and(|point| point.spec.suspend.unwrap_or_default());

        let outcomes = self.outbox.outcomes(&key);
        let Some(object) = self.record(&key, object, &outcomes, held).await? else { return Ok(Outcome::Done) };
        // Offered before the outcomes are given back: the line goes on with what the status now says.
        if suspended {
            self.outbox.withdraw(&key, false);
        } else {
            self.outbox.offer(&point_key, &object);
        }
        self.outbox.recorded(&key, &outcomes);

        let waiting = self.waiting(&key, &object, &tracked, point.as_deref());
        let expires = object.status.as_ref().and_then(|history| history::next_expiry(history, self.terms.max_age));
        let expires = expires.map(|at| Duration::try_from(at.duration_since(Timestamp::now())).unwrap_or_default());
        let renew = self.say(&key, object, waiting).await?;
        let resync = match tracked {
            Ok(Tracked { doubted: false, .. }) => self.terms.resync.mul_f64(rand::random_range(1.0..1.2)),
            Ok(Tracked { doubted: true, .. }) => DOUBT,
            Err(Untracked { error: Some(error), .. }) => return Err(error),
            // Neither a new CRD nor a new right wakes anybody.
            Err(Untracked { waiting: Waiting::ResourceMismatch(_) | Waiting::Forbidden { .. }, .. }) => {
                return Ok(Outcome::Waiting);
            }
            Err(_) => self.terms.resync,
        };
        Ok(Outcome::RequeueAfter([expires, renew].into_iter().flatten().fold(resync, Duration::min)))
    }

    fn gone(&self, key: &Key) {
        self.unfollow(key);
        self.outbox.withdraw(key, true);
        self.written.forget(key);
        self.told.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}
