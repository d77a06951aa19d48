//! ConfigMapSync: copies of a ConfigMap in other namespaces.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, Time};
use kube::core::Rule;
use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::common::{Conditions, conditions_schema, rule_over, selector_schema};

/// API group of the kind.
pub const GROUP: &str = "apps.bixbite.io";
/// Finalizer: the copies are in other namespaces, where garbage collection does not work.
pub const FINALIZER: &str = "quartermaster.dev/copies";

/// Upper-case letters pass, because the sample of the source article has them; the status then reports the correct form.
const IS_SOURCE: &str = "self.matches('^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$')";
const IS_NAMESPACE: &str = "self == '' || self.matches('^[A-Za-z0-9]([-A-Za-z0-9]*[A-Za-z0-9])?$')";
const IS_NAME: &str = "self.matches('^[A-Za-z0-9]([-.A-Za-z0-9]*[A-Za-z0-9])?$')";
const NAMESPACE: &str =
    "write the name of a namespace: lower-case letters, digits and '-', at most 63";
const NAME_RULE: &str =
    "write the name of a ConfigMap: lower-case letters, digits, '-' and '.', at most 253";

/// Copies of a ConfigMap in other namespaces.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "apps.bixbite.io",
    version = "v1",
    kind = "ConfigMapSync",
    doc = "Copies of a ConfigMap in other namespaces.",
    plural = "configmapsyncs",
    shortname = "cmsync",
    category = "quartermaster",
    namespaced,
    status = "ConfigMapSyncStatus",
    derive = "PartialEq",
    derive = "Default",
    // The original CRD accepted an object without a spec. An unreadable object would stop the watch of the kind.
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
    /// Namespace of the source ConfigMap.
    #[serde(default)]
    #[schemars(length(max = 63))]
    #[x_kube(validation = (IS_SOURCE, NAMESPACE))]
    pub source_namespace: String,
    /// Namespace of the copy. Set one of the three destination fields.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    #[x_kube(validation = (IS_NAMESPACE, NAMESPACE))]
    pub destination_namespace: String,
    /// Namespaces of several copies. Set one of the three destination fields.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("minItems" = 1, "maxItems" = 256, "items" = { "type": "string", "maxLength": 63 }, "x-kubernetes-list-type" = "set"))]
    #[x_kube(validation = ("self.all(name, !format.dns1123Label().validate(name).hasValue())", NAMESPACE))]
    pub destination_namespaces: Vec<String>,
    /// Labels of the namespaces of the copies; `{}` selects all. Namespaces that belong to Kubernetes get no copy. The
    /// source's namespace gets a copy only if `destinationName` differs from the source's name. Set one of the three
    /// destination fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "selector_schema")]
    pub destination_namespace_selector: Option<LabelSelector>,
    /// Name of the source ConfigMap.
    #[serde(default)]
    #[schemars(length(max = 253))]
    #[x_kube(validation = (IS_NAME, NAME_RULE))]
    pub config_map_name: String,
    /// Name of the copies. Defaults to the source's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    #[x_kube(validation = ("!format.dns1123Subdomain().validate(self).hasValue()", NAME_RULE))]
    pub destination_name: Option<String>,
    /// Copying of labels. If true, each copy has the source's labels and the ownership label, and no others. Defaults to
    /// false: the operator changes no other labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_labels: Option<bool>,
    /// Copying of annotations. If true, each copy has the source's annotations, except those of `kubectl apply` and
    /// Quartermaster, and no others. Defaults to false: the operator changes no other annotations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copy_annotations: Option<bool>,
    /// Policy for copies that the sync no longer needs, because it is deleted or names other namespaces. `Delete` deletes them;
    /// `Orphan` keeps them without the ownership label. Defaults to `Delete`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = ("self in ['Delete', 'Orphan']", "write deletionPolicy: Delete or deletionPolicy: Orphan"))]
    pub deletion_policy: Option<String>,
    /// Suspension of reconciliation. While true, the operator changes no copies; deleting the object still removes them.
    /// Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
    /// Size of the stored spec in bytes, if that exceeds the limit for reading.
    #[serde(skip)]
    pub oversized: Option<usize>,
}

impl ConfigMapSyncSpec {
    /// Returns the name of the copies.
    pub fn copy_name(&self) -> &str {
        self.destination_name
            .as_deref()
            .unwrap_or(&self.config_map_name)
    }

    /// Returns whether copies that the sync no longer needs are kept without the ownership label. True for a spec that was not
    /// read, because that may say `Orphan`.
    pub fn orphans(&self) -> bool {
        self.oversized.is_some() || self.deletion_policy.as_deref() == Some("Orphan")
    }

    /// Returns whether the spec may ask for a copy in this namespace, whose labels are unknown. True for a spec that was
    /// not read.
    pub fn may_reach(&self, namespace: &str) -> bool {
        self.oversized.is_some()
            || self.destination_namespace_selector.is_some()
            || self.destination_namespace == namespace
            || self.destination_namespaces.iter().any(|it| it == namespace)
    }
}

/// Observed state of the copies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigMapSyncStatus {
    /// Time of the last write to a copy. Without a record of one, the time at which the copies were found to match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync_time: Option<Time>,
    /// Generation of the spec that this status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Number of copies that match the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<i64>,
    /// Number of copies that the spec requires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destinations: Option<i64>,
    /// `Ready`, and while `Ready` is False also `Reconciling` or `Stalled` with the same reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "conditions_schema")]
    pub conditions: Conditions,
}

/// Go clients write an empty string for an unset field.
fn one_destination() -> Rule {
    rule_over(
        &[
            "destinationNamespace",
            "destinationNamespaces",
            "destinationNamespaceSelector",
        ],
        "[has(self.destinationNamespace) && self.destinationNamespace != '', has(self.destinationNamespaces), \
         has(self.destinationNamespaceSelector)].filter(given, given).size() == 1",
        "give one destination: destinationNamespace (a name), destinationNamespaces (a list of names) or \
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
        "a ConfigMap cannot be copied onto itself: name a namespace other than sourceNamespace, or give the copy another \
         destinationName",
    )
}

super::kind::kind!(ConfigMapSync, ConfigMapSyncSpec, ConfigMapSyncStatus, finalizer: FINALIZER, orphans: orphans);
