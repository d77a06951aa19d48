//! What listeners lead to, as the cluster has it: its nodes, by a watch that keeps the instance's ID of each, and the Services,
//! whose changes wake those that name them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Service};
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use qm_api::MyIngress;
use qm_runtime::reconciler::Trigger;
use qm_runtime::watch_hub::{Observer, ResourceName};
use qm_runtime::{Key, watching};
use tokio::sync::{SetOnce, watch};

/// Label of nodes that no load balancer leads to
/// (<https://kubernetes.io/docs/reference/labels-annotations-taints/#node-kubernetes-io-exclude-from-external-load-balancers>).
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// How long a pass waits for the nodes to be listed: it is one of few that run at once. Once they are listed all are woken.
const LISTED_WITHIN: Duration = Duration::from_secs(10);

/// What is known of the cluster.
pub struct Backends {
    /// Set once there is a `MyIngress` with listeners.
    pub wanted: Arc<SetOnce<()>>,
    state: Mutex<State>,
    nodes: watch::Sender<Nodes>,
    wake: Trigger<MyIngress>,
}

#[derive(Default)]
struct State {
    /// The instance of each node that takes traffic.
    instances: BTreeMap<String, String>,
    /// What the list of nodes that is under way has shown, if one is.
    listing: Option<BTreeSet<String>>,
    /// All nodes have been shown once.
    listed: bool,
    /// Somebody was told that they are not known.
    told: bool,
    /// The names of the Services that each leads to.
    leads: HashMap<Key, BTreeSet<String>>,
}

/// What is known of the nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Nodes {
    Unlisted,
    Listed,
    /// They may not be listed, in the apiserver's words.
    Unknown(String),
}

impl Backends {
    /// Nothing is known yet. `wake` wakes whom it concerns.
    pub fn new(wake: Trigger<MyIngress>) -> Self {
        Self {
            wanted: Arc::default(),
            state: Mutex::default(),
            nodes: watch::channel(Nodes::Unlisted).0,
            wake,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// There is such a `MyIngress`.
    pub fn follow(&self, key: &Key, ingress: &MyIngress) {
        let services: BTreeSet<_> = ingress
            .spec
            .listeners
            .iter()
            .map(|listener| listener.service.name.clone())
            .collect();
        if services.is_empty() {
            return self.forget(key);
        }
        // Once is enough.
        let _ = self.wanted.set(());
        self.state().leads.insert(key.clone(), services);
    }

    /// It is gone.
    pub fn forget(&self, key: &Key) {
        self.state().leads.remove(key);
    }

    /// IDs of the instances of all nodes that take traffic, once they have been listed.
    ///
    /// # Errors
    /// Why they are not known, in the apiserver's words.
    pub async fn instances(&self) -> Result<BTreeSet<String>, String> {
        let mut nodes = self.nodes.subscribe();
        let listed = tokio::time::timeout(
            LISTED_WITHIN,
            nodes.wait_for(|nodes| *nodes != Nodes::Unlisted),
        );
        let unknown = match listed.await.map(|nodes| nodes.map(|nodes| nodes.clone())) {
            Err(_) => Some("they are being listed".into()),
            Ok(Ok(Nodes::Unknown(why))) => Some(why),
            // The sender is ours.
            Ok(_) => None,
        };
        if let Some(unknown) = unknown {
            self.state().told = true;
            // Listed just before that, they have woken nobody.
            if *self.nodes.borrow() != Nodes::Listed {
                return Err(unknown);
            }
        }
        Ok(self.state().instances.values().cloned().collect())
    }

    /// The node has this instance, which takes traffic, or none.
    fn node(&self, name: &str, instance: Option<String>) {
        let mut state = self.state();
        if state.instances.get(name) == instance.as_ref() {
            return;
        }
        match instance {
            Some(instance) => state.instances.insert(name.to_owned(), instance),
            None => state.instances.remove(name),
        };
        drop(state);
        if *self.nodes.borrow() == Nodes::Listed {
            self.wake_all();
        }
    }

    /// The nodes are known, from now on.
    fn known(&self) {
        self.nodes.send_replace(Nodes::Listed);
        if std::mem::take(&mut self.state().told) {
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        for key in self.state().leads.keys() {
            self.wake.wake(key);
        }
    }

    fn service(&self, service: &Key) {
        for (key, services) in &self.state().leads {
            if key.namespace == service.namespace && services.contains(&*service.name) {
                self.wake.wake(key);
            }
        }
    }
}

/// The instance of a node that takes traffic. `aws:///eu-central-1a/i-0123456789abcdef0` is what the cloud's own controller
/// writes; other things than instances have another last part.
pub fn instance(node: &Node) -> Option<String> {
    let excluded =
        node.labels().contains_key(EXCLUDED) || node.metadata.deletion_timestamp.is_some();
    let id = node
        .spec
        .as_ref()?
        .provider_id
        .as_deref()?
        .strip_prefix("aws://")?
        .rsplit('/')
        .next()?;
    (!excluded && id.starts_with("i-")).then(|| id.to_owned())
}

impl Observer<Node> for Backends {
    fn listing(&self, _: &ResourceName, _: Option<&str>) {
        self.state().listing = Some(BTreeSet::new());
    }

    fn present(&self, _: &ResourceName, node: Node) {
        if let Some(listing) = &mut self.state().listing {
            listing.insert(node.name_any());
        }
        self.node(&node.name_any(), instance(&node));
    }

    fn gone(&self, _: &ResourceName, node: Node) {
        self.node(&node.name_any(), None);
    }

    fn listed(&self, _: &ResourceName, _: Option<&str>) {
        let missing: Vec<_> = {
            let mut state = self.state();
            state.listed = true;
            let listed = state.listing.take().unwrap_or_default();
            state
                .instances
                .keys()
                .filter(|name| !listed.contains(*name))
                .cloned()
                .collect()
        };
        for name in &missing {
            self.node(name, None);
        }
        self.known();
    }

    fn stands(&self, _: &ResourceName, _: Option<&str>) {
        // Unless they are listed anew in a moment.
        if self.state().listed {
            self.known();
        }
    }

    fn failing(&self, _: &ResourceName, _: Option<&str>, error: &watcher::Error) {
        if let Some(refusal) = watching::refusal(error).filter(|status| status.code == 403) {
            self.nodes
                .send_replace(Nodes::Unknown(refusal.message.clone()));
        }
    }
}

impl Observer<PartialObjectMeta<Service>> for Backends {
    fn listing(&self, _: &ResourceName, _: Option<&str>) {}

    fn present(&self, _: &ResourceName, service: PartialObjectMeta<Service>) {
        self.service(&Key::of(&service));
    }

    fn gone(&self, _: &ResourceName, service: PartialObjectMeta<Service>) {
        self.service(&Key::of(&service));
    }

    fn listed(&self, _: &ResourceName, _: Option<&str>) {}

    fn stands(&self, _: &ResourceName, _: Option<&str>) {}

    fn failing(&self, _: &ResourceName, _: Option<&str>, _: &watcher::Error) {}
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use futures::FutureExt;
    use kube::core::Status;
    use rstest::rstest;
    use serde_json::{Value, from_value, json};

    use super::*;

    fn node(name: &str, provider: &str) -> Node {
        from_value(json!({ "metadata": { "name": name }, "spec": { "providerID": provider } }))
            .unwrap()
    }

    #[rstest]
    #[case::as_the_cloud_writes_it("aws:///eu-central-1a/i-0123", json!({}), Some("i-0123"))]
    #[case::without_a_zone("aws://i-0123", json!({}), Some("i-0123"))]
    #[case::serverless("aws:///eu-central-1a/fargate-ip-10-0-0-1.ec2.internal", json!({}), None)]
    #[case::elsewhere("gce://project/zone/i-0123", json!({}), None)]
    #[case::excluded("aws:///a/i-0123", json!({ "labels": { EXCLUDED: "" } }), None)]
    #[case::going("aws:///a/i-0123", json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }), None)]
    fn the_instance_of_a_node(
        #[case] provider: &str,
        #[case] metadata: Value,
        #[case] expected: Option<&str>,
    ) {
        let spec = json!({ "providerID": provider });
        let node: Node = from_value(json!({ "metadata": metadata, "spec": spec })).unwrap();
        assert_eq!(instance(&node).as_deref(), expected);
        assert_eq!(instance(&Node::default()), None);
    }

    #[tokio::test]
    async fn nothing_is_said_before_all_are_listed_nor_while_they_may_not_be() {
        let backends = Backends::new(Trigger::default());
        let nodes: &dyn Observer<Node> = &backends;
        let resource = ResourceName {
            api_version: "v1".into(),
            plural: "nodes".into(),
        };
        let known = || {
            backends
                .instances()
                .now_or_never()
                .map(|known| known.map(Vec::from_iter))
        };
        let is = |ids: &[&str]| Some(Ok(ids.iter().map(|id| (*id).to_owned()).collect()));
        nodes.listing(&resource, None);
        nodes.present(&resource, node("a", "aws:///a/i-1"));
        nodes.present(&resource, node("b", "aws:///a/i-2"));
        assert_eq!(known(), None);
        nodes.listed(&resource, None);
        assert_eq!(known(), is(&["i-1", "i-2"]));

        let refusal = Status::failure("nodes is forbidden", "Forbidden")
            .with_code(403)
            .boxed();
        nodes.failing(&resource, None, &watcher::Error::WatchError(refusal));
        assert_eq!(known(), Some(Err("nodes is forbidden".into())));
        nodes.stands(&resource, None);
        assert_eq!(known(), is(&["i-1", "i-2"]));

        // One that went while nobody looked.
        nodes.listing(&resource, None);
        nodes.present(&resource, node("b", "aws:///a/i-2"));
        nodes.present(&resource, node("c", ""));
        assert_eq!(known(), is(&["i-1", "i-2"]));
        nodes.listed(&resource, None);
        assert_eq!(known(), is(&["i-2"]));
        nodes.gone(&resource, node("b", "aws:///a/i-2"));
        assert_eq!(known(), is(&[]));
    }

    #[test]
    fn nobody_looks_before_there_is_a_listener() {
        let backends = Backends::new(Trigger::default());
        let key = Key::new("shop", "web");
        backends.follow(&key, &MyIngress::default());
        assert_eq!(
            (backends.wanted.get(), backends.state().leads.len()),
            (None, 0)
        );
        let listeners = json!([{ "port": 80, "service": { "name": "web", "port": 80 } }]);
        let ingress: MyIngress =
            from_value(json!({ "metadata": {}, "spec": { "listeners": listeners } })).unwrap();
        backends.follow(&key, &ingress);
        assert_eq!(
            (backends.wanted.get(), backends.state().leads.len()),
            (Some(&()), 1)
        );
        backends.follow(&key, &MyIngress::default());
        assert_eq!(backends.state().leads.len(), 0);
    }
}
