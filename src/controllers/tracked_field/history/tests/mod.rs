#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::api::tracked_field::{Action, Subject, Target};
use crate::controllers::tracked_field::field::Observed;

mod bounds;
mod properties;
mod series;

const MAX_AGE: Duration = Duration::from_hours(24);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn subject(field: &str) -> Subject {
    let target =
        Target { kind: "Deployment".into(), namespace: "shop".into(), name: "web".into(), ..Target::default() };
    Subject::new(&target, field)
}

fn present(uid: &str, value: &str) -> State {
    State::Present { uid: Some(uid.into()), value: Observed::of_text(value) }
}

fn missing(uid: &str) -> State {
    State::Present { uid: Some(uid.into()), value: Observed::Missing }
}

/// Ids `id-1`, `id-2`, ...
fn ids() -> impl FnMut() -> String {
    let mut last = 0;
    move || {
        last += 1;
        format!("id-{last}")
    }
}

/// Records these states, a second apart, each in a pass of its own.
fn recorded(states: impl IntoIterator<Item = State>) -> History {
    let (mut history, mut ids) = (History::new(), ids());
    for (second, state) in (0..).zip(states) {
        record(&mut history, &subject("replicas"), [Observation::new(at(second), state, None)], &mut ids);
    }
    history
}

/// Action and value of each entry.
fn told(history: &[Entry]) -> Vec<(Action, Option<&str>)> {
    history.iter().map(|entry| (entry.action, entry.value.as_deref())).collect()
}

fn changes(history: &[Entry]) -> u64 {
    history.iter().map(Entry::changes).sum()
}

/// As document 000's program left it.
fn original(entries: serde_json::Value) -> History {
    serde_json::from_value(entries).unwrap()
}

#[test]
fn outcomes_are_marked_once_and_unknown_ids_are_passed_over() {
    let mut history = recorded([present("a", "1"), present("a", "2"), present("a", "3")]);
    hold(&mut history, true, at(9));
    let failed = Outcome::Failed { reason: "Bad Request".into() };
    let outcomes = [("id-1".to_owned(), Outcome::Delivered), ("id-2".into(), failed.clone()), ("gone".into(), failed)];
    assert_eq!(mark(&mut history, outcomes.clone()), 2);
    let marks: Vec<_> = history.iter().map(|entry| (entry.delivery.unwrap(), entry.reason.as_deref())).collect();
    let expected = [(Delivery::Delivered, None), (Delivery::Failed, Some("Bad Request")), (Delivery::Pending, None)];
    assert_eq!(marks, expected);
    assert_eq!(history[0].held_since, None);
    let before = history.clone();
    assert_eq!(mark(&mut history, outcomes), 0);
    assert_eq!(history, before);
}

#[test]
fn what_was_given_up_while_it_was_in_flight_may_still_be_delivered_but_not_the_other_way_round() {
    let mut history = recorded([present("a", "1")]);
    expire(&mut history, at(100_000), MAX_AGE);
    assert_eq!(history[0].delivery, Some(Delivery::Failed));
    assert_eq!(mark(&mut history, [("id-1".into(), Outcome::Delivered)]), 1);
    assert_eq!((history[0].delivery, history[0].reason.as_ref()), (Some(Delivery::Delivered), None));
    assert_eq!(mark(&mut history, [("id-1".into(), Outcome::Failed { reason: "late".into() })]), 0);
    assert_eq!(history[0].delivery, Some(Delivery::Delivered));
}

#[test]
fn the_queue_gets_what_is_pending_with_its_previous_value() {
    let mut history = recorded([present("a", "1"), present("a", "2"), present("a", "3")]);
    mark(&mut history, [("id-1".into(), Outcome::Delivered)]);
    record(&mut history, &subject("image"), [Observation::new(at(9), present("a", "nginx"), None)], || "other".into());
    let items: Vec<_> = pending(&history)
        .map(|(entry, previous)| (entry.id.as_deref().unwrap(), previous.and_then(|entry| entry.value.as_deref())))
        .collect();
    assert_eq!(items, [("id-2", Some("1")), ("id-3", Some("2")), ("other", None)]);
}

#[test]
fn an_entry_of_the_original_program_is_a_previous_one() {
    let mut history = original(json!([{"action": "Created", "time": "2025-02-11T20:44:21Z", "value": "1"}]));
    record(&mut history, &subject("replicas"), [Observation::new(at(0), present("a", "3"), None)], ids());
    let (entry, previous) = pending(&history).next().unwrap();
    assert_eq!((entry.value.as_deref(), previous.unwrap().value.as_deref()), (Some("3"), Some("1")));
}

#[test]
fn entries_are_given_up_after_24_hours_that_do_not_count_what_was_suspended() {
    const DAY: i64 = 86_400;
    let mut history = recorded([present("a", "1")]);
    assert_eq!(next_expiry(&history, MAX_AGE), Some(at(DAY)));
    assert_eq!(expire(&mut history, at(DAY - 1), MAX_AGE), 0);

    assert!(hold(&mut history, true, at(100)));
    assert!(!hold(&mut history, true, at(200)), "to say it again changes nothing");
    assert_eq!((expire(&mut history, at(9 * DAY), MAX_AGE), next_expiry(&history, MAX_AGE)), (0, None));
    assert!(hold(&mut history, false, at(1100)));
    assert!(!hold(&mut history, false, at(1200)));
    assert_eq!(next_expiry(&history, MAX_AGE), Some(at(DAY + 1000)));
    assert!(hold(&mut history, true, at(2000)));
    assert!(hold(&mut history, false, at(2500)));
    assert_eq!(history[0].held_seconds, Some(1500));

    assert_eq!(expire(&mut history, at(DAY + 1499), MAX_AGE), 0);
    assert_eq!(expire(&mut history, at(DAY + 1500), MAX_AGE), 1);
    assert_eq!((history[0].delivery, history[0].held_seconds), (Some(Delivery::Failed), None));
    assert_eq!(history[0].reason.as_deref(), Some("not delivered within 24 h"));
    assert_eq!((expire(&mut history, at(9 * DAY), MAX_AGE), next_expiry(&history, MAX_AGE)), (0, None));
}

#[test]
fn a_clock_that_went_backwards_costs_nothing() {
    let mut history = recorded([present("a", "1")]);
    hold(&mut history, true, at(100));
    hold(&mut history, false, at(50));
    assert_eq!(history[0].held_seconds, Some(0));
    assert_eq!(expire(&mut history, at(-1000), MAX_AGE), 0);
}
