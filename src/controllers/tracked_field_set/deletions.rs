//! The children that a set deletes, and when.

use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use kube::Api;
use kube::core::DynamicObject;
use qm_api::TrackedFieldSet;
use qm_api::tracked_field::{ChangeAction, Entry};
use qm_api::tracked_field_set::KEEP_SECONDS;
use qm_notify::Transport;
use qm_notify::history::{Now, waited};
use qm_runtime::ObjectKey;
use qm_runtime::child_cache::KnownChild;
use qm_runtime::controller::Context;
use tokio::time::timeout_at;

use super::child::LiveChild;
use super::plan::{Deletions, OwnedChildren, Plan, PlannedDeletion};
use super::writes::{DeletionReads, RECHECK_INTERVAL};
use super::{MAX_CONCURRENT_REQUESTS, TrackedFieldSets};
use crate::controllers::tracked_field::follower::FollowIdentity;
use crate::controllers::tracked_field::resolver::Resolved;

/// Time for which Pending entries, or an unread version of the target, keep a child that the set no longer needs. With a
/// missing contact point or permission the child would otherwise occupy a slot forever.
const MAX_WAIT: Duration = Duration::from_hours(24);

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
        self.index.forget_deleted(&cx.key);
        let reads = &DeletionReads::default();
        // The writes come after these reads, and need most of the reconcile's time.
        let deadline = tokio::time::Instant::now() + self.targets.timeout / 6;
        let decisions = leaving.into_iter().map(|(key, known)| async move {
            let decision = self.deletion_of(cx, resolved, keep, &key, &known, reads);
            let decision = timeout_at(deadline, decision).await;
            let decision = decision.unwrap_or(DeletionDecision::Unknown);
            (decision, PlannedDeletion { key, known })
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
                    if let Some(field) = self.tracked_fields.get(&child.key) {
                        deletions.unsent.insert(child.key, field);
                    }
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

    async fn deletion_of(
        &self,
        cx: &Context<TrackedFieldSet>,
        resolved: &Resolved,
        keep: Duration,
        key: &ObjectKey,
        known: &KnownChild<LiveChild>,
        reads: &DeletionReads,
    ) -> DeletionDecision {
        // The decision must use the history of the version that it deletes.
        let field = self.tracked_fields.get(key).filter(|field| {
            qm_runtime::version(field.metadata.resource_version.as_deref()) == known.version
        });
        let history = field.as_ref().and_then(|field| field.history().ok());
        let (Some(field), Some(history)) = (field, history) else {
            return DeletionDecision::Unknown;
        };
        let is_pending = history.iter().any(Entry::is_pending);
        let is_deleted = history
            .last()
            .is_some_and(|last| last.action == ChangeAction::Deleted);
        let target = &field.spec.target;
        let target_key = ObjectKey::new(&target.namespace, &target.name);
        let is_of_kind = *target
            == cx
                .object
                .spec
                .target
                .reference(&target.namespace, &target.name);
        let reason = if is_of_kind && self.index.target(&cx.key, &target_key).is_none() {
            if is_deleted {
                // A later creation of the target wakes the set, and the tracker knows of an earlier one.
                self.index.record_deleted(&cx.key, target_key.clone());
            }
            let needs_read = !is_pending && !is_deleted;
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
        let tracker = &self.targets.tracker;
        if tracker.has_unrecorded(key, &identity, MAX_WAIT) {
            return DeletionDecision::Unknown;
        }
        let age = |entry: &Entry| {
            let id = entry.id.as_deref().unwrap_or_default();
            self.contact_points.outbox.waited(key, id)
        };
        decide_deletion(&history, reason, keep, age, Now::read())
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

/// Reason to delete a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeletionReason {
    /// Another `TrackedField` tracks the field with the same contact point, or the spec no longer names the field.
    Unneeded,
    /// The set selects no target of that name.
    Unselected {
        /// True if a read has returned a target that the set does not select, false if there is no target, `None` if
        /// unknown.
        exists: Option<bool>,
    },
}

/// When the set may delete a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeletionDecision {
    Now,
    /// The child of a deleted target stays for this time, unless another child needs its slot.
    Kept {
        after: Duration,
        /// Time of the last entry.
        last: Option<Timestamp>,
    },
    /// The child has Pending entries: the operator deletes it once they are sent, or after this time.
    Unsent {
        after: Duration,
    },
    /// The newest state of the child or of its target is not known or not recorded yet.
    Unknown,
}

/// Returns when the set may delete a child with this history. `keep` is the time for which the child of a deleted
/// target stays; `age` returns the age of a Pending entry.
fn decide_deletion(
    history: &[Entry],
    reason: DeletionReason,
    keep: Duration,
    age: impl FnOnce(&Entry) -> Duration,
    now: Now,
) -> DeletionDecision {
    let mut pending = history.iter().filter(|entry| entry.is_pending());
    if let Some(oldest) = pending.next() {
        return match MAX_WAIT.saturating_sub(age(oldest)) {
            Duration::ZERO => DeletionDecision::Now,
            after => DeletionDecision::Unsent { after },
        };
    }
    let DeletionReason::Unselected { exists } = reason else {
        return DeletionDecision::Now;
    };
    let deleted = history
        .last()
        .filter(|last| last.action == ChangeAction::Deleted);
    match (deleted, exists) {
        (Some(deleted), _) => match keep.saturating_sub(waited(deleted, now)) {
            Duration::ZERO => DeletionDecision::Now,
            after => DeletionDecision::Kept {
                after,
                last: deleted.time.as_ref().map(|time| time.0),
            },
        },
        // The child must first record the deletion of its target.
        (None, Some(false)) if !history.is_empty() => DeletionDecision::Unknown,
        (None, Some(_)) => DeletionDecision::Now,
        (None, None) => DeletionDecision::Unknown,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn entry(action: &str, delivery: &str, age: i64) -> Entry {
        let time = Timestamp::from_second(1_000_000 - age).unwrap();
        let entry = json!({ "action": action, "time": time, "value": "1", "id": "x", "delivery": delivery });
        serde_json::from_value(entry).unwrap()
    }

    fn now() -> Now {
        Now {
            wall: Timestamp::from_second(1_000_000).unwrap(),
            monotonic: std::time::Instant::now(),
        }
    }

    const DAY: i64 = 24 * 3600;

    #[rstest]
    #[case::nothing_recorded_and_gone(&[], Some(false), DeletionDecision::Now)]
    #[case::nothing_recorded_and_unknown(&[], None, DeletionDecision::Unknown)]
    #[case::exists_and_is_no_longer_selected(&[("Created", "Delivered", 5)], Some(true), DeletionDecision::Now)]
    #[case::gone_and_not_recorded_yet(&[("Created", "Delivered", 5)], Some(false), DeletionDecision::Unknown)]
    #[case::unknown(&[("Created", "Delivered", 5)], None, DeletionDecision::Unknown)]
    #[case::just_gone(&[("Created", "Delivered", 9), ("Deleted", "Delivered", 5)], Some(false), DeletionDecision::Kept { after: Duration::from_secs(95), last: Timestamp::from_second(999_995).ok() })]
    #[case::gone_long_ago(&[("Created", "Delivered", 900), ("Deleted", "Delivered", 100)], Some(false), DeletionDecision::Now)]
    #[case::deletion_not_sent(&[("Deleted", "Pending", 400)], Some(false), DeletionDecision::Unsent { after: Duration::from_secs(24 * 3600 - 400) })]
    #[case::deletion_never_sent(&[("Deleted", "Pending", DAY)], Some(false), DeletionDecision::Now)]
    #[case::change_not_sent(&[("Updated", "Pending", 5)], Some(true), DeletionDecision::Unsent { after: Duration::from_secs(24 * 3600 - 5) })]
    fn child_of_an_unselected_target_leaves(
        #[case] entries: &[(&str, &str, i64)],
        #[case] exists: Option<bool>,
        #[case] expected: DeletionDecision,
    ) {
        let history: Vec<_> = entries
            .iter()
            .map(|(action, delivery, age)| entry(action, delivery, *age))
            .collect();
        let keep = Duration::from_secs(100);
        let reason = DeletionReason::Unselected { exists };
        assert_eq!(
            decide_deletion(&history, reason, keep, |entry| waited(entry, now()), now()),
            expected
        );
    }

    #[test]
    fn unneeded_child_leaves_once_everything_is_sent() {
        let keep = Duration::from_hours(1);
        let decision = |delivery: &str, age: i64| {
            let history = [entry("Updated", delivery, age)];
            decide_deletion(
                &history,
                DeletionReason::Unneeded,
                keep,
                |entry| waited(entry, now()),
                now(),
            )
        };
        assert_eq!(decision("Delivered", 5), DeletionDecision::Now);
        assert_eq!(decision("Failed", 5), DeletionDecision::Now);
        assert_eq!(decision("Pending", DAY), DeletionDecision::Now);
        assert!(matches!(
            decision("Pending", 5),
            DeletionDecision::Unsent { .. }
        ));
    }
}
