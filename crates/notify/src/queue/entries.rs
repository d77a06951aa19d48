//! Pending entries, and the requests that send them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use qm_api::TrackedField;
use qm_api::tracked_field::Entry;
use qm_runtime::ObjectKey;
use qm_runtime::telemetry::traces::{self, Origin};
use serde::de::Error as _;

use crate::{Endpoint, OutgoingEntry, history};

/// Pending entries of one `TrackedField`.
pub struct PendingEntries {
    pub(super) object: Arc<TrackedField>,
    /// Ids of the entries, oldest first.
    pub(super) ids: Vec<Arc<str>>,
    /// Trace of the reconcile that enqueued the entries.
    pub(super) origin: Option<Origin>,
    /// Time since which the oldest entry has been pending, plus its suspended time; `None` while suspended.
    pub(super) since: Option<Timestamp>,
}

impl PendingEntries {
    /// Returns the pending entries of `object`, whose status has this history.
    pub fn of(object: &Arc<TrackedField>, history: &[Entry]) -> Self {
        let ids = history::pending(history)
            .filter_map(|(entry, _)| entry.id.as_deref().map(Arc::from))
            .collect();
        Self {
            object: Arc::clone(object),
            ids,
            since: history::waiting_since(history),
            origin: traces::current(),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EntryKey {
    pub(super) field: ObjectKey,
    pub(super) id: Arc<str>,
}

/// Entry of a request.
#[derive(Clone, Debug)]
pub(super) struct BatchEntry {
    pub(super) key: EntryKey,
    pub(super) object: Arc<TrackedField>,
    pub(super) origin: Option<Origin>,
}

/// Request to a receiver.
pub(crate) struct DeliveryRequest {
    pub endpoint: Endpoint,
    /// Entries of the request; none for the test message.
    pub(super) entries: Vec<BatchEntry>,
    /// Id of the test message.
    pub(crate) test_id: String,
    /// Start of the attempt.
    pub(super) started: Instant,
    /// True if the request uses the default text in place of each `TrackedField`'s template.
    pub plain: bool,
    /// Revision of the receiver's configuration.
    pub(super) revision: u64,
}

impl DeliveryRequest {
    /// Returns whether this is the test message.
    pub fn is_test(&self) -> bool {
        self.entries.is_empty()
    }

    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| &*entry.key.id)
    }

    /// Returns the traces of the reconciles that enqueued the entries.
    pub fn origins(&self) -> impl Iterator<Item = &Origin> {
        self.entries
            .iter()
            .filter_map(|entry| entry.origin.as_ref())
    }

    /// Returns the entries with the context that their messages need.
    ///
    /// # Errors
    /// Errors of [`TrackedField::history`].
    pub(crate) fn outgoing_entries(&self) -> serde_json::Result<Vec<OutgoingEntry>> {
        let mut by_field = BTreeMap::<_, Vec<_>>::new();
        for (place, entry) in self.entries.iter().enumerate() {
            let of_field = by_field.entry(&entry.key.field).or_default();
            of_field.push((place, entry));
        }
        let mut outgoing = Vec::with_capacity(self.entries.len());
        // The loop holds one history at a time: that of a full outbox takes hundreds of KiB.
        for entries in by_field.into_values() {
            let Some((_, BatchEntry { object, .. })) = entries.first() else {
                continue;
            };
            let template = object.spec.notification.template.as_deref();
            let template = template.map(Arc::<str>::from);
            let history = object.history()?;
            for (place, BatchEntry { key, object, .. }) in entries {
                let id = &key.id;
                let (entry, previous) = history::pending(&history)
                    .find(|(entry, _)| entry.id.as_deref() == Some(&**id))
                    .ok_or_else(|| {
                        serde_json::Error::custom(format!("entry {id} is not pending"))
                    })?;
                let entry = OutgoingEntry::of(object, template.clone(), entry, previous);
                outgoing.push((place, entry));
            }
        }
        outgoing.sort_unstable_by_key(|(place, _)| *place);
        let outgoing = outgoing.into_iter().map(|(_, entry)| entry).collect();
        Ok(outgoing)
    }
}
