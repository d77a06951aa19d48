//! Where a listener is to lead, and how that is. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Service;
use thiserror::Error;

use super::standing::TARGETS_UNHEALTHY;
use crate::api::my_ingress::{Listener, ListenerStatus};
use crate::cloud::Balancer;
use crate::cloud::listeners::{Health, Target};

/// Why it is not known where a listener is to lead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    /// There is no such Service.
    #[error("Service {0} does not exist: create it")]
    ServiceNotFound(String),
    /// The Service has no such port.
    #[error("Service {0} has no port {1} over TCP: {2}")]
    ServicePortNotFound(String, u16, String),
    /// The Service has no ports on the nodes.
    #[error("Service {0} has no port on the nodes: write type: NodePort in it, or type: LoadBalancer")]
    NoNodePort(String),
    /// No node can take traffic.
    #[error(
        "no node has an instance: their spec.providerID does not begin with aws://, or they all have the label \
         node.kubernetes.io/exclude-from-external-load-balancers"
    )]
    NoNodes,
    /// The nodes are not known.
    #[error("the nodes may not be listed: {0}")]
    NodesUnknown(String),
}

impl Problem {
    /// The reason in the status.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::ServiceNotFound(_) => "ServiceNotFound",
            Self::ServicePortNotFound(..) => "ServicePortNotFound",
            Self::NoNodePort(_) => "NoNodePort",
            Self::NoNodes => "NoNodes",
            Self::NodesUnknown(_) => "NodesUnknown",
        }
    }
}

/// Where a listener is to lead: each node's instance, at the Service's port there.
///
/// # Errors
/// Why that is not known.
pub fn find(
    service: &Option<Service>,
    listener: &Listener,
    instances: &Result<BTreeSet<String>, String>,
) -> Result<BTreeSet<Target>, Problem> {
    let (name, port) = (&listener.service.name, listener.service.port);
    let Some(service) = service else { return Err(Problem::ServiceNotFound(name.clone())) };
    let spec = service.spec.as_ref();
    let ports = spec.and_then(|spec| spec.ports.as_deref()).unwrap_or_default();
    let tcp = |it: &&k8s_openapi::api::core::v1::ServicePort| it.protocol.as_deref().is_none_or(|it| it == "TCP");
    let Some(found) = ports.iter().filter(tcp).find(|it| it.port == i32::from(port)) else {
        let there: Vec<_> = ports.iter().filter(tcp).map(|it| it.port.to_string()).collect();
        let there = if there.is_empty() { "it has none".into() } else { format!("it has {}", there.join(", ")) };
        return Err(Problem::ServicePortNotFound(name.clone(), port, there));
    };
    let Some(node_port) = found.node_port.and_then(|it| u16::try_from(it).ok()).filter(|it| *it != 0) else {
        return Err(Problem::NoNodePort(name.clone()));
    };
    let instances = instances.as_ref().map_err(|why| Problem::NodesUnknown(why.clone()))?;
    if instances.is_empty() {
        return Err(Problem::NoNodes);
    }
    Ok(instances.iter().map(|instance| Target { instance: instance.clone(), port: node_port }).collect())
}

/// The targets that are missing, and those that are too many.
pub fn difference(registered: &[Health], wanted: &BTreeSet<Target>) -> (BTreeSet<Target>, BTreeSet<Target>) {
    // One that drains is on its way out; to stay it is registered again.
    let there: BTreeSet<_> =
        registered.iter().filter(|it| it.state != "draining").map(|it| it.target.clone()).collect();
    (wanted - &there, &there - wanted)
}

/// How a listener is whose group had these targets.
pub fn status(port: u16, registered: &[Health], wanted: &BTreeSet<Target>, balancer: &Balancer) -> ListenerStatus {
    let health: BTreeMap<_, _> = registered.iter().map(|it| (&it.target, it)).collect();
    let is_healthy = |target: &&Target| health.get(target).is_some_and(|it| it.state == "healthy");
    let healthy = wanted.iter().filter(is_healthy).count();
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let (mut reason, mut message) = (String::new(), String::new());
    if healthy == 0 {
        let why: BTreeSet<_> = wanted.iter().filter_map(|target| health.get(target)).map(|it| why(it)).collect();
        let why = if why.is_empty() { "initial".into() } else { why.into_iter().collect::<Vec<_>>().join(", ") };
        let node_port = wanted.first().map(|target| target.port).unwrap_or_default();
        let groups: Vec<_> = balancer.security_groups.iter().map(String::as_str).collect();
        reason = TARGETS_UNHEALTHY.into();
        message = format!(
            "no target of port {port} is healthy ({why}): see that the Service has Pods which answer at the health check's path, and that \
             a security group of the nodes lets TCP {node_port} in from {}",
            groups.join(", ")
        );
    }
    ListenerStatus { port, healthy: count(healthy), total: count(wanted.len()), reason, message }
}

fn why(health: &Health) -> String {
    if health.reason.is_empty() { health.state.clone() } else { health.reason.clone() }
}
