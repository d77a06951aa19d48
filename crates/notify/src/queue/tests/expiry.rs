//! Expiry of entries.

use proptest::prelude::*;

use super::*;
use crate::history::Now;

const DAY: Duration = Duration::from_hours(24);

impl TestQueue {
    /// Observes a `TrackedField` with these entries of time zero, as its reconcile does first.
    pub(super) fn observe(
        &mut self,
        name: &str,
        entries: &[&str],
        suspended: bool,
        wall: Duration,
    ) {
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
        self.queues
            .update_ages(&key(name), &history, suspended, now);
    }

    fn outcome(&self, name: &str) -> Vec<(String, DeliveryOutcome)> {
        self.queues.outcomes(&key(name))
    }
}

fn expired(message: &str) -> DeliveryOutcome {
    DeliveryOutcome::Expired {
        reason: format!("not delivered within 24 h; the last attempt: {message}"),
    }
}

#[test]
fn old_entry_expires_only_when_an_attempt_fails() {
    let mut queue = TestQueue::open();
    queue.observe("a", &["1", "2"], false, 2 * DAY);
    queue.enqueue("a", &["1", "2"]);
    let request = queue.start().unwrap();
    assert!(queue.outcome("a").is_empty());
    let response = Err(SendFailure {
        error: retry("503"),
        carried: 1,
    });
    assert_eq!(
        queue
            .queues
            .on_response(&key("p"), &request, response, queue.now)
            .fields,
        [key("a")]
    );
    assert_eq!(
        queue.outcome("a"),
        [("1".to_owned(), expired("503"))],
        "the request did not carry the other entry"
    );
    queue.record("a", &["1!", "2"]);
    queue.now += RETRY_POLICY.backoff.max;
    let request = queue.start().unwrap();
    assert_eq!(ids(&request), ["2"]);
    queue.accept(&request, 1);
    assert_eq!(
        queue.outcome("a"),
        [("2".to_owned(), DeliveryOutcome::Delivered)]
    );
}

#[test]
fn attempt_that_started_before_the_maximum_age_does_not_count() {
    let mut queue = TestQueue::open();
    queue.observe("a", &["1"], false, Duration::ZERO);
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.now += DAY + Duration::from_secs(1);
    queue.respond(&request, Err(retry("503")));
    assert!(queue.outcome("a").is_empty());
    queue.now += RETRY_POLICY.backoff.max;
    let request = queue.start().unwrap();
    queue.respond(&request, Err(retry("504")));
    assert_eq!(queue.outcome("a"), [("1".to_owned(), expired("504"))]);
}

#[test]
fn unsent_request_is_not_an_attempt() {
    let mut queue = TestQueue::open();
    queue.observe("a", &["1"], false, 2 * DAY);
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.respond(
        &request,
        Err(SendError::Unsent {
            message: "this replica does not hold the lease".into(),
        }),
    );
    assert!(queue.outcome("a").is_empty());
}

/// A step: hours that pass, and hours by which the wall clock is ahead then.
fn clock_step() -> impl Strategy<Value = (u64, u64)> {
    (0..6_u64, prop::sample::select(vec![0, 25, 60]))
}

proptest! {
    #[test]
    fn wall_clock_that_jumps_expires_nothing(steps in prop::collection::vec(clock_step(), 1..12)) {
        let mut queue = TestQueue::open();
        let begin = queue.now;
        queue.observe("a", &["1"], false, Duration::ZERO);
        queue.enqueue("a", &["1"]);
        for (hours, ahead) in steps {
            queue.now += Duration::from_hours(hours);
            let age = queue.now - begin;
            queue.observe("a", &["1"], false, age + Duration::from_hours(ahead));
            prop_assert!(queue.outcome("a").is_empty(), "without an attempt");
            let request = queue.start().unwrap();
            queue.respond(&request, Err(retry("503")));
            prop_assert_eq!(!queue.outcome("a").is_empty(), age > DAY);
            if age > DAY {
                break;
            }
            queue.now += RETRY_POLICY.backoff.max;
        }
    }
}

#[test]
fn suspended_time_does_not_count() {
    let mut queue = TestQueue::open();
    queue.observe("a", &["1"], true, Duration::ZERO);
    queue.now += 2 * DAY;
    queue.observe("a", &["1"], false, 2 * DAY);
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.respond(&request, Err(retry("503")));
    assert!(queue.outcome("a").is_empty());
}

#[test]
fn old_refused_entry_expires_and_stops_the_contact_point() {
    let mut queue = TestQueue::open();
    queue.observe("a", &["1"], false, 2 * DAY);
    queue.enqueue("a", &["1", "2"]);
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    assert!(queue.refuse(&request, Refusal::Gone).point);
    assert_eq!(queue.outcome("a"), [("1".to_owned(), expired("Gone"))]);
    queue.record("a", &["1!", "2"]);
    assert!(queue.is_waiting());
    queue.now += RETRY_POLICY.stopped;
    // The last request carried the entry, so the test message is next.
    assert!(queue.start().unwrap().is_test());
}
