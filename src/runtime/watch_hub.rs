//! One watch a resource in the operator's scope, shared by all who look at it. Objects are never stored: each is shown
//! to the observer and forgotten.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use kube::core::DynamicObject;
use kube::discovery::ApiResource;
use kube::runtime::watcher::{self as watch, Event};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::task::AbortHandle;
use tracing::{debug, info, warn};

use super::Scope;
use super::health::Watchdog;
use super::metrics::{Metrics, Purpose, Watch};
use super::tasks::Tasks;
use super::watching::{self, Told};

/// A resource as the API's paths have it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceName {
    /// `apps/v1`, or `v1`.
    pub api_version: String,
    /// The plural.
    pub plural: String,
}

impl ResourceName {
    /// `deployments.apps`, or `services`: as CRDs and metrics have it.
    pub fn full(&self) -> String {
        let group = self.api_version.split_once('/').map(|(group, _)| group);
        group.map_or_else(|| self.plural.clone(), |group| format!("{}.{group}", self.plural))
    }
}

impl From<&ApiResource> for ResourceName {
    fn from(resource: &ApiResource) -> Self {
        Self { api_version: resource.api_version.clone(), plural: resource.plural.clone() }
    }
}

/// Who looks at what the watches show. Called from the watches' own tasks: it must not block.
pub trait Observer<K = DynamicObject>: Send + Sync + 'static {
    /// A watch begins to list its shard (`None` is the whole cluster).
    fn listing(&self, resource: &ResourceName, shard: Option<&str>);
    /// An object is there.
    fn present(&self, resource: &ResourceName, object: K);
    /// An object was deleted: this is its last state.
    fn gone(&self, resource: &ResourceName, object: K);
    /// Everything in the shard has been shown since [`Observer::listing`].
    fn listed(&self, resource: &ResourceName, shard: Option<&str>);
    /// It is certain that the resource may be listed and watched: what was refused before is over.
    fn stands(&self, resource: &ResourceName, shard: Option<&str>);
    /// The watch gets no answer, or a refusal; it goes on trying.
    fn failing(&self, resource: &ResourceName, shard: Option<&str>, error: &watch::Error);
}

/// The watches.
pub struct WatchHub {
    client: Client,
    scope: Scope,
    config: watch::Config,
    observer: Arc<dyn Observer>,
    metrics: Metrics,
    tasks: Tasks,
    watchdog: Watchdog,
    watches: Mutex<HashMap<ResourceName, Vec<AbortHandle>>>,
}

impl WatchHub {
    /// No watch yet. `config` says how to list.
    pub fn new(
        client: Client,
        scope: Scope,
        config: watch::Config,
        observer: Arc<dyn Observer>,
        metrics: Metrics,
        tasks: Tasks,
        watchdog: Watchdog,
    ) -> Self {
        Self { client, scope, config, observer, metrics, tasks, watchdog, watches: Mutex::default() }
    }

    /// Sees to it that `resource` is watched.
    pub fn ensure(&self, resource: &ApiResource, namespaced: bool) {
        let name = ResourceName::from(resource);
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        if watches.contains_key(&name) {
            return;
        }
        info!(resource = name.plural, apiVersion = name.api_version, "watching");
        let shards = if namespaced { self.scope.shards() } else { vec![None] };
        let handles = shards
            .into_iter()
            .map(|shard| {
                let api = match &shard {
                    Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, resource),
                    None => Api::all_with(self.client.clone(), resource),
                };
                let watch = run(
                    api,
                    self.config.clone(),
                    name.clone(),
                    shard,
                    Arc::clone(&self.observer),
                    self.metrics.watch(&name.full(), Purpose::Target),
                    self.watchdog.clone(),
                );
                tokio::spawn(self.tasks.guard(format!("the watch of {}", name.plural), watch)).abort_handle()
            })
            .collect();
        watches.insert(name, handles);
    }

    /// Ends the watches of resources for which `wanted` says no.
    pub fn retain(&self, wanted: impl Fn(&ResourceName) -> bool) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|name, handles| {
            let keep = wanted(name);
            if !keep {
                info!(resource = name.plural, apiVersion = name.api_version, "no longer watching");
                handles.iter().for_each(AbortHandle::abort);
            }
            keep
        });
    }
}

impl Drop for WatchHub {
    fn drop(&mut self) {
        self.retain(|_| false);
    }
}

/// Shows `observer` what one watch of `resource` tells, and has `counted` say how it is; `shard` is the namespace, or
/// the whole cluster. Never ends.
pub async fn run<K>(
    api: Api<K>,
    config: watch::Config,
    resource: ResourceName,
    shard: Option<String>,
    observer: Arc<dyn Observer<K>>,
    counted: Watch,
    watchdog: Watchdog,
) where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let shard = shard.as_deref();
    let mut told = std::pin::pin!(watching::watch(api, config, counted));
    while let Some(told) = told.next().await {
        let _busy = watchdog.busy();
        match told {
            Told::Shown(Event::Init) => observer.listing(&resource, shard),
            Told::Shown(Event::InitApply(object) | Event::Apply(object)) => observer.present(&resource, object),
            Told::Shown(Event::Delete(object)) => observer.gone(&resource, object),
            Told::Shown(Event::InitDone) => {
                debug!(resource = resource.plural, "listed");
                observer.listed(&resource, shard);
            }
            Told::Stands => observer.stands(&resource, shard),
            Told::Failed(error) => {
                warn!(
                    resource = resource.plural,
                    error = &error as &dyn std::error::Error,
                    "the watch failed; it goes on"
                );
                observer.failing(&resource, shard, &error);
            }
        }
    }
}
