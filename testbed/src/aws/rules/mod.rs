//! AWS's rules for each call, where moto has no rule or a different one. Sources are the API reference's errors and
//! limits, and messages that AWS is known to return.

mod balancers;
mod existing;
mod groups;
mod listeners;
mod params;
mod settings;
mod tags;
mod targets;

use super::answer::{AwsErrorResponse, CallResult};
use super::form::Form;
use super::layer::Layer;

pub(super) use self::balancers::correct as correct_balancers;
pub(super) use self::listeners::correct as correct_listener;
pub(super) use self::params::members;

/// Performs a call.
pub(super) async fn perform(layer: &Layer, mut form: Form) -> CallResult {
    let network = layer.state().network.clone();
    form.rename_subnets(|name| network.moto_id(name));
    let mut result = match form.action() {
        "CreateLoadBalancer" => balancers::create(layer, form).await,
        "DescribeLoadBalancers" => balancers::describe(layer, form).await,
        "DeleteLoadBalancer" => balancers::delete(layer, form).await,
        "DescribeLoadBalancerAttributes" => settings::attributes(layer, form).await,
        "ModifyLoadBalancerAttributes" => settings::modify_attributes(layer, form).await,
        "SetSubnets" => settings::subnets(layer, form).await,
        "SetSecurityGroups" => settings::security_groups(layer, form).await,
        "SetIpAddressType" => settings::ip_address_type(layer, form).await,
        "AddTags" => tags::add(layer, &form),
        "RemoveTags" => tags::remove(layer, &form),
        "DescribeTags" => tags::describe(layer, &form),
        "CreateTargetGroup" => groups::create(layer, form).await,
        "DescribeTargetGroups" => groups::describe(layer, form).await,
        "ModifyTargetGroup" => groups::modify(layer, form).await,
        "DeleteTargetGroup" => groups::delete(layer, form).await,
        "CreateListener" => listeners::create(layer, form).await,
        "DescribeListeners" => listeners::describe(layer, form).await,
        "ModifyListener" => listeners::modify(layer, form).await,
        "DeleteListener" => listeners::delete(layer, form).await,
        "RegisterTargets" => targets::register(layer, &form),
        "DeregisterTargets" => targets::deregister(layer, &form),
        "DescribeTargetHealth" => targets::health(layer, &form),
        // moto alone handles these calls.
        "DescribeTargetGroupAttributes"
        | "ModifyTargetGroupAttributes"
        | "DescribeListenerAttributes"
        | "ModifyListenerAttributes"
        | "DescribeListenerCertificates"
        | "DescribeRules"
        | "DescribeSSLPolicies"
        | "DescribeAccountLimits" => layer.moto.elb(&form).await,
        other => {
            let message = format!("The action {other} is not valid for this web service.");
            Err(AwsErrorResponse::new("InvalidAction", message))
        }
    }?;
    for element in &mut result {
        network.rename(element);
    }
    Ok(result)
}
