//! The operator never changes an unowned object until its owner allows the adoption.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Resource, ResourceExt};
use qm_api::AppService;
use rstest::rstest;
use serde_json::{Value, json};
use testbed::wait::until;

use super::{app, deployment, not_ready, ready, reconciled, replica_sets, service, writes};
use crate::support::{Bed, Operator, SOON, Settings};

fn spec() -> Value {
    json!({ "size": 1, "image": "nginx:1.7.9", "ports": [{ "port": 80, "targetPort": 80 }] })
}

/// Returns an object without its status, which another controller writes.
fn whole<K: Resource + serde::Serialize>(object: &K) -> Value {
    let mut value = serde_json::to_value(object).unwrap();
    value.as_object_mut().unwrap().remove("status");
    for volatile in ["managedFields", "resourceVersion"] {
        value["metadata"].as_object_mut().unwrap().remove(volatile);
    }
    value
}

/// Two objects are adopted one after the other, the second one as promptly as the first.
#[rstest]
#[case::deployment_first(["deployments.apps", "services"])]
#[case::service_first(["services", "deployments.apps"])]
#[tokio::test]
async fn second_of_two_foreign_objects_is_adopted_as_soon_as_the_first(#[case] order: [&str; 2]) {
    let bed = Bed::shared("two-foreign").await;
    let _operator = Operator::start(
        &bed,
        Settings::default()
            .flag("--poll-max=3s")
            .flag("--sync-period=1h"),
    )
    .await;
    bed.deployment("web", 1).await;
    bed.service("web", json!([{ "port": 8080 }])).await;
    app(&bed, "web", spec()).await;
    let adopt = format!("quartermaster.dev/adopt-by={}/web", bed.namespace);
    for (turn, resource) in order.into_iter().enumerate() {
        let command = format!(
            "kubectl annotate {resource} web -n {} {adopt}",
            bed.namespace
        );
        let message = not_ready(&bed, "web", "Conflict").await;
        assert!(message.contains(&command), "{message}");
        if turn == 1 {
            // The backoff has reached its maximum, and the status no longer changes.
            reconciled(&bed, "web").await;
            tokio::time::sleep(std::time::Duration::from_secs(8)).await;
        }
        bed.kubectl(&["annotate", resource, "web", &adopt]).await;
        let plain = format!("the app no longer says that {resource} are foreign");
        bed.until("web", &plain, |app: &AppService| {
            let message = super::ready_condition(app)
                .and_then(|ready| ready.message.clone())
                .unwrap_or_default();
            !message.contains(&command)
        })
        .await;
    }
    ready(&bed, "web").await;
}

#[rstest]
#[case::deployment("deployments.apps")]
#[case::service("services")]
#[tokio::test]
async fn foreign_object_is_unchanged_until_adoption(#[case] resource: &str) {
    let bed = Bed::shared("foreign").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let is_deployment = resource == "deployments.apps";
    if is_deployment {
        bed.deployment("web", 2).await;
    } else {
        bed.service("web", json!([{ "port": 8080 }])).await;
    }
    let look = async || {
        if is_deployment {
            whole(&deployment(&bed, "web").await)
        } else {
            whole(&service(&bed, "web").await)
        }
    };
    let before = look().await;
    let since = bed.plane.audit().mark().await.unwrap();
    app(&bed, "web", spec()).await;
    let message = not_ready(&bed, "web", "Conflict").await;
    let namespace = bed.namespace.clone();
    let command = format!(
        "kubectl annotate {resource} web -n {namespace} quartermaster.dev/adopt-by={namespace}/web"
    );
    assert!(message.ends_with(&command), "{message}");
    reconciled(&bed, "web").await;
    let plural = resource.split('.').next().unwrap();
    let written = bed
        .plane
        .audit()
        .requests(since)
        .await
        .unwrap()
        .into_iter()
        .filter(|request| {
            let it = &request.subject;
            it.is_write()
                && it.namespace == namespace
                && it.name == "web"
                && it.resource == plural
                && request.code < 300
                && it.user.contains("quartermaster")
        });
    assert_eq!(written.count(), 0);
    let mut after = look().await;
    // The Deployment controller counts revisions.
    for object in [&mut after] {
        if before["metadata"].get("annotations").is_none() {
            object["metadata"]
                .as_object_mut()
                .unwrap()
                .remove("annotations");
        }
    }
    assert_eq!(after, before);
    let names_command = |app: &AppService| {
        app.status
            .as_ref()
            .is_some_and(|status| status.replicas.is_some())
            != is_deployment
    };
    let app = bed
        .until(
            "web",
            "the status leaves out foreign objects and names the rest",
            names_command,
        )
        .await;
    let status = app.status.unwrap();
    assert!(status.cluster_ip.is_none() || is_deployment);

    let command: Vec<_> = command.split(' ').skip(1).collect();
    bed.plane.run_kubectl(&command, "").await.unwrap();
    ready(&bed, "web").await;
    let (uid, adopted) = if is_deployment {
        let deployment = deployment(&bed, "web").await;
        (deployment.uid(), deployment.metadata)
    } else {
        let service = service(&bed, "web").await;
        (service.uid(), service.metadata)
    };
    assert_eq!(json!(uid), before["metadata"]["uid"]);
    assert!(
        !adopted
            .annotations
            .as_ref()
            .unwrap()
            .contains_key("quartermaster.dev/adopt-by")
    );
    assert_eq!(adopted.owner_references.unwrap()[0].name, "web");
}

/// The status names all foreign objects together, each with the command that adopts it. The status of a foreign object
/// is not shown as the app's own, not even if the object names the app as its owner, which anybody may write.
#[tokio::test]
async fn every_foreign_object_is_named() {
    let bed = Bed::shared("both").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let other = app(&bed, "other", json!({ "size": 0, "image": "i" })).await;
    ready(&bed, "other").await;
    bed.deployment("web", 1).await;
    bed.service("web", json!([{ "port": 8080 }])).await;
    let runs = |deployment: &Deployment| {
        deployment
            .status
            .as_ref()
            .is_some_and(|it| it.available_replicas == Some(1))
    };
    bed.until("web", "runs", runs).await;
    let web = format!("{}/web", bed.namespace);
    let ownership = json!({ "metadata": { "labels": { "quartermaster.dev/owner-uid": other.uid() },
        "annotations": { "quartermaster.dev/owner": web } } });
    bed.patch::<Deployment>("web", ownership.clone()).await;
    bed.patch::<Service>("web", ownership).await;
    app(&bed, "web", spec()).await;
    let message = not_ready(&bed, "web", "Conflict").await;
    let commands: Vec<_> = message
        .split("kubectl ")
        .skip(1)
        .map(|rest| rest.split(';').next().unwrap())
        .collect();
    let hand_over = |resource| {
        format!(
            "annotate {resource} web -n {} quartermaster.dev/adopt-by={web}",
            bed.namespace
        )
    };
    assert_eq!(
        commands,
        ["deployments.apps", "services"].map(hand_over),
        "{message}"
    );
    // By then the watches have shown both.
    reconciled(&bed, "web").await;
    let status = bed
        .api::<AppService>()
        .get("web")
        .await
        .unwrap()
        .status
        .unwrap();
    assert_eq!((status.replicas, status.cluster_ip), (None, None));
    for command in commands {
        bed.plane
            .run_kubectl(&command.split(' ').collect::<Vec<_>>(), "")
            .await
            .unwrap();
    }
    ready(&bed, "web").await;
}

/// A foreign object is reported, and does not hide the app's own objects.
#[tokio::test]
async fn foreign_autoscaler_or_ingress_is_unchanged() {
    let bed = Bed::shared("parts").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "else" });
    let scaler =
        json!({ "spec": { "scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 2 } });
    bed.create::<HorizontalPodAutoscaler>("scaled", scaler)
        .await;
    let backend = json!({ "service": { "name": "else", "port": { "number": 80 } } });
    bed.create::<Ingress>("led", json!({ "spec": { "defaultBackend": backend } }))
        .await;
    for (name, field, resource) in [
        (
            "scaled",
            "autoscaling",
            "horizontalpodautoscalers.autoscaling",
        ),
        ("led", "ingress", "ingresses.networking.k8s.io"),
    ] {
        let mut spec = spec();
        spec[field] = if field == "ingress" {
            json!({})
        } else {
            json!({ "max": 2 })
        };
        spec["resources"] = json!({ "requests": { "cpu": "100m" } });
        app(&bed, name, spec).await;
        let message = not_ready(&bed, name, "Conflict").await;
        assert!(
            message.contains(&format!("kubectl annotate {resource} {name} ")),
            "{message}"
        );
        bed.until(
            name,
            "the status names the app's own objects",
            |app: &AppService| {
                let status = app.status.as_ref().unwrap();
                status.available_replicas == Some(1) && status.cluster_ip.is_some()
            },
        )
        .await;
        // The operator ignores the object even after the app no longer needs it.
        super::respec(&bed, name, self::spec()).await;
        ready(&bed, name).await;
    }
    let scaler: HorizontalPodAutoscaler = bed.api().get("scaled").await.unwrap();
    let led: Ingress = bed.api().get("led").await.unwrap();
    for managed in [scaler.metadata.managed_fields, led.metadata.managed_fields] {
        let managed = managed.unwrap();
        assert!(
            managed.iter().all(|entry| !entry
                .manager
                .as_ref()
                .unwrap()
                .starts_with("quartermaster")),
            "{managed:?}"
        );
    }
}

#[tokio::test]
async fn object_of_another_controller_is_not_adoptable() {
    let bed = Bed::shared("controlled").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let other = app(&bed, "other", json!({ "size": 0, "image": "i" })).await;
    // The object has the name of this app, but really belongs to the other app of the original program.
    ready(&bed, "other").await;
    let mut owner = json!(other.controller_owner_ref(&()).unwrap());
    owner["kind"] = json!("Something");
    owner["apiVersion"] = json!("example.com/v1");
    let metadata = json!({ "ownerReferences": [owner], "annotations": { "quartermaster.dev/adopt-by": format!("{}/web", bed.namespace) } });
    let labels = json!({ "app": "web" });
    let template = json!({ "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "a", "image": "b" }] } });
    let spec_of =
        json!({ "replicas": 0, "selector": { "matchLabels": labels }, "template": template });
    bed.create::<Deployment>("web", json!({ "metadata": metadata, "spec": spec_of }))
        .await;
    app(&bed, "web", spec()).await;
    let message = not_ready(&bed, "web", "Conflict").await;
    assert!(
        message.contains("is controlled by Something other") && !message.contains("kubectl"),
        "{message}"
    );
}

/// An object with neither ownership label nor owner reference is unowned.
#[tokio::test]
async fn object_without_ownership_metadata_is_unowned() {
    let bed = Bed::shared("stripped").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    app(&bed, "web", spec()).await;
    ready(&bed, "web").await;
    let strip = json!([
        { "op": "remove", "path": "/metadata/ownerReferences" },
        { "op": "remove", "path": "/metadata/labels/quartermaster.dev~1owner-uid" },
        { "op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "nginx:theirs" },
    ]);
    let operations = serde_json::from_value(strip).unwrap();
    let by = PatchParams {
        field_manager: Some("somebody".into()),
        ..PatchParams::default()
    };
    let stripped = bed
        .api::<Deployment>()
        .patch("web", &by, &Patch::<()>::Json(operations))
        .await
        .unwrap();
    let message = not_ready(&bed, "web", "Conflict").await;
    assert!(message.starts_with("deployments.apps "), "{message}");
    let since = bed.plane.audit().mark().await.unwrap();
    reconciled(&bed, "web").await;
    let written = writes(&bed, since).await;
    assert!(
        !written.iter().any(|write| write == "patch deployments"),
        "{written:?}"
    );
    assert_eq!(
        whole(&deployment(&bed, "web").await)["metadata"]["labels"],
        whole(&stripped)["metadata"]["labels"]
    );
}

/// Returns an object in the form that a backup stores.
fn as_backed_up<K: Resource>(mut object: K) -> K {
    let metadata = object.meta_mut();
    (
        metadata.uid,
        metadata.resource_version,
        metadata.managed_fields,
    ) = (None, None, None);
    object
}

/// A backup restores objects under new UIDs: the operator restores its ownership of those with the app's name. (The
/// garbage collector, which does not run on this control plane, compares the UIDs of owner references.)
#[tokio::test]
async fn ownership_is_restored_after_a_backup() {
    let bed = Bed::without_controllers("restored").await;
    let mut operator = Operator::start(&bed, Settings::default()).await;
    app(&bed, "web", spec()).await;
    bed.until("web", "is passed over", |app: &AppService| {
        super::is_observed(app)
    })
    .await;
    operator.kill();
    let (mut old, served) = (deployment(&bed, "web").await, service(&bed, "web").await);
    let template = &mut old.spec.as_mut().unwrap().template;
    let restarted = ("example.com/restarted-at".into(), "now".into());
    template.metadata.as_mut().unwrap().annotations = Some([restarted].into());
    let api: Api<AppService> = bed.api();
    api.delete("web", &DeleteParams::default()).await.unwrap();
    bed.delete::<Deployment>("web").await;
    bed.delete::<Service>("web").await;
    until("all objects are deleted", SOON, async || {
        let left = api.get_opt("web").await?.is_some();
        Ok((!left).then_some(()))
    })
    .await
    .unwrap();

    let by = PostParams {
        field_manager: Some("velero".into()),
        ..PostParams::default()
    };
    let old = bed.api().create(&by, &as_backed_up(old)).await.unwrap();
    let served = bed.api().create(&by, &as_backed_up(served)).await.unwrap();
    let again = app(&bed, "web", spec()).await;
    operator.restart();
    bed.until("web", "is passed over", |app: &AppService| {
        super::is_observed(app)
    })
    .await;
    let (now, serves) = (deployment(&bed, "web").await, service(&bed, "web").await);
    assert_eq!((now.uid(), serves.uid()), (old.uid(), served.uid()));
    assert_eq!(
        (whole(&now)["spec"].clone(), whole(&serves)["spec"].clone()),
        (whole(&old)["spec"].clone(), whole(&served)["spec"].clone())
    );
    for metadata in [now.metadata, serves.metadata] {
        assert_eq!(
            metadata.labels.unwrap()["quartermaster.dev/owner-uid"],
            again.uid().unwrap()
        );
        let owners = metadata.owner_references.unwrap();
        assert_eq!(
            (owners.len(), &owners[0].uid),
            (1, again.uid().as_ref().unwrap())
        );
    }
    // An object that the spec then drops is deleted.
    super::respec(
        &bed,
        "web",
        json!({ "size": 1, "image": "nginx:1.7.9", "ports": [{ "port": 81 }] }),
    )
    .await;
    bed.until("web", "has the other port alone", |service: &Service| {
        let ports = service.spec.as_ref().unwrap().ports.as_ref().unwrap();
        ports.len() == 1 && ports[0].port == 81
    })
    .await;
}

/// An app is recreated under its name before the garbage collector deletes the children of its predecessor.
#[tokio::test]
async fn recreated_app_restarts_nothing() {
    let bed = Bed::shared("anew").await;
    let mut operator = Operator::start(&bed, Settings::default()).await;
    let first = app(&bed, "web", spec()).await;
    ready(&bed, "web").await;
    let before = replica_sets(&bed, "web").await;
    // The equivalent of kubectl replace --force --cascade=orphan.
    bed.api::<AppService>()
        .delete(
            "web",
            &DeleteParams {
                propagation_policy: Some(kube::api::PropagationPolicy::Orphan),
                ..DeleteParams::default()
            },
        )
        .await
        .unwrap();
    until("the app is deleted", SOON, async || {
        Ok(bed
            .api::<AppService>()
            .get_opt("web")
            .await?
            .is_none()
            .then_some(()))
    })
    .await
    .unwrap();
    let second = app(&bed, "web", spec()).await;
    assert_ne!(first.uid(), second.uid());
    ready(&bed, "web").await;
    let now = deployment(&bed, "web").await;
    assert_eq!(
        now.labels()["quartermaster.dev/owner-uid"],
        second.uid().unwrap()
    );
    assert_eq!(replica_sets(&bed, "web").await, before);

    // After a deletion and a creation in quick succession, messages read as if there had been no predecessor.
    operator.child().freeze().unwrap();
    bed.delete::<AppService>("web").await;
    let third = app(&bed, "web", spec()).await;
    operator.child().thaw().unwrap();
    until("the third Event reports ready", SOON, async || {
        let names_command = bed.events("web", "Ready").await;
        Ok(names_command
            .into_iter()
            .find(|event| event.regarding.as_ref().unwrap().uid == third.uid()))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn ingress_never_routes_to_a_foreign_service() {
    let bed = Bed::shared("published").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.service("web", json!([{ "port": 8080 }])).await;
    let mut spec = spec();
    spec["ingress"] = json!({ "host": "app.example.com" });
    app(&bed, "web", spec).await;
    not_ready(&bed, "web", "Conflict").await;
    reconciled(&bed, "web").await;
    assert!(bed.api::<Ingress>().get_opt("web").await.unwrap().is_none());
    bed.delete::<Service>("web").await;
    bed.until("web", "routes to the app's own Service", |_: &Ingress| true)
        .await;
}

#[tokio::test]
async fn autoscaler_never_scales_a_foreign_deployment() {
    let bed = Bed::shared("scaled").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let mut spec = spec();
    spec["autoscaling"] = json!({ "min": 1, "max": 3 });
    spec["resources"] = json!({ "requests": { "cpu": "10m" } });
    app(&bed, "web", spec).await;
    let is_made = |_: &HorizontalPodAutoscaler| true;
    bed.until("web", "scales the app's Deployment", is_made)
        .await;
    let released = json!({ "metadata": {
        "ownerReferences": null, "labels": { "quartermaster.dev/owner-uid": null }
    } });
    bed.patch::<Deployment>("web", released).await;
    not_ready(&bed, "web", "Conflict").await;
    let autoscalers = bed.api::<HorizontalPodAutoscaler>();
    until("the autoscaler is deleted", SOON, async || {
        Ok(autoscalers.get_opt("web").await?.is_none().then_some(()))
    })
    .await
    .unwrap();
    bed.delete::<Deployment>("web").await;
    bed.until("web", "scales the app's Deployment", is_made)
        .await;
}

/// The selector cannot be changed: an adopted object would be deleted with an app that cannot use it.
#[tokio::test]
async fn object_with_an_immutable_difference_is_not_adopted() {
    let bed = Bed::shared("selector").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let labels = json!({ "run": "web" });
    let template = json!({ "metadata": { "labels": labels }, "spec": { "containers": [{ "name": "web", "image": "i" }] } });
    let annotations = json!({ "quartermaster.dev/adopt-by": format!("{}/web", bed.namespace) });
    let foreign = json!({ "metadata": { "annotations": annotations },
        "spec": { "replicas": 0, "selector": { "matchLabels": labels }, "template": template } });
    let foreign: Deployment = bed.create("web", foreign).await;
    app(&bed, "web", spec()).await;
    let message = not_ready(&bed, "web", "WriteRejected").await;
    assert!(
        message.contains("spec.selector") && message.contains("field is immutable"),
        "{message}"
    );
    let after = deployment(&bed, "web").await;
    assert_eq!(
        (after.metadata.owner_references, after.metadata.labels),
        (None, foreign.metadata.labels)
    );
    // Nothing wakes the operator: the Deployment has no label of its app.
    bed.delete::<Deployment>("web").await;
    ready(&bed, "web").await;
}

#[tokio::test]
async fn headless_service_that_needs_another_type_is_not_adopted() {
    let bed = Bed::shared("headless").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let consent = format!("{}/web", bed.namespace);
    let headless = json!({ "metadata": { "annotations": { "quartermaster.dev/adopt-by": consent } },
        "spec": { "clusterIP": "None", "selector": { "app": "other" }, "ports": [{ "port": 5432 }] } });
    bed.create::<Service>("web", headless).await;
    app(&bed, "web", spec()).await;
    let message = not_ready(&bed, "web", "WriteRejected").await;
    assert!(message.contains("may not be set to 'None'"), "{message}");
    let after = service(&bed, "web").await;
    assert_eq!(
        (after.metadata.owner_references, after.metadata.labels),
        (None, None)
    );
}

/// An adoption changes only fields that the app sets.
#[tokio::test]
async fn adopted_object_keeps_other_fields() {
    let bed = Bed::shared("kept").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let consent =
        json!({ "quartermaster.dev/adopt-by": format!("{}/web", bed.namespace), "note": "x" });
    let labels = json!({ "app": "web" });
    let pod = json!({
        "containers": [{ "name": "web", "image": "i" }, { "name": "side", "image": "i" }],
        "tolerations": [{ "key": "gpu", "operator": "Exists" }],
        "volumes": [{ "name": "scratch", "emptyDir": {} }],
    });
    let created: Deployment = bed
        .create(
            "web",
            json!({ "metadata": { "annotations": consent }, "spec": { "replicas": 0,
                "selector": { "matchLabels": labels }, "template": { "metadata": { "labels": labels }, "spec": pod } } }),
        )
        .await;
    let policy = json!({ "type": "NodePort", "externalTrafficPolicy": "Local", "selector": { "app": "other" },
        "ports": [{ "port": 9090 }] });
    bed.create::<Service>(
        "web",
        json!({ "metadata": { "annotations": consent }, "spec": policy }),
    )
    .await;
    app(&bed, "web", spec()).await;
    ready(&bed, "web").await;
    let (deployment, service) = (deployment(&bed, "web").await, service(&bed, "web").await);
    assert_eq!(deployment.metadata.uid, created.metadata.uid);
    let kept = |pod: &Value| {
        let side = pod["containers"].as_array().unwrap().iter();
        let side = side.filter(|container| container["name"] == "side");
        let side: Vec<_> = side.cloned().collect();
        (side, pod["tolerations"].clone(), pod["volumes"].clone())
    };
    assert_eq!(
        kept(&whole(&deployment)["spec"]["template"]["spec"]),
        kept(&whole(&created)["spec"]["template"]["spec"])
    );
    let spec = service.spec.unwrap();
    assert_eq!(spec.external_traffic_policy.as_deref(), Some("Local"));
    assert_eq!(spec.selector.unwrap()["app"], "web");
    for metadata in [deployment.metadata, service.metadata] {
        assert_eq!(metadata.annotations.unwrap()["note"], "x");
    }
}

/// A foreground deletion of an app waits for its children.
#[tokio::test]
async fn foreground_deletion_waits_for_children() {
    let bed = Bed::shared("foreground").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    app(&bed, "web", spec()).await;
    ready(&bed, "web").await;
    bed.patch::<Deployment>(
        "web",
        json!({ "metadata": { "finalizers": ["example.com/held"] } }),
    )
    .await;
    bed.api::<AppService>()
        .delete("web", &DeleteParams::foreground())
        .await
        .unwrap();
    bed.until("web", "is being deleted", |deployment: &Deployment| {
        deployment.metadata.deletion_timestamp.is_some()
    })
    .await;
    assert!(
        bed.api::<AppService>()
            .get_opt("web")
            .await
            .unwrap()
            .is_some()
    );
    bed.patch::<Deployment>("web", json!({ "metadata": { "finalizers": null } }))
        .await;
    until("the app is deleted", SOON, async || {
        Ok(bed
            .api::<AppService>()
            .get_opt("web")
            .await?
            .is_none()
            .then_some(()))
    })
    .await
    .unwrap();
}
