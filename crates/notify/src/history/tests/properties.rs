//! Invariants of histories under any changes.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use qm_api::tracked_field::{ChangedBy, Skipped, Truncation};

use super::super::limits::merge_pending;
use super::super::size;
use super::*;

fn any_state() -> impl Strategy<Value = TargetState> {
    let value = prop_oneof![
        Just(ObservedValue::Missing),
        "[ab]".prop_map(|text| ObservedValue::of_text(&text)),
        "[ab]".prop_map(|text| ObservedValue::of_text(&text.repeat(1500))),
    ];
    prop_oneof![
        1 => Just(TargetState::Absent),
        5 => ("[uv]", value).prop_map(|(uid, value)| TargetState::Present { uid: Some(uid), value }),
    ]
}

#[derive(Clone, Debug)]
enum Step {
    Observe(TargetState),
    /// A reconcile, while this number of entries is in flight.
    Reconcile(usize),
    /// A reconcile whose write fails.
    LostReconcile,
    /// Deliveries of this number of entries, of which the last may fail.
    Deliver(usize, bool),
    Suspend(bool),
    NewSubject,
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        20 => any_state().prop_map(Step::Observe),
        4 => (0usize..4).prop_map(Step::Reconcile),
        1 => Just(Step::LostReconcile),
        2 => (0usize..4, any::<bool>()).prop_map(|(count, fails)| Step::Deliver(count, fails)),
        1 => any::<bool>().prop_map(Step::Suspend),
        1 => Just(Step::NewSubject),
    ]
}

/// Model of the history.
#[derive(Default)]
struct Model {
    second: i64,
    /// Number of deletions of the target: no UID returns after a deletion.
    lives: usize,
    series: usize,
    newest: Option<TargetState>,
    /// Number of observed changes, and the number of those that are no longer Pending.
    changes: u64,
    delivered: u64,
    seen: HashMap<(i64, usize), TargetState>,
}

impl Model {
    fn observe(&mut self, state: &TargetState) -> Entry {
        self.second += 1;
        let state = &match state {
            TargetState::Present { uid, value } => TargetState::Present {
                uid: uid.as_ref().map(|uid| format!("{uid}{}", self.lives)),
                value: value.clone(),
            },
            TargetState::Absent => TargetState::Absent,
        };
        self.lives += usize::from(*state == TargetState::Absent);
        let change = match (&self.newest, state) {
            (None | Some(TargetState::Absent), TargetState::Absent) => false,
            (Some(newest), state) => newest != state,
            (None, TargetState::Present { .. }) => true,
        };
        self.changes += u64::from(change);
        self.newest = Some(state.clone());
        self.seen.insert((self.second, self.series), state.clone());
        Entry {
            id: Some(format!("seen-{}", self.second)),
            subject: Some(self.subject()),
            ..observed(at(self.second), state.clone(), None)
        }
    }

    fn subject(&self) -> Subject {
        subject(&format!("field-{}", self.series))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    /// Limits so low that every run reaches them.
    #[test]
    fn no_change_is_lost_and_limits_apply(steps in prop::collection::vec(any_step(), 1..150)) {
        const PENDING: ListLimits = ListLimits { items: 8, bytes: 12_000 };
        const FINISHED: ListLimits = ListLimits { items: 3, bytes: 3_000 };
        let limits = HistoryLimits { pending: PENDING, finished: FINISHED };
        let small = ListLimits { items: 5, bytes: 8_000 };
        let mut model = Model::default();
        let mut buffer = ObservationBuffer::new(small);
        let (mut history, mut ids) = (History::new(), ids());
        for step in steps {
            match step {
                Step::Observe(state) => buffer.push(model.observe(&state)),
                Step::LostReconcile => {
                    buffer.begin_write();
                    // An observation arrives in between.
                    if let Some(state) = model.newest.clone() {
                        buffer.push(model.observe(&state));
                    }
                }
                Step::Reconcile(in_flight) => reconcile(&mut history, &mut buffer, &model, limits, in_flight, &mut ids)?,
                Step::Deliver(count, fails) => {
                    let sent: Vec<_> = pending(&history).take(count).map(|(entry, _)| entry.clone()).collect();
                    model.delivered += changes(&sent);
                    let outcomes: Vec<_> = sent.iter().enumerate().map(|(at, entry)| {
                        let failed = DeliveryOutcome::Failed { reason: "refused".into() };
                        let outcome = if fails && at + 1 == sent.len() { failed } else { DeliveryOutcome::Delivered };
                        (entry.id.clone().unwrap(), outcome)
                    }).collect();
                    let failed = mark(&mut history, &outcomes).entries.len();
                    prop_assert_eq!(failed, usize::from(fails && !sent.is_empty()));
                    let before = history.clone();
                    prop_assert!(mark(&mut history, &outcomes).entries.is_empty());
                    prop_assert_eq!(&history, &before);
                }
                Step::Suspend(suspended) => {
                    set_suspended(&mut history, suspended, &BTreeMap::new(), at(model.second));
                    prop_assert!(!set_suspended(&mut history, suspended, &BTreeMap::new(), at(model.second + 5)));
                }
                Step::NewSubject => {
                    reconcile(&mut history, &mut buffer, &model, limits, 0, &mut ids)?;
                    model.series += 1;
                    model.newest = None;
                }
            }
        }
        reconcile(&mut history, &mut buffer, &model, limits, 0, &mut ids)?;
        let waiting: Vec<_> = history.iter().filter(|entry| entry.is_pending()).cloned().collect();
        prop_assert_eq!(changes(&waiting) + model.delivered, model.changes);
    }

    /// A merged list keeps its ends, order and sum, and is within its limits if possible.
    #[test]
    fn merged_list_keeps_ends_order_and_sum(
        items in prop::collection::vec((1usize..100, prop_oneof![9 => 1u64..9, 1 => any::<u64>()]), 0..60),
        limits in (3usize..40, 1000usize..9000),
    ) {
        let limits = ListLimits { items: limits.0, bytes: limits.1 };
        let entry = |(second, (bytes, changes)): (i64, &(usize, u64))| Entry {
            merged: Some(*changes),
            ..observed(at(second), present("a", &"x".repeat(*bytes)), None)
        };
        let before: Vec<_> = (0..).zip(&items).map(entry).collect();
        let mut entries = before.clone();
        let merged = merge_pending(&mut entries, limits, |_| false, ids());
        prop_assert_eq!(entries.len() + merged, items.len());
        prop_assert!(entries.is_sorted_by_key(|entry| entry.time.clone()));
        prop_assert_eq!(changes_saturating(&entries), changes_saturating(&before));
        prop_assert_eq!((entries.first(), entries.last()), (before.first(), before.last()));
        let bytes = entries.iter().map(size::stored).sum();
        prop_assert!(limits.allows(entries.len(), bytes) || entries.len() <= 3);
    }

    #[test]
    fn size_equals_that_of_the_stored_json(entry in any_entry()) {
        let json = serde_json::to_string(&entry).unwrap();
        let escaped = json.matches(['<', '>', '&']).count() * 5 + json.matches(['\u{2028}', '\u{2029}']).count() * 3;
        prop_assert_eq!(size::stored(&entry), json.len() + 1 + escaped);
    }

    /// Histories may come from hand edits, the original program (document 000) or this one.
    #[test]
    fn any_history_is_accepted(
        entries in prop::collection::vec(any_entry(), 0..20),
        states in prop::collection::vec(any_state(), 0..10),
        now in -9_000_000_000i64..9_000_000_000,
    ) {
        let mut history = entries.clone();
        let before = changes_saturating(&history);
        let observations = states.into_iter().map(|state| observed(at(now), state, None));
        let result = record(&mut history, &subject("replicas"), observations, ids());
        prop_assert_eq!(history.len(), entries.len() + result.entries);
        prop_assert_eq!(changes_saturating(&history), before.saturating_add(result.changes));
        set_suspended(&mut history, true, &BTreeMap::new(), at(now));
        set_suspended(&mut history, false, &BTreeMap::new(), at(now + 10));
        prop_assert!(history.iter().all(|entry| !entry.is_pending() || entry.suspended_since.is_none()));
        waiting_since(&history);
        let mut ages = Ages::default();
        let now = Now { wall: at(now), monotonic: Instant::now() };
        ages.update(&history, false, now);
        ages.update(&history, true, now);
        let last = history.last().cloned();
        let limits = HistoryLimits { pending: ListLimits { items: 4, bytes: 1 << 20 }, finished: ListLimits { items: 2, bytes: 1 << 20 } };
        apply_limits(&mut history, limits, |_| false, ids());
        prop_assert!(history.iter().filter(|entry| entry.is_pending()).count() <= 4);
        // Beside the two: the entry before the oldest Pending one, the newest entry, and skipped ones.
        let finished = history.iter().filter(|entry| !entry.is_pending() && entry.skipped.is_none());
        prop_assert!(finished.count() <= 4);
        prop_assert_eq!(history.last(), last.as_ref());
        prop_assert!(pending(&history).count() <= 4);
    }

    /// A last entry that the original program wrote is never recorded again.
    #[test]
    fn original_history_is_adopted_without_an_entry(
        values in prop::collection::vec((any::<bool>(), "[ab]{0,2}"), 1..10),
        known in any::<bool>(),
    ) {
        let mut history: History = values.iter().map(|(deleted, value)| {
            let action = if *deleted { "Deleted" } else { "Updated" };
            // The original program left out an empty value.
            let mut entry = json!({"action": action, "time": "2025-02-11T20:44:21Z"});
            if !deleted && !value.is_empty() {
                entry["value"] = value.as_str().into();
            }
            serde_json::from_value(entry).unwrap()
        }).collect();
        let (deleted, value) = values.last().unwrap();
        let now = match (deleted, known) {
            (true, _) => TargetState::Absent,
            (false, _) if value.is_empty() => present("u", "8080"),
            (false, true) => present("u", value),
            (false, false) => TargetState::Present { uid: None, value: ObservedValue::of_text(value) },
        };
        let result = record(&mut history, &subject("targetPort"), [observed(at(0), now, None)], ids());
        prop_assert_eq!(result.entries, 0);
        prop_assert_eq!(history.len(), values.len());
        prop_assert!(history.iter().all(|entry| entry.id.is_none() && entry.delivery.is_none()));
    }
}

/// Runs a reconcile and checks the invariants.
fn reconcile(
    history: &mut History,
    buffer: &mut ObservationBuffer,
    model: &Model,
    limits: HistoryLimits,
    in_flight: usize,
    ids: &mut impl FnMut() -> String,
) -> Result<(), TestCaseError> {
    let in_flight_entries: Vec<Entry> = pending(history)
        .take(in_flight)
        .map(|(entry, _)| entry.clone())
        .collect();
    let observations = buffer.begin_write();
    record(
        history,
        &model.subject(),
        observations.entries.iter().cloned(),
        &mut *ids,
    );
    buffer.written(&observations);
    let first = history.iter().position(Entry::is_pending);
    let (oldest, base) = (
        first.map(|at| history[at].clone()),
        first.and_then(|at| at.checked_sub(1)),
    );
    let (base, newest) = (base.map(|at| history[at].clone()), history.last().cloned());
    let sum = changes(history);
    let finished = |history: &History| history.iter().filter(|entry| !entry.is_pending()).count();
    let count = history.len();
    let merged = apply_limits(
        history,
        limits,
        |id| {
            in_flight_entries
                .iter()
                .any(|entry| entry.id.as_deref() == Some(id))
        },
        &mut *ids,
    );

    // The history is within its limits, and both ends are unchanged.
    let waiting: Vec<&Entry> = history.iter().filter(|entry| entry.is_pending()).collect();
    let room = usize::from(in_flight > 0) * 2 + in_flight_entries.len();
    prop_assert!(
        waiting.len() <= limits.pending.items.max(room),
        "{} pending",
        waiting.len()
    );
    prop_assert!(finished(history) <= limits.finished.items + 1);
    let first = history.iter().position(Entry::is_pending);
    prop_assert_eq!(first.map(|at| &history[at]), oldest.as_ref());
    prop_assert_eq!(
        first
            .and_then(|at| at.checked_sub(1))
            .map(|at| &history[at]),
        base.as_ref()
    );
    prop_assert_eq!(history.last(), newest.as_ref());
    prop_assert!(
        in_flight_entries
            .iter()
            .all(|entry| history.contains(entry))
    );
    // Without in-flight entries only three Pending ones, each at most twice 1 KiB, can be over the bytes.
    let bytes: usize = waiting.iter().map(|entry| size::stored(entry)).sum();
    prop_assert!(
        bytes <= limits.pending.bytes || waiting.len() <= 3 + in_flight_entries.len(),
        "{bytes} bytes pending"
    );

    // No change is lost or repeated; the order and values are those observed.
    let dropped = count - merged - history.len();
    prop_assert!(changes(history) + dropped as u64 <= sum);
    if dropped == 0 {
        prop_assert_eq!(changes(history), sum);
    }
    let ids: HashSet<_> = history.iter().map(|entry| entry.id.clone()).collect();
    prop_assert_eq!(ids.len(), history.len());
    prop_assert!(history.is_sorted_by_key(|entry| entry.time.clone()));
    for entry in history.iter() {
        let series = entry
            .subject
            .as_ref()
            .unwrap()
            .field()
            .trim_start_matches("field-")
            .parse()
            .unwrap();
        let second = entry.time.as_ref().unwrap().0.as_second() - at(0).as_second();
        match &model.seen[&(second, series)] {
            TargetState::Absent => {
                prop_assert_eq!((entry.action, &entry.value), (ChangeAction::Deleted, &None));
            }
            TargetState::Present { uid, value } => {
                prop_assert_ne!(entry.action, ChangeAction::Deleted);
                prop_assert_eq!(
                    (&entry.uid, entry.value.as_deref(), entry.truncated.as_ref()),
                    (uid, value.text(), value.truncation())
                );
                prop_assert_eq!(entry.missing, *value == ObservedValue::Missing);
            }
        }
    }
    Ok(())
}

fn any_details() -> impl Strategy<Value = (BTreeMap<String, String>, Option<Box<ChangedBy>>)> {
    let text = || "[a-z<>&\"\u{2028}]{0,8}";
    let changed_by = (
        text(),
        prop::option::of(text()),
        prop::option::of(text()),
        prop::option::of(0..8_000_000_000_i64),
    );
    let changed_by = changed_by.prop_map(|(manager, operation, subresource, second)| {
        Box::new(ChangedBy {
            manager,
            operation,
            subresource,
            time: second.map(|second| Timestamp::from_second(second).unwrap().into()),
        })
    });
    let context = prop::collection::btree_map("[a-z]{1,8}", text(), 0..6);
    (context, prop::option::of(changed_by))
}

fn any_entry() -> impl Strategy<Value = Entry> {
    let text = || prop::option::of("(\\PC|[<>&\"\\\\\u{0}-\u{1f}\u{7f}\u{2028}\u{2029}]){0,12}");
    let time = || {
        prop::option::of(
            (-2_000_000_000i64..8_000_000_000)
                .prop_map(|second| Timestamp::from_second(second).unwrap().into()),
        )
    };
    let action = prop_oneof![
        Just(ChangeAction::Created),
        Just(ChangeAction::Updated),
        Just(ChangeAction::Deleted)
    ];
    let delivery = prop_oneof![
        2 => Just(Some(Delivery::Pending)),
        1 => Just(Some(Delivery::Delivered)),
        1 => Just(Some(Delivery::Failed)),
        1 => Just(None),
    ];
    let delivery = delivery.prop_flat_map(|delivery| {
        let skipped = prop::option::of(Just(Skipped::When));
        let skipped = skipped.prop_map(move |skipped| skipped.filter(|_| delivery.is_none()));
        (Just(delivery), skipped)
    });
    let truncated = prop::option::of(
        (any::<u64>(), "[0-9a-f]{64}").prop_map(|(length, sha256)| Truncation { length, sha256 }),
    );
    let names = prop_oneof![
        Just(None),
        Just(Some(subject("replicas"))),
        Just(Some(subject("{.a<b}")))
    ];
    let number = || prop::option::of(any::<u64>());
    let texts = (text(), text(), text(), text(), text(), text());
    (
        time(),
        action,
        texts,
        any::<bool>(),
        truncated,
        delivery,
        names,
        number(),
        (time(), number()),
        any_details(),
    )
        .prop_map(
            |(
                time,
                action,
                (value, display_value, id, reason, uid, first_value),
                missing,
                truncated,
                (delivery, skipped),
                subject,
                merged,
                suspended,
                (context, changed_by),
            )| Entry {
                time,
                action,
                value,
                display_value,
                missing,
                truncated,
                id,
                delivery,
                skipped,
                reason,
                subject,
                uid,
                resource_version: None,
                context,
                changed_by,
                merged,
                first_value,
                suspended_since: suspended.0,
                suspended_seconds: suspended.1,
            },
        )
}
