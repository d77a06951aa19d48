//! A child, and what the operator knows about it.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::Resource;
use kube::core::NamespaceResourceScope;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::child_cache::Match;
use crate::error::{Error, Result};
use crate::ownership::Ownership;
use crate::{ObjectKey, fields};

/// A kind of children.
pub trait ChildKind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Default
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> ChildKind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Default
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// Summary of a child for its owner's status.
pub trait ChildSummary: Clone + PartialEq + Send + Sync + 'static {}

impl<S: Clone + PartialEq + Send + Sync + 'static> ChildSummary for S {}

/// A child at one resourceVersion.
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

/// What the operator knows about a live child beside the object itself.
#[derive(Clone, Debug)]
pub struct ChildRecord {
    /// Relation of the child to its owner, which owns it or may adopt it.
    pub ownership: Ownership,
    /// The last confirmed match of this child, even if the child has changed since.
    pub matched: Option<Match>,
    /// True if fields that were taken from other managers are still to be removed from the child.
    pub has_taken_fields: bool,
}

impl From<Ownership> for ChildRecord {
    /// Returns the record of a child of which nothing else is known.
    fn from(ownership: Ownership) -> Self {
        Self {
            ownership,
            matched: None,
            has_taken_fields: false,
        }
    }
}

/// Returns kind and name, such as `Deployment shop/web`.
pub(crate) fn what<K: Resource<DynamicType = ()>>(key: &ObjectKey) -> String {
    format!("{} {key}", K::kind(&()))
}

/// Converts the error of a request for the child.
pub(crate) fn classified<K: Resource<DynamicType = ()>, T>(
    key: &ObjectKey,
    answer: kube::Result<T>,
) -> Result<T> {
    answer.map_err(|error| Error::of_child(what::<K>(key), error))
}

pub(crate) fn managed(object: &impl Resource) -> &[ManagedFieldsEntry] {
    object.meta().managed_fields.as_deref().unwrap_or_default()
}

/// Returns the object's [content](fields::content).
pub(crate) fn content(object: &impl Serialize) -> Value {
    // Serialization cannot fail: the object came from JSON.
    fields::content(&serde_json::to_value(object).unwrap_or_default())
}
