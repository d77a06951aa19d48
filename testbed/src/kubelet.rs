//! A kubelet's work of starting containers, because kwok reports Pods as running but runs nothing.
//!
//! A container of the operator becomes a process of this machine with the arguments, the environment and the
//! `ServiceAccount` of its Pod, as the apiserver stored it. Container settings that a process cannot have are rejected,
//! so that no test succeeds without them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{EnvVar, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};

use crate::ControlPlane;
use crate::wait::until;

/// Folder of the token in a Pod that may reach the apiserver.
const TOKEN_FOLDER: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// A container's settings for a process.
#[derive(Debug, Clone)]
pub struct Container {
    /// The Pod's name.
    pub pod: String,
    /// The image.
    pub image: String,
    /// Arguments of the image's entrypoint. Every `--...-bind-address` is a free port of loopback.
    pub args: Vec<String>,
    /// The environment.
    pub env: Vec<(String, String)>,
    /// Kubeconfig of the Pod's `ServiceAccount`.
    pub kubeconfig: PathBuf,
}

/// Returns the only container of each Pod of a Deployment, once all Pods are ready and those of former templates are
/// deleted.
///
/// # Errors
///
/// The Pods are not ready within `deadline`, or a container cannot be a process.
pub async fn deployed(
    plane: &ControlPlane,
    namespace: &str,
    deployment: &str,
    deadline: Duration,
) -> Result<Vec<Container>> {
    let client = plane.client().await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    let found = until(
        format!("the Pods of {namespace}/{deployment} are ready"),
        deadline,
        async || {
            let deployment = deployments.get(deployment).await?;
            let status = deployment.status.clone().unwrap_or_default();
            let spec = deployment
                .spec
                .clone()
                .context("a Deployment without a spec")?;
            ensure!(
                status.observed_generation == deployment.metadata.generation,
                "the controller has not observed the last change yet"
            );
            let counts = [
                status.replicas,
                status.updated_replicas,
                status.ready_replicas,
            ];
            ensure!(
                counts == [spec.replicas; 3],
                "existing, updated and ready replicas of {:?}: {counts:?}",
                spec.replicas
            );
            let labels = spec.selector.match_labels.unwrap_or_default();
            let labels = labels
                .iter()
                .map(|(key, value)| format!("{key}={value}"))
                .collect::<Vec<_>>()
                .join(",");
            let mut found = pods
                .list(&ListParams::default().labels(&labels))
                .await?
                .items;
            found.retain(|pod| pod.metadata.deletion_timestamp.is_none());
            Ok(Some(found))
        },
    );
    let mut containers = Vec::new();
    for pod in found.await? {
        let name = pod.name_any();
        containers.push(
            container(plane, namespace, &pod)
                .await
                .with_context(|| format!("Pod {namespace}/{name}"))?,
        );
    }
    Ok(containers)
}

/// Returns the only container of the Pod of a Job, once the Pod exists.
///
/// # Errors
///
/// There is no Pod within `deadline`, or its container cannot be a process.
pub async fn job(
    plane: &ControlPlane,
    namespace: &str,
    job: &str,
    deadline: Duration,
) -> Result<Container> {
    let pods: Api<Pod> = Api::namespaced(plane.client().await?, namespace);
    let of_it = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={job}"));
    let pod = until(
        format!("the Pod of Job {namespace}/{job}"),
        deadline,
        async || {
            let is_over = |pod: &Pod| {
                pod.status
                    .as_ref()
                    .is_some_and(|it| matches!(it.phase.as_deref(), Some("Succeeded" | "Failed")))
            };
            let new = |pod: &Pod| pod.metadata.deletion_timestamp.is_none() && !is_over(pod);
            Ok(pods.list(&of_it).await?.items.into_iter().find(new))
        },
    );
    container(plane, namespace, &pod.await?).await
}

/// Sets the result of a Pod whose process ended.
///
/// # Errors
///
/// The apiserver rejects the request.
pub async fn end(plane: &ControlPlane, namespace: &str, pod: &str, well: bool) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(plane.client().await?, namespace);
    let phase = if well { "Succeeded" } else { "Failed" };
    let status = serde_json::json!({ "status": { "phase": phase } });
    pods.patch_status(pod, &PatchParams::default(), &Patch::Merge(&status))
        .await?;
    Ok(())
}

/// Returns the only container of a Pod.
///
/// # Errors
///
/// The Pod has several containers, or a setting that a process cannot have.
pub async fn container(plane: &ControlPlane, namespace: &str, pod: &Pod) -> Result<Container> {
    let spec = pod.spec.as_ref().context("no spec")?;
    let [container] = &*spec.containers else {
        bail!("more than one container")
    };
    ensure!(
        spec.init_containers.is_none() && container.env_from.is_none(),
        "initContainers and envFrom are not supported"
    );
    ensure!(
        container.command.is_none(),
        "a command in place of the image's entrypoint is not supported"
    );
    let mounts = container.volume_mounts.as_deref().unwrap_or_default();
    let Some(_) = mounts.iter().find(|mount| mount.mount_path == TOKEN_FOLDER) else {
        bail!("no token is mounted: the process could not reach the apiserver");
    };
    ensure!(mounts.len() == 1, "volumes are not supported: {mounts:?}");
    let account = spec
        .service_account_name
        .as_deref()
        .context("no ServiceAccount")?;
    let env = container
        .env
        .iter()
        .flatten()
        .map(|variable| Ok((variable.name.clone(), value(variable, pod)?)));
    Ok(Container {
        pod: pod.name_any(),
        image: container.image.clone().context("no image")?,
        args: container
            .args
            .iter()
            .flatten()
            .map(|arg| on_loopback(arg))
            .collect(),
        env: env.collect::<Result<_>>()?,
        kubeconfig: plane
            .kubeconfig_for_service_account(namespace, account)
            .await?,
    })
}

/// Returns a variable's value in this Pod.
fn value(variable: &EnvVar, pod: &Pod) -> Result<String> {
    let Some(from) = &variable.value_from else {
        return Ok(variable.value.clone().unwrap_or_default());
    };
    let path = from.field_ref.as_ref().map(|field| &*field.field_path);
    let spec = pod.spec.as_ref();
    let value = match path {
        Some("metadata.name") => pod.metadata.name.clone(),
        Some("metadata.namespace") => pod.metadata.namespace.clone(),
        Some("status.podIPs") => {
            let addresses = pod
                .status
                .iter()
                .flat_map(|status| status.pod_ips.iter().flatten());
            Some(
                addresses
                    .map(|address| address.ip.as_str())
                    .collect::<Vec<_>>()
                    .join(","),
            )
        }
        Some("spec.nodeName") => spec.and_then(|spec| spec.node_name.clone()),
        Some("spec.serviceAccountName") => spec.and_then(|spec| spec.service_account_name.clone()),
        _ => None,
    };
    value.with_context(|| {
        format!(
            "{}: the source of the value is not supported: {from:?}",
            variable.name
        )
    })
}

fn on_loopback(arg: &str) -> String {
    match arg.split_once('=') {
        Some((flag, _)) if flag.ends_with("-bind-address") => format!("{flag}=127.0.0.1:0"),
        _ => arg.to_owned(),
    }
}
