#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard};

use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use rstest::rstest;
use tokio::time::advance;
use tower::{BoxError, service_fn};

use super::*;
use crate::health::Probes;

const LEASE: &str = "lease";

/// Fake apiserver with one Lease, which checks versions and fails on demand.
#[derive(Clone, Default)]
struct FakeApiserver(Arc<Mutex<FakeState>>);

#[derive(Default)]
#[allow(clippy::struct_excessive_bools)] // each switches one failure on
struct FakeState {
    lease: Option<Lease>,
    version: u64,
    /// Methods of the requests, in order.
    log: Vec<Method>,
    /// Requests hang before they have any effect.
    hangs: bool,
    /// The next write is applied, but its response is lost.
    loses_answer: bool,
    /// Every write is applied, but its response is lost.
    loses_answers: bool,
    /// Each write is applied twice; the second response counts.
    repeats: bool,
    /// Every request fails.
    fails: bool,
    /// Number of writes that will get 409, because somebody edits the lease's metadata right before each.
    edits: u32,
}

impl FakeApiserver {
    fn state(&self) -> MutexGuard<'_, FakeState> {
        self.0.lock().unwrap()
    }

    fn client(&self) -> Client {
        let server = self.clone();
        Client::new(
            service_fn(move |request: Request<Body>| {
                let server = server.clone();
                async move { server.answer(request).await }
            }),
            "ops",
        )
    }

    async fn answer(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let (parts, body) = request.into_parts();
        let body = body.collect_bytes().await?;
        let hangs = {
            let mut state = self.state();
            state.log.push(parts.method.clone());
            state.hangs
        };
        if hangs {
            pending::<()>().await;
        }
        let mut state = self.state();
        let status = |code: StatusCode| {
            let reason = match code {
                StatusCode::NOT_FOUND => "NotFound",
                StatusCode::CONFLICT => "Conflict",
                _ => "ServiceUnavailable",
            };
            let status = serde_json::json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(),
                "message": code.to_string(), "reason": reason,
            });
            Ok(Response::builder()
                .status(code)
                .body(Body::from(serde_json::to_vec(&status)?))?)
        };
        if state.fails {
            return status(StatusCode::SERVICE_UNAVAILABLE);
        }
        let stored = match (parts.method, state.lease.clone()) {
            (Method::GET, Some(lease)) => return ok(&lease),
            (Method::GET | Method::PUT, None) => return status(StatusCode::NOT_FOUND),
            (Method::POST, Some(_)) => return status(StatusCode::CONFLICT),
            (Method::POST, None) => serde_json::from_slice::<Lease>(&body)?,
            (Method::PUT, Some(old)) => {
                let new = serde_json::from_slice::<Lease>(&body)?;
                let old = if state.edits > 0 {
                    state.edits -= 1;
                    state.store(old)
                } else {
                    old
                };
                if new.metadata.resource_version != old.metadata.resource_version {
                    return status(StatusCode::CONFLICT);
                }
                new
            }
            (method, _) => panic!("{method}"),
        };
        let lease = state.store(stored);
        if state.repeats {
            return status(StatusCode::CONFLICT);
        }
        if std::mem::take(&mut state.loses_answer) || state.loses_answers {
            return Err("connection reset".into());
        }
        ok(&lease)
    }

    fn holder(&self) -> Option<String> {
        self.state()
            .lease
            .as_ref()
            .and_then(holder)
            .map(str::to_owned)
    }

    fn spec(&self) -> LeaseSpec {
        self.state().lease.clone().unwrap().spec.unwrap()
    }

    /// Renews the lease once, as another replica.
    fn held_by(&self, holder: &str, seconds: i32) {
        let spec = LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(seconds),
            renew_time: Some(MicroTime(Timestamp::now())),
            lease_transitions: Some(4),
            ..LeaseSpec::default()
        };
        self.state().store(Lease {
            spec: Some(spec),
            ..Lease::default()
        });
    }
}

impl FakeState {
    fn store(&mut self, mut lease: Lease) -> Lease {
        self.version += 1;
        lease.metadata.name = Some(LEASE.into());
        lease.metadata.resource_version = Some(self.version.to_string());
        self.lease.insert(lease).clone()
    }
}

fn ok(lease: &Lease) -> Result<Response<Body>, BoxError> {
    Ok(Response::new(Body::from(serde_json::to_vec(lease)?)))
}

fn elector(server: &FakeApiserver, identity: &str) -> LeaderElector {
    let watchdog = Probes::new().watchdog("lease", Duration::from_mins(1));
    LeaderElector::new(
        server.client(),
        ("ops", LEASE),
        identity.into(),
        &RuntimeTimings::default(),
        watchdog,
    )
}

/// Candidate that leads until it is stopped.
struct Replica {
    fence: Fence,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<LeadershipEnd<&'static str>>,
}

fn start(server: &FakeApiserver, identity: &str) -> Replica {
    let (fence, stop) = (Fence::shut(), CancellationToken::new());
    let (elector, open, token) = (elector(server, identity), fence.clone(), stop.clone());
    let task = tokio::spawn(async move {
        let work = async {
            assert!(open.is_open(), "the fence opens before the work");
            token.cancelled().await;
            "done"
        };
        lead(&elector, &open, &token, work).await
    });
    Replica { fence, stop, task }
}

async fn until(what: impl Fn() -> bool) -> Duration {
    let started = Instant::now();
    while !what() {
        sleep(Duration::from_millis(10)).await;
        assert!(
            started.elapsed() < Duration::from_mins(1),
            "waited for a minute"
        );
    }
    started.elapsed()
}

#[tokio::test(start_paused = true)]
async fn fence_closes_when_the_renewal_expires() {
    let fence = Fence::shut();
    assert!(!fence.is_open());
    fence.renewed(Instant::now(), Duration::from_secs(6));
    advance(Duration::from_millis(5_999)).await;
    assert!(fence.is_open());
    advance(Duration::from_millis(1)).await;
    assert!(!fence.is_open());
    fence.renewed(
        Instant::now() - Duration::from_secs(2),
        Duration::from_secs(6),
    );
    advance(Duration::from_secs(4)).await;
    assert!(!fence.is_open(), "counts from the request's start");
    let other = fence.clone();
    fence.close();
    fence.renewed(Instant::now(), Duration::from_secs(6));
    assert!(
        !fence.is_open() && !other.is_open(),
        "closed for good, and for all"
    );
    let always = Fence::open();
    advance(Duration::from_secs(1 << 30)).await;
    assert!(always.is_open());
}

#[tokio::test(start_paused = true)]
async fn first_candidate_acquires_the_lease_and_renews_it_with_one_write() {
    let server = FakeApiserver::default();
    let one = start(&server, "one");
    until(|| one.fence.is_open()).await;
    let first = server.spec();
    assert_eq!(first.holder_identity.as_deref(), Some("one"));
    assert_eq!(
        (first.lease_duration_seconds, first.lease_transitions),
        (Some(9), Some(0))
    );
    let before = server.state().log.len();
    sleep(Duration::from_millis(5_250)).await;
    assert!(one.fence.is_open());
    assert_eq!(server.state().log[before..], vec![Method::PUT; 10]);
    assert_eq!(server.spec().acquire_time, first.acquire_time);
    assert_eq!(server.spec().lease_transitions, Some(0));
    assert_ne!(server.spec().renew_time, first.renew_time);

    one.stop.cancel();
    assert_eq!(one.task.await.unwrap(), LeadershipEnd::Finished("done"));
    assert!(!one.fence.is_open());
    let released = server.spec();
    assert_eq!(released.holder_identity.as_deref(), Some(""));
    assert_eq!(
        (released.lease_duration_seconds, released.lease_transitions),
        (Some(1), Some(0))
    );
}

#[tokio::test(start_paused = true)]
async fn standby_leads_at_once_after_a_release() {
    let server = FakeApiserver::default();
    let one = start(&server, "one");
    until(|| one.fence.is_open()).await;
    let two = start(&server, "two");
    for _ in 0..300 {
        sleep(Duration::from_millis(100)).await;
        assert!(one.fence.is_open() && !two.fence.is_open());
    }
    one.stop.cancel();
    let took = until(|| two.fence.is_open()).await;
    assert!(took < Duration::from_millis(1_200), "{took:?}");
    assert_eq!(server.spec().lease_transitions, Some(1));
    assert!(!one.fence.is_open());
}

#[tokio::test(start_paused = true)]
async fn silent_leader_is_replaced_after_its_own_duration() {
    for (seconds, min, max) in [(9, 9_000, 10_300), (15, 15_000, 16_300)] {
        let server = FakeApiserver::default();
        server.held_by("other", seconds);
        let two = start(&server, "two");
        let took = until(|| two.fence.is_open()).await;
        assert!(
            took >= Duration::from_millis(min) && took < Duration::from_millis(max),
            "{took:?}"
        );
        assert_eq!(server.spec().lease_transitions, Some(5));
        two.task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn one_of_many_candidates_acquires_an_expired_lease() {
    let server = FakeApiserver::default();
    server.held_by("other", 9);
    let replicas: Vec<_> = ["one", "two", "three", "four"]
        .map(|name| start(&server, name))
        .into();
    let leaders = || {
        replicas
            .iter()
            .filter(|replica| replica.fence.is_open())
            .count()
    };
    until(|| leaders() > 0).await;
    for _ in 0..300 {
        assert_eq!(leaders(), 1);
        sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(server.spec().lease_transitions, Some(5));
}

#[tokio::test(start_paused = true)]
async fn leader_stops_in_time_without_the_apiserver() {
    type Failure = fn(&mut FakeState, bool);
    let failures: [Failure; 2] = [|state, on| state.hangs = on, |state, on| state.fails = on];
    for failure in failures {
        let server = FakeApiserver::default();
        let one = start(&server, "one");
        until(|| one.fence.is_open()).await;
        let two = start(&server, "two");
        sleep(Duration::from_secs(3)).await;
        failure(&mut server.state(), true);
        let took = until(|| !one.fence.is_open()).await;
        assert!(took <= Duration::from_millis(6_020), "{took:?}");
        assert_eq!(one.task.await.unwrap(), LeadershipEnd::Lost);
        failure(&mut server.state(), false);
        until(|| two.fence.is_open()).await;
        assert_eq!(
            server.holder().as_deref(),
            Some("two"),
            "a lost lease is not released"
        );
        two.task.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn leader_survives_a_short_outage() {
    let server = FakeApiserver::default();
    let one = start(&server, "one");
    until(|| one.fence.is_open()).await;
    server.state().fails = true;
    sleep(Duration::from_secs(4)).await;
    server.state().fails = false;
    server.state().loses_answer = true;
    sleep(Duration::from_secs(4)).await;
    assert!(!server.state().loses_answer);
    assert!(one.fence.is_open() && !one.task.is_finished());
    assert_eq!(server.spec().lease_transitions, Some(0));
    one.task.abort();
}

#[tokio::test(start_paused = true)]
async fn leader_keeps_leading_after_two_conflicts_in_one_renewal() {
    let server = FakeApiserver::default();
    let one = start(&server, "one");
    until(|| one.fence.is_open()).await;
    let two = start(&server, "two");
    // A renewal is applied but its response is lost; then each of five writes conflicts with an edit.
    server.state().loses_answer = true;
    server.state().edits = 5;
    until(|| server.state().edits == 0).await;
    sleep(Duration::from_secs(20)).await;
    assert!(one.fence.is_open() && !one.task.is_finished() && !two.fence.is_open());
    assert_eq!(server.spec().lease_transitions, Some(0));
    one.task.abort();
    two.task.abort();
}

/// Every write is applied without a response that confirms it, so only a read of the lease reveals the write.
#[rstest]
#[case::repeated(|state: &mut FakeState| state.repeats = true)]
#[case::unanswered(|state: &mut FakeState| state.loses_answers = true)]
#[tokio::test(start_paused = true)]
async fn lease_is_acquired_and_kept_although_no_answer_confirms_a_write(
    #[case] failure: fn(&mut FakeState),
) {
    let server = FakeApiserver::default();
    server.held_by("other", 9);
    failure(&mut server.state());
    let one = start(&server, "one");
    until(|| one.fence.is_open()).await;
    let two = start(&server, "two");
    for _ in 0..300 {
        sleep(Duration::from_millis(100)).await;
        assert!(one.fence.is_open() && !two.fence.is_open());
    }
    assert_eq!(server.spec().lease_transitions, Some(5));
    // A lease of another candidate does not count as a write of this one.
    server.held_by("two", 9);
    until(|| !one.fence.is_open()).await;
    assert_eq!(one.task.await.unwrap(), LeadershipEnd::Lost);
    two.task.abort();
}

#[tokio::test(start_paused = true)]
async fn leader_stops_at_the_deadline_when_every_renewal_conflicts() {
    let server = FakeApiserver::default();
    let one = start(&server, "one");
    until(|| one.fence.is_open()).await;
    server.state().edits = u32::MAX;
    let took = until(|| !one.fence.is_open()).await;
    assert!(
        took > Duration::from_secs(5) && took <= Duration::from_millis(6_020),
        "{took:?}"
    );
    assert_eq!(one.task.await.unwrap(), LeadershipEnd::Lost);
}

#[tokio::test(start_paused = true)]
async fn lease_is_lost_at_once_when_another_acquires_it() {
    let server = FakeApiserver::default();
    let one = start(&server, "one");
    until(|| one.fence.is_open()).await;
    server.held_by("two", 9);
    let took = until(|| !one.fence.is_open()).await;
    assert!(took <= Duration::from_millis(520), "{took:?}");
    assert_eq!(one.task.await.unwrap(), LeadershipEnd::Lost);
    assert_eq!(server.holder().as_deref(), Some("two"));
}

/// SIGSTOP until the lease has expired, then SIGCONT: the clock jumps before any task runs.
#[tokio::test(start_paused = true)]
async fn fence_is_closed_when_a_frozen_leader_continues() {
    let server = FakeApiserver::default();
    let one = start(&server, "one");
    until(|| one.fence.is_open()).await;
    server.held_by("two", 9);
    let before = server.state().log.len();
    // With a manual clock, timers fire only once the runtime runs.
    let mut jump = std::pin::pin!(advance(Duration::from_secs(7)));
    assert!(futures::poll!(jump.as_mut()).is_pending());
    assert!(!one.fence.is_open());
    jump.await;
    assert_eq!(one.task.await.unwrap(), LeadershipEnd::Lost);
    assert_eq!(
        server.state().log.len(),
        before,
        "not even the lease is written"
    );
    assert_eq!(server.holder().as_deref(), Some("two"));
}

#[tokio::test(start_paused = true)]
async fn holder_recreates_a_deleted_lease() {
    let server = FakeApiserver::default();
    let one = start(&server, "one");
    until(|| one.fence.is_open()).await;
    server.state().lease = None;
    sleep(Duration::from_secs(7)).await;
    assert!(one.fence.is_open());
    assert_eq!(server.holder().as_deref(), Some("one"));
    one.task.abort();
}

/// The holder acts until it notices the deletion, or for as long as the lease lasted.
#[tokio::test(start_paused = true)]
async fn standby_waits_for_the_holder_of_a_deleted_lease() {
    let server = FakeApiserver::default();
    server.held_by("other", 9);
    let two = start(&server, "two");
    sleep(Duration::from_secs(2)).await;
    server.state().lease = None;
    sleep(Duration::from_secs(4)).await;
    assert!(!two.fence.is_open());
    until(|| two.fence.is_open()).await;
    assert_eq!(server.holder().as_deref(), Some("two"));
    two.task.abort();
}

#[tokio::test(start_paused = true)]
async fn standby_stops_without_a_write_of_the_lease() {
    let server = FakeApiserver::default();
    server.held_by("other", 9);
    let two = start(&server, "two");
    sleep(Duration::from_secs(2)).await;
    two.stop.cancel();
    assert_eq!(two.task.await.unwrap(), LeadershipEnd::Stopped);
    assert_eq!(server.holder().as_deref(), Some("other"));
    assert!(
        server
            .state()
            .log
            .iter()
            .all(|method| *method == Method::GET)
    );
}

/// The request that acquires the lease may arrive after its sender was stopped: the lease would have no live holder for
/// 9 s.
#[tokio::test(start_paused = true)]
async fn candidate_releases_the_lease_when_stopped_during_an_attempt() {
    let server = FakeApiserver::default();
    server.state().hangs = true;
    let one = start(&server, "one");
    until(|| !server.state().log.is_empty()).await;
    server.held_by("one", 9);
    server.state().hangs = false;
    one.stop.cancel();
    assert_eq!(one.task.await.unwrap(), LeadershipEnd::Stopped);
    assert_eq!(server.holder(), None);
    assert!(!one.fence.is_open());
}

/// The candidate is stopped between two attempts: the first one acquired the lease, and its response was lost.
#[tokio::test(start_paused = true)]
async fn candidate_releases_the_lease_when_stopped_after_an_attempt_without_a_response() {
    let server = FakeApiserver::default();
    server.state().loses_answer = true;
    let one = start(&server, "one");
    until(|| server.holder().is_some()).await;
    assert!(!one.fence.is_open());
    one.stop.cancel();
    assert_eq!(one.task.await.unwrap(), LeadershipEnd::Stopped);
    assert_eq!(server.holder(), None);
}

#[test]
fn identities_are_unique() {
    let (one, two) = (identity(Some("qm-0"), "x"), identity(Some("qm-0"), "x"));
    assert!(one.starts_with("qm-0_") && one != two);
    assert!(identity(None, "x").len() > 37);
}
