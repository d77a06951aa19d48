//! Where a listener is to lead, and how that is. Pure.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use qm_api::my_ingress::{Listener, ListenerStatus};
use qm_aws::listeners::{Health, Target};
use thiserror::Error;

use super::standing::{
    NO_NODE_PORT, NO_NODES, NODES_UNKNOWN, SERVICE_NOT_FOUND, SERVICE_PORT_NOT_FOUND,
    TARGETS_INITIAL, TARGETS_UNHEALTHY,
};

/// AWS' reasons that may come from a security group
/// (<https://docs.aws.amazon.com/elasticloadbalancing/latest/APIReference/API_TargetHealth.html>).
const MAY_BE_KEPT_OUT: [&str; 3] = [
    "Target.Timeout",
    "Target.FailedHealthChecks",
    "Target.ResponseCodeMismatch",
];

/// Why it is not known where a listener is to lead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Problem {
    /// There is no such Service.
    #[error("Service {0} does not exist: create it")]
    ServiceNotFound(String),
    /// The Service has no such port.
    #[error("Service {0} has no port {1} over TCP: {2}")]
    ServicePortNotFound(String, u16, String),
    /// The Service has no port on the nodes.
    #[error(
        "Service {0} has no port on the nodes: write type: NodePort in it, or type: LoadBalancer"
    )]
    NoNodePort(String),
    /// No node can take traffic.
    #[error(
        "no node can take traffic: their spec.providerID names no instance of AWS, or they have the label \
         node.kubernetes.io/exclude-from-external-load-balancers"
    )]
    NoNodes,
    /// The nodes are not known.
    #[error("the nodes are not known: {0}")]
    NodesUnknown(String),
}

impl Problem {
    /// The reason in the status.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::ServiceNotFound(_) => SERVICE_NOT_FOUND,
            Self::ServicePortNotFound(..) => SERVICE_PORT_NOT_FOUND,
            Self::NoNodePort(_) => NO_NODE_PORT,
            Self::NoNodes => NO_NODES,
            Self::NodesUnknown(_) => NODES_UNKNOWN,
        }
    }
}

/// Where a listener is to lead: each node's instance, at the Service's port there.
///
/// # Errors
/// Why that is not known.
pub fn find(
    service: Option<&Service>,
    listener: &Listener,
    instances: &Result<BTreeSet<String>, String>,
) -> Result<BTreeSet<Target>, Problem> {
    let (name, port) = (&listener.service.name, listener.service.port);
    let Some(service) = service else {
        return Err(Problem::ServiceNotFound(name.clone()));
    };
    let ports = service
        .spec
        .as_ref()
        .and_then(|spec| spec.ports.as_deref())
        .unwrap_or_default();
    let ports: Vec<_> = ports.iter().filter(|it| is_tcp(it)).collect();
    let Some(found) = ports.iter().find(|it| it.port == i32::from(port)) else {
        let there: Vec<_> = ports.iter().map(|it| it.port.to_string()).collect();
        let there = if there.is_empty() {
            "it has none".into()
        } else {
            format!("it has {}", there.join(", "))
        };
        return Err(Problem::ServicePortNotFound(name.clone(), port, there));
    };
    let Some(node_port) = found
        .node_port
        .and_then(|it| u16::try_from(it).ok())
        .filter(|it| *it != 0)
    else {
        return Err(Problem::NoNodePort(name.clone()));
    };
    let instances = instances
        .as_ref()
        .map_err(|why| Problem::NodesUnknown(why.clone()))?;
    if instances.is_empty() {
        return Err(Problem::NoNodes);
    }
    Ok(instances
        .iter()
        .map(|instance| Target {
            instance: instance.clone(),
            port: node_port,
        })
        .collect())
}

/// Returns the targets that no longer lead to the Service: Kubernetes may give a node port that it released to another one.
pub fn released(service: Option<&Service>, registered: &[Health]) -> BTreeSet<Target> {
    let ports = service
        .and_then(|service| service.spec.as_ref()?.ports.as_deref())
        .unwrap_or_default();
    let held: BTreeSet<_> = ports
        .iter()
        .filter_map(|port| u16::try_from(port.node_port?).ok())
        .collect();
    let there = registered
        .iter()
        .filter(|it| !it.is_draining())
        .map(|it| &it.target);
    there
        .filter(|target| !held.contains(&target.port))
        .cloned()
        .collect()
}

fn is_tcp(port: &ServicePort) -> bool {
    port.protocol
        .as_deref()
        .is_none_or(|protocol| protocol == "TCP")
}

/// What is to be done about the targets of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// These are missing.
    pub add: BTreeSet<Target>,
    /// These are too many.
    pub remove: BTreeSet<Target>,
    /// These are too many, and stay while it is not known how those are that are wanted: nobody else takes the traffic.
    pub hold: BTreeSet<Target>,
}

/// What is to be done so that a group has the targets that are wanted.
pub fn change(registered: &[Health], wanted: &BTreeSet<Target>) -> Change {
    // One that drains is on its way out; to stay it is registered again.
    let there = || registered.iter().filter(|it| !it.is_draining());
    let healthy = || {
        there()
            .filter(|it| it.state == "healthy")
            .map(|it| &it.target)
    };
    let there: BTreeSet<_> = there().map(|it| it.target.clone()).collect();
    let (add, extra) = (wanted - &there, &there - wanted);
    let served = healthy().any(|target| wanted.contains(target));
    let begins = |it: &Health| it.state == "initial" && wanted.contains(&it.target);
    let open = !add.is_empty() || registered.iter().any(begins);
    if served || !open || !healthy().any(|target| extra.contains(target)) {
        return Change {
            add,
            remove: extra,
            hold: BTreeSet::new(),
        };
    }
    Change {
        add,
        remove: BTreeSet::new(),
        hold: extra,
    }
}

/// How a listener is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Its port.
    pub port: u16,
    /// How many targets are healthy.
    pub healthy: usize,
    /// How many it is to have.
    pub total: usize,
    /// Why no traffic arrives; empty while some does.
    pub reason: &'static str,
    /// The same in words.
    pub words: String,
    /// Whether it will soon be otherwise, by itself.
    pub changes: bool,
}

impl Look {
    /// AWS was asked for something of it, and does not show it yet.
    pub fn appearing(port: u16) -> Self {
        let words = format!("AWS was asked for what port {port} needs, and does not show it yet");
        Self {
            port,
            reason: TARGETS_INITIAL,
            words,
            changes: true,
            ..Self::default()
        }
    }

    /// What the status has of it. AWS was last asked to create something of it then.
    pub fn status(&self, requested_at: Option<Time>) -> ListenerStatus {
        let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        ListenerStatus {
            port: self.port,
            healthy: count(self.healthy),
            total: count(self.total),
            reason: self.reason.into(),
            // It was shown for so long that it is not shown late any more.
            requested_at: requested_at.filter(|_| !self.reason.is_empty()),
        }
    }
}

/// How a listener is whose group had these targets. `groups` are the balancer's security groups.
pub fn look(
    port: u16,
    registered: &[Health],
    wanted: &BTreeSet<Target>,
    groups: &BTreeSet<String>,
) -> Look {
    let health: BTreeMap<_, _> = registered.iter().map(|it| (&it.target, it)).collect();
    let found: Vec<_> = wanted
        .iter()
        .filter_map(|target| health.get(target))
        .collect();
    let healthy = found.iter().filter(|it| it.state == "healthy").count();
    // One that is new to the group has no health yet.
    let begins = found.len() < wanted.len() || found.iter().any(|it| it.state == "initial");
    // AWS tells nobody when one that is ill is well again.
    let changes = begins || healthy == 0;
    let look = Look {
        port,
        healthy,
        total: wanted.len(),
        changes,
        ..Look::default()
    };
    if healthy > 0 {
        return look;
    }
    let ill: Vec<_> = found.iter().filter(|it| it.state != "initial").collect();
    if ill.is_empty() {
        let words = format!("AWS has not yet found out how the targets of port {port} are");
        return Look {
            reason: TARGETS_INITIAL,
            words,
            ..look
        };
    }
    let whys: BTreeSet<_> = ill.iter().map(|it| why(it)).collect();
    let whys = whys.into_iter().take(3).collect::<Vec<_>>().join(", ");
    if !ill
        .iter()
        .any(|it| MAY_BE_KEPT_OUT.contains(&it.reason.as_str()))
    {
        return Look {
            reason: TARGETS_UNHEALTHY,
            words: format!("no target of port {port} is healthy ({whys})"),
            ..look
        };
    }
    let node_port = wanted.first().map(|target| target.port).unwrap_or_default();
    let groups: Vec<_> = groups.iter().map(String::as_str).collect();
    let words = format!(
        "no target of port {port} is healthy ({whys}): see that the Service has Pods which answer 200 at the path of the health check, \
         and that a security group of the nodes lets TCP {node_port} in from {}",
        groups.join(", ")
    );
    Look {
        reason: TARGETS_UNHEALTHY,
        words,
        ..look
    }
}

fn why(health: &Health) -> String {
    match (health.reason.as_str(), health.description.as_str()) {
        ("", _) => health.state.clone(),
        (reason, "") => reason.into(),
        (reason, description) => format!("{reason}: {description}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_api::my_ingress::ServiceRef;
    use rstest::rstest;
    use serde_json::{Value, from_value, json};

    use super::*;

    fn target(instance: &str, port: u16) -> Target {
        Target {
            instance: instance.into(),
            port,
        }
    }

    fn targets(all: &[(&str, u16)]) -> BTreeSet<Target> {
        all.iter()
            .map(|(instance, port)| target(instance, *port))
            .collect()
    }

    fn health(all: &[(&str, u16, &str)]) -> Vec<Health> {
        let one = |(instance, port, state): &(&str, u16, &str)| {
            let reason = if *state == "unhealthy" {
                "Target.Timeout"
            } else {
                ""
            };
            let description = String::new();
            Health {
                target: target(instance, *port),
                state: (*state).into(),
                reason: reason.into(),
                description,
            }
        };
        all.iter().map(one).collect()
    }

    fn listener() -> Listener {
        let service = ServiceRef {
            name: "web".into(),
            port: 80,
        };
        Listener {
            port: 443,
            service,
            ..Listener::default()
        }
    }

    fn nodes(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    fn service(ports: &Value) -> Service {
        from_value(json!({ "spec": { "ports": ports } })).unwrap()
    }

    #[test]
    fn targets_at_a_node_port_that_the_service_released_are_removed() {
        let registered = health(&[
            ("i-1", 30_001, "healthy"),
            ("i-1", 30_002, "unhealthy"),
            ("i-2", 30_001, "draining"),
        ]);
        let held = service(&json!([{ "port": 81, "nodePort": 30_001 }]));
        assert_eq!(
            released(Some(&held), &registered),
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
    fn each_instance_at_the_port_that_the_service_has_on_the_nodes() {
        let service = service(&json!([
            { "port": 80, "protocol": "UDP", "nodePort": 30_001 },
            { "port": 81, "nodePort": 30_002 },
            { "port": 80, "nodePort": 30_003 },
        ]));
        let found = find(Some(&service), &listener(), &Ok(nodes(&["i-1", "i-2"])));
        assert_eq!(found, Ok(targets(&[("i-1", 30_003), ("i-2", 30_003)])));
    }

    #[rstest]
    #[case::no_service(None, Ok(nodes(&["i-1"])), "ServiceNotFound", "Service web does not exist: create it")]
    #[case::no_port(Some(json!([])), Ok(nodes(&["i-1"])), "ServicePortNotFound", "Service web has no port 80 over TCP: it has none")]
    #[case::another_port(Some(json!([{ "port": 81 }, { "port": 82 }])), Ok(nodes(&["i-1"])), "ServicePortNotFound",
        "Service web has no port 80 over TCP: it has 81, 82")]
    #[case::udp(Some(json!([{ "port": 80, "protocol": "UDP", "nodePort": 30_001 }])), Ok(nodes(&["i-1"])), "ServicePortNotFound",
        "Service web has no port 80 over TCP: it has none")]
    #[case::inside_only(Some(json!([{ "port": 80 }])), Ok(nodes(&["i-1"])), "NoNodePort", "Service web has no port on the nodes: write")]
    #[case::no_nodes(Some(json!([{ "port": 80, "nodePort": 30_001 }])), Ok(nodes(&[])), "NoNodes", "no node can take traffic")]
    #[case::unseen(Some(json!([{ "port": 80, "nodePort": 30_001 }])), Err("no".into()), "NodesUnknown", "the nodes are not known: no")]
    fn why_it_leads_nowhere(
        #[case] ports: Option<Value>,
        #[case] nodes: Result<BTreeSet<String>, String>,
        #[case] reason: &str,
        #[case] words: &str,
    ) {
        let problem = find(
            ports.map(|ports| service(&ports)).as_ref(),
            &listener(),
            &nodes,
        )
        .unwrap_err();
        assert_eq!(problem.reason(), reason);
        assert!(problem.to_string().starts_with(words), "{problem}");
    }

    type Few<'a> = &'a [(&'a str, u16)];

    /// Wanted are `i-1` and `i-2` at 30001.
    #[rstest]
    #[case::new(&[], &[("i-1", 30_001), ("i-2", 30_001)], &[], &[])]
    #[case::right(&[("i-1", 30_001, "healthy"), ("i-2", 30_001, "unhealthy")], &[], &[], &[])]
    #[case::draining(&[("i-1", 30_001, "healthy"), ("i-2", 30_001, "draining")], &[("i-2", 30_001)], &[], &[])]
    #[case::leaving(&[("i-1", 30_001, "healthy"), ("i-2", 30_001, "initial"), ("i-9", 30_001, "draining")], &[], &[], &[])]
    #[case::one_too_many(&[("i-1", 30_001, "healthy"), ("i-2", 30_001, "initial"), ("i-9", 30_001, "healthy")], &[], &[("i-9", 30_001)],
        &[])]
    #[case::the_only_ones_that_serve(&[("i-1", 30_000, "healthy"), ("i-2", 30_000, "unhealthy")], &[("i-1", 30_001), ("i-2", 30_001)], &[],
        &[("i-1", 30_000), ("i-2", 30_000)])]
    #[case::still_the_only_ones(&[("i-1", 30_000, "healthy"), ("i-1", 30_001, "initial"), ("i-2", 30_001, "unhealthy")], &[], &[],
        &[("i-1", 30_000)])]
    #[case::no_hope(&[("i-1", 30_000, "healthy"), ("i-1", 30_001, "unhealthy"), ("i-2", 30_001, "unhealthy")], &[],
        &[("i-1", 30_000)], &[])]
    #[case::none_serves(&[("i-1", 30_000, "unhealthy")], &[("i-1", 30_001), ("i-2", 30_001)], &[("i-1", 30_000)], &[])]
    fn what_is_done_about_targets(
        #[case] registered: &[(&str, u16, &str)],
        #[case] add: Few<'_>,
        #[case] remove: Few<'_>,
        #[case] hold: Few<'_>,
    ) {
        let wanted = targets(&[("i-1", 30_001), ("i-2", 30_001)]);
        let expected = Change {
            add: targets(add),
            remove: targets(remove),
            hold: targets(hold),
        };
        assert_eq!(change(&health(registered), &wanted), expected);
    }

    #[rstest]
    #[case::new(&[], 0, "TargetsInitial", true)]
    #[case::initial(&[("i-1", 30_001, "initial"), ("i-2", 30_001, "initial")], 0, "TargetsInitial", true)]
    #[case::one_is_enough(&[("i-1", 30_001, "healthy"), ("i-2", 30_001, "unhealthy")], 1, "", false)]
    #[case::one_more_soon(&[("i-1", 30_001, "healthy"), ("i-2", 30_001, "initial")], 1, "", true)]
    #[case::others_do_not_count(&[("i-9", 30_001, "healthy"), ("i-1", 30_001, "unhealthy"), ("i-2", 30_001, "unused")], 0, "TargetsUnhealthy",
        true)]
    #[case::the_other_may_be_well(&[("i-1", 30_001, "unhealthy"), ("i-2", 30_001, "initial")], 0, "TargetsUnhealthy", true)]
    fn how_a_listener_is(
        #[case] registered: &[(&str, u16, &str)],
        #[case] healthy: u32,
        #[case] reason: &str,
        #[case] changes: bool,
    ) {
        let wanted = targets(&[("i-1", 30_001), ("i-2", 30_001)]);
        let look = look(
            443,
            &health(registered),
            &wanted,
            &["sg-1".to_owned(), "sg-2".to_owned()].into(),
        );
        let status = ListenerStatus {
            port: 443,
            healthy,
            total: 2,
            reason: reason.into(),
            requested_at: None,
        };
        assert_eq!(look.status(None), status);
        assert_eq!(
            (look.changes, look.words.is_empty()),
            (changes, reason.is_empty())
        );
        if reason == TARGETS_UNHEALTHY {
            let rule = "lets TCP 30001 in from sg-1, sg-2";
            assert!(
                look.words.contains("(Target.Timeout") && look.words.ends_with(rule),
                "{}",
                look.words
            );
        }
    }
}
