//! Requests about targets, which run outside reconciles: pending answers and the limits on concurrent requests.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use qm_api::TrackedField;
use qm_api::tracked_field::TargetReference;
use qm_runtime::ObjectKey;
use qm_runtime::error::{Class, Error};
use qm_runtime::watch::ResourceName;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep_until};

use super::follower::FollowIdentity;
use super::resolver::{TargetError, TargetKey, is_watched_by_metadata};
use super::waiting::{TARGET_UNREADABLE, WaitingReason};

/// Why a `TrackedField` tracks nothing.
#[derive(Debug)]
pub(crate) struct TrackError {
    pub waiting: WaitingReason,
    /// The failure of the reconcile, if retrying helps.
    pub error: Option<Box<Error>>,
}

impl TrackError {
    /// Returns the same error for another `TrackedField`.
    pub(super) fn repeated(&self) -> Self {
        Self {
            waiting: self.waiting.clone(),
            error: self.error.as_ref().map(|error| Box::new(unreadable(error))),
        }
    }
}

impl From<WaitingReason> for TrackError {
    fn from(waiting: WaitingReason) -> Self {
        Self {
            waiting,
            error: None,
        }
    }
}

impl From<Error> for TrackError {
    fn from(error: Error) -> Self {
        Self {
            waiting: WaitingReason::TargetUnreadable(error.to_string()),
            error: Some(Box::new(error)),
        }
    }
}

impl From<TargetError> for TrackError {
    fn from(error: TargetError) -> Self {
        match error {
            TargetError::Discovery(_) => unreadable(error).into(),
            _ => WaitingReason::ResourceMismatch(error.to_string()).into(),
        }
    }
}

/// Returns the failure of a request about a target.
pub(super) fn unreadable(message: impl Display) -> Error {
    Error::other(Class::Transient, TARGET_UNREADABLE, message.to_string())
}

/// Maximum number of concurrent requests of a group for discovery or reads.
pub(super) const PER_GROUP: usize = 4;

/// Maximum number of concurrent reads of objects whose metadata alone is watched: each may be 1 MiB.
const OBJECTS: usize = 4;

/// Pause after each read of an object that may be large. Other clients may change the object many times a second.
pub(super) const OBJECT_PERIOD: Duration = Duration::from_secs(1);

/// Minimum time between a list that failed and the next one, which answers all requests that have arrived meanwhile.
pub(crate) const FAILED_LIST_PERIOD: Duration = Duration::from_secs(1);

/// Maximum number of objects of a resource that are read one by one; more are read with one list.
pub(crate) const MAX_SINGLE_READS: usize = 32;

/// Maximum time for which reads of new `TrackedField`s are gathered for one list.
pub(super) const GATHER_MAX: Duration = Duration::from_secs(10);

/// Time after the last creation of a `TrackedField` until the list begins.
const GATHER_PAUSE: Duration = Duration::from_secs(1);

/// Maximum number of concurrent requests over all groups: specs can name any number of resources that do not exist.
const ALL_GROUPS: usize = 64;

/// A group of requests that are likely to hang together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RequestGroup {
    /// Discovery of an API version.
    Discovery(String),
    /// Reads of a resource's objects.
    Reads(ResourceName),
    /// Lists of a resource's objects in a watched namespace, `None` for all namespaces. Each list reads all objects that
    /// need it.
    List(ResourceName, Option<String>),
    /// Reads of one object whose metadata alone is watched.
    Object(TargetKey),
    /// Reads of one object that is large, or in which a lookup is too expensive for a thread that has other work.
    Background(TargetKey),
}

impl RequestGroup {
    /// Returns the group for discovery of `target`.
    pub fn discovery(target: &TargetReference) -> Self {
        Self::Discovery(target.api_version.clone().unwrap_or_default())
    }

    /// Returns the group for reads of `target`; `is_deferred`: the lookup waits for a read in the background.
    pub fn read(target: &TargetKey, is_deferred: bool) -> Self {
        if is_deferred {
            Self::Background(target.clone())
        } else if is_watched_by_metadata(&target.resource) {
            Self::Object(target.clone())
        } else {
            Self::Reads(target.resource.clone())
        }
    }

    /// Returns the number of concurrent requests.
    fn width(&self) -> usize {
        match self {
            Self::Discovery(_) | Self::Reads(_) => PER_GROUP,
            // A single read returns the newest state.
            Self::Object(_) | Self::Background(_) | Self::List(..) => 1,
        }
    }
}

/// Kind of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Discovery has answered, or the operator has forgotten the target's resource: the next reconcile decides.
    Discovered,
    /// The target's state was read.
    Read,
}

/// Result of a request: the outer error is a panic, the inner error says why nothing is tracked.
pub(super) type Answered = Result<Result<Answer, TrackError>, Box<dyn Any + Send>>;

/// Requests about targets, at most one for each `TrackedField`.
pub(crate) struct TargetRequests {
    state: Mutex<TargetRequestsState>,
    all: Arc<Semaphore>,
    objects: Arc<Semaphore>,
}

#[derive(Default)]
struct TargetRequestsState {
    pending: HashMap<ObjectKey, PendingRequest>,
    /// Causes of failed last requests, until a request succeeds or none is needed.
    failures: HashMap<ObjectKey, (FollowIdentity, WaitingReason)>,
    groups: HashMap<RequestGroup, GroupQueue>,
    /// Semaphores that allow one read at a time for each resource with an expensive lookup: waiting reads hold the text
    /// of their object, and an apiserver that hangs mostly hangs for one resource.
    background: HashMap<ResourceName, Arc<Semaphore>>,
    /// Resources whose reads are gathered.
    gathering: HashMap<ResourceName, Gathering>,
    /// Numbers of single reads that may begin before the unread targets of a resource are counted again.
    uncounted: HashMap<ResourceName, usize>,
    /// Number of the last request.
    last: u64,
}

struct PendingRequest {
    number: u64,
    identity: FollowIdentity,
    answer: Option<Answered>,
}

/// Gathering of reads for one list.
struct Gathering {
    latest: Instant,
    until: Instant,
}

#[derive(Default)]
struct GroupQueue {
    waiting: VecDeque<(u64, Arc<TrackedField>)>,
    running: usize,
}

impl Default for TargetRequests {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            all: Arc::new(Semaphore::new(ALL_GROUPS)),
            objects: Arc::new(Semaphore::new(OBJECTS)),
        }
    }
}

impl TargetRequests {
    fn state(&self) -> MutexGuard<'_, TargetRequestsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Requests an answer for `object`, unless a request is already in flight. Returns whether the group needs another
    /// task that runs its requests.
    pub(super) fn request(&self, object: &Arc<TrackedField>, group: RequestGroup) -> bool {
        let (key, identity) = (ObjectKey::of(object.as_ref()), FollowIdentity::of(object));
        let mut state = self.state();
        if state
            .pending
            .get(&key)
            .is_some_and(|request| request.identity == identity)
        {
            return false;
        }
        state.last += 1;
        let number = state.last;
        state.pending.insert(
            key,
            PendingRequest {
                number,
                identity,
                answer: None,
            },
        );
        let width = group.width();
        let queue = state.groups.entry(group).or_default();
        queue.waiting.push_back((number, Arc::clone(object)));
        let needs_task = queue.running < width;
        queue.running += usize::from(needs_task);
        needs_task
    }

    /// Returns the semaphore for the next request of a group; `reads_object`: the request reads an object that may be
    /// large.
    pub(super) fn permits(&self, group: &RequestGroup, reads_object: bool) -> Arc<Semaphore> {
        match group {
            RequestGroup::Object(_) if reads_object => Arc::clone(&self.objects),
            RequestGroup::Background(target) if reads_object => {
                let mut state = self.state();
                let of_resource = state.background.entry(target.resource.clone());
                Arc::clone(of_resource.or_insert_with(|| Arc::new(Semaphore::new(1))))
            }
            _ => Arc::clone(&self.all),
        }
    }

    /// Takes the answer for this `TrackedField`, if it has arrived. Drops a request for an earlier target.
    pub(super) fn take(&self, key: &ObjectKey, identity: &FollowIdentity) -> Option<Answered> {
        let mut state = self.state();
        if state
            .pending
            .get(key)
            .is_some_and(|request| request.identity == *identity && request.answer.is_none())
        {
            return None;
        }
        let answer = state
            .pending
            .remove(key)
            .filter(|request| request.identity == *identity)?
            .answer;
        if let Some(Ok(Err(untracked))) = &answer {
            state
                .failures
                .insert(key.clone(), (identity.clone(), untracked.waiting.clone()));
        } else {
            state.failures.remove(key);
        }
        answer
    }

    /// Returns why the last request for this `TrackedField` failed.
    pub(super) fn failure(
        &self,
        key: &ObjectKey,
        identity: &FollowIdentity,
    ) -> Option<WaitingReason> {
        let state = self.state();
        state
            .failures
            .get(key)
            .filter(|(of, _)| of == identity)
            .map(|(_, waiting)| waiting.clone())
    }

    /// Records that this `TrackedField` needs no request.
    pub(super) fn not_needed(&self, key: &ObjectKey) {
        self.state().failures.remove(key);
    }

    /// Forgets a deleted `TrackedField`.
    pub(super) fn forget(&self, key: &ObjectKey) {
        let mut state = self.state();
        state.pending.remove(key);
        state.failures.remove(key);
    }

    /// Gathers the reads of many new `TrackedField`s of a resource, whose creation takes longer than their reads.
    pub(crate) fn gather(&self, resource: &ResourceName) {
        let now = Instant::now();
        let mut state = self.state();
        let before = state.gathering.get(resource);
        let latest = before.filter(|it| it.until > now).map(|it| it.latest);
        let latest = latest.unwrap_or(now + GATHER_MAX);
        let until = latest.min(now + GATHER_PAUSE);
        let gathering = Gathering { latest, until };
        state.gathering.insert(resource.clone(), gathering);
    }

    /// Returns whether reads of new `TrackedField`s of a resource are gathered.
    pub fn gathers(&self, resource: &ResourceName) -> bool {
        let state = self.state();
        let gathering = state.gathering.get(resource);
        gathering.is_some_and(|gathering| gathering.until > Instant::now())
    }

    /// Returns whether the number of unread targets of a resource, which `count` returns, is too high for single reads.
    /// Counting takes time, so the same number of targets is not counted for each of them.
    pub(super) fn exceeds_single_reads(
        &self,
        resource: &ResourceName,
        count: impl FnOnce() -> usize,
    ) -> bool {
        if let Some(left) = self.state().uncounted.get_mut(resource)
            && *left > 0
        {
            *left -= 1;
            return false;
        }
        let unread = count();
        let left = MAX_SINGLE_READS.saturating_sub(unread);
        self.state().uncounted.insert(resource.clone(), left);
        unread > MAX_SINGLE_READS
    }

    /// Waits until no more reads of a resource are gathered, but not for a further gathering, which may begin before
    /// this wait notices the end of the first.
    pub(super) async fn gathered(&self, resource: &ResourceName) {
        let mut latest = None;
        loop {
            let until = {
                let mut state = self.state();
                let gathering = state.gathering.get(resource);
                let until = gathering.map(|it| it.until.min(*latest.get_or_insert(it.latest)));
                match until {
                    Some(until) if until > Instant::now() => until,
                    _ => {
                        state.gathering.remove(resource);
                        return;
                    }
                }
            };
            sleep_until(until).await;
        }
    }

    /// Returns the next `TrackedField` of a group whose answer is still awaited.
    pub(super) fn next(&self, group: &RequestGroup) -> Option<(u64, Arc<TrackedField>)> {
        let mut state = self.state();
        let TargetRequestsState {
            pending, groups, ..
        } = &mut *state;
        let queue = groups.get_mut(group)?;
        while let Some((number, object)) = queue.waiting.pop_front() {
            if pending
                .get(&ObjectKey::of(object.as_ref()))
                .is_some_and(|request| request.number == number)
            {
                return Some((number, object));
            }
        }
        queue.running -= 1;
        if queue.running == 0 {
            groups.remove(group);
        }
        None
    }

    /// Returns all `TrackedField`s of a group whose answers are still awaited; none ends the group's task.
    pub(super) fn drain_group(&self, group: &RequestGroup) -> Vec<(u64, Arc<TrackedField>)> {
        let mut all = Vec::new();
        let first = self.next(group);
        all.extend(first);
        if all.is_empty() {
            return all;
        }
        let mut state = self.state();
        let waiting = state
            .groups
            .get_mut(group)
            .map(|queue| std::mem::take(&mut queue.waiting));
        let is_awaited = |(number, object): &(u64, Arc<TrackedField>)| {
            let request = state.pending.get(&ObjectKey::of(object.as_ref()));
            request.is_some_and(|request| request.number == *number)
        };
        all.extend(waiting.into_iter().flatten().filter(is_awaited));
        all
    }

    /// Drops a request without an answer: the next reconcile decides again. Returns whether the answer was awaited.
    pub(super) fn drop_request(&self, key: &ObjectKey, number: u64) -> bool {
        let mut state = self.state();
        let is_awaited = state
            .pending
            .get(key)
            .is_some_and(|request| request.number == number);
        if is_awaited {
            state.pending.remove(key);
        }
        is_awaited
    }

    /// Returns whether an answer for this `TrackedField` waits for its reconcile.
    pub(super) fn has_answer(&self, key: &ObjectKey) -> bool {
        let state = self.state();
        let request = state.pending.get(key);
        request.is_some_and(|request| request.answer.is_some())
    }

    /// Keeps an answer for the next reconcile. Returns whether the answer was awaited.
    pub(super) fn answered(&self, key: &ObjectKey, number: u64, answer: Answered) -> bool {
        let mut state = self.state();
        let Some(request) = state
            .pending
            .get_mut(key)
            .filter(|request| request.number == number)
        else {
            return false;
        };
        request.answer = Some(answer);
        true
    }

    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        let state = self.state();
        state.groups.is_empty() && state.pending.is_empty()
    }
}
