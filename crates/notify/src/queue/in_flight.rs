//! Entries in flight: in a request, or with an unrecorded outcome.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use qm_runtime::ObjectKey;
use qm_runtime::backoff::{Backoff, BackoffPolicy};

use super::Circumstances;
use super::contact_point_queue::BatchEntry;
use crate::history::DeliveryOutcome;

/// Number of rejected status writes of one `TrackedField` after which the queues continue without it.
pub(super) const MAX_REJECTED_WRITES: u32 = 5;

/// Entries in flight by `TrackedField`: while an object has any, no queue sends others of it.
#[derive(Default)]
pub(super) struct InFlight {
    by_field: HashMap<ObjectKey, Vec<InFlightEntry>>,
    /// `TrackedField`s whose status the apiserver rejects.
    rejected: HashMap<ObjectKey, RejectedWrites>,
}

struct InFlightEntry {
    id: String,
    queue: ObjectKey,
    /// Outcome, until it is recorded in the `TrackedField`'s status.
    outcome: Option<DeliveryOutcome>,
}

struct RejectedWrites {
    count: u32,
    /// Status code of the last response.
    code: u16,
    /// First message of the apiserver with that code; a new message alone is not reported again.
    message: String,
    /// Contact point of the `TrackedField`.
    point: ObjectKey,
    backoff: Backoff,
    /// Time of the next write, unless the circumstances change.
    not_before: Instant,
    circumstances: Circumstances,
}

impl InFlight {
    pub(super) fn insert(&mut self, queue: &ObjectKey, BatchEntry { field, id, .. }: &BatchEntry) {
        let entry = InFlightEntry {
            id: id.to_string(),
            queue: queue.clone(),
            outcome: None,
        };
        self.by_field.entry(field.clone()).or_default().push(entry);
    }

    pub(super) fn set_outcome(
        &mut self,
        BatchEntry { field, id, .. }: &BatchEntry,
        outcome: &DeliveryOutcome,
    ) {
        let entries = self.by_field.get_mut(field).into_iter().flatten();
        for entry in entries.filter(|entry| *entry.id == **id) {
            entry.outcome = Some(outcome.clone());
        }
    }

    /// Removes the entries of that queue without an outcome. Returns the `TrackedField`s that have no more entries in
    /// flight.
    pub(super) fn abort(&mut self, queue: &ObjectKey) -> Vec<ObjectKey> {
        self.by_field
            .extract_if(|_, entries| {
                entries.retain(|entry| entry.queue != *queue || entry.outcome.is_some());
                entries.is_empty()
            })
            .map(|(field, _)| field)
            .collect()
    }

    /// Removes entries with a recorded outcome. Returns their queues.
    pub(super) fn recorded(
        &mut self,
        field: &ObjectKey,
        outcomes: &[(String, DeliveryOutcome)],
    ) -> Vec<ObjectKey> {
        let Some(entries) = self.by_field.get_mut(field) else {
            return Vec::new();
        };
        let is_recorded = |entry: &mut InFlightEntry| {
            entry.outcome.is_some() && outcomes.iter().any(|(id, _)| *id == entry.id)
        };
        let queues = entries
            .extract_if(.., is_recorded)
            .map(|entry| entry.queue)
            .collect();
        if entries.is_empty() {
            self.by_field.remove(field);
        }
        queues
    }

    /// Removes the entries of a deleted `TrackedField`. Returns their queues.
    pub(super) fn forget(&mut self, field: &ObjectKey) -> Vec<ObjectKey> {
        self.rejected.remove(field);
        self.by_field
            .remove(field)
            .into_iter()
            .flatten()
            .map(|entry| entry.queue)
            .collect()
    }

    /// Records that the apiserver rejected the status of `field`, which sends to `point`, with this code and message;
    /// `retry` sets the time of the next write. Returns whether the queues continue without `field` from now on, or for
    /// another cause than before.
    pub(super) fn write_rejected(
        &mut self,
        field: &ObjectKey,
        point: &ObjectKey,
        (code, message): (u16, &str),
        circumstances: Circumstances,
        retry: BackoffPolicy,
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
        let mut backoff = backoff.map_or_else(|| retry.start(), |known| known.backoff.clone());
        let not_before = now + backoff.next_delay();
        // The message may have a part that differs each time.
        let same_code = known.filter(|known| known.code == code);
        let is_new =
            count == MAX_REJECTED_WRITES || (count > MAX_REJECTED_WRITES && same_code.is_none());
        let message = same_code.map_or_else(|| message.to_owned(), |known| known.message);
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
        is_new
    }

    /// Returns the time until the next write, if the last one was rejected and the next one is not due.
    pub(super) fn rejected_write_due(
        &self,
        field: &ObjectKey,
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

    /// Returns the cause if the queues continue without that `TrackedField`.
    pub(super) fn left_out(&self, field: &ObjectKey) -> Option<&str> {
        self.rejected
            .get(field)
            .filter(|writes| writes.count >= MAX_REJECTED_WRITES)
            .map(|writes| &*writes.message)
    }

    /// Returns the `TrackedField`s that the queue of that contact point continues without, with the causes.
    pub(super) fn left_out_of(&self, point: &ObjectKey) -> Vec<(ObjectKey, String)> {
        let of_point = self
            .rejected
            .iter()
            .filter(|(_, writes)| writes.point == *point);
        of_point
            .filter_map(|(field, _)| Some((field.clone(), self.left_out(field)?.to_owned())))
            .collect()
    }

    /// Records a successful status write. Returns the contact point whose queue continued without the `TrackedField`.
    pub(super) fn write_accepted(&mut self, field: &ObjectKey) -> Option<ObjectKey> {
        let writes = self.rejected.remove(field)?;
        (writes.count >= MAX_REJECTED_WRITES).then_some(writes.point)
    }

    pub(super) fn has(&self, field: &ObjectKey) -> bool {
        self.by_field.contains_key(field)
    }

    /// Returns whether that entry is in flight.
    pub(super) fn contains(&self, BatchEntry { field, id, .. }: &BatchEntry) -> bool {
        self.by_field
            .get(field)
            .into_iter()
            .flatten()
            .any(|entry| *entry.id == **id)
    }

    pub(super) fn ids(&self, field: &ObjectKey) -> HashSet<String> {
        self.by_field
            .get(field)
            .into_iter()
            .flatten()
            .map(|entry| entry.id.clone())
            .collect()
    }

    pub(super) fn outcomes(&self, field: &ObjectKey) -> Vec<(String, DeliveryOutcome)> {
        let entries = self.by_field.get(field).into_iter().flatten();
        entries
            .filter_map(|entry| Some((entry.id.clone(), entry.outcome.clone()?)))
            .collect()
    }

    /// Returns whether the queue has an unrecorded outcome.
    pub(super) fn has_unrecorded(&self, queue: &ObjectKey) -> bool {
        self.unrecorded_entries().any(|entry| entry.queue == *queue)
    }

    pub(super) fn all_recorded(&self) -> bool {
        self.unrecorded_entries().next().is_none()
    }

    fn unrecorded_entries(&self) -> impl Iterator<Item = &InFlightEntry> {
        let fields = self
            .by_field
            .iter()
            .filter(|(field, _)| self.left_out(field).is_none());
        fields
            .flat_map(|(_, entries)| entries)
            .filter(|entry| entry.outcome.is_some())
    }
}
