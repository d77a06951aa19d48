//! Finished cases, in a file that a later run continues.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use sha2::{Digest as _, Sha256};

use crate::torture::Case;

/// Returns the digest of these files.
pub fn digest(files: &[&Path]) -> io::Result<String> {
    let mut digest = Sha256::new();
    for file in files {
        digest.update(std::fs::read(file)?);
    }
    Ok(data_encoding::HEXLOWER.encode(&digest.finalize()[..8]))
}

/// Result of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The fault struck, and every check passed.
    Passed,
    /// The workload ended before the place of the fault.
    Unreached,
    Failed,
}

/// The outcomes, by case.
pub struct State {
    file: File,
    /// Digest of the operator and of this program, with the settings of a run: another build begins anew.
    build: String,
    pub outcomes: BTreeMap<Case, Outcome>,
}

impl State {
    /// Reads the cases of this build; with `fresh`, none.
    pub fn open(path: &Path, build: String, fresh: bool) -> io::Result<Self> {
        let mut file = File::options();
        let file = file.create(true).append(true);
        let file = if fresh {
            std::fs::write(path, "")?;
            file.open(path)?
        } else {
            file.open(path)?
        };
        let text = std::fs::read_to_string(path)?;
        let outcomes = text
            .lines()
            .filter_map(|line| parse(line, &build))
            .collect();
        Ok(Self {
            file,
            build,
            outcomes,
        })
    }

    /// Appends a case.
    pub fn add(&mut self, case: Case, outcome: Outcome, took: Duration) -> io::Result<()> {
        let (name, seconds) = (name(outcome), took.as_secs());
        // The line is one write, because an interruption must not leave half of it.
        let line = format!("{} {case} {name} {seconds}s\n", self.build);
        self.file.write_all(line.as_bytes())?;
        self.outcomes.insert(case, outcome);
        Ok(())
    }
}

fn name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "passed",
        Outcome::Unreached => "unreached",
        Outcome::Failed => "failed",
    }
}

fn parse(line: &str, build: &str) -> Option<(Case, Outcome)> {
    let mut words = line.split(' ');
    let (of, case, outcome) = (words.next()?, words.next()?, words.next()?);
    let outcomes = [Outcome::Passed, Outcome::Unreached, Outcome::Failed];
    let outcome = outcomes.into_iter().find(|it| name(*it) == outcome)?;
    (of == build).then_some((case.parse().ok()?, outcome))
}
