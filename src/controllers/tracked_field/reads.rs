//! Requests about targets, outside of the passes: an apiserver that does not answer for one kind, because of a conversion
//! webhook or an aggregated API that hangs, must hold up neither the outcomes of messages nor the passes over other kinds.

use std::any::Any;
use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::FutureExt;
use tokio::sync::Semaphore;
use tracing::{Instrument, error};

use super::follower::Whose;
use super::following::{Targets, Untracked};
use super::waiting::Waiting;
use super::{Error, NAME};
use crate::api::TrackedField;
use crate::api::tracked_field::Target;
use crate::runtime::watch_hub::ResourceName;
use crate::runtime::{Key, tasks, telemetry};

/// How many requests of one lane run at once.
const PER_LANE: usize = 4;

/// How many requests of all lanes run at once: a spec can name any number of resources that there are not.
const ALL_LANES: usize = 64;

/// Requests that are likely to hang together.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// What an API version serves.
    Discovery(String),
    /// Objects of a resource.
    Reads(ResourceName),
}

impl Lane {
    /// The lane that asks what `target` is.
    pub fn discovery(target: &Target) -> Self {
        Self::Discovery(target.api_version.clone().unwrap_or_default())
    }
}

/// What was asked, and answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// What the target is, or that this has to be asked for.
    Discovered,
    /// How the target stands.
    Read,
}

/// The result of a request: an inner error says why nothing is tracked, the outer one is a panic.
pub(super) type Answered = Result<Result<Answer, Untracked>, Box<dyn Any + Send>>;

/// Requests about targets, at most one for each `TrackedField`.
pub struct Reads {
    state: Mutex<State>,
    all: Semaphore,
}

#[derive(Default)]
struct State {
    tickets: HashMap<Key, Ticket>,
    /// Why the last request of each failed, until another one does not, or none is needed.
    failures: HashMap<Key, Waiting>,
    lanes: HashMap<Lane, Queue>,
    /// The number of the last ticket.
    last: u64,
}

struct Ticket {
    number: u64,
    whose: Whose,
    answer: Option<Answered>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(u64, Arc<TrackedField>)>,
    running: usize,
}

impl Default for Reads {
    fn default() -> Self {
        Self { state: Mutex::default(), all: Semaphore::new(ALL_LANES) }
    }
}

impl Reads {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for `object`, unless that is under way.
    pub(super) fn ask(&self, targets: &Arc<Targets>, object: &Arc<TrackedField>, lane: Lane) {
        let (key, whose) = (Key::of(object.as_ref()), Whose::of(object));
        let mut state = self.state();
        if state.tickets.get(&key).is_some_and(|ticket| ticket.whose == whose) {
            return;
        }
        state.last += 1;
        let number = state.last;
        state.tickets.insert(key, Ticket { number, whose, answer: None });
        let queue = state.lanes.entry(lane.clone()).or_default();
        queue.waiting.push_back((number, Arc::clone(object)));
        if queue.running < PER_LANE {
            queue.running += 1;
            tokio::spawn(run(Arc::clone(targets), lane));
        }
    }

    /// Takes the answer for this `TrackedField`, if it came.
    pub(super) fn take(&self, key: &Key, whose: &Whose) -> Option<Answered> {
        let mut state = self.state();
        state.tickets.get(key)?.answer.as_ref()?;
        let answer = state.tickets.remove(key).filter(|ticket| ticket.whose == *whose)?.answer;
        if let Some(Ok(Err(untracked))) = &answer {
            state.failures.insert(key.clone(), untracked.waiting.clone());
        } else {
            state.failures.remove(key);
        }
        answer
    }

    /// Why the last request for this `TrackedField` failed.
    pub(super) fn failure(&self, key: &Key) -> Option<Waiting> {
        self.state().failures.get(key).cloned()
    }

    /// Nothing has to be asked for this `TrackedField`.
    pub(super) fn needless(&self, key: &Key) {
        self.state().failures.remove(key);
    }

    /// The `TrackedField` is gone.
    pub(super) fn forget(&self, key: &Key) {
        let mut state = self.state();
        state.tickets.remove(key);
        state.failures.remove(key);
    }

    /// The next `TrackedField` of a lane for which an answer is still awaited.
    fn next(&self, lane: &Lane) -> Option<(u64, Arc<TrackedField>)> {
        let mut state = self.state();
        let State { tickets, lanes, .. } = &mut *state;
        let queue = lanes.get_mut(lane)?;
        while let Some((number, object)) = queue.waiting.pop_front() {
            if tickets.get(&Key::of(object.as_ref())).is_some_and(|ticket| ticket.number == number) {
                return Some((number, object));
            }
        }
        queue.running -= 1;
        if queue.running == 0 {
            lanes.remove(lane);
        }
        None
    }

    /// Keeps an answer for the next pass; whether anybody awaits it.
    fn answered(&self, key: &Key, number: u64, answer: Answered, leads: bool) -> bool {
        let mut state = self.state();
        let Some(ticket) = state.tickets.get_mut(key).filter(|ticket| ticket.number == number) else { return false };
        ticket.answer = Some(answer);
        if !leads {
            // No pass takes it.
            state.tickets.remove(key);
        }
        leads
    }
}

/// Asks for what waits in a lane, one after the other.
async fn run(targets: Arc<Targets>, lane: Lane) {
    let all = async {
        while let Some((number, object)) = targets.reads.next(&lane) {
            let Ok(_permit) = targets.reads.all.acquire().await else { return };
            let limit = targets.timeout;
            let key = Key::of(object.as_ref());
            let span = telemetry::ask(NAME, &key);
            let look = tokio::time::timeout(limit, targets.look(&object, &lane)).instrument(span);
            let answer = AssertUnwindSafe(look).catch_unwind().await;
            let answer = answer.map(|in_time| in_time.unwrap_or_else(|_| Err(Error::Unanswered(limit).into())));
            if let Err(panic) = &answer {
                error!(panic = tasks::words(&**panic), trackedField = %key, "asking for the target panicked");
            }
            if targets.reads.answered(&key, number, answer, targets.tracker.leads()) {
                targets.wake.wake(&key);
            }
        }
    };
    tokio::select! {
        () = all => {}
        () = targets.draining.cancelled() => {}
    }
}
