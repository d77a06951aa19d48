//! One algorithm creates and corrects the children of every kind.
//!
//! A missing child is created, which cannot overwrite an existing object. For an existing child the operator determines
//! the ownership first, and then takes the action that the pure [`DesiredChild::plan`] returns: it applies the child
//! server-side, replaces it, changes its metadata or deletes it, unless the child matches its desired state. Children
//! are watched by their ownership label where that label suffices. The operator stores no child, only a
//! fingerprint of each and a summary for the owner's status.
//!
//! The operator detects drift by values. It keeps a digest of the values that the apiserver returned for the fields of
//! the desired state, after admission and defaults; a child has drifted when its values at those fields differ.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::{Api, Client, Resource, ResourceExt};
use qm_core::names::MetadataNames;
use tokio::sync::{Semaphore, SemaphorePermit, SetOnce};

use self::desired::{Applied, classified, managed_fields_of, title};
pub use self::desired::{ChildAction, ChildKind, ChildSummary, DesiredChild, Quirks};
use self::rate_limit::Basis;
pub(super) use self::rate_limit::WriteLimiter;
use super::child_cache::{ChildCache, KnownChild};
use super::controller::Context;
use super::drift::{Correction, Drift};
use super::error::{Error, QUOTA_EXCEEDED, Result, rejection_reason};
use super::fields::{Projection, content};
use super::managed_fields::{self, TakenFields};
use super::ownership::{Owner, Ownership, proves_owner};
use super::raw_object::{BoundedObject, LARGE, RawObject};
use super::reconciled_kind::ReconciledKind;
use super::watch::{Index, Observer, SyncState};
use super::{ObjectKey, finalizer, version, write};

mod desired;
mod rate_limit;

/// Maximum number of attempts in one reconcile: another client may create, change or delete the child in between.
const MAX_ATTEMPTS: usize = 3;

/// Memory of a decoded child from which one of all typed watches is in memory at a time, in bytes. Few children that the
/// operator writes take as much.
const LARGE_TYPED: usize = 4 * LARGE;

/// Children of one kind and controller. `S` is the summary of each for its owner's status.
pub struct Children<K, S> {
    pub(super) client: Client,
    pub(super) names: &'static MetadataNames,
    /// Field manager of all writes.
    pub(super) field_manager: &'static str,
    pub(super) cache: Arc<ChildCache<S>>,
    pub(super) summary: fn(&K) -> S,
    /// True if the watch shows metadata alone, because the objects may be large. Any new version may then be a change,
    /// and the caller limits the number of objects that are read at once.
    pub(super) watches_metadata: bool,
    /// Permit for the one large child that may be in memory. Children that are watched by their metadata have a permit
    /// of their own; all others share one.
    pub(super) large: Arc<Semaphore>,
    pub(super) wake: Arc<dyn Fn(&ObjectKey) + Send + Sync>,
    pub(super) watch_needed: Arc<SetOnce<()>>,
    pub(super) sync: SyncState,
    pub(super) drift: Drift,
    pub(super) unconfirmed: WriteLimiter,
}

/// Result of [`Children::ensure`].
#[derive(Debug)]
pub enum Ensured<S> {
    /// The child was missing and is created.
    Created(KnownChild<S>),
    /// The owner did not own the child, and does now.
    Adopted(KnownChild<S>),
    /// The child was changed.
    Updated(KnownChild<S>),
    /// The child needs no write.
    Kept(KnownChild<S>),
    /// A write waits for the rate limit, or because other clients keep changing the child.
    Waits(KnownChild<S>),
    /// The child was deleted, for this reason.
    Deleted(KnownChild<S>, String),
    /// The child is being deleted.
    Terminating(KnownChild<S>),
}

impl<K: ChildKind, S: ChildSummary> Children<K, S> {
    /// Returns the summary of the child of this name, if `owner` owns it.
    pub fn summary(&self, key: &ObjectKey, owner: &Owner) -> Option<S> {
        self.cache
            .known(key)
            .filter(|known| *known.owner_uid == *owner.uid())
            .map(|known| known.summary)
    }

    /// Returns those cached children that the context's object [owns](Children::owned) and that satisfy the predicate.
    pub fn owned_where<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        is_selected: impl Fn(&ObjectKey, &KnownChild<S>) -> bool,
    ) -> HashMap<ObjectKey, KnownChild<S>> {
        let mut owned = HashMap::new();
        self.each_owned(cx, |key, child| {
            if is_selected(key, child) {
                owned.insert(key.clone(), child.clone());
            }
        });
        owned
    }

    /// Returns the keys of the cached children that the context's object [owns](Children::owned).
    pub fn owned_keys<O: ReconciledKind>(&self, cx: &Context<O>) -> Vec<ObjectKey> {
        let mut owned = Vec::new();
        self.each_owned(cx, |key, _| owned.push(key.clone()));
        owned
    }

    /// Returns the keys of the cached children that name `owner`, or an earlier object of its name, as their owner.
    pub fn keys_of(&self, owner: &Owner) -> Vec<ObjectKey> {
        let (key, mut keys) = (ObjectKey::new(owner.namespace(), owner.name()), Vec::new());
        self.cache
            .each_of(&key, owner.uid(), |child, _| keys.push(child.clone()));
        keys
    }

    /// Returns the number of children that the context's object owns.
    pub fn owned_count<O: ReconciledKind>(&self, cx: &Context<O>) -> usize {
        let mut owned = 0;
        self.each_owned(cx, |_, _| owned += 1);
        owned
    }

    fn each_owned<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        mut visit: impl FnMut(&ObjectKey, &KnownChild<S>),
    ) {
        self.cache.each_of(&cx.key, cx.owner.uid(), |key, child| {
            if is_owned(cx, child) {
                visit(key, child);
            }
        });
    }

    /// Returns the cached child of this name, if its owner is the context's object, or an earlier object with the name
    /// of the context's object that no longer exists.
    pub fn owned<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        key: &ObjectKey,
    ) -> Option<KnownChild<S>> {
        self.cache.known(key).filter(|child| is_owned(cx, child))
    }

    /// Returns whether the watch has shown the child `key` with this digest of its content.
    pub fn is_up_to_date(&self, key: &ObjectKey, digest: &str) -> bool {
        self.cache.is_up_to_date(key, digest)
    }

    /// Returns the digest of the content of a cached child.
    pub fn cached_fingerprint(&self, key: &ObjectKey) -> Option<u64> {
        self.cache.known(key).map(|known| known.fingerprint)
    }

    /// Waits until the children have been listed, or their list was denied.
    pub async fn synced(&self) {
        // Later calls have no effect.
        let _ = self.watch_needed.set(());
        self.sync.synced().await;
    }

    /// Applies `desired` server-side as a child of the context's object.
    ///
    /// After a restart, the write of a child that is not confirmed yet may wait for the rate limit, which then wakes
    /// the owner.
    ///
    /// # Errors
    /// The errors of [`Children::ensure`], and [`Error::Terminating`] while the child is being deleted.
    pub async fn apply<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        desired: K,
        quirks: Quirks<'_, K>,
    ) -> Result<Ensured<S>> {
        let applied = Applied::new(&cx.owner, self.field_manager, &self.drift, desired, quirks)?;
        unless_terminating(&applied, self.ensure(cx, &applied).await?)
    }

    /// Applies `desired` as [`Children::apply`] does, except that a child that the watch has not shown is created
    /// without a read. The caller has [confirmed](Context::confirm_owner) the owner: the child may be missing because
    /// it was deleted with its owner.
    ///
    /// # Errors
    /// The errors of [`Children::apply`].
    pub async fn create<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        desired: K,
        quirks: Quirks<'_, K>,
    ) -> Result<Ensured<S>> {
        let applied = Applied::new(&cx.owner, self.field_manager, &self.drift, desired, quirks)?;
        self.synced().await;
        let created = if self.cache.known(&applied.key).is_some() {
            self.ensure(cx, &applied).await
        } else {
            Box::pin(self.ensure_unconfirmed(cx, &applied, &applied.key, false)).await
        };
        unless_terminating(&applied, created?)
    }

    /// Creates the child of the context's object that `desired` describes, or makes an existing one match.
    ///
    /// # Errors
    /// [`Error::NotOwned`] if a foreign object has the name, [`Error::Rejected`] if the apiserver rejects the child,
    /// [`Error::Stale`] if the owner no longer exists, [`Error::Terminating`] if another client keeps deleting the
    /// child, [`Error::Api`] otherwise, such as for a child that is too large or cannot be decoded.
    pub async fn ensure<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        desired: &impl DesiredChild<K, S>,
    ) -> Result<Ensured<S>> {
        self.synced().await;
        let (owner, key, digest) = (&cx.owner, desired.key(), desired.digest());
        let known = self.cache.known(&key);
        // A deletion that the watch has shown may be complete by now.
        if let Some(known) = known.as_ref().filter(|known| !known.terminating) {
            if self.cache.is_up_to_date(&key, digest) {
                return Ok(Ensured::Kept(known.clone()));
            }
            let basis = basis(owner, known.fingerprint);
            if self.drift.is_backing_off(owner, &key, digest)
                || self.unconfirmed.waits(&key, &basis)
            {
                return Ok(Ensured::Waits(known.clone()));
            }
        }
        let may_exist = known.is_some() || !owner.is_fresh();
        // The future holds the object several times, so it is too large for the stack of every reconcile.
        Box::pin(self.ensure_unconfirmed(cx, desired, &key, may_exist)).await
    }

    /// Creates the child, or reads the child and takes the action that the plan requires.
    async fn ensure_unconfirmed<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        desired: &impl DesiredChild<K, S>,
        key: &ObjectKey,
        mut may_exist: bool,
    ) -> Result<Ensured<S>> {
        let (owner, digest, api) = (&cx.owner, desired.digest(), self.api(key));
        let _request = self.cache.begin_request(key);
        let mut cached = self.cache.trusted(key).and_then(|child| {
            let ownership = cx.ownership(desired.cached_metadata(&child.summary)?);
            Some((child, None, ownership))
        });
        // Values and `managedFields` of a child that has drifted, from before the correction; permit for a large child.
        let (mut before, mut permit) = (None, None);
        for attempt in 1..=MAX_ATTEMPTS {
            drop(permit.take());
            let is_last = attempt == MAX_ATTEMPTS;
            let mut rejected = None;
            if !may_exist {
                let created = write::create(&api, self.field_manager, desired.build()).await;
                match classified::<K, _>(key, created) {
                    Ok(Some(created)) => {
                        self.record_created(owner, key, &created, desired);
                        return Ok(Ensured::Created(self.known(&created)));
                    }
                    Ok(None) => {}
                    // The apiserver may reject the creation because of a value that the existing child itself holds,
                    // such as a node port.
                    Err(error @ Error::Rejected { .. }) => rejected = Some(error),
                    Err(error) => return Err(error),
                }
            }
            let (child, object, ownership) = if let Some(cached) = cached.take() {
                cached
            } else {
                let Some((object, large)) = self.read(key).await? else {
                    self.cache.record_missing(key);
                    if let Some(rejected) = rejected {
                        return Err(rejected);
                    }
                    // The child may have been deleted with its owner. An owner with a finalizer exists until the
                    // operator removes the finalizer.
                    let has_finalizer = |name| finalizer::has(cx.object.as_ref(), name);
                    if !O::FINALIZER.is_some_and(has_finalizer) {
                        cx.confirm_owner().await?;
                    }
                    may_exist = false;
                    continue;
                };
                permit = large;
                let ownership = cx.ownership(object.meta());
                (self.known(&object.object), Some(object), ownership)
            };
            may_exist = true;
            match &ownership {
                Ownership::Foreign(foreign) => {
                    let ObjectKey { namespace, name } = key;
                    let resource = resource::<K>();
                    let message = owner.conflict_message(foreign, &resource, namespace, name);
                    return Err(Error::NotOwned(message));
                }
                Ownership::Restored => cx.confirm_owner().await?,
                Ownership::Owned | Ownership::Adoptable => {}
            }
            if child.terminating {
                return Ok(Ensured::Terminating(child));
            }
            // Without the fields and their owners, a write could remove fields of other managers.
            let object = object.map(BoundedObject::whole).transpose();
            let object = classified::<K, _>(key, object)?;
            let matched = self.cache.matched(key, &child.uid);
            let matched = matched.as_ref();
            if ownership == Ownership::Owned
                && matched.is_none()
                && let Some(message) = owner.contest_message()
            {
                self.drift
                    .resume(owner, key, &title::<K>(key), digest, message);
            }
            let action = match &object {
                Some(object) => desired.plan(object, &ownership, matched),
                None => desired.plan_cached(&child.summary),
            };
            let object = object.as_ref();
            let Some(action) = action else {
                if let Some(object) = object {
                    self.record_match(key, object, desired);
                    self.record_correction(owner, key, desired, before.as_ref(), object);
                }
                return Ok(Ensured::Kept(child));
            };
            let drifted = object.filter(|object| {
                ownership != Ownership::Adoptable && desired.has_drifted(object, matched)
            });
            if before.is_none() {
                before = drifted
                    .map(|object| (desired.values(object), managed_fields_of(object).to_vec()));
            }
            let metadata = match object {
                Some(object) => Some(object.meta()),
                None => desired.cached_metadata(&child.summary),
            };
            if ownership == Ownership::Owned
                && !matches!(action, ChildAction::Delete(_))
                && metadata.is_some_and(|metadata| owner.lacks_reference(metadata))
            {
                cx.confirm_owner().await?;
            }
            let is_applied = matches!(action, ChildAction::Apply(_));
            let written = match action {
                ChildAction::Apply(applied) => {
                    let Some(live) = object else {
                        // The next attempt reads the child.
                        continue;
                    };
                    let has_drifted = drifted.is_some();
                    if (has_drifted && self.drift.is_backing_off(owner, key, digest))
                        || (ownership == Ownership::Owned
                            && matched.is_none()
                            // The owner's status must not report children that wait as applied.
                            && owner.is_ready()
                            && self.must_wait(owner, key, child.fingerprint))
                    {
                        return Ok(Ensured::Waits(child));
                    }
                    applied
                        .write(&api, live, &ownership, matched, has_drifted, is_last)
                        .await
                }
                ChildAction::Replace(object) => {
                    let api = self.unbounded_api(key);
                    let replaced = write::replace(&api, self.field_manager, &*object).await;
                    classified::<K, _>(key, replaced.map(Some))
                }
                ChildAction::Patch(patch) => {
                    let metadata = child.pinned(key);
                    let patched = write::metadata(&api, self.field_manager, &metadata, patch).await;
                    classified::<K, _>(key, patched.map(Some))
                }
                ChildAction::Delete(reason) => {
                    self.check_replacement(&api, key, desired.build()).await?;
                    match self.delete(key, &child).await {
                        Ok(()) => return Ok(Ensured::Deleted(child, reason)),
                        Err(error) => Err(error),
                    }
                }
            };
            match written {
                Ok(Some(written)) => {
                    self.record_match(key, &written, desired);
                    self.record_correction(owner, key, desired, before.as_ref(), &written);
                    return Ok(self.ensured(&ownership, child.version, &written));
                }
                Ok(None) => {}
                // Another client has changed or deleted the child. A conflict of an apply ends the reconcile: its last
                // attempt would return a rejection that the first attempt of the next reconcile resolves.
                Err(error)
                    if error.is_not_found() || (error.is_stale() && !is_last && !is_applied) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Terminating(title::<K>(key)))
    }

    /// Returns the result of the write of a child that had this version before.
    fn ensured(&self, ownership: &Ownership, before: u64, written: &K) -> Ensured<S> {
        let child = self.known(written);
        match ownership {
            // An admission webhook has undone the change, so the apiserver stored nothing.
            Ownership::Owned if child.version == before => Ensured::Kept(child),
            Ownership::Owned => Ensured::Updated(child),
            _ => Ensured::Adopted(child),
        }
    }

    /// Fails if the apiserver would reject the replacement of a child, so that the child stays. Ignores a quota,
    /// because the quota still counts the child.
    async fn check_replacement(
        &self,
        api: &Api<BoundedObject<K>>,
        key: &ObjectKey,
        replacement: K,
    ) -> Result<()> {
        let accepted = write::try_create(api, self.field_manager, replacement).await;
        match classified::<K, _>(key, accepted) {
            Err(Error::Rejected { status, .. }) if rejection_reason(&status) == QUOTA_EXCEEDED => {
                Ok(())
            }
            accepted => accepted,
        }
    }

    /// Reads the child. A large one comes with the permit for it, once no other is in memory.
    async fn read(
        &self,
        key: &ObjectKey,
    ) -> Result<Option<(BoundedObject<K>, Option<SemaphorePermit<'_>>)>> {
        let api = RawObject::api::<K>(self.client.clone(), &key.namespace);
        let get = async || classified::<K, _>(key, api.get_opt(&key.name).await);
        let Some(mut live) = get().await? else {
            return Ok(None);
        };
        let mut permit = None;
        let large = if self.watches_metadata {
            LARGE
        } else {
            LARGE_TYPED
        };
        if live.decoded_size() > large {
            // Many waiting texts would take as much memory as a decoded child.
            drop(live);
            permit = self.large.acquire().await.ok();
            live = match get().await? {
                Some(live) => live,
                None => return Ok(None),
            };
        }
        let decoded = if self.watches_metadata {
            live.decode_as().map(BoundedObject::new)
        } else {
            live.decode_as()
        };
        let decoded = decoded.map_err(kube::Error::SerdeError);
        Ok(Some((classified::<K, _>(key, decoded)?, permit)))
    }

    /// Returns the child of this name as the apiserver has it, whoever owns it.
    ///
    /// # Errors
    /// [`Error::Rejected`] if the apiserver denies the read, [`Error::Api`] otherwise.
    pub async fn live(&self, key: &ObjectKey) -> Result<Option<KnownChild<S>>> {
        let read = self.read(key).await?;
        Ok(read.map(|(live, _permit)| self.known(&live.object)))
    }

    /// Returns whether the write of a child without a confirmed state must wait for the rate limit.
    fn must_wait(&self, owner: &Owner, key: &ObjectKey, fingerprint: u64) -> bool {
        let (wake, of) = (
            Arc::clone(&self.wake),
            ObjectKey::new(owner.namespace(), owner.name()),
        );
        self.unconfirmed
            .must_wait(key, basis(owner, fingerprint), move || wake(&of))
    }

    /// Counts the correction of a child, and emits its Event.
    fn record_correction(
        &self,
        owner: &Owner,
        key: &ObjectKey,
        desired: &impl DesiredChild<K, S>,
        before: Option<&(Projection, Vec<ManagedFieldsEntry>)>,
        after: &K,
    ) {
        let TakenFields {
            fields: taken,
            mut managers,
        } = self.drift.drain_taken(key);
        let mut changed = Vec::new();
        if let Some((values, managed)) = before {
            changed = values.differences(&desired.values(after));
            managers.extend(
                managed_fields::last_writer(managed, self.field_manager, &changed)
                    .map(str::to_owned),
            );
        }
        changed.extend(taken);
        let manager = managers.into_iter().collect::<Vec<_>>().join(" and ");
        self.drift.corrected(
            owner,
            key,
            &Correction {
                title: &title::<K>(key),
                fields: &changed,
                before: before.map_or(&Projection::default(), |(values, _)| values),
                manager: Some(&*manager).filter(|manager| !manager.is_empty()),
                digest: desired.digest(),
            },
        );
    }

    /// Returns the message about a child that other managers keep changing, and the delay until the next reconcile.
    /// Call this after [`Children::apply`].
    pub fn contested(&self, key: &ObjectKey) -> Option<(String, Duration)> {
        self.drift.contested(key)
    }

    /// Deletes a child with its own grace period.
    ///
    /// # Errors
    /// [`Error::Rejected`] or [`Error::Api`] if the deletion failed, such as with 409 when the child has changed since.
    pub async fn delete(&self, key: &ObjectKey, child: &KnownChild<S>) -> Result<()> {
        let deleted = self.cache.delete(&self.api(key), key, child).await;
        classified::<K, _>(key, deleted)
    }

    /// Deletes the child of this name, if the context's object owns it; returns whether the child was deleted now. The
    /// first call reads the name, because no watch shows a child without the ownership label.
    ///
    /// # Errors
    /// The errors of [`Children::delete_owned`].
    pub async fn ensure_absent<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        key: &ObjectKey,
    ) -> Result<bool> {
        self.drift.forget(key);
        self.unconfirmed.forget(key);
        self.cache.take_external_deletion(key);
        self.synced().await;
        let _request = self.cache.begin_request(key);
        let known = self.cache.known(key);
        if cx.owner.is_fresh() && known.is_none() {
            // Later reconciles need not read the child either.
            self.cache.record_absent(key);
        }
        if self.cache.is_absent(key) || known.is_some_and(|known| known.terminating) {
            return Ok(false);
        }
        let is_deleted = self.delete_owned(cx, key).await?;
        if !is_deleted {
            self.cache.record_absent(key);
        }
        Ok(is_deleted)
    }

    /// Deletes the child of this name; returns `false` if the context's object does not own such a child, or the child is
    /// being deleted.
    ///
    /// # Errors
    /// [`Error::Stale`] if the owner no longer exists, [`Error::Rejected`] or [`Error::Api`] if the read or the write
    /// failed.
    pub async fn delete_owned<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        key: &ObjectKey,
    ) -> Result<bool> {
        let delete = |live: BoundedObject<K>| async move {
            self.delete(key, &self.known(&live.object)).await
        };
        self.write_owned(cx, key, delete).await
    }

    /// Removes the ownership of the child of this name, which stays; returns `false` if the context's object does not own
    /// such a child, or the child is being deleted.
    ///
    /// # Errors
    /// The errors of [`Children::delete_owned`].
    pub async fn disown<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        key: &ObjectKey,
    ) -> Result<bool> {
        let disown = |live: BoundedObject<K>| async move {
            let mut live = classified::<K, _>(key, live.whole())?;
            cx.owner.clear_ownership(live.meta_mut());
            // The apiserver keeps its own `managedFields`.
            live.meta_mut().managed_fields = None;
            let api = self.unbounded_api(key);
            let replaced = write::replace(&api, self.field_manager, &live).await;
            classified::<K, _>(key, replaced.map(drop))
        };
        self.write_owned(cx, key, disown).await
    }

    /// Reads the child of this name and calls `write` with it, again after a conflict; returns `false` if the context's
    /// object does not own such a child, or the child is being deleted.
    async fn write_owned<O: ReconciledKind, F: Future<Output = Result<()>>>(
        &self,
        cx: &Context<O>,
        key: &ObjectKey,
        write: impl Fn(BoundedObject<K>) -> F,
    ) -> Result<bool> {
        for attempt in 1..=MAX_ATTEMPTS {
            let Some((live, _permit)) = self.read(key).await? else {
                return Ok(false);
            };
            let ownership = cx.ownership(live.meta());
            let is_owned = matches!(ownership, Ownership::Owned | Ownership::Restored);
            if !is_owned || live.meta().deletion_timestamp.is_some() {
                return Ok(false);
            }
            if ownership == Ownership::Restored {
                cx.confirm_owner().await?;
            }
            match write(live).await {
                Err(error) if error.is_not_found() => return Ok(false),
                Err(error) if error.is_stale() && attempt < MAX_ATTEMPTS => {}
                written => return written.map(|()| true),
            }
        }
        Ok(false)
    }

    /// Forgets a child whose owner was deleted.
    pub fn forget(&self, key: &ObjectKey) {
        self.cache.forget(key);
        self.drift.forget(key);
        self.unconfirmed.forget(key);
    }

    fn api(&self, key: &ObjectKey) -> Api<BoundedObject<K>> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    fn unbounded_api(&self, key: &ObjectKey) -> Api<K> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    /// Records a child that was created. Emits an Event if another client had deleted it.
    fn record_created(
        &self,
        owner: &Owner,
        key: &ObjectKey,
        object: &K,
        desired: &impl DesiredChild<K, S>,
    ) {
        // A new owner may have the name of an earlier one, whose children were deleted with it.
        if self.cache.take_external_deletion(key)
            && !owner.is_fresh()
            && desired.reports_recreation()
        {
            self.drift.recreated(owner, key, &title::<K>(key));
        } else {
            self.drift.created(key);
        }
        self.record_match(key, object, desired);
    }

    /// Records a child that was written or needs no write, unless newer state is known.
    fn record_match(&self, key: &ObjectKey, object: &K, desired: &impl DesiredChild<K, S>) {
        self.unconfirmed.forget(key);
        let known = self.known(object);
        let owner = known.owner.clone();
        if !self.cache.record(key, known, desired.matched(object)) {
            self.wake_owners(owner);
        }
    }

    fn known(&self, object: &K) -> KnownChild<S> {
        let summary = (self.summary)(object);
        KnownChild::of(object.meta(), self.names, self.fingerprint(object), summary)
    }

    /// Returns a digest of the content whose change wakes the owner. Annotations and labels that other agents set do
    /// not count.
    fn fingerprint(&self, object: &K) -> u64 {
        if self.watches_metadata {
            return version(object.meta().resource_version.as_deref());
        }
        let mut content = content(object);
        if let Some(annotations) = content["metadata"]["annotations"].as_object_mut() {
            annotations.retain(|name, _| name.starts_with(self.names.prefix));
        }
        if let Some(labels) = content["metadata"]["labels"].as_object_mut() {
            labels.retain(|name, _| {
                managed_fields::may_own_label(managed_fields_of(object), self.field_manager, name)
            });
        }
        if let Some(metadata) = content["metadata"].as_object_mut() {
            metadata.retain(|name, value| {
                name != "finalizers" && value.as_object().is_none_or(|it| !it.is_empty())
            });
        }
        let mut hash = DefaultHasher::new();
        content.to_string().hash(&mut hash);
        hash.finish()
    }

    fn wake_owners(&self, owners: impl IntoIterator<Item = ObjectKey>) {
        for owner in owners {
            (self.wake)(&owner);
        }
    }
}

fn is_owned<O: ReconciledKind, S>(cx: &Context<O>, child: &KnownChild<S>) -> bool {
    *child.owner_uid == *cx.owner.uid()
        || (child.owner.as_ref() == Some(&cx.key) && !cx.owner_exists(&child.owner_uid))
}

fn unless_terminating<K: ChildKind, S>(
    applied: &Applied<'_, K>,
    ensured: Ensured<S>,
) -> Result<Ensured<S>> {
    match ensured {
        Ensured::Terminating(_) => Err(Error::Terminating(title::<K>(&applied.key))),
        ensured => Ok(ensured),
    }
}

fn basis(owner: &Owner, fingerprint: u64) -> Basis {
    Basis {
        fingerprint,
        revision: owner.revision().clone(),
    }
}

impl<K: ChildKind, S: ChildSummary> Index<BoundedObject<K>> for Children<K, S> {
    fn apply(&self, child: BoundedObject<K>) -> bool {
        Observer::apply(self, &child.object)
    }

    fn delete(&self, key: &ObjectKey, last: Option<BoundedObject<K>>) {
        Observer::delete(self, key, last.as_ref().map(|child| &child.object));
    }

    fn keys(&self, namespace: Option<&str>) -> Vec<ObjectKey> {
        self.cache.keys(namespace)
    }
}

impl<K: ChildKind, S: ChildSummary> Observer<K> for Children<K, S> {
    fn apply(&self, child: &K) -> bool {
        let key = ObjectKey::of(child);
        let is_child = proves_owner(child.meta(), self.names);
        if is_child {
            self.wake_owners(self.cache.on_applied(key, self.known(child)));
        } else {
            let (uid, version) = (child.uid(), child.resource_version());
            let (uid, version) = (uid.unwrap_or_default(), super::version(version.as_deref()));
            self.wake_owners(self.cache.on_disowned(&key, &uid, version));
        }
        is_child
    }

    fn delete(&self, key: &ObjectKey, last: Option<&K>) {
        self.wake_owners(match last {
            Some(child) => self.cache.on_deleted(key, &child.uid().unwrap_or_default()),
            None => self.cache.on_missing(key),
        });
    }

    fn keys(&self, namespace: Option<&str>) -> Vec<ObjectKey> {
        self.cache.keys(namespace)
    }
}

/// Returns the resource as kubectl accepts it, such as `deployments.apps`.
fn resource<K: Resource<DynamicType = ()>>() -> String {
    let (plural, group) = (K::plural(&()), K::group(&()));
    if group.is_empty() {
        plural.into_owned()
    } else {
        format!("{plural}.{group}")
    }
}

#[cfg(test)]
mod tests;
