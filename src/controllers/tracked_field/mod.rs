//! `TrackedField`: changes become entries, entries become messages.
//!
//! [`tracker`] sees the changes, [`history`] decides what becomes of the status, this pass writes it, and the outbox
//! (`notify::queue`) sends what is pending. The pass is the only writer of a `TrackedField`.

use std::collections::HashMap;
use std::io;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Api, Client, ResourceExt};
use tracing::debug;
use uuid::Uuid;

use self::follower::Whose;
pub use self::following::Targets;
use qm_api::common::REQUESTED_AT;
use qm_api::spec_size::StoredSpec as _;
use qm_api::tracked_field::{GROUP, History, StoredHistory};
use qm_api::{ContactPoint, TrackedField};
use qm_core::kind::{DelegatedAccess, EVENTS, KindInfo, Permission};
use qm_notify::metrics::DeliveryMetrics;
use qm_notify::queue::{Circumstances, Offer, Outbox};
use qm_notify::{Transport, history};
use qm_runtime::availability::Availability;
use qm_runtime::cache::strip;
use qm_runtime::events::Events;
use qm_runtime::manager::Phase;
use qm_runtime::reconciler::{Class, Failure, Reconciler, Requeue};
use qm_runtime::written::Written;
use qm_runtime::{Key, apply};

use self::following::{Tracked, Untracked};
use self::reads::Answer;
use self::target::TargetError;
use self::telling::Why;
use self::tracker::Trouble;
use self::waiting::Waiting;

pub mod field;
mod follower;
mod following;
pub mod grants;
mod lookup;
pub mod reads;
mod shown;
pub mod target;
mod telling;
pub mod tracker;
pub mod waiting;

/// What the controller is called in logs, metrics and as a field manager.
pub const NAME: &str = "trackedfield";
/// The kind.
pub const KIND: KindInfo = KindInfo::of::<TrackedField>(
    NAME,
    &["bc8d0cac0456a77d"],
    DelegatedAccess::Targets,
    &[
        // `get`: after a write that came too late. `patch`: the annotation that says why one waits.
        Permission::namespaced(
            GROUP,
            &["trackedfields"],
            &["get", "list", "patch", "watch"],
        ),
        Permission::namespaced(GROUP, &["trackedfields/status"], &["patch"]),
        EVENTS,
    ],
);
/// The field manager of its writes.
pub const MANAGER: &str = "quartermaster/trackedfield";

/// What can go wrong in a pass.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The target's present state could not be read.
    #[error("the target could not be read: {0}")]
    ReadTarget(#[source] kube::Error),
    /// The apiserver's list of resources could not be read.
    #[error(transparent)]
    Discovery(TargetError),
    /// The apiserver did not answer in time for the target.
    #[error("the target could not be read: the apiserver did not answer within {0:?}")]
    Unanswered(Duration),
    /// A large object that was read could not be looked into.
    #[error("the target could not be looked into: {0}")]
    LookInto(#[source] io::Error),
    /// The object itself could not be read again.
    #[error("the object could not be read again: {0}")]
    ReadAgain(#[source] kube::Error),
    /// What the status tells could not be read.
    #[error("the stored history could not be read: {0}")]
    History(#[source] serde_json::Error),
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
            Self::ReadTarget(error)
            | Self::ReadAgain(error)
            | Self::WriteStatus(error)
            | Self::WriteWaiting(error) => error.class(),
            Self::Discovery(_) | Self::Unanswered(_) | Self::LookInto(_) | Self::History(_) => {
                Class::Transient
            }
        }
    }
}

/// How long things last.
#[derive(Clone, Copy, Debug)]
pub struct Terms {
    /// The Event that says why a `TrackedField` waits is written again after this.
    pub renew_event: Duration,
    /// A target of which nothing certain was heard for this long is read.
    pub resync: Duration,
}

/// The controller.
pub struct TrackedFields<T> {
    /// Talks to the apiserver.
    pub client: Client,
    /// Targets of the `TrackedField`s.
    pub targets: Arc<Targets>,
    /// The contact points.
    pub points: Store<ContactPoint>,
    /// Whether there can be any.
    pub points_phase: Phase,
    /// What waits to be sent.
    pub outbox: Arc<Outbox<T>>,
    /// Where Events go.
    pub events: Events,
    /// Metrics of the entries.
    pub metrics: DeliveryMetrics,
    /// How long things last.
    pub terms: Terms,
    /// What the cluster is called in messages.
    pub cluster: Option<String>,
    /// What was written last.
    pub written: Written<TrackedField>,
    /// Whether the apiserver answers.
    pub availability: Availability,
    /// When the Event that says why was written, for each object that waits.
    pub told: Mutex<HashMap<Key, (Waiting, Timestamp)>>,
}

impl<T: Transport> TrackedFields<T> {
    fn circumstances(&self, object: &TrackedField) -> Circumstances {
        Circumstances {
            generation: object.metadata.generation,
            requested_at: object.annotations().get(REQUESTED_AT).cloned(),
            apiserver_returns: self.availability.returned(),
        }
    }

    /// The object as it now stands. None if somebody changed what a pass goes by: the next pass has it.
    async fn read_again(
        &self,
        key: &Key,
        object: &TrackedField,
    ) -> Result<Option<Arc<TrackedField>>, Error> {
        let api: Api<TrackedField> = Api::namespaced(self.client.clone(), &key.namespace);
        let requested = |object: &TrackedField| object.annotations().get(REQUESTED_AT).cloned();
        let mut newest = api.get(&key.name).await.map_err(Error::ReadAgain)?;
        strip(&mut newest);
        let same = newest.uid() == object.uid()
            && newest.metadata.generation == object.metadata.generation
            && requested(&newest) == requested(object);
        // Newer than the cache: the next pass goes on from here, too.
        Ok(same.then(|| self.written.wrote(key, newest)))
    }

    /// Reports a stored spec that was not read. The history stays as it is.
    async fn reject(
        &self,
        key: &Key,
        object: Arc<TrackedField>,
        message: String,
    ) -> Result<Requeue, Error> {
        self.targets.unfollow(key);
        self.outbox.withdraw(key, false);
        let renew = self
            .say(key, object, Some(Waiting::SpecInvalid(message)))
            .await?;
        Ok(renew.map_or(Requeue::OnChange, Requeue::After))
    }

    /// Brings the status up to what was seen and sent. Gives the object and its history as they then stand; none where
    /// another pass has to look at it.
    async fn record(
        &self,
        key: &Key,
        mut object: Arc<TrackedField>,
        outcomes: &[(String, history::Outcome)],
        held: bool,
    ) -> Result<Option<(Arc<TrackedField>, History)>, Error> {
        let whose = Whose::of(&object);
        let seen = self.targets.tracker.seen(key, &whose);
        let api: Api<TrackedField> = Api::namespaced(self.client.clone(), &key.namespace);
        let mut raced = false;
        loop {
            let before = object.history().map_err(Error::History)?;
            let is_there = |id: &String| before.iter().any(|entry| entry.id.as_ref() == Some(id));
            if !raced && !outcomes.iter().all(|(id, _)| is_there(id)) {
                // What was sent stood in a status: this one is older, and would be none the wiser.
                raced = true;
                let Some(newest) = self.read_again(key, &object).await? else {
                    return Ok(None);
                };
                object = newest;
                continue;
            }
            let now = history::Now::read();
            let inputs = history::Inputs {
                subject: &whose.subject,
                observations: &seen.observations,
                newest: seen.newest.as_ref(),
                former: seen.former.as_ref(),
                outcomes,
                in_flight: &self.outbox.in_flight(key),
                held,
                limit: object.spec.history_limit,
                held_for: &self.outbox.observe(key, &before, held, now),
                now: now.wall,
            };
            let mut changes = history::next(&before, &inputs, || Uuid::now_v7().to_string());
            if changes.merged > 0 && self.outbox.holds(key) {
                // Nothing of what becomes one entry may be taken meanwhile: it would be told twice.
                self.outbox.withdraw(key, false);
                continue;
            }
            if changes.changed {
                let status = StoredHistory::try_from(&*changes.history);
                let status =
                    status.map_err(|error| Error::WriteStatus(kube::Error::SerdeError(error)))?;
                match apply::status(&api, MANAGER, object.as_ref(), &status).await {
                    Ok(written) => object = self.written.wrote(key, written),
                    Err(kube::Error::Api(status)) if status.code == 409 && !raced => {
                        debug!("the object changed in the meantime; its history is computed again");
                        raced = true;
                        let Some(newest) = self.read_again(key, &object).await? else {
                            return Ok(None);
                        };
                        object = newest;
                        continue;
                    }
                    Err(error) => return Err(Error::WriteStatus(error)),
                }
            }
            self.outbox
                .observe(key, &changes.history, held, history::Now::read());
            changes.merged += seen.merged;
            seen.recorded();
            if let Some(version) = changes.contradicted {
                self.targets.tracker.contradict(key, &whose, version);
            }
            self.tell(&object, &before, &changes);
            return Ok(Some((object, changes.history)));
        }
    }
}

impl<T: Transport> Reconciler for TrackedFields<T> {
    type Object = TrackedField;
    type Error = Error;

    async fn reconcile(&self, object: Arc<TrackedField>) -> Result<Requeue, Error> {
        let key = Key::of(object.as_ref());
        let object = self.written.newest(&key, object);
        if object.metadata.deletion_timestamp.is_some() {
            self.gone(&key);
            return Ok(Requeue::OnChange);
        }
        if let Err(message) = object.spec.check_size() {
            return self.reject(&key, object, message).await;
        }
        // Each observed change wakes the object: what is refused must not be sent that often.
        let circumstances = self.circumstances(&object);
        if let Some(delay) = self.outbox.rejected_write_due(&key, &circumstances) {
            return Ok(Requeue::After(delay));
        }
        let (answer, panic) = match self.targets.reads.take(&key, &Whose::of(&object)) {
            Some(Err(panic)) => (None, Some(panic)),
            Some(Ok(answer)) => (Some(answer), None),
            None => (None, None),
        };
        let was_read = panic.is_some() || matches!(answer, Some(Ok(Answer::Read) | Err(_)));
        let tracked = match answer {
            Some(Err(untracked)) => Err(untracked),
            _ => self.targets.track(&object),
        };
        let point_key = Key::new(&key.namespace, &object.spec.contact_point);
        let point = self
            .points
            .get(&ObjectRef::new(&point_key.name).within(&point_key.namespace));
        let suspended = object.spec.suspend.unwrap_or_default();
        let held = suspended
            || point
                .as_ref()
                .is_some_and(|point| point.spec.suspend.unwrap_or_default());

        let outcomes = self.outbox.outcomes(&key);
        let recorded = self
            .record(&key, Arc::clone(&object), &outcomes, held)
            .await;
        if let Err(Error::WriteStatus(error)) = &recorded
            && let Some((code, message)) = apply::rejection(error, self.availability.is_out())
        {
            self.metrics.status_write_rejected(code);
            self.outbox
                .write_rejected(&key, &point_key, (code, &message), circumstances);
            self.report_write_rejected(&key, object).await;
        }
        let Some((object, history)) = recorded? else {
            return Ok(Requeue::Poll);
        };
        // Only now: what was seen before, such as the end of the target along with its CRD, is recorded.
        if tracked
            .as_ref()
            .is_err_and(|untracked| untracked.waiting.ends_tracking())
        {
            self.targets.unfollow(&key);
        }
        // The request runs outside this reconcile: outcomes and other objects must not wait for a target that hangs.
        let outdated = was_read && self.targets.tracker.is_outdated(&key);
        let asks = match &tracked {
            Ok(tracked) if !was_read || outdated => self.targets.ask(&object, tracked.as_ref()),
            _ => false,
        };
        // Offered before the outcomes are given back: the line goes on with what the status now says.
        if suspended {
            self.outbox.withdraw(&key, false);
        } else {
            self.outbox
                .offer(&point_key, Offer::of(&object).map_err(Error::History)?);
        }
        self.outbox.recorded(&key, &outcomes);
        if let Some(panic) = panic {
            resume_unwind(panic);
        }

        let waiting = self.waiting(&key, &object, &history, &tracked, asks, point.as_deref());
        let renew = match waiting {
            Why::Unknown => None,
            Why::Known(waiting) => self.say(&key, object, waiting).await?,
        };
        let unserved = point.is_none() && self.points_phase.absent(&key.namespace).is_some();
        let resync = match tracked {
            Err(Untracked {
                error: Some(error), ..
            }) => return Err(*error),
            Err(Untracked { waiting, .. }) if waiting.ends_unnoticed() => {
                return Ok(Requeue::Poll);
            }
            Ok(_) if asks => self.terms.resync,
            Ok(Some(Tracked { target, shard, .. }))
                if self
                    .targets
                    .tracker
                    .trouble(&target.resource, shard.as_deref())
                    == Some(Trouble::NotServed) =>
            {
                return Ok(Requeue::Poll);
            }
            _ if unserved => return Ok(Requeue::Poll),
            // The read has not resolved the contradiction yet.
            Ok(Some(_))
                if self
                    .targets
                    .tracker
                    .unread(&key, self.terms.resync)
                    .is_some() =>
            {
                follower::DOUBT
            }
            Ok(_) => self.terms.resync.mul_f64(rand::random_range(1.0..1.2)),
            Err(_) => self.terms.resync,
        };
        let due = renew.map_or(resync, |renew| renew.min(resync));
        Ok(if asks {
            Requeue::InFlight(due)
        } else {
            Requeue::After(due)
        })
    }

    fn lead(&self) {
        let Targets { tracker, hub, .. } = &*self.targets;
        if !tracker.leads() {
            hub.relist(|generation| tracker.lead(generation));
        }
    }

    fn gone(&self, key: &Key) {
        self.targets.unfollow(key);
        self.targets.reads.forget(key);
        self.outbox.withdraw(key, true);
        self.written.forget(key);
        self.told
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(key);
    }
}
