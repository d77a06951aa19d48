//! Metrics of the runtime, and the registry of all metrics of the process, which [`serving`] serves.
//!
//! Metrics that controller-runtime also has use its names, so that its dashboards work
//! (<https://book.kubebuilder.io/reference/metrics-reference>). Other names begin with the name of the program. Names
//! of objects are never labels.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use self::resources::Tally;
use super::leader::Fence;
use crate::settings::Program;

mod process;
mod queues;
pub mod resources;
mod watches;

pub use queues::WorkQueueState;
pub use watches::{Purpose, WatchGuard};

/// Label of a metric: name and value.
pub type Label = (&'static str, Cow<'static, str>);
type Counters<const N: usize> = Family<[Label; N], Counter>;
type Gauges<const N: usize> = Family<[Label; N], Gauge>;
type Histograms<const N: usize> = Family<[Label; N], Histogram, fn() -> Histogram>;

/// Buckets from a reconcile that finds nothing to do to one that runs into its timeout.
const RECONCILE_BUCKETS: [f64; 13] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];

/// controller-runtime's buckets: 10 ns to 1,000 s.
const QUEUE_BUCKETS: [f64; 12] = [
    1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0,
];

/// All metrics of the process. Cheap to clone.
#[derive(Clone)]
pub struct Metrics(Arc<MetricsInner>);

struct MetricsInner {
    program: Program,
    registry: Mutex<Registry>,
    reconciles: Counters<2>,
    reconcile_errors: Counters<1>,
    reconcile_panics: Counters<1>,
    reconcile_seconds: Histograms<1>,
    reconcile_limit: Gauges<1>,
    reconcile_active: Gauges<1>,
    queue_adds: Counters<2>,
    queue_seconds: Histograms<2>,
    queues: queues::QueueCollector,
    api_requests: Counters<3>,
    leadership: Leadership,
    drift_corrections: Counters<1>,
    watch_failures: Counters<1>,
    watches: watches::WatchRegistry,
    resources: resources::ResourceCollector,
}

/// Result of a reconcile, with controller-runtime's label values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReconcileResult {
    /// Nothing is left to do.
    Success,
    /// The next reconcile comes after a time that the reconcile chose.
    RequeueAfter,
    /// The reconcile met a conflict, which is not a failure; the next reconcile comes after a backoff.
    Requeue,
    /// The reconcile failed.
    Error,
}

impl ReconcileResult {
    /// All results.
    pub const ALL: [Self; 4] = [
        Self::Success,
        Self::RequeueAfter,
        Self::Requeue,
        Self::Error,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::RequeueAfter => "requeue_after",
            Self::Requeue => "requeue",
            Self::Error => "error",
        }
    }
}

fn label<const N: usize>(pairs: [(&'static str, &'static str); N]) -> [Label; N] {
    pairs.map(|(name, value)| (name, Cow::Borrowed(value)))
}

fn queue_histogram() -> Histogram {
    Histogram::new(QUEUE_BUCKETS)
}

fn reconcile_histogram() -> Histogram {
    Histogram::new(RECONCILE_BUCKETS)
}

impl MetricsInner {
    // The registry appends the full stop to each help text, and `_total` to the names of counters.
    fn register_controllers(&self, registry: &mut Registry) {
        registry.register(
            "controller_runtime_reconcile",
            "Reconciles by result; a failed write of a status counts as one more, with error",
            self.reconciles.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_errors",
            "Reconciles that failed",
            self.reconcile_errors.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_panics",
            "Reconciles that panicked",
            self.reconcile_panics.clone(),
        );
        registry.register(
            "controller_runtime_reconcile_time_seconds",
            "Duration of a reconcile",
            self.reconcile_seconds.clone(),
        );
        registry.register(
            "controller_runtime_max_concurrent_reconciles",
            "Reconciles that may run at the same time",
            self.reconcile_limit.clone(),
        );
        registry.register(
            "controller_runtime_active_workers",
            "Running reconciles",
            self.reconcile_active.clone(),
        );
        registry.register(
            "workqueue_adds",
            "Additions to a controller's queue",
            self.queue_adds.clone(),
        );
        registry.register(
            "workqueue_queue_duration_seconds",
            "How long an object waits in a controller's queue before its reconcile begins",
            self.queue_seconds.clone(),
        );
        registry.register_collector(Box::new(self.queues.clone()));
        registry.register(
            "rest_client_requests",
            "Requests to the apiserver by status code, or <error> when there was no answer",
            self.api_requests.clone(),
        );
        registry.register_collector(Box::new(self.leadership.clone()));
        registry.register_collector(Box::new(process::Process));
    }

    /// Registers the metrics whose names begin with the program's.
    fn register_own(&self, registry: &mut Registry) {
        registry.register(
            "drift_corrections",
            "Corrections of objects that another client changed or deleted",
            self.drift_corrections.clone(),
        );
        registry.register_collector(Box::new(self.resources.clone()));
        registry.register_collector(Box::new(self.watches.clone()));
        registry.register(
            "watch_failures",
            "Watches that failed: no answer, a denial, or a list that must be repeated",
            self.watch_failures.clone(),
        );
        let build = Gauges::<1>::default();
        build
            .get_or_create(&label([("version", self.program.version)]))
            .set(1);
        registry.register(
            "build_info",
            "Version of the running program; always 1",
            build,
        );
    }
}

impl Metrics {
    /// Creates the metrics of the runtime, at zero.
    pub fn new(program: &Program) -> Self {
        let metrics = Self(Arc::new(MetricsInner {
            program: *program,
            registry: Mutex::default(),
            reconciles: Counters::default(),
            reconcile_errors: Counters::default(),
            reconcile_panics: Counters::default(),
            reconcile_seconds: Family::new_with_constructor(reconcile_histogram),
            reconcile_limit: Gauges::default(),
            reconcile_active: Gauges::default(),
            queue_adds: Counters::default(),
            queue_seconds: Family::new_with_constructor(queue_histogram),
            queues: queues::QueueCollector::default(),
            api_requests: Counters::default(),
            leadership: Leadership::default(),
            drift_corrections: Counters::default(),
            watch_failures: Counters::default(),
            watches: watches::WatchRegistry::default(),
            resources: resources::ResourceCollector::default(),
        }));
        metrics.0.register_controllers(&mut metrics.registry());
        metrics.register(|registry| metrics.0.register_own(registry));
        metrics
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.0
            .registry
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers metrics of the program or of a controller. Their names get the name of the program as their prefix.
    pub fn register<T>(&self, register: impl FnOnce(&mut Registry) -> T) -> T {
        let prefix = self.0.program.name.replace('-', "_");
        register(self.registry().sub_registry_with_prefix(prefix))
    }

    /// Returns the metrics of one controller, at zero. `limit` reconciles may run at the same time.
    pub fn controller(&self, name: &'static str, limit: usize) -> ControllerMetrics {
        let m = &self.0;
        let controller = label([("controller", name)]);
        m.reconcile_limit
            .get_or_create(&controller)
            .set(i64::try_from(limit).unwrap_or(i64::MAX));
        ControllerMetrics {
            results: ReconcileResult::ALL.map(|result| {
                m.reconciles
                    .get_or_create_owned(&label([("controller", name), ("result", result.label())]))
            }),
            errors: m.reconcile_errors.get_or_create_owned(&controller),
            panics: m.reconcile_panics.get_or_create_owned(&controller),
            seconds: m.reconcile_seconds.get_or_create_owned(&controller),
            active: m.reconcile_active.get_or_create_owned(&controller),
            added: m
                .queue_adds
                .get_or_create_owned(&label([("name", name), ("controller", name)])),
            queued: m
                .queue_seconds
                .get_or_create_owned(&label([("name", name), ("controller", name)])),
        }
    }

    /// Sets the function that returns the state of a controller's queue. Each scrape calls it.
    pub fn set_queue(
        &self,
        controller: &'static str,
        state: impl Fn() -> WorkQueueState + Send + Sync + 'static,
    ) {
        self.0.queues.set(controller, Box::new(state));
    }

    /// Counts one request to the apiserver; `None` means no answer.
    pub fn api_request(&self, host: &str, method: &str, code: Option<u16>) {
        let code = code.map_or(Cow::Borrowed("<error>"), |code| code.to_string().into());
        let labels = [
            ("code", code),
            ("method", method.to_owned().into()),
            ("host", host.to_owned().into()),
        ];
        self.0.api_requests.get_or_create(&labels).inc();
    }

    /// Sets the Lease and its fence, which `leader_election_master_status` reports. Without leader election the fence
    /// is always open.
    pub fn set_leadership(&self, lease: &str, fence: Fence) {
        // A process has one lease.
        let _ = self.0.leadership.0.set((lease.into(), fence));
    }

    /// Returns the counter of drift corrections by one controller, and registers it at zero.
    pub fn drift_corrections(&self, controller: &'static str) -> Counter {
        self.0
            .drift_corrections
            .get_or_create_owned(&label([("controller", controller)]))
    }

    /// Sets the function that counts the objects of a controller; `None` while their number is unknown. Each scrape
    /// calls it.
    pub fn set_resources(
        &self,
        controller: &'static str,
        count: impl Fn() -> Option<Tally> + Send + Sync + 'static,
    ) {
        self.0.resources.set(controller, Box::new(count));
    }

    /// Counts a watch of `resource` (with its group: `deployments.apps`) until the guard is dropped.
    pub fn watch(&self, resource: &str, purpose: Purpose) -> WatchGuard {
        let failures = self
            .0
            .watch_failures
            .get_or_create_owned(&[("resource", resource.to_owned().into())]);
        self.0.watches.add(resource, purpose, failures)
    }

    /// Returns all metrics as `OpenMetrics` 1.0.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        match text::encode(&mut text, &self.registry()) {
            Ok(()) => text,
            Err(fmt::Error) => String::new(),
        }
    }
}

/// Metrics of one controller. Cheap to clone.
#[derive(Clone)]
pub struct ControllerMetrics {
    results: [Counter; 4],
    errors: Counter,
    panics: Counter,
    seconds: Histogram,
    active: Gauge,
    added: Counter,
    queued: Histogram,
}

impl ControllerMetrics {
    /// Counts a reconcile as running until the guard is dropped.
    #[must_use = "the reconcile counts as running until the guard is dropped"]
    pub fn started(&self) -> Active {
        self.active.inc();
        Active(self.active.clone())
    }

    /// Counts an addition to the queue.
    pub fn added(&self) {
        self.added.inc();
    }

    /// Records the time that an object waited in the queue.
    pub fn queued(&self, waited: Duration) {
        self.queued.observe(waited.as_secs_f64());
    }

    /// Records result and duration of a reconcile.
    pub fn reconciled(&self, result: ReconcileResult, took: Duration) {
        if let Some(counter) = self.results.get(result as usize) {
            counter.inc();
        }
        if result == ReconcileResult::Error {
            self.errors.inc();
        }
        self.seconds.observe(took.as_secs_f64());
    }

    /// Counts a panic, in addition to the error with which the reconcile ends.
    pub fn panicked(&self) {
        self.panics.inc();
    }
}

/// Guard of a running reconcile.
#[derive(Debug)]
pub struct Active(Gauge);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Lease and its fence. Each scrape asks the fence, so that the metric shows an expired lease immediately.
#[derive(Clone, Debug, Default)]
struct Leadership(Arc<OnceLock<(String, Fence)>>);

impl Collector for Leadership {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some((lease, fence)) = self.0.get() else {
            return Ok(());
        };
        let (name, help) = (
            "leader_election_master_status",
            "1 while this replica holds the lease, and always without leader election.",
        );
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        let value = ConstGauge::new(i64::from(fence.is_open()));
        value.encode(family.encode_family(&[("name", lease.as_str())])?)
    }
}

#[cfg(test)]
mod tests;
