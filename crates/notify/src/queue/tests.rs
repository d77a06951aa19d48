//! Decisions of the queues, without clock, network and apiserver.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use qm_api::TrackedField;
use qm_api::tracked_field::{Entry, StoredHistory};
use qm_runtime::ObjectKey;
use qm_runtime::backoff::BackoffPolicy;
use serde_json::json;
use tokio::sync::Notify;

use super::entries::DeliveryRequest;
use super::queues::{QueueStep, Queues};
use super::response::AffectedObjects;
use super::{AcceptedTests, InitialState, PendingEntries, ReceiverState, RetryPolicy, TestMessage};
use crate::history::DeliveryOutcome;
use crate::message::Body;
use crate::telegram::TelegramChat;
use crate::webhook::{Parts, WebhookEndpoint};
use crate::{Endpoint, Refusal, SendError, SendFailure, SendReceipt};

mod digest_delay;
mod expiry;
mod model;
mod outcome;
mod refused;
mod requested_test;

const RETRY_POLICY: RetryPolicy = RetryPolicy {
    backoff: BackoffPolicy {
        min: Duration::from_secs(1),
        max: Duration::from_mins(5),
    },
    stopped: Duration::from_mins(5),
    max_age: Duration::from_hours(24),
};

fn chat() -> Endpoint {
    let chat = qm_api::contact_point::ChatId::Id(1);
    Endpoint::Telegram(TelegramChat::new(b"1:a", chat, None, false).unwrap())
}

fn templated() -> Endpoint {
    let parts = Parts {
        url: "http://x.test/".into(),
        body: Some(Body::new("{{ text }}").unwrap()),
        ..Parts::default()
    };
    Endpoint::Webhook(Box::new(WebhookEndpoint::new(parts).unwrap()))
}

/// Returns a `TrackedField` with these entries, each `ID` pending or `ID!` delivered.
fn field(name: &str, entries: &[&str]) -> Arc<TrackedField> {
    let entries: Vec<_> = entries
        .iter()
        .map(|id| match id.strip_suffix('!') {
            Some(id) => json!({ "action": "Updated", "id": id, "delivery": "Delivered" }),
            None => json!({ "action": "Updated", "id": id, "delivery": "Pending" }),
        })
        .collect();
    let object = json!({
        "apiVersion": "tg.azamaton.ru/v1",
        "kind": "TrackedField",
        "metadata": { "namespace": "n", "name": name, "uid": name },
        "spec": {},
        "status": entries,
    });
    Arc::new(serde_json::from_value(object).unwrap())
}

fn pending(name: &str, entries: &[&str]) -> PendingEntries {
    pending_of(&field(name, entries))
}

fn pending_of(object: &Arc<TrackedField>) -> PendingEntries {
    PendingEntries::of(object, &object.history().unwrap())
}

fn another() -> TestMessage {
    TestMessage {
        configuration: "another".into(),
        accepted: AcceptedTests::default(),
    }
}

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("n", name)
}

/// Queue `p` with a clock.
struct TestQueue {
    queues: Queues,
    /// Wakes the worker.
    worker: Arc<Notify>,
    now: Instant,
}

impl TestQueue {
    fn open() -> Self {
        Self::with_digest_delay(Duration::ZERO)
    }

    fn with_digest_delay(digest_delay: Duration) -> Self {
        let mut queues = Queues::new(RETRY_POLICY);
        let now = Instant::now();
        let worker = queues.configure(
            &key("p"),
            chat(),
            digest_delay,
            InitialState::Open,
            TestMessage::default(),
            now,
        );
        Self {
            queues,
            worker: worker.expect("a new queue needs a worker"),
            now,
        }
    }

    /// Configures the queue of `point`; returns what wakes its worker if the queue is new.
    fn configure(
        &mut self,
        point: &str,
        initial_state: InitialState,
        test: TestMessage,
    ) -> Option<Arc<Notify>> {
        let (endpoint, delay) = (chat(), Duration::ZERO);
        self.queues
            .configure(&key(point), endpoint, delay, initial_state, test, self.now)
    }

    /// Configures another endpoint, which gets a test message first.
    fn test_another_endpoint(&mut self) {
        self.configure("p", InitialState::Test, another());
    }

    fn enqueue(&mut self, name: &str, entries: &[&str]) -> i64 {
        self.enqueue_in("p", name, entries)
    }

    fn enqueue_in(&mut self, point: &str, name: &str, entries: &[&str]) -> i64 {
        self.queues
            .enqueue(&key(point), pending(name, entries), self.now)
    }

    fn start(&mut self) -> Option<DeliveryRequest> {
        self.start_of("p")
    }

    /// Starts the next request, as the worker does.
    fn start_of(&mut self, point: &str) -> Option<DeliveryRequest> {
        if !matches!(self.queues.next(&key(point), self.now), QueueStep::Send) {
            return None;
        }
        let (_, revision) = self.queues.endpoint(&key(point))?;
        self.queues.start_request(&key(point), revision, self.now)
    }

    /// Responds to a request with all its entries.
    fn respond(
        &mut self,
        request: &DeliveryRequest,
        response: Result<SendReceipt, SendError>,
    ) -> AffectedObjects {
        let response = response.map_err(|error| SendFailure::new(error, request.entries.len()));
        self.queues
            .on_response(&key("p"), request, response, self.now)
    }

    fn refuse(&mut self, request: &DeliveryRequest, reason: Refusal) -> AffectedObjects {
        self.respond(request, Err(refusal(reason)))
    }

    fn accept(&mut self, request: &DeliveryRequest, accepted: usize) -> AffectedObjects {
        self.respond(
            request,
            Ok(SendReceipt {
                accepted,
                migrated_to: None,
            }),
        )
    }

    /// Returns whether the worker was woken since the last call.
    fn is_woken(&self) -> bool {
        self.worker.notified().now_or_never().is_some()
    }

    fn is_waiting(&mut self) -> bool {
        !matches!(self.queues.next(&key("p"), self.now), QueueStep::Send)
    }

    /// Records the outcomes, as the reconcile of a `TrackedField` does.
    fn record(&mut self, name: &str, entries: &[&str]) -> Vec<(String, DeliveryOutcome)> {
        let outcomes = self.queues.outcomes(&key(name));
        self.enqueue(name, entries);
        self.queues.recorded(&key(name), &outcomes);
        outcomes
    }
}

fn ids(request: &DeliveryRequest) -> Vec<&str> {
    request.ids().collect()
}

fn refusal(reason: Refusal) -> SendError {
    SendError::Refused {
        reason,
        message: reason.as_str().into(),
    }
}

fn retry(message: &str) -> SendError {
    SendError::Retry {
        message: message.into(),
        after: None,
    }
}

#[test]
fn oldest_entries_go_first_and_each_object_keeps_its_order() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1!", "3", "4"]);
    // Ids do not grow after the clock was set back.
    queue.enqueue("b", &["5", "2"]);
    assert_eq!(ids(&queue.start().unwrap()), ["3", "4", "5", "2"]);
}

#[test]
fn queue_waits_until_every_outcome_is_recorded() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    queue.enqueue("b", &["2"]);
    let request = queue.start().unwrap();
    assert_eq!(queue.accept(&request, 2).fields, [key("a"), key("b")]);
    queue.enqueue("c", &["3"]);
    assert!(queue.is_waiting());
    assert_eq!(
        queue.record("a", &["1!"]),
        [("1".to_owned(), DeliveryOutcome::Delivered)]
    );
    assert!(queue.is_waiting(), "b's outcome is not recorded yet");
    queue.record("b", &["2!"]);
    assert_eq!(ids(&queue.start().unwrap()), ["3"]);
}

#[test]
fn entry_that_did_not_fit_goes_next() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1", "2", "3"]);
    let request = queue.start().unwrap();
    queue.accept(&request, 2);
    queue.record("a", &["1!", "2!", "3"]);
    assert_eq!(ids(&queue.start().unwrap()), ["3"]);
}

#[test]
fn object_in_flight_is_not_sent_by_another_queue_until_recorded() {
    let mut queue = TestQueue::open();
    queue.configure("q", InitialState::Open, TestMessage::default());
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.enqueue_in("q", "a", &["1"]);
    assert!(
        queue.start_of("q").is_none(),
        "the entry would be sent twice"
    );
    queue.accept(&request, 1);
    let outcomes = queue.queues.outcomes(&key("a"));
    queue.enqueue_in("q", "a", &["1!", "2"]);
    queue.queues.recorded(&key("a"), &outcomes);
    assert_eq!(ids(&queue.start_of("q").unwrap()), ["2"]);
}

#[test]
fn response_of_a_former_endpoint_does_not_change_the_new_state() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.test_another_endpoint();
    queue.respond(&request, Err(refusal(Refusal::NotFound)));
    assert_eq!(
        queue.queues.receiver_state(&key("p")),
        ReceiverState::Untried
    );
}

#[test]
fn entry_accepted_by_a_former_endpoint_is_not_sent_again() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.configure("p", InitialState::Open, another());
    queue.accept(&request, 1);
    assert_eq!(
        queue.record("a", &["1!"]),
        [("1".to_owned(), DeliveryOutcome::Delivered)]
    );
    assert!(queue.is_waiting());
}

#[test]
fn response_is_recorded_after_its_contact_point_is_deleted() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.queues.remove(&key("p"));
    queue.accept(&request, 1);
    assert_eq!(
        queue.record("a", &["1!"]),
        [("1".to_owned(), DeliveryOutcome::Delivered)]
    );
    assert!(
        queue
            .configure("p", InitialState::Open, TestMessage::default())
            .is_some(),
        "a recreated contact point has a new queue"
    );
}

/// The queue is closed while the contact point is suspended, or its Secret cannot be read.
#[test]
fn receiver_state_outlasts_a_pause() {
    let hour = Duration::from_hours(1);
    let later = || SendError::Retry {
        message: "429".into(),
        after: Some(hour),
    };
    let pause = |queue: &mut TestQueue| {
        queue.queues.close(&key("p"));
        queue.now += RETRY_POLICY.stopped;
        assert!(queue.start().is_none());
    };
    // The initial state counts for another configuration only.
    let resume = |queue: &mut TestQueue, test| queue.configure("p", InitialState::Open, test);
    for answered_while_paused in [false, true] {
        let mut queue = TestQueue::open();
        queue.enqueue("a", &["1"]);
        let request = queue.start().unwrap();
        if answered_while_paused {
            queue.queues.close(&key("p"));
        }
        queue.respond(&request, Err(later()));
        pause(&mut queue);
        assert!(
            queue.queues.in_flight(&key("a")).is_empty(),
            "the entry may be merged"
        );
        resume(&mut queue, TestMessage::default());
        assert!(queue.is_waiting());
        queue.now += hour;
        assert_eq!(ids(&queue.start().unwrap()), ["1"]);
    }

    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.refuse(&request, Refusal::Forbidden);
    queue.now += RETRY_POLICY.stopped;
    let request = queue.start().unwrap();
    assert!(request.is_test());
    queue.accept(&request, 0);
    queue.enqueue("a", &["1"]);
    let stopped = queue.queues.receiver_state(&key("p"));
    pause(&mut queue);
    resume(&mut queue, TestMessage::default());
    assert_eq!(queue.queues.receiver_state(&key("p")), stopped);
    let request = queue.start().unwrap();
    queue.refuse(&request, Refusal::Forbidden);
    assert!(
        matches!(
            &*queue.record("a", &[]),
            [(_, DeliveryOutcome::Failed { .. })]
        ),
        "this was the second refusal"
    );
    pause(&mut queue);
    resume(&mut queue, another());
    assert_eq!(
        queue.queues.receiver_state(&key("p")),
        ReceiverState::Untried,
        "another receiver"
    );
    assert_eq!(queue.queues.tests_accepted(&key("p")).count, 1);
}

#[test]
fn queue_without_entries_keeps_its_delay_until_deleted() {
    let mut queue = TestQueue::open();
    queue.test_another_endpoint();
    let request = queue.start().unwrap();
    queue.respond(
        &request,
        Err(SendError::Retry {
            message: "429".into(),
            after: Some(Duration::from_hours(1)),
        }),
    );
    queue.queues.close(&key("p"));
    queue.enqueue("a", &["1"]);
    queue.queues.forget(&key("a"));
    queue.test_another_endpoint();
    assert!(queue.is_waiting());
    queue.queues.remove(&key("p"));
    queue.test_another_endpoint();
    assert!(queue.start().unwrap().is_test());
}

/// The object is deleted, or moves to another contact point.
#[test]
fn responses_are_forgotten_when_the_object_leaves_in_flight() {
    let removals: [fn(&mut TestQueue); 2] = [
        |queue| assert_eq!(queue.queues.forget(&key("a")), -1),
        |queue| assert_eq!(queue.enqueue_in("q", "a", &["1"]), 0),
    ];
    for remove in removals {
        for digest in [false, true] {
            let mut queue = TestQueue::open();
            queue.enqueue("a", &["1"]);
            if digest {
                queue.enqueue("b", &["2"]);
            }
            let request = queue.start().unwrap();
            remove(&mut queue);
            queue.refuse(&request, Refusal::Rejected);
            assert!(
                !queue.queues.by_contact_point[&key("p")]
                    .receiver
                    .as_ref()
                    .is_some_and(|receiver| receiver.refusals.knows(&key("a"))),
                "{digest}"
            );
        }
    }
}

/// The spec names another contact point, and the status cannot be written.
#[test]
fn object_that_moves_is_in_no_queue_until_its_status_is_written() {
    let mut queue = TestQueue::open();
    queue.configure("q", InitialState::Open, TestMessage::default());
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    assert_eq!(queue.queues.dequeue_elsewhere(&key("a"), &key("p")), 0);
    assert_eq!(queue.queues.dequeue_elsewhere(&key("a"), &key("q")), -1);
    queue.refuse(&request, Refusal::Rejected);
    queue.now += RETRY_POLICY.stopped;
    assert!(queue.start().is_none() && queue.start_of("q").is_none());
    assert_eq!(queue.enqueue_in("q", "a", &["1"]), 1);
    let receiver = queue.queues.receiver(&key("p")).unwrap();
    assert!(!receiver.refusals.knows(&key("a")));
    assert_eq!(ids(&queue.start_of("q").unwrap()), ["1"]);
}

#[test]
fn deletion_visits_only_the_contact_point_that_has_refused_the_object() {
    let mut queue = TestQueue::open();
    let points: Vec<_> = (0..100).map(|number| format!("q-{number}")).collect();
    for point in &points {
        queue.configure(point, InitialState::Open, TestMessage::default());
    }
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.refuse(&request, Refusal::Rejected);
    // The object is suspended, and then sends to another contact point.
    queue.queues.dequeue(&key("a"));
    queue.enqueue_in("q-7", "a", &["1"]);
    let forgotten = |queue: &TestQueue, point: &str| {
        let receiver = queue.queues.receiver(&key(point)).unwrap();
        assert!(!receiver.refusals.knows(&key("a")));
        receiver.refusals.forgotten
    };
    queue.queues.forget(&key("a"));
    queue.queues.forget(&key("b"));
    assert_eq!(forgotten(&queue, "p"), 1);
    for point in &points {
        assert_eq!(forgotten(&queue, point), 0, "{point}");
    }
}

#[test]
fn object_without_pending_entries_does_not_wake_the_worker() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &[]);
    queue.enqueue("b", &["1!"]);
    queue.queues.recorded(&key("a"), &[]);
    assert!(!queue.is_woken());
    queue.enqueue("a", &["2"]);
    assert!(queue.is_woken());
    let request = queue.start().unwrap();
    queue.accept(&request, 1);
    assert!(queue.is_woken());
    let outcomes = queue.queues.outcomes(&key("a"));
    queue.enqueue("a", &["2!"]);
    assert!(queue.is_woken(), "the entry is removed");
    queue.queues.recorded(&key("a"), &outcomes);
    assert!(queue.is_woken(), "the next request may begin");
}

#[test]
fn deleted_object_does_not_block_the_queue() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.accept(&request, 1);
    queue.queues.forget(&key("a"));
    queue.enqueue("b", &["2"]);
    assert_eq!(ids(&queue.start().unwrap()), ["2"]);
}

#[test]
fn pending_entries_are_counted() {
    let mut queue = TestQueue::open();
    assert_eq!(queue.enqueue("a", &["1", "2"]), 2);
    assert_eq!(queue.enqueue("a", &["1!", "2", "3", "4"]), 1);
    assert_eq!(queue.queues.dequeue(&key("a")), -3);
    assert_eq!(queue.queues.forget(&key("a")), 0);
}

#[test]
fn queue_is_idle_when_the_retried_entry_is_removed() {
    let removals: [fn(&mut TestQueue); 3] = [
        |queue| assert_eq!(queue.queues.forget(&key("a")), -1),
        |queue| assert_eq!(queue.queues.dequeue(&key("a")), -1),
        |queue| assert_eq!(queue.enqueue("a", &["1!"]), -1),
    ];
    for remove in removals {
        let mut queue = TestQueue::open();
        queue.enqueue("a", &["1"]);
        let request = queue.start().unwrap();
        queue.respond(&request, Err(retry("refused")));
        remove(&mut queue);
        queue.now += RETRY_POLICY.stopped;
        assert!(
            matches!(
                queue.queues.next(&key("p"), queue.now),
                QueueStep::Wait(None)
            ),
            "the worker would spin"
        );
        assert!(queue.queues.is_idle());
    }
    // Removal while the request is in flight has the same result.
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.queues.dequeue(&key("a"));
    queue.respond(&request, Err(retry("refused")));
    queue.now += RETRY_POLICY.stopped;
    assert!(matches!(
        queue.queues.next(&key("p"), queue.now),
        QueueStep::Wait(None)
    ));
}

#[test]
fn object_that_moved_in_flight_is_sent_after_the_response() {
    for response in [
        Err(retry("503")),
        Err(refusal(Refusal::Unauthorized)),
        Err(refusal(Refusal::Rejected)),
        Ok(SendReceipt {
            accepted: 1,
            migrated_to: None,
        }),
    ] {
        let mut queue = TestQueue::open();
        let changed = queue
            .configure("q", InitialState::Open, TestMessage::default())
            .unwrap();
        queue.enqueue("a", &["1"]);
        queue.enqueue("b", &["2"]);
        let request = queue.start().unwrap();
        queue.enqueue_in("q", "b", &["2"]);
        changed.notified().now_or_never().unwrap();
        assert!(
            queue.start_of("q").is_none(),
            "the entry would be sent twice"
        );
        queue.respond(&request, response);
        assert!(
            changed.notified().now_or_never().is_some(),
            "no other event wakes that queue"
        );
        assert_eq!(ids(&queue.start_of("q").unwrap()), ["2"]);
    }
}

#[test]
fn queue_shares_the_cached_object() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let cached = field("a", &["1"]);
    queue.queues.share_cached(&cached);
    let request = queue.start().unwrap();
    assert!(Arc::ptr_eq(&request.entries[0].object, &cached));
    queue.respond(&request, Err(retry("refused")));

    // The cached object replaces only a copy of the same version; a retry sends the version enqueued last.
    let mut newer = cached.as_ref().clone();
    newer.metadata.resource_version = Some("2".into());
    let newer = Arc::new(newer);
    queue.queues.share_cached(&newer);
    queue.now += Duration::from_hours(1);
    assert!(
        Arc::ptr_eq(&queue.start().unwrap().entries[0].object, &cached),
        "the batch may wait for another change"
    );
    queue.respond(&request, Err(retry("refused")));
    queue
        .queues
        .enqueue(&key("p"), pending_of(&newer), queue.now);
    queue.now += Duration::from_hours(1);
    assert!(Arc::ptr_eq(
        &queue.start().unwrap().entries[0].object,
        &newer
    ));
}

#[test]
fn entry_without_id_is_not_counted() {
    let mut queue = TestQueue::open();
    let mut nameless = field("a", &["1"]).as_ref().clone();
    let entries = nameless
        .history()
        .unwrap()
        .into_iter()
        .map(|entry| Entry { id: None, ..entry });
    nameless.status = Some(StoredHistory::try_from(&*entries.collect::<Vec<_>>()).unwrap());
    assert_eq!(
        queue
            .queues
            .enqueue(&key("p"), pending_of(&Arc::new(nameless)), queue.now),
        0
    );
    assert!(queue.is_waiting());
}

#[test]
fn object_that_moves_away_does_not_wait_for_the_failing_receiver() {
    let mut queue = TestQueue::open();
    queue.configure("q", InitialState::Open, TestMessage::default());
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.respond(&request, Err(retry("refused")));
    queue.enqueue_in("q", "a", &["1"]);
    assert_eq!(ids(&queue.start_of("q").unwrap()), ["1"]);
}

#[test]
fn two_workers_do_not_send_one_request_twice() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let (_, former) = queue.queues.endpoint(&key("p")).unwrap();
    // The contact point is recreated while the first worker waits for the rate limit.
    queue.queues.remove(&key("p"));
    assert!(
        queue
            .configure("p", InitialState::Open, TestMessage::default())
            .is_none(),
        "a queue with pending entries stays"
    );
    queue.queues.forget(&key("a"));
    queue.queues.remove(&key("p"));
    assert!(
        queue
            .configure("p", InitialState::Open, TestMessage::default())
            .is_some()
    );
    queue.enqueue("a", &["1"]);
    assert!(
        queue
            .queues
            .start_request(&key("p"), former, queue.now)
            .is_none()
    );
    assert!(queue.start().is_some());
    assert!(queue.start().is_none(), "the request is in flight");
    assert!(queue.is_waiting());
}

#[test]
fn oldest_pending_time_leaves_out_suspended_time() {
    let waits = |name: &str, entry: serde_json::Value| {
        let object = json!({ "apiVersion": "tg.azamaton.ru/v1", "kind": "TrackedField", "spec": {},
            "metadata": { "namespace": "n", "name": name }, "status": [entry] });
        pending_of(&Arc::new(serde_json::from_value(object).unwrap()))
    };
    let pending = |second: u8, suspended_since: Option<&str>, suspended_seconds: Option<u64>| {
        json!({ "action": "Updated", "id": format!("{second}"), "delivery": "Pending",
            "time": format!("2026-01-01T00:00:{second:02}Z"), "suspendedSince": suspended_since, "suspendedSeconds": suspended_seconds })
    };
    let mut queues = Queues::new(RETRY_POLICY);
    let oldest = |queues: &Queues| queues.oldest_since().map(|since| since.to_string());
    assert_eq!(oldest(&queues), None);
    let now = Instant::now();
    queues.enqueue(&key("a"), waits("x", pending(30, None, None)), now);
    queues.enqueue(&key("b"), waits("y", pending(20, None, Some(25))), now);
    queues.enqueue(
        &key("b"),
        waits("z", pending(10, Some("2026-01-01T00:00:11Z"), None)),
        now,
    );
    assert_eq!(oldest(&queues).as_deref(), Some("2026-01-01T00:00:30Z"));
    queues.dequeue(&ObjectKey::new("n", "x"));
    assert_eq!(oldest(&queues).as_deref(), Some("2026-01-01T00:00:45Z"));
    queues.forget(&ObjectKey::new("n", "y"));
    assert_eq!(oldest(&queues), None, "the remaining entry is suspended");
}
