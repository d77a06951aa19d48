//! Every change of a spec and its reversal, for objects that the operator created and for adopted objects of the
//! original program.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::networking::v1::Ingress;
use kube::ResourceExt;
use qm_api::AppService;
use rstest::rstest;
use serde_json::{Value, json};
use testbed::wait::until;

use super::{
    app, create_original_children, not_ready, ready, ready_condition, reconciled, respec, writes,
};
use crate::support::{Bed, Operator, SOON, Settings};

/// No Pod runs: the test compares specs only.
fn base() -> Value {
    json!({ "size": 0, "image": "nginx:1.7.9", "ports": [
        { "name": "http", "port": 80, "targetPort": 80, "protocol": "TCP" },
        { "name": "admin", "port": 81, "targetPort": 8081, "protocol": "TCP" },
    ] })
}

fn with(field: &str, value: Value) -> Value {
    let mut spec = base();
    spec[field] = value;
    spec
}

fn autoscaled(autoscaling: Value) -> Value {
    let mut spec = with("autoscaling", autoscaling);
    spec["resources"] = json!({ "requests": { "cpu": "100m" } });
    spec
}

/// Returns the spec of each of an app's children, without the fields that the cluster chooses for each Service.
async fn children_specs(bed: &Bed, name: &str) -> Value {
    let deployment: Deployment = bed.api().get(name).await.unwrap();
    let service = bed
        .api::<Service>()
        .get_opt(name)
        .await
        .unwrap()
        .and_then(|service| service.spec);
    let mut service = json!(service);
    for port in service
        .get_mut("ports")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
    {
        port.as_object_mut().unwrap().remove("nodePort");
    }
    if let Some(service) = service.as_object_mut() {
        service.retain(|name, _| !name.starts_with("clusterIP"));
    }
    let ingress = bed
        .api::<Ingress>()
        .get_opt(name)
        .await
        .unwrap()
        .and_then(|ingress| ingress.spec);
    let scaler = bed
        .api::<HorizontalPodAutoscaler>()
        .get_opt(name)
        .await
        .unwrap()
        .and_then(|scaler| scaler.spec);
    json!({ "deployment": deployment.spec, "service": service, "ingress": ingress, "scaler": scaler })
}

/// Waits until the operator has applied the spec, and returns the children's specs.
async fn applied(bed: &Bed, name: &str) -> Value {
    bed.until(
        name,
        "has a status of this generation",
        |app: &AppService| ready_condition(app).is_some(),
    )
    .await;
    children_specs(bed, name).await
}

/// Returns whether `actual` contains all of `expected`; lists must have the same length.
fn is_within(expected: &Value, actual: &Value) -> bool {
    match (expected, actual) {
        (Value::Object(expected), Value::Object(actual)) => expected.iter().all(|(name, value)| {
            actual
                .get(name)
                .is_some_and(|actual| is_within(value, actual))
        }),
        (Value::Array(expected), Value::Array(actual)) => {
            expected.len() == actual.len()
                && expected
                    .iter()
                    .zip(actual)
                    .all(|(one, other)| is_within(one, other))
        }
        _ => expected == actual,
    }
}

/// Returns each change, with the expected container, Service and other objects.
#[rustfmt::skip] // one line a case
fn cases() -> Vec<(Value, Value)> {
    let container = |part: Value| json!({ "deployment": { "template": { "spec": { "containers": [part] } } } });
    let ports = |ports: Value, container: Value, service: Value| {
        (with("ports", ports), json!({ "deployment": { "template": { "spec": { "containers": [{ "ports": container }] } } }, "service": { "ports": service } }))
    };
    let a = json!({ "name": "a", "port": 80 });
    let probe = json!({ "httpGet": { "port": 80, "path": "/" }, "periodSeconds": 7 });
    vec![
        (with("image", json!("nginx:1.27")), container(json!({ "image": "nginx:1.27" }))),
        // Ports that are added, removed, reordered, renamed or renumbered, or get another target.
        ports(json!([{ "name": "http", "port": 80 }, { "name": "admin", "port": 81, "targetPort": 8081 }, { "name": "more", "port": 82 }]),
            json!([{ "containerPort": 80 }, { "containerPort": 8081 }, { "containerPort": 82 }]), json!([{ "port": 80 }, { "port": 81 }, { "port": 82 }])),
        ports(json!([{ "name": "admin", "port": 81, "targetPort": 8081 }]), json!([{ "containerPort": 8081 }]), json!([{ "port": 81 }])),
        ports(json!([{ "name": "admin", "port": 81, "targetPort": 8081 }, { "name": "http", "port": 80 }]), json!([{ "containerPort": 8081 }, { "containerPort": 80 }]), json!([{ "port": 81 }, { "port": 80 }])),
        ports(json!([{ "name": "web", "port": 80 }, { "name": "admin", "port": 81, "targetPort": 8081 }]), json!([{ "containerPort": 80 }, { "containerPort": 8081 }]), json!([{ "name": "web", "port": 80 }, { "port": 81 }])),
        ports(json!([{ "name": "admin", "port": 80, "targetPort": 80 }, { "name": "http", "port": 81, "targetPort": 8081 }]), json!([{ "containerPort": 80 }, { "containerPort": 8081 }]), json!([{ "name": "admin", "port": 80 }, { "name": "http", "port": 81 }])),
        ports(json!([{ "name": "http", "port": 8000, "targetPort": 80 }, { "name": "admin", "port": 81, "targetPort": 8081 }]), json!([{ "containerPort": 80 }, { "containerPort": 8081 }]), json!([{ "name": "http", "port": 8000, "targetPort": 80 }, { "port": 81 }])),
        ports(json!([{ "name": "http", "port": 80 }, { "name": "admin", "port": 81 }]), json!([{ "containerPort": 80 }, { "containerPort": 81 }]), json!([{ "targetPort": 80 }, { "targetPort": 81 }])),
        ports(json!([{ "port": 80 }]), json!([{ "containerPort": 80 }]), json!([{ "port": 80, "targetPort": 80 }])),
        // A named target, another protocol, one number with both protocols, one target for two ports.
        ports(json!([{ "name": "http", "port": 80, "targetPort": "http" }]), json!([{ "name": "http", "containerPort": 80, "protocol": "TCP" }]), json!([{ "targetPort": "http" }])),
        ports(json!([{ "name": "http", "port": 80, "targetPort": "http" }, { "name": "admin", "port": 81, "targetPort": 80 }]), json!([{ "name": "http", "containerPort": 80 }]), json!([{ "targetPort": "http" }, { "targetPort": 80 }])),
        ports(json!([{ "name": "dns", "port": 53, "protocol": "UDP" }]), json!([{ "containerPort": 53 }]), json!([{ "port": 53, "protocol": "UDP" }])),
        ports(json!([a, { "name": "b", "port": 80, "protocol": "UDP" }]), json!([{ "containerPort": 80 }]), json!([{ "protocol": "TCP" }, { "protocol": "UDP" }])),
        ports(json!([a, { "name": "b", "port": 8080, "targetPort": 80 }]), json!([{ "containerPort": 80 }]), json!([{ "targetPort": 80 }, { "targetPort": 80 }])),
        ports(json!([{ "port": 80, "appProtocol": "kubernetes.io/h2c" }]), json!([{ "containerPort": 80 }]), json!([{ "appProtocol": "kubernetes.io/h2c" }])),
        // Without ports there is no Service.
        (with("ports", json!([])), json!({ "service": null })),
        (with("serviceType", json!("ClusterIP")), json!({ "service": { "type": "ClusterIP" } })),
        (json!({ "size": 0, "image": "nginx:1.7.9", "serviceType": "ClusterIP", "ports": [{ "port": 80 }] }), json!({ "service": { "type": "ClusterIP", "ports": [{ "port": 80 }] } })),
        (json!({ "size": 0, "image": "nginx:1.7.9", "serviceType": "ClusterIP", "ports": [{ "name": "http", "port": 8000, "targetPort": 80 }, { "name": "admin", "port": 81 }] }), json!({ "service": { "type": "ClusterIP", "ports": [{ "port": 8000 }, { "port": 81 }] } })),
        (with("serviceType", json!("LoadBalancer")), json!({ "service": { "type": "LoadBalancer" } })),
        // Optional fields.
        (with("env", json!([{ "name": "A", "value": "$(B)" }, { "name": "C", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }])), container(json!({ "env": [{ "name": "A", "value": "$(B)" }, { "name": "C", "valueFrom": {} }] }))),
        (with("env", json!([{ "name": "C", "value": "" }])), container(json!({ "env": [{ "name": "C" }] }))),
        (with("envFrom", json!([{ "secretRef": { "name": "s" } }])), container(json!({ "envFrom": [{ "secretRef": { "name": "s" } }] }))),
        (with("resources", json!({ "requests": { "cpu": 0.5 }, "limits": { "cpu": 1, "memory": "64Mi" } })), container(json!({ "resources": { "requests": { "cpu": "500m" }, "limits": { "cpu": "1", "memory": "64Mi" } } }))),
        (with("livenessProbe", probe.clone()), container(json!({ "livenessProbe": probe }))),
        (with("readinessProbe", json!({ "tcpSocket": { "port": 80 } })), container(json!({ "readinessProbe": { "tcpSocket": { "port": 80 } } }))),
        (with("startupProbe", json!({ "exec": { "command": ["true"] } })), container(json!({ "startupProbe": { "exec": { "command": ["true"] } } }))),
        (with("imagePullPolicy", json!("Always")), container(json!({ "imagePullPolicy": "Always" }))),
        (with("command", json!(["sh", "-c"])), container(json!({ "command": ["sh", "-c"] }))),
        (with("args", json!(["echo"])), container(json!({ "args": ["echo"] }))),
        (with("serviceAccountName", json!("runner")), json!({ "deployment": { "template": { "spec": { "serviceAccountName": "runner" } } } })),
        (with("imagePullSecrets", json!([{ "name": "registry" }])), json!({ "deployment": { "template": { "spec": { "imagePullSecrets": [{ "name": "registry" }] } } } })),
        (with("podOverrides", json!({
                "metadata": { "annotations": { "team": "shop" } },
                "spec": {
                    "containers": [{ "name": "web", "env": [{ "name": "A", "value": "b" }], "ports": [{ "name": "http", "containerPort": 80, "protocol": "TCP" }] },
                        { "name": "logs", "image": "logs:1" }],
                    "volumes": [{ "name": "cache", "emptyDir": {} }], "tolerations": [{ "operator": "Exists" }],
                },
            })), json!({ "deployment": { "template": {
                "metadata": { "annotations": { "team": "shop" } },
                "spec": {
                    "containers": [{ "name": "web", "env": [{ "name": "A", "value": "b" }], "ports": [{ "name": "http", "containerPort": 80 }, { "containerPort": 8081 }] },
                        { "name": "logs", "image": "logs:1" }],
                    "volumes": [{ "name": "cache" }], "tolerations": [{ "operator": "Exists" }],
                },
            } } })),
        (with("ingress", json!({ "host": "app.example.com", "class": "nginx", "path": "/api", "tls": { "secretName": "cert" } })),
            json!({ "ingress": { "ingressClassName": "nginx", "rules": [{ "host": "app.example.com" }], "tls": [{ "hosts": ["app.example.com"], "secretName": "cert" }] } })),
        (with("ingress", json!({})), json!({ "ingress": { "rules": [{ "http": { "paths": [{ "path": "/", "pathType": "Prefix", "backend": { "service": { "port": { "number": 80 } } } }] } }] } })),
        (autoscaled(json!({ "min": 2, "max": 5, "cpu": 60 })), json!({ "deployment": { "replicas": 0 }, "scaler": { "minReplicas": 2, "maxReplicas": 5, "metrics": [{ "resource": { "target": { "averageUtilization": 60 } } }] } })),
        (with("size", json!(1)), json!({ "deployment": { "replicas": 1 } })),
    ]
}

#[rstest]
#[case::created(false)]
#[case::adopted(true)]
#[tokio::test]
async fn every_change_of_the_spec_applies_and_reverts(#[case] taken_over: bool) {
    let bed = Bed::shared("changes").await;
    let made = app(&bed, "web", base()).await;
    if taken_over {
        let old = json!({ "metadata": { "annotations": { "old/spec": base().to_string() } } });
        bed.patch::<AppService>("web", old).await;
        create_original_children(&bed, &made, json!({})).await;
    }
    let _operator = Operator::start(&bed, Settings::default()).await;
    let first = applied(&bed, "web").await;
    let mut service: Service = bed.api().get("web").await.unwrap();
    for (spec, expected) in cases() {
        respec(&bed, "web", spec.clone()).await;
        let actual = applied(&bed, "web").await;
        assert!(
            is_within(&expected, &actual),
            "{spec}\nexpected: {expected}\nactual: {actual}"
        );
        respec(&bed, "web", base()).await;
        let back = applied(&bed, "web").await;
        assert_eq!(back, first, "back from {spec}");
    }
    // The Service keeps its address, unless it was deleted.
    let now: Service = bed.api().get("web").await.unwrap();
    assert_ne!(now.uid(), service.uid());
    service = now;
    for (spec, _) in cases()
        .into_iter()
        .filter(|(spec, _)| spec["ports"] != json!([]))
        .take(5)
    {
        respec(&bed, "web", spec).await;
        applied(&bed, "web").await;
    }
    let now: Service = bed.api().get("web").await.unwrap();
    assert_eq!(now.uid(), service.uid());
    assert_eq!(
        now.spec.unwrap().cluster_ip,
        service.spec.unwrap().cluster_ip
    );
}

/// A node port stays as long as its port, even if other ports change.
#[tokio::test]
async fn node_port_stays_when_other_ports_change() {
    let bed = Bed::shared("nodeports").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    app(&bed, "web", base()).await;
    applied(&bed, "web").await;
    let node_port = async |port: i32| {
        let service: Service = bed.api().get("web").await.unwrap();
        let ports = service.spec.unwrap().ports.unwrap();
        ports
            .into_iter()
            .find(|actual| actual.port == port)
            .unwrap()
            .node_port
            .unwrap()
    };
    let before = node_port(80).await;
    let changes = [
        with(
            "ports",
            json!([{ "name": "new", "port": 90 }, { "name": "web", "port": 80, "targetPort": 8080 }]),
        ),
        with("ports", json!([{ "port": 80 }])),
        base(),
        // The field `nodePort` is set to the current value, and removed again.
        with("ports", json!([{ "port": 80, "nodePort": before }])),
        base(),
        // The Service's type changes in both directions.
        with("serviceType", json!("LoadBalancer")),
        base(),
    ];
    for spec in changes {
        respec(&bed, "web", spec.clone()).await;
        applied(&bed, "web").await;
        assert_eq!(node_port(80).await, before, "{spec}");
    }
    // The apiserver drops a requested node port while its cache lacks the Service's last change: the operator requests
    // the port again. It may also keep the port of the dropped request allocated, until its repair minutes later.
    let others = [30_079, 30_078, 30_077].into_iter();
    for other in others.filter(|other| *other != before) {
        let ports = json!([{ "port": 80, "nodePort": other }]);
        respec(&bed, "web", with("ports", ports)).await;
        let is_set = until(
            "the Service has the requested node port, or the apiserver holds it allocated",
            SOON,
            async || {
                if node_port(80).await == other {
                    return Ok(Some(true));
                }
                let app: AppService = bed.api().get("web").await?;
                let reason = ready_condition(&app).and_then(|it| it.reason.as_deref());
                Ok((reason == Some("NodePortTaken")).then_some(false))
            },
        )
        .await
        .unwrap();
        if is_set {
            return;
        }
    }
    panic!("the apiserver holds three node ports allocated that no Service has");
}

/// The number of a port moves to another port of the same app, whether the cluster or a spec chose it.
#[tokio::test]
async fn node_port_moves_to_another_port() {
    let bed = Bed::shared("moved-port").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let port = |name: &str, number: u16, node_port: Option<i32>| {
        let mut port = json!({ "name": name, "port": number });
        if let Some(node_port) = node_port {
            port["nodePort"] = json!(node_port);
        }
        port
    };
    let ports =
        |a: Option<i32>, b: Option<i32>| with("ports", json!([port("a", 80, a), port("b", 81, b)]));
    let node_ports = async || {
        ready(&bed, "web").await;
        let service: Service = bed.api().get("web").await.unwrap();
        let mut ports = service.spec.unwrap().ports.unwrap();
        ports.sort_by_key(|port| port.port);
        (ports[0].node_port, ports[1].node_port)
    };
    app(&bed, "web", ports(None, None)).await;
    let (first, _) = node_ports().await;
    // The cluster chose the number, so no manager owns the field.
    respec(&bed, "web", ports(None, first)).await;
    let (a, b) = node_ports().await;
    assert!(a.is_some() && a != first && b == first, "{a:?} {b:?}");
    // The operator applied the field.
    respec(&bed, "web", ports(first, None)).await;
    let (a, b) = node_ports().await;
    assert!(a == first && b.is_some() && b != first, "{a:?} {b:?}");
    respec(&bed, "web", ports(a, b)).await;
    assert_eq!(node_ports().await, (a, b));
    respec(&bed, "web", ports(b, None)).await;
    let (now_a, now_b) = node_ports().await;
    assert!(
        now_a == b && now_b.is_some() && now_b != b,
        "{now_a:?} {now_b:?}"
    );
}

/// The app waits for a node port that another Service holds, and quotes the apiserver; the same for a node port when
/// the range is full.
#[tokio::test]
async fn app_waits_for_a_node_port_in_use() {
    let bed = Bed::shared("taken-port").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let holder = json!({ "spec": { "type": "NodePort", "ports": [{ "port": 80 }] } });
    let holder: Service = bed.create("holder", holder).await;
    let taken_port = holder.spec.unwrap().ports.unwrap()[0].node_port.unwrap();
    let spec =
        json!({ "size": 0, "image": "i", "ports": [{ "port": 80, "nodePort": taken_port }] });
    app(&bed, "web", spec).await;
    let message = not_ready(&bed, "web", "NodePortTaken").await;
    assert!(
        message.ends_with(&format!(
            "Invalid value: {taken_port}: provided port is already allocated"
        )),
        "{message}"
    );
    assert_eq!(bed.event("web", "NodePortTaken").await, message);
    bed.delete::<Service>("holder").await;
    ready(&bed, "web").await;
    assert_eq!(
        bed.api::<Service>()
            .get("web")
            .await
            .unwrap()
            .spec
            .unwrap()
            .ports
            .unwrap()[0]
            .node_port,
        Some(taken_port)
    );

    // A node port outside the range does not become valid by waiting.
    app(
        &bed,
        "far",
        json!({ "size": 0, "image": "i", "ports": [{ "port": 80, "nodePort": 40_000 }] }),
    )
    .await;
    let message = not_ready(&bed, "far", "WriteRejected").await;
    assert!(
        message.contains("provided port is not in the valid range"),
        "{message}"
    );
    // Each status update of the Deployment triggers a reconcile, so the test waits for the last one, and for later
    // watch events.
    bed.until("far", "has the final status", |deployment: &Deployment| {
        let conditions = deployment
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten());
        conditions
            .filter_map(|it| it.reason.as_deref())
            .any(|reason| reason == "NewReplicaSetAvailable")
    })
    .await;
    app(&bed, "next", json!({ "size": 0, "image": "i" })).await;
    ready(&bed, "next").await;
    reconciled(&bed, "web").await;
    let since = bed.plane.audit().mark().await.unwrap();
    reconciled(&bed, "web").await;
    let tried = writes(&bed, since).await;
    assert!(
        !tried.contains(&"create services".to_owned()),
        "the operator retried without a change: {tried:?}"
    );
    assert_eq!(bed.events("far", "WriteRejected").await.len(), 1);
}
