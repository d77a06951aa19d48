//! `deploy/` and `example/`: flat folders for `kubectl apply -f`, with the files of document 002 and further ones of
//! the same kind.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

use quartermaster::controllers::KINDS;
use serde_json::Value;

use super::files::{File, GenerateError, generated, read, yaml};

/// The kustomization whose objects `deploy/` has.
const DEFAULT: &str = "config/default";

/// Returns the files of `deploy/`, with the objects that `kubectl kustomize` builds from [`DEFAULT`].
pub fn deploy(root: &Path, kubectl: &OsStr) -> Result<Vec<File>, GenerateError> {
    let objects: Vec<Value> =
        serde_saphyr::from_multiple(&kustomize(root, kubectl)?).map_err(|error| {
            GenerateError::Parse {
                path: DEFAULT.into(),
                source: Box::new(error),
            }
        })?;
    let mut files = BTreeMap::<String, String>::new();
    for mut object in objects {
        let file = file_of(&object);
        // Kustomize treats policies as namespaced objects.
        if file == "admission_policies"
            && let Some(metadata) = object["metadata"].as_object_mut()
        {
            metadata.remove("namespace");
        }
        files.entry(file).or_default().push_str(&yaml(&object)?);
    }
    Ok(files
        .into_iter()
        .map(|(file, text)| (format!("deploy/{file}.yaml"), generated(&text)))
        .collect())
}

fn kustomize(root: &Path, kubectl: &OsStr) -> Result<String, GenerateError> {
    let mut command = Command::new(kubectl);
    command.args(["kustomize", DEFAULT]).current_dir(root);
    let output = command.output().map_err(|error| {
        GenerateError::Kustomize(format!(
            "{error}: install kubectl, or run `make manifests`, which finds or builds one"
        ))
    })?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        Ok(text(&output.stdout))
    } else {
        Err(GenerateError::Kustomize(text(&output.stderr)))
    }
}

/// Returns the name of an object's file without `.yaml`.
fn file_of(object: &Value) -> String {
    let [kind, name] = [&object["kind"], &object["metadata"]["name"]]
        .map(|field| field.as_str().unwrap_or_default());
    let ends_with_any = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    let file = match kind {
        // kubectl applies files in the order of their names, and a namespace must exist before its objects.
        "Namespace" => "00_namespace",
        "CustomResourceDefinition" => "crd",
        "Deployment" => "deploy",
        "NetworkPolicy" => "network_policy",
        "PodDisruptionBudget" => "pod_disruption_budget",
        "Service" => "metrics_service",
        "ServiceAccount" => "service_account",
        "ValidatingAdmissionPolicy" | "ValidatingAdmissionPolicyBinding" => "admission_policies",
        "ClusterRoleBinding" | "RoleBinding" => "role_binding",
        // An operator that runs elsewhere needs these two alone.
        _ if name.ends_with("tracker-role") => "tracker_role",
        _ if name.ends_with("tracker-targets-role") => "tracker_targets_role",
        _ if ends_with_any(&["-viewer-role", "-editor-role", "-admin-role"]) => "user_roles",
        "ClusterRole" | "Role" => "role",
        other => return other.to_lowercase(),
    };
    file.to_owned()
}

/// Returns the files of `example/`: one sample of each kind, and the Deployment that a sample tracks.
pub fn example(root: &Path) -> Result<Vec<File>, GenerateError> {
    let samples = KINDS.iter().map(|kind| {
        let resource = kind.resource();
        let group = resource.group.split('.').next().unwrap_or_default();
        (
            kind.controller,
            format!("{group}_{}_{}.yaml", resource.version, kind.controller),
        )
    });
    let examples = samples.chain([("deployment", "deploy.yaml".to_owned())]);
    examples
        .map(|(name, sample)| {
            let text = read(root, format!("config/samples/{sample}"))?;
            Ok((format!("example/example_{name}.yaml"), generated(&text)))
        })
        .collect()
}
