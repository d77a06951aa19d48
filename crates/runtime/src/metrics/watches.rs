//! Whether each watch goes on.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::time::Instant;

/// What a resource is watched for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The operator cannot do without.
    Own,
    /// Somebody's `TrackedField` names it, which waits, and says so, when the apiserver refuses.
    Target,
}

/// How a watch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// Nothing is known against it.
    Standing,
    /// It failed, and since then has neither shown anything nor lasted.
    Failing,
    /// As it failed, because what a `TrackedField` names may not be read or is not served.
    Refused,
}

impl State {
    const ALL: [Self; 3] = [Self::Standing, Self::Failing, Self::Refused];

    fn label(self) -> &'static str {
        match self {
            Self::Standing => "standing",
            Self::Failing => "failing",
            Self::Refused => "refused",
        }
    }
}

/// All watches there are.
#[derive(Clone, Default)]
pub(super) struct Watches(Arc<Mutex<All>>);

#[derive(Default)]
struct All {
    /// How many there ever were.
    begun: u64,
    known: HashMap<u64, Known>,
}

struct Known {
    resource: Arc<str>,
    purpose: Purpose,
    /// When it failed last, if it has shown nothing since, and whether the apiserver refused.
    failed: Option<(Instant, bool)>,
    /// A watch that hangs in silence has failed again by then.
    lasts: Duration,
}

impl Known {
    fn state(&self, now: Instant) -> State {
        match self.failed {
            Some((at, refused)) if now.saturating_duration_since(at) < self.lasts => {
                if refused && self.purpose == Purpose::Target {
                    State::Refused
                } else {
                    State::Failing
                }
            }
            _ => State::Standing,
        }
    }
}

impl Watches {
    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, resource: &str, purpose: Purpose, restarts: Counter) -> Watch {
        let mut all = self.all();
        all.begun += 1;
        let id = all.begun;
        all.known.insert(
            id,
            Known {
                resource: resource.into(),
                purpose,
                failed: None,
                lasts: Duration::ZERO,
            },
        );
        Watch {
            id,
            ailing: false,
            restarts,
            all: self.clone(),
        }
    }
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Watches")
    }
}

impl Collector for Watches {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let now = Instant::now();
        let mut counts = BTreeMap::<Arc<str>, BTreeMap<State, i64>>::new();
        for known in self.all().known.values() {
            let counts = counts.entry(Arc::clone(&known.resource)).or_default();
            *counts.entry(known.state(now)).or_default() += 1;
        }
        let help = "Watches by how they are.";
        let mut family =
            encoder.encode_descriptor("quartermaster_watches", help, None, MetricType::Gauge)?;
        for (resource, counts) in counts {
            for state in State::ALL {
                let number = counts.get(&state).copied().unwrap_or_default();
                let labels = [("resource", &*resource), ("state", state.label())];
                ConstGauge::new(number).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// A watch: counted until this is dropped.
#[derive(Debug)]
pub struct Watch {
    id: u64,
    /// It failed, and has shown nothing since.
    ailing: bool,
    restarts: Counter,
    all: Watches,
}

impl Watch {
    /// It failed, because the apiserver `refused` or for another reason. Where it does not fail again for as long as it
    /// `lasts` in silence, it stands.
    pub fn failed(&mut self, refused: bool, lasts: Duration) {
        self.restarts.inc();
        self.ailing = true;
        if let Some(known) = self.all.all().known.get_mut(&self.id) {
            (known.failed, known.lasts) = (Some((Instant::now(), refused)), lasts);
        }
    }

    /// It showed something.
    pub fn shown(&mut self) {
        if std::mem::take(&mut self.ailing)
            && let Some(known) = self.all.all().known.get_mut(&self.id)
        {
            known.failed = None;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.all.all().known.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn states(watches: &Watches) -> Vec<State> {
        let mut all: Vec<_> = watches
            .all()
            .known
            .values()
            .map(|known| known.state(Instant::now()))
            .collect();
        all.sort_unstable();
        all
    }

    /// As a proxy has it that lets requests in and passes nothing on: the read timeout ends each of them.
    #[tokio::test(start_paused = true)]
    async fn a_watch_that_hangs_again_and_again_is_failing_all_the_time() {
        let (watches, lasts) = (Watches::default(), Duration::from_secs(165));
        let mut hangs = watches.add("pods", Purpose::Own, Counter::default());
        let _other = watches.add("pods", Purpose::Own, Counter::default());
        assert_eq!(states(&watches), [State::Standing, State::Standing]);
        for _ in 0..10 {
            hangs.failed(false, lasts);
            for _ in 0..136 {
                assert_eq!(states(&watches), [State::Standing, State::Failing]);
                tokio::time::advance(Duration::from_secs(1)).await;
            }
        }
        drop(hangs);
        assert_eq!(states(&watches), [State::Standing]);
    }
}
