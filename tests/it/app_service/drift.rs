//! Drift of an app's children: the operator corrects its own fields and keeps those of others.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use kube::api::{Patch, PatchParams};
use kube::{Api, Resource, ResourceExt};
use qm_api::AppService;
use rstest::rstest;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use testbed::wait::until;

use super::{app, ready, reconciled};
use crate::support::{Bed, Operator, SOON, Settings};

fn spec() -> Value {
    json!({
        "size": 0,
        "image": "nginx:1.7.9",
        "ports": [{ "name": "http", "port": 80, "targetPort": "http" }, { "name": "admin", "port": 81 }],
        "env": [{ "name": "A", "value": "b" }],
        "resources": { "limits": { "cpu": "1" } },
        "livenessProbe": { "httpGet": { "port": 80, "path": "/" } },
        "command": ["sh"],
        "args": ["-c"],
        "serviceAccountName": "default",
        "imagePullSecrets": [{ "name": "registry" }],
        "ingress": { "host": "app.example.com" },
        "autoscaling": { "min": 1, "max": 3 },
    })
}

/// Returns the fields that the operator sets on an object: spec and ownership metadata.
pub(super) fn operator_fields<K: Resource<DynamicType = ()> + Serialize>(object: &K) -> Value {
    let mut metadata = object.meta().clone();
    metadata.managed_fields = None;
    metadata.resource_version = None;
    metadata.generation = None;
    let revision = "deployment.kubernetes.io/revision";
    metadata
        .annotations
        .as_mut()
        .map(|annotations| annotations.remove(revision));
    json!({ "metadata": metadata, "spec": serde_json::to_value(object).unwrap()["spec"] })
}

/// Applies each JSON patch of `harm` to the object, and waits until the operator has restored it.
pub(super) async fn assert_corrected<K>(bed: &Bed, harm: &[Value])
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Serialize,
{
    let api: Api<K> = bed.api();
    let before = api.get("web").await.unwrap();
    for patch in harm {
        let parameters = PatchParams {
            field_manager: Some("somebody".into()),
            ..PatchParams::default()
        };
        let operations = serde_json::from_value(json!([patch])).unwrap();
        let harmed = api
            .patch("web", &parameters, &Patch::<()>::Json(operations))
            .await;
        let harmed = harmed.unwrap_or_else(|error| panic!("{patch}: {error}"));
        assert_ne!(
            operator_fields(&harmed),
            operator_fields(&before),
            "{patch} harms nothing"
        );
        let mut last = json!(null);
        let right = until(format!("{patch} is corrected"), SOON, async || {
            last = operator_fields(&api.get("web").await?);
            Ok((last == operator_fields(&before)).then_some(()))
        });
        if let Err(error) = right.await {
            let app: AppService = bed.api().get("web").await.unwrap();
            panic!(
                "{error:#}\n{:#}\n{last:#}\n{:#?}",
                operator_fields(&before),
                super::ready_condition(&app)
            );
        }
    }
}

pub(super) fn replace(path: &str, value: impl Into<Value>) -> Value {
    json!({ "op": "replace", "path": path, "value": value.into() })
}

pub(super) fn add(path: &str, value: impl Into<Value>) -> Value {
    json!({ "op": "add", "path": path, "value": value.into() })
}

pub(super) fn remove(path: &str) -> Value {
    json!({ "op": "remove", "path": path })
}

#[tokio::test]
async fn every_field_of_the_operator_is_corrected() {
    let bed = Bed::shared("drift").await;
    // A tiny window, so that no correction is delayed.
    let _operator = Operator::start(&bed, Settings::default().flag("--drift-window=1ms")).await;
    app(&bed, "web", spec()).await;
    ready(&bed, "web").await;
    // By then the operator has released the field `replicas`, after the first reconcile.
    reconciled(&bed, "web").await;

    let ownership = [
        remove("/metadata/labels/app"),
        replace("/metadata/labels/app.kubernetes.io~1name", json!("x")),
        remove("/metadata/labels/quartermaster.dev~1owner-uid"),
        replace("/metadata/labels/quartermaster.dev~1owner-uid", json!("x")),
        remove("/metadata/annotations/quartermaster.dev~1owner"),
        replace(
            "/metadata/annotations/quartermaster.dev~1owner",
            json!("x/y"),
        ),
        remove("/metadata/annotations/quartermaster.dev~1applied-digest"),
        remove("/metadata/ownerReferences"),
    ];
    let container = |rest: &str| format!("/spec/template/spec/containers/0/{rest}");
    let pod = |rest: &str| format!("/spec/template/spec/{rest}");
    let mut harm = ownership.to_vec();
    harm.extend([
        replace(&container("image"), json!("nginx:evil")),
        replace(&container("imagePullPolicy"), json!("Always")),
        replace(&container("command"), json!(["evil"])),
        remove(&container("args")),
        replace(&container("env/0/value"), json!("x")),
        remove(&container("env")),
        remove(&container("ports/1")),
        replace(&container("ports/0/containerPort"), json!(8080)),
        replace(&container("resources/limits/cpu"), json!("2")),
        remove(&container("livenessProbe")),
        replace(&container("livenessProbe/httpGet/path"), json!("/x")),
        remove(&pod("imagePullSecrets")),
    ]);
    assert_corrected::<Deployment>(&bed, &harm).await;

    let mut harm = ownership.to_vec();
    harm.extend([
        replace("/spec/ports/0/port", json!(8080)),
        replace("/spec/ports/0/targetPort", json!(8080)),
        replace("/spec/ports/0/name", json!("x")),
        remove("/spec/ports/1"),
        replace("/spec/selector/app", json!("other")),
        remove("/spec/selector"),
        replace("/spec/type", json!("LoadBalancer")),
    ]);
    // A removed port gets another node port.
    let ports = async || {
        let service: Service = bed.api().get("web").await.unwrap();
        let ports = service.spec.unwrap().ports.unwrap();
        ports
            .into_iter()
            .map(|port| port.node_port.unwrap())
            .collect::<Vec<_>>()
    };
    let pinned: Vec<_> = ports().await;
    let mut with_ports = spec();
    for (port, number) in with_ports["ports"]
        .as_array_mut()
        .unwrap()
        .iter_mut()
        .zip(pinned)
    {
        port["nodePort"] = number.into();
    }
    super::respec(&bed, "web", with_ports).await;
    ready(&bed, "web").await;
    assert_corrected::<Service>(&bed, &harm).await;

    let mut harm = ownership.to_vec();
    harm.extend([
        replace("/spec/maxReplicas", json!(30)),
        replace("/spec/scaleTargetRef/name", json!("other")),
    ]);
    assert_corrected::<HorizontalPodAutoscaler>(&bed, &harm).await;
    let mut harm = ownership.to_vec();
    harm.extend([
        replace("/spec/rules/0/host", json!("evil.example.com")),
        replace(
            "/spec/rules/0/http/paths/0/backend/service/name",
            json!("evil"),
        ),
    ]);
    assert_corrected::<Ingress>(&bed, &harm).await;

    // Without an autoscaler the operator owns the number of Pods too.
    let mut plain = spec();
    plain.as_object_mut().unwrap().remove("autoscaling");
    super::respec(&bed, "web", plain).await;
    ready(&bed, "web").await;
    assert_corrected::<Deployment>(&bed, &[replace("/spec/replicas", json!(2))]).await;
}

/// Deletes the object, and waits until another one exists.
async fn assert_recreated<K>(bed: &Bed)
where
    K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned,
{
    let before = bed.api::<K>().get("web").await.unwrap();
    bed.delete::<K>("web").await;
    let back = until(format!("{} is back", K::kind(&())), SOON, async || {
        let now = bed.api::<K>().get_opt("web").await?;
        Ok(now.filter(|now| now.uid() != before.uid()))
    });
    back.await.unwrap();
}

#[tokio::test]
async fn deleted_child_is_recreated() {
    let bed = Bed::shared("deleted").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let mut spec = spec();
    spec["imagePullSecrets"] = json!([]);
    app(&bed, "web", spec).await;
    ready(&bed, "web").await;
    assert_recreated::<Deployment>(&bed).await;
    assert_recreated::<Service>(&bed).await;
    assert_recreated::<Ingress>(&bed).await;
    assert_recreated::<HorizontalPodAutoscaler>(&bed).await;
    ready(&bed, "web").await;
}

/// Additions of others stay: an annotation, a label, a sidecar, a field that the operator does not set. The same holds
/// for an object without any apply since its creation, and where the same request changes the operator's fields.
#[rstest]
#[case::applied(true)]
#[case::created(false)]
#[tokio::test]
async fn fields_of_others_stay(#[case] applied: bool) {
    let bed = Bed::shared("others").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let mut newer = spec();
    if !applied {
        newer.as_object_mut().unwrap().remove("autoscaling");
    }
    app(&bed, "web", newer.clone()).await;
    ready(&bed, "web").await;
    reconciled(&bed, "web").await;
    let by = PatchParams {
        field_manager: Some("somebody".into()),
        ..PatchParams::default()
    };
    let image = if applied { "nginx:1.7.9" } else { "httpd" };
    let foreign = json!([
        replace("/spec/template/spec/containers/0/image", json!(image)),
        add("/metadata/annotations/note", json!("theirs")),
        add("/metadata/labels/team", json!("theirs")),
        add(
            "/spec/template/metadata/annotations",
            json!({ "injected": "true" })
        ),
        add(
            "/spec/template/spec/containers/-",
            json!({ "name": "sidecar", "image": "proxy" })
        ),
        add(
            "/spec/template/spec/tolerations",
            json!([{ "key": "gpu", "operator": "Exists" }])
        ),
        add("/spec/minReadySeconds", json!(1)),
    ]);
    let operations = serde_json::from_value(foreign).unwrap();
    let changed = bed
        .api::<Deployment>()
        .patch("web", &by, &Patch::<()>::Json(operations))
        .await
        .unwrap();
    let more = add("/metadata/annotations/note", json!("theirs"));
    let policy = replace("/spec/externalTrafficPolicy", json!("Local"));
    let operations = serde_json::from_value(json!([more, policy])).unwrap();
    let served = bed
        .api::<Service>()
        .patch("web", &by, &Patch::<()>::Json(operations))
        .await
        .unwrap();

    // Another write of the operator keeps the change too.
    newer["image"] = json!("nginx:1.27");
    newer["ports"][0]["appProtocol"] = json!("http");
    super::respec(&bed, "web", newer).await;
    ready(&bed, "web").await;
    reconciled(&bed, "web").await;
    let (deployment, service) = (
        super::deployment(&bed, "web").await,
        super::service(&bed, "web").await,
    );
    let mut expected = operator_fields(&changed);
    expected["spec"]["template"]["spec"]["containers"][0]["image"] = json!("nginx:1.27");
    let mut now = operator_fields(&deployment);
    for object in [&mut expected, &mut now] {
        object["metadata"]["annotations"]
            .as_object_mut()
            .unwrap()
            .remove("quartermaster.dev/applied-digest");
    }
    assert_eq!(now, expected);
    assert_eq!(service.annotations()["note"], "theirs");
    assert_eq!(
        json!(service.spec)["externalTrafficPolicy"],
        json!(served.spec)["externalTrafficPolicy"]
    );
}

/// A user who scales the Deployment itself learns once what to scale instead.
#[tokio::test]
async fn external_scaler_is_named() {
    let bed = Bed::shared("scaled").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let deployments = bed.api::<Deployment>();
    for (name, manager) in [("web", "their-autoscaler"), ("api", "argocd")] {
        app(&bed, name, json!({ "size": 0, "image": "i" })).await;
        ready(&bed, name).await;
        for replicas in 1..4 {
            let mut by = PatchParams {
                field_manager: Some(manager.into()),
                ..PatchParams::default()
            };
            let mut scale = json!({ "spec": { "replicas": replicas } });
            if name == "web" {
                deployments
                    .patch_scale(name, &by, &Patch::Merge(scale))
                    .await
                    .unwrap();
            } else {
                by.force = true;
                (scale["apiVersion"], scale["kind"]) = (json!("apps/v1"), json!("Deployment"));
                deployments
                    .patch(name, &by, &Patch::Apply(scale))
                    .await
                    .unwrap();
            }
            let back =
                |deployment: &Deployment| deployment.spec.as_ref().unwrap().replicas == Some(0);
            bed.until(name, "has its size again", back).await;
        }
        let message = bed.event(name, "DriftCorrected").await;
        let expected = format!(
            "corrected spec.replicas of Deployment {}/{name}, changed by {manager}: ",
            bed.namespace
        );
        assert!(
            message.starts_with(&expected) && message.contains("scaleTargetRef"),
            "{message}"
        );
        assert_eq!(bed.events(name, "DriftCorrected").await.len(), 1);
    }
}
