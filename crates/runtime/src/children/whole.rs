//! Children that are made and deleted, and never applied over, as Pods are: most of a Pod cannot be changed, and what its
//! kubelet and those who admitted it have written into it is not ours to take back.

use kube::core::ObjectMeta;
use kube::{Resource, ResourceExt};

use super::{ChildKind, Children, Report, resource};
use crate::error::Result;
use crate::fields::Projection;
use crate::ownership::{Foreign, Owner};
use crate::raw_object::BoundedObject;
use crate::seen::Known;
use crate::{Key, apply};

/// A child in one state: what is then done to it is refused with 409 if it has changed since.
#[derive(Clone, Debug)]
pub struct Child<S> {
    /// Its namespace and name.
    pub key: Key,
    /// Its UID.
    pub uid: String,
    /// Its resourceVersion.
    pub version: String,
    /// What its owner reports of it.
    pub report: S,
}

impl<K: ChildKind, S: Report> Children<K, S> {
    /// The child of this name that has our label, as it is known without asking.
    pub fn child(&self, key: &Key) -> Option<Child<S>> {
        let Known {
            uid,
            version,
            report,
            ..
        } = self.seen.known(key)?;
        Some(Child {
            key: key.clone(),
            uid,
            version: version.to_string(),
            report,
        })
    }

    /// The object of this name, whosever it is, by asking for it.
    ///
    /// # Errors
    /// It could not be read.
    pub async fn ask(&self, key: &Key) -> Result<Option<Child<S>>> {
        let _asking = self.seen.asking(key);
        let Some(BoundedObject(live)) = Self::sent(key, self.api(key).get_opt(&key.name).await)?
        else {
            self.seen.absent(key);
            return Ok(None);
        };
        let labelled = live.labels().contains_key(self.names.owner_uid);
        Ok(Some(if labelled {
            self.noted(key, &live)
        } else {
            self.as_it_is(key, &live)
        }))
    }

    /// Makes `desired`, which is marked as its owner's; none if there is an object of its name.
    ///
    /// # Errors
    /// It could not be made.
    pub async fn make(&self, desired: &K) -> Result<Option<Child<S>>> {
        let key = Key::of(desired);
        let _asking = self.seen.asking(&key);
        let made = Self::sent(
            &key,
            apply::create(&self.api(&key), self.manager, desired).await,
        )?;
        Ok(made.map(|made| self.noted(&key, &made)))
    }

    /// Puts the owner's marks and these labels on a child; the consent to take it over is used up. `metadata` has the owner
    /// references that it has now. Nothing else of it is changed.
    ///
    /// # Errors
    /// It could not be changed.
    pub async fn mark(
        &self,
        owner: &Owner,
        child: &Child<S>,
        metadata: &ObjectMeta,
        labels: &[(&str, &str)],
    ) -> Result<Child<S>> {
        let mut patch = owner.marks(metadata);
        for (name, value) in labels {
            patch["labels"][name] = (*value).into();
        }
        let _asking = self.seen.asking(&child.key);
        let api = self.api(&child.key);
        let written = apply::metadata(&api, self.manager, &stub::<K, S>(child), patch).await;
        Ok(self.noted(&child.key, &Self::sent(&child.key, written)?))
    }

    /// Deletes a child, with the grace that it asks for.
    ///
    /// # Errors
    /// It could not be deleted.
    pub async fn delete(&self, child: &Child<S>) -> Result<()> {
        Self::sent(
            &child.key,
            apply::remove(&self.api(&child.key), &stub::<K, S>(child)).await,
        )
    }

    /// What to say of an object that is not ours.
    pub fn conflict(&self, owner: &Owner, foreign: &Foreign, key: &Key) -> String {
        owner.conflict(foreign, &resource::<K>(), &key.namespace, &key.name)
    }

    fn as_it_is(&self, key: &Key, object: &K) -> Child<S> {
        Child {
            key: key.clone(),
            uid: object.uid().unwrap_or_default(),
            version: object.resource_version().unwrap_or_default(),
            report: (self.report)(object),
        }
    }

    /// We wrote or read it so: the watch, which may lag behind, has nothing older to say.
    fn noted(&self, key: &Key, object: &K) -> Child<S> {
        // Nobody compares it with a digest.
        self.wrote(key, object, String::new(), &Projection::default());
        self.as_it_is(key, object)
    }
}

/// An object of which only that is known that tells its state.
fn stub<K: Resource + Default, S>(child: &Child<S>) -> K {
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
