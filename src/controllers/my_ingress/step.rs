//! Steps of a reconcile: each is one call to AWS or to the apiserver.

use std::collections::BTreeSet;

use qm_aws::listeners::{DesiredListener, DesiredTargetGroup, InstanceTarget};
use qm_aws::{DesiredLoadBalancer, Tags};

/// A step. Strings are ARNs, unless the variant says otherwise.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Reads the region of the operator's configuration.
    ReadRegion,
    /// Reads the account of the credentials.
    ReadAccount,
    /// Finds the load balancer by name.
    FindLoadBalancer(String),
    ReadTags(String),
    ReadListeners(String),
    /// Reads the target groups that the listeners of a load balancer lead to.
    ReadTargetGroups(String),
    /// Reads the tags of listeners and target groups.
    ReadOwnership(Vec<String>),
    /// Finds the target group by name.
    FindTargetGroup(String),
    /// Reads all target groups whose names have this prefix.
    ListTargetGroups(String),
    ReadTargetHealth(String),
    /// Looks for a load balancer with this name after the deletion: AWS may still show the deleted one.
    VerifyDeletion(String),
    ReadNodes,
    /// Reads the Service of the listener of this port, by name.
    ReadService(u16, String),

    /// Asks the apiserver whether the `MyIngress` still exists, because the cache may be stale. The operator asks again
    /// before it changes other resources, because the answer may then be outdated.
    ConfirmOwner(OwnedResource),
    AddFinalizer,
    /// Writes the status.
    RecordIntent(Intent),
    /// Emits an Event with this action, reason and note.
    Emit(EventType, &'static str, &'static str, String),

    CreateLoadBalancer(DesiredLoadBalancer),
    AddTags(String, Tags),
    RemoveTags(String, BTreeSet<String>),
    SetIpAddressType(String, String),
    SetSubnets(String, BTreeSet<String>),
    SetSecurityGroups(String, BTreeSet<String>),
    DeleteLoadBalancer(String),
    /// Creates the target group for the listener of this port.
    CreateTargetGroup(u16, DesiredTargetGroup),
    SetHealthCheck(String, String),
    RegisterTargets(String, BTreeSet<InstanceTarget>),
    DeregisterTargets(String, BTreeSet<InstanceTarget>),
    DeleteTargetGroup(String),
    /// Creates a listener of the load balancer, with these tags.
    CreateListener(String, DesiredListener, Tags),
    ModifyListener(String, DesiredListener),
    DeleteListener(String),
}

impl Step {
    /// Returns whether the step changes a listener or a target group in AWS, or adds tags to a resource.
    pub(crate) fn changes_listeners_or_tags(&self) -> bool {
        matches!(
            self,
            Self::AddTags(..)
                | Self::CreateTargetGroup(..)
                | Self::SetHealthCheck(..)
                | Self::RegisterTargets(..)
                | Self::DeregisterTargets(..)
                | Self::DeleteTargetGroup(_)
                | Self::CreateListener(..)
                | Self::ModifyListener(..)
                | Self::DeleteListener(_)
        )
    }
}

/// Resources in AWS that a `MyIngress` owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnedResource {
    LoadBalancer,
    TargetGroups,
}

/// Intent of a reconcile. The status records the intent before the call to AWS, so that the next reconcile knows the
/// intent even if this reconcile is interrupted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Intent {
    CreateLoadBalancer,
    /// Set the tags of the spec on the load balancer.
    Tag,
    /// Manage resources in AWS for these ports.
    Ports(BTreeSet<u16>),
    /// Create a resource in AWS for this port.
    CreateFor(u16),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventType {
    Normal,
    Warning,
}
