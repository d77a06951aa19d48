//! The load balancers of a cloud: what is asked of it ([`Balancers`]), what it answers, and why it refuses ([`fault`]).
//! The one implementation is [`elb`].

use std::collections::{BTreeMap, BTreeSet};

pub use self::fault::Fault;
use std::time::Duration;

use shell_words::quote;

pub mod action;
pub mod elb;
pub mod fault;
pub mod listeners;
mod pace;
mod proxy;

/// A load balancer is called `NAME-alb` after its resource.
pub const NAME_SUFFIX: &str = "-alb";

/// Timeouts and rates of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timings {
    /// Timeout of one call.
    pub timeout: Duration,
    /// Interval of reading calls, after a burst.
    pub read_period: Duration,
    /// Interval of changing calls, after a burst.
    pub write_period: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(20),
            read_period: Duration::from_millis(200),
            write_period: Duration::from_millis(500),
        }
    }
}

/// Tags of a resource in AWS.
pub type Tags = BTreeMap<String, String>;

/// Load balancers, one of each name in an account and region.
///
/// What is asked for may be done although the answer is an error: a connection may break after the deed.
pub trait Balancers: Send + Sync + 'static {
    /// The region that is asked.
    fn region(&self) -> impl Future<Output = Result<String, Fault>> + Send;

    /// The account that is asked: that of the credentials.
    fn account(&self) -> impl Future<Output = Result<String, Fault>> + Send;

    /// The balancer of that name. One that was created or deleted a moment ago may not be shown as it is.
    fn find(&self, name: &str) -> impl Future<Output = Result<Option<Balancer>, Fault>> + Send;

    /// The tags of a balancer; none where there is no such balancer.
    fn tags(&self, arn: &str) -> impl Future<Output = Result<Option<Tags>, Fault>> + Send;

    /// Creates a balancer. Where there is one of that name and of these very settings the answer is that one, whosever it is.
    fn create(&self, wanted: &Wanted) -> impl Future<Output = Result<Balancer, Fault>> + Send;

    /// Puts it into exactly these subnets.
    fn set_subnets(
        &self,
        arn: &str,
        subnets: &BTreeSet<String>,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Gives it exactly these security groups.
    fn set_security_groups(
        &self,
        arn: &str,
        groups: &BTreeSet<String>,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Gives it addresses of that type.
    fn set_ip_address_type(
        &self,
        arn: &str,
        addresses: &str,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Sets these tags, and leaves others.
    fn add_tags(&self, arn: &str, tags: &Tags) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Takes the tags of these keys away.
    fn remove_tags(
        &self,
        arn: &str,
        keys: &BTreeSet<String>,
    ) -> impl Future<Output = Result<(), Fault>> + Send;

    /// Deletes it, and its listeners with it. One that is gone is no error.
    fn delete(&self, arn: &str) -> impl Future<Output = Result<(), Fault>> + Send;
}

/// All that is asked of a cloud.
pub trait Cloud: Balancers + listeners::Listeners {}

impl<C: Balancers + listeners::Listeners> Cloud for C {}

/// The region of an Amazon Resource Name: `arn:aws:elasticloadbalancing:REGION:ACCOUNT:...`.
pub fn region_of(arn: &str) -> Option<&str> {
    arn.split(':').nth(3).filter(|region| !region.is_empty())
}

/// The account of an Amazon Resource Name.
pub fn account_of(arn: &str) -> Option<&str> {
    arn.split(':').nth(4).filter(|account| !account.is_empty())
}

/// The words that a command to change a balancer begins with, for whoever's own default is another region.
pub fn command(arn: &str) -> String {
    region_of(arn).map_or_else(
        || "aws elbv2".into(),
        |region| format!("aws --region {} elbv2", quote(region)),
    )
}

/// What a balancer is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// `internet-facing` or `internal`.
    pub scheme: String,
    /// `ipv4` or one of the others; `ipv4` is what one is created with where there is none.
    pub ip_address_type: Option<String>,
    /// IDs of its subnets.
    pub subnets: BTreeSet<String>,
    /// IDs of its security groups; where there are none the cloud chooses.
    pub security_groups: BTreeSet<String>,
    /// Its tags.
    pub tags: Tags,
}

/// What a balancer is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balancer {
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
