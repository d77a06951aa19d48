//! Ages of entries, without the time during which they were suspended.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use qm_api::tracked_field::{Entry, History};
use qm_core::time::whole_seconds;

/// An instant on the wall clock and on the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Wall-clock time, which may be wrong and may jump.
    pub wall: Timestamp,
    /// Monotonic time.
    pub monotonic: Instant,
}

impl Now {
    /// Reads both clocks.
    pub fn read() -> Self {
        Self {
            wall: Timestamp::now(),
            monotonic: Instant::now(),
        }
    }
}

/// Ages of the Pending entries of one `TrackedField`. The wall clock counts only until an entry is first observed,
/// because nothing else spans a restart.
#[derive(Debug, Default)]
pub struct Ages(HashMap<String, Age>);

#[derive(Clone, Copy, Debug)]
struct Age {
    waited: Duration,
    /// Time since the entry's `suspendedSince`.
    suspended: Duration,
    /// Instant up to which both durations count.
    at: Instant,
    is_suspended: bool,
}

impl Age {
    fn of_new_entry(entry: &Entry, now: Now) -> Self {
        let since = |begin: Timestamp, end: Timestamp| {
            Duration::try_from(end.duration_since(begin)).unwrap_or_default()
        };
        let suspended_since = entry.suspended_since.as_ref().map(|since| since.0);
        let end = suspended_since.map_or(now.wall, |suspended_since| suspended_since.min(now.wall));
        let waited = entry
            .time
            .as_ref()
            .map_or(Duration::ZERO, |time| since(time.0, end));
        let suspended_before = Duration::from_secs(entry.suspended_seconds.unwrap_or_default());
        Self {
            waited: waited.saturating_sub(suspended_before),
            suspended: suspended_since.map_or(Duration::ZERO, |suspended_since| {
                since(suspended_since, now.wall)
            }),
            at: now.monotonic,
            is_suspended: suspended_since.is_some(),
        }
    }

    fn advanced_to(self, now: Instant) -> Self {
        let elapsed = now.saturating_duration_since(self.at);
        let (waited, suspended) = if self.is_suspended {
            (self.waited, self.suspended + elapsed)
        } else {
            (self.waited + elapsed, self.suspended)
        };
        Self {
            waited,
            suspended,
            at: now,
            ..self
        }
    }
}

/// Returns the age of an entry by the wall clock, without the time during which it was suspended.
pub fn waited(entry: &Entry, now: Now) -> Duration {
    Age::of_new_entry(entry, now).waited
}

impl Ages {
    /// Updates the ages of the Pending entries of `history`, and forgets all others. `suspended` applies from now on.
    pub fn update(&mut self, history: &[Entry], suspended: bool, now: Now) {
        let mut known = std::mem::take(&mut self.0);
        for entry in history.iter().filter(|entry| entry.is_pending()) {
            let Some(id) = &entry.id else { continue };
            let age = known
                .remove(id)
                .unwrap_or_else(|| Age::of_new_entry(entry, now));
            let mut age = Age {
                is_suspended: suspended,
                ..age.advanced_to(now.monotonic)
            };
            if entry.suspended_since.is_none() {
                age.suspended = Duration::ZERO;
            }
            self.0.insert(id.clone(), age);
        }
    }

    /// Returns whether no entry is Pending.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the age of an entry at `now`, zero if the entry is unknown.
    pub fn waited(&self, id: &str, now: Instant) -> Duration {
        self.0
            .get(id)
            .map_or(Duration::ZERO, |age| age.advanced_to(now).waited)
    }

    /// Returns the time since each entry's `suspendedSince`, up to the last observation.
    pub fn suspended(&self) -> BTreeMap<String, Duration> {
        self.0
            .iter()
            .filter(|(_, age)| !age.suspended.is_zero())
            .map(|(id, age)| (id.clone(), age.suspended))
            .collect()
    }
}

/// Stops (`suspended`) or resumes the clocks of Pending entries: time during which the object or its contact point is
/// suspended does not count. `suspended_for` has measured durations; other entries use the wall clock. Returns whether
/// anything changed; repeating a call changes nothing.
pub(crate) fn set_suspended(
    history: &mut History,
    suspended: bool,
    suspended_for: &BTreeMap<String, Duration>,
    now: Timestamp,
) -> bool {
    let mut changed = false;
    for entry in history.iter_mut().filter(|entry| entry.is_pending()) {
        if suspended && entry.suspended_since.is_none() {
            entry.suspended_since = Some(whole_seconds(now));
            changed = true;
        } else if !suspended && let Some(since) = entry.suspended_since.take() {
            let by_wall_clock = || {
                u64::try_from(now.as_second().saturating_sub(since.0.as_second()))
                    .unwrap_or_default()
            };
            let known = entry.id.as_ref().and_then(|id| suspended_for.get(id));
            let seconds = known.map_or_else(by_wall_clock, Duration::as_secs);
            entry.suspended_seconds = Some(
                entry
                    .suspended_seconds
                    .unwrap_or_default()
                    .saturating_add(seconds),
            );
            changed = true;
        }
    }
    changed
}

/// Returns the wall-clock time since which the oldest unsuspended Pending entry has waited, without suspended time. For
/// display only.
pub(crate) fn waiting_since(history: &[Entry]) -> Option<Timestamp> {
    let since = |entry: &Entry| {
        let suspended = i64::try_from(entry.suspended_seconds.unwrap_or_default()).ok()?;
        Timestamp::from_second(entry.time.as_ref()?.0.as_second().checked_add(suspended)?).ok()
    };
    history
        .iter()
        .filter(|entry| entry.is_pending() && entry.suspended_since.is_none())
        .filter_map(since)
        .min()
}

/// Returns the error of an entry that expired at `max_age`.
pub fn expired(max_age: Duration, last_attempt: &str) -> String {
    format!(
        "not delivered within {}; the last attempt: {last_attempt}",
        format_age(max_age)
    )
}

fn format_age(age: Duration) -> String {
    match age.as_secs() {
        seconds if seconds % 3600 == 0 => format!("{} h", seconds / 3600),
        seconds => format!("{seconds} s"),
    }
}
