//! Page of the labels, annotations, finalizers and AWS tags.

use std::fmt::Write as _;

use qm_api::common::{
    ADOPT_BY, ALLOWED_CHATS, ALLOWED_NAMESPACES, NAMES, OWNER, OWNER_UID, REQUESTED_AT, SCHEMA,
    SHARED, TEST_AT, WAITING, WAITING_REASON,
};
use qm_api::{app_service, config_map_sync, my_ingress, tracked_field_set};
use qm_aws::action::MANAGED_BY;
use quartermaster::controllers::my_app::build::SPEC_DIGEST;
use quartermaster::permissions::AGGREGATE_TO_TRACKER;

use super::markdown::cell;
use crate::rbac::SCOPE;

const BEGIN: &str = "\
# Labels, annotations, finalizers and tags

Every name that the operator writes or reads on an object. \"You\" set a name by hand, by a manifest, or by a command of
`quartermaster`.
";

/// A name: where it is, who sets it, and what it does.
type Name = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    &'static str,
);

#[rustfmt::skip]
const LABELS: &[Name] = &[
    (OWNER_UID, "UID of the owner", "children: copies of ConfigMaps, Pods, TrackedFields of a set, objects of an AppService", "operator", "Proves that the operator owns the object, as an owner reference in the same namespace does. On a copy in another namespace the label is the only proof, so leave it out of objects that you make from a copy."),
    (tracked_field_set::SET, "name of the set", "TrackedFields of a TrackedFieldSet", "operator", "Lets you list them: `kubectl get tf -l quartermaster.dev/set=NAME`."),
    (SHARED, "`\"true\"`", "a Secret in the operator's namespace", "you", "With `--shared-secrets=labelled`, Webhook ContactPoints of other namespaces may use the Secret."),
    (AGGREGATE_TO_TRACKER, "`\"true\"`", "a ClusterRole", "you", "Adds the rules of the ClusterRole to what TrackedFields may track."),
    (SCOPE, "`cluster` or `namespaces`", "the operator's ClusterRole", "manifests, chart", "Scope of the operator's watches. The chart reads it to detect another installation."),
    ("app", "name of the app", "Pods, and the Deployment and Service of an AppService", "operator", "Selector of the Pods."),
    ("app.kubernetes.io/name, app.kubernetes.io/instance", "name of the app", "objects of an AppService", "operator", "Recommended labels of Kubernetes."),
    ("app.kubernetes.io/managed-by", "`quartermaster`", "objects of an AppService", "operator", "Recommended label of Kubernetes. Proves nothing."),
];

#[rustfmt::skip]
const ANNOTATIONS: &[Name] = &[
    (REQUESTED_AT, "any new value", "a resource of any kind", "you", "Reconciles the object at once and ends the wait for the next attempt. A ContactPoint also stops waiting for a digest, but not for the pause that Telegram asks for."),
    (TEST_AT, "any new value", "a ContactPoint", "you, `quartermaster test`", "Sends one test message. `status.lastTest` has the result."),
    (ADOPT_BY, "`NAMESPACE/NAME` of the owner", "an object that the operator does not own", "you, `quartermaster adopt`", "Lets the operator adopt the object for that owner. The operator then removes the annotation."),
    (OWNER, "`NAMESPACE/NAME`", "children", "operator", "Names the owner. Proves nothing."),
    (NAMES.applied_digest, "digest", "objects of an AppService, TrackedFields of a set", "operator", "Digest of the applied state. If it matches after a restart, the operator does not apply the object again."),
    (SPEC_DIGEST, "digest", "the Pod of a MyApp", "operator", "Digest of the spec that the Pod was created from. If it differs, the operator replaces the Pod."),
    (WAITING, "`REASON: MESSAGE`", "a TrackedField", "operator", "Why nothing is recorded or sent; absent if nothing waits. Column MESSAGE."),
    (WAITING_REASON, "`REASON`", "a TrackedField", "operator", "The reason alone. Column WAITING."),
    (ALLOWED_NAMESPACES, "namespaces, separated by commas", "a Secret in the operator's namespace", "you", "Limits the namespaces whose ContactPoints may use the Secret. Empty allows none; absent allows all."),
    (ALLOWED_CHATS, "`chatId`s, separated by commas", "a Secret in the operator's namespace", "you", "Limits the chats to which ContactPoints of other namespaces may send with the token, and forbids webhooks. Empty allows none; absent allows all."),
    (SCHEMA, "number and digest", "the CRDs", "manifests, chart", "Version of the schema. The operator does not serve a kind whose CRD is older than its own."),
    (app_service::OLD_SPEC, "JSON", "an AppService", "the original program", "Marks objects of that program. The operator ignores the value and removes the annotation."),
];

#[rustfmt::skip]
const FINALIZERS: &[Name] = &[
    (config_map_sync::FINALIZER, "", "a ConfigMapSync", "operator", "Holds the deleted object until its copies are deleted or orphaned."),
    (my_ingress::FINALIZER, "", "a MyIngress", "operator", "Holds the deleted object until AWS no longer shows its load balancer."),
];

#[rustfmt::skip]
const TAGS: &[Name] = &[
    (MANAGED_BY.0, "`quartermaster`", "load balancers, listeners, target groups", "operator", "For people. Proves nothing."),
    ("quartermaster.dev/cluster", "UID of the namespace `kube-system`", "the same", "operator", "Tells clusters apart. With the owner's UID, proves that the operator owns the resource."),
    (OWNER_UID, "UID of the MyIngress", "the same", "operator", "Proves the owner. The IAM policy limits the operator to resources with this tag."),
    (OWNER, "`NAMESPACE/NAME`", "the same", "operator", "Names the MyIngress, also after a restore from a backup under a new UID."),
    (ADOPT_BY, "`NAMESPACE/NAME` of the MyIngress", "a resource that the operator does not own", "you, `quartermaster adopt`", "Lets the operator adopt the resource. The operator then removes the tag."),
];

pub fn page() -> String {
    let mut page = BEGIN.to_owned();
    for (heading, names) in [
        ("Labels", LABELS),
        ("Annotations", ANNOTATIONS),
        ("Finalizers", FINALIZERS),
        ("AWS tags", TAGS),
    ] {
        // Writing to a String does not fail.
        let _ = write!(
            page,
            "\n## {heading}\n\n| name | value | on | set by | what it does |\n| --- | --- | --- | --- | --- |\n"
        );
        for (name, value, on, by, what) in names {
            let name = name.replace(", ", "`, `");
            let _ = writeln!(
                page,
                "| `{name}` | {value} | {on} | {by} | {} |",
                cell(what)
            );
        }
    }
    page
}
