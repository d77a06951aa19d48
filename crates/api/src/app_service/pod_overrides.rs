//! Changes of the Pod template, which the operator merges over the generated one.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec, Volume};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use qm_core::nearest::nearest;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_ignored::Path;
use serde_json::Value;
use serde_json::value::RawValue;

/// Path of the field.
pub const PATH: &str = "spec.podOverrides";
/// Maximum size in bytes of compact JSON. No CEL rule can measure an object without a schema.
pub const MAX_BYTES: usize = 64 * 1024;
/// Maximum number of JSON objects. A decoded container or Volume takes hundreds of times the memory of its text `{}`.
pub const MAX_OBJECTS: usize = 1000;
/// Maximum size of the message about an invalid value, which may quote that value.
const MAX_ERROR: usize = 1024;
/// Fields of a Pod that a PodTemplateSpec and a PodSpec lack.
const OF_A_POD: [&str; 3] = ["apiVersion", "kind", "status"];
/// Version of the PodTemplateSpec.
const VERSION: &str = "1.33";

/// Valid JSON of a PodTemplateSpec, or the error of an invalid stored value. The schema leaves the value open,
/// because the whole schema of a Pod does not fit into the annotation of `kubectl apply`. An invalid value is not kept,
/// and must not make the AppService unreadable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodOverrides(Result<Box<str>, Box<str>>);

impl PodOverrides {
    /// Decodes the PodTemplateSpec.
    ///
    /// # Errors
    /// If the stored value is not a valid PodTemplateSpec: the path, the problem and what to write.
    pub fn template(&self) -> Result<PodTemplateSpec, String> {
        decode(self.0.as_ref().map_err(ToString::to_string)?)
    }
}

impl<'de> Deserialize<'de> for PodOverrides {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text: Box<str> = Box::<RawValue>::deserialize(deserializer)?.into();
        Ok(Self(match decode(&text) {
            Ok(_) => Ok(text),
            Err(mut error) => {
                error.truncate(error.floor_char_boundary(MAX_ERROR));
                Err(error.into())
            }
        }))
    }
}

/// An invalid value is written as `{}`.
impl Serialize for PodOverrides {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text = self.0.as_deref().unwrap_or("{}");
        let value: &RawValue = serde_json::from_str(text).map_err(serde::ser::Error::custom)?;
        value.serialize(serializer)
    }
}

impl JsonSchema for PodOverrides {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "PodOverrides".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
    }
}

fn decode(text: &str) -> Result<PodTemplateSpec, String> {
    if text.len() > MAX_BYTES {
        return Err(format!(
            "{PATH} is {} bytes of JSON; the operator reads at most {MAX_BYTES}. Shorten it, for example by moving long texts \
             into a ConfigMap",
            text.len()
        ));
    }
    // Errors from a `Value` have no line and column, which would refer to a text that the user never sees.
    let value: Value = serde_json::from_str(text).map_err(|error| format!("{PATH}: {error}"))?;
    let objects = count_objects(&value);
    if objects > MAX_OBJECTS {
        return Err(format!(
            "{PATH} has {objects} JSON objects; the operator reads at most {MAX_OBJECTS}. Write fewer containers, volumes or \
             variables, for example with envFrom"
        ));
    }
    let mut unknown = None;
    let mut track = serde_path_to_error::Track::new();
    let decoded = serde_ignored::deserialize(
        serde_path_to_error::Deserializer::new(value, &mut track),
        |path| {
            unknown.get_or_insert_with(|| unknown_field(&path));
        },
    );
    let template = decoded.map_err(|error| match track.path().to_string().as_str() {
        "." => format!("{PATH}: {error}"),
        path => format!("{PATH}.{path}: {error}"),
    })?;
    unknown.map_or(Ok(template), Err)
}

fn count_objects(value: &Value) -> usize {
    match value {
        Value::Object(fields) => 1 + fields.values().map(count_objects).sum::<usize>(),
        Value::Array(items) => items.iter().map(count_objects).sum(),
        _ => 0,
    }
}

fn unknown_field(path: &Path<'_>) -> String {
    let mut text = PATH.to_owned();
    push(&mut text, path);
    let unknown = format!("{text}: unknown field");
    let Path::Map { parent, key } = path else {
        return unknown;
    };
    let mut parent_text = String::new();
    push(&mut parent_text, parent);
    if !parent_text.is_empty() {
        return match nearest(key, known_fields(&parent_text).iter().copied()) {
            Some(name) => format!("{unknown}: write {name}"),
            None => format!(
                "{unknown}: write a field that a PodTemplateSpec of Kubernetes {VERSION} has"
            ),
        };
    }
    let own = ["metadata", "spec"];
    let names = fields_of::<PodSpec>().iter().copied().chain(own);
    let similar = nearest(key, names).filter(|_| !OF_A_POD.contains(&key.as_str()));
    match similar {
        Some(name) if own.contains(&name) => format!("{unknown}: write {name}"),
        Some(name) => format!(
            "{unknown}: a PodTemplateSpec has metadata and spec, so write it as {PATH}.spec.{name}"
        ),
        None => format!("{text}: remove it: a PodTemplateSpec has only metadata and spec"),
    }
}

/// Returns the names of the fields at a path of a PodTemplateSpec; none for a path where typos are rare.
fn known_fields(path: &str) -> &'static [&'static str] {
    let without_indexes: String = path.split(['[', ']']).step_by(2).collect();
    match without_indexes.trim_start_matches('.') {
        "metadata" => fields_of::<ObjectMeta>(),
        "spec" => fields_of::<PodSpec>(),
        "spec.volumes" => fields_of::<Volume>(),
        "spec.containers" | "spec.initContainers" => fields_of::<Container>(),
        _ => &[],
    }
}

/// Returns the names of the fields of a struct.
fn fields_of<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut names: &[_] = &[];
    // The deserializer has no value, so an error is certain.
    let _ = T::deserialize(FieldNames(&mut names));
    names
}

/// A deserializer that only records the names of a struct's fields.
struct FieldNames<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for FieldNames<'_> {
    type Error = serde::de::value::Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(serde::de::Error::custom("there is no value"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

/// Appends a path, as error messages of the apiserver write it.
fn push(text: &mut String, path: &Path<'_>) {
    match path {
        Path::Root => {}
        Path::Seq { parent, index } => {
            push(text, parent);
            text.extend(["[", &index.to_string(), "]"]);
        }
        Path::Map { parent, key } => {
            push(text, parent);
            text.push('.');
            text.push_str(key);
        }
        Path::Some { parent }
        | Path::NewtypeStruct { parent }
        | Path::NewtypeVariant { parent } => push(text, parent),
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::needless_pass_by_value
    )]

    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn overrides(value: &Value) -> PodOverrides {
        let by_value: PodOverrides = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(by_value, serde_json::from_str(&value.to_string()).unwrap());
        by_value
    }

    fn error(value: Value) -> String {
        let invalid = overrides(&value);
        assert_eq!(serde_json::to_value(&invalid).unwrap(), json!({}));
        assert!(format!("{invalid:?}").len() < 2 * MAX_ERROR);
        invalid.template().unwrap_err()
    }

    #[test]
    fn valid_value_is_kept() {
        let value = json!({
            "metadata": { "labels": { "a": "b" }, "creationTimestamp": null },
            "spec": {
                "containers": [{ "name": "web", "resources": { "limits": { "cpu": 1 } }, "ports": [{ "containerPort": 80 }] }],
                "volumes": [{ "name": "cache", "emptyDir": {} }],
            },
        });
        let valid = overrides(&value);
        assert_eq!(serde_json::to_value(&valid).unwrap(), value);
        let spec = valid.template().unwrap().spec.unwrap();
        assert_eq!(spec.containers[0].name, "web");
        assert!(spec.volumes.unwrap()[0].empty_dir.is_some());
        assert_eq!(
            overrides(&json!({})).template().unwrap(),
            PodTemplateSpec::default()
        );
    }

    #[rstest]
    #[case::typo(json!({ "spec": { "contaienrs": [] } }), "spec.podOverrides.spec.contaienrs: unknown field: write containers")]
    #[case::typo_in_a_list(json!({ "spec": { "containers": [{ "name": "a" }, { "name": "b", "volumeMount": 1 }] } }), "spec.podOverrides.spec.containers[1].volumeMount: unknown field: write volumeMounts")]
    #[case::case(json!({ "spec": { "containers": [{ "name": "a", "imagePullpolicy": "Always" }] } }), "spec.podOverrides.spec.containers[0].imagePullpolicy: unknown field: write imagePullPolicy")]
    #[case::other(json!({ "spec": { "xyz": 1 } }), "spec.podOverrides.spec.xyz: unknown field: write a field that a PodTemplateSpec of Kubernetes 1.33 has")]
    #[case::typo_at_the_top(json!({ "container": [] }), "spec.podOverrides.container: unknown field: a PodTemplateSpec has metadata and spec, so write it as spec.podOverrides.spec.containers")]
    #[case::pod_spec(json!({ "containers": [] }), "spec.podOverrides.containers: unknown field: a PodTemplateSpec has metadata and spec, so write it as spec.podOverrides.spec.containers")]
    #[case::metadata(json!({ "metdata": {} }), "spec.podOverrides.metdata: unknown field: write metadata")]
    #[case::nothing_similar(json!({ "xyz": {} }), "spec.podOverrides.xyz: remove it: ")]
    #[case::status(json!({ "status": {} }), "spec.podOverrides.status: remove it: a PodTemplateSpec has only metadata and spec")]
    #[case::kind(json!({ "kind": "Pod", "spec": {} }), "spec.podOverrides.kind: remove it: ")]
    #[case::type_(json!({ "spec": { "containers": [{ "name": "a", "env": "B=c" }] } }), "spec.podOverrides.spec.containers[0].env: invalid type: string \"B=c\", expected")]
    #[case::number(json!({ "spec": { "terminationGracePeriodSeconds": "30" } }), "spec.podOverrides.spec.terminationGracePeriodSeconds: invalid type: string \"30\", expected i64")]
    #[case::port(json!({ "spec": { "containers": [{ "ports": [{ "containerPort": 5_000_000_000_i64 }] }] } }), "spec.podOverrides.spec.containers[0].ports[0].containerPort: invalid value")]
    #[case::list(json!([]), "spec.podOverrides: invalid type: sequence")]
    fn invalid_value_is_reported_with_its_path(#[case] value: Value, #[case] expected: &str) {
        let message = error(value);
        assert!(message.starts_with(expected), "{message}");
    }

    #[test]
    fn value_of_64_kib_is_kept_and_a_larger_one_is_not() {
        let sized = |bytes: usize| {
            let empty = json!({ "metadata": { "annotations": { "a": "" } } })
                .to_string()
                .len();
            json!({ "metadata": { "annotations": { "a": "x".repeat(bytes - empty) } } })
        };
        assert!(overrides(&sized(MAX_BYTES)).template().is_ok());
        let message = error(sized(MAX_BYTES + 1));
        assert!(
            message.starts_with(
                "spec.podOverrides is 65537 bytes of JSON; the operator reads at most 65536"
            ),
            "{message}"
        );
    }

    /// The limit in bytes alone would allow twenty times as many.
    #[test]
    fn decoded_objects_take_a_few_mebibytes_at_most() {
        use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Volume};
        let largest = [
            size_of::<Container>(),
            size_of::<EphemeralContainer>(),
            size_of::<Volume>(),
        ];
        let largest = largest.into_iter().max().unwrap();
        assert!(largest * MAX_OBJECTS < 4 << 20, "{largest}");
    }

    #[test]
    fn value_of_1000_objects_is_kept_and_one_of_more_is_not() {
        let with = |objects: usize| json!({ "spec": { "volumes": vec![json!({}); objects - 2] } });
        assert!(overrides(&with(MAX_OBJECTS)).template().is_ok());
        let message = error(with(MAX_OBJECTS + 1));
        assert!(
            message.starts_with(
                "spec.podOverrides has 1001 JSON objects; the operator reads at most 1000"
            ),
            "{message}"
        );
    }

    /// Each app without overrides has the field too.
    #[test]
    fn absent_overrides_take_one_pointer() {
        assert_eq!(size_of::<Option<Box<PodOverrides>>>(), size_of::<usize>());
    }

    #[test]
    fn error_that_quotes_a_long_value_is_truncated() {
        let message = error(json!({ "spec": { "hostNetwork": "é".repeat(10_000) } }));
        assert!(message.len() <= MAX_ERROR, "{}", message.len());
        let message = error(json!({ "spec": { "é".repeat(10_000): 1 } }));
        assert!(
            message.starts_with("spec.podOverrides.spec.éé"),
            "{message}"
        );
    }

    /// The client truncates what nests deeper.
    #[test]
    fn deeply_nested_value_is_an_unknown_field() {
        let mut value = json!({});
        for _ in 0..100 {
            value = json!({ "a": value });
        }
        let message = error(json!({ "spec": value }));
        assert!(
            message.starts_with("spec.podOverrides.spec.a: unknown field"),
            "{message}"
        );
    }
}
