//! What is sent next, and what an answer means: no clock, no network.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use tokio::sync::Notify;

use super::line::{Batch, FAILING_FROM, Gate, Line, Offer, oldest};
use super::{Patience, Stage, Standing};
use crate::api::TrackedField;
use crate::controllers::tracked_field::history::{self, Outcome};
use crate::notify::{Endpoint, Failure, Item, Sent};
use crate::runtime::Key;

/// How many entries one request is given to choose from: what is in flight cannot be merged when an outbox is full, so
/// it must stay well below the 500 that one holds.
const BATCH: usize = 100;

/// The lines of all contact points.
#[derive(Default)]
pub struct Lines {
    by_point: HashMap<Key, Line>,
    /// Which line the entries of a `TrackedField` wait in.
    places: HashMap<Key, Key>,
    /// Entries being sent, or sent and not yet recorded: no line takes another one of the same `TrackedField`.
    flying: HashMap<Key, Vec<Flying>>,
}

struct Flying {
    id: String,
    line: Key,
    outcome: Option<Outcome>,
}

/// What to send next.
pub struct Request {
    /// Where.
    pub endpoint: Endpoint,
    /// What; empty for the test message.
    pub items: Vec<Item>,
    /// Without any template of a user's.
    pub plain: bool,
    edition: u64,
}

/// What a line is to do now.
pub enum Next {
    /// Send something.
    Send,
    /// Wait for a change, until then at the latest.
    Wait(Option<Instant>),
}

/// Whom an answer concerns.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Concerned {
    /// `TrackedField`s that have something to write.
    pub fields: Vec<Key>,
    /// Whether the contact point has.
    pub point: bool,
}

impl Lines {
    /// What will tell the worker that the line needs of changes; none if it has one already.
    pub fn configure(&mut self, point: &Key, endpoint: Endpoint, stage: Stage) -> Option<Arc<Notify>> {
        self.ground(point);
        let line = self.by_point.entry(point.clone()).or_default();
        line.endpoint = Some(endpoint);
        line.edition += 1;
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
        let Some(line) = self.by_point.get_mut(point) else { return };
        line.endpoint = None;
        line.stage = Gate::Closed;
        line.standing = None;
        line.edition += 1;
        line.rest();
    }

    pub fn remove(&mut self, point: &Key) {
        self.close(point);
        self.drop_if_idle(point);
    }

    /// A line without an endpoint stays only for what waits in it, or is in the air.
    fn drop_if_idle(&mut self, point: &Key) {
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

    /// How many more entries wait than before.
    pub fn offer(&mut self, point: &Key, object: &Arc<TrackedField>) -> i64 {
        let field = Key::of(object.as_ref());
        // What nobody can send (an entry without an id) is no work.
        let pending = history::pending(object.status.as_deref().unwrap_or_default()).count();
        let mut before = 0;
        if pending == 0 || self.places.get(&field).is_some_and(|place| place != point) {
            before = self.take_out(&field);
        }
        if pending == 0 {
            return -signed(before);
        }
        let line = self.by_point.entry(point.clone()).or_default();
        let offer = Offer { object: Arc::clone(object), pending };
        before += line.offers.insert(field.clone(), offer).map_or(0, |offer| offer.pending);
        line.changed.notify_one();
        self.places.insert(field, point.clone());
        signed(pending) - signed(before)
    }

    /// How many more entries wait than before.
    pub fn withdraw(&mut self, field: &Key, gone: bool) -> i64 {
        let before = self.take_out(field);
        if gone {
            for flying in self.flying.remove(field).unwrap_or_default() {
                self.notify(&flying.line);
            }
        }
        -signed(before)
    }

    pub fn outcomes(&self, field: &Key) -> Vec<(String, Outcome)> {
        let flying = self.flying.get(field).into_iter().flatten();
        flying.filter_map(|entry| Some((entry.id.clone(), entry.outcome.clone()?))).collect()
    }

    pub fn recorded(&mut self, field: &Key, outcomes: &[(String, Outcome)]) {
        let Some(flying) = self.flying.get_mut(field) else { return };
        let (done, rest) = std::mem::take(flying)
            .into_iter()
            .partition(|entry| entry.outcome.is_some() && outcomes.iter().any(|(id, _)| *id == entry.id));
        *flying = rest;
        if flying.is_empty() {
            self.flying.remove(field);
        }
        let done: Vec<Flying> = done;
        for entry in done {
            self.notify(&entry.line);
        }
        if let Some(place) = self.places.get(field).cloned() {
            self.notify(&place);
        }
    }

    pub fn in_flight(&self, field: &Key) -> HashSet<String> {
        self.flying.get(field).into_iter().flatten().map(|entry| entry.id.clone()).collect()
    }

    pub fn nothing_flies(&self) -> bool {
        self.flying.is_empty()
    }

    /// Whether the line of `point` is the one that `changed` tells of: another one of that name has another worker.
    pub fn is_that_of(&self, point: &Key, changed: &Arc<Notify>) -> bool {
        self.by_point.get(point).is_some_and(|line| Arc::ptr_eq(&line.changed, changed))
    }

    pub fn endpoint(&self, point: &Key) -> Option<Endpoint> {
        self.by_point.get(point)?.endpoint.clone()
    }

    /// What the line of `point` is to do at `now`.
    pub fn next(&self, point: &Key, now: Instant) -> Next {
        let Some(line) = self.by_point.get(point) else { return Next::Wait(None) };
        let unrecorded = self.flying.values().flatten().any(|entry| entry.line == *point && entry.outcome.is_some());
        let something = match line.stage {
            Gate::Closed | Gate::Tested => false,
            Gate::Test | Gate::Stopped => true,
            Gate::Open => line.batch.is_some() || self.sendable(line).next().is_some(),
        };
        match line.not_before {
            _ if unrecorded || !something || line.endpoint.is_none() => Next::Wait(None),
            Some(instant) if instant > now => Next::Wait(Some(instant)),
            _ => Next::Send,
        }
    }

    /// Offers of a line with nothing in the air.
    fn sendable<'a>(&'a self, line: &'a Line) -> impl Iterator<Item = &'a Offer> {
        line.offers.iter().filter(|(field, _)| !self.flying.contains_key(*field)).map(|(_, offer)| offer)
    }

    /// The request to send now, if there still is one. Its entries are in flight from here on.
    pub fn take(&mut self, point: &Key, now: Instant) -> Option<Request> {
        if !matches!(self.next(point, now), Next::Send) {
            return None;
        }
        self.ground(point);
        let line = self.by_point.get(point)?;
        let batch = match (&line.batch, line.stage) {
            (_, Gate::Test) => Batch { items: Vec::new(), plain: false },
            (Some(batch), _) if line.still_waits(batch) => batch.clone(),
            (_, Gate::Stopped) => Batch { items: oldest(self.sendable(line), 1), plain: false },
            _ => Batch { items: oldest(self.sendable(line), if line.singly > 0 { 1 } else { BATCH }), plain: false },
        };
        if batch.items.is_empty() && line.stage == Gate::Open {
            self.by_point.get_mut(point)?.batch = None;
            return None;
        }
        for item in &batch.items {
            let field = Key::new(&item.namespace, &item.name);
            let id = item.entry.id.clone().unwrap_or_default();
            self.flying.entry(field).or_default().push(Flying { id, line: point.clone(), outcome: None });
        }
        let line = self.by_point.get_mut(point)?;
        let endpoint = line.endpoint.clone()?;
        let request = Request { endpoint, items: batch.items.clone(), plain: batch.plain, edition: line.edition };
        line.batch = (!batch.items.is_empty()).then_some(batch);
        line.sending = true;
        Some(request)
    }

    /// Takes in the answer to a request.
    pub fn answered(
        &mut self,
        point: &Key,
        request: &Request,
        answer: Result<Sent, Failure>,
        patience: Patience,
        now: Instant,
    ) -> Concerned {
        let mut concerned = Concerned::default();
        if let Some(line) = self.by_point.get_mut(point) {
            line.sending = false;
        }
        let current = self.by_point.get(point).is_some_and(|line| line.edition == request.edition);
        match answer {
            Ok(sent) => {
                // Delivered is delivered, also when the endpoint has changed since.
                self.settle(point, request, sent.taken, &Outcome::Delivered, &mut concerned);
                if current && let Some(line) = self.by_point.get_mut(point) {
                    concerned.point |= line.taken(&sent);
                }
            }
            Err(Failure::Rejected { message, carried }) if !request.items.is_empty() => {
                self.rejected(point, request, carried, message, current, &mut concerned);
            }
            Err(failure) => {
                if current && let Some(line) = self.by_point.get_mut(point) {
                    concerned.point |= line.refused(failure, patience, now);
                    if line.failures == FAILING_FROM {
                        concerned.fields.extend(line.offers.keys().cloned());
                    }
                }
                self.release(point);
            }
        }
        self.notify(point);
        self.drop_if_idle(point);
        concerned
    }

    /// The receiver does not take these entries.
    fn rejected(
        &mut self,
        point: &Key,
        request: &Request,
        carried: usize,
        message: String,
        current: bool,
        concerned: &mut Concerned,
    ) {
        let Some(line) = self.by_point.get_mut(point).filter(|_| current) else {
            self.ground(point);
            return;
        };
        let first = &request.items[0];
        if carried > 1 {
            line.singly = carried;
            line.batch = None;
            self.ground(point);
        } else if !request.plain && (first.template.is_some() || request.endpoint.has_template()) {
            line.batch = Some(Batch { items: vec![first.clone()], plain: true });
        } else {
            self.settle(point, request, 1, &Outcome::Failed { reason: message }, concerned);
        }
        // It answers: this is no failure of the receiver's.
        if let Some(line) = self.by_point.get_mut(point) {
            concerned.point |= line.taken(&Sent::default());
        }
    }

    /// The first `count` entries of the request have an outcome; the rest of it was not carried.
    fn settle(&mut self, point: &Key, request: &Request, count: usize, outcome: &Outcome, concerned: &mut Concerned) {
        for item in request.items.iter().take(count) {
            let field = Key::new(&item.namespace, &item.name);
            let flying = self.flying.get_mut(&field).into_iter().flatten();
            for entry in flying.filter(|entry| Some(&entry.id) == item.entry.id.as_ref()) {
                entry.outcome = Some(outcome.clone());
            }
            if concerned.fields.last() != Some(&field) {
                concerned.fields.push(field);
            }
        }
        concerned.fields.sort();
        concerned.fields.dedup();
        if let Some(line) = self.by_point.get_mut(point) {
            line.batch = None;
            line.singly = line.singly.saturating_sub(count);
        }
        self.ground(point);
    }

    /// What is in flight from `point` without an outcome is not, any more; unless its answer is still to come.
    fn ground(&mut self, point: &Key) {
        if self.by_point.get(point).is_some_and(|line| line.sending) {
            return;
        }
        let mut freed = Vec::new();
        self.flying.retain(|field, flying| {
            flying.retain(|entry| entry.line != *point || entry.outcome.is_some());
            if flying.is_empty() {
                freed.push(field.clone());
            }
            !flying.is_empty()
        });
        // Another line may have waited for it.
        for place in freed.iter().filter_map(|field| self.places.get(field)).filter(|place| *place != point) {
            self.notify(place);
        }
    }

    /// Unless it is in the air, a request of which an entry no longer waits here is not sent again: the others are free.
    fn release(&mut self, point: &Key) {
        if let Some(line) = self.by_point.get_mut(point) {
            if line.batch.as_ref().is_some_and(|batch| !line.sending && !line.still_waits(batch)) {
                line.batch = None;
            }
            if line.batch.is_some() {
                return;
            }
        }
        self.ground(point);
    }

    /// How many entries waited.
    fn take_out(&mut self, field: &Key) -> usize {
        let Some(place) = self.places.remove(field) else { return 0 };
        let Some(line) = self.by_point.get_mut(&place) else { return 0 };
        let waited = line.offers.remove(field).map_or(0, |offer| offer.pending);
        line.changed.notify_one();
        self.release(&place);
        self.drop_if_idle(&place);
        waited
    }

    fn notify(&self, point: &Key) {
        if let Some(line) = self.by_point.get(point) {
            line.changed.notify_one();
        }
    }
}

fn signed(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
