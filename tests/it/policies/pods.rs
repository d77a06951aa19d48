//! Pods that a thief of the operator's token may run: no more than the operator runs for others.

use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use super::operator::operator;
use super::{allowed, rejected, rejection_of};
use crate::support::{Bed, SYSTEM};

const DRY: PostParams = PostParams {
    dry_run: true,
    field_manager: None,
};

fn kind(group: &str, kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural)
}

fn pods() -> ApiResource {
    kind("", "Pod", "pods")
}

fn deployments() -> ApiResource {
    kind("apps", "Deployment", "deployments")
}

/// Returns an object with the operator's ownership label that runs `pod`.
fn running(kind: &ApiResource, name: &str, pod: &Value) -> DynamicObject {
    let labels = json!({ "app": "a" });
    let spec = if kind.plural == "pods" {
        pod.clone()
    } else {
        let template = json!({ "metadata": { "labels": labels }, "spec": pod });
        json!({ "replicas": 0, "selector": { "matchLabels": labels }, "template": template })
    };
    let mut object = DynamicObject::new(name, kind).data(json!({ "spec": spec }));
    object.metadata.labels =
        Some([("quartermaster.dev/owner-uid".to_owned(), "6c1a".to_owned())].into());
    object
}

/// Returns a Pod of one container, with `change` merged into it.
fn pod(change: &Value) -> Value {
    let mut pod = json!({ "containers": [{ "name": "a", "image": "a" }] });
    for (field, value) in change.as_object().unwrap() {
        pod[field] = value.clone();
    }
    pod
}

/// Returns fields that no Pod of the operator has, with the message of the rejection.
fn forbidden() -> Vec<(Value, &'static str)> {
    let container = |change: Value| {
        let mut container = json!({ "name": "b", "image": "b" });
        for (field, value) in change.as_object().unwrap() {
            container[field] = value.clone();
        }
        container
    };
    let privileged = container(json!({ "securityContext": { "privileged": true } }));
    let host_port = container(json!({ "ports": [{ "containerPort": 80, "hostPort": 80 }] }));
    vec![
        (
            json!({ "hostNetwork": true }),
            "no Pod with hostNetwork, hostPID or hostIPC",
        ),
        (
            json!({ "hostPID": true }),
            "no Pod with hostNetwork, hostPID or hostIPC",
        ),
        (
            json!({ "hostIPC": true }),
            "no Pod with hostNetwork, hostPID or hostIPC",
        ),
        (
            json!({ "volumes": [{ "name": "root", "hostPath": { "path": "/" } }] }),
            "no Pod with a hostPath volume",
        ),
        (
            json!({ "containers": [host_port] }),
            "no Pod with a hostPort",
        ),
        (
            json!({ "containers": [privileged] }),
            "no privileged container",
        ),
        (
            json!({ "initContainers": [privileged] }),
            "no privileged container",
        ),
    ]
}

/// Returns fields that a service mesh adds, and that authors' Deployments have.
fn harmless() -> Value {
    let init = json!({ "name": "mesh-init", "image": "mesh", "securityContext": {
        "runAsUser": 0, "capabilities": { "add": ["NET_ADMIN", "NET_RAW"] }, "privileged": false,
    } });
    json!({
        "initContainers": [init], "hostNetwork": false,
        "volumes": [{ "name": "envoy", "emptyDir": {} }, { "name": "secret", "secret": { "secretName": "s" } }],
    })
}

#[tokio::test]
async fn stolen_token_runs_no_pod_with_host_namespaces_paths_or_ports() {
    let bed = Bed::without_controllers("policy-node").await;
    for account in ["default", "builder"] {
        bed.kubectl(&["create", "serviceaccount", account]).await;
    }
    let client = operator(&bed).await;
    for kind in [pods(), deployments()] {
        let api = Api::<DynamicObject>::namespaced_with(client.clone(), &bed.namespace, &kind);
        for (change, expected) in forbidden() {
            let object = running(&kind, "a", &pod(&change));
            rejected(expected, async || api.create(&DRY, &object).await).await;
        }
        let object = running(&kind, "a", &pod(&harmless()));
        allowed("fields of a service mesh are accepted", async || {
            api.create(&DRY, &object).await
        })
        .await;
        // An AppService's author names the account of its Deployment; no MyApp names one.
        let object = running(
            &kind,
            "a",
            &pod(&json!({ "serviceAccountName": "builder" })),
        );
        if kind.plural == "pods" {
            rejected(
                "creates Pods only with the ServiceAccount default",
                async || api.create(&DRY, &object).await,
            )
            .await;
        } else {
            allowed(
                "a Deployment has the account of its author's choice",
                async || api.create(&DRY, &object).await,
            )
            .await;
        }
    }
}

#[tokio::test]
async fn stolen_token_runs_nothing_where_the_cluster_itself_runs() {
    let bed = Bed::without_controllers("policy-namespaces").await;
    let client = operator(&bed).await;
    // The operator's namespace enforces the restricted profile, which must not be the cause of the rejection.
    let restricted = json!({
        "securityContext": { "runAsNonRoot": true, "runAsUser": 1, "seccompProfile": { "type": "RuntimeDefault" } },
        "containers": [{ "name": "a", "image": "a", "securityContext": {
            "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
        } }],
    });
    for namespace in ["kube-system", "kube-public", "kube-node-lease", SYSTEM] {
        // Without a controller-manager no controller creates the account.
        bed.plane
            .run_kubectl(
                &["-n", namespace, "create", "serviceaccount", "default"],
                "",
            )
            .await
            .unwrap();
        for kind in [pods(), deployments()] {
            let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &kind);
            let object = running(&kind, "a", &restricted);
            let expected = format!(
                "the operator may not run {} \"a\" in namespace \"{namespace}\": the operator runs no Pod in kube-system",
                kind.plural
            );
            rejected(&expected, async || api.create(&DRY, &object).await).await;
        }
        // Copies have a separate setting.
        let maps = Api::<DynamicObject>::namespaced_with(
            client.clone(),
            namespace,
            &kind("", "ConfigMap", "configmaps"),
        );
        let mut map = DynamicObject::new("a", &kind("", "ConfigMap", "configmaps"))
            .data(json!({ "data": {} }));
        map.metadata.labels =
            Some([("quartermaster.dev/owner-uid".to_owned(), "6c1a".to_owned())].into());
        allowed("a ConfigMap is written there", async || {
            maps.create(&DRY, &map).await
        })
        .await;
    }
}

/// Fields that an administrator or another controller has added to a Deployment do not lock the operator out of the
/// rest of the Deployment.
#[tokio::test]
async fn operator_changes_a_deployment_that_reaches_the_node_but_not_its_pods() {
    let bed = Bed::without_controllers("policy-old").await;
    let kind = deployments();
    let client = operator(&bed).await;
    let as_operator = Api::<DynamicObject>::namespaced_with(client, &bed.namespace, &kind);
    let as_admin = Api::<DynamicObject>::namespaced_with(bed.client.clone(), &bed.namespace, &kind);
    let host = running(&kind, "host", &pod(&json!({ "hostNetwork": true })));
    as_admin
        .create(&PostParams::default(), &host)
        .await
        .unwrap();
    let patch = async |patch: Value| {
        as_operator
            .patch("host", &PatchParams::default(), &Patch::Merge(&patch))
            .await
    };
    allowed("the Deployment is scaled and labelled", async || {
        patch(json!({ "metadata": { "labels": { "a": "b" } }, "spec": { "replicas": 1 } })).await
    })
    .await;
    let image = json!({ "spec": { "template": { "spec": { "containers": [{ "name": "a", "image": "b" }] } } } });
    assert!(rejection_of(patch(image).await).contains("no Pod with hostNetwork"));
    let plain = running(&kind, "plain", &pod(&json!({})));
    as_operator
        .create(&PostParams::default(), &plain)
        .await
        .unwrap();
    let host = json!({ "spec": { "template": { "spec": { "hostPID": true } } } });
    let rejection = rejection_of(
        as_operator
            .patch("plain", &PatchParams::default(), &Patch::Merge(&host))
            .await,
    );
    assert!(
        rejection.contains("no Pod with hostNetwork, hostPID or hostIPC"),
        "{rejection}"
    );
}
