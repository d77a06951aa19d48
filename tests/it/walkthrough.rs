//! Document 000, word for word except for the misprint and the namespace.

use testbed::bot_api::{BotApi, Chat, Kind};

use crate::support::{Bed, Operator, SOON, SYSTEM, Settings, TOKEN};

const SAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/samples");

#[tokio::test]
async fn document_000_works_as_printed() {
    let bed = Bed::on_own_plane("walkthrough").await;
    let telegram = BotApi::start().unwrap();
    telegram.add_token(TOKEN);
    telegram.add_chat(Chat::new(Kind::Private, 12_345_678).unwrap());
    let _operator = Operator::start(
        &bed,
        Settings::default()
            .telegram(&telegram.url())
            .whole_cluster(),
    )
    .await;
    let kubectl = async |arguments: &[&str]| bed.plane.run_kubectl(arguments, "").await.unwrap();
    let sent = async |count: usize| {
        let messages = telegram
            .wait_for(SOON, |messages| messages.len() >= count)
            .await
            .unwrap();
        messages.last().unwrap().text.clone()
    };

    let token = format!("--from-literal=token={TOKEN}");
    kubectl(&[
        "-n",
        SYSTEM,
        "create",
        "secret",
        "generic",
        "telegram-cp-token",
        &token,
    ])
    .await;
    let (deploy, point) = (
        format!("{SAMPLES}/deploy.yaml"),
        format!("{SAMPLES}/tg_v1_contactpoint.yaml"),
    );
    kubectl(&["apply", "-f", &deploy, "-f", &point]).await;
    assert_eq!(sent(1).await, "Contact point is ready");
    kubectl(&["wait", "--for=condition=Ready", "contactpoint/telegram-cp"]).await;
    let ready = kubectl(&[
        "get",
        "ContactPoint/telegram-cp",
        "-o",
        "jsonpath={.status.initialized} {.status.ready}",
    ]);
    assert_eq!(ready.await, "true true");

    kubectl(&["apply", "-f", &format!("{SAMPLES}/tg_v1_trackedfield.yaml")]).await;
    assert!(
        sent(2)
            .await
            .starts_with("Resource kind: Deployment\nName: nginx\nStatus: Created\nValue: 1\n")
    );
    kubectl(&["scale", "deployment", "nginx", "--replicas", "3"]).await;
    assert!(
        sent(3)
            .await
            .starts_with("Resource kind: Deployment\nName: nginx\nStatus: Updated\nValue: 3\n")
    );
    kubectl(&["delete", "deployment", "nginx"]).await;
    assert!(
        sent(4)
            .await
            .starts_with("Resource kind: Deployment\nName: nginx\nStatus: Deleted\nValue: -1\n")
    );

    let status = [
        "get",
        "TrackedField/nginx-deployment-replicas",
        "-o",
        "jsonpath={.status}",
    ];
    let status: serde_json::Value = serde_json::from_str(&kubectl(&status).await).unwrap();
    let entries: Vec<_> = status
        .as_array()
        .unwrap()
        .iter()
        .map(|e| (e["action"].as_str(), e["value"].as_str()))
        .collect();
    let expected = [
        (Some("Created"), Some("1")),
        (Some("Updated"), Some("3")),
        (Some("Deleted"), None),
    ];
    assert_eq!(entries, expected);
    let all = kubectl(&["get", "quartermaster", "-A"]).await;
    assert!(
        all.contains("telegram-cp") && all.contains("nginx-deployment-replicas"),
        "{all}"
    );
    // On a slow machine two messages may arrive closer together than they were sent; the pause that an answer requests
    // is kept.
    assert!(
        telegram
            .rejected()
            .iter()
            .all(|rejected| rejected.code == Some(429) && !rejected.violation)
    );
}
