#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use kube::Resource as _;
use kube::discovery::ApiResource;
use qm_api::tracked_field::TargetReference;
use qm_runtime::watch::ResourceName;
use serde_json::json;

use super::super::field::FieldSelector;
use super::*;

/// Creates a follower that needs a read, or one whose watch shows everything.
fn follower(unread: bool) -> Follower {
    let certainty = if unread {
        Certainty::NeedsRead
    } else {
        Certainty::AwaitingList(Instant::now())
    };
    let resource =
        ResourceName::from(&ApiResource::erase::<k8s_openapi::api::core::v1::ConfigMap>(&()));
    let target = TargetKey {
        resource,
        namespace: "shop".into(),
        name: "web".into(),
    };
    let identity = FollowIdentity {
        uid: Some("1".into()),
        subject: Subject::new(&TargetReference::default(), "{.data.x}"),
    };
    Follower::new(
        0,
        identity,
        target,
        Arc::new(
            FieldSelector::compile("ConfigMap", "{.data.x}")
                .unwrap()
                .into(),
        ),
        certainty,
    )
}

fn object(uid: &str, version: u32) -> RawObject {
    let metadata = json!({ "namespace": "shop", "name": "web", "uid": uid, "resourceVersion": version.to_string() });
    serde_json::from_value(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata }))
        .unwrap()
}

impl Follower {
    /// Shows version `version` by the watch.
    fn watched(&mut self, version: u32, value: &str) -> bool {
        self.observe(
            &object("u", version),
            Some(ObservedValue::of_text(value).into()),
        )
    }

    /// Reads version `version`; returns whether the follower accepts the value.
    fn read_version(&mut self, version: u32, value: &str) -> bool {
        self.read_version_at(Instant::now(), version, value)
    }

    fn read_version_at(&mut self, now: Instant, version: u32, value: &str) -> bool {
        self.accepts(
            self.read_ticket(),
            now,
            Some((&object("u", version), ObservedValue::of_text(value).into())),
        )
    }

    fn accepts(
        &mut self,
        ticket: ReadTicket,
        now: Instant,
        found: Option<(&RawObject, ObservedField)>,
    ) -> bool {
        self.read(ticket, now, found);
        self.certainty == Certainty::Confirmed(now)
    }

    /// Reads no object.
    fn read_not_found(&mut self, now: Instant) -> bool {
        self.accepts(self.read_ticket(), now, None)
    }

    /// Removes and returns the buffered values; `None` is a deletion.
    fn take_values(&mut self) -> Vec<Option<String>> {
        let observations = self.buffer.begin_write();
        self.buffer.written(&observations);
        observations
            .entries
            .into_iter()
            .map(|entry| entry.value)
            .collect()
    }
}

fn values(values: &[&str]) -> Vec<Option<String>> {
    values
        .iter()
        .map(|value| Some((*value).to_owned()))
        .collect()
}

#[test]
fn watch_that_lags_behind_a_read_adds_no_change() {
    let mut follower = follower(true);
    assert!(
        follower.read_version(9, "c"),
        "the first read is accepted at once"
    );
    assert!(!follower.watched(5, "a"));
    assert!(!follower.watched(7, "b"));
    assert!(
        !follower.observe(&object("before", 8), None),
        "the deletion of an earlier object"
    );
    assert!(!follower.watched(9, "c"));
    assert_eq!(follower.take_values(), values(&["c"]));
    assert!(follower.watched(10, "b"), "the watch has caught up");
    assert_eq!(follower.take_values(), values(&["b"]));
}

/// A state with an unchanged field still makes earlier versions stale.
#[test]
fn unchanged_field_advances_the_newest_version() {
    let mut follower = follower(true);
    assert!(follower.watched(5, "a"));
    assert!(!follower.watched(9, "a"));
    assert!(
        !follower.watched(7, "b"),
        "the watch restarted from an older list"
    );
    assert!(follower.watched(10, "b"));
    assert_eq!(follower.take_values(), values(&["a", "b"]));
}

#[test]
fn read_ahead_of_the_watch_hides_no_later_event() {
    let mut follower = follower(false);
    follower.watched(5, "a");
    assert!(!follower.read_version(9, "c"), "needs another read");
    assert_eq!(follower.take_values(), values(&["a"]));
    assert!(follower.watched(7, "b"));
    assert!(follower.watched(9, "c"));
    assert!(follower.read_version(9, "c"));
    assert_eq!(follower.take_values(), values(&["b", "c"]));
    assert!(
        !follower.read_version(12, "d"),
        "every contradiction needs another read"
    );
}

#[test]
fn repeated_read_is_accepted_after_the_grace_period() {
    let (mut follower, now) = (follower(false), Instant::now());
    follower.watched(5, "a");
    assert!(!follower.read_version_at(now, 9, "c"));
    assert!(
        !follower.read_version_at(now, 9, "c"),
        "the grace period has not passed"
    );
    assert!(
        follower.read_version_at(now + CONTRADICTION_GRACE, 9, "c"),
        "the watch has missed the change"
    );
    assert_eq!(follower.take_values(), values(&["a", "c"]));
    assert_eq!(
        follower.certainty,
        Certainty::Confirmed(now + CONTRADICTION_GRACE)
    );

    assert!(!follower.read_not_found(now));
    assert_eq!(follower.take_values(), []);
    assert!(follower.read_not_found(now + CONTRADICTION_GRACE));
    assert_eq!(follower.take_values(), [None]);
    assert!(follower.read_not_found(now), "the deletion is known");
    assert_eq!(follower.take_values(), []);
}

#[test]
fn read_waits_while_the_watch_shows_events() {
    let (mut follower, now) = (follower(false), Instant::now());
    follower.watched(5, "a");
    assert!(!follower.read_version_at(now, 9, "c"));
    assert!(follower.watched(7, "b"));
    assert!(
        !follower.read_version_at(now + CONTRADICTION_GRACE, 9, "c"),
        "the watch still shows events"
    );
    assert!(follower.watched(8, "d") && follower.watched(9, "c"));
    assert!(follower.read_version_at(now + CONTRADICTION_GRACE * 2, 9, "c"));
    assert_eq!(follower.take_values(), values(&["a", "b", "d", "c"]));
}

#[test]
fn required_read_is_accepted_at_once() {
    let mut follower = follower(false);
    follower.watched(5, "a");
    follower.certainty = Certainty::NeedsRead;
    assert!(
        follower.read_not_found(Instant::now()),
        "a list did not show the object either"
    );
    assert_eq!(follower.take_values(), [Some("a".into()), None]);
}

#[test]
fn object_with_another_uid_is_a_change_even_with_the_same_value() {
    let mut follower = follower(false);
    follower.watched(5, "a");
    assert!(follower.observe(&object("v", 8), Some(ObservedValue::of_text("a").into())));
    let read = Some((&object("w", 9), ObservedValue::of_text("a").into()));
    assert!(
        !follower.accepts(follower.read_ticket(), Instant::now(), read),
        "a read of another uid is a change too"
    );
    assert_eq!(follower.take_values(), values(&["a", "a"]));
}

/// Versions that are not numbers behave the same.
#[test]
fn object_shown_during_a_read_is_not_deleted() {
    for mut follower in [follower(true), follower(false)] {
        let before = follower.read_ticket();
        let value = Some(ObservedValue::of_text("a").into());
        let mut odd = object("u", 5);
        odd.meta_mut().resource_version = Some("5/1".into());
        assert!(follower.observe(&odd, value));
        assert!(
            !follower.accepts(before, Instant::now(), None),
            "needs another read"
        );
        let before = follower.read_ticket();
        assert!(
            !follower.watched(6, "a"),
            "no change, but the object exists"
        );
        assert!(!follower.accepts(before, Instant::now(), None));
        assert!(follower.read_version(6, "a"));
        assert_eq!(follower.take_values(), values(&["a"]));
    }
}

#[test]
fn lagging_watch_does_not_revive_a_deleted_object() {
    let mut follower = follower(false);
    follower.watched(5, "a");
    follower.certainty = Certainty::NeedsRead;
    assert!(follower.read_not_found(Instant::now()));
    assert!(!follower.watched(7, "b"));
    assert!(!follower.observe(&object("u", 8), None));
    assert_eq!(follower.take_values(), [Some("a".into()), None]);
    assert!(
        follower.observe(&object("v", 9), Some(ObservedValue::of_text("a").into())),
        "a recreated object"
    );
    assert!(follower.observe(&object("v", 10), None));
    assert_eq!(follower.take_values(), [Some("a".into()), None]);
}

/// A restored etcd has lower versions, and no watch event follows.
#[test]
fn read_of_a_lower_version_is_accepted_after_the_grace_period() {
    let (mut follower, now) = (follower(false), Instant::now());
    follower.watched(150, "b");
    assert!(
        !follower.watched(90, "a"),
        "a lower version counts as stale"
    );
    assert!(
        !follower.read_version_at(now, 90, "a"),
        "needs another read"
    );
    assert!(follower.read_version_at(now + CONTRADICTION_GRACE, 90, "a"));
    assert_eq!(follower.take_values(), values(&["b", "a"]));
    assert!(follower.watched(91, "c"), "versions go on from there");
    assert_eq!(follower.take_values(), values(&["c"]));
}

#[test]
fn list_of_an_older_state_is_doubted() {
    let mut follower = follower(false);
    follower.watched(9, "b");
    follower.listed = false;
    assert!(follower.watched(5, "a"), "needs a reconcile");
    assert!(follower.has_to_be_read(Duration::MAX));
    assert!(
        !follower.watched(7, "c"),
        "the watch that follows such a list shows stale versions"
    );
    assert!(follower.read_version(9, "b"), "its cache lags behind");
    assert!(!follower.has_to_be_read(Duration::MAX));
    assert_eq!(follower.take_values(), values(&["b"]));
}

#[test]
fn state_that_contradicts_the_history_outranks_it_after_a_read() {
    let (mut follower, now) = (follower(false), Instant::now());
    follower.watched(90, "a");
    assert_eq!(follower.newest().unwrap().outranks, None);
    let begun = follower.read_ticket();
    follower.contradict(150);
    assert!(follower.has_to_be_read(Duration::MAX));
    follower.read(
        begun,
        now,
        Some((&object("u", 90), ObservedValue::of_text("a").into())),
    );
    assert_eq!(
        follower.newest().unwrap().outranks,
        None,
        "the entry may be later than the read"
    );
    follower.contradict(150);
    assert!(follower.read_version(90, "a"));
    assert_eq!(follower.newest().unwrap().outranks, Some(150));
    assert!(follower.watched(91, "b"));
    assert_eq!(follower.newest().unwrap().outranks, None);
}

/// The watch shows a stale state, and nothing more.
#[test]
fn contradiction_that_lasts_is_decided_by_a_read() {
    let mut follower = follower(false);
    follower.watched(5, "a");
    follower.contradict(9);
    let now = Instant::now();
    follower.contradict(9);
    assert!(
        !follower.read_version_at(now, 12, "c"),
        "the watch may only lag behind"
    );
    follower.contradict(9);
    assert!(follower.read_version_at(now + CONTRADICTION_GRACE, 12, "c"));
    assert_eq!(follower.take_values(), values(&["a", "c"]));
}

#[test]
fn change_that_a_metadata_watch_shows_during_a_read_needs_another_read() {
    let mut follower = follower(true);
    assert!(follower.read_version(5, "a"));
    assert!(
        !follower.observe_metadata(&object("u", 5)),
        "version 5 was read"
    );
    assert!(
        !follower.observe_metadata(&object("u", 4)),
        "version 4 is stale"
    );
    assert!(follower.observe_metadata(&object("u", 6)));
    let ticket = follower.read_ticket();
    assert!(follower.observe_metadata(&object("u", 7)));
    assert!(!follower.accepts(
        ticket,
        Instant::now(),
        Some((&object("u", 6), ObservedValue::of_text("b").into()))
    ));
    assert!(follower.is_outdated() && follower.has_to_be_read(Duration::from_hours(1)));
    assert!(follower.read_version(7, "c"));
    assert!(!follower.is_outdated());
    assert_eq!(follower.take_values(), values(&["a", "b", "c"]));
}

#[test]
fn read_that_finds_nothing_and_a_deletion_need_no_other_read() {
    let mut follower = follower(true);
    assert!(follower.observe_metadata(&object("u", 5)));
    assert!(follower.read_not_found(Instant::now()) && !follower.is_outdated());
    assert!(follower.observe_metadata(&object("v", 6)));
    assert!(follower.observe(&object("v", 7), None) || !follower.is_outdated());
    assert!(!follower.is_outdated());
}
