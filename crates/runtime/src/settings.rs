//! Settings of the runtime, which the program fills in.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// Maximum factor of the retry period between two attempts to acquire the lease; the minimum is 1, as in client-go.
pub const LEASE_JITTER: f64 = 2.2;

/// Program that uses the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Name of the program: prefix of its metrics (with `_` for `-`), product in the user agent, reporting controller
    /// of Events, and service name of traces.
    pub name: &'static str,
    /// Version of the program, in the user agent, the metrics and the traces.
    pub version: &'static str,
    /// Prefixes of the log targets of the program's own crates. The log limits crates other than these and the runtime
    /// to `info` or less, because their messages at lower levels may contain secrets; the traces contain spans of these
    /// crates and the runtime only.
    pub log_targets: &'static [&'static str],
    /// Hints in messages.
    pub hints: Hints,
}

/// Hints for the administrator, which messages contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hints {
    /// Command that replaces the CRDs with those of this version.
    pub replace_crds: Option<&'static str>,
    /// Flag or setting that selects the controllers.
    pub select_controllers: &'static str,
    /// Phrase that names the `ClusterRole` that grants reading the metrics.
    pub metrics_reader_hint: Option<&'static str>,
}

impl Program {
    /// Creates a program without log targets and hints.
    pub const fn new(name: &'static str, version: &'static str) -> Self {
        Self {
            name,
            version,
            log_targets: &[],
            hints: Hints {
                replace_crds: None,
                select_controllers: "the settings",
                metrics_reader_hint: None,
            },
        }
    }

    /// Returns the prefixes of the log targets of the program's crates and the runtime.
    pub(crate) fn own_targets(&self) -> impl Iterator<Item = &'static str> {
        let runtime = env!("CARGO_CRATE_NAME");
        self.log_targets.iter().copied().chain([runtime])
    }
}

/// Settings of [`run`](crate::manager::run).
#[derive(Clone, Debug)]
pub struct Settings {
    /// Program that uses the runtime.
    pub program: Program,
    /// True if the program acts only while it holds the lease.
    pub leader_elect: bool,
    /// Name of the Lease.
    pub leader_election_id: String,
    /// Name of the Pod, if known: part of the holder's identity.
    pub pod_name: Option<String>,
    /// Namespace of the operator and its Lease.
    pub operator_namespace: String,
    /// Namespaces to watch; empty for all.
    pub watch_namespaces: BTreeSet<String>,
    /// Names of the controllers to run; `None` for all.
    pub controllers: Option<BTreeSet<&'static str>>,
    /// Certificate of the secure metrics endpoint; `None` for plain HTTP without authentication.
    pub metrics_certificate: Option<MetricsCertificate>,
    /// Intervals, deadlines and limits.
    pub timings: RuntimeTimings,
}

impl Settings {
    /// Creates the settings of one replica that serves the whole cluster without leader election.
    pub fn new(program: Program) -> Self {
        Self {
            program,
            leader_elect: false,
            leader_election_id: program.name.into(),
            pod_name: None,
            operator_namespace: "default".into(),
            watch_namespaces: BTreeSet::new(),
            controllers: None,
            metrics_certificate: None,
            timings: RuntimeTimings::default(),
        }
    }

    /// Returns whether the controller of this name runs.
    pub fn runs(&self, controller: &str) -> bool {
        self.controllers
            .as_ref()
            .is_none_or(|controllers| controllers.contains(controller))
    }
}

/// Origin of the certificate of the secure metrics endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricsCertificate {
    /// Self-signed, generated at start.
    SelfSigned,
    /// `tls.crt` and `tls.key` in this folder, reread when they change.
    Mounted(PathBuf),
}

/// Settings of the log.
#[derive(Clone, Debug)]
pub struct LogSettings {
    /// Level or directives of the log filter, known to parse.
    pub level: String,
    /// Format of the lines.
    pub format: LogFormat,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, otherwise JSON.
    Auto,
    /// Text for people.
    Human,
    /// JSON, with one object per line.
    Json,
}

/// Intervals, deadlines and limits of the runtime. The defaults suit production; tests shorten them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeTimings {
    /// Time that a standby waits, on its own clock, after the last observed renewal before it acquires the lease. At
    /// least 1 s.
    pub lease_duration: Duration,
    /// Time for which the leader acts without a successful renewal. Less than `lease_duration`.
    pub lease_renew_deadline: Duration,
    /// Interval of renewals and, with jitter, of attempts to acquire the lease.
    pub lease_retry_period: Duration,
    /// First delay after a failed reconcile.
    pub backoff_min: Duration,
    /// Longest delay after a failed reconcile.
    pub backoff_max: Duration,
    /// First delay after a failure that a person must fix outside the object.
    pub slow_backoff_min: Duration,
    /// Longest delay after such a failure.
    pub slow_backoff_max: Duration,
    /// First delay while an object waits for something that no watch shows.
    pub poll_min: Duration,
    /// Longest delay while an object waits for something that no watch shows.
    pub poll_max: Duration,
    /// Timeout of one reconcile.
    pub reconcile_timeout: Duration,
    /// Interval of reconciles that nothing triggers.
    pub sync_period: Duration,
    /// Window in which repeated corrections of one child make it contested.
    pub drift_window: Duration,
    /// First delay between two corrections of a contested child.
    pub drift_backoff_min: Duration,
    /// Longest delay between two corrections of a contested child, which is no longer contested after that time without
    /// a correction.
    pub drift_backoff_max: Duration,
    /// Interval between writes of children that only a restart of the operator requires, after a burst of 5 s worth of
    /// writes.
    pub confirmation_period: Duration,
    /// Time for which the identity of a token is cached.
    pub metrics_authentication_ttl: Duration,
    /// Time for which an allowed access to the metrics is cached.
    pub metrics_authorized_ttl: Duration,
    /// Time for which a denied access to the metrics is cached.
    pub metrics_unauthorized_ttl: Duration,
    /// Longest life of a connection to the secure metrics endpoint.
    pub metrics_connection_max_age: Duration,
    /// Timeout of a handshake with the secure metrics endpoint, of a request's head, and of the requests in flight when
    /// a connection reaches its maximum age.
    pub metrics_io_timeout: Duration,
    /// Time for reconciles and requests in flight on shutdown.
    pub graceful_shutdown_timeout: Duration,
    /// Timeout of the apiserver's response.
    pub api_timeout: Duration,
    /// Duration of one watch request, after which the operator notices a stalled watch. At least 1 s.
    pub watch_timeout: Duration,
}

impl Default for RuntimeTimings {
    fn default() -> Self {
        Self {
            lease_duration: Duration::from_secs(9),
            lease_renew_deadline: Duration::from_secs(6),
            lease_retry_period: Duration::from_millis(500),
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_mins(5),
            slow_backoff_min: Duration::from_secs(15),
            slow_backoff_max: Duration::from_mins(10),
            poll_min: Duration::from_secs(1),
            poll_max: Duration::from_secs(30),
            reconcile_timeout: Duration::from_mins(1),
            sync_period: Duration::from_mins(30),
            drift_window: Duration::from_mins(10),
            drift_backoff_min: Duration::from_secs(15),
            drift_backoff_max: Duration::from_mins(5),
            confirmation_period: Duration::from_millis(50),
            metrics_authentication_ttl: Duration::from_mins(1),
            metrics_authorized_ttl: Duration::from_mins(5),
            metrics_unauthorized_ttl: Duration::from_secs(30),
            metrics_connection_max_age: Duration::from_mins(1),
            metrics_io_timeout: Duration::from_secs(10),
            graceful_shutdown_timeout: Duration::from_millis(500),
            api_timeout: Duration::from_secs(30),
            watch_timeout: Duration::from_mins(2),
        }
    }
}
