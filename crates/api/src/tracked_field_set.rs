//! TrackedFieldSet: one TrackedField for each field of each selected resource.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::core::Rule;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::common::{Conditions, conditions_schema, rule_over, selector_schema};
use super::tracked_field::{
    IS_API_VERSION, IS_KIND, IS_NO_SECRET, IS_NOT_OWN_KIND, IS_RESOURCE, KINDS_BY_WORDS,
    NotificationSpec, RESOURCE_IS_NO_SECRET, TargetReference, field_fits_kind_without_words,
    field_fits_kinds, has_no_range, is_field, other_kinds_need_a_resource,
    resource_needs_a_version,
};

/// Label of a TrackedField: name of the set that owns it.
pub const SET: &str = "quartermaster.dev/set";

/// Number of entries that the history of a child keeps by default.
pub const HISTORY_LIMIT: i64 = 10;

/// Number of targets by default.
const MAX_TARGETS: usize = 500;

/// Maximum number of children: `maxTargets` times the number of fields.
pub const MAX_CHILDREN: usize = 10_000;

/// Time in seconds for which the child of a deleted target stays by default.
pub const KEEP_SECONDS: i64 = 3600;

/// One TrackedField for each field of each selected resource.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "tg.azamaton.ru",
    version = "v1",
    kind = "TrackedFieldSet",
    doc = "One TrackedField for each field of each selected resource.",
    plural = "trackedfieldsets",
    shortname = "tfs",
    category = "quartermaster",
    namespaced,
    status = "TrackedFieldSetStatus",
    derive = "PartialEq",
    derive = "Default",
    validation = short_name(),
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.target.kind"),
    printcolumn(name = "Targets", type_ = "integer", json_path = ".status.targets"),
    printcolumn(name = "Children", type_ = "integer", json_path = ".status.children"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase", remote = "Self")]
#[schemars(extend("required" = ["fields", "target", "template"]))]
#[x_kube(
    validation = fields_rule(field_fits_kinds(KINDS_BY_WORDS[0], "field")),
    validation = fields_rule(field_fits_kinds(KINDS_BY_WORDS[1], "field")),
    validation = fields_rule(field_fits_kinds(KINDS_BY_WORDS[2], "field")),
    validation = fields_rule(field_fits_kind_without_words("field")),
    validation = few_children(),
)]
pub struct TrackedFieldSetSpec {
    /// Resources with the tracked fields.
    #[serde(default)]
    pub target: TargetSelector,
    /// Tracked fields of each resource, as in `spec.field` of a TrackedField.
    #[serde(default)]
    #[schemars(extend(
        "minItems" = 1,
        "maxItems" = 8,
        "items" = { "type": "string", "maxLength": 1024 },
        "x-kubernetes-list-type" = "set"
    ))]
    #[x_kube(validation = is_field("field", each_field), validation = has_no_range("field", each_field))]
    pub fields: Vec<String>,
    /// Notification of each field, as in a TrackedField. A field that is absent here belongs to whoever
    /// sets it in a TrackedField of the set.
    #[serde(default)]
    pub template: NotificationSpec,
    /// Treatment of the first value of a resource that existed before the set selected it: `Quiet` only records it, `Notify`
    /// also sends it. A resource that is created later is always reported. Defaults to `Quiet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = ("self in ['Quiet', 'Notify']", "write initial: Quiet or initial: Notify"))]
    pub initial: Option<String>,
    /// Maximum number of tracked resources, 1 to 10,000; times the number of fields, 10,000. Defaults to 500.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 10_000))]
    pub max_targets: Option<i64>,
    /// Time in seconds for which the TrackedField of a deleted resource stays, 0 to 604800. Defaults to 3600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 604_800))]
    pub keep_seconds: Option<i64>,
    /// Suspension of reconciliation. While true, the operator creates, changes and deletes no TrackedField; the
    /// existing ones stay active. `template.suspend` pauses delivery. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Size of the stored spec in bytes, if that exceeds the limit for reading.
    #[serde(skip)]
    pub oversized: Option<usize>,
}

impl TrackedFieldSetSpec {
    /// Returns the maximum number of tracked resources.
    pub fn max_targets(&self) -> usize {
        let max = self.max_targets.and_then(|it| usize::try_from(it).ok());
        max.unwrap_or(MAX_TARGETS)
    }
}

/// Selection of resources of one kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["kind"]))]
#[x_kube(
    validation = other_kinds_need_a_resource(),
    validation = resource_needs_a_version(),
    validation = RESOURCE_IS_NO_SECRET,
)]
pub struct TargetSelector {
    /// Kind of the resources: `Deployment`, `StatefulSet`, `DaemonSet`, `Job`, `CronJob`, `Service`, `Ingress` or
    /// `HorizontalPodAutoscaler`, or with `apiVersion` and `resource` any other but Secret.
    #[serde(default)]
    #[schemars(length(max = 63))]
    #[x_kube(validation = IS_KIND, validation = IS_NO_SECRET)]
    pub kind: String,
    /// API group and version of another kind, such as `networking.k8s.io/v1`. Set it together with `resource`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 317))]
    #[x_kube(validation = IS_API_VERSION, validation = IS_NOT_OWN_KIND)]
    pub api_version: Option<String>,
    /// Plural name of another kind, such as `networkpolicies`. Set it together with `apiVersion`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = IS_RESOURCE)]
    pub resource: Option<String>,
    /// Labels of the resources. Defaults to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector_schema")]
    pub selector: Option<LabelSelector>,
    /// Names of the resources. Defaults to all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<NamePatterns>,
    /// Namespaces of the resources. Defaults to the namespace of this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<TargetNamespaces>,
}

impl TargetSelector {
    /// Returns the reference to one resource of this kind.
    pub fn reference(&self, namespace: &str, name: &str) -> TargetReference {
        TargetReference {
            kind: self.kind.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            api_version: self.api_version.clone(),
            resource: self.resource.clone(),
        }
    }
}

/// Patterns of names, in which `*` stands for any characters and `?` for one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct NamePatterns {
    /// Patterns; a name must match one of them. Defaults to all names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 32,
        "items" = { "type": "string", "minLength": 1, "maxLength": 253 },
        "x-kubernetes-list-type" = "set"
    ))]
    #[x_kube(validation = ARE_PATTERNS)]
    pub include: Vec<String>,
    /// Patterns; a name must match none of them. Defaults to none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "maxItems" = 32,
        "items" = { "type": "string", "minLength": 1, "maxLength": 253 },
        "x-kubernetes-list-type" = "set"
    ))]
    #[x_kube(validation = ARE_PATTERNS)]
    pub exclude: Vec<String>,
}

const ARE_PATTERNS: (&str, &str) = (
    "self.all(pattern, pattern.matches('^[-a-z0-9.:*?]+$'))",
    "write patterns of lower-case letters, digits, '-', '.', ':', '*' (any characters) and '?' (one character), such as web-*",
);

/// Namespaces of resources, by name or by label.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = (
    "has(self.names) != has(self.selector)",
    "give either names (a list of namespaces) or selector (labels of namespaces; {} is all)",
))]
pub struct TargetNamespaces {
    /// Names of the namespaces, 10 at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "minItems" = 1,
        "maxItems" = 10,
        "items" = { "type": "string", "maxLength": 63 },
        "x-kubernetes-list-type" = "set"
    ))]
    #[x_kube(validation = (
        "self.all(name, !format.dns1123Label().validate(name).hasValue())",
        "write names of namespaces: lower-case letters, digits and '-'",
    ))]
    pub names: Vec<String>,
    /// Labels of the namespaces; `{}` selects all, and is needed for a cluster-scoped kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector_schema")]
    pub selector: Option<LabelSelector>,
}

/// Observed state of the set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrackedFieldSetStatus {
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Digest of `spec.target` and `spec.fields`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<String>,
    /// Time since which this selection applies. A resource that is created later is reported, an older one is not. A change of
    /// `spec.target` or `spec.fields` moves it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// Number of selected resources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<i64>,
    /// Number of TrackedFields that the set owns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub children: Option<i64>,
    /// Number of fields that another TrackedField with the same contact point tracks; the set does not track them again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub covered: Option<i64>,
    /// Number of TrackedFields that are deleted once their entries are sent and `keepSeconds` are over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leaving: Option<i64>,
    /// Number of selected resources beyond `maxTargets`, which are not tracked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<i64>,
    /// `Ready`, and while `Ready` is not True also `Reconciling` or `Stalled` with the same reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Conditions,
}

fn short_name() -> Rule {
    Rule::new("oldSelf.hasValue() || self.metadata.name.size() <= 63")
        .message("write a name of at most 63 characters: it begins the names of the TrackedFields")
        .optional_old_self(true)
}

fn each_field(rule: &str) -> String {
    format!("self.all(field, {rule})")
}

fn fields_rule((rule, message): (String, String)) -> Rule {
    let rule = format!("self.fields.all(field, {rule})");
    rule_over(&["fields", "target.kind"], &rule, &message).field_path(".fields")
}

fn few_children() -> Rule {
    let rule = format!(
        "(has(self.maxTargets) ? self.maxTargets : {MAX_TARGETS}) * self.fields.size() <= {MAX_CHILDREN}"
    );
    let message = format!(
        "one set owns at most {MAX_CHILDREN} TrackedFields: lower maxTargets, or split fields over several sets"
    );
    rule_over(&["fields", "maxTargets"], &rule, &message)
}

super::kind::kind!(TrackedFieldSet, TrackedFieldSetSpec, TrackedFieldSetStatus);
