//! The contract of a controller, and what the runtime does around each reconcile: it gives the controller the newest
//! object, handles deletion and `spec.suspend`, turns a failure into an outcome, writes the status if it differs, and
//! then emits at most one Event. Under load the status waits for reconciles, and only the newest one is written.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::ObjectMeta;
use kube::core::object::HasStatus as _;
use kube::{Api, Client, Resource, ResourceExt};
use qm_core::kind::{HasReadyCondition as _, Kind as _, KindInfo};
use qm_core::schema;
use tracing::warn;

use super::cache::{CacheChange, strip};
use super::drift::CONTESTED;
use super::error::{Class, Error, Result};
use super::event_dedup::EventDedup;
use super::events::Events;
use super::objects::Objects;
use super::outcome::{EventPolicy, Outcome, Progress, Requeue};
use super::own_writes::OwnWrites;
use super::ownership::{Owner, Ownership};
use super::reconciled_kind::{ReconciledKind, StatusOf};
use super::runner::{Failure, Reconcile};
use super::trigger::Trigger;
use super::watch::SyncState;
use super::{ObjectKey, SpecRevision, finalizer, write};

/// Reconciles the objects of one kind.
pub trait Controller: Send + Sync + 'static {
    /// Kind of the objects that the controller reconciles.
    type Kind: ReconciledKind;

    /// Name, permissions and schemas of the kind. Logs, metrics and the selection of controllers use the name.
    const KIND: &'static KindInfo;
    /// Field manager of all writes.
    const FIELD_MANAGER: &'static str;
    /// True if the status may wait: under load, the runtime then writes it after the children of other objects, and
    /// once for several reconciles. False if another object or process relies on the status, such as on a recorded
    /// intent. Without effect if there is a [`status_interval`](Self::status_interval).
    const STATUS_CAN_WAIT: bool = true;

    /// Reconciles an object that is not being deleted and for which
    /// [`is_suspended`](qm_core::kind::Kind::is_suspended) is false. Reconciles of one object never overlap; a reconcile
    /// that exceeds its timeout is dropped at an `await`.
    fn reconcile(
        &self,
        cx: &mut Context<Self::Kind>,
    ) -> impl Future<Output = Result<Outcome>> + Send;

    /// Deletes what the object owns, while the object is being deleted and has the kind's finalizer. Return `None` once
    /// nothing is left: the finalizer is then removed.
    fn finalize(
        &self,
        _cx: &mut Context<Self::Kind>,
    ) -> impl Future<Output = Result<Option<Outcome>>> + Send {
        async { Ok(None) }
    }

    /// Returns whether an object with this status may own something that [`Controller::finalize`] deletes. Before the
    /// reconcile, and also while the object is suspended, the runtime then adds the kind's finalizer again if another
    /// client has removed it.
    fn may_own(&self, _status: &StatusOf<Self::Kind>) -> bool {
        false
    }

    /// Waits until the objects from which [`Controller::fill_status`] fills the status have been listed. Without this
    /// wait, the status of a suspended object would lose its fields at each start.
    fn synced(&self) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Fills the draft of the status with observed state when a reconcile ends, also of a suspended object and after a
    /// failed reconcile.
    fn fill_status(&self, _cx: &mut Context<Self::Kind>) {}

    /// Returns the class of a failure, and the reason of the condition `Ready`.
    fn classify(&self, error: &Error) -> (Class, Cow<'static, str>) {
        error.classify()
    }

    /// Called once the status of a reconcile is written, or needs no write; also if the object no longer exists.
    fn on_status_written(&self, _cx: &Context<Self::Kind>) {}

    /// Called on every replica when an object was created or changed, also by this operator. `is_listed` is false until
    /// all objects have been listed; then this is called again for each object.
    fn on_applied(&self, _object: &Arc<Self::Kind>, _is_listed: bool) {}

    /// Called on every replica when an object was deleted, once and with its last state, before [`Controller::forget`].
    /// State that a reconcile may leave behind belongs into `forget`, which is called again.
    fn on_deleted(&self, _object: &Arc<Self::Kind>) {}

    /// Removes the state that the controller keeps for a key. Called on every replica after an object was deleted, and
    /// again whenever something triggers its key, because a reconcile in flight at the deletion may have left something
    /// behind; also for an object that is being deleted and no longer has the kind's finalizer.
    fn forget(&self, _key: &ObjectKey) {}

    /// Called when this replica acquires the lease, before the first reconcile. Never called without leader election:
    /// the replica then leads from its start.
    fn on_started_leading(&self) {}

    /// Returns the interval of reconciles that nothing triggers; `default` comes from the settings.
    fn sync_period(&self, default: Duration) -> Duration {
        default
    }

    /// Returns the minimum time between two writes of an object's status, apart from those in the middle of a reconcile.
    fn status_interval(&self) -> Duration {
        Duration::ZERO
    }
}

/// State that all reconciles of a kind share.
pub struct KindContext<K: ReconciledKind> {
    pub(super) client: Client,
    pub(super) field_manager: &'static str,
    objects: Objects<K>,
    pub(super) own_writes: OwnWrites<K>,
    pub(super) events: Events,
}

impl<K: ReconciledKind> KindContext<K> {
    /// Creates the shared state of all reconciles of a kind. `objects` are its cached objects; `trigger` triggers a
    /// reconcile of one object. The manager and tests of a controller's parts call this.
    pub fn new(
        client: Client,
        field_manager: &'static str,
        objects: Objects<K>,
        trigger: Trigger<K>,
        events: Events,
    ) -> Arc<Self> {
        Arc::new(Self {
            objects,
            own_writes: OwnWrites::new(trigger),
            client,
            field_manager,
            events,
        })
    }
}

/// The object of a reconcile.
pub struct Context<K: ReconciledKind> {
    /// The object, as last read or written.
    pub object: Arc<K>,
    /// Draft of the status, initially the status of the last reconcile, which may not be written yet. The runtime sets
    /// the condition `Ready` and writes the status after the reconcile.
    pub status: StatusOf<K>,
    /// Namespace and name of the object.
    pub key: ObjectKey,
    /// The object as the owner of children.
    pub owner: Owner,
    /// True if the last reconcile failed for a transient reason. A single such failure is not written to the status.
    pub is_failing: bool,
    shared: Arc<KindContext<K>>,
}

impl<K: ReconciledKind> Context<K> {
    /// Creates the context of one reconcile of an object.
    pub fn new(shared: Arc<KindContext<K>>, object: Arc<K>, owner: Owner) -> Self {
        Self {
            status: object.status().cloned().unwrap_or_default(),
            key: ObjectKey::of(object.as_ref()),
            owner,
            is_failing: false,
            object,
            shared,
        }
    }

    /// Returns the client, whose writes fail while this replica is not the leader.
    pub fn client(&self) -> &Client {
        &self.shared.client
    }

    /// Returns whether an object of the kind has this UID, as far as the cache shows.
    pub fn owner_exists(&self, uid: &str) -> bool {
        self.shared.objects.has_uid(uid)
    }

    /// Returns how an object with this metadata relates to the reconciled object.
    pub fn ownership(&self, metadata: &ObjectMeta) -> Ownership {
        self.owner.ownership(metadata, |uid| self.owner_exists(uid))
    }

    /// Emits a Normal Event about something that the reconcile did.
    pub fn event(&self, action: &str, reason: &str, note: impl Into<String>) {
        let object = self.object.object_ref(&());
        self.shared
            .events
            .normal(object, action, reason, note.into());
    }

    /// Emits a Warning Event about something that the reconcile did or could not do.
    pub fn warning(&self, action: &str, reason: &str, note: impl Into<String>) {
        let object = self.object.object_ref(&());
        self.shared
            .events
            .warning(object, action, reason, note.into());
    }

    /// Checks with the apiserver that the object still exists and is not deleted unseen, because the cache may be stale.
    /// Call this before a child of an earlier owner passes to this one, before the recreation of a missing child, which
    /// may have been deleted with its owner, and before an owner reference is restored, which the garbage collector may
    /// have removed because the child is to outlive its owner.
    ///
    /// # Errors
    /// [`Error::Stale`] if the object no longer exists or is being deleted, [`Error::Api`] if the read failed.
    pub async fn confirm_owner(&self) -> Result<()> {
        let read = self.api().get_metadata_opt(self.owner.name()).await;
        let found = read.map_err(Error::api("the object could not be read"))?;
        let Some(found) = found.filter(|it| it.uid().as_deref() == Some(self.owner.uid())) else {
            let gone = "the object no longer exists, or another object has its name";
            return Err(Error::Stale(gone.into()));
        };
        let is_deleted = |metadata: &ObjectMeta| metadata.deletion_timestamp.is_some();
        if is_deleted(&found.metadata) && !is_deleted(self.object.meta()) {
            return Err(Error::Stale("the object is being deleted".into()));
        }
        Ok(())
    }

    /// Sets annotations of the object, or removes those without a value, unless the object already has these values.
    ///
    /// # Errors
    /// [`Error::Stale`] if the object no longer exists, [`Error::Api`] if the write failed. [`Error::is_stale`] is also
    /// true for the 409 of an object that has changed since.
    pub async fn annotate(&mut self, annotations: &[(&str, Option<&str>)]) -> Result<()> {
        if self.try_annotate(annotations).await? {
            return Ok(());
        }
        Err(Error::Stale("the object no longer exists".into()))
    }

    /// Sets annotations, as [`Context::annotate`] does; returns `false` if the object no longer exists.
    async fn try_annotate(&mut self, annotations: &[(&str, Option<&str>)]) -> Result<bool> {
        let before = self.object.annotations();
        let is_same =
            |(name, value): &(&str, Option<&str>)| before.get(*name).map(String::as_str) == *value;
        if annotations.iter().all(is_same) {
            return Ok(true);
        }
        let annotations = annotations.iter().copied().collect();
        let (api, manager) = (self.api(), self.shared.field_manager);
        let writing = write::annotate(&api, manager, self.object.as_ref(), &annotations);
        let written = self.shared.own_writes.write(&self.key, writing).await;
        match written.map_err(Error::api("the annotations could not be written")) {
            Ok(object) => self.object = object,
            Err(error) if error.is_not_found() => return Ok(false),
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Adds the kind's finalizer, unless the object has it. Call this before creating anything that must be deleted
    /// before the object.
    ///
    /// # Errors
    /// [`Error::Api`] if the write failed, such as with 409 when the object has changed since.
    pub async fn add_finalizer(&mut self) -> Result<()> {
        let Some(finalizer) = K::FINALIZER else {
            return Ok(());
        };
        let object = Arc::clone(&self.object);
        let (api, manager) = (self.api(), self.shared.field_manager);
        let added = finalizer::add(&self.shared.own_writes, &api, manager, object, finalizer).await;
        self.object = added.map_err(Error::api("the finalizer could not be added"))?;
        Ok(())
    }

    /// Reads the object again after another writer has changed its status.
    ///
    /// # Errors
    /// [`Error::Stale`] if the spec or the reconcile request has changed, or another object has the name: the next
    /// reconcile handles that change. [`Error::Api`] if the read failed.
    pub async fn reread(&mut self) -> Result<()> {
        let read = self.api().get(&self.key.name).await;
        let mut newest = read.map_err(Error::api("the object could not be read again"))?;
        strip(&mut newest);
        let is_same = newest.uid() == self.object.uid()
            && SpecRevision::of(&newest) == SpecRevision::of(self.object.as_ref());
        if !is_same {
            return Err(Error::Stale("the object has changed".into()));
        }
        self.status = newest.status().cloned().unwrap_or_default();
        self.object = self.shared.own_writes.record(&self.key, newest);
        Ok(())
    }

    /// Writes the draft of the status in the middle of a reconcile: a record that a later step relies on. The write
    /// emits no Event, so the draft should have the conditions of the object: a draft that waited for its write may
    /// have others.
    ///
    /// # Errors
    /// The errors of [`Context::annotate`].
    pub async fn write_status(&mut self) -> Result<()> {
        if self.is_written() {
            return Ok(());
        }
        match self.try_write_status().await? {
            Some(object) => self.object = object,
            None => return Err(Error::Stale("the object no longer exists".into())),
        }
        Ok(())
    }

    /// Returns whether the object has the status of the draft. A missing status equals an empty one.
    fn is_written(&self) -> bool {
        match self.object.status() {
            Some(status) => *status == self.status,
            None => self.status == StatusOf::<K>::default(),
        }
    }

    /// Writes the draft of the status if it differs; returns `None` if it does not, or if the object no longer exists.
    async fn try_write_status(&self) -> Result<Option<Arc<K>>> {
        if self.is_written() {
            return Ok(None);
        }
        let (api, manager) = (self.api(), self.shared.field_manager);
        let writing = write::status(&api, manager, self.object.as_ref(), &self.status);
        match self.shared.own_writes.write(&self.key, writing).await {
            Ok(object) => Ok(Some(object)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(Error::api("the status could not be written")(error)),
        }
    }

    fn api(&self) -> Api<K> {
        Api::namespaced(self.shared.client.clone(), &self.key.namespace)
    }
}

/// Status to write after a reconcile, and the outcome for its Event.
pub(super) struct StatusUpdate<K: ReconciledKind> {
    cx: Context<K>,
    outcome: Outcome,
    /// True if the failure is logged elsewhere.
    is_logged: bool,
    /// True if the reconcile failed and is retried soon: the retry writes a status anyway, so a failed write needs no
    /// retry of its own.
    is_retried: bool,
}

impl<K: ReconciledKind> StatusUpdate<K> {
    /// Returns whether `object` is still the object of this update, with the same status: no other client's change of
    /// the status may be lost.
    fn is_of(&self, object: &K) -> bool {
        self.cx.object.uid() == object.uid() && self.cx.object.status() == object.status()
    }
}

/// Write of a status that has no answer, or failed. The apiserver may have stored the status all the same: the Event is
/// emitted once a later reconcile finds or writes the same outcome.
struct UnansweredWrite<K> {
    /// The object before the write.
    before: Arc<K>,
    reason: Cow<'static, str>,
    message: String,
}

impl<K: ReconciledKind> UnansweredWrite<K> {
    /// Returns whether the write was of this outcome of the object.
    fn is_of(&self, object: &K, outcome: &Outcome) -> bool {
        self.before.uid() == object.uid()
            && self.reason == outcome.reason
            && self.message == outcome.message
    }
}

/// A controller and its state in the runtime.
pub(super) struct Reconciler<C: Controller> {
    pub controller: C,
    pub shared: Arc<KindContext<C::Kind>>,
    /// State of the lists of the kind.
    sync: SyncState,
    dedup: EventDedup,
    /// Objects whose last reconcile failed for a transient reason. A single such failure is not written to the status.
    failing: Mutex<HashSet<ObjectKey>>,
    /// Last write of each object's status, while its Event is not emitted.
    unanswered: Mutex<HashMap<ObjectKey, UnansweredWrite<C::Kind>>>,
    /// Held while a change of the cache is handled, so that no runner forgets an object that is recreated meanwhile.
    changing: Mutex<()>,
}

impl<C: Controller> Reconciler<C> {
    pub fn new(controller: C, shared: Arc<KindContext<C::Kind>>, sync: SyncState) -> Self {
        Self {
            controller,
            shared,
            sync,
            dedup: EventDedup::default(),
            failing: Mutex::default(),
            unanswered: Mutex::default(),
            changing: Mutex::default(),
        }
    }

    fn changing(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forget_state(&self, key: &ObjectKey) {
        self.controller.forget(key);
        self.dedup.forget(key);
        self.failing().remove(key);
        self.unanswered().remove(key);
    }

    fn forget_deleted(&self, key: &ObjectKey) {
        self.forget_state(key);
        self.shared.own_writes.forget(key);
    }

    /// Handles a change of the cache, and triggers the reconcile that it requires. `is_listed`: all objects have been
    /// listed.
    pub(crate) fn on_change(
        &self,
        change: CacheChange<C::Kind>,
        is_listed: bool,
        trigger: &Trigger<C::Kind>,
    ) {
        let _changing = self.changing();
        match change {
            CacheChange::Present(object) => {
                self.controller.on_applied(&object, is_listed);
                let key = ObjectKey::of(object.as_ref());
                // The cache repeats each object once the list is complete.
                if is_listed && !self.shared.own_writes.is_known(&key, &object) {
                    trigger.wake(&key);
                }
            }
            CacheChange::Deleted(object) => {
                let key = ObjectKey::of(object.as_ref());
                self.controller.on_deleted(&object);
                self.forget_deleted(&key);
                trigger.wake(&key);
            }
        }
    }

    fn failing(&self) -> MutexGuard<'_, HashSet<ObjectKey>> {
        self.failing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unanswered(&self) -> MutexGuard<'_, HashMap<ObjectKey, UnansweredWrite<C::Kind>>> {
        self.unanswered
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    async fn run(&self, cx: &mut Context<C::Kind>) -> Result<Option<Outcome>> {
        if cx.object.meta().deletion_timestamp.is_none() {
            self.controller.synced().await;
            // A client that replaces the object may drop the finalizer, and suspend the object with the same write.
            if self.controller.may_own(&cx.status) {
                cx.add_finalizer().await?;
            }
            return if cx.object.is_suspended() {
                Ok(Some(Outcome::suspended(
                    "spec.suspend is true: the operator changes nothing",
                )))
            } else {
                Box::pin(self.controller.reconcile(cx)).await.map(Some)
            };
        }
        let finalizer = C::Kind::FINALIZER.filter(|it| finalizer::has(cx.object.as_ref(), it));
        let Some(finalizer) = finalizer else {
            self.forget_state(&cx.key);
            return Ok(None);
        };
        let left = self.controller.finalize(cx).await?;
        if left.is_none() {
            let (api, manager) = (cx.api(), C::FIELD_MANAGER);
            let own_writes = &self.shared.own_writes;
            finalizer::remove(own_writes, &api, manager, cx.object.as_ref(), finalizer)
                .await
                .map_err(Error::api("the finalizer could not be removed"))?;
        }
        Ok(left)
    }

    /// Completes the draft of the status. `last` is the update that is not written yet. Returns `None` if there is
    /// nothing to write or to emit.
    fn draft(
        &self,
        mut cx: Context<C::Kind>,
        last: Option<Box<StatusUpdate<C::Kind>>>,
        mut outcome: Outcome,
    ) -> Option<Box<StatusUpdate<C::Kind>>> {
        let mut is_logged = false;
        if outcome.progress == Progress::Unchanged
            && cx.owner.is_observed()
            && let Some(last) = last
        {
            // The Event of the last outcome is not emitted yet.
            outcome = Outcome {
                requeue: outcome.requeue,
                ..last.outcome
            };
            is_logged = last.is_logged;
        }
        self.controller.fill_status(&mut cx);
        let mut is_silent = !matches!(outcome.event, EventPolicy::Renew(_));
        if outcome.progress != Progress::Unchanged {
            let generation = cx.object.meta().generation.unwrap_or_default();
            let (condition, now) = (outcome.condition(), Time(Timestamp::now()));
            C::Kind::set_ready_condition(&mut cx.status, &condition, generation, now);
            is_silent &= C::Kind::ready_annotations(&condition).is_empty();
            // An earlier write may have stored the status, and its Event is not emitted yet.
            let unanswered = self.unanswered();
            let last = unanswered.get(&cx.key);
            is_silent &= !last.is_some_and(|last| last.is_of(&cx.object, &outcome));
        }
        if is_silent && cx.is_written() {
            self.controller.on_status_written(&cx);
            return None;
        }
        Some(Box::new(StatusUpdate {
            cx,
            outcome,
            is_logged,
            is_retried: false,
        }))
    }

    /// Writes the annotations and the status, and emits the Event of the outcome. Returns the time until the Event
    /// must be renewed.
    async fn write(&self, update: &mut StatusUpdate<C::Kind>) -> Result<Option<Duration>> {
        let StatusUpdate { cx, outcome, .. } = update;
        let mut annotated = Ok(());
        if outcome.progress != Progress::Unchanged {
            let annotations = C::Kind::ready_annotations(&outcome.condition());
            let annotations: Vec<_> = annotations
                .iter()
                .map(|(name, value)| (*name, value.as_deref()))
                .collect();
            // A missing object is no error: the watch will show its deletion.
            annotated = cx.try_annotate(&annotations).await.map(drop);
        }
        let is_news = !matches!(
            (outcome.progress, outcome.event),
            (Progress::Unchanged, _) | (_, EventPolicy::Renew(_))
        );
        let begun = is_news.then(|| self.begin_write(cx, outcome));
        let written = cx.try_write_status().await;
        let (is_due, renewal) = match (outcome.event, begun) {
            (EventPolicy::Renew(period), _) => {
                let uid = cx.owner.uid();
                self.dedup.renew(&cx.key, uid, outcome, period)
            }
            (_, Some(begun)) => (self.end_write(cx, outcome, begun, &written), None),
            (_, None) => (false, None),
        };
        if is_due && outcome.is_failed() {
            if !update.is_logged {
                warn!(
                    reason = &*outcome.reason,
                    cause = outcome.message,
                    "not ready"
                );
            }
            cx.warning("Reconcile", &outcome.reason, outcome.message.clone());
        } else if is_due {
            cx.event("Reconcile", &outcome.reason, outcome.message.clone());
        }
        annotated?;
        written?;
        self.controller.on_status_written(cx);
        Ok(renewal)
    }

    /// Records a write of the status as unanswered. Returns the object before the first unanswered write of the
    /// outcome, and whether the apiserver has stored an earlier such write.
    fn begin_write(&self, cx: &Context<C::Kind>, outcome: &Outcome) -> (Arc<C::Kind>, bool) {
        let mut unanswered = self.unanswered();
        if let Some(last) = unanswered.get(&cx.key)
            && last.is_of(&cx.object, outcome)
        {
            return (Arc::clone(&last.before), cx.is_written());
        }
        let write = UnansweredWrite {
            before: Arc::clone(&cx.object),
            reason: outcome.reason.clone(),
            message: outcome.message.clone(),
        };
        unanswered.insert(cx.key.clone(), write);
        (Arc::clone(&cx.object), false)
    }

    /// Ends a write of the status, which stays unanswered after a failure. Returns whether an Event is to report the
    /// outcome.
    fn end_write(
        &self,
        cx: &Context<C::Kind>,
        outcome: &Outcome,
        (before, is_stored): (Arc<C::Kind>, bool),
        written: &Result<Option<Arc<C::Kind>>>,
    ) -> bool {
        // The apiserver stores no status of an object that its schema rejects. Only the Event then has the reason.
        let is_rejected = matches!(written, Err(Error::Api { source: kube::Error::Api(status), .. }) if status.code == 422);
        if written.is_err() && !is_rejected {
            return false;
        }
        self.unanswered().remove(&cx.key);
        if !is_rejected && !is_stored && !matches!(written, Ok(Some(_))) {
            return false;
        }
        let generation = cx.object.meta().generation.unwrap_or_default();
        let before = before.ready_condition().filter(|_| !is_rejected);
        self.dedup.is_due(&cx.key, generation, outcome, before)
    }

    fn failure(&self, error: Error) -> Failure {
        let (class, _) = self.controller.classify(&error);
        Failure { class, error }
    }

    /// Returns the outcome of a failure; `None` for a stale state, and for the first of several transient failures.
    fn failed(
        &self,
        key: &ObjectKey,
        class: Class,
        reason: Cow<'static, str>,
        error: &Error,
    ) -> Option<Outcome> {
        let repeats = class != Class::Transient || !self.failing().insert(key.clone());
        let outcome = match class {
            Class::Terminal => Outcome::stalled,
            _ => Outcome::failed,
        };
        (class != Class::Stale && repeats)
            .then(|| outcome(reason, error.to_string()).event(EventPolicy::OnMessage))
    }
}

/// Returns whether no operator has written a status of the object.
fn is_unobserved<K: ReconciledKind>(object: &K) -> bool {
    let Some(status) = object.status() else {
        return true;
    };
    // Another program may have added to the default.
    object.observed_generation() == Some(schema::UNOBSERVED)
        && serde_json::from_value(schema::unobserved_status())
            .is_ok_and(|unobserved: K::Status| *status == unobserved)
}

/// Adds what the object's status says about earlier reconciles.
fn owner_with_history<K: ReconciledKind>(owner: Owner, object: &K) -> Owner {
    // Another program that has worked on the object may have left an annotation instead of a status.
    let has_foreign = K::FOREIGN_ANNOTATIONS
        .iter()
        .any(|name| object.annotations().contains_key(*name));
    let ready = object.ready_condition();
    let contested = ready.filter(|ready| ready.reason == CONTESTED);
    owner
        .fresh(is_unobserved(object) && !has_foreign)
        .observed_generation(object.observed_generation())
        .ready(ready.is_some_and(|ready| ready.is_true()))
        .contested(contested.map(|ready| ready.message.to_owned()))
}

impl<C: Controller> Reconcile for Reconciler<C> {
    type Object = C::Kind;
    type StatusUpdate = Box<StatusUpdate<C::Kind>>;

    async fn reconcile(
        &self,
        object: Arc<C::Kind>,
        update: &mut Option<Self::StatusUpdate>,
    ) -> Result<Requeue, Failure> {
        let namespace = object.namespace().unwrap_or_default();
        if self.sync.is_unlisted(&namespace) {
            // A standby has cached the object, and may have missed later changes. The list, once allowed, triggers a
            // reconcile.
            return Ok(Requeue::OnChange);
        }
        let object = self
            .shared
            .own_writes
            .newest(&ObjectKey::of(object.as_ref()), object);
        // The apiserver gives every object a UID.
        let Some(owner) = Owner::of(object.as_ref()) else {
            return Ok(Requeue::OnChange);
        };
        match update {
            // A write pinned to an older version would conflict.
            Some(last) if last.is_of(&object) => last.cx.object = Arc::clone(&object),
            _ => *update = None,
        }
        // The controller sees the status of the last reconcile, even if that status is not written yet.
        let updated = update.as_ref().map(|last| {
            let mut updated = object.as_ref().clone();
            *updated.status_mut() = Some(last.cx.status.clone());
            updated
        });
        let updated = updated.as_ref().unwrap_or(&object);
        let owner = owner_with_history(owner, updated);
        let status = updated.status().cloned().unwrap_or_default();
        let shared = Arc::clone(&self.shared);
        let mut cx = Context {
            status,
            ..Context::new(shared, Arc::clone(&object), owner)
        };
        cx.is_failing = self.failing().contains(&cx.key);
        match self.run(&mut cx).await {
            Ok(outcome) => {
                let requeue = outcome.as_ref().map(|it| it.requeue).unwrap_or_default();
                // An object that waits has not succeeded yet.
                if !matches!(requeue, Requeue::InFlight(_)) {
                    self.failing().remove(&cx.key);
                }
                let last = update.take();
                *update = outcome.and_then(|outcome| self.draft(cx, last, outcome));
                Ok(requeue)
            }
            Err(Error::WithOutcome { outcome, error }) => {
                *update = self.draft(cx, update.take(), *outcome);
                if let Some(update) = update {
                    update.is_logged = true;
                }
                Err(self.failure(*error))
            }
            Err(error) => {
                let (class, reason) = self.controller.classify(&error);
                if let Some(outcome) = self.failed(&cx.key, class, reason, &error) {
                    *update = self.draft(cx, update.take(), outcome);
                    if let Some(update) = update {
                        update.is_logged = class != Class::Waiting;
                        // Other failures are retried much later.
                        update.is_retried = matches!(class, Class::Transient | Class::Waiting);
                    }
                }
                Err(Failure { class, error })
            }
        }
    }

    async fn write_status(
        &self,
        mut update: Self::StatusUpdate,
    ) -> Result<Option<Duration>, Failure> {
        match self.write(&mut update).await {
            Err(_) if update.is_retried => Ok(None),
            written => written.map_err(|error| self.failure(error)),
        }
    }

    fn on_started_leading(&self) {
        self.controller.on_started_leading();
    }

    fn forget(&self, key: &ObjectKey) {
        let _changing = self.changing();
        // An object of this name may have been created since the runner found none.
        if self.shared.objects.get(key).is_none() {
            self.forget_deleted(key);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use futures::FutureExt as _;
    use http::{Method, Request, Response};
    use kube::client::Body;
    use qm_core::kind::DelegatedAccess;
    use rstest::rstest;
    use serde_json::{Value, json};
    use tokio::sync::mpsc;
    use tower::{BoxError, service_fn};

    use super::*;
    use crate::error::WRITE_FAILED;
    use crate::testing::{FINALIZER, Widget, WidgetStatus};

    /// Controller whose reconciles have these results, in turn. The controller records the status and the freshness
    /// that each reconcile sees.
    struct Widgets {
        results: Mutex<Vec<Result<Outcome>>>,
        seen: Mutex<Vec<(WidgetStatus, bool)>>,
        /// True for each reconcile that knew of an earlier failure.
        failing: Mutex<Vec<bool>>,
        /// True if everything has been listed.
        is_synced: bool,
        /// True if each object may own something.
        may_own: bool,
    }

    impl Controller for Widgets {
        type Kind = Widget;

        const KIND: &'static KindInfo =
            &KindInfo::of::<Widget>("widget", &[], DelegatedAccess::Nothing, &[]);
        const FIELD_MANAGER: &'static str = "widgets";

        async fn reconcile(&self, cx: &mut Context<Widget>) -> Result<Outcome> {
            let seen = (cx.status.clone(), cx.owner.is_fresh());
            self.seen.lock().unwrap().push(seen);
            self.failing.lock().unwrap().push(cx.is_failing);
            self.results.lock().unwrap().remove(0)
        }

        fn may_own(&self, _status: &WidgetStatus) -> bool {
            self.may_own
        }

        async fn synced(&self) {
            if !self.is_synced {
                std::future::pending::<()>().await;
            }
        }
    }

    /// A controller of widgets, and the bodies of its writes by path.
    struct Fixture {
        reconciler: Reconciler<Widgets>,
        writes: mpsc::UnboundedReceiver<(String, Value)>,
        update: Option<Box<StatusUpdate<Widget>>>,
    }

    impl Fixture {
        /// Starts a controller whose reconciles have these results, and an apiserver that answers each write of a
        /// status with `code`.
        fn start(code: u16, results: Vec<Result<Outcome>>) -> Self {
            let (written, writes) = mpsc::unbounded_channel();
            let apiserver = service_fn(move |request: Request<Body>| {
                let written = written.clone();
                async move {
                    let (parts, body) = request.into_parts();
                    let body: Value = serde_json::from_slice(&body.collect_bytes().await?)?;
                    let is_status = parts.method == Method::PATCH;
                    let answer = if is_status && code != 200 {
                        json!({ "status": "Failure", "message": "", "reason": "", "code": code })
                    } else if is_status {
                        serde_json::to_value(widget("1", "8", None))?
                    } else {
                        body.clone()
                    };
                    written.send((parts.uri.path().to_owned(), body)).unwrap();
                    let answer = Body::from(serde_json::to_vec(&answer)?);
                    let code = if is_status { code } else { 201 };
                    Ok::<_, BoxError>(Response::builder().status(code).body(answer)?)
                }
            });
            let client = Client::new(apiserver, "default");
            let (events, write) = Events::new(client.clone(), "widgets", "widgets-0");
            tokio::spawn(write);
            let (objects, trigger) = (Objects::default(), Trigger::default());
            let shared = KindContext::new(client, "widgets", objects, trigger, events);
            let widgets = Widgets {
                results: Mutex::new(results),
                seen: Mutex::default(),
                failing: Mutex::default(),
                is_synced: true,
                may_own: false,
            };
            Self {
                reconciler: Reconciler::new(widgets, shared, SyncState::default()),
                writes,
                update: None,
            }
        }

        async fn reconcile(&mut self, widget: Widget) -> Result<Requeue, Failure> {
            let (widget, update) = (Arc::new(widget), &mut self.update);
            self.reconciler.reconcile(widget, update).await
        }

        async fn write_status(&mut self) -> Result<Option<Duration>, Failure> {
            self.reconciler
                .write_status(self.update.take().unwrap())
                .await
        }

        /// Returns the reason of the next Event.
        async fn next_event(&mut self) -> Value {
            loop {
                let (path, body) = self.writes.recv().await.unwrap();
                if path.ends_with("/events") {
                    return body["reason"].clone();
                }
            }
        }

        /// Returns what the last reconcile saw.
        fn seen(&self) -> (WidgetStatus, bool) {
            self.reconciler
                .controller
                .seen
                .lock()
                .unwrap()
                .pop()
                .unwrap()
        }
    }

    fn status(ready: &str) -> WidgetStatus {
        WidgetStatus {
            fields: [("ready".to_owned(), ready.into())].into(),
        }
    }

    fn widget(uid: &str, version: &str, status: Option<WidgetStatus>) -> Widget {
        let metadata = ObjectMeta {
            name: Some("w".into()),
            namespace: Some("n".into()),
            uid: Some(uid.into()),
            resource_version: Some(version.into()),
            ..ObjectMeta::default()
        };
        Widget {
            metadata,
            status,
            ..Widget::default()
        }
    }

    fn outcome(reason: &'static str) -> Outcome {
        Outcome::failed(reason, "because")
    }

    fn conflict() -> Error {
        Error::Stale("the object has changed".into())
    }

    #[tokio::test]
    async fn newest_status_is_written_before_its_event() {
        let mut fixture = Fixture::start(200, vec![Ok(outcome("A")), Ok(outcome("B"))]);
        fixture.reconcile(widget("1", "7", None)).await.unwrap();
        assert_eq!(fixture.seen(), (WidgetStatus::default(), true));
        fixture.reconcile(widget("1", "7", None)).await.unwrap();
        assert_eq!(
            fixture.seen(),
            (status("A"), false),
            "as if it were written"
        );
        fixture.write_status().await.unwrap();
        let (path, body) = fixture.writes.recv().await.unwrap();
        assert!(path.ends_with("/widgets/w/status"), "{path}");
        assert_eq!(body["status"], json!({ "ready": "B" }));
        let (path, body) = fixture.writes.recv().await.unwrap();
        assert!(path.ends_with("/events"), "{path}");
        assert_eq!(body["reason"], "B");
        assert!(fixture.writes.try_recv().is_err(), "A is not written");
    }

    #[rstest]
    #[case::replaced(widget("2", "8", None))]
    #[case::status_of_another_client(widget("1", "8", Some(status("theirs"))))]
    #[tokio::test]
    async fn waiting_status_is_dropped_for_another_object_or_status(#[case] next: Widget) {
        let mut fixture = Fixture::start(200, vec![Ok(outcome("A")), Err(conflict())]);
        fixture.reconcile(widget("1", "7", None)).await.unwrap();
        let shown = next.status.clone().unwrap_or_default();
        assert!(fixture.reconcile(next).await.is_err());
        assert_eq!(fixture.seen().0, shown);
        assert!(fixture.update.is_none());
    }

    #[tokio::test]
    async fn waiting_status_outlasts_a_conflict() {
        let mut fixture = Fixture::start(200, vec![Ok(outcome("A")), Err(conflict())]);
        fixture.reconcile(widget("1", "7", None)).await.unwrap();
        assert!(fixture.reconcile(widget("1", "7", None)).await.is_err());
        fixture.write_status().await.unwrap();
        let (_, body) = fixture.writes.recv().await.unwrap();
        assert_eq!(body["status"], json!({ "ready": "A" }));
    }

    #[tokio::test]
    async fn waiting_event_outlasts_an_outcome_without_news() {
        let mut fixture = Fixture::start(200, vec![Ok(outcome("A")), Ok(Outcome::unchanged())]);
        for _ in 0..2 {
            let mut widget = widget("1", "7", None);
            widget.metadata.generation = Some(1);
            fixture.reconcile(widget).await.unwrap();
        }
        fixture.write_status().await.unwrap();
        let (_, body) = fixture.writes.recv().await.unwrap();
        assert_eq!(body["status"], json!({ "ready": "A" }));
        let (path, body) = fixture.writes.recv().await.unwrap();
        assert!(path.ends_with("/events"), "{path}");
        assert_eq!(body["reason"], "A");
    }

    #[tokio::test]
    async fn waiting_status_is_written_to_the_newest_version() {
        let mut fixture = Fixture::start(200, vec![Ok(outcome("A")), Err(conflict())]);
        fixture.reconcile(widget("1", "7", None)).await.unwrap();
        assert!(fixture.reconcile(widget("1", "8", None)).await.is_err());
        fixture.write_status().await.unwrap();
        let (_, body) = fixture.writes.recv().await.unwrap();
        assert_eq!(body["metadata"]["resourceVersion"], "8");
    }

    #[tokio::test]
    async fn event_of_an_unanswered_write_is_emitted_once() {
        let results = ["A", "A", "A", "A", "B", "B"].map(|reason| Ok(outcome(reason)));
        let mut fixture = Fixture::start(500, results.into());
        let stored = |version, ready| widget("1", version, Some(status(ready)));
        // The first write is lost, the second one is stored.
        for _ in 0..2 {
            fixture.reconcile(widget("1", "7", None)).await.unwrap();
            fixture.write_status().await.unwrap_err();
        }
        fixture.reconcile(stored("8", "A")).await.unwrap();
        fixture.write_status().await.unwrap();
        assert_eq!(fixture.next_event().await, "A");
        fixture.reconcile(stored("8", "A")).await.unwrap();
        assert!(fixture.update.is_none());
        fixture.reconcile(stored("8", "A")).await.unwrap();
        fixture.write_status().await.unwrap_err();
        fixture.reconcile(stored("9", "B")).await.unwrap();
        fixture.write_status().await.unwrap();
        assert_eq!(fixture.next_event().await, "B");
    }

    /// The object is deleted and recreated while its status is written.
    #[tokio::test(start_paused = true)]
    async fn event_of_a_deleted_object_suppresses_none_of_the_next_one() {
        let period = Duration::from_mins(30);
        let results = [(); 2].map(|()| Ok(outcome("A").event(EventPolicy::Renew(period))));
        let mut fixture = Fixture::start(404, results.into());
        fixture.reconcile(widget("1", "7", None)).await.unwrap();
        let key = ObjectKey::new("n", "w");
        fixture.reconciler.forget(&key);
        fixture.write_status().await.unwrap();
        tokio::time::advance(Duration::from_mins(1)).await;
        fixture.reconcile(widget("2", "8", None)).await.unwrap();
        let renewal = fixture.write_status().await.unwrap();
        assert_eq!(renewal, Some(period));
    }

    /// The runner finds no object, and the cache then shows a new one.
    #[tokio::test]
    async fn object_that_exists_again_is_not_forgotten() {
        let failed = Error::other(Class::Transient, WRITE_FAILED, "no answer");
        let mut fixture = Fixture::start(200, vec![Err(failed)]);
        let object = widget("1", "7", None);
        let key = ObjectKey::of(&object);
        let _ = fixture.reconcile(object.clone()).await;
        let objects = &fixture.reconciler.shared.objects;
        objects.insert(object);
        fixture.reconciler.forget(&key);
        assert!(fixture.reconciler.failing().contains(&key));
        objects.remove(&key);
        fixture.reconciler.forget(&key);
        assert!(!fixture.reconciler.failing().contains(&key));
    }

    #[tokio::test]
    async fn controller_knows_of_a_failure_until_a_reconcile_succeeds() {
        let failed = || Err(Error::other(Class::Transient, WRITE_FAILED, "no answer"));
        let waiting = Outcome::unchanged().requeue(Requeue::InFlight(Duration::ZERO));
        let results = vec![failed(), failed(), Ok(waiting), Ok(outcome("A")), failed()];
        let mut fixture = Fixture::start(200, results);
        for _ in 0..5 {
            let _ = fixture.reconcile(widget("1", "7", None)).await;
        }
        let failing = fixture.reconciler.controller.failing.lock().unwrap();
        assert_eq!(*failing, [false, true, true, true, false]);
    }

    #[tokio::test]
    async fn object_waits_for_the_lists() {
        let mut fixture = Fixture::start(200, vec![Ok(outcome("A"))]);
        fixture.reconciler.controller.is_synced = false;
        let waiting = fixture.reconcile(widget("1", "7", None)).now_or_never();
        assert!(waiting.is_none());
        fixture.reconciler.controller.is_synced = true;
        fixture.reconcile(widget("1", "7", None)).await.unwrap();
        assert!(fixture.update.is_some());
    }

    #[rstest]
    #[case::owner(true, &[], true)]
    #[case::owner_with_finalizer(true, &[FINALIZER], false)]
    #[case::object_that_owns_nothing(false, &[], false)]
    #[tokio::test]
    async fn removed_finalizer_is_added_again_before_the_reconcile(
        #[case] may_own: bool,
        #[case] finalizers: &[&str],
        #[case] is_written: bool,
    ) {
        let mut fixture = Fixture::start(200, vec![Err(conflict())]);
        fixture.reconciler.controller.may_own = may_own;
        let mut widget = widget("1", "7", None);
        widget.metadata.finalizers = Some(finalizers.iter().map(|it| (*it).to_owned()).collect());
        assert!(fixture.reconcile(widget).await.is_err());
        let written = fixture.writes.try_recv();
        assert_eq!(written.is_ok(), is_written);
        if let Ok((path, body)) = written {
            assert!(path.ends_with("/widgets/w"), "{path}");
            assert_eq!(body["metadata"]["finalizers"], json!([FINALIZER]));
        }
    }

    #[tokio::test]
    async fn written_status_is_not_written_again() {
        let mut fixture = Fixture::start(200, vec![Ok(outcome("B")), Ok(outcome("A"))]);
        for is_drafted in [true, false] {
            let stored = widget("1", "7", Some(status("A")));
            fixture.reconcile(stored).await.unwrap();
            assert_eq!(fixture.update.is_some(), is_drafted);
        }
    }

    #[rstest]
    #[case::success(500, Ok(outcome("A")), true)]
    #[case::success_of_a_deleted_object(404, Ok(outcome("A")), false)]
    #[case::failure_that_is_retried(500, Err(Error::Terminating("Pod shop/web".into())), false)]
    #[case::failure_that_nobody_retries(500, Err(Error::Invalid("no text".into())), true)]
    #[case::failure_with_an_outcome(
        500,
        Err(conflict().with_outcome(outcome("A"))),
        true
    )]
    #[tokio::test]
    async fn failed_write_fails_the_reconcile_once(
        #[case] code: u16,
        #[case] result: Result<Outcome>,
        #[case] fails: bool,
    ) {
        let mut fixture = Fixture::start(code, vec![result]);
        let _ = fixture.reconcile(widget("1", "7", None)).await;
        assert_eq!(fixture.write_status().await.is_err(), fails);
    }
}
