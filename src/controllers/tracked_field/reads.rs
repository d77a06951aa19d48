//! Requests about targets, outside reconciles. An apiserver that hangs for one kind, because of a conversion webhook or
//! an aggregated API, must not block delivery outcomes or reconciles of other kinds.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use kube::Resource;
use qm_api::TrackedField;
use qm_api::tracked_field::Target;
use qm_runtime::watch_hub::ResourceName;
use qm_runtime::{Key, tasks, telemetry};
use tokio::sync::Semaphore;
use tracing::{Instrument, error};

use super::follower::Whose;
use super::following::{Targets, Untracked};
use super::target::TargetKey;
use super::waiting::Waiting;
use super::{Error, NAME};

/// Concurrent requests per lane.
const PER_LANE: usize = 4;

/// Concurrent reads of objects whose metadata alone is watched: each may be 1 MiB.
const OBJECTS: usize = 4;

/// Pause after such reads. Others may change the object many times a second.
const OBJECT_PERIOD: Duration = Duration::from_secs(1);

/// Concurrent requests over all lanes: a spec can name any number of resources that do not exist.
const ALL_LANES: usize = 64;

/// Requests that are likely to hang together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Discovery of an API version.
    Discovery(String),
    /// Reads of a resource's objects.
    Reads(ResourceName),
    /// Reads of one object whose metadata alone is watched.
    Object(TargetKey),
    /// Reads of one object that is large, or in which a lookup is too expensive for a thread that has other work.
    Apart(TargetKey),
}

impl Lane {
    /// Returns the lane for discovery of `target`.
    pub fn discovery(target: &Target) -> Self {
        Self::Discovery(target.api_version.clone().unwrap_or_default())
    }

    /// Returns the lane for reads of `target`, in which the lookup may be `put_off`.
    pub fn read(target: &TargetKey, put_off: bool) -> Self {
        if put_off {
            Self::Apart(target.clone())
        } else if target.resource.is_watched_by_metadata() {
            Self::Object(target.clone())
        } else {
            Self::Reads(target.resource.clone())
        }
    }

    /// Concurrent requests.
    fn width(&self) -> usize {
        match self {
            Self::Discovery(_) | Self::Reads(_) => PER_LANE,
            // The newest state is wanted, once.
            Self::Object(_) | Self::Apart(_) => 1,
        }
    }
}

/// Kind of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// The target's resource is known, or needs discovery.
    Discovered,
    /// The target's state was read.
    Read,
}

/// Result of a request: the outer error is a panic, the inner error says why nothing is tracked.
pub(super) type Answered = Result<Result<Answer, Untracked>, Box<dyn Any + Send>>;

/// Requests about targets, at most one for each `TrackedField`.
pub struct Reads {
    state: Mutex<State>,
    all: Semaphore,
    objects: Semaphore,
}

#[derive(Default)]
struct State {
    tickets: HashMap<Key, Ticket>,
    /// Causes of failed last requests, until a request succeeds or none is needed.
    failures: HashMap<Key, (Whose, Waiting)>,
    lanes: HashMap<Lane, Queue>,
    /// For each resource, one read at a time of an object with expensive lookups: they wait with their text for their turn, and an
    /// apiserver that hangs mostly does so for one resource.
    apart: HashMap<ResourceName, Arc<Semaphore>>,
    /// Number of the last ticket.
    last: u64,
}

struct Ticket {
    number: u64,
    whose: Whose,
    answer: Option<Answered>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(u64, Arc<TrackedField>)>,
    running: usize,
}

impl Default for Reads {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            all: Semaphore::new(ALL_LANES),
            objects: Semaphore::new(OBJECTS),
        }
    }
}

impl Reads {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests an answer for `object`, unless a request is already in flight.
    pub(super) fn ask(&self, targets: &Arc<Targets>, object: &Arc<TrackedField>, lane: Lane) {
        let (key, whose) = (Key::of(object.as_ref()), Whose::of(object));
        let mut state = self.state();
        if state
            .tickets
            .get(&key)
            .is_some_and(|ticket| ticket.whose == whose)
        {
            return;
        }
        state.last += 1;
        let number = state.last;
        state.tickets.insert(
            key,
            Ticket {
                number,
                whose,
                answer: None,
            },
        );
        let width = lane.width();
        let queue = state.lanes.entry(lane.clone()).or_default();
        queue.waiting.push_back((number, Arc::clone(object)));
        if queue.running < width {
            queue.running += 1;
            tokio::spawn(run(Arc::clone(targets), lane));
        }
    }

    fn apart(&self, resource: &ResourceName) -> Arc<Semaphore> {
        let mut state = self.state();
        Arc::clone(
            state
                .apart
                .entry(resource.clone())
                .or_insert_with(|| Arc::new(Semaphore::new(1))),
        )
    }

    /// Takes the answer for this `TrackedField`, if it has arrived. Drops a request for an earlier target.
    pub(super) fn take(&self, key: &Key, whose: &Whose) -> Option<Answered> {
        let mut state = self.state();
        if state
            .tickets
            .get(key)
            .is_some_and(|ticket| ticket.whose == *whose && ticket.answer.is_none())
        {
            return None;
        }
        let answer = state
            .tickets
            .remove(key)
            .filter(|ticket| ticket.whose == *whose)?
            .answer;
        if let Some(Ok(Err(untracked))) = &answer {
            state
                .failures
                .insert(key.clone(), (whose.clone(), untracked.waiting.clone()));
        } else {
            state.failures.remove(key);
        }
        answer
    }

    /// Returns why the last request for this `TrackedField` failed.
    pub(super) fn failure(&self, key: &Key, whose: &Whose) -> Option<Waiting> {
        let state = self.state();
        state
            .failures
            .get(key)
            .filter(|(of, _)| of == whose)
            .map(|(_, waiting)| waiting.clone())
    }

    /// Records that this `TrackedField` needs no request.
    pub(super) fn needless(&self, key: &Key) {
        self.state().failures.remove(key);
    }

    /// Forgets a deleted `TrackedField`.
    pub(super) fn forget(&self, key: &Key) {
        let mut state = self.state();
        state.tickets.remove(key);
        state.failures.remove(key);
    }

    /// Returns the next `TrackedField` of a lane whose answer is still awaited.
    fn next(&self, lane: &Lane) -> Option<(u64, Arc<TrackedField>)> {
        let mut state = self.state();
        let State { tickets, lanes, .. } = &mut *state;
        let queue = lanes.get_mut(lane)?;
        while let Some((number, object)) = queue.waiting.pop_front() {
            if tickets
                .get(&Key::of(object.as_ref()))
                .is_some_and(|ticket| ticket.number == number)
            {
                return Some((number, object));
            }
        }
        queue.running -= 1;
        if queue.running == 0 {
            lanes.remove(lane);
        }
        None
    }

    /// Keeps an answer for the next reconcile, if this replica leads. Returns whether the answer was awaited.
    fn answered(&self, key: &Key, number: u64, answer: Answered, leads: bool) -> bool {
        let mut state = self.state();
        let Some(ticket) = state
            .tickets
            .get_mut(key)
            .filter(|ticket| ticket.number == number)
        else {
            return false;
        };
        ticket.answer = Some(answer);
        if !leads {
            state.tickets.remove(key);
        }
        true
    }
}

/// Sends the requests of a lane one by one.
async fn run(targets: Arc<Targets>, lane: Lane) {
    let all = async {
        while let Some((number, object)) = targets.reads.next(&lane) {
            let key = Key::of(object.as_ref());
            let reads_object =
                matches!(lane, Lane::Object(_) | Lane::Apart(_)) && targets.is_unread(&key);
            let apart;
            let permits = match &lane {
                Lane::Object(_) if reads_object => &targets.reads.objects,
                Lane::Apart(target) if reads_object => {
                    apart = targets.reads.apart(&target.resource);
                    &*apart
                }
                _ => &targets.reads.all,
            };
            let Ok(permit) = permits.acquire().await else {
                return;
            };
            let limit = targets.timeout;
            let span = telemetry::ask(
                NAME,
                &TrackedField::group(&()),
                &TrackedField::kind(&()),
                &key,
            );
            let look = tokio::time::timeout(limit, targets.look(&object, &lane)).instrument(span);
            let answer = AssertUnwindSafe(look).catch_unwind().await;
            drop(permit);
            let answer = answer
                .map(|in_time| in_time.unwrap_or_else(|_| Err(Error::Unanswered(limit).into())));
            if let Err(panic) = &answer {
                error!(panic = tasks::words(&**panic), trackedField = %key, "asking for the target panicked");
            }
            let leads = targets.tracker.leads();
            let awaited = targets.reads.answered(&key, number, answer, leads);
            if awaited && leads {
                targets.wake.wake(&key);
            } else if awaited {
                // A standby does not reconcile, so the target is followed here.
                targets.follow(&object);
                targets.ensure(&object);
            }
            if reads_object {
                tokio::time::sleep(OBJECT_PERIOD).await;
            }
        }
    };
    tokio::select! {
        () = all => {}
        () = targets.draining.cancelled() => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use kube::Client;
    use kube::client::Body;
    use kube::runtime::watcher;
    use qm_runtime::Scope;
    use qm_runtime::health::Health;
    use qm_runtime::metrics::Metrics;
    use qm_runtime::reconciler::Trigger;
    use qm_runtime::tasks::Tasks;
    use qm_runtime::watch_hub::WatchHub;
    use serde_json::json;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::controllers::tracked_field::grants;
    use crate::controllers::tracked_field::target::Resolver;
    use crate::controllers::tracked_field::tracker::Tracker;

    fn targets(client: Client) -> Arc<Targets> {
        let tracker = Arc::new(Tracker::new(Trigger::default(), true));
        let config = watcher::Config::default();
        let watchdog = Health::new().watchdog("targets", Duration::from_mins(1));
        let observer = Arc::clone(&tracker) as _;
        let (scope, metrics) = (Scope::of(&[].into()), Metrics::new(&crate::PROGRAM));
        let hub = WatchHub::new(
            client.clone(),
            scope.clone(),
            config,
            observer,
            metrics,
            Tasks::new(),
            watchdog,
        );
        Arc::new(Targets {
            client,
            scope,
            no_cross_namespace_refs: false,
            tracker,
            hub,
            grants: Arc::new(grants::tests::everything()),
            resolver: Resolver::default(),
            reads: Reads::default(),
            wake: Trigger::default(),
            resync: Duration::from_mins(1),
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

    async fn answer(targets: &Targets, field: &TrackedField) -> Answered {
        loop {
            if let Some(answer) = targets.reads.take(&Key::of(field), &Whose::of(field)) {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn panic_and_silence_are_answers_and_the_lane_goes_on() {
        let asked = Arc::new(AtomicUsize::new(0));
        let service = tower::service_fn({
            let asked = Arc::clone(&asked);
            move |_: Request<Body>| {
                let number = asked.fetch_add(1, Ordering::SeqCst);
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
            assert!(targets.ask(field, None));
        }
        assert_eq!(
            tasks::words(&*answer(&targets, &fields[0]).await.unwrap_err()),
            "boom"
        );
        assert_eq!(
            asked.load(Ordering::SeqCst),
            1 + PER_LANE,
            "the others wait for their turn"
        );
        for field in &fields[1..] {
            let untracked = answer(&targets, field).await.unwrap().unwrap_err();
            assert_eq!(untracked.waiting.reason(), "TargetUnreadable");
            let failure = targets
                .reads
                .failure(&Key::of(field.as_ref()), &Whose::of(field));
            assert_eq!(failure, Some(untracked.waiting));
        }
        assert!(targets.reads.state().lanes.is_empty() && targets.reads.state().tickets.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn request_for_what_was_tracked_before_holds_up_none_for_what_is_tracked_now() {
        let service = tower::service_fn(|_: Request<Body>| {
            std::future::pending::<Result<Response<Body>, Infallible>>()
        });
        let targets = targets(Client::new(service, "a"));
        let (before, now) = (field("field", "before"), field("field", "now"));
        assert!(targets.ask(&before, None));
        assert!(
            targets
                .reads
                .take(&Key::of(now.as_ref()), &Whose::of(&now))
                .is_none()
        );
        assert!(targets.ask(&now, None));
        assert!(answer(&targets, &now).await.unwrap().is_err());
        assert!(
            targets
                .reads
                .take(&Key::of(before.as_ref()), &Whose::of(&before))
                .is_none()
        );
    }
}
