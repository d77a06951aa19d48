//! Load balancers: create, describe, delete.

use std::collections::BTreeSet;
use std::time::Instant;

use super::super::answer::{AwsErrorResponse, CallResult};
use super::super::form::Form;
use super::super::layer::Layer;
use super::super::state::{Balancer, Deleted, State};
use super::super::xml::Element;
use super::existing::{balancer_not_found, check_balancer_arn};
use super::params::{check_name, members, named, one_of, page, required};
use super::{settings, tags};
use crate::aws::REGION;

pub(super) const SCHEMES: [&str; 2] = ["internet-facing", "internal"];
pub(super) const TYPES: [&str; 3] = ["application", "network", "gateway"];

/// Creates a load balancer. An identical call returns the existing load balancer; a different one with the same name is
/// rejected.
pub(super) async fn create(layer: &Layer, mut form: Form) -> CallResult {
    let name = required(&form, "Name")?.to_owned();
    check_name("load balancer", &name)?;
    if name.starts_with("internal-") {
        return Err(AwsErrorResponse::invalid(format!(
            "The load balancer name '{name}' cannot begin with 'internal-'"
        )));
    }
    one_of(&form, "Scheme", &SCHEMES)?;
    one_of(&form, "Type", &TYPES)?;
    settings::check_ip_address_type(&layer.state(), &form)?;
    let subnets = settings::desired_subnets(&form);
    let placement = settings::check_subnets(&layer.state().network, &subnets)?;
    let mut groups = form.list("SecurityGroups");
    settings::check_security_groups(&layer.state().network, &groups, &placement.vpc)?;
    let new_tags = tags::desired(&form)?;
    tags::check_count(new_tags.len())?;
    if groups.is_empty() {
        groups.extend(
            layer
                .state()
                .network
                .default_group
                .get(&placement.vpc)
                .cloned(),
        );
    }
    form.set_list("SecurityGroups", &groups);
    form.remove("Tags");
    let duplicate = || {
        let message = format!(
            "A load balancer with the same name '{name}' exists, but with different settings"
        );
        Err(AwsErrorResponse::new("DuplicateLoadBalancerName", message))
    };
    if layer
        .state()
        .all_lingering()
        .any(|(_, deleted)| deleted.name == name)
    {
        return duplicate();
    }
    let former = layer
        .state()
        .balancer_named(&name)
        .map(|(arn, _)| arn.clone());
    if let Some(arn) = former {
        let mut found = members(
            layer
                .moto
                .elb(&Form::elb(
                    "DescribeLoadBalancers",
                    &[("Names.member.1", &name)],
                ))
                .await?,
        );
        if !found
            .iter()
            .all(|balancer| matches_form(&form, balancer, &subnets, &groups))
        {
            return duplicate();
        }
        tracing::debug!(arn, "the load balancer already exists");
        correct(&layer.state(), &mut found);
        return Ok(vec![Element::with("LoadBalancers", found)]);
    }
    if form.get("Scheme").is_none() {
        form.set("Scheme", SCHEMES[0]);
    }
    let mut made = members(layer.moto.elb(&form).await?);
    let mut state = layer.state();
    for balancer in &made {
        let created = Instant::now();
        let arn = balancer.get("LoadBalancerArn");
        let (vpc, zones) = (placement.vpc.clone(), placement.zones.clone());
        let new = Balancer {
            name: name.clone(),
            vpc,
            zones,
            created,
            forced: None,
            protected: false,
        };
        state.balancers.insert(arn.to_owned(), new);
        state.record(arn, new_tags.clone());
    }
    correct(&state, &mut made);
    Ok(vec![Element::with("LoadBalancers", made)])
}

/// Returns whether the load balancer matches the form.
fn matches_form(form: &Form, balancer: &Element, subnets: &[String], groups: &[String]) -> bool {
    let is = |param: &str, default: &str| form.get(param).unwrap_or(default) == balancer.get(param);
    let zones = balancer
        .members("AvailabilityZones")
        .iter()
        .map(|zone| zone.get("SubnetId"));
    let security_groups = balancer
        .members("SecurityGroups")
        .iter()
        .map(|group| group.text.as_str());
    is("Scheme", SCHEMES[0])
        && is("Type", TYPES[0])
        && is("IpAddressType", "ipv4")
        && zones.collect::<BTreeSet<_>>() == subnets.iter().map(String::as_str).collect()
        && security_groups.collect::<BTreeSet<_>>() == groups.iter().map(String::as_str).collect()
}

pub(super) async fn describe(layer: &Layer, mut form: Form) -> CallResult {
    let arns = named(&form, "LoadBalancerArns", "load balancers")?;
    let names = named(&form, "Names", "load balancers")?;
    let all = arns.is_empty() && names.is_empty();
    if !arns.is_empty() && !names.is_empty() {
        let message =
            "Load balancer names and load balancer ARNs cannot be specified at the same time";
        return Err(AwsErrorResponse::invalid(message));
    }
    let (ask, lingering) = {
        let state = layer.state();
        let selected = |(arn, deleted): &(&String, &Deleted)| {
            state.is_shown(arn) && (all || arns.contains(arn) || names.contains(&deleted.name))
        };
        let lingering: Vec<Element> = state
            .all_lingering()
            .filter(selected)
            .map(|(_, deleted)| deleted.description.clone())
            .collect();
        let lingers =
            |key: &str, value: &str| lingering.iter().any(|balancer| balancer.get(key) == value);
        for arn in &arns {
            check_balancer_arn(arn)?;
            if !lingers("LoadBalancerArn", arn) && !state.is_shown(arn) {
                return Err(balancer_not_found("One or more load balancers not found"));
            }
        }
        for name in &names {
            let live = state
                .balancer_named(name)
                .is_some_and(|(arn, _)| state.is_shown(arn));
            if !lingers("LoadBalancerName", name) && !live {
                return Err(balancer_not_found(format!(
                    "Load balancers '[{name}]' not found"
                )));
            }
        }
        let mut ask = form.clone();
        ask.remove("Marker");
        ask.set("PageSize", "1000000");
        // moto does not know deleted load balancers that linger.
        let live = |arn: &&String| state.balancers.contains_key(*arn);
        ask.set_list(
            "LoadBalancerArns",
            &arns.iter().filter(live).cloned().collect::<Vec<_>>(),
        );
        let live = |name: &&String| state.balancer_named(name).is_some();
        ask.set_list(
            "Names",
            &names.iter().filter(live).cloned().collect::<Vec<_>>(),
        );
        (ask, lingering)
    };
    let mut found = Vec::new();
    if all || ask.has_list("LoadBalancerArns") || ask.has_list("Names") {
        found = members(layer.moto.elb(&ask).await?);
    }
    let state = layer.state();
    found.retain(|balancer| state.is_shown(balancer.get("LoadBalancerArn")));
    correct(&state, &mut found);
    found.extend(lingering);
    if !all {
        form.remove("PageSize"); // a describe by name has no pages
    }
    page(&state, &form, "LoadBalancers", "LoadBalancerArn", found)
}

/// Corrects moto's description of load balancers.
pub(in crate::aws) fn correct(state: &State, balancers: &mut [Element]) {
    for balancer in balancers {
        let Some(known) = state.balancers.get(balancer.get("LoadBalancerArn")) else {
            continue;
        };
        let (code, reason) = state.balancer_state(known);
        let mut parts = vec![Element::text("Code", code)];
        if !reason.is_empty() {
            parts.push(Element::text("Reason", reason));
        }
        balancer.put(Element::with("State", parts));
        balancer.put(Element::text("DNSName", dns(balancer)));
    }
}

/// Returns a DNS name that differs between load balancers of the same name, as in AWS. The number always has ten
/// digits, so that tests can mask it.
fn dns(balancer: &Element) -> String {
    let (_, id) = balancer
        .get("LoadBalancerArn")
        .rsplit_once('/')
        .unwrap_or_default();
    let number = u64::from_str_radix(id, 16).unwrap_or_default() % 10_000_000_000;
    let internal = if balancer.get("Scheme") == "internal" {
        "internal-"
    } else {
        ""
    };
    format!(
        "{internal}{}-{number:010}.{REGION}.elb.amazonaws.com",
        balancer.get("LoadBalancerName")
    )
}

/// Deletes a load balancer. Deleting a missing one succeeds, also while describes still show it; a protected one is
/// rejected.
pub(super) async fn delete(layer: &Layer, form: Form) -> CallResult {
    let arn = required(&form, "LoadBalancerArn")?;
    check_balancer_arn(arn)?;
    match layer.state().balancers.get(arn) {
        None => return Ok(Vec::new()),
        Some(balancer) if balancer.protected => {
            let message = format!(
                "Load balancer '{arn}' cannot be deleted because deletion protection is enabled"
            );
            return Err(AwsErrorResponse::new("OperationNotPermitted", message));
        }
        Some(_) => {}
    }
    let mut last = Vec::new();
    if !layer.state().times.linger.is_zero() {
        last = members(
            layer
                .moto
                .elb(&Form::elb(
                    "DescribeLoadBalancers",
                    &[("LoadBalancerArns.member.1", arn)],
                ))
                .await?,
        );
    }
    let done = layer.moto.elb(&form).await?;
    let mut state = layer.state();
    correct(&state, &mut last);
    for balancer in last {
        state.start_lingering(arn, balancer);
    }
    state.forget_balancer(arn);
    Ok(done)
}
