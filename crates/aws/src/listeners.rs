//! Listeners and target groups.

use super::Tags;

/// Desired state of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredListener {
    pub port: u16,
    /// `HTTP` or `HTTPS`.
    pub protocol: String,
    /// ARN of the certificate.
    pub certificate: Option<String>,
    /// Security policy; if `None`, AWS chooses.
    pub ssl_policy: Option<String>,
    /// ARN of the target group.
    pub group: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listener {
    pub arn: String,
    pub port: u16,
    /// `HTTP`, `HTTPS` or another protocol.
    pub protocol: String,
    /// ARN of the certificate.
    pub certificate: Option<String>,
    /// Security policy.
    pub ssl_policy: Option<String>,
    /// ARN of the target group, if the listener only forwards to one group.
    pub group: Option<String>,
}

/// Desired state of a target group, which forwards to instances over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredTargetGroup {
    pub name: String,
    /// ID of the VPC.
    pub vpc: String,
    /// Default port of targets.
    pub port: u16,
    /// Path of the health check.
    pub health_check_path: String,
    pub tags: Tags,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetGroup {
    pub arn: String,
    pub name: String,
    /// ID of the VPC.
    pub vpc: String,
    /// Path of the health check.
    pub health_check_path: String,
}

/// A port of an instance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InstanceTarget {
    /// ID of the instance.
    pub instance: String,
    pub port: u16,
}

/// Health of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetHealth {
    pub target: InstanceTarget,
    /// `initial`, `healthy`, `unhealthy`, `unused`, `draining` or `unavailable`.
    pub state: String,
    /// AWS's code for the cause, such as `Target.Timeout`.
    pub reason: String,
    /// AWS's message for the cause.
    pub description: String,
}

impl TargetHealth {
    /// Returns whether the target is being deregistered.
    pub fn is_draining(&self) -> bool {
        self.state == "draining"
    }
}
