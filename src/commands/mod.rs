//! The commands that users run beside the operator, with their own kubeconfig and permissions.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use anyhow::Context as _;
use http::Uri;
use kube::Client;
use kube::config::Kubeconfig;
use qm_runtime::{client, cluster};

use self::printer::Printer;
pub(crate) use self::request::{
    FIELD_MANAGER, FailedRequest, OutageReporter, RETRY_INTERVAL, has_code, in_namespace, message,
};
use crate::cli::ClusterCommand;
use crate::cli::commands::ClusterArgs;

mod admission;
mod adopt;
mod find;
mod history;
mod matches;
mod objects;
mod operator_state;
pub mod printer;
mod report;
mod request;
mod status;
mod terminating;
mod test;
mod uninstall;

/// Runs a command and returns its exit code, which its `--help` explains.
///
/// # Errors
/// The cluster does not answer, or rejects a request.
pub fn execute(command: ClusterCommand) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut out = Printer::new(io::stdout(), io::stdout().is_terminal());
    let result = runtime.block_on(async {
        match command {
            ClusterCommand::Status(args) => {
                let (client, _) = connect(&args.scope.cluster).await?;
                status::run(client, &args, &mut out).await
            }
            ClusterCommand::History(args) => {
                let (client, _) = connect(&args.cluster).await?;
                history::run(client, &args, &mut out).await
            }
            ClusterCommand::Matches(args) => {
                let (client, _) = connect(&args.cluster).await?;
                matches::run(client, &args, &mut out).await
            }
            ClusterCommand::Test(args) => {
                let (client, _) = connect(&args.cluster).await?;
                test::run(client, &args, &mut out.ignoring_errors()).await
            }
            ClusterCommand::Adopt(args) => {
                let (client, cluster) = connect(&args.scope.cluster).await?;
                adopt::run(client, &cluster, &args, &mut out.ignoring_errors()).await
            }
            ClusterCommand::Uninstall(args) => {
                let (client, cluster) = connect(&args.scope.cluster).await?;
                uninstall::run(client, &cluster, &args, &mut out.ignoring_errors()).await
            }
        }
    });
    // Dropping the runtime would wait for a DNS lookup in progress.
    runtime.shutdown_background();
    result
}

/// Connects to a cluster, and returns the cluster's name for the user.
async fn connect(args: &ClusterArgs) -> anyhow::Result<(Client, String)> {
    let (config, kubeconfig) = match (&args.kubeconfig, &args.context) {
        (None, None) => (cluster::current().await?, cluster::kubeconfig().ok()),
        (file, context) => {
            let mut kubeconfig = match file {
                Some(file) => {
                    Kubeconfig::read_from(file).with_context(|| format!("{}", file.display()))?
                }
                None => cluster::kubeconfig()
                    .context("cannot read a kubeconfig; set KUBECONFIG, or add --kubeconfig")?,
            };
            if let Some(context) = context {
                kubeconfig.current_context = Some(context.clone());
            }
            (cluster::of(kubeconfig.clone()).await?, Some(kubeconfig))
        }
    };
    let name = cluster_name(&config.cluster_url, kubeconfig.as_ref());
    Ok((client::for_command(config, &crate::PROGRAM)?, name))
}

/// Returns a cluster's URL without credentials, and the context of the kubeconfig that has this URL.
fn cluster_name(url: &Uri, kubeconfig: Option<&Kubeconfig>) -> String {
    let scheme = url.scheme_str().unwrap_or("https");
    let host = url.host().unwrap_or_default();
    let port = url.port().map_or_else(String::new, |it| format!(":{it}"));
    let path = url.path().trim_end_matches('/');
    let server = format!("{scheme}://{host}{port}{path}");
    let context = kubeconfig.and_then(|kubeconfig| {
        let current = kubeconfig.current_context.as_ref()?;
        let mut contexts = kubeconfig.contexts.iter();
        let context = contexts.find(|context| context.name == *current)?;
        let cluster = &context.context.as_ref()?.cluster;
        let mut clusters = kubeconfig.clusters.iter();
        let cluster = clusters.find(|named| named.name == *cluster)?;
        // In a Pod the client may have used the Pod's own credentials instead.
        let configured: Uri = cluster.cluster.as_ref()?.server.as_ref()?.parse().ok()?;
        (configured == *url).then_some(current)
    });
    match context {
        Some(context) => format!("context {context}, {server}"),
        None => server,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use serde_json::json;

    use super::*;

    #[test]
    fn cluster_name_has_context_and_url_without_password() {
        let kubeconfig = |server: &str| -> Kubeconfig {
            serde_json::from_value(json!({
                "current-context": "prod",
                "contexts": [{ "name": "prod", "context": { "cluster": "c", "user": "u" } }],
                "clusters": [{ "name": "c", "cluster": { "server": server } }],
            }))
            .unwrap()
        };
        let with = |url: &str, server: &str| {
            cluster_name(&url.parse().unwrap(), Some(&kubeconfig(server)))
        };
        assert_eq!(
            with("https://a.example:6443", "https://a.example:6443"),
            "context prod, https://a.example:6443"
        );
        assert_eq!(
            with("https://a.example/c/1/", "https://a.example/c/1/"),
            "context prod, https://a.example/c/1"
        );
        assert_eq!(
            with("https://10.0.0.1", "https://a.example"),
            "https://10.0.0.1",
            "a Pod's own"
        );
        assert_eq!(
            cluster_name(&"https://me:hunter2@[::1]:6443/".parse().unwrap(), None),
            "https://[::1]:6443"
        );
    }
}
