//! Validation by the apiserver: every field at its boundary, the documents' objects older than the rules, permissions.

use kube::api::{Api, DynamicObject, PostParams};
use kube::core::ApiResource;
use kube::{Client, CustomResourceExt, Error};
use qm_api::{
    AppService, ConfigMapSync, ContactPoint, MyApp, MyIngress, TrackedField, TrackedFieldSet,
};
use quartermaster::controllers;
use serde_json::{Value, json};
use testbed::control_plane::ControlPlane;

use crate::support::{Bed, SOON};

mod app_service;
mod config_map_sync;
mod contact_point;
mod my_app;
mod my_ingress;
mod permissions;
mod printed;
mod tracked_field;
mod tracked_field_set;
mod upgrade;

/// A case: a spec in YAML, and the text of the rejection; empty if the spec is accepted. `|` separates parts of the
/// text; the first part is the field.
type Case = (String, &'static str);

/// Installs the CRDs, where a warning of the apiserver is an error. Returns once they are served.
async fn install(plane: &ControlPlane) {
    let crds = xtask::crds_yaml().unwrap();
    plane
        .run_kubectl(&["apply", "--warnings-as-errors", "-f", "-"], &crds)
        .await
        .unwrap();
    let client = plane.client().await.unwrap();
    for (kind, refused) in [
        (ContactPoint::api_resource(), json!({ "type": "Pigeon" })),
        (
            ConfigMapSync::api_resource(),
            json!({ "sourceNamespace": "a", "configMapName": "b", "deletionPolicy": "Keep" }),
        ),
        (
            TrackedField::api_resource(),
            json!({ "contactPoint": "a", "field": "b", "target": { "kind": "c", "name": "d" } }),
        ),
        (
            TrackedFieldSet::api_resource(),
            json!({ "fields": ["b"], "target": { "kind": "Service" }, "template": { "contactPoint": "a" } }),
        ),
        (
            AppService::api_resource(),
            json!({ "size": 1, "image": "a b" }),
        ),
        (MyApp::api_resource(), json!({ "image": "a b" })),
        (MyIngress::api_resource(), json!({ "subnets": ["a", "b"] })),
    ] {
        wait_until("our rules bind", async || {
            create(&client, &kind, "probe", Some(&refused), true)
                .await
                .is_err_and(|e| e.contains("write "))
        })
        .await;
    }
}

/// Returns a client whose namespace is the test's own, on a control plane that serves the CRDs.
async fn served() -> Client {
    let bed = Bed::without_controllers("crds").await;
    let sends = move |request| {
        let client = bed.client.clone();
        async move { client.send(request).await }
    };
    Client::new(tower::service_fn(sends), bed.namespace)
}

/// Creates an object in the client's namespace; returns the message of the rejection otherwise.
async fn create(
    client: &Client,
    kind: &ApiResource,
    name: &str,
    spec: Option<&Value>,
    dry_run: bool,
) -> Result<DynamicObject, String> {
    let api = Api::<DynamicObject>::default_namespaced_with(client.clone(), kind);
    let mut object = DynamicObject::new(name, kind);
    if let Some(spec) = spec {
        object.data = json!({ "spec": spec });
    }
    match api
        .create(
            &PostParams {
                dry_run,
                ..PostParams::default()
            },
            &object,
        )
        .await
    {
        Err(Error::Api(status)) => Err(status.message),
        other => Ok(other.unwrap()),
    }
}

/// Tries every case, and reports all that differ from the table.
async fn check(client: &Client, kind: &ApiResource, cases: &[Case]) {
    let mut wrong = Vec::new();
    for (yaml, expected) in cases {
        let spec = serde_saphyr::from_str(yaml).unwrap_or_else(|e| panic!("{yaml}: {e}"));
        match create(client, kind, "case", Some(&spec), true).await {
            Ok(_) if expected.is_empty() => {}
            Ok(_) => wrong.push(format!(
                "{}\n  is accepted, not refused with {expected}",
                shorten(yaml)
            )),
            Err(error)
                if !expected.is_empty() && expected.split('|').all(|part| error.contains(part)) => {
            }
            Err(error) => wrong.push(format!(
                "{}\n  {expected}, but: {}",
                shorten(yaml),
                shorten(&error)
            )),
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} cases:\n{}",
        wrong.len(),
        cases.len(),
        wrong.join("\n")
    );
}

/// Fails for a field of `spec` without a case: a new field needs its cases. The fields inside `kubernetes_fields` are
/// Kubernetes' own.
fn every_field_has_a_case(kind: &str, kubernetes_fields: &[&str], cases: &[Case]) {
    fn names(schema: &Value, kubernetes_fields: &[&str], into: &mut Vec<String>) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            into.push(name.clone());
            if !kubernetes_fields.contains(&name.as_str()) {
                names(property, kubernetes_fields, into);
                names(&property["items"], kubernetes_fields, into);
            }
        }
    }
    let crd = controllers::crds()
        .into_iter()
        .find(|crd| crd.spec.names.kind == kind)
        .unwrap();
    let crd = serde_json::to_value(crd).unwrap();
    let mut fields = Vec::new();
    names(
        &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"],
        kubernetes_fields,
        &mut fields,
    );
    assert!(fields.len() > 3);
    for field in fields {
        let of = |refused: bool| {
            cases.iter().any(|(yaml, expected)| {
                expected.is_empty() != refused && yaml.contains(&format!("{field}:"))
            })
        };
        assert!(of(false), "no case accepts {field}");
        assert!(of(true), "no case refuses {field}");
    }
}

fn shorten(text: &str) -> String {
    if text.len() < 1500 {
        text.into()
    } else {
        format!("{}...", text.chars().take(1500).collect::<String>())
    }
}

async fn wait_until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    testbed::wait::until(what, SOON, async || Ok(holds().await.then_some(())))
        .await
        .unwrap();
}
