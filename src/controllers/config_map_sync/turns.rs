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
    /// Sync that was woken for its turn and has not taken it yet.
    next: Option<ObjectKey>,
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
        (state.next, state.yields) = (None, None);
        state.waiting.retain(|waiting| waiting != sync);
        Some(Turn {
            turns: self,
            sync: sync.clone(),
        })
    }

    /// Records that a sync needs no turn: if it was woken for one, the next sync is woken.
    pub(super) fn leave(&self, sync: &ObjectKey) {
        let mut state = self.lock();
        state.waiting.retain(|waiting| waiting != sync);
        if state.next.as_ref() == Some(sync) {
            self.wake_next(&mut state);
        }
    }

    fn wake_next(&self, state: &mut TurnsState) {
        state.next = state.waiting.pop_front();
        match &state.next {
            Some(next) => self.trigger.wake(next),
            None => state.yields = None,
        }
    }

    fn lock(&self) -> MutexGuard<'_, TurnsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.lock();
        state.is_taken = false;
        state.yields = Some(self.sync.clone());
        self.turns.wake_next(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc::UnboundedReceiver;

    use super::*;

    fn fixture() -> (Turns, UnboundedReceiver<ObjectKey>, [ObjectKey; 3]) {
        let trigger = Trigger::default();
        let woken = trigger.open();
        let syncs = ["first", "second", "third"].map(|name| ObjectKey::new("shop", name));
        (Turns::new(trigger), woken, syncs)
    }

    #[test]
    fn turns_are_taken_in_order() {
        let (turns, mut woken, [first, second, third]) = fixture();
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

    #[test]
    fn turn_that_its_sync_does_not_need_passes_on() {
        let (turns, mut woken, [first, second, third]) = fixture();
        let turn = turns.take(&first);
        for waiting in [&second, &third] {
            assert!(turns.take(waiting).is_none());
        }
        drop(turn);
        assert_eq!(woken.try_recv(), Ok(second.clone()));
        turns.leave(&first);
        assert!(woken.try_recv().is_err(), "the second may still come");
        turns.leave(&second);
        assert_eq!(woken.try_recv(), Ok(third.clone()));
        turns.leave(&third);
        assert!(turns.take(&first).is_some(), "no sync waits");
    }
}
