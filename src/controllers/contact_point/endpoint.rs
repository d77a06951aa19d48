//! Resolves a `ContactPoint` and its Secrets to an endpoint.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt};
use qm_api::ContactPoint;
use qm_api::common::{ALLOWED_CHATS, ALLOWED_NAMESPACES, SECRET_NAME, SHARED, SecretKeySelector};
use qm_api::contact_point::{ChatId, TELEGRAM, TelegramSpec, WEBHOOK, WebhookSpec};
use qm_api::spec_size::StoredSpec as _;
use qm_notify::Endpoint;
use qm_notify::message::Body;
use qm_notify::telegram::TelegramChat;
use qm_notify::webhook::{Parts, SigningKey, Tls, Token, WebhookEndpoint, event};
use qm_runtime::outcome::SPEC_INVALID;
use qm_runtime::short_digest;
use qm_runtime::telemetry;
use secrecy::SecretString;
use tokio::sync::Semaphore;

use super::status;
use crate::cli::SharedSecrets;

/// Maximum size of a token, a URL or a signing key, in bytes. Servers accept headers and URLs of about this size, and
/// the redactor keeps some thirty forms of each.
const MAX_VALUE: usize = 8 * 1024;
/// Maximum number of keys of a Secret. Each takes some 100 bytes of memory, and reconciles hold Secrets side by side.
const MAX_KEYS: usize = 5000;
/// Maximum number of contact points whose Secrets are in memory: each may have four Secrets of 2 MB.
const MAX_CONCURRENT_READS: usize = 4;

/// Source of Secrets.
#[derive(Clone)]
pub(crate) struct SecretSource {
    client: Client,
    operator_namespace: String,
    /// Contact points that may use a Secret of the operator's namespace.
    shared: SharedSecrets,
    permits: Arc<Semaphore>,
}

impl SecretSource {
    pub(crate) fn new(client: Client, operator_namespace: String, shared: SharedSecrets) -> Self {
        Self {
            client,
            operator_namespace,
            shared,
            permits: Arc::new(Semaphore::new(MAX_CONCURRENT_READS)),
        }
    }
}

/// An endpoint and the versions of its Secrets.
pub(crate) struct ResolvedEndpoint {
    pub endpoint: Endpoint,
    /// Digest of each Secret's UID and resourceVersion.
    pub secrets: Vec<String>,
}

/// Reason that a contact point has no endpoint. The variant's name is the condition's reason.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The namespaces have no usable Secret with that name. The first is that of the contact point.
    #[error(
        "there is no usable Secret {secret:?} {}; create it in {:?}",
        in_namespaces(.namespaces),
        .namespaces.first().map_or("", String::as_str)
    )]
    SecretNotFound {
        secret: String,
        namespaces: Vec<String>,
    },
    #[error("Secret {secret:?} has no key {key:?}; it has {}", keys_or_none(.keys))]
    SecretKeyMissing {
        secret: String,
        key: String,
        /// Keys that the Secret has.
        keys: Vec<String>,
    },
    /// The Secret, or the value of its key, is not a valid token, URL, key or certificate.
    #[error("{}Secret {secret:?}: {problem}", key_of(.key.as_deref()))]
    SecretInvalid {
        secret: String,
        key: Option<String>,
        problem: String,
    },
    #[error(
        "the operator may not get Secrets in namespace {namespace:?}: grant it get on secrets there"
    )]
    SecretForbidden { namespace: String },
    /// The spec is incomplete or contradictory.
    #[error("{0}")]
    SpecInvalid(String),
    /// The body fails for the test message, which would therefore lack the token.
    #[error(
        "spec.webhookSpec.body fails for the test message: {0}; the operator sends nothing until the body is fixed"
    )]
    BodyInvalid(String),
    /// The apiserver did not answer, or answered without a Secret: a transient error.
    #[error("a Secret could not be read: {0}")]
    SecretUnreadable(String),
}

fn in_namespaces(namespaces: &[String]) -> String {
    let quoted: Vec<_> = namespaces.iter().map(|name| format!("{name:?}")).collect();
    format!("in namespace {}", quoted.join(" or in "))
}

fn keys_or_none(keys: &[String]) -> String {
    if keys.is_empty() {
        "none".into()
    } else {
        keys.join(", ")
    }
}

fn key_of(key: Option<&str>) -> String {
    key.map(|key| format!("key {key:?} of "))
        .unwrap_or_default()
}

/// Reason of a body that cannot be rendered with its token.
pub(crate) const BODY_INVALID: &str = "BodyInvalid";

impl EndpointError {
    /// Returns the condition's reason.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::SecretNotFound { .. } => "SecretNotFound",
            Self::SecretKeyMissing { .. } => "SecretKeyMissing",
            Self::SecretInvalid { .. } => "SecretInvalid",
            Self::SecretForbidden { .. } => "SecretForbidden",
            Self::SpecInvalid(_) => SPEC_INVALID,
            Self::BodyInvalid(_) => BODY_INVALID,
            Self::SecretUnreadable(_) => "SecretUnreadable",
        }
    }
}

/// Resolves and checks the references of `point`. `cluster`: the operator's `--cluster-name`.
///
/// # Errors
/// Returns the reason that there is no endpoint, without any secret value.
pub(crate) async fn resolve(
    source: &SecretSource,
    point: &ContactPoint,
    cluster: Option<&str>,
) -> Result<ResolvedEndpoint, EndpointError> {
    point
        .spec
        .check_size()
        .map_err(EndpointError::SpecInvalid)?;
    let _permit = source.permits.acquire().await;
    let mut secrets = SecretReader {
        source,
        point,
        read: BTreeMap::new(),
    };
    let endpoint = match point.spec.type_.as_str() {
        TELEGRAM => Endpoint::Telegram(telegram(&mut secrets).await?),
        WEBHOOK => Endpoint::Webhook(Box::new(webhook(&mut secrets, cluster).await?)),
        other => {
            return Err(EndpointError::SpecInvalid(format!(
                "spec.type is {other:?}: write {TELEGRAM} or {WEBHOOK} (any other value once meant {TELEGRAM})"
            )));
        }
    };
    let secrets = secrets
        .read
        .into_values()
        .map(|secret| secret.version())
        .collect();
    Ok(ResolvedEndpoint { endpoint, secrets })
}

async fn telegram(secrets: &mut SecretReader<'_>) -> Result<TelegramChat, EndpointError> {
    let point = secrets.point;
    let spec: &TelegramSpec = point.spec.telegram_spec.as_ref().ok_or_else(|| {
        EndpointError::SpecInvalid(
            "type Telegram needs spec.telegramSpec.chatId: add the chat".into(),
        )
    })?;
    let reference = point.spec.api_token.as_ref().ok_or_else(|| {
        EndpointError::SpecInvalid(
            "type Telegram needs spec.apiToken: name the bot token's Secret".into(),
        )
    })?;
    let chat_id = spec.chat_id.as_ref().ok_or_else(|| {
        EndpointError::SpecInvalid(
            "type Telegram needs spec.telegramSpec.chatId: add the chat".into(),
        )
    })?;
    let migrated = status::migrated(point.status.as_ref(), &status::digest(&point.spec));
    let token = secrets.value(reference).await?;
    let chats = secrets.secret(&reference.secret_name).await?.chats;
    let chat = allowed_chat(chats.as_deref(), chat_id, migrated)
        .ok_or_else(|| secrets.not_found(&reference.secret_name))?;
    TelegramChat::new(
        &token.0,
        chat,
        spec.message_thread_id,
        spec.disable_notification.unwrap_or_default(),
    )
    .map(|chat| chat.with_footer(point.spec.footer.clone()))
    .map_err(|error| secrets.invalid(reference, &error))
}

async fn webhook(
    secrets: &mut SecretReader<'_>,
    cluster: Option<&str>,
) -> Result<WebhookEndpoint, EndpointError> {
    let point = secrets.point;
    let spec: &WebhookSpec = point.spec.webhook_spec.as_ref().ok_or_else(|| {
        EndpointError::SpecInvalid("type Webhook needs spec.webhookSpec with url or urlFrom".into())
    })?;
    let body = checked_body(point, spec, cluster)?;
    let url = match &spec.url_from {
        Some(reference) => secrets.text(reference).await?,
        None if spec.url.is_empty() => {
            return Err(EndpointError::SpecInvalid(
                "type Webhook needs spec.webhookSpec.url or urlFrom".into(),
            ));
        }
        None => spec.url.clone().into(),
    };
    let token = match (&point.spec.api_token, spec.header_name.as_str()) {
        (Some(reference), _) if spec.has_token_in_body() => {
            Some(Token::InBody(secrets.text(reference).await?))
        }
        (_, "") | (None, _) => None,
        (Some(reference), header) => {
            let token = secrets.text(reference).await?;
            Some(Token::InHeader(header.to_owned(), token))
        }
    };
    let signing_key = match &spec.signing_key {
        Some(reference) => {
            let key = secrets.value(reference).await?;
            Some(SigningKey::new(&key.0).map_err(|error| secrets.invalid(reference, &error))?)
        }
        None => None,
    };
    let tls = match &spec.tls {
        Some(tls) => {
            let secret = secrets.secret(&tls.secret_name).await?;
            let part = |key: &str| secret.data.get(key).map(|bytes| bytes.0.as_slice());
            let name = &tls.secret_name;
            let tls = Tls::new(part("ca.crt"), part("tls.crt"), part("tls.key"));
            Some(tls.map_err(|error| secrets.unusable(name, None, &error))?)
        }
        None => None,
    };
    let timeout = spec
        .timeout_seconds
        .and_then(|seconds| u64::try_from(seconds).ok())
        .map(Duration::from_secs);
    WebhookEndpoint::new(Parts {
        url,
        url_is_secret: spec.url_from.is_some(),
        token,
        headers: spec.headers.clone(),
        body,
        content_type: spec.content_type.clone(),
        signing_key,
        timeout,
        tls,
        footer: point.spec.footer.clone(),
    })
    .map_err(
        |error| match (error.field, &point.spec.api_token, &spec.url_from) {
            ("apiToken", Some(reference), _) | ("urlFrom", _, Some(reference)) => {
                secrets.invalid(reference, &error.message)
            }
            _ => EndpointError::SpecInvalid(format!("spec.webhookSpec.{error}")),
        },
    )
}

/// Returns the body, which is checked before the Secrets are read.
fn checked_body(
    point: &ContactPoint,
    spec: &WebhookSpec,
    cluster: Option<&str>,
) -> Result<Option<Body>, EndpointError> {
    let body = Body::of(spec)
        .map_err(|error| EndpointError::SpecInvalid(format!("spec.webhookSpec.body: {error}")))?;
    if let Some(body) = &body {
        let namespace = point.namespace().unwrap_or_default();
        let (name, footer) = (point.name_any(), point.spec.footer.as_deref());
        event::check_test(body, &namespace, &name, cluster, footer)
            .map_err(EndpointError::BodyInvalid)?;
    }
    Ok(body)
}

/// Returns the chat to send to, if the Secret's owner allows it. `allowed` lists the chats; none means every chat.
///
/// A chat that Telegram moved stays allowed. The new chat comes from the status, which other clients may write, so a
/// new chat that is not listed gets nothing: the message goes to the listed chat, and Telegram answers with the new one
/// again.
fn allowed_chat(allowed: Option<&str>, chat_id: &ChatId, migrated: Option<i64>) -> Option<ChatId> {
    let moved = migrated
        .filter(|_| matches!(chat_id, ChatId::Id(_)))
        .map(ChatId::Id);
    let Some(allowed) = allowed else {
        return Some(moved.unwrap_or_else(|| chat_id.clone()));
    };
    let is_listed = |chat: &ChatId| match chat {
        ChatId::Id(id) => lists(allowed, |entry| entry.parse() == Ok(*id)),
        // Telegram does not distinguish upper and lower case in names.
        ChatId::Name(name) => lists(allowed, |entry| entry.eq_ignore_ascii_case(name)),
    };
    moved
        .filter(is_listed)
        .or_else(|| Some(chat_id.clone()).filter(is_listed))
}

/// Returns whether an entry of a comma-separated list matches.
fn lists(list: &str, matches: impl Fn(&str) -> bool) -> bool {
    list.split(',')
        .map(str::trim)
        .any(|entry| !entry.is_empty() && matches(entry))
}

/// The Secrets of one contact point, each read once.
struct SecretReader<'a> {
    source: &'a SecretSource,
    point: &'a ContactPoint,
    read: BTreeMap<String, LoadedSecret>,
}

#[derive(Clone)]
struct LoadedSecret {
    data: BTreeMap<String, ByteString>,
    uid: String,
    resource_version: String,
    /// True if the Secret comes from the operator's namespace: errors must not reveal its content.
    shared: bool,
    /// Chats that the owner of a shared Secret allows; `None` allows every chat.
    chats: Option<String>,
}

impl LoadedSecret {
    fn new(secret: Secret, shared: bool) -> Self {
        Self {
            chats: secret
                .annotations()
                .get(ALLOWED_CHATS)
                .filter(|_| shared)
                .cloned(),
            uid: secret.uid().unwrap_or_default(),
            resource_version: secret.resource_version().unwrap_or_default(),
            data: secret.data.unwrap_or_default(),
            shared,
        }
    }

    /// Returns a digest of the Secret's version. The status shows the digest, which must not reveal whether the
    /// operator's namespace has the Secret.
    fn version(&self) -> String {
        short_digest(format!("{}/{}", self.uid, self.resource_version))
    }
}

impl SecretReader<'_> {
    /// Returns the value of a key.
    async fn value(&mut self, reference: &SecretKeySelector) -> Result<ByteString, EndpointError> {
        let found = self.secret(&reference.secret_name).await?;
        match found.data.get(&reference.key) {
            Some(value) if value.0.len() > MAX_VALUE => {
                let size = value.0.len();
                let problem = format!("{size} bytes; store at most {MAX_VALUE}");
                Err(self.invalid(reference, &problem))
            }
            Some(value) => Ok(value.clone()),
            None if found.shared => Err(self.not_found(&reference.secret_name)),
            None => {
                let SecretKeySelector { secret_name, key } = reference.clone();
                Err(EndpointError::SecretKeyMissing {
                    secret: secret_name,
                    key,
                    keys: found.data.into_keys().collect(),
                })
            }
        }
    }

    /// Returns the value of a key, as text.
    async fn text(&mut self, reference: &SecretKeySelector) -> Result<SecretString, EndpointError> {
        let value = self.value(reference).await?;
        let text = std::str::from_utf8(&value.0)
            .map_err(|_| self.invalid(reference, &"not UTF-8; store UTF-8 text"))?;
        Ok(text.into())
    }

    /// Returns the error for an invalid value of a key.
    fn invalid(&self, reference: &SecretKeySelector, error: &dyn fmt::Display) -> EndpointError {
        let SecretKeySelector { secret_name, key } = reference;
        self.unusable(secret_name, Some(key), error)
    }

    /// Returns the error for a Secret that cannot be used, which must not reveal that a shared Secret exists.
    fn unusable(&self, name: &str, key: Option<&str>, problem: &dyn fmt::Display) -> EndpointError {
        match self.read.get(name) {
            Some(found) if found.shared => self.not_found(name),
            _ => EndpointError::SecretInvalid {
                secret: name.to_owned(),
                key: key.map(str::to_owned),
                problem: problem.to_string(),
            },
        }
    }

    /// Returns the Secret with that name: from the contact point's own namespace first, then from the operator's, if
    /// that is allowed.
    async fn secret(&mut self, name: &str) -> Result<LoadedSecret, EndpointError> {
        if let Some(found) = self.read.get(name) {
            return Ok(found.clone());
        }
        // An object older than the CRD's rule may have any name, and the name becomes part of a URL path.
        let plain = |byte: u8| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.')
        };
        if !name.starts_with(|first: char| first.is_ascii_alphanumeric())
            || !name.bytes().all(plain)
        {
            return Err(EndpointError::SpecInvalid(format!(
                "{name:?} is not a valid name: {}",
                SECRET_NAME.1
            )));
        }
        let own = self.point.namespace().unwrap_or_default();
        let found = match self.get(&own, name).await? {
            Some(secret) => LoadedSecret::new(secret, false),
            None if own == self.source.operator_namespace => return Err(self.not_found(name)),
            None => {
                // The condition must not reveal which Secrets exist.
                let operators = match self.get(&self.source.operator_namespace, name).await {
                    Err(
                        EndpointError::SecretForbidden { .. } | EndpointError::SecretInvalid { .. },
                    ) => None,
                    other => other?,
                };
                let secret = operators
                    .filter(|secret| self.may_share(secret))
                    .ok_or_else(|| self.not_found(name))?;
                LoadedSecret::new(secret, true)
            }
        };
        self.read.insert(name.to_owned(), found.clone());
        Ok(found)
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<Option<Secret>, EndpointError> {
        if !self.may_read_in(namespace) {
            return Ok(None);
        }
        match Api::<Secret>::namespaced(self.source.client.clone(), namespace)
            .get_opt(name)
            .await
        {
            Ok(Some(secret)) if secret.data.as_ref().map_or(0, BTreeMap::len) > MAX_KEYS => {
                Err(EndpointError::SecretInvalid {
                    secret: name.to_owned(),
                    key: None,
                    problem: format!(
                        "more than {MAX_KEYS} keys; store what the ContactPoint needs in a Secret of its own"
                    ),
                })
            }
            Ok(secret) => Ok(secret),
            Err(kube::Error::Api(status)) if status.code == 403 => {
                Err(EndpointError::SecretForbidden {
                    namespace: namespace.to_owned(),
                })
            }
            // The error quotes the Secret.
            Err(kube::Error::SerdeError(_)) => Err(EndpointError::SecretUnreadable(
                "the response is not a Secret".into(),
            )),
            Err(error) => Err(EndpointError::SecretUnreadable(telemetry::causes(&error))),
        }
    }

    fn may_read_in(&self, namespace: &str) -> bool {
        namespace == self.point.namespace().unwrap_or_default()
            || match self.source.shared {
                SharedSecrets::Off => false,
                SharedSecrets::Telegram => self.point.spec.type_ == TELEGRAM,
                SharedSecrets::Labelled => true,
            }
    }

    /// Returns whether the contact point may use this Secret of the operator's namespace. A Telegram token goes only to
    /// the configured Bot API. A webhook's token goes to the receiver that the contact point names, so the Secret's
    /// owner has to agree. A list of chats excludes webhooks.
    fn may_share(&self, secret: &Secret) -> bool {
        let own = self.point.namespace().unwrap_or_default();
        let namespaces = secret.annotations().get(ALLOWED_NAMESPACES);
        if !namespaces.is_none_or(|namespaces| lists(namespaces, |namespace| namespace == own)) {
            return false;
        }
        self.point.spec.type_ == TELEGRAM
            || (secret
                .labels()
                .get(SHARED)
                .is_some_and(|value| value == "true")
                && !secret.annotations().contains_key(ALLOWED_CHATS))
    }

    fn not_found(&self, name: &str) -> EndpointError {
        let mut namespaces = vec![self.point.namespace().unwrap_or_default()];
        let operators = &self.source.operator_namespace;
        if self.may_read_in(operators) && namespaces[0] != *operators {
            namespaces.push(operators.clone());
        }
        EndpointError::SecretNotFound {
            secret: name.to_owned(),
            namespaces,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn chat(text: &str) -> ChatId {
        text.parse()
            .map_or_else(|_| ChatId::Name(text.into()), ChatId::Id)
    }

    #[rstest]
    #[case::no_limit(None, "-7", None, Some("-7"))]
    #[case::no_limit_and_moved(None, "-7", Some(-100), Some("-100"))]
    #[case::listed(Some("-7"), "-7", None, Some("-7"))]
    #[case::among_others(Some("5, -7 ,@news"), "-7", None, Some("-7"))]
    #[case::not_listed(Some("5,-77"), "-7", None, None)]
    #[case::no_chat_at_all(Some(""), "-7", None, None)]
    #[case::empty_entries(Some(" , ,"), "-7", None, None)]
    #[case::asterisk_is_no_chat(Some("*"), "-7", None, None)]
    #[case::name(Some("@news"), "@News", None, Some("@News"))]
    #[case::other_name(Some("@news"), "@new", None, None)]
    #[case::moved_from_a_listed_chat(Some("-7"), "-7", Some(-100), Some("-7"))]
    #[case::moved_to_a_listed_chat(Some("-100"), "-7", Some(-100), Some("-100"))]
    #[case::both(Some("-7,-100"), "-7", Some(-100), Some("-100"))]
    #[case::forged_move(Some("-7"), "-8", Some(-9), None)]
    #[case::names_do_not_move(Some("-100"), "@news", Some(-100), None)]
    fn chat_must_be_listed_by_the_owner(
        #[case] allowed: Option<&str>,
        #[case] chat_id: &str,
        #[case] migrated: Option<i64>,
        #[case] expected: Option<&str>,
    ) {
        assert_eq!(
            allowed_chat(allowed, &chat(chat_id), migrated),
            expected.map(chat)
        );
    }
}
