//! What the status of a `TrackedField` holds.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The status of a `TrackedField`: its history, oldest first. Entries that are `Pending` are its outbox.
pub type History = Vec<Entry>;

/// A history as it is cached: its JSON, in one piece of memory. Thousands are cached, and written anew with each change:
/// in the hundreds of pieces that a [`History`] is made of they would leave as much again unusable between them.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredHistory(Box<str>);

impl Default for StoredHistory {
    fn default() -> Self {
        Self("[]".into())
    }
}

impl TryFrom<&[Entry]> for StoredHistory {
    type Error = serde_json::Error;

    fn try_from(history: &[Entry]) -> Result<Self, Self::Error> {
        serde_json::to_string(history).map(|json| Self(json.into()))
    }
}

impl StoredHistory {
    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        &*self.0 == "[]"
    }

    /// Returns the entries.
    pub(super) fn parse(&self) -> serde_json::Result<History> {
        serde_json::from_str(&self.0)
    }
}

impl Serialize for StoredHistory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::from_str::<History>(&self.0)
            .map_err(S::Error::custom)?
            .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for StoredHistory {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let history = History::deserialize(deserializer)?;
        Self::try_from(&*history).map_err(D::Error::custom)
    }
}

impl JsonSchema for StoredHistory {
    fn inline_schema() -> bool {
        History::inline_schema()
    }

    fn schema_name() -> Cow<'static, str> {
        History::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        History::json_schema(generator)
    }
}

/// One change of the field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// When the operator saw it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// What happened to the resource.
    pub action: Action,
    /// The value, up to 1,024 bytes of it. Absent when the resource is deleted or the field is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Of the last entry: what `kubectl get` prints in place of a `value` of more than 40 characters. Empty once the spec
    /// tracks another target or field than the entry's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_value: Option<String>,
    /// The resource has no such field: not the same as an empty or false one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub missing: bool,
    /// Of a truncated value: its whole length and digest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Truncation>,
    /// Unique; receivers can tell a repeated entry by it. Absent on what the original program wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// How far its message got. Absent counts as delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Delivery>,
    /// Why delivery failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What it speaks of, as `KIND/NAMESPACE/NAME/FIELD`: the spec may have changed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Subject>,
    /// UID of the resource: one that was deleted and made again has another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Version of the resource that showed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// How many changes this entry stands for, when the outbox was full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merged: Option<u64>,
    /// Of a merged entry: the first of its values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_value: Option<String>,
    /// Since when the entry is suspended, because its `TrackedField` or its `ContactPoint` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_since: Option<Time>,
    /// Seconds for which the entry was suspended before; they do not count towards its 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_seconds: Option<u64>,
}

impl Entry {
    /// Its message waits to be sent.
    pub fn is_pending(&self) -> bool {
        self.delivery == Some(Delivery::Pending)
    }

    /// How many changes it stands for.
    pub fn changes(&self) -> u64 {
        self.merged.unwrap_or(1)
    }
}

/// What happened to the resource.
///
/// The original CRD took any word here; one that nobody knows is read as an update, so that it does not stop the watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Action {
    /// The resource, or this history of it, is new.
    Created,
    /// The resource is gone.
    Deleted,
    /// The field has another value.
    #[serde(other)]
    Updated,
}

impl Action {
    /// As it is written in an entry and in a message.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "Created",
            Self::Updated => "Updated",
            Self::Deleted => "Deleted",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How far an entry's message got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Delivery {
    /// Waits to be sent, or to be sent again.
    Pending,
    /// The receiver took it.
    Delivered,
    /// Given up: see the entry's `reason`.
    Failed,
}

impl Delivery {
    /// As it is written in an entry.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Delivered => "Delivered",
            Self::Failed => "Failed",
        }
    }
}

/// Length and digest of a truncated value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Truncation {
    /// Length of the whole value in bytes.
    pub length: u64,
    /// SHA-256 of the whole value, in hexadecimal.
    pub sha256: String,
}

/// What an entry speaks of, written `KIND/NAMESPACE/NAME/FIELD` (the first three hold no slash); `KIND.GROUP` for a kind
/// outside of the groups core and apps.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Subject(pub(super) String);

impl Subject {
    /// As it is written in an entry.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn part(&self, index: usize) -> &str {
        self.0.splitn(4, '/').nth(index).unwrap_or_default()
    }

    /// The resource's kind.
    pub fn kind(&self) -> &str {
        self.part(0).split('.').next().unwrap_or_default()
    }

    /// The resource's namespace; empty for a cluster-scoped one.
    pub fn namespace(&self) -> &str {
        self.part(1)
    }

    /// The resource's name.
    pub fn name(&self) -> &str {
        self.part(2)
    }

    /// The field, as the spec gives it.
    pub fn field(&self) -> &str {
        self.part(3)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JsonSchema for Subject {
    fn schema_name() -> Cow<'static, str> {
        "Subject".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        schemars::json_schema!({ "type": "string" })
    }
}
