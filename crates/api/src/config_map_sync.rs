//! `ConfigMapSync`: which `ConfigMap` is kept copied into which namespaces.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::core::Rule;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::common::{Conditions, conditions_schema, rule_over};

/// The group.
pub const GROUP: &str = "apps.bixbite.io";
/// Finalizer: the copies lie in other namespaces, where no garbage collection reaches them.
pub const FINALIZER: &str = "quartermaster.dev/copies";

/// Capitals are let in, because the source article's sample has them; the status then says what to write.
const IS_SOURCE: &str = "self.matches('^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$')";
const IS_NAMESPACE: &str = "self == '' || self.matches('^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$')";
const IS_NAME: &str = "self.matches('^[A-Za-z0-9]([-.A-Za-z0-9]*[A-Za-z0-9])?$')";
const NAMESPACE: &str =
    "write the name of a namespace: lower-case letters, digits and '-', at most 63";
const NAME: &str =
    "write the name of a ConfigMap: lower-case letters, digits, '-' and '.', at most 253";

/// What to write where a selector names what no namespace can have.
pub const LABELS: &str = "write labels: keys such as team or example.com/team, values of letters, digits, '-', '_' and '.'";

/// Keeps a `ConfigMap` copied into other namespaces.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "apps.bixbite.io",
    version = "v1",
    kind = "ConfigMapSync",
    doc = "Keeps a ConfigMap copied into other namespaces.",
    plural = "configmapsyncs",
    shortname = "cmsync",
    category = "quartermaster",
    namespaced,
    status = "ConfigMapSyncStatus",
    derive = "PartialEq",
    derive = "Default",
    // The original CRD let a ConfigMapSync without a spec in. One that cannot be read would stop the watch of all.
    attr = "cfg_attr(all(), serde(default))",
    printcolumn(name = "Source", type_ = "string", json_path = ".spec.sourceNamespace"),
    printcolumn(name = "ConfigMap", type_ = "string", json_path = ".spec.configMapName"),
    printcolumn(name = "Copies", type_ = "integer", json_path = ".status.copies"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].status"),
    printcolumn(name = "Reason", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Last-Sync", type_ = "date", json_path = ".status.lastSyncTime"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".status.conditions[?(@.type==\"Ready\")].message",
        priority = 1
    )
)]
#[serde(rename_all = "camelCase", remote = "Self")]
#[schemars(extend("required" = ["configMapName", "sourceNamespace"]))]
#[x_kube(validation = one_destination(), validation = not_itself())]
pub struct ConfigMapSyncSpec {
    /// Namespace of the `ConfigMap` that is copied.
    #[serde(default)]
    #[schemars(length(max = 63))]
    #[x_kube(validation = (IS_SOURCE, NAMESPACE))]
    pub source_namespace: String,
    /// Namespace of the copy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = (IS_NAMESPACE, NAMESPACE))]
    pub destination_namespace: String,
    /// Namespaces of the copies, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("minItems" = 1, "maxItems" = 256, "items" = { "type": "string", "maxLength": 63 }, "x-kubernetes-list-type" = "set"))]
    #[x_kube(validation = ("self.all(name, !format.dns1123Label().validate(name).hasValue())", NAMESPACE))]
    pub destination_namespaces: Vec<String>,
    /// Labels of the namespaces of the copies; `{}` is every namespace. Those that Kubernetes itself lives in get no
    /// copy, and the source's namespace gets one only if `destinationName` differs from the source's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector_schema")]
    pub destination_namespace_selector: Option<LabelSelector>,
    /// Name of the `ConfigMap` that is copied.
    #[serde(default)]
    #[schemars(length(max = 253))]
    #[x_kube(validation = (IS_NAME, NAME))]
    pub config_map_name: String,
    /// Name of the copies; that of the source unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = ("!format.dns1123Subdomain().validate(self).hasValue()", NAME))]
    pub destination_name: Option<String>,
    /// Whether the copies have exactly the source's labels, beside the mark of their owner. Otherwise labels are nobody's
    /// business here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_labels: Option<bool>,
    /// Whether the copies have exactly the source's annotations, but those of `kubectl apply` and of Quartermaster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_annotations: Option<bool>,
    /// What becomes of copies that are not wanted any more: `Delete` (unless given) or `Orphan`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = ("self in ['Delete', 'Orphan']", "write deletionPolicy: Delete or deletionPolicy: Orphan"))]
    pub deletion_policy: Option<String>,
    /// While true nothing is copied; deleting the object still cleans up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Size of the stored spec, in bytes, if that was too large to be read.
    #[serde(skip)]
    pub oversized: Option<usize>,
}

impl ConfigMapSyncSpec {
    /// Name of the copies.
    pub fn copy_name(&self) -> &str {
        self.destination_name
            .as_deref()
            .unwrap_or(&self.config_map_name)
    }

    /// Whether copies that are not wanted any more stay, without a mark. A spec that was not read may say so.
    pub fn orphans(&self) -> bool {
        self.oversized.is_some() || self.deletion_policy.as_deref() == Some("Orphan")
    }
}

/// What is known of a `ConfigMapSync`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapSyncStatus {
    /// When something was last written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync_time: Option<Time>,
    /// The generation that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How many copies are as the source is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<i64>,
    /// How many copies there are to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destinations: Option<i64>,
    /// `Ready`; while it is False also `Reconciling` or `Stalled`, with the same reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Conditions,
}

/// The schema of a [`LabelSelector`], with what an apiserver checks of those of its own kinds.
fn selector_schema(generator: &mut SchemaGenerator) -> Schema {
    let mut schema =
        serde_json::to_value(LabelSelector::json_schema(generator)).unwrap_or_default();
    let labels = &mut schema["properties"]["matchLabels"];
    labels["maxProperties"] = 16.into();
    labels["additionalProperties"]["maxLength"] = 63.into();
    let expressions = &mut schema["properties"]["matchExpressions"];
    expressions["maxItems"] = 16.into();
    let expression = &mut expressions["items"]["properties"];
    expression["key"]["maxLength"] = 317.into();
    expression["operator"]["enum"] = json!(["In", "NotIn", "Exists", "DoesNotExist"]);
    expression["values"]["maxItems"] = 64.into();
    expression["values"]["items"]["maxLength"] = 63.into();
    schema["x-kubernetes-validations"] = json!([{
        "rule": "!has(self.matchExpressions) || self.matchExpressions.all(it, \
                 (it.operator in ['In', 'NotIn']) == (has(it.values) && it.values.size() > 0))",
        "message": "give values with the operators In and NotIn, and none with Exists and DoesNotExist",
    }, {
        "rule": "(!has(self.matchLabels) || self.matchLabels.all(key, !format.qualifiedName().validate(key).hasValue() \
                 && !format.labelValue().validate(self.matchLabels[key]).hasValue())) \
                 && (!has(self.matchExpressions) || self.matchExpressions.all(it, \
                 !format.qualifiedName().validate(it.key).hasValue() && (!has(it.values) \
                 || it.values.all(value, !format.labelValue().validate(value).hasValue()))))",
        "message": LABELS,
    }]);
    // An object that was one.
    Schema::try_from(schema).unwrap_or_default()
}

/// An empty string is what Go clients write for a field that is not set.
fn one_destination() -> Rule {
    rule_over(
        &[
            "destinationNamespace",
            "destinationNamespaces",
            "destinationNamespaceSelector",
        ],
        "[has(self.destinationNamespace) && self.destinationNamespace != '', has(self.destinationNamespaces), \
         has(self.destinationNamespaceSelector)].filter(given, given).size() == 1",
        "say where to: give one of destinationNamespace (a name), destinationNamespaces (a list of names) and \
         destinationNamespaceSelector (labels)",
    )
}

fn not_itself() -> Rule {
    rule_over(
        &[
            "sourceNamespace",
            "configMapName",
            "destinationName",
            "destinationNamespace",
            "destinationNamespaces",
        ],
        "(has(self.destinationName) && self.destinationName != self.configMapName) \
         || ((!has(self.destinationNamespace) || self.destinationNamespace != self.sourceNamespace) \
         && (!has(self.destinationNamespaces) || !(self.sourceNamespace in self.destinationNamespaces)))",
        "a ConfigMap cannot be copied onto itself: name another namespace than sourceNamespace, or give the copy another \
         destinationName",
    )
}

super::kind::kind!(ConfigMapSync, ConfigMapSyncSpec, ConfigMapSyncStatus, finalizer: FINALIZER);
