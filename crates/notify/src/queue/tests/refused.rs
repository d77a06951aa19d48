//! Refused messages.

use Refusal::{Forbidden, Gone, Rejected};

use super::super::Circumstances;
use super::*;

fn failed(id: &str, reason: Refusal) -> Vec<(String, Outcome)> {
    vec![(
        id.to_owned(),
        Outcome::Failed {
            reason: reason.as_str().into(),
        },
    )]
}

impl Line {
    /// Takes the next request and compares it with these entries, or with the test message if there are none.
    fn expect(&mut self, entries: &[&str]) -> Request {
        let request = self.take().expect("a request");
        assert_eq!(ids(&request), entries);
        request
    }

    fn later(&mut self) {
        assert!(self.waits(), "nothing is sent before");
        self.now += PATIENCE.stopped;
    }

    fn standing(&self) -> &'static str {
        match self.lines.standing(&key("p")) {
            Standing::Untried => "Untried",
            Standing::Taken { .. } => "Taken",
            Standing::Retrying(_) => "Retrying",
            Standing::Stopped { reason, .. } => reason,
        }
    }

    fn write_rejected(&mut self, name: &str, said: (u16, &str)) -> bool {
        self.lines.write_rejected(
            &key(name),
            &key("p"),
            said,
            Circumstances::default(),
            self.now,
        )
    }

    fn templated(&mut self, name: &str, entries: &[&str]) {
        let mut object = field(name, entries).as_ref().clone();
        object.spec.template = Some("{{ value }}".into());
        self.lines
            .offer(&key("p"), Offer::of(&Arc::new(object)).unwrap());
    }
}

#[test]
fn a_receiver_that_refuses_everything_and_recovers_loses_nothing() {
    for reason in [Rejected, Forbidden, Gone] {
        let mut line = Line::open();
        for name in ["a", "b", "c", "d", "e"] {
            line.offer(name, &[name]);
        }
        for _ in 0..100 {
            let Some(request) = line.take() else {
                line.now += PATIENCE.stopped;
                continue;
            };
            line.refuse(&request, reason);
        }
        assert_eq!(line.standing(), reason.as_str());
        let mut delivered = Vec::new();
        while delivered.len() < 5 {
            let Some(request) = line.take() else {
                line.now += PATIENCE.stopped;
                continue;
            };
            line.taken(&request, request.picks.len());
            for pick in &request.picks {
                let outcomes = line.record(&pick.field.name, &[]);
                assert!(
                    outcomes
                        .iter()
                        .all(|(_, outcome)| *outcome == Outcome::Delivered),
                    "{outcomes:?}"
                );
                delivered.extend(outcomes);
            }
        }
    }
}

#[test]
fn one_poisonous_entry_holds_the_others_up_for_one_retry_period() {
    let mut line = Line::open();
    for name in ["a", "b", "c", "d", "e"] {
        line.offer(name, &[name]);
    }
    // A refused digest accuses no entry: its entries go alone, at once.
    let request = line.expect(&["a", "b", "c", "d", "e"]);
    line.refuse(&request, Forbidden);
    assert_eq!(line.standing(), "Untried");
    let request = line.expect(&["a"]);
    assert!(line.refuse(&request, Forbidden).point);
    assert_eq!(line.standing(), "Forbidden");
    line.later();
    let request = line.expect(&["b"]);
    assert!(line.taken(&request, 1).point);
    line.record("b", &[]);
    // The receiver may have recovered, so the entry gets one more attempt.
    let request = line.expect(&["a"]);
    assert!(!line.refuse(&request, Forbidden).point);
    assert_eq!(line.record("a", &["f"]), failed("a", Forbidden));
    assert_eq!(line.standing(), "Taken");
    for name in ["c", "d", "e"] {
        let request = line.expect(&[name]);
        line.taken(&request, 1);
        line.record(name, &[]);
    }
    line.expect(&["f"]);
}

#[test]
fn a_rejected_entry_lets_the_others_go_first_and_fails_after_them() {
    let mut line = Line::open();
    line.offer("a", &["1", "3"]);
    let request = line.take().unwrap();
    line.offer("b", &["2"]);
    line.refuse(&request, Rejected);
    let request = line.expect(&["1"]);
    line.refuse(&request, Rejected);
    let request = line.expect(&["2"]);
    line.taken(&request, 1);
    line.record("b", &[]);
    let request = line.expect(&["1"]);
    line.refuse(&request, Rejected);
    assert_eq!(line.record("a", &["3"]), failed("1", Rejected));
    line.expect(&["3"]);
    assert_eq!(line.standing(), "Taken");
}

#[test]
fn three_messages_rejected_in_a_row_stop_the_contact_point() {
    let mut line = Line::open();
    for name in ["a", "b", "c", "d"] {
        line.offer(name, &[name]);
    }
    let request = line.take().unwrap();
    line.refuse(&request, Rejected);
    for name in ["a", "b"] {
        let request = line.expect(&[name]);
        assert!(!line.refuse(&request, Rejected).point);
    }
    let request = line.expect(&["c"]);
    assert!(line.refuse(&request, Rejected).point);
    assert_eq!(line.standing(), "Rejected");
    for name in ["d", "a", "b", "c", "d"] {
        line.later();
        let request = line.expect(&[name]);
        line.refuse(&request, Rejected);
    }
}

#[test]
fn a_receiver_that_accepts_only_test_messages_costs_one_entry_and_one_test_message() {
    for reason in [Rejected, Forbidden] {
        let mut line = Line::open();
        line.offer("a", &["1", "2"]);
        let request = line.take().unwrap();
        line.refuse(&request, reason);
        let request = line.expect(&["1"]);
        line.refuse(&request, reason);
        if reason == Forbidden {
            line.later();
        }
        let request = line.expect(&[]);
        assert_eq!(
            line.standing(),
            if reason == Forbidden {
                "Forbidden"
            } else {
                "Untried"
            }
        );
        line.taken(&request, 0);
        let request = line.expect(&["1"]);
        line.refuse(&request, reason);
        assert_eq!(line.record("a", &["2"]), failed("1", reason));
        let request = line.expect(&["2"]);
        assert_eq!(line.lines.next(&key("p"), line.now).name(), "Wait");
        line.refuse(&request, reason);
        // After `Rejected` the queue notices that nothing is left to try.
        if reason == Rejected {
            assert_eq!(line.lines.next(&key("p"), line.now).name(), "Stopped");
        }
        assert_eq!(line.standing(), reason.as_str());
        for _ in 0..100 {
            line.later();
            let request = line.expect(&["2"]);
            line.refuse(&request, reason);
            assert!(line.lines.outcomes(&key("a")).is_empty());
        }
    }
}

#[test]
fn the_only_one_that_waits_and_the_test_message_alternate() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    let request = line.expect(&["1"]);
    line.refuse(&request, Forbidden);
    for _ in 0..3 {
        line.later();
        let request = line.expect(&[]);
        line.refuse(&request, Forbidden);
        line.later();
        let request = line.expect(&["1"]);
        line.refuse(&request, Forbidden);
    }
    // After a rejected entry the next request needs no pause.
    line.later();
    let request = line.expect(&[]);
    line.refuse(&request, Rejected);
    line.later();
    let request = line.expect(&["1"]);
    line.refuse(&request, Rejected);
    let request = line.expect(&[]);
    line.refuse(&request, Rejected);
    line.later();
}

#[test]
fn a_rejected_entry_alone_changes_no_status_where_the_test_message_is_accepted() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    let request = line.expect(&["1"]);
    assert!(!line.refuse(&request, Rejected).point);
    let request = line.expect(&[]);
    line.taken(&request, 0);
    assert_eq!(line.standing(), "Taken");
    let request = line.expect(&["1"]);
    assert!(!line.refuse(&request, Rejected).point);
    assert_eq!(line.record("a", &[]), failed("1", Rejected));
}

#[test]
fn a_stopped_receiver_is_tried_with_the_test_message_where_nothing_waits() {
    let mut line = Line::open();
    line.offer("a", &["1", "2"]);
    let request = line.take().unwrap();
    line.refuse(&request, Forbidden);
    let request = line.expect(&["1"]);
    assert!(line.refuse(&request, Forbidden).point);
    assert!(
        line.lines.in_flight(&key("a")).is_empty(),
        "it was refused: it is not in the air"
    );
    line.offer("a", &[]);
    line.later();
    let request = line.expect(&[]);
    assert!(line.taken(&request, 0).point);
    line.offer("a", &["3"]);
    line.expect(&["3"]);
}

/// People see test messages.
#[test]
fn no_second_test_message_is_accepted_before_an_entry_unless_somebody_asks() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    let request = line.expect(&["1"]);
    line.refuse(&request, Forbidden);
    line.later();
    let request = line.expect(&[]);
    line.taken(&request, 0);
    let request = line.expect(&["1"]);
    line.refuse(&request, Forbidden);
    line.record("a", &["2"]);
    let request = line.expect(&["2"]);
    line.refuse(&request, Forbidden);
    line.lines.withdraw(&key("a"), true);
    line.now += PATIENCE.stopped;
    assert!(matches!(
        line.lines.next(&key("p"), line.now),
        Next::Wait(None)
    ));
    line.lines.retry_now(&key("p"), line.now);
    line.expect(&[]);
}

/// A contact point's `body` stays in a plain request.
#[test]
fn a_text_that_a_template_made_is_first_replaced_by_the_default_text() {
    let mut line = Line::open();
    line.lines
        .configure(&key("p"), templated(), Stage::Open, another());
    line.templated("a", &["1"]);
    let first = line.expect(&["1"]);
    line.refuse(&first, Rejected);
    let plain = line.expect(&["1"]);
    assert_eq!((first.plain, plain.plain), (false, true));
    line.refuse(&plain, Rejected);
    let request = line.expect(&[]);
    line.taken(&request, 0);
    let request = line.expect(&["1"]);
    assert!(!request.plain);
    line.refuse(&request, Forbidden);
    assert!(
        line.lines.outcomes(&key("a")).is_empty(),
        "its default text may be accepted"
    );
    let request = line.expect(&["1"]);
    assert!(request.plain);
    line.refuse(&request, Forbidden);
    assert_eq!(line.record("a", &[]), failed("1", Forbidden));
}

#[test]
fn a_failed_entry_lets_another_message_go_before_the_next_one_can_fail() {
    let mut line = Line::open();
    line.lines
        .configure(&key("p"), chat(), Stage::Probe, another());
    for name in ["a", "b", "c"] {
        line.offer(name, &[name]);
    }
    for name in ["a", "b", "c"] {
        let request = line.expect(&[name]);
        line.refuse(&request, Gone);
        line.later();
    }
    line.offer("d", &["d"]);
    let request = line.expect(&["d"]);
    line.taken(&request, 1);
    line.record("d", &["d2", "d3"]);
    // A relapse of the receiver costs one entry, not three.
    let request = line.expect(&["a"]);
    line.refuse(&request, Gone);
    assert_eq!(line.record("a", &[]), failed("a", Gone));
    let request = line.expect(&["d2", "d3"]);
    line.refuse(&request, Gone);
    let request = line.expect(&["d2"]);
    line.refuse(&request, Gone);
    for name in ["b", "c", "d2", "b"] {
        line.later();
        let request = line.expect(&[name]);
        line.refuse(&request, Gone);
        assert!(
            line.lines.outcomes(&key(&name[..1])).is_empty(),
            "while it is stopped nothing fails"
        );
    }
}

/// No message can cause this refusal.
#[test]
fn an_address_that_is_refused_accuses_no_entry() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    line.offer("b", &["2"]);
    let request = line.expect(&["1", "2"]);
    assert!(line.refuse(&request, Refusal::AddressNotAllowed).point);
    line.later();
    let request = line.expect(&["1"]);
    line.taken(&request, 1);
    line.record("a", &[]);
    let request = line.expect(&["2"]);
    line.refuse(&request, Refusal::AddressNotAllowed);
    line.later();
    let request = line.expect(&["2"]);
    line.taken(&request, 1);
    assert_eq!(
        line.record("b", &[]),
        [("2".to_owned(), Outcome::Delivered)]
    );
}

#[test]
fn a_test_message_that_is_sent_again_is_the_same_until_it_is_accepted() {
    let test = TestMessage {
        configuration: "c".into(),
        accepted: AcceptedTests::default(),
    };
    let mut line = Line::open();
    line.lines
        .configure(&key("p"), chat(), Stage::Test, test.clone());
    let first = line.expect(&[]);
    line.answer(&first, Err(retry("503")));
    line.now += PATIENCE.retry.max;
    let again = line.expect(&[]);
    line.refuse(&again, Gone);
    // Another process uses the same id.
    let mut other = Line::open();
    other.lines.configure(&key("p"), chat(), Stage::Probe, test);
    let third = other.expect(&[]);
    assert_eq!(
        (&first.test_id, &first.test_id),
        (&again.test_id, &third.test_id)
    );
    assert!(other.taken(&third, 0).point);
    assert_eq!(
        other.lines.tests_accepted(&key("p")).count,
        1,
        "what the status keeps"
    );
    // Another configuration, and the first one again, whose acceptance the status does not show yet.
    for configuration in ["d", "c"] {
        let test = TestMessage {
            configuration: configuration.into(),
            accepted: AcceptedTests::default(),
        };
        other.lines.configure(&key("p"), chat(), Stage::Test, test);
        let request = other.expect(&[]);
        assert_ne!(
            request.test_id, first.test_id,
            "a receiver would pass over it"
        );
        other.answer(&request, Err(retry("503")));
    }
}

#[test]
fn a_restart_allows_no_second_test_message_between_two_accepted_entries() {
    let restarted = |stage, accepted| {
        let mut line = Line::open();
        line.lines.configure(
            &key("p"),
            chat(),
            stage,
            TestMessage {
                configuration: "c".into(),
                accepted,
            },
        );
        line
    };
    let mut line = restarted(Stage::Probe, AcceptedTests::default());
    let test = line.expect(&[]);
    assert!(line.taken(&test, 0).point);
    let kept = line.lines.tests_accepted(&key("p"));
    assert_eq!(
        kept,
        AcceptedTests {
            count: 1,
            while_stopped: true
        }
    );

    // The status may say ready or stopped by the time of the restart.
    for stage in [Stage::Open, Stage::Probe] {
        let mut line = restarted(stage, kept);
        assert!(line.waits());
        line.offer("a", &["1"]);
        for _ in 0..3 {
            let entry = line.expect(&["1"]);
            line.refuse(&entry, Forbidden);
            line.later();
        }
        assert_eq!(line.lines.tests_accepted(&key("p")), kept);
        let entry = line.expect(&["1"]);
        assert!(
            line.taken(&entry, 1).point,
            "the status must allow the next test message"
        );
        assert_eq!(
            line.lines.tests_accepted(&key("p")),
            AcceptedTests {
                while_stopped: false,
                ..kept
            }
        );
    }
}

#[test]
fn an_object_whose_outcome_cannot_be_stored_is_left_out_after_five_attempts() {
    let mut line = Line::open();
    line.offer("a", &["1", "2"]);
    line.offer("b", &["3"]);
    let request = line.take().unwrap();
    line.taken(&request, 1);
    for attempt in 1..=5 {
        assert!(line.take().is_none(), "before attempt {attempt}");
        assert!(!line.lines.nothing_flies());
        assert_eq!(line.write_rejected("a", (403, "denied")), attempt == 5);
    }
    assert_eq!(
        line.lines.left_out_of(&key("p")),
        [(key("a"), "denied".to_owned())]
    );
    assert!(
        line.lines.nothing_flies(),
        "a shutdown does not wait for it"
    );
    let request = line.expect(&["3"]);
    line.taken(&request, 1);
    line.record("b", &[]);
    // Nothing more of the object is sent, whatever it offers.
    line.offer("a", &["1", "2", "4"]);
    assert!(line.take().is_none());
    let outcomes = line.lines.outcomes(&key("a"));
    assert_eq!(outcomes, [("1".to_owned(), Outcome::Delivered)]);
    line.offer("a", &["2", "4"]);
    assert_eq!(line.lines.recorded(&key("a"), &outcomes), Some(key("p")));
    assert!(line.lines.left_out_of(&key("p")).is_empty());
    line.expect(&["2", "4"]);
}

#[test]
fn a_refused_write_is_retried_with_backoff_unless_something_changed() {
    let mut line = Line::open();
    let same = Circumstances::default();
    let due = |line: &Line, circumstances: &Circumstances| {
        line.lines
            .rejected_write_due(&key("a"), circumstances, line.now)
    };
    assert_eq!(due(&line, &same), None);
    let mut delays = Vec::new();
    for _ in 0..12 {
        line.write_rejected("a", (403, "denied"));
        let delay = due(&line, &same).unwrap();
        delays.push(delay);
        line.now += delay;
        assert_eq!(due(&line, &same), None);
    }
    assert!(
        delays[0] <= PATIENCE.retry.min * 2 && delays[11] >= PATIENCE.retry.max / 2,
        "{delays:?}"
    );
    line.write_rejected("a", (403, "denied"));
    for changed in [
        Circumstances {
            generation: Some(2),
            ..same.clone()
        },
        Circumstances {
            requested_at: Some("now".into()),
            ..same.clone()
        },
        Circumstances {
            apiserver_returns: 1,
            ..same.clone()
        },
    ] {
        assert_eq!(due(&line, &changed), None);
    }
    let changed = Circumstances {
        generation: Some(2),
        ..same
    };
    line.lines.write_rejected(
        &key("a"),
        &key("p"),
        (403, "denied"),
        changed.clone(),
        line.now,
    );
    assert!(
        due(&line, &changed).unwrap() <= PATIENCE.retry.min * 2,
        "the backoff begins anew"
    );
    line.lines.recorded(&key("a"), &[]);
    assert_eq!(due(&line, &changed), None);
}

/// A policy and a webhook that fails now and then.
#[test]
fn an_object_is_left_out_whatever_refuses_its_writes() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    let request = line.expect(&["1"]);
    line.taken(&request, 1);
    let mut rejected = |code, message| line.write_rejected("a", (code, message));
    for code in [403, 500, 403, 500] {
        assert!(!rejected(code, "no"));
    }
    assert!(rejected(403, "denied"));
    assert!(rejected(500, "failed"), "the reason is another one now");
    assert!(!rejected(500, "failed again"));
    assert_eq!(
        line.lines.left_out_of(&key("p")),
        [(key("a"), "failed".to_owned())]
    );
}

/// The other entry that was refused is all that waits, and the message that was sent instead of it has gone.
#[test]
fn an_entry_that_waits_for_its_last_attempt_is_sent_although_no_other_message_is_left() {
    let mut line = Line::open();
    for name in ["a", "c"] {
        line.offer(name, &[name]);
        let request = line.expect(&[name]);
        line.refuse(&request, Rejected);
    }
    line.offer("b", &["b"]);
    let request = line.expect(&["b"]);
    line.taken(&request, 1);
    line.record("b", &[]);
    let request = line.expect(&["a"]);
    line.refuse(&request, Rejected);
    line.record("a", &[]);
    // Deleted while its request is in flight.
    line.offer("d", &["d"]);
    let request = line.expect(&["d"]);
    line.lines.withdraw(&key("d"), true);
    line.refuse(&request, Rejected);
    let mut sent = Vec::new();
    for _ in 0..3 {
        match line.take() {
            Some(request) => {
                sent.extend(ids(&request).into_iter().map(str::to_owned));
                line.taken(&request, request.ids().count());
            }
            None => line.now += PATIENCE.stopped,
        }
    }
    assert!(sent.contains(&"c".to_owned()), "{sent:?}");
}

impl Next {
    fn name(&self) -> &'static str {
        match self {
            Self::Send => "Send",
            Self::Wait(_) => "Wait",
            Self::Stopped => "Stopped",
        }
    }
}
