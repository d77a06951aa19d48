//! Keeps the cache of one of our kinds, while its CRD is there.

use std::fmt::Debug;

use futures::StreamExt;
use futures::stream::{BoxStream, SelectAll};
use kube::runtime::watcher;
use kube::{Api, Resource};
use qm_core::kind::Kind;
use serde::de::DeserializeOwned;
use tokio::sync::watch::error::RecvError;
use tokio::sync::{mpsc, oneshot, watch};
use tracing::{info, warn};

use super::cache::{Cache, CacheChange};
use super::crds::Presence;
use super::health::{Health, State, Watchdog};
use super::metrics::{Metrics, Purpose};
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
    /// Who sees to it that it does not get stuck.
    pub watchdog: Watchdog,
    /// Whether the CRD is there.
    pub presence: watch::Receiver<Option<Presence>>,
    /// Who asks for all to be listed anew, and is told when it has been.
    pub asked: mpsc::Receiver<oneshot::Sender<()>>,
}

impl<K> Feed<K>
where
    K: Kind + Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// Never ends by itself. `on` is told what becomes of each object, and whether all have been seen; when they have, of
    /// each once more. While the CRD is not there, or is an older one, nothing is.
    pub async fn run(
        mut self,
        mut cache: Cache<K>,
        on: impl Fn(CacheChange<K>, bool) + Send + Sync + 'static,
    ) {
        loop {
            let presence = self
                .presence
                .wait_for(Option::is_some)
                .await
                .map(|presence| presence.clone());
            match presence {
                Ok(Some(Presence::Absent(why))) => {
                    self.say(State::Absent(why));
                    // A pass over what an older CRD has pruned would take it for what stands there.
                    cache.clear().into_iter().for_each(|gone| on(gone, false));
                    if self.presence.changed().await.is_err() {
                        break;
                    }
                }
                Ok(_) => {
                    if self.watch(&mut cache, &on).await.is_err() {
                        break;
                    }
                }
                Err(_) => break,
            }
        }
        // Whoever follows the CRD is gone: the process ends, for that or for what ended it.
        std::future::pending::<()>().await;
    }

    fn say(&self, state: State) {
        if *self.phase.borrow() != state {
            match &state {
                State::Absent(why) => warn!(kind = self.name, why, "the kind is not served"),
                State::Syncing => info!(kind = self.name, "the kind is listed"),
                State::Partly(refused) => {
                    warn!(
                        kind = self.name,
                        ?refused,
                        "the kind is served where it may be listed"
                    );
                }
                State::Synced => info!(kind = self.name, "the kind is served"),
            }
            self.health.set(self.name, state.clone());
            self.phase.send_replace(state);
        }
    }

    /// Until the CRD changes.
    async fn watch(
        &mut self,
        cache: &mut Cache<K>,
        on: &(impl Fn(CacheChange<K>, bool) + Send + Sync),
    ) -> Result<(), RecvError> {
        self.say(State::Syncing);
        let (mut told, mut asked) = (self.begin(), None);
        loop {
            if cache.settled()
                && let Some(asked) = asked.take()
            {
                // Who no longer waits has ended.
                let _ = oneshot::Sender::<()>::send(asked, ());
            }
            let told = tokio::select! {
                changed = self.presence.changed() => return changed,
                Some(asks) = self.asked.recv() => {
                    cache.begin();
                    (told, asked) = (self.begin(), Some(asks));
                    continue;
                }
                Some(told) = told.next() => told,
            };
            match told {
                (index, Told::Shown(event)) => {
                    let _busy = self.watchdog.busy();
                    let settled = cache.settled();
                    for touched in cache.apply(index, event) {
                        on(touched, settled);
                    }
                    self.settle(cache, settled, on);
                }
                (_, Told::Stands) => {}
                (index, Told::Failed(error)) => {
                    warn!(
                        kind = self.name,
                        error = &error as &dyn std::error::Error,
                        "watch failed; will retry"
                    );
                    if let Some(refusal) =
                        watching::refusal(&error).filter(|status| status.code == 403)
                    {
                        let settled = cache.settled();
                        cache.refuse(index, refusal.message.clone());
                        self.settle(cache, settled, on);
                    }
                }
            }
        }
    }

    fn begin(&self) -> SelectAll<BoxStream<'static, (usize, Told<K>)>> {
        let resource = format!("{}.{}", K::plural(&()), K::group(&()));
        let watch = |(index, api): (usize, &Api<K>)| {
            let counted = self.metrics.watch(&resource, Purpose::Own);
            watching::watch(api.clone(), self.watches.clone(), counted)
                .map(move |told| (index, told))
                .boxed()
        };
        self.apis.iter().enumerate().map(watch).collect()
    }

    /// Says how far the cache is, which may have been settled `before`.
    fn settle(
        &self,
        cache: &Cache<K>,
        before: bool,
        on: &(impl Fn(CacheChange<K>, bool) + Send + Sync),
    ) {
        if !cache.settled() {
            return;
        }
        if !before {
            cache
                .store()
                .state()
                .into_iter()
                .for_each(|object| on(CacheChange::Present(object), true));
        }
        let refused = cache.refused();
        self.say(if refused.is_empty() {
            State::Synced
        } else {
            State::Partly(refused)
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::time::Duration;

    use kube::ResourceExt;

    use super::*;
    use crate::testing::{PROGRAM, Widget};
    use crate::watching::tests::{Asked, api, object};

    type Presences = watch::Sender<Option<Presence>>;
    type Asks = mpsc::Sender<oneshot::Sender<()>>;

    /// A feed of these, who tells it of the CRD, how far it says that it is, and who asks it for a new list.
    fn feed(apis: Vec<Api<Widget>>) -> (Feed<Widget>, Presences, watch::Receiver<State>, Asks) {
        let (asks, asked) = mpsc::channel(1);
        let (presence, follow) = watch::channel(None);
        let (say, phase) = watch::channel(State::Syncing);
        let feed = Feed {
            name: "configmap",
            apis,
            watches: watcher::Config::default(),
            metrics: Metrics::new(&PROGRAM),
            health: Health::new(),
            watchdog: Health::new().watchdog("cache", Duration::from_mins(1)),
            phase: say,
            presence: follow,
            asked,
        };
        (feed, presence, phase, asks)
    }

    fn told() -> (
        impl Fn(CacheChange<Widget>, bool) + Send + Sync + 'static,
        mpsc::UnboundedReceiver<String>,
    ) {
        let (told, tells) = mpsc::unbounded_channel();
        let on = move |touched: CacheChange<Widget>, all_seen: bool| {
            let words = match touched {
                CacheChange::Present(object) => format!("+{} {all_seen}", object.name_any()),
                CacheChange::Deleted(object) => format!("-{}", object.name_any()),
            };
            told.send(words).unwrap();
        };
        (on, tells)
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_is_refused_holds_up_no_other() {
        let (served, _) = api(|_, _| (200, vec![object("x", "5")]));
        let (refused, _) = api(|_, before| {
            if before < 3 {
                (403, vec![])
            } else {
                (200, vec![object("y", "5")])
            }
        });
        let (feed, presence, mut phase, _asks) = feed(vec![served, refused]);
        let (on, mut tells) = told();
        tokio::spawn(feed.run(Cache::new(vec![Some("a".into()), Some("b".into())]), on));
        presence.send_replace(Some(Presence::Present));
        let partly = State::Partly([(Some("b".into()), "no".into())].into());
        phase
            .wait_for(|phase| *phase != State::Syncing)
            .await
            .unwrap();
        assert_eq!(*phase.borrow(), partly);
        assert_eq!(
            (tells.recv().await.unwrap(), tells.recv().await.unwrap()),
            ("+x false".into(), "+x true".into())
        );
        phase
            .wait_for(|phase| *phase == State::Synced)
            .await
            .unwrap();
        assert_eq!(tells.recv().await.unwrap(), "+y true");
    }

    #[tokio::test(start_paused = true)]
    async fn an_older_crd_takes_the_objects_away_until_it_is_mended() {
        let (apis, _) = api(|_, _| (200, vec![object("x", "5")]));
        let (feed, presence, mut phase, _asks) = feed(vec![apis]);
        let cache = Cache::new(vec![None]);
        let store = cache.store();
        let (on, mut tells) = told();
        let feed = tokio::spawn(feed.run(cache, on));
        for _ in 0..2 {
            presence.send_replace(Some(Presence::Present));
            phase
                .wait_for(|phase| *phase == State::Synced)
                .await
                .unwrap();
            assert_eq!(
                (tells.recv().await.unwrap(), tells.recv().await.unwrap()),
                ("+x false".into(), "+x true".into())
            );
            presence.send_replace(Some(Presence::Absent("older".into())));
            assert_eq!(tells.recv().await.unwrap(), "-x");
            assert_eq!(*phase.borrow(), State::Absent("older".into()));
            assert!(store.is_empty());
        }
        // As at a shutdown: that it ends by itself would be a fault.
        drop(presence);
        tokio::time::timeout(Duration::from_secs(1), feed)
            .await
            .unwrap_err();
    }

    /// What the watch has shown may be of the past.
    #[tokio::test(start_paused = true)]
    async fn whoever_begins_to_lead_has_all_listed_anew() {
        let listed = |before: usize| object(if before == 0 { "x" } else { "y" }, "5");
        let (apis, log) = api(move |asked, before| match asked {
            Asked::List => (200, vec![listed(before)]),
            _ => (200, vec![]),
        });
        let (feed, presence, mut phase, asks) = feed(vec![apis]);
        let cache = Cache::new(vec![None]);
        let store = cache.store();
        let (on, _tells) = told();
        tokio::spawn(feed.run(cache, on));
        let anew = async || {
            let (done, listed) = oneshot::channel();
            asks.send(done).await.unwrap();
            listed.await.unwrap();
            (
                log.count(Asked::List),
                store
                    .state()
                    .iter()
                    .map(|object| object.name_any())
                    .collect::<Vec<_>>(),
            )
        };
        presence.send_replace(Some(Presence::Present));
        phase
            .wait_for(|phase| *phase == State::Synced)
            .await
            .unwrap();
        assert_eq!(
            (log.count(Asked::List), store.state()[0].name_any()),
            (1, "x".to_owned())
        );
        assert_eq!(anew().await, (2, vec!["y".to_owned()]));
        assert_eq!(
            *phase.borrow_and_update(),
            State::Synced,
            "it was served all the time"
        );
    }
}
