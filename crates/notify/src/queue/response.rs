//! The response to a request: outcomes, refusals, and the request that goes next.

use std::sync::Arc;
use std::time::{Duration, Instant};

use qm_runtime::ObjectKey;

use super::entries::{BatchEntry, DeliveryRequest, EntryKey};
use super::queues::{Batch, ContactPointQueue, Queues, RequestState};
use super::receiver::{FAILING_FROM, QueueState};
use super::refusals::{AfterRefusal, EntryState};
use crate::history::{self, DeliveryOutcome};
use crate::{Refusal, SendError, SendFailure, SendReceipt};

/// Attempt to send a request, which its receiver did not accept.
#[derive(Clone, Copy)]
struct FailedAttempt<'a> {
    point: &'a ObjectKey,
    request: &'a DeliveryRequest,
    /// Entries that the request carried.
    carried: &'a [BatchEntry],
    now: Instant,
}

/// Objects whose status a response changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct AffectedObjects {
    /// `TrackedField`s with a new outcome or message.
    pub fields: Vec<ObjectKey>,
    /// True if the contact point must be reconciled: its status changes, or its Secret must be read again.
    pub point: bool,
}

impl Queues {
    /// Handles the response to a request.
    pub(crate) fn on_response(
        &mut self,
        point: &ObjectKey,
        request: &DeliveryRequest,
        response: Result<SendReceipt, SendFailure>,
        now: Instant,
    ) -> AffectedObjects {
        let mut affected = AffectedObjects::default();
        let was_failing = self.failing(point).is_some();
        let departed = self.departed(point, request);
        let is_current = self.is_configured(point, request.revision);
        let mut is_requested_test = false;
        if is_current
            && request.is_test()
            && let Some(receiver) = self.receiver_mut(point)
        {
            is_requested_test = receiver.answer_test_request(&response);
            affected.point |= is_requested_test;
        }
        // If the request was a requested test message, the retry of a batch may still be due.
        let mut retry = self
            .by_contact_point
            .get(point)
            .and_then(ContactPointQueue::in_flight)
            .filter(|_| is_current && request.is_test());
        match response {
            Ok(receipt) => {
                let accepted = first(&request.entries, receipt.accepted);
                // A delivered entry counts even if the endpoint has changed since.
                for entry in accepted {
                    self.set_outcome(point, &entry.key, DeliveryOutcome::Delivered);
                    affected.fields.push(entry.key.field.clone());
                }
                if is_current && let Some(receiver) = self.receiver_mut(point) {
                    affected.point |=
                        receiver.record_accepted(&receipt, accepted, is_requested_test);
                }
            }
            Err(SendFailure { error, carried }) if is_current => {
                let mut failed = FailedAttempt {
                    point,
                    request,
                    carried: first(&request.entries, carried),
                    now,
                };
                retry = match error {
                    SendError::Retry { message, after } => {
                        self.on_retryable_error(&failed, &message, after, &mut affected)
                    }
                    SendError::Unsent { message } => {
                        failed.carried = &[];
                        self.on_retryable_error(&failed, &message, None, &mut affected)
                    }
                    SendError::Refused { reason, message } => {
                        self.on_refusal(&failed, reason, &message, &mut affected)
                    }
                };
            }
            Err(_) => {}
        }
        // A response does not concern objects that were deleted or moved meanwhile.
        for field in &departed {
            self.forget_refusals(point, field);
        }
        self.end_request(point, retry);
        // The messages may have been deleted while the request was in flight.
        affected.point |= was_failing
            && self
                .by_contact_point
                .get(point)
                .is_some_and(|queue| !self.has_messages(queue));
        affected.fields.sort();
        affected.fields.dedup();
        self.wake_worker_of(point);
        self.drop_if_idle(point);
        affected
    }

    /// Returns the `TrackedField`s of the request that were deleted or moved away from `point`.
    fn departed(&self, point: &ObjectKey, request: &DeliveryRequest) -> Vec<ObjectKey> {
        let fields = request.entries.iter().map(|entry| &entry.key.field);
        let is_departed = |field: &&ObjectKey| {
            let is_deleted = self.in_flight.get(*field) != Some(point);
            is_deleted || self.queue_of(field).is_some_and(|queue| queue != point)
        };
        fields.filter(is_departed).cloned().collect()
    }

    /// Sets the outcome of an entry in flight, unless its object was deleted meanwhile.
    fn set_outcome(&mut self, point: &ObjectKey, entry: &EntryKey, outcome: DeliveryOutcome) {
        if self.in_flight.get(&entry.field) == Some(point)
            && let Some(queue) = self.by_contact_point.get_mut(point)
        {
            let outcomes = queue.unrecorded.entry(entry.field.clone()).or_default();
            outcomes.push((Arc::clone(&entry.id), outcome));
        }
    }

    /// Handles an error after which the same request may succeed. Returns the request to retry.
    fn on_retryable_error(
        &mut self,
        failed: &FailedAttempt<'_>,
        message: &str,
        after: Option<Duration>,
        affected: &mut AffectedObjects,
    ) -> Option<Batch> {
        let is_expired = self.expire(failed, message, affected);
        let retry_policy = self.retry_policy;
        let queue = self.by_contact_point.get_mut(failed.point)?;
        let receiver = queue.receiver.as_mut()?;
        let is_new_cause = receiver.record_failure(message, after, retry_policy, failed.now);
        let is_newly_failing = receiver.failures == FAILING_FROM;
        // The contact point stays ready, and its message says that messages wait.
        affected.point |= is_new_cause || (is_newly_failing && receiver.state == QueueState::Open);
        // The TrackedFields report the cause.
        if is_newly_failing || (is_new_cause && receiver.failures > FAILING_FROM) {
            affected.fields.extend(queue.waiting.keys().cloned());
        }
        queue.in_flight().filter(|_| !is_expired)
    }

    /// Expires the entries that were too old when this failed attempt started; returns whether there are any.
    fn expire(
        &mut self,
        failed: &FailedAttempt<'_>,
        message: &str,
        affected: &mut AffectedObjects,
    ) -> bool {
        let (max_age, started) = (self.retry_policy.max_age, failed.request.started);
        let is_expired = |entry: &&BatchEntry| {
            let ages = self.ages.get(&entry.key.field);
            ages.is_some_and(|ages| ages.waited(&entry.key.id, started) > max_age)
        };
        let expired: Vec<_> = failed.carried.iter().filter(is_expired).collect();
        for entry in &expired {
            let reason = history::expired(max_age, message);
            self.set_outcome(
                failed.point,
                &entry.key,
                DeliveryOutcome::Expired { reason },
            );
            affected.fields.push(entry.key.field.clone());
        }
        !expired.is_empty()
    }

    /// Handles a refused request. Returns the request to send instead.
    fn on_refusal(
        &mut self,
        failed: &FailedAttempt<'_>,
        reason: Refusal,
        message: &str,
        affected: &mut AffectedObjects,
    ) -> Option<Batch> {
        let FailedAttempt {
            point,
            request,
            carried,
            now,
        } = *failed;
        let receiver = self.receiver_mut(point)?;
        let Some(BatchEntry { key, object, .. }) =
            request.entries.first().filter(|_| reason.is_of_receiver())
        else {
            // No entry can be the cause of this refusal.
            receiver.refusals.record_unrelated_refusal(reason, message);
            affected.point |= self.stop(point, now);
            self.expire(failed, message, affected);
            return None;
        };
        if carried.len() > 1 {
            let entries = carried.iter().map(|entry| &entry.key);
            receiver
                .refusals
                .record_refused_digest(reason, message, entries);
            receiver.clear_backoff();
            for entry in carried {
                self.record_refused(point, &entry.key.field);
            }
            return None;
        }
        let is_open = receiver.state == QueueState::Open;
        let is_last_attempt = is_open
            && receiver.refusals.entry_state(&key.field, &key.id) == EntryState::LastAttempt;
        if !request.plain
            && object.spec.notification.template.is_some()
            && (is_last_attempt || reason.is_rejection())
        {
            receiver.clear_backoff();
            return Some(Batch {
                plain: true,
                ..Batch::of(vec![key.clone()])
            });
        }
        if is_last_attempt {
            receiver.refusals.record_failed_entry(reason, message, key);
            receiver.clear_backoff();
            let reason = message.to_owned();
            self.set_outcome(point, key, DeliveryOutcome::Failed { reason });
            affected.fields.push(key.field.clone());
            return None;
        }
        let is_expired = self.expire(failed, message, affected);
        self.record_refused(point, &key.field);
        let receiver = self.receiver_mut(point)?;
        let refusals = &mut receiver.refusals;
        let after = refusals.record_refused_entry(reason, message, key, !is_expired);
        if after == AfterRefusal::Continue && is_open {
            receiver.clear_backoff();
            return None;
        }
        let may_alternate = reason.is_rejection() && receiver.state == QueueState::Stopped;
        // The refused entry is no longer in flight, so the queue may send it again.
        self.end_request(point, None);
        affected.point |= if may_alternate {
            self.stop_or_alternate(point, now)
        } else {
            self.stop(point, now)
        };
        None
    }

    /// Ends the request in flight; the `retry` goes next.
    fn end_request(&mut self, point: &ObjectKey, retry: Option<Batch>) {
        self.set_request(
            point,
            retry.map_or(RequestState::Idle, RequestState::Retrying),
        );
        self.drop_stale_retry(point);
    }

    /// Ends the request of `point`, whose worker panicked: no response will come.
    pub(crate) fn abort_request(&mut self, point: &ObjectKey) {
        let queue = self.by_contact_point.get(point);
        let retry = queue.and_then(ContactPointQueue::in_flight);
        self.end_request(point, retry);
        self.drop_if_idle(point);
    }
}

fn first(entries: &[BatchEntry], count: usize) -> &[BatchEntry] {
    &entries[..count.min(entries.len())]
}
