//! AWS's rules for each call, where moto has none or others. What is named here is what was looked up: the API reference's
//! errors and limits, and the words that AWS is known to answer.

mod balancers;
mod groups;
mod listeners;
mod settings;
mod tags;
mod targets;

use super::answer::{Done, Refused};
use super::form::Form;
use super::layer::Layer;
use super::state::State;
use super::xml::Element;

pub(super) use self::balancers::finish as finish_balancers;
pub(super) use self::listeners::finish as finish_listener;

/// Does what a call asks for.
pub(super) async fn perform(layer: &Layer, mut form: Form) -> Done {
    let network = layer.state().network.clone();
    form.rename_subnets(|name| network.real(name));
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
        // No rule of ours: what it changes is in moto alone.
        "DescribeTargetGroupAttributes"
        | "ModifyTargetGroupAttributes"
        | "DescribeListenerAttributes"
        | "ModifyListenerAttributes"
        | "DescribeListenerCertificates"
        | "DescribeRules"
        | "DescribeSSLPolicies"
        | "DescribeAccountLimits" => layer.moto.elb(&form).await,
        other => {
            let words = format!("The action {other} is not valid for this web service.");
            Err(Refused::new("InvalidAction", words))
        }
    }?;
    for element in &mut result {
        network.rename(element);
    }
    Ok(result)
}

/// A parameter that must be there.
fn required<'a>(form: &'a Form, name: &str) -> Result<&'a str, Refused> {
    form.get(name).ok_or_else(|| missing(name))
}

fn missing(name: &str) -> Refused {
    Refused::invalid(format!("The request must contain the parameter {name}"))
}

/// The value of a parameter with a fixed choice of values.
fn one_of(form: &Form, name: &str, choice: &[&str]) -> Result<(), Refused> {
    match form.get(name) {
        Some(value) if !choice.contains(&value) => {
            let mut member = name.to_owned();
            if let Some(first) = member.get_mut(..1) {
                first.make_ascii_lowercase();
            }
            let choice = choice.join(", ");
            Err(Refused::invalid(format!(
                "1 validation error detected: Value '{value}' at '{member}' failed to satisfy constraint: Member must \
                 satisfy enum value set: [{choice}]"
            )))
        }
        _ => Ok(()),
    }
}

/// How many things may be named in one describe.
const AT_ONCE: usize = 20;

/// The list's items, of which there may be twenty.
fn named(form: &Form, list: &str, what: &str) -> Result<Vec<String>, Refused> {
    let items = form.list(list);
    if items.len() > AT_ONCE {
        let count = items.len();
        return Err(Refused::invalid(format!(
            "Up to {AT_ONCE} {what} can be described at a time, but {count} were specified"
        )));
    }
    Ok(items)
}

/// One page of a list: what follows `Marker`, as much as `PageSize` and the server allow, and `NextMarker`.
fn page(state: &State, form: &Form, list: &str, key: &str, items: Vec<Element>) -> Done {
    let size = match form.get("PageSize").map(str::parse::<usize>) {
        None => state.page,
        Some(Ok(size @ 1..=400)) => size.min(state.page),
        Some(_) => return Err(Refused::invalid("The page size must be between 1 and 400")),
    };
    let start = match form.get("Marker") {
        None => 0,
        Some(marker) => match items.iter().position(|item| item.get(key) == marker) {
            Some(at) => at + 1,
            None => return Err(Refused::invalid(format!("Invalid marker: {marker}"))),
        },
    };
    let more = items.len() > start + size;
    let items: Vec<Element> = items.into_iter().skip(start).take(size).collect();
    let marker = items
        .last()
        .filter(|_| more)
        .map(|item| Element::text("NextMarker", item.get(key)));
    Ok([Element::with(list, items)]
        .into_iter()
        .chain(marker)
        .collect())
}

/// The one list of a result of moto's.
pub(super) fn members(result: Vec<Element>) -> Vec<Element> {
    result
        .into_iter()
        .next()
        .map(|list| list.children)
        .unwrap_or_default()
}

/// A name of at most 32 letters, digits and hyphens, none of which stands at an end.
fn check_name(what: &str, name: &str) -> Result<(), Refused> {
    if name.len() > 32 {
        return Err(Refused::invalid(format!(
            "The {what} name '{name}' cannot be longer than '32' characters"
        )));
    }
    if !name
        .bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    {
        return Err(Refused::invalid(format!(
            "The {what} name '{name}' can only contain characters that are alphanumeric characters or hyphens(-)"
        )));
    }
    if name.starts_with('-') || name.ends_with('-') {
        return Err(Refused::invalid(format!(
            "The {what} name '{name}' cannot begin or end with a hyphen(-)"
        )));
    }
    Ok(())
}
