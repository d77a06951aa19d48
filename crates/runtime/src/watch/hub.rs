//! Watches of resources that specs name: one for each resource, however many specs name it. The hub stores no watched
//! object; it passes each to the index of the resource.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, PoisonError};

use kube::core::{DynamicResourceScope, PartialObjectMeta};
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tracing::info;

use super::adapter::{Index, ResourceName, ResourceWatch, SyncState, WatchCommand};
use crate::WatchScope;
use crate::availability::Availability;
use crate::health::Watchdog;
use crate::metrics::{Metrics, Purpose};
use crate::raw_object::RawObject;
use crate::tasks::Tasks;

/// Creates the index of a resource.
pub type NewIndex = Box<dyn Fn(ResourceName) -> Arc<dyn Index<RawObject>> + Send + Sync>;

/// Watches that begin and end while the process runs, by resource.
pub struct WatchHub {
    client: Client,
    scope: WatchScope,
    config: watcher::Config,
    new_index: NewIndex,
    metrics: Metrics,
    availability: Availability,
    tasks: Tasks,
    watchdog: Watchdog,
    commands: watch::Sender<WatchCommand>,
    watches: Mutex<HashMap<ResourceName, AbortHandle>>,
}

impl WatchHub {
    /// Creates a hub without watches. `config` configures each of them.
    #[expect(
        clippy::too_many_arguments,
        reason = "parts of the manager, which imports this module"
    )]
    pub fn new(
        client: Client,
        scope: WatchScope,
        config: watcher::Config,
        new_index: NewIndex,
        metrics: Metrics,
        availability: Availability,
        tasks: Tasks,
        watchdog: Watchdog,
    ) -> Self {
        Self {
            client,
            scope,
            config,
            new_index,
            metrics,
            availability,
            tasks,
            watchdog,
            commands: watch::Sender::default(),
            watches: Mutex::default(),
        }
    }

    /// Relists every watch. `next` receives the number of the relist before any list begins.
    pub fn relist(&self, next: impl FnOnce(u64)) {
        self.commands.send_modify(|command| {
            command.relist += 1;
            next(command.relist);
        });
    }

    /// Starts the watch of `resource`, unless it runs. With `metadata_only`, the index gets objects that have nothing
    /// but their metadata.
    pub fn ensure(&self, resource: &ApiResource, namespaced: bool, metadata_only: bool) {
        let name = ResourceName::from(resource);
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        if watches.contains_key(&name) {
            return;
        }
        info!(
            resource = &*name.plural,
            apiVersion = &*name.api_version,
            "started the watch of a resource"
        );
        let handle = if metadata_only {
            self.spawn::<PartialObjectMeta>(resource, &name, namespaced)
        } else {
            self.spawn::<RawObject>(resource, &name, namespaced)
        };
        watches.insert(name, handle);
    }

    fn spawn<W>(&self, resource: &ApiResource, name: &ResourceName, namespaced: bool) -> AbortHandle
    where
        W: Resource<DynamicType = ApiResource, Scope = DynamicResourceScope>
            + Into<RawObject>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + 'static,
    {
        let namespaces = if namespaced {
            self.scope.namespaces()
        } else {
            vec![None]
        };
        let apis = namespaces.into_iter().map(|namespace| {
            let api = match &namespace {
                Some(namespace) => {
                    Api::<W>::namespaced_with(self.client.clone(), namespace, resource)
                }
                None => Api::all_with(self.client.clone(), resource),
            };
            (namespace, api)
        });
        let watch = ResourceWatch {
            resource: name.clone(),
            apis: apis.collect(),
            config: self.config.clone(),
            index: (self.new_index)(name.clone()),
            sync: SyncState::default(),
            metrics: self.metrics.clone(),
            availability: self.availability.clone(),
            purpose: Purpose::Target,
            watchdog: self.watchdog.clone(),
        };
        let watch = watch.run(self.commands.subscribe());
        tokio::spawn(
            self.tasks
                .guard(format!("the watch of {}", name.plural), watch),
        )
        .abort_handle()
    }

    /// Stops the watches of resources for which `is_needed` returns false. Calls `stopped` for each resource before a new
    /// watch of the resource can start.
    pub fn retain(
        &self,
        is_needed: impl Fn(&ResourceName) -> bool,
        stopped: impl Fn(&ResourceName),
    ) {
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        watches.retain(|name, watch| {
            let keep = is_needed(name);
            if !keep {
                info!(
                    resource = &*name.plural,
                    apiVersion = &*name.api_version,
                    "stopped the watch of a resource that no object names any more"
                );
                watch.abort();
                stopped(name);
            }
            keep
        });
    }
}

impl Drop for WatchHub {
    fn drop(&mut self) {
        let watches = self.watches.get_mut();
        for watch in watches.unwrap_or_else(PoisonError::into_inner).values() {
            watch.abort();
        }
    }
}
