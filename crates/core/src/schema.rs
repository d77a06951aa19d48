//! Conversion of the schema that is derived from the Rust types into the one that the apiserver gets.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::str::FromStr;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
    ValidationRule,
};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::names::MetadataNames;

/// Version of a CRD's schema, by which a program tells older schemas from newer ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaVersion {
    /// Number of the schema, which grows with each change.
    pub number: usize,
    /// Digest of the schema.
    pub digest: String,
}

impl SchemaVersion {
    /// Creates the version of a finished CRD whose schema has this number.
    pub fn of(crd: &CustomResourceDefinition, number: usize) -> Self {
        Self {
            number,
            digest: digest(crd),
        }
    }

    /// Returns whether the program has no schemas and works with any.
    pub fn is_any(&self) -> bool {
        self.number == 0
    }

    /// Returns whether a program with the schema `own` can work with a CRD of this version: the same, or a newer one,
    /// which keeps all earlier fields. A replica of the previous version continues during an upgrade.
    pub fn is_compatible_with(&self, own: &Self) -> bool {
        self.number > own.number || self == own
    }
}

impl fmt::Display for SchemaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.number, self.digest)
    }
}

impl FromStr for SchemaVersion {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (number, digest) = text.split_once('-').ok_or(())?;
        Ok(Self {
            number: number.parse().map_err(drop)?,
            digest: digest.into(),
        })
    }
}

/// Observed generation of an object until the operator writes a status, unless the status is a list.
pub const UNOBSERVED: i64 = -1;

/// Returns the status that an object has until the operator writes one, unless the status is a list.
pub fn unobserved_status() -> Value {
    json!({ "observedGeneration": UNOBSERVED })
}

/// Finishes a derived CRD and annotates it with the version of its schema, which has this number.
pub fn finish(
    mut crd: CustomResourceDefinition,
    number: usize,
    names: &MetadataNames,
) -> CustomResourceDefinition {
    for version in &mut crd.spec.versions {
        if let Some(schema) = version
            .schema
            .as_mut()
            .and_then(|s| s.open_api_v3_schema.as_mut())
        {
            visit(schema, &mut finish_node);
            if let Some(status) = schema.properties.as_mut().and_then(|p| p.get_mut("status")) {
                // A status that is a list has no Rust struct with a description.
                status
                    .description
                    .get_or_insert_with(|| "Entries, oldest first.".into());
                // kstatus takes an object without a status for ready, so Flux and Helm would not wait for a new object.
                let observes = |fields: &BTreeMap<String, JSONSchemaProps>| {
                    fields.contains_key("observedGeneration")
                };
                if status.properties.as_ref().is_some_and(observes) {
                    status.default = Some(JSON(unobserved_status()));
                }
            }
            if !schema
                .required
                .as_deref()
                .unwrap_or_default()
                .contains(&"spec".into())
            {
                schema
                    .x_kubernetes_validations
                    .get_or_insert_default()
                    .push(keep_spec_rule());
            }
        }
    }
    let version = SchemaVersion::of(&crd, number);
    crd.metadata
        .annotations
        .get_or_insert_default()
        .insert(names.schema.into(), version.to_string());
    crd
}

/// Returns the digest of the fields and rules of a CRD: 16 hexadecimal digits, independent of its descriptions.
fn digest(crd: &CustomResourceDefinition) -> String {
    let mut hash = Sha256::new();
    for version in &crd.spec.versions {
        let mut schema = version
            .schema
            .as_ref()
            .and_then(|s| s.open_api_v3_schema.clone())
            .unwrap_or_default();
        visit(&mut schema, &mut |schema| schema.description = None);
        // Serialization cannot fail: maps have string keys, and there is no custom serializer.
        hash.update(
            serde_json::to_vec(&(&version.name, schema, &version.subresources)).unwrap_or_default(),
        );
    }
    hash.finalize()
        .iter()
        .take(8)
        .fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        })
}

/// Returns the rule that a spec cannot be removed. Objects without a spec, which the original CRD accepted, can still
/// get a label or a status. An object with a spec keeps it, because removing and writing it again would change
/// immutable fields.
fn keep_spec_rule() -> ValidationRule {
    ValidationRule {
        rule: "has(self.spec) || (oldSelf.hasValue() && !has(oldSelf.value().spec))".into(),
        message: Some("write a spec: kubectl explain lists its fields".into()),
        optional_old_self: Some(true),
        ..ValidationRule::default()
    }
}

fn finish_node(schema: &mut JSONSchemaProps) {
    // The apiserver would write a default into the users' objects.
    schema.default = None;
    // The apiserver removes a null where the field is not nullable, so that rules and the operator read it as absent.
    schema.nullable = None;
    // Kubernetes warns about these formats, which it does not know; the schema keeps their bounds.
    if matches!(
        schema.format.as_deref(),
        Some("uint8" | "uint16" | "uint32" | "uint64" | "uint")
    ) {
        schema.format = Some("int64".into());
    }
    if schema.type_.as_deref() == Some("array") && schema.x_kubernetes_list_type.is_none() {
        schema.x_kubernetes_list_type = Some("atomic".into());
    }
    // Line breaks in Rust comments do not separate paragraphs.
    if let Some(text) = &mut schema.description {
        let paragraphs = text
            .split("\n\n")
            .map(|p| p.split_whitespace().collect::<Vec<_>>().join(" "));
        *text = paragraphs.collect::<Vec<_>>().join("\n\n");
    }
}

fn visit(schema: &mut JSONSchemaProps, act: &mut impl FnMut(&mut JSONSchemaProps)) {
    act(schema);
    for property in schema.properties.iter_mut().flat_map(|p| p.values_mut()) {
        visit(property, act);
    }
    if let Some(JSONSchemaPropsOrArray::Schema(items)) = &mut schema.items {
        visit(items, act);
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        visit(values, act);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use kube::{CustomResource, CustomResourceExt as _};
    use schemars::JsonSchema;
    use serde::{Deserialize, Serialize};

    use super::*;

    const NAMES: MetadataNames = crate::metadata_names!("example.com");

    /// A widget.
    #[derive(CustomResource, Clone, Debug, Serialize, Deserialize, JsonSchema)]
    #[kube(group = "example.com", version = "v1", kind = "Widget", namespaced)]
    struct WidgetSpec {
        /// Colour of the widget.
        #[schemars(length(max = 10))]
        colour: String,
    }

    #[test]
    fn digest_covers_the_schema_without_descriptions() {
        let crd = finish(Widget::crd(), 1, &NAMES);
        let change = |act: &mut dyn FnMut(&mut JSONSchemaProps)| {
            let mut crd = crd.clone();
            let schema = crd.spec.versions[0]
                .schema
                .as_mut()
                .unwrap()
                .open_api_v3_schema
                .as_mut()
                .unwrap();
            visit(schema, &mut |node| act(node));
            digest(&crd)
        };
        assert!(
            crd.metadata.annotations.as_ref().unwrap()[NAMES.schema]
                .ends_with(&format!("-{}", digest(&crd)))
        );
        assert_eq!(
            change(&mut |node| node.description = Some("another description".into())),
            digest(&crd)
        );
        assert_ne!(
            change(&mut |node| node.max_length = node.max_length.map(|n| n + 1)),
            digest(&crd)
        );
    }
}
