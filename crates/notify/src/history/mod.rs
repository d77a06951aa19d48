//! Changes of the history: pure functions without client and clock.
//!
//! [`next`] computes one reconcile. It appends the observed changes ([`ObservationBuffer`]) as Pending entries
//! ([`record()`]), marks entries with their outcomes from the queue ([`mark`]), accounts for suspended time ([`hold`])
//! and enforces the limits ([`apply_limits`]). The queue gets the Pending entries ([`pending`]).

use qm_api::tracked_field::{Delivery, Entry};

mod buffer;
mod expiry;
mod next;
mod outcome;
mod size;
mod value;

pub use buffer::{ObservationBuffer, Observations};
pub use expiry::{Ages, Now, expired, set_suspended, waiting_since};
pub use next::{
    Changes, HistoryLimits, Inputs, ListLimits, NewestState, apply_limits, next, observation,
    record, record_newest,
};
pub use outcome::{DeliveryOutcome, FailedEntries, mark};
pub use value::{Details, KEPT_BYTES, ObservedField, ObservedValue};

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
