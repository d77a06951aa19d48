//! What several kinds share: references, conditions, the annotations of the `quartermaster.dev` family.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The category that `kubectl get quartermaster -A` lists.
pub const CATEGORY: &str = "quartermaster";
/// Annotation: any new value runs a pass at once and resets the object's backoff.
pub const REQUESTED_AT: &str = "quartermaster.dev/requested-at";
/// Annotation of a CRD: the digest of its schema. A CRD without ours prunes our fields, so it counts as absent.
pub const SCHEMA: &str = "quartermaster.dev/schema";
/// Annotation of a `TrackedField`: why it waits. Its status is a list and has no room for conditions.
pub const WAITING: &str = "quartermaster.dev/waiting";
/// Annotation of a Secret in the operator's namespace that Webhook contact points of other namespaces may use.
pub const SHARED: &str = "quartermaster.dev/shared";

/// One key of a Secret, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKey {
    /// Name of the Secret.
    pub secret_name: String,
    /// Key within the Secret's data.
    pub key: String,
}

/// Conditions, one of each type (<https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md#typical-status-properties>).
pub type Conditions = Vec<Condition>;

/// The schema of [`Conditions`]: a list that server-side apply merges by `type`.
pub fn conditions_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = <Conditions as JsonSchema>::json_schema(generator);
    schema.insert("x-kubernetes-list-type".into(), "map".into());
    schema.insert("x-kubernetes-list-map-keys".into(), serde_json::json!(["type"]));
    schema
}
