//! What the balancer of a `MyIngress` is to be. Pure.

use std::collections::BTreeSet;

use kube::ResourceExt;

use super::tags::Mark;
use crate::api::MyIngress;
use crate::api::my_ingress::{
    BAD_ADDRESSES, BAD_GROUP, BAD_SCHEME, BAD_SUBNET, LONG_KEY, NAME, OUR_TAG, PUBLIC_ONLY, SUBNETS, SUFFIX,
};
use crate::cloud::Wanted;
use crate::cloud::action::MANAGED_BY;

/// The balancer's name.
pub fn name(ingress: &MyIngress) -> String {
    format!("{}{SUFFIX}", ingress.name_any())
}

/// Checks a `MyIngress`. The CRD's rules say the same of new objects; an older one may break them.
///
/// # Errors
/// What is wrong with it, and what to write instead.
pub fn check(ingress: &MyIngress) -> Result<(), String> {
    let spec = &ingress.spec;
    let refuse = |path: &str, words: &str| Err(format!("{path}: {words}"));
    if !is_name(&ingress.name_any()) {
        return refuse("metadata.name", NAME);
    }
    if !spec.subnets.iter().all(|id| is_id(id, "subnet-")) {
        return refuse("spec.subnets", BAD_SUBNET);
    }
    if spec.subnets.iter().collect::<BTreeSet<_>>().len() < 2 {
        return refuse("spec.subnets", SUBNETS);
    }
    if !["internet-facing", "internal"].contains(&spec.scheme()) {
        return refuse("spec.scheme", BAD_SCHEME);
    }
    if !spec.security_groups.iter().all(|id| is_id(id, "sg-")) {
        return refuse("spec.securityGroups", BAD_GROUP);
    }
    match (spec.ip_address_type(), spec.scheme()) {
        ("dualstack-without-public-ipv4", "internal") => return refuse("spec.ipAddressType", PUBLIC_ONLY),
        ("ipv4" | "dualstack" | "dualstack-without-public-ipv4", _) => {}
        _ => return refuse("spec.ipAddressType", BAD_ADDRESSES),
    }
    for key in spec.tags.keys() {
        if key.is_empty() || key.chars().count() > 128 {
            return refuse("spec.tags", LONG_KEY);
        }
        if key.starts_with("aws:") || key.starts_with("quartermaster.dev/") || key == MANAGED_BY.0 {
            return refuse("spec.tags", OUR_TAG);
        }
    }
    Ok(())
}

/// What its balancer is to be, once it is checked.
pub fn wanted(ingress: &MyIngress, mark: &Mark<'_>) -> Wanted {
    let spec = &ingress.spec;
    let mut tags = mark.tags();
    tags.extend(spec.tags.clone());
    Wanted {
        name: name(ingress),
        scheme: spec.scheme().into(),
        ip_address_type: spec.ip_address_type().into(),
        subnets: spec.subnets.iter().cloned().collect(),
        security_groups: spec.security_groups.iter().cloned().collect(),
        tags,
    }
}

fn is_name(name: &str) -> bool {
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= 32 - SUFFIX.len()
        && name.starts_with(letters)
        && name.ends_with(letters)
        && name.chars().all(|c| letters(c) || c == '-')
        && !format!("{name}-").starts_with("internal-")
}

fn is_id(id: &str, prefix: &str) -> bool {
    id.strip_prefix(prefix)
        .is_some_and(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()))
}
