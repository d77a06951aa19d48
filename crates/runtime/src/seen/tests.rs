#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use http::{Method, Request, Response};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use kube::client::Body;
use kube::core::ObjectMeta;
use rstest::rstest;
use serde_json::json;

use super::*;

const TRUST: Duration = Duration::from_mins(30);

fn key(name: &str) -> Key {
    Key::new("shop", name)
}

fn report(seen: &Seen<u8>, key: &Key) -> Option<u8> {
    seen.known(key).map(|known| known.report)
}

fn child(version: u64, print: u64, report: u8) -> Known<u8> {
    Known {
        uid: "1".into(),
        version,
        owner: Some(key("owner")),
        owner_uid: String::new(),
        print,
        going: false,
        report,
    }
}

fn matched(desired: &str) -> Match {
    Match {
        desired: desired.into(),
        values: 7,
        has_foreign_ports: false,
    }
}

#[test]
fn our_own_write_is_no_news_and_a_lost_field_is() {
    let seen = Seen::new([None].into(), TRUST);
    let web = key("web");
    seen.wrote(&web, child(5, 0, 1), matched("d"));
    for version in [4, 5, 6] {
        assert_eq!(seen.shown(web.clone(), child(version, 0, 1)), None);
    }
    assert_eq!(
        (seen.look(&web, "d"), report(&seen, &web)),
        (Look::Fine, Some(1))
    );
    assert_eq!(seen.look(&web, "other"), Look::Other);
    assert_eq!(
        seen.shown(web.clone(), child(7, 0, 2)),
        Some(key("owner")),
        "what is reported has changed"
    );
    assert_eq!(
        (seen.look(&web, "d"), report(&seen, &web)),
        (Look::Fine, Some(2))
    );
    assert_eq!(seen.shown(web.clone(), child(8, 1, 2)), Some(key("owner")));
    assert_eq!(seen.look(&web, "d"), Look::Other);
    assert_eq!(
        seen.matched(&web, "1"),
        Some(matched("d")),
        "it is compared with what was confirmed"
    );
    assert_eq!(seen.matched(&web, "2"), None);
    assert_eq!(seen.shown(web.clone(), child(9, 0, 2)), Some(key("owner")));
    assert_eq!(
        seen.look(&web, "d"),
        Look::Fine,
        "it is as it was confirmed again"
    );
    assert_eq!(seen.gone(&web, "2"), None, "another one of its name");
    assert_eq!(seen.gone(&web, "1"), Some(key("owner")));
    assert_eq!(seen.look(&web, "d"), Look::Unknown);
}

#[tokio::test(start_paused = true)]
async fn what_was_found_is_looked_at_again_after_a_while() {
    let seen = Seen::new([None].into(), TRUST);
    seen.wrote(&key("web"), child(5, 0, 1), matched("d"));
    tokio::time::advance(TRUST / 2).await;
    assert_eq!(
        (seen.look(&key("web"), "d"), report(&seen, &key("web"))),
        (Look::Fine, Some(1))
    );
    tokio::time::advance(TRUST).await;
    assert_eq!(seen.look(&key("web"), "d"), Look::Other);
}

/// The watch may be faster than the answer: such a child would be there for ever.
#[test]
fn one_that_goes_while_it_is_asked_for_is_gone() {
    let seen = Seen::new([None].into(), TRUST);
    let web = key("web");
    seen.wrote(&web, child(5, 0, 1), matched("d"));
    {
        let _asking = seen.asking(&web);
        let _another = seen.asking(&web);
        drop(seen.asking(&web));
        assert_eq!(seen.gone(&web, "1"), Some(key("owner")));
        assert!(
            !seen.wrote(&web, child(6, 0, 1), matched("d")),
            "somebody is to look again"
        );
        assert_eq!(seen.look(&web, "d"), Look::Unknown);
        seen.wrote(
            &web,
            Known {
                uid: "2".into(),
                ..child(7, 0, 1)
            },
            matched("d"),
        );
        assert_eq!(
            (seen.look(&web, "d"), report(&seen, &web)),
            (Look::Fine, Some(1)),
            "another one of its name"
        );
    }
    assert!(seen.state().asking.is_empty());
}

#[test]
fn one_that_a_list_does_not_show_while_it_is_asked_for_may_be_gone() {
    let seen = Seen::new([Some("shop".into())].into(), TRUST);
    let (web, other, far) = (key("web"), key("other"), Key::new("far", "web"));
    let asking = [&web, &other, &far].map(|key| seen.asking(key));
    seen.listing(Some("shop"));
    seen.shown(other.clone(), child(4, 0, 1));
    seen.listed(Some("shop"));
    assert!(!seen.wrote(&web, child(6, 0, 1), matched("d")));
    assert!(
        seen.wrote(&other, child(6, 0, 1), matched("d")),
        "it was shown"
    );
    assert!(
        seen.wrote(&far, child(6, 0, 1), matched("d")),
        "it was not to be shown"
    );
    drop(asking);
    assert!(seen.wrote(&web, child(6, 0, 1), matched("d")));
}

/// State that the watch shows before the answer needs no read if its relevant content is the same.
#[test]
fn child_is_confirmed_when_a_newer_state_was_shown_before_the_answer() {
    let seen = Seen::new([None].into(), TRUST);
    let web = key("web");
    seen.shown(web.clone(), child(6, 3, 2));
    assert!(seen.wrote(&web, child(5, 3, 1), matched("d")));
    assert_eq!(
        (seen.look(&web, "d"), report(&seen, &web)),
        (Look::Fine, Some(2))
    );
    seen.shown(web.clone(), child(8, 4, 2));
    assert!(
        !seen.wrote(&web, child(7, 3, 1), matched("d")),
        "its owner has to look at it again"
    );
    assert_eq!(seen.look(&web, "d"), Look::Other, "it has changed since");
}

/// It would be absent for ever, although it is there.
#[test]
fn one_that_is_shown_while_it_is_asked_for_is_not_absent() {
    let seen = Seen::new([None].into(), TRUST);
    let web = key("web");
    {
        let _asking = seen.asking(&web);
        assert_eq!(seen.shown(web.clone(), child(5, 0, 1)), Some(key("owner")));
        seen.absent(&web);
    }
    assert_eq!(
        (seen.is_absent(&web), seen.look(&web, "d")),
        (false, Look::Other)
    );
    let _asking = seen.asking(&web);
    seen.absent(&web);
    assert_eq!(
        (seen.is_absent(&web), seen.look(&web, "d")),
        (true, Look::Unknown),
        "it was shown before"
    );
}

/// A list speaks of the newer one alone, and never of the end of the one before.
#[test]
fn an_answer_about_the_one_before_takes_nothing_from_the_one_that_a_list_has_shown() {
    let seen = Seen::new([None].into(), TRUST);
    let web = key("web");
    let _asking = seen.asking(&web);
    seen.listing(None);
    assert_eq!(
        seen.shown(
            web.clone(),
            Known {
                uid: "2".into(),
                ..child(9, 0, 2)
            }
        ),
        Some(key("owner"))
    );
    assert_eq!(seen.listed(None), []);
    assert!(
        seen.wrote(&web, child(5, 0, 1), matched("d")),
        "its owner has been woken"
    );
    assert_eq!(
        (seen.look(&web, "d"), report(&seen, &web)),
        (Look::Other, Some(2))
    );
}

#[test]
fn what_is_said_late_of_the_one_before_is_no_news() {
    let seen = Seen::new([None].into(), TRUST);
    let web = key("web");
    seen.wrote(
        &web,
        Known {
            uid: "2".into(),
            ..child(9, 0, 1)
        },
        matched("d"),
    );
    assert_eq!(
        seen.shown(
            web.clone(),
            Known {
                going: true,
                ..child(8, 0, 1)
            }
        ),
        None
    );
    assert_eq!(seen.gone(&web, "1"), None);
    assert_eq!(
        (seen.look(&web, "d"), report(&seen, &web)),
        (Look::Fine, Some(1))
    );
}

#[test]
fn one_that_is_made_again_or_goes_is_news() {
    let seen = Seen::new([None].into(), TRUST);
    let web = key("web");
    seen.wrote(&web, child(5, 0, 1), matched("d"));
    assert_eq!(
        seen.shown(
            web.clone(),
            Known {
                going: true,
                ..child(6, 0, 1)
            }
        ),
        Some(key("owner"))
    );
    assert_eq!(seen.look(&web, "d"), Look::Going);
    assert_eq!(
        seen.shown(
            web.clone(),
            Known {
                uid: "2".into(),
                ..child(7, 0, 1)
            }
        ),
        Some(key("owner"))
    );
    assert_eq!(seen.look(&web, "d"), Look::Other);
}

#[test]
fn what_is_absent_is_asked_for_once() {
    let seen = Seen::<u8>::new([None].into(), TRUST);
    let web = key("web");
    assert!(!seen.is_absent(&web));
    seen.absent(&web);
    assert!(seen.is_absent(&web));
    seen.shown(web.clone(), child(1, 0, 1));
    assert!(!seen.is_absent(&web));
    seen.gone(&web, "1");
    assert!(!seen.is_absent(&web), "it may be there without its label");
}

#[tokio::test]
async fn what_a_list_does_not_show_is_gone() {
    let seen = Seen::new([Some("shop".into()), Some("far".into())].into(), TRUST);
    seen.listing(Some("shop"));
    seen.shown(key("web"), child(5, 0, 1));
    seen.shown(key("db"), child(5, 0, 1));
    assert_eq!(seen.listed(Some("shop")), []);
    assert!(
        !*seen.listed.borrow(),
        "another namespace is not listed yet"
    );
    seen.listing(Some("far"));
    seen.listed(Some("far"));
    seen.ready().await;
    seen.listing(Some("shop"));
    seen.shown(key("db"), child(5, 0, 1));
    assert_eq!(seen.listed(Some("shop")), [key("owner")]);
    assert_eq!(seen.look(&key("web"), "d"), Look::Unknown);
    assert_eq!(seen.look(&key("db"), "d"), Look::Other);
}

#[test]
fn child_that_another_client_deleted_is_lost_until_it_is_created_again() {
    let seen = Seen::new([None].into(), TRUST);
    let web = key("web");
    assert!(!seen.take_lost(&web), "it was never there");
    seen.missing(&web);
    assert!(!seen.take_lost(&web), "it was never there");
    seen.wrote(&web, child(5, 0, 1), matched("d"));
    seen.gone(&web, "2");
    assert!(!seen.take_lost(&web), "another one of its name");
    seen.gone(&web, "1");
    assert!(seen.take_lost(&web) && !seen.take_lost(&web), "once");

    // A list does not show it, or it is not found before the watch shows anything.
    seen.wrote(&web, child(6, 0, 1), matched("d"));
    seen.listing(None);
    seen.listed(None);
    assert!(seen.take_lost(&web));
    seen.wrote(&web, child(7, 0, 1), matched("d"));
    seen.missing(&web);
    assert!(seen.take_lost(&web));
    seen.gone(&web, "1");
    seen.wrote(&web, child(8, 0, 1), matched("d"));
    assert!(!seen.take_lost(&web), "it is there again");
}

/// Deletes the child `web` of UID 1; the apiserver answers with this code.
async fn delete(seen: &Seen<u8>, code: u16) {
    let (service, mut apiserver) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let api: Api<ConfigMap> = Api::namespaced(Client::new(service, "shop"), "shop");
    let metadata = ObjectMeta {
        name: Some("web".into()),
        uid: Some("1".into()),
        ..ObjectMeta::default()
    };
    let live = ConfigMap {
        metadata,
        ..ConfigMap::default()
    };
    let status = if code == 200 { "Success" } else { "Failure" };
    let said = json!({ "kind": "Status", "apiVersion": "v1", "status": status, "reason": "", "code": code, "message": "" });
    let answers = async {
        let (request, answer) = apiserver.next_request().await.unwrap();
        assert_eq!(request.method(), Method::DELETE);
        let said = serde_json::to_vec(&said).unwrap();
        answer.send_response(Response::builder().status(code).body(said.into()).unwrap());
    };
    let web = key("web");
    let (deleted, ()) = tokio::join!(seen.delete(&api, &web, &live), answers);
    assert_eq!(deleted.is_ok(), code == 200, "{deleted:?}");
}

#[tokio::test]
async fn child_that_the_operator_deletes_is_not_lost() {
    let seen = Seen::new([None].into(), TRUST);
    let web = key("web");
    seen.wrote(&web, child(5, 0, 1), matched("d"));
    delete(&seen, 200).await;
    seen.gone(&web, "1");
    assert!(!seen.take_lost(&web));
    // The next one is another one.
    seen.wrote(&web, child(6, 0, 1), matched("d"));
    seen.gone(&web, "1");
    assert!(seen.take_lost(&web));
    delete(&seen, 200).await;
    seen.forget(&web);
    assert!(seen.state().removing.is_empty() && seen.state().lost.is_empty());
}

#[rstest]
#[case::missing_permission(403, true)]
#[case::changed_child(409, true)]
#[case::rate_limit(429, true)]
#[case::timeout_of_a_proxy(408, false)]
#[case::timeout(504, false)]
#[case::internal_error(500, false)]
#[tokio::test]
async fn child_is_lost_after_a_deletion_that_had_no_effect(
    #[case] code: u16,
    #[case] is_lost: bool,
) {
    let seen = Seen::new([None].into(), TRUST);
    seen.wrote(&key("web"), child(5, 0, 1), matched("d"));
    delete(&seen, code).await;
    seen.gone(&key("web"), "1");
    assert_eq!(seen.take_lost(&key("web")), is_lost);
}

#[tokio::test]
async fn deletion_of_an_unknown_child_is_forgotten_with_the_child() {
    let seen = Seen::new([None].into(), TRUST);
    delete(&seen, 200).await;
    seen.gone(&key("web"), "2");
    assert_eq!(seen.state().removing.len(), 1, "another child");
    seen.gone(&key("web"), "1");
    assert!(seen.state().removing.is_empty());
    assert!(!seen.take_lost(&key("web")));
}

#[test]
fn lost_children_are_bounded() {
    let seen = Seen::new([None].into(), TRUST);
    for number in 0..=MAX_LOST {
        let web = key(&number.to_string());
        seen.wrote(&web, child(5, 0, 1), matched("d"));
        seen.gone(&web, "1");
    }
    assert_eq!(seen.state().lost.len(), 1);
}
