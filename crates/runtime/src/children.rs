//! Objects that controllers create in the cluster: one rule for every kind of child.
//!
//! A missing child is created, which cannot overwrite. An existing child is claimed first, then applied unless it
//! matches its desired state. Children are watched by their ownership label and never stored; of each the operator
//! keeps only what shows a change, and the little that the owner's status reports.
//!
//! Drift is judged by values. The operator keeps a digest of the values that the apiserver returned for the fields of
//! the desired state, whatever admission and defaults made of them; a child has drifted when those values differ.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::core::NamespaceResourceScope;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use prometheus_client::metrics::counter::Counter;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::SetOnce;

use self::pacer::{Basis, Pacer};
use qm_core::names::MetadataNames;

use super::controller::{Context, ReconciledKind};
use super::drift::{Advice, Correction, Drift};
use super::error::{Error, QUOTA_EXCEEDED, Result};
use super::events::Events;
use super::fields::{self, Projection};
use super::managed_fields::{self, TakenFields};
use super::manager::Manager;
use super::ownership::{Claim, Owner, owner_of};
use super::raw_object::BoundedObject;
use super::seen::{Known, Look, Match, Seen};
use super::watch_hub::{Observer, ResourceName};
use super::watching;
use super::{Key, apply, short_digest};

mod pacer;
pub mod whole;

/// How often what is found is looked at once more, because it came or went in between.
const TRIES: usize = 3;

/// Writer of children, with its Events and metrics.
#[derive(Clone)]
pub struct Writer {
    /// Names of the operator's labels and annotations.
    pub names: &'static MetadataNames,
    /// The field manager.
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

/// What is kept of a child.
pub trait Report: Clone + PartialEq + Send + Sync + 'static {}

impl<S: Clone + PartialEq + Send + Sync + 'static> Report for S {}

/// One kind of children of one controller. `S` is what is kept of each for its owner's status.
pub struct Children<K, S> {
    client: Client,
    names: &'static MetadataNames,
    manager: &'static str,
    report: fn(&K) -> S,
    quirks: Quirks<K>,
    wake: Arc<dyn Fn(&Key) + Send + Sync>,
    needs_watch: Arc<SetOnce<()>>,
    seen: Seen<S>,
    drift: Drift,
    unconfirmed: Pacer,
}

/// Properties of a kind that its own code knows.
pub struct Quirks<K> {
    /// Returns whether the apiserver answered an apply of the first object with something else, the second. It is then
    /// applied again.
    pub lost: fn(&K, &K) -> bool,
    /// Removes from a desired object what the live object holds, and the apiserver would give no second object.
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

impl<K: ChildKind, S: Report> Children<K, S> {
    /// Creates the children of `writer`. `report` extracts what the owner's status needs; `wake` gets the owner of each
    /// changed child. The watch starts once `writer` needs it.
    pub fn new(
        manager: &mut Manager,
        writer: &Writer,
        report: fn(&K) -> S,
        quirks: Quirks<K>,
        wake: impl Fn(&Key) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let places = manager.scope.places::<BoundedObject<K>>(&manager.client);
        let unlisted = places.iter().map(|(shard, _)| shard.clone()).collect();
        let children = Arc::new(Self {
            client: manager.client.clone(),
            names: writer.names,
            manager: writer.manager,
            report,
            quirks,
            wake: Arc::new(wake),
            needs_watch: Arc::clone(&writer.needs_watch),
            seen: Seen::new(unlisted, manager.settings.timings.resync),
            drift: Drift::new(
                &manager.settings.timings,
                writer.events.clone(),
                writer.corrected.clone(),
                writer.advice,
            ),
            unconfirmed: Pacer::new(manager.settings.timings.confirmation_period),
        });
        let ours = manager.others.clone().labels(writer.names.owner_uid);
        manager.look(
            places,
            &ours,
            &children.needs_watch,
            &children,
            |BoundedObject(child)| child,
        );
        children
    }

    /// Returns what is known of the child of this name, if `owner` owns it.
    pub fn report(&self, key: &Key, owner: &Owner) -> Option<S> {
        self.seen
            .known(key)
            .filter(|known| known.owner_uid == owner.uid())
            .map(|known| known.report)
    }

    /// Waits until the children have been listed, as far as that is let in.
    pub async fn ready(&self) {
        // Once is enough.
        let _ = self.needs_watch.set(());
        self.seen.ready().await;
    }

    /// Applies `desired` as a child of the context's object. The fields at the paths of `released`, in the form of
    /// `managedFields`, are released and keep their values.
    ///
    /// A child whose state this process has not confirmed, and which nobody has asked to change since, may wait for its
    /// turn; the owner is woken then.
    ///
    /// # Errors
    /// Why the child does not match.
    pub async fn apply<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        mut desired: K,
        released: &[&[&str]],
    ) -> Result<()> {
        self.ready().await;
        let owner = &cx.owner;
        let (whole, digest) = Self::finish(owner, &mut desired)?;
        let key = Key::of(&desired);
        let may_exist = match self.seen.look(&key, &digest) {
            Look::Fine => return Ok(()),
            Look::Other
                if self.drift.is_held_back(owner, &key, &digest) || self.waits(owner, &key) =>
            {
                return Ok(());
            }
            Look::Unknown => !owner.is_fresh(),
            // A deletion that the watch has shown may be complete by now.
            Look::Going | Look::Other => true,
        };
        // The future holds the object several times: too large for the stack of every reconcile.
        Box::pin(self.ensure(cx, desired, &whole, digest, released, may_exist)).await
    }

    /// Reads the child, if it may exist, and writes it unless it matches `desired`; `whole` is `desired` as sent.
    async fn ensure<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        mut desired: K,
        whole: &Value,
        digest: String,
        released: &[&[&str]],
        mut may_exist: bool,
    ) -> Result<()> {
        let owner = &cx.owner;
        let content = fields::content(whole);
        let key = Key::of(&desired);
        let api = self.api(&key);
        let _asking = self.seen.asking(&key);
        // Values and `managedFields` of a child that has drifted, from before the correction.
        let mut before = None;
        for turn in 1..=TRIES {
            let mut refused = None;
            if !may_exist {
                match Self::sent(&key, apply::create(&api, self.manager, &desired).await) {
                    Ok(Some(created)) => {
                        self.created(
                            owner,
                            &key,
                            &created,
                            digest,
                            &Self::project(&created, &content),
                        );
                        return Ok(());
                    }
                    Ok(None) => {}
                    // Of a Service that is there the apiserver says that its port on the nodes is taken: by itself.
                    Err(error @ Error::Rejected { .. }) => refused = Some(error),
                    Err(error) => return Err(error),
                }
            }
            let Some(BoundedObject(live)) = Self::sent(&key, api.get_opt(&key.name).await)? else {
                self.seen.missing(&key);
                self.seen.absent(&key);
                if let Some(refused) = refused {
                    return Err(refused);
                }
                cx.confirm_owner().await?;
                may_exist = false;
                continue;
            };
            may_exist = true;
            let claim = cx.claim(live.meta());
            if let Claim::Foreign(foreign) = &claim {
                let words = owner.conflict(foreign, &resource::<K>(), &key.namespace, &key.name);
                return Err(Error::NotOwned(words));
            }
            if claim == Claim::Restored {
                cx.confirm_owner().await?;
            }
            if live.meta().deletion_timestamp.is_some() {
                return Err(Error::Terminating(what::<K>(&key)));
            }
            if claim == Claim::Ours
                && let Some(message) = owner.contest()
                && self
                    .seen
                    .matched(&key, &live.uid().unwrap_or_default())
                    .is_none()
            {
                self.drift
                    .resume(owner, &key, &what::<K>(&key), &digest, message);
            }
            let observed = Self::project(&live, &content);
            let state = self.judge(&key, &live, &observed, &content, &digest);
            let lost = turn < TRIES && (self.quirks.lost)(&desired, &live);
            if claim == Claim::Ours && state == State::Match && !lost && !self.drift.has_taken(&key)
            {
                self.wrote(&key, &live, digest.clone(), &observed);
                self.report_correction(owner, &key, &digest, before, &observed);
                return Ok(());
            }
            let has_drifted = claim == Claim::Ours && state == State::Drift;
            if has_drifted && self.drift.is_held_back(owner, &key, &digest) {
                return Ok(());
            }
            if claim == Claim::Ours && owner.is_handled() && self.must_wait(owner, &key, &live) {
                return Ok(());
            }
            desired.meta_mut().uid = live.uid();
            // One that can never be as it is wanted is not claimed: it would go with its owner.
            if claim == Claim::HandedOver
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
                .own(&api, owner, &claim, live, whole, released, has_drifted)
                .await?;
            match Self::sent(&key, apply::apply(&api, self.manager, &desired).await) {
                Ok(applied) if turn < TRIES && (self.quirks.lost)(&desired, &applied) => {}
                Ok(applied) => {
                    let values = Self::project(&applied, &content);
                    self.wrote(&key, &applied, digest.clone(), &values);
                    self.report_correction(owner, &key, &digest, before, &values);
                    return Ok(());
                }
                Err(error) if turn < TRIES => {
                    let Some(taken) = self.rivals(&api, &desired, &owned, whole, &error).await?
                    else {
                        if error.fields().is_some() && Self::has_changed(&api, &key, &owned).await?
                        {
                            continue;
                        }
                        return Err(error);
                    };
                    let entries = json!({ "managedFields": taken.entries });
                    Self::sent(
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

    /// Returns whether another client has written the child since it was read: what that client holds is not known yet.
    async fn has_changed(api: &Api<BoundedObject<K>>, key: &Key, read: &K) -> Result<bool> {
        let newest = Self::sent(key, api.get_opt(&key.name).await)?;
        Ok(newest.and_then(|newest| newest.resource_version()) != read.resource_version())
    }

    /// Returns whether the child waits for its turn to be written, as far as is known without asking.
    fn waits(&self, owner: &Owner, key: &Key) -> bool {
        self.seen
            .known(key)
            .is_some_and(|known| self.unconfirmed.waits(key, &basis(owner, known.print)))
    }

    /// Returns whether a child without a confirmed state must wait for its turn to be written.
    fn must_wait(&self, owner: &Owner, key: &Key, live: &K) -> bool {
        if self
            .seen
            .matched(key, &live.uid().unwrap_or_default())
            .is_some()
        {
            return false;
        }
        let (wake, of) = (
            Arc::clone(&self.wake),
            Key::new(owner.namespace(), owner.name()),
        );
        self.unconfirmed
            .must_wait(key, basis(owner, self.print(live)), move || wake(&of))
    }

    /// Compares a live child with its desired state.
    fn judge(
        &self,
        key: &Key,
        live: &K,
        observed: &Projection,
        content: &Value,
        digest: &str,
    ) -> State {
        let before = self
            .seen
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
                .get(self.names.applied)
                .is_some_and(|applied| applied == digest);
        match (is_match, was_written) {
            (true, _) => State::Match,
            (false, true) => State::Drift,
            (false, false) => State::Other,
        }
    }

    /// Takes ownership of a live child's desired fields before the apply; returns the child after that.
    #[allow(clippy::too_many_arguments)] // each is another side of one write
    async fn own(
        &self,
        api: &Api<BoundedObject<K>>,
        owner: &Owner,
        claim: &Claim,
        live: K,
        whole: &Value,
        released: &[&[&str]],
        has_drifted: bool,
    ) -> Result<K> {
        let mut entries = None;
        let mut patch = json!({});
        if *claim != Claim::Ours {
            // This patch must include the ownership label: if killed before the apply that follows, the operator would
            // otherwise have neither label nor consent.
            patch = owner.marks(live.meta());
        }
        if *claim != Claim::Ours
            || managed_fields::is_to_be_handed_over(managed(&live), self.manager, released)
        {
            entries = Some(managed_fields::handed_over(
                managed(&live),
                self.manager,
                whole,
                released,
            ));
        }
        if has_drifted {
            let now = entries.as_deref().unwrap_or_else(|| managed(&live));
            let matched = self
                .seen
                .matched(&Key::of(&live), &live.uid().unwrap_or_default());
            let is_alone = matched.is_some_and(|matched| !matched.has_foreign_ports);
            let renumbered = managed_fields::renumbered(
                now,
                self.manager,
                &Self::content(&live),
                whole,
                is_alone,
            );
            if let Some(taken) = managed_fields::taken(now, self.manager, &renumbered) {
                entries = Some(taken.entries);
            }
        }
        let Some(entries) = entries else {
            return Ok(live);
        };
        patch["managedFields"] = json!(entries);
        Self::sent(
            &Key::of(&live),
            apply::metadata(api, self.manager, &live, patch).await,
        )
    }

    /// Returns the fields of other managers that the apiserver refuses beside the desired state; none if it refuses the
    /// desired state alone.
    async fn rivals(
        &self,
        api: &Api<BoundedObject<K>>,
        desired: &K,
        live: &K,
        whole: &Value,
        error: &Error,
    ) -> Result<Option<managed_fields::Transfer>> {
        let Some(refused) = error.fields() else {
            return Ok(None);
        };
        let object = Self::content(live);
        let rivals = |field: &String| {
            managed_fields::rivals(managed(live), self.manager, &object, whole, field)
        };
        let rivals = refused.iter().flat_map(rivals).collect();
        let Some(taken) = managed_fields::taken(managed(live), self.manager, &rivals) else {
            return Ok(None);
        };
        let key = Key::of(desired);
        let mut alone = desired.clone();
        alone.meta_mut().uid = None;
        (self.quirks.release)(&mut alone, live);
        match Self::sent(&key, apply::try_create(api, self.manager, &alone).await) {
            Ok(()) => Ok(Some(taken)),
            // Quota is checked after validation, so the object alone is valid.
            Err(error) if error.classify().1 == QUOTA_EXCEEDED => Ok(Some(taken)),
            // The object alone may have another problem, such as a node port that another Service holds.
            Err(Error::Rejected { what, status }) if status.code == 422 => {
                let alone = Error::Rejected { what, status }
                    .fields()
                    .unwrap_or_default();
                Ok((!alone.iter().any(|field| refused.contains(field))).then_some(taken))
            }
            // No other answer says anything about the object alone, such as one of a webhook that takes no dry run.
            Err(Error::Rejected { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn report_correction(
        &self,
        owner: &Owner,
        key: &Key,
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
    /// Call it after [`Children::apply`].
    pub fn contested(&self, key: &Key) -> Option<(String, Duration)> {
        self.drift.contested(key)
    }

    fn content(object: &K) -> Value {
        // Serialization cannot fail: the object came from JSON.
        fields::content(&serde_json::to_value(object).unwrap_or_default())
    }

    fn project(object: &K, desired: &Value) -> Projection {
        fields::project(&Self::content(object), desired, managed(object))
    }

    /// Deletes the child of this name, if the context's object owns it; returns whether it was deleted now. A child that no
    /// watch shows may exist without our label: it is read once.
    ///
    /// # Errors
    /// Why the child could not be read or deleted.
    pub async fn ensure_absent<O: ReconciledKind>(
        &self,
        cx: &Context<O>,
        key: &Key,
    ) -> Result<bool> {
        let owner = &cx.owner;
        self.drift.forget(key);
        self.unconfirmed.forget(key);
        self.seen.take_lost(key);
        self.ready().await;
        let _asking = self.seen.asking(key);
        if owner.is_fresh() && self.seen.known(key).is_none() {
            // Nor is it asked for later.
            self.seen.absent(key);
        }
        if self.seen.is_absent(key) || self.seen.look(key, "") == Look::Going {
            return Ok(false);
        }
        let api = self.api(key);
        let live = Self::sent(key, api.get_opt(&key.name).await)?;
        let claimed = live.map(|BoundedObject(live)| (cx.claim(live.meta()), live));
        let Some((claim, live)) =
            claimed.filter(|(claim, _)| matches!(claim, Claim::Ours | Claim::Restored))
        else {
            self.seen.absent(key);
            return Ok(false);
        };
        if claim == Claim::Restored {
            cx.confirm_owner().await?;
        }
        Self::sent(key, self.seen.delete(&api, key, &live).await)?;
        Ok(true)
    }

    /// The owner is gone: what is kept beside the watch may go.
    pub fn forget(&self, key: &Key) {
        self.seen.forget(key);
        self.drift.forget(key);
        self.unconfirmed.forget(key);
    }

    fn api(&self, key: &Key) -> Api<BoundedObject<K>> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    /// Marks `desired`; gives it as it is sent, and its digest.
    fn finish(owner: &Owner, desired: &mut K) -> Result<(Value, String)> {
        owner.mark(desired.meta_mut());
        let value = |desired: &K| -> Result<Value> {
            let mut value = serde_json::to_value(desired)
                .map_err(kube::Error::SerdeError)
                .map_err(Error::api(what::<K>(&Key::of(desired))))?;
            value["apiVersion"] = K::api_version(&()).into();
            Ok(value)
        };
        let digest = short_digest(value(desired)?.to_string());
        desired
            .annotations_mut()
            .insert(owner.names().applied.into(), digest.clone());
        Ok((value(desired)?, digest))
    }

    /// Records a child that was created, and reports one that another client had deleted.
    fn created(&self, owner: &Owner, key: &Key, object: &K, desired: String, values: &Projection) {
        // A new owner's name may be that of a former one, whose children went with it.
        if self.seen.take_lost(key) && !owner.is_fresh() {
            self.drift.recreated(owner, key, &what::<K>(key));
        } else {
            self.drift.created(key);
        }
        self.wrote(key, object, desired, values);
    }

    /// Records a child that was written or found and matches its desired state, unless newer state is known.
    fn wrote(&self, key: &Key, object: &K, desired: String, values: &Projection) {
        self.unconfirmed.forget(key);
        let known = self.known(object);
        let owner = known.owner.clone();
        let matched = Match {
            desired,
            values: values.digest(),
            has_foreign_ports: values.has_foreign_ports(),
        };
        if !self.seen.wrote(key, known, matched) {
            self.tell(owner);
        }
    }

    fn known(&self, object: &K) -> Known<S> {
        let (owner, owner_uid) = owner_of(object.meta(), self.names).unzip();
        Known {
            uid: object.uid().unwrap_or_default(),
            version: super::version(object.meta().resource_version.as_deref()),
            owner,
            owner_uid: owner_uid.unwrap_or_default().to_owned(),
            print: self.print(object),
            going: object.meta().deletion_timestamp.is_some(),
            report: (self.report)(object),
        }
    }

    /// Returns a digest of what a change of the child is news by: agents stamp annotations and labels of their own on it.
    fn print(&self, object: &K) -> u64 {
        let mut content = Self::content(object);
        if let Some(annotations) = content["metadata"]["annotations"].as_object_mut() {
            annotations.retain(|name, _| name.starts_with(self.names.prefix));
        }
        if let Some(labels) = content["metadata"]["labels"].as_object_mut() {
            labels
                .retain(|name, _| managed_fields::may_be_ours(managed(object), self.manager, name));
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

    /// An answer, sorted.
    fn sent<T>(key: &Key, answer: kube::Result<T>) -> Result<T> {
        answer.map_err(|error| Error::of_child(what::<K>(key), error))
    }

    fn tell(&self, owner: Option<Key>) {
        if let Some(owner) = owner {
            (self.wake)(&owner);
        }
    }
}

/// Relation of a live child to its desired state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The child matches.
    Match,
    /// The child matched before, and somebody has changed it since.
    Drift,
    /// The child was never written in this form.
    Other,
}

fn basis(owner: &Owner, print: u64) -> Basis {
    Basis {
        print,
        generation: owner.generation(),
        requested: owner.requested().map(str::to_owned),
    }
}

fn managed(object: &impl Resource) -> &[ManagedFieldsEntry] {
    object.meta().managed_fields.as_deref().unwrap_or_default()
}

impl<K: ChildKind, S: Report> Observer<K> for Children<K, S> {
    fn listing(&self, _: &ResourceName, shard: Option<&str>) {
        self.seen.listing(shard);
    }

    fn present(&self, _: &ResourceName, object: K) {
        self.tell(self.seen.shown(Key::of(&object), self.known(&object)));
    }

    fn gone(&self, _: &ResourceName, object: K) {
        self.tell(
            self.seen
                .gone(&Key::of(&object), &object.uid().unwrap_or_default()),
        );
    }

    fn listed(&self, _: &ResourceName, shard: Option<&str>) {
        self.seen
            .listed(shard)
            .into_iter()
            .for_each(|owner| self.tell(Some(owner)));
    }

    fn stands(&self, _: &ResourceName, _: Option<&str>) {}

    fn failing(&self, _: &ResourceName, shard: Option<&str>, error: &watcher::Error) {
        if watching::refusal(error).is_some_and(|status| status.code == 403) {
            self.seen.settled(shard);
        }
    }
}

/// `deployments.apps`, as kubectl takes it.
fn resource<K: Resource<DynamicType = ()>>() -> String {
    let (plural, group) = (K::plural(&()), K::group(&()));
    if group.is_empty() {
        plural.into_owned()
    } else {
        format!("{plural}.{group}")
    }
}

/// `Deployment shop/web`.
fn what<K: Resource<DynamicType = ()>>(key: &Key) -> String {
    format!("{} {key}", K::kind(&()))
}

#[cfg(test)]
mod tests;
