//! Triggers of reconciles.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::Resource;
use tokio::sync::mpsc;

use super::ObjectKey;

/// Trigger of the reconciles of one controller. Triggers have no effect before [`Trigger::open`], after which every
/// object is reconciled once.
pub struct Trigger<K: Resource> {
    sender: Arc<Mutex<Option<mpsc::UnboundedSender<ObjectKey>>>>,
    kind: PhantomData<fn() -> K>,
}

impl<K: Resource> Clone for Trigger<K> {
    fn clone(&self) -> Self {
        Self {
            sender: Arc::clone(&self.sender),
            kind: PhantomData,
        }
    }
}

impl<K: Resource> Default for Trigger<K> {
    fn default() -> Self {
        Self {
            sender: Arc::default(),
            kind: PhantomData,
        }
    }
}

impl<K: Resource<DynamicType = ()> + 'static> Trigger<K> {
    /// Triggers a reconcile of the object of this key, if it exists.
    pub fn wake(&self, key: &ObjectKey) {
        if let Some(sender) = &*self.lock() {
            // The receiver is dropped only while the process ends.
            let _ = sender.send(key.clone());
        }
    }

    /// Triggers a reconcile of each object of these keys that exists.
    pub fn wake_all<'a>(&self, keys: impl IntoIterator<Item = &'a ObjectKey>) {
        for key in keys {
            self.wake(key);
        }
    }

    /// Starts to deliver triggers. Returns the receiver of the keys.
    pub fn open(&self) -> mpsc::UnboundedReceiver<ObjectKey> {
        let (sender, receiver) = mpsc::unbounded_channel();
        *self.lock() = Some(sender);
        receiver
    }

    fn lock(&self) -> MutexGuard<'_, Option<mpsc::UnboundedSender<ObjectKey>>> {
        self.sender.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
