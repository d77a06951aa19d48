//! Document 003, word for word except for Minikube and the logs, which no container writes here.

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use qm_api::MyApp;
use serde_json::json;

use super::is_owned_by;
use crate::support::{Bed, Operator, Settings};

const SAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/config/samples/demo_v1_myapp.yaml"
);

#[tokio::test]
async fn document_003_works_as_printed() {
    let bed = Bed::on_own_plane("myapp").await;
    let kubectl = async |arguments: &[&str]| bed.plane.run_kubectl(arguments, "").await.unwrap();
    let line = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");

    assert!(
        kubectl(&["api-versions"])
            .await
            .contains("demo.rtfm.co.ua/v1")
    );
    let resources = line(&kubectl(&["api-resources", "--api-group=demo.rtfm.co.ua"]).await);
    assert!(
        resources.contains("myapps ma demo.rtfm.co.ua/v1 true MyApp"),
        "{resources}"
    );
    assert_eq!(
        kubectl(&["apply", "-f", SAMPLE]).await.trim(),
        "myapp.demo.rtfm.co.ua/example-app created"
    );
    assert!(kubectl(&["get", "myapp"]).await.contains("example-app"));

    // The object exists before the operator starts, as in the document.
    let _operator = Operator::start(&bed, Settings::default().whole_cluster()).await;
    kubectl(&[
        "wait",
        "--for=condition=Ready",
        "myapp/example-app",
        "--timeout=600s",
    ])
    .await;
    let pods = line(&kubectl(&["get", "pod"]).await);
    assert!(pods.contains("example-app-pod 1/1 Running 0"), "{pods}");
    let apps = line(&kubectl(&["get", "myapp"]).await);
    assert!(apps.contains("NAME IMAGE PHASE READY REASON AGE"), "{apps}");
    assert!(
        apps.contains("example-app nginx:latest Running true Ready"),
        "{apps}"
    );
    let all = kubectl(&["get", "quartermaster", "-A"]).await;
    assert!(all.contains("myapp.demo.rtfm.co.ua/example-app"), "{all}");

    let pod: Pod = Api::namespaced(bed.client.clone(), "default")
        .get("example-app-pod")
        .await
        .unwrap();
    let app: MyApp = Api::namespaced(bed.client.clone(), "default")
        .get("example-app")
        .await
        .unwrap();
    assert!(is_owned_by(&pod, &app));
    assert_eq!(
        app.status.unwrap().pod_name.as_deref(),
        Some("example-app-pod")
    );
    assert_eq!(pod.metadata.labels.unwrap()["app"], "example-app");
    let container = serde_json::to_value(&pod.spec.unwrap().containers[0]).unwrap();
    assert_eq!(container["name"], "example-app");
    assert_eq!(container["image"], "nginx:latest");
    assert_eq!(
        container["ports"],
        json!([{ "containerPort": 80, "protocol": "TCP" }])
    );
    let banner = "This pod was created by MyApp operator \u{1F680}";
    assert_eq!(
        container["env"],
        json!([{ "name": "BANNER", "value": banner }])
    );
    assert_eq!(container["command"], json!(["/bin/sh", "-c"]));
}
