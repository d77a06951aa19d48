//! The children that a set deletes, and when.

use std::time::Duration;

use futures::{StreamExt, stream};
use kube::Api;
use kube::core::DynamicObject;
use qm_api::TrackedFieldSet;
use qm_api::tracked_field::{ChangeAction, Entry};
use qm_api::tracked_field_set::KEEP_SECONDS;
use qm_notify::Transport;
use qm_notify::history::Now;
use qm_runtime::ObjectKey;
use qm_runtime::child_cache::KnownChild;
use qm_runtime::controller::Context;

use super::child::{self, DeletionDecision, DeletionReason, LiveChild};
use super::plan::{Deletions, OwnedChildren, Plan, PlannedDeletion};
use super::writes::{DeletionReads, RECHECK_INTERVAL};
use super::{MAX_CONCURRENT_REQUESTS, TrackedFieldSets};
use crate::controllers::tracked_field::follower::FollowIdentity;
use crate::controllers::tracked_field::resolver::Resolved;

impl<T: Transport> TrackedFieldSets<T> {
    /// Decides which children to delete.
    pub(super) async fn deletions(
        &self,
        cx: &Context<TrackedFieldSet>,
        resolved: &Resolved,
        owned: &OwnedChildren,
        plan: &Plan,
    ) -> Deletions {
        let spec = &cx.object.spec;
        let keep = spec.keep_seconds.unwrap_or(KEEP_SECONDS);
        let keep = Duration::from_secs(u64::try_from(keep).unwrap_or_default());
        let leaving: Vec<_> = owned
            .iter()
            .filter(|(key, child)| !child.terminating && !plan.desired.contains_key(*key))
            .map(|(key, child)| (key.clone(), child.clone()))
            .collect();
        let reads = &DeletionReads::default();
        let decisions = leaving.into_iter().map(|(key, known)| async move {
            let decision = self.decide_deletion(cx, resolved, keep, &key, &known, reads);
            (decision.await, PlannedDeletion { key, known })
        });
        let decisions: Vec<_> = stream::iter(decisions)
            .buffer_unordered(MAX_CONCURRENT_REQUESTS)
            .collect()
            .await;
        let (mut deletions, mut waiting) = (Deletions::default(), Vec::new());
        for (decision, child) in decisions {
            let next = match decision {
                DeletionDecision::Now => {
                    deletions.due.push(child);
                    continue;
                }
                DeletionDecision::Kept { after, last } => {
                    waiting.push((last, child));
                    after
                }
                DeletionDecision::Unsent { after } => {
                    deletions.waiting += 1;
                    after.min(RECHECK_INTERVAL)
                }
                DeletionDecision::Unknown => {
                    deletions.waiting += 1;
                    RECHECK_INTERVAL
                }
            };
            let check_after = deletions.check_after.get_or_insert(next);
            *check_after = next.min(*check_after);
        }
        // The oldest children whose entries are all sent make room. Times are in seconds, so the version breaks ties.
        waiting.sort_by_key(|(last, child)| (*last, child.known.version));
        let slots = spec.max_targets() * spec.fields.len();
        let children = plan.desired.len() + deletions.waiting + waiting.len();
        let excess = children.saturating_sub(slots).min(waiting.len());
        deletions.waiting += waiting.len() - excess;
        let excess = waiting.into_iter().take(excess);
        deletions.due.extend(excess.map(|(_, child)| child));
        deletions
    }

    async fn decide_deletion(
        &self,
        cx: &Context<TrackedFieldSet>,
        resolved: &Resolved,
        keep: Duration,
        key: &ObjectKey,
        known: &KnownChild<LiveChild>,
        reads: &DeletionReads,
    ) -> DeletionDecision {
        // The decision must use the history of the version that it deletes.
        let field = self.fields.get(key).filter(|field| {
            qm_runtime::version(field.metadata.resource_version.as_deref()) == known.version
        });
        let history = field.as_ref().and_then(|field| field.history().ok());
        let (Some(field), Some(history)) = (field, history) else {
            return DeletionDecision::Unknown;
        };
        let is_pending = history.iter().any(Entry::is_pending);
        let target = &field.spec.target;
        let target_key = ObjectKey::new(&target.namespace, &target.name);
        let is_of_kind = *target
            == cx
                .object
                .spec
                .target
                .reference(&target.namespace, &target.name);
        let reason = if is_of_kind && self.index.target(&cx.key, &target_key).is_none() {
            let needs_read = !is_pending
                && history
                    .last()
                    .is_none_or(|last| last.action != ChangeAction::Deleted);
            // The deletions of this reconcile trigger the next one, which decides in another order.
            if needs_read && !reads.take() {
                return DeletionDecision::Unknown;
            }
            let exists = if needs_read {
                self.exists_unselected(cx, resolved, &target_key).await
            } else {
                None
            };
            DeletionReason::Unselected { exists }
        } else {
            DeletionReason::Unneeded
        };
        // The tracker may have observed a change meanwhile.
        let identity = FollowIdentity::of(&field);
        if self.targets.tracker.has_unrecorded(key, &identity) {
            return DeletionDecision::Unknown;
        }
        let age = |entry: &Entry| {
            let id = entry.id.as_deref().unwrap_or_default();
            self.receivers.outbox.waited(key, id)
        };
        child::decide_deletion(&history, reason, keep, age, Now::read())
    }

    /// Reads the target, because the watch may lag or may have missed an event. Returns true if the target exists and
    /// the set does not select the target, false if the target does not exist, and `None` if the read proves neither.
    async fn exists_unselected(
        &self,
        cx: &Context<TrackedFieldSet>,
        resolved: &Resolved,
        target: &ObjectKey,
    ) -> Option<bool> {
        let namespace = resolved.namespaced.then_some(&*target.namespace);
        let api: Api<DynamicObject> = resolved.api(&self.targets.client, namespace);
        match api.get_metadata_opt(&target.name).await {
            Ok(None) => Some(false),
            Ok(Some(found)) => {
                let is_selected = self.index.selects_object(&cx.key, &found.metadata);
                (!is_selected && self.index.knows_namespace(&target.namespace)).then_some(true)
            }
            Err(_) => None,
        }
    }
}
