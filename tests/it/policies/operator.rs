//! The operator's own account, with its token: the account may only change objects that have the ownership label or are
//! adoptable.

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, PostParams, Preconditions};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};
use testbed::wait::until;

use super::{allowed, rejected, rejection_of};
use crate::support::{ACCOUNT, Bed, SOON, SYSTEM};

const DRY: PostParams = PostParams {
    dry_run: true,
    field_manager: None,
};

pub(super) async fn operator(bed: &Bed) -> Client {
    let path = bed
        .plane
        .kubeconfig_for_service_account(SYSTEM, ACCOUNT)
        .await
        .unwrap();
    let file = Kubeconfig::read_from(path).unwrap();
    let mut config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .unwrap();
    config.proxy_url = None;
    Client::try_from(config).unwrap()
}

/// Returns the kinds that the operator creates: the resource, all fields except the name, and whether the operator may
/// patch or replace them.
fn created_kinds() -> Vec<(ApiResource, Value, bool)> {
    let of = |group: &str, kind: &str, plural: &str, version: &str| {
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    };
    let container = json!({ "name": "a", "image": "a" });
    let labels = json!({ "app": "a" });
    let template =
        json!({ "metadata": { "labels": labels }, "spec": { "containers": [container] } });
    let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "a" });
    let service = json!({ "service": { "name": "a", "port": { "number": 80 } } });
    vec![
        (
            of("", "ConfigMap", "configmaps", "v1"),
            json!({ "data": { "a": "b" } }),
            false,
        ),
        (
            of("", "Pod", "pods", "v1"),
            json!({ "spec": { "containers": [container] } }),
            true,
        ),
        (
            of("", "Service", "services", "v1"),
            json!({ "spec": { "ports": [{ "port": 80 }] } }),
            true,
        ),
        (
            of("apps", "Deployment", "deployments", "v1"),
            json!({ "spec": { "replicas": 0, "selector": { "matchLabels": labels }, "template": template } }),
            true,
        ),
        (
            of(
                "autoscaling",
                "HorizontalPodAutoscaler",
                "horizontalpodautoscalers",
                "v2",
            ),
            json!({ "spec": { "maxReplicas": 2, "scaleTargetRef": target } }),
            true,
        ),
        (
            of("networking.k8s.io", "Ingress", "ingresses", "v1"),
            json!({ "spec": { "defaultBackend": service } }),
            true,
        ),
        (tracked_fields(), tracked_field(), true),
    ]
}

fn tracked_fields() -> ApiResource {
    let kind = GroupVersionKind::gvk("tg.azamaton.ru", "v1", "TrackedField");
    ApiResource::from_gvk_with_plural(&kind, "trackedfields")
}

fn tracked_field() -> Value {
    let target = json!({ "kind": "Deployment", "namespace": "a", "name": "a" });
    json!({ "spec": { "target": target, "field": "replicas", "contactPoint": "a" } })
}

fn labelled() -> Value {
    json!({ "labels": { "quartermaster.dev/owner-uid": "6c1a" } })
}

fn controller(api_version: &str, kind: &str, controls: bool) -> Value {
    json!({ "ownerReferences": [
        { "apiVersion": api_version, "kind": kind, "name": "a", "uid": "6c1a", "controller": controls },
    ] })
}

/// Returns metadata, and whether the operator may change and delete an object with it. The operator may create only the
/// first.
fn metadata_cases() -> Vec<(&'static str, Value, bool)> {
    vec![
        ("marked", labelled(), true),
        (
            "handed-over",
            json!({ "annotations": { "quartermaster.dev/adopt-by": "a/b" } }),
            true,
        ),
        (
            "of-a-sync",
            controller("apps.bixbite.io/v1", "ConfigMapSync", true),
            true,
        ),
        (
            "of-an-app",
            controller("kosmos.io/v1", "AppService", true),
            true,
        ),
        ("nobodys", json!({}), false),
        (
            "said-to-be-ours",
            json!({ "annotations": { "quartermaster.dev/owner": "a/b" } }),
            false,
        ),
        (
            "of-another",
            controller("apps/v1", "AppService", true),
            false,
        ),
        ("of-the-core", controller("v1", "MyApp", true), false),
        (
            "not-controlled",
            controller("kosmos.io/v1", "AppService", false),
            false,
        ),
        (
            "otherwise-marked",
            json!({ "annotations": { "quartermaster.dev/owner-uid": "6c1a" } }),
            false,
        ),
        (
            "otherwise-handed-over",
            json!({ "labels": { "quartermaster.dev/adopt-by": "a" } }),
            false,
        ),
    ]
}

#[tokio::test]
async fn operator_changes_only_owned_or_adoptable_objects() {
    // The control plane runs neither the garbage collector, which would delete objects of missing owners, nor the
    // controller that creates Pods' accounts.
    let bed = Bed::without_controllers("policy-operator").await;
    bed.kubectl(&["create", "serviceaccount", "default"]).await;
    let operator = operator(&bed).await;
    for (kind, rest, patches) in created_kinds() {
        let foreign =
            Api::<DynamicObject>::namespaced_with(bed.client.clone(), &bed.namespace, &kind);
        let own_objects =
            Api::<DynamicObject>::namespaced_with(operator.clone(), &bed.namespace, &kind);
        for (name, metadata, is_ours) in metadata_cases() {
            let mut object = DynamicObject::new(name, &kind).data(rest.clone());
            object.metadata = serde_json::from_value(metadata).unwrap();
            object.metadata.name = Some(name.into());
            let expected = format!(
                "the operator may not change {} \"{name}\" in namespace \"{}\": the object has neither the label \
                 quartermaster.dev/owner-uid nor a Quartermaster resource as its controller, and no annotation \
                 quartermaster.dev/adopt-by allows its adoption",
                kind.plural, bed.namespace
            );
            // The operator may create objects only with the label.
            if name == "marked" {
                allowed("a labelled object is created", async || {
                    own_objects.create(&DRY, &object).await
                })
                .await;
            } else {
                let rejection =
                    rejected(&expected, async || own_objects.create(&DRY, &object).await).await;
                assert!(rejection.ends_with(&expected), "{rejection}");
            }
            let live = foreign
                .create(&PostParams::default(), &object)
                .await
                .unwrap();
            let patch =
                json!({ "metadata": { "labels": labelled()["labels"], "uid": live.metadata.uid } });
            let changed = if patches {
                let parameters = PatchParams {
                    dry_run: true,
                    ..PatchParams::default()
                };
                own_objects
                    .patch(name, &parameters, &Patch::Merge(&patch))
                    .await
            } else {
                let mut live = live.clone();
                live.metadata.labels =
                    serde_json::from_value(labelled()["labels"].clone()).unwrap();
                live.metadata.managed_fields = None;
                own_objects.replace(name, &DRY, &live).await
            };
            let preconditions = Preconditions {
                uid: live.metadata.uid.clone(),
                resource_version: None,
            };
            let parameters = DeleteParams {
                dry_run: true,
                ..DeleteParams::default().preconditions(preconditions)
            };
            let deleted = own_objects.delete(name, &parameters).await;
            if is_ours {
                changed.unwrap_or_else(|error| panic!("{} {name}: {error}", kind.plural));
                deleted.unwrap_or_else(|error| panic!("{} {name}: {error}", kind.plural));
            } else {
                for rejection in [rejection_of(changed), rejection_of(deleted)] {
                    assert!(rejection.ends_with(&expected), "{rejection}");
                }
            }
        }
    }
}

#[tokio::test]
async fn operator_annotates_any_tracked_field_and_changes_nothing_else() {
    let bed = Bed::without_controllers("policy-annotate").await;
    let kind = tracked_fields();
    let foreign = Api::<DynamicObject>::namespaced_with(bed.client.clone(), &bed.namespace, &kind);
    let object = DynamicObject::new("mine", &kind).data(tracked_field());
    let live = foreign
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
    let operator =
        Api::<DynamicObject>::namespaced_with(operator(&bed).await, &bed.namespace, &kind);
    let patch = async |mut patch: Value| {
        patch["metadata"]["uid"] = json!(live.metadata.uid);
        let dry = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        operator.patch("mine", &dry, &Patch::Merge(&patch)).await
    };
    let annotations = |name: &str| json!({ "metadata": { "annotations": { name: "a/b" } } });
    allowed("an annotation is written", async || {
        patch(annotations("quartermaster.dev/waiting")).await
    })
    .await;
    for change in [
        json!({ "spec": { "field": "image" } }),
        json!({ "metadata": labelled() }),
        json!({ "metadata": controller("tg.azamaton.ru/v1", "TrackedFieldSet", true) }),
        json!({ "metadata": { "finalizers": ["example.com/stays"] } }),
        annotations("quartermaster.dev/adopt-by"),
        annotations("quartermaster.dev/owner"),
    ] {
        let rejection = rejection_of(patch(change).await);
        assert!(
            rejection.contains("may not change trackedfields \"mine\""),
            "{rejection}"
        );
    }
}

/// A released copy loses its label: the policy reads the old object.
#[tokio::test]
async fn ownership_label_can_be_removed_and_releases_the_object() {
    let bed = Bed::shared("policy-unmark").await;
    let kind = &created_kinds()[0].0;
    let own_objects =
        Api::<DynamicObject>::namespaced_with(operator(&bed).await, &bed.namespace, kind);
    let mut object = DynamicObject::new("copy", kind).data(json!({ "data": { "a": "b" } }));
    object.metadata.labels = serde_json::from_value(labelled()["labels"].clone()).unwrap();
    let mut copy = allowed("a copy is created", async || {
        own_objects.create(&PostParams::default(), &object).await
    })
    .await;
    copy.metadata.labels = None;
    copy.metadata.managed_fields = None;
    let mut copy = own_objects
        .replace("copy", &PostParams::default(), &copy)
        .await
        .unwrap();
    copy.data["data"]["a"] = "c".into();
    copy.metadata.managed_fields = None;
    rejection_of(
        own_objects
            .replace("copy", &PostParams::default(), &copy)
            .await,
    );
    rejection_of(own_objects.delete("copy", &DeleteParams::default()).await);
    bed.kubectl(&[
        "annotate",
        "configmap",
        "copy",
        "quartermaster.dev/adopt-by=a/b",
    ])
    .await;
    own_objects
        .delete("copy", &DeleteParams::default())
        .await
        .unwrap();
}

/// The account is a parameter of the policy: without the account the policy binds no client, and must not block others.
#[tokio::test]
async fn missing_account_blocks_nobody_else() {
    let bed = Bed::on_own_plane_with(testbed::Options::apiserver_only(), "policy-account").await;
    let kind = &created_kinds()[0].0;
    let own_objects =
        Api::<DynamicObject>::namespaced_with(operator(&bed).await, &bed.namespace, kind);
    let object = DynamicObject::new("nobodys", kind).data(json!({}));
    rejected("the operator may not change configmaps", async || {
        own_objects.create(&DRY, &object).await
    })
    .await;
    let accounts = Api::<ServiceAccount>::namespaced(bed.client.clone(), SYSTEM);
    accounts
        .delete(ACCOUNT, &DeleteParams::default())
        .await
        .unwrap();
    let foreign = Api::<DynamicObject>::namespaced_with(bed.client.clone(), &bed.namespace, kind);
    foreign
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
    // The token is invalid by then.
    until("the token is refused", SOON, async || {
        match own_objects.create(&DRY, &object).await {
            Err(kube::Error::Api(rejection)) if rejection.code == 401 => Ok(Some(())),
            other => anyhow::bail!("{other:?}"),
        }
    })
    .await
    .unwrap();
}
