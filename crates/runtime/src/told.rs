//! Which Events were published of an object, so that what goes round in circles is told once.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::Key;

/// What has been well for so long is over: the kubelet begins anew then too
/// (<https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#container-restarts>).
const OVER: Duration = Duration::from_mins(10);

/// The reasons that were told of each object since it was well for a while, or its spec changed: a container that crashes has
/// the same few in turn for ever. A restart may tell one of them once more.
#[derive(Default)]
pub struct Told(Mutex<HashMap<Key, Reasons>>);

#[derive(Default)]
struct Reasons {
    generation: i64,
    told: BTreeSet<String>,
    well: Option<Instant>,
}

impl Told {
    fn told(&self) -> MutexGuard<'_, HashMap<Key, Reasons>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It stands so, for this reason: whether that is to be told.
    pub fn is_news(&self, key: &Key, generation: i64, well: bool, reason: &str) -> bool {
        let mut told = self.told();
        let reasons = told.entry(key.clone()).or_default();
        let over = !well && reasons.well.is_some_and(|since| since.elapsed() > OVER);
        if over || reasons.generation != generation {
            *reasons = Reasons {
                generation,
                ..Reasons::default()
            };
        }
        reasons.well = well.then(|| reasons.well.unwrap_or_else(Instant::now));
        reasons.told.insert(reason.to_owned())
    }

    /// Whether anything was told of it.
    pub fn anything(&self, key: &Key) -> bool {
        self.told()
            .get(key)
            .is_some_and(|reasons| !reasons.told.is_empty())
    }

    /// It is gone.
    pub fn forget(&self, key: &Key) {
        self.told().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reason_is_told_once_until_all_is_well_for_a_while() {
        let (told, key) = (Told::default(), Key::new("shop", "web"));
        let crash = || told.is_news(&key, 1, false, "CrashLoopBackOff");
        let well = || told.is_news(&key, 1, true, "Ready");
        assert!(crash() && well());
        for _ in 0..3 {
            assert!(!crash() && !well(), "it goes round");
        }
        tokio::time::advance(OVER * 2).await;
        assert!(!well() && crash() && well() && !crash());
        assert!(
            told.is_news(&key, 2, false, "CrashLoopBackOff"),
            "the spec is another one"
        );
        told.forget(&key);
        assert!(!told.anything(&key) && crash() && told.anything(&key));
    }
}
