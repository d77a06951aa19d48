//! Delegated permissions: the shipped admission policies on the real apiserver, for users who lack some permissions and
//! for the operator's own account.

use std::fmt::Debug;

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding};
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, ClusterResourceScope, NamespaceResourceScope};
use kube::{Client, Config, Resource};
use quartermaster::controllers;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::wait::until;

use crate::support::{Bed, SOON};

mod authors;
mod exempt_changes;
mod names;
mod operator;
mod pods;
mod users;

/// A permission: a verb on a resource, `configmaps` or `deployments.apps`; on one name or all; in one namespace or
/// everywhere.
#[derive(Clone, Debug)]
struct Permission {
    verb: &'static str,
    resource: &'static str,
    name: Option<&'static str>,
    namespace: Option<String>,
}

/// Returns a permission in one namespace.
fn permission(
    verb: &'static str,
    resource: &'static str,
    name: Option<&'static str>,
    namespace: &str,
) -> Permission {
    Permission {
        verb,
        resource,
        name,
        namespace: Some(namespace.into()),
    }
}

/// Returns a permission in the whole cluster.
fn cluster_permission(
    verb: &'static str,
    resource: &'static str,
    name: Option<&'static str>,
) -> Permission {
    Permission {
        verb,
        resource,
        name,
        namespace: None,
    }
}

impl Permission {
    fn rule(&self) -> PolicyRule {
        let (resource, group) = self.resource.split_once('.').unwrap_or((self.resource, ""));
        rule(group, resource, &[self.verb], self.name)
    }

    /// Returns the policies' message for the missing permission.
    fn missing(&self, user: &str) -> String {
        let name = self
            .name
            .map(|name| format!(" \"{name}\""))
            .unwrap_or_default();
        let scope = match &self.namespace {
            Some(namespace) => format!("in namespace \"{namespace}\""),
            None => "in every namespace".into(),
        };
        let verbs = match self.verb {
            // A message names both, so that an author asks only once.
            "list" | "watch" => "list and watch",
            verb => verb,
        };
        format!(
            "user \"{user}\" may not {verbs} {}{name} {scope}: ",
            self.resource
        )
    }
}

fn rule(group: &str, resource: &str, verbs: &[&str], name: Option<&str>) -> PolicyRule {
    PolicyRule {
        api_groups: Some(vec![group.into()]),
        resources: Some(vec![resource.into()]),
        verbs: verbs.iter().map(ToString::to_string).collect(),
        resource_names: name.map(|name| vec![name.into()]),
        ..PolicyRule::default()
    }
}

/// A user with all permissions for this kind in the test's namespace, and further ones.
struct User {
    name: String,
    api: Api<DynamicObject>,
    kind: ApiResource,
}

impl User {
    async fn new(bed: &Bed, name: &str, kind: &ApiResource, permissions: &[Permission]) -> Self {
        let user = Self::without_permissions(bed, name, kind).await;
        let own = [kind.plural.clone(), format!("{}/status", kind.plural)];
        let rules = own
            .iter()
            .map(|resource| rule(&kind.group, resource, &["*"], None))
            .collect();
        user.grant_rules(bed, "own", Some(&bed.namespace), rules)
            .await;
        for (index, permission) in permissions.iter().enumerate() {
            user.grant(bed, &format!("right-{index}"), permission).await;
        }
        user
    }

    async fn without_permissions(bed: &Bed, name: &str, kind: &ApiResource) -> Self {
        let name = format!("{name}.{}", bed.namespace);
        let file = Kubeconfig::read_from(bed.plane.admin_kubeconfig()).unwrap();
        let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .unwrap();
        config.proxy_url = None; // the apiserver is on loopback, whatever HTTPS_PROXY says
        config.auth_info.impersonate = Some(name.clone());
        let api = Api::namespaced_with(Client::try_from(config).unwrap(), &bed.namespace, kind);
        Self {
            name,
            api,
            kind: kind.clone(),
        }
    }

    /// Returns the name of one of the user's roles.
    fn role(&self, role: &str) -> String {
        format!("{role}.{}", self.name)
    }

    async fn grant(&self, bed: &Bed, role: &str, permission: &Permission) {
        self.grant_rules(
            bed,
            role,
            permission.namespace.as_deref(),
            vec![permission.rule()],
        )
        .await;
    }

    async fn grant_rules(
        &self,
        bed: &Bed,
        role: &str,
        namespace: Option<&str>,
        rules: Vec<PolicyRule>,
    ) {
        let name = self.role(role);
        let metadata = json!({ "name": name });
        if let Some(namespace) = namespace {
            make::<Role>(
                bed,
                namespace,
                json!({ "metadata": metadata, "rules": rules }),
            )
            .await;
            return self.bind(bed, "Role", &name, namespace).await;
        }
        make_anywhere::<ClusterRole>(bed, json!({ "metadata": metadata, "rules": rules })).await;
        let role =
            json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name });
        let binding =
            json!({ "metadata": metadata, "roleRef": role, "subjects": [self.subject()] });
        make_anywhere::<ClusterRoleBinding>(bed, binding).await;
    }

    /// Binds the user to a role, `Role` or `ClusterRole`, in a namespace.
    async fn bind(&self, bed: &Bed, kind: &str, name: &str, namespace: &str) {
        let role = json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name });
        let metadata = json!({ "name": self.role(name) });
        let binding =
            json!({ "metadata": metadata, "roleRef": role, "subjects": [self.subject()] });
        make::<RoleBinding>(bed, namespace, binding).await;
    }

    fn subject(&self) -> Value {
        json!({ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": self.name })
    }

    async fn create(&self, name: &str, spec: &Value) -> kube::Result<DynamicObject> {
        create(&self.api, &self.kind, name, spec).await
    }

    /// Sends a dry run of a creation.
    async fn try_create(&self, spec: &Value) -> kube::Result<DynamicObject> {
        let object = DynamicObject::new("tried", &self.kind).data(json!({ "spec": spec }));
        self.api
            .create(
                &PostParams {
                    dry_run: true,
                    ..PostParams::default()
                },
                &object,
            )
            .await
    }

    async fn patch(&self, name: &str, patch: Value) -> kube::Result<DynamicObject> {
        self.api
            .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await
    }
}

async fn create(
    api: &Api<DynamicObject>,
    kind: &ApiResource,
    name: &str,
    spec: &Value,
) -> kube::Result<DynamicObject> {
    let object = DynamicObject::new(name, kind).data(json!({ "spec": spec }));
    api.create(&PostParams::default(), &object).await
}

async fn make<K>(bed: &Bed, namespace: &str, object: Value)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize,
{
    let api = Api::<K>::namespaced(bed.client.clone(), namespace);
    api.create(
        &PostParams::default(),
        &serde_json::from_value(object).unwrap(),
    )
    .await
    .unwrap();
}

async fn make_anywhere<K>(bed: &Bed, object: Value)
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope>
        + Clone
        + Debug
        + DeserializeOwned
        + Serialize,
{
    let api = Api::<K>::all(bed.client.clone());
    api.create(
        &PostParams::default(),
        &serde_json::from_value(object).unwrap(),
    )
    .await
    .unwrap();
}

/// Returns the message of a rejection by a policy: 403, as for any other missing permission.
fn rejection_of<T: Debug>(answer: kube::Result<T>) -> String {
    match answer {
        Err(kube::Error::Api(rejection))
            if rejection.message.contains("ValidatingAdmissionPolicy") =>
        {
            assert_eq!(
                (rejection.code, &*rejection.reason),
                (403, "Forbidden"),
                "{}",
                rejection.message
            );
            rejection.message
        }
        other => panic!("no policy rejected the request: {other:?}"),
    }
}

/// Waits until a request is rejected with this message: roles take a moment to apply.
async fn rejected<T: Debug>(
    expected: &str,
    mut request: impl AsyncFnMut() -> kube::Result<T>,
) -> String {
    let found = until(
        format!("refused: {expected}"),
        SOON,
        async || match request().await {
            Err(kube::Error::Api(rejection)) if rejection.message.contains(expected) => {
                Ok(Some(rejection))
            }
            Err(kube::Error::Api(rejection)) => anyhow::bail!("{}", rejection.message),
            other => anyhow::bail!("not refused: {other:?}"),
        },
    );
    rejection_of::<T>(Err(kube::Error::Api(found.await.unwrap())))
}

/// Waits until a request is accepted: roles take a moment to apply.
async fn allowed<T>(what: &str, mut request: impl AsyncFnMut() -> kube::Result<T>) -> T {
    until(what, SOON, async || Ok(Some(request().await?)))
        .await
        .unwrap()
}

/// Returns the CRD of this plural without its rules and required fields, which accepts older objects.
fn without_rules(plural: &str) -> String {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.remove("x-kubernetes-validations");
                fields.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let crd = controllers::crds()
        .into_iter()
        .find(|crd| crd.spec.names.plural == plural)
        .unwrap();
    let mut crd = serde_json::to_value(crd).unwrap();
    let schema = &mut crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    strip(schema);
    schema["required"] = json!([]);
    schema["properties"]["spec"]["required"] = json!([]);
    crd.to_string()
}
