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
