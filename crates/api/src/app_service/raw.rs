//! Fields of Kubernetes types that the operator passes on to a Pod.

use std::borrow::Cow;
use std::marker::PhantomData;

use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Value, json};

use super::bounds;

/// Maximum length of a name or key in characters (RFC 1123).
const NAME: u32 = 253;
/// Maximum length of the path of a URL or a field, in characters.
const PATH: u32 = 1024;

/// JSON of a Kubernetes type `T`, with the schema of `T`. Some values pass the schema but not `T`, such as a port beyond 32 bits:
/// they must not make the whole object unreadable.
///
/// Caches hold the text: decoded, an environment variable takes ten times as much memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Raw<T> {
    text: Box<str>,
    kind: PhantomData<fn() -> T>,
}

impl<T: DeserializeOwned> Raw<T> {
    /// Parses the JSON.
    ///
    /// # Errors
    /// If the JSON is not a valid `T`: the parser's message.
    pub fn parse(&self) -> Result<T, String> {
        // Errors from a `Value` have no line and column, which would refer to a text that the user never sees.
        let value: Value = serde_json::from_str(&self.text).map_err(|error| error.to_string())?;
        T::deserialize(value).map_err(|error| error.to_string())
    }
}

impl<'de, T> Deserialize<'de> for Raw<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self {
            text: Value::deserialize(deserializer)?.to_string().into(),
            kind: PhantomData,
        })
    }
}

impl<T> Serialize for Raw<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let value: Value = serde_json::from_str(&self.text).map_err(serde::ser::Error::custom)?;
        value.serialize(serializer)
    }
}

impl<T: JsonSchema> JsonSchema for Raw<T> {
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

/// Adds the bounds that the schemas of Kubernetes types lack: on strings by the name of their field, and on lists. Adds rules for
/// the validation that Kubernetes does in code.
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
            Some("string") => set_default(property, "maxLength", longest),
            Some("array") => {
                set_default(property, "maxItems", bounds::MAX_PROBE_ITEMS);
                let item = &mut property["items"];
                if item["type"] == "string" {
                    set_default(item, "maxLength", bounds::MAX_TEXT);
                }
            }
            _ if property["x-kubernetes-int-or-string"] == true => {
                set_default(property, "maxLength", NAME);
            }
            _ => {}
        }
        if let Some(rule) = bounds::for_probe_list(name) {
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

/// Sets a bound unless the schema has one.
fn set_default(schema: &mut Value, bound: &str, limit: u32) {
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
    fn value_that_the_type_rejects_is_kept_and_reported() {
        let json = json!({ "httpGet": { "port": 5_000_000_000_i64 }, "tomorrow": true });
        let probe: Raw<Probe> = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(serde_json::to_value(&probe).unwrap(), json);
        let message = probe.parse().unwrap_err();
        assert!(message.contains("5000000000"), "{message}");
        let probe: Raw<Probe> = serde_json::from_value(json!({ "periodSeconds": 3 })).unwrap();
        assert_eq!(
            probe.parse().unwrap(),
            Probe {
                period_seconds: Some(3),
                ..Probe::default()
            }
        );
    }
}
