//! Metadata of the packages: the bundle for `OperatorHub` in `bundle/`, and the annotations of the chart for Artifact Hub.
//!
//! The bundle has the objects of `deploy/`, in the form that the Operator Lifecycle Manager (OLM) installs.

use std::fmt::Write as _;
use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps,
};
use quartermaster::controllers::{self, KINDS};
use serde_json::{Value, json};

use super::files::{File, GenerateError, generated, read, yaml};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const CHART: &str = "charts/quartermaster/Chart.yaml";
const ICON: &str = "bundle/icon.svg";
/// Namespace of the objects in `deploy/`, to which bindings and policies refer.
const NAMESPACE: &str = "quartermaster-system";
/// Beginning of the generated part of the chart's file.
const GENERATED: &str = "# Generated from the code: run `make manifests`.\nannotations:\n";
const SUMMARY: &str = "Notifications about changed fields, copied ConfigMaps, apps from one short resource, and AWS load balancers";

const DESCRIPTION: &str = "\
Quartermaster is one small operator for everyday chores of a cluster:

| Kind | Chore |
| --- | --- |
| ContactPoint, TrackedField, TrackedFieldSet | Message Telegram, Slack, Teams, Discord or a webhook when a field changes |
| ConfigMapSync | Keep a ConfigMap copied to other namespaces |
| AppService, MyApp | Run an app from one short resource |
| MyIngress | Provision an AWS Application Load Balancer |

The operator changes only objects that it owns. It records each change before it sends a message, and delivers it at least once.

### Before you install

- **No image is published.** The image `quartermaster:latest` is a placeholder: build one, and replace the image in this manifest.
- **Install into the namespace `quartermaster-system`.** Bindings and policies refer to it.
- **Apply `deploy/admission_policies.yaml` first.** They require the author of a resource to have the permissions that the operator uses for
  it. OLM cannot install them, and it lets editors of a namespace create resources of these kinds.
";

/// Returns every file of the bundle. The objects come from the generated files of `deploy/`.
pub fn files(root: &Path) -> Result<Vec<File>, GenerateError> {
    let mut files = vec![
        (
            "bundle/manifests/quartermaster.clusterserviceversion.yaml".to_owned(),
            generated(&yaml(&cluster_service_version(root)?)?),
        ),
        (
            "bundle/metadata/annotations.yaml".to_owned(),
            generated(&yaml(&annotations())?),
        ),
    ];
    for (kind, crd) in KINDS.iter().zip(controllers::crds()) {
        files.push((
            format!("bundle/manifests/{}.crd.yaml", kind.controller),
            generated(&yaml(&crd)?),
        ));
    }
    for mut object in objects(root)? {
        if !is_beside(&object) {
            continue;
        }
        // OLM installs into the namespace of the subscription.
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("namespace");
        }
        let [kind, name] = [&object["kind"], &object["metadata"]["name"]]
            .map(|field| field.as_str().unwrap_or_default().to_lowercase());
        files.push((
            format!("bundle/manifests/{name}.{kind}.yaml"),
            generated(&yaml(&object)?),
        ));
    }
    Ok(files)
}

/// Returns the objects of `deploy/` that the bundle uses.
fn objects(root: &Path) -> Result<Vec<Value>, GenerateError> {
    let mut objects = Vec::new();
    for file in [
        "deploy",
        "metrics_service",
        "pod_disruption_budget",
        "role",
        "role_binding",
        "tracker_role",
        "tracker_targets_role",
    ] {
        let path = format!("deploy/{file}.yaml");
        let parsed: Vec<Value> =
            serde_saphyr::from_multiple(&read(root, &path)?).map_err(|error| {
                GenerateError::Parse {
                    path: path.into(),
                    source: Box::new(error),
                }
            })?;
        objects.extend(parsed);
    }
    Ok(objects)
}

/// Returns whether the bundle has the object beside the `ClusterServiceVersion`, which has the Deployment and the operator's roles.
fn is_beside(object: &Value) -> bool {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    match object["kind"].as_str().unwrap_or_default() {
        "ClusterRole" => name.contains("-tracker-") || name.ends_with("-metrics-reader"),
        "ClusterRoleBinding" => name.ends_with("-tracker-rolebinding"),
        "PodDisruptionBudget" | "Service" => true,
        _ => false,
    }
}

fn named<'a>(objects: &'a [Value], kind: &str, end: &str) -> &'a Value {
    let is_it = |object: &&Value| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        object["kind"] == kind && name.ends_with(end)
    };
    objects.iter().find(is_it).unwrap_or(&Value::Null)
}

fn cluster_service_version(root: &Path) -> Result<Value, GenerateError> {
    let objects = objects(root)?;
    let deployment = named(&objects, "Deployment", "");
    let rules = |kind: &str, end: &str| {
        let rules = named(&objects, kind, end)["rules"].as_array();
        rules.cloned().unwrap_or_default()
    };
    let account = &deployment["spec"]["template"]["spec"]["serviceAccountName"];
    let cluster = [
        rules("ClusterRole", "-manager-role"),
        rules("ClusterRole", "-metrics-auth-role"),
    ]
    .concat();
    let owned: Vec<_> = controllers::crds().iter().map(owned).collect();
    let icon = BASE64_STANDARD.encode(read(root, ICON)?);
    Ok(json!({
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": format!("quartermaster.v{VERSION}"),
            "namespace": NAMESPACE,
            "annotations": {
                "alm-examples": serde_json::to_string_pretty(&samples(root)?)?,
                "capabilities": "Seamless Upgrades",
                "categories": "Monitoring, Integration & Delivery, Networking",
                "containerImage": deployment["spec"]["template"]["spec"]["containers"][0]["image"],
                "description": SUMMARY,
                "operatorframework.io/suggested-namespace": NAMESPACE,
            },
        },
        "spec": {
            "displayName": "Quartermaster",
            "description": DESCRIPTION,
            "version": VERSION,
            "maturity": "alpha",
            "minKubeVersion": "1.33.0",
            "keywords": ["notifications", "configmap", "deployment", "aws", "load balancer"],
            "provider": { "name": "The Quartermaster authors" },
            "icon": [{ "base64data": icon, "mediatype": "image/svg+xml" }],
            "installModes": [
                { "type": "OwnNamespace", "supported": false },
                { "type": "SingleNamespace", "supported": false },
                { "type": "MultiNamespace", "supported": false },
                { "type": "AllNamespaces", "supported": true },
            ],
            "install": {
                "strategy": "deployment",
                "spec": {
                    "clusterPermissions": [{ "serviceAccountName": account, "rules": cluster }],
                    "permissions": [{ "serviceAccountName": account, "rules": rules("Role", "-leader-election-role") }],
                    "deployments": [{
                        "name": deployment["metadata"]["name"],
                        "label": deployment["metadata"]["labels"],
                        "spec": deployment["spec"],
                    }],
                },
            },
            "customresourcedefinitions": { "owned": owned },
        },
    }))
}

/// Returns the description of a kind, with those of its fields.
fn owned(crd: &CustomResourceDefinition) -> Value {
    let version = &crd.spec.versions[0];
    json!({
        "name": crd.metadata.name,
        "kind": crd.spec.names.kind,
        "version": version.name,
        "displayName": crd.spec.names.kind,
        "description": schema(crd).description,
        "specDescriptors": descriptors(crd, "spec"),
        "statusDescriptors": descriptors(crd, "status"),
    })
}

fn schema(crd: &CustomResourceDefinition) -> JSONSchemaProps {
    let schema = crd.spec.versions[0].schema.clone();
    schema
        .and_then(|schema| schema.open_api_v3_schema)
        .unwrap_or_default()
}

/// Returns a descriptor of each field of the spec or the status.
fn descriptors(crd: &CustomResourceDefinition, part: &str) -> Vec<Value> {
    let properties = schema(crd).properties.unwrap_or_default();
    let fields = properties.get(part).and_then(|it| it.properties.clone());
    let fields = fields.unwrap_or_default().into_iter();
    fields
        .map(|(name, field)| {
            let mut descriptor = json!({
                "path": name,
                "displayName": words(&name),
                "description": field.description,
            });
            let hint = match (name.as_str(), field.type_.as_deref()) {
                ("conditions", _) => Some("urn:alm:descriptor:io.kubernetes.conditions"),
                (_, Some("boolean")) if part == "spec" => {
                    Some("urn:alm:descriptor:com.tectonic.ui:booleanSwitch")
                }
                _ => None,
            };
            if let Some(hint) = hint {
                descriptor["x-descriptors"] = json!([hint]);
            }
            descriptor
        })
        .collect()
}

/// Returns a name in camel case as words, such as `History Limit` for `historyLimit`.
fn words(name: &str) -> String {
    let mut words = String::new();
    let mut before = ' ';
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && before.is_ascii_lowercase() {
            words.push(' ');
        }
        if words.is_empty() {
            words.push(letter.to_ascii_uppercase());
        } else {
            words.push(letter);
        }
        before = letter;
    }
    words
}

/// Returns one sample of each kind.
fn samples(root: &Path) -> Result<Vec<Value>, GenerateError> {
    let sample = |kind: &qm_core::kind::KindInfo| {
        let path = format!("example/example_{}.yaml", kind.controller);
        serde_saphyr::from_str(&read(root, &path)?).map_err(|error| GenerateError::Parse {
            path: path.into(),
            source: Box::new(error),
        })
    };
    KINDS.iter().map(sample).collect()
}

/// Returns the labels of the bundle's image.
fn annotations() -> Value {
    json!({
        "annotations": {
            "operators.operatorframework.io.bundle.mediatype.v1": "registry+v1",
            "operators.operatorframework.io.bundle.manifests.v1": "manifests/",
            "operators.operatorframework.io.bundle.metadata.v1": "metadata/",
            "operators.operatorframework.io.bundle.package.v1": "quartermaster",
            "operators.operatorframework.io.bundle.channels.v1": "alpha",
            "operators.operatorframework.io.bundle.channel.default.v1": "alpha",
        },
    })
}

/// Returns `Chart.yaml` with the annotations for Artifact Hub in place of those that it has.
pub fn chart(root: &Path) -> Result<File, GenerateError> {
    let text = read(root, CHART)?;
    let written = text.split(GENERATED).next().unwrap_or_default();
    let crds: Vec<_> = controllers::crds()
        .iter()
        .map(|crd| {
            json!({
                "kind": crd.spec.names.kind,
                "version": crd.spec.versions[0].name,
                "name": crd.metadata.name,
                "displayName": crd.spec.names.kind,
                "description": schema(crd).description,
            })
        })
        .collect();
    let text_of =
        |value: &Value| Ok::<_, GenerateError>(yaml(value)?.trim_start_matches("---\n").to_owned());
    let annotations = [
        ("artifacthub.io/category", "monitoring-logging".to_owned()),
        (
            "artifacthub.io/changes",
            text_of(&json!([{ "kind": "added", "description": "First version" }]))?,
        ),
        ("artifacthub.io/crds", text_of(&crds.into())?),
        (
            "artifacthub.io/crdsExamples",
            text_of(&samples(root)?.into())?,
        ),
        ("artifacthub.io/license", "Apache-2.0".to_owned()),
        ("artifacthub.io/operator", "true".to_owned()),
        (
            "artifacthub.io/operatorCapabilities",
            "Seamless Upgrades".to_owned(),
        ),
        ("artifacthub.io/prerelease", "true".to_owned()),
    ];
    let mut chart = format!("{written}{GENERATED}");
    for (name, value) in annotations {
        let lines = value.lines().map(|line| format!("\n    {line}"));
        // Writing to a String does not fail.
        let _ = if value.contains('\n') {
            writeln!(chart, "  {name}: |{}", lines.collect::<String>())
        } else {
            writeln!(chart, "  {name}: {value:?}")
        };
    }
    Ok((CHART.into(), chart))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_in_camel_case_becomes_words() {
        for (name, expected) in [
            ("historyLimit", "History Limit"),
            ("clusterIP", "Cluster IP"),
            ("type", "Type"),
        ] {
            assert_eq!(words(name), expected);
        }
    }
}
