//! Lookup of the resources that calls name, and the errors for missing ones.

use super::super::answer::AwsErrorResponse;
use super::super::form::Form;
use super::super::state::{Balancer, State};
use super::params::required;

pub(super) fn balancer_not_found(message: impl Into<String>) -> AwsErrorResponse {
    AwsErrorResponse::new("LoadBalancerNotFound", message)
}

/// Returns the load balancer that a call names, even if describes do not show it yet.
pub(super) fn existing_balancer<'a>(
    state: &'a State,
    form: &Form,
) -> Result<(String, &'a Balancer), AwsErrorResponse> {
    let arn = required(form, "LoadBalancerArn")?;
    check_balancer_arn(arn)?;
    let balancer = state
        .balancers
        .get(arn)
        .ok_or_else(|| balancer_not_found(format!("Load balancer '{arn}' not found")))?;
    Ok((arn.to_owned(), balancer))
}

pub(super) fn check_balancer_arn(arn: &str) -> Result<(), AwsErrorResponse> {
    if arn.starts_with("arn:aws:elasticloadbalancing:") && arn.contains(":loadbalancer/") {
        return Ok(());
    }
    Err(AwsErrorResponse::invalid(format!(
        "'{arn}' is not a valid load balancer ARN"
    )))
}

pub(super) fn group_not_found(arn: &str) -> AwsErrorResponse {
    AwsErrorResponse::new(
        "TargetGroupNotFound",
        format!("Target groups '{arn}' not found"),
    )
}

/// Returns the target group that a call names.
pub(super) fn existing_group(state: &State, form: &Form) -> Result<String, AwsErrorResponse> {
    let arn = required(form, "TargetGroupArn")?;
    if !arn.contains(":targetgroup/") {
        return Err(AwsErrorResponse::invalid(format!(
            "'{arn}' is not a valid target group ARN"
        )));
    }
    state
        .groups
        .get(arn)
        .map(|_| arn.to_owned())
        .ok_or_else(|| group_not_found(arn))
}

pub(super) fn listener_not_found() -> AwsErrorResponse {
    AwsErrorResponse::new("ListenerNotFound", "One or more listeners not found")
}

pub(super) fn existing_listener(state: &State, form: &Form) -> Result<String, AwsErrorResponse> {
    let arn = required(form, "ListenerArn")?;
    state
        .listeners
        .get(arn)
        .map(|_| arn.to_owned())
        .ok_or_else(listener_not_found)
}
