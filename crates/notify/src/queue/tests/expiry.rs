//! Expiry of entries.

use super::*;
use crate::history::Now;

const DAY: Duration = Duration::from_hours(24);

impl Line {
    /// Observes a `TrackedField` with these entries of time zero, as its reconcile does first.
    pub(super) fn observe(&mut self, name: &str, entries: &[&str], held: bool, wall: Duration) {
        let mut history = field(name, entries).history().unwrap();
        let at =
            |second: u64| jiff::Timestamp::from_second(i64::try_from(second).unwrap()).unwrap();
        for entry in &mut history {
            entry.time = Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(at(0)));
        }
        let now = Now {
            wall: at(wall.as_secs()),
            monotonic: self.now,
        };
        self.lines.observe(&key(name), &history, held, now);
    }

    fn outcome(&self, name: &str) -> Vec<(String, Outcome)> {
        self.lines.outcomes(&key(name))
    }
}

fn expired(message: &str) -> Outcome {
    Outcome::Expired {
        reason: format!("not delivered within 24 h; the last attempt: {message}"),
    }
}

#[test]
fn an_old_entry_expires_only_when_an_attempt_fails() {
    let mut line = Line::open();
    line.observe("a", &["1", "2"], false, 2 * DAY);
    line.offer("a", &["1", "2"]);
    let request = line.take().unwrap();
    assert!(line.outcome("a").is_empty());
    let answer = Err(SendError {
        failure: retry("503"),
        carried: 1,
    });
    assert_eq!(
        line.lines
            .answered(&key("p"), &request, answer, line.now)
            .fields,
        [key("a")]
    );
    assert_eq!(
        line.outcome("a"),
        [("1".to_owned(), expired("503"))],
        "the request did not carry the other one"
    );
    line.record("a", &["1!", "2"]);
    line.now += PATIENCE.retry.max;
    let request = line.take().unwrap();
    assert_eq!(ids(&request), ["2"]);
    line.taken(&request, 1);
    assert_eq!(line.outcome("a"), [("2".to_owned(), Outcome::Delivered)]);
}

#[test]
fn an_attempt_that_began_before_an_entry_was_too_old_does_not_count() {
    let mut line = Line::open();
    line.observe("a", &["1"], false, Duration::ZERO);
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    line.now += DAY + Duration::from_secs(1);
    line.answer(&request, Err(retry("503")));
    assert!(line.outcome("a").is_empty());
    line.now += PATIENCE.retry.max;
    let request = line.take().unwrap();
    line.answer(&request, Err(retry("504")));
    assert_eq!(line.outcome("a"), [("1".to_owned(), expired("504"))]);
}

#[test]
fn no_request_is_no_attempt() {
    let mut line = Line::open();
    line.observe("a", &["1"], false, 2 * DAY);
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    line.answer(
        &request,
        Err(Failure::Unsent {
            message: "the leader lease is not held".into(),
        }),
    );
    assert!(line.outcome("a").is_empty());
}

#[test]
fn a_clock_that_is_ahead_for_one_reconcile_expires_nothing() {
    let mut line = Line::open();
    line.observe("a", &["1"], false, Duration::ZERO);
    line.observe("a", &["1"], false, 2 * DAY);
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    line.answer(&request, Err(retry("503")));
    assert!(line.outcome("a").is_empty());
}

#[test]
fn time_in_which_an_entry_was_held_does_not_count() {
    let mut line = Line::open();
    line.observe("a", &["1"], true, Duration::ZERO);
    line.now += 2 * DAY;
    line.observe("a", &["1"], false, 2 * DAY);
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    line.answer(&request, Err(retry("503")));
    assert!(line.outcome("a").is_empty());
}

#[test]
fn an_old_entry_that_is_refused_expires_and_the_contact_point_stops_all_the_same() {
    let mut line = Line::open();
    line.observe("a", &["1"], false, 2 * DAY);
    line.offer("a", &["1", "2"]);
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    assert!(line.refuse(&request, Refusal::Gone).point);
    assert_eq!(line.outcome("a"), [("1".to_owned(), expired("Gone"))]);
    line.record("a", &["1!", "2"]);
    assert!(line.waits());
    line.now += PATIENCE.stopped;
    // The last request carried the entry, so the test message is next.
    assert!(line.take().unwrap().is_test());
}
