//! From the schema that is derived from the Rust types to the one that an apiserver is given.

use std::fmt::{self, Write as _};
use std::str::FromStr;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
    ValidationRule,
};
use sha2::{Digest, Sha256};

use super::common::SCHEMA;

/// What tells one schema of a CRD from another, and an older one from a newer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchemaMark {
    /// Grows with each change.
    pub number: usize,
    /// Of the schema.
    pub digest: String,
}

impl SchemaMark {
    /// The mark of a finished CRD, whose schema has that number.
    pub fn of(crd: &CustomResourceDefinition, number: usize) -> Self {
        Self {
            number,
            digest: digest(crd),
        }
    }

    /// Whether a program of the schema `ours` can work under a CRD of this one: the same, or a newer one, which keeps all
    /// that older ones had. A replica of the version before goes on while an upgrade is rolled out.
    pub fn keeps(&self, ours: &Self) -> bool {
        self.number > ours.number || self == ours
    }
}

impl fmt::Display for SchemaMark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.number, self.digest)
    }
}

impl FromStr for SchemaMark {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (number, digest) = text.split_once('-').ok_or(())?;
        Ok(Self {
            number: number.parse().map_err(drop)?,
            digest: digest.into(),
        })
    }
}

/// Finishes a derived CRD, and gives it the annotation [`SCHEMA`]: `number` is that of its schema.
pub fn finish(mut crd: CustomResourceDefinition, number: usize) -> CustomResourceDefinition {
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
    let mark = SchemaMark::of(&crd, number);
    crd.metadata
        .annotations
        .get_or_insert_default()
        .insert(SCHEMA.into(), mark.to_string());
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

    use std::collections::BTreeMap;

    use super::*;
    use crate::registry;

    /// Every node below `spec` and `status` of every kind, by path.
    fn nodes() -> BTreeMap<String, JSONSchemaProps> {
        fn walk(
            path: &str,
            schema: &JSONSchemaProps,
            into: &mut BTreeMap<String, JSONSchemaProps>,
        ) {
            for (name, property) in schema.properties.iter().flatten() {
                let path = format!("{path}.{name}");
                into.insert(path.clone(), property.clone());
                walk(&path, property, into);
            }
            if let Some(JSONSchemaPropsOrArray::Schema(items)) = &schema.items {
                walk(path, items, into);
            }
        }
        let mut nodes = BTreeMap::new();
        for crd in registry::crds() {
            let schema = crd.spec.versions[0]
                .schema
                .clone()
                .unwrap()
                .open_api_v3_schema
                .unwrap();
            walk(&crd.spec.names.kind, &schema, &mut nodes);
        }
        assert!(nodes.len() > 50);
        nodes
    }

    #[test]
    fn every_field_is_described_and_none_has_a_default() {
        for (path, node) in nodes() {
            assert!(
                node.description.is_some_and(|text| text.len() > 5),
                "{path} has no description"
            );
            assert!(node.default.is_none() && node.nullable.is_none(), "{path}");
        }
    }

    /// The apiserver's estimate of what a rule costs needs the bound; so does everything that reads the field.
    #[test]
    fn every_string_of_a_spec_is_bounded() {
        for (path, node) in nodes().iter().filter(|(path, _)| path.contains(".spec.")) {
            let bounded = node.max_length.is_some() || node.enum_.is_some();
            assert!(
                node.type_.as_deref() != Some("string") || bounded,
                "{path} has no maxLength"
            );
        }
    }

    /// What the original CRDs demanded, and no more: a stored object that lacks a field could never be updated again.
    #[test]
    fn nothing_old_became_required() {
        let nodes = nodes();
        let required = |path: &str| nodes[path].required.clone().unwrap_or_default();
        assert_eq!(required("ContactPoint.spec"), ["type"]);
        assert_eq!(
            required("ContactPoint.spec.apiToken"),
            ["key", "secretName"]
        );
        assert!(required("ContactPoint.spec.telegramSpec").is_empty());
        assert!(required("ContactPoint.spec.webhookSpec").is_empty());
        assert!(required("ContactPoint.status").is_empty());
        assert_eq!(
            required("TrackedField.spec"),
            ["contactPoint", "field", "target"]
        );
        assert_eq!(required("TrackedField.spec.target"), ["kind", "name"]);
        assert_eq!(required("AppService.spec"), ["image", "size"]);
        assert!(required("AppService.status").is_empty());
        assert_eq!(
            required("ConfigMapSync.spec"),
            ["configMapName", "sourceNamespace"]
        );
        assert!(required("ConfigMapSync.status").is_empty());
        assert!(required("MyApp.spec").is_empty() && required("MyApp.status").is_empty());
    }

    /// An empty spec of the other type counts as absent: the rules that say so name every field of it.
    #[test]
    fn a_filled_spec_of_the_other_type_is_known_by_each_of_its_fields() {
        let nodes = nodes();
        let rules = nodes["ContactPoint.spec"]
            .x_kubernetes_validations
            .clone()
            .unwrap();
        for (spec, message) in [
            ("webhookSpec", "type: Telegram takes no webhookSpec"),
            ("telegramSpec", "type: Webhook takes no telegramSpec"),
        ] {
            let rule = rules
                .iter()
                .find(|r| r.message.as_ref().is_some_and(|m| m.starts_with(message)))
                .unwrap();
            for field in nodes[&format!("ContactPoint.spec.{spec}")]
                .properties
                .clone()
                .unwrap()
                .keys()
            {
                assert!(
                    rule.rule.contains(&format!("has(self.{spec}.{field})")),
                    "{message}: {field}"
                );
            }
        }
    }

    #[test]
    fn the_digest_is_of_the_schema_not_of_its_wording() {
        let crd = registry::crds().remove(0);
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
            crd.metadata.annotations.as_ref().unwrap()[SCHEMA]
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
