#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::pin::pin;
use std::sync::Mutex;
use std::time::Duration;

use http::{Request, Response};
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::Body;
use kube::core::ObjectMeta;
use prometheus_client::metrics::counter::Counter;
use rstest::rstest;
use serde_json::{Map, Value, json};
use tokio::time::timeout;

use super::*;
use crate::child_cache::ConfirmedMatch;
use crate::error::Class;
use crate::events::Events;
use crate::settings::RuntimeTimings;
use crate::testing::{NAMES, Widget, context};

type Maps = Children<ConfigMap, ()>;

/// Timeout on a clock that advances only while every task waits.
const SOON: Duration = Duration::from_secs(1);

fn maps(client: Client, wake: impl Fn(&ObjectKey) + Send + Sync + 'static) -> Maps {
    children(client, |_| (), wake)
}

fn children<S: ChildSummary>(
    client: Client,
    summary: fn(&ConfigMap) -> S,
    wake: impl Fn(&ObjectKey) + Send + Sync + 'static,
) -> Children<ConfigMap, S> {
    let events = Events::new(client.clone(), "test", "qm-0").0;
    let maps = Children {
        client,
        names: &NAMES,
        field_manager: "example/test",
        summary,
        watches_metadata: false,
        large: Arc::new(Semaphore::new(1)),
        wake: Arc::new(wake),
        watch_needed: Arc::default(),
        sync: SyncState::default(),
        cache: Arc::new(ChildCache::new(Duration::from_mins(30))),
        drift: Drift::new(&RuntimeTimings::default(), events, Counter::default(), &[]),
        unconfirmed: WriteLimiter::new(Duration::from_millis(50)),
    };
    maps.sync.begin(0, []);
    maps
}

/// Returns exceptions for children whose `data` the apiserver loses now and then.
fn quirks() -> Quirks<'static, ConfigMap> {
    Quirks {
        ignored: |sent, applied| sent.data != applied.data,
        ..Quirks::default()
    }
}

fn owner() -> Owner {
    let owner =
        json!({ "spec": {}, "metadata": { "namespace": "shop", "name": "web", "uid": "u" } });
    Owner::of(&serde_json::from_value::<Widget>(owner).unwrap()).unwrap()
}

/// The watch may be faster than the response, and does not repeat the event: without another reconcile the child would
/// stay missing.
#[rstest]
#[case::deleted(|maps: &Maps, made| Index::delete(maps, &ObjectKey::of(&made), Some(BoundedObject::new(made))), true)]
#[case::missing_in_a_list(|maps: &Maps, made| Index::delete(maps, &ObjectKey::of(&made), None), true)]
#[case::applied(|maps: &Maps, made| assert!(Index::apply(maps, BoundedObject::new(made))), false)]
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
    let (applied, ()) = tokio::join!(maps.apply(&cx, desired, quirks()), answer);
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

/// The number of retries is limited; afterwards the reconcile fails, and its backoff limits the writes.
#[rstest]
#[case::once(1, 2)]
#[case::always(usize::MAX, MAX_ATTEMPTS)]
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
        "labels": { NAMES.owner_uid: "u" }, "ownerReferences": reference() }, "data": { "port": "1" } });
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
        let result = maps.apply(&cx, desired, quirks()).await;
        drop((maps, cx));
        result.map(drop).map_err(|error| error.classify().0)
    };
    let (result, ()) = tokio::join!(apply, answers);
    let keeps = loses < MAX_ATTEMPTS;
    assert_eq!(result, if keeps { Ok(()) } else { Err(Class::Transient) });
    assert_eq!(applied, expected);
}

/// The last attempt of a reconcile reports a rejection that an earlier attempt would resolve, so a conflict must not
/// use up an attempt.
#[tokio::test(start_paused = true)]
async fn conflict_with_an_apply_ends_the_reconcile() {
    let (service, mut apiserver) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let maps = maps(Client::new(service, "shop"), |_| ());
    let cx = context(&maps.client, owner());
    let (applied, methods) = apply_new(&maps, &cx, &mut apiserver, &[owned(), json!(409)]).await;
    assert!(applied.unwrap_err().is_stale());
    assert_eq!(methods, ["GET", "PATCH"]);
}

/// `managedFields` and data of the child are unknown, so a write could remove fields of other managers.
#[rstest]
#[case::read(&[undecodable()], &["GET"])]
#[case::written(&[owned(), owned(), undecodable()], &["GET", "PATCH", "PATCH"])]
#[tokio::test(start_paused = true)]
async fn child_that_cannot_be_decoded_is_an_error(
    #[case] answers: &[Value],
    #[case] expected: &[&str],
) {
    let (service, mut apiserver) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let maps = maps(Client::new(service, "shop"), |_| ());
    let cx = context(&maps.client, owner());
    let (applied, methods) = apply_new(&maps, &cx, &mut apiserver, answers).await;
    let error = applied.unwrap_err().to_string();
    let problem = "ConfigMap shop/child could not be read or written: Error deserializing response";
    assert!(error.starts_with(problem), "{error}");
    assert_eq!(methods, expected);
}

/// After a restart, the status of a ready owner stays true while its child waits for the rate limit. That of another
/// owner may have been denied, and must not count as applied.
#[rstest]
#[case::ready(true, &["GET"])]
#[case::not_ready(false, &["GET", "PATCH", "PATCH"])]
#[tokio::test(start_paused = true)]
async fn only_children_of_ready_owners_wait_for_the_rate_limit(
    #[case] is_ready: bool,
    #[case] expected: &[&str],
) {
    let (service, mut apiserver) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let maps = maps(Client::new(service, "shop"), |_| ());
    let metadata = json!({ "namespace": "shop", "name": "web", "uid": "u", "generation": 1 });
    let owner: Widget =
        serde_json::from_value(json!({ "spec": {}, "metadata": metadata })).unwrap();
    let owner = Owner::of(&owner).unwrap();
    let owner = owner.observed_generation(Some(1)).ready(is_ready);
    let others = (0..200).map(|number| ObjectKey::new("shop", &format!("other-{number}")));
    let waiting = others.filter(|other| {
        let basis = basis(&owner, 0);
        maps.unconfirmed.must_wait(other, basis, || ())
    });
    assert!(waiting.count() > 0, "the rate limit is reached");
    let cx = context(&maps.client, owner);
    let answers = vec![owned(); expected.len()];
    let (applied, methods) = apply_new(&maps, &cx, &mut apiserver, &answers).await;
    assert_eq!(matches!(applied, Ok(Ensured::Waits(_))), is_ready);
    assert_eq!(methods, expected);
}

/// An admission webhook undoes the change: the apiserver stores nothing and answers with the same version.
#[tokio::test(start_paused = true)]
async fn write_that_changes_nothing_is_no_update() {
    let (service, mut apiserver) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let maps = maps(Client::new(service, "shop"), |_| ());
    let cx = context(&maps.client, owner());
    let answers = [owned(), owned(), owned()];
    let (applied, methods) = apply_new(&maps, &cx, &mut apiserver, &answers).await;
    assert!(matches!(applied, Ok(Ensured::Kept(_))), "{applied:?}");
    assert_eq!(methods, ["GET", "PATCH", "PATCH"]);
}

/// The watch shows the child before the response to the read arrives. The response is then stale, and the watch does
/// not repeat its event.
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
            BoundedObject::new(serde_json::from_value(live.clone()).unwrap()),
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
        BoundedObject::new(serde_json::from_value(child.clone()).unwrap()),
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
    let apply = maps.apply(&cx, serde_json::from_value(desired).unwrap(), quirks());
    let (applied, ()) = timeout(SOON, async { tokio::join!(apply, answers) })
        .await
        .expect("the child was read");
    applied.unwrap();
}

/// The garbage collector has removed the owner reference, because the child is to outlive its owner.
#[rstest]
#[case::of_a_deleted_owner(json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }), &["GET", "GET"])]
#[case::of_an_existing_owner(json!({}), &["GET", "GET", "PATCH"])]
#[tokio::test(start_paused = true)]
async fn owner_reference_is_restored_only_if_the_owner_stays(
    #[case] change: Value,
    #[case] requests: &[&str],
) {
    let (service, mut apiserver) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let maps = maps(Client::new(service, "shop"), |_| ());
    let cx = context(&maps.client, owner());
    let desired =
        json!({ "metadata": { "namespace": "shop", "name": "child" }, "data": { "a": "new" } });
    let mut owner = json!({ "metadata": { "namespace": "shop", "name": "web", "uid": "u" } });
    let change = change.as_object().unwrap().clone();
    owner["metadata"].as_object_mut().unwrap().extend(change);
    // The conflict ends the reconcile.
    let answers = [live("old", &json!({})), owner, json!(409)];
    Index::apply(
        &maps,
        BoundedObject::new(serde_json::from_value(answers[0].clone()).unwrap()),
    );
    let both = async {
        let desired = serde_json::from_value(desired).unwrap();
        let answers = &answers[..requests.len()];
        tokio::join!(
            maps.apply(&cx, desired, Quirks::default()),
            answer(&mut apiserver, answers)
        )
    };
    let (applied, methods) = timeout(SOON, both).await.expect("no other request");
    assert!(applied.unwrap_err().is_stale());
    assert_eq!(methods, requests);
}

/// Returns the owner references of a child of the owner.
fn reference() -> Value {
    json!([{ "apiVersion": "example.com/v1", "kind": "Widget", "name": "web", "uid": "u", "controller": true }])
}

/// Returns a `ConfigMap` of the owner with this data, after this change of its metadata.
fn live(data: &str, metadata: &Value) -> Value {
    let mut live = json!({ "metadata": { "namespace": "shop", "name": "child", "uid": "1", "resourceVersion": "5",
        "labels": { NAMES.owner_uid: "u" } }, "data": { "a": data } });
    let change = metadata.as_object().unwrap().clone();
    live["metadata"].as_object_mut().unwrap().extend(change);
    live
}

/// Returns a child of the owner with old data.
fn owned() -> Value {
    live("old", &json!({ "ownerReferences": reference() }))
}

/// Returns an [owned] child that is no `ConfigMap`.
fn undecodable() -> Value {
    let mut child = owned();
    child["immutable"] = "no".into();
    child
}

/// Shows the watch an [owned] child, and applies new data, while the apiserver gives these answers. Returns the result,
/// and the methods of the requests.
async fn apply_new(
    maps: &Maps,
    cx: &Context<Widget>,
    apiserver: &mut tower_test::mock::Handle<Request<Body>, Response<Body>>,
    answers: &[Value],
) -> (Result<Ensured<()>>, Vec<String>) {
    Index::apply(
        maps,
        BoundedObject::new(serde_json::from_value(owned()).unwrap()),
    );
    let desired =
        json!({ "metadata": { "namespace": "shop", "name": "child" }, "data": { "a": "new" } });
    let desired = serde_json::from_value(desired).unwrap();
    let both = async {
        tokio::join!(
            maps.apply(cx, desired, Quirks::default()),
            answer(apiserver, answers)
        )
    };
    timeout(SOON, both).await.expect("no other request")
}

/// Answers the requests with these bodies; a missing one is a 404, a number a failure with that code, a text one with
/// 409 and that reason or with 403 and that message. Returns the methods of the requests.
async fn answer(
    apiserver: &mut tower_test::mock::Handle<Request<Body>, Response<Body>>,
    answers: &[Value],
) -> Vec<String> {
    let mut methods = Vec::new();
    for body in answers {
        let (request, answer) = apiserver.next_request().await.unwrap();
        methods.push(request.method().to_string());
        answer.send_response(match body {
            Value::Null => not_found(),
            Value::Number(code) => {
                failure(u16::try_from(code.as_u64().unwrap()).unwrap(), "", "none")
            }
            Value::String(reason) if reason == "AlreadyExists" => failure(409, reason, "none"),
            Value::String(message) => failure(403, "Forbidden", message),
            body => Response::new(serde_json::to_vec(body).unwrap().into()),
        });
    }
    methods
}

/// Child that is kept if its data is `new`, and deleted otherwise; the cache has its metadata and data.
struct Replaced;

impl DesiredChild<ConfigMap, (ObjectMeta, String)> for Replaced {
    fn key(&self) -> ObjectKey {
        ObjectKey::new("shop", "child")
    }

    fn digest(&self) -> &'static str {
        ""
    }

    fn build(&self) -> ConfigMap {
        serde_json::from_value(live("new", &json!({}))).unwrap()
    }

    fn plan(
        &self,
        live: &ConfigMap,
        _: &Ownership,
        _: Option<&ConfirmedMatch>,
    ) -> Option<ChildAction<'_, ConfigMap>> {
        self.plan_cached(&state(live))
    }

    fn cached_metadata<'s>(&self, state: &'s (ObjectMeta, String)) -> Option<&'s ObjectMeta> {
        Some(&state.0)
    }

    fn plan_cached(&self, (_, data): &(ObjectMeta, String)) -> Option<ChildAction<'_, ConfigMap>> {
        (data != "new").then(|| ChildAction::Delete(data.clone()))
    }

    fn matched(&self, _: &ConfigMap) -> Option<ConfirmedMatch> {
        None
    }
}

fn state(map: &ConfigMap) -> (ObjectMeta, String) {
    let metadata = ObjectMeta {
        resource_version: None,
        ..map.metadata.clone()
    };
    (metadata, map.data.clone().unwrap_or_default()["a"].clone())
}

#[rstest]
#[case::matching(live("new", &json!({})), &[], "kept", &[])]
#[case::different(live("old", &json!({})), &[json!({}), json!({})], "deleted: old", &["POST", "DELETE"])]
#[case::replacement_exists(live("old", &json!({})), &[json!("AlreadyExists"), json!({})], "deleted: old", &["POST", "DELETE"])]
#[case::replacement_exceeds_the_quota(live("old", &json!({})), &[json!("exceeded quota"), json!({})], "deleted: old", &["POST", "DELETE"])]
#[case::rejected_replacement(live("old", &json!({})), &[json!(422)], "rejected", &["POST"])]
#[case::terminating(live("old", &json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" })), &[], "terminating", &[])]
#[case::foreign(live("old", &json!({ "labels": { NAMES.owner_uid: "another" } })), &[], "not owned", &[])]
#[case::changed_since(live("old", &json!({})), &[json!({}), json!(409), live("new", &json!({ "resourceVersion": "6" }))], "kept", &["POST", "DELETE", "GET"])]
#[case::changed_again_and_again(live("old", &json!({})), &[json!({}), json!(409), live("old", &json!({})), json!({}), json!(409), live("old", &json!({})), json!({}), json!(409)], "stale", &["POST", "DELETE", "GET", "POST", "DELETE", "GET", "POST", "DELETE"])]
#[tokio::test(start_paused = true)]
async fn cached_child_is_decided_without_a_read(
    #[case] cached: Value,
    #[case] answers: &[Value],
    #[case] expected: &str,
    #[case] requests: &[&str],
) {
    let (service, mut apiserver) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let maps = children(Client::new(service, "shop"), state, |_| ());
    Index::apply(
        &maps,
        BoundedObject::new(serde_json::from_value(cached).unwrap()),
    );
    let cx = context(&maps.client, owner());
    let both = async { tokio::join!(maps.ensure(&cx, &Replaced), answer(&mut apiserver, answers)) };
    let (ensured, methods) = timeout(SOON, both).await.expect("no other request");
    let ensured = match ensured {
        Ok(Ensured::Kept(_)) => "kept".into(),
        Ok(Ensured::Deleted(_, why)) => format!("deleted: {why}"),
        Ok(Ensured::Terminating(_)) => "terminating".into(),
        Err(Error::NotOwned(_)) => "not owned".into(),
        Err(Error::Rejected { .. }) => "rejected".into(),
        Err(error) if error.is_stale() => "stale".into(),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (&*ensured, methods),
        (expected, requests.iter().map(ToString::to_string).collect())
    );
}

/// The child was listed as owned; then another owner adopted it.
#[rstest]
#[case::owned(live("a", &json!({})), false, true, &["GET", "DELETE"])]
#[case::undecodable(undecodable(), false, true, &["GET", "DELETE"])]
#[case::owned_and_stays(live("a", &json!({})), true, true, &["GET", "PUT"])]
#[case::adopted_meanwhile(live("a", &json!({ "labels": { NAMES.owner_uid: "another" } })), false, false, &["GET"])]
#[case::terminating(live("a", &json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" })), false, false, &["GET"])]
#[case::deleted_meanwhile(Value::Null, true, false, &["GET"])]
#[tokio::test(start_paused = true)]
async fn owned_child_alone_is_deleted_or_released(
    #[case] live: Value,
    #[case] stays: bool,
    #[case] expected: bool,
    #[case] requests: &[&str],
) {
    let (service, mut apiserver) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let maps = maps(Client::new(service, "shop"), |_| ());
    let (cx, key) = (
        context(&maps.client, owner()),
        ObjectKey::new("shop", "child"),
    );
    let answers = vec![live; requests.len()];
    let release = async {
        if stays {
            maps.disown(&cx, &key).await
        } else {
            maps.delete_owned(&cx, &key).await
        }
    };
    let both = async { tokio::join!(release, answer(&mut apiserver, &answers)) };
    let (released, methods) = timeout(SOON, both).await.expect("no other request");
    assert_eq!(
        (released.unwrap(), methods),
        (expected, requests.iter().map(ToString::to_string).collect())
    );
}

fn failure(code: u16, reason: &str, message: &str) -> Response<Body> {
    let status = json!({ "kind": "Status", "status": "Failure", "reason": reason, "code": code, "message": message });
    Response::builder()
        .status(code)
        .body(serde_json::to_vec(&status).unwrap().into())
        .unwrap()
}

fn not_found() -> Response<Body> {
    failure(404, "NotFound", "none")
}

#[tokio::test(start_paused = true)]
async fn large_child_waits_while_another_is_in_memory() {
    let (service, mut apiserver) = tower_test::mock::pair::<Request<Body>, Response<Body>>();
    let maps = maps(Client::new(service, "shop"), |_| ());
    let data: Map<_, _> = (0..40_000)
        .map(|key| (key.to_string(), json!("")))
        .collect();
    let metadata = json!({ "namespace": "shop", "name": "child", "uid": "1" });
    let large = json!({ "metadata": metadata, "data": data }).to_string();
    let mut answer = async || {
        let (request, answer) = apiserver.next_request().await.unwrap();
        assert_eq!(request.method(), http::Method::GET);
        answer.send_response(Response::new(large.clone().into_bytes().into()));
    };
    let other = maps.large.acquire().await.unwrap();
    let key = ObjectKey::new("shop", "child");
    let mut read = pin!(maps.live(&key));
    tokio::select! {
        _ = &mut read => panic!("read without an answer"),
        () = answer() => {}
    }
    tokio::select! {
        _ = &mut read => panic!("decoded beside another"),
        () = answer() => panic!("read beside another"),
        () = tokio::time::sleep(SOON) => {}
    }
    drop(other);
    let (child, ()) = tokio::join!(read, answer());
    assert_eq!(child.unwrap().unwrap().uid, "1");
}
