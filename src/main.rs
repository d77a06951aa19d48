//! The program: runs a subcommand and returns its exit code.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::CommandFactory as _;
use qm_runtime::tasks::Tasks;
use qm_runtime::{cluster, health, manager, metrics, metrics_server, signals, telemetry};
use quartermaster::PROGRAM;
use quartermaster::cli::{Cli, Command, RunConfig};
use quartermaster::commands::printer::Printer;
use quartermaster::{commands, controllers};
use tokio::net::TcpListener;
use tracing::{error, info};

/// Threads for blocking work, mainly DNS lookups.
const BLOCKING_THREADS: usize = 16;

/// The CRDs, after a line about their source.
const CRD_MANIFEST: &str = include_str!("../deploy/crd.yaml");

fn main() -> ExitCode {
    match execute(Cli::from_arguments().command) {
        Ok(code) => code,
        // A pipe that was closed early (`| head`) is not a failure. Commands that change a cluster continue without
        // output.
        Err(error)
            if error
                .downcast_ref()
                .is_some_and(|e: &io::Error| e.kind() == io::ErrorKind::BrokenPipe) =>
        {
            ExitCode::SUCCESS
        }
        Err(error) => {
            // If standard error is closed, the error cannot be written anywhere.
            let _ = Printer::new(io::stderr(), false)
                .line(format!("error: {}", telemetry::causes(error.as_ref())));
            ExitCode::FAILURE
        }
    }
}

fn execute(command: Command) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout();
    match command {
        Command::Run(args) => {
            let kinds: Vec<_> = controllers::KINDS
                .iter()
                .map(|kind| kind.controller)
                .collect();
            let config = args.config(&kinds).unwrap_or_else(|error| error.exit());
            install_tls()?;
            // Two threads handle the load. Each further thread costs memory at rest: glibc gives every allocating
            // thread an arena. Stacks cost only their used part.
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .max_blocking_threads(BLOCKING_THREADS)
                .enable_all()
                .build()?;
            let traces = runtime.block_on(async { telemetry::init(&PROGRAM, &config.log) })?;
            let result = runtime.block_on(run(config));
            traces.shutdown();
            // A blocking DNS lookup would delay the exit.
            runtime.shutdown_background();
            Ok(match result {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    error!(error = telemetry::causes(error.as_ref()), "failed");
                    ExitCode::FAILURE
                }
            })
        }
        Command::Cluster(command) => {
            install_tls()?;
            commands::execute(command)
        }
        Command::Completions { shell } => {
            // clap_complete panics when it cannot write.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "quartermaster", &mut script);
            out.write_all(&script)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Version => {
            writeln!(out, "{} {}", PROGRAM.name, PROGRAM.version)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Crds => {
            let crds = CRD_MANIFEST
                .split_once('\n')
                .map_or(CRD_MANIFEST, |(_, crds)| crds);
            out.write_all(crds.as_bytes())?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn install_tls() -> anyhow::Result<()> {
    let installed = rustls::crypto::aws_lc_rs::default_provider().install_default();
    installed.map_err(|_| anyhow::anyhow!("another TLS provider is installed"))
}

async fn run(config: RunConfig) -> anyhow::Result<()> {
    #[cfg(target_os = "linux")]
    qm_runtime::open_files::raise_limit();
    let stop = signals::stop()?;
    let kubernetes = cluster::current().await?;
    let metrics = metrics::Metrics::new(&PROGRAM);
    let health = health::Probes::new();
    let tasks = Tasks::new();
    if !config.metrics.is_empty() {
        let listener = bind("--metrics-bind-address", &config.metrics).await?;
        let server = metrics_server::server(
            listener,
            &config.runtime,
            kubernetes.clone(),
            metrics.clone(),
        )
        .await
        .context("--metrics-secure, --metrics-cert-path")?;
        tokio::spawn(tasks.guard("/metrics server", server));
    }
    if !config.probes.is_empty() {
        let listener = bind("--health-probe-bind-address", &config.probes).await?;
        let server = health::serve(listener, health.clone());
        tokio::spawn(tasks.guard("probe server", server));
    }
    let settings = config.runtime.clone();
    let add_controllers =
        move |manager: &mut manager::Manager| controllers::add_to(manager, &config);
    manager::run(
        add_controllers,
        settings,
        kubernetes,
        metrics,
        health,
        tasks,
        stop,
    )
    .await
}

async fn bind(flag: &str, addresses: &[std::net::SocketAddr]) -> anyhow::Result<TcpListener> {
    let listener = TcpListener::bind(addresses)
        .await
        .with_context(|| format!("{flag}: cannot listen"))?;
    info!(address = %listener.local_addr()?, "listening for {flag}");
    Ok(listener)
}
