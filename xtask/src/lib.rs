//! What is generated: CRDs, rights and admission policies under `config/` and in the Helm chart from the code, `deploy/` and
//! `example/` from all of `config/`, the reference in `docs/`.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use quartermaster::kinds;
use serde::Serialize;
use serde_json::Value;

mod chart;
pub mod docs;
mod flat;
mod kustomize;
pub mod policies;
pub mod rbac;

/// Where the chart has what its templates read.
const CHART: &str = "charts/quartermaster/files";

/// Why manifests could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An object that cannot be written as YAML.
    #[error("cannot be written as YAML: {0}")]
    Yaml(#[from] serde_saphyr::ser_error::Error),
    /// An object that cannot be written as JSON.
    #[error("cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// A file that cannot be read as what it is.
    #[error("{}: {source}", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: Box<serde_saphyr::Error>,
    },
    /// A file that cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// All CRDs as one stream of YAML documents.
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

/// Every generated file of the source tree `root`: its path there, and its text. What is written by hand is read.
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

/// Every file that is generated from the code alone: its path under `config/`, and its text.
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

fn generated(yaml: &str) -> String {
    format!("# Generated from the code: run `make manifests`.\n{yaml}")
}

/// Of these files, with these changes of how kustomize works.
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

/// One document. Rules and messages stand on one line each, as `kubectl` prints them.
fn yaml(object: &impl Serialize) -> Result<String, Error> {
    let mut object = serde_json::to_value(object)?;
    whole_numbers(&mut object);
    let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
    Ok(format!(
        "---\n{}",
        serde_saphyr::to_string_with_options(&object, options)?
    ))
}

/// The API's types hold a schema's bounds as floats, and `30.0` reads badly.
fn whole_numbers(value: &mut Value) {
    match value {
        Value::Number(number) => {
            #[allow(clippy::cast_possible_truncation)] // bounded right here
            if let Some(float) = number
                .as_f64()
                .filter(|f| number.is_f64() && f.fract() == 0.0 && f.abs() < 1e15)
            {
                *number = (float as i64).into();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(whole_numbers),
        Value::Object(fields) => fields.values_mut().for_each(whole_numbers),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    /// What YAML makes of a rule's quotes and backslashes is the rule again.
    #[test]
    fn yaml_reads_back_as_it_was() {
        for crd in kinds::crds() {
            let read: Value = serde_saphyr::from_str(&yaml(&crd).unwrap()).unwrap();
            let mut written = serde_json::to_value(&crd).unwrap();
            whole_numbers(&mut written);
            assert_eq!(read, written);
        }
    }

    #[test]
    fn committed_files_are_current() {
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let mut current = Vec::new();
        for (name, text) in tree(root).unwrap() {
            let committed = fs::read_to_string(root.join(&name)).unwrap_or_default();
            assert!(
                committed == text,
                "{name} is not what it would be now: run `make manifests`"
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
                    "{name} is generated by nothing: remove it"
                );
            }
        }
    }
}
