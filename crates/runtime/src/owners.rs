//! The resources of a kind that own what is made for them: as the cache shows them, which may be of the past, and as they are.

use std::fmt::Debug;

use kube::core::NamespaceResourceScope;
use kube::runtime::reflector::Store;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::ownership::Owner;

/// All resources of a kind.
pub struct Owners<K: Resource<DynamicType = ()> + 'static> {
    client: Client,
    shown: Store<K>,
}

/// It is not certain that the owner is there.
#[derive(Debug, thiserror::Error)]
pub enum OwnerError {
    /// The cache is behind.
    #[error("the object is gone, or another one has its name")]
    NotFound,
    /// It could not be read.
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
    /// Those that the cache shows, and that `client` is asked for.
    pub fn new(client: Client, shown: Store<K>) -> Self {
        Self { client, shown }
    }

    /// Whether one of them has that UID, as far as the cache shows.
    pub fn exists(&self, uid: &str) -> bool {
        self.shown
            .find(|resource| resource.meta().uid.as_deref() == Some(uid))
            .is_some()
    }

    /// Asks the apiserver whether this very owner is still there: before it is given what was another's, and before it is given
    /// anew what is not there any more. That may have gone with the owner.
    ///
    /// # Errors
    /// When it is not, or that could not be read.
    pub async fn confirm(&self, owner: &Owner) -> Result<(), OwnerError> {
        let api: Api<K> = Api::namespaced(self.client.clone(), owner.namespace());
        let there = api
            .get_metadata_opt(owner.name())
            .await
            .map_err(OwnerError::Unreadable)?;
        if there.is_some_and(|there| there.uid().as_deref() == Some(owner.uid())) {
            Ok(())
        } else {
            Err(OwnerError::NotFound)
        }
    }
}
