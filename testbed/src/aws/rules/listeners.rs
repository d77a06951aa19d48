//! Listeners of application load balancers: create, describe, modify, delete.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use super::super::answer::{AwsErrorResponse, CallResult};
use super::super::form::Form;
use super::super::layer::Layer;
use super::super::state::{Listener, State};
use super::super::xml::Element;
use super::existing::{
    balancer_not_found, existing_balancer, existing_listener, group_not_found, listener_not_found,
};
use super::groups::check_port;
use super::params::{members, missing, named, page, required};
use super::tags;

/// Returns the target groups of the default actions.
fn forwards(form: &Form) -> Vec<String> {
    let mut groups = Vec::new();
    for action in form.members("DefaultActions") {
        for (name, value) in action {
            if name.ends_with("TargetGroupArn") && !groups.contains(&value) {
                groups.push(value);
            }
        }
    }
    groups
}

/// Checks the rules that apply to a created or modified listener, given its resulting settings.
fn check(
    state: &State,
    balancer: &str,
    own: Option<&str>,
    form: &Form,
) -> Result<u16, AwsErrorResponse> {
    let port = check_port(form)?;
    let protocol = required(form, "Protocol")?;
    if !["HTTP", "HTTPS"].contains(&protocol) {
        return Err(AwsErrorResponse::invalid(format!(
            "Protocol '{protocol}' must be one of 'HTTP, HTTPS'"
        )));
    }
    check_certificate(state, form, protocol)?;
    if !form.has_list("DefaultActions") {
        return Err(missing("DefaultActions"));
    }
    let vpc = state
        .balancers
        .get(balancer)
        .map(|balancer| balancer.vpc.as_str());
    for arn in forwards(form) {
        let group = state
            .groups
            .get(&arn)
            .ok_or_else(|| group_not_found(&arn))?;
        if group.settings.get("VpcId").map(String::as_str) != vpc {
            let message = format!("The target group '{arn}' is not in the load balancer's VPC");
            return Err(AwsErrorResponse::new(
                "InvalidConfigurationRequest",
                message,
            ));
        }
        if state
            .balancers_of(&arn)
            .iter()
            .any(|other| other != balancer)
        {
            let message = format!(
                "The following target groups cannot be associated with more than one load balancer: {arn}"
            );
            return Err(AwsErrorResponse::new(
                "TargetGroupAssociationLimit",
                message,
            ));
        }
    }
    let taken = |(arn, listener): (&String, &Listener)| {
        own != Some(arn.as_str()) && listener.balancer == balancer && listener.port == port
    };
    if state.listeners.iter().any(taken) {
        let message =
            format!("A listener already exists on this port for load balancer '{balancer}'");
        return Err(AwsErrorResponse::new("DuplicateListener", message));
    }
    Ok(port)
}

fn check_certificate(state: &State, form: &Form, protocol: &str) -> Result<(), AwsErrorResponse> {
    let certificates: Vec<String> = form
        .members("Certificates")
        .into_iter()
        .filter_map(|mut one| one.remove("CertificateArn"))
        .collect();
    match (protocol, certificates.as_slice()) {
        ("HTTPS", [arn]) if state.certificates.contains(arn) => Ok(()),
        ("HTTPS", [arn]) => Err(AwsErrorResponse::new(
            "CertificateNotFound",
            format!("Certificate '{arn}' not found"),
        )),
        ("HTTPS", []) => Err(AwsErrorResponse::invalid(
            "A certificate must be specified for HTTPS listeners",
        )),
        ("HTTPS", _) => Err(AwsErrorResponse::invalid(
            "Exactly one certificate must be specified",
        )),
        (_, []) if form.get("SslPolicy").is_none() => Ok(()),
        (_, []) => Err(AwsErrorResponse::invalid(
            "An SSL policy cannot be specified for HTTP listeners",
        )),
        _ => Err(AwsErrorResponse::invalid(
            "A certificate cannot be specified for HTTP listeners",
        )),
    }
}

async fn check_ssl_policy(layer: &Layer, form: &Form) -> Result<(), AwsErrorResponse> {
    let Some(policy) = form.get("SslPolicy") else {
        return Ok(());
    };
    let found = layer
        .moto
        .elb(&Form::elb(
            "DescribeSSLPolicies",
            &[("Names.member.1", policy)],
        ))
        .await?;
    if members(found).is_empty() {
        return Err(AwsErrorResponse::new(
            "SSLPolicyNotFound",
            format!("SSL policy '{policy}' not found"),
        ));
    }
    Ok(())
}

/// Creates a listener. An identical call returns the existing listener.
pub(super) async fn create(layer: &Layer, mut form: Form) -> CallResult {
    check_ssl_policy(layer, &form).await?;
    let new_tags = tags::desired(&form)?;
    tags::check_count(new_tags.len())?;
    form.remove("Tags");
    let (balancer, port) = {
        let state = layer.state();
        let (balancer, _) = existing_balancer(&state, &form)?;
        let same = |listener: &&Listener| listener.settings == form.params();
        let former = state
            .listeners
            .iter()
            .find(|(_, listener)| same(listener))
            .map(|(arn, _)| arn.clone());
        match former {
            Some(arn) => (balancer, Err(arn)),
            None => (balancer.clone(), Ok(check(&state, &balancer, None, &form)?)),
        }
    };
    let port = match port {
        Ok(port) => port,
        Err(arn) => return shown(layer, &Form::elb("", &[("ListenerArns.member.1", &arn)])).await,
    };
    let mut made = members(layer.moto.elb(&form).await?);
    let mut state = layer.state();
    for listener in &mut made {
        let arn = listener.get("ListenerArn").to_owned();
        let protocol = listener.get("Protocol").to_owned();
        let (balancer, groups, settings, since) = (
            balancer.clone(),
            forwards(&form),
            form.params(),
            Instant::now(),
        );
        state.listeners.insert(
            arn.clone(),
            Listener {
                balancer,
                port,
                protocol,
                groups,
                settings,
                since,
            },
        );
        state.record(&arn, new_tags.clone());
        correct(listener);
    }
    Ok(vec![Element::with("Listeners", made)])
}

/// Corrects moto's description of a listener: without TLS there is neither certificate nor policy, and a plain forward
/// also has its long form.
pub(in crate::aws) fn correct(listener: &mut Element) {
    if listener.get("Protocol") == "HTTP" {
        listener.remove("SslPolicy");
        listener.remove("Certificates");
    }
    for action in listener
        .child_mut("DefaultActions")
        .into_iter()
        .flat_map(|actions| &mut actions.children)
    {
        let group = action.get("TargetGroupArn").to_owned();
        if !group.is_empty() && action.child("ForwardConfig").is_none() {
            let tuple = vec![
                Element::text("TargetGroupArn", group),
                Element::text("Weight", "1"),
            ];
            let stickiness = Element::with(
                "TargetGroupStickinessConfig",
                vec![Element::text("Enabled", "false")],
            );
            action.put(Element::with(
                "ForwardConfig",
                vec![Element::list("TargetGroups", [tuple]), stickiness],
            ));
        }
    }
}

async fn shown(layer: &Layer, ask: &Form) -> CallResult {
    let mut ask = ask.clone();
    ask.set("Action", "DescribeListeners");
    let mut found = members(layer.moto.elb(&ask).await?);
    found.iter_mut().for_each(correct);
    Ok(vec![Element::with("Listeners", found)])
}

pub(super) async fn describe(layer: &Layer, mut form: Form) -> CallResult {
    let arns = named(&form, "ListenerArns", "listeners")?;
    {
        let state = layer.state();
        match form.get("LoadBalancerArn") {
            Some(_) if !arns.is_empty() => {
                let message =
                    "Listener ARNs and a load balancer ARN cannot be specified at the same time";
                return Err(AwsErrorResponse::invalid(message));
            }
            Some(arn) if !(state.balancers.contains_key(arn) && state.is_shown(arn)) => {
                return Err(balancer_not_found(format!(
                    "Load balancer '{arn}' not found"
                )));
            }
            None if arns.is_empty() => {
                let message = "You must specify either listener ARNs or a load balancer ARN";
                return Err(AwsErrorResponse::invalid(message));
            }
            _ => {}
        }
        if arns
            .iter()
            .any(|arn| !(state.listeners.contains_key(arn) && state.is_shown(arn)))
        {
            return Err(listener_not_found());
        }
    }
    let mut found: Vec<Element> = shown(layer, &form)
        .await?
        .into_iter()
        .flat_map(|list| list.children)
        .collect();
    let state = layer.state();
    found.retain(|listener| state.is_shown(listener.get("ListenerArn")));
    if !arns.is_empty() {
        form.remove("PageSize");
    }
    page(&state, &form, "Listeners", "ListenerArn", found)
}

pub(super) async fn modify(layer: &Layer, form: Form) -> CallResult {
    check_ssl_policy(layer, &form).await?;
    let (arn, settings, port, groups) = {
        let state = layer.state();
        let arn = existing_listener(&state, &form)?;
        let listener = state.listeners.get(&arn).ok_or_else(listener_not_found)?;
        check_change_to_https(&listener.protocol, &form)?;
        let settings = settings_after(&listener.settings, &form);
        let after = Form::elb(
            "",
            &settings
                .iter()
                .map(|(name, value)| (name.as_str(), value.as_str()))
                .collect::<Vec<_>>(),
        );
        let port = check(&state, &listener.balancer, Some(&arn), &after)?;
        (arn, settings, port, forwards(&after))
    };
    layer.moto.elb(&form).await?;
    if let Some(listener) = layer.state().listeners.get_mut(&arn) {
        if listener.groups != groups {
            listener.since = Instant::now();
        }
        listener.protocol = settings.get("Protocol").cloned().unwrap_or_default();
        (listener.settings, listener.port, listener.groups) = (settings, port, groups);
    }
    shown(layer, &Form::elb("", &[("ListenerArns.member.1", &arn)])).await
}

/// Rejects a change from HTTP to HTTPS without policy and certificate. "If you change the protocol from HTTP to HTTPS
/// ... you must add the security policy and default certificate properties": unlike at creation, the policy has no
/// default.
fn check_change_to_https(former: &str, form: &Form) -> Result<(), AwsErrorResponse> {
    if former != "HTTP" || form.get("Protocol") != Some("HTTPS") {
        return Ok(());
    }
    if !form.has_list("Certificates") {
        return Err(AwsErrorResponse::invalid(
            "A certificate must be specified for HTTPS listeners",
        ));
    }
    if form.get("SslPolicy").is_none() {
        return Err(AwsErrorResponse::invalid(
            "An SSL policy must be specified for HTTPS listeners",
        ));
    }
    Ok(())
}

/// Returns a listener's settings after a change. A list in the call replaces the whole former list; settings that only
/// HTTPS has end with HTTPS.
fn settings_after(former: &BTreeMap<String, String>, form: &Form) -> BTreeMap<String, String> {
    let mut new = form.params();
    new.remove("ListenerArn");
    let head = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    let sent: BTreeSet<String> = new.keys().map(|name| head(name)).collect();
    let kept = former
        .iter()
        .filter(|(name, _)| !sent.contains(&head(name)));
    let mut all: BTreeMap<String, String> = kept
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    if new
        .get("Protocol")
        .is_some_and(|protocol| protocol == "HTTP")
    {
        all.retain(|name, _| !["Certificates", "SslPolicy"].contains(&head(name).as_str()));
    }
    all.extend(new);
    all
}

pub(super) async fn delete(layer: &Layer, form: Form) -> CallResult {
    let arn = existing_listener(&layer.state(), &form)?;
    let done = layer.moto.elb(&form).await?;
    layer.state().forget_listener(&arn);
    Ok(done)
}
