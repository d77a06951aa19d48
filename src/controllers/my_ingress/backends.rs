//! The nodes and Services that listeners forward to. The cache keeps the instance IDs of the nodes; changes trigger
//! reconciles.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Service};
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use qm_api::MyIngress;
use qm_runtime::ObjectKey;
use qm_runtime::objects::keys_of;
use qm_runtime::trigger::Trigger;
use qm_runtime::watch::{Index, SyncState, WatchPhase};
use tokio::sync::SetOnce;

/// Label of nodes that get no traffic from load balancers
/// (<https://kubernetes.io/docs/reference/labels-annotations-taints/#node-kubernetes-io-exclude-from-external-load-balancers>).
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

/// Maximum time that a reconcile waits for the list of nodes. Waiting longer would block the few concurrent reconciles,
/// and the end of the list triggers a reconcile anyway.
const NODE_LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// The nodes, and the Services that listeners name.
pub(crate) struct Backends {
    /// Set once a `MyIngress` has listeners.
    pub(crate) watch_needed: Arc<SetOnce<()>>,
    /// State of the list of nodes.
    pub(crate) nodes_sync: SyncState,
    state: Mutex<BackendState>,
    trigger: Trigger<MyIngress>,
}

#[derive(Default)]
struct BackendState {
    /// Instance of each node that takes traffic, by node.
    instances: BTreeMap<String, String>,
    /// A reconcile found the nodes unknown, or they changed while they were: the next list triggers reconciles.
    is_awaited: bool,
    /// Names of the Services of each `MyIngress`.
    services: HashMap<ObjectKey, BTreeSet<String>>,
    /// The keys of `services` by Service.
    followers: BTreeSet<(ObjectKey, ObjectKey)>,
    /// Number of `MyIngress`es that searches visited.
    #[cfg(test)]
    visits: std::cell::Cell<usize>,
}

impl Backends {
    pub fn new(trigger: Trigger<MyIngress>) -> Self {
        Self {
            watch_needed: Arc::default(),
            nodes_sync: SyncState::default(),
            state: Mutex::default(),
            trigger,
        }
    }

    fn state(&self) -> MutexGuard<'_, BackendState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows the Services of a `MyIngress`.
    pub fn follow(&self, key: &ObjectKey, ingress: &MyIngress) {
        let services: BTreeSet<_> = ingress
            .spec
            .listeners
            .iter()
            .map(|listener| listener.service.name.clone())
            .collect();
        if services.is_empty() {
            return self.forget(key);
        }
        // The first listener starts the watches.
        let _ = self.watch_needed.set(());
        let mut state = self.state();
        state.forget(key);
        let names = services.iter();
        let followed = names.map(|name| ObjectKey::new(&key.namespace, name));
        let followed = followed.map(|service| (service, key.clone()));
        state.followers.extend(followed);
        state.services.insert(key.clone(), services);
    }

    pub fn forget(&self, key: &ObjectKey) {
        self.state().forget(key);
    }

    /// Returns the instance IDs of the nodes that take traffic, once the nodes are listed.
    ///
    /// # Errors
    /// Returns the reason that the nodes are unknown.
    pub async fn instances(&self) -> Result<BTreeSet<String>, String> {
        let synced = tokio::time::timeout(NODE_LIST_TIMEOUT, self.nodes_sync.synced()).await;
        let unknown = match synced {
            Err(_) => Some("the list is in progress".into()),
            Ok(()) => self.nodes_sync.denied(),
        };
        if let Some(unknown) = unknown {
            self.state().is_awaited = true;
            // A list that ended just before `is_awaited` was set woke nothing.
            if !self.nodes_sync.is_listed() {
                return Err(unknown);
            }
        }
        Ok(self.state().instances.values().cloned().collect())
    }

    fn set_node(&self, name: &str, instance: Option<String>) {
        let mut state = self.state();
        if state.instances.get(name) == instance.as_ref() {
            return;
        }
        match instance {
            Some(instance) => state.instances.insert(name.to_owned(), instance),
            None => state.instances.remove(name),
        };
        // The first list needs no reconcile: those at the start wait for it.
        state.is_awaited |= self.nodes_sync.denied().is_some();
        drop(state);
        if self.nodes_sync.is_listed() {
            self.wake_all();
        }
    }

    fn wake_all(&self) {
        self.trigger.wake_all(self.state().services.keys());
    }

    /// Triggers a reconcile of each `MyIngress` that follows the Service. Returns whether there is one.
    fn on_service(&self, service: &ObjectKey) -> bool {
        let mut is_followed = false;
        for ingress in self.state().followers_of(service) {
            self.trigger.wake(ingress);
            is_followed = true;
        }
        is_followed
    }
}

impl BackendState {
    fn forget(&mut self, ingress: &ObjectKey) {
        for name in self.services.remove(ingress).into_iter().flatten() {
            let service = ObjectKey::new(&ingress.namespace, &name);
            self.followers.remove(&(service, ingress.clone()));
        }
    }

    fn followers_of(&self, service: &ObjectKey) -> impl Iterator<Item = &ObjectKey> {
        keys_of(&self.followers, service.clone()).inspect(move |_| {
            #[cfg(test)]
            self.visits.set(self.visits.get() + 1);
        })
    }
}

/// Returns the instance of a node that takes traffic. AWS's cloud controller writes `aws:///ZONE/i-...` to the node;
/// only instances have IDs that begin with `i-`.
fn instance(node: &Node) -> Option<String> {
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

impl Index<Node> for Backends {
    fn apply(&self, node: Node) -> bool {
        let instance = instance(&node);
        let takes_traffic = instance.is_some();
        self.set_node(&node.name_any(), instance);
        takes_traffic
    }

    fn delete(&self, key: &ObjectKey, _last: Option<Node>) {
        self.set_node(&key.name, None);
    }

    fn keys(&self, _namespace: Option<&str>) -> Vec<ObjectKey> {
        let state = self.state();
        let names = state.instances.keys();
        names.map(|name| ObjectKey::new("", name)).collect()
    }

    fn phase(&self, _namespace: Option<&str>, phase: &WatchPhase) {
        if *phase == WatchPhase::Listed && std::mem::take(&mut self.state().is_awaited) {
            self.wake_all();
        }
    }
}

/// Services are not kept: their changes trigger reconciles. A list that lacks a followed Service counts as its deletion.
impl Index<PartialObjectMeta<Service>> for Backends {
    fn apply(&self, service: PartialObjectMeta<Service>) -> bool {
        self.on_service(&ObjectKey::of(&service))
    }

    fn delete(&self, key: &ObjectKey, _last: Option<PartialObjectMeta<Service>>) {
        self.on_service(key);
    }

    fn keys(&self, namespace: Option<&str>) -> Vec<ObjectKey> {
        let state = self.state();
        let services = state.followers.iter().map(|(service, _)| service);
        let mut services: Vec<_> = services
            .filter(|service| service.is_in(namespace))
            .cloned()
            .collect();
        services.dedup();
        services
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use futures::FutureExt;
    use rstest::rstest;
    use serde_json::{Value, from_value, json};

    use super::*;

    fn node(name: &str, provider: &str) -> Node {
        from_value(json!({ "metadata": { "name": name }, "spec": { "providerID": provider } }))
            .unwrap()
    }

    #[rstest]
    #[case::as_written_by_aws("aws:///eu-central-1a/i-0123", json!({}), Some("i-0123"))]
    #[case::without_a_zone("aws://i-0123", json!({}), Some("i-0123"))]
    #[case::serverless("aws:///eu-central-1a/fargate-ip-10-0-0-1.ec2.internal", json!({}), None)]
    #[case::elsewhere("gce://project/zone/i-0123", json!({}), None)]
    #[case::excluded("aws:///a/i-0123", json!({ "labels": { EXCLUDED: "" } }), None)]
    #[case::terminating("aws:///a/i-0123", json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }), None)]
    fn instance_of_a_node(
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
    async fn instances_are_unknown_until_listed_and_while_forbidden() {
        let backends = Backends::new(Trigger::default());
        let nodes: &dyn Index<Node> = &backends;
        let sync = &backends.nodes_sync;
        let known = || {
            backends
                .instances()
                .now_or_never()
                .map(|known| known.map(Vec::from_iter))
        };
        let is = |ids: &[&str]| Some(Ok(ids.iter().map(|id| (*id).to_owned()).collect()));
        sync.begin(0, [None]);
        assert!(nodes.apply(node("a", "aws:///a/i-1")));
        assert!(nodes.apply(node("b", "aws:///a/i-2")));
        assert_eq!(known(), None);
        sync.set_listed(None);
        assert_eq!(known(), is(&["i-1", "i-2"]));

        sync.set_denied(None, "nodes is forbidden".into());
        assert_eq!(known(), Some(Err("nodes is forbidden".into())));
        sync.set_listed(None);
        assert_eq!(known(), is(&["i-1", "i-2"]));

        assert!(!nodes.apply(node("c", "")), "the node takes no traffic");
        let keys = [ObjectKey::new("", "a"), ObjectKey::new("", "b")];
        assert_eq!(nodes.keys(None), keys);
        nodes.delete(&keys[0], None);
        assert_eq!(known(), is(&["i-2"]));
        nodes.delete(&keys[1], Some(node("b", "aws:///a/i-2")));
        assert_eq!(known(), is(&[]));
    }

    /// A node that changed unseen, while the nodes were forbidden, triggers a reconcile after the next list.
    #[test]
    fn change_of_a_node_during_a_denial_is_awaited() {
        let backends = Backends::new(Trigger::default());
        let nodes: &dyn Index<Node> = &backends;
        let sync = &backends.nodes_sync;
        sync.begin(0, [None]);
        nodes.apply(node("a", "aws:///a/i-1"));
        assert!(
            !backends.state().is_awaited,
            "reconciles wait for the first list"
        );
        sync.set_listed(None);
        sync.set_denied(None, "nodes is forbidden".into());
        nodes.apply(node("a", "aws:///a/i-1"));
        assert!(!backends.state().is_awaited, "nothing changed");
        nodes.apply(node("a", "aws:///a/i-2"));
        assert!(backends.state().is_awaited);
    }

    /// A list without a followed Service counts as its deletion.
    #[test]
    fn followed_services_are_those_that_a_list_must_show() {
        let backends = Backends::new(Trigger::default());
        let services: &dyn Index<PartialObjectMeta<Service>> = &backends;
        let listeners = json!([
            { "port": 80, "service": { "name": "web", "port": 80 } },
            { "port": 81, "service": { "name": "web", "port": 81 } },
        ]);
        let ingress: MyIngress =
            from_value(json!({ "metadata": {}, "spec": { "listeners": listeners } })).unwrap();
        for key in [("shop", "a"), ("shop", "b"), ("other", "a")] {
            backends.follow(&ObjectKey::new(key.0, key.1), &ingress);
        }
        let web = ObjectKey::new("shop", "web");
        assert_eq!(services.keys(Some("shop")), [web]);
        assert_eq!(services.keys(None).len(), 2);
        let applied = |name: &str| {
            let metadata = json!({ "namespace": "shop", "name": name });
            services.apply(from_value(json!({ "metadata": metadata })).unwrap())
        };
        assert!(applied("web"));
        assert!(!applied("other"));
    }

    #[test]
    fn change_of_a_service_visits_only_its_followers() {
        let trigger = Trigger::default();
        let mut woken = trigger.open();
        let backends = Backends::new(trigger);
        let services: &dyn Index<PartialObjectMeta<Service>> = &backends;
        let follow = |name: &str, service: &str| {
            let listener = json!({ "port": 80, "service": { "name": service, "port": 80 } });
            let ingress = json!({ "metadata": {}, "spec": { "listeners": [listener] } });
            let ingress: MyIngress = from_value(ingress).unwrap();
            backends.follow(&ObjectKey::new("shop", name), &ingress);
        };
        for number in 0..100 {
            follow(&format!("other-{number}"), &format!("web-{number}"));
        }
        for name in ["a", "b", "c"] {
            follow(name, "web");
        }
        let mut change = || {
            backends.state().visits.set(0);
            services.delete(&ObjectKey::new("shop", "web"), None);
            let names = std::iter::from_fn(|| woken.try_recv().ok());
            let names: Vec<_> = names.map(|key| key.name.to_string()).collect();
            (names.join(" "), backends.state().visits.get())
        };
        assert_eq!(change(), ("a b c".into(), 3));
        follow("a", "api");
        backends.forget(&ObjectKey::new("shop", "b"));
        assert_eq!(change(), ("c".into(), 1));
        backends.forget(&ObjectKey::new("shop", "c"));
        assert_eq!(change(), (String::new(), 0));
    }

    #[test]
    fn watch_starts_with_the_first_listener() {
        let backends = Backends::new(Trigger::default());
        let key = ObjectKey::new("shop", "web");
        backends.follow(&key, &MyIngress::default());
        assert_eq!(
            (backends.watch_needed.get(), backends.state().services.len()),
            (None, 0)
        );
        let listeners = json!([{ "port": 80, "service": { "name": "web", "port": 80 } }]);
        let ingress: MyIngress =
            from_value(json!({ "metadata": {}, "spec": { "listeners": listeners } })).unwrap();
        backends.follow(&key, &ingress);
        assert_eq!(
            (backends.watch_needed.get(), backends.state().services.len()),
            (Some(&()), 1)
        );
        backends.follow(&key, &MyIngress::default());
        assert_eq!(backends.state().services.len(), 0);
    }
}
