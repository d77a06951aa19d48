//! Page of the metrics, from the text that `/metrics` serves.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use qm_api::tracked_field::Skipped;
use qm_aws::AwsMetrics;
use qm_core::readiness::Readiness;
use qm_notify::metrics::{DeliveryMetrics, DeliveryResult, ReceiverType};
use qm_runtime::leader::Fence;
use qm_runtime::metrics::resources::tally;
use qm_runtime::metrics::{Metrics, Purpose, ReconcileResult, WorkQueueState};
use quartermaster::PROGRAM;
use quartermaster::admission_policies::PolicyMetrics;
use quartermaster::controllers::tracked_field_set::metrics::SetMetrics;

use super::markdown::{cell, code};

const BEGIN: &str = "\
# Metrics

Metrics that `/metrics` serves in the text format of Prometheus. No label names an object. The values of a label follow in brackets, if the
operator has a fixed set of them. [Monitoring](../operate/monitoring.md) says how to use them, and
[Secure the metrics endpoint](../security/metrics.md) who may read them.

Every replica serves its own metrics. The leader counts deliveries, entries and children; every replica counts resources and watches, so take
the maximum of these, not the sum. Metrics outside of `quartermaster_` have the names of controller-runtime and of the Prometheus client
libraries, so dashboards for those work.

| metric | type | labels | meaning |
| --- | --- | --- | --- |
";

/// Labels with a fixed set of values; [`every_metric`] has all of them.
const FIXED: [&str; 5] = ["outcome", "ready", "result", "state", "type"];
/// Placeholder for a reason of the condition `Ready`. Other values of the label `reason` are fixed.
const REASON: &str = "Reason";

/// Metric in the text.
#[derive(Default)]
struct MetricRow {
    kind: String,
    help: String,
    labels: BTreeMap<String, BTreeSet<String>>,
}

pub fn page() -> String {
    let mut page = BEGIN.to_owned();
    for (name, MetricRow { kind, help, labels }) in parse(&every_metric()) {
        let labels: Vec<_> = labels
            .iter()
            .map(|(label, values)| cell_of(label, values))
            .collect();
        // Writing to a String does not fail.
        let what = cell(&help).replace('<', "&lt;");
        let _ = writeln!(
            page,
            "| {} | {kind} | {} | {what} |",
            code(&name),
            labels.join(", ")
        );
    }
    page
}

fn cell_of(label: &str, values: &BTreeSet<String>) -> String {
    if FIXED.contains(&label) || (label == "reason" && !values.contains(REASON)) {
        let values: Vec<_> = values.iter().map(|value| code(value)).collect();
        format!("{} ({})", code(label), values.join(", "))
    } else {
        code(label)
    }
}

/// Returns the metrics of a text by name. Samples follow the lines that describe them.
fn parse(text: &str) -> BTreeMap<String, MetricRow> {
    let (mut all, mut of) = (BTreeMap::<String, MetricRow>::new(), String::new());
    for line in text.lines() {
        if let Some((name, help)) = line
            .strip_prefix("# HELP ")
            .and_then(|rest| rest.split_once(' '))
        {
            name.clone_into(&mut of);
            help.clone_into(&mut all.entry(of.clone()).or_default().help);
        } else if let Some((_, kind)) = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.split_once(' '))
        {
            kind.clone_into(&mut all.entry(of.clone()).or_default().kind);
        } else if let Some((_, rest)) = line.split_once('{').filter(|_| !line.starts_with('#')) {
            let labels = &mut all.entry(of.clone()).or_default().labels;
            let pairs = rest
                .split_once('}')
                .map_or("", |(pairs, _)| pairs)
                .split("\",");
            for (label, value) in pairs
                .filter_map(|pair| pair.split_once("=\""))
                .filter(|(label, _)| *label != "le")
            {
                labels
                    .entry(label.to_owned())
                    .or_default()
                    .insert(value.trim_end_matches('"').to_owned());
            }
        }
    }
    // The samples of a counter have another name than the counter.
    let total = |name: String, it: &MetricRow| {
        if it.kind == "counter" {
            format!("{name}_total")
        } else {
            name
        }
    };
    all.into_iter()
        .map(|(name, it)| (total(name, &it), it))
        .collect()
}

/// Returns every metric with some value, so that the text has each one and its labels.
pub fn every_metric() -> String {
    let metrics = Metrics::new(&PROGRAM);
    let controller = metrics.controller("a", 1);
    for result in ReconcileResult::ALL {
        controller.reconciled(result, Duration::ZERO);
    }
    controller.queued(Duration::ZERO);
    metrics.set_queue("a", || WorkQueueState {
        depth: 0,
        unfinished: Duration::ZERO,
    });
    metrics.api_request("host", "GET", None);
    metrics.set_leadership("a", Fence::open());
    let _watch = metrics.watch("deployments", Purpose::Own);
    metrics.drift_corrections("a");
    let ready = [Readiness::True, Readiness::False, Readiness::Unknown];
    metrics.set_resources("a", move || {
        Some(tally(ready.into_iter().map(|ready| (ready, REASON))))
    });
    let deliveries = metrics.register(DeliveryMetrics::register);
    for receiver in ReceiverType::ALL {
        for result in DeliveryResult::ALL {
            deliveries.attempted(receiver, result);
        }
    }
    deliveries.delivered_after(Duration::ZERO);
    deliveries.entries_skipped(Skipped::When, 0);
    deliveries.entries_skipped(Skipped::Initial, 0);
    deliveries.status_write_rejected(403);
    deliveries.show_oldest_pending(|| Some(Timestamp::UNIX_EPOCH));
    let aws = metrics.register(AwsMetrics::register);
    aws.called("DescribeTags", "OK");
    let _sets = metrics.register(SetMetrics::register);
    let policies = metrics.register(PolicyMetrics::register);
    policies.set("a", Some(true));
    metrics.encode()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn metric_has_a_row_with_the_values_of_its_labels() {
        let page = page();
        for row in [
            "| `controller_runtime_reconcile_total` | counter | `controller`, `result` (`error`, `requeue`, `requeue_after`, \
             `success`) | Reconciles by result; a failed write of a status counts as one more, with error. |",
            "| `quartermaster_delivery_latency_seconds` | histogram |  | Time from a change to the receiver's acceptance of its \
             message. |",
            "| `quartermaster_entries_failed_total` | counter | `reason` (`expired`, `refused`) | Entries that failed: they \
             expired, or their receiver refused them and accepted others. |",
            "| `process_threads` | gauge |  | Threads. |",
        ] {
            assert!(
                page.lines().any(|line| line == row),
                "no line is {row}: {page}"
            );
        }
        assert!(page.contains("or &lt;error> when"), "{page}");
    }

    #[test]
    fn every_metric_has_a_value() {
        let rows = parse(&every_metric());
        for (name, it) in &rows {
            assert!(!it.help.is_empty() && !it.kind.is_empty(), "{name}");
        }
        for name in super::parse(&Metrics::new(&PROGRAM).encode()).into_keys() {
            assert!(rows.contains_key(&name), "{name}");
        }
    }
}
