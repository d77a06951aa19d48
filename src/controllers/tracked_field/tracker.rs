//! What the watches show of tracked fields: each change in the buffer of its `TrackedField`, until a pass records it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::DynamicObject;
use kube::runtime::watcher;
use tracing::warn;

use super::field::{Field, Observed};
use super::history::{Observation, ObservationBuffer, State};
use crate::api::TrackedField;
use crate::api::tracked_field::Subject;
use crate::runtime::Key;
use crate::runtime::reconciler::Trigger;
use crate::runtime::watch_hub::{Observer, ResourceName};
use crate::runtime::watching;

/// One object of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TargetKey {
    /// The resource.
    pub resource: ResourceName,
    /// The object's namespace; empty for a cluster-scoped one.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

/// Follows the targets of all `TrackedField`s.
pub struct Tracker {
    state: Mutex<Tracked>,
    wake: Trigger<TrackedField>,
}

#[derive(Default)]
struct Tracked {
    followers: HashMap<Key, Follower>,
    targets: HashMap<TargetKey, Vec<Key>>,
    watches: HashMap<(ResourceName, Option<String>), Watch>,
}

/// How far a watch is.
#[derive(Clone, Debug, Default)]
struct Watch {
    /// It has begun its first list: an object that is followed from now on may have been shown already.
    begun: bool,
    /// What it was last refused with.
    trouble: Option<Trouble>,
}

/// Why a resource cannot be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The operator may not list or watch it.
    Forbidden(String),
    /// The apiserver does not serve it.
    NotServed,
}

struct Follower {
    /// What its observations are of: a pass over an older or newer spec must not record them.
    subject: Subject,
    target: TargetKey,
    field: Field,
    /// Shown by the watch since it last began to list.
    seen: bool,
    /// Followed from the middle of a watch: its present state has to be read once.
    unread: bool,
    /// When its state was last known for certain, from a list or a read.
    certain: Instant,
    newest: Option<Newest>,
    buffer: ObservationBuffer,
    /// Handed to a pass that has not yet recorded them.
    in_hand: Vec<Observation>,
}

/// The state that was buffered last: the same again is no news.
struct Newest {
    uid: Option<String>,
    version: Option<u64>,
    value: Option<Observed>,
}

impl Tracker {
    /// `wake` wakes the pass of a `TrackedField` that has something to record.
    pub fn new(wake: Trigger<TrackedField>) -> Self {
        Self { state: Mutex::default(), wake }
    }

    fn state(&self) -> MutexGuard<'_, Tracked> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Follows `field` of `target` for `key`, in place of what was followed for it before; whether there was such.
    pub fn follow(
        &self,
        key: &Key,
        subject: &Subject,
        target: &TargetKey,
        field: &Field,
        shard: Option<String>,
    ) -> bool {
        let mut state = self.state();
        let before = state.followers.get(key);
        if before.is_some_and(|it| it.subject == *subject && it.target == *target && it.field == *field) {
            return false;
        }
        let replaced = state.forget(key);
        let unread = state.watches.get(&(target.resource.clone(), shard)).is_some_and(|watch| watch.begun);
        let follower = Follower {
            subject: subject.clone(),
            target: target.clone(),
            field: field.clone(),
            seen: false,
            unread,
            certain: Instant::now(),
            newest: None,
            buffer: ObservationBuffer::default(),
            in_hand: Vec::new(),
        };
        state.followers.insert(key.clone(), follower);
        state.targets.entry(target.clone()).or_default().push(key.clone());
        replaced
    }

    /// Follows nothing for `key` any more; whether anything was.
    pub fn forget(&self, key: &Key) -> bool {
        self.state().forget(key)
    }

    /// Whether anything of `resource` is followed.
    pub fn follows(&self, resource: &ResourceName) -> bool {
        self.state().targets.keys().any(|target| target.resource == *resource)
    }

    /// Whether the target's present state has to be read: the watch may have shown it already, or has not said anything
    /// certain for longer than `trusted` (a watch may miss something, deletions above all).
    pub fn unread(&self, key: &Key, trusted: Duration) -> bool {
        let state = self.state();
        state.followers.get(key).is_some_and(|follower| follower.unread || follower.certain.elapsed() > trusted)
    }

    /// The target's present state, as read: `None` is an object that does not exist.
    pub fn read(&self, key: &Key, object: Option<&DynamicObject>) {
        let mut state = self.state();
        let Some(follower) = state.followers.get_mut(key) else { return };
        follower.unread = false;
        follower.certain = Instant::now();
        match object {
            Some(object) => follower.present(object),
            None => follower.absent(None),
        };
    }

    /// What is to be recorded for `key`, if it is `subject` that is followed: oldest first, and the same again with what
    /// came since, until it is [`recorded`](Tracker::recorded).
    pub fn observations(&self, key: &Key, subject: &Subject) -> Vec<Observation> {
        let mut state = self.state();
        let follower = state.followers.get_mut(key).filter(|follower| follower.subject == *subject);
        let Some(follower) = follower else { return Vec::new() };
        let new = follower.buffer.drain();
        follower.in_hand.extend(new);
        follower.in_hand.clone()
    }

    /// What was handed out for `key` stands in its history.
    pub fn recorded(&self, key: &Key, subject: &Subject) {
        if let Some(follower) = self.state().followers.get_mut(key).filter(|follower| follower.subject == *subject) {
            follower.in_hand.clear();
        }
    }

    /// Whether the target of `key` exists, as far as is known.
    pub fn exists(&self, key: &Key) -> Option<bool> {
        let state = self.state();
        state.followers.get(key)?.newest.as_ref().map(|newest| newest.value.is_some())
    }

    /// Why the watch of `resource` in `shard` does not work.
    pub fn trouble(&self, resource: &ResourceName, shard: Option<&str>) -> Option<Trouble> {
        self.state().watches.get(&(resource.clone(), shard.map(str::to_owned)))?.trouble.clone()
    }

    /// Shows every follower of an object what has become of it, and wakes those for whom it is news.
    fn show(&self, resource: &ResourceName, object: &DynamicObject, shown: impl Fn(&mut Follower) -> bool) {
        let target = TargetKey {
            resource: resource.clone(),
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
        };
        let mut state = self.state();
        let Tracked { followers, targets, .. } = &mut *state;
        for key in targets.get(&target).into_iter().flatten() {
            if followers.get_mut(key).is_some_and(&shown) {
                self.wake.wake(key);
            }
        }
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

impl Tracked {
    fn forget(&mut self, key: &Key) -> bool {
        let Some(follower) = self.followers.remove(key) else { return false };
        if let Some(keys) = self.targets.get_mut(&follower.target) {
            keys.retain(|other| other != key);
            if keys.is_empty() {
                self.targets.remove(&follower.target);
            }
        }
        true
    }
}

impl Follower {
    /// Takes in the object's state; whether it was news.
    fn present(&mut self, object: &DynamicObject) -> bool {
        let whole = match serde_json::to_value(object) {
            Ok(whole) => whole,
            Err(error) => {
                warn!(%error, target = %self.target.name, "an object could not be read");
                return false;
            }
        };
        self.observe(object, Some(self.field.extract(&whole)))
    }

    fn observe(&mut self, object: &DynamicObject, value: Option<Observed>) -> bool {
        self.seen = value.is_some();
        let uid = object.uid();
        let version = object.resource_version().and_then(|version| version.parse().ok());
        if let Some(newest) = &mut self.newest {
            // A watch that lags behind a read shows what the read has overtaken.
            if newest.uid == uid && version.is_some() && version <= newest.version {
                return false;
            }
            if newest.value == value && (value.is_none() || newest.uid == uid) {
                newest.version = version;
                return false;
            }
        }
        self.push(uid, version, value)
    }

    /// The object does not exist, as a list or a read says: nothing tells when it went.
    fn absent(&mut self, version: Option<u64>) -> bool {
        if self.newest.as_ref().is_some_and(|newest| newest.value.is_none()) {
            return false;
        }
        self.push(None, version, None)
    }

    fn push(&mut self, uid: Option<String>, version: Option<u64>, value: Option<Observed>) -> bool {
        self.newest = Some(Newest { uid: uid.clone(), version, value: value.clone() });
        let state = value.map_or(State::Absent, |value| State::Present { uid, value });
        self.buffer.push(Observation::new(Timestamp::now(), state, version));
        true
    }
}

impl Observer for Tracker {
    fn listing(&self, resource: &ResourceName, shard: Option<&str>) {
        let mut state = self.state();
        let Tracked { followers, watches, .. } = &mut *state;
        let watch = watches.entry((resource.clone(), shard.map(str::to_owned))).or_default();
        watch.begun = true;
        for follower in followers.values_mut() {
            if follower.target.resource == *resource && in_shard(&follower.target, shard) {
                follower.seen = false;
                follower.unread = false;
            }
        }
    }

    fn present(&self, resource: &ResourceName, object: DynamicObject) {
        self.show(resource, &object, |follower| follower.present(&object));
    }

    fn gone(&self, resource: &ResourceName, object: DynamicObject) {
        self.show(resource, &object, |follower| follower.observe(&object, None));
    }

    fn listed(&self, resource: &ResourceName, shard: Option<&str>) {
        let mut state = self.state();
        for (key, follower) in &mut state.followers {
            let here = follower.target.resource == *resource && in_shard(&follower.target, shard);
            if here && !follower.unread {
                follower.certain = Instant::now();
            }
            // One that is unread was followed in mid-list: that it was not seen says nothing.
            let gone = here && !follower.seen && !follower.unread && follower.absent(None);
            if gone {
                self.wake.wake(key);
            }
        }
    }

    fn stands(&self, resource: &ResourceName, shard: Option<&str>) {
        let mut state = self.state();
        let watch = state.watches.get_mut(&(resource.clone(), shard.map(str::to_owned)));
        let recovered = watch.is_some_and(|watch| watch.trouble.take().is_some());
        drop(state);
        if recovered {
            self.wake_all(resource, shard);
        }
    }

    fn failing(&self, resource: &ResourceName, shard: Option<&str>, error: &watcher::Error) {
        // Anything else passes, or shows in /readyz and the metrics.
        let Some(trouble) = Trouble::of(error) else { return };
        let mut state = self.state();
        let watch = state.watches.entry((resource.clone(), shard.map(str::to_owned))).or_default();
        let news = watch.trouble.as_ref() != Some(&trouble);
        watch.trouble = Some(trouble);
        drop(state);
        if news {
            self.wake_all(resource, shard);
        }
    }
}

impl Trouble {
    fn of(error: &watcher::Error) -> Option<Self> {
        let status = watching::refusal(error)?;
        match status.code {
            403 => Some(Self::Forbidden(status.message.clone())),
            404 => Some(Self::NotServed),
            _ => None,
        }
    }
}
