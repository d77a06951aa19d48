#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::client::Body;
use rstest::rstest;
use serde_json::json;

use super::*;

const TRUST: Duration = Duration::from_mins(30);

fn key(name: &str) -> ObjectKey {
    ObjectKey::new("shop", name)
}

/// Ends a list of `namespace` that has shown these children. Returns the owners of the others.
fn end_list(cache: &ChildCache<u8>, namespace: Option<&str>, shown: &[&str]) -> Vec<ObjectKey> {
    let keys = cache.keys(namespace).into_iter();
    let missing = keys.filter(|key| !shown.contains(&&*key.name));
    missing.filter_map(|key| cache.on_missing(&key)).collect()
}

fn summary(cache: &ChildCache<u8>, key: &ObjectKey) -> Option<u8> {
    cache.known(key).map(|known| known.summary)
}

/// Knowledge of the cache about a child.
#[derive(Debug, PartialEq)]
enum Lookup {
    Unknown,
    Terminating,
    UpToDate,
    Unconfirmed,
}

fn lookup(cache: &ChildCache<u8>, key: &ObjectKey, digest: &str) -> Lookup {
    match cache.known(key) {
        None => Lookup::Unknown,
        Some(_) if cache.is_up_to_date(key, digest) => Lookup::UpToDate,
        Some(known) if known.terminating => Lookup::Terminating,
        Some(_) => Lookup::Unconfirmed,
    }
}

fn child(version: u64, fingerprint: u64, summary: u8) -> KnownChild<u8> {
    KnownChild {
        uid: "1".into(),
        version,
        owner: Some(key("owner")),
        owner_uid: "".into(),
        fingerprint,
        terminating: false,
        summary,
    }
}

fn matched(desired: &str) -> ConfirmedMatch {
    ConfirmedMatch {
        desired: desired.into(),
        values: 7,
        has_foreign_items: false,
    }
}

#[test]
fn own_write_wakes_no_owner_and_a_changed_field_does() {
    let cache = ChildCache::new(TRUST);
    let web = key("web");
    cache.record(&web, child(5, 0, 1), Some(matched("d")));
    for version in [4, 5, 6] {
        assert_eq!(cache.on_applied(web.clone(), child(version, 0, 1)), []);
    }
    assert_eq!(
        (lookup(&cache, &web, "d"), summary(&cache, &web)),
        (Lookup::UpToDate, Some(1))
    );
    assert_eq!(lookup(&cache, &web, "other"), Lookup::Unconfirmed);
    assert_eq!(
        cache.on_applied(web.clone(), child(7, 0, 2)),
        [key("owner")],
        "the summary has changed"
    );
    assert_eq!(
        (lookup(&cache, &web, "d"), summary(&cache, &web)),
        (Lookup::UpToDate, Some(2))
    );
    assert_eq!(
        cache.on_applied(web.clone(), child(8, 1, 2)),
        [key("owner")]
    );
    assert_eq!(lookup(&cache, &web, "d"), Lookup::Unconfirmed);
    assert_eq!(
        cache.matched(&web, "1"),
        Some(matched("d")),
        "the last match stays"
    );
    assert_eq!(cache.matched(&web, "2"), None);
    assert_eq!(
        cache.on_applied(web.clone(), child(9, 0, 2)),
        [key("owner")]
    );
    assert_eq!(
        lookup(&cache, &web, "d"),
        Lookup::UpToDate,
        "the confirmed state is back"
    );
    assert_eq!(
        cache.on_deleted(&web, "2"),
        None,
        "another child of the name"
    );
    assert_eq!(cache.on_deleted(&web, "1"), Some(key("owner")));
    assert_eq!(lookup(&cache, &web, "d"), Lookup::Unknown);
}

#[tokio::test(start_paused = true)]
async fn match_expires_after_the_trust_period() {
    let cache = ChildCache::new(TRUST);
    cache.record(&key("web"), child(5, 0, 1), Some(matched("d")));
    tokio::time::advance(TRUST / 2).await;
    assert_eq!(
        (
            lookup(&cache, &key("web"), "d"),
            summary(&cache, &key("web"))
        ),
        (Lookup::UpToDate, Some(1))
    );
    tokio::time::advance(TRUST).await;
    assert_eq!(lookup(&cache, &key("web"), "d"), Lookup::Unconfirmed);
}

#[tokio::test(start_paused = true)]
async fn cached_state_counts_until_a_read_is_due() {
    let cache = ChildCache::new(TRUST);
    let web = key("web");
    let is_trusted = || cache.trusted(&web).is_some();
    assert!(!is_trusted());
    cache.on_applied(web.clone(), child(5, 0, 1));
    // A standby does not use the state, so the trust in the state begins with the first use.
    tokio::time::advance(TRUST * 2).await;
    assert!(is_trusted());
    tokio::time::advance(TRUST).await;
    assert!(!is_trusted());
    cache.record(&web, child(5, 0, 1), None);
    assert!(is_trusted(), "a read has shown the same state");
    assert_eq!(lookup(&cache, &web, "d"), Lookup::Unconfirmed);
    tokio::time::advance(TRUST).await;
    assert!(!is_trusted());
    cache.on_applied(web.clone(), child(6, 0, 1));
    assert!(is_trusted(), "the watch has shown a change");
    delete(&cache, 409).await;
    assert!(!is_trusted(), "the child has changed");
    cache.on_applied(web.clone(), child(7, 0, 1));
    delete(&cache, 200).await;
    assert!(!is_trusted(), "the watch has not shown the deletion yet");
    let terminating = KnownChild {
        terminating: true,
        ..child(8, 0, 1)
    };
    cache.on_applied(web.clone(), terminating);
    assert!(is_trusted());
}

/// The watch may show the deletion before the response to the read arrives: recorded after that, the deleted child
/// would stay in the cache forever.
#[test]
fn child_is_unknown_when_it_is_deleted_during_the_read() {
    let cache = ChildCache::new(TRUST);
    let web = key("web");
    cache.record(&web, child(5, 0, 1), Some(matched("d")));
    {
        let _request = cache.begin_request(&web);
        let _another = cache.begin_request(&web);
        drop(cache.begin_request(&web));
        assert_eq!(cache.on_deleted(&web, "1"), Some(key("owner")));
        assert!(
            !cache.record(&web, child(6, 0, 1), Some(matched("d"))),
            "the owner must check again"
        );
        assert_eq!(lookup(&cache, &web, "d"), Lookup::Unknown);
        cache.record(
            &web,
            KnownChild {
                uid: "2".into(),
                ..child(7, 0, 1)
            },
            Some(matched("d")),
        );
        assert_eq!(
            (lookup(&cache, &web, "d"), summary(&cache, &web)),
            (Lookup::UpToDate, Some(1)),
            "another child of the name"
        );
    }
    assert!(cache.state().requests.is_empty());
}

#[test]
fn child_is_unconfirmed_when_a_list_during_the_read_lacks_it() {
    let cache = ChildCache::new(TRUST);
    let (web, other, far) = (key("web"), key("other"), ObjectKey::new("far", "web"));
    let requests = [&web, &other, &far].map(|key| cache.begin_request(key));
    cache.on_applied(other.clone(), child(4, 0, 1));
    end_list(&cache, Some("shop"), &["other"]);
    assert!(!cache.record(&web, child(6, 0, 1), Some(matched("d"))));
    assert!(
        cache.record(&other, child(6, 0, 1), Some(matched("d"))),
        "the list has the child"
    );
    assert!(
        cache.record(&far, child(6, 0, 1), Some(matched("d"))),
        "the list covers another namespace"
    );
    drop(requests);
    assert!(cache.record(&web, child(6, 0, 1), Some(matched("d"))));
}

/// State that the watch shows before the response needs no read if its relevant content is the same.
#[test]
fn child_is_confirmed_when_a_newer_state_was_shown_before_the_answer() {
    let cache = ChildCache::new(TRUST);
    let web = key("web");
    cache.on_applied(web.clone(), child(6, 3, 2));
    assert!(cache.record(&web, child(5, 3, 1), Some(matched("d"))));
    assert_eq!(
        (lookup(&cache, &web, "d"), summary(&cache, &web)),
        (Lookup::UpToDate, Some(2))
    );
    cache.on_applied(web.clone(), child(8, 4, 2));
    assert!(
        !cache.record(&web, child(7, 3, 1), Some(matched("d"))),
        "the owner must check again"
    );
    assert_eq!(
        lookup(&cache, &web, "d"),
        Lookup::Unconfirmed,
        "the child has changed since"
    );
}

/// The watch shows the child only once: recorded as absent after that, the child would count as absent forever.
#[test]
fn child_is_not_absent_when_the_watch_shows_it_during_the_read() {
    let cache = ChildCache::new(TRUST);
    let web = key("web");
    {
        let _request = cache.begin_request(&web);
        assert_eq!(
            cache.on_applied(web.clone(), child(5, 0, 1)),
            [key("owner")]
        );
        cache.record_absent(&web);
    }
    assert_eq!(
        (cache.is_absent(&web), lookup(&cache, &web, "d")),
        (false, Lookup::Unconfirmed)
    );
    let _request = cache.begin_request(&web);
    cache.record_absent(&web);
    assert_eq!(
        (cache.is_absent(&web), lookup(&cache, &web, "d")),
        (true, Lookup::Unknown),
        "the watch showed it before the read"
    );
}

/// A list shows the replacement alone, and never the deletion of the replaced child.
#[test]
fn response_about_a_replaced_child_keeps_its_replacement() {
    let cache = ChildCache::new(TRUST);
    let web = key("web");
    let _request = cache.begin_request(&web);
    assert_eq!(
        cache.on_applied(
            web.clone(),
            KnownChild {
                uid: "2".into(),
                ..child(9, 0, 2)
            }
        ),
        [key("owner")]
    );
    assert_eq!(end_list(&cache, None, &["web"]), []);
    assert!(
        cache.record(&web, child(5, 0, 1), Some(matched("d"))),
        "the list woke the owner"
    );
    assert_eq!(
        (lookup(&cache, &web, "d"), summary(&cache, &web)),
        (Lookup::Unconfirmed, Some(2))
    );
}

#[test]
fn late_event_of_a_replaced_child_wakes_no_owner() {
    let cache = ChildCache::new(TRUST);
    let web = key("web");
    cache.record(
        &web,
        KnownChild {
            uid: "2".into(),
            ..child(9, 0, 1)
        },
        Some(matched("d")),
    );
    assert_eq!(
        cache.on_applied(
            web.clone(),
            KnownChild {
                terminating: true,
                ..child(8, 0, 1)
            }
        ),
        []
    );
    assert_eq!(cache.on_deleted(&web, "1"), None);
    assert_eq!(
        (lookup(&cache, &web, "d"), summary(&cache, &web)),
        (Lookup::UpToDate, Some(1))
    );
}

#[test]
fn recreated_or_terminating_child_wakes_its_owner() {
    let cache = ChildCache::new(TRUST);
    let web = key("web");
    cache.record(&web, child(5, 0, 1), Some(matched("d")));
    assert_eq!(
        cache.on_applied(
            web.clone(),
            KnownChild {
                terminating: true,
                ..child(6, 0, 1)
            }
        ),
        [key("owner")]
    );
    assert_eq!(lookup(&cache, &web, "d"), Lookup::Terminating);
    assert_eq!(
        cache.on_applied(
            web.clone(),
            KnownChild {
                uid: "2".into(),
                ..child(7, 0, 1)
            }
        ),
        [key("owner")]
    );
    assert_eq!(lookup(&cache, &web, "d"), Lookup::Unconfirmed);
}

/// A standby sees an adoption only in the watch. Another client may also name a wrong owner, and the former one then
/// corrects the child.
#[test]
fn child_that_names_another_owner_wakes_both_and_then_the_new_one() {
    let cache = ChildCache::new(TRUST);
    let show = |version: u64, fingerprint: u64, owner: Option<&str>| {
        let known = KnownChild {
            owner: owner.map(key),
            ..child(version, fingerprint, 1)
        };
        cache.on_applied(key("web"), known)
    };
    assert_eq!(show(5, 0, Some("a")), [key("a")]);
    assert_eq!(show(6, 0, Some("b")), [key("a"), key("b")]);
    assert_eq!(show(7, 0, Some("b")), []);
    assert_eq!(show(8, 1, Some("b")), [key("b")]);
    assert_eq!(show(9, 2, None), [key("b")], "the last named owner");
    assert_eq!(show(10, 3, Some("b")), [key("b")]);
    assert_eq!(cache.on_deleted(&key("web"), "1"), Some(key("b")));
}

#[test]
fn absent_child_is_read_once() {
    let cache = ChildCache::<u8>::new(TRUST);
    let web = key("web");
    assert!(!cache.is_absent(&web));
    cache.record_absent(&web);
    assert!(cache.is_absent(&web));
    cache.on_applied(web.clone(), child(1, 0, 1));
    assert!(!cache.is_absent(&web));
    cache.on_deleted(&web, "1");
    assert!(
        !cache.is_absent(&web),
        "the child may exist without its label"
    );
}

#[test]
fn child_is_unknown_when_a_list_lacks_it() {
    let cache = ChildCache::new(TRUST);
    cache.on_applied(key("web"), child(5, 0, 1));
    cache.on_applied(key("db"), child(5, 0, 1));
    assert_eq!(
        end_list(&cache, Some("far"), &[]),
        [],
        "the list covers another namespace"
    );
    assert_eq!(end_list(&cache, Some("shop"), &["db"]), [key("owner")]);
    assert_eq!(lookup(&cache, &key("web"), "d"), Lookup::Unknown);
    assert_eq!(lookup(&cache, &key("db"), "d"), Lookup::Unconfirmed);
}

#[test]
fn external_deletion_is_known_until_it_is_created_again() {
    let cache = ChildCache::new(TRUST);
    let web = key("web");
    assert!(
        !cache.take_external_deletion(&web),
        "the child never existed"
    );
    cache.record_missing(&web);
    assert!(
        !cache.take_external_deletion(&web),
        "the child never existed"
    );
    cache.record(&web, child(5, 0, 1), Some(matched("d")));
    cache.on_deleted(&web, "2");
    assert!(
        !cache.take_external_deletion(&web),
        "another child of the name"
    );
    cache.on_deleted(&web, "1");
    assert!(
        cache.take_external_deletion(&web) && !cache.take_external_deletion(&web),
        "once"
    );

    // A list lacks the child, or a read does not find it before the watch shows its deletion.
    cache.record(&web, child(6, 0, 1), Some(matched("d")));
    end_list(&cache, None, &[]);
    assert!(cache.take_external_deletion(&web));
    cache.record(&web, child(7, 0, 1), Some(matched("d")));
    cache.record_missing(&web);
    assert!(cache.take_external_deletion(&web));
    cache.on_deleted(&web, "1");
    cache.record(&web, child(8, 0, 1), Some(matched("d")));
    assert!(
        !cache.take_external_deletion(&web),
        "the child exists again"
    );
}

#[test]
fn external_deletion_is_forgotten_when_another_replica_creates_the_child() {
    let cache = ChildCache::new(TRUST);
    let web = key("web");
    let recreated = || KnownChild {
        uid: "2".into(),
        ..child(7, 0, 1)
    };
    cache.on_applied(web.clone(), child(5, 0, 1));
    cache.on_deleted(&web, "1");
    cache.on_applied(web.clone(), recreated());
    assert!(!cache.take_external_deletion(&web));

    cache.on_deleted(&web, "2");
    let write = cache.begin_request(&web);
    cache.on_applied(web.clone(), recreated());
    assert!(
        cache.take_external_deletion(&web),
        "the watch shows the child before the response of this replica's write arrives"
    );
    drop(write);
}

/// Deletes the child `web` of UID 1; the apiserver answers with this code.
async fn delete(cache: &ChildCache<u8>, code: u16) {
    let (service, mut apiserver) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let api: Api<ConfigMap> = Api::namespaced(Client::new(service, "shop"), "shop");
    let status = if code == 200 { "Success" } else { "Failure" };
    let status_body = json!({ "kind": "Status", "apiVersion": "v1", "status": status, "reason": "", "code": code, "message": "" });
    let answers = async {
        let (request, answer) = apiserver.next_request().await.unwrap();
        assert_eq!(request.method(), Method::DELETE);
        let status_body = serde_json::to_vec(&status_body).unwrap();
        answer.send_response(
            Response::builder()
                .status(code)
                .body(status_body.into())
                .unwrap(),
        );
    };
    let (web, known) = (key("web"), child(5, 0, 1));
    let (deleted, ()) = tokio::join!(cache.delete(&api, &web, &known), answers);
    assert_eq!(deleted.is_ok(), code == 200, "{deleted:?}");
}

#[tokio::test]
async fn deletion_by_the_operator_is_not_external() {
    let cache = ChildCache::new(TRUST);
    let web = key("web");
    cache.record(&web, child(5, 0, 1), Some(matched("d")));
    delete(&cache, 200).await;
    assert_eq!(
        lookup(&cache, &web, "d"),
        Lookup::Unconfirmed,
        "the watch has not shown the deletion"
    );
    cache.on_deleted(&web, "1");
    assert!(!cache.take_external_deletion(&web));
    // The next child has another UID.
    cache.record(&web, child(6, 0, 1), Some(matched("d")));
    cache.on_deleted(&web, "1");
    assert!(cache.take_external_deletion(&web));
    delete(&cache, 200).await;
    cache.forget(&web);
    assert!(cache.state().deleting.is_empty() && cache.state().external_deletions.is_empty());
}

#[rstest]
#[case::missing_permission(403, true)]
#[case::changed_child(409, true)]
#[case::rate_limit(429, true)]
#[case::timeout_of_a_proxy(408, false)]
#[case::timeout(504, false)]
#[case::internal_error(500, false)]
#[tokio::test]
async fn deletion_without_effect_leaves_a_later_one_external(
    #[case] code: u16,
    #[case] is_external: bool,
) {
    let cache = ChildCache::new(TRUST);
    cache.record(&key("web"), child(5, 0, 1), Some(matched("d")));
    delete(&cache, code).await;
    cache.on_deleted(&key("web"), "1");
    assert_eq!(cache.take_external_deletion(&key("web")), is_external);
}

#[tokio::test]
async fn deletion_of_an_unknown_child_is_forgotten_with_the_child() {
    let cache = ChildCache::new(TRUST);
    delete(&cache, 200).await;
    cache.on_deleted(&key("web"), "2");
    assert_eq!(cache.state().deleting.len(), 1, "another child");
    cache.on_deleted(&key("web"), "1");
    assert!(cache.state().deleting.is_empty());
    assert!(!cache.take_external_deletion(&key("web")));
}

#[test]
fn external_deletions_are_bounded() {
    let cache = ChildCache::new(TRUST);
    for number in 0..=MAX_EXTERNAL_DELETIONS {
        let web = key(&number.to_string());
        cache.record(&web, child(5, 0, 1), Some(matched("d")));
        cache.on_deleted(&web, "1");
    }
    assert_eq!(cache.state().external_deletions.len(), 1);
}

#[test]
fn children_of_other_owners_are_not_visited() {
    let cache = ChildCache::new(TRUST);
    let show = |name: &str, version: u64, owner: Option<&str>, uid: &str| {
        let known = KnownChild {
            owner: owner.map(key),
            owner_uid: uid.into(),
            ..child(version, 0, 1)
        };
        cache.on_applied(key(name), known);
    };
    let visited = |owner: &str, uid: &str| {
        cache.state().visits.set(0);
        let mut names = Vec::new();
        cache.each_of(&key(owner), uid, |key, _| names.push(key.name.to_string()));
        names.sort();
        (names.join(" "), cache.state().visits.get())
    };
    for number in 0..100 {
        show(&format!("other-{number}"), 5, Some("other"), "o");
    }
    show("adopted", 5, Some("other"), "o");
    show("by-both", 5, Some("web"), "w");
    show("by-key", 5, Some("web"), "earlier");
    show("by-uid", 5, None, "w");
    assert_eq!(visited("web", "w"), ("by-both by-key by-uid".into(), 3));
    show("adopted", 6, Some("web"), "w");
    let names = "adopted by-both by-key by-uid";
    assert_eq!(visited("web", "w"), (names.into(), 4));
    assert!(!visited("other", "o").0.contains("adopted"));

    cache.on_deleted(&key("by-both"), "1");
    cache.on_missing(&key("by-key"));
    cache.record_missing(&key("by-uid"));
    cache.record_absent(&key("adopted"));
    assert_eq!(visited("web", "w"), (String::new(), 0));
    let state = cache.state();
    assert_eq!((state.by_owner_uid.len(), state.owner_uids.len()), (100, 1));
}
