//! What kubectl shows: the documents' manifests as they stand, columns, the category, `kubectl explain`.

use serde_json::json;
use testbed::control_plane::{ControlPlane, Options};

use super::install;

const SAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/samples");

#[tokio::test]
async fn samples_apply_and_columns_answer() {
    let plane = ControlPlane::start(Options::apiserver_only()).await.unwrap();
    install(&plane).await;
    let kubectl = async |args: &[&str], input: &str| plane.run_kubectl(args, input).await.unwrap();

    // The document's three, then all samples of ours; unknown fields are errors.
    kubectl(&["apply", "--validate=strict", "--warnings-as-errors", "-k", SAMPLES], "").await;
    for file in std::fs::read_dir(SAMPLES).unwrap() {
        let path = file.unwrap().path();
        if !path.ends_with("kustomization.yaml") {
            let path = path.display().to_string();
            kubectl(&["apply", "--validate=strict", "--warnings-as-errors", "-f", &path], "").await;
        }
    }

    // Nothing of ours is written into what users wrote.
    let stored = kubectl(&["get", "cp/telegram-cp", "-o", "jsonpath={.spec}"], "").await;
    let stored: serde_json::Value = serde_json::from_str(&stored).unwrap();
    let wrote = json!({
        "type": "Telegram",
        "telegramSpec": { "chatId": 12_345_678 },
        "apiToken": { "secretName": "telegram-cp-token", "key": "token" },
    });
    assert_eq!(stored, wrote);

    let entry = |value, delivery| json!({ "time": "2026-01-01T00:00:00Z", "action": "Updated", "value": value, "delivery": delivery });
    let status = json!({ "status": [entry("1", "Delivered"), entry("3", "Pending")] }).to_string();
    let status = ["patch", "tf/nginx-deployment-replicas", "--subresource=status", "--type=merge", "-p", &status];
    kubectl(&status, "").await;
    kubectl(&["annotate", "tf/nginx-deployment-replicas", "quartermaster.dev/waiting=TargetNotFound: why"], "").await;
    let condition = json!({
        "type": "Ready", "status": "False", "reason": "SecretNotFound", "message": "create it",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let status = json!({ "status": { "initialized": false, "ready": false, "conditions": [condition] } }).to_string();
    kubectl(&["patch", "cp/telegram-cp", "--subresource=status", "--type=merge", "-p", &status], "").await;

    let columns = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let fields = columns(&kubectl(&["get", "tf"], "").await);
    let row = "nginx-deployment-replicas Deployment nginx replicas 3 Pending TargetNotFound: why";
    assert!(fields.contains("NAME KIND TARGET FIELD VALUE DELIVERY WAITING AGE"), "{fields}");
    assert!(fields.contains(row), "{fields}");
    let points = columns(&kubectl(&["get", "cp", "telegram-cp", "-o", "wide"], "").await);
    assert!(points.contains("NAME TYPE READY REASON MESSAGE AGE"), "{points}");
    assert!(points.contains("telegram-cp Telegram false SecretNotFound create it"), "{points}");
    let ready = json!({ "type": "Ready", "status": "False", "reason": "ImagePullBackOff", "message": "no such image" });
    let status = json!({ "status": { "replicas": 2, "availableReplicas": 1, "conditions": [ready] } }).to_string();
    kubectl(&["patch", "appsvc/appservice-sample", "--subresource=status", "--type=merge", "-p", &status], "").await;
    let apps = columns(&kubectl(&["get", "appsvc", "-o", "wide"], "").await);
    assert!(apps.contains("NAME REPLICAS AVAILABLE READY REASON IMAGE MESSAGE AGE"), "{apps}");
    assert!(apps.contains("appservice-sample 2 1 False ImagePullBackOff nginx:1.29 no such image"), "{apps}");
    let all = kubectl(&["get", "quartermaster", "-A"], "").await;
    assert!(all.contains("contactpoint.tg.azamaton.ru/telegram-cp"), "{all}");
    assert!(all.contains("trackedfield.tg.azamaton.ru/nginx-deployment-replicas"), "{all}");

    let explained = kubectl(&["explain", "trackedfield.spec.field"], "").await;
    assert!(explained.contains("JSONPath"), "{explained}");
}
