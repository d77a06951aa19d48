//! CRDs of another program, or of another version of this program.

use k8s_openapi::api::coordination::v1::Lease;
use qm_api::{AppService, ConfigMapSync};
use quartermaster::controllers;
use serde_json::{Value, json};

use super::Run;
use crate::support::Bed;

/// Returns the name of the CRD of a controller.
fn named(controller: &str) -> String {
    controllers::KINDS
        .iter()
        .find(|kind| kind.controller == controller)
        .unwrap()
        .crd_name()
}

#[tokio::test]
async fn foreign_crd_is_reported_and_not_deleted() {
    let options = testbed::Options {
        controller_manager: true,
        ..testbed::Options::apiserver_only()
    };
    let bed = Bed::on_own_plane_with(options, "foreign").await;
    let run = Run::on(&bed);
    // Document 002's program installs a CRD without the annotation; another version of this program sets another value.
    let (foreign, older) = (named("appservice"), named("myapp"));
    let (foreign, older) = (foreign.as_str(), older.as_str());
    let mark = "quartermaster.dev/schema";
    bed.kubectl(&["annotate", "crd", foreign, &format!("{mark}-")])
        .await;
    bed.kubectl(&[
        "annotate",
        "crd",
        older,
        &format!("{mark}=0-abc"),
        "--overwrite",
    ])
    .await;
    let spec = json!({ "size": 1, "image": "nginx:1", "ports": [{ "port": 80 }] });
    bed.create::<AppService>("app", json!({ "spec": spec }))
        .await;
    bed.webhook("hook", "http://127.0.0.1:1").await;

    let text = run.ends(0, &["status"]).await;
    assert!(text.contains(&format!(
        "\nNot served: {foreign} belongs to another program: install this program's CRDs (quartermaster crds"
    )));
    assert!(
        text.contains(&format!("\nNot served: {older} has schema 0-abc, not ")),
        "{text}"
    );
    let report: Value =
        serde_json::from_str(&run.ends(0, &["status", "-o", "json"]).await).unwrap();
    let names: Vec<_> = report["incompatibleCRDs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, [older, foreign], "{report}");
    assert_eq!(
        (
            &report["summary"]["notObserved"],
            &report["summary"]["notReady"]
        ),
        (&json!(2), &json!(0))
    );
    // A running operator may have that version.
    let now = jiff::Timestamp::now();
    let spec = json!({ "holderIdentity": "me", "leaseDurationSeconds": 60, "renewTime": format!("{now:.6}") });
    bed.create::<Lease>("newer", json!({ "spec": spec })).await;
    let runs = [
        "status",
        "--leader-election-id=newer",
        "--operator-namespace",
        &bed.namespace,
    ];
    let text = run.ends(0, &runs).await;
    assert!(
        text.contains("The operator is running: me is the leader\n"),
        "{text}"
    );
    let served =
        format!("Served only by an operator of its version: {older} has schema 0-abc, not ");
    let line = text.lines().find(|line| line.starts_with(&served));
    assert!(!line.unwrap().contains("quartermaster crds"), "{text}");
    // No version serves a CRD of another program.
    assert!(
        text.contains(&format!(
            "\nNot served: {foreign} belongs to another program: install this program's CRDs (quartermaster crds"
        )),
        "{text}"
    );

    // An object with a finalizer of this program blocks the deletion.
    let synced = named("configmapsync");
    let finalizers = json!({ "finalizers": ["quartermaster.dev/copies"] });
    let spec = json!({ "sourceNamespace": "default", "destinationNamespace": bed.namespace, "configMapName": "settings" });
    bed.create::<ConfigMapSync>("sync", json!({ "metadata": finalizers, "spec": spec }))
        .await;
    bed.kubectl(&["annotate", "crd", &synced, &format!("{mark}-")])
        .await;
    let output = run.ends(1, &["uninstall", "--purge", "--yes"]).await;
    assert!(
        output.contains(&format!("CRD {synced} belongs to another program"))
            && output.contains("Nothing was deleted."),
        "{output}"
    );
    assert!(output.contains("--force-conflicts -f -"), "{output}");
    bed.patch::<ConfigMapSync>("sync", json!({ "metadata": { "finalizers": null } }))
        .await;
    bed.kubectl(&["annotate", "crd", &synced, &format!("{mark}=0-abc")])
        .await;

    let alone = format!("CRD {foreign} and its objects stay: the CRD belongs to another program");
    let output = run.ends(2, &["uninstall", "--purge"]).await;
    assert!(
        output.contains(&alone) && !output.contains("AppService"),
        "{output}"
    );
    let output = run.ends(0, &["uninstall", "--purge", "--yes"]).await;
    assert!(output.ends_with("Everything is deleted.\n"), "{output}");
    assert_eq!(
        bed.kubectl(&["get", "crds", "-o", "name"]).await.trim(),
        format!("customresourcedefinition.apiextensions.k8s.io/{foreign}")
    );
    let app = bed.api::<AppService>().get("app").await.unwrap();
    assert_eq!(app.metadata.deletion_timestamp, None);
    let output = run.ends(0, &["uninstall", "--purge", "--yes"]).await;
    assert_eq!(output.lines().next(), Some("There is nothing to delete."));
    assert!(output.contains(&alone), "{output}");

    // No command is recommended that needs a missing CRD.
    let output = run
        .ends(1, &["history", "tf/any", "-n", &bed.namespace])
        .await;
    assert!(
        output.contains(
            "the CRD of TrackedFields is not installed (quartermaster crds | kubectl apply"
        ),
        "{output}"
    );
    let text = run.ends(0, &["status", "-n", "default"]).await;
    assert!(
        text.starts_with("There are no Quartermaster objects in namespace default yet\n"),
        "{text}"
    );
}
