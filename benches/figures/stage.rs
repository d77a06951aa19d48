//! A control plane with contact points, receivers and tracked fields, and the load on it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::ListParams;
use qm_api::TrackedField;
use qm_api::tracked_field::Entry;
use serde_json::{Value, json};
use testbed::Options;
use testbed::receiver::{Receiver, Request};
use testbed::wait::until;
use tokio::task::JoinSet;

use crate::line::Sample;
use crate::support::{Bed, Operator, Settings};

/// Number of contact points that the tracked fields are spread over, each with a separate receiver.
pub const POINTS: usize = 5;
/// Number of tracked fields of most figures.
pub const FIELDS: usize = 1_000;
/// Changes per second of a paced load.
pub const RATE: u32 = 50;
/// Time in which the work that a step has caused ends, before memory, requests or CPU are read.
pub const SETTLE: Duration = Duration::from_secs(5);
/// Timeout of every wait.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// Path of the floor's posts, which differs from the operator's messages.
pub const FLOOR_PATH: &str = "/floor";

/// Concurrent requests during preparation, or of a load that is not paced.
pub const AT_ONCE: usize = 16;

/// A control plane with receivers, contact points and tracked fields.
pub struct Stage {
    pub bed: Bed,
    pub receivers: Vec<Receiver>,
    program: PathBuf,
    value: AtomicI32,
    arrivals: Arc<Mutex<Arrivals>>,
}

/// Sender of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sender {
    Operator,
    Floor,
}

/// Time at which each value first arrived.
type Arrivals = HashMap<(Sender, i32), Instant>;

/// A change of a field.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    pub field: usize,
    /// New value, which no other change has.
    pub value: i32,
    /// Time at which the apiserver acknowledged the change.
    pub acknowledged: Instant,
}

impl Stage {
    /// Prepares everything but the operator: `fields` Deployments and `TrackedField`s, in turn on each contact point.
    pub async fn set(program: PathBuf, fields: usize) -> Result<Arc<Self>> {
        let bed = Bed::on_own_plane_with(Options::apiserver_only(), "bench").await;
        Self::on(bed, program, fields).await
    }

    /// Prepares a namespace as [`Stage::set`] does.
    pub async fn on(bed: Bed, program: PathBuf, fields: usize) -> Result<Arc<Self>> {
        let receivers = (0..POINTS)
            .map(|_| Receiver::start())
            .collect::<Result<Vec<_>>>()?;
        let arrivals = Arc::<Mutex<Arrivals>>::default();
        for (index, receiver) in receivers.iter().enumerate() {
            let arrivals = Arc::clone(&arrivals);
            receiver.on_request(move |request| record(&arrivals, request));
            bed.webhook(&point(index), &receiver.url()).await;
        }
        let stage = Self {
            bed,
            receivers,
            program,
            value: AtomicI32::new(1),
            arrivals,
        };
        stage.add_fields(fields).await;
        Ok(Arc::new(stage))
    }

    /// Adds Deployments and `TrackedField`s.
    pub async fn add_fields(&self, count: usize) {
        self.each(0..count, async |index| {
            let name = name(index);
            self.bed.deployment(&name, 0).await;
            self.bed
                .track(&name, "Deployment", &name, "replicas", &point(index))
                .await;
        })
        .await;
    }

    /// Calls `what` for every index, several at once.
    pub async fn each(&self, indices: impl IntoIterator<Item = usize>, what: impl AsyncFn(usize)) {
        futures::stream::iter(indices)
            .for_each_concurrent(AT_ONCE, |index| what(index))
            .await;
    }

    /// Returns the settings of the release: the whole cluster, with leader election, as shipped.
    pub fn settings(&self) -> Settings {
        settings(self.program.clone())
    }

    /// Starts an operator, and waits until it leads and has reported `fields` fields.
    pub async fn operator(&self, fields: usize) -> Result<Operator> {
        let operator = leading(&self.bed, self.settings()).await?;
        self.delivered(fields).await?;
        self.forget();
        Ok(operator)
    }

    /// Waits until `fields` fields have a history, with every entry delivered.
    pub async fn delivered(&self, fields: usize) -> Result<()> {
        delivered(&self.bed, fields).await
    }

    /// Returns a value that no field had before.
    pub fn new_value(&self) -> i32 {
        self.value.fetch_add(1, Ordering::Relaxed)
    }

    /// Changes the field with this index.
    pub async fn change(&self, field: usize) -> Change {
        let value = self.new_value();
        self.bed
            .patch::<Deployment>(&name(field), json!({ "spec": { "replicas": value } }))
            .await;
        Change {
            field,
            value,
            acknowledged: Instant::now(),
        }
    }

    /// Makes `count` changes of `fields` fields in turn, `rate` of them a second.
    pub async fn paced(self: &Arc<Self>, fields: usize, rate: u32, count: usize) -> Vec<Change> {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / rate);
        let mut under_way = JoinSet::new();
        for index in (0..fields).cycle().take(count) {
            ticks.tick().await;
            let stage = Arc::clone(self);
            under_way.spawn(async move { stage.change(index).await });
        }
        under_way.join_all().await
    }

    /// Makes `count` changes of `fields` fields in turn, as fast as the apiserver accepts them.
    pub async fn flood(&self, fields: usize, count: usize) -> Vec<Change> {
        let changes =
            futures::stream::iter((0..fields).cycle().take(count)).map(|index| self.change(index));
        changes.buffer_unordered(AT_ONCE).collect().await
    }

    /// Waits until all changes have arrived. Returns the time of each arrival.
    pub async fn arrivals(&self, changes: &[Change], sender: Sender) -> Result<Vec<Instant>> {
        let arrival = |change: &Change| {
            self.arrivals
                .lock()
                .unwrap()
                .get(&(sender, change.value))
                .copied()
        };
        until(
            format!("every change arrives from {sender:?}"),
            PATIENCE,
            async || {
                let arrived: Vec<Instant> = changes.iter().filter_map(arrival).collect();
                let missing = changes.len() - arrived.len();
                ensure!(missing == 0, "{missing} of {} are missing", changes.len());
                Ok(Some(arrived))
            },
        )
        .await
    }

    /// Waits until all changes have arrived. Returns the milliseconds from the acknowledgement of each to its arrival.
    pub async fn latencies(&self, changes: &[Change], sender: Sender) -> Result<Sample> {
        let arrivals = self.arrivals(changes, sender).await?;
        let latency = |(change, at): (&Change, Instant)| milliseconds(change.acknowledged, at);
        Ok(changes.iter().zip(arrivals).map(latency).collect())
    }

    /// Forgets what has arrived so far.
    pub fn forget(&self) {
        self.receivers.iter().for_each(Receiver::forget);
        self.arrivals.lock().unwrap().clear();
    }
}

/// Returns the name of a Deployment and of its `TrackedField`.
pub fn name(index: usize) -> String {
    format!("{NAME}{index}")
}

/// Returns the index in such a name.
pub fn index(name: &str) -> usize {
    name.trim_start_matches(NAME).parse().unwrap_or_default()
}

const NAME: &str = "field-";

/// Returns the name of the contact point of the field with this index.
pub fn point(index: usize) -> String {
    format!("point-{}", index % POINTS)
}

/// Waits until `fields` fields have a history, with every entry delivered.
pub async fn delivered(bed: &Bed, fields: usize) -> Result<()> {
    let api = bed.api::<TrackedField>();
    let patience = PATIENCE + Duration::from_millis(50) * u32::try_from(fields)?;
    until(
        format!("{fields} histories, all delivered"),
        patience,
        async || {
            // A list of all fields is work for the apiserver, so it is not read every time.
            tokio::time::sleep(Duration::from_millis(200)).await;
            let objects = api.list(&ListParams::default()).await?.items;
            let histories = objects.iter().map(|field| field.history().unwrap());
            let delivered = histories
                .filter(|history| !history.is_empty() && !history.iter().any(Entry::is_pending));
            let delivered = delivered.count();
            ensure!(delivered == fields, "{delivered} are");
            Ok(Some(()))
        },
    )
    .await
}

/// Returns the settings of a user's installation for the whole cluster.
pub fn settings(program: PathBuf) -> Settings {
    Settings::default()
        .shipped(program)
        .whole_cluster()
        .flag("--leader-elect")
        .flag("--metrics-secure")
        // As in the image.
        .env("MALLOC_ARENA_MAX", "1")
}

/// Starts a replica and waits until it leads.
pub async fn leading(bed: &Bed, settings: Settings) -> Result<Operator> {
    let operator = Operator::start(bed, settings).await;
    leads(&operator).await?;
    Ok(operator)
}

/// Waits until a replica leads. Reading its log costs the replica nothing.
pub async fn leads(operator: &Operator) -> Result<()> {
    until("the operator leads", PATIENCE, async || {
        Ok(says_it_leads(operator).then_some(()))
    })
    .await
}

/// Returns whether a replica has ever led.
pub fn says_it_leads(operator: &Operator) -> bool {
    operator.logs().contains("acquired the lease")
}

/// Records the changes in a message, which is about one change or a digest.
fn record(arrivals: &Mutex<Arrivals>, request: &Request) {
    let sender = if request.path == FLOOR_PATH {
        Sender::Floor
    } else {
        Sender::Operator
    };
    let body = request.json().unwrap_or_default();
    let one = std::slice::from_ref(&body);
    let entries = body["entries"].as_array().map_or(one, Vec::as_slice);
    let value = |entry: &Value| entry["value"].as_str().and_then(|value| value.parse().ok());
    let mut arrivals = arrivals.lock().unwrap();
    for value in entries.iter().filter_map(value) {
        arrivals.entry((sender, value)).or_insert(request.at);
    }
}

/// Returns the milliseconds between two instants; negative if the second was first.
pub fn milliseconds(from: Instant, to: Instant) -> f64 {
    match to.checked_duration_since(from) {
        Some(later) => later.as_secs_f64() * 1e3,
        None => (from - to).as_secs_f64() * -1e3,
    }
}
