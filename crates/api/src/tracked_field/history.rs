//! Status of a TrackedField: its history.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::KubeSchema;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Maximum size of a stored and sent value, in bytes of UTF-8.
pub const KEPT_BYTES: usize = 1024;

/// History of a TrackedField, oldest entry first. The `Pending` entries are its outbox.
pub type History = Vec<Entry>;

/// Cached history, as JSON in one allocation. The operator caches thousands and replaces each on every change: the hundreds of
/// allocations of a [`History`] would double the memory by fragmentation.
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
    /// Returns whether the history has no entries.
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

/// Change of the field.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Time at which the operator observed the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// Change of the resource: `Created` (the resource or this series is new), `Updated` or `Deleted`.
    pub action: ChangeAction,
    /// Value of the field, truncated to 1024 bytes. Absent if the resource is deleted or the field is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Text that `kubectl get` prints in place of a `value` of more than 40 characters; on the last entry only. Empty after
    /// the spec changes to another target or field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_value: Option<String>,
    /// Absence of the field: true if the resource has no such field, which differs from an empty or false value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub missing: bool,
    /// Length and digest of the whole value. Absent unless `value` is truncated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Truncation>,
    /// Unique ID, by which receivers can detect a repeated entry. Absent on entries that Quartermaster did not write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// State of delivery: `Pending`, `Delivered` or `Failed`. Absent counts as delivered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Delivery>,
    /// Why no message is sent for the entry, which then has no `delivery`: `When` (`spec.when` was false) or `Initial`
    /// (`spec.initial` is `Quiet`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Skipped>,
    /// Reason why delivery failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Target and field of the entry, as `KIND/NAMESPACE/NAME/FIELD` (`KIND.GROUP` outside of the core group and apps). The spec may
    /// have changed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subject: Option<Subject>,
    /// UID of the resource. A recreated resource has another UID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
    /// Resource version at which the operator observed the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resource_version: Option<String>,
    /// Values of `spec.context` in the version of the resource that the entry records, each truncated to 256 bytes. Empty if
    /// the resource has no such field. A `Deleted` entry has those of the entry before.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub context: BTreeMap<String, String>,
    /// Last writer of the value, by the resource's `managedFields`. Absent if unknown, for example for a field that was
    /// removed. A program chooses this name itself, so the name proves nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub changed_by: Option<Box<ChangedBy>>,
    /// Number of changes merged into this entry because too many entries waited. Absent for a single change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub merged: Option<u64>,
    /// First value of a merged entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_value: Option<String>,
    /// Time at which delivery of the entry was suspended with its TrackedField or ContactPoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_since: Option<Time>,
    /// Duration of earlier suspensions in seconds, which does not count towards the expiry after 24 hours.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspended_seconds: Option<u64>,
}

impl Entry {
    /// Returns whether the entry is pending.
    pub fn is_pending(&self) -> bool {
        self.delivery == Some(Delivery::Pending)
    }

    /// Returns the number of changes in the entry.
    pub fn changes(&self) -> u64 {
        self.merged.unwrap_or(1)
    }
}

/// Change of the resource.
///
/// The original CRD accepted any word. An unknown word is read as an update, so that the object does not stop the watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ChangeAction {
    /// The resource, or its tracking, is new.
    Created,
    /// The resource is deleted.
    Deleted,
    /// The field has another value.
    #[serde(other)]
    Updated,
}

impl ChangeAction {
    /// Returns the word for entries and messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "Created",
            Self::Updated => "Updated",
            Self::Deleted => "Deleted",
        }
    }
}

impl fmt::Display for ChangeAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// State of an entry's delivery. Entries that Quartermaster did not write have none and count as delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Delivery {
    /// Waiting for an attempt.
    Pending,
    /// Accepted by the receiver.
    Delivered,
    /// Rejected or expired, for the `reason` of the entry.
    Failed,
}

impl Delivery {
    /// Returns the word for entries.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Delivered => "Delivered",
            Self::Failed => "Failed",
        }
    }
}

/// Why no message is sent for the entry, which then has no `delivery`.
// A later version may write another word, which must not stop the watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Skipped {
    /// `spec.initial` is `Quiet`, and the resource existed before.
    Initial,
    /// `spec.when` is false for the change.
    #[serde(other)]
    When,
}

impl Skipped {
    /// Returns the word for entries.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::When => "When",
            Self::Initial => "Initial",
        }
    }
}

/// Writer of a value: an entry of the resource's `managedFields`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ChangedBy {
    /// Name that the program gave itself, such as `kubectl-edit`.
    pub manager: String,
    /// Operation: `Apply` or `Update`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operation: Option<String>,
    /// Subresource of the write, such as `scale`. Absent for the resource itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subresource: Option<String>,
    /// Time of the manager's last write that changed the fields it manages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

impl fmt::Display for ChangedBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.manager)?;
        match &self.subresource {
            Some(subresource) => write!(f, " ({subresource})"),
            None => Ok(()),
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

/// Target and field of an entry, as `KIND/NAMESPACE/NAME/FIELD` (the first three contain no slash), with `KIND.GROUP` for a kind
/// outside of the groups core and apps.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Subject(pub(super) String);

impl Subject {
    /// Returns the text for entries.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn part(&self, index: usize) -> &str {
        self.0.splitn(4, '/').nth(index).unwrap_or_default()
    }

    /// Returns the kind of the resource.
    pub fn kind(&self) -> &str {
        self.part(0).split('.').next().unwrap_or_default()
    }

    /// Returns the namespace of the resource, which is empty for a cluster-scoped kind.
    pub fn namespace(&self) -> &str {
        self.part(1)
    }

    /// Returns the name of the resource.
    pub fn name(&self) -> &str {
        self.part(2)
    }

    /// Returns the field, as in the spec.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn word_of_a_later_version_is_read() {
        let entry = r#"{"action":"Renamed","skipped":"Later"}"#;
        let entry: Entry = serde_json::from_str(entry).unwrap();
        assert_eq!(
            (entry.action, entry.skipped, entry.is_pending()),
            (ChangeAction::Updated, Some(Skipped::When), false)
        );
    }
}
