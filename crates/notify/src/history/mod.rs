//! Changes of the history. Pure: no client, no clock.
//!
//! [`next`] computes one reconcile: it takes the observations ([`ObservationBuffer`]), appends changes as Pending
//! entries ([`record`]), marks entries with their outcomes from the queue ([`mark`]), accounts for suspended time
//! ([`hold`]), enforces the limits ([`bound`]) and hands Pending entries to the queue ([`pending`]).

use std::collections::HashMap;

use qm_api::tracked_field::{Delivery, Entry, History};

mod age;
mod bound;
mod buffer;
mod next;
mod record;
mod size;
mod squeeze;
mod value;

pub use age::{Ages, Now, expired, hold, waiting_since};
pub use bound::{Bounded, Bounds, bound};
pub use buffer::ObservationBuffer;
pub use next::{Changes, Inputs, next};
pub use record::{NewestState, Observation, Recorded, Series, State, record, record_newest};
pub use squeeze::Limits;
pub use value::{KEPT_BYTES, ObservedValue};

/// What came of sending an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The receiver took it.
    Delivered,
    /// The receiver rejected this entry and accepted others.
    Failed {
        /// Why, without any secret in it.
        reason: String,
    },
    /// The entry was too old when a failed attempt began.
    Expired {
        /// Cause, without secrets.
        reason: String,
    },
}

/// Marks entries by their ids, and says how many changed. An id that is no longer there (its entry was folded into
/// another, or dropped) is passed over. What was delivered stays so; what counted as failed may turn out delivered.
pub fn mark(history: &mut History, outcomes: impl IntoIterator<Item = (String, Outcome)>) -> usize {
    let outcomes: HashMap<String, Outcome> = outcomes.into_iter().collect();
    let mut marked = 0;
    for entry in history.iter_mut() {
        let Some(outcome) = entry.id.as_ref().and_then(|id| outcomes.get(id)) else {
            continue;
        };
        match (entry.delivery, outcome) {
            (Some(Delivery::Pending | Delivery::Failed), Outcome::Delivered) => {
                close(entry, Delivery::Delivered, None);
            }
            (Some(Delivery::Pending), Outcome::Failed { reason } | Outcome::Expired { reason }) => {
                close(entry, Delivery::Failed, Some(reason.clone()));
            }
            _ => continue,
        }
        marked += 1;
    }
    marked
}

fn close(entry: &mut Entry, delivery: Delivery, reason: Option<String>) {
    entry.delivery = Some(delivery);
    entry.reason = reason;
    entry.suspended_since = None;
    entry.suspended_seconds = None;
}

/// The entries to send, oldest first, each with the entry that has the previous value: the one before it, if that speaks
/// of the same subject and has not failed. Nobody was told a failed value, and a receiver that refused it would refuse this
/// message for it.
pub fn pending(history: &[Entry]) -> impl Iterator<Item = (&Entry, Option<&Entry>)> {
    let pending = history
        .iter()
        .enumerate()
        .filter(|(_, entry)| entry.is_pending() && entry.id.is_some());
    pending.map(|(at, entry)| (entry, previous(&history[..at], entry)))
}

/// The newest entry, with the one before it as [`pending`] gives it.
pub fn newest(history: &[Entry]) -> Option<(&Entry, Option<&Entry>)> {
    let (newest, before) = history.split_last()?;
    Some((newest, previous(before, newest)))
}

/// What the original program wrote names no subject, and speaks of the one that it had then.
fn previous<'a>(before: &'a [Entry], entry: &Entry) -> Option<&'a Entry> {
    before.last().filter(|before| {
        (before.subject.is_none() || before.subject == entry.subject)
            && before.delivery != Some(Delivery::Failed)
    })
}

#[cfg(test)]
mod tests;
