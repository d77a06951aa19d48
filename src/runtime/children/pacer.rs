//! Rate limit for writes of children without a confirmed state: after a failover that may be all of them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::runtime::Key;

/// Time between two writes.
const PERIOD: Duration = Duration::from_millis(50);
/// Number of writes that may happen at once.
const BURST: u32 = 100;

/// Schedule of children's writes that blocks nothing else.
#[derive(Default)]
pub(super) struct Pacer(Mutex<Turns>);

#[derive(Default)]
struct Turns {
    /// Time of the next free write.
    next: Option<Instant>,
    given: HashMap<Key, Instant>,
}

impl Pacer {
    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how long the child must wait; `None` if its turn has come, which is then used up.
    pub(super) fn wait(&self, child: &Key) -> Option<Duration> {
        let now = Instant::now();
        let mut turns = self.turns();
        let turn = turns.given.remove(child).unwrap_or_else(|| {
            let next = turns.next.map_or(now, |next| next.max(now));
            turns.next = Some(next + PERIOD);
            next - (next - now).min(PERIOD * BURST)
        });
        if turn <= now {
            return None;
        }
        turns.given.insert(child.clone(), turn);
        Some(turn - now)
    }

    /// Forgets a child that is no longer desired.
    pub(super) fn forget(&self, child: &Key) {
        self.turns().given.remove(child);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn children_are_spread_after_a_burst() {
        let pacer = Pacer::default();
        let key = |number: u32| Key::new("shop", &number.to_string());
        let waits: Vec<_> = (0..BURST + 40).map(|number| pacer.wait(&key(number)).unwrap_or_default()).collect();
        let at_once = BURST as usize;
        assert!(waits[..=at_once].iter().all(Duration::is_zero), "{waits:?}");
        assert_eq!(waits[at_once + 1], PERIOD);
        assert_eq!(waits[at_once + 39], PERIOD * 39);
        let last = key(BURST + 39);
        assert_eq!(pacer.wait(&last), Some(PERIOD * 39), "asked again, it keeps its turn");
        tokio::time::advance(PERIOD * 39).await;
        assert_eq!(pacer.wait(&last), None);
        pacer.forget(&key(BURST + 20));
        assert_eq!(pacer.turns().given.len(), 37);
        tokio::time::advance(PERIOD * BURST * 2).await;
        assert_eq!(pacer.wait(&key(0)), None, "there is room again");
    }
}
