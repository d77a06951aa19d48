//! The followers of each target.

use std::collections::BTreeSet;

use qm_runtime::ObjectKey;
use qm_runtime::watch::ResourceName;

use super::resolver::TargetKey;

/// Keys of followers by target.
#[derive(Default)]
pub(super) struct FollowersByTarget {
    /// Ordered, so that the targets of a resource are one range, and those of a namespace are a part of it.
    keys: BTreeSet<(TargetKey, ObjectKey)>,
    /// Number of followers that searches visited.
    #[cfg(test)]
    pub(super) visits: std::cell::Cell<usize>,
}

impl FollowersByTarget {
    pub(super) fn insert(&mut self, target: &TargetKey, follower: &ObjectKey) {
        self.keys.insert((target.clone(), follower.clone()));
    }

    pub(super) fn remove(&mut self, target: &TargetKey, follower: &ObjectKey) {
        self.keys.remove(&(target.clone(), follower.clone()));
    }

    /// Returns the followers of `target`.
    pub(super) fn of(&self, target: &TargetKey) -> impl Iterator<Item = &ObjectKey> {
        self.starting_with(target.clone())
            .take_while(move |(of, _)| of == target)
            .map(|(_, follower)| follower)
    }

    /// Returns the followers of the targets of `resource` that a watch of this namespace shows; `None` is all
    /// namespaces.
    pub(super) fn of_watch(
        &self,
        resource: &ResourceName,
        watched_namespace: Option<&str>,
    ) -> impl Iterator<Item = &ObjectKey> {
        let is_watched = move |namespace: &str| watched_namespace.is_none_or(|it| it == namespace);
        // No name is empty.
        let first = TargetKey::new(resource, watched_namespace.unwrap_or_default(), "");
        self.starting_with(first)
            .take_while(move |(of, _)| of.resource == *resource && is_watched(&of.namespace))
            .map(|(_, follower)| follower)
    }

    /// Returns the followers of this target and of all later ones.
    fn starting_with(&self, target: TargetKey) -> impl Iterator<Item = &(TargetKey, ObjectKey)> {
        let found = self.keys.range((target, ObjectKey::new("", ""))..);
        found.inspect(move |_| {
            #[cfg(test)]
            self.visits.set(self.visits.get() + 1);
        })
    }
}
