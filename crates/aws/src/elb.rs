//! Load balancers of AWS, through its Elastic Load Balancing API, version 2.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_elasticloadbalancingv2::Client;
use aws_sdk_elasticloadbalancingv2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_elasticloadbalancingv2::types::{
    IpAddressType, LoadBalancer, LoadBalancerSchemeEnum, LoadBalancerStateEnum,
    LoadBalancerTypeEnum, Tag,
};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use qm_runtime::leader::Fence;
use qm_runtime::metrics::Metrics;
use qm_runtime::reconciler::Class;
use qm_runtime::telemetry::traces;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::Instrument as _;

use self::describe::{DescribeLoadBalancers, DescribeTags};
use self::together::Together;
use super::action::Action;
use super::fault::{self, Fault};
use super::pace::{self, Pace, Rate};
use super::{Balancer, Balancers, Tags, Wanted, proxy};
use crate::Timings;

mod describe;
mod listeners;
mod together;

/// Asks AWS. Region, credentials and endpoint are what the SDK finds
/// (<https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html>), and are looked for at the first call.
pub struct Elb {
    connection: Mutex<Connection>,
    balancers: Together<Balancer>,
    tags: Together<Tags>,
    pace: Pace,
    fence: Fence,
    metrics: Metrics,
    timeout: Duration,
}

/// What came of looking for region and credentials.
enum Connection {
    /// They were not looked for yet, or are to be looked for anew.
    None,
    /// There was no region then. Who asks a moment later need not wait for the same answer.
    Failed(Instant, Fault),
    Made(Clients),
}

/// Who asks.
#[derive(Clone)]
struct Clients {
    elb: Client,
    sts: aws_sdk_sts::Client,
    region: String,
}

impl Clients {
    fn new(config: &SdkConfig, region: String) -> Self {
        Self {
            elb: Client::new(config),
            sts: aws_sdk_sts::Client::new(config),
            region,
        }
    }
}

impl Elb {
    /// Each call is made only while `fence` is held.
    pub fn new(fence: Fence, metrics: Metrics, timings: &Timings) -> Self {
        let reads = Rate {
            burst: pace::READ_BURST,
            period: timings.read_period,
        };
        let writes = Rate {
            burst: pace::WRITE_BURST,
            period: timings.write_period,
        };
        let pace = Pace::new(reads, writes);
        let (connection, timeout) = (Mutex::new(Connection::None), timings.timeout);
        Self {
            connection,
            balancers: Together::new(),
            tags: Together::new(),
            pace,
            fence,
            metrics,
            timeout,
        }
    }

    async fn clients(&self) -> Result<Clients, Fault> {
        let mut connection = self.connection.lock().await;
        match &*connection {
            Connection::Made(clients) => return Ok(clients.clone()),
            Connection::Failed(at, fault) if at.elapsed() < self.timeout => {
                return Err(fault.clone());
            }
            _ => {}
        }
        match self.connect().await {
            Ok(clients) => {
                *connection = Connection::Made(clients.clone());
                Ok(clients)
            }
            Err(fault) => {
                *connection = Connection::Failed(Instant::now(), fault.clone());
                Err(fault)
            }
        }
    }

    async fn connect(&self) -> Result<Clients, Fault> {
        let limits = TimeoutConfig::builder()
            .operation_timeout(self.timeout)
            .build();
        let load = aws_config::defaults(BehaviorVersion::latest())
            // The runtime's delays are enough.
            .retry_config(RetryConfig::disabled())
            .timeout_config(limits)
            .http_client(proxy::client()?)
            .load();
        let loaded = tokio::time::timeout(self.timeout, load).await.ok();
        let region = loaded
            .as_ref()
            .and_then(|config| config.region())
            .map(ToString::to_string);
        let made = loaded.zip(region.filter(|region| !region.is_empty()));
        made.map(|(config, region)| Clients::new(&config, region))
            .ok_or_else(|| {
                let words = "no region for AWS: set AWS_REGION, or region in the profile";
                Fault::unsent(Class::Slow, fault::REGION_MISSING, words)
            })
    }

    /// Makes a call, when it is its turn.
    async fn call<T, E>(
        &self,
        action: Action,
        send: impl AsyncFnOnce(&Client) -> Result<T, SdkError<E, HttpResponse>>,
    ) -> Result<T, Fault>
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let Clients { elb, .. } = self.clients().await?;
        self.pace.turn(action).await;
        self.send(action, send(&elb)).await
    }

    /// Makes a call whose turn it is.
    async fn send<T, E>(
        &self,
        action: Action,
        call: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, Fault>
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        if !self.fence.held() {
            return Err(Fault::unsent(
                Class::Conflict,
                "NotLeading",
                "this replica does not lead any more",
            ));
        }
        let span = traces::aws(action.service(), action.name());
        let answer = call.instrument(span.clone()).await.map_err(Fault::from);
        if let Err(fault) = &answer {
            traces::refused(&span, fault.label());
        }
        self.metrics.aws_request(
            action.name(),
            answer.as_ref().map_or_else(Fault::label, |_| "OK"),
        );
        if answer
            .as_ref()
            .is_err_and(|fault| fault.reason == fault::CREDENTIALS_MISSING)
        {
            // The SDK reads a profile's files once.
            *self.connection.lock().await = Connection::None;
        }
        answer
    }

    /// The tags of these, no more than can be asked for at once.
    async fn tags_together(&self, arns: BTreeSet<String>) -> Result<BTreeMap<String, Tags>, Fault> {
        let Clients { elb, .. } = self.clients().await?;
        self.tags.ask(arns, &DescribeTags(self, elb)).await
    }
}

impl Balancers for Elb {
    async fn region(&self) -> Result<String, Fault> {
        self.clients().await.map(|clients| clients.region)
    }

    async fn account(&self) -> Result<String, Fault> {
        let Clients { sts, .. } = self.clients().await?;
        self.pace.turn(Action::GetCallerIdentity).await;
        let caller = self
            .send(Action::GetCallerIdentity, sts.get_caller_identity().send())
            .await?;
        let account = caller.account().filter(|account| !account.is_empty());
        account
            .map(Into::into)
            .ok_or_else(|| Fault::unknown("AWS does not say whose the credentials are"))
    }

    async fn find(&self, name: &str) -> Result<Option<Balancer>, Fault> {
        let Clients { elb, .. } = self.clients().await?;
        match self
            .balancers
            .ask([name.to_owned()].into(), &DescribeLoadBalancers(self, elb))
            .await
        {
            Ok(mut found) => Ok(found.remove(name)),
            Err(fault) if fault.is(fault::NOT_FOUND) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    async fn tags(&self, arn: &str) -> Result<Option<Tags>, Fault> {
        match self.tags_together([arn.to_owned()].into()).await {
            Ok(mut found) => Ok(found.remove(arn)),
            Err(fault) if fault.is(fault::NOT_FOUND) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    async fn create(&self, wanted: &Wanted) -> Result<Balancer, Fault> {
        let created = self
            .call(Action::CreateLoadBalancer, async |client| {
                client
                    .create_load_balancer()
                    .name(&wanted.name)
                    .r#type(LoadBalancerTypeEnum::Application)
                    .scheme(LoadBalancerSchemeEnum::from(wanted.scheme.as_str()))
                    .ip_address_type(IpAddressType::from(
                        wanted.ip_address_type.as_deref().unwrap_or("ipv4"),
                    ))
                    .set_subnets(Some(list(&wanted.subnets)))
                    .set_security_groups(
                        Some(list(&wanted.security_groups)).filter(|groups| !groups.is_empty()),
                    )
                    .set_tags(Some(pairs(&wanted.tags)))
                    .send()
                    .await
            })
            .await?;
        let created = created.load_balancers().first().map(Balancer::from);
        created.ok_or_else(|| Fault::unknown("AWS created a load balancer and did not say which"))
    }

    async fn set_subnets(&self, arn: &str, subnets: &BTreeSet<String>) -> Result<(), Fault> {
        let set = async |client: &Client| {
            client
                .set_subnets()
                .load_balancer_arn(arn)
                .set_subnets(Some(list(subnets)))
                .send()
                .await
        };
        self.call(Action::SetSubnets, set).await.map(drop)
    }

    async fn set_security_groups(&self, arn: &str, groups: &BTreeSet<String>) -> Result<(), Fault> {
        let set = async |client: &Client| {
            client
                .set_security_groups()
                .load_balancer_arn(arn)
                .set_security_groups(Some(list(groups)))
                .send()
                .await
        };
        self.call(Action::SetSecurityGroups, set).await.map(drop)
    }

    async fn set_ip_address_type(&self, arn: &str, addresses: &str) -> Result<(), Fault> {
        let set = async |client: &Client| {
            client
                .set_ip_address_type()
                .load_balancer_arn(arn)
                .ip_address_type(IpAddressType::from(addresses))
                .send()
                .await
        };
        self.call(Action::SetIpAddressType, set).await.map(drop)
    }

    async fn add_tags(&self, arn: &str, tags: &Tags) -> Result<(), Fault> {
        let add = async |client: &Client| {
            client
                .add_tags()
                .resource_arns(arn)
                .set_tags(Some(pairs(tags)))
                .send()
                .await
        };
        self.call(Action::AddTags, add).await.map(drop)
    }

    async fn remove_tags(&self, arn: &str, keys: &BTreeSet<String>) -> Result<(), Fault> {
        let remove = async |client: &Client| {
            client
                .remove_tags()
                .resource_arns(arn)
                .set_tag_keys(Some(list(keys)))
                .send()
                .await
        };
        self.call(Action::RemoveTags, remove).await.map(drop)
    }

    async fn delete(&self, arn: &str) -> Result<(), Fault> {
        let delete = async |client: &Client| {
            client
                .delete_load_balancer()
                .load_balancer_arn(arn)
                .send()
                .await
        };
        match self.call(Action::DeleteLoadBalancer, delete).await {
            Err(fault) if fault.is(fault::NOT_FOUND) => Ok(()),
            deleted => deleted.map(drop),
        }
    }
}

impl From<&LoadBalancer> for Balancer {
    fn from(shown: &LoadBalancer) -> Self {
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        let state = shown.state();
        Self {
            arn: text(shown.load_balancer_arn()),
            dns: text(shown.dns_name()),
            kind: text(shown.r#type().map(LoadBalancerTypeEnum::as_str)),
            state: text(
                state
                    .and_then(|state| state.code())
                    .map(LoadBalancerStateEnum::as_str),
            ),
            state_reason: text(state.and_then(|state| state.reason())),
            scheme: text(shown.scheme().map(LoadBalancerSchemeEnum::as_str)),
            vpc: text(shown.vpc_id()),
            ip_address_type: text(shown.ip_address_type().map(IpAddressType::as_str)),
            subnets: shown
                .availability_zones()
                .iter()
                .filter_map(|zone| zone.subnet_id().map(Into::into))
                .collect(),
            security_groups: shown.security_groups().iter().cloned().collect(),
        }
    }
}

fn list(set: &BTreeSet<String>) -> Vec<String> {
    set.iter().cloned().collect()
}

fn pairs(tags: &Tags) -> Vec<Tag> {
    tags.iter()
        .map(|(key, value)| Tag::builder().key(key).value(value).build())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A region is there, and AWS would be asked; nobody is.
    #[tokio::test]
    async fn nothing_is_asked_but_under_the_lease() {
        let elb = Elb::new(Fence::shut(), Metrics::new(), &Timings::default());
        let config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .build();
        *elb.connection.lock().await = Connection::Made(Clients::new(&config, "us-east-1".into()));
        let fault = elb.delete("arn").await.err();
        assert_eq!(
            fault.map(|fault| (fault.class, fault.undone)),
            Some((Class::Conflict, true))
        );
    }
}
