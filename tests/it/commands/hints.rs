//! Printed commands, run unchanged: they select the cluster of the command that printed them.

use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use qm_api::{ConfigMapSync, ContactPoint};
use serde_json::json;
use testbed::process::Folder;

use super::Run;
use crate::support::Bed;

#[tokio::test]
async fn printed_commands_are_for_the_same_cluster() {
    let bed = Bed::shared("hints").await;
    let far = Bed::on(bed.plane.clone(), "hints-far").await;
    let (here, folder) = (bed.namespace.as_str(), Folder::new().unwrap());
    // Without the flags, another cluster is selected.
    let file = folder.path().join("that of work");
    std::fs::copy(bed.plane.admin_kubeconfig(), &file).unwrap();
    let file = file.to_str().unwrap();
    let config = async |arguments: &[&str]| {
        let all = [&["config", "--kubeconfig", file], arguments].concat();
        bed.plane.run_kubectl(&all, "").await.unwrap()
    };
    let current = config(&["current-context"]).await;
    config(&["rename-context", current.trim(), "the staging"]).await;
    config(&["set-cluster", "prod", "--server=https://127.0.0.1:1"]).await;
    config(&["set-context", "prod", "--cluster=prod"]).await;
    config(&["use-context", "prod"]).await;
    let run = Run::on(&bed).kubeconfig("/nowhere".into());
    let shell = Run::on(&bed).shell(&bed).kubeconfig("/nowhere".into());
    let there = ["--kubeconfig", file, "--context", "the staging"];

    far.create::<ConfigMap>("settings", json!({ "data": {} }))
        .await;
    let spec = json!({ "sourceNamespace": here, "destinationNamespace": far.namespace, "configMapName": "settings" });
    bed.create::<ConfigMapSync>("settings", json!({ "spec": spec }))
        .await;
    let output = run
        .ends(0, &[&["adopt", "-n", here], &there[..]].concat())
        .await;
    assert!(
        output.starts_with("Cluster: context the staging, https://127.0.0.1:"),
        "{output}"
    );
    let (_, command) = output
        .trim_end()
        .split_once("can be adopted: ")
        .unwrap_or_else(|| panic!("{output}"));
    shell.ends(0, &["-c", command]).await;
    let copy: ConfigMap = far.api().get("settings").await.unwrap();
    assert_eq!(
        copy.annotations()["quartermaster.dev/adopt-by"],
        format!("{here}/settings")
    );

    bed.webhook("hook", "http://127.0.0.1:1").await;
    let both =
        json!({ "metadata": { "finalizers": ["example.com/theirs", "quartermaster.dev/copies"] } });
    bed.patch::<ConfigMapSync>("settings", both).await;
    let way = [
        "--timeout=2m",
        "--stalled-after=1s",
        "--leader-election-id=nobody",
    ];
    let output = run
        .ends(
            1,
            &[&["uninstall", "-n", here, "--yes"], &way[..], &there[..]].concat(),
        )
        .await;
    let (_, command) = output
        .split_once("that program no longer runs: ")
        .unwrap_or_else(|| panic!("{output}"));
    // The operator's own finalizer may follow.
    let command = command.lines().next().unwrap();
    let command = command.split("; quartermaster.dev/").next().unwrap();
    shell.ends(0, &["-c", command]).await;
    let sync: ConfigMapSync = bed.api().get("settings").await.unwrap();
    assert_eq!(sync.finalizers(), ["quartermaster.dev/copies"]);
    assert!(
        bed.api::<ContactPoint>()
            .get_opt("hook")
            .await
            .unwrap()
            .is_none()
    );

    // The printed command works once the user adds the operator's namespace.
    let (_, command) = output
        .split_once("remove its finalizers: ")
        .unwrap_or_else(|| panic!("{output}"));
    let command = command
        .split(" (NAMESPACE is")
        .next()
        .unwrap()
        .replace("=NAMESPACE", "=quartermaster-system");
    let output = shell.ends(0, &["-c", &format!("{command} --yes")]).await;
    let (_, copies) = output
        .split_once(": kubectl ")
        .unwrap_or_else(|| panic!("{output}"));
    let copies = copies.lines().next().unwrap();
    shell.ends(0, &["-c", &format!("kubectl {copies}")]).await;
}
