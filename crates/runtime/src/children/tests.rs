#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Mutex;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use rstest::rstest;
use tokio::time::timeout;

use super::*;
use crate::settings::Timings;
use crate::testing::{NAMES, Widget, context};

type Maps = Children<ConfigMap, ()>;

/// Timeout on a clock that advances only while every task waits.
const SOON: Duration = Duration::from_secs(1);

/// Returns children whose `data` the apiserver loses now and then.
fn maps(client: Client, wake: impl Fn(&ObjectKey) + Send + Sync + 'static) -> Maps {
    let events = Events::new(client.clone(), "test", "qm-0").0;
    let maps = Maps {
        client,
        names: &NAMES,
        manager: "example/test",
        summary: |_| (),
        quirks: Quirks {
            lost: |sent, applied| sent.data != applied.data,
            ..Quirks::default()
        },
        wake: Arc::new(wake),
        needs_watch: Arc::default(),
        sync: SyncState::default(),
        cache: ChildCache::new(Duration::from_mins(30)),
        drift: Drift::new(&Timings::default(), events, Counter::default(), &[]),
        unconfirmed: Pacer::new(Duration::from_millis(50)),
    };
    maps.sync.begin(0, []);
    maps
}

fn owner() -> Owner {
    let owner =
        json!({ "spec": {}, "metadata": { "namespace": "shop", "name": "web", "uid": "u" } });
    Owner::of(&serde_json::from_value::<Widget>(owner).unwrap()).unwrap()
}

/// The watch may be faster than the response, and does not repeat the event: without another reconcile the child would
/// stay missing.
#[rstest]
#[case::deleted(|maps: &Maps, made| Index::delete(maps, &ObjectKey::of(&made), Some(BoundedObject(made))), true)]
#[case::missing_in_a_list(|maps: &Maps, made| Index::delete(maps, &ObjectKey::of(&made), None), true)]
#[case::applied(|maps: &Maps, made| assert!(Index::apply(maps, BoundedObject(made))), false)]
#[tokio::test]
async fn owner_is_woken_when_the_created_child_may_be_deleted_already(
    #[case] meanwhile: fn(&Maps, ConfigMap),
    #[case] may_be_gone: bool,
) {
    let (service, mut apiserver) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let woken = Arc::new(Mutex::new(Vec::new()));
    let maps = maps(Client::new(service, "shop"), {
        let woken = Arc::clone(&woken);
        move |owner| woken.lock().unwrap().push(owner.clone())
    });
    let cx = context(&maps.client, owner().fresh(true));
    let desired = json!({ "metadata": { "namespace": "shop", "name": "child" } });
    let answer = async {
        let (request, answer) = apiserver.next_request().await.unwrap();
        assert_eq!(request.method(), http::Method::POST);
        let mut made: Value =
            serde_json::from_slice(&request.into_body().collect().await.unwrap().to_bytes())
                .unwrap();
        made["metadata"]["uid"] = "1".into();
        made["metadata"]["resourceVersion"] = "5".into();
        meanwhile(&maps, serde_json::from_value(made.clone()).unwrap());
        woken.lock().unwrap().clear();
        answer.send_response(Response::new(serde_json::to_vec(&made).unwrap().into()));
    };
    let desired = serde_json::from_value(desired).unwrap();
    let (applied, ()) = tokio::join!(maps.apply(&cx, desired, &[]), answer);
    applied.unwrap();
    let expected = if may_be_gone {
        vec![ObjectKey::new("shop", "web")]
    } else {
        Vec::new()
    };
    assert_eq!(*woken.lock().unwrap(), expected);
    assert_eq!(
        maps.cache.known(&ObjectKey::new("shop", "child")).is_none(),
        may_be_gone
    );
}

/// The operator tries again a bounded number of times; later only a change of the child or of the desired state makes
/// it apply.
#[rstest]
#[case::once(1, 2)]
#[case::always(usize::MAX, TRIES)]
#[tokio::test]
async fn child_is_applied_again_when_the_apiserver_loses_a_value(
    #[case] loses: usize,
    #[case] expected: usize,
) {
    let (service, mut apiserver) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let maps = maps(Client::new(service, "shop"), |_| ());
    let desired =
        json!({ "metadata": { "namespace": "shop", "name": "child" }, "data": { "port": "2" } });
    let mut live = json!({ "metadata": { "namespace": "shop", "name": "child", "uid": "1", "resourceVersion": "5",
        "labels": { NAMES.owner_uid: "u" } }, "data": { "port": "1" } });
    let mut applied = 0;
    let answers = async {
        while let Some((request, answer)) = apiserver.next_request().await {
            if request
                .headers()
                .get(http::header::CONTENT_TYPE)
                .is_some_and(|it| it == "application/apply-patch+yaml")
            {
                applied += 1;
                if applied > loses {
                    live["data"]["port"] = "2".into();
                }
            }
            answer.send_response(Response::new(serde_json::to_vec(&live).unwrap().into()));
        }
    };
    let cx = context(&maps.client, owner());
    let apply = async {
        let desired = serde_json::from_value(desired).unwrap();
        maps.apply(&cx, desired, &[]).await.unwrap();
        drop((maps, cx));
    };
    tokio::join!(apply, answers);
    assert_eq!(applied, expected);
}

/// The response is stale by then, and the watch does not repeat its event.
#[tokio::test(start_paused = true)]
async fn child_is_deleted_next_time_when_the_watch_shows_it_during_the_read() {
    let (service, mut apiserver) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let maps = maps(Client::new(service, "shop"), |_| ());
    let live = json!({ "metadata": { "namespace": "shop", "name": "child", "uid": "1", "resourceVersion": "5",
        "labels": { NAMES.owner_uid: "u" } } });
    let (cx, child) = (
        context(&maps.client, owner()),
        ObjectKey::new("shop", "child"),
    );
    let answers = async {
        let (_, answer) = apiserver.next_request().await.unwrap();
        Index::apply(
            &maps,
            BoundedObject(serde_json::from_value(live.clone()).unwrap()),
        );
        answer.send_response(not_found());
        let mut methods = Vec::new();
        for _ in 0..2 {
            let (request, answer) = apiserver.next_request().await.unwrap();
            methods.push(request.method().clone());
            answer.send_response(Response::new(serde_json::to_vec(&live).unwrap().into()));
        }
        methods
    };
    let removed = async {
        [
            maps.ensure_absent(&cx, &child).await.unwrap(),
            maps.ensure_absent(&cx, &child).await.unwrap(),
        ]
    };
    let (removed, methods) = timeout(SOON, async { tokio::join!(removed, answers) })
        .await
        .expect("both read");
    assert_eq!(
        (removed, methods),
        ([false, true], vec![http::Method::GET, http::Method::DELETE])
    );
}

/// A stalled watch does not show the deletion.
#[tokio::test(start_paused = true)]
async fn terminating_child_is_read() {
    let (service, mut apiserver) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let maps = maps(Client::new(service, "shop"), |_| ());
    let mut child = json!({ "metadata": { "namespace": "shop", "name": "child", "uid": "1", "resourceVersion": "5",
        "labels": { NAMES.owner_uid: "u" }, "deletionTimestamp": "2026-01-01T00:00:00Z" } });
    Index::apply(
        &maps,
        BoundedObject(serde_json::from_value(child.clone()).unwrap()),
    );
    let answers = async {
        let (request, answer) = apiserver.next_request().await.unwrap();
        assert_eq!(request.method(), http::Method::GET);
        answer.send_response(not_found());
        // The owner may have been deleted with its child.
        let (request, answer) = apiserver.next_request().await.unwrap();
        assert!(
            request.uri().path().ends_with("/widgets/web"),
            "{}",
            request.uri()
        );
        let owner = json!({ "metadata": { "namespace": "shop", "name": "web", "uid": "u" } });
        answer.send_response(Response::new(serde_json::to_vec(&owner).unwrap().into()));
        let (request, answer) = apiserver.next_request().await.unwrap();
        assert_eq!(request.method(), http::Method::POST);
        child["metadata"] =
            json!({ "namespace": "shop", "name": "child", "uid": "2", "resourceVersion": "7" });
        answer.send_response(Response::new(serde_json::to_vec(&child).unwrap().into()));
    };
    let desired = json!({ "metadata": { "namespace": "shop", "name": "child" } });
    let cx = context(&maps.client, owner());
    let apply = maps.apply(&cx, serde_json::from_value(desired).unwrap(), &[]);
    let (applied, ()) = timeout(SOON, async { tokio::join!(apply, answers) })
        .await
        .expect("the child was read");
    applied.unwrap();
}

fn not_found() -> Response<Body> {
    let status = json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404, "message": "none" });
    Response::builder()
        .status(404)
        .body(serde_json::to_vec(&status).unwrap().into())
        .unwrap()
}
