//! Outcomes of deliveries, and the entries that they change.

use std::collections::HashMap;

use qm_api::tracked_field::{Delivery, Entry, History};

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

/// Entries that an outcome has failed.
#[derive(Debug, Default)]
pub struct FailedEntries {
    /// The entries, oldest first.
    pub entries: Vec<Entry>,
    /// Number of those that expired.
    pub expired: usize,
}

/// Marks entries with their outcomes by id. Ignores the ids of entries that were merged or removed. A Delivered entry
/// stays Delivered; a Failed one may become Delivered. Returns the newly failed entries.
pub fn mark(history: &mut History, outcomes: &[(String, DeliveryOutcome)]) -> FailedEntries {
    let outcomes: HashMap<&String, &DeliveryOutcome> =
        outcomes.iter().map(|(id, outcome)| (id, outcome)).collect();
    let mut failed = FailedEntries::default();
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
                failed.entries.push(entry.clone());
                let is_expired = matches!(outcome, DeliveryOutcome::Expired { .. });
                failed.expired += usize::from(is_expired);
            }
            _ => {}
        }
    }
    failed
}

fn finish(entry: &mut Entry, delivery: Delivery, reason: Option<String>) {
    entry.delivery = Some(delivery);
    entry.reason = reason;
    entry.suspended_since = None;
    entry.suspended_seconds = None;
}
