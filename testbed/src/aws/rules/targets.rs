//! Targets and their health. moto stores an instance only once in a group, whatever its port, so this module stores all
//! targets.

use std::time::Instant;

use super::super::answer::{AwsErrorResponse, CallResult};
use super::super::form::Form;
use super::super::health::Health;
use super::super::layer::Layer;
use super::super::state::{Registered, State, Target};
use super::super::xml::Element;
use super::existing::existing_group;
use super::params::missing;

/// Returns the targets that a call names; the default port is the group's.
fn named_targets(state: &State, form: &Form, group: &str) -> Result<Vec<Target>, AwsErrorResponse> {
    let default = state
        .groups
        .get(group)
        .and_then(|group| group.settings.get("Port"))
        .cloned()
        .unwrap_or_default();
    let targets = form.members("Targets").into_iter().map(|mut target| {
        let id = target
            .remove("Id")
            .filter(|id| !id.is_empty())
            .ok_or_else(|| missing("Targets.member.Id"))?;
        let port = target.remove("Port").unwrap_or_else(|| default.clone());
        let port: u16 = port.parse().ok().filter(|port| *port > 0).ok_or_else(|| {
            AwsErrorResponse::invalid(format!(
                "The port '{port}' of target '{id}' must be between 1 and 65535"
            ))
        })?;
        Ok((id, port))
    });
    targets.collect()
}

fn invalid_target(message: String) -> AwsErrorResponse {
    AwsErrorResponse::new("InvalidTarget", message)
}

pub(super) fn register(layer: &Layer, form: &Form) -> CallResult {
    let mut state = layer.state();
    let arn = existing_group(&state, form)?;
    let targets = named_targets(&state, form, &arn)?;
    if targets.is_empty() {
        return Err(missing("Targets"));
    }
    let of = |name: &str| {
        state
            .groups
            .get(&arn)
            .and_then(|group| group.settings.get(name))
            .map(String::as_str)
    };
    if of("TargetType") == Some("instance") {
        for (id, _) in &targets {
            match state.instances.get(id) {
                None => return Err(invalid_target(format!("Instance ID '{id}' is not valid"))),
                Some(instance) if !instance.running => {
                    let message =
                        "The following targets are not in a running state and cannot be registered";
                    return Err(invalid_target(format!("{message}: '{id}'")));
                }
                Some(_) if of("VpcId") != Some(state.network.vpc.as_str()) => {
                    let message = "The following targets are not in the target group VPC";
                    return Err(invalid_target(format!("{message}: '{id}'")));
                }
                Some(_) => {}
            }
        }
    }
    if let Some(group) = state.groups.get_mut(&arn) {
        for target in targets {
            let there = group
                .targets
                .get(&target)
                .is_some_and(|target| target.leaving.is_none());
            if !there {
                group.targets.insert(
                    target,
                    Registered {
                        since: Instant::now(),
                        leaving: None,
                    },
                );
            }
        }
    }
    Ok(Vec::new())
}

/// Deregisters targets. Deregistering a missing target succeeds; without a listener that forwards to the group, nothing
/// drains.
pub(super) fn deregister(layer: &Layer, form: &Form) -> CallResult {
    let mut state = layer.state();
    let arn = existing_group(&state, form)?;
    let targets = named_targets(&state, form, &arn)?;
    if targets.is_empty() {
        return Err(missing("Targets"));
    }
    let in_use = !state.balancers_of(&arn).is_empty();
    if let Some(group) = state.groups.get_mut(&arn) {
        for target in targets {
            if !in_use {
                group.targets.remove(&target);
            } else if let Some(target) = group.targets.get_mut(&target) {
                target.leaving.get_or_insert_with(Instant::now);
            }
        }
    }
    Ok(Vec::new())
}

pub(super) fn health(layer: &Layer, form: &Form) -> CallResult {
    let mut state = layer.state();
    let arn = existing_group(&state, form)?;
    let named = named_targets(&state, form, &arn)?;
    let all = state.targets(&arn);
    let found = if named.is_empty() {
        all
    } else {
        named
            .into_iter()
            .map(|target| (target.clone(), state.health(&arn, &target)))
            .collect()
    };
    Ok(vec![Element::list(
        "TargetHealthDescriptions",
        found.into_iter().map(description),
    )])
}

fn description(((id, port), health): (Target, Health)) -> Vec<Element> {
    let parts = [
        ("State", health.state),
        ("Reason", health.reason),
        ("Description", health.description),
    ];
    let parts = parts
        .into_iter()
        .filter(|(_, text)| !text.is_empty())
        .map(|(name, text)| Element::text(name, text));
    let target = vec![
        Element::text("Id", id),
        Element::text("Port", port.to_string()),
    ];
    vec![
        Element::with("Target", target),
        Element::text("HealthCheckPort", port.to_string()),
        Element::with("TargetHealth", parts.collect()),
    ]
}
