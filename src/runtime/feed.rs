//! Keeps the cache of one of our kinds, while its CRD is there.

use std::fmt::Debug;

use futures::StreamExt;
use futures::stream::SelectAll;
use kube::runtime::watcher;
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tracing::{info, warn};

use super::cache::{Cache, Touched};
use super::crds::Presence;
use super::health::{Health, State};
use super::metrics::Metrics;
use super::watching::{self, Told};

/// What feeds a cache.
pub struct Feed<K> {
    /// The controller's name.
    pub name: &'static str,
    /// One for each watch: the cluster, or each namespace that is served.
    pub apis: Vec<Api<K>>,
    /// How they watch.
    pub watches: watcher::Config,
    /// What is counted.
    pub metrics: Metrics,
    /// Who is told how far it is,
    pub health: Health,
    /// and who else.
    pub phase: watch::Sender<State>,
    /// Whether the CRD is there.
    pub presence: watch::Receiver<Option<Presence>>,
}

impl<K> Feed<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// Never ends by itself. `on` is told what becomes of each object, and whether all have been seen; when they have, of
    /// each once more.
    pub async fn run(mut self, mut cache: Cache<K>, on: impl Fn(Touched<K>, bool) + Send + Sync + 'static) {
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

    fn say(&self, state: State) {
        if *self.phase.borrow() != state {
            info!(kind = self.name, ?state, "the kind's state changed");
            self.health.set(self.name, state.clone());
            self.phase.send_replace(state);
        }
    }

    /// Until the CRD changes.
    async fn watch(&mut self, cache: &mut Cache<K>, on: &(impl Fn(Touched<K>, bool) + Send + Sync)) {
        self.say(State::Syncing);
        cache.restart();
        let watch = |(index, api): (usize, &Api<K>)| {
            watching::watch(api.clone(), self.watches.clone()).map(move |told| (index, told)).boxed()
        };
        let mut told: SelectAll<_> = self.apis.iter().enumerate().map(watch).collect();
        loop {
            let told = tokio::select! {
                _ = self.presence.changed() => return,
                told = told.next() => told,
            };
            match told {
                Some((index, Told::Shown(event))) => {
                    let synced = cache.synced();
                    for touched in cache.apply(index, event) {
                        on(touched, synced);
                    }
                    if cache.synced() && !synced {
                        cache.store().state().into_iter().for_each(|object| on(Touched::Present(object), true));
                        self.say(State::Synced);
                    }
                }
                Some((_, Told::Stands)) => {}
                Some((_, Told::Failed(error))) => {
                    self.metrics.watch_restarted(&format!("{}.{}", K::plural(&()), K::group(&())));
                    warn!(kind = self.name, error = &error as &dyn std::error::Error, "the watch failed; it goes on");
                }
                None => return,
            }
        }
    }
}
