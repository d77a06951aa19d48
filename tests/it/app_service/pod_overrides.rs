//! Overrides of the Pod template: merged over the generated one, corrected like every other field, and limited by the same
//! policies.

use k8s_openapi::api::apps::v1::Deployment;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use qm_api::AppService;
use serde_json::{Value, json};

use super::drift::{add, assert_corrected, operator_fields, remove, replace};
use super::{app, deployment, not_ready, ready, ready_condition, reconciled};
use crate::support::{Bed, Operator, Settings};

fn spec() -> Value {
    json!({
        "size": 0,
        "image": "nginx",
        "ports": [{ "port": 80 }],
        "env": [
            { "name": "A", "value": "1" },
            { "name": "B", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } },
        ],
        "livenessProbe": { "httpGet": { "port": 80 } },
        "podSecurity": "Restricted",
    })
}

fn overrides() -> Value {
    json!({
        "metadata": { "labels": { "team": "shop" }, "annotations": { "example.com/scrape": "true" } },
        "spec": {
            "initContainers": [{ "name": "migrate", "image": "migrate:1", "restartPolicy": "Always" }],
            "containers": [
                { "name": "logs", "image": "logs:1", "volumeMounts": [{ "name": "logs", "mountPath": "/logs" }] },
                {
                    "name": "web",
                    "env": [{ "name": "C", "value": "3" }, { "name": "B", "value": "2" }],
                    "ports": [{ "containerPort": 80, "name": "http", "protocol": "TCP" }],
                    "livenessProbe": { "tcpSocket": { "port": 80 } },
                    "volumeMounts": [{ "name": "logs", "mountPath": "/var/log/nginx" }],
                },
            ],
            "volumes": [{ "name": "logs", "emptyDir": { "sizeLimit": "64Mi" } }],
            "affinity": { "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
                "weight": 10,
                "podAffinityTerm": { "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": "web" } } },
            }] } },
            "securityContext": { "runAsUser": 1000, "fsGroup": 1000 },
            "tolerations": [{ "key": "dedicated", "operator": "Exists" }],
            "terminationGracePeriodSeconds": 60,
        },
    })
}

/// Returns the Pod template, without the fields that the apiserver sets to their defaults.
fn template(deployment: &Deployment) -> Value {
    let mut template = json!(deployment.spec.as_ref().unwrap().template);
    let pod = template["spec"].as_object_mut().unwrap();
    for name in ["dnsPolicy", "restartPolicy", "schedulerName"] {
        pod.remove(name);
    }
    for list in ["containers", "initContainers"] {
        for container in pod
            .get_mut(list)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            let container = container.as_object_mut().unwrap();
            for name in [
                "imagePullPolicy",
                "resources",
                "terminationMessagePath",
                "terminationMessagePolicy",
            ] {
                container.remove(name);
            }
            if let Some(probe) = container.get_mut("livenessProbe") {
                probe
                    .as_object_mut()
                    .unwrap()
                    .retain(|name, _| name == "tcpSocket" || name == "httpGet");
            }
        }
    }
    template
}

/// Replaces the app's overrides.
async fn override_pods(bed: &Bed, name: &str, overrides: Value) {
    let patch = serde_json::from_value(json!([add("/spec/podOverrides", overrides)])).unwrap();
    let api = bed.api::<AppService>();
    api.patch(name, &PatchParams::default(), &Patch::<()>::Json(patch))
        .await
        .unwrap();
}

async fn remove_overrides(bed: &Bed, name: &str) {
    bed.patch::<AppService>(name, json!({ "spec": { "podOverrides": null } }))
        .await;
}

#[tokio::test]
async fn pod_template_is_merged_and_corrected_and_reverts() {
    let bed = Bed::shared("overrides").await;
    // A tiny window, so that no correction is delayed.
    let _operator = Operator::start(&bed, Settings::default().flag("--drift-window=1ms")).await;
    app(&bed, "web", spec()).await;
    ready(&bed, "web").await;
    let before = deployment(&bed, "web").await;

    override_pods(&bed, "web", overrides()).await;
    ready(&bed, "web").await;
    let restricted =
        json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    let mut expected = overrides();
    expected["metadata"]["labels"]["app"] = "web".into();
    expected["spec"]["securityContext"] = json!({
        "runAsNonRoot": true, "runAsUser": 1000, "runAsGroup": 65_532, "fsGroup": 1000, "seccompProfile": { "type": "RuntimeDefault" },
    });
    expected["spec"]["containers"] = json!([
        {
            "name": "web",
            "image": "nginx",
            "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }, { "name": "C", "value": "3" }],
            "ports": [{ "containerPort": 80, "name": "http", "protocol": "TCP" }],
            "livenessProbe": { "tcpSocket": { "port": 80 } },
            "volumeMounts": [{ "name": "logs", "mountPath": "/var/log/nginx" }],
            "securityContext": restricted,
        },
        { "name": "logs", "image": "logs:1", "volumeMounts": [{ "name": "logs", "mountPath": "/logs" }] },
    ]);
    let live = deployment(&bed, "web").await;
    assert_eq!(template(&live), expected);
    assert_eq!(
        live.spec.as_ref().unwrap().selector,
        before.spec.as_ref().unwrap().selector
    );

    let pod = |rest: &str| format!("/spec/template/spec/{rest}");
    let term = "affinity/podAntiAffinity/preferredDuringSchedulingIgnoredDuringExecution/0/weight";
    let harm = [
        replace(&pod("containers/1/image"), "evil"),
        remove(&pod("containers/1")),
        replace(&pod("containers/0/env/2/value"), "evil"),
        replace(&pod("initContainers/0/image"), "evil"),
        remove(&pod("containers/0/volumeMounts")),
        replace(&pod("volumes/0/emptyDir/sizeLimit"), "1Mi"),
        replace(&pod(term), 20),
        remove(&pod("affinity")),
        replace(&pod("securityContext/fsGroup"), 0),
        add(&pod("tolerations/-"), json!({ "operator": "Exists" })),
        replace("/spec/template/metadata/labels/team", "evil"),
        remove("/spec/template/metadata/annotations"),
    ];
    assert_corrected::<Deployment>(&bed, &harm).await;

    // A second version of the overrides removes what the first one added.
    let fewer = json!({ "spec": { "containers": [{ "name": "logs", "image": "logs:2" }] } });
    override_pods(&bed, "web", fewer).await;
    ready(&bed, "web").await;
    let live = template(&deployment(&bed, "web").await);
    let mut expected = template(&before);
    expected["spec"]["containers"]
        .as_array_mut()
        .unwrap()
        .push(json!({ "name": "logs", "image": "logs:2" }));
    assert_eq!(live, expected);

    remove_overrides(&bed, "web").await;
    ready(&bed, "web").await;
    let fields = |deployment: &Deployment| {
        let mut fields = operator_fields(deployment);
        fields["metadata"]["annotations"] = json!(null);
        fields
    };
    assert_eq!(fields(&deployment(&bed, "web").await), fields(&before));
}

/// An app that has overrides from the start.
#[tokio::test]
async fn overrides_of_a_new_app_apply_and_revert() {
    let bed = Bed::shared("new-overrides").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let mut with_overrides = spec();
    with_overrides["podOverrides"] = overrides();
    app(&bed, "web", with_overrides).await;
    app(&bed, "plain", spec()).await;
    ready(&bed, "web").await;
    ready(&bed, "plain").await;
    let live = deployment(&bed, "web").await;
    assert_eq!(
        template(&live)["spec"]["initContainers"],
        overrides()["spec"]["initContainers"]
    );

    remove_overrides(&bed, "web").await;
    ready(&bed, "web").await;
    let reverted = template(&deployment(&bed, "web").await).to_string();
    let plain = template(&deployment(&bed, "plain").await).to_string();
    assert_eq!(reverted, plain.replace("\"plain\"", "\"web\""));
}

#[tokio::test]
async fn invalid_overrides_are_reported_and_change_nothing() {
    let bed = Bed::shared("bad-overrides").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    app(&bed, "web", spec()).await;
    ready(&bed, "web").await;
    let before = deployment(&bed, "web").await;
    let cases = [
        (
            json!({ "spec": { "contaienrs": [] } }),
            "spec.podOverrides.spec.contaienrs: unknown field",
        ),
        (
            json!({ "spec": { "containers": [{ "name": "a", "volumeMounts": [{ "path": "/" }] }] } }),
            "spec.podOverrides.spec.containers[0].volumeMounts[0].path: unknown field",
        ),
        (
            json!({ "containers": [] }),
            "spec.podOverrides.containers: unknown field: a PodTemplateSpec has metadata and spec",
        ),
        (
            json!({ "spec": { "containers": {} } }),
            "spec.podOverrides.spec.containers: invalid type: map",
        ),
        (
            json!({ "metadata": { "labels": { "app": "other" } } }),
            "spec.podOverrides.metadata.labels[app]: remove it, or write app: web: ",
        ),
        (
            json!({ "metadata": { "labels": { "quartermaster.dev/owner-uid": "other" } } }),
            "spec.podOverrides.metadata.labels[quartermaster.dev/owner-uid]: remove it: ",
        ),
        (
            json!({ "metadata": { "namespace": "other" } }),
            "spec.podOverrides.metadata.namespace: remove it: ",
        ),
        (
            json!({ "metadata": { "annotations": { "a": "x".repeat(64 * 1024) } } }),
            "spec.podOverrides is 65573 bytes of JSON; the operator reads at most 65536. Shorten it",
        ),
        (
            json!({ "spec": { "volumes": vec![json!({}); 1000] } }),
            "spec.podOverrides has 1002 JSON objects; the operator reads at most 1000. ",
        ),
    ];
    for (overrides, expected) in cases {
        override_pods(&bed, "web", overrides).await;
        let app = bed
            .until("web", expected, |app: &AppService| {
                ready_condition(app).is_some_and(|ready| {
                    let message = ready.message.as_deref().unwrap_or_default();
                    ready.reason.as_deref() == Some("SpecInvalid") && message.starts_with(expected)
                })
            })
            .await;
        assert_eq!(ready_condition(&app).unwrap().status, "False");
    }
    let after = deployment(&bed, "web").await;
    assert_eq!(after.metadata.generation, before.metadata.generation);

    override_pods(&bed, "web", overrides()).await;
    ready(&bed, "web").await;
}

/// The type accepts this template, and the apiserver rejects it.
#[tokio::test]
async fn apiserver_rejects_what_a_deployment_cannot_have() {
    let bed = Bed::shared("rejected-overrides").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let mut never = spec();
    never["podOverrides"] = json!({ "spec": { "restartPolicy": "Never" } });
    app(&bed, "never", never).await;
    let message = not_ready(&bed, "never", "WriteRejected").await;
    assert!(
        message.contains("spec.template.spec.restartPolicy: Unsupported value"),
        "{message}"
    );
    remove_overrides(&bed, "never").await;
    ready(&bed, "never").await;
}

#[tokio::test]
async fn overrides_that_reach_the_node_are_forbidden() {
    let bed = Bed::shared("node-overrides").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    app(&bed, "web", spec()).await;
    ready(&bed, "web").await;
    let before = deployment(&bed, "web").await;
    let sidecar = |rest: Value| {
        let mut sidecar = json!({ "name": "a", "image": "a" });
        sidecar
            .as_object_mut()
            .unwrap()
            .extend(rest.as_object().unwrap().clone());
        json!([sidecar])
    };
    let privileged = sidecar(json!({ "securityContext": { "privileged": true } }));
    let host_port = sidecar(json!({ "ports": [{ "containerPort": 80, "hostPort": 80 }] }));
    let cases = [
        (
            json!({ "volumes": [{ "name": "root", "hostPath": { "path": "/" } }] }),
            "the operator runs no Pod with a hostPath volume",
        ),
        (
            json!({ "containers": privileged }),
            "the operator runs no privileged container",
        ),
        (
            json!({ "initContainers": privileged }),
            "the operator runs no privileged container",
        ),
        (
            json!({ "containers": host_port }),
            "the operator runs no Pod with a hostPort",
        ),
        (
            json!({ "hostNetwork": true }),
            "the operator runs no Pod with hostNetwork, hostPID or hostIPC",
        ),
    ];
    for (pod, expected) in cases {
        remove_overrides(&bed, "web").await;
        ready(&bed, "web").await;
        override_pods(&bed, "web", json!({ "spec": pod })).await;
        let message = not_ready(&bed, "web", "Forbidden").await;
        let expected = format!(
            "the operator may not run deployments \"web\" in namespace \"{}\": {expected}",
            bed.namespace
        );
        assert!(message.contains(&expected), "{message}");
    }
    let after = deployment(&bed, "web").await;
    assert_eq!(after.spec.unwrap().template, before.spec.unwrap().template);

    // A new app too: it has no Deployment, and its Service is there.
    let mut new = spec();
    new["podOverrides"] = json!({ "spec": { "hostPID": true } });
    app(&bed, "new", new).await;
    not_ready(&bed, "new", "Forbidden").await;
    reconciled(&bed, "new").await;
    assert!(
        bed.api::<Deployment>()
            .get_opt("new")
            .await
            .unwrap()
            .is_none()
    );
    assert_eq!(super::service(&bed, "new").await.name_any(), "new");
}

/// Decoded, the Deployment takes some 10 MiB.
#[tokio::test]
async fn deployment_of_the_largest_app_is_read_and_changed() {
    let bed = Bed::shared("largest").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    let env: Vec<_> = (0..512)
        .map(|n| {
            let key = json!({ "name": "s", "key": "k" });
            json!({ "name": format!("E{n}"), "valueFrom": { "secretKeyRef": key } })
        })
        .collect();
    let mounts: Vec<_> = (0..970)
        .map(|n| json!({ "name": "v", "mountPath": format!("/{n}"), "subPath": "s", "readOnly": true }))
        .collect();
    let overrides = json!({ "spec": {
        "volumes": [{ "name": "v", "emptyDir": {} }],
        "containers": [{ "name": "web", "volumeMounts": mounts }],
    } });
    let spec = json!({ "image": "i", "size": 0, "env": env });
    app(&bed, "web", spec).await;
    override_pods(&bed, "web", overrides).await;
    ready(&bed, "web").await;
    let mounts = async || {
        let pod = deployment(&bed, "web").await.spec.unwrap().template.spec;
        let mounts = pod.unwrap().containers[0].volume_mounts.clone();
        mounts.unwrap_or_default().len()
    };
    assert_eq!(mounts().await, 970);
    remove_overrides(&bed, "web").await;
    ready(&bed, "web").await;
    assert_eq!(mounts().await, 0);
}
