//! Limits of a history: finished entries beyond them are removed, and Pending entries are merged.

use std::mem;

use qm_api::tracked_field::{ChangeAction, Entry, History};

use super::size;

/// Limits of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListLimits {
    /// Number of items.
    pub items: usize,
    /// Size of all items, in bytes.
    pub bytes: usize,
}

impl ListLimits {
    pub(super) fn allows(self, items: usize, bytes: usize) -> bool {
        items <= self.items && bytes <= self.bytes
    }

    /// Returns limits that are an eighth lower, so that a full list is not merged again for each new item.
    fn with_slack(self) -> Self {
        Self {
            items: self.items - self.items / 8,
            bytes: self.bytes - self.bytes / 8,
        }
    }
}

/// Limits of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryLimits {
    /// Limits of the Pending entries.
    pub pending: ListLimits,
    /// Limits of all other entries.
    pub finished: ListLimits,
}

impl HistoryLimits {
    /// Limits of Pending entries, and of an [`ObservationBuffer`](super::ObservationBuffer).
    pub const PENDING: ListLimits = ListLimits {
        items: 500,
        bytes: 512 * 1024,
    };

    /// Returns the limits for a `spec.historyLimit` of 1 to 200 (default 50).
    pub fn new(history_limit: Option<i64>) -> Self {
        let items = usize::try_from(history_limit.unwrap_or(50).clamp(1, 200)).unwrap_or(50);
        Self {
            pending: Self::PENDING,
            finished: ListLimits {
                items,
                bytes: 256 * 1024,
            },
        }
    }
}

/// Enforces the limits of a history. Returns the number of Pending entries that were merged into a neighbour: every
/// change still counts.
///
/// The oldest finished entries are removed first. The entry before the oldest Pending one stays, because it has the
/// previous value, and so does the newest entry, with which the next observation is compared. A skipped entry before
/// another Pending one has its previous value, too: it stays while the size allows that.
pub(crate) fn apply_limits(
    history: &mut History,
    limits: HistoryLimits,
    in_flight: impl Fn(&str) -> bool,
    ids: impl FnMut() -> String,
) -> usize {
    drop_finished(history, limits.finished);
    merge_pending(history, limits.pending, in_flight, ids)
}

fn drop_finished(history: &mut History, limits: ListLimits) {
    let (mut items, mut bytes) = (0, 0);
    for entry in history.iter().filter(|entry| !entry.is_pending()) {
        items += 1;
        bytes += size::stored(entry);
    }
    let any_number = ListLimits {
        items: usize::MAX,
        ..limits
    };
    for (limits, keeps_skipped) in [(limits, true), (any_number, false)] {
        if limits.allows(items, bytes) {
            return;
        }
        let pending: Vec<bool> = history.iter().map(Entry::is_pending).collect();
        let oldest_pending = pending.iter().position(|pending| *pending);
        let mut at = 0;
        history.retain(|entry| {
            at += 1;
            let has_previous = pending.get(at) == Some(&true)
                && (oldest_pending == Some(at) || (keeps_skipped && entry.skipped.is_some()));
            let needed = entry.is_pending() || has_previous || at == pending.len();
            if needed || limits.allows(items, bytes) {
                return true;
            }
            items -= 1;
            bytes -= size::stored(entry);
            false
        });
    }
}

/// Merges neighbouring Pending entries in the middle of a list that exceeds its limits. Entries in flight never change,
/// so they must be fewer than the limits allow. Entries of two subjects merge only when all entries of one subject
/// already have. Skipped entries between two merged ones are removed. Returns the number of entries that were merged
/// into a neighbour.
pub(super) fn merge_pending(
    entries: &mut Vec<Entry>,
    limits: ListLimits,
    in_flight: impl Fn(&str) -> bool,
    mut ids: impl FnMut() -> String,
) -> usize {
    let pending = || entries.iter().filter(|entry| entry.is_pending());
    if limits.allows(pending().count(), pending().map(size::stored).sum()) {
        return 0;
    }
    let (mut slots, mut rest) = (Vec::new(), Vec::new());
    for (at, entry) in mem::take(entries).into_iter().enumerate() {
        if entry.is_pending() {
            slots.push(Slot::new(at, entry, &in_flight));
        } else {
            rest.push((at, entry));
        }
    }
    let before = slots.len();
    merge_slots(&mut slots, limits, |a, b| a.subject == b.subject, &mut ids);
    merge_slots(&mut slots, limits, |_, _| true, &mut ids);
    let merged = before - slots.len();

    // The value of the entry before the first part is the previous value of a merged entry.
    rest.retain(|(at, entry)| {
        let next = slots.partition_point(|slot| slot.at < *at);
        entry.skipped.is_none() || slots.get(next).is_none_or(|slot| slot.first > *at)
    });
    rest.extend(slots.into_iter().map(|slot| (slot.at, slot.entry)));
    rest.sort_by_key(|(at, _)| *at);
    entries.extend(rest.into_iter().map(|(_, entry)| entry));
    merged
}

/// Pending entry, as merging compares it.
struct Slot {
    /// Place in the list; of a merged slot, that of its first entry.
    first: usize,
    /// Place in the list; of a merged slot, that of its last entry.
    at: usize,
    entry: Entry,
    bytes: usize,
    in_flight: bool,
}

impl Slot {
    fn new(at: usize, entry: Entry, in_flight: impl Fn(&str) -> bool) -> Self {
        Self {
            first: at,
            at,
            bytes: size::stored(&entry),
            in_flight: entry.id.as_deref().is_some_and(in_flight),
            entry,
        }
    }
}

/// Merges neighbours, those with the fewest changes first, until the list is within `limits` and some slack, or nothing
/// can merge any more. The first and the last entry stay.
fn merge_slots(
    slots: &mut Vec<Slot>,
    limits: ListLimits,
    may_merge: impl Fn(&Entry, &Entry) -> bool,
    ids: &mut impl FnMut() -> String,
) {
    let mut bytes: usize = slots.iter().map(|slot| slot.bytes).sum();
    if limits.allows(slots.len(), bytes) {
        return;
    }
    let changes = |a: &Slot, b: &Slot| a.entry.changes().saturating_add(b.entry.changes());
    let may_merge =
        |a: &Slot, b: &Slot| !a.in_flight && !b.in_flight && may_merge(&a.entry, &b.entry);
    let target = limits.with_slack();
    while !target.allows(slots.len(), bytes) {
        let middle = slots
            .get(1..slots.len().saturating_sub(1))
            .unwrap_or_default();
        let pairs = middle.windows(2).filter_map(|pair| match pair {
            [a, b] if may_merge(a, b) => Some(changes(a, b)),
            _ => None,
        });
        let Some(lightest) = pairs.min() else { break };
        let heaviest = lightest.checked_next_power_of_two().unwrap_or(u64::MAX);

        let last = slots.len() - 1;
        let mut items = slots.len();
        let mut kept: Vec<Slot> = Vec::with_capacity(slots.len());
        for (at, slot) in mem::take(slots).into_iter().enumerate() {
            let merges = at > 1
                && at < last
                && !target.allows(items, bytes)
                && kept.last().is_some_and(|before| {
                    changes(before, &slot) <= heaviest && may_merge(before, &slot)
                });
            match if merges { kept.pop() } else { None } {
                Some(before) => {
                    bytes -= before.bytes + slot.bytes;
                    let merged = merge_entries(before.entry, slot.entry, ids());
                    let merged = Slot {
                        first: before.first,
                        ..Slot::new(slot.at, merged, |_: &str| false)
                    };
                    bytes += merged.bytes;
                    items -= 1;
                    kept.push(merged);
                }
                None => kept.push(slot),
            }
        }
        *slots = kept;
    }
}

/// Merges two neighbouring entries. The result shows the later state and has a new id, because a receiver that got one
/// of the two ignores known ids.
pub(super) fn merge_entries(first: Entry, next: Entry, id: String) -> Entry {
    let merged = first.changes().saturating_add(next.changes());
    let same_subject = first.subject == next.subject;
    let first_value = if first.merged.is_some() {
        first.first_value
    } else {
        first.value
    };
    let action = match (first.action, next.action) {
        (_, ChangeAction::Deleted) => ChangeAction::Deleted,
        (ChangeAction::Updated, ChangeAction::Updated) => ChangeAction::Updated,
        // The resource was created or recreated in between.
        _ => ChangeAction::Created,
    };
    Entry {
        action,
        id: Some(id),
        merged: Some(merged),
        first_value: first_value.filter(|_| same_subject),
        ..next
    }
}
