//! `quartermaster uninstall`: deletes all objects of Quartermaster's kinds while the operator runs, and names what blocks one.
//! The command ends within `--timeout`, whatever the cluster does.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use kube::core::DynamicObject;
use kube::{Api, Client};
use qm_core::kind::KindInfo;
use qm_runtime::signals::Signals;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout_at};

use self::step::{PendingChanges, UninstallStep, UninstallTarget};
use super::objects::is_own_finalizer;
use super::operator_state::{LeaseVersion, OperatorState};
use super::printer::Printer;
use super::{MANAGER, OutageReporter, RequestError, has_code, objects};
use crate::cli::commands::{ClusterArgs, UninstallArgs};
use crate::kinds;

mod confirm;
mod crds;
mod messages;
mod proof;
mod step;

/// The shortest time between two rounds.
const ROUND_INTERVAL: Duration = Duration::from_millis(500);
/// Time until the blockers of the deletion are printed; also the time limit of the last requests.
const PATIENCE: Duration = Duration::from_secs(3);
/// Concurrent deletions.
const CONCURRENCY: usize = 16;
/// Maximum number of objects that are named while the command waits for them.
const MAX_NAMED: usize = 50;
/// Exit code if the user did not confirm.
const NOT_CONFIRMED: u8 = 2;

struct Uninstall<'a> {
    client: Client,
    args: &'a UninstallArgs,
    /// The kinds in the order of their deletion, without those whose CRD is another program's.
    kinds: Vec<&'static KindInfo>,
    /// The Lease that proves for `--without-operator` that the operator is gone.
    expired_lease: Option<LeaseVersion>,
    changes: RefCell<PendingChanges>,
}

/// The CRD of a kind.
struct Crd {
    name: String,
    is_deleting: bool,
    /// True for a CRD of this program. The objects of any other CRD are foreign, too.
    is_owned: bool,
    /// Why the CRD was not deleted.
    problem: Option<RequestError>,
    uid: Option<String>,
}

/// Everything in the cluster that belongs to Quartermaster's kinds.
struct Discovery {
    targets: Vec<UninstallTarget>,
    /// The CRDs to delete.
    crds: Vec<Crd>,
    /// Names of the CRDs of another program.
    foreign: Vec<String>,
    /// Why there may be more of these.
    unknown: Option<String>,
}

/// The objects and CRDs that exist after a round.
#[derive(Default)]
struct Remaining {
    targets: Vec<UninstallTarget>,
    crds: Vec<Crd>,
}

/// An error that a retry does not fix.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct PermanentError(String);

pub(crate) async fn run(
    client: Client,
    cluster_name: &str,
    args: &UninstallArgs,
    out: &mut Printer,
) -> anyhow::Result<ExitCode> {
    let mut uninstall = Uninstall {
        client,
        args,
        kinds: kinds::uninstall_order(),
        expired_lease: None,
        changes: RefCell::default(),
    };
    let mut signals = Signals::new()?;
    let confirmed = tokio::select! {
        confirmed = uninstall.confirm(cluster_name, out) => confirmed?,
        () = signals.next() => {
            out.line("")?;
            out.line("Interrupted: nothing was deleted.")?;
            ControlFlow::Break(ExitCode::from(NOT_CONFIRMED))
        }
    };
    let deadline = match confirmed {
        ControlFlow::Continue(deadline) => deadline,
        ControlFlow::Break(code) => return Ok(code),
    };
    let result = tokio::select! {
        remaining = uninstall.delete_all(deadline, out) => match remaining {
            Ok(None) => return uninstall.print_success(out),
            Ok(Some(remaining)) => uninstall.print_remaining(&remaining, out).await,
            Err(error) => Err(error),
        },
        () = signals.next() => {
            out.line("")?;
            out.line("Interrupted: run it again to continue.")?;
            Ok(ExitCode::FAILURE)
        }
    };
    uninstall.print_undo(out)?;
    result
}

impl Uninstall<'_> {
    fn namespace(&self) -> Option<&str> {
        self.args.scope.namespace()
    }

    fn cluster(&self) -> &ClusterArgs {
        &self.args.scope.cluster
    }

    async fn list(&self, kind: &'static KindInfo) -> anyhow::Result<Vec<UninstallTarget>> {
        let target = |object| UninstallTarget::new(kind, &object);
        let listed = objects::list(&self.client, kind, self.namespace(), target).await;
        let failure = || format!("the {} could not be listed", kind.resource().plural);
        Ok(listed.with_context(failure)?.unwrap_or_default())
    }

    /// Deletes everything. Returns what remains at the deadline, or as soon as nothing more can be done.
    async fn delete_all(
        &self,
        deadline: Instant,
        out: &mut Printer,
    ) -> anyhow::Result<Option<Remaining>> {
        let started = Instant::now();
        let mut remaining = Remaining::default();
        let (mut versions, mut changed) = (Vec::new(), started);
        let mut printed = HashMap::new();
        let mut outage = OutageReporter::default();
        loop {
            let began = Instant::now();
            let Ok(round) = timeout_at(deadline, self.round()).await else {
                break;
            };
            match round {
                Err(error) if error.is::<PermanentError>() => return Err(error),
                Err(error) => outage.report(&error, out)?,
                Ok(None) => return Ok(None),
                Ok(Some(round)) => {
                    remaining = round;
                    outage = OutageReporter::default();
                    if started.elapsed() > PATIENCE {
                        self.print_blockers(&remaining, &mut printed, out)?;
                    }
                    if versions != remaining.versions() {
                        versions = remaining.versions();
                        changed = Instant::now();
                    }
                    let is_over = self.is_over(&remaining, changed.elapsed());
                    if timeout_at(deadline, is_over).await.unwrap_or(true) {
                        break;
                    }
                }
            }
            let pause = ROUND_INTERVAL.max(began.elapsed() * 2);
            sleep_until(deadline.min(Instant::now() + pause)).await;
        }
        let is_empty = remaining.targets.is_empty() && remaining.crds.is_empty();
        anyhow::ensure!(
            !is_empty,
            "the cluster did not answer in time: run it again"
        );
        Ok(Some(remaining))
    }

    /// Returns true if nothing more can be done about what remains, which has not changed for the time `unchanged`.
    async fn is_over(&self, remaining: &Remaining, unchanged: Duration) -> bool {
        let is_stalled = unchanged > self.args.stalled_after;
        if !is_stalled || !remaining.waits_for_operator(self.args) {
            return remaining.is_forbidden();
        }
        match LeaseVersion::read(&self.client, &self.args.lease.key()).await {
            Ok(lease) => !lease.is_some_and(|lease| lease.by_clock(Timestamp::now()).is_running()),
            // A busy apiserver proves nothing.
            Err(error) => !RequestError::is_busy(&error),
        }
    }

    async fn operator(&self) -> OperatorState {
        OperatorState::read(&self.client, &self.args.lease.key()).await
    }

    /// Takes the next steps for each object, kind by kind, and deletes the CRDs once no object is found. Returns none if all is
    /// gone.
    async fn round(&self) -> anyhow::Result<Option<Remaining>> {
        let mut is_found = false;
        let mut remaining = Remaining::default();
        for kind in &self.kinds {
            let targets = self.list(kind).await?;
            if self.args.without_operator && !targets.is_empty() {
                self.ensure_still_gone().await?;
            }
            is_found |= !targets.is_empty();
            let acted = stream::iter(targets).map(|target| self.act(target));
            let acted: Vec<_> = acted.buffered(CONCURRENCY).collect().await;
            remaining.targets.extend(acted.into_iter().flatten());
        }
        if !is_found {
            remaining.crds = self.purge().await?;
        }
        Ok((is_found || !remaining.crds.is_empty()).then_some(remaining))
    }

    /// Takes steps until others have to act. Returns the object, unless it is gone.
    async fn act(&self, mut target: UninstallTarget) -> Option<UninstallTarget> {
        match self.take_steps(&mut target).await {
            Ok(true) => return None,
            Ok(false) => {}
            Err(error) if has_code(&error, 404) => {
                self.changes.borrow_mut().remove(&target);
                return None;
            }
            // Changed meanwhile: the next round reads it again.
            Err(error) if has_code(&error, 409) => {}
            Err(error) => target.problem = Some(error.into()),
        }
        Some(target)
    }

    /// Returns true if the object is gone.
    async fn take_steps(&self, target: &mut UninstallTarget) -> kube::Result<bool> {
        // At most three: change the spec, remove finalizers, delete.
        for _ in 0..3 {
            let (field, patch) = match target.step(self.args) {
                UninstallStep::Wait => return Ok(false),
                UninstallStep::Delete(children) => return self.delete(target, children).await,
                UninstallStep::Suspend => {
                    let patch = json!({ "spec": { "suspend": true } });
                    (Some("suspend"), patch)
                }
                UninstallStep::OrphanCopies => {
                    let patch = json!({ "spec": { "deletionPolicy": "Orphan" } });
                    (Some("deletionPolicy"), patch)
                }
                UninstallStep::RemoveFinalizers => {
                    let mut finalizers = target.object.finalizers.clone();
                    finalizers.retain(|finalizer| !is_own_finalizer(finalizer));
                    (None, json!({ "metadata": { "finalizers": finalizers } }))
                }
            };
            // Recorded before the request: the apiserver may carry it out although no answer arrives.
            let undo = field.filter(|_| !target.is_deleting());
            if let Some(field) = undo {
                self.changes.borrow_mut().add(target, field);
            }
            let patched = self.patch(target, patch).await;
            if undo.is_some() && matches!(patched, Err(kube::Error::Api(_))) {
                self.changes.borrow_mut().remove(target);
            }
            *target = UninstallTarget::new(target.kind, &patched?);
            if target.is_deleting() && target.object.finalizers.is_empty() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Patches the object, if it still has this version.
    async fn patch(
        &self,
        target: &UninstallTarget,
        mut patch: Value,
    ) -> kube::Result<DynamicObject> {
        patch["metadata"]["uid"] = target.object.uid.clone().into();
        patch["metadata"]["resourceVersion"] = target.version.clone().into();
        let params = PatchParams {
            field_manager: Some(MANAGER.into()),
            ..PatchParams::default()
        };
        let api = self.api(target);
        api.patch(&target.object.name, &params, &Patch::Merge(&patch))
            .await
    }

    /// Deletes the object. Returns true if it is gone at once.
    async fn delete(
        &self,
        target: &UninstallTarget,
        children: PropagationPolicy,
    ) -> kube::Result<bool> {
        let params = DeleteParams {
            propagation_policy: Some(children),
            preconditions: Some(Preconditions {
                uid: Some(target.object.uid.clone()),
                // The children of another version might not be kept.
                resource_version: self.args.keep_children.then(|| target.version.clone()),
            }),
            ..DeleteParams::default()
        };
        let api = self.api(target);
        let deleted = api.delete(&target.object.name, &params).await?;
        self.changes.borrow_mut().remove(target);
        Ok(deleted.is_right())
    }

    fn api(&self, target: &UninstallTarget) -> Api<DynamicObject> {
        let namespace = Some(&*target.object.namespace);
        objects::api(&self.client, target.kind, namespace)
    }
}

impl Remaining {
    fn versions(&self) -> Vec<String> {
        let targets = self.targets.iter();
        targets.map(|target| target.version.clone()).collect()
    }

    /// Returns true if missing permissions are all that is in the way.
    fn is_forbidden(&self) -> bool {
        let targets = self.targets.iter().map(|target| &target.problem);
        let problems: Vec<_> = targets
            .chain(self.crds.iter().map(|crd| &crd.problem))
            .collect();
        let is_forbidden = |problem: &RequestError| problem.code == Some(403);
        !problems.is_empty()
            && problems
                .iter()
                .all(|it| it.as_ref().is_some_and(is_forbidden))
    }

    /// Returns true if nobody but the operator can go on.
    fn waits_for_operator(&self, args: &UninstallArgs) -> bool {
        let mut targets = self.targets.iter();
        !self.targets.is_empty() && targets.all(|target| target.waits_for_operator(args))
    }
}
