//! Limits of histories and buffers.

use ChangeAction::{Created, Deleted, Updated};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use qm_api::tracked_field::Skipped;

use super::*;

const FREE: fn(&str) -> bool = |_| false;

fn entries(count: i64) -> History {
    recorded((0..count).map(|value| present("a", &value.to_string())))
}

fn deliver(history: &mut History, count: usize) {
    let ids: Vec<_> = pending(history)
        .take(count)
        .map(|(entry, _)| entry.id.clone().unwrap())
        .collect();
    let ids = ids.into_iter();
    mark(
        history,
        &ids.map(|id| (id, DeliveryOutcome::Delivered))
            .collect::<Vec<_>>(),
    );
}

fn pending_limits(items: usize, bytes: usize) -> HistoryLimits {
    HistoryLimits {
        pending: ListLimits { items, bytes },
        ..HistoryLimits::new(None)
    }
}

fn bytes(history: &[Entry]) -> usize {
    serde_json::to_string(history).unwrap().len()
}

#[test]
fn default_limits_of_finished_entries_apply() {
    let limit = |limit| HistoryLimits::new(limit).finished.items;
    let limits = [
        None,
        Some(1),
        Some(200),
        Some(0),
        Some(-5),
        Some(201),
        Some(i64::MAX),
    ]
    .map(limit);
    assert_eq!(limits, [50, 1, 200, 1, 1, 200, 200]);
}

#[test]
fn oldest_finished_entries_go_first() {
    let mut history = entries(10);
    deliver(&mut history, 10);
    assert_eq!(
        apply_limits(&mut history, HistoryLimits::new(Some(3)), FREE, ids()),
        0
    );
    assert_eq!(
        actions(&history),
        [
            (Updated, Some("7")),
            (Updated, Some("8")),
            (Updated, Some("9"))
        ]
    );
    assert_eq!(
        apply_limits(&mut history, HistoryLimits::new(Some(3)), FREE, ids()),
        0
    );
}

#[test]
fn entry_before_the_oldest_pending_one_and_the_newest_stay() {
    let none = HistoryLimits {
        finished: ListLimits { items: 0, bytes: 0 },
        ..HistoryLimits::new(None)
    };
    let mut history = entries(10);
    deliver(&mut history, 6);
    apply_limits(&mut history, none, FREE, ids());
    assert_eq!(
        history
            .iter()
            .map(|entry| entry.value.as_deref().unwrap())
            .collect::<String>(),
        "56789"
    );
    deliver(&mut history, 4);
    apply_limits(&mut history, none, FREE, ids());
    assert_eq!(
        history
            .iter()
            .map(|entry| entry.value.as_deref().unwrap())
            .collect::<String>(),
        "9"
    );
}

#[test]
fn skipped_entry_before_a_pending_one_stays_while_the_size_allows() {
    let history = |padding: usize| {
        let value = |value: i64| present("a", &format!("{value}{}", "x".repeat(padding)));
        let mut history = recorded((0..600).map(value));
        for entry in history.iter_mut().step_by(2) {
            (entry.delivery, entry.skipped) = (None, Some(Skipped::When));
        }
        history
    };
    let previous_of = |history: &History| {
        pending(history)
            .map(|(_, previous)| previous.unwrap().skipped)
            .collect::<Vec<_>>()
    };
    let mut small = history(0);
    apply_limits(&mut small, HistoryLimits::new(Some(1)), FREE, ids());
    assert_eq!(previous_of(&small), [Some(Skipped::When); 300]);
    deliver(&mut small, 299);
    apply_limits(&mut small, HistoryLimits::new(Some(1)), FREE, ids());
    assert_eq!(previous_of(&small), [Some(Skipped::When)]);
    assert_eq!(small.len(), 2, "the entry before the Pending one");

    let mut large = history(1000);
    apply_limits(&mut large, HistoryLimits::new(Some(1)), FREE, ids());
    let finished: Vec<_> = large
        .iter()
        .filter(|it| !it.is_pending())
        .cloned()
        .collect();
    assert!(bytes(&finished) <= 256 * 1024, "{}", bytes(&finished));
    assert!(bytes(&finished) > 240 * 1024, "{}", bytes(&finished));
}

#[test]
fn finished_entries_are_limited_by_bytes() {
    let mut history =
        recorded((0..200).map(|value| present("a", &format!("{value}{}", "\u{1}".repeat(1000)))));
    deliver(&mut history, 199);
    apply_limits(&mut history, HistoryLimits::new(Some(200)), FREE, ids());
    let finished = &history[..history.len() - 1];
    assert!(bytes(finished) <= 256 * 1024, "{}", bytes(finished));
    assert!(bytes(finished) > 240 * 1024, "{}", bytes(finished));
    assert!(
        finished
            .last()
            .unwrap()
            .value
            .as_deref()
            .unwrap()
            .starts_with("198")
    );
}

#[test]
fn pending_neighbours_in_the_middle_merge() {
    let mut history = entries(10);
    let result = apply_limits(&mut history, pending_limits(9, 1 << 20), FREE, || {
        "merged".into()
    });
    assert_eq!((result, history.len()), (2, 8));
    let expected: Vec<_> = history
        .iter()
        .map(|entry| {
            (
                entry.first_value.as_deref(),
                entry.value.as_deref().unwrap(),
                entry.changes(),
            )
        })
        .collect();
    let alone = |value| (None, value, 1);
    let middle = [(Some("1"), "2", 2), (Some("3"), "4", 2)];
    let end = ["5", "6", "7", "8", "9"].map(alone);
    assert_eq!(expected, [&[alone("0")][..], &middle, &end].concat());
    assert_eq!(history[1].id.as_deref(), Some("merged"));
    assert_eq!(history[1].time, Some(Time(at(2))));
}

#[test]
fn merged_entry_has_the_value_before_its_first_change_as_previous() {
    let values = ["0", "1", "5", "3", "4", "7", "2", "9"];
    let mut history = recorded(values.map(|value| present("a", value)));
    deliver(&mut history, 1);
    for at in [3, 4, 6] {
        (history[at].delivery, history[at].skipped) = (None, Some(Skipped::When));
    }
    assert_eq!(
        apply_limits(&mut history, pending_limits(3, 1 << 20), FREE, ids()),
        1
    );
    let merged = &history[2];
    assert_eq!(
        (merged.first_value.as_deref(), merged.value.as_deref()),
        (Some("5"), Some("7"))
    );
    let previous: Vec<_> = pending(&history)
        .map(|(_, previous)| previous.unwrap().value.as_deref().unwrap())
        .collect();
    assert_eq!(previous, ["0", "1", "2"]);
}

#[test]
fn entry_in_flight_never_changes() {
    let mut history = entries(20);
    let in_flight = |id: &str| ["id-1", "id-2", "id-3", "id-4", "id-5"].contains(&id);
    apply_limits(&mut history, pending_limits(8, 1 << 20), in_flight, || {
        "merged".into()
    });
    assert_eq!(history.len(), 7);
    assert_eq!(history[..5], entries(20)[..5]);
    assert_eq!(
        (history[5].id.as_deref(), history[5].changes()),
        (Some("merged"), 14)
    );
    assert_eq!(history[6], entries(20)[19]);
}

#[test]
fn merged_entry_has_the_net_action() {
    let merged = |states: &[TargetState]| {
        let (first, last) = (present("a", "first"), present("z", "last"));
        let mut history = recorded(
            [first]
                .into_iter()
                .chain(states.iter().cloned())
                .chain([last]),
        );
        assert_eq!(history.len(), states.len() + 2);
        apply_limits(&mut history, pending_limits(3, 1 << 20), FREE, || {
            "merged".into()
        });
        assert_eq!(
            (history.len(), history[1].changes()),
            (3, states.len() as u64)
        );
        let value = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".into());
        (
            history[1].action,
            value(&history[1].first_value),
            value(&history[1].value),
        )
    };
    let expected = |action, first: &str, last: &str| (action, first.to_owned(), last.to_owned());
    let (one, two, deleted, new) = (
        present("a", "1"),
        present("a", "2"),
        TargetState::Absent,
        present("b", "3"),
    );
    assert_eq!(
        merged(&[one.clone(), two.clone()]),
        expected(Updated, "1", "2")
    );
    assert_eq!(
        merged(&[one.clone(), deleted.clone()]),
        expected(Deleted, "1", "-")
    );
    assert_eq!(
        merged(&[deleted.clone(), new.clone()]),
        expected(Created, "-", "3")
    );
    assert_eq!(
        merged(&[new.clone(), present("b", "4")]),
        expected(Created, "3", "4")
    );
    assert_eq!(
        merged(&[deleted.clone(), new.clone(), TargetState::Absent]),
        expected(Deleted, "-", "-")
    );
    assert_eq!(
        merged(&[one, deleted, new, present("b", "4")]),
        expected(Created, "1", "4")
    );
}

#[test]
fn entries_of_two_subjects_merge_last() {
    let mut history = History::new();
    let mut ids = ids();
    for second in 0..40 {
        let field = if second % 10 < 5 {
            format!("field-{second}")
        } else {
            "same".into()
        };
        let value = present("a", &second.to_string());
        record(
            &mut history,
            &subject(&field),
            [observed(at(second), value, None)],
            &mut ids,
        );
    }
    let (first, last) = (history[0].clone(), history[39].clone());
    apply_limits(&mut history, pending_limits(30, 1 << 20), FREE, &mut ids);
    assert!(history.len() <= 30, "{}", history.len());
    assert!(
        history
            .iter()
            .all(|entry| entry.merged.is_none() || entry.subject == Some(subject("same")))
    );
    assert_eq!(changes(&history), 40);

    apply_limits(&mut history, pending_limits(5, 1 << 20), FREE, &mut ids);
    assert!(history.len() <= 5, "{}", history.len());
    assert_eq!(changes(&history), 40);
    assert_eq!((&history[0], &history[history.len() - 1]), (&first, &last));
    // A value of another subject cannot be the first value of this one.
    assert!(history.iter().all(|entry| entry.first_value.is_none()));
}

/// A receiver is down while one field changes thousands of times, with a reconcile for each change.
#[test]
fn history_stays_within_limits_after_thousands_of_changes() {
    for (times, value) in [
        (5000, String::new()),
        (700, "<&>\u{2028}\"\u{1}я".repeat(90)),
    ] {
        let mut history = entries(3);
        deliver(&mut history, 3);
        let mut ids = ids();
        let mut merged = 0;
        for change in 0..times {
            let state = present("a", &format!("{change}{value}"));
            record(
                &mut history,
                &subject("replicas"),
                [observed(at(change), state, None)],
                &mut ids,
            );
            let in_flight: Vec<_> = pending(&history)
                .take(20)
                .filter_map(|(entry, _)| entry.id.clone())
                .collect();
            merged += apply_limits(
                &mut history,
                HistoryLimits::new(None),
                |id| in_flight.iter().any(|i| i == id),
                &mut ids,
            );
            assert!(history.len() <= 503);
        }
        assert_eq!(changes(&history), 3 + times.unsigned_abs());
        assert_eq!(history.len() + merged, 3 + usize::try_from(times).unwrap());
        assert!(history[3].value.as_deref().unwrap().starts_with('0'));
        assert!(
            history
                .last()
                .unwrap()
                .value
                .as_deref()
                .unwrap()
                .starts_with(&(times - 1).to_string())
        );
        assert!(bytes(&history) < 600 * 1024, "{}", bytes(&history));
        // Entries in the middle have similar weights: no entry stands for most changes.
        assert!(history.iter().all(|entry| entry.changes() <= 32));
        assert!(
            history.len() > if value.is_empty() { 430 } else { 60 },
            "{}",
            history.len()
        );
    }
}

/// Removes and returns all observations, as a reconcile does.
fn written(buffer: &mut ObservationBuffer) -> Observations {
    let observations = buffer.begin_write();
    buffer.written(&observations);
    observations
}

#[test]
fn buffer_is_limited_and_counts_merged_observations() {
    let mut buffer = ObservationBuffer::new(ListLimits {
        items: 16,
        bytes: 1 << 20,
    });
    for n in 0..100 {
        buffer.push(observed(at(n), present("a", &n.to_string()), None));
    }
    let mut history = entries(1);
    let observations = written(&mut buffer);
    assert!(observations.entries.len() <= 16);
    assert_eq!(observations.entries.len() + observations.merged, 100);
    let rest = written(&mut buffer);
    assert_eq!((rest.entries.len(), rest.merged), (0, 0));
    // The first observation is recorded already.
    assert_eq!(
        record(
            &mut history,
            &subject("replicas"),
            observations.entries,
            ids()
        )
        .changes,
        99
    );
    assert_eq!(changes(&history), 100);
    assert_eq!(history.last().unwrap().value.as_deref(), Some("99"));
    assert!(
        history
            .iter()
            .any(|entry| entry.merged.is_some() && entry.first_value.is_some())
    );
}

/// The history may get such observations while more arrive, and a reconcile must not count a change twice.
#[test]
fn observations_being_written_do_not_merge() {
    let mut buffer = ObservationBuffer::new(ListLimits {
        items: 16,
        bytes: 1 << 20,
    });
    let push = |buffer: &mut ObservationBuffer, values: std::ops::Range<i64>| {
        for n in values {
            let id = Some(n.to_string());
            buffer.push(Entry {
                id,
                ..observed(at(n), present("a", &n.to_string()), None)
            });
        }
    };
    push(&mut buffer, 0..16);
    let writing = buffer.begin_write();
    push(&mut buffer, 16..40);
    buffer.written(&writing);
    let rest = written(&mut buffer);
    assert_eq!(
        (writing.entries.len(), changes(&rest.entries)),
        (16, 24),
        "{rest:?}"
    );

    // The write failed.
    push(&mut buffer, 40..56);
    let failed = buffer.begin_write();
    push(&mut buffer, 56..60);
    let retried = buffer.begin_write();
    assert_eq!(changes(&failed.entries), 16);
    assert_eq!(changes(&retried.entries), 20);
    assert!(retried.entries.len() <= 16);
}

/// The history has the first write, whose response was lost.
#[test]
fn observations_of_a_lost_write_are_not_counted_twice() {
    let mut buffer = ObservationBuffer::new(ListLimits {
        items: 16,
        bytes: 1 << 20,
    });
    let mut history = History::new();
    let mut write = |versions: std::ops::Range<u64>| {
        for version in versions {
            let text = version.to_string();
            buffer.push(Entry {
                id: Some(text.clone()),
                ..observed(at(0), present("a", &text), Some(version))
            });
        }
        let observations = buffer.begin_write().entries;
        assert!(observations.len() <= 16);
        record(&mut history, &subject("replicas"), observations, ids());
    };
    write(1..9);
    write(9..21);
    assert_eq!(changes(&history), 20);
}

/// Merged observations stand for changes, even if the last value equals the first.
#[test]
fn merged_observation_has_the_net_action() {
    let recorded_from = |states: &[TargetState]| {
        let mut buffer = ObservationBuffer::new(ListLimits {
            items: 3,
            bytes: 1 << 20,
        });
        let first = [present("a", "first")];
        for state in first.iter().chain(states).chain([&present("z", "last")]) {
            buffer.push(observed(at(0), state.clone(), None));
        }
        let mut history = History::new();
        let observations = written(&mut buffer).entries;
        record(&mut history, &subject("replicas"), observations, ids());
        assert_eq!(
            (history.len(), changes(&history)),
            (3, states.len() as u64 + 2)
        );
        (
            history[1].action,
            history[1].first_value.clone(),
            history[1].value.clone(),
        )
    };
    let expected = |action, first: Option<&str>, last: Option<&str>| {
        (action, first.map(Into::into), last.map(Into::into))
    };
    let (one, back, deleted, new) = (
        present("a", "1"),
        present("a", "first"),
        TargetState::Absent,
        present("b", "first"),
    );
    assert_eq!(
        recorded_from(&[one.clone(), back]),
        expected(Updated, Some("1"), Some("first"))
    );
    assert_eq!(
        recorded_from(&[one.clone(), deleted.clone()]),
        expected(Deleted, Some("1"), None)
    );
    assert_eq!(
        recorded_from(&[deleted, new.clone()]),
        expected(Created, None, Some("first"))
    );
    assert_eq!(
        recorded_from(&[one, new]),
        expected(Created, Some("1"), Some("first"))
    );
}

#[test]
fn buffer_is_limited_by_bytes() {
    let mut buffer = ObservationBuffer::default();
    for n in 0..2000 {
        buffer.push(observed(
            at(n),
            present("a", &format!("{n}{}", "x".repeat(2000))),
            None,
        ));
    }
    let observations = written(&mut buffer).entries;
    let size = bytes(&observations);
    assert!(size <= 512 * 1024 && size > 400 * 1024, "{size}");
    assert_eq!(changes(&observations), 2000);
}

#[test]
fn buffer_skips_repeated_states_also_after_a_failed_write() {
    let mut buffer = ObservationBuffer::default();
    let push = |buffer: &mut ObservationBuffer, state| buffer.push(observed(at(0), state, None));
    for state in [
        TargetState::Absent,
        TargetState::Absent,
        present("a", "1"),
        present("a", "1"),
    ] {
        push(&mut buffer, state);
    }
    assert_eq!(buffer.begin_write().entries.len(), 2);
    push(&mut buffer, present("a", "1"));
    push(&mut buffer, present("a", "2"));
    assert_eq!(
        actions(&written(&mut buffer).entries),
        [(Deleted, None), (Updated, Some("1")), (Updated, Some("2"))]
    );
}

/// Memory of a thousand objects with ten entries each.
#[test]
fn history_uses_little_memory() {
    assert!(size_of::<Entry>() <= 352, "{}", size_of::<Entry>());
    assert!(
        size_of::<ObservationBuffer>() <= 64,
        "{}",
        size_of::<ObservationBuffer>()
    );
}
