//! Metrics as a running operator serves them.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::Operator;

/// Metrics that change while the operator works.
const ACTIVITY: [&str; 4] = [
    "controller_runtime_active_workers",
    "controller_runtime_reconcile_total",
    "rest_client_requests_total",
    "workqueue_depth",
];

/// Metrics that depend on the installation only.
const ENVIRONMENT: [&str; 5] = [
    "leader_election_master_status",
    "quartermaster_admission_policy_in_force",
    "quartermaster_build_info",
    "quartermaster_watch_failures",
    "quartermaster_watches",
];

/// Client for the metrics of one operator, which is cheaper than [`Operator::metrics`] in a loop.
pub struct Reader {
    client: reqwest::Client,
    url: String,
}

impl Reader {
    /// Returns a client for an operator that is ready.
    pub fn new(operator: &Operator) -> Self {
        let address = operator.address("--metrics-bind-address").unwrap();
        Self {
            client: reqwest::Client::builder().no_proxy().build().unwrap(),
            url: format!("http://{address}/metrics"),
        }
    }

    /// Returns all metrics.
    pub async fn read(&self) -> String {
        let answer = self.client.get(&self.url).send().await.unwrap();
        answer.text().await.unwrap()
    }
}

/// Returns the samples that change while the operator works.
pub fn activity(metrics: &str) -> String {
    let active = |line: &&str| ACTIVITY.iter().any(|name| line.starts_with(name));
    metrics.lines().filter(active).collect()
}

pub fn reconciles(metrics: &str, controller: &str) -> u64 {
    let of = format!("controller_runtime_reconcile_total{{controller=\"{controller}\",");
    let all = lines(metrics).filter(|(sample, _)| sample.starts_with(&of));
    all.map(|(_, value)| value.parse::<u64>().unwrap()).sum()
}

pub fn resources(metrics: &str) -> BTreeMap<String, String> {
    let resources =
        lines(metrics).filter(|(sample, _)| sample.starts_with("quartermaster_resources"));
    resources.map(owned).collect()
}

/// Returns the samples that depend on the steps of a test, but not on the speed of the machine.
pub fn samples(metrics: &str) -> BTreeMap<String, String> {
    let counted = lines(metrics).filter(|(sample, value)| {
        let name = sample.split('{').next().unwrap_or_default();
        let is_own = name.starts_with("quartermaster_")
            && !ENVIRONMENT.iter().any(|it| name.starts_with(it));
        let is_size_or_time = ["_bucket", "_sum", "_seconds"]
            .iter()
            .any(|end| name.ends_with(end));
        let is_failure = ["errors", "panics"]
            .iter()
            .any(|what| name == format!("controller_runtime_reconcile_{what}_total"));
        *value != "0" && ((is_own && !is_size_or_time) || is_failure)
    });
    let mut samples: BTreeMap<_, _> = counted.map(owned).collect();
    // The number of reconciles depends on the speed: two triggers that come close together cause one reconcile. So does
    // the number of reads of AWS, which each reconcile repeats.
    let repeated = lines(metrics).filter(|(sample, value)| {
        let is_repeated = sample.starts_with("controller_runtime_reconcile_total")
            || sample.starts_with("quartermaster_aws_requests_total{action=\"Describe");
        is_repeated && *value != "0"
    });
    samples.extend(repeated.map(|(sample, _)| (sample.to_owned(), "some".to_owned())));
    samples
}

/// Returns the samples that depend on the installation only.
pub fn environment(metrics: &str) -> BTreeMap<String, String> {
    let environment = lines(metrics)
        .filter(|(sample, _)| ENVIRONMENT.iter().any(|name| sample.starts_with(name)));
    environment
        .map(|(sample, value)| {
            owned((
                &sample.replace(env!("CARGO_PKG_VERSION"), "<version>"),
                value,
            ))
        })
        .collect()
}

/// Returns type and label names of each metric.
pub fn families(metrics: &str) -> BTreeMap<String, String> {
    let types = metrics.lines().filter_map(|line| {
        let (name, kind) = line.strip_prefix("# TYPE ")?.split_once(' ')?;
        Some((name.to_owned(), kind.to_owned()))
    });
    let mut families: BTreeMap<String, String> = types.collect();
    for (name, family) in &mut families {
        let of_family = |sample: &str| {
            let (base, labels) = sample.trim_end_matches('}').split_once('{')?;
            let is_own = base
                .strip_prefix(name.as_str())
                .is_some_and(|rest| ["", "_total", "_bucket", "_count", "_sum"].contains(&rest));
            is_own.then(|| labels.to_owned())
        };
        let labels: BTreeSet<String> = lines(metrics)
            .filter_map(|(sample, _)| of_family(sample))
            .flat_map(|labels| {
                let names = labels.split(',').filter_map(|label| label.split_once('='));
                names.map(|(name, _)| name.to_owned()).collect::<Vec<_>>()
            })
            .collect();
        if !labels.is_empty() {
            let labels: Vec<_> = labels.iter().map(String::as_str).collect();
            *family = format!("{family} by {}", labels.join(", "));
        }
    }
    families
}

/// Returns the samples with their values.
fn lines(metrics: &str) -> impl Iterator<Item = (&str, &str)> {
    let samples = metrics.lines().filter(|line| !line.starts_with('#'));
    samples.filter_map(|line| line.rsplit_once(' '))
}

fn owned((sample, value): (&str, &str)) -> (String, String) {
    (sample.to_owned(), value.to_owned())
}
