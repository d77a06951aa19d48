//! Changes of a load balancer: subnets, security groups, IP address type, attributes.

use std::collections::BTreeSet;

use super::super::answer::{AwsErrorResponse, CallResult};
use super::super::form::Form;
use super::super::layer::Layer;
use super::super::network::Network;
use super::super::state::State;
use super::super::xml::Element;
use super::existing::existing_balancer;
use super::params::{missing, one_of, required};

pub(super) const IP_ADDRESS_TYPES: [&str; 3] =
    ["ipv4", "dualstack", "dualstack-without-public-ipv4"];

/// Network location of a load balancer.
pub(super) struct Placement {
    pub(super) vpc: String,
    pub(super) zones: BTreeSet<String>,
}

fn invalid_configuration(message: impl Into<String>) -> AwsErrorResponse {
    AwsErrorResponse::new("InvalidConfigurationRequest", message)
}

/// Returns the desired subnets, whether sent plainly or as mappings.
pub(super) fn desired_subnets(form: &Form) -> Vec<String> {
    let mut subnets = form.list("Subnets");
    subnets.extend(
        form.members("SubnetMappings")
            .into_iter()
            .filter_map(|mut mapping| mapping.remove("SubnetId")),
    );
    subnets
}

/// Checks the subnets: at least two, each in a different zone, all in one VPC.
pub(super) fn check_subnets(
    network: &Network,
    subnets: &[String],
) -> Result<Placement, AwsErrorResponse> {
    let mut zones = BTreeSet::new();
    let mut vpcs = BTreeSet::new();
    let mut twice = false;
    for id in subnets {
        let Some(subnet) = network.subnets.get(id) else {
            return Err(AwsErrorResponse::new(
                "SubnetNotFound",
                format!("The subnet ID '{id}' does not exist"),
            ));
        };
        twice |= !zones.insert(subnet.zone.clone());
        vpcs.insert(subnet.vpc.clone());
    }
    if subnets.len() < 2 {
        return Err(AwsErrorResponse::invalid(
            "At least two subnets in two different Availability Zones must be specified",
        ));
    }
    if vpcs.len() > 1 {
        return Err(invalid_configuration(
            "All subnets must belong to the same VPC",
        ));
    }
    if twice {
        let message =
            "A load balancer cannot be attached to multiple subnets in the same Availability Zone";
        return Err(invalid_configuration(message));
    }
    let vpc = vpcs.pop_first().ok_or_else(|| missing("Subnets"))?;
    Ok(Placement { vpc, zones })
}

pub(super) fn check_security_groups(
    network: &Network,
    groups: &[String],
    vpc: &str,
) -> Result<(), AwsErrorResponse> {
    for group in groups {
        match network.security_groups.get(group) {
            None => {
                let message = format!("Security group '{group}' does not exist");
                return Err(AwsErrorResponse::new("InvalidSecurityGroup", message));
            }
            Some(other) if other != vpc => {
                return Err(invalid_configuration(
                    "One or more security groups are invalid",
                ));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

pub(super) fn check_ip_address_type(state: &State, form: &Form) -> Result<(), AwsErrorResponse> {
    one_of(form, "IpAddressType", &IP_ADDRESS_TYPES)?;
    if !state.ipv6 && form.get("IpAddressType").is_some_and(|kind| kind != "ipv4") {
        return Err(invalid_configuration(
            "You must specify subnets with an associated IPv6 CIDR block.",
        ));
    }
    Ok(())
}

pub(super) async fn subnets(layer: &Layer, form: Form) -> CallResult {
    let (arn, placement) = {
        let state = layer.state();
        let (arn, balancer) = existing_balancer(&state, &form)?;
        let placement = check_subnets(&state.network, &desired_subnets(&form))?;
        if placement.vpc != balancer.vpc {
            let message = format!(
                "All subnets must belong to the load balancer's VPC '{}'",
                balancer.vpc
            );
            return Err(invalid_configuration(message));
        }
        check_ip_address_type(&state, &form)?;
        (arn, placement)
    };
    let done = layer.moto.elb(&form).await?;
    if let Some(balancer) = layer.state().balancers.get_mut(&arn) {
        balancer.zones = placement.zones;
    }
    Ok(done)
}

pub(super) async fn security_groups(layer: &Layer, form: Form) -> CallResult {
    let groups = form.list("SecurityGroups");
    {
        let state = layer.state();
        let (_, balancer) = existing_balancer(&state, &form)?;
        if groups.is_empty() {
            return Err(missing("SecurityGroups"));
        }
        check_security_groups(&state.network, &groups, &balancer.vpc)?;
    }
    layer.moto.elb(&form).await?;
    Ok(vec![Element::texts("SecurityGroupIds", groups)])
}

pub(super) async fn ip_address_type(layer: &Layer, form: Form) -> CallResult {
    {
        let state = layer.state();
        existing_balancer(&state, &form)?;
        required(&form, "IpAddressType")?;
        check_ip_address_type(&state, &form)?;
    }
    layer.moto.elb(&form).await
}

pub(super) async fn attributes(layer: &Layer, form: Form) -> CallResult {
    existing_balancer(&layer.state(), &form)?;
    layer.moto.elb(&form).await
}

pub(super) async fn modify_attributes(layer: &Layer, form: Form) -> CallResult {
    let (arn, _) = existing_balancer(&layer.state(), &form)?;
    let done = layer.moto.elb(&form).await?;
    let mut attributes = form.members("Attributes").into_iter();
    let is_protection = |key: &String| key == "deletion_protection.enabled";
    if let Some(protection) =
        attributes.rfind(|attribute| attribute.get("Key").is_some_and(is_protection))
        && let Some(balancer) = layer.state().balancers.get_mut(&arn)
    {
        balancer.protected = protection.get("Value").is_some_and(|value| value == "true");
    }
    Ok(done)
}
