//! What an answer means: no clock, no network.

use std::time::Instant;

use super::Patience;
use super::line::{Batch, FAILING_FROM, Gate};
use super::lines::{Lines, Request};
use crate::controllers::tracked_field::history::Outcome;
use crate::notify::{Failure, Sent};
use crate::runtime::Key;

/// Whom an answer concerns.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Concerned {
    /// `TrackedField`s that have something to write.
    pub fields: Vec<Key>,
    /// Whether the contact point has.
    pub point: bool,
}

/// A receiver's word that it will never take the first `carried` entries of a request.
struct Refusal {
    message: String,
    carried: usize,
    patience: Patience,
    now: Instant,
}

impl Lines {
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
            Err(Failure::Rejected { message, carried }) if !request.picks.is_empty() => {
                let refusal = Refusal { message, carried, patience, now };
                self.rejected(point, request, refusal, current, &mut concerned);
            }
            Err(failure) => {
                if current && let Some(line) = self.by_point.get_mut(point) {
                    concerned.point |= line.refused(failure, patience, now);
                    if line.failures == FAILING_FROM {
                        concerned.fields.extend(line.offers.keys().cloned());
                    }
                }
                self.abandon_batch(point);
                if self.by_point.get(point).is_none_or(|line| line.batch.is_none()) {
                    self.ground(point);
                }
            }
        }
        self.notify(point);
        self.drop_if_idle(point);
        concerned
    }

    /// The receiver does not take these entries.
    fn rejected(&mut self, point: &Key, request: &Request, refusal: Refusal, current: bool, concerned: &mut Concerned) {
        let Refusal { message, carried, patience, now } = refusal;
        let Some(line) = self.by_point.get_mut(point).filter(|_| current) else {
            self.ground(point);
            return;
        };
        if line.stage == Gate::Stopped {
            // Perhaps it rejects everything now: the entry must not be lost on finding that out.
            concerned.point |= line.refused(Failure::Rejected { message, carried }, patience, now);
            self.ground(point);
            return;
        }
        let first = &request.picks[0];
        if carried > 1 {
            line.singly = carried;
            line.batch = None;
            self.ground(point);
        } else if !request.plain && first.object.spec.template.is_some() {
            line.batch = Some(Batch { picks: vec![first.clone()], plain: true });
        } else {
            self.settle(point, request, 1, &Outcome::Failed { reason: message }, concerned);
        }
        // It answers: this is no failure of the receiver's.
        if let Some(line) = self.by_point.get_mut(point) {
            concerned.point |= line.taken(&Sent::default());
        }
        self.abandon_batch(point);
    }

    /// The first `count` entries of the request have an outcome; the rest of it was not carried.
    fn settle(&mut self, point: &Key, request: &Request, count: usize, outcome: &Outcome, concerned: &mut Concerned) {
        for pick in request.picks.iter().take(count) {
            self.flights.settle(pick, outcome);
            concerned.fields.push(pick.field.clone());
        }
        concerned.fields.sort();
        concerned.fields.dedup();
        if let Some(line) = self.by_point.get_mut(point) {
            line.batch = None;
            line.singly = line.singly.saturating_sub(count);
        }
        self.ground(point);
    }
}
