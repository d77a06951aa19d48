//! One followed field: what was last seen of it, and what no pass has recorded yet.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::DynamicObject;
use uuid::Uuid;

use super::field::{Field, Observed};
use super::history::{self, Observation, ObservationBuffer, Series, State};
use super::target::TargetKey;
use crate::api::TrackedField;
use crate::api::tracked_field::{Entry, Subject};

/// How long a watch may show nothing more after a read that it disagrees with, before the read is believed.
pub const DOUBT: Duration = Duration::from_secs(5);

/// For whom, and of what, a field is followed. A pass over another spec, or over an object of the same name that was there
/// before, must neither add to what is observed nor take it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whose {
    /// UID of the `TrackedField`.
    pub uid: Option<String>,
    /// What its spec tracks.
    pub subject: Subject,
}

impl Whose {
    /// What `object` follows.
    pub fn of(object: &TrackedField) -> Self {
        Self { uid: object.uid(), subject: Subject::new(&object.spec.target, &object.spec.field) }
    }
}

pub(super) struct Follower {
    pub(super) whose: Whose,
    pub(super) target: TargetKey,
    pub(super) field: Field,
    /// Shown by the watch since it last began to list.
    pub(super) seen: bool,
    /// Its present state has to be read: it is followed from the middle of a watch, or a list did not show it.
    pub(super) unread: bool,
    /// A read showed another state than the watch did.
    pub(super) doubted: Option<Doubt>,
    /// When its state was last known for certain, from a list or a read.
    pub(super) certain: Instant,
    pub(super) newest: Option<Newest>,
    /// How often the watch has shown something that was not of the past.
    shown: u64,
    pub(super) buffer: ObservationBuffer,
    /// What was followed before for the same object, as far as no pass has recorded it.
    pub(super) former: Option<Series>,
    /// How many observations became one with a neighbour because the buffer was full, and nobody was told yet.
    pub(super) merged: usize,
}

/// How much the watch had shown when a read began.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Asked(u64);

/// The watch may only lag behind: what it shows next may be what was read.
#[derive(Clone, Copy)]
pub(super) struct Doubt {
    since: Instant,
    asked: Asked,
}

/// The state that was buffered last: the same again is no news.
pub(super) struct Newest {
    /// Of one that is gone, too.
    pub(super) uid: Option<String>,
    pub(super) version: Option<u64>,
    pub(super) value: Option<Observed>,
}

impl Follower {
    /// Nothing is known yet. `unread`: the watch may have shown the target already.
    pub(super) fn new(whose: Whose, target: TargetKey, field: Field, unread: bool) -> Self {
        Self {
            whose,
            target,
            field,
            seen: false,
            unread,
            doubted: None,
            certain: Instant::now(),
            newest: None,
            shown: 0,
            buffer: ObservationBuffer::default(),
            former: None,
            merged: 0,
        }
    }

    /// Takes in what was seen for the same object, before what is here, and not recorded. Of two former series the older one
    /// is but counted.
    pub(super) fn take_back(&mut self, series: Series) {
        if series.observations.is_empty() {
            return;
        }
        if series.subject == self.whose.subject {
            self.merged += self.buffer.restore(series.observations);
            return;
        }
        match &mut self.former {
            Some(former) if former.subject == series.subject => {
                former.observations.splice(..0, series.observations);
            }
            Some(_) => self.merged += series.observations.len(),
            None => self.former = Some(series),
        }
    }

    /// Takes out what was seen and not recorded: what it follows, and what was followed before.
    pub(super) fn unrecorded(&mut self) -> (Vec<Observation>, Option<Series>) {
        (self.buffer.drain(), self.former.take())
    }

    /// Drops what `last`, the newest entry of the history, tells of.
    pub(super) fn drop_told(&mut self, last: &Entry) {
        let speaks_of = |subject: &Subject| last.subject.as_ref() == Some(subject);
        if speaks_of(&self.whose.subject) {
            self.buffer.drop_told(last);
            self.former = None;
        } else if let Some(former) = self.former.as_mut().filter(|former| speaks_of(&former.subject)) {
            history::drop_told(&mut former.observations, last);
        }
    }

    /// Takes in the object's state, `None` if it is gone; whether it was news.
    pub(super) fn observe(&mut self, object: &DynamicObject, value: Option<Observed>) -> bool {
        self.seen = value.is_some();
        let uid = object.uid();
        let version = object.resource_version().and_then(|version| version.parse().ok());
        if let Some(newest) = &mut self.newest {
            // A watch that lags behind a read shows what the read has overtaken.
            let older = version.is_some() && version <= newest.version;
            let ended = newest.value.is_none() && newest.uid.is_some() && newest.uid == uid;
            if older || ended {
                return false;
            }
        }
        self.shown += 1;
        if let Some(newest) = &mut self.newest
            && newest.value == value
            && (value.is_none() || newest.uid == uid)
        {
            (newest.uid, newest.version) = (uid, version);
            return false;
        }
        self.push(uid, version, value)
    }

    fn push(&mut self, uid: Option<String>, version: Option<u64>, value: Option<Observed>) -> bool {
        self.newest = Some(Newest { uid: uid.clone(), version, value: value.clone() });
        let state = value.map_or(State::Absent, |value| State::Present { uid, value });
        let observation = Observation::new(Timestamp::now(), state, version).with_id(Uuid::now_v7());
        self.merged += self.buffer.push(observation);
        true
    }

    /// To be taken before a read begins.
    pub(super) fn asks(&self) -> Asked {
        Asked(self.shown)
    }

    /// Takes in what a read shows, `None` if there is nothing; `false` if it is to be read once more after [`DOUBT`].
    pub(super) fn read(&mut self, asked: Asked, now: Instant, state: Option<(&DynamicObject, Observed)>) -> bool {
        // Nothing has no version: the watch may have shown what was made after the apiserver had looked.
        if state.is_none() && asked != self.asks() {
            return false;
        }
        let known = self.newest.as_ref().is_some_and(|newest| match &state {
            Some((object, value)) => newest.value.as_ref() == Some(value) && newest.uid == object.uid(),
            None => newest.value.is_none(),
        });
        if !known && !self.unread {
            let goes_on = self.doubted.filter(|doubt| doubt.asked == self.asks());
            let doubt = goes_on.unwrap_or(Doubt { since: now, asked: self.asks() });
            self.doubted = Some(doubt);
            if now.duration_since(doubt.since) < DOUBT {
                return false;
            }
        }
        self.unread = false;
        self.doubted = None;
        self.certain = now;
        match state {
            _ if known => {}
            Some((object, value)) => {
                self.observe(object, Some(value));
            }
            None => {
                let uid = self.newest.take().and_then(|newest| newest.uid);
                self.push(uid, None, None);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
