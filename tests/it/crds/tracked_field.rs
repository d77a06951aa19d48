//! `TrackedField`, field by field.

use kube::CustomResourceExt;
use qm_api::TrackedField;

use super::{Case, check, every_field_has_a_case, served};

const TARGET: &str = "target: {kind: Deployment, namespace: default, name: nginx}";

fn contact_point(name: &str) -> String {
    format!("{{contactPoint: \"{name}\", field: replicas, {TARGET}}}")
}

fn field(field: &str) -> String {
    format!("{{contactPoint: cp, field: '{field}', {TARGET}}}")
}

fn and(more: &str) -> String {
    format!("{{contactPoint: cp, field: replicas, {TARGET}, {more}}}")
}

fn target(target: &str) -> String {
    format!("{{contactPoint: cp, field: '{{.metadata.generation}}', target: {{{target}}}}}")
}

fn of_kind(kind: &str, field: &str) -> String {
    format!(
        "{{contactPoint: cp, field: '{field}', target: {{kind: {kind}, namespace: default, name: a}}}}"
    )
}

fn name(kind: &str, name: &str) -> String {
    target(&format!(
        "kind: {kind}, namespace: default, name: \"{name}\""
    ))
}

fn namespace(namespace: &str) -> String {
    target(&format!(
        "kind: Deployment, namespace: \"{namespace}\", name: nginx"
    ))
}

fn other(kind: &str, version: &str, resource: &str) -> String {
    target(&format!(
        "kind: {kind}, namespace: a, name: b, apiVersion: '{version}', resource: '{resource}'"
    ))
}

const BAD_POINT: &str = "spec.contactPoint: |write the name of a ContactPoint of this namespace";
const BAD_FIELD: &str = "spec.field: |write replicas, image, image:CONTAINER";
const NO_FIELD_OF_DEPLOYMENT: &str = "spec.field: |a Deployment or StatefulSet has no such field: write replicas, image, image:CONTAINER, images or a JSONPath in braces";
const NO_FIELD_OF_JOB: &str = "spec.field: |a DaemonSet or Job or CronJob has no such field: write image, image:CONTAINER, images or a JSONPath in braces";
const NO_FIELD_OF_SERVICE: &str = "spec.field: |a Service has no such field: write targetPort, targetPort:PORT or a JSONPath in braces";
const NO_FIELD_OF_OTHERS: &str = "spec.field: |has no such field: write a JSONPath in braces";
const BAD_CONTEXT: &str = "spec.context: |write each name of context with letters, digits and '_'";
const BAD_CONTEXT_PATH: &str =
    "spec.context: |write each value of context as one JSONPath in braces";
const BAD_KIND: &str = "spec.target.kind: |write the kind of a resource";
const NEVER_TRACKED: &str =
    "spec.target.apiVersion|ContactPoints, TrackedFields and TrackedFieldSets cannot be tracked";
const SECRET: &str = "spec.target|a Secret cannot be tracked";
const BAD_NAME: &str = "spec.target: |write the resource's name as kubectl prints it";
const NO_PATH: &str = "spec.target.name: |write the name of one resource";
const NO_RESOURCE: &str = "spec.target: |needs apiVersion and resource";
const TOGETHER: &str = "spec.target: |apiVersion and resource go together";
const BAD_VERSION: &str = "spec.target.apiVersion: |write group and version";
const BAD_RESOURCE: &str = "spec.target.resource: |write the plural name";

#[rustfmt::skip] // one line a case
fn cases() -> Vec<Case> {
    let long = |n: usize| "a".repeat(n);
    vec![
        // contactPoint
        (contact_point("telegram-cp"), ""),
        (contact_point("a.b"), ""),
        (contact_point(&long(253)), ""),
        (contact_point(&long(254)), "spec.contactPoint: |Too long"),
        (contact_point(""), BAD_POINT),
        (contact_point("default/telegram-cp"), BAD_POINT),
        (contact_point("Telegram"), BAD_POINT),
        (format!("{{field: replicas, {TARGET}}}"), "spec.contactPoint: |Required value"),
        // field
        (field("replicas"), ""),
        (field("image"), ""),
        (field("image:nginx"), ""),
        (field(&format!("image:{}", long(63))), ""),
        (of_kind("Service", "targetPort"), ""),
        (of_kind("Service", "targetPort:http"), ""),
        (of_kind("StatefulSet", "image:web"), ""),
        (of_kind("Service", "{.spec.type}"), ""),
        (of_kind("Deployment", "targetPort"), NO_FIELD_OF_DEPLOYMENT),
        (of_kind("Deployment", "targetPort:http"), NO_FIELD_OF_DEPLOYMENT),
        (of_kind("StatefulSet", "targetPort"), NO_FIELD_OF_DEPLOYMENT),
        (of_kind("Service", "image"), NO_FIELD_OF_SERVICE),
        (of_kind("Service", "image:web"), NO_FIELD_OF_SERVICE),
        (of_kind("Service", "replicas"), NO_FIELD_OF_SERVICE),
        (of_kind("Deployment", "images"), ""),
        (of_kind("DaemonSet", "image:web"), ""),
        (of_kind("Job", "image"), ""),
        (of_kind("CronJob", "images"), ""),
        (of_kind("Ingress", "{.spec.rules[*].host}"), ""),
        (of_kind("HorizontalPodAutoscaler", "{.spec.maxReplicas}"), ""),
        (of_kind("Deployment", "images:web"), BAD_FIELD),
        (of_kind("DaemonSet", "replicas"), NO_FIELD_OF_JOB),
        (of_kind("Job", "targetPort"), NO_FIELD_OF_JOB),
        (of_kind("CronJob", "replicas"), NO_FIELD_OF_JOB),
        (of_kind("Service", "images"), NO_FIELD_OF_SERVICE),
        (of_kind("Ingress", "image"), NO_FIELD_OF_OTHERS),
        (of_kind("HorizontalPodAutoscaler", "replicas"), NO_FIELD_OF_OTHERS),
        ("{contactPoint: cp, field: image, target: {kind: NetworkPolicy, namespace: a, name: b, apiVersion: networking.k8s.io/v1, resource: networkpolicies}}".into(), NO_FIELD_OF_OTHERS),
        (field("{.spec.template.spec.containers[0].resources.limits.memory}"), ""),
        (field(r"{.metadata.annotations.example\.com/a}"), ""),
        (field(&format!("{{.{}}}", long(1021))), ""),
        (field(&format!("{{.{}}}", long(1022))), "spec.field: |Too long"),
        (field(""), BAD_FIELD),
        (field("Replicas"), BAD_FIELD),
        (field("replicas "), BAD_FIELD),
        (field("replicas:a"), BAD_FIELD),
        (field("image:"), BAD_FIELD),
        (field("image:A"), BAD_FIELD),
        (field(&format!("image:{}", long(64))), BAD_FIELD),
        (field(".spec.replicas"), BAD_FIELD),
        (field("spec.replicas"), BAD_FIELD),
        (field("{}"), BAD_FIELD),
        (field("{.a"), BAD_FIELD),
        (field("{range .items[*]}{.a}{end}"), "spec.field: |write one JSONPath without range"),
        (field("{ range .items[*]}{.a}{end}"), "spec.field: |write one JSONPath without range"),
        (format!("{{contactPoint: cp, {TARGET}}}"), "spec.field: |Required value"),
        // context
        (and("context: {owner: '{.metadata.annotations.owner}'}"), ""),
        (and("context: {}"), ""),
        (and(&format!("context: {{{}: '{{.a}}'}}", long(63))), ""),
        (and(&format!("context: {{{}: '{{.a}}'}}", long(64))), BAD_CONTEXT),
        (and("context: {a: '{.a}', b: '{.a}', c: '{.a}', d: '{.a}', e: '{.a}'}"), ""),
        (and("context: {a: '{.a}', b: '{.a}', c: '{.a}', d: '{.a}', e: '{.a}', f: '{.a}'}"), "spec.context: |Too many"),
        (and("context: {owner-mail: '{.a}'}"), BAD_CONTEXT),
        (and("context: {'': '{.a}'}"), BAD_CONTEXT),
        (and("context: {1st: '{.a}'}"), BAD_CONTEXT),
        (and("context: {owner: .a}"), BAD_CONTEXT_PATH),
        (and("context: {owner: image}"), BAD_CONTEXT_PATH),
        (and("context: {owner: '{range .a[*]}{.b}{end}'}"), BAD_CONTEXT_PATH),
        (and(&format!("context: {{owner: '{{.{}}}'}}", long(1021))), ""),
        (and(&format!("context: {{owner: '{{.{}}}'}}", long(1022))), "spec.context.owner: |Too long"),
        // when
        (and("when: \"action == 'Updated'\""), ""),
        (and("when: 'not CEL ('"), ""),
        (and("when: ''"), "spec.when: |should be at least 1 chars long"),
        (and(&format!("when: {}", long(512))), ""),
        (and(&format!("when: {}", long(513))), "spec.when: |Too long"),
        // target.kind
        ("{contactPoint: cp, field: replicas}".into(), "spec.target: |Required value"),
        (name("StatefulSet", "a"), ""),
        (name("Service", "a"), ""),
        (target("namespace: a, name: b"), "spec.target.kind: |Required value"),
        (name("''", "a"), BAD_KIND),
        (name("apps/Deployment", "a"), BAD_KIND),
        (name(&long(64), "a"), "spec.target.kind: |Too long"),
        (name("deployment", "a"), NO_RESOURCE),
        // The apiserver answers with one message, and with none about the field of an unknown kind.
        (of_kind("deployment", "replicas"), "is invalid: spec.target: |write the kind as in Deployment, StatefulSet"),
        (name("DaemonSet", "a"), ""),
        (name("NetworkPolicy", "a"), NO_RESOURCE),
        (target("kind: HorizontalPodAutoscaler, name: a"), "spec.target: |add namespace"),
        (name("Secret", "a"), SECRET),
        (name("secret", "a"), SECRET),
        (name("SECRETS", "a"), SECRET),
        (other("Secret", "v1", "secrets"), SECRET),
        (other("ConfigMap", "v1", "secrets"), SECRET),
        (other("ConfigMap", "v1", "secret"), SECRET),
        (other("Deployment", "v1", "secrets"), SECRET),
        (other("TrackedField", "tg.azamaton.ru/v1", "trackedfields"), NEVER_TRACKED),
        (other("ContactPoint", "tg.azamaton.ru/v1", "contactpoints"), NEVER_TRACKED),
        (other("ConfigMap", "v1", "Secrets"), BAD_RESOURCE),
        (other("ConfigMap", "/v1", "secrets"), BAD_VERSION),
        (other("ConfigMap", "v1", "secrets/x"), BAD_RESOURCE),
        // target.apiVersion and target.resource
        (other("CronJob", "batch/v1", "cronjobs"), ""),
        (other("ConfigMap", "v1", "configmaps"), ""),
        (other("Deployment", "apps/v1", "deployments"), ""),
        (other("VaultSecret", "a.example.com/v1beta1", "secrets"), ""),
        (target("kind: Node, name: a, apiVersion: v1, resource: nodes"), ""),
        (target("kind: NetworkPolicy, namespace: a, name: b, apiVersion: networking.k8s.io/v1"), NO_RESOURCE),
        (target("kind: NetworkPolicy, namespace: a, name: b, resource: networkpolicies"), NO_RESOURCE),
        (target("kind: Deployment, namespace: a, name: b, apiVersion: apps/v1"), TOGETHER),
        (target("kind: Deployment, namespace: a, name: b, resource: deployments"), TOGETHER),
        (other("CronJob", "batch", ""), BAD_RESOURCE),
        (other("CronJob", "", "cronjobs"), BAD_VERSION),
        (other("CronJob", "batch/", "cronjobs"), BAD_VERSION),
        (other("CronJob", "batch/v1/x", "cronjobs"), BAD_VERSION),
        (other("CronJob", "../v1", "cronjobs"), BAD_VERSION),
        (other("CronJob", &format!("{}/v1", long(315)), "cronjobs"), "spec.target.apiVersion: |Too long"),
        (other("CronJob", "batch/v1", "CronJobs"), BAD_RESOURCE),
        (other("CronJob", "batch/v1", &long(64)), "spec.target.resource: |Too long"),
        // target.namespace
        (namespace(&long(63)), ""),
        (namespace(&long(64)), "spec.target.namespace: |Too long"),
        (namespace("a.b"), "spec.target.namespace: |write the name of a namespace"),
        (namespace("A"), "spec.target.namespace: |write the name of a namespace"),
        (namespace(""), "spec.target: |add namespace"),
        (target("kind: Service, name: a"), "spec.target: |add namespace"),
        // target.name
        (name("Deployment", &long(253)), ""),
        (name("Deployment", &long(254)), "spec.target.name: |Too long"),
        (name("Deployment", "Nginx"), BAD_NAME),
        (name("Deployment", ""), NO_PATH),
        (name("Deployment", "a b"), NO_PATH),
        (target("kind: ClusterRole, name: 'system:node', apiVersion: rbac.authorization.k8s.io/v1, resource: clusterroles"), ""),
        (target("kind: Node, name: a/b, apiVersion: v1, resource: nodes"), NO_PATH),
        (target("kind: Node, name: '..', apiVersion: v1, resource: nodes"), NO_PATH),
        (target("kind: Node, name: a%2fb, apiVersion: v1, resource: nodes"), NO_PATH),
        (target("kind: Deployment, namespace: a"), "spec.target.name: |Required value"),
        // template, historyLimit, suspend
        (and("template: '{{ value }}'"), ""),
        (and(&format!("template: {}", long(8192))), ""),
        (and(&format!("template: {}", long(8193))), "spec.template: |Too long"),
        (and("template: ''"), "spec.template: |at least 1"),
        (and("historyLimit: 1"), ""),
        (and("historyLimit: 200"), ""),
        (and("historyLimit: 0"), "spec.historyLimit: |greater than or equal to 1"),
        (and("historyLimit: 201"), "spec.historyLimit: |less than or equal to 200"),
        (and("suspend: true"), ""),
        (and("suspend: null, template: null"), ""),
        (and("suspend: 'true'"), "spec.suspend: |boolean"),
        (and("initial: Notify"), ""),
        (and("initial: Quiet"), ""),
        (and("initial: quiet"), "spec.initial: |write initial: Notify or initial: Quiet"),
    ]
}

#[tokio::test]
async fn tracked_field_fields_are_validated_at_their_boundaries() {
    check(&served().await, &TrackedField::api_resource(), &cases()).await;
    every_field_has_a_case("TrackedField", &[], &cases());
}
