//! The list of AWS API actions, and the IAM policy that follows from it.

use std::collections::BTreeSet;

use qm_core::names::MetadataNames;
use serde_json::{Value, json};

use crate::NAME_SUFFIX;

/// An API action, named as in the API reference of its [`AwsAction::service`] ([load
/// balancers](https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_Operations.html),
/// [accounts](https://docs.aws.amazon.com/STS/latest/APIReference/API_Operations.html)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AwsAction {
    DescribeLoadBalancers,
    DescribeListeners,
    DescribeTags,
    DescribeTargetGroups,
    DescribeTargetHealth,
    GetCallerIdentity,
    CreateLoadBalancer,
    CreateListener,
    CreateTargetGroup,
    AddTags,
    DeleteLoadBalancer,
    DeleteListener,
    DeleteTargetGroup,
    DeregisterTargets,
    ModifyListener,
    ModifyTargetGroup,
    RegisterTargets,
    RemoveTags,
    SetIpAddressType,
    SetSecurityGroups,
    SetSubnets,
}

/// Grant of an action in the policy
/// (<https://docs.aws.amazon.com/service-authorization/latest/reference/list_awselasticloadbalancingv2.html>).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ActionGrant {
    /// No grant: AWS lets every caller use the action.
    Unrestricted,
    /// On every resource: read actions do not support resource-level permissions.
    Read,
    /// On new resources that carry the ownership tags.
    Create,
    /// On resources that carry the ownership tags.
    Owned,
}

impl AwsAction {
    pub const ALL: [Self; 21] = [
        Self::DescribeLoadBalancers,
        Self::DescribeListeners,
        Self::DescribeTags,
        Self::DescribeTargetGroups,
        Self::DescribeTargetHealth,
        Self::GetCallerIdentity,
        Self::CreateLoadBalancer,
        Self::CreateListener,
        Self::CreateTargetGroup,
        Self::AddTags,
        Self::DeleteLoadBalancer,
        Self::DeleteListener,
        Self::DeleteTargetGroup,
        Self::DeregisterTargets,
        Self::ModifyListener,
        Self::ModifyTargetGroup,
        Self::RegisterTargets,
        Self::RemoveTags,
        Self::SetIpAddressType,
        Self::SetSecurityGroups,
        Self::SetSubnets,
    ];

    /// Returns the name, as AWS spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::DescribeLoadBalancers => "DescribeLoadBalancers",
            Self::DescribeListeners => "DescribeListeners",
            Self::DescribeTags => "DescribeTags",
            Self::DescribeTargetGroups => "DescribeTargetGroups",
            Self::DescribeTargetHealth => "DescribeTargetHealth",
            Self::GetCallerIdentity => "GetCallerIdentity",
            Self::CreateLoadBalancer => "CreateLoadBalancer",
            Self::CreateListener => "CreateListener",
            Self::CreateTargetGroup => "CreateTargetGroup",
            Self::AddTags => "AddTags",
            Self::DeleteLoadBalancer => "DeleteLoadBalancer",
            Self::DeleteListener => "DeleteListener",
            Self::DeleteTargetGroup => "DeleteTargetGroup",
            Self::DeregisterTargets => "DeregisterTargets",
            Self::ModifyListener => "ModifyListener",
            Self::ModifyTargetGroup => "ModifyTargetGroup",
            Self::RegisterTargets => "RegisterTargets",
            Self::RemoveTags => "RemoveTags",
            Self::SetIpAddressType => "SetIpAddressType",
            Self::SetSecurityGroups => "SetSecurityGroups",
            Self::SetSubnets => "SetSubnets",
        }
    }

    /// Returns the service, as AWS's SDKs name it.
    pub fn service(self) -> &'static str {
        if self == Self::GetCallerIdentity {
            "STS"
        } else {
            "Elastic Load Balancing v2"
        }
    }

    /// Returns whether the action changes a resource. AWS rate-limits changing actions separately.
    pub fn writes(self) -> bool {
        matches!(self.grant(), ActionGrant::Create | ActionGrant::Owned)
    }

    fn grant(self) -> ActionGrant {
        match self {
            Self::GetCallerIdentity => ActionGrant::Unrestricted,
            Self::DescribeLoadBalancers
            | Self::DescribeListeners
            | Self::DescribeTags
            | Self::DescribeTargetGroups
            | Self::DescribeTargetHealth => ActionGrant::Read,
            Self::CreateLoadBalancer | Self::CreateListener | Self::CreateTargetGroup => {
                ActionGrant::Create
            }
            Self::AddTags
            | Self::DeleteLoadBalancer
            | Self::DeleteListener
            | Self::DeleteTargetGroup
            | Self::DeregisterTargets
            | Self::ModifyListener
            | Self::ModifyTargetGroup
            | Self::RegisterTargets
            | Self::RemoveTags
            | Self::SetIpAddressType
            | Self::SetSecurityGroups
            | Self::SetSubnets => ActionGrant::Owned,
        }
    }

    /// Returns the EC2 permissions that AWS also requires of the caller
    /// (<https://docs.aws.amazon.com/elasticloadbalancing/latest/userguide/elb-api-permissions.html>).
    fn needs(self) -> &'static [&'static str] {
        match self {
            Self::CreateLoadBalancer => &[
                "ec2:DescribeAccountAttributes",
                "ec2:DescribeAddresses",
                "ec2:DescribeInternetGateways",
                "ec2:DescribeSecurityGroups",
                "ec2:DescribeSubnets",
                "ec2:DescribeVpcs",
            ],
            Self::CreateTargetGroup => &["ec2:DescribeInternetGateways", "ec2:DescribeVpcs"],
            Self::RegisterTargets => &[
                "ec2:DescribeInstances",
                "ec2:DescribeInternetGateways",
                "ec2:DescribeSubnets",
                "ec2:DescribeVpcs",
            ],
            Self::SetSubnets | Self::SetIpAddressType => &["ec2:DescribeSubnets"],
            _ => &[],
        }
    }
}

/// Tag of every owned load balancer, with its value.
pub const MANAGED_BY: (&str, &str) = ("ManagedBy", "quartermaster");

/// Name prefix of all owned target groups, for the policy.
pub const GROUP_PREFIX: &str = "qm-";

/// Returns the IAM policy that grants the operator no more than it needs.
pub fn policy(names: &MetadataNames) -> Value {
    let granted = |grant: ActionGrant| {
        AwsAction::ALL
            .into_iter()
            .filter(move |action| action.grant() == grant)
    };
    let calls = |grant: ActionGrant| {
        granted(grant).map(|action| format!("elasticloadbalancing:{}", action.name()))
    };
    let needed: BTreeSet<_> = AwsAction::ALL
        .into_iter()
        .flat_map(AwsAction::needs)
        .map(|need| (*need).to_owned())
        .collect();
    let reads: Vec<_> = calls(ActionGrant::Read).chain(needed).collect();
    let named = [
        format!("loadbalancer/app/*{NAME_SUFFIX}/*"),
        format!("listener/app/*{NAME_SUFFIX}/*"),
        format!("targetgroup/{GROUP_PREFIX}*/*"),
    ];
    let named = named.map(|resource| format!("arn:aws:elasticloadbalancing:*:*:{resource}"));
    let statement = |sid: &str, actions: Vec<String>, condition: Value| json!({ "Sid": sid, "Effect": "Allow", "Action": actions, "Resource": named, "Condition": condition });
    let has_tag = |on: &str, tag: &str| json!({ "Null": { format!("aws:{on}/{tag}"): "false" } });
    let tag = || vec!["elasticloadbalancing:AddTags".to_owned()];
    let created: Vec<_> = granted(ActionGrant::Create).map(AwsAction::name).collect();
    json!({
        "Version": "2012-10-17",
        "Statement": [
            { "Sid": "Describe", "Effect": "Allow", "Action": reads, "Resource": "*" },
            statement("Create", calls(ActionGrant::Create).collect(), has_tag("RequestTag", names.owner_uid)),
            // AWS requires permission to tag from a caller that creates a resource with tags.
            statement("TagOnCreate", tag(), json!({ "StringEquals": { "elasticloadbalancing:CreateAction": created } })),
            statement("Adopt", tag(), has_tag("ResourceTag", names.adopt_by)),
            statement("ManageOwned", calls(ActionGrant::Owned).collect(), has_tag("ResourceTag", names.owner_uid)),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_action_is_granted() {
        let policy = policy(&qm_core::metadata_names!("example.com"));
        let statements = policy["Statement"].as_array().cloned().unwrap_or_default();
        let granted: Vec<_> = statements
            .iter()
            .flat_map(|s| s["Action"].as_array().cloned().unwrap_or_default())
            .collect();
        for action in AwsAction::ALL
            .into_iter()
            .filter(|action| action.grant() != ActionGrant::Unrestricted)
        {
            assert!(
                granted.contains(&format!("elasticloadbalancing:{}", action.name()).into()),
                "{action:?}"
            );
        }
        for statement in statements {
            let reads = statement["Action"]
                .as_array()
                .into_iter()
                .flatten()
                .all(|action| {
                    action
                        .as_str()
                        .is_some_and(|action| action.contains(":Describe"))
                });
            assert!(
                reads || statement["Resource"] != "*" && statement["Condition"].is_object(),
                "{statement}"
            );
        }
    }

    #[test]
    fn action_names_match_the_methods() {
        for action in AwsAction::ALL {
            assert_eq!(action.name(), format!("{action:?}"));
            let reads = ["Describe", "Get"]
                .iter()
                .any(|word| action.name().starts_with(word));
            assert_eq!(action.writes(), !reads);
        }
    }
}
