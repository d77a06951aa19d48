//! `quartermaster uninstall --keep-children` while the operator stands still, and what it says when it does not come to its end.

use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use qm_api::{AppService, MyApp};
use serde_json::json;

use super::Run;
use super::uninstall::{ALL, Scene};
use crate::support::{Bed, Operator, Settings};

#[tokio::test]
async fn an_operator_that_leads_is_waited_for_however_long_it_stands_still() {
    let shared = Bed::shared("frozen").await;
    let scene = Scene::on(shared.plane.clone(), "uninstall-frozen").await;
    // Its Lease is good for all the time that it stands still here.
    let flags = [
        "--leader-elect",
        "--leader-election-id=frozen",
        "--lease-duration=10m",
        "--lease-renew-deadline=9m",
    ];
    let settings = flags.into_iter().fold(scene.settings(), Settings::flag);
    let mut operator = Operator::start(&scene.bed, settings).await;
    scene.well().await;
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
    let undo = |title: &str, plural: &str, name: &str| {
        format!(
            "  {title} in {here}: kubectl patch {plural}.demo.rtfm.co.ua {name} -n {here} --type=merge -p \
             '{{\"spec\":{{\"suspend\":null}}}}'\n"
        )
    };
    let banner = undo("myapp/banner", "myapps", "banner");
    operator.child().freeze().unwrap();

    // Longer than anybody is given of whom nothing is known.
    let said = run
        .ends(1, &[&arguments[..], &["--timeout=40s"]].concat())
        .await;
    for title in ["myapp/banner", "appservice/app"] {
        let waits = format!(
            "waiting for {title} in {here}: it is suspended, and the operator has not taken note of that yet\n"
        );
        assert!(said.contains(&waits), "{said}");
    }
    let app: AppService = scene.bed.api().get("app").await.unwrap();
    let pod: MyApp = scene.bed.api().get("banner").await.unwrap();
    assert_eq!(
        (
            app.metadata.deletion_timestamp,
            pod.metadata.deletion_timestamp
        ),
        (None, None),
        "{said}"
    );
    assert_eq!(
        (app.spec.suspend, pod.spec.suspend),
        (Some(true), Some(true))
    );
    // What it has changed by then is named, and nothing else.
    let (_, changed) = said
        .split_once("\nChanged, but not deleted. What has it as it was:\n")
        .unwrap_or_else(|| panic!("{said}"));
    assert!(
        changed.contains(&banner) && changed.contains("appservice/app in"),
        "{said}"
    );
    assert_eq!(changed.matches("kubectl patch").count(), 2, "{said}");
    // So it is when somebody has it stop, or the Pod that it runs in.
    for signal in ["INT", "TERM"] {
        let patch = r#"{"spec":{"suspend":null}}"#;
        scene
            .bed
            .kubectl(&[
                "patch",
                "myapps.demo.rtfm.co.ua",
                "banner",
                "--type=merge",
                "-p",
                patch,
            ])
            .await;
        assert_eq!(
            scene
                .bed
                .api::<MyApp>()
                .get("banner")
                .await
                .unwrap()
                .spec
                .suspend,
            None
        );
        let mut started = run.start(&arguments);
        started
            .says(&format!("waiting for myapp/banner in {here}"))
            .await;
        started.signal(signal).await;
        let said = started.ends(1).await;
        assert!(
            said.contains("\nInterrupted: run it again") && said.contains(&banner),
            "{signal}: {said}"
        );
    }

    // And once the operator goes on, so does this, to its end.
    let mut started = run.start(&arguments);
    started
        .says(&format!("waiting for myapp/banner in {here}"))
        .await;
    operator.child().thaw().unwrap();
    started.ends(0).await;
    assert_eq!(
        (scene.left().await, scene.children().await),
        (vec![], ALL.to_vec())
    );
    let app: Deployment = scene.bed.api().get("app").await.unwrap();
    let pod: Pod = scene.bed.api().get("banner-pod").await.unwrap();
    assert_eq!(
        (json!(app.owner_references()), json!(pod.owner_references())),
        (json!([]), json!([]))
    );
}
