//! Decides whether an object may be adopted. Pure.

use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::core::ObjectMeta;
use qm_api::MyApp;
use qm_api::common::{OWNER, OWNER_UID};
use qm_api::config_map_sync::ConfigMapSyncSpec;
use qm_aws::{DesiredLoadBalancer, LoadBalancer, Tags};
use qm_runtime::ObjectKey;
use qm_runtime::children::{ChildAction, DesiredChild as _};
use qm_runtime::ownership::{ForeignOwner, Owner, Ownership};

use crate::controllers::config_map_sync::copy::DesiredCopy;
use crate::controllers::my_app::build;
use crate::controllers::my_app::plan::PodPlan;
use crate::controllers::my_app::pod_state::{PodLifecycle, PodState};
use crate::controllers::my_ingress::build::incompatibility;
use crate::controllers::my_ingress::tags::OwnershipTags;

/// Label: the program that manages an object
/// (<https://kubernetes.io/docs/concepts/overview/working-with-objects/common-labels/>).
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Tag of a load balancer that the tutorial's Kopf operator (document 003) created.
const KOPF: (&str, &str) = ("ManagedBy", "kopf");
/// Prefixes of the tags by which other programs know their load balancers: `CloudFormation` and other services of AWS,
/// the AWS Load Balancer Controller, Kubernetes' own cloud controller, and this operator in another cluster.
const FOREIGN_TAGS: [&str; 6] = [
    "aws:",
    "elbv2.k8s.aws/",
    "ingress.k8s.aws/",
    "service.k8s.aws/",
    "kubernetes.io/",
    "quartermaster.dev/",
];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Adoptability {
    /// The resource owns the object, or has the consent to adopt it.
    AlreadyOwned,
    /// Adoption leaves the object as it is, with this note.
    Adoptable(String),
    /// Adoption overwrites or replaces the object, for this reason.
    WouldReplace(String),
    /// Adoption may replace the object; this error leaves that open.
    Unknown(String),
    /// The object has another owner, or cannot serve the resource, for this reason.
    NotAdoptable(String),
}

/// The source of a copy, none if it does not exist, or the error of its read.
pub(super) type CopySource = Result<Option<ConfigMap>, String>;

/// Classifies the `ConfigMap` that has the name of a copy. `exists` returns whether a `ConfigMapSync` has that UID.
pub(super) fn copy(
    owner: &Owner,
    spec: &ConfigMapSyncSpec,
    live: &ConfigMap,
    source: &CopySource,
    exists: impl Fn(&str) -> bool,
) -> Adoptability {
    let if_unowned = match source {
        Ok(None) => Adoptability::Adoptable("stays unchanged until its source exists".into()),
        Ok(Some(source)) => {
            let copy = DesiredCopy {
                key: ObjectKey::of(live),
                source,
                spec,
                owner,
                digest: "",
            };
            // Adoption adds the ownership labels in any case.
            let mut adopted = live.clone();
            owner.set_ownership(&mut adopted.metadata);
            match copy.plan(&adopted, &Ownership::Owned, None) {
                None => Adoptability::Adoptable("same as its source".into()),
                Some(ChildAction::Delete(_)) => Adoptability::WouldReplace(
                    "differs from its source and is immutable: the operator deletes and recreates it"
                        .into(),
                ),
                Some(_) => Adoptability::WouldReplace(
                    "differs from its source: the operator overwrites its content".into(),
                ),
            }
        }
        Err(error) => Adoptability::Unknown(format!(
            "the source could not be read, so the operator may replace this copy: {error}"
        )),
    };
    classify(owner, &live.metadata, if_unowned, exists)
}

/// Classifies the Pod that has the name of the Pod of `app`. `exists` returns whether a `MyApp` has that UID.
pub(super) fn pod(
    owner: &Owner,
    live: &Pod,
    app: &MyApp,
    exists: impl Fn(&str) -> bool,
) -> Adoptability {
    let pod = PodState::of(live);
    let replaced = |why: &str| {
        Adoptability::WouldReplace(format!("{why}: the operator deletes and recreates it"))
    };
    let if_unowned = match build::validate(app) {
        Err(invalid) => Adoptability::Adoptable(format!(
            "stays unchanged until its MyApp is fixed: {invalid}"
        )),
        Ok(desired) => {
            let plan = PodPlan { owner, desired };
            match plan.plan_cached(&pod) {
                Some(ChildAction::Delete(why)) => replaced(&why),
                _ if pod.lifecycle == PodLifecycle::Ended => replaced("it has terminated"),
                _ => Adoptability::Adoptable("keeps running unchanged".into()),
            }
        }
    };
    classify(owner, &live.metadata, if_unowned, exists)
}

/// Returns `if_unowned` for an object without an owner.
fn classify(
    owner: &Owner,
    metadata: &ObjectMeta,
    if_unowned: Adoptability,
    exists: impl Fn(&str) -> bool,
) -> Adoptability {
    let foreign = match owner.ownership(metadata, exists) {
        Ownership::Owned | Ownership::Restored | Ownership::Adoptable => {
            return Adoptability::AlreadyOwned;
        }
        Ownership::Foreign(foreign) => foreign,
    };
    let label = |name: &str| metadata.labels.as_ref().and_then(|labels| labels.get(name));
    let reference = metadata.owner_references.iter().flatten().next();
    let problem = match foreign {
        ForeignOwner::Sibling(other) => format!("it belongs to {other}"),
        ForeignOwner::Promised(other) => format!("{other} is allowed to adopt it"),
        ForeignOwner::Controlled(controller) => format!("it is controlled by {controller}"),
        ForeignOwner::Unowned => {
            if let Some(uid) = label(OWNER_UID) {
                format!("its label says that it belongs to the resource with the UID {uid}")
            } else if metadata.deletion_timestamp.is_some() {
                "it is being deleted".into()
            } else if let Some(reference) = reference {
                format!("it belongs to {} {}", reference.kind, reference.name)
            } else if let Some(manager) = label(MANAGED_BY) {
                format!("it is managed by {manager}")
            } else {
                return if_unowned;
            }
        }
    };
    Adoptability::NotAdoptable(problem)
}

/// Classifies the load balancer that has the desired name. `exists` returns whether a `MyIngress` has that UID.
pub(super) fn load_balancer(
    own_tags: &OwnershipTags<'_>,
    live: &LoadBalancer,
    tags: &Tags,
    desired: &DesiredLoadBalancer,
    exists: impl Fn(&str) -> bool,
) -> Adoptability {
    if !matches!(own_tags.ownership(tags, exists), Ownership::Foreign(_)) {
        return Adoptability::AlreadyOwned;
    }
    let is_foreign = |key: &&String| FOREIGN_TAGS.iter().any(|prefix| key.starts_with(prefix));
    let manager = tags.get(KOPF.0).filter(|manager| *manager != KOPF.1);
    Adoptability::NotAdoptable(if let Some(owner) = tags.get(OWNER) {
        format!("its tags say that it belongs to {owner}")
    } else if let Some(key) = tags.keys().find(is_foreign) {
        format!("its tag {key} says that another program owns it")
    } else if let Some(manager) = manager {
        format!("it is managed by {manager}")
    } else if let Some(problem) = incompatibility(live, desired) {
        problem
    } else {
        return Adoptability::Adoptable(live.arn.clone());
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use qm_api::{ConfigMapSync, MyIngress};
    use rstest::rstest;
    use serde_json::{Value, from_value, json};

    use super::*;
    use crate::controllers::my_ingress;

    fn owner() -> Owner {
        let sync =
            json!({ "metadata": { "namespace": "sync", "name": "s", "uid": "u" }, "spec": {} });
        Owner::of(&from_value::<ConfigMapSync>(sync).unwrap()).unwrap()
    }

    fn map(metadata: &Value, data: &Value) -> ConfigMap {
        let mut map = json!({ "metadata": { "namespace": "far", "name": "c" }, "data": data });
        map["metadata"]
            .as_object_mut()
            .unwrap()
            .extend(metadata.as_object().unwrap().clone());
        from_value(map).unwrap()
    }

    #[rstest]
    #[case::bare(json!({}), Adoptability::Adoptable("same as its source".into()))]
    #[case::owned_by_the_sync(json!({ "labels": { "quartermaster.dev/owner-uid": "u" } }), Adoptability::AlreadyOwned)]
    #[case::consented(json!({ "annotations": { "quartermaster.dev/adopt-by": "sync/s" } }), Adoptability::AlreadyOwned)]
    #[case::promised(json!({ "annotations": { "quartermaster.dev/adopt-by": "a/b" } }), Adoptability::NotAdoptable("a/b is allowed to adopt it".into()))]
    #[case::of_a_sibling(json!({ "labels": { "quartermaster.dev/owner-uid": "v" }, "annotations": { "quartermaster.dev/owner": "a/b" } }), Adoptability::NotAdoptable("it belongs to a/b".into()))]
    #[case::of_a_uid(json!({ "labels": { "quartermaster.dev/owner-uid": "v" } }), Adoptability::NotAdoptable("its label says that it belongs to the resource with the UID v".into()))]
    #[case::controlled(json!({ "ownerReferences": [{ "apiVersion": "v1", "kind": "X", "name": "x", "uid": "1", "controller": true }] }), Adoptability::NotAdoptable("it is controlled by X x".into()))]
    #[case::owned(json!({ "ownerReferences": [{ "apiVersion": "v1", "kind": "X", "name": "x", "uid": "1" }] }), Adoptability::NotAdoptable("it belongs to X x".into()))]
    #[case::of_a_chart(json!({ "labels": { "app.kubernetes.io/managed-by": "Helm" } }), Adoptability::NotAdoptable("it is managed by Helm".into()))]
    #[case::being_deleted(json!({ "deletionTimestamp": "2026-01-01T00:00:00Z" }), Adoptability::NotAdoptable("it is being deleted".into()))]
    fn object_is_adoptable_without_an_owner(
        #[case] metadata: Value,
        #[case] adoptability: Adoptability,
    ) {
        let live = map(&metadata, &json!({ "k": "v" }));
        assert_eq!(
            copied(
                &live,
                &Ok(Some(map(&json!({}), &json!({ "k": "v" })))),
                &json!({})
            ),
            adoptability
        );
    }

    fn copied(live: &ConfigMap, source: &CopySource, spec: &Value) -> Adoptability {
        copy(
            &owner(),
            &from_value(spec.clone()).unwrap(),
            live,
            source,
            |_| true,
        )
    }

    #[test]
    fn copy_with_an_unreadable_source_is_unknown() {
        let live = map(&json!({}), &json!({ "k": "v" }));
        let Adoptability::Adoptable(note) = copied(&live, &Ok(None), &json!({})) else {
            panic!()
        };
        assert!(note.contains("until its source exists"), "{note}");
        let text =
            "the source could not be read, so the operator may replace this copy: you may not";
        assert_eq!(
            copied(&live, &Err("you may not".into()), &json!({})),
            Adoptability::Unknown(text.into())
        );
        let helm = map(
            &json!({ "labels": { "app.kubernetes.io/managed-by": "Helm" } }),
            &json!({}),
        );
        assert!(matches!(
            copied(&helm, &Err("you may not".into()), &json!({})),
            Adoptability::NotAdoptable(_)
        ));
    }

    /// The controller takes the same action.
    #[rstest]
    #[case::the_same(json!({}), json!({}), json!({}), "same as its source")]
    #[case::another_value(json!({ "data": { "a": "c" } }), json!({}), json!({}), "overwrites its content")]
    #[case::an_empty_map(json!({ "binaryData": {} }), json!({}), json!({}), "same as its source")]
    #[case::to_be_immutable(json!({}), json!({ "immutable": true }), json!({}), "overwrites its content")]
    #[case::immutable_no_more(json!({ "immutable": true }), json!({}), json!({}), "recreates it")]
    #[case::of_other_labels(json!({}), json!({ "metadata": { "labels": { "l": "1" } } }), json!({}), "same as its source")]
    #[case::labels_that_are_copied(json!({}), json!({ "metadata": { "labels": { "l": "1" } } }), json!({ "copyLabels": true }), "overwrites its content")]
    #[case::annotations_that_are_copied(json!({ "metadata": { "annotations": { "n": "1" } } }), json!({}), json!({ "copyAnnotations": true }), "overwrites its content")]
    fn copy_that_differs_from_its_source_would_be_replaced(
        #[case] live: Value,
        #[case] source: Value,
        #[case] spec: Value,
        #[case] text: &str,
    ) {
        let map = |more: &Value| -> ConfigMap {
            let mut map = json!({ "data": { "a": "b" } });
            map.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            from_value(map).unwrap()
        };
        let adoptability = copied(&map(&live), &Ok(Some(map(&source))), &spec);
        match &adoptability {
            Adoptability::Adoptable(note) if text == "same as its source" => assert_eq!(note, text),
            Adoptability::WouldReplace(note) => assert!(note.ends_with(text), "{note}"),
            _ => panic!("{adoptability:?}"),
        }
    }

    #[rstest]
    #[case::as_desired("nginx:1", "hello", "Running", json!({ "image": "nginx:1", "banner": "hello" }), None)]
    #[case::of_another_image("redis", "hello", "Running", json!({ "image": "nginx:1", "banner": "hello" }), Some("its image is redis, and the spec says nginx:1"))]
    #[case::of_another_banner("nginx:1", "hello", "Running", json!({ "image": "nginx:1", "banner": "bye" }), Some("the banner has changed"))]
    #[case::terminated("nginx:1", "hello", "Failed", json!({ "image": "nginx:1", "banner": "hello" }), Some("it has terminated"))]
    #[case::of_an_invalid_app("redis", "hello", "Running", json!({}), None)]
    fn pod_that_differs_would_be_replaced(
        #[case] image: &str,
        #[case] banner: &str,
        #[case] phase: &str,
        #[case] spec: Value,
        #[case] replaced: Option<&str>,
    ) {
        let app =
            json!({ "metadata": { "namespace": "shop", "name": "web", "uid": "u" }, "spec": spec });
        let app: MyApp = from_value(app).unwrap();
        let container = json!({ "name": "web", "image": image, "env": [{ "name": "BANNER", "value": banner }] });
        let pod = json!({ "metadata": { "namespace": "shop", "name": "web-pod" }, "spec": { "containers": [container] },
            "status": { "phase": phase } });
        let adoptability = super::pod(
            &Owner::of(&app).unwrap(),
            &from_value(pod).unwrap(),
            &app,
            |_| true,
        );
        match (&adoptability, replaced) {
            (Adoptability::Adoptable(_), None) => {}
            (Adoptability::WouldReplace(note), Some(why)) => {
                assert!(note.starts_with(why), "{note}");
            }
            _ => panic!("{adoptability:?}"),
        }
    }

    #[rstest]
    #[case::of_document_003(&[("ManagedBy", "kopf")], true)]
    #[case::untagged(&[], true)]
    #[case::with_tags_of_a_team(&[("team", "shop")], true)]
    #[case::of_terraform(&[("ManagedBy", "terraform")], false)]
    #[case::of_a_stack(&[("aws:cloudformation:stack-name", "x")], false)]
    #[case::of_another_controller(&[("elbv2.k8s.aws/cluster", "x")], false)]
    #[case::of_another_cluster(&[("quartermaster.dev/cluster", "d"), ("quartermaster.dev/owner", "shop/web")], false)]
    #[case::promised(&[("quartermaster.dev/adopt-by", "a/b")], false)]
    fn load_balancer_is_adoptable_without_an_owner(
        #[case] tags: &[(&str, &str)],
        #[case] adoptable: bool,
    ) {
        let ingress = json!({ "metadata": { "namespace": "shop", "name": "web", "uid": "u" },
            "spec": { "subnets": ["subnet-a", "subnet-b"] } });
        let ingress: MyIngress = from_value(ingress).unwrap();
        let owner = Owner::of(&ingress).unwrap();
        let ownership = OwnershipTags {
            owner: &owner,
            cluster: "c",
        };
        let desired = my_ingress::build::desired(&ingress, &ownership);
        let live = LoadBalancer {
            arn: "arn:1".into(),
            kind: "application".into(),
            scheme: "internet-facing".into(),
            ..LoadBalancer::default()
        };
        let tags: Tags = tags
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let adoptability = load_balancer(&ownership, &live, &tags, &desired, |_| true);
        assert_eq!(
            adoptability == Adoptability::Adoptable("arn:1".into()),
            adoptable,
            "{adoptability:?}"
        );
        let internal = LoadBalancer {
            scheme: "internal".into(),
            ..live
        };
        assert!(matches!(
            load_balancer(&ownership, &internal, &tags, &desired, |_| true),
            Adoptability::NotAdoptable(_)
        ));
        assert_eq!(
            load_balancer(&ownership, &internal, &ownership.tags(), &desired, |_| true),
            Adoptability::AlreadyOwned
        );
    }
}
