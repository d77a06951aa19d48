//! Metrics of deliveries and of the entries that wait for one.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use qm_api::tracked_field::Skipped;
use qm_runtime::metrics::Label;

use crate::Endpoint;

/// Buckets from immediate delivery to the age from which an entry may expire.
const LATENCY_BUCKETS: [f64; 16] = [
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 300.0, 1800.0, 7200.0,
    86400.0,
];

/// Metrics of deliveries. Cheap to clone.
#[derive(Clone)]
pub struct DeliveryMetrics {
    attempts: Family<[Label; 2], Counter>,
    latency: Histogram,
    pending: Gauge,
    oldest: OldestPending,
    merged: Counter,
    failed: Family<[Label; 1], Counter>,
    skipped: Family<[Label; 1], Counter>,
    when_errors: Counter,
    status_writes_rejected: Family<[Label; 1], Counter>,
}

/// Type of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceiverType {
    /// A chat of the Bot API.
    Telegram,
    /// An HTTP endpoint.
    Webhook,
}

impl ReceiverType {
    /// All types.
    pub const ALL: [Self; 2] = [Self::Telegram, Self::Webhook];

    /// Returns the type of the receiver behind `endpoint`.
    pub fn of(endpoint: &Endpoint) -> Self {
        match endpoint {
            Endpoint::Telegram(_) => Self::Telegram,
            Endpoint::Webhook(_) => Self::Webhook,
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Telegram => "telegram",
            Self::Webhook => "webhook",
        }
    }
}

/// Result of one request to a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryResult {
    /// The receiver accepted the request.
    Delivered,
    /// The operator will send the request again.
    Retried,
    /// The receiver accepts nothing until somebody fixes it.
    Stopped,
    /// The receiver rejected this request alone.
    Rejected,
}

impl DeliveryResult {
    /// All results.
    pub const ALL: [Self; 4] = [
        Self::Delivered,
        Self::Retried,
        Self::Stopped,
        Self::Rejected,
    ];

    fn label(self) -> &'static str {
        match self {
            Self::Delivered => "delivered",
            Self::Retried => "retried",
            Self::Stopped => "stopped",
            Self::Rejected => "rejected",
        }
    }
}

/// Reason why an entry failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EntryFailure {
    /// An attempt failed when the entry was too old.
    Expired,
    /// The receiver refused the entry and accepted others.
    Refused,
}

impl EntryFailure {
    const ALL: [Self; 2] = [Self::Expired, Self::Refused];

    fn label(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Refused => "refused",
        }
    }
}

impl DeliveryMetrics {
    /// Creates unregistered metrics.
    pub fn new() -> Self {
        let failed = Family::default();
        for reason in EntryFailure::ALL {
            // An alert on an increase needs a series of zero before the first failure.
            let _: Counter = failed.get_or_create_owned(&label("reason", reason.label()));
        }
        Self {
            attempts: Family::default(),
            latency: Histogram::new(LATENCY_BUCKETS),
            pending: Gauge::default(),
            oldest: OldestPending::default(),
            merged: Counter::default(),
            failed,
            skipped: Family::default(),
            when_errors: Counter::default(),
            status_writes_rejected: Family::default(),
        }
    }

    /// Creates metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::new();
        registry.register(
            "delivery_attempts",
            "Requests to receivers by outcome",
            metrics.attempts.clone(),
        );
        registry.register(
            "delivery_latency_seconds",
            "Time from a change to the receiver's acceptance of its message",
            metrics.latency.clone(),
        );
        registry.register(
            "entries_pending",
            "Entries that wait for their delivery, with those of suspended ContactPoints and without those of suspended \
             TrackedFields",
            metrics.pending.clone(),
        );
        registry.register(
            "entries_merged",
            "Entries that were merged into a neighbour because too many of one TrackedField waited",
            metrics.merged.clone(),
        );
        registry.register(
            "entries_failed",
            "Entries that failed: they expired, or their receiver refused them and accepted others",
            metrics.failed.clone(),
        );
        registry.register(
            "entries_skipped",
            "Entries for which no message is sent, by reason",
            metrics.skipped.clone(),
        );
        registry.register(
            "when_errors",
            "Entries for which spec.when was invalid or had no result, so that their messages were sent",
            metrics.when_errors.clone(),
        );
        registry.register(
            "status_writes_rejected",
            "Status writes of TrackedFields that the apiserver rejected because of the object, by status code; after five of \
             one TrackedField its ContactPoint continues without it",
            metrics.status_writes_rejected.clone(),
        );
        registry.register_collector(Box::new(metrics.oldest.clone()));
        metrics
    }

    /// Counts one request to a receiver.
    pub fn attempted(&self, receiver: ReceiverType, result: DeliveryResult) {
        let labels = [
            ("type", receiver.label().into()),
            ("outcome", result.label().into()),
        ];
        self.attempts.get_or_create(&labels).inc();
    }

    /// Records the time from a change to the acceptance of its entry.
    pub fn delivered_after(&self, latency: Duration) {
        self.latency.observe(latency.as_secs_f64());
    }

    /// Adds `by` to the number of pending entries; a negative number subtracts.
    pub(crate) fn pending_changed(&self, by: i64) {
        self.pending.inc_by(by);
    }

    /// Counts entries that were merged into a neighbour.
    pub fn entries_merged(&self, count: u64) {
        self.merged.inc_by(count);
    }

    /// Counts entries for which no message is sent.
    pub fn entries_skipped(&self, reason: Skipped, count: u64) {
        self.skipped
            .get_or_create(&label("reason", reason.as_str()))
            .inc_by(count);
    }

    /// Counts entries for which `spec.when` was invalid or had no result.
    pub fn when_failed(&self, count: u64) {
        self.when_errors.inc_by(count);
    }

    /// Counts failed entries.
    pub fn entries_failed(&self, reason: EntryFailure, count: u64) {
        self.failed
            .get_or_create(&label("reason", reason.label()))
            .inc_by(count);
    }

    /// Counts a status write of one `TrackedField` that the apiserver rejected with this status code.
    pub fn status_write_rejected(&self, code: u16) {
        self.status_writes_rejected
            .get_or_create(&[("code", code.to_string().into())])
            .inc();
    }

    /// Sets the function that returns the time of the oldest pending entry, if one may be delivered. Each scrape calls
    /// it.
    pub fn show_oldest_pending(
        &self,
        since: impl Fn() -> Option<Timestamp> + Send + Sync + 'static,
    ) {
        // A process has one outbox.
        let _ = self.oldest.0.set(Box::new(since));
    }
}

impl Default for DeliveryMetrics {
    fn default() -> Self {
        Self::new()
    }
}

fn label(name: &'static str, value: &'static str) -> [Label; 1] {
    [(name, value.into())]
}

type Since = Box<dyn Fn() -> Option<Timestamp> + Send + Sync>;

/// Time of the oldest pending entry.
#[derive(Clone, Default)]
struct OldestPending(Arc<OnceLock<Since>>);

impl fmt::Debug for OldestPending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OldestPending")
    }
}

impl Collector for OldestPending {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(since) = self.0.get().and_then(|since| since()) else {
            return Ok(());
        };
        let name = "entries_oldest_pending_timestamp_seconds";
        let help = "Time of the oldest entry that waits for its delivery, in seconds since 1970, plus the time in which it was \
                    suspended; absent while none waits.";
        let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(since.as_second()).encode(gauge)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::sync::Mutex;

    use prometheus_client::encoding::text;

    use super::*;

    fn registered() -> (DeliveryMetrics, Registry) {
        let mut registry = Registry::with_prefix("x");
        let metrics = DeliveryMetrics::register(&mut registry);
        (metrics, registry)
    }

    fn encoded(registry: &Registry) -> String {
        let mut encoded = String::new();
        text::encode(&mut encoded, registry).unwrap();
        encoded
    }

    #[test]
    fn metrics_have_their_values() {
        let (metrics, registry) = registered();
        metrics.attempted(ReceiverType::Telegram, DeliveryResult::Delivered);
        metrics.delivered_after(Duration::from_millis(20));
        metrics.pending_changed(3);
        metrics.pending_changed(-2);
        metrics.entries_merged(7);
        metrics.entries_failed(EntryFailure::Refused, 2);
        metrics.entries_skipped(Skipped::When, 4);
        metrics.when_failed(5);
        metrics.status_write_rejected(403);
        let text = encoded(&registry);
        for line in [
            "x_delivery_attempts_total{type=\"telegram\",outcome=\"delivered\"} 1",
            "x_delivery_latency_seconds_bucket{le=\"0.01\"} 0",
            "x_delivery_latency_seconds_bucket{le=\"0.025\"} 1",
            "x_entries_pending 1",
            "x_entries_merged_total 7",
            "x_entries_failed_total{reason=\"refused\"} 2",
            "x_entries_failed_total{reason=\"expired\"} 0",
            "x_entries_skipped_total{reason=\"When\"} 4",
            "x_when_errors_total 5",
            "x_status_writes_rejected_total{code=\"403\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "no {line} in\n{text}");
        }
    }

    #[test]
    fn oldest_pending_is_present_while_an_entry_waits() {
        let (metrics, registry) = registered();
        let since = Arc::new(Mutex::new(None));
        let oldest = Arc::clone(&since);
        metrics.show_oldest_pending(move || *oldest.lock().unwrap());
        let name = "x_entries_oldest_pending_timestamp_seconds";
        assert!(!encoded(&registry).contains(name));
        *since.lock().unwrap() = Some(Timestamp::from_second(12).unwrap());
        let text = encoded(&registry);
        assert!(text.contains(&format!("\n{name} 12\n")), "{text}");
    }
}
