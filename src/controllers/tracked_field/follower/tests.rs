#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use kube::Resource as _;
use kube::discovery::ApiResource;
use qm_api::tracked_field::Target;
use qm_runtime::watch_hub::ResourceName;
use serde_json::json;

use super::*;

/// A follower that has to be read for, or whom the watch shows everything.
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
        subject: Subject::new(&Target::default(), "{.data.x}"),
    };
    Follower::new(
        identity,
        target,
        Field::compile("ConfigMap", "{.data.x}").unwrap(),
        certainty,
    )
}

fn object(uid: &str, version: u32) -> RawObject {
    let metadata = json!({ "namespace": "shop", "name": "web", "uid": uid, "resourceVersion": version.to_string() });
    serde_json::from_value(json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata }))
        .unwrap()
}

impl Follower {
    /// The watch shows version `version`.
    fn shown(&mut self, version: u32, value: &str) -> bool {
        self.observe(&object("u", version), Some(ObservedValue::of_text(value)))
    }

    /// Reads version `version`; returns whether the follower accepts the value.
    fn got(&mut self, version: u32, value: &str) -> bool {
        self.got_at(Instant::now(), version, value)
    }

    fn got_at(&mut self, now: Instant, version: u32, value: &str) -> bool {
        self.believes(
            self.asks(),
            now,
            Some((&object("u", version), ObservedValue::of_text(value))),
        )
    }

    fn believes(
        &mut self,
        asked: ReadTicket,
        now: Instant,
        found: Option<(&RawObject, ObservedValue)>,
    ) -> bool {
        self.read(asked, now, found);
        self.certainty == Certainty::Confirmed(now)
    }

    /// A read finds nothing.
    fn got_nothing(&mut self, now: Instant) -> bool {
        self.believes(self.asks(), now, None)
    }

    /// What was buffered since the last time; `None` is that it is gone.
    fn told(&mut self) -> Vec<Option<String>> {
        let value = |observation: Observation| match observation.state {
            TargetState::Present { value, .. } => value.text().map(str::to_owned),
            TargetState::Absent => None,
        };
        self.buffer.drain().into_iter().map(value).collect()
    }
}

fn values(values: &[&str]) -> Vec<Option<String>> {
    values
        .iter()
        .map(|value| Some((*value).to_owned()))
        .collect()
}

#[test]
fn a_watch_that_lags_behind_a_read_shows_no_news() {
    let mut follower = follower(true);
    assert!(
        follower.got(9, "c"),
        "nothing is known yet: it is believed at once"
    );
    assert!(!follower.shown(5, "a"));
    assert!(!follower.shown(7, "b"));
    assert!(
        !follower.observe(&object("before", 8), None),
        "the end of the one that was there before"
    );
    assert!(!follower.shown(9, "c"));
    assert_eq!(follower.told(), values(&["c"]));
    assert!(follower.shown(10, "b"), "it has caught up");
    assert_eq!(follower.told(), values(&["b"]));
}

/// What did not change the field counts for what is older, too.
#[test]
fn the_newest_version_is_the_last_that_was_seen() {
    let mut follower = follower(true);
    assert!(follower.shown(5, "a"));
    assert!(!follower.shown(9, "a"));
    assert!(!follower.shown(7, "b"), "begun anew from an older list");
    assert!(follower.shown(10, "b"));
    assert_eq!(follower.told(), values(&["a", "b"]));
}

#[test]
fn a_read_that_overtakes_the_watch_hides_nothing_that_still_comes() {
    let mut follower = follower(false);
    follower.shown(5, "a");
    assert!(!follower.got(9, "c"), "to be read once more");
    assert_eq!(follower.told(), values(&["a"]));
    assert!(follower.shown(7, "b"));
    assert!(follower.shown(9, "c"));
    assert!(follower.got(9, "c"));
    assert_eq!(follower.told(), values(&["b", "c"]));
    assert!(!follower.got(12, "d"), "each time anew");
}

#[test]
fn what_is_read_again_after_a_while_is_believed() {
    let (mut follower, now) = (follower(false), Instant::now());
    follower.shown(5, "a");
    assert!(!follower.got_at(now, 9, "c"));
    assert!(!follower.got_at(now, 9, "c"), "whatever woke the pass");
    assert!(
        follower.got_at(now + DOUBT, 9, "c"),
        "the watch has missed it"
    );
    assert_eq!(follower.told(), values(&["a", "c"]));
    assert_eq!(follower.certainty, Certainty::Confirmed(now + DOUBT));

    assert!(!follower.got_nothing(now));
    assert_eq!(follower.told(), []);
    assert!(follower.got_nothing(now + DOUBT));
    assert_eq!(follower.told(), [None]);
    assert!(follower.got_nothing(now), "that is known");
    assert_eq!(follower.told(), []);
}

#[test]
fn a_watch_that_goes_on_is_waited_for() {
    let (mut follower, now) = (follower(false), Instant::now());
    follower.shown(5, "a");
    assert!(!follower.got_at(now, 9, "c"));
    assert!(follower.shown(7, "b"));
    assert!(!follower.got_at(now + DOUBT, 9, "c"), "more is to come");
    assert!(follower.shown(8, "d") && follower.shown(9, "c"));
    assert!(follower.got_at(now + DOUBT * 2, 9, "c"));
    assert_eq!(follower.told(), values(&["a", "b", "d", "c"]));
}

#[test]
fn what_has_to_be_read_is_believed_at_once() {
    let mut follower = follower(false);
    follower.shown(5, "a");
    follower.certainty = Certainty::NeedsRead;
    assert!(
        follower.got_nothing(Instant::now()),
        "a list did not show it either"
    );
    assert_eq!(follower.told(), [Some("a".into()), None]);
}

#[test]
fn one_of_another_uid_is_news_whatever_its_value() {
    let mut follower = follower(false);
    follower.shown(5, "a");
    assert!(follower.observe(&object("v", 8), Some(ObservedValue::of_text("a"))));
    let read = Some((&object("w", 9), ObservedValue::of_text("a")));
    assert!(
        !follower.believes(follower.asks(), Instant::now(), read),
        "nor is that known to a read"
    );
    assert_eq!(follower.told(), values(&["a", "a"]));
}

/// Also where versions are no numbers.
#[test]
fn what_was_shown_since_a_read_began_is_not_gone() {
    for mut follower in [follower(true), follower(false)] {
        let before = follower.asks();
        let value = Some(ObservedValue::of_text("a"));
        let mut odd = object("u", 5);
        odd.meta_mut().resource_version = Some("5/1".into());
        assert!(follower.observe(&odd, value));
        assert!(
            !follower.believes(before, Instant::now(), None),
            "to be read once more"
        );
        let before = follower.asks();
        assert!(!follower.shown(6, "a"), "no news, but it is there");
        assert!(!follower.believes(before, Instant::now(), None));
        assert!(follower.got(6, "a"));
        assert_eq!(follower.told(), values(&["a"]));
    }
}

#[test]
fn what_is_gone_is_shown_by_a_watch_that_lags_behind_only() {
    let mut follower = follower(false);
    follower.shown(5, "a");
    follower.certainty = Certainty::NeedsRead;
    assert!(follower.got_nothing(Instant::now()));
    assert!(!follower.shown(7, "b"));
    assert!(!follower.observe(&object("u", 8), None));
    assert_eq!(follower.told(), [Some("a".into()), None]);
    assert!(
        follower.observe(&object("v", 9), Some(ObservedValue::of_text("a"))),
        "one that was made anew"
    );
    assert!(follower.observe(&object("v", 10), None));
    assert_eq!(follower.told(), [Some("a".into()), None]);
}

/// A restored etcd has lower versions, and no watch event follows.
#[test]
fn read_of_a_lower_version_is_believed_in_the_end() {
    let (mut follower, now) = (follower(false), Instant::now());
    follower.shown(150, "b");
    assert!(!follower.shown(90, "a"), "the past, for all that is known");
    assert!(!follower.got_at(now, 90, "a"), "to be read once more");
    assert!(follower.got_at(now + DOUBT, 90, "a"));
    assert_eq!(follower.told(), values(&["b", "a"]));
    assert!(follower.shown(91, "c"), "versions go on from there");
    assert_eq!(follower.told(), values(&["c"]));
}

#[test]
fn list_of_an_older_state_is_doubted() {
    let mut follower = follower(false);
    follower.shown(9, "b");
    follower.listed = false;
    assert!(follower.shown(5, "a"), "a pass has to look at it");
    assert!(follower.has_to_be_read(Duration::MAX));
    assert!(
        !follower.shown(7, "c"),
        "the watch that follows such a list shows the past"
    );
    assert!(follower.got(9, "b"), "its cache lags behind");
    assert!(!follower.has_to_be_read(Duration::MAX));
    assert_eq!(follower.told(), values(&["b"]));
}

#[test]
fn state_that_the_history_contradicts_outranks_it_once_it_is_read() {
    let (mut follower, now) = (follower(false), Instant::now());
    follower.shown(90, "a");
    assert_eq!(follower.newest().unwrap().outranks, None);
    let begun = follower.asks();
    follower.contradict(150);
    assert!(follower.has_to_be_read(Duration::MAX));
    follower.read(
        begun,
        now,
        Some((&object("u", 90), ObservedValue::of_text("a"))),
    );
    assert_eq!(
        follower.newest().unwrap().outranks,
        None,
        "the entry may be later than the read"
    );
    follower.contradict(150);
    assert!(follower.got(90, "a"));
    assert_eq!(follower.newest().unwrap().outranks, Some(150));
    assert!(follower.shown(91, "b"));
    assert_eq!(follower.newest().unwrap().outranks, None);
}

/// The watch shows a stale state, and nothing more.
#[test]
fn contradiction_that_lasts_is_decided_by_a_read() {
    let mut follower = follower(false);
    follower.shown(5, "a");
    follower.contradict(9);
    let now = Instant::now();
    follower.contradict(9);
    assert!(
        !follower.got_at(now, 12, "c"),
        "the watch may only lag behind"
    );
    follower.contradict(9);
    assert!(follower.got_at(now + DOUBT, 12, "c"));
    assert_eq!(follower.told(), values(&["a", "c"]));
}

#[test]
fn change_that_a_metadata_watch_shows_during_a_read_needs_another_read() {
    let mut follower = follower(true);
    assert!(follower.got(5, "a"));
    assert!(
        !follower.show_metadata(&object("u", 5)),
        "version 5 was read"
    );
    assert!(
        !follower.show_metadata(&object("u", 4)),
        "version 4 is the past"
    );
    assert!(follower.show_metadata(&object("u", 6)));
    let asked = follower.asks();
    assert!(follower.show_metadata(&object("u", 7)));
    assert!(!follower.believes(
        asked,
        Instant::now(),
        Some((&object("u", 6), ObservedValue::of_text("b")))
    ));
    assert!(follower.is_outdated() && follower.has_to_be_read(Duration::from_hours(1)));
    assert!(follower.got(7, "c"));
    assert!(!follower.is_outdated());
    assert_eq!(follower.told(), values(&["a", "b", "c"]));
}

#[test]
fn read_that_finds_nothing_and_a_deletion_need_no_other_read() {
    let mut follower = follower(true);
    assert!(follower.show_metadata(&object("u", 5)));
    assert!(follower.got_nothing(Instant::now()) && !follower.is_outdated());
    assert!(follower.show_metadata(&object("v", 6)));
    assert!(follower.observe(&object("v", 7), None) || !follower.is_outdated());
    assert!(!follower.is_outdated());
}
