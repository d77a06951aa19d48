//! Reports of corrected drift, and the backoff of corrections.
//!
//! Consecutive corrections of one child form an episode, reported once for each field and manager. From the third
//! correction within the window, the child is contested: its owner's status says so, and corrections back off until
//! they are no longer needed. The owner's status preserves a contest across a restart.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::time::Instant;
use tracing::info;

use super::ObjectKey;
use super::backoff::{Backoff, BackoffPolicy};
use super::events::Events;
use super::fields::{self, Path, Projection};
use super::managed_fields::TakenFields;
use super::ownership::Owner;
use crate::settings::RuntimeTimings;

/// Reason of the Event of a correction.
pub(crate) const CORRECTED: &str = "DriftCorrected";
/// Reason of the Event of a child that another client deleted.
pub const RECREATED: &str = "Recreated";
/// Reason of an owner whose child others keep changing.
pub const CONTESTED: &str = "DriftContested";
/// Part of a contest's message that follows the child's name, by which [`Drift::resume`] recognises the child.
const BACKING_OFF: &str = ", so the operator corrects it less often";
/// Number of corrections that makes a child contested.
const CORRECTIONS_UNTIL_CONTESTED: usize = 3;
/// Between the managers that a message names.
const SEPARATOR: &str = ", and ";
/// Between a manager and its fields.
const KEEPS_CHANGING: &str = " keeps changing ";
/// Maximum number of Events per episode.
const MAX_REPORTED: usize = 8;

/// Corrections of one controller's children of one kind.
pub struct Drift {
    events: Events,
    corrected: Counter,
    advice: Advice,
    window: Duration,
    backoff: BackoffPolicy,
    /// False if repeated corrections are neither reported as a contest nor delayed.
    backs_off: bool,
    episodes: Mutex<HashMap<ObjectKey, Episode>>,
    /// Fields that were taken from other managers, until an Event reports them. They outlast a reconcile, because the
    /// apply that removes them may fail.
    taken: Mutex<HashMap<ObjectKey, TakenFields>>,
    /// When the Event of a child's recreation was emitted.
    recreated: Mutex<HashMap<ObjectKey, Instant>>,
    /// Time of the last [`Drift::sweep`].
    swept: Mutex<Instant>,
}

/// Changes to make instead of editing a child, by field; the empty name stands for any field.
pub type Advice = &'static [(&'static str, &'static str)];

/// Correction of a child's drift.
pub(crate) struct Correction<'a> {
    /// Title of the child, such as `Deployment shop/web`.
    pub title: &'a str,
    /// The fields that were changed.
    pub fields: &'a [Path],
    /// The values before the correction.
    pub before: &'a Projection,
    /// Manager that changed the fields, if known.
    pub manager: Option<&'a str>,
    /// Digest of the child's desired state.
    pub digest: &'a str,
}

struct Episode {
    /// Desired state, and the author's last reconcile request: a change of either ends the episode.
    desired: (String, Option<String>),
    /// The latest corrections.
    latest: VecDeque<Corrected>,
    /// Managers and fields that Events have named.
    reported: BTreeSet<String>,
    contest: Option<Contest>,
}

struct Corrected {
    at: Instant,
    by: String,
    fields: String,
}

struct Contest {
    message: String,
    delays: Backoff,
    /// Earliest time of the next correction.
    next: Instant,
}

impl Drift {
    /// Creates a record without corrections. `events` reports them, `corrected` counts them.
    pub fn new(
        timings: &RuntimeTimings,
        events: Events,
        corrected: Counter,
        advice: Advice,
    ) -> Self {
        Self {
            events,
            corrected,
            advice,
            window: timings.drift_window,
            backoff: BackoffPolicy {
                min: timings.drift_backoff_min,
                max: timings.drift_backoff_max,
            },
            backs_off: true,
            episodes: Mutex::default(),
            taken: Mutex::default(),
            recreated: Mutex::default(),
            swept: Mutex::new(Instant::now()),
        }
    }

    /// Disables contests and the backoff of corrections.
    #[must_use]
    pub(crate) fn without_backoff(self) -> Self {
        Self {
            backs_off: false,
            ..self
        }
    }

    fn episodes(&self) -> MutexGuard<'_, HashMap<ObjectKey, Episode>> {
        self.episodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn taken(&self) -> MutexGuard<'_, HashMap<ObjectKey, TakenFields>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recreations(&self) -> MutexGuard<'_, HashMap<ObjectKey, Instant>> {
        self.recreated
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how long after the last correction a contest counts.
    fn contest_window(&self) -> Duration {
        self.window.max(self.backoff.max * 2)
    }

    /// Forgets ended episodes and former recreations, once per period: another client may change many children at once,
    /// and each sweep visits all of them.
    fn sweep(&self, now: Instant) {
        let kept = self.contest_window();
        let mut swept = self.swept.lock().unwrap_or_else(PoisonError::into_inner);
        if now.duration_since(*swept) <= kept {
            return;
        }
        *swept = now;
        drop(swept);
        self.episodes()
            .retain(|_, episode| !episode.has_ended(now, kept));
        self.recreations()
            .retain(|_, at| now.duration_since(*at) <= self.window);
    }

    /// Records fields that were taken from other managers, until [`Drift::drain_taken`].
    pub(crate) fn record_taken(&self, child: &ObjectKey, taken: TakenFields) {
        let mut all = self.taken();
        let all = all.entry(child.clone()).or_default();
        all.fields.extend(taken.fields);
        all.managers.extend(taken.managers);
    }

    /// Returns whether fields that were taken from other managers are still to be removed from the child.
    pub(crate) fn has_taken(&self, child: &ObjectKey) -> bool {
        self.taken().contains_key(child)
    }

    /// Returns the recorded fields, and forgets them.
    pub(crate) fn drain_taken(&self, child: &ObjectKey) -> TakenFields {
        self.taken().remove(child).unwrap_or_default()
    }

    /// Continues a contest that an earlier process recorded in the owner's status with this message, if the message is
    /// about the child with this `title`. Corrections recorded in this process take precedence.
    pub fn resume(
        &self,
        owner: &Owner,
        child: &ObjectKey,
        title: &str,
        digest: &str,
        message: &str,
    ) {
        let Some((reported, _)) = message.split_once(&format!(" of {title}{BACKING_OFF}")) else {
            return;
        };
        let now = Instant::now();
        let latest: VecDeque<_> = reported
            .split(SEPARATOR)
            .filter_map(|each| each.split_once(KEEPS_CHANGING))
            .map(|(by, fields)| Corrected {
                at: now,
                by: by.into(),
                fields: fields.into(),
            })
            .collect();
        self.episodes()
            .entry(child.clone())
            .or_insert_with(|| Episode {
                reported: latest.iter().map(Corrected::to_string).collect(),
                latest,
                contest: Some(Contest {
                    message: message.to_owned(),
                    delays: self.backoff.start(),
                    next: now,
                }),
                ..Episode::of(owner, digest)
            });
    }

    /// Returns whether a correction of the child must wait. A new desired state or reconcile request is never delayed.
    pub(crate) fn is_backing_off(&self, owner: &Owner, child: &ObjectKey, digest: &str) -> bool {
        let mut episodes = self.episodes();
        let Some(episode) = episodes.get(child) else {
            return false;
        };
        if !episode.is_of(owner, digest) {
            episodes.remove(child);
            return false;
        }
        episode
            .contest
            .as_ref()
            .is_some_and(|contest| contest.next > Instant::now())
    }

    /// Records a correction of a child.
    pub(crate) fn corrected(&self, owner: &Owner, child: &ObjectKey, correction: &Correction<'_>) {
        let Correction {
            title,
            fields,
            before,
            manager,
            digest,
        } = correction;
        // Nothing to report: admission or the apiserver only spells an equal value differently.
        if fields.is_empty() {
            return;
        }
        let values = fields::old_values(fields, before);
        let (fields, by) = (
            fields::format_paths(fields),
            manager.unwrap_or("another client"),
        );
        info!(
            child = title,
            fields,
            before = values,
            manager,
            "corrected drift"
        );
        self.corrected.inc();
        let kind = owner.kind();
        // Advice about one field says nothing about the others.
        let advice = self
            .advice
            .iter()
            .find(|(field, _)| field.is_empty() || fields == *field);
        let general = format!("change the {kind} instead");
        let advice = advice.map_or(&*general, |(_, advice)| *advice);

        let now = Instant::now();
        self.sweep(now);
        let mut episodes = self.episodes();
        // An ended episode must not count towards this one.
        let has_ended = |episode: &Episode| {
            let kept = if episode.contest.is_none() {
                self.window
            } else {
                self.contest_window()
            };
            !episode.is_of(owner, digest) || episode.has_ended(now, kept)
        };
        if episodes.get(child).is_some_and(has_ended) {
            episodes.remove(child);
        }
        let episode = episodes
            .entry(child.clone())
            .or_insert_with(|| Episode::of(owner, digest));
        let corrected = Corrected {
            at: now,
            by: by.to_owned(),
            fields: fields.clone(),
        };
        let is_unreported =
            episode.reported.len() < MAX_REPORTED && episode.reported.insert(corrected.to_string());
        episode.latest.push_back(corrected);
        episode
            .latest
            .retain(|latest| now.duration_since(latest.at) <= self.window);
        while episode.latest.len() > CORRECTIONS_UNTIL_CONTESTED {
            episode.latest.pop_front();
        }
        if self.backs_off
            && (episode.latest.len() == CORRECTIONS_UNTIL_CONTESTED || episode.contest.is_some())
        {
            let mut delays = episode
                .contest
                .take()
                .map_or_else(|| self.backoff.start(), |contest| contest.delays);
            let next = now + delays.next_delay();
            let latest = &episode.latest;
            let managers: BTreeSet<_> = latest.iter().map(Corrected::to_string).collect();
            let managers: Vec<_> = managers.iter().map(String::as_str).collect();
            let managers = managers.join(SEPARATOR);
            let is_one_field = latest.iter().all(|it| it.fields == fields);
            let advice = if is_one_field { advice } else { &general };
            let message = format!("{managers} of {title}{BACKING_OFF}: {advice}");
            episode.contest = Some(Contest {
                message,
                delays,
                next,
            });
        }
        drop(episodes);
        if is_unreported {
            let values = if values.is_empty() {
                values
            } else {
                format!("; before: {values}")
            };
            let note = format!("corrected {fields} of {title}, changed by {by}: {advice}{values}");
            self.events
                .warning(owner.object_ref(), "Correct", CORRECTED, note);
        }
    }

    /// Records that the child is a new object: any contest and taken fields belong to the previous object.
    pub fn created(&self, child: &ObjectKey) {
        self.episodes().remove(child);
        self.taken().remove(child);
    }

    /// Records that a child, such as `Deployment shop/web`, was created again because another client deleted it. At
    /// most one Event within the window reports a recreation of the child.
    pub fn recreated(&self, owner: &Owner, child: &ObjectKey, title: &str) {
        self.created(child);
        info!(child = title, "recreated a deleted child");
        self.corrected.inc();
        let now = Instant::now();
        self.sweep(now);
        let mut recreations = self.recreations();
        let reported = recreations.get(child);
        let is_unreported = reported.is_none_or(|at| now.duration_since(*at) > self.window);
        if is_unreported {
            recreations.insert(child.clone(), now);
        }
        drop(recreations);
        if is_unreported {
            let kind = owner.kind();
            let note = format!(
                "recreated {title}, which another client had deleted: change the {kind} instead"
            );
            self.events
                .normal(owner.object_ref(), "Create", RECREATED, note);
        }
    }

    /// Returns the message about a child that other managers keep changing, and the delay until the next reconcile.
    /// Call this when the child matches its desired state or its correction must wait: the episode ends once
    /// corrections have stopped.
    pub fn contested(&self, child: &ObjectKey) -> Option<(String, Duration)> {
        let now = Instant::now();
        let mut episodes = self.episodes();
        let episode = episodes.get(child)?;
        let contest = episode.contest.as_ref()?;
        let end = episode.latest.back()?.at + self.backoff.max;
        let next = if contest.next > now {
            contest.next
        } else {
            end
        };
        if next <= now {
            episodes.remove(child);
            return None;
        }
        Some((contest.message.clone(), next - now))
    }

    /// Forgets a child that is no longer desired.
    pub fn forget(&self, child: &ObjectKey) {
        self.created(child);
        self.recreations().remove(child);
    }
}

impl fmt::Display for Corrected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{KEEPS_CHANGING}{}", self.by, self.fields)
    }
}

impl Episode {
    fn of(owner: &Owner, digest: &str) -> Self {
        let desired = (digest.to_owned(), owner.revision().requested_at.clone());
        Self {
            desired,
            latest: VecDeque::new(),
            reported: BTreeSet::new(),
            contest: None,
        }
    }

    /// Returns whether the last correction is longer ago than `kept`.
    fn has_ended(&self, now: Instant, kept: Duration) -> bool {
        let last = self.latest.back();
        last.is_none_or(|last| now.duration_since(last.at) > kept)
    }

    fn is_of(&self, owner: &Owner, digest: &str) -> bool {
        self.desired.0 == digest && self.desired.1 == owner.revision().requested_at
    }
}

#[cfg(test)]
mod tests;
