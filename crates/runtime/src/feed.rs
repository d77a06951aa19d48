//! Feed of the cache of one of the operator's own kinds, while its CRD exists.

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
use super::crds::CrdState;
use super::health::{KindState, Probes, Watchdog};
use super::metrics::{Metrics, Purpose};
use super::watch::{WatchUpdate, error_status, watch_updates};

/// Feed of a cache.
pub struct Feed<K> {
    /// Name of the controller.
    pub name: &'static str,
    /// API of each place: the cluster, or each watched namespace.
    pub apis: Vec<Api<K>>,
    /// Configuration of the watches.
    pub watch_config: watcher::Config,
    /// Metrics of the watches.
    pub metrics: Metrics,
    /// Probes that report the state of the kind.
    pub probes: Probes,
    /// Sender of the state of the kind.
    pub phase: watch::Sender<KindState>,
    /// Watchdog of each step.
    pub watchdog: Watchdog,
    /// State of the CRD; `None` until it is known.
    pub crd: watch::Receiver<Option<CrdState>>,
    /// Requests for a relist, each with a sender that confirms its end.
    pub relists: mpsc::Receiver<oneshot::Sender<()>>,
}

impl<K> Feed<K>
where
    K: Kind + Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    /// Runs until dropped. `on` gets each change of the cache, and whether all objects have been listed; once they
    /// have, it gets each object again. While the CRD is missing or incompatible, the cache is empty.
    pub async fn run(
        mut self,
        mut cache: Cache<K>,
        on: impl Fn(CacheChange<K>, bool) + Send + Sync + 'static,
    ) {
        loop {
            let crd = self
                .crd
                .wait_for(Option::is_some)
                .await
                .map(|crd| crd.clone());
            match crd {
                Ok(Some(CrdState::Absent(why))) => {
                    self.set_state(KindState::Absent(why));
                    // A reconcile of objects that an older CRD has pruned would act on missing fields.
                    cache
                        .clear()
                        .into_iter()
                        .for_each(|change| on(change, false));
                    if self.crd.changed().await.is_err() {
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
        // The sender of the CRD's state is dropped: the process ends.
        std::future::pending::<()>().await;
    }

    fn set_state(&self, state: KindState) {
        if *self.phase.borrow() != state {
            match &state {
                KindState::Absent(why) => warn!(kind = self.name, why, "kind is not served"),
                KindState::Syncing => info!(kind = self.name, "listing the kind"),
                KindState::PartiallySynced(denied) => {
                    warn!(
                        kind = self.name,
                        ?denied,
                        "kind is served only where the apiserver allows its list"
                    );
                }
                KindState::Synced => info!(kind = self.name, "kind is served"),
            }
            self.probes.set(self.name, state.clone());
            self.phase.send_replace(state);
        }
    }

    /// Feeds the cache until the state of the CRD changes.
    async fn watch(
        &mut self,
        cache: &mut Cache<K>,
        on: &(impl Fn(CacheChange<K>, bool) + Send + Sync),
    ) -> Result<(), RecvError> {
        self.set_state(KindState::Syncing);
        let (mut updates, mut pending) = (self.start(), None);
        loop {
            if cache.is_synced()
                && let Some(relist) = pending.take()
            {
                // A receiver that no longer waits is dropped.
                let _ = oneshot::Sender::<()>::send(relist, ());
            }
            let update = tokio::select! {
                changed = self.crd.changed() => return changed,
                Some(relist) = self.relists.recv() => {
                    cache.restart();
                    (updates, pending) = (self.start(), Some(relist));
                    continue;
                }
                Some(update) = updates.next() => update,
            };
            match update {
                (index, WatchUpdate::Event(event)) => {
                    let _busy = self.watchdog.busy();
                    let was_synced = cache.is_synced();
                    for change in cache.apply(index, event) {
                        on(change, was_synced);
                    }
                    self.update_state(cache, was_synced, on);
                }
                (_, WatchUpdate::Recovered) => {}
                (index, WatchUpdate::Failed(error)) => {
                    warn!(
                        kind = self.name,
                        error = &error as &dyn std::error::Error,
                        "watch failed; will retry"
                    );
                    if let Some(status) = error_status(&error).filter(|status| status.code == 403) {
                        let was_synced = cache.is_synced();
                        cache.deny(index, status.message.clone());
                        self.update_state(cache, was_synced, on);
                    }
                }
            }
        }
    }

    fn start(&self) -> SelectAll<BoxStream<'static, (usize, WatchUpdate<K>)>> {
        let resource = format!("{}.{}", K::plural(&()), K::group(&()));
        let watch = |(index, api): (usize, &Api<K>)| {
            let guard = self.metrics.watch(&resource, Purpose::Own);
            watch_updates(api.clone(), self.watch_config.clone(), guard)
                .map(move |update| (index, update))
                .boxed()
        };
        self.apis.iter().enumerate().map(watch).collect()
    }

    /// Sets the state of the kind, unless a list is missing. `was_synced` is the state before the last event.
    fn update_state(
        &self,
        cache: &Cache<K>,
        was_synced: bool,
        on: &(impl Fn(CacheChange<K>, bool) + Send + Sync),
    ) {
        if !cache.is_synced() {
            return;
        }
        if !was_synced {
            cache
                .store()
                .state()
                .into_iter()
                .for_each(|object| on(CacheChange::Present(object), true));
        }
        let denied = cache.denied();
        self.set_state(if denied.is_empty() {
            KindState::Synced
        } else {
            KindState::PartiallySynced(denied)
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
    use crate::watch::tests::{WatchRequest, api, object};

    type CrdStates = watch::Sender<Option<CrdState>>;
    type Relists = mpsc::Sender<oneshot::Sender<()>>;

    /// Returns a feed, the sender of its CRD's state, the receiver of its own state, and the sender of relist requests.
    fn feed(
        apis: Vec<Api<Widget>>,
    ) -> (Feed<Widget>, CrdStates, watch::Receiver<KindState>, Relists) {
        let (relist_sender, relists) = mpsc::channel(1);
        let (crd, follow) = watch::channel(None);
        let (state, phase) = watch::channel(KindState::Syncing);
        let feed = Feed {
            name: "configmap",
            apis,
            watch_config: watcher::Config::default(),
            metrics: Metrics::new(&PROGRAM),
            probes: Probes::new(),
            watchdog: Probes::new().watchdog("cache", Duration::from_mins(1)),
            phase: state,
            crd: follow,
            relists,
        };
        (feed, crd, phase, relist_sender)
    }

    fn updates() -> (
        impl Fn(CacheChange<Widget>, bool) + Send + Sync + 'static,
        mpsc::UnboundedReceiver<String>,
    ) {
        let (updates, tells) = mpsc::unbounded_channel();
        let on = move |change: CacheChange<Widget>, all_seen: bool| {
            let text = match change {
                CacheChange::Present(object) => format!("+{} {all_seen}", object.name_any()),
                CacheChange::Deleted(object) => format!("-{}", object.name_any()),
            };
            updates.send(text).unwrap();
        };
        (on, tells)
    }

    #[tokio::test(start_paused = true)]
    async fn denied_namespace_does_not_block_the_others() {
        let (served, _) = api(|_, _| (200, vec![object("x", "5")]));
        let (denied, _) = api(|_, before| {
            if before < 3 {
                (403, vec![])
            } else {
                (200, vec![object("y", "5")])
            }
        });
        let (feed, crd, mut phase, _asks) = feed(vec![served, denied]);
        let (on, mut tells) = updates();
        tokio::spawn(feed.run(Cache::new(vec![Some("a".into()), Some("b".into())]), on));
        crd.send_replace(Some(CrdState::Present));
        let partly = KindState::PartiallySynced([(Some("b".into()), "no".into())].into());
        phase
            .wait_for(|phase| *phase != KindState::Syncing)
            .await
            .unwrap();
        assert_eq!(*phase.borrow(), partly);
        assert_eq!(
            (tells.recv().await.unwrap(), tells.recv().await.unwrap()),
            ("+x false".into(), "+x true".into())
        );
        phase
            .wait_for(|phase| *phase == KindState::Synced)
            .await
            .unwrap();
        assert_eq!(tells.recv().await.unwrap(), "+y true");
    }

    #[tokio::test(start_paused = true)]
    async fn cache_is_empty_while_the_crd_is_incompatible() {
        let (apis, _) = api(|_, _| (200, vec![object("x", "5")]));
        let (feed, crd, mut phase, _asks) = feed(vec![apis]);
        let cache = Cache::new(vec![None]);
        let store = cache.store();
        let (on, mut tells) = updates();
        let feed = tokio::spawn(feed.run(cache, on));
        for _ in 0..2 {
            crd.send_replace(Some(CrdState::Present));
            phase
                .wait_for(|phase| *phase == KindState::Synced)
                .await
                .unwrap();
            assert_eq!(
                (tells.recv().await.unwrap(), tells.recv().await.unwrap()),
                ("+x false".into(), "+x true".into())
            );
            crd.send_replace(Some(CrdState::Absent("older".into())));
            assert_eq!(tells.recv().await.unwrap(), "-x");
            assert_eq!(*phase.borrow(), KindState::Absent("older".into()));
            assert!(store.is_empty());
        }
        // As on shutdown: the feed must not end by itself.
        drop(crd);
        tokio::time::timeout(Duration::from_secs(1), feed)
            .await
            .unwrap_err();
    }

    /// The watch of a standby may be stale.
    #[tokio::test(start_paused = true)]
    async fn new_leader_relists_its_objects() {
        let listed = |before: usize| object(if before == 0 { "x" } else { "y" }, "5");
        let (apis, log) = api(move |relists, before| match relists {
            WatchRequest::List => (200, vec![listed(before)]),
            _ => (200, vec![]),
        });
        let (feed, crd, mut phase, relist_sender) = feed(vec![apis]);
        let cache = Cache::new(vec![None]);
        let store = cache.store();
        let (on, _tells) = updates();
        tokio::spawn(feed.run(cache, on));
        let relist = async || {
            let (done, listed) = oneshot::channel();
            relist_sender.send(done).await.unwrap();
            listed.await.unwrap();
            (
                log.count(WatchRequest::List),
                store
                    .state()
                    .iter()
                    .map(|object| object.name_any())
                    .collect::<Vec<_>>(),
            )
        };
        crd.send_replace(Some(CrdState::Present));
        phase
            .wait_for(|phase| *phase == KindState::Synced)
            .await
            .unwrap();
        assert_eq!(
            (log.count(WatchRequest::List), store.state()[0].name_any()),
            (1, "x".to_owned())
        );
        assert_eq!(relist().await, (2, vec!["y".to_owned()]));
        assert_eq!(
            *phase.borrow_and_update(),
            KindState::Synced,
            "the kind is served throughout"
        );
    }
}
