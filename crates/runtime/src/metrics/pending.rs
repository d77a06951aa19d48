//! How long messages have waited.

use std::fmt;
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

type Since = Box<dyn Fn() -> Option<Timestamp> + Send + Sync>;

/// Says since when the oldest change waits; asked at each scrape.
#[derive(Clone, Default)]
pub(super) struct Oldest(Arc<OnceLock<Since>>);

impl Oldest {
    pub(super) fn show(&self, since: Since) {
        // A second one would speak of the same outbox.
        let _ = self.0.set(since);
    }
}

impl fmt::Debug for Oldest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Oldest")
    }
}

impl Collector for Oldest {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(since) = self.0.get().and_then(|since| since()) else {
            return Ok(());
        };
        let name = "quartermaster_notifications_oldest_pending_timestamp_seconds";
        let help = "When the oldest change was seen that waits to be delivered, in seconds since 1970, time in which it \
                    was suspended left out; absent while none waits.";
        let gauge = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        ConstGauge::new(since.as_second()).encode(gauge)
    }
}
