//! Watches shared by all observers: one per resource in the operator's scope. Objects are never stored: the observer
//! gets each once.

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

use super::WatchScope;
use super::health::Watchdog;
use super::metrics::{Metrics, Purpose, WatchGuard};
use super::raw_object::RawObject;
use super::tasks::Tasks;
use super::watch::{WatchUpdate, watch_updates};

/// Resource as in the API's paths.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceName {
    /// API version, such as `apps/v1` or `v1`.
    pub api_version: String,
    /// Plural, such as `deployments`.
    pub plural: String,
}

impl ResourceName {
    /// Returns the name with its group, as CRDs and metrics use it, such as `deployments.apps` or `services`.
    pub fn full(&self) -> String {
        let group = self.api_version.split_once('/').map(|(group, _)| group);
        group.map_or_else(
            || self.plural.clone(),
            |group| format!("{}.{group}", self.plural),
        )
    }
}

impl ResourceName {
    /// Returns whether objects of the resource are watched by metadata and read when they change: a cluster has many
    /// `ConfigMap`s of up to 1 MiB, and few of them are targets.
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

/// Observer of watches. The watches' own tasks call the methods, so no method may block.
pub trait Observer<K = RawObject>: Send + Sync + 'static {
    /// Handles the start of a watch: all later events come from lists of this generation, see [`WatchHub::relist`].
    fn on_started(&self, _resource: &ResourceName, _shard: Option<&str>, _generation: u64) {}
    /// Handles the start of a list of the place (`None` is the whole cluster).
    fn on_list_started(&self, resource: &ResourceName, place: Option<&str>);
    /// Handles an object that exists; some resources have only the metadata, see
    /// [`ResourceName::is_watched_by_metadata`].
    fn on_applied(&self, resource: &ResourceName, object: K);
    /// Handles the deletion of an object, with its last state.
    fn on_deleted(&self, resource: &ResourceName, object: K);
    /// Handles the end of a list: the observer has got every object of the place since [`Observer::on_list_started`].
    fn on_list_done(&self, resource: &ResourceName, place: Option<&str>);
    /// Handles a watch whose list and watch both succeed: an earlier error is over.
    fn on_recovered(&self, resource: &ResourceName, place: Option<&str>);
    /// Handles an error of a watch that will be retried.
    fn on_error(&self, resource: &ResourceName, place: Option<&str>, error: &watcher::Error);
}

/// Watches by resource.
pub struct WatchHub {
    client: Client,
    scope: WatchScope,
    config: watcher::Config,
    observer: Arc<dyn Observer>,
    metrics: Metrics,
    tasks: Tasks,
    watchdog: Watchdog,
    generation: watch::Sender<u64>,
    watches: Mutex<HashMap<ResourceName, Vec<AbortHandle>>>,
}

impl WatchHub {
    /// Creates a hub without watches. `config` configures each of them.
    pub fn new(
        client: Client,
        scope: WatchScope,
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

    /// Starts the watches of `resource`, unless they run.
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
        let places = if namespaced {
            self.scope.places()
        } else {
            vec![None]
        };
        let handles = places
            .into_iter()
            .map(|place| {
                if name.is_watched_by_metadata() {
                    self.spawn::<PartialObjectMeta>(resource, &name, place)
                } else {
                    self.spawn::<RawObject>(resource, &name, place)
                }
            })
            .collect();
        watches.insert(name, handles);
    }

    fn spawn<K>(
        &self,
        resource: &ApiResource,
        name: &ResourceName,
        place: Option<String>,
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
        let api = match &place {
            Some(namespace) => Api::<K>::namespaced_with(self.client.clone(), namespace, resource),
            None => Api::all_with(self.client.clone(), resource),
        };
        let (metrics, full) = (self.metrics.clone(), name.full());
        let watch = ResourceWatch {
            api,
            config: self.config.clone(),
            resource: name.clone(),
            place,
            observer: Arc::clone(&self.observer),
            into: K::into,
            guard: move || metrics.watch(&full, Purpose::Target),
            watchdog: self.watchdog.clone(),
        };
        let watch = watch.run(self.generation.subscribe());
        tokio::spawn(
            self.tasks
                .guard(format!("the watch of {}", name.plural), watch),
        )
        .abort_handle()
    }

    /// Stops the watches of resources for which `is_needed` returns false.
    pub fn retain(&self, is_needed: impl Fn(&ResourceName) -> bool) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|name, handles| {
            let keep = is_needed(name);
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

/// Watch of a resource for an observer.
pub struct ResourceWatch<W, K, C> {
    /// API of the resource, in the cluster or in one namespace.
    pub api: Api<W>,
    /// Configuration of the watch.
    pub config: watcher::Config,
    /// Name of the resource.
    pub resource: ResourceName,
    /// Namespace; `None` is the whole cluster.
    pub place: Option<String>,
    /// Observer of the objects.
    pub observer: Arc<dyn Observer<K>>,
    /// Conversion of a watched object into an observed one.
    pub into: fn(W) -> K,
    /// Creates the metrics guard of a watch.
    pub guard: C,
    /// Watchdog of each step.
    pub watchdog: Watchdog,
}

impl<W, K, C> ResourceWatch<W, K, C>
where
    W: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    K: 'static,
    C: Fn() -> WatchGuard + Send,
{
    /// Watches until dropped, and relists for each new `generation`.
    pub async fn run(self, mut generation: watch::Receiver<u64>) {
        loop {
            let current = *generation.borrow_and_update();
            self.observer
                .on_started(&self.resource, self.place.as_deref(), current);
            tokio::select! {
                () = self.watch() => {}
                () = next(&mut generation) => {}
            }
        }
    }

    async fn watch(&self) {
        let mut update = std::pin::pin!(watch_updates(
            self.api.clone(),
            self.config.clone(),
            (self.guard)()
        ));
        while let Some(update) = update.next().await {
            let _busy = self.watchdog.busy();
            self.notify(update);
        }
    }

    fn notify(&self, update: WatchUpdate<W>) {
        let Self {
            resource, observer, ..
        } = self;
        let place = self.place.as_deref();
        match update {
            WatchUpdate::Event(Event::Init) => observer.on_list_started(resource, place),
            WatchUpdate::Event(Event::InitApply(object) | Event::Apply(object)) => {
                observer.on_applied(resource, (self.into)(object));
            }
            WatchUpdate::Event(Event::Delete(object)) => {
                observer.on_deleted(resource, (self.into)(object));
            }
            WatchUpdate::Event(Event::InitDone) => {
                debug!(resource = resource.plural, "listed");
                observer.on_list_done(resource, place);
            }
            WatchUpdate::Recovered => observer.on_recovered(resource, place),
            WatchUpdate::Failed(error) => {
                let cause = &error as &dyn std::error::Error;
                warn!(
                    resource = resource.plural,
                    error = cause,
                    "watch failed; will retry"
                );
                observer.on_error(resource, place, &error);
            }
        }
    }
}

/// Waits for the next generation; never returns without a sender.
async fn next(generation: &mut watch::Receiver<u64>) {
    if generation.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
