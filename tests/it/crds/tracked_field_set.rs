//! `TrackedFieldSet`, field by field.

use kube::CustomResourceExt;
use kube::api::{Api, PostParams};
use qm_api::TrackedFieldSet;
use serde_json::json;

use super::{Case, check, every_field_has_a_case, served};

const TARGET: &str = "target: {kind: Deployment}";
const TEMPLATE: &str = "template: {contactPoint: cp}";

fn target(target: &str) -> String {
    format!("{{target: {{{target}}}, fields: ['{{.spec}}'], {TEMPLATE}}}")
}

fn of(more: &str) -> String {
    target(&format!("kind: Deployment, {more}"))
}

fn names(field: &str, patterns: &str) -> String {
    of(&format!("names: {{{field}: [{patterns}]}}"))
}

fn namespaces(namespaces: &str) -> String {
    of(&format!("namespaces: {{{namespaces}}}"))
}

fn fields(kind: &str, fields: &str) -> String {
    format!("{{target: {{kind: {kind}}}, fields: [{fields}], {TEMPLATE}}}")
}

fn template(template: &str) -> String {
    format!("{{{TARGET}, fields: [replicas], template: {{{template}}}}}")
}

fn and(more: &str) -> String {
    format!("{{{TARGET}, fields: [replicas], {TEMPLATE}, {more}}}")
}

const BAD_PATTERN: &str = "write patterns of lower-case letters";
const BAD_FIELD: &str = "spec.fields: |write replicas, image, image:CONTAINER";
const NO_FIELD: &str =
    "spec.fields: |a Deployment or StatefulSet has no such field: write replicas";
const EITHER: &str = "spec.target.namespaces: |give either names";
const BAD_NAMESPACE: &str = "spec.target.namespaces.names: |write names of namespaces";
const LABELS: &str = "write labels: keys such as";
const VALUES: &str = "give values with the operators In and NotIn";
const TOO_MANY: &str = "spec: |one set owns at most 10000 TrackedFields";

#[rustfmt::skip] // one line a case
fn cases() -> Vec<Case> {
    let long = |n: usize| "a".repeat(n);
    let list = |n: usize| (0..n).map(|at| format!("a{at}")).collect::<Vec<_>>().join(", ");
    let paths = |n: usize| (0..n).map(|at| format!("'{{.a{at}}}'")).collect::<Vec<_>>().join(", ");
    vec![
        // target
        (format!("{{fields: [replicas], {TEMPLATE}}}"), "spec.target: |Required value"),
        (target("kind: Deployment"), ""),
        (target("names: {}"), "spec.target.kind: |Required value"),
        (target("kind: Secret"), "spec.target|a Secret cannot be tracked"),
        (target("kind: a/b"), "spec.target.kind: |write the kind of a resource"),
        (target(&format!("kind: {}", long(64))), "spec.target.kind: |Too long"),
        (target("kind: NetworkPolicy"), "spec.target: |needs apiVersion and resource"),
        (target("kind: Deployment, resource: deployments"), "spec.target: |apiVersion and resource go together"),
        (target("kind: Node, apiVersion: v1, resource: nodes"), ""),
        (target("kind: ConfigMap, apiVersion: v1, resource: secrets"), "spec.target|a Secret cannot be tracked"),
        (target("kind: ConfigMap, apiVersion: v1, resource: Secrets"), "spec.target.resource: |write the plural name"),
        (target("kind: TrackedField, apiVersion: tg.azamaton.ru/v1, resource: trackedfields"), "spec.target.apiVersion|cannot be tracked"),
        (target("kind: ConfigMap, apiVersion: /v1, resource: configmaps"), "spec.target.apiVersion: |write group and version"),
        // target.selector
        (of("selector: {}"), ""),
        (of("selector: {matchLabels: {tier: web}, matchExpressions: [{key: a, operator: In, values: [b]}]}"), ""),
        (of("selector: {matchLabels: {-a: b}}"), LABELS),
        (of("selector: {matchExpressions: [{key: a, operator: In}]}"), VALUES),
        (of("selector: {matchExpressions: [{key: a, operator: Like, values: [b]}]}"), "Unsupported value"),
        // target.names
        (names("include", "'*', 'web-?', 'a.b', 'system:*'"), ""),
        (names("exclude", "'*-canary'"), ""),
        (names("include", &list(32)), ""),
        (names("include", &list(33)), "spec.target.names.include: |Too many"),
        (names("exclude", &list(33)), "spec.target.names.exclude: |Too many"),
        (names("include", &long(253)), ""),
        (names("include", &long(254)), "spec.target.names.include[0]: |Too long"),
        (names("include", "''"), "spec.target.names.include[0]: |at least 1"),
        (names("include", "Web"), BAD_PATTERN),
        (names("exclude", "'[a]'"), BAD_PATTERN),
        (names("include", "a, a"), "spec.target.names.include[1]: |Duplicate value"),
        // target.namespaces
        (namespaces("selector: {}"), ""),
        (namespaces("selector: {matchLabels: {env: prod}}"), ""),
        (namespaces("selector: {matchLabels: {env: a b}}"), LABELS),
        (namespaces("names: [shop]"), ""),
        (namespaces(""), EITHER),
        (namespaces("names: [shop], selector: {}"), EITHER),
        (namespaces("names: []"), "spec.target.namespaces.names: |at least 1"),
        (namespaces(&format!("names: [{}]", list(10))), ""),
        (namespaces(&format!("names: [{}]", list(11))), "spec.target.namespaces.names: |Too many"),
        (namespaces("names: [A]"), BAD_NAMESPACE),
        (namespaces("names: [a.b]"), BAD_NAMESPACE),
        // fields
        (format!("{{{TARGET}, {TEMPLATE}}}"), "spec.fields: |Required value"),
        (fields("Deployment", ""), "spec.fields: |at least 1"),
        (fields("Deployment", "replicas, images, 'image:web', '{.spec.paused}'"), ""),
        (fields("Deployment", &paths(8)), ""),
        (fields("Deployment", &paths(9)), "spec.fields: |Too many"),
        (fields("Deployment", &format!("'{{.{}}}'", long(1021))), ""),
        (fields("Deployment", &format!("'{{.{}}}'", long(1022))), "spec.fields[0]: |Too long"),
        (fields("Deployment", "replicas, replicas"), "spec.fields[1]: |Duplicate value"),
        (fields("Deployment", "Replicas"), BAD_FIELD),
        (fields("Deployment", "replicas, targetPort"), NO_FIELD),
        (fields("CronJob", "replicas"), "spec.fields: |a DaemonSet or Job or CronJob has no such field"),
        (fields("Service", "image"), "spec.fields: |a Service has no such field"),
        (fields("Ingress", "image"), "spec.fields: |has no such field: write a JSONPath in braces"),
        (fields("Deployment", "'{range .a[*]}{.b}{end}'"), "spec.fields: |write one JSONPath without range"),
        // template
        (format!("{{{TARGET}, fields: [replicas]}}"), "spec.template: |Required value"),
        (template(""), "spec.template.contactPoint: |Required value"),
        (template("contactPoint: A"), "spec.template.contactPoint: |write the name of a ContactPoint"),
        (template("contactPoint: cp, template: '{{ value }}', when: 'true', context: {a: '{.b}'}, historyLimit: 200, suspend: true"), ""),
        (template("contactPoint: cp, template: ''"), "spec.template.template: |at least 1"),
        (template(&format!("contactPoint: cp, when: {}", long(513))), "spec.template.when: |Too long"),
        (template("contactPoint: cp, context: {a-b: '{.b}'}"), "spec.template.context: |write each name of context"),
        (template("contactPoint: cp, historyLimit: 201"), "spec.template.historyLimit: |less than or equal to 200"),
        // initial, maxTargets, keepSeconds, suspend
        (and("initial: Quiet"), ""),
        (and("initial: Notify"), ""),
        (and("initial: Loud"), "spec.initial: |write initial: Quiet or initial: Notify"),
        (and("maxTargets: 1"), ""),
        (and("maxTargets: 10000"), ""),
        (and("maxTargets: 0"), "spec.maxTargets: |greater than or equal to 1"),
        (and("maxTargets: 10001"), "spec.maxTargets: |less than or equal to 10000"),
        (format!("{{{TARGET}, fields: [replicas, images], {TEMPLATE}, maxTargets: 5000}}"), ""),
        (format!("{{{TARGET}, fields: [replicas, images], {TEMPLATE}, maxTargets: 5001}}"), TOO_MANY),
        (and("keepSeconds: 0"), ""),
        (and("keepSeconds: 604800"), ""),
        (and("keepSeconds: -1"), "spec.keepSeconds: |greater than or equal to 0"),
        (and("keepSeconds: 604801"), "spec.keepSeconds: |less than or equal to 604800"),
        (and("suspend: true"), ""),
        (and("suspend: 'true'"), "spec.suspend: |boolean"),
    ]
}

#[tokio::test]
async fn tracked_field_set_fields_are_validated_at_their_boundaries() {
    let client = served().await;
    check(&client, &TrackedFieldSet::api_resource(), &cases()).await;
    every_field_has_a_case("TrackedFieldSet", &[], &cases());

    let api: Api<TrackedFieldSet> = Api::default_namespaced(client);
    let create = async |name: String| {
        let spec: serde_json::Value = serde_saphyr::from_str(&and("suspend: true")).unwrap();
        let set = json!({ "metadata": { "name": name }, "spec": spec });
        let params = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        api.create(&params, &serde_json::from_value(set).unwrap())
            .await
    };
    create("a".repeat(63)).await.unwrap();
    let error = create("a".repeat(64)).await.unwrap_err().to_string();
    assert!(
        error.contains("write a name of at most 63 characters"),
        "{error}"
    );
}
