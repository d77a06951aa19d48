//! Buffer of the observations since the last reconcile.

use std::mem;

use super::coalesce::{ListLimits, Slot, coalesce};
use super::limits::HistoryLimits;
use super::record::Observation;

/// Limited buffer of observations between the watch and the next reconcile, which never blocks the watch.
///
/// In a full buffer, neighbours in the middle merge and count their changes, so no change is lost. All observations
/// have one subject: another one needs a new buffer.
#[derive(Debug)]
pub struct ObservationBuffer {
    waiting: Vec<Observation>,
    bytes: usize,
    limits: ListLimits,
}

impl Default for ObservationBuffer {
    fn default() -> Self {
        Self::new(HistoryLimits::PENDING)
    }
}

impl ObservationBuffer {
    /// Creates an empty buffer without allocations.
    pub fn new(limits: ListLimits) -> Self {
        Self {
            waiting: Vec::new(),
            bytes: 0,
            limits,
        }
    }

    /// Adds an observation, unless it shows the newest state again. Returns the number of observations that were merged
    /// into a neighbour.
    pub fn push(&mut self, observation: Observation) -> usize {
        if self
            .waiting
            .last()
            .is_some_and(|newest| newest.state.is_unchanged(&observation.state))
        {
            return 0;
        }
        self.bytes += observation.size();
        self.waiting.push(observation);
        self.coalesce()
    }

    /// Removes and returns all observations, oldest first.
    pub fn drain(&mut self) -> Vec<Observation> {
        self.bytes = 0;
        mem::take(&mut self.waiting)
    }

    /// Puts drained observations back that a failed write did not record, before the later ones. Returns the same as
    /// [`push`](Self::push).
    pub fn restore(&mut self, drained: Vec<Observation>) -> usize {
        let since = mem::replace(&mut self.waiting, drained);
        let known = |newest: &Observation| {
            since
                .first()
                .is_some_and(|first| newest.state.is_unchanged(&first.state))
        };
        let repeated = usize::from(self.waiting.last().is_some_and(known));
        self.waiting.extend(since.into_iter().skip(repeated));
        self.bytes = self.waiting.iter().map(Observation::size).sum();
        self.coalesce()
    }

    fn coalesce(&mut self) -> usize {
        if self.limits.allows(self.waiting.len(), self.bytes) {
            return 0;
        }
        let slot = |item: Observation| Slot {
            bytes: item.size(),
            changes: item.changes(),
            item,
        };
        let mut slots = mem::take(&mut self.waiting).into_iter().map(slot).collect();
        let merged = coalesce(
            &mut slots,
            self.limits,
            |_, _| true,
            |a, b| slot(a.merge(b)),
        );
        self.bytes = slots.iter().map(|slot| slot.bytes).sum();
        self.waiting = slots.into_iter().map(|slot| slot.item).collect();
        merged
    }
}
