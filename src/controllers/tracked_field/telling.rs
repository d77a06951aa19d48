//! What a pass says: Events, metrics, and the annotation that tells why a `TrackedField` waits.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{Api, Resource, ResourceExt};
use qm_api::common::{WAITING, WAITING_REASON};
use qm_api::tracked_field::Entry;
use qm_api::{ContactPoint, TrackedField};
use qm_notify::Transport;
use qm_notify::history::Changes;
use qm_notify::metrics::EntryFailure;
use qm_runtime::{Key, apply};
use tracing::debug;

use super::follower::Whose;
use super::following::{Targets, Tracked, Untracked};
use super::waiting::{self, Waiting};
use super::{Error, MANAGER, TrackedFields, target};

/// Reason why a `TrackedField` waits, if known.
pub(super) enum Why {
    /// The target's state is not known yet, so the last report stays.
    Unknown,
    /// The reason is known; `None` if nothing waits.
    Known(Option<Waiting>),
}

impl<T: Transport> TrackedFields<T> {
    /// Events and metrics of what a pass wrote, and of what stood there before.
    pub(super) fn tell(&self, object: &TrackedField, before: &[Entry], changes: &Changes) {
        if let Some((last, others)) = changes.failed.split_last() {
            let reason = last.reason.as_deref().unwrap_or_default();
            let value = last.value.as_deref().unwrap_or("(no value)");
            let note = match others.len() {
                0 => format!("{} {value}: not delivered: {reason}", last.action),
                others => format!(
                    "{} {value}, and {others} before it: not delivered: {reason}",
                    last.action
                ),
            };
            self.events
                .warning(object.object_ref(&()), "Notify", "DeliveryFailed", note);
        }
        let rejected = changes.failed.len().saturating_sub(changes.expired);
        self.metrics
            .entries_failed(EntryFailure::Expired, changes.expired as u64);
        self.metrics
            .entries_failed(EntryFailure::Rejected, rejected as u64);
        if changes.merged > 0 {
            self.metrics.entries_merged(changes.merged as u64);
            // Once, for as long as something joined waits.
            if !before
                .iter()
                .any(|entry| entry.is_pending() && entry.merged.is_some())
            {
                let note = "changes that wait to be sent are joined with their neighbours: the outbox is full";
                self.events.warning(
                    object.object_ref(&()),
                    "Merge",
                    "EntriesMerged",
                    note.into(),
                );
            }
        }
    }

    /// Once other objects go on without this one, reports the refused status write in an Event and in the annotation,
    /// which may be refused too.
    pub(super) async fn report_write_rejected(&self, key: &Key, object: Arc<TrackedField>) {
        let Some(why) = self.outbox.left_out(key) else {
            return;
        };
        let waiting = Waiting::WriteRejected(why);
        self.say_event(key, &object.object_ref(&()), Some(waiting.clone()));
        if let Err(error) = self.annotate(key, &object, Some(&waiting)).await {
            debug!(
                error = &error as &dyn std::error::Error,
                "the annotation was not written either; will retry"
            );
        }
    }

    /// Why messages of this object cannot be sent now.
    fn point_trouble(
        &self,
        key: &Key,
        object: &TrackedField,
        pending: bool,
        point: Option<&ContactPoint>,
    ) -> Option<Waiting> {
        let name = &object.spec.contact_point;
        let Some(point) = point else {
            if let Some(why) = self.points_phase.absent(&key.namespace) {
                let because = format!("this operator does not serve contact points: {why}");
                return Some(Waiting::ContactPointNotReady {
                    name: name.clone(),
                    because,
                });
            }
            let points = self.points.state();
            let names: Vec<String> = points
                .iter()
                .filter(|point| point.namespace().as_deref() == Some(&*key.namespace))
                .map(|point| point.name_any())
                .collect();
            let nearest =
                target::nearest(name, names.iter().map(String::as_str)).map(str::to_owned);
            return Some(Waiting::ContactPointNotFound {
                name: name.clone(),
                nearest,
            });
        };
        waiting::of_point(point).or_else(|| {
            let message = self.outbox.failing(&Key::of(point))?;
            pending.then(|| Waiting::DeliveryFailing {
                name: name.clone(),
                message,
            })
        })
    }

    /// Returns why the object waits. Obstacles to sending Pending entries come first. `asks`: an answer about the
    /// target is awaited.
    pub(super) fn waiting(
        &self,
        key: &Key,
        object: &TrackedField,
        history: &[Entry],
        tracked: &Result<Option<Tracked>, Untracked>,
        asks: bool,
        point: Option<&ContactPoint>,
    ) -> Why {
        let pending = history.iter().any(Entry::is_pending);
        let of_point = if object.spec.suspend.unwrap_or_default() {
            Some(Waiting::Suspended)
        } else {
            self.point_trouble(key, object, pending, point)
        };
        if of_point.is_some() && pending {
            return Why::Known(of_point);
        }
        let Targets { tracker, reads, .. } = &*self.targets;
        let (unknown, failure) = (
            tracker.exists(key).is_none(),
            reads.failure(key, &Whose::of(object)),
        );
        let of_target = match tracked {
            Err(untracked) => Some(untracked.waiting.clone()),
            // The last failure counts until the next answer.
            Ok(_) if asks && failure.is_some() => failure,
            Ok(_) if asks && unknown => return Why::Unknown,
            Ok(tracked) => tracked.as_ref().and_then(|it| {
                waiting::of_target(tracker, key, it.shard.as_deref(), &it.target, object)
            }),
        };
        if of_target.is_none() && unknown {
            return Why::Unknown;
        }
        let cluster = self.cluster.as_deref();
        Why::Known(
            of_target
                .or_else(|| waiting::of_template(object, history, cluster))
                .or_else(|| waiting::of_body(object, history, point?, cluster))
                .or(of_point),
        )
    }

    /// Writes why the object waits, when that changed, and renews its Event.
    pub(super) async fn say(
        &self,
        key: &Key,
        object: Arc<TrackedField>,
        waiting: Option<Waiting>,
    ) -> Result<Option<Duration>, Error> {
        self.annotate(key, &object, waiting.as_ref())
            .await
            .map_err(Error::WriteWaiting)?;
        Ok(self.say_event(key, &object.object_ref(&()), waiting))
    }

    async fn annotate(
        &self,
        key: &Key,
        object: &TrackedField,
        waiting: Option<&Waiting>,
    ) -> kube::Result<()> {
        let text = waiting.map(Waiting::to_string);
        let desired = [
            (WAITING, text.as_deref()),
            (WAITING_REASON, waiting.map(Waiting::reason)),
        ];
        if desired
            .iter()
            .any(|(name, value)| object.annotations().get(*name).map(String::as_str) != *value)
        {
            let api: Api<TrackedField> = Api::namespaced(self.client.clone(), &key.namespace);
            self.written.wrote(
                key,
                apply::annotate(&api, MANAGER, object, &desired.into()).await?,
            );
        }
        Ok(())
    }

    /// Publishes the Event that says why an object waits, once for each change and again before it is forgotten. Gives
    /// when it is due again.
    fn say_event(
        &self,
        key: &Key,
        regarding: &ObjectReference,
        waiting: Option<Waiting>,
    ) -> Option<Duration> {
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
        let (regarding, reason, message) = (regarding.clone(), waiting.reason(), waiting.message());
        if waiting.is_warning() {
            self.events.warning(regarding, "Reconcile", reason, message);
        } else {
            self.events.normal(regarding, "Reconcile", reason, message);
        }
        told.insert(key.clone(), (waiting, now));
        Some(self.terms.renew_event)
    }
}
