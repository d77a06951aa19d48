//! The line of one contact point: what its receiver's answers make of it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use qm_api::TrackedField;
use qm_runtime::Key;
use qm_runtime::backoff::Series;
use qm_runtime::telemetry::traces::{self, Origin};
use tokio::sync::Notify;

use super::{AcceptedTests, Patience, Standing, TestMessage};
use crate::history;
use crate::{Endpoint, LONGEST_PAUSE, Refusal, Sent};

/// From which failure in a row messages count as failing: one is no news.
pub(super) const FAILING_FROM: u32 = 2;

/// Different messages rejected in a row that stop the contact point.
const REJECTED_IN_A_ROW: u32 = 3;

/// A pause of this length that a receiver asks for is told of at once.
const LONG: Duration = Duration::from_secs(30);

#[derive(Default)]
pub(super) struct Line {
    pub(super) endpoint: Option<Endpoint>,
    pub(super) stage: Gate,
    pub(super) standing: Option<Standing>,
    pub(super) offers: BTreeMap<Key, Offer>,
    pub(super) batch: Option<Batch>,
    pub(super) failures: u32,
    pub(super) backoff: Option<Series>,
    pub(super) not_before: Option<Instant>,
    pub(super) answers: Answers,
    /// The test message of the last configuration; none without a contact point.
    pub(super) test: Option<TestMessage>,
    /// Which configuration this is, of all that ever were: what was begun under another one is not this endpoint's.
    pub(super) edition: u64,
    /// A request is in the air: whatever happens to the line, its answer is still to come.
    pub(super) sending: bool,
    pub(super) changed: Arc<Notify>,
    pub(super) has_worker: bool,
}

/// Answers of a receiver so far, kept in memory only, except [`Answers::test_accepted`]: after a restart a refused entry
/// gets one more attempt before it can fail.
#[derive(Default)]
pub(super) struct Answers {
    /// Number of messages that the receiver accepted.
    accepted: u64,
    /// Number of messages rejected since the last accepted one, each perhaps for its own fault.
    rejected_in_a_row: u32,
    /// The last answer failed an entry: other messages go before the next entry that may fail.
    just_failed: bool,
    /// [`AcceptedTests::while_stopped`].
    test_accepted: bool,
    /// The last refusal.
    refusal: Option<(Refusal, String)>,
    by_field: HashMap<Key, Marks>,
    /// Turn of the last refused test message, as [`Marks::tried`].
    test_tried: u64,
    turn: u64,
}

/// Answers of a receiver to the messages of one `TrackedField`.
#[derive(Default)]
struct Marks {
    /// Refused entry, and the number of messages accepted before its refusal. Nothing of the `TrackedField` overtakes
    /// the entry.
    refused: Option<(Arc<str>, u64)>,
    /// Entries of a refused digest: each goes alone.
    alone: HashSet<Arc<str>>,
    /// Turn of the last refusal: the smallest number is next. Zero: no refusal since the receiver last accepted a
    /// message.
    tried: u64,
}

/// State of an entry after the receiver's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Not refused.
    Fresh,
    /// Refused, and nothing has been accepted since.
    Refused,
    /// Refused, and something has been accepted since: the next refusal makes the entry fail.
    Last,
}

/// Consequence of a refused entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterRefusal {
    /// The queue goes on at once.
    GoOn,
    /// The contact point stops.
    Stop,
}

impl Answers {
    /// Continues from what the contact point's status keeps.
    pub(super) fn resume(&mut self, tests: AcceptedTests) {
        self.test_accepted = tests.while_stopped;
    }

    /// Records that the receiver accepted the test message, or these entries.
    pub(super) fn accept<'a>(&mut self, entries: impl Iterator<Item = &'a Pick>, is_stopped: bool) {
        self.accepted += 1;
        self.rejected_in_a_row = 0;
        self.just_failed = false;
        let mut is_test = true;
        for pick in entries {
            is_test = false;
            self.forget_entry(&pick.field, &pick.id);
        }
        self.test_accepted = is_test && (self.test_accepted || is_stopped);
        for marks in self.by_field.values_mut() {
            marks.tried = 0;
        }
        self.by_field.retain(|_, marks| !marks.is_empty());
    }

    /// Records a refused test message.
    pub(super) fn refuse_test(&mut self, reason: Refusal, message: &str) {
        self.refusal = Some((reason, message.to_owned()));
        self.turn += 1;
        self.test_tried = self.turn;
    }

    /// Records a refused digest, which accuses none of its entries.
    pub(super) fn refuse_digest<'a>(
        &mut self,
        reason: Refusal,
        message: &str,
        entries: impl Iterator<Item = &'a Pick>,
    ) {
        self.refusal = Some((reason, message.to_owned()));
        for pick in entries {
            self.by_field
                .entry(pick.field.clone())
                .or_default()
                .alone
                .insert(Arc::clone(&pick.id));
        }
    }

    /// Records the refusal of an entry that went alone. An entry that is not `kept` has an outcome.
    pub(super) fn refuse_entry(
        &mut self,
        reason: Refusal,
        message: &str,
        pick: &Pick,
        kept: bool,
    ) -> AfterRefusal {
        self.refusal = Some((reason, message.to_owned()));
        self.turn += 1;
        let accepted = self.accepted;
        let marks = self.by_field.entry(pick.field.clone()).or_default();
        marks.tried = self.turn;
        marks.alone.remove(&pick.id);
        marks.refused = kept.then(|| (Arc::clone(&pick.id), accepted));
        if !reason.suggests_message() {
            return AfterRefusal::Stop;
        }
        self.rejected_in_a_row += 1;
        if self.rejected_in_a_row < REJECTED_IN_A_ROW {
            AfterRefusal::GoOn
        } else {
            AfterRefusal::Stop
        }
    }

    /// Records that the receiver refused an entry again, after accepting another message.
    pub(super) fn fail_entry(&mut self, pick: &Pick) {
        self.just_failed = true;
        self.forget_entry(&pick.field, &pick.id);
    }

    fn forget_entry(&mut self, field: &Key, id: &Arc<str>) {
        let Some(marks) = self.by_field.get_mut(field) else {
            return;
        };
        marks.alone.remove(id);
        marks.refused.take_if(|(refused, _)| refused == id);
        if marks.is_empty() {
            self.by_field.remove(field);
        }
    }

    /// Forgets a `TrackedField` without waiting entries.
    pub(super) fn forget(&mut self, field: &Key) {
        self.by_field.remove(field);
    }

    /// Forgets the answers to all entries of that `TrackedField` except the `waiting` ones.
    pub(super) fn renew(&mut self, field: &Key, waiting: &[Arc<str>]) {
        let Some(marks) = self.by_field.get_mut(field) else {
            return;
        };
        marks.alone.retain(|id| waiting.contains(id));
        marks.refused.take_if(|(id, _)| waiting.first() != Some(id));
        if waiting.is_empty() || marks.is_empty() {
            self.by_field.remove(field);
        }
    }

    /// Returns the state of that entry after the answers so far.
    pub(super) fn turn_of(&self, field: &Key, id: &Arc<str>) -> Turn {
        match self
            .by_field
            .get(field)
            .and_then(|marks| marks.refused.as_ref())
        {
            Some((refused, accepted)) if refused == id => {
                if self.accepted > *accepted {
                    Turn::Last
                } else {
                    Turn::Refused
                }
            }
            _ => Turn::Fresh,
        }
    }

    #[cfg(test)]
    pub(super) fn knows(&self, field: &Key) -> bool {
        self.by_field.contains_key(field)
    }

    /// Returns whether that entry was in a refused digest.
    pub(super) fn goes_alone(&self, field: &Key, id: &Arc<str>) -> bool {
        self.by_field
            .get(field)
            .is_some_and(|marks| marks.alone.contains(id))
    }

    /// Returns whether a message was rejected, perhaps for its own fault, and none was accepted since.
    pub(super) fn is_rejecting(&self) -> bool {
        self.rejected_in_a_row > 0
    }

    /// Returns whether other messages go before the next entry that may fail.
    pub(super) fn has_just_failed(&self) -> bool {
        self.just_failed
    }

    /// Returns the turn of the last refused entry of that `TrackedField`: the smallest number is next.
    pub(super) fn tried(&self, field: &Key) -> u64 {
        self.by_field.get(field).map_or(0, |marks| marks.tried)
    }

    /// Returns whether a stopped receiver may get the test message.
    pub(super) fn may_test(&self) -> bool {
        !self.test_accepted
    }

    /// Returns whether the test message is next, where it alternates with the only waiting `TrackedField`.
    pub(super) fn test_is_next(&self, field: &Key) -> bool {
        self.may_test() && self.test_tried < self.tried(field)
    }

    /// Allows a test message because somebody requested an attempt and no entry waits.
    pub(super) fn allow_test(&mut self) {
        self.test_accepted = false;
    }
}

impl Marks {
    fn is_empty(&self) -> bool {
        self.refused.is_none() && self.alone.is_empty() && self.tried == 0
    }
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
        let ids = history::pending(&history)
            .filter_map(|(entry, _)| entry.id.as_deref().map(Arc::from))
            .collect();
        let since = history::waiting_since(&history);
        Ok(Self {
            object: Arc::clone(object),
            ids,
            since,
            origin: traces::current(),
        })
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
    /// Resets the queue: no attempt in progress, nothing known about the receiver.
    pub(super) fn reset(&mut self) {
        self.batch = None;
        self.answers = Answers::default();
        self.go_on();
        self.changed.notify_one();
    }

    /// Allows the next request at once.
    pub(super) fn go_on(&mut self) {
        self.failures = 0;
        self.backoff = None;
        self.not_before = None;
    }

    /// Records that the receiver accepted the test message or these entries; returns whether the contact point's status
    /// changes.
    pub(super) fn accept(&mut self, sent: &Sent, entries: &[Pick]) -> bool {
        self.go_on();
        let could_test = self.answers.may_test();
        self.answers
            .accept(entries.iter().take(sent.taken), self.stage == Gate::Stopped);
        let is_test = entries.is_empty();
        if is_test && let Some(test) = &mut self.test {
            test.accepted.count += 1;
        }
        self.stage = match self.stage {
            Gate::Test => Gate::Tested,
            Gate::Stopped => Gate::Open,
            stage => stage,
        };
        if let (Some(to), Some(endpoint)) = (sent.migrated_to, &mut self.endpoint) {
            endpoint.follow(to);
        }
        let standing = Standing::Taken {
            migrated_to: sent.migrated_to,
        };
        let news = match (&self.standing, &standing) {
            (Some(Standing::Taken { .. }), Standing::Taken { migrated_to: None }) => false,
            (known, new) => known.as_ref() != Some(new),
        };
        if news {
            self.standing = Some(standing);
        }
        news || is_test || could_test != self.answers.may_test()
    }

    /// Records that the receiver did not answer, or may accept the same request later; returns whether the contact
    /// point's status changes.
    pub(super) fn retry(
        &mut self,
        message: String,
        after: Option<Duration>,
        patience: Patience,
        now: Instant,
    ) -> bool {
        self.failures += 1;
        let delay = self
            .backoff
            .get_or_insert_with(|| patience.retry.series())
            .next_delay();
        let asked = after.unwrap_or_default();
        let message = if asked < LONG {
            message
        } else {
            // A pause this long is reported at once.
            self.failures = self.failures.max(FAILING_FROM);
            format!("{message} (not before {} s have passed)", asked.as_secs())
        };
        self.not_before = Some(now + delay.max(asked).min(LONGEST_PAUSE));
        // One failure of a stopped receiver is no news: what stopped it may last.
        let is_news = self.stage != Gate::Stopped || self.failures >= FAILING_FROM;
        is_news && self.say(Standing::Retrying(message))
    }

    /// Stops the contact point for the reason of the last refusal; returns whether the contact point's status changes.
    pub(super) fn stop(&mut self, patience: Patience, now: Instant) -> bool {
        self.stop_silently();
        self.not_before = Some(now + patience.stopped);
        let Some((reason, message)) = self.answers.refusal.clone() else {
            return false;
        };
        let news = self.say(Standing::Stopped {
            reason: reason.as_str(),
            message,
        });
        // Each 401 triggers a new read of the Secret, which somebody may have fixed.
        news || reason == Refusal::Unauthorized
    }

    /// Stops the contact point without a status change: the test message is sent at once, and its answer shows whether
    /// the receiver accepts anything. So single rejected messages do not change the status.
    pub(super) fn stop_silently(&mut self) {
        self.stage = Gate::Stopped;
        self.batch = None;
        self.go_on();
    }

    fn say(&mut self, standing: Standing) -> bool {
        let news = !self
            .standing
            .as_ref()
            .is_some_and(|known| says_the_same(known, &standing));
        if news {
            self.standing = Some(standing);
        }
        news
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
        let waits = |pick: &Pick| {
            self.offers
                .get(&pick.field)
                .is_some_and(|offer| offer.ids.contains(&pick.id))
        };
        batch.picks.iter().all(waits)
    }
}

/// Whether two failures are one, said again.
fn says_the_same(one: &Standing, other: &Standing) -> bool {
    match (one, other) {
        (Standing::Retrying(one), Standing::Retrying(other)) => gist(one) == gist(other),
        (
            Standing::Stopped { reason, message },
            Standing::Stopped {
                reason: other_reason,
                message: other,
            },
        ) => reason == other_reason && gist(message) == gist(other),
        _ => one == other,
    }
}

/// A message without what the receiver itself said, which stands in parentheses after the status code, and may be
/// different each time: that alone is no news.
fn gist(message: &str) -> (&str, &str, &str) {
    match (message.find('('), message.rfind(')')) {
        (Some(open), Some(close)) if open < close => {
            let code = message[open + 1..close]
                .split([' ', ',', ')'])
                .next()
                .unwrap_or_default();
            (&message[..open], code, &message[close + 1..])
        }
        _ => (message, "", ""),
    }
}
