//! From the schema that is derived from the Rust types to the one that an apiserver is given.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
    ValidationRule,
};
use sha2::{Digest, Sha256};

use crate::names::MetadataNames;

/// What tells one schema of a CRD from another, and an older one from a newer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaVersion {
    /// Grows with each change.
    pub number: usize,
    /// Of the schema.
    pub digest: String,
}

impl SchemaVersion {
    /// The mark of a finished CRD, whose schema has that number.
    pub fn of(crd: &CustomResourceDefinition, number: usize) -> Self {
        Self {
            number,
            digest: digest(crd),
        }
    }

    /// Returns whether the program has no schemas, so that it works with any.
    pub fn is_any(&self) -> bool {
        self.number == 0
    }

    /// Whether a program of the schema `ours` can work under a CRD of this one: the same, or a newer one, which keeps all
    /// that older ones had. A replica of the version before goes on while an upgrade is rolled out.
    pub fn is_compatible_with(&self, ours: &Self) -> bool {
        self.number > ours.number || self == ours
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

/// Finishes a derived CRD and annotates it with its schema, which has this number.
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
            // A status that is a list has no Rust struct whose words it could take.
            if let Some(status) = schema.properties.as_mut().and_then(|p| p.get_mut("status")) {
                status
                    .description
                    .get_or_insert_with(|| "Entries, oldest first.".into());
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
                    .push(spec_stays());
            }
        }
    }
    let mark = SchemaVersion::of(&crd, number);
    crd.metadata
        .annotations
        .get_or_insert_default()
        .insert(names.schema.into(), mark.to_string());
    crd
}

/// The digest of what a CRD lets in and keeps: 16 hexadecimal digits, the same for all wordings of its descriptions.
fn digest(crd: &CustomResourceDefinition) -> String {
    let mut hash = Sha256::new();
    for version in &crd.spec.versions {
        let mut schema = version
            .schema
            .as_ref()
            .and_then(|s| s.open_api_v3_schema.clone())
            .unwrap_or_default();
        visit(&mut schema, &mut |schema| schema.description = None);
        // Maps with string keys and no custom serializer: this cannot fail.
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

/// Of a kind whose original CRD let an object without a spec in: such an object can still be given a label or a status. One that
/// has a spec keeps it, or what cannot be changed in it could be taken out and written anew.
fn spec_stays() -> ValidationRule {
    ValidationRule {
        rule: "has(self.spec) || (oldSelf.hasValue() && !has(oldSelf.value().spec))".into(),
        message: Some("write a spec: kubectl explain says what it takes".into()),
        optional_old_self: Some(true),
        ..ValidationRule::default()
    }
}

fn finish_node(schema: &mut JSONSchemaProps) {
    // A default would be written into the users' objects.
    schema.default = None;
    // The apiserver drops a null where the field is not nullable: null is then absent, to rules and to us.
    schema.nullable = None;
    // Formats that Kubernetes does not know (it warns of them); the bounds stay.
    if matches!(
        schema.format.as_deref(),
        Some("uint8" | "uint16" | "uint32" | "uint64" | "uint")
    ) {
        schema.format = Some("int64".into());
    }
    if schema.type_.as_deref() == Some("array") && schema.x_kubernetes_list_type.is_none() {
        schema.x_kubernetes_list_type = Some("atomic".into());
    }
    // Rust's line breaks are no paragraphs.
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
    fn the_digest_is_of_the_schema_not_of_its_wording() {
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
            change(&mut |node| node.description = Some("other words".into())),
            digest(&crd)
        );
        assert_ne!(
            change(&mut |node| node.max_length = node.max_length.map(|n| n + 1)),
            digest(&crd)
        );
    }
}
