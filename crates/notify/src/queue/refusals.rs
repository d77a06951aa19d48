//! Messages that a receiver refused, and what that means for the next ones.
//!
//! A refusal does not fail an entry: the receiver may refuse everything. A refused entry stays Pending, and no later
//! entry of its `TrackedField` overtakes it. Once the receiver has accepted another message, the entry is sent once
//! more, alone; if refused again, the entry fails.
//!
//! Refusals are in memory only: after a restart a refused entry gets one more attempt before it can fail.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use qm_runtime::ObjectKey;

use super::entries::EntryKey;
use crate::Refusal;

/// Number of different messages rejected in a row that stops the contact point.
const MAX_REJECTED_IN_A_ROW: u32 = 3;

/// Refusals of one receiver.
#[derive(Default)]
pub(super) struct Refusals {
    /// The last refusal.
    last: Option<(Refusal, String)>,
    /// Number of messages rejected, each perhaps for its own content, since the last accepted one.
    rejected_in_a_row: u32,
    /// True if an entry has failed since the last accepted message: the next entry may fail only after another accepted
    /// message.
    just_failed: bool,
    by_field: HashMap<ObjectKey, FieldRefusals>,
    /// Sequence number of the last refusal that no entry can have caused, such as that of a test message; comparable
    /// with [`FieldRefusals::last_refusal`].
    last_test_refusal: u64,
    sequence: u64,
    /// Number of calls of [`Refusals::forget`].
    #[cfg(test)]
    pub(super) forgotten: usize,
}

/// Refused messages of one `TrackedField`.
#[derive(Default)]
struct FieldRefusals {
    /// The refused entry. No entry of the `TrackedField` overtakes it.
    refused: Option<(Arc<str>, EntryState)>,
    /// Entries of a refused digest: each goes alone.
    alone: HashSet<Arc<str>>,
    /// Sequence number of the last refusal; the `TrackedField` with the smallest number goes next. Zero if the receiver
    /// has refused none since it last accepted a message.
    last_refusal: u64,
}

/// State of an entry after the receiver's responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryState {
    /// Not refused.
    Fresh,
    /// Refused, and no message accepted since.
    Refused,
    /// Refused, and another message accepted since: the next refusal fails the entry.
    LastAttempt,
}

/// Consequence of a refused entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterRefusal {
    /// The queue continues at once.
    Continue,
    /// The contact point stops.
    Stop,
}

impl Refusals {
    /// Records that the receiver accepted these entries, or the test message.
    pub(super) fn record_accepted<'a>(&mut self, entries: impl Iterator<Item = &'a EntryKey>) {
        self.rejected_in_a_row = 0;
        self.just_failed = false;
        for entry in entries {
            self.forget_entry(entry);
        }
        for refusals in self.by_field.values_mut() {
            refusals.last_refusal = 0;
            if let Some((_, state)) = &mut refusals.refused {
                *state = EntryState::LastAttempt;
            }
        }
        self.by_field.retain(|_, refusals| !refusals.is_empty());
    }

    /// Records a refusal that no entry can cause.
    pub(super) fn record_unrelated_refusal(&mut self, reason: Refusal, message: &str) {
        self.last = Some((reason, message.to_owned()));
        self.sequence += 1;
        self.last_test_refusal = self.sequence;
    }

    /// Records a refused digest, which does not identify the refused entry.
    pub(super) fn record_refused_digest<'a>(
        &mut self,
        reason: Refusal,
        message: &str,
        entries: impl Iterator<Item = &'a EntryKey>,
    ) {
        self.last = Some((reason, message.to_owned()));
        for EntryKey { field, id } in entries {
            let refusals = self.by_field.entry(field.clone()).or_default();
            refusals.alone.insert(Arc::clone(id));
        }
    }

    /// Records the refusal of a single entry, which is `kept` unless it has an outcome.
    pub(super) fn record_refused_entry(
        &mut self,
        reason: Refusal,
        message: &str,
        entry: &EntryKey,
        kept: bool,
    ) -> AfterRefusal {
        self.last = Some((reason, message.to_owned()));
        self.sequence += 1;
        let refusals = self.by_field.entry(entry.field.clone()).or_default();
        refusals.last_refusal = self.sequence;
        refusals.alone.remove(&entry.id);
        refusals.refused = kept.then(|| (Arc::clone(&entry.id), EntryState::Refused));
        if !reason.is_rejection() {
            return AfterRefusal::Stop;
        }
        self.rejected_in_a_row += 1;
        if self.rejected_in_a_row < MAX_REJECTED_IN_A_ROW {
            AfterRefusal::Continue
        } else {
            AfterRefusal::Stop
        }
    }

    /// Records that the receiver refused an entry again, after accepting another message.
    pub(super) fn record_failed_entry(&mut self, reason: Refusal, message: &str, entry: &EntryKey) {
        self.last = Some((reason, message.to_owned()));
        self.just_failed = true;
        self.forget_entry(entry);
    }

    fn forget_entry(&mut self, EntryKey { field, id }: &EntryKey) {
        let Some(refusals) = self.by_field.get_mut(field) else {
            return;
        };
        refusals.alone.remove(id);
        refusals.refused.take_if(|(refused, _)| refused == id);
        if refusals.is_empty() {
            self.by_field.remove(field);
        }
    }

    /// Forgets a `TrackedField` that was deleted or moved away.
    pub(super) fn forget(&mut self, field: &ObjectKey) {
        self.by_field.remove(field);
        #[cfg(test)]
        {
            self.forgotten += 1;
        }
    }

    /// Forgets the refusals of all entries of that `TrackedField` except the `pending` ones.
    pub(super) fn retain(&mut self, field: &ObjectKey, pending: &[Arc<str>]) {
        let Some(refusals) = self.by_field.get_mut(field) else {
            return;
        };
        refusals.alone.retain(|id| pending.contains(id));
        refusals
            .refused
            .take_if(|(id, _)| pending.first() != Some(id));
        if pending.is_empty() || refusals.is_empty() {
            self.by_field.remove(field);
        }
    }

    pub(super) fn last(&self) -> Option<&(Refusal, String)> {
        self.last.as_ref()
    }

    /// Returns the state of that entry after the responses so far.
    pub(super) fn entry_state(&self, field: &ObjectKey, id: &Arc<str>) -> EntryState {
        let refusals = self.by_field.get(field);
        match refusals.and_then(|refusals| refusals.refused.as_ref()) {
            Some((refused, state)) if refused == id => *state,
            _ => EntryState::Fresh,
        }
    }

    #[cfg(test)]
    pub(super) fn knows(&self, field: &ObjectKey) -> bool {
        self.by_field.contains_key(field)
    }

    /// Returns whether that entry was in a refused digest.
    pub(super) fn goes_alone(&self, field: &ObjectKey, id: &Arc<str>) -> bool {
        self.by_field
            .get(field)
            .is_some_and(|refusals| refusals.alone.contains(id))
    }

    /// Returns whether the receiver rejected a message, perhaps for its content, and accepted none since.
    pub(super) fn is_rejecting(&self) -> bool {
        self.rejected_in_a_row > 0
    }

    /// Returns whether the next entry may fail only after another accepted message.
    pub(super) fn has_just_failed(&self) -> bool {
        self.just_failed
    }

    /// Returns the sequence number of that `TrackedField`'s last refused entry; the `TrackedField` with the smallest
    /// number goes next.
    pub(super) fn last_refusal(&self, field: &ObjectKey) -> u64 {
        self.by_field
            .get(field)
            .map_or(0, |refusals| refusals.last_refusal)
    }

    /// Returns whether the last refused entry of that `TrackedField` came after the last refusal that no entry can have
    /// caused, such as that of a test message.
    pub(super) fn refused_since_test(&self, field: &ObjectKey) -> bool {
        self.last_test_refusal < self.last_refusal(field)
    }
}

impl FieldRefusals {
    fn is_empty(&self) -> bool {
        self.refused.is_none() && self.alone.is_empty() && self.last_refusal == 0
    }
}
