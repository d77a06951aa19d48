//! The task of one line: waits, sends, tells whom it concerns.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt;
use jiff::Timestamp;
use qm_runtime::Key;
use qm_runtime::tasks;
use qm_runtime::telemetry::traces;
use tokio::sync::Notify;
use tracing::field::Empty;
use tracing::{Instrument, debug, error, info, info_span, warn};
use uuid::Uuid;

use super::Outbox;
use super::answers::Concerned;
use super::lines::{Next, Request};
use crate::metrics::{DeliveryResult, Receiver};
use crate::{Content, Failure, SendError, Sent, Transport};

/// Works off the line of `point` for as long as it is the one that `changed` tells of.
pub async fn run<T: Transport>(outbox: Arc<Outbox<T>>, point: Key, changed: Arc<Notify>) {
    while let Err(panic) = AssertUnwindSafe(work(&outbox, &point, &changed))
        .catch_unwind()
        .await
    {
        let (namespace, name) = (&*point.namespace, &*point.name);
        error!(
            namespace,
            name,
            panic = tasks::words(&*panic),
            "sending panicked; it is tried again"
        );
        outbox.lines().broke_off(&point);
        tokio::time::sleep(outbox.patience.stopped).await;
    }
}

async fn work<T: Transport>(outbox: &Arc<Outbox<T>>, point: &Key, changed: &Arc<Notify>) {
    while outbox.lines().is_that_of(point, changed) {
        let next = outbox.lines().next(point, Instant::now());
        match next {
            Next::Send => send(outbox, point, changed).await,
            Next::Stopped => outbox.points.wake(point),
            Next::Wait(None) => changed.notified().await,
            Next::Wait(Some(until)) => {
                tokio::select! {
                    () = changed.notified() => {}
                    () = tokio::time::sleep_until(until.into()) => {}
                }
            }
        }
    }
}

async fn send<T: Transport>(outbox: &Arc<Outbox<T>>, point: &Key, changed: &Notify) {
    let endpoint = outbox.lines().endpoint(point);
    let Some((endpoint, edition)) = endpoint else {
        return;
    };
    let mut slot = std::pin::pin!(outbox.transport.slot(&endpoint));
    loop {
        tokio::select! {
            biased;
            () = &mut slot => break,
            () = changed.notified() => {}
        }
        // The pace is that of the endpoint: another one does not wait for it.
        if !outbox.lines().is_configured(point, edition) {
            return;
        }
    }
    if outbox.draining.is_cancelled() {
        // The process is about to end this task: nothing new is begun.
        return std::future::pending().await;
    }
    // Only now: what came while the pace made us wait goes along.
    let request = outbox.lines().take(point, edition, Instant::now());
    let Some(request) = request else { return };
    let span = info_span!(
        "send",
        namespace = &*point.namespace,
        name = &*point.name,
        "messaging.batch.message_count" = Empty,
        "otel.status_code" = Empty,
    );
    traces::set_origins(&span, request.origins());
    let answer = tokio::select! {
        answer = ask(outbox, point, &request).instrument(span.clone()) => answer,
        () = outbox.ended.cancelled() => return std::future::pending().await,
    };
    report(outbox, point, &request, &answer);
    let messages = i64::try_from(request.ids().count().max(1)).unwrap_or(i64::MAX);
    span.record("messaging.batch.message_count", messages);
    if answer.is_err() {
        span.record("otel.status_code", "ERROR");
    }
    drop(span);
    let Concerned {
        fields,
        point: concerned,
    } = outbox
        .lines()
        .answered(point, &request, answer, Instant::now());
    outbox.landing.notify_waiters();
    for field in &fields {
        outbox.fields.wake(field);
    }
    if concerned {
        outbox.points.wake(point);
    }
}

async fn ask<T: Transport>(
    outbox: &Outbox<T>,
    point: &Key,
    request: &Request,
) -> Result<Sent, SendError> {
    let unread = |error| Failure::Unsent {
        message: format!("what waits cannot be read: {error}"),
    };
    let items = request
        .items()
        .map_err(|error| SendError::new(unread(error), 0))?;
    let content = if request.is_test() {
        Content::Test {
            namespace: &point.namespace,
            name: &point.name,
            id: &request.test_id,
        }
    } else {
        Content::Entries(&items)
    };
    outbox
        .transport
        .send(&request.endpoint, content, request.plain)
        .await
}

fn report<T: Transport>(
    outbox: &Outbox<T>,
    point: &Key,
    request: &Request,
    answer: &Result<Sent, SendError>,
) {
    let receiver = Receiver::of(&request.endpoint);
    let (namespace, name) = (&*point.namespace, &*point.name);
    match answer {
        Ok(sent) => {
            debug!(namespace, name, entries = sent.taken, "sent");
            outbox
                .metrics
                .attempted(receiver, DeliveryResult::Delivered);
            let now = Timestamp::now();
            for age in request.ids().take(sent.taken).filter_map(|id| age(id, now)) {
                outbox.metrics.delivered_after(age);
            }
        }
        Err(SendError {
            failure: Failure::Retry { message, after },
            ..
        }) => {
            let after = after.map(|after| after.as_secs_f64());
            info!(
                namespace,
                name, message, after, "the request failed; will retry"
            );
            outbox.metrics.attempted(receiver, DeliveryResult::Retried);
        }
        Err(SendError {
            failure: Failure::Unsent { message },
            ..
        }) => {
            info!(
                namespace,
                name, message, "the request was not sent; will retry"
            );
            outbox.metrics.attempted(receiver, DeliveryResult::Retried);
        }
        Err(SendError {
            failure: Failure::Refused { reason, message },
            carried,
        }) => {
            let reason_ = reason.as_str();
            warn!(
                namespace,
                name,
                message,
                reason = reason_,
                entries = carried,
                "the receiver refused the request"
            );
            let rejected = reason.suggests_message();
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

/// How long ago an entry was made: its id says to the millisecond.
fn age(id: &str, now: Timestamp) -> Option<Duration> {
    let (seconds, nanoseconds) = Uuid::parse_str(id).ok()?.get_timestamp()?.to_unix();
    let made = Timestamp::new(
        i64::try_from(seconds).ok()?,
        i32::try_from(nanoseconds).ok()?,
    )
    .ok()?;
    Duration::try_from(now.duration_since(made)).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::future;

    use qm_api::contact_point::ChatId;
    use qm_runtime::Key;
    use qm_runtime::backoff::Policy;
    use qm_runtime::trigger::Trigger;
    use tokio::sync::mpsc;
    use tokio_util::sync::CancellationToken;

    use super::super::{Outbox, Patience, Stage, TestMessage};
    use crate::metrics::DeliveryMetrics;
    use crate::telegram::Chat;
    use crate::{Content, Endpoint, SendError, Sent, Transport};

    /// Its receiver never answers; it tells when a request begins and when it is given up.
    struct Hanging(mpsc::UnboundedSender<&'static str>);

    struct Told<'a>(&'a Hanging);

    impl Drop for Told<'_> {
        fn drop(&mut self) {
            self.0.0.send("given up").unwrap();
        }
    }

    impl Transport for Hanging {
        async fn slot(&self, _: &Endpoint) {}

        async fn send(&self, _: &Endpoint, _: Content<'_>, _: bool) -> Result<Sent, SendError> {
            self.0.send("begun").unwrap();
            let _told = Told(self);
            future::pending().await
        }
    }

    #[tokio::test]
    async fn what_has_not_landed_in_time_is_given_up() {
        let (tell, mut told) = mpsc::unbounded_channel();
        let policy = Policy {
            min: std::time::Duration::ZERO,
            max: std::time::Duration::ZERO,
        };
        let patience = Patience {
            retry: policy,
            stopped: policy.max,
            max_age: policy.max,
        };
        let (fields, points, draining) = (
            Trigger::default(),
            Trigger::default(),
            CancellationToken::new(),
        );
        let outbox = Outbox::new(
            Hanging(tell),
            patience,
            DeliveryMetrics::new(),
            fields,
            points,
            draining,
        );
        let chat = Chat::new(b"1:a", ChatId::Id(1), None, false).unwrap();
        outbox.configure(
            &Key::new("n", "p"),
            Endpoint::Telegram(chat),
            Stage::Test,
            TestMessage::default(),
        );
        assert_eq!(told.recv().await, Some("begun"));
        tokio::select! {
            biased;
            () = outbox.land() => panic!("it is still in the air"),
            () = tokio::task::yield_now() => {}
        }
        assert_eq!(told.recv().await, Some("given up"));
    }
}
