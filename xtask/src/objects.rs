//! Parts that generated objects share.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

/// Returns the metadata of a cluster-scoped object.
pub fn meta(name: &str) -> ObjectMeta {
    let labels = labels([
        ("app.kubernetes.io/name", "quartermaster"),
        ("app.kubernetes.io/managed-by", "kustomize"),
    ]);
    ObjectMeta {
        name: Some(name.into()),
        labels: Some(labels),
        ..Default::default()
    }
}

/// Returns these labels.
pub fn labels<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.map(|(key, value)| (key.into(), value.into())).into()
}

/// Returns an object with the name of its file.
pub fn file(name: &str, object: &impl serde::Serialize) -> (String, Value) {
    // Plain structs with string keys: this cannot fail.
    (
        name.into(),
        serde_json::to_value(object).unwrap_or_default(),
    )
}
