//! A watch that recovers from every error: kube's watcher, restarted where the watcher itself would be stuck.

use std::fmt::Debug;
use std::future::ready;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{BoxStream, Stream, unfold};
use kube::core::Status;
use kube::runtime::watcher;
use kube::runtime::watcher::{Config, Error, Event, InitialListStrategy};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};
use tracing::info;

use crate::availability::Availability;
use crate::backoff::{Backoff, BackoffPolicy};
use crate::metrics::WatchGuard;
use crate::wait_until;

/// Backoff of a failed watch, short enough for a newly granted permission to take effect soon.
const RETRY_BACKOFF: BackoffPolicy = BackoffPolicy {
    min: Duration::from_millis(500),
    max: Duration::from_secs(30),
};

/// Time over which all watches are retried after an outage.
const RETURN_SPREAD: Duration = Duration::from_secs(2);

/// Time without a failure since the list, after which a quiet watch counts as recovered: a failing request fails
/// sooner.
const RECOVERY_DELAY: Duration = Duration::from_secs(30);

/// Time beyond the server-side timeout, after which a stalled watch counts as failed.
const STALL_MARGIN: Duration = Duration::from_secs(45);

/// Item of the stream of a watch.
#[derive(Debug)]
pub(crate) enum WatchUpdate<K> {
    /// Event of kube's watcher.
    Event(Event<K>),
    /// Both list and watch succeed: an earlier error is over.
    Recovered,
    /// The watch failed and will be retried.
    Failed(Error),
}

/// Watches forever, and reports the health of the watch to `guard`. A failed watch is retried with a backoff, and soon
/// after an outage of the apiserver has ended.
pub(crate) fn watch_updates<K>(
    api: Api<K>,
    config: Config,
    guard: WatchGuard,
    availability: &Availability,
) -> impl Stream<Item = WatchUpdate<K>> + Send + use<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let events = start(&api, &config);
    let failures = RETRY_BACKOFF.start();
    let stream = WatchStream {
        api,
        config,
        guard,
        events,
        failures,
        outage_ends: availability.outage_ends(),
        pause: None,
        recovered: false,
        recovery: None,
    };
    unfold(stream, |mut stream| async {
        Some((stream.next().await, stream))
    })
}

/// Watches one object forever, as kube's `watch_object` does, with the restarts of [`watch_updates`]. The item is `None`
/// while the object does not exist. An error is an item for each failed attempt.
pub fn watch_object<K>(
    api: Api<K>,
    name: &str,
    config: Config,
    guard: WatchGuard,
    availability: &Availability,
) -> impl Stream<Item = Result<Option<K>, Error>> + Send + use<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let config = config.fields(&format!("metadata.name={name}"));
    let mut listed = None;
    watch_updates(api, config, guard, availability).filter_map(move |update| {
        ready(match update {
            WatchUpdate::Event(Event::Init) => {
                listed = None;
                None
            }
            WatchUpdate::Event(Event::InitApply(object)) => {
                listed = Some(object);
                None
            }
            WatchUpdate::Event(Event::InitDone) => Some(Ok(listed.take())),
            WatchUpdate::Event(Event::Apply(object)) => Some(Ok(Some(object))),
            WatchUpdate::Event(Event::Delete(_)) => Some(Ok(None)),
            WatchUpdate::Recovered => None,
            WatchUpdate::Failed(error) => Some(Err(error)),
        })
    })
}

fn start<K>(api: &Api<K>, config: &Config) -> BoxStream<'static, watcher::Result<Event<K>>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watcher(api.clone(), config.clone()).boxed()
}

struct WatchStream<K> {
    api: Api<K>,
    config: Config,
    guard: WatchGuard,
    events: BoxStream<'static, watcher::Result<Event<K>>>,
    failures: Backoff,
    /// Changes at the end of each outage.
    outage_ends: watch::Receiver<u64>,
    /// Pause before the next attempt, after a failure.
    pause: Option<Pause>,
    /// True if the watch has reported its recovery and not failed since.
    recovered: bool,
    /// Time at which the watch counts as recovered unless it fails before.
    recovery: Option<Instant>,
}

struct Pause {
    delay: Duration,
    /// True if the watch restarts with a list; otherwise kube's watcher resumes.
    restarts: bool,
    /// True if a list was complete before: the watch recovers unless it fails again.
    listed: bool,
}

impl<K> WatchStream<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    async fn next(&mut self) -> WatchUpdate<K> {
        loop {
            if let Some(Pause {
                delay,
                restarts,
                listed,
            }) = self.pause.take()
            {
                self.wait(delay).await;
                self.recovery = listed.then(|| Instant::now() + RECOVERY_DELAY);
                if restarts {
                    self.events = start(&self.api, &self.config);
                }
            }
            let event = tokio::select! {
                biased;
                () = wait_until(self.recovery) => {
                    self.recovery = None;
                    self.recovered = true;
                    self.failures = RETRY_BACKOFF.start();
                    return WatchUpdate::Recovered;
                }
                event = self.events.next() => event,
            };
            match event {
                Some(Ok(event)) => {
                    self.schedule_recovery(&event);
                    return WatchUpdate::Event(event);
                }
                Some(Err(error)) if self.is_streaming() && is_streaming_rejected(&error) => {
                    info!(
                        resource = self.api.resource_url(),
                        "apiserver has no streaming lists; will list in pages"
                    );
                    self.config.initial_list_strategy = InitialListStrategy::ListWatch;
                    self.events = start(&self.api, &self.config);
                }
                Some(Err(error)) => {
                    let status = error_status(&error);
                    let is_denied = status.is_some_and(|it| matches!(it.code, 403 | 404));
                    self.guard
                        .failed(is_denied, self.failure_lifetime(status.is_some()));
                    let restarts = is_permanent(&error);
                    self.failed(restarts);
                    return WatchUpdate::Failed(error);
                }
                // kube's watcher never ends.
                None => self.failed(true),
            }
        }
    }

    /// Waits for `delay`, or until shortly after the end of an outage.
    async fn wait(&mut self, delay: Duration) {
        let back = async {
            if self.outage_ends.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            sleep(RETURN_SPREAD.mul_f64(rand::random())).await;
        };
        let _ = timeout(delay, back).await;
    }

    fn failed(&mut self, restarts: bool) {
        // Earlier ends of outages do not matter.
        self.outage_ends.mark_unchanged();
        let listed = !restarts && (self.recovered || self.recovery.is_some());
        (self.recovered, self.recovery) = (false, None);
        self.pause = Some(Pause {
            delay: self.failures.next_delay(),
            restarts,
            listed,
        });
    }

    /// Returns the time within which a watch whose problem persists fails again: soon after the next attempt if the
    /// apiserver has answered, otherwise when the stalled watch times out.
    fn failure_lifetime(&self, is_answered: bool) -> Duration {
        if is_answered {
            return RETRY_BACKOFF.max + RECOVERY_DELAY;
        }
        Duration::from_secs(self.config.timeout.unwrap_or_default().into()) + STALL_MARGIN
    }

    fn is_streaming(&self) -> bool {
        self.config.initial_list_strategy == InitialListStrategy::StreamingList
    }

    /// Decides when the watch counts as recovered: after an event of the watch, or a list that came through a watch. A
    /// plain list proves nothing: an operator that may list but not watch would restart the backoff again and again.
    fn schedule_recovery(&mut self, event: &Event<K>) {
        let recovery = match event {
            Event::InitDone if !self.is_streaming() => Instant::now() + RECOVERY_DELAY,
            Event::InitDone | Event::Apply(_) | Event::Delete(_) => {
                self.guard.recovered();
                Instant::now()
            }
            Event::Init | Event::InitApply(_) => return,
        };
        if !self.recovered {
            self.recovery = Some(recovery);
        }
    }
}

/// Returns the apiserver's status for a failed list or watch.
pub fn error_status(error: &Error) -> Option<&Status> {
    match error {
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchError(status) => Some(status),
        _ => None,
    }
}

/// Returns whether the same request fails until a person fixes the cause, so that the watch must start over. kube's
/// watcher would resume from the version that it knows, even after 410, and not report when a resumed watch succeeds.
fn is_permanent(error: &Error) -> bool {
    match error {
        // kube's watcher relists by itself after a 410 event, and reads on after other error events.
        Error::WatchError(status) => matches!(status.code, 403 | 404),
        _ => error_status(error).is_some_and(|status| status.code < 500 && status.code != 429),
    }
}

/// Returns whether the apiserver rejects streaming lists (422): such an apiserver knows `sendInitialEvents` and has the
/// feature disabled.
fn is_streaming_rejected(error: &Error) -> bool {
    matches!(error, Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 422)
}

#[cfg(test)]
pub(crate) mod tests;
