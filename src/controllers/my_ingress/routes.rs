//! Routes of a listener: each node's instance, at the node port of the Service. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Service, ServicePort};
use qm_api::my_ingress::ListenerSpec;
use qm_aws::listeners::{InstanceTarget, TargetHealth};

use super::status::{
    NO_NODE_PORT, NO_NODES, NODES_UNREADABLE, SERVICE_NOT_FOUND, SERVICE_PORT_NOT_FOUND,
};

/// Why a listener has no route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RouteProblem {
    pub reason: &'static str,
    pub message: String,
}

fn problem<T>(reason: &'static str, message: String) -> Result<T, RouteProblem> {
    Err(RouteProblem { reason, message })
}

/// Returns the targets of a listener. `nodes` are the instances of the nodes, or the reason that the nodes are unknown.
pub(crate) fn route(
    service: Option<&Service>,
    listener: &ListenerSpec,
    nodes: Option<&Result<BTreeSet<String>, String>>,
) -> Result<BTreeSet<InstanceTarget>, RouteProblem> {
    let (name, port) = (&listener.service.name, listener.service.port);
    let Some(service) = service else {
        let message = format!("Service {name} does not exist: create it");
        return problem(SERVICE_NOT_FOUND, message);
    };
    let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref());
    let ports: Vec<_> = ports
        .into_iter()
        .flatten()
        .filter(|it| is_tcp(it))
        .collect();
    let Some(found) = ports.iter().find(|it| it.port == i32::from(port)) else {
        let existing: Vec<_> = ports.iter().map(|it| it.port.to_string()).collect();
        let existing = match existing.as_slice() {
            [] => "none".into(),
            existing => existing.join(", "),
        };
        let message = format!("Service {name} has no TCP port {port}: it has {existing}");
        return problem(SERVICE_PORT_NOT_FOUND, message);
    };
    let Some(node_port) = node_port_of(service, found).filter(|it| *it != 0) else {
        let advice = if type_of(service) == Some("LoadBalancer") {
            "set spec.allocateLoadBalancerNodePorts: true, or write type: NodePort in it"
        } else {
            "write type: NodePort or type: LoadBalancer in it"
        };
        let message = format!("Service {name} has no node port: {advice}");
        return problem(NO_NODE_PORT, message);
    };
    let nodes = match nodes {
        Some(Ok(nodes)) => nodes,
        unknown => {
            let why = unknown.and_then(|it| it.as_ref().err());
            let why = why.map_or("the list is in progress", String::as_str);
            return problem(NODES_UNREADABLE, format!("the nodes are unknown: {why}"));
        }
    };
    if nodes.is_empty() {
        let message = "no node can receive traffic: check that spec.providerID of the nodes names an AWS instance, and \
                       that the nodes lack the label node.kubernetes.io/exclude-from-external-load-balancers";
        return problem(NO_NODES, message.into());
    }
    let target = |instance: &String| InstanceTarget {
        instance: instance.clone(),
        port: node_port,
    };
    Ok(nodes.iter().map(target).collect())
}

/// Returns the targets that no longer lead to the Service: Kubernetes may give a released node port to another Service.
pub(crate) fn released(
    service: Option<&Service>,
    registered: &[TargetHealth],
) -> BTreeSet<InstanceTarget> {
    let node_ports: BTreeSet<_> = service
        .into_iter()
        .flat_map(|service| {
            let ports = service.spec.as_ref().and_then(|spec| spec.ports.as_deref());
            let ports = ports.unwrap_or_default().iter();
            ports.filter_map(|port| node_port_of(service, port))
        })
        .collect();
    let active = registered.iter().filter(|it| !it.is_draining());
    active
        .map(|it| &it.target)
        .filter(|target| !node_ports.contains(&target.port))
        .cloned()
        .collect()
}

/// Returns the node port that the apiserver has allocated. It does not check the number in a Service of another type, such
/// as `ExternalName`: that may be the node port of another Service, or a port of the node itself.
fn node_port_of(service: &Service, port: &ServicePort) -> Option<u16> {
    let is_allocated = matches!(type_of(service), None | Some("NodePort" | "LoadBalancer"));
    u16::try_from(port.node_port.filter(|_| is_allocated)?).ok()
}

fn type_of(service: &Service) -> Option<&str> {
    service.spec.as_ref()?.type_.as_deref()
}

fn is_tcp(port: &ServicePort) -> bool {
    port.protocol
        .as_deref()
        .is_none_or(|protocol| protocol == "TCP")
}

/// Changes from the registered to the desired targets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TargetChange {
    pub add: BTreeSet<InstanceTarget>,
    pub remove: BTreeSet<InstanceTarget>,
    /// Targets to remove once the health of the desired ones is known: until then no others serve traffic.
    pub hold: BTreeSet<InstanceTarget>,
}

impl TargetChange {
    /// Creates the change. Kubernetes may give the node ports of `released` targets to another Service, so none is held.
    pub fn of(
        registered: &[TargetHealth],
        desired: &BTreeSet<InstanceTarget>,
        released: &BTreeSet<InstanceTarget>,
    ) -> Self {
        // A draining target that is to stay is registered again.
        let active = || registered.iter().filter(|it| !it.is_draining());
        let healthy = || active().filter(|it| it.state == "healthy");
        let targets: BTreeSet<_> = active().map(|it| it.target.clone()).collect();
        let (add, extra) = (desired - &targets, &targets - desired);
        let is_served = healthy().any(|it| desired.contains(&it.target));
        let is_initial = |it: &TargetHealth| it.state == "initial" && desired.contains(&it.target);
        let is_open = !add.is_empty() || registered.iter().any(is_initial);
        let only_extra_serve = healthy().any(|it| extra.contains(&it.target));
        let (remove, hold) = if !is_served && is_open && only_extra_serve {
            (&extra & released, &extra - released)
        } else {
            (extra, BTreeSet::new())
        };
        Self { add, remove, hold }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_api::my_ingress::ServiceRef;
    use rstest::rstest;
    use serde_json::{Value, from_value, json};

    use super::*;

    fn target(instance: &str, port: u16) -> InstanceTarget {
        InstanceTarget {
            instance: instance.into(),
            port,
        }
    }

    fn targets(all: &[(&str, u16)]) -> BTreeSet<InstanceTarget> {
        all.iter()
            .map(|(instance, port)| target(instance, *port))
            .collect()
    }

    fn health(all: &[(&str, u16, &str)]) -> Vec<TargetHealth> {
        let one = |(instance, port, state): &(&str, u16, &str)| {
            let reason = if *state == "unhealthy" {
                "Target.Timeout"
            } else {
                ""
            };
            let description = String::new();
            TargetHealth {
                target: target(instance, *port),
                state: (*state).into(),
                reason: reason.into(),
                description,
            }
        };
        all.iter().map(one).collect()
    }

    fn listener() -> ListenerSpec {
        let service = ServiceRef {
            name: "web".into(),
            port: 80,
        };
        ListenerSpec {
            port: 443,
            service,
            ..ListenerSpec::default()
        }
    }

    fn nodes(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    fn service(ports: &Value) -> Service {
        from_value(json!({ "spec": { "ports": ports } })).unwrap()
    }

    #[test]
    fn released_node_ports() {
        let registered = health(&[
            ("i-1", 30_001, "healthy"),
            ("i-1", 30_002, "unhealthy"),
            ("i-2", 30_001, "draining"),
        ]);
        let other_port = service(&json!([{ "port": 81, "nodePort": 30_001 }]));
        assert_eq!(
            released(Some(&other_port), &registered),
            targets(&[("i-1", 30_002)])
        );
        let inside = service(&json!([{ "port": 80 }]));
        for service in [Some(&inside), None] {
            assert_eq!(
                released(service, &registered),
                targets(&[("i-1", 30_001), ("i-1", 30_002)])
            );
        }
    }

    #[test]
    fn route_is_each_instance_at_the_node_port() {
        let service = service(&json!([
            { "port": 80, "protocol": "UDP", "nodePort": 30_001 },
            { "port": 81, "nodePort": 30_002 },
            { "port": 80, "nodePort": 30_003 },
        ]));
        let found = route(
            Some(&service),
            &listener(),
            Some(&Ok(nodes(&["i-1", "i-2"]))),
        );
        assert_eq!(found, Ok(targets(&[("i-1", 30_003), ("i-2", 30_003)])));
    }

    #[test]
    fn number_that_is_not_allocated_is_no_node_port() {
        let mut service = service(&json!([{ "port": 80, "nodePort": 30_001 }]));
        service.spec.as_mut().unwrap().type_ = Some("ExternalName".into());
        let found = route(Some(&service), &listener(), Some(&Ok(nodes(&["i-1"]))));
        assert_eq!(found.unwrap_err().reason, NO_NODE_PORT);
        let registered = health(&[("i-1", 30_001, "healthy")]);
        assert_eq!(
            released(Some(&service), &registered),
            targets(&[("i-1", 30_001)])
        );
    }

    #[rstest]
    #[case::no_service(None, Ok(nodes(&["i-1"])), "ServiceNotFound", "Service web does not exist: create it")]
    #[case::no_port(Some(json!([])), Ok(nodes(&["i-1"])), "ServicePortNotFound", "Service web has no TCP port 80: it has none")]
    #[case::another_port(Some(json!([{ "port": 81 }, { "port": 82 }])), Ok(nodes(&["i-1"])), "ServicePortNotFound",
        "Service web has no TCP port 80: it has 81, 82")]
    #[case::udp(Some(json!([{ "port": 80, "protocol": "UDP", "nodePort": 30_001 }])), Ok(nodes(&["i-1"])), "ServicePortNotFound",
        "Service web has no TCP port 80: it has none")]
    #[case::inside_only(Some(json!([{ "port": 80 }])), Ok(nodes(&["i-1"])), "NoNodePort", "Service web has no node port: write")]
    #[case::no_nodes(Some(json!([{ "port": 80, "nodePort": 30_001 }])), Ok(nodes(&[])), "NoNodes", "no node can receive traffic")]
    #[case::unlisted(Some(json!([{ "port": 80, "nodePort": 30_001 }])), Err("no".into()), "NodesUnreadable", "the nodes are unknown: no")]
    fn route_problems(
        #[case] ports: Option<Value>,
        #[case] nodes: Result<BTreeSet<String>, String>,
        #[case] reason: &str,
        #[case] expected: &str,
    ) {
        let service = ports.map(|ports| service(&ports));
        let problem = route(service.as_ref(), &listener(), Some(&nodes)).unwrap_err();
        assert_eq!(problem.reason, reason);
        assert!(problem.message.starts_with(expected), "{problem:?}");
    }

    #[test]
    fn load_balancer_may_have_no_node_port() {
        let mut service = service(&json!([{ "port": 80 }]));
        service.spec.as_mut().unwrap().type_ = Some("LoadBalancer".into());
        let problem = route(Some(&service), &listener(), Some(&Ok(nodes(&["i-1"])))).unwrap_err();
        assert_eq!(problem.reason, NO_NODE_PORT);
        let advice = "set spec.allocateLoadBalancerNodePorts: true, or write type: NodePort in it";
        assert!(problem.message.ends_with(advice), "{problem:?}");
    }

    type Few<'a> = &'a [(&'a str, u16)];

    /// Desired are `i-1` and `i-2` at 30001.
    #[rstest]
    #[case::new(&[], &[("i-1", 30_001), ("i-2", 30_001)], &[], &[])]
    #[case::unchanged(&[("i-1", 30_001, "healthy"), ("i-2", 30_001, "unhealthy")], &[], &[], &[])]
    #[case::draining(&[("i-1", 30_001, "healthy"), ("i-2", 30_001, "draining")], &[("i-2", 30_001)], &[], &[])]
    #[case::leaving(&[("i-1", 30_001, "healthy"), ("i-2", 30_001, "initial"), ("i-9", 30_001, "draining")], &[], &[], &[])]
    #[case::one_too_many(&[("i-1", 30_001, "healthy"), ("i-2", 30_001, "initial"), ("i-9", 30_001, "healthy")], &[], &[("i-9", 30_001)],
        &[])]
    #[case::only_extra_ones_serve(&[("i-1", 30_000, "healthy"), ("i-2", 30_000, "unhealthy")], &[("i-1", 30_001), ("i-2", 30_001)], &[],
        &[("i-1", 30_000), ("i-2", 30_000)])]
    #[case::still_only_extra_ones(&[("i-1", 30_000, "healthy"), ("i-1", 30_001, "initial"), ("i-2", 30_001, "unhealthy")], &[], &[],
        &[("i-1", 30_000)])]
    #[case::no_hope(&[("i-1", 30_000, "healthy"), ("i-1", 30_001, "unhealthy"), ("i-2", 30_001, "unhealthy")], &[],
        &[("i-1", 30_000)], &[])]
    #[case::none_serves(&[("i-1", 30_000, "unhealthy")], &[("i-1", 30_001), ("i-2", 30_001)], &[("i-1", 30_000)], &[])]
    fn target_changes(
        #[case] registered: &[(&str, u16, &str)],
        #[case] add: Few<'_>,
        #[case] remove: Few<'_>,
        #[case] hold: Few<'_>,
    ) {
        let desired = targets(&[("i-1", 30_001), ("i-2", 30_001)]);
        let expected = TargetChange {
            add: targets(add),
            remove: targets(remove),
            hold: targets(hold),
        };
        let released = BTreeSet::new();
        assert_eq!(
            TargetChange::of(&health(registered), &desired, &released),
            expected
        );
    }

    /// Another tenant's Service may get a released node port at any time.
    #[test]
    fn released_targets_are_not_held() {
        let registered = health(&[("i-1", 30_000, "healthy"), ("i-9", 30_001, "healthy")]);
        let desired = targets(&[("i-1", 30_001)]);
        let released = targets(&[("i-1", 30_000)]);
        let expected = TargetChange {
            add: desired.clone(),
            hold: targets(&[("i-9", 30_001)]),
            remove: released.clone(),
        };
        assert_eq!(TargetChange::of(&registered, &desired, &released), expected);
    }
}
