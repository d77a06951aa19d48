//! Availability of the apiserver. Failed requests raise the suspicion of an outage; small requests confirm it and
//! detect its end, so that failed reconciles need not wait for a backoff that grew during the outage.
//!
//! An apiserver that stores nothing (etcd is out of space) still answers these requests. Failed writes reveal this
//! outage of writes, and the first successful write ends the outage: until then each controller retries one object
//! every few seconds.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use kube::Client;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

/// Longest pause between probes of an apiserver that does not answer; jitter at most halves it.
const PROBE_PERIOD: Duration = Duration::from_secs(3);
/// Timeout of one probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(3);
/// Paths of the probes. `/readyz` covers etcd but bypasses API Priority and Fairness, so only `/version` shows an
/// overload.
const PROBES: [&str; 2] = ["/readyz", "/version"];

/// Number of reconciles with failed writes, without a successful write between them, that count as an outage.
const FAILED_WRITES: u32 = 3;

/// Time after an outage for which the apiserver may still be starting.
const START_TIME: Duration = Duration::from_secs(10);

/// Longest `Retry-After` that the operator honours.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(1);

/// Returns the pause for a `Retry-After` of this many seconds, at most an hour.
pub fn pause(seconds: u32) -> Duration {
    Duration::from_secs(seconds.into()).min(MAX_RETRY_AFTER)
}

/// Availability of the apiserver, derived from the results of requests. Clones share the state.
#[derive(Clone, Default)]
pub struct Availability(Arc<AvailabilityState>);

#[derive(Default)]
struct AvailabilityState {
    suspected: Notify,
    /// True if the apiserver did not answer a probe and has answered none since.
    out: AtomicBool,
    /// True if the last write got a 5xx.
    last_write_failed: AtomicBool,
    /// Number of reconciles whose writes failed since the last successful write.
    failed_writes: AtomicU32,
    /// True if the apiserver answers reads and stores no write.
    stores_nothing: AtomicBool,
    /// Number of outages that have ended, with and without answers to reads.
    ended_outages: watch::Sender<u64>,
    /// Time at which the apiserver last answered again.
    back_since: Mutex<Option<Instant>>,
    /// End of the last pause that the apiserver asked for.
    paused: Mutex<Option<Instant>>,
}

impl Availability {
    /// Records the end of a request: status `code` (`None` without a response) and `Retry-After`. `stores`: a success
    /// proves that the apiserver stores objects.
    pub(super) fn answered(&self, stores: bool, code: Option<u16>, retry_after: Option<Duration>) {
        if stores && let Some(code) = code {
            self.0
                .last_write_failed
                .store(code >= 500, Ordering::Release);
        }
        if stores && code.is_some_and(|code| code < 300) {
            self.0.failed_writes.store(0, Ordering::Release);
            if self.0.stores_nothing.swap(false, Ordering::AcqRel) {
                info!("apiserver stores writes again; will retry failed reconciles");
                self.0.ended_outages.send_modify(|outages| *outages += 1);
            }
        }
        if let (Some(429), Some(retry_after)) = (code, retry_after) {
            let until = Instant::now() + retry_after;
            *self.0.paused.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
        }
        if code.is_none_or(|code| code == 429 || code >= 500) {
            self.0.suspected.notify_one();
        }
    }

    /// Records that a reconcile failed with a 5xx that is not about its object alone. Does nothing unless the last write
    /// failed too, because the 5xx may be the answer to a read.
    pub(crate) fn reconcile_failed(&self) {
        if !self.0.last_write_failed.load(Ordering::Acquire) {
            return;
        }
        let count = |failed: u32| Some(failed.saturating_add(1));
        // The closure never returns `None`.
        let _ = self
            .0
            .failed_writes
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, count);
        self.0.suspected.notify_one();
    }

    /// Returns whether the apiserver answers reads and stores no write.
    pub(crate) fn stores_nothing(&self) -> bool {
        self.0.stores_nothing.load(Ordering::Acquire)
    }

    /// Returns the end of the last pause that the apiserver asked for, by the `Retry-After` of a 429.
    pub fn paused_until(&self) -> Option<Instant> {
        *self.0.paused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a receiver that changes at the end of each outage.
    pub(crate) fn outage_ends(&self) -> watch::Receiver<u64> {
        self.0.ended_outages.subscribe()
    }

    /// Returns whether the apiserver answers no probes. Meanwhile callers must not trust even a rejection: a starting
    /// apiserver answers before it has loaded RBAC. An outage of writes alone does not count.
    pub fn is_in_outage(&self) -> bool {
        self.0.out.load(Ordering::Acquire)
    }

    /// Returns whether the apiserver is starting: it then answers 403 until it has loaded RBAC, which may take a few
    /// seconds longer than the first answers.
    pub(crate) fn is_starting(&self) -> bool {
        let back_since = self.0.back_since.lock();
        let back_since = *back_since.unwrap_or_else(PoisonError::into_inner);
        self.is_in_outage() || back_since.is_some_and(|it| it.elapsed() < START_TIME)
    }

    /// Returns the number of outages that have ended.
    pub fn outages_ended(&self) -> u64 {
        *self.0.ended_outages.borrow()
    }

    /// Returns the number of reconciles whose writes failed since the last successful write.
    #[cfg(test)]
    pub(crate) fn failed_writes(&self) -> u32 {
        self.0.failed_writes.load(Ordering::Acquire)
    }

    /// Begins an outage of writes alone.
    #[cfg(test)]
    pub(crate) fn begin_write_outage(&self) {
        self.0.stores_nothing.store(true, Ordering::Release);
    }

    /// Records that the apiserver answers again.
    pub(crate) fn end_outage(&self) {
        let mut back_since = self
            .0
            .back_since
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *back_since = Some(Instant::now());
        self.0.ended_outages.send_modify(|outages| *outages += 1);
    }

    /// Confirms each suspected outage and waits for its end. Never returns.
    pub async fn watch(self, client: Client) {
        loop {
            self.0.suspected.notified().await;
            if !answers(&client).await {
                self.0.out.store(true, Ordering::Release);
                warn!("apiserver is unavailable; will probe it until it answers");
                while !answers(&client).await {
                    sleep(PROBE_PERIOD.mul_f64(rand::random_range(0.5..1.0))).await;
                }
                info!("apiserver is back; will retry failed reconciles and watches");
                self.0.out.store(false, Ordering::Release);
                self.0.failed_writes.store(0, Ordering::Release);
                self.0.stores_nothing.store(false, Ordering::Release);
                self.end_outage();
            }
            let fails = self.0.failed_writes.load(Ordering::Acquire) >= FAILED_WRITES;
            if fails && !self.0.stores_nothing.swap(true, Ordering::AcqRel) {
                warn!(
                    "apiserver stores no writes; will retry one object at a time until a write succeeds"
                );
            }
            // The pause limits the probes: requests that fail for another reason, such as an admission webhook, raise
            // the suspicion again and again.
            sleep(PROBE_PERIOD).await;
        }
    }
}

/// Probes the apiserver. A rejection counts as a response.
async fn answers(client: &Client) -> bool {
    for path in PROBES {
        let Ok(request) = http::Request::get(path).body(Vec::new()) else {
            return false;
        };
        let answer = match timeout(PROBE_TIMEOUT, client.request_text(request)).await {
            Ok(Ok(_)) => true,
            Ok(Err(kube::Error::Api(status))) => status.code < 500 && status.code != 429,
            Ok(Err(_)) | Err(_) => false,
        };
        if !answer {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_reconciles_count_only_while_writes_fail() {
        let availability = Availability::default();
        availability.answered(false, Some(503), None);
        availability.reconcile_failed();
        assert_eq!(availability.failed_writes(), 0, "a read failed");
        availability.answered(true, Some(500), None);
        availability.reconcile_failed();
        availability.reconcile_failed();
        availability.answered(false, Some(200), None);
        assert_eq!(availability.failed_writes(), 2);
        availability.answered(true, Some(201), None);
        availability.reconcile_failed();
        assert_eq!(availability.failed_writes(), 0);
    }
}
