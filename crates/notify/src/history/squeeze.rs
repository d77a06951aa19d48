//! Lists that must stay within limits: neighbours in the middle become one.

use std::mem;

/// How much a list may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Items.
    pub items: usize,
    /// Bytes, all items together.
    pub bytes: usize,
}

impl Limits {
    pub(super) fn hold(self, items: usize, bytes: usize) -> bool {
        items <= self.items && bytes <= self.bytes
    }

    /// An eighth less, so that a list that is full is not gone through again for every item that comes.
    fn with_slack(self) -> Self {
        Self {
            items: self.items - self.items / 8,
            bytes: self.bytes - self.bytes / 8,
        }
    }
}

/// An item, with what folding looks at.
pub(super) struct Slot<T> {
    pub item: T,
    pub bytes: usize,
    pub changes: u64,
}

/// Folds neighbours, the lightest (in changes) first, until the list is within `limits` and some slack, or nothing can
/// be folded any more. The first and the last stay as they are. Returns how many items fewer there are.
pub(super) fn squeeze<T>(
    slots: &mut Vec<Slot<T>>,
    limits: Limits,
    may_fold: impl Fn(&T, &T) -> bool,
    mut fold: impl FnMut(T, T) -> Slot<T>,
) -> usize {
    let before = slots.len();
    let mut bytes: usize = slots.iter().map(|slot| slot.bytes).sum();
    if limits.hold(before, bytes) {
        return 0;
    }
    let target = limits.with_slack();
    while !target.hold(slots.len(), bytes) {
        let middle = slots
            .get(1..slots.len().saturating_sub(1))
            .unwrap_or_default();
        let pairs = middle.windows(2).filter_map(|pair| match pair {
            [a, b] if may_fold(&a.item, &b.item) => Some(a.changes.saturating_add(b.changes)),
            _ => None,
        });
        let Some(lightest) = pairs.min() else { break };
        let heaviest = lightest.checked_next_power_of_two().unwrap_or(u64::MAX);

        let last = slots.len() - 1;
        let mut items = slots.len();
        let mut kept: Vec<Slot<T>> = Vec::with_capacity(slots.len());
        for (at, slot) in mem::take(slots).into_iter().enumerate() {
            let folds = at > 1
                && at < last
                && !target.hold(items, bytes)
                && kept.last().is_some_and(|before| {
                    before.changes.saturating_add(slot.changes) <= heaviest
                        && may_fold(&before.item, &slot.item)
                });
            match if folds { kept.pop() } else { None } {
                Some(before) => {
                    bytes -= before.bytes + slot.bytes;
                    let folded = fold(before.item, slot.item);
                    bytes += folded.bytes;
                    items -= 1;
                    kept.push(folded);
                }
                None => kept.push(slot),
            }
        }
        *slots = kept;
    }
    before - slots.len()
}
