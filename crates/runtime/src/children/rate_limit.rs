//! Rate limit of the writes that a restart of the operator causes: after a failover, every child may need one.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::{ObjectKey, SpecRevision};

/// Length of a burst: the time that its writes would take at one write per period.
const BURST: Duration = Duration::from_secs(5);

/// Rate limit of writes of children. Other writes need no reservation.
pub(crate) struct WriteLimiter {
    period: Duration,
    reservations: Mutex<Reservations>,
}

#[derive(Default)]
struct Reservations {
    /// Time of the next free write.
    next: Option<Instant>,
    by_child: HashMap<ObjectKey, Reservation>,
}

struct Reservation {
    at: Instant,
    basis: Basis,
}

/// State on which a waiting write is based. A change of the child or of its owner ends the wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Basis {
    pub(super) fingerprint: u64,
    /// Revision of the owner.
    pub(super) revision: SpecRevision,
}

impl WriteLimiter {
    /// Creates a rate limit with one write in each `period`.
    pub(crate) fn new(period: Duration) -> Self {
        Self {
            period,
            reservations: Mutex::default(),
        }
    }

    fn reservations(&self) -> MutexGuard<'_, Reservations> {
        self.reservations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the write of the child still waits, on the same basis.
    pub(super) fn waits(&self, child: &ObjectKey, basis: &Basis) -> bool {
        self.reservations()
            .by_child
            .get(child)
            .is_some_and(|reservation| reservation.waits(basis))
    }

    /// Returns whether the write of the child must wait. Reserves a time for a child that has none, and runs `wake` at
    /// that time. A child keeps its time until [`WriteLimiter::forget`], however often the write fails.
    pub(super) fn must_wait(
        &self,
        child: &ObjectKey,
        basis: Basis,
        wake: impl FnOnce() + Send + 'static,
    ) -> bool {
        let now = Instant::now();
        let mut reservations = self.reservations();
        if let Some(reservation) = reservations.by_child.get(child) {
            return reservation.waits(&basis);
        }
        let next = reservations.next.map_or(now, |next| next.max(now));
        reservations.next = Some(next + self.period);
        let at = if next - now < BURST {
            now
        } else {
            next - BURST + self.period
        };
        reservations
            .by_child
            .insert(child.clone(), Reservation { at, basis });
        drop(reservations);
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
        self.reservations().by_child.remove(child);
    }
}

impl Reservation {
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
            revision: SpecRevision::default(),
        }
    }

    fn key(number: u32) -> ObjectKey {
        ObjectKey::new("shop", &number.to_string())
    }

    #[tokio::test(start_paused = true)]
    async fn children_are_spread_after_a_burst() {
        let (limiter, woken) = (WriteLimiter::new(PERIOD), Arc::new(AtomicUsize::new(0)));
        let must_wait = |number: u32| {
            let woken = Arc::clone(&woken);
            limiter.must_wait(&key(number), basis(0), move || {
                _ = woken.fetch_add(1, Ordering::Relaxed);
            })
        };
        let waiting: Vec<_> = (0..140).filter(|number| must_wait(*number)).collect();
        assert_eq!(waiting, (100..140).collect::<Vec<_>>());
        // The check runs after the tasks that are due by then.
        tokio::time::sleep(Duration::from_millis(1)).await;
        for number in 100..140 {
            assert!(
                must_wait(number) && limiter.waits(&key(number), &basis(0)),
                "{number} keeps its time"
            );
            tokio::time::sleep(PERIOD).await;
            assert!(
                !must_wait(number) && !limiter.waits(&key(number), &basis(0)),
                "{number} has reached its time"
            );
            assert_eq!(woken.load(Ordering::Relaxed), number as usize - 99);
        }
        assert!(
            !must_wait(0) && !must_wait(139),
            "a failed write keeps its time"
        );
        (0..140).for_each(|number| limiter.forget(&key(number)));
        assert!(limiter.reservations().by_child.is_empty());
        tokio::time::sleep(BURST * 2).await;
        assert!(
            (200..300).all(|number| !must_wait(number)),
            "the burst is available again"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn change_of_the_child_or_its_owner_ends_the_wait() {
        let limiter = WriteLimiter::new(Duration::from_hours(1));
        assert!(!limiter.must_wait(&key(0), basis(0), || ()));
        assert!(limiter.must_wait(&key(1), basis(0), || ()));
        let of_owner = |revision: SpecRevision| Basis {
            revision,
            ..basis(0)
        };
        let others = [
            basis(1),
            of_owner(SpecRevision {
                generation: Some(2),
                ..SpecRevision::default()
            }),
            of_owner(SpecRevision {
                requested_at: Some("now".into()),
                ..SpecRevision::default()
            }),
        ];
        for other in others {
            assert!(!limiter.waits(&key(1), &other) && !limiter.must_wait(&key(1), other, || ()));
        }
        assert!(limiter.waits(&key(1), &basis(0)));
    }
}
