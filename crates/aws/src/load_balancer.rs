//! A load balancer, and the tags of resources.

use std::collections::{BTreeMap, BTreeSet};

/// Tags of a resource in AWS.
pub type Tags = BTreeMap<String, String>;

/// The desired state of a load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredLoadBalancer {
    /// Its name.
    pub name: String,
    /// `internet-facing` or `internal`.
    pub scheme: String,
    /// `ipv4` or one of the others; `ipv4` is what one is created with where there is none.
    pub ip_address_type: Option<String>,
    /// IDs of its subnets.
    pub subnets: BTreeSet<String>,
    /// IDs of its security groups; if empty, AWS chooses.
    pub security_groups: BTreeSet<String>,
    /// Its tags.
    pub tags: Tags,
}

/// A load balancer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadBalancer {
    /// Its Amazon Resource Name.
    pub arn: String,
    /// Its DNS name.
    pub dns: String,
    /// `application`, `network` or `gateway`.
    pub kind: String,
    /// `provisioning`, `active`, `active_impaired` or `failed`.
    pub state: String,
    /// Why it is in that state, if AWS says so.
    pub state_reason: String,
    /// `internet-facing` or `internal`.
    pub scheme: String,
    /// `ipv4` or one of the others.
    pub ip_address_type: String,
    /// ID of its VPC.
    pub vpc: String,
    /// IDs of its subnets.
    pub subnets: BTreeSet<String>,
    /// IDs of its security groups.
    pub security_groups: BTreeSet<String>,
}
