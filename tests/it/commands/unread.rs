//! Commands whose reader ends first, as in `quartermaster uninstall --yes | grep -q ...`.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use qm_api::{ConfigMapSync, ContactPoint};
use serde_json::json;

use super::Run;
use crate::support::Bed;

#[tokio::test]
async fn changing_commands_finish_without_a_reader() {
    let bed = Bed::shared("unread").await;
    let far = Bed::on(bed.plane.clone(), "unread-far").await;
    let (run, here) = (Run::on(&bed), bed.namespace.as_str());
    for name in ["one", "two"] {
        far.create::<ConfigMap>(name, json!({ "data": {} })).await;
        let spec = json!({ "sourceNamespace": here, "destinationNamespace": far.namespace, "configMapName": name });
        bed.create::<ConfigMapSync>(name, json!({ "spec": spec }))
            .await;
    }
    assert_eq!(run.run_unread(&["adopt", "-n", here, "--yes"]).await, 0);
    for name in ["one", "two"] {
        let copy: ConfigMap = far.api().get(name).await.unwrap();
        assert_eq!(
            copy.annotations()["quartermaster.dev/adopt-by"],
            format!("{here}/{name}")
        );
    }

    bed.webhook("hook", "http://127.0.0.1:1").await;
    let with_finalizer = json!({ "metadata": { "finalizers": ["example.com/theirs"] } });
    bed.patch::<ContactPoint>("hook", with_finalizer).await;
    let arguments = ["uninstall", "-n", here, "--yes"];
    let meanwhile = async {
        let is_terminating = |point: &ContactPoint| point.metadata.deletion_timestamp.is_some();
        bed.until("hook", "is being deleted", is_terminating).await;
        bed.patch::<ContactPoint>("hook", json!({ "metadata": { "finalizers": null } }))
            .await;
    };
    let (code, ()) = tokio::join!(run.run_unread(&arguments), meanwhile);
    assert_eq!(code, 0);
    assert!(
        bed.api::<ContactPoint>()
            .get_opt("hook")
            .await
            .unwrap()
            .is_none()
    );
    for name in ["one", "two"] {
        assert!(
            bed.api::<ConfigMapSync>()
                .get_opt(name)
                .await
                .unwrap()
                .is_none()
        );
    }

    // A command that only shows something may end with its reader.
    assert_eq!(run.run_unread(&["status", "-n", here]).await, 0);
}
