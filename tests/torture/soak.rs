//! Soak: every workload again and again beside two replicas, with random faults.
//!
//! The first half kills and freezes replicas too. In the second half no process ends. The replicas rest after each half,
//! so that a leak shows.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use testbed::aws::{self, Aws};
use testbed::proxy::{Ending, Fault, Lost, Match, Proxy, Times};
use testbed::usage::Memory;
use tokio::time::sleep;

use crate::support::{Bed, Operator, Settings, series};
use crate::torture::{
    Answer, FLAGS, Kind, Reference, is_sound, is_write, last_write, lease_aws, rests_for,
    run_beside, writes,
};

/// Time between two faults, at most.
const PAUSE: Duration = Duration::from_secs(4);
/// Longest duration of a fault.
const LASTING: Duration = Duration::from_secs(5);
/// Time between two samples.
const SAMPLED: Duration = Duration::from_secs(5);
/// Time without a write after each half.
const REST: Duration = Duration::from_secs(30);
/// Time after which a resting replica has closed its unused connections: the HTTP client keeps them for 90 s, and looks
/// for them every 90 s.
const IDLE: Duration = Duration::from_secs(200);
/// Maximum growth of the anonymous memory of a replica over the second half, in MiB.
const GROWTH: f64 = 2.0;
/// Maximum difference of the number of open connections, which varies a little even at rest. Each has a file descriptor and
/// up to two tasks. The second half has hundreds of rounds, so a leak of each round is far above it.
const CONNECTIONS: f64 = 4.0;

/// Flags of the replicas in addition to those of each case. The log of an hour at debug level fills disks.
const OF_REPLICAS: [&str; 6] = [
    "--log-level=info",
    "--leader-elect",
    "--leader-elect-lease-duration=5s",
    "--leader-elect-renew-deadline=3s",
    "--leader-elect-retry-period=500ms",
    "--aws-consistency-window=1s",
];

/// Settings of a soak.
pub struct Soak {
    pub time: Duration,
    pub seed: u64,
    pub program: PathBuf,
    /// Folder of the samples.
    pub folder: PathBuf,
}

/// State that the threads share during one half.
struct Shared {
    began: Instant,
    time: Duration,
    /// True if the faults include kills and freezes of processes.
    kills_processes: bool,
    /// Number of processes that were killed or frozen, or ended because they lost the Lease.
    kills: AtomicUsize,
    failed: AtomicBool,
}

impl Shared {
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

struct Replicas {
    running: Vec<Operator>,
    proxies: Vec<Proxy>,
    aws: Aws,
}

/// Plays until the time is over. The result is an error if the oracle of a workload finds a fault of the operator, or a
/// replica leaks.
pub fn soak(soak: &Soak, references: &[(Kind, Reference)]) -> Result<(), String> {
    println!(
        "soak for {:?}: --seed {} repeats the faults",
        soak.time, soak.seed
    );
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    let began = Instant::now();
    let mut replicas = runtime.block_on(Replicas::start(soak));
    let mut random = StdRng::seed_from_u64(soak.seed);
    let (mut samples, mut at_rest, mut problems) = (Vec::new(), Vec::new(), Vec::new());
    for kills_processes in [true, false] {
        let shared = Shared {
            began: Instant::now(),
            time: soak.time / 2,
            kills_processes,
            kills: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
        };
        let (proxies, aws) = (replicas.proxies.clone(), replicas.aws.clone());
        thread::scope(|scope| {
            let players: Vec<_> = references
                .iter()
                .map(|(kind, reference)| {
                    let (shared, proxies, aws) = (&shared, &proxies, &aws);
                    scope.spawn(move || play(*kind, reference, proxies, aws, shared))
                })
                .collect();
            let are_playing = || players.iter().any(|player| !player.is_finished());
            let harm = replicas.harm(&shared, &mut random, began, are_playing);
            samples.extend(runtime.block_on(harm));
            let played = players.into_iter().map(|player| player.join().unwrap());
            problems.extend(played.filter_map(Result::err));
        });
        let kills = shared.kills.load(Ordering::Relaxed);
        println!("{kills} kills");
        if kills > 0 && !kills_processes {
            problems.push(format!("{kills} processes ended without a kill"));
        }
        problems.extend(runtime.block_on(replicas.rest()));
        at_rest.extend(runtime.block_on(replicas.sample(began)));
        if !problems.is_empty() {
            break;
        }
    }
    std::fs::write(soak.folder.join("soak.csv"), table(&samples)).unwrap();
    problems.extend(replicas.foreign_writes());
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
            let file = soak.folder.join(format!("replica-{number}.log"));
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
    proxies: &[Proxy],
    aws: &Aws,
    shared: &Shared,
) -> Result<(), String> {
    let mut rounds = 0;
    let mut played = Ok(());
    while played.is_ok() && !shared.is_over() {
        let before = shared.kills.load(Ordering::Relaxed);
        let kills = || shared.kills.load(Ordering::Relaxed) - before;
        played = crate::block_on(run_beside(kind, proxies, aws, &kills, reference));
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
    async fn start(soak: &Soak) -> Self {
        let bed = Bed::shared("soak").await;
        let aws = lease_aws().await;
        let (mut running, mut proxies) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let (proxy, file) = bed.through_proxy().await;
            let settings = FLAGS
                .into_iter()
                .chain(OF_REPLICAS)
                .fold(Settings::default().whole_cluster(), Settings::flag);
            let mut settings = settings.aws(&aws).kubeconfig(file);
            settings.program = Some(soak.program.clone());
            running.push(Operator::start(&bed, settings).await);
            proxies.push(proxy);
        }
        Self {
            running,
            proxies,
            aws,
        }
    }

    /// Strikes with one random fault after the other while threads `are_playing` the workloads. Restarts replicas that
    /// end, as the kubelet does, and samples their resources.
    async fn harm(
        &mut self,
        shared: &Shared,
        random: &mut StdRng,
        began: Instant,
        are_playing: impl Fn() -> bool,
    ) -> Vec<Sample> {
        let (mut samples, mut sampled) = (Vec::new(), Instant::now());
        while are_playing() {
            if !shared.is_over() {
                self.strike(shared, random).await;
            }
            sleep(PAUSE.mul_f64(random.random_range(0.1..1.0))).await;
            for replica in &mut self.running {
                if replica.child().ended().unwrap().is_some() {
                    shared.kills.fetch_add(1, Ordering::Relaxed);
                    replica.restart();
                }
            }
            if sampled.elapsed() >= SAMPLED {
                sampled = Instant::now();
                samples.extend(self.sample(began).await);
            }
        }
        samples
    }

    /// Strikes with a random fault, and returns once it is over.
    async fn strike(&mut self, shared: &Shared, random: &mut StdRng) {
        let at = random.random_range(0..self.running.len());
        let (replica, proxy) = (&mut self.running[at], &self.proxies[at]);
        let lasting = LASTING.mul_f64(random.random_range(0.05..1.0));
        let resource = *RESOURCES.choose(random).unwrap();
        let watches = Match::watch(resource);
        let answer = *Answer::ALL.choose(random).unwrap();
        let kinds = if shared.kills_processes { 10 } else { 8 };
        let order = match random.random_range(0..kinds) {
            0 => Some(proxy.inject(writes(), Times::Always, answer.of_apiserver())),
            1 => {
                let writes = writes().resource(resource);
                Some(proxy.inject(writes, Times::Always, answer.of_apiserver()))
            }
            2 => Some(proxy.inject(writes(), Times::Always, Fault::LoseAnswer(Lost::Cut))),
            3 => Some(proxy.forbid(&Match::watches_and_lists(resource))),
            4 => {
                let endings = [Ending::Clean, Ending::MidEvent, Ending::Gone];
                proxy.end_watches(&watches, *endings.choose(random).unwrap());
                None
            }
            5 => Some(proxy.freeze_running(watches)),
            6 => {
                let throttled = aws::Fault::Throttled;
                Some(self.aws.fault(aws::On::all(), Times::Always, throttled))
            }
            7 => {
                // The renewal of the Lease survives it.
                proxy.refuse().await.unwrap();
                sleep(lasting.min(Duration::from_secs(2))).await;
                proxy.accept().await.unwrap();
                None
            }
            8 => {
                shared.kills.fetch_add(1, Ordering::Relaxed);
                replica.kill();
                sleep(lasting).await;
                replica.restart();
                None
            }
            _ => {
                // Longer than the Lease lasts, in half of the cases.
                shared.kills.fetch_add(1, Ordering::Relaxed);
                replica.child().freeze().unwrap();
                sleep(lasting * 2).await;
                replica.child().thaw().unwrap();
                None
            }
        };
        if let Some(order) = order {
            sleep(lasting).await;
            order.take_back();
        }
    }

    /// Returns the resources of each replica that is ready.
    async fn sample(&mut self, began: Instant) -> Vec<Sample> {
        let mut samples = Vec::new();
        for (replica, operator) in self.running.iter_mut().enumerate() {
            let Ok(metrics) = operator.try_metrics().await else {
                continue;
            };
            samples.push(Sample {
                at: began.elapsed(),
                replica,
                memory: Memory::of(operator.child().id()).unwrap().anonymous,
                files: series(&metrics, "process_open_fds").unwrap(),
                tasks: series(&metrics, "tokio_alive_tasks").unwrap(),
            });
        }
        samples
    }

    /// Waits until the replicas have written nothing for [`REST`] and closed their unused connections; returns what is
    /// wrong.
    async fn rest(&self) -> Option<String> {
        let last = || self.proxies.iter().filter_map(last_write).max();
        let rests = rests_for(REST, last).await;
        sleep(IDLE).await;
        rests.err().map(|error| format!("{error:#}"))
    }

    /// Returns writes to objects of nobody's workload.
    fn foreign_writes(&self) -> Vec<String> {
        let requests = self.proxies.iter().flat_map(Proxy::requests);
        let foreign = requests.filter(|seen| {
            let request = &seen.request;
            let namespace = request.namespace.as_deref().unwrap_or_default();
            let is_ours =
                request.resource == "events" || Kind::ALL.iter().any(|it| it.owns(request));
            is_write(request) && !(namespace.starts_with("soak-") && is_ours)
        });
        let shown = foreign.map(|it| format!("a foreign write: {:?}", it.request));
        shown.take(5).collect()
    }
}

/// Resources whose watches and writes fail.
const RESOURCES: [&str; 12] = [
    "appservices",
    "configmaps",
    "configmapsyncs",
    "contactpoints",
    "deployments",
    "myapps",
    "myingresses",
    "pods",
    "secrets",
    "services",
    "trackedfields",
    "trackedfieldsets",
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
