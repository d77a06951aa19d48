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
mod parse;
mod timings;

pub use commands::ClusterCommand;
pub use lease::{LEASE, LeaseArgs, OPERATOR_NAMESPACE};
pub use parse::ListenAddresses;
pub use timings::Timings;

use qm_notify::resolve::Dns;
use qm_runtime::settings::{LogFormat, LogSettings, Settings};

/// Default of `--tracker-role`: the `ClusterRole` for trackable resources, as installed.
pub const TRACKER_ROLE: &str = "quartermaster-tracker-role";

/// Default prefix of the names of the admission policies.
pub const POLICY_PREFIX: &str = "quartermaster";

/// The flag that rejects references to other namespaces.
pub const NO_CROSS_NAMESPACE_REFS: &str = "--no-cross-namespace-refs";

const AFTER_HELP: &str = "\
Every flag of run can be given as an environment variable instead; the flag wins.

Exit codes:
  0  done: the work is finished, or the operator was told to stop and has drained
  1  failed: the words are on standard error (a lost lease is one of them; Kubernetes starts the process again)
  2  usage: a flag or its value is wrong; the words say what to write";

const RUN_AFTER_HELP: &str = "\
The cluster is the one of $KUBECONFIG or ~/.kube/config, or the one it runs in.
For a MyIngress, region and credentials of AWS are what the SDK finds, once there is one: AWS_REGION,
AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or the role of the Pod or of its node.

Examples:
  quartermaster run
      Against the current kubeconfig, all kinds, all namespaces, no leader election.
  quartermaster run --leader-elect --watch-namespace=shop,billing --controllers='*,-trackedfield'
      As one of several replicas, for two namespaces, without one kind.
  quartermaster run --log-level=info,qm_notify=debug
      With more words on what is sent.

Exit codes: 0 told to stop, and drained; 1 failed or lost the lease; 2 a flag or its value is wrong.";

/// One small binary for the everyday chores of a Kubernetes cluster
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
        let program = commands::Program::default();
        let command = Self::command()
            .bin_name(program.as_str())
            .mut_subcommands(|subcommand| {
                let help = subcommand
                    .get_after_help()
                    .map(|text| program.help(&text.to_string()));
                match help {
                    Some(help) => subcommand.after_help(help),
                    None => subcommand,
                }
            });
        Self::from_arg_matches(&command.get_matches()).unwrap_or_else(|error| error.exit())
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the operator until it is told to stop (SIGTERM, Ctrl-C)
    #[command(after_help = RUN_AFTER_HELP)]
    Run(Box<RunArgs>),
    /// Commands that users run against a cluster.
    #[command(flatten)]
    Cluster(ClusterCommand),
    /// Print the completions of a shell, such as: quartermaster completions bash > /etc/bash_completion.d/quartermaster
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the CustomResourceDefinitions, such as: quartermaster crds | kubectl apply --server-side -f -
    Crds,
    /// Print the version
    Version,
}

/// The flags of `run`.
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools)] // each is a switch of its own on the command line
pub struct RunArgs {
    /// Act only while holding the Lease; needed with two replicas or more
    #[arg(long, env = "QUARTERMASTER_LEADER_ELECT", value_name = "BOOL", action = ArgAction::Set, num_args = 0..=1,
        require_equals = true, default_value = "false", default_missing_value = "true",
        value_parser = parse::Boolean, help_heading = "Leader election")]
    leader_elect: bool,

    /// Name of the Lease, in the operator's namespace; installs that share that namespace need one each
    #[arg(long, env = "QUARTERMASTER_LEADER_ELECTION_ID", value_name = "NAME", default_value = LEASE,
        value_parser = parse::lease, help_heading = "Leader election")]
    leader_election_id: String,

    #[command(flatten)]
    metrics: metrics::MetricsArgs,

    /// Address of /livez and /readyz; 0 turns it off
    #[arg(
        long,
        env = "QUARTERMASTER_HEALTH_PROBE_BIND_ADDRESS",
        value_name = "ADDRESS",
        default_value = ":8081"
    )]
    health_probe_bind_address: String,

    /// Namespace that the operator runs in: its Lease is there, and the Secrets that it may share
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAMESPACE", default_value = OPERATOR_NAMESPACE,
        value_parser = parse::namespace)]
    operator_namespace: String,

    /// Act in this namespace only; give it several times, or separate names by commas. Default: every namespace
    #[arg(long = "watch-namespace", env = "QUARTERMASTER_WATCH_NAMESPACE", value_name = "NAMESPACE",
        value_delimiter = ',', value_parser = parse::namespace)]
    watch_namespaces: Vec<String>,

    /// Kinds to act on: * for all, NAME for one, -NAME to leave one out
    #[arg(
        long,
        env = "QUARTERMASTER_CONTROLLERS",
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "*",
        allow_hyphen_values = true
    )]
    controllers: Vec<String>,

    /// Name of the ClusterRole that grants what may be tracked; the operator's other permissions do not count
    #[arg(long, env = "QUARTERMASTER_TRACKER_ROLE", value_name = "NAME", default_value = TRACKER_ROLE,
        value_parser = parse::cluster_role)]
    tracker_role: String,

    /// A name of this cluster, which then stands in every message
    #[arg(long, env = "QUARTERMASTER_CLUSTER_NAME", value_name = "NAME", default_value = "",
        hide_default_value = true, value_parser = parse::cluster_name)]
    cluster_name: String,

    /// Prefix of the names of the admission policies that the operator checks; empty: it checks none
    #[arg(long, env = "QUARTERMASTER_ADMISSION_POLICY_PREFIX", value_name = "PREFIX", default_value = POLICY_PREFIX,
        value_parser = parse::policy_prefix)]
    admission_policy_prefix: String,

    /// Act in a resource's own namespace only: refuse targets, sources and destinations in another one and cluster-scoped
    /// targets, and share no Secrets
    ///
    /// The operator enforces this flag itself and does not rely on admission policies.
    #[arg(long, env = "QUARTERMASTER_NO_CROSS_NAMESPACE_REFS", value_name = "BOOL", action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_parser = parse::Boolean)]
    no_cross_namespace_refs: bool,

    /// Let copies of ConfigMaps be written where Kubernetes itself lives (kube-system and the like), and under names that
    /// others trust (aws-auth, kube-root-ca.crt)
    ///
    /// Whoever may create a ConfigMapSync can then change what the whole cluster relies on.
    #[arg(long, env = "QUARTERMASTER_ALLOW_PROTECTED_DESTINATIONS", value_name = "BOOL", action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_parser = parse::Boolean, help_heading = "Copies")]
    allow_protected_destinations: bool,

    /// Base URL of the Telegram Bot API, for those who run a server of their own
    #[arg(
        long,
        env = "QUARTERMASTER_TELEGRAM_API_URL",
        value_name = "URL",
        hide_env_values = true,
        default_value = "https://api.telegram.org",
        help_heading = "Notifications"
    )]
    telegram_api_url: String,

    /// Which contact points of other namespaces may use a Secret of the operator's namespace
    #[arg(
        long,
        env = "QUARTERMASTER_SHARED_SECRETS",
        value_name = "WHICH",
        default_value = "telegram",
        help_heading = "Notifications"
    )]
    shared_secrets: SharedSecrets,

    /// Let webhooks go to loopback addresses: for trying it out on one machine
    #[arg(long, env = "QUARTERMASTER_WEBHOOK_ALLOW_LOOPBACK", value_name = "BOOL", action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_parser = parse::Boolean, help_heading = "Notifications")]
    webhook_allow_loopback: bool,

    /// Network that webhooks must not go to, such as 10.0.0.0/8; may be given several times
    ///
    /// Link-local and metadata addresses are always refused.
    #[arg(long = "webhook-deny-cidr", env = "QUARTERMASTER_WEBHOOK_DENY_CIDR", value_name = "CIDR",
        value_delimiter = ',', value_parser = parse::network, help_heading = "Notifications")]
    webhook_deny_cidrs: Vec<IpNet>,

    /// Port that webhooks may go to, such as 443; may be given several times. Default: every port
    #[arg(long = "webhook-allow-port", env = "QUARTERMASTER_WEBHOOK_ALLOW_PORT", value_name = "PORT",
        value_delimiter = ',', value_parser = parse::port, help_heading = "Notifications")]
    webhook_allow_ports: Vec<u16>,

    /// Quote answers and connection errors of private addresses in status and Events, and of every address behind a proxy
    ///
    /// Authors of ContactPoints can then read the beginning of answers from inside the cluster.
    #[arg(long, env = "QUARTERMASTER_WEBHOOK_QUOTE_PRIVATE", value_name = "BOOL", action = ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_value = "false", default_missing_value = "true",
        value_parser = parse::Boolean, help_heading = "Notifications")]
    webhook_quote_private: bool,

    /// Proxy for webhooks, which otherwise go direct (HTTPS_PROXY is for Telegram and AWS)
    #[arg(
        long,
        env = "QUARTERMASTER_WEBHOOK_PROXY",
        value_name = "URL",
        hide_env_values = true,
        help_heading = "Notifications"
    )]
    webhook_proxy: Option<SecretString>,

    /// File that names the DNS servers for webhooks, as resolv.conf(5) has it
    #[arg(
        long,
        env = "QUARTERMASTER_RESOLV_CONF",
        value_name = "FILE",
        default_value = "/etc/resolv.conf",
        hide = true
    )]
    resolv_conf: PathBuf,

    /// File of names of webhooks that need no DNS, as hosts(5) has it
    #[arg(
        long,
        env = "QUARTERMASTER_HOSTS_FILE",
        value_name = "FILE",
        default_value = "/etc/hosts",
        hide = true
    )]
    hosts_file: PathBuf,

    /// Port of the DNS servers for webhooks
    #[arg(
        long,
        env = "QUARTERMASTER_DNS_PORT",
        value_name = "PORT",
        default_value_t = 53,
        hide = true
    )]
    dns_port: u16,

    /// error, warn, info, debug, trace, or directives such as info,qm_notify=debug
    #[arg(long, env = "QUARTERMASTER_LOG_LEVEL", value_name = "LEVEL", default_value = "info",
        value_parser = parse::log_level, help_heading = "Logs")]
    log_level: String,

    /// How log lines look
    #[arg(
        long,
        env = "QUARTERMASTER_LOG_FORMAT",
        value_name = "FORMAT",
        default_value = "auto",
        help_heading = "Logs"
    )]
    log_format: LogFormatArg,

    /// Address of this Pod, which no webhook may go to; may be given several times
    #[arg(
        long = "pod-ip",
        env = "POD_IPS",
        value_name = "IP",
        value_delimiter = ',',
        hide = true
    )]
    pod_ips: Vec<String>,

    /// Name of this Pod: the first half of its identity as a candidate
    #[arg(long, env = "POD_NAME", value_name = "NAME", hide = true)]
    pod_name: Option<String>,

    #[command(flatten)]
    timings: Timings,
}

/// Contact points that may use a Secret of the operator's namespace if their own namespace has none with that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SharedSecrets {
    /// Telegram ones: their token goes to the configured Bot API alone
    Telegram,
    /// Also Webhook ones, if the Secret has the label quartermaster.dev/shared: "true"
    Labelled,
    /// None
    Off,
}

/// Format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormatArg {
    /// For people on a terminal, JSON otherwise
    Auto,
    /// For people
    Human,
    /// One JSON object a line
    Json,
}

/// Configuration of `run`, checked.
#[derive(Clone, Debug)]
pub struct RunConfig {
    /// Settings of the runtime.
    pub runtime: Settings,
    /// Addresses of `/metrics`; empty if it is off.
    pub metrics: ListenAddresses,
    /// Addresses of `/livez` and `/readyz`; empty if they are off.
    pub probes: ListenAddresses,
    /// Prefix of the names of the admission policies; `None` checks none.
    pub policy_prefix: Option<String>,
    /// Whether to reject references to other namespaces.
    pub no_cross_namespace_refs: bool,
    /// Name of the `ClusterRole` that grants trackable resources.
    pub tracker_role: String,
    /// Name of the cluster, a line in every message.
    pub cluster_name: Option<String>,
    /// Whether copies may go to the namespaces of Kubernetes itself.
    pub protected_destinations: bool,
    /// Settings of notifications.
    pub notifications: NotificationConfig,
    /// Settings of logs.
    pub log: LogSettings,
    /// Intervals and limits.
    pub timings: Timings,
}

/// Settings of notifications.
#[derive(Clone, Debug)]
pub struct NotificationConfig {
    /// Base URL of the Bot API, without a trailing slash.
    pub telegram_api_url: String,
    /// Contact points that may use a Secret of the operator's namespace.
    pub shared_secrets: SharedSecrets,
    /// Whether webhooks may go to loopback addresses.
    pub allow_loopback: bool,
    /// Networks that webhooks must not go to.
    pub deny: Vec<IpNet>,
    /// Ports that webhooks may go to; empty allows every port.
    pub allow_ports: Vec<u16>,
    /// The operator's own addresses, which no webhook may go to.
    pub own_addresses: Vec<IpAddr>,
    /// Whether messages may quote answers of private addresses.
    pub quote_private: bool,
    /// Proxy of webhooks; its URL may contain a password.
    pub webhook_proxy: Option<SecretString>,
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
            protected_destinations: self.allow_protected_destinations,
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
