//! State of tracked fields as the watches show it: the newest state of each field, and each change until it is
//! recorded.
//!
//! A standby keeps neither; the watches run so that a new leader has connections, and knows which resources the targets
//! have and which are forbidden. Events that a standby received may be stale: a new leader relists every kind and
//! compares the lists with the history.
//!
//! Large objects are decoded in the background, one at a time. The changes of one object stay in order.

use std::collections::HashMap;
use std::io;
use std::mem::discriminant;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use qm_api::TrackedField;
use qm_core::shared::Shared;
use qm_notify::history::{NewestState, Observations};
use qm_runtime::ObjectKey;
use qm_runtime::background::{Background, Permit};
use qm_runtime::raw_object::RawObject;
use qm_runtime::trigger::Trigger;
use qm_runtime::watch::{Index, NewIndex, ResourceName, WatchPhase, WatchProblem};
use tokio::sync::Notify;
use tracing::warn;

use super::field::Selectors;
use super::follower::{Certainty, FollowIdentity, Follower, ReadTicket};
use super::followers::FollowersByTarget;
use super::lookup::{Lookup, LookupMode, LookupResults, Lookups, Unreadable};
use super::resolver::{TargetKey, is_watched_by_metadata};
use super::watch_event::{WatchEvent, WatchEventQueue};

/// Maximum size of the text of an object that is decoded on a thread with other work, in bytes.
pub(super) const MAX_INLINE_BYTES: usize = 64 * 1024;

/// Follows the targets of all `TrackedField`s.
pub(crate) struct Tracker {
    state: Mutex<TrackerState>,
    trigger: Trigger<TrackedField>,
    /// Decodes large objects and does expensive lookups.
    pub(super) background: Background,
    queued: Notify,
    /// The fields in use: all `TrackedField`s of a set follow the same few.
    selectors: Shared<Selectors>,
}

#[derive(Default)]
struct TrackerState {
    /// Number of the first relist whose objects count, once this replica leads.
    leads_since: Option<u64>,
    /// Boxed: a large table is at most half full after it has grown.
    followers: HashMap<ObjectKey, Box<Follower>>,
    targets: FollowersByTarget,
    /// Watches by resource and watched namespace.
    watches: HashMap<(ResourceName, Option<String>), TargetWatch>,
    /// Events of large objects, and later ones of the same objects.
    queue: WatchEventQueue,
    /// Number of the last epoch of any watch.
    epochs: u64,
    /// Number of the last follower.
    last_follower: u64,
}

/// The followers that a read is for, as they were before the read began.
pub(crate) struct ReadTickets(HashMap<ObjectKey, ReadTicket>);

impl ReadTickets {
    /// Returns the number of followers.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the keys of the followers.
    pub fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.0.keys()
    }

    fn of(&self, key: &ObjectKey, follower: &Follower) -> Option<ReadTicket> {
        let ticket = self.0.get(key);
        ticket.filter(|ticket| follower.has_taken(ticket)).copied()
    }
}

/// Progress of a watch.
#[derive(Clone, Debug, Default)]
struct TargetWatch {
    /// Number of the last relist that has begun: its list may already have shown an object that is followed from now
    /// on.
    relist: Option<u64>,
    /// Epoch: a new one begins when the watch relists or the resource is not served. The resource may then have another
    /// kind or scope.
    epoch: u64,
    /// Problem of the last failed request.
    problem: Option<WatchProblem>,
}

impl Tracker {
    /// Creates a tracker. `trigger` wakes each `TrackedField` with changes to record; `leads`: this replica leads from
    /// the start.
    pub fn new(trigger: Trigger<TrackedField>, leads: bool) -> Self {
        let tracked = TrackerState {
            leads_since: leads.then_some(0),
            ..TrackerState::default()
        };
        Self {
            state: Mutex::new(tracked),
            trigger,
            background: Background::default(),
            queued: Notify::new(),
            selectors: Shared::default(),
        }
    }

    /// Returns the function that creates the index of a resource's targets.
    pub(crate) fn new_index(self: &Arc<Self>) -> NewIndex {
        let tracker = Arc::clone(self);
        Box::new(move |resource| {
            Arc::new(TargetIndex {
                tracker: Arc::clone(&tracker),
                resource,
            })
        })
    }

    /// Starts to lead: objects count from this relist on.
    pub fn start_leading(&self, relist: u64) {
        let mut state = self.state();
        state.leads_since = Some(relist);
        let followers = state.followers.values_mut();
        followers.for_each(|follower| follower.await_list());
    }

    /// Returns whether this replica leads.
    pub fn leads(&self) -> bool {
        self.state().leads_since.is_some()
    }

    fn state(&self) -> MutexGuard<'_, TrackerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows `field` of `target` for `key`, instead of the former target. Returns whether there was one.
    pub fn follow(
        &self,
        key: &ObjectKey,
        identity: &FollowIdentity,
        target: &TargetKey,
        selectors: &Selectors,
        watched_namespace: Option<String>,
    ) -> bool {
        let selectors_in_use = &self.selectors;
        let mut state = self.state();
        let before = state.followers.get_mut(key);
        if let Some(before) = before.filter(|it| {
            it.identity == *identity
                && it.target == *target
                && it.selectors.field == selectors.field
        }) {
            if *before.selectors != *selectors {
                before.selectors = selectors_in_use.of(Arc::new(selectors.clone()));
            }
            return false;
        }
        let replaced = state.forget(key);
        let has_list_begun = state
            .watches
            .get(&(target.resource.clone(), watched_namespace))
            .is_some_and(|watch| watch.relist.is_some());
        let may_have_shown_target = has_list_begun && state.accepts_events_of(target);
        let certainty = if may_have_shown_target {
            Certainty::NeedsRead
        } else {
            Certainty::AwaitingList(Instant::now())
        };
        state.last_follower += 1;
        let mut follower = Follower::new(
            state.last_follower,
            identity.clone(),
            target.clone(),
            selectors_in_use.of(Arc::new(selectors.clone())),
            certainty,
        );
        let was_followed = replaced.is_some();
        // Earlier observations are still to be recorded: of the former target, or of a resource whose scope has
        // changed.
        if let Some(before) = replaced.filter(|before| before.identity.uid == identity.uid) {
            follower.buffer = before.buffer;
        }
        state.followers.insert(key.clone(), Box::new(follower));
        state.targets.insert(target, key);
        was_followed
    }

    /// Stops following for `key`. Returns whether a target was followed.
    pub fn forget(&self, key: &ObjectKey) -> bool {
        self.state().forget(key).is_some()
    }

    /// Returns whether any target of `resource` is followed.
    pub fn follows(&self, resource: &ResourceName) -> bool {
        let state = self.state();
        state.targets.of_watch(resource, None).next().is_some()
    }

    /// Forgets the watch of `resource`, which has stopped.
    pub(crate) fn forget_watch(&self, resource: &ResourceName) {
        self.state().watches.retain(|(of, _), _| of != resource);
    }

    /// Returns the epoch of the watch of `resource`, which changes when the watch relists or the apiserver does not
    /// serve the resource. 0 without a watch.
    pub fn epoch(&self, resource: &ResourceName) -> u64 {
        let state = self.state();
        let of_resource = state.watches.iter().filter(|((of, _), _)| of == resource);
        of_resource
            .map(|(_, watch)| watch.epoch)
            .max()
            .unwrap_or_default()
    }

    /// Returns the tickets for a read of the target, if `key` needs one: the watch may have shown the state before the
    /// field was followed, or has confirmed nothing for longer than `trusted` (a watch may miss an event, deletions
    /// above all). The read serves every follower of the target that needs one.
    pub fn unread(&self, key: &ObjectKey, trusted: Duration) -> Option<ReadTickets> {
        let state = self.state();
        let requester = state.leads_since.and_then(|_| state.followers.get(key))?;
        if !requester.has_to_be_read(trusted) {
            return None;
        }
        let keys = state.targets.of(&requester.target);
        let followers = keys.filter_map(|key| Some((key, state.followers.get(key)?)));
        let unread = followers.filter(|(_, follower)| follower.has_to_be_read(trusted));
        let tickets = unread.map(|(key, follower)| (key.clone(), follower.read_ticket()));
        Some(ReadTickets(tickets.collect()))
    }

    /// Returns whether the target needs a read, see [`Tracker::unread`].
    pub(crate) fn needs_read(&self, key: &ObjectKey, trusted: Duration) -> bool {
        let state = self.state();
        let follower = state.leads_since.and_then(|_| state.followers.get(key));
        follower.is_some_and(|follower| follower.has_to_be_read(trusted))
    }

    /// Returns the tickets for reads of the targets of `resource` in `watched_namespace` that need one, `limit` at most.
    /// An object whose lookups are too expensive for a thread with other work is read alone.
    pub(crate) fn unread_of(
        &self,
        resource: &ResourceName,
        watched_namespace: Option<&str>,
        trusted: Duration,
        limit: usize,
    ) -> ReadTickets {
        let state = self.state();
        let of_watch = |_| state.targets.of_watch(resource, watched_namespace);
        let keys = state.leads_since.map(of_watch).into_iter().flatten();
        let followers = keys.filter_map(|key| Some((key, state.followers.get(key)?)));
        let unread = followers
            .filter(|(_, follower)| !follower.is_deferred && follower.has_to_be_read(trusted));
        let tickets = unread.map(|(key, follower)| (key.clone(), follower.read_ticket()));
        ReadTickets(tickets.take(limit).collect())
    }

    /// Accepts the state of `target` from a read, `None` if the object does not exist. `tickets` were taken before the
    /// read began.
    ///
    /// The spec may change during a read: a result for an earlier target is dropped, and the new target needs its own
    /// read. Expensive lookups are deferred until [`Tracker::read_in_background`].
    pub fn read(&self, target: &TargetKey, tickets: &ReadTickets, object: Option<RawObject>) {
        let Some(object) = object else {
            self.state().each_of(target, |of, follower| {
                if let Some(ticket) = tickets.of(of, follower) {
                    follower.read(ticket, Instant::now(), None);
                }
            });
            return;
        };
        let lookups = self.lookups_of_read(tickets, target, &object);
        let looked_up = lookups.run(&object, LookupMode::Inline);
        self.apply_read(tickets, target, &object, &looked_up);
    }

    /// Accepts an object of a list that began after `tickets` were taken, and removes the tickets for it. An object that
    /// is large, or whose lookups panic, must be read alone.
    pub(crate) fn read_listed(
        &self,
        resource: &ResourceName,
        tickets: &mut ReadTickets,
        object: RawObject,
    ) {
        let target = TargetKey::of(resource, &object);
        let keys: Vec<_> = self.state().targets.of(&target).cloned().collect();
        if keys.is_empty() {
            return;
        }
        let is_read = object.text_len() <= MAX_INLINE_BYTES && {
            let read = || self.read(&target, tickets, Some(object));
            catch_unwind(AssertUnwindSafe(read)).is_ok()
        };
        if !is_read {
            let mut state = self.state();
            state.each_of(&target, |_, follower| follower.is_deferred = true);
        }
        for key in keys {
            tickets.0.remove(&key);
        }
    }

    /// Accepts that the list showed no object for these tickets.
    pub(crate) fn read_unlisted(&self, tickets: &ReadTickets) {
        let mut state = self.state();
        for key in tickets.0.keys() {
            if let Some(follower) = state.followers.get_mut(key)
                && let Some(ticket) = tickets.of(key, follower)
            {
                follower.read(ticket, Instant::now(), None);
            }
        }
    }

    /// Accepts the object from a read as [`Tracker::read`] does, and defers no lookup.
    ///
    /// # Errors
    /// See [`Permit::run`].
    pub(crate) async fn read_in_background(
        &self,
        target: &TargetKey,
        tickets: &ReadTickets,
        object: RawObject,
        permit: Permit,
    ) -> io::Result<()> {
        let lookups = self.lookups_of_read(tickets, target, &object);
        let job = move || {
            let looked_up = lookups.run(&object, LookupMode::Background);
            (object, looked_up)
        };
        let (object, looked_up) = permit.run(job).await?;
        self.apply_read(tickets, target, &object, &looked_up);
        Ok(())
    }

    /// Wakes the followers with something to record or report after a read for `tickets`; the answer wakes `requester`.
    pub(super) fn wake_others(&self, tickets: &ReadTickets, requester: &ObjectKey) {
        let others = tickets.keys().filter(|key| *key != requester);
        for key in others.filter(|key| self.has_news(key)) {
            self.trigger.wake(key);
        }
    }

    /// Returns the lookups in an object that a read for `tickets` returned: for their followers, and for others that wait
    /// for the object.
    fn lookups_of_read(
        &self,
        tickets: &ReadTickets,
        target: &TargetKey,
        object: &RawObject,
    ) -> Lookups {
        let mut lookups = Lookups::default();
        self.state().each_of(target, |of, follower| {
            let is_requested =
                tickets.of(of, follower).is_some() || follower.is_satisfied_by(object);
            lookups.add(&follower.selectors, follower.known_value(), is_requested);
        });
        lookups
    }

    fn apply_read(
        &self,
        tickets: &ReadTickets,
        target: &TargetKey,
        object: &RawObject,
        looked_up: &LookupResults,
    ) {
        self.state().each_of(target, |of, follower| {
            let ticket = if let Some(ticket) = tickets.of(of, follower) {
                ticket
            } else if follower.is_satisfied_by(object) {
                self.trigger.wake(of);
                follower.read_ticket()
            } else {
                return;
            };
            let now = Instant::now();
            match looked_up {
                Err(why) => follower.read_unreadable(ticket, now, object, why),
                Ok(found) => match found.of(&follower.selectors) {
                    Some(Lookup::Found(observed)) => {
                        follower.read(ticket, now, Some((object, observed)));
                    }
                    Some(Lookup::Deferred) => follower.defer_read(object),
                    Some(Lookup::Rejected(estimate)) => {
                        follower.read_unreadable(
                            ticket,
                            now,
                            object,
                            &Unreadable::TooExpensive(estimate),
                        );
                    }
                    // The watch has shown a later version, or the field was followed, during the lookups: another read
                    // is needed.
                    None => {}
                },
            }
        });
    }

    /// Returns whether a lookup in the target of `key` is too expensive for a thread that has other work.
    pub(crate) fn is_deferred(&self, key: &ObjectKey) -> bool {
        let state = self.state();
        let of_target = state
            .followers
            .get(key)
            .map(|follower| state.targets.of(&follower.target));
        of_target.into_iter().flatten().any(|key| {
            state
                .followers
                .get(key)
                .is_some_and(|follower| follower.is_deferred)
        })
    }

    /// Returns why the target of `key` cannot be read, if it cannot.
    pub fn unreadable(&self, key: &ObjectKey) -> Option<Unreadable> {
        let state = self.state();
        let (why, _) = state.followers.get(key)?.unreadable.as_ref()?;
        Some(why.clone())
    }

    /// Returns whether a metadata watch has shown a version of the target of `key` that no read has returned yet.
    pub(crate) fn is_outdated(&self, key: &ObjectKey) -> bool {
        self.state()
            .followers
            .get(key)
            .is_some_and(|follower| follower.is_outdated())
    }

    /// Applies a metadata event to every follower of the object, and wakes those that need a read.
    fn observe_metadata(&self, resource: &ResourceName, metadata: &RawObject) {
        let target = TargetKey::of(resource, metadata);
        let mut state = self.state();
        if !state.accepts_events_of(&target) {
            return;
        }
        let TrackerState {
            followers, targets, ..
        } = &mut *state;
        for key in targets.of(&target) {
            if followers
                .get_mut(key)
                .is_some_and(|follower| follower.observe_metadata(metadata))
            {
                self.trigger.wake(key);
            }
        }
    }

    /// Records that the last entry of the history of `key`, with version `outranks`, contradicts the watch.
    pub(crate) fn contradict(&self, key: &ObjectKey, identity: &FollowIdentity, outranks: u64) {
        if let Some(follower) = self.state().follower(key, identity) {
            follower.contradict(outranks);
        }
    }

    /// Returns the observations to record for `key`, and the newest known state, if `identity` is followed. The
    /// observations stay until [`Tracker::recorded`].
    pub fn pending(
        &self,
        key: &ObjectKey,
        identity: &FollowIdentity,
    ) -> (Observations, Option<NewestState>) {
        let mut state = self.state();
        state
            .follower(key, identity)
            .map(|follower| (follower.buffer.begin_write(), follower.newest()))
            .unwrap_or_default()
    }

    /// Returns the observations to record for `key` before its target is no longer followed, as [`Tracker::pending`] does.
    /// If the spec now names a target or field that cannot be followed, the observations of the former one are recorded
    /// nevertheless.
    pub(crate) fn last_pending(
        &self,
        key: &ObjectKey,
        identity: &FollowIdentity,
    ) -> (Observations, Option<NewestState>) {
        let mut state = self.state();
        let follower = state.followers.get_mut(key);
        follower
            .filter(|it| it.identity.uid == identity.uid)
            .map(|follower| {
                let newest = follower.newest();
                let newest = newest.filter(|_| follower.identity == *identity);
                (follower.buffer.begin_write(), newest)
            })
            .unwrap_or_default()
    }

    /// Removes observations that the history of `key` has. The spec may have changed meanwhile.
    pub fn recorded(&self, key: &ObjectKey, identity: &FollowIdentity, recorded: &Observations) {
        let mut state = self.state();
        let follower = state.followers.get_mut(key);
        if let Some(follower) = follower.filter(|it| it.identity.uid == identity.uid) {
            follower.buffer.written(recorded);
        }
    }

    /// Returns whether a change of the target of `key` may not be recorded yet. A version that could not be read for
    /// `max_wait` does not count.
    pub(crate) fn has_unrecorded(
        &self,
        key: &ObjectKey,
        identity: &FollowIdentity,
        max_wait: Duration,
    ) -> bool {
        let mut state = self.state();
        let Some(follower) = state.follower(key, identity) else {
            return false;
        };
        let is_observed = !follower.buffer.is_empty() || follower.is_outdated_within(max_wait);
        let target = follower.target.clone();
        is_observed || state.queue.holds(&target)
    }

    /// Returns whether the buffer of `key` has a change that is not recorded yet.
    pub(crate) fn has_buffered_changes(&self, key: &ObjectKey) -> bool {
        let state = self.state();
        let follower = state.followers.get(key);
        follower.is_some_and(|follower| !follower.buffer.is_empty())
    }

    /// Returns whether `key` has a change to record, or a current version of its target that cannot be read.
    pub(super) fn has_news(&self, key: &ObjectKey) -> bool {
        self.has_buffered_changes(key) || self.unreadable(key).is_some()
    }

    /// Returns whether the target of `key` exists, `None` if unknown.
    pub fn exists(&self, key: &ObjectKey) -> Option<bool> {
        let state = self.state();
        state
            .followers
            .get(key)?
            .newest
            .as_ref()
            .map(|newest| newest.value().is_some())
    }

    /// Returns the problem of the watch of `resource` in `watched_namespace`.
    pub(crate) fn watch_problem(
        &self,
        resource: &ResourceName,
        watched_namespace: Option<&str>,
    ) -> Option<WatchProblem> {
        self.state()
            .watches
            .get(&(resource.clone(), watched_namespace.map(str::to_owned)))?
            .problem
            .clone()
    }

    /// Applies a watch event to every follower of the object, and wakes those with a change. Expensive lookups are
    /// deferred until a read. Events of large objects, and later events of the same objects, wait for
    /// [`Tracker::inspect_queue`].
    fn apply(&self, resource: &ResourceName, object: RawObject, exists: bool) {
        let target = TargetKey::of(resource, &object);
        let mut state = self.state();
        // Most objects are not targets.
        if !state.accepts_events_of(&target) || state.targets.of(&target).next().is_none() {
            return;
        }
        let event = WatchEvent {
            epoch: state.epoch(&target),
            target,
            object,
            exists,
        };
        let is_large = exists && event.object.text_len() > MAX_INLINE_BYTES;
        if is_large || state.queue.holds(&event.target) {
            match state.queue.push(Arc::new(event)) {
                Ok(()) => self.queued.notify_one(),
                // The queue is full: a read returns the newest state of this object.
                Err(event) => {
                    let deferred = exists.then(|| state.lookups(&event.target).deferred());
                    drop(state);
                    self.apply_event(&event, deferred.as_ref());
                }
            }
            return;
        }
        let lookups = state.lookups(&event.target);
        drop(state);
        // Decode and look up without the lock, because everything else waits for it.
        let looked_up = exists
            .then(|| lookups.or_deferred(|lookups| lookups.run(&event.object, LookupMode::Inline)));
        self.apply_event(&event, looked_up.as_ref());
    }

    fn apply_event(&self, event: &WatchEvent, looked_up: Option<&LookupResults>) {
        let WatchEvent {
            target,
            object,
            epoch,
            ..
        } = event;
        let mut state = self.state();
        if !state.accepts_events_of(target) {
            return;
        }
        let is_current = state.epoch(target) == *epoch;
        state.each_of(target, |key, follower| {
            let listed = follower.listed;
            let needs_wake = match looked_up {
                None => follower.observe(object, None),
                Some(Err(why)) => follower.observe_unreadable(object, why),
                Some(Ok(found)) => match found.of(&follower.selectors) {
                    Some(Lookup::Found(observed)) => {
                        follower.is_deferred = false;
                        follower.observe(object, Some(observed))
                    }
                    Some(Lookup::Deferred) => follower.defer_lookup(object),
                    Some(Lookup::Rejected(estimate)) => {
                        follower.observe_unreadable(object, &Unreadable::TooExpensive(estimate))
                    }
                    // The field was followed during the lookups: a read is needed.
                    None => return,
                },
            };
            if is_current {
                follower.confirm_listed();
            } else {
                // The event is older than the relist: only the list shows whether the object still exists.
                follower.listed = listed;
            }
            if needs_wake {
                self.trigger.wake(key);
            }
        });
    }

    /// Inspects the objects of the queue for as long as the process runs.
    pub(crate) async fn inspect_queue(&self) {
        loop {
            while self.inspect_next().await {}
            self.queued.notified().await;
        }
    }

    /// Inspects the first object of the queue. Returns false if there is none.
    async fn inspect_next(&self) -> bool {
        let (event, lookups) = {
            let state = self.state();
            let Some(event) = state.queue.first() else {
                return false;
            };
            let lookups = state.lookups(&event.target);
            (event, lookups)
        };
        let looked_up = if event.exists {
            Some(self.inspect_in_background(&event, lookups).await)
        } else {
            None
        };
        self.apply_event(&event, looked_up.as_ref());
        self.state().queue.pop();
        true
    }

    async fn inspect_in_background(
        &self,
        event: &Arc<WatchEvent>,
        lookups: Lookups,
    ) -> LookupResults {
        let fallback = lookups.clone();
        let job = {
            let event = Arc::clone(event);
            move || {
                lookups.or_deferred(|lookups| lookups.run(&event.object, LookupMode::Background))
            }
        };
        let looked_up = match self.background.acquire().await {
            Ok(permit) => permit.run(job).await,
            Err(error) => Err(error),
        };
        looked_up.unwrap_or_else(|error| {
            warn!(%error, "failed to inspect a large object; will read it again");
            fallback.deferred()
        })
    }

    /// Wakes every follower of `resource` in `watched_namespace`.
    fn wake_all(&self, resource: &ResourceName, watched_namespace: Option<&str>) {
        let state = self.state();
        let followers = state.targets.of_watch(resource, watched_namespace);
        self.trigger.wake_all(followers);
    }
}

impl TrackerState {
    /// Returns the watch that shows `target`.
    fn watch(&self, target: &TargetKey) -> Option<&TargetWatch> {
        let watch = |watched_namespace: Option<&str>| {
            self.watches.get(&(
                target.resource.clone(),
                watched_namespace.map(str::to_owned),
            ))
        };
        watch(None).or_else(|| watch(Some(&target.namespace)))
    }

    /// Returns whether events of the watch that shows `target` count.
    fn accepts_events_of(&self, target: &TargetKey) -> bool {
        let relist = self.watch(target).and_then(|watch| watch.relist);
        self.leads_since
            .is_some_and(|since| since <= relist.unwrap_or_default())
    }

    /// Returns the epoch of the watch that shows `target`.
    fn epoch(&self, target: &TargetKey) -> u64 {
        self.watch(target).map_or(0, |watch| watch.epoch)
    }

    /// Returns the lookups for all followers of `target`.
    fn lookups(&self, target: &TargetKey) -> Lookups {
        let followers = self.targets.of(target);
        let mut lookups = Lookups::default();
        for follower in followers.filter_map(|key| self.followers.get(key)) {
            lookups.add(&follower.selectors, follower.known_value(), true);
        }
        lookups
    }

    /// Calls `with` for each follower of `target`.
    fn each_of(&mut self, target: &TargetKey, mut with: impl FnMut(&ObjectKey, &mut Follower)) {
        for key in self.targets.of(target) {
            if let Some(follower) = self.followers.get_mut(key) {
                with(key, follower);
            }
        }
    }

    /// Returns the follower of `key`, if it follows `identity`.
    fn follower(&mut self, key: &ObjectKey, identity: &FollowIdentity) -> Option<&mut Follower> {
        let follower = self.followers.get_mut(key).map(AsMut::as_mut);
        follower.filter(|follower: &&mut Follower| follower.identity == *identity)
    }

    fn forget(&mut self, key: &ObjectKey) -> Option<Box<Follower>> {
        let follower = self.followers.remove(key)?;
        self.targets.remove(&follower.target, key);
        Some(follower)
    }
}

/// Index of the targets of one resource.
struct TargetIndex {
    tracker: Arc<Tracker>,
    resource: ResourceName,
}

impl Index<RawObject> for TargetIndex {
    fn apply(&self, object: RawObject) -> bool {
        self.tracker.on_applied(&self.resource, object);
        false
    }

    fn delete(&self, _key: &ObjectKey, last: Option<RawObject>) {
        if let Some(object) = last {
            self.tracker.on_deleted(&self.resource, object);
        }
    }

    /// The index keeps no objects; the followers know which ones a list has shown.
    fn keys(&self, _namespace: Option<&str>) -> Vec<ObjectKey> {
        Vec::new()
    }

    fn phase(&self, namespace: Option<&str>, phase: &WatchPhase) {
        let Self { tracker, resource } = self;
        match phase {
            WatchPhase::Listing { relist } => {
                tracker.on_list_started(resource, namespace, *relist);
            }
            WatchPhase::Listed => tracker.on_list_done(resource, namespace),
            WatchPhase::Recovered => tracker.on_recovered(resource, namespace),
            WatchPhase::Failed(problem) => tracker.on_failed(resource, namespace, problem),
            // The hub does not stop watches; it aborts their tasks.
            WatchPhase::Stopped(_) => {}
        }
    }
}

impl Tracker {
    fn on_list_started(
        &self,
        resource: &ResourceName,
        watched_namespace: Option<&str>,
        relist: u64,
    ) {
        let mut state = self.state();
        let TrackerState {
            followers,
            targets,
            watches,
            epochs,
            ..
        } = &mut *state;
        let watch = watches
            .entry((resource.clone(), watched_namespace.map(str::to_owned)))
            .or_default();
        *epochs += 1;
        (watch.relist, watch.epoch) = (Some(relist), *epochs);
        for key in targets.of_watch(resource, watched_namespace) {
            if let Some(follower) = followers.get_mut(key) {
                follower.listed = false;
                if follower.certainty == Certainty::NeedsRead {
                    follower.await_list();
                }
            }
        }
    }

    fn on_applied(&self, resource: &ResourceName, object: RawObject) {
        if is_watched_by_metadata(resource) {
            self.observe_metadata(resource, &object);
        } else {
            self.apply(resource, object, true);
        }
    }

    fn on_deleted(&self, resource: &ResourceName, object: RawObject) {
        self.apply(resource, object.without_text(), false);
    }

    fn on_list_done(&self, resource: &ResourceName, watched_namespace: Option<&str>) {
        let mut state = self.state();
        let watch = (resource.clone(), watched_namespace.map(str::to_owned));
        let (relist, epoch) = state
            .watches
            .get(&watch)
            .map_or((None, 0), |watch| (watch.relist, watch.epoch));
        if state.leads_since.is_none_or(|since| relist < Some(since)) {
            return;
        }
        let TrackerState {
            followers,
            targets,
            queue,
            ..
        } = &mut *state;
        for key in targets.of_watch(resource, watched_namespace) {
            let Some(follower) = followers.get_mut(key) else {
                continue;
            };
            // The list has shown the object.
            if queue.holds_since(&follower.target, epoch) {
                continue;
            }
            // The list may come from a cache that lags behind: a read shows whether the object was deleted.
            let known_absent = follower
                .newest
                .as_ref()
                .is_some_and(|newest| newest.value().is_none());
            if !follower.listed && !known_absent {
                follower.certainty = Certainty::NeedsRead;
            } else if let Certainty::AwaitingList(_) | Certainty::Confirmed(_) = follower.certainty
            {
                follower.certainty = Certainty::Confirmed(Instant::now());
            }
            // The object may exist by now, if the scope of its resource has changed.
            if !follower.listed || follower.certainty == Certainty::NeedsRead {
                self.trigger.wake(key);
            }
        }
    }

    fn on_recovered(&self, resource: &ResourceName, watched_namespace: Option<&str>) {
        let mut state = self.state();
        let watch = state
            .watches
            .get_mut(&(resource.clone(), watched_namespace.map(str::to_owned)));
        let recovered = watch.is_some_and(|watch| watch.problem.take().is_some());
        drop(state);
        if recovered {
            self.wake_all(resource, watched_namespace);
        }
    }

    fn on_failed(
        &self,
        resource: &ResourceName,
        watched_namespace: Option<&str>,
        problem: &WatchProblem,
    ) {
        let mut state = self.state();
        let TrackerState {
            watches, epochs, ..
        } = &mut *state;
        let watch = watches
            .entry((resource.clone(), watched_namespace.map(str::to_owned)))
            .or_default();
        if *problem == WatchProblem::NotServed {
            *epochs += 1;
            watch.epoch = *epochs;
        }
        let news = watch
            .problem
            .as_ref()
            .is_none_or(|known| discriminant(known) != discriminant(problem));
        if news {
            watch.problem = Some(problem.clone());
        }
        drop(state);
        if news {
            self.wake_all(resource, watched_namespace);
        }
    }
}

#[cfg(test)]
mod tests;
