//! Kinds of children, and what all code about a child needs.

use std::fmt::Debug;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::Resource;
use kube::core::NamespaceResourceScope;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::error::{Error, Result};
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
