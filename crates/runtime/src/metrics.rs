//! Metrics; [`serving`] shows them.
//!
//! What controller-runtime also measures has its names, so that its dashboards work
//! (<https://book.kubebuilder.io/reference/metrics-reference>); what is ours begins with `quartermaster_`.
//! Names of objects are never labels. kube keeps the queue and tells nothing of it: `reconciler` accounts for it.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
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
use crate::VERSION;

mod pending;
mod process;
mod queues;
pub mod resources;
pub mod secure;
mod serving;
mod watches;

pub use queues::QueueState;
pub use serving::{plain, serve, server};
pub use watches::{Purpose, Watch};

type Label = (&'static str, Cow<'static, str>);
type Counters<const N: usize> = Family<[Label; N], Counter>;
type Gauges<const N: usize> = Family<[Label; N], Gauge>;
type Histograms<const N: usize> = Family<[Label; N], Histogram, fn() -> Histogram>;

/// From a pass that finds nothing to do to one that runs into its timeout.
const RECONCILE_BUCKETS: [f64; 13] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
];
/// Buckets from immediate delivery to the age from which an entry may expire.
const LATENCY_BUCKETS: [f64; 16] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0, 1800.0, 7200.0,
    86400.0,
];

/// controller-runtime's buckets: 10 ns to 1,000 s.
const QUEUE_BUCKETS: [f64; 12] = [
    1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0, 1000.0,
];

/// All metrics of the process. Cheap to clone.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Registry,
    reconciles: Counters<2>,
    reconcile_errors: Counters<1>,
    reconcile_panics: Counters<1>,
    reconcile_seconds: Histograms<1>,
    reconcile_limit: Gauges<1>,
    reconcile_active: Gauges<1>,
    queue_adds: Counters<2>,
    queue_seconds: Histograms<2>,
    queues: queues::Queues,
    api_requests: Counters<3>,
    aws_requests: Counters<2>,
    leadership: Arc<OnceLock<(String, Fence)>>,
    notifications: Counters<2>,
    notification_latency: Histogram,
    notifications_pending: Gauge,
    entries_merged: Counter,
    entries_expired: Counter,
    entries_rejected: Counter,
    drift_corrections: Counters<1>,
    status_writes_rejected: Counters<1>,
    oldest: pending::Oldest,
    watch_restarts: Counters<1>,
    admission_policies: Gauges<1>,
    watches: watches::Watches,
    resources: resources::Resources,
}

/// How a pass ended: controller-runtime's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconciled {
    /// Nothing left to do.
    Success,
    /// Comes again after a time of its own choice.
    RequeueAfter,
    /// Comes again after a backoff, without being an error: a conflict.
    Requeue,
    /// Failed.
    Error,
}

impl Reconciled {
    /// All of them.
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

/// The kind of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // each is what its name says
pub enum Receiver {
    Telegram,
    Webhook,
}

/// What became of one request to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notified {
    /// The receiver took the request.
    Delivered,
    /// It will be sent again.
    Retried,
    /// The receiver takes nothing until somebody mends something.
    Stopped,
    /// The receiver does not take this request.
    Rejected,
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

impl Inner {
    fn register_controllers(&self, r: &mut Registry) {
        r.register(
            "controller_runtime_reconcile",
            "Passes by outcome",
            self.reconciles.clone(),
        );
        r.register(
            "controller_runtime_reconcile_errors",
            "Passes that failed",
            self.reconcile_errors.clone(),
        );
        r.register(
            "controller_runtime_reconcile_panics",
            "Passes that panicked",
            self.reconcile_panics.clone(),
        );
        r.register(
            "controller_runtime_reconcile_time_seconds",
            "Length of a pass",
            self.reconcile_seconds.clone(),
        );
        r.register(
            "controller_runtime_max_concurrent_reconciles",
            "Passes that may run at the same time",
            self.reconcile_limit.clone(),
        );
        r.register(
            "controller_runtime_active_workers",
            "Passes that run now",
            self.reconcile_active.clone(),
        );
        r.register(
            "workqueue_adds",
            "Additions to a controller's queue",
            self.queue_adds.clone(),
        );
        r.register(
            "workqueue_queue_duration_seconds",
            "How long an object waits in a controller's queue before its reconcile begins",
            self.queue_seconds.clone(),
        );
        r.register_collector(Box::new(self.queues.clone()));
    }
}

impl Metrics {
    /// Every metric, at zero.
    #[allow(clippy::too_many_lines)] // one registration a metric
    pub fn new() -> Self {
        let mut registry = Registry::default();
        let leadership = Arc::new(OnceLock::new());
        let inner = Inner {
            reconciles: Counters::default(),
            reconcile_errors: Counters::default(),
            reconcile_panics: Counters::default(),
            reconcile_seconds: Family::new_with_constructor(reconcile_histogram),
            reconcile_limit: Gauges::default(),
            reconcile_active: Gauges::default(),
            queue_adds: Counters::default(),
            queue_seconds: Family::new_with_constructor(queue_histogram),
            queues: queues::Queues::default(),
            api_requests: Counters::default(),
            aws_requests: Counters::default(),
            leadership: leadership.clone(),
            notifications: Counters::default(),
            notification_latency: Histogram::new(LATENCY_BUCKETS),
            notifications_pending: Gauge::default(),
            entries_merged: Counter::default(),
            entries_expired: Counter::default(),
            entries_rejected: Counter::default(),
            drift_corrections: Counters::default(),
            status_writes_rejected: Counters::default(),
            oldest: pending::Oldest::default(),
            watch_restarts: Counters::default(),
            admission_policies: Gauges::default(),
            watches: watches::Watches::default(),
            resources: resources::Resources::default(),
            registry: Registry::default(),
        };
        // The registry appends the full stop to each text, and `_total` to the names of counters.
        let r = &mut registry;
        inner.register_controllers(r);
        r.register(
            "rest_client_requests",
            "Requests to the apiserver by status code, or <error> when there was no answer",
            inner.api_requests.clone(),
        );
        r.register(
            "quartermaster_aws_requests",
            "Calls of AWS by their outcome: OK, AWS' own error code, or the condition's reason where it gave none",
            inner.aws_requests.clone(),
        );
        r.register_collector(Box::new(Leadership(leadership)));
        r.register(
            "quartermaster_notifications",
            "Requests to receivers by outcome",
            inner.notifications.clone(),
        );
        r.register(
            "quartermaster_notification_latency_seconds",
            "From the change being seen to the receiver having taken its message",
            inner.notification_latency.clone(),
        );
        r.register(
            "quartermaster_notifications_pending",
            "Entries that wait to be delivered",
            inner.notifications_pending.clone(),
        );
        r.register(
            "quartermaster_entries_merged",
            "Changes that were merged into a neighbour because the outbox was full",
            inner.entries_merged.clone(),
        );
        r.register(
            "quartermaster_entries_expired",
            "Changes that failed because an attempt to deliver them failed when they were too old",
            inner.entries_expired.clone(),
        );
        r.register(
            "quartermaster_entries_rejected",
            "Changes that failed because their receiver refused them and accepted others",
            inner.entries_rejected.clone(),
        );
        r.register(
            "quartermaster_drift_corrections",
            "Corrections of objects that somebody else changed",
            inner.drift_corrections.clone(),
        );
        r.register(
            "quartermaster_status_writes_rejected",
            "Status writes of TrackedFields that the apiserver refused because of the object, by status code; after five of one \
             TrackedField its ContactPoint goes on without it",
            inner.status_writes_rejected.clone(),
        );
        r.register_collector(Box::new(inner.oldest.clone()));
        r.register_collector(Box::new(inner.resources.clone()));
        r.register_collector(Box::new(inner.watches.clone()));
        r.register(
            "quartermaster_watch_restarts",
            "Watches that failed: no answer, a refusal, or a list that is to be done again",
            inner.watch_restarts.clone(),
        );
        r.register(
            "quartermaster_admission_policy_in_force",
            "1 while an admission policy and its binding exist as this version ships them, otherwise 0; absent while that is not \
             known",
            inner.admission_policies.clone(),
        );
        let build = Gauges::<1>::default();
        build.get_or_create(&label([("version", VERSION)])).set(1);
        r.register(
            "quartermaster_build_info",
            "The version that runs; always 1",
            build,
        );
        r.register_collector(Box::new(process::Process));
        Self(Arc::new(Inner { registry, ..inner }))
    }

    /// The metrics of one controller, which appear at zero from now on. `limit` passes may run at the same time.
    pub fn controller(&self, name: &'static str, limit: usize) -> ControllerMetrics {
        let m = &self.0;
        let controller = label([("controller", name)]);
        m.reconcile_limit
            .get_or_create(&controller)
            .set(i64::try_from(limit).unwrap_or(i64::MAX));
        ControllerMetrics {
            results: Reconciled::ALL.map(|result| {
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

    /// `state` reports the queue of a controller.
    pub fn show_queue(
        &self,
        controller: &'static str,
        state: impl Fn() -> QueueState + Send + Sync + 'static,
    ) {
        self.0.queues.show(controller, Box::new(state));
    }

    /// One request to the apiserver was answered with `code`, or not answered.
    pub fn api_request(&self, host: &str, method: &str, code: Option<u16>) {
        let code = code.map_or(Cow::Borrowed("<error>"), |code| code.to_string().into());
        let labels = [
            ("code", code),
            ("method", method.to_owned().into()),
            ("host", host.to_owned().into()),
        ];
        self.0.api_requests.get_or_create(&labels).inc();
    }

    /// One call of AWS was answered with that code; `OK` where it was done.
    pub fn aws_request(&self, action: &'static str, code: &'static str) {
        self.0
            .aws_requests
            .get_or_create(&label([("action", action), ("code", code)]))
            .inc();
    }

    /// From now on `leader_election_master_status` says whether `fence`, that of the Lease `name`, is held. Without leader
    /// election it always is.
    pub fn show_leadership(&self, name: &str, fence: Fence) {
        // A second call would speak of the same lease.
        let _ = self.0.leadership.set((name.into(), fence));
    }

    /// Counts what became of one request to a receiver.
    pub fn notified(&self, receiver: Receiver, outcome: Notified) {
        let receiver = match receiver {
            Receiver::Telegram => "telegram",
            Receiver::Webhook => "webhook",
        };
        let outcome = match outcome {
            Notified::Delivered => "delivered",
            Notified::Retried => "retried",
            Notified::Stopped => "stopped",
            Notified::Rejected => "rejected",
        };
        self.0
            .notifications
            .get_or_create(&label([("type", receiver), ("outcome", outcome)]))
            .inc();
    }

    /// One entry was taken by its receiver this long after the change was seen.
    pub fn notification_latency(&self, latency: Duration) {
        self.0.notification_latency.observe(latency.as_secs_f64());
    }

    /// That many more (or, negative, fewer) entries wait to be delivered.
    pub fn pending_changed(&self, by: i64) {
        self.0.notifications_pending.inc_by(by);
    }

    /// That many changes were merged into a neighbour.
    pub fn entries_merged(&self, count: u64) {
        self.0.entries_merged.inc_by(count);
    }

    /// Counts a status write of one `TrackedField` that the apiserver refused with this status code.
    pub fn status_write_rejected(&self, code: u16) {
        self.0
            .status_writes_rejected
            .get_or_create(&[("code", code.to_string().into())])
            .inc();
    }

    /// Counts expired entries, which were too old when a failed attempt began.
    pub fn entries_expired(&self, count: u64) {
        self.0.entries_expired.inc_by(count);
    }

    /// Counts failed entries, which their receiver refused while it accepted others.
    pub fn entries_rejected(&self, count: u64) {
        self.0.entries_rejected.inc_by(count);
    }

    /// Returns the counter of drift corrections by one controller, which appears at zero from now on.
    pub fn drift_corrections(&self, controller: &'static str) -> Counter {
        self.0
            .drift_corrections
            .get_or_create_owned(&label([("controller", controller)]))
    }

    /// Records whether an admission policy is in force; none while that is not known.
    pub fn admission_policy(&self, policy: &str, in_force: Option<bool>) {
        let labels = [("policy", policy.to_owned().into())];
        match in_force {
            Some(in_force) => {
                self.0
                    .admission_policies
                    .get_or_create(&labels)
                    .set(in_force.into());
            }
            None => {
                self.0.admission_policies.remove(&labels);
            }
        }
    }

    /// `since` says from when on the oldest change waits that may be delivered, if one does.
    pub fn show_oldest_pending(
        &self,
        since: impl Fn() -> Option<Timestamp> + Send + Sync + 'static,
    ) {
        self.0.oldest.show(Box::new(since));
    }

    /// `count` counts the objects of a controller; none while that is not known.
    pub fn show_resources(
        &self,
        controller: &'static str,
        count: impl Fn() -> Option<Tally> + Send + Sync + 'static,
    ) {
        self.0.resources.show(controller, Box::new(count));
    }

    /// A watch of `resource` (with its group, as `deployments.apps`), counted until the answer is dropped.
    pub fn watch(&self, resource: &str, purpose: Purpose) -> Watch {
        let restarts = self
            .0
            .watch_restarts
            .get_or_create_owned(&[("resource", resource.to_owned().into())]);
        self.0.watches.add(resource, purpose, restarts)
    }

    /// All metrics as text: `OpenMetrics` 1.0, which is also read as Prometheus' own format.
    pub fn encode(&self) -> String {
        let mut text = String::new();
        match text::encode(&mut text, &self.0.registry) {
            Ok(()) => text,
            Err(fmt::Error) => String::new(),
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// The metrics of one controller. Cheap to clone.
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
    /// A pass runs until the answer is dropped.
    #[must_use = "the pass counts as running until this is dropped"]
    pub fn started(&self) -> Active {
        self.active.inc();
        Active(self.active.clone())
    }

    /// An object was added to the queue.
    pub fn added(&self) {
        self.added.inc();
    }

    /// An object waited this long in the queue.
    pub fn queued(&self, waited: Duration) {
        self.queued.observe(waited.as_secs_f64());
    }

    /// A pass ended.
    pub fn reconciled(&self, result: Reconciled, took: Duration) {
        if let Some(counter) = self.results.get(result as usize) {
            counter.inc();
        }
        if result == Reconciled::Error {
            self.errors.inc();
        }
        self.seconds.observe(took.as_secs_f64());
    }

    /// A pass panicked (besides ending in an error).
    pub fn panicked(&self) {
        self.panics.inc();
    }
}

/// A pass that runs.
#[derive(Debug)]
pub struct Active(Gauge);

impl Drop for Active {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Asked at each scrape, so that a lease which ran out shows at once.
#[derive(Debug)]
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
        let value = ConstGauge::new(i64::from(fence.held()));
        value.encode(family.encode_family(&[("name", lease.as_str())])?)
    }
}

#[cfg(test)]
mod tests;
