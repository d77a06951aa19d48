//! Scheduler and kubelet states of the Pod, written by the test.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams};
use qm_api::MyApp;
use serde_json::json;

use super::{by_hand, running, waiting};
use crate::support::{ACCOUNT, Bed, Operator, Settings};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn app_follows_every_state_of_the_pod() {
    tokio::join!(
        async { new_app_costs_two_writes_and_no_read(by_hand("new").await).await },
        async { status_follows_the_pod(by_hand("status").await).await },
        async { failed_pod_is_recreated_with_backoff(by_hand("fails").await).await },
        async { request_recreates_a_failed_pod_at_once(by_hand("asked").await).await },
        async { pod_of_a_deleted_node_is_replaced(by_hand("gone").await).await },
        async { unreachable_node_is_awaited(by_hand("quiet").await).await },
        async { terminating_pod_is_awaited(by_hand("going").await).await },
        async { terminating_namespace_gets_no_pod(by_hand("ending").await).await },
    );
}

/// No controller clears the namespace here.
async fn terminating_namespace_gets_no_pod(bed: Bed) {
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.app("web", json!({ "image": "nginx" })).await;
    bed.app_has_reason("web", "PodPending").await;
    let namespaces: Api<Namespace> = Api::all(bed.client.clone());
    namespaces
        .delete(&bed.namespace, &DeleteParams::default())
        .await
        .unwrap();
    bed.delete::<Pod>("web-pod").await;
    bed.app_has_reason("web", "NamespaceTerminating").await;
    let status = bed.api::<MyApp>().get("web").await.unwrap().status.unwrap();
    assert_eq!((status.phase, status.pod_name), (None, None));
}

async fn new_app_costs_two_writes_and_no_read(bed: Bed) {
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.marker("before").await;
    let since = bed.plane.audit().mark().await.unwrap();
    bed.app("web", json!({ "image": "nginx" })).await;
    bed.app_has_reason("web", "PodPending").await;
    bed.marker("after").await;
    let mut reads = bed.requests(since).await;
    reads.remove("patch myapps/status after");
    let two = ["create pods web-pod", "patch myapps/status web"].map(|what| (what.to_owned(), 1));
    assert_eq!(reads, two.into());
    assert!(
        bed.events("web", "Created").await.is_empty()
            && bed.events("web", "PodPending").await.is_empty()
    );
}

async fn status_follows_the_pod(bed: Bed) {
    // The operator reconciles only when triggered.
    let settings = Settings::default()
        .flag("--poll-min=10m")
        .flag("--poll-max=10m");
    let _operator = Operator::start(&bed, settings).await;
    let since = bed.plane.audit().mark().await.unwrap();
    bed.app("web", json!({ "image": "nginx" })).await;
    bed.app_has_reason("web", "PodPending").await;
    let unscheduled = json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available" });
    bed.pod_is(
        "web",
        json!({ "phase": "Pending", "conditions": [unscheduled] }),
    )
    .await;
    assert_eq!(
        bed.app_has_reason("web", "Unschedulable").await,
        "0/3 nodes are available"
    );
    bed.node("status-node", "True", "fine").await;
    bed.bind("web", "status-node").await;
    for (reason, message) in [
        ("ContainerCreating", "container web waits"),
        ("ImagePullBackOff", "Back-off pulling image \"nginx\""),
        (
            "CreateContainerConfigError",
            "container has runAsNonRoot and image will run as root",
        ),
    ] {
        bed.pod_is("web", waiting("Pending", reason, message)).await;
        assert_eq!(bed.app_has_reason("web", reason).await, message);
        let app = bed.api::<MyApp>().get("web").await.unwrap();
        assert_eq!(app.status.unwrap().phase.as_deref(), Some("Pending"));
    }
    bed.pod_is("web", running(true)).await;
    assert_eq!(bed.app_has_reason("web", "Ready").await, "web-pod runs");
    // A crashing container changes its reasons: each is reported once until the app is ready.
    for times in 1..=3 {
        bed.pod_is(
            "web",
            waiting(
                "Running",
                "CrashLoopBackOff",
                &format!("back-off {times}0s"),
            ),
        )
        .await;
        assert_eq!(
            bed.app_has_reason("web", "CrashLoopBackOff").await,
            format!("back-off {times}0s")
        );
        bed.pod_is(
            "web",
            waiting("Running", "RunContainerError", "no such file"),
        )
        .await;
        bed.app_has_reason("web", "RunContainerError").await;
    }
    bed.pod_is("web", running(true)).await;
    bed.app_has_reason("web", "Ready").await;
    bed.event("web", "Ready").await;
    for reason in ["ImagePullBackOff", "CrashLoopBackOff", "RunContainerError"] {
        bed.event("web", reason).await;
        assert_eq!(bed.events("web", reason).await.len(), 1, "{reason}");
    }
    assert!(bed.events("web", "ContainerCreating").await.is_empty());
    // While the Pod's status changes, the operator does not read its node, except in a reconcile that its own status
    // write triggered.
    let requests = bed.plane.audit().requests(since).await.unwrap();
    let reads = requests
        .iter()
        .filter(|request| request.subject.name == "status-node" && request.subject.verb == "get");
    let operator_reads = reads
        .filter(|request| request.subject.user.ends_with(ACCOUNT))
        .count();
    assert!(operator_reads < 4, "read {operator_reads} times");
}

async fn failed_pod_is_recreated_with_backoff(bed: Bed) {
    let least = Duration::from_millis(100);
    let settings = Settings::default()
        .flag("--backoff-min=100ms")
        .flag("--backoff-max=5m");
    let _operator = Operator::start(&bed, settings).await;
    bed.app("web", json!({ "image": "nginx" })).await;
    bed.app_has_reason("web", "PodPending").await;
    let mut pod = bed.pod("web").await.unwrap();
    let ends = [
        json!({ "phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory." }),
        json!({ "phase": "Failed" }),
        json!({ "phase": "Succeeded" }),
        json!({ "phase": "Failed", "reason": "NodeShutdown" }),
    ];
    for (times, end) in (0u32..).zip(ends) {
        let failed = Instant::now();
        bed.pod_is("web", end).await;
        pod = bed.another("web", &pod).await;
        let delay = least * 2u32.pow(times);
        assert!(
            failed.elapsed() >= delay,
            "recreated after {:?}, the {times}. time",
            failed.elapsed()
        );
        bed.app_has_reason("web", "PodPending").await;
    }
    let message = bed.event("web", "PodFailed").await;
    assert_eq!(
        message,
        "web-pod failed: Evicted: The node was low on resource: memory."
    );
    assert_eq!(
        bed.events("web", "PodFailed").await.len(),
        1,
        "until the app is ready"
    );
    bed.event("web", "PodSucceeded").await;
    // A change of the spec meanwhile takes effect immediately.
    bed.pod_is("web", json!({ "phase": "Failed" })).await;
    bed.patch::<MyApp>("web", json!({ "spec": { "image": "nginx:2" } }))
        .await;
    let pod = bed.another("web", &pod).await;
    assert_eq!(
        pod.spec.unwrap().containers[0].image.as_deref(),
        Some("nginx:2")
    );
}

async fn request_recreates_a_failed_pod_at_once(bed: Bed) {
    let settings = Settings::default()
        .flag("--backoff-min=10m")
        .flag("--backoff-max=10m");
    let _operator = Operator::start(&bed, settings).await;
    bed.app("web", json!({ "image": "nginx" })).await;
    for request in ["one", "two"] {
        bed.app_has_reason("web", "PodPending").await;
        let pod = bed.pod("web").await.unwrap();
        bed.pod_is("web", json!({ "phase": "Failed" })).await;
        bed.app_has_reason("web", "PodFailed").await;
        let annotations = json!({ "quartermaster.dev/requested-at": request });
        bed.patch::<MyApp>("web", json!({ "metadata": { "annotations": annotations } }))
            .await;
        bed.another("web", &pod).await;
    }
}

/// Creates a `MyApp` whose Pod ran on this node, and is no longer ready.
async fn stalled(bed: &Bed, node: &str) -> Pod {
    bed.node(node, "True", "fine").await;
    bed.app("web", json!({ "image": "nginx" })).await;
    bed.app_has_reason("web", "PodPending").await;
    bed.bind("web", node).await;
    bed.pod_is("web", running(true)).await;
    let pod = bed.app_runs("web").await;
    bed.pod_is("web", running(false)).await;
    bed.app_has_reason("web", "PodNotReady").await;
    pod
}

async fn pod_of_a_deleted_node_is_replaced(bed: Bed) {
    let _operator = Operator::start(&bed, Settings::default()).await;
    let pod = stalled(&bed, "gone-node").await;
    let since = bed.plane.audit().mark().await.unwrap();
    Api::<Node>::all(bed.client.clone())
        .delete("gone-node", &DeleteParams::default())
        .await
        .unwrap();
    let message = bed.app_has_reason("web", "NodeNotFound").await;
    assert_eq!(
        message,
        "node gone-node of web-pod no longer exists; the operator recreates the Pod once Kubernetes has deleted it"
    );
    let terminating = bed
        .until("web-pod", "is being deleted", |pod: &Pod| {
            pod.metadata.deletion_timestamp.is_some()
        })
        .await;
    assert_eq!(terminating.uid(), pod.uid());
    assert_eq!(
        terminating.metadata.deletion_grace_period_seconds,
        Some(30),
        "with the grace period of the Pod"
    );
    bed.marker("marker").await;
    assert_eq!(bed.requests(since).await["delete pods web-pod"], 1);
    bed.app_has_reason("web", "NodeNotFound").await;
    bed.pod_ends("web").await;
    bed.another("web", &pod).await;
    bed.app_has_reason("web", "PodPending").await;
    assert_eq!(bed.events("web", "NodeNotFound").await.len(), 1);
}

async fn unreachable_node_is_awaited(bed: Bed) {
    let mut operator = Operator::start(&bed, Settings::default()).await;
    let pod = stalled(&bed, "quiet-node").await;
    bed.node(
        "quiet-node",
        "Unknown",
        "Kubelet stopped posting node status.",
    )
    .await;
    let message = bed.app_has_reason("web", "NodeNotReady").await;
    assert!(
        message.contains("Said: Kubelet stopped posting node status."),
        "{message}"
    );
    assert!(
        message.contains("kubectl delete node quiet-node"),
        "{message}"
    );
    bed.event("web", "NodeNotReady").await;
    let since = bed.plane.audit().mark().await.unwrap();
    // A restarted operator does not repeat its earlier writes.
    operator.kill();
    operator.restart();
    operator.ready().await;
    bed.marker("marker").await;
    let mut reads = bed.requests(since).await;
    reads.remove("patch myapps/status marker");
    assert_eq!(
        reads,
        [].into(),
        "nothing is deleted, and no Event repeated"
    );
    bed.node("quiet-node", "True", "fine").await;
    bed.app_has_reason("web", "PodNotReady").await;
    bed.pod_is("web", running(true)).await;
    assert_eq!(bed.app_runs("web").await.uid(), pod.uid());
    assert_eq!(bed.events("web", "NodeNotReady").await.len(), 1);
}

async fn terminating_pod_is_awaited(bed: Bed) {
    let _operator = Operator::start(&bed, Settings::default()).await;
    bed.node("going-node", "True", "fine").await;
    bed.app("web", json!({ "image": "nginx:1" })).await;
    bed.app_has_reason("web", "PodPending").await;
    bed.bind("web", "going-node").await;
    bed.pod_is("web", running(true)).await;
    let pod = bed.app_runs("web").await;
    let since = bed.plane.audit().mark().await.unwrap();
    bed.patch::<MyApp>("web", json!({ "spec": { "image": "nginx:2" } }))
        .await;
    let message = bed.app_has_reason("web", "ChildTerminating").await;
    assert_eq!(
        message,
        "web-pod is being deleted; the operator recreates it afterwards"
    );
    // Further changes of the spec cause no further deletion, not even the change back.
    for image in ["nginx:3", "nginx:1"] {
        bed.patch::<MyApp>("web", json!({ "spec": { "image": image } }))
            .await;
        bed.app_has_reason("web", "ChildTerminating").await;
    }
    assert_eq!(bed.requests(since).await["delete pods web-pod"], 1);
    bed.pod_ends("web").await;
    let pod = bed.another("web", &pod).await;
    assert_eq!(
        pod.spec.unwrap().containers[0].image.as_deref(),
        Some("nginx:1")
    );
    bed.app_has_reason("web", "PodPending").await;
    assert!(bed.events("web", "ChildTerminating").await.is_empty());

    // A Pod that is deleted with its MyApp is not recreated.
    bed.bind("web", "going-node").await;
    bed.pod_is("web", running(true)).await;
    bed.app_runs("web").await;
    let foreground = DeleteParams::foreground();
    bed.api::<MyApp>().delete("web", &foreground).await.unwrap();
    bed.marker("deleted").await;
    bed.pod_ends("web").await;
    bed.marker("marker").await;
    assert!(bed.pod("web").await.is_none());
}
