//! The status mirrors the Deployment's, and names why an app is not ready.

use http::StatusCode;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Pod, ResourceQuota, Service};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use qm_api::AppService;
use rstest::rstest;
use serde_json::{Value, json};
use testbed::proxy::{Fault, Match, Times, Verb};
use testbed::wait::until;

use super::{
    app, deployment, not_ready, ready, ready_condition, reconciled, respec, service, writes,
};
use crate::support::{Bed, Operator, SOON, Settings};

fn one() -> Value {
    json!({ "size": 1, "image": "nginx:1.7.9", "ports": [{ "name": "http", "port": 80 }] })
}

/// The status follows the Deployment through a rollout, has the Service's ports, and never runs ahead of them.
#[tokio::test]
async fn status_mirrors_the_deployment_through_a_rollout() {
    let bed = Bed::shared("mirror").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let mut spec = one();
    spec["size"] = json!(2);
    app(&bed, "web", spec.clone()).await;
    for image in ["nginx:1.7.9", "nginx:1.8", "nginx:1.9"] {
        spec["image"] = json!(image);
        respec(&bed, "web", spec.clone()).await;
        let app = ready(&bed, "web").await;
        let deployment = deployment(&bed, "web").await;
        let spec = deployment.spec.as_ref().unwrap();
        let container = &spec.template.spec.as_ref().unwrap().containers[0];
        assert_eq!(
            container.image.as_deref(),
            Some(image),
            "ready, and of this generation"
        );
        let observed = deployment.status.clone().unwrap();
        assert_eq!(
            (
                observed.updated_replicas,
                observed.available_replicas,
                observed.replicas
            ),
            (Some(2), Some(2), Some(2))
        );
        assert_eq!(observed.observed_generation, deployment.metadata.generation);
        assert_eq!(
            app.status.unwrap().observed_generation,
            app.metadata.generation
        );
    }
    // Once the last old Pod has ended, nothing changes any more.
    let mirrored = until("the status is the Deployment's", SOON, async || {
        let app: AppService = bed.api().get("web").await?;
        let mut reported = serde_json::to_value(app.status)?;
        let mut observed = serde_json::to_value(deployment(&bed, "web").await.status)?;
        let ports = reported.as_object_mut().unwrap().remove("ports");
        for field in ["selector", "clusterIP"] {
            reported.as_object_mut().unwrap().remove(field);
        }
        reported["observedGeneration"] = observed["observedGeneration"].clone();
        reported["conditions"]
            .as_array_mut()
            .unwrap()
            .retain(|condition| condition["type"] != "Ready");
        for status in [&mut reported, &mut observed] {
            status["conditions"]
                .as_array_mut()
                .unwrap()
                .sort_by_key(|condition| condition["type"].to_string());
        }
        anyhow::ensure!(reported == observed, "{reported:#}\n{observed:#}");
        Ok(ports)
    });
    let node_port = service(&bed, "web").await.spec.unwrap().ports.unwrap()[0].node_port;
    let ports = json!([{ "name": "http", "port": 80, "nodePort": node_port, "protocol": "TCP" }]);
    assert_eq!(mirrored.await.unwrap(), ports);
    // All three share an Event.
    assert_eq!(bed.event("web", "Ready").await, "all 2 Pods are available");
}

/// Writes a container's status as the kubelet does.
async fn kubelet(bed: &Bed, container: Value) {
    let pods: Api<Pod> = bed.api();
    let pod = pods
        .list(&ListParams::default().labels("app=web"))
        .await
        .unwrap()
        .items
        .remove(0);
    let ready = if container["ready"] == true {
        "True"
    } else {
        "False"
    };
    let mut whole = json!({ "name": "web", "image": "i", "imageID": "", "restartCount": 0 });
    whole
        .as_object_mut()
        .unwrap()
        .extend(container.as_object().unwrap().clone());
    let conditions =
        ["Ready", "ContainersReady"].map(|type_| json!({ "type": type_, "status": ready }));
    let status = json!({ "status": { "conditions": conditions, "containerStatuses": [whole] } });
    pods.patch_status(
        &pod.name_any(),
        &PatchParams::default(),
        &Patch::Strategic(status),
    )
    .await
    .unwrap();
}

#[rstest]
#[case::image(json!({ "waiting": { "reason": "ErrImagePull", "message": "rpc error: not found" } }), json!({}), "ImagePullBackOff", "rpc error: not found")]
#[case::crash(json!({ "waiting": { "reason": "CrashLoopBackOff", "message": "back-off 10s" } }), json!({ "terminated": { "exitCode": 7, "reason": "Error" } }), "CrashLoopBackOff", "container web exited with code 7 (Error) and restarts")]
#[case::config(json!({ "waiting": { "reason": "CreateContainerConfigError", "message": "secret \"x\" not found" } }), json!({}), "CreateContainerConfigError", "secret \"x\" not found")]
#[tokio::test]
async fn status_shows_the_reason_of_a_pod(
    #[case] state: Value,
    #[case] last: Value,
    #[case] reason: &str,
    #[case] expected: &str,
) {
    let bed = Bed::shared("reason").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    app(&bed, "web", one()).await;
    ready(&bed, "web").await;
    let restarts = i32::from(last != json!({}));
    kubelet(
        &bed,
        json!({ "ready": false, "state": state, "lastState": last, "restartCount": restarts }),
    )
    .await;
    let message = not_ready(&bed, "web", reason).await;
    assert!(
        message.starts_with("Pod web-") && message.ends_with(expected),
        "{message}"
    );
    assert_eq!(bed.event("web", reason).await, message);
    let table = bed.kubectl(&["get", "appsvc", "web"]).await;
    assert!(table.contains(reason), "{table}");
    // The operator keeps retrying, and emits one Event.
    let since = bed.plane.audit().mark().await.unwrap();
    reconciled(&bed, "web").await;
    let written = writes(&bed, since).await;
    assert!(
        !written
            .iter()
            .any(|write| write.starts_with("patch") && !write.ends_with("/status")),
        "{written:?}"
    );
    kubelet(&bed, json!({ "ready": true, "state": { "running": {} }, "lastState": last, "restartCount": restarts }))
        .await;
    ready(&bed, "web").await;
    assert_eq!(bed.events("web", reason).await.len(), 1);
}

#[tokio::test]
async fn status_reports_an_unschedulable_pod() {
    let bed = Bed::shared("unscheduled").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let mut spec = one();
    spec["resources"] = json!({ "requests": { "cpu": "1000000" } });
    app(&bed, "web", spec).await;
    let message = not_ready(&bed, "web", "Unschedulable").await;
    assert!(message.contains("Insufficient cpu"), "{message}");
    respec(&bed, "web", one()).await;
    ready(&bed, "web").await;
}

#[tokio::test]
async fn status_reports_an_exceeded_quota() {
    let bed = Bed::shared("quota").await;
    let hard = json!({ "spec": { "hard": { "pods": "1", "services": "0" } } });
    bed.create::<ResourceQuota>("small", hard).await;
    // Before the controller has counted, the quota rejects nothing.
    bed.until("small", "is counted", |quota: &ResourceQuota| {
        quota.status.as_ref().is_some_and(|s| s.hard.is_some())
    })
    .await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    // The quota rejects the Service.
    app(&bed, "web", one()).await;
    let message = not_ready(&bed, "web", "QuotaExceeded").await;
    assert!(
        message.contains("the apiserver rejected Service")
            && message.contains("exceeded quota: small"),
        "{message}"
    );
    // The controller that counts for the new bounds has seen the Pod by then: otherwise the Pod would not be counted
    // for minutes.
    let runs = |deployment: &Deployment| {
        deployment
            .status
            .as_ref()
            .is_some_and(|s| s.ready_replicas == Some(1))
    };
    bed.until("web", "has its Pod", runs).await;
    bed.patch::<ResourceQuota>("small", json!({ "spec": { "hard": { "services": "1" } } }))
        .await;
    ready(&bed, "web").await;
    // Meanwhile the quota may let a Pod in.
    bed.until("small", "counts the Pod", |quota: &ResourceQuota| {
        let status = quota.status.clone().unwrap_or_default();
        let hard = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref());
        status.hard.as_ref() == hard
            && status
                .used
                .is_some_and(|used| used.get("pods").is_some_and(|pods| pods.0 == "1"))
    })
    .await;
    // The quota rejects the Pods.
    let mut two = one();
    two["size"] = json!(2);
    respec(&bed, "web", two).await;
    let message = not_ready(&bed, "web", "FailedCreate").await;
    assert!(message.contains("exceeded quota: small"), "{message}");
    bed.event("web", "FailedCreate").await;
    respec(&bed, "web", one()).await;
    ready(&bed, "web").await;
}

/// An administrator who reads the log learns which permission the operator lacks, once.
#[tokio::test]
async fn forbidden_child_is_logged_once() {
    let bed = Bed::shared("denied").await;
    let (proxy, file) = bed.through_proxy().await;
    let operator = Operator::start(
        &bed,
        Settings::default()
            .kubeconfig(file)
            .flag("--poll-max=200ms"),
    )
    .await;
    let creations = Match::verb(Verb::Create).resource("deployments");
    let order = proxy.inject(
        creations.clone(),
        Times::Always,
        Fault::status(StatusCode::FORBIDDEN),
    );
    app(&bed, "web", one()).await;
    let message = not_ready(&bed, "web", "Forbidden").await;
    assert!(
        message.starts_with("the apiserver rejected Deployment "),
        "{message}"
    );
    until("the operator retries", SOON, async || {
        Ok((proxy.count(&creations) >= 5).then_some(()))
    })
    .await
    .unwrap();
    let logs = operator.logs();
    let lines = logs
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let warnings: Vec<_> = lines
        .filter(|line| line["level"] == "warn" && line["name"] == "web")
        .collect();
    assert_eq!(warnings.len(), 1, "{warnings:#?}");
    assert_eq!(
        (&warnings[0]["cause"], &warnings[0]["controller"]),
        (&json!(message), &json!("appservice"))
    );
    order.cancel();
    ready(&bed, "web").await;
}

/// If the apiserver rejects a child, the status quotes the apiserver, and the operator retries when the spec changes.
#[tokio::test]
async fn rejected_child_is_retried_after_a_change_of_the_spec() {
    let bed = Bed::shared("refused").await;
    let operator = Operator::start(&bed, Settings::default().flag("--backoff-max=100ms")).await;
    for (name, field, value, expected) in [
        (
            "quantity",
            "resources",
            json!({ "requests": { "cpu": "-1" } }),
            "must be greater than or equal to 0",
        ),
        (
            "limits",
            "resources",
            json!({ "requests": { "example.com/a": 1 } }),
            "Limit must be set",
        ),
        (
            "probe",
            "livenessProbe",
            json!({ "tcpSocket": { "port": 80 }, "periodSeconds": -1 }),
            "must be greater than or equal to 0",
        ),
        (
            "env",
            "env",
            json!([{ "name": "a", "valueFrom": { "fieldRef": { "fieldPath": "metadata.other" } } }]),
            "spec.template.spec.containers[0].env[0].valueFrom",
        ),
    ] {
        let mut spec = one();
        spec[field] = value;
        app(&bed, name, spec).await;
        let message = not_ready(&bed, name, "WriteRejected").await;
        assert!(
            message.starts_with("the apiserver rejected Deployment ") && message.contains(expected),
            "{message}"
        );
        assert_eq!(bed.event(name, "WriteRejected").await, message);
        assert!(
            bed.api::<Deployment>()
                .get_opt(name)
                .await
                .unwrap()
                .is_none()
        );
        bed.api::<Service>().get(name).await.unwrap();
    }
    let since = bed.plane.audit().mark().await.unwrap();
    // Long enough for several tries.
    for number in 0..5 {
        let marker = format!("marker-{number}");
        app(&bed, &marker, json!({ "size": 0, "image": "i" })).await;
        bed.until(&marker, "is passed over", |app: &AppService| {
            super::is_observed(app)
        })
        .await;
    }
    let tried: Vec<_> = bed.plane.audit().requests(since).await.unwrap();
    let tried = tried
        .iter()
        .map(|request| &request.subject)
        .filter(|it| it.namespace == bed.namespace && it.verb == "create");
    assert!(
        tried.clone().all(|it| it.name != "quantity"),
        "{:?}",
        tried.collect::<Vec<_>>()
    );
    respec(&bed, "quantity", one()).await;
    ready(&bed, "quantity").await;
    // A running app keeps its children.
    let mut spec = one();
    spec["resources"] = json!({ "requests": { "cpu": "-1" } });
    respec(&bed, "quantity", spec).await;
    not_ready(&bed, "quantity", "WriteRejected").await;
    let app: AppService = bed.api().get("quantity").await.unwrap();
    assert_eq!(app.status.unwrap().available_replicas, Some(1));
    assert!(!operator.logs().contains("panicked"));
}

/// A rejected child does not block retries of the others.
#[tokio::test]
async fn failed_child_is_retried_beside_a_rejected_one() {
    let bed = Bed::shared("beside").await;
    let (proxy, file) = bed.through_proxy().await;
    let away = Fault::status(StatusCode::INTERNAL_SERVER_ERROR);
    let failed = proxy.inject(
        Match::verb(Verb::Create).resource("services"),
        Times::First(1),
        away,
    );
    let _operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    let mut spec = one();
    spec["resources"] = json!({ "requests": { "cpu": "-1" } });
    app(&bed, "web", spec).await;
    not_ready(&bed, "web", "WriteRejected").await;
    bed.until("web", "exists", |_: &Service| true).await;
    assert_eq!(failed.hits(), 1);
}

#[tokio::test]
async fn suspended_app_is_unchanged_until_deletion() {
    let bed = Bed::shared("suspended").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    app(
        &bed,
        "web",
        json!({ "size": 0, "image": "nginx:1.7.9", "ports": [{ "port": 80 }] }),
    )
    .await;
    ready(&bed, "web").await;
    bed.patch::<AppService>(
        "web",
        json!({ "spec": { "suspend": true, "image": "nginx:1.27" } }),
    )
    .await;
    let message = not_ready(&bed, "web", "Suspended").await;
    assert_eq!(
        message,
        "spec.suspend is true: the operator changes nothing"
    );
    assert_eq!(bed.event("web", "Suspended").await, message);
    bed.delete::<Service>("web").await;
    bed.scale("web", 1).await;
    bed.until("web", "is mirrored all the same", |app: &AppService| {
        let status = app.status.as_ref().unwrap();
        status.cluster_ip.is_none() && status.available_replicas == Some(1)
    })
    .await;
    let deployment = deployment(&bed, "web").await.spec.unwrap();
    assert_eq!(
        deployment.template.spec.unwrap().containers[0]
            .image
            .as_deref(),
        Some("nginx:1.7.9")
    );
    assert_eq!(deployment.replicas, Some(1));
    bed.patch::<AppService>("web", json!({ "spec": { "suspend": false } }))
        .await;
    ready(&bed, "web").await;
    service(&bed, "web").await;

    bed.patch::<AppService>("web", json!({ "spec": { "suspend": true } }))
        .await;
    not_ready(&bed, "web", "Suspended").await;
    bed.delete::<AppService>("web").await;
    until("the app's children are deleted", SOON, async || {
        let left = bed.kubectl(&["get", "deploy,svc", "-o", "name"]).await;
        anyhow::ensure!(left.trim().is_empty(), "{left}");
        Ok(Some(()))
    })
    .await
    .unwrap();
}

/// The operator waits for a Terminating child and then recreates it.
#[tokio::test]
async fn terminating_child_is_awaited_and_recreated() {
    let bed = Bed::shared("lingers").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    app(&bed, "web", one()).await;
    ready(&bed, "web").await;
    bed.patch::<Service>(
        "web",
        json!({ "metadata": { "finalizers": ["example.com/hold"] } }),
    )
    .await;
    let before = service(&bed, "web").await;
    bed.delete::<Service>("web").await;
    let message = not_ready(&bed, "web", "ChildTerminating").await;
    assert!(
        message.ends_with("is being deleted; the operator recreates it afterwards"),
        "{message}"
    );
    bed.patch::<Service>("web", json!({ "metadata": { "finalizers": null } }))
        .await;
    let app = ready(&bed, "web").await;
    assert_ne!(service(&bed, "web").await.uid(), before.uid());
    assert!(ready_condition(&app).is_some());
}
