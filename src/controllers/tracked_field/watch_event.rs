//! Events of the watches that wait to be looked into.

use std::collections::VecDeque;
use std::sync::Arc;

use qm_runtime::raw_object::RawObject;

use super::target::TargetKey;

/// Most events that wait.
const MAX_EVENTS: usize = 100;

/// Most text that waits, in bytes. A single larger event is taken all the same.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// What a watch shows of a target.
pub(super) struct Shown {
    pub(super) target: TargetKey,
    pub(super) object: RawObject,
    /// False for a deletion.
    pub(super) exists: bool,
    /// Turn of the watch.
    pub(super) turn: u64,
}

/// Events, oldest first. The first one stays until it has been looked into.
#[derive(Default)]
pub(super) struct ShownQueue {
    events: VecDeque<Arc<Shown>>,
    bytes: usize,
}

impl ShownQueue {
    /// Adds an event, or returns it if there is no room.
    pub(super) fn push(&mut self, shown: Arc<Shown>) -> Result<(), Arc<Shown>> {
        let bytes = self.bytes + shown.object.text_len();
        let has_room = bytes <= MAX_BYTES && self.events.len() < MAX_EVENTS;
        if !has_room && !self.events.is_empty() {
            return Err(shown);
        }
        self.bytes = bytes;
        self.events.push_back(shown);
        Ok(())
    }

    /// Returns the first event.
    pub(super) fn first(&self) -> Option<Arc<Shown>> {
        self.events.front().cloned()
    }

    /// Removes the first event.
    pub(super) fn pop(&mut self) {
        if let Some(shown) = self.events.pop_front() {
            self.bytes -= shown.object.text_len();
        }
        if self.events.is_empty() {
            self.events = VecDeque::new();
        }
    }

    /// Returns whether an event of `target` waits.
    pub(super) fn holds(&self, target: &TargetKey) -> bool {
        self.events.iter().any(|shown| shown.target == *target)
    }

    /// Returns whether an event of `target` waits that its watch has shown in this turn.
    pub(super) fn holds_since(&self, target: &TargetKey, turn: u64) -> bool {
        let mut events = self.events.iter();
        events.any(|shown| shown.target == *target && shown.turn == turn)
    }
}
