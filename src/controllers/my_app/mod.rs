//! `MyApp`: one Pod.
//!
//! A reconcile does at most one thing to the Pod, which [`step::next`] decides; the watch shows what came of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use qm_api::MyApp;
use qm_api::my_app::GROUP;
use qm_core::kind::{DelegatedAccess, EVENTS, HasReadyCondition as _, KindInfo, Permission};
use qm_runtime::Key;
use qm_runtime::backoff::{Backoffs, Policy};
use qm_runtime::children::Children;
use qm_runtime::children::whole::Child;
use qm_runtime::controller::{Context, Controller};
use qm_runtime::drift::RECREATED;
use qm_runtime::error::{Class, Error, Result};
use qm_runtime::manager::Manager;
use qm_runtime::outcome::{Outcome, Requeue};
use qm_runtime::ownership::{Claim, Owner};
use tokio::time::Instant;
use tracing::debug;

use self::build::DesiredPod;
pub use self::pod_state::MANAGER;
use self::pod_state::{PodLifecycle, PodState};
use self::step::{NODE_NOT_FOUND, NODE_NOT_READY, PodStep, outcome_of};
use crate::cli::Config;

pub mod build;
pub mod pod_state;
pub mod step;

/// Name of the controller in logs, metrics and `--controllers`.
pub const NAME: &str = "myapp";
/// The kind.
pub const KIND: KindInfo = KindInfo::of::<MyApp>(
    NAME,
    &["e4684006046c7e16"],
    DelegatedAccess::Pods,
    &[
        Permission::namespaced(GROUP, &["myapps"], &["get", "list", "watch"]),
        Permission::namespaced(GROUP, &["myapps/status"], &["patch"]),
        // Asked for where owner references that block the owner's deletion are checked.
        Permission::namespaced(GROUP, &["myapps/finalizers"], &["update"]),
        // Only its metadata is ever patched.
        Permission::namespaced(
            "",
            &["pods"],
            &["create", "delete", "get", "list", "patch", "watch"],
        ),
        // Whether the node of a Pod that is not ready still exists.
        Permission::cluster_scoped("", &["nodes"], &["get"]),
        EVENTS,
    ],
);

/// Maximum number of attempts in one reconcile to create or read a Pod that comes and goes.
const TRIES: usize = 3;

/// The controller.
pub struct MyApps {
    pods: Arc<Children<Pod, PodState>>,
    /// Delays before a Pod that has ended is recreated.
    retries: Backoffs<Key>,
    /// A Pod that lived longer than this did not fail at once.
    settled_after: Duration,
    resync: Duration,
    tracking: Mutex<HashMap<Key, PodTracking>>,
}

/// State of a `MyApp` beside its status. A restart that loses the state costs time only.
#[derive(Default)]
struct PodTracking {
    /// The Pod that was not ready in the last reconcile.
    not_ready: Option<PodVersion>,
    /// Time since which the watch is believed.
    believed_since: Option<Instant>,
    /// The Pod as the watch showed it when a write of it failed or it was deleted: a read must follow.
    doubted: Option<PodVersion>,
    /// The Pod was deleted to be recreated.
    is_replaced: bool,
    /// UID of the Pod that ended, and when it is to be deleted.
    retry: Option<(String, Instant)>,
}

/// UID and resourceVersion.
type PodVersion = (String, String);

/// Result of a look for the Pod.
enum PodLookup {
    Created(Child<PodState>),
    Existing(Child<PodState>),
}

/// State of the node of a Pod.
enum NodeState {
    /// The node is ready, or nobody asked.
    Ready,
    /// The node is not ready: its own words.
    NotReady(String),
    NotFound,
}

/// Adds the controller.
///
/// # Errors
/// None.
pub fn start(manager: &mut Manager, _: &Config) -> anyhow::Result<()> {
    manager.add(|setup| {
        let timings = &setup.manager.settings.timings;
        let (min, max) = (timings.retry_min, timings.retry_max);
        Ok(MyApps {
            retries: Backoffs::new(Policy { min, max }),
            settled_after: max,
            resync: timings.resync,
            // Pods are never applied, so no drift is corrected.
            pods: setup.children(PodState::of, &[]),
            tracking: Mutex::default(),
        })
    })
}

/// Returns the Pod's namespace and name.
fn pod_of(owner: &Owner) -> Key {
    Key::new(owner.namespace(), &build::pod_name(owner.name()))
}

fn version(child: &Child<PodState>) -> PodVersion {
    (child.uid.clone(), child.version.clone())
}

impl Controller for MyApps {
    type Kind = MyApp;
    const KIND: &'static KindInfo = &KIND;
    const FIELD_MANAGER: &'static str = MANAGER;

    async fn reconcile(&self, cx: &mut Context<MyApp>) -> Result<Outcome> {
        self.pods.ready().await;
        let app = Arc::clone(&cx.object);
        let desired = build::validate(&app).map_err(|invalid| Error::Other {
            class: Class::Terminal,
            reason: invalid.reason().into(),
            message: invalid.to_string(),
        })?;
        let result = self.ensure(cx, &desired).await;
        if result.is_err() {
            let child = self.pods.child(&pod_of(&cx.owner));
            self.track(&cx.key, |pod| pod.doubted = child.as_ref().map(version));
        }
        result
    }

    fn observe(&self, cx: &mut Context<MyApp>) {
        let pod = self.pods.child(&pod_of(&cx.owner)).map(|pod| pod.report);
        let pod = pod.filter(|pod| cx.claim(&pod.ownership) == Claim::Ours);
        cx.status.pod_name = pod.as_ref().map(|pod| pod.name().to_owned());
        let phase = pod.map(|pod| pod.phase);
        cx.status.phase = phase.filter(|phase| !phase.is_empty());
    }

    fn forget(&self, key: &Key) {
        self.pods
            .forget(&Key::new(&key.namespace, &build::pod_name(&key.name)));
        self.retries.reset(key);
        let mut tracking = self.tracking.lock().unwrap_or_else(PoisonError::into_inner);
        tracking.remove(key);
    }
}

impl MyApps {
    fn track<T>(&self, key: &Key, act: impl FnOnce(&mut PodTracking) -> T) -> T {
        let mut tracking = self.tracking.lock().unwrap_or_else(PoisonError::into_inner);
        act(tracking.entry(key.clone()).or_default())
    }

    async fn ensure(&self, cx: &Context<MyApp>, desired: &DesiredPod<'_>) -> Result<Outcome> {
        let (key, owner) = (&cx.key, &cx.owner);
        let child = match self.find(cx, desired).await? {
            PodLookup::Existing(child) => child,
            PodLookup::Created(child) => {
                let is_replaced = self.track(key, |pod| std::mem::take(&mut pod.is_replaced));
                let status = cx.object.status.as_ref();
                if !is_replaced && status.is_some_and(|status| status.pod_name.is_some()) {
                    let note = format!("{} was deleted and is recreated", child.key.name);
                    cx.event("Create", RECREATED, note);
                }
                return Ok(outcome_of(&child.report));
            }
        };
        if cx.claim(&child.report.ownership) == Claim::Restored {
            cx.confirm_owner().await?;
        }
        match step::next(owner, desired, &child.report, |uid| cx.owners().lives(uid)) {
            PodStep::Ignore(foreign) => {
                // No watch shows that the Pod goes or is handed over: it lacks our label.
                Err(Error::NotOwned(
                    self.pods.conflict(owner, &foreign, &child.key),
                ))
            }
            PodStep::Wait => Ok(self.wait(cx, &child).await),
            PodStep::Replace(difference) => {
                self.delete(key, &child).await?;
                let note = format!("{} is replaced: {difference}", child.key.name);
                cx.event("Delete", "Replaced", note);
                Ok(step::terminating(&child.report))
            }
            PodStep::Recreate => self.recreate(key, &child).await,
            PodStep::RestoreOwnership(claim) => {
                let labels = [(build::APP, owner.name())];
                let labels: &[_] = if child.report.lacks_label() {
                    &labels
                } else {
                    &[]
                };
                let marks = &child.report.ownership;
                let owned = self.pods.mark(owner, &child, marks, labels).await?;
                if claim != Claim::Ours {
                    let note = format!("{} is adopted as it is", child.key.name);
                    cx.event("Adopt", "Adopted", note);
                }
                self.keep(cx, &owned).await
            }
            PodStep::Keep => self.keep(cx, &child).await,
        }
    }

    /// Returns the Pod, created if there is none. The watch answers where it can. An app without a status has never had a
    /// Pod, so its Pod is created without a read, which cannot overwrite one either; later a Pod that the watch does not
    /// show may exist, and not be owned.
    async fn find(&self, cx: &Context<MyApp>, desired: &DesiredPod<'_>) -> Result<PodLookup> {
        let pod = pod_of(&cx.owner);
        let mut may_exist = cx.object.status.is_some();
        if let Some(known) = self.pods.child(&pod) {
            if self.believes(&cx.key, &known) {
                return Ok(PodLookup::Existing(known));
            }
            may_exist = true;
        }
        for _ in 0..TRIES {
            if !may_exist
                && let Some(created) = self.pods.make(&build::pod(&cx.owner, desired)).await?
            {
                return Ok(PodLookup::Created(created));
            }
            let found = self.pods.ask(&pod).await?;
            self.track(&cx.key, |pod| {
                (pod.believed_since, pod.doubted) = (None, None);
            });
            if let Some(found) = found {
                return Ok(PodLookup::Existing(found));
            }
            cx.confirm_owner().await?;
            may_exist = false;
        }
        Err(Error::Stale("the Pod keeps being replaced".into()))
    }

    /// Returns whether the watch is believed. It may have missed an event, so a read follows once per resync.
    fn believes(&self, key: &Key, known: &Child<PodState>) -> bool {
        self.track(key, |pod| {
            let is_doubted = pod.doubted.as_ref() == Some(&version(known));
            !is_doubted
                && pod
                    .believed_since
                    .get_or_insert_with(Instant::now)
                    .elapsed()
                    < self.resync
        })
    }

    /// Reports a Pod that matches.
    async fn keep(&self, cx: &Context<MyApp>, child: &Child<PodState>) -> Result<Outcome> {
        let pod = &child.report;
        if pod.lifecycle == PodLifecycle::Ready {
            self.track(&cx.key, |pod| pod.not_ready = None);
            return Ok(outcome_of(pod));
        }
        let Some(node) = pod.node.as_deref() else {
            return Ok(outcome_of(pod));
        };
        let outcome = match self.node_state(cx, child, node).await {
            NodeState::Ready => outcome_of(pod).requeue(Requeue::Poll),
            NodeState::NotReady(message) => step::node_not_ready(pod, node, &message),
            NodeState::NotFound => {
                self.delete(&cx.key, child).await?;
                step::node_not_found(pod, node)
            }
        };
        Ok(outcome)
    }

    /// Waits for a Pod that is being deleted. Its kubelet reports when it is gone; the message says why if the kubelet does
    /// not.
    async fn wait(&self, cx: &Context<MyApp>, child: &Child<PodState>) -> Outcome {
        let pod = &child.report;
        let Some(node) = pod.node.as_deref() else {
            return step::terminating(pod);
        };
        match self.node_state(cx, child, node).await {
            NodeState::Ready => step::terminating(pod),
            NodeState::NotReady(message) => step::node_not_ready(pod, node, &message),
            NodeState::NotFound => step::node_not_found(pod, node),
        }
    }

    /// Deletes a Pod that has ended, after a delay that grows from one Pod to the next, unless this one lasted.
    async fn recreate(&self, key: &Key, child: &Child<PodState>) -> Result<Outcome> {
        let created = child.report.created;
        let age =
            created.and_then(|created| Timestamp::now().duration_since(created).try_into().ok());
        let has_lasted = age.is_some_and(|age: Duration| age > self.settled_after);
        let due = self.track(key, |pod| match &pod.retry {
            Some((uid, due)) if *uid == child.uid => *due,
            _ => {
                if has_lasted {
                    self.retries.reset(key);
                }
                let due = Instant::now() + self.retries.next_delay(key);
                pod.retry = Some((child.uid.clone(), due));
                due
            }
        });
        let left = due.saturating_duration_since(Instant::now());
        if left > Duration::ZERO {
            return Ok(outcome_of(&child.report).requeue(Requeue::After(left)));
        }
        self.delete(key, child).await?;
        Ok(outcome_of(&child.report).requeue(Requeue::Poll))
    }

    /// Deletes the Pod. Unless the watch shows what comes of that, the next reconcile reads it.
    async fn delete(&self, key: &Key, child: &Child<PodState>) -> Result<()> {
        self.track(key, |pod| pod.doubted = Some(version(child)));
        self.pods.delete(child).await?;
        self.track(key, |pod| pod.is_replaced = true);
        Ok(())
    }

    /// Returns the state of the node of a Pod that is not ready. The node is read once the Pod has not changed between two
    /// reconciles: as long as it changes, its node works.
    async fn node_state(
        &self,
        cx: &Context<MyApp>,
        child: &Child<PodState>,
        node: &str,
    ) -> NodeState {
        let now = Some(version(child));
        let before = self.track(&cx.key, |pod| {
            std::mem::replace(&mut pod.not_ready, now.clone())
        });
        let reported = cx.object.ready_condition();
        let is_reported =
            reported.is_some_and(|ready| [NODE_NOT_FOUND, NODE_NOT_READY].contains(&ready.reason));
        if before != now && !is_reported {
            return NodeState::Ready;
        }
        match Api::<Node>::all(cx.client().clone()).get_opt(node).await {
            Ok(Some(found)) => {
                step::not_ready(&found).map_or(NodeState::Ready, NodeState::NotReady)
            }
            Ok(None) => NodeState::NotFound,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                debug!(node, error, "the node of the Pod could not be read");
                NodeState::Ready
            }
        }
    }
}
