//! Desired state of a child, and the pure decision about a live one.

use kube::core::ObjectMeta;
use serde_json::Value;

use super::applied::Applied;
use super::child::ChildKind;
use crate::ObjectKey;
use crate::child_cache::Match;
use crate::fields::Projection;
use crate::ownership::Ownership;

/// Desired state of one child. `S` is the summary that the cache has of a live child.
pub trait DesiredChild<K, S>: Send + Sync {
    /// Returns namespace and name of the child.
    fn key(&self) -> ObjectKey;

    /// Returns the digest of the desired state. A child that [matched](DesiredChild::matched) this digest is not read
    /// again until the child changes.
    fn digest(&self) -> &str;

    /// Builds the child, with its ownership set.
    fn build(&self) -> K;

    /// Returns the write that a live child needs, if any; its owner owns the child or may adopt it. `matched` is the last
    /// confirmed match of this child, even if the child has changed since.
    fn plan(
        &self,
        live: &K,
        ownership: &Ownership,
        matched: Option<&Match>,
    ) -> Option<ChildAction<'_, K>>;

    /// Returns the metadata, with the ownership marks, of a cached child if [`DesiredChild::plan_cached`] can decide
    /// without a read.
    fn cached_metadata<'s>(&self, _summary: &'s S) -> Option<&'s ObjectMeta> {
        None
    }

    /// Returns the write that a cached child needs, if any.
    fn plan_cached(&self, _summary: &S) -> Option<ChildAction<'_, K>> {
        None
    }

    /// Describes the match of a child that was written or needs no write; `None` if later decisions do not use it.
    fn matched(&self, _live: &K) -> Option<Match> {
        Some(Match {
            desired: self.digest().to_owned(),
            values: 0,
            has_foreign_ports: false,
        })
    }

    /// Returns whether another client has changed a child that matched this desired state. The child needs a write.
    fn has_drifted(&self, _live: &K, matched: Option<&Match>) -> bool {
        matched.is_some_and(|matched| matched.desired == self.digest())
    }

    /// Returns the values that the Event of a correction compares.
    fn values(&self, _live: &K) -> Projection {
        Projection::default()
    }

    /// Returns whether the runtime reports a child that another client deleted and that is created again.
    fn reports_recreation(&self) -> bool {
        true
    }
}

/// Write that a live child needs. The write fails if the child has changed since the decision.
pub enum ChildAction<'a, K> {
    /// Apply the desired state server-side.
    Apply(&'a Applied<'a, K>),
    /// Replace the child by this object.
    Replace(Box<K>),
    /// Merge this patch into the child's metadata.
    Patch(Value),
    /// Delete the child, for this reason. A later call creates it again.
    Delete(String),
}

impl<K: ChildKind, S> DesiredChild<K, S> for Applied<'_, K> {
    fn key(&self) -> ObjectKey {
        self.key.clone()
    }

    fn digest(&self) -> &str {
        &self.digest
    }

    fn build(&self) -> K {
        self.object.clone()
    }

    fn plan(
        &self,
        live: &K,
        ownership: &Ownership,
        matched: Option<&Match>,
    ) -> Option<ChildAction<'_, K>> {
        (!self.is_current(live, ownership, matched)).then_some(ChildAction::Apply(self))
    }

    fn matched(&self, live: &K) -> Option<Match> {
        let values = self.values(live);
        Some(Match {
            desired: self.digest.clone(),
            values: values.digest(),
            has_foreign_ports: values.has_foreign_ports(),
        })
    }

    fn has_drifted(&self, live: &K, matched: Option<&Match>) -> bool {
        self.has_drifted(live, matched)
    }

    fn values(&self, live: &K) -> Projection {
        self.values(live)
    }
}
