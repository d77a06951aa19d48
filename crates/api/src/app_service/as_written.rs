//! Fields that are Kubernetes' own and are passed on to a Pod.

use std::borrow::Cow;
use std::marker::PhantomData;

use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::bounds;

/// Longest name or key, in characters (RFC 1123).
const NAME: u32 = 253;
/// Longest path, in characters: of a URL, or of a field.
const PATH: u32 = 1024;

/// A `T` of Kubernetes, with its schema, kept as it was written: a value that the schema lets in and `T` does not hold, such
/// as a port beyond 32 bits, must not make the whole object unreadable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AsWritten<T> {
    value: Value,
    #[serde(skip)]
    of: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> AsWritten<T> {
    /// What was written, read.
    ///
    /// # Errors
    /// In words: it is no `T`.
    pub fn read(&self) -> Result<T, String> {
        T::deserialize(&self.value).map_err(|error| error.to_string())
    }
}

impl<T: JsonSchema> JsonSchema for AsWritten<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = T::json_schema(generator);
        RecursiveTransform(bound_children).transform(&mut schema);
        schema
    }
}

/// Bounds what Kubernetes' own schemas leave unbounded: strings by the name of their field, lists by the most entries that
/// are of use. Adds the rules over what Kubernetes' own validation refuses.
fn bound_children(schema: &mut Schema) {
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else {
        return;
    };
    for (name, property) in &mut *properties {
        let longest = match name.as_str() {
            "value" => bounds::MAX_TEXT,
            "path" | "fieldPath" => PATH,
            _ => NAME,
        };
        match property["type"].as_str() {
            Some("string") => put(property, "maxLength", longest),
            Some("array") => {
                put(property, "maxItems", bounds::MAX_PARTS);
                let item = &mut property["items"];
                if item["type"] == "string" {
                    put(item, "maxLength", bounds::MAX_TEXT);
                }
            }
            _ if property["x-kubernetes-int-or-string"] == true => put(property, "maxLength", NAME),
            _ => {}
        }
        if let Some(rule) = bounds::of_part(name) {
            property["x-kubernetes-validations"] = rule;
        }
    }
    if let Some(source) = properties.get_mut("valueFrom") {
        source["x-kubernetes-validations"] = json!([bounds::one_source()]);
        if let Some(name) = properties.get_mut("name") {
            name["x-kubernetes-validations"] = json!([bounds::env_name()]);
        }
        schema.insert(
            "x-kubernetes-validations".into(),
            json!([bounds::one_value()]),
        );
    }
}

/// Sets a bound that is not there.
fn put(schema: &mut Value, bound: &str, limit: u32) {
    if let Some(schema) = schema.as_object_mut() {
        schema.entry(bound).or_insert_with(|| limit.into());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use k8s_openapi::api::core::v1::Probe;

    use super::*;

    #[test]
    fn what_kubernetes_type_cannot_hold_is_kept_and_told() {
        let written = json!({ "httpGet": { "port": 5_000_000_000_i64 }, "tomorrow": true });
        let probe: AsWritten<Probe> = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(serde_json::to_value(&probe).unwrap(), written);
        let words = probe.read().unwrap_err();
        assert!(words.contains("5000000000"), "{words}");
        let probe: AsWritten<Probe> =
            serde_json::from_value(json!({ "periodSeconds": 3 })).unwrap();
        assert_eq!(
            probe.read().unwrap(),
            Probe {
                period_seconds: Some(3),
                ..Probe::default()
            }
        );
    }
}
