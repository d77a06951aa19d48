#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use kube::runtime::watcher;
use qm_api::tracked_field::{Entry, Subject, TargetReference};
use qm_notify::history::HistoryLimits;
use qm_runtime::nesting::OBJECT_LEVELS;
use rstest::rstest;
use serde_json::{Value, json};

use super::super::field::FieldSelector;
use super::*;

const PATH: &str = "{.data.x}";

fn resource() -> ResourceName {
    // The operator watches whole objects of this resource.
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
    let target = TargetReference {
        kind: "ConfigMap".into(),
        namespace: "shop".into(),
        name: name.into(),
        ..TargetReference::default()
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

/// Returns the object with this spec.
fn with_spec(name: &str, version: u64, x: &str, spec: Value) -> RawObject {
    let mut object = text(name, version, x);
    object["spec"] = spec;
    serde_json::from_value(object).unwrap()
}

/// Records the pending observations, and returns their values.
fn taken(tracker: &Tracker, key: &ObjectKey, identity: &FollowIdentity) -> Vec<Option<String>> {
    let (observations, _) = tracker.pending(key, identity);
    tracker.recorded(key, identity, &observations);
    let entries = observations.entries.into_iter();
    entries.map(|entry| entry.value).collect()
}

/// Creates a tracker whose watch began before the field was followed: a read is needed.
fn following(key: &ObjectKey, identity: &FollowIdentity, target: &TargetKey) -> Tracker {
    let tracker = Tracker::new(Trigger::default(), true);
    tracker.on_list_started(&resource(), None, 0);
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
        &FieldSelector::compile("ConfigMap", PATH).unwrap().into(),
        None,
    )
}

/// The apiserver rejects every write for hours.
#[test]
fn unrecorded_observations_stay_bounded_and_counted() {
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
        let (observations, _) = tracker.pending(&key, &identity);
        assert!(observations.entries.len() <= HistoryLimits::PENDING.items);
    }
    let (observations, _) = tracker.pending(&key, &identity);
    let changes = observations.entries.iter().map(Entry::changes);
    assert_eq!(changes.sum::<u64>(), made);
    let count = observations.entries.len() + observations.merged;
    assert_eq!(count as u64, made);
    tracker.recorded(&key, &identity, &observations);
    let (observations, _) = tracker.pending(&key, &identity);
    assert!(observations.entries.is_empty() && observations.merged == 0);
}

/// During the read, the spec changes or the object is recreated.
#[rstest]
#[case::another_spec(("1", "a"), ("1", "b"))]
#[case::recreated_with_the_same_spec(("1", "a"), ("2", "a"))]
fn read_counts_only_for_its_own_identity(
    #[case] before: (&str, &str),
    #[case] after: (&str, &str),
) {
    let key = ObjectKey::new("shop", "it");
    let (old, new) = (identity(before.0, before.1), identity(after.0, after.1));
    let tracker = following(&key, &old, &target(before.1));
    let ticket = tracker.unread(&key, Duration::MAX).unwrap();
    assert!(follow(&tracker, &key, &new, &target(after.1)));
    for read in [Some(object(before.1, 9, "old")), None] {
        tracker.read(&target(before.1), &ticket, read.clone());
        assert!(
            tracker.unread(&key, Duration::MAX).is_some(),
            "the new target still needs a read"
        );
        assert_eq!(tracker.exists(&key), None);
        assert_eq!(taken(&tracker, &key, &new), []);
    }
    // A lower version than that of the former read is a change, too.
    tracker.on_applied(&resource(), object(after.1, 5, "new"));
    assert_eq!(
        taken(&tracker, &key, &old),
        [],
        "a reconcile of the former object does not record it"
    );
    assert_eq!(taken(&tracker, &key, &new), [Some("new".to_owned())]);
}

/// Many fields may be created for one `ConfigMap`, which is read at most once a second.
#[rstest]
#[case::found(Some("x"))]
#[case::not_found(None)]
fn read_serves_all_followers_of_the_target_that_need_one(#[case] value: Option<&str>) {
    let (key, other, elsewhere) = (
        ObjectKey::new("shop", "it"),
        ObjectKey::new("shop", "other"),
        ObjectKey::new("shop", "elsewhere"),
    );
    let identity = identity("1", "a");
    let tracker = following(&key, &identity, &target("a"));
    follow(&tracker, &other, &identity, &target("a"));
    follow(&tracker, &elsewhere, &identity, &target("b"));
    let mut woken = tracker.trigger.open();
    let tickets = tracker.unread(&key, Duration::MAX).unwrap();
    tracker.read(
        &target("a"),
        &tickets,
        value.map(|value| object("a", 5, value)),
    );
    tracker.wake_others(&tickets, &key);
    for key in [&key, &other] {
        assert!(tracker.unread(key, Duration::MAX).is_none());
        assert_eq!(taken(&tracker, key, &identity), [value.map(str::to_owned)]);
    }
    assert!(tracker.unread(&elsewhere, Duration::MAX).is_some());
    assert_eq!(
        woken.try_recv().ok(),
        Some(other),
        "nothing else wakes it, unless it has requested a read"
    );
    assert!(woken.try_recv().is_err());
}

/// A path may match something else in another version of the API.
#[test]
fn read_of_another_resource_is_dropped() {
    let (key, identity, now) = (
        ObjectKey::new("shop", "it"),
        identity("1", "a"),
        target("a"),
    );
    let mut before = now.clone();
    before.resource.api_version = "v1beta1".into();
    let tracker = following(&key, &identity, &now);
    let ticket = tracker.unread(&key, Duration::MAX).unwrap();
    tracker.read(&before, &ticket, Some(object("a", 9, "old")));
    assert!(tracker.unread(&key, Duration::MAX).is_some());
    tracker.read(&now, &ticket, Some(object("a", 9, "new")));
    assert!(tracker.unread(&key, Duration::MAX).is_none());
    assert_eq!(taken(&tracker, &key, &identity), [Some("new".to_owned())]);
}

#[test]
fn unrecorded_observations_return_only_to_their_identity() {
    let (key, old, new) = (
        ObjectKey::new("shop", "it"),
        identity("1", "a"),
        identity("2", "a"),
    );
    let tracker = Tracker::new(Trigger::default(), true);
    follow(&tracker, &key, &old, &target("a"));
    tracker.on_applied(&resource(), object("a", 5, "old"));
    for _ in 0..2 {
        let (observations, _) = tracker.pending(&key, &old);
        assert_eq!(observations.entries.len(), 1, "nothing was recorded");
    }
    let (former, _) = tracker.pending(&key, &old);
    assert!(follow(&tracker, &key, &new, &target("a")));
    tracker.on_applied(&resource(), object("a", 6, "new"));
    tracker.recorded(&key, &old, &former);
    assert_eq!(taken(&tracker, &key, &new), [Some("new".to_owned())]);
}

fn problem(code: u16) -> WatchProblem {
    let status = json!({ "status": "Failure", "message": "no", "reason": "", "code": code });
    let error = watcher::Error::WatchError(serde_json::from_value(status).unwrap());
    WatchProblem::of(&error).unwrap()
}

/// A new epoch makes the resolver repeat the discovery.
#[test]
fn epoch_changes_when_the_watch_relists_or_is_not_served() {
    let (key, identity, target) = (
        ObjectKey::new("shop", "it"),
        identity("1", "a"),
        target("a"),
    );
    let tracker = Tracker::new(Trigger::default(), true);
    follow(&tracker, &key, &identity, &target);
    let mut epochs = vec![tracker.epoch(&resource())];
    let mut epoch = |new: bool, what: &str| {
        let epoch = tracker.epoch(&resource());
        assert_eq!(!epochs.contains(&epoch), new, "{what}");
        epochs.push(epoch);
    };
    tracker.on_list_started(&resource(), None, 0);
    epoch(true, "the first list");
    tracker.on_applied(&resource(), object("a", 5, "x"));
    tracker.on_list_done(&resource(), None);
    tracker.on_recovered(&resource(), None);
    tracker.on_failed(&resource(), None, &problem(500));
    tracker.on_failed(&resource(), None, &problem(403));
    epoch(false, "the watch continues");
    for _ in 0..2 {
        tracker.on_failed(&resource(), None, &problem(404));
        epoch(true, "not served");
    }
    tracker.on_list_started(&resource(), None, 0);
    epoch(true, "served again");

    tracker.forget(&key);
    tracker.forget_watch(&resource());
    assert_eq!(
        (
            tracker.epoch(&resource()),
            tracker.watch_problem(&resource(), None)
        ),
        (0, None)
    );
    tracker.on_list_started(&resource(), None, 0);
    epoch(true, "an epoch never repeats");
}

#[test]
fn observations_of_another_scope_are_still_recorded() {
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
            namespace: "".into(),
            ..here
        }
    ));
    assert_eq!(
        tracker.exists(&key),
        None,
        "nothing is known in the new scope"
    );
    assert_eq!(
        taken(&tracker, &key, &identity),
        [Some("x".to_owned()), None]
    );
}

/// Status writes failed for a while, or the spec changes during a write.
#[test]
fn observations_of_the_former_target_are_still_recorded() {
    let (key, first, second, third) = (
        ObjectKey::new("shop", "it"),
        identity("1", "a"),
        identity("1", "b"),
        identity("1", "c"),
    );
    let tracker = Tracker::new(Trigger::default(), true);
    let pending = |identity| {
        let (observations, _) = tracker.pending(&key, identity);
        let entry = |entry: Entry| (entry.subject.unwrap(), entry.value.unwrap());
        let entries = observations.entries.into_iter();
        entries.map(entry).collect::<Vec<_>>()
    };
    let entry = |identity: &FollowIdentity, value: &str| (identity.subject.clone(), value.into());
    follow(&tracker, &key, &first, &target("a"));
    tracker.on_applied(&resource(), object("a", 5, "x"));
    let (writing, _) = tracker.pending(&key, &first);
    tracker.on_applied(&resource(), object("a", 6, "y"));
    assert!(follow(&tracker, &key, &second, &target("b")));
    for _ in 0..2 {
        // A failed reconcile removes nothing.
        assert_eq!(pending(&second), [entry(&first, "x"), entry(&first, "y")]);
    }
    tracker.recorded(&key, &first, &writing);
    assert_eq!(pending(&second), [entry(&first, "y")]);
    tracker.on_applied(&resource(), object("b", 7, "z"));
    assert!(follow(&tracker, &key, &third, &target("c")));
    assert_eq!(pending(&third), [entry(&first, "y"), entry(&second, "z")]);

    assert!(
        follow(&tracker, &key, &identity("2", "a"), &target("a")),
        "a recreated object keeps nothing"
    );
    assert_eq!(pending(&identity("2", "a")), []);
}

/// The new spec names a field that does not exist, so no new follower takes over the observations.
#[test]
fn observations_are_recorded_before_the_end_of_tracking() {
    let (key, before, now) = (
        ObjectKey::new("shop", "it"),
        identity("1", "a"),
        identity("1", "b"),
    );
    let tracker = Tracker::new(Trigger::default(), true);
    follow(&tracker, &key, &before, &target("a"));
    tracker.on_applied(&resource(), object("a", 5, "x"));
    let (none, _) = tracker.pending(&key, &now);
    assert!(none.entries.is_empty(), "the follower may be newer");
    let (another, _) = tracker.last_pending(&key, &identity("2", "a"));
    assert!(another.entries.is_empty(), "an earlier object");
    for (identity, is_newest) in [(&before, true), (&now, false)] {
        let (last, newest) = tracker.last_pending(&key, identity);
        let values: Vec<_> = last.entries.iter().map(|it| it.value.as_deref()).collect();
        assert_eq!((values, newest.is_some()), (vec![Some("x")], is_newest));
    }
    let (last, _) = tracker.last_pending(&key, &now);
    tracker.recorded(&key, &now, &last);
    assert!(!tracker.has_buffered_changes(&key));
}

/// A standby's events, and a leader's events before the relist, may be stale.
#[test]
fn new_leader_keeps_no_earlier_observation() {
    let (key, identity) = (ObjectKey::new("shop", "it"), identity("1", "a"));
    let tracker = Tracker::new(Trigger::default(), false);
    follow(&tracker, &key, &identity, &target("a"));
    let list = |relist, version, value| {
        tracker.on_list_started(&resource(), None, relist);
        tracker.on_applied(&resource(), object("a", version, value));
        tracker.on_list_done(&resource(), None);
    };
    let seen = || {
        let (_, newest) = tracker.pending(&key, &identity);
        let version = newest.and_then(|newest| newest.observation.resource_version);
        (version, taken(&tracker, &key, &identity))
    };
    list(0, 5, "x");
    assert_eq!((seen(), tracker.exists(&key)), ((None, vec![]), None));
    assert!(
        tracker.unread(&key, Duration::ZERO).is_none(),
        "a standby reads nothing"
    );
    tracker.start_leading(1);
    assert!(
        tracker.unread(&key, Duration::from_hours(1)).is_none(),
        "the list shows the object"
    );
    tracker.on_applied(&resource(), object("a", 6, "y"));
    tracker.on_list_started(&resource(), None, 0);
    tracker.on_applied(&resource(), object("a", 6, "y"));
    tracker.on_list_done(&resource(), None);
    assert_eq!(seen(), (None, vec![]), "the former watch does not count");
    list(1, 5, "x");
    assert_eq!(seen(), (Some("5".into()), vec![Some("x".to_owned())]));
    tracker.on_applied(&resource(), object("a", 7, "z"));
    assert_eq!(seen(), (Some("7".into()), vec![Some("z".to_owned())]));
}

#[test]
fn object_followed_while_a_new_leader_lists_is_not_read() {
    let (key, identity) = (ObjectKey::new("shop", "it"), identity("1", "a"));
    let tracker = Tracker::new(Trigger::default(), false);
    tracker.on_list_started(&resource(), None, 0);
    tracker.start_leading(1);
    follow(&tracker, &key, &identity, &target("a"));
    assert!(tracker.unread(&key, Duration::MAX).is_none());
    tracker.on_list_started(&resource(), None, 1);
    tracker.on_list_done(&resource(), None);
    assert!(
        tracker.unread(&key, Duration::MAX).is_some(),
        "the list did not show the object"
    );
}

/// Returns `levels` nested objects.
fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |inner, _| json!({ "a": inner }))
}

/// Returns an object that is nested too deep.
fn deep(name: &str, version: u64) -> RawObject {
    with_spec(name, version, "hidden", nested(OBJECT_LEVELS))
}

#[test]
fn object_that_is_too_deep_is_unreadable_until_a_version_can_be_read() {
    let (key, identity) = (ObjectKey::new("shop", "it"), identity("1", "a"));
    let tracker = Tracker::new(Trigger::default(), true);
    follow(&tracker, &key, &identity, &target("a"));
    tracker.on_list_started(&resource(), None, 0);
    tracker.on_applied(&resource(), deep("a", 5));
    tracker.on_list_done(&resource(), None);
    assert_eq!(
        (tracker.unreadable(&key), tracker.exists(&key)),
        (Some(Unreadable::TooDeep), None)
    );
    assert!(
        tracker.unread(&key, Duration::MAX).is_none(),
        "a read would return the same"
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

/// A read that returns such an object is not repeated at once.
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
        let ticket = tracker.unread(&key, Duration::ZERO).unwrap();
        tracker.read(&target("a"), &ticket, Some(read));
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
    // The read lags behind the watch.
    tracker.on_applied(&resource(), deep("a", 4));
    let ticket = tracker.unread(&key, Duration::ZERO).unwrap();
    tracker.read(&target("a"), &ticket, Some(object("a", 8, "x")));
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
        let ticket = tracker.unread(&key, Duration::MAX).unwrap();
        tracker.read(&target, &ticket, Some(deep("a", version)));
        assert!(!tracker.is_outdated(&key) && tracker.unread(&key, Duration::MAX).is_none());
        assert_eq!(tracker.unreadable(&key), Some(Unreadable::TooDeep));
    }
}

/// `managedFields` nest a few levels deeper than the object, and anyone who may write the object may forge them.
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

/// Returns an object with `nodes` further nodes.
fn large(name: &str, version: u64, x: &str, nodes: usize) -> RawObject {
    with_spec(name, version, x, json!(vec![0; nodes]))
}

/// Accepts an object from a read in the background.
async fn read_in_background(tracker: &Tracker, tickets: ReadTickets, object: RawObject) {
    let permit = tracker.background.acquire().await.unwrap();
    let target = target("a");
    let read = tracker.read_in_background(&target, &tickets, object, permit);
    read.await.unwrap();
}

async fn inspect_queue(tracker: &Tracker) {
    while tracker.inspect_next().await {}
}

fn follow_path(tracker: &Tracker, key: &ObjectKey, identity: &FollowIdentity, path: &str) {
    tracker.follow(
        key,
        identity,
        &target("a"),
        &FieldSelector::compile("ConfigMap", path).unwrap().into(),
        None,
    );
}

/// During a read, later states replace earlier ones.
#[tokio::test]
async fn expensive_lookup_waits_for_a_read_that_serves_all_followers() {
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
    tracker.on_list_started(&resource(), None, 0);
    tracker.on_applied(&resource(), large("a", 5, "v5", 25_000));
    tracker.on_applied(&resource(), large("a", 6, "v6", 25_000));
    tracker.on_list_done(&resource(), None);
    assert_eq!(
        taken(&tracker, &cheap, &identity),
        [Some("v5".to_owned()), Some("v6".to_owned())]
    );
    assert!(tracker.unread(&cheap, Duration::MAX).is_none());
    assert!(
        tracker.is_deferred(&cheap),
        "reads of the object are expensive for the others"
    );
    for key in [&one, &other] {
        assert!(tracker.is_deferred(key) && tracker.is_outdated(key));
        assert_eq!(taken(&tracker, key, &identity), []);
    }
    let ticket = tracker.unread(&one, Duration::MAX).unwrap();
    read_in_background(&tracker, ticket, large("a", 6, "v6", 25_000)).await;
    for key in [&one, &other] {
        assert!(!tracker.is_outdated(key) && tracker.unread(key, Duration::MAX).is_none());
        assert_eq!(taken(&tracker, key, &identity), [Some("v6".to_owned())]);
    }
    tracker.on_applied(&resource(), object("a", 7, "v7"));
    assert!(!tracker.is_deferred(&one));
    assert_eq!(taken(&tracker, &one, &identity), [Some("v7".to_owned())]);
}

#[tokio::test]
async fn read_that_defers_a_lookup_requests_a_background_read() {
    let (key, identity) = (ObjectKey::new("shop", "it"), identity("1", "a"));
    let tracker = Tracker::new(Trigger::default(), true);
    tracker.on_list_started(&resource(), None, 0);
    follow_path(&tracker, &key, &identity, "{..x}");
    for version in [5, 6] {
        let ticket = tracker.unread(&key, Duration::ZERO).unwrap();
        let read = large("a", version, "x", 25_000);
        tracker.read(&target("a"), &ticket, Some(read));
        assert!(tracker.is_deferred(&key) && tracker.is_outdated(&key));
        let ticket = tracker.unread(&key, Duration::MAX).unwrap();
        read_in_background(&tracker, ticket, large("a", version, "x", 25_000)).await;
        assert!(tracker.unread(&key, Duration::from_hours(1)).is_none());
    }
    assert_eq!(taken(&tracker, &key, &identity), [Some("x".to_owned())]);
}

#[tokio::test]
async fn too_expensive_lookup_is_rejected_until_it_is_cheaper() {
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
    tracker.on_list_started(&resource(), None, 0);
    tracker.on_applied(&resource(), large("a", 5, "x", 200_000));
    tracker.on_list_done(&resource(), None);
    inspect_queue(&tracker).await;
    let refused =
        |tracker: &Tracker| matches!(tracker.unreadable(&key), Some(Unreadable::TooExpensive(_)));
    assert!(refused(&tracker) && !tracker.is_deferred(&key));
    assert!(
        tracker.unread(&key, Duration::MAX).is_none(),
        "a read would return the same"
    );
    assert_eq!(taken(&tracker, &cheap, &identity), [Some("x".to_owned())]);
    assert_eq!(tracker.unreadable(&cheap), None);

    tracker.on_applied(&resource(), object("a", 6, "x"));
    assert_eq!(
        (tracker.unreadable(&key), tracker.exists(&key)),
        (None, Some(true))
    );
    let ticket = tracker.unread(&key, Duration::ZERO).unwrap();
    read_in_background(&tracker, ticket, large("a", 7, "x", 200_000)).await;
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

/// Another field requested a read, which returns an older version than the watch has shown.
#[tokio::test]
async fn slow_read_does_not_overwrite_later_watch_events() {
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
        tracker.on_list_started(&resource(), None, 0);
        tracker.on_applied(&resource(), large("a", 5, "v5", 20_000));
        tracker.on_list_done(&resource(), None);
        let ticket = tracker.unread(&slow, Duration::MAX).unwrap();
        // The watch continues before the result of the read is inspected.
        let newer = if refused {
            large("a", 6, "v6", 200_000)
        } else {
            object("a", 6, "v6")
        };
        tracker.on_applied(&resource(), newer);
        inspect_queue(&tracker).await;
        read_in_background(&tracker, ticket, large("a", 5, "v5", 20_000)).await;
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
    tracker.on_list_started(&resource(), None, 0);
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
    inspect_queue(&tracker).await;
    assert_eq!(tracker.unreadable(&key), Some(Unreadable::TooLarge));
    let ticket = tracker.unread(&key, Duration::ZERO).unwrap();
    read_in_background(&tracker, ticket, huge(5)).await;
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
    tracker.on_list_started(&resource(), None, 0);
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
    // The object's changes stay in order, however large each is.
    tracker.on_applied(&resource(), object("a", 7, "small"));
    tracker.on_applied(&resource(), large("a", 8, "large again", 50_000));
    assert_eq!(tracker.exists(&key), None);
    inspect_queue(&tracker).await;
    let values = ["large", "small", "large again"].map(|value| Some(value.to_owned()));
    assert_eq!(taken(&tracker, &key, &identity), values);
    // No event of the object waits any more.
    tracker.on_applied(&resource(), object("a", 9, "new"));
    assert_eq!(taken(&tracker, &key, &identity), [Some("new".to_owned())]);
    tracker.on_applied(&resource(), large("a", 10, "last", 50_000));
    tracker.on_deleted(&resource(), large("a", 11, "last", 50_000));
    inspect_queue(&tracker).await;
    assert_eq!(
        taken(&tracker, &key, &identity),
        [Some("last".to_owned()), None]
    );
    for key in [&key, &other] {
        assert!(
            tracker.unread(key, Duration::MAX).is_none(),
            "the list has shown the object"
        );
    }
}

/// After a 410, only the new list shows whether the object was deleted meanwhile.
#[tokio::test]
async fn queued_large_object_is_read_if_the_relist_does_not_show_it() {
    let (key, identity) = (ObjectKey::new("shop", "it"), identity("1", "a"));
    for shown_again in [false, true] {
        let tracker = Tracker::new(Trigger::default(), true);
        follow(&tracker, &key, &identity, &target("a"));
        tracker.on_list_started(&resource(), None, 0);
        tracker.on_list_done(&resource(), None);
        tracker.on_applied(&resource(), large("a", 5, "x", 50_000));
        tracker.on_list_started(&resource(), None, 0);
        if shown_again {
            tracker.on_applied(&resource(), object("a", 6, "y"));
            tracker.on_list_done(&resource(), None);
            inspect_queue(&tracker).await;
        } else {
            inspect_queue(&tracker).await;
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
async fn full_queue_makes_a_large_object_be_read() {
    let (key, other) = (
        ObjectKey::new("shop", "it"),
        ObjectKey::new("shop", "other"),
    );
    let identity = identity("1", "a");
    let tracker = Tracker::new(Trigger::default(), true);
    follow(&tracker, &key, &identity, &target("a"));
    follow(&tracker, &other, &identity, &target("b"));
    tracker.on_list_started(&resource(), None, 0);
    tracker.on_list_done(&resource(), None);
    // Three objects do not fit.
    let long =
        |name: &str, version, x: &str| with_spec(name, version, x, json!("-".repeat(1_500_000)));
    for (version, x) in [(5, "v5"), (6, "v6"), (7, "v7")] {
        tracker.on_applied(&resource(), long("a", version, x));
    }
    tracker.on_applied(&resource(), long("b", 8, "b"));
    let queued = [Some("v5".to_owned()), Some("v6".to_owned())];
    for (key, queued) in [(&key, queued.as_slice()), (&other, &[])] {
        assert!(tracker.is_deferred(key) && tracker.is_outdated(key));
        inspect_queue(&tracker).await;
        assert_eq!(taken(&tracker, key, &identity), queued);
        assert!(
            tracker.is_outdated(key),
            "the newest version is not read yet"
        );
    }
    let ticket = tracker.unread(&key, Duration::MAX).unwrap();
    read_in_background(&tracker, ticket, long("a", 7, "v7")).await;
    assert_eq!(taken(&tracker, &key, &identity), [Some("v7".to_owned())]);
    assert!(!tracker.is_outdated(&key));
    // A deletion needs no decoding.
    tracker.on_deleted(&resource(), object("b", 9, "b"));
    assert_eq!(taken(&tracker, &other, &identity), [None]);
}

#[test]
fn followers_of_other_watches_are_not_visited() {
    let tracker = Tracker::new(Trigger::default(), true);
    let other = ResourceName {
        api_version: "example.com/v1".into(),
        plural: "others".into(),
    };
    let here = resource();
    let key = |resource: &ResourceName, namespace: &str, number: usize| {
        ObjectKey::new(namespace, &format!("{}-{number}", resource.plural))
    };
    let follow = |resource: &ResourceName, namespace: &str, number: usize| {
        let target = TargetKey::new(resource, namespace, &number.to_string());
        let key = key(resource, namespace, number);
        follow(&tracker, &key, &identity("1", "a"), &target);
    };
    for number in 0..100 {
        for (resource, namespace) in [(&other, "shop"), (&here, "a"), (&here, "shop-a")] {
            follow(resource, namespace, number);
        }
    }
    for number in 0..2 {
        follow(&here, "shop", number);
    }
    let visits = |search: &dyn Fn()| {
        tracker.state().targets.visits.set(0);
        search();
        tracker.state().targets.visits.get()
    };
    let shop = Some("shop");
    // A search ends at the first follower that the watch does not show.
    assert_eq!(visits(&|| tracker.on_list_started(&here, shop, 0)), 3);
    assert_eq!(visits(&|| tracker.on_list_done(&here, shop)), 3);
    let unread = || tracker.unread_of(&here, shop, Duration::MAX, usize::MAX);
    assert_eq!(visits(&|| assert_eq!(unread().count(), 2)), 3);
    assert_eq!(visits(&|| tracker.wake_all(&here, shop)), 3);
    let untracked = object("untracked", 5, "x");
    let show = || tracker.on_applied(&here, untracked.clone());
    assert_eq!(visits(&show), 1);
    let follows = |resource: &ResourceName| visits(&|| assert!(tracker.follows(resource)));
    assert_eq!((follows(&other), follows(&here)), (1, 1));
    for number in 0..100 {
        assert_eq!(
            visits(&|| _ = tracker.forget(&key(&other, "shop", number))),
            0
        );
    }
    assert!(!tracker.follows(&other));
}
