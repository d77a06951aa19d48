//! THE list of what is called in AWS, and the rights that follow from it.

use serde_json::{Value, json};

use crate::api::my_ingress::SUFFIX;

/// A call, named as in the [API reference](https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_Operations.html).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // each is a page of the API reference
pub enum Action {
    DescribeLoadBalancers,
    DescribeListeners,
    DescribeTags,
    DescribeTargetGroups,
    DescribeTargetHealth,
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

/// How a policy lets a call be made (<https://docs.aws.amazon.com/service-authorization/latest/reference/list_awselasticloadbalancingv2.html>).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Grant {
    /// On everything: what only reads knows no resources.
    Read,
    /// On a balancer of our naming. AWS asks for `AddTags` of who creates one with tags, and one that is handed over has none of
    /// ours yet.
    Named,
    /// On a balancer of our naming that bears our tag.
    Tagged,
}

impl Action {
    /// All of them.
    pub const ALL: [Self; 20] = [
        Self::DescribeLoadBalancers,
        Self::DescribeListeners,
        Self::DescribeTags,
        Self::DescribeTargetGroups,
        Self::DescribeTargetHealth,
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

    /// As AWS spells it.
    pub fn name(self) -> &'static str {
        match self {
            Self::DescribeLoadBalancers => "DescribeLoadBalancers",
            Self::DescribeListeners => "DescribeListeners",
            Self::DescribeTags => "DescribeTags",
            Self::DescribeTargetGroups => "DescribeTargetGroups",
            Self::DescribeTargetHealth => "DescribeTargetHealth",
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

    /// Whether it changes anything. AWS counts these apart.
    pub fn writes(self) -> bool {
        self.grant() != Grant::Read
    }

    fn grant(self) -> Grant {
        match self {
            Self::DescribeLoadBalancers
            | Self::DescribeListeners
            | Self::DescribeTags
            | Self::DescribeTargetGroups
            | Self::DescribeTargetHealth => Grant::Read,
            Self::CreateLoadBalancer | Self::CreateListener | Self::CreateTargetGroup | Self::AddTags => Grant::Named,
            Self::DeleteLoadBalancer
            | Self::DeleteListener
            | Self::DeleteTargetGroup
            | Self::DeregisterTargets
            | Self::ModifyListener
            | Self::ModifyTargetGroup
            | Self::RegisterTargets
            | Self::RemoveTags
            | Self::SetIpAddressType
            | Self::SetSecurityGroups
            | Self::SetSubnets => Grant::Tagged,
        }
    }
}

/// Tag of every balancer of ours, and its value: what the policy tells ours by.
pub const MANAGED_BY: (&str, &str) = ("ManagedBy", "quartermaster");

/// What the names of all target groups of ours begin with: the policy names them by it.
pub const GROUP_PREFIX: &str = "qm-";

/// The least IAM policy that all of it works with.
pub fn policy() -> Value {
    let statement = |sid: &str, grant: Grant| {
        let granted = Action::ALL.into_iter().filter(|action| action.grant() == grant);
        let actions: Vec<_> = granted.map(|action| format!("elasticloadbalancing:{}", action.name())).collect();
        let ours = [
            format!("loadbalancer/app/*{SUFFIX}/*"),
            format!("listener/app/*{SUFFIX}/*"),
            format!("targetgroup/{GROUP_PREFIX}*/*"),
        ];
        let ours = ours.map(|resource| format!("arn:aws:elasticloadbalancing:*:*:{resource}"));
        let resource = if grant == Grant::Read { json!("*") } else { json!(ours) };
        let mut statement = json!({ "Sid": sid, "Effect": "Allow", "Action": actions, "Resource": resource });
        if grant == Grant::Tagged {
            let tag = format!("aws:ResourceTag/{}", MANAGED_BY.0);
            statement["Condition"] = json!({ "StringEquals": { tag: MANAGED_BY.1 } });
        }
        statement
    };
    json!({
        "Version": "2012-10-17",
        "Statement": [
            statement("Look", Grant::Read),
            statement("CreateAndTag", Grant::Named),
            statement("ChangeOurs", Grant::Tagged),
        ],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_granted_once() {
        let policy = policy();
        let statements = policy["Statement"].as_array().cloned().unwrap_or_default();
        let granted: Vec<_> =
            statements.iter().flat_map(|s| s["Action"].as_array().cloned().unwrap_or_default()).collect();
        assert_eq!(granted.len(), Action::ALL.len());
        for action in Action::ALL {
            assert!(granted.contains(&format!("elasticloadbalancing:{}", action.name()).into()), "{action:?}");
        }
        assert!(statements.iter().all(|s| s["Resource"] != "*" || s["Sid"] == "Look"), "who changes names what");
    }

    #[test]
    fn each_is_spelled_as_it_is_called() {
        for action in Action::ALL {
            assert_eq!(action.name(), format!("{action:?}"));
            assert_eq!(action.writes(), !action.name().starts_with("Describe"));
        }
    }
}
