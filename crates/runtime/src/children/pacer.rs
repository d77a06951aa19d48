//! Rate limit for the writes of children that a restart of the operator causes: after a failover, every child may need
//! a write.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::ObjectKey;

/// Size of a burst, as the time that its writes would take at one write per period.
const BURST: Duration = Duration::from_secs(5);

/// Rate limit of the writes of children, which delays no other work.
pub(crate) struct Pacer {
    period: Duration,
    turns: Mutex<Turns>,
}

#[derive(Default)]
struct Turns {
    /// Time of the next free write.
    next: Option<Instant>,
    given: HashMap<ObjectKey, Turn>,
}

struct Turn {
    at: Instant,
    basis: Basis,
}

/// State on which a waiting write is based. A change of the child or of its owner ends the wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Basis {
    /// Digest of the child's content.
    pub(super) fingerprint: u64,
    /// Generation of the owner.
    pub(super) generation: Option<i64>,
    /// The author's last reconcile request.
    pub(super) requested: Option<String>,
}

impl Pacer {
    /// Creates a rate limit with one write in each `period`.
    pub(crate) fn new(period: Duration) -> Self {
        Self {
            period,
            turns: Mutex::default(),
        }
    }

    fn turns(&self) -> MutexGuard<'_, Turns> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the write of the child still waits, on the same basis.
    pub(super) fn waits(&self, child: &ObjectKey, basis: &Basis) -> bool {
        self.turns()
            .given
            .get(child)
            .is_some_and(|turn| turn.waits(basis))
    }

    /// Returns whether the write of the child must wait. Reserves a time for a child that has none; `wake` runs at that
    /// time. A child keeps the time until [`Pacer::forget`], however often its write fails.
    pub(super) fn must_wait(
        &self,
        child: &ObjectKey,
        basis: Basis,
        wake: impl FnOnce() + Send + 'static,
    ) -> bool {
        let now = Instant::now();
        let mut turns = self.turns();
        if let Some(turn) = turns.given.get(child) {
            return turn.waits(&basis);
        }
        let next = turns.next.map_or(now, |next| next.max(now));
        turns.next = Some(next + self.period);
        let at = if next - now < BURST {
            now
        } else {
            next - BURST + self.period
        };
        turns.given.insert(child.clone(), Turn { at, basis });
        drop(turns);
        if at > now {
            tokio::spawn(async move {
                sleep_until(at).await;
                wake();
            });
        }
        at > now
    }

    /// Forgets a child that is confirmed, or no longer desired.
    pub(super) fn forget(&self, child: &ObjectKey) {
        self.turns().given.remove(child);
    }
}

impl Turn {
    fn waits(&self, basis: &Basis) -> bool {
        self.at > Instant::now() && self.basis == *basis
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const PERIOD: Duration = Duration::from_millis(50);

    fn basis(fingerprint: u64) -> Basis {
        Basis {
            fingerprint,
            generation: Some(1),
            requested: None,
        }
    }

    fn key(number: u32) -> ObjectKey {
        ObjectKey::new("shop", &number.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn children_are_spread_after_a_burst() {
        let (pacer, woken) = (Pacer::new(PERIOD), Arc::new(AtomicUsize::new(0)));
        let must_wait = |number: u32| {
            let woken = Arc::clone(&woken);
            pacer.must_wait(&key(number), basis(0), move || {
                _ = woken.fetch_add(1, Ordering::Relaxed);
            })
        };
        let waiting: Vec<_> = (0..140).filter(|number| must_wait(*number)).collect();
        assert_eq!(waiting, (100..140).collect::<Vec<_>>());
        // The check runs after the tasks that are due by then.
        tokio::time::sleep(Duration::from_millis(1)).await;
        for turn in 100..140 {
            assert!(
                must_wait(turn) && pacer.waits(&key(turn), &basis(0)),
                "{turn} keeps its time"
            );
            tokio::time::sleep(PERIOD).await;
            assert!(
                !must_wait(turn) && !pacer.waits(&key(turn), &basis(0)),
                "{turn} has reached its time"
            );
            assert_eq!(woken.load(Ordering::Relaxed), turn as usize - 99);
        }
        assert!(
            !must_wait(0) && !must_wait(139),
            "a failed write keeps its time"
        );
        (0..140).for_each(|number| pacer.forget(&key(number)));
        assert!(pacer.turns().given.is_empty());
        tokio::time::sleep(BURST * 2).await;
        assert!(
            (200..300).all(|number| !must_wait(number)),
            "the burst is available again"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn change_of_the_child_or_its_owner_ends_the_wait() {
        let pacer = Pacer::new(Duration::from_hours(1));
        assert!(!pacer.must_wait(&key(0), basis(0), || ()));
        assert!(pacer.must_wait(&key(1), basis(0), || ()));
        let others = [
            basis(1),
            Basis {
                generation: Some(2),
                ..basis(0)
            },
            Basis {
                requested: Some("now".into()),
                ..basis(0)
            },
        ];
        for other in others {
            assert!(!pacer.waits(&key(1), &other) && !pacer.must_wait(&key(1), other, || ()));
        }
        assert!(pacer.waits(&key(1), &basis(0)));
    }
}
