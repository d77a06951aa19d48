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
    /// Let a standby acquire the Lease this long after its last observed renewal; at least 1s
    #[arg(long, env = "QUARTERMASTER_LEADER_ELECT_LEASE_DURATION", value_name = "DURATION", value_parser = duration,
        default_value = "9s", help_heading = "Leader election")]
    pub leader_elect_lease_duration: Duration,
    /// Stop a leader that has not renewed its Lease for this long
    ///
    /// Less than --leader-elect-lease-duration: the leader must have stopped before another may start.
    #[arg(long, env = "QUARTERMASTER_LEADER_ELECT_RENEW_DEADLINE", value_name = "DURATION", value_parser = duration,
        default_value = "6s", help_heading = "Leader election")]
    pub leader_elect_renew_deadline: Duration,
    /// Renew the Lease at this interval; a standby tries after up to 2.2 times as long, at random
    #[arg(long, env = "QUARTERMASTER_LEADER_ELECT_RETRY_PERIOD", value_name = "DURATION", value_parser = duration,
        default_value = "500ms", help_heading = "Leader election")]
    pub leader_elect_retry_period: Duration,

    /// Wait this long after the first failed reconcile or request
    #[arg(long, env = "QUARTERMASTER_BACKOFF_MIN", value_parser = duration, default_value = "1s", hide = true)]
    pub backoff_min: Duration,
    /// Wait at most this long after failed reconciles or requests
    #[arg(long, env = "QUARTERMASTER_BACKOFF_MAX", value_parser = duration, default_value = "5m", hide = true)]
    pub backoff_max: Duration,
    /// Wait this long after the first error that needs a fix elsewhere, such as a missing AWS permission
    #[arg(long, env = "QUARTERMASTER_SLOW_BACKOFF_MIN", value_parser = duration, default_value = "15s", hide = true)]
    pub slow_backoff_min: Duration,
    /// Wait at most this long after errors that need a fix elsewhere
    #[arg(long, env = "QUARTERMASTER_SLOW_BACKOFF_MAX", value_parser = duration, default_value = "10m", hide = true)]
    pub slow_backoff_max: Duration,
    /// Honour a receiver's Retry-After for at most this long; does not limit Telegram's retry_after
    #[arg(long, env = "QUARTERMASTER_RETRY_AFTER_MAX", value_parser = duration, default_value = "1h", hide = true)]
    pub retry_after_max: Duration,
    /// Retry a stopped contact point (401, 403, 404 and the like) at this interval
    #[arg(long, env = "QUARTERMASTER_STOPPED_RETRY_PERIOD", value_parser = duration, default_value = "5m", hide = true)]
    pub stopped_retry_period: Duration,
    /// Limit one request to a receiver to this time, unless the contact point sets its own
    #[arg(long, env = "QUARTERMASTER_SEND_TIMEOUT", value_parser = duration, default_value = "10s", hide = true)]
    pub send_timeout: Duration,
    /// Reread each Secret in use at this interval
    #[arg(long, env = "QUARTERMASTER_SECRET_REFRESH_PERIOD", value_parser = duration, default_value = "5m", hide = true)]
    pub secret_refresh_period: Duration,
    /// Check the admission policies at this interval
    #[arg(long, env = "QUARTERMASTER_POLICY_CHECK_PERIOD", value_parser = duration, default_value = "5m", hide = true)]
    pub policy_check_period: Duration,
    /// Wait this long before the first poll for what no watch reports, such as a missing Secret
    #[arg(long, env = "QUARTERMASTER_POLL_MIN", value_parser = duration, default_value = "1s", hide = true)]
    pub poll_min: Duration,
    /// Wait at most this long between polls for what no watch reports
    #[arg(long, env = "QUARTERMASTER_POLL_MAX", value_parser = duration, default_value = "30s", hide = true)]
    pub poll_max: Duration,
    /// Expire an entry of at least this age when an attempt to deliver it fails
    #[arg(long, env = "QUARTERMASTER_DELIVERY_MAX_AGE", value_parser = duration, default_value = "24h", hide = true)]
    pub delivery_max_age: Duration,
    /// Limit one reconcile of one object to this time
    #[arg(long, env = "QUARTERMASTER_RECONCILE_TIMEOUT", value_parser = duration, default_value = "60s", hide = true)]
    pub reconcile_timeout: Duration,
    /// Repeat the Event of a lasting state at this interval; the apiserver deletes Events after an hour
    #[arg(long, env = "QUARTERMASTER_EVENT_RENEWAL", value_parser = duration, default_value = "30m", hide = true)]
    pub event_renewal: Duration,
    /// Reconcile each object at this interval, which a random factor of up to 1.2 extends
    #[arg(long, env = "QUARTERMASTER_SYNC_PERIOD", value_parser = duration, default_value = "30m", hide = true)]
    pub sync_period: Duration,
    /// Write the status of a TrackedFieldSet at most once in this time
    #[arg(long, env = "QUARTERMASTER_SET_STATUS_PERIOD", value_parser = duration, default_value = "5s", hide = true)]
    pub set_status_period: Duration,
    /// Count repeated corrections of one child within this time as contested
    #[arg(long, env = "QUARTERMASTER_DRIFT_WINDOW", value_parser = duration, default_value = "10m", hide = true)]
    pub drift_window: Duration,
    /// Wait this long before the first correction of a contested child
    #[arg(long, env = "QUARTERMASTER_DRIFT_BACKOFF_MIN", value_parser = duration, default_value = "15s", hide = true)]
    pub drift_backoff_min: Duration,
    /// Wait at most this long between corrections of a contested child; without any for this time it is no longer contested
    #[arg(long, env = "QUARTERMASTER_DRIFT_BACKOFF_MAX", value_parser = duration, default_value = "5m", hide = true)]
    pub drift_backoff_max: Duration,
    /// Leave this time between writes of children that only a restart requires, after a burst of 5 s worth of writes
    #[arg(long, env = "QUARTERMASTER_CONFIRMATION_PERIOD", value_parser = duration, default_value = "50ms", hide = true)]
    pub confirmation_period: Duration,
    /// Report an app with an inactive autoscaler as not ready after this time; a new autoscaler has no metrics at first
    #[arg(long, env = "QUARTERMASTER_SCALING_INACTIVE_GRACE_PERIOD", value_parser = duration, default_value = "5m",
        hide = true)]
    pub scaling_inactive_grace_period: Duration,
    /// Check each load balancer at this interval, which a random factor of up to 1.2 extends; AWS reports no changes
    #[arg(long, env = "QUARTERMASTER_AWS_SYNC_PERIOD", value_parser = duration, default_value = "10m", hide = true)]
    pub aws_sync_period: Duration,
    /// Limit one AWS call to this time
    #[arg(long, env = "QUARTERMASTER_AWS_TIMEOUT", value_parser = duration, default_value = "20s", hide = true)]
    pub aws_timeout: Duration,
    /// Space AWS read calls by this time, after a burst of 20
    #[arg(long, env = "QUARTERMASTER_AWS_READ_PERIOD", value_parser = duration, default_value = "200ms", hide = true)]
    pub aws_read_period: Duration,
    /// Space AWS write calls by this time, after a burst of 10
    #[arg(long, env = "QUARTERMASTER_AWS_WRITE_PERIOD", value_parser = duration, default_value = "500ms", hide = true)]
    pub aws_write_period: Duration,
    /// Wait this long for AWS to show a load balancer that the operator requested
    #[arg(long, env = "QUARTERMASTER_AWS_CONSISTENCY_WINDOW", value_parser = duration, default_value = "2m", hide = true)]
    pub aws_consistency_window: Duration,
    /// Cache the user of a metrics token for this time
    #[arg(long, env = "QUARTERMASTER_METRICS_AUTHENTICATION_TTL", value_parser = duration, default_value = "1m", hide = true)]
    pub metrics_authentication_ttl: Duration,
    /// Cache for this time that a user may read the metrics
    #[arg(long, env = "QUARTERMASTER_METRICS_AUTHORIZED_TTL", value_parser = duration, default_value = "5m", hide = true)]
    pub metrics_authorized_ttl: Duration,
    /// Cache for this time that a user may not read the metrics, or that a token is unknown
    #[arg(long, env = "QUARTERMASTER_METRICS_UNAUTHORIZED_TTL", value_parser = duration, default_value = "30s", hide = true)]
    pub metrics_unauthorized_ttl: Duration,
    /// Close a connection to the secured metrics after this time
    #[arg(long, env = "QUARTERMASTER_METRICS_CONNECTION_MAX_AGE", value_parser = duration, default_value = "1m", hide = true)]
    pub metrics_connection_max_age: Duration,
    /// Limit a handshake, a request head and the final response of the secured metrics to this time each
    #[arg(long, env = "QUARTERMASTER_METRICS_IO_TIMEOUT", value_parser = duration, default_value = "10s", hide = true)]
    pub metrics_io_timeout: Duration,
    /// Wait this long for running reconciles and requests on shutdown
    #[arg(long, env = "QUARTERMASTER_GRACEFUL_SHUTDOWN_TIMEOUT", value_parser = duration, default_value = "500ms", hide = true)]
    pub graceful_shutdown_timeout: Duration,
    /// Limit the wait for the beginning of the apiserver's response to this time
    #[arg(long, env = "QUARTERMASTER_API_TIMEOUT", value_parser = duration, default_value = "30s", hide = true)]
    pub api_timeout: Duration,
    /// Renew a watch request after this time, at which the operator also notices a stalled watch
    #[arg(long, env = "QUARTERMASTER_WATCH_TIMEOUT", value_parser = duration, default_value = "2m", hide = true)]
    pub watch_timeout: Duration,
}

impl Default for Timings {
    fn default() -> Self {
        let (runtime, aws) = (
            settings::RuntimeTimings::default(),
            qm_aws::AwsTimings::default(),
        );
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
            set_status_period: Duration::from_secs(5),
            drift_window: runtime.drift_window,
            drift_backoff_min: runtime.drift_backoff_min,
            drift_backoff_max: runtime.drift_backoff_max,
            confirmation_period: runtime.confirmation_period,
            scaling_inactive_grace_period: Duration::from_mins(5),
            aws_sync_period: Duration::from_mins(10),
            aws_timeout: aws.timeout,
            aws_read_period: aws.read_period,
            aws_write_period: aws.write_period,
            aws_consistency_window: Duration::from_mins(2),
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
    pub fn aws(&self) -> qm_aws::AwsTimings {
        qm_aws::AwsTimings {
            timeout: self.aws_timeout,
            read_period: self.aws_read_period,
            write_period: self.aws_write_period,
        }
    }

    /// Returns the timings of the runtime.
    pub fn runtime(&self) -> settings::RuntimeTimings {
        settings::RuntimeTimings {
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
        // client-go's leader election demands the same: https://pkg.go.dev/k8s.io/client-go/tools/leaderelection
        if self.leader_elect_renew_deadline >= self.leader_elect_lease_duration {
            return Err(
                "--leader-elect-renew-deadline must be less than --leader-elect-lease-duration, such as 6s and 9s: the \
                leader must have stopped before another may start"
                    .into(),
            );
        }
        if self.leader_elect_retry_period.mul_f64(LEASE_JITTER) >= self.leader_elect_renew_deadline
        {
            return Err("--leader-elect-retry-period must be less than --leader-elect-renew-deadline divided by 2.2 \
                (its jitter), such as 500ms and 6s"
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
