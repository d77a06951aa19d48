//! What was observed since the last pass.

use std::mem;

use super::bound::Bounds;
use super::record::Observation;
use super::squeeze::{Limits, Slot, squeeze};

/// Observations on their way from the watch to the next pass: bounded, and never in the watch's way.
///
/// When it is full, neighbours in the middle become one that counts them, so that every change is still accounted for.
/// It speaks of one subject: another one needs a new buffer.
#[derive(Debug)]
pub struct ObservationBuffer {
    waiting: Vec<Observation>,
    bytes: usize,
    limits: Limits,
}

impl Default for ObservationBuffer {
    fn default() -> Self {
        Self::new(Bounds::PENDING)
    }
}

impl ObservationBuffer {
    /// An empty one, which takes no memory but its own.
    pub fn new(limits: Limits) -> Self {
        Self {
            waiting: Vec::new(),
            bytes: 0,
            limits,
        }
    }

    /// Takes an observation, unless it shows what the newest one here does. Returns how many observations fewer there
    /// are because neighbours became one.
    pub fn push(&mut self, observation: Observation) -> usize {
        if self
            .waiting
            .last()
            .is_some_and(|newest| newest.state.is_still(&observation.state))
        {
            return 0;
        }
        self.bytes += observation.size();
        self.waiting.push(observation);
        self.squeeze()
    }

    /// Takes out all, oldest first.
    pub fn drain(&mut self) -> Vec<Observation> {
        self.bytes = 0;
        mem::take(&mut self.waiting)
    }

    /// Puts back what was drained and could not be recorded, before what has come since. Returns what
    /// [`push`](Self::push) does.
    pub fn restore(&mut self, drained: Vec<Observation>) -> usize {
        let since = mem::replace(&mut self.waiting, drained);
        let known = |newest: &Observation| {
            since
                .first()
                .is_some_and(|first| newest.state.is_still(&first.state))
        };
        let repeated = usize::from(self.waiting.last().is_some_and(known));
        self.waiting.extend(since.into_iter().skip(repeated));
        self.bytes = self.waiting.iter().map(Observation::size).sum();
        self.squeeze()
    }

    fn squeeze(&mut self) -> usize {
        if self.limits.hold(self.waiting.len(), self.bytes) {
            return 0;
        }
        let slot = |item: Observation| Slot {
            bytes: item.size(),
            changes: item.changes(),
            item,
        };
        let mut slots = mem::take(&mut self.waiting).into_iter().map(slot).collect();
        let fewer = squeeze(&mut slots, self.limits, |_, _| true, |a, b| slot(a.fold(b)));
        self.bytes = slots.iter().map(|slot| slot.bytes).sum();
        self.waiting = slots.into_iter().map(|slot| slot.item).collect();
        fewer
    }
}
