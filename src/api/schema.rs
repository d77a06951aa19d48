//! From the schema that is derived from the Rust types to the one that an apiserver is given.

use std::fmt::Write as _;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool, ValidationRule,
};
use sha2::{Digest, Sha256};

use super::common::SCHEMA;

/// Finishes a derived CRD, and gives it the annotation [`SCHEMA`].
pub fn finish(mut crd: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut crd.spec.versions {
        if let Some(schema) = version.schema.as_mut().and_then(|s| s.open_api_v3_schema.as_mut()) {
            visit(schema, &mut finish_node);
            if !schema.required.as_deref().unwrap_or_default().contains(&"spec".into()) {
                schema.x_kubernetes_validations.get_or_insert_default().push(spec_on_create());
            }
        }
    }
    let digest = digest(&crd);
    crd.metadata.annotations.get_or_insert_default().insert(SCHEMA.into(), digest);
    crd
}

/// The digest of what a CRD lets in and keeps: 16 hexadecimal digits, the same for all wordings of its descriptions.
fn digest(crd: &CustomResourceDefinition) -> String {
    let mut hash = Sha256::new();
    for version in &crd.spec.versions {
        let mut schema = version.schema.as_ref().and_then(|s| s.open_api_v3_schema.clone()).unwrap_or_default();
        visit(&mut schema, &mut |schema| schema.description = None);
        // Maps with string keys and no custom serializer: this cannot fail.
        hash.update(serde_json::to_vec(&(&version.name, schema, &version.subresources)).unwrap_or_default());
    }
    hash.finalize().iter().take(8).fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Of a kind whose original CRD let an object without a spec in. A rule at the root binds on create only, or such an object
/// could not be given a label or a status any more.
fn spec_on_create() -> ValidationRule {
    ValidationRule {
        rule: "oldSelf.hasValue() || has(self.spec)".into(),
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
    if matches!(schema.format.as_deref(), Some("uint8" | "uint16" | "uint32" | "uint64" | "uint")) {
        schema.format = Some("int64".into());
    }
    if schema.type_.as_deref() == Some("array") && schema.x_kubernetes_list_type.is_none() {
        schema.x_kubernetes_list_type = Some("atomic".into());
    }
    // Rust's line breaks are no paragraphs.
    if let Some(text) = &mut schema.description {
        let paragraphs = text.split("\n\n").map(|p| p.split_whitespace().collect::<Vec<_>>().join(" "));
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
