//! One watch that goes on, whatever the apiserver answers: kube's own, begun anew where that would be stuck.

use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::{BoxStream, Stream, unfold};
use kube::core::Status;
use kube::runtime::watcher;
use kube::runtime::watcher::{Config, Error, Event, InitialListStrategy};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::info;

use super::backoff::{Backoff, BackoffPolicy};
use super::metrics::WatchGuard;

/// How often a watch that failed is tried again: a right that is granted should show at once.
const RETRY: BackoffPolicy = BackoffPolicy {
    min: Duration::from_millis(500),
    max: Duration::from_secs(30),
};

/// A watch that has not failed for this long since its list stands, also when it has nothing to show.
const RECOVERY_DELAY: Duration = Duration::from_secs(30);

/// This much later than the server was to end it a watch that hangs in silence has failed.
pub const STALL_MARGIN: Duration = Duration::from_secs(45);

/// What a watch tells.
#[derive(Debug)]
pub enum WatchUpdate<K> {
    /// What it shows.
    Event(Event<K>),
    /// It is certain that list and watch are both let in: what it was refused with before is over.
    Recovered,
    /// It gets no answer, or a refusal; it goes on trying.
    Failed(Error),
}

/// Watches for ever, and has `counted` say how it is.
pub fn watch_updates<K>(
    api: Api<K>,
    config: Config,
    counted: WatchGuard,
) -> impl Stream<Item = WatchUpdate<K>> + Send
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let events = begin(&api, &config);
    let failures = RETRY.start();
    let watching = WatchStream {
        api,
        config,
        counted,
        events,
        failures,
        pause: None,
        stood: false,
        proof: None,
    };
    unfold(watching, |mut watching| async {
        Some((watching.next().await, watching))
    })
}

fn begin<K>(api: &Api<K>, config: &Config) -> BoxStream<'static, watcher::Result<Event<K>>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    watcher(api.clone(), config.clone()).boxed()
}

struct WatchStream<K> {
    api: Api<K>,
    config: Config,
    counted: WatchGuard,
    events: BoxStream<'static, watcher::Result<Event<K>>>,
    failures: Backoff,
    /// It failed: what is done before the next try.
    pause: Option<Pause>,
    /// It was told that it stands, and has not failed since.
    stood: bool,
    /// When it is certain that it stands, if nothing happens before.
    proof: Option<Instant>,
}

struct Pause {
    delay: Duration,
    /// Begun anew with a list; otherwise kube goes on where it was.
    anew: bool,
    /// A list was whole before: if it does not fail again it stands.
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
                anew,
                listed,
            }) = self.pause.take()
            {
                sleep(delay).await;
                self.proof = listed.then(|| Instant::now() + RECOVERY_DELAY);
                if anew {
                    self.events = begin(&self.api, &self.config);
                }
            }
            let event = tokio::select! {
                biased;
                () = due(self.proof) => {
                    self.proof = None;
                    self.stood = true;
                    self.failures = RETRY.start();
                    return WatchUpdate::Recovered;
                }
                event = self.events.next() => event,
            };
            match event {
                Some(Ok(event)) => {
                    self.weigh(&event);
                    return WatchUpdate::Event(event);
                }
                Some(Err(error)) if self.streams() && is_invalid(&error) => {
                    info!(
                        resource = self.api.resource_url(),
                        "no streaming lists here: lists are asked for in pages"
                    );
                    self.config.initial_list_strategy = InitialListStrategy::ListWatch;
                    self.events = begin(&self.api, &self.config);
                }
                Some(Err(error)) => {
                    let refused =
                        error_status(&error).is_some_and(|status| matches!(status.code, 403 | 404));
                    self.counted.failed(refused, self.lasts());
                    let anew = is_for_good(&error);
                    self.failed(anew);
                    return WatchUpdate::Failed(error);
                }
                // kube's own never ends.
                None => self.failed(true),
            }
        }
    }

    fn failed(&mut self, anew: bool) {
        let listed = !anew && (self.stood || self.proof.is_some());
        (self.stood, self.proof) = (false, None);
        self.pause = Some(Pause {
            delay: self.failures.next_delay(),
            anew,
            listed,
        });
    }

    /// By when it has failed again, if it hangs.
    fn lasts(&self) -> Duration {
        Duration::from_secs(self.config.timeout.unwrap_or_default().into()) + STALL_MARGIN
    }

    fn streams(&self) -> bool {
        self.config.initial_list_strategy == InitialListStrategy::StreamingList
    }

    /// A list proves no watch: who may list and not watch would begin at the first delay again and again. A change that is
    /// shown does, and so does a list that came through a watch.
    fn weigh(&mut self, event: &Event<K>) {
        let proof = match event {
            Event::InitDone if !self.streams() => Instant::now() + RECOVERY_DELAY,
            Event::InitDone | Event::Apply(_) | Event::Delete(_) => {
                self.counted.shown();
                Instant::now()
            }
            Event::Init | Event::InitApply(_) => return,
        };
        if !self.stood {
            self.proof = Some(proof);
        }
    }
}

async fn due(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// The apiserver's own words, where a watch failed because it refused.
pub fn error_status(error: &Error) -> Option<&Status> {
    match error {
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchError(status) => Some(status),
        _ => None,
    }
}

/// Whether the same request would be answered so again, until something is mended. kube goes on from the version that it
/// knows, also where the answer to that is 410; and what goes on where it was does not say when it is let in again.
fn is_for_good(error: &Error) -> bool {
    match error {
        // kube lists anew by itself after 410 in an event, and after others it goes on reading.
        Error::WatchError(status) => matches!(status.code, 403 | 404),
        _ => error_status(error).is_some_and(|status| status.code < 500 && status.code != 429),
    }
}

/// 422: what a server says that is new enough to know `sendInitialEvents` and has it switched off.
fn is_invalid(error: &Error) -> bool {
    matches!(error, Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 422)
}

#[cfg(test)]
pub(crate) mod tests;
