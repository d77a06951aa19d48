//! Checks the overrides of a Pod template, and merges them over the generated one. Pure.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::DeepMerge as _;
use k8s_openapi::api::core::v1::{Container, ContainerPort, PodSpec, PodTemplateSpec, Probe};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use qm_api::app_service::{POD_OVERRIDES, TCP};
use qm_api::common::PREFIX;

/// Fields of the metadata that the operator merges. A Deployment ignores nearly all others.
const METADATA: [&str; 2] = ["labels", "annotations"];

/// Checks that the overrides change neither the label `(key, value)` of the Deployment's selector nor the ownership, and
/// that no list has a key twice.
///
/// # Errors
/// Returns the path, the problem and what to write instead.
pub fn check(overrides: &PodTemplateSpec, selector: (&str, &str)) -> Result<(), String> {
    if let Some(pod) = &overrides.spec {
        check_keys(pod)?;
    }
    let Some(metadata) = &overrides.metadata else {
        return Ok(());
    };
    if let Some(field) = other_field(metadata) {
        return Err(format!(
            "{POD_OVERRIDES}.metadata.{field}: remove it: write labels and annotations only, because the Deployment sets the \
             other metadata of its Pods"
        ));
    }
    let maps = [&metadata.labels, &metadata.annotations];
    for (map, field) in maps.into_iter().zip(METADATA) {
        let mut keys = map.iter().flatten().map(|(key, _)| key);
        if let Some(key) = keys.find(|key| key.starts_with(PREFIX)) {
            return Err(format!(
                "{POD_OVERRIDES}.metadata.{field}[{key}]: remove it: {PREFIX} is for what the operator sets itself, such as the \
                 owner of an object"
            ));
        }
    }
    let (key, value) = selector;
    match metadata
        .labels
        .iter()
        .flatten()
        .find(|(name, _)| *name == key)
    {
        Some((_, other)) if other != value => Err(format!(
            "{POD_OVERRIDES}.metadata.labels[{key}]: remove it, or write {key}: {value}: the Deployment and the Service find \
             their Pods by this label"
        )),
        _ => Ok(()),
    }
}

/// Checks the lists that the apiserver merges by a key: a create may store two items with one key, and the apiserver
/// then rejects every apply.
fn check_keys(pod: &PodSpec) -> Result<(), String> {
    let path = |list: &str| format!("{POD_OVERRIDES}.spec.{list}");
    let names = pod.volumes.iter().flatten();
    unique(&path("volumes"), names.map(|it| &it.name))?;
    let names = pod.image_pull_secrets.iter().flatten();
    unique(&path("imagePullSecrets"), names.map(|it| &it.name))?;
    let addresses = pod.host_aliases.iter().flatten();
    unique(&path("hostAliases"), addresses.map(|it| &it.ip))?;
    let inits = pod.init_containers.as_deref().unwrap_or_default();
    for (list, containers) in [("containers", &*pod.containers), ("initContainers", inits)] {
        unique(&path(list), containers.iter().map(|it| &it.name))?;
        for (at, container) in containers.iter().enumerate() {
            let path = |field: &str| path(&format!("{list}[{at}].{field}"));
            let env = container.env.iter().flatten();
            unique(&path("env"), env.map(|it| &it.name))?;
            let mounts = container.volume_mounts.iter().flatten();
            unique(&path("volumeMounts"), mounts.map(|it| &it.mount_path))?;
            let ports = container.ports.iter().flatten().map(|port| {
                let protocol = port.protocol.as_deref().unwrap_or(TCP);
                format!("{}/{protocol}", port.container_port)
            });
            unique(&path("ports"), ports)?;
        }
    }
    Ok(())
}

fn unique<T: fmt::Display + Ord>(
    path: &str,
    keys: impl IntoIterator<Item = T>,
) -> Result<(), String> {
    let mut before = BTreeSet::new();
    for key in keys {
        let text = key.to_string();
        if !before.insert(key) {
            return Err(format!(
                "{path}: two items have the key {text:?}: remove one"
            ));
        }
    }
    Ok(())
}

/// Returns the first field that is set besides [`METADATA`].
fn other_field(metadata: &ObjectMeta) -> Option<String> {
    // Serialization cannot fail: the metadata came from JSON.
    let fields = serde_json::to_value(metadata).unwrap_or_default();
    let mut names = fields.as_object()?.keys();
    names
        .find(|name| !METADATA.contains(&name.as_str()))
        .cloned()
}

/// Merges the overrides over the generated template, lists by their keys.
pub fn merge(template: &mut PodTemplateSpec, mut overrides: PodTemplateSpec) {
    if let (Some(pod), Some(changes)) = (&mut template.spec, &mut overrides.spec) {
        // Kubernetes copies each of the two fields to the other.
        let name = changes.service_account_name.take();
        let account = name.or(changes.service_account.take());
        changes.service_account.clone_from(&account);
        changes.service_account_name = account;
        for changes in &mut changes.containers {
            let mut containers = pod.containers.iter_mut();
            if let Some(container) = containers.find(|it| it.name == changes.name) {
                remove_alternatives(container, changes);
                merge_ports(container, changes);
            }
        }
    }
    template.merge_from(overrides);
}

/// Removes the values that the apiserver does not accept beside those of `changes`: the other source of a variable, and
/// the other handlers of a probe.
fn remove_alternatives(container: &mut Container, changes: &Container) {
    for change in changes.env.iter().flatten() {
        let same = container.env.iter_mut().flatten();
        for variable in same.filter(|it| it.name == change.name) {
            if change.value.is_some() || change.value_from.is_some() {
                (variable.value, variable.value_from) = (None, None);
            }
        }
    }
    let probes = [
        (&mut container.liveness_probe, &changes.liveness_probe),
        (&mut container.readiness_probe, &changes.readiness_probe),
        (&mut container.startup_probe, &changes.startup_probe),
    ];
    for (probe, change) in probes {
        if let (Some(probe), Some(change)) = (probe, change) {
            remove_other_handlers(probe, change);
        }
    }
}

fn remove_other_handlers(probe: &mut Probe, change: &Probe) {
    let has_handler = change.exec.is_some()
        || change.http_get.is_some()
        || change.tcp_socket.is_some()
        || change.grpc.is_some();
    if has_handler {
        probe.exec = probe.exec.take().filter(|_| change.exec.is_some());
        probe.http_get = probe.http_get.take().filter(|_| change.http_get.is_some());
        probe.tcp_socket = probe
            .tcp_socket
            .take()
            .filter(|_| change.tcp_socket.is_some());
        probe.grpc = probe.grpc.take().filter(|_| change.grpc.is_some());
    }
}

/// Moves the ports of `changes` to the container. The key of a port is number and protocol; [`DeepMerge`](k8s_openapi::DeepMerge)
/// compares numbers alone.
fn merge_ports(container: &mut Container, changes: &mut Container) {
    let Some(changes) = changes.ports.take() else {
        return;
    };
    let key = |port: &ContainerPort| {
        let protocol = port.protocol.as_deref().unwrap_or(TCP);
        (port.container_port, protocol.to_owned())
    };
    let ports = container.ports.get_or_insert_default();
    for change in changes {
        match ports.iter_mut().find(|port| key(port) == key(&change)) {
            Some(port) => port.merge_from(change),
            None => ports.push(change),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::needless_pass_by_value
    )]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn template(json: Value) -> PodTemplateSpec {
        serde_json::from_value(json).unwrap()
    }

    fn pod(container: Value) -> Value {
        let mut web = json!({ "name": "web" });
        web.as_object_mut()
            .unwrap()
            .extend(container.as_object().unwrap().clone());
        json!({ "spec": { "containers": [web] } })
    }

    fn merged(generated: Value, overrides: Value) -> Value {
        let mut merged = template(generated);
        merge(&mut merged, template(overrides));
        serde_json::to_value(&merged).unwrap()
    }

    #[test]
    fn pod_gets_sidecars_volumes_and_settings() {
        let generated = json!({
            "metadata": { "labels": { "app": "web" } },
            "spec": {
                "containers": [{ "name": "web", "image": "nginx" }],
                "securityContext": { "runAsNonRoot": true, "runAsUser": 65532 },
            },
        });
        let overrides = json!({
            "metadata": { "labels": { "team": "a" }, "annotations": { "b": "c" } },
            "spec": {
                "containers": [
                    { "name": "logs", "image": "fluent-bit" },
                    { "name": "web", "volumeMounts": [{ "name": "cache", "mountPath": "/cache" }] },
                ],
                "initContainers": [{ "name": "migrate", "image": "shop" }],
                "volumes": [{ "name": "cache", "emptyDir": {} }],
                "affinity": { "nodeAffinity": {} },
                "securityContext": { "runAsUser": 1000, "fsGroup": 1000 },
            },
        });
        let expected = json!({
            "metadata": { "labels": { "app": "web", "team": "a" }, "annotations": { "b": "c" } },
            "spec": {
                "containers": [
                    { "name": "web", "image": "nginx", "volumeMounts": [{ "name": "cache", "mountPath": "/cache" }] },
                    { "name": "logs", "image": "fluent-bit" },
                ],
                "initContainers": [{ "name": "migrate", "image": "shop" }],
                "volumes": [{ "name": "cache", "emptyDir": {} }],
                "affinity": { "nodeAffinity": {} },
                "securityContext": { "runAsNonRoot": true, "runAsUser": 1000, "fsGroup": 1000 },
            },
        });
        assert_eq!(merged(generated.clone(), overrides), expected);
        assert_eq!(merged(generated.clone(), json!({})), generated);
    }

    #[rstest]
    #[case::variables(
        json!({ "env": [{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }] }),
        json!({ "env": [{ "name": "C", "value": "3" }, { "name": "A", "value": "4" }] }),
        json!({ "env": [{ "name": "A", "value": "4" }, { "name": "B", "value": "2" }, { "name": "C", "value": "3" }] }),
    )]
    #[case::value_in_place_of_a_source(
        json!({ "env": [{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }] }),
        json!({ "env": [{ "name": "A", "value": "1" }] }),
        json!({ "env": [{ "name": "A", "value": "1" }] }),
    )]
    #[case::source_in_place_of_a_source(
        json!({ "env": [{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }] }),
        json!({ "env": [{ "name": "A", "valueFrom": { "configMapKeyRef": { "name": "c", "key": "k" } } }] }),
        json!({ "env": [{ "name": "A", "valueFrom": { "configMapKeyRef": { "name": "c", "key": "k" } } }] }),
    )]
    #[case::handler_of_a_probe(
        json!({ "livenessProbe": { "httpGet": { "port": 80 }, "periodSeconds": 3 } }),
        json!({ "livenessProbe": { "exec": { "command": ["true"] } } }),
        json!({ "livenessProbe": { "exec": { "command": ["true"] }, "periodSeconds": 3 } }),
    )]
    #[case::part_of_a_handler(
        json!({ "readinessProbe": { "httpGet": { "port": 80 } } }),
        json!({ "readinessProbe": { "httpGet": { "port": 80, "path": "/ready" } } }),
        json!({ "readinessProbe": { "httpGet": { "port": 80, "path": "/ready" } } }),
    )]
    #[case::period_of_a_probe(
        json!({ "startupProbe": { "grpc": { "port": 80 } } }),
        json!({ "startupProbe": { "periodSeconds": 3 } }),
        json!({ "startupProbe": { "grpc": { "port": 80 }, "periodSeconds": 3 } }),
    )]
    #[case::ports(
        json!({ "ports": [{ "containerPort": 53 }] }),
        json!({ "ports": [{ "containerPort": 53, "name": "dns", "protocol": "TCP" }, { "containerPort": 53, "protocol": "UDP" }] }),
        json!({ "ports": [{ "containerPort": 53, "name": "dns", "protocol": "TCP" }, { "containerPort": 53, "protocol": "UDP" }] }),
    )]
    #[case::first_ports(
        json!({}),
        json!({ "ports": [{ "containerPort": 53 }, { "containerPort": 53, "protocol": "UDP" }] }),
        json!({ "ports": [{ "containerPort": 53 }, { "containerPort": 53, "protocol": "UDP" }] }),
    )]
    #[case::command(
        json!({ "command": ["a", "b"], "args": ["c"] }),
        json!({ "command": ["d"] }),
        json!({ "command": ["d"], "args": ["c"] }),
    )]
    fn container_is_merged_by_key(
        #[case] generated: Value,
        #[case] overrides: Value,
        #[case] expected: Value,
    ) {
        assert_eq!(merged(pod(generated), pod(overrides)), pod(expected));
    }

    #[rstest]
    #[case::current("serviceAccountName")]
    #[case::deprecated("serviceAccount")]
    fn service_account_replaces_both_fields(#[case] field: &str) {
        let both = |name: &str| json!({ "spec": { "containers": [], "serviceAccountName": name, "serviceAccount": name } });
        let overrides = json!({ "spec": { field: "b" } });
        assert_eq!(merged(both("a"), overrides), both("b"));
    }

    #[rstest]
    #[case::selector(json!({ "labels": { "app": "other" } }), "spec.podOverrides.metadata.labels[app]: remove it, or write app: web:")]
    #[case::owner(json!({ "labels": { "quartermaster.dev/owner-uid": "1" } }), "spec.podOverrides.metadata.labels[quartermaster.dev/owner-uid]: remove it:")]
    #[case::adoption(json!({ "annotations": { "quartermaster.dev/adopt-by": "a/b" } }), "spec.podOverrides.metadata.annotations[quartermaster.dev/adopt-by]: remove it:")]
    #[case::name(json!({ "name": "web", "labels": {} }), "spec.podOverrides.metadata.name: remove it: write labels and annotations only")]
    #[case::owner_reference(json!({ "ownerReferences": [] }), "spec.podOverrides.metadata.ownerReferences: remove it:")]
    fn identity_cannot_be_overridden(#[case] metadata: Value, #[case] expected: &str) {
        let message =
            check(&template(json!({ "metadata": metadata })), ("app", "web")).unwrap_err();
        assert!(message.starts_with(expected), "{message}");
    }

    #[rstest]
    #[case::variable(json!({ "containers": [{ "name": "side", "env": [{ "name": "A", "value": "1" }, { "name": "A", "value": "2" }] }] }), r#"spec.podOverrides.spec.containers[0].env: two items have the key "A": remove one"#)]
    #[case::container(json!({ "containers": [{ "name": "side" }, { "name": "side" }] }), r#"spec.podOverrides.spec.containers: two items have the key "side""#)]
    #[case::init_port(json!({ "containers": [], "initContainers": [{ "name": "a", "ports": [{ "containerPort": 80 }, { "containerPort": 80, "protocol": "TCP" }] }] }), r#"spec.podOverrides.spec.initContainers[0].ports: two items have the key "80/TCP""#)]
    #[case::secret(json!({ "containers": [], "imagePullSecrets": [{ "name": "a" }, { "name": "a" }] }), r#"spec.podOverrides.spec.imagePullSecrets: two items have the key "a""#)]
    #[case::alias(json!({ "containers": [], "hostAliases": [{ "ip": "10.0.0.1" }, { "ip": "10.0.0.1" }] }), r#"spec.podOverrides.spec.hostAliases: two items have the key "10.0.0.1""#)]
    fn key_is_unique_in_its_list(#[case] pod: Value, #[case] expected: &str) {
        let overrides = template(json!({ "spec": pod }));
        let message = check(&overrides, ("app", "web")).unwrap_err();
        assert!(message.starts_with(expected), "{message}");
    }

    #[test]
    fn other_labels_and_annotations_can_be_overridden() {
        let metadata =
            json!({ "labels": { "app": "web", "team": "a" }, "annotations": { "app": "other" } });
        assert_eq!(
            check(&template(json!({ "metadata": metadata })), ("app", "web")),
            Ok(())
        );
        assert_eq!(check(&template(json!({})), ("app", "web")), Ok(()));
    }
}
