//! CRDs of another program, or of another version of this program.

use k8s_openapi::api::coordination::v1::Lease;
use qm_api::{AppService, ConfigMapSync};
use quartermaster::kinds;
use serde_json::{Value, json};

use super::Run;
use crate::support::Bed;

/// Returns the name of the CRD of a controller.
fn named(controller: &str) -> String {
    kinds::KINDS
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
    let bed = Bed::own_with(options, "foreign").await;
    let run = Run::on(&bed);
    // Document 002's program installs a CRD without the annotation; another version of this program sets another value.
    let (theirs, older) = (named("appservice"), named("myapp"));
    let (theirs, older) = (theirs.as_str(), older.as_str());
    let mark = "quartermaster.dev/schema";
    bed.kubectl(&["annotate", "crd", theirs, &format!("{mark}-")])
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
        "\nNot served: {theirs} is not this program's: install its CRDs (quartermaster crds"
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
    assert_eq!(names, [older, theirs], "{report}");
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
        text.contains("The operator runs: me leads\n") && !text.contains("quartermaster crds"),
        "{text}"
    );
    assert!(
        text.contains(&format!(
            "\nServed only by an operator of its version: {older} has schema 0-abc, not "
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
    let said = run.ends(1, &["uninstall", "--purge", "--yes"]).await;
    assert!(
        said.contains(&format!("CRD {synced} is not this program's"))
            && said.contains("Nothing was deleted."),
        "{said}"
    );
    assert!(said.contains("--force-conflicts -f -"), "{said}");
    bed.patch::<ConfigMapSync>("sync", json!({ "metadata": { "finalizers": null } }))
        .await;
    bed.kubectl(&["annotate", "crd", &synced, &format!("{mark}=0-abc")])
        .await;

    let alone = format!("Left alone, with its objects: CRD {theirs}, which is not this program's");
    let said = run.ends(2, &["uninstall", "--purge"]).await;
    assert!(
        said.contains(&alone) && !said.contains("AppService"),
        "{said}"
    );
    let said = run.ends(0, &["uninstall", "--purge", "--yes"]).await;
    assert!(said.ends_with("All is gone.\n"), "{said}");
    assert_eq!(
        bed.kubectl(&["get", "crds", "-o", "name"]).await.trim(),
        format!("customresourcedefinition.apiextensions.k8s.io/{theirs}")
    );
    let app = bed.api::<AppService>().get("app").await.unwrap();
    assert_eq!(app.metadata.deletion_timestamp, None);
    let said = run.ends(0, &["uninstall", "--purge", "--yes"]).await;
    assert_eq!(said.lines().next(), Some("There is nothing to delete."));
    assert!(said.contains(&alone), "{said}");

    // No command is recommended that needs a missing CRD.
    let said = run
        .ends(1, &["history", "tf/any", "-n", &bed.namespace])
        .await;
    assert!(
        said.contains(
            "the CRD of TrackedFields is not installed (quartermaster crds | kubectl apply"
        ),
        "{said}"
    );
    let text = run.ends(0, &["status", "-n", "default"]).await;
    assert!(
        text.starts_with("There is nothing of Quartermaster in namespace default yet\n"),
        "{text}"
    );
}
