//! Desired children of a set, and children that the set no longer needs.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use qm_api::TrackedField;
use qm_api::tracked_field::Initial;
use qm_runtime::child_cache::KnownChild;
use qm_runtime::{ObjectKey, SpecRevision};

use super::child::LiveChild;

/// Children that the set owns.
pub(super) type OwnedChildren = HashMap<ObjectKey, KnownChild<LiveChild>>;

/// Desired children of a set. A reconcile updates the plan of the previous reconcile.
pub(super) struct Plan {
    /// Revision of the set at the time of the plan. After a change of it, the next reconcile plans all targets.
    pub(super) revision: SpecRevision,
    /// Time of the last comparison of everything.
    pub(super) compared: Instant,
    pub(super) desired: HashMap<ObjectKey, DesiredTrackedField>,
    /// Number of fields of each target that other `TrackedField`s track.
    pub(super) covered: HashMap<ObjectKey, usize>,
    /// Resources beyond `maxTargets`.
    pub(super) left_out: BTreeSet<ObjectKey>,
    /// Fingerprints of the leaving children that matched the template of the set.
    pub(super) leaving: HashMap<ObjectKey, u64>,
}

/// A desired child.
pub(super) struct DesiredTrackedField {
    pub(super) target: ObjectKey,
    /// Child that the set has created and that this `TrackedField`, once adopted, replaces.
    pub(super) replaces: Option<ObjectKey>,
    /// Index in `spec.fields`.
    pub(super) field_index: usize,
    pub(super) initial: Initial,
    /// True for one child of each target: these children occupy the slots that `maxTargets` allows.
    pub(super) takes_slot: bool,
    /// Fingerprint of the child that matched; `None` if the reconcile must compare the child.
    pub(super) checked: Option<u64>,
    /// True if other clients kept changing the child at the last write.
    pub(super) is_contested: bool,
}

/// A child to delete.
pub(super) struct PlannedDeletion {
    pub(super) key: ObjectKey,
    pub(super) known: KnownChild<LiveChild>,
}

/// Children that the set no longer needs.
#[derive(Default)]
pub(super) struct Deletions {
    /// Children to delete, at the version that the decision depends on.
    pub(super) due: Vec<PlannedDeletion>,
    /// Number of children that stay for now.
    pub(super) waiting: usize,
    /// The children among them with Pending entries. They still send, so they follow the template of the set.
    pub(super) unsent: HashMap<ObjectKey, Arc<TrackedField>>,
    /// When to check the waiting children again.
    pub(super) check_after: Option<Duration>,
}
