//! A followed field: its newest state, the certainty of that state, and the changes not recorded yet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::ResourceExt;
use qm_api::TrackedField;
use qm_api::tracked_field::{Entry, Subject};
use qm_core::shared;
use qm_notify::history::{
    NewestState, ObservationBuffer, ObservedField, ObservedValue, observation,
};
use qm_runtime::raw_object::RawObject;
use uuid::Uuid;

use super::field::Selectors;
use super::lookup::Unreadable;
use super::resolver::TargetKey;

/// Time without watch events after which a read that contradicts the watch is accepted.
pub(crate) const CONTRADICTION_GRACE: Duration = Duration::from_secs(5);

/// Identity of a followed field. A reconcile of another spec, or of an earlier object with the same name, must neither
/// add nor remove observations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FollowIdentity {
    /// UID of the `TrackedField`.
    pub uid: Option<Arc<str>>,
    /// Target and field of the spec.
    pub subject: Subject,
}

impl FollowIdentity {
    /// Returns the identity of `object`.
    pub fn of(object: &TrackedField) -> Self {
        Self {
            uid: object.metadata.uid.as_deref().map(shared::text),
            subject: Subject::new(&object.spec.target, &object.spec.field),
        }
    }
}

pub(super) struct Follower {
    /// Number of the follower: a later follower of the same `TrackedField` has another one.
    number: u64,
    /// Time since when the field is followed.
    begun: Timestamp,
    pub(super) identity: FollowIdentity,
    pub(super) target: TargetKey,
    pub(super) selectors: Arc<Selectors>,
    /// The watch has shown the object since its last list began.
    pub(super) listed: bool,
    pub(super) certainty: Certainty,
    pub(super) newest: Option<Newest>,
    /// Why the object's current version cannot be read, and that version. The newest state is then from an earlier one.
    pub(super) unreadable: Option<(Unreadable, Option<u64>)>,
    outdated_by: Option<UnreadVersion>,
    /// The last lookup was too expensive for a thread with other work: the next read runs it in the background.
    pub(super) is_deferred: bool,
    /// Number of watch events that were newer than the known state.
    newer_events: u64,
    /// Observations that no reconcile has recorded, those of former targets of the same object first.
    pub(super) buffer: ObservationBuffer,
}

/// Certainty of the newest state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Certainty {
    /// The current or the next list shows the state; awaited since this instant.
    AwaitingList(Instant),
    /// The state needs a read: the watch may have shown it before the field was followed, or a list omitted it.
    NeedsRead,
    /// A list or a read showed the state, or found no object.
    Confirmed(Instant),
    /// The watch, a read and the history disagree. The watch may only lag, and show next what the read showed.
    Contradicted {
        /// Start of the contradiction, or time of a later watch event.
        since: Instant,
        /// Version of the history's last entry, if the history contradicts the watch.
        outranks: Option<u64>,
    },
}

/// State of a follower at the start of a read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct ReadTicket {
    follower: u64,
    newer_events: u64,
    outranks: Option<u64>,
}

/// Version that a metadata watch has shown and no read has returned yet.
#[derive(Clone, Copy)]
struct UnreadVersion {
    version: u64,
    /// Time since when the newest state is outdated.
    since: Instant,
}

/// Newest known state; observing the same state again is no change.
pub(super) struct Newest {
    /// UID, also of a deleted object.
    pub(super) uid: Option<String>,
    pub(super) version: Option<u64>,
    created: Option<Timestamp>,
    /// The field of the version that first had this value; `None` for a deleted object.
    observed: Option<ObservedField>,
    outranks: Option<u64>,
}

impl Follower {
    /// Creates a follower without a known state.
    pub(super) fn new(
        number: u64,
        identity: FollowIdentity,
        target: TargetKey,
        selectors: Arc<Selectors>,
        certainty: Certainty,
    ) -> Self {
        Self {
            number,
            begun: Timestamp::now(),
            identity,
            target,
            selectors,
            listed: false,
            certainty,
            newest: None,
            unreadable: None,
            outdated_by: None,
            is_deferred: false,
            newer_events: 0,
            buffer: ObservationBuffer::default(),
        }
    }

    /// Returns the newest known value.
    pub(super) fn known_value(&self) -> Option<&ObservedValue> {
        self.newest.as_ref()?.value()
    }

    /// Observes the object's state, `None` after its deletion. Returns whether a reconcile is needed.
    pub(super) fn observe(&mut self, object: &RawObject, observed: Option<ObservedField>) -> bool {
        let value = observed.as_ref().map(|observed| &observed.value);
        let relisted = !self.listed && value.is_some();
        self.listed = value.is_some();
        let (uid, version) = (object.uid(), version(object));
        if let Some(newest) = &mut self.newest {
            // A watch that lags behind a read shows states that the read has overtaken.
            let older = version.is_some() && version <= newest.version;
            let ended = newest.observed.is_none() && newest.uid.is_some() && newest.uid == uid;
            if older || ended {
                // A list that disagrees comes from a stale cache, or from an etcd that was restored.
                let disagrees =
                    relisted && newest.value() != value && self.certainty != Certainty::NeedsRead;
                if disagrees {
                    self.certainty = Certainty::Contradicted {
                        since: Instant::now(),
                        outranks: None,
                    };
                }
                let recovered = relisted && self.unreadable.take().is_some();
                return disagrees || recovered;
            }
        }
        self.count_newer_event();
        let recovered = self.unreadable.take().is_some();
        self.outdated_by = self
            .outdated_by
            .filter(|unread| value.is_some() && version.unwrap_or_default() < unread.version);
        if let Some(newest) = &mut self.newest
            && newest.value() == value
            && (value.is_none() || newest.uid == uid)
        {
            (newest.uid, newest.version) = (uid, version);
            return recovered;
        }
        self.push(Some(object), uid, version, observed);
        true
    }

    /// Records that the watch shows a version that cannot be read: the newest state stays. Returns whether a reconcile
    /// is needed.
    pub(super) fn observe_unreadable(&mut self, object: &RawObject, why: &Unreadable) -> bool {
        self.listed = true;
        let version = version(object);
        // See `observe`: a watch that lags behind a read shows states that the read has overtaken.
        if version.is_some()
            && self
                .newest
                .as_ref()
                .is_some_and(|newest| version <= newest.version)
        {
            return false;
        }
        self.count_newer_event();
        self.outdated_by = self
            .outdated_by
            .filter(|unread| version.unwrap_or_default() < unread.version);
        let before = self.unreadable.replace((why.clone(), version));
        before.is_none_or(|(before, _)| before != *why)
    }

    /// Records a metadata event of an object that exists. Returns whether a read is needed.
    pub(super) fn observe_metadata(&mut self, metadata: &RawObject) -> bool {
        let relisted = !std::mem::replace(&mut self.listed, true);
        let version = version(metadata);
        if let Some(newest) = &self.newest {
            let ended =
                newest.observed.is_none() && newest.uid.is_some() && newest.uid == metadata.uid();
            let same = newest.observed.is_some()
                && newest.uid == metadata.uid()
                && newest.version == version;
            // A watch that lags behind a read shows stale versions; a list with stale versions comes from a restored
            // etcd.
            let stale = (version.is_some() && version <= newest.version) || ended;
            if same || (stale && !relisted) {
                return false;
            }
        }
        self.count_newer_event();
        self.outdate(metadata);
        true
    }

    fn outdate(&mut self, object: &RawObject) {
        self.outdated_by = Some(UnreadVersion {
            version: version(object).unwrap_or_default(),
            since: self
                .outdated_by
                .map_or_else(Instant::now, |unread| unread.since),
        });
        self.certainty = Certainty::NeedsRead;
    }

    /// Defers the lookup in a version that the watch shows until a read, as if the event had metadata alone. Returns
    /// whether a read is needed.
    pub(super) fn defer_lookup(&mut self, object: &RawObject) -> bool {
        self.is_deferred = true;
        self.observe_metadata(object)
    }

    /// Defers the lookup in a version that a read has returned until another read.
    pub(super) fn defer_read(&mut self, object: &RawObject) {
        (self.is_deferred, self.listed) = (true, true);
        self.outdate(object);
    }

    /// Returns whether a metadata watch has shown a version that no read has returned yet.
    pub(super) fn is_outdated(&self) -> bool {
        self.outdated_by.is_some()
    }

    /// Returns whether a metadata watch has shown a version that no read has returned yet, and did so within `limit`.
    pub(super) fn is_outdated_within(&self, limit: Duration) -> bool {
        self.outdated_by
            .is_some_and(|unread| unread.since.elapsed() < limit)
    }

    /// Returns whether `object`, from a read, has the version that a metadata watch has shown, or a later one.
    pub(super) fn is_satisfied_by(&self, object: &RawObject) -> bool {
        self.outdated_by
            .is_some_and(|unread| version(object).unwrap_or_default() >= unread.version)
    }

    fn push(
        &mut self,
        object: Option<&RawObject>,
        uid: Option<String>,
        version: Option<u64>,
        observed: Option<ObservedField>,
    ) {
        let newest = Newest {
            uid,
            version,
            created: object
                .and_then(ResourceExt::creation_timestamp)
                .map(|it| it.0),
            observed,
            outranks: None,
        };
        let id = Uuid::now_v7().to_string();
        self.buffer
            .push(newest.observation(&self.identity, Some(id)));
        self.newest = Some(newest);
    }

    /// Returns the newest state, to compare with the history.
    pub(super) fn newest(&self) -> Option<NewestState> {
        let newest = self.newest.as_ref()?;
        Some(NewestState {
            observation: newest.observation(&self.identity, None),
            created: newest.created,
            // The apiserver truncates the time to seconds.
            existed: newest
                .created
                .is_some_and(|created| created.as_second() < self.begun.as_second()),
            outranks: newest.outranks,
        })
    }

    /// Records that the watch shows a version that is newer than the known state.
    fn count_newer_event(&mut self) {
        self.newer_events += 1;
        if let Certainty::Contradicted { since, .. } = &mut self.certainty {
            *since = Instant::now();
        }
    }

    /// Records that the history, whose last entry has version `outranks`, contradicts the newest state. Reads decide.
    pub(super) fn contradict(&mut self, outranks: u64) {
        let since = match self.certainty {
            Certainty::NeedsRead => return,
            // Each reconcile repeats the contradiction, which must not postpone the decision.
            Certainty::Contradicted { since, .. } => since,
            _ => Instant::now(),
        };
        let outranks = Some(outranks);
        self.certainty = Certainty::Contradicted { since, outranks };
    }

    /// Records that the current list has shown the state.
    pub(super) fn confirm_listed(&mut self) {
        if let Certainty::AwaitingList(_) = self.certainty {
            self.certainty = Certainty::Confirmed(Instant::now());
        }
    }

    /// Waits for the list of a relist that begins now.
    pub(super) fn await_list(&mut self) {
        self.certainty = Certainty::AwaitingList(Instant::now());
    }

    /// Returns whether the target must be read: its newest state is unknown, contradicted, or not confirmed for longer
    /// than `trusted`.
    pub(super) fn has_to_be_read(&self, trusted: Duration) -> bool {
        match self.certainty {
            Certainty::AwaitingList(since) | Certainty::Confirmed(since) => {
                since.elapsed() > trusted
            }
            Certainty::NeedsRead | Certainty::Contradicted { .. } => true,
        }
    }

    /// Returns a ticket, to be taken before a read begins.
    pub(super) fn read_ticket(&self) -> ReadTicket {
        let outranks = match self.certainty {
            Certainty::Contradicted { outranks, .. } => outranks,
            _ => None,
        };
        ReadTicket {
            follower: self.number,
            newer_events: self.newer_events,
            outranks,
        }
    }

    /// Returns whether the ticket was taken by this follower, rather than by an earlier one of the same `TrackedField`.
    pub(super) fn has_taken(&self, ticket: &ReadTicket) -> bool {
        ticket.follower == self.number
    }

    /// Accepts the result of a read, `None` if the object does not exist. A result that contradicts the watch counts
    /// only after [`CONTRADICTION_GRACE`] without watch events.
    pub(super) fn read(
        &mut self,
        ticket: ReadTicket,
        now: Instant,
        found: Option<(&RawObject, ObservedField)>,
    ) {
        let overtaken = ticket.newer_events != self.newer_events;
        // A missing object has no version: the watch may have shown an object that was created after the read.
        if found.is_none() && overtaken {
            return;
        }
        let known = self.newest.as_ref().is_some_and(|newest| match &found {
            Some((object, observed)) => {
                newest.value() == Some(&observed.value) && newest.uid == object.uid()
            }
            None => newest.observed.is_none(),
        });
        if !known && self.certainty != Certainty::NeedsRead && self.newest.is_some() {
            match self.certainty {
                Certainty::Contradicted { since, .. }
                    if now.duration_since(since) >= CONTRADICTION_GRACE => {}
                Certainty::Contradicted { .. } => return,
                _ => {
                    let (since, outranks) = (now, ticket.outranks);
                    self.certainty = Certainty::Contradicted { since, outranks };
                    return;
                }
            }
        }
        self.confirm(found.as_ref().map(|(object, _)| *object), now);
        if !overtaken {
            self.unreadable = None;
        }
        let unreadable = self.unreadable.as_ref().zip(found.as_ref());
        let is_later_unreadable =
            unreadable.is_some_and(|((_, later), (object, _))| version(object) < *later);
        match found {
            // The watch has shown the later version during the read.
            Some(_) if overtaken && is_later_unreadable => {}
            Some((object, observed)) if overtaken && !known => {
                self.observe(object, Some(observed));
            }
            Some((object, observed)) => {
                self.listed = true;
                if !known {
                    self.push(Some(object), object.uid(), version(object), Some(observed));
                } else if let Some(newest) = self.newest.as_mut().filter(|_| !overtaken) {
                    // Lower versions count too: later events of the watch are compared with this version.
                    newest.version = version(object);
                }
            }
            None if known => {}
            None => {
                let uid = self.newest.take().and_then(|newest| newest.uid);
                self.push(None, uid, None, None);
            }
        }
        if let Some(newest) = &mut self.newest {
            newest.outranks = newest.outranks.max(ticket.outranks);
        }
    }

    /// Accepts the result of a read that found an unreadable object. No further read is needed: the watch shows the
    /// next version.
    pub(super) fn read_unreadable(
        &mut self,
        ticket: ReadTicket,
        now: Instant,
        object: &RawObject,
        why: &Unreadable,
    ) {
        self.confirm(Some(object), now);
        if ticket.newer_events == self.newer_events {
            self.listed = true;
            self.unreadable = Some((why.clone(), version(object)));
        } else {
            self.observe_unreadable(object, why);
        }
    }

    /// Records that a read has returned `object`, `None` if it does not exist.
    fn confirm(&mut self, object: Option<&RawObject>, now: Instant) {
        if object.is_none_or(|object| self.is_satisfied_by(object)) {
            self.outdated_by = None;
        }
        // The watch has shown a later version during the read: another read is needed.
        self.certainty = if self.is_outdated() {
            Certainty::NeedsRead
        } else {
            Certainty::Confirmed(now)
        };
    }
}

impl Newest {
    /// Returns the field's value; `None` for a deleted object.
    pub(super) fn value(&self) -> Option<&ObservedValue> {
        self.observed.as_ref().map(|observed| &observed.value)
    }

    fn observation(&self, identity: &FollowIdentity, id: Option<String>) -> Entry {
        observation(
            &identity.subject,
            Timestamp::now(),
            self.uid.clone(),
            self.observed.as_ref(),
            self.version,
            id,
        )
    }
}

fn version(object: &RawObject) -> Option<u64> {
    object.resource_version()?.parse().ok()
}

#[cfg(test)]
mod tests;
