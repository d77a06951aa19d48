//! `MyApp`: one Pod.
//!
//! A reconcile takes at most one step for the Pod, which [`plan::PodPlan`] decides. The watch of Pods triggers the next
//! reconcile.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use qm_api::MyApp;
use qm_api::my_app::GROUP;
use qm_core::conditions;
use qm_core::kind::{DelegatedAccess, EVENTS, KindInfo, Permission};
use qm_runtime::backoff::{BackoffPolicy, Backoffs};
use qm_runtime::child_cache::KnownChild;
use qm_runtime::children::{Children, Ensured};
use qm_runtime::controller::{Context, Controller};
use qm_runtime::drift::RECREATED;
use qm_runtime::error::{Class, Error, Result};
use qm_runtime::manager::Manager;
use qm_runtime::outcome::{Outcome, Requeue};
use qm_runtime::{ObjectKey, SpecRevision};
use tokio::time::Instant;
use tracing::debug;

use self::plan::PodPlan;
use self::pod_state::{PodLifecycle, PodState};
use self::status::{NODE_NOT_FOUND, NODE_NOT_READY, outcome_of};
use crate::cli::RunConfig;

pub mod build;
pub(crate) mod plan;
pub(crate) mod pod_state;
pub mod status;

/// Name of the controller in logs, metrics and `--controllers`.
pub const NAME: &str = "myapp";
pub const KIND: KindInfo = KindInfo::of::<MyApp>(
    NAME,
    &["10a25c2057695947", "a280b7eabaeb97e3"],
    DelegatedAccess::Children(&[]),
    &[
        Permission::namespaced(GROUP, &["myapps"], &["get", "list", "watch"]),
        Permission::namespaced(GROUP, &["myapps/status"], &["patch"]),
        // The admission plugin OwnerReferencesPermissionEnforcement requires `update` to set references that block the
        // owner's deletion.
        Permission::namespaced(GROUP, &["myapps/finalizers"], &["update"]),
        // The operator patches only the Pod's metadata.
        Permission::namespaced(
            "",
            &["pods"],
            &["create", "delete", "get", "list", "patch", "watch"],
        ),
        // The operator checks that the node of a Pod that is not ready still exists.
        Permission::cluster_scoped("", &["nodes"], &["get"]),
        EVENTS,
    ],
)
.with_uninstall_rank(50);

pub(crate) struct MyApps {
    pods: Arc<Children<Pod, PodState>>,
    /// Delays before a Pod that has ended is recreated.
    retries: Backoffs<ObjectKey>,
    /// Minimum lifetime of a Pod whose end resets the delays.
    min_lifetime: Duration,
    tracking: Mutex<HashMap<ObjectKey, PodTracking>>,
}

/// State of a `MyApp` in memory; its loss costs only time.
#[derive(Default)]
struct PodTracking {
    /// The Pod that was not ready in the last reconcile.
    not_ready: Option<PodVersion>,
    /// True if the operator deleted the Pod to recreate it.
    is_replaced: bool,
    retry: Option<PodRetry>,
}

/// Recreation of a Pod that has ended.
struct PodRetry {
    /// UID of the Pod.
    pod: String,
    /// Revision of the `MyApp` that waits.
    revision: SpecRevision,
    /// When to delete the Pod.
    due: Instant,
}

/// UID and resourceVersion.
type PodVersion = (String, u64);

/// State of the node of a Pod.
enum NodeState {
    /// The node is ready, or was not read.
    NoProblem,
    /// The node is not ready, with its message.
    NotReady(String),
    NotFound,
}

/// Adds the controller.
pub(super) fn add_to(manager: &mut Manager, _: &RunConfig) -> anyhow::Result<()> {
    manager.add(|setup| {
        let timings = &setup.manager.settings.timings;
        let (min, max) = (timings.backoff_min, timings.backoff_max);
        Ok(MyApps {
            retries: Backoffs::new(BackoffPolicy { min, max }),
            min_lifetime: max,
            // Pods are never applied, so no drift is corrected.
            pods: setup.children(PodState::of, &[]),
            tracking: Mutex::default(),
        })
    })
}

fn pod_of(app: &ObjectKey) -> ObjectKey {
    build::pod_key(&app.namespace, &app.name)
}

fn version(child: &KnownChild<PodState>) -> PodVersion {
    (child.uid.clone(), child.version)
}

impl Controller for MyApps {
    type Kind = MyApp;
    const KIND: &'static KindInfo = &KIND;
    const FIELD_MANAGER: &'static str = pod_state::FIELD_MANAGER;

    async fn reconcile(&self, cx: &mut Context<MyApp>) -> Result<Outcome> {
        let app = Arc::clone(&cx.object);
        let desired = build::validate(&app).map_err(|invalid| {
            Error::other(Class::Terminal, invalid.reason(), invalid.to_string())
        })?;
        let plan = PodPlan {
            owner: &cx.owner,
            desired,
        };
        match self.pods.ensure(cx, &plan).await? {
            Ensured::Created(child) => {
                let is_replaced = self.track(&cx.key, |pod| std::mem::take(&mut pod.is_replaced));
                if !is_replaced && cx.status.pod_name.is_some() {
                    // An earlier process of the operator may have deleted the Pod to replace it.
                    let note =
                        format!("recreated {}, which had been deleted", child.summary.name());
                    cx.event("Create", RECREATED, note);
                }
                Ok(outcome_of(&child.summary))
            }
            Ensured::Terminating(child) => Ok(self.report_terminating(cx, &child).await),
            Ensured::Deleted(child, difference) => {
                self.track(&cx.key, |pod| pod.is_replaced = true);
                let note = format!(
                    "deleted {} to replace it: {difference}",
                    child.summary.name()
                );
                cx.event("Delete", "Replaced", note);
                Ok(status::terminating(&child.summary))
            }
            Ensured::Adopted(child) => {
                let note = format!("adopted {} unchanged", child.summary.name());
                cx.event("Adopt", "Adopted", note);
                self.handle_match(cx, &child).await
            }
            Ensured::Updated(child) | Ensured::Kept(child) | Ensured::Waits(child) => {
                self.handle_match(cx, &child).await
            }
        }
    }

    async fn synced(&self) {
        self.pods.synced().await;
    }

    fn fill_status(&self, cx: &mut Context<MyApp>) {
        let pod = self.pods.summary(&pod_of(&cx.key), &cx.owner);
        cx.status.pod_name = pod.as_ref().map(|pod| pod.name().to_owned());
        let phase = pod.map(|pod| pod.phase);
        cx.status.phase = phase.filter(|phase| !phase.is_empty());
    }

    fn forget(&self, key: &ObjectKey) {
        self.pods.forget(&pod_of(key));
        self.retries.reset(key);
        let mut tracking = self.tracking.lock().unwrap_or_else(PoisonError::into_inner);
        tracking.remove(key);
    }
}

impl MyApps {
    fn track<T>(&self, key: &ObjectKey, act: impl FnOnce(&mut PodTracking) -> T) -> T {
        let mut tracking = self.tracking.lock().unwrap_or_else(PoisonError::into_inner);
        act(tracking.entry(key.clone()).or_default())
    }

    /// Reports a Pod that matches its desired state, and recreates one that has ended or whose node no longer exists.
    async fn handle_match(
        &self,
        cx: &Context<MyApp>,
        child: &KnownChild<PodState>,
    ) -> Result<Outcome> {
        let pod = &child.summary;
        match pod.lifecycle {
            PodLifecycle::Ready => {
                self.track(&cx.key, |pod| pod.not_ready = None);
                return Ok(outcome_of(pod));
            }
            PodLifecycle::Ended => return self.recreate(cx, child).await,
            PodLifecycle::NotReady => {}
        }
        let Some(node) = pod.node.as_deref() else {
            return Ok(outcome_of(pod));
        };
        let outcome = match self.node_state(cx, child, node).await {
            NodeState::NoProblem => outcome_of(pod).requeue(Requeue::Poll),
            NodeState::NotReady(message) => status::node_not_ready(pod, node, &message),
            NodeState::NotFound => {
                self.delete(&cx.key, child).await?;
                status::node_not_found(pod, node)
            }
        };
        Ok(outcome)
    }

    /// Reports a Pod that is being deleted, and its node if the kubelet cannot confirm the end.
    async fn report_terminating(
        &self,
        cx: &Context<MyApp>,
        child: &KnownChild<PodState>,
    ) -> Outcome {
        let pod = &child.summary;
        let Some(node) = pod.node.as_deref() else {
            return status::terminating(pod);
        };
        match self.node_state(cx, child, node).await {
            NodeState::NoProblem => status::terminating(pod),
            NodeState::NotReady(message) => status::node_not_ready(pod, node, &message),
            NodeState::NotFound => status::node_not_found(pod, node),
        }
    }

    /// Deletes a Pod that has ended, after a delay that grows with each Pod until a Pod reaches the minimum lifetime. A
    /// change of the spec and a request end the wait.
    async fn recreate(&self, cx: &Context<MyApp>, child: &KnownChild<PodState>) -> Result<Outcome> {
        let key = &cx.key;
        let created = child.summary.created;
        let age =
            created.and_then(|created| Timestamp::now().duration_since(created).try_into().ok());
        let has_lasted = age.is_some_and(|age: Duration| age > self.min_lifetime);
        let revision = SpecRevision::of(cx.object.as_ref());
        let due = self.track(key, |tracking| {
            let last = tracking.retry.take();
            let is_revised = last.as_ref().is_some_and(|last| last.revision != revision);
            let waits = last.filter(|last| last.pod == child.uid);
            let due = match &waits {
                Some(last) if !is_revised => last.due,
                _ => {
                    if has_lasted || is_revised {
                        self.retries.reset(key);
                    }
                    let delay = match &waits {
                        Some(_) => Duration::ZERO,
                        None => self.retries.next_delay(key),
                    };
                    Instant::now() + delay
                }
            };
            tracking.retry = Some(PodRetry {
                pod: child.uid.clone(),
                revision,
                due,
            });
            due
        });
        let left = due.saturating_duration_since(Instant::now());
        if left > Duration::ZERO {
            return Ok(outcome_of(&child.summary).requeue(Requeue::After(left)));
        }
        self.delete(key, child).await?;
        Ok(outcome_of(&child.summary).requeue(Requeue::Poll))
    }

    async fn delete(&self, key: &ObjectKey, child: &KnownChild<PodState>) -> Result<()> {
        // The request may be performed although it fails.
        self.track(key, |pod| pod.is_replaced = true);
        self.pods.delete(&pod_of(key), child).await
    }

    /// Returns the state of the node of a Pod that is not ready. The node is read once two reconciles find the Pod
    /// unchanged: a Pod that changes has a working node.
    async fn node_state(
        &self,
        cx: &Context<MyApp>,
        child: &KnownChild<PodState>,
        node: &str,
    ) -> NodeState {
        let now = Some(version(child));
        let before = self.track(&cx.key, |pod| {
            std::mem::replace(&mut pod.not_ready, now.clone())
        });
        let reported = conditions::ready(&cx.status.conditions);
        let is_reported =
            reported.is_some_and(|ready| [NODE_NOT_FOUND, NODE_NOT_READY].contains(&ready.reason));
        if before != now && !is_reported {
            return NodeState::NoProblem;
        }
        match Api::<Node>::all(cx.client().clone()).get_opt(node).await {
            Ok(Some(found)) => {
                status::node_problem(&found).map_or(NodeState::NoProblem, NodeState::NotReady)
            }
            Ok(None) => NodeState::NotFound,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                debug!(node, error, "the node of the Pod could not be read");
                NodeState::NoProblem
            }
        }
    }
}
