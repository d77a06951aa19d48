//! Every fault at every write, call of AWS and watch of the operator, for every kind: `make torture`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// As in tests/it.
#![allow(
    clippy::too_many_lines,
    clippy::default_trait_access,
    clippy::wrong_self_convention
)]

#[path = "../it/support/mod.rs"]
mod support;
#[path = "../it/torture/mod.rs"]
mod torture;

mod outside;
mod progress;
mod soak;
mod state;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum as _};
use testbed::process::Folder;
use tokio::sync::Semaphore;

use self::progress::Progress;
use self::soak::{SoakFault, SoakOptions};
use self::state::{Outcome, State};
use self::torture::{
    Case, Fault, Kind, Place, PlaceKind, Reference, RunOptions, catch_panic, keep_panics, observe,
    run,
};

/// Number of running cases for each permit. A case at rest holds none.
const EXISTING: usize = 5;

/// Seconds after a fault in which nothing may be written, unless --rest says otherwise.
const REST: u64 = 30;

/// The operator that cargo builds.
const PROGRAM: &str = env!("CARGO_BIN_EXE_quartermaster");

/// Kills the operator at each of its writes and calls of AWS, loses the answer of each, and rejects each; makes each of
/// its watches stale in each step; compares the states with those of a run without faults.
#[derive(Parser)]
#[command(name = "torture")]
struct Arguments {
    /// Replay this case, such as app_service/write-7/lost-answer; repeatable
    #[arg(long = "case", value_name = "CASE", conflicts_with = "soak")]
    cases: Vec<Case>,
    /// Run the cases of this kind only, such as `app_service`; repeatable
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<Kind>,
    /// Run the cases at these places only: write, call or watch; repeatable
    #[arg(long = "at", value_name = "PLACE", conflicts_with_all = ["soak", "cases"])]
    places: Vec<PlaceKind>,
    /// Run the cases with this fault only, such as kill-applied or 403-lasting; repeatable
    #[arg(long = "fault", value_name = "FAULT", value_parser = Fault::parse_name, conflicts_with_all = ["soak", "cases"])]
    faults: Vec<String>,
    /// Number of cases that act side by side. With 14, kube-controller-manager retries Deployments minutes late
    #[arg(long, value_name = "NUMBER", default_value_t = 6, value_parser = clap::value_parser!(u16).range(1..))]
    side_by_side: u16,
    /// Seconds after a fault in which nothing may be written
    #[arg(long, value_name = "SECONDS", default_value_t = REST)]
    rest: u64,
    /// Instead of the cases, play all workloads again and again for this many seconds, against two replicas, with random faults
    #[arg(long, value_name = "SECONDS")]
    soak: Option<u64>,
    /// Seed of the random faults of --soak
    #[arg(long, value_name = "NUMBER", requires = "soak")]
    seed: Option<u64>,
    /// Inject only this fault in a soak; repeatable. Without it, a soak has all but move-clock and upgrade
    #[arg(long = "soak-fault", value_name = "FAULT", requires = "soak")]
    soak_faults: Vec<SoakFault>,
    /// Another build of the operator, for --soak-fault upgrade
    #[arg(
        long,
        value_name = "FILE",
        requires = "soak",
        required_if_eq("soak_faults", "upgrade")
    )]
    other_program: Option<PathBuf>,
    /// Operator to strike instead of the one that cargo builds
    #[arg(long, value_name = "FILE", default_value = PROGRAM)]
    program: PathBuf,
    /// Forget the cases that an earlier run finished
    #[arg(long)]
    fresh: bool,
}

/// State that the threads share.
struct Campaign {
    rest: Duration,
    /// Names of the faults to play; empty for all.
    faults: Vec<String>,
    side_by_side: usize,
    active: Semaphore,
    progress: Progress,
    program: PathBuf,
    failed: PathBuf,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/torture");
    let failed = folder.join("failed");
    std::fs::create_dir_all(&failed).unwrap();
    keep_panics();
    let replays = !arguments.cases.is_empty();
    let harness = std::env::current_exe().unwrap();
    let build = state::digest(&[&arguments.program, &harness]).unwrap();
    let build = format!("{build}-{}s", arguments.rest);
    // A copy, because a campaign lasts longer than cargo leaves the program as it is.
    let program = Folder::new().unwrap();
    let copied = |file: &Path, name: &str| {
        let copy = program.path().join(name);
        std::fs::copy(file, &copy).unwrap();
        copy
    };
    let copy = copied(&arguments.program, "quartermaster");
    let other_program = arguments.other_program.as_deref();
    let other_program = other_program.map(|file| copied(file, "other"));
    let state = State::open(&folder.join("state"), build, arguments.fresh).unwrap();
    let campaign = Campaign {
        rest: Duration::from_secs(arguments.rest),
        faults: arguments.faults.clone(),
        side_by_side: arguments.side_by_side.into(),
        active: Semaphore::new(arguments.side_by_side.into()),
        progress: Progress::new(state, arguments.replay(Vec::new())),
        program: copy,
        failed,
    };
    let kinds: Vec<_> = Kind::value_variants()
        .iter()
        .copied()
        .filter(|kind| {
            if replays {
                arguments.cases.iter().any(|case| case.kind == *kind)
            } else {
                arguments.kinds.is_empty() || arguments.kinds.contains(kind)
            }
        })
        .collect();
    let (mut references, mut problems, mut selected) = (Vec::new(), Vec::new(), 0);
    for kind in kinds {
        let began = Instant::now();
        let reference = match campaign.observe(kind) {
            Ok(reference) => reference,
            Err(error) => {
                eprintln!("{kind}: the run without faults fails: {error}");
                eprintln!(
                    "the operator's log: {}",
                    campaign.log_of_reference(kind).display()
                );
                return ExitCode::FAILURE;
            }
        };
        if arguments.soak.is_some() {
            references.push((kind, reference));
            continue;
        }
        println!(
            "{kind}: {} writes and {} calls to AWS without faults, in {:.0?}",
            reference.writes,
            reference.calls,
            began.elapsed()
        );
        for (request, count) in &reference.by_resource {
            println!("  {count:3} {request}");
        }
        for (watch, events) in reference.events_by_watch() {
            println!("  {events:3} events of {watch}");
        }
        if replays {
            let cases = arguments.cases.iter().filter(|case| case.kind == kind);
            let cases: Vec<_> = cases.cloned().collect();
            campaign.play(cases.clone(), &reference, true);
            let is_unreached =
                |case: &&Case| campaign.progress.outcome(case) == Some(Outcome::Unreached);
            let Reference { writes, calls, .. } = reference;
            let watches = reference.watches().join(", ");
            problems.extend(cases.iter().filter(is_unreached).map(|case| {
                format!(
                    "{case} is not reached; without faults, there are {writes} writes, {calls} calls of AWS, \
                     and these watches with events, each with the number of a step: {watches}"
                )
            }));
        } else {
            let places = &arguments.places;
            let is_wanted = |place| places.is_empty() || places.contains(&place);
            selected += campaign.play_all(kind, &reference, is_wanted);
            let never = campaign.progress.print_counts(kind, began.elapsed());
            problems.extend(never.into_iter().map(|fault| {
                format!("{kind}: no case with the fault \"{fault}\" reached its place")
            }));
        }
    }
    if let Some(seconds) = arguments.soak {
        let seed = arguments.seed.unwrap_or_else(rand::random);
        let mut flags = vec![format!("--soak {seconds}"), format!("--seed {seed}")];
        let names = arguments.soak_faults.iter().map(|it| it.name());
        flags.extend(names.map(|name| format!("--soak-fault {name}")));
        let other = arguments.other_program.iter();
        flags.extend(other.map(|file| format!("--other-program {}", file.display())));
        println!("repeat the faults: make torture{}", arguments.replay(flags));
        let options = SoakOptions {
            time: Duration::from_secs(seconds),
            seed,
            program: campaign.program.clone(),
            other_program,
            faults: SoakFault::or_default(arguments.soak_faults),
            folder,
        };
        return match soak::run(&options, &references) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        };
    }
    if !replays && selected == 0 {
        problems.push("no case matches --kind, --at and --fault".into());
    }
    for problem in &problems {
        eprintln!("{problem}");
    }
    if campaign.progress.failures() > 0 || !problems.is_empty() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

impl Arguments {
    /// Returns the argument of `make torture` that sets these flags and those that a replay needs, too.
    fn replay(&self, mut flags: Vec<String>) -> String {
        if self.program != Path::new(PROGRAM) {
            flags.push(format!("--program {}", self.program.display()));
        }
        if self.rest != REST {
            flags.push(format!("--rest {}", self.rest));
        }
        match flags[..] {
            [] => String::new(),
            _ => format!(" TORTURE=\"{}\"", flags.join(" ")),
        }
    }
}

impl Campaign {
    fn is_selected(&self, fault: Fault) -> bool {
        let names = [fault.to_string(), fault.group()];
        self.faults.is_empty() || names.iter().any(|name| self.faults.contains(name))
    }

    /// Returns the options of a run whose operator leaves its log in this file if the run fails.
    fn options(&self, failure_log: PathBuf) -> RunOptions<'_> {
        RunOptions {
            active: &self.active,
            rest: self.rest,
            counted: |_| true,
            program: Some(self.program.clone()),
            failure_log: Some(failure_log),
        }
    }

    fn log_of(&self, case: &Case) -> PathBuf {
        let name = case.to_string().replace('/', "_");
        self.failed.join(format!("{name}.log"))
    }

    fn log_of_reference(&self, kind: Kind) -> PathBuf {
        self.failed.join(format!("{kind}_reference.log"))
    }

    fn observe(&self, kind: Kind) -> Result<Reference, String> {
        let options = self.options(self.log_of_reference(kind));
        block_on(catch_panic(observe(kind, &options)))
    }

    /// Plays every fault at every place. A run with faults may have more requests than the one without, so each fault
    /// at requests continues until a request does not come. Returns the number of cases that the arguments select.
    fn play_all(
        &self,
        kind: Kind,
        reference: &Reference,
        is_wanted: impl Fn(PlaceKind) -> bool,
    ) -> usize {
        type NewPlace = fn(u64) -> Place;
        let selected = |mut faults: Vec<Fault>| {
            faults.retain(|fault| self.is_selected(*fault));
            faults
        };
        let requests: [(PlaceKind, NewPlace, usize, Vec<Fault>); 2] = [
            (
                PlaceKind::Write,
                Place::Write,
                reference.writes,
                selected(Fault::at_writes()),
            ),
            (
                PlaceKind::Call,
                Place::Call,
                reference.calls,
                selected(Fault::at_calls()),
            ),
        ];
        let requests = requests
            .into_iter()
            .filter(|(place, _, count, _)| is_wanted(*place) && *count > 0);
        let requests: Vec<_> = requests.collect();
        let case = |place, fault: &Fault| Case {
            kind,
            place,
            fault: *fault,
        };
        let mut cases = Vec::new();
        for (_, place, count, faults) in &requests {
            for number in 1..=u64::try_from(*count).unwrap() {
                cases.extend(faults.iter().map(|it| case(place(number), it)));
            }
        }
        if is_wanted(PlaceKind::Watch) {
            let all = reference.watch_cases(kind).into_iter();
            cases.extend(all.filter(|case| self.is_selected(case.fault)));
        }
        let count = cases.len();
        self.play(cases, reference, false);
        for (_, place, count, mut faults) in requests {
            let mut number = u64::try_from(count).unwrap();
            while !faults.is_empty() {
                number += 1;
                let more = faults.iter().map(|it| case(place(number), it));
                self.play(more.collect(), reference, false);
                faults.retain(|fault| {
                    let outcome = self.progress.outcome(&case(place(number), fault));
                    outcome == Some(Outcome::Passed)
                });
            }
        }
        count
    }

    /// Plays these cases side by side, without those that an earlier run finished, except `again`.
    fn play(&self, mut cases: Vec<Case>, reference: &Reference, again: bool) {
        if !again {
            cases.retain(|case| !self.progress.is_finished(case));
        }
        self.progress.expect(cases.len());
        let queue = Arc::new(Mutex::new(VecDeque::from(cases)));
        thread::scope(|scope| {
            for _ in 0..self.side_by_side * EXISTING {
                let queue = Arc::clone(&queue);
                scope.spawn(move || {
                    let next = || {
                        queue
                            .lock()
                            .unwrap_or_else(PoisonError::into_inner)
                            .pop_front()
                    };
                    while let Some(case) = next() {
                        let began = Instant::now();
                        let log = self.log_of(&case);
                        // An earlier run of the case may have left a log.
                        let _ = std::fs::remove_file(&log);
                        let options = self.options(log);
                        let run = run(case.kind, vec![case.clone()], reference, &options);
                        let result = block_on(catch_panic(run));
                        self.progress.finish(&case, &result, began.elapsed());
                    }
                });
            }
        });
    }
}

/// Runs a future on a runtime of its own, as each test does.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}
