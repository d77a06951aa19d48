#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Request, Response};
use kube::client::Body;
use rstest::rstest;
use serde_json::json;
use tokio::time::advance;
use tower::{BoxError, service_fn};

use super::*;

#[test]
fn secrets_are_recognised_in_any_spelling() {
    assert!(
        is_secret("v1", "secrets")
            && is_secret("v1", "Secrets")
            && is_secret("v1", "secrets/status")
    );
    assert!(!is_secret("external-secrets.io/v1", "externalsecrets"));
}

/// An apiserver that serves one resource, whatever the group, and counts the requests.
#[derive(Clone, Default)]
struct Apiserver {
    served: Arc<Mutex<(&'static str, &'static str, bool)>>,
    requests: Arc<AtomicUsize>,
}

impl Apiserver {
    /// Serves `plural`, of this kind and scope, from now on.
    fn serve(&self, plural: &'static str, kind: &'static str, namespaced: bool) {
        *self.served.lock().unwrap() = (plural, kind, namespaced);
    }

    fn client(&self) -> Client {
        let this = self.clone();
        let service = service_fn(move |_: Request<Body>| {
            this.requests.fetch_add(1, Ordering::Relaxed);
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

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

fn target(api_version: &str, plural: &str, kind: &str) -> TargetReference {
    TargetReference {
        kind: kind.into(),
        namespace: "shop".into(),
        name: "one".into(),
        api_version: Some(api_version.into()),
        resource: Some(plural.into()),
    }
}

/// Only the resolver protects these resources from an object that is older than the rules of the CRD.
#[rstest]
#[case::secret("v1", "secrets", "Secret", SECRETS_ARE_NOT_TRACKED)]
#[case::secret_by_its_plural_alone("v1", "secrets", "Config", SECRETS_ARE_NOT_TRACKED)]
#[case::secret_by_its_kind_alone("example.com/v1", "things", "secret", SECRETS_ARE_NOT_TRACKED)]
#[case::owned_kind(
    "tg.azamaton.ru/v1",
    "contactpoints",
    "ContactPoint",
    OWN_KINDS_ARE_NOT_TRACKED
)]
#[tokio::test]
async fn untrackable_resource_is_rejected(
    #[case] api_version: &str,
    #[case] plural: &'static str,
    #[case] kind: &'static str,
    #[case] expected: &str,
) {
    let (apiserver, resolver) = (Apiserver::default(), Resolver::default());
    apiserver.serve(plural, kind, true);
    let target = target(api_version, plural, kind);
    let rejected = resolver.resolve(&apiserver.client(), &target, 0).await;
    assert!(
        matches!(rejected, Err(TargetError::Rejected(message)) if message == expected),
        "{rejected:?}"
    );
    assert_eq!(resolver.known(&target), None);
    assert_eq!(apiserver.requests(), 0);
}

#[tokio::test(start_paused = true)]
async fn resource_is_requested_once_while_the_answer_matches() {
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
    assert_eq!(apiserver.requests(), 1);
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
    assert_eq!(apiserver.requests(), 2, "the known answer does not match");
    resolver.resolve(&client, &widget, 1).await.unwrap();
    assert_eq!(
        apiserver.requests(),
        2,
        "a mismatch keeps the matching answer"
    );

    // The CRD was deleted and recreated.
    advance(MISMATCH_TTL).await;
    apiserver.serve("widgets", "Gadget", false);
    assert!(
        !resolver
            .resolve(&client, &gadget, 1)
            .await
            .unwrap()
            .namespaced
    );
    assert_eq!((resolver.known(&widget), apiserver.requests()), (None, 3));
    let mismatch = resolver.resolve(&client, &widget, 1).await.unwrap_err();
    assert!(
        mismatch.to_string().ends_with("write target.kind: Gadget"),
        "{mismatch}"
    );
}

#[rstest]
#[case::no_such_plural("gadgets", "Widget")]
#[case::other_kind("widgets", "Gadget")]
#[tokio::test(start_paused = true)]
async fn mismatch_counts_until_another_epoch_or_for_a_second(
    #[case] plural: &'static str,
    #[case] kind: &'static str,
) {
    let (apiserver, resolver) = (Apiserver::default(), Resolver::default());
    let client = apiserver.client();
    let target = target("example.com/v1", plural, kind);
    apiserver.serve("widgets", "Widget", true);
    for (epoch, requests) in [(1, 1), (1, 1), (2, 2), (2, 2)] {
        let mismatch = resolver.resolve(&client, &target, epoch).await;
        assert!(
            matches!(mismatch, Err(TargetError::ResourceMismatch(_))),
            "{mismatch:?}"
        );
        assert_eq!(apiserver.requests(), requests);
    }
    apiserver.serve(plural, kind, true);
    assert!(resolver.resolved(&target, 2).is_err());
    advance(MISMATCH_TTL).await;
    resolver.resolve(&client, &target, 2).await.unwrap();
    assert_eq!(apiserver.requests(), 3);
}

#[tokio::test(start_paused = true)]
async fn mismatches_that_no_longer_count_are_removed() {
    let (apiserver, resolver) = (Apiserver::default(), Resolver::default());
    let client = apiserver.client();
    apiserver.serve("widgets", "Widget", true);
    for number in 0..3 {
        let target = target("example.com/v1", &format!("gadgets{number}"), "Gadget");
        assert!(resolver.resolve(&client, &target, 0).await.is_err());
        advance(MISMATCH_TTL).await;
    }
    assert_eq!(resolver.mismatches().len(), 1);
}

#[tokio::test]
async fn resource_is_requested_again_in_another_epoch_and_after_forget() {
    let (apiserver, resolver) = (Apiserver::default(), Resolver::default());
    let (client, target) = (
        apiserver.client(),
        target("example.com/v1", "widgets", "Widget"),
    );
    let namespaced = async |epoch: u64| {
        resolver
            .resolve(&client, &target, epoch)
            .await
            .unwrap()
            .namespaced
    };
    apiserver.serve("widgets", "Widget", true);
    assert!(namespaced(1).await);
    apiserver.serve("widgets", "Widget", false);
    assert!(namespaced(1).await, "the watch continues: nothing happened");
    assert!(!namespaced(2).await);

    apiserver.serve("widgets", "Widget", true);
    assert!(!namespaced(2).await);
    resolver.forget(&target);
    assert_eq!(resolver.known(&target), None);
    assert!(namespaced(2).await);
    assert_eq!(apiserver.requests(), 3);
}
