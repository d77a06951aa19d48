//! The operator adopts objects of the original program without a gap, and owns them from then on.

use std::collections::BTreeMap;

use http::StatusCode;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::networking::v1::Ingress;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use qm_api::AppService;
use serde_json::{Value, json};
use testbed::proxy::{Fault, Match, Times, Verb};

use super::{
    app, create_original_children, deployment, ready, reconciled, replica_sets, respec, service,
    writes,
};
use crate::support::{Bed, Operator, Settings};

/// Counters that a gap would change.
#[derive(Debug, PartialEq)]
struct Gapless {
    deployment: (String, Value),
    service: (String, Value),
    replica_sets: Vec<String>,
    pods: Vec<String>,
}

async fn snapshot(bed: &Bed, name: &str) -> Gapless {
    let (deployment, service) = (deployment(bed, name).await, service(bed, name).await);
    let selected = ListParams::default().labels(&format!("app={name}"));
    let pods = bed.api::<Pod>().list(&selected).await.unwrap();
    Gapless {
        deployment: (deployment.uid().unwrap(), json!(deployment.spec)),
        service: (service.uid().unwrap(), json!(service.spec)),
        replica_sets: replica_sets(bed, name).await,
        pods: pods
            .iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .map(|pod| pod.uid().unwrap())
            .collect(),
    }
}

/// Creates an app of the original program and its children, all running.
async fn original_app(bed: &Bed, name: &str, spec: Value) {
    let old =
        json!({ "metadata": { "annotations": { "old/spec": spec.to_string() } }, "spec": spec });
    let app: AppService = bed.create(name, old).await;
    create_original_children(bed, &app, json!({ "labels": { "left": "over" } })).await;
    bed.until(name, "runs", |deployment: &Deployment| {
        let status = deployment.status.clone().unwrap_or_default();
        status.available_replicas.unwrap_or_default()
            == deployment.spec.as_ref().unwrap().replicas.unwrap()
            && status.observed_generation == deployment.metadata.generation
    })
    .await;
}

#[tokio::test]
async fn adoption_restarts_nothing_and_dropped_ports_are_removed() {
    let bed = Bed::shared("taken").await;
    let mut spec = json!({ "size": 2, "image": "nginx:1.7.9", "ports": [
        { "name": "http", "protocol": "TCP", "port": 80, "targetPort": 80, "nodePort": 30011 },
        { "name": "admin", "protocol": "TCP", "port": 81, "targetPort": 8081 },
    ] });
    original_app(&bed, "web", spec.clone()).await;
    // Updates of the original program set the address.
    let mut updated = service(&bed, "web").await;
    updated.metadata.managed_fields = None;
    let by = PostParams {
        field_manager: Some("operator".into()),
        ..PostParams::default()
    };
    bed.api().replace("web", &by, &updated).await.unwrap();

    // A user has edited the Deployment: the image, which the spec has by now as well, and fields that the spec does not
    // set.
    let edit = json!({ "spec": { "template": { "spec": {
        "tolerations": [{ "key": "spot", "operator": "Exists" }],
        "containers": [{ "name": "web", "image": "nginx:1.8" }],
    } } } });
    let by = PatchParams {
        field_manager: Some("kubectl-edit".into()),
        ..PatchParams::default()
    };
    bed.api::<Deployment>()
        .patch("web", &by, &Patch::Strategic(edit))
        .await
        .unwrap();
    spec["image"] = json!("nginx:1.8");
    respec(&bed, "web", spec.clone()).await;
    bed.until(
        "web",
        "runs with the edited spec",
        |deployment: &Deployment| {
            let status = deployment.status.clone().unwrap_or_default();
            let all = [
                status.updated_replicas,
                status.available_replicas,
                status.replicas,
            ];
            all == [Some(2); 3] && status.observed_generation == deployment.metadata.generation
        },
    )
    .await;
    let before = snapshot(&bed, "web").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let app = ready(&bed, "web").await;
    assert_eq!(snapshot(&bed, "web").await, before);
    assert!(
        !app.annotations().contains_key("old/spec"),
        "{:?}",
        app.annotations()
    );
    let (adopted, served) = (deployment(&bed, "web").await, service(&bed, "web").await);
    for metadata in [&adopted.metadata, &served.metadata] {
        let labels = metadata.labels.as_ref().unwrap();
        assert!(
            !labels.contains_key("left"),
            "labels that only the former manager set are removed: {labels:?}"
        );
        assert_eq!(labels["app.kubernetes.io/managed-by"], "quartermaster");
        assert_eq!(labels["quartermaster.dev/owner-uid"], app.uid().unwrap());
        assert_eq!(metadata.owner_references.as_ref().unwrap().len(), 1);
    }
    let status = app.status.clone().unwrap();
    assert_eq!(status.ports[0].node_port, Some(30011));
    assert_eq!(status.cluster_ip, served.spec.as_ref().unwrap().cluster_ip);

    let since = bed.plane.audit().mark().await.unwrap();
    reconciled(&bed, "web").await;
    let again = writes(&bed, since).await;
    assert!(
        again
            .iter()
            .all(|write| !write.starts_with("patch deployments")
                && !write.contains("patch services")),
        "{again:?}"
    );

    // A dropped port disappears from both objects, and no node port changes.
    let mut less = spec.clone();
    less["ports"].as_array_mut().unwrap().remove(1);
    respec(&bed, "web", less).await;
    let served = bed
        .until("web", "has one port", |service: &Service| {
            service.spec.as_ref().unwrap().ports.as_ref().unwrap().len() == 1
        })
        .await;
    let served = served.spec.unwrap();
    assert_eq!(served.ports.unwrap()[0].node_port, Some(30011));
    assert_eq!(json!(served.cluster_ip), before.service.1["clusterIP"]);
    bed.until("web", "has one port", |deployment: &Deployment| {
        ports(deployment) == [80]
    })
    .await;
    ready(&bed, "web").await;
    // The dropped port returns.
    respec(&bed, "web", spec).await;
    bed.until("web", "has both ports", |deployment: &Deployment| {
        ports(deployment) == [80, 8081]
    })
    .await;
    ready(&bed, "web").await;
    let sets = replica_sets(&bed, "web").await.len();
    assert_eq!(
        sets,
        before.replica_sets.len() + 1,
        "the first template's ReplicaSet is used again"
    );
}

fn ports(deployment: &Deployment) -> Vec<i32> {
    let container = &deployment
        .spec
        .as_ref()
        .unwrap()
        .template
        .spec
        .as_ref()
        .unwrap()
        .containers[0];
    container
        .ports
        .iter()
        .flatten()
        .map(|port| port.container_port)
        .collect()
}

/// Server-side apply cannot send the same port twice: a duplicate port of the original program disappears with the
/// next change of the Pods.
#[tokio::test]
async fn duplicate_port_restarts_nothing() {
    let bed = Bed::shared("duplicate-ports").await;
    let spec = json!({ "size": 1, "image": "nginx:1.7.9", "ports": [
        { "name": "a", "port": 80, "targetPort": 80 },
        { "name": "b", "port": 8080, "targetPort": 80 },
    ] });
    original_app(&bed, "web", spec.clone()).await;
    let before = snapshot(&bed, "web").await;
    assert_eq!(ports(&deployment(&bed, "web").await), [80, 80]);
    let _operator = Operator::start(&bed, Settings::default()).await;
    ready(&bed, "web").await;
    reconciled(&bed, "web").await;
    assert_eq!(snapshot(&bed, "web").await, before);

    // A change of another field keeps the port, too.
    let mut more = spec.clone();
    more["size"] = json!(2);
    respec(&bed, "web", more).await;
    ready(&bed, "web").await;
    assert_eq!(ports(&deployment(&bed, "web").await), [80, 80]);
    assert_eq!(replica_sets(&bed, "web").await, before.replica_sets);

    let mut newer = spec;
    newer["image"] = json!("nginx:1.27");
    respec(&bed, "web", newer).await;
    ready(&bed, "web").await;
    assert_eq!(ports(&deployment(&bed, "web").await), [80]);
    let since = bed.plane.audit().mark().await.unwrap();
    reconciled(&bed, "web").await;
    let again = writes(&bed, since).await;
    assert!(
        !again.contains(&"patch deployments".to_owned()),
        "{again:?}"
    );
}

/// Duplicate ports stay until the Pods change for another reason; dropped ports are really removed.
#[tokio::test]
async fn port_beside_a_duplicate_port_is_removed() {
    let bed = Bed::shared("beside").await;
    let mut spec = json!({ "size": 1, "image": "nginx:1.7.9", "ports": [
        { "name": "a", "port": 80, "targetPort": 8080 },
        { "name": "b", "port": 81, "targetPort": 8080 },
        { "name": "c", "port": 82, "targetPort": 9000 },
        { "name": "d", "port": 83, "targetPort": 9001 },
    ] });
    original_app(&bed, "web", spec.clone()).await;
    let before = snapshot(&bed, "web").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    ready(&bed, "web").await;
    assert_eq!(snapshot(&bed, "web").await, before);
    spec["ports"].as_array_mut().unwrap().truncate(2);
    respec(&bed, "web", spec).await;
    bed.until("web", "has its one port", |deployment: &Deployment| {
        ports(deployment) == [8080]
    })
    .await;
    ready(&bed, "web").await;
}

/// The operator finds the Service without its label once the app has no ports, even if its first reconcile fails.
#[tokio::test]
async fn unneeded_service_is_deleted() {
    let bed = Bed::shared("unserved").await;
    original_app(
        &bed,
        "web",
        json!({ "size": 0, "image": "i", "ports": [{ "port": 80, "targetPort": 80 }] }),
    )
    .await;
    respec(&bed, "web", json!({ "size": 0, "image": "i" })).await;
    // A foreign Service is not adopted.
    let foreign: Service = bed.service("other", json!([{ "port": 80 }])).await;
    app(&bed, "other", json!({ "size": 0, "image": "i" })).await;
    let (proxy, file) = bed.through_proxy().await;
    let reads = Match::verb(Verb::Get)
        .resource("services")
        .namespace(&bed.namespace)
        .name("web");
    let failure = Fault::status(StatusCode::INTERNAL_SERVER_ERROR);
    let failed = proxy.inject(reads, Times::First(1), failure);
    let _operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    for name in ["web", "other"] {
        ready(&bed, name).await;
    }
    assert_eq!(failed.hits(), 1);
    assert!(bed.api::<Service>().get_opt("web").await.unwrap().is_none());
    assert_eq!(
        service(&bed, "other").await.metadata.resource_version,
        foreign.metadata.resource_version
    );
    let left: BTreeMap<_, _> = deployment(&bed, "web").await.labels().clone();
    assert!(!left.contains_key("left"));
}

/// An object recreated from its own YAML, as `kubectl replace --force` does: the object has the ownership metadata, and
/// other managers own all of its fields.
#[tokio::test]
async fn object_recreated_from_its_yaml_is_owned_again() {
    let bed = Bed::shared("anew").await;
    let mut operator = Operator::start(&bed, Settings::default()).await;
    let mut spec = json!({ "size": 0, "image": "i", "ingress": {}, "autoscaling": { "max": 2 }, "resources": { "requests": { "cpu": "1m" } },
        "ports": [{ "name": "a", "port": 80 }, { "name": "b", "port": 81 }] });
    app(&bed, "web", spec.clone()).await;
    ready(&bed, "web").await;
    bed.until("web", "exists", |_: &Ingress| true).await;
    operator.kill();
    let mut made = service(&bed, "web").await;
    (
        made.metadata.uid,
        made.metadata.resource_version,
        made.metadata.managed_fields,
    ) = (None, None, None);
    bed.delete::<Service>("web").await;
    let by = PostParams {
        field_manager: Some("kubectl-replace".into()),
        ..PostParams::default()
    };
    bed.api().create(&by, &made).await.unwrap();
    // Meanwhile two other objects have lost their label, and the app no longer needs them.
    let stripped = json!({ "metadata": { "labels": { "quartermaster.dev/owner-uid": null } } });
    bed.patch::<Ingress>("web", stripped.clone()).await;
    bed.patch::<HorizontalPodAutoscaler>("web", stripped).await;
    for field in ["ingress", "autoscaling"] {
        spec[field] = Value::Null;
    }
    respec(&bed, "web", spec.clone()).await;
    operator.restart();
    ready(&bed, "web").await;
    reconciled(&bed, "web").await;
    assert!(bed.api::<Ingress>().get_opt("web").await.unwrap().is_none());
    assert!(
        bed.api::<HorizontalPodAutoscaler>()
            .get_opt("web")
            .await
            .unwrap()
            .is_none()
    );
    spec["ports"].as_array_mut().unwrap().remove(1);
    respec(&bed, "web", spec).await;
    let one = |service: &Service| service.spec.as_ref().unwrap().ports.as_ref().unwrap().len() == 1;
    bed.until("web", "has one port", one).await;
}
