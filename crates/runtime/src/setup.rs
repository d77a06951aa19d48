//! Setup of a controller: the watched objects, and the state that the controller shares with the runtime.

use std::sync::Arc;

use futures::future::BoxFuture;
use qm_core::kind::Kind;
use tokio::sync::SetOnce;

use super::child_cache::ChildCache;
use super::children::{ChildKind, ChildSummary, Children, WriteLimiter};
use super::controller::ReconciledKind;
use super::drift::{Advice, Drift};
use super::events::Events;
use super::manager::{KindHandles, Manager};
use super::objects::Objects;
use super::raw_object::BoundedObject;
use super::trigger::Trigger;
use super::watch::SyncState;

/// Parts from which a controller of objects of kind `K` is built.
pub struct Setup<'a, K: ReconciledKind> {
    /// Manager that the controller is added to.
    pub manager: &'a mut Manager,
    /// Cached objects of the kind.
    pub objects: Objects<K>,
    /// Trigger of the reconciles.
    pub trigger: Trigger<K>,
    /// Publisher of the controller's Events.
    pub events: Events,
    /// Set once an object of the kind exists, which starts watches that only such objects need.
    pub watch_needed: Arc<SetOnce<()>>,
    /// Future that must end before the first reconcile, such as
    /// [`CacheStatus::synced`](super::cache::CacheStatus::synced) of another kind.
    pub after: BoxFuture<'static, ()>,
    pub(super) name: &'static str,
    pub(super) field_manager: &'static str,
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
            wake: Arc::new(move |owner| trigger.wake(owner)),
            watch_needed: Arc::clone(&self.watch_needed),
            sync,
            drift,
            unconfirmed: WriteLimiter::new(self.manager.settings.timings.confirmation_period),
        }
    }
}
