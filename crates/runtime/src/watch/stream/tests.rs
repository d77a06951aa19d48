#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use rstest::rstest;
use serde_json::{Value, json};
use tower::{BoxError, service_fn};

use super::*;
use crate::metrics::{Metrics, Purpose, WatchGuard};
use crate::testing::{PROGRAM, Widget};

/// Request to the apiserver: a list, a watch that lists, or a watch that resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchRequest {
    List,
    Streamed,
    Watch,
}

/// Response of the apiserver: a code, and the events of a successful watch before it is quiet.
pub(crate) type FakeResponse = (u16, Vec<Value>);

#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<WatchRequest>>>);

impl Log {
    pub(crate) fn count(&self, request: WatchRequest) -> usize {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|it| **it == request)
            .count()
    }
}

pub(crate) fn api(
    answer: impl Fn(WatchRequest, usize) -> FakeResponse + Clone + Send + 'static,
) -> (Api<Widget>, Log) {
    let log = Log::default();
    let kept = log.clone();
    let service = service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default();
        let request = match (
            query.contains("watch=true"),
            query.contains("sendInitialEvents=true"),
        ) {
            (false, _) => WatchRequest::List,
            (true, true) => WatchRequest::Streamed,
            (true, false) => WatchRequest::Watch,
        };
        let before = kept.count(request);
        kept.0.lock().unwrap().push(request);
        let (code, events) = answer(request, before);
        std::future::ready(Ok::<_, BoxError>(response(request, code, events)))
    });
    (Api::all(Client::new(service, "default")), log)
}

fn response(
    request: WatchRequest,
    code: u16,
    events: Vec<Value>,
) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
    let whole = |answer: Value| Full::new(Bytes::from(answer.to_string())).boxed_unsync();
    let body = if code != 200 {
        let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no" });
        whole(status)
    } else if request == WatchRequest::List {
        let list = json!({ "kind": "WidgetList", "apiVersion": "example.com/v1", "metadata": { "resourceVersion": "5" },
            "items": events });
        whole(list)
    } else {
        let lines = events
            .into_iter()
            .map(|event| Ok::<_, Infallible>(Frame::data(Bytes::from(format!("{event}\n")))));
        StreamBody::new(futures::stream::iter(lines).chain(futures::stream::pending()))
            .boxed_unsync()
    };
    Response::builder().status(code).body(body).unwrap()
}

pub(crate) fn object(name: &str, version: &str) -> Value {
    json!({ "kind": "Widget", "apiVersion": "example.com/v1", "spec": {},
        "metadata": { "name": name, "namespace": "a", "resourceVersion": version } })
}

fn added(name: &str, version: &str) -> Value {
    json!({ "type": "ADDED", "object": object(name, version) })
}

/// Returns short names of the updates within `time`.
async fn updates<S: Stream<Item = WatchUpdate<Widget>>>(
    watch: &mut Pin<Box<S>>,
    time: Duration,
) -> Vec<&'static str> {
    let mut names = Vec::new();
    let all = async {
        loop {
            names.push(match watch.next().await.unwrap() {
                WatchUpdate::Event(Event::Init) => "init",
                WatchUpdate::Event(Event::InitApply(_)) => "listed",
                WatchUpdate::Event(Event::InitDone) => "done",
                WatchUpdate::Event(_) => "event",
                WatchUpdate::Recovered => "recovered",
                WatchUpdate::Failed(_) => "failed",
            });
        }
    };
    let _: Result<(), _> = tokio::time::timeout(time, all).await;
    names
}

/// Returns a guard that no test reads.
fn guard() -> WatchGuard {
    Metrics::new(&PROGRAM).watch("configmaps", Purpose::Own)
}

const MINUTE: Duration = Duration::from_mins(1);

#[tokio::test(start_paused = true)]
async fn lists_back_off_when_the_watch_is_denied() {
    let (api, log) = api(|request, _| {
        if request == WatchRequest::List {
            (200, vec![])
        } else {
            (403, vec![])
        }
    });
    let mut watch = Box::pin(watch_updates(
        api,
        Config::default(),
        guard(),
        &Availability::default(),
    ));
    let names = updates(&mut watch, 10 * MINUTE).await;
    assert!(
        log.count(WatchRequest::List) < 60,
        "{}",
        log.count(WatchRequest::List)
    );
    assert!(
        names.contains(&"failed") && !names.contains(&"recovered"),
        "{names:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn quiet_watch_recovers_after_a_delay_and_a_busy_one_at_once() {
    let (quiet, _) = api(|_, _| (200, vec![]));
    let mut watch_quiet = Box::pin(watch_updates(
        quiet,
        Config::default(),
        guard(),
        &Availability::default(),
    ));
    assert_eq!(
        updates(&mut watch_quiet, RECOVERY_DELAY / 2).await,
        ["init", "done"]
    );
    assert_eq!(
        updates(&mut watch_quiet, RECOVERY_DELAY).await,
        ["recovered"]
    );
    assert_eq!(updates(&mut watch_quiet, MINUTE).await, Vec::<&str>::new());

    let shows = |request, _| {
        (
            200,
            if request == WatchRequest::Watch {
                vec![added("x", "6")]
            } else {
                vec![object("y", "5")]
            },
        )
    };
    let mut watch = Box::pin(watch_updates(
        api(shows).0,
        Config::default(),
        guard(),
        &Availability::default(),
    ));
    assert_eq!(
        updates(&mut watch, Duration::from_secs(1)).await,
        ["init", "listed", "done", "event", "recovered"]
    );
}

#[tokio::test(start_paused = true)]
async fn granted_permission_takes_effect_within_the_longest_delay() {
    let began = Instant::now();
    let (api, _) = api(move |request, _| {
        let granted = request == WatchRequest::List || began.elapsed() > 5 * MINUTE;
        (if granted { 200 } else { 403 }, vec![])
    });
    let mut watch = Box::pin(watch_updates(
        api,
        Config::default(),
        guard(),
        &Availability::default(),
    ));
    assert!(!updates(&mut watch, 5 * MINUTE).await.contains(&"recovered"));
    assert_eq!(
        updates(
            &mut watch,
            RETRY_BACKOFF.max + RECOVERY_DELAY + Duration::from_secs(1)
        )
        .await
        .last(),
        Some(&"recovered")
    );
}

/// kube's watcher would resume from the expired version forever.
#[tokio::test(start_paused = true)]
async fn watch_relists_when_its_version_has_expired() {
    let (api, log) = api(|request, before| match (request, before) {
        (WatchRequest::Watch, 0) => (410, vec![]),
        _ => (200, vec![]),
    });
    let mut watch = Box::pin(watch_updates(
        api,
        Config::default(),
        guard(),
        &Availability::default(),
    ));
    let names = updates(&mut watch, MINUTE).await;
    assert_eq!(
        names,
        ["init", "done", "failed", "init", "done", "recovered"]
    );
    assert_eq!(
        (
            log.count(WatchRequest::List),
            log.count(WatchRequest::Watch)
        ),
        (2, 2)
    );
}

#[tokio::test(start_paused = true)]
async fn watch_does_not_relist_when_the_apiserver_is_overloaded() {
    let (api, log) = api(|request, before| match (request, before) {
        (WatchRequest::Watch, 0) => (429, vec![]),
        (WatchRequest::Watch, 1) => (503, vec![]),
        _ => (200, vec![]),
    });
    let mut watch = Box::pin(watch_updates(
        api,
        Config::default(),
        guard(),
        &Availability::default(),
    ));
    let names = updates(&mut watch, 2 * MINUTE).await;
    assert_eq!(names, ["init", "done", "failed", "failed", "recovered"]);
    assert_eq!(
        (
            log.count(WatchRequest::List),
            log.count(WatchRequest::Watch)
        ),
        (1, 3)
    );
}

/// The recovery is reported after the failure is over, and not before.
#[tokio::test(start_paused = true)]
async fn failed_watch_recovers_when_it_resumes() {
    let began = Instant::now();
    let (api, log) = api(move |request, _| {
        let fails = request == WatchRequest::Watch && began.elapsed() < 10 * MINUTE;
        (if fails { 500 } else { 200 }, vec![])
    });
    let mut watch = Box::pin(watch_updates(
        api,
        Config::default(),
        guard(),
        &Availability::default(),
    ));
    let names = updates(&mut watch, 10 * MINUTE).await;
    assert_eq!(names[..2], ["init", "done"]);
    assert!(names[2..].iter().all(|name| *name == "failed"), "{names:?}");
    let names = updates(
        &mut watch,
        RETRY_BACKOFF.max + RECOVERY_DELAY + Duration::from_secs(1),
    )
    .await;
    assert_eq!(names, ["recovered"]);
    assert_eq!(log.count(WatchRequest::List), 1);
}

#[tokio::test(start_paused = true)]
async fn lists_are_paged_without_streaming_lists() {
    let (api, log) = api(|request, _| {
        if request == WatchRequest::Streamed {
            (422, vec![])
        } else {
            (200, vec![])
        }
    });
    let mut watch = Box::pin(watch_updates(
        api,
        Config::default().streaming_lists(),
        guard(),
        &Availability::default(),
    ));
    assert_eq!(
        updates(&mut watch, MINUTE).await,
        ["init", "done", "recovered"]
    );
    assert_eq!(
        (
            log.count(WatchRequest::Streamed),
            log.count(WatchRequest::List)
        ),
        (1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn streamed_list_proves_recovery() {
    let bookmark = json!({ "type": "BOOKMARK", "object": { "kind": "Widget", "apiVersion": "example.com/v1", "spec": {}, "metadata": {
        "resourceVersion": "5", "annotations": { "k8s.io/initial-events-end": "true" } } } });
    let (api, log) = api(move |_, _| (200, vec![added("x", "4"), bookmark.clone()]));
    let mut watch = Box::pin(watch_updates(
        api,
        Config::default().streaming_lists(),
        guard(),
        &Availability::default(),
    ));
    assert_eq!(
        updates(&mut watch, Duration::from_secs(1)).await,
        ["init", "listed", "done", "recovered"]
    );
    assert_eq!(log.count(WatchRequest::List), 0);
}

/// Returns the state of the only watch of `configmaps`, if it is counted.
fn state(metrics: &Metrics) -> Option<String> {
    let text = metrics.encode();
    let one = |line: &str| {
        let state =
            line.strip_prefix("widget_operator_watches{resource=\"configmaps\",state=\"")?;
        state.strip_suffix("\"} 1").map(str::to_owned)
    };
    text.lines().find_map(one)
}

#[tokio::test(start_paused = true)]
async fn failed_watch_is_failing_until_its_next_event() {
    let metrics = Metrics::new(&PROGRAM);
    let (api, _) = api(|request, before| match (request, before) {
        (WatchRequest::Watch, 0..=2) => (500, vec![]),
        (WatchRequest::Watch, _) => (200, vec![added("x", "6")]),
        _ => (200, vec![]),
    });
    let mut watch = Box::pin(watch_updates(
        api,
        Config::default(),
        metrics.watch("configmaps", Purpose::Own),
        &Availability::default(),
    ));
    assert_eq!(
        state(&metrics).as_deref(),
        Some("healthy"),
        "the watch has not failed"
    );
    let mut seen = Vec::new();
    while seen.last() != Some(&"healthy".to_owned()) {
        let (WatchUpdate::Failed(_) | WatchUpdate::Event(Event::Apply(_))) =
            watch.next().await.unwrap()
        else {
            continue;
        };
        seen.extend(state(&metrics));
    }
    assert_eq!(seen, ["failing", "failing", "failing", "healthy"]);
    assert!(
        metrics
            .encode()
            .contains("widget_operator_watch_failures_total{resource=\"configmaps\"} 3")
    );
    drop(watch);
    assert_eq!(state(&metrics), None, "the watch is no longer counted");
}

#[rstest]
#[case::answered(500, vec![], RETRY_BACKOFF.max + RECOVERY_DELAY)]
#[case::broken_off(200, vec![json!("no event")], Duration::from_mins(2) + STALL_MARGIN)]
#[tokio::test(start_paused = true)]
async fn failed_watch_is_healthy_once_a_persistent_problem_would_have_shown_again(
    #[case] code: u16,
    #[case] events: Vec<Value>,
    #[case] lifetime: Duration,
) {
    let metrics = Metrics::new(&PROGRAM);
    let (api, _) = api(move |request, before| {
        if request == WatchRequest::Watch && before == 0 {
            (code, events.clone())
        } else {
            (200, vec![])
        }
    });
    let config = Config {
        timeout: Some(120),
        ..Config::default()
    };
    let mut watch = Box::pin(watch_updates(
        api,
        config,
        metrics.watch("configmaps", Purpose::Own),
        &Availability::default(),
    ));
    let second = Duration::from_secs(1);
    let seen = updates(&mut watch, lifetime.saturating_sub(second)).await;
    assert!(seen.contains(&"failed"), "{seen:?}");
    assert_eq!(seen.last(), Some(&"recovered"));
    assert_eq!(state(&metrics).as_deref(), Some("failing"));
    updates(&mut watch, second * 2).await;
    assert_eq!(state(&metrics).as_deref(), Some("healthy"));
}

/// No alert fires because a user's object names a resource that the operator may not read.
#[tokio::test(start_paused = true)]
async fn denied_target_watch_differs_from_a_failing_one() {
    for (purpose, code, expected) in [
        (Purpose::Target, 403, "denied"),
        (Purpose::Target, 404, "denied"),
        (Purpose::Target, 500, "failing"),
        (Purpose::Own, 403, "failing"),
    ] {
        let metrics = Metrics::new(&PROGRAM);
        let (api, _) = api(move |_, _| (code, vec![]));
        let mut watch = Box::pin(watch_updates(
            api,
            Config::default(),
            metrics.watch("configmaps", purpose),
            &Availability::default(),
        ));
        assert!(updates(&mut watch, MINUTE).await.contains(&"failed"));
        assert_eq!(
            state(&metrics).as_deref(),
            Some(expected),
            "{purpose:?} {code}"
        );
    }
}

/// A watch that failed during an outage does not wait for its own delay, which may be 30 s.
#[tokio::test(start_paused = true)]
async fn failed_watch_is_retried_soon_after_an_outage() {
    let is_up = Arc::new(AtomicBool::new(false));
    let answers = Arc::clone(&is_up);
    let (api, _) = api(move |_, _| {
        let code = if answers.load(Ordering::Relaxed) {
            200
        } else {
            503
        };
        (code, vec![])
    });
    let availability = Availability::default();
    let mut watch = Box::pin(watch_updates(
        api,
        Config::default(),
        guard(),
        &availability,
    ));
    updates(&mut watch, MINUTE * 5).await;
    while !matches!(watch.next().await.unwrap(), WatchUpdate::Failed(_)) {}
    is_up.store(true, Ordering::Relaxed);
    availability.end_outage();
    let updates = updates(&mut watch, RETURN_SPREAD * 2).await;
    assert!(updates.contains(&"done"), "{updates:?}");
}
