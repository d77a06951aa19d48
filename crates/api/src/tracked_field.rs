//! TrackedField: a field of a resource whose changes go to a contact point, and its history.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::core::Rule;
use kube::{CustomResource, KubeSchema};
use qm_core::conditions::{self, Activity, READY, ReadyCondition};
use qm_core::kind::{HasReadyCondition, Kind};
use qm_core::names::MetadataNames;
use qm_core::readiness::{NOT_OBSERVED, Readiness, ReadinessSummary};
use qm_core::shared::Shared;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::common::{MAX_TEMPLATE, NAMES, WAITING, WAITING_REASON, rule_over};

mod history;

pub use history::{
    ChangeAction, ChangedBy, Delivery, Entry, History, KEPT_BYTES, Skipped, StoredHistory, Subject,
    Truncation,
};

/// A field of a resource. The operator records its changes and sends them to a contact point.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "tg.azamaton.ru",
    version = "v1",
    kind = "TrackedField",
    doc = "A field of a resource. The operator records its changes and sends them to a contact point.",
    plural = "trackedfields",
    shortname = "tf",
    category = "quartermaster",
    namespaced,
    status = "StoredHistory",
    derive = "PartialEq",
    derive = "Default",
    printcolumn(name = "Kind", type_ = "string", json_path = ".spec.target.kind"),
    printcolumn(name = "Target", type_ = "string", json_path = ".spec.target.name"),
    printcolumn(name = "Field", type_ = "string", json_path = ".spec.field"),
    // The first of the two fields that the entry has.
    printcolumn(name = "Value", type_ = "string", json_path = ".status[-1:]['displayValue','value']"),
    printcolumn(name = "Delivery", type_ = "string", json_path = ".status[-1:]['delivery','skipped']"),
    printcolumn(
        name = "Waiting",
        type_ = "string",
        json_path = ".metadata.annotations.quartermaster\\.dev/waiting-reason"
    ),
    printcolumn(name = "Last-Value", type_ = "string", json_path = ".status[-1:].value", priority = 1),
    printcolumn(
        name = "Message",
        type_ = "string",
        json_path = ".metadata.annotations.quartermaster\\.dev/waiting",
        priority = 1
    ),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase", remote = "Self")]
#[schemars(extend("required" = ["contactPoint", "field", "target"]))]
#[x_kube(
    validation = field_rule(field_fits_kinds(KINDS_BY_WORDS[0], "self.field")),
    validation = field_rule(field_fits_kinds(KINDS_BY_WORDS[1], "self.field")),
    validation = field_rule(field_fits_kinds(KINDS_BY_WORDS[2], "self.field")),
    validation = field_rule(field_fits_kind_without_words("self.field")),
)]
pub struct TrackedFieldSpec {
    /// Resource with the tracked field. A change of `target` or `field` starts a new series: the next entry is `Created`.
    #[serde(default)]
    pub target: TargetReference,
    /// Tracked field: `replicas` (Deployment, StatefulSet), `image`, `image:CONTAINER` or `images` (kinds with containers),
    /// `targetPort` or `targetPort:PORT` (Service), or a `JSONPath` in braces (any kind).
    #[serde(default)]
    #[schemars(length(max = 1024))]
    #[x_kube(validation = is_field("self", str::to_owned), validation = has_no_range("self", str::to_owned))]
    pub field: String,
    /// Notification of changes.
    #[serde(flatten)]
    pub notification: Arc<NotificationSpec>,
    /// Treatment of the first value of a resource that existed before this object: `Notify` sends it, `Quiet` records it with
    /// `skipped: Initial`. Defaults to `Notify`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    #[x_kube(validation = ("self in ['Notify', 'Quiet']", "write initial: Notify or initial: Quiet"))]
    pub initial: Option<String>,
    /// Size of the stored spec in bytes, if that exceeds the limit for reading.
    #[serde(skip)]
    pub oversized: Option<usize>,
}

/// Notification of the changes of a field: the receiver, the content, and the history.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["contactPoint"]))]
pub struct NotificationSpec {
    /// Name of the ContactPoint, in the same namespace. If this name changes, waiting entries go to the new one.
    #[serde(default)]
    #[schemars(length(max = 253))]
    #[x_kube(validation = (
        "!format.dns1123Subdomain().validate(self).hasValue()",
        "write the name of a ContactPoint of this namespace, without a namespace: lower-case letters, digits, '-' and '.'",
    ))]
    pub contact_point: String,
    /// Jinja template of the message. Defaults to a built-in message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = MAX_TEMPLATE))]
    pub template: Option<String>,
    /// Further fields of the resource, 5 at most, each a name and a `JSONPath` in braces. Their values are recorded
    /// with each change, up to 256 bytes each, for templates and webhooks. A change of these fields alone is not
    /// recorded. Defaults to none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(extend(
        "maxProperties" = 5,
        "additionalProperties" = { "type": "string", "maxLength": 1024 }
    ))]
    #[x_kube(validation = (
        r"self.all(name, name.matches('^[A-Za-z_][A-Za-z0-9_]{0,62}$'))",
        "write each name of context with letters, digits and '_', such as owner: a template reads it as context.owner",
    ), validation = (
        r"self.all(name, self[name].matches(r'^\{.+\}$') && !self[name].matches(r'^\{\s*range\b'))",
        r"write each value of context as one JSONPath in braces without range, such as {.metadata.annotations.example\.com/owner}",
    ))]
    pub context: BTreeMap<String, String>,
    /// CEL expression that decides whether a message is sent for a change, such as `action == 'Updated'`. Other changes are
    /// recorded with `skipped: When`. An expression that fails sends the message. Defaults to a
    /// message for every change.
    #[serde(
        default,
        deserialize_with = "text_of_any_type",
        skip_serializing_if = "Option::is_none"
    )]
    #[schemars(length(min = 1, max = 512))]
    pub when: Option<String>,
    /// Number of finished entries (delivered, failed or skipped) that the history keeps, 1 to 200. Defaults to 50; to
    /// 10 in a TrackedFieldSet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 200))]
    pub history_limit: Option<i64>,
    /// Pause of delivery. While true, the operator records changes but sends none. The pause does not count towards the
    /// expiry of changes after 24 hours. Defaults to false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,
}

/// Reference to a resource by kind, namespace and name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["kind", "name"]))]
#[x_kube(
    validation = other_kinds_need_a_resource(),
    validation = resource_needs_a_version(),
    validation = kind_needs_a_namespace(),
    validation = name_of_a_kind(),
    validation = RESOURCE_IS_NO_SECRET,
)]
pub struct TargetReference {
    /// Kind of the resource: `Deployment`, `StatefulSet`, `DaemonSet`, `Job`, `CronJob`, `Service`, `Ingress` or
    /// `HorizontalPodAutoscaler`, or with `apiVersion` and `resource` any other but Secret.
    #[serde(default)]
    #[schemars(length(max = 63))]
    #[x_kube(validation = IS_KIND, validation = IS_NO_SECRET)]
    pub kind: String,
    /// Namespace of the resource. Required for a kind without `apiVersion`; empty for a cluster-scoped kind.
    #[serde(default)]
    #[schemars(length(max = 63))]
    #[x_kube(validation = (
        "self == '' || !format.dns1123Label().validate(self).hasValue()",
        "write the name of a namespace: lower-case letters, digits and '-'",
    ))]
    pub namespace: String,
    /// Name of the resource.
    #[serde(default)]
    #[schemars(length(max = 253))]
    #[x_kube(validation = (
        r"self.matches(r'^[^/%\s]+$') && !(self in ['.', '..'])",
        "write the name of one resource, without '/', '%' and spaces",
    ))]
    pub name: String,
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
}

/// Value of `spec.initial`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Initial {
    /// The first value is sent.
    Notify,
    /// The first value is recorded, and not sent.
    Quiet,
}

impl Initial {
    /// Reads the value of `field`; any other value counts as `Notify`.
    pub fn of(field: &TrackedField) -> Self {
        if field.spec.initial.as_deref() == Some("Quiet") {
            Self::Quiet
        } else {
            Self::Notify
        }
    }

    /// Returns the word for the spec.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Notify => "Notify",
            Self::Quiet => "Quiet",
        }
    }
}

impl TrackedField {
    /// Returns the history, which is empty without a status.
    ///
    /// # Errors
    /// No known ones, because the stored text comes from serialising a history. Callers must not treat an error as an empty
    /// history: the next write would overwrite the stored one.
    pub fn history(&self) -> serde_json::Result<History> {
        self.status
            .as_ref()
            .map_or_else(|| Ok(History::new()), StoredHistory::parse)
    }
}

impl Subject {
    /// Creates the subject from the target and field of a spec.
    pub fn new(target: &TargetReference, field: &str) -> Self {
        let group = target
            .api_version
            .as_deref()
            .and_then(|api_version| api_version.split_once('/'));
        let group = match group {
            Some((group, _)) if group != "apps" => format!(".{group}"),
            _ => String::new(),
        };
        Self(format!(
            "{}{group}/{}/{}/{field}",
            target.kind, target.namespace, target.name
        ))
    }
}

/// A kind that a target may name without `apiVersion` and `resource`. All are namespaced.
pub struct BuiltInKind {
    /// The kind, such as `Ingress`.
    pub kind: &'static str,
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The version that the operator watches: a `JSONPath` follows that version's schema.
    pub version: &'static str,
    /// The plural name in the paths of the API.
    pub plural: &'static str,
}

const fn built_in(
    kind: &'static str,
    group: &'static str,
    version: &'static str,
    plural: &'static str,
) -> BuiltInKind {
    BuiltInKind {
        kind,
        group,
        version,
        plural,
    }
}

/// All kinds that a target may name without `apiVersion` and `resource`.
pub const BUILT_IN_KINDS: [BuiltInKind; 8] = [
    built_in("Deployment", "apps", "v1", "deployments"),
    built_in("StatefulSet", "apps", "v1", "statefulsets"),
    built_in("DaemonSet", "apps", "v1", "daemonsets"),
    built_in("Job", "batch", "v1", "jobs"),
    built_in("CronJob", "batch", "v1", "cronjobs"),
    built_in("Service", "", "v1", "services"),
    built_in("Ingress", "networking.k8s.io", "v1", "ingresses"),
    built_in(
        "HorizontalPodAutoscaler",
        "autoscaling",
        "v2",
        "horizontalpodautoscalers",
    ),
];

/// Kinds with a template of Pods and a number of replicas.
const SCALED: &[&str] = &["Deployment", "StatefulSet"];
/// Kinds with a template of Pods.
const WITH_CONTAINERS: &[&str] = &["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"];

/// Words for `field`: the word, a placeholder for the name that may follow after a colon, and the kinds that have such a field.
/// Every kind accepts a `JSONPath`.
pub const WORDS: [(&str, Option<&str>, &[&str]); 4] = [
    ("replicas", None, SCALED),
    ("image", Some("CONTAINER"), WITH_CONTAINERS),
    ("images", None, WITH_CONTAINERS),
    ("targetPort", Some("PORT"), &["Service"]),
];

/// Form of `field` that every kind accepts, for messages.
pub const A_PATH: &str = "a JSONPath in braces, such as {.metadata.generation}";

/// API group of the kinds for notifications.
pub const GROUP: &str = "tg.azamaton.ru";

/// The notification specs in use: all TrackedFields of a set have the same one.
static NOTIFICATIONS: LazyLock<Shared<NotificationSpec>> = LazyLock::new(Shared::default);

/// Message for a target of [`GROUP`].
pub const OWN_KINDS_ARE_NOT_TRACKED: &str = "ContactPoints, TrackedFields and TrackedFieldSets cannot be tracked, because their \
                                        content belongs to their namespace and notifications change them: track another kind";

/// Message for a Secret as target.
pub const SECRETS_ARE_NOT_TRACKED: &str = "a Secret cannot be tracked, because messages would carry its content out of the cluster: track another kind";

/// CEL rules of a target's kind, API version and resource.
pub(crate) const IS_KIND: (&str, &str) = (
    "self.matches('^[A-Za-z][A-Za-z0-9]*$')",
    "write the kind of a resource, such as Deployment",
);
pub(crate) const IS_NO_SECRET: (&str, &str) = (
    "!(self.lowerAscii() in ['secret', 'secrets'])",
    SECRETS_ARE_NOT_TRACKED,
);
pub(crate) const RESOURCE_IS_NO_SECRET: (&str, &str) = (
    "!has(self.resource) || !(self.resource in ['secret', 'secrets']) || (has(self.apiVersion) && self.apiVersion.contains('/'))",
    SECRETS_ARE_NOT_TRACKED,
);
pub(crate) const IS_API_VERSION: (&str, &str) = (
    r"self.matches(r'^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "write group and version, such as networking.k8s.io/v1, or v1 alone for the core group",
);
pub(crate) const IS_NOT_OWN_KIND: (&str, &str) = (
    "!self.startsWith('tg.azamaton.ru/')",
    OWN_KINDS_ARE_NOT_TRACKED,
);
pub(crate) const IS_RESOURCE: (&str, &str) = (
    "self.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
    "write the plural name that kubectl api-resources prints, in lower case, such as networkpolicies",
);

/// Returns the rule that the CEL expression `field` is a word or a `JSONPath`, within the rule that `of_all` makes of it.
pub(crate) fn is_field(field: &str, of_all: impl FnOnce(&str) -> String) -> Rule {
    let rule = format!(
        r"{field} in ['replicas', 'image', 'images', 'targetPort']
  || {field}.matches('^(image|targetPort):[a-z0-9]([-a-z0-9]{{0,61}}[a-z0-9])?$') || {field}.matches(r'^\{{.+\}}$')"
    );
    Rule::new(of_all(&rule)).message(
        "write replicas, image, image:CONTAINER, images, targetPort, targetPort:PORT, or a JSONPath in braces, such as \
         {.spec.template.spec.containers[0].resources.limits.memory}",
    )
}

/// Returns the rule that the CEL expression `field` is one path, within the rule that `of_all` makes of it.
pub(crate) fn has_no_range(field: &str, of_all: impl FnOnce(&str) -> String) -> Rule {
    Rule::new(of_all(&format!(r"!{field}.matches(r'^\{{\s*range\b')"))).message(
        "write one JSONPath without range, such as {.spec.template.spec.containers[*].image}: several matches become one list",
    )
}

/// Returns the built-in kinds as a CEL list.
fn built_in_kinds() -> String {
    format!("['{}']", BUILT_IN_KINDS.map(|it| it.kind).join("', '"))
}

pub(crate) fn other_kinds_need_a_resource() -> Rule {
    let [.., last] = BUILT_IN_KINDS;
    let kinds = BUILT_IN_KINDS.map(|it| it.kind);
    rule_over(
        &["kind", "apiVersion", "resource"],
        &format!(
            "self.kind in {} || (has(self.apiVersion) && has(self.resource))",
            built_in_kinds()
        ),
        &format!(
            "write the kind as in {} or {}; any other kind needs apiVersion and resource, such as apiVersion: \
             networking.k8s.io/v1 and resource: networkpolicies for kind: NetworkPolicy",
            kinds[..kinds.len() - 1].join(", "),
            last.kind
        ),
    )
}

pub(crate) fn resource_needs_a_version() -> Rule {
    rule_over(
        &["apiVersion", "resource"],
        "has(self.apiVersion) == has(self.resource)",
        "apiVersion and resource go together: add the other one, or remove both for a kind such as Deployment, which needs neither",
    )
}

fn kind_needs_a_namespace() -> Rule {
    rule_over(
        &["kind", "namespace", "apiVersion"],
        &format!(
            "has(self.apiVersion) || !(self.kind in {}) || (has(self.__namespace__) && self.__namespace__ != '')",
            built_in_kinds()
        ),
        "add namespace: the namespace of the resource",
    )
}

/// Names of other kinds may not be DNS names, such as `system:node`.
fn name_of_a_kind() -> Rule {
    rule_over(
        &["kind", "name", "apiVersion"],
        "has(self.apiVersion) || !format.dns1123Subdomain().validate(self.name).hasValue()",
        "write the resource's name as kubectl prints it: lower-case letters, digits, '-' and '.'",
    )
}

/// Kinds that have the same words for `field`.
pub(crate) const KINDS_BY_WORDS: [&[&str]; 3] =
    [SCALED, &["DaemonSet", "Job", "CronJob"], &["Service"]];

/// Returns the CEL expression for "the target's kind is none of `kinds`, or has the field", and its message.
pub(crate) fn field_fits_kinds(kinds: &[&str], field: &str) -> (String, String) {
    let fits = words(kinds[0]).flat_map(|(word, placeholder)| {
        let named = placeholder.map(|_| format!("{field}.startsWith('{word}:')"));
        [Some(format!("{field} == '{word}'")), named]
            .into_iter()
            .flatten()
    });
    let fits = fits.collect::<Vec<_>>().join(" || ");
    let kind_is = format!("self.target.kind in ['{}']", kinds.join("', '"));
    (
        format!("!({kind_is}) || {fits} || {field}.startsWith('{{')"),
        format!(
            "a {} has no such field: write {}{A_PATH}",
            kinds.join(" or "),
            words_of(kinds[0])
        ),
    )
}

/// Returns the CEL expression for "the target's kind has words, or the field is a path", and its message. Another rule
/// rejects an unknown kind.
pub(crate) fn field_fits_kind_without_words(field: &str) -> (String, String) {
    let kinds = BUILT_IN_KINDS.into_iter().map(|it| it.kind);
    let with_words: Vec<_> = kinds.filter(|kind| words(kind).next().is_some()).collect();
    (
        format!(
            "self.target.kind in ['{}'] || {field}.startsWith('{{') || (!(self.target.kind in {}) && \
             !has(self.target.apiVersion))",
            with_words.join("', '"),
            built_in_kinds()
        ),
        format!("this kind has no such field: write {A_PATH}"),
    )
}

/// Returns the rule, which applies on create and when field or kind change.
fn field_rule((rule, message): (String, String)) -> Rule {
    rule_over(&["field", "target.kind"], &rule, &message).field_path(".field")
}

/// Returns the words for `field` of a target of this kind, each with its placeholder.
fn words(kind: &str) -> impl Iterator<Item = (&'static str, Option<&'static str>)> {
    WORDS
        .into_iter()
        .filter(move |(.., kinds)| kinds.contains(&kind))
        .map(|(word, placeholder, _)| (word, placeholder))
}

/// Returns the words for `field` of a target of this kind, as the beginning of a list that ends with [`A_PATH`].
pub fn words_of(kind: &str) -> String {
    let words = words(kind).flat_map(|(word, placeholder)| {
        let named = placeholder.map(|name| format!("{word}:{name}"));
        [Some(word.to_owned()), named].into_iter().flatten()
    });
    let words = words.collect::<Vec<_>>().join(", ");
    if words.is_empty() {
        words
    } else {
        words + " or "
    }
}

super::spec_size::stored_spec!(TrackedFieldSpec);

/// Reads a text. Another type, which the CRD rejects, is read as its JSON: the object must not stop the watch, and an
/// expression that is no text is reported like any invalid one.
fn text_of_any_type<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    Ok(match Option::<Value>::deserialize(deserializer)? {
        Some(Value::String(text)) => Some(text),
        other => other.map(|other| other.to_string()),
    })
}

/// Returns the readiness of a TrackedField from the reason for which it waits and from whether an entry is recorded.
pub fn from_waiting<'a>(waiting: Option<(&'a str, &str)>, recorded: bool) -> ReadinessSummary<'a> {
    match waiting {
        Some((reason, _)) => (Readiness::False, reason),
        None if recorded => (Readiness::True, READY),
        None => (Readiness::Unknown, NOT_OBSERVED),
    }
}

/// Returns reason and message of a waiting TrackedField, from its annotation: the status is a list without room for
/// conditions.
pub fn waiting(object: &impl ResourceExt) -> Option<(&str, &str)> {
    object
        .annotations()
        .get(WAITING)
        .map(|text| text.split_once(": ").unwrap_or((text, "")))
}

impl Kind for TrackedField {
    const NAMES: &'static MetadataNames = &NAMES;
    const ANNOTATIONS: &'static [&'static str] = &[WAITING, WAITING_REASON];

    fn readiness(&self) -> ReadinessSummary<'_> {
        let recorded = self
            .status
            .as_ref()
            .is_some_and(|history| !history.is_empty());
        from_waiting(waiting(self), recorded)
    }

    fn share(&mut self) {
        let notification = &mut self.spec.notification;
        *notification = NOTIFICATIONS.of(Arc::clone(notification));
    }
}

/// The history has no room for a condition: annotations report it while it is False.
impl HasReadyCondition for TrackedField {
    fn ready_condition(&self) -> Option<ReadyCondition<'_>> {
        waiting(self).map(|(reason, message)| ReadyCondition {
            status: Readiness::False,
            reason,
            message,
            activity: Activity::default(),
        })
    }

    fn observed_generation(&self) -> Option<i64> {
        None
    }

    fn set_ready_condition(
        _status: &mut StoredHistory,
        _condition: &ReadyCondition<'_>,
        _generation: i64,
        _now: Time,
    ) {
    }

    fn ready_annotations(condition: &ReadyCondition<'_>) -> Vec<(&'static str, Option<String>)> {
        let ReadyCondition {
            reason, message, ..
        } = *condition;
        let is_true = condition.is_true();
        let message = conditions::bounded(message);
        vec![
            (WAITING, (!is_true).then(|| format!("{reason}: {message}"))),
            (WAITING_REASON, (!is_true).then(|| reason.to_owned())),
        ]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use qm_core::conditions::MAX_MESSAGE;

    use super::*;

    #[test]
    fn annotation_of_a_long_message_is_bounded() {
        let message = "ä".repeat(MAX_MESSAGE);
        let condition = ReadyCondition {
            status: Readiness::False,
            reason: "WhenInvalid",
            message: &message,
            activity: Activity::default(),
        };
        let annotations = TrackedField::ready_annotations(&condition);
        let longest = annotations.into_iter().filter_map(|(_, value)| value);
        let longest = longest.map(|value| value.len()).max().unwrap();
        assert_eq!(longest, "WhenInvalid: ".len() + MAX_MESSAGE);
    }
}
