//! Changes of the history: pure functions without client and clock.
//!
//! [`next`] computes one reconcile. It takes the observations ([`ObservationBuffer`]), appends changes as Pending
//! entries ([`record`]), marks entries with their outcomes from the queue ([`mark`]), accounts for suspended time
//! ([`hold`]) and enforces the limits ([`apply_limits`]). The queue gets the Pending entries ([`pending`]).

use std::collections::HashMap;

use qm_api::tracked_field::{Delivery, Entry, History};

mod buffer;
mod coalesce;
mod expiry;
mod limits;
mod next;
mod record;
mod size;
mod value;

pub use buffer::ObservationBuffer;
pub use coalesce::ListLimits;
pub use expiry::{Ages, Now, expired, hold, waiting_since};
pub use limits::{HistoryLimits, LimitResult, apply_limits};
pub use next::{Changes, Inputs, next};
pub use record::{
    NewestState, Observation, ObservationSeries, Recorded, TargetState, record, record_newest,
};
pub use value::{KEPT_BYTES, ObservedValue};

/// Outcome of an entry's delivery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryOutcome {
    /// The receiver accepted the entry.
    Delivered,
    /// The receiver rejected this entry and accepted others.
    Failed {
        /// Cause, without secrets.
        reason: String,
    },
    /// The entry was too old when a failed attempt began.
    Expired {
        /// Cause, without secrets.
        reason: String,
    },
}

/// Marks entries with their outcomes by id; returns the number of changed entries. Ignores ids that were merged into
/// other entries or dropped. A Delivered entry stays Delivered; a Failed one may become Delivered.
pub fn mark(
    history: &mut History,
    outcomes: impl IntoIterator<Item = (String, DeliveryOutcome)>,
) -> usize {
    let outcomes: HashMap<String, DeliveryOutcome> = outcomes.into_iter().collect();
    let mut marked = 0;
    for entry in history.iter_mut() {
        let Some(outcome) = entry.id.as_ref().and_then(|id| outcomes.get(id)) else {
            continue;
        };
        match (entry.delivery, outcome) {
            (Some(Delivery::Pending | Delivery::Failed), DeliveryOutcome::Delivered) => {
                finish(entry, Delivery::Delivered, None);
            }
            (
                Some(Delivery::Pending),
                DeliveryOutcome::Failed { reason } | DeliveryOutcome::Expired { reason },
            ) => {
                finish(entry, Delivery::Failed, Some(reason.clone()));
            }
            _ => continue,
        }
        marked += 1;
    }
    marked
}

fn finish(entry: &mut Entry, delivery: Delivery, reason: Option<String>) {
    entry.delivery = Some(delivery);
    entry.reason = reason;
    entry.suspended_since = None;
    entry.suspended_seconds = None;
}

/// Returns the entries to send, oldest first, each with the entry that has the previous value: the preceding one, if it
/// has the same subject and has not failed. The receiver never got a failed value, and if it rejected that value, it
/// would reject this message too.
pub fn pending(history: &[Entry]) -> impl Iterator<Item = (&Entry, Option<&Entry>)> {
    let pending = history
        .iter()
        .enumerate()
        .filter(|(_, entry)| entry.is_pending() && entry.id.is_some());
    pending.map(|(at, entry)| (entry, previous(&history[..at], entry)))
}

/// Returns the newest entry, with the preceding one by the rule of [`pending`].
pub fn newest(history: &[Entry]) -> Option<(&Entry, Option<&Entry>)> {
    let (newest, before) = history.split_last()?;
    Some((newest, previous(before, newest)))
}

/// Returns the entry with the previous value. Entries of the original program have no subject and belong to the subject
/// of that time.
fn previous<'a>(before: &'a [Entry], entry: &Entry) -> Option<&'a Entry> {
    before.last().filter(|before| {
        (before.subject.is_none() || before.subject == entry.subject)
            && before.delivery != Some(Delivery::Failed)
    })
}

#[cfg(test)]
mod tests;
