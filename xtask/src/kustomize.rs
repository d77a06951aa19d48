//! Builds the kustomizations in `config/` as `kubectl kustomize` does, limited to `resources`, `namespace` and
//! `namePrefix`. Any other field is an error, so that nothing is silently ignored.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::Error;

/// An object and its source file.
#[derive(Debug)]
pub struct Built {
    pub file: PathBuf,
    pub object: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Kustomization {
    #[serde(rename = "apiVersion")]
    _api_version: IgnoredAny,
    #[serde(rename = "kind")]
    _kind: IgnoredAny,
    namespace: Option<String>,
    #[serde(default)]
    name_prefix: String,
    resources: Vec<String>,
    /// Kustomize's own order would put policies last.
    #[serde(rename = "sortOptions")]
    _sort_options: Option<IgnoredAny>,
    /// Configuration with which kustomize finds the references in [`REFERENCES`].
    #[serde(rename = "configurations")]
    _configurations: Option<IgnoredAny>,
}

/// Kinds that get no prefix: their names identify them.
const OWN_NAMES: [&str; 2] = ["CustomResourceDefinition", "Namespace"];

/// Fields that refer to an object of a kind; `roleRef` and `subjects` contain the kind.
const REFERENCES: [(&str, &str); 5] = [
    ("serviceAccountName", "ServiceAccount"),
    ("policyName", "ValidatingAdmissionPolicy"),
    ("paramRef", "ServiceAccount"),
    ("resourceNames", "ClusterRole"),
    ("value", "ClusterRole"),
];

/// Returns all objects of the kustomization in `folder`, in its order. `read` returns the text of a file.
///
/// # Errors
/// Returns an error for a file that cannot be read, or has an unknown field.
pub fn build(
    folder: &Path,
    read: &impl Fn(&Path) -> Result<String, Error>,
) -> Result<Vec<Built>, Error> {
    let file = folder.join("kustomization.yaml");
    let refused = |file: &Path, source| Error::Read {
        path: file.into(),
        source: Box::new(source),
    };
    let kustomization: Kustomization =
        serde_saphyr::from_str(&read(&file)?).map_err(|error| refused(&file, error))?;
    let mut built = Vec::new();
    for resource in &kustomization.resources {
        let path = normal(&folder.join(resource));
        if path
            .extension()
            .is_some_and(|extension| extension == "yaml")
        {
            let objects: Vec<Value> = serde_saphyr::from_multiple(&read(&path)?)
                .map_err(|error| refused(&path, error))?;
            built.extend(objects.into_iter().map(|object| Built {
                file: path.clone(),
                object,
            }));
        } else {
            built.extend(build(&path, read)?);
        }
    }
    if let Some(namespace) = &kustomization.namespace {
        for Built { object, .. } in &mut built {
            place(object, namespace);
        }
    }
    let mut names = BTreeMap::new();
    for Built { object, .. } in &mut built {
        let kind = text(object, "kind");
        let name = &mut object["metadata"]["name"];
        let Some(old) = name
            .as_str()
            .filter(|_| !OWN_NAMES.contains(&&*kind))
            .map(str::to_owned)
        else {
            continue;
        };
        let new = format!("{}{old}", kustomization.name_prefix);
        *name = new.clone().into();
        names.insert((kind, old), new);
    }
    for built in built
        .iter_mut()
        .filter(|built| text(&built.object, "kind") != OWN_NAMES[0])
    {
        follow(
            &mut built.object,
            &names,
            kustomization.namespace.as_deref(),
        );
    }
    Ok(built)
}

/// Sets the namespace of a namespaced object.
fn place(object: &mut Value, namespace: &str) {
    let is_one = object["kind"] == "Namespace";
    let Some(metadata) = object["metadata"].as_object_mut() else {
        return;
    };
    let field = if is_one { "name" } else { "namespace" };
    if let Some(old) = metadata.get_mut(field) {
        *old = namespace.into();
    }
}

/// Updates every reference to the objects' new names, and to `ServiceAccount`s in their new namespace.
fn follow(value: &mut Value, names: &BTreeMap<(String, String), String>, namespace: Option<&str>) {
    let new = |kind: &str, old: &str| names.get(&(kind.to_owned(), old.to_owned())).cloned();
    match value {
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| follow(item, names, namespace)),
        Value::Object(fields) => {
            let text_of = |field: &str| {
                fields
                    .get(field)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
            };
            if let Some(name) = new(text_of("kind"), text_of("name")) {
                fields.insert("name".into(), name.into());
                if let (Some(old), Some(namespace)) = (fields.get_mut("namespace"), namespace) {
                    *old = namespace.into();
                }
            }
            for (field, kind) in REFERENCES {
                match fields.get_mut(field) {
                    Some(Value::String(old)) => {
                        *old = new(kind, old).unwrap_or_else(|| old.clone());
                    }
                    Some(Value::Array(olds)) => {
                        for old in olds {
                            if let Some(name) = old.as_str().and_then(|old| new(kind, old)) {
                                *old = name.into();
                            }
                        }
                    }
                    Some(reference @ Value::Object(_)) => {
                        if let Some(name) = new(kind, &text(reference, "name")) {
                            reference["name"] = name.into();
                            reference["namespace"] =
                                namespace.map_or(reference["namespace"].take(), Value::from);
                        }
                    }
                    _ => {}
                }
            }
            fields
                .values_mut()
                .for_each(|field| follow(field, names, namespace));
        }
        _ => {}
    }
}

fn text(object: &Value, field: &str) -> String {
    object[field].as_str().unwrap_or_default().to_owned()
}

/// Returns the path without `..`, for comparison.
fn normal(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut so_far, part| {
        if part == Component::ParentDir {
            so_far.pop();
        } else {
            so_far.push(part);
        }
        so_far
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use serde_json::json;

    use super::*;

    fn built(top: &str, objects: &str) -> Result<Vec<Value>, Error> {
        let read = |path: &Path| {
            Ok(match path.to_str().unwrap() {
                "a/top/kustomization.yaml" => format!("apiVersion: v1\nkind: Kustomization\n{top}"),
                "a/below/kustomization.yaml" => {
                    "apiVersion: v1\nkind: Kustomization\nresources: [x.yaml]\n".into()
                }
                "a/below/x.yaml" => objects.into(),
                other => panic!("{other}"),
            })
        };
        Ok(build(Path::new("a/top"), &read)?
            .into_iter()
            .map(|built| built.object)
            .collect())
    }

    #[test]
    fn names_and_references_change_together() {
        let top = "namespace: new\nnamePrefix: my-\nresources: [../below]\n";
        let objects = r"
{kind: Namespace, metadata: {name: system}}
---
{kind: ServiceAccount, metadata: {name: who, namespace: system}}
---
{kind: ClusterRole, metadata: {name: what}}
---
{kind: ClusterRoleBinding, metadata: {name: what}, roleRef: {kind: ClusterRole, name: what}, subjects: [
  {kind: ServiceAccount, name: who, namespace: system}, {kind: ServiceAccount, name: theirs, namespace: theirs},
  {kind: Group, name: who}]}
---
{kind: Deployment, metadata: {name: who, namespace: system}, spec: {serviceAccountName: who}}
---
{kind: CustomResourceDefinition, metadata: {name: who}, spec: {kind: ServiceAccount, name: who}}
---
{kind: ValidatingAdmissionPolicyBinding, metadata: {name: b}, spec: {policyName: theirs, paramRef: {name: who, namespace: system}}}
";
        let expected = [
            json!({"kind": "Namespace", "metadata": {"name": "new"}}),
            json!({"kind": "ServiceAccount", "metadata": {"name": "my-who", "namespace": "new"}}),
            json!({"kind": "ClusterRole", "metadata": {"name": "my-what"}}),
            json!({"kind": "ClusterRoleBinding", "metadata": {"name": "my-what"},
            "roleRef": {"kind": "ClusterRole", "name": "my-what"},
            "subjects": [
                {"kind": "ServiceAccount", "name": "my-who", "namespace": "new"},
                {"kind": "ServiceAccount", "name": "theirs", "namespace": "theirs"},
                {"kind": "Group", "name": "who"},
            ]}),
            json!({"kind": "Deployment", "metadata": {"name": "my-who", "namespace": "new"},
                "spec": {"serviceAccountName": "my-who"}}),
            json!({"kind": "CustomResourceDefinition", "metadata": {"name": "who"},
                "spec": {"kind": "ServiceAccount", "name": "who"}}),
            json!({"kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "my-b"},
                "spec": {"policyName": "theirs", "paramRef": {"name": "my-who", "namespace": "new"}}}),
        ];
        assert_eq!(built(top, objects).unwrap(), expected);
        assert_eq!(
            built(
                "resources: [../below]\n",
                "{kind: Role, metadata: {name: r}}"
            )
            .unwrap()
            .len(),
            1
        );
    }

    #[test]
    fn unknown_field_is_rejected() {
        let error = built("resources: [../below]\nimages: []\n", "")
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("a/top/kustomization.yaml: ") && error.contains("images"),
            "{error}"
        );
    }
}
