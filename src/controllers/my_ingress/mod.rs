//! `MyIngress`: an AWS load balancer.
//!
//! A reconcile takes the steps that [`plan::next`] derives from the observed state, one after the other, until no step
//! is left. Then [`report::report`] computes the condition and the status from the observed state. A reconcile that the
//! rate limits of AWS calls delay leaves the remaining listeners to the next one.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node, Service};
use kube::Api;
use kube::core::PartialObjectMeta;
use qm_api::MyIngress;
use qm_api::my_ingress::{Alb, GROUP, MyIngressStatus};
use qm_aws::elb::Elb;
use qm_aws::{Aws, AwsError, AwsMetrics};
use qm_core::kind::{DelegatedAccess, EVENTS, Kind as _, KindInfo, Permission};
use qm_core::readiness::NOT_OBSERVED;
use qm_runtime::controller::{Context, Controller};
use qm_runtime::error::{Error, Result};
use qm_runtime::manager::Manager;
use qm_runtime::objects::Objects;
use qm_runtime::outcome::{EventPolicy, Outcome, Requeue};
use qm_runtime::trigger::Trigger;
use qm_runtime::watch::SyncState;
use qm_runtime::{ObjectKey, WatchScope};
use tokio::sync::OnceCell;
use tokio::time::Instant;

use self::backends::Backends;
use self::build::Desired;
use self::execute::{Executor, StepError, read_error};
use self::namesakes::Namesakes;
use self::observe::{Observed, now};
use self::report::report;
use self::status::{CREATING, MyIngressReadiness};
use self::step::Step;
use self::tags::{CLUSTER_NAMESPACE, OwnershipTags};
use self::warnings::Warnings;
use super::reasons::OUT_OF_SCOPE;
use crate::cli::RunConfig;

mod backends;
pub mod build;
mod execute;
mod namesakes;
mod observe;
mod plan;
mod report;
mod routes;
pub mod status;
mod step;
pub(crate) mod tags;
#[cfg(test)]
mod tests;
mod warnings;

/// Name of the controller in logs, metrics and `--controllers`.
pub const NAME: &str = "myingress";
pub const KIND: KindInfo = KindInfo::of::<MyIngress>(
    NAME,
    &["8caa0da94aa5df0b", "3fb334e1f26c1293"],
    DelegatedAccess::Nothing,
    &[
        Permission::namespaced(GROUP, &["myingresses"], &["get", "list", "patch", "watch"]),
        Permission::namespaced(GROUP, &["myingresses/status"], &["patch"]),
        // The UID of kube-system identifies the cluster.
        Permission::cluster_scoped("", &["namespaces"], &["get"]).named(&[CLUSTER_NAMESPACE]),
        // Listeners forward to nodes and Services.
        Permission::cluster_scoped("", &["nodes"], &["list", "watch"]),
        Permission::namespaced("", &["services"], &["get", "list", "watch"]),
        EVENTS,
    ],
)
// Load balancers are deleted before the apps, so that no load balancer sends traffic to a deleted app.
.with_uninstall_rank(30);

pub(crate) struct MyIngresses<A> {
    executor: Executor<A>,
    ingresses: Objects<MyIngress>,
    namesakes: Namesakes,
    trigger: Trigger<MyIngress>,
    cluster: OnceCell<String>,
    sync_period: Duration,
    consistency_window: Duration,
    /// Timeout of a reconcile, at which the runtime drops it.
    timeout: Duration,
}

/// Adds the controller.
pub(super) fn add_to(manager: &mut Manager, config: &RunConfig) -> anyhow::Result<()> {
    let timings = &config.timings;
    manager.add(|setup| {
        let backends = Arc::new(Backends::new(setup.trigger.clone()));
        let manager = &mut *setup.manager;
        let needed = &backends.watch_needed;
        let sync = &backends.nodes_sync;
        manager.watch_authoritative::<Node>(vec![Arc::clone(needed)], &backends, sync);
        let services = manager.scope.apis(&manager.client);
        let streaming = manager.streaming_watch_config.clone();
        manager.watch_resource::<PartialObjectMeta<Service>>(
            services,
            &streaming,
            needed,
            &backends,
            &SyncState::default(),
        );
        let metrics = manager.metrics.register(AwsMetrics::register);
        let fence = manager.fence.clone();
        Ok(MyIngresses {
            executor: Executor {
                scope: manager.scope.clone(),
                aws: Elb::new(fence, metrics, &timings.aws()),
                backends,
                warnings: Warnings::default(),
            },
            ingresses: setup.objects.clone(),
            namesakes: Namesakes::default(),
            trigger: setup.trigger.clone(),
            cluster: OnceCell::new(),
            sync_period: timings.aws_sync_period,
            consistency_window: timings.aws_consistency_window,
            timeout: timings.reconcile_timeout,
        })
    })
}

impl<A: Aws> Controller for MyIngresses<A> {
    type Kind = MyIngress;
    const KIND: &'static KindInfo = &KIND;
    const FIELD_MANAGER: &'static str = "quartermaster/myingress";
    // The next reconcile reads the status as observed state.
    const STATUS_CAN_WAIT: bool = false;

    async fn reconcile(&self, cx: &mut Context<MyIngress>) -> Result<Outcome> {
        build::check(&cx.object).map_err(Error::Invalid)?;
        if self.executor.scope != WatchScope::Cluster && !cx.object.spec.listeners.is_empty() {
            let message = "spec.listeners send traffic to the cluster's nodes, which needs an operator without --watch-namespace: \
                           remove spec.listeners, and create listeners by other means";
            let out_of_scope = Outcome::stalled(OUT_OF_SCOPE, message);
            return Ok(out_of_scope.event(EventPolicy::OnMessage));
        }
        let outcome = self.converge(cx).await?;
        // Only a deletion ends without an outcome.
        outcome.ok_or_else(|| Error::Stale("the MyIngress is being deleted".into()))
    }

    async fn finalize(&self, cx: &mut Context<MyIngress>) -> Result<Option<Outcome>> {
        self.converge(cx).await
    }

    fn may_own(&self, status: &MyIngressStatus) -> bool {
        // The status has no state of a load balancer that the MyIngress does not own.
        let is_owned = |alb: &Alb| alb.state.is_some() || alb.creation_requested_at.is_some();
        status.alb.as_ref().is_some_and(is_owned) || !status.listeners.is_empty()
    }

    fn sync_period(&self, _: Duration) -> Duration {
        self.sync_period
    }

    fn on_applied(&self, ingress: &Arc<MyIngress>, _is_listed: bool) {
        let key = ObjectKey::of(ingress.as_ref());
        self.namesakes.insert(&key);
        // With a narrower scope the operator rejects listeners, and so needs no nodes and Services.
        if self.executor.scope == WatchScope::Cluster {
            self.executor.backends.follow(&key, ingress);
        }
    }

    fn on_deleted(&self, ingress: &Arc<MyIngress>) {
        self.namesakes.remove(&ObjectKey::of(ingress.as_ref()));
    }

    fn forget(&self, key: &ObjectKey) {
        self.executor.backends.forget(key);
        self.executor.warnings.forget(key);
        // A MyIngress with the same name in another namespace may wait for the name of the load balancer. One that is
        // being deleted does not; two of them would wake each other without end.
        let may_wait = |other: Arc<MyIngress>| other.metadata.deletion_timestamp.is_none();
        for other in self.namesakes.of(key) {
            if self.ingresses.get(&other).is_some_and(may_wait) {
                self.trigger.wake(&other);
            }
        }
    }
}

impl<A: Aws> MyIngresses<A> {
    /// Takes all steps and fills the draft of the status. Returns `None` once AWS has nothing left of a deleted
    /// `MyIngress`. After half of the timeout, the next reconcile continues with the listeners.
    async fn converge(&self, cx: &mut Context<MyIngress>) -> Result<Option<Outcome>> {
        // The other half is for the call in flight, and for reads after it.
        let deadline = Instant::now() + self.timeout / 2;
        let cluster = self.cluster(cx).await?;
        let (object, owner) = (Arc::clone(&cx.object), cx.owner.clone());
        let tags = OwnershipTags {
            owner: &owner,
            cluster,
        };
        let desired = Desired::of(&object, tags);
        let mut observed = Observed::new(Arc::clone(&object), self.consistency_window);
        while let Some(step) = plan::next(&desired, &observed) {
            // A reconcile that has changed nothing would end at the same step again.
            if step.changes_listeners_or_tags()
                && observed.done.iter().any(Step::changes_listeners_or_tags)
                && Instant::now() >= deadline
            {
                keep_draft(cx, &observed);
                return Ok(Some(late_outcome(&cx.object, &observed)));
            }
            let executed = self.executor.execute(cx, &desired, &mut observed, &step);
            match executed.await {
                Ok(()) => observed.done.push(step),
                Err(StepError::Aws(error)) => observed.reject(step, error),
                Err(StepError::Reconcile(error)) => {
                    keep_draft(cx, &observed);
                    return Err(error);
                }
            }
            observed.now = now();
        }
        let Some(report) = report(&desired, &observed) else {
            return Ok(None);
        };
        if report.has_all_warnings {
            self.executor.warnings.retain(&cx.key, &observed.done);
        }
        report
            .readiness
            .fill_status(&mut cx.status, report.listeners);
        match report.requeue {
            Ok(requeue) => Ok(Some(report.readiness.outcome(requeue))),
            Err(AwsError {
                class,
                reason,
                message,
                ..
            }) => Err(Error::other(class, reason, message)),
        }
    }

    /// Returns the UID of namespace kube-system, which identifies the cluster.
    async fn cluster(&self, cx: &Context<MyIngress>) -> Result<&str> {
        let read = async || {
            let namespaces: Api<PartialObjectMeta<Namespace>> = Api::all(cx.client().clone());
            let what = || {
                format!(
                    "namespace {CLUSTER_NAMESPACE}, whose UID identifies the cluster, could not be read"
                )
            };
            let namespace = namespaces.get_metadata(CLUSTER_NAMESPACE).await;
            let namespace = namespace.map_err(|error| read_error(what(), error))?;
            // The apiserver gives every object a UID.
            namespace
                .metadata
                .uid
                .ok_or_else(|| Error::Stale(format!("namespace {CLUSTER_NAMESPACE} has no UID")))
        };
        self.cluster.get_or_try_init(read).await.map(String::as_str)
    }
}

/// Returns the outcome of a reconcile that leaves steps to the next one. A condition of the current spec stays, except
/// that AWS does not show the load balancer yet.
fn late_outcome(object: &MyIngress, observed: &Observed) -> Outcome {
    let at_once = Requeue::After(Duration::ZERO);
    let (_, reason) = object.readiness();
    if ![NOT_OBSERVED, CREATING].contains(&reason) {
        return Outcome::unchanged().requeue(at_once);
    }
    let is_deleted = object.metadata.deletion_timestamp.is_some();
    MyIngressReadiness::late(observed.alb(), is_deleted).outcome(at_once)
}

/// Fills the draft of the status at the end of a reconcile with steps left.
fn keep_draft(cx: &mut Context<MyIngress>, observed: &Observed) {
    cx.status.alb = observed.alb();
    cx.status.listeners.clone_from(&observed.draft.listeners);
}
