//! `digestSeconds`: entries that wait for a digest.

use super::*;
use crate::message::{TextLimit, render};

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

    /// Runs the worker if something woke it; returns the number of entries that it visits.
    fn visits(&mut self) -> usize {
        if !self.is_woken() {
            return 0;
        }
        self.wait();
        self.queues.by_contact_point[&key("p")].waiting.len()
    }

    /// Sets the delay, as a reconcile does after a change of the spec.
    fn set_digest_delay(&mut self, digest_delay: Duration) {
        self.queues.configure(
            &key("p"),
            chat(),
            digest_delay,
            InitialState::Open,
            TestMessage::default(),
            self.now,
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
    queue.queues.forget(&key("a"));
    assert_eq!(queue.wait(), Some(DELAY));
}

/// A choice visits all entries of the queue.
#[test]
fn entry_that_joins_a_digest_does_not_wake_the_worker() {
    const ENTRIES: u32 = 2000;
    let mut queue = waiting();
    let mut visits = 0;
    for number in 0..ENTRIES {
        queue.now += DELAY / 2 / ENTRIES;
        queue.record_at(&number.to_string(), &["1"], Duration::ZERO);
        visits += queue.visits();
    }
    assert_eq!(visits, 1, "the first entry starts the clock");
    let left = queue.wait();
    queue.now += SECOND;
    for number in 0..ENTRIES {
        queue.record_at(&number.to_string(), &["1"], Duration::ZERO);
        queue.queues.recorded(&key(&number.to_string()), &[]);
        visits += queue.visits();
    }
    queue.queues.dequeue(&key("1"));
    queue.queues.forget(&key("2"));
    assert_eq!((visits, queue.visits()), (1, 0), "unchanged, or removed");
    assert_eq!(queue.wait(), left.map(|left| left.saturating_sub(SECOND)));
}

#[test]
fn entry_that_is_due_earlier_wakes_the_worker() {
    let mut queue = waiting();
    queue.record_at("a", &["1"], Duration::ZERO);
    assert_eq!(queue.visits(), 1);
    queue.record_at("b", &["2"], 20 * SECOND);
    assert_eq!(queue.visits(), 2);
    assert_eq!(queue.wait(), Some(10 * SECOND));
    queue.record_at("c", &["3"], 40 * SECOND);
    assert!(queue.is_woken());
    assert_eq!(ids(&queue.start().unwrap()), ["1", "2", "3"]);
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
    queue.queues.configure(
        &key("p"),
        chat(),
        DELAY,
        InitialState::Test,
        another(),
        queue.now,
    );
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
    // The next request lacks the entries of a deleted object, but counts as a retry, which waits for no digest.
    queue.respond(&request, Err(retry("503")));
    queue.record_at("b", &["3"], Duration::ZERO);
    queue.queues.forget(&key("a"));
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

/// Number of Deployments of a rollout over one minute.
const ROLLOUT: u32 = 500;
const ROLLOUT_TIME: Duration = Duration::from_mins(1);

/// Returns the `TrackedField` of a Deployment whose image changes.
fn rollout(number: u32) -> Arc<TrackedField> {
    let image = |version: u32| format!("registry.example.com/shop/web:1.25.{version}");
    let entry = |version: u32, delivery: &str| {
        json!({
            "action": "Updated", "id": format!("{number}-{version}"), "delivery": delivery, "value": image(version),
            "subject": format!("Deployment.apps/shop/web-{number:03}/image"),
        })
    };
    let mut object = (*field(&number.to_string(), &[])).clone();
    let history = json!([entry(3, "Delivered"), entry(4, "Pending")]);
    object.status = Some(serde_json::from_value(history).unwrap());
    Arc::new(object)
}

/// Runs a rollout until each of its entries is sent in a text of at most `limit`. Returns the number of messages.
fn messages_of_a_rollout(limit: TextLimit) -> usize {
    let mut queue = waiting();
    let start = queue.now;
    let (mut changed, mut sent, mut messages) = (0, 0, 0);
    while sent < ROLLOUT as usize {
        while changed < ROLLOUT && queue.now - start >= ROLLOUT_TIME / ROLLOUT * changed {
            let object = rollout(changed);
            let name = changed.to_string();
            queue.observe(&name, &[&format!("{changed}-4")], false, Duration::ZERO);
            queue
                .queues
                .enqueue(&key("p"), pending_of(&object), queue.now);
            changed += 1;
        }
        if let Some(request) = queue.start() {
            let items = request.outgoing_entries().unwrap();
            let carried = render(&items, None, None, false, limit).carried;
            let carried_by: Vec<_> = items[..carried]
                .iter()
                .map(|item| item.name.clone())
                .collect();
            queue.accept(&request, carried);
            for name in carried_by {
                queue.record(&name, &[]);
            }
            sent += carried;
            messages += 1;
        }
        queue.now += Duration::from_millis(100);
        assert!(
            queue.now - start < 3 * ROLLOUT_TIME,
            "{sent} of {ROLLOUT} are sent"
        );
    }
    messages
}

#[test]
fn rollout_is_a_handful_of_messages() {
    let telegram = messages_of_a_rollout(TextLimit::TELEGRAM);
    assert!(telegram <= 16, "{telegram} Telegram messages");
    let webhook = messages_of_a_rollout(TextLimit::WEBHOOK);
    assert!(webhook <= 8, "{webhook} webhook messages");
}
