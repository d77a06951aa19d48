//! `test-at`: a test message that a user requests.

use super::*;
use crate::queue::RequestedTest;

impl TestQueue {
    fn request_test(&mut self, requested_at: &str) {
        self.queues.request_test(&key("p"), requested_at, self.now);
    }

    fn answered(&self) -> Option<RequestedTest> {
        self.queues.requested_test(&key("p"))
    }
}

fn test(requested_at: &str, answer: Option<Result<(), String>>) -> RequestedTest {
    RequestedTest {
        requested_at: requested_at.into(),
        answer,
    }
}

fn accepted(requested_at: &str) -> RequestedTest {
    test(requested_at, Some(Ok(())))
}

fn failed(requested_at: &str, message: &str) -> RequestedTest {
    test(requested_at, Some(Err(message.into())))
}

/// Returns a queue whose batch of one entry was answered with 503, and the requested test message that goes before its
/// retry.
fn test_requested_while_retrying() -> (TestQueue, DeliveryRequest) {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.respond(&request, Err(retry("503")));
    queue.request_test("1");
    let request = queue.start().unwrap();
    (queue, request)
}

#[test]
fn each_value_sends_one_message() {
    let mut queue = TestQueue::open();
    assert_eq!(queue.answered(), None);
    for value in ["1", "2"] {
        queue.request_test(value);
        assert_eq!(queue.answered(), Some(test(value, None)));
        let request = queue.start().unwrap();
        assert!(request.is_test());
        queue.request_test(value);
        assert!(queue.accept(&request, 0).point, "the status changes");
        assert_eq!(queue.answered(), Some(accepted(value)));
        queue.request_test(value);
        assert!(queue.is_waiting());
    }
}

#[test]
fn test_message_goes_before_entries_and_waits_for_no_digest() {
    let mut queue = TestQueue::with_digest_delay(Duration::from_mins(5));
    queue.enqueue("a", &["1"]);
    assert!(queue.is_waiting());
    queue.request_test("1");
    let request = queue.start().unwrap();
    assert!(request.is_test());
    queue.accept(&request, 0);
    assert!(queue.is_waiting(), "the entry waits for its digest");
}

#[test]
fn message_goes_after_the_request_in_flight_is_recorded() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.request_test("1");
    assert!(queue.is_waiting());
    queue.accept(&request, 1);
    assert!(queue.is_waiting());
    assert_eq!(queue.answered(), Some(test("1", None)));
    queue.record("a", &["1!"]);
    assert!(queue.start().unwrap().is_test());
}

/// The receiver must recognise the repeated request.
#[test]
fn retried_batch_stays_the_same() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1", "2"]);
    let request = queue.start().unwrap();
    queue.respond(&request, Err(retry("503")));
    queue.enqueue("b", &["3"]);
    assert!(queue.is_waiting());
    queue.request_test("1");
    let request = queue.start().unwrap();
    assert!(request.is_test(), "the request ends the backoff");
    assert_eq!(queue.queues.in_flight(&key("a")).len(), 2);
    queue.respond(&request, Err(retry("504")));
    assert_eq!(queue.answered(), Some(failed("1", "504")));
    queue.now += RETRY_POLICY.backoff.max;
    assert_eq!(ids(&queue.start().unwrap()), ["1", "2"]);
}

#[test]
fn accepted_message_lets_the_retried_batch_go_at_once() {
    let (mut queue, request) = test_requested_while_retrying();
    queue.accept(&request, 0);
    let request = queue.start().unwrap();
    assert_eq!(ids(&request), ["1"]);
    queue.accept(&request, 1);
    queue.record("a", &["1!"]);
    assert!(queue.is_waiting());
    assert!(queue.queues.is_idle());
}

#[test]
fn retried_batch_is_forgotten_with_its_object() {
    let (mut queue, request) = test_requested_while_retrying();
    queue.queues.forget(&key("a"));
    queue.accept(&request, 0);
    assert!(queue.is_waiting());
    queue.enqueue("a", &["2"]);
    assert_eq!(ids(&queue.start().unwrap()), ["2"]);
}

#[test]
fn retried_batch_does_not_go_to_another_endpoint_before_its_test_message() {
    let (mut queue, request) = test_requested_while_retrying();
    queue.test_another_endpoint();
    queue.respond(&request, Err(retry("503")));
    assert_eq!(queue.answered(), None, "another endpoint");
    queue.request_test("1");
    let request = queue.start().unwrap();
    assert!(request.is_test());
    queue.accept(&request, 0);
    assert_eq!(queue.answered(), Some(accepted("1")));
    queue.queues.open(&key("p"));
    assert_eq!(ids(&queue.start().unwrap()), ["1"]);
}

#[test]
fn refused_message_stops_the_contact_point() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1", "2"]);
    let request = queue.start().unwrap();
    queue.respond(&request, Err(retry("503")));
    queue.request_test("1");
    let request = queue.start().unwrap();
    assert!(queue.refuse(&request, Refusal::Gone).point);
    assert_eq!(queue.answered(), Some(failed("1", "Gone")));
    assert!(matches!(
        queue.queues.receiver_state(&key("p")),
        ReceiverState::Stopped { reason: "Gone", .. }
    ));
    assert!(queue.is_waiting());
    queue.now += RETRY_POLICY.stopped;
    assert_eq!(ids(&queue.start().unwrap()), ["1"], "one entry at a time");
}

#[test]
fn message_opens_a_stopped_contact_point() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.refuse(&request, Refusal::Gone);
    assert!(queue.is_waiting());
    queue.request_test("1");
    let request = queue.start().unwrap();
    assert!(request.is_test());
    queue.accept(&request, 0);
    assert!(
        !queue.queues.tests_accepted(&key("p")).while_stopped,
        "a requested message is not the one allowed test message"
    );
    assert_eq!(ids(&queue.start().unwrap()), ["1"]);
}

#[test]
fn first_test_message_answers_the_request() {
    let mut queue = TestQueue::open();
    queue.test_another_endpoint();
    let request = queue.start().unwrap();
    queue.request_test("1");
    queue.accept(&request, 0);
    assert_eq!(queue.answered(), Some(accepted("1")));
    queue.queues.open(&key("p"));
    assert!(queue.is_waiting(), "one message for both");
}

#[test]
fn unsent_message_is_no_answer() {
    let mut queue = TestQueue::open();
    queue.request_test("1");
    let request = queue.start().unwrap();
    let unsent = SendError::Unsent {
        message: "this replica does not hold the lease".into(),
    };
    queue.respond(&request, Err(unsent));
    assert_eq!(queue.answered(), Some(test("1", None)));
    assert!(queue.is_waiting(), "the worker must not spin");
    queue.now += RETRY_POLICY.backoff.max;
    assert!(queue.start().unwrap().is_test());
}
