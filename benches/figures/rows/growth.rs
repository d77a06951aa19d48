//! Measures how costs grow with the number of objects: memory and start must grow linearly, latency and costs per
//! change not at all. `cargo bench -- growth` measures these rows only.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use futures::future::try_join_all;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use kube::api::ListParams;
use qm_api::MyIngress;
use qm_core::conditions;
use serde_json::json;
use testbed::Options;
use testbed::aws::{Aws, SUBNETS};
use testbed::control_plane::audit::Mark;
use testbed::usage::{Memory, cpu_seconds};
use testbed::wait::until;

use super::replicas::{first_message, lease_left, standby};
use super::rest::{requests, restart};
use super::{apps, copies};
use crate::floor::Floor;
use crate::line::{Line, Sample};
use crate::stage::{AT_ONCE, PATIENCE, RATE, SETTLE, Sender, Stage, leading, settings};
use crate::support::{Bed, Operator, Settings};

const FIELDS: [usize; 3] = [100, 1_000, 10_000];
const SYNCS: [usize; 3] = [100, 1_000, 5_000];
const APPS: [usize; 3] = [100, 500, 2_000];
const INGRESSES: [usize; 3] = [50, 200, 500];
/// Edits of `MyIngress`es that are measured at each size. The operator spaces its calls of AWS.
const EDITS: usize = 20;
/// Longest time in which the operator creates a load balancer, if many wait.
const PROVISIONED: Duration = Duration::from_secs(5);
/// Longest time in which the operator has checked each object after its start.
const CHECKED: Duration = Duration::from_mins(15);
const SHARDS: [&str; 3] = [
    "TrackedFields in shard 1",
    "TrackedFields in shard 2",
    "TrackedFields in shard 3",
];
/// Number of `TrackedField`s in each shard: 50,000 in total.
const FIELDS_OF_SHARD: usize = 16_667;
/// Changes that are measured at each size.
const CHANGES: usize = 500;
/// Syncs that copy into many namespaces, and the number of namespaces.
const WIDE: (usize, usize) = (100, 200);
/// Maximum latencies at every size, in milliseconds.
const P50: f64 = 50.0;
const P99: f64 = 250.0;
/// Maximum latency of an `AppService`, as a multiple of the floor, which creates both children at once: the apiserver
/// takes longer to create a Service the more Services there are.
const OF_FLOOR: f64 = 1.2;
/// Maximum memory that a further object takes, in KiB.
const MEMORY: f64 = 16.0;
/// Maximum time by which 1,000 further objects prolong the start, in seconds.
const START: f64 = 0.5;
/// Time after which a standby has replaced a dead leader, beyond the rest of the Lease, in seconds.
const TAKEOVER: f64 = 3.0;

/// Measures `TrackedField`s, and a failover beside the largest number.
pub async fn fields(program: PathBuf) -> Result<Vec<Line>> {
    let mut growth = Growth::new("TrackedFields", "trackedfield", 3.0);
    for count in FIELDS {
        let stage = Stage::set(program.clone(), count).await?;
        let floor = {
            let (_floor, _) = Floor::start(&stage).await?;
            let changes = stage.paced(count, RATE, CHANGES).await;
            stage.latencies(&changes, Sender::Floor).await?
        };
        let settings = with_plain_metrics(program.clone());
        let mut operator = leading(&stage.bed, settings.clone()).await?;
        stage.delivered(count).await?;
        growth
            .rest(count, &stage.bed, settings, &mut operator)
            .await?;
        stage.forget();

        let before = Costs::once_idle(&stage.bed, &operator, growth.controller).await?;
        let changes = stage.paced(count, RATE, CHANGES).await;
        let latencies = stage.latencies(&changes, Sender::Operator).await?;
        stage.delivered(count).await?;
        growth.latencies("change -> receiver", &latencies, &floor);
        growth.costs(before, &stage.bed, &operator, CHANGES).await?;
        if Some(&count) == FIELDS.last() {
            stage.forget();
            let failover = failover(&stage, operator, count).await?;
            growth.lines.push(failover);
        }
    }
    Ok(growth.lines)
}

/// Measures operators that share one apiserver, each with a namespace of its own. The floor is that of the first
/// namespace alone, at the rate of all.
pub async fn shards(program: PathBuf) -> Result<Vec<Line>> {
    let bed = Bed::on_own_plane_with(Options::apiserver_only(), "bench").await;
    let (mut shards, mut floor) = (Vec::new(), None);
    for number in 0..SHARDS.len() {
        let bed = Bed::on(bed.plane.clone(), "shard").await;
        let stage = Stage::on(bed, program.clone(), FIELDS_OF_SHARD).await?;
        if floor.is_none() {
            let (_floor, _) = Floor::start(&stage).await?;
            let changes = stage.paced(FIELDS_OF_SHARD, RATE, CHANGES).await;
            floor = Some(stage.latencies(&changes, Sender::Floor).await?);
        }
        let mut settings = with_plain_metrics(program.clone())
            .flag(&format!("--leader-election-id=shard-{number}"));
        settings.whole_cluster = false;
        let operator = leading(&stage.bed, settings.clone()).await?;
        stage.delivered(FIELDS_OF_SHARD).await?;
        stage.forget();
        shards.push((stage, settings, operator));
    }
    let mut lines = Vec::new();
    for ((stage, settings, operator), kind) in shards.iter_mut().zip(SHARDS) {
        let mut growth = Growth::new(kind, "trackedfield", 3.0);
        let (bed, settings) = (&stage.bed, settings.clone());
        growth
            .rest(FIELDS_OF_SHARD, bed, settings, operator)
            .await?;
        lines.extend(growth.lines);
    }
    let floor = floor.context("no shard")?;
    for (stage, _, operator) in &shards {
        Costs::once_idle(&stage.bed, operator, "trackedfield").await?;
    }
    let mark = bed.plane.audit().mark().await?;
    let rate = RATE / u32::try_from(SHARDS.len())?;
    let measured = shards.iter().map(async |(stage, ..)| {
        let changes = stage.paced(FIELDS_OF_SHARD, rate, CHANGES).await;
        stage.latencies(&changes, Sender::Operator).await
    });
    let latencies: Vec<Sample> = try_join_all(measured).await?;
    let latencies = latencies.into_iter().reduce(Sample::and);
    let latencies = latencies.context("no shard")?;
    tokio::time::sleep(SETTLE).await;
    let sent = number(requests_but_lease(&bed, mark).await?) / number(CHANGES * SHARDS.len());
    let line = |what, measured, unit| {
        let what = format!("{} shards: {what}", SHARDS.len());
        Line::new(&what, measured, unit)
    };
    lines.push(
        line("change -> receiver, p50", latencies.p50(), "ms")
            .floor(floor.p50())
            .at_most(P50),
    );
    lines.push(
        line("change -> receiver, p99", latencies.p99(), "ms")
            .floor(floor.p99())
            .at_most(P99),
    );
    lines.push(line("requests a change", sent, ""));
    Ok(lines)
}

/// Measures from a kill of the leader, beyond the rest of its Lease, until the standby's first message. Every change
/// must arrive.
async fn failover(stage: &Arc<Stage>, mut leader: Operator, count: usize) -> Result<Line> {
    let standby = standby(stage).await?;
    let load = tokio::spawn({
        let stage = Arc::clone(stage);
        async move { stage.paced(count, RATE, CHANGES * 3).await }
    });
    // The leader dies while changes come.
    tokio::time::sleep(SETTLE).await;
    let began = Instant::now();
    leader.kill();
    let left = lease_left(stage).await?;
    let resumed = first_message(stage, &standby).await? - began;
    // No field changes twice, so no entries are merged.
    stage.arrivals(&load.await?, Sender::Operator).await?;
    stage.delivered(count).await?;
    let beyond = resumed.as_secs_f64() - left;
    let what = format!("{count} TrackedFields: failover beyond the rest of the Lease");
    Ok(Line::new(&what, beyond, "s").below(TAKEOVER))
}

/// Measures `ConfigMapSync`s with one copy each, and some with many copies.
pub async fn syncs(program: PathBuf) -> Result<Vec<Line>> {
    let mut growth = Growth::new("ConfigMapSyncs", "configmapsync", 6.0);
    for count in SYNCS {
        let scene = Arc::new(copies::Scene::set().await);
        let settings = with_plain_metrics(program.clone());
        let mut operator = leading(&scene.bed, settings.clone()).await?;
        let names = scene.syncs(count).await?;
        for name in &names {
            scene.arrival("far", name, "first").await?;
        }
        growth
            .rest(count, &scene.bed, settings, &mut operator)
            .await?;
        let before = Costs::once_idle(&scene.bed, &operator, growth.controller).await?;
        let (latencies, floor) = scene.edited(&names, CHANGES).await?;
        growth.latencies("edit -> copy matches", &latencies, &floor);
        growth.costs(before, &scene.bed, &operator, CHANGES).await?;
    }
    growth.lines.extend(wide(program).await?);
    Ok(growth.lines)
}

/// Measures 100 syncs with 200 copies each.
async fn wide(program: PathBuf) -> Result<Vec<Line>> {
    let (syncs, namespaces) = WIDE;
    let scene = copies::Scene::set().await;
    let settings = with_plain_metrics(program);
    let mut operator = leading(&scene.bed, settings.clone()).await?;
    let spaces: Vec<_> = (0..namespaces).map(|number| format!("n{number}")).collect();
    let names: Vec<_> = (0..syncs).map(|number| format!("s{number}")).collect();
    stream::iter(&spaces)
        .map(|name| scene.namespace(name, json!({ "wide": "yes" })))
        .buffer_unordered(AT_ONCE)
        .try_for_each(async |()| Ok(()))
        .await?;
    let began = Instant::now();
    stream::iter(&names)
        .map(async |name| {
            scene.source(name, "first").await?;
            let selector = json!({ "matchLabels": { "wide": "yes" } });
            let to = json!({ "destinationNamespaceSelector": selector });
            scene.sync(name, to).await;
            anyhow::Ok(())
        })
        .buffer_unordered(AT_ONCE)
        .try_for_each(async |()| Ok(()))
        .await?;
    let last = async |name: &str, value: &str| {
        let mut last = began;
        for space in &spaces {
            last = last.max(scene.arrival(space, name, value).await?);
        }
        anyhow::Ok(last)
    };
    let mut all = began;
    for name in &names {
        all = all.max(last(name, "first").await?);
    }
    let mut growth = Growth::new(
        "ConfigMapSyncs with 200 copies each",
        "configmapsync",
        600.0,
    );
    growth
        .rest(syncs, &scene.bed, settings, &mut operator)
        .await?;
    let copied = (all - began).as_secs_f64();
    growth.line("created -> every copy exists", copied, "s", None);
    let before = Costs::once_idle(&scene.bed, &operator, growth.controller).await?;
    let at = scene
        .edit(&scene.bed.namespace, &names[0], "second")
        .await?;
    let edited = (last(&names[0], "second").await? - at).as_secs_f64();
    growth.line("edit -> its 200 copies match", edited, "s", None);
    growth.costs(before, &scene.bed, &operator, 1).await?;
    Ok(growth.lines)
}

/// Measures `AppService`s.
pub async fn services(program: PathBuf) -> Result<Vec<Line>> {
    let mut growth = Growth::new("AppServices", "appservice", 4.0);
    for count in APPS {
        let scene = apps::Scene::set(&[&apps::APPS]).await?;
        let settings = with_plain_metrics(program.clone());
        let mut operator = leading(&scene.bed, settings.clone()).await?;
        scene.make_all(&apps::APPS, &apps::names(count)).await?;
        scene.has_children(count * 2).await?;
        growth
            .rest(count, &scene.bed, settings, &mut operator)
            .await?;
        let before = Costs::once_idle(&scene.bed, &operator, growth.controller).await?;
        let sample = scene.alone(count * 2).await?;
        growth
            .costs(before, &scene.bed, &operator, sample.len())
            .await?;
        let floor = scene
            .alone_without_operator((count + sample.len()) * 2)
            .await?;
        growth.promise(
            "one more -> both children, p50",
            sample.p50(),
            "ms",
            floor.p50(),
            floor.p50() * OF_FLOOR,
        );
        growth.line(
            "one more -> both children, p99",
            sample.p99(),
            "ms",
            floor.p99(),
        );
    }
    Ok(growth.lines)
}

/// Measures `MyIngress`es, whose load balancers are in a stand-in for AWS.
pub async fn ingresses(program: PathBuf) -> Result<Vec<Line>> {
    let mut growth = Growth::new("MyIngresses", "myingress", 4.0);
    for count in INGRESSES {
        let bed = Bed::on_own_plane_with(Options::apiserver_only(), "bench").await;
        let aws = Aws::start().await?;
        aws.provisioning(Duration::from_secs(1));
        let settings = with_plain_metrics(program.clone()).aws(&aws);
        let mut operator = leading(&bed, settings.clone()).await?;
        let began = Instant::now();
        stream::iter(0..count)
            .for_each_concurrent(AT_ONCE, async |number| {
                let spec = json!({ "spec": { "subnets": SUBNETS[..2] } });
                bed.create::<MyIngress>(&format!("web-{number}"), spec)
                    .await;
            })
            .await;
        are_ready(&bed, count, PROVISIONED * u32::try_from(count)?).await?;
        let created = began.elapsed().as_secs_f64();
        growth.rest(count, &bed, settings, &mut operator).await?;
        growth.line("created -> every one is ready", created, "s", None);

        let before = Costs::once_idle(&bed, &operator, growth.controller).await?;
        let calls = aws.calls().len();
        let mut latencies = Vec::new();
        for number in 0..EDITS {
            let spec = json!({ "spec": { "tags": { "edited": "yes" } } });
            bed.patch::<MyIngress>(&format!("web-{number}"), spec).await;
            let acknowledged = Instant::now();
            until("the load balancer has the tag", PATIENCE, async || {
                let tagged = aws.balancer(&format!("web-{number}-alb")).await?;
                let tags = tagged.context("no load balancer")?.tags;
                Ok(tags.contains_key("edited").then_some(()))
            })
            .await?;
            let calls = aws.calls();
            let tagged = calls.iter().rfind(|call| call.action == "AddTags");
            let tagged = tagged.context("no tag")?.at;
            latencies.push((tagged - acknowledged).as_secs_f64() * 1e3);
        }
        let latencies: Sample = latencies.into_iter().collect();
        let calls = number(aws.calls().len() - calls) / number(EDITS);
        growth.line("edit -> AWS, p50", latencies.p50(), "ms", None);
        growth.line("edit -> AWS, p99", latencies.p99(), "ms", None);
        growth.line("AWS requests a change", calls, "", None);
        growth.costs(before, &bed, &operator, EDITS).await?;
    }
    Ok(growth.lines)
}

/// Waits until all `MyIngress`es are ready.
async fn are_ready(bed: &Bed, count: usize, patience: Duration) -> Result<()> {
    let api = bed.api::<MyIngress>();
    until(format!("{count} are ready"), patience, async || {
        // A list of all objects is work for the apiserver, so it is not read every time.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let objects = api.list(&ListParams::default()).await?.items;
        let is_ready = |ingress: &&MyIngress| {
            let conditions = ingress.status.as_ref().map(|it| &it.conditions[..]);
            conditions::ready(conditions.unwrap_or_default()).is_some_and(|it| it.is_true())
        };
        let ready = objects.iter().filter(is_ready).count();
        ensure!(ready == count, "{ready} are");
        Ok(Some(()))
    })
    .await
}

/// Returns the settings of a user's installation, except that the metrics need no token.
fn with_plain_metrics(program: PathBuf) -> Settings {
    let mut settings = settings(program);
    settings.flags.retain(|flag| flag != "--metrics-secure");
    settings
}

/// Costs of a number of objects at rest.
#[derive(Clone, Copy)]
struct Size {
    count: usize,
    /// MiB of anonymous memory.
    memory: f64,
    /// Seconds until the operator is ready and leads.
    start: f64,
}

/// The lines of one kind, size by size.
struct Growth {
    kind: &'static str,
    controller: &'static str,
    count: usize,
    /// Maximum number of requests a change.
    requests: f64,
    /// The size before.
    smaller: Option<Size>,
    lines: Vec<Line>,
}

impl Growth {
    fn new(kind: &'static str, controller: &'static str, requests: f64) -> Self {
        Self {
            kind,
            controller,
            requests,
            count: 0,
            smaller: None,
            lines: Vec::new(),
        }
    }

    fn line(&mut self, what: &str, measured: f64, unit: &str, floor: impl Into<Option<f64>>) {
        let line = self.named(what, measured, unit, floor);
        self.lines.push(line);
    }

    fn promise(
        &mut self,
        what: &str,
        measured: f64,
        unit: &str,
        floor: impl Into<Option<f64>>,
        most: f64,
    ) {
        let line = self.named(what, measured, unit, floor);
        self.lines.push(line.at_most(most));
    }

    fn named(&self, what: &str, measured: f64, unit: &str, floor: impl Into<Option<f64>>) -> Line {
        let what = format!("{} {}: {what}", self.count, self.kind);
        Line::new(&what, measured, unit).floor(floor)
    }

    fn latencies(&mut self, what: &str, measured: &Sample, floor: &Sample) {
        for (name, measured, floor, most) in [
            ("p50", measured.p50(), floor.p50(), P50),
            ("p99", measured.p99(), floor.p99(), P99),
        ] {
            self.promise(&format!("{what}, {name}"), measured, "ms", floor, most);
        }
    }

    /// Begins a size: measures the start, and CPU and memory at rest.
    async fn rest(
        &mut self,
        count: usize,
        bed: &Bed,
        settings: Settings,
        operator: &mut Operator,
    ) -> Result<()> {
        const WINDOW: Duration = Duration::from_secs(30);
        self.count = count;
        Costs::once_idle(bed, operator, self.controller).await?;
        let memory = Memory::of(operator.child().id())?.anonymous;
        let (used, began) = (cpu_seconds(operator.child().id())?, Instant::now());
        // Nothing changes meanwhile.
        tokio::time::sleep(WINDOW).await;
        let share = (cpu_seconds(operator.child().id())? - used) / began.elapsed().as_secs_f64();
        let started = restart(bed, settings, operator).await?;
        self.line("start -> ready and leading", started, "s", None);
        self.line("CPU at rest", share * 100.0, "% of a core", None);
        self.line("RssAnon", memory, "MiB", None);
        let size = Size {
            count,
            memory,
            start: started,
        };
        if let Some(smaller) = self.smaller.replace(size) {
            let further = number(count - smaller.count);
            let memory = (memory - smaller.memory) * 1024.0 / further;
            let what = "RssAnon for each further object";
            self.promise(what, memory, "KiB", None, MEMORY);
            let start = (started - smaller.start) * 1000.0 / further;
            let what = "start for each 1,000 further objects";
            self.promise(what, start, "s", None, START);
        }
        Ok(())
    }

    /// Adds requests and reconciles per change, once the operator rests.
    async fn costs(
        &mut self,
        before: Costs,
        bed: &Bed,
        operator: &Operator,
        changes: usize,
    ) -> Result<()> {
        tokio::time::sleep(SETTLE).await;
        let sent = number(requests_but_lease(bed, before.mark).await?) / number(changes);
        let after = reconciles(operator, self.controller).await?;
        let what = "requests a change";
        self.promise(what, sent, "", None, self.requests);
        let reconciles = (after - before.reconciles) / number(changes);
        self.line("reconciles a change", reconciles, "", None);
        Ok(())
    }
}

/// Requests and reconciles of the operator before some changes.
struct Costs {
    mark: Mark,
    reconciles: f64,
}

impl Costs {
    /// Returns the costs so far once the operator is idle: after its start, it checks each object once.
    async fn once_idle(bed: &Bed, operator: &Operator, controller: &str) -> Result<Self> {
        let began = Instant::now();
        while began.elapsed() < CHECKED {
            let costs = Self {
                mark: bed.plane.audit().mark().await?,
                reconciles: reconciles(operator, controller).await?,
            };
            tokio::time::sleep(SETTLE).await;
            let sends = requests_but_lease(bed, costs.mark).await? > 0;
            #[allow(clippy::float_cmp)] // a count
            if !sends && reconciles(operator, controller).await? == costs.reconciles {
                return Ok(costs);
            }
        }
        bail!("the operator does not rest within {CHECKED:?}")
    }
}

/// Returns the number of the operators' requests since the mark, except for those of the Lease.
async fn requests_but_lease(bed: &Bed, since: Mark) -> Result<usize> {
    let sent = requests(bed, since).await?;
    let sent = sent.iter().filter(|it| it.subject.resource != "leases");
    Ok(sent.count())
}

/// Returns the number of a controller's reconciles so far.
async fn reconciles(operator: &Operator, controller: &str) -> Result<f64> {
    let url = format!(
        "http://{}/metrics",
        operator.address("--metrics-bind-address")?
    );
    let client = reqwest::Client::builder()
        .no_proxy()
        .timeout(PATIENCE)
        .build()?;
    let text = client.get(url).send().await?.text().await?;
    let series = "controller_runtime_reconcile_total{";
    let label = format!("controller=\"{controller}\"");
    text.lines()
        .filter(|line| line.starts_with(series) && line.contains(&label))
        .map(|line| {
            Ok(line
                .rsplit(' ')
                .next()
                .context("no value")?
                .parse::<f64>()?)
        })
        .sum()
}

fn number(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}
