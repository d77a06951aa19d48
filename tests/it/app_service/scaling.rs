//! The number of Pods: set by a user, by an autoscaler on the app, or by the app's own autoscaler.

use std::sync::{Arc, Mutex};

use futures::StreamExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::api::{Patch, PatchParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, ResourceExt};
use qm_api::AppService;
use serde_json::{Value, json};
use testbed::wait::until;
use tokio::task::JoinHandle;

use super::{app, deployment, ready, reconciled, respec};
use crate::support::{Bed, Operator, SOON, Settings};

/// Every number of replicas that a Deployment had in its spec.
struct Counts {
    seen: Arc<Mutex<Vec<i32>>>,
    task: JoinHandle<()>,
}

impl Counts {
    fn of(bed: &Bed, name: &str) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (api, into) = (bed.api::<Deployment>(), Arc::clone(&seen));
        let config = watcher::Config::default().fields(&format!("metadata.name={name}"));
        let task = tokio::spawn(async move {
            let mut objects = std::pin::pin!(watcher(api, config).applied_objects());
            while let Some(objects) = objects.next().await {
                let replicas = objects.unwrap().spec.unwrap().replicas.unwrap();
                let mut seen = into.lock().unwrap();
                if seen.last() != Some(&replicas) {
                    seen.push(replicas);
                }
            }
        });
        Self { seen, task }
    }

    /// Waits until the recorded numbers are the expected ones.
    async fn are(&self, expected: &[i32]) {
        let seen = until(format!("the counts are {expected:?}"), SOON, async || {
            let seen = self.seen.lock().unwrap().clone();
            anyhow::ensure!(seen == expected, "{seen:?}");
            Ok(Some(()))
        });
        seen.await.unwrap();
    }
}

impl Drop for Counts {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn sized(size: i32) -> Value {
    json!({ "size": size, "image": "nginx:1.7.9", "resources": { "requests": { "cpu": "100m" } } })
}

/// Scales as an autoscaler does.
async fn scale(bed: &Bed, name: &str, replicas: i32) {
    let by = PatchParams {
        field_manager: Some("kube-controller-manager".into()),
        ..PatchParams::default()
    };
    let scale = json!({ "spec": { "replicas": replicas } });
    bed.api::<Deployment>()
        .patch_scale(name, &by, &Patch::Merge(scale))
        .await
        .unwrap();
}

#[tokio::test]
async fn app_scales_to_zero_and_back() {
    let bed = Bed::shared("scale").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    app(&bed, "web", sized(1)).await;
    ready(&bed, "web").await;
    let counts = Counts::of(&bed, "web");
    counts.are(&[1]).await;
    for size in ["3", "0", "2"] {
        bed.kubectl(&["scale", "appsvc/web", &format!("--replicas={size}")])
            .await;
        let app = ready(&bed, "web").await;
        let status = app.status.unwrap();
        assert_eq!(status.replicas.unwrap_or_default().to_string(), size);
        assert_eq!(app.spec.size.to_string(), size);
    }
    counts.are(&[1, 3, 0, 2]).await;
    // The operator corrects a change of the Deployment alone.
    scale(&bed, "web", 5).await;
    counts.are(&[1, 3, 0, 2, 5, 2]).await;
    let event = bed.kubectl(&[
        "get",
        "appsvc/web",
        "--subresource=scale",
        "-o",
        "jsonpath={.spec.replicas} {.status.selector}",
    ]);
    assert_eq!(event.await, "2 app=web");
}

#[tokio::test]
async fn autoscaler_on_the_app_scales() {
    let bed = Bed::shared("hpa").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    app(&bed, "web", sized(1)).await;
    ready(&bed, "web").await;
    let target = json!({ "apiVersion": "kosmos.io/v1", "kind": "AppService", "name": "web" });
    let spec = json!({ "scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 4, "metrics": [
        { "type": "Resource", "resource": { "name": "cpu", "target": { "type": "Utilization", "averageUtilization": 50 } } },
    ] });
    bed.create::<HorizontalPodAutoscaler>("theirs", json!({ "spec": spec }))
        .await;
    bed.until("web", "is scaled to the least", |app: &AppService| {
        app.spec.size == 2
    })
    .await;
    ready(&bed, "web").await;
    assert_eq!(
        deployment(&bed, "web").await.spec.unwrap().replicas,
        Some(2)
    );
    // The autoscaler found the Pods: it requests their metrics, which this cluster does not have.
    let asks = |scaler: &HorizontalPodAutoscaler| {
        let conditions = scaler
            .status
            .as_ref()
            .and_then(|status| status.conditions.clone())
            .unwrap_or_default();
        conditions
            .iter()
            .any(|condition| condition.reason.as_deref() == Some("FailedGetResourceMetric"))
    };
    bed.until("theirs", "has found the Pods", asks).await;
}

#[tokio::test]
async fn own_autoscaler_keeps_the_running_count() {
    let bed = Bed::shared("autoscaling").await;
    let mut operator = Operator::start(&bed, Settings::default()).await;
    app(&bed, "web", sized(2)).await;
    ready(&bed, "web").await;
    let counts = Counts::of(&bed, "web");
    counts.are(&[2]).await;

    // On: the running count stays, whatever the size is, until another client changes the count.
    let mut on = sized(4);
    on["autoscaling"] = json!({ "min": 1, "max": 5 });
    respec(&bed, "web", on.clone()).await;
    let scalers: Api<HorizontalPodAutoscaler> = bed.api();
    let scaler = bed
        .until("web", "exists", |_: &HorizontalPodAutoscaler| true)
        .await;
    assert_eq!(scaler.spec.unwrap().scale_target_ref.name, "web");
    ready(&bed, "web").await;
    scale(&bed, "web", 3).await;
    counts.are(&[2, 3]).await;
    ready(&bed, "web").await;
    on["image"] = json!("nginx:1.27");
    on["size"] = json!(1);
    respec(&bed, "web", on.clone()).await;
    ready(&bed, "web").await;
    operator.kill();
    operator.restart();
    reconciled(&bed, "web").await;
    assert_eq!(*counts.seen.lock().unwrap(), [2, 3]);

    // Off: one write from the running count to the size.
    let mut off = on.clone();
    off["autoscaling"] = Value::Null;
    off["size"] = json!(2);
    respec(&bed, "web", off).await;
    ready(&bed, "web").await;
    counts.are(&[2, 3, 2]).await;
    assert!(scalers.get_opt("web").await.unwrap().is_none());
    let message = bed.event("web", "AutoscalingDisabled").await;
    assert_eq!(
        message,
        "deleted the autoscaler, which had set 3 Pods: spec.size, which is 2, applies"
    );
    scale(&bed, "web", 5).await;
    counts.are(&[2, 3, 2, 5, 2]).await;

    // On again, and off without a change.
    on["size"] = json!(2);
    respec(&bed, "web", on).await;
    bed.until("web", "exists", |_: &HorizontalPodAutoscaler| true)
        .await;
    ready(&bed, "web").await;
    respec(&bed, "web", sized(2)).await;
    ready(&bed, "web").await;
    assert_eq!(*counts.seen.lock().unwrap(), [2, 3, 2, 5, 2]);
    assert!(scalers.get_opt("web").await.unwrap().is_none());
}

/// A new app starts with its size, within the bounds, and never with the default of one Pod.
#[tokio::test]
async fn autoscaled_app_starts_within_its_bounds() {
    let bed = Bed::shared("begins").await;
    let _operator = Operator::start(&bed, Settings::default()).await;
    for (name, size, begins) in [("low", 0, 2), ("mid", 3, 3), ("high", 9, 4)] {
        let counts = Counts::of(&bed, name);
        let mut spec = sized(size);
        spec["autoscaling"] = json!({ "min": 2, "max": 4 });
        let app = app(&bed, name, spec).await;
        ready(&bed, name).await;
        reconciled(&bed, name).await;
        counts.are(&[begins]).await;
        let scaler: HorizontalPodAutoscaler = bed.api().get(name).await.unwrap();
        assert_eq!(scaler.owner_references()[0].uid, app.uid().unwrap());
    }
}

/// The test cluster has no metrics server, so an app's own autoscaler never scales.
#[tokio::test]
async fn app_is_not_ready_after_its_autoscaler_was_inactive_for_the_grace_period() {
    let bed = Bed::shared("inactive").await;
    let operator = Operator::start(&bed, Settings::default()).await;
    let mut spec = sized(1);
    spec["autoscaling"] = json!({ "max": 2 });
    app(&bed, "web", spec).await;
    let condition = |app: &AppService| {
        app.status
            .as_ref()
            .and_then(|status| status.condition("Ready").cloned())
    };
    let reports = |status: &'static str, reason: &'static str| {
        move |app: &AppService| {
            condition(app).is_some_and(|ready| {
                let message = ready.message.unwrap_or_default();
                ready.status == status
                    && ready.reason.as_deref() == Some(reason)
                    && message.starts_with(
                        "the Pod is available; the HorizontalPodAutoscaler does not scale: ",
                    )
                    && message.contains("metrics")
            })
        }
    };
    bed.until(
        "web",
        "is ready, with the autoscaler's problem in its message",
        reports("True", "Ready"),
    )
    .await;

    drop(operator);
    let _impatient = Operator::start(
        &bed,
        Settings::default().flag("--scaling-inactive-grace-period=1s"),
    )
    .await;
    bed.until("web", "is not ready", reports("False", "ScalingInactive"))
        .await;
    bed.event("web", "ScalingInactive").await;

    respec(&bed, "web", sized(1)).await;
    assert_eq!(
        condition(&ready(&bed, "web").await)
            .unwrap()
            .message
            .unwrap(),
        "the Pod is available"
    );
}
