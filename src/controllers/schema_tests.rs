//! Rules for the schema of every kind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray,
};
/// Returns every node below `spec` and `status` of every kind, by path.
fn nodes() -> BTreeMap<String, JSONSchemaProps> {
    fn walk(path: &str, schema: &JSONSchemaProps, into: &mut BTreeMap<String, JSONSchemaProps>) {
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
    for crd in super::crds() {
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
fn every_field_has_a_description_and_no_default() {
    for (path, node) in nodes() {
        assert!(
            node.description.is_some_and(|text| text.len() > 5),
            "{path} has no description"
        );
        // The default of a status says that no operator has observed the object.
        let has_default = node.default.is_some() && !path.ends_with(".status");
        assert!(!has_default && node.nullable.is_none(), "{path}");
    }
}

/// The apiserver needs the bound to estimate the cost of a rule; readers of the field rely on it too.
#[test]
fn every_string_of_a_spec_has_a_maximum_length() {
    for (path, node) in nodes().iter().filter(|(path, _)| path.contains(".spec.")) {
        let bounded = node.max_length.is_some() || node.enum_.is_some();
        assert!(
            node.type_.as_deref() != Some("string") || bounded,
            "{path} has no maxLength"
        );
    }
}

/// Only the fields that the original CRDs required are required: other stored objects could never be updated again.
#[test]
fn no_other_field_became_required() {
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

/// An empty spec of the other type counts as absent: the rules for it name each of its fields.
#[test]
fn rules_against_the_other_type_name_each_field() {
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
