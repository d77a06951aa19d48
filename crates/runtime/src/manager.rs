//! Starts everything in order, leads, drains, ends.
//!
//! Every replica fills its caches and watches at once; only the one that leads runs passes and sends. What depends on a
//! kind waits for its CRD; the other kinds do not.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use kube::core::{ApiResource, NamespaceResourceScope};
use kube::runtime::reflector::Store;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use qm_core::kind::{Kind, KindInfo};
use serde::de::DeserializeOwned;
use tokio::sync::{SetOnce, mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use super::availability::Availability;
use super::backoff::Policy;
use super::cache::{Cache, CacheChange};
use super::events::Events;
use super::feed::Feed;
use super::health::{Health, State, Watchdog};
use super::leader::{self, Election, Fence, Outcome};
use super::metrics::resources::tally;
use super::metrics::{Metrics, Purpose};
use super::runner::{Limits, Reconcile, Runner};
use super::tasks::Tasks;
use super::trigger::Trigger;
use super::watch_hub::{Observer, ResourceName, ResourceWatch};
use super::{Scope, client, cluster, crds, drain, pages, signals};
use crate::settings::{Settings, Timings};

/// How many passes of one controller run at once.
const CONCURRENCY: u16 = 16;

/// What the controllers are built with, and where they are handed in.
pub struct Manager {
    /// Settings of the runtime.
    pub settings: Settings,
    /// Talks to the apiserver; writes only while this replica leads.
    pub client: Client,
    /// Whether this replica leads.
    pub fence: Fence,
    /// How to watch what is ours, and what is acted on as it is shown: lists are of the newest state.
    pub watches: watcher::Config,
    /// How to watch what is asked for again before it is acted on.
    pub others: watcher::Config,
    /// What part of the cluster is served.
    pub scope: Scope,
    /// What is counted.
    pub metrics: Metrics,
    /// Cancelled when nothing new is to be begun.
    pub draining: CancellationToken,
    /// What lasts as long as the process is guarded by these.
    pub tasks: Tasks,
    /// Whether the apiserver answers.
    pub availability: Availability,
    health: Health,
    identity: String,
    running: JoinSet<()>,
    passes: Vec<BoxFuture<'static, ()>>,
    landings: Vec<BoxFuture<'static, ()>>,
    under_way: TaskTracker,
}

/// One of our kinds: its objects, and what wakes its passes.
pub struct Watched<K: Resource<DynamicType = ()> + Clone + 'static> {
    /// The objects.
    pub store: Store<K>,
    /// Wakes passes.
    pub trigger: Trigger<K>,
    /// How far the cache is.
    pub phase: Phase,
    kind: &'static KindInfo,
    say: watch::Sender<State>,
    cache: Cache<K>,
}

/// How far the cache of a kind is.
#[derive(Clone)]
pub struct Phase(watch::Receiver<State>);

impl Phase {
    /// Why objects of this kind are not served in `namespace`: its CRD is missing or an older one, it is switched off, or
    /// may not be listed there. None while they are, and while that is not known yet. That one of them is not cached then
    /// says nothing of whether it exists.
    pub fn absent(&self, namespace: &str) -> Option<String> {
        match &*self.0.borrow() {
            State::Absent(why) => Some(why.clone()),
            State::Partly(refused) => refused
                .get(&None)
                .or_else(|| refused.get(&Some(namespace.to_owned())))
                .cloned(),
            State::Syncing | State::Synced => None,
        }
    }

    /// Creates a phase that `sender` ends.
    pub fn until() -> (watch::Sender<State>, Self) {
        let (sender, phase) = watch::channel(State::Syncing);
        (sender, Self(phase))
    }

    /// Whether objects are cached, where they may be listed.
    fn is_served(&self) -> bool {
        matches!(&*self.0.borrow(), State::Synced | State::Partly(_))
    }

    /// Waits until the cache is filled, as far as that is let in, or the CRD found missing.
    async fn settled(&mut self) {
        // The sender is gone once its last word is said.
        let _ = self.0.wait_for(|phase| *phase != State::Syncing).await;
    }
}

/// Runs an operator with the controllers that `start` adds until SIGTERM or Ctrl-C, on the cluster of the kubeconfig or of its own
/// Pod. The operator serves neither metrics nor probes; [`run`] takes everything from its caller.
///
/// # Errors
/// As [`run`], and without a cluster.
pub async fn run_with_defaults(
    settings: Settings,
    start: impl FnOnce(&mut Manager) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    // Fails only if the program has installed a TLS provider.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let stop = signals::stop()?;
    let kubernetes = cluster::current().await?;
    let metrics = Metrics::new(&settings.program);
    let (health, tasks) = (Health::new(), Tasks::new());
    run(start, settings, kubernetes, metrics, health, tasks, stop).await
}

/// Runs the operator, with the controllers that `start` adds, until `stop` is cancelled.
///
/// # Errors
/// When it cannot start, when the lease is lost, and when one of `tasks` ends that must not.
pub async fn run(
    start: impl FnOnce(&mut Manager) -> anyhow::Result<()>,
    settings: Settings,
    kubernetes: kube::Config,
    metrics: Metrics,
    health: Health,
    tasks: Tasks,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let fence = if settings.leader_elect {
        Fence::shut()
    } else {
        Fence::open()
    };
    let availability = Availability::default();
    let client = client::main(
        kubernetes.clone(),
        fence.clone(),
        availability.clone(),
        metrics.clone(),
        &settings.program,
        &settings.timings,
    )?;
    let watches = how_to_watch(&settings.timings);
    let others = tokio::select! {
        others = how_to_watch_others(&client, &watches, &settings.timings) => others,
        () = stop.cancelled() => return Ok(()),
    };
    let mut manager = Manager {
        scope: Scope::of(&settings.watch_namespaces),
        identity: leader::identity(settings.pod_name.as_deref(), settings.program.name),
        draining: CancellationToken::new(),
        running: JoinSet::new(),
        tasks: tasks.clone(),
        passes: Vec::new(),
        landings: Vec::new(),
        under_way: TaskTracker::new(),
        fence,
        client,
        availability,
        watches,
        others,
        metrics,
        health,
        settings,
    };
    let watch = manager.availability.clone().watch(manager.client.clone());
    manager.spawn("the watch over the apiserver's availability", watch);
    start(&mut manager)?;
    let end = stop.child_token();
    let lead = Box::pin(manager.lead(kubernetes, end.clone()));
    tasks.supervise(&end, lead).await
}

/// How to watch what is ours. Its lists are of the newest state: kube asks for a streamed one with `resourceVersion=0`,
/// which an apiserver that lags behind the others may answer with the past, and then what was told seems to wait again.
fn how_to_watch(timings: &Timings) -> watcher::Config {
    let seconds = u32::try_from(timings.watch_timeout.as_secs())
        .unwrap_or(u32::MAX)
        .max(1);
    watcher::Config {
        timeout: Some(seconds),
        page_size: Some(pages::MOST),
        ..watcher::Config::default()
    }
}

/// How to watch what is others': streamed lists spare memory, and who looks at the past asks again before it acts on it.
/// The apiserver is asked until it answers.
async fn how_to_watch_others(
    client: &Client,
    watches: &watcher::Config,
    timings: &Timings,
) -> watcher::Config {
    let mut backoff = Policy {
        min: Duration::from_millis(200),
        max: timings.api_timeout,
    }
    .series();
    loop {
        match client::streaming_lists_supported(client).await {
            Ok(true) => return watches.clone().streaming_lists(),
            Ok(false) => return watches.clone(),
            Err(error) => warn!(
                error = &error as &dyn std::error::Error,
                "waiting for the apiserver"
            ),
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

impl Manager {
    /// What a kind needs. Nothing is watched before [`Manager::control`].
    pub fn kind<K>(&self, kind: &'static KindInfo) -> Watched<K>
    where
        K: Kind + Clone + Debug + Send + Sync + 'static,
    {
        let cache = Cache::new(self.scope.shards());
        let (say, phase) = watch::channel(State::Syncing);
        Watched {
            store: cache.store(),
            trigger: Trigger::default(),
            phase: Phase(phase),
            kind,
            say,
            cache,
        }
    }

    /// What the Events of a controller go through.
    pub fn events(&mut self, controller: &str) -> Events {
        let (events, write) = Events::new(
            self.client.clone(),
            self.settings.program.name,
            &self.identity,
        );
        self.spawn(format!("the writer of {controller}'s Events"), write);
        events
    }

    /// Watches a kind and, while this replica leads, reconciles its objects, once the kinds of `after` are listed too. `on`
    /// is called with each change of the cache, on every replica, and with whether all objects have been listed.
    pub(super) fn control<R>(
        &mut self,
        watched: Watched<R::Object>,
        reconciler: Arc<R>,
        mut after: Vec<Phase>,
        on: impl Fn(CacheChange<R::Object>, bool) + Send + Sync + 'static,
    ) where
        R: Reconcile,
        R::Object: Resource<Scope = NamespaceResourceScope> + DeserializeOwned + Kind,
    {
        let Watched {
            store,
            trigger,
            mut phase,
            kind,
            say,
            cache,
        } = watched;
        let (ask, asked) = mpsc::channel(1);
        let name = kind.controller;
        let (served, objects) = (phase.clone(), store.clone());
        self.metrics.show_resources(name, move || {
            served
                .is_served()
                .then(|| tally(objects.state().iter().map(|object| object.readiness())))
        });
        if self.settings.runs(name) {
            self.health.set(name, State::Syncing);
            self.feed(kind, cache, say, asked, on);
        } else {
            let by = self.settings.program.hints.select_controllers;
            let off = State::Absent(format!("switched off by {by}"));
            self.health.set(name, off.clone());
            say.send_replace(off);
        }
        let limits = self.limits();
        let watchdog = self.watchdog(name);
        let runner = Runner::new(
            name,
            reconciler,
            limits,
            &self.metrics,
            self.availability.clone(),
            watchdog,
            self.under_way.clone(),
        );
        let stood_by = self.settings.leader_elect;
        let passes = async move {
            if stood_by {
                runner.lead();
                listed_anew(ask).await;
            }
            phase.settled().await;
            join_all(after.iter_mut().map(Phase::settled)).await;
            runner.run(store, trigger).await;
        };
        self.passes.push(
            self.tasks
                .guard(format!("the controller of {name}s"), passes)
                .boxed(),
        );
    }

    /// Shows `observer` the objects of a kind at these `places` (the whole cluster, or a namespace each), watched as `config`
    /// says and converted by `into`, once they are `wanted`.
    pub fn look<W, K>(
        &mut self,
        places: Vec<(Option<String>, Api<W>)>,
        config: &watcher::Config,
        wanted: &Arc<SetOnce<()>>,
        observer: &Arc<impl Observer<K>>,
        into: fn(W) -> K,
    ) where
        W: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static,
        K: 'static,
    {
        let resource = ResourceName::from(&ApiResource::erase::<W>(&()));
        for (shard, api) in places {
            let name = format!("the watch of {}", resource.full());
            let watchdog = self.watchdog(resource.full());
            let observer: Arc<dyn Observer<K>> = Arc::clone(observer) as _;
            let (metrics, full) = (self.metrics.clone(), resource.full());
            let counted = move || metrics.watch(&full, Purpose::Own);
            let (config, resource) = (config.clone(), resource.clone());
            let watch = ResourceWatch {
                api,
                config,
                resource,
                shard,
                observer,
                into,
                counted,
                watchdog,
            };
            let (wanted, once) = (Arc::clone(wanted), watch::channel(0).1);
            self.spawn(name, async move {
                wanted.wait().await;
                watch.run(once).await;
            });
        }
    }

    /// Runs `task` for as long as the process, also while this replica stands by. That it ends is a fault.
    pub fn spawn(
        &mut self,
        name: impl Into<String>,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.running.spawn(self.tasks.guard(name, task));
    }

    /// Watches over a loop that is called `name` in `/livez`.
    pub fn watchdog(&self, name: impl Into<String>) -> Watchdog {
        self.health
            .watchdog(name, longest_step(&self.settings.timings))
    }

    /// At the end `landing` is waited for a moment: what is under way may come to rest.
    pub fn land(&mut self, landing: impl Future<Output = ()> + Send + 'static) {
        self.landings.push(landing.boxed());
    }

    fn feed<K>(
        &mut self,
        kind: &KindInfo,
        cache: Cache<K>,
        phase: watch::Sender<State>,
        asked: mpsc::Receiver<oneshot::Sender<()>>,
        on: impl Fn(CacheChange<K>, bool) + Send + Sync + 'static,
    ) where
        K: Kind
            + Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        let (presence, follow) = crds::follow(
            self.client.clone(),
            kind,
            self.settings.program.hints.replace_crds,
            &self.watches,
            &self.metrics,
        );
        self.spawn(
            format!("the watch of the CRD of {}s", kind.controller),
            follow,
        );
        let feed = Feed {
            name: kind.controller,
            apis: self
                .scope
                .places(&self.client)
                .into_iter()
                .map(|(_, api)| api)
                .collect(),
            watches: self.watches.clone(),
            metrics: self.metrics.clone(),
            health: self.health.clone(),
            watchdog: self.watchdog(format!("{}-cache", kind.controller)),
            phase,
            presence,
            asked,
        };
        self.spawn(
            format!("the cache of {}s", kind.controller),
            feed.run(cache, on),
        );
    }

    fn limits(&self) -> Limits {
        let timings = &self.settings.timings;
        Limits {
            concurrency: CONCURRENCY,
            timeout: timings.reconcile_timeout,
            failed: Policy {
                min: timings.backoff_min,
                max: timings.backoff_max,
            },
            slow: Policy {
                min: timings.slow_backoff_min,
                max: timings.slow_backoff_max,
            },
            waiting: Policy {
                min: timings.poll_min,
                max: timings.poll_max,
            },
            resync: timings.sync_period,
        }
    }

    async fn lead(self, kubernetes: kube::Config, stop: CancellationToken) -> anyhow::Result<()> {
        let Self {
            settings,
            fence,
            metrics,
            health,
            draining,
            identity,
            passes,
            landings,
            under_way,
            running,
            ..
        } = self;
        let work = drain::work(
            passes,
            stop.clone(),
            drain::rest(
                draining,
                landings,
                under_way,
                settings.timings.graceful_shutdown_timeout,
            ),
        );
        metrics.show_leadership(&settings.leader_election_id, fence.clone());
        if !settings.leader_elect {
            work.await;
            return Ok(());
        }
        let lease = client::unfenced(kubernetes, &settings.program, metrics)?;
        let place = (&*settings.operator_namespace, &*settings.leader_election_id);
        let watchdog = health.watchdog("lease", longest_step(&settings.timings));
        let election = Election::new(lease, place, identity, &settings.timings, watchdog);
        let outcome = leader::lead(&election, &fence, &stop, work).await;
        drop(running);
        match outcome {
            Outcome::Finished(()) | Outcome::Stopped => Ok(()),
            Outcome::Lost => anyhow::bail!("lost the lease; the process must restart"),
        }
    }
}

/// Waits until a feed has listed its objects anew. A watch that fell silent while this replica stood by shows the past, and
/// a pass over that would undo what the other one did since.
async fn listed_anew(ask: mpsc::Sender<oneshot::Sender<()>>) {
    let (done, listed) = oneshot::channel();
    // Where nothing is served there is nobody to ask, and nothing to pass over.
    if ask.send(done).await.is_ok() {
        let _ = listed.await;
    }
}

/// What every loop stays below: a pass that overstays is dropped, and whatever does not even do that is stuck.
fn longest_step(timings: &Timings) -> Duration {
    timings.reconcile_timeout * 2
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn a_phase_says_why_its_kind_is_not_served() {
        let (say, phase) = watch::channel(State::Syncing);
        let phase = Phase(phase);
        assert_eq!(phase.absent("a"), None, "that is not known yet");
        say.send_replace(State::Absent("switched off".into()));
        assert_eq!(phase.absent("a").as_deref(), Some("switched off"));
        say.send_replace(State::Partly([(Some("b".into()), "no".into())].into()));
        assert_eq!(
            (phase.absent("a"), phase.absent("b")),
            (None, Some("no".into()))
        );
        say.send_replace(State::Partly([(None, "no".into())].into()));
        assert_eq!(phase.absent("a").as_deref(), Some("no"));
        say.send_replace(State::Synced);
        assert_eq!(phase.absent("a"), None);
    }
}
