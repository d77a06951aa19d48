//! Owners of children, as the possibly stale cache shows them and as the apiserver confirms them.

use std::fmt::Debug;

use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::objects::Objects;
use super::ownership::Owner;

/// All objects of a kind that own children.
pub struct Owners<K: Resource<DynamicType = ()> + 'static> {
    client: Client,
    objects: Objects<K>,
}

/// Reason why the owner's existence is not confirmed.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// The owner no longer exists, or another object has its name: the cache is stale.
    #[error("the object no longer exists, or another object has its name")]
    NotFound,
    /// The owner could not be read.
    #[error("the object could not be read: {0}")]
    Unreadable(#[source] kube::Error),
}

impl<K> Owners<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + 'static,
{
    /// Creates the owners from the cached `objects`; `client` confirms them.
    pub fn new(client: Client, objects: Objects<K>) -> Self {
        Self { client, objects }
    }

    /// Returns whether an object has that UID, as far as the cache shows.
    pub fn exists(&self, uid: &str) -> bool {
        self.objects
            .find(|resource| resource.meta().uid.as_deref() == Some(uid))
            .is_some()
    }

    /// Asks the apiserver whether this owner still exists. Callers ask before a child of an earlier owner passes to
    /// this one, and before they recreate a missing child, which may have been deleted with its owner.
    ///
    /// # Errors
    /// [`OwnerError::NotFound`] if the owner no longer exists, [`OwnerError::Unreadable`] if the read failed.
    pub async fn confirm(&self, owner: &Owner) -> Result<(), OwnerError> {
        let api: Api<K> = Api::namespaced(self.client.clone(), owner.namespace());
        let found = api
            .get_metadata_opt(owner.name())
            .await
            .map_err(OwnerError::Unreadable)?;
        if found.is_some_and(|found| found.uid().as_deref() == Some(owner.uid())) {
            Ok(())
        } else {
            Err(OwnerError::NotFound)
        }
    }
}
