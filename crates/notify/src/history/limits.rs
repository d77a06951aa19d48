//! Limits of the history: etcd accepts 1.5 MiB, and many clients read the whole history again after each write.

use std::mem;

use qm_api::tracked_field::{Entry, History};

use super::coalesce::{ListLimits, Slot, coalesce};
use super::record::merge_entries;
use super::size;

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

/// Result of [`apply_limits`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitResult {
    /// Number of Pending entries that were merged into a neighbour. Every change still counts.
    pub merged: usize,
    /// Number of dropped finished entries.
    pub dropped: usize,
}

/// Enforces the limits of a history.
///
/// The oldest finished entries go first. The entry before the oldest Pending one stays, because it has the previous
/// value, and so does the newest entry, which the next observation is compared with. Neighbouring Pending entries in
/// the middle that are not in flight merge; entries of two subjects merge only when all entries of one subject already
/// have. Entries in flight never change, so they must be fewer than the limits allow.
pub fn apply_limits(
    history: &mut History,
    limits: HistoryLimits,
    in_flight: impl Fn(&str) -> bool,
    mut ids: impl FnMut() -> String,
) -> LimitResult {
    let dropped = drop_finished(history, limits.finished);
    let merged = merge_pending(history, limits.pending, in_flight, &mut ids);
    LimitResult { merged, dropped }
}

fn drop_finished(history: &mut History, limits: ListLimits) -> usize {
    let (mut items, mut bytes) = (0, 0);
    for entry in history.iter().filter(|entry| !entry.is_pending()) {
        items += 1;
        bytes += size::stored(entry);
    }
    if limits.allows(items, bytes) {
        return 0;
    }
    let before = history.len();
    let oldest_pending = history.iter().position(Entry::is_pending);
    let mut at = 0;
    history.retain(|entry| {
        at += 1;
        let needed = entry.is_pending() || oldest_pending == Some(at) || at == before;
        if needed || limits.allows(items, bytes) {
            return true;
        }
        items -= 1;
        bytes -= size::stored(entry);
        false
    });
    before - history.len()
}

fn merge_pending(
    history: &mut History,
    limits: ListLimits,
    in_flight: impl Fn(&str) -> bool,
    ids: &mut impl FnMut() -> String,
) -> usize {
    let pending = || history.iter().filter(|entry| entry.is_pending());
    if limits.allows(pending().count(), pending().map(size::stored).sum()) {
        return 0;
    }
    let slot = |at: usize, entry: Entry| Slot {
        bytes: size::stored(&entry),
        changes: entry.changes(),
        item: (at, entry),
    };
    let (mut waiting, mut rest) = (Vec::new(), Vec::new());
    for (at, entry) in mem::take(history).into_iter().enumerate() {
        if entry.is_pending() {
            waiting.push(slot(at, entry));
        } else {
            rest.push((at, entry));
        }
    }
    let is_free = |entry: &Entry| entry.id.as_deref().is_none_or(|id| !in_flight(id));
    let mut merge = |(_, a), (at, b)| slot(at, merge_entries(a, b, ids()));
    let same_subject = |(_, a): &(usize, Entry), (_, b): &(usize, Entry)| {
        is_free(a) && is_free(b) && a.subject == b.subject
    };
    let any_subject = |(_, a): &(usize, Entry), (_, b): &(usize, Entry)| is_free(a) && is_free(b);
    let merged = coalesce(&mut waiting, limits, same_subject, &mut merge)
        + coalesce(&mut waiting, limits, any_subject, &mut merge);

    rest.extend(waiting.into_iter().map(|slot| slot.item));
    rest.sort_by_key(|(at, _)| *at);
    history.extend(rest.into_iter().map(|(_, entry)| entry));
    merged
}
