//! What a receiver says, and what a line makes of it.

use std::future;

use qm_api::ContactPoint;
use qm_runtime::trigger::Trigger;
use rstest::rstest;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::metrics::DeliveryMetrics;
use crate::queue::flights::REJECTED_WRITES;
use crate::queue::line::FAILING_FROM;
use crate::queue::{Circumstances, Outbox};
use crate::{Content, Transport};

#[test]
fn a_retry_is_the_same_request_and_comes_later() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    line.answer(&request, Err(retry("refused")));
    line.offer("b", &["2"]);
    assert!(line.waits());
    line.now += PATIENCE.retry.min * 2;
    assert_eq!(
        ids(&line.take().unwrap()),
        ["1"],
        "its receiver can tell that it is the same"
    );
    assert_eq!(line.lines.in_flight(&key("a")).len(), 1);
}

#[test]
fn a_retry_without_one_of_its_entries_is_a_new_request() {
    let mut line = Line::open();
    line.offer("a", &["1", "2"]);
    let request = line.take().unwrap();
    line.answer(&request, Err(retry("refused")));
    line.offer("a", &["1!", "2"]); // the first one grew too old
    line.now += PATIENCE.retry.min * 2;
    assert_eq!(ids(&line.take().unwrap()), ["2"]);
}

#[test]
fn a_receiver_may_ask_for_more_time() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    let after = Duration::from_secs(1000);
    line.answer(
        &request,
        Err(Failure::Retry {
            message: "429".into(),
            after: Some(after),
        }),
    );
    let last = Duration::from_millis(1);
    line.now += after.saturating_sub(last);
    assert!(line.waits());
    line.now += last;
    assert!(!line.waits());
}

#[test]
fn a_test_message_opens_nothing_until_the_status_says_so() {
    let mut line = Line::open();
    line.lines
        .configure(&key("p"), chat(), Stage::Test, another());
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    assert!(request.picks.is_empty());
    assert!(line.taken(&request, 0).point);
    assert_eq!(
        line.lines.standing(&key("p")),
        Standing::Taken { migrated_to: None }
    );
    assert!(line.waits());
    line.lines.open(&key("p"));
    assert_eq!(ids(&line.take().unwrap()), ["1"]);
}

/// It was suspended, moved or deleted while the request was in the air.
#[test]
fn a_rejected_template_is_not_tried_again_for_what_waits_here_no_more() {
    let mut line = Line::open();
    line.lines
        .configure(&key("p"), templated(), Stage::Open, another());
    let mut object = field("a", &["1"]).as_ref().clone();
    object.spec.template = Some("{{ value }}".into());
    line.lines
        .offer(&key("p"), Offer::of(&Arc::new(object)).unwrap());
    let request = line.take().unwrap();
    line.lines.withdraw(&key("a"), false);
    line.refuse(&request, Refusal::Rejected);
    assert!(line.take().is_none());
    assert!(
        line.lines.in_flight(&key("a")).is_empty(),
        "another line may take it"
    );
}

#[test]
fn failures_are_told_from_the_second_on() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    for round in 1..=2 {
        line.now += PATIENCE.stopped;
        let request = line.take().unwrap();
        let concerned = line.answer(&request, Err(retry("refused")));
        assert_eq!(concerned.fields.len(), usize::from(round == 2));
        assert_eq!(line.lines.failing(&key("p")).is_some(), round == 2);
    }
    line.now += PATIENCE.stopped;
    let request = line.take().unwrap();
    line.taken(&request, 1);
    assert_eq!(line.lines.failing(&key("p")), None);
}

/// Lets the messages of `p` fail as often as its status tells of it.
fn fail(line: &mut Line) {
    for _ in 0..FAILING_FROM {
        line.now += PATIENCE.stopped;
        let request = line.take().unwrap();
        line.answer(&request, Err(retry("refused")));
    }
    assert!(line.lines.failing(&key("p")).is_some());
}

#[rstest]
#[case::deleted(|line: &mut Line| _ = line.lines.withdraw(&key("a"), true))]
#[case::suspended(|line: &mut Line| _ = line.lines.withdraw(&key("a"), false))]
#[case::expired(|line: &mut Line| _ = line.offer("a", &["1!"]))]
#[case::moved(|line: &mut Line| _ = line.lines.offer(&key("q"), offer("a", &["1"])))]
fn messages_no_longer_fail_when_none_waits(#[case] end: fn(&mut Line)) {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    fail(&mut line);
    end(&mut line);
    assert_eq!(line.lines.failing(&key("p")), None);
    assert_eq!(line.lines.failing(&key("q")), None);
    line.offer("b", &["2"]);
    assert!(
        line.lines.failing(&key("p")).is_some(),
        "the receiver has accepted nothing since"
    );
}

#[test]
fn messages_fail_while_another_object_waits() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    line.offer("b", &["2"]);
    fail(&mut line);
    line.lines.withdraw(&key("a"), true);
    assert!(line.lines.failing(&key("p")).is_some());
}

/// Nothing more of it is sent until its outcome is recorded.
#[test]
fn messages_no_longer_fail_when_only_an_object_that_is_left_out_waits() {
    let mut line = Line::open();
    line.observe("a", &["1"], false, Duration::ZERO);
    line.offer("a", &["1"]);
    fail(&mut line);
    line.now += PATIENCE.max_age + PATIENCE.stopped;
    let request = line.take().unwrap();
    line.answer(&request, Err(retry("refused")));
    assert_eq!(line.lines.outcomes(&key("a")).len(), 1, "expired");
    for _ in 0..REJECTED_WRITES {
        assert!(line.lines.failing(&key("p")).is_some());
        line.lines.write_rejected(
            &key("a"),
            &key("p"),
            (403, "denied"),
            Circumstances::default(),
            line.now,
        );
    }
    assert_eq!(line.lines.failing(&key("p")), None);
}

#[test]
fn contact_point_is_told_when_its_last_message_goes_during_an_attempt() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    fail(&mut line);
    line.now += PATIENCE.stopped;
    let request = line.take().unwrap();
    line.lines.withdraw(&key("a"), true);
    assert!(
        line.lines.failing(&key("p")).is_some(),
        "the answer may be another one"
    );
    assert!(line.answer(&request, Err(retry("refused"))).point);
    assert_eq!(line.lines.failing(&key("p")), None);
}

struct Hanging;

impl Transport for Hanging {
    async fn slot(&self, _: &Endpoint) {}

    async fn send(&self, _: &Endpoint, _: Content<'_>, _: bool) -> Result<Sent, SendError> {
        future::pending().await
    }
}

#[test]
fn contact_point_is_woken_when_its_last_message_goes() {
    let points = Trigger::<ContactPoint>::default();
    let mut woken = points.open();
    let mut woken = || woken.try_recv().ok().map(|point| point.name);
    let outbox = Outbox::new(
        Hanging,
        PATIENCE,
        DeliveryMetrics::new(),
        Trigger::default(),
        points,
        CancellationToken::new(),
    );
    let mut line = Line::open();
    line.offer("a", &["1"]);
    line.offer("b", &["2"]);
    fail(&mut line);
    *outbox.lines() = line.lines;
    outbox.withdraw(&key("a"), true);
    assert_eq!(woken(), None, "another message waits");
    outbox.withdraw(&key("b"), true);
    assert_eq!((woken().as_deref(), woken()), (Some("p"), None));
    outbox.offer(&key("p"), offer("c", &["3"]));
    assert_eq!((woken().as_deref(), woken()), (Some("p"), None));
    outbox.offer(&key("p"), offer("c", &["3", "4"]));
    assert_eq!(woken(), None);
    outbox.offer(&key("q"), offer("c", &["3", "4"]));
    assert_eq!((woken().as_deref(), woken()), (Some("p"), None));
}

#[test]
fn no_wait_is_beyond_the_clock() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    line.answer(
        &request,
        Err(Failure::Retry {
            message: "429".into(),
            after: Some(Duration::MAX),
        }),
    );
    assert!(line.waits());
}

#[test]
fn what_a_receiver_says_differently_each_time_is_no_news() {
    let mut line = Line::open();
    line.lines
        .configure(&key("p"), chat(), Stage::Test, another());
    let mut say = |words: &str| {
        line.now += PATIENCE.stopped;
        let request = line.take().unwrap();
        line.answer(&request, Err(retry(words))).point
    };
    assert!(say("it is in trouble (503, request 1)"));
    assert!(!say("it is in trouble (503, request 2)"));
    assert!(say("it is in trouble (502, request 3)"));
    assert!(say("it is in trouble (502, request 4): mend it"));
    assert!(say("no answer within 10 s"));
}

#[test]
fn a_stopped_receiver_may_ask_for_more_time() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    line.answer(&request, Err(refusal(Refusal::Forbidden)));
    line.now += PATIENCE.stopped;
    let request = line.take().unwrap();
    let hour = Duration::from_hours(1);
    line.answer(
        &request,
        Err(Failure::Retry {
            message: "429".into(),
            after: Some(hour),
        }),
    );
    line.now += PATIENCE.stopped;
    assert!(line.waits());
    line.now += hour;
    assert!(!line.waits());
}

#[test]
fn a_long_pause_is_told_of_at_once_and_a_mended_receiver_that_has_another_trouble_says_so() {
    let mut line = Line::open();
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    let after = Some(Duration::from_hours(1));
    let concerned = line.answer(
        &request,
        Err(Failure::Retry {
            message: "too many requests".into(),
            after,
        }),
    );
    assert_eq!((concerned.point, concerned.fields), (true, vec![key("a")]));
    assert_eq!(
        line.lines.failing(&key("p")).unwrap(),
        "too many requests (not before 3600 s have passed)"
    );

    let mut line = Line::open();
    line.offer("a", &["1"]);
    let request = line.take().unwrap();
    line.answer(&request, Err(refusal(Refusal::Redirected)));
    line.now += PATIENCE.stopped;
    let stopped = line.lines.standing(&key("p"));
    let request = line.take().unwrap();
    assert!(!line.answer(&request, Err(retry("503"))).point);
    assert_eq!(
        line.lines.standing(&key("p")),
        stopped,
        "one failure is no news"
    );
    line.now += PATIENCE.retry.min * 2;
    let request = line.take().unwrap();
    assert!(
        request.is_test(),
        "as soon as any other failure, and the same message"
    );
    assert!(line.answer(&request, Err(retry("503"))).point);
    assert_eq!(
        line.lines.standing(&key("p")),
        Standing::Retrying("503".into())
    );
}
