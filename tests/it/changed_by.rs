//! An entry names the client that changed the value, also if it scales or shares the field.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::{Patch, PatchParams};
use qm_api::TrackedField;
use qm_api::tracked_field::ChangedBy;
use serde_json::{Value, json};
use testbed::receiver::Receiver;

use crate::support::{Bed, Operator, Settings, changes};

impl Bed {
    /// Waits until the last entry has this value; returns who changed it.
    async fn changed_by(&self, name: &str, value: &str) -> Option<Box<ChangedBy>> {
        let field = self.until(name, value, |field: &TrackedField| {
            let history = field.history().unwrap();
            let last = history.last();
            last.is_some_and(|last| last.value.as_deref() == Some(value) && !last.is_pending())
        });
        let mut history = field.await.history().unwrap();
        history.pop().unwrap().changed_by
    }

    /// Applies the replicas of Deployment `web` server-side.
    async fn apply_replicas(&self, manager: &str, replicas: i32) {
        let object = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "web" }, "spec": { "replicas": replicas },
        });
        let params = PatchParams::apply(manager).force();
        let api = self.api::<Deployment>();
        api.patch("web", &params, &Patch::Apply(&object))
            .await
            .unwrap();
    }
}

/// Without metrics, the autoscaler keeps to its limits all the same.
#[tokio::test]
async fn autoscaler_is_named_with_its_subresource() {
    let bed = Bed::shared("by-autoscaler").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    bed.delivered("it", &[("Created", Some("1"))]).await;
    let target = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" });
    let spec = json!({ "scaleTargetRef": target, "minReplicas": 3, "maxReplicas": 5 });
    bed.create::<HorizontalPodAutoscaler>("web", json!({ "spec": spec }))
        .await;
    let changed_by = bed.changed_by("it", "3").await.unwrap();
    assert_eq!(changed_by.to_string(), "kube-controller-manager (scale)");
    let sent = changes(&receiver);
    assert_eq!(
        sent.last().unwrap()["changedBy"]["subresource"],
        "scale",
        "{sent:?}"
    );
}

/// The client takes no field in `managedFields`, where the image that remains belongs to its former writer.
#[tokio::test]
async fn client_that_removes_a_container_is_unknown() {
    let bed = Bed::shared("by-removal").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    let labels = json!({ "app": "web" });
    let containers =
        ["web", "side"].map(|name| json!({ "name": name, "image": format!("{name}:1") }));
    let template =
        json!({ "metadata": { "labels": labels }, "spec": { "containers": containers } });
    let spec = json!({ "selector": { "matchLabels": labels }, "template": template });
    bed.create::<Deployment>("web", json!({ "spec": spec }))
        .await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.track("it", "Deployment", "web", "images", "hook").await;
    let both = r#"["web:1","side:1"]"#;
    bed.delivered("it", &[("Created", Some(both))]).await;
    let patch = async |operation: Value| {
        let operations = json!([operation]).to_string();
        let arguments = ["patch", "deployment/web", "--type=json", "-p", &operations];
        bed.kubectl(&arguments).await;
    };
    let containers = "/spec/template/spec/containers";
    patch(json!({ "op": "remove", "path": format!("{containers}/1") })).await;
    assert_eq!(bed.changed_by("it", "web:1").await, None);
    let path = format!("{containers}/0/image");
    patch(json!({ "op": "replace", "path": path, "value": "web:2" })).await;
    assert!(bed.changed_by("it", "web:2").await.is_some());
    let sent = changes(&receiver);
    let is_unknown = sent.iter().map(|change| change["changedBy"].is_null());
    assert!(is_unknown.eq([false, true, false]), "{sent:?}");
}

/// The apiserver gives no time to an apply that changes nothing, and so to no applier that only agrees on the value.
#[tokio::test]
async fn applier_that_only_shares_a_field_has_not_changed_it() {
    let bed = Bed::shared("by-appliers").await;
    let receiver = Receiver::start().unwrap();
    bed.webhook("hook", &receiver.url()).await;
    bed.deployment("web", 1).await;
    let mut operator = Operator::start(&bed, Settings::default()).await;
    bed.track("it", "Deployment", "web", "replicas", "hook")
        .await;
    bed.delivered("it", &[("Created", Some("1"))]).await;
    operator.kill();
    bed.apply_replicas("first", 3).await;
    // Times have whole seconds.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    bed.apply_replicas("second", 3).await;
    let shared = bed.api::<Deployment>().get("web").await.unwrap();
    let managers = shared.metadata.managed_fields.unwrap();
    let of_replicas = managers
        .iter()
        .filter(|it| json!(it)["fieldsV1"]["f:spec"]["f:replicas"].is_object());
    let times: BTreeMap<_, _> = of_replicas
        .map(|it| (it.manager.as_deref().unwrap(), it.time.is_some()))
        .collect();
    assert_eq!(times, [("first", true), ("second", false)].into());
    operator.restart();
    let changed_by = bed.changed_by("it", "3").await.unwrap();
    assert_eq!(changed_by.to_string(), "first");
}
