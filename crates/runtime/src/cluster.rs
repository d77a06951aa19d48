//! Configuration of the cluster, and the address of its apiserver.

use std::env;

use anyhow::Context as _;
use http::Uri;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};

/// Returns the configuration of the kubeconfig's cluster or, without a kubeconfig, of the Pod's own cluster.
///
/// # Errors
/// No cluster is configured, or the kubeconfig names a proxy.
pub async fn current() -> anyhow::Result<Config> {
    if let Some(kubeconfig) = existing_files()? {
        return of(kubeconfig).await;
    }
    let config = Config::infer().await.context(
        "no cluster is configured: set KUBECONFIG, or run in a Pod with a ServiceAccount token",
    )?;
    without_proxy(config, || {
        Kubeconfig::read().is_ok_and(|kubeconfig| has_proxy(&kubeconfig))
    })
}

/// Returns the kubeconfig that kubectl would read.
///
/// # Errors
/// The kubeconfig does not exist or cannot be read.
pub fn kubeconfig() -> anyhow::Result<Kubeconfig> {
    Ok(match existing_files()? {
        Some(kubeconfig) => kubeconfig,
        None => Kubeconfig::read()?,
    })
}

/// Returns the merged files of `$KUBECONFIG` if some of them do not exist: kubectl skips those, and kube does not.
fn existing_files() -> anyhow::Result<Option<Kubeconfig>> {
    let list = env::var_os("KUBECONFIG").unwrap_or_default();
    let (existing, missing): (Vec<_>, Vec<_>) =
        env::split_paths(&list).partition(|path| path.exists());
    if existing.is_empty() || missing.is_empty() {
        return Ok(None);
    }
    let merged = existing
        .iter()
        .try_fold(Kubeconfig::default(), |all, path| {
            all.merge(Kubeconfig::read_from(path)?)
        });
    Ok(Some(merged.context("$KUBECONFIG")?))
}

/// Returns the configuration of the cluster of the kubeconfig's current context.
///
/// # Errors
/// The kubeconfig has no current context, or it names a proxy.
pub async fn of(kubeconfig: Kubeconfig) -> anyhow::Result<Config> {
    let proxied = has_proxy(&kubeconfig);
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    without_proxy(config.context("the kubeconfig")?, || proxied)
}

/// Removes a proxy that kube found in `HTTPS_PROXY`; rejects a proxy that the kubeconfig names.
fn without_proxy(mut config: Config, has_proxy: impl FnOnce() -> bool) -> anyhow::Result<Config> {
    let proxy = config.proxy_url.take();
    if proxy.is_some() && has_proxy() {
        // The URL may contain a password.
        anyhow::bail!(
            "the kubeconfig's cluster has a proxy-url, but this program does not connect to the apiserver through a \
             proxy: use a kubeconfig without proxy-url, whose server this program can reach directly"
        );
    }
    Ok(config)
}

/// Returns whether the cluster of the current context has a `proxy-url`.
fn has_proxy(kubeconfig: &Kubeconfig) -> bool {
    let current = kubeconfig.current_context.as_deref();
    let context = kubeconfig
        .contexts
        .iter()
        .find(|named| Some(&*named.name) == current);
    let name = context
        .and_then(|named| named.context.as_ref())
        .map(|context| &context.cluster);
    let cluster = kubeconfig
        .clusters
        .iter()
        .find(|named| Some(&named.name) == name);
    let cluster = cluster.and_then(|named| named.cluster.as_ref());
    cluster
        .and_then(|cluster| cluster.proxy_url.as_deref())
        .is_some_and(|url| !url.is_empty())
}

/// Address of an apiserver in metrics and traces, without the password that its URL may contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ApiServerAddress {
    /// URL without path and credentials.
    pub url: String,
    /// Name or IP address.
    pub address: String,
    /// Port of the URL, or the default of its scheme.
    pub port: u16,
}

impl ApiServerAddress {
    /// Returns the address of the apiserver at this URL.
    pub fn of(url: &Uri) -> Self {
        let scheme = url.scheme_str().unwrap_or("https");
        let host = url.host().unwrap_or_default();
        let port = url
            .port_u16()
            .unwrap_or(if scheme == "http" { 80 } else { 443 });
        let address = host
            .trim_start_matches('[')
            .trim_end_matches(']')
            .to_owned();
        Self {
            url: format!("{scheme}://{host}:{port}"),
            address,
            port,
        }
    }

    /// Returns `HOST:PORT`.
    pub fn host(&self) -> &str {
        self.url.split_once("://").map_or("", |(_, host)| host)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("https://10.96.0.1:443", "https://10.96.0.1:443", "10.96.0.1", 443)]
    #[case(
        "https://jane:hunter2@api.example/k8s",
        "https://api.example:443",
        "api.example",
        443
    )]
    #[case("http://[::1]:8001", "http://[::1]:8001", "::1", 8001)]
    fn address_has_no_credentials(
        #[case] given: &str,
        #[case] url: &str,
        #[case] address: &str,
        #[case] port: u16,
    ) {
        let server = ApiServerAddress::of(&given.parse().unwrap());
        assert_eq!(
            server,
            ApiServerAddress {
                url: url.into(),
                address: address.into(),
                port
            }
        );
        assert!(url.ends_with(server.host()));
    }

    #[rstest]
    #[case::none("", false)]
    #[case::empty("proxy-url: ''", false)]
    #[case::one("proxy-url: http://127.0.0.1:9", true)]
    fn proxy_comes_from_the_current_context(#[case] proxy: &str, #[case] expected: bool) {
        let kubeconfig = format!(
            "current-context: here
contexts:
- {{ name: there, context: {{ cluster: other }} }}
- {{ name: here, context: {{ cluster: ours }} }}
clusters:
- {{ name: other, cluster: {{ server: 'https://b', proxy-url: 'http://127.0.0.1:9' }} }}
- {{ name: ours, cluster: {{ server: 'https://a', {proxy} }} }}
"
        );
        assert_eq!(
            has_proxy(&Kubeconfig::from_yaml(&kubeconfig).unwrap()),
            expected
        );
    }
}
