//! A namespace for each test, and short functions that create objects in it.

use std::fmt::Debug;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::Resource as _;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ClusterResourceScope, DynamicObject, NamespaceResourceScope};
use kube::{Client, Resource, ResourceExt};
use qm_api::tracked_field::{Delivery, Entry};
use qm_api::{ContactPoint, TrackedField};
use quartermaster::{controllers, permissions};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::ControlPlane;
use testbed::control_plane::Snapshot;
use testbed::proxy::Proxy;
use testbed::wait::until;
use tokio::sync::OnceCell;

use super::secret_search;

/// Maximum time until a state is reached, generous for slow machines: the benchmarks prove promised times. Before
/// Kubernetes 1.34, a forbidden watch takes 30 s until a granted permission applies.
pub const SOON: Duration = Duration::from_mins(10);
/// The namespace of the operator's `ServiceAccount`.
pub const SYSTEM: &str = "quartermaster-system";
/// The name of the operator's `ServiceAccount`.
pub const ACCOUNT: &str = "quartermaster-controller-manager";

/// Installs CRDs, permissions and namespace as shipped, and waits until they are served.
pub async fn install(plane: &ControlPlane) {
    let apply = async |folder: &str| {
        let folder = format!("{}/config/{folder}", env!("CARGO_MANIFEST_DIR"));
        until("our manifests apply", SOON, async || {
            plane
                .run_kubectl(
                    &["apply", "--server-side", "--force-conflicts", "-k", &folder],
                    "",
                )
                .await
                .map(Some)
        })
        .await
        .unwrap();
    };
    // An apiserver that has looked up a policy's parameter finds the kinds of newer CRDs only up to 30 s later, and
    // rejects owner references to them until then.
    apply("crd").await;
    let client = plane.client().await.unwrap();
    for kind in controllers::KINDS {
        let established = [
            "wait",
            "--for=condition=Established",
            &format!("crd/{}", kind.crd_name()),
        ];
        plane.run_kubectl(&established, "").await.unwrap();
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind.resource());
        until("our kinds are served", SOON, async || {
            Ok(Some(api.list(&ListParams::default()).await?))
        })
        .await
        .unwrap();
        let (version, plural) = (kind.resource().api_version, kind.resource().plural);
        until(format!("discovery has {plural}"), SOON, async || {
            let served = client.list_api_group_resources(&version).await?;
            Ok(served
                .resources
                .iter()
                .any(|it| it.name == plural)
                .then_some(()))
        })
        .await
        .unwrap();
    }
    apply("local").await;
    policies_are_in_force(&client).await;
    fill_tracker_role(plane, &[]).await;
}

/// The state of a control plane after [`install`], for others to start with.
struct Installed {
    /// The snapshot has no policies: an apiserver that starts with them discovers its kinds, to find their parameters,
    /// before it serves these CRDs. It then knows those only up to 30 s later, and rejects owner references to them
    /// until then.
    snapshot: Snapshot,
    policies: Vec<ValidatingAdmissionPolicy>,
    bindings: Vec<ValidatingAdmissionPolicyBinding>,
}

impl Installed {
    async fn new() -> Self {
        let plane = ControlPlane::start(testbed::Options::apiserver_only())
            .await
            .unwrap();
        install(&plane).await;
        let client = plane.client().await.unwrap();
        let (bindings, policies) = (take_all(&client).await, take_all(&client).await);
        let snapshot = plane.into_snapshot().await.unwrap();
        Self {
            snapshot,
            policies,
            bindings,
        }
    }

    /// Starts a control plane with CRDs, permissions and policies installed.
    async fn start(options: testbed::Options) -> ControlPlane {
        static INSTALLED: OnceCell<Installed> = OnceCell::const_new();
        let installed = INSTALLED.get_or_init(Self::new).await;
        let plane = ControlPlane::start_from(&installed.snapshot, options)
            .await
            .unwrap();
        let client = plane.client().await.unwrap();
        create_all(&client, &installed.policies).await;
        create_all(&client, &installed.bindings).await;
        policies_are_in_force(&client).await;
        plane
    }
}

/// Deletes all objects of a kind; returns them in a form that can be created again.
async fn take_all<K>(client: &Client) -> Vec<K>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + Debug + DeserializeOwned,
{
    let api = Api::<K>::all(client.clone());
    let mut all = api.list(&ListParams::default()).await.unwrap().items;
    for object in &mut all {
        let metadata = object.meta_mut();
        *metadata = ObjectMeta {
            name: metadata.name.take(),
            labels: metadata.labels.take(),
            annotations: metadata.annotations.take(),
            ..ObjectMeta::default()
        };
        api.delete(&object.name_any(), &DeleteParams::default())
            .await
            .unwrap();
    }
    all
}

async fn create_all<K>(client: &Client, objects: &[K])
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize,
{
    let api = Api::<K>::all(client.clone());
    for object in objects {
        api.create(&PostParams::default(), object).await.unwrap();
    }
}

/// Waits until the apiserver has loaded the policies that were created before: it loads them in their order, so one
/// more policy applies only after the shipped ones.
async fn policies_are_in_force(client: &Client) {
    const PROBE: &str = "loaded.test";
    let rule = json!({ "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"], "resourceNames": [PROBE] });
    let policy: ValidatingAdmissionPolicy = serde_json::from_value(json!({ "metadata": { "name": PROBE },
        "spec": { "matchConstraints": { "resourceRules": [rule] }, "validations": [{ "expression": "false" }] } }))
    .unwrap();
    let binding: ValidatingAdmissionPolicyBinding =
        serde_json::from_value(json!({ "metadata": { "name": PROBE },
        "spec": { "policyName": PROBE, "validationActions": ["Deny"] } }))
        .unwrap();
    create_all(client, std::slice::from_ref(&policy)).await;
    create_all(client, std::slice::from_ref(&binding)).await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let map = serde_json::from_value(json!({ "metadata": { "name": PROBE } })).unwrap();
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    until("the policies are in force", SOON, async || {
        let refused = maps.create(&dry_run, &map).await.err();
        Ok(refused.filter(|error| error.to_string().contains("ValidatingAdmissionPolicy")))
    })
    .await
    .unwrap();
    let none = DeleteParams::default();
    Api::<ValidatingAdmissionPolicyBinding>::all(client.clone())
        .delete(PROBE, &none)
        .await
        .unwrap();
    Api::<ValidatingAdmissionPolicy>::all(client.clone())
        .delete(PROBE, &none)
        .await
        .unwrap();
}

/// Grants the shipped roles' trackable kinds, and `more` (groups and plurals), as the controller-manager does where one
/// runs.
pub async fn fill_tracker_role(plane: &ControlPlane, more: &[(&str, &str)]) {
    let shipped = permissions::TARGET_PERMISSIONS
        .iter()
        .flat_map(|right| right.resources.iter().map(|it| (right.group, *it)));
    let rule = |(group, plural)| json!({ "apiGroups": [group], "resources": [plural], "verbs": ["get", "list", "watch"] });
    let rules: Vec<_> = shipped.chain(more.iter().copied()).map(rule).collect();
    let patch = Patch::Merge(json!({ "rules": rules }));
    Api::<ClusterRole>::all(plane.client().await.unwrap())
        .patch(
            "quartermaster-tracker-role",
            &PatchParams::default(),
            &patch,
        )
        .await
        .unwrap();
}

/// A control plane: one that tests share, or one that ends with its last user.
#[derive(Clone)]
pub enum Plane {
    /// Lasts as long as the process.
    Shared(&'static ControlPlane),
    /// Lasts as long as its clones.
    Own(Arc<ControlPlane>),
}

impl Deref for Plane {
    type Target = ControlPlane;

    fn deref(&self) -> &ControlPlane {
        match self {
            Self::Shared(plane) => plane,
            Self::Own(plane) => plane,
        }
    }
}

/// A test's own namespace on a control plane where everything is installed.
pub struct Bed {
    pub plane: Plane,
    /// The admin's client.
    pub client: Client,
    pub namespace: String,
}

impl Bed {
    /// Creates a namespace on the control plane that tests share. The name starts with `name`.
    pub async fn shared(name: &str) -> Self {
        static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
        let start = || Installed::start(testbed::Options::default());
        let plane = SHARED.get_or_init(start).await;
        Self::on(Plane::Shared(plane), name).await
    }

    /// Creates a namespace on the other control plane that tests share: etcd and apiserver alone. Only the test changes
    /// objects there.
    pub async fn without_controllers(name: &str) -> Self {
        static APISERVER_ONLY: OnceCell<ControlPlane> = OnceCell::const_new();
        let start = || Installed::start(testbed::Options::apiserver_only());
        let plane = APISERVER_ONLY.get_or_init(start).await;
        Self::on(Plane::Shared(plane), name).await
    }

    /// Creates a namespace on the test's own control plane.
    pub async fn on_own_plane(name: &str) -> Self {
        Self::on_own_plane_with(testbed::Options::default(), name).await
    }

    /// Creates a namespace on a control plane with these options.
    pub async fn on_own_plane_with(options: testbed::Options, name: &str) -> Self {
        let plane = Installed::start(options).await;
        Self::on(Plane::Own(Arc::new(plane)), name).await
    }

    /// Creates a namespace on `plane`.
    pub async fn on(plane: Plane, name: &str) -> Self {
        let client = plane.client().await.unwrap();
        let namespace = format!("{name}-{}", &uuid::Uuid::new_v4().simple().to_string()[..8]);
        let object: Namespace =
            serde_json::from_value(json!({ "metadata": { "name": namespace } })).unwrap();
        Api::all(client.clone())
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
        Self {
            plane,
            client,
            namespace,
        }
    }

    /// Starts a proxy in front of the apiserver; returns it and a kubeconfig that leads the operator through it.
    pub async fn through_proxy(&self) -> (Proxy, PathBuf) {
        let direct = self
            .plane
            .kubeconfig_for_service_account(SYSTEM, ACCOUNT)
            .await
            .unwrap();
        let proxy = Proxy::for_kubeconfig(&std::fs::read_to_string(&direct).unwrap()).unwrap();
        let file = direct.with_extension("proxied");
        proxy.write_kubeconfig(&direct, &file).unwrap();
        (proxy, file)
    }

    /// Returns the API of a kind in the namespace.
    pub fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates an object; `rest` is all but its name.
    pub async fn create<K>(&self, name: &str, rest: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Serialize,
    {
        if K::kind(&()) == Secret::KIND {
            secret_search::remember(&rest);
        }
        let mut object = rest;
        object["metadata"]["name"] = name.into();
        let object: K = serde_json::from_value(object).unwrap();
        self.api()
            .create(&PostParams::default(), &object)
            .await
            .unwrap()
    }

    /// Merges `patch` into an object.
    pub async fn patch<K>(&self, name: &str, patch: Value) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        if K::kind(&()) == Secret::KIND {
            secret_search::remember(&patch);
        }
        self.api()
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
            .unwrap()
    }

    /// Asks the operator to reconcile an object, by a marker that differs from all earlier ones; returns the marker.
    pub async fn request_reconcile<K>(&self, name: &str) -> String
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let now = uuid::Uuid::new_v4().to_string();
        let annotations = json!({ "quartermaster.dev/requested-at": now });
        self.patch::<K>(name, json!({ "metadata": { "annotations": annotations } }))
            .await;
        now
    }

    /// Deletes an object.
    pub async fn delete<K>(&self, name: &str)
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        self.api::<K>()
            .delete(name, &DeleteParams::default())
            .await
            .unwrap();
    }

    /// Creates a Secret with one key, `token`.
    pub async fn secret(&self, name: &str, token: &str) -> Secret {
        self.create(name, json!({ "stringData": { "token": token } }))
            .await
    }

    /// Creates a contact point with this spec.
    pub async fn point(&self, name: &str, spec: Value) -> ContactPoint {
        self.create(name, json!({ "spec": spec })).await
    }

    /// Creates a Webhook contact point without a token.
    pub async fn webhook(&self, name: &str, url: &str) -> ContactPoint {
        self.point(
            name,
            json!({ "type": "Webhook", "webhookSpec": { "url": url } }),
        )
        .await
    }

    /// Creates a Telegram contact point, and the Secret `NAME-token` with its token.
    pub async fn telegram(&self, name: &str, token: &str, chat: i64) -> ContactPoint {
        let secret = format!("{name}-token");
        self.secret(&secret, token).await;
        let spec = json!({
            "type": "Telegram",
            "telegramSpec": { "chatId": chat },
            "apiToken": { "secretName": secret, "key": "token" },
        });
        self.create(name, json!({ "spec": spec })).await
    }

    /// Creates a Deployment of one container, as in document 000.
    pub async fn deployment(&self, name: &str, replicas: i32) -> Deployment {
        let labels = json!({ "app": name });
        let container = json!({ "name": "nginx", "image": "nginx:latest" });
        let template =
            json!({ "metadata": { "labels": labels }, "spec": { "containers": [container] } });
        let spec = json!({ "replicas": replicas, "selector": { "matchLabels": labels }, "template": template });
        self.create(name, json!({ "spec": spec })).await
    }

    /// Sets a Deployment's replicas.
    pub async fn scale(&self, name: &str, replicas: i32) {
        self.patch::<Deployment>(name, json!({ "spec": { "replicas": replicas } }))
            .await;
    }

    /// Tracks a field of a resource of the same namespace.
    pub async fn track(
        &self,
        name: &str,
        kind: &str,
        target: &str,
        field: &str,
        point: &str,
    ) -> TrackedField {
        let target = json!({ "kind": kind, "namespace": self.namespace, "name": target });
        self.create(
            name,
            json!({ "spec": { "target": target, "contactPoint": point, "field": field } }),
        )
        .await
    }

    /// Returns the history of a `TrackedField`.
    pub async fn history(&self, name: &str) -> Vec<Entry> {
        self.api::<TrackedField>()
            .get(name)
            .await
            .unwrap()
            .history()
            .unwrap()
    }

    /// Returns the history of a `TrackedField` whose last entry has the value `last`; fails if another value is last.
    pub async fn history_with_last(&self, name: &str, last: &str) -> anyhow::Result<Vec<Entry>> {
        let history = self.history(name).await;
        let value = history.last().and_then(|entry| entry.value.as_deref());
        anyhow::ensure!(value == Some(last), "the history ends with {value:?}");
        Ok(history)
    }

    /// Waits until the object satisfies `look`.
    pub async fn until<K>(&self, name: &str, what: &str, mut look: impl FnMut(&K) -> bool) -> K
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned,
    {
        let api = self.api::<K>();
        let mut last = None;
        let found = until(
            format!("{}/{name}: {what}", self.namespace),
            SOON,
            async || {
                let object = api.get(name).await?;
                let found = look(&object).then(|| object.clone());
                last = Some(object);
                Ok(found)
            },
        )
        .await;
        found.unwrap_or_else(|error| panic!("{error:#}; the object is {last:#?}"))
    }

    /// Waits until the contact point is ready.
    pub async fn ready(&self, name: &str) -> ContactPoint {
        self.until(name, "is ready", |point: &ContactPoint| {
            point.status.as_ref().is_some_and(|status| status.ready)
        })
        .await
    }

    /// Waits until a contact point is not ready, for this reason.
    pub async fn not_ready(&self, name: &str, reason: &str) -> ContactPoint {
        self.until(name, reason, |point: &ContactPoint| {
            point.status.as_ref().is_some_and(|status| {
                !status.ready
                    && status
                        .conditions
                        .iter()
                        .any(|condition| condition.reason == reason)
            })
        })
        .await
    }

    /// Waits until the history has exactly these actions and values, all of them delivered.
    pub async fn delivered(&self, name: &str, expected: &[(&str, Option<&str>)]) -> Vec<Entry> {
        let what = format!("tells {expected:?}, delivered");
        let field = self
            .until(name, &what, |field: &TrackedField| {
                let entries = field.history().unwrap();
                self::actions_and_values(&entries) == expected
                    && entries
                        .iter()
                        .all(|entry| entry.delivery == Some(Delivery::Delivered))
            })
            .await;
        field.history().unwrap()
    }

    /// Waits until the annotation that names the reason for waiting begins with `reason`; empty: until there is none.
    pub async fn waiting(&self, name: &str, reason: &str) -> String {
        let field = self
            .until(
                name,
                &format!("waits: {reason:?}"),
                |field: &TrackedField| {
                    let waiting = field.annotations().get("quartermaster.dev/waiting");
                    if reason.is_empty() {
                        waiting.is_none()
                    } else {
                        waiting.is_some_and(|text| text.starts_with(reason))
                    }
                },
            )
            .await;
        field
            .annotations()
            .get("quartermaster.dev/waiting")
            .cloned()
            .unwrap_or_default()
    }

    /// Waits until Pods are accepted: a new namespace has no `ServiceAccount` for a moment.
    pub async fn accepts_pods(&self) {
        let accounts: Api<ServiceAccount> = self.api();
        until("the default ServiceAccount", SOON, async || {
            Ok(accounts.get_opt("default").await?)
        })
        .await
        .unwrap();
    }
}

/// Returns actions and values of a history.
pub fn actions_and_values(entries: &[Entry]) -> Vec<(&str, Option<&str>)> {
    entries
        .iter()
        .map(|entry| (entry.action.as_str(), entry.value.as_deref()))
        .collect()
}
