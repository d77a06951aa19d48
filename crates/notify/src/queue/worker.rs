//! Worker of one queue: waits for the next request, sends it and wakes the affected objects.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use jiff::Timestamp;
use qm_runtime::ObjectKey;
use qm_runtime::tasks;
use qm_runtime::telemetry::traces;
use tokio::sync::Notify;
use tracing::field::Empty;
use tracing::{Instrument, debug, error, info, info_span, warn};
use uuid::Uuid;

use super::entries::DeliveryRequest;
use super::queues::QueueStep;
use super::response::AffectedObjects;
use super::{InitialState, Outbox, TestMessage};
use crate::metrics::{DeliveryResult, ReceiverType};
use crate::{Endpoint, MessageContent, SendError, SendFailure, SendReceipt, Transport};

impl<T: Transport> Outbox<T> {
    /// Sets the endpoint of the queue of `point`, and the age of the oldest waiting entry at which a request begins. A new
    /// configuration resets the queue to `initial_state`; the same one keeps the receiver's state.
    pub fn configure(
        self: &Arc<Self>,
        point: &ObjectKey,
        endpoint: Endpoint,
        digest_delay: Duration,
        initial_state: InitialState,
        test: TestMessage,
    ) {
        let mut queues = self.queues();
        let worker = queues.configure(
            point,
            endpoint,
            digest_delay,
            initial_state,
            test,
            Instant::now(),
        );
        if let Some(changed) = worker {
            tokio::spawn(run(Arc::clone(self), point.clone(), changed));
        }
    }
}

/// Runs the worker of the queue of `point`, as long as `changed` belongs to that queue.
async fn run<T: Transport>(outbox: Arc<Outbox<T>>, point: ObjectKey, changed: Arc<Notify>) {
    while let Err(panic) = AssertUnwindSafe(work(&outbox, &point, &changed))
        .catch_unwind()
        .await
    {
        let (namespace, name) = (&*point.namespace, &*point.name);
        error!(
            namespace,
            name,
            panic = tasks::panic_message(&*panic),
            "worker panicked; will retry"
        );
        outbox.queues().abort_request(&point);
        outbox.progress.notify_waiters();
        tokio::time::sleep(outbox.retry_policy.stopped).await;
    }
}

async fn work<T: Transport>(outbox: &Arc<Outbox<T>>, point: &ObjectKey, changed: &Arc<Notify>) {
    while outbox.queues().is_current_worker(point, changed) {
        let next = outbox.queues().next(point, Instant::now());
        match next {
            QueueStep::Send => send(outbox, point, changed).await,
            QueueStep::Stopped => outbox.point_trigger.wake(point),
            QueueStep::Wait(None) => changed.notified().await,
            QueueStep::Wait(Some(until)) => {
                tokio::select! {
                    () = changed.notified() => {}
                    () = tokio::time::sleep_until(until.into()) => {}
                }
            }
        }
    }
}

async fn send<T: Transport>(outbox: &Arc<Outbox<T>>, point: &ObjectKey, changed: &Notify) {
    let endpoint = outbox.queues().endpoint(point);
    let Some((endpoint, revision)) = endpoint else {
        return;
    };
    let mut permit = std::pin::pin!(outbox.transport.acquire(&endpoint, &point.namespace));
    loop {
        tokio::select! {
            biased;
            () = &mut permit => break,
            () = changed.notified() => {}
        }
        // The rate limit belongs to the endpoint: a new endpoint need not wait for it.
        if !outbox.queues().is_configured(point, revision) {
            return;
        }
    }
    if outbox.draining.is_cancelled() {
        // The process is shutting down and will abort this task.
        return std::future::pending().await;
    }
    // The choice follows the wait, so that the request includes entries that arrived meanwhile.
    let request = outbox
        .queues()
        .start_request(point, revision, Instant::now());
    let Some(request) = request else { return };
    let span = info_span!(
        "send",
        namespace = &*point.namespace,
        name = &*point.name,
        "messaging.batch.message_count" = Empty,
        "otel.status_code" = Empty,
    );
    traces::set_origins(&span, request.origins());
    let response = tokio::select! {
        response = send_request(outbox, point, &request).instrument(span.clone()) => response,
        () = outbox.aborted.cancelled() => return std::future::pending().await,
    };
    log_response(outbox, point, &request, &response);
    let messages = i64::try_from(request.ids().count().max(1)).unwrap_or(i64::MAX);
    span.record("messaging.batch.message_count", messages);
    if response.is_err() {
        span.record("otel.status_code", "ERROR");
    }
    drop(span);
    let AffectedObjects {
        fields,
        point: wakes_point,
    } = outbox
        .queues()
        .on_response(point, &request, response, Instant::now());
    outbox.progress.notify_waiters();
    for field in &fields {
        outbox.field_trigger.wake(field);
    }
    if wakes_point {
        outbox.point_trigger.wake(point);
    }
}

async fn send_request<T: Transport>(
    outbox: &Outbox<T>,
    point: &ObjectKey,
    request: &DeliveryRequest,
) -> Result<SendReceipt, SendFailure> {
    let read_error = |error| SendError::Unsent {
        message: format!("cannot read pending entries: {error}"),
    };
    let items = request
        .outgoing_entries()
        .map_err(|error| SendFailure::new(read_error(error), 0))?;
    let content = if request.is_test() {
        MessageContent::Test {
            namespace: &point.namespace,
            name: &point.name,
            id: &request.test_id,
        }
    } else {
        MessageContent::Entries(&items)
    };
    outbox
        .transport
        .send(&request.endpoint, content, request.plain)
        .await
}

fn log_response<T: Transport>(
    outbox: &Outbox<T>,
    point: &ObjectKey,
    request: &DeliveryRequest,
    response: &Result<SendReceipt, SendFailure>,
) {
    let receiver = ReceiverType::of(&request.endpoint);
    let (namespace, name) = (&*point.namespace, &*point.name);
    match response {
        Ok(receipt) => {
            debug!(namespace, name, entries = receipt.accepted, "sent");
            outbox
                .metrics
                .attempted(receiver, DeliveryResult::Delivered);
            let now = Timestamp::now();
            for age in request
                .ids()
                .take(receipt.accepted)
                .filter_map(|id| age(id, now))
            {
                outbox.metrics.delivered_after(age);
            }
        }
        Err(SendFailure {
            error: SendError::Retry { message, after },
            ..
        }) => {
            let after = after.map(|after| after.as_secs_f64());
            info!(
                namespace,
                name, message, after, "request failed; will retry"
            );
            outbox.metrics.attempted(receiver, DeliveryResult::Retried);
        }
        Err(SendFailure {
            error: SendError::Unsent { message },
            ..
        }) => {
            info!(namespace, name, message, "request not sent; will retry");
            outbox.metrics.attempted(receiver, DeliveryResult::Retried);
        }
        Err(SendFailure {
            error: SendError::Refused { reason, message },
            carried,
        }) => {
            warn!(
                namespace,
                name,
                message,
                reason = reason.as_str(),
                entries = carried,
                "receiver refused the request"
            );
            let rejected = reason.is_rejection();
            outbox.metrics.attempted(
                receiver,
                if rejected {
                    DeliveryResult::Rejected
                } else {
                    DeliveryResult::Stopped
                },
            );
        }
    }
}

/// Returns the age of an entry by the time in its id, in milliseconds.
fn age(id: &str, now: Timestamp) -> Option<Duration> {
    let (seconds, nanoseconds) = Uuid::parse_str(id).ok()?.get_timestamp()?.to_unix();
    let created = Timestamp::new(
        i64::try_from(seconds).ok()?,
        i32::try_from(nanoseconds).ok()?,
    )
    .ok()?;
    Duration::try_from(now.duration_since(created)).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::future;
    use std::time::Duration;

    use qm_api::contact_point::ChatId;
    use qm_runtime::ObjectKey;
    use qm_runtime::backoff::BackoffPolicy;
    use qm_runtime::trigger::Trigger;
    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;

    use super::super::{InitialState, Outbox, RetryPolicy, TestMessage};
    use crate::metrics::DeliveryMetrics;
    use crate::telegram::TelegramChat;
    use crate::{Endpoint, MessageContent, SendFailure, SendReceipt, Transport};

    /// Transport without responses, which reports when a request starts and when it is aborted.
    struct FakeHangingTransport(mpsc::UnboundedSender<&'static str>);

    struct AbortReporter<'a>(&'a FakeHangingTransport);

    impl Drop for AbortReporter<'_> {
        fn drop(&mut self) {
            self.0.0.send("aborted").unwrap();
        }
    }

    impl Transport for FakeHangingTransport {
        async fn acquire(&self, _: &Endpoint, _: &str) {}

        async fn send(
            &self,
            _: &Endpoint,
            _: MessageContent<'_>,
            _: bool,
        ) -> Result<SendReceipt, SendFailure> {
            self.0.send("started").unwrap();
            let _reporter = AbortReporter(self);
            future::pending().await
        }
    }

    #[tokio::test]
    async fn drain_aborts_requests_when_dropped() {
        let (sender, mut events) = mpsc::unbounded_channel();
        let policy = BackoffPolicy {
            min: std::time::Duration::ZERO,
            max: std::time::Duration::ZERO,
        };
        let retry_policy = RetryPolicy {
            backoff: policy,
            stopped: policy.max,
            max_age: policy.max,
        };
        let (fields, points, draining) = (
            Trigger::default(),
            Trigger::default(),
            CancellationToken::new(),
        );
        let outbox = Outbox::new(
            FakeHangingTransport(sender),
            retry_policy,
            DeliveryMetrics::new(),
            fields,
            points,
            draining,
        );
        let chat = TelegramChat::new(b"1:a", ChatId::Id(1), None, false).unwrap();
        outbox.configure(
            &ObjectKey::new("n", "p"),
            Endpoint::Telegram(chat),
            Duration::ZERO,
            InitialState::Test,
            TestMessage::default(),
        );
        assert_eq!(events.recv().await, Some("started"));
        tokio::select! {
            biased;
            () = outbox.drain() => panic!("the request is still in flight"),
            () = tokio::task::yield_now() => {}
        }
        assert_eq!(events.recv().await, Some("aborted"));
    }
}
