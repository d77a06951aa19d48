#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, HashSet};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use qm_api::tracked_field::{ChangeAction, Delivery, Entry, History, Subject, TargetReference};
use serde_json::json;

use super::*;
use crate::history::ObservedValue;

mod limits;
mod properties;
mod record;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + second).unwrap()
}

fn subject(field: &str) -> Subject {
    let target = TargetReference {
        kind: "Deployment".into(),
        namespace: "shop".into(),
        name: "web".into(),
        ..TargetReference::default()
    };
    Subject::new(&target, field)
}

/// Returns the inputs of a reconcile that has nothing but these observations.
fn inputs<'a>(subject: &'a Subject, observations: &'a [Entry]) -> Inputs<'a> {
    static NO_IDS: LazyLock<HashSet<String>> = LazyLock::new(HashSet::new);
    static NO_TIMES: BTreeMap<String, Duration> = BTreeMap::new();
    Inputs {
        subject,
        observations,
        newest: None,
        outcomes: &[],
        in_flight: &NO_IDS,
        suspended: false,
        when: None,
        quiet: None,
        limit: None,
        suspended_for: &NO_TIMES,
        now: at(10),
    }
}

/// State of the target.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TargetState {
    Present {
        uid: Option<String>,
        value: ObservedValue,
    },
    Absent,
}

/// Returns an observation without an id.
fn observed(at: Timestamp, state: TargetState, version: Option<u64>) -> Entry {
    let (uid, value) = match state {
        TargetState::Present { uid, value } => (uid, Some(value)),
        TargetState::Absent => (None, None),
    };
    let observed = value.map(ObservedField::from);
    observation(
        &subject("replicas"),
        at,
        uid,
        observed.as_ref(),
        version,
        None,
    )
}

/// Result of [`record`].
#[derive(Debug, Default, PartialEq, Eq)]
struct Recorded {
    /// Number of new entries.
    entries: usize,
    /// Number of changes that the new entries stand for.
    changes: u64,
    /// True if the previously last entry got fields that the original program had not written.
    completed: bool,
}

/// Records observations of a subject; new entries without an id get one of `ids`.
fn record(
    history: &mut History,
    subject: &Subject,
    observations: impl IntoIterator<Item = Entry>,
    mut ids: impl FnMut() -> String,
) -> Recorded {
    let (before, last) = (history.len(), history.last().cloned());
    let of_subject = |observation| Entry {
        subject: Some(subject.clone()),
        ..observation
    };
    let observations: Vec<_> = observations.into_iter().map(of_subject).collect();
    super::record(history, subject, &observations);
    let (known, new) = history.split_at_mut(before);
    for entry in &mut *new {
        entry.id.get_or_insert_with(&mut ids);
    }
    Recorded {
        entries: new.len(),
        changes: changes_saturating(new),
        completed: known.last() != last.as_ref(),
    }
}

fn changes_saturating(history: &[Entry]) -> u64 {
    history
        .iter()
        .fold(0, |sum, entry| sum.saturating_add(entry.changes()))
}

fn present(uid: &str, value: &str) -> TargetState {
    TargetState::Present {
        uid: Some(uid.into()),
        value: ObservedValue::of_text(value),
    }
}

fn missing(uid: &str) -> TargetState {
    TargetState::Present {
        uid: Some(uid.into()),
        value: ObservedValue::Missing,
    }
}

/// Ids `id-1`, `id-2`, ...
fn ids() -> impl FnMut() -> String {
    let mut last = 0;
    move || {
        last += 1;
        format!("id-{last}")
    }
}

/// Records these states, one second apart, in a reconcile each.
fn recorded(states: impl IntoIterator<Item = TargetState>) -> History {
    let (mut history, mut ids) = (History::new(), ids());
    for (second, state) in (0..).zip(states) {
        record(
            &mut history,
            &subject("replicas"),
            [observed(at(second), state, None)],
            &mut ids,
        );
    }
    history
}

/// Returns the action and value of each entry.
fn actions(history: &[Entry]) -> Vec<(ChangeAction, Option<&str>)> {
    history
        .iter()
        .map(|entry| (entry.action, entry.value.as_deref()))
        .collect()
}

fn changes(history: &[Entry]) -> u64 {
    history.iter().map(Entry::changes).sum()
}

/// Returns a history that the original program (document 000) wrote.
fn original(entries: serde_json::Value) -> History {
    serde_json::from_value(entries).unwrap()
}

#[test]
fn outcomes_are_marked_once_and_unknown_ids_are_ignored() {
    let mut history = recorded([present("a", "1"), present("a", "2"), present("a", "3")]);
    set_suspended(&mut history, true, &BTreeMap::new(), at(9));
    let failed = DeliveryOutcome::Failed {
        reason: "Bad Request".into(),
    };
    let outcomes = [
        ("id-1".to_owned(), DeliveryOutcome::Delivered),
        ("id-2".into(), failed.clone()),
        ("deleted".into(), failed),
    ];
    assert_eq!(mark(&mut history, &outcomes).entries.len(), 1);
    let marks: Vec<_> = history
        .iter()
        .map(|entry| (entry.delivery.unwrap(), entry.reason.as_deref()))
        .collect();
    let expected = [
        (Delivery::Delivered, None),
        (Delivery::Failed, Some("Bad Request")),
        (Delivery::Pending, None),
    ];
    assert_eq!(marks, expected);
    assert_eq!(history[0].suspended_since, None);
    let before = history.clone();
    assert!(mark(&mut history, &outcomes).entries.is_empty());
    assert_eq!(history, before);
}

#[test]
fn failed_entry_may_become_delivered_but_not_vice_versa() {
    let mut history = recorded([present("a", "1")]);
    let mut mark = |outcome| {
        let failed = mark(&mut history, &[("id-1".to_owned(), outcome)]);
        let entry = &history[0];
        (failed.entries.len(), entry.delivery, entry.reason.clone())
    };
    let expired = DeliveryOutcome::Expired {
        reason: "too old".into(),
    };
    let late = DeliveryOutcome::Failed {
        reason: "late".into(),
    };
    let failed = (1, Some(Delivery::Failed), Some("too old".to_owned()));
    assert_eq!(mark(expired), failed);
    let delivered = (0, Some(Delivery::Delivered), None);
    assert_eq!(mark(DeliveryOutcome::Delivered), delivered);
    assert_eq!(mark(late), delivered);
}

#[test]
fn pending_returns_entries_with_their_previous_value() {
    let mut history = recorded([present("a", "1"), present("a", "2"), present("a", "3")]);
    mark(&mut history, &[("id-1".into(), DeliveryOutcome::Delivered)]);
    record(
        &mut history,
        &subject("image"),
        [observed(at(9), present("a", "nginx"), None)],
        || "other".into(),
    );
    let items: Vec<_> = pending(&history)
        .map(|(entry, previous)| {
            (
                entry.id.as_deref().unwrap(),
                previous.and_then(|entry| entry.value.as_deref()),
            )
        })
        .collect();
    assert_eq!(
        items,
        [("id-2", Some("1")), ("id-3", Some("2")), ("other", None)]
    );
}

#[test]
fn entry_of_the_original_program_has_a_previous_value() {
    let mut history =
        original(json!([{"action": "Created", "time": "2025-02-11T20:44:21Z", "value": "1"}]));
    record(
        &mut history,
        &subject("replicas"),
        [observed(at(0), present("a", "3"), None)],
        ids(),
    );
    let (entry, previous) = pending(&history).next().unwrap();
    assert_eq!(
        (entry.value.as_deref(), previous.unwrap().value.as_deref()),
        (Some("3"), Some("1"))
    );
}

#[test]
fn only_expired_entries_are_counted_as_expired() {
    let history = recorded([present("a", "1"), present("a", "2"), present("a", "3")]);
    let outcomes = [
        (
            "id-1".to_owned(),
            DeliveryOutcome::Expired {
                reason: "too old".into(),
            },
        ),
        (
            "id-2".to_owned(),
            DeliveryOutcome::Failed {
                reason: "400".into(),
            },
        ),
    ];
    let subject = subject("replicas");
    let inputs = Inputs {
        outcomes: &outcomes,
        ..inputs(&subject, &[])
    };
    let changes = next(&history, &inputs, ids());
    let FailedEntries { entries, expired } = changes.failed;
    assert_eq!((entries.len(), expired), (2, 1));
}

#[test]
fn suspended_time_is_kept_in_the_entry() {
    let none = BTreeMap::new();
    let mut history = recorded([present("a", "1")]);
    assert!(set_suspended(&mut history, true, &none, at(100)));
    assert!(
        !set_suspended(&mut history, true, &none, at(200)),
        "a repeated call changes nothing"
    );
    assert_eq!(waiting_since(&history), None, "the entry is suspended");
    assert!(set_suspended(&mut history, false, &none, at(1100)));
    assert!(!set_suspended(&mut history, false, &none, at(1200)));
    assert_eq!(waiting_since(&history), Some(at(1000)));
    assert!(set_suspended(&mut history, true, &none, at(2000)));
    assert!(set_suspended(&mut history, false, &none, at(2500)));
    assert_eq!(history[0].suspended_seconds, Some(1500));
    // A measured duration overrides the wall clock.
    assert!(set_suspended(&mut history, true, &none, at(3000)));
    let known = BTreeMap::from([("id-1".to_owned(), Duration::from_secs(7))]);
    assert!(set_suspended(&mut history, false, &known, at(100_000)));
    assert_eq!(history[0].suspended_seconds, Some(1507));
    // A clock set backwards adds no time.
    assert!(set_suspended(&mut history, true, &none, at(4000)));
    assert!(set_suspended(&mut history, false, &none, at(50)));
    assert_eq!(history[0].suspended_seconds, Some(1507));
}

/// Returns an instant on both clocks.
fn clocks(wall: i64, monotonic: u64) -> Now {
    static BEGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    let begin = *BEGIN.get_or_init(Instant::now);
    Now {
        wall: at(wall),
        monotonic: begin + Duration::from_secs(monotonic),
    }
}

const DAY: i64 = 86_400;

#[test]
fn clock_change_does_not_change_the_age() {
    let history = recorded([present("a", "1")]);
    let mut ages = Ages::default();
    let waited = |ages: &Ages, at: u64| ages.waited("id-1", clocks(0, at).monotonic).as_secs();
    ages.update(&history, false, clocks(10, 0));
    assert_eq!(
        waited(&ages, 0),
        10,
        "the wall clock counts until the first observation"
    );
    ages.update(&history, false, clocks(2 * DAY, 5));
    assert_eq!(waited(&ages, 5), 15);
    ages.update(&history, false, clocks(-DAY, 8));
    assert_eq!(waited(&ages, 20), 30);
    assert_eq!(waited(&Ages::default(), 20), 0);
}

#[test]
fn entry_of_the_future_has_age_zero() {
    let history = recorded([present("a", "1")]);
    let mut ages = Ages::default();
    ages.update(&history, false, clocks(-DAY, 0));
    assert_eq!(ages.waited("id-1", clocks(0, 3).monotonic).as_secs(), 3);
}

#[test]
fn suspended_time_does_not_count_as_age() {
    let mut history = recorded([present("a", "1")]);
    let mut ages = Ages::default();
    let waited = |ages: &Ages, at: u64| ages.waited("id-1", clocks(0, at).monotonic).as_secs();
    ages.update(&history, false, clocks(0, 0));
    ages.update(&history, true, clocks(10, 10));
    set_suspended(&mut history, true, &ages.suspended(), at(10));
    ages.update(&history, true, clocks(10, 10));
    // The wall clock is a day ahead at the resume.
    ages.update(&history, false, clocks(DAY, 60));
    assert_eq!((waited(&ages, 60), waited(&ages, 65)), (10, 15));
    set_suspended(&mut history, false, &ages.suspended(), at(DAY));
    assert_eq!(history[0].suspended_seconds, Some(50));
    ages.update(&history, false, clocks(DAY, 60));
    assert!(ages.suspended().is_empty());
    // Another process knows only the status.
    let mut ages = Ages::default();
    ages.update(&history, false, clocks(100, 0));
    assert_eq!(waited(&ages, 0), 50);
    history[0].suspended_since = Some(Time(at(90)));
    let mut ages = Ages::default();
    ages.update(&history, true, clocks(100, 0));
    assert_eq!(waited(&ages, 10), 40, "suspended time");
    assert_eq!(ages.suspended()["id-1"].as_secs(), 10);
}

#[test]
fn ages_of_finished_entries_are_forgotten() {
    let mut history = recorded([present("a", "1")]);
    let mut ages = Ages::default();
    ages.update(&history, false, clocks(0, 0));
    assert!(!ages.is_empty());
    mark(
        &mut history,
        &[("id-1".to_owned(), DeliveryOutcome::Delivered)],
    );
    ages.update(&history, false, clocks(0, 0));
    assert!(ages.is_empty());
}
