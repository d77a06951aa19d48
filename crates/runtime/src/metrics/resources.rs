//! Objects of each kind by readiness, counted from the caches at each scrape.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use qm_core::kind::Kind;
use qm_core::readiness::{NOT_OBSERVED, Readiness, ReadinessSummary, TERMINATING};
use qm_core::validation::is_condition_reason;

/// Maximum number of one controller's reasons with their own sample. Some reasons come from outside, such as from a
/// kubelet.
const MAX_REASONS: usize = 64;
/// Longest reason, in bytes.
const MAX_REASON_BYTES: usize = 64;
/// Label value for all other reasons.
const OTHER: &str = "Other";

/// Number of objects by status and reason of the condition `Ready`.
pub(crate) type Tally = BTreeMap<(&'static str, String), i64>;

type Count = Box<dyn Fn() -> Option<Tally> + Send + Sync>;

/// Functions that count the objects of each controller.
#[derive(Clone, Default)]
pub(super) struct ResourceCollector(Arc<Mutex<BTreeMap<&'static str, Count>>>);

impl ResourceCollector {
    pub(super) fn set(&self, controller: &'static str, count: Count) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(controller, count);
    }
}

impl fmt::Debug for ResourceCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResourceCollector")
    }
}

impl Collector for ResourceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let help = "Objects by status and reason of their Ready condition. While the status is not of the current spec, the reason \
                    is NotObserved, or Terminating if the object is being deleted. Beyond 64 reasons, the reason is Other. A kind that is \
                    not served has no series.";
        let mut family = encoder.encode_descriptor("resources", help, None, MetricType::Gauge)?;
        for (controller, count) in &*counts {
            for ((ready, reason), number) in count().unwrap_or_default() {
                let labels = [
                    ("controller", *controller),
                    ("ready", ready),
                    ("reason", &*reason),
                ];
                ConstGauge::new(number).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// Returns the readiness under which the metric counts an object. A deletion raises the generation, and the operator
/// writes no status for a deleted object without its finalizer, so that the status stays unobserved.
pub(crate) fn counted_readiness<K: Kind>(object: &K) -> ReadinessSummary<'_> {
    match object.readiness() {
        (Readiness::Unknown, NOT_OBSERVED) if object.meta().deletion_timestamp.is_some() => {
            (Readiness::Unknown, TERMINATING)
        }
        readiness => readiness,
    }
}

/// Counts objects by readiness. The number of samples is bounded, whatever the reasons are.
pub fn tally<'a>(readiness: impl Iterator<Item = ReadinessSummary<'a>>) -> Tally {
    let mut all = BTreeMap::<ReadinessSummary<'a>, i64>::new();
    for readiness in readiness {
        *all.entry(readiness).or_default() += 1;
    }
    let mut all: Vec<_> = all.into_iter().collect();
    all.sort_by_key(|(_, number)| -number);
    let mut tally = Tally::new();
    for (at, ((ready, reason), number)) in all.into_iter().enumerate() {
        let reason = if at < MAX_REASONS
            && reason.len() <= MAX_REASON_BYTES
            && is_condition_reason(reason)
        {
            reason
        } else {
            OTHER
        };
        *tally
            .entry((ready.as_str(), reason.to_owned()))
            .or_default() += number;
    }
    tally
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::testing::{Widget, WidgetStatus};

    #[test]
    fn deleted_object_without_status_of_its_deletion_counts_as_terminating() {
        let mut widget = Widget::default();
        assert_eq!(
            counted_readiness(&widget),
            (Readiness::Unknown, NOT_OBSERVED)
        );
        widget.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
        assert_eq!(
            counted_readiness(&widget),
            (Readiness::Unknown, TERMINATING)
        );
        let mut status = WidgetStatus::default();
        status.fields.insert("ready".into(), "Conflict".into());
        widget.status = Some(status);
        assert_eq!(counted_readiness(&widget), (Readiness::Unknown, "Conflict"));
    }

    #[test]
    fn tally_counts_each_readiness() {
        let readiness = [
            (Readiness::True, "Ready"),
            (Readiness::False, "Conflict"),
            (Readiness::True, "Ready"),
        ];
        let expected = [
            (("True", "Ready".to_owned()), 2),
            (("False", "Conflict".to_owned()), 1),
        ];
        assert_eq!(tally(readiness.into_iter()), expected.into());
        assert_eq!(tally([].into_iter()), Tally::new());
    }

    #[test]
    fn tally_bounds_the_number_of_samples() {
        let reasons: Vec<_> = (0..1000).map(|number| format!("Word{number}")).collect();
        let often = (0..3).map(|_| (Readiness::False, "TargetNotFound"));
        let counted = tally(
            reasons
                .iter()
                .map(|word| (Readiness::False, &**word))
                .chain(often),
        );
        assert_eq!(counted.len(), MAX_REASONS + 1);
        assert_eq!(counted[&("False", "TargetNotFound".to_owned())], 3);
        assert_eq!(
            counted[&("False", OTHER.to_owned())],
            1003 - 3 - (i64::try_from(MAX_REASONS).unwrap_or(0) - 1)
        );
        for no_reason in ["", "a b", "\"", "1a", &"x".repeat(65)] {
            assert_eq!(
                tally([(Readiness::True, no_reason)].into_iter()),
                [(("True", OTHER.to_owned()), 1)].into()
            );
        }
    }
}
