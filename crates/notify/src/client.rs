//! Sends requests: clients, proxies, and what is checked right before each request.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use ipnet::IpNet;
use secrecy::{ExposeSecret, SecretString};

use super::address::{Checked, Rules, is_private, literal};
use super::message::{self, Limit};
use super::pace::{Limits, Pace};
use super::resolve::{Dns, Lookup, Names, RequestContext};
use super::telegram::{self, Chat};
use super::webhook::event::Event;
use super::webhook::{self, Hook, Quote, Tls};
use super::{Content, Endpoint, Failure, Refusal, SendError, Sent, Transport};

/// Whether the leader lease is still held. Asked right before each request.
pub type Held = Arc<dyn Fn() -> bool + Send + Sync>;

/// How a [`Sender`] sends.
#[derive(Clone)]
pub struct Config {
    /// `--telegram-api-url`.
    pub telegram_api_url: String,
    /// `--cluster-name`: then a line in every message.
    pub cluster_name: Option<String>,
    /// `--webhook-proxy`. It resolves names itself, so its own rules have to say which addresses may be reached.
    pub webhook_proxy: Option<SecretString>,
    /// `--webhook-allow-loopback`.
    pub allow_loopback: bool,
    /// `--webhook-deny-cidr`.
    pub deny_cidrs: Vec<IpNet>,
    /// `--webhook-allow-port`; empty: every port.
    pub allow_ports: Vec<u16>,
    /// `--pod-ip`.
    pub own_addresses: Vec<IpAddr>,
    /// `--webhook-quote-private`.
    pub quote_private: bool,
    /// What one attempt may take, to the end of the answer.
    pub attempt_timeout: Duration,
    /// A webhook's `Retry-After` is honoured up to here. Telegram's is without bound.
    pub retry_after_cap: Duration,
    /// The pace of Telegram tokens.
    pub pace: Limits,
    /// The fence.
    pub held: Held,
    /// Lookup of webhook names.
    pub lookup: Lookup,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            telegram_api_url: "https://api.telegram.org".into(),
            cluster_name: None,
            webhook_proxy: None,
            allow_loopback: false,
            deny_cidrs: Vec::new(),
            allow_ports: Vec::new(),
            own_addresses: Vec::new(),
            quote_private: false,
            attempt_timeout: Duration::from_secs(10),
            retry_after_cap: Duration::from_hours(1),
            pace: Limits::default(),
            held: Arc::new(|| true),
            lookup: Dns::default().lookup(),
        }
    }
}

/// The real [`Transport`]. Clients are made when first used: each costs memory (the system's certificates above all).
pub struct Sender {
    cluster: Option<String>,
    telegram_api: reqwest::Url,
    proxy: Option<reqwest::Proxy>,
    rules: Arc<Rules>,
    quote_private: bool,
    names: Names,
    held: Held,
    attempt_timeout: Duration,
    retry_after_cap: Duration,
    pace: Pace,
    telegram: OnceLock<reqwest::Client>,
    webhook: OnceLock<reqwest::Client>,
    with_tls: Mutex<HashMap<[u8; 32], Weak<reqwest::Client>>>,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender")
            .field("cluster", &self.cluster)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

impl Sender {
    /// Checks the settings.
    ///
    /// # Errors
    /// The flag that is wrong and why, without credentials.
    pub fn new(config: Config) -> Result<Self, String> {
        let telegram_api: reqwest::Url = config
            .telegram_api_url
            .parse()
            .map_err(|error| format!("--telegram-api-url: {error}"))?;
        if !matches!(telegram_api.scheme(), "http" | "https") || telegram_api.host_str().is_none() {
            return Err("--telegram-api-url: not an http:// or https:// URL".into());
        }
        let proxy = match &config.webhook_proxy {
            Some(url) => Some(
                reqwest::Proxy::all(url.expose_secret())
                    .map_err(|_| "--webhook-proxy: not the URL of a proxy".to_owned())?,
            ),
            None => None,
        };
        Ok(Self {
            cluster: config.cluster_name,
            telegram_api,
            proxy,
            rules: Arc::new(Rules {
                allow_loopback: config.allow_loopback,
                deny: config.deny_cidrs,
                ports: config.allow_ports,
                own: config.own_addresses,
            }),
            quote_private: config.quote_private,
            names: Names::new(config.lookup),
            held: config.held,
            attempt_timeout: config.attempt_timeout,
            retry_after_cap: config.retry_after_cap,
            pace: Pace::new(config.pace),
            telegram: OnceLock::new(),
            webhook: OnceLock::new(),
            with_tls: Mutex::default(),
        })
    }

    async fn send_telegram(
        &self,
        chat: &Chat,
        content: Content<'_>,
        plain: bool,
    ) -> Result<Sent, SendError> {
        let cluster = self.cluster.as_deref();
        let (text, taken) = match content {
            Content::Test { .. } => (message::ready(cluster), 0),
            Content::Entries(items) => {
                let rendered = message::render(items, cluster, plain, Limit::TELEGRAM);
                (rendered.text, rendered.taken)
            }
        };
        // HTTPS_PROXY and NO_PROXY are reqwest's default.
        let failed = |failure| SendError::new(failure, taken);
        let client = once(&self.telegram, || base_client().build()).map_err(failed)?;
        let held = || self.check_held();
        let call = telegram::Call {
            client,
            base: &self.telegram_api,
            timeout: self.attempt_timeout,
            pace: &self.pace,
            held: &held,
        };
        call.send(chat, &text, taken).await.map_err(failed)
    }

    async fn send_webhook(
        &self,
        hook: &Hook,
        content: Content<'_>,
        plain: bool,
    ) -> Result<Sent, SendError> {
        let event = Event::render(hook, content, self.cluster.as_deref(), plain);
        let taken = event.taken;
        let failed = |failure| SendError::new(failure, taken);
        self.rules.check_url(&hook.url).map_err(|refused| {
            failed(Failure::Refused {
                reason: Refusal::AddressNotAllowed,
                message: refused.to_string(),
            })
        })?;
        let shared;
        let client = match &hook.tls {
            Some(tls) => {
                shared = self.client_with(tls).map_err(failed)?;
                &shared
            }
            None => once(&self.webhook, || self.webhook_client().build()).map_err(failed)?,
        };
        let held = || self.check_held();
        let context = RequestContext::new(content.namespace());
        let public = match literal(&hook.url) {
            Some(address) => !is_private(address),
            None => hook
                .url
                .host_str()
                .is_some_and(|name| self.names.is_public(name)),
        };
        context.set_public(self.proxy.is_none() && public);
        let call = webhook::Call {
            client,
            timeout: hook.timeout.unwrap_or(self.attempt_timeout),
            retry_after_cap: self.retry_after_cap,
            held: &held,
            names: &self.names,
            context: &context,
            quote: match (self.quote_private, &self.proxy) {
                (true, _) => Quote::Every,
                (false, None) => Quote::Public,
                // The proxy resolves the name, so the operator does not know the address.
                (false, Some(_)) => Quote::None,
            },
        };
        context.run(call.send(hook, event)).await.map_err(failed)
    }

    fn check_held(&self) -> Result<(), Failure> {
        if (self.held)() {
            return Ok(());
        }
        Err(Failure::Unsent {
            message: "the leader lease is not held".into(),
        })
    }

    fn webhook_client(&self) -> reqwest::ClientBuilder {
        let builder = base_client().no_proxy();
        if let Some(proxy) = &self.proxy {
            return builder.proxy(proxy.clone());
        }
        builder.dns_resolver(Arc::new(Checked {
            rules: Arc::clone(&self.rules),
            names: self.names.clone(),
        }))
    }

    /// The client for this TLS material. It lives as long as a contact point that uses it.
    fn client_with(&self, tls: &Tls) -> Result<Arc<reqwest::Client>, Failure> {
        if let Some(client) = tls.client.get() {
            return Ok(Arc::clone(client));
        }
        let mut clients = self.with_tls.lock().unwrap_or_else(PoisonError::into_inner);
        clients.retain(|_, client| client.strong_count() > 0);
        let client = match clients.get(&tls.digest).and_then(Weak::upgrade) {
            Some(client) => client,
            None => Arc::new(
                tls.apply(self.webhook_client())
                    .build()
                    .map_err(not_built)?,
            ),
        };
        clients.insert(tls.digest, Arc::downgrade(&client));
        Ok(Arc::clone(tls.client.get_or_init(|| client)))
    }
}

impl Transport for Sender {
    async fn slot(&self, endpoint: &Endpoint) {
        if let Endpoint::Telegram(chat) = endpoint {
            self.pace.slot(&chat.room()).await;
        }
    }

    async fn send(
        &self,
        endpoint: &Endpoint,
        content: Content<'_>,
        plain: bool,
    ) -> Result<Sent, SendError> {
        match endpoint {
            Endpoint::Telegram(chat) => self.send_telegram(chat, content, plain).await,
            Endpoint::Webhook(hook) => self.send_webhook(hook, content, plain).await,
        }
    }
}

/// What all clients have in common: HTTP/1.1, few idle connections, no redirects, no second try of their own.
fn base_client() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .user_agent(concat!("quartermaster/", env!("CARGO_PKG_VERSION")))
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .pool_max_idle_per_host(2)
        .pool_idle_timeout(Duration::from_secs(30))
}

fn once(
    cell: &OnceLock<reqwest::Client>,
    build: impl FnOnce() -> reqwest::Result<reqwest::Client>,
) -> Result<&reqwest::Client, Failure> {
    match cell.get() {
        Some(client) => Ok(client),
        None => build()
            .map_err(not_built)
            .map(|client| cell.get_or_init(|| client)),
    }
}

fn not_built(error: reqwest::Error) -> Failure {
    Failure::Unsent {
        message: format!("cannot make an HTTP client: {}", error.without_url()),
    }
}

#[cfg(test)]
mod tests;
