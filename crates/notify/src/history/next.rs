//! One pass over a history: everything that a pass knows goes in, what is to be written comes out.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use jiff::Timestamp;
use qm_api::tracked_field::{Delivery, Entry, History, Subject};

use super::record::display;
use super::{
    Bounds, NewestState, Observation, Outcome, Series, bound, hold, mark, record, record_newest,
};

/// What a pass knows.
pub struct Inputs<'a> {
    /// What the spec tracks now.
    pub subject: &'a Subject,
    /// What was seen since the last pass, oldest first.
    pub observations: &'a [Observation],
    /// Newest known state, even if recorded long ago.
    pub newest: Option<&'a NewestState>,
    /// What was seen before that of what the spec tracked then.
    pub former: Option<&'a Series>,
    /// What became of entries, by id.
    pub outcomes: &'a [(String, Outcome)],
    /// Entries that are being sent.
    pub in_flight: &'a HashSet<String>,
    /// It or its contact point is suspended.
    pub held: bool,
    /// `spec.historyLimit`.
    pub limit: Option<i64>,
    /// Measured time for which entries were suspended, by id.
    pub held_for: &'a BTreeMap<String, Duration>,
    /// The time.
    pub now: Timestamp,
}

/// What comes of it.
#[derive(Debug, Default)]
pub struct Changes {
    /// The history to write.
    pub history: History,
    /// Whether it differs from the one before.
    pub changed: bool,
    /// Version of the last entry, if it contradicts the newest state: see [`record_newest`].
    pub contradicted: Option<u64>,
    /// Entries that failed now.
    pub failed: Vec<Entry>,
    /// How many of those grew too old.
    pub expired: usize,
    /// How many changes were folded into their neighbours.
    pub merged: usize,
}

/// The history after a pass.
pub fn next(before: &[Entry], inputs: &Inputs<'_>, mut ids: impl FnMut() -> String) -> Changes {
    let mut history = before.to_vec();
    let has_begun = history
        .last()
        .is_some_and(|last| last.subject.as_ref() == Some(inputs.subject));
    if let Some(former) = inputs.former.filter(|_| !has_begun) {
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
    // Level-triggered: whatever this replica saw and whoever recorded it, the history ends with the newest state.
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
        .filter(|(_, outcome)| matches!(outcome, Outcome::Expired { .. }));
    let expiries: HashSet<&String> = expiries.map(|(id, _)| id).collect();
    let expired = failed
        .iter()
        .filter(|entry| entry.id.as_ref().is_some_and(|id| expiries.contains(id)))
        .count();
    let bounded = bound(
        &mut history,
        Bounds::new(inputs.limit),
        |id| inputs.in_flight.contains(id),
        ids,
    );
    Changes {
        changed: history != before,
        history,
        contradicted,
        failed,
        expired,
        merged: bounded.merged,
    }
}

fn is_failed(entry: &Entry) -> bool {
    entry.delivery == Some(Delivery::Failed)
}
