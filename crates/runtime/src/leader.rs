//! Leader election by Lease, and the [`Fence`] that keeps a replica without the lease from writing.
//!
//! The protocol is that of Kubernetes' own components (<https://pkg.go.dev/k8s.io/client-go/tools/leaderelection>):
//! every write of the Lease is guarded by its resourceVersion, and the lease of a holder that stops renewing expires
//! when it has not changed for its duration *on the candidate's own monotonic clock*, so clocks need not agree. Three
//! rules are stricter here: the renew deadline counts from before the renewal was sent, a leader stops as soon as the
//! lease names another holder, and each write checks the time, so that a process that was frozen beyond its lease
//! writes nothing when it continues.
//!
//! The monotonic clock stops while the machine itself is suspended. A leader on a machine that wakes after the end of
//! its lease may write until the next renewal fails, about a retry period later; the UID and resourceVersion of every
//! write guard against damage.

use std::env;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, Error};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use uuid::Uuid;

use super::health::Watchdog;
use super::telemetry::causes;
use crate::settings::{LEASE_JITTER, RuntimeTimings};

mod fence;
#[cfg(test)]
mod tests;

pub use fence::Fence;

/// Timeout of the release of the lease, so that a slow apiserver does not delay a shutdown.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// Returns a name that no other candidate has: the name of the Pod, the host or the program, and a random part.
pub fn identity(pod: Option<&str>, program: &str) -> String {
    let host = pod
        .map(str::to_owned)
        .or_else(|| env::var("HOSTNAME").ok())
        .unwrap_or_else(|| program.into());
    format!("{host}_{}", Uuid::new_v4())
}

/// Reason why the leadership ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LeadershipEnd<T> {
    /// The work has finished. The lease was released, or expires soon if the apiserver did not answer.
    Finished(T),
    /// The lease was lost and the work dropped. The process must exit: requests in flight may still arrive.
    Lost,
    /// The candidate was stopped before it became the leader.
    Stopped,
}

/// Result of one attempt to acquire or renew the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// This candidate holds the lease by a write that it sent at this time.
    Held(Instant),
    /// The lease names another holder.
    HeldByAnother,
    /// The lease changed between the read and the write. This candidate may still hold the lease: a program may have
    /// edited its metadata, or an earlier request of this candidate may have arrived late.
    Conflict,
}

/// A candidate for the lease.
#[derive(Clone)]
pub(crate) struct LeaderElector {
    api: Api<Lease>,
    name: String,
    identity: String,
    duration: Duration,
    renew_deadline: Duration,
    retry_period: Duration,
    watchdog: Watchdog,
}

/// State of the lease as far as this candidate knows it.
#[derive(Default)]
struct KnownLease {
    observed: Option<ObservedLease>,
    unconfirmed: Option<UnconfirmedWrite>,
}

/// The lease as last observed, and when it was first observed in this state.
struct ObservedLease {
    lease: Lease,
    at: Instant,
}

/// A write of the lease that may have been applied, although no answer confirmed it. Even a 409 proves nothing: it may
/// answer a repetition of the write by a proxy.
struct UnconfirmedWrite {
    renew_time: Option<MicroTime>,
    at: Instant,
}

impl LeaderElector {
    /// Creates a candidate for the Lease `name` in `namespace`. `client` comes from [`super::client::unfenced`]: it
    /// does not retry, and the fence does not block it. `watchdog` guards each attempt.
    pub fn new(
        client: Client,
        (namespace, name): (&str, &str),
        identity: String,
        timings: &RuntimeTimings,
        watchdog: Watchdog,
    ) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            name: name.into(),
            identity,
            duration: timings.lease_duration,
            renew_deadline: timings.lease_renew_deadline,
            retry_period: timings.lease_retry_period,
            watchdog,
        }
    }

    /// Waits for the lease and opens `fence`. Returns `None` if `stop` is cancelled first.
    async fn acquire(
        &self,
        fence: &Fence,
        stop: &CancellationToken,
    ) -> Option<(Instant, KnownLease)> {
        info!(
            lease = self.name,
            identity = self.identity,
            "waiting for the lease"
        );
        let (mut known, mut warning) = (KnownLease::default(), RepeatedWarning::default());
        loop {
            // The dropped request may still acquire the lease, which would then have no live holder, so the lease is
            // released.
            let attempt = tokio::select! {
                attempt = timeout(self.renew_deadline / 2, self.try_acquire_or_renew(&mut known)) => attempt,
                () = stop.cancelled() => {
                    self.release(None).await;
                    return None;
                }
            };
            // The request may have acquired the lease although no response arrived.
            let may_be_held = match &attempt {
                Ok(Ok(_)) => false,
                Ok(Err(error)) => may_be_applied(error),
                Err(_) => true,
            };
            match attempt {
                Ok(Ok(Attempt::Held(at))) => {
                    fence.renewed(at, self.renew_deadline);
                    info!(
                        lease = self.name,
                        identity = self.identity,
                        "acquired the lease"
                    );
                    return Some((at, known));
                }
                // A conflict means that another candidate was faster.
                Ok(Ok(Attempt::HeldByAnother | Attempt::Conflict)) => warning.clear(),
                Ok(Err(error)) => warning.log(
                    causes(&error),
                    "cannot read or acquire the lease; will retry",
                ),
                Err(_) => warning.log(
                    "the apiserver does not answer".into(),
                    "cannot read or acquire the lease; will retry",
                ),
            }
            let mut pause = self
                .retry_period
                .mul_f64(rand::random_range(1.0..LEASE_JITTER));
            if let Some(end) = known
                .observed
                .as_ref()
                .map(|observed| self.end(observed))
                .filter(|end| *end > Instant::now())
            {
                pause = pause.min(end - Instant::now());
            }
            tokio::select! {
                () = sleep(pause) => {}
                () = stop.cancelled() => {
                    if may_be_held {
                        self.release(None).await;
                    }
                    return None;
                }
            }
        }
    }

    /// Renews the lease until it names another holder or the renew deadline has passed. Retries after a conflict or a
    /// failed request, as client-go does.
    async fn renew_loop(&self, fence: &Fence, mut renewed: Instant, known: &mut KnownLease) {
        let mut warning = RepeatedWarning::default();
        loop {
            let left = self.renew_deadline.saturating_sub(renewed.elapsed());
            sleep(self.retry_period.min(left)).await;
            let left = self.renew_deadline.saturating_sub(renewed.elapsed());
            if left.is_zero() {
                warn!(lease = self.name, "lost the lease: renew deadline exceeded");
                return;
            }
            match timeout(
                left.min(self.renew_deadline / 2),
                self.try_acquire_or_renew(known),
            )
            .await
            {
                Ok(Ok(Attempt::Held(at))) => {
                    fence.renewed(at, self.renew_deadline);
                    renewed = at;
                    warning.clear();
                }
                Ok(Ok(Attempt::Conflict)) => {
                    warning.log(
                        "409 Conflict".into(),
                        "lease changed during its renewal; will retry",
                    );
                }
                Ok(Ok(Attempt::HeldByAnother)) => {
                    let holder = known
                        .observed
                        .as_ref()
                        .and_then(|observed| holder(&observed.lease));
                    warn!(
                        lease = self.name,
                        holder, "lost the lease: another replica holds it"
                    );
                    return;
                }
                Ok(Err(error)) => warning.log(causes(&error), "cannot renew the lease; will retry"),
                Err(_) => warning.log(
                    "the apiserver does not answer".into(),
                    "cannot renew the lease; will retry",
                ),
            }
        }
    }

    /// Acquires or renews the lease once.
    async fn try_acquire_or_renew(&self, known: &mut KnownLease) -> Result<Attempt, Error> {
        let _busy = self.watchdog.busy();
        // The holder replaces the version that it knows without a read, unless its last write is unconfirmed.
        let own = known
            .observed
            .as_ref()
            .filter(|observed| known.unconfirmed.is_none() && self.is_own(&observed.lease));
        if let Some(lease) = own.map(|own| own.lease.clone()) {
            match self.try_write(known, Some(lease)).await {
                Err(Error::Api(status)) if status.code == 409 || status.code == 404 => {}
                result => return result,
            }
        }
        let current = self.api.get_opt(&self.name).await?;
        if let Some(lease) = &current {
            if let Some(at) = self.applied(known, lease) {
                *known = KnownLease {
                    observed: Some(ObservedLease {
                        lease: lease.clone(),
                        at: Instant::now(),
                    }),
                    unconfirmed: None,
                };
                return Ok(Attempt::Held(at));
            }
            // The time counts from the response, because the holder may have renewed while the request was in flight.
            let at = known
                .observed
                .as_ref()
                .filter(|observed| observed.lease.spec == lease.spec)
                .map_or_else(Instant::now, |observed| observed.at);
            known.observed = Some(ObservedLease {
                lease: lease.clone(),
                at,
            });
        }
        // The holder of a lease that somebody has deleted acts until it notices, and creates the lease again.
        if let Some(observed) = &known.observed
            && let Some(holder) = holder(&observed.lease)
            && !self.is_own(&observed.lease)
            && Instant::now() < self.end(observed)
        {
            debug!(lease = self.name, holder, "another replica holds the lease");
            return Ok(Attempt::HeldByAnother);
        }
        match self.try_write(known, current).await {
            Err(Error::Api(status)) if status.code == 409 => Ok(Attempt::Conflict),
            result => result,
        }
    }

    /// Writes the lease with this candidate as its holder: replaces `version`, or creates the lease.
    async fn try_write(
        &self,
        known: &mut KnownLease,
        version: Option<Lease>,
    ) -> Result<Attempt, Error> {
        let spec = self.next_spec(version.as_ref().and_then(|lease| lease.spec.as_ref()));
        let at = Instant::now();
        known.unconfirmed = Some(UnconfirmedWrite {
            renew_time: spec.renew_time.clone(),
            at,
        });
        let written = if let Some(version) = version {
            self.write(&version, spec).await
        } else {
            let metadata = ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            };
            self.api
                .create(
                    &PostParams::default(),
                    &Lease {
                        metadata,
                        spec: Some(spec),
                    },
                )
                .await
        };
        *known = KnownLease {
            observed: Some(ObservedLease {
                lease: written?,
                at: Instant::now(),
            }),
            unconfirmed: None,
        };
        Ok(Attempt::Held(at))
    }

    /// Returns the time at which this candidate sent the unconfirmed write, if the lease shows that the write was
    /// applied. Returns `None` if at least half of the renew deadline has passed since: the caller then writes again.
    fn applied(&self, known: &KnownLease, lease: &Lease) -> Option<Instant> {
        let unconfirmed = known
            .unconfirmed
            .as_ref()
            .filter(|write| write.at.elapsed() < self.renew_deadline / 2)?;
        let renew_time = lease.spec.as_ref()?.renew_time.as_ref();
        (self.is_own(lease) && renew_time == unconfirmed.renew_time.as_ref())
            .then_some(unconfirmed.at)
    }

    /// Releases the lease if this candidate holds it, so that the next leader need not wait until it expires.
    async fn release(&self, observed: Option<ObservedLease>) {
        let work = async {
            if let Some(observed) = observed.filter(|observed| self.is_own(&observed.lease)) {
                match self
                    .write(&observed.lease, released_spec(observed.lease.spec.as_ref()))
                    .await
                {
                    Err(Error::Api(status)) if status.code == 409 => {}
                    result => return result.map(|_| true),
                }
            }
            match self.api.get_opt(&self.name).await? {
                Some(lease) if self.is_own(&lease) => self
                    .write(&lease, released_spec(lease.spec.as_ref()))
                    .await
                    .map(|_| true),
                _ => Ok(false),
            }
        };
        match timeout(RELEASE_TIMEOUT, work).await {
            Ok(Ok(true)) => info!(lease = self.name, "released the lease"),
            Ok(Ok(false)) => {}
            Ok(Err(error)) => {
                warn!(
                    lease = self.name,
                    error = causes(&error),
                    "cannot release the lease; it will expire"
                );
            }
            Err(_) => warn!(
                lease = self.name,
                "releasing the lease timed out; it will expire"
            ),
        }
    }

    /// Replaces exactly this version of the lease.
    async fn write(&self, version: &Lease, spec: LeaseSpec) -> Result<Lease, Error> {
        let lease = Lease {
            metadata: version.metadata.clone(),
            spec: Some(spec),
        };
        self.api
            .replace(&self.name, &PostParams::default(), &lease)
            .await
    }

    fn is_own(&self, lease: &Lease) -> bool {
        holder(lease) == Some(&self.identity)
    }

    /// Returns the time at which an unchanged lease expires. The duration in the lease counts, which may differ from
    /// this candidate's setting.
    fn end(&self, observed: &ObservedLease) -> Instant {
        let holders = observed
            .lease
            .spec
            .as_ref()
            .and_then(|spec| spec.lease_duration_seconds);
        let holders = holders
            .and_then(|seconds| u64::try_from(seconds).ok())
            .map(Duration::from_secs);
        observed.at + holders.unwrap_or(self.duration)
    }

    fn next_spec(&self, last: Option<&LeaseSpec>) -> LeaseSpec {
        let now = Timestamp::now();
        // The apiserver stores microseconds, and the times are compared later.
        let now = MicroTime(Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now));
        let transitions = last.and_then(|spec| spec.lease_transitions).unwrap_or(0);
        let own = last.filter(|spec| spec.holder_identity.as_deref() == Some(&self.identity));
        LeaseSpec {
            holder_identity: Some(self.identity.clone()),
            lease_duration_seconds: i32::try_from(self.duration.as_millis().div_ceil(1000)).ok(),
            acquire_time: own
                .and_then(|spec| spec.acquire_time.clone())
                .or_else(|| Some(now.clone())),
            renew_time: Some(now),
            lease_transitions: Some(if own.is_some() || last.is_none() {
                transitions
            } else {
                transitions.saturating_add(1)
            }),
            ..LeaseSpec::default()
        }
    }
}

/// Returns the spec of a released lease, as client-go writes it.
fn released_spec(last: Option<&LeaseSpec>) -> LeaseSpec {
    let now = MicroTime(Timestamp::now());
    LeaseSpec {
        holder_identity: Some(String::new()),
        lease_duration_seconds: Some(1),
        acquire_time: Some(now.clone()),
        renew_time: Some(now),
        lease_transitions: last.and_then(|spec| spec.lease_transitions),
        ..LeaseSpec::default()
    }
}

/// Returns whether a failed request may have been applied: no response arrived, or the response came from a proxy.
fn may_be_applied(error: &Error) -> bool {
    !matches!(error, Error::Api(status) if status.code < 500)
}

fn holder(lease: &Lease) -> Option<&str> {
    lease
        .spec
        .as_ref()?
        .holder_identity
        .as_deref()
        .filter(|holder| !holder.is_empty())
}

/// Warning that is logged once while its cause lasts, not at every retry.
#[derive(Default)]
struct RepeatedWarning(Option<String>);

impl RepeatedWarning {
    fn log(&mut self, error: String, message: &str) {
        if self.0.as_ref() == Some(&error) {
            debug!(error, "{message}");
        } else {
            warn!(error, "{message}");
            self.0 = Some(error);
        }
    }

    fn clear(&mut self) {
        self.0 = None;
    }
}

/// Waits for the lease, then runs `work` under it.
///
/// `fence` opens with the first renewal. It is closed before this function returns, whatever the result, and before the
/// lease is released. `work` should finish soon after `stop`; the lease is renewed until then. `work` is polled in the
/// caller's task, between renewals, so it must not block.
pub(crate) async fn lead<W: Future>(
    elector: &LeaderElector,
    fence: &Fence,
    stop: &CancellationToken,
    work: W,
) -> LeadershipEnd<W::Output> {
    let Some((renewed, mut known)) = elector.acquire(fence, stop).await else {
        fence.close();
        return LeadershipEnd::Stopped;
    };
    let outcome = tokio::select! {
        biased;
        () = elector.renew_loop(fence, renewed, &mut known) => LeadershipEnd::Lost,
        output = work => LeadershipEnd::Finished(output),
    };
    fence.close();
    if matches!(outcome, LeadershipEnd::Finished(_)) {
        elector.release(known.observed).await;
    }
    outcome
}
