//! Generates CRDs, permissions and admission policies under `config/` and in the Helm chart from the code; `deploy/`
//! and `example/` from `config/`; and the reference in `docs/`.

use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use quartermaster::controllers;

mod bundle;
mod chart;
pub mod docs;
mod files;
pub mod flat;
mod objects;
pub mod policies;
pub mod rbac;

pub use files::{File, GenerateError};
use files::{generated, yaml};

/// Folder of the files that the chart's templates read.
const CHART: &str = "charts/quartermaster/files";

/// Returns all CRDs as a stream of YAML documents.
pub fn crds_yaml() -> Result<String, GenerateError> {
    controllers::crds().iter().map(yaml).collect()
}

/// Writes every generated file of the source tree `root`. `kubectl` is the program to run.
pub fn write(root: &Path, kubectl: &OsStr) -> Result<(), GenerateError> {
    write_all(root, files(root)?)?;
    // kubectl reads what was just written.
    write_all(root, flat::deploy(root, kubectl)?)?;
    write_all(root, packages(root)?)
}

fn write_all(root: &Path, files: Vec<File>) -> Result<(), GenerateError> {
    for (name, text) in files {
        let path = root.join(name);
        let written = path
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&path, text));
        written.map_err(|source| GenerateError::File { path, source })?;
    }
    Ok(())
}

/// Returns the metadata of the packages, from the generated files of the source tree `root`.
fn packages(root: &Path) -> Result<Vec<File>, GenerateError> {
    let mut files = bundle::files(root)?;
    files.push(bundle::chart(root)?);
    Ok(files)
}

/// Returns every generated file of the source tree `root` but those of `deploy/` and the metadata of the packages.
pub fn files(root: &Path) -> Result<Vec<File>, GenerateError> {
    let below = |folder: &str, files: Vec<File>| {
        let path = |(name, text)| (format!("{folder}/{name}"), text);
        files.into_iter().map(path).collect()
    };
    Ok([
        below("config", config()?),
        below(CHART, chart::files(root)?),
        flat::example(root)?,
        docs::files(root)?,
    ]
    .concat())
}

/// Returns the generated files of `config/`, with their paths in it.
fn config() -> Result<Vec<File>, GenerateError> {
    let mut files = Vec::new();
    let mut bases = Vec::new();
    for (kind, crd) in controllers::KINDS.iter().zip(controllers::crds()) {
        let resource = kind.resource();
        let name = format!("bases/{}_{}.yaml", resource.group, resource.plural);
        files.push((format!("crd/{name}"), generated(&yaml(&crd)?)));
        bases.push(name);
    }
    files.push((
        "crd/kustomization.yaml".into(),
        generated(&kustomization(&bases, &[])?),
    ));
    let policies = policies::objects(rbac::NAMESPACE, rbac::SERVICE_ACCOUNT);
    for (folder, config) in [
        ("rbac", rbac::kustomize_config()),
        ("policy", policies::kustomize_config()),
    ] {
        files.push((
            format!("{folder}/kustomizeconfig.yaml"),
            generated(&yaml(&config)?),
        ));
    }
    for (folder, objects) in [("rbac", rbac::objects()), ("policy", policies)] {
        let mut names = Vec::new();
        for (name, object) in objects {
            let name = format!("{name}.yaml");
            files.push((format!("{folder}/{name}"), generated(&yaml(&object)?)));
            names.push(name);
        }
        let kustomization = kustomization(&names, &["kustomizeconfig.yaml"])?;
        files.push((
            format!("{folder}/kustomization.yaml"),
            generated(&kustomization),
        ));
    }
    Ok(files)
}

/// Returns a kustomization of these files, with these configurations of kustomize.
fn kustomization(resources: &[String], configurations: &[&str]) -> Result<String, GenerateError> {
    let mut kustomization = serde_json::json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
    });
    if !configurations.is_empty() {
        kustomization["configurations"] = configurations.into();
    }
    yaml(&kustomization)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn committed_files_are_current() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let mut current = Vec::new();
        for (name, text) in [files(root).unwrap(), packages(root).unwrap()].concat() {
            let committed = fs::read_to_string(root.join(&name)).unwrap_or_default();
            assert!(
                committed == text,
                "{name} is outdated: run `make manifests`"
            );
            current.push(name);
        }
        let chart = ["crd", "people", "policy", "prometheus", "grafana"]
            .map(|folder| format!("{CHART}/{folder}"));
        let config = [
            "config/crd/bases",
            "config/rbac",
            "config/policy",
            "example",
            "docs/reference",
            "bundle/manifests",
        ]
        .map(str::to_owned);
        for folder in config.into_iter().chain(chart) {
            for file in fs::read_dir(root.join(&folder)).unwrap() {
                let name = format!("{folder}/{}", file.unwrap().file_name().to_string_lossy());
                assert!(
                    current.contains(&name),
                    "{name} is not generated any more: remove it"
                );
            }
        }
    }
}
