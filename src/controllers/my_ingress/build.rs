//! Builds the desired state of a `MyIngress` from its spec. Pure.

use std::collections::BTreeSet;

use kube::ResourceExt;
use qm_api::MyIngress;
use qm_api::my_ingress::{
    BAD_ADDRESSES, BAD_GROUP, BAD_PROTOCOL, BAD_SCHEME, BAD_SUBNET, BAD_TAG, CERTIFICATE, LONG_KEY,
    ListenerSpec, NAME_RULE, POLICY, PUBLIC_ONLY, RESERVED_TAG, SUBNETS,
};
use qm_api::spec_size::StoredSpec as _;
use qm_aws::action::MANAGED_BY;
use qm_aws::{DesiredLoadBalancer, LoadBalancer, NAME_SUFFIX};
use qm_core::validation::is_dns_label;

use super::tags::OwnershipTags;

/// The desired state of a `MyIngress` in AWS.
pub(crate) struct Desired<'a> {
    pub tags: OwnershipTags<'a>,
    /// Name of the load balancer.
    pub name: String,
    /// `None` once the `MyIngress` is deleted.
    pub load_balancer: Option<DesiredLoadBalancer>,
    /// Keys of the spec's tags.
    pub managed_tag_keys: Vec<String>,
    /// `None` if the spec is too large to read.
    pub listeners: Option<Vec<ListenerSpec>>,
}

impl<'a> Desired<'a> {
    pub fn of(ingress: &MyIngress, tags: OwnershipTags<'a>) -> Self {
        let spec = &ingress.spec;
        let is_deleted = ingress.metadata.deletion_timestamp.is_some();
        Self {
            tags,
            name: name(ingress),
            load_balancer: (!is_deleted).then(|| desired(ingress, &tags)),
            managed_tag_keys: spec.tags.keys().cloned().collect(),
            listeners: spec.oversized.is_none().then(|| spec.listeners.clone()),
        }
    }

    pub fn listeners(&self) -> &[ListenerSpec] {
        self.listeners.as_deref().unwrap_or_default()
    }
}

fn name(ingress: &MyIngress) -> String {
    format!("{}{NAME_SUFFIX}", ingress.name_any())
}

/// Checks a `MyIngress`: an older object may break rules of the CRD.
///
/// # Errors
/// Returns the field, the problem and what to write instead.
pub fn check(ingress: &MyIngress) -> Result<(), String> {
    let spec = &ingress.spec;
    spec.check_size()?;
    let refuse = |path: &str, rule: &str| Err(format!("{path}: {rule}"));
    if !is_name(&ingress.name_any()) {
        return refuse("metadata.name", NAME_RULE);
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
        ("dualstack-without-public-ipv4", "internal") => {
            return refuse("spec.ipAddressType", PUBLIC_ONLY);
        }
        ("ipv4" | "dualstack" | "dualstack-without-public-ipv4", _) => {}
        _ => return refuse("spec.ipAddressType", BAD_ADDRESSES),
    }
    for key in spec.tags.keys() {
        if key.is_empty() || key.chars().count() > 128 {
            return refuse("spec.tags", LONG_KEY);
        }
        if is_of_others(key) || key.starts_with("quartermaster.dev/") || key == MANAGED_BY.0 {
            return refuse("spec.tags", RESERVED_TAG);
        }
    }
    if spec
        .tags
        .iter()
        .any(|(key, value)| !is_tag(key) || !is_tag(value))
    {
        return refuse("spec.tags", BAD_TAG);
    }
    spec.listeners.iter().try_for_each(check_listener)
}

/// Returns whether the tag belongs to AWS, or shows that another controller owns the load balancer.
fn is_of_others(key: &str) -> bool {
    let key = key.to_lowercase();
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    let is_under = |parent: &str| {
        domain
            .strip_suffix(parent)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    key.starts_with("aws:") || is_under("k8s.aws") || is_under("kubernetes.io")
}

fn check_listener(listener: &ListenerSpec) -> Result<(), String> {
    let https = listener.protocol() == "HTTPS";
    let rule = match listener.protocol() {
        "HTTP" | "HTTPS" if https != listener.certificate_arn.is_some() => CERTIFICATE,
        "HTTP" if listener.ssl_policy.is_some() => POLICY,
        "HTTP" | "HTTPS" => return Ok(()),
        _ => BAD_PROTOCOL,
    };
    Err(format!("spec.listeners, port {}: {rule}", listener.port))
}

/// Returns the desired load balancer of a `MyIngress` that passes [`check`].
pub(crate) fn desired(ingress: &MyIngress, ownership: &OwnershipTags<'_>) -> DesiredLoadBalancer {
    let spec = &ingress.spec;
    let mut tags = ownership.tags();
    tags.extend(spec.tags.clone());
    DesiredLoadBalancer {
        name: name(ingress),
        scheme: spec.scheme().into(),
        ip_address_type: spec.ip_address_type.clone(),
        subnets: spec.subnets.iter().cloned().collect(),
        security_groups: spec.security_groups.iter().cloned().collect(),
        tags,
    }
}

/// Returns the message about a load balancer that cannot be changed into the desired one.
pub(crate) fn incompatibility(
    load_balancer: &LoadBalancer,
    desired: &DesiredLoadBalancer,
) -> Option<String> {
    let name = &desired.name;
    let LoadBalancer { kind, scheme, .. } = load_balancer;
    if kind != "application" {
        return Some(format!(
            "the type of load balancer {name} is {kind}, and the operator manages only type application: delete it, or create this MyIngress \
             again under another name"
        ));
    }
    (*scheme != desired.scheme).then(|| {
        format!(
            "the scheme of load balancer {name} is {scheme} and cannot change: create this MyIngress again with scheme: {scheme}, or \
             delete the load balancer"
        )
    })
}

fn is_name(name: &str) -> bool {
    name.len() <= 32 - NAME_SUFFIX.len()
        && is_dns_label(name)
        && !format!("{name}-").starts_with("internal-")
}

fn is_tag(text: &str) -> bool {
    text.chars()
        .all(|c| c.is_alphanumeric() || c == ' ' || "_.:/=+-@".contains(c))
}

fn is_id(id: &str, prefix: &str) -> bool {
    id.strip_prefix(prefix).is_some_and(|rest| {
        !rest.is_empty()
            && rest
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_runtime::ownership::Owner;
    use rstest::rstest;
    use serde_json::{Value, from_value, json};

    use super::*;

    fn ingress(name: &str, spec: &Value) -> MyIngress {
        let metadata = json!({ "namespace": "default", "name": name, "uid": "u" });
        from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
    }

    fn spec(more: &[(&str, Value)]) -> Value {
        let mut spec = json!({ "subnets": ["subnet-abc", "subnet-def"] });
        for (name, value) in more {
            spec[name] = value.clone();
        }
        spec
    }

    /// Returns a list with one listener.
    fn listener(more: &Value) -> Value {
        let mut listener = json!({ "port": 80, "service": { "name": "web", "port": 80 } });
        for (name, value) in more.as_object().unwrap() {
            listener[name] = value.clone();
        }
        json!([listener])
    }

    #[test]
    fn documents_sample() {
        let sample = ingress("myapp", &spec(&[("scheme", json!("internet-facing"))]));
        assert_eq!(check(&sample), Ok(()));
        let owner = Owner::of(&sample).unwrap();
        insta::assert_debug_snapshot!(desired(
            &sample,
            &OwnershipTags {
                owner: &owner,
                cluster: "c"
            }
        ));
    }

    #[test]
    fn spec_with_all_fields() {
        let full = ingress(
            "web",
            &spec(&[
                ("scheme", json!("internal")),
                ("securityGroups", json!(["sg-2", "sg-1"])),
                ("ipAddressType", json!("dualstack")),
                ("tags", json!({ "team": "shop" })),
            ]),
        );
        assert_eq!(check(&full), Ok(()));
        let secure = json!({ "protocol": "HTTPS", "certificateArn": "arn:1", "sslPolicy": "p" });
        for listeners in [listener(&json!({})), listener(&secure)] {
            assert_eq!(
                check(&ingress("web", &spec(&[("listeners", listeners)]))),
                Ok(())
            );
        }
        let owner = Owner::of(&full).unwrap();
        insta::assert_debug_snapshot!(desired(
            &full,
            &OwnershipTags {
                owner: &owner,
                cluster: "c"
            }
        ));
    }

    #[rstest]
    #[case::name("a.b", &[], "metadata.name: choose a name")]
    #[case::name_of_29("aaaaaaaaaaaaaaaaaaaaaaaaaaaaa", &[], "metadata.name: choose a name")]
    #[case::internal("internal", &[], "metadata.name: choose a name")]
    #[case::one_subnet("web", &[("subnets", json!(["subnet-1"]))], "spec.subnets: give at least two")]
    #[case::twice("web", &[("subnets", json!(["subnet-1", "subnet-1"]))], "spec.subnets: give at least two")]
    #[case::no_id("web", &[("subnets", json!(["subnet-1", "a"]))], "spec.subnets: write the IDs")]
    #[case::scheme("web", &[("scheme", json!("public"))], "spec.scheme: write scheme:")]
    #[case::groups("web", &[("securityGroups", json!(["default"]))], "spec.securityGroups: write the IDs")]
    #[case::addresses("web", &[("ipAddressType", json!("ipv6"))], "spec.ipAddressType: write")]
    #[case::public("web", &[("scheme", json!("internal")), ("ipAddressType", json!("dualstack-without-public-ipv4"))],
        "spec.ipAddressType: ipAddressType: dualstack-without-public-ipv4 needs")]
    #[case::tag("web", &[("tags", json!({ "aws:x": "" }))], "spec.tags: choose other keys")]
    #[case::reserved_tag("web", &[("tags", json!({ "ManagedBy": "me" }))], "spec.tags: choose other keys")]
    #[case::aws_tag("web", &[("tags", json!({ "AWS:x": "" }))], "spec.tags: choose other keys")]
    #[case::tag_of_a_controller("web", &[("tags", json!({ "elbv2.k8s.aws/cluster": "c" }))], "spec.tags: choose other keys")]
    #[case::tag_of_kubernetes("web", &[("tags", json!({ "Kubernetes.io/x": "c" }))], "spec.tags: choose other keys")]
    #[case::odd_tag("web", &[("tags", json!({ "a": "b;c" }))], "spec.tags: write tags of letters")]
    #[case::protocol("web", &[("listeners", listener(&json!({ "protocol": "TCP" })))], "spec.listeners, port 80: write protocol: HTTP")]
    #[case::bare_https("web", &[("listeners", listener(&json!({ "protocol": "HTTPS" })))],
        "spec.listeners, port 80: protocol: HTTPS needs certificateArn")]
    #[case::certificate("web", &[("listeners", listener(&json!({ "certificateArn": "arn:1" })))],
        "spec.listeners, port 80: protocol: HTTPS needs certificateArn")]
    #[case::policy("web", &[("listeners", listener(&json!({ "sslPolicy": "p" })))], "spec.listeners, port 80: sslPolicy needs")]
    #[case::long_tag("web", &[("tags", json!({ "": "" }))], "spec.tags: write tags whose keys")]
    fn invalid_spec_is_rejected(
        #[case] name: &str,
        #[case] more: &[(&str, Value)],
        #[case] expected: &str,
    ) {
        let message = check(&ingress(name, &spec(more))).unwrap_err();
        assert!(message.starts_with(expected), "{message}");
    }
}
