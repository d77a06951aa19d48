//! Queue around the reconciles of one controller: a timeout, a guard against panics, backoff after failures, a limit on
//! concurrent reconciles, a log line and metrics.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt, future};
use kube::core::Status;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use qm_core::kind::Kind;
use rand::seq::{IteratorRandom as _, SliceRandom as _};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, error, warn};

use super::ObjectKey;
use super::availability::{self, Availability};
use super::backoff::{BackoffPolicy, Backoffs};
use super::error::{Class, Error};
use super::health::Watchdog;
use super::metrics::{ControllerMetrics, Metrics, QueueState, ReconcileResult};
use super::outcome::Requeue;
use super::trigger::Trigger;
use super::{tasks, telemetry};

/// Reconciles of one kind, as the runner runs them.
pub(super) trait Reconcile: Send + Sync + 'static {
    /// Kind of the objects.
    type Object: Kind + Clone + Debug + Send + Sync + 'static;

    /// Reconciles one object. The runner never runs two reconciles of one object at once, and may drop the future at any await.
    fn reconcile(
        &self,
        object: Arc<Self::Object>,
    ) -> impl Future<Output = Result<Requeue, Failure>> + Send;

    /// Starts to lead, before the first reconcile: state observed as a standby may be stale.
    fn lead(&self) {}

    /// Returns the interval of reconciles that nothing triggers; `default` is the one of the settings.
    fn resync(&self, default: Duration) -> Duration {
        default
    }

    /// Forgets a deleted object. The runner calls this again whenever something triggers the object, because a reconcile in
    /// flight at the deletion may have left something behind.
    fn forget(&self, _key: &ObjectKey) {}
}

/// A failed reconcile, with the class that decides when to retry.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub(super) struct Failure {
    pub class: Class,
    #[source]
    pub error: Error,
}

/// Finds the status that the apiserver answered with among the causes of an error.
fn api_status<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a Status> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(kube::Error::Api(status)) = error.downcast_ref() {
            return Some(status);
        }
        cause = error.source();
    }
    None
}

/// Returns whether the apiserver failed, rather than an admission or conversion webhook.
fn is_server_error(status: &Status) -> bool {
    status.code >= 500 && !status.message.contains("webhook")
}

/// Time over which objects are retried after an outage, however many there are: with the delay until a probe notices
/// the apiserver's return the total stays well below 30 s.
const SPREAD: Duration = Duration::from_secs(12);
/// Longest time between the retries of one object each while the apiserver stores no writes; jitter at most halves it.
const CANARY: Duration = Duration::from_secs(8);
/// Longest time between two such retries.
const STEP: Duration = Duration::from_millis(50);
/// Backoff between returns of the apiserver that trigger retries; reset once the apiserver has not returned for the
/// longest delay.
const RETURNS: BackoffPolicy = BackoffPolicy {
    min: Duration::from_secs(6),
    max: Duration::from_mins(5),
};

/// Generation and `requested-at` of an object: with a new value the delays start again.
type TriggerKey = (Option<i64>, Option<String>);

/// Limits of the reconciles of one controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReconcileLimits {
    /// Most concurrent reconciles.
    pub concurrency: u16,
    /// Timeout of one reconcile.
    pub timeout: Duration,
    /// Delays after failures.
    pub failed: BackoffPolicy,
    /// Delays after failures that somebody has to fix outside the object.
    pub slow: BackoffPolicy,
    /// Delays while an object waits.
    pub waiting: BackoffPolicy,
    /// Interval of reconciles that nothing triggers.
    pub resync: Duration,
}

/// Controller that is ready to run.
pub(super) struct Runner<R: Reconcile> {
    name: &'static str,
    reconciler: Arc<R>,
    limits: ReconcileLimits,
    metrics: ControllerMetrics,
    availability: Availability,
    watchdog: Watchdog,
    running: TaskTracker,
    /// Objects whose last reconcile failed for a transient reason, or during an outage, with the time until which the
    /// apiserver asked them to wait.
    transient: Mutex<HashMap<ObjectRef<R::Object>, Option<Instant>>>,
    failed: Backoffs<ObjectRef<R::Object>>,
    slow: Backoffs<ObjectRef<R::Object>>,
    waiting: Backoffs<ObjectRef<R::Object>>,
    work: Arc<Mutex<Work<ObjectRef<R::Object>>>>,
}

/// Queue of a controller, oldest first. The queue of kube's `Controller` takes any due object, so that under load some
/// wait forever (kube 5: `Scheduler::pending` is a set).
struct Work<O> {
    objects: HashMap<O, Item>,
    /// Queued objects that are not being reconciled, in the order of their next reconciles.
    queue: BTreeMap<QueueKey, O>,
    /// Number of places given so far.
    keys_given: u64,
    /// Objects that are being reconciled, and when each reconcile began.
    running: HashMap<O, Instant>,
}

/// Place in the queue: when the reconcile may begin, and a unique number.
type QueueKey = (Instant, u64);

/// An object that was reconciled, or waits for its reconcile.
#[derive(Default)]
struct Item {
    /// Key of the last trigger.
    requested: Option<TriggerKey>,
    /// Place of the next reconcile.
    due: Option<Due>,
}

#[derive(Clone, Copy)]
struct Due {
    key: QueueKey,
    /// True if the clock made the object due, rather than a trigger.
    timed: bool,
}

impl<O: Clone + Eq + Hash> Work<O> {
    fn new() -> Self {
        Self {
            objects: HashMap::new(),
            queue: BTreeMap::new(),
            keys_given: 0,
            running: HashMap::new(),
        }
    }

    /// Makes an object due. Returns whether that is an addition to the queue.
    fn triggered(&mut self, object: O, now: Instant) -> bool {
        let due = self.objects.get(&object).and_then(|item| item.due);
        let added = due.is_none_or(|due| due.key.0 > now);
        if added {
            if let Some(due) = due {
                self.queue.remove(&due.key);
            }
            self.add(object, now, false);
        }
        added
    }

    fn add(&mut self, object: O, at: Instant, timed: bool) {
        let key = (at, self.keys_given);
        self.keys_given += 1;
        self.objects.entry(object.clone()).or_default().due = Some(Due { key, timed });
        if !self.running.contains_key(&object) {
            self.queue.insert(key, object);
        }
    }

    /// Takes the object that has been due for longest, if any.
    fn next(&mut self, now: Instant) -> Option<O> {
        let first = self.queue.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// Returns when the next object is due.
    fn next_due(&self) -> Option<Instant> {
        self.queue.first_key_value().map(|((at, _), _)| *at)
    }

    /// Marks the start of a reconcile. Returns how long the object was due, and whether the clock made it due (such additions
    /// are counted only now).
    fn began(&mut self, object: O, now: Instant) -> Option<(Duration, bool)> {
        let due = self
            .objects
            .get_mut(&object)
            .and_then(|item| item.due.take());
        self.running.insert(object, now);
        let due = due?;
        self.queue.remove(&due.key);
        Some((now.saturating_duration_since(due.key.0), due.timed))
    }

    /// Marks the end of a reconcile; the next one is due at `next` at the latest.
    fn ended(&mut self, object: O, next: Instant) {
        self.running.remove(&object);
        match self.objects.get(&object).and_then(|item| item.due) {
            Some(due) => _ = self.queue.insert(due.key, object),
            None => self.add(object, next, true),
        }
    }

    fn forget(&mut self, object: &O) {
        if let Some(due) = self.objects.remove(object).and_then(|item| item.due) {
            self.queue.remove(&due.key);
        }
    }

    fn state(&self, now: Instant) -> QueueState {
        let due = self
            .objects
            .values()
            .filter_map(|item| item.due)
            .filter(|due| due.key.0 <= now);
        let unfinished = self
            .running
            .values()
            .map(|began| now.saturating_duration_since(*began));
        QueueState {
            depth: due.count(),
            unfinished: unfinished.sum(),
        }
    }
}

/// Waits until this time; forever without a time.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => future::pending().await,
    }
}

impl<R: Reconcile> Runner<R> {
    /// Creates a controller; logs and metrics call it `name`. `running` tracks each reconcile; none begins once
    /// `running` is closed. Objects that failed for a transient reason are retried when `availability` reports the
    /// apiserver's return.
    pub fn new(
        name: &'static str,
        reconciler: Arc<R>,
        limits: ReconcileLimits,
        metrics: &Metrics,
        availability: Availability,
        watchdog: Watchdog,
        running: TaskTracker,
    ) -> Self {
        let work = Arc::new(Mutex::new(Work::new()));
        metrics.set_queue(name, {
            let work = Arc::clone(&work);
            move || {
                work.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .state(Instant::now())
            }
        });
        Self {
            name,
            reconciler,
            limits,
            metrics: metrics.controller(name, limits.concurrency.into()),
            availability,
            watchdog,
            running,
            transient: Mutex::default(),
            failed: Backoffs::new(limits.failed),
            slow: Backoffs::new(limits.slow),
            waiting: Backoffs::new(limits.waiting),
            work,
        }
    }

    /// Notifies the controller that this replica begins to lead.
    pub fn lead(&self) {
        self.reconciler.lead();
    }

    /// Reconciles every object of the store, then each triggered object, until the future is dropped.
    pub async fn run(self, store: Store<R::Object>, trigger: Trigger<R::Object>) {
        let mut woken = trigger.open();
        // The writer is dropped only while the process ends.
        if store.wait_until_ready().await.is_err() {
            return;
        }
        for object in store.state() {
            self.triggered(ObjectRef::from_obj(object.as_ref()));
        }
        let mut retries = pin!(self.retry_after_outages(&trigger));
        let mut reconciles = FuturesUnordered::new();
        let limit = usize::from(self.limits.concurrency).max(1);
        loop {
            while reconciles.len() < limit
                && let Some(next) = self.next()
            {
                match store.get(&next) {
                    Some(object) => reconciles.push(self.reconcile(object).boxed()),
                    None => self.forget_deleted(&next),
                }
            }
            let due = if reconciles.len() < limit {
                self.next_due()
            } else {
                None
            };
            tokio::select! {
                request = woken.recv() => match request {
                    Some(object) => self.triggered(object),
                    // The sender is dropped only while the process ends.
                    None => return,
                },
                Some(()) = reconciles.next() => {}
                () = until(due) => {}
                () = &mut retries => return,
            }
        }
    }

    fn triggered(&self, object: ObjectRef<R::Object>) {
        if self.work().triggered(object, Instant::now()) {
            self.metrics.added();
        }
    }

    fn next(&self) -> Option<ObjectRef<R::Object>> {
        self.work().next(Instant::now())
    }

    fn next_due(&self) -> Option<Instant> {
        self.work().next_due()
    }

    fn forget_deleted(&self, object: &ObjectRef<R::Object>) {
        self.forget(object);
        self.reconciler.forget(&ObjectKey::new(
            object.namespace.as_deref().unwrap_or_default(),
            &object.name,
        ));
    }

    /// Retries the objects that failed for a transient reason after each outage of the apiserver, one by one in random
    /// order, and resets their backoff. Never returns.
    async fn retry_after_outages(&self, trigger: &Trigger<R::Object>) {
        let mut returns = self.availability.returns();
        let (mut next, mut pauses) = (Instant::now(), RETURNS.start());
        loop {
            tokio::select! {
                // The sender is dropped only while the process ends.
                changed = returns.changed() => if changed.is_err() { return },
                () = sleep(CANARY.mul_f64(rand::random_range(0.5..1.0))) => {
                    self.retry_one(trigger);
                    continue;
                }
            }
            // An apiserver that returns again and again must not disable the backoff.
            if next.elapsed() > RETURNS.max {
                pauses = RETURNS.start();
            }
            sleep_until(next).await;
            let began = Instant::now();
            let mut keys: Vec<_> = self.transient().keys().cloned().collect();
            keys.shuffle(&mut rand::rng());
            let step = (SPREAD / u32::try_from(keys.len()).unwrap_or(u32::MAX).max(1)).min(STEP);
            for (turn, key) in (0..).zip(keys) {
                sleep_until(began + step * turn + step.mul_f64(rand::random_range(0.0..1.0))).await;
                // Another trigger may have been faster.
                if self.transient().contains_key(&key) {
                    self.reset(&key);
                    trigger.wake(&ObjectKey::new(
                        key.namespace.as_deref().unwrap_or_default(),
                        &key.name,
                    ));
                }
            }
            next = Instant::now() + pauses.next_delay();
        }
    }

    /// Retries one of the failed objects while the apiserver stores no writes, to notice when it does.
    fn retry_one(&self, trigger: &Trigger<R::Object>) {
        if self.availability.stores_nothing()
            && let Some(key) = self.transient().keys().choose(&mut rand::rng())
        {
            trigger.wake(&ObjectKey::new(
                key.namespace.as_deref().unwrap_or_default(),
                &key.name,
            ));
        }
    }

    fn transient(&self) -> MutexGuard<'_, HashMap<ObjectRef<R::Object>, Option<Instant>>> {
        self.transient
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) -> MutexGuard<'_, Work<ObjectRef<R::Object>>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resets all delays of an object.
    fn reset(&self, key: &ObjectRef<R::Object>) {
        for backoffs in [&self.failed, &self.slow, &self.waiting] {
            backoffs.reset(key);
        }
    }

    fn forget(&self, key: &ObjectRef<R::Object>) {
        self.reset(key);
        self.transient().remove(key);
        self.work().forget(key);
    }

    /// Returns whether the spec has changed or a reconcile was requested since the last one.
    fn requested(&self, key: &ObjectRef<R::Object>, object: &R::Object) -> bool {
        let trigger = (
            object.meta().generation,
            object
                .annotations()
                .get(R::Object::NAMES.requested_at)
                .cloned(),
        );
        let mut work = self.work();
        let item = work.objects.entry(key.clone()).or_default();
        item.requested.replace(trigger.clone()) != Some(trigger)
    }

    async fn reconcile(&self, object: Arc<R::Object>) {
        let _running = self.running.token();
        if self.running.is_closed() {
            return;
        }
        let key = ObjectRef::from_obj(object.as_ref());
        if let Some((waited, timed)) = self.work().began(key.clone(), Instant::now()) {
            if timed {
                self.metrics.added();
            }
            self.metrics.queued(waited);
        }
        let delay = self.unless_paused(&key, object).await;
        self.work().ended(key, Instant::now() + delay);
    }

    /// Reconciles, unless the apiserver asked to wait. Returns the delay until the next reconcile.
    async fn unless_paused(&self, key: &ObjectRef<R::Object>, object: Arc<R::Object>) -> Duration {
        // The apiserver's request to wait applies to every trigger.
        let until = self.transient().get(key).copied().flatten();
        let left = until.map_or(Duration::ZERO, |until| {
            until.saturating_duration_since(Instant::now())
        });
        if !left.is_zero() {
            return left;
        }
        if self.requested(key, &object) {
            self.reset(key);
        }
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let span = telemetry::reconcile(
            self.name,
            &R::Object::group(&()),
            &R::Object::kind(&()),
            namespace,
            &key.name,
        );
        self.run_reconcile(key, object).instrument(span).await
    }

    async fn run_reconcile(&self, key: &ObjectRef<R::Object>, object: Arc<R::Object>) -> Duration {
        let (began, returns) = (Instant::now(), self.availability.returned());
        let paused = self.availability.paused_until();
        self.transient().remove(key);
        let _active = self.metrics.started();
        let _busy = self.watchdog.busy();
        let reconcile = AssertUnwindSafe(self.reconciler.reconcile(object)).catch_unwind();
        let ended = timeout(self.limits.timeout, reconcile).await;
        if self.availability.returned() != returns {
            // Any failure would be due to an outage that is over.
            self.failed.reset(key);
        }
        let (result, delay) = match ended {
            Ok(Ok(Ok(requeue))) => self.succeeded(key, requeue),
            Ok(Ok(Err(failure))) => self.failed(key, &failure, paused),
            Ok(Err(panic)) => {
                error!(
                    panic = tasks::panic_message(&*panic),
                    "reconcile panicked; will retry"
                );
                self.metrics.panicked();
                (ReconcileResult::Error, self.failed.next_delay(key))
            }
            Err(_) => {
                warn!(timeout = ?self.limits.timeout, "reconcile timed out; will retry");
                self.transient().insert(key.clone(), None);
                (ReconcileResult::Error, self.failed.next_delay(key))
            }
        };
        if result == ReconcileResult::Error {
            telemetry::traces::failed();
        }
        self.metrics.reconciled(result, began.elapsed());
        delay
    }

    fn succeeded(
        &self,
        key: &ObjectRef<R::Object>,
        requeue: Requeue,
    ) -> (ReconcileResult, Duration) {
        debug!(?requeue, "reconciled");
        if !matches!(requeue, Requeue::InFlight(_)) {
            self.failed.reset(key);
            self.slow.reset(key);
            if requeue != Requeue::Poll {
                self.waiting.reset(key);
            }
        }
        match requeue {
            Requeue::OnChange => (ReconcileResult::Success, self.resync()),
            Requeue::Poll => (ReconcileResult::RequeueAfter, self.waiting.next_delay(key)),
            Requeue::After(delay) | Requeue::InFlight(delay) => {
                (ReconcileResult::RequeueAfter, delay)
            }
        }
    }

    /// Returns the resync period with jitter, so that not all objects are due at once.
    fn resync(&self) -> Duration {
        self.reconciler
            .resync(self.limits.resync)
            .mul_f64(rand::random_range(1.0..1.2))
    }

    /// Returns until when the apiserver asked this object to wait, if its reconcile got a 429. A later conflict may hide the
    /// 429, so with a conflict any new pause counts. `paused` is the pause from before.
    fn asked_to_wait(
        &self,
        error: &(dyn std::error::Error + 'static),
        paused: Option<Instant>,
    ) -> Option<Instant> {
        let now_paused = self.availability.paused_until();
        let new = now_paused.filter(|_| now_paused != paused);
        let status = match api_status(error) {
            Some(status) if status.code == 429 => status,
            Some(status) if status.code == 409 => return new,
            // Another object got the 429.
            _ => return None,
        };
        let seconds = status
            .details
            .as_ref()
            .map_or(0, |details| details.retry_after_seconds);
        match seconds {
            // Priority and fairness answers with plain text: only the header has the delay.
            0 => now_paused,
            seconds => new.max(Some(Instant::now() + availability::pause(seconds))),
        }
    }

    fn failed(
        &self,
        key: &ObjectRef<R::Object>,
        failure: &Failure,
        paused: Option<Instant>,
    ) -> (ReconcileResult, Duration) {
        let error = failure as &dyn std::error::Error;
        let class = failure.class;
        let until = self.asked_to_wait(error, paused);
        let transient =
            class == Class::Transient || (class != Class::Stale && self.availability.is_out());
        if api_status(error).is_some_and(is_server_error) {
            self.availability.reconcile_failed();
        }
        if transient || until.is_some() {
            self.transient().insert(key.clone(), until);
        }
        let left = until.map_or(Duration::ZERO, |until| {
            until.saturating_duration_since(Instant::now())
        });
        match class {
            Class::Terminal => {
                warn!(
                    error,
                    "reconcile failed; will retry when the object changes"
                );
                (ReconcileResult::Error, self.resync())
            }
            class @ (Class::Transient | Class::Slow) => {
                let backoffs = if class == Class::Slow {
                    &self.slow
                } else {
                    &self.failed
                };
                let delay = backoffs.next_delay(key).max(left);
                warn!(error, ?delay, "reconcile failed; will retry");
                (ReconcileResult::Error, delay)
            }
            Class::Waiting => {
                debug!(error, "object waits; will reconcile again");
                (
                    ReconcileResult::RequeueAfter,
                    self.waiting.next_delay(key).max(left),
                )
            }
            Class::Stale => {
                debug!(error, "conflict; requeued");
                (
                    ReconcileResult::Requeue,
                    self.failed.next_delay(key).max(left),
                )
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use kube::runtime::reflector::store::Writer;
    use kube::runtime::watcher::Event;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::cache::empty_store;
    use crate::health::Probes;
    use crate::testing::{PROGRAM, Widget};

    #[tokio::test(start_paused = true)]
    async fn queue_counts_what_is_due_and_what_runs() {
        let second = Duration::from_secs(1);
        let (mut work, start) = (Work::new(), Instant::now());
        let depth =
            |work: &Work<&str>, at: Instant| (work.state(at).depth, work.state(at).unfinished);
        assert!(
            work.triggered("a", start) && !work.triggered("a", start),
            "once while it waits"
        );
        assert!(work.triggered("b", start));
        assert_eq!(depth(&work, start), (2, Duration::ZERO));
        assert_eq!(work.began("a", start + second), Some((second, false)));
        assert_eq!(depth(&work, start + 3 * second), (1, 2 * second));
        assert!(
            work.triggered("a", start + 3 * second),
            "again while it runs"
        );
        work.ended("a", start + 60 * second);
        assert_eq!(
            work.began("a", start + 5 * second),
            Some((2 * second, false)),
            "woken before the clock"
        );
        work.ended("a", start + 60 * second);
        assert_eq!(depth(&work, start + 59 * second).0, 1);
        assert_eq!(depth(&work, start + 60 * second).0, 2, "by the clock");
        assert_eq!(work.began("a", start + 61 * second), Some((second, true)));
        assert_eq!(work.began("c", start), None, "unknown");
    }

    fn failure(status: serde_json::Value) -> Failure {
        let source = kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()));
        Failure {
            class: Class::of(&source),
            error: Error::api("not written")(source),
        }
    }

    fn conflict() -> Failure {
        failure(json!({ "status": "Failure", "message": "", "reason": "Conflict", "code": 409 }))
    }

    /// Controller whose reconciles fail with this status, or succeed without one; it records the start of each.
    #[derive(Default)]
    struct Failing {
        status: Mutex<Option<serde_json::Value>>,
        began: Mutex<Vec<Instant>>,
    }

    impl Failing {
        fn count(&self) -> usize {
            self.began.lock().unwrap().len()
        }
    }

    impl Reconcile for Failing {
        type Object = Widget;

        async fn reconcile(&self, _: Arc<Widget>) -> Result<Requeue, Failure> {
            self.began.lock().unwrap().push(Instant::now());
            match &*self.status.lock().unwrap() {
                Some(status) => Err(failure(status.clone())),
                None => Ok(Requeue::OnChange),
            }
        }
    }

    /// Controller whose reconciles take a while and trigger the next one at once, as under load; it counts those of
    /// each object.
    struct Busy {
        trigger: Trigger<Widget>,
        counts: Mutex<HashMap<String, u32>>,
    }

    impl Reconcile for Busy {
        type Object = Widget;

        async fn reconcile(&self, object: Arc<Widget>) -> Result<Requeue, Failure> {
            sleep(Duration::from_millis(10)).await;
            *self
                .counts
                .lock()
                .unwrap()
                .entry(object.name_any())
                .or_default() += 1;
            self.trigger.wake(&ObjectKey::of(object.as_ref()));
            Ok(Requeue::OnChange)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_object_starves_under_load() {
        const OBJECTS: usize = 50;
        let trigger = Trigger::default();
        let busy = Arc::new(Busy {
            trigger: trigger.clone(),
            counts: Mutex::default(),
        });
        let (limits, (store, writer)) = (limits(2), filled(OBJECTS));
        let (health, metrics) = (
            Probes::new().watchdog("busy", limits.resync),
            Metrics::new(&PROGRAM),
        );
        let tracker = TaskTracker::new();
        let runner = Runner::new(
            "busy",
            busy.clone(),
            limits,
            &metrics,
            Availability::default(),
            health,
            tracker,
        );
        let running = tokio::spawn(async move {
            let _writer = writer;
            runner.run(store, trigger).await;
        });
        sleep(Duration::from_secs(10)).await;
        running.abort();
        let counts = busy.counts.lock().unwrap();
        let (least, most) = (
            counts.values().min().unwrap(),
            counts.values().max().unwrap(),
        );
        assert!(
            counts.len() == OBJECTS && most - least <= 1,
            "{least} to {most} reconciles, of {} objects",
            counts.len()
        );
    }

    /// The unfinished request may fail each time its response arrives.
    #[test]
    fn unfinished_reconcile_does_not_reset_the_delays() {
        let policy = BackoffPolicy {
            min: Duration::from_secs(1),
            max: Duration::from_hours(1),
        };
        let limits = ReconcileLimits {
            concurrency: 1,
            timeout: policy.max,
            failed: policy,
            slow: policy,
            waiting: policy,
            resync: policy.max,
        };
        let watchdog = Probes::new().watchdog("idle", policy.max);
        let runner = Runner::new(
            "idle",
            Arc::new(Failing::default()),
            limits,
            &Metrics::new(&PROGRAM),
            Availability::default(),
            watchdog,
            TaskTracker::new(),
        );
        let key = ObjectRef::new("x").within("a");
        for least in [1, 2, 4] {
            for backoffs in [&runner.failed, &runner.slow, &runner.waiting] {
                assert!(backoffs.next_delay(&key) >= Duration::from_secs(least));
            }
            runner.succeeded(&key, Requeue::InFlight(Duration::ZERO));
        }
        runner.succeeded(&key, Requeue::OnChange);
        for backoffs in [&runner.failed, &runner.slow, &runner.waiting] {
            assert!(backoffs.next_delay(&key) <= Duration::from_secs(2));
        }
    }

    fn unavailable() -> serde_json::Value {
        json!({ "status": "Failure", "message": "", "reason": "ServiceUnavailable", "code": 503 })
    }

    /// Returns limits whose delays are an hour.
    fn limits(concurrency: u16) -> ReconcileLimits {
        let hour = Duration::from_hours(1);
        let policy = BackoffPolicy {
            min: hour,
            max: hour,
        };
        ReconcileLimits {
            concurrency,
            timeout: hour,
            failed: policy,
            slow: policy,
            waiting: policy,
            resync: hour * 24,
        }
    }

    /// Returns a store of that many objects, and its writer.
    fn filled(objects: usize) -> (Store<Widget>, Writer<Widget>) {
        let (store, mut writer) = empty_store();
        for number in 0..objects {
            let mut object = Widget::default();
            (object.metadata.name, object.metadata.namespace) =
                (Some(format!("o-{number}")), Some("n".into()));
            writer.apply_watcher_event(&Event::Apply(object));
        }
        (store, writer)
    }

    /// Runs a controller of `objects` objects whose failures are retried after an hour.
    fn run(
        objects: usize,
        status: serde_json::Value,
        availability: &Availability,
    ) -> (Arc<Failing>, Trigger<Widget>) {
        let (store, writer) = filled(objects);
        let (hour, metrics) = (Duration::from_hours(1), Metrics::new(&PROGRAM));
        let limits = limits(16);
        let reconciler = Arc::new(Failing {
            status: Mutex::new(Some(status)),
            ..Failing::default()
        });
        let watchdog = Probes::new().watchdog("test", hour);
        let availability = availability.clone();
        let runner = Runner::new(
            "test",
            reconciler.clone(),
            limits,
            &metrics,
            availability,
            watchdog,
            TaskTracker::new(),
        );
        let trigger = Trigger::default();
        let woken = trigger.clone();
        tokio::spawn(async move {
            // The store lasts as long as its writer.
            let _writer = writer;
            runner.run(store, woken).await;
        });
        (reconciler, trigger)
    }

    #[tokio::test(start_paused = true)]
    async fn failed_objects_are_retried_spread_after_an_outage() {
        const OBJECTS: usize = 3000;
        let availability = Availability::default();
        let (failing, _trigger) = run(OBJECTS, unavailable(), &availability);
        sleep(Duration::from_mins(10)).await;
        assert_eq!(failing.count(), OBJECTS);
        *failing.status.lock().unwrap() = None;
        let back = Instant::now();
        availability.come_back();
        sleep(Duration::from_mins(10)).await;
        let began: Vec<_> = failing.began.lock().unwrap()[OBJECTS..]
            .iter()
            .map(|at| *at - back)
            .collect();
        assert_eq!(began.len(), OBJECTS, "each once");
        assert!(
            began
                .iter()
                .all(|at| *at <= SPREAD + Duration::from_secs(1)),
            "{:?}",
            began.last()
        );
        for second in 0..SPREAD.as_secs() {
            let within = began.iter().filter(|at| at.as_secs() == second).count();
            assert!(within <= OBJECTS / 6, "{within} in second {second}");
        }
        availability.come_back();
        sleep(Duration::from_mins(10)).await;
        assert_eq!(
            failing.count(),
            2 * OBJECTS,
            "none that succeeded is retried"
        );
    }

    /// The failed objects are retried one by one until a write succeeds, then all of them.
    #[tokio::test(start_paused = true)]
    async fn failed_objects_are_retried_soon_after_writes_succeed_again() {
        const OBJECTS: usize = 300;
        let availability = Availability::default();
        let (failing, _trigger) = run(OBJECTS, unavailable(), &availability);
        sleep(Duration::from_mins(10)).await;
        assert_eq!(failing.count(), OBJECTS, "the backoff is long");
        availability.store_nothing();
        sleep(Duration::from_mins(10)).await;
        let canaries = failing.count() - OBJECTS;
        assert!(
            (70..160).contains(&canaries),
            "{canaries} retries in ten minutes"
        );
        *failing.status.lock().unwrap() = None;
        sleep(CANARY + Duration::from_secs(1)).await;
        availability.answered(true, Some(200), None);
        sleep(SPREAD + Duration::from_secs(1)).await;
        let count = failing.count();
        assert!(
            count >= 2 * OBJECTS + canaries && count <= 2 * OBJECTS + canaries + 4,
            "{count}"
        );
        sleep(Duration::from_mins(10)).await;
        assert_eq!(failing.count(), count, "none that succeeded is retried");
    }

    #[rstest]
    #[case::no_space(500, "etcdserver: mvcc: database space exceeded", true)]
    #[case::unavailable(503, "", true)]
    #[case::a_webhook(
        500,
        "Internal error occurred: failed calling webhook \"a.b.c\"",
        false
    )]
    #[case::invalid(422, "", false)]
    fn apiserver_error_differs_from_a_webhook_error(
        #[case] code: u16,
        #[case] message: &str,
        #[case] failed: bool,
    ) {
        let status = json!({ "status": "Failure", "message": message, "reason": "", "code": code });
        assert_eq!(
            is_server_error(&serde_json::from_value(status).unwrap()),
            failed
        );
    }

    #[tokio::test(start_paused = true)]
    async fn apiserver_that_flaps_does_not_defeat_the_backoff() {
        let availability = Availability::default();
        let (failing, _trigger) = run(1, unavailable(), &availability);
        for _ in 0..3600 / 5 {
            sleep(Duration::from_secs(5)).await;
            availability.come_back();
        }
        let count = failing.count();
        assert!((10..40).contains(&count), "{count} reconciles in an hour");
        let began = failing.began.lock().unwrap().clone();
        let last = began
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .next_back()
            .unwrap();
        assert!(last > Duration::from_mins(2), "the pauses grow: {last:?}");
    }

    #[rstest]
    #[case::in_the_body(Some(20), None)]
    #[case::in_the_header_alone(None, Some(20))]
    #[tokio::test(start_paused = true)]
    async fn retry_after_is_kept_for_every_trigger(
        #[case] body: Option<u32>,
        #[case] header: Option<u64>,
    ) {
        let availability = Availability::default();
        availability.answered(true, Some(429), header.map(Duration::from_secs));
        let mut status =
            json!({ "status": "Failure", "message": "", "reason": "TooManyRequests", "code": 429 });
        if let Some(seconds) = body {
            status["details"] = json!({ "retryAfterSeconds": seconds });
        }
        let (failing, trigger) = run(1, status, &availability);
        for _ in 0..15 {
            sleep(Duration::from_secs(1)).await;
            trigger.wake(&ObjectKey::new("n", "o-0"));
            availability.come_back();
        }
        assert_eq!(failing.count(), 1);
        sleep(Duration::from_secs(10)).await;
        assert!(failing.count() > 1, "what woke it is not forgotten");
    }

    /// The pause began in the reconcile, but the error shows only the last failure.
    #[test]
    fn retry_after_is_kept_when_a_later_conflict_hides_it() {
        let availability = Availability::default();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (hour, metrics) = (Duration::from_hours(1), Metrics::new(&PROGRAM));
            let policy = BackoffPolicy {
                min: Duration::from_secs(1),
                max: hour,
            };
            let limits = ReconcileLimits {
                concurrency: 1,
                timeout: hour,
                failed: policy,
                slow: policy,
                waiting: policy,
                resync: hour,
            };
            let watchdog = Probes::new().watchdog("test", hour);
            let reconciler = Arc::new(Failing::default());
            let tracker = TaskTracker::new();
            let runner = Runner::new(
                "test",
                reconciler,
                limits,
                &metrics,
                availability.clone(),
                watchdog,
                tracker,
            );
            let key = ObjectRef::new("x").within("n");
            availability.answered(true, Some(429), Some(Duration::from_secs(20)));
            let (_, action) = runner.failed(&key, &conflict(), None);
            assert_eq!(action, Duration::from_secs(20));
            let before = availability.paused_until();
            let (_, action) = runner.failed(&key, &conflict(), before);
            assert_ne!(
                action,
                Duration::from_secs(20),
                "the pause was another object's"
            );
        });
    }
}
