//! Chooses the writes that a set makes to its children, within their limits, and their retries. Pure.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use qm_api::tracked_field::TrackedFieldSpec;
use qm_api::{TrackedField, TrackedFieldSet};
use qm_runtime::ObjectKey;
use qm_runtime::backoff::{Backoff, BackoffPolicy};
use qm_runtime::outcome::Requeue;
use qm_runtime::ownership::Owner;

use super::child;
use super::plan::{Deletions, OwnedChildren, Plan, PlannedDeletion};

/// Maximum number of writes per reconcile, so that other sets proceed.
const MAX_WRITES: usize = 256;
/// Maximum number of reads per reconcile of targets that are no longer selected, so that time is left for deletions.
const MAX_DELETION_READS: usize = MAX_WRITES;
/// Backoff of a rejected write of a child.
const REJECTION_BACKOFF: BackoffPolicy = BackoffPolicy {
    min: Duration::from_secs(5),
    max: Duration::from_mins(5),
};
/// Interval of checks that no watch event may trigger, such as whether the set may delete a child.
pub const RECHECK_INTERVAL: Duration = Duration::from_secs(5);
/// Minimum delay after a reconcile that has made all its writes, or none.
const MIN_DELAY: Duration = Duration::from_secs(1);

/// A write of one child.
pub(super) enum ChildWrite {
    Create {
        target: ObjectKey,
        child: Box<TrackedField>,
    },
    Change {
        target: ObjectKey,
        child: Box<TrackedField>,
    },
    Delete(PlannedDeletion),
}

impl ChildWrite {
    pub fn key(&self) -> ObjectKey {
        match self {
            Self::Create { child, .. } | Self::Change { child, .. } => ObjectKey::of(&**child),
            Self::Delete(PlannedDeletion { key, .. }) => key.clone(),
        }
    }
}

/// Writes of one reconcile.
pub(super) struct ChosenWrites {
    pub writes: Vec<ChildWrite>,
    /// Number of writes that a later reconcile makes.
    pub remaining: usize,
    /// Children that need no write, because they match.
    pub matching: Vec<ObjectKey>,
    /// True if a desired child is missing.
    pub lacks_children: bool,
}

/// Rejected writes of a set, each with its own backoff, so that they do not delay the others.
#[derive(Default)]
pub(crate) struct Rejections {
    children: BTreeMap<ObjectKey, Rejection>,
    /// A quota rejects every creation.
    quota: Option<Rejection>,
}

/// A write that the apiserver rejects.
pub(crate) struct Rejection {
    is_deletion: bool,
    pub reason: Cow<'static, str>,
    pub message: String,
    retry_at: Instant,
    backoff: Backoff,
}

impl Rejections {
    /// Records that the apiserver has rejected a write of a child.
    pub fn reject(
        &mut self,
        key: ObjectKey,
        is_deletion: bool,
        (reason, message): (Cow<'static, str>, String),
        now: Instant,
    ) {
        let before = self.children.remove(&key);
        let before = before.filter(|before| before.is_deletion == is_deletion);
        let rejection = Rejection::after(before, is_deletion, (reason, message), now);
        self.children.insert(key, rejection);
    }

    /// Records that a quota has rejected creations.
    pub(crate) fn reject_creations(&mut self, why: (Cow<'static, str>, String), now: Instant) {
        self.quota = Some(Rejection::after(self.quota.take(), false, why, now));
    }

    pub(crate) fn allow_creations(&mut self) {
        self.quota = None;
    }

    pub fn forget(&mut self, key: &ObjectKey) {
        self.children.remove(key);
    }

    /// Forgets the writes that the set no longer makes. `is_kept` returns whether the set creates or changes a child.
    pub fn retain(
        &mut self,
        is_kept: impl Fn(&ObjectKey) -> bool,
        is_owned: impl Fn(&ObjectKey) -> bool,
    ) {
        self.children.retain(|key, rejection| {
            if rejection.is_deletion {
                is_owned(key) && !is_kept(key)
            } else {
                is_kept(key)
            }
        });
    }

    /// Returns the children whose writes must wait.
    pub fn waiting(&self, now: Instant) -> HashSet<ObjectKey> {
        let waiting = self.children.iter().filter(|(_, it)| now < it.retry_at);
        waiting.map(|(key, _)| key.clone()).collect()
    }

    /// Returns whether creations must wait for a quota.
    pub(crate) fn creations_wait(&self, now: Instant) -> bool {
        self.quota
            .as_ref()
            .is_some_and(|quota| now < quota.retry_at)
    }

    /// Returns the rejections, the quota's first.
    pub fn all(&self) -> impl Iterator<Item = &Rejection> {
        self.quota.iter().chain(self.children.values())
    }

    /// Returns the delay until the first retry.
    pub fn retry_after(&self, now: Instant) -> Option<Duration> {
        let retry_at = self.all().map(|it| it.retry_at).min()?;
        Some(retry_at.saturating_duration_since(now))
    }
}

impl Rejection {
    fn after(
        before: Option<Self>,
        is_deletion: bool,
        (reason, message): (Cow<'static, str>, String),
        now: Instant,
    ) -> Self {
        let mut backoff = before.map_or_else(|| REJECTION_BACKOFF.start(), |before| before.backoff);
        Self {
            is_deletion,
            reason,
            message,
            retry_at: now + backoff.next_delay(),
            backoff,
        }
    }
}

/// Number of reads of unselected targets that a reconcile may still make.
pub struct DeletionReads(AtomicUsize);

impl Default for DeletionReads {
    fn default() -> Self {
        Self(AtomicUsize::new(MAX_DELETION_READS))
    }
}

impl DeletionReads {
    /// Returns whether one more read is allowed, and counts it.
    pub fn take(&self) -> bool {
        let less_one = |left: usize| left.checked_sub(1);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less_one)
            .is_ok()
    }
}

/// Chooses the writes of one reconcile, and records in `plan` which children match. `unchecked` are the children that are
/// not known to match. Writes of the `waiting` children and, if `creations_wait`, of missing children wait.
pub(super) fn choose(
    set: &TrackedFieldSet,
    owner: &Owner,
    plan: &mut Plan,
    unchecked: &OwnedChildren,
    deletions: Deletions,
    waiting: &HashSet<ObjectKey>,
    creations_wait: bool,
) -> ChosenWrites {
    let notification = child::notification(&set.spec);
    let (mut ensures, mut contested, mut further) = (Vec::new(), Vec::new(), 0);
    let (mut matching, mut lacks_children) = (Vec::new(), false);
    for (key, desired) in &mut plan.desired {
        let is_missing = !unchecked.contains_key(key);
        if desired.checked.is_some() && is_missing {
            continue;
        }
        lacks_children |= is_missing;
        // An adopted TrackedField replaces the child that the set has created. The set deletes that child first:
        // afterwards nothing tells the two apart.
        let replaced = desired.replaces.as_ref();
        let must_wait = replaced.is_some_and(|replaced| unchecked.contains_key(replaced));
        if waiting.contains(key) || must_wait || (is_missing && creations_wait) {
            continue;
        }
        let writes = if desired.is_contested {
            &mut contested
        } else {
            &mut ensures
        };
        let is_full = writes.len() >= MAX_WRITES;
        if is_missing && is_full {
            further += 1;
            continue;
        }
        let live = unchecked.get(key).filter(|live| !live.terminating);
        let spec = child::spec(
            &set.spec.target,
            &notification,
            &desired.target,
            &set.spec.fields[desired.field_index],
            desired.initial,
        );
        let child = child::build(set, key, spec);
        let content = child::content_of(&child, owner);
        match live.filter(|live| live.summary.content == content) {
            Some(live) => {
                desired.checked = Some(live.fingerprint);
                matching.push(key.clone());
            }
            None if is_full => further += 1,
            None => {
                let (target, child) = (desired.target.clone(), Box::new(child));
                writes.push(if is_missing {
                    ChildWrite::Create { target, child }
                } else {
                    ChildWrite::Change { target, child }
                });
            }
        }
    }
    let Deletions {
        mut due, unsent, ..
    } = deletions;
    plan.leaving.retain(|key, _| unsent.contains_key(key));
    for (key, field) in unsent {
        let Some(live) = unchecked.get(&key).filter(|_| !waiting.contains(&key)) else {
            continue;
        };
        if plan.leaving.get(&key) == Some(&live.fingerprint) {
            continue;
        }
        let spec = TrackedFieldSpec {
            notification: Arc::clone(&notification),
            ..field.spec.clone()
        };
        let target = ObjectKey::new(&spec.target.namespace, &spec.target.name);
        let child = child::build(set, &key, spec);
        if live.summary.content == child::content_of(&child, owner) {
            plan.leaving.insert(key.clone(), live.fingerprint);
            matching.push(key);
        } else if ensures.len() >= MAX_WRITES {
            further += 1;
        } else {
            let child = Box::new(child);
            ensures.push(ChildWrite::Change { target, child });
        }
    }
    let (ensures, left) = limited(ensures, contested);
    further += left;
    let all = due.len() + ensures.len() + further;
    due.truncate(deletion_count(due.len(), ensures.len()));
    let mut writes: Vec<_> = due.into_iter().map(ChildWrite::Delete).collect();
    writes.extend(ensures);
    writes.truncate(MAX_WRITES);
    ChosenWrites {
        remaining: all - writes.len(),
        writes,
        matching,
        lacks_children,
    }
}

/// Returns the writes of one reconcile, and the number of writes beyond its limit. Writes of contested children come
/// last, because most of them wait and must not displace the others.
fn limited<T>(mut others: Vec<T>, mut contested: Vec<T>) -> (Vec<T>, usize) {
    let all = others.len() + contested.len();
    others.append(&mut contested);
    others.truncate(MAX_WRITES);
    let further = all - others.len();
    (others, further)
}

/// Returns how many of the due deletions a reconcile makes. Deletions come first, because creations may need the quota
/// that deletions free, but the other writes keep up to half of the limit.
fn deletion_count(due: usize, others: usize) -> usize {
    due.min(MAX_WRITES - others.min(MAX_WRITES / 2))
}

/// Returns when to reconcile the set again. `made` and `remaining` are numbers of writes. If none could be made, the
/// next reconcile waits, because its writes would fail in the same way.
pub fn requeue(
    made: usize,
    remaining: usize,
    delays: impl IntoIterator<Item = Option<Duration>>,
) -> Requeue {
    if made > 0 && remaining > 0 {
        return Requeue::After(Duration::ZERO);
    }
    let recheck = (remaining > 0).then_some(RECHECK_INTERVAL);
    delays
        .into_iter()
        .chain([recheck])
        .flatten()
        .min()
        .map_or(Requeue::OnChange, |delay| {
            Requeue::After(delay.max(MIN_DELAY))
        })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::collections::{BTreeSet, HashMap};

    use qm_api::common::NAMES;
    use qm_api::tracked_field::Initial;
    use qm_runtime::SpecRevision;
    use qm_runtime::child_cache::KnownChild;
    use serde_json::json;

    use super::super::child::LiveChild;
    use super::*;

    fn why() -> (Cow<'static, str>, String) {
        ("WriteRejected".into(), "denied".to_owned())
    }

    fn set(is_suspended: bool) -> TrackedFieldSet {
        let set = json!({
            "apiVersion": "tg.azamaton.ru/v1", "kind": "TrackedFieldSet",
            "metadata": { "namespace": "ops", "name": "all", "uid": "1" },
            "spec": {
                "target": { "kind": "Deployment" }, "fields": ["replicas"],
                "template": { "contactPoint": "hook", "suspend": is_suspended },
            },
        });
        serde_json::from_value(set).unwrap()
    }

    fn empty_plan() -> Plan {
        Plan {
            revision: SpecRevision::default(),
            compared: Instant::now(),
            desired: HashMap::new(),
            covered: HashMap::new(),
            left_out: BTreeSet::new(),
            leaving: HashMap::new(),
        }
    }

    /// Otherwise, nothing would resume a child that is suspended with its set, or move it to another contact point.
    #[test]
    fn leaving_child_with_pending_entries_follows_the_template() {
        let suspended = set(true);
        let owner = Owner::of(&suspended).unwrap();
        let (key, target) = (
            ObjectKey::new("ops", "all-web"),
            ObjectKey::new("ops", "web"),
        );
        let notification = child::notification(&suspended.spec);
        let (selector, initial) = (&suspended.spec.target, Initial::Quiet);
        let spec = child::spec(selector, &notification, &target, "replicas", initial);
        let mut live = child::build(&suspended, &key, spec);
        owner.set_ownership(&mut live.metadata);
        let known = KnownChild::of(&live.metadata, &NAMES, 7, LiveChild::of(&live));
        let unchecked = OwnedChildren::from([(key.clone(), known)]);
        let live = Arc::new(live);
        let chosen = |set: &TrackedFieldSet, plan: &mut Plan| {
            let deletions = Deletions {
                unsent: [(key.clone(), Arc::clone(&live))].into(),
                ..Deletions::default()
            };
            let none = HashSet::new();
            choose(set, &owner, plan, &unchecked, deletions, &none, false)
        };
        let mut plan = empty_plan();
        let same = chosen(&suspended, &mut plan);
        assert!(same.writes.is_empty());
        assert_eq!(same.matching, std::slice::from_ref(&key));
        let known = chosen(&suspended, &mut plan);
        assert!(known.writes.is_empty() && known.matching.is_empty());

        // A change of the set discards its plan.
        let writes = chosen(&set(false), &mut empty_plan()).writes;
        let [
            ChildWrite::Change {
                target: of,
                child: changed,
            },
        ] = &writes[..]
        else {
            panic!("{} writes", writes.len());
        };
        assert_eq!(
            (of, changed.spec.notification.suspend),
            (&target, Some(false))
        );
        assert_eq!(changed.spec.target, live.spec.target);
        assert_eq!(changed.spec.initial, live.spec.initial);
    }

    #[test]
    fn only_a_reconcile_that_has_written_is_continued_at_once() {
        let after = |seconds| Requeue::After(Duration::from_secs(seconds));
        assert_eq!(requeue(1, 1, []), after(0));
        assert_eq!(requeue(0, 1, []), Requeue::After(RECHECK_INTERVAL));
        assert_eq!(requeue(0, 1, [Some(Duration::ZERO)]), after(1));
        let delays = [None, Some(Duration::from_secs(9))];
        assert_eq!(requeue(1, 0, delays), after(9));
        assert_eq!(requeue(1, 0, [None]), Requeue::OnChange);
    }

    #[test]
    fn deletions_leave_half_to_the_other_writes() {
        assert_eq!(deletion_count(3, 1000), 3);
        assert_eq!(deletion_count(1000, 1000), MAX_WRITES / 2);
        assert_eq!(deletion_count(1000, 0), MAX_WRITES);
        assert_eq!(deletion_count(1000, 6), MAX_WRITES - 6);
    }

    #[test]
    fn contested_children_take_no_place_of_others() {
        let (others, contested) = (vec!["other"; 3], vec!["contested"; MAX_WRITES]);
        let (writes, further) = limited(others.clone(), contested);
        assert_eq!((writes.len(), further), (MAX_WRITES, 3));
        assert_eq!(writes[..3], others);
        let (writes, further) = limited(vec!["other"; MAX_WRITES + 2], vec!["contested"]);
        assert_eq!((writes.len(), further), (MAX_WRITES, 3));
        assert!(!writes.contains(&"contested"));
        assert_eq!(limited(vec!["other"], vec![]), (vec!["other"], 0));
    }

    /// The reads are concurrent.
    #[test]
    fn reads_before_deletions_are_bounded() {
        let reads = DeletionReads::default();
        let threads = 4;
        let allowed = std::thread::scope(|scope| {
            let count = || (0..MAX_DELETION_READS).filter(|_| reads.take()).count();
            let counts: Vec<_> = (0..threads).map(|_| scope.spawn(count)).collect();
            let counts = counts.into_iter().map(|thread| thread.join().unwrap_or(0));
            counts.sum::<usize>()
        });
        assert_eq!(allowed, 256);
        assert!(!reads.take());
    }

    #[test]
    fn rejected_deletion_waits_longer_each_time() {
        let key = ObjectKey::new("ops", "a");
        let (mut rejections, mut now) = (Rejections::default(), Instant::now());
        for least in [5, 10, 20] {
            rejections.reject(key.clone(), true, why(), now);
            rejections.retain(|_| false, |_| true);
            let delay = rejections.retry_after(now).unwrap_or_default();
            assert!(delay >= Duration::from_secs(least), "{delay:?}");
            assert!(rejections.waiting(now).contains(&key));
            now += delay;
            assert!(rejections.waiting(now).is_empty());
        }
        rejections.retain(|_| true, |_| true);
        assert_eq!(rejections.all().count(), 0, "the set needs the child again");
    }

    #[test]
    fn quota_delays_creations_alone() {
        let (mut rejections, now) = (Rejections::default(), Instant::now());
        rejections.reject_creations(why(), now);
        assert!(rejections.creations_wait(now));
        assert!(rejections.waiting(now).is_empty());
        assert!(!rejections.creations_wait(now + REJECTION_BACKOFF.max));
        rejections.allow_creations();
        assert_eq!(rejections.retry_after(now), None);
    }
}
