//! Lists of the resources that a running watch may have shown before sets selected them.

use kube::api::ListParams;
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::{Api, Client};
use qm_runtime::ObjectKey;
use qm_runtime::error::{Error, Result};
use qm_runtime::pages::all_pages;

use super::index::{ListStep, SetIndex};
use crate::controllers::tracked_field::resolver::Resolved;

/// Lists what the set and others need. Returns `false` if the watch, or another reconcile, lists: the index then
/// triggers another reconcile of the set.
pub(super) async fn list(
    index: &SetIndex,
    client: &Client,
    resolved: &Resolved,
    set: &ObjectKey,
) -> Result<bool> {
    loop {
        let list = match index.begin_list(set)? {
            ListStep::Done => return Ok(true),
            ListStep::Wait => return Ok(false),
            ListStep::List(list) => list,
        };
        let params = ListParams {
            label_selector: list.labels.clone(),
            ..ListParams::default()
        };
        let api: Api<DynamicObject> = resolved.api(client, list.namespace());
        let api = &api;
        let page = |page| async move { api.list_metadata(&page).await };
        // Most objects of a large cluster are not selected, and their metadata is large.
        let add = |object: PartialObjectMeta<DynamicObject>| list.add(&object.metadata);
        if let Err(error) = all_pages(params, page, add).await {
            let error = Error::api("the resources could not be listed")(error);
            list.failed(&error);
            return Err(error);
        }
        list.complete();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::convert::Infallible;
    use std::future::ready;
    use std::pin::pin;
    use std::sync::{Arc, Mutex};

    use http::{Request, Response};
    use k8s_openapi::api::apps::v1::Deployment;
    use kube::client::Body;
    use kube::discovery::ApiResource;
    use rstest::rstest;
    use serde_json::{Value, json};
    use tokio::time::advance;

    use super::super::index::tests::Fixture;
    use super::*;
    use crate::controllers::tracked_field::requests::FAILED_LIST_PERIOD;

    /// Requests for one list of [`Cluster`].
    const PAGES: usize = 2;

    /// A cluster with a Deployment on each of two pages, which the watch has shown before the sets select them.
    struct Cluster {
        fixture: Fixture,
        client: Client,
        requests: Arc<Mutex<Vec<String>>>,
        /// Namespace that cannot be listed.
        failing: Arc<Mutex<Option<&'static str>>>,
    }

    impl Cluster {
        fn new() -> Self {
            let requests = Arc::<Mutex<Vec<String>>>::default();
            let failing = Arc::<Mutex<Option<&'static str>>>::default();
            let (log, failure) = (Arc::clone(&requests), Arc::clone(&failing));
            let serve = move |request: Request<Body>| {
                let uri = request.uri().to_string();
                let is_first = !uri.contains("continue=");
                let (name, token) = if is_first { ("a", "next") } else { ("b", "") };
                let metadata = json!({
                    "namespace": "ops", "name": name, "labels": { "tier": "0" }, "resourceVersion": "1",
                });
                let failing = *failure.lock().unwrap();
                let is_failing =
                    failing.is_some_and(|it| uri.contains(&format!("/namespaces/{it}/")));
                let (code, answer) = if is_failing {
                    let (message, reason) = ("not permitted", "Forbidden");
                    let status = json!({ "kind": "Status", "status": "Failure", "message": message, "reason": reason, "code": 403 });
                    (403, status)
                } else {
                    let list = json!({ "metadata": { "continue": token }, "items": [{ "metadata": metadata }] });
                    (200, list)
                };
                log.lock().unwrap().push(uri);
                let answer = Body::from(serde_json::to_vec(&answer).unwrap());
                let answer = Response::builder().status(code).body(answer).unwrap();
                ready(Ok::<_, Infallible>(answer))
            };
            let fixture = Fixture::new(json!({ "kind": "Deployment" }));
            fixture.list();
            Self {
                fixture,
                client: Client::new(tower::service_fn(serve), "ops"),
                requests,
                failing,
            }
        }

        fn select(&self, set: &ObjectKey, target: Value) {
            self.fixture.select_for(set, target, "1");
        }

        async fn list(&self, set: &ObjectKey) -> Result<bool> {
            let resolved = Resolved {
                resource: ApiResource::erase::<Deployment>(&()),
                namespaced: true,
            };
            list(&self.fixture.sets, &self.client, &resolved, set).await
        }

        /// Returns the requests since the last call.
        fn requests(&self) -> Vec<String> {
            std::mem::take(&mut *self.requests.lock().unwrap())
        }

        /// Returns the number of selected resources.
        fn selected(&self, set: &ObjectKey) -> usize {
            self.fixture.sets.target_count(set)
        }
    }

    fn sets(number: usize) -> Vec<ObjectKey> {
        let name = |number: usize| ObjectKey::new("ops", &format!("set-{number:03}"));
        (0..number).map(name).collect()
    }

    fn of_all() -> Value {
        json!({ "kind": "Deployment", "namespaces": { "selector": {} } })
    }

    /// At a start or failover, most sets select their resources before the watch has listed.
    #[tokio::test]
    async fn one_list_serves_all_sets_that_select_before_it_begins() {
        let (cluster, sets) = (Cluster::new(), sets(200));
        for set in &sets {
            cluster.select(set, of_all());
        }
        for set in &sets {
            assert!(cluster.list(set).await.unwrap());
            assert_eq!(cluster.selected(set), 2);
        }
        assert_eq!(cluster.requests().len(), PAGES);
    }

    #[rstest]
    #[case::all_namespaces(of_all())]
    #[case::own_namespace(json!({ "kind": "Deployment" }))]
    #[tokio::test]
    async fn sets_that_are_created_during_a_list_share_the_next(#[case] target: Value) {
        let (cluster, sets) = (Cluster::new(), sets(200));
        let mut woken = cluster.fixture.woken();
        let mut waiting = sets.as_slice();
        while let Some((first, others)) = waiting.split_first() {
            cluster.select(first, target.clone());
            let mut listing = pin!(cluster.list(first));
            assert!(futures::poll!(listing.as_mut()).is_pending());
            for set in others {
                cluster.select(set, target.clone());
                assert!(!cluster.list(set).await.unwrap());
            }
            assert!(listing.await.unwrap());
            assert_eq!(woken(), others);
            // The first list served one set, and the second one all others.
            let unserved = others.iter().filter(|set| cluster.selected(set) == 0);
            let is_first = waiting.len() == sets.len();
            assert_eq!(unserved.count(), if is_first { others.len() } else { 0 });
            waiting = if is_first { others } else { &[] };
        }
        assert_eq!(cluster.requests().len(), 2 * PAGES);
        for set in &sets {
            assert!(cluster.list(set).await.unwrap());
            assert_eq!(cluster.selected(set), 2);
        }
        assert_eq!(cluster.requests().len(), 0);
    }

    #[rstest]
    #[case::few(8, 8 * PAGES, true)]
    #[case::many(9, PAGES, false)]
    #[tokio::test]
    async fn label_selectors_have_a_list_each_unless_they_are_many(
        #[case] selectors: usize,
        #[case] requests: usize,
        #[case] are_labelled: bool,
    ) {
        let (cluster, sets) = (Cluster::new(), sets(100));
        for (number, set) in sets.iter().enumerate() {
            let tier = (number % selectors).to_string();
            let mut target = of_all();
            target["selector"] = json!({ "matchLabels": { "tier": tier } });
            cluster.select(set, target);
        }
        for (number, set) in sets.iter().enumerate() {
            assert!(cluster.list(set).await.unwrap());
            let expected = if number % selectors == 0 { 2 } else { 0 };
            assert_eq!(cluster.selected(set), expected);
        }
        let uris = cluster.requests();
        assert_eq!(uris.len(), requests);
        let is_labelled = |uri: &String| uri.contains("labelSelector=");
        assert!(uris.iter().all(|uri| is_labelled(uri) == are_labelled));
    }

    #[tokio::test(start_paused = true)]
    async fn set_waits_for_the_list_of_each_of_its_namespaces() {
        let (cluster, sets) = (Cluster::new(), sets(3));
        let names =
            |names: Value| json!({ "kind": "Deployment", "namespaces": { "names": names } });
        for set in &sets[..2] {
            cluster.select(set, names(json!(["ops", "shop"])));
        }
        cluster.select(&sets[2], names(json!(["ops"])));
        *cluster.failing.lock().unwrap() = Some("shop");
        for set in &sets[..2] {
            let error = cluster.list(set).await.unwrap_err();
            let expected = "the resources could not be listed: not permitted";
            assert_eq!(error.to_string(), expected);
        }
        assert!(cluster.list(&sets[2]).await.unwrap());
        assert_eq!(cluster.requests().len(), PAGES + 1, "one failed request");
        advance(FAILED_LIST_PERIOD).await;
        assert!(cluster.list(&sets[0]).await.is_err());
        assert_eq!(cluster.requests().len(), 1, "the other namespace is listed");
        *cluster.failing.lock().unwrap() = None;
        advance(FAILED_LIST_PERIOD).await;
        for set in &sets {
            assert!(cluster.list(set).await.unwrap());
        }
        assert_eq!(cluster.requests().len(), PAGES);
    }

    /// The reconcile of the first set ends early, such as at its timeout.
    #[tokio::test]
    async fn dropped_list_is_repeated_for_the_sets_that_wait() {
        let (cluster, sets) = (Cluster::new(), sets(3));
        let mut woken = cluster.fixture.woken();
        for set in &sets {
            cluster.select(set, of_all());
        }
        {
            let mut listing = pin!(cluster.list(&sets[0]));
            assert!(futures::poll!(listing.as_mut()).is_pending());
            for set in &sets[1..] {
                assert!(!cluster.list(set).await.unwrap());
            }
        }
        assert_eq!(woken(), sets[1..]);
        assert!(cluster.list(&sets[1]).await.unwrap());
        assert_eq!(cluster.selected(&sets[2]), 2);
    }
}
