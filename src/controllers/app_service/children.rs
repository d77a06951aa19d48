//! Children of an app: the state that the cache keeps of them, and their exceptions to server-side apply.

use std::collections::BTreeSet;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ContainerPort, Service, ServicePort};
use kube::core::Status;
use qm_api::app_service::TCP;
use qm_runtime::children::Quirks;
use qm_runtime::drift::Advice;

use super::status::Rollout;

/// Changes to make instead of editing an app's objects, by field.
pub const ADVICE: Advice = &[(
    "spec.replicas",
    "scale the AppService instead (spec.size, spec.autoscaling, kubectl scale, or a HorizontalPodAutoscaler whose \
     scaleTargetRef is this AppService)",
)];

/// Summary of a Deployment, as the cache keeps it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeploymentState {
    pub rollout: Rollout,
    /// Image of a container that has a port twice, and its ports in order of their numbers.
    pub(super) twins: Option<(String, Vec<i32>)>,
}

/// Returns whether the requested node port is in use, or all of them are.
pub(super) fn is_node_port_taken(status: &Status) -> bool {
    status
        .message
        .contains("provided port is already allocated")
        || status.message.contains("failed to allocate a nodePort")
}

impl DeploymentState {
    /// Extracts the summary.
    pub fn of(deployment: &Deployment) -> Self {
        let pod = deployment
            .spec
            .as_ref()
            .and_then(|spec| spec.template.spec.as_ref());
        let container = pod.and_then(|pod| pod.containers.first());
        let ports = container
            .and_then(|container| container.ports.as_deref())
            .unwrap_or_default();
        let twins = container
            .filter(|_| has_twins(ports))
            .map(|container| (container.image.clone().unwrap_or_default(), numbers(ports)));
        Self {
            rollout: Rollout::of(deployment),
            twins,
        }
    }
}

pub(super) fn numbers(ports: &[ContainerPort]) -> Vec<i32> {
    let mut numbers: Vec<_> = ports.iter().map(|port| port.container_port).collect();
    numbers.sort_unstable();
    numbers
}

/// Returns whether a port appears twice, which server-side apply cannot express.
pub(super) fn has_twins(ports: &[ContainerPort]) -> bool {
    let protocol = |port: &ContainerPort| port.protocol.clone().unwrap_or_else(|| TCP.into());
    let once: BTreeSet<_> = ports
        .iter()
        .map(|port| (port.container_port, protocol(port)))
        .collect();
    once.len() < ports.len()
}

/// Returns what server-side apply does not know of Services. The fields at the paths of `released` are released.
pub(super) fn service_quirks<'a>(released: &'a [&'a [&'a str]]) -> Quirks<'a, Service> {
    Quirks {
        released,
        lost: lost_a_port,
        release: release_ports,
    }
}

/// Removes the node ports that the live Service holds: the apiserver would report them as allocated.
fn release_ports(desired: &mut Service, live: &Service) {
    let held: Vec<_> = ports(live).filter_map(|port| port.node_port).collect();
    for port in desired
        .spec
        .iter_mut()
        .flat_map(|spec| spec.ports.iter_mut().flatten())
    {
        port.node_port = port.node_port.filter(|number| !held.contains(number));
    }
}

/// Returns whether the Service has a node port other than the one sent. An apiserver with a stale cache accepts the new
/// port and keeps the old one.
fn lost_a_port(sent: &Service, live: &Service) -> bool {
    let is_live = |port: &ServicePort| {
        ports(live).any(|it| {
            (it.port, &it.protocol, it.node_port) == (port.port, &port.protocol, port.node_port)
        })
    };
    ports(sent).any(|port| port.node_port.is_some() && !is_live(port))
}

pub(super) fn ports(service: &Service) -> impl Iterator<Item = &ServicePort> {
    service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten())
}
