#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Bytes, Frame};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tower::{BoxError, service_fn};

use super::*;
use crate::metrics::{Metrics, Purpose, WatchGuard};
use crate::testing::{PROGRAM, Widget};

/// Request to the apiserver: a list, a watch that lists, or a watch that resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    List,
    Streamed,
    Watch,
}

/// Response of the apiserver: a code, and the events of a successful watch before it is quiet.
pub(crate) type Answer = (u16, Vec<Value>);

#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<Asked>>>);

impl Log {
    pub(crate) fn count(&self, asked: Asked) -> usize {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|it| **it == asked)
            .count()
    }
}

pub(crate) fn api(
    answer: impl Fn(Asked, usize) -> Answer + Clone + Send + 'static,
) -> (Api<Widget>, Log) {
    let log = Log::default();
    let kept = log.clone();
    let service = service_fn(move |request: Request<Body>| {
        let query = request.uri().query().unwrap_or_default();
        let asked = match (
            query.contains("watch=true"),
            query.contains("sendInitialEvents=true"),
        ) {
            (false, _) => Asked::List,
            (true, true) => Asked::Streamed,
            (true, false) => Asked::Watch,
        };
        let before = kept.count(asked);
        kept.0.lock().unwrap().push(asked);
        let (code, shown) = answer(asked, before);
        std::future::ready(Ok::<_, BoxError>(response(asked, code, shown)))
    });
    (Api::all(Client::new(service, "default")), log)
}

fn response(
    asked: Asked,
    code: u16,
    shown: Vec<Value>,
) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
    let whole = |answer: Value| Full::new(Bytes::from(answer.to_string())).boxed_unsync();
    let body = if code != 200 {
        let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "no" });
        whole(status)
    } else if asked == Asked::List {
        let list = json!({ "kind": "WidgetList", "apiVersion": "example.com/v1", "metadata": { "resourceVersion": "5" },
            "items": shown });
        whole(list)
    } else {
        let lines = shown
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
async fn told<S: Stream<Item = WatchUpdate<Widget>>>(
    watch: &mut Pin<Box<S>>,
    time: Duration,
) -> Vec<&'static str> {
    let mut words = Vec::new();
    let all = async {
        loop {
            words.push(match watch.next().await.unwrap() {
                WatchUpdate::Event(Event::Init) => "init",
                WatchUpdate::Event(Event::InitApply(_)) => "listed",
                WatchUpdate::Event(Event::InitDone) => "done",
                WatchUpdate::Event(_) => "shown",
                WatchUpdate::Recovered => "stands",
                WatchUpdate::Failed(_) => "failed",
            });
        }
    };
    let _: Result<(), _> = tokio::time::timeout(time, all).await;
    words
}

/// Returns a guard that no test reads.
fn counted() -> WatchGuard {
    Metrics::new(&PROGRAM).watch("configmaps", Purpose::Own)
}

const MINUTE: Duration = Duration::from_mins(1);

#[tokio::test(start_paused = true)]
async fn lists_back_off_when_the_watch_is_denied() {
    let (api, log) = api(|asked, _| {
        if asked == Asked::List {
            (200, vec![])
        } else {
            (403, vec![])
        }
    });
    let mut watch = Box::pin(watch_updates(api, Config::default(), counted()));
    let words = told(&mut watch, 10 * MINUTE).await;
    assert!(log.count(Asked::List) < 60, "{}", log.count(Asked::List));
    assert!(
        words.contains(&"failed") && !words.contains(&"stands"),
        "{words:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn quiet_watch_recovers_after_a_delay_and_a_busy_one_at_once() {
    let (quiet, _) = api(|_, _| (200, vec![]));
    let mut watch_quiet = Box::pin(watch_updates(quiet, Config::default(), counted()));
    assert_eq!(
        told(&mut watch_quiet, RECOVERY_DELAY / 2).await,
        ["init", "done"]
    );
    assert_eq!(told(&mut watch_quiet, RECOVERY_DELAY).await, ["stands"]);
    assert_eq!(told(&mut watch_quiet, MINUTE).await, Vec::<&str>::new());

    let shows = |asked, _| {
        (
            200,
            if asked == Asked::Watch {
                vec![added("x", "6")]
            } else {
                vec![object("y", "5")]
            },
        )
    };
    let mut watch = Box::pin(watch_updates(api(shows).0, Config::default(), counted()));
    assert_eq!(
        told(&mut watch, Duration::from_secs(1)).await,
        ["init", "listed", "done", "shown", "stands"]
    );
}

#[tokio::test(start_paused = true)]
async fn granted_permission_takes_effect_within_the_longest_delay() {
    let began = Instant::now();
    let (api, _) = api(move |asked, _| {
        let granted = asked == Asked::List || began.elapsed() > 5 * MINUTE;
        (if granted { 200 } else { 403 }, vec![])
    });
    let mut watch = Box::pin(watch_updates(api, Config::default(), counted()));
    assert!(!told(&mut watch, 5 * MINUTE).await.contains(&"stands"));
    assert_eq!(
        told(
            &mut watch,
            RETRY.max + RECOVERY_DELAY + Duration::from_secs(1)
        )
        .await
        .last(),
        Some(&"stands")
    );
}

/// kube's watcher would resume from the expired version forever.
#[tokio::test(start_paused = true)]
async fn watch_relists_when_its_version_has_expired() {
    let (api, log) = api(|asked, before| match (asked, before) {
        (Asked::Watch, 0) => (410, vec![]),
        _ => (200, vec![]),
    });
    let mut watch = Box::pin(watch_updates(api, Config::default(), counted()));
    let words = told(&mut watch, MINUTE).await;
    assert_eq!(words, ["init", "done", "failed", "init", "done", "stands"]);
    assert_eq!((log.count(Asked::List), log.count(Asked::Watch)), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn watch_does_not_relist_when_the_apiserver_is_overloaded() {
    let (api, log) = api(|asked, before| match (asked, before) {
        (Asked::Watch, 0) => (429, vec![]),
        (Asked::Watch, 1) => (503, vec![]),
        _ => (200, vec![]),
    });
    let mut watch = Box::pin(watch_updates(api, Config::default(), counted()));
    let words = told(&mut watch, 2 * MINUTE).await;
    assert_eq!(words, ["init", "done", "failed", "failed", "stands"]);
    assert_eq!((log.count(Asked::List), log.count(Asked::Watch)), (1, 3));
}

/// The recovery is reported after the failure is over, and not before.
#[tokio::test(start_paused = true)]
async fn failed_watch_recovers_when_it_resumes() {
    let began = Instant::now();
    let (api, log) = api(move |asked, _| {
        let fails = asked == Asked::Watch && began.elapsed() < 10 * MINUTE;
        (if fails { 500 } else { 200 }, vec![])
    });
    let mut watch = Box::pin(watch_updates(api, Config::default(), counted()));
    let words = told(&mut watch, 10 * MINUTE).await;
    assert_eq!(words[..2], ["init", "done"]);
    assert!(words[2..].iter().all(|word| *word == "failed"), "{words:?}");
    let words = told(
        &mut watch,
        RETRY.max + RECOVERY_DELAY + Duration::from_secs(1),
    )
    .await;
    assert_eq!(words, ["stands"]);
    assert_eq!(log.count(Asked::List), 1);
}

#[tokio::test(start_paused = true)]
async fn lists_are_paged_without_streaming_lists() {
    let (api, log) = api(|asked, _| {
        if asked == Asked::Streamed {
            (422, vec![])
        } else {
            (200, vec![])
        }
    });
    let mut watch = Box::pin(watch_updates(
        api,
        Config::default().streaming_lists(),
        counted(),
    ));
    assert_eq!(told(&mut watch, MINUTE).await, ["init", "done", "stands"]);
    assert_eq!((log.count(Asked::Streamed), log.count(Asked::List)), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn streamed_list_proves_recovery() {
    let bookmark = json!({ "type": "BOOKMARK", "object": { "kind": "Widget", "apiVersion": "example.com/v1", "spec": {}, "metadata": {
        "resourceVersion": "5", "annotations": { "k8s.io/initial-events-end": "true" } } } });
    let (api, log) = api(move |_, _| (200, vec![added("x", "4"), bookmark.clone()]));
    let mut watch = Box::pin(watch_updates(
        api,
        Config::default().streaming_lists(),
        counted(),
    ));
    assert_eq!(
        told(&mut watch, Duration::from_secs(1)).await,
        ["init", "listed", "done", "stands"]
    );
    assert_eq!(log.count(Asked::List), 0);
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
    let (api, _) = api(|asked, before| match (asked, before) {
        (Asked::Watch, 0..=2) => (500, vec![]),
        (Asked::Watch, _) => (200, vec![added("x", "6")]),
        _ => (200, vec![]),
    });
    let mut watch = Box::pin(watch_updates(
        api,
        Config::default(),
        metrics.watch("configmaps", Purpose::Own),
    ));
    assert_eq!(
        state(&metrics).as_deref(),
        Some("healthy"),
        "nothing is known against it"
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
    assert_eq!(state(&metrics), None, "there is none any more");
}

/// A stalled watch would have failed again by then.
#[tokio::test(start_paused = true)]
async fn failed_watch_is_healthy_after_a_quiet_period() {
    let metrics = Metrics::new(&PROGRAM);
    let (api, _) = api(|asked, before| {
        (
            if asked == Asked::Watch && before == 0 {
                500
            } else {
                200
            },
            vec![],
        )
    });
    let config = Config {
        timeout: Some(120),
        ..Config::default()
    };
    let mut watch = Box::pin(watch_updates(
        api,
        config,
        metrics.watch("configmaps", Purpose::Own),
    ));
    let just_before = Duration::from_secs(119) + STALL_MARGIN;
    assert_eq!(told(&mut watch, just_before).await.last(), Some(&"stands"));
    assert_eq!(state(&metrics).as_deref(), Some("failing"));
    told(&mut watch, Duration::from_secs(2)).await;
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
        ));
        assert!(told(&mut watch, MINUTE).await.contains(&"failed"));
        assert_eq!(
            state(&metrics).as_deref(),
            Some(expected),
            "{purpose:?} {code}"
        );
    }
}
