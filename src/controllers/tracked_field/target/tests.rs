#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response};
use kube::client::Body;
use rstest::rstest;
use serde_json::json;
use tower::{BoxError, service_fn};

use super::*;

#[test]
fn a_near_name_is_found_and_a_far_one_is_not() {
    let names = || ["telegram-cp", "pager", "mail"].into_iter();
    assert_eq!(nearest("telegram-chat", names()), Some("telegram-cp"));
    assert_eq!(nearest("zzz", names()), None);
}

#[test]
fn secrets_go_by_one_name() {
    assert!(
        is_secret("v1", "secrets")
            && is_secret("v1", "Secrets")
            && is_secret("v1", "secrets/status")
    );
    assert!(!is_secret("external-secrets.io/v1", "externalsecrets"));
}

/// An apiserver which says that it serves one resource, whatever the group, and counts how often it is asked.
#[derive(Clone, Default)]
struct Apiserver {
    served: Arc<Mutex<(&'static str, &'static str, bool)>>,
    asked: Arc<AtomicUsize>,
}

impl Apiserver {
    /// From now on it serves `plural`, of this kind and scope.
    fn serve(&self, plural: &'static str, kind: &'static str, namespaced: bool) {
        *self.served.lock().unwrap() = (plural, kind, namespaced);
    }

    fn client(&self) -> Client {
        let this = self.clone();
        let service = service_fn(move |_: Request<Body>| {
            this.asked.fetch_add(1, Ordering::Relaxed);
            let (plural, kind, namespaced) = *this.served.lock().unwrap();
            let resource = json!({ "name": plural, "singularName": "", "kind": kind, "namespaced": namespaced, "verbs": [] });
            let list =
                json!({ "kind": "APIResourceList", "groupVersion": "", "resources": [resource] });
            std::future::ready(Ok::<_, BoxError>(Response::new(Body::from(
                list.to_string().into_bytes(),
            ))))
        });
        Client::new(service, "default")
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

fn target(api_version: &str, plural: &str, kind: &str) -> Target {
    Target {
        kind: kind.into(),
        namespace: "shop".into(),
        name: "one".into(),
        api_version: Some(api_version.into()),
        resource: Some(plural.into()),
    }
}

/// Nothing else stands between an object that is older than the rules of the CRD and what it wants to be told of.
#[rstest]
#[case::secret("v1", "secrets", "Secret", SECRETS_ARE_NOT_TRACKED)]
#[case::secret_by_its_plural_alone("v1", "secrets", "Config", SECRETS_ARE_NOT_TRACKED)]
#[case::secret_by_its_kind_alone("example.com/v1", "things", "secret", SECRETS_ARE_NOT_TRACKED)]
#[case::ours(
    "tg.azamaton.ru/v1",
    "contactpoints",
    "ContactPoint",
    OURS_ARE_NOT_TRACKED
)]
#[tokio::test]
async fn what_must_not_be_told_is_no_resource(
    #[case] api_version: &str,
    #[case] plural: &'static str,
    #[case] kind: &'static str,
    #[case] words: &str,
) {
    let (apiserver, resolver) = (Apiserver::default(), Resolver::default());
    apiserver.serve(plural, kind, true);
    let target = target(api_version, plural, kind);
    let refused = resolver.resolve(&apiserver.client(), &target, 0).await;
    assert!(
        matches!(refused, Err(TargetError::Refused(said)) if said == words),
        "{refused:?}"
    );
    assert_eq!(resolver.known(&target), None);
    assert_eq!(apiserver.asked(), 0);
}

#[tokio::test]
async fn a_resource_is_asked_for_once_while_what_is_known_fits() {
    let (apiserver, resolver) = (Apiserver::default(), Resolver::default());
    let client = apiserver.client();
    let widget = target("example.com/v1", "widgets", "Widget");
    let gadget = target("example.com/v1", "widgets", "Gadget");
    apiserver.serve("widgets", "Widget", true);
    for _ in 0..2 {
        assert!(
            resolver
                .resolve(&client, &widget, 1)
                .await
                .unwrap()
                .namespaced
        );
    }
    assert_eq!(apiserver.asked(), 1);
    assert!(
        resolver
            .known(&widget)
            .is_some_and(|known| known.namespaced)
    );

    let mismatch = resolver.resolve(&client, &gadget, 1).await.unwrap_err();
    assert!(
        mismatch.to_string().ends_with("write target.kind: Widget"),
        "{mismatch}"
    );
    assert_eq!(apiserver.asked(), 2, "what is known does not fit");
    resolver.resolve(&client, &widget, 1).await.unwrap();
    assert_eq!(apiserver.asked(), 2, "nor does that take away what does");

    // Its CRD was deleted and made again.
    apiserver.serve("widgets", "Gadget", false);
    assert!(
        !resolver
            .resolve(&client, &gadget, 1)
            .await
            .unwrap()
            .namespaced
    );
    assert_eq!((resolver.known(&widget), apiserver.asked()), (None, 3));
    let mismatch = resolver.resolve(&client, &widget, 1).await.unwrap_err();
    assert!(
        mismatch.to_string().ends_with("write target.kind: Gadget"),
        "{mismatch}"
    );
}

#[tokio::test]
async fn a_resource_is_asked_for_again_in_another_turn_of_its_watch_and_when_it_was_forgotten() {
    let (apiserver, resolver) = (Apiserver::default(), Resolver::default());
    let (client, target) = (
        apiserver.client(),
        target("example.com/v1", "widgets", "Widget"),
    );
    let namespaced = async |turn: u64| {
        resolver
            .resolve(&client, &target, turn)
            .await
            .unwrap()
            .namespaced
    };
    apiserver.serve("widgets", "Widget", true);
    assert!(namespaced(1).await);
    apiserver.serve("widgets", "Widget", false);
    assert!(namespaced(1).await, "its watch goes on: nothing happened");
    assert!(!namespaced(2).await);

    apiserver.serve("widgets", "Widget", true);
    assert!(!namespaced(2).await);
    resolver.forget(&target);
    assert_eq!(resolver.known(&target), None);
    assert!(namespaced(2).await);
    assert_eq!(apiserver.asked(), 3);
}
