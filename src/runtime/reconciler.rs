//! The trait that a controller implements, and what surrounds each of its passes: a time limit, a guard against panics,
//! a growing delay after failures, a cap on how many run at once, one log line, one measurement.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt::Debug;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::{FutureExt, StreamExt};
use kube::core::Status;
use kube::runtime::controller::{Action, Config as ApplierConfig, Error as ApplierError, ReconcileRequest, applier};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::{Resource, ResourceExt};
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, error, warn};

use super::Key;
use super::backoff::{Backoffs, Policy};
use super::health::Watchdog;
use super::metrics::{ControllerMetrics, Metrics, Reconciled};
use super::{client, tasks, telemetry};
use crate::api::common::REQUESTED_AT;

/// What is done for one kind.
pub trait Reconciler: Send + Sync + 'static {
    /// The kind.
    type Object: Resource<DynamicType = ()> + Clone + Debug + Send + Sync + 'static;
    /// What can go wrong in a pass.
    type Error: Failure;

    /// One pass over one object. Never two at once for the same object; may be dropped at any await.
    fn reconcile(&self, object: Arc<Self::Object>) -> impl Future<Output = Result<Outcome, Self::Error>> + Send;

    /// This replica begins to lead, before the first pass: what it saw while it stood by may be of the past.
    fn lead(&self) {}

    /// How often each object is looked at without a reason, where that is `usual`.
    fn resync(&self, usual: Duration) -> Duration {
        usual
    }

    /// The object of this key is gone: what is kept for it may go. Said again whenever something wakes it, because a pass
    /// that was under way when it went may have left something behind.
    fn gone(&self, key: &Key);
}

/// How a pass ended that did not fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing to do until something changes. It is looked at again after the resync all the same: a watch may have failed to
    /// say something.
    Done,
    /// Something is not there yet that no watch tells of: asked for again, with growing delays.
    Waiting,
    /// Something falls due by the clock.
    RequeueAfter(Duration),
    /// The answer to a request that was made outside the pass wakes the next one, or this time does. Whether the request
    /// fails is not known yet, so no growing delay begins anew.
    Unfinished(Duration),
}

/// An error of a pass, sorted.
pub trait Failure: std::error::Error + Send + Sync + 'static {
    /// What is to be done about it.
    fn class(&self) -> Class;
}

/// What is to be done about a failed pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Nothing, until somebody changes the object; it is looked at again after the resync.
    Terminal,
    /// Try again, with growing delays.
    Transient,
    /// Try again, with longer delays: somebody has to do something first that no watch tells of.
    Slow,
    /// Something came in between (the object changed or was replaced, the lease went): try again, it is no error.
    Conflict,
}

impl Failure for kube::Error {
    fn class(&self) -> Class {
        match self {
            Self::Api(status) if status.code == 409 || is_replaced(status) => Class::Conflict,
            error if client::is_not_leading(error) => Class::Conflict,
            _ => Class::Transient,
        }
    }
}

/// 422 on the UID: a write that is pinned to an object met another one of its name.
pub fn is_replaced(status: &Status) -> bool {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 422 && causes.into_iter().any(|cause| cause.field == "metadata.uid")
}

/// Generation and `requested-at` of an object: with another one the delays begin anew.
type Requested = (Option<i64>, Option<String>);

/// How passes are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How many passes of one controller run at once.
    pub concurrency: u16,
    /// How long one pass may take.
    pub timeout: Duration,
    /// Delays after failures.
    pub failed: Policy,
    /// Delays after failures that somebody has to mend elsewhere.
    pub slow: Policy,
    /// Delays while something is waited for.
    pub waiting: Policy,
    /// How often each object is looked at without a reason.
    pub resync: Duration,
}

/// Wakes the passes of one controller. Before [`Trigger::open`] nobody listens and nothing is kept: what is there by
/// then is passed over once anyway.
pub struct Trigger<K: Resource>(Arc<Mutex<Option<mpsc::UnboundedSender<ReconcileRequest<K>>>>>);

impl<K: Resource> Clone for Trigger<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Resource> Default for Trigger<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Resource<DynamicType = ()> + 'static> Trigger<K> {
    /// Has a pass run over the object of this key, if it exists.
    pub fn wake(&self, key: &Key) {
        if let Some(sender) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // The receiver is gone only while the process ends.
            let _ = sender.send(ObjectRef::new(&key.name).within(&key.namespace).into());
        }
    }

    /// What is woken from now on.
    pub(super) fn open(&self) -> mpsc::UnboundedReceiver<ReconcileRequest<K>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        receiver
    }
}

/// One controller, ready to run.
pub struct Runner<R: Reconciler> {
    name: &'static str,
    reconciler: Arc<R>,
    limits: Limits,
    metrics: ControllerMetrics,
    watchdog: Watchdog,
    running: TaskTracker,
    failed: Backoffs<ObjectRef<R::Object>>,
    slow: Backoffs<ObjectRef<R::Object>>,
    waiting: Backoffs<ObjectRef<R::Object>>,
    /// What was last asked for of each object.
    requested: Mutex<HashMap<ObjectRef<R::Object>, Requested>>,
}

impl<R: Reconciler> Runner<R> {
    /// `name` is what logs and metrics call the controller. Each pass is tracked by `running`; none begins once that is
    /// closed.
    pub fn new(
        name: &'static str,
        reconciler: Arc<R>,
        limits: Limits,
        metrics: &Metrics,
        watchdog: Watchdog,
        running: TaskTracker,
    ) -> Self {
        Self {
            name,
            reconciler,
            limits,
            metrics: metrics.controller(name, limits.concurrency.into()),
            watchdog,
            running,
            failed: Backoffs::new(limits.failed),
            slow: Backoffs::new(limits.slow),
            waiting: Backoffs::new(limits.waiting),
            requested: Mutex::default(),
        }
    }

    /// Tells the controller that this replica begins to lead.
    pub fn lead(&self) {
        self.reconciler.lead();
    }

    /// Passes over every object of the store, then over each that is woken, until it is dropped.
    pub async fn run(self, store: Store<R::Object>, trigger: Trigger<R::Object>) {
        let woken = trigger.open();
        let all: Vec<ReconcileRequest<R::Object>> =
            store.state().iter().map(|object| ObjectRef::from_obj(object.as_ref()).into()).collect();
        let woken = futures::stream::unfold(woken, |mut woken| async { woken.recv().await.map(|next| (next, woken)) });
        let queue = futures::stream::iter(all).chain(woken).map(Ok::<_, Infallible>);
        let runner = Arc::new(self);
        let passes = applier(
            |object, runner: Arc<Self>| async move { Ok::<_, Infallible>(runner.pass(object).await) }.boxed(),
            |_, never: &Infallible, _| match *never {},
            Arc::clone(&runner),
            store,
            queue,
            ApplierConfig::default().concurrency(runner.limits.concurrency),
        );
        passes
            .for_each(|pass| {
                if let Err(ApplierError::ObjectNotFound(gone)) = pass {
                    let key = Key::new(gone.namespace.as_deref().unwrap_or_default(), &gone.name);
                    runner.forget(&ObjectRef::new(&key.name).within(&key.namespace));
                    runner.reconciler.gone(&key);
                }
                std::future::ready(())
            })
            .await;
    }

    /// The next delay of each kind is the first one again.
    fn reset(&self, key: &ObjectRef<R::Object>) {
        for backoffs in [&self.failed, &self.slow, &self.waiting] {
            backoffs.reset(key);
        }
    }

    fn forget(&self, key: &ObjectRef<R::Object>) {
        self.reset(key);
        self.requested.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// Whether somebody asked for a pass since the last one, or for something else.
    fn requested(&self, key: &ObjectRef<R::Object>, object: &R::Object) -> bool {
        let asked = (object.meta().generation, object.annotations().get(REQUESTED_AT).cloned());
        let mut requested = self.requested.lock().unwrap_or_else(PoisonError::into_inner);
        requested.insert(key.clone(), asked.clone()) != Some(asked)
    }

    async fn pass(&self, object: Arc<R::Object>) -> Action {
        let _running = self.running.token();
        if self.running.is_closed() {
            return Action::await_change();
        }
        let key = ObjectRef::from_obj(object.as_ref());
        if self.requested(&key, &object) {
            self.reset(&key);
        }
        let namespace = key.namespace.as_deref().unwrap_or_default();
        let span = telemetry::pass(self.name, &R::Object::group(&()), &R::Object::kind(&()), namespace, &key.name);
        self.guarded(&key, object).instrument(span).await
    }

    async fn guarded(&self, key: &ObjectRef<R::Object>, object: Arc<R::Object>) -> Action {
        let began = Instant::now();
        let _active = self.metrics.started();
        let _busy = self.watchdog.busy();
        let pass = AssertUnwindSafe(self.reconciler.reconcile(object)).catch_unwind();
        let (result, action) = match tokio::time::timeout(self.limits.timeout, pass).await {
            Ok(Ok(Ok(outcome))) => self.well(key, outcome),
            Ok(Ok(Err(failure))) => self.failed(key, &failure),
            Ok(Err(panic)) => {
                error!(panic = tasks::words(&*panic), "the pass panicked");
                self.metrics.panicked();
                (Reconciled::Error, Action::requeue(self.failed.next_delay(key)))
            }
            Err(_) => {
                warn!(limit = ?self.limits.timeout, "the pass took too long and was dropped");
                (Reconciled::Error, Action::requeue(self.failed.next_delay(key)))
            }
        };
        if result == Reconciled::Error {
            telemetry::traces::failed();
        }
        self.metrics.reconciled(result, began.elapsed());
        action
    }

    fn well(&self, key: &ObjectRef<R::Object>, outcome: Outcome) -> (Reconciled, Action) {
        debug!(?outcome, "pass done");
        if !matches!(outcome, Outcome::Unfinished(_)) {
            self.failed.reset(key);
            self.slow.reset(key);
            if outcome != Outcome::Waiting {
                self.waiting.reset(key);
            }
        }
        match outcome {
            Outcome::Done => (Reconciled::Success, self.resync()),
            Outcome::Waiting => (Reconciled::RequeueAfter, Action::requeue(self.waiting.next_delay(key))),
            Outcome::RequeueAfter(delay) | Outcome::Unfinished(delay) => {
                (Reconciled::RequeueAfter, Action::requeue(delay))
            }
        }
    }

    /// Not all of them at once.
    fn resync(&self) -> Action {
        Action::requeue(self.reconciler.resync(self.limits.resync).mul_f64(rand::random_range(1.0..1.2)))
    }

    fn failed(&self, key: &ObjectRef<R::Object>, failure: &R::Error) -> (Reconciled, Action) {
        let error = failure as &dyn std::error::Error;
        match failure.class() {
            Class::Terminal => {
                warn!(error, "the pass failed; it is tried again when the object changes");
                (Reconciled::Error, self.resync())
            }
            class @ (Class::Transient | Class::Slow) => {
                let backoffs = if class == Class::Slow { &self.slow } else { &self.failed };
                let delay = backoffs.next_delay(key);
                warn!(error, ?delay, "the pass failed; it is tried again");
                (Reconciled::Error, Action::requeue(delay))
            }
            Class::Conflict => {
                debug!(error, "something came in between; the pass is done again");
                (Reconciled::Requeue, Action::requeue(self.failed.next_delay(key)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use k8s_openapi::api::core::v1::ConfigMap;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::runtime::client::Refused;
    use crate::runtime::health::Health;

    fn api(code: u16, field: &str) -> kube::Error {
        let status = json!({ "status": "Failure", "message": "", "reason": "Invalid", "code": code, "details": {
            "causes": [{ "reason": "FieldValueInvalid", "message": "field is immutable", "field": field }] } });
        kube::Error::Api(Box::new(serde_json::from_value(status).unwrap()))
    }

    #[rstest]
    #[case::changed(api(409, ""), Class::Conflict)]
    #[case::replaced(api(422, "metadata.uid"), Class::Conflict)]
    #[case::invalid(api(422, "spec.field"), Class::Transient)]
    #[case::in_trouble(api(500, ""), Class::Transient)]
    #[case::held_back(kube::Error::Service(Box::new(Refused::NotLeading)), Class::Conflict)]
    #[case::unanswered(kube::Error::Service(Box::new(Refused::Timeout(Duration::ZERO))), Class::Transient)]
    fn classes(#[case] error: kube::Error, #[case] class: Class) {
        assert_eq!(error.class(), class);
    }

    struct Idle;

    impl Reconciler for Idle {
        type Object = ConfigMap;
        type Error = kube::Error;

        async fn reconcile(&self, _: Arc<ConfigMap>) -> Result<Outcome, kube::Error> {
            Ok(Outcome::Done)
        }

        fn gone(&self, _: &Key) {}
    }

    /// Such as one whose request, once answered, fails again and again.
    #[test]
    fn delays_go_on_growing_over_an_unfinished_pass() {
        let policy = Policy { min: Duration::from_secs(1), max: Duration::from_hours(1) };
        let limits = Limits {
            concurrency: 1,
            timeout: policy.max,
            failed: policy,
            slow: policy,
            waiting: policy,
            resync: policy.max,
        };
        let watchdog = Health::new().watchdog("idle", policy.max);
        let runner = Runner::new("idle", Arc::new(Idle), limits, &Metrics::new(), watchdog, TaskTracker::new());
        let key = ObjectRef::new("x").within("a");
        for least in [1, 2, 4] {
            for backoffs in [&runner.failed, &runner.slow, &runner.waiting] {
                assert!(backoffs.next_delay(&key) >= Duration::from_secs(least));
            }
            runner.well(&key, Outcome::Unfinished(Duration::ZERO));
        }
        runner.well(&key, Outcome::Done);
        for backoffs in [&runner.failed, &runner.slow, &runner.waiting] {
            assert!(backoffs.next_delay(&key) <= Duration::from_secs(2));
        }
    }
}
