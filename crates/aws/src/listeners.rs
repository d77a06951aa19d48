//! Listeners and target groups.

use super::Tags;

/// The desired state of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredListener {
    /// Port that it listens on.
    pub port: u16,
    /// `HTTP` or `HTTPS`.
    pub protocol: String,
    /// ARN of its certificate.
    pub certificate: Option<String>,
    /// Its security policy; if `None`, AWS chooses.
    pub ssl_policy: Option<String>,
    /// ARN of the target group that it leads to.
    pub group: String,
}

/// A listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listener {
    /// Its ARN.
    pub arn: String,
    /// Port that it listens on.
    pub port: u16,
    /// `HTTP`, `HTTPS` or another.
    pub protocol: String,
    /// ARN of its certificate.
    pub certificate: Option<String>,
    /// Its security policy.
    pub ssl_policy: Option<String>,
    /// ARN of its target group, if its only action is to lead to one.
    pub group: Option<String>,
}

/// The desired state of a target group, which leads to instances over HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredTargetGroup {
    /// Its name.
    pub name: String,
    /// ID of its VPC.
    pub vpc: String,
    /// Port of targets that have none of their own.
    pub port: u16,
    /// Path of the health check.
    pub health_check_path: String,
    /// Its tags.
    pub tags: Tags,
}

/// A target group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TargetGroup {
    /// Its ARN.
    pub arn: String,
    /// Its name.
    pub name: String,
    /// ID of its VPC.
    pub vpc: String,
    /// Path of the health check.
    pub health_check_path: String,
}

/// A port of an instance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct InstanceTarget {
    /// ID of the instance.
    pub instance: String,
    /// The port.
    pub port: u16,
}

/// The health of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetHealth {
    /// The target.
    pub target: InstanceTarget,
    /// `initial`, `healthy`, `unhealthy`, `unused`, `draining` or `unavailable`.
    pub state: String,
    /// Why it is not healthy: AWS' code, such as `Target.Timeout`.
    pub reason: String,
    /// AWS's message for the same.
    pub description: String,
}

impl TargetHealth {
    /// Returns whether the target is on its way out.
    pub fn is_draining(&self) -> bool {
        self.state == "draining"
    }
}
