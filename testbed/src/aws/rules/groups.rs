//! Target groups: create, describe, modify, delete.

use std::collections::{BTreeMap, BTreeSet};

use super::super::answer::{AwsErrorResponse, CallResult};
use super::super::form::Form;
use super::super::layer::Layer;
use super::super::state::{Group, State};
use super::super::xml::Element;
use super::existing::{balancer_not_found, existing_group, group_not_found};
use super::params::{check_name, members, named, one_of, page, required};
use super::tags;

const PROTOCOLS: [&str; 2] = ["HTTP", "HTTPS"];

/// AWS's defaults of omitted parameters, for the protocols of an application load balancer.
const DEFAULTS: [(&str, &str); 11] = [
    ("HealthCheckEnabled", "true"),
    ("HealthCheckIntervalSeconds", "30"),
    ("HealthCheckPath", "/"),
    ("HealthCheckPort", "traffic-port"),
    ("HealthCheckTimeoutSeconds", "5"),
    ("HealthyThresholdCount", "5"),
    ("IpAddressType", "ipv4"),
    ("Matcher.HttpCode", "200"),
    ("ProtocolVersion", "HTTP1"),
    ("TargetType", "instance"),
    ("UnhealthyThresholdCount", "2"),
];

/// Returns the group's settings, with AWS's defaults.
fn settings(form: &Form) -> BTreeMap<String, String> {
    let defaults = DEFAULTS
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let mut settings: BTreeMap<String, String> = defaults.collect();
    settings.insert("HealthCheckProtocol".to_owned(), "HTTP".to_owned());
    settings.extend(form.params());
    settings
}

/// Creates a target group. An identical call returns the existing group; a different one with the same name is
/// rejected.
pub(super) async fn create(layer: &Layer, mut form: Form) -> CallResult {
    let name = required(&form, "Name")?.to_owned();
    check_name("target group", &name)?;
    check_port(&form)?;
    required(&form, "Protocol")?;
    one_of(&form, "Protocol", &PROTOCOLS)?;
    one_of(&form, "TargetType", &["instance", "ip"])?;
    check_health_check(&form)?;
    let vpc = required(&form, "VpcId")?;
    if vpc != layer.state().network.vpc && vpc != layer.state().network.other_vpc {
        return Err(AwsErrorResponse::invalid(format!(
            "The VPC ID '{vpc}' is not found"
        )));
    }
    let new_tags = tags::desired(&form)?;
    tags::check_count(new_tags.len())?;
    form.remove("Tags");
    let settings = settings(&form);
    let former = {
        let state = layer.state();
        let former = state.groups.iter().find(|(_, group)| group.name == name);
        former.map(|(arn, group)| (arn.clone(), group.settings == settings))
    };
    match former {
        Some((_, false)) => {
            let message = format!(
                "A target group with the same name '{name}' exists, but with different settings"
            );
            return Err(AwsErrorResponse::new("DuplicateTargetGroupName", message));
        }
        Some((arn, true)) => {
            return shown(layer, &Form::elb("", &[("TargetGroupArns.member.1", &arn)])).await;
        }
        None => {}
    }
    let mut made = members(layer.moto.elb(&form).await?);
    let mut state = layer.state();
    for group in &made {
        let arn = group.get("TargetGroupArn");
        let new = Group {
            name: name.clone(),
            settings: settings.clone(),
            targets: BTreeMap::new(),
            forced: BTreeMap::new(),
        };
        state.groups.insert(arn.to_owned(), new);
        state.record(arn, new_tags.clone());
    }
    correct(&state, &mut made);
    Ok(vec![Element::with("TargetGroups", made)])
}

pub(super) fn check_port(form: &Form) -> Result<u16, AwsErrorResponse> {
    let port = required(form, "Port")?;
    port.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
        AwsErrorResponse::invalid(format!(
            "1 validation error detected: Value '{port}' at 'port' failed to satisfy constraint: Member must have value \
             between 1 and 65535"
        ))
    })
}

fn check_health_check(form: &Form) -> Result<(), AwsErrorResponse> {
    one_of(form, "HealthCheckProtocol", &PROTOCOLS)?;
    if let Some(path) = form.get("HealthCheckPath")
        && (!path.starts_with('/') || path.len() > 1024)
    {
        return Err(AwsErrorResponse::invalid(format!(
            "Health check path '{path}' must begin with a '/' character"
        )));
    }
    Ok(())
}

/// Corrects moto's description of groups: moto misses load balancers that start to forward later, and keeps former
/// ones.
fn correct(state: &State, groups: &mut [Element]) {
    for group in groups {
        let balancers = state.balancers_of(group.get("TargetGroupArn"));
        group.put(Element::texts("LoadBalancerArns", balancers));
    }
}

/// Returns the groups that `ask` names.
async fn shown(layer: &Layer, ask: &Form) -> CallResult {
    let mut ask = ask.clone();
    ask.set("Action", "DescribeTargetGroups");
    let mut found = members(layer.moto.elb(&ask).await?);
    correct(&layer.state(), &mut found);
    Ok(vec![Element::with("TargetGroups", found)])
}

pub(super) async fn describe(layer: &Layer, mut form: Form) -> CallResult {
    let arns = named(&form, "TargetGroupArns", "target groups")?;
    let names = named(&form, "Names", "target groups")?;
    let of: Option<BTreeSet<String>> = {
        let state = layer.state();
        let balancer = form.get("LoadBalancerArn");
        if [!arns.is_empty(), !names.is_empty(), balancer.is_some()]
            .iter()
            .filter(|given| **given)
            .count()
            > 1
        {
            return Err(AwsErrorResponse::invalid(
                "Target group names, target group ARNs, and a load balancer ARN cannot be specified at the same time",
            ));
        }
        if let Some(arn) = arns
            .iter()
            .find(|arn| !(state.groups.contains_key(*arn) && state.is_shown(arn)))
        {
            return Err(group_not_found(arn));
        }
        let named = |name: &str| {
            state
                .groups
                .iter()
                .any(|(arn, group)| group.name == name && state.is_shown(arn))
        };
        if let Some(name) = names.iter().find(|name| !named(name)) {
            return Err(AwsErrorResponse::new(
                "TargetGroupNotFound",
                format!("Target groups '[{name}]' not found"),
            ));
        }
        match balancer {
            Some(arn) if !(state.balancers.contains_key(arn) && state.is_shown(arn)) => {
                return Err(balancer_not_found(format!(
                    "Load balancer '{arn}' not found"
                )));
            }
            Some(arn) => {
                let on_it = |group: &&String| state.balancers_of(group).contains(arn);
                Some(state.groups.keys().filter(on_it).cloned().collect())
            }
            None => None,
        }
    };
    let mut ask = form.clone();
    ask.remove("LoadBalancerArn");
    let mut found: Vec<Element> = shown(layer, &ask)
        .await?
        .into_iter()
        .flat_map(|list| list.children)
        .collect();
    let state = layer.state();
    found.retain(|group| {
        let arn = group.get("TargetGroupArn");
        state.is_shown(arn) && of.as_ref().is_none_or(|of| of.contains(arn))
    });
    if !arns.is_empty() || !names.is_empty() {
        form.remove("PageSize");
    }
    page(&state, &form, "TargetGroups", "TargetGroupArn", found)
}

pub(super) async fn modify(layer: &Layer, form: Form) -> CallResult {
    let arn = existing_group(&layer.state(), &form)?;
    check_health_check(&form)?;
    layer.moto.elb(&form).await?;
    let mut changed = form.params();
    changed.remove("TargetGroupArn");
    if let Some(group) = layer.state().groups.get_mut(&arn) {
        group.settings.extend(changed);
    }
    shown(layer, &Form::elb("", &[("TargetGroupArns.member.1", &arn)])).await
}

/// Deletes a target group. Deleting a missing one succeeds; a group that a listener or rule forwards to is rejected.
pub(super) async fn delete(layer: &Layer, form: Form) -> CallResult {
    let arn = match existing_group(&layer.state(), &form) {
        Err(error) if error.code == "TargetGroupNotFound" => return Ok(Vec::new()),
        other => other?,
    };
    if !layer.state().balancers_of(&arn).is_empty() {
        let message = format!("Target group '{arn}' is currently in use by a listener or a rule");
        return Err(AwsErrorResponse::new("ResourceInUse", message));
    }
    let done = layer.moto.elb(&form).await?;
    layer.state().forget_group(&arn);
    Ok(done)
}
