//! The deletion, repeated until nothing is left or nothing more can be done.

use std::cell::RefCell;
use std::collections::HashSet;
use std::time::Duration;

use anyhow::Context as _;
use futures::{StreamExt, stream};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use kube::core::DynamicObject;
use kube::{Api, Client};
use qm_core::kind::KindInfo;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::remaining::Remaining;
use super::target::{PendingChanges, UninstallStep, UninstallTarget};
use super::{crds, proof};
use crate::cli::commands::UninstallArgs;
use crate::commands::objects::is_own_finalizer;
use crate::commands::operator_state::{LeaseVersion, OperatorState};
use crate::commands::printer::Printer;
use crate::commands::{
    FIELD_MANAGER, FailedRequest, OutageReporter, RETRY_INTERVAL, has_code, objects,
};

/// Time until the blockers are printed.
const BLOCKERS_PRINTED_AFTER: Duration = Duration::from_secs(3);
/// Maximum number of concurrent deletions.
const CONCURRENCY: usize = 16;

/// A deletion that the user has confirmed.
pub(super) struct Deletion<'a> {
    pub(super) client: Client,
    pub(super) args: &'a UninstallArgs,
    /// The kinds in the order of their deletion.
    pub(super) kinds: Vec<&'static KindInfo>,
    /// The Lease that proves for `--without-operator` that the operator has stopped.
    pub(super) expired_lease: Option<LeaseVersion>,
    pub(super) deadline: Instant,
    pub(super) changes: RefCell<PendingChanges>,
}

impl Deletion<'_> {
    /// Deletes everything. Returns what remains at the deadline, or as soon as nothing more can be done.
    pub(super) async fn run(&self, out: &mut Printer) -> anyhow::Result<Option<Remaining>> {
        let (deadline, started) = (self.deadline, Instant::now());
        let mut last = None;
        let (mut versions, mut changed) = (Vec::new(), started);
        let mut printed = HashSet::new();
        let mut outage = OutageReporter::default();
        loop {
            let began = Instant::now();
            let Ok(remaining) = timeout_at(deadline, self.take_steps()).await else {
                break;
            };
            match remaining {
                Err(error) if error.is::<FailedRequest>() => outage.report(&error, out)?,
                Err(error) => return Err(error),
                Ok(None) => return Ok(None),
                Ok(Some(remaining)) => {
                    outage = OutageReporter::default();
                    if started.elapsed() > BLOCKERS_PRINTED_AFTER {
                        remaining.print_blockers(self.args, &mut printed, out)?;
                    }
                    if versions != remaining.versions() {
                        versions = remaining.versions();
                        changed = Instant::now();
                    }
                    let is_over = self.is_over(&remaining, changed.elapsed());
                    let is_over = timeout_at(deadline, is_over).await.unwrap_or(true);
                    last = Some(remaining);
                    if is_over {
                        break;
                    }
                }
            }
            let pause = RETRY_INTERVAL.max(began.elapsed() * 2);
            sleep_until(deadline.min(Instant::now() + pause)).await;
        }
        let remaining = last.filter(|remaining| !remaining.is_empty());
        Ok(Some(remaining.context(
            "the apiserver did not answer in time: run the command again",
        )?))
    }

    /// Returns whether nothing more can be done about what remains, which has not changed for the time `unchanged`.
    async fn is_over(&self, remaining: &Remaining, unchanged: Duration) -> bool {
        let is_stalled = unchanged > self.args.stalled_after;
        if !is_stalled || !remaining.waits_for_operator(self.args) {
            return remaining.is_forbidden();
        }
        match OperatorState::try_read(&self.client, &self.args.lease.key()).await {
            Ok(operator) => !operator.is_running(),
            // A busy apiserver proves nothing.
            Err(error) => !FailedRequest::is_busy(&error),
        }
    }

    /// Takes the next step for each object, kind by kind, and deletes the CRDs once no object is found. Returns `None`
    /// if nothing is left. An error that is no [`FailedRequest`] ends the deletion.
    async fn take_steps(&self) -> anyhow::Result<Option<Remaining>> {
        let mut is_found = false;
        let mut remaining = Remaining::default();
        for kind in &self.kinds {
            let targets = UninstallTarget::list(&self.client, kind, self.args).await?;
            if self.args.without_operator && !targets.is_empty() {
                let (lease, expired) = (self.args.lease.key(), self.expired_lease.as_ref());
                proof::ensure_still_gone(&self.client, &lease, expired).await?;
            }
            is_found |= !targets.is_empty();
            let acted = stream::iter(targets).map(|target| self.act(target));
            let acted: Vec<_> = acted.buffered(CONCURRENCY).collect().await;
            remaining.targets.extend(acted.into_iter().flatten());
        }
        if !is_found {
            remaining.crds = crds::purge(&self.client, self.args).await?;
        }
        Ok((is_found || !remaining.crds.is_empty()).then_some(remaining))
    }

    /// Takes the next step for an object. Returns the object, unless the object no longer exists.
    async fn act(&self, mut target: UninstallTarget) -> Option<UninstallTarget> {
        let is_gone = match target.step(self.args) {
            UninstallStep::Wait => Ok(false),
            UninstallStep::Change(field, value) => self.change(&target, field, value).await,
            UninstallStep::RemoveFinalizers => self.remove_finalizers(&target).await,
            UninstallStep::Delete(children) => self.delete(&target, children).await,
        };
        match is_gone {
            Ok(is_gone) => return (!is_gone).then_some(target),
            Err(error) if has_code(&error, 404) => {
                self.changes.borrow_mut().remove(&target);
                return None;
            }
            // The object has changed meanwhile: the next attempt reads it again.
            Err(error) if has_code(&error, 409) => {}
            Err(error) => target.problem = Some(error.into()),
        }
        Some(target)
    }

    /// Changes a field of the spec, and records that, unless the object is being deleted.
    async fn change(
        &self,
        target: &UninstallTarget,
        field: &'static str,
        value: Value,
    ) -> kube::Result<bool> {
        // The record precedes the request, which the apiserver may carry out although no response arrives.
        if !target.is_deleting() {
            self.changes.borrow_mut().add(target, field);
        }
        let patch = json!({ "spec": { field: value } });
        let changed = self.patch(target, patch).await;
        // After a server error, the change may be stored nevertheless.
        if matches!(&changed, Err(kube::Error::Api(status)) if status.code < 500) {
            self.changes.borrow_mut().remove(target);
        }
        changed.map(|_| false)
    }

    /// Removes the operator's finalizers. Returns true if the object no longer exists afterwards.
    async fn remove_finalizers(&self, target: &UninstallTarget) -> kube::Result<bool> {
        let mut finalizers = target.object.finalizers.clone();
        finalizers.retain(|finalizer| !is_own_finalizer(&target.object.kind, finalizer));
        let patch = json!({ "metadata": { "finalizers": finalizers } });
        let patched = self.patch(target, patch).await?;
        if target.is_deleting() {
            return Ok(finalizers.is_empty());
        }
        if self.args.without_operator {
            return Ok(false);
        }
        // If a running operator adds the finalizer first, the deletion fails, because it is pinned to this version.
        let freed = UninstallTarget::new(target.kind, &patched);
        match freed.step(self.args) {
            UninstallStep::Delete(children) => self.delete(&freed, children).await,
            _ => Ok(false),
        }
    }

    /// Patches the object, if it still has this version. Returns the patched object.
    async fn patch(
        &self,
        target: &UninstallTarget,
        mut patch: Value,
    ) -> kube::Result<DynamicObject> {
        patch["metadata"]["uid"] = target.object.uid.clone().into();
        patch["metadata"]["resourceVersion"] = target.version.clone().into();
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.into()),
            ..PatchParams::default()
        };
        let (api, name) = (self.api(target), &target.object.name);
        api.patch(name, &params, &Patch::Merge(&patch)).await
    }

    /// Deletes the object. Returns true if the object no longer exists afterwards.
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
