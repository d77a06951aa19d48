//! Objects that controllers create in the cluster: one rule for every kind of child.
//!
//! A missing child is created, which cannot overwrite an existing object. For an existing child the operator determines
//! the ownership first, and applies the child unless it matches its desired state. Children are watched by their
//! ownership label and never stored; the operator keeps only a fingerprint of each, and a summary for the owner's
//! status.
//!
//! Values decide about drift. The operator keeps a digest of the values that the apiserver returned for the fields of
//! the desired state, after admission and defaults; a child has drifted when those values differ.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::SetOnce;

use self::pacer::{Basis, Pacer};
use qm_core::names::MetadataNames;

use super::child_cache::{ChildCache, ChildLookup, KnownChild, Match};
use super::controller::{Context, ReconciledKind};
use super::drift::{Advice, Correction, Drift};
use super::error::{Error, QUOTA_EXCEEDED, Result};
use super::events::Events;
use super::fields::{self, Projection};
use super::managed_fields::{self, TakenFields};
use super::manager::Manager;
use super::ownership::{Owner, Ownership, owner_of};
use super::raw_object::BoundedObject;
use super::watch::{Index, SyncState};
use super::{ObjectKey, apply, short_digest};

pub mod immutable;
mod pacer;

/// Most tries in one reconcile, because another client may create, change or delete the child in between.
const TRIES: usize = 3;

/// Writer of children, with its Events and metrics.
#[derive(Clone)]
pub struct Writer {
    /// Names of the operator's labels and annotations.
    pub names: &'static MetadataNames,
    /// Field manager of all writes.
    pub manager: &'static str,
    /// Events of the writer's controller.
    pub events: Events,
    /// Counter of corrected drift.
    pub corrected: Counter,
    /// Changes to make instead of editing a child, by field.
    pub advice: Advice,
    /// Set once there is an object that may have children.
    pub needs_watch: Arc<SetOnce<()>>,
}

/// A kind of children.
pub trait ChildKind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Default
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> ChildKind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Default
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// Summary of a child for its owner's status.
pub trait ChildSummary: Clone + PartialEq + Send + Sync + 'static {}

impl<S: Clone + PartialEq + Send + Sync + 'static> ChildSummary for S {}

/// Children of one kind and controller. `S` is the summary of each for its owner's status.
pub struct Children<K, S> {
    client: Client,
    names: &'static MetadataNames,
    manager: &'static str,
    summary: fn(&K) -> S,
    quirks: Quirks<K>,
    wake: Arc<dyn Fn(&ObjectKey) + Send + Sync>,
    needs_watch: Arc<SetOnce<()>>,
    sync: SyncState,
    cache: ChildCache<S>,
    drift: Drift,
    unconfirmed: Pacer,
}

/// Properties of a kind that its own code knows.
pub struct Quirks<K> {
    /// Returns whether the apiserver answered an apply of the first object with other values, the second object. The
    /// object is then applied again.
    pub lost: fn(&K, &K) -> bool,
    /// Removes from a desired object the values that only the live object can hold, such as a node port, before a dry
    /// run.
    pub release: fn(&mut K, &K),
}

impl<K> Default for Quirks<K> {
    fn default() -> Self {
        Self {
            lost: |_, _| false,
            release: |_, _| (),
        }
    }
}

impl<K: ChildKind, S: ChildSummary> Children<K, S> {
    /// Creates the children of `writer`. `summary` extracts the values that the owner's status needs; `wake` gets the
    /// owner of each changed child. The watch starts once `writer` needs it.
    pub fn new(
        manager: &mut Manager,
        writer: &Writer,
        summary: fn(&K) -> S,
        quirks: Quirks<K>,
        wake: impl Fn(&ObjectKey) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let children = Arc::new(Self {
            client: manager.client.clone(),
            names: writer.names,
            manager: writer.manager,
            summary,
            quirks,
            wake: Arc::new(wake),
            needs_watch: Arc::clone(&writer.needs_watch),
            sync: SyncState::default(),
            cache: ChildCache::new(manager.settings.timings.sync_period),
            drift: Drift::new(
                &manager.settings.timings,
                writer.events.clone(),
                writer.corrected.clone(),
                writer.advice,
            ),
            unconfirmed: Pacer::new(manager.settings.timings.confirmation_period),
        });
        let config = manager
            .streaming_watch_config
            .clone()
            .labels(writer.names.owner_uid);
        let apis = manager.scope.apis::<BoundedObject<K>>(&manager.client);
        manager.watch_resource(
            apis,
            &config,
            &children.needs_watch,
            &children,
            &children.sync,
        );
        children
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
        self.sync.synced().await;
    }

    /// Applies `desired` as a child of the context's object. The fields at the paths of `released`, in the form of
    /// `managedFields`, are released and keep their values.
    ///
    /// The write of a child whose state this process has not confirmed, and whose desired state has not changed, may
    /// wait for the rate limit; `wake` gets the owner then.
    ///
    /// # Errors
    /// [`Error::NotOwned`] if a foreign object has the name, [`Error::Terminating`] while the child is being deleted,
    /// [`Error::Rejected`] if the apiserver rejects the child, [`Error::Stale`] if the owner no longer exists,
    /// [`Error::Api`] otherwise.
    pub async fn apply<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        mut desired: K,
        released: &[&[&str]],
    ) -> Result<()> {
        self.synced().await;
        let owner = &cx.owner;
        let (sent, digest) = Self::finish(owner, &mut desired)?;
        let key = ObjectKey::of(&desired);
        let may_exist = match self.cache.lookup(&key, &digest) {
            ChildLookup::UpToDate => return Ok(()),
            ChildLookup::Unconfirmed
                if self.drift.is_held_back(owner, &key, &digest) || self.waits(owner, &key) =>
            {
                return Ok(());
            }
            ChildLookup::Unknown => !owner.is_fresh(),
            // A deletion that the watch has shown may be complete by now.
            ChildLookup::Terminating | ChildLookup::Unconfirmed => true,
        };
        // The future holds the object several times: too large for the stack of every reconcile.
        Box::pin(self.ensure(cx, desired, &sent, digest, released, may_exist)).await
    }

    /// Reads the child, if it may exist, and writes it unless it matches `desired`; `sent` is `desired` as sent.
    async fn ensure<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        mut desired: K,
        sent: &Value,
        digest: String,
        released: &[&[&str]],
        mut may_exist: bool,
    ) -> Result<()> {
        let owner = &cx.owner;
        let content = fields::content(sent);
        let key = ObjectKey::of(&desired);
        let api = self.api(&key);
        let _read = self.cache.begin_read(&key);
        // Values and `managedFields` of a child that has drifted, from before the correction.
        let mut before = None;
        for round in 1..=TRIES {
            let mut rejected = None;
            if !may_exist {
                match Self::classified(&key, apply::create(&api, self.manager, &desired).await) {
                    Ok(Some(created)) => {
                        self.record_created(
                            owner,
                            &key,
                            &created,
                            digest,
                            &Self::project(&created, &content),
                        );
                        return Ok(());
                    }
                    Ok(None) => {}
                    // The apiserver rejects a second Service because the node port is allocated: to the existing
                    // Service itself.
                    Err(error @ Error::Rejected { .. }) => rejected = Some(error),
                    Err(error) => return Err(error),
                }
            }
            let Some(BoundedObject(live)) = Self::classified(&key, api.get_opt(&key.name).await)?
            else {
                self.cache.record_missing(&key);
                self.cache.record_absent(&key);
                if let Some(rejected) = rejected {
                    return Err(rejected);
                }
                cx.confirm_owner().await?;
                may_exist = false;
                continue;
            };
            may_exist = true;
            let ownership = cx.ownership(live.meta());
            if let Ownership::Foreign(foreign) = &ownership {
                let message =
                    owner.conflict_message(foreign, &resource::<K>(), &key.namespace, &key.name);
                return Err(Error::NotOwned(message));
            }
            if ownership == Ownership::Restored {
                cx.confirm_owner().await?;
            }
            if live.meta().deletion_timestamp.is_some() {
                return Err(Error::Terminating(what::<K>(&key)));
            }
            if ownership == Ownership::Owned
                && let Some(message) = owner.contest_message()
                && self
                    .cache
                    .matched(&key, &live.uid().unwrap_or_default())
                    .is_none()
            {
                self.drift
                    .resume(owner, &key, &what::<K>(&key), &digest, message);
            }
            let observed = Self::project(&live, &content);
            let state = self.compare(&key, &live, &observed, &content, &digest);
            let lost = round < TRIES && (self.quirks.lost)(&desired, &live);
            if ownership == Ownership::Owned
                && state == Comparison::Match
                && !lost
                && !self.drift.has_taken(&key)
            {
                self.record_match(&key, &live, digest.clone(), &observed);
                self.report_correction(owner, &key, &digest, before, &observed);
                return Ok(());
            }
            let has_drifted = ownership == Ownership::Owned && state == Comparison::Drift;
            if has_drifted && self.drift.is_held_back(owner, &key, &digest) {
                return Ok(());
            }
            if ownership == Ownership::Owned
                && owner.is_observed()
                && self.must_wait(owner, &key, &live)
            {
                return Ok(());
            }
            desired.meta_mut().uid = live.uid();
            // An object that cannot match the desired state is not adopted: it would be deleted with its owner.
            if ownership == Ownership::Adoptable
                && let Err(kube::Error::Api(status)) =
                    apply::try_apply(&api, self.manager, &desired).await
                && apply::is_immutable(&status)
            {
                return Err(Error::Rejected {
                    what: what::<K>(&key),
                    status,
                });
            }
            if has_drifted && before.is_none() {
                before = Some((observed, managed(&live).to_vec()));
            }
            let owned = self
                .take_ownership(&api, owner, &ownership, live, sent, released, has_drifted)
                .await?;
            match Self::classified(&key, apply::apply(&api, self.manager, &desired).await) {
                Ok(applied) if round < TRIES && (self.quirks.lost)(&desired, &applied) => {}
                Ok(applied) => {
                    let values = Self::project(&applied, &content);
                    self.record_match(&key, &applied, digest.clone(), &values);
                    self.report_correction(owner, &key, &digest, before, &values);
                    return Ok(());
                }
                Err(error) if round < TRIES => {
                    let Some(taken) = self.rivals(&api, &desired, &owned, sent, &error).await?
                    else {
                        if error.fields().is_some() && Self::has_changed(&api, &key, &owned).await?
                        {
                            continue;
                        }
                        return Err(error);
                    };
                    let entries = json!({ "managedFields": taken.entries });
                    Self::classified(
                        &key,
                        apply::metadata(&api, self.manager, &owned, entries).await,
                    )?;
                    self.drift.took(&key, taken.taken);
                }
                Err(error) => return Err(error),
            }
        }
        Err(Error::Terminating(what::<K>(&key)))
    }

    /// Returns whether another client has written the child since it was read: the fields of that client are not known
    /// yet.
    async fn has_changed(api: &Api<BoundedObject<K>>, key: &ObjectKey, read: &K) -> Result<bool> {
        let newest = Self::classified(key, api.get_opt(&key.name).await)?;
        Ok(newest.and_then(|newest| newest.resource_version()) != read.resource_version())
    }

    /// Returns whether the write of the child waits for the rate limit, as far as the cache knows.
    fn waits(&self, owner: &Owner, key: &ObjectKey) -> bool {
        self.cache.known(key).is_some_and(|known| {
            self.unconfirmed
                .waits(key, &basis(owner, known.fingerprint))
        })
    }

    /// Returns whether the write of a child without a confirmed state must wait for the rate limit.
    fn must_wait(&self, owner: &Owner, key: &ObjectKey, live: &K) -> bool {
        if self
            .cache
            .matched(key, &live.uid().unwrap_or_default())
            .is_some()
        {
            return false;
        }
        let (wake, of) = (
            Arc::clone(&self.wake),
            ObjectKey::new(owner.namespace(), owner.name()),
        );
        self.unconfirmed
            .must_wait(key, basis(owner, self.fingerprint(live)), move || wake(&of))
    }

    /// Compares a live child with its desired state.
    fn compare(
        &self,
        key: &ObjectKey,
        live: &K,
        observed: &Projection,
        content: &Value,
        digest: &str,
    ) -> Comparison {
        let before = self
            .cache
            .matched(key, &live.uid().unwrap_or_default())
            .filter(|it| it.desired == *digest);
        let is_match = match &before {
            Some(matched) => matched.values == observed.digest(),
            None => fields::matches(&Self::content(live), content, managed(live), self.manager),
        };
        // A child that was written or confirmed in this form has drifted if it no longer matches.
        let was_written = before.is_some()
            || live
                .annotations()
                .get(self.names.applied_digest)
                .is_some_and(|applied| applied == digest);
        match (is_match, was_written) {
            (true, _) => Comparison::Match,
            (false, true) => Comparison::Drift,
            (false, false) => Comparison::Other,
        }
    }

    /// Takes ownership of a live child's desired fields before the apply; returns the child after that.
    #[allow(clippy::too_many_arguments)] // every argument is part of one write
    async fn take_ownership(
        &self,
        api: &Api<BoundedObject<K>>,
        owner: &Owner,
        ownership: &Ownership,
        live: K,
        sent: &Value,
        released: &[&[&str]],
        has_drifted: bool,
    ) -> Result<K> {
        let mut entries = None;
        let mut patch = json!({});
        if *ownership != Ownership::Owned {
            // This patch must include the ownership label: if killed before the apply that follows, the operator would
            // otherwise have neither label nor consent.
            patch = owner.ownership_patch(live.meta());
        }
        if *ownership != Ownership::Owned
            || managed_fields::needs_upgrade(managed(&live), self.manager, released)
        {
            entries = Some(managed_fields::upgraded(
                managed(&live),
                self.manager,
                sent,
                released,
            ));
        }
        if has_drifted {
            let now = entries.as_deref().unwrap_or_else(|| managed(&live));
            let matched = self
                .cache
                .matched(&ObjectKey::of(&live), &live.uid().unwrap_or_default());
            let is_alone = matched.is_some_and(|matched| !matched.has_foreign_ports);
            let renumbered = managed_fields::renumbered(
                now,
                self.manager,
                &Self::content(&live),
                sent,
                is_alone,
            );
            if let Some(taken) = managed_fields::transfer(now, self.manager, &renumbered) {
                entries = Some(taken.entries);
            }
        }
        let Some(entries) = entries else {
            return Ok(live);
        };
        patch["managedFields"] = json!(entries);
        Self::classified(
            &ObjectKey::of(&live),
            apply::metadata(api, self.manager, &live, patch).await,
        )
    }

    /// Returns the fields of other managers that the apiserver rejects together with the desired state; `None` if it
    /// rejects the desired state alone.
    async fn rivals(
        &self,
        api: &Api<BoundedObject<K>>,
        desired: &K,
        live: &K,
        sent: &Value,
        error: &Error,
    ) -> Result<Option<managed_fields::Transfer>> {
        let Some(rejected) = error.fields() else {
            return Ok(None);
        };
        let object = Self::content(live);
        let rivals = |field: &String| {
            managed_fields::rivals(managed(live), self.manager, &object, sent, field)
        };
        let rivals = rejected.iter().flat_map(rivals).collect();
        let Some(taken) = managed_fields::transfer(managed(live), self.manager, &rivals) else {
            return Ok(None);
        };
        let key = ObjectKey::of(desired);
        let mut alone = desired.clone();
        alone.meta_mut().uid = None;
        (self.quirks.release)(&mut alone, live);
        match Self::classified(&key, apply::try_create(api, self.manager, &alone).await) {
            Ok(()) => Ok(Some(taken)),
            // Quota is checked after validation, so the object alone is valid.
            Err(error) if error.classify().1 == QUOTA_EXCEEDED => Ok(Some(taken)),
            // The object alone may have another problem, such as a node port that another Service holds.
            Err(Error::Rejected { what, status }) if status.code == 422 => {
                let alone = Error::Rejected { what, status }
                    .fields()
                    .unwrap_or_default();
                Ok((!alone.iter().any(|field| rejected.contains(field))).then_some(taken))
            }
            // No other error says anything about the object alone, such as that of a webhook without support for dry
            // runs.
            Err(Error::Rejected { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn report_correction(
        &self,
        owner: &Owner,
        key: &ObjectKey,
        digest: &str,
        before: Option<(Projection, Vec<ManagedFieldsEntry>)>,
        after: &Projection,
    ) {
        let TakenFields {
            fields: taken,
            mut managers,
        } = self.drift.take_taken(key);
        let mut changed = Vec::new();
        let mut observed = Projection::default();
        if let Some((values, managed)) = before {
            changed = values.differences(after);
            managers.extend(
                managed_fields::last_writer(&managed, self.manager, &changed).map(str::to_owned),
            );
            observed = values;
        }
        changed.extend(taken);
        let manager = managers.into_iter().collect::<Vec<_>>().join(" and ");
        let manager = Some(&*manager).filter(|manager| !manager.is_empty());
        self.drift.corrected(
            owner,
            key,
            &Correction {
                what: &what::<K>(key),
                fields: &changed,
                before: &observed,
                manager,
                digest,
            },
        );
    }

    /// Returns the message about a child that other managers keep changing, and the delay until the next reconcile.
    /// Call this after [`Children::apply`].
    pub fn contested(&self, key: &ObjectKey) -> Option<(String, Duration)> {
        self.drift.contested(key)
    }

    fn content(object: &K) -> Value {
        // Serialization cannot fail: the object came from JSON.
        fields::content(&serde_json::to_value(object).unwrap_or_default())
    }

    fn project(object: &K, desired: &Value) -> Projection {
        fields::project(&Self::content(object), desired, managed(object))
    }

    /// Deletes the child of this name, if the context's object owns it; returns whether the child was deleted now. A
    /// child that no watch shows may exist without the ownership label, so its name is read once.
    ///
    /// # Errors
    /// [`Error::Stale`] if the owner no longer exists, [`Error::Rejected`] or [`Error::Api`] if the read or the
    /// deletion failed.
    pub async fn ensure_absent<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        key: &ObjectKey,
    ) -> Result<bool> {
        let owner = &cx.owner;
        self.drift.forget(key);
        self.unconfirmed.forget(key);
        self.cache.take_lost(key);
        self.synced().await;
        let _read = self.cache.begin_read(key);
        if owner.is_fresh() && self.cache.known(key).is_none() {
            // No later reconcile needs to read it either.
            self.cache.record_absent(key);
        }
        if self.cache.is_absent(key) || self.cache.lookup(key, "") == ChildLookup::Terminating {
            return Ok(false);
        }
        let api = self.api(key);
        let live = Self::classified(key, api.get_opt(&key.name).await)?;
        let found = live.map(|BoundedObject(live)| (cx.ownership(live.meta()), live));
        let Some((ownership, live)) = found
            .filter(|(ownership, _)| matches!(ownership, Ownership::Owned | Ownership::Restored))
        else {
            self.cache.record_absent(key);
            return Ok(false);
        };
        if ownership == Ownership::Restored {
            cx.confirm_owner().await?;
        }
        Self::classified(key, self.cache.delete(&api, key, &live).await)?;
        Ok(true)
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

    /// Sets the ownership of `desired`; returns the object as sent, and its digest.
    fn finish(owner: &Owner, desired: &mut K) -> Result<(Value, String)> {
        owner.set_ownership(desired.meta_mut());
        let value = |desired: &K| -> Result<Value> {
            let mut value = serde_json::to_value(desired)
                .map_err(kube::Error::SerdeError)
                .map_err(Error::api(what::<K>(&ObjectKey::of(desired))))?;
            value["apiVersion"] = K::api_version(&()).into();
            Ok(value)
        };
        let digest = short_digest(value(desired)?.to_string());
        desired
            .annotations_mut()
            .insert(owner.names().applied_digest.into(), digest.clone());
        Ok((value(desired)?, digest))
    }

    /// Records a child that was created, and reports one that another client had deleted.
    fn record_created(
        &self,
        owner: &Owner,
        key: &ObjectKey,
        object: &K,
        desired: String,
        values: &Projection,
    ) {
        // A new owner may have the name of an earlier one, whose children were deleted with it.
        if self.cache.take_lost(key) && !owner.is_fresh() {
            self.drift.recreated(owner, key, &what::<K>(key));
        } else {
            self.drift.created(key);
        }
        self.record_match(key, object, desired, values);
    }

    /// Records a child that was written or read and matches its desired state, unless newer state is known.
    fn record_match(&self, key: &ObjectKey, object: &K, desired: String, values: &Projection) {
        self.unconfirmed.forget(key);
        let known = self.known(object);
        let owner = known.owner.clone();
        let matched = Match {
            desired,
            values: values.digest(),
            has_foreign_ports: values.has_foreign_ports(),
        };
        if !self.cache.record(key, known, matched) {
            self.wake_owner(owner);
        }
    }

    fn known(&self, object: &K) -> KnownChild<S> {
        let (owner, owner_uid) = owner_of(object.meta(), self.names).unzip();
        KnownChild {
            uid: object.uid().unwrap_or_default(),
            version: super::version(object.meta().resource_version.as_deref()),
            owner,
            owner_uid: owner_uid.unwrap_or_default().to_owned(),
            fingerprint: self.fingerprint(object),
            terminating: object.meta().deletion_timestamp.is_some(),
            summary: (self.summary)(object),
        }
    }

    /// Returns a digest of the content whose change wakes the owner. Annotations and labels that other agents set do
    /// not count.
    fn fingerprint(&self, object: &K) -> u64 {
        let mut content = Self::content(object);
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

    /// Converts the error of a request for the child.
    fn classified<T>(key: &ObjectKey, answer: kube::Result<T>) -> Result<T> {
        answer.map_err(|error| Error::of_child(what::<K>(key), error))
    }

    fn wake_owner(&self, owner: Option<ObjectKey>) {
        if let Some(owner) = owner {
            (self.wake)(&owner);
        }
    }
}

/// Relation of a live child to its desired state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    /// The child matches.
    Match,
    /// The child matched before, and another client has changed it since.
    Drift,
    /// The child was never written in this form.
    Other,
}

fn basis(owner: &Owner, fingerprint: u64) -> Basis {
    Basis {
        fingerprint,
        generation: owner.generation(),
        requested: owner.requested().map(str::to_owned),
    }
}

fn managed(object: &impl Resource) -> &[ManagedFieldsEntry] {
    object.meta().managed_fields.as_deref().unwrap_or_default()
}

impl<K: ChildKind, S: ChildSummary> Index<BoundedObject<K>> for Children<K, S> {
    fn apply(&self, BoundedObject(child): BoundedObject<K>) -> bool {
        self.wake_owner(
            self.cache
                .on_applied(ObjectKey::of(&child), self.known(&child)),
        );
        true
    }

    fn delete(&self, key: &ObjectKey, last: Option<BoundedObject<K>>) {
        self.wake_owner(match last {
            Some(child) => self.cache.on_deleted(key, &child.uid().unwrap_or_default()),
            None => self.cache.on_missing(key),
        });
    }

    fn keys(&self, place: Option<&str>) -> Vec<ObjectKey> {
        self.cache.keys(place)
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

/// Returns kind and name, such as `Deployment shop/web`.
fn what<K: Resource<DynamicType = ()>>(key: &ObjectKey) -> String {
    format!("{} {key}", K::kind(&()))
}

#[cfg(test)]
mod tests;
