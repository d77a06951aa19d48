//! `AppService` on a real control plane.

use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Service;
use kube::api::{ListParams, ObjectList, PostParams};
use kube::core::ObjectMeta;
use kube::{Resource as _, ResourceExt};
use qm_api::AppService;
use qm_api::app_service::AppCondition;
use serde_json::{Value, json};
use testbed::wait::until;

use crate::support::{Bed, SOON};

mod adoption;
mod changes;
mod corrections;
mod cost;
mod drift;
mod foreign;
mod kills;
mod pod_overrides;
mod restarts;
mod restricted;
mod scaling;
mod stale;
mod status;
mod walkthrough;

/// Creates an app with this spec.
async fn app(bed: &Bed, name: &str, spec: Value) -> AppService {
    bed.create(name, json!({ "spec": spec })).await
}

/// Replaces an app's whole spec.
async fn respec(bed: &Bed, name: &str, spec: Value) -> AppService {
    let spec = serde_json::from_value(spec).unwrap();
    let written = until("the spec is written", SOON, async || {
        let mut app = bed.api::<AppService>().get(name).await?;
        app.spec = Clone::clone(&spec);
        match bed.api().replace(name, &PostParams::default(), &app).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            other => Ok(Some(other?)),
        }
    });
    written.await.unwrap()
}

/// Returns the app's condition `Ready` once its observed generation is the current one.
fn ready_condition(app: &AppService) -> Option<&AppCondition> {
    let status = app.status.as_ref()?;
    (status.observed_generation == app.metadata.generation).then(|| status.condition("Ready"))?
}

async fn ready(bed: &Bed, name: &str) -> AppService {
    bed.until(name, "is ready", |app| {
        ready_condition(app).is_some_and(|ready| ready.status == "True")
    })
    .await
}

/// Waits until the app is not ready for this reason; returns the message.
async fn not_ready(bed: &Bed, name: &str, reason: &str) -> String {
    let app = bed
        .until(name, reason, |app| {
            ready_condition(app).is_some_and(|ready| {
                ready.status == "False" && ready.reason.as_deref() == Some(reason)
            })
        })
        .await;
    ready_condition(&app).unwrap().message.clone().unwrap()
}

async fn deployment(bed: &Bed, name: &str) -> Deployment {
    bed.api().get(name).await.unwrap()
}

async fn service(bed: &Bed, name: &str) -> Service {
    bed.api().get(name).await.unwrap()
}

/// Returns the names of the app's `ReplicaSet`s. A name has a digest of the Pod template, so names tell which templates
/// were used.
async fn replica_sets(bed: &Bed, name: &str) -> Vec<String> {
    let all: ObjectList<ReplicaSet> = bed
        .api()
        .list(&ListParams::default().labels(&format!("app={name}")))
        .await
        .unwrap();
    all.iter().map(ResourceExt::name_any).collect()
}

/// Creates an app's children as the original program does: with a plain POST under another manager's name. `more` is
/// merged into the metadata of both.
async fn create_original_children(
    bed: &Bed,
    app: &AppService,
    more: Value,
) -> (Deployment, Service) {
    let name = app.name_any();
    let mut metadata = json!(ObjectMeta {
        name: Some(name.clone()),
        namespace: app.namespace(),
        owner_references: app.controller_owner_ref(&()).map(|owner| vec![owner]),
        ..ObjectMeta::default()
    });
    metadata["ownerReferences"][0]["blockOwnerDeletion"] = json!(true);
    metadata
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    let labels = json!({ "app": name });
    let spec = serde_json::to_value(&app.spec).unwrap();
    let ports = spec["ports"].as_array().cloned().unwrap_or_default();
    let container_ports: Vec<_> = ports
        .iter()
        .map(|port| json!({ "containerPort": port["targetPort"] }))
        .collect();
    let container = json!({
        "name": name,
        "image": spec["image"],
        "ports": container_ports,
        "resources": {},
        "imagePullPolicy": "IfNotPresent",
    });
    let template = json!({ "metadata": { "creationTimestamp": null, "labels": labels }, "spec": { "containers": [container] } });
    let by = PostParams {
        field_manager: Some("operator".into()),
        ..PostParams::default()
    };
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata,
        "spec": { "replicas": spec["size"], "selector": { "matchLabels": labels }, "template": template, "strategy": {} },
    });
    let deployment = bed
        .api()
        .create(&by, &serde_json::from_value(deployment).unwrap())
        .await
        .unwrap();
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": { "type": "NodePort", "ports": ports, "selector": labels },
    });
    let service = bed
        .api()
        .create(&by, &serde_json::from_value(service).unwrap())
        .await
        .unwrap();
    (deployment, service)
}

/// Returns the operator's writes to objects of the test's namespace since `since`, as `VERB RESOURCE`, without those to
/// the markers of [`reconciled`].
async fn writes(bed: &Bed, since: testbed::control_plane::audit::Mark) -> Vec<String> {
    let requests = bed.operator_requests(since).await;
    requests
        .filter(|it| it.is_write() && it.resource != "events" && !it.name.starts_with(MARKER))
        .map(|it| format!("{} {}", it.verb, it.resource))
        .collect()
}

/// Prefix of the markers' names.
const MARKER: &str = "marker-";

/// Returns whether the status describes the current spec.
fn is_observed(app: &AppService) -> bool {
    let observed = app.status.as_ref().and_then(|it| it.observed_generation);
    observed == app.metadata.generation
}

/// Triggers a reconcile of the app and waits for its end, which the end of a later reconcile of a marker proves.
async fn reconciled(bed: &Bed, name: &str) {
    let request = bed.request_reconcile::<AppService>(name).await;
    let marker = format!("{MARKER}{}", &request[..8]);
    app(bed, &marker, json!({ "size": 0, "image": "i" })).await;
    bed.until(&marker, "is passed over", |app: &AppService| {
        is_observed(app)
    })
    .await;
}
