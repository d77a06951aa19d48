//! Installing: `deploy/`, `config/default`, the Makefile and the Helm chart.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Output;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use qm_core::kind::KindInfo;
use quartermaster::controllers;
use quartermaster::controllers::tracked_field;
use serde_json::{Value, json};
use testbed::ControlPlane;
use testbed::process::Folder;
use tokio::process::Command;

use crate::support::{Bed, TOKEN};

mod chart;
mod equivalence;
mod helm;
mod krew;
mod makefile;
mod permissions;
mod upgrade;
mod values;
mod walkthrough;
mod workflows;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Name of the Deployment that runs the operator, as installed.
const DEPLOYMENT: &str = "quartermaster-controller-manager";

/// Runs `make` in the repository, for this cluster, and returns whether it succeeded and its output.
async fn make(plane: &ControlPlane, arguments: &[&str]) -> (bool, String) {
    let kubectl = format!("KUBECTL={}", plane.binaries().join("kubectl").display());
    let program = concat!("QUARTERMASTER=", env!("CARGO_BIN_EXE_quartermaster"));
    let cache = Folder::new().unwrap();
    let mut command = tree_command("make");
    command.args([&kubectl, program]).args(arguments);
    command
        .env("KUBECONFIG", plane.admin_kubeconfig())
        .env("KUBECACHEDIR", cache.path());
    result_of(&command.output().await.unwrap())
}

/// Returns a command in the repository's root that inherits nothing of a `make` that runs this test.
fn tree_command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(ROOT).kill_on_drop(true);
    for variable in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "IMG", "KUBECONFIG"] {
        command.env_remove(variable);
    }
    command
}

fn result_of(output: &Output) -> (bool, String) {
    let printed = [&*output.stdout, &*output.stderr]
        .map(|text| String::from_utf8_lossy(text).into_owned())
        .concat();
    (output.status.success(), printed)
}

/// Returns the objects in this YAML, by kind and name.
fn objects(yaml: &str) -> BTreeMap<String, Value> {
    let all: Vec<Value> = serde_saphyr::from_multiple(yaml).unwrap();
    let count = all.len();
    let by_name: BTreeMap<_, _> = all.into_iter().map(named).collect();
    assert_eq!(by_name.len(), count, "an object appears twice");
    by_name
}

/// Returns an object with its key: kind and name.
fn named(object: Value) -> (String, Value) {
    let [namespace, name] =
        ["namespace", "name"].map(|field| object["metadata"][field].as_str().unwrap_or("-"));
    let [version, kind] = ["apiVersion", "kind"].map(|field| object[field].as_str().unwrap());
    (format!("{version} {kind} {namespace}/{name}"), object)
}

/// Returns all files of a folder of the repository, in kubectl's order.
fn folder(name: &str) -> String {
    let mut files: Vec<_> = std::fs::read_dir(Path::new(ROOT).join(name))
        .unwrap()
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    files
        .iter()
        .map(|file| std::fs::read_to_string(file).unwrap())
        .collect()
}

/// Creates the examples of every kind.
async fn create_examples(bed: &Bed) {
    let kubectl = async |arguments: &[&str]| bed.plane.run_kubectl(arguments, "").await.unwrap();
    kubectl(&["create", "namespace", "shop"]).await;
    kubectl(&[
        "create",
        "configmap",
        "settings",
        "--from-literal=colour=blue",
    ])
    .await;
    let token = format!("--from-literal=token={TOKEN}");
    kubectl(&["create", "secret", "generic", "telegram-cp-token", &token]).await;
    let served = served_kinds(bed).await;
    let is_served = |file: &str| {
        let of = |kind: &&KindInfo| file == format!("example_{}.yaml", kind.controller);
        served.iter().any(of) || !controllers::KINDS.iter().any(|kind| of(&kind))
    };
    let mut files: Vec<_> = std::fs::read_dir(format!("{ROOT}/example"))
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .filter(|file| is_served(file))
        .collect();
    files.sort();
    for file in files {
        let printed = kubectl(&["apply", "-f", &format!("{ROOT}/example/{file}")]).await;
        assert!(printed.contains(" created"), "{printed}");
    }
}

/// Returns the kinds whose CRDs exist.
async fn served_kinds(bed: &Bed) -> Vec<&'static KindInfo> {
    let crds: Api<CustomResourceDefinition> = Api::all(bed.client.clone());
    let crds = crds.list(&ListParams::default()).await.unwrap().items;
    let is_served = |kind: &&KindInfo| crds.iter().any(|crd| crd.name_any() == kind.crd_name());
    controllers::KINDS.iter().filter(is_served).collect()
}

/// Waits until the examples that have a condition are ready: all but the `TrackedField`.
async fn wait_for_conditions(bed: &Bed) {
    let mut wait: Vec<String> = ["wait", "--for=condition=Ready", "--timeout=600s"]
        .map(Into::into)
        .into();
    for kind in controllers::KINDS {
        if kind.controller != tracked_field::NAME {
            let example = format!("{ROOT}/example/example_{}.yaml", kind.controller);
            let example = std::fs::read_to_string(example).unwrap();
            let example: Value = serde_saphyr::from_str(&example).unwrap();
            let name = example["metadata"]["name"].as_str().unwrap();
            wait.push(format!("{}/{name}", kind.controller));
        }
    }
    let wait: Vec<_> = wait.iter().map(String::as_str).collect();
    bed.plane.run_kubectl(&wait, "").await.unwrap();
}

/// Creates the examples of every kind, and waits until all of them are ready.
async fn wait_for_examples(bed: &Bed) {
    create_examples(bed).await;
    wait_for_conditions(bed).await;
    bed.delivered("nginx-deployment-replicas", &[("Created", Some("1"))])
        .await;
    bed.waiting("nginx-deployment-replicas", "").await;
}
