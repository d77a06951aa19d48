//! The line of one contact point: what its receiver's answers make of it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use tokio::sync::Notify;

use super::{Patience, Standing};
use crate::api::TrackedField;
use crate::controllers::tracked_field::history;
use crate::notify::{Endpoint, Failure, LONGEST_PAUSE, Sent, StopReason};
use crate::runtime::Key;
use crate::runtime::backoff::Series;
use crate::runtime::telemetry::traces::{self, Origin};

/// From which failure in a row messages count as failing: one is no news.
pub(super) const FAILING_FROM: u32 = 2;

/// The reason when a test message is rejected.
const REJECTED: &str = "Rejected";

/// A pause of this length that a receiver asks for is told of at once.
const LONG: Duration = Duration::from_secs(30);

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
    /// Which configuration this is, of all that ever were: what was begun under another one is not this endpoint's.
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

/// What waits of one `TrackedField`.
pub struct Offer {
    pub(super) object: Arc<TrackedField>,
    /// What is pending in it, oldest first.
    pub(super) ids: Vec<Arc<str>>,
    /// The pass that offers it.
    pub(super) origin: Option<Origin>,
    /// Since when the oldest of it waits, time in which it was suspended left out; none while it is suspended.
    pub(super) since: Option<Timestamp>,
}

impl Offer {
    /// What is pending in `object`.
    ///
    /// # Errors
    /// Those of [`TrackedField::history`].
    pub fn of(object: &Arc<TrackedField>) -> serde_json::Result<Self> {
        let history = object.history()?;
        let ids = history::pending(&history).filter_map(|(entry, _)| entry.id.as_deref().map(Arc::from)).collect();
        let since = history::next_expiry(&history, Duration::ZERO);
        Ok(Self { object: Arc::clone(object), ids, since, origin: traces::here() })
    }
}

/// An entry that a request is made of.
#[derive(Clone, Debug)]
pub(super) struct Pick {
    pub(super) field: Key,
    pub(super) object: Arc<TrackedField>,
    pub(super) id: Arc<str>,
    pub(super) origin: Option<Origin>,
}

#[derive(Clone)]
pub(super) struct Batch {
    pub(super) picks: Vec<Pick>,
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
        if let (Some(to), Some(endpoint)) = (sent.migrated_to, &mut self.endpoint) {
            endpoint.follow(to);
        }
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
                let asked = after.unwrap_or_default();
                if asked < LONG {
                    (Standing::Retrying(message), delay.max(asked))
                } else {
                    // The next failure is too far away to wait for.
                    self.failures = self.failures.max(FAILING_FROM);
                    (
                        Standing::Retrying(format!("{message} (not before {} s have passed)", asked.as_secs())),
                        delay.max(asked),
                    )
                }
            }
            Failure::Stop { reason, message } => {
                self.stop();
                (Standing::Stopped { reason: reason.as_str(), message }, patience.stopped)
            }
            Failure::Rejected { message, .. } => {
                self.stop();
                (Standing::Stopped { reason: REJECTED, message }, patience.stopped)
            }
        };
        self.not_before = Some(now + delay.min(LONGEST_PAUSE));
        // Each 401 has the Secret read again: it may have been mended.
        let unauthorized =
            matches!(standing, Standing::Stopped { reason, .. } if reason == StopReason::Unauthorized.as_str());
        let news = !self.standing.as_ref().is_some_and(|known| says_the_same(known, &standing));
        if news {
            self.standing = Some(standing);
        }
        news || unauthorized
    }

    /// A receiver that rejected the test message is asked with that again: an entry would only be lost on it.
    pub(super) fn asks_with_test_message(&self) -> bool {
        match self.stage {
            Gate::Test => true,
            Gate::Stopped => matches!(self.standing, Some(Standing::Stopped { reason: REJECTED, .. })),
            Gate::Closed | Gate::Tested | Gate::Open => false,
        }
    }

    pub(super) fn stop(&mut self) {
        self.stage = Gate::Stopped;
        self.batch = None;
        self.failures = 0;
        self.backoff = None;
    }

    /// What is tried again of `field` keeps no older state of it than need be.
    pub(super) fn renew_batch(&mut self, field: &Key, object: &Arc<TrackedField>) {
        let picks = self.batch.iter_mut().flat_map(|batch| &mut batch.picks);
        for pick in picks.filter(|pick| pick.field == *field) {
            pick.object = Arc::clone(object);
        }
    }

    /// A request that is tried again is the same one, so that its receiver can tell; unless an entry of it has been
    /// given up in the meantime.
    pub(super) fn still_waits(&self, batch: &Batch) -> bool {
        let waits = |pick: &Pick| self.offers.get(&pick.field).is_some_and(|offer| offer.ids.contains(&pick.id));
        batch.picks.iter().all(waits)
    }
}

/// Whether two failures are one, said again.
fn says_the_same(one: &Standing, other: &Standing) -> bool {
    match (one, other) {
        (Standing::Retrying(one), Standing::Retrying(other)) => gist(one) == gist(other),
        (Standing::Stopped { reason, message }, Standing::Stopped { reason: other_reason, message: other }) => {
            reason == other_reason && gist(message) == gist(other)
        }
        _ => one == other,
    }
}

/// A message without what the receiver itself said, which stands in parentheses after the status code, and may be
/// different each time: that alone is no news.
fn gist(message: &str) -> (&str, &str, &str) {
    match (message.find('('), message.rfind(')')) {
        (Some(open), Some(close)) if open < close => {
            let code = message[open + 1..close].split([' ', ',', ')']).next().unwrap_or_default();
            (&message[..open], code, &message[close + 1..])
        }
        _ => (message, "", ""),
    }
}
