//! Progress, failures and counts.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::state::{Outcome, State};
use crate::torture::{Case, Kind, Report};

/// The finished cases, and the time that the others may take.
pub struct Progress {
    inner: Mutex<Inner>,
    /// Argument of the command that replays a failure, besides the case.
    replay: String,
}

struct Inner {
    state: State,
    began: Instant,
    done: u64,
    left: u64,
    failures: usize,
}

impl Progress {
    pub fn new(state: State, replay: String) -> Self {
        let inner = Inner {
            state,
            began: Instant::now(),
            done: 0,
            left: 0,
            failures: 0,
        };
        Self {
            inner: Mutex::new(inner),
            replay,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Announces more cases.
    pub fn expect(&self, cases: usize) {
        self.lock().left += u64::try_from(cases).unwrap();
    }

    pub fn outcome(&self, case: &Case) -> Option<Outcome> {
        self.lock().state.outcomes.get(case).copied()
    }

    /// Returns whether a case needs no other run.
    pub fn is_finished(&self, case: &Case) -> bool {
        let outcome = self.outcome(case);
        outcome.is_some_and(|outcome| outcome != Outcome::Failed)
    }

    pub fn failures(&self) -> usize {
        self.lock().failures
    }

    /// Records a result and prints it, with the command that replays a failure.
    pub fn finish(&self, case: &Case, result: &Result<Report, String>, took: Duration) {
        let outcome = match result {
            Ok(report) if report.struck > 0 => Outcome::Passed,
            Ok(_) => Outcome::Unreached,
            Err(_) => Outcome::Failed,
        };
        let mut inner = self.lock();
        if let Err(error) = inner.state.add(case.clone(), outcome, took) {
            eprintln!("the state is not saved: {error}");
        }
        inner.done += 1;
        inner.left -= 1;
        let left = inner.began.elapsed().as_secs() * inner.left / inner.done;
        let minutes = left.div_ceil(60);
        let text = match result {
            Ok(_) if outcome == Outcome::Unreached => "not reached".into(),
            Ok(Report {
                writes,
                rejected: 0,
                ..
            }) => format!("passed, {writes} writes"),
            Ok(Report {
                writes, rejected, ..
            }) => {
                format!("passed, {writes} writes, {rejected} rejected")
            }
            Err(error) => {
                inner.failures += 1;
                format!(
                    "FAILED: {error}\n  replay it: make torture CASE={case}{}",
                    self.replay
                )
            }
        };
        println!(
            "{case}: {text} ({took:.0?}; {} left, {minutes} min)",
            inner.left
        );
    }

    /// Prints a table: for each fault, how many cases reached their place and failed, and how many did not reach it.
    /// Returns the faults with which no case reached its place.
    pub fn print_counts(&self, kind: Kind, took: Duration) -> Vec<String> {
        let inner = self.lock();
        let outcomes = &inner.state.outcomes;
        println!("{kind}, {took:.0?}:");
        println!(
            "  {:22} {:>6} {:>6} {:>11}",
            "fault", "runs", "failed", "not reached"
        );
        let mut counts = BTreeMap::<_, [usize; 3]>::new();
        for (case, outcome) in outcomes.iter().filter(|(case, _)| case.kind == kind) {
            // All hidden-N share one row.
            let row = (case.place.kind(), case.fault.group());
            let rows = counts.entry(row).or_default();
            rows[0] += usize::from(*outcome != Outcome::Unreached);
            rows[1] += usize::from(*outcome == Outcome::Failed);
            rows[2] += usize::from(*outcome == Outcome::Unreached);
        }
        let mut never = Vec::new();
        for ((place, fault), [runs, failed, unreached]) in counts {
            let name = format!("{place} {fault}");
            println!("  {name:22} {runs:>6} {failed:>6} {unreached:>11}");
            if runs == 0 {
                never.push(name);
            }
        }
        never
    }
}
