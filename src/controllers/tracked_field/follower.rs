//! One followed field: its newest state, how certain that is, and the changes that no pass has recorded yet.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::DynamicObject;
use uuid::Uuid;

use super::field::{Field, Observed};
use super::history::{NewestState, Observation, ObservationBuffer, Series, State};
use super::target::TargetKey;
use crate::api::TrackedField;
use crate::api::tracked_field::Subject;

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
    pub(super) listed: bool,
    pub(super) certainty: Certainty,
    pub(super) newest: Option<Newest>,
    /// How often the watch has shown something that was not of the past.
    shown: u64,
    pub(super) buffer: ObservationBuffer,
    /// What was followed before for the same object, as far as no pass has recorded it.
    pub(super) former: Option<Series>,
    /// How many observations became one with a neighbour because the buffer was full, and nobody was told yet.
    pub(super) merged: usize,
}

/// How certain the newest state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Certainty {
    /// The list that is under way, or the next one, shows the state. Since then it has been waited for.
    AwaitingList(Instant),
    /// The watch may have shown the state before it was followed, or a list did not show it.
    NeedsRead,
    /// A list or a read showed the state, or found none.
    Confirmed(Instant),
    /// The watch, a read and the history do not agree. The watch may only lag behind: what it shows next may be what was read.
    Contradicted(Doubt),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Doubt {
    since: Instant,
    shown: u64,
    /// The version of the history's last entry, if the history contradicts the watch.
    outranks: Option<u64>,
}

/// How much was known when a read began.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Asked {
    shown: u64,
    outranks: Option<u64>,
}

/// The newest state that is known: the same again is no news.
pub(super) struct Newest {
    /// Of one that is gone, too.
    pub(super) uid: Option<String>,
    pub(super) version: Option<u64>,
    pub(super) value: Option<Observed>,
    outranks: Option<u64>,
}

impl Follower {
    /// Nothing is known yet.
    pub(super) fn new(whose: Whose, target: TargetKey, field: Field, certainty: Certainty) -> Self {
        Self {
            whose,
            target,
            field,
            listed: false,
            certainty,
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

    /// Takes in the object's state, `None` if it is gone; whether a pass has to look at it.
    pub(super) fn observe(&mut self, object: &DynamicObject, value: Option<Observed>) -> bool {
        let relisted = !self.listed && value.is_some();
        self.listed = value.is_some();
        let (uid, version) = (object.uid(), version(object));
        if let Some(newest) = &mut self.newest {
            // A watch that lags behind a read shows what the read has overtaken.
            let older = version.is_some() && version <= newest.version;
            let ended = newest.value.is_none() && newest.uid.is_some() && newest.uid == uid;
            if older || ended {
                // A list that disagrees comes from a cache that lags behind, or from an etcd that was restored.
                let disagrees = relisted && newest.value != value && self.certainty != Certainty::NeedsRead;
                if disagrees {
                    self.doubt(Instant::now(), None);
                }
                return disagrees;
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
        self.push(uid, version, value);
        true
    }

    fn push(&mut self, uid: Option<String>, version: Option<u64>, value: Option<Observed>) {
        let observation = Observation::new(Timestamp::now(), state(uid.clone(), value.clone()), version);
        self.newest = Some(Newest { uid, version, value, outranks: None });
        self.merged += self.buffer.push(observation.with_id(Uuid::now_v7()));
    }

    /// The newest state, for the history to be compared with.
    pub(super) fn newest(&self) -> Option<NewestState> {
        let Newest { uid, version, value, outranks } = self.newest.as_ref()?;
        let observation = Observation::new(Timestamp::now(), state(uid.clone(), value.clone()), *version);
        Some(NewestState { observation, outranks: *outranks })
    }

    /// The history, whose last entry is of the version `outranks`, contradicts the newest state. Reads decide.
    pub(super) fn contradict(&mut self, outranks: u64) {
        match &mut self.certainty {
            Certainty::NeedsRead => {}
            // Said by each pass: that must not put the decision off.
            Certainty::Contradicted(doubt) if doubt.shown == self.shown => doubt.outranks = Some(outranks),
            _ => self.doubt(Instant::now(), Some(outranks)),
        }
    }

    fn doubt(&mut self, since: Instant, outranks: Option<u64>) {
        self.certainty = Certainty::Contradicted(Doubt { since, shown: self.shown, outranks });
    }

    /// The lists of a new generation are awaited, which began only now.
    pub(super) fn await_list(&mut self) {
        self.certainty = Certainty::AwaitingList(Instant::now());
    }

    /// Whether the present state has to be read: it is not known, it is doubted, or nothing certain was heard of it for longer
    /// than `trusted`.
    pub(super) fn has_to_be_read(&self, trusted: Duration) -> bool {
        match self.certainty {
            Certainty::AwaitingList(since) | Certainty::Confirmed(since) => since.elapsed() > trusted,
            Certainty::NeedsRead | Certainty::Contradicted(_) => true,
        }
    }

    /// To be taken before a read begins.
    pub(super) fn asks(&self) -> Asked {
        let outranks = match self.certainty {
            Certainty::Contradicted(doubt) => doubt.outranks,
            _ => None,
        };
        Asked { shown: self.shown, outranks }
    }

    /// Takes in what a read shows, `None` if there is nothing. What the watch does not show is believed after [`DOUBT`] in which
    /// the watch shows nothing more.
    pub(super) fn read(&mut self, asked: Asked, now: Instant, found: Option<(&DynamicObject, Observed)>) {
        let overtaken = asked.shown != self.shown;
        // Nothing has no version: the watch may have shown what was made after the apiserver had looked.
        if found.is_none() && overtaken {
            return;
        }
        let known = self.newest.as_ref().is_some_and(|newest| match &found {
            Some((object, value)) => newest.value.as_ref() == Some(value) && newest.uid == object.uid(),
            None => newest.value.is_none(),
        });
        if !known && self.certainty != Certainty::NeedsRead && self.newest.is_some() {
            match self.certainty {
                Certainty::Contradicted(doubt) if doubt.shown == self.shown => {
                    if now.duration_since(doubt.since) < DOUBT {
                        return;
                    }
                }
                _ => return self.doubt(now, asked.outranks),
            }
        }
        self.certainty = Certainty::Confirmed(now);
        match found {
            Some((object, value)) if overtaken && !known => {
                self.observe(object, Some(value));
            }
            Some((object, value)) => {
                self.listed = true;
                if !known {
                    self.push(object.uid(), version(object), Some(value));
                } else if let Some(newest) = self.newest.as_mut().filter(|_| !overtaken) {
                    // Also a lower one: what the watch shows from now on is compared with it.
                    newest.version = version(object);
                }
            }
            None if known => {}
            None => {
                let uid = self.newest.take().and_then(|newest| newest.uid);
                self.push(uid, None, None);
            }
        }
        if let Some(newest) = &mut self.newest {
            newest.outranks = newest.outranks.max(asked.outranks);
        }
    }
}

fn state(uid: Option<String>, value: Option<Observed>) -> State {
    value.map_or(State::Absent, |value| State::Present { uid, value })
}

fn version(object: &DynamicObject) -> Option<u64> {
    object.resource_version()?.parse().ok()
}

#[cfg(test)]
mod tests;
