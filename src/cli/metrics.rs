//! Flags of `/metrics`.

#![allow(clippy::doc_markdown)] // --help prints these comments, with backticks unchanged

use clap::{ArgAction, Args};
use qm_runtime::settings::MetricsCertificate;

use super::parse::{self, ListenAddresses};

#[derive(Debug, Args)]
pub(super) struct MetricsArgs {
    /// Serve /metrics on this address; 0 disables it
    #[arg(
        long = "metrics-bind-address",
        env = "QUARTERMASTER_METRICS_BIND_ADDRESS",
        value_name = "ADDRESS",
        default_value = ":8080",
        help_heading = "Metrics and probes"
    )]
    address: String,

    /// Serve /metrics over TLS, and only to clients that RBAC allows to get /metrics, such as with the install's ClusterRole ...-metrics-reader
    #[arg(long = "metrics-secure", env = "QUARTERMASTER_METRICS_SECURE", value_name = "BOOL", action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_parser = parse::Boolean, help_heading = "Metrics and probes")]
    secure: bool,

    /// Read tls.crt and tls.key (PEM) for --metrics-secure from this folder (default: a self-signed certificate)
    ///
    /// The operator reads the files again whenever they change.
    #[arg(
        long = "metrics-cert-path",
        env = "QUARTERMASTER_METRICS_CERT_PATH",
        value_name = "DIR",
        help_heading = "Metrics and probes"
    )]
    cert_path: Option<String>,
}

impl MetricsArgs {
    /// Returns the addresses; empty if `/metrics` is off.
    pub(super) fn listen(&self) -> Result<ListenAddresses, String> {
        parse::listen(&self.address).map_err(|error| format!("--metrics-bind-address: {error}"))
    }

    /// Returns the certificate; `None` for plain HTTP.
    pub(super) fn certificate(&self) -> Result<Option<MetricsCertificate>, String> {
        match self.cert_path.as_deref().filter(|folder| !folder.is_empty()) {
            Some(_) if !self.secure => {
                Err("--metrics-cert-path: the certificate is for --metrics-secure; write both, or neither".into())
            }
            Some(folder) => Ok(Some(MetricsCertificate::Mounted(folder.into()))),
            None => Ok(self.secure.then_some(MetricsCertificate::SelfSigned)),
        }
    }
}
