//! The stored resources, bypassing rules, faults and journal.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};

use super::Aws;
use super::form::Form;
use super::layer::Layer;
use super::rules;
use super::state::State;
use super::xml::Element;

/// A load balancer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancer {
    /// The name.
    pub name: String,
    /// The ARN.
    pub arn: String,
    /// The DNS name.
    pub dns: String,
    /// `internet-facing` or `internal`.
    pub scheme: String,
    /// `provisioning`, `active`, `active_impaired` or `failed`.
    pub state: String,
    /// The VPC's id.
    pub vpc: String,
    /// Subnets by name, sorted.
    pub subnets: Vec<String>,
    /// Security groups, sorted.
    pub security_groups: Vec<String>,
    /// `ipv4` or `dualstack`.
    pub ip_address_type: String,
    /// Tags.
    pub tags: BTreeMap<String, String>,
    /// Whether deletion protection is on.
    pub deletion_protection: bool,
}

/// A target group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetGroup {
    /// The name.
    pub name: String,
    /// The ARN.
    pub arn: String,
    /// `HTTP` or `HTTPS`.
    pub protocol: String,
    /// Port of targets that name none.
    pub port: u16,
    /// The VPC's id.
    pub vpc: String,
    /// `instance` or `ip`.
    pub target_type: String,
    /// Path of health checks.
    pub health_check_path: String,
    /// Port of health checks; `traffic-port` is the target's own.
    pub health_check_port: String,
    /// Tags.
    pub tags: BTreeMap<String, String>,
    /// ARNs of the load balancers whose listeners forward to the group.
    pub balancers: Vec<String>,
}

/// A listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The ARN.
    pub arn: String,
    /// The port.
    pub port: u16,
    /// `HTTP` or `HTTPS`.
    pub protocol: String,
    /// ARN of the certificate.
    pub certificates: Vec<String>,
    /// Name of the TLS policy, with HTTPS.
    pub ssl_policy: String,
    /// ARN of the target group of the default action; empty without a forward.
    pub target_group: String,
    /// Tags.
    pub tags: BTreeMap<String, String>,
}

/// A target in a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Instance id or IP address.
    pub id: String,
    /// The port.
    pub port: u16,
    /// `healthy`, `unhealthy`, `initial`, `unused` or `draining`.
    pub health: String,
    /// AWS's reason of the health, such as `Target.FailedHealthChecks`.
    pub reason: String,
}

impl Aws {
    /// Returns all load balancers, by name.
    pub async fn balancers(&self) -> Result<Vec<Balancer>> {
        let layer = self.layer.clone();
        let read = async move {
            let mut found = layer
                .read("DescribeLoadBalancers", &[("PageSize", "1000000")])
                .await?;
            let state = layer.state();
            rules::correct_balancers(&state, &mut found);
            let mut balancers: Vec<Balancer> =
                found.iter().map(|found| balancer(&state, found)).collect();
            balancers.sort_by(|one, other| one.name.cmp(&other.name));
            Ok(balancers)
        };
        self.layer.run(read).await
    }

    /// Returns the load balancer with this name, if any.
    pub async fn balancer(&self, name: &str) -> Result<Option<Balancer>> {
        Ok(self
            .balancers()
            .await?
            .into_iter()
            .find(|balancer| balancer.name == name))
    }

    /// Returns all target groups, by name.
    pub async fn target_groups(&self) -> Result<Vec<TargetGroup>> {
        let layer = self.layer.clone();
        let read = async move {
            let found = layer.read("DescribeTargetGroups", &[]).await?;
            let state = layer.state();
            let mut groups = found
                .iter()
                .map(|found| group(&state, found))
                .collect::<Result<Vec<TargetGroup>>>()?;
            groups.sort_by(|one, other| one.name.cmp(&other.name));
            Ok(groups)
        };
        self.layer.run(read).await
    }

    /// Returns the listeners of a load balancer, by port; none if the load balancer does not exist.
    pub async fn listeners(&self, balancer: &str) -> Result<Vec<Listener>> {
        if !self.layer.state().balancers.contains_key(balancer) {
            return Ok(Vec::new());
        }
        let (layer, balancer) = (self.layer.clone(), balancer.to_owned());
        let read = async move {
            let found = layer
                .read("DescribeListeners", &[("LoadBalancerArn", &balancer)])
                .await?;
            let state = layer.state();
            let mut listeners = found
                .iter()
                .map(|found| listener(&state, found))
                .collect::<Result<Vec<Listener>>>()?;
            listeners.sort_by_key(|listener| listener.port);
            Ok(listeners)
        };
        self.layer.run(read).await
    }

    /// Returns the targets of a group, including draining ones, sorted.
    pub fn targets(&self, group: &str) -> Vec<Target> {
        let targets = self.layer.state().targets(group).into_iter();
        targets
            .map(|((id, port), health)| Target {
                id,
                port,
                health: health.state,
                reason: health.reason,
            })
            .collect()
    }

    /// Returns the targets that a request to this port of a load balancer (by name or ARN) may reach. These are the
    /// healthy targets of the listener's group, or as in AWS all `unhealthy` ones if none is healthy. Empty without a
    /// listener, or before the load balancer is active.
    pub fn route(&self, balancer: &str, port: u16) -> Vec<(String, u16)> {
        let mut state = self.layer.state();
        let found = state
            .balancers
            .iter()
            .find(|(arn, known)| *arn == balancer || known.name == balancer);
        let Some((arn, _)) =
            found.filter(|(_, known)| state.balancer_state(known).0.starts_with("active"))
        else {
            return Vec::new();
        };
        let listening = state
            .listeners
            .values()
            .find(|listener| listener.balancer == *arn && listener.port == port);
        let groups = listening
            .map(|listener| listener.groups.clone())
            .unwrap_or_default();
        let targets: Vec<_> = groups
            .iter()
            .flat_map(|group| state.targets(group))
            .collect();
        let in_state = |wanted: &str| {
            let matching = targets.iter().filter(|(_, health)| health.state == wanted);
            matching
                .map(|(target, _)| target.clone())
                .collect::<Vec<_>>()
        };
        let healthy = in_state("healthy");
        if healthy.is_empty() {
            in_state("unhealthy")
        } else {
            healthy
        }
    }
}

impl Layer {
    async fn read(&self, action: &str, params: &[(&str, &str)]) -> Result<Vec<Element>> {
        Ok(rules::members(
            self.moto.elb(&Form::elb(action, params)).await?,
        ))
    }
}

fn balancer(state: &State, found: &Element) -> Balancer {
    let get = |name: &str| found.get(name).to_owned();
    let arn = get("LoadBalancerArn");
    let zones = found
        .members("AvailabilityZones")
        .iter()
        .map(|zone| state.network.name_of(zone.get("SubnetId")));
    Balancer {
        name: get("LoadBalancerName"),
        dns: get("DNSName"),
        scheme: get("Scheme"),
        state: found
            .child("State")
            .map(|state| state.get("Code").to_owned())
            .unwrap_or_default(),
        vpc: get("VpcId"),
        subnets: sorted(zones),
        security_groups: sorted(
            found
                .members("SecurityGroups")
                .iter()
                .map(|group| group.text.clone()),
        ),
        ip_address_type: get("IpAddressType"),
        tags: state.tags.get(&arn).cloned().unwrap_or_default(),
        deletion_protection: state
            .balancers
            .get(&arn)
            .is_some_and(|balancer| balancer.protected),
        arn,
    }
}

fn group(state: &State, found: &Element) -> Result<TargetGroup> {
    let get = |name: &str| found.get(name).to_owned();
    let arn = get("TargetGroupArn");
    Ok(TargetGroup {
        name: get("TargetGroupName"),
        protocol: get("Protocol"),
        port: found.get("Port").parse().context("a target group's port")?,
        vpc: get("VpcId"),
        target_type: get("TargetType"),
        health_check_path: get("HealthCheckPath"),
        health_check_port: get("HealthCheckPort"),
        tags: state.tags.get(&arn).cloned().unwrap_or_default(),
        balancers: state.balancers_of(&arn).into_iter().collect(),
        arn,
    })
}

fn listener(state: &State, found: &Element) -> Result<Listener> {
    let mut found = found.clone();
    rules::correct_listener(&mut found);
    let get = |name: &str| found.get(name).to_owned();
    let arn = get("ListenerArn");
    let action = found.members("DefaultActions").first();
    Ok(Listener {
        port: found.get("Port").parse().context("a listener's port")?,
        protocol: get("Protocol"),
        certificates: found
            .members("Certificates")
            .iter()
            .map(|one| one.get("CertificateArn").to_owned())
            .collect(),
        ssl_policy: get("SslPolicy"),
        target_group: action
            .map(|action| forwards_to(action).to_owned())
            .unwrap_or_default(),
        tags: state.tags.get(&arn).cloned().unwrap_or_default(),
        arn,
    })
}

fn forwards_to(action: &Element) -> &str {
    let plain = action.get("TargetGroupArn");
    let first = action
        .child("ForwardConfig")
        .and_then(|config| config.members("TargetGroups").first());
    if plain.is_empty() {
        first
            .map(|group| group.get("TargetGroupArn"))
            .unwrap_or_default()
    } else {
        plain
    }
}

fn sorted(items: impl Iterator<Item = String>) -> Vec<String> {
    let mut items: Vec<String> = items.collect();
    items.sort();
    items
}
