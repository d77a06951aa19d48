//! `quartermaster uninstall --keep-children` while the operator is frozen, and its messages if it is interrupted.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use qm_api::{AppService, MyApp};
use serde_json::json;

use super::Run;
use super::uninstall::{ALL, Scene};
use crate::support::{Bed, Operator, Settings};

#[tokio::test]
async fn keep_children_waits_for_a_frozen_leader() {
    let shared = Bed::shared("frozen").await;
    let scene = Scene::on(shared.plane.clone(), "uninstall-frozen").await;
    // The Lease does not expire while the operator is frozen.
    let flags = [
        "--leader-elect",
        "--leader-election-id=frozen",
        "--leader-elect-lease-duration=10m",
        "--leader-elect-renew-deadline=9m",
    ];
    let settings = flags.into_iter().fold(scene.settings(), Settings::flag);
    let mut operator = Operator::start(&scene.bed, settings).await;
    scene.all_ready().await;
    let here = scene.bed.namespace.as_str();
    let run = Run::on(&scene.bed);
    let arguments = [
        "uninstall",
        "-n",
        here,
        "--keep-children",
        "--yes",
        "--leader-election-id=frozen",
    ];
    let apps = ["appservices.kosmos.io/app", "myapps.demo.rtfm.co.ua/banner"];
    let undo = |resources: &[&str]| {
        format!(
            "kubectl patch {} -n {here} --type=merge -p '{{\"spec\":{{\"suspend\":null}}}}'",
            resources.join(" ")
        )
    };
    operator.child().freeze().unwrap();

    // Longer than --stalled-after, which does not apply while a Lease is valid.
    let output = run
        .ends(1, &[&arguments[..], &["--timeout=40s"]].concat())
        .await;
    for title in ["myapp/banner", "appservice/app"] {
        let waits = format!(
            "waiting for {title} in {here}: the operator has not observed spec.suspend yet\n"
        );
        assert!(output.contains(&waits), "{output}");
    }
    let app: AppService = scene.bed.api().get("app").await.unwrap();
    let pod: MyApp = scene.bed.api().get("banner").await.unwrap();
    assert_eq!(
        (
            app.metadata.deletion_timestamp,
            pod.metadata.deletion_timestamp
        ),
        (None, None),
        "{output}"
    );
    assert_eq!(
        (app.spec.suspend, pod.spec.suspend),
        (Some(true), Some(true))
    );
    // The changes until then are listed, and nothing else, with one command that undoes them.
    let (_, changed) = output
        .split_once("\nThese objects were changed but not deleted. To undo the changes:\n")
        .unwrap_or_else(|| panic!("{output}"));
    assert_eq!(changed.trim(), undo(&apps), "{output}");
    let suspended = async || {
        let app: AppService = scene.bed.api().get("app").await.unwrap();
        let pod: MyApp = scene.bed.api().get("banner").await.unwrap();
        (app.spec.suspend, pod.spec.suspend)
    };
    let shell = Run::on(&scene.bed).shell(&scene.bed);
    shell.ends(0, &["-c", changed.trim()]).await;
    assert_eq!(suspended().await, (None, None));
    // An interrupt lists the changes, too. An object that was suspended before is not changed.
    scene
        .bed
        .patch::<AppService>("app", json!({ "spec": { "suspend": true } }))
        .await;
    for signal in ["INT", "TERM"] {
        let mut started = run.start(&arguments);
        started
            .prints(&format!("waiting for myapp/banner in {here}"))
            .await;
        started.signal(signal).await;
        let output = started.ends(1).await;
        let undo = undo(&apps[1..]);
        assert!(
            output.contains("\nInterrupted. Run the command again") && output.contains(&undo),
            "{signal}: {output}"
        );
        shell.ends(0, &["-c", &undo]).await;
        assert_eq!(suspended().await, (Some(true), None));
    }

    // Once the operator continues, the command finishes.
    let mut started = run.start(&arguments);
    started
        .prints(&format!("waiting for myapp/banner in {here}"))
        .await;
    operator.child().thaw().unwrap();
    started.ends(0).await;
    assert_eq!(
        (scene.remaining().await, scene.children().await),
        (vec![], ALL.to_vec())
    );
    let app: Deployment = scene.bed.api().get("app").await.unwrap();
    let pod: Pod = scene.bed.api().get("banner-pod").await.unwrap();
    assert_eq!(
        (json!(app.owner_references()), json!(pod.owner_references())),
        (json!([]), json!([]))
    );
}
