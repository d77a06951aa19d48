//! Fields that are Kubernetes' own and are passed on to a Pod.

use std::borrow::Cow;
use std::marker::PhantomData;

use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The longest string in such a field, in characters: Linux takes no longer argument or entry of the environment
/// (`MAX_ARG_STRLEN`).
const LONGEST: u32 = 131_072;

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
        RecursiveTransform(bound).transform(&mut schema);
        schema
    }
}

/// Kubernetes' own strings have no bounds in their schemas.
fn bound(schema: &mut Schema) {
    if schema.get("type").is_some_and(|type_| type_ == "string") && schema.get("maxLength").is_none() {
        schema.insert("maxLength".into(), LONGEST.into());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use k8s_openapi::api::core::v1::Probe;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_kubernetes_type_cannot_hold_is_kept_and_told() {
        let written = json!({ "httpGet": { "port": 5_000_000_000_i64 }, "tomorrow": true });
        let probe: AsWritten<Probe> = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(serde_json::to_value(&probe).unwrap(), written);
        let words = probe.read().unwrap_err();
        assert!(words.contains("5000000000"), "{words}");
        let probe: AsWritten<Probe> = serde_json::from_value(json!({ "periodSeconds": 3 })).unwrap();
        assert_eq!(probe.read().unwrap(), Probe { period_seconds: Some(3), ..Probe::default() });
    }
}
