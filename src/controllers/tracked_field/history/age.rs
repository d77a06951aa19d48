//! How long an entry has waited, without the time during which it was held back.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::record::whole_seconds;
use crate::api::tracked_field::{Entry, History};

/// One instant, by the clock on the wall and by one that nobody sets.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// By the clock on the wall, which may be wrong, and may be set.
    pub wall: Timestamp,
    /// By the clock that only goes forward.
    pub monotonic: Instant,
}

impl Now {
    /// This instant.
    pub fn read() -> Self {
        Self { wall: Timestamp::now(), monotonic: Instant::now() }
    }
}

/// How long the Pending entries of one `TrackedField` have waited. The wall clock counts only up to the first look at an
/// entry, because nothing else spans a restart.
#[derive(Debug, Default)]
pub struct Ages(HashMap<String, Age>);

#[derive(Clone, Copy, Debug)]
struct Age {
    waited: Duration,
    /// Since its `heldSince`.
    held: Duration,
    /// Up to when the two are counted.
    at: Instant,
    is_held: bool,
}

impl Age {
    fn of_first_look(entry: &Entry, now: Now) -> Self {
        let since =
            |begin: Timestamp, end: Timestamp| Duration::try_from(end.duration_since(begin)).unwrap_or_default();
        let held_since = entry.held_since.as_ref().map(|since| since.0);
        let end = held_since.map_or(now.wall, |held_since| held_since.min(now.wall));
        let waited = entry.time.as_ref().map_or(Duration::ZERO, |time| since(time.0, end));
        let held_before = Duration::from_secs(entry.held_seconds.unwrap_or_default());
        Self {
            waited: waited.saturating_sub(held_before),
            held: held_since.map_or(Duration::ZERO, |held_since| since(held_since, now.wall)),
            at: now.monotonic,
            is_held: held_since.is_some(),
        }
    }

    fn counted_up_to(self, now: Instant) -> Self {
        let passed = now.saturating_duration_since(self.at);
        let (waited, held) =
            if self.is_held { (self.waited, self.held + passed) } else { (self.waited + passed, self.held) };
        Self { waited, held, at: now, ..self }
    }
}

impl Ages {
    /// Goes on counting for the Pending entries of `history`, and forgets all others. Whether the entries are held back
    /// counts from here on.
    pub fn observe(&mut self, history: &[Entry], held: bool, now: Now) {
        let mut known = std::mem::take(&mut self.0);
        for entry in history.iter().filter(|entry| entry.is_pending()) {
            let Some(id) = &entry.id else { continue };
            let age = known.remove(id).unwrap_or_else(|| Age::of_first_look(entry, now));
            let mut age = Age { is_held: held, ..age.counted_up_to(now.monotonic) };
            if entry.held_since.is_none() {
                age.held = Duration::ZERO;
            }
            self.0.insert(id.clone(), age);
        }
    }

    /// No entry is Pending.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How long an entry has waited at `now`; no time at all if it is not known.
    pub fn waited(&self, id: &str, now: Instant) -> Duration {
        self.0.get(id).map_or(Duration::ZERO, |age| age.counted_up_to(now).waited)
    }

    /// How long each entry has been held back since its `heldSince`, at the last look.
    pub fn held(&self) -> BTreeMap<String, Duration> {
        self.0.iter().filter(|(_, age)| !age.held.is_zero()).map(|(id, age)| (id.clone(), age.held)).collect()
    }
}

/// Stops (`held`) or goes on with the clocks of what is Pending: time during which the object or its contact point is
/// suspended does not count. `held_for` says how long entries were held; for others the wall clock does. Says whether
/// anything changed; to say the same again changes nothing.
pub fn hold(history: &mut History, held: bool, held_for: &BTreeMap<String, Duration>, now: Timestamp) -> bool {
    let mut changed = false;
    for entry in history.iter_mut().filter(|entry| entry.is_pending()) {
        if held && entry.held_since.is_none() {
            entry.held_since = Some(whole_seconds(now));
            changed = true;
        } else if !held && let Some(since) = entry.held_since.take() {
            let by_wall_clock =
                || u64::try_from(now.as_second().saturating_sub(since.0.as_second())).unwrap_or_default();
            let known = entry.id.as_ref().and_then(|id| held_for.get(id));
            let seconds = known.map_or_else(by_wall_clock, Duration::as_secs);
            entry.held_seconds = Some(entry.held_seconds.unwrap_or_default().saturating_add(seconds));
            changed = true;
        }
    }
    changed
}

/// Since when the oldest Pending entry waits that is not held back, time in which it was held left out. For people: by the
/// clock on the wall.
pub fn waiting_since(history: &[Entry]) -> Option<Timestamp> {
    let since = |entry: &Entry| {
        let held = i64::try_from(entry.held_seconds.unwrap_or_default()).ok()?;
        Timestamp::from_second(entry.time.as_ref()?.0.as_second().checked_add(held)?).ok()
    };
    history.iter().filter(|entry| entry.is_pending() && entry.held_since.is_none()).filter_map(since).min()
}

/// Why an entry failed that became older than `max_age`.
pub fn expired(max_age: Duration, last_attempt: &str) -> String {
    format!("not delivered within {}; the last attempt: {last_attempt}", in_words(max_age))
}

fn in_words(age: Duration) -> String {
    match age.as_secs() {
        seconds if seconds % 3600 == 0 => format!("{} h", seconds / 3600),
        seconds => format!("{seconds} s"),
    }
}
