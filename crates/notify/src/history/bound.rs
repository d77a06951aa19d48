//! The history stays small enough to be written: etcd takes 1.5 MiB, and all that is written is read again by many.

use std::mem;

use qm_api::tracked_field::{Entry, History};

use super::record::fold_entries;
use super::size;
use super::squeeze::{Limits, Slot, squeeze};

/// How much a history may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Of what is Pending.
    pub pending: Limits,
    /// Of the rest.
    pub finished: Limits,
}

impl Bounds {
    /// What may wait: in an entry's own buffer it is the same.
    pub const PENDING: Limits = Limits {
        items: 500,
        bytes: 512 * 1024,
    };

    /// The product's bounds, with a `spec.historyLimit` of 1 to 200 (50 unless given).
    pub fn new(history_limit: Option<i64>) -> Self {
        let items = usize::try_from(history_limit.unwrap_or(50).clamp(1, 200)).unwrap_or(50);
        Self {
            pending: Self::PENDING,
            finished: Limits {
                items,
                bytes: 256 * 1024,
            },
        }
    }
}

/// What [`bound`] did to the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bounded {
    /// So many Pending entries fewer, because neighbours became one. Every change is still counted.
    pub merged: usize,
    /// So many finished entries went.
    pub dropped: usize,
}

/// Brings a history within its bounds.
///
/// Of what is finished the oldest goes first; the entry before the oldest Pending one stays (its value is the previous
/// one), and so does the last of all (the next observation is compared with it). Of what is Pending, neighbours in the
/// middle that are not in flight become one; only when all of one subject are one already, two subjects' do. What is in
/// flight is never touched, so it must be less than the bounds allow for these to hold.
pub fn bound(
    history: &mut History,
    bounds: Bounds,
    in_flight: impl Fn(&str) -> bool,
    mut ids: impl FnMut() -> String,
) -> Bounded {
    let dropped = drop_finished(history, bounds.finished);
    let merged = merge_pending(history, bounds.pending, in_flight, &mut ids);
    Bounded { merged, dropped }
}

fn drop_finished(history: &mut History, limits: Limits) -> usize {
    let (mut items, mut bytes) = (0, 0);
    for entry in history.iter().filter(|entry| !entry.is_pending()) {
        items += 1;
        bytes += size::stored(entry);
    }
    if limits.hold(items, bytes) {
        return 0;
    }
    let before = history.len();
    let oldest_pending = history.iter().position(Entry::is_pending);
    let mut at = 0;
    history.retain(|entry| {
        at += 1;
        let needed = entry.is_pending() || oldest_pending == Some(at) || at == before;
        if needed || limits.hold(items, bytes) {
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
    limits: Limits,
    in_flight: impl Fn(&str) -> bool,
    ids: &mut impl FnMut() -> String,
) -> usize {
    let pending = || history.iter().filter(|entry| entry.is_pending());
    if limits.hold(pending().count(), pending().map(size::stored).sum()) {
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
    let free = |entry: &Entry| entry.id.as_deref().is_none_or(|id| !in_flight(id));
    let mut fold = |(_, a), (at, b)| slot(at, fold_entries(a, b, ids()));
    let same = |(_, a): &(usize, Entry), (_, b): &(usize, Entry)| {
        free(a) && free(b) && a.subject == b.subject
    };
    let any = |(_, a): &(usize, Entry), (_, b): &(usize, Entry)| free(a) && free(b);
    let merged = squeeze(&mut waiting, limits, same, &mut fold)
        + squeeze(&mut waiting, limits, any, &mut fold);

    rest.extend(waiting.into_iter().map(|slot| slot.item));
    rest.sort_by_key(|(at, _)| *at);
    history.extend(rest.into_iter().map(|(_, entry)| entry));
    merged
}
