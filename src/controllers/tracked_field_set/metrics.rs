//! Metrics of sets.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use qm_runtime::ObjectKey;

/// Numbers of children of all sets, by state. Cheap to clone.
#[derive(Clone)]
pub struct SetMetrics {
    children: Family<[(&'static str, &'static str); 1], Gauge>,
    sets: Arc<Mutex<HashMap<ObjectKey, ChildCounts>>>,
}

/// Numbers of children of a set, by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChildCounts {
    /// Children that the set needs.
    pub current: usize,
    /// Children that the set no longer needs and deletes later, such as once their entries are sent.
    pub leaving: usize,
    /// Fields that other `TrackedField`s track.
    pub covered: usize,
    /// Fields of resources beyond `maxTargets`.
    pub left_out: usize,
}

impl ChildCounts {
    fn by_state(self) -> [(&'static str, usize); 4] {
        [
            ("current", self.current),
            ("leaving", self.leaving),
            ("covered", self.covered),
            ("left_out", self.left_out),
        ]
    }
}

impl SetMetrics {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let children = Family::<[(&'static str, &'static str); 1], Gauge>::default();
        registry.register(
            "set_children",
            "TrackedFields of all TrackedFieldSets by state: current ones, those that are leaving, fields that other TrackedFields \
             cover, and fields of targets that maxTargets left out",
            children.clone(),
        );
        let metrics = Self {
            children,
            sets: Arc::default(),
        };
        metrics.changed(ChildCounts::default(), ChildCounts::default());
        metrics
    }

    /// Records the numbers of a set.
    pub(crate) fn set(&self, set: &ObjectKey, counts: ChildCounts) {
        let before = self.sets().insert(set.clone(), counts);
        self.changed(before.unwrap_or_default(), counts);
    }

    /// Forgets a deleted set.
    pub fn forget(&self, set: &ObjectKey) {
        let before = self.sets().remove(set);
        self.changed(before.unwrap_or_default(), ChildCounts::default());
    }

    fn sets(&self) -> MutexGuard<'_, HashMap<ObjectKey, ChildCounts>> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the change of one set to the sums of all sets.
    fn changed(&self, before: ChildCounts, after: ChildCounts) {
        let signed = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for ((state, before), (_, after)) in before.by_state().into_iter().zip(after.by_state()) {
            let gauge = self.children.get_or_create(&[("state", state)]);
            gauge.inc_by(signed(after) - signed(before));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_follow_the_changes_of_single_sets() {
        let metrics = SetMetrics::register(&mut Registry::default());
        let [a, b] = ["a", "b"].map(|name| ObjectKey::new("ops", name));
        let counts = |current: usize, covered: usize| ChildCounts {
            current,
            covered,
            ..ChildCounts::default()
        };
        let sums = || {
            ["current", "leaving", "covered", "left_out"]
                .map(|state| metrics.children.get_or_create(&[("state", state)]).get())
        };
        metrics.set(&a, counts(3, 1));
        metrics.set(&b, counts(4, 0));
        assert_eq!(sums(), [7, 0, 1, 0]);
        metrics.set(&a, counts(1, 2));
        assert_eq!(sums(), [5, 0, 2, 0]);
        metrics.forget(&a);
        metrics.forget(&a);
        assert_eq!(sums(), [4, 0, 0, 0]);
    }
}
