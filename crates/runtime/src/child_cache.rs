//! Cache of watched children that are not stored whole: whether each matches its desired state, and a summary for the
//! owner's status.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, btree_map};
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::Api;
use kube::core::ObjectMeta;
use qm_core::names::MetadataNames;
use qm_core::shared;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use crate::objects::{in_namespace, keys_of};
use crate::ownership::owner_of;
use crate::{ObjectKey, version, write};

/// Maximum number of deleted children that the cache remembers until any replica creates them again. Beyond that, the
/// cache forgets all of them. Children whose owners were deleted first are never created again.
const MAX_EXTERNAL_DELETIONS: usize = 1_000;

/// Cache of the children of one kind.
pub struct ChildCache<S> {
    state: Mutex<CacheState<S>>,
    trust: Duration,
}

struct CacheState<S> {
    /// Boxed: many slots of a large tree are empty.
    known: BTreeMap<ObjectKey, Box<CacheEntry<S>>>,
    /// The keys of `known` by the UID of the owner.
    by_owner_uid: BTreeSet<(Arc<str>, ObjectKey)>,
    /// The UIDs of the owners of each key, with the number of children that name both. An owner that was created again
    /// has several.
    owner_uids: BTreeMap<(ObjectKey, Arc<str>), usize>,
    /// Names for which a read found no owned child.
    absent: HashSet<ObjectKey>,
    /// Children that another client deleted, until they are created again.
    external_deletions: HashSet<ObjectKey>,
    /// UIDs of children that the operator deletes.
    deleting: HashMap<ObjectKey, String>,
    /// Children with requests in flight.
    requests: HashMap<ObjectKey, RequestsInFlight>,
    /// Number of children that searches visited.
    #[cfg(test)]
    visits: std::cell::Cell<usize>,
}

struct CacheEntry<S> {
    known: KnownChild<S>,
    confirmed: Option<Confirmed>,
    /// Time from which [`ChildCache::trusted`] requires a read. The first call of that function sets the time;
    /// [`ChildCache::delete`] sets it to now.
    read_due: Option<Instant>,
}

/// Requests for one child in flight, and what the watch showed meanwhile.
#[derive(Default)]
struct RequestsInFlight {
    /// Number of requests in flight.
    count: usize,
    /// UIDs of objects that the watch showed as deleted, or without the ownership label, meanwhile.
    deleted: Vec<String>,
    /// True if a watch showed the child meanwhile.
    shown: bool,
    /// True if a list ended meanwhile without the child.
    missed: bool,
}

/// State of a child at one resourceVersion, without the object itself.
#[derive(Clone, Debug)]
pub struct KnownChild<S> {
    /// UID of the child.
    pub uid: String,
    /// resourceVersion of the child, as a number.
    pub version: u64,
    /// Owner that the child names, or the last that it named; changes of the child wake this owner.
    pub owner: Option<ObjectKey>,
    /// The owner's UID; empty if the child lacks it.
    pub owner_uid: Arc<str>,
    /// Digest of the relevant content; a change triggers a check.
    pub fingerprint: u64,
    /// True if the child is being deleted.
    pub terminating: bool,
    /// Summary for the owner's status.
    pub summary: S,
}

impl<S> KnownChild<S> {
    /// Creates the state of a child with this metadata.
    pub fn of(metadata: &ObjectMeta, names: &MetadataNames, fingerprint: u64, summary: S) -> Self {
        let (owner, uid) = owner_of(metadata, names).unzip();
        // Without the annotation, which names the owner, the label still proves the ownership.
        let label = || metadata.labels.as_ref()?.get(names.owner_uid);
        let uid = uid.filter(|uid| !uid.is_empty());
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            version: version(metadata.resource_version.as_deref()),
            owner,
            owner_uid: shared::text(
                uid.or_else(|| label().map(String::as_str))
                    .unwrap_or_default(),
            ),
            fingerprint,
            terminating: metadata.deletion_timestamp.is_some(),
            summary,
        }
    }

    /// Returns the metadata that pins a write to this version of the child.
    pub(crate) fn pinned(&self, key: &ObjectKey) -> ObjectMeta {
        ObjectMeta {
            name: Some(key.name.to_string()),
            uid: Some(self.uid.clone()),
            resource_version: Some(self.version.to_string()),
            ..ObjectMeta::default()
        }
    }
}

/// Confirmed match of a child with its desired state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfirmedMatch {
    /// Digest of the desired state.
    pub desired: String,
    /// Digest of the child's values at the fields that the desired state sets.
    pub values: u64,
    /// True if a list that another client may renumber had items besides the desired ones.
    pub has_foreign_items: bool,
}

struct Confirmed {
    matched: ConfirmedMatch,
    /// [`KnownChild::fingerprint`] of the confirmed state.
    fingerprint: u64,
    at: Instant,
}

impl<S: Clone + PartialEq> ChildCache<S> {
    /// Creates an empty cache. A confirmed match counts for the time `trust`.
    pub fn new(trust: Duration) -> Self {
        let state = Mutex::new(CacheState {
            known: BTreeMap::new(),
            by_owner_uid: BTreeSet::new(),
            owner_uids: BTreeMap::new(),
            absent: HashSet::new(),
            external_deletions: HashSet::new(),
            deleting: HashMap::new(),
            requests: HashMap::new(),
            #[cfg(test)]
            visits: std::cell::Cell::default(),
        });
        Self { state, trust }
    }

    fn state(&self) -> MutexGuard<'_, CacheState<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether the child is known to match the desired state of this digest.
    pub fn is_up_to_date(&self, key: &ObjectKey, digest: &str) -> bool {
        let state = self.state();
        let Some(CacheEntry {
            known,
            confirmed: Some(confirmed),
            ..
        }) = state.known.get(key).map(AsRef::as_ref)
        else {
            return false;
        };
        !known.terminating
            && confirmed.matched.desired == digest
            && confirmed.fingerprint == known.fingerprint
            && confirmed.at.elapsed() < self.trust
    }

    /// Returns the cached state of a child.
    pub fn known(&self, key: &ObjectKey) -> Option<KnownChild<S>> {
        let state = self.state();
        state.known.get(key).map(|entry| entry.known.clone())
    }

    /// Returns the cached state of a child; `None` if the child must be read: after `trust` since the first call,
    /// because a watch may miss events, and from a deletion until the watch shows its result.
    pub fn trusted(&self, key: &ObjectKey) -> Option<KnownChild<S>> {
        let mut state = self.state();
        let entry = state.known.get_mut(key)?;
        let now = Instant::now();
        let read_due = *entry.read_due.get_or_insert(now + self.trust);
        (now < read_due).then(|| entry.known.clone())
    }

    /// Returns the last confirmed match of the child of that UID, even if the child has changed since.
    pub fn matched(&self, key: &ObjectKey, uid: &str) -> Option<ConfirmedMatch> {
        let state = self.state();
        let entry = state.known.get(key).filter(|it| it.known.uid == uid)?;
        Some(entry.confirmed.as_ref()?.matched.clone())
    }

    /// Calls `visit` for each child that names the owner `owner`, or an owner with this UID. Other children cost nothing.
    pub(crate) fn each_of(
        &self,
        owner: &ObjectKey,
        uid: &str,
        mut visit: impl FnMut(&ObjectKey, &KnownChild<S>),
    ) {
        let state = self.state();
        let uid = shared::text(uid);
        for (key, child) in state.of_owner_uid(Arc::clone(&uid)) {
            visit(key, child);
        }
        let uids = state.owner_uids.range((owner.clone(), "".into())..);
        let uids = uids.map(|(named, _)| named);
        for (_, other) in uids.take_while(|(named, _)| named == owner) {
            if *other != uid {
                let children = state.of_owner_uid(Arc::clone(other));
                for (key, child) in
                    children.filter(|(_, child)| child.owner.as_ref() == Some(owner))
                {
                    visit(key, child);
                }
            }
        }
    }

    /// Returns whether a read has shown that no child of this name is owned, with or without the ownership label.
    pub fn is_absent(&self, key: &ObjectKey) -> bool {
        let state = self.state();
        !state.known.contains_key(key) && state.absent.contains(key)
    }

    /// Records that a read found no owned child of this name: [`ChildCache::is_absent`]. If the watch showed an owned
    /// child during the read, the watch wins, because no later event shows that child again.
    pub(crate) fn record_absent(&self, key: &ObjectKey) {
        let mut state = self.state();
        if state.requests.get(key).is_some_and(|pending| pending.shown) {
            return;
        }
        state.remove(key);
        state.absent.insert(key.clone());
    }

    /// Forgets what reads and deletions showed about a child that no owner needs any more. The cached state stays until
    /// the watch shows the deletion.
    pub fn forget(&self, key: &ObjectKey) {
        let mut state = self.state();
        state.absent.remove(key);
        state.external_deletions.remove(key);
        state.deleting.remove(key);
    }

    /// Deletes the child at the version of `child`, so that the deletion does not count as
    /// [external](ChildCache::take_external_deletion). A missing child is no error.
    ///
    /// # Errors
    /// The apiserver's error, such as 409 when the child has changed since or was replaced.
    pub async fn delete<K>(
        &self,
        api: &Api<K>,
        key: &ObjectKey,
        child: &KnownChild<S>,
    ) -> kube::Result<()>
    where
        K: Clone + Debug + DeserializeOwned,
    {
        {
            let mut state = self.state();
            // The watch may show the deletion before the response arrives.
            state.deleting.insert(key.clone(), child.uid.clone());
            if let Some(entry) = state.known.get_mut(key) {
                entry.read_due = Some(Instant::now());
                // If the owner needs the child again before the watch shows the deletion, only a read shows the truth.
                entry.confirmed = None;
            }
        }
        let answer = write::remove(api, &child.pinned(key)).await;
        if answer.as_ref().is_err_and(write::is_without_effect) {
            self.state().take_deleting(key, &child.uid);
        }
        answer
    }

    /// Records that a read did not find a child. A known child then counts as deleted before the watch shows the
    /// deletion. If the watch showed the child during the read, the watch wins, because no later event shows it again.
    pub(crate) fn record_missing(&self, key: &ObjectKey) {
        let mut state = self.state();
        if state.requests.get(key).is_some_and(|pending| pending.shown) {
            return;
        }
        if let Some(entry) = state.remove(key) {
            state.record_deletion(key, &entry.known.uid);
        }
    }

    /// Returns whether another client deleted the child, and forgets that.
    pub(crate) fn take_external_deletion(&self, key: &ObjectKey) -> bool {
        self.state().external_deletions.remove(key)
    }

    /// Marks requests for the child, reads or writes, as in flight until the guard is dropped.
    pub(crate) fn begin_request(&self, key: &ObjectKey) -> RequestGuard<'_, S> {
        self.state().requests.entry(key.clone()).or_default().count += 1;
        RequestGuard {
            cache: self,
            key: key.clone(),
        }
    }

    /// Records a child that was written or read, and its match with the desired state, unless newer state is known.
    /// Returns `false` if the owner must check the child again, because the watch showed during the request what no
    /// event will repeat: a deletion, a list without the child (which is then not kept), or a later change.
    pub fn record(
        &self,
        key: &ObjectKey,
        known: KnownChild<S>,
        matched: Option<ConfirmedMatch>,
    ) -> bool {
        let mut state = self.state();
        if state
            .requests
            .get(key)
            .is_some_and(|pending| pending.missed || pending.deleted.contains(&known.uid))
        {
            return false;
        }
        state.absent.remove(key);
        state.external_deletions.remove(key);
        state.deleting.remove(key);
        let fingerprint = known.fingerprint;
        let confirmed = matched.map(|matched| Confirmed {
            matched,
            fingerprint,
            at: Instant::now(),
        });
        match state.known.get_mut(key) {
            // The watch was faster; the relevant content may be the same.
            Some(newer) if newer.known.version > known.version => {
                if newer.known.uid == known.uid {
                    newer.confirmed = confirmed;
                    // A list may have shown a change made during the request, which no later event repeats.
                    return newer.known.fingerprint == fingerprint;
                }
            }
            _ => state.insert(key.clone(), known, confirmed),
        }
        true
    }

    /// Records a state that the watch showed. Returns the owners that the change concerns: the former owner as well, if
    /// the child names another one now.
    pub fn on_applied(&self, key: ObjectKey, mut known: KnownChild<S>) -> Vec<ObjectKey> {
        let mut state = self.state();
        match state.requests.get_mut(&key) {
            // The child may be one that this replica is creating, which is to report the deletion.
            Some(pending) => pending.shown = true,
            None => {
                state.external_deletions.remove(&key);
            }
        }
        state.absent.remove(&key);
        // The event is older than the child's replacement.
        if state
            .known
            .get(&key)
            .is_some_and(|now| now.known.uid != known.uid && now.known.version > known.version)
        {
            return Vec::new();
        }
        let (mut confirmed, mut news, mut former) = (None, true, None);
        if let Some(entry) = state
            .known
            .get_mut(&key)
            .filter(|entry| entry.known.uid == known.uid)
        {
            let before = &entry.known;
            if known.version <= before.version {
                return Vec::new();
            }
            let same =
                before.fingerprint == known.fingerprint && before.terminating == known.terminating;
            // The former owner restores the annotation that names it, if another client has removed or changed the
            // annotation.
            known.owner = known.owner.or_else(|| before.owner.clone());
            former.clone_from(&before.owner);
            former = former.filter(|former| known.owner.as_ref() != Some(former));
            news = !same || former.is_some() || before.summary != known.summary;
            confirmed = entry.confirmed.take();
        }
        let owners = former.into_iter().chain(known.owner.clone());
        let owners = owners.filter(|_| news).collect();
        state.insert(key, known, confirmed);
        owners
    }

    /// Records a deletion that the watch showed. Returns the owner of the child, if the child was known.
    pub fn on_deleted(&self, key: &ObjectKey, uid: &str) -> Option<ObjectKey> {
        let mut state = self.state();
        if let Some(pending) = state.requests.get_mut(key) {
            pending.deleted.push(uid.to_owned());
        }
        if state
            .known
            .get(key)
            .is_none_or(|entry| entry.known.uid != uid)
        {
            state.take_deleting(key, uid);
            return None;
        }
        state.record_deletion(key, uid);
        state.remove(key)?.known.owner
    }

    /// Records that the watch showed a version of an object that proves no owner. Returns the owner of the child, if
    /// that version is newer than the known one: a late event may show the version before an adoption.
    pub fn on_disowned(&self, key: &ObjectKey, uid: &str, version: u64) -> Option<ObjectKey> {
        let is_known = {
            let mut state = self.state();
            if let Some(pending) = state.requests.get_mut(key) {
                pending.deleted.push(uid.to_owned());
            }
            let known = state.known.get(key).map(|entry| &entry.known);
            known.is_some_and(|known| known.uid == uid && known.version < version)
        };
        is_known.then(|| self.on_deleted(key, uid)).flatten()
    }

    /// Records that a list did not show the child. Returns the owner of the child, if the child was known.
    pub fn on_missing(&self, key: &ObjectKey) -> Option<ObjectKey> {
        let mut state = self.state();
        if let Some(pending) = state.requests.get_mut(key) {
            pending.missed = true;
        }
        let CacheEntry { known, .. } = state.remove(key)?;
        state.record_deletion(key, &known.uid);
        known.owner
    }

    /// Returns the children in `namespace` (`None`: in any) that are known, or whose requests are in flight.
    pub fn keys(&self, namespace: Option<&str>) -> Vec<ObjectKey> {
        let state = self.state();
        let unknown = |key: &&ObjectKey| key.is_in(namespace) && !state.known.contains_key(*key);
        let known = in_namespace(&state.known, namespace).map(|(key, _)| key);
        let keys = state.requests.keys().filter(unknown).chain(known);
        keys.cloned().collect()
    }
}

impl<S> CacheState<S> {
    fn insert(&mut self, key: ObjectKey, known: KnownChild<S>, confirmed: Option<Confirmed>) {
        self.remove(&key);
        let uid = &known.owner_uid;
        self.by_owner_uid.insert((Arc::clone(uid), key.clone()));
        if let Some(owner) = &known.owner {
            let children = self.owner_uids.entry((owner.clone(), Arc::clone(uid)));
            *children.or_default() += 1;
        }
        let entry = CacheEntry {
            known,
            confirmed,
            read_due: None,
        };
        self.known.insert(key, Box::new(entry));
    }

    fn remove(&mut self, key: &ObjectKey) -> Option<CacheEntry<S>> {
        let entry = self.known.remove(key)?;
        let uid = &entry.known.owner_uid;
        self.by_owner_uid.remove(&(Arc::clone(uid), key.clone()));
        if let Some(owner) = &entry.known.owner
            && let btree_map::Entry::Occupied(mut children) =
                self.owner_uids.entry((owner.clone(), Arc::clone(uid)))
        {
            *children.get_mut() -= 1;
            if *children.get() == 0 {
                children.remove();
            }
        }
        Some(*entry)
    }

    fn of_owner_uid(&self, uid: Arc<str>) -> impl Iterator<Item = (&ObjectKey, &KnownChild<S>)> {
        keys_of(&self.by_owner_uid, uid).filter_map(move |key| {
            #[cfg(test)]
            self.visits.set(self.visits.get() + 1);
            Some((key, &self.known.get(key)?.known))
        })
    }

    /// Records the deletion of the known child of this UID, by the operator or another client.
    fn record_deletion(&mut self, key: &ObjectKey, uid: &str) {
        if self.take_deleting(key, uid) {
            return;
        }
        // Only an Event and the count of corrections depend on this set, so it may lose entries.
        if self.external_deletions.len() >= MAX_EXTERNAL_DELETIONS {
            self.external_deletions.clear();
        }
        self.external_deletions.insert(key.clone());
    }

    /// Returns whether the operator is deleting the child of this UID, and forgets that.
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

/// Guard of requests in flight: [`ChildCache::begin_request`].
pub(crate) struct RequestGuard<'a, S: Clone + PartialEq> {
    cache: &'a ChildCache<S>,
    key: ObjectKey,
}

impl<S: Clone + PartialEq> Drop for RequestGuard<'_, S> {
    fn drop(&mut self) {
        let mut state = self.cache.state();
        if let Some(pending) = state.requests.get_mut(&self.key) {
            pending.count -= 1;
            if pending.count == 0 {
                state.requests.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests;
