//! Triggers of reconciles.

use std::sync::{Arc, Mutex, PoisonError};

use kube::Resource;
use kube::runtime::reflector::ObjectRef;
use tokio::sync::mpsc;

use super::ObjectKey;

/// Trigger of the reconciles of one controller. Triggers have no effect before [`Trigger::open`], after which every
/// object is reconciled once.
pub struct Trigger<K: Resource>(Arc<Mutex<Option<mpsc::UnboundedSender<ObjectRef<K>>>>>);

impl<K: Resource> Clone for Trigger<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K: Resource> Default for Trigger<K> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Resource<DynamicType = ()> + 'static> Trigger<K> {
    /// Triggers a reconcile of the object of this key, if it exists.
    pub fn wake(&self, key: &ObjectKey) {
        if let Some(sender) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // The receiver is dropped only while the process ends.
            let _ = sender.send(key.object_ref());
        }
    }

    /// Starts to deliver triggers. Returns the receiver of the keys.
    pub fn open(&self) -> mpsc::UnboundedReceiver<ObjectRef<K>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        receiver
    }
}
