//! What a line decides, without a clock, a network or an apiserver.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use qm_api::TrackedField;
use qm_api::tracked_field::{Entry, StoredHistory};
use qm_runtime::Key;
use qm_runtime::backoff::Policy;
use serde_json::json;

use super::lines::{Lines, Next, Request};
use super::{AcceptedTests, Offer, Patience, Stage, Standing, TestMessage};
use crate::history::Outcome;
use crate::telegram::Chat;
use crate::webhook::{Hook, Parts};
use crate::{Endpoint, Failure, Refusal, SendError, Sent};

mod answers;
mod expiry;
mod model;
mod refused;

const PATIENCE: Patience = Patience {
    retry: Policy {
        min: Duration::from_secs(1),
        max: Duration::from_mins(5),
    },
    stopped: Duration::from_mins(5),
    max_age: Duration::from_hours(24),
};

fn chat() -> Endpoint {
    let chat = qm_api::contact_point::ChatId::Id(1);
    Endpoint::Telegram(Chat::new(b"1:a", chat, None, false).unwrap())
}

fn templated() -> Endpoint {
    let parts = Parts {
        url: "http://x.test/".into(),
        body: Some("{{ text }}".into()),
        ..Parts::default()
    };
    Endpoint::Webhook(Box::new(Hook::new(parts).unwrap()))
}

/// A `TrackedField` with these entries, each `ID` pending or `ID!` delivered.
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

fn offer(name: &str, entries: &[&str]) -> Offer {
    Offer::of(&field(name, entries)).unwrap()
}

fn another() -> TestMessage {
    TestMessage {
        configuration: "another".into(),
        accepted: AcceptedTests::default(),
    }
}

fn key(name: &str) -> Key {
    Key::new("n", name)
}

/// One line, `p`, and its clock.
struct Line {
    lines: Lines,
    now: Instant,
}

impl Line {
    fn open() -> Self {
        let mut lines = Lines::new(PATIENCE);
        assert!(
            lines
                .configure(&key("p"), chat(), Stage::Open, TestMessage::default())
                .is_some(),
            "a new line needs a worker"
        );
        Self {
            lines,
            now: Instant::now(),
        }
    }

    fn offer(&mut self, name: &str, entries: &[&str]) -> i64 {
        self.lines.offer(&key("p"), offer(name, entries))
    }

    fn take(&mut self) -> Option<Request> {
        self.take_of("p")
    }

    fn take_of(&mut self, point: &str) -> Option<Request> {
        let (_, edition) = self.lines.endpoint(&key(point))?;
        self.lines.take(&key(point), edition, self.now)
    }

    /// Answers all entries of the request.
    fn answer(
        &mut self,
        request: &Request,
        answer: Result<Sent, Failure>,
    ) -> super::answers::Concerned {
        let answer = answer.map_err(|failure| SendError::new(failure, request.picks.len()));
        self.lines.answered(&key("p"), request, answer, self.now)
    }

    fn refuse(&mut self, request: &Request, reason: Refusal) -> super::answers::Concerned {
        self.answer(request, Err(refusal(reason)))
    }

    fn taken(&mut self, request: &Request, taken: usize) -> super::answers::Concerned {
        self.answer(
            request,
            Ok(Sent {
                taken,
                migrated_to: None,
            }),
        )
    }

    fn waits(&mut self) -> bool {
        !matches!(self.lines.next(&key("p"), self.now), Next::Send)
    }

    /// What the pass of a `TrackedField` does with its outcomes.
    fn record(&mut self, name: &str, entries: &[&str]) -> Vec<(String, Outcome)> {
        let outcomes = self.lines.outcomes(&key(name));
        self.offer(name, entries);
        self.lines.recorded(&key(name), &outcomes);
        outcomes
    }
}

fn ids(request: &Request) -> Vec<&str> {
    request.ids().collect()
}

fn refusal(reason: Refusal) -> Failure {
    Failure::Refused {
        reason,
        message: reason.as_str().into(),
    }
}

fn retry(message: &str) -> Failure {
    Failure::Retry {
        message: message.into(),
        after: None,
    }
}

#[test]
fn the_oldest_go_first_and_each_object_keeps_its_order() {
    let mut line = Line::open();
    line.offer("a", &["1!", "3", "4"]);
    // A clock that was set back gave this one ids that do not grow.
    line.offer("b", &["5", "2"]);
    assert_eq!(ids(&line.take().unwrap()), ["3", "4", "5", "2"]);
}

#[test]
fn nothing_more_is_sent_until_every_outcome_is_recorded() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    line.offer("b", &["2"]);
    let request = line.take().unwrap();
    assert_eq!(line.taken(&request, 2).fields, [key("a"), key("b")]);
    line.offer("c", &["3"]);
    assert!(line.waits());
    assert_eq!(
        line.record("a", &["1!"]),
        [("1".to_owned(), Outcome::Delivered)]
    );
    assert!(line.waits(), "b's outcome does not stand in status yet");
    line.record("b", &["2!"]);
    assert_eq!(ids(&line.take().unwrap()), ["3"]);
}

#[test]
fn what_did_not_fit_goes_next() {
    let mut line = Line::open();
    line.offer("a", &["1", "2", "3"]);
    let request = line.take().unwrap();
    line.taken(&request, 2);
    line.record("a", &["1!", "2!", "3"]);
    assert_eq!(ids(&line.take().unwrap()), ["3"]);
}

#[test]
fn an_object_with_something_in_the_air_moves_to_no_other_line_until_it_has_landed() {
    let mut line = Line::open();
    line.lines
        .configure(&key("q"), chat(), Stage::Open, TestMessage::default());
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    line.lines.offer(&key("q"), offer("a", &["1"]));
    assert!(line.take_of("q").is_none(), "it would be sent twice");
    line.taken(&request, 1);
    let outcomes = line.lines.outcomes(&key("a"));
    line.lines.offer(&key("q"), offer("a", &["1!", "2"]));
    line.lines.recorded(&key("a"), &outcomes);
    assert_eq!(ids(&line.take_of("q").unwrap()), ["2"]);
}

#[test]
fn an_answer_to_a_former_endpoint_marks_what_it_took_and_says_nothing_of_the_new_one() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    line.lines
        .configure(&key("p"), chat(), Stage::Test, another());
    line.answer(&request, Err(refusal(Refusal::NotFound)));
    assert_eq!(line.lines.standing(&key("p")), Standing::Untried);
}

#[test]
fn what_a_former_endpoint_took_is_not_sent_to_the_new_one() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    line.lines
        .configure(&key("p"), chat(), Stage::Open, another());
    line.taken(&request, 1);
    assert_eq!(
        line.record("a", &["1!"]),
        [("1".to_owned(), Outcome::Delivered)]
    );
    assert!(line.waits());
}

#[test]
fn a_contact_point_that_goes_while_it_is_sent_to_still_gets_its_answer() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    line.lines.remove(&key("p"));
    line.taken(&request, 1);
    assert_eq!(
        line.record("a", &["1!"]),
        [("1".to_owned(), Outcome::Delivered)]
    );
    assert!(
        line.lines
            .configure(&key("p"), chat(), Stage::Open, TestMessage::default())
            .is_some(),
        "it was a line of its own"
    );
}

/// It was suspended, or its Secret could not be read.
#[test]
fn what_is_known_of_a_receiver_outlasts_a_pause() {
    let hour = Duration::from_hours(1);
    let later = || Failure::Retry {
        message: "429".into(),
        after: Some(hour),
    };
    let pause = |line: &mut Line| {
        line.lines.close(&key("p"));
        line.now += PATIENCE.stopped;
        assert!(line.take().is_none());
    };
    // The stage of the status counts for another configuration only.
    let resume = |line: &mut Line, test| line.lines.configure(&key("p"), chat(), Stage::Open, test);
    for answered_while_paused in [false, true] {
        let mut line = Line::open();
        line.offer("a", &["1"]);
        let request = line.take().unwrap();
        if answered_while_paused {
            line.lines.close(&key("p"));
        }
        line.answer(&request, Err(later()));
        pause(&mut line);
        assert!(
            line.lines.in_flight(&key("a")).is_empty(),
            "it may be merged"
        );
        resume(&mut line, TestMessage::default());
        assert!(line.waits());
        line.now += hour;
        assert_eq!(ids(&line.take().unwrap()), ["1"]);
    }

    let mut line = Line::open();
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    line.refuse(&request, Refusal::Forbidden);
    line.now += PATIENCE.stopped;
    let request = line.take().unwrap();
    assert!(request.is_test());
    line.taken(&request, 0);
    line.offer("a", &["1"]);
    let stopped = line.lines.standing(&key("p"));
    pause(&mut line);
    resume(&mut line, TestMessage::default());
    assert_eq!(line.lines.standing(&key("p")), stopped);
    let request = line.take().unwrap();
    line.refuse(&request, Refusal::Forbidden);
    assert!(
        matches!(&*line.record("a", &[]), [(_, Outcome::Failed { .. })]),
        "it was its second refusal"
    );
    pause(&mut line);
    resume(&mut line, another());
    assert_eq!(
        line.lines.standing(&key("p")),
        Standing::Untried,
        "another receiver"
    );
    assert_eq!(line.lines.tests_accepted(&key("p")).count, 1);
}

/// A line that nothing waits in.
#[test]
fn a_contact_point_without_entries_keeps_its_pause_too_until_it_is_deleted() {
    let mut line = Line::open();
    line.lines
        .configure(&key("p"), chat(), Stage::Test, another());
    let request = line.take().unwrap();
    line.answer(
        &request,
        Err(Failure::Retry {
            message: "429".into(),
            after: Some(Duration::from_hours(1)),
        }),
    );
    line.lines.close(&key("p"));
    line.offer("a", &["1"]);
    line.lines.withdraw(&key("a"), true);
    line.lines
        .configure(&key("p"), chat(), Stage::Test, another());
    assert!(line.waits());
    line.lines.remove(&key("p"));
    line.lines
        .configure(&key("p"), chat(), Stage::Test, another());
    assert!(line.take().unwrap().is_test());
}

/// Deleted, or moved to another contact point.
#[test]
fn nothing_is_kept_of_an_object_that_went_while_its_request_was_in_flight() {
    let went: [fn(&mut Line); 2] = [
        |line| assert_eq!(line.lines.withdraw(&key("a"), true), -1),
        |line| assert_eq!(line.lines.offer(&key("q"), offer("a", &["1"])), 0),
    ];
    for went in went {
        for digest in [false, true] {
            let mut line = Line::open();
            line.offer("a", &["1"]);
            if digest {
                line.offer("b", &["2"]);
            }
            let request = line.take().unwrap();
            went(&mut line);
            line.refuse(&request, Refusal::Rejected);
            assert!(
                !line.lines.by_point[&key("p")].answers.knows(&key("a")),
                "{digest}"
            );
        }
    }
}

#[test]
fn a_deleted_object_holds_up_nobody() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    line.taken(&request, 1);
    line.lines.withdraw(&key("a"), true);
    line.offer("b", &["2"]);
    assert_eq!(ids(&line.take().unwrap()), ["2"]);
}

#[test]
fn what_waits_is_counted() {
    let mut line = Line::open();
    assert_eq!(line.offer("a", &["1", "2"]), 2);
    assert_eq!(line.offer("a", &["1!", "2", "3", "4"]), 1);
    assert_eq!(line.lines.withdraw(&key("a"), false), -3);
    assert_eq!(line.lines.withdraw(&key("a"), true), 0);
}

#[test]
fn nothing_is_left_to_do_once_what_was_tried_waits_no_more() {
    let gone: [fn(&mut Line); 3] = [
        |line| assert_eq!(line.lines.withdraw(&key("a"), true), -1),
        |line| assert_eq!(line.lines.withdraw(&key("a"), false), -1),
        |line| assert_eq!(line.offer("a", &["1!"]), -1),
    ];
    for gone in gone {
        let mut line = Line::open();
        line.offer("a", &["1"]);
        let request = line.take().unwrap();
        line.answer(&request, Err(retry("refused")));
        gone(&mut line);
        line.now += PATIENCE.stopped;
        assert!(
            matches!(line.lines.next(&key("p"), line.now), Next::Wait(None)),
            "the worker would spin"
        );
        assert!(line.lines.nothing_flies());
    }
    // While it is in the air, too.
    let mut line = Line::open();
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    line.lines.withdraw(&key("a"), false);
    line.answer(&request, Err(retry("refused")));
    line.now += PATIENCE.stopped;
    assert!(matches!(
        line.lines.next(&key("p"), line.now),
        Next::Wait(None)
    ));
}

#[test]
fn an_object_that_moved_away_in_mid_request_is_sent_as_soon_as_that_failed() {
    for answer in [
        Err(retry("503")),
        Err(refusal(Refusal::Unauthorized)),
        Err(refusal(Refusal::Rejected)),
        Ok(Sent {
            taken: 1,
            migrated_to: None,
        }),
    ] {
        let mut line = Line::open();
        let changed = line
            .lines
            .configure(&key("q"), chat(), Stage::Open, TestMessage::default())
            .unwrap();
        line.offer("a", &["1"]);
        line.offer("b", &["2"]);
        let request = line.take().unwrap();
        line.lines.offer(&key("q"), offer("b", &["2"]));
        changed.notified().now_or_never().unwrap();
        assert!(line.take_of("q").is_none(), "it would be sent twice");
        line.answer(&request, answer);
        assert!(
            changed.notified().now_or_never().is_some(),
            "nobody else wakes that line"
        );
        assert_eq!(ids(&line.take_of("q").unwrap()), ["2"]);
    }
}

#[test]
fn what_is_cached_is_held_once() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    let cached = field("a", &["1"]);
    line.lines.cached(&cached);
    let request = line.take().unwrap();
    assert!(Arc::ptr_eq(&request.picks[0].object, &cached));
    line.answer(&request, Err(retry("refused")));

    // What is tried again keeps no older state, either.
    let mut newer = cached.as_ref().clone();
    newer.metadata.resource_version = Some("2".into());
    let newer = Arc::new(newer);
    line.lines.cached(&newer);
    line.now += Duration::from_hours(1);
    assert!(
        Arc::ptr_eq(&line.take().unwrap().picks[0].object, &cached),
        "it may wait for something else"
    );
    line.answer(&request, Err(retry("refused")));
    line.lines.offer(&key("p"), Offer::of(&newer).unwrap());
    line.now += Duration::from_hours(1);
    assert!(Arc::ptr_eq(&line.take().unwrap().picks[0].object, &newer));
}

#[test]
fn what_cannot_be_sent_is_not_counted() {
    let mut line = Line::open();
    let mut nameless = field("a", &["1"]).as_ref().clone();
    let entries = nameless
        .history()
        .unwrap()
        .into_iter()
        .map(|entry| Entry { id: None, ..entry });
    nameless.status = Some(StoredHistory::try_from(&*entries.collect::<Vec<_>>()).unwrap());
    assert_eq!(
        line.lines
            .offer(&key("p"), Offer::of(&Arc::new(nameless)).unwrap()),
        0
    );
    assert!(line.waits());
}

#[test]
fn an_object_that_moves_away_from_a_receiver_that_is_down_does_not_wait_for_it() {
    let mut line = Line::open();
    line.lines
        .configure(&key("q"), chat(), Stage::Open, TestMessage::default());
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    line.answer(&request, Err(retry("refused")));
    line.lines.offer(&key("q"), offer("a", &["1"]));
    assert_eq!(ids(&line.take_of("q").unwrap()), ["1"]);
}

#[test]
fn two_workers_do_not_send_one_request_twice() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    let (_, former) = line.lines.endpoint(&key("p")).unwrap();
    // The contact point is deleted and made again while the first worker waits for its turn.
    line.lines.remove(&key("p"));
    assert!(
        line.lines
            .configure(&key("p"), chat(), Stage::Open, TestMessage::default())
            .is_none(),
        "its line stays while something waits in it"
    );
    line.lines.withdraw(&key("a"), true);
    line.lines.remove(&key("p"));
    assert!(
        line.lines
            .configure(&key("p"), chat(), Stage::Open, TestMessage::default())
            .is_some()
    );
    line.offer("a", &["1"]);
    assert!(line.lines.take(&key("p"), former, line.now).is_none());
    assert!(line.take().is_some());
    assert!(line.take().is_none(), "it is in the air");
    assert!(line.waits());
}

#[test]
fn the_oldest_that_waits_is_known_time_in_which_it_was_suspended_left_out() {
    let waits = |name: &str, entry: serde_json::Value| {
        let object = json!({ "apiVersion": "tg.azamaton.ru/v1", "kind": "TrackedField", "spec": {},
            "metadata": { "namespace": "n", "name": name }, "status": [entry] });
        Offer::of(&Arc::new(serde_json::from_value(object).unwrap())).unwrap()
    };
    let pending = |second: u8, suspended_since: Option<&str>, suspended_seconds: Option<u64>| {
        json!({ "action": "Updated", "id": format!("{second}"), "delivery": "Pending",
            "time": format!("2026-01-01T00:00:{second:02}Z"), "suspendedSince": suspended_since, "suspendedSeconds": suspended_seconds })
    };
    let mut lines = Lines::new(PATIENCE);
    let oldest = |lines: &Lines| lines.oldest_since().map(|since| since.to_string());
    assert_eq!(oldest(&lines), None);
    lines.offer(&key("a"), waits("x", pending(30, None, None)));
    lines.offer(&key("b"), waits("y", pending(20, None, Some(25))));
    lines.offer(
        &key("b"),
        waits("z", pending(10, Some("2026-01-01T00:00:11Z"), None)),
    );
    assert_eq!(oldest(&lines).as_deref(), Some("2026-01-01T00:00:30Z"));
    lines.withdraw(&Key::new("n", "x"), false);
    assert_eq!(oldest(&lines).as_deref(), Some("2026-01-01T00:00:45Z"));
    lines.withdraw(&Key::new("n", "y"), true);
    assert_eq!(oldest(&lines), None, "what is left is suspended");
}
