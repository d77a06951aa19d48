//! Entries that are in flight: taken by a line, and not yet settled and recorded.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use qm_runtime::Key;
use qm_runtime::backoff::{Policy, Series};

use super::Circumstances;
use super::line::Pick;
use crate::history::Outcome;

/// Refused status writes of one `TrackedField` after which the others go on without it.
pub(super) const REJECTED_WRITES: u32 = 5;

/// By `TrackedField`: while one of its entries is in flight, no line takes another one.
#[derive(Default)]
pub(super) struct Flights {
    by_field: HashMap<Key, Vec<Flying>>,
    /// `TrackedField`s whose status the apiserver refuses to write.
    rejected: HashMap<Key, RejectedWrites>,
}

struct Flying {
    id: String,
    line: Key,
    /// What came of it; recorded is what stands in the `TrackedField`'s status, and is no longer in flight.
    outcome: Option<Outcome>,
}

struct RejectedWrites {
    count: u32,
    /// The status code of the last answer.
    code: u16,
    /// First message of the apiserver with that code; a new message alone is not reported again.
    message: String,
    /// The contact point of the `TrackedField`.
    point: Key,
    backoff: Series,
    /// When the next write is due, unless the circumstances change.
    not_before: Instant,
    circumstances: Circumstances,
}

impl Flights {
    pub(super) fn take_off(&mut self, line: &Key, Pick { field, id, .. }: &Pick) {
        let flying = Flying {
            id: id.to_string(),
            line: line.clone(),
            outcome: None,
        };
        self.by_field.entry(field.clone()).or_default().push(flying);
    }

    pub(super) fn settle(&mut self, Pick { field, id, .. }: &Pick, outcome: &Outcome) {
        let flying = self.by_field.get_mut(field).into_iter().flatten();
        for entry in flying.filter(|entry| *entry.id == **id) {
            entry.outcome = Some(outcome.clone());
        }
    }

    /// What has no outcome in that line will have none. Gives the `TrackedField`s of which nothing flies any more.
    pub(super) fn ground(&mut self, line: &Key) -> Vec<Key> {
        self.by_field
            .extract_if(|_, flying| {
                flying.retain(|entry| entry.line != *line || entry.outcome.is_some());
                flying.is_empty()
            })
            .map(|(field, _)| field)
            .collect()
    }

    /// These outcomes are recorded. Gives the lines of their entries.
    pub(super) fn recorded(&mut self, field: &Key, outcomes: &[(String, Outcome)]) -> Vec<Key> {
        let Some(flying) = self.by_field.get_mut(field) else {
            return Vec::new();
        };
        let is_done = |entry: &mut Flying| {
            entry.outcome.is_some() && outcomes.iter().any(|(id, _)| *id == entry.id)
        };
        let lines = flying
            .extract_if(.., is_done)
            .map(|entry| entry.line)
            .collect();
        if flying.is_empty() {
            self.by_field.remove(field);
        }
        lines
    }

    /// Nobody will record anything of that `TrackedField`. Gives the lines of its entries.
    pub(super) fn forget(&mut self, field: &Key) -> Vec<Key> {
        self.rejected.remove(field);
        self.by_field
            .remove(field)
            .into_iter()
            .flatten()
            .map(|entry| entry.line)
            .collect()
    }

    /// Records that the apiserver refused to write the status of `field`, which sends to `point`, with this code and
    /// message; `retry` says when the next write is due. Returns whether the others go on without `field` from now on, or
    /// for another reason than before.
    pub(super) fn write_rejected(
        &mut self,
        field: &Key,
        point: &Key,
        (code, message): (u16, &str),
        circumstances: Circumstances,
        retry: Policy,
        now: Instant,
    ) -> bool {
        let known = self.rejected.remove(field);
        let count = known
            .as_ref()
            .map_or(0, |known| known.count)
            .saturating_add(1);
        let backoff = known
            .as_ref()
            .filter(|known| known.circumstances == circumstances);
        let mut backoff = backoff.map_or_else(|| retry.series(), |known| known.backoff.clone());
        let not_before = now + backoff.next_delay();
        // The message may have a part that differs each time.
        let same = known.filter(|known| known.code == code);
        let is_news = count == REJECTED_WRITES || (count > REJECTED_WRITES && same.is_none());
        let message = same.map_or_else(|| message.to_owned(), |known| known.message);
        let point = point.clone();
        let writes = RejectedWrites {
            count,
            code,
            message,
            point,
            backoff,
            not_before,
            circumstances,
        };
        self.rejected.insert(field.clone(), writes);
        is_news
    }

    /// Returns how long to wait before the next write, if the last one was refused and the next one is not due.
    pub(super) fn rejected_write_due(
        &self,
        field: &Key,
        circumstances: &Circumstances,
        now: Instant,
    ) -> Option<Duration> {
        let writes = self
            .rejected
            .get(field)
            .filter(|writes| writes.circumstances == *circumstances)?;
        writes
            .not_before
            .checked_duration_since(now)
            .filter(|left| !left.is_zero())
    }

    /// Returns why the others go on without that `TrackedField`, if they do.
    pub(super) fn left_out(&self, field: &Key) -> Option<&str> {
        self.rejected
            .get(field)
            .filter(|writes| writes.count >= REJECTED_WRITES)
            .map(|writes| &*writes.message)
    }

    /// Returns the `TrackedField`s that the contact point goes on without, with the causes.
    pub(super) fn left_out_of(&self, point: &Key) -> Vec<(Key, String)> {
        let of_point = self
            .rejected
            .iter()
            .filter(|(_, writes)| writes.point == *point);
        of_point
            .filter_map(|(field, _)| Some((field.clone(), self.left_out(field)?.to_owned())))
            .collect()
    }

    /// Records a successful status write. Returns the contact point that had gone on without the `TrackedField`.
    pub(super) fn write_accepted(&mut self, field: &Key) -> Option<Key> {
        let writes = self.rejected.remove(field)?;
        (writes.count >= REJECTED_WRITES).then_some(writes.point)
    }

    pub(super) fn has(&self, field: &Key) -> bool {
        self.by_field.contains_key(field)
    }

    /// Returns whether that entry is in flight.
    pub(super) fn holds(&self, Pick { field, id, .. }: &Pick) -> bool {
        self.by_field
            .get(field)
            .into_iter()
            .flatten()
            .any(|entry| *entry.id == **id)
    }

    pub(super) fn ids(&self, field: &Key) -> HashSet<String> {
        self.by_field
            .get(field)
            .into_iter()
            .flatten()
            .map(|entry| entry.id.clone())
            .collect()
    }

    pub(super) fn outcomes(&self, field: &Key) -> Vec<(String, Outcome)> {
        let flying = self.by_field.get(field).into_iter().flatten();
        flying
            .filter_map(|entry| Some((entry.id.clone(), entry.outcome.clone()?)))
            .collect()
    }

    /// Returns whether the queue must wait until an outcome is recorded.
    pub(super) fn unrecorded(&self, line: &Key) -> bool {
        self.awaited().any(|entry| entry.line == *line)
    }

    pub(super) fn all_recorded(&self) -> bool {
        self.awaited().next().is_none()
    }

    fn awaited(&self) -> impl Iterator<Item = &Flying> {
        let fields = self
            .by_field
            .iter()
            .filter(|(field, _)| self.left_out(field).is_none());
        fields
            .flat_map(|(_, flying)| flying)
            .filter(|entry| entry.outcome.is_some())
    }
}
