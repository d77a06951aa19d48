//! The next history, from the stored one and what a reconcile observed.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use qm_api::tracked_field::{Delivery, Entry, History, Subject};

use super::record::display;
use super::{
    DeliveryOutcome, HistoryLimits, NewestState, Observation, ObservationSeries, apply_limits,
    hold, mark, record, record_newest,
};

/// Input of a reconcile.
pub struct Inputs<'a> {
    /// Subject that the spec tracks now.
    pub subject: &'a Subject,
    /// Observations since the last reconcile, oldest first.
    pub observations: &'a [Observation],
    /// Newest known state, even if recorded long ago.
    pub newest: Option<&'a NewestState>,
    /// Observations of the previous subject.
    pub former: Option<&'a ObservationSeries>,
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
#[derive(Debug, Default)]
pub struct Changes {
    /// History to write.
    pub history: History,
    /// Whether the history differs from the one before.
    pub changed: bool,
    /// Version of the last entry, if it contradicts the newest state: see [`record_newest`].
    pub contradicted: Option<u64>,
    /// Newly failed entries.
    pub failed: Vec<Entry>,
    /// Number of newly failed entries that expired.
    pub expired: usize,
    /// Number of entries that were merged into a neighbour.
    pub merged: usize,
}

/// Returns the history after a reconcile.
pub fn next(before: &[Entry], inputs: &Inputs<'_>, mut ids: impl FnMut() -> String) -> Changes {
    let mut history = before.to_vec();
    let has_entries = history
        .last()
        .is_some_and(|last| last.subject.as_ref() == Some(inputs.subject));
    if let Some(former) = inputs.former.filter(|_| !has_entries) {
        record(
            &mut history,
            &former.subject,
            former.observations.iter().cloned(),
            &mut ids,
        );
    }
    record(
        &mut history,
        inputs.subject,
        inputs.observations.iter().cloned(),
        &mut ids,
    );
    // Level-triggered: whatever this replica observed and whichever replica recorded it, the history ends with the
    // newest state.
    let contradicted = inputs
        .newest
        .and_then(|newest| record_newest(&mut history, inputs.subject, newest, &mut ids));
    mark(&mut history, inputs.outcomes.iter().cloned());
    hold(&mut history, inputs.held, inputs.held_for, inputs.now);
    display(&mut history, inputs.subject);
    let failed_before: HashSet<&str> = before
        .iter()
        .filter(|entry| is_failed(entry))
        .filter_map(|entry| entry.id.as_deref())
        .collect();
    let failed: Vec<Entry> = history
        .iter()
        .filter(|entry| {
            is_failed(entry)
                && entry
                    .id
                    .as_deref()
                    .is_some_and(|id| !failed_before.contains(id))
        })
        .cloned()
        .collect();
    let expiries = inputs
        .outcomes
        .iter()
        .filter(|(_, outcome)| matches!(outcome, DeliveryOutcome::Expired { .. }));
    let expiries: HashSet<&String> = expiries.map(|(id, _)| id).collect();
    let expired = failed
        .iter()
        .filter(|entry| entry.id.as_ref().is_some_and(|id| expiries.contains(id)))
        .count();
    let limited = apply_limits(
        &mut history,
        HistoryLimits::new(inputs.limit),
        |id| inputs.in_flight.contains(id),
        ids,
    );
    Changes {
        changed: history != before,
        history,
        contradicted,
        failed,
        expired,
        merged: limited.merged,
    }
}

fn is_failed(entry: &Entry) -> bool {
    entry.delivery == Some(Delivery::Failed)
}
