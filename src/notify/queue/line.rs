//! The line of one contact point: what its receiver's answers make of it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Instant;

use kube::ResourceExt;
use tokio::sync::Notify;

use super::{Patience, Standing};
use crate::api::TrackedField;
use crate::controllers::tracked_field::history;
use crate::notify::{Endpoint, Failure, Item, Sent, StopReason};
use crate::runtime::Key;
use crate::runtime::backoff::Series;

/// From which failure in a row messages count as failing: one is no news.
pub(super) const FAILING_FROM: u32 = 2;

#[derive(Default)]
pub(super) struct Line {
    pub(super) endpoint: Option<Endpoint>,
    pub(super) stage: Gate,
    pub(super) standing: Option<Standing>,
    pub(super) offers: BTreeMap<Key, Offer>,
    pub(super) batch: Option<Batch>,
    /// How many of the next entries go alone, because a digest with them in it was rejected.
    pub(super) singly: usize,
    pub(super) failures: u32,
    pub(super) backoff: Option<Series>,
    pub(super) not_before: Option<Instant>,
    /// Counts configurations: an answer to a request made under an earlier one is not this endpoint's.
    pub(super) edition: u64,
    /// A request is in the air: whatever happens to the line, its answer is still to come.
    pub(super) sending: bool,
    pub(super) changed: Arc<Notify>,
    pub(super) has_worker: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Gate {
    /// Nothing is sent.
    #[default]
    Closed,
    /// The test message is sent.
    Test,
    /// The test message was taken; the contact point's status does not say so yet.
    Tested,
    /// What waits is sent.
    Open,
    /// What waits, or the test message, is sent now and then.
    Stopped,
}

pub(super) struct Offer {
    pub(super) object: Arc<TrackedField>,
    pub(super) pending: usize,
}

#[derive(Clone)]
pub(super) struct Batch {
    pub(super) items: Vec<Item>,
    pub(super) plain: bool,
}

impl Line {
    /// Nothing is being tried.
    pub(super) fn rest(&mut self) {
        self.batch = None;
        self.singly = 0;
        self.failures = 0;
        self.backoff = None;
        self.not_before = None;
        self.changed.notify_one();
    }

    /// The receiver took something; whether that is news for the contact point.
    pub(super) fn taken(&mut self, sent: &Sent) -> bool {
        self.failures = 0;
        self.backoff = None;
        self.not_before = None;
        self.stage = match self.stage {
            Gate::Test => Gate::Tested,
            Gate::Stopped => Gate::Open,
            stage => stage,
        };
        let standing = Standing::Taken { migrated_to: sent.migrated_to };
        let news = match (&self.standing, &standing) {
            (Some(Standing::Taken { .. }), Standing::Taken { migrated_to: None }) => false,
            (known, new) => known.as_ref() != Some(new),
        };
        if news {
            self.standing = Some(standing);
        }
        news
    }

    /// The receiver took nothing; whether that is news for the contact point.
    pub(super) fn refused(&mut self, failure: Failure, patience: Patience, now: Instant) -> bool {
        let (standing, delay) = match failure {
            Failure::Retry { message, after } => {
                self.failures += 1;
                let delay = self.backoff.get_or_insert_with(|| patience.retry.series()).next_delay();
                let delay = delay.max(after.unwrap_or_default());
                match (&self.stage, &self.standing) {
                    // Still stopped: that it could not be reached this time does not make it well.
                    (Gate::Stopped, Some(stopped @ Standing::Stopped { .. })) => (stopped.clone(), patience.stopped),
                    _ => (Standing::Retrying(message), delay),
                }
            }
            Failure::Stop { reason, message } => {
                self.stop();
                (Standing::Stopped { reason: reason.as_str(), message }, patience.stopped)
            }
            Failure::Rejected { message, .. } => {
                self.stop();
                (Standing::Stopped { reason: "Rejected", message }, patience.stopped)
            }
        };
        self.not_before = Some(now + delay);
        // Each 401 has the Secret read again: it may have been mended.
        let unauthorized =
            matches!(standing, Standing::Stopped { reason, .. } if reason == StopReason::Unauthorized.as_str());
        let news = unauthorized || self.standing.as_ref() != Some(&standing);
        self.standing = Some(standing);
        news
    }

    pub(super) fn stop(&mut self) {
        self.stage = Gate::Stopped;
        self.batch = None;
        self.failures = 0;
        self.backoff = None;
    }

    /// A request that is tried again is the same one, so that its receiver can tell; unless an entry of it has been
    /// given up in the meantime.
    pub(super) fn still_waits(&self, batch: &Batch) -> bool {
        batch.items.iter().all(|item| {
            let offer = self.offers.get(&Key::new(&item.namespace, &item.name));
            let entries = offer.and_then(|offer| offer.object.status.as_deref()).unwrap_or_default();
            entries.iter().any(|entry| entry.id == item.entry.id && entry.is_pending())
        })
    }
}

/// The oldest pending entries of these offers. Ids are `UUIDv7`: they sort by time.
pub(super) fn oldest<'a>(offers: impl Iterator<Item = &'a Offer>, count: usize) -> Vec<Item> {
    let mut waiting: Vec<_> = offers.map(|offer| items(&offer.object).peekable()).collect();
    let mut heads = BinaryHeap::new();
    for (index, items) in waiting.iter_mut().enumerate() {
        if let Some(item) = items.peek() {
            heads.push(Reverse((item.entry.id.clone(), index)));
        }
    }
    let mut oldest = Vec::new();
    while oldest.len() < count
        && let Some(Reverse((_, index))) = heads.pop()
    {
        oldest.extend(waiting[index].next());
        if let Some(item) = waiting[index].peek() {
            heads.push(Reverse((item.entry.id.clone(), index)));
        }
    }
    oldest
}

/// What is pending in an object, oldest first, with what its message needs to know.
fn items(object: &TrackedField) -> impl Iterator<Item = Item> {
    let template: Option<Arc<str>> = object.spec.template.as_deref().map(Arc::from);
    history::pending(object.status.as_deref().unwrap_or_default()).map(move |(entry, previous)| Item {
        namespace: object.namespace().unwrap_or_default(),
        name: object.name_any(),
        uid: object.uid().unwrap_or_default(),
        template: template.clone(),
        entry: entry.clone(),
        previous: previous.cloned(),
    })
}
