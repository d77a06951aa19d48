//! The next history, from the stored one and what a reconcile observed.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use qm_api::tracked_field::{Entry, History, Subject};

use super::record::{display, record, record_newest};
use super::{DeliveryOutcome, FailedEntries, HistoryLimits, NewestState, apply_limits, hold, mark};

/// Input of a reconcile.
pub struct Inputs<'a> {
    /// Subject that the spec tracks now.
    pub subject: &'a Subject,
    /// Observations since the last reconcile, oldest first.
    pub observations: &'a [Entry],
    /// Newest known state, even if recorded long ago.
    pub newest: Option<&'a NewestState>,
    /// Outcomes of entries, by id.
    pub outcomes: &'a [(String, DeliveryOutcome)],
    /// Ids of entries in flight.
    pub in_flight: &'a HashSet<String>,
    /// Whether the object or its contact point is suspended.
    pub held: bool,
    /// `spec.historyLimit`.
    pub limit: Option<i64>,
    /// Measured time for which entries were suspended, by id.
    pub held_for: &'a BTreeMap<String, Duration>,
    /// Current time.
    pub now: Timestamp,
}

/// Result of a reconcile.
#[derive(Debug)]
pub struct Changes {
    /// History to write.
    pub history: History,
    /// Whether the history differs from the one before.
    pub changed: bool,
    /// Version of the last entry, if it contradicts the newest state: see [`record_newest`].
    pub contradicted: Option<u64>,
    /// Newly failed entries.
    pub failed: FailedEntries,
    /// Number of entries that were merged into a neighbour.
    pub merged: usize,
}

/// Returns the history after a reconcile.
pub fn next(before: &[Entry], inputs: &Inputs<'_>, mut ids: impl FnMut() -> String) -> Changes {
    let mut history = before.to_vec();
    record(&mut history, inputs.subject, inputs.observations);
    // Level-triggered: whatever this replica observed and whichever replica recorded it, the history ends with the
    // newest state.
    let contradicted = inputs
        .newest
        .and_then(|newest| record_newest(&mut history, newest, &mut ids));
    let failed = mark(&mut history, inputs.outcomes);
    hold(&mut history, inputs.held, inputs.held_for, inputs.now);
    display(&mut history, inputs.subject);
    let limits = HistoryLimits::new(inputs.limit);
    let in_flight = |id: &str| inputs.in_flight.contains(id);
    let merged = apply_limits(&mut history, limits, in_flight, ids);
    Changes {
        changed: history != before,
        history,
        contradicted,
        failed,
        merged,
    }
}
