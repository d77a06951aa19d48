//! `run` plays a workload once, and asks the oracle.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use futures::future::join_all;
use http::StatusCode;
use serde_json::Value;
use testbed::aws::Aws;
use testbed::proxy::{ApiRequest, Proxy, Seen, Verb};
use testbed::receiver::Receiver;
use testbed::wait::until;
use tokio::sync::{Semaphore, SemaphorePermit};

use super::case::{Case, Fault, Place, Staleness};
use super::differences::differences;
use super::readiness::Readiness;
use super::steps::{Events, Steps, with_old_lists};
use super::strike::{Strike, is_write, writes};
use super::{Kind, snapshot};
use crate::support::{Bed, Operator, Settings};

/// Log of an operator that plays one case.
const LOG: &str = "--log-level=info,quartermaster=debug,qm_=debug";

/// Flags of the operators under test, whose longest backoff is a second.
pub const FLAGS: [&str; 3] = [
    "--drift-backoff-min=100ms",
    "--drift-backoff-max=1s",
    "--slow-backoff-max=1s",
];

/// Time without a write after which a run without faults has settled. The reference is recorded once, so the time may be
/// long.
const SETTLED: Duration = Duration::from_secs(4);

/// Time without a write after which an operator with a stale view has done what it can. A slower operator may still be
/// at work when its view becomes current, which makes the case easier, not wrong.
const CALM: Duration = Duration::from_secs(1);

/// Maximum time until a state is reached although faults delay it.
const REACHED: Duration = Duration::from_mins(10);

/// Maximum number of repetitions of a write that the apiserver rejects for [`super::strike::LASTING`]: seven reconciles
/// with backoffs of 50 ms that double up to a second, as many again for changes that trigger a reconcile meanwhile, and
/// three attempts of each after a conflict.
const REPETITIONS: u64 = 42;

/// Maximum number of requests that each fault adds to twice those of a run without faults: reads before repeated writes,
/// and the lists and watches of another process.
const REQUESTS: usize = 300;

/// Options of a run.
pub struct RunOptions<'a> {
    /// Permits for cases that act. A case at rest holds none.
    pub active: &'a Semaphore,
    /// Time in which nothing may be written after a fault.
    pub rest: Duration,
    /// Selects the writes that count for a case's number.
    pub counted: fn(&ApiRequest) -> bool,
    /// The operator; `None` for the build of these tests.
    pub program: Option<PathBuf>,
    /// File that gets the operator's log if a case fails.
    pub failure_log: Option<PathBuf>,
}

/// States and counts of a run without faults.
#[derive(Debug, Default)]
pub struct Reference {
    /// The states at the checkpoints, by name.
    states: Vec<(&'static str, Value)>,
    /// Number of writes.
    pub writes: usize,
    /// Number of calls to AWS.
    pub calls: usize,
    /// Numbers of writes by verb and resource.
    pub by_resource: BTreeMap<String, usize>,
    /// Numbers of creations and deletions that took effect, by verb and resource, or by action of AWS.
    performed: BTreeMap<String, usize>,
    /// Numbers of events of the watches, by step.
    pub events: Events,
    /// The step in which each watch was opened; 0 before the workload.
    opened: BTreeMap<String, usize>,
    /// The watches whose lists may be old.
    old_lists: BTreeSet<String>,
    /// Number of requests but those of the Lease.
    requests: usize,
}

impl Reference {
    /// Returns the number of events of each watch.
    pub fn events_by_watch(&self) -> BTreeMap<&str, u64> {
        let mut events = BTreeMap::new();
        for ((watch, _), count) in &self.events {
            *events.entry(watch.as_str()).or_default() += count;
        }
        events
    }

    /// Returns the places of the watches that have events.
    pub fn watches(&self) -> Vec<String> {
        let places = self.events.keys();
        places
            .map(|(watch, step)| Place::Watch(watch.clone(), *step).to_string())
            .collect()
    }

    /// Returns every case of a watch.
    pub fn watch_cases(&self, kind: Kind) -> Vec<Case> {
        let cases = self.events.iter().flat_map(|((watch, step), events)| {
            let was_open = self.opened.get(watch).is_some_and(|opened| opened < step);
            let may_be_old = self.old_lists.contains(watch);
            let faults = Fault::of_watch(*events, was_open, may_be_old).into_iter();
            faults.map(move |fault| Case {
                kind,
                place: Place::Watch(watch.clone(), *step),
                fault,
            })
        });
        cases.collect()
    }
}

/// Result of a run that holds.
#[derive(Debug)]
pub struct Report {
    /// Number of faults whose place has come.
    pub struck: usize,
    /// Number of the operator's writes.
    pub writes: usize,
    /// Number of calls to AWS.
    pub calls: usize,
    /// Number of requests that a lasting fault rejected.
    pub rejected: u64,
    /// Numbers of creations and deletions that took effect.
    performed: BTreeMap<String, usize>,
}

enum Checkpoints<'a> {
    Record(Mutex<Vec<(&'static str, Value)>>),
    Compare(&'a Reference),
}

/// A running workload.
pub struct Scene<'a> {
    pub kind: Kind,
    pub cases: Vec<Case>,
    pub bed: Bed,
    /// The receiver of notifications.
    pub receiver: Receiver,
    /// AWS, for the kind that needs it.
    pub aws: Option<Aws>,
    /// The proxy of each replica. The first replica leads.
    proxies: Vec<Proxy>,
    /// The fault of each case.
    strikes: Vec<Strike>,
    steps: Steps,
    checkpoints: Checkpoints<'a>,
    /// `None` without the check of the first Ready.
    readiness: Option<Readiness>,
    /// Number of messages that faults outside of the cases may have repeated since the start of the run.
    further_repeats: &'a (dyn Fn() -> usize + Sync),
}

impl Scene<'_> {
    /// Returns how many messages may be repeated in this run: one for each kill, or fault of a soak with that effect.
    pub fn permitted_repeats(&self) -> usize {
        let kills = self.cases.iter().zip(&self.strikes);
        let kills =
            kills.filter(|(case, strike)| case.fault.kills_at().is_some() && strike.has_struck());
        kills.count() + (self.further_repeats)()
    }

    /// Returns how many faults have struck.
    fn struck(&self) -> usize {
        self.strikes.iter().filter(|it| it.has_struck()).count()
    }

    /// Strikes with the fault of each case. Does not return.
    async fn strike(&self, replicas: &mut [Operator]) {
        // A kill may cut the request of the next case, which then never comes, so no case waits for another one.
        let replicas = tokio::sync::Mutex::new(replicas);
        join_all(self.strikes.iter().map(|it| it.act(self, &replicas))).await;
        std::future::pending::<()>().await;
    }

    /// Waits until the faults that have struck are over.
    async fn wait_until_faults_are_over(&self) {
        for strike in &self.strikes {
            strike.wait_until_over().await;
        }
    }

    /// Ends a step of the workload: waits until the state equals that of the run without faults. In that run, waits
    /// until the operator has settled, and records the state.
    pub async fn checkpoint(&self, name: &'static str) {
        self.reaches(name).await;
        let before = self.versions().await;
        for strike in &self.strikes {
            if strike.end_step(self.steps.current()).await {
                self.reaches(name).await;
                assert_eq!(
                    self.versions().await,
                    before,
                    "an object is replaced or changed after \"{name}\""
                );
            }
        }
        self.begin_step().await;
    }

    async fn begin_step(&self) {
        if let Some(readiness) = &self.readiness {
            readiness.begin_step(self.kind, &self.bed).await;
        }
        let step = self.steps.begin_next();
        for strike in &self.strikes {
            strike.begin_step(step, self).await;
        }
    }

    async fn versions(&self) -> BTreeSet<String> {
        let (namespaces, kinds) = (self.kind.namespaces(&self.bed), self.kind.resources());
        snapshot::versions(&self.bed, &namespaces, &kinds)
            .await
            .unwrap()
    }

    async fn reaches(&self, name: &'static str) {
        match &self.checkpoints {
            Checkpoints::Record(states) => {
                let state = self.settles().await;
                let mut states = states.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some((before, expected)) = self.equal_state(name, &states) {
                    let mut found = differences(expected, &state);
                    // A change and the change back count as two, and the test asks for a reconcile.
                    let mut differ = vec![
                        ".generation: ",
                        ".observedGeneration: ",
                        ".annotations.quartermaster.dev/requested-at: ",
                    ];
                    if !name.ends_with("corrected") {
                        // An autoscaler without metrics keeps the number of Pods, and a new Deployment starts with the
                        // size of the spec.
                        differ.extend([".replicas: ", "Replicas: ", "available\""]);
                    }
                    found.retain(|line| !differ.iter().any(|it| line.contains(it)));
                    let found = found.join("\n");
                    assert!(
                        found.is_empty(),
                        "\"{name}\" differs from \"{before}\":\n{found}"
                    );
                }
                states.push((name, state));
            }
            Checkpoints::Compare(reference) => {
                let (recorded, expected) = &reference.states[self.steps.current() - 1];
                assert_eq!(*recorded, name, "the order of checkpoints");
                self.becomes(name, expected).await;
            }
        }
    }

    /// Returns the earlier state that the state at a checkpoint must equal, even without faults.
    fn equal_state<'s>(
        &self,
        name: &str,
        states: &'s [(&'static str, Value)],
    ) -> Option<&'s (&'static str, Value)> {
        let named = |wanted: &str| states.iter().find(|(name, _)| *name == wanted);
        if name.ends_with("corrected") {
            return states.last();
        }
        // The other kinds have a history.
        self.kind.reports_readiness()?;
        match name {
            "immutable copies replaced" => named("copy recreated"),
            "destination added" => named("source changed back"),
            _ if name.ends_with("recreated") => states.last(),
            _ if name.ends_with("changed back") => named("created"),
            _ => None,
        }
    }

    /// Waits until the operator has settled; returns the state.
    async fn settles(&self) -> Value {
        let mut last = Value::Null;
        let settled = until("a settled state", REACHED, async || {
            self.rests_for(SETTLED).await;
            last = self.state().await?;
            Ok(self.kind.has_settled(&last).then(|| last.clone()))
        })
        .await;
        settled.unwrap_or_else(|error| panic!("{error:#}: {last:#}"))
    }

    /// Asserts that the state still equals that of the last checkpoint.
    async fn still_equals_checkpoint(&self) {
        if let Checkpoints::Compare(reference) = &self.checkpoints {
            let (name, expected) = &reference.states[self.steps.current() - 2];
            let state = self.state().await.unwrap();
            let found = differences(expected, &state);
            assert!(
                found.is_empty(),
                "at rest, the state differs from \"{name}\":\n{}",
                found.join("\n")
            );
        }
    }

    async fn becomes(&self, name: &str, expected: &Value) {
        let mut last = Vec::new();
        let reached = until(format!("the state \"{name}\""), REACHED, async || {
            last = differences(expected, &self.state().await?);
            Ok(last.is_empty().then_some(()))
        })
        .await;
        if let Err(error) = reached {
            panic!("{error:#}; the state differs:\n{}", last.join("\n"));
        }
    }

    async fn state(&self) -> anyhow::Result<Value> {
        let namespaces = self.kind.namespaces(&self.bed);
        let mut state = snapshot::take(&self.bed, &namespaces, &self.kind.resources()).await?;
        state["outside"] = self.kind.outside(self).await?;
        Ok(state)
    }

    /// Waits until an operator with a stale view has done what it can.
    pub async fn calms_down(&self) {
        self.rests_for(CALM).await;
    }

    /// Waits until the operator has written nothing for this time.
    async fn rests_for(&self, time: Duration) {
        if let Err(error) = rests_for(time, || self.last_write()).await {
            let requests = self.requests();
            let last = requests.iter().rev().filter(|it| is_write(&it.request));
            let last: Vec<_> = last.take(5).map(|it| describe(&it.request)).collect();
            panic!("{error:#}; the last writes are {last:?}");
        }
    }

    /// Returns the requests of all replicas.
    fn requests(&self) -> Vec<Arc<Seen>> {
        self.proxies.iter().flat_map(Proxy::requests).collect()
    }

    fn requests_but_lease(&self) -> usize {
        let requests = self.requests();
        let counted = requests.iter().filter(|it| it.request.resource != "leases");
        counted.count()
    }

    fn last_write(&self) -> Option<Instant> {
        let written = self.proxies.iter().filter_map(last_write).max();
        let calls = self.aws.iter().flat_map(Aws::calls);
        let called = calls.filter(|call| !call.is_read()).map(|call| call.at);
        written.into_iter().chain(called).max()
    }

    /// Asserts that the operator wrote to no object that is not the workload's, and not without limit.
    fn assert_writes(&self, reference: Option<&Reference>) {
        let foreign: Vec<_> = self
            .requests()
            .iter()
            .map(|it| &it.request)
            .filter(|it| is_write(it) && !self.owns(it))
            .map(describe)
            .collect();
        assert!(foreign.is_empty(), "writes to foreign objects: {foreign:?}");
        let rejected = self.rejected();
        assert!(
            rejected <= REPETITIONS,
            "{rejected} requests while all were rejected"
        );
        if let Some(reference) = reference {
            let requests = self.requests_but_lease();
            let limit = 2 * reference.requests + REQUESTS * self.struck();
            assert!(
                requests <= limit,
                "{requests} requests; {} without faults",
                reference.requests
            );
            let writes = self.writes();
            let limit = 2 * reference.writes + 20;
            assert!(
                writes <= limit,
                "{writes} writes; {} without faults",
                reference.writes
            );
        }
        if let Some(reference) = reference {
            let performed = self.performed();
            let more = performed.iter().filter(|(write, count)| {
                let without = reference.performed.get(*write).copied().unwrap_or_default();
                **count > without + self.performed_because_of_faults(write)
            });
            let more: Vec<_> = more.collect();
            assert!(
                more.is_empty(),
                "more creations or deletions than without faults: {more:?} of {:?}",
                reference.performed
            );
        }
    }

    /// Returns how many of these writes the faults may add. A performed deletion whose answer the operator does not get
    /// is repeated, while the object still exists. A set creates a field for a target that only an old list shows, and
    /// deletes it later.
    fn performed_because_of_faults(&self, write: &str) -> usize {
        let is_old = self.cases.iter().any(|case| {
            matches!(
                case.fault,
                Fault::Stale(Staleness::OldList) | Fault::StaleStandby(Staleness::OldList)
            )
        });
        let is_set = self.kind == Kind::TrackedFieldSet && write.ends_with(" trackedfields");
        let unanswered = self
            .cases
            .iter()
            .zip(&self.strikes)
            .filter(|(case, strike)| {
                case.fault.performs_without_answer() && strike.request().as_deref() == Some(write)
            });
        let repeated = if write.starts_with("Delete") {
            unanswered.count()
        } else {
            0
        };
        usize::from(is_old && is_set) + repeated
    }

    /// Returns the number of requests that lasting faults rejected.
    fn rejected(&self) -> u64 {
        self.strikes.iter().map(Strike::rejected).sum()
    }

    fn writes(&self) -> usize {
        self.proxies.iter().map(|it| it.count(&writes())).sum()
    }

    /// Returns the numbers of creations and deletions that took effect, by verb and resource, or by action of AWS.
    fn performed(&self) -> BTreeMap<String, usize> {
        let mut performed = BTreeMap::new();
        let mut count = |write| *performed.entry(write).or_default() += 1;
        for seen in self.requests() {
            let request = &seen.request;
            let counts = is_write(request)
                && request.resource != "events"
                && !request.query.contains("dryRun");
            match seen.answer() {
                _ if !counts => {}
                // An apply may create, too.
                Some(StatusCode::CREATED) => count(format!("Create {}", request.resource)),
                Some(status) if status.is_success() && request.verb == Verb::Delete => {
                    count(format!("Delete {}", request.resource));
                }
                _ => {}
            }
        }
        let calls = self.aws.iter().flat_map(Aws::calls);
        for call in calls.filter(|call| call.done && call.code().is_none()) {
            if call.action.starts_with("Create") || call.action.starts_with("Delete") {
                count(call.action.clone());
            }
        }
        performed
    }

    fn owns(&self, request: &ApiRequest) -> bool {
        let namespaces = self.kind.namespaces(&self.bed);
        let is_inside = request
            .namespace
            .as_ref()
            .is_some_and(|it| namespaces.contains(it));
        is_inside && (request.resource == "events" || self.kind.owns(request))
    }

    /// Asserts that each object with an owner of our kinds has that owner.
    async fn assert_no_orphan(&self) {
        let namespaces = self.kind.namespaces(&self.bed);
        let orphans = until("no orphan", REACHED, async || {
            let orphans = snapshot::orphans(&self.bed, &namespaces, &self.kind.resources()).await?;
            anyhow::ensure!(orphans.is_empty(), "orphans: {orphans:?}");
            Ok(Some(()))
        });
        orphans.await.unwrap();
    }
}

fn describe(request: &ApiRequest) -> String {
    let ApiRequest {
        verb,
        resource,
        subresource,
        namespace,
        name,
        ..
    } = request;
    format!(
        "{verb:?} {resource}/{subresource} {}/{}",
        namespace.as_deref().unwrap_or_default(),
        name.as_deref().unwrap_or_default()
    )
}

/// Runs a workload without faults.
pub async fn observe(kind: Kind, options: &RunOptions<'_>) -> Result<Reference, String> {
    let states = Checkpoints::Record(Mutex::default());
    let (scene, report) = play(kind, Vec::new(), states, options).await?;
    let checked = scene.readiness.as_ref().map_or(0, Readiness::checked);
    if kind.reports_readiness().is_some() && checked < 3 {
        return Err(format!("{checked} statuses say Ready for a new spec"));
    }
    let mut by_resource = BTreeMap::new();
    let proxy = &scene.proxies[0];
    for ((verb, resource), count) in proxy.counts() {
        if verb.is_write() {
            by_resource.insert(format!("{verb:?} {resource}"), count);
        }
    }
    Ok(Reference {
        by_resource,
        performed: report.performed,
        events: scene.steps.events(),
        opened: scene.steps.opened(),
        old_lists: with_old_lists(&scene.bed, proxy),
        requests: scene.requests_but_lease(),
        states: recorded(scene.checkpoints),
        writes: report.writes,
        calls: report.calls,
    })
}

/// Plays the workload of a kind once, with the faults of these cases, which are in the order of their places. The result
/// is an error if the oracle finds a fault of the operator.
pub async fn run(
    kind: Kind,
    cases: Vec<Case>,
    reference: &Reference,
    options: &RunOptions<'_>,
) -> Result<Report, String> {
    let compare = Checkpoints::Compare(reference);
    let (scene, report) = play(kind, cases, compare, options).await?;
    drop(scene);
    Ok(report)
}

/// Plays the workload of a kind once. Others start the operators behind these proxies, and disturb them. `receiver` gets
/// the notifications of the workload. `repeats` returns how many messages the faults may have repeated since the start of
/// this run.
pub async fn run_against(
    kind: Kind,
    receiver: &Receiver,
    proxies: &[Proxy],
    aws: &Aws,
    repeats: &(dyn Fn() -> usize + Sync),
    reference: &Reference,
) -> Result<(), String> {
    let scene = Scene {
        kind,
        cases: Vec::new(),
        bed: Bed::shared(&format!("soak-{}", kind.lowercase())).await,
        receiver: receiver.clone(),
        aws: kind.calls_aws().then(|| aws.clone()),
        proxies: proxies.to_vec(),
        strikes: Vec::new(),
        steps: Steps::default(),
        checkpoints: Checkpoints::Compare(reference),
        // A random fault may damage a child at any time.
        readiness: None,
        further_repeats: repeats,
    };
    let played = async {
        kind.prepare(&scene).await;
        scene.begin_step().await;
        kind.change(&scene).await;
        kind.delete_all(&scene).await;
        scene.checkpoint("deleted").await;
        scene.assert_no_orphan().await;
        kind.assert_outside(&scene);
    };
    let played = catch_panic(played.map(Ok)).await;
    let namespace = &scene.bed.namespace;
    let played = played.map_err(|error| format!("{namespace}: {error}"));
    kind.clean(&scene).await;
    played
}

fn recorded(checkpoints: Checkpoints<'_>) -> Vec<(&'static str, Value)> {
    let Checkpoints::Record(states) = checkpoints else {
        unreachable!("the run recorded");
    };
    states.into_inner().unwrap_or_else(PoisonError::into_inner)
}

async fn play<'a>(
    kind: Kind,
    cases: Vec<Case>,
    checkpoints: Checkpoints<'a>,
    options: &RunOptions<'_>,
) -> Result<(Scene<'a>, Report), String> {
    let mut permit = Some(options.active.acquire().await.unwrap());
    let bed = Bed::shared(&format!("torture-{}", kind.lowercase())).await;
    let fails_over = cases
        .iter()
        .any(|case| matches!(case.fault, Fault::StaleStandby(_)));
    let (mut proxies, mut files) = (Vec::new(), Vec::new());
    for _ in 0..=usize::from(fails_over) {
        let (proxy, file) = bed.through_proxy().await;
        proxies.push(proxy);
        files.push(file);
    }
    let receiver = Receiver::start().unwrap();
    let aws = if kind.calls_aws() {
        Some(super::workloads::lease_aws().await)
    } else {
        None
    };
    let readiness = Readiness::default();
    // Before the faults, which may cut the connection.
    for proxy in &proxies {
        readiness.check(kind, &bed, proxy, aws.as_ref());
    }
    let counted = options.counted;
    let prepare = |case| Strike::prepare(case, counted, &bed, &proxies, aws.as_ref());
    let strikes = cases.iter().map(prepare).collect();
    let scene = Scene {
        kind,
        cases,
        bed,
        receiver,
        aws,
        proxies,
        strikes,
        steps: Steps::default(),
        checkpoints,
        readiness: Some(readiness),
        further_repeats: &|| 0,
    };
    if let Checkpoints::Record(_) = &scene.checkpoints {
        scene.steps.observe(&scene.bed, &scene.proxies[0]);
    }
    catch_panic(kind.prepare(&scene).map(Ok)).await?;
    let mut settings = FLAGS
        .into_iter()
        .chain([LOG])
        .fold(kind.settings(&scene), Settings::flag);
    settings.program.clone_from(&options.program);
    if fails_over {
        settings = settings.flag("--leader-elect");
    }
    let mut replicas = Vec::new();
    for file in files {
        let settings = settings.clone().kubeconfig(file);
        let replica = Operator::start(&scene.bed, settings).await;
        if fails_over && replicas.is_empty() {
            replica.leads().await;
        }
        replicas.push(replica);
    }
    let played = {
        let both = async {
            tokio::select! {
                () = play_and_assert(&scene, options, &mut permit) => {}
                () = scene.strike(&mut replicas) => unreachable!("does not return"),
            }
        };
        catch_panic(both.map(Ok)).await
    };
    // A failover kills the leader.
    let killed = usize::from(fails_over && scene.struck() > 0);
    let (killed, living) = replicas.split_at_mut(killed);
    let played = played.and_then(|()| living.iter_mut().try_for_each(is_sound));
    let played = played.and_then(|()| killed.iter().try_for_each(has_no_panic));
    if let (Err(_), Some(file)) = (&played, &options.failure_log) {
        let logs: String = replicas.iter().map(Operator::logs).collect();
        let _ = std::fs::write(file, logs);
    }
    // The hooks hold the proxies.
    scene.proxies.iter().for_each(Proxy::behave);
    drop(replicas);
    drop(permit);
    let report = Report {
        struck: scene.struck(),
        writes: scene.writes(),
        calls: scene.aws.iter().map(|aws| aws.calls().len()).sum(),
        rejected: scene.rejected(),
        performed: scene.performed(),
    };
    kind.clean(&scene).await;
    if let (Some(aws), Ok(())) = (&scene.aws, &played) {
        super::workloads::release_aws(aws.clone());
    }
    played.map(|()| (scene, report))
}

/// Plays the workload and asserts what must hold. The operator rests while its objects exist, unless the fault strikes
/// at their end.
async fn play_and_assert<'p>(
    scene: &Scene<'_>,
    options: &'p RunOptions<'_>,
    permit: &mut Option<SemaphorePermit<'p>>,
) {
    let rest = async |permit: &mut Option<SemaphorePermit<'p>>| {
        scene.wait_until_faults_are_over().await;
        permit.take();
        scene.rests_for(options.rest).await;
        *permit = Some(options.active.acquire().await.unwrap());
        scene.still_equals_checkpoint().await;
    };
    let initial = match scene.checkpoints {
        Checkpoints::Record(_) => Some(scene.settles().await),
        Checkpoints::Compare(_) => None,
    };
    scene.begin_step().await;
    scene.kind.change(scene).await;
    let struck = scene.struck();
    if struck > 0 {
        rest(permit).await;
    }
    scene.kind.delete_all(scene).await;
    scene.checkpoint("deleted").await;
    if let Some(mut initial) = initial {
        let mut left = scene.state().await.unwrap();
        if !scene.kind.calls_aws() {
            // The messages of the workload.
            initial["outside"].take();
            left["outside"].take();
        }
        let found = differences(&initial, &left).join("\n");
        assert!(found.is_empty(), "the operator leaves something:\n{found}");
    }
    if scene.struck() > struck {
        rest(permit).await;
    }
    scene.assert_no_orphan().await;
    let reference = match &scene.checkpoints {
        Checkpoints::Compare(reference) => Some(*reference),
        Checkpoints::Record(_) => None,
    };
    scene.assert_writes(reference);
    if let Some(readiness) = &scene.readiness {
        readiness.assert_true();
    }
    scene.kind.assert_outside(scene);
}

/// Waits until the last write of an operator is this long ago.
pub async fn rests_for(
    time: Duration,
    last_write: impl Fn() -> Option<Instant>,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let what = format!("no write for {time:?}");
    until(what, REACHED + time, async || {
        let last = last_write().unwrap_or(began).max(began);
        Ok((last.elapsed() >= time).then_some(()))
    })
    .await
}

/// Returns the time of the last write of the operator behind a proxy.
pub fn last_write(proxy: &Proxy) -> Option<Instant> {
    let requests = proxy.requests();
    let writes = requests.iter().filter(|it| is_write(&it.request));
    writes.map(|it| it.at).max()
}

/// Returns an error if the operator ended by itself or caught a panic.
pub fn is_sound(operator: &mut Operator) -> Result<(), String> {
    if let Some(status) = operator.child().ended().unwrap() {
        return Err(format!("the operator ended: {status}"));
    }
    has_no_panic(operator)
}

fn has_no_panic(operator: &Operator) -> Result<(), String> {
    let logs = operator.logs();
    // The runtime catches panics, and continues.
    let panicked = logs.lines().find(|line| line.contains("panicked"));
    panicked.map_or(Ok(()), |line| Err(format!("the operator panicked: {line}")))
}

thread_local! {
    static LAST_PANIC: std::cell::RefCell<String> = const { std::cell::RefCell::new(String::new()) };
}

/// Runs a future, and returns the message of its panic as an error.
pub async fn catch_panic<T>(future: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let caught = AssertUnwindSafe(future).catch_unwind().await;
    caught.unwrap_or_else(|_| Err(last_panic()))
}

/// Returns the message of the panic that this thread caught last.
fn last_panic() -> String {
    let text = LAST_PANIC.with_borrow_mut(std::mem::take);
    if text.is_empty() {
        "a panic, see above".into()
    } else {
        text
    }
}

/// Keeps the messages of panics for the reports, instead of printing them among the progress. The main thread has no
/// report.
pub fn keep_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let text = format!("{panic}");
        if std::thread::current().name() == Some("main") {
            eprintln!("{text}");
        }
        LAST_PANIC.with_borrow_mut(|last| *last = text);
    }));
}
