//! Meaning of receivers' answers: no clock, no network.
//!
//! A refusal does not fail an entry: the receiver may refuse everything. A refused entry stays Pending, and no later
//! entry of its `TrackedField` overtakes it. Once the receiver has accepted another message, the entry is sent once
//! more, alone; if refused again, the entry fails.

use std::time::{Duration, Instant};

use qm_runtime::Key;

use super::line::{AfterRefusal, Batch, FAILING_FROM, Gate, Pick, Turn};
use super::lines::{Lines, Request};
use crate::history::{self, Outcome};
use crate::{Failure, Refusal, SendError, Sent};

/// Whom an answer concerns.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Concerned {
    /// `TrackedField`s that have something to write.
    pub fields: Vec<Key>,
    /// Whether the contact point has.
    pub point: bool,
}

impl Lines {
    /// Takes in the answer to a request.
    pub fn answered(
        &mut self,
        point: &Key,
        request: &Request,
        answer: Result<Sent, SendError>,
        now: Instant,
    ) -> Concerned {
        let mut concerned = Concerned::default();
        let was_failing = self.failing(point).is_some();
        if let Some(line) = self.by_point.get_mut(point) {
            line.sending = false;
        }
        let departed = self.departed(point, &request.picks);
        let current = self
            .by_point
            .get(point)
            .is_some_and(|line| line.edition == request.edition);
        match answer {
            Ok(sent) => {
                // Delivered is delivered, also when the endpoint has changed since.
                for pick in request.picks.iter().take(sent.taken) {
                    self.flights.settle(pick, &Outcome::Delivered);
                    concerned.fields.push(pick.field.clone());
                }
                if current && let Some(line) = self.by_point.get_mut(point) {
                    line.batch = None;
                    concerned.point |= line.accept(&sent, &request.picks);
                }
            }
            Err(SendError { failure, carried }) if current => match failure {
                Failure::Retry { message, after } => {
                    concerned = self.failed(point, request, carried, message, after, now);
                }
                Failure::Unsent { message } => {
                    concerned = self.failed(point, request, 0, message, None, now);
                }
                Failure::Refused { reason, message } => {
                    let refusal = (reason, &*message, carried);
                    concerned.point |=
                        self.refused(point, request, refusal, &mut concerned.fields, now);
                }
            },
            Err(_) => {}
        }
        // The receiver's answer to an object that was deleted or moved meanwhile concerns nobody here.
        for field in &departed {
            self.forget(point, field);
        }
        self.abandon_batch(point);
        if self
            .by_point
            .get(point)
            .is_none_or(|line| line.batch.is_none())
        {
            self.ground(point);
        }
        // The messages may have been deleted while the request was in flight.
        concerned.point |= was_failing
            && self
                .by_point
                .get(point)
                .is_some_and(|line| !self.has_messages(line));
        concerned.fields.sort();
        concerned.fields.dedup();
        self.notify(point);
        self.drop_if_idle(point);
        concerned
    }

    /// Handles an answer after which the request may be accepted later.
    fn failed(
        &mut self,
        point: &Key,
        request: &Request,
        carried: usize,
        message: String,
        after: Option<Duration>,
        now: Instant,
    ) -> Concerned {
        let mut concerned = Concerned {
            fields: self.expire(request, carried, &message),
            point: false,
        };
        let patience = self.patience;
        let Some(line) = self.by_point.get_mut(point) else {
            return concerned;
        };
        if !concerned.fields.is_empty() {
            line.batch = None;
        }
        concerned.point = line.retry(message, after, patience, now);
        if line.failures == FAILING_FROM {
            // The contact point stays ready, and its message says that messages wait.
            concerned.point |= line.stage == Gate::Open;
            concerned.fields.extend(line.offers.keys().cloned());
        }
        concerned
    }

    /// Expires the entries that were too old when this failed attempt began; returns their `TrackedField`s.
    fn expire(&mut self, request: &Request, carried: usize, message: &str) -> Vec<Key> {
        let max_age = self.patience.max_age;
        let waited = |pick: &Pick| {
            self.ages
                .get(&pick.field)
                .map(|ages| ages.waited(&pick.id, request.began))
        };
        let carried = request.picks.iter().take(carried);
        let expired: Vec<_> = carried
            .filter(|pick| waited(pick).is_some_and(|age| age > max_age))
            .collect();
        for pick in &expired {
            self.flights.settle(
                pick,
                &Outcome::Expired {
                    reason: history::expired(max_age, message),
                },
            );
        }
        expired.into_iter().map(|pick| pick.field.clone()).collect()
    }

    /// Handles a refused request; returns whether the contact point's status changes.
    fn refused(
        &mut self,
        point: &Key,
        request: &Request,
        (reason, message, carried): (Refusal, &str, usize),
        fields: &mut Vec<Key>,
        now: Instant,
    ) -> bool {
        let patience = self.patience;
        let Some(line) = self.by_point.get_mut(point) else {
            return false;
        };
        let Some(pick) = request.picks.first().filter(|_| reason.may_be_message()) else {
            // No entry can be the cause of this refusal.
            line.answers.refuse_test(reason, message);
            let news = line.stop(patience, now);
            fields.extend(self.expire(request, carried, message));
            return news;
        };
        if carried > 1 {
            line.answers
                .refuse_digest(reason, message, request.picks.iter().take(carried));
            line.batch = None;
            line.go_on();
            return false;
        }
        let last =
            line.stage == Gate::Open && line.answers.turn_of(&pick.field, &pick.id) == Turn::Last;
        if !request.plain
            && pick.object.spec.template.is_some()
            && (last || reason.suggests_message())
        {
            line.batch = Some(Batch {
                picks: vec![pick.clone()],
                plain: true,
            });
            line.go_on();
            return false;
        }
        line.batch = None;
        if last {
            line.answers.fail_entry(pick);
            line.go_on();
            self.flights.settle(
                pick,
                &Outcome::Failed {
                    reason: message.to_owned(),
                },
            );
            fields.push(pick.field.clone());
            return false;
        }
        let expired = self.expire(request, carried, message);
        let Some(line) = self.by_point.get_mut(point) else {
            return false;
        };
        let after = line
            .answers
            .refuse_entry(reason, message, pick, expired.is_empty());
        fields.extend(expired);
        if after == AfterRefusal::GoOn && line.stage == Gate::Open {
            line.go_on();
            return false;
        }
        let is_stopped = line.stage == Gate::Stopped;
        self.ground(point);
        let alternates = reason.suggests_message() && is_stopped && self.alternates(point);
        let Some(line) = self.by_point.get_mut(point) else {
            return false;
        };
        if alternates {
            line.stop_silently();
            return false;
        }
        line.stop(patience, now)
    }
}
