//! Metrics of sets.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

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
        metrics.update(|_| ());
        metrics
    }

    /// Records the numbers of a set.
    pub(crate) fn set(&self, set: &ObjectKey, counts: ChildCounts) {
        self.update(|sets| {
            sets.insert(set.clone(), counts);
        });
    }

    /// Forgets a deleted set.
    pub fn forget(&self, set: &ObjectKey) {
        self.update(|sets| {
            sets.remove(set);
        });
    }

    fn update(&self, change: impl FnOnce(&mut HashMap<ObjectKey, ChildCounts>)) {
        let mut sets = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut sets);
        for (at, (state, _)) in ChildCounts::default().by_state().into_iter().enumerate() {
            let sum: usize = sets.values().map(|counts| counts.by_state()[at].1).sum();
            let gauge = self.children.get_or_create(&[("state", state)]);
            gauge.set(i64::try_from(sum).unwrap_or(i64::MAX));
        }
    }
}
