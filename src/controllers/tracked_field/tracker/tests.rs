#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use qm_api::tracked_field::{Subject, Target};
use qm_notify::history::{HistoryLimits, TargetState};
use rstest::rstest;
use serde_json::json;

use super::*;

const PATH: &str = "{.data.x}";

fn resource() -> ResourceName {
    // One that is watched whole.
    ResourceName {
        api_version: "example.com/v1".into(),
        plural: "settings".into(),
    }
}

fn target(name: &str) -> TargetKey {
    TargetKey {
        resource: resource(),
        namespace: "shop".into(),
        name: name.into(),
    }
}

fn identity(uid: &str, name: &str) -> FollowIdentity {
    let target = Target {
        kind: "ConfigMap".into(),
        namespace: "shop".into(),
        name: name.into(),
        ..Target::default()
    };
    FollowIdentity {
        uid: Some(uid.into()),
        subject: Subject::new(&target, PATH),
    }
}

fn text(name: &str, version: u64, x: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "data": { "x": x },
        "metadata": { "namespace": "shop", "name": name, "uid": name, "resourceVersion": version.to_string() },
    })
}

fn object(name: &str, version: u64, x: &str) -> RawObject {
    serde_json::from_value(text(name, version, x)).unwrap()
}

/// The object with this spec.
fn with_spec(name: &str, version: u64, x: &str, spec: Value) -> RawObject {
    let mut object = text(name, version, x);
    object["spec"] = spec;
    serde_json::from_value(object).unwrap()
}

/// What a pass would record, and records.
fn taken(tracker: &Tracker, key: &ObjectKey, identity: &FollowIdentity) -> Vec<Option<String>> {
    let seen = tracker.seen(key, identity);
    let values = seen
        .observations
        .iter()
        .map(|observation| match &observation.state {
            TargetState::Present { value, .. } => value.text().map(str::to_owned),
            TargetState::Absent => None,
        });
    let values = values.collect();
    seen.recorded();
    values
}

/// A tracker whose watch was there before what is followed: that has to be read.
fn following(key: &ObjectKey, identity: &FollowIdentity, target: &TargetKey) -> Tracker {
    let tracker = Tracker::new(Trigger::default(), true);
    tracker.on_list_started(&resource(), None);
    tracker.on_list_done(&resource(), None);
    follow(&tracker, key, identity, target);
    tracker
}

fn follow(
    tracker: &Tracker,
    key: &ObjectKey,
    identity: &FollowIdentity,
    target: &TargetKey,
) -> bool {
    tracker.follow(
        key,
        identity,
        target,
        &Field::compile("ConfigMap", PATH).unwrap(),
        None,
    )
}

/// As when the apiserver refuses every write for hours.
#[test]
fn what_cannot_be_recorded_stays_bounded_and_counted() {
    let (tracker, key) = (
        Tracker::new(Trigger::default(), true),
        ObjectKey::new("shop", "web"),
    );
    let identity = identity("1", "web");
    follow(&tracker, &key, &identity, &target("web"));
    let mut made = 0;
    for _ in 0..20 {
        for _ in 0..300 {
            made += 1;
            tracker.on_applied(&resource(), object("web", made, &made.to_string()));
        }
        assert!(tracker.seen(&key, &identity).observations.len() <= HistoryLimits::PENDING.items);
    }
    let seen = tracker.seen(&key, &identity);
    assert_eq!(
        seen.observations
            .iter()
            .map(Observation::changes)
            .sum::<u64>(),
        made
    );
    assert_eq!((seen.observations.len() + seen.merged) as u64, made);
    seen.recorded();
    let seen = tracker.seen(&key, &identity);
    assert!(seen.observations.is_empty() && seen.merged == 0);
}

/// A pass reads the target; by the time that it has, something else is followed for the same name.
#[rstest]
#[case::another_spec(("1", "a"), ("1", "b"))]
#[case::made_again_with_the_same_spec(("1", "a"), ("2", "a"))]
fn a_read_counts_for_none_but_whom_it_was_made_for(
    #[case] before: (&str, &str),
    #[case] after: (&str, &str),
) {
    let key = ObjectKey::new("shop", "it");
    let (old, new) = (identity(before.0, before.1), identity(after.0, after.1));
    let tracker = following(&key, &old, &target(before.1));
    let asked = tracker.unread(&key, Duration::MAX).unwrap();
    assert!(follow(&tracker, &key, &new, &target(after.1)));
    for read in [Some(object(before.1, 9, "old")), None] {
        tracker.read(&key, &old, &target(before.1), asked, read.clone());
        assert!(
            tracker.unread(&key, Duration::MAX).is_some(),
            "the new one is still to be read"
        );
        assert_eq!(tracker.exists(&key), None);
        assert_eq!(taken(&tracker, &key, &new), []);
    }
    // Older than what was read for the other: it is news nevertheless.
    tracker.on_applied(&resource(), object(after.1, 5, "new"));
    assert_eq!(
        taken(&tracker, &key, &old),
        [],
        "the old pass does not take it"
    );
    assert_eq!(taken(&tracker, &key, &new), [Some("new".to_owned())]);
}

/// The same object through another version of its API: a path may find something else there.
#[test]
fn a_read_of_another_resource_counts_for_none() {
    let (key, identity, now) = (
        ObjectKey::new("shop", "it"),
        identity("1", "a"),
        target("a"),
    );
    let mut before = now.clone();
    before.resource.api_version = "v1beta1".into();
    let tracker = following(&key, &identity, &now);
    let asked = tracker.unread(&key, Duration::MAX).unwrap();
    tracker.read(&key, &identity, &before, asked, Some(object("a", 9, "old")));
    assert!(tracker.unread(&key, Duration::MAX).is_some());
    tracker.read(&key, &identity, &now, asked, Some(object("a", 9, "new")));
    assert!(tracker.unread(&key, Duration::MAX).is_none());
    assert_eq!(taken(&tracker, &key, &identity), [Some("new".to_owned())]);
}

#[test]
fn what_a_pass_gives_back_goes_to_none_but_whom_it_was_taken_from() {
    let (key, old, new) = (
        ObjectKey::new("shop", "it"),
        identity("1", "a"),
        identity("2", "a"),
    );
    let tracker = Tracker::new(Trigger::default(), true);
    follow(&tracker, &key, &old, &target("a"));
    tracker.on_applied(&resource(), object("a", 5, "old"));
    drop(tracker.seen(&key, &old));
    assert_eq!(
        tracker.seen(&key, &old).observations.len(),
        1,
        "not recorded: it is there again"
    );
    let seen = tracker.seen(&key, &old);
    assert!(follow(&tracker, &key, &new, &target("a")));
    drop(seen);
    assert_eq!(taken(&tracker, &key, &new), []);
}

fn refusal(code: u16) -> watcher::Error {
    let status = json!({ "status": "Failure", "message": "no", "reason": "", "code": code });
    watcher::Error::WatchError(serde_json::from_value(status).unwrap())
}

/// After it what discovery said before is asked for again.
#[test]
fn a_watch_takes_another_turn_when_it_begins_anew_or_is_not_served() {
    let (key, identity, target) = (
        ObjectKey::new("shop", "it"),
        identity("1", "a"),
        target("a"),
    );
    let tracker = Tracker::new(Trigger::default(), true);
    follow(&tracker, &key, &identity, &target);
    let mut turns = vec![tracker.turn(&resource())];
    let mut turn = |new: bool, what: &str| {
        let turn = tracker.turn(&resource());
        assert_eq!(!turns.contains(&turn), new, "{what}");
        turns.push(turn);
    };
    tracker.on_list_started(&resource(), None);
    turn(true, "the first list");
    tracker.on_applied(&resource(), object("a", 5, "x"));
    tracker.on_list_done(&resource(), None);
    tracker.on_recovered(&resource(), None);
    tracker.on_error(&resource(), None, &refusal(500));
    tracker.on_error(&resource(), None, &refusal(403));
    turn(false, "it goes on");
    for _ in 0..2 {
        tracker.on_error(&resource(), None, &refusal(404));
        turn(true, "not served");
    }
    tracker.on_list_started(&resource(), None);
    turn(true, "served again");

    tracker.forget_watches();
    turn(false, "it is still followed");
    tracker.forget(&key);
    tracker.forget_watches();
    assert_eq!(
        (
            tracker.turn(&resource()),
            tracker.watch_problem(&resource(), None)
        ),
        (0, None)
    );
    tracker.on_list_started(&resource(), None);
    turn(true, "never one that was");
}

#[test]
fn what_was_seen_in_another_scope_is_still_recorded() {
    let (key, identity, here) = (
        ObjectKey::new("shop", "it"),
        identity("1", "a"),
        target("a"),
    );
    let tracker = Tracker::new(Trigger::default(), true);
    follow(&tracker, &key, &identity, &here);
    tracker.on_applied(&resource(), object("a", 5, "x"));
    tracker.on_deleted(&resource(), object("a", 6, "x"));
    assert!(follow(
        &tracker,
        &key,
        &identity,
        &TargetKey {
            namespace: String::new(),
            ..here
        }
    ));
    assert_eq!(tracker.exists(&key), None, "there nothing was seen yet");
    assert_eq!(
        taken(&tracker, &key, &identity),
        [Some("x".to_owned()), None]
    );
}

/// As when status writes failed for a while, or the spec is changed in the middle of one.
#[test]
fn what_was_seen_of_what_the_spec_tracked_before_is_still_recorded() {
    let (key, first, second, third) = (
        ObjectKey::new("shop", "it"),
        identity("1", "a"),
        identity("1", "b"),
        identity("1", "c"),
    );
    let tracker = Tracker::new(Trigger::default(), true);
    let former = |identity| {
        tracker
            .seen(&key, identity)
            .former
            .as_ref()
            .map(|former| (former.subject.clone(), former.observations.len()))
    };
    follow(&tracker, &key, &first, &target("a"));
    tracker.on_applied(&resource(), object("a", 5, "x"));
    let seen = tracker.seen(&key, &first);
    tracker.on_applied(&resource(), object("a", 6, "y"));
    assert!(follow(&tracker, &key, &second, &target("b")));
    drop(seen);
    assert_eq!(former(&second), Some((first.subject.clone(), 2)));
    assert_eq!(
        former(&second),
        Some((first.subject.clone(), 2)),
        "a pass that fails gives it back"
    );
    tracker.on_applied(&resource(), object("b", 7, "z"));
    assert!(follow(&tracker, &key, &third, &target("c")));
    assert_eq!(former(&third), Some((second.subject.clone(), 1)));
    assert_eq!(
        tracker.seen(&key, &third).merged,
        2,
        "the oldest is counted"
    );

    assert!(
        follow(&tracker, &key, &identity("2", "a"), &target("a")),
        "of one that was made anew nothing is left"
    );
    assert_eq!(former(&identity("2", "a")), None);
}

/// A standby's events, and a leader's events before the relist, may be stale.
#[test]
fn new_leader_keeps_nothing_that_it_saw_before() {
    let (key, identity) = (ObjectKey::new("shop", "it"), identity("1", "a"));
    let tracker = Tracker::new(Trigger::default(), false);
    follow(&tracker, &key, &identity, &target("a"));
    let list = |generation, version, value| {
        tracker.on_started(&resource(), None, generation);
        tracker.on_list_started(&resource(), None);
        tracker.on_applied(&resource(), object("a", version, value));
        tracker.on_list_done(&resource(), None);
    };
    let seen = || {
        let newest = tracker
            .seen(&key, &identity)
            .newest
            .as_ref()
            .and_then(|newest| newest.observation.version);
        (newest, taken(&tracker, &key, &identity))
    };
    list(0, 5, "x");
    assert_eq!((seen(), tracker.exists(&key)), ((None, vec![]), None));
    assert!(
        tracker.unread(&key, Duration::ZERO).is_none(),
        "nothing is read either"
    );
    tracker.lead(1);
    assert!(
        tracker.unread(&key, Duration::from_hours(1)).is_none(),
        "the list shows it"
    );
    tracker.on_applied(&resource(), object("a", 6, "y"));
    tracker.on_list_started(&resource(), None);
    tracker.on_applied(&resource(), object("a", 6, "y"));
    tracker.on_list_done(&resource(), None);
    assert_eq!(seen(), (None, vec![]), "the watch of before");
    list(1, 5, "x");
    assert_eq!(seen(), (Some(5), vec![Some("x".to_owned())]));
    tracker.on_applied(&resource(), object("a", 7, "z"));
    assert_eq!(seen(), (Some(7), vec![Some("z".to_owned())]));
}

#[test]
fn object_that_is_followed_while_a_new_leader_lists_is_not_read() {
    let (key, identity) = (ObjectKey::new("shop", "it"), identity("1", "a"));
    let tracker = Tracker::new(Trigger::default(), false);
    tracker.on_list_started(&resource(), None);
    tracker.lead(1);
    follow(&tracker, &key, &identity, &target("a"));
    assert!(tracker.unread(&key, Duration::MAX).is_none());
    tracker.on_started(&resource(), None, 1);
    tracker.on_list_started(&resource(), None);
    tracker.on_list_done(&resource(), None);
    assert!(
        tracker.unread(&key, Duration::MAX).is_some(),
        "the list did not show it"
    );
}

/// `levels` of objects in each other.
fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |inner, _| json!({ "a": inner }))
}

/// The object, with something at the path that nests too deep.
fn deep(name: &str, version: u64) -> RawObject {
    with_spec(name, version, "hidden", nested(OBJECT_LEVELS))
}

#[test]
fn object_that_is_too_deep_is_unreadable_until_a_version_can_be_read() {
    let (key, identity) = (ObjectKey::new("shop", "it"), identity("1", "a"));
    let tracker = Tracker::new(Trigger::default(), true);
    follow(&tracker, &key, &identity, &target("a"));
    tracker.on_list_started(&resource(), None);
    tracker.on_applied(&resource(), deep("a", 5));
    tracker.on_list_done(&resource(), None);
    assert_eq!(
        (tracker.unreadable(&key), tracker.exists(&key)),
        (Some(Unreadable::TooDeep), None)
    );
    assert!(
        tracker.unread(&key, Duration::MAX).is_none(),
        "a read would find the same"
    );
    assert_eq!(taken(&tracker, &key, &identity), []);

    tracker.on_applied(&resource(), object("a", 6, "x"));
    assert_eq!(tracker.unreadable(&key), None);
    tracker.on_applied(&resource(), deep("a", 7));
    assert_eq!(
        (tracker.unreadable(&key), tracker.exists(&key)),
        (Some(Unreadable::TooDeep), Some(true))
    );
    tracker.on_applied(&resource(), object("a", 8, "x"));
    assert_eq!(
        tracker.unreadable(&key),
        None,
        "readable, though nothing has changed"
    );
    assert_eq!(taken(&tracker, &key, &identity), [Some("x".to_owned())]);
    tracker.on_applied(&resource(), deep("a", 9));
    tracker.on_deleted(&resource(), deep("a", 10));
    assert_eq!(
        (tracker.unreadable(&key), tracker.exists(&key)),
        (None, Some(false))
    );
    assert_eq!(taken(&tracker, &key, &identity), [None]);
}

/// A read that finds it is an answer: it is not repeated at once.
#[test]
fn read_of_an_object_that_is_too_deep_counts() {
    let (key, other, identity) = (
        ObjectKey::new("shop", "it"),
        ObjectKey::new("shop", "other"),
        identity("1", "a"),
    );
    let tracker = following(&key, &identity, &target("a"));
    follow(&tracker, &other, &identity, &target("a"));
    for (version, read, unreadable) in [
        (5, deep("a", 5), true),
        (6, object("a", 6, "x"), false),
        (7, deep("a", 7), true),
    ] {
        let asked = tracker.unread(&key, Duration::ZERO).unwrap();
        tracker.read(&key, &identity, &target("a"), asked, Some(read));
        assert_eq!(
            tracker.unreadable(&key).is_some(),
            unreadable,
            "version {version}"
        );
        assert!(
            tracker.unread(&key, Duration::from_hours(1)).is_none(),
            "version {version}"
        );
    }
    // One that lags behind the read.
    tracker.on_applied(&resource(), deep("a", 4));
    let asked = tracker.unread(&key, Duration::ZERO).unwrap();
    tracker.read(
        &key,
        &identity,
        &target("a"),
        asked,
        Some(object("a", 8, "x")),
    );
    tracker.on_applied(&resource(), deep("a", 7));
    assert_eq!(tracker.unreadable(&key), None);
}

#[test]
fn config_map_that_is_too_deep_is_read_once_for_each_version() {
    let (key, identity) = (ObjectKey::new("shop", "it"), identity("1", "a"));
    let maps = ResourceName {
        api_version: "v1".into(),
        plural: "configmaps".into(),
    };
    let target = TargetKey {
        resource: maps.clone(),
        ..target("a")
    };
    let tracker = Tracker::new(Trigger::default(), true);
    follow(&tracker, &key, &identity, &target);
    for version in [5, 6] {
        tracker.on_applied(&maps, object("a", version, ""));
        assert!(tracker.is_outdated(&key));
        let asked = tracker.unread(&key, Duration::MAX).unwrap();
        tracker.read(&key, &identity, &target, asked, Some(deep("a", version)));
        assert!(!tracker.is_outdated(&key) && tracker.unread(&key, Duration::MAX).is_none());
        assert_eq!(tracker.unreadable(&key), Some(Unreadable::TooDeep));
    }
}

/// They nest a few levels deeper than the object, and whoever may write it may forge them.
#[test]
fn managed_fields_make_no_object_unreadable() {
    let (key, identity) = (ObjectKey::new("shop", "it"), identity("1", "a"));
    let tracker = Tracker::new(Trigger::default(), true);
    follow(&tracker, &key, &identity, &target("a"));
    let mut managed = text("a", 5, "x");
    let entry = json!({ "manager": "m", "operation": "Update", "fieldsV1": nested(OBJECT_LEVELS) });
    managed["metadata"]["managedFields"] = json!([entry]);
    tracker.on_applied(&resource(), serde_json::from_value(managed).unwrap());
    assert_eq!(tracker.unreadable(&key), None);
    assert_eq!(taken(&tracker, &key, &identity), [Some("x".to_owned())]);
}

/// With so many further nodes.
fn large(name: &str, version: u64, x: &str, nodes: usize) -> RawObject {
    with_spec(name, version, x, json!(vec![0; nodes]))
}

/// Takes an object from a read, apart.
async fn read_apart(
    tracker: &Tracker,
    key: &ObjectKey,
    identity: &FollowIdentity,
    asked: ReadTicket,
    object: RawObject,
) {
    let permit = tracker.background.acquire().await.unwrap();
    let target = target("a");
    let read = tracker.read_apart((key, identity), &target, asked, object, permit);
    read.await.unwrap();
}

async fn look_into_queue(tracker: &Tracker) {
    while tracker.look_into_next().await {}
}

fn follow_path(tracker: &Tracker, key: &ObjectKey, identity: &FollowIdentity, path: &str) {
    tracker.follow(
        key,
        identity,
        &target("a"),
        &Field::compile("ConfigMap", path).unwrap(),
        None,
    );
}

/// For as long as a read takes, later states replace earlier ones.
#[tokio::test]
async fn lookup_that_is_not_cheap_waits_for_a_read_which_serves_all_that_wait() {
    let (one, other, cheap) = (
        ObjectKey::new("shop", "one"),
        ObjectKey::new("shop", "other"),
        ObjectKey::new("shop", "cheap"),
    );
    let identity = identity("1", "a");
    let tracker = Tracker::new(Trigger::default(), true);
    follow_path(&tracker, &one, &identity, "{..x}");
    follow_path(&tracker, &other, &identity, "{..x}");
    follow_path(&tracker, &cheap, &identity, PATH);
    tracker.on_list_started(&resource(), None);
    tracker.on_applied(&resource(), large("a", 5, "v5", 25_000));
    tracker.on_applied(&resource(), large("a", 6, "v6", 25_000));
    tracker.on_list_done(&resource(), None);
    assert_eq!(
        taken(&tracker, &cheap, &identity),
        [Some("v5".to_owned()), Some("v6".to_owned())]
    );
    assert!(tracker.unread(&cheap, Duration::MAX).is_none());
    assert!(
        tracker.is_put_off(&cheap),
        "reads of the object are expensive for the others"
    );
    for key in [&one, &other] {
        assert!(tracker.is_put_off(key) && tracker.is_outdated(key));
        assert_eq!(taken(&tracker, key, &identity), []);
    }
    let asked = tracker.unread(&one, Duration::MAX).unwrap();
    read_apart(
        &tracker,
        &one,
        &identity,
        asked,
        large("a", 6, "v6", 25_000),
    )
    .await;
    for key in [&one, &other] {
        assert!(!tracker.is_outdated(key) && tracker.unread(key, Duration::MAX).is_none());
        assert_eq!(taken(&tracker, key, &identity), [Some("v6".to_owned())]);
    }
    tracker.on_applied(&resource(), object("a", 7, "v7"));
    assert!(!tracker.is_put_off(&one));
    assert_eq!(taken(&tracker, &one, &identity), [Some("v7".to_owned())]);
}

#[tokio::test]
async fn read_that_puts_a_lookup_off_asks_for_one_that_does_not() {
    let (key, identity) = (ObjectKey::new("shop", "it"), identity("1", "a"));
    let tracker = Tracker::new(Trigger::default(), true);
    tracker.on_list_started(&resource(), None);
    follow_path(&tracker, &key, &identity, "{..x}");
    for version in [5, 6] {
        let asked = tracker.unread(&key, Duration::ZERO).unwrap();
        tracker.read(
            &key,
            &identity,
            &target("a"),
            asked,
            Some(large("a", version, "x", 25_000)),
        );
        assert!(tracker.is_put_off(&key) && tracker.is_outdated(&key));
        let asked = tracker.unread(&key, Duration::MAX).unwrap();
        read_apart(
            &tracker,
            &key,
            &identity,
            asked,
            large("a", version, "x", 25_000),
        )
        .await;
        assert!(tracker.unread(&key, Duration::from_hours(1)).is_none());
    }
    assert_eq!(taken(&tracker, &key, &identity), [Some("x".to_owned())]);
}

#[tokio::test]
async fn lookup_that_is_too_expensive_is_refused_until_it_is_cheaper() {
    let (key, cheap, identity) = (
        ObjectKey::new("shop", "it"),
        ObjectKey::new("shop", "cheap"),
        identity("1", "a"),
    );
    let tracker = Tracker::new(Trigger::default(), true);
    let names: Vec<_> = (0..16).map(|name| format!("'x{name}'")).collect();
    follow_path(
        &tracker,
        &key,
        &identity,
        &format!("{{..[{}]}}", names.join(",")),
    );
    follow_path(&tracker, &cheap, &identity, PATH);
    tracker.on_list_started(&resource(), None);
    tracker.on_applied(&resource(), large("a", 5, "x", 200_000));
    tracker.on_list_done(&resource(), None);
    look_into_queue(&tracker).await;
    let refused =
        |tracker: &Tracker| matches!(tracker.unreadable(&key), Some(Unreadable::TooExpensive(_)));
    assert!(refused(&tracker) && !tracker.is_put_off(&key));
    assert!(
        tracker.unread(&key, Duration::MAX).is_none(),
        "a read would find the same"
    );
    assert_eq!(taken(&tracker, &cheap, &identity), [Some("x".to_owned())]);
    assert_eq!(tracker.unreadable(&cheap), None);

    tracker.on_applied(&resource(), object("a", 6, "x"));
    assert_eq!(
        (tracker.unreadable(&key), tracker.exists(&key)),
        (None, Some(true))
    );
    let asked = tracker.unread(&key, Duration::ZERO).unwrap();
    read_apart(
        &tracker,
        &key,
        &identity,
        asked,
        large("a", 7, "x", 200_000),
    )
    .await;
    assert!(refused(&tracker) && tracker.unread(&key, Duration::from_hours(1)).is_none());
    tracker.on_deleted(&resource(), large("a", 8, "x", 200_000));
    assert_eq!(
        (tracker.unreadable(&key), tracker.exists(&key)),
        (None, Some(false))
    );
    assert_eq!(
        taken(&tracker, &key, &identity),
        [None, None],
        "without the field, then deleted"
    );
}

/// A read of an older version, which another field asked for, must not follow what the watch has shown since.
#[tokio::test]
async fn a_read_that_took_long_does_not_overwrite_what_the_watch_has_shown_since() {
    let (slow, late) = (
        ObjectKey::new("shop", "slow"),
        ObjectKey::new("shop", "late"),
    );
    let identity = identity("1", "a");
    for refused in [false, true] {
        let tracker = Tracker::new(Trigger::default(), true);
        let names: Vec<_> = (0..15).map(|name| format!("'x{name}'")).collect();
        let path = if refused {
            format!("{{..['x',{}]}}", names.join(","))
        } else {
            "{..x}".into()
        };
        follow_path(&tracker, &slow, &identity, "{..x}");
        follow_path(&tracker, &late, &identity, &path);
        tracker.on_list_started(&resource(), None);
        tracker.on_applied(&resource(), large("a", 5, "v5", 20_000));
        tracker.on_list_done(&resource(), None);
        let asked = tracker.unread(&slow, Duration::MAX).unwrap();
        // The watch goes on before the read is looked into.
        let newer = if refused {
            large("a", 6, "v6", 200_000)
        } else {
            object("a", 6, "v6")
        };
        tracker.on_applied(&resource(), newer);
        look_into_queue(&tracker).await;
        read_apart(
            &tracker,
            &slow,
            &identity,
            asked,
            large("a", 5, "v5", 20_000),
        )
        .await;
        let expected = if refused {
            vec![]
        } else {
            vec![Some("v6".to_owned())]
        };
        assert_eq!(taken(&tracker, &late, &identity), expected);
        assert_eq!(tracker.unreadable(&late).is_some(), refused);
    }
}

#[tokio::test]
async fn object_that_takes_too_much_memory_is_unreadable_until_a_version_can_be_read() {
    let (key, identity) = (ObjectKey::new("shop", "it"), identity("1", "a"));
    let tracker = Tracker::new(Trigger::default(), true);
    follow(&tracker, &key, &identity, &target("a"));
    tracker.on_list_started(&resource(), None);
    let huge = |version| {
        with_spec(
            "a",
            version,
            "x",
            json!(vec![json!({ "name": "a" }); 100_000]),
        )
    };
    tracker.on_applied(&resource(), huge(5));
    tracker.on_list_done(&resource(), None);
    look_into_queue(&tracker).await;
    assert_eq!(tracker.unreadable(&key), Some(Unreadable::TooLarge));
    let asked = tracker.unread(&key, Duration::ZERO).unwrap();
    read_apart(&tracker, &key, &identity, asked, huge(5)).await;
    assert_eq!(tracker.unreadable(&key), Some(Unreadable::TooLarge));
    tracker.on_applied(&resource(), object("a", 6, "x"));
    assert_eq!(tracker.unreadable(&key), None);
    assert_eq!(taken(&tracker, &key, &identity), [Some("x".to_owned())]);
}

/// Decoding takes a tenth of a second, in which the thread of the watch has other work.
#[tokio::test]
async fn large_objects_wait_and_others_do_not() {
    let (key, other) = (
        ObjectKey::new("shop", "it"),
        ObjectKey::new("shop", "other"),
    );
    let identity = identity("1", "a");
    let tracker = Tracker::new(Trigger::default(), true);
    follow(&tracker, &key, &identity, &target("a"));
    follow(&tracker, &other, &identity, &target("b"));
    tracker.on_list_started(&resource(), None);
    tracker.on_applied(&resource(), large("a", 5, "large", 50_000));
    assert_eq!(
        taken(&tracker, &key, &identity),
        [],
        "not decoded on this thread"
    );
    tracker.on_applied(&resource(), object("b", 6, "small"));
    tracker.on_list_done(&resource(), None);
    assert_eq!(
        taken(&tracker, &other, &identity),
        [Some("small".to_owned())]
    );
    // Its changes stay in order, however large each is.
    tracker.on_applied(&resource(), object("a", 7, "small"));
    tracker.on_applied(&resource(), large("a", 8, "large again", 50_000));
    assert_eq!(tracker.exists(&key), None);
    look_into_queue(&tracker).await;
    let values = ["large", "small", "large again"].map(|value| Some(value.to_owned()));
    assert_eq!(taken(&tracker, &key, &identity), values);
    // Nothing of it waits any more.
    tracker.on_applied(&resource(), object("a", 9, "new"));
    assert_eq!(taken(&tracker, &key, &identity), [Some("new".to_owned())]);
    tracker.on_applied(&resource(), large("a", 10, "last", 50_000));
    tracker.on_deleted(&resource(), large("a", 11, "last", 50_000));
    look_into_queue(&tracker).await;
    assert_eq!(
        taken(&tracker, &key, &identity),
        [Some("last".to_owned()), None]
    );
    for key in [&key, &other] {
        assert!(
            tracker.unread(key, Duration::MAX).is_none(),
            "the list has shown it"
        );
    }
}

/// As after a 410: only the new list tells whether the object was deleted meanwhile.
#[tokio::test]
async fn a_large_object_that_waited_while_the_watch_began_anew_is_read_if_the_list_does_not_show_it()
 {
    let (key, identity) = (ObjectKey::new("shop", "it"), identity("1", "a"));
    for shown_again in [false, true] {
        let tracker = Tracker::new(Trigger::default(), true);
        follow(&tracker, &key, &identity, &target("a"));
        tracker.on_list_started(&resource(), None);
        tracker.on_list_done(&resource(), None);
        tracker.on_applied(&resource(), large("a", 5, "x", 50_000));
        tracker.on_list_started(&resource(), None);
        if shown_again {
            tracker.on_applied(&resource(), object("a", 6, "y"));
            tracker.on_list_done(&resource(), None);
            look_into_queue(&tracker).await;
        } else {
            look_into_queue(&tracker).await;
            tracker.on_list_done(&resource(), None);
        }
        let unread = tracker.unread(&key, Duration::MAX).is_some();
        assert_eq!(unread, !shown_again);
        let values = [Some("x".to_owned()), Some("y".to_owned())];
        let expected = if shown_again { 2 } else { 1 };
        assert_eq!(taken(&tracker, &key, &identity), values[..expected]);
    }
}

#[tokio::test]
async fn beyond_the_bound_the_newest_state_of_a_large_object_is_read() {
    let (key, other) = (
        ObjectKey::new("shop", "it"),
        ObjectKey::new("shop", "other"),
    );
    let identity = identity("1", "a");
    let tracker = Tracker::new(Trigger::default(), true);
    follow(&tracker, &key, &identity, &target("a"));
    follow(&tracker, &other, &identity, &target("b"));
    tracker.on_list_started(&resource(), None);
    tracker.on_list_done(&resource(), None);
    // Three of them do not fit.
    let long =
        |name: &str, version, x: &str| with_spec(name, version, x, json!("-".repeat(1_500_000)));
    for (version, x) in [(5, "v5"), (6, "v6"), (7, "v7")] {
        tracker.on_applied(&resource(), long("a", version, x));
    }
    tracker.on_applied(&resource(), long("b", 8, "b"));
    let queued = [Some("v5".to_owned()), Some("v6".to_owned())];
    for (key, queued) in [(&key, queued.as_slice()), (&other, &[])] {
        assert!(tracker.is_put_off(key) && tracker.is_outdated(key));
        look_into_queue(&tracker).await;
        assert_eq!(taken(&tracker, key, &identity), queued);
        assert!(
            tracker.is_outdated(key),
            "the newest version is not read yet"
        );
    }
    let asked = tracker.unread(&key, Duration::MAX).unwrap();
    read_apart(&tracker, &key, &identity, asked, long("a", 7, "v7")).await;
    assert_eq!(taken(&tracker, &key, &identity), [Some("v7".to_owned())]);
    assert!(!tracker.is_outdated(&key));
    // A deletion needs no decoding.
    tracker.on_deleted(&resource(), object("b", 9, "b"));
    assert_eq!(taken(&tracker, &other, &identity), [None]);
}
