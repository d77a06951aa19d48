//! Document 002, word for word except for its own program.

use testbed::wait::until;

use crate::support::{Bed, Operator, SOON, Settings};

const SAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/config/samples/kosmos_v1_appservice.yaml"
);

#[tokio::test]
async fn document_002_works_as_printed() {
    let bed = Bed::on_own_plane("walkthrough").await;
    let _operator = Operator::start(&bed, Settings::default().whole_cluster()).await;
    let kubectl = async |arguments: &[&str]| bed.plane.run_kubectl(arguments, "").await.unwrap();
    let columns = async |arguments: &[&str]| {
        let table = kubectl(arguments).await;
        let message: Vec<_> = table
            .lines()
            .last()
            .unwrap()
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        message
    };

    let output = kubectl(&["apply", "-f", SAMPLE]).await;
    assert_eq!(
        output.trim(),
        "appservice.kosmos.io/appservice-sample created"
    );
    kubectl(&[
        "wait",
        "--for=condition=Ready",
        "appservice/appservice-sample",
        "--timeout=600s",
    ])
    .await;
    let app = columns(&["get", "AppService"]).await;
    assert_eq!(app[..5], ["appservice-sample", "2", "2", "True", "Ready"]);
    let deployment = columns(&["get", "deploy"]).await;
    assert_eq!(deployment[..4], ["appservice-sample", "2/2", "2", "2"]);
    let service = columns(&["get", "svc", "appservice-sample"]).await;
    assert_eq!((&*service[1], &*service[4]), ("NodePort", "80:30002/TCP"));
    let all = kubectl(&["get", "quartermaster", "-A"]).await;
    assert!(
        all.contains("appservice.kosmos.io/appservice-sample"),
        "{all}"
    );

    kubectl(&["scale", "appsvc/appservice-sample", "--replicas=3"]).await;
    kubectl(&[
        "wait",
        "--for=jsonpath={.status.availableReplicas}=3",
        "appsvc/appservice-sample",
        "--timeout=600s",
    ])
    .await;

    let output = kubectl(&["delete", "-f", SAMPLE]).await;
    assert!(
        output.starts_with("appservice.kosmos.io \"appservice-sample\" deleted"),
        "{output}"
    );
    // The garbage collector discovers new kinds only every 30 s.
    until("the app's children are deleted", SOON, async || {
        let left = kubectl(&[
            "get",
            "deploy,svc,rs,pods",
            "-l",
            "app=appservice-sample",
            "-o",
            "name",
        ])
        .await;
        anyhow::ensure!(left.trim().is_empty(), "{left}");
        Ok(Some(()))
    })
    .await
    .unwrap();
}
