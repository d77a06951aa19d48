//! AWS load balancers, through the Elastic Load Balancing API, version 2.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_elasticloadbalancingv2::Client;
use aws_sdk_elasticloadbalancingv2::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_elasticloadbalancingv2::types::{
    IpAddressType, LoadBalancer as SdkLoadBalancer, LoadBalancerSchemeEnum, LoadBalancerStateEnum,
    LoadBalancerTypeEnum, ProtocolEnum, Tag, TagDescription, TargetTypeEnum,
};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use qm_runtime::error::Class;
use qm_runtime::leader::Fence;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tracing::Instrument as _;

use self::batcher::{BatchCall, Batcher, MAX_NAMES};
use self::listeners::{certificates, described, forward, health};
use super::action::AwsAction;
use super::error::{self, AwsError};
use super::listeners::{
    DesiredListener, DesiredTargetGroup, InstanceTarget, Listener, TargetGroup, TargetHealth,
};
use super::rate_limit::{self, AwsRateLimiter, Rate};
use super::{Aws, AwsMetrics, DesiredLoadBalancer, LoadBalancer, Tags, proxy, traces};
use crate::AwsTimings;

mod batcher;
mod listeners;

/// Maximum number of targets in one call: AWS sometimes rejects larger calls
/// (<https://github.com/kubernetes/kubernetes/issues/101592>).
const MAX_TARGETS: usize = 100;

/// AWS client. The SDK looks up region, credentials and endpoint at the first call
/// (<https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html>).
pub struct Elb {
    connection: Mutex<Connection>,
    load_balancers: Batcher<LoadBalancer>,
    tags: Batcher<Tags>,
    rate_limit: AwsRateLimiter,
    fence: Fence,
    metrics: AwsMetrics,
    timeout: Duration,
}

/// Result of looking up region and credentials.
enum Connection {
    /// The next call looks up region and credentials.
    None,
    /// The SDK found no region. Calls soon after get the same error without another lookup.
    Failed(Instant, AwsError),
    Made(Clients),
}

#[derive(Clone)]
struct Clients {
    elb: Client,
    sts: aws_sdk_sts::Client,
    region: String,
}

impl Clients {
    fn new(config: SdkConfig, region: String) -> Self {
        // The runtime already retries with backoff.
        let retries = RetryConfig::disabled();
        let config = config.into_builder().retry_config(retries).build();
        Self {
            elb: Client::new(&config),
            sts: aws_sdk_sts::Client::new(&config),
            region,
        }
    }
}

impl Elb {
    /// Creates a client that makes calls only while `fence` is open.
    pub fn new(fence: Fence, metrics: AwsMetrics, timings: &AwsTimings) -> Self {
        let reads = Rate {
            burst: rate_limit::READ_BURST,
            period: timings.read_period,
        };
        let writes = Rate {
            burst: rate_limit::WRITE_BURST,
            period: timings.write_period,
        };
        let rate_limit = AwsRateLimiter::new(reads, writes);
        let (connection, timeout) = (Mutex::new(Connection::None), timings.timeout);
        Self {
            connection,
            load_balancers: Batcher::new(),
            tags: Batcher::new(),
            rate_limit,
            fence,
            metrics,
            timeout,
        }
    }

    async fn clients(&self) -> Result<Clients, AwsError> {
        let mut connection = self.connection.lock().await;
        match &*connection {
            Connection::Made(clients) => return Ok(clients.clone()),
            Connection::Failed(at, error) if at.elapsed() < self.timeout => {
                return Err(error.clone());
            }
            _ => {}
        }
        match self.connect().await {
            Ok(clients) => {
                *connection = Connection::Made(clients.clone());
                Ok(clients)
            }
            Err(error) => {
                *connection = Connection::Failed(Instant::now(), error.clone());
                Err(error)
            }
        }
    }

    async fn connect(&self) -> Result<Clients, AwsError> {
        let limits = TimeoutConfig::builder()
            .operation_timeout(self.timeout)
            .build();
        let load = aws_config::defaults(BehaviorVersion::latest())
            // For the client that gets the credentials from STS.
            .retry_config(RetryConfig::standard())
            .timeout_config(limits)
            .http_client(proxy::client()?)
            .load();
        let loaded = tokio::time::timeout(self.timeout, load).await.ok();
        let region = loaded
            .as_ref()
            .and_then(|config| config.region())
            .map(ToString::to_string);
        let made = loaded.zip(region.filter(|region| !region.is_empty()));
        made.map(|(config, region)| Clients::new(config, region))
            .ok_or_else(|| {
                let message = "no region for AWS: set AWS_REGION, or region in the profile";
                AwsError::unsent(Class::Slow, error::REGION_MISSING, message)
            })
    }

    /// Waits for the rate limit, then makes the call.
    async fn call<T, E>(
        &self,
        action: AwsAction,
        send: impl AsyncFnOnce(&Client) -> Result<T, SdkError<E, HttpResponse>>,
    ) -> Result<T, AwsError>
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let Clients { elb, .. } = self.clients().await?;
        self.rate_limit.acquire(action).await;
        self.send(action, send(&elb)).await
    }

    /// Makes a call, without waiting for the rate limit.
    async fn send<T, E>(
        &self,
        action: AwsAction,
        call: impl Future<Output = Result<T, SdkError<E, HttpResponse>>>,
    ) -> Result<T, AwsError>
    where
        E: ProvideErrorMetadata + std::error::Error + 'static,
    {
        let not_leading = || {
            let message = "this replica no longer holds the lease";
            AwsError::unsent(Class::Stale, "NotLeading", message)
        };
        if !self.fence.is_open() {
            return Err(not_leading());
        }
        let span = traces::call(action.service(), action.name());
        // Boxed: calls of the SDK are large futures.
        let call = Box::pin(call.instrument(span.clone()));
        let Some(answer) = self.fence.guard(call).await else {
            // AWS may have received the request.
            return Err(AwsError {
                had_no_effect: false,
                ..not_leading()
            });
        };
        let answer = answer.map_err(AwsError::from);
        if let Err(error) = &answer {
            traces::failed(&span, error.label());
        }
        self.metrics.called(
            action.name(),
            answer.as_ref().map_or_else(AwsError::label, |_| "OK"),
        );
        if answer
            .as_ref()
            .is_err_and(|error| error.reason == error::CREDENTIALS_MISSING)
        {
            // A client never reads a profile's files again, so the next call creates another client.
            *self.connection.lock().await = Connection::None;
        }
        answer
    }

    /// Returns the tags of these resources, at most [`batcher::MAX_NAMES`].
    async fn tags_batched(
        &self,
        arns: BTreeSet<String>,
    ) -> Result<BTreeMap<String, Tags>, AwsError> {
        let Clients { elb, .. } = self.clients().await?;
        self.tags.query(arns, &DescribeTags(self, elb)).await
    }
}

/// Describes load balancers, by name.
struct DescribeLoadBalancers<'a>(&'a Elb, Client);

impl BatchCall<LoadBalancer> for DescribeLoadBalancers<'_> {
    async fn acquire(&self) {
        self.0
            .rate_limit
            .acquire(AwsAction::DescribeLoadBalancers)
            .await;
    }

    async fn send(&self, names: Vec<String>) -> Result<BTreeMap<String, LoadBalancer>, AwsError> {
        let Self(elb, client) = self;
        // A missing name fails the call for all names, so several names are filtered from the list of all load
        // balancers.
        let alone = (names.len() == 1).then(|| names.clone());
        let (mut found, mut next) = (BTreeMap::new(), None);
        loop {
            let ask = client
                .describe_load_balancers()
                .set_names(alone.clone())
                .set_marker(next);
            let page = elb
                .send(AwsAction::DescribeLoadBalancers, ask.send())
                .await?;
            let described = page
                .load_balancers()
                .iter()
                .filter_map(|it| Some((it.load_balancer_name()?.to_owned(), it)));
            found.extend(
                described
                    .filter(|(name, _)| names.contains(name))
                    .map(|(name, it)| (name, LoadBalancer::from(it))),
            );
            match page.next_marker().filter(|marker| !marker.is_empty()) {
                Some(marker) => next = Some(marker.to_owned()),
                None => return Ok(found),
            }
            self.acquire().await;
        }
    }
}

/// Describes the tags of resources, by ARN.
struct DescribeTags<'a>(&'a Elb, Client);

impl BatchCall<Tags> for DescribeTags<'_> {
    async fn acquire(&self) {
        self.0.rate_limit.acquire(AwsAction::DescribeTags).await;
    }

    async fn send(&self, arns: Vec<String>) -> Result<BTreeMap<String, Tags>, AwsError> {
        let ask = self.1.describe_tags().set_resource_arns(Some(arns));
        let described = self.0.send(AwsAction::DescribeTags, ask.send()).await?;
        Ok(described
            .tag_descriptions()
            .iter()
            .filter_map(tagged)
            .collect())
    }
}

/// Returns the ARN of a resource and its tags.
fn tagged(described: &TagDescription) -> Option<(String, Tags)> {
    let pair = |tag: &Tag| {
        Some((
            tag.key()?.to_owned(),
            tag.value().unwrap_or_default().to_owned(),
        ))
    };
    Some((
        described.resource_arn()?.to_owned(),
        described.tags().iter().filter_map(pair).collect(),
    ))
}

impl Aws for Elb {
    async fn region(&self) -> Result<String, AwsError> {
        self.clients().await.map(|clients| clients.region)
    }

    async fn account(&self) -> Result<String, AwsError> {
        let Clients { sts, .. } = self.clients().await?;
        self.rate_limit.acquire(AwsAction::GetCallerIdentity).await;
        let caller = self
            .send(
                AwsAction::GetCallerIdentity,
                sts.get_caller_identity().send(),
            )
            .await?;
        let account = caller.account().filter(|account| !account.is_empty());
        account
            .map(Into::into)
            .ok_or_else(|| AwsError::unknown("AWS returned no account for the credentials"))
    }

    async fn find_load_balancer(&self, name: &str) -> Result<Option<LoadBalancer>, AwsError> {
        let Clients { elb, .. } = self.clients().await?;
        match self
            .load_balancers
            .query([name.to_owned()].into(), &DescribeLoadBalancers(self, elb))
            .await
        {
            Ok(mut found) => Ok(found.remove(name)),
            Err(error) if error.is(error::NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn find_tags(&self, arn: &str) -> Result<Option<Tags>, AwsError> {
        match self.tags_batched([arn.to_owned()].into()).await {
            Ok(mut found) => Ok(found.remove(arn)),
            Err(error) if error.is(error::NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn create_load_balancer(
        &self,
        desired: &DesiredLoadBalancer,
    ) -> Result<LoadBalancer, AwsError> {
        let created = self
            .call(AwsAction::CreateLoadBalancer, async |client| {
                client
                    .create_load_balancer()
                    .name(&desired.name)
                    .r#type(LoadBalancerTypeEnum::Application)
                    .scheme(LoadBalancerSchemeEnum::from(desired.scheme.as_str()))
                    .ip_address_type(IpAddressType::from(
                        desired.ip_address_type.as_deref().unwrap_or("ipv4"),
                    ))
                    .set_subnets(Some(list(&desired.subnets)))
                    .set_security_groups(
                        Some(list(&desired.security_groups)).filter(|groups| !groups.is_empty()),
                    )
                    .set_tags(Some(pairs(&desired.tags)))
                    .send()
                    .await
            })
            .await?;
        let created = created.load_balancers().first().map(LoadBalancer::from);
        created.ok_or_else(|| AwsError::unknown("AWS created a load balancer without returning it"))
    }

    async fn set_subnets(&self, arn: &str, subnets: &BTreeSet<String>) -> Result<(), AwsError> {
        let set = async |client: &Client| {
            client
                .set_subnets()
                .load_balancer_arn(arn)
                .set_subnets(Some(list(subnets)))
                .send()
                .await
        };
        self.call(AwsAction::SetSubnets, set).await.map(drop)
    }

    async fn set_security_groups(
        &self,
        arn: &str,
        groups: &BTreeSet<String>,
    ) -> Result<(), AwsError> {
        let set = async |client: &Client| {
            client
                .set_security_groups()
                .load_balancer_arn(arn)
                .set_security_groups(Some(list(groups)))
                .send()
                .await
        };
        self.call(AwsAction::SetSecurityGroups, set).await.map(drop)
    }

    async fn set_ip_address_type(&self, arn: &str, address_type: &str) -> Result<(), AwsError> {
        let set = async |client: &Client| {
            client
                .set_ip_address_type()
                .load_balancer_arn(arn)
                .ip_address_type(IpAddressType::from(address_type))
                .send()
                .await
        };
        self.call(AwsAction::SetIpAddressType, set).await.map(drop)
    }

    async fn add_tags(&self, arn: &str, tags: &Tags) -> Result<(), AwsError> {
        let add = async |client: &Client| {
            client
                .add_tags()
                .resource_arns(arn)
                .set_tags(Some(pairs(tags)))
                .send()
                .await
        };
        self.call(AwsAction::AddTags, add).await.map(drop)
    }

    async fn remove_tags(&self, arn: &str, keys: &BTreeSet<String>) -> Result<(), AwsError> {
        let remove = async |client: &Client| {
            client
                .remove_tags()
                .resource_arns(arn)
                .set_tag_keys(Some(list(keys)))
                .send()
                .await
        };
        self.call(AwsAction::RemoveTags, remove).await.map(drop)
    }

    async fn delete_load_balancer(&self, arn: &str) -> Result<(), AwsError> {
        let delete = async |client: &Client| {
            client
                .delete_load_balancer()
                .load_balancer_arn(arn)
                .send()
                .await
        };
        match self.call(AwsAction::DeleteLoadBalancer, delete).await {
            Err(error) if error.is(error::NOT_FOUND) => Ok(()),
            deleted => deleted.map(drop),
        }
    }

    async fn listeners(&self, load_balancer: &str) -> Result<Vec<Listener>, AwsError> {
        let describe = async |client: &Client| {
            client
                .describe_listeners()
                .load_balancer_arn(load_balancer)
                .send()
                .await
        };
        // A page holds all listeners of a load balancer.
        Ok(self
            .call(AwsAction::DescribeListeners, describe)
            .await?
            .listeners()
            .iter()
            .map(Listener::from)
            .collect())
    }

    async fn target_groups(&self, load_balancer: &str) -> Result<Vec<TargetGroup>, AwsError> {
        let describe = async |client: &Client| {
            client
                .describe_target_groups()
                .load_balancer_arn(load_balancer)
                .send()
                .await
        };
        Ok(self
            .call(AwsAction::DescribeTargetGroups, describe)
            .await?
            .target_groups()
            .iter()
            .map(TargetGroup::from)
            .collect())
    }

    async fn find_target_group(&self, name: &str) -> Result<Option<TargetGroup>, AwsError> {
        let describe =
            async |client: &Client| client.describe_target_groups().names(name).send().await;
        match self.call(AwsAction::DescribeTargetGroups, describe).await {
            Ok(described) => Ok(described.target_groups().first().map(TargetGroup::from)),
            Err(error) if error.is(error::GROUP_NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn target_groups_named(&self, prefix: &str) -> Result<Vec<TargetGroup>, AwsError> {
        let (mut found, mut next) = (Vec::new(), None);
        loop {
            let describe = async |client: &Client| {
                client
                    .describe_target_groups()
                    .set_marker(next)
                    .send()
                    .await
            };
            let page = self.call(AwsAction::DescribeTargetGroups, describe).await?;
            found.extend(
                page.target_groups()
                    .iter()
                    .map(TargetGroup::from)
                    .filter(|group| group.name.starts_with(prefix)),
            );
            match page.next_marker().filter(|marker| !marker.is_empty()) {
                Some(marker) => next = Some(marker.to_owned()),
                None => return Ok(found),
            }
        }
    }

    async fn tags_of(&self, arns: &[String]) -> Result<BTreeMap<String, Tags>, AwsError> {
        let mut found = BTreeMap::new();
        for some in arns.chunks(MAX_NAMES) {
            found.extend(self.tags_batched(some.iter().cloned().collect()).await?);
        }
        Ok(found)
    }

    async fn create_target_group(
        &self,
        desired: &DesiredTargetGroup,
    ) -> Result<TargetGroup, AwsError> {
        let create = async |client: &Client| {
            client
                .create_target_group()
                .name(&desired.name)
                .target_type(TargetTypeEnum::Instance)
                .protocol(ProtocolEnum::Http)
                .port(desired.port.into())
                .vpc_id(&desired.vpc)
                .health_check_path(&desired.health_check_path)
                .set_tags(Some(pairs(&desired.tags)))
                .send()
                .await
        };
        let created = self.call(AwsAction::CreateTargetGroup, create).await?;
        let created = created.target_groups().first().map(TargetGroup::from);
        created.ok_or_else(|| AwsError::unknown("AWS created a target group without returning it"))
    }

    async fn set_health_check(&self, group: &str, path: &str) -> Result<(), AwsError> {
        let modify = async |client: &Client| {
            client
                .modify_target_group()
                .target_group_arn(group)
                .health_check_path(path)
                .send()
                .await
        };
        self.call(AwsAction::ModifyTargetGroup, modify)
            .await
            .map(drop)
    }

    async fn delete_target_group(&self, group: &str) -> Result<(), AwsError> {
        let delete = async |client: &Client| {
            client
                .delete_target_group()
                .target_group_arn(group)
                .send()
                .await
        };
        match self.call(AwsAction::DeleteTargetGroup, delete).await {
            Err(error) if error.is(error::GROUP_NOT_FOUND) => Ok(()),
            deleted => deleted.map(drop),
        }
    }

    async fn target_health(&self, group: &str) -> Result<Vec<TargetHealth>, AwsError> {
        let describe = async |client: &Client| {
            client
                .describe_target_health()
                .target_group_arn(group)
                .send()
                .await
        };
        let described = self.call(AwsAction::DescribeTargetHealth, describe).await?;
        Ok(described
            .target_health_descriptions()
            .iter()
            .filter_map(health)
            .collect())
    }

    async fn register_targets(
        &self,
        group: &str,
        targets: &BTreeSet<InstanceTarget>,
    ) -> Result<(), AwsError> {
        for some in described(targets).chunks(MAX_TARGETS) {
            let register = async |client: &Client| {
                client
                    .register_targets()
                    .target_group_arn(group)
                    .set_targets(Some(some.to_vec()))
                    .send()
                    .await
            };
            self.call(AwsAction::RegisterTargets, register).await?;
        }
        Ok(())
    }

    async fn deregister_targets(
        &self,
        group: &str,
        targets: &BTreeSet<InstanceTarget>,
    ) -> Result<(), AwsError> {
        for some in described(targets).chunks(MAX_TARGETS) {
            let deregister = async |client: &Client| {
                client
                    .deregister_targets()
                    .target_group_arn(group)
                    .set_targets(Some(some.to_vec()))
                    .send()
                    .await
            };
            self.call(AwsAction::DeregisterTargets, deregister).await?;
        }
        Ok(())
    }

    async fn create_listener(
        &self,
        load_balancer: &str,
        desired: &DesiredListener,
        tags: &Tags,
    ) -> Result<(), AwsError> {
        let create = async |client: &Client| {
            client
                .create_listener()
                .load_balancer_arn(load_balancer)
                .port(desired.port.into())
                .protocol(ProtocolEnum::from(desired.protocol.as_str()))
                .set_certificates(certificates(desired))
                .set_ssl_policy(desired.ssl_policy.clone())
                .default_actions(forward(desired))
                .set_tags(Some(pairs(tags)))
                .send()
                .await
        };
        self.call(AwsAction::CreateListener, create).await.map(drop)
    }

    async fn modify_listener(
        &self,
        listener: &str,
        desired: &DesiredListener,
    ) -> Result<(), AwsError> {
        let modify = async |client: &Client| {
            client
                .modify_listener()
                .listener_arn(listener)
                .protocol(ProtocolEnum::from(desired.protocol.as_str()))
                .set_certificates(certificates(desired))
                .set_ssl_policy(desired.ssl_policy.clone())
                .default_actions(forward(desired))
                .send()
                .await
        };
        self.call(AwsAction::ModifyListener, modify).await.map(drop)
    }

    async fn delete_listener(&self, listener: &str) -> Result<(), AwsError> {
        let delete =
            async |client: &Client| client.delete_listener().listener_arn(listener).send().await;
        match self.call(AwsAction::DeleteListener, delete).await {
            Err(error) if error.is(error::LISTENER_NOT_FOUND) => Ok(()),
            deleted => deleted.map(drop),
        }
    }
}

impl From<&SdkLoadBalancer> for LoadBalancer {
    fn from(described: &SdkLoadBalancer) -> Self {
        let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
        let state = described.state();
        Self {
            arn: text(described.load_balancer_arn()),
            dns: text(described.dns_name()),
            kind: text(described.r#type().map(LoadBalancerTypeEnum::as_str)),
            state: text(
                state
                    .and_then(|state| state.code())
                    .map(LoadBalancerStateEnum::as_str),
            ),
            state_reason: text(state.and_then(|state| state.reason())),
            scheme: text(described.scheme().map(LoadBalancerSchemeEnum::as_str)),
            vpc: text(described.vpc_id()),
            ip_address_type: text(described.ip_address_type().map(IpAddressType::as_str)),
            subnets: described
                .availability_zones()
                .iter()
                .filter_map(|zone| zone.subnet_id().map(Into::into))
                .collect(),
            security_groups: described.security_groups().iter().cloned().collect(),
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
    use std::cell::Cell;

    use aws_sdk_elasticloadbalancingv2::operation::delete_load_balancer::DeleteLoadBalancerError;

    use super::*;

    #[test]
    fn clients_leave_retries_to_the_runtime() {
        let config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .retry_config(RetryConfig::standard())
            .build();
        let Clients { elb, sts, .. } = Clients::new(config, "us-east-1".into());
        let configs = [elb.config().retry_config(), sts.config().retry_config()];
        assert!(
            configs
                .iter()
                .all(|config| config.is_some_and(|it| it.max_attempts() == 1))
        );
    }

    /// With a region set, only the fence prevents the call.
    #[tokio::test]
    async fn calls_are_made_only_under_the_lease() {
        let elb = Elb::new(Fence::shut(), AwsMetrics::default(), &AwsTimings::default());
        let config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .build();
        *elb.connection.lock().await = Connection::Made(Clients::new(config, "us-east-1".into()));
        let error = elb.delete_load_balancer("arn").await.err();
        assert_eq!(
            error.map(|error| (error.class, error.had_no_effect)),
            Some((Class::Stale, true))
        );
    }

    /// The SDK looks up credentials and connects before it sends the request.
    #[tokio::test]
    async fn call_ends_when_the_lease_is_lost() {
        let fence = Fence::open();
        let timings = AwsTimings::default();
        let elb = Elb::new(fence.clone(), AwsMetrics::default(), &timings);
        let sent = Cell::new(false);
        let call = async {
            fence.close();
            tokio::task::yield_now().await;
            sent.set(true);
            Ok::<_, SdkError<DeleteLoadBalancerError, HttpResponse>>(())
        };
        let error = elb.send(AwsAction::DeleteLoadBalancer, call).await.err();
        assert_eq!(
            error.map(|error| (error.class, error.had_no_effect)),
            Some((Class::Stale, false))
        );
        assert!(!sent.get());
    }
}
