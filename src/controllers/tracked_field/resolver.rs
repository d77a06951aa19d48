//! Resolves targets to resources of the API.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::APIResource;
use kube::core::{DynamicResourceScope, GroupVersionKind};
use kube::discovery::ApiResource;
use kube::{Api, Client, Resource, ResourceExt as _};
use qm_api::tracked_field::{
    BUILT_IN_KINDS, GROUP, OWN_KINDS_ARE_NOT_TRACKED, SECRETS_ARE_NOT_TRACKED, TargetReference,
};
use qm_core::nearest::nearest;
use qm_core::shared;
use qm_runtime::raw_object::RawObject;
use qm_runtime::watch::ResourceName;
use tokio::time::Instant;

/// Time for which a mismatch counts: thousands of `TrackedField`s may name a resource whose CRD is deleted, and each of
/// them polls. Not longer than the default of `--poll-min`, so that each poll of a single one asks the apiserver.
const MISMATCH_TTL: Duration = Duration::from_secs(1);

/// Key of an object of any resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TargetKey {
    pub resource: ResourceName,
    /// The object's namespace; empty for a cluster-scoped one.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl TargetKey {
    pub fn new(resource: &ResourceName, namespace: &str, name: &str) -> Self {
        Self {
            resource: resource.clone(),
            namespace: shared::text(namespace),
            name: shared::text(name),
        }
    }

    /// Returns the key of an object of `resource`.
    pub fn of(resource: &ResourceName, object: &RawObject) -> Self {
        let (namespace, name) = (object.namespace(), object.name_any());
        Self::new(resource, &namespace.unwrap_or_default(), &name)
    }
}

/// Returns whether objects of the resource are watched by metadata and read when they change: a cluster has many
/// `ConfigMap`s of up to 1 MiB, and few of them are targets.
pub(super) fn is_watched_by_metadata(resource: &ResourceName) -> bool {
    &*resource.api_version == "v1" && &*resource.plural == "configmaps"
}

/// A resource that can be watched.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Resolved {
    pub resource: ApiResource,
    /// True if the resource is namespaced.
    pub namespaced: bool,
}

impl Resolved {
    /// Returns the namespace of `target`; empty for a cluster-scoped one.
    pub(crate) fn namespace_of<'a>(&self, target: &'a TargetReference) -> &'a str {
        if self.namespaced {
            &target.namespace
        } else {
            ""
        }
    }

    /// Returns the API of the objects in `namespace`, `None` for all namespaces or a cluster-scoped resource.
    pub(crate) fn api<K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>>(
        &self,
        client: &Client,
        namespace: Option<&str>,
    ) -> Api<K> {
        match namespace {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &self.resource),
            None => Api::all_with(client.clone(), &self.resource),
        }
    }
}

/// Why a target cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TargetError {
    /// The apiserver does not serve the resource that the spec names.
    #[error("{0}")]
    ResourceMismatch(String),
    /// The operator does not track the resource.
    #[error("{0}")]
    Rejected(&'static str),
    /// The apiserver does not answer.
    #[error("the apiserver's list of resources could not be read: {0}")]
    Discovery(#[source] kube::Error),
}

/// Discovered resources. The built-in kinds need no discovery.
#[derive(Default)]
pub(crate) struct Resolver {
    discovered: Mutex<HashMap<(String, String), Discovered>>,
    /// The last mismatches, by API version, plural and kind.
    mismatches: Mutex<HashMap<(String, String, String), Mismatch>>,
}

struct Discovered {
    /// Epoch of the resource's watch at the time of the answer.
    epoch: u64,
    resolved: Resolved,
}

/// Answer that the apiserver does not serve a target's resource, or serves it with another kind.
struct Mismatch {
    /// Epoch of the resource's watch at the time of the answer.
    epoch: u64,
    until: Instant,
    message: String,
}

impl Resolver {
    fn discovered(&self) -> MutexGuard<'_, HashMap<(String, String), Discovered>> {
        let discovered = self.discovered.lock();
        discovered.unwrap_or_else(PoisonError::into_inner)
    }

    fn mismatches(&self) -> MutexGuard<'_, HashMap<(String, String, String), Mismatch>> {
        let mismatches = self.mismatches.lock();
        mismatches.unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the resource of `target` if it is known without a request.
    pub fn known(&self, target: &TargetReference) -> Option<Resolved> {
        match (&target.api_version, &target.resource) {
            (Some(api_version), Some(plural)) => {
                let discovered = self.discovered();
                let Discovered { resolved, .. } =
                    discovered.get(&(api_version.clone(), plural.clone()))?;
                (resolved.resource.kind == target.kind).then(|| resolved.clone())
            }
            _ => built_in(&target.kind),
        }
    }

    /// Forgets the discovered resource of `target`.
    pub fn forget(&self, target: &TargetReference) {
        if let (Some(api_version), Some(plural)) = (&target.api_version, &target.resource) {
            self.discovered()
                .remove(&(api_version.clone(), plural.clone()));
        }
    }

    /// Returns the resource of `target` without any request, `None` if the apiserver must be asked. An earlier answer
    /// counts if it matches and the watch of the resource is still in the same `epoch`: a CRD may have been recreated
    /// with another scope or kind. A mismatch counts for [`MISMATCH_TTL`] at most.
    ///
    /// # Errors
    /// If no answer could make `target` trackable, or the last one was a mismatch.
    pub(crate) fn resolved(
        &self,
        target: &TargetReference,
        epoch: u64,
    ) -> Result<Option<Resolved>, TargetError> {
        let (Some(api_version), Some(plural)) = (&target.api_version, &target.resource) else {
            return built_in(&target.kind).map(Some).ok_or_else(|| {
                TargetError::ResourceMismatch(format!(
                    "target.kind {:?} needs target.apiVersion and target.resource as well: write the plural name, such as networkpolicies, as \
                     target.resource",
                    target.kind
                ))
            });
        };
        if is_secret(api_version, plural) || target.kind.eq_ignore_ascii_case("secret") {
            return Err(TargetError::Rejected(SECRETS_ARE_NOT_TRACKED));
        }
        if api_version
            .split_once('/')
            .is_some_and(|(group, _)| group == GROUP)
        {
            return Err(TargetError::Rejected(OWN_KINDS_ARE_NOT_TRACKED));
        }
        let known = self
            .discovered()
            .get(&(api_version.clone(), plural.clone()))
            .filter(|known| known.epoch == epoch)
            .map(|known| known.resolved.clone())
            .filter(|resolved| resolved.resource.kind == target.kind);
        if known.is_some() {
            return Ok(known);
        }
        let mismatches = self.mismatches();
        let mismatch = mismatches
            .get(&(api_version.clone(), plural.clone(), target.kind.clone()))
            .filter(|mismatch| mismatch.epoch == epoch && mismatch.until > Instant::now());
        mismatch.map_or(Ok(None), |mismatch| {
            Err(TargetError::ResourceMismatch(mismatch.message.clone()))
        })
    }

    /// Returns the resource of `target`, from the apiserver if [`resolved`](Self::resolved) does not know it.
    ///
    /// # Errors
    /// If `target` cannot be tracked, or the apiserver does not answer.
    pub(crate) async fn resolve(
        &self,
        client: &Client,
        target: &TargetReference,
        epoch: u64,
    ) -> Result<Resolved, TargetError> {
        if let Some(resolved) = self.resolved(target, epoch)? {
            return Ok(resolved);
        }
        let (api_version, plural) = target
            .api_version
            .clone()
            .zip(target.resource.clone())
            .unwrap_or_default();
        let answer = discover(client, &api_version, &plural).await;
        let answer = answer.and_then(|resolved| {
            let kind = &resolved.resource.kind;
            if *kind == target.kind {
                return Ok(resolved);
            }
            Err(TargetError::ResourceMismatch(format!(
                "{plural} of {api_version} are of kind {kind}, not {}: write target.kind: {kind}",
                target.kind
            )))
        });
        if let Err(TargetError::ResourceMismatch(message)) = &answer {
            let key = (api_version.clone(), plural.clone(), target.kind.clone());
            self.keep_mismatch(key, epoch, message);
        }
        let resolved = answer?;
        self.discovered().insert(
            (api_version, plural),
            Discovered {
                epoch,
                resolved: resolved.clone(),
            },
        );
        Ok(resolved)
    }

    /// Keeps a mismatch for a while, and removes those that no longer count.
    fn keep_mismatch(&self, key: (String, String, String), epoch: u64, message: &str) {
        let now = Instant::now();
        let mismatch = Mismatch {
            epoch,
            until: now + MISMATCH_TTL,
            message: message.to_owned(),
        };
        let mut mismatches = self.mismatches();
        mismatches.retain(|_, mismatch| mismatch.until > now);
        mismatches.insert(key, mismatch);
    }
}

/// Returns whether the resource is Secret, in any spelling.
fn is_secret(api_version: &str, plural: &str) -> bool {
    let resource = plural.split('/').next().unwrap_or_default();
    api_version == "v1" && resource.eq_ignore_ascii_case("secrets")
}

fn built_in(kind: &str) -> Option<Resolved> {
    let known = BUILT_IN_KINDS
        .into_iter()
        .find(|known| known.kind == kind)?;
    let gvk = GroupVersionKind::gvk(known.group, known.version, kind);
    Some(Resolved {
        resource: ApiResource::from_gvk_with_plural(&gvk, known.plural),
        namespaced: true,
    })
}

async fn discover(
    client: &Client,
    api_version: &str,
    plural: &str,
) -> Result<Resolved, TargetError> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let served = if group.is_empty() {
        client.list_core_api_resources(version).await
    } else {
        client.list_api_group_resources(api_version).await
    };
    let served = match served {
        Ok(list) => list.resources,
        Err(kube::Error::Api(status)) if status.code == 404 => {
            let advice = served_version(client, group).await?.map_or_else(
                || "install its CRD, or correct target.apiVersion".to_owned(),
                |served| format!("write target.apiVersion: {served}"),
            );
            return Err(TargetError::ResourceMismatch(format!(
                "the apiserver does not serve {api_version}: {advice}"
            )));
        }
        Err(error) => return Err(TargetError::Discovery(error)),
    };
    let Some(APIResource {
        kind, namespaced, ..
    }) = served.iter().find(|resource| resource.name == plural)
    else {
        let names = served.iter().map(|resource| resource.name.as_str());
        let near = nearest(plural, names)
            .map(|near| format!("; there is {near:?}"))
            .unwrap_or_default();
        return Err(TargetError::ResourceMismatch(format!(
            "{api_version} has no resource {plural:?}{near}"
        )));
    };
    let gvk = GroupVersionKind::gvk(group, version, kind);
    Ok(Resolved {
        resource: ApiResource::from_gvk_with_plural(&gvk, plural),
        namespaced: *namespaced,
    })
}

/// Returns the preferred `apiVersion` of a group, `None` if the apiserver serves no version of it.
async fn served_version(client: &Client, group: &str) -> Result<Option<String>, TargetError> {
    if group.is_empty() {
        return Ok(Some("v1".to_owned()));
    }
    let served = client.list_api_groups().await;
    let served = served.map_err(TargetError::Discovery)?.groups;
    let named = served.into_iter().find(|it| it.name == group);
    Ok(named
        .and_then(|it| it.preferred_version)
        .map(|it| it.group_version))
}

#[cfg(test)]
mod tests;
