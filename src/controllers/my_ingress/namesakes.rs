//! The `MyIngress`es of each name, which is also the name of a load balancer.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use qm_runtime::ObjectKey;
use qm_runtime::objects::keys_of;

/// Keys of all `MyIngress`es by name.
#[derive(Default)]
pub(super) struct Namesakes(Mutex<BTreeSet<(Arc<str>, ObjectKey)>>);

impl Namesakes {
    fn keys(&self) -> MutexGuard<'_, BTreeSet<(Arc<str>, ObjectKey)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn insert(&self, key: &ObjectKey) {
        self.keys().insert((Arc::clone(&key.name), key.clone()));
    }

    pub(super) fn remove(&self, key: &ObjectKey) {
        self.keys().remove(&(Arc::clone(&key.name), key.clone()));
    }

    /// Returns the `MyIngress`es in other namespaces that have the name of `key`.
    pub(super) fn of(&self, key: &ObjectKey) -> Vec<ObjectKey> {
        keys_of(&self.keys(), Arc::clone(&key.name))
            .filter(|other| *other != key)
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namesakes_are_found_until_they_are_removed() {
        let namesakes = Namesakes::default();
        let key = ObjectKey::new;
        for name in ["we", "web", "web-a"] {
            for namespace in ["a", "b", "c"] {
                namesakes.insert(&key(namespace, name));
            }
        }
        assert_eq!(
            namesakes.of(&key("b", "web")),
            [key("a", "web"), key("c", "web")]
        );
        namesakes.remove(&key("a", "web"));
        assert_eq!(namesakes.of(&key("b", "web")), [key("c", "web")]);
        assert_eq!(namesakes.of(&key("b", "other")), []);
    }
}
