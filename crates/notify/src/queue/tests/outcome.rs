//! Effects of a receiver's responses on its queue.

use std::future;

use qm_api::ContactPoint;
use qm_runtime::trigger::Trigger;
use rstest::rstest;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::metrics::DeliveryMetrics;
use crate::queue::receiver::FAILING_FROM;
use crate::queue::rejected_writes::MAX_REJECTED_WRITES;
use crate::queue::{Circumstances, Outbox};
use crate::{MessageContent, Transport};

#[test]
fn retry_sends_the_same_request_after_a_delay() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.respond(&request, Err(retry("refused")));
    queue.enqueue("b", &["2"]);
    assert!(queue.is_waiting());
    queue.now += RETRY_POLICY.backoff.min * 2;
    assert_eq!(
        ids(&queue.start().unwrap()),
        ["1"],
        "the receiver recognises the request"
    );
    assert_eq!(queue.queues.in_flight(&key("a")).len(), 1);
}

#[test]
fn retry_without_one_of_its_entries_is_a_new_request() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1", "2"]);
    let request = queue.start().unwrap();
    queue.respond(&request, Err(retry("refused")));
    queue.enqueue("a", &["1!", "2"]); // the first entry expired
    queue.now += RETRY_POLICY.backoff.min * 2;
    assert_eq!(ids(&queue.start().unwrap()), ["2"]);
}

#[test]
fn retry_waits_as_long_as_the_receiver_asks() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    let after = Duration::from_secs(1000);
    queue.respond(
        &request,
        Err(SendError::Retry {
            message: "429".into(),
            after: Some(after),
        }),
    );
    let last = Duration::from_millis(1);
    queue.now += after.saturating_sub(last);
    assert!(queue.is_waiting());
    queue.now += last;
    assert!(!queue.is_waiting());
}

#[test]
fn queue_opens_only_when_the_status_says_ready() {
    let mut queue = TestQueue::open();
    queue.test_another_endpoint();
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    assert!(request.entries.is_empty());
    assert!(queue.accept(&request, 0).point);
    assert_eq!(
        queue.queues.receiver_state(&key("p")),
        ReceiverState::Accepted { migrated_to: None }
    );
    assert!(queue.is_waiting());
    queue.queues.open(&key("p"));
    assert_eq!(ids(&queue.start().unwrap()), ["1"]);
}

/// The object was suspended, moved or deleted while the request was in flight.
#[test]
fn plain_retry_is_dropped_when_the_entry_is_no_longer_pending() {
    let mut queue = TestQueue::open();
    queue.queues.configure(
        &key("p"),
        templated(),
        Duration::ZERO,
        InitialState::Open,
        another(),
        queue.now,
    );
    let mut object = field("a", &["1"]).as_ref().clone();
    std::sync::Arc::make_mut(&mut object.spec.notification).template = Some("{{ value }}".into());
    queue
        .queues
        .enqueue(&key("p"), pending_of(&Arc::new(object)), queue.now);
    let request = queue.start().unwrap();
    queue.queues.dequeue(&key("a"));
    queue.refuse(&request, Refusal::Rejected);
    assert!(queue.start().is_none());
    assert!(
        queue.queues.in_flight(&key("a")).is_empty(),
        "another queue may send the entry"
    );
}

#[test]
fn failures_are_reported_from_the_second_on() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    for attempt in 1..=2 {
        queue.now += RETRY_POLICY.stopped;
        let request = queue.start().unwrap();
        let affected = queue.respond(&request, Err(retry("refused")));
        assert_eq!(affected.fields.len(), usize::from(attempt == 2));
        assert_eq!(queue.queues.failing(&key("p")).is_some(), attempt == 2);
    }
    queue.now += RETRY_POLICY.stopped;
    let request = queue.start().unwrap();
    queue.accept(&request, 1);
    assert_eq!(queue.queues.failing(&key("p")), None);
}

/// Fails the messages of `p` until its status reports the failure.
fn fail(queue: &mut TestQueue) {
    for _ in 0..FAILING_FROM {
        queue.now += RETRY_POLICY.stopped;
        let request = queue.start().unwrap();
        queue.respond(&request, Err(retry("refused")));
    }
    assert!(queue.queues.failing(&key("p")).is_some());
}

#[test]
fn new_cause_of_failures_is_reported_once() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    fail(&mut queue);
    for (cause, is_new) in [
        ("refused", false),
        ("no answer within 10 s", true),
        ("no answer within 10 s", false),
        ("overloaded (503, request 1)", true),
        ("overloaded (503, request 2)", false),
    ] {
        queue.now += RETRY_POLICY.stopped;
        let request = queue.start().unwrap();
        let affected = queue.respond(&request, Err(retry(cause)));
        let expected = if is_new { vec![key("a")] } else { Vec::new() };
        assert_eq!(affected.fields, expected, "{cause}");
    }
}

#[rstest]
#[case::deleted(|queue: &mut TestQueue| _ = queue.queues.forget(&key("a")))]
#[case::suspended(|queue: &mut TestQueue| _ = queue.queues.dequeue(&key("a")))]
#[case::expired(|queue: &mut TestQueue| _ = queue.enqueue("a", &["1!"]))]
#[case::moved(|queue: &mut TestQueue| _ = queue.enqueue_in("q", "a", &["1"]))]
fn failure_report_ends_when_no_entry_is_pending(#[case] end: fn(&mut TestQueue)) {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    fail(&mut queue);
    end(&mut queue);
    assert_eq!(queue.queues.failing(&key("p")), None);
    assert_eq!(queue.queues.failing(&key("q")), None);
    queue.enqueue("b", &["2"]);
    assert!(
        queue.queues.failing(&key("p")).is_some(),
        "the receiver has accepted nothing since"
    );
}

#[test]
fn failure_report_continues_while_another_object_has_entries() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    queue.enqueue("b", &["2"]);
    fail(&mut queue);
    queue.queues.forget(&key("a"));
    assert!(queue.queues.failing(&key("p")).is_some());
}

/// The queue sends no further entry of the object until its outcome is recorded.
#[test]
fn failure_report_ends_when_only_a_left_out_object_has_entries() {
    let mut queue = TestQueue::open();
    queue.observe("a", &["1"], false, Duration::ZERO);
    queue.enqueue("a", &["1"]);
    fail(&mut queue);
    queue.now += RETRY_POLICY.max_age + RETRY_POLICY.stopped;
    let request = queue.start().unwrap();
    queue.respond(&request, Err(retry("refused")));
    assert_eq!(queue.queues.outcomes(&key("a")).len(), 1, "expired");
    for _ in 0..MAX_REJECTED_WRITES {
        assert!(queue.queues.failing(&key("p")).is_some());
        queue.queues.write_rejected(
            &key("a"),
            &key("p"),
            (403, "denied"),
            Circumstances::default(),
            queue.now,
        );
    }
    assert_eq!(queue.queues.failing(&key("p")), None);
}

#[test]
fn contact_point_is_affected_when_its_last_entry_is_removed_in_flight() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    fail(&mut queue);
    queue.now += RETRY_POLICY.stopped;
    let request = queue.start().unwrap();
    queue.queues.forget(&key("a"));
    assert!(
        queue.queues.failing(&key("p")).is_some(),
        "the response may differ"
    );
    assert!(queue.respond(&request, Err(retry("refused"))).point);
    assert_eq!(queue.queues.failing(&key("p")), None);
}

struct FakeHangingTransport;

impl Transport for FakeHangingTransport {
    async fn acquire(&self, _: &Endpoint, _: &str) {}

    async fn send(
        &self,
        _: &Endpoint,
        _: MessageContent<'_>,
        _: bool,
    ) -> Result<SendReceipt, SendFailure> {
        future::pending().await
    }
}

#[test]
fn contact_point_is_woken_when_its_last_entry_is_removed() {
    let points = Trigger::<ContactPoint>::default();
    let mut woken = points.open();
    let mut woken = || woken.try_recv().ok().map(|point| point.name);
    let outbox = Outbox::new(
        FakeHangingTransport,
        RETRY_POLICY,
        DeliveryMetrics::new(),
        Trigger::default(),
        points,
        CancellationToken::new(),
    );
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    queue.enqueue("b", &["2"]);
    fail(&mut queue);
    *outbox.queues() = queue.queues;
    outbox.forget(&key("a"));
    assert_eq!(woken(), None, "another message waits");
    outbox.forget(&key("b"));
    assert_eq!((woken().as_deref(), woken()), (Some("p"), None));
    outbox.enqueue(&key("p"), pending("c", &["3"]));
    assert_eq!((woken().as_deref(), woken()), (Some("p"), None));
    outbox.enqueue(&key("p"), pending("c", &["3", "4"]));
    assert_eq!(woken(), None);
    outbox.enqueue(&key("q"), pending("c", &["3", "4"]));
    assert_eq!((woken().as_deref(), woken()), (Some("p"), None));
}

#[test]
fn longest_pause_does_not_overflow_the_clock() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.respond(
        &request,
        Err(SendError::Retry {
            message: "429".into(),
            after: Some(Duration::MAX),
        }),
    );
    assert!(queue.is_waiting());
}

#[test]
fn varying_text_of_a_receiver_is_not_reported_again() {
    let mut queue = TestQueue::open();
    queue.test_another_endpoint();
    let mut fail = |message: &str| {
        queue.now += RETRY_POLICY.stopped;
        let request = queue.start().unwrap();
        queue.respond(&request, Err(retry(message))).point
    };
    assert!(fail("overloaded (503, request 1)"));
    assert!(!fail("overloaded (503, request 2)"));
    assert!(fail("overloaded (502, request 3)"));
    assert!(fail("overloaded (502, request 4): fix it"));
    assert!(fail("no answer within 10 s"));
}

#[test]
fn stopped_queue_waits_as_long_as_the_receiver_asks() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.respond(&request, Err(refusal(Refusal::Forbidden)));
    queue.now += RETRY_POLICY.stopped;
    let request = queue.start().unwrap();
    let hour = Duration::from_hours(1);
    queue.respond(
        &request,
        Err(SendError::Retry {
            message: "429".into(),
            after: Some(hour),
        }),
    );
    queue.now += RETRY_POLICY.stopped;
    assert!(queue.is_waiting());
    queue.now += hour;
    assert!(!queue.is_waiting());
}

#[test]
fn long_pause_and_a_new_problem_of_a_fixed_receiver_are_reported() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    let after = Some(Duration::from_hours(1));
    let affected = queue.respond(
        &request,
        Err(SendError::Retry {
            message: "too many requests".into(),
            after,
        }),
    );
    assert_eq!((affected.point, affected.fields), (true, vec![key("a")]));
    assert_eq!(
        queue.queues.failing(&key("p")).unwrap(),
        "too many requests (the receiver asks for a pause of 3600 s)"
    );
    // The same error with another pause is news, too.
    queue.now += Duration::from_hours(1);
    for (seconds, expected) in [
        (None, "too many requests (429)"),
        (
            Some(60),
            "too many requests (429) (the receiver asks for a pause of 60 s)",
        ),
        (None, "too many requests (429)"),
    ] {
        let request = queue.start().unwrap();
        let after = seconds.map(Duration::from_secs);
        let message = "too many requests (429)".into();
        let affected = queue.respond(&request, Err(SendError::Retry { message, after }));
        assert!(affected.point);
        assert_eq!(queue.queues.failing(&key("p")).unwrap(), expected);
        queue.now += Duration::from_hours(1);
    }

    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.respond(&request, Err(refusal(Refusal::Redirected)));
    queue.now += RETRY_POLICY.stopped;
    let stopped = queue.queues.receiver_state(&key("p"));
    let request = queue.start().unwrap();
    assert!(!queue.respond(&request, Err(retry("503"))).point);
    assert_eq!(
        queue.queues.receiver_state(&key("p")),
        stopped,
        "a single failure is not reported"
    );
    queue.now += RETRY_POLICY.backoff.min * 2;
    let request = queue.start().unwrap();
    assert!(
        request.is_test(),
        "as soon as any other failure, and the same message"
    );
    assert!(queue.respond(&request, Err(retry("503"))).point);
    assert_eq!(
        queue.queues.receiver_state(&key("p")),
        ReceiverState::Retrying("503".into())
    );
}
