//! `ContactPoint`: where messages go.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use super::common::{Conditions, SecretKey, conditions_schema};

/// The `type` of a contact point that is a Telegram chat.
pub const TELEGRAM: &str = "Telegram";
/// The `type` of a contact point that is an HTTP endpoint.
pub const WEBHOOK: &str = "Webhook";

/// A place that messages are sent to: a Telegram chat or a webhook.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "tg.azamaton.ru",
    version = "v1",
    kind = "ContactPoint",
    plural = "contactpoints",
    shortname = "cp",
    category = "quartermaster",
    namespaced,
    status = "ContactPointStatus",
    derive = "PartialEq",
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
#[serde(rename_all = "camelCase")]
pub struct ContactPointSpec {
    /// `Telegram` or `Webhook`.
    #[serde(default, rename = "type")]
    pub type_: String,
    /// The bot token (Telegram), or the value of header `webhookSpec.headerName` (Webhook).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_token: Option<SecretKey>,
    /// The chat, for `type: Telegram`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telegram_spec: Option<TelegramSpec>,
    /// The endpoint, for `type: Webhook`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook_spec: Option<WebhookSpec>,
    /// While true nothing is sent; messages wait, and that time does not count towards their 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
}

/// A chat of the Telegram Bot API (<https://core.telegram.org/bots/api#sendmessage>).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TelegramSpec {
    /// Unique identifier of the chat (int64; a supergroup's starts with -100), or `@channel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chat_id: Option<ChatId>,
    /// The topic of a forum supergroup.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_thread_id: Option<i64>,
    /// Sends without a sound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disable_notification: Option<bool>,
}

/// An HTTP endpoint that takes a POST for each message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookSpec {
    /// Where to POST: http or https, without credentials in it. Give this or `urlFrom`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub url: String,
    /// Where to POST, when the URL itself is the secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url_from: Option<SecretKey>,
    /// The header that carries `apiToken`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub header_name: String,
    /// Further headers, sent as they stand. Not for secrets: anybody who may read this object reads them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// A Jinja template of the body, in place of the CloudEvent's JSON data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
    /// Content-Type of `body`; `application/json` unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    /// Signs each request as Standard Webhooks has it (HMAC-SHA256), with this key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signing_key: Option<SecretKey>,
    /// Seconds that one attempt may take, 1 to 30; 10 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i64>,
    /// TLS to this endpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<WebhookTls>,
}

/// TLS material for a webhook.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WebhookTls {
    /// A Secret with `ca.crt` (trusted in place of the system's authorities), or `tls.crt` and `tls.key` (shown to the
    /// endpoint), or all three.
    pub secret_name: String,
}

/// A Telegram chat: a number or `@channel`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ChatId {
    /// A chat's number; groups are negative.
    Id(i64),
    /// A public channel or group, as `@name`.
    Name(String),
}

impl JsonSchema for ChatId {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ChatId".into()
    }

    /// k8s-openapi's `IntOrString` holds 32 bits, which a supergroup's number does not fit.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "x-kubernetes-int-or-string": true })
    }
}

/// What is known of a contact point.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContactPointStatus {
    /// True after the first attempt to send, whatever came of it.
    #[serde(default)]
    pub initialized: bool,
    /// True when messages can be sent.
    #[serde(default)]
    pub ready: bool,
    /// The generation that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What the last test message was sent with: another one is sent when this changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tested: Option<Tested>,
    /// The supergroup that Telegram says this group became (`migrate_to_chat_id`); messages go there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrated_to_chat_id: Option<i64>,
    /// Type `Ready`, with the reason why not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Conditions,
}

/// What a test message was sent with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tested {
    /// Digest of the spec without `suspend`.
    pub spec: String,
    /// UID and resourceVersion of each Secret that was read, as `UID/RESOURCEVERSION`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
}
