//! Events of watches that wait for inspection.

use std::collections::VecDeque;
use std::sync::Arc;

use qm_runtime::raw_object::RawObject;

use super::resolver::TargetKey;

/// Maximum number of waiting events.
const MAX_EVENTS: usize = 100;

/// Maximum size of the waiting objects' text, in bytes. A single larger event is accepted.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Watch event of a target.
pub(super) struct WatchEvent {
    pub(super) target: TargetKey,
    pub(super) object: RawObject,
    /// False for a deletion.
    pub(super) exists: bool,
    /// Epoch of the watch.
    pub(super) epoch: u64,
}

/// Queue of watch events, oldest first. The first event stays until it has been inspected.
#[derive(Default)]
pub(super) struct WatchEventQueue {
    events: VecDeque<Arc<WatchEvent>>,
    bytes: usize,
}

impl WatchEventQueue {
    /// Adds an event, or returns it if there is no room.
    pub(super) fn push(&mut self, event: Arc<WatchEvent>) -> Result<(), Arc<WatchEvent>> {
        let bytes = self.bytes + event.object.text_len();
        let has_room = bytes <= MAX_BYTES && self.events.len() < MAX_EVENTS;
        if !has_room && !self.events.is_empty() {
            return Err(event);
        }
        self.bytes = bytes;
        self.events.push_back(event);
        Ok(())
    }

    pub(super) fn first(&self) -> Option<Arc<WatchEvent>> {
        self.events.front().cloned()
    }

    pub(super) fn pop(&mut self) {
        if let Some(event) = self.events.pop_front() {
            self.bytes -= event.object.text_len();
        }
        if self.events.is_empty() {
            self.events = VecDeque::new();
        }
    }

    /// Returns whether an event of `target` waits.
    pub(super) fn holds(&self, target: &TargetKey) -> bool {
        self.events.iter().any(|event| event.target == *target)
    }

    /// Returns whether an event of `target` waits that its watch has shown in this epoch.
    pub(super) fn holds_since(&self, target: &TargetKey, epoch: u64) -> bool {
        let mut events = self.events.iter();
        events.any(|event| event.target == *target && event.epoch == epoch)
    }
}
