//! Buffer of the observations that no reconcile has recorded.

use std::collections::HashSet;

use qm_api::tracked_field::Entry;
use uuid::Uuid;

use super::limits::{HistoryLimits, ListLimits, merge_pending};
use super::next::is_same_state;
use super::size;

/// Buffer of observations between the watch and the next reconcile. It is limited and never blocks the watch.
///
/// In a full buffer, neighbours in the middle merge and count their changes, so no change is lost. Observations stay
/// until the history has them. The last one of a write keeps its id, by which the next reconcile recognises a write
/// without a response.
#[derive(Debug)]
pub struct ObservationBuffer {
    /// Oldest first.
    entries: Vec<Entry>,
    /// Number of entries, from the first, that a reconcile may be writing. Only the other entries merge.
    writing: usize,
    /// Size of the other entries, in bytes.
    bytes: usize,
    /// Number of merges that no reconcile has counted.
    merged: usize,
    limits: ListLimits,
}

/// Observations that a reconcile records.
#[derive(Debug, Default)]
pub struct Observations {
    /// The observations, oldest first.
    pub entries: Vec<Entry>,
    /// Number of further observations that were merged into these.
    pub merged: usize,
}

impl Default for ObservationBuffer {
    fn default() -> Self {
        Self::new(HistoryLimits::PENDING)
    }
}

impl ObservationBuffer {
    /// Creates an empty buffer without allocations.
    pub fn new(limits: ListLimits) -> Self {
        Self {
            entries: Vec::new(),
            writing: 0,
            bytes: 0,
            merged: 0,
            limits,
        }
    }

    /// Returns whether nothing waits to be written.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds an observation, unless it repeats the newest state.
    pub fn push(&mut self, observation: Entry) {
        let newest = self.entries.last();
        if newest.is_none_or(|newest| !is_same_state(newest, &observation)) {
            self.bytes += size::stored(&observation);
            self.entries.push(observation);
            self.merge(None);
        }
    }

    /// Returns all observations, to be written. A write that failed or was cancelled needs no call: the next one
    /// begins with all of them.
    pub fn begin_write(&mut self) -> Observations {
        // The history ends with this observation if the last write was stored and its response was lost.
        let last_of_write = self.entries[..self.writing].last();
        let last_of_write = last_of_write.and_then(|entry| entry.id.clone());
        self.writing = 0;
        self.bytes = self.entries.iter().map(size::stored).sum();
        self.merge(last_of_write.as_deref());
        (self.writing, self.bytes) = (self.entries.len(), 0);
        Observations {
            entries: self.entries.clone(),
            merged: self.merged,
        }
    }

    /// Removes observations that the history has.
    pub fn written(&mut self, written: &Observations) {
        let ids: HashSet<_> = written.entries.iter().map(|entry| &entry.id).collect();
        self.entries.retain(|entry| !ids.contains(&entry.id));
        if self.entries.is_empty() {
            // The capacity would stay allocated while nothing changes.
            self.entries = Vec::new();
        }
        self.writing = 0;
        self.merged = self.merged.saturating_sub(written.merged);
    }

    /// Merges observations that no reconcile may be writing, except for the one with the ID `kept`.
    fn merge(&mut self, kept: Option<&str>) {
        if self
            .limits
            .allows(self.entries.len() - self.writing, self.bytes)
        {
            return;
        }
        let mut later = self.entries.split_off(self.writing);
        let ids = || Uuid::now_v7().to_string();
        self.merged += merge_pending(&mut later, self.limits, |id| kept == Some(id), ids);
        self.bytes = later.iter().map(size::stored).sum();
        self.entries.append(&mut later);
    }
}
