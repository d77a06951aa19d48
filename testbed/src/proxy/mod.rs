//! A proxy between the operator and the apiserver that counts requests and injects faults.
//!
//! The proxy terminates the client's TLS with a certificate from its own authority and speaks HTTP/1.1 to the
//! apiserver. Clients authenticate by bearer token, which the proxy forwards.

mod body;
mod forward;
mod request;
mod rules;
mod shared;
#[cfg(test)]
mod tests;
mod watches;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use http::uri::Scheme;
use http::{StatusCode, Uri};
use hyper::service::service_fn;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use k8s_openapi::ByteString;
use kube::config::{Cluster, Kubeconfig};

pub use self::request::{ApiRequest, Verb};
pub use self::rules::{ApiErrorResponse, Fault, Injection, Lost, Match, Point, Then, Times};
pub use self::shared::Seen;
use self::shared::Shared;
pub use self::watches::{BOOKMARK, Ending, LIST_END, WatchEvent};
use crate::journal::Journal;
use crate::serve::{Line, Server, Wire};
use crate::tls;

/// Timeout of idle connections: shorter than the apiserver's (90 s), so that no request meets a closing connection.
const IDLE: Duration = Duration::from_secs(30);

/// The proxy. Clones share the proxy, which stops with the last clone.
#[derive(Clone)]
pub struct Proxy {
    shared: Arc<Shared>,
    server: Arc<Server>,
    ca_pem: Arc<str>,
}

impl Proxy {
    /// Starts a proxy in front of the apiserver at `url` (https), whose certificate the authority in `ca_pem` signed.
    pub fn start(url: &str, ca_pem: &str) -> anyhow::Result<Self> {
        let uri: Uri = url.parse().with_context(|| format!("{url} is no URL"))?;
        let authority = uri
            .authority()
            .cloned()
            .with_context(|| format!("{url} has no host"))?;
        let mut connector = HttpConnector::new();
        connector.enforce_http(false);
        connector.set_nodelay(true);
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(tls::client_config(ca_pem)?)
            .https_only()
            .enable_http1()
            .wrap_connector(connector);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .build(connector);
        let shared = Arc::new(Shared {
            scheme: Scheme::HTTPS,
            authority,
            client,
            requests: Journal::default(),
            rules: Arc::default(),
            watches: Arc::default(),
        });
        let own = tls::Authority::new("testbed proxy")?;
        let config = tls::server_config(
            &own.server(&["127.0.0.1", "localhost"])?,
            None,
            &["h2", "http/1.1"],
        )?;
        let server = Server::start(Some(config), {
            let shared = shared.clone();
            move |wire, line| connection(shared.clone(), wire, line)
        })?;
        Ok(Self {
            shared,
            server: Arc::new(server),
            ca_pem: own.ca_pem().into(),
        })
    }

    /// Starts a proxy in front of the cluster of a kubeconfig's current context.
    pub fn for_kubeconfig(kubeconfig: &str) -> anyhow::Result<Self> {
        let kubeconfig = Kubeconfig::from_yaml(kubeconfig)?;
        let cluster = current_cluster(&kubeconfig)?;
        let ca_pem = match (
            &cluster.certificate_authority_data,
            &cluster.certificate_authority,
        ) {
            (Some(data), _) => {
                let ByteString(pem) =
                    serde_json::from_value(serde_json::Value::String(data.clone()))?;
                String::from_utf8(pem)?
            }
            (None, Some(file)) => {
                std::fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?
            }
            (None, None) => anyhow::bail!("the kubeconfig names no certificate authority"),
        };
        Self::start(
            cluster
                .server
                .as_deref()
                .context("the kubeconfig names no server")?,
            &ca_pem,
        )
    }

    /// Returns the proxy's URL, such as `https://127.0.0.1:4711`.
    pub fn url(&self) -> String {
        format!("https://{}", self.server.address())
    }

    /// Returns the certificate of the proxy's authority, PEM.
    pub fn ca_pem(&self) -> &str {
        &self.ca_pem
    }

    /// Returns this kubeconfig with the proxy as server (in JSON, which is also YAML). Its users must have tokens,
    /// because the proxy cannot forward a client certificate.
    pub fn kubeconfig(&self, kubeconfig: &str) -> anyhow::Result<String> {
        let mut kubeconfig = Kubeconfig::from_yaml(kubeconfig)?;
        for named in &kubeconfig.auth_infos {
            let has_token =
                |user: &kube::config::AuthInfo| user.token.is_some() || user.token_file.is_some();
            ensure!(
                named.auth_info.as_ref().is_some_and(has_token),
                "user {} has no token",
                named.name
            );
        }
        for named in &mut kubeconfig.clusters {
            let cluster = named.cluster.get_or_insert_default();
            cluster.server = Some(self.url());
            cluster.certificate_authority = None;
            let ca = serde_json::to_value(ByteString(self.ca_pem.as_bytes().to_vec()))?;
            cluster.certificate_authority_data = ca.as_str().map(ToOwned::to_owned);
            cluster.insecure_skip_tls_verify = None;
            cluster.tls_server_name = None;
        }
        Ok(serde_json::to_string_pretty(&kubeconfig)?)
    }

    /// Writes the result of [`Self::kubeconfig`] for the file `from` to `to`.
    pub fn write_kubeconfig(&self, from: &Path, to: &Path) -> anyhow::Result<()> {
        let original = std::fs::read_to_string(from)
            .with_context(|| format!("cannot read {}", from.display()))?;
        std::fs::write(to, self.kubeconfig(&original)?)
            .with_context(|| format!("cannot write {}", to.display()))
    }

    /// Injects a fault into matching requests. Where several injections match, each counts the request; they apply in the
    /// order of injection, until one ends the request.
    pub fn inject(&self, matching: Match, times: Times, fault: Fault) -> Injection {
        self.shared.rules.inject(matching, times, fault)
    }

    /// Holds back the events of running and later watches that match, without ending the watches. Each held event is a
    /// hit, except a bookmark that ends no list. Cancelling the injection sends all held events, in order.
    pub fn freeze(&self, watches: Match) -> Injection {
        self.shared.watches.hold(watches)
    }

    /// Holds back the events of matching watches that run now, but not of later ones.
    pub fn freeze_running(&self, watches: Match) -> Injection {
        self.shared.watches.hold_running(watches)
    }

    /// Drops events of running and later watches that match; each dropped event is a hit. Lists are unchanged.
    pub fn hide(
        &self,
        watches: Match,
        hidden: impl Fn(&WatchEvent) -> bool + Send + Sync + 'static,
    ) -> Injection {
        self.shared.watches.hide(watches, hidden)
    }

    /// Calls `listener` for each event of these watches.
    pub fn on_event(
        &self,
        watches: Match,
        listener: impl Fn(&WatchEvent) + Send + Sync + 'static,
    ) -> Injection {
        self.hide(watches, move |event| {
            listener(event);
            false
        })
    }

    /// Rejects these watches and lists with 403, as for a client that lost the permission, and ends the running
    /// watches.
    pub fn forbid(&self, watches_and_lists: &Match) -> Injection {
        let forbidden = Fault::status(StatusCode::FORBIDDEN);
        let injection = self.inject(watches_and_lists.clone(), Times::Always, forbidden);
        self.end_watches(watches_and_lists, Ending::Clean);
        injection
    }

    /// Ends the running watches that match and returns their number. Events that [`Self::freeze`] held for them are
    /// lost.
    pub fn end_watches(&self, watches: &Match, ending: Ending) -> usize {
        self.shared.watches.end(watches, ending)
    }

    /// Returns the number of running watches that match.
    pub fn running_watches(&self, watches: &Match) -> usize {
        self.shared.watches.live(watches)
    }

    /// Cancels every injection.
    pub fn behave(&self) {
        self.shared.rules.clear();
        self.shared.watches.clear();
    }

    /// Cuts all connections and refuses new ones: the apiserver is unreachable.
    pub async fn refuse(&self) -> anyhow::Result<()> {
        self.server.shut().await
    }

    /// Listens again on the same port.
    pub async fn accept(&self) -> anyhow::Result<()> {
        self.server.open().await
    }

    /// Returns all requests so far, whatever their outcome.
    pub fn requests(&self) -> Vec<Arc<Seen>> {
        self.shared.requests.all()
    }

    /// Forgets the requests so far.
    pub fn forget(&self) {
        self.shared.requests.clear();
    }

    /// Returns the number of matching requests so far.
    pub fn count(&self, matching: &Match) -> usize {
        self.requests()
            .iter()
            .filter(|seen| matching.matches(&seen.request))
            .count()
    }

    /// Returns the number of requests so far by verb and resource; a subresource follows a slash.
    pub fn counts(&self) -> BTreeMap<(Verb, String), usize> {
        let mut counts = BTreeMap::new();
        for seen in self.requests() {
            let ApiRequest {
                verb,
                resource,
                subresource,
                ..
            } = &seen.request;
            let slash = if subresource.is_empty() { "" } else { "/" };
            *counts
                .entry((*verb, format!("{resource}{slash}{subresource}")))
                .or_default() += 1;
        }
        counts
    }

    /// Returns all requests once `enough` accepts them; fails after `deadline`.
    pub async fn wait_for(
        &self,
        deadline: Duration,
        enough: impl FnMut(&[Arc<Seen>]) -> bool,
    ) -> anyhow::Result<Vec<Arc<Seen>>> {
        self.shared.requests.wait_for(deadline, enough).await
    }
}

fn current_cluster(kubeconfig: &Kubeconfig) -> anyhow::Result<&Cluster> {
    let current = kubeconfig
        .current_context
        .as_deref()
        .context("the kubeconfig has no current context")?;
    let context = kubeconfig
        .contexts
        .iter()
        .find(|named| named.name == current);
    let context = context
        .and_then(|named| named.context.as_ref())
        .context("the current context does not exist")?;
    let cluster = kubeconfig
        .clusters
        .iter()
        .find(|named| named.name == context.cluster);
    cluster
        .and_then(|named| named.cluster.as_ref())
        .context("the cluster of the context does not exist")
}

async fn connection(shared: Arc<Shared>, wire: Wire, line: Arc<Line>) {
    let service = service_fn(|request| forward::serve(shared.clone(), line.clone(), request));
    let mut builder = auto::Builder::new(TokioExecutor::new());
    // No timeout, because a pooled connection of a client may be idle for as long as a test likes.
    builder.http1().header_read_timeout(None);
    if let Err(error) = builder.serve_connection(TokioIo::new(wire), service).await {
        tracing::debug!(%error, "a connection ended early");
    }
}
