//! Starts controllers and drains them on shutdown.
//!
//! Every replica, standbys included, watches and fills its caches; only the leader reconciles. A controller waits for
//! the CRD of its kind, and controllers of other kinds do not wait for that CRD.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, ready, select_all};
use k8s_openapi::api::core::v1::Namespace;
use kube::core::{ApiResource, ClusterResourceScope, NamespaceResourceScope, PartialObjectMeta};
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use qm_core::kind::{Kind, KindInfo};
use serde::de::DeserializeOwned;
use tokio::sync::{Semaphore, SetOnce, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::availability::Availability;
use super::backoff::BackoffPolicy;
use super::cache::{Cache, CacheChange, CacheStatus, KindCacheState};
use super::child_cache::ChildCache;
use super::children::{ChildKind, ChildSummary, Children, WriteLimiter};
use super::controller::{Controller, KindContext, Reconciler};
use super::drain::InFlight;
use super::drift::{Advice, Drift};
use super::events::Events;
use super::health::{KindReadiness, Probes, Watchdog};
use super::leader::{self, Fence, LeaderElector, LeadershipEnd};
use super::metrics::resources::{counted_readiness, tally};
use super::metrics::{Metrics, Purpose};
use super::objects::Objects;
use super::raw_object::BoundedObject;
use super::reconciled_kind::ReconciledKind;
use super::runner::{ReconcileLimits, Runner};
use super::tasks::Tasks;
use super::trigger::Trigger;
use super::watch::{
    Index, ObservedIndex, Observer, ResourceName, ResourceWatch, SyncState, WatchCommand, crds,
};
use super::{WatchScope, client, cluster, drain, pages, signals};
use crate::settings::{RuntimeTimings, Settings};

/// Maximum number of concurrent reconciles of one controller.
const MAX_CONCURRENT_RECONCILES: u16 = 16;

/// Maximum time that the write of a status waits for reconciles, so that constant load starves no status.
const MAX_STATUS_DELAY: Duration = Duration::from_secs(5);

/// Namespace, of which the operator watches the metadata only.
pub type NamespaceMeta = PartialObjectMeta<Namespace>;

/// The operator's controllers, and what they share.
pub struct Manager {
    /// Settings of the runtime.
    pub settings: Settings,
    /// Client of the apiserver, which writes only while this replica leads.
    pub client: Client,
    /// Fence, open while this replica leads.
    pub fence: Fence,
    /// Configuration of watches whose lists return the newest state: those of the operator's own kinds, and of objects
    /// that the operator acts on without another read.
    pub watch_config: watcher::Config,
    /// Configuration of watches whose lists are streamed where the apiserver supports it, and may be stale: the
    /// operator reads an object again before it acts on it.
    pub streaming_watch_config: watcher::Config,
    /// Namespaces that the operator watches.
    pub scope: WatchScope,
    /// Metrics of the process.
    pub metrics: Metrics,
    /// Token that is cancelled when no new work outside reconciles may start.
    pub draining: CancellationToken,
    /// Guard of the tasks that last as long as the process.
    pub tasks: Tasks,
    /// Availability of the apiserver.
    pub availability: Availability,
    /// State of the list of namespaces, see [`Manager::watch_namespaces`].
    pub namespaces_sync: SyncState,
    namespace_observers: Vec<Arc<dyn Observer<NamespaceMeta>>>,
    namespaces_needed: Vec<Arc<SetOnce<()>>>,
    /// Commands for the watches of objects that the operator acts on without another read.
    authoritative: watch::Sender<WatchCommand>,
    /// States of the lists of these watches.
    authoritative_syncs: Vec<SyncState>,
    /// Permit for the one large child of typed watches that may be in memory.
    large_child: Arc<Semaphore>,
    probes: Probes,
    identity: String,
    /// Tasks of [`Manager::spawn`].
    spawned: JoinSet<()>,
    controllers: Vec<BoxFuture<'static, ()>>,
    drains: Vec<BoxFuture<'static, ()>>,
    in_flight: InFlight,
}

/// Handles of one of the operator's kinds: its objects, and the trigger of its reconciles.
pub struct KindHandles<K: Resource<DynamicType = ()> + Clone + 'static> {
    /// Cached objects.
    pub objects: Objects<K>,
    /// Trigger of the reconciles.
    pub trigger: Trigger<K>,
    /// State of the cache.
    pub cache: CacheStatus,
    kind: &'static KindInfo,
    state: watch::Sender<KindCacheState>,
    /// State of the lists of the kind's watch.
    pub(super) sync: SyncState,
    observers: Vec<Arc<dyn Observer<K>>>,
}

impl<K: Resource<DynamicType = ()> + Clone + 'static> KindHandles<K> {
    /// Adds an observer of the kind's watch. An observer gets whole objects, whereas the cache drops metadata.
    pub fn add_observer(&mut self, observer: Arc<impl Observer<K>>) {
        self.observers.push(observer);
    }
}

/// Runs an operator with the controllers that `start` adds until SIGTERM or Ctrl-C, on the cluster of the kubeconfig or
/// of its own Pod. The operator serves neither metrics nor probes. With [`run`], the caller provides everything.
///
/// # Errors
/// The errors of [`run`], and an error if there is no cluster.
pub async fn run_with_defaults(
    settings: Settings,
    start: impl FnOnce(&mut Manager) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // Fails only if the program has installed a TLS provider.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let stop = signals::stop()?;
    let kubernetes = cluster::current().await?;
    let metrics = Metrics::new(&settings.program);
    let (probes, tasks) = (Probes::new(), Tasks::new());
    run(start, settings, kubernetes, metrics, probes, tasks, stop).await
}

/// Runs the operator, with the controllers that `start` adds, until `stop` is cancelled.
///
/// # Errors
/// A client that cannot be created, the error of `start`, a lost lease, and a [`TaskExit`](crate::tasks::TaskExit).
pub async fn run(
    start: impl FnOnce(&mut Manager) -> anyhow::Result<()>,
    settings: Settings,
    kubernetes: kube::Config,
    metrics: Metrics,
    probes: Probes,
    tasks: Tasks,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let fence = if settings.leader_elect {
        Fence::shut()
    } else {
        Fence::open()
    };
    let availability = Availability::default();
    let client = client::fenced(
        kubernetes.clone(),
        fence.clone(),
        availability.clone(),
        metrics.clone(),
        &settings.program,
        &settings.timings,
    )?;
    let watch_config = newest_config(&settings.timings);
    let streaming_watch_config = tokio::select! {
        config = streaming_config(&client, &watch_config, &settings.timings) => config,
        () = stop.cancelled() => return Ok(()),
    };
    let mut manager = Manager {
        scope: WatchScope::of(&settings.watch_namespaces),
        identity: leader::identity(settings.pod_name.as_deref(), settings.program.name),
        draining: CancellationToken::new(),
        spawned: JoinSet::new(),
        tasks: tasks.clone(),
        controllers: Vec::new(),
        drains: Vec::new(),
        in_flight: InFlight::default(),
        namespaces_sync: SyncState::default(),
        namespace_observers: Vec::new(),
        namespaces_needed: Vec::new(),
        authoritative: watch::Sender::default(),
        authoritative_syncs: Vec::new(),
        fence,
        client,
        availability,
        watch_config,
        streaming_watch_config,
        metrics,
        large_child: Arc::new(Semaphore::new(1)),
        probes,
        settings,
    };
    let watch = manager.availability.clone().watch(manager.client.clone());
    manager.spawn("the probe of the apiserver's availability", watch);
    start(&mut manager)?;
    manager.probes.set_started();
    manager.start_namespaces();
    let end = stop.child_token();
    let controllers = Box::pin(manager.run_controllers(kubernetes, end.clone()));
    tasks.supervise(&end, controllers).await
}

/// Returns the configuration whose lists return the newest state. kube requests streamed lists with
/// `resourceVersion=0`, which a lagging apiserver may answer with stale state, and a reconcile of that state would
/// repeat a write.
fn newest_config(timings: &RuntimeTimings) -> watcher::Config {
    let seconds = u32::try_from(timings.watch_timeout.as_secs())
        .unwrap_or(u32::MAX)
        .max(1);
    watcher::Config {
        timeout: Some(seconds),
        page_size: Some(pages::MAX_OBJECTS),
        ..watcher::Config::default()
    }
}

/// Returns the configuration whose lists are streamed, which saves memory, if the apiserver supports that. Asks the
/// apiserver until it answers.
async fn streaming_config(
    client: &Client,
    newest: &watcher::Config,
    timings: &RuntimeTimings,
) -> watcher::Config {
    let mut backoff = BackoffPolicy {
        min: Duration::from_millis(200),
        max: timings.api_timeout,
    }
    .start();
    loop {
        match client::streaming_lists_supported(client).await {
            Ok(true) => return newest.clone().streaming_lists(),
            Ok(false) => return newest.clone(),
            Err(error) => warn!(
                error = &error as &dyn std::error::Error,
                "cannot read the version of the apiserver; will retry"
            ),
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

impl Manager {
    /// Creates the handles of a kind. No watch starts before [`Manager::add_controller`].
    pub fn kind<K>(&self, kind: &'static KindInfo) -> KindHandles<K>
    where
        K: Kind + Clone + Debug + Send + Sync + 'static,
    {
        let state = watch::Sender::new(KindCacheState::syncing());
        KindHandles {
            objects: Objects::default(),
            trigger: Trigger::default(),
            cache: CacheStatus::new(&state, self.settings.leader_elect),
            kind,
            state,
            sync: SyncState::default(),
            observers: Vec::new(),
        }
    }

    /// Creates the emitter of a controller's Events.
    pub fn events(&mut self, controller: &str) -> Events {
        let (events, write) = Events::new(
            self.client.clone(),
            self.settings.program.name,
            &self.identity,
        );
        self.spawn(format!("the writer of {controller}'s Events"), write);
        events.counted_by(self.in_flight.clone())
    }

    /// Adds the controller that `new` builds.
    ///
    /// # Errors
    /// The errors of `new`.
    pub fn add<C: Controller>(
        &mut self,
        new: impl FnOnce(&mut Setup<'_, C::Kind>) -> anyhow::Result<C>,
    ) -> anyhow::Result<()> {
        let handles = self.kind(C::KIND);
        self.add_controller(handles, new)
    }

    /// Adds the controller that `new` builds, of a kind whose objects another controller needs as well: `handles` comes
    /// from [`Manager::kind`]. Every replica watches the kind; the controller reconciles while this replica leads and
    /// once [`Setup::after`] has ended.
    ///
    /// # Errors
    /// The errors of `new`.
    pub fn add_controller<C: Controller>(
        &mut self,
        handles: KindHandles<C::Kind>,
        new: impl FnOnce(&mut Setup<'_, C::Kind>) -> anyhow::Result<C>,
    ) -> anyhow::Result<()> {
        let name = C::KIND.controller;
        let KindHandles {
            objects,
            trigger,
            cache,
            kind,
            state,
            sync,
            observers,
        } = handles;
        let watch_needed = Arc::new(SetOnce::new());
        let events = self.events(name);
        let shared = KindContext::new(
            self.client.clone(),
            C::FIELD_MANAGER,
            objects.clone(),
            trigger.clone(),
            events.clone(),
        );
        let mut setup = Setup {
            manager: self,
            objects: objects.clone(),
            trigger: trigger.clone(),
            events,
            watch_needed: Arc::clone(&watch_needed),
            after: ready(()).boxed(),
            name,
            field_manager: C::FIELD_MANAGER,
        };
        let controller = new(&mut setup)?;
        let after = setup.after;
        let limits = self.limits(&controller);
        let reconciler = Arc::new(Reconciler::new(controller, shared, sync.clone()));

        let (served, counted) = (cache.clone(), objects.clone());
        self.metrics.set_resources(name, move || {
            served.is_served().then(|| {
                let objects = counted.all();
                tally(objects.iter().map(|object| counted_readiness(&**object)))
            })
        });
        let commands = watch::Sender::<WatchCommand>::default();
        if self.settings.runs(name) {
            self.probes.set(name, KindReadiness::Syncing);
            let (observed, reconciles) = (Arc::clone(&reconciler), trigger.clone());
            let on = move |change, is_listed| {
                if let CacheChange::Present(_) = change {
                    // Later calls have no effect.
                    let _ = watch_needed.set(());
                }
                observed.on_change(change, is_listed, &reconciles);
            };
            let cache = Cache::new(
                name,
                objects.clone(),
                sync.clone(),
                on,
                self.probes.clone(),
                state,
            );
            let index = ObservedIndex {
                observers,
                index: Some(Arc::new(cache)),
            };
            self.watch_kind(kind, index, sync, commands.clone());
        } else {
            let by = self.settings.program.hints.select_controllers;
            let off = KindReadiness::Absent(format!("disabled by {by}"));
            self.probes.set(name, off.clone());
            state.send_modify(|state| state.kind = off);
        }

        let runner = Runner::new(
            name,
            reconciler,
            limits,
            &self.metrics,
            self.availability.clone(),
            self.watchdog(name),
            self.in_flight.clone(),
        );
        let is_candidate = self.settings.leader_elect;
        let run = async move {
            if is_candidate {
                runner.on_started_leading();
                commands.send_modify(|command| command.relist += 1);
            }
            cache.synced().await;
            after.await;
            runner.run(objects, trigger).await;
        };
        self.controllers.push(
            self.tasks
                .guard(format!("the controller of {name}s"), run)
                .boxed(),
        );
        Ok(())
    }

    /// Watches the namespaces of `apis` with `config`, once `watch_needed` is set. `index` gets the objects, and `sync`
    /// the state of the lists.
    pub fn watch_resource<W>(
        &mut self,
        apis: Vec<(Option<String>, Api<W>)>,
        config: &watcher::Config,
        watch_needed: &Arc<SetOnce<()>>,
        index: &Arc<impl Index<W>>,
        sync: &SyncState,
    ) where
        W: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let needed = vec![Arc::clone(watch_needed)];
        let commands = watch::channel(WatchCommand::default()).1;
        self.watch_once_needed(apis, config, needed, index, sync, commands);
    }

    /// Watches cluster-scoped objects that the operator acts on without another read, once one of `needed` is set: lists
    /// return the newest state, and a new leader lists again, because a watch of a standby may have stalled.
    pub fn watch_authoritative<W>(
        &mut self,
        needed: Vec<Arc<SetOnce<()>>>,
        index: &Arc<impl Index<W>>,
        sync: &SyncState,
    ) where
        W: Resource<DynamicType = (), Scope = ClusterResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + 'static,
    {
        let apis = vec![(None, Api::all(self.client.clone()))];
        let (config, commands) = (self.watch_config.clone(), self.authoritative.subscribe());
        self.authoritative_syncs.push(sync.clone());
        self.watch_once_needed(apis, &config, needed, index, sync, commands);
    }

    /// Watches once one of `needed` is set.
    fn watch_once_needed<W>(
        &mut self,
        apis: Vec<(Option<String>, Api<W>)>,
        config: &watcher::Config,
        needed: Vec<Arc<SetOnce<()>>>,
        index: &Arc<impl Index<W>>,
        sync: &SyncState,
        commands: watch::Receiver<WatchCommand>,
    ) where
        W: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let resource = ResourceName::from(&ApiResource::erase::<W>(&()));
        let watch = ResourceWatch {
            apis,
            config: config.clone(),
            index: Arc::clone(index) as _,
            sync: sync.clone(),
            metrics: self.metrics.clone(),
            availability: self.availability.clone(),
            purpose: Purpose::Own,
            watchdog: self.watchdog(resource.full()),
            resource,
        };
        self.spawn_watch(watch, needed, commands);
    }

    /// Adds an observer to the watch of all namespaces, which the controllers share. The watch begins once a controller
    /// sets its `watch_needed`.
    pub fn watch_namespaces(
        &mut self,
        watch_needed: &Arc<SetOnce<()>>,
        observer: Arc<impl Observer<NamespaceMeta>>,
    ) {
        self.namespaces_needed.push(Arc::clone(watch_needed));
        self.namespace_observers.push(observer);
    }

    fn start_namespaces(&mut self) {
        let observers = std::mem::take(&mut self.namespace_observers);
        let needed = std::mem::take(&mut self.namespaces_needed);
        if observers.is_empty() {
            return;
        }
        let index = Arc::new(ObservedIndex {
            observers,
            index: None,
        });
        let sync = self.namespaces_sync.clone();
        self.watch_authoritative::<NamespaceMeta>(needed, &index, &sync);
    }

    /// Runs `watch` once one of `needed` is set.
    fn spawn_watch<W>(
        &mut self,
        watch: ResourceWatch<W, W>,
        needed: Vec<Arc<SetOnce<()>>>,
        commands: watch::Receiver<WatchCommand>,
    ) where
        W: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    {
        let name = format!("the watch of {}", watch.resource.full());
        self.spawn(name, async move {
            select_all(needed.iter().map(|needed| needed.wait().boxed())).await;
            watch.run(commands).await;
        });
    }

    /// Runs `task` until the process ends, also on a standby. An earlier exit of the task ends the process.
    pub fn spawn(
        &mut self,
        name: impl Into<String>,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.spawned.spawn(self.tasks.guard(name, task));
    }

    /// Creates the watchdog of a loop, which `/livez` calls `name`.
    pub fn watchdog(&self, name: impl Into<String>) -> Watchdog {
        self.probes.watchdog(name, max_step(&self.settings.timings))
    }

    /// Adds a future that the shutdown waits for, within its timeout: work in flight outside reconciles.
    pub fn wait_on_shutdown(&mut self, drained: impl Future<Output = ()> + Send + 'static) {
        self.drains.push(drained.boxed());
    }

    /// Watches a kind while its CRD exists with a compatible schema.
    fn watch_kind<K>(
        &mut self,
        kind: &KindInfo,
        index: ObservedIndex<K>,
        sync: SyncState,
        commands: watch::Sender<WatchCommand>,
    ) where
        K: Kind
            + Resource<Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        let watch = ResourceWatch {
            resource: ResourceName::from(&ApiResource::erase::<K>(&())),
            apis: self.scope.apis::<K>(&self.client),
            config: self.watch_config.clone(),
            sync,
            index: Arc::new(index),
            metrics: self.metrics.clone(),
            availability: self.availability.clone(),
            purpose: Purpose::Own,
            watchdog: self.watchdog(format!("{}-cache", kind.controller)),
        };
        let is_crd_known = Arc::<SetOnce<()>>::default();
        let needed = vec![Arc::clone(&is_crd_known)];
        self.spawn_watch(watch, needed, commands.subscribe());
        let follow = crds::follow(
            self.client.clone(),
            kind,
            self.settings.program.hints.replace_crds,
            &self.watch_config,
            &self.metrics,
            self.availability.clone(),
            commands,
            is_crd_known,
        );
        self.spawn(
            format!("the watch of the CRD of {}s", kind.controller),
            follow,
        );
    }

    /// Returns the limits of a controller's reconciles and status writes.
    fn limits<C: Controller>(&self, controller: &C) -> ReconcileLimits {
        let timings = &self.settings.timings;
        ReconcileLimits {
            concurrency: MAX_CONCURRENT_RECONCILES,
            timeout: timings.reconcile_timeout,
            failed: BackoffPolicy {
                min: timings.backoff_min,
                max: timings.backoff_max,
            },
            slow: BackoffPolicy {
                min: timings.slow_backoff_min,
                max: timings.slow_backoff_max,
            },
            waiting: BackoffPolicy {
                min: timings.poll_min,
                max: timings.poll_max,
            },
            sync_period: controller.sync_period(timings.sync_period),
            status_interval: controller.status_interval(),
            max_status_delay: if C::STATUS_CAN_WAIT {
                MAX_STATUS_DELAY
            } else {
                Duration::ZERO
            },
        }
    }

    /// Runs the controllers, with leader election only while this replica leads, until `stop`, and drains them.
    async fn run_controllers(
        self,
        kubernetes: kube::Config,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        let Self {
            settings,
            fence,
            metrics,
            probes,
            draining,
            identity,
            controllers,
            drains,
            in_flight,
            spawned,
            authoritative,
            authoritative_syncs,
            ..
        } = self;
        let work = drain::run(
            controllers,
            stop.clone(),
            drain::drain(
                draining,
                drains,
                in_flight,
                settings.timings.graceful_shutdown_timeout,
            ),
        );
        metrics.set_leadership(&settings.leader_election_id, fence.clone());
        if !settings.leader_elect {
            work.await;
            return Ok(());
        }
        let work = async {
            // Before the first reconcile, which waits for the lists.
            authoritative_syncs.iter().for_each(SyncState::invalidate);
            authoritative.send_modify(|command| command.relist += 1);
            work.await;
        };
        let lease = client::unfenced(kubernetes, &settings.program, metrics)?;
        let lease_key = (&*settings.operator_namespace, &*settings.leader_election_id);
        let watchdog = probes.watchdog("lease", max_step(&settings.timings));
        let election = LeaderElector::new(lease, lease_key, identity, &settings.timings, watchdog);
        let outcome = leader::lead(&election, &fence, &stop, work).await;
        drop(spawned);
        match outcome {
            LeadershipEnd::Finished(()) | LeadershipEnd::Stopped => Ok(()),
            LeadershipEnd::Lost => anyhow::bail!("lost the lease; the process must restart"),
        }
    }
}

/// Parts from which a controller of objects of kind `K` is built.
pub struct Setup<'a, K: ReconciledKind> {
    /// Manager that the controller is added to.
    pub manager: &'a mut Manager,
    /// Cached objects of the kind.
    pub objects: Objects<K>,
    /// Trigger of the reconciles.
    pub trigger: Trigger<K>,
    /// Emitter of the controller's Events.
    pub events: Events,
    /// Set once an object of the kind exists, which starts watches that only such objects need.
    pub watch_needed: Arc<SetOnce<()>>,
    /// Future that must end before the first reconcile, such as [`CacheStatus::synced`] of another kind.
    pub after: BoxFuture<'static, ()>,
    name: &'static str,
    field_manager: &'static str,
}

impl<K: ReconciledKind> Setup<'_, K> {
    /// Watches children of kind `T`; `summary` extracts what the owner's status needs. If a user edits one of the
    /// fields in `advice`, an Event names the change to make instead.
    pub fn children<T: ChildKind, S: ChildSummary>(
        &mut self,
        summary: fn(&T) -> S,
        advice: Advice,
    ) -> Arc<Children<T, S>> {
        let apis = self
            .manager
            .scope
            .apis::<BoundedObject<T>>(&self.manager.client);
        let config = self.manager.streaming_watch_config.clone();
        let config = config.labels(K::NAMES.owner_uid);
        let drift = self.drift(advice);
        let (cache, sync) = (self.child_cache(), SyncState::default());
        let children = Arc::new(self.children_of(cache, sync.clone(), summary, false, drift));
        self.manager
            .watch_resource(apis, &config, &self.watch_needed, &children, &sync);
        children
    }

    /// Returns children whose kind is one of the operator's own, so that the watch of that kind shows them. `handles`
    /// are those of that kind, to be [added](Manager::add_controller) later.
    pub fn children_of_kind<T, S>(
        &mut self,
        handles: &mut KindHandles<T>,
        summary: fn(&T) -> S,
        advice: Advice,
    ) -> Arc<Children<T, S>>
    where
        T: ChildKind + Kind,
        S: ChildSummary,
    {
        let (cache, sync) = (self.child_cache(), handles.sync.clone());
        let drift = self.drift(advice);
        let children = Arc::new(self.children_of(cache, sync, summary, false, drift));
        handles.add_observer(Arc::clone(&children));
        children
    }

    /// Returns children that are watched by their metadata, because they may be large. The caller runs the watch, which
    /// fills `cache` and `sync`. Corrections of these children are never delayed.
    pub fn children_by_metadata<T: ChildKind>(
        &self,
        cache: Arc<ChildCache<()>>,
        sync: SyncState,
        advice: Advice,
    ) -> Children<T, ()> {
        let drift = self.drift(advice).without_backoff();
        self.children_of(cache, sync, |_| (), true, drift)
    }

    /// Returns an empty cache of children.
    pub fn child_cache<S: ChildSummary>(&self) -> Arc<ChildCache<S>> {
        Arc::new(ChildCache::new(self.manager.settings.timings.sync_period))
    }

    fn drift(&self, advice: Advice) -> Drift {
        Drift::new(
            &self.manager.settings.timings,
            self.events.clone(),
            self.manager.metrics.drift_corrections(self.name),
            advice,
        )
    }

    fn children_of<T: ChildKind, S: ChildSummary>(
        &self,
        cache: Arc<ChildCache<S>>,
        sync: SyncState,
        summary: fn(&T) -> S,
        watches_metadata: bool,
        drift: Drift,
    ) -> Children<T, S> {
        let trigger = self.trigger.clone();
        Children {
            client: self.manager.client.clone(),
            names: K::NAMES,
            field_manager: self.field_manager,
            cache,
            summary,
            watches_metadata,
            large: if watches_metadata {
                Arc::new(Semaphore::new(1))
            } else {
                Arc::clone(&self.manager.large_child)
            },
            wake: Arc::new(move |owner| trigger.wake(owner)),
            watch_needed: Arc::clone(&self.watch_needed),
            sync,
            drift,
            unconfirmed: WriteLimiter::new(self.manager.settings.timings.confirmation_period),
        }
    }
}

/// Returns the duration from which a step counts as stuck: a reconcile is dropped after its timeout.
fn max_step(timings: &RuntimeTimings) -> Duration {
    timings.reconcile_timeout * 2
}
