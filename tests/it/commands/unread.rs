//! Commands whose output nobody reads to its end, as in `quartermaster uninstall --yes | grep -q ...`.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use quartermaster::api::{ConfigMapSync, ContactPoint};
use serde_json::json;

use super::Run;
use crate::support::Bed;

#[tokio::test]
async fn what_changes_something_goes_on_to_its_true_end() {
    let bed = Bed::shared("unread").await;
    let far = Bed::on(bed.plane.clone(), "unread-far").await;
    let (run, here) = (Run::on(&bed), bed.namespace.as_str());
    for name in ["one", "two"] {
        far.create::<ConfigMap>(name, json!({ "data": {} })).await;
        let spec = json!({ "sourceNamespace": here, "destinationNamespace": far.namespace, "configMapName": name });
        bed.create::<ConfigMapSync>(name, json!({ "spec": spec })).await;
    }
    assert_eq!(run.unread(&["adopt", "-n", here, "--yes"]).await, 0);
    for name in ["one", "two"] {
        let copy: ConfigMap = far.api().get(name).await.unwrap();
        assert_eq!(copy.annotations()["quartermaster.dev/adopt-by"], format!("{here}/{name}"));
    }

    bed.webhook("hook", "http://127.0.0.1:1").await;
    let theirs = json!({ "metadata": { "finalizers": ["example.com/theirs"] } });
    bed.patch::<ContactPoint>("hook", theirs).await;
    let arguments = ["uninstall", "-n", here, "--yes", "--timeout=3s"];
    assert_eq!(run.unread(&arguments).await, 1, "something is left");
    let point: ContactPoint = bed.api().get("hook").await.unwrap();
    assert!(point.metadata.deletion_timestamp.is_some());
    assert!(bed.api::<ConfigMapSync>().get_opt("one").await.unwrap().is_none());
    bed.patch::<ContactPoint>("hook", json!({ "metadata": { "finalizers": null } })).await;
    assert_eq!(run.unread(&["uninstall", "-n", here, "--yes"]).await, 0);

    // Whoever has read enough of what only shows something has all that they wanted.
    assert_eq!(run.unread(&["status", "-n", here]).await, 0);
}
