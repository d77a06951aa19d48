//! What waits, and what is sent next: no clock, no network.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, hash_map};
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use qm_api::TrackedField;
use qm_api::tracked_field::Entry;
use qm_runtime::Key;
use qm_runtime::telemetry::traces::Origin;
use serde::de::Error as _;
use tokio::sync::Notify;

use super::flights::Flights;
use super::line::{Batch, FAILING_FROM, Gate, Line, Offer, Pick, Turn};
use super::{AcceptedTests, Circumstances, Patience, Stage, Standing, TestMessage};
use crate::history::{self, Ages, Now, Outcome};
use crate::{Endpoint, Item};

/// How many entries one request is given to choose from: what is in flight cannot be merged when an outbox is full, so
/// it must stay well below the 500 that one holds.
const BATCH: usize = 100;

/// The lines of all contact points.
pub struct Lines {
    pub(super) patience: Patience,
    pub(super) by_point: HashMap<Key, Line>,
    /// Which line the entries of a `TrackedField` wait in.
    places: HashMap<Key, Key>,
    pub(super) flights: Flights,
    /// Ages of the Pending entries of each `TrackedField`.
    pub(super) ages: HashMap<Key, Ages>,
    /// How many configurations there have been.
    editions: u64,
}

/// What to send next.
pub struct Request {
    /// Where.
    pub endpoint: Endpoint,
    /// Of what; of nothing, for the test message.
    pub(super) picks: Vec<Pick>,
    /// The id of the test message.
    pub test_id: String,
    /// Start of the attempt.
    pub(super) began: Instant,
    /// Without any template of a user's.
    pub plain: bool,
    pub(super) edition: u64,
}

impl Request {
    /// It is the test message.
    pub fn is_test(&self) -> bool {
        self.picks.is_empty()
    }

    /// The ids of its entries.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.picks.iter().map(|pick| &*pick.id)
    }

    /// The passes that offered them.
    pub fn origins(&self) -> impl Iterator<Item = &Origin> {
        self.picks.iter().filter_map(|pick| pick.origin.as_ref())
    }

    /// Its entries, with what their messages need to know.
    ///
    /// # Errors
    /// Those of [`TrackedField::history`].
    pub fn items(&self) -> serde_json::Result<Vec<Item>> {
        let (mut items, mut opened) = (Vec::with_capacity(self.picks.len()), HashMap::new());
        for Pick {
            field, object, id, ..
        } in &self.picks
        {
            let (template, history) = match opened.entry(field) {
                hash_map::Entry::Occupied(known) => known.into_mut(),
                hash_map::Entry::Vacant(new) => new.insert((
                    object.spec.template.as_deref().map(Arc::<str>::from),
                    object.history()?,
                )),
            };
            let (entry, previous) = history::pending(history)
                .find(|(entry, _)| entry.id.as_deref() == Some(&**id))
                .ok_or_else(|| {
                    serde_json::Error::custom(format!("entry {id} does not wait in it"))
                })?;
            items.push(Item::of(object, template.clone(), entry, previous));
        }
        Ok(items)
    }
}

/// What a line is to do now.
pub enum Next {
    /// Send something.
    Send,
    /// Wait for a change, until then at the latest.
    Wait(Option<Instant>),
    /// The contact point has stopped, and its status must say so.
    Stopped,
}

/// Next request of a queue.
enum Choice {
    Entries(Batch),
    Test,
    Nothing,
    /// Entries wait, but since the last accepted message the receiver has rejected an entry of each `TrackedField`.
    NoneLeft,
}

impl Lines {
    /// Creates an empty set of queues.
    pub fn new(patience: Patience) -> Self {
        Self {
            patience,
            by_point: HashMap::new(),
            places: HashMap::new(),
            flights: Flights::default(),
            ages: HashMap::new(),
            editions: 0,
        }
    }

    /// What will tell the worker that the line needs of changes; none if it has one already.
    pub fn configure(
        &mut self,
        point: &Key,
        endpoint: Endpoint,
        stage: Stage,
        mut test: TestMessage,
    ) -> Option<Arc<Notify>> {
        self.ground(point);
        let line = self.by_point.entry(point.clone()).or_default();
        line.endpoint = Some(endpoint);
        let known = line.test.take();
        // The status may lag behind.
        test.accepted.count = known
            .as_ref()
            .map_or(0, |known| known.accepted.count)
            .max(test.accepted.count);
        if known.is_none_or(|known| known.configuration != test.configuration) {
            self.editions += 1;
            line.edition = self.editions;
            line.standing = None;
            line.stage = match stage {
                Stage::Test => Gate::Test,
                Stage::Open => Gate::Open,
                Stage::Probe => Gate::Stopped,
            };
            line.reset();
            line.answers.resume(test.accepted);
        }
        line.test = Some(test);
        line.changed.notify_one();
        (!std::mem::replace(&mut line.has_worker, true)).then(|| Arc::clone(&line.changed))
    }

    pub fn open(&mut self, point: &Key) {
        let Some(line) = self.by_point.get_mut(point) else {
            return;
        };
        if line.stage == Gate::Tested {
            line.stage = Gate::Open;
            line.changed.notify_one();
        }
    }

    /// Closes the queue. Knowledge of the receiver stays, because the same configuration may return.
    pub fn close(&mut self, point: &Key) {
        self.ground(point);
        let Some(line) = self.by_point.get_mut(point) else {
            return;
        };
        line.endpoint = None;
        line.batch = None;
        line.changed.notify_one();
    }

    pub fn remove(&mut self, point: &Key) {
        self.close(point);
        if let Some(line) = self.by_point.get_mut(point) {
            self.editions += 1;
            line.edition = self.editions;
            line.stage = Gate::Closed;
            line.standing = None;
            line.test = None;
            line.reset();
        }
        self.drop_if_idle(point);
    }

    /// A line of no contact point stays only for what waits in it, or is in the air.
    pub(super) fn drop_if_idle(&mut self, point: &Key) {
        let idle = |line: &Line| line.test.is_none() && line.offers.is_empty() && !line.sending;
        if self.by_point.get(point).is_some_and(idle)
            && let Some(line) = self.by_point.remove(point)
        {
            line.changed.notify_one();
        }
    }

    pub fn retry_now(&mut self, point: &Key, now: Instant) {
        let Some(line) = self.by_point.get_mut(point) else {
            return;
        };
        line.backoff = None;
        line.not_before = line.not_before.map(|_| now);
        if line.offers.is_empty() {
            line.answers.allow_test();
        }
        line.changed.notify_one();
    }

    pub fn standing(&self, point: &Key) -> Standing {
        self.by_point
            .get(point)
            .and_then(|line| line.standing.clone())
            .unwrap_or(Standing::Untried)
    }

    /// Returns the test messages that receivers of `point` accepted.
    pub fn tests_accepted(&self, point: &Key) -> AcceptedTests {
        let Some(line) = self.by_point.get(point) else {
            return AcceptedTests::default();
        };
        let count = line.test.as_ref().map_or(0, |test| test.accepted.count);
        AcceptedTests {
            count,
            while_stopped: !line.answers.may_test(),
        }
    }

    /// Returns why messages to `point` have failed more than once in a row, if any wait.
    pub fn failing(&self, point: &Key) -> Option<String> {
        let line = self.by_point.get(point)?;
        match &line.standing {
            Some(Standing::Retrying(message))
                if line.failures >= FAILING_FROM && self.has_messages(line) =>
            {
                Some(message.clone())
            }
            _ => None,
        }
    }

    /// Returns whether messages wait to be sent, or are retried.
    pub(super) fn has_messages(&self, line: &Line) -> bool {
        line.batch.is_some()
            || line
                .offers
                .keys()
                .any(|field| self.flights.left_out(field).is_none())
    }

    /// Returns the contact point whose line holds entries of `field`.
    pub fn place(&self, field: &Key) -> Option<&Key> {
        self.places.get(field)
    }

    /// Since when the oldest of all waits that may be sent.
    pub fn oldest_since(&self) -> Option<Timestamp> {
        self.by_point
            .values()
            .flat_map(|line| line.offers.values())
            .filter_map(|offer| offer.since)
            .min()
    }

    /// How many more entries wait than before.
    pub fn offer(&mut self, point: &Key, offer: Offer) -> i64 {
        let field = Key::of(offer.object.as_ref());
        let before = self.take_out(&field);
        let before = before.map_or(0, |(place, waited)| {
            if place != *point {
                self.forget(&place, &field);
                self.abandon_batch(&place);
                self.drop_if_idle(&place);
            }
            waited
        });
        let pending = offer.ids.len();
        if let Some(line) = self.by_point.get_mut(point) {
            line.answers.renew(&field, &offer.ids);
        }
        if pending > 0 {
            let line = self.by_point.entry(point.clone()).or_default();
            line.renew_batch(&field, &offer.object);
            line.offers.insert(field.clone(), offer);
            self.places.insert(field, point.clone());
        }
        self.abandon_batch(point);
        self.drop_if_idle(point);
        self.notify(point);
        signed(pending) - signed(before)
    }

    /// `object` is cached: what waits of it in this very state needs no copy of its own.
    pub fn cached(&mut self, object: &Arc<TrackedField>) {
        let field = Key::of(object.as_ref());
        let line = self
            .places
            .get(&field)
            .and_then(|place| self.by_point.get_mut(place));
        let Some(line) = line else { return };
        if let Some(offer) = line.offers.get_mut(&field)
            && offer.object.metadata == object.metadata
        {
            offer.object = Arc::clone(object);
            line.renew_batch(&field, object);
        }
    }

    /// Whether anything of `field` waits in a line.
    pub fn holds(&self, field: &Key) -> bool {
        self.places.contains_key(field)
    }

    /// Forgets `field`, which was deleted; returns the contact point that had gone on without it.
    pub fn no_longer_left_out(&mut self, field: &Key) -> Option<Key> {
        self.flights.write_accepted(field)
    }

    /// How many more entries wait than before.
    pub fn withdraw(&mut self, field: &Key, gone: bool) -> i64 {
        let before = self.take_out(field);
        if gone {
            self.ages.remove(field);
            for line in self.by_point.values_mut() {
                line.answers.forget(field);
            }
            for line in self.flights.forget(field) {
                self.notify(&line);
            }
        }
        let Some((place, waited)) = before else {
            return 0;
        };
        self.abandon_batch(&place);
        self.drop_if_idle(&place);
        -signed(waited)
    }

    /// Returns the `TrackedField`s of these entries that were deleted or moved away from `point`.
    pub(super) fn departed(&self, point: &Key, picks: &[Pick]) -> Vec<Key> {
        let moved = |field: &Key| self.places.get(field).is_some_and(|place| place != point);
        let departed = picks
            .iter()
            .filter(|pick| !self.flights.holds(pick) || moved(&pick.field));
        departed.map(|pick| pick.field.clone()).collect()
    }

    pub(super) fn forget(&mut self, point: &Key, field: &Key) {
        if let Some(line) = self.by_point.get_mut(point) {
            line.answers.forget(field);
        }
    }

    /// Updates the ages of the entries of `field` from its status; `held`: they are suspended from now on. Returns how
    /// long entries have been suspended.
    pub fn observe(
        &mut self,
        field: &Key,
        history: &[Entry],
        held: bool,
        now: Now,
    ) -> BTreeMap<String, Duration> {
        let ages = self.ages.entry(field.clone()).or_default();
        ages.observe(history, held, now);
        let held_for = ages.held();
        if ages.is_empty() {
            self.ages.remove(field);
        }
        held_for
    }

    pub fn outcomes(&self, field: &Key) -> Vec<(String, Outcome)> {
        self.flights.outcomes(field)
    }

    /// Records written outcomes. Returns the contact point that had gone on without `field`, and no longer does.
    pub fn recorded(&mut self, field: &Key, outcomes: &[(String, Outcome)]) -> Option<Key> {
        for line in self.flights.recorded(field, outcomes) {
            self.notify(&line);
        }
        if let Some(place) = self.places.get(field) {
            self.notify(place);
        }
        self.flights.write_accepted(field)
    }

    /// Records that the apiserver refused to write the status of `field`, which sends to `point`, with this code and
    /// message. Returns whether the others go on without `field` from now on.
    pub fn write_rejected(
        &mut self,
        field: &Key,
        point: &Key,
        said: (u16, &str),
        circumstances: Circumstances,
        now: Instant,
    ) -> bool {
        let newly = self.flights.write_rejected(
            field,
            point,
            said,
            circumstances,
            self.patience.retry,
            now,
        );
        if newly {
            // The unrecorded outcome may belong to another contact point.
            for line in self.by_point.values() {
                line.changed.notify_one();
            }
        }
        newly
    }

    /// Returns how long to wait before the status of `field` is written again, if the apiserver refused the last write
    /// and the next one is not due.
    pub fn rejected_write_due(
        &self,
        field: &Key,
        circumstances: &Circumstances,
        now: Instant,
    ) -> Option<Duration> {
        self.flights.rejected_write_due(field, circumstances, now)
    }

    /// Returns why the contact points go on without `field`, if they do.
    pub fn left_out(&self, field: &Key) -> Option<String> {
        self.flights.left_out(field).map(str::to_owned)
    }

    /// Returns the `TrackedField`s that `point` goes on without, with the causes.
    pub fn left_out_of(&self, point: &Key) -> Vec<(Key, String)> {
        let mut left_out = self.flights.left_out_of(point);
        left_out.sort();
        left_out
    }

    pub fn in_flight(&self, field: &Key) -> HashSet<String> {
        self.flights.ids(field)
    }

    /// No answer is awaited, and every one that came is recorded.
    pub fn nothing_flies(&self) -> bool {
        let sending = self.by_point.values().any(|line| line.sending);
        !sending && self.flights.all_recorded()
    }

    /// Whether the line of `point` is the one that `changed` tells of: another one of that name has another worker.
    pub fn is_that_of(&self, point: &Key, changed: &Arc<Notify>) -> bool {
        self.by_point
            .get(point)
            .is_some_and(|line| Arc::ptr_eq(&line.changed, changed))
    }

    /// Where the line of `point` sends, and which configuration that is.
    pub fn endpoint(&self, point: &Key) -> Option<(Endpoint, u64)> {
        let line = self.by_point.get(point)?;
        Some((line.endpoint.clone()?, line.edition))
    }

    /// Whether the line of `point` still has that configuration.
    pub fn is_configured(&self, point: &Key, edition: u64) -> bool {
        self.by_point
            .get(point)
            .is_some_and(|line| line.edition == edition)
    }

    /// What the line of `point` is to do at `now`.
    pub fn next(&mut self, point: &Key, now: Instant) -> Next {
        loop {
            let Some(line) = self.by_point.get(point) else {
                return Next::Wait(None);
            };
            if line.sending || line.endpoint.is_none() || self.flights.unrecorded(point) {
                return Next::Wait(None);
            }
            if let Some(instant) = line.not_before.filter(|instant| *instant > now) {
                let something = match line.stage {
                    Gate::Closed | Gate::Tested => false,
                    Gate::Test => true,
                    Gate::Stopped if line.answers.may_test() => true,
                    Gate::Stopped | Gate::Open => {
                        line.batch.is_some() || self.sendable(line).next().is_some()
                    }
                };
                return Next::Wait(something.then_some(instant));
            }
            match self.choose(line) {
                Choice::Entries(_) | Choice::Test => return Next::Send,
                Choice::Nothing => return Next::Wait(None),
                Choice::NoneLeft => {
                    let (alternates, patience) = (self.alternates(point), self.patience);
                    let Some(line) = self.by_point.get_mut(point) else {
                        return Next::Wait(None);
                    };
                    if alternates {
                        line.stop_silently();
                    } else if line.stop(patience, now) {
                        return Next::Stopped;
                    }
                }
            }
        }
    }

    /// Offers of a line with nothing in the air.
    pub(super) fn sendable<'a>(
        &'a self,
        line: &'a Line,
    ) -> impl Iterator<Item = (&'a Key, &'a Offer)> {
        line.offers
            .iter()
            .filter(|(field, _)| !self.flights.has(field))
    }

    /// Returns whether the test message alternates with the oldest entry, because only one `TrackedField` waits.
    pub(super) fn alternates(&self, point: &Key) -> bool {
        let line = self.by_point.get(point);
        line.is_some_and(|line| line.answers.may_test() && self.sendable(line).count() == 1)
    }

    fn choose(&self, line: &Line) -> Choice {
        match (&line.batch, line.stage) {
            (_, Gate::Closed | Gate::Tested) => Choice::Nothing,
            (_, Gate::Test) => Choice::Test,
            (Some(batch), Gate::Open | Gate::Stopped) => Choice::Entries(batch.clone()),
            (None, Gate::Open) => self.choose_when_open(line),
            (None, Gate::Stopped) => self.choose_when_stopped(line),
        }
    }

    /// Chooses the next request: refused entries go alone, and only after an accepted message; all others go oldest
    /// first.
    fn choose_when_open(&self, line: &Line) -> Choice {
        let (mut fresh, mut last, mut refused) = (Vec::new(), Vec::new(), false);
        for (field, offer) in self.sendable(line) {
            let Some(head) = offer.ids.first() else {
                continue;
            };
            match line.answers.turn_of(field, head) {
                Turn::Fresh => fresh.push((field, offer)),
                Turn::Last => last.push((field, offer)),
                Turn::Refused => refused = true,
            }
        }
        let waits = refused || !last.is_empty();
        let fresh = |count| Self::oldest(line, &fresh, count);
        let last = || Self::oldest(line, &last, 1);
        let picks = if line.answers.is_rejecting() {
            fresh(1)
        } else if line.answers.has_just_failed() {
            Some(fresh(BATCH))
                .filter(|picks| !picks.is_empty())
                .unwrap_or_else(last)
        } else {
            Some(last())
                .filter(|picks| !picks.is_empty())
                .unwrap_or_else(|| fresh(BATCH))
        };
        match picks.is_empty() {
            false => Choice::Entries(Batch {
                picks,
                plain: false,
            }),
            true if waits => Choice::NoneLeft,
            true => Choice::Nothing,
        }
    }

    /// Chooses the next attempt: the oldest entry of each waiting `TrackedField` in turn, alone; the test message if
    /// none waits, and in turn with the only one that does.
    fn choose_when_stopped(&self, line: &Line) -> Choice {
        let waiting: Vec<_> = self.sendable(line).collect();
        match waiting.as_slice() {
            [] if line.answers.may_test() => return Choice::Test,
            [] => return Choice::Nothing,
            [(field, _)] if line.answers.test_is_next(field) => return Choice::Test,
            _ => {}
        }
        let next = waiting
            .into_iter()
            .min_by_key(|(field, offer)| (line.answers.tried(field), offer.ids.first()));
        let picks = Self::oldest(line, next.as_slice(), 1);
        Choice::Entries(Batch {
            picks,
            plain: false,
        })
    }

    /// The request to send now, if there still is one and the line still has that configuration. Its entries are in
    /// flight from here on.
    pub fn take(&mut self, point: &Key, edition: u64, now: Instant) -> Option<Request> {
        if !self.is_configured(point, edition) || !matches!(self.next(point, now), Next::Send) {
            return None;
        }
        self.ground(point);
        let batch = match self.choose(self.by_point.get(point)?) {
            Choice::Entries(batch) => Some(batch),
            Choice::Test => None,
            Choice::Nothing | Choice::NoneLeft => return None,
        };
        for pick in batch.iter().flat_map(|batch| &batch.picks) {
            self.flights.take_off(point, pick);
        }
        let line = self.by_point.get_mut(point)?;
        let endpoint = line.endpoint.clone()?;
        let (picks, plain) = batch
            .as_ref()
            .map(|batch| (batch.picks.clone(), batch.plain))
            .unwrap_or_default();
        let test_id = line.test.as_ref().map(TestMessage::id).unwrap_or_default();
        let request = Request {
            endpoint,
            picks,
            test_id,
            began: now,
            plain,
            edition: line.edition,
        };
        line.batch = batch;
        line.sending = true;
        Some(request)
    }

    /// Returns the oldest entries of these offers, up to the first that goes alone. Ids are `UUIDv7`, which sort by
    /// time.
    fn oldest(line: &Line, offers: &[(&Key, &Offer)], count: usize) -> Vec<Pick> {
        let head = |offer: usize, at: usize| {
            offers[offer]
                .1
                .ids
                .get(at)
                .map(|id| Reverse((id, offer, at)))
        };
        let mut heads: BinaryHeap<_> = (0..offers.len())
            .filter_map(|offer| head(offer, 0))
            .collect();
        let mut oldest = Vec::new();
        while oldest.len() < count
            && let Some(Reverse((id, offer, at))) = heads.pop()
        {
            let (field, Offer { object, origin, .. }) = offers[offer];
            let alone = line.answers.goes_alone(field, id);
            if alone && !oldest.is_empty() {
                break;
            }
            let (object, id) = (Arc::clone(object), Arc::clone(id));
            oldest.push(Pick {
                field: field.clone(),
                object,
                id,
                origin: origin.clone(),
            });
            if alone {
                break;
            }
            heads.extend(head(offer, at + 1));
        }
        oldest
    }

    /// What is in flight from `point` without an outcome is not, any more; unless its answer is still to come.
    pub(super) fn ground(&mut self, point: &Key) {
        if self.by_point.get(point).is_some_and(|line| line.sending) {
            return;
        }
        for field in self.flights.ground(point) {
            // What waits of it may be in another line by now.
            if let Some(place) = self.places.get(&field) {
                self.notify(place);
            }
        }
    }

    /// The line in which entries waited, and how many.
    fn take_out(&mut self, field: &Key) -> Option<(Key, usize)> {
        let place = self.places.remove(field)?;
        let line = self.by_point.get_mut(&place)?;
        let waited = line.offers.remove(field).map_or(0, |offer| offer.ids.len());
        line.changed.notify_one();
        Some((place, waited))
    }

    /// A request that is to be tried again is given up once an entry of it no longer waits here: it would be another.
    pub(super) fn abandon_batch(&mut self, point: &Key) {
        let Some(line) = self.by_point.get_mut(point) else {
            return;
        };
        if !line.sending
            && line
                .batch
                .as_ref()
                .is_some_and(|batch| !line.still_waits(batch))
        {
            line.batch = None;
            self.ground(point);
        }
    }

    /// The worker of `point` broke off in mid-request: no answer will come.
    pub fn broke_off(&mut self, point: &Key) {
        if let Some(line) = self.by_point.get_mut(point) {
            line.sending = false;
        }
        self.ground(point);
        self.drop_if_idle(point);
    }

    pub(super) fn notify(&self, point: &Key) {
        if let Some(line) = self.by_point.get(point) {
            line.changed.notify_one();
        }
    }
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
