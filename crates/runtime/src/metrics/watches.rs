//! Health of each watch.

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

/// Purpose of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The operator itself needs the watch.
    Own,
    /// A user's object names the resource, and the object's status reports a denied watch.
    Target,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum WatchHealth {
    /// The watch has not failed lately.
    Healthy,
    /// The watch failed and has not recovered since.
    Failing,
    /// The watch failed because a user's object names a resource that the operator may not read or the apiserver does
    /// not serve.
    Denied,
}

impl WatchHealth {
    const ALL: [Self; 3] = [Self::Healthy, Self::Failing, Self::Denied];

    fn label(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Failing => "failing",
            Self::Denied => "denied",
        }
    }
}

#[derive(Clone, Default)]
pub(super) struct WatchRegistry(Arc<Mutex<RegistryState>>);

#[derive(Default)]
struct RegistryState {
    /// Number of watches so far.
    begun: u64,
    records: HashMap<u64, WatchRecord>,
}

struct WatchRecord {
    resource: Arc<str>,
    purpose: Purpose,
    /// Time of the last failure, if the watch has not recovered since, and whether the apiserver denied the watch.
    failed: Option<(Instant, bool)>,
    /// Time after a failure within which a watch whose problem persists fails again.
    failure_lifetime: Duration,
}

impl WatchRecord {
    fn health(&self, now: Instant) -> WatchHealth {
        match self.failed {
            Some((at, denied)) if now.saturating_duration_since(at) < self.failure_lifetime => {
                if denied && self.purpose == Purpose::Target {
                    WatchHealth::Denied
                } else {
                    WatchHealth::Failing
                }
            }
            _ => WatchHealth::Healthy,
        }
    }
}

impl WatchRegistry {
    fn state(&self) -> MutexGuard<'_, RegistryState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, resource: &str, purpose: Purpose, failures: Counter) -> WatchGuard {
        let mut state = self.state();
        state.begun += 1;
        let id = state.begun;
        state.records.insert(
            id,
            WatchRecord {
                resource: resource.into(),
                purpose,
                failed: None,
                failure_lifetime: Duration::ZERO,
            },
        );
        WatchGuard {
            id,
            failing: false,
            failures,
            registry: self.clone(),
        }
    }
}

impl fmt::Debug for WatchRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WatchRegistry")
    }
}

impl Collector for WatchRegistry {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let now = Instant::now();
        let mut counts = BTreeMap::<Arc<str>, BTreeMap<WatchHealth, i64>>::new();
        for record in self.state().records.values() {
            let counts = counts.entry(Arc::clone(&record.resource)).or_default();
            *counts.entry(record.health(now)).or_default() += 1;
        }
        let help = "Watches by state. The state is denied if the apiserver does not serve the resource or forbids the operator to read it.";
        let mut family = encoder.encode_descriptor("watches", help, None, MetricType::Gauge)?;
        for (resource, counts) in counts {
            for health in WatchHealth::ALL {
                let number = counts.get(&health).copied().unwrap_or_default();
                let labels = [("resource", &*resource), ("state", health.label())];
                ConstGauge::new(number).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// Guard of a watch: the metrics count the watch until the guard is dropped.
#[derive(Debug)]
pub struct WatchGuard {
    id: u64,
    /// True if the watch failed and has not recovered since.
    failing: bool,
    failures: Counter,
    registry: WatchRegistry,
}

impl WatchGuard {
    /// Records a failure; `denied` if the apiserver denied the watch. The watch is healthy again if no other failure
    /// follows within `failure_lifetime`.
    pub fn failed(&mut self, denied: bool, failure_lifetime: Duration) {
        self.failures.inc();
        self.failing = true;
        if let Some(record) = self.registry.state().records.get_mut(&self.id) {
            (record.failed, record.failure_lifetime) =
                (Some((Instant::now(), denied)), failure_lifetime);
        }
    }

    /// Records that the watch recovered.
    pub fn recovered(&mut self) {
        if std::mem::take(&mut self.failing)
            && let Some(record) = self.registry.state().records.get_mut(&self.id)
        {
            record.failed = None;
        }
    }
}

impl Drop for WatchGuard {
    fn drop(&mut self) {
        self.registry.state().records.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn states(watches: &WatchRegistry) -> Vec<WatchHealth> {
        let mut all: Vec<_> = watches
            .state()
            .records
            .values()
            .map(|record| record.health(Instant::now()))
            .collect();
        all.sort_unstable();
        all
    }

    /// Behind a proxy that accepts requests and forwards nothing, the read timeout ends each watch.
    #[tokio::test(start_paused = true)]
    async fn stalled_watch_is_failing_throughout() {
        let (watches, failure_lifetime) = (WatchRegistry::default(), Duration::from_secs(165));
        let mut hangs = watches.add("pods", Purpose::Own, Counter::default());
        let _other = watches.add("pods", Purpose::Own, Counter::default());
        assert_eq!(
            states(&watches),
            [WatchHealth::Healthy, WatchHealth::Healthy]
        );
        for _ in 0..10 {
            hangs.failed(false, failure_lifetime);
            for _ in 0..124 {
                assert_eq!(
                    states(&watches),
                    [WatchHealth::Healthy, WatchHealth::Failing]
                );
                tokio::time::advance(Duration::from_secs(1)).await;
            }
        }
        drop(hangs);
        assert_eq!(states(&watches), [WatchHealth::Healthy]);
    }
}
