//! Conversions of listeners and target groups from and to the SDK.

use std::collections::BTreeSet;

use aws_sdk_elasticloadbalancingv2::types::{
    Action, ActionTypeEnum, Certificate, ForwardActionConfig, Listener as SdkListener,
    ProtocolEnum, TargetDescription, TargetGroup as SdkTargetGroup, TargetHealthDescription,
    TargetHealthReasonEnum, TargetHealthStateEnum,
};

use crate::listeners::{DesiredListener, InstanceTarget, Listener, TargetGroup, TargetHealth};

impl From<&SdkListener> for Listener {
    fn from(described: &SdkListener) -> Self {
        Self {
            arn: described.listener_arn().unwrap_or_default().into(),
            port: port(described.port()),
            protocol: described
                .protocol()
                .map(ProtocolEnum::as_str)
                .unwrap_or_default()
                .into(),
            certificate: described
                .certificates()
                .first()
                .and_then(Certificate::certificate_arn)
                .map(Into::into),
            ssl_policy: described
                .ssl_policy()
                .filter(|policy| !policy.is_empty())
                .map(Into::into),
            group: match described.default_actions() {
                [action] => one_group(action).map(Into::into),
                _ => None,
            },
        }
    }
}

impl From<&SdkTargetGroup> for TargetGroup {
    fn from(described: &SdkTargetGroup) -> Self {
        Self {
            arn: described.target_group_arn().unwrap_or_default().into(),
            name: described.target_group_name().unwrap_or_default().into(),
            vpc: described.vpc_id().unwrap_or_default().into(),
            health_check_path: described.health_check_path().unwrap_or_default().into(),
        }
    }
}

/// Returns the one group that the action forwards to, in either of the two forms that AWS uses.
fn one_group(action: &Action) -> Option<&str> {
    let several = action
        .forward_config()
        .map(ForwardActionConfig::target_groups)
        .unwrap_or_default();
    match (action.target_group_arn(), several) {
        (_, [only]) => only.target_group_arn(),
        (arn, []) => arn,
        _ => None,
    }
}

pub(super) fn forward(desired: &DesiredListener) -> Action {
    Action::builder()
        .r#type(ActionTypeEnum::Forward)
        .target_group_arn(&desired.group)
        .build()
}

pub(super) fn certificates(desired: &DesiredListener) -> Option<Vec<Certificate>> {
    desired
        .certificate
        .as_ref()
        .map(|arn| vec![Certificate::builder().certificate_arn(arn).build()])
}

pub(super) fn described(targets: &BTreeSet<InstanceTarget>) -> Vec<TargetDescription> {
    let describe = |target: &InstanceTarget| {
        TargetDescription::builder()
            .id(&target.instance)
            .port(target.port.into())
            .build()
    };
    targets.iter().map(describe).collect()
}

pub(super) fn health(described: &TargetHealthDescription) -> Option<TargetHealth> {
    let target = described.target()?;
    let health = described.target_health();
    Some(TargetHealth {
        target: InstanceTarget {
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
