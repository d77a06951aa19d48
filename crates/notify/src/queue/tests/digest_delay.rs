//! `digestSeconds`: entries that wait for a digest.

use super::*;

const DELAY: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

fn waiting() -> TestQueue {
    TestQueue::with_digest_delay(DELAY)
}

impl TestQueue {
    /// Records entries of time zero at this wall-clock time, as a reconcile does.
    fn record_at(&mut self, name: &str, entries: &[&str], wall: Duration) {
        self.observe(name, entries, false, wall);
        self.enqueue(name, entries);
    }

    /// Returns the time that the worker waits; `None` if it waits for a change.
    fn wait(&mut self) -> Option<Duration> {
        match self.queues.next(&key("p"), self.now) {
            QueueStep::Wait(until) => until.map(|until| until - self.now),
            _ => panic!("the queue does not wait"),
        }
    }

    /// Sets the delay, as a reconcile does after a change of the spec.
    fn set_digest_delay(&mut self, digest_delay: Duration) {
        self.queues.configure(
            &key("p"),
            chat(),
            digest_delay,
            InitialState::Open,
            TestMessage::default(),
        );
    }
}

#[test]
fn request_begins_once_the_oldest_entry_has_the_age() {
    let mut queue = waiting();
    assert_eq!(queue.wait(), None, "no entry, no clock");
    queue.record_at("a", &["1"], Duration::ZERO);
    queue.now += 10 * SECOND;
    queue.record_at("b", &["2"], Duration::ZERO);
    queue.now += 10 * SECOND;
    queue.record_at("a", &["1", "3"], Duration::ZERO);
    assert_eq!(queue.wait(), Some(10 * SECOND));
    queue.now += 10 * SECOND;
    assert_eq!(ids(&queue.start().unwrap()), ["1", "2", "3"]);
}

#[test]
fn next_digest_waits_for_its_own_oldest_entry() {
    let mut queue = waiting();
    queue.record_at("a", &["1"], Duration::ZERO);
    queue.now += DELAY;
    let request = queue.start().unwrap();
    queue.now += 5 * SECOND;
    queue.record_at("b", &["2"], Duration::ZERO);
    queue.now += 5 * SECOND;
    queue.accept(&request, 1);
    queue.record("a", &["1!"]);
    assert_eq!(queue.wait(), Some(25 * SECOND));
}

#[test]
fn removed_entry_does_not_count() {
    let mut queue = waiting();
    queue.record_at("a", &["1"], Duration::ZERO);
    queue.now += 20 * SECOND;
    queue.record_at("b", &["2"], Duration::ZERO);
    queue.queues.dequeue(&key("a"), true);
    assert_eq!(queue.wait(), Some(DELAY));
}

/// The first observation after a restart takes the age from the wall clock.
#[test]
fn restart_does_not_restart_the_wait() {
    let mut queue = waiting();
    queue.record_at("a", &["1"], 20 * SECOND);
    assert_eq!(queue.wait(), Some(10 * SECOND));
    let mut queue = waiting();
    queue.record_at("a", &["1"], 40 * SECOND);
    assert_eq!(ids(&queue.start().unwrap()), ["1"]);
}

#[test]
fn clock_that_jumps_delays_nothing() {
    let mut queue = waiting();
    queue.record_at("a", &["1"], 20 * SECOND);
    // The wall clock returns to the time before the entry.
    queue.record_at("a", &["1"], Duration::ZERO);
    assert_eq!(queue.wait(), Some(10 * SECOND));
    // Ids of a clock that was ahead sort last; the entry is the oldest all the same.
    queue.record_at("b", &["0"], Duration::ZERO);
    assert_eq!(queue.wait(), Some(10 * SECOND));
}

#[test]
fn suspended_time_does_not_count() {
    let mut queue = waiting();
    queue.observe("a", &["1"], true, Duration::ZERO);
    queue.now += DELAY;
    queue.record_at("a", &["1"], DELAY);
    assert_eq!(queue.wait(), Some(DELAY));
}

#[test]
fn request_of_a_user_ends_the_wait_of_the_waiting_entries() {
    let mut queue = waiting();
    queue.queues.retry_now(&key("p"), queue.now);
    queue.record_at("a", &["1"], Duration::ZERO);
    assert_eq!(queue.wait(), Some(DELAY), "nothing waited");
    queue.record_at("b", &["2"], Duration::ZERO);
    queue.queues.retry_now(&key("p"), queue.now);
    let request = queue.start().unwrap();
    assert_eq!(ids(&request), ["1", "2"]);
    queue.accept(&request, 1);
    queue.record("a", &["1!"]);
    let request = queue.start().unwrap();
    assert_eq!(ids(&request), ["2"], "what did not fit waited, too");
    queue.accept(&request, 1);
    queue.record("b", &["2!"]);
    queue.record_at("a", &["3"], Duration::ZERO);
    assert_eq!(queue.wait(), Some(DELAY), "a later entry waits");
}

#[test]
fn changed_delay_applies_to_waiting_entries() {
    let mut queue = waiting();
    queue.record_at("a", &["1"], Duration::ZERO);
    queue.now += 10 * SECOND;
    queue.set_digest_delay(15 * SECOND);
    assert_eq!(queue.wait(), Some(5 * SECOND));
    queue.set_digest_delay(Duration::ZERO);
    assert_eq!(ids(&queue.start().unwrap()), ["1"]);
}

#[test]
fn test_message_does_not_wait() {
    let mut queue = waiting();
    queue
        .queues
        .configure(&key("p"), chat(), DELAY, InitialState::Test, another());
    queue.record_at("a", &["1"], Duration::ZERO);
    assert!(queue.start().unwrap().is_test());
}

#[test]
fn retries_do_not_wait() {
    let mut queue = waiting();
    queue.record_at("a", &["1", "2"], DELAY);
    let request = queue.start().unwrap();
    queue.respond(&request, Err(retry("503")));
    let backoff = queue.wait().unwrap();
    assert!(backoff < 2 * SECOND, "{backoff:?}");
    queue.now += backoff;
    let request = queue.start().unwrap();
    assert_eq!(ids(&request), ["1", "2"]);
    // A deleted object changes the request, which is a retry nevertheless.
    queue.respond(&request, Err(retry("503")));
    queue.record_at("b", &["3"], Duration::ZERO);
    queue.queues.dequeue(&key("a"), true);
    let backoff = queue.wait().unwrap();
    queue.now += backoff;
    assert_eq!(ids(&queue.start().unwrap()), ["3"]);
}

#[test]
fn entries_of_a_refused_digest_do_not_wait() {
    let mut queue = waiting();
    queue.record_at("a", &["1"], DELAY);
    queue.record_at("b", &["2"], Duration::ZERO);
    let digest = queue.start().unwrap();
    assert_eq!(ids(&digest), ["1", "2"]);
    queue.refuse(&digest, Refusal::Rejected);
    let first = queue.start().unwrap();
    assert_eq!(ids(&first), ["1"]);
    queue.refuse(&first, Refusal::Rejected);
    let second = queue.start().unwrap();
    assert_eq!(ids(&second), ["2"]);
    queue.accept(&second, 1);
    queue.record("b", &["2!"]);
    assert_eq!(
        ids(&queue.start().unwrap()),
        ["1"],
        "the refused entry goes again at once"
    );
}
