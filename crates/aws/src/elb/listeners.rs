//! Listeners and target groups.

use std::collections::{BTreeMap, BTreeSet};

use aws_sdk_elasticloadbalancingv2::Client;
use aws_sdk_elasticloadbalancingv2::types::{
    Action as Deed, ActionTypeEnum, Certificate, ForwardActionConfig, Listener as Shown,
    ProtocolEnum, TargetDescription, TargetGroup, TargetHealthDescription, TargetHealthReasonEnum,
    TargetHealthStateEnum, TargetTypeEnum,
};

use super::together::AT_ONCE;
use super::{Elb, pairs};
use crate::Tags;
use crate::action::Action;
use crate::fault::{self, Fault};
use crate::listeners::{Group, Health, Listener, Listeners, Target, WantedGroup, WantedListener};

/// How many targets are added or taken away by one call: AWS is known to refuse larger ones now and then
/// (<https://github.com/kubernetes/kubernetes/issues/101592>).
const TARGETS_AT_ONCE: usize = 100;

impl Listeners for Elb {
    async fn listeners(&self, balancer: &str) -> Result<Vec<Listener>, Fault> {
        let describe = async |client: &Client| {
            client
                .describe_listeners()
                .load_balancer_arn(balancer)
                .send()
                .await
        };
        // A page has more than a balancer may have.
        Ok(self
            .call(Action::DescribeListeners, describe)
            .await?
            .listeners()
            .iter()
            .map(Listener::from)
            .collect())
    }

    async fn groups(&self, balancer: &str) -> Result<Vec<Group>, Fault> {
        let describe = async |client: &Client| {
            client
                .describe_target_groups()
                .load_balancer_arn(balancer)
                .send()
                .await
        };
        Ok(self
            .call(Action::DescribeTargetGroups, describe)
            .await?
            .target_groups()
            .iter()
            .map(Group::from)
            .collect())
    }

    async fn group(&self, name: &str) -> Result<Option<Group>, Fault> {
        let describe =
            async |client: &Client| client.describe_target_groups().names(name).send().await;
        match self.call(Action::DescribeTargetGroups, describe).await {
            Ok(described) => Ok(described.target_groups().first().map(Group::from)),
            Err(fault) if fault.is(fault::GROUP_NOT_FOUND) => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    async fn groups_named(&self, prefix: &str) -> Result<Vec<Group>, Fault> {
        let (mut found, mut next) = (Vec::new(), None);
        loop {
            let describe = async |client: &Client| {
                client
                    .describe_target_groups()
                    .set_marker(next)
                    .send()
                    .await
            };
            let page = self.call(Action::DescribeTargetGroups, describe).await?;
            found.extend(
                page.target_groups()
                    .iter()
                    .map(Group::from)
                    .filter(|group| group.name.starts_with(prefix)),
            );
            match page.next_marker().filter(|marker| !marker.is_empty()) {
                Some(marker) => next = Some(marker.to_owned()),
                None => return Ok(found),
            }
        }
    }

    async fn tags_of(&self, arns: &[String]) -> Result<BTreeMap<String, Tags>, Fault> {
        let mut found = BTreeMap::new();
        for some in arns.chunks(AT_ONCE) {
            found.extend(self.tags_together(some.iter().cloned().collect()).await?);
        }
        Ok(found)
    }

    async fn create_group(&self, wanted: &WantedGroup) -> Result<Group, Fault> {
        let create = async |client: &Client| {
            client
                .create_target_group()
                .name(&wanted.name)
                .target_type(TargetTypeEnum::Instance)
                .protocol(ProtocolEnum::Http)
                .port(wanted.port.into())
                .vpc_id(&wanted.vpc)
                .health_check_path(&wanted.health_check_path)
                .set_tags(Some(pairs(&wanted.tags)))
                .send()
                .await
        };
        let created = self.call(Action::CreateTargetGroup, create).await?;
        let created = created.target_groups().first().map(Group::from);
        created.ok_or_else(|| Fault::unknown("AWS created a target group and did not say which"))
    }

    async fn set_health_check(&self, group: &str, path: &str) -> Result<(), Fault> {
        let modify = async |client: &Client| {
            client
                .modify_target_group()
                .target_group_arn(group)
                .health_check_path(path)
                .send()
                .await
        };
        self.call(Action::ModifyTargetGroup, modify).await.map(drop)
    }

    async fn delete_group(&self, group: &str) -> Result<(), Fault> {
        let delete = async |client: &Client| {
            client
                .delete_target_group()
                .target_group_arn(group)
                .send()
                .await
        };
        match self.call(Action::DeleteTargetGroup, delete).await {
            Err(fault) if fault.is(fault::GROUP_NOT_FOUND) => Ok(()),
            deleted => deleted.map(drop),
        }
    }

    async fn targets(&self, group: &str) -> Result<Vec<Health>, Fault> {
        let describe = async |client: &Client| {
            client
                .describe_target_health()
                .target_group_arn(group)
                .send()
                .await
        };
        let described = self.call(Action::DescribeTargetHealth, describe).await?;
        Ok(described
            .target_health_descriptions()
            .iter()
            .filter_map(health)
            .collect())
    }

    async fn register(&self, group: &str, targets: &BTreeSet<Target>) -> Result<(), Fault> {
        for some in described(targets).chunks(TARGETS_AT_ONCE) {
            let register = async |client: &Client| {
                client
                    .register_targets()
                    .target_group_arn(group)
                    .set_targets(Some(some.to_vec()))
                    .send()
                    .await
            };
            self.call(Action::RegisterTargets, register).await?;
        }
        Ok(())
    }

    async fn deregister(&self, group: &str, targets: &BTreeSet<Target>) -> Result<(), Fault> {
        for some in described(targets).chunks(TARGETS_AT_ONCE) {
            let deregister = async |client: &Client| {
                client
                    .deregister_targets()
                    .target_group_arn(group)
                    .set_targets(Some(some.to_vec()))
                    .send()
                    .await
            };
            self.call(Action::DeregisterTargets, deregister).await?;
        }
        Ok(())
    }

    async fn create_listener(
        &self,
        balancer: &str,
        wanted: &WantedListener,
        tags: &Tags,
    ) -> Result<(), Fault> {
        let create = async |client: &Client| {
            client
                .create_listener()
                .load_balancer_arn(balancer)
                .port(wanted.port.into())
                .protocol(ProtocolEnum::from(wanted.protocol.as_str()))
                .set_certificates(certificates(wanted))
                .set_ssl_policy(wanted.ssl_policy.clone())
                .default_actions(forward(wanted))
                .set_tags(Some(pairs(tags)))
                .send()
                .await
        };
        self.call(Action::CreateListener, create).await.map(drop)
    }

    async fn modify_listener(&self, listener: &str, wanted: &WantedListener) -> Result<(), Fault> {
        let modify = async |client: &Client| {
            client
                .modify_listener()
                .listener_arn(listener)
                .protocol(ProtocolEnum::from(wanted.protocol.as_str()))
                .set_certificates(certificates(wanted))
                .set_ssl_policy(wanted.ssl_policy.clone())
                .default_actions(forward(wanted))
                .send()
                .await
        };
        self.call(Action::ModifyListener, modify).await.map(drop)
    }

    async fn delete_listener(&self, listener: &str) -> Result<(), Fault> {
        let delete =
            async |client: &Client| client.delete_listener().listener_arn(listener).send().await;
        match self.call(Action::DeleteListener, delete).await {
            Err(fault) if fault.is(fault::LISTENER_NOT_FOUND) => Ok(()),
            deleted => deleted.map(drop),
        }
    }
}

impl From<&Shown> for Listener {
    fn from(shown: &Shown) -> Self {
        Self {
            arn: shown.listener_arn().unwrap_or_default().into(),
            port: port(shown.port()),
            protocol: shown
                .protocol()
                .map(ProtocolEnum::as_str)
                .unwrap_or_default()
                .into(),
            certificate: shown
                .certificates()
                .first()
                .and_then(Certificate::certificate_arn)
                .map(Into::into),
            ssl_policy: shown
                .ssl_policy()
                .filter(|policy| !policy.is_empty())
                .map(Into::into),
            group: match shown.default_actions() {
                [deed] => one_group(deed).map(Into::into),
                _ => None,
            },
        }
    }
}

impl From<&TargetGroup> for Group {
    fn from(shown: &TargetGroup) -> Self {
        Self {
            arn: shown.target_group_arn().unwrap_or_default().into(),
            name: shown.target_group_name().unwrap_or_default().into(),
            vpc: shown.vpc_id().unwrap_or_default().into(),
            health_check_path: shown.health_check_path().unwrap_or_default().into(),
        }
    }
}

/// The one group that all goes to, however AWS says so.
fn one_group(deed: &Deed) -> Option<&str> {
    let several = deed
        .forward_config()
        .map(ForwardActionConfig::target_groups)
        .unwrap_or_default();
    match (deed.target_group_arn(), several) {
        (_, [only]) => only.target_group_arn(),
        (arn, []) => arn,
        _ => None,
    }
}

fn forward(wanted: &WantedListener) -> Deed {
    Deed::builder()
        .r#type(ActionTypeEnum::Forward)
        .target_group_arn(&wanted.group)
        .build()
}

fn certificates(wanted: &WantedListener) -> Option<Vec<Certificate>> {
    wanted
        .certificate
        .as_ref()
        .map(|arn| vec![Certificate::builder().certificate_arn(arn).build()])
}

fn described(targets: &BTreeSet<Target>) -> Vec<TargetDescription> {
    let describe = |target: &Target| {
        TargetDescription::builder()
            .id(&target.instance)
            .port(target.port.into())
            .build()
    };
    targets.iter().map(describe).collect()
}

fn health(shown: &TargetHealthDescription) -> Option<Health> {
    let target = shown.target()?;
    let health = shown.target_health();
    Some(Health {
        target: Target {
            instance: target.id()?.into(),
            port: port(target.port()),
        },
        state: health
            .and_then(|health| health.state())
            .map(TargetHealthStateEnum::as_str)
            .unwrap_or_default()
            .into(),
        reason: health
            .and_then(|health| health.reason())
            .map(TargetHealthReasonEnum::as_str)
            .unwrap_or_default()
            .into(),
        description: health
            .and_then(|health| health.description())
            .unwrap_or_default()
            .into(),
    })
}

fn port(port: Option<i32>) -> u16 {
    port.and_then(|port| port.try_into().ok())
        .unwrap_or_default()
}
