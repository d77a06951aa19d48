//! Turns of the syncs whose source is large: one such source is in memory at a time.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use qm_api::ConfigMapSync;
use qm_runtime::ObjectKey;
use qm_runtime::trigger::Trigger;

pub(super) struct Turns {
    state: Mutex<TurnsState>,
    trigger: Trigger<ConfigMapSync>,
}

#[derive(Default)]
struct TurnsState {
    is_taken: bool,
    /// Syncs that wait, the longest first.
    waiting: VecDeque<ObjectKey>,
    /// Sync that has had its turn and must let the next one go first. A source that changes all the time would otherwise
    /// always be first.
    yields: Option<ObjectKey>,
}

/// The turn of one sync. Its end triggers a reconcile of the sync that has waited longest.
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    sync: ObjectKey,
}

impl Turns {
    pub(super) fn new(trigger: Trigger<ConfigMapSync>) -> Self {
        Self {
            state: Mutex::default(),
            trigger,
        }
    }

    /// Returns the turn of a sync, or `None` while another sync has it. The sync is then reconciled later: a reconcile
    /// that waits would hold its source in memory, and the place of other syncs.
    pub(super) fn take(&self, sync: &ObjectKey) -> Option<Turn<'_>> {
        let mut state = self.lock();
        if state.is_taken || state.yields.take_if(|yields| yields == sync).is_some() {
            if !state.waiting.contains(sync) {
                state.waiting.push_back(sync.clone());
            }
            return None;
        }
        state.is_taken = true;
        state.yields = None;
        state.waiting.retain(|waiting| waiting != sync);
        Some(Turn {
            turns: self,
            sync: sync.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, TurnsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        state.is_taken = false;
        if let Some(next) = state.waiting.pop_front() {
            state.yields = Some(self.sync.clone());
            self.turns.trigger.wake(&next);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_taken_in_order() {
        let trigger = Trigger::default();
        let mut woken = trigger.open();
        let turns = Turns::new(trigger);
        let [first, second, third] =
            ["first", "second", "third"].map(|name| ObjectKey::new("shop", name));
        let turn = turns.take(&first);
        assert!(turn.is_some());
        // A sync that tries again keeps its place.
        for waiting in [&second, &third, &second] {
            assert!(turns.take(waiting).is_none());
        }
        assert!(woken.try_recv().is_err());
        drop(turn);
        assert_eq!(woken.try_recv(), Ok(second.clone()));
        // The first is triggered before the second, whose turn it is.
        assert!(turns.take(&first).is_none());
        drop(turns.take(&second));
        assert_eq!(woken.try_recv(), Ok(third));
        // The third may be deleted by now, which blocks nobody.
        drop(turns.take(&first));
        assert!(turns.take(&first).is_some());
        assert!(woken.try_recv().is_err());
    }
}
