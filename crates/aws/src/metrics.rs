//! Metrics of the calls.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// Metrics of the calls. Cheap to clone; the default is not registered.
#[derive(Clone, Debug, Default)]
pub struct AwsMetrics {
    requests: Family<[(&'static str, &'static str); 2], Counter>,
}

impl AwsMetrics {
    /// Creates metrics and registers them.
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        registry.register(
            "aws_requests",
            "AWS requests by outcome: OK, the error code of AWS, or the condition's reason if AWS gave no code that the \
             operator knows",
            metrics.requests.clone(),
        );
        metrics
    }

    /// Counts one call that ended with `code`, which is `OK` for a success.
    pub fn called(&self, action: &'static str, code: &'static str) {
        self.requests
            .get_or_create(&[("action", action), ("code", code)])
            .inc();
    }
}
