//! Output of kubectl: the documents' manifests, unchanged, columns, the category, `kubectl explain`.

use serde_json::json;

use crate::support::Bed;

const SAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/samples");

#[tokio::test]
async fn samples_apply_and_kubectl_prints_columns() {
    // The samples use the namespace default, where no other test of this control plane has objects.
    let plane = Bed::without_controllers("printed").await.plane;
    let kubectl = async |args: &[&str], input: &str| plane.run_kubectl(args, input).await.unwrap();

    // The document's three, then all samples of this repository; unknown fields are errors.
    kubectl(
        &[
            "apply",
            "--validate=strict",
            "--warnings-as-errors",
            "-k",
            SAMPLES,
        ],
        "",
    )
    .await;
    for file in std::fs::read_dir(SAMPLES).unwrap() {
        let path = file.unwrap().path();
        if !path.ends_with("kustomization.yaml") {
            let path = path.display().to_string();
            // No controller-manager counts here, and a quota without a count rejects everything.
            if path.ends_with("v1_resourcequota.yaml") {
                kubectl(
                    &[
                        "apply",
                        "--dry-run=server",
                        "--validate=strict",
                        "-f",
                        &path,
                    ],
                    "",
                )
                .await;
                continue;
            }
            kubectl(
                &[
                    "apply",
                    "--validate=strict",
                    "--warnings-as-errors",
                    "-f",
                    &path,
                ],
                "",
            )
            .await;
        }
    }

    // The apiserver adds no defaults to the spec that the user wrote.
    let stored = kubectl(&["get", "cp/telegram-cp", "-o", "jsonpath={.spec}"], "").await;
    let stored: serde_json::Value = serde_json::from_str(&stored).unwrap();
    let wrote = json!({
        "type": "Telegram",
        "telegramSpec": { "chatId": 12_345_678 },
        "apiToken": { "secretName": "telegram-cp-token", "key": "token" },
    });
    assert_eq!(stored, wrote);

    // kstatus waits for an object that no operator has observed yet; the status of a TrackedField is a list.
    for (object, observed) in [
        ("cp/telegram-cp", "-1"),
        ("tfs/images", "-1"),
        ("cmsync/configmapsync-sample", "-1"),
        ("appsvc/appservice-sample", "-1"),
        ("ma/example-app", "-1"),
        ("mying/myapp", "-1"),
        ("tf/nginx-deployment-replicas", ""),
    ] {
        let path = "jsonpath={.status.observedGeneration}";
        let printed = kubectl(&["get", object, "-o", path], "").await;
        assert_eq!(printed, observed, "{object}");
    }

    let entry = |value, delivery| json!({ "time": "2026-01-01T00:00:00Z", "action": "Updated", "value": value, "delivery": delivery });
    let field = "tf/nginx-deployment-replicas";
    let record = async |entries: serde_json::Value| {
        let status = json!({ "status": entries }).to_string();
        kubectl(
            &[
                "patch",
                field,
                "--subresource=status",
                "--type=merge",
                "-p",
                &status,
            ],
            "",
        )
        .await;
    };
    record(json!([entry("1", "Delivered"), entry("3", "Pending")])).await;
    let waiting = [
        "quartermaster.dev/waiting=TargetNotFound: why",
        "quartermaster.dev/waiting-reason=TargetNotFound",
    ];
    kubectl(&[&["annotate", field][..], &waiting].concat(), "").await;
    let condition = json!({
        "type": "Ready", "status": "False", "reason": "SecretNotFound", "message": "create it",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let status =
        json!({ "status": { "initialized": false, "ready": false, "conditions": [condition] } })
            .to_string();
    kubectl(
        &[
            "patch",
            "cp/telegram-cp",
            "--subresource=status",
            "--type=merge",
            "-p",
            &status,
        ],
        "",
    )
    .await;

    let columns = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let fields = columns(&kubectl(&["get", "tf"], "").await);
    let row = "nginx-deployment-replicas Deployment nginx replicas 3 Pending TargetNotFound";
    assert!(
        fields.contains("NAME KIND TARGET FIELD VALUE DELIVERY WAITING AGE"),
        "{fields}"
    );
    assert!(
        fields.contains(&format!("{row} ")) && !fields.contains("why"),
        "{fields}"
    );
    let wide = columns(&kubectl(&["get", "tf", "-o", "wide"], "").await);
    assert!(
        wide.contains("NAME KIND TARGET FIELD VALUE DELIVERY WAITING LAST-VALUE MESSAGE AGE"),
        "{wide}"
    );
    assert!(
        wide.contains(&format!("{row} 3 TargetNotFound: why ")),
        "{wide}"
    );
    // Text that the operator displays in place of a long value, and of another target's value.
    for (display, printed) in [
        ("short", "replicas short Pending TargetNotFound"),
        ("", "replicas Pending TargetNotFound"),
    ] {
        let mut long = entry("a long one", "Pending");
        long["displayValue"] = json!(display);
        record(json!([entry("1", "Delivered"), long])).await;
        let fields = columns(&kubectl(&["get", "tf"], "").await);
        assert!(fields.contains(printed), "{fields}");
    }
    let points = columns(&kubectl(&["get", "cp", "telegram-cp", "-o", "wide"], "").await);
    assert!(
        points.contains("NAME TYPE READY REASON MESSAGE AGE"),
        "{points}"
    );
    assert!(
        points.contains("telegram-cp Telegram false SecretNotFound create it"),
        "{points}"
    );
    let ready = json!({ "type": "Ready", "status": "False", "reason": "ImagePullBackOff", "message": "no such image" });
    let status =
        json!({ "status": { "replicas": 2, "availableReplicas": 1, "conditions": [ready] } })
            .to_string();
    kubectl(
        &[
            "patch",
            "appsvc/appservice-sample",
            "--subresource=status",
            "--type=merge",
            "-p",
            &status,
        ],
        "",
    )
    .await;
    let apps = columns(&kubectl(&["get", "appsvc", "-o", "wide"], "").await);
    assert!(
        apps.contains("NAME REPLICAS AVAILABLE READY REASON IMAGE MESSAGE AGE"),
        "{apps}"
    );
    assert!(
        apps.contains("appservice-sample 2 1 False ImagePullBackOff nginx:1.29 no such image"),
        "{apps}"
    );
    let all = kubectl(&["get", "quartermaster", "-A"], "").await;
    assert!(
        all.contains("contactpoint.tg.azamaton.ru/telegram-cp"),
        "{all}"
    );
    assert!(
        all.contains("trackedfield.tg.azamaton.ru/nginx-deployment-replicas"),
        "{all}"
    );

    let explained = kubectl(&["explain", "trackedfield.spec.field"], "").await;
    assert!(explained.contains("JSONPath"), "{explained}");
}
