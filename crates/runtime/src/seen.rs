//! What is kept of objects that are watched and not stored: whether each is as it is wanted, and what is reported of it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Debug;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::{Api, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::{Key, apply};

/// How many deleted children are remembered until they are created again.
const MAX_LOST: usize = 10_000;

/// What is kept of the children of one kind.
pub struct Seen<S> {
    state: Mutex<State<S>>,
    listed: watch::Sender<bool>,
    trust: Duration,
}

struct State<S> {
    known: HashMap<Key, (Known<S>, Option<Confirmed>)>,
    /// Looked for, and not ours.
    absent: HashSet<Key>,
    /// Children that another client deleted, until they are created again.
    lost: HashSet<Key>,
    /// UIDs of children that the operator deletes.
    removing: HashMap<Key, String>,
    /// Not listed yet.
    unlisted: BTreeSet<Option<String>>,
    /// What the lists that are under way have shown.
    listing: HashMap<Option<String>, HashSet<Key>>,
    asking: HashMap<Key, Asked>,
}

/// What is asked for.
#[derive(Default)]
struct Asked {
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
pub struct Known<S> {
    /// Its UID.
    pub uid: String,
    /// Its resourceVersion.
    pub version: u64,
    /// Whom it is news to.
    pub owner: Option<Key>,
    /// The owner's UID; empty if the child lacks it.
    pub owner_uid: String,
    /// Digest of the relevant content; a change triggers a check.
    pub print: u64,
    /// It is being deleted.
    pub going: bool,
    /// What is reported of it.
    pub report: S,
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
    /// The child's [`Known::print`] at that time.
    print: u64,
    at: Instant,
}

/// What is known of a child without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// There is none that has our mark.
    Unknown,
    /// It is being deleted.
    Going,
    /// It is as wanted.
    Fine,
    /// It is there.
    Other,
}

impl<S: Clone + PartialEq> Seen<S> {
    /// Nothing is known, and these places are to be listed. That a child was found to be as wanted is believed for as long
    /// as `trust`.
    pub fn new(unlisted: BTreeSet<Option<String>>, trust: Duration) -> Self {
        let (known, absent, listing, asking) = (
            HashMap::new(),
            HashSet::new(),
            HashMap::new(),
            HashMap::new(),
        );
        let (lost, removing) = (HashSet::new(), HashMap::new());
        let state = Mutex::new(State {
            known,
            absent,
            lost,
            removing,
            unlisted,
            listing,
            asking,
        });
        Self {
            state,
            listed: watch::channel(false).0,
            trust,
        }
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all has been listed, as far as that is let in.
    pub async fn ready(&self) {
        // The sender is ours.
        let _ = self.listed.subscribe().wait_for(|listed| *listed).await;
    }

    /// What is known of a child that is wanted as `digest` says.
    pub fn look(&self, key: &Key, digest: &str) -> Look {
        match self.state().known.get(key) {
            None => Look::Unknown,
            Some((known, _)) if known.going => Look::Going,
            Some((known, Some(confirmed)))
                if confirmed.matched.desired == digest
                    && confirmed.print == known.print
                    && confirmed.at.elapsed() < self.trust =>
            {
                Look::Fine
            }
            Some(_) => Look::Other,
        }
    }

    /// All that is known of a child.
    pub fn known(&self, key: &Key) -> Option<Known<S>> {
        self.state().known.get(key).map(|(known, _)| known.clone())
    }

    /// Returns the last confirmed match of the child of that UID, even if the child has changed since.
    pub fn matched(&self, key: &Key, uid: &str) -> Option<Match> {
        let state = self.state();
        let (known, confirmed) = state.known.get(key)?;
        confirmed
            .as_ref()
            .filter(|_| known.uid == uid)
            .map(|confirmed| confirmed.matched.clone())
    }

    /// Those of which this is known.
    pub fn those(&self, wanted: impl Fn(&Known<S>) -> bool) -> Vec<Key> {
        let state = self.state();
        state
            .known
            .iter()
            .filter(|(_, (known, _))| wanted(known))
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Whether it is known that no child of this name is ours, with our label or without it.
    pub fn is_absent(&self, key: &Key) -> bool {
        let state = self.state();
        !state.known.contains_key(key) && state.absent.contains(key)
    }

    /// It was looked for, and is not there or not ours; unless the watch has shown it while it was asked for, which is never
    /// said again: then that stands.
    pub fn absent(&self, key: &Key) {
        let mut state = self.state();
        if state.asking.get(key).is_some_and(|asked| asked.shown) {
            return;
        }
        state.known.remove(key);
        state.absent.insert(key.clone());
    }

    /// Nobody will ask for it again.
    pub fn forget(&self, key: &Key) {
        let mut state = self.state();
        state.absent.remove(key);
        state.lost.remove(key);
        state.removing.remove(key);
    }

    /// Deletes the child in the state in which it was read: its end is then no loss, see [`Seen::take_lost`]. A child that
    /// is gone is no error.
    ///
    /// # Errors
    /// The apiserver's answer: 409 when the child has changed since, or is another one.
    pub async fn delete<K>(
        &self,
        api: &Api<K>,
        key: &Key,
        live: &impl ResourceExt,
    ) -> kube::Result<()>
    where
        K: Clone + Debug + DeserializeOwned,
    {
        let uid = live.uid().unwrap_or_default();
        // The watch may show the end before the answer comes.
        self.state().removing.insert(key.clone(), uid.clone());
        let answer = apply::remove(api, live).await;
        if answer.as_ref().is_err_and(apply::is_without_effect) {
            self.state().take_removing(key, &uid);
        }
        answer
    }

    /// Records that a desired child does not exist, perhaps before a watch shows its deletion.
    pub fn missing(&self, key: &Key) {
        let mut state = self.state();
        if let Some(uid) = state.known.get(key).map(|(known, _)| known.uid.clone()) {
            state.lose(key, &uid);
        }
    }

    /// Returns whether another client deleted the child, and forgets that.
    pub fn take_lost(&self, key: &Key) -> bool {
        self.state().lost.remove(key)
    }

    /// The apiserver is asked for a child, or to make or change it, until this value goes.
    pub fn asking(&self, key: &Key) -> Asking<'_, S> {
        self.state().asking.entry(key.clone()).or_default().by += 1;
        Asking {
            seen: self,
            key: key.clone(),
        }
    }

    /// Records a child that was written or read and matches its desired state, unless newer state is known. Returns
    /// `false` if the owner has to look at the child again, because no event will repeat what was shown during the request:
    /// a deletion, a list without the child (it is then not kept), or a later change.
    pub fn wrote(&self, key: &Key, known: Known<S>, matched: Match) -> bool {
        let mut state = self.state();
        if state
            .asking
            .get(key)
            .is_some_and(|asked| asked.missed || asked.gone.contains(&known.uid))
        {
            return false;
        }
        state.absent.remove(key);
        state.lost.remove(key);
        state.removing.remove(key);
        let confirmed = Confirmed {
            matched,
            print: known.print,
            at: Instant::now(),
        };
        match state.known.get_mut(key) {
            // The watch was faster; the relevant content may be the same.
            Some((newer, before)) if newer.version > known.version => {
                if newer.uid == known.uid {
                    let same = newer.print == confirmed.print;
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
    pub fn shown(&self, key: Key, mut known: Known<S>) -> Option<Key> {
        let mut state = self.state();
        for shard in [None, Some(key.namespace.to_string())] {
            if let Some(shown) = state.listing.get_mut(&shard) {
                shown.insert(key.clone());
            }
        }
        if let Some(asked) = state.asking.get_mut(&key) {
            asked.shown = true;
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
            let same = before.print == known.print && before.going == known.going;
            news = !same || before.report != known.report;
            confirmed = found.take();
            // Who knew it is told of what becomes of it, whatever it now says of its owner.
            known.owner = before.owner.clone().or(known.owner);
        }
        let owner = known.owner.clone().filter(|_| news);
        state.known.insert(key, (known, confirmed));
        owner
    }

    /// A watch shows that it is gone; whose news that is.
    pub fn gone(&self, key: &Key, uid: &str) -> Option<Key> {
        let mut state = self.state();
        if let Some(asked) = state.asking.get_mut(key) {
            asked.gone.push(uid.to_owned());
        }
        if state
            .known
            .get(key)
            .is_none_or(|(known, _)| known.uid != uid)
        {
            state.take_removing(key, uid);
            return None;
        }
        state.lose(key, uid);
        state.known.remove(key)?.0.owner
    }

    /// A place begins to be listed.
    pub fn listing(&self, shard: Option<&str>) {
        self.state()
            .listing
            .insert(shard.map(str::to_owned), HashSet::new());
    }

    /// A place has been listed: what was not shown is gone, which is news to these.
    pub fn listed(&self, shard: Option<&str>) -> Vec<Key> {
        let mut state = self.state();
        let shown = state
            .listing
            .remove(&shard.map(str::to_owned))
            .unwrap_or_default();
        let here = |key: &Key| shard.is_none_or(|namespace| *key.namespace == *namespace);
        let missing: Vec<_> = state
            .known
            .keys()
            .filter(|key| here(key) && !shown.contains(*key))
            .cloned()
            .collect();
        for (_, asked) in state
            .asking
            .iter_mut()
            .filter(|(key, _)| here(key) && !shown.contains(*key))
        {
            asked.missed = true;
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
        self.settled(shard);
        owners
    }

    /// The list of a place is whole, or refused.
    pub fn settled(&self, shard: Option<&str>) {
        let mut state = self.state();
        state.unlisted.remove(&shard.map(str::to_owned));
        if state.unlisted.is_empty() {
            self.listed
                .send_if_modified(|listed| !std::mem::replace(listed, true));
        }
    }
}

impl<S> State<S> {
    /// The known child of this UID is gone.
    fn lose(&mut self, key: &Key, uid: &str) {
        if self.take_removing(key, uid) {
            return;
        }
        // Only a report depends on it.
        if self.lost.len() >= MAX_LOST {
            self.lost.clear();
        }
        self.lost.insert(key.clone());
    }

    /// Returns whether the operator deletes the child of this UID, and forgets that.
    fn take_removing(&mut self, key: &Key, uid: &str) -> bool {
        let is_removing = self
            .removing
            .get(key)
            .is_some_and(|removing| removing == uid);
        if is_removing {
            self.removing.remove(key);
        }
        is_removing
    }
}

/// A child is asked for: [`Seen::asking`].
pub struct Asking<'a, S: Clone + PartialEq> {
    seen: &'a Seen<S>,
    key: Key,
}

impl<S: Clone + PartialEq> Drop for Asking<'_, S> {
    fn drop(&mut self) {
        let mut state = self.seen.state();
        if let Some(asked) = state.asking.get_mut(&self.key) {
            asked.by -= 1;
            if asked.by == 0 {
                state.asking.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests;
