//! `ConfigMapSync`, field by field.

use kube::CustomResourceExt;
use qm_api::ConfigMapSync;

use super::{Case, check, every_field_has_a_case, served};

/// Returns a spec that copies from `a/c`, with these fields.
fn with(more: &str) -> String {
    format!("{{sourceNamespace: a, configMapName: c, {more}}}")
}

fn source(namespace: &str) -> String {
    format!("{{sourceNamespace: \"{namespace}\", configMapName: c, destinationNamespace: b}}")
}

fn name(name: &str) -> String {
    format!("{{sourceNamespace: a, configMapName: \"{name}\", destinationNamespace: b}}")
}

fn to(namespace: &str) -> String {
    with(&format!("destinationNamespace: \"{namespace}\""))
}

fn several(namespaces: &str) -> String {
    with(&format!("destinationNamespaces: [{namespaces}]"))
}

fn selector(selector: &str) -> String {
    with(&format!("destinationNamespaceSelector: {{{selector}}}"))
}

fn expression(expression: &str) -> String {
    selector(&format!("matchExpressions: [{{{expression}}}]"))
}

fn and(more: &str) -> String {
    with(&format!("destinationNamespace: b, {more}"))
}

const NAMESPACE: &str = "|write the name of a namespace";
const NAME: &str = "|write the name of a ConfigMap";
const WHERE: &str = "spec: |say where to";
const ITSELF: &str = "spec: |onto itself";
const VALUES: &str = "spec.destinationNamespaceSelector: |give values with";
const LABELS: &str = "spec.destinationNamespaceSelector: |write labels: keys such as";
const POLICY: &str = "spec.deletionPolicy: |write deletionPolicy: Delete";

#[rustfmt::skip] // one line a case
fn cases() -> Vec<Case> {
    let long = |n: usize| "a".repeat(n);
    let many = |n: usize| (0..n).map(|number| format!("n{number}")).collect::<Vec<_>>().join(", ");
    vec![
        // sourceNamespace
        (source("a"), ""),
        (source("sourceNamespace"), ""), // the article's placeholder
        (source(&long(63)), ""),
        (source(&long(64)), "spec.sourceNamespace: |Too long"),
        (source(""), NAMESPACE),
        (source("a/b"), NAMESPACE),
        (source("-a"), NAMESPACE),
        ("{configMapName: c, destinationNamespace: b}".into(), "spec.sourceNamespace: |Required value"),
        // configMapName
        (name("c"), ""),
        (name("configMapName"), ""), // the article's placeholder
        (name("a.b-c"), ""),
        (name(&long(253)), ""),
        (name(&long(254)), "spec.configMapName: |Too long"),
        (name(""), NAME),
        (name("a/b"), NAME),
        ("{sourceNamespace: a, destinationNamespace: b}".into(), "spec.configMapName: |Required value"),
        // destinationNamespace
        (to("b"), ""),
        (to("destinationNamespace"), ""), // the article's placeholder
        (to(&long(63)), ""),
        (to(&long(64)), "spec.destinationNamespace: |Too long"),
        (to("b c"), NAMESPACE),
        (to(""), WHERE),
        (to("a"), ITSELF),
        ("{sourceNamespace: a, configMapName: c}".into(), WHERE),
        // destinationNamespaces
        (several("b"), ""),
        (several(&many(256)), ""),
        (several(&many(257)), "spec.destinationNamespaces: |Too many"),
        (several(""), "spec.destinationNamespaces: |should have at least 1 items"),
        (several("b, b"), "spec.destinationNamespaces[1]: |Duplicate value"),
        (several("b, B"), NAMESPACE),
        (several(&long(64)), "spec.destinationNamespaces[0]: |Too long"),
        (several("b, a"), ITSELF),
        (with("destinationNamespaces: [b], destinationNamespace: d"), WHERE),
        (with("destinationNamespaces: [b], destinationNamespace: ''"), ""), // as Go clients write it
        // destinationNamespaceSelector
        (selector(""), ""),
        (selector("matchLabels: {a: b}"), ""),
        (selector(&format!("matchLabels: {{{}}}", (0..17).map(|n| format!("l{n}: a")).collect::<Vec<_>>().join(", "))), "matchLabels: |Too many"),
        (selector(&format!("matchLabels: {{a: {}}}", long(64))), "matchLabels.a: |Too long"),
        (expression("key: a, operator: In, values: [b]"), ""),
        (expression("key: a, operator: Exists"), ""),
        (expression("key: example.com/a_b.c, operator: In, values: [\"\", A-1]"), ""),
        (expression("key: a b, operator: Exists"), LABELS),
        (expression("key: a/b/c, operator: DoesNotExist"), LABELS),
        (expression("key: a, operator: In, values: [b c]"), LABELS),
        (selector("matchLabels: {a: b c}"), LABELS),
        (selector("matchLabels: {-a: b}"), LABELS),
        (expression("key: a, operator: In"), VALUES),
        (expression("key: a, operator: NotIn, values: []"), VALUES),
        (expression("key: a, operator: DoesNotExist, values: [b]"), VALUES),
        (expression("key: a, operator: Is, values: [b]"), "operator: |Unsupported value"),
        (expression("operator: Exists"), "key: |Required value"),
        (expression(&format!("key: a, operator: In, values: [{}]", long(64))), "values[0]: |Too long"),
        (with("destinationNamespaceSelector: {}, destinationNamespace: b"), WHERE),
        // destinationName
        (and("destinationName: other"), ""),
        (with("destinationNamespace: a, destinationName: other"), ""),
        (with("destinationNamespace: a, destinationName: c"), ITSELF),
        (and("destinationName: Other"), NAME),
        (and(&format!("destinationName: {}", long(254))), "spec.destinationName: |Too long"),
        // copyLabels, copyAnnotations, deletionPolicy, suspend
        (and("copyLabels: true"), ""),
        (and("copyLabels: 'yes'"), "spec.copyLabels: |must be of type boolean"),
        (and("copyAnnotations: true"), ""),
        (and("copyAnnotations: 1"), "spec.copyAnnotations: |must be of type boolean"),
        (and("deletionPolicy: Delete"), ""),
        (and("deletionPolicy: Orphan"), ""),
        (and("deletionPolicy: Retain"), POLICY),
        (and("deletionPolicy: ''"), POLICY),
        (and("suspend: true"), ""),
        (and("suspend: 'yes'"), "spec.suspend: |must be of type boolean"),
    ]
}

#[tokio::test]
async fn config_map_sync_fields_are_validated_at_their_boundaries() {
    let client = served().await;
    every_field_has_a_case("ConfigMapSync", &[], &cases());
    check(&client, &ConfigMapSync::api_resource(), &cases()).await;
}
