//! Children that are created and deleted, and never applied, such as Pods: most fields of a Pod are immutable, and
//! admission plugins and the kubelet write others.

use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};

use super::{ChildKind, ChildSummary, Children, resource};
use crate::child_cache::KnownChild;
use crate::error::Result;
use crate::fields::Projection;
use crate::ownership::{ForeignOwner, Owner};
use crate::raw_object::BoundedObject;
use crate::{ObjectKey, apply};

/// State of a child at one resourceVersion: a write of a child that has changed since fails with 409.
#[derive(Clone, Debug)]
pub struct ChildSnapshot<S> {
    /// Namespace and name of the child.
    pub key: ObjectKey,
    /// UID of the child.
    pub uid: String,
    /// resourceVersion of the child.
    pub version: String,
    /// Summary for the owner's status.
    pub summary: S,
}

impl<K: ChildKind, S: ChildSummary> Children<K, S> {
    /// Returns the child of this name that has the ownership label, as far as the cache knows.
    pub fn child(&self, key: &ObjectKey) -> Option<ChildSnapshot<S>> {
        let KnownChild {
            uid,
            version,
            summary,
            ..
        } = self.cache.known(key)?;
        Some(ChildSnapshot {
            key: key.clone(),
            uid,
            version: version.to_string(),
            summary,
        })
    }

    /// Reads the object of this name, whatever its ownership.
    ///
    /// # Errors
    /// [`Error::Rejected`](crate::error::Error) or `Api` if the read failed.
    pub async fn read(&self, key: &ObjectKey) -> Result<Option<ChildSnapshot<S>>> {
        let _read = self.cache.begin_read(key);
        let Some(BoundedObject(live)) =
            Self::classified(key, self.api(key).get_opt(&key.name).await)?
        else {
            self.cache.record_absent(key);
            return Ok(None);
        };
        let labelled = live.labels().contains_key(self.names.owner_uid);
        Ok(Some(if labelled {
            self.record(key, &live)
        } else {
            self.snapshot(key, &live)
        }))
    }

    /// Creates `desired`, which has its ownership set; returns `None` if an object of its name exists.
    ///
    /// # Errors
    /// [`Error::Rejected`](crate::error::Error) or `Api` if the apiserver did not create it.
    pub async fn create(&self, desired: &K) -> Result<Option<ChildSnapshot<S>>> {
        let key = ObjectKey::of(desired);
        let _read = self.cache.begin_read(&key);
        let made = Self::classified(
            &key,
            apply::create(&self.api(&key), self.manager, desired).await,
        )?;
        Ok(made.map(|made| self.record(&key, &made)))
    }

    /// Sets the ownership and these labels of a child, and removes the consent to its adoption. `metadata` has the
    /// child's current owner references. No other field changes.
    ///
    /// # Errors
    /// [`Error::Rejected`](crate::error::Error) or `Api` if the write failed, such as with 409 when the child has
    /// changed since.
    pub async fn set_ownership(
        &self,
        owner: &Owner,
        child: &ChildSnapshot<S>,
        metadata: &ObjectMeta,
        labels: &[(&str, &str)],
    ) -> Result<ChildSnapshot<S>> {
        let mut patch = owner.ownership_patch(metadata);
        for (name, value) in labels {
            patch["labels"][name] = (*value).into();
        }
        let _read = self.cache.begin_read(&child.key);
        let api = self.api(&child.key);
        let written = apply::metadata(&api, self.manager, &stub::<K, S>(child), patch).await;
        Ok(self.record(&child.key, &Self::classified(&child.key, written)?))
    }

    /// Deletes a child with its own grace period.
    ///
    /// # Errors
    /// [`Error::Rejected`](crate::error::Error) or `Api` if the deletion failed, such as with 409 when the child has
    /// changed since.
    pub async fn delete(&self, child: &ChildSnapshot<S>) -> Result<()> {
        Self::classified(
            &child.key,
            apply::remove(&self.api(&child.key), &stub::<K, S>(child)).await,
        )
    }

    /// Returns the message about an object that `owner` does not own, with the command that adopts it.
    pub fn conflict_message(
        &self,
        owner: &Owner,
        foreign: &ForeignOwner,
        key: &ObjectKey,
    ) -> String {
        owner.conflict_message(foreign, &resource::<K>(), &key.namespace, &key.name)
    }

    fn snapshot(&self, key: &ObjectKey, object: &K) -> ChildSnapshot<S> {
        ChildSnapshot {
            key: key.clone(),
            uid: object.uid().unwrap_or_default(),
            version: object.resource_version().unwrap_or_default(),
            summary: (self.summary)(object),
        }
    }

    /// Records a child that was written or read, so that older events of the watch have no effect.
    fn record(&self, key: &ObjectKey, object: &K) -> ChildSnapshot<S> {
        // Immutable children have no digest of a desired state.
        self.record_match(key, object, String::new(), &Projection::default());
        self.snapshot(key, object)
    }
}

/// Returns an object with nothing but the identity and the version of the child.
fn stub<K: Resource + Default, S>(child: &ChildSnapshot<S>) -> K {
    let mut object = K::default();
    *object.meta_mut() = ObjectMeta {
        namespace: Some(child.key.namespace.to_string()),
        name: Some(child.key.name.to_string()),
        uid: Some(child.uid.clone()),
        resource_version: Some(child.version.clone()),
        ..ObjectMeta::default()
    };
    object
}
