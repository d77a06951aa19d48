//! Parses flags and environment variables into a typed [`RunConfig`].

#![allow(clippy::doc_markdown)] // --help prints these comments, with backticks unchanged

use std::net::IpAddr;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{ArgAction, Args, CommandFactory, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use ipnet::IpNet;
use secrecy::SecretString;

pub mod commands;
mod lease;
mod metrics;
pub(crate) mod parse;
mod timings;

pub use commands::ClusterCommand;
pub(crate) use lease::OPERATOR_NAMESPACE;
pub use lease::{LEASE, LeaseArgs};
pub use parse::ListenAddresses;
pub use timings::Timings;

use qm_notify::resolve::Dns;
use qm_runtime::settings::{LogFormat, LogSettings, Settings};

/// Default of `--tracker-role`: the `ClusterRole` for trackable resources, as installed.
pub const TRACKER_ROLE: &str = "quartermaster-tracker-role";

/// Default prefix of the names of the admission policies.
pub const POLICY_PREFIX: &str = "quartermaster";

/// The flag that rejects references to other namespaces.
pub(crate) const NO_CROSS_NAMESPACE_REFS: &str = "--no-cross-namespace-refs";

const AFTER_HELP: &str = "\
Examples:
  # Run the operator against the current kubeconfig
  quartermaster run

  # Install or upgrade the CustomResourceDefinitions
  quartermaster crds | kubectl apply --server-side -f -

  # Show every object, and what is wrong with it
  quartermaster status

Run a command with --help to see its flags and examples. Each flag of run also has an environment
variable. The flag takes precedence.

Exit codes:
  0  success; run: drained after SIGTERM or SIGINT
  1  failure, such as a lost Lease; standard error says why
  2  usage error; standard error says what to write";

const RUN_AFTER_HELP: &str = "\
Examples:
  # Run against the current kubeconfig: all kinds, all namespaces, no leader election
  quartermaster run

  # Run one of several replicas, for two namespaces, without one kind
  quartermaster run --leader-elect --watch-namespace=shop,billing --controllers='*,-trackedfield'

  # Log more about notifications
  quartermaster run --log-level=info,qm_notify=debug

Exit codes:
  0  drained after SIGTERM or SIGINT
  1  failed, or lost the Lease; Kubernetes restarts the process
  2  usage error";

const COMPLETIONS_AFTER_HELP: &str = "\
Examples:
  # Complete quartermaster in bash
  quartermaster completions bash > /etc/bash_completion.d/quartermaster

  # Complete quartermaster in fish
  quartermaster completions fish > ~/.config/fish/completions/quartermaster.fish";

const CRDS_AFTER_HELP: &str = "\
Examples:
  # Install or upgrade the CustomResourceDefinitions
  quartermaster crds | kubectl apply --server-side -f -

  # Show what an upgrade would change
  quartermaster crds | kubectl diff --server-side -f -";

const VERSION_AFTER_HELP: &str = "\
Examples:
  # Print the version of this program
  quartermaster version";

/// Run the Quartermaster operator, or inspect and change its resources in a cluster
#[derive(Debug, Parser)]
#[command(name = "quartermaster", version, arg_required_else_help = true, after_help = AFTER_HELP)]
pub struct Cli {
    /// Subcommand.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Parses the arguments of the process. Help and errors name the program as the user runs it.
    pub fn from_arguments() -> Self {
        let program = commands::Invocation::default();
        let command = Self::command()
            .bin_name(program.as_str())
            .mut_subcommands(|subcommand| with_program(program, subcommand));
        let command = with_program(program, command);
        Self::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
    }
}

/// Returns the command with examples that name the program as the user runs it.
fn with_program(program: commands::Invocation, command: clap::Command) -> clap::Command {
    let help = command.get_after_help();
    match help.map(|text| program.help(&text.to_string())) {
        Some(help) => command.after_help(help),
        None => command,
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the operator until SIGTERM or SIGINT (Ctrl-C)
    ///
    /// The operator uses the cluster of $KUBECONFIG or ~/.kube/config, or else the cluster that it runs in.
    ///
    /// For a MyIngress, the AWS SDK finds region and credentials: AWS_REGION, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a
    /// profile, or the role of the Pod or of its node.
    #[command(after_help = RUN_AFTER_HELP)]
    Run(Box<RunArgs>),
    /// Commands that users run against a cluster.
    #[command(flatten)]
    Cluster(ClusterCommand),
    /// Print the CustomResourceDefinitions
    #[command(after_help = CRDS_AFTER_HELP)]
    Crds,
    /// Print a completion script for a shell
    #[command(after_help = COMPLETIONS_AFTER_HELP)]
    Completions {
        /// Print the script for this shell
        shell: Shell,
    },
    /// Print the version
    #[command(after_help = VERSION_AFTER_HELP)]
    Version,
}

/// The flags of `run`.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools)] // each is a switch of its own on the command line
pub struct RunArgs {
    /// Watch this namespace; repeatable, or separated by commas (default: all namespaces)
    #[arg(long = "watch-namespace", env = "QUARTERMASTER_WATCH_NAMESPACE", value_name = "NAMESPACE",
        value_delimiter = ',', value_parser = parse::namespace, help_heading = "Scope")]
    watch_namespaces: Vec<String>,

    /// Reconcile these kinds: * for all, NAME for one, -NAME to exclude one
    #[arg(
        long,
        env = "QUARTERMASTER_CONTROLLERS",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "*",
        allow_hyphen_values = true,
        help_heading = "Scope"
    )]
    controllers: Vec<String>,

    /// Set the operator's own namespace, which holds its Lease and the Secrets that it may share
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE", default_value = OPERATOR_NAMESPACE,
        value_parser = parse::namespace, help_heading = "Scope")]
    operator_namespace: String,

    /// Act only while holding the Lease; required for two or more replicas
    #[arg(long, env = "QUARTERMASTER_LEADER_ELECT", value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value = "false", default_missing_value = "true",
        value_parser = parse::Boolean, help_heading = "Leader election")]
    leader_elect: bool,

    /// Use the Lease of this name in the operator's namespace; installs that share the namespace need one each
    #[arg(long, env = "QUARTERMASTER_LEADER_ELECTION_ID", value_name = "NAME", default_value = LEASE,
        value_parser = parse::lease, help_heading = "Leader election")]
    leader_election_id: String,

    #[command(flatten)]
    metrics: metrics::MetricsArgs,

    /// Serve /livez and /readyz on this address; 0 disables them
    #[arg(
        long,
        env = "QUARTERMASTER_HEALTH_PROBE_BIND_ADDRESS",
        value_name = "ADDRESS",
        default_value = ":8081",
        help_heading = "Metrics and probes"
    )]
    health_probe_bind_address: String,

    /// Track only what this ClusterRole grants; the operator's other permissions do not count
    #[arg(long, env = "QUARTERMASTER_TRACKER_ROLE", value_name = "NAME", default_value = TRACKER_ROLE,
        value_parser = parse::cluster_role, help_heading = "Access")]
    tracker_role: String,

    /// Add this name of the cluster to every message
    #[arg(long, env = "QUARTERMASTER_CLUSTER_NAME", value_name = "NAME", default_value = "",
        hide_default_value = true, value_parser = parse::cluster_name, help_heading = "Notifications")]
    cluster_name: String,

    /// Check the admission policies whose names have this prefix; empty checks none
    #[arg(long, env = "QUARTERMASTER_ADMISSION_POLICY_PREFIX", value_name = "PREFIX", default_value = POLICY_PREFIX,
        value_parser = parse::policy_prefix, help_heading = "Access")]
    admission_policy_prefix: String,

    /// Reject targets, sources and destinations outside a resource's own namespace, cluster-scoped targets and shared Secrets
    ///
    /// The operator enforces this flag itself and does not rely on admission policies.
    #[arg(long, env = "QUARTERMASTER_NO_CROSS_NAMESPACE_REFS", value_name = "BOOL", action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_parser = parse::Boolean, help_heading = "Access")]
    no_cross_namespace_refs: bool,

    /// Allow copies of ConfigMaps in the namespaces of Kubernetes, such as kube-system, and under trusted names, such as aws-auth
    ///
    /// Authors of ConfigMapSyncs can then change what the whole cluster relies on.
    #[arg(long, env = "QUARTERMASTER_ALLOW_PROTECTED_DESTINATIONS", value_name = "BOOL", action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_parser = parse::Boolean, help_heading = "Access")]
    allow_protected_destinations: bool,

    /// Use the Telegram Bot API at this base URL
    #[arg(
        long,
        env = "QUARTERMASTER_TELEGRAM_API_URL",
        value_name = "URL",
        hide_env_values = true,
        default_value = "https://api.telegram.org",
        help_heading = "Notifications"
    )]
    telegram_api_url: String,

    /// Share Secrets of the operator's namespace with contact points of other namespaces
    #[arg(
        long,
        env = "QUARTERMASTER_SHARED_SECRETS",
        value_name = "WHICH",
        default_value = "telegram",
        help_heading = "Notifications"
    )]
    shared_secrets: SharedSecrets,

    /// Allow webhooks to loopback addresses, to try the operator on one machine
    #[arg(long, env = "QUARTERMASTER_WEBHOOK_ALLOW_LOOPBACK", value_name = "BOOL", action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_parser = parse::Boolean, help_heading = "Notifications")]
    webhook_allow_loopback: bool,

    /// Deny webhooks to this network, such as 10.0.0.0/8; repeatable
    ///
    /// Link-local and metadata addresses are always denied.
    #[arg(long = "webhook-deny-cidr", env = "QUARTERMASTER_WEBHOOK_DENY_CIDR", value_name = "CIDR",
        value_delimiter = ',', value_parser = parse::network, help_heading = "Notifications")]
    webhook_deny_cidrs: Vec<IpNet>,

    /// Allow webhooks to this port only, such as 443; repeatable (default: all ports)
    #[arg(long = "webhook-allow-port", env = "QUARTERMASTER_WEBHOOK_ALLOW_PORT", value_name = "PORT",
        value_delimiter = ',', value_parser = parse::port, help_heading = "Notifications")]
    webhook_allow_ports: Vec<u16>,

    /// Quote responses and connection errors of private and proxied addresses in status and Events
    ///
    /// Authors of ContactPoints can then read the beginning of responses from inside the cluster.
    #[arg(long, env = "QUARTERMASTER_WEBHOOK_QUOTE_PRIVATE", value_name = "BOOL", action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_parser = parse::Boolean, help_heading = "Notifications")]
    webhook_quote_private: bool,

    /// Send webhooks through this proxy; HTTPS_PROXY applies to Telegram and AWS only
    #[arg(
        long,
        env = "QUARTERMASTER_WEBHOOK_PROXY",
        value_name = "URL",
        hide_env_values = true,
        help_heading = "Notifications"
    )]
    webhook_proxy: Option<SecretString>,

    /// Read the DNS servers for webhooks from this file, in the format of resolv.conf(5)
    #[arg(
        long,
        env = "QUARTERMASTER_RESOLV_CONF",
        value_name = "FILE",
        default_value = "/etc/resolv.conf",
        hide = true
    )]
    resolv_conf: PathBuf,

    /// Read webhook host names that need no DNS from this file, in the format of hosts(5)
    #[arg(
        long,
        env = "QUARTERMASTER_HOSTS_FILE",
        value_name = "FILE",
        default_value = "/etc/hosts",
        hide = true
    )]
    hosts_file: PathBuf,

    /// Query the DNS servers for webhooks on this port
    #[arg(
        long,
        env = "QUARTERMASTER_DNS_PORT",
        value_name = "PORT",
        default_value_t = 53,
        hide = true
    )]
    dns_port: u16,

    /// Log at this level: error, warn, info, debug, trace, or directives such as info,qm_notify=debug
    #[arg(long, env = "QUARTERMASTER_LOG_LEVEL", value_name = "LEVEL", default_value = "info",
        value_parser = parse::log_level, help_heading = "Logs")]
    log_level: String,

    /// Log in this format
    #[arg(
        long,
        env = "QUARTERMASTER_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "auto",
        help_heading = "Logs"
    )]
    log_format: LogFormatArg,

    /// Deny webhooks to this address of the Pod; repeatable
    #[arg(
        long = "pod-ip",
        env = "POD_IPS",
        value_name = "IP",
        value_delimiter = ',',
        hide = true
    )]
    pod_ips: Vec<String>,

    /// Begin the identity in the Lease with this name of the Pod
    #[arg(long, env = "POD_NAME", value_name = "NAME", hide = true)]
    pod_name: Option<String>,

    #[command(flatten)]
    timings: Timings,
}

/// Contact points that may use a Secret of the operator's namespace if their own namespace has none with that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum SharedSecrets {
    /// Telegram contact points, because their token goes to the configured Bot API only
    Telegram,
    /// Webhook contact points too, if the Secret has the label quartermaster.dev/shared: "true"
    Labelled,
    /// No contact points
    Off,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormatArg {
    /// Text on a terminal, JSON otherwise
    Auto,
    /// Text for people
    Human,
    /// JSON, one object per line
    Json,
}

/// Checked configuration of `run`.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// Settings of the runtime.
    pub runtime: Settings,
    /// Addresses of `/metrics`; empty if it is off.
    pub metrics: ListenAddresses,
    /// Addresses of `/livez` and `/readyz`; empty if they are off.
    pub probes: ListenAddresses,
    /// Prefix of the names of the admission policies; `None` disables the check.
    pub(crate) policy_prefix: Option<String>,
    /// Whether to reject references to other namespaces.
    pub(crate) no_cross_namespace_refs: bool,
    /// Name of the `ClusterRole` that grants trackable resources.
    pub tracker_role: String,
    /// Name of the cluster, a line in every message.
    pub(crate) cluster_name: Option<String>,
    /// Whether copies may go to the namespaces of Kubernetes itself.
    pub(crate) allow_protected_destinations: bool,
    /// Settings of notifications.
    pub notifications: NotificationConfig,
    /// Settings of logs.
    pub log: LogSettings,
    /// Intervals and limits.
    pub(crate) timings: Timings,
}

/// Settings of notifications.
#[derive(Clone, Debug)]
pub struct NotificationConfig {
    /// Base URL of the Bot API, without a trailing slash.
    pub(crate) telegram_api_url: String,
    /// Contact points that may use a Secret of the operator's namespace.
    pub(crate) shared_secrets: SharedSecrets,
    /// Whether webhooks may go to loopback addresses.
    pub(crate) allow_loopback: bool,
    /// Networks that webhooks must not go to.
    pub deny: Vec<IpNet>,
    /// Ports that webhooks may go to; empty allows every port.
    pub(crate) allow_ports: Vec<u16>,
    /// The operator's own addresses, which no webhook may go to.
    pub(crate) own_addresses: Vec<IpAddr>,
    /// True if messages may quote responses of private addresses.
    pub(crate) quote_private: bool,
    /// Proxy of webhooks; its URL may contain a password.
    pub(crate) webhook_proxy: Option<SecretString>,
    /// DNS settings for webhook names.
    pub dns: Dns,
}

impl RunArgs {
    /// Checks the flags beyond clap's rules; `kinds` are the existing kinds.
    ///
    /// # Errors
    /// Returns a clap error (exit code 2) that says what to write instead.
    pub fn config(self, kinds: &[&'static str]) -> Result<RunConfig, clap::Error> {
        self.checked(kinds).map_err(|message| {
            let mut program = Cli::command();
            program.build();
            let run = program.find_subcommand("run").cloned();
            run.unwrap_or(program)
                .error(ErrorKind::ValueValidation, message)
        })
    }

    fn checked(self, kinds: &[&'static str]) -> Result<RunConfig, String> {
        use secrecy::ExposeSecret;

        self.timings.check()?;
        // clap would repeat a rejected value in its error, so values that may contain a password are checked here.
        let webhook_proxy = match self.webhook_proxy.as_ref().map(SecretString::expose_secret) {
            None | Some("") => None,
            Some(url) => Some(SecretString::from(parse::webhook_proxy(url)?)),
        };
        let not_empty = |text: &String| !text.is_empty();
        if self.operator_namespace.is_empty() {
            return Err(
                "--operator-namespace: write the namespace that the operator runs in".into(),
            );
        }
        Ok(RunConfig {
            runtime: Settings {
                program: crate::PROGRAM,
                leader_elect: self.leader_elect,
                leader_election_id: self.leader_election_id,
                pod_name: self.pod_name.filter(not_empty),
                operator_namespace: self.operator_namespace,
                watch_namespaces: self
                    .watch_namespaces
                    .into_iter()
                    .filter(not_empty)
                    .collect(),
                controllers: Some(parse::controllers(&self.controllers, kinds)?),
                metrics_certificate: self.metrics.certificate()?,
                timings: self.timings.runtime(),
            },
            metrics: self.metrics.listen()?,
            probes: parse::listen(&self.health_probe_bind_address)
                .map_err(|e| format!("--health-probe-bind-address: {e}"))?,
            tracker_role: self.tracker_role,
            cluster_name: Some(self.cluster_name).filter(not_empty),
            policy_prefix: Some(self.admission_policy_prefix).filter(not_empty),
            no_cross_namespace_refs: self.no_cross_namespace_refs,
            allow_protected_destinations: self.allow_protected_destinations,
            notifications: NotificationConfig {
                telegram_api_url: parse::telegram_api_url(&self.telegram_api_url)?,
                shared_secrets: if self.no_cross_namespace_refs {
                    SharedSecrets::Off
                } else {
                    self.shared_secrets
                },
                allow_loopback: self.webhook_allow_loopback,
                deny: self.webhook_deny_cidrs,
                allow_ports: self.webhook_allow_ports,
                own_addresses: parse::pod_ips(&self.pod_ips)?,
                quote_private: self.webhook_quote_private,
                webhook_proxy,
                dns: Dns {
                    resolv_conf: self.resolv_conf,
                    hosts: self.hosts_file,
                    port: self.dns_port,
                },
            },
            log: LogSettings {
                level: self.log_level,
                format: match self.log_format {
                    LogFormatArg::Auto => LogFormat::Auto,
                    LogFormatArg::Human => LogFormat::Human,
                    LogFormatArg::Json => LogFormat::Json,
                },
            },
            timings: self.timings,
        })
    }
}

#[cfg(test)]
mod tests;
