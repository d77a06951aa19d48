//! Intervals, deadlines and limits of the operator, with flags to change them.

use std::time::Duration;

use clap::Args;
use qm_runtime::settings::{self, LEASE_JITTER};

use super::parse::duration;

/// Intervals, deadlines and limits. The defaults are the product's rules; hidden flags shorten them for tests.
///
/// Each default is written twice, for clap and in `Default` here or of the crate that uses it; a test compares the two.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct Timings {
    /// How long a standing-by replica waits for a silent leader before it takes over
    ///
    /// Counted from the last renewal that it saw, on its own clock. At least 1s.
    #[arg(long, env = "QUARTERMASTER_LEADER_ELECT_LEASE_DURATION", value_name = "DURATION", value_parser = duration,
        default_value = "9s", help_heading = "Leader election")]
    pub leader_elect_lease_duration: Duration,
    /// How long the leader acts without a successful renewal; then it stops and exits
    ///
    /// Less than --leader-elect-lease-duration: the leader must have stopped before another may start.
    #[arg(long, env = "QUARTERMASTER_LEADER_ELECT_RENEW_DEADLINE", value_name = "DURATION", value_parser = duration,
        default_value = "6s", help_heading = "Leader election")]
    pub leader_elect_renew_deadline: Duration,
    /// How often the lease is renewed, or asked for (then up to 2.2 times as long, at random)
    #[arg(long, env = "QUARTERMASTER_LEADER_ELECT_RETRY_PERIOD", value_name = "DURATION", value_parser = duration,
        default_value = "500ms", help_heading = "Leader election")]
    pub leader_elect_retry_period: Duration,

    /// First wait after a failed pass or request
    #[arg(long, env = "QUARTERMASTER_BACKOFF_MIN", value_parser = duration, default_value = "1s", hide = true)]
    pub backoff_min: Duration,
    /// Longest wait after failed passes or requests
    #[arg(long, env = "QUARTERMASTER_BACKOFF_MAX", value_parser = duration, default_value = "5m", hide = true)]
    pub backoff_max: Duration,
    /// First wait after what somebody has to mend elsewhere, such as a right that AWS does not grant
    #[arg(long, env = "QUARTERMASTER_SLOW_BACKOFF_MIN", value_parser = duration, default_value = "30s", hide = true)]
    pub slow_backoff_min: Duration,
    /// Longest wait after what somebody has to mend elsewhere
    #[arg(long, env = "QUARTERMASTER_SLOW_BACKOFF_MAX", value_parser = duration, default_value = "10m", hide = true)]
    pub slow_backoff_max: Duration,
    /// The most that a receiver's Retry-After is honoured for (Telegram's retry_after has no such limit)
    #[arg(long, env = "QUARTERMASTER_RETRY_AFTER_MAX", value_parser = duration, default_value = "1h", hide = true)]
    pub retry_after_max: Duration,
    /// How often a contact point that stopped (401, 403, 404 and the like) is tried again
    #[arg(long, env = "QUARTERMASTER_STOPPED_RETRY_PERIOD", value_parser = duration, default_value = "5m", hide = true)]
    pub stopped_retry_period: Duration,
    /// How long one request to a receiver may take, unless the contact point says otherwise
    #[arg(long, env = "QUARTERMASTER_SEND_TIMEOUT", value_parser = duration, default_value = "10s", hide = true)]
    pub send_timeout: Duration,
    /// How often a Secret that is in use is read again
    #[arg(long, env = "QUARTERMASTER_SECRET_REFRESH_PERIOD", value_parser = duration, default_value = "5m", hide = true)]
    pub secret_refresh_period: Duration,
    /// How often the admission policies are checked
    #[arg(long, env = "QUARTERMASTER_POLICY_CHECK_PERIOD", value_parser = duration, default_value = "5m", hide = true)]
    pub policy_check_period: Duration,
    /// First wait for what no watch tells of, such as a Secret that is not there
    #[arg(long, env = "QUARTERMASTER_POLL_MIN", value_parser = duration, default_value = "1s", hide = true)]
    pub poll_min: Duration,
    /// Longest wait for what no watch tells of
    #[arg(long, env = "QUARTERMASTER_POLL_MAX", value_parser = duration, default_value = "30s", hide = true)]
    pub poll_max: Duration,
    /// Age from which an entry expires when an attempt to deliver it fails
    #[arg(long, env = "QUARTERMASTER_DELIVERY_MAX_AGE", value_parser = duration, default_value = "24h", hide = true)]
    pub delivery_max_age: Duration,
    /// How long one pass over one object may take
    #[arg(long, env = "QUARTERMASTER_RECONCILE_TIMEOUT", value_parser = duration, default_value = "60s", hide = true)]
    pub reconcile_timeout: Duration,
    /// How often the Event of a state that lasts is renewed (the apiserver forgets Events after an hour)
    #[arg(long, env = "QUARTERMASTER_EVENT_RENEWAL", value_parser = duration, default_value = "30m", hide = true)]
    pub event_renewal: Duration,
    /// How often each object is looked at without a reason
    #[arg(long, env = "QUARTERMASTER_SYNC_PERIOD", value_parser = duration, default_value = "30m", hide = true)]
    pub sync_period: Duration,
    /// Within how long repeated corrections of one child make it contested
    #[arg(long, env = "QUARTERMASTER_DRIFT_WINDOW", value_parser = duration, default_value = "10m", hide = true)]
    pub drift_window: Duration,
    /// First wait between two corrections of a child that is contested
    #[arg(long, env = "QUARTERMASTER_DRIFT_BACKOFF_MIN", value_parser = duration, default_value = "15s", hide = true)]
    pub drift_backoff_min: Duration,
    /// Longest wait between two corrections of a child that is contested; without one for so long, it no longer is
    #[arg(long, env = "QUARTERMASTER_DRIFT_BACKOFF_MAX", value_parser = duration, default_value = "5m", hide = true)]
    pub drift_backoff_max: Duration,
    /// Time between two writes of children that only a restart of the operator calls for, once those of 5 s were made at once
    #[arg(long, env = "QUARTERMASTER_CONFIRMATION_PERIOD", value_parser = duration, default_value = "50ms", hide = true)]
    pub confirmation_period: Duration,
    /// How long an autoscaler may be inactive before its app is not ready: a new one has no metrics at first
    #[arg(long, env = "QUARTERMASTER_SCALING_INACTIVE_GRACE_PERIOD", value_parser = duration, default_value = "5m",
        hide = true)]
    pub scaling_inactive_grace_period: Duration,
    /// How often each load balancer is looked at: AWS tells nobody of a change (up to 1.2 times as long, at random)
    #[arg(long, env = "QUARTERMASTER_AWS_SYNC_PERIOD", value_parser = duration, default_value = "10m", hide = true)]
    pub aws_sync_period: Duration,
    /// How long one call of AWS may take
    #[arg(long, env = "QUARTERMASTER_AWS_TIMEOUT", value_parser = duration, default_value = "20s", hide = true)]
    pub aws_timeout: Duration,
    /// How often AWS is asked what is there, once 20 calls were made at once
    #[arg(long, env = "QUARTERMASTER_AWS_READ_PERIOD", value_parser = duration, default_value = "200ms", hide = true)]
    pub aws_read_period: Duration,
    /// How often AWS is asked to change something, once 10 calls were made at once
    #[arg(long, env = "QUARTERMASTER_AWS_WRITE_PERIOD", value_parser = duration, default_value = "500ms", hide = true)]
    pub aws_write_period: Duration,
    /// How long after a load balancer was asked for AWS may still show none
    #[arg(long, env = "QUARTERMASTER_AWS_CONSISTENCY_WINDOW", value_parser = duration, default_value = "60s", hide = true)]
    pub aws_consistency_window: Duration,
    /// How long it is remembered whose token one is that reads the metrics
    #[arg(long, env = "QUARTERMASTER_METRICS_AUTHENTICATION_TTL", value_parser = duration, default_value = "1m", hide = true)]
    pub metrics_authentication_ttl: Duration,
    /// How long it is remembered that somebody may read the metrics
    #[arg(long, env = "QUARTERMASTER_METRICS_AUTHORIZED_TTL", value_parser = duration, default_value = "5m", hide = true)]
    pub metrics_authorized_ttl: Duration,
    /// How long it is remembered that somebody may not, or is not known
    #[arg(long, env = "QUARTERMASTER_METRICS_UNAUTHORIZED_TTL", value_parser = duration, default_value = "30s", hide = true)]
    pub metrics_unauthorized_ttl: Duration,
    /// How long a connection to the secured metrics lasts: a silent one keeps its place no longer
    #[arg(long, env = "QUARTERMASTER_METRICS_CONNECTION_MAX_AGE", value_parser = duration, default_value = "1m", hide = true)]
    pub metrics_connection_max_age: Duration,
    /// How long its handshake may take, the head of a request, and what is under way at its end
    #[arg(long, env = "QUARTERMASTER_METRICS_IO_TIMEOUT", value_parser = duration, default_value = "10s", hide = true)]
    pub metrics_io_timeout: Duration,
    /// How long running passes and requests are waited for on shutdown
    #[arg(long, env = "QUARTERMASTER_GRACEFUL_SHUTDOWN_TIMEOUT", value_parser = duration, default_value = "500ms", hide = true)]
    pub graceful_shutdown_timeout: Duration,
    /// How long the apiserver may take to begin its answer
    #[arg(long, env = "QUARTERMASTER_API_TIMEOUT", value_parser = duration, default_value = "30s", hide = true)]
    pub api_timeout: Duration,
    /// How long one watch request lasts before it is renewed; one that hangs in silence is noticed by then
    #[arg(long, env = "QUARTERMASTER_WATCH_TIMEOUT", value_parser = duration, default_value = "2m", hide = true)]
    pub watch_timeout: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        let (runtime, aws) = (settings::Timings::default(), qm_aws::Timings::default());
        Self {
            leader_elect_lease_duration: runtime.lease_duration,
            leader_elect_renew_deadline: runtime.lease_renew_deadline,
            leader_elect_retry_period: runtime.lease_retry_period,
            backoff_min: runtime.backoff_min,
            backoff_max: runtime.backoff_max,
            slow_backoff_min: runtime.slow_backoff_min,
            slow_backoff_max: runtime.slow_backoff_max,
            retry_after_max: Duration::from_hours(1),
            stopped_retry_period: Duration::from_mins(5),
            send_timeout: Duration::from_secs(10),
            secret_refresh_period: Duration::from_mins(5),
            policy_check_period: Duration::from_mins(5),
            poll_min: runtime.poll_min,
            poll_max: runtime.poll_max,
            delivery_max_age: Duration::from_hours(24),
            reconcile_timeout: runtime.reconcile_timeout,
            event_renewal: Duration::from_mins(30),
            sync_period: runtime.sync_period,
            drift_window: runtime.drift_window,
            drift_backoff_min: runtime.drift_backoff_min,
            drift_backoff_max: runtime.drift_backoff_max,
            confirmation_period: runtime.confirmation_period,
            scaling_inactive_grace_period: Duration::from_mins(5),
            aws_sync_period: Duration::from_mins(10),
            aws_timeout: aws.timeout,
            aws_read_period: aws.read_period,
            aws_write_period: aws.write_period,
            aws_consistency_window: Duration::from_mins(1),
            metrics_authentication_ttl: runtime.metrics_authentication_ttl,
            metrics_authorized_ttl: runtime.metrics_authorized_ttl,
            metrics_unauthorized_ttl: runtime.metrics_unauthorized_ttl,
            metrics_connection_max_age: runtime.metrics_connection_max_age,
            metrics_io_timeout: runtime.metrics_io_timeout,
            graceful_shutdown_timeout: runtime.graceful_shutdown_timeout,
            api_timeout: runtime.api_timeout,
            watch_timeout: runtime.watch_timeout,
        }
    }
}

impl Timings {
    /// Returns the timings of AWS calls.
    pub fn aws(&self) -> qm_aws::Timings {
        qm_aws::Timings {
            timeout: self.aws_timeout,
            read_period: self.aws_read_period,
            write_period: self.aws_write_period,
        }
    }

    /// Returns the timings of the runtime.
    pub fn runtime(&self) -> settings::Timings {
        settings::Timings {
            lease_duration: self.leader_elect_lease_duration,
            lease_renew_deadline: self.leader_elect_renew_deadline,
            lease_retry_period: self.leader_elect_retry_period,
            backoff_min: self.backoff_min,
            backoff_max: self.backoff_max,
            slow_backoff_min: self.slow_backoff_min,
            slow_backoff_max: self.slow_backoff_max,
            poll_min: self.poll_min,
            poll_max: self.poll_max,
            reconcile_timeout: self.reconcile_timeout,
            sync_period: self.sync_period,
            drift_window: self.drift_window,
            drift_backoff_min: self.drift_backoff_min,
            drift_backoff_max: self.drift_backoff_max,
            confirmation_period: self.confirmation_period,
            metrics_authentication_ttl: self.metrics_authentication_ttl,
            metrics_authorized_ttl: self.metrics_authorized_ttl,
            metrics_unauthorized_ttl: self.metrics_unauthorized_ttl,
            metrics_connection_max_age: self.metrics_connection_max_age,
            metrics_io_timeout: self.metrics_io_timeout,
            graceful_shutdown_timeout: self.graceful_shutdown_timeout,
            api_timeout: self.api_timeout,
            watch_timeout: self.watch_timeout,
        }
    }

    /// Checks that the values fit together. The error says what to write instead.
    pub(super) fn check(&self) -> Result<(), String> {
        let whole_second = Duration::from_secs(1);
        if self.leader_elect_lease_duration < whole_second {
            return Err(
                "--leader-elect-lease-duration must be at least 1s: the API counts it in whole seconds".into(),
            );
        }
        // Kubernetes' own leader elections demand the same: https://pkg.go.dev/k8s.io/client-go/tools/leaderelection
        if self.leader_elect_renew_deadline >= self.leader_elect_lease_duration {
            return Err(
                "--leader-elect-renew-deadline must be less than --leader-elect-lease-duration, such as 6s of 9s: the leader must \
                have stopped before another may start"
                    .into(),
            );
        }
        if self.leader_elect_retry_period.mul_f64(LEASE_JITTER) >= self.leader_elect_renew_deadline
        {
            return Err("--leader-elect-retry-period must be less than --leader-elect-renew-deadline divided by 2.2 (its jitter), \
                such as 500ms of 6s"
                .into());
        }
        for (min, max, flags) in [
            (
                self.backoff_min,
                self.backoff_max,
                "--backoff-min must not be more than --backoff-max",
            ),
            (
                self.slow_backoff_min,
                self.slow_backoff_max,
                "--slow-backoff-min must not be more than --slow-backoff-max",
            ),
            (
                self.drift_backoff_min,
                self.drift_backoff_max,
                "--drift-backoff-min must not be more than --drift-backoff-max",
            ),
            (
                self.poll_min,
                self.poll_max,
                "--poll-min must not be more than --poll-max",
            ),
        ] {
            if min > max {
                return Err(flags.into());
            }
        }
        if self.watch_timeout < whole_second {
            return Err(
                "--watch-timeout must be at least 1s: the API counts it in whole seconds".into(),
            );
        }
        Ok(())
    }
}
