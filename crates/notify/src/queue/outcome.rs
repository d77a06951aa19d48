//! Outcomes of receivers' responses: no clock, no network.
//!
//! A refusal does not fail an entry: the receiver may refuse everything. A refused entry stays Pending, and no later
//! entry of its `TrackedField` overtakes it. Once the receiver has accepted another message, the entry is sent once
//! more, alone; if refused again, the entry fails.

use std::time::{Duration, Instant};

use qm_runtime::ObjectKey;

use super::contact_point_queue::{
    AfterRefusal, Batch, BatchEntry, EntryState, FAILING_FROM, QueueState,
};
use super::queues::{DeliveryRequest, Queues};
use crate::history::{self, DeliveryOutcome};
use crate::{Refusal, SendError, SendFailure, SendReceipt};

/// Objects whose status a response changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct AffectedObjects {
    /// `TrackedField`s with a new outcome or message.
    pub fields: Vec<ObjectKey>,
    /// Whether the contact point's status changes.
    pub point: bool,
}

impl Queues {
    /// Handles the response to a request.
    pub fn on_response(
        &mut self,
        point: &ObjectKey,
        request: &DeliveryRequest,
        response: Result<SendReceipt, SendFailure>,
        now: Instant,
    ) -> AffectedObjects {
        let mut affected = AffectedObjects::default();
        let was_failing = self.failing(point).is_some();
        if let Some(queue) = self.by_contact_point.get_mut(point) {
            queue.sending = false;
        }
        let departed = self.departed(point, &request.entries);
        let is_current = self
            .by_contact_point
            .get(point)
            .is_some_and(|queue| queue.revision == request.revision);
        match response {
            Ok(receipt) => {
                // A delivered entry counts even if the endpoint has changed since.
                for entry in request.entries.iter().take(receipt.accepted) {
                    self.in_flight
                        .set_outcome(entry, &DeliveryOutcome::Delivered);
                    affected.fields.push(entry.field.clone());
                }
                if is_current && let Some(queue) = self.by_contact_point.get_mut(point) {
                    queue.batch = None;
                    affected.point |= queue.accept(&receipt, &request.entries);
                }
            }
            Err(SendFailure { error, carried }) if is_current => match error {
                SendError::Retry { message, after } => {
                    affected = self.on_error(point, request, carried, message, after, now);
                }
                SendError::Unsent { message } => {
                    affected = self.on_error(point, request, 0, message, None, now);
                }
                SendError::Refused { reason, message } => {
                    let refusal = (reason, &*message, carried);
                    affected.point |=
                        self.on_refusal(point, request, refusal, &mut affected.fields, now);
                }
            },
            Err(_) => {}
        }
        // The receiver's response to an object that was deleted or moved meanwhile affects nothing here.
        for field in &departed {
            self.forget(point, field);
        }
        self.drop_stale_batch(point);
        if self
            .by_contact_point
            .get(point)
            .is_none_or(|queue| queue.batch.is_none())
        {
            self.abort(point);
        }
        // The messages may have been deleted while the request was in flight.
        affected.point |= was_failing
            && self
                .by_contact_point
                .get(point)
                .is_some_and(|queue| !self.has_messages(queue));
        affected.fields.sort();
        affected.fields.dedup();
        self.notify(point);
        self.drop_if_idle(point);
        affected
    }

    /// Handles an error after which the receiver may accept the request later.
    fn on_error(
        &mut self,
        point: &ObjectKey,
        request: &DeliveryRequest,
        carried: usize,
        message: String,
        after: Option<Duration>,
        now: Instant,
    ) -> AffectedObjects {
        let mut affected = AffectedObjects {
            fields: self.expire(request, carried, &message),
            point: false,
        };
        let retry_policy = self.retry_policy;
        let Some(queue) = self.by_contact_point.get_mut(point) else {
            return affected;
        };
        if !affected.fields.is_empty() {
            queue.batch = None;
        }
        affected.point = queue.retry(message, after, retry_policy, now);
        if queue.failures == FAILING_FROM {
            // The contact point stays ready, and its message says that messages wait.
            affected.point |= queue.state == QueueState::Open;
            affected.fields.extend(queue.pending.keys().cloned());
        }
        affected
    }

    /// Expires the entries that were too old when this failed attempt started; returns their `TrackedField`s.
    fn expire(
        &mut self,
        request: &DeliveryRequest,
        carried: usize,
        message: &str,
    ) -> Vec<ObjectKey> {
        let max_age = self.retry_policy.max_age;
        let waited = |entry: &BatchEntry| {
            self.ages
                .get(&entry.field)
                .map(|ages| ages.waited(&entry.id, request.started))
        };
        let carried = request.entries.iter().take(carried);
        let expired: Vec<_> = carried
            .filter(|entry| waited(entry).is_some_and(|age| age > max_age))
            .collect();
        for entry in &expired {
            self.in_flight.set_outcome(
                entry,
                &DeliveryOutcome::Expired {
                    reason: history::expired(max_age, message),
                },
            );
        }
        expired
            .into_iter()
            .map(|entry| entry.field.clone())
            .collect()
    }

    /// Handles a refused request; returns whether the contact point's status changes.
    fn on_refusal(
        &mut self,
        point: &ObjectKey,
        request: &DeliveryRequest,
        (reason, message, carried): (Refusal, &str, usize),
        fields: &mut Vec<ObjectKey>,
        now: Instant,
    ) -> bool {
        let retry_policy = self.retry_policy;
        let Some(queue) = self.by_contact_point.get_mut(point) else {
            return false;
        };
        let Some(entry) = request.entries.first().filter(|_| reason.may_be_message()) else {
            // No entry can be the cause of this refusal.
            queue.responses.refuse_test(reason, message);
            let is_new = queue.stop(retry_policy, now);
            fields.extend(self.expire(request, carried, message));
            return is_new;
        };
        if carried > 1 {
            queue
                .responses
                .refuse_digest(reason, message, request.entries.iter().take(carried));
            queue.batch = None;
            queue.clear_backoff();
            return false;
        }
        let is_last_attempt = queue.state == QueueState::Open
            && queue.responses.entry_state(&entry.field, &entry.id) == EntryState::LastAttempt;
        if !request.plain
            && entry.object.spec.template.is_some()
            && (is_last_attempt || reason.suggests_message())
        {
            queue.batch = Some(Batch {
                entries: vec![entry.clone()],
                plain: true,
            });
            queue.clear_backoff();
            return false;
        }
        queue.batch = None;
        if is_last_attempt {
            queue.responses.fail_entry(entry);
            queue.clear_backoff();
            self.in_flight.set_outcome(
                entry,
                &DeliveryOutcome::Failed {
                    reason: message.to_owned(),
                },
            );
            fields.push(entry.field.clone());
            return false;
        }
        let expired = self.expire(request, carried, message);
        let Some(queue) = self.by_contact_point.get_mut(point) else {
            return false;
        };
        let after = queue
            .responses
            .refuse_entry(reason, message, entry, expired.is_empty());
        fields.extend(expired);
        if after == AfterRefusal::Continue && queue.state == QueueState::Open {
            queue.clear_backoff();
            return false;
        }
        let is_stopped = queue.state == QueueState::Stopped;
        self.abort(point);
        let alternates = reason.suggests_message() && is_stopped && self.alternates(point);
        let Some(queue) = self.by_contact_point.get_mut(point) else {
            return false;
        };
        if alternates {
            queue.stop_silently();
            return false;
        }
        queue.stop(retry_policy, now)
    }
}
