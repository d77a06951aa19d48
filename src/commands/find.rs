//! The object that a user names, or an error with the choices.

use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::{FailedRequest, has_code};
use crate::cli::commands::ClusterArgs;

/// Maximum number of suggested names.
const MAX_SUGGESTED: u32 = 20;

/// Reads an object.
///
/// # Errors
/// The request fails, or no such object exists. The error then names the namespaces that have an object of this name,
/// or the objects in this namespace.
pub(super) async fn get<K>(
    client: &Client,
    namespace: &str,
    name: &str,
    cluster: &ClusterArgs,
) -> anyhow::Result<K>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    match api.get(name).await {
        Err(error) if has_code(&error, 404) => {
            Err(not_found::<K>(client, namespace, name, cluster).await)
        }
        object => Ok(object.map_err(FailedRequest::from)?),
    }
}

async fn not_found<K>(
    client: &Client,
    namespace: &str,
    name: &str,
    cluster: &ClusterArgs,
) -> anyhow::Error
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let kind = K::kind(&());
    let some = ListParams::default().limit(MAX_SUGGESTED);
    let everywhere: Api<K> = Api::all(client.clone());
    let same_name = some.clone().fields(&format!("metadata.name={name}"));
    let elsewhere = everywhere.list_metadata(&same_name).await;
    let elsewhere = elsewhere.map(|list| list.items).unwrap_or_default();
    let namespaces = elsewhere.iter().filter_map(ResourceExt::namespace);
    let namespaces: Vec<_> = namespaces.map(|it| format!("-n {it}")).collect();

    let missing = |others: String| {
        anyhow::anyhow!("there is no {kind} {name} in namespace {namespace}; {others}")
    };
    if !namespaces.is_empty() {
        return missing(format!("there is one with {}", namespaces.join(" or ")));
    }
    let here: Api<K> = Api::namespaced(client.clone(), namespace);
    match here.list_metadata(&some).await {
        Ok(list) if !list.items.is_empty() => {
            let names: Vec<_> = list.items.iter().map(ResourceExt::name_any).collect();
            missing(format!("the namespace has {}", names.join(", ")))
        }
        Err(error) if has_code(&error, 404) => {
            let install = cluster.command(crate::INSTALL_CRDS);
            anyhow::anyhow!("the CRD of {kind}s is not installed ({install})")
        }
        _ => missing(format!("the namespace has no {kind}")),
    }
}
