//! Objects that controllers create in the cluster: one algorithm for every kind of child.
//!
//! A missing child is created, which cannot overwrite an existing object. For an existing child the operator determines
//! the ownership first, and then takes the action that the pure [`DesiredChild::plan`] returns: it applies the child
//! server-side, replaces it, changes its metadata or deletes it, unless the child matches its desired state. Children
//! are watched by their ownership label and never stored; the operator keeps only a fingerprint of each, and a summary
//! for the owner's status.
//!
//! Values decide about drift. The operator keeps a digest of the values that the apiserver returned for the fields of
//! the desired state, after admission and defaults; a child has drifted when those values differ.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use qm_core::names::MetadataNames;
use tokio::sync::SetOnce;

use self::applied::Applied;
pub use self::applied::Quirks;
pub use self::child::{ChildKind, ChildRecord, ChildSnapshot, ChildSummary};
use self::child::{classified, content, managed, what};
pub use self::desired::{ChildAction, DesiredChild};
use self::pacer::Basis;
pub(super) use self::pacer::Pacer;
use super::child_cache::{ChildCache, ChildLookup, KnownChild};
use super::controller::{Context, ReconciledKind};
use super::drift::{Correction, Drift};
use super::error::{Error, Result};
use super::fields::Projection;
use super::managed_fields::{self, TakenFields};
use super::ownership::{Owner, Ownership};
use super::raw_object::BoundedObject;
use super::watch::error_status;
use super::watch_hub::{Observer, ResourceName};
use super::{ObjectKey, apply, finalizer, version};

mod applied;
mod child;
mod desired;
mod pacer;

/// Most tries in one reconcile, because another client may create, change or delete the child in between.
const TRIES: usize = 3;

/// Children of one kind and controller. `S` is the summary of each for its owner's status.
pub struct Children<K, S> {
    pub(super) client: Client,
    pub(super) names: &'static MetadataNames,
    /// Field manager of all writes.
    pub(super) manager: &'static str,
    pub(super) cache: Arc<ChildCache<S>>,
    pub(super) summary: fn(&K) -> S,
    pub(super) content: WatchedContent,
    pub(super) wake: Arc<dyn Fn(&ObjectKey) + Send + Sync>,
    pub(super) needs_watch: Arc<SetOnce<()>>,
    pub(super) drift: Drift,
    pub(super) unconfirmed: Pacer,
}

/// Content of the children that the watch shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WatchedContent {
    /// The watch shows whole objects. An object that takes too much memory is not decoded.
    Whole,
    /// The watch shows metadata alone, because the objects may be large: any new version may be a change. The caller
    /// bounds the memory of the objects that are read at once.
    Metadata,
}

/// Result of [`Children::ensure`].
#[derive(Debug)]
pub enum Ensured<S> {
    /// The child was missing and is created.
    Created(ChildSnapshot<S>),
    /// The owner did not own the child, and does now.
    Adopted(ChildSnapshot<S>),
    /// The child was changed.
    Updated(ChildSnapshot<S>),
    /// Nothing was written: the child needs no write, or a correction must wait.
    Kept(ChildSnapshot<S>),
    /// The child was deleted, for this reason.
    Deleted(ChildSnapshot<S>, String),
    /// The child is being deleted.
    Terminating(ChildSnapshot<S>),
}

/// A child that exists.
enum Live<K, S> {
    Read(K),
    Cached(ObjectMeta, S),
}

/// Result of [`Children::create_or_read`].
enum Found<K> {
    Created(K),
    Existing(K),
    /// The child does not exist, and must be created.
    Missing,
}

impl<K: ChildKind, S: ChildSummary> Children<K, S> {
    /// Returns the child of this name that has the ownership label, as far as the cache knows.
    pub fn child(&self, key: &ObjectKey) -> Option<ChildSnapshot<S>> {
        let KnownChild {
            uid,
            version,
            summary,
            ..
        } = self.cache.known(key)?;
        Some(ChildSnapshot {
            key: key.clone(),
            uid,
            version: version.to_string(),
            summary,
        })
    }

    /// Returns the summary of the child of this name, if `owner` owns it.
    pub fn summary(&self, key: &ObjectKey, owner: &Owner) -> Option<S> {
        self.cache
            .known(key)
            .filter(|known| known.owner_uid == owner.uid())
            .map(|known| known.summary)
    }

    /// Waits until the children have been listed, or their list was denied.
    pub async fn synced(&self) {
        // Later calls have no effect.
        let _ = self.needs_watch.set(());
        self.cache.synced().await;
    }

    /// Applies `desired` server-side as a child of the context's object.
    ///
    /// The write of a child whose state this process has not confirmed, and whose desired state has not changed, may
    /// wait for the rate limit; `wake` gets the owner then.
    ///
    /// # Errors
    /// Those of [`Children::ensure`], and [`Error::Terminating`] while the child is being deleted.
    pub async fn apply<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        desired: K,
        quirks: Quirks<'_, K>,
    ) -> Result<()> {
        let applied = Applied::new(&cx.owner, self.manager, desired, quirks)?;
        match self.ensure(cx, &applied).await? {
            Ensured::Terminating(child) => Err(Error::Terminating(what::<K>(&child.key))),
            _ => Ok(()),
        }
    }

    /// Returns whether the child is known to match the desired state of this digest.
    pub fn is_up_to_date(&self, key: &ObjectKey, digest: &str) -> bool {
        self.cache.lookup(key, digest) == ChildLookup::UpToDate
    }

    /// Creates the child of the context's object that `desired` describes, or makes an existing one match.
    ///
    /// # Errors
    /// [`Error::NotOwned`] if a foreign object has the name, [`Error::Rejected`] if the apiserver rejects the child,
    /// [`Error::Stale`] if the owner no longer exists, [`Error::Terminating`] if another client keeps deleting the
    /// child, [`Error::Api`] otherwise.
    pub async fn ensure<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        desired: &impl DesiredChild<K, S>,
    ) -> Result<Ensured<S>> {
        self.synced().await;
        let (owner, key) = (&cx.owner, desired.key());
        let lookup = self.cache.lookup(&key, desired.digest());
        let is_settled = match lookup {
            ChildLookup::UpToDate => true,
            ChildLookup::Unconfirmed => {
                self.drift.is_held_back(owner, &key, desired.digest()) || self.waits(owner, &key)
            }
            ChildLookup::Unknown | ChildLookup::Terminating => false,
        };
        if is_settled && let Some(child) = self.child(&key) {
            return Ok(Ensured::Kept(child));
        }
        // A deletion that the watch has shown may be complete by now.
        let may_exist = lookup != ChildLookup::Unknown || !owner.is_fresh();
        // The future holds the object several times: too large for the stack of every reconcile.
        Box::pin(self.ensure_unconfirmed(cx, desired, &key, may_exist)).await
    }

    async fn ensure_unconfirmed<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        desired: &impl DesiredChild<K, S>,
        key: &ObjectKey,
        mut may_exist: bool,
    ) -> Result<Ensured<S>> {
        let owner = &cx.owner;
        let api = self.api(key);
        let _read = self.cache.begin_read(key);
        let mut cached = self.cached(key, desired);
        // Values and `managedFields` of a child that has drifted, from before the correction.
        let mut before = None;
        for round in 1..=TRIES {
            let is_last = round == TRIES;
            let live = match cached.take() {
                Some(live) => live,
                None => match self.create_or_read(cx, desired, key, may_exist).await? {
                    Found::Created(created) => {
                        self.record_created(owner, key, &created, desired);
                        return Ok(Ensured::Created(self.snapshot(&created)));
                    }
                    Found::Existing(object) => Live::Read(object),
                    Found::Missing => {
                        may_exist = false;
                        continue;
                    }
                },
            };
            may_exist = true;
            let child = self.snapshot_of(&live);
            let ownership = self.claim(cx, live.metadata()).await?;
            if live.metadata().deletion_timestamp.is_some() {
                return Ok(Ensured::Terminating(child));
            }
            let record = ChildRecord {
                matched: self.cache.matched(key, &child.uid),
                has_taken_fields: self.drift.has_taken(key),
                ownership,
            };
            self.resume_contest(owner, key, desired.digest(), &record);
            let action = match &live {
                Live::Read(object) => desired.plan(object, &record),
                Live::Cached(_, summary) => desired.plan_cached(summary, &record),
            };
            if let ChildAction::Keep = action {
                if let Live::Read(object) = &live {
                    self.record_match(key, object, desired);
                    self.report_correction(owner, desired, before.as_ref(), object);
                }
                return Ok(Ensured::Kept(child));
            }
            let drifted = live
                .object()
                .filter(|object| desired.has_drifted(object, &record));
            if let Some(object) = drifted
                && before.is_none()
            {
                before = Some((desired.values(object), managed(object).to_vec()));
            }
            let written = match action {
                ChildAction::Keep => Ok(None),
                ChildAction::Apply(applied) => {
                    let Live::Read(object) = &live else {
                        continue;
                    };
                    let has_drifted = drifted.is_some();
                    if (has_drifted && self.drift.is_held_back(owner, key, desired.digest()))
                        || self.must_wait(owner, object, &record)
                    {
                        return Ok(Ensured::Kept(child));
                    }
                    let drift = &self.drift;
                    let write = applied.write(&api, object, &record, has_drifted, is_last, drift);
                    write.await
                }
                ChildAction::Replace(object) => {
                    let api = Api::namespaced(self.client.clone(), &key.namespace);
                    let replaced = apply::replace(&api, self.manager, &*object).await;
                    classified::<K, _>(key, replaced.map(Some))
                }
                ChildAction::Patch(patch) => {
                    let patched = apply::metadata(&api, self.manager, live.metadata(), patch).await;
                    classified::<K, _>(key, patched.map(Some))
                }
                ChildAction::Delete(reason) => match self.delete(&child).await {
                    Ok(()) => return Ok(Ensured::Deleted(child, reason)),
                    Err(error) => Err(error),
                },
            };
            match written {
                Ok(Some(written)) => {
                    self.record_match(key, &written, desired);
                    self.report_correction(owner, desired, before.as_ref(), &written);
                    let child = self.snapshot(&written);
                    return Ok(match record.ownership {
                        Ownership::Owned => Ensured::Updated(child),
                        _ => Ensured::Adopted(child),
                    });
                }
                Ok(None) => {}
                // Another client has changed or deleted the child.
                Err(error) if error.is_not_found() || (error.is_stale() && !is_last) => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Terminating(what::<K>(key)))
    }

    /// Creates the child if it does not exist, as far as is known; reads it otherwise, or if another client has created
    /// it.
    async fn create_or_read<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        desired: &impl DesiredChild<K, S>,
        key: &ObjectKey,
        may_exist: bool,
    ) -> Result<Found<K>> {
        let mut rejected = None;
        if !may_exist {
            let created = apply::create(&self.api(key), self.manager, desired.build()).await;
            match classified::<K, _>(key, created) {
                Ok(Some(created)) => return Ok(Found::Created(created)),
                Ok(None) => {}
                // The apiserver rejects a second Service because the node port is allocated: to the existing Service
                // itself.
                Err(error @ Error::Rejected { .. }) => rejected = Some(error),
                Err(error) => return Err(error),
            }
        }
        if let Some(live) = self.read(key).await? {
            return Ok(Found::Existing(live));
        }
        self.cache.record_missing(key);
        if let Some(rejected) = rejected {
            return Err(rejected);
        }
        // The child may have been deleted with its owner. An owner with a finalizer stays until the operator removes it.
        if !O::FINALIZER.is_some_and(|name| finalizer::has(cx.object.as_ref(), name)) {
            cx.confirm_owner().await?;
        }
        Ok(Found::Missing)
    }

    /// Returns the ownership of a live child.
    ///
    /// # Errors
    /// [`Error::NotOwned`] if the child is foreign, [`Error::Stale`] if the owner that adopts it no longer exists.
    async fn claim<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        live: &ObjectMeta,
    ) -> Result<Ownership> {
        let ownership = cx.ownership(live);
        match &ownership {
            Ownership::Foreign(foreign) => {
                let message = cx.owner.conflict_message(
                    foreign,
                    &resource::<K>(),
                    live.namespace.as_deref().unwrap_or_default(),
                    live.name.as_deref().unwrap_or_default(),
                );
                return Err(Error::NotOwned(message));
            }
            Ownership::Restored => cx.confirm_owner().await?,
            Ownership::Owned | Ownership::Adoptable => {}
        }
        Ok(ownership)
    }

    /// Returns the cached child, if `desired` can decide about it without a read.
    fn cached(&self, key: &ObjectKey, desired: &impl DesiredChild<K, S>) -> Option<Live<K, S>> {
        let KnownChild {
            version, summary, ..
        } = self.cache.trusted(key)?;
        let metadata = ObjectMeta {
            resource_version: Some(version.to_string()),
            ..desired.cached_metadata(&summary)?.clone()
        };
        Some(Live::Cached(metadata, summary))
    }

    async fn read(&self, key: &ObjectKey) -> Result<Option<K>> {
        let read = match self.content {
            WatchedContent::Whole => {
                let read = self.api(key).get_opt(&key.name).await;
                read.map(|live| live.map(|BoundedObject(live)| live))
            }
            WatchedContent::Metadata => {
                let api = Api::namespaced(self.client.clone(), &key.namespace);
                api.get_opt(&key.name).await
            }
        };
        classified::<K, _>(key, read)
    }

    /// Continues a contest that an earlier process has reported in the owner's status.
    fn resume_contest(&self, owner: &Owner, key: &ObjectKey, digest: &str, record: &ChildRecord) {
        if record.ownership == Ownership::Owned
            && record.matched.is_none()
            && let Some(message) = owner.contest_message()
        {
            let what = what::<K>(key);
            self.drift.resume(owner, key, &what, digest, message);
        }
    }

    /// Returns whether the write of the child waits for the rate limit, as far as the cache knows.
    fn waits(&self, owner: &Owner, key: &ObjectKey) -> bool {
        self.cache.known(key).is_some_and(|known| {
            self.unconfirmed
                .waits(key, &basis(owner, known.fingerprint))
        })
    }

    /// Returns whether the write of a child without a confirmed state must wait for the rate limit.
    fn must_wait(&self, owner: &Owner, live: &K, record: &ChildRecord) -> bool {
        if record.ownership != Ownership::Owned || record.matched.is_some() || !owner.is_observed()
        {
            return false;
        }
        let (wake, of) = (
            Arc::clone(&self.wake),
            ObjectKey::new(owner.namespace(), owner.name()),
        );
        let basis = basis(owner, self.fingerprint(live));
        self.unconfirmed
            .must_wait(&ObjectKey::of(live), basis, move || wake(&of))
    }

    fn report_correction(
        &self,
        owner: &Owner,
        desired: &impl DesiredChild<K, S>,
        before: Option<&(Projection, Vec<ManagedFieldsEntry>)>,
        after: &K,
    ) {
        let key = desired.key();
        let TakenFields {
            fields: taken,
            mut managers,
        } = self.drift.take_taken(&key);
        let mut changed = Vec::new();
        if let Some((values, managed)) = before {
            changed = values.differences(&desired.values(after));
            managers.extend(
                managed_fields::last_writer(managed, self.manager, &changed).map(str::to_owned),
            );
        }
        changed.extend(taken);
        let manager = managers.into_iter().collect::<Vec<_>>().join(" and ");
        self.drift.corrected(
            owner,
            &key,
            &Correction {
                what: &what::<K>(&key),
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
    pub async fn delete(&self, child: &ChildSnapshot<S>) -> Result<()> {
        let metadata = ObjectMeta {
            name: Some(child.key.name.to_string()),
            uid: Some(child.uid.clone()),
            resource_version: Some(child.version.clone()),
            ..ObjectMeta::default()
        };
        let api = self.api(&child.key);
        let deleted = self.cache.delete(&api, &child.key, &metadata).await;
        classified::<K, _>(&child.key, deleted)
    }

    /// Deletes the child of this name, if the context's object owns it; returns whether the child was deleted now. A
    /// child that no watch shows may exist without the ownership label, so its name is read once.
    ///
    /// # Errors
    /// Those of [`Children::release`].
    pub async fn ensure_absent<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        key: &ObjectKey,
    ) -> Result<bool> {
        self.drift.forget(key);
        self.unconfirmed.forget(key);
        self.cache.take_lost(key);
        self.synced().await;
        let _read = self.cache.begin_read(key);
        let known = self.cache.known(key);
        if cx.owner.is_fresh() && known.is_none() {
            // No later reconcile needs to read it either.
            self.cache.record_absent(key);
        }
        if self.cache.is_absent(key) || known.is_some_and(|known| known.terminating) {
            return Ok(false);
        }
        let is_released = self.release(cx, key, false).await?;
        if !is_released {
            self.cache.record_absent(key);
        }
        Ok(is_released)
    }

    /// Deletes the child of this name, or removes its ownership if it `stays`; returns `false` if the context's object
    /// does not own such a child, or the child is being deleted.
    ///
    /// # Errors
    /// [`Error::Stale`] if the owner no longer exists, [`Error::Rejected`] or [`Error::Api`] if the read or the write
    /// failed.
    pub async fn release<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        key: &ObjectKey,
        stays: bool,
    ) -> Result<bool> {
        for round in 1..=TRIES {
            let Some(mut live) = self.read(key).await? else {
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
            let released = if stays {
                cx.owner.clear_ownership(live.meta_mut());
                // The apiserver keeps its own.
                live.meta_mut().managed_fields = None;
                let api = Api::namespaced(self.client.clone(), &key.namespace);
                let replaced = apply::replace(&api, self.manager, &live).await;
                classified::<K, _>(key, replaced.map(drop))
            } else {
                self.delete(&self.snapshot(&live)).await
            };
            match released {
                Err(error) if error.is_not_found() => return Ok(false),
                Err(error) if error.is_stale() && round < TRIES => {}
                released => return released.map(|()| true),
            }
        }
        Ok(false)
    }

    /// Returns the names of all children that satisfy the predicate, which gets the owner of each and the owner's UID.
    pub fn keys_where(
        &self,
        is_selected: impl Fn(Option<&ObjectKey>, &str) -> bool,
    ) -> Vec<ObjectKey> {
        self.cache
            .keys_where(|child| is_selected(child.owner.as_ref(), &child.owner_uid))
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

    /// Records a child that was created, and reports one that another client had deleted.
    fn record_created(
        &self,
        owner: &Owner,
        key: &ObjectKey,
        object: &K,
        desired: &impl DesiredChild<K, S>,
    ) {
        // A new owner may have the name of an earlier one, whose children were deleted with it.
        if self.cache.take_lost(key) && !owner.is_fresh() && desired.reports_recreation() {
            self.drift.recreated(owner, key, &what::<K>(key));
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
            self.wake_owner(owner);
        }
    }

    fn known(&self, object: &K) -> KnownChild<S> {
        let summary = (self.summary)(object);
        KnownChild::of(object.meta(), self.names, self.fingerprint(object), summary)
    }

    fn snapshot(&self, object: &K) -> ChildSnapshot<S> {
        snapshot(object.meta(), (self.summary)(object))
    }

    fn snapshot_of(&self, live: &Live<K, S>) -> ChildSnapshot<S> {
        match live {
            Live::Read(object) => self.snapshot(object),
            Live::Cached(metadata, summary) => snapshot(metadata, summary.clone()),
        }
    }

    /// Returns a digest of the content whose change wakes the owner. Annotations and labels that other agents set do
    /// not count.
    fn fingerprint(&self, object: &K) -> u64 {
        if self.content == WatchedContent::Metadata {
            return version(object.meta().resource_version.as_deref());
        }
        let mut content = content(object);
        if let Some(annotations) = content["metadata"]["annotations"].as_object_mut() {
            annotations.retain(|name, _| name.starts_with(self.names.prefix));
        }
        if let Some(labels) = content["metadata"]["labels"].as_object_mut() {
            labels.retain(|name, _| {
                managed_fields::may_own_label(managed(object), self.manager, name)
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

    fn wake_owner(&self, owner: Option<ObjectKey>) {
        if let Some(owner) = owner {
            (self.wake)(&owner);
        }
    }
}

impl<K: Resource, S> Live<K, S> {
    fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::Read(object) => object.meta(),
            Self::Cached(metadata, _) => metadata,
        }
    }

    fn object(&self) -> Option<&K> {
        match self {
            Self::Read(object) => Some(object),
            Self::Cached(..) => None,
        }
    }
}

fn snapshot<S>(metadata: &ObjectMeta, summary: S) -> ChildSnapshot<S> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    ChildSnapshot {
        key: ObjectKey::new(&text(&metadata.namespace), &text(&metadata.name)),
        uid: text(&metadata.uid),
        version: text(&metadata.resource_version),
        summary,
    }
}

fn basis(owner: &Owner, fingerprint: u64) -> Basis {
    Basis {
        fingerprint,
        generation: owner.generation(),
        requested: owner.requested().map(str::to_owned),
    }
}

impl<K: ChildKind, S: ChildSummary> Observer<K> for Children<K, S> {
    fn on_list_started(&self, _: &ResourceName, place: Option<&str>) {
        self.cache.on_list_started(place);
    }

    fn on_applied(&self, _: &ResourceName, object: K) {
        self.wake_owner(
            self.cache
                .on_applied(ObjectKey::of(&object), self.known(&object)),
        );
    }

    fn on_deleted(&self, _: &ResourceName, object: K) {
        self.wake_owner(
            self.cache
                .on_deleted(&ObjectKey::of(&object), &object.uid().unwrap_or_default()),
        );
    }

    fn on_list_done(&self, _: &ResourceName, place: Option<&str>) {
        self.cache
            .on_list_done(place)
            .into_iter()
            .for_each(|owner| self.wake_owner(Some(owner)));
    }

    fn on_recovered(&self, _: &ResourceName, _: Option<&str>) {}

    fn on_error(&self, _: &ResourceName, place: Option<&str>, error: &watcher::Error) {
        if error_status(error).is_some_and(|status| status.code == 403) {
            self.cache.set_synced(place);
        }
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
