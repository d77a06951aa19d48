//! State of tracked fields as the watches show it: the newest state of each, and each change until it is recorded.
//!
//! A standby keeps neither. Its watches run so that a new leader has connections, and knows the targets' resources and
//! the forbidden ones. Earlier events may be stale: a new leader relists every kind and compares the lists with the
//! history.
//!
//! Large objects are decoded apart from the async workers, one at a time. The changes of one object stay in order.

use std::collections::{HashMap, HashSet};
use std::io;
use std::mem::discriminant;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kube::ResourceExt;
use kube::runtime::watcher;
use qm_api::TrackedField;
use qm_notify::history::{NewestState, Observation, ObservationSeries};
use qm_runtime::ObjectKey;
use qm_runtime::background::{Background, Permit};
use qm_runtime::nesting::{OBJECT_LEVELS, is_deeper};
use qm_runtime::raw_object::{RawObject, TooLarge};
use qm_runtime::trigger::Trigger;
use qm_runtime::watch::error_status;
use qm_runtime::watch_hub::{Observer, ResourceName};
use serde_json::Value;
use tokio::sync::Notify;
use tracing::warn;

use super::field::Field;
use super::follower::{Certainty, FollowIdentity, Follower, ReadTicket, Unreadable};
use super::lookup::{Lookup, Place, look_up};
use super::shown::{Shown, ShownQueue};
use super::target::TargetKey;

/// Largest text of an object that is decoded on a thread that has other work, in bytes.
pub(super) const AT_ONCE: usize = 64 * 1024;

/// Follows the targets of all `TrackedField`s.
pub struct Tracker {
    state: Mutex<TrackerState>,
    wake: Trigger<TrackedField>,
    /// Decodes large objects and does expensive lookups.
    pub(super) background: Background,
    queued: Notify,
}

#[derive(Default)]
struct TrackerState {
    /// The first generation of lists that counts, once this replica leads.
    leads_since: Option<u64>,
    followers: HashMap<ObjectKey, Follower>,
    targets: HashMap<TargetKey, Vec<ObjectKey>>,
    watches: HashMap<(ResourceName, Option<String>), Watch>,
    /// Events of large objects, and later ones of the same objects.
    queue: ShownQueue,
    /// How many turns all watches together have taken.
    turns: u64,
}

/// How far a watch is.
#[derive(Clone, Debug, Default)]
struct Watch {
    /// Generation of the watch's lists.
    generation: u64,
    /// The first list of this generation has begun: an object followed from now on may have been shown already.
    begun: bool,
    /// The number of its last turn: it began to list anew, or was told that there is no such resource. What it was before
    /// may then be something else.
    turn: u64,
    /// What it was last refused with.
    trouble: Option<WatchProblem>,
}

/// Why a resource cannot be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchProblem {
    /// The operator may not list or watch it.
    Forbidden(String),
    /// The apiserver does not serve it.
    NotServed,
    /// The apiserver answers with another error, which stays.
    Failing(String),
}

/// What a pass is to record. What it does not say to be [`recorded`](PendingObservations::recorded) goes back, however the pass ends.
pub struct PendingObservations<'a> {
    tracker: &'a Tracker,
    key: &'a ObjectKey,
    identity: &'a FollowIdentity,
    /// Oldest first.
    pub observations: Vec<Observation>,
    /// Newest known state; kept after it is recorded.
    pub newest: Option<NewestState>,
    /// What was seen before of what was followed then.
    pub former: Option<ObservationSeries>,
    /// How many more there were, before neighbours became one because there was no room for them.
    pub merged: usize,
}

impl PendingObservations<'_> {
    /// All of it stands in the history.
    pub fn recorded(mut self) {
        // Not cleared: its room would go back into the buffer, and stay there for as long as nothing changes.
        (self.observations, self.former, self.merged) = (Vec::new(), None, 0);
    }
}

impl Drop for PendingObservations<'_> {
    fn drop(&mut self) {
        let mut state = self.tracker.state();
        // The spec may be another one by now.
        let follower = state
            .followers
            .get_mut(self.key)
            .filter(|follower| follower.identity.uid == self.identity.uid);
        let Some(follower) = follower else { return };
        follower.merged += self.merged;
        let observations = std::mem::take(&mut self.observations);
        follower.take_back(ObservationSeries {
            subject: self.identity.subject.clone(),
            observations,
        });
        if let Some(former) = self.former.take() {
            follower.take_back(former);
        }
    }
}

impl Tracker {
    /// Creates a tracker. `wake` wakes the reconcile of a `TrackedField` with changes to record; `leads`: this replica
    /// leads from the start.
    pub fn new(wake: Trigger<TrackedField>, leads: bool) -> Self {
        let tracked = TrackerState {
            leads_since: leads.then_some(0),
            ..TrackerState::default()
        };
        Self {
            state: Mutex::new(tracked),
            wake,
            background: Background::default(),
            queued: Notify::new(),
        }
    }

    /// Starts to lead: lists of this generation and later ones count.
    pub fn lead(&self, generation: u64) {
        let mut state = self.state();
        state.leads_since = Some(generation);
        state.followers.values_mut().for_each(Follower::await_list);
    }

    /// Returns whether this replica leads.
    pub fn leads(&self) -> bool {
        self.state().leads_since.is_some()
    }

    fn state(&self) -> MutexGuard<'_, TrackerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows `field` of `target` for `key`, in place of what was followed for it before; whether there was such.
    pub fn follow(
        &self,
        key: &ObjectKey,
        identity: &FollowIdentity,
        target: &TargetKey,
        field: &Field,
        shard: Option<String>,
    ) -> bool {
        let mut state = self.state();
        let before = state.followers.get(key);
        if before.is_some_and(|it| {
            it.identity == *identity && it.target == *target && it.field == *field
        }) {
            return false;
        }
        let replaced = state.forget(key);
        let begun = state
            .watches
            .get(&(target.resource.clone(), shard))
            .is_some_and(|watch| watch.begun);
        let begun = begun && state.counts(target);
        let certainty = if begun {
            Certainty::NeedsRead
        } else {
            Certainty::AwaitingList(Instant::now())
        };
        let mut follower =
            Follower::new(identity.clone(), target.clone(), field.clone(), certainty);
        let was_followed = replaced.is_some();
        // What was seen is still to be recorded: of what the spec tracked before, or of a resource that is in another scope now.
        if let Some(mut before) = replaced.filter(|before| before.identity.uid == identity.uid) {
            let (observations, former) = before.unrecorded();
            follower.merged = before.merged;
            follower.take_back(ObservationSeries {
                subject: before.identity.subject,
                observations,
            });
            if let Some(former) = former {
                follower.take_back(former);
            }
        }
        state.followers.insert(key.clone(), follower);
        state
            .targets
            .entry(target.clone())
            .or_default()
            .push(key.clone());
        was_followed
    }

    /// Follows nothing for `key` any more; whether anything was.
    pub fn forget(&self, key: &ObjectKey) -> bool {
        self.state().forget(key).is_some()
    }

    /// Whether anything of `resource` is followed.
    pub fn follows(&self, resource: &ResourceName) -> bool {
        self.state()
            .targets
            .keys()
            .any(|target| target.resource == *resource)
    }

    /// What was known of the watches of resources of which nothing is followed any more.
    pub fn forget_watches(&self) {
        let mut state = self.state();
        let TrackerState {
            targets, watches, ..
        } = &mut *state;
        watches
            .retain(|(resource, _), _| targets.keys().any(|target| target.resource == *resource));
    }

    /// The turn in which the watch of `resource` is: another one after it has begun anew, or was told that the apiserver
    /// does not serve it. 0 if there is none.
    pub fn turn(&self, resource: &ResourceName) -> u64 {
        let state = self.state();
        let of_resource = state.watches.iter().filter(|((of, _), _)| of == resource);
        of_resource
            .map(|(_, watch)| watch.turn)
            .max()
            .unwrap_or_default()
    }

    /// Asks for the target's present state to be read, if it has to be: the watch may have shown it already, or has not
    /// said anything certain for longer than `trusted` (a watch may miss something, deletions above all).
    pub fn unread(&self, key: &ObjectKey, trusted: Duration) -> Option<ReadTicket> {
        let state = self.state();
        let follower = state.leads_since.and_then(|_| state.followers.get(key))?;
        follower.has_to_be_read(trusted).then(|| follower.asks())
    }

    /// Takes the present state of `target` from a read, `None` if the object does not exist.
    ///
    /// The spec may change during a read: a result for an earlier target is dropped, and the new target needs its own
    /// read. Lookups that are not cheap are put off until [`Tracker::read_apart`].
    pub fn read(
        &self,
        key: &ObjectKey,
        identity: &FollowIdentity,
        target: &TargetKey,
        asked: ReadTicket,
        object: Option<RawObject>,
    ) {
        let Some(object) = object else {
            if let Some(follower) = self
                .state()
                .follower(key, identity)
                .filter(|follower| follower.target == *target)
            {
                follower.read(asked, Instant::now(), None);
            }
            return;
        };
        let lookups = self.lookups_of_read((key, identity), target, &object);
        let looked_up = lookups.run(&object, Place::AtOnce);
        self.take_read((key, identity), target, asked, &object, &looked_up);
    }

    /// Takes the object that a read found as [`Tracker::read`] does, and puts off no lookup.
    ///
    /// # Errors
    /// As [`Permit::run`].
    pub async fn read_apart(
        &self,
        (key, identity): (&ObjectKey, &FollowIdentity),
        target: &TargetKey,
        asked: ReadTicket,
        object: RawObject,
        permit: Permit,
    ) -> io::Result<()> {
        let lookups = self.lookups_of_read((key, identity), target, &object);
        let job = move || {
            let looked_up = lookups.run(&object, Place::Apart);
            (object, looked_up)
        };
        let (object, looked_up) = permit.run(job).await?;
        self.take_read((key, identity), target, asked, &object, &looked_up);
        Ok(())
    }

    /// Returns the lookups in an object that a read for `key` found: for `key`, and for others that wait for it.
    fn lookups_of_read(
        &self,
        (key, identity): (&ObjectKey, &FollowIdentity),
        target: &TargetKey,
        object: &RawObject,
    ) -> Lookups {
        let mut lookups = Lookups::default();
        self.state().each_of(target, |of, follower| {
            let is_asked = of == key && follower.identity == *identity;
            lookups.add(
                &follower.field,
                is_asked || follower.is_satisfied_by(object),
            );
        });
        lookups
    }

    fn take_read(
        &self,
        (key, identity): (&ObjectKey, &FollowIdentity),
        target: &TargetKey,
        asked: ReadTicket,
        object: &RawObject,
        looked_up: &LookedUp,
    ) {
        self.state().each_of(target, |of, follower| {
            let asked = if of == key && follower.identity == *identity {
                asked
            } else if follower.is_satisfied_by(object) {
                self.wake.wake(of);
                follower.asks()
            } else {
                return;
            };
            let now = Instant::now();
            match looked_up {
                Err(why) => follower.read_unreadable(asked, now, object, why),
                Ok(lookups) => match lookups.get(&follower.field) {
                    Some(Lookup::Found(value)) => {
                        follower.read(asked, now, Some((object, value.clone())));
                    }
                    Some(Lookup::PutOff) => follower.put_off_read(object),
                    Some(Lookup::Refused(estimate)) => {
                        follower.read_unreadable(
                            asked,
                            now,
                            object,
                            &Unreadable::TooExpensive(*estimate),
                        );
                    }
                    // Followed, or shown a later version, during the lookups: it has to be read.
                    None => {}
                },
            }
        });
    }

    /// Returns whether a lookup in the target of `key` is too expensive for a thread that has other work.
    pub fn is_put_off(&self, key: &ObjectKey) -> bool {
        let state = self.state();
        let of_target = state
            .followers
            .get(key)
            .and_then(|follower| state.targets.get(&follower.target));
        of_target.into_iter().flatten().any(|key| {
            state
                .followers
                .get(key)
                .is_some_and(|follower| follower.put_off)
        })
    }

    /// Returns why the target of `key` cannot be read, if it cannot.
    pub fn unreadable(&self, key: &ObjectKey) -> Option<Unreadable> {
        self.state().followers.get(key)?.unreadable.clone()
    }

    /// Returns whether a metadata watch has shown a version of the target of `key` that no read has returned yet.
    pub fn is_outdated(&self, key: &ObjectKey) -> bool {
        self.state()
            .followers
            .get(key)
            .is_some_and(Follower::is_outdated)
    }

    /// Shows every follower of an object that the object has changed, and wakes those that need a read.
    fn show_metadata(&self, resource: &ResourceName, metadata: &RawObject) {
        let target = TargetKey {
            resource: resource.clone(),
            namespace: metadata.namespace().unwrap_or_default(),
            name: metadata.name_any(),
        };
        let mut state = self.state();
        if !state.counts(&target) {
            return;
        }
        let TrackerState {
            followers, targets, ..
        } = &mut *state;
        for key in targets.get(&target).into_iter().flatten() {
            if followers
                .get_mut(key)
                .is_some_and(|follower| follower.show_metadata(metadata))
            {
                self.wake.wake(key);
            }
        }
    }

    /// Records that the last entry of the history of `key`, with version `outranks`, contradicts the watch.
    pub fn contradict(&self, key: &ObjectKey, identity: &FollowIdentity, outranks: u64) {
        if let Some(follower) = self.state().follower(key, identity) {
            follower.contradict(outranks);
        }
    }

    /// What is to be recorded for `key`, if it is `identity` that is followed.
    pub fn seen<'a>(
        &'a self,
        key: &'a ObjectKey,
        identity: &'a FollowIdentity,
    ) -> PendingObservations<'a> {
        let mut state = self.state();
        let mut seen = PendingObservations {
            tracker: self,
            key,
            identity,
            observations: Vec::new(),
            newest: None,
            former: None,
            merged: 0,
        };
        if let Some(follower) = state.follower(key, identity) {
            seen.newest = follower.newest();
            (seen.observations, seen.former) = follower.unrecorded();
            seen.merged = std::mem::take(&mut follower.merged);
        }
        seen
    }

    /// Whether the target of `key` exists, as far as is known.
    pub fn exists(&self, key: &ObjectKey) -> Option<bool> {
        let state = self.state();
        state
            .followers
            .get(key)?
            .newest
            .as_ref()
            .map(|newest| newest.value.is_some())
    }

    /// Why the watch of `resource` in `shard` does not work.
    pub fn watch_problem(
        &self,
        resource: &ResourceName,
        shard: Option<&str>,
    ) -> Option<WatchProblem> {
        self.state()
            .watches
            .get(&(resource.clone(), shard.map(str::to_owned)))?
            .trouble
            .clone()
    }

    /// Shows every follower of an object what has become of it, and wakes those for whom it is news. What is not cheap to
    /// look up is put off until a read. Large objects wait for [`Tracker::look_into_queue`], and so does what becomes of
    /// them meanwhile.
    fn show(&self, resource: &ResourceName, object: RawObject, exists: bool) {
        let target = TargetKey {
            resource: resource.clone(),
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
        };
        let mut state = self.state();
        // Objects are mostly nobody's target.
        if !state.counts(&target) || !state.targets.contains_key(&target) {
            return;
        }
        let shown = Shown {
            turn: state.turn(&target),
            target,
            object,
            exists,
        };
        let is_large = exists && shown.object.text_len() > AT_ONCE;
        if is_large || state.queue.holds(&shown.target) {
            match state.queue.push(Arc::new(shown)) {
                Ok(()) => self.queued.notify_one(),
                // Too much waits: of this object the newest state counts, as a read shows it.
                Err(shown) => {
                    let put_off = exists.then(|| state.lookups(&shown.target).put_off());
                    drop(state);
                    self.take_shown(&shown, put_off.as_ref());
                }
            }
            return;
        }
        let lookups = state.lookups(&shown.target);
        drop(state);
        // Decode and look up without the lock, because everything else waits for it.
        let looked_up = exists.then(|| lookups.run(&shown.object, Place::AtOnce));
        self.take_shown(&shown, looked_up.as_ref());
    }

    fn take_shown(&self, shown: &Shown, looked_up: Option<&LookedUp>) {
        let Shown {
            target,
            object,
            turn,
            ..
        } = shown;
        let mut state = self.state();
        if !state.counts(target) {
            return;
        }
        let is_current = state.turn(target) == *turn;
        state.each_of(target, |key, follower| {
            let listed = follower.listed;
            let news = match looked_up {
                None => follower.observe(object, None),
                Some(Err(why)) => follower.observe_unreadable(object, why),
                Some(Ok(lookups)) => match lookups.get(&follower.field) {
                    Some(Lookup::Found(value)) => {
                        follower.put_off = false;
                        follower.observe(object, Some(value.clone()))
                    }
                    Some(Lookup::PutOff) => follower.put_off(object),
                    Some(Lookup::Refused(estimate)) => {
                        follower.observe_unreadable(object, &Unreadable::TooExpensive(*estimate))
                    }
                    // Followed during the lookups: it has to be read.
                    None => return,
                },
            };
            if is_current {
                follower.confirm_listed();
            } else {
                // Shown before the watch began to list anew: only the list tells whether the object still exists.
                follower.listed = listed;
            }
            if news {
                self.wake.wake(key);
            }
        });
    }

    /// Looks into the objects of the queue for as long as the process runs.
    pub async fn look_into_queue(&self) {
        loop {
            while self.look_into_next().await {}
            self.queued.notified().await;
        }
    }

    /// Looks into the first object of the queue. Returns false if there is none.
    async fn look_into_next(&self) -> bool {
        let (shown, lookups) = {
            let state = self.state();
            let Some(shown) = state.queue.first() else {
                return false;
            };
            let lookups = state.lookups(&shown.target);
            (shown, lookups)
        };
        let looked_up = if shown.exists {
            Some(self.look_apart(&shown, lookups).await)
        } else {
            None
        };
        self.take_shown(&shown, looked_up.as_ref());
        self.state().queue.pop();
        true
    }

    async fn look_apart(&self, shown: &Arc<Shown>, lookups: Lookups) -> LookedUp {
        let put_off = lookups.clone();
        let job = {
            let shown = Arc::clone(shown);
            move || lookups.run(&shown.object, Place::Apart)
        };
        let looked_up = match self.background.acquire().await {
            Ok(permit) => permit.run(job).await,
            Err(error) => Err(error),
        };
        looked_up.unwrap_or_else(|error| {
            warn!(%error, "cannot look into a large object; will read it again");
            put_off.put_off()
        })
    }

    /// Wakes every follower of a resource in a shard.
    fn wake_all(&self, resource: &ResourceName, shard: Option<&str>) {
        let state = self.state();
        for (target, keys) in &state.targets {
            if target.resource == *resource && in_shard(target, shard) {
                for key in keys {
                    self.wake.wake(key);
                }
            }
        }
    }
}

fn in_shard(target: &TargetKey, shard: Option<&str>) -> bool {
    shard.is_none_or(|namespace| target.namespace == namespace)
}

impl TrackerState {
    /// Returns the watch that shows `target`.
    fn watch(&self, target: &TargetKey) -> Option<&Watch> {
        let place = |shard: Option<&str>| {
            self.watches
                .get(&(target.resource.clone(), shard.map(str::to_owned)))
        };
        place(None).or_else(|| place(Some(&target.namespace)))
    }

    /// Returns whether events of the watch that shows `target` count.
    fn counts(&self, target: &TargetKey) -> bool {
        let generation = self.watch(target).map_or(0, |watch| watch.generation);
        self.leads_since.is_some_and(|since| since <= generation)
    }

    /// Returns the turn of the watch that shows `target`.
    fn turn(&self, target: &TargetKey) -> u64 {
        self.watch(target).map_or(0, |watch| watch.turn)
    }

    /// Returns the lookups for all who follow `target`.
    fn lookups(&self, target: &TargetKey) -> Lookups {
        let followers = self.targets.get(target).into_iter().flatten();
        let mut lookups = Lookups::default();
        for follower in followers.filter_map(|key| self.followers.get(key)) {
            lookups.add(&follower.field, true);
        }
        lookups
    }

    /// Calls `with` for each follower of `target`.
    fn each_of(&mut self, target: &TargetKey, mut with: impl FnMut(&ObjectKey, &mut Follower)) {
        for key in self.targets.get(target).into_iter().flatten() {
            if let Some(follower) = self.followers.get_mut(key) {
                with(key, follower);
            }
        }
    }

    /// What follows for `key`, if it is `identity`.
    fn follower(&mut self, key: &ObjectKey, identity: &FollowIdentity) -> Option<&mut Follower> {
        self.followers
            .get_mut(key)
            .filter(|follower| follower.identity == *identity)
    }

    fn forget(&mut self, key: &ObjectKey) -> Option<Follower> {
        let follower = self.followers.remove(key)?;
        if let Some(keys) = self.targets.get_mut(&follower.target) {
            keys.retain(|other| other != key);
            if keys.is_empty() {
                self.targets.remove(&follower.target);
            }
        }
        Some(follower)
    }
}

impl Observer for Tracker {
    fn on_started(&self, resource: &ResourceName, shard: Option<&str>, generation: u64) {
        let mut state = self.state();
        let watch = state
            .watches
            .entry((resource.clone(), shard.map(str::to_owned)))
            .or_default();
        (watch.generation, watch.begun) = (generation, false);
    }

    fn on_list_started(&self, resource: &ResourceName, shard: Option<&str>) {
        let mut state = self.state();
        let TrackerState {
            followers,
            watches,
            turns,
            ..
        } = &mut *state;
        let watch = watches
            .entry((resource.clone(), shard.map(str::to_owned)))
            .or_default();
        *turns += 1;
        (watch.begun, watch.turn) = (true, *turns);
        for follower in followers.values_mut() {
            if follower.target.resource == *resource && in_shard(&follower.target, shard) {
                follower.listed = false;
                if follower.certainty == Certainty::NeedsRead {
                    follower.await_list();
                }
            }
        }
    }

    fn on_applied(&self, resource: &ResourceName, object: RawObject) {
        if resource.is_watched_by_metadata() {
            self.show_metadata(resource, &object);
        } else {
            self.show(resource, object, true);
        }
    }

    fn on_deleted(&self, resource: &ResourceName, object: RawObject) {
        self.show(resource, object.without_text(), false);
    }

    fn on_list_done(&self, resource: &ResourceName, shard: Option<&str>) {
        let mut state = self.state();
        let place = (resource.clone(), shard.map(str::to_owned));
        let (generation, turn) = state
            .watches
            .get(&place)
            .map_or((0, 0), |watch| (watch.generation, watch.turn));
        if state.leads_since.is_none_or(|since| generation < since) {
            return;
        }
        let TrackerState {
            followers, queue, ..
        } = &mut *state;
        for (key, follower) in followers {
            if follower.target.resource != *resource || !in_shard(&follower.target, shard) {
                continue;
            }
            // The list has shown it.
            if queue.holds_since(&follower.target, turn) {
                continue;
            }
            // The list may come from a cache that lags behind: a read tells whether it is gone.
            let known_absent = follower
                .newest
                .as_ref()
                .is_some_and(|newest| newest.value.is_none());
            if !follower.listed && !known_absent {
                follower.certainty = Certainty::NeedsRead;
            } else if let Certainty::AwaitingList(_) | Certainty::Confirmed(_) = follower.certainty
            {
                follower.certainty = Certainty::Confirmed(Instant::now());
            }
            // One that is known to be absent may have to be looked for in another scope by now.
            if !follower.listed || follower.certainty == Certainty::NeedsRead {
                self.wake.wake(key);
            }
        }
    }

    fn on_recovered(&self, resource: &ResourceName, shard: Option<&str>) {
        let mut state = self.state();
        let watch = state
            .watches
            .get_mut(&(resource.clone(), shard.map(str::to_owned)));
        let recovered = watch.is_some_and(|watch| watch.trouble.take().is_some());
        drop(state);
        if recovered {
            self.wake_all(resource, shard);
        }
    }

    fn on_error(&self, resource: &ResourceName, shard: Option<&str>, error: &watcher::Error) {
        let Some(trouble) = WatchProblem::of(error) else {
            return;
        };
        let mut state = self.state();
        let TrackerState { watches, turns, .. } = &mut *state;
        let watch = watches
            .entry((resource.clone(), shard.map(str::to_owned)))
            .or_default();
        if trouble == WatchProblem::NotServed {
            *turns += 1;
            watch.turn = *turns;
        }
        let news = watch
            .trouble
            .as_ref()
            .is_none_or(|known| discriminant(known) != discriminant(&trouble));
        if news {
            watch.trouble = Some(trouble);
        }
        drop(state);
        if news {
            self.wake_all(resource, shard);
        }
    }
}

impl WatchProblem {
    fn of(error: &watcher::Error) -> Option<Self> {
        let status = error_status(error)?;
        match status.code {
            403 => Some(Self::Forbidden(status.message.clone())),
            404 => Some(Self::NotServed),
            // These pass.
            410 | 429 | 503 | 504 => None,
            _ => Some(Self::Failing(status.message.clone())),
        }
    }
}

/// Result of all lookups in one state of an object.
type LookedUp = Result<HashMap<Field, Lookup>, Unreadable>;

/// Lookups in one state of an object.
#[derive(Clone, Default)]
struct Lookups {
    fields: Vec<Field>,
    wanted: HashSet<Field>,
}

impl Lookups {
    /// Adds a field. One that is not wanted counts towards the budget only.
    fn add(&mut self, field: &Field, wanted: bool) {
        self.fields.push(field.clone());
        if wanted {
            self.wanted.insert(field.clone());
        }
    }

    /// Decodes the object and looks the fields up.
    fn run(self, object: &RawObject, place: Place) -> LookedUp {
        let Self { fields, wanted } = self;
        decoded(object).map(|whole| look_up(&whole, fields, |field| wanted.contains(field), place))
    }

    /// Puts every lookup off until a read.
    #[allow(clippy::unnecessary_wraps)] // what lookups result in
    fn put_off(self) -> LookedUp {
        let put_off = self.wanted.into_iter().map(|field| (field, Lookup::PutOff));
        Ok(put_off.collect())
    }
}

/// Returns an object as a path looks into it.
fn decoded(object: &RawObject) -> Result<Value, Unreadable> {
    match object.decode() {
        Ok(Ok(whole)) => bounded(whole),
        Ok(Err(TooLarge)) => Err(Unreadable::TooLarge),
        Err(error) => Err(Unreadable::NotJson(error.to_string())),
    }
}

fn bounded(mut whole: Value) -> Result<Value, Unreadable> {
    if !is_deeper(&whole, OBJECT_LEVELS) {
        return Ok(whole);
    }
    // `managedFields` name every field of the object a few levels deeper, and anyone who may write the object may put anything into
    // them.
    if let Some(metadata) = whole.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    if is_deeper(&whole, OBJECT_LEVELS) {
        Err(Unreadable::TooDeep)
    } else {
        Ok(whole)
    }
}

#[cfg(test)]
mod tests;
