//! What people run beside the operator, with their own kubeconfig and their own rights: [`status`], [`history`], [`adopt`] and
//! [`uninstall`]. What is printed goes through [`paper`]; objects of every kind are read as [`objects`] has them.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use anyhow::Context as _;
use http::Uri;
use kube::Client;
use kube::config::Kubeconfig;
use qm_runtime::{client, cluster};

use self::paper::Paper;
use crate::cli::ClusterCommand;
use crate::cli::commands::Cluster;

pub mod admission;
pub mod adopt;
pub mod going;
pub mod history;
pub mod lease;
pub mod objects;
pub mod paper;
pub mod report;
pub mod status;
pub mod uninstall;

/// The field manager of what is written here.
pub const MANAGER: &str = "quartermaster/cli";

/// Does what is asked for. The exit code is as `--help` has it.
///
/// # Errors
/// The cluster cannot be asked, or refuses.
pub fn execute(command: ClusterCommand) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let mut out = Paper::new(io::stdout(), io::stdout().is_terminal());
    let result = runtime.block_on(async {
        match command {
            ClusterCommand::Status(args) => {
                status::run(connect(&args.scope.cluster).await?.0, &args, &mut out).await
            }
            ClusterCommand::History(args) => {
                history::run(connect(&args.cluster).await?.0, &args, &mut out).await
            }
            ClusterCommand::Adopt(args) => {
                let (client, called) = connect(&args.scope.cluster).await?;
                adopt::run(client, &called, &args, &mut out.lasting()).await
            }
            ClusterCommand::Uninstall(args) => {
                let (client, called) = connect(&args.scope.cluster).await?;
                uninstall::run(client, &called, &args, &mut out.lasting()).await
            }
        }
    });
    // A name that is being resolved would hold up the exit.
    runtime.shutdown_background();
    result
}

/// The cluster that is meant, and what people call it.
async fn connect(cluster: &Cluster) -> anyhow::Result<(Client, String)> {
    let (config, kubeconfig) = match (&cluster.kubeconfig, &cluster.context) {
        (None, None) => (cluster::current().await?, cluster::kubeconfig().ok()),
        (file, context) => {
            let mut kubeconfig = match file {
                Some(file) => {
                    Kubeconfig::read_from(file).with_context(|| format!("{}", file.display()))?
                }
                None => cluster::kubeconfig().context("no kubeconfig")?,
            };
            if let Some(context) = context {
                kubeconfig.current_context = Some(context.clone());
            }
            (cluster::of(kubeconfig.clone()).await?, Some(kubeconfig))
        }
    };
    let called = called(&config.cluster_url, kubeconfig.as_ref());
    Ok((client::for_command(config, &crate::PROGRAM)?, called))
}

/// A cluster's URL, and the context that leads to it.
fn called(url: &Uri, kubeconfig: Option<&Kubeconfig>) -> String {
    // Without a user's name and password, and without what else may stand there.
    let port = url
        .port()
        .map_or_else(String::new, |port| format!(":{port}"));
    let place = format!(
        "{}://{}{port}",
        url.scheme_str().unwrap_or("https"),
        url.host().unwrap_or_default()
    );
    let context = kubeconfig.and_then(|kubeconfig| {
        let current = kubeconfig.current_context.as_ref()?;
        let context = kubeconfig
            .contexts
            .iter()
            .find(|named| named.name == *current)?
            .context
            .as_ref()?;
        let cluster = kubeconfig
            .clusters
            .iter()
            .find(|named| named.name == context.cluster)?
            .cluster
            .as_ref()?;
        // In a Pod it may not be the kubeconfig that leads somewhere.
        (cluster.server.as_ref()?.parse::<Uri>().ok()? == *url).then_some(current)
    });
    let path = url.path().trim_end_matches('/');
    context.map_or_else(
        || format!("{place}{path}"),
        |name| format!("context {name}, {place}{path}"),
    )
}

/// What the apiserver says, in words.
pub(crate) fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(said) if said.message.is_empty() => {
            format!("it answers {} without a word", said.code)
        }
        kube::Error::Api(said) => said.message.clone(),
        // As it was told: what kube puts before it helps nobody.
        kube::Error::Service(error) => qm_runtime::telemetry::causes(&**error),
        error => qm_runtime::telemetry::causes(error),
    }
}

/// The same of a list of all that lies in `namespace`, or anywhere: who may not have that may have less.
pub(crate) fn words_of_list(error: &kube::Error, namespace: Option<&str>) -> String {
    let words = words(error);
    if is(error, 403) && namespace.is_none() {
        format!("{words}; for what lies in one: -n NAMESPACE")
    } else {
        words
    }
}

/// What an answer of this code says.
pub(crate) fn is(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(said) if said.code == code)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use serde_json::json;

    use super::*;

    #[test]
    fn a_cluster_is_called_by_its_context_and_its_url_without_a_password() {
        let kubeconfig = |server: &str| -> Kubeconfig {
            serde_json::from_value(json!({
                "current-context": "prod",
                "contexts": [{ "name": "prod", "context": { "cluster": "c", "user": "u" } }],
                "clusters": [{ "name": "c", "cluster": { "server": server } }],
            }))
            .unwrap()
        };
        let with =
            |url: &str, server: &str| called(&url.parse().unwrap(), Some(&kubeconfig(server)));
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
            called(&"https://me:hunter2@[::1]:6443/".parse().unwrap(), None),
            "https://[::1]:6443"
        );
    }
}
