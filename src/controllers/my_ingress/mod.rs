//! `MyIngress`: an AWS load balancer.
//!
//! A reconcile takes the steps that [`plan::next`] decides from the observed state, one after the other, until none is left.
//! Then the reconcile writes what [`report::report`] says of the observed state.

use std::collections::BTreeSet;
use std::convert::identity;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Namespace, Node, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::PartialObjectMeta;
use kube::{Api, Resource, ResourceExt};
use qm_api::MyIngress;
use qm_api::my_ingress::{FINALIZER, GROUP, ListenerStatus};
use qm_aws::Aws;
use qm_aws::elb::Elb;
use qm_core::conditions::{self, READY};
use qm_core::kind::{DelegatedAccess, EVENTS, KindInfo, Permission};
use qm_runtime::cache::Touched;
use qm_runtime::manager::Manager;
use qm_runtime::owners::{Owners, Unconfirmed};
use qm_runtime::ownership::Owner;
use qm_runtime::reconciler::{Class, Failure, Reconciler, Requeue};
use qm_runtime::written::Written;
use qm_runtime::{Key, Scope, finalizer};
use tokio::sync::OnceCell;

use self::backends::Backends;
use self::build::Desired;
use self::execute::{Executor, MyIngressError};
use self::observe::{Observed, now};
use self::report::{Report, report};
use self::status::{FORBIDDEN, MyIngressReadiness, OUT_OF_SCOPE, PASSING, SPEC_INVALID, SUSPENDED};
use self::tags::{OF_THE_CLUSTER, OwnershipTags};
use crate::cli::Config;

mod backends;
pub mod build;
mod execute;
mod observe;
mod plan;
mod report;
mod routes;
pub mod status;
mod step;
pub(crate) mod tags;
#[cfg(test)]
mod tests;

/// The controller's name in logs and metrics.
pub const NAME: &str = "myingress";
/// The kind.
pub const KIND: KindInfo = KindInfo::of::<MyIngress>(
    NAME,
    &["bfce22e9140a395e"],
    DelegatedAccess::Nothing,
    &[
        Permission::namespaced(GROUP, &["myingresses"], &["get", "list", "patch", "watch"]),
        Permission::namespaced(GROUP, &["myingresses/status"], &["patch"]),
        // The UID of kube-system identifies the cluster.
        Permission::cluster_scoped("", &["namespaces"], &["get"]),
        // What listeners lead to.
        Permission::cluster_scoped("", &["nodes"], &["list", "watch"]),
        Permission::namespaced("", &["services"], &["get", "list", "watch"]),
        EVENTS,
    ],
);

/// The controller.
pub(crate) struct MyIngresses<A> {
    executor: Executor<A>,
    cluster: OnceCell<String>,
    /// The objects whose last reconcile failed for a transient reason.
    failed: Mutex<BTreeSet<Key>>,
    resync: Duration,
    shown_within: Duration,
}

/// Starts the controller.
pub fn start(manager: &mut Manager, config: &Config) -> anyhow::Result<()> {
    let ingresses = manager.kind::<MyIngress>(&KIND);
    let (store, trigger) = (ingresses.store.clone(), ingresses.trigger.clone());
    let backends = Arc::new(Backends::new(trigger.clone()));
    let (newest, others) = (manager.watches.clone(), manager.others.clone());
    let nodes = vec![(None, Api::all(manager.client.clone()))];
    let needed = &backends.watch_needed;
    manager.look::<Node, _>(nodes, &newest, needed, &backends, identity);
    let services = manager.scope.places(&manager.client);
    manager.look::<PartialObjectMeta<Service>, _>(services, &others, needed, &backends, identity);
    let timings = &config.timings;
    let (resync, shown_within) = (timings.aws_resync, timings.aws_shown_within);
    let controller = Arc::new(MyIngresses {
        executor: Executor {
            client: manager.client.clone(),
            scope: manager.scope.clone(),
            aws: Elb::new(
                manager.fence.clone(),
                manager.metrics.clone(),
                &timings.aws(),
            ),
            ingresses: Owners::new(manager.client.clone(), store.clone()),
            backends,
            events: manager.events(NAME),
            own_writes: Written::new(trigger.clone()),
        },
        cluster: OnceCell::new(),
        failed: Mutex::default(),
        resync,
        shown_within,
    });
    let touched = Arc::clone(&controller);
    manager.control(
        ingresses,
        controller,
        Vec::new(),
        move |change, all_seen| match change {
            Touched::Present(ingress) => {
                let key = Key::of(ingress.as_ref());
                let executor = &touched.executor;
                if executor.scope == Scope::Cluster {
                    executor.backends.follow(&key, &ingress);
                }
                if all_seen && !executor.own_writes.knows(&key, &ingress) {
                    trigger.wake(&key);
                }
            }
            Touched::Gone(ingress) => {
                let key = Key::of(ingress.as_ref());
                touched.gone(&key);
                trigger.wake(&key);
                // One of the same name in another namespace may wait for the name of the load balancer.
                for other in store.state() {
                    if other.name_any() == *key.name {
                        trigger.wake(&Key::of(other.as_ref()));
                    }
                }
            }
        },
    );
    Ok(())
}

impl<A: Aws> MyIngresses<A> {
    /// Returns why nothing is done in AWS, if so: reason and message.
    fn blocked(&self, ingress: &MyIngress) -> Option<(&'static str, String)> {
        if ingress.spec.suspend.unwrap_or_default() {
            let message = "spec.suspend is true: the load balancer is left alone";
            return Some((SUSPENDED, message.into()));
        }
        if let Err(message) = build::check(ingress) {
            return Some((SPEC_INVALID, message));
        }
        let in_scope = self.executor.scope == Scope::Cluster || ingress.spec.listeners.is_empty();
        let message = "spec.listeners lead to the cluster's nodes, which needs an operator without --watch-namespace: take them out, \
                       and make listeners by other means";
        (!in_scope).then(|| (OUT_OF_SCOPE, message.into()))
    }

    /// Returns the UID of this cluster.
    async fn cluster(&self) -> Result<&str, MyIngressError> {
        let read = async || {
            let namespaces: Api<PartialObjectMeta<Namespace>> =
                Api::all(self.executor.client.clone());
            let namespace = namespaces
                .get_metadata(OF_THE_CLUSTER)
                .await
                .map_err(MyIngressError::ReadCluster)?;
            // The apiserver gives every object a UID.
            namespace
                .metadata
                .uid
                .ok_or(MyIngressError::Owner(Unconfirmed::Gone))
        };
        self.cluster.get_or_try_init(read).await.map(String::as_str)
    }

    /// Takes steps until none is left.
    async fn converge(
        &self,
        owner: &Owner,
        observed: &mut Observed,
    ) -> Result<Option<Report>, MyIngressError> {
        let cluster = self.cluster().await?;
        let desired = Desired::of(&observed.object, OwnershipTags { owner, cluster });
        while let Some(step) = plan::next(&desired, observed) {
            match self.executor.execute(&desired, observed, &step).await {
                Ok(()) => observed.done.push(step),
                Err(MyIngressError::Aws(error)) => observed.refuse(step, error),
                Err(error) => return Err(error),
            }
            observed.now = now();
        }
        Ok(report(&desired, observed))
    }

    /// Writes what came of a reconcile.
    async fn close(
        &self,
        observed: &Observed,
        result: Result<Option<Report>, MyIngressError>,
    ) -> Result<Requeue, MyIngressError> {
        let (readiness, listeners, outcome) = match result {
            Ok(None) => return Ok(Requeue::OnChange),
            Ok(Some(report)) => {
                let outcome = report.outcome.map_err(MyIngressError::Aws);
                (report.readiness, report.listeners, outcome)
            }
            Err(error) => {
                let (alb, message) = (observed.alb(), error.to_string());
                let forbidden = MyIngressReadiness::not_ready(alb, FORBIDDEN, message);
                (forbidden, observed.draft.listeners.clone(), Err(error))
            }
        };
        if self.is_reported(&observed.object, &outcome) {
            self.write_status(observed, &readiness, &listeners).await?;
        }
        outcome
    }

    /// Returns whether the status reports the outcome: no first transient error of AWS after the object was ready, and of the
    /// apiserver's errors only that the operator may not read something.
    fn is_reported(&self, ingress: &MyIngress, outcome: &Result<Requeue, MyIngressError>) -> bool {
        let (key, mut failed) = (Key::of(ingress), self.failed());
        match outcome {
            Err(MyIngressError::Aws(error)) if error.class == Class::Transient => {
                return !failed.insert(key) || !was_ready(ingress);
            }
            _ => failed.remove(&key),
        };
        match outcome {
            Ok(_) => true,
            Err(MyIngressError::Aws(error)) => error.class != Class::Stale,
            Err(error @ (MyIngressError::ReadCluster(_) | MyIngressError::ReadService(..))) => {
                error.class() == Class::Slow
            }
            Err(_) => false,
        }
    }

    fn failed(&self) -> MutexGuard<'_, BTreeSet<Key>> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the status, and emits an Event if the condition is news.
    async fn write_status(
        &self,
        observed: &Observed,
        readiness: &MyIngressReadiness,
        listeners: &[ListenerStatus],
    ) -> Result<(), MyIngressError> {
        let (executor, object) = (&self.executor, observed.object.as_ref());
        let generation = object.metadata.generation.unwrap_or_default();
        let before = object.status.as_ref();
        let status = readiness.status(before, listeners, generation, Time(now()));
        if executor.write_status(object, &status).await?.is_none() {
            return Ok(());
        }
        let before = before.map(|before| &*before.conditions).unwrap_or_default();
        if let Some(now) = conditions::news(before, &status.conditions, READY) {
            let is_well = now.status == "True" || PASSING.contains(&now.reason.as_str());
            executor.events.standing(
                is_well,
                object.object_ref(&()),
                "Balance",
                &now.reason,
                now.message.clone(),
            );
        }
        Ok(())
    }
}

/// Returns whether the object was ready, for the spec that it has now.
fn was_ready(ingress: &MyIngress) -> bool {
    ingress.status.as_ref().is_some_and(|status| {
        let condition = conditions::get(&status.conditions, READY);
        condition.is_some_and(|condition| condition.status == "True")
            && status.observed_generation == ingress.metadata.generation
    })
}

impl<A: Aws> Reconciler for MyIngresses<A> {
    type Object = MyIngress;
    type Error = MyIngressError;

    async fn reconcile(&self, ingress: Arc<MyIngress>) -> Result<Requeue, MyIngressError> {
        let own_writes = &self.executor.own_writes;
        let ingress = own_writes.newest(&Key::of(ingress.as_ref()), ingress);
        let Some(owner) = Owner::of(ingress.as_ref()) else {
            return Ok(Requeue::OnChange);
        };
        let is_deleted = ingress.metadata.deletion_timestamp.is_some();
        if is_deleted && !finalizer::is_on(ingress.as_ref(), FINALIZER) {
            return Ok(Requeue::OnChange);
        }
        let mut observed = Observed::new(ingress, self.shown_within);
        let blocked = self.blocked(&observed.object).filter(|_| !is_deleted);
        if let Some((reason, message)) = blocked {
            let alb = observed.draft.alb.clone();
            let readiness = MyIngressReadiness::not_ready(alb, reason, message);
            self.write_status(&observed, &readiness, &observed.draft.listeners)
                .await?;
            return Ok(Requeue::OnChange);
        }
        let result = self.converge(&owner, &mut observed).await;
        self.close(&observed, result).await
    }

    /// No watch tells of changes in AWS.
    fn resync(&self, _: Duration) -> Duration {
        self.resync
    }

    fn gone(&self, key: &Key) {
        self.executor.backends.forget(key);
        self.failed().remove(key);
        self.executor.own_writes.forget(key);
    }
}
