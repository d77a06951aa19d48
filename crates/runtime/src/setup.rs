//! Setup of a controller: the watched objects, and the state that the controller shares with the runtime.

use std::sync::Arc;

use kube::runtime::reflector::Store;
use tokio::sync::SetOnce;

use super::ObjectKey;
use super::cache::CacheChange;
use super::children::{ChildKind, ChildSummary, Children, Quirks, Writer};
use super::controller::{Controller, KindContext, Managed, ReconciledKind};
use super::drift::Advice;
use super::events::Events;
use super::manager::{KindHandles, Manager, Phase};
use super::runner::Reconcile as _;
use super::trigger::Trigger;

/// Parts from which a controller of objects of kind `K` is built.
pub struct Setup<'a, K: ReconciledKind> {
    /// Manager that the controller is added to.
    pub manager: &'a mut Manager,
    /// Cached objects of the kind.
    pub objects: Store<K>,
    /// Trigger of the reconciles.
    pub trigger: Trigger<K>,
    /// Publisher of the controller's Events.
    pub events: Events,
    /// Set once an object of the kind exists, which starts watches that only such objects need.
    pub needs_watch: Arc<SetOnce<()>>,
    /// Kinds whose objects must be cached before the first reconcile.
    pub after: Vec<Phase>,
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
        self.children_with_quirks(summary, advice, Quirks::default())
    }

    /// Watches children of a kind with quirks.
    pub fn children_with_quirks<T: ChildKind, S: ChildSummary>(
        &mut self,
        summary: fn(&T) -> S,
        advice: Advice,
        quirks: Quirks<T>,
    ) -> Arc<Children<T, S>> {
        let writer = Writer {
            names: K::NAMES,
            manager: self.field_manager,
            events: self.events.clone(),
            corrected: self.manager.metrics.drift_corrections(self.name),
            advice,
            needs_watch: Arc::clone(&self.needs_watch),
        };
        let trigger = self.trigger.clone();
        Children::new(self.manager, &writer, summary, quirks, move |owner| {
            trigger.wake(owner);
        })
    }
}

impl Manager {
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
    /// from [`Manager::kind`].
    ///
    /// # Errors
    /// The errors of `new`.
    pub fn add_controller<C: Controller>(
        &mut self,
        handles: KindHandles<C::Kind>,
        new: impl FnOnce(&mut Setup<'_, C::Kind>) -> anyhow::Result<C>,
    ) -> anyhow::Result<()> {
        let (objects, trigger) = (handles.store.clone(), handles.trigger.clone());
        let needs_watch = Arc::new(SetOnce::new());
        let events = self.events(C::KIND.controller);
        let shared = KindContext::new(
            self.client.clone(),
            C::FIELD_MANAGER,
            objects.clone(),
            trigger.clone(),
            events.clone(),
        );
        let mut setup = Setup {
            manager: self,
            objects,
            trigger: trigger.clone(),
            events,
            needs_watch: Arc::clone(&needs_watch),
            after: Vec::new(),
            name: C::KIND.controller,
            field_manager: C::FIELD_MANAGER,
        };
        let controller = new(&mut setup)?;
        let after = setup.after;
        let managed = Arc::new(Managed::new(controller, shared));
        let observed = Arc::clone(&managed);
        self.add_runner(
            handles,
            managed,
            after,
            move |change, is_listed| match change {
                CacheChange::Present(object) => {
                    // Later calls have no effect.
                    let _ = needs_watch.set(());
                    observed.controller.changed(&object, is_listed);
                    let key = ObjectKey::of(object.as_ref());
                    // The cache repeats each object once the list is complete.
                    if is_listed && !observed.shared.own_writes.is_known(&key, &object) {
                        trigger.wake(&key);
                    }
                }
                CacheChange::Deleted(object) => {
                    let key = ObjectKey::of(object.as_ref());
                    observed.controller.deleted(&object);
                    observed.forget(&key);
                    trigger.wake(&key);
                }
            },
        );
        Ok(())
    }
}
