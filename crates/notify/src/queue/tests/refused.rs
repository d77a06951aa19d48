//! Refused messages.

use Refusal::{Forbidden, Gone, Rejected};

use qm_runtime::SpecRevision;

use super::super::Circumstances;
use super::*;

fn failed(id: &str, reason: Refusal) -> Vec<(String, DeliveryOutcome)> {
    vec![(
        id.to_owned(),
        DeliveryOutcome::Failed {
            reason: reason.as_str().into(),
        },
    )]
}

impl TestQueue {
    /// Returns the next request, which must have these entries, or be the test message if there are none.
    fn expect(&mut self, entries: &[&str]) -> DeliveryRequest {
        let request = self.start().expect("a request");
        assert_eq!(ids(&request), entries);
        request
    }

    fn wait_for_retry(&mut self) {
        assert!(self.is_waiting(), "no request before the retry");
        self.now += RETRY_POLICY.stopped;
    }

    fn receiver_state_name(&self) -> &'static str {
        match self.queues.receiver_state(&key("p")) {
            ReceiverState::Untried => "Untried",
            ReceiverState::Accepted { .. } => "Accepted",
            ReceiverState::Retrying(_) => "Retrying",
            ReceiverState::Stopped { reason, .. } => reason,
        }
    }

    /// Rejects a status write; returns whether the status of the contact point changes.
    fn write_rejected(&mut self, name: &str, response: (u16, &str)) -> bool {
        let points = self.write_rejected_in("p", name, response);
        assert!(points.is_empty() || points == [key("p")], "{points:?}");
        !points.is_empty()
    }

    fn write_rejected_in(
        &mut self,
        point: &str,
        name: &str,
        response: (u16, &str),
    ) -> Vec<ObjectKey> {
        self.queues.write_rejected(
            &key(name),
            &key(point),
            response,
            Circumstances::default(),
            self.now,
        )
    }

    fn templated(&mut self, name: &str, entries: &[&str]) {
        let mut object = field(name, entries).as_ref().clone();
        std::sync::Arc::make_mut(&mut object.spec.notification).template =
            Some("{{ value }}".into());
        self.queues
            .enqueue(&key("p"), pending_of(&Arc::new(object)), self.now);
    }
}

#[test]
fn receiver_that_refuses_everything_and_recovers_loses_nothing() {
    for reason in [Rejected, Forbidden, Gone] {
        let mut queue = TestQueue::open();
        for name in ["a", "b", "c", "d", "e"] {
            queue.enqueue(name, &[name]);
        }
        for _ in 0..100 {
            let Some(request) = queue.start() else {
                queue.now += RETRY_POLICY.stopped;
                continue;
            };
            queue.refuse(&request, reason);
        }
        assert_eq!(queue.receiver_state_name(), reason.as_str());
        let mut delivered = Vec::new();
        while delivered.len() < 5 {
            let Some(request) = queue.start() else {
                queue.now += RETRY_POLICY.stopped;
                continue;
            };
            queue.accept(&request, request.entries.len());
            for entry in &request.entries {
                let outcomes = queue.record(&entry.key.field.name, &[]);
                assert!(
                    outcomes
                        .iter()
                        .all(|(_, outcome)| *outcome == DeliveryOutcome::Delivered),
                    "{outcomes:?}"
                );
                delivered.extend(outcomes);
            }
        }
    }
}

#[test]
fn poisonous_entry_delays_the_others_by_one_retry_period() {
    let mut queue = TestQueue::open();
    for name in ["a", "b", "c", "d", "e"] {
        queue.enqueue(name, &[name]);
    }
    // A refused digest does not identify the refused entry: its entries go alone, at once.
    let request = queue.expect(&["a", "b", "c", "d", "e"]);
    queue.refuse(&request, Forbidden);
    assert_eq!(queue.receiver_state_name(), "Untried");
    let request = queue.expect(&["a"]);
    assert!(queue.refuse(&request, Forbidden).point);
    assert_eq!(queue.receiver_state_name(), "Forbidden");
    queue.wait_for_retry();
    let request = queue.expect(&["b"]);
    assert!(queue.accept(&request, 1).point);
    queue.record("b", &[]);
    // The receiver may have recovered, so the entry gets one more attempt.
    let request = queue.expect(&["a"]);
    assert!(!queue.refuse(&request, Forbidden).point);
    assert_eq!(queue.record("a", &["f"]), failed("a", Forbidden));
    assert_eq!(queue.receiver_state_name(), "Accepted");
    for name in ["c", "d", "e"] {
        let request = queue.expect(&[name]);
        queue.accept(&request, 1);
        queue.record(name, &[]);
    }
    queue.expect(&["f"]);
}

#[test]
fn rejected_entry_fails_after_another_message_is_accepted() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1", "3"]);
    let request = queue.start().unwrap();
    queue.enqueue("b", &["2"]);
    queue.refuse(&request, Rejected);
    let request = queue.expect(&["1"]);
    queue.refuse(&request, Rejected);
    let request = queue.expect(&["2"]);
    queue.accept(&request, 1);
    queue.record("b", &[]);
    let request = queue.expect(&["1"]);
    queue.refuse(&request, Rejected);
    assert_eq!(queue.record("a", &["3"]), failed("1", Rejected));
    queue.expect(&["3"]);
    assert_eq!(queue.receiver_state_name(), "Accepted");
}

#[test]
fn three_messages_rejected_in_a_row_stop_the_contact_point() {
    let mut queue = TestQueue::open();
    for name in ["a", "b", "c", "d"] {
        queue.enqueue(name, &[name]);
    }
    let request = queue.start().unwrap();
    queue.refuse(&request, Rejected);
    for name in ["a", "b"] {
        let request = queue.expect(&[name]);
        assert!(!queue.refuse(&request, Rejected).point);
    }
    let request = queue.expect(&["c"]);
    assert!(queue.refuse(&request, Rejected).point);
    assert_eq!(queue.receiver_state_name(), "Rejected");
    for name in ["d", "a", "b", "c", "d"] {
        queue.wait_for_retry();
        let request = queue.expect(&[name]);
        queue.refuse(&request, Rejected);
    }
}

#[test]
fn receiver_that_accepts_only_test_messages_fails_one_entry() {
    for reason in [Rejected, Forbidden] {
        let mut queue = TestQueue::open();
        queue.enqueue("a", &["1", "2"]);
        let request = queue.start().unwrap();
        queue.refuse(&request, reason);
        let request = queue.expect(&["1"]);
        queue.refuse(&request, reason);
        if reason == Forbidden {
            queue.wait_for_retry();
        }
        let request = queue.expect(&[]);
        assert_eq!(
            queue.receiver_state_name(),
            if reason == Forbidden {
                "Forbidden"
            } else {
                "Untried"
            }
        );
        queue.accept(&request, 0);
        let request = queue.expect(&["1"]);
        queue.refuse(&request, reason);
        assert_eq!(queue.record("a", &["2"]), failed("1", reason));
        let request = queue.expect(&["2"]);
        assert_eq!(queue.queues.next(&key("p"), queue.now).name(), "Wait");
        queue.refuse(&request, reason);
        // After `Rejected` the next step finds that no request is left to try.
        if reason == Rejected {
            assert_eq!(queue.queues.next(&key("p"), queue.now).name(), "Stopped");
        }
        assert_eq!(queue.receiver_state_name(), reason.as_str());
        for _ in 0..100 {
            queue.wait_for_retry();
            let request = queue.expect(&["2"]);
            queue.refuse(&request, reason);
            assert!(queue.queues.outcomes(&key("a")).is_empty());
        }
    }
}

#[test]
fn test_message_alternates_with_the_only_pending_entry() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let request = queue.expect(&["1"]);
    queue.refuse(&request, Forbidden);
    for _ in 0..3 {
        queue.wait_for_retry();
        let request = queue.expect(&[]);
        queue.refuse(&request, Forbidden);
        queue.wait_for_retry();
        let request = queue.expect(&["1"]);
        queue.refuse(&request, Forbidden);
    }
    // After a rejected entry the next request needs no pause.
    queue.wait_for_retry();
    let request = queue.expect(&[]);
    queue.refuse(&request, Rejected);
    queue.wait_for_retry();
    let request = queue.expect(&["1"]);
    queue.refuse(&request, Rejected);
    let request = queue.expect(&[]);
    queue.refuse(&request, Rejected);
    queue.wait_for_retry();
}

#[test]
fn single_rejected_entry_keeps_the_status_if_the_test_message_is_accepted() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let request = queue.expect(&["1"]);
    assert!(!queue.refuse(&request, Rejected).point);
    let request = queue.expect(&[]);
    queue.accept(&request, 0);
    assert_eq!(queue.receiver_state_name(), "Accepted");
    let request = queue.expect(&["1"]);
    assert!(!queue.refuse(&request, Rejected).point);
    assert_eq!(queue.record("a", &[]), failed("1", Rejected));
}

#[test]
fn stopped_queue_sends_the_test_message_when_no_entry_is_pending() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1", "2"]);
    let request = queue.start().unwrap();
    queue.refuse(&request, Forbidden);
    let request = queue.expect(&["1"]);
    assert!(queue.refuse(&request, Forbidden).point);
    assert!(
        queue.queues.in_flight(&key("a")).is_empty(),
        "a refused entry is not in flight"
    );
    queue.enqueue("a", &[]);
    queue.wait_for_retry();
    let request = queue.expect(&[]);
    assert!(queue.accept(&request, 0).point);
    queue.enqueue("a", &["3"]);
    queue.expect(&["3"]);
}

#[test]
fn second_test_message_needs_an_accepted_entry_or_a_request() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let request = queue.expect(&["1"]);
    queue.refuse(&request, Forbidden);
    queue.wait_for_retry();
    let request = queue.expect(&[]);
    queue.accept(&request, 0);
    let request = queue.expect(&["1"]);
    queue.refuse(&request, Forbidden);
    queue.record("a", &["2"]);
    let request = queue.expect(&["2"]);
    queue.refuse(&request, Forbidden);
    queue.queues.forget(&key("a"));
    queue.now += RETRY_POLICY.stopped;
    assert!(matches!(
        queue.queues.next(&key("p"), queue.now),
        QueueStep::Wait(None)
    ));
    queue.queues.retry_now(&key("p"), queue.now);
    queue.expect(&[]);
}

/// A plain request replaces only the template: a contact point's `body` stays.
#[test]
fn template_text_is_replaced_by_the_default_text_first() {
    let mut queue = TestQueue::open();
    queue.queues.configure(
        &key("p"),
        templated(),
        Duration::ZERO,
        InitialState::Open,
        another(),
        queue.now,
    );
    queue.templated("a", &["1"]);
    let first = queue.expect(&["1"]);
    queue.refuse(&first, Rejected);
    let plain = queue.expect(&["1"]);
    assert_eq!((first.plain, plain.plain), (false, true));
    queue.refuse(&plain, Rejected);
    let request = queue.expect(&[]);
    queue.accept(&request, 0);
    let request = queue.expect(&["1"]);
    assert!(!request.plain);
    queue.refuse(&request, Forbidden);
    assert!(
        queue.queues.outcomes(&key("a")).is_empty(),
        "the receiver may accept the default text"
    );
    let request = queue.expect(&["1"]);
    assert!(request.plain);
    queue.refuse(&request, Forbidden);
    assert_eq!(queue.record("a", &[]), failed("1", Forbidden));
}

/// Returns a queue of the entries `a`, `b` and `c`, each of another `TrackedField` and refused for this reason.
fn with_three_refused(reason: Refusal) -> TestQueue {
    let mut queue = TestQueue::open();
    queue.configure("p", InitialState::Probe, another());
    for name in ["a", "b", "c"] {
        queue.enqueue(name, &[name]);
    }
    for name in ["a", "b", "c"] {
        let request = queue.expect(&[name]);
        queue.refuse(&request, reason);
        queue.wait_for_retry();
    }
    queue
}

#[test]
fn another_message_goes_between_two_failed_entries() {
    let mut queue = with_three_refused(Gone);
    queue.enqueue("d", &["d"]);
    let request = queue.expect(&["d"]);
    queue.accept(&request, 1);
    queue.record("d", &["d2", "d3"]);
    // A relapse of the receiver costs one entry, not three.
    let request = queue.expect(&["a"]);
    queue.refuse(&request, Gone);
    assert_eq!(queue.record("a", &[]), failed("a", Gone));
    let request = queue.expect(&["d2", "d3"]);
    queue.refuse(&request, Gone);
    let request = queue.expect(&["d2"]);
    queue.refuse(&request, Gone);
    for name in ["b", "c", "d2", "b"] {
        queue.wait_for_retry();
        let request = queue.expect(&[name]);
        queue.refuse(&request, Gone);
        assert!(
            queue.queues.outcomes(&key(&name[..1])).is_empty(),
            "no entry fails while the queue is stopped"
        );
    }
}

/// A requested test message is accepted, although the receiver still refuses every entry.
#[test]
fn accepted_test_message_costs_one_entry_of_one_tracked_field() {
    for reason in [Rejected, Gone] {
        let mut queue = with_three_refused(reason);
        queue.queues.request_test(&key("p"), "1", queue.now);
        let request = queue.expect(&[]);
        queue.accept(&request, 0);
        let request = queue.expect(&["a"]);
        queue.refuse(&request, Forbidden);
        assert_eq!(queue.record("a", &[]), failed("a", Forbidden));
        assert_eq!(queue.queues.next(&key("p"), queue.now).name(), "Stopped");
        assert_eq!(queue.receiver_state_name(), "Forbidden");
        for name in ["b", "c", "b"] {
            queue.wait_for_retry();
            let request = queue.expect(&[name]);
            queue.refuse(&request, reason);
            assert!(queue.queues.outcomes(&key(name)).is_empty(), "{name}");
        }
    }
}

/// No message can cause this refusal.
#[test]
fn refused_address_fails_no_entry() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    queue.enqueue("b", &["2"]);
    let request = queue.expect(&["1", "2"]);
    assert!(queue.refuse(&request, Refusal::AddressNotAllowed).point);
    queue.wait_for_retry();
    let request = queue.expect(&["1"]);
    queue.accept(&request, 1);
    queue.record("a", &[]);
    let request = queue.expect(&["2"]);
    queue.refuse(&request, Refusal::AddressNotAllowed);
    queue.wait_for_retry();
    let request = queue.expect(&["2"]);
    queue.accept(&request, 1);
    assert_eq!(
        queue.record("b", &[]),
        [("2".to_owned(), DeliveryOutcome::Delivered)]
    );
}

#[test]
fn test_message_keeps_its_id_until_accepted() {
    let test = TestMessage {
        configuration: "c".into(),
        accepted: AcceptedTests::default(),
    };
    let mut queue = TestQueue::open();
    queue.configure("p", InitialState::Test, test.clone());
    let first = queue.expect(&[]);
    queue.respond(&first, Err(retry("503")));
    queue.now += RETRY_POLICY.backoff.max;
    let again = queue.expect(&[]);
    queue.refuse(&again, Gone);
    // Another process uses the same id.
    let mut other = TestQueue::open();
    other.configure("p", InitialState::Probe, test);
    other.wait_for_retry();
    let third = other.expect(&[]);
    assert_eq!(
        (&first.test_id, &first.test_id),
        (&again.test_id, &third.test_id)
    );
    assert!(other.accept(&third, 0).point);
    assert_eq!(
        other.queues.tests_accepted(&key("p")).count,
        1,
        "the status keeps the count"
    );
    // Another configuration, and the first one again, whose acceptance the status does not show yet.
    for configuration in ["d", "c"] {
        let test = TestMessage {
            configuration: configuration.into(),
            accepted: AcceptedTests::default(),
        };
        other.configure("p", InitialState::Test, test);
        let request = other.expect(&[]);
        assert_ne!(
            request.test_id, first.test_id,
            "a receiver would ignore a known id"
        );
        other.respond(&request, Err(retry("503")));
    }
}

#[test]
fn stopped_queue_learns_after_a_restart_which_entries_wait() {
    let mut queue = TestQueue::open();
    queue.configure("p", InitialState::Probe, another());
    assert!(queue.is_waiting(), "no test message before the entries");
    queue.enqueue("a", &["1"]);
    let entry = queue.expect(&["1"]);
    queue.refuse(&entry, Gone);
    queue.wait_for_retry();
    // The entry and the test message of a single TrackedField alternate.
    let test = queue.expect(&[]);
    queue.accept(&test, 0);
    let entry = queue.expect(&["1"]);
    queue.refuse(&entry, Gone);
    assert_eq!(queue.record("a", &[]), failed("1", Gone));
}

#[test]
fn restart_allows_no_second_test_message_between_two_entries() {
    let restarted = |initial_state, accepted| {
        let mut queue = TestQueue::open();
        queue.configure(
            "p",
            initial_state,
            TestMessage {
                configuration: "c".into(),
                accepted,
            },
        );
        queue
    };
    let mut queue = restarted(InitialState::Probe, AcceptedTests::default());
    queue.wait_for_retry();
    let test = queue.expect(&[]);
    assert!(queue.accept(&test, 0).point);
    let kept = queue.queues.tests_accepted(&key("p"));
    assert_eq!(
        kept,
        AcceptedTests {
            count: 1,
            while_stopped: true
        }
    );

    // The status may say ready or stopped by the time of the restart.
    for initial_state in [InitialState::Open, InitialState::Probe] {
        let mut queue = restarted(initial_state, kept);
        assert!(queue.is_waiting());
        queue.enqueue("a", &["1"]);
        for _ in 0..3 {
            let entry = queue.expect(&["1"]);
            queue.refuse(&entry, Forbidden);
            queue.wait_for_retry();
        }
        assert_eq!(queue.queues.tests_accepted(&key("p")), kept);
        let entry = queue.expect(&["1"]);
        assert!(
            queue.accept(&entry, 1).point,
            "the status must allow the next test message"
        );
        assert_eq!(
            queue.queues.tests_accepted(&key("p")),
            AcceptedTests {
                while_stopped: false,
                ..kept
            }
        );
    }
}

#[test]
fn object_is_left_out_after_five_rejected_writes() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1", "2"]);
    queue.enqueue("b", &["3"]);
    let request = queue.start().unwrap();
    queue.accept(&request, 1);
    for attempt in 1..=5 {
        assert!(queue.start().is_none(), "before attempt {attempt}");
        assert!(!queue.queues.is_idle());
        assert_eq!(queue.write_rejected("a", (403, "denied")), attempt == 5);
    }
    assert_eq!(
        queue.queues.left_out_of(&key("p")),
        [(key("a"), "denied".to_owned())]
    );
    assert!(
        queue.queues.is_idle(),
        "a shutdown does not wait for that object"
    );
    let request = queue.expect(&["3"]);
    queue.accept(&request, 1);
    queue.record("b", &[]);
    // The queue sends no further entry of the object, even if more are enqueued.
    queue.enqueue("a", &["1", "2", "4"]);
    assert!(queue.start().is_none());
    let outcomes = queue.queues.outcomes(&key("a"));
    assert_eq!(outcomes, [("1".to_owned(), DeliveryOutcome::Delivered)]);
    queue.enqueue("a", &["2", "4"]);
    assert_eq!(queue.queues.recorded(&key("a"), &outcomes), Some(key("p")));
    assert!(queue.queues.left_out_of(&key("p")).is_empty());
    queue.expect(&["2", "4"]);
}

/// The spec of an object may name another contact point before the outcome is recorded.
#[test]
fn left_out_object_wakes_only_the_queue_that_waits_for_it() {
    let mut queue = TestQueue::open();
    let other = queue.configure("q", InitialState::Open, TestMessage::default());
    let other = other.unwrap();
    queue.enqueue("a", &["1"]);
    let request = queue.start().unwrap();
    queue.accept(&request, 1);
    queue.enqueue_in("q", "a", &["1!"]);
    let is_woken = || other.notified().now_or_never().is_some();
    while queue.is_woken() || is_woken() {}
    for _ in 1..=5 {
        assert!(!queue.is_woken() && !is_woken());
        queue.write_rejected_in("q", "a", (403, "denied"));
    }
    assert!(queue.is_woken() && !is_woken());
    let left_out = queue.queues.left_out_of(&key("q"));
    assert_eq!(left_out, [(key("a"), "denied".to_owned())]);
}

#[test]
fn rejected_write_is_retried_with_backoff_unless_circumstances_change() {
    let mut queue = TestQueue::open();
    let same = Circumstances::default();
    let with_revision = |revision: SpecRevision| Circumstances {
        revision,
        ..Circumstances::default()
    };
    let due = |queue: &TestQueue, circumstances: &Circumstances| {
        queue
            .queues
            .rejected_write_due(&key("a"), circumstances, queue.now)
    };
    assert_eq!(due(&queue, &same), None);
    let mut delays = Vec::new();
    for _ in 0..12 {
        queue.write_rejected("a", (403, "denied"));
        let delay = due(&queue, &same).unwrap();
        delays.push(delay);
        queue.now += delay;
        assert_eq!(due(&queue, &same), None);
    }
    assert!(
        delays[0] <= RETRY_POLICY.backoff.min * 2 && delays[11] >= RETRY_POLICY.backoff.max / 2,
        "{delays:?}"
    );
    queue.write_rejected("a", (403, "denied"));
    for changed in [
        with_revision(SpecRevision {
            generation: Some(2),
            ..SpecRevision::default()
        }),
        with_revision(SpecRevision {
            requested_at: Some("now".into()),
            ..SpecRevision::default()
        }),
        Circumstances {
            outages_ended: 1,
            ..same.clone()
        },
    ] {
        assert_eq!(due(&queue, &changed), None);
    }
    let changed = with_revision(SpecRevision {
        generation: Some(2),
        ..SpecRevision::default()
    });
    queue.queues.write_rejected(
        &key("a"),
        &key("p"),
        (403, "denied"),
        changed.clone(),
        queue.now,
    );
    assert!(
        due(&queue, &changed).unwrap() <= RETRY_POLICY.backoff.min * 2,
        "the backoff restarts"
    );
    queue.queues.recorded(&key("a"), &[]);
    assert_eq!(due(&queue, &changed), None);
}

#[test]
fn left_out_object_that_moves_changes_the_status_of_both_contact_points() {
    let mut queue = TestQueue::open();
    let denied = (403, "denied");
    assert!(!queue.write_rejected("a", denied));
    assert!(queue.write_rejected_in("q", "a", denied).is_empty());
    for attempt in 3..=5 {
        assert_eq!(queue.write_rejected("a", denied), attempt == 5);
    }
    let points = queue.write_rejected_in("q", "a", denied);
    assert_eq!(points, [key("p"), key("q")]);
    assert!(queue.queues.left_out_of(&key("p")).is_empty());
    let left_out = queue.queues.left_out_of(&key("q"));
    assert_eq!(left_out, [(key("a"), "denied".to_owned())]);
    assert!(queue.write_rejected_in("q", "a", denied).is_empty());
    assert_eq!(queue.queues.recorded(&key("a"), &[]), Some(key("q")));
}

/// The causes are an admission policy, and a webhook that fails now and then.
#[test]
fn object_is_left_out_for_any_cause_of_rejection() {
    let mut queue = TestQueue::open();
    queue.enqueue("a", &["1"]);
    let request = queue.expect(&["1"]);
    queue.accept(&request, 1);
    let mut rejected = |code, message| queue.write_rejected("a", (code, message));
    for code in [403, 500, 403, 500] {
        assert!(!rejected(code, "no"));
    }
    assert!(rejected(403, "denied"));
    assert!(rejected(500, "failed"), "the cause changed");
    assert!(!rejected(500, "failed again"));
    assert_eq!(
        queue.queues.left_out_of(&key("p")),
        [(key("a"), "failed".to_owned())]
    );
}

/// The other refused entry is the only pending one, and the message that went before it was deleted.
#[test]
fn last_attempt_is_sent_when_no_other_message_is_left() {
    let mut queue = TestQueue::open();
    for name in ["a", "c"] {
        queue.enqueue(name, &[name]);
        let request = queue.expect(&[name]);
        queue.refuse(&request, Rejected);
    }
    queue.enqueue("b", &["b"]);
    let request = queue.expect(&["b"]);
    queue.accept(&request, 1);
    queue.record("b", &[]);
    let request = queue.expect(&["a"]);
    queue.refuse(&request, Rejected);
    queue.record("a", &[]);
    // Deleted while its request is in flight.
    queue.enqueue("d", &["d"]);
    let request = queue.expect(&["d"]);
    queue.queues.forget(&key("d"));
    queue.refuse(&request, Rejected);
    let mut sent = Vec::new();
    for _ in 0..3 {
        match queue.start() {
            Some(request) => {
                sent.extend(ids(&request).into_iter().map(str::to_owned));
                queue.accept(&request, request.ids().count());
            }
            None => queue.now += RETRY_POLICY.stopped,
        }
    }
    assert!(sent.contains(&"c".to_owned()), "{sent:?}");
}

impl QueueStep {
    fn name(&self) -> &'static str {
        match self {
            Self::Send => "Send",
            Self::Wait(_) => "Wait",
            Self::Stopped => "Stopped",
        }
    }
}
