//! Items that several kinds share: references, conditions, names of labels and annotations.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector};
use kube::KubeSchema;
use kube::core::Rule;
use qm_core::names::MetadataNames;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Names of the operator's labels and annotations.
pub const NAMES: MetadataNames = qm_core::metadata_names!("quartermaster.dev");
/// Prefix of the names of the operator's labels and annotations.
pub const PREFIX: &str = NAMES.prefix;
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
/// Annotation of a ContactPoint: each new value requests one test message.
pub const TEST_AT: &str = "quartermaster.dev/test-at";
/// Annotation of a waiting TrackedField: reason and message. The status is a list and has no room for conditions.
pub const WAITING: &str = "quartermaster.dev/waiting";
/// Annotation of a waiting TrackedField: the reason, for the column WAITING.
pub const WAITING_REASON: &str = "quartermaster.dev/waiting-reason";
/// Label: "true" on a Secret in the operator's namespace that Webhook contact points of other namespaces may use.
pub const SHARED: &str = "quartermaster.dev/shared";
/// Annotation of a Secret in the operator's namespace: the other namespaces whose contact points may use the Secret, separated
/// by commas. Defaults to all.
pub const ALLOWED_NAMESPACES: &str = "quartermaster.dev/allowed-namespaces";
/// Annotation of a Secret in the operator's namespace: the Telegram chats to which contact points of other namespaces may send
/// with this token, separated by commas. Defaults to all.
pub const ALLOWED_CHATS: &str = "quartermaster.dev/allowed-chats";
/// Maximum length of a template, in characters.
pub const MAX_TEMPLATE: usize = 8192;

/// Reference to a key of a Secret.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeySelector {
    /// Name of the Secret.
    #[schemars(length(max = 253))]
    #[x_kube(validation = SECRET_NAME)]
    pub secret_name: String,
    /// Key in the Secret's data.
    #[schemars(length(max = 253))]
    #[x_kube(validation = (
        "self.matches('^[-._a-zA-Z0-9]+$')",
        "write a key of the Secret's data: letters, digits, '-', '_' and '.', such as token",
    ))]
    pub key: String,
}

/// CEL rule and message for the name of a Secret.
pub const SECRET_NAME: (&str, &str) = (
    "!format.dns1123Subdomain().validate(self).hasValue()",
    "write the name of a Secret: lower-case letters, digits, '-' and '.', such as telegram-cp-token",
);

/// Returns a CEL rule over several fields of an object, given as paths such as `webhookSpec.url`. The rule applies on create
/// and when one of the fields changes: an object stored before the rule existed can still be suspended, labelled and deleted.
///
/// The rule uses `has()`: CEL's `?.` hides the fields' bounds from the apiserver, which then rejects the rule as too costly.
pub fn rule_over(fields: &[&str], rule: &str, message: &str) -> Rule {
    let unchanged: Vec<_> = fields
        .iter()
        .map(|field| {
            // CEL reserves the word `namespace`. Kubernetes escapes it with underscores in `self`, which has a type, but not
            // in an optional `oldSelf`, which has none (observed on 1.36).
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

/// Returns the CEL expression for "the field at this path exists".
fn present(object: &str, path: &str) -> String {
    let ends = path
        .match_indices('.')
        .map(|(end, _)| end)
        .chain([path.len()]);
    ends.map(|end| format!("has({object}.{})", &path[..end]))
        .collect::<Vec<_>>()
        .join(" && ")
}

/// Conditions, at most one of each type (<https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md#typical-status-properties>).
pub type Conditions = Vec<Condition>;

/// Returns the schema of [`Conditions`]: a list that server-side apply merges by `type`.
pub fn conditions_schema(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = <Conditions as JsonSchema>::json_schema(generator);
    schema.insert("x-kubernetes-list-type".into(), "map".into());
    schema.insert("x-kubernetes-list-map-keys".into(), json!(["type"]));
    schema
}

/// Message for an invalid key or value of a selector.
pub const LABELS: &str = "write labels: keys such as team or example.com/team, values of letters, digits, '-', '_' and '.'";

/// Returns the schema of a [`LabelSelector`] with the validation that Kubernetes applies to built-in kinds.
pub(crate) fn selector_schema(generator: &mut SchemaGenerator) -> Schema {
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
    // The value was an object before, so the conversion succeeds.
    Schema::try_from(schema).unwrap_or_default()
}
