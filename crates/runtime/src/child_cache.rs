//! What is kept of objects that are watched and not stored: whether each is as it is wanted, and what is reported of it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::{Api, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::{ObjectKey, apply};

/// How many deleted children are remembered until they are created again.
const MAX_LOST: usize = 10_000;

/// What is kept of the children of one kind.
pub struct ChildCache<S> {
    state: Mutex<CacheState<S>>,
    listed: watch::Sender<bool>,
    trust: Duration,
}

struct CacheState<S> {
    known: HashMap<ObjectKey, (KnownChild<S>, Option<Confirmed>)>,
    /// Looked for, and not ours.
    absent: HashSet<ObjectKey>,
    /// Children that another client deleted, until they are created again.
    lost: HashSet<ObjectKey>,
    /// UIDs of children that the operator deletes.
    deleting: HashMap<ObjectKey, String>,
    /// Not listed yet.
    unlisted: BTreeSet<Option<String>>,
    /// What the lists that are under way have shown.
    listing: HashMap<Option<String>, HashSet<ObjectKey>>,
    reads: HashMap<ObjectKey, PendingRead>,
}

/// What is read for.
#[derive(Default)]
struct PendingRead {
    /// By how many.
    by: usize,
    /// The UIDs that have gone meanwhile.
    gone: Vec<String>,
    /// Whether a watch meanwhile showed it.
    shown: bool,
    /// Whether a list meanwhile did not show it.
    missed: bool,
}

/// What is kept of a child.
#[derive(Clone)]
pub struct KnownChild<S> {
    /// Its UID.
    pub uid: String,
    /// Its resourceVersion.
    pub version: u64,
    /// Whom it is news to.
    pub owner: Option<ObjectKey>,
    /// The owner's UID; empty if the child lacks it.
    pub owner_uid: String,
    /// Digest of the relevant content; a change triggers a check.
    pub fingerprint: u64,
    /// It is being deleted.
    pub terminating: bool,
    /// What is reported of it.
    pub summary: S,
}

/// Confirmed match of a child with its desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// Digest of the desired state.
    pub desired: String,
    /// Digest of the child's values at the fields that the desired state sets.
    pub values: u64,
    /// Whether a container of the child had ports beside the desired ones.
    pub has_foreign_ports: bool,
}

struct Confirmed {
    matched: Match,
    /// The child's [`KnownChild::fingerprint`] at that time.
    fingerprint: u64,
    at: Instant,
}

/// What is known of a child without reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChildLookup {
    /// There is none that has our mark.
    Unknown,
    /// It is being deleted.
    Terminating,
    /// It is as wanted.
    UpToDate,
    /// It is there.
    Unconfirmed,
}

impl<S: Clone + PartialEq> ChildCache<S> {
    /// Nothing is known, and these places are to be listed. That a child was found to be as wanted is believed for as long
    /// as `trust`.
    pub fn new(unlisted: BTreeSet<Option<String>>, trust: Duration) -> Self {
        let (known, absent, listing, reads) = (
            HashMap::new(),
            HashSet::new(),
            HashMap::new(),
            HashMap::new(),
        );
        let (lost, deleting) = (HashSet::new(), HashMap::new());
        let state = Mutex::new(CacheState {
            known,
            absent,
            lost,
            deleting,
            unlisted,
            listing,
            reads,
        });
        Self {
            state,
            listed: watch::channel(false).0,
            trust,
        }
    }

    fn state(&self) -> MutexGuard<'_, CacheState<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all has been listed, as far as that is let in.
    pub async fn synced(&self) {
        // The sender is ours.
        let _ = self.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// What is known of a child that is wanted as `digest` says.
    pub fn lookup(&self, key: &ObjectKey, digest: &str) -> ChildLookup {
        match self.state().known.get(key) {
            None => ChildLookup::Unknown,
            Some((known, _)) if known.terminating => ChildLookup::Terminating,
            Some((known, Some(confirmed)))
                if confirmed.matched.desired == digest
                    && confirmed.fingerprint == known.fingerprint
                    && confirmed.at.elapsed() < self.trust =>
            {
                ChildLookup::UpToDate
            }
            Some(_) => ChildLookup::Unconfirmed,
        }
    }

    /// All that is known of a child.
    pub fn known(&self, key: &ObjectKey) -> Option<KnownChild<S>> {
        self.state().known.get(key).map(|(known, _)| known.clone())
    }

    /// Returns the last confirmed match of the child of that UID, even if the child has changed since.
    pub fn matched(&self, key: &ObjectKey, uid: &str) -> Option<Match> {
        let state = self.state();
        let (known, confirmed) = state.known.get(key)?;
        confirmed
            .as_ref()
            .filter(|_| known.uid == uid)
            .map(|confirmed| confirmed.matched.clone())
    }

    /// Those of which this is known.
    pub fn keys_where(&self, wanted: impl Fn(&KnownChild<S>) -> bool) -> Vec<ObjectKey> {
        let state = self.state();
        state
            .known
            .iter()
            .filter(|(_, (known, _))| wanted(known))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Whether it is known that no child of this name is ours, with our label or without it.
    pub fn is_absent(&self, key: &ObjectKey) -> bool {
        let state = self.state();
        !state.known.contains_key(key) && state.absent.contains(key)
    }

    /// It was looked for, and is not there or not ours; unless the watch has shown it while it was read for, which is never
    /// said again: then that stands.
    pub fn record_absent(&self, key: &ObjectKey) {
        let mut state = self.state();
        if state.reads.get(key).is_some_and(|read| read.shown) {
            return;
        }
        state.known.remove(key);
        state.absent.insert(key.clone());
    }

    /// Nobody will ask for it again.
    pub fn forget(&self, key: &ObjectKey) {
        let mut state = self.state();
        state.absent.remove(key);
        state.lost.remove(key);
        state.deleting.remove(key);
    }

    /// Deletes the child in the state in which it was read: its end is then no loss, see [`ChildCache::take_lost`]. A child that
    /// is gone is no error.
    ///
    /// # Errors
    /// The apiserver's answer: 409 when the child has changed since, or is another one.
    pub async fn delete<K>(
        &self,
        api: &Api<K>,
        key: &ObjectKey,
        live: &impl ResourceExt,
    ) -> kube::Result<()>
    where
        K: Clone + Debug + DeserializeOwned,
    {
        let uid = live.uid().unwrap_or_default();
        // The watch may show the end before the answer comes.
        self.state().deleting.insert(key.clone(), uid.clone());
        let answer = apply::remove(api, live).await;
        if answer.as_ref().is_err_and(apply::is_without_effect) {
            self.state().take_deleting(key, &uid);
        }
        answer
    }

    /// Records that a desired child does not exist, perhaps before a watch shows its deletion.
    pub fn record_missing(&self, key: &ObjectKey) {
        let mut state = self.state();
        if let Some(uid) = state.known.get(key).map(|(known, _)| known.uid.clone()) {
            state.lose(key, &uid);
        }
    }

    /// Returns whether another client deleted the child, and forgets that.
    pub fn take_lost(&self, key: &ObjectKey) -> bool {
        self.state().lost.remove(key)
    }

    /// The apiserver is read for a child, or to make or change it, until this value goes.
    pub fn begin_read(&self, key: &ObjectKey) -> ReadGuard<'_, S> {
        self.state().reads.entry(key.clone()).or_default().by += 1;
        ReadGuard {
            cache: self,
            key: key.clone(),
        }
    }

    /// Records a child that was written or read and matches its desired state, unless newer state is known. Returns
    /// `false` if the owner has to look at the child again, because no event will repeat what was shown during the request:
    /// a deletion, a list without the child (it is then not kept), or a later change.
    pub fn record(&self, key: &ObjectKey, known: KnownChild<S>, matched: Match) -> bool {
        let mut state = self.state();
        if state
            .reads
            .get(key)
            .is_some_and(|read| read.missed || read.gone.contains(&known.uid))
        {
            return false;
        }
        state.absent.remove(key);
        state.lost.remove(key);
        state.deleting.remove(key);
        let confirmed = Confirmed {
            matched,
            fingerprint: known.fingerprint,
            at: Instant::now(),
        };
        match state.known.get_mut(key) {
            // The watch was faster; the relevant content may be the same.
            Some((newer, before)) if newer.version > known.version => {
                if newer.uid == known.uid {
                    let same = newer.fingerprint == confirmed.fingerprint;
                    *before = Some(confirmed);
                    // A list may have shown a change made meanwhile, which no later event repeats.
                    return same;
                }
            }
            _ => _ = state.known.insert(key.clone(), (known, Some(confirmed))),
        }
        true
    }

    /// A watch shows it so; whose news that is.
    pub fn on_applied(&self, key: ObjectKey, mut known: KnownChild<S>) -> Option<ObjectKey> {
        let mut state = self.state();
        for place in [None, Some(key.namespace.to_string())] {
            if let Some(shown) = state.listing.get_mut(&place) {
                shown.insert(key.clone());
            }
        }
        if let Some(read) = state.reads.get_mut(&key) {
            read.shown = true;
        }
        state.absent.remove(&key);
        // The watch still speaks of the one before.
        if state
            .known
            .get(&key)
            .is_some_and(|(now, _)| now.uid != known.uid && now.version > known.version)
        {
            return None;
        }
        let (mut confirmed, mut news) = (None, true);
        if let Some((before, found)) = state
            .known
            .get_mut(&key)
            .filter(|(before, _)| before.uid == known.uid)
        {
            if known.version <= before.version {
                return None;
            }
            let same =
                before.fingerprint == known.fingerprint && before.terminating == known.terminating;
            news = !same || before.summary != known.summary;
            confirmed = found.take();
            // Who knew it is told of what becomes of it, whatever it now says of its owner.
            known.owner = before.owner.clone().or(known.owner);
        }
        let owner = known.owner.clone().filter(|_| news);
        state.known.insert(key, (known, confirmed));
        owner
    }

    /// A watch shows that it is gone; whose news that is.
    pub fn on_deleted(&self, key: &ObjectKey, uid: &str) -> Option<ObjectKey> {
        let mut state = self.state();
        if let Some(read) = state.reads.get_mut(key) {
            read.gone.push(uid.to_owned());
        }
        if state
            .known
            .get(key)
            .is_none_or(|(known, _)| known.uid != uid)
        {
            state.take_deleting(key, uid);
            return None;
        }
        state.lose(key, uid);
        state.known.remove(key)?.0.owner
    }

    /// A place begins to be listed.
    pub fn on_list_started(&self, place: Option<&str>) {
        self.state()
            .listing
            .insert(place.map(str::to_owned), HashSet::new());
    }

    /// A place has been listed: what was not shown is gone, which is news to these.
    pub fn on_list_done(&self, place: Option<&str>) -> Vec<ObjectKey> {
        let mut state = self.state();
        let shown = state
            .listing
            .remove(&place.map(str::to_owned))
            .unwrap_or_default();
        let here = |key: &ObjectKey| place.is_none_or(|namespace| *key.namespace == *namespace);
        let missing: Vec<_> = state
            .known
            .keys()
            .filter(|key| here(key) && !shown.contains(*key))
            .cloned()
            .collect();
        for (_, read) in state
            .reads
            .iter_mut()
            .filter(|(key, _)| here(key) && !shown.contains(*key))
        {
            read.missed = true;
        }
        let mut owners = Vec::new();
        for key in &missing {
            let Some((known, _)) = state.known.remove(key) else {
                continue;
            };
            state.lose(key, &known.uid);
            owners.extend(known.owner);
        }
        drop(state);
        self.set_synced(place);
        owners
    }

    /// The list of a place is whole, or refused.
    pub fn set_synced(&self, place: Option<&str>) {
        let mut state = self.state();
        state.unlisted.remove(&place.map(str::to_owned));
        if state.unlisted.is_empty() {
            self.listed
                .send_if_modified(|listed| !std::mem::replace(listed, true));
        }
    }
}

impl<S> CacheState<S> {
    /// The known child of this UID is gone.
    fn lose(&mut self, key: &ObjectKey, uid: &str) {
        if self.take_deleting(key, uid) {
            return;
        }
        // Only a summary depends on it.
        if self.lost.len() >= MAX_LOST {
            self.lost.clear();
        }
        self.lost.insert(key.clone());
    }

    /// Returns whether the operator deletes the child of this UID, and forgets that.
    fn take_deleting(&mut self, key: &ObjectKey, uid: &str) -> bool {
        let is_deleting = self
            .deleting
            .get(key)
            .is_some_and(|deleting| deleting == uid);
        if is_deleting {
            self.deleting.remove(key);
        }
        is_deleting
    }
}

/// A child is read for: [`ChildCache::begin_read`].
pub struct ReadGuard<'a, S: Clone + PartialEq> {
    cache: &'a ChildCache<S>,
    key: ObjectKey,
}

impl<S: Clone + PartialEq> Drop for ReadGuard<'_, S> {
    fn drop(&mut self) {
        let mut state = self.cache.state();
        if let Some(read) = state.reads.get_mut(&self.key) {
            read.by -= 1;
            if read.by == 0 {
                state.reads.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests;
