#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use kube::Client;
use serde_json::{Value, json};

use super::*;
use crate::testing::Widget;

const MINUTE: Duration = Duration::from_mins(1);

fn drift() -> Drift {
    let (service, _) = tower_test::mock::pair::<
        http::Request<kube::client::Body>,
        http::Response<kube::client::Body>,
    >();
    let events = Events::new(Client::new(service, "shop"), "test", "qm-0").0;
    Drift::new(
        &RuntimeTimings::default(),
        events,
        Counter::default(),
        &[("spec.replicas", "scale the owner")],
    )
}

fn owner(requested: Option<&str>) -> Owner {
    let annotations: Value = requested
        .map(|at| json!({ "example.com/requested-at": at }))
        .unwrap_or_default();
    let owner = json!({ "spec": {},
        "metadata": { "namespace": "shop", "name": "web", "uid": "u", "annotations": annotations } });
    Owner::of(&serde_json::from_value::<Widget>(owner).unwrap()).unwrap()
}

fn child() -> ObjectKey {
    ObjectKey::new("shop", "web")
}

fn correct(drift: &Drift, field: &str) {
    correct_child(drift, &child(), field);
}

fn correct_child(drift: &Drift, child: &ObjectKey, field: &str) {
    let fields = [vec!["f:spec".to_owned(), format!("f:{field}")]];
    let before = &Projection::default();
    let correction = Correction {
        title: "Deployment shop/web",
        fields: &fields,
        before,
        manager: Some("kubectl"),
        digest: "d",
    };
    drift.corrected(&owner(None), child, &correction);
}

fn reported(drift: &Drift) -> usize {
    drift
        .episodes()
        .get(&child())
        .map_or(0, |episode| episode.reported.len())
}

fn backing_off(drift: &Drift) -> bool {
    drift.is_backing_off(&owner(None), &child(), "d")
}

#[tokio::test(start_paused = true)]
async fn child_is_contested_from_the_third_correction_within_ten_minutes_on() {
    let drift = drift();
    for _ in 0..5 {
        correct(&drift, "replicas");
        assert_eq!(
            (drift.contested(&child()), backing_off(&drift)),
            (None, false)
        );
        tokio::time::advance(MINUTE * 6).await;
    }
    correct(&drift, "replicas");
    tokio::time::advance(MINUTE).await;
    correct(&drift, "replicas");
    let (message, again) = drift.contested(&child()).unwrap();
    let expected = "kubectl keeps changing spec.replicas of Deployment shop/web, so the operator corrects it less often: \
        scale the owner";
    assert_eq!(message, expected);
    assert!(
        again >= Duration::from_secs(15) && again <= Duration::from_secs(30),
        "{again:?}"
    );
    assert!(backing_off(&drift));
    assert_eq!(reported(&drift), 1, "one Event an episode");
    drift.forget(&child());
    assert_eq!(
        (drift.contested(&child()), backing_off(&drift)),
        (None, false)
    );
}

#[tokio::test(start_paused = true)]
async fn contest_names_the_managers_and_fields_of_the_last_three_corrections() {
    let drift = drift();
    let message = || drift.contested(&child()).unwrap().0;
    correct(&drift, "image");
    for _ in 0..2 {
        correct(&drift, "replicas");
    }
    assert_eq!(
        message(),
        "kubectl keeps changing spec.image, and kubectl keeps changing spec.replicas of Deployment shop/web, so the \
         operator corrects it less often: change the Widget instead"
    );
    correct(&drift, "replicas");
    assert!(
        message().starts_with("kubectl keeps changing spec.replicas of Deployment shop/web"),
        "{}",
        message()
    );
}

#[tokio::test(start_paused = true)]
async fn corrections_back_off_to_five_minutes_and_end_once_none_is_needed() {
    let drift = drift();
    for _ in 0..20 {
        while backing_off(&drift) {
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        correct(&drift, "replicas");
    }
    let (_, again) = drift.contested(&child()).unwrap();
    assert!(again >= MINUTE * 5 / 2 && again <= MINUTE * 5, "{again:?}");
    tokio::time::advance(again).await;
    assert!(!backing_off(&drift));
    if let Some((_, again)) = drift.contested(&child()) {
        assert!(again <= MINUTE * 5 / 2, "{again:?}");
        tokio::time::advance(again).await;
        assert_eq!(drift.contested(&child()), None);
    }
    assert!(drift.episodes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn correction_is_not_delayed_after_a_new_desired_state_or_request() {
    for (requested, digest) in [(Some("now"), "d"), (None, "other")] {
        let drift = drift();
        for _ in 0..3 {
            correct(&drift, "replicas");
        }
        assert!(backing_off(&drift));
        assert!(!drift.is_backing_off(&owner(requested), &child(), digest));
        assert_eq!(drift.contested(&child()), None, "the episode starts again");
    }
}

#[tokio::test(start_paused = true)]
async fn episodes_and_events_are_bounded() {
    let drift = drift();
    for number in 0..50 {
        correct(&drift, &format!("a{number}"));
    }
    assert_eq!(reported(&drift), MAX_REPORTED);
    assert_eq!(
        drift.episodes()[&child()].latest.len(),
        CORRECTIONS_UNTIL_CONTESTED
    );
    tokio::time::advance(MINUTE * 11).await;
    correct_child(&drift, &ObjectKey::new("shop", "db"), "type");
    assert_eq!(drift.episodes().len(), 1, "the other episode has ended");
}

/// Each search for ended episodes visits all children, and another client may change all of them at once.
#[tokio::test(start_paused = true)]
async fn ended_episodes_are_forgotten_once_per_period() {
    let drift = drift();
    let change_all = |prefix: &str| {
        for number in 0..100 {
            let child = ObjectKey::new("shop", &format!("{prefix}-{number}"));
            correct_child(&drift, &child, "image");
            drift.recreated(&owner(None), &child, "Deployment shop/web");
            correct_child(&drift, &child, "image");
        }
    };
    let known = || (drift.episodes().len(), drift.recreations().len());
    tokio::time::advance(MINUTE * 6).await;
    change_all("a");
    tokio::time::advance(MINUTE * 5).await;
    change_all("b");
    // The first ones have ended. The last search was six minutes ago.
    tokio::time::advance(MINUTE * 6).await;
    change_all("c");
    assert_eq!(known(), (300, 300));
    tokio::time::advance(MINUTE * 5).await;
    change_all("d");
    assert_eq!(known(), (200, 200), "two of four remain");
}

#[tokio::test(start_paused = true)]
async fn recreation_is_reported_once_within_the_window_and_counted_each_time() {
    let drift = drift();
    let reported = |drift: &Drift| drift.recreations().get(&child()).copied();
    drift.recreated(&owner(None), &child(), "Deployment shop/web");
    let first = reported(&drift);
    assert!(first.is_some());
    tokio::time::advance(MINUTE).await;
    drift.recreated(&owner(None), &child(), "Deployment shop/web");
    assert_eq!(
        reported(&drift),
        first,
        "no second Event, and no longer silence"
    );
    tokio::time::advance(MINUTE * 10).await;
    drift.recreated(&owner(None), &child(), "Deployment shop/web");
    assert!(reported(&drift) > first);
    assert_eq!(drift.corrected.get(), 3);
    drift.forget(&child());
    assert_eq!(reported(&drift), None);
}
