//! The metrics, as `/metrics` shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use jiff::Timestamp;
use qm_core::readiness::Readiness;
use qm_runtime::leader::Fence;
use qm_runtime::metrics::resources::tally;
use qm_runtime::metrics::{Metrics, Notified, Purpose, QueueState, Receiver, Reconciled};

use super::{cell, code};

const BEGIN: &str = "\
# Metrics

As `/metrics` says them, in the text format of Prometheus. No label names an object. What a label may say stands behind it where that is
a few words of ours. What goes together, and who may read them: [Operating](../operating.md#metrics).

| metric, type, labels | what |
| --- | --- |
";

/// Labels that say one of a few words; [`every_metric`] has them all.
const FEW_WORDS: [&str; 5] = ["outcome", "ready", "result", "state", "type"];

/// A metric that is shown.
#[derive(Default)]
struct Shown {
    kind: String,
    help: String,
    labels: BTreeMap<String, BTreeSet<String>>,
}

pub fn page() -> String {
    let mut page = BEGIN.to_owned();
    for (name, Shown { kind, help, labels }) in shown(&every_metric()) {
        let labels: Vec<_> = labels
            .iter()
            .map(|(label, values)| cell_of(label, values))
            .collect();
        // Writing to a String does not fail.
        let what = cell(&help).replace('<', "&lt;");
        let by = if labels.is_empty() {
            String::new()
        } else {
            format!(" by {}", labels.join(", "))
        };
        let _ = writeln!(page, "| {}<br>{kind}{by} | {what} |", code(&name));
    }
    page
}

fn cell_of(label: &str, values: &BTreeSet<String>) -> String {
    if FEW_WORDS.contains(&label) {
        let values: Vec<_> = values.iter().map(|value| code(value)).collect();
        format!("{} ({})", code(label), values.join(", "))
    } else {
        code(label)
    }
}

/// What this text shows, by name. Samples stand below what is said of them.
fn shown(text: &str) -> BTreeMap<String, Shown> {
    let (mut all, mut of) = (BTreeMap::<String, Shown>::new(), String::new());
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
    // The sample of a counter has another name than the counter.
    let total = |name: String, it: &Shown| {
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

/// Every metric with some value, so that each one and its labels are written.
pub fn every_metric() -> String {
    let metrics = Metrics::new();
    let controller = metrics.controller("a", 1);
    for result in Reconciled::ALL {
        controller.reconciled(result, Duration::ZERO);
    }
    controller.queued(Duration::ZERO);
    metrics.show_queue("a", || QueueState {
        depth: 0,
        unfinished: Duration::ZERO,
    });
    metrics.api_request("host", "GET", None);
    metrics.show_leadership("a", Fence::open());
    for outcome in [
        Notified::Delivered,
        Notified::Retried,
        Notified::Stopped,
        Notified::Rejected,
    ] {
        metrics.notified(Receiver::Telegram, outcome);
        metrics.notified(Receiver::Webhook, outcome);
    }
    metrics.notification_latency(Duration::ZERO);
    metrics.admission_policy("a", Some(true));
    metrics.status_write_rejected(403);
    let _watch = metrics.watch("deployments", Purpose::Own);
    metrics.aws_request("DescribeTags", "OK");
    metrics.drift_corrections("a");
    let ready = [Readiness::True, Readiness::False, Readiness::Unknown];
    metrics.show_resources("a", move || {
        Some(tally(ready.into_iter().map(|ready| (ready, "Reason"))))
    });
    metrics.show_oldest_pending(|| Some(Timestamp::UNIX_EPOCH));
    metrics.encode()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn a_metric_has_a_row_with_what_its_labels_may_say() {
        let page = page();
        for row in [
            "| `controller_runtime_reconcile_total`<br>counter by `controller`, `result` (`error`, `requeue`, `requeue_after`, \
             `success`) | Passes by outcome. |",
            "| `quartermaster_notification_latency_seconds`<br>histogram | From the change being seen to the receiver having \
             taken its message. |",
            "| `process_threads`<br>gauge | Threads. |",
        ] {
            assert!(
                page.lines().any(|line| line == row),
                "no line is {row}: {page}"
            );
        }
        assert!(page.contains("or &lt;error> when"), "{page}");
    }

    /// What is not shown until something happens is in `every_metric` all the same.
    #[test]
    fn all_that_is_registered_is_shown() {
        let shown = shown(&every_metric());
        for (name, it) in &shown {
            assert!(!it.help.is_empty() && !it.kind.is_empty(), "{name}");
        }
        for name in super::shown(&Metrics::new().encode()).into_keys() {
            assert!(shown.contains_key(&name), "{name}");
        }
    }
}
