//! What the watches show of `ConfigMap`s and namespaces: whom that concerns. Only what some `ConfigMapSync` refers to is
//! remembered, and no content.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::core::PartialObjectMeta;
use kube::runtime::watcher;
use qm_api::ConfigMapSync;
use qm_api::common::{NAMES, OWNER_UID};
use qm_runtime::child_cache::{ChildCache, KnownChild, Match};
use qm_runtime::ownership::owner_of;
use qm_runtime::trigger::Trigger;
use qm_runtime::watch::error_status;
use qm_runtime::watch_hub::{Observer, ResourceName};
use qm_runtime::{ObjectKey, WatchScope, version};
use tokio::sync::{SetOnce, watch};

use super::plan::{Destinations, Plan};

/// What is known of the cluster.
pub struct Index {
    /// The copies: all that has a mark. Reported is the UID in it.
    pub copies: ChildCache<()>,
    /// Set once there is a `ConfigMapSync`.
    pub wanted: Arc<SetOnce<()>>,
    state: Mutex<State>,
    namespaces: watch::Sender<Names>,
    wake: Trigger<ConfigMapSync>,
}

/// What is known of all namespaces.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Names {
    /// They have not been listed yet.
    Unlisted,
    /// They have been.
    Listed,
    /// They may not be listed, in the apiserver's words, or are not looked at.
    Unknown(String),
}

#[derive(Default)]
struct State {
    /// In order, so that a loop of several paths is always found along the same one.
    syncs: BTreeMap<ObjectKey, Interest>,
    /// Whom `ConfigMap`s of a name concern.
    names: HashMap<String, BTreeSet<ObjectKey>>,
    namespaces: BTreeMap<String, Place>,
    /// What the list of namespaces that is under way has shown, if one is.
    listing: Option<BTreeSet<String>>,
    /// Those that would close a loop.
    looping: BTreeSet<ObjectKey>,
}

struct Interest {
    plan: Plan,
    /// The older of two comes first.
    born: (Option<Time>, String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Place {
    labels: BTreeMap<String, String>,
    going: bool,
}

/// Whether a namespace that is to have a copy is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is there, or may be: that is not known.
    There,
    /// It is not.
    Missing,
    /// It is being deleted.
    Going,
}

impl Index {
    /// Nothing is known yet. `wake` wakes whom it concerns.
    pub fn new(scope: &WatchScope, trust: Duration, wake: Trigger<ConfigMapSync>) -> Self {
        let names = match scope {
            WatchScope::Cluster => Names::Unlisted,
            WatchScope::Namespaces(_) => Names::Unknown("namespaces are not looked at".into()),
        };
        Self {
            copies: ChildCache::new(scope.places().into_iter().collect(), trust),
            wanted: Arc::default(),
            state: Mutex::default(),
            namespaces: watch::channel(names).0,
            wake,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake<'a>(&self, syncs: impl IntoIterator<Item = &'a ObjectKey>) {
        for sync in syncs {
            self.wake.wake(sync);
        }
    }

    /// Waits until everything has been listed, as far as that is let in.
    pub async fn ready(&self) {
        self.copies.synced().await;
        // The sender is ours.
        let _ = self
            .namespaces
            .subscribe()
            .wait_for(|names| *names != Names::Unlisted)
            .await;
    }

    /// Why namespaces are not known.
    pub fn blind(&self) -> Option<String> {
        match &*self.namespaces.borrow() {
            Names::Unknown(why) => Some(why.clone()),
            Names::Unlisted | Names::Listed => None,
        }
    }

    /// There is such a sync, and what it concerns; nothing where its spec cannot be followed.
    pub fn follow(&self, key: &ObjectKey, sync: &ConfigMapSync, plan: Option<Plan>) {
        // Once is enough.
        let _ = self.wanted.set(());
        let mut state = self.state();
        if state.syncs.get(key).map(|known| &known.plan) == plan.as_ref() {
            return;
        }
        state.forget(key);
        if let Some(plan) = plan {
            for name in [&*plan.source.name, &plan.name] {
                state
                    .names
                    .entry(name.to_owned())
                    .or_default()
                    .insert(key.clone());
            }
            let born = (
                sync.metadata.creation_timestamp.clone(),
                sync.uid().unwrap_or_default(),
            );
            state.syncs.insert(key.clone(), Interest { plan, born });
        }
        let looping = std::mem::take(&mut state.looping);
        drop(state);
        self.wake(&looping);
    }

    /// There is none any more.
    pub fn forget(&self, key: &ObjectKey) {
        let mut state = self.state();
        if !state.forget(key) {
            return;
        }
        state.looping.remove(key);
        let looping = std::mem::take(&mut state.looping);
        drop(state);
        self.wake(&looping);
    }

    /// The namespaces that are to have a copy by `plan`.
    pub fn destinations(&self, plan: &Plan) -> Vec<(String, Presence)> {
        let state = self.state();
        match &plan.to {
            Destinations::Named(names) => names
                .iter()
                .map(|name| (name.clone(), self.presence(&state, name)))
                .collect(),
            Destinations::Selected { .. } => {
                let reached = state
                    .namespaces
                    .iter()
                    .filter(|(name, place)| plan.reaches(name, Some(&place.labels)));
                // One that goes takes its copy with it.
                reached
                    .filter(|(_, place)| !place.going)
                    .map(|(name, _)| (name.clone(), Presence::There))
                    .collect()
            }
        }
    }

    /// Returns whether the namespace of the source is known not to exist.
    pub fn lacks_source_namespace(&self, plan: &Plan) -> bool {
        self.presence(&self.state(), &plan.source.namespace) == Presence::Missing
    }

    fn presence(&self, state: &State, namespace: &str) -> Presence {
        let known = *self.namespaces.borrow() == Names::Listed;
        match state.namespaces.get(namespace) {
            Some(place) if known && place.going => Presence::Going,
            None if known => Presence::Missing,
            _ => Presence::There,
        }
    }

    /// Returns the older syncs through which what this one copies would come back to its source, in the order of the
    /// copies. Wakes this one when that may have changed.
    pub fn closes_loop(&self, key: &ObjectKey) -> Option<Vec<ObjectKey>> {
        let mut state = self.state();
        let found = state.closes_loop(key);
        if found.is_some() {
            state.looping.insert(key.clone());
        } else {
            state.looping.remove(key);
        }
        found
    }

    /// A copy is as wanted, by `digest`; whoever made it is woken if it may be gone already.
    pub fn right(&self, key: &ObjectKey, copy: &ConfigMap, digest: &str) {
        let uid = copy.labels().get(OWNER_UID).cloned().unwrap_or_default();
        let known = known(copy, uid);
        let owner = known.owner.clone();
        let matched = Match {
            desired: digest.to_owned(),
            values: 0,
            has_foreign_ports: false,
        };
        if !self.copies.record(key, known, matched) {
            self.wake(&owner);
        }
    }

    /// Wakes whom a `ConfigMap` concerns, but not `known`, who knows of it.
    fn touched(&self, map: &ObjectKey, known: Option<&ObjectKey>) {
        let state = self.state();
        let concerned: Vec<_> = state
            .names
            .get(&*map.name)
            .into_iter()
            .flatten()
            .filter(|sync| Some(*sync) != known && state.concerns(sync, map))
            .cloned()
            .collect();
        drop(state);
        self.wake(&concerned);
    }

    fn all(&self) {
        let syncs: Vec<_> = self.state().syncs.keys().cloned().collect();
        self.wake(&syncs);
    }

    /// A namespace is now so, or gone.
    fn place(&self, name: &str, place: Option<Place>) {
        let mut state = self.state();
        if state.namespaces.get(name) == place.as_ref() {
            return;
        }
        match place {
            Some(place) => state.namespaces.insert(name.to_owned(), place),
            None => state.namespaces.remove(name),
        };
        let is_concerned = |plan: &Plan| {
            plan.selects() || plan.reaches(name, None) || *plan.source.namespace == *name
        };
        let concerned = state.syncs.iter().filter(|(_, it)| is_concerned(&it.plan));
        let mut concerned: BTreeSet<_> = concerned.map(|(key, _)| key.clone()).collect();
        concerned.append(&mut state.looping);
        drop(state);
        self.wake(&concerned);
    }
}

impl State {
    fn forget(&mut self, key: &ObjectKey) -> bool {
        let Some(Interest { plan, .. }) = self.syncs.remove(key) else {
            return false;
        };
        for name in [&*plan.source.name, &plan.name] {
            if let Some(concerned) = self.names.get_mut(name) {
                concerned.remove(key);
                if concerned.is_empty() {
                    self.names.remove(name);
                }
            }
        }
        true
    }

    fn concerns(&self, sync: &ObjectKey, map: &ObjectKey) -> bool {
        self.syncs
            .get(sync)
            .is_some_and(|it| it.plan.source == *map || self.copies_to(&it.plan, map))
    }

    fn copies_to(&self, plan: &Plan, map: &ObjectKey) -> bool {
        let labels = self
            .namespaces
            .get(&*map.namespace)
            .map(|place| &place.labels);
        *plan.name == *map.name && plan.reaches(&map.namespace, labels)
    }

    /// Searches backwards from the source, along older ones.
    fn closes_loop(&self, key: &ObjectKey) -> Option<Vec<ObjectKey>> {
        let ours = self.syncs.get(key)?;
        let mut older: Vec<_> = self
            .syncs
            .iter()
            .filter(|(_, it)| it.born < ours.born)
            .collect();
        // Each sync that was found, and the one that copies on from it; none for those that write our source.
        let mut found: Vec<(&ObjectKey, Option<usize>)> = Vec::new();
        let mut sources = vec![(&ours.plan.source, None)];
        while let Some((source, next)) = sources.pop() {
            let (into, rest): (Vec<_>, Vec<_>) = older
                .into_iter()
                .partition(|(_, it)| self.copies_to(&it.plan, source));
            for (sync, it) in into {
                found.push((sync, next));
                let this = found.len() - 1;
                if self.copies_to(&ours.plan, &it.plan.source) {
                    let links = std::iter::successors(Some(this), |link| found[*link].1);
                    return Some(links.map(|link| found[link].0.clone()).collect());
                }
                sources.push((&it.plan.source, Some(this)));
            }
            older = rest;
        }
        None
    }
}

/// What is kept of a copy.
pub fn known(metadata: &impl ResourceExt, owner_uid: String) -> KnownChild<()> {
    let version = version(metadata.meta().resource_version.as_deref());
    KnownChild {
        uid: metadata.uid().unwrap_or_default(),
        version,
        owner: owner_of(metadata.meta(), &NAMES).map(|(owner, _)| owner),
        owner_uid,
        // Metadata does not tell what of it changed.
        fingerprint: version,
        terminating: metadata.meta().deletion_timestamp.is_some(),
        summary: (),
    }
}

impl Observer<PartialObjectMeta<ConfigMap>> for Index {
    fn on_list_started(&self, _: &ResourceName, shard: Option<&str>) {
        self.copies.on_list_started(shard);
    }

    fn on_applied(&self, _: &ResourceName, map: PartialObjectMeta<ConfigMap>) {
        let key = ObjectKey::of(&map);
        let (owner, news) = match map.labels().get(OWNER_UID) {
            Some(uid) => (
                owner_of(&map.metadata, &NAMES).map(|(owner, _)| owner),
                self.copies
                    .on_applied(key.clone(), known(&map, uid.clone())),
            ),
            None => (
                None,
                self.copies.on_deleted(&key, &map.uid().unwrap_or_default()),
            ),
        };
        if let Some(owner) = &news {
            self.wake.wake(owner);
        }
        // Whoever wrote it need not be told; whoever was given it by another has to be.
        let knows = owner.filter(|owner| news.as_ref().is_none_or(|told| told == owner));
        self.touched(&key, knows.as_ref());
    }

    fn on_deleted(&self, _: &ResourceName, map: PartialObjectMeta<ConfigMap>) {
        let key = ObjectKey::of(&map);
        if let Some(owner) = self.copies.on_deleted(&key, &map.uid().unwrap_or_default()) {
            self.wake.wake(&owner);
        }
        self.touched(&key, None);
    }

    fn on_list_done(&self, _: &ResourceName, shard: Option<&str>) {
        self.copies.on_list_done(shard);
        // What has no mark is not remembered: it may have gone unseen.
        self.all();
    }

    fn on_recovered(&self, _: &ResourceName, _: Option<&str>) {}

    fn on_error(&self, _: &ResourceName, shard: Option<&str>, error: &watcher::Error) {
        if error_status(error).is_some_and(|status| status.code == 403) {
            self.copies.set_synced(shard);
        }
    }
}

impl Observer<PartialObjectMeta<Namespace>> for Index {
    fn on_list_started(&self, _: &ResourceName, _: Option<&str>) {
        self.state().listing = Some(BTreeSet::new());
    }

    fn on_applied(&self, _: &ResourceName, namespace: PartialObjectMeta<Namespace>) {
        let name = namespace.name_any();
        if let Some(listing) = &mut self.state().listing {
            listing.insert(name.clone());
        }
        let going = namespace.metadata.deletion_timestamp.is_some();
        self.place(
            &name,
            Some(Place {
                labels: namespace.metadata.labels.unwrap_or_default(),
                going,
            }),
        );
    }

    fn on_deleted(&self, _: &ResourceName, namespace: PartialObjectMeta<Namespace>) {
        self.place(&namespace.name_any(), None);
    }

    fn on_list_done(&self, _: &ResourceName, _: Option<&str>) {
        let missing: Vec<_> = {
            let mut state = self.state();
            let listed = state.listing.take().unwrap_or_default();
            state
                .namespaces
                .keys()
                .filter(|name| !listed.contains(*name))
                .cloned()
                .collect()
        };
        for name in &missing {
            self.place(name, None);
        }
        self.namespaces.send_replace(Names::Listed);
    }

    fn on_recovered(&self, _: &ResourceName, _: Option<&str>) {}

    fn on_error(&self, _: &ResourceName, _: Option<&str>, error: &watcher::Error) {
        if let Some(refusal) = error_status(error).filter(|status| status.code == 403) {
            self.namespaces
                .send_replace(Names::Unknown(refusal.message.clone()));
        }
    }
}
