//! How long an entry may wait.

use std::time::Duration;

use jiff::Timestamp;

use super::close;
use super::record::whole_seconds;
use crate::api::tracked_field::{Delivery, Entry, History};

/// Stops (`held`) or goes on with the clocks of what is Pending: time during which the object or its contact point is
/// suspended does not count. Says whether anything changed; to say the same again changes nothing.
pub fn hold(history: &mut History, held: bool, now: Timestamp) -> bool {
    let mut changed = false;
    for entry in history.iter_mut().filter(|entry| entry.is_pending()) {
        if held && entry.held_since.is_none() {
            entry.held_since = Some(whole_seconds(now));
            changed = true;
        } else if !held && let Some(since) = entry.held_since.take() {
            let seconds = u64::try_from(now.as_second() - since.0.as_second()).unwrap_or_default();
            entry.held_seconds = Some(entry.held_seconds.unwrap_or_default().saturating_add(seconds));
            changed = true;
        }
    }
    changed
}

/// When an entry is given up; never, while it is held.
fn deadline(entry: &Entry, max_age: Duration) -> Option<Timestamp> {
    if !entry.is_pending() || entry.held_since.is_some() {
        return None;
    }
    let allowed = max_age.as_secs().saturating_add(entry.held_seconds.unwrap_or_default());
    let second = entry.time.as_ref()?.0.as_second().checked_add(i64::try_from(allowed).ok()?)?;
    Timestamp::from_second(second).ok()
}

/// Gives up what has waited for `max_age` without being held, and says how many entries that were.
pub fn expire(history: &mut History, now: Timestamp, max_age: Duration) -> usize {
    let mut expired = 0;
    for entry in history.iter_mut() {
        if deadline(entry, max_age).is_some_and(|deadline| deadline <= now) {
            close(entry, Delivery::Failed, Some(format!("not delivered within {}", in_words(max_age))));
            expired += 1;
        }
    }
    expired
}

/// When [`expire`] has something to do next.
pub fn next_expiry(history: &[Entry], max_age: Duration) -> Option<Timestamp> {
    history.iter().filter_map(|entry| deadline(entry, max_age)).min()
}

fn in_words(age: Duration) -> String {
    match age.as_secs() {
        seconds if seconds % 3600 == 0 => format!("{} h", seconds / 3600),
        seconds => format!("{seconds} s"),
    }
}
