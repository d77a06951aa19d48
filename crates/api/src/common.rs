//! What several kinds share: references, conditions, the annotations of the `quartermaster.dev` family.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use kube::core::Rule;
use qm_core::names::MetadataNames;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The category that `kubectl get quartermaster -A` lists.
pub const CATEGORY: &str = "quartermaster";
/// Names of the operator's labels and annotations.
pub const NAMES: MetadataNames = qm_core::metadata_names!("quartermaster.dev");
/// Prefix of the names of the operator's labels and annotations.
pub const OURS: &str = NAMES.prefix;
/// Annotation: any new value triggers a reconcile and resets the object's backoff.
pub const REQUESTED_AT: &str = NAMES.requested_at;
/// Annotation of a CRD: number and digest of its schema.
pub const SCHEMA: &str = NAMES.schema;
/// Label: UID of the owner.
pub const OWNER_UID: &str = NAMES.owner_uid;
/// Annotation: owner as `NAMESPACE/NAME`.
pub const OWNER: &str = NAMES.owner;
/// Annotation: owner, as `NAMESPACE/NAME`, that may adopt the object.
pub const ADOPT_BY: &str = NAMES.adopt_by;
/// Annotation of a `TrackedField`: why it waits. Its status is a list and has no room for conditions.
pub const WAITING: &str = "quartermaster.dev/waiting";
/// Annotation of a `TrackedField`: the reason alone, for the column WAITING.
pub const WAITING_REASON: &str = "quartermaster.dev/waiting-reason";
/// Label, "true" on a Secret in the operator's namespace that Webhook contact points of other namespaces may use.
pub const SHARED: &str = "quartermaster.dev/shared";
/// Annotation of a Secret in the operator's namespace: the other namespaces whose contact points may use it, separated by
/// commas. Absent: every namespace.
pub const ALLOWED_NAMESPACES: &str = "quartermaster.dev/allowed-namespaces";
/// Annotation of a Secret in the operator's namespace: the Telegram chats that contact points of other namespaces may send to
/// with it, separated by commas. Absent: every chat.
pub const ALLOWED_CHATS: &str = "quartermaster.dev/allowed-chats";

/// One key of a Secret, by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeySelector {
    /// Name of the Secret.
    #[schemars(length(max = 253))]
    #[x_kube(validation = SECRET_NAME)]
    pub secret_name: String,
    /// Key within the Secret's data.
    #[schemars(length(max = 253))]
    #[x_kube(validation = (
        "self.matches('^[-._a-zA-Z0-9]+$')",
        "write a key of the Secret's data: letters, digits, '-', '_' and '.', such as token",
    ))]
    pub key: String,
}

/// A CEL rule and its message: the name of a Secret.
pub const SECRET_NAME: (&str, &str) = (
    "!format.dns1123Subdomain().validate(self).hasValue()",
    "write the name of a Secret: lower-case letters, digits, '-' and '.', such as telegram-cp-token",
);

/// A CEL rule over several fields of one object, given as paths from it (`webhookSpec.url`). It binds on create and when
/// one of them changes: an object that was stored before the rule existed can still be suspended, labelled and deleted.
///
/// Written with `has()`: CEL's `?.` hides the fields' bounds from the apiserver, which then refuses the rule as too costly.
pub fn rule_over(fields: &[&str], rule: &str, message: &str) -> Rule {
    let unchanged: Vec<_> = fields
        .iter()
        .map(|field| {
            // `namespace` is a reserved word of CEL. Kubernetes spells it with underscores in `self`, which has a type, and
            // as it is in an `oldSelf` that is optional and has none (seen on 1.36).
            let typed = field.replace("namespace", "__namespace__");
            let (new, old) = (present("self", &typed), present("oldSelf.value()", field));
            format!("({new}) == ({old}) && (!({new}) || self.{typed} == oldSelf.value().{field})")
        })
        .collect();
    Rule::new(format!(
        "(oldSelf.hasValue() && {}) || ({rule})",
        unchanged.join(" && ")
    ))
    .message(message)
    .optional_old_self(true)
}

/// CEL for "the field at this path is there".
fn present(object: &str, path: &str) -> String {
    let ends = path
        .match_indices('.')
        .map(|(end, _)| end)
        .chain([path.len()]);
    ends.map(|end| format!("has({object}.{})", &path[..end]))
        .collect::<Vec<_>>()
        .join(" && ")
}

/// Conditions, one of each type (<https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md#typical-status-properties>).
pub type Conditions = Vec<Condition>;

/// The schema of [`Conditions`]: a list that server-side apply merges by `type`.
pub fn conditions_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut schema = <Conditions as JsonSchema>::json_schema(generator);
    schema.insert("x-kubernetes-list-type".into(), "map".into());
    schema.insert(
        "x-kubernetes-list-map-keys".into(),
        serde_json::json!(["type"]),
    );
    schema
}
