//! Children that are made and deleted, and never applied over, as Pods are: most of a Pod cannot be changed, and what its
//! kubelet and those who admitted it have written into it is not ours to take back.

use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};

use super::{ChildKind, ChildSummary, Children, resource};
use crate::child_cache::KnownChild;
use crate::error::Result;
use crate::fields::Projection;
use crate::ownership::{ForeignOwner, Owner};
use crate::raw_object::BoundedObject;
use crate::{ObjectKey, apply};

/// A child in one state: what is then done to it is refused with 409 if it has changed since.
#[derive(Clone, Debug)]
pub struct ChildSnapshot<S> {
    /// Its namespace and name.
    pub key: ObjectKey,
    /// Its UID.
    pub uid: String,
    /// Its resourceVersion.
    pub version: String,
    /// What its owner reports of it.
    pub summary: S,
}

impl<K: ChildKind, S: ChildSummary> Children<K, S> {
    /// The child of this name that has our label, as it is known without asking.
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

    /// The object of this name, whosever it is, by asking for it.
    ///
    /// # Errors
    /// It could not be read.
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

    /// Makes `desired`, which is marked as its owner's; none if there is an object of its name.
    ///
    /// # Errors
    /// It could not be made.
    pub async fn create(&self, desired: &K) -> Result<Option<ChildSnapshot<S>>> {
        let key = ObjectKey::of(desired);
        let _read = self.cache.begin_read(&key);
        let made = Self::classified(
            &key,
            apply::create(&self.api(&key), self.manager, desired).await,
        )?;
        Ok(made.map(|made| self.record(&key, &made)))
    }

    /// Puts the owner's marks and these labels on a child; the consent to take it over is used up. `metadata` has the owner
    /// references that it has now. Nothing else of it is changed.
    ///
    /// # Errors
    /// It could not be changed.
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

    /// Deletes a child, with the grace that it asks for.
    ///
    /// # Errors
    /// It could not be deleted.
    pub async fn delete(&self, child: &ChildSnapshot<S>) -> Result<()> {
        Self::classified(
            &child.key,
            apply::remove(&self.api(&child.key), &stub::<K, S>(child)).await,
        )
    }

    /// What to say of an object that is not ours.
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

    /// We wrote or read it so: the watch, which may lag behind, has nothing older to say.
    fn record(&self, key: &ObjectKey, object: &K) -> ChildSnapshot<S> {
        // Nobody compares it with a digest.
        self.record_match(key, object, String::new(), &Projection::default());
        self.snapshot(key, object)
    }
}

/// An object of which only that is known that tells its state.
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
