//! A control plane with contact points, receivers and tracked fields, and the load on it.

use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::Deployment;
use quartermaster::api::TrackedField;
use serde_json::{Value, json};
use testbed::receiver::{Receiver, Request};
use testbed::wait::until;
use testbed::{ControlPlane, Options};
use tokio::task::JoinSet;

use crate::floor;
use crate::line::Latencies;
use crate::support::{self, Bed, Operator, Settings};

/// How many contact points the tracked fields are spread over, each with a receiver of its own.
pub const POINTS: usize = 5;
/// How many tracked fields most figures are for.
pub const FIELDS: usize = 1_000;
/// How long whatever is waited for may take.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Requests at once while the stage is set, or the load is not paced.
const AT_ONCE: usize = 16;

/// The stage.
pub struct Stage {
    pub bed: Bed,
    pub receivers: Vec<Receiver>,
    program: PathBuf,
    value: AtomicU32,
}

/// A change of a field: its value, which no other change has, and when the apiserver acknowledged it.
pub type Change = (u32, Instant);

impl Stage {
    /// Everything but the operator: `fields` Deployments and `TrackedField`s, in turn on each contact point.
    pub async fn set(program: PathBuf, fields: usize) -> Result<Arc<Self>> {
        let bed = Bed::own_with(Options::apiserver_only(), "bench").await;
        let receivers = (0..POINTS).map(|_| Receiver::start()).collect::<Result<Vec<_>>>()?;
        let stage = Arc::new(Self { bed, receivers, program, value: AtomicU32::new(1) });
        for (index, receiver) in stage.receivers.iter().enumerate() {
            stage.bed.webhook(&point(index), &receiver.url()).await;
        }
        stage.add_fields(fields).await;
        Ok(stage)
    }

    /// Deployments and `TrackedField`s.
    pub async fn add_fields(&self, count: usize) {
        let bed = &self.bed;
        futures::stream::iter(0..count)
            .for_each_concurrent(AT_ONCE, |index| async move {
                let name = name(index);
                bed.deployment(&name, 0).await;
                bed.track(&name, "Deployment", &name, "replicas", &point(index)).await;
            })
            .await;
    }

    /// The receiver of a Deployment's messages.
    pub fn receiver_of(&self, name: &str) -> &Receiver {
        let index: usize = name.trim_start_matches("field-").parse().unwrap_or_default();
        &self.receivers[index % POINTS]
    }

    /// How the release is run: everywhere, with an election, as shipped.
    pub fn settings(&self) -> Settings {
        Settings::default().as_shipped(self.program.clone()).whole_cluster().flag("--leader-elect")
    }

    /// An operator that leads and has told of `fields` fields that they are there.
    pub async fn operator(&self, fields: usize) -> Result<Operator> {
        let operator = Operator::start(&self.bed, self.settings()).await;
        leads(&operator).await?;
        self.delivered(fields).await?;
        Ok(operator)
    }

    /// Waits until the history of each of so many fields is there, and all of it delivered.
    pub async fn delivered(&self, fields: usize) -> Result<()> {
        let api = self.bed.api::<TrackedField>();
        until(format!("{fields} histories, all delivered"), PATIENCE, async || {
            let objects = api.list(&kube::api::ListParams::default()).await?.items;
            let histories: Vec<_> = objects.iter().filter_map(|object| object.status.as_deref()).collect();
            let told = histories.iter().filter(|history| !history.iter().any(|entry| entry.is_pending())).count();
            Ok((told == fields).then_some(()))
        })
        .await
    }

    /// Changes the field with this index.
    pub async fn change(&self, index: usize) -> Result<Change> {
        let value = self.value.fetch_add(1, Ordering::Relaxed);
        self.bed.patch::<Deployment>(&name(index), json!({ "spec": { "replicas": value } })).await;
        Ok((value, Instant::now()))
    }

    /// `count` changes, `rate` of them a second, of `fields` in turn.
    pub async fn paced(self: &Arc<Self>, fields: Range<usize>, rate: u32, count: usize) -> Result<Vec<Change>> {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate);
        let mut under_way = JoinSet::new();
        for index in fields.cycle().take(count) {
            ticks.tick().await;
            let stage = Arc::clone(self);
            under_way.spawn(async move { stage.change(index).await });
        }
        under_way.join_all().await.into_iter().collect()
    }

    /// `count` changes of `fields` in turn, as fast as the apiserver takes them.
    pub async fn flood(&self, fields: Range<usize>, count: usize) -> Result<Vec<Change>> {
        futures::stream::iter(fields.cycle().take(count))
            .map(|index| self.change(index))
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await
    }

    /// When each value first arrived, of those that the floor posted or of the others.
    pub fn arrivals(&self, of_floor: bool) -> HashMap<u32, Instant> {
        let mut arrivals = HashMap::new();
        for request in self.receivers.iter().flat_map(Receiver::requests) {
            if (request.path == floor::PATH) == of_floor {
                for value in values(&request) {
                    let at = arrivals.entry(value).or_insert(request.at);
                    *at = request.at.min(*at);
                }
            }
        }
        arrivals
    }

    /// Waits until all the changes have arrived, and says how long after its acknowledgement each did.
    pub async fn latencies(&self, changes: &[Change], of_floor: bool) -> Result<Latencies> {
        let arrivals = until("every change arrives", PATIENCE, async || {
            let arrivals = self.arrivals(of_floor);
            let missing = changes.iter().filter(|(value, _)| !arrivals.contains_key(value)).count();
            anyhow::ensure!(missing == 0, "{missing} of {} are missing", changes.len());
            Ok(Some(arrivals))
        })
        .await?;
        Ok(changes.iter().map(|(value, acknowledged)| milliseconds(*acknowledged, arrivals[value])).collect())
    }

    /// Forgets what has arrived so far.
    pub fn forget(&self) {
        self.receivers.iter().for_each(Receiver::forget);
    }
}

/// Name of a Deployment and of the `TrackedField` on it.
pub fn name(index: usize) -> String {
    format!("field-{index}")
}

/// Name of the contact point of the field with this index.
pub fn point(index: usize) -> String {
    format!("point-{}", index % POINTS)
}

/// Waits until a replica leads. Its log is looked at, because that costs it nothing.
pub async fn leads(operator: &Operator) -> Result<()> {
    until("it leads", PATIENCE, async || Ok(says_it_leads(operator).then_some(()))).await
}

/// Whether a replica has ever led since it was made.
pub fn says_it_leads(operator: &Operator) -> bool {
    operator.logs().contains("holding the lease")
}

/// The values that a message tells: it is about one change, or a digest.
fn values(request: &Request) -> Vec<u32> {
    let body = request.json().unwrap_or_default();
    let value = |entry: &Value| entry["value"].as_str().and_then(|value| value.parse().ok());
    match body["entries"].as_array() {
        Some(entries) => entries.iter().filter_map(value).collect(),
        None => value(&body).into_iter().collect(),
    }
}

fn milliseconds(from: Instant, to: Instant) -> f64 {
    match to.checked_duration_since(from) {
        Some(later) => later.as_secs_f64() * 1e3,
        None => (from - to).as_secs_f64() * -1e3,
    }
}

/// A number in the operator's metrics: the sum over the labels.
pub async fn metric(operator: &Operator, name: &str) -> Result<f64> {
    let text = operator.metrics().await;
    let lines = text.lines().filter(|line| line.starts_with(name));
    let mut sum = 0.0;
    for line in lines {
        sum += line.rsplit(' ').next().context("no number")?.parse::<f64>()?;
    }
    Ok(sum)
}
