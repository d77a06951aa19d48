//! From a spec to a target that is watched, followed by the [`Tracker`] and read where the watch is not enough.
//!
//! Requests about targets run outside reconciles: an apiserver that hangs for one kind, because of a conversion webhook or an
//! aggregated API, must not block delivery outcomes or reconciles of other kinds.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use kube::{Api, Client, Resource};
use qm_api::TrackedField;
use qm_api::tracked_field::Target;
use qm_runtime::error::{Class, Error};
use qm_runtime::raw_object::RawObject;
use qm_runtime::trigger::Trigger;
use qm_runtime::watch_hub::{ResourceName, WatchHub};
use qm_runtime::{ObjectKey, WatchScope, tasks, telemetry};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, error};

use super::field::Field;
use super::follower::{FollowIdentity, ReadTicket};
use super::grants::{Grant, Grants};
use super::target::{Resolved, Resolver, TargetError, TargetKey};
use super::tracker::{AT_ONCE, Tracker};
use super::waiting::{TARGET_UNREADABLE, WaitingReason};

/// Targets of all `TrackedField`s: discovery, watches and reads.
pub struct Targets {
    /// Name of the controller, in spans.
    pub controller: &'static str,
    /// Client for discovery and reads.
    pub client: Client,
    /// The cluster or the namespaces that the operator watches.
    pub scope: WatchScope,
    /// Whether a target has to lie in the namespace of its `TrackedField`.
    pub no_cross_namespace_refs: bool,
    /// ReadsState that the watches show.
    pub tracker: Arc<Tracker>,
    /// The watches.
    pub hub: WatchHub,
    /// The resources that may be tracked.
    pub grants: Arc<Grants>,
    /// Discovered resources.
    pub resolver: Resolver,
    /// Requests that run outside reconciles.
    pub reads: Reads,
    /// Wakes the reconcile that an answer concerns.
    pub wake: Trigger<TrackedField>,
    /// Time without confirmation after which a target is read.
    pub resync: Duration,
    /// Timeout of discovery and of a read.
    pub timeout: Duration,
    /// Cancelled once no new request may start.
    pub draining: CancellationToken,
}

/// What a `TrackedField` tracks, once its spec is understood.
pub(super) struct FollowedTarget {
    pub(super) target: TargetKey,
    pub(super) api: Api<RawObject>,
    pub(super) shard: Option<String>,
}

/// Why nothing is tracked.
#[derive(Debug)]
pub(super) struct TrackError {
    pub(super) waiting: WaitingReason,
    /// The failure of the reconcile, if retrying helps.
    pub(super) error: Option<Box<Error>>,
}

impl From<WaitingReason> for TrackError {
    fn from(waiting: WaitingReason) -> Self {
        Self {
            waiting,
            error: None,
        }
    }
}

impl From<Error> for TrackError {
    fn from(error: Error) -> Self {
        Self {
            waiting: WaitingReason::TargetUnreadable(error.to_string()),
            error: Some(Box::new(error)),
        }
    }
}

impl From<TargetError> for TrackError {
    fn from(error: TargetError) -> Self {
        match error {
            TargetError::Discovery(_) => unreadable(error).into(),
            _ => WaitingReason::ResourceMismatch(error.to_string()).into(),
        }
    }
}

/// Returns the failure of a request about a target.
fn unreadable(message: impl Display) -> Error {
    Error::Other {
        class: Class::Transient,
        reason: TARGET_UNREADABLE.into(),
        message: message.to_string(),
    }
}

fn not_inspected(error: impl Display) -> Error {
    unreadable(format!("the target could not be inspected: {error}"))
}

impl Targets {
    /// Stops following for `key`.
    pub fn unfollow(&self, key: &ObjectKey) {
        if self.tracker.forget(key) {
            self.end_idle_watches();
        }
    }

    fn end_idle_watches(&self) {
        self.hub.retain(|resource| self.tracker.follows(resource));
        self.tracker.forget_watches();
    }

    /// Follows the target as soon as the object is cached, so that the first list of its watch already counts and no
    /// read is needed. The watch itself begins with [`Targets::watch`].
    pub fn follow(&self, object: &TrackedField) {
        let Ok(field) = Field::compile(&object.spec.target.kind, &object.spec.field) else {
            return;
        };
        let Some(resolved) = self.resolver.known(&object.spec.target) else {
            return;
        };
        if !self.is_granted(&resolved) {
            // The leader's reconcile records what was observed before it stops following.
            if !self.tracker.leads() {
                self.unfollow(&ObjectKey::of(object));
            }
            return;
        }
        if let Ok(tracked) = self.tracked(object, &resolved) {
            self.follow_as(object, &tracked, &field);
        }
    }

    fn follow_as(&self, object: &TrackedField, tracked: &FollowedTarget, field: &Field) {
        let key = ObjectKey::of(object);
        if self.tracker.follow(
            &key,
            &FollowIdentity::of(object),
            &tracked.target,
            field,
            tracked.shard.clone(),
        ) {
            self.end_idle_watches();
        }
    }

    /// Ensures a watch of the target of `object`; if the resource is unknown, once discovery has answered.
    pub fn watch(self: &Arc<Self>, object: &Arc<TrackedField>) {
        if self.ensure(object) {
            return;
        }
        // An answer about a target that cannot be tracked anyway would only take turns with the true reason.
        let Target { kind, .. } = &object.spec.target;
        if Field::compile(kind, &object.spec.field).is_ok()
            && matches!(self.target(object), Ok(None))
        {
            self.reads
                .ask(self, object, Lane::discovery(&object.spec.target));
        }
    }

    /// Ensures a watch of the target of `object`, if its resource is known and in scope. Returns whether the resource
    /// is known.
    pub(super) fn ensure(&self, object: &TrackedField) -> bool {
        let target = &object.spec.target;
        let Some(resolved) = self.resolver.known(target) else {
            return false;
        };
        if self.reaches(object, resolved.place(target)).is_ok() && self.is_granted(&resolved) {
            self.hub.ensure(&resolved.resource, resolved.namespaced);
        }
        true
    }

    /// Checks that `object` may have a target in `namespace`, which is empty for a cluster-scoped one.
    fn reaches(&self, object: &TrackedField, namespace: &str) -> Result<(), WaitingReason> {
        if !self.scope.covers(namespace) {
            return Err(WaitingReason::OutOfScope {
                namespace: namespace.into(),
            });
        }
        if self.no_cross_namespace_refs && object.metadata.namespace.as_deref() != Some(namespace) {
            return Err(WaitingReason::CrossNamespace {
                namespace: namespace.into(),
            });
        }
        Ok(())
    }

    fn is_granted(&self, resolved: &Resolved) -> bool {
        self.grants.of(&ResourceName::from(&resolved.resource)) == Grant::Granted
    }

    fn tracked(
        &self,
        object: &TrackedField,
        resolved: &Resolved,
    ) -> Result<FollowedTarget, WaitingReason> {
        let target = &object.spec.target;
        let namespace = resolved.place(target);
        if resolved.namespaced && namespace.is_empty() {
            let words = format!(
                "{} lie in namespaces: write target.namespace",
                resolved.resource.plural
            );
            return Err(WaitingReason::ResourceMismatch(words));
        }
        self.reaches(object, namespace)?;
        // A right in the namespace that is named is all that a policy asks its author for.
        if !resolved.namespaced && !target.namespace.is_empty() {
            let words = format!(
                "{} lie in no namespace: leave target.namespace out",
                resolved.resource.plural
            );
            return Err(WaitingReason::ResourceMismatch(words));
        }
        let resource = ResourceName::from(&resolved.resource);
        if let Grant::Missing(message) = self.grants.of(&resource) {
            return Err(WaitingReason::NotGranted(message));
        }
        let api = if resolved.namespaced {
            Api::namespaced_with(self.client.clone(), namespace, &resolved.resource)
        } else {
            Api::all_with(self.client.clone(), &resolved.resource)
        };
        let shard = match &self.scope {
            WatchScope::Namespaces(_) if resolved.namespaced => Some(namespace.to_owned()),
            _ => None,
        };
        let key = TargetKey {
            resource,
            namespace: namespace.into(),
            name: target.name.clone(),
        };
        Ok(FollowedTarget {
            target: key,
            api,
            shard,
        })
    }

    fn turn(&self, target: &Target) -> u64 {
        let discovered = target.api_version.clone().zip(target.resource.clone());
        discovered.map_or(0, |(api_version, plural)| {
            self.tracker.turn(&ResourceName {
                api_version,
                plural,
            })
        })
    }

    /// Returns the target without any request, `None` if only the apiserver knows its resource. The error says why the
    /// target cannot be tracked.
    fn target(
        &self,
        object: &TrackedField,
    ) -> Result<Option<(FollowedTarget, Resolved)>, TrackError> {
        let target = &object.spec.target;
        let Some(resolved) = self.resolver.resolved(target, self.turn(target))? else {
            return Ok(None);
        };
        // No watch follows a mismatch, so no event would reveal a later change of the resource.
        let tracked = self
            .tracked(object, &resolved)
            .inspect_err(|_| self.resolver.forget(target))?;
        Ok(Some((tracked, resolved)))
    }

    /// Follows and watches the target, if its resource is known.
    pub(super) fn track(
        &self,
        object: &TrackedField,
    ) -> Result<Option<FollowedTarget>, TrackError> {
        let field =
            Field::compile(&object.spec.target.kind, &object.spec.field).map_err(|error| {
                WaitingReason::Field {
                    reason: error.reason(),
                    message: error.to_string(),
                }
            })?;
        let Some((tracked, resolved)) = self.target(object)? else {
            return Ok(None);
        };
        self.follow_as(object, &tracked, &field);
        self.hub.ensure(&resolved.resource, resolved.namespaced);
        Ok(Some(tracked))
    }

    /// Requests a read of the target of `object`, or discovery if nothing is `tracked`; returns false if neither is
    /// needed. The answer wakes the reconcile.
    pub(super) fn ask(
        self: &Arc<Self>,
        object: &Arc<TrackedField>,
        tracked: Option<&FollowedTarget>,
    ) -> bool {
        let key = ObjectKey::of(object.as_ref());
        let lane = match tracked {
            None => Lane::discovery(&object.spec.target),
            Some(tracked) if self.is_unread(&key) => {
                Lane::read(&tracked.target, self.tracker.is_put_off(&key))
            }
            Some(_) => {
                self.reads.needless(&key);
                return false;
            }
        };
        self.reads.ask(self, object, lane);
        true
    }

    /// Returns whether the target of `key` needs a read.
    pub(super) fn is_unread(&self, key: &ObjectKey) -> bool {
        self.tracker.unread(key, self.resync).is_some()
    }

    /// Asks the apiserver for the target's resource or state. Follows nothing: the spec may have changed by the time of
    /// the answer.
    pub(super) async fn look(
        &self,
        object: &TrackedField,
        lane: &Lane,
    ) -> Result<Answer, TrackError> {
        let target = &object.spec.target;
        if let Lane::Discovery(_) = lane {
            self.resolver
                .resolve(&self.client, target, self.turn(target))
                .await?;
            return Ok(Answer::Discovered);
        }
        let Some((tracked, _)) = self.target(object)? else {
            return Ok(Answer::Discovered);
        };
        let key = ObjectKey::of(object);
        if let Some(asked) = self.tracker.unread(&key, self.resync) {
            match tracked.api.get_opt(&target.name).await {
                Ok(found) => {
                    self.take(object, tracked.target, lane, asked, found)
                        .await?;
                }
                Err(kube::Error::Api(status)) if status.code == 403 => {
                    let message = status.message.clone();
                    return Err(WaitingReason::Forbidden {
                        resource: tracked.target.resource,
                        message,
                    }
                    .into());
                }
                Err(error) => return Err(Error::api("the target could not be read")(error).into()),
            }
        }
        Ok(Answer::Read)
    }

    /// Takes the result of a read: large objects and expensive lookups apart from the async workers.
    async fn take(
        &self,
        object: &TrackedField,
        target: TargetKey,
        lane: &Lane,
        asked: ReadTicket,
        found: Option<RawObject>,
    ) -> Result<(), Error> {
        let (key, identity) = (ObjectKey::of(object), FollowIdentity::of(object));
        let is_apart =
            |found: &RawObject| found.text_len() > AT_ONCE || matches!(lane, Lane::Apart(_));
        let found = match found {
            Some(found) if is_apart(&found) => found,
            found => {
                self.tracker.read(&key, &identity, &target, asked, found);
                return Ok(());
            }
        };
        let tracker = Arc::clone(&self.tracker);
        let permit = tracker.background.acquire().await.map_err(not_inspected)?;
        // What has begun is not in vain if the request times out meanwhile.
        let read = tokio::spawn(async move {
            tracker
                .read_apart((&key, &identity), &target, asked, found, permit)
                .await
        });
        match read.await {
            Ok(taken) => taken.map_err(not_inspected),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => resume_unwind(panic),
                Err(error) => Err(not_inspected(error)),
            },
        }
    }
}

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
pub(super) type Answered = Result<Result<Answer, TrackError>, Box<dyn Any + Send>>;

/// Requests about targets, at most one for each `TrackedField`.
pub struct Reads {
    state: Mutex<ReadsState>,
    all: Semaphore,
    objects: Semaphore,
}

#[derive(Default)]
struct ReadsState {
    tickets: HashMap<ObjectKey, Ticket>,
    /// Causes of failed last requests, until a request succeeds or none is needed.
    failures: HashMap<ObjectKey, (FollowIdentity, WaitingReason)>,
    lanes: HashMap<Lane, LaneQueue>,
    /// For each resource, one read at a time of an object with expensive lookups: they wait with their text for their turn, and an
    /// apiserver that hangs mostly does so for one resource.
    apart: HashMap<ResourceName, Arc<Semaphore>>,
    /// Number of the last ticket.
    last: u64,
}

struct Ticket {
    number: u64,
    identity: FollowIdentity,
    answer: Option<Answered>,
}

#[derive(Default)]
struct LaneQueue {
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
    fn state(&self) -> MutexGuard<'_, ReadsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests an answer for `object`, unless a request is already in flight.
    pub(super) fn ask(&self, targets: &Arc<Targets>, object: &Arc<TrackedField>, lane: Lane) {
        let (key, identity) = (ObjectKey::of(object.as_ref()), FollowIdentity::of(object));
        let mut state = self.state();
        if state
            .tickets
            .get(&key)
            .is_some_and(|ticket| ticket.identity == identity)
        {
            return;
        }
        state.last += 1;
        let number = state.last;
        state.tickets.insert(
            key,
            Ticket {
                number,
                identity,
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
    pub(super) fn take(&self, key: &ObjectKey, identity: &FollowIdentity) -> Option<Answered> {
        let mut state = self.state();
        if state
            .tickets
            .get(key)
            .is_some_and(|ticket| ticket.identity == *identity && ticket.answer.is_none())
        {
            return None;
        }
        let answer = state
            .tickets
            .remove(key)
            .filter(|ticket| ticket.identity == *identity)?
            .answer;
        if let Some(Ok(Err(untracked))) = &answer {
            state
                .failures
                .insert(key.clone(), (identity.clone(), untracked.waiting.clone()));
        } else {
            state.failures.remove(key);
        }
        answer
    }

    /// Returns why the last request for this `TrackedField` failed.
    pub(super) fn failure(
        &self,
        key: &ObjectKey,
        identity: &FollowIdentity,
    ) -> Option<WaitingReason> {
        let state = self.state();
        state
            .failures
            .get(key)
            .filter(|(of, _)| of == identity)
            .map(|(_, waiting)| waiting.clone())
    }

    /// Records that this `TrackedField` needs no request.
    pub(super) fn needless(&self, key: &ObjectKey) {
        self.state().failures.remove(key);
    }

    /// Forgets a deleted `TrackedField`.
    pub(super) fn forget(&self, key: &ObjectKey) {
        let mut state = self.state();
        state.tickets.remove(key);
        state.failures.remove(key);
    }

    /// Returns the next `TrackedField` of a lane whose answer is still awaited.
    fn next(&self, lane: &Lane) -> Option<(u64, Arc<TrackedField>)> {
        let mut state = self.state();
        let ReadsState { tickets, lanes, .. } = &mut *state;
        let queue = lanes.get_mut(lane)?;
        while let Some((number, object)) = queue.waiting.pop_front() {
            if tickets
                .get(&ObjectKey::of(object.as_ref()))
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
    fn answered(&self, key: &ObjectKey, number: u64, answer: Answered, leads: bool) -> bool {
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

fn unanswered(limit: Duration) -> Error {
    unreadable(format!(
        "the target could not be read: the apiserver did not answer within {limit:?}"
    ))
}

/// Sends the requests of a lane one by one.
async fn run(targets: Arc<Targets>, lane: Lane) {
    let all = async {
        while let Some((number, object)) = targets.reads.next(&lane) {
            let key = ObjectKey::of(object.as_ref());
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
                targets.controller,
                &TrackedField::group(&()),
                &TrackedField::kind(&()),
                &key,
            );
            let look = tokio::time::timeout(limit, targets.look(&object, &lane)).instrument(span);
            let answer = AssertUnwindSafe(look).catch_unwind().await;
            drop(permit);
            let answer =
                answer.map(|in_time| in_time.unwrap_or_else(|_| Err(unanswered(limit).into())));
            if let Err(panic) = &answer {
                error!(panic = tasks::panic_message(&**panic), trackedField = %key, "asking for the target panicked");
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
    use qm_runtime::WatchScope;
    use qm_runtime::health::Probes;
    use qm_runtime::metrics::Metrics;
    use qm_runtime::tasks::Tasks;
    use qm_runtime::trigger::Trigger;
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
        let watchdog = Probes::new().watchdog("targets", Duration::from_mins(1));
        let observer = Arc::clone(&tracker) as _;
        let (scope, metrics) = (WatchScope::of(&[].into()), Metrics::new(&crate::PROGRAM));
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
            controller: "trackedfield",
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
            if let Some(answer) = targets
                .reads
                .take(&ObjectKey::of(field), &FollowIdentity::of(field))
            {
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
            tasks::panic_message(&*answer(&targets, &fields[0]).await.unwrap_err()),
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
                .failure(&ObjectKey::of(field.as_ref()), &FollowIdentity::of(field));
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
                .take(&ObjectKey::of(now.as_ref()), &FollowIdentity::of(&now))
                .is_none()
        );
        assert!(targets.ask(&now, None));
        assert!(answer(&targets, &now).await.unwrap().is_err());
        assert!(
            targets
                .reads
                .take(
                    &ObjectKey::of(before.as_ref()),
                    &FollowIdentity::of(&before)
                )
                .is_none()
        );
    }
}
