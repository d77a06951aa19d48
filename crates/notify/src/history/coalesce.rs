//! Lists with limits, in which neighbours in the middle merge.

use std::mem;

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

/// Item with the numbers that merging compares.
pub(super) struct Slot<T> {
    pub item: T,
    pub bytes: usize,
    pub changes: u64,
}

/// Merges neighbours, those with the fewest changes first, until the list is within `limits` and some slack, or nothing
/// can merge any more. The first and the last item stay. Returns the number of removed items.
pub(super) fn coalesce<T>(
    slots: &mut Vec<Slot<T>>,
    limits: ListLimits,
    may_merge: impl Fn(&T, &T) -> bool,
    mut merge: impl FnMut(T, T) -> Slot<T>,
) -> usize {
    let before = slots.len();
    let mut bytes: usize = slots.iter().map(|slot| slot.bytes).sum();
    if limits.allows(before, bytes) {
        return 0;
    }
    let target = limits.with_slack();
    while !target.allows(slots.len(), bytes) {
        let middle = slots
            .get(1..slots.len().saturating_sub(1))
            .unwrap_or_default();
        let pairs = middle.windows(2).filter_map(|pair| match pair {
            [a, b] if may_merge(&a.item, &b.item) => Some(a.changes.saturating_add(b.changes)),
            _ => None,
        });
        let Some(lightest) = pairs.min() else { break };
        let heaviest = lightest.checked_next_power_of_two().unwrap_or(u64::MAX);

        let last = slots.len() - 1;
        let mut items = slots.len();
        let mut kept: Vec<Slot<T>> = Vec::with_capacity(slots.len());
        for (at, slot) in mem::take(slots).into_iter().enumerate() {
            let merges = at > 1
                && at < last
                && !target.allows(items, bytes)
                && kept.last().is_some_and(|before| {
                    before.changes.saturating_add(slot.changes) <= heaviest
                        && may_merge(&before.item, &slot.item)
                });
            match if merges { kept.pop() } else { None } {
                Some(before) => {
                    bytes -= before.bytes + slot.bytes;
                    let merged = merge(before.item, slot.item);
                    bytes += merged.bytes;
                    items -= 1;
                    kept.push(merged);
                }
                None => kept.push(slot),
            }
        }
        *slots = kept;
    }
    before - slots.len()
}
