//! Fault injections: which requests they hit, how many of them, and how many so far.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Context as _;
use tokio::sync::watch;

use crate::journal::lock;

/// Selection of matching requests, counted from the moment of the injection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// All requests.
    Always,
    /// The first requests, as many as this.
    First(u64),
    /// Only the request with this number, from 1.
    Nth(u64),
    /// The request with this number, from 1, and all after it.
    From(u64),
}

impl Times {
    fn includes(self, count: u64) -> bool {
        match self {
            Self::Always => true,
            Self::First(first) => count <= first,
            Self::Nth(nth) => count == nth,
            Self::From(first) => count >= first,
        }
    }
}

/// A fault injection that stays active until [`Self::cancel`]; dropping the handle does nothing.
#[derive(Clone)]
pub struct Injection {
    hits: watch::Sender<u64>,
    cancel: Arc<dyn Fn() + Send + Sync>,
}

impl Injection {
    pub(crate) fn new(hits: watch::Sender<u64>, cancel: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            hits,
            cancel: Arc::new(cancel),
        }
    }

    /// Returns how often the injection applied.
    pub fn hits(&self) -> u64 {
        *self.hits.borrow()
    }

    /// Waits until the injection applied this often; fails after `deadline`.
    pub async fn wait_for_hits(&self, hits: u64, deadline: Duration) -> anyhow::Result<()> {
        let mut seen = self.hits.subscribe();
        tokio::time::timeout(deadline, seen.wait_for(|seen| *seen >= hits))
            .await
            .with_context(|| format!("{} of {hits} hits within {deadline:?}", self.hits()))??;
        Ok(())
    }

    /// Cancels the injection. Events that a frozen watch held arrive immediately.
    pub fn cancel(&self) {
        (self.cancel)();
    }
}

/// All injections: matchers and actions.
pub(crate) struct Injections<M, A>(Mutex<InjectionList<M, A>>);

struct InjectionList<M, A> {
    last_id: u64,
    injections: Vec<Entry<M, A>>,
}

struct Entry<M, A> {
    id: u64,
    matching: M,
    times: Times,
    seen: u64,
    action: A,
    hits: watch::Sender<u64>,
}

impl<M, A> Default for Injections<M, A> {
    fn default() -> Self {
        Self(Mutex::new(InjectionList {
            last_id: 0,
            injections: Vec::new(),
        }))
    }
}

impl<M: Send + 'static, A: Clone + Send + 'static> Injections<M, A> {
    pub(crate) fn inject(self: &Arc<Self>, matching: M, times: Times, action: A) -> Injection {
        let hits = watch::Sender::new(0);
        let mut list = lock(&self.0);
        list.last_id += 1;
        let id = list.last_id;
        list.injections.push(Entry {
            id,
            matching,
            times,
            seen: 0,
            action,
            hits: hits.clone(),
        });
        let all = self.clone();
        Injection::new(hits, move || {
            lock(&all.0)
                .injections
                .retain(|injection| injection.id != id);
        })
    }

    /// Removes all injections and returns their actions.
    pub(crate) fn clear(&self) -> Vec<A> {
        let injections = std::mem::take(&mut lock(&self.0).injections);
        injections
            .into_iter()
            .map(|injection| injection.action)
            .collect()
    }

    /// Returns the actions for a request that `matches`, in the order in which they were added.
    pub(crate) fn decide(&self, matches: impl Fn(&M) -> bool) -> Vec<A> {
        let mut actions = Vec::new();
        for injection in lock(&self.0)
            .injections
            .iter_mut()
            .filter(|injection| matches(&injection.matching))
        {
            injection.seen += 1;
            if injection.times.includes(injection.seen) {
                injection.hits.send_modify(|hits| *hits += 1);
                actions.push(injection.action.clone());
            }
        }
        actions
    }
}
