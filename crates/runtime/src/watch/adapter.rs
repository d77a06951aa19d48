//! Adapter between the watches of a resource and an index of its objects. The adapter runs one watch for each watched
//! namespace, or one for all namespaces; compares each list with the index; and keeps the state of the lists.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::select_all;
use kube::discovery::ApiResource;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use qm_core::shared;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tracing::{debug, warn};

use super::stream::{WatchUpdate, error_status, watch_updates};
use crate::ObjectKey;
use crate::availability::Availability;
use crate::health::Watchdog;
use crate::metrics::{Metrics, Purpose};

/// Resource, as API paths name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceName {
    /// API version, such as `apps/v1` or `v1`.
    pub api_version: Arc<str>,
    /// Plural, such as `deployments`.
    pub plural: Arc<str>,
}

impl ResourceName {
    /// Returns the API group, empty for the core group.
    pub fn group(&self) -> &str {
        let split = self.api_version.split_once('/');
        split.map_or("", |(group, _)| group)
    }

    /// Returns the name with its group, as CRDs and metrics use it, such as `deployments.apps` or `services`.
    pub fn full(&self) -> String {
        match self.group() {
            "" => self.plural.to_string(),
            group => format!("{}.{group}", self.plural),
        }
    }
}

impl From<&ApiResource> for ResourceName {
    fn from(resource: &ApiResource) -> Self {
        Self {
            api_version: shared::text(&resource.api_version),
            plural: shared::text(&resource.plural),
        }
    }
}

/// Index of watched objects. The task of the watch calls the methods, one at a time, so no method may block.
///
/// `namespace` is the namespace that a watch covers; `None` is all namespaces, or a cluster-scoped resource.
pub trait Index<T>: Send + Sync + 'static {
    /// Applies the state of an existing object. Returns whether the index keeps anything of the object.
    fn apply(&self, object: T) -> bool;

    /// Deletes an object. `last` is its last state, `None` if a list did not show the object or the watch has stopped.
    fn delete(&self, key: &ObjectKey, last: Option<T>);

    /// Returns the keys of the objects in `namespace` of which the index keeps anything. The watch deletes those that a
    /// complete list did not show.
    fn keys(&self, namespace: Option<&str>) -> Vec<ObjectKey>;

    /// Handles a new phase of the watch of `namespace`.
    fn phase(&self, _namespace: Option<&str>, _phase: &WatchPhase) {}
}

/// Index that borrows the watched objects, so that several indexes can share one watch.
pub trait Observer<T>: Send + Sync + 'static {
    /// Reads the state of an existing object. Returns whether the observer keeps anything of the object.
    fn apply(&self, object: &T) -> bool;

    /// Deletes an object, as [`Index::delete`] does.
    fn delete(&self, key: &ObjectKey, last: Option<&T>);

    /// Returns the keys of objects, as [`Index::keys`] does.
    fn keys(&self, namespace: Option<&str>) -> Vec<ObjectKey>;
}

/// An index and the observers of its watch. The observers get each object first, because the index triggers reconciles
/// that read the observers.
pub(crate) struct ObservedIndex<T> {
    pub observers: Vec<Arc<dyn Observer<T>>>,
    pub index: Option<Arc<dyn Index<T>>>,
}

impl<T: 'static> Index<T> for ObservedIndex<T> {
    fn apply(&self, object: T) -> bool {
        let mut is_kept = false;
        for observer in &self.observers {
            is_kept |= observer.apply(&object);
        }
        self.index.as_ref().is_some_and(|index| index.apply(object)) || is_kept
    }

    fn delete(&self, key: &ObjectKey, last: Option<T>) {
        for observer in &self.observers {
            observer.delete(key, last.as_ref());
        }
        if let Some(index) = &self.index {
            index.delete(key, last);
        }
    }

    fn keys(&self, namespace: Option<&str>) -> Vec<ObjectKey> {
        let observers = self.observers.iter().map(|it| it.keys(namespace));
        let index = self.index.iter().map(|it| it.keys(namespace));
        let mut keys: Vec<_> = observers.chain(index).flatten().collect();
        keys.sort();
        keys.dedup();
        keys
    }

    fn phase(&self, namespace: Option<&str>, phase: &WatchPhase) {
        if let Some(index) = &self.index {
            index.phase(namespace, phase);
        }
    }
}

/// Phase of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchPhase {
    /// A list begins.
    Listing {
        /// Number of the relist, see [`WatchCommand::relist`].
        relist: u64,
    },
    /// The list is complete: the index has every object of the watched namespace, and no other.
    Listed,
    /// Both list and watch succeed: an earlier problem is over.
    Recovered,
    /// The list or the watch failed and will be retried.
    Failed(WatchProblem),
    /// The watch has stopped, for this reason. The watch then deletes every object from the index.
    Stopped(String),
}

/// Why a resource cannot be watched. Transient errors are not problems.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchProblem {
    /// The operator may not list or watch the resource.
    Forbidden(String),
    /// The apiserver does not serve the resource.
    NotServed,
    /// The apiserver answers with another error, which persists.
    Failing(String),
}

impl WatchProblem {
    /// Returns the problem behind an error of a watch.
    pub fn of(error: &watcher::Error) -> Option<Self> {
        let status = error_status(error)?;
        match status.code {
            403 => Some(Self::Forbidden(status.message.clone())),
            404 => Some(Self::NotServed),
            // Other errors are transient.
            410 | 429 | 503 | 504 => None,
            _ => Some(Self::Failing(status.message.clone())),
        }
    }
}

/// Instructions for a watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WatchCommand {
    /// Number of relists requested. A higher number lists each watched namespace again; the index keeps its objects
    /// until that list is complete.
    pub relist: u64,
    /// Reason for which the watch is to stop.
    pub stop: Option<String>,
}

/// State of the lists of a resource: which watched namespaces are listed or denied. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct SyncState(Arc<watch::Sender<Lists>>);

#[derive(Debug, Default)]
struct Lists {
    /// Number of the relist; `None` before the watch runs.
    relist: Option<u64>,
    namespaces: BTreeMap<Option<String>, ListState>,
}

/// State of the list of one watched namespace.
#[derive(Debug, Default)]
struct ListState {
    /// True if the list of this relist is complete.
    is_listed: bool,
    /// Message of the apiserver that has denied list or watch since the last complete list.
    denied: Option<String>,
}

impl ListState {
    /// Returns why the apiserver denies the list, unless an earlier list of this relist is complete.
    fn unlisted(&self) -> Option<&String> {
        self.denied.as_ref().filter(|_| !self.is_listed)
    }
}

impl Lists {
    /// Returns whether every namespace has been listed or its list was denied, which does not block the others.
    fn are_synced(&self) -> bool {
        let is_synced = |list: &ListState| list.is_listed || list.denied.is_some();
        self.relist.is_some() && self.namespaces.values().all(is_synced)
    }
}

impl SyncState {
    /// Waits until every namespace has been listed or its list was denied.
    pub async fn synced(&self) {
        // `self` owns the sender.
        let _ = self.0.subscribe().wait_for(Lists::are_synced).await;
    }

    /// Returns the number of the relist, if every namespace has been listed or its list was denied.
    pub(crate) fn synced_relist(&self) -> Option<u64> {
        let lists = self.0.borrow();
        lists.relist.filter(|_| lists.are_synced())
    }

    /// Returns whether every namespace has been listed, and the apiserver denies none.
    pub fn is_listed(&self) -> bool {
        let is_listed = |list: &ListState| list.is_listed && list.denied.is_none();
        let lists = self.0.borrow();
        lists.relist.is_some() && lists.namespaces.values().all(is_listed)
    }

    /// Returns the message with which the apiserver denies a list or a watch.
    pub fn denied(&self) -> Option<String> {
        let lists = self.0.borrow();
        lists
            .namespaces
            .values()
            .find_map(|list| list.denied.clone())
    }

    /// Returns the namespaces that are not listed because the apiserver denies their lists, with its messages.
    pub fn unlisted(&self) -> BTreeMap<Option<String>, String> {
        let lists = self.0.borrow();
        let namespaces = lists.namespaces.iter();
        namespaces
            .filter_map(|(namespace, list)| Some((namespace.clone(), list.unlisted()?.clone())))
            .collect()
    }

    /// Returns whether `namespace` is not listed because the apiserver denies its list.
    pub(crate) fn is_unlisted(&self, namespace: &str) -> bool {
        let lists = self.0.borrow();
        lists.namespaces.iter().any(|(watched, list)| {
            watched
                .as_deref()
                .is_none_or(|watched| watched == namespace)
                && list.unlisted().is_some()
        })
    }

    /// Forgets that the lists are complete, until the watch begins a relist.
    pub(crate) fn invalidate(&self) {
        self.0.send_modify(|lists| lists.relist = None);
    }

    /// Begins a relist of these namespaces.
    pub fn begin(&self, relist: u64, namespaces: impl IntoIterator<Item = Option<String>>) {
        let lists = namespaces
            .into_iter()
            .map(|namespace| (namespace, ListState::default()));
        self.0.send_replace(Lists {
            relist: Some(relist),
            namespaces: lists.collect(),
        });
    }

    /// Records that the list of `namespace` is complete.
    pub fn set_listed(&self, namespace: Option<&str>) {
        self.update(namespace, |list| {
            (list.is_listed, list.denied) = (true, None);
        });
    }

    /// Records that the apiserver denies the list or the watch of `namespace`, which stays listed if it was.
    pub fn set_denied(&self, namespace: Option<&str>, why: String) {
        self.update(namespace, |list| list.denied = Some(why));
    }

    fn update(&self, namespace: Option<&str>, update: impl FnOnce(&mut ListState)) {
        let namespace = namespace.map(str::to_owned);
        self.0
            .send_modify(|lists| update(lists.namespaces.entry(namespace).or_default()));
    }
}

/// Watch of a resource, for an index of its objects.
pub(crate) struct ResourceWatch<W, T> {
    /// Name of the resource.
    pub resource: ResourceName,
    /// Watched namespaces and their APIs; `None` is all namespaces, or a cluster-scoped resource.
    pub apis: Vec<(Option<String>, Api<W>)>,
    /// Configuration of the watches.
    pub config: watcher::Config,
    /// Index of the objects.
    pub index: Arc<dyn Index<T>>,
    /// State of the lists.
    pub sync: SyncState,
    /// Metrics of the watches.
    pub metrics: Metrics,
    /// Availability of the apiserver.
    pub availability: Availability,
    /// Purpose of the watches, in the metrics.
    pub purpose: Purpose,
    /// Watchdog of each step.
    pub watchdog: Watchdog,
}

impl<W, T> ResourceWatch<W, T>
where
    W: Resource + Into<T> + Clone + Debug + DeserializeOwned + Send + 'static,
    T: 'static,
{
    /// Watches as the newest of `commands` requires, until the future is dropped.
    pub async fn run(self, mut commands: watch::Receiver<WatchCommand>) {
        loop {
            let WatchCommand { relist, stop } = commands.borrow_and_update().clone();
            let namespaces = self.apis.iter().map(|(namespace, _)| namespace.clone());
            self.sync.begin(relist, namespaces);
            if let Some(why) = stop {
                self.stop(&why);
                changed(&mut commands).await;
                continue;
            }
            tokio::select! {
                () = self.watch(relist) => {}
                () = changed(&mut commands) => {}
            }
        }
    }

    async fn watch(&self, relist: u64) {
        let watches = self.apis.iter().map(|(namespace, api)| {
            let guard = self.metrics.watch(&self.resource.full(), self.purpose);
            watch_updates(api.clone(), self.config.clone(), guard, &self.availability)
                .map(|update| (namespace.as_deref(), update))
                .boxed()
        });
        let mut updates = select_all(watches);
        // Keys of the objects that each running list has shown and the index keeps.
        let mut shown = HashMap::<_, HashSet<_>>::new();
        while let Some((namespace, update)) = updates.next().await {
            let _busy = self.watchdog.busy();
            let shown = shown.entry(namespace).or_default();
            match update {
                WatchUpdate::Event(Event::Init) => {
                    shown.clear();
                    self.index.phase(namespace, &WatchPhase::Listing { relist });
                }
                WatchUpdate::Event(Event::InitApply(object)) => {
                    let key = ObjectKey::of(&object);
                    if self.index.apply(object.into()) {
                        shown.insert(key);
                    }
                }
                WatchUpdate::Event(Event::InitDone) => {
                    debug!(resource = &*self.resource.plural, "listed");
                    self.delete_except(namespace, &std::mem::take(shown));
                    self.sync.set_listed(namespace);
                    self.index.phase(namespace, &WatchPhase::Listed);
                }
                WatchUpdate::Event(Event::Apply(object)) => {
                    self.index.apply(object.into());
                }
                WatchUpdate::Event(Event::Delete(object)) => {
                    let key = ObjectKey::of(&object);
                    self.index.delete(&key, Some(object.into()));
                }
                WatchUpdate::Recovered => self.index.phase(namespace, &WatchPhase::Recovered),
                WatchUpdate::Failed(error) => self.failed(namespace, &error),
            }
        }
    }

    /// Deletes the objects of `namespace` that its list did not show.
    fn delete_except(&self, namespace: Option<&str>, shown: &HashSet<ObjectKey>) {
        let keys = self.index.keys(namespace).into_iter();
        for key in keys.filter(|key| !shown.contains(key)) {
            self.index.delete(&key, None);
        }
    }

    fn failed(&self, namespace: Option<&str>, error: &watcher::Error) {
        warn!(
            resource = &*self.resource.plural,
            error = error as &dyn std::error::Error,
            "watch failed; will retry"
        );
        let Some(problem) = WatchProblem::of(error) else {
            return;
        };
        if let WatchProblem::Forbidden(why) = &problem {
            if self.availability.is_starting() {
                return;
            }
            self.sync.set_denied(namespace, why.clone());
        }
        self.index.phase(namespace, &WatchPhase::Failed(problem));
    }

    /// Empties the index.
    fn stop(&self, why: &str) {
        for (namespace, _) in &self.apis {
            let namespace = namespace.as_deref();
            self.index
                .phase(namespace, &WatchPhase::Stopped(why.to_owned()));
            self.delete_except(namespace, &HashSet::new());
        }
    }
}

/// Waits for the next command. The sender is dropped only while the process ends.
async fn changed(commands: &mut watch::Receiver<WatchCommand>) {
    if commands.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests;
