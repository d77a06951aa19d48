//! Soak: every workload again and again against two replicas, with random faults.
//!
//! Only the first half has faults that may end a process. The replicas rest after each half, so that a leak shows.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use http::StatusCode;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, ResourceExt as _};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::json;
use testbed::aws::{self, Aws};
use testbed::proxy::{Ending, Fault, Lost, Match, Proxy, Times, Verb};
use testbed::receiver::{Receiver, Reply};
use testbed::usage::Memory;
use testbed::wait::until;
use tokio::time::sleep;

use crate::outside::{Clock, ReplacedCrd, RevokedRule, Starved, damage};
use crate::support::{Bed, Operator, SOON, Settings, series};
use crate::torture::{
    Answer, FLAGS, Kind, Reference, catch_panic, is_sound, is_write, last_write, lease_aws,
    rests_for, run_against, writes,
};

/// Time between two faults, at most.
const PAUSE: Duration = Duration::from_secs(4);
/// Longest duration of a fault.
const LASTING: Duration = Duration::from_secs(5);
/// Time between two lines about the progress.
const SHOWN: Duration = Duration::from_mins(1);
/// Time between two samples.
const SAMPLED: Duration = Duration::from_secs(5);
/// Time without a write after each half.
const REST: Duration = Duration::from_secs(30);
/// Time after which a resting replica has closed its unused connections: the HTTP client keeps them for 90 s, and looks
/// for them every 90 s.
const IDLE: Duration = Duration::from_secs(200);
/// Number of faults of which one must have an effect.
const MANY: usize = 20;
/// Maximum growth of the anonymous memory of a replica over the second half, in MiB.
const GROWTH: f64 = 2.0;
/// Maximum difference of the number of open connections, which varies a little even at rest. Each has a file descriptor and
/// up to two tasks. The second half has hundreds of rounds, so a leak of each round is far above it.
const CONNECTIONS: f64 = 4.0;

/// Words of the log of a replica that ended because it lost the Lease.
const LOST_LEASE: &str = "lost the lease";

/// Flags of the replicas in addition to those of each case. The log of an hour at debug level fills disks.
const OF_REPLICAS: [&str; 6] = [
    "--log-level=info",
    "--leader-elect",
    "--leader-elect-lease-duration=5s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=500ms",
    "--aws-consistency-window=1s",
];

/// Fault of a soak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SoakFault {
    /// The apiserver rejects writes of a replica
    Reject,
    /// Writes of a replica take long, as behind a slow webhook
    Delay,
    /// Writes of a replica are applied, but their answers are lost
    LoseAnswers,
    /// A replica may not list or watch a resource
    Forbid,
    /// The next rule of the operator's role is removed, and all watches begin again
    Revoke,
    /// The watches of a resource end, break in the middle of an event, or are answered 410
    EndWatches,
    /// The watches of a resource show nothing
    FreezeWatches,
    /// A replica cannot reach the apiserver
    Disconnect,
    /// AWS answers Throttling
    Throttle,
    /// A child of an app is changed
    Damage,
    /// The receivers of notifications reject everything, or cannot be reached
    FailReceivers,
    /// A CRD is replaced by an older or a newer one
    ReplaceCrd,
    /// API priority and fairness rejects every request of the operator
    Starve,
    /// A replica is killed
    Kill,
    /// A replica is stopped, and continues
    Freeze,
    /// A replica's clock is an hour ahead (needs Debian's package faketime)
    MoveClock,
    /// A replica is replaced by the program of --other-program, and back
    Upgrade,
}

impl SoakFault {
    /// Returns `faults`, or, if it is empty, every fault that needs no further program or package.
    pub fn or_default(faults: Vec<Self>) -> Vec<Self> {
        if !faults.is_empty() {
            return faults;
        }
        let mut all = Self::value_variants().to_vec();
        all.retain(|fault| !matches!(fault, Self::MoveClock | Self::Upgrade));
        all
    }

    pub fn name(self) -> String {
        self.to_possible_value().unwrap().get_name().to_owned()
    }

    /// Returns whether a replica can end, or lose its Lease, because of the fault.
    fn ends_processes(self) -> bool {
        matches!(
            self,
            Self::Starve | Self::Kill | Self::Freeze | Self::MoveClock | Self::Upgrade
        )
    }
}

/// Options of a soak.
pub struct SoakOptions {
    pub time: Duration,
    pub seed: u64,
    pub program: PathBuf,
    /// Another build of the operator, for [`SoakFault::Upgrade`].
    pub other_program: Option<PathBuf>,
    pub faults: Vec<SoakFault>,
    /// Folder of the samples.
    pub folder: PathBuf,
}

/// State that the threads share during one half.
struct Shared {
    began: Instant,
    time: Duration,
    /// The faults of this half.
    faults: Vec<SoakFault>,
    /// Number of faults that can end a process, and of processes that ended because they lost the Lease. Each permits
    /// one repeated message.
    interruptions: AtomicUsize,
    /// Number of replaced CRDs. Each permits one repeated message, too: while the CRD of a kind is older, the operator
    /// forgets the kind's objects, with the request in flight.
    replaced_crds: AtomicUsize,
    failed: AtomicBool,
}

impl Shared {
    /// Returns how many messages may have been repeated so far.
    fn permitted_repeats(&self) -> usize {
        let counts = [&self.interruptions, &self.replaced_crds];
        counts
            .map(|count| count.load(Ordering::Relaxed))
            .iter()
            .sum()
    }

    fn is_over(&self) -> bool {
        self.began.elapsed() >= self.time || self.failed.load(Ordering::Relaxed)
    }
}

/// Resources of a replica at a time.
struct Sample {
    /// Time since the start.
    at: Duration,
    replica: usize,
    /// Anonymous memory, in MiB.
    memory: f64,
    files: f64,
    tasks: f64,
}

/// Numbers of strikes of each fault, and of those that had an effect: `None` if that is not measured.
type Strikes = BTreeMap<String, (usize, Option<usize>)>;

/// The two operators under test, and what they talk to.
struct Replicas {
    running: Vec<Operator>,
    proxies: Vec<Proxy>,
    clocks: Vec<Clock>,
    bed: Bed,
    aws: Aws,
    /// The receivers of the workloads.
    receivers: Vec<Receiver>,
    other_program: Option<PathBuf>,
    /// Number of the rules that were revoked so far.
    revoked: usize,
    /// Problems of the replicas. The oracles of the workloads report theirs themselves.
    problems: Vec<String>,
    /// The last address of each replica's metrics.
    addresses: [String; 2],
    /// File with these addresses for a Prometheus server, while the soak runs.
    targets: PathBuf,
    /// File of the samples.
    samples: PathBuf,
}

impl Drop for Replicas {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.targets);
    }
}

/// Plays until the time is over. The result is an error if the oracle of a workload finds a fault of the operator, or a
/// replica leaks.
pub fn run(options: &SoakOptions, references: &[(Kind, Reference)]) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let began = Instant::now();
    let mut replicas = runtime.block_on(Replicas::start(options, references.len()));
    let mut seeds = StdRng::seed_from_u64(options.seed);
    let (mut samples, mut at_rest, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for may_end_processes in [true, false] {
        let mut random = StdRng::seed_from_u64(seeds.random());
        let mut faults = options.faults.clone();
        faults.retain(|fault| may_end_processes || !fault.ends_processes());
        let shared = Shared {
            began: Instant::now(),
            time: options.time / 2,
            faults,
            interruptions: AtomicUsize::new(0),
            replaced_crds: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
        };
        let (proxies, aws) = (replicas.proxies.clone(), replicas.aws.clone());
        let receivers = replicas.receivers.clone();
        let mut strikes = Strikes::new();
        thread::scope(|scope| {
            let players: Vec<_> = references
                .iter()
                .zip(&receivers)
                .map(|((kind, reference), receiver)| {
                    let (shared, proxies, aws) = (&shared, &proxies, &aws);
                    scope.spawn(move || play(*kind, reference, receiver, proxies, aws, shared))
                })
                .collect();
            let are_playing = || players.iter().any(|player| !player.is_finished());
            let disturb = replicas.disturb(&shared, &mut random, began, &mut samples, are_playing);
            strikes = runtime.block_on(disturb);
            let played = players.into_iter().map(|player| player.join().unwrap());
            problems.extend(played.filter_map(Result::err));
        });
        let interruptions = shared.interruptions.load(Ordering::Relaxed);
        println!("{interruptions} interruptions");
        println!("  {:16} {:>6} {:>11}", "fault", "struck", "with effect");
        for (fault, (struck, effective)) in strikes {
            let shown = effective.map_or("-".into(), |it| it.to_string());
            println!("  {fault:16} {struck:>6} {shown:>11}");
            if struck >= MANY && effective == Some(0) {
                problems.push(format!("{fault} had no effect"));
            }
        }
        if interruptions > 0 && !may_end_processes {
            problems.push(format!("{interruptions} processes ended by themselves"));
        }
        problems.extend(runtime.block_on(replicas.rest()));
        problems.extend(replicas.foreign_writes());
        // Millions in an hour.
        replicas.proxies.iter().for_each(Proxy::forget);
        at_rest.extend(runtime.block_on(replicas.sample(began)));
        if !problems.is_empty() {
            break;
        }
    }
    problems.append(&mut replicas.problems);
    match &at_rest[..] {
        [first, second, first_later, second_later] => {
            problems.extend(growth(first, first_later));
            problems.extend(growth(second, second_later));
        }
        _ if problems.is_empty() => problems.push("a replica at rest has no metrics".into()),
        _ => {}
    }
    for (number, replica) in replicas.running.iter_mut().enumerate() {
        problems.extend(is_sound(replica).err());
        if !problems.is_empty() {
            let file = options.folder.join(format!("replica-{number}.log"));
            std::fs::write(file, replica.logs()).unwrap();
        }
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(problems.join("\n"))
    }
}

/// Plays the workload of a kind again and again.
fn play(
    kind: Kind,
    reference: &Reference,
    receiver: &Receiver,
    proxies: &[Proxy],
    aws: &Aws,
    shared: &Shared,
) -> Result<(), String> {
    let mut rounds = 0;
    let mut played = Ok(());
    while played.is_ok() && !shared.is_over() {
        let before = shared.permitted_repeats();
        let repeats = || shared.permitted_repeats() - before;
        receiver.forget();
        let round = run_against(kind, receiver, proxies, aws, &repeats, reference);
        played = crate::block_on(catch_panic(round));
        rounds += 1;
    }
    let played = played.map_err(|error| format!("{kind}, round {rounds}: {error}"));
    match &played {
        Ok(()) => println!("{kind}: {rounds} rounds"),
        Err(error) => {
            println!("{error}");
            shared.failed.store(true, Ordering::Relaxed);
        }
    }
    played
}

impl Replicas {
    async fn start(options: &SoakOptions, receivers: usize) -> Self {
        let bed = Bed::shared("soak").await;
        let aws = lease_aws().await;
        let (mut running, mut proxies, mut clocks) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..2 {
            let (proxy, file) = bed.through_proxy().await;
            let settings = FLAGS
                .into_iter()
                .chain(OF_REPLICAS)
                .fold(Settings::default().whole_cluster(), Settings::flag);
            let mut settings = settings
                .aws(&aws)
                .kubeconfig(file)
                // As in the image.
                .env("MALLOC_ARENA_MAX", "1");
            settings.program = Some(options.program.clone());
            if options.faults.contains(&SoakFault::MoveClock) {
                let clock = Clock::new();
                settings.env.extend(clock.env());
                clocks.push(clock);
            }
            running.push(Operator::start(&bed, settings).await);
            proxies.push(proxy);
        }
        Self {
            running,
            proxies,
            clocks,
            bed,
            aws,
            receivers: (0..receivers).map(|_| Receiver::start().unwrap()).collect(),
            other_program: options.other_program.clone(),
            revoked: 0,
            problems: Vec::new(),
            addresses: Default::default(),
            targets: options.folder.join("targets.json"),
            samples: options.folder.join("soak.csv"),
        }
    }

    /// Strikes with one random fault after the other while threads `are_playing` the workloads. Restarts replicas that
    /// end, as the kubelet does, samples their resources, and shows the progress.
    async fn disturb(
        &mut self,
        shared: &Shared,
        random: &mut StdRng,
        began: Instant,
        samples: &mut Vec<Sample>,
        are_playing: impl Fn() -> bool,
    ) -> Strikes {
        let (mut strikes, mut sampled, mut shown) =
            (Strikes::new(), Instant::now(), Instant::now());
        while are_playing() {
            // The second half may have no fault.
            if !shared.is_over()
                && let Some(&fault) = shared.faults.choose(random)
            {
                if fault.ends_processes() {
                    shared.interruptions.fetch_add(1, Ordering::Relaxed);
                }
                let has_effect = self.strike(fault, shared, random).await;
                let counts = strikes.entry(fault.name()).or_insert((0, None));
                counts.0 += 1;
                if let Some(has_effect) = has_effect {
                    *counts.1.get_or_insert(0) += usize::from(has_effect);
                }
            }
            sleep(PAUSE.mul_f64(random.random_range(0.1..1.0))).await;
            if sampled.elapsed() >= SAMPLED {
                sampled = Instant::now();
                samples.extend(self.sample(began).await);
                // A soak that is interrupted leaves its samples.
                std::fs::write(&self.samples, table(samples)).unwrap();
            }
            if shown.elapsed() >= SHOWN {
                shown = Instant::now();
                let faults: usize = strikes.values().map(|(struck, _)| struck).sum();
                let (played, all) = (
                    shared.began.elapsed().as_secs() / 60,
                    shared.time.as_secs() / 60,
                );
                println!("{played} of {all} minutes of this half, {faults} faults");
            }
            // Directly before the next fault, which may kill a replica.
            for replica in &mut self.running {
                if let Some(status) = replica.child().ended().unwrap() {
                    let log = replica.child().log_tail();
                    if status.code() != Some(1) || !log.contains(LOST_LEASE) {
                        self.problems
                            .push(format!("a replica ended: {status}\n{log}"));
                    }
                    shared.interruptions.fetch_add(1, Ordering::Relaxed);
                    replica.restart();
                }
            }
        }
        strikes
    }

    /// Strikes a random replica, resource or child with a fault. Returns once the fault is over, whether it met
    /// anything; `None` if that is not measured.
    async fn strike(
        &mut self,
        fault: SoakFault,
        shared: &Shared,
        random: &mut StdRng,
    ) -> Option<bool> {
        let at = random.random_range(0..self.running.len());
        let (replica, proxy) = (&mut self.running[at], &self.proxies[at]);
        let lasting = LASTING.mul_f64(random.random_range(0.05..1.0));
        let resource = *RESOURCES.choose(random).unwrap();
        let watches = Match::watch(resource);
        let order = match fault {
            SoakFault::Reject => {
                let answer = Answer::ALL.choose(random).unwrap().of_apiserver();
                let writes = if random.random_bool(0.5) {
                    writes()
                } else {
                    writes().resource(resource)
                };
                Some(proxy.inject(writes, Times::Always, answer))
            }
            SoakFault::Delay => Some(proxy.inject(writes(), Times::Always, Fault::Delay(lasting))),
            SoakFault::LoseAnswers => {
                let fault = Fault::LoseAnswer(Lost::Cut);
                Some(proxy.inject(writes(), Times::Always, fault))
            }
            SoakFault::Forbid => Some(proxy.forbid(&Match::watches_and_lists(resource))),
            SoakFault::Revoke => {
                let began = Instant::now();
                let revoked = RevokedRule::begin(&self.bed, self.revoked).await;
                self.revoked += 1;
                for proxy in &self.proxies {
                    proxy.end_watches(&Match::verb(Verb::Watch), Ending::Clean);
                }
                sleep(lasting).await;
                revoked.end().await;
                return Some(self.was_answered(StatusCode::FORBIDDEN, began));
            }
            SoakFault::EndWatches => {
                let endings = [Ending::Clean, Ending::MidEvent, Ending::Gone];
                let ended = proxy.end_watches(&watches, *endings.choose(random).unwrap());
                return Some(ended > 0);
            }
            SoakFault::FreezeWatches => Some(proxy.freeze_running(watches)),
            SoakFault::Disconnect => {
                // The renewal of the Lease survives it.
                proxy.refuse().await.unwrap();
                sleep(lasting.min(Duration::from_secs(2))).await;
                proxy.accept().await.unwrap();
                None
            }
            SoakFault::Throttle => {
                let throttled = aws::Fault::Throttled;
                Some(self.aws.fault(aws::On::all(), Times::Always, throttled))
            }
            SoakFault::FailReceivers => {
                let code = *RECEIVERS_ANSWER.choose(random).unwrap();
                for receiver in &self.receivers {
                    match code {
                        Some(code) => receiver.always(Reply::status(code)),
                        None => receiver.refuse().await.unwrap(),
                    }
                }
                sleep(lasting).await;
                for receiver in &self.receivers {
                    match code {
                        Some(_) => receiver.behave(),
                        None => receiver.accept().await.unwrap(),
                    }
                }
                None
            }
            SoakFault::Damage => {
                // Takes more random numbers if there are children.
                let mut random = StdRng::seed_from_u64(random.random());
                return Some(damage(&self.bed, &mut random).await);
            }
            SoakFault::ReplaceCrd => {
                shared.replaced_crds.fetch_add(1, Ordering::Relaxed);
                let replaced = ReplacedCrd::random(&self.bed, random).await;
                sleep(lasting).await;
                replaced.restore().await;
                None
            }
            SoakFault::Starve => {
                let began = Instant::now();
                let starved = Starved::begin(&self.bed).await;
                sleep(lasting).await;
                starved.end().await;
                return Some(self.was_answered(StatusCode::TOO_MANY_REQUESTS, began));
            }
            SoakFault::Kill => {
                replica.kill();
                sleep(lasting).await;
                replica.restart();
                None
            }
            SoakFault::Freeze => {
                // Longer than the Lease lasts, in half of the cases.
                // The replica may have just ended, because it lost the Lease.
                if replica.child().freeze().is_ok() {
                    sleep(lasting * 2).await;
                    replica.child().thaw().unwrap();
                }
                None
            }
            SoakFault::MoveClock => {
                self.clocks[at].move_by("+3600");
                sleep(lasting * 2).await;
                self.clocks[at].move_by("+0");
                None
            }
            SoakFault::Upgrade => {
                let other = self.other_program.clone().unwrap();
                let program = replica.replace_program(other);
                replica.kill();
                replica.restart();
                sleep(lasting * 2).await;
                let ended = replica.child().ended().unwrap();
                assert!(ended.is_none(), "the other build ended: {ended:?}");
                replica.replace_program(program);
                // Perhaps in another round than the first kill.
                shared.interruptions.fetch_add(1, Ordering::Relaxed);
                replica.kill();
                replica.restart();
                None
            }
        };
        let order = order?;
        sleep(lasting).await;
        order.cancel();
        Some(order.hits() > 0)
    }

    /// Returns whether the apiserver has answered a request with this status code since then.
    fn was_answered(&self, code: StatusCode, since: Instant) -> bool {
        let requests = self.proxies.iter().flat_map(Proxy::requests);
        let mut late = requests.filter(|it| it.at >= since);
        late.any(|it| it.answer() == Some(code))
    }

    /// Returns the resources of each replica that is ready.
    async fn sample(&mut self, began: Instant) -> Vec<Sample> {
        let mut samples = Vec::new();
        for (replica, operator) in self.running.iter_mut().enumerate() {
            let Ok(metrics) = operator.try_metrics().await else {
                continue;
            };
            self.addresses[replica] = operator.address("--metrics-bind-address").unwrap();
            // Another build may have other metrics.
            let (Some(files), Some(tasks)) = (
                series(&metrics, "process_open_fds"),
                series(&metrics, "tokio_alive_tasks"),
            ) else {
                continue;
            };
            // The replica may have ended.
            let Ok(memory) = Memory::of(operator.child().id()) else {
                continue;
            };
            samples.push(Sample {
                at: began.elapsed(),
                replica,
                memory: memory.anonymous,
                files,
                tasks,
            });
        }
        let targets = self.addresses.iter().enumerate();
        let targets = targets.map(|(replica, address)| {
            json!({ "targets": [address], "labels": { "instance": format!("replica-{replica}") } })
        });
        // A reader sees all of the file.
        let part = self.targets.with_extension("part");
        std::fs::write(&part, json!(targets.collect::<Vec<_>>()).to_string()).unwrap();
        std::fs::rename(part, &self.targets).unwrap();
        samples
    }

    /// Waits until the namespaces of the rounds are gone, and the replicas have written nothing for [`REST`] and closed
    /// their unused connections; returns what is wrong.
    async fn rest(&self) -> Vec<String> {
        let namespaces: Api<Namespace> = Api::all(self.bed.client.clone());
        let gone = until("the namespaces of the rounds are gone", SOON, async || {
            let mut left = namespaces
                .list_metadata(&kube::api::ListParams::default())
                .await?
                .items;
            left.retain(|it| {
                it.name_any().starts_with("soak-") && it.name_any() != self.bed.namespace
            });
            anyhow::ensure!(left.is_empty(), "{} are left", left.len());
            Ok(Some(()))
        })
        .await;
        let last = || self.proxies.iter().filter_map(last_write).max();
        let rests = rests_for(REST, last).await;
        sleep(IDLE).await;
        let found = [gone, rests].into_iter().filter_map(Result::err);
        found.map(|error| format!("{error:#}")).collect()
    }

    /// Returns writes to objects that are not those of the namespace's workload.
    fn foreign_writes(&self) -> Vec<String> {
        let requests = self.proxies.iter().flat_map(Proxy::requests);
        let foreign = requests.filter(|seen| {
            let request = &seen.request;
            let namespace = request.namespace.as_deref().unwrap_or_default();
            let is_of = |kind: &Kind| {
                namespace.starts_with(&format!("soak-{}-", kind.lowercase()))
                    && (request.resource == "events" || kind.owns(request))
            };
            is_write(request) && !Kind::value_variants().iter().any(is_of)
        });
        let shown = foreign.map(|it| format!("a foreign write: {:?}", it.request));
        shown.take(5).collect()
    }
}

/// Resources whose watches and writes fail.
const RESOURCES: [&str; 13] = [
    "appservices",
    "configmaps",
    "configmapsyncs",
    "contactpoints",
    "deployments",
    "horizontalpodautoscalers",
    "ingresses",
    "myapps",
    "myingresses",
    "pods",
    "services",
    "trackedfields",
    "trackedfieldsets",
];

/// Answers of receivers that fail; `None` is a connection that is refused.
const RECEIVERS_ANSWER: [Option<StatusCode>; 4] = [
    Some(StatusCode::INTERNAL_SERVER_ERROR),
    Some(StatusCode::SERVICE_UNAVAILABLE),
    Some(StatusCode::TOO_MANY_REQUESTS),
    None,
];

/// Returns the samples as a table of comma-separated values.
fn table(samples: &[Sample]) -> String {
    let mut table = "seconds,replica,memory_kib,files,tasks\n".to_owned();
    for Sample {
        at,
        replica,
        memory,
        files,
        tasks,
    } in samples
    {
        let (seconds, memory) = (at.as_secs(), memory * 1024.0);
        writeln!(table, "{seconds},{replica},{memory},{files},{tasks}").unwrap();
    }
    table
}

/// Returns which resources of a replica have grown from one rest to the next.
fn growth(before: &Sample, after: &Sample) -> Vec<String> {
    let resources = [
        ("MiB of memory", before.memory, after.memory, GROWTH),
        ("file descriptors", before.files, after.files, CONNECTIONS),
        ("tasks", before.tasks, after.tasks, 2.0 * CONNECTIONS),
    ];
    let replica = after.replica;
    let mut grown = Vec::new();
    for (what, before, after, allowed) in resources {
        println!("replica {replica}: {what} at rest {before} -> {after}");
        if after > before + allowed {
            grown.push(format!(
                "replica {replica}: {what} grew from {before} to {after}"
            ));
        }
    }
    grown
}
