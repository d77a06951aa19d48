//! Starts everything in order, leads, drains, ends.
//!
//! Every replica fills its caches and watches at once; only the one that leads runs passes and sends. What depends on a
//! kind waits for its CRD; the other kinds do not.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::StreamExt;
use futures::stream::SelectAll;
use kube::core::NamespaceResourceScope;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::backoff::Policy;
use super::cache::{Cache, Touched};
use super::crds::{self, Presence};
use super::events::Events;
use super::health::{Health, State};
use super::leader::{self, Election, Fence, Outcome};
use super::metrics::Metrics;
use super::reconciler::{Limits, Reconciler, Runner, Trigger};
use super::watch_hub::WatchHub;
use super::written::Written;
use super::{Key, Scope, client};
use crate::api::{ContactPoint, TrackedField};
use crate::cli::{Config, Timings};
use crate::controllers::contact_point::{self, ContactPoints};
use crate::controllers::tracked_field::tracker::Tracker;
use crate::controllers::tracked_field::{self, TrackedFields, target};
use crate::notify::queue::{Outbox, Patience};
use crate::notify::{self, client::Sender};
use crate::registry;

/// How many passes of one controller run at once.
const CONCURRENCY: u16 = 16;

/// What the whole process shares.
struct Shared {
    config: Config,
    client: Client,
    watches: watcher::Config,
    scope: Scope,
    metrics: Metrics,
    health: Health,
    identity: String,
    tasks: JoinSet<()>,
}

/// Runs the operator until `stop` is cancelled, or the lease is lost.
pub async fn run(
    config: Config,
    kubernetes: kube::Config,
    metrics: Metrics,
    health: Health,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let fence = if config.leader_elect { Fence::shut() } else { Fence::open() };
    let client = client::main(kubernetes.clone(), fence.clone(), metrics.clone(), &config.timings)?;
    let streaming = tokio::select! {
        streaming = wait_for_apiserver(&client, &config.timings) => streaming,
        () = stop.cancelled() => return Ok(()),
    };
    let watches = watcher::Config { timeout: Some(watch_seconds(&config.timings)), ..watcher::Config::default() };
    let scope = match config.watch_namespaces.len() {
        0 => Scope::Cluster,
        _ => Scope::Namespaces(config.watch_namespaces.iter().cloned().collect()),
    };
    let mut shared = Shared {
        watches: if streaming { watches.streaming_lists() } else { watches },
        identity: leader::identity(config.pod_name.as_deref()),
        tasks: JoinSet::new(),
        client,
        scope,
        metrics,
        health,
        config,
    };
    let draining = CancellationToken::new();
    let controllers = start(&mut shared, &fence, &draining)?;
    let drain = shared.config.timings.drain;
    let work = controllers.lead(stop.clone(), draining, drain);
    if !shared.config.leader_elect {
        work.await;
        return Ok(());
    }
    shared.metrics.show_leadership(fence.clone());
    let lease = client::lease(kubernetes, shared.metrics.clone())?;
    let Config { operator_namespace, timings, .. } = &shared.config;
    let election = Election::new(lease, operator_namespace, shared.identity.clone(), timings);
    match leader::lead(&election, &fence, &stop, work).await {
        Outcome::Finished(()) | Outcome::Stopped => Ok(()),
        Outcome::Lost => anyhow::bail!("the lease was lost; another process must start anew"),
    }
}

fn sender_config(config: &Config, fence: &Fence) -> notify::client::Config {
    let fence = fence.clone();
    notify::client::Config {
        telegram_api_url: config.notifications.telegram_api_url.clone(),
        cluster_name: config.cluster_name.clone(),
        webhook_proxy: config.notifications.webhook_proxy.clone(),
        allow_loopback: config.notifications.allow_loopback,
        deny_cidrs: config.notifications.deny.clone(),
        attempt_timeout: config.timings.send_timeout,
        retry_after_cap: config.timings.retry_after_max,
        held: Arc::new(move || fence.held()),
        ..notify::client::Config::default()
    }
}

/// Whether the apiserver streams lists; asked until it answers.
async fn wait_for_apiserver(client: &Client, timings: &Timings) -> bool {
    let mut backoff = Policy { min: Duration::from_millis(200), max: timings.api_timeout }.series();
    loop {
        match client::streaming_lists_supported(client).await {
            Ok(streaming) => return streaming,
            Err(error) => warn!(error = &error as &dyn std::error::Error, "waiting for the apiserver"),
        }
        tokio::time::sleep(backoff.next_delay()).await;
    }
}

fn watch_seconds(timings: &Timings) -> u32 {
    u32::try_from(timings.watch_timeout.as_secs()).unwrap_or(u32::MAX).max(1)
}

/// Everything that waits for the lease.
struct Controllers {
    points: (Runner<ContactPoints<Sender>>, Fed<ContactPoint>),
    fields: (Runner<TrackedFields<Sender>>, Fed<TrackedField>),
    outbox: Arc<Outbox<Sender>>,
}

/// A kind whose cache is being fed.
struct Fed<K: Resource<DynamicType = ()> + 'static> {
    store: kube::runtime::reflector::Store<K>,
    trigger: Trigger<K>,
    phase: watch::Receiver<State>,
}

impl<K: Resource<DynamicType = ()> + 'static> Clone for Fed<K> {
    fn clone(&self) -> Self {
        Self { store: self.store.clone(), trigger: self.trigger.clone(), phase: self.phase.clone() }
    }
}

impl<K: Resource<DynamicType = ()> + 'static> Fed<K> {
    /// Its cache is filled, or its CRD is not there.
    async fn settled(&mut self) {
        // The sender lives as long as the process.
        let _ = self.phase.wait_for(|phase| *phase != State::Syncing).await;
    }
}

/// Builds the controllers and starts what every replica runs.
fn start(shared: &mut Shared, fence: &Fence, draining: &CancellationToken) -> anyhow::Result<Controllers> {
    let timings = &shared.config.timings;
    let point_trigger = Trigger::<ContactPoint>::default();
    let field_trigger = Trigger::<TrackedField>::default();
    let retry = Policy { min: timings.retry_min, max: timings.retry_max };
    let patience = Patience { retry, stopped: timings.stopped_retry };
    let sender = Sender::new(sender_config(&shared.config, fence)).map_err(anyhow::Error::msg)?;
    let outbox = Outbox::new(
        sender,
        patience,
        shared.metrics.clone(),
        field_trigger.clone(),
        point_trigger.clone(),
        draining.clone(),
    );
    let limits = Limits {
        concurrency: CONCURRENCY,
        timeout: timings.reconcile_timeout,
        failed: retry,
        waiting: Policy { min: timings.secret_wait_min, max: timings.secret_wait_max },
    };

    let points = Arc::new(ContactPoints {
        client: shared.client.clone(),
        source: contact_point::endpoint::Source {
            client: shared.client.clone(),
            operator_namespace: shared.config.operator_namespace.clone(),
            shared: shared.config.notifications.shared_secrets,
        },
        outbox: Arc::clone(&outbox),
        events: shared.events(contact_point::NAME),
        reread: shared.config.timings.secret_reread,
        written: Written::default(),
        lines: Mutex::default(),
    });
    let point_cache = Cache::<ContactPoint>::new(shared.scope.shards());
    let field_cache = Cache::<TrackedField>::new(shared.scope.shards());
    let (point_store, field_store) = (point_cache.store(), field_cache.store());

    let tracker = Arc::new(Tracker::new(field_trigger.clone()));
    let hub = WatchHub::new(
        shared.client.clone(),
        shared.scope.clone(),
        shared.watches.clone(),
        Arc::clone(&tracker) as _,
        shared.metrics.clone(),
    );
    let fields = Arc::new(TrackedFields {
        client: shared.client.clone(),
        scope: shared.scope.clone(),
        points: point_store.clone(),
        tracker,
        hub,
        outbox: Arc::clone(&outbox),
        resolver: target::Resolver::default(),
        events: shared.events(tracked_field::NAME),
        metrics: shared.metrics.clone(),
        terms: tracked_field::Terms {
            max_age: shared.config.timings.delivery_max_age,
            renew_event: shared.config.timings.event_renewal,
        },
        written: Written::default(),
        told: Mutex::new(HashMap::new()),
    });

    let point_phase = {
        let points = Arc::clone(&points);
        let (trigger, dependants) = (point_trigger.clone(), field_trigger.clone());
        let field_store = field_store.clone();
        shared.feed(contact_point::NAME, point_cache, move |touched, _| {
            let point = match touched {
                Touched::Present(point) => {
                    trigger.wake(&Key::of(point.as_ref()));
                    point
                }
                Touched::Gone(point) => {
                    points.gone(&Key::of(point.as_ref()));
                    point
                }
            };
            // Whoever sends there waits for it, or has to say that it is gone.
            for field in field_store.state() {
                if field.namespace() == point.namespace() && field.spec.contact_point == point.name_any() {
                    dependants.wake(&Key::of(field.as_ref()));
                }
            }
        })
    };
    let field_phase = {
        let fields = Arc::clone(&fields);
        let trigger = field_trigger.clone();
        shared.feed(tracked_field::NAME, field_cache, move |touched, synced| match touched {
            Touched::Present(field) => {
                let key = Key::of(field.as_ref());
                fields.follow(&field);
                if synced {
                    fields.watch(&field);
                }
                if !fields.written.knows(&key, &field) {
                    trigger.wake(&key);
                }
            }
            Touched::Gone(field) => fields.gone(&Key::of(field.as_ref())),
        })
    };
    Ok(Controllers {
        points: (
            shared.runner(contact_point::NAME, points, limits),
            Fed { store: point_store, trigger: point_trigger, phase: point_phase },
        ),
        fields: (
            shared.runner(tracked_field::NAME, fields, limits),
            Fed { store: field_store, trigger: field_trigger, phase: field_phase },
        ),
        outbox,
    })
}

impl Shared {
    fn events(&mut self, controller: &str) -> Events {
        let (events, write) = Events::new(self.client.clone(), controller, &self.identity);
        self.tasks.spawn(write);
        events
    }

    fn runner<R: Reconciler>(&self, name: &'static str, reconciler: Arc<R>, limits: Limits) -> Runner<R> {
        // A pass that overstays is dropped; a loop that does not even do that is stuck.
        let watchdog = self.health.watchdog(name, limits.timeout * 2);
        Runner::new(name, reconciler, limits, &self.metrics, watchdog)
    }

    /// Keeps the cache of a kind while its CRD is there, and tells `on` what it holds; the flag says whether all of it
    /// has been seen. The answer says how far it is.
    fn feed<K>(
        &mut self,
        name: &'static str,
        cache: Cache<K>,
        on: impl Fn(Touched<K>, bool) + Send + Sync + 'static,
    ) -> watch::Receiver<State>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
            + Clone
            + Debug
            + DeserializeOwned
            + Send
            + Sync
            + 'static,
    {
        let (phase, receiver) = watch::channel(State::Syncing);
        self.health.set(name, State::Syncing);
        if !self.config.controllers.contains(name) {
            let off = State::Absent("switched off by --controllers".into());
            self.health.set(name, off.clone());
            phase.send_replace(off);
            // Nobody may take a closed channel for an answer that is still to come.
            self.tasks.spawn(async move { phase.closed().await });
            return receiver;
        }
        let Some(kind) = registry::KINDS.iter().find(|kind| kind.controller == name) else {
            unreachable!("every controller stands in the registry")
        };
        let presence = crds::follow(self.client.clone(), kind, &mut self.tasks);
        let apis = self.scope.shards().into_iter().map(|shard| match shard {
            Some(namespace) => Api::namespaced(self.client.clone(), &namespace),
            None => Api::all(self.client.clone()),
        });
        let feed = Feed {
            name,
            apis: apis.collect(),
            watches: self.watches.clone(),
            metrics: self.metrics.clone(),
            health: self.health.clone(),
            phase,
            presence,
        };
        self.tasks.spawn(feed.run(cache, on));
        receiver
    }
}

struct Feed<K> {
    name: &'static str,
    apis: Vec<Api<K>>,
    watches: watcher::Config,
    metrics: Metrics,
    health: Health,
    phase: watch::Sender<State>,
    presence: watch::Receiver<Option<Presence>>,
}

impl<K> Feed<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    fn say(&self, state: State) {
        if *self.phase.borrow() != state {
            info!(kind = self.name, ?state, "the kind's state changed");
            self.health.set(self.name, state.clone());
            self.phase.send_replace(state);
        }
    }

    async fn run(mut self, mut cache: Cache<K>, on: impl Fn(Touched<K>, bool) + Send + Sync + 'static) {
        loop {
            let presence = self.presence.wait_for(Option::is_some).await.map(|presence| presence.clone());
            match presence {
                Ok(Some(Presence::Absent(why))) => {
                    self.say(State::Absent(why));
                    if self.presence.changed().await.is_err() {
                        return;
                    }
                }
                Ok(_) => self.watch(&mut cache, &on).await,
                Err(_) => return,
            }
        }
    }

    /// Until the CRD changes.
    async fn watch(&mut self, cache: &mut Cache<K>, on: &(impl Fn(Touched<K>, bool) + Send + Sync)) {
        self.say(State::Syncing);
        cache.restart();
        let mut events: SelectAll<_> = self
            .apis
            .iter()
            .enumerate()
            .map(|(index, api)| {
                let watch = watcher(api.clone(), self.watches.clone()).default_backoff();
                watch.map(move |event| (index, event)).boxed()
            })
            .collect();
        loop {
            let event = tokio::select! {
                _ = self.presence.changed() => return,
                event = events.next() => event,
            };
            match event {
                Some((index, Ok(event))) => {
                    let synced = cache.synced();
                    for touched in cache.apply(index, event) {
                        on(touched, synced);
                    }
                    if cache.synced() && !synced {
                        for object in cache.store().state() {
                            on(Touched::Present(object), true);
                        }
                        self.say(State::Synced);
                    }
                }
                Some((_, Err(error))) => {
                    self.metrics.watch_restarted(&K::plural(&()));
                    warn!(kind = self.name, error = &error as &dyn std::error::Error, "the watch failed; it goes on");
                }
                None => return,
            }
        }
    }
}

impl Controllers {
    /// Runs the passes until `stop`, then gives what is under way a moment.
    async fn lead(self, stop: CancellationToken, draining: CancellationToken, drain: Duration) {
        let Self { points: (points, mut fed_points), fields: (fields, mut fed_fields), outbox } = self;
        let mut passes = JoinSet::new();
        {
            let mut fed_points = fed_points.clone();
            passes.spawn(async move {
                // A contact point that is not cached yet must not be taken for one that does not exist.
                fed_points.settled().await;
                fed_fields.settled().await;
                fields.run(fed_fields.store, fed_fields.trigger).await;
            });
        }
        passes.spawn(async move {
            fed_points.settled().await;
            points.run(fed_points.store, fed_points.trigger).await;
        });
        stop.cancelled().await;
        info!("draining");
        draining.cancel();
        // Passes go on meanwhile, so that what is taken by its receiver is also written down.
        let _ = tokio::time::timeout(drain, outbox.landed()).await;
        outbox.end();
    }
}
