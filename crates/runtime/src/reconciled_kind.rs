//! Bounds of a kind that the runtime reconciles.

use std::fmt::Debug;

use kube::Resource;
use kube::core::NamespaceResourceScope;
use kube::core::object::HasStatus;
use qm_core::kind::HasReadyCondition;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The status of a kind.
pub type StatusOf<K> = <K as HasStatus>::Status;

/// Kind that a [`Controller`](crate::controller::Controller) can reconcile: its API type derives `kube::CustomResource`,
/// and it reports the condition `Ready`.
pub trait ReconciledKind:
    HasReadyCondition
    + HasStatus<
        Status: Clone + Debug + Default + PartialEq + Serialize + DeserializeOwned + Send + Sync,
    > + Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> ReconciledKind for K where
    K: HasReadyCondition
        + HasStatus<
            Status: Clone
                        + Debug
                        + Default
                        + PartialEq
                        + Serialize
                        + DeserializeOwned
                        + Send
                        + Sync,
        > + Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}
