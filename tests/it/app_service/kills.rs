//! The operator is killed at each of its writes, and loses answers: all ends as if nothing had happened.

use std::sync::Arc;

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Service;
use quartermaster::api::AppService;
use serde_json::{Value, json};
use testbed::Options;
use testbed::proxy::{Fault, Lost, Match, Point, Then, Times, Verb};
use tokio::sync::Notify;

use super::{app, original, respec, standing};
use crate::support::{Bed, Operator, Plane, Settings};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_write_changes_nothing() {
    let bed = Bed::own_with(Options::apiserver_only(), "kills").await;
    let (_, undisturbed) = run(&bed.plane, Point::Before, u64::MAX).await;
    // Before a write is as good as after the one before.
    let points = [Point::AfterApplied, Point::AfterAnswer].map(async |point| {
        let mut write = 1;
        loop {
            let (killed, state) = run(&bed.plane, point, write).await;
            assert_eq!(state, undisturbed, "killed at write {write}, {point:?}");
            if !killed {
                break write - 1;
            }
            write += 1;
        }
    });
    let [applied, answered] = points;
    let writes = tokio::join!(applied, answered);
    // The annotation; two to take over each of two objects; the autoscaler comes, and goes; the Deployment, again; the
    // Service goes; a status for each spec.
    assert!(writes.0 >= 11 && writes.1 >= 11, "{writes:?} writes");
    answers_that_are_lost(&bed.plane).await;
}

/// What the document's program made is taken over with another spec, and that is changed once more, while the operator is
/// killed at that write. Says whether it came to that, and how all of it ends.
async fn run(plane: &Plane, point: Point, write: u64) -> (bool, Value) {
    let bed = Bed::on(plane.clone(), "kills").await;
    let mut spec = json!({ "size": 3, "image": "nginx:1.7.9", "ports": [
        { "name": "a", "port": 80, "targetPort": 80 },
        { "name": "b", "port": 81, "targetPort": 81 },
    ] });
    let old = app(&bed, "web", spec.clone()).await;
    let annotated = json!({ "metadata": { "annotations": { "old/spec": spec.to_string() } } });
    bed.patch::<AppService>("web", annotated).await;
    original(&bed, &old, json!({})).await;
    spec["ports"].as_array_mut().unwrap().remove(1);
    spec["size"] = json!(1);
    spec["autoscaling"] = json!({ "max": 5 });
    respec(&bed, "web", spec.clone()).await;

    let (proxy, file) = bed.through_proxy().await;
    let (reached, dead) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let hook = {
        let (reached, dead) = (Arc::clone(&reached), Arc::clone(&dead));
        Fault::hook(point, move |_| {
            let (reached, dead) = (Arc::clone(&reached), Arc::clone(&dead));
            async move {
                reached.notify_one();
                dead.notified().await;
                Then::Cut
            }
        })
    };
    // Events are best effort.
    let order = proxy.inject(Match::writes().except_resource("events"), Times::Nth(write), hook);
    let mut operator = Operator::launch(&bed, Settings::default().kubeconfig(file)).await;
    let changes = async {
        let first = said(&bed).await;
        assert_eq!(first["deployment"]["replicas"], 3, "the running count stays");
        spec["autoscaling"] = Value::Null;
        spec["ports"] = json!([]);
        respec(&bed, "web", spec.clone()).await;
        said(&bed).await
    };
    let kill = async {
        reached.notified().await;
        operator.kill();
        dead.notify_one();
        operator.restart();
        std::future::pending::<()>().await;
    };
    let state = tokio::select! {
        state = changes => state,
        () = kill => unreachable!(),
    };
    drop(operator);
    (order.hits() > 0, state)
}

/// What there is once the status speaks of the present spec: nobody runs its Pods here.
async fn said(bed: &Bed) -> Value {
    let says = |app: &AppService| standing(app).is_some_and(|ready| ready.reason.as_deref() == Some("Progressing"));
    let app = bed.until("web", "says that it is on its way", says).await;
    let deployment = bed.api::<Deployment>().get("web").await.unwrap();
    let service = bed.api::<Service>().get_opt("web").await.unwrap();
    let scaler = bed.api::<HorizontalPodAutoscaler>().get_opt("web").await.unwrap();
    let mut status = json!(app.status);
    status["conditions"][0].as_object_mut().unwrap().remove("lastTransitionTime");
    json!({
        "deployment": deployment.spec,
        "labels": deployment.metadata.labels.unwrap().keys().collect::<Vec<_>>(),
        "service": service.is_some(),
        "scaler": scaler.is_some(),
        "annotated": app.metadata.annotations,
        "status": status,
    })
}

/// It is made, and nobody learns of it: it is found, and not made again.
async fn answers_that_are_lost(plane: &Plane) {
    let bed = Bed::on(plane.clone(), "lost").await;
    let (proxy, file) = bed.through_proxy().await;
    let lost = proxy.inject(Match::verb(Verb::Create), Times::First(2), Fault::LoseAnswer(Lost::Cut));
    let _operator = Operator::start(&bed, Settings::default().kubeconfig(file)).await;
    app(&bed, "web", json!({ "size": 1, "image": "i", "ports": [{ "port": 80, "nodePort": 30_021 }] })).await;
    let state = said(&bed).await;
    assert_eq!(state["service"], true);
    assert_eq!(lost.hits(), 2);
}
