#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value
)]

use std::collections::{BTreeMap, BTreeSet};

use kube::CustomResourceExt;
use qm_api::AppService;
use rstest::rstest;
use serde_json::{Value, json};

use super::super::validate::check;
use super::*;

/// The spec of the manifest in the original program's document.
fn document() -> Value {
    json!({ "size": 2, "image": "nginx:1.7.9", "ports": [{ "port": 80, "targetPort": 80, "nodePort": 30002 }] })
}

fn app(spec: &Value) -> AppService {
    let object = json!({ "apiVersion": "kosmos.io/v1", "kind": "AppService", "spec": spec,
        "metadata": { "namespace": "default", "name": "appservice-sample", "uid": "u" } });
    serde_json::from_value(object).unwrap()
}

/// Returns all objects of an app with this spec.
fn built(spec: &Value) -> Value {
    let app = app(spec);
    let app = check(&app).unwrap();
    let mut all = BTreeMap::new();
    all.insert(
        "Deployment",
        serde_json::to_value(deployment(&app, Some(app.size), true)).unwrap(),
    );
    all.extend(service(&app).map(|service| ("Service", serde_json::to_value(service).unwrap())));
    all.extend(autoscaler(&app).map(|scaler| {
        (
            "HorizontalPodAutoscaler",
            serde_json::to_value(scaler).unwrap(),
        )
    }));
    all.extend(ingress(&app).map(|ingress| ("Ingress", serde_json::to_value(ingress).unwrap())));
    json!(all)
}

fn ports(ports: &Value) -> Value {
    let spec = json!({ "size": 1, "image": "i", "ports": ports });
    let built = built(&spec);
    json!({
        "container": built["Deployment"]["spec"]["template"]["spec"]["containers"][0]["ports"],
        "service": built["Service"]["spec"]["ports"],
    })
}

/// Returns the changed leaves by path, with the new value or null.
fn difference(before: &Value, after: &Value) -> BTreeMap<String, Value> {
    fn walk(path: &str, before: &Value, after: &Value, into: &mut BTreeMap<String, Value>) {
        match (before, after) {
            (Value::Object(one), Value::Object(other)) => {
                for name in one.keys().chain(other.keys()).collect::<BTreeSet<_>>() {
                    walk(&format!("{path}.{name}"), &before[name], &after[name], into);
                }
            }
            (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
                for (at, (one, other)) in one.iter().zip(other).enumerate() {
                    walk(&format!("{path}[{at}]"), one, other, into);
                }
            }
            _ if before != after => {
                into.insert(path.trim_start_matches('.').to_owned(), after.clone());
            }
            _ => {}
        }
    }
    let mut into = BTreeMap::new();
    walk("", before, after, &mut into);
    into
}

#[test]
fn objects_of_the_documents_manifest() {
    insta::assert_yaml_snapshot!(built(&document()));
}

/// Another label or port name in the template would restart every Pod of an adopted Deployment.
#[test]
fn pods_equal_those_of_the_documents_program() {
    let built = built(&document());
    let labels = json!({ "app": "appservice-sample" });
    let container = json!({
        "name": "appservice-sample",
        "image": "nginx:1.7.9",
        "ports": [{ "containerPort": 80 }],
        "imagePullPolicy": "IfNotPresent",
    });
    assert_eq!(
        built["Deployment"]["spec"],
        json!({
            "replicas": 2,
            "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": [container] } },
        })
    );
    assert_eq!(built["Service"]["spec"]["selector"], labels);
}

/// The snapshot shows what each optional field changes.
#[test]
fn optional_fields_change_the_objects() {
    let probe = |rest: Value| {
        let mut probe = json!({ "periodSeconds": 5 });
        probe
            .as_object_mut()
            .unwrap()
            .extend(rest.as_object().unwrap().clone());
        probe
    };
    let cases = [
        ("serviceType", json!("LoadBalancer")),
        (
            "env",
            json!([
                { "name": "A", "value": "$(B) \"c\"" },
                { "name": "B", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } },
                { "name": "C", "valueFrom": { "resourceFieldRef": { "resource": "limits.cpu", "divisor": 1 } } },
            ]),
        ),
        (
            "envFrom",
            json!([{ "prefix": "P_", "configMapRef": { "name": "c", "optional": true } }]),
        ),
        (
            "resources",
            json!({ "requests": { "cpu": "100m", "memory": "64Mi" }, "limits": { "cpu": 2, "memory": 0.5 } }),
        ),
        (
            "livenessProbe",
            probe(json!({ "httpGet": { "port": 80, "path": "/live" } })),
        ),
        (
            "readinessProbe",
            probe(json!({ "tcpSocket": { "port": "http" } })),
        ),
        (
            "startupProbe",
            probe(json!({ "exec": { "command": ["true"] } })),
        ),
        ("imagePullPolicy", json!("Always")),
        ("command", json!(["sh", "-c"])),
        ("args", json!(["echo $0"])),
        ("serviceAccountName", json!("runner")),
        ("podSecurity", json!("Restricted")),
        ("podSecurity", json!("Baseline")),
        (
            "podOverrides",
            json!({
                "metadata": { "annotations": { "a": "b" } },
                "spec": { "containers": [{ "name": "logs", "image": "l" }, { "name": "appservice-sample", "tty": true }] },
            }),
        ),
        ("imagePullSecrets", json!([{ "name": "registry" }])),
        ("autoscaling", json!({ "max": 5 })),
        ("autoscaling", json!({ "min": 2, "max": 5, "cpu": 60 })),
        ("ingress", json!({})),
        (
            "ingress",
            json!({ "host": "app.example.com", "class": "nginx", "path": "/api", "tls": { "secretName": "cert" } }),
        ),
        ("ports", json!([])),
        ("suspend", json!(true)),
    ];
    let crd = serde_json::to_value(AppService::crd()).unwrap();
    let fields = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    for field in fields
        .as_object()
        .unwrap()
        .keys()
        .filter(|field| !["image", "size"].contains(&field.as_str()))
    {
        assert!(
            cases.iter().any(|(name, _)| name == field),
            "{field} has no case"
        );
    }
    let before = built(&document());
    let differences = cases.map(|(field, value)| {
        let mut spec = document();
        spec[field] = value.clone();
        (
            format!("{field}: {value}"),
            difference(&before, &built(&spec)),
        )
    });
    insta::assert_yaml_snapshot!(differences.into_iter().collect::<Vec<_>>());
}

#[rstest]
#[case::missing_target(json!([{ "port": 8080 }]), json!([{ "containerPort": 8080 }]), json!([8080]))]
#[case::zeros_of_a_go_client(json!([{ "port": 8080, "targetPort": 0, "nodePort": 0, "name": "", "protocol": "" }]), json!([{ "containerPort": 8080 }]), json!([8080]))]
#[case::name(json!([{ "port": 80, "targetPort": "http" }]), json!([{ "name": "http", "containerPort": 80, "protocol": "TCP" }]), json!(["http"]))]
#[case::udp(json!([{ "port": 53, "protocol": "UDP" }]), json!([{ "containerPort": 53 }]), json!([53]))]
#[case::one_number_two_protocols(json!([{ "name": "a", "port": 53 }, { "name": "b", "port": 53, "protocol": "UDP" }]), json!([{ "containerPort": 53 }]), json!([53, 53]))]
#[case::one_target(json!([{ "name": "a", "port": 80 }, { "name": "b", "port": 8080, "targetPort": 80 }]), json!([{ "containerPort": 80 }]), json!([80, 80]))]
#[case::one_named_target(json!([{ "name": "a", "port": 80, "targetPort": "http" }, { "name": "b", "port": 81, "targetPort": "http" }]), json!([{ "name": "http", "containerPort": 80, "protocol": "TCP" }]), json!(["http", "http"]))]
#[case::number_before_its_name(json!([{ "name": "a", "port": 81, "targetPort": 80 }, { "name": "b", "port": 80, "targetPort": "http" }]), json!([{ "name": "http", "containerPort": 80, "protocol": "TCP" }]), json!([80, "http"]))]
#[case::number_after_its_name(json!([{ "name": "b", "port": 80, "targetPort": "http" }, { "name": "a", "port": 81, "targetPort": 80 }]), json!([{ "name": "http", "containerPort": 80, "protocol": "TCP" }]), json!(["http", 80]))]
#[case::named_for_udp(json!([{ "name": "a", "port": 53, "targetPort": "dns", "protocol": "UDP" }, { "name": "b", "port": 53 }]), json!([{ "name": "dns", "containerPort": 53, "protocol": "UDP" }, { "containerPort": 53 }]), json!(["dns", 53]))]
fn ports_are_unique_in_the_container(
    #[case] spec: Value,
    #[case] container: Value,
    #[case] targets: Value,
) {
    let built = ports(&spec);
    assert_eq!(built["container"], container);
    let actual: Vec<_> = built["service"]
        .as_array()
        .unwrap()
        .iter()
        .map(|port| port["targetPort"].clone())
        .collect();
    assert_eq!(json!(actual), targets);
    for port in built["service"].as_array().unwrap() {
        assert!(
            port.get("nodePort").is_none()
                && port["name"] != ""
                && port["protocol"].as_str().unwrap().len() == 3
        );
    }
}

#[test]
fn foreign_fields_are_unset() {
    let app = app(&document());
    let app = check(&app).unwrap();
    let bare = serde_json::to_value(deployment(&app, None, false)).unwrap();
    assert!(bare["spec"].get("replicas").is_none());
    assert!(
        bare["spec"]["template"]["spec"]["containers"][0]
            .get("ports")
            .is_none()
    );
}
