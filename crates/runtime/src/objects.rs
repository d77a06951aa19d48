//! Objects of a controller's own kind: their newest states, their status and their owners' references.

use std::fmt::Debug;
use std::sync::Arc;

use kube::core::NamespaceResourceScope;
use kube::core::object::HasStatus;
use kube::{Api, Client, Resource, ResourceExt};
use qm_core::kind::Kind;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Key;
use super::cache::Touched;
use super::children::Trouble;
use super::manager::{Manager, Watched};
use super::owners::Owners;
use super::reconciler::Trigger;
use super::written::Written;

/// Objects of one kind, for its controller.
pub struct Objects<K: Resource<DynamicType = ()> + Clone + 'static> {
    /// Objects as owners of children.
    pub owners: Owners<K>,
    client: Client,
    manager: &'static str,
    own_writes: Arc<Written<K>>,
    trigger: Trigger<K>,
}

impl<K> Objects<K>
where
    K: Kind
        + Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + HasStatus<Status: Serialize + DeserializeOwned + PartialEq>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    /// Creates the objects of a kind, whose status has the field manager `field_manager`.
    pub fn new(manager: &Manager, watched: &Watched<K>, field_manager: &'static str) -> Self {
        let client = manager.client.clone();
        Self {
            owners: Owners::new(client.clone(), watched.store.clone()),
            client,
            manager: field_manager,
            own_writes: Arc::new(Written::new(watched.trigger.clone())),
            trigger: watched.trigger.clone(),
        }
    }

    /// Returns the newer of the cached object and the last write of this process, which the cache may not show yet.
    pub fn newest(&self, cached: Arc<K>) -> Arc<K> {
        self.own_writes.newest(&Key::of(cached.as_ref()), cached)
    }

    /// Writes the status of `object` unless it is the same. A deleted object is no error.
    ///
    /// # Errors
    /// When the apiserver rejects the write; 409 if the object has changed.
    pub async fn write_status(&self, object: &K, status: &K::Status) -> Result<(), Trouble> {
        let namespace = object.namespace().unwrap_or_default();
        let api = Api::namespaced(self.client.clone(), &namespace);
        let written = self.own_writes.status(&api, self.manager, object, status);
        let what = || format!("status of {} {}", K::kind(&()), Key::of(object));
        match written.await {
            Ok(_) => Ok(()),
            Err(error) => Err(Trouble::Api {
                what: what(),
                error,
            }),
        }
    }

    /// Returns a function that wakes the reconcile of an object, for its children.
    pub fn waker(&self) -> impl Fn(&Key) + Send + Sync + use<K> {
        let trigger = self.trigger.clone();
        move |key| trigger.wake(key)
    }

    /// Returns the listener for [`Manager::control`] that triggers a reconcile of each object that another client changed or
    /// deleted.
    pub fn listener(&self) -> impl Fn(Touched<K>, bool) + Send + Sync + use<K> {
        let (own_writes, trigger) = (Arc::clone(&self.own_writes), self.trigger.clone());
        move |touched, all_seen| match touched {
            Touched::Present(object) => {
                let key = Key::of(object.as_ref());
                // The cache shows each object again once it has all of them.
                if all_seen && !own_writes.knows(&key, &object) {
                    trigger.wake(&key);
                }
            }
            Touched::Gone(object) => {
                let key = Key::of(object.as_ref());
                own_writes.forget(&key);
                trigger.wake(&key);
            }
        }
    }
}
