//! ContactPoint: a receiver of messages.

use std::collections::BTreeMap;

use kube::core::Rule;
use kube::{CustomResource, KubeSchema};
use qm_core::conditions::{READY, readiness};
use qm_core::kind::Kind;
use qm_core::names::MetadataNames;
use qm_core::readiness::{Readiness, ReadinessSummary};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::common::{
    Conditions, MAX_TEMPLATE, NAMES, SECRET_NAME, SecretKeySelector, TEST_AT, conditions_schema,
    rule_over,
};

/// Value of `type` for a Telegram chat.
pub const TELEGRAM: &str = "Telegram";
/// Value of `type` for an HTTP endpoint.
pub const WEBHOOK: &str = "Webhook";
/// Value of `tokenIn` for a token in the body.
const TOKEN_IN_BODY: &str = "Body";

/// A receiver of messages: a Telegram chat or a webhook.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "tg.azamaton.ru",
    version = "v1",
    kind = "ContactPoint",
    doc = "A receiver of messages: a Telegram chat or a webhook.",
    plural = "contactpoints",
    shortname = "cp",
    category = "quartermaster",
    namespaced,
    status = "ContactPointStatus",
    derive = "PartialEq",
    derive = "Default",
    // The original CRD accepted an object without a spec. An unreadable object would stop the watch of the kind.
    attr = "cfg_attr(all(), serde(default))",
    printcolumn(name = "Type", type_ = "string", json_path = ".spec.type"),
    printcolumn(name = "Ready", type_ = "boolean", json_path = ".status.ready"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", remote = "Self")]
#[schemars(extend("required" = ["type"]))]
#[x_kube(
    validation = telegram_needs_chat(),
    validation = telegram_needs_token(),
    validation = webhook_needs_url(),
    validation = telegram_takes_no_webhook(),
    validation = webhook_takes_no_chat(),
    validation = token_needs_header(),
    validation = header_needs_token(),
    validation = token_in_body_needs_token(),
)]
pub struct ContactPointSpec {
    /// Type of the receiver: `Telegram` or `Webhook`.
    #[serde(default, rename = "type")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = ("self in ['Telegram', 'Webhook']", "write type: Telegram or type: Webhook"))]
    pub type_: String,
    /// Secret with the bot token (Telegram), or with the token that `webhookSpec.tokenIn` places (Webhook). Required for
    /// `type: Telegram` and for `tokenIn: Body`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_token: Option<SecretKeySelector>,
    /// Chat. Required for `type: Telegram`; no other type has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telegram_spec: Option<TelegramSpec>,
    /// Endpoint. Required for `type: Webhook`; no other type has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_spec: Option<WebhookSpec>,
    /// Time in seconds for which the operator gathers entries into one message, 0 to 300: a request begins once the oldest
    /// waiting entry has this age. The test message and retries do not wait. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 300))]
    pub digest_seconds: Option<i64>,
    /// Last line of every message, such as the owner's name or a link to a runbook. A change sends a test message. Defaults to
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 256))]
    #[x_kube(validation = (
        r"self.trim() != '' && !self.matches(r'[\p{Cc}\x{61c}\x{200e}\x{200f}\x{2028}-\x{202e}\x{2066}-\x{2069}]')",
        "write one line of text, without control characters, such as 'Owner: team-shop'",
    ))]
    pub footer: Option<String>,
    /// Pause of delivery. While true, the operator sends nothing. Entries stay pending, and this time does not count towards
    /// their expiry after 24 hours. A change sends no test message. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Size of the stored spec in bytes, if that exceeds the limit for reading.
    #[serde(skip)]
    pub oversized: Option<usize>,
}

/// A chat of the Telegram Bot API (<https://core.telegram.org/bots/api#sendmessage>).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TelegramSpec {
    /// Number of the chat (64-bit, unquoted; a supergroup's begins with -100), or the public name `'@channel'`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = (
        "type(self) == int || self.matches('^@[A-Za-z0-9_]{5,32}$')",
        "write the chat's number without quotes, such as -1001234567890, or a public name in quotes, such as '@channel' \
         (5 to 32 letters, digits and '_')",
    ))]
    pub chat_id: Option<ChatId>,
    /// Number of a topic in a forum supergroup. Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub message_thread_id: Option<i64>,
    /// Silent delivery. While true, Telegram notifies without a sound. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disable_notification: Option<bool>,
}

/// An HTTP endpoint that receives a POST request for each message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = (
        "!has(self.urlFrom) || !has(self.url) || self.url == ''",
        "give url or urlFrom, not both: remove one of them",
    ),
    validation = (
        "!has(self.contentType) || has(self.body)",
        "contentType needs body: add body, or remove contentType",
    ),
    validation = (
        "!has(self.tokenIn) || self.tokenIn != 'Body' || has(self.body)",
        "tokenIn: Body needs body: add a body with {{ token }} at the token's place, or write tokenIn: Header",
    ),
    validation = (
        "!has(self.tokenIn) || self.tokenIn != 'Body' || !has(self.headerName) || self.headerName == ''",
        "tokenIn: Body sends no token in a header: remove headerName, or write tokenIn: Header",
    ),
    validation = (
        "!has(self.headerName) || !has(self.headers) \
         || !self.headers.exists(name, name.lowerAscii() == self.headerName.lowerAscii())",
        "headers repeats headerName: remove it from headers, because its value comes from apiToken",
    ),
)]
pub struct WebhookSpec {
    /// URL of the endpoint: http or https, without credentials or fragment. Set this field or `urlFrom`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 2048))]
    #[x_kube(
        validation = (
            r"self == '' || self.matches(r'^(?i)https?://([^/?#\\]*@)?([^\s/?#@:\\%<>^|\[\]]+|\[[0-9a-f:.]+\])(:([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]))?([/?#][^\x00-\x20\x7f\\]*)?$')",
            "write a whole http or https URL, such as https://hooks.example.com/in",
        ),
        validation = (
            "!self.matches('^[^/?#]*//[^/?#]*@')",
            "remove the credentials from the URL: put a token into a Secret and name it in apiToken with headerName, or put \
             the whole URL into a Secret and name it in urlFrom",
        ),
        validation = ("!self.contains('#')", "remove the fragment: clients never send # and the text after it"),
    )]
    pub url: String,
    /// Secret with the URL, if the URL itself is secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url_from: Option<SecretKeySelector>,
    /// Place of `apiToken` in a request: `Header` (the header `headerName`) or `Body` (the variable `token` of `body`). `Body`
    /// needs `body`, and no `headerName`. Defaults to `Header`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = ("self in ['Header', 'Body']", "write tokenIn: Header or tokenIn: Body"))]
    pub token_in: Option<String>,
    /// Name of the header that carries `apiToken`. With `tokenIn: Header`, set both or neither; with `Body`, set none. Headers
    /// that HTTP or the operator sets are reserved, such as `Host`, `Content-*`, `ce-*` and `webhook-*`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 128))]
    #[x_kube(
        validation = header_rule(&format!("self == '' || self.{TOKEN}"), NOT_A_TOKEN),
        validation = header_rule(&format!("!self.{}", reserved()), IS_RESERVED),
    )]
    pub header_name: String,
    /// Further headers, sent unchanged; at most 32, names of 128 characters, values of printable ASCII. Put no secrets here: every
    /// reader of this object sees them. Defaults to none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend("maxProperties" = 32, "additionalProperties" = { "type": "string", "maxLength": 2048 }))]
    #[x_kube(
        validation = header_rule(&format!("self.all(name, size(name) <= 128 && name.{TOKEN})"), NOT_A_TOKEN),
        validation = header_rule(&format!("!self.exists(name, name.{})", reserved()), IS_RESERVED),
        validation = (
            "self.all(name, self.exists_one(other, other.lowerAscii() == name.lowerAscii()))",
            "the same header is listed twice, in upper and lower case: remove one",
        ),
        validation = (
            r"self.all(name, self[name].matches(r'^[\t\x20-\x7e]*$'))",
            "write header values in printable ASCII on one line",
        ),
    )]
    pub headers: BTreeMap<String, String>,
    /// Jinja template of the body, with the variables of a TrackedField's template and `text`, `entries`, `eventId` and `token`. Defaults to
    /// the JSON data of the CloudEvent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_TEMPLATE))]
    pub body: Option<String>,
    /// Content-Type of `body`; requires `body`. Defaults to `application/json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    #[x_kube(validation = (
        r#"self.matches(r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+( *;[\x20-\x7e]*)?$")"#,
        "write a media type, such as text/plain; charset=utf-8",
    ))]
    pub content_type: Option<String>,
    /// Secret with the key that signs each request according to Standard Webhooks (HMAC-SHA256): `whsec_` and base64, or raw bytes.
    /// Defaults to none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_key: Option<SecretKeySelector>,
    /// Timeout of an attempt in seconds, until the end of the response; 1 to 30. Defaults to 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 30))]
    pub timeout_seconds: Option<i64>,
    /// TLS material for this endpoint. Defaults to the system's certificate authorities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<WebhookTls>,
}

/// TLS material for a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookTls {
    /// Name of a Secret with `ca.crt` (replaces the system's certificate authorities), or `tls.crt` and `tls.key` (client
    /// certificate), or all three.
    #[schemars(length(max = 253))]
    #[x_kube(validation = SECRET_NAME)]
    pub secret_name: String,
}

/// A Telegram chat: a number or `@channel`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ChatId {
    /// Number of a chat; negative for groups.
    Id(i64),
    /// Public channel or group, as `@name`.
    Name(String),
}

impl JsonSchema for ChatId {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ChatId".into()
    }

    /// k8s-openapi's `IntOrString` holds 32 bits, too few for the number of a supergroup.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "x-kubernetes-int-or-string": true, "maxLength": 33 })
    }
}

/// Observed state of the receiver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContactPointStatus {
    /// True after the first attempt to send, successful or not. A missing Secret does not count as an attempt.
    #[serde(default)]
    pub initialized: bool,
    /// Readiness: true if messages can be sent.
    #[serde(default)]
    pub ready: bool,
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Last test message: digests of the spec and the Secrets, and the result of a requested one. The operator sends a new test
    /// message when the digests change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_test: Option<LastTest>,
    /// Number of accepted test messages. The ID of the next test message derives from this number and `lastTest`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tests_accepted: Option<i64>,
    /// Successful test of a stopped receiver: true until the receiver accepts an entry. Meanwhile, the operator sends no test
    /// message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tested_while_stopped: Option<bool>,
    /// Readiness before the contact point was suspended or a Secret became unreadable. If true, the contact point is ready
    /// afterwards without a test message, unless the spec or a Secret has changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub was_ready: Option<bool>,
    /// Number of the supergroup that replaced this group (Telegram's `migrate_to_chat_id`). The operator sends messages there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrated_to_chat_id: Option<i64>,
    /// `Ready`, and while `Ready` is False also `Reconciling` or `Stalled` with the same reason. `OutcomesRecorded` while the
    /// operator cannot record deliveries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Conditions,
}

/// Digests of the spec and the Secrets of a test message, and the result of the last requested one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LastTest {
    /// Digest of the spec without `suspend` and `digestSeconds`; empty if no test message has got an answer that says whether
    /// the receiver accepts messages.
    pub spec: String,
    /// Digest of the UID and resourceVersion of each Secret.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// Value of the annotation `quartermaster.dev/test-at` for which the operator last sent a test message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<String>,
    /// Answer of the receiver if it did not accept the requested test message. Absent if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl LastTest {
    /// Returns whether both have the same spec and Secrets.
    pub fn is_same_configuration(&self, other: &Self) -> bool {
        self.spec == other.spec && self.secrets == other.secrets
    }
}

/// CEL expression for the name of a header: a token (RFC 9110, section 5.6.2).
const TOKEN: &str = r#"matches(r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")"#;
const NOT_A_TOKEN: &str =
    "write a header's name: letters, digits and !#$%&'*+-.^_`|~, at most 128, such as X-Api-Token";
/// Headers of a connection (RFC 9110, section 7.6.1), of HTTP's framing, and headers that describe the message. A name with
/// `-` at its end is a prefix.
const RESERVED: [&str; 17] = [
    "connection",
    "keep-alive",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "http2-settings",
    "host",
    "content-length",
    "content-type",
    "content-encoding",
    "expect",
    "user-agent",
    "idempotency-key",
    "proxy-",
    "ce-",
    "webhook-",
];
const IS_RESERVED: &str = "HTTP itself or Quartermaster sets this header (Host, Connection, Content-*, Transfer-Encoding, \
    Proxy-*, ce-*, webhook-*, Idempotency-Key, User-Agent and the like): choose another name; a body's type goes into contentType";

/// Returns whether HTTP or the operator sets this header.
pub fn is_reserved(header: &str) -> bool {
    let header = header.to_ascii_lowercase();
    RESERVED.iter().any(|name| {
        if name.ends_with('-') {
            header.starts_with(name)
        } else {
            header == *name
        }
    })
}

/// Returns the CEL expression for [`is_reserved`].
fn reserved() -> String {
    let names = RESERVED.map(|name| {
        if name.ends_with('-') {
            format!("{name}.*")
        } else {
            name.to_owned()
        }
    });
    format!("matches('(?i)^({})$')", names.join("|"))
}

fn header_rule(rule: &str, message: &str) -> Rule {
    Rule::new(rule).message(message)
}

/// Go clients write 0 or an empty string for an unset field: these count as absent.
fn telegram_needs_chat() -> Rule {
    rule_over(
        &["type", "telegramSpec.chatId"],
        "self.type != 'Telegram' || (has(self.telegramSpec) && has(self.telegramSpec.chatId) && self.telegramSpec.chatId != 0)",
        "type: Telegram needs a chat: add telegramSpec: {chatId: NUMBER}, or chatId: '@channel'",
    )
}

fn telegram_needs_token() -> Rule {
    rule_over(
        &["type", "apiToken"],
        "self.type != 'Telegram' || has(self.apiToken)",
        "type: Telegram needs the bot's token: add apiToken: {secretName: NAME, key: KEY}, naming a Secret that holds it",
    )
}

fn webhook_needs_url() -> Rule {
    rule_over(
        &["type", "webhookSpec.url", "webhookSpec.urlFrom"],
        "self.type != 'Webhook' || (has(self.webhookSpec) \
         && (has(self.webhookSpec.urlFrom) || (has(self.webhookSpec.url) && self.webhookSpec.url != '')))",
        "type: Webhook needs an endpoint: add webhookSpec: {url: https://...}, or webhookSpec: {urlFrom: {secretName: NAME, \
         key: KEY}} if the URL is itself a secret",
    )
}

fn telegram_takes_no_webhook() -> Rule {
    rule_over(
        &["type", "webhookSpec"],
        "self.type != 'Telegram' || !has(self.webhookSpec) || ((!has(self.webhookSpec.url) || self.webhookSpec.url == '') \
         && (!has(self.webhookSpec.headerName) || self.webhookSpec.headerName == '') && (!has(self.webhookSpec.headers) || self.webhookSpec.headers.size() == 0) \
         && !has(self.webhookSpec.urlFrom) && !has(self.webhookSpec.body) && !has(self.webhookSpec.contentType) \
         && !has(self.webhookSpec.tokenIn) && !has(self.webhookSpec.signingKey) && !has(self.webhookSpec.timeoutSeconds) && !has(self.webhookSpec.tls))",
        "type: Telegram takes no webhookSpec: remove it, or write type: Webhook",
    )
}

fn webhook_takes_no_chat() -> Rule {
    rule_over(
        &["type", "telegramSpec"],
        "self.type != 'Webhook' || !has(self.telegramSpec) || ((!has(self.telegramSpec.chatId) || self.telegramSpec.chatId == 0) \
         && !has(self.telegramSpec.messageThreadId) && !has(self.telegramSpec.disableNotification))",
        "type: Webhook takes no telegramSpec: remove it, or write type: Telegram",
    )
}

fn token_needs_header() -> Rule {
    rule_over(
        &[
            "type",
            "apiToken",
            "webhookSpec.headerName",
            "webhookSpec.tokenIn",
        ],
        "self.type != 'Webhook' || !has(self.apiToken) || (has(self.webhookSpec) \
         && ((has(self.webhookSpec.headerName) && self.webhookSpec.headerName != '') \
         || (has(self.webhookSpec.tokenIn) && self.webhookSpec.tokenIn == 'Body')))",
        "apiToken is sent in a header: add webhookSpec.headerName, such as X-Api-Token, or write webhookSpec.tokenIn: Body \
         for a token in the body, or remove apiToken",
    )
}

fn header_needs_token() -> Rule {
    rule_over(
        &["type", "apiToken", "webhookSpec.headerName"],
        "self.type != 'Webhook' || has(self.apiToken) || !has(self.webhookSpec) \
         || !has(self.webhookSpec.headerName) || self.webhookSpec.headerName == ''",
        "webhookSpec.headerName carries apiToken: add apiToken: {secretName: NAME, key: KEY}, or remove headerName (a header \
         that is not secret goes into webhookSpec.headers)",
    )
}

fn token_in_body_needs_token() -> Rule {
    rule_over(
        &["type", "apiToken", "webhookSpec.tokenIn"],
        "self.type != 'Webhook' || has(self.apiToken) || !has(self.webhookSpec) \
         || !has(self.webhookSpec.tokenIn) || self.webhookSpec.tokenIn != 'Body'",
        "webhookSpec.tokenIn: Body needs a token: add apiToken: {secretName: NAME, key: KEY}, or remove tokenIn",
    )
}

impl WebhookSpec {
    /// Returns whether the token goes into the body.
    pub fn has_token_in_body(&self) -> bool {
        self.token_in.as_deref() == Some(TOKEN_IN_BODY)
    }
}

super::spec_size::stored_spec!(ContactPointSpec);
super::kind::has_conditions!(ContactPointStatus { ready });

impl Kind for ContactPoint {
    const NAMES: &'static MetadataNames = &NAMES;
    const ANNOTATIONS: &'static [&'static str] = &[TEST_AT];

    fn readiness(&self) -> ReadinessSummary<'_> {
        match &self.status {
            // The original program wrote no conditions.
            Some(status) if status.ready && status.conditions.is_empty() => {
                (Readiness::True, READY)
            }
            status => readiness(self.metadata.generation, status.as_ref()),
        }
    }
}
