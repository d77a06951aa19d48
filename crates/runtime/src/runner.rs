//! Work queue of one controller. Around each reconcile: a timeout, a guard against panics, backoff after failures, a
//! limit on concurrency, a log line and metrics. The write of the status is a separate step in the same queue, because
//! under load children come before statuses.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use kube::Resource;
use kube::core::Status;
use qm_core::kind::Kind;
use rand::seq::{IteratorRandom as _, SliceRandom as _};
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::task::task_tracker::TaskTrackerToken;
use tracing::{Instrument, Span, debug, error, warn};

use super::ObjectKey;
use super::availability::{self, Availability};
use super::backoff::{BackoffPolicy, Backoffs};
use super::drain::InFlight;
use super::error::{Class, Error};
use super::health::Watchdog;
use super::metrics::{ControllerMetrics, Metrics, ReconcileResult, WorkQueueState};
use super::objects::Objects;
use super::outcome::Requeue;
use super::trigger::Trigger;
use super::{SpecRevision, tasks, telemetry, wait_until};

/// Reconciles of one kind, as the runner runs them.
pub(super) trait Reconcile: Send + Sync + 'static {
    /// Kind of the objects.
    type Object: Kind + Clone + Debug + Send + Sync + 'static;
    /// Status that a reconcile has computed, with its Event.
    type StatusUpdate: Send + 'static;

    /// Reconciles one object. The runner takes one step of an object at a time, and may drop the future at any await.
    /// `update` is the unwritten status of an earlier reconcile, if any; the reconcile replaces or keeps it.
    fn reconcile(
        &self,
        object: Arc<Self::Object>,
        update: &mut Option<Self::StatusUpdate>,
    ) -> impl Future<Output = Result<Requeue, Failure>> + Send;

    /// Writes the status and emits its Event. Returns the maximum time until the next reconcile, if there is one.
    fn write_status(
        &self,
        update: Self::StatusUpdate,
    ) -> impl Future<Output = Result<Option<Duration>, Failure>> + Send;

    /// Called when this replica becomes the leader, before the first reconcile: state observed as a standby may be
    /// stale.
    fn on_started_leading(&self) {}

    /// Forgets a deleted object. The runner calls this again whenever something triggers the object, because a
    /// reconcile in flight at the deletion may have left something behind.
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

/// Finds the apiserver's status among the causes of an error.
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
    let of_webhook = ["failed calling webhook", "conversion webhook"];
    status.code >= 500 && !of_webhook.iter().any(|it| status.message.contains(it))
}

/// Time over which all objects are retried after an outage, however many there are: with the delay until a probe
/// notices the apiserver's return, the total stays well below 30 s.
const RECOVERY_SPREAD: Duration = Duration::from_secs(12);
/// Longest interval between retries of a single object while the apiserver stores no writes; jitter at most halves it.
const SINGLE_RETRY_INTERVAL: Duration = Duration::from_secs(8);
/// Maximum time between two retries after an outage.
const MAX_RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Maximum pause after a conflict, which does not show whether the 429 was for the same object.
const UNPROVEN_PAUSE: Duration = Duration::from_secs(10);
/// Backoff between retries of all objects while the apiserver fails and recovers again and again. Reset once the
/// longest delay has passed without a recovery.
const RECOVERY_BACKOFF: BackoffPolicy = BackoffPolicy {
    min: Duration::from_secs(6),
    max: Duration::from_mins(5),
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReconcileLimits {
    /// Maximum number of concurrent reconciles.
    pub concurrency: u16,
    pub timeout: Duration,
    /// Delays after failures.
    pub failed: BackoffPolicy,
    /// Delays after failures that a person must fix outside the object.
    pub slow: BackoffPolicy,
    /// Delays while an object waits.
    pub waiting: BackoffPolicy,
    /// Interval of reconciles that nothing triggers.
    pub sync_period: Duration,
    /// Maximum time that the write of a status waits for reconciles. Meanwhile a newer status of the object may replace
    /// the waiting one. Without effect if there is a `status_interval`.
    pub max_status_delay: Duration,
    /// Minimum time between two writes of an object's status.
    pub status_interval: Duration,
}

/// Controller that is ready to run.
pub(super) struct Runner<R: Reconcile> {
    name: &'static str,
    reconciler: Arc<R>,
    limits: ReconcileLimits,
    metrics: ControllerMetrics,
    availability: Availability,
    watchdog: Watchdog,
    in_flight: InFlight,
    /// Objects to retry after an outage of the apiserver: their last reconcile failed for a transient reason, or during
    /// an outage, or the apiserver asked them to wait until this time.
    retried_after_outage: Mutex<HashMap<ObjectKey, Option<Instant>>>,
    failed: Backoffs<ObjectKey>,
    slow: Backoffs<ObjectKey>,
    waiting: Backoffs<ObjectKey>,
    work: Arc<Mutex<WorkOf<R>>>,
}

type WorkOf<R> = Work<ObjectKey, <R as Reconcile>::StatusUpdate>;

/// Queue of a controller, oldest first. The queue of kube's `Controller` takes any due object, so that under load some
/// wait forever (kube 5: `Scheduler::pending` is a set).
struct Work<O, R> {
    objects: HashMap<O, QueuedObject<R>>,
    /// Objects without a running step, in the order of their next reconciles.
    queue: BTreeMap<QueuePosition, O>,
    /// Objects with an unwritten status and without a running step, in the order of their writes.
    status_writes: BTreeMap<QueuePosition, O>,
    /// Number of the last new position.
    last_position: u64,
    /// Objects with a running step, and when it began.
    running: HashMap<O, Instant>,
    /// Objects that are reconciled for the first time, which creates their children.
    creating: HashSet<O>,
    burst: Burst,
    /// Minimum time between two writes of an object's status.
    status_interval: Duration,
    /// Last write of each object's status, if there is a minimum time between two.
    written: HashMap<O, Instant>,
}

/// New objects that follow each other closely. The client that creates them is then the bottleneck: the queue is empty,
/// and yet each write of a status would slow down the creations.
#[derive(Default)]
struct Burst {
    /// Number of objects, each at most [`Burst::PAUSE`] after the one before.
    objects: usize,
    /// When the last one was reconciled for the first time.
    last: Option<Instant>,
}

impl Burst {
    /// Minimum number of objects.
    const MIN_OBJECTS: usize = 16;
    /// Maximum time between two objects.
    const PAUSE: Duration = Duration::from_millis(200);

    fn add(&mut self, now: Instant) {
        let continues = self.last.is_some_and(|last| now < last + Self::PAUSE);
        self.objects = if continues { self.objects + 1 } else { 1 };
        self.last = Some(now);
    }

    /// Returns when the burst ends, unless another object arrives before; `None` if there is no burst.
    fn end(&self, now: Instant) -> Option<Instant> {
        let end = self.last.map(|last| last + Self::PAUSE);
        end.filter(|end| now < *end && self.objects >= Self::MIN_OBJECTS)
    }
}

/// Position in the queue: the time of the reconcile or write, and a unique number.
type QueuePosition = (Instant, u64);

/// An object that was reconciled, or waits for its reconcile.
struct QueuedObject<R> {
    /// Revision of the last reconcile: with a new one the delays start again.
    revision: Option<SpecRevision>,
    /// Position of the next reconcile.
    due: Option<Due>,
    /// Status of the last reconcile, until its write begins.
    update: Option<Box<PendingStatus<R>>>,
}

impl<R> Default for QueuedObject<R> {
    fn default() -> Self {
        Self {
            revision: None,
            due: None,
            update: None,
        }
    }
}

#[derive(Clone, Copy)]
struct Due {
    position: QueuePosition,
    /// True if the clock made the object due, rather than a trigger.
    timed: bool,
}

/// A status that is not written yet.
struct PendingStatus<R> {
    update: R,
    /// Position among the writes.
    position: QueuePosition,
    /// Requeue of the reconcile, if that succeeded.
    requeue: Option<Requeue>,
    span: Span,
    /// The shutdown waits for the write.
    token: TaskTrackerToken,
}

/// The next step of an object.
enum NextStep<O, R> {
    Reconcile {
        object: O,
        /// Time for which the object was due.
        waited: Duration,
        /// True if the clock made the object due, rather than a trigger: such additions to the queue are counted only
        /// now.
        timed: bool,
    },
    WriteStatus(O, Box<PendingStatus<R>>),
}

impl<O: Clone + Eq + Hash, R> Work<O, R> {
    fn new(status_interval: Duration) -> Self {
        Self {
            objects: HashMap::new(),
            queue: BTreeMap::new(),
            status_writes: BTreeMap::new(),
            last_position: 0,
            running: HashMap::new(),
            creating: HashSet::new(),
            burst: Burst::default(),
            status_interval,
            written: HashMap::new(),
        }
    }

    /// Makes an object due. Returns whether that is an addition to the queue.
    fn triggered(&mut self, object: O, now: Instant) -> bool {
        let due = self.objects.get(&object).and_then(|item| item.due);
        let added = due.is_none_or(|due| due.position.0 > now);
        if added {
            if let Some(due) = due {
                self.queue.remove(&due.position);
            }
            self.add(object, now, false);
        }
        added
    }

    fn add(&mut self, object: O, at: Instant, timed: bool) {
        let position = self.position(at);
        self.objects.entry(object.clone()).or_default().due = Some(Due { position, timed });
        if !self.running.contains_key(&object) {
            self.queue.insert(position, object);
        }
    }

    /// Returns a new position, after others of the same time.
    fn position(&mut self, at: Instant) -> QueuePosition {
        self.last_position += 1;
        (at, self.last_position)
    }

    /// Returns the position of a new write of a status. The write waits for reconciles for `max_delay` at most or, with
    /// a minimum time between two writes, for the rest of that time.
    fn status_position(&mut self, object: &O, now: Instant, max_delay: Duration) -> QueuePosition {
        let at = if self.status_interval.is_zero() {
            now + max_delay
        } else {
            let last = self.written.get(object);
            last.map_or(now, |last| now.max(*last + self.status_interval))
        };
        self.position(at)
    }

    /// Records that the status of an object is written.
    fn status_written(&mut self, object: &O, now: Instant) {
        if !self.status_interval.is_zero() {
            self.written.insert(object.clone(), now);
        }
    }

    fn take_status_update(&mut self, object: &O) -> Option<PendingStatus<R>> {
        let item = self.objects.get_mut(object)?;
        item.update.take().map(|pending| *pending)
    }

    /// Starts the next step, if there is one; `free` steps may begin. Once the controller `is_closed`, no reconcile
    /// begins.
    ///
    /// Under load, children come before statuses: due reconciles come before writes of statuses, and no such write
    /// begins while an object is reconciled for the first time or during a [`Burst`], because the write would compete
    /// with the creation of children. Without load, the status of an object is written before its next reconcile. A
    /// write that has waited for the maximum time comes first. With a minimum time between two writes of a status, a write
    /// waits for that time.
    fn next(&mut self, now: Instant, free: usize, is_closed: bool) -> Option<NextStep<O, R>> {
        let due = self.queue.range(..=(now, u64::MAX)).take(free + 1).count();
        let is_loaded = due > free || !self.creating.is_empty() || self.burst.end(now).is_some();
        let first_write = self.status_writes.first_key_value();
        let is_overdue = first_write.is_some_and(|((at, _), _)| *at <= now);
        let may_write = is_closed || is_overdue || (!is_loaded && self.status_interval.is_zero());
        let first = if due > 0 && !is_closed && !is_overdue {
            self.queue.first_key_value()
        } else {
            first_write.filter(|_| may_write)
        };
        let object = first?.1.clone();
        let item = self.objects.get_mut(&object)?;
        if let Some(due) = item.due {
            self.queue.remove(&due.position);
        }
        if let Some(update) = &item.update {
            self.status_writes.remove(&update.position);
        }
        self.running.insert(object.clone(), now);
        if may_write && let Some(update) = item.update.take() {
            return Some(NextStep::WriteStatus(object, update));
        }
        if item.revision.is_none() {
            self.creating.insert(object.clone());
            self.burst.add(now);
        }
        let due = item.due.take()?;
        Some(NextStep::Reconcile {
            object,
            waited: now.saturating_duration_since(due.position.0),
            timed: due.timed,
        })
    }

    /// Returns when the next reconcile is due, or the next status may or must be written.
    fn next_due(&self, now: Instant) -> Option<Instant> {
        let first = [&self.queue, &self.status_writes].map(BTreeMap::first_key_value);
        let first = first.into_iter().flatten().map(|((at, _), _)| *at);
        let burst_end = self
            .burst
            .end(now)
            .filter(|_| !self.status_writes.is_empty());
        first.chain(burst_end).min()
    }

    /// Marks the end of a step; the next reconcile is due at `latest`, if not before.
    fn ended(&mut self, object: O, latest: Option<Instant>) {
        self.running.remove(&object);
        self.creating.remove(&object);
        let item = self.objects.get(&object);
        if let Some(update) = item.and_then(|item| item.update.as_ref()) {
            self.status_writes.insert(update.position, object.clone());
        }
        let due = item.and_then(|item| item.due);
        let is_before = |due: &Due| latest.is_none_or(|latest| due.position.0 <= latest);
        match (due.filter(is_before), latest) {
            (Some(due), _) => _ = self.queue.insert(due.position, object),
            (None, Some(latest)) => self.add(object, latest, true),
            // The object was deleted.
            (None, None) => {}
        }
    }

    /// Forgets a deleted object.
    fn forget(&mut self, object: &O) {
        self.running.remove(object);
        self.creating.remove(object);
        self.written.remove(object);
        let Some(item) = self.objects.remove(object) else {
            return;
        };
        if let Some(due) = item.due {
            self.queue.remove(&due.position);
        }
        if let Some(update) = item.update {
            self.status_writes.remove(&update.position);
        }
    }

    fn state(&self, now: Instant) -> WorkQueueState {
        let due = self
            .objects
            .values()
            .filter_map(|item| item.due)
            .filter(|due| due.position.0 <= now);
        let unfinished = self
            .running
            .values()
            .map(|began| now.saturating_duration_since(*began));
        WorkQueueState {
            depth: due.count(),
            unfinished: unfinished.sum(),
        }
    }
}

impl<R: Reconcile> Runner<R> {
    /// Creates the runner of the controller `name`. `in_flight` tracks each reconcile; none begins once it is closed.
    /// Objects that failed for a transient reason are retried when `availability` reports the apiserver's
    /// return.
    pub fn new(
        name: &'static str,
        reconciler: Arc<R>,
        limits: ReconcileLimits,
        metrics: &Metrics,
        availability: Availability,
        watchdog: Watchdog,
        in_flight: InFlight,
    ) -> Self {
        let work = Arc::new(Mutex::new(Work::new(limits.status_interval)));
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
            in_flight,
            retried_after_outage: Mutex::default(),
            failed: Backoffs::new(limits.failed),
            slow: Backoffs::new(limits.slow),
            waiting: Backoffs::new(limits.waiting),
            work,
        }
    }

    pub fn on_started_leading(&self) {
        self.reconciler.on_started_leading();
    }

    /// Reconciles every cached object, then each triggered object, until the future is dropped.
    pub async fn run(self, objects: Objects<R::Object>, trigger: Trigger<R::Object>) {
        let mut woken = trigger.open();
        for object in objects.keys(None) {
            self.triggered(object);
        }
        let mut retries = pin!(self.retry_after_outages(&trigger));
        let mut steps = FuturesUnordered::new();
        let limit = usize::from(self.limits.concurrency).max(1);
        loop {
            let was_closed = self.in_flight.is_closed();
            let mut due = None;
            while let free @ 1.. = limit - steps.len() {
                // The shutdown first lets no reconcile begin, and then waits for the tokens.
                let token = self.in_flight.token();
                let is_closed = self.in_flight.is_closed();
                let next = self.work().next(Instant::now(), free, is_closed);
                match next {
                    Some(NextStep::Reconcile {
                        object,
                        waited,
                        timed,
                    }) => match objects.get(&object) {
                        Some(object) => {
                            if timed {
                                self.metrics.added();
                            }
                            self.metrics.queued(waited);
                            steps.push(self.reconcile(object, token).boxed());
                        }
                        None => self.forget_deleted(&object),
                    },
                    Some(NextStep::WriteStatus(object, update)) => {
                        if objects.get(&object).is_some() {
                            steps.push(self.write_status(object, *update).boxed());
                        } else {
                            self.forget_deleted(&object);
                        }
                    }
                    None => {
                        due = self.work().next_due(Instant::now()).filter(|_| !is_closed);
                        break;
                    }
                }
            }
            tokio::select! {
                request = woken.recv() => match request {
                    Some(object) => self.triggered(object),
                    // The sender is dropped only while the process ends.
                    None => return,
                },
                Some(()) = steps.next() => {}
                () = wait_until(due) => {}
                () = self.in_flight.closed(), if !was_closed => {}
                () = &mut retries => return,
            }
        }
    }

    fn triggered(&self, object: ObjectKey) {
        if self.work().triggered(object, Instant::now()) {
            self.metrics.added();
        }
    }

    fn forget_deleted(&self, object: &ObjectKey) {
        self.forget(object);
        self.reconciler.forget(object);
    }

    /// Retries the objects that failed for a transient reason after each outage of the apiserver, one by one in random
    /// order, and resets their backoff. Never returns.
    async fn retry_after_outages(&self, trigger: &Trigger<R::Object>) {
        let mut outage_ends = self.availability.outage_ends();
        let (mut next, mut pauses) = (Instant::now(), RECOVERY_BACKOFF.start());
        loop {
            tokio::select! {
                // The sender is dropped only while the process ends.
                changed = outage_ends.changed() => if changed.is_err() { return },
                () = sleep(SINGLE_RETRY_INTERVAL.mul_f64(rand::random_range(0.5..1.0))) => {
                    self.retry_one(trigger);
                    continue;
                }
            }
            // An apiserver that returns again and again must not disable the backoff.
            if next.elapsed() > RECOVERY_BACKOFF.max {
                pauses = RECOVERY_BACKOFF.start();
            }
            sleep_until(next).await;
            let began = Instant::now();
            let mut keys: Vec<_> = self.retried_after_outage().keys().cloned().collect();
            keys.shuffle(&mut rand::rng());
            let step = (RECOVERY_SPREAD / u32::try_from(keys.len()).unwrap_or(u32::MAX).max(1))
                .min(MAX_RETRY_INTERVAL);
            for (turn, key) in (0..).zip(keys) {
                sleep_until(began + step * turn + step.mul_f64(rand::random_range(0.0..1.0))).await;
                // Another trigger may have been faster.
                if self.retried_after_outage().contains_key(&key) {
                    self.reset(&key);
                    trigger.wake(&key);
                }
            }
            next = Instant::now() + pauses.next_delay();
        }
    }

    /// Retries one of the failed objects while the apiserver stores no writes, to notice when writes succeed again.
    fn retry_one(&self, trigger: &Trigger<R::Object>) {
        if self.availability.stores_nothing()
            && let Some(key) = self.retried_after_outage().keys().choose(&mut rand::rng())
        {
            trigger.wake(key);
        }
    }

    fn retried_after_outage(&self) -> MutexGuard<'_, HashMap<ObjectKey, Option<Instant>>> {
        self.retried_after_outage
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) -> MutexGuard<'_, WorkOf<R>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resets all delays of an object.
    fn reset(&self, key: &ObjectKey) {
        for backoffs in [&self.failed, &self.slow, &self.waiting] {
            backoffs.reset(key);
        }
    }

    fn forget(&self, key: &ObjectKey) {
        self.reset(key);
        self.retried_after_outage().remove(key);
        self.work().forget(key);
    }

    /// Records the revision of an object. Returns whether the revision is new.
    fn record_revision(&self, key: &ObjectKey, object: &R::Object) -> bool {
        let revision = SpecRevision::of(object);
        let mut work = self.work();
        let item = work.objects.entry(key.clone()).or_default();
        item.revision.replace(revision.clone()) != Some(revision)
    }

    async fn reconcile(&self, object: Arc<R::Object>, _token: TaskTrackerToken) {
        let key = ObjectKey::of(object.as_ref());
        let delay = self.reconcile_unless_paused(&key, object).await;
        self.work().ended(key, Some(Instant::now() + delay));
    }

    /// Writes the status of a reconcile. A failed write fails the reconcile, which is then repeated.
    async fn write_status(&self, key: ObjectKey, pending: PendingStatus<R::StatusUpdate>) {
        let PendingStatus {
            update,
            requeue,
            span,
            token: _token,
            ..
        } = pending;
        let write = self.attempt(&key, self.reconciler.write_status(update).boxed());
        let delay = match write.instrument(span).await {
            Ok(renewal) => {
                self.work().status_written(&key, Instant::now());
                if let Some(requeue) = requeue {
                    self.succeeded(&key, requeue);
                }
                renewal
            }
            Err(delay) => Some(delay),
        };
        let latest = delay.map(|delay| Instant::now() + delay);
        self.work().ended(key, latest);
    }

    /// Reconciles, unless the apiserver asked to wait. Returns the delay until the next reconcile.
    async fn reconcile_unless_paused(&self, key: &ObjectKey, object: Arc<R::Object>) -> Duration {
        // The apiserver's request to wait applies to every trigger.
        let until = self.retried_after_outage().get(key).copied().flatten();
        let left = until.map_or(Duration::ZERO, |until| {
            until.saturating_duration_since(Instant::now())
        });
        if !left.is_zero() {
            return left;
        }
        if self.record_revision(key, &object) {
            self.reset(key);
        }
        let span = telemetry::reconcile_span(
            self.name,
            &R::Object::group(&()),
            &R::Object::kind(&()),
            &key.namespace,
            &key.name,
        );
        self.run_reconcile(key, object).instrument(span).await
    }

    async fn run_reconcile(&self, key: &ObjectKey, object: Arc<R::Object>) -> Duration {
        let began = Instant::now();
        self.retried_after_outage().remove(key);
        let unwritten = self.work().take_status_update(key);
        let (mut update, position) = match unwritten {
            Some(pending) => (Some(pending.update), Some(pending.position)),
            None => (None, None),
        };
        // The future is too large to be moved over the stack.
        let reconcile = self.reconciler.reconcile(object, &mut update).boxed();
        let (delay, requeue) = match self.attempt(key, reconcile).await {
            Ok(requeue) => {
                debug!(?requeue, "reconciled");
                let (result, delay) = self.next_reconcile(key, requeue);
                self.metrics.reconciled(result, began.elapsed());
                (delay, Some(requeue))
            }
            Err(delay) => (delay, None),
        };
        if let Some(update) = update {
            let mut work = self.work();
            let pending = PendingStatus {
                update,
                // The newest status keeps the position of the first unwritten one.
                position: position.unwrap_or_else(|| {
                    work.status_position(key, Instant::now(), self.limits.max_status_delay)
                }),
                requeue,
                span: Span::current(),
                token: self.in_flight.token(),
            };
            work.objects.entry(key.clone()).or_default().update = Some(Box::new(pending));
        } else if let Some(requeue) = requeue {
            self.succeeded(key, requeue);
        }
        delay
    }

    /// Runs a step of an object, with a timeout and a guard against panics. Returns the delay until the next reconcile
    /// if the step failed.
    async fn attempt<T>(
        &self,
        key: &ObjectKey,
        step: impl Future<Output = Result<T, Failure>>,
    ) -> Result<T, Duration> {
        let (began, outages_before) = (Instant::now(), self.availability.outages_ended());
        let paused = self.availability.paused_until();
        let _active = self.metrics.started();
        let _busy = self.watchdog.busy();
        let step = AssertUnwindSafe(step).catch_unwind();
        let ended = timeout(self.limits.timeout, step).await;
        if self.availability.outages_ended() != outages_before {
            // The outage that made this step fail is over, so the object need not wait long.
            self.failed.reset(key);
        }
        let (result, delay) = match ended {
            Ok(Ok(Ok(done))) => return Ok(done),
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
                self.retried_after_outage().insert(key.clone(), None);
                (ReconcileResult::Error, self.failed.next_delay(key))
            }
        };
        if result == ReconcileResult::Error {
            telemetry::traces::failed();
        }
        self.metrics.reconciled(result, began.elapsed());
        Err(delay)
    }

    /// Resets the delays of an object whose reconcile succeeded and whose status is written.
    fn succeeded(&self, key: &ObjectKey, requeue: Requeue) {
        if !matches!(requeue, Requeue::InFlight(_)) {
            self.failed.reset(key);
            self.slow.reset(key);
            if requeue != Requeue::Poll {
                self.waiting.reset(key);
            }
        }
    }

    /// Returns the result of a reconcile that succeeded, and the delay until the next one.
    fn next_reconcile(&self, key: &ObjectKey, requeue: Requeue) -> (ReconcileResult, Duration) {
        match requeue {
            Requeue::OnChange => (ReconcileResult::Success, self.sync_period()),
            Requeue::Poll => (ReconcileResult::RequeueAfter, self.waiting.next_delay(key)),
            Requeue::After(delay) | Requeue::InFlight(delay) => {
                (ReconcileResult::RequeueAfter, delay)
            }
        }
    }

    /// Returns the interval of periodic reconciles with jitter, so that not all objects are due at once.
    fn sync_period(&self) -> Duration {
        self.limits
            .sync_period
            .mul_f64(rand::random_range(1.0..1.2))
    }

    /// Returns the end of the pause that the apiserver asked this object's reconcile for with a 429. A later conflict may
    /// hide the 429, so after a conflict any new pause counts, for at most [`UNPROVEN_PAUSE`]: it may be that of another
    /// object. `paused` is the end of the pause before the reconcile.
    fn asked_to_wait(
        &self,
        error: &(dyn std::error::Error + 'static),
        paused: Option<Instant>,
    ) -> Option<Instant> {
        let now_paused = self.availability.paused_until();
        let new = now_paused.filter(|_| now_paused != paused);
        let status = match api_status(error) {
            Some(status) if status.code == 429 => status,
            Some(status) if status.code == 409 => {
                return new.map(|until| until.min(Instant::now() + UNPROVEN_PAUSE));
            }
            // Another object got the 429.
            _ => return None,
        };
        let seconds = status
            .details
            .as_ref()
            .map_or(0, |details| details.retry_after_seconds);
        match seconds {
            // API Priority and Fairness answers with plain text: only the header has the delay.
            0 => now_paused,
            seconds => new.max(Some(Instant::now() + availability::pause(seconds))),
        }
    }

    fn failed(
        &self,
        key: &ObjectKey,
        failure: &Failure,
        paused: Option<Instant>,
    ) -> (ReconcileResult, Duration) {
        let error = failure as &dyn std::error::Error;
        let class = failure.class;
        let until = self.asked_to_wait(error, paused);
        let is_retried = class == Class::Transient
            || (class != Class::Stale && self.availability.is_in_outage());
        // A 5xx of another class, such as that of a full node-port range, says nothing about other writes.
        if class == Class::Transient && api_status(error).is_some_and(is_server_error) {
            self.availability.reconcile_failed();
        }
        if is_retried || until.is_some() {
            self.retried_after_outage().insert(key.clone(), until);
        }
        let left = until.map_or(Duration::ZERO, |until| {
            until.saturating_duration_since(Instant::now())
        });
        match class {
            Class::Terminal => {
                warn!(
                    error,
                    "reconcile failed; will retry when the object changes, or at the periodic reconcile"
                );
                (ReconcileResult::Error, self.sync_period())
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
mod tests;
