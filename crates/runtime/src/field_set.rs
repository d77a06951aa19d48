//! Sets of fields in an entry of `managedFields` (`FieldsV1`).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde_json::Value;

/// Returns the set of fields of an entry.
pub(super) fn fields(entry: &ManagedFieldsEntry) -> &Value {
    entry
        .fields_v1
        .as_ref()
        .map_or(&Value::Null, |fields| &fields.0)
}

/// Returns whether `element`, `k:{KEYS}` or `v:VALUE`, identifies this list item.
pub(super) fn is_element(element: &str, item: &Value) -> bool {
    let parsed = |text: &str| serde_json::from_str::<Value>(text).unwrap_or_default();
    if let Some(value) = element.strip_prefix("v:") {
        return parsed(value) == *item;
    }
    let Some(Value::Object(keys)) = element.strip_prefix("k:").map(parsed) else {
        return false;
    };
    // Among the keys of the lists in Kubernetes' API, only the protocol has a default.
    keys.iter()
        .all(|(name, value)| item.get(name).map_or(value == "TCP", |item| item == value))
}

/// Returns the part of a set at a path.
pub(super) fn find<'a>(set: &'a Value, path: &[impl AsRef<str>]) -> Option<&'a Value> {
    path.iter()
        .try_fold(set, |set, name| set.get(name.as_ref()))
}

/// Returns whether an entry may cover fields other than the status.
pub(super) fn covers_content(entry: &ManagedFieldsEntry) -> bool {
    entry.subresource.as_deref() != Some("status")
}
