//! Generates CRDs, permissions and admission policies under `config/` and in the Helm chart from the code; `deploy/`
//! and `example/` from `config/`; and the reference in `docs/`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use quartermaster::kinds;

mod chart;
pub mod docs;
mod flat;
mod kustomize;
mod objects;
pub mod policies;
pub mod rbac;
mod yaml;

pub use yaml::Error;
use yaml::{generated, yaml};

/// Folder of the files that the chart's templates read.
const CHART: &str = "charts/quartermaster/files";

/// Returns all CRDs as a stream of YAML documents.
pub fn crds_yaml() -> Result<String, Error> {
    kinds::crds().iter().map(yaml).collect()
}

/// Writes every generated file of the source tree `root`.
pub fn write(root: &Path) -> Result<(), Error> {
    for (name, text) in tree(root)? {
        let path = root.join(name);
        let written = path
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&path, text));
        written.map_err(|source| Error::File { path, source })?;
    }
    Ok(())
}

/// Returns every generated file of the source tree `root`: its path, and its text. Reads the files that are not
/// generated.
pub fn tree(root: &Path) -> Result<Vec<(String, String)>, Error> {
    let mut tree: BTreeMap<_, _> = files()?
        .into_iter()
        .map(|(name, text)| (format!("config/{name}"), text))
        .collect();
    let read = |path: &Path| match path.to_str().and_then(|path| tree.get(path)) {
        Some(text) => Ok(text.clone()),
        None => fs::read_to_string(root.join(path)).map_err(|source| Error::File {
            path: path.into(),
            source,
        }),
    };
    let flat = [flat::deploy(&read)?, flat::example(&read)?].concat();
    let (docs, chart) = (docs::files(&read)?, chart::files(&read)?);
    tree.extend(flat);
    tree.extend(docs);
    tree.extend(
        chart
            .into_iter()
            .map(|(name, text)| (format!("{CHART}/{name}"), text)),
    );
    Ok(tree.into_iter().collect())
}

/// Returns every file that is generated from the code alone: its path under `config/`, and its text.
pub fn files() -> Result<Vec<(String, String)>, Error> {
    let mut files = Vec::new();
    let mut bases = Vec::new();
    for (kind, crd) in kinds::KINDS.iter().zip(kinds::crds()) {
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
fn kustomization(resources: &[String], configurations: &[&str]) -> Result<String, Error> {
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
        for (name, text) in tree(root).unwrap() {
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
            "deploy",
            "example",
            "docs/reference",
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
