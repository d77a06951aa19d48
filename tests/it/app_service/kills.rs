//! The operator is killed at each of its writes, and answers are lost: the end state is the same as without faults.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Service;
use qm_api::AppService;
use serde_json::{Value, json};
use testbed::proxy::{Fault, Lost, Match, Point, Times, Verb};

use super::{app, create_original_children, ready_condition, respec};
use crate::support::{Bed, Operator, Settings, kill_at_each_write, kill_at_write};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_at_any_write_keeps_the_end_state() {
    // A kill before a write equals a kill after the previous write.
    let points = [Point::AfterApplied, Point::AfterAnswer];
    let writes = Box::pin(kill_at_each_write(&points, async |point, write| {
        Box::pin(run(point, write)).await
    }))
    .await;
    // At least: the annotation; two adoption writes for each of two objects; the autoscaler's creation and deletion;
    // the Deployment again; the Service's deletion; a status for each spec.
    assert!(
        writes.iter().all(|writes| *writes >= 11),
        "{writes:?} writes"
    );
    run_with_lost_answers().await;
}

/// The app adopts objects of the original program with another spec, which then changes once more; the operator is
/// killed at this write. Returns whether the write happened, and the end state.
async fn run(point: Point, write: u64) -> (bool, Value) {
    let bed = Bed::without_controllers("kills").await;
    let mut spec = json!({ "size": 3, "image": "nginx:1.7.9", "ports": [
        { "name": "a", "port": 80, "targetPort": 80 },
        { "name": "b", "port": 81, "targetPort": 81 },
    ] });
    let old = app(&bed, "web", spec.clone()).await;
    let annotated = json!({ "metadata": { "annotations": { "old/spec": spec.to_string() } } });
    bed.patch::<AppService>("web", annotated).await;
    create_original_children(&bed, &old, json!({})).await;
    spec["ports"].as_array_mut().unwrap().remove(1);
    spec["size"] = json!(1);
    spec["autoscaling"] = json!({ "max": 5 });
    spec["resources"] = json!({ "requests": { "cpu": "100m" } });
    respec(&bed, "web", spec.clone()).await;

    let changes = async {
        let first = end_state(&bed).await;
        assert_eq!(
            first["deployment"]["replicas"], 3,
            "the running count stays"
        );
        spec["autoscaling"] = Value::Null;
        spec["ports"] = json!([]);
        respec(&bed, "web", spec.clone()).await;
        end_state(&bed).await
    };
    // Events are best effort.
    let writes = Match::writes().except_resource("events");
    Box::pin(kill_at_write(
        &bed,
        Settings::default().flag("--controllers=appservice"),
        writes,
        point,
        write,
        changes,
    ))
    .await
}

/// Returns the end state once the status has the current generation. No kubelet runs Pods here.
async fn end_state(bed: &Bed) -> Value {
    let says = |app: &AppService| {
        ready_condition(app).is_some_and(|ready| ready.reason.as_deref() == Some("Progressing"))
    };
    let app = bed.until("web", "is progressing", says).await;
    let deployment = bed.api::<Deployment>().get("web").await.unwrap();
    let service = bed.api::<Service>().get_opt("web").await.unwrap();
    let scaler = bed
        .api::<HorizontalPodAutoscaler>()
        .get_opt("web")
        .await
        .unwrap();
    let mut status = json!(app.status);
    for condition in status["conditions"].as_array_mut().unwrap() {
        condition
            .as_object_mut()
            .unwrap()
            .remove("lastTransitionTime");
    }
    json!({
        "deployment": deployment.spec,
        "labels": deployment.metadata.labels.unwrap().keys().collect::<Vec<_>>(),
        "service": service.is_some(),
        "scaler": scaler.is_some(),
        "annotated": app.metadata.annotations,
        "status": status,
    })
}

/// The child is created and the answer is lost: the operator finds the child, and does not create it again.
async fn run_with_lost_answers() {
    let bed = Bed::without_controllers("lost").await;
    let (proxy, file) = bed.through_proxy().await;
    let lost = proxy.inject(
        Match::verb(Verb::Create),
        Times::First(2),
        Fault::LoseAnswer(Lost::Cut),
    );
    let _operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    app(
        &bed,
        "web",
        json!({ "size": 1, "image": "i", "ports": [{ "port": 80, "nodePort": 30_021 }] }),
    )
    .await;
    let state = end_state(&bed).await;
    assert_eq!(state["service"], true);
    assert_eq!(lost.hits(), 2);
}
