//! What a load balancer listens on, and where that leads.

use std::collections::{BTreeMap, BTreeSet};

use super::{Fault, Tags};

/// Listeners of load balancers, and the groups of targets that they lead to.
///
/// As with balancers, what is asked for may be done although the answer is an error.
pub trait Listeners: Send + Sync + 'static {
    /// The listeners of a balancer.
    fn listeners(
        &self,
        balancer: &str,
    ) -> impl Future<Output = Result<Vec<Listener>, Fault>> + Send;

    /// The target groups that a balancer's listeners lead to.
    fn groups(&self, balancer: &str) -> impl Future<Output = Result<Vec<Group>, Fault>> + Send;

    /// The target group of that name.
    fn group(&self, name: &str) -> impl Future<Output = Result<Option<Group>, Fault>> + Send;

    /// All target groups whose names begin so.
    fn groups_named(&self, prefix: &str) -> impl Future<Output = Result<Vec<Group>, Fault>> + Send;

    /// The tags of each of these listeners and target groups; one that is gone fails them all.
    fn tags_of(
        &self,
        arns: &[String],
    ) -> impl Future<Output = Result<BTreeMap<String, Tags>, Fault>> + Send;

    /// Creates a target group. Where there is one of that name and of these very settings the answer is that one.
    fn create_group(
        &self,
        wanted: &WantedGroup,
    ) -> impl Future<Output = Result<Group, Fault>> + Send;

    /// Has the health of a group's targets be asked for at that path.
    fn set_health_check(
        &self,
        group: &str,
        path: &str,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Deletes a target group. One that is gone is no error; one that a listener leads to is.
    fn delete_group(&self, group: &str) -> impl Future<Output = Result<(), Fault>> + Send;

    /// The targets of a group, and how each is.
    fn targets(&self, group: &str) -> impl Future<Output = Result<Vec<Health>, Fault>> + Send;

    /// Adds these targets.
    fn register(
        &self,
        group: &str,
        targets: &BTreeSet<Target>,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Takes these targets away. They end what they are at.
    fn deregister(
        &self,
        group: &str,
        targets: &BTreeSet<Target>,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Has a balancer listen.
    fn create_listener(
        &self,
        balancer: &str,
        wanted: &WantedListener,
        tags: &Tags,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Has a listener be so.
    fn modify_listener(
        &self,
        listener: &str,
        wanted: &WantedListener,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Deletes a listener. One that is gone is no error.
    fn delete_listener(&self, listener: &str) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// What a listener is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedListener {
    /// Port that it listens on.
    pub port: u16,
    /// `HTTP` or `HTTPS`.
    pub protocol: String,
    /// ARN of its certificate.
    pub certificate: Option<String>,
    /// Its security policy; where there is none the cloud chooses.
    pub ssl_policy: Option<String>,
    /// ARN of the target group that it leads to.
    pub group: String,
}

/// What a listener is.
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
    /// ARN of the one target group that it leads to, if it does no more than that.
    pub group: Option<String>,
}

/// What a target group is to be: of instances, by HTTP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedGroup {
    /// Its name.
    pub name: String,
    /// ID of its VPC.
    pub vpc: String,
    /// Port of those of its targets that name none.
    pub port: u16,
    /// Path at which health is asked for.
    pub health_check_path: String,
    /// Its tags.
    pub tags: Tags,
}

/// What a target group is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Its ARN.
    pub arn: String,
    /// Its name.
    pub name: String,
    /// ID of its VPC.
    pub vpc: String,
    /// Path at which health is asked for.
    pub health_check_path: String,
}

/// A port of an instance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// ID of the instance.
    pub instance: String,
    /// The port.
    pub port: u16,
}

/// How a target is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The target.
    pub target: Target,
    /// `initial`, `healthy`, `unhealthy`, `unused`, `draining` or `unavailable`.
    pub state: String,
    /// Why it is not healthy: AWS' code, such as `Target.Timeout`.
    pub reason: String,
    /// The same in AWS' words.
    pub description: String,
}

impl Health {
    /// Returns whether the target is on its way out.
    pub fn is_draining(&self) -> bool {
        self.state == "draining"
    }
}
