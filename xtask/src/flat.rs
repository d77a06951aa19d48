//! `deploy/` and `example/`: flat folders for `kubectl apply -f`, with the files of document 002 and further ones of
//! the same kind.

use std::collections::BTreeMap;
use std::path::Path;

use quartermaster::kinds::KINDS;

use super::kustomize;
use super::yaml::{Error, generated, yaml};

/// Returns the files of `deploy/`, with the objects of kustomization `config/default`. `read` returns the text of a
/// file of the tree.
pub fn deploy(
    read: &impl Fn(&Path) -> Result<String, Error>,
) -> Result<Vec<(String, String)>, Error> {
    let mut files = BTreeMap::<String, String>::new();
    for built in kustomize::build(Path::new("config/default"), read)? {
        let file = file_of(
            &built.file,
            built.object["kind"].as_str().unwrap_or_default(),
        );
        files
            .entry(file)
            .or_default()
            .push_str(&yaml(&built.object)?);
    }
    Ok(files
        .into_iter()
        .map(|(file, text)| (format!("deploy/{file}"), generated(&text)))
        .collect())
}

/// Returns the file of an object: by default the name of its source.
fn file_of(source: &Path, kind: &str) -> String {
    let name = source
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .replace('-', "_");
    let is_for_people = ["_viewer_role", "_editor_role", "_admin_role"]
        .iter()
        .any(|end| name.ends_with(end));
    match kind {
        // kubectl applies files in the order of their names, and a namespace must exist before its objects.
        "Namespace" => "00_namespace.yaml".into(),
        "CustomResourceDefinition" => "crd.yaml".into(),
        "Deployment" => "deploy.yaml".into(),
        "ValidatingAdmissionPolicy" | "ValidatingAdmissionPolicyBinding" => {
            "admission_policies.yaml".into()
        }
        "NetworkPolicy" => "network_policy.yaml".into(),
        _ if is_for_people => "user_roles.yaml".into(),
        _ => format!("{name}.yaml"),
    }
}

/// Returns the files of `example/`: one sample of each kind, and the Deployment that a sample tracks.
pub fn example(
    read: &impl Fn(&Path) -> Result<String, Error>,
) -> Result<Vec<(String, String)>, Error> {
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
            let text = read(&Path::new("config/samples").join(sample))?;
            Ok((format!("example/example_{name}.yaml"), generated(&text)))
        })
        .collect()
}
