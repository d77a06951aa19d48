//! Recording of observations.

use ChangeAction::{Created, Deleted, Updated};

use qm_api::tracked_field::{ChangedBy, Skipped};

use super::*;
use crate::history::next::display;
use crate::when::When;

#[test]
fn each_change_is_an_entry_in_order() {
    let history = recorded([
        TargetState::Absent,
        present("a", "1"),
        present("a", "1"),
        present("a", "3"),
        present("a", "1"),
        missing("a"),
        present("a", ""),
        TargetState::Absent,
        TargetState::Absent,
        present("b", ""),
        present("c", ""),
    ]);
    let expected = [
        (Created, Some("1")),
        (Updated, Some("3")),
        (Updated, Some("1")),
        (Updated, None),
        (Updated, Some("")),
        (Deleted, None),
        (Created, Some("")),
        (Created, Some("")),
    ];
    assert_eq!(actions(&history), expected);
    let missing: Vec<bool> = history.iter().map(|entry| entry.missing).collect();
    assert_eq!(
        missing,
        [false, false, false, true, false, false, false, false]
    );
    let uids: Vec<_> = history.iter().map(|entry| entry.uid.as_deref()).collect();
    // The entry of a deletion has the last UID.
    assert_eq!(
        uids,
        [
            Some("a"),
            Some("a"),
            Some("a"),
            Some("a"),
            Some("a"),
            Some("a"),
            Some("b"),
            Some("c")
        ]
    );
    assert!(
        history
            .iter()
            .all(|entry| entry.is_pending() && entry.subject == Some(subject("replicas")))
    );
    let ids: Vec<_> = history
        .iter()
        .map(|entry| entry.id.as_deref().unwrap())
        .collect();
    assert_eq!(
        ids,
        [
            "id-1", "id-2", "id-3", "id-4", "id-5", "id-6", "id-7", "id-8"
        ]
    );
}

#[test]
fn change_and_its_reversal_are_two_entries() {
    let mut history = recorded([present("a", "1")]);
    let breath = [present("a", "3"), present("a", "1")].map(|state| observed(at(5), state, None));
    let result = record(&mut history, &subject("replicas"), breath, ids());
    assert_eq!(
        result,
        Recorded {
            entries: 2,
            changes: 2,
            completed: false
        }
    );
    assert_eq!(
        actions(&history)[1..],
        [(Updated, Some("3")), (Updated, Some("1"))]
    );
}

/// A client that removes a part takes no field in `managedFields`, so the writer of another part is found.
#[test]
fn removal_of_a_part_names_no_earlier_writer() {
    let (mut history, mut ids) = (History::new(), ids());
    let mut writer = |value: &str, found: &str, second: i64| {
        let observation = Entry {
            changed_by: Some(Box::new(ChangedBy {
                manager: found.into(),
                operation: None,
                subresource: None,
                time: Some(Time(at(second))),
            })),
            ..observed(at(20), present("a", value), None)
        };
        record(&mut history, &subject("replicas"), [observation], &mut ids);
        let last = history.last().unwrap();
        assert_eq!(last.value.as_deref(), Some(value));
        last.changed_by.as_ref().map(|it| it.manager.clone())
    };
    for (value, found, second, expected) in [
        (
            r#"{"a":"1","b":"1","c":"1"}"#,
            "creator",
            1,
            Some("creator"),
        ),
        (r#"{"a":"1","b":"1"}"#, "creator", 1, None),
        (r#"{"a":"1"}"#, "creator", 1, None),
        (r#"{"a":"1","d":"1"}"#, "editor", 2, Some("editor")),
        (r#"{"a":"1"}"#, "creator", 1, None),
        (r#"{"a":"2"}"#, "creator", 3, Some("creator")),
        // Several matches, and then a single one.
        (r#"["web:1","side:1"]"#, "creator", 4, Some("creator")),
        ("web:1", "creator", 4, None),
        // A single value has no parts, so its writer has changed it, even twice in a second.
        ("web:2", "creator", 4, Some("creator")),
    ] {
        assert_eq!(writer(value, found, second).as_deref(), expected, "{value}");
    }
}

#[test]
fn relist_records_one_entry_for_the_net_change() {
    let now = |state: TargetState| {
        let mut history = recorded([present("a", "1"), present("a", "2")]);
        record(
            &mut history,
            &subject("replicas"),
            [observed(at(60), state, None)],
            ids(),
        );
        actions(&history[2..])
            .into_iter()
            .map(|(action, value)| (action, value.map(str::to_owned)))
            .collect::<Vec<_>>()
    };
    assert_eq!(now(present("a", "9")), [(Updated, Some("9".into()))]);
    assert_eq!(now(present("a", "2")), []);
    assert_eq!(now(TargetState::Absent), [(Deleted, None)]);
    assert_eq!(now(present("b", "2")), [(Created, Some("2".into()))]);
}

#[test]
fn new_target_or_field_starts_a_new_series() {
    let mut history = recorded([present("a", "1")]);
    let mut ids = ids();
    for (field, state) in [
        ("image", TargetState::Absent),
        ("image", present("a", "1")),
        ("replicas", present("a", "1")),
        ("image", TargetState::Absent),
        ("replicas", TargetState::Absent),
    ] {
        record(
            &mut history,
            &subject(field),
            [observed(at(9), state, None)],
            &mut ids,
        );
    }
    let fields: Vec<_> = history
        .iter()
        .map(|entry| entry.subject.as_ref().unwrap().field())
        .collect();
    assert_eq!(fields, ["replicas", "image", "replicas", "replicas"]);
    assert_eq!(
        actions(&history)[1..],
        [(Created, Some("1")), (Created, Some("1")), (Deleted, None)]
    );
}

#[test]
fn kinds_of_the_same_name_in_two_groups_are_two_subjects() {
    let of = |api_version: Option<&str>| {
        let target = TargetReference {
            kind: "Foo".into(),
            name: "x".into(),
            ..TargetReference::default()
        };
        Subject::new(
            &TargetReference {
                api_version: api_version.map(str::to_owned),
                ..target
            },
            "image",
        )
    };
    assert_ne!(of(Some("a.test/v1")), of(Some("b.test/v1")));
    assert_eq!(of(Some("a.test/v1")), of(Some("a.test/v2")));
    assert_eq!(of(Some("apps/v1")), of(None));
    let parts = (of(Some("a.test/v1")), of(Some("v1")));
    assert_eq!(
        (parts.0.kind(), parts.1.kind(), parts.0.name()),
        ("Foo", "Foo", "x")
    );
}

#[test]
fn long_values_are_compared_whole() {
    let long = |end: &str| present("a", &format!("{}{end}", "x".repeat(5000)));
    let history = recorded([long("1"), long("1"), long("2")]);
    assert_eq!(history.len(), 2);
    assert_eq!(history[0].value, history[1].value);
    assert_ne!(history[0].truncated, history[1].truncated);
    let read_back: History =
        serde_json::from_str(&serde_json::to_string(&history).unwrap()).unwrap();
    assert_eq!(read_back, history);
}

#[test]
fn times_are_whole_seconds() {
    let mut history = History::new();
    let at = "2025-02-11T20:44:21.987Z".parse().unwrap();
    record(
        &mut history,
        &subject("replicas"),
        [observed(at, present("a", "1"), None)],
        ids(),
    );
    set_suspended(&mut history, true, &BTreeMap::new(), at);
    let read_back: History =
        serde_json::from_str(&serde_json::to_string(&history).unwrap()).unwrap();
    assert_eq!(read_back, history);
}

#[test]
fn original_history_is_adopted_without_a_new_entry() {
    let mut history = original(json!([
        {"action": "Created", "time": "2025-02-11T20:44:21Z", "value": "1"},
        {"action": "Updated", "time": "2025-02-11T20:51:04Z", "value": "3"},
    ]));
    let mut observe = |state| {
        record(
            &mut history,
            &subject("replicas"),
            [observed(at(0), state, None)],
            ids(),
        )
    };
    assert_eq!(
        observe(present("a", "3")),
        Recorded {
            entries: 0,
            changes: 0,
            completed: true
        }
    );
    assert_eq!(observe(present("a", "3")), Recorded::default());
    // The entry now has the UID: the same value of another resource is a change.
    assert_eq!(observe(present("b", "3")).entries, 1);
    assert_eq!(
        actions(&history),
        [
            (Created, Some("1")),
            (Updated, Some("3")),
            (Created, Some("3"))
        ]
    );
    assert_eq!((history[1].delivery, history[1].id.as_ref()), (None, None));
    assert_eq!(pending(&history).count(), 1);
}

#[test]
fn original_deletion_is_followed_by_a_creation() {
    let deleted = json!([{"action": "Created", "value": "1"}, {"action": "Deleted", "time": "2025-02-11T20:54:04Z"}]);
    let mut history = original(deleted);
    let mut observe = |state| {
        record(
            &mut history,
            &subject("replicas"),
            [observed(at(0), state, None)],
            ids(),
        )
    };
    assert_eq!(observe(TargetState::Absent), Recorded::default());
    assert_eq!(observe(present("a", "1")).entries, 1);
    assert_eq!(actions(&history)[2..], [(Created, Some("1"))]);
}

#[test]
fn unknown_value_of_the_original_program_is_completed() {
    for state in [present("a", "8080"), missing("a")] {
        let mut history = original(json!([{"action": "Created", "time": "2025-02-11T20:44:21Z"}]));
        let mut observe = |state| {
            record(
                &mut history,
                &subject("targetPort"),
                [observed(at(0), state, None)],
                ids(),
            )
        };
        assert_eq!(
            observe(state.clone()),
            Recorded {
                entries: 0,
                changes: 0,
                completed: true
            }
        );
        assert_eq!(observe(state.clone()), Recorded::default());
        assert_eq!(observe(present("a", "9090")).entries, 1);
    }
    let mut history = original(json!([{"action": "Updated"}]));
    record(
        &mut history,
        &subject("targetPort"),
        [observed(at(0), TargetState::Absent, None)],
        ids(),
    );
    assert_eq!(actions(&history), [(Updated, None), (Deleted, None)]);
}

#[test]
fn entry_without_subject_does_not_belong_to_a_later_subject() {
    let mut history = original(json!([{"action": "Created", "value": "1"}]));
    record(
        &mut history,
        &subject("replicas"),
        [observed(at(0), present("a", "1"), None)],
        ids(),
    );
    record(
        &mut history,
        &subject("image"),
        [observed(at(1), present("a", "nginx"), None)],
        ids(),
    );
    assert_eq!(
        actions(&history),
        [(Created, Some("1")), (Created, Some("nginx"))]
    );
}

/// Another replica recorded these changes before it lost the lease, or a read overtook the watch.
#[test]
fn recorded_versions_are_not_recorded_again() {
    let seen = |version: u64, state: TargetState| observed(at(9), state, Some(version));
    let shown = [
        seen(10, present("a", "1")),
        seen(11, present("a", "3")),
        seen(12, present("a", "1")),
        seen(13, TargetState::Absent),
        seen(14, present("b", "1")),
    ];
    let (mut history, mut ids) = (History::new(), ids());
    record(
        &mut history,
        &subject("replicas"),
        shown[..3].to_vec(),
        &mut ids,
    );
    assert_eq!(
        actions(&history),
        [
            (Created, Some("1")),
            (Updated, Some("3")),
            (Updated, Some("1"))
        ]
    );
    // A retry gets these changes again, and later ones.
    record(
        &mut history,
        &subject("replicas"),
        shown[..4].to_vec(),
        &mut ids,
    );
    record(&mut history, &subject("replicas"), shown.to_vec(), &mut ids);
    assert_eq!(
        actions(&history)[3..],
        [(Deleted, None), (Created, Some("1"))]
    );
    let versions: Vec<_> = history
        .iter()
        .map(|entry| entry.resource_version.as_deref().unwrap())
        .collect();
    assert_eq!(versions, ["10", "11", "12", "13", "14"]);
}

/// A stale watch shows the deletion and recreation that another replica recorded.
#[test]
fn deleted_resource_of_the_same_name_is_not_recorded_again() {
    let seen = |version: u64, state: TargetState| observed(at(9), state, Some(version));
    let shown = [
        seen(10, present("a", "1")),
        seen(12, present("a", "2")),
        seen(20, TargetState::Absent),
        seen(30, present("b", "1")),
    ];
    let (mut history, mut ids) = (History::new(), ids());
    record(&mut history, &subject("replicas"), shown.clone(), &mut ids);
    let last = history.split_off(3);
    let mut history = last.clone();
    assert_eq!(
        record(&mut history, &subject("replicas"), shown, &mut ids).entries,
        0
    );
}

/// The response to the write was lost, and more changes followed. A deletion that a read found has no version.
#[test]
fn write_with_a_lost_response_is_not_recorded_again() {
    let states = [
        present("a", "3"),
        TargetState::Absent,
        present("b", "1"),
        TargetState::Absent,
        present("c", "1"),
    ];
    let shown: Vec<_> = (1..)
        .zip(states)
        .map(|(id, state): (u8, _)| Entry {
            id: Some(id.to_string()),
            ..observed(at(9), state, None)
        })
        .collect();
    for already in 0..=shown.len() {
        let mut history = recorded([present("a", "1")]);
        for shown in [&shown[..already], &shown] {
            record(&mut history, &subject("replicas"), shown.to_vec(), ids());
        }
        let expected = [
            (Created, Some("1")),
            (Updated, Some("3")),
            (Deleted, None),
            (Created, Some("1")),
            (Deleted, None),
            (Created, Some("1")),
        ];
        assert_eq!(actions(&history), expected, "{already} recorded before");
    }
}

/// The history was restored into another cluster, whose versions are lower.
#[test]
fn versions_of_another_resource_are_not_compared() {
    let (mut history, mut ids) = (History::new(), ids());
    for (version, uid) in [(900, "a"), (10, "b")] {
        let observation = observed(at(9), present(uid, "1"), Some(version));
        record(&mut history, &subject("replicas"), [observation], &mut ids);
    }
    assert_eq!(
        actions(&history),
        [(Created, Some("1")), (Created, Some("1"))]
    );
}

/// A standby may hold such an observation from a gap of the leader; so may a list that is stale after a restart.
#[test]
fn observation_of_a_deleted_resource_is_not_recorded_after_its_deletion() {
    let mut history = recorded([present("a", "1"), TargetState::Absent]);
    let mut ids = ids();
    let seen = [present("a", "3"), TargetState::Absent];
    let observations = seen
        .into_iter()
        .zip([6, 9])
        .map(|(state, version)| observed(at(9), state, Some(version)));
    assert_eq!(
        record(&mut history, &subject("replicas"), observations, &mut ids).entries,
        0,
        "{history:?}"
    );
    let recreated = observed(at(10), present("b", "3"), Some(12));
    assert_eq!(
        record(&mut history, &subject("replicas"), [recreated], &mut ids).entries,
        1
    );
}

#[test]
fn observations_before_a_spec_change_come_first() {
    let seen = |field, version, value| {
        let (uid, value) = (Some("a".to_owned()), ObservedValue::of_text(value));
        let id = Some(format!("{field}-{version}"));
        observation(
            &subject(field),
            at(9),
            uid,
            Some(&value.into()),
            Some(version),
            id,
        )
    };
    let now = subject("replicas");
    let observations = [
        seen("image", 6, "i"),
        seen("image", 7, "j"),
        seen("replicas", 7, "3"),
    ];
    let inputs = inputs(&now, &observations);
    let recorded = next(&[], &inputs, ids()).history;
    let of = |entry: &Entry| {
        (
            entry.subject.as_ref().unwrap().field().to_owned(),
            entry.value.clone().unwrap(),
        )
    };
    let actions: Vec<_> = recorded.iter().map(of).collect();
    let pairs = [("image", "i"), ("image", "j"), ("replicas", "3")];
    assert_eq!(
        actions,
        pairs.map(|(field, value)| (field.to_owned(), value.to_owned()))
    );
    assert!(
        !next(&recorded, &inputs, ids()).changed,
        "the response to the write was lost"
    );
    let later = &recorded[2..];
    assert!(
        !next(later, &inputs, ids()).changed,
        "the earlier changes come too late"
    );
}

#[test]
fn first_value_of_each_subject_of_an_older_target_is_quiet() {
    let seen = |field, version, state| Entry {
        subject: Some(subject(field)),
        ..observed(at(9), state, Some(version))
    };
    let initial = Some(Skipped::Initial);
    let steps = [
        ("replicas", present("a", "1"), Created, initial),
        ("image", present("a", "i"), Created, initial),
        ("image", present("a", "j"), Updated, None),
        // The field comes back.
        ("replicas", present("a", "1"), Created, initial),
        ("replicas", present("a", "2"), Updated, None),
        ("replicas", TargetState::Absent, Deleted, None),
        // A new target is younger than the TrackedField.
        ("replicas", present("b", "1"), Created, None),
        ("image", present("b", "i"), Created, None),
    ];
    let mut history = History::new();
    for (version, (field, state, action, skipped)) in (1..).zip(steps) {
        let (subject, observations) = (subject(field), [seen(field, version, state)]);
        let inputs = Inputs {
            quiet: Some("a"),
            ..inputs(&subject, &observations)
        };
        let changes = next(&history, &inputs, ids());
        history = changes.history;
        let last = history.last().unwrap();
        assert_eq!((last.action, last.skipped), (action, skipped), "{version}");
        assert_eq!(changes.quiet, usize::from(skipped.is_some()), "{version}");
        assert_eq!(last.is_pending(), skipped.is_none(), "{version}");
    }
}

/// Reconciles with the newest state alone.
fn level(history: &[Entry], newest: &NewestState) -> HistoryChanges {
    let subject = subject("replicas");
    let inputs = Inputs {
        newest: Some(newest),
        ..inputs(&subject, &[])
    };
    next(history, &inputs, ids())
}

/// Another replica recorded 1 and 2; this replica's watch showed neither at first, and then 1.
#[test]
fn newest_state_is_recorded_whoever_recorded_the_last_one() {
    let seen = |version, state| observed(at(9), state, Some(version));
    let newest = |version, state| NewestState {
        created: None,
        existed: false,
        observation: seen(version, state),
        outranks: None,
    };
    let mut history = History::new();
    let recorded = [seen(5, present("a", "1")), seen(9, present("a", "2"))];
    record(&mut history, &subject("replicas"), recorded, ids());
    for (state, action) in [
        (present("a", "1"), Updated),
        (TargetState::Absent, Deleted),
        (present("b", "2"), Created),
    ] {
        let newest = newest(12, state);
        let recorded = level(&history, &newest);
        assert_eq!(
            (recorded.history.len(), recorded.history[2].action),
            (3, action)
        );
        assert_eq!(recorded.contradicted, None);
        assert!(!level(&recorded.history, &newest).changed, "once");
    }
    let same = level(&history, &newest(12, present("a", "2")));
    assert!(!same.changed && same.contradicted.is_none());
}

#[test]
fn stale_state_is_never_recorded_without_a_later_read() {
    let seen = |version, state| observed(at(9), state, Some(version));
    let newest = |version, state| NewestState {
        created: None,
        existed: false,
        observation: seen(version, state),
        outranks: None,
    };
    let mut history = History::new();
    let recorded = [seen(5, present("a", "1")), seen(9, present("a", "2"))];
    record(&mut history, &subject("replicas"), recorded, ids());
    let mut newest = newest(5, present("a", "1"));
    let past = level(&history, &newest);
    assert_eq!((past.changed, past.contradicted), (false, Some(9)));
    newest.outranks = Some(8);
    assert!(
        !level(&history, &newest).changed,
        "the entry may be later than the read"
    );
    newest.outranks = Some(9);
    let read = level(&history, &newest);
    assert_eq!(
        (actions(&read.history)[2], read.contradicted),
        ((Updated, Some("1")), None)
    );
    assert!(!level(&read.history, &newest).changed, "once");

    record(
        &mut history,
        &subject("replicas"),
        [seen(10, TargetState::Absent)],
        ids(),
    );
    newest.outranks = None;
    assert_eq!(
        level(&history, &newest).contradicted,
        Some(10),
        "a UID never returns"
    );
    newest.outranks = Some(10);
    assert_eq!(
        actions(&level(&history, &newest).history)[3],
        (Created, Some("1"))
    );
}

#[test]
fn last_entry_displays_both_ends_of_a_long_value() {
    let image = "registry.example.com/team/application-server:1.29.0";
    let shown = |history: &History| {
        history
            .iter()
            .map(|entry| entry.display_value.clone())
            .collect::<Vec<_>>()
    };
    let mut history = recorded([present("a", "1"), present("a", image)]);
    display(&mut history, &subject("replicas"));
    assert_eq!(
        shown(&history),
        [
            None,
            Some("registry.example.co…cation-server:1.29.0".into())
        ]
    );
    display(&mut history, &subject("image"));
    assert_eq!(shown(&history), [None, Some(String::new())]);
    history.extend(recorded([present("a", &"é".repeat(40))]));
    display(&mut history, &subject("replicas"));
    assert_eq!(shown(&history), [None, None, None]);
    history.extend(recorded([present("a", &"é".repeat(41))]));
    display(&mut history, &subject("replicas"));
    assert_eq!(
        history[3].display_value,
        Some(format!("{}…{}", "é".repeat(19), "é".repeat(20)))
    );
}

#[test]
fn change_for_which_when_is_false_is_skipped_and_the_next_previous() {
    let when = When::parse("action == 'Updated' && number(value) > number(previous)");
    let identity = subject("replicas");
    let observations = ["1", "3", "2", "x", "5"].map(|value| Entry {
        id: Some(value.into()),
        ..observed(at(1), present("a", value), None)
    });
    let recorded = |before: &[Entry], when: &Result<When, String>, observations: &[Entry]| {
        let inputs = Inputs {
            when: Some(when),
            ..inputs(&identity, observations)
        };
        next(before, &inputs, ids())
    };
    let changes = recorded(&[], &when, &observations);
    let skipped: Vec<_> = changes
        .history
        .iter()
        .map(|entry| (entry.skipped, entry.delivery))
        .collect();
    let (skip, send) = ((Some(Skipped::When), None), (None, Some(Delivery::Pending)));
    // "x" is no number, neither as the value nor as the previous one.
    assert_eq!(skipped, [skip, send, skip, send, send]);
    assert_eq!((changes.skipped, changes.when_errors), (2, 2));
    let sent: Vec<_> = pending(&changes.history)
        .map(|(entry, previous)| (entry.value.as_deref(), previous.unwrap().value.as_deref()))
        .collect();
    assert_eq!(sent[0], (Some("3"), Some("1")));
    assert_eq!(sent[1], (Some("x"), Some("2")));

    // The receiver never got "5", but the value was recorded.
    let mut failed = changes.history.clone();
    failed[4].delivery = Some(Delivery::Failed);
    let lower = Entry {
        id: Some("4".into()),
        ..observed(at(2), present("a", "4"), None)
    };
    let changes_after = recorded(&failed, &when, &[lower]);
    let last = changes_after.history.last().unwrap();
    assert_eq!((last.skipped, last.delivery), skip);
    assert_eq!(changes_after.when_errors, 0);

    // A later expression touches no entry.
    let none = When::parse("false");
    assert!(!recorded(&changes.history, &none, &[]).changed);

    // A merged entry is sent whatever the expression says.
    let merged = Entry {
        merged: Some(3),
        ..observations[0].clone()
    };
    let changes = recorded(&[], &none, &[merged]);
    assert_eq!(changes.history[0].delivery, Some(Delivery::Pending));
    assert_eq!((changes.skipped, changes.when_errors), (0, 0));

    // An invalid expression sends every message.
    for invalid in ["valu == '1'", "value == 0"] {
        let changes = recorded(&[], &When::parse(invalid), &observations);
        assert!(changes.history.iter().all(Entry::is_pending));
        assert_eq!((changes.skipped, changes.when_errors), (0, 5));
    }
}
