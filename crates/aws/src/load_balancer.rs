//! A load balancer, and the tags of resources.

use std::collections::{BTreeMap, BTreeSet};

/// Tags of a resource in AWS.
pub type Tags = BTreeMap<String, String>;

/// Desired state of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredLoadBalancer {
    pub name: String,
    /// `internet-facing` or `internal`.
    pub scheme: String,
    /// `ipv4` or another type; if `None`, new load balancers get `ipv4`.
    pub ip_address_type: Option<String>,
    /// IDs of the subnets.
    pub subnets: BTreeSet<String>,
    /// IDs of the security groups; if empty, AWS chooses.
    pub security_groups: BTreeSet<String>,
    pub tags: Tags,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadBalancer {
    /// Amazon Resource Name.
    pub arn: String,
    /// DNS name.
    pub dns: String,
    /// `application`, `network` or `gateway`.
    pub kind: String,
    /// `provisioning`, `active`, `active_impaired` or `failed`.
    pub state: String,
    /// Reason of the state, if AWS gives one.
    pub state_reason: String,
    /// `internet-facing` or `internal`.
    pub scheme: String,
    /// `ipv4` or another type.
    pub ip_address_type: String,
    /// ID of the VPC.
    pub vpc: String,
    /// IDs of the subnets.
    pub subnets: BTreeSet<String>,
    /// IDs of the security groups.
    pub security_groups: BTreeSet<String>,
}
