//! What waits, and what is sent next: no clock, no network.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet, hash_map};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use serde::de::Error as _;
use tokio::sync::Notify;

use super::flights::Flights;
use super::line::{Batch, FAILING_FROM, Gate, Line, Offer, Pick};
use super::{Stage, Standing};
use crate::api::TrackedField;
use crate::controllers::tracked_field::history::{self, Outcome};
use crate::notify::{Endpoint, Item};
use crate::runtime::Key;
use crate::runtime::telemetry::traces::Origin;

/// How many entries one request is given to choose from: what is in flight cannot be merged when an outbox is full, so
/// it must stay well below the 500 that one holds.
const BATCH: usize = 100;

/// The lines of all contact points.
#[derive(Default)]
pub struct Lines {
    pub(super) by_point: HashMap<Key, Line>,
    /// Which line the entries of a `TrackedField` wait in.
    places: HashMap<Key, Key>,
    pub(super) flights: Flights,
    /// How many configurations there have been.
    editions: u64,
}

/// What to send next.
pub struct Request {
    /// Where.
    pub endpoint: Endpoint,
    /// Of what; of nothing, for the test message.
    pub(super) picks: Vec<Pick>,
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
        for Pick { field, object, id, .. } in &self.picks {
            let (template, history) = match opened.entry(field) {
                hash_map::Entry::Occupied(known) => known.into_mut(),
                hash_map::Entry::Vacant(new) => {
                    new.insert((object.spec.template.as_deref().map(Arc::<str>::from), object.history()?))
                }
            };
            let (entry, previous) = history::pending(history)
                .find(|(entry, _)| entry.id.as_deref() == Some(&**id))
                .ok_or_else(|| serde_json::Error::custom(format!("entry {id} does not wait in it")))?;
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
}

impl Lines {
    /// What will tell the worker that the line needs of changes; none if it has one already.
    pub fn configure(&mut self, point: &Key, endpoint: Endpoint, stage: Stage) -> Option<Arc<Notify>> {
        self.ground(point);
        self.editions += 1;
        let line = self.by_point.entry(point.clone()).or_default();
        line.endpoint = Some(endpoint);
        line.edition = self.editions;
        line.standing = None;
        line.stage = match stage {
            Stage::Test => Gate::Test,
            Stage::Open => Gate::Open,
            Stage::Probe => Gate::Stopped,
        };
        line.rest();
        (!std::mem::replace(&mut line.has_worker, true)).then(|| Arc::clone(&line.changed))
    }

    pub fn open(&mut self, point: &Key) {
        let Some(line) = self.by_point.get_mut(point) else { return };
        if line.stage == Gate::Tested {
            line.stage = Gate::Open;
            line.changed.notify_one();
        }
    }

    pub fn close(&mut self, point: &Key) {
        self.ground(point);
        self.editions += 1;
        let Some(line) = self.by_point.get_mut(point) else { return };
        line.endpoint = None;
        line.stage = Gate::Closed;
        line.standing = None;
        line.edition = self.editions;
        line.rest();
    }

    pub fn remove(&mut self, point: &Key) {
        self.close(point);
        self.drop_if_idle(point);
    }

    /// A line without an endpoint stays only for what waits in it, or is in the air.
    pub(super) fn drop_if_idle(&mut self, point: &Key) {
        let idle = |line: &Line| line.endpoint.is_none() && line.offers.is_empty() && !line.sending;
        if self.by_point.get(point).is_some_and(idle)
            && let Some(line) = self.by_point.remove(point)
        {
            line.changed.notify_one();
        }
    }

    pub fn retry_now(&mut self, point: &Key, now: Instant) {
        let Some(line) = self.by_point.get_mut(point) else { return };
        line.backoff = None;
        line.not_before = line.not_before.map(|_| now);
        line.changed.notify_one();
    }

    pub fn standing(&self, point: &Key) -> Standing {
        self.by_point.get(point).and_then(|line| line.standing.clone()).unwrap_or(Standing::Untried)
    }

    pub fn failing(&self, point: &Key) -> Option<String> {
        let line = self.by_point.get(point)?;
        match &line.standing {
            Some(Standing::Retrying(message)) if line.failures >= FAILING_FROM => Some(message.clone()),
            _ => None,
        }
    }

    /// Since when the oldest of all waits that may be sent.
    pub fn oldest_since(&self) -> Option<Timestamp> {
        self.by_point.values().flat_map(|line| line.offers.values()).filter_map(|offer| offer.since).min()
    }

    /// How many more entries wait than before.
    pub fn offer(&mut self, point: &Key, offer: Offer) -> i64 {
        let field = Key::of(offer.object.as_ref());
        let before = self.take_out(&field);
        let before = before.map_or(0, |(place, waited)| {
            if place != *point {
                self.abandon_batch(&place);
                self.drop_if_idle(&place);
            }
            waited
        });
        let pending = offer.ids.len();
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
        let line = self.places.get(&field).and_then(|place| self.by_point.get_mut(place));
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

    /// How many more entries wait than before.
    pub fn withdraw(&mut self, field: &Key, gone: bool) -> i64 {
        let before = self.take_out(field);
        if gone {
            for line in self.flights.forget(field) {
                self.notify(&line);
            }
        }
        let Some((place, waited)) = before else { return 0 };
        self.abandon_batch(&place);
        self.drop_if_idle(&place);
        -signed(waited)
    }

    pub fn outcomes(&self, field: &Key) -> Vec<(String, Outcome)> {
        self.flights.outcomes(field)
    }

    pub fn recorded(&mut self, field: &Key, outcomes: &[(String, Outcome)]) {
        for line in self.flights.recorded(field, outcomes) {
            self.notify(&line);
        }
        if let Some(place) = self.places.get(field) {
            self.notify(place);
        }
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
        self.by_point.get(point).is_some_and(|line| Arc::ptr_eq(&line.changed, changed))
    }

    /// Where the line of `point` sends, and which configuration that is.
    pub fn endpoint(&self, point: &Key) -> Option<(Endpoint, u64)> {
        let line = self.by_point.get(point)?;
        Some((line.endpoint.clone()?, line.edition))
    }

    /// Whether the line of `point` still has that configuration.
    pub fn is_configured(&self, point: &Key, edition: u64) -> bool {
        self.by_point.get(point).is_some_and(|line| line.edition == edition)
    }

    /// What the line of `point` is to do at `now`.
    pub fn next(&self, point: &Key, now: Instant) -> Next {
        let Some(line) = self.by_point.get(point) else { return Next::Wait(None) };
        let unrecorded = self.flights.unrecorded(point);
        let something = match line.stage {
            Gate::Closed | Gate::Tested => false,
            Gate::Test | Gate::Stopped => true,
            Gate::Open => line.batch.is_some() || self.sendable(line).next().is_some(),
        };
        match line.not_before {
            _ if unrecorded || !something || line.sending || line.endpoint.is_none() => Next::Wait(None),
            Some(instant) if instant > now => Next::Wait(Some(instant)),
            _ => Next::Send,
        }
    }

    /// Offers of a line with nothing in the air.
    fn sendable<'a>(&'a self, line: &'a Line) -> impl Iterator<Item = (&'a Key, &'a Offer)> {
        line.offers.iter().filter(|(field, _)| !self.flights.has(field))
    }

    /// The request to send now, if there still is one and the line still has that configuration. Its entries are in
    /// flight from here on.
    pub fn take(&mut self, point: &Key, edition: u64, now: Instant) -> Option<Request> {
        if !self.is_configured(point, edition) || !matches!(self.next(point, now), Next::Send) {
            return None;
        }
        self.ground(point);
        let line = self.by_point.get(point)?;
        let batch = match (&line.batch, line.stage) {
            _ if line.asks_with_test_message() => Batch { picks: Vec::new(), plain: false },
            (Some(batch), _) => batch.clone(),
            (_, Gate::Stopped) => Batch { picks: self.oldest(line, 1), plain: false },
            _ => Batch { picks: self.oldest(line, if line.singly > 0 { 1 } else { BATCH }), plain: false },
        };
        if batch.picks.is_empty() && line.stage == Gate::Open {
            return None;
        }
        for pick in &batch.picks {
            self.flights.take_off(point, pick);
        }
        let line = self.by_point.get_mut(point)?;
        let endpoint = line.endpoint.clone()?;
        let request = Request { endpoint, picks: batch.picks.clone(), plain: batch.plain, edition: line.edition };
        line.batch = (!batch.picks.is_empty()).then_some(batch);
        line.sending = true;
        Some(request)
    }

    /// The oldest pending entries of a line. Ids are `UUIDv7`: they sort by time.
    fn oldest(&self, line: &Line, count: usize) -> Vec<Pick> {
        let offers: Vec<_> = self.sendable(line).collect();
        let head = |offer: usize, at: usize| offers[offer].1.ids.get(at).map(|id| Reverse((id, offer, at)));
        let mut heads: BinaryHeap<_> = (0..offers.len()).filter_map(|offer| head(offer, 0)).collect();
        let mut oldest = Vec::new();
        while oldest.len() < count
            && let Some(Reverse((id, offer, at))) = heads.pop()
        {
            let (field, Offer { object, origin, .. }) = offers[offer];
            let (object, id) = (Arc::clone(object), Arc::clone(id));
            oldest.push(Pick { field: field.clone(), object, id, origin: origin.clone() });
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
        let Some(line) = self.by_point.get_mut(point) else { return };
        if !line.sending && line.batch.as_ref().is_some_and(|batch| !line.still_waits(batch)) {
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
