//! AWS load balancers: the calls ([`Aws`]), their answers and errors ([`error`]). [`elb`] implements the calls.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use shell_words::quote;

pub use self::error::AwsError;
use self::listeners::{
    DesiredListener, DesiredTargetGroup, InstanceTarget, Listener, TargetGroup, TargetHealth,
};
pub use self::load_balancer::{DesiredLoadBalancer, LoadBalancer, Tags};
pub use self::metrics::AwsMetrics;

pub mod action;
pub mod elb;
pub mod error;
pub mod listeners;
mod load_balancer;
mod metrics;
mod proxy;
mod rate_limit;
mod traces;

/// Suffix of a load balancer's name: `NAME-alb`.
pub const NAME_SUFFIX: &str = "-alb";

/// Timeouts and rates of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AwsTimings {
    /// Timeout of one call.
    pub timeout: Duration,
    /// Interval between read calls, after a burst.
    pub read_period: Duration,
    /// Interval between changing calls, after a burst.
    pub write_period: Duration,
}

impl Default for AwsTimings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(20),
            read_period: Duration::from_millis(200),
            write_period: Duration::from_millis(500),
        }
    }
}

/// Calls that the operator makes. The name of a load balancer, and that of a target group, is unique in an account and
/// region.
///
/// A failed call may have taken effect: the connection can break after AWS acted.
pub trait Aws: Send + Sync + 'static {
    /// Returns the region of the calls.
    fn region(&self) -> impl Future<Output = Result<String, AwsError>> + Send;

    /// Returns the account of the credentials.
    fn account(&self) -> impl Future<Output = Result<String, AwsError>> + Send;

    /// Returns the load balancer with that name. AWS may show changes late.
    fn find_load_balancer(
        &self,
        name: &str,
    ) -> impl Future<Output = Result<Option<LoadBalancer>, AwsError>> + Send;

    /// Returns the tags of a load balancer; `None` if it does not exist.
    fn find_tags(&self, arn: &str) -> impl Future<Output = Result<Option<Tags>, AwsError>> + Send;

    /// Creates a load balancer. AWS answers with an existing one of the same name and settings, whoever owns it.
    fn create_load_balancer(
        &self,
        desired: &DesiredLoadBalancer,
    ) -> impl Future<Output = Result<LoadBalancer, AwsError>> + Send;

    /// Replaces the subnets.
    fn set_subnets(
        &self,
        arn: &str,
        subnets: &BTreeSet<String>,
    ) -> impl Future<Output = Result<(), AwsError>> + Send;

    /// Replaces the security groups.
    fn set_security_groups(
        &self,
        arn: &str,
        groups: &BTreeSet<String>,
    ) -> impl Future<Output = Result<(), AwsError>> + Send;

    /// Sets the address type.
    fn set_ip_address_type(
        &self,
        arn: &str,
        address_type: &str,
    ) -> impl Future<Output = Result<(), AwsError>> + Send;

    /// Sets these tags and keeps others.
    fn add_tags(&self, arn: &str, tags: &Tags)
    -> impl Future<Output = Result<(), AwsError>> + Send;

    /// Removes the tags with these keys.
    fn remove_tags(
        &self,
        arn: &str,
        keys: &BTreeSet<String>,
    ) -> impl Future<Output = Result<(), AwsError>> + Send;

    /// Deletes a load balancer and its listeners. A missing load balancer is not an error.
    fn delete_load_balancer(&self, arn: &str) -> impl Future<Output = Result<(), AwsError>> + Send;

    /// Returns the listeners of a load balancer.
    fn listeners(
        &self,
        load_balancer: &str,
    ) -> impl Future<Output = Result<Vec<Listener>, AwsError>> + Send;

    /// Returns the target groups of a load balancer's listeners.
    fn target_groups(
        &self,
        load_balancer: &str,
    ) -> impl Future<Output = Result<Vec<TargetGroup>, AwsError>> + Send;

    /// Returns the target group with that name.
    fn find_target_group(
        &self,
        name: &str,
    ) -> impl Future<Output = Result<Option<TargetGroup>, AwsError>> + Send;

    /// Returns every target group whose name has that prefix.
    fn target_groups_named(
        &self,
        prefix: &str,
    ) -> impl Future<Output = Result<Vec<TargetGroup>, AwsError>> + Send;

    /// Returns the tags of each of these listeners and target groups; the call fails if one is missing.
    fn tags_of(
        &self,
        arns: &[String],
    ) -> impl Future<Output = Result<BTreeMap<String, Tags>, AwsError>> + Send;

    /// Creates a target group. AWS answers with an existing one of the same name and settings, whoever owns it.
    fn create_target_group(
        &self,
        desired: &DesiredTargetGroup,
    ) -> impl Future<Output = Result<TargetGroup, AwsError>> + Send;

    /// Sets the path of the health check.
    fn set_health_check(
        &self,
        group: &str,
        path: &str,
    ) -> impl Future<Output = Result<(), AwsError>> + Send;

    /// Deletes a target group. A missing group is not an error; a group that a listener forwards to is.
    fn delete_target_group(&self, group: &str)
    -> impl Future<Output = Result<(), AwsError>> + Send;

    /// Returns the targets of a group and their health.
    fn target_health(
        &self,
        group: &str,
    ) -> impl Future<Output = Result<Vec<TargetHealth>, AwsError>> + Send;

    /// Registers these targets.
    fn register_targets(
        &self,
        group: &str,
        targets: &BTreeSet<InstanceTarget>,
    ) -> impl Future<Output = Result<(), AwsError>> + Send;

    /// Deregisters these targets, which then drain.
    fn deregister_targets(
        &self,
        group: &str,
        targets: &BTreeSet<InstanceTarget>,
    ) -> impl Future<Output = Result<(), AwsError>> + Send;

    /// Creates a listener.
    fn create_listener(
        &self,
        load_balancer: &str,
        desired: &DesiredListener,
        tags: &Tags,
    ) -> impl Future<Output = Result<(), AwsError>> + Send;

    /// Changes a listener.
    fn modify_listener(
        &self,
        listener: &str,
        desired: &DesiredListener,
    ) -> impl Future<Output = Result<(), AwsError>> + Send;

    /// Deletes a listener. A missing listener is not an error.
    fn delete_listener(&self, listener: &str) -> impl Future<Output = Result<(), AwsError>> + Send;
}

/// Returns the region of an Amazon Resource Name: `arn:aws:elasticloadbalancing:REGION:ACCOUNT:...`.
pub fn region_of(arn: &str) -> Option<&str> {
    arn.split(':').nth(3).filter(|region| !region.is_empty())
}

/// Returns the account of an Amazon Resource Name.
pub fn account_of(arn: &str) -> Option<&str> {
    arn.split(':').nth(4).filter(|account| !account.is_empty())
}

/// Returns the beginning of an AWS CLI command that changes a load balancer. The command sets the region, because the
/// user's default may differ.
pub fn command(arn: &str) -> String {
    region_of(arn).map_or_else(
        || "aws elbv2".into(),
        |region| format!("aws --region {} elbv2", quote(region)),
    )
}
