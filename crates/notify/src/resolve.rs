//! DNS lookups of webhook names: one lookup per name at a time, and only a few per namespace, so that names whose
//! servers do not answer delay only their own namespace.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use hickory_resolver::config::{
    NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts, ServerOrderingStrategy,
};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use hickory_resolver::{Hosts, Resolver};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout};

use super::semaphores::semaphore_of;

/// Function that looks up the addresses of a name; tests replace it.
pub(crate) type AddressLookup = Arc<
    dyn Fn(String) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>
        + Send
        + Sync,
>;

/// Timeout of one lookup, with all queries for all names that the search list derives from the name.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(3);
/// Time before a query is repeated.
const QUERY_TIMEOUT: Duration = Duration::from_secs(1);
/// Repeats of a query. A server that answers for only one address family must not use up the limit.
const QUERY_REPEATS: usize = 1;
/// Lifetime of addresses, unless a connection fails earlier.
const CACHE_TTL: Duration = Duration::from_secs(5);
/// Maximum number of concurrent lookups per namespace.
const LOOKUPS_PER_NAMESPACE: usize = 2;
/// Maximum number of names in the cache of public names.
const MAX_PUBLIC_NAMES: usize = 4096;
/// Maximum number of addresses kept per name.
const MAX_ADDRESSES: usize = 32;

/// Settings of the resolver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns {
    /// File that names the servers, usually `/etc/resolv.conf`.
    pub resolv_conf: PathBuf,
    /// File of names that need no lookup, usually `/etc/hosts`.
    pub hosts: PathBuf,
    /// Port of the servers, usually 53.
    pub port: u16,
}

impl Default for Dns {
    fn default() -> Self {
        Self {
            resolv_conf: "/etc/resolv.conf".into(),
            hosts: "/etc/hosts".into(),
            port: 53,
        }
    }
}

impl Dns {
    /// Returns a lookup in the hosts file, then in DNS. Each lookup reads both files, so changes apply immediately.
    pub fn lookup(self) -> AddressLookup {
        let dns = Arc::new(self);
        Arc::new(move |name| {
            let dns = Arc::clone(&dns);
            Box::pin(async move {
                let found = match in_hosts(&read(&dns.hosts).await?, &name) {
                    found if found.is_empty() => dns.query(&name).await?,
                    found => found,
                };
                Ok(found
                    .into_iter()
                    .map(|address| SocketAddr::new(address, 0))
                    .collect())
            })
        })
    }

    async fn query(&self, name: &str) -> io::Result<Vec<IpAddr>> {
        let (config, options) = self.settings(&read(&self.resolv_conf).await?)?;
        let resolver = Resolver::builder_with_config(config, TokioRuntimeProvider::default())
            .with_options(options);
        // Unlike `Name::from_utf8`, this accepts an underscore within a label.
        let name = Name::from_str_relaxed(name).map_err(io::Error::other)?;
        let found = resolver
            .build()
            .map_err(io::Error::other)?
            .lookup_ip(name)
            .await;
        Ok(found
            .map_err(|error| io::Error::other(error_message(&error)))?
            .iter()
            .collect())
    }

    /// Parses `resolv.conf`, except for its timings.
    fn settings(&self, resolv_conf: &[u8]) -> io::Result<(ResolverConfig, ResolverOpts)> {
        // resolv.conf(5): a file without a nameserver means the local one.
        let has_no_server = !String::from_utf8_lossy(resolv_conf)
            .lines()
            .any(|line| line.trim().starts_with("nameserver"));
        let local: &[u8] = if has_no_server {
            b"\nnameserver 127.0.0.1\n"
        } else {
            b""
        };
        let (mut config, read) =
            parse_resolv_conf([resolv_conf, local].concat()).map_err(|error| {
                io::Error::other(format!(
                    "cannot use {}: {error}",
                    self.resolv_conf.display()
                ))
            })?;
        if !config.search.is_empty() {
            // The host's domain only applies without a search list.
            config.domain = None;
        }
        for connection in config
            .name_servers
            .iter_mut()
            .flat_map(|server: &mut NameServerConfig| &mut server.connections)
        {
            connection.port = self.port;
        }
        let mut options = ResolverOpts::default();
        options.ndots = read.ndots;
        options.edns0 = read.edns0;
        options.timeout = QUERY_TIMEOUT;
        options.attempts = QUERY_REPEATS;
        options.cache_size = 0;
        options.use_hosts_file = ResolveHosts::Never;
        options.server_ordering_strategy = ServerOrderingStrategy::UserProvidedOrder;
        options.os_port_selection = true;
        Ok((config, options))
    }
}

/// Reads a file; a missing file is empty.
async fn read(file: &Path) -> io::Result<Vec<u8>> {
    match tokio::fs::read(file).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(io::Error::new(
            error.kind(),
            format!("cannot read {}: {error}", file.display()),
        )),
        read => read,
    }
}

/// Returns the addresses of `name` in `/etc/hosts`. These addresses take precedence over every name of the search list.
fn in_hosts(file: &[u8], name: &str) -> Vec<IpAddr> {
    let mut hosts = Hosts::default();
    let Ok(name) = Name::from_str_relaxed(name.to_lowercase()) else {
        return Vec::new();
    };
    if hosts.read_hosts_conf(file).is_err() {
        return Vec::new();
    }
    let of = |kind| hosts.lookup_static_host(&Query::query(name.clone(), kind));
    let found = [RecordType::A, RecordType::AAAA].into_iter().filter_map(of);
    found
        .flat_map(|found| {
            found
                .answers()
                .iter()
                .filter_map(|record| record.data.ip_addr())
                .collect::<Vec<_>>()
        })
        .collect()
}

/// Returns the error message without the name, which may be a secret.
fn error_message(error: &NetError) -> String {
    match error {
        NetError::Dns(DnsError::NoRecordsFound(_)) => "DNS has no address for this name".into(),
        NetError::Timeout => "no answer from DNS".into(),
        error => format!("cannot look up the name: {error}"),
    }
}

/// Result of a lookup, which all its requests share.
type Found = Result<Arc<[SocketAddr]>, Arc<str>>;

/// Current lookups and recent results. Clones share them.
#[derive(Clone)]
pub struct Names(Arc<NamesInner>);

struct NamesInner {
    lookup: AddressLookup,
    state: Mutex<NamesState>,
}

#[derive(Default)]
struct NamesState {
    known: HashMap<String, (Instant, Arc<[SocketAddr]>)>,
    running: HashMap<String, Shared<BoxFuture<'static, Found>>>,
    namespaces: HashMap<Arc<str>, Weak<Semaphore>>,
    /// True for a name whose last lookup returned public addresses only; at most [`MAX_PUBLIC_NAMES`].
    public: HashMap<String, bool>,
}

tokio::task_local! {
    /// Context of the request that runs in this task.
    static CONTEXT: RequestContext;
}

/// Context of one request: the namespace of its contact point, and whether the receiver's addresses are public. HTTP
/// clients are shared and look up names only when they connect, in the task of the request. Clones share the context.
#[derive(Clone, Default)]
pub(crate) struct RequestContext {
    namespace: Arc<str>,
    public: Arc<AtomicBool>,
}

impl RequestContext {
    /// Creates the context of one request of a contact point in `namespace`.
    pub fn new(namespace: &str) -> Self {
        Self {
            namespace: namespace.into(),
            public: Arc::default(),
        }
    }

    /// Returns the context of the request that runs in this task.
    pub fn current() -> Self {
        CONTEXT.try_with(Self::clone).unwrap_or_default()
    }

    /// Runs `request` with this context.
    pub async fn run<F: Future>(&self, request: F) -> F::Output {
        CONTEXT.scope(self.clone(), request).await
    }

    /// Records whether the request reaches public addresses only.
    pub(crate) fn set_public(&self, public: bool) {
        self.public.store(public, Ordering::Relaxed);
    }

    /// Returns whether the request is known to reach public addresses only.
    pub(crate) fn is_public(&self) -> bool {
        self.public.load(Ordering::Relaxed)
    }
}

impl Names {
    /// Creates a cache without names.
    pub fn new(lookup: AddressLookup) -> Self {
        Self(Arc::new(NamesInner {
            lookup,
            state: Mutex::default(),
        }))
    }

    /// Returns the addresses of `name`; the lookup counts for the task's namespace.
    pub fn resolve(
        &self,
        name: &str,
    ) -> impl Future<Output = io::Result<Arc<[SocketAddr]>>> + Send + use<> {
        let namespace = RequestContext::current().namespace;
        let (names, name) = (self.clone(), name.to_owned());
        async move {
            let known = names.state().known_or_running(&name);
            let found = if let Some(found) = known {
                found.await
            } else {
                let permit = names.acquire(&namespace).await.map_err(io::Error::other)?;
                names.join_or_start(name, permit).await
            };
            found.map_err(|message| io::Error::other(&*message))
        }
    }

    /// Records whether `name` has public addresses only.
    pub(crate) fn set_public(&self, name: &str, public: bool) {
        let known = &mut self.state().public;
        if known.len() >= MAX_PUBLIC_NAMES && !known.contains_key(name) {
            known.clear();
        }
        known.insert(name.to_owned(), public);
    }

    /// Returns whether `name` had public addresses only at its last lookup: a request over an open connection looks up
    /// nothing.
    pub(crate) fn is_public(&self, name: &str) -> bool {
        self.state().public.get(name).copied().unwrap_or_default()
    }

    /// Forgets the addresses of `name` after no connection to them succeeded.
    pub fn forget(&self, name: &str) {
        self.state().known.remove(name);
    }

    fn state(&self) -> MutexGuard<'_, NamesState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn acquire(&self, namespace: &Arc<str>) -> Result<OwnedSemaphorePermit, AcquireError> {
        let semaphore = semaphore_of(
            &mut self.state().namespaces,
            Arc::clone(namespace),
            LOOKUPS_PER_NAMESPACE,
        );
        semaphore.acquire_owned().await
    }

    /// Joins the lookup of `name`, or starts one that keeps `permit` until its end, even if every request for the name
    /// gives up.
    fn join_or_start(
        &self,
        name: String,
        permit: OwnedSemaphorePermit,
    ) -> Shared<BoxFuture<'static, Found>> {
        let mut state = self.state();
        if let Some(found) = state.known_or_running(&name) {
            return found;
        }
        let (names, looked_up) = (self.clone(), name.clone());
        let lookup = tokio::spawn(async move {
            let _permit = permit;
            let found = match timeout(LOOKUP_TIMEOUT, (names.0.lookup)(looked_up.clone())).await {
                Ok(Ok(found)) => Ok(found.into_iter().take(MAX_ADDRESSES).collect()),
                Ok(Err(error)) => Err(error.to_string().into()),
                Err(_) => {
                    Err(format!("no answer from DNS within {} s", LOOKUP_TIMEOUT.as_secs()).into())
                }
            };
            names.state().on_lookup_ended(&looked_up, &found);
            found
        });
        let (names, looked_up) = (self.clone(), name.clone());
        let found = async move {
            // Later requests must not join a lookup that panicked.
            lookup.await.unwrap_or_else(|error| {
                names.state().running.remove(&looked_up);
                Err(error.to_string().into())
            })
        };
        let found = found.boxed().shared();
        state.running.insert(name, found.clone());
        found
    }
}

impl NamesState {
    fn known_or_running(&self, name: &str) -> Option<Shared<BoxFuture<'static, Found>>> {
        let known = self
            .known
            .get(name)
            .filter(|(at, _)| at.elapsed() < CACHE_TTL);
        match known {
            Some((_, addresses)) => Some(
                std::future::ready(Ok(Arc::clone(addresses)))
                    .boxed()
                    .shared(),
            ),
            None => self.running.get(name).cloned(),
        }
    }

    fn on_lookup_ended(&mut self, name: &str, found: &Found) {
        self.running.remove(name);
        self.known.retain(|_, (at, _)| at.elapsed() < CACHE_TTL);
        if let Ok(addresses) = found {
            self.known
                .insert(name.to_owned(), (Instant::now(), Arc::clone(addresses)));
        }
    }
}

#[cfg(test)]
mod tests;
