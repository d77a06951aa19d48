//! One watch a resource in the operator's scope, shared by all who look at it. Objects are never stored: each is shown
//! to the observer and forgotten.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use futures::StreamExt;
use kube::core::{DynamicResourceScope, PartialObjectMeta};
use kube::discovery::ApiResource;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tracing::{debug, info, warn};

use super::Scope;
use super::health::Watchdog;
use super::metrics::{Metrics, Purpose, WatchGuard};
use super::raw_object::RawObject;
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
        group.map_or_else(
            || self.plural.clone(),
            |group| format!("{}.{group}", self.plural),
        )
    }
}

impl ResourceName {
    /// Returns whether its objects are watched by metadata alone and read when they change: a cluster has many
    /// `ConfigMap`s of up to 1 MiB, few of which concern anybody.
    pub fn is_watched_by_metadata(&self) -> bool {
        self.api_version == "v1" && self.plural == "configmaps"
    }
}

impl From<&ApiResource> for ResourceName {
    fn from(resource: &ApiResource) -> Self {
        Self {
            api_version: resource.api_version.clone(),
            plural: resource.plural.clone(),
        }
    }
}

/// Who looks at what the watches show. Called from the watches' own tasks: it must not block.
pub trait Observer<K = RawObject>: Send + Sync + 'static {
    /// Handles the start of a watch: all later events come from lists of this generation, see [`WatchHub::relist`].
    fn begins(&self, _resource: &ResourceName, _shard: Option<&str>, _generation: u64) {}
    /// A watch begins to list its shard (`None` is the whole cluster).
    fn listing(&self, resource: &ResourceName, shard: Option<&str>);
    /// An object is there; of some resources only the metadata, see [`ResourceName::is_watched_by_metadata`].
    fn present(&self, resource: &ResourceName, object: K);
    /// An object was deleted: this is its last state.
    fn gone(&self, resource: &ResourceName, object: K);
    /// Everything in the shard has been shown since [`Observer::listing`].
    fn listed(&self, resource: &ResourceName, shard: Option<&str>);
    /// It is certain that the resource may be listed and watched: what was refused before is over.
    fn stands(&self, resource: &ResourceName, shard: Option<&str>);
    /// The watch gets no answer, or a refusal; it goes on trying.
    fn failing(&self, resource: &ResourceName, shard: Option<&str>, error: &watcher::Error);
}

/// The watches.
pub struct WatchHub {
    client: Client,
    scope: Scope,
    config: watcher::Config,
    observer: Arc<dyn Observer>,
    metrics: Metrics,
    tasks: Tasks,
    watchdog: Watchdog,
    generation: watch::Sender<u64>,
    watches: Mutex<HashMap<ResourceName, Vec<AbortHandle>>>,
}

impl WatchHub {
    /// No watch yet. `config` says how to list.
    pub fn new(
        client: Client,
        scope: Scope,
        config: watcher::Config,
        observer: Arc<dyn Observer>,
        metrics: Metrics,
        tasks: Tasks,
        watchdog: Watchdog,
    ) -> Self {
        let generation = watch::Sender::new(0);
        Self {
            client,
            scope,
            config,
            observer,
            metrics,
            tasks,
            watchdog,
            generation,
            watches: Mutex::default(),
        }
    }

    /// Relists every watch. `next` receives the generation of these lists before any of them begins.
    pub fn relist(&self, next: impl FnOnce(u64)) {
        self.generation.send_modify(|generation| {
            *generation += 1;
            next(*generation);
        });
    }

    /// Sees to it that `resource` is watched.
    pub fn ensure(&self, resource: &ApiResource, namespaced: bool) {
        let name = ResourceName::from(resource);
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        if watches.contains_key(&name) {
            return;
        }
        info!(
            resource = name.plural,
            apiVersion = name.api_version,
            "watching"
        );
        let shards = if namespaced {
            self.scope.shards()
        } else {
            vec![None]
        };
        let handles = shards
            .into_iter()
            .map(|shard| {
                if name.is_watched_by_metadata() {
                    self.spawn::<PartialObjectMeta>(resource, &name, shard)
                } else {
                    self.spawn::<RawObject>(resource, &name, shard)
                }
            })
            .collect();
        watches.insert(name, handles);
    }

    fn spawn<K>(
        &self,
        resource: &ApiResource,
        name: &ResourceName,
        shard: Option<String>,
    ) -> AbortHandle
    where
        K: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>
            + Into<RawObject>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + 'static,
    {
        let api = match &shard {
            Some(namespace) => Api::<K>::namespaced_with(self.client.clone(), namespace, resource),
            None => Api::all_with(self.client.clone(), resource),
        };
        let (metrics, full) = (self.metrics.clone(), name.full());
        let watch = ResourceWatch {
            api,
            config: self.config.clone(),
            resource: name.clone(),
            shard,
            observer: Arc::clone(&self.observer),
            into: K::into,
            counted: move || metrics.watch(&full, Purpose::Target),
            watchdog: self.watchdog.clone(),
        };
        let watch = watch.run(self.generation.subscribe());
        tokio::spawn(
            self.tasks
                .guard(format!("the watch of {}", name.plural), watch),
        )
        .abort_handle()
    }

    /// Ends the watches of resources for which `wanted` says no.
    pub fn retain(&self, wanted: impl Fn(&ResourceName) -> bool) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|name, handles| {
            let keep = wanted(name);
            if !keep {
                info!(
                    resource = name.plural,
                    apiVersion = name.api_version,
                    "no longer watching"
                );
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

/// Watch of a resource, shown to an observer.
pub struct ResourceWatch<W, K, C> {
    /// The resource, in the cluster or in one namespace.
    pub api: Api<W>,
    /// Configuration of the watch.
    pub config: watcher::Config,
    /// The resource's name.
    pub resource: ResourceName,
    /// The namespace; `None` is the whole cluster.
    pub shard: Option<String>,
    /// The observer.
    pub observer: Arc<dyn Observer<K>>,
    /// Converts what is watched into what is shown.
    pub into: fn(W) -> K,
    /// Counts a watch that begins.
    pub counted: C,
    /// Guards each step.
    pub watchdog: Watchdog,
}

impl<W, K, C> ResourceWatch<W, K, C>
where
    W: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    K: 'static,
    C: Fn() -> WatchGuard + Send,
{
    /// Watches until dropped, and relists for each further `generation`.
    pub async fn run(self, mut generation: watch::Receiver<u64>) {
        loop {
            let current = *generation.borrow_and_update();
            self.observer
                .begins(&self.resource, self.shard.as_deref(), current);
            tokio::select! {
                () = self.watch() => {}
                () = next(&mut generation) => {}
            }
        }
    }

    async fn watch(&self) {
        let mut told = std::pin::pin!(watching::watch(
            self.api.clone(),
            self.config.clone(),
            (self.counted)()
        ));
        while let Some(told) = told.next().await {
            let _busy = self.watchdog.busy();
            self.show(told);
        }
    }

    fn show(&self, told: Told<W>) {
        let Self {
            resource, observer, ..
        } = self;
        let shard = self.shard.as_deref();
        match told {
            Told::Shown(Event::Init) => observer.listing(resource, shard),
            Told::Shown(Event::InitApply(object) | Event::Apply(object)) => {
                observer.present(resource, (self.into)(object));
            }
            Told::Shown(Event::Delete(object)) => observer.gone(resource, (self.into)(object)),
            Told::Shown(Event::InitDone) => {
                debug!(resource = resource.plural, "listed");
                observer.listed(resource, shard);
            }
            Told::Stands => observer.stands(resource, shard),
            Told::Failed(error) => {
                let cause = &error as &dyn std::error::Error;
                warn!(
                    resource = resource.plural,
                    error = cause,
                    "watch failed; will retry"
                );
                observer.failing(resource, shard, &error);
            }
        }
    }
}

/// Waits for another generation, forever without a sender.
async fn next(generation: &mut watch::Receiver<u64>) {
    if generation.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
