//! A workload for each kind: create, change, change back, drift of each child, delete.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use clap::ValueEnum;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, NamespaceResourceScope};
use kube::{Client, Resource};
use qm_api::{AppService, ConfigMapSync, MyApp, MyIngress};
use serde::de::DeserializeOwned;
use serde_json::Value;
use testbed::aws::Aws;
use testbed::proxy::ApiRequest;
use testbed::wait::until;

use super::readiness;
use super::scene::Scene;
use crate::support::{Bed, SOON, Settings};

mod app_service;
mod config_map_sync;
mod contact_point;
mod messages;
mod my_app;
mod my_ingress;
mod tracked_field_set;

/// A kind with its workload. The contact point's workload has a `TrackedField`, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "snake_case")]
pub enum Kind {
    ContactPoint,
    TrackedFieldSet,
    ConfigMapSync,
    AppService,
    MyApp,
    MyIngress,
}

impl Kind {
    /// Returns the name of the kind in lower case, for namespaces.
    pub fn lowercase(self) -> String {
        self.to_string().replace('_', "")
    }

    pub fn calls_aws(self) -> bool {
        self == Self::MyIngress
    }

    /// Returns the operator's settings.
    pub fn settings(self, scene: &Scene<'_>) -> Settings {
        let controllers = match self {
            Self::ContactPoint => "contactpoint,trackedfield",
            Self::TrackedFieldSet => "contactpoint,trackedfield,trackedfieldset",
            Self::ConfigMapSync => "configmapsync",
            Self::AppService => "appservice",
            Self::MyApp => "myapp",
            Self::MyIngress => "myingress",
        };
        let namespaces = self.namespaces(&scene.bed).join(",");
        let settings = Settings::default()
            .flag(&format!("--controllers={controllers}"))
            .flag(&format!("--watch-namespace={namespaces}"));
        match &scene.aws {
            Some(aws) => settings.aws(aws).flag("--aws-consistency-window=1s"),
            None => settings,
        }
    }

    /// Returns the namespaces of the workload's objects.
    pub fn namespaces(self, bed: &Bed) -> Vec<String> {
        let mut namespaces = vec![bed.namespace.clone()];
        if self == Self::ConfigMapSync {
            namespaces.extend(config_map_sync::destinations(&bed.namespace));
        }
        namespaces
    }

    /// Returns the kinds of the workload's objects.
    pub fn resources(self) -> Vec<ApiResource> {
        match self {
            Self::ContactPoint => contact_point::resources(),
            Self::TrackedFieldSet => tracked_field_set::resources(),
            Self::ConfigMapSync => config_map_sync::resources(),
            Self::AppService => app_service::resources(),
            Self::MyApp => my_app::resources(),
            Self::MyIngress => my_ingress::resources(),
        }
    }

    /// Returns whether the operator may write to the object of this request, in one of the workload's namespaces.
    pub fn owns(self, request: &ApiRequest) -> bool {
        match self {
            Self::ContactPoint => contact_point::owns(request),
            Self::TrackedFieldSet => tracked_field_set::owns(request),
            Self::ConfigMapSync => config_map_sync::owns(request),
            Self::AppService => app_service::owns(request),
            Self::MyApp => my_app::owns(request),
            Self::MyIngress => my_ingress::owns(request),
        }
    }

    /// Creates what exists before the operator starts.
    pub async fn prepare(self, scene: &Scene<'_>) {
        match self {
            Self::ConfigMapSync => config_map_sync::prepare(scene).await,
            Self::AppService => app_service::prepare(scene).await,
            Self::MyApp => my_app::prepare(scene).await,
            Self::MyIngress => my_ingress::prepare(scene).await,
            Self::TrackedFieldSet => tracked_field_set::prepare(scene).await,
            Self::ContactPoint => {}
        }
    }

    /// Plays the workload up to the deletion.
    pub async fn change(self, scene: &Scene<'_>) {
        match self {
            Self::ContactPoint => contact_point::change(scene).await,
            Self::TrackedFieldSet => tracked_field_set::change(scene).await,
            Self::ConfigMapSync => config_map_sync::change(scene).await,
            Self::AppService => app_service::change(scene).await,
            Self::MyApp => my_app::change(scene).await,
            Self::MyIngress => my_ingress::change(scene).await,
        }
    }

    /// Deletes the objects.
    pub async fn delete_all(self, scene: &Scene<'_>) {
        match self {
            Self::ContactPoint => contact_point::delete_all(scene).await,
            Self::TrackedFieldSet => tracked_field_set::delete_all(scene).await,
            Self::ConfigMapSync => config_map_sync::delete_all(scene).await,
            Self::AppService => app_service::delete_all(scene).await,
            Self::MyApp => my_app::delete_all(scene).await,
            Self::MyIngress => my_ingress::delete_all(scene).await,
        }
    }

    /// Returns the kind whose status says whether all children match the spec; `None` if there is none.
    pub fn reports_readiness(self) -> Option<ApiResource> {
        match self {
            Self::ContactPoint | Self::TrackedFieldSet => None,
            Self::ConfigMapSync => Some(resource::<ConfigMapSync>()),
            Self::AppService => Some(resource::<AppService>()),
            Self::MyApp => Some(resource::<MyApp>()),
            Self::MyIngress => Some(resource::<MyIngress>()),
        }
    }

    /// Returns what the children of a ready object with this spec must be, and what they are.
    pub async fn expected_and_found(
        self,
        reader: &Reader,
        spec: &Value,
    ) -> anyhow::Result<(Value, Value)> {
        match self {
            Self::ContactPoint | Self::TrackedFieldSet => Ok((Value::Null, Value::Null)),
            Self::ConfigMapSync => config_map_sync::expected_and_found(reader, spec).await,
            Self::AppService => app_service::expected_and_found(reader, spec).await,
            Self::MyApp => my_app::expected_and_found(reader, spec).await,
            Self::MyIngress => my_ingress::expected_and_found(reader, spec).await,
        }
    }

    /// Returns whether a state of a run without faults is no intermediate one: nothing waits for Pods, AWS or receivers.
    pub fn has_settled(self, state: &Value) -> bool {
        let text = state.to_string();
        let waits: &[_] = match self {
            Self::ContactPoint => &[r#""delivery":"Pending""#],
            Self::TrackedFieldSet => &[r#""delivery":"Pending""#, r#""leaving":1"#],
            Self::ConfigMapSync => &[],
            Self::AppService | Self::MyApp | Self::MyIngress => &[r#""type":"Reconciling""#],
        };
        let counts_children = self != Self::TrackedFieldSet || set_counts_children(state);
        counts_children && !waits.iter().any(|it| text.contains(it))
    }

    /// Returns the state outside the cluster.
    pub async fn outside(self, scene: &Scene<'_>) -> anyhow::Result<Value> {
        match self {
            Self::ContactPoint | Self::TrackedFieldSet => Ok(messages::sent(scene)),
            Self::MyIngress => my_ingress::outside(scene).await,
            _ => Ok(Value::Null),
        }
    }

    /// Asserts what must hold outside the cluster at the end.
    pub fn assert_outside(self, scene: &Scene<'_>) {
        match self {
            Self::ContactPoint => messages::assert_repeats_bounded(scene, 2),
            Self::TrackedFieldSet => messages::assert_repeats_bounded(scene, 1),
            _ => {}
        }
    }

    /// Removes the workload's namespaces.
    pub async fn clean(self, scene: &Scene<'_>) {
        let namespaces: Api<Namespace> = Api::all(scene.bed.client.clone());
        for namespace in self.namespaces(&scene.bed) {
            // A namespace that is left costs memory only.
            let _ = namespaces
                .delete(&namespace, &DeleteParams::default())
                .await;
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.to_possible_value().unwrap().get_name())
    }
}

/// The servers that no case uses.
fn free_aws() -> std::sync::MutexGuard<'static, Vec<Aws>> {
    static FREE: Mutex<Vec<Aws>> = Mutex::new(Vec::new());
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a server that no other case uses, without load balancers. Each takes seconds to start, so cases pass them on.
pub async fn lease_aws() -> Aws {
    let free = free_aws().pop();
    match free {
        Some(aws) => aws,
        None => Aws::start().await.unwrap(),
    }
}

/// Passes a server on to the next case.
pub fn release_aws(aws: Aws) {
    aws.behave();
    aws.clear();
    free_aws().push(aws);
}

fn resource<K: Resource<DynamicType = ()>>() -> ApiResource {
    ApiResource::erase::<K>(&())
}

/// Clients by which a workload reads the children, to compare them with the spec.
pub struct Reader {
    pub client: Client,
    pub namespace: String,
    pub aws: Option<Aws>,
}

impl Reader {
    fn api<K>(&self) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

/// Waits until the status says that the object is ready with its current spec.
async fn becomes_ready<K>(scene: &Scene<'_>, name: &str)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    let kind = resource::<K>();
    let api: Api<DynamicObject> =
        Api::namespaced_with(scene.bed.client.clone(), &scene.bed.namespace, &kind);
    until(format!("{name} is ready"), SOON, async || {
        Ok(readiness::ready(&api.get(name).await?))
    })
    .await
    .unwrap();
}

/// Changes an object as a user who does not know the operator.
async fn damage<K>(scene: &Scene<'_>, name: &str, patch: Value)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + fmt::Debug
        + DeserializeOwned,
{
    damage_in::<K>(scene, &scene.bed.namespace, name, patch).await;
}

async fn damage_in<K>(scene: &Scene<'_>, namespace: &str, name: &str, patch: Value)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + fmt::Debug
        + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(scene.bed.client.clone(), namespace);
    let params = PatchParams {
        field_manager: Some("somebody".into()),
        ..PatchParams::default()
    };
    api.patch(name, &params, &Patch::Merge(patch))
        .await
        .unwrap();
}

/// Deletes an object and waits until it is gone.
async fn delete<K>(scene: &Scene<'_>, name: &str)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + fmt::Debug
        + DeserializeOwned,
{
    scene.bed.delete::<K>(name).await;
    let kind = resource::<K>();
    let api: Api<DynamicObject> =
        Api::namespaced_with(scene.bed.client.clone(), &scene.bed.namespace, &kind);
    until(format!("{name} is deleted"), SOON, async || {
        Ok(api.get_opt(name).await?.is_none().then_some(()))
    })
    .await
    .unwrap();
}

/// Returns whether the status of the set counts the children that exist.
fn set_counts_children(state: &Value) -> bool {
    let (mut counted, mut existing) = (0, 0);
    for (name, object) in state.as_object().into_iter().flatten() {
        counted += object["status"]["children"].as_u64().unwrap_or(0);
        existing += u64::from(name.starts_with("TrackedField "));
    }
    counted == existing
}
