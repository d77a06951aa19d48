//! What controllers make in the cluster: one rule for every kind of child.
//!
//! A child that is not there is created, which cannot overwrite. One that is there is claimed first; then it is applied,
//! unless it already is as it is wanted. Children are watched by their mark and never stored: of each is kept what tells
//! whether it changed, and the little that the status of its owner reports.

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use kube::core::NamespaceResourceScope;
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::SetOnce;

pub use self::trouble::Trouble;
pub use self::whole::Child;
use super::managed_fields;
use super::manager::Manager;
use super::owners::Owners;
use super::ownership::{ADOPT_BY, Claim, OWNER_UID, Owner, owner_of};
use super::seen::{Known, Look, Seen};
use super::watch_hub::{Observer, ResourceName};
use super::watching;
use super::{Key, apply, short_digest};

mod trouble;
mod whole;

/// Annotation of a child: digest of what was last written of it.
pub const APPLIED: &str = "quartermaster.dev/applied";

/// How often what is found is looked at once more, because it came or went in between.
const TRIES: usize = 3;

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
    manager: &'static str,
    report: fn(&K) -> S,
    lost: fn(&K, &K) -> bool,
    wake: Box<dyn Fn(&Key) + Send + Sync>,
    wanted: Arc<SetOnce<()>>,
    seen: Seen<S>,
}

impl<K: ChildKind, S: Report> Children<K, S> {
    /// The children that `writer` (a field manager) makes. `report` takes out of one what its owner reports of it; `wake` is
    /// told whose child has changed. They are watched from the first [`Children::want`] on.
    pub fn new(
        manager: &mut Manager,
        writer: &'static str,
        report: fn(&K) -> S,
        wake: impl Fn(&Key) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::that_may_lose(manager, writer, report, |_, _| false, wake)
    }

    /// The same of a kind of which the apiserver may answer an apply with something else: `lost` says so of what was sent and
    /// what there is. It is then applied again.
    pub fn that_may_lose(
        manager: &mut Manager,
        writer: &'static str,
        report: fn(&K) -> S,
        lost: fn(&K, &K) -> bool,
        wake: impl Fn(&Key) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let places = manager.scope.places::<K>(&manager.client);
        let unlisted = places.iter().map(|(shard, _)| shard.clone()).collect();
        let children = Arc::new(Self {
            client: manager.client.clone(),
            manager: writer,
            report,
            lost,
            wake: Box::new(wake),
            wanted: Arc::default(),
            seen: Seen::new(unlisted, manager.config.timings.resync),
        });
        let ours = manager.others.clone().labels(OWNER_UID);
        manager.look(places, &ours, &children.wanted, &children);
        children
    }

    /// There is, or may be, somebody who has such a child.
    pub fn want(&self) {
        // Once is enough.
        let _ = self.wanted.set(());
    }

    /// What is known of the child of this name that says it is of `owner`.
    pub fn report(&self, key: &Key, owner: &Key) -> Option<S> {
        self.seen.known(key).filter(|known| known.owner.as_ref() == Some(owner)).map(|known| known.report)
    }

    /// Waits until the children have been listed, as far as that is let in.
    pub async fn ready(&self) {
        self.want();
        self.seen.ready().await;
    }

    /// Has the child be as `desired`, which is marked as the owner's here. `owners` are all of its kind. The fields at the paths
    /// of `left`, in the form of `managedFields`, are not ours any more and keep the value that they have.
    ///
    /// # Errors
    /// Why it is not so.
    pub async fn settle<O: ChildKind>(
        &self,
        owner: &Owner,
        mut desired: K,
        owners: &Owners<O>,
        left: &[&[&str]],
    ) -> Result<(), Trouble> {
        self.ready().await;
        let (whole, digest) = Self::finish(owner, &mut desired)?;
        let key = Key::of(&desired);
        let api = self.api(&key);
        let mut there = match self.seen.look(&key, &digest) {
            Look::Fine => return Ok(()),
            Look::Unknown => !owner.is_fresh(),
            // That it goes may be long ago by now.
            Look::Going | Look::Other => true,
        };
        let _asking = self.seen.asking(&key);
        for turn in 1..=TRIES {
            let mut refused = None;
            if !there {
                match Self::sent(&key, apply::create(&api, self.manager, &desired).await) {
                    Ok(Some(created)) => {
                        self.wrote(&key, &created, digest);
                        return Ok(());
                    }
                    Ok(None) => {}
                    // Of a Service that is there the apiserver says that its port on the nodes is taken: by itself.
                    Err(trouble @ Trouble::Refused { .. }) => refused = Some(trouble),
                    Err(trouble) => return Err(trouble),
                }
            }
            let Some(live) = Self::sent(&key, api.get_opt(&key.name).await)? else {
                self.seen.absent(&key);
                if let Some(refused) = refused {
                    return Err(refused);
                }
                owners.confirm(owner).await?;
                there = false;
                continue;
            };
            let claim = owner.claim(live.meta(), |uid| owners.lives(uid));
            if let Claim::Foreign(foreign) = &claim {
                let words = owner.conflict(foreign, &resource::<K>(), &key.namespace, &key.name);
                return Err(Trouble::Conflict(words));
            }
            if claim == Claim::Restored {
                owners.confirm(owner).await?;
            }
            if live.meta().deletion_timestamp.is_some() {
                return Err(Trouble::Going(what::<K>(&key)));
            }
            let applied = live.annotations().get(APPLIED) == Some(&digest);
            let managed = live.meta().managed_fields.as_deref().unwrap_or_default();
            let lost = turn < TRIES && (self.lost)(&desired, &live);
            if claim == Claim::Ours && applied && !lost && managed_fields::holds(managed, self.manager, &whole) {
                self.wrote(&key, &live, digest);
                return Ok(());
            }
            desired.meta_mut().uid = live.uid();
            // One that can never be as it is wanted is not claimed: it would go with its owner.
            if claim == Claim::HandedOver
                && let Err(kube::Error::Api(said)) = apply::try_apply(&api, self.manager, &desired).await
                && apply::is_immutable(&said)
            {
                return Err(Trouble::Refused { what: what::<K>(&key), said });
            }
            if claim != Claim::Ours || managed_fields::is_to_be_handed_over(managed, self.manager, left) {
                let entries = managed_fields::handed_over(managed, self.manager, &whole, left);
                // With the marks at once: killed before the apply that follows, we would otherwise have neither them nor consent.
                let mut taken = owner.marks(live.meta());
                taken["managedFields"] = json!(entries);
                Self::sent(&key, apply::metadata(&api, self.manager, &live, taken).await)?;
            }
            let applied = Self::sent(&key, apply::apply(&api, self.manager, &desired).await)?;
            if turn < TRIES && (self.lost)(&desired, &applied) {
                continue;
            }
            self.wrote(&key, &applied, digest);
            return Ok(());
        }
        Err(Trouble::Going(what::<K>(&key)))
    }

    /// Takes from others what they put at `path`, in the form of `managedFields`, of a child that is the owner's, so that the
    /// next [`Children::settle`] takes it away: a list of ours in which nothing of theirs can stand. Whether there was any.
    ///
    /// # Errors
    /// When it could not be read or written.
    pub async fn reclaim<O: ChildKind>(
        &self,
        owner: &Owner,
        key: &Key,
        owners: &Owners<O>,
        path: &[&str],
    ) -> Result<bool, Trouble> {
        let api = self.api(key);
        let live = Self::sent(key, api.get_opt(&key.name).await)?;
        let Some(live) = live.filter(|live| owner.claim(live.meta(), |uid| owners.lives(uid)) == Claim::Ours) else {
            return Ok(false);
        };
        let managed = live.meta().managed_fields.as_deref().unwrap_or_default();
        let Some(managed) = managed_fields::reclaimed(managed, self.manager, path) else { return Ok(false) };
        Self::sent(key, apply::metadata(&api, self.manager, &live, json!({ "managedFields": managed })).await)?;
        Ok(true)
    }

    /// Has there be no such child of the owner's; whether it was deleted now. One that no watch shows may be there without our
    /// label: it is asked for, once.
    ///
    /// # Errors
    /// When it is there and could not be deleted.
    pub async fn remove<O: ChildKind>(&self, owner: &Owner, key: &Key, owners: &Owners<O>) -> Result<bool, Trouble> {
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
        let claimed = live.map(|live| (owner.claim(live.meta(), |uid| owners.lives(uid)), live));
        let Some((claim, live)) = claimed.filter(|(claim, _)| matches!(claim, Claim::Ours | Claim::Restored)) else {
            self.seen.absent(key);
            return Ok(false);
        };
        if claim == Claim::Restored {
            owners.confirm(owner).await?;
        }
        Self::sent(key, apply::remove(&api, &live).await)?;
        Ok(true)
    }

    /// The owner is gone: what is kept beside the watch may go.
    pub fn forget(&self, key: &Key) {
        self.seen.forget(key);
    }

    fn api(&self, key: &Key) -> Api<K> {
        Api::namespaced(self.client.clone(), &key.namespace)
    }

    /// Marks `desired`; gives it as it is sent, and its digest.
    fn finish(owner: &Owner, desired: &mut K) -> Result<(Value, String), Trouble> {
        owner.mark(desired.meta_mut());
        let value = |desired: &K| -> Result<Value, Trouble> {
            let mut value = serde_json::to_value(desired).map_err(|error| Trouble::Api {
                what: what::<K>(&Key::of(desired)),
                error: kube::Error::SerdeError(error),
            })?;
            value["apiVersion"] = K::api_version(&()).into();
            Ok(value)
        };
        let digest = short_digest(value(desired)?.to_string());
        desired.annotations_mut().insert(APPLIED.into(), digest.clone());
        Ok((value(desired)?, digest))
    }

    /// We wrote it so, or found it so: what is known of it is at least as new.
    fn wrote(&self, key: &Key, object: &K, digest: String) {
        let known = self.known(object);
        let owner = known.owner.clone();
        if !self.seen.wrote(key, known, digest) {
            self.tell(owner);
        }
    }

    fn known(&self, object: &K) -> Known<S> {
        Known {
            uid: object.uid().unwrap_or_default(),
            version: super::version(object.meta().resource_version.as_deref()),
            owner: owner_of(object.meta()),
            print: self.print(object),
            going: object.meta().deletion_timestamp.is_some(),
            report: (self.report)(object),
        }
    }

    fn print(&self, object: &K) -> u64 {
        let mut hash = DefaultHasher::new();
        object.annotations().get(APPLIED).hash(&mut hash);
        object.annotations().get(ADOPT_BY).hash(&mut hash);
        for entry in object.meta().managed_fields.iter().flatten() {
            if entry.manager.as_deref() == Some(self.manager) {
                (&entry.operation, entry.fields_v1.as_ref().map(|fields| fields.0.to_string())).hash(&mut hash);
            }
        }
        hash.finish()
    }

    /// An answer, sorted.
    fn sent<T>(key: &Key, answer: kube::Result<T>) -> Result<T, Trouble> {
        answer.map_err(|error| Trouble::of(what::<K>(key), error))
    }

    fn tell(&self, owner: Option<Key>) {
        if let Some(owner) = owner {
            (self.wake)(&owner);
        }
    }
}

impl<K: ChildKind, S: Report> Observer<K> for Children<K, S> {
    fn listing(&self, _: &ResourceName, shard: Option<&str>) {
        self.seen.listing(shard);
    }

    fn present(&self, _: &ResourceName, object: K) {
        self.tell(self.seen.shown(Key::of(&object), self.known(&object)));
    }

    fn gone(&self, _: &ResourceName, object: K) {
        self.tell(self.seen.gone(&Key::of(&object), &object.uid().unwrap_or_default()));
    }

    fn listed(&self, _: &ResourceName, shard: Option<&str>) {
        self.seen.listed(shard).into_iter().for_each(|owner| self.tell(Some(owner)));
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
    if group.is_empty() { plural.into_owned() } else { format!("{plural}.{group}") }
}

/// `Deployment shop/web`.
fn what<K: Resource<DynamicType = ()>>(key: &Key) -> String {
    format!("{} {key}", K::kind(&()))
}

#[cfg(test)]
mod tests;
