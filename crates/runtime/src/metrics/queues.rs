//! Depth and unfinished work of the controllers' queues, computed at each scrape.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

/// State of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkQueueState {
    /// Objects whose reconcile is due.
    pub depth: usize,
    /// Total time that the running reconciles have taken so far.
    pub unfinished: Duration,
}

type ReadState = Box<dyn Fn() -> WorkQueueState + Send + Sync>;

#[derive(Clone, Default)]
pub(super) struct QueueCollector(Arc<Mutex<BTreeMap<&'static str, ReadState>>>);

impl QueueCollector {
    pub(super) fn set(&self, controller: &'static str, read: ReadState) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(controller, read);
    }
}

impl fmt::Debug for QueueCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QueueCollector")
    }
}

impl Collector for QueueCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let queues = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let states: Vec<_> = queues
            .iter()
            .map(|(controller, read)| (*controller, read()))
            .collect();
        let help = "Objects in a controller's queue whose reconcile is due.";
        let mut family =
            encoder.encode_descriptor("workqueue_depth", help, None, MetricType::Gauge)?;
        for (controller, state) in &states {
            let labels = [("name", *controller), ("controller", controller)];
            let depth = i64::try_from(state.depth).unwrap_or(i64::MAX);
            ConstGauge::new(depth).encode(family.encode_family(&labels)?)?;
        }
        let help = "Time that the running reconciles of a controller have taken so far, in all.";
        let mut family = encoder.encode_descriptor(
            "workqueue_unfinished_work_seconds",
            help,
            None,
            MetricType::Gauge,
        )?;
        for (controller, state) in &states {
            let labels = [("name", *controller), ("controller", controller)];
            ConstGauge::new(state.unfinished.as_secs_f64())
                .encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}
