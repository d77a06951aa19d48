//! Helpers of the tests of listeners: nodes, each on an instance of the same name, Services, and the destinations of
//! traffic.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{Node, Service};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use qm_api::my_ingress::ListenerStatus;
use testbed::aws::{Listener, TargetGroup};

use super::*;

/// Label of excluded nodes.
pub(super) const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

impl Site {
    /// Returns a site with its own control plane: nodes belong to no namespace.
    pub(super) async fn with_nodes(name: &str, nodes: &[&str]) -> Self {
        let bed = Bed::on_own_plane_with(testbed::Options::apiserver_only(), name).await;
        let site = Self {
            bed,
            aws: Aws::start().await.unwrap(),
        };
        site.aws.provisioning(std::time::Duration::ZERO);
        for node in nodes {
            site.node(node).await;
        }
        site
    }

    /// Starts an operator that may read nodes.
    pub(super) async fn reaching(&self) -> Operator {
        Operator::start(&self.bed, self.settings().whole_cluster()).await
    }

    pub(super) fn nodes(&self) -> Api<Node> {
        Api::all(self.bed.client.clone())
    }

    /// Creates a node on an instance.
    pub(super) async fn node(&self, id: &str) {
        self.aws.add_instance(id, 'a');
        let spec = json!({ "providerID": format!("aws:///us-east-1a/{id}") });
        let node =
            serde_json::from_value(json!({ "metadata": { "name": id }, "spec": spec })).unwrap();
        self.nodes()
            .create(&PostParams::default(), &node)
            .await
            .unwrap();
    }

    pub(super) async fn delete_node(&self, id: &str) {
        self.nodes()
            .delete(id, &DeleteParams::default())
            .await
            .unwrap();
    }

    pub(super) async fn exclude(&self, id: &str, excluded: bool) {
        let value = if excluded { json!("") } else { Value::Null };
        let patch = json!({ "metadata": { "labels": { EXCLUDED: value } } });
        self.nodes()
            .patch(id, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap();
    }

    /// Creates a Service whose port 80 is at this port of each node.
    pub(super) async fn service(&self, name: &str, node_port: u16) {
        let ports = json!([{ "port": 80, "nodePort": node_port }]);
        let spec = json!({ "type": "NodePort", "selector": { "app": name }, "ports": ports });
        self.bed
            .create::<Service>(name, json!({ "spec": spec }))
            .await;
    }

    /// Waits until requests to a port of `web` may arrive at these node ports, and nowhere else.
    pub(super) async fn arrives(&self, port: u16, at: &[(&str, u16)]) {
        let at: Vec<_> = at
            .iter()
            .map(|(id, port)| ((*id).to_owned(), *port))
            .collect();
        let mut last = Vec::new();
        let arrived = until(format!("port {port} leads to {at:?}"), SOON, async || {
            last = self.aws.route("web-alb", port);
            last.sort();
            Ok((last == at).then_some(()))
        })
        .await;
        if let Err(error) = arrived {
            let ingress: MyIngress = self.bed.api().get("web").await.unwrap();
            panic!(
                "{error:#}; the port leads to {last:?}; {:?}",
                ingress.status
            );
        }
    }

    /// Returns the listeners of `web`.
    pub(super) async fn listening(&self) -> Vec<Listener> {
        match self.balancer("web").await {
            Some(load_balancer) => self.aws.listeners(&load_balancer.arn).await.unwrap(),
            None => Vec::new(),
        }
    }

    pub(super) async fn groups(&self) -> Vec<TargetGroup> {
        self.aws.target_groups().await.unwrap()
    }

    pub(super) async fn status(&self) -> Vec<ListenerStatus> {
        self.bed
            .api::<MyIngress>()
            .get("web")
            .await
            .unwrap()
            .status
            .unwrap()
            .listeners
    }

    /// Waits until the status has exactly these listeners: port, healthy, total, reason.
    pub(super) async fn has_listener_status(&self, listeners: &[(u16, u32, u32, &str)]) {
        let row = |it: &ListenerStatus| (it.port, it.healthy, it.total, it.reason.clone());
        let expected: Vec<_> = listeners
            .iter()
            .map(|(port, healthy, total, reason)| (*port, *healthy, *total, (*reason).into()))
            .collect();
        let tells = |ingress: &MyIngress| {
            ingress.status.as_ref().is_some_and(|status| {
                status
                    .listeners
                    .iter()
                    .map(row)
                    .eq(expected.iter().cloned())
            })
        };
        self.bed
            .until("web", &format!("the status has {listeners:?}"), tells)
            .await;
    }
}

/// Returns an HTTP listener that leads to port 80 of a Service.
pub(super) fn http(port: u16, service: &str) -> Value {
    json!({ "port": port, "service": { "name": service, "port": 80 } })
}

/// Asserts that at no moment did a listener lead to a group without targets, and that the operator deleted no group
/// before its listener.
pub(super) fn assert_never_without_targets(calls: &[Arc<Call>]) {
    let mut registered: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
    let mut led = BTreeSet::new();
    for call in calls
        .iter()
        .filter(|call| call.done && call.code().is_none())
    {
        let param = |name: &str| call.params.get(name).cloned().unwrap_or_default();
        let group = param("TargetGroupArn");
        let targets = (1..).map_while(|at| {
            let id = call.params.get(&format!("Targets.member.{at}.Id"))?.clone();
            Some((id, param(&format!("Targets.member.{at}.Port"))))
        });
        match call.action.as_str() {
            "RegisterTargets" => registered.entry(group).or_default().extend(targets),
            "DeregisterTargets" => targets.for_each(|target| {
                registered.entry(group.clone()).or_default().remove(&target);
            }),
            "CreateListener" | "ModifyListener" => {
                led.insert(param("DefaultActions.member.1.TargetGroupArn"));
            }
            "DeleteTargetGroup" => {
                led.remove(&group);
            }
            _ => {}
        }
        let empty: Vec<_> = led
            .iter()
            .filter(|group| registered.get(*group).is_none_or(BTreeSet::is_empty))
            .collect();
        assert!(empty.is_empty(), "{call:?} leaves {empty:?} empty");
    }
    assert!(
        !led.is_empty() || calls.iter().any(|call| call.action == "DeleteTargetGroup"),
        "no listener has a group"
    );
    let in_use = calls
        .iter()
        .filter(|call| call.action == "DeleteTargetGroup" && call.code() == Some("ResourceInUse"));
    assert_eq!(in_use.count(), 0);
}
