#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::convert::Infallible;
use std::future::ready;
use std::pin::pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::poll;
use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use kube::runtime::watcher;
use qm_runtime::WatchScope;
use qm_runtime::availability::Availability;
use qm_runtime::health::Probes;
use qm_runtime::metrics::Metrics;
use qm_runtime::tasks::Tasks;
use qm_runtime::trigger::Trigger;
use qm_runtime::watch::{WatchHub, WatchPhase};
use rstest::rstest;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::controllers::tracked_field::grants;
use crate::controllers::tracked_field::requests::{Answered, GATHER_MAX, PER_GROUP};
use crate::controllers::tracked_field::resolver::Resolver;
use crate::controllers::tracked_field::tracker::Tracker;

struct NoSets;

impl Sets for NoSets {
    fn selects(&self, _: &ResourceName) -> bool {
        false
    }

    fn forget_watch(&self, _: &ResourceName) {}

    fn owner(&self, _: &ObjectKey) -> Option<ObjectKey> {
        None
    }
}

fn targets(client: Client) -> Arc<Targets> {
    targets_with(client, Duration::from_mins(1))
}

fn targets_with(client: Client, sync_period: Duration) -> Arc<Targets> {
    targets_in(client, sync_period, WatchScope::Cluster)
}

fn targets_in(client: Client, sync_period: Duration, scope: WatchScope) -> Arc<Targets> {
    let tracker = Arc::new(Tracker::new(Trigger::default(), true));
    let config = watcher::Config::default();
    let watchdog = Probes::new().watchdog("targets", Duration::from_mins(1));
    let metrics = Metrics::new(&crate::PROGRAM);
    let new_index = Tracker::new_index(&tracker);
    let hub = WatchHub::new(
        client.clone(),
        scope.clone(),
        config,
        new_index,
        metrics,
        Availability::default(),
        Tasks::new(),
        watchdog,
    );
    Arc::new(Targets {
        controller: "trackedfield",
        client,
        scope,
        no_cross_namespace_refs: false,
        tracker,
        sets: Arc::new(NoSets),
        hub,
        grants: Arc::new(grants::tests::everything()),
        resolver: Resolver::default(),
        requests: TargetRequests::default(),
        trigger: Trigger::default(),
        sync_period,
        timeout: Duration::from_mins(1),
        draining: CancellationToken::new(),
    })
}

fn field(name: &str, target: &str) -> Arc<TrackedField> {
    let target = json!({
        "apiVersion": "batch/v1", "kind": "CronJob", "resource": "cronjobs", "namespace": "a", "name": target,
    });
    let field = json!({
        "apiVersion": "tg.azamaton.ru/v1", "kind": "TrackedField",
        "metadata": { "name": name, "namespace": "a", "uid": name },
        "spec": { "target": target, "contactPoint": "hook", "field": "{.spec.schedule}" },
    });
    Arc::new(serde_json::from_value(field).unwrap())
}

fn field_of_deployment(name: &str, namespace: &str, target: &str) -> Arc<TrackedField> {
    let mut field = field(name, target).as_ref().clone();
    let target = json!({ "kind": "Deployment", "namespace": namespace, "name": target });
    field.spec.target = serde_json::from_value(target).unwrap();
    field.spec.field = "replicas".into();
    Arc::new(field)
}

fn field_of_config_map(name: &str, target: &str) -> Arc<TrackedField> {
    let mut field = field(name, target).as_ref().clone();
    let target = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "resource": "configmaps", "namespace": "a", "name": target,
    });
    field.spec.target = serde_json::from_value(target).unwrap();
    field.spec.field = "{.data.x}".into();
    Arc::new(field)
}

/// Returns fields of more targets in `namespace` than are read one by one.
fn many_fields(namespace: &str) -> Vec<Arc<TrackedField>> {
    let field = |at: usize| {
        field_of_deployment(&format!("{namespace}-{at}"), namespace, &format!("d-{at}"))
    };
    (0..=MAX_SINGLE_READS).map(field).collect()
}

fn request_reads(targets: &Arc<Targets>, fields: &[Arc<TrackedField>]) {
    for field in fields {
        targets.follow(field);
    }
    for field in fields {
        let (tracked, _) = targets.target(field).unwrap().unwrap();
        assert!(targets.request(field, Some(&tracked)));
    }
}

async fn answer(targets: &Targets, field: &TrackedField) -> Answered {
    loop {
        if let Some(answer) = targets
            .requests
            .take(&ObjectKey::of(field), &FollowIdentity::of(field))
        {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn panic_and_timeout_are_answers_and_the_group_continues() {
    let requests = Arc::new(AtomicUsize::new(0));
    let service = tower::service_fn({
        let requests = Arc::clone(&requests);
        move |_: Request<Body>| {
            let number = requests.fetch_add(1, Ordering::SeqCst);
            async move {
                assert!(number > 0, "boom");
                std::future::pending::<Result<Response<Body>, Infallible>>().await
            }
        }
    });
    let targets = targets(Client::new(service, "a"));
    let fields: Vec<_> = (0..12)
        .map(|number| field(&format!("field-{number}"), "job"))
        .collect();
    for field in fields.iter().chain(&fields) {
        assert!(targets.request(field, None));
    }
    assert_eq!(
        tasks::panic_message(&*answer(&targets, &fields[0]).await.unwrap_err()),
        "boom"
    );
    assert_eq!(
        requests.load(Ordering::SeqCst),
        1 + PER_GROUP,
        "the other requests wait"
    );
    for field in &fields[1..] {
        let untracked = answer(&targets, field).await.unwrap().unwrap_err();
        assert_eq!(untracked.waiting.reason(), "TargetUnreadable");
        let failure = targets
            .requests
            .failure(&ObjectKey::of(field.as_ref()), &FollowIdentity::of(field));
        assert_eq!(failure, Some(untracked.waiting));
    }
    assert!(targets.requests.is_idle());
}

#[rstest]
#[case::few(MAX_SINGLE_READS)]
#[case::many(MAX_SINGLE_READS + 1)]
#[tokio::test]
async fn many_reads_of_a_resource_are_one_list(#[case] number: usize) {
    let paths = Arc::new(Mutex::new(Vec::new()));
    let service = tower::service_fn({
        let paths = Arc::clone(&paths);
        move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let object = |name: &str| {
                let metadata =
                    json!({ "namespace": "a", "name": name, "uid": name, "resourceVersion": "5" });
                json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": { "replicas": 1 } })
            };
            // The last target does not exist.
            let (code, answer) = match path.strip_prefix("/apis/apps/v1/namespaces/a/deployments/")
            {
                Some(name) if name == format!("d-{}", number - 1) => (
                    404,
                    json!({ "kind": "Status", "status": "Failure", "message": "", "reason": "NotFound", "code": 404 }),
                ),
                Some(name) => (200, object(name)),
                None => {
                    let items: Vec<_> = (0..number - 1)
                        .map(|at| object(&format!("d-{at}")))
                        .collect();
                    (
                        200,
                        json!({ "metadata": { "resourceVersion": "9" }, "items": items }),
                    )
                }
            };
            paths.lock().unwrap().push(path);
            let answer = Body::from(serde_json::to_vec(&answer).unwrap());
            ready(Ok::<_, Infallible>(
                Response::builder().status(code).body(answer).unwrap(),
            ))
        }
    });
    let targets = targets_with(Client::new(service, "a"), Duration::ZERO);
    let fields: Vec<_> = (0..number)
        .map(|at| field_of_deployment(&format!("f-{at}"), "a", &format!("d-{at}")))
        .collect();
    request_reads(&targets, &fields);
    for (at, field) in fields.iter().enumerate() {
        assert_eq!(
            answer(&targets, field).await.unwrap().unwrap(),
            Answer::Read
        );
        let exists = targets.tracker.exists(&ObjectKey::of(field.as_ref()));
        assert_eq!(exists, Some(at + 1 < number));
    }
    let paths = paths.lock().unwrap();
    if number > MAX_SINGLE_READS {
        assert_eq!(*paths, ["/apis/apps/v1/deployments"]);
    } else {
        assert_eq!(paths.len(), number);
    }
}

#[tokio::test(start_paused = true)]
async fn new_fields_of_one_config_map_share_a_read() {
    let reads = Arc::new(AtomicUsize::new(0));
    let service = tower::service_fn({
        let reads = Arc::clone(&reads);
        move |request: Request<Body>| {
            let answer = if request.uri().path() == "/api/v1" {
                let maps = json!({ "name": "configmaps", "singularName": "", "kind": "ConfigMap", "namespaced": true, "verbs": [] });
                json!({ "kind": "APIResourceList", "groupVersion": "v1", "resources": [maps] })
            } else {
                reads.fetch_add(1, Ordering::SeqCst);
                let metadata =
                    json!({ "namespace": "a", "name": "map", "uid": "1", "resourceVersion": "5" });
                json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": { "x": "1" } })
            };
            let answer = Body::from(serde_json::to_vec(&answer).unwrap());
            ready(Ok::<_, Infallible>(Response::new(answer)))
        }
    });
    let targets = targets(Client::new(service, "a"));
    // The watch has shown the map before any field is created.
    let index = Tracker::new_index(&targets.tracker)(ResourceName {
        api_version: "v1".into(),
        plural: "configmaps".into(),
    });
    index.phase(None, &WatchPhase::Listing { relist: 0 });
    index.phase(None, &WatchPhase::Listed);
    let fields: Vec<_> = (0..20)
        .map(|at| field_of_config_map(&format!("f-{at}"), "map"))
        .collect();
    let target = &fields[0].spec.target;
    let resolved = targets
        .resolver
        .resolve(&targets.client, target, targets.epoch(target));
    resolved.await.unwrap();
    request_reads(&targets, &fields);
    for field in &fields {
        let answer = answer(&targets, field).await.unwrap().unwrap();
        assert_eq!(answer, Answer::Read);
        let exists = targets.tracker.exists(&ObjectKey::of(field.as_ref()));
        assert_eq!(exists, Some(true));
    }
    assert_eq!(reads.load(Ordering::SeqCst), 1);
}

/// The CRD of many `TrackedField`s is deleted, and each of them polls.
#[tokio::test(start_paused = true)]
async fn many_fields_of_a_missing_resource_share_discovery() {
    const POLLS: usize = 10;
    let requests = Arc::new(AtomicUsize::new(0));
    let service = tower::service_fn({
        let requests = Arc::clone(&requests);
        move |request: Request<Body>| {
            requests.fetch_add(1, Ordering::SeqCst);
            let (code, answer) = if request.uri().path() == "/apis" {
                (200, json!({ "kind": "APIGroupList", "groups": [] }))
            } else {
                (
                    404,
                    json!({ "kind": "Status", "status": "Failure", "message": "", "reason": "NotFound", "code": 404 }),
                )
            };
            let answer = Body::from(serde_json::to_vec(&answer).unwrap());
            ready(Ok::<_, Infallible>(
                Response::builder().status(code).body(answer).unwrap(),
            ))
        }
    });
    let targets = targets(Client::new(service, "a"));
    let fields: Vec<_> = (0..100)
        .map(|at| field(&format!("f-{at}"), "job"))
        .collect();
    for _ in 0..POLLS {
        for field in &fields {
            assert!(matches!(targets.track(field), Ok(None)));
            assert!(targets.request(field, None));
        }
        for field in &fields {
            let untracked = answer(&targets, field).await.unwrap().unwrap_err();
            assert_eq!(untracked.waiting.reason(), "ResourceMismatch");
        }
        // A poll that begins now needs no request.
        let untracked = targets.track(&fields[0]).err().unwrap();
        assert_eq!(untracked.waiting.reason(), "ResourceMismatch");
        sleep(Duration::from_secs(1)).await;
    }
    // Each discovery takes two requests, and the first ones of a poll begin together.
    let requests = requests.load(Ordering::SeqCst);
    assert!(requests <= 2 * PER_GROUP * POLLS, "{requests} requests");
}

#[tokio::test]
async fn request_whose_resource_is_forgotten_before_the_list_is_not_answered_as_read() {
    let service = tower::service_fn(|_: Request<Body>| {
        std::future::pending::<Result<Response<Body>, Infallible>>()
    });
    let targets = targets(Client::new(service, "a"));
    let field = field("field", "job");
    let resource = ResourceName {
        api_version: "batch/v1".into(),
        plural: "cronjobs".into(),
    };
    targets.start_request(&field, RequestGroup::List(resource, None));
    let answer = answer(&targets, &field).await.unwrap().unwrap();
    assert_eq!(answer, Answer::Discovered);
}

#[tokio::test]
async fn forbidden_list_of_a_namespace_fails_its_targets_alone() {
    let paths = Arc::new(Mutex::new(Vec::new()));
    let service = tower::service_fn({
        let paths = Arc::clone(&paths);
        move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let (code, answer) = if path.contains("/namespaces/b/") {
                (
                    403,
                    json!({ "kind": "Status", "status": "Failure", "message": "denied", "reason": "Forbidden", "code": 403 }),
                )
            } else {
                (
                    200,
                    json!({ "metadata": { "resourceVersion": "9" }, "items": [] }),
                )
            };
            paths.lock().unwrap().push(path);
            let answer = Body::from(serde_json::to_vec(&answer).unwrap());
            ready(Ok::<_, Infallible>(
                Response::builder().status(code).body(answer).unwrap(),
            ))
        }
    });
    let scope = WatchScope::Namespaces(vec!["a".into(), "b".into(), "unused".into()]);
    let targets = targets_in(Client::new(service, "a"), Duration::ZERO, scope);
    let (readable, denied) = (many_fields("a"), many_fields("b"));
    request_reads(&targets, &readable);
    request_reads(&targets, &denied);
    for field in &readable {
        let answer = answer(&targets, field).await.unwrap().unwrap();
        assert_eq!(answer, Answer::Read);
    }
    for field in &denied {
        let untracked = answer(&targets, field).await.unwrap().unwrap_err();
        assert_eq!(untracked.waiting.reason(), "Forbidden");
    }
    let mut paths = paths.lock().unwrap().clone();
    paths.sort();
    let path = |namespace| format!("/apis/apps/v1/namespaces/{namespace}/deployments");
    assert_eq!(paths, [path("a"), path("b")]);
}

#[rstest]
#[case::panic(true, "boom")]
#[case::timeout(false, "did not answer within")]
#[tokio::test(start_paused = true)]
async fn list_that_fails_is_an_answer_and_the_group_ends(
    #[case] panics: bool,
    #[case] message: &str,
) {
    let service = tower::service_fn(move |_: Request<Body>| async move {
        assert!(!panics, "boom");
        std::future::pending::<Result<Response<Body>, Infallible>>().await
    });
    let targets = targets_with(Client::new(service, "a"), Duration::ZERO);
    let fields = many_fields("a");
    request_reads(&targets, &fields);
    for field in &fields {
        let untracked = answer(&targets, field).await.unwrap().unwrap_err();
        assert_eq!(untracked.waiting.reason(), "TargetUnreadable");
        let text = untracked.waiting.message();
        assert!(text.contains(message), "{text}");
    }
    while !targets.requests.is_idle() {
        sleep(Duration::from_millis(1)).await;
    }
}

/// Each follower polls at another time for as long as the operator may not list the resource.
#[tokio::test(start_paused = true)]
async fn list_that_fails_is_repeated_once_a_second() {
    let lists = Arc::new(AtomicUsize::new(0));
    let service = tower::service_fn({
        let lists = Arc::clone(&lists);
        move |_: Request<Body>| {
            lists.fetch_add(1, Ordering::SeqCst);
            let answer = json!({ "kind": "Status", "status": "Failure", "message": "denied", "reason": "Forbidden", "code": 403 });
            let answer = Body::from(serde_json::to_vec(&answer).unwrap());
            ready(Ok::<_, Infallible>(
                Response::builder().status(403).body(answer).unwrap(),
            ))
        }
    });
    let targets = targets_with(Client::new(service, "a"), Duration::ZERO);
    let fields = many_fields("a");
    for field in &fields {
        targets.follow(field);
    }
    // Several polls for each list.
    for field in &fields {
        let (tracked, _) = targets.target(field).unwrap().unwrap();
        assert!(targets.request(field, Some(&tracked)));
        sleep(FAILED_LIST_PERIOD / 10).await;
    }
    for field in &fields {
        let untracked = answer(&targets, field).await.unwrap().unwrap_err();
        assert_eq!(untracked.waiting.reason(), "Forbidden");
    }
    let lists = lists.load(Ordering::SeqCst);
    assert!(lists <= fields.len() / 5, "{lists} lists");
}

#[tokio::test(start_paused = true)]
async fn few_followers_are_woken_until_they_take_their_answers() {
    let service = tower::service_fn(|_: Request<Body>| {
        std::future::pending::<Result<Response<Body>, Infallible>>()
    });
    let targets = targets(Client::new(service, "a"));
    let fields = many_fields("a");
    let key = |at: usize| ObjectKey::of(fields[at].as_ref());
    for (number, field) in (1..).zip(&fields) {
        let group = RequestGroup::discovery(&field.spec.target);
        targets.requests.request(field, group);
        let failure = unreadable("the targets could not be listed").into();
        let key = ObjectKey::of(field.as_ref());
        assert!(targets.requests.answered(&key, number, Ok(Err(failure))));
    }
    let (start, mut woken) = (Instant::now(), Woken::default());
    for at in 0..MAX_WOKEN {
        targets.wake(key(at), &mut woken).await;
    }
    assert!(answer(&targets, &fields[0]).await.is_ok());
    targets.wake(key(MAX_WOKEN), &mut woken).await;
    assert_eq!(start.elapsed(), Duration::ZERO);
    // Nobody takes an answer: the pauses become shorter, so that all of them together end soon.
    for at in (0..20).flat_map(|_| 1..=MAX_WOKEN) {
        targets.wake(key(at), &mut woken).await;
    }
    let waited = start.elapsed();
    assert!(
        waited >= MAX_WAKE_PAUSE && waited < 3 * MAX_WAKE_PAUSE,
        "{waited:?}"
    );
}

/// The last gathering ends, and the next one begins before the list notices.
#[tokio::test(start_paused = true)]
async fn creations_without_a_pause_delay_a_list_by_one_gathering() {
    let requests = TargetRequests::default();
    let resource = ResourceName {
        api_version: "apps/v1".into(),
        plural: "deployments".into(),
    };
    requests.gather(&resource);
    let start = Instant::now();
    let mut gathered = pin!(requests.gathered(&resource));
    assert!(poll!(gathered.as_mut()).is_pending());
    while start.elapsed() < GATHER_MAX {
        tokio::time::advance(Duration::from_millis(500)).await;
        requests.gather(&resource);
    }
    assert!(poll!(gathered.as_mut()).is_ready());
}

#[test]
fn few_unread_targets_are_not_counted_for_each_read() {
    let (requests, counts) = (TargetRequests::default(), AtomicUsize::new(0));
    let resource = ResourceName {
        api_version: "apps/v1".into(),
        plural: "deployments".into(),
    };
    let exceeds = |unread: usize| {
        requests.exceeds_single_reads(&resource, || {
            counts.fetch_add(1, Ordering::SeqCst);
            unread
        })
    };
    for _ in 0..=MAX_SINGLE_READS - 2 {
        assert!(!exceeds(2));
    }
    assert_eq!(counts.load(Ordering::SeqCst), 1);
    assert!(exceeds(MAX_SINGLE_READS + 1));
    assert!(exceeds(MAX_SINGLE_READS + 1));
    assert_eq!(counts.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn request_for_the_former_target_does_not_block_the_current_one() {
    let service = tower::service_fn(|_: Request<Body>| {
        std::future::pending::<Result<Response<Body>, Infallible>>()
    });
    let targets = targets(Client::new(service, "a"));
    let (before, now) = (field("field", "before"), field("field", "now"));
    assert!(targets.request(&before, None));
    assert!(
        targets
            .requests
            .take(&ObjectKey::of(now.as_ref()), &FollowIdentity::of(&now))
            .is_none()
    );
    assert!(targets.request(&now, None));
    assert!(answer(&targets, &now).await.unwrap().is_err());
    assert!(
        targets
            .requests
            .take(
                &ObjectKey::of(before.as_ref()),
                &FollowIdentity::of(&before)
            )
            .is_none()
    );
}
