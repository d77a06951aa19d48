//! HTTP clients for requests: proxies, TLS material, and the checks before each request.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use ipnet::IpNet;
use qm_runtime::leader::Fence;
use secrecy::{ExposeSecret, SecretString};

use super::address::{AddressPolicy, FilteringResolver, is_private, literal};
use super::message::{self, TextLimit};
use super::rate_limit::{TelegramLimits, TelegramRateLimiter};
use super::resolve::{AddressLookup, Dns, Names, RequestContext};
use super::telegram::{self, TelegramChat};
use super::webhook::event::CloudEvent;
use super::webhook::{self, Quote, Tls, WebhookEndpoint};
use super::{Endpoint, MessageContent, Refusal, SendError, SendFailure, SendReceipt, Transport};

/// Time for which an unused connection to a webhook stays open. Each host has connections of its own, and tenants may
/// name a new host with each message. The time suffices for messages that follow each other.
const WEBHOOK_IDLE: Duration = Duration::from_secs(2);

/// Configuration of an [`HttpSender`].
#[derive(Clone)]
pub struct SenderConfig {
    /// `--telegram-api-url`.
    pub telegram_api_url: String,
    /// `--cluster-name`: a line in every message.
    pub cluster_name: Option<String>,
    /// `--webhook-proxy`. The proxy resolves names, so its own rules restrict addresses.
    pub webhook_proxy: Option<SecretString>,
    /// `--webhook-allow-loopback`.
    pub allow_loopback: bool,
    /// `--webhook-deny-cidr`.
    pub deny_cidrs: Vec<IpNet>,
    /// `--webhook-allow-port`; an empty list allows every port.
    pub allow_ports: Vec<u16>,
    /// `--pod-ip`.
    pub own_addresses: Vec<IpAddr>,
    /// `--webhook-quote-private`.
    pub quote_private: bool,
    /// Timeout of one attempt, to the end of the response.
    pub attempt_timeout: Duration,
    /// Upper limit of `Retry-After`. The `retry_after` of Telegram's answers has none.
    pub max_retry_after: Duration,
    /// Rate limits of each Telegram token.
    pub telegram_limits: TelegramLimits,
    /// Fence that is open while this process may send. Each request checks the fence.
    pub fence: Fence,
    /// Lookup of webhook names.
    pub lookup: AddressLookup,
}

impl Default for SenderConfig {
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
            max_retry_after: Duration::from_hours(1),
            telegram_limits: TelegramLimits::default(),
            fence: Fence::open(),
            lookup: Dns::default().lookup(),
        }
    }
}

/// [`Transport`] over HTTP. Each client costs memory, above all for the system's certificates, so a client is created
/// at its first use.
pub struct HttpSender {
    cluster: Option<String>,
    telegram_api: reqwest::Url,
    proxy: Option<reqwest::Proxy>,
    policy: Arc<AddressPolicy>,
    quote_private: bool,
    names: Names,
    fence: Fence,
    attempt_timeout: Duration,
    max_retry_after: Duration,
    rate_limiter: TelegramRateLimiter,
    telegram: OnceLock<reqwest::Client>,
    webhook: OnceLock<reqwest::Client>,
    with_tls: Mutex<HashMap<[u8; 32], Weak<reqwest::Client>>>,
}

impl fmt::Debug for HttpSender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSender")
            .field("cluster", &self.cluster)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl HttpSender {
    /// Checks the configuration.
    ///
    /// # Errors
    /// Returns the invalid flag and the cause, without credentials.
    pub fn new(config: SenderConfig) -> Result<Self, String> {
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
            policy: Arc::new(AddressPolicy {
                allow_loopback: config.allow_loopback,
                deny: config.deny_cidrs,
                ports: config.allow_ports,
                own: config.own_addresses,
            }),
            quote_private: config.quote_private,
            names: Names::new(config.lookup),
            fence: config.fence,
            attempt_timeout: config.attempt_timeout,
            max_retry_after: config.max_retry_after,
            rate_limiter: TelegramRateLimiter::new(config.telegram_limits),
            telegram: OnceLock::new(),
            webhook: OnceLock::new(),
            with_tls: Mutex::default(),
        })
    }

    async fn send_telegram(
        &self,
        chat: &TelegramChat,
        content: MessageContent<'_>,
        plain: bool,
    ) -> Result<SendReceipt, SendFailure> {
        let (cluster, footer) = (self.cluster.as_deref(), chat.footer());
        let (text, carried) = match content {
            MessageContent::Test { .. } => (message::ready(cluster, footer), 0),
            MessageContent::Entries(items) => {
                let rendered = message::render(items, cluster, footer, plain, TextLimit::TELEGRAM);
                (rendered.text, rendered.carried)
            }
        };
        // HTTPS_PROXY and NO_PROXY are reqwest's default.
        let failed = |error| SendFailure::new(error, carried);
        let client = get_or_build(&self.telegram, || base_client().build()).map_err(failed)?;
        let check_lease = || self.check_lease();
        let request = telegram::TelegramRequest {
            client,
            base: &self.telegram_api,
            timeout: self.attempt_timeout,
            max_retry_after: self.max_retry_after,
            rate_limiter: &self.rate_limiter,
            namespace: content.namespace(),
            check_lease: &check_lease,
        };
        request.send(chat, &text, carried).await.map_err(failed)
    }

    async fn send_webhook(
        &self,
        webhook: &WebhookEndpoint,
        content: MessageContent<'_>,
        plain: bool,
    ) -> Result<SendReceipt, SendFailure> {
        let event = CloudEvent::render(webhook, content, self.cluster.as_deref(), plain);
        let carried = event.carried;
        let failed = |error| SendFailure::new(error, carried);
        self.policy.check_url(&webhook.url).map_err(|denied| {
            failed(SendError::Refused {
                reason: Refusal::AddressNotAllowed,
                message: denied.message(webhook.url_is_secret),
            })
        })?;
        let shared;
        let client = match &webhook.tls {
            Some(tls) => {
                shared = self.client_with_tls(tls).map_err(failed)?;
                &shared
            }
            None => {
                get_or_build(&self.webhook, || self.webhook_client().build()).map_err(failed)?
            }
        };
        let check_lease = || self.check_lease();
        let context = RequestContext::new(content.namespace());
        let public = match literal(&webhook.url) {
            Some(address) => !is_private(address),
            None => webhook
                .url
                .host_str()
                .is_some_and(|name| self.names.is_public(name)),
        };
        context.set_public(self.proxy.is_none() && public);
        let request = webhook::WebhookRequest {
            client,
            timeout: webhook.timeout.unwrap_or(self.attempt_timeout),
            max_retry_after: self.max_retry_after,
            check_lease: &check_lease,
            names: &self.names,
            context: &context,
            quote: match (self.quote_private, &self.proxy) {
                (true, _) => Quote::Every,
                (false, None) => Quote::Public,
                // The proxy resolves the name, so the operator does not know the address.
                (false, Some(_)) => Quote::None,
            },
        };
        context
            .run(request.send(webhook, event))
            .await
            .map_err(failed)
    }

    fn check_lease(&self) -> Result<(), SendError> {
        if self.fence.is_open() {
            return Ok(());
        }
        Err(SendError::Unsent {
            message: "this replica does not hold the lease".into(),
        })
    }

    fn webhook_client(&self) -> reqwest::ClientBuilder {
        let builder = base_client().no_proxy().pool_idle_timeout(WEBHOOK_IDLE);
        if let Some(proxy) = &self.proxy {
            return builder.proxy(proxy.clone());
        }
        builder.dns_resolver(Arc::new(FilteringResolver {
            policy: Arc::clone(&self.policy),
            names: self.names.clone(),
        }))
    }

    /// Returns the client for this TLS material. Contact points with the same material share the client, which lives as
    /// long as any of them.
    fn client_with_tls(&self, tls: &Tls) -> Result<Arc<reqwest::Client>, SendError> {
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
                    .map_err(build_error)?,
            ),
        };
        clients.insert(tls.digest, Arc::downgrade(&client));
        Ok(Arc::clone(tls.client.get_or_init(|| client)))
    }
}

impl Transport for HttpSender {
    async fn acquire(&self, endpoint: &Endpoint, namespace: &str) {
        if let Endpoint::Telegram(chat) = endpoint {
            self.rate_limiter.acquire(&chat.key(), namespace).await;
        }
    }

    async fn send(
        &self,
        endpoint: &Endpoint,
        content: MessageContent<'_>,
        plain: bool,
    ) -> Result<SendReceipt, SendFailure> {
        match endpoint {
            Endpoint::Telegram(chat) => self.send_telegram(chat, content, plain).await,
            Endpoint::Webhook(webhook) => self.send_webhook(webhook, content, plain).await,
        }
    }
}

/// Returns the common settings of all clients: HTTP/1.1, few idle connections, no redirects, no retries.
fn base_client() -> reqwest::ClientBuilder {
    reqwest::Client::builder()
        .user_agent(concat!("quartermaster/", env!("CARGO_PKG_VERSION")))
        .http1_only()
        .redirect(reqwest::redirect::Policy::none())
        .referer(false)
        .pool_max_idle_per_host(2)
        .pool_idle_timeout(Duration::from_secs(30))
}

fn get_or_build(
    cell: &OnceLock<reqwest::Client>,
    build: impl FnOnce() -> reqwest::Result<reqwest::Client>,
) -> Result<&reqwest::Client, SendError> {
    match cell.get() {
        Some(client) => Ok(client),
        None => build()
            .map_err(build_error)
            .map(|client| cell.get_or_init(|| client)),
    }
}

fn build_error(error: reqwest::Error) -> SendError {
    SendError::Unsent {
        message: format!("cannot create an HTTP client: {}", error.without_url()),
    }
}

#[cfg(test)]
mod tests;
