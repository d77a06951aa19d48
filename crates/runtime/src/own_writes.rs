//! The operator's own last writes, until the cache shows them.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::{Resource, ResourceExt};

use super::reconciled_kind::ReconciledKind;
use super::trigger::Trigger;
use super::{ObjectKey, is_newer, write};

/// State of each object after the operator's last write, until the cache has caught up. A reconcile of an older state
/// would repeat the write.
pub(crate) struct OwnWrites<K: ReconciledKind> {
    trigger: Trigger<K>,
    objects: Mutex<HashMap<ObjectKey, Arc<K>>>,
    /// States that the cache showed of objects with a write in flight.
    in_flight: Mutex<HashMap<ObjectKey, Option<Arc<K>>>>,
    /// Objects whose status kept a field that the operator's last write should have removed.
    incomplete: Mutex<HashSet<ObjectKey>>,
}

impl<K: ReconciledKind> OwnWrites<K> {
    /// Creates an empty record. `trigger` wakes the reconcile of an object that another client changed during a write.
    pub fn new(trigger: Trigger<K>) -> Self {
        Self {
            trigger,
            objects: Mutex::default(),
            in_flight: Mutex::default(),
            incomplete: Mutex::default(),
        }
    }

    /// Runs `write`, which writes the object of this key, and records the result.
    ///
    /// # Errors
    /// The error of `write`.
    pub async fn write(
        &self,
        key: &ObjectKey,
        write: impl Future<Output = kube::Result<K>>,
    ) -> kube::Result<Arc<K>> {
        let _guard = self.begin_write(key);
        Ok(self.record(key, write.await?))
    }

    fn objects(&self) -> MutexGuard<'_, HashMap<ObjectKey, Arc<K>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn in_flight(&self) -> MutexGuard<'_, HashMap<ObjectKey, Option<Arc<K>>>> {
        self.in_flight
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn incomplete(&self) -> MutexGuard<'_, HashSet<ObjectKey>> {
        self.incomplete
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks a write of the object as in flight until the guard is dropped. The cache may show the result before the
    /// response arrives. Until the guard is dropped, no state wakes a reconcile; the drop wakes one if another client
    /// has changed the object.
    fn begin_write<'a>(&'a self, key: &'a ObjectKey) -> WriteGuard<'a, K> {
        self.in_flight().insert(key.clone(), None);
        WriteGuard {
            own_writes: self,
            key,
        }
    }

    /// Returns the newer of the cached and the written state.
    pub fn newest(&self, key: &ObjectKey, cached: Arc<K>) -> Arc<K> {
        let mut objects = self.objects();
        match objects.get(key) {
            Some(own)
                if own.uid() == cached.uid()
                    && (newer(own.as_ref(), cached.as_ref()) || is_deleted(own.as_ref())) =>
            {
                Arc::clone(own)
            }
            _ => {
                objects.remove(key);
                cached
            }
        }
    }

    /// Records `object` as the result of an own write.
    pub fn record(&self, key: &ObjectKey, object: K) -> Arc<K> {
        let object = Arc::new(object);
        self.objects().insert(key.clone(), Arc::clone(&object));
        object
    }

    /// Returns whether this cached state is the result of an own write, or an older one. If its status has a field that
    /// the write should have removed, the state counts as unknown, so that the next write removes the field: the
    /// operator read the object while an older CRD hid the field. This happens once until a write is complete, because
    /// an admission webhook may add a field to each write.
    pub fn is_known(&self, key: &ObjectKey, cached: &Arc<K>) -> bool {
        if let Some(shown) = self.in_flight().get_mut(key) {
            *shown = Some(Arc::clone(cached));
            return true;
        }
        let mut objects = self.objects();
        let Some(own) = objects.get_mut(key) else {
            return false;
        };
        if own.uid() != cached.uid() || newer(cached.as_ref(), own.as_ref()) {
            return false;
        }
        if newer(own.as_ref(), cached.as_ref()) {
            return true;
        }
        if write::keeps_a_field(cached.status(), own.status()) {
            return !self.incomplete().insert(key.clone());
        }
        // The next reconcile may be far off; until then a second copy would waste memory.
        *own = Arc::clone(cached);
        self.incomplete().remove(key);
        true
    }

    /// Forgets a deleted object.
    pub fn forget(&self, key: &ObjectKey) {
        self.objects().remove(key);
        self.incomplete().remove(key);
    }
}

/// Guard of a write in flight.
struct WriteGuard<'a, K: ReconciledKind> {
    own_writes: &'a OwnWrites<K>,
    key: &'a ObjectKey,
}

impl<K: ReconciledKind> Drop for WriteGuard<'_, K> {
    fn drop(&mut self) {
        let shown = self.own_writes.in_flight().remove(self.key).flatten();
        if shown.is_some_and(|shown| !self.own_writes.is_known(self.key, &shown)) {
            self.own_writes.trigger.wake(self.key);
        }
    }
}

/// Returns whether the write that led to this state deleted the object, by the removal of its last finalizer. The
/// apiserver answers such a write with the version from before.
fn is_deleted(object: &impl Resource) -> bool {
    object.meta().deletion_timestamp.is_some() && object.finalizers().is_empty()
}

fn newer(one: &impl Resource, other: &impl Resource) -> bool {
    is_newer(
        one.meta().resource_version.as_deref(),
        other.meta().resource_version.as_deref(),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use serde_json::{Value, json};

    use super::*;
    use crate::testing::Widget;

    fn object(uid: &str, version: &str) -> Widget {
        let mut object = Widget::default();
        object.metadata.uid = Some(uid.into());
        object.metadata.resource_version = Some(version.into());
        object
    }

    #[test]
    fn own_write_is_recognized_and_kept_once() {
        let (own_writes, key) = (OwnWrites::new(Trigger::default()), ObjectKey::new("a", "x"));
        let own = Arc::downgrade(&own_writes.record(&key, object("1", "7")));
        assert!(
            own_writes.is_known(&key, &Arc::new(object("1", "6"))),
            "an older state is known"
        );
        assert!(own.upgrade().is_some(), "the cache has not caught up");
        let cached = Arc::new(object("1", "7"));
        assert!(own_writes.is_known(&key, &cached));
        assert!(own.upgrade().is_none(), "the cache's copy is enough");
        assert!(
            own_writes.is_known(&key, &cached),
            "a repeated event is still known"
        );
        assert!(!own_writes.is_known(&key, &Arc::new(object("1", "8"))));
        assert!(!own_writes.is_known(&key, &Arc::new(object("2", "7"))));
    }

    /// The watch may be faster than the response.
    #[test]
    fn state_shown_during_a_write_wakes_a_reconcile_if_it_is_newer() {
        let trigger = Trigger::default();
        let mut woken = trigger.open();
        let (own_writes, key) = (OwnWrites::new(trigger), ObjectKey::new("a", "x"));
        for (own, shown, news) in [("7", "7", false), ("8", "7", false), ("8", "9", true)] {
            let guard = own_writes.begin_write(&key);
            assert!(own_writes.is_known(&key, &Arc::new(object("1", shown))));
            own_writes.record(&key, object("1", own));
            drop(guard);
            assert_eq!(
                woken.try_recv().is_ok(),
                news,
                "wrote {own}, cache shows {shown}"
            );
        }
        let other = ObjectKey::new("a", "y");
        let guard = own_writes.begin_write(&other);
        assert!(own_writes.is_known(&other, &Arc::new(object("1", "3"))));
        drop(guard);
        assert!(woken.try_recv().is_ok(), "the write failed after an event");
        assert!(
            !own_writes.is_known(&other, &Arc::new(object("1", "4"))),
            "no write is in flight"
        );
    }

    fn with_status(version: &str, status: Value) -> Widget {
        Widget {
            status: Some(serde_json::from_value(status).unwrap()),
            ..object("1", version)
        }
    }

    #[test]
    fn field_that_a_write_left_is_unknown_once() {
        let (own_writes, key) = (OwnWrites::new(Trigger::default()), ObjectKey::new("a", "x"));
        let is_known = |version: &str, shown: Value| {
            own_writes.record(&key, with_status(version, json!({ "a": { "b": 1 } })));
            let shown = Arc::new(with_status(version, shown));
            let is_known = own_writes.is_known(&key, &shown);
            assert!(own_writes.is_known(&key, &shown), "a repeated event");
            is_known
        };
        assert!(is_known("1", json!({ "a": { "b": 1 } })));
        assert!(is_known("2", json!({ "a": {} })), "the CRD hides a field");
        assert!(is_known("3", json!({ "a": { "b": 2 } })), "another value");
        assert!(!is_known("4", json!({ "a": { "b": 1, "c": 1 } })));
        assert!(
            is_known("5", json!({ "a": { "b": 1 }, "d": 1 })),
            "an admission webhook may add a field to each write"
        );
        assert!(is_known("6", json!({ "a": { "b": 1 } })));
        assert!(!is_known("7", json!({ "a": { "b": 1 }, "d": 1 })));
        own_writes.forget(&key);
        assert!(!is_known("8", json!({ "a": { "b": 1 }, "d": 1 })));
    }

    #[test]
    fn removal_of_the_last_finalizer_is_known_although_the_version_stays() {
        let (own_writes, key) = (OwnWrites::new(Trigger::default()), ObjectKey::new("a", "x"));
        let terminating = |finalizers: &[&str]| {
            let metadata = json!({ "uid": "1", "resourceVersion": "7", "finalizers": finalizers,
                "deletionTimestamp": "2026-01-01T00:00:00Z" });
            Widget {
                metadata: serde_json::from_value(metadata).unwrap(),
                ..Widget::default()
            }
        };
        for left in [&[][..], &["another"]] {
            own_writes.record(&key, terminating(left));
            let cached = Arc::new(terminating(&["another", "own"]));
            let newest = own_writes.newest(&key, Arc::clone(&cached));
            assert_eq!(newest.finalizers() == left, left.is_empty());
        }
        own_writes.record(&key, terminating(&[]));
        assert_eq!(
            own_writes.newest(&key, Arc::new(object("2", "8"))).uid(),
            Some("2".into())
        );
    }

    #[test]
    fn newest_state_is_returned() {
        let (own_writes, key) = (OwnWrites::new(Trigger::default()), ObjectKey::new("a", "x"));
        own_writes.record(&key, object("1", "7"));
        let version = |cached| {
            own_writes
                .newest(&key, Arc::new(cached))
                .metadata
                .resource_version
                .clone()
                .unwrap()
        };
        assert_eq!(version(object("1", "6")), "7");
        assert_eq!(version(object("1", "8")), "8");
        assert_eq!(
            version(object("1", "6")),
            "6",
            "nothing is kept once the cache has caught up"
        );
    }
}
