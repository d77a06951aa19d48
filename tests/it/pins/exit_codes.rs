//! The exit code of each command: success, failure and usage error.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;

use testbed::aws::FOREIGN;

use super::{assert_pinned, bed};
use crate::support::{Bed, Operator, SOON, Settings};

/// Runs the program and returns the exit code.
async fn code(arguments: &[&str], kubeconfig: &Path) -> i32 {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_quartermaster"));
    command
        .args(arguments)
        .env("KUBECONFIG", kubeconfig)
        .env("HOME", "/nowhere")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    for name in FOREIGN.into_iter().chain(["POD_NAMESPACE"]) {
        command.env_remove(name);
    }
    let ended = tokio::time::timeout(SOON, command.status()).await;
    let status = ended.unwrap_or_else(|_| panic!("{arguments:?} has not ended"));
    status.unwrap().code().unwrap()
}

/// Commands that need no cluster, or fail before they need a cluster.
const WITHOUT_CLUSTER: [&str; 23] = [
    "",
    "--help",
    "--version",
    "nonsense",
    "version",
    "version --nonsense",
    "crds",
    "crds --nonsense",
    "completions bash",
    "completions",
    "completions nonsense",
    "run --help",
    "run --nonsense",
    "run --controllers=nonsense",
    "run --watch-namespace=A/B",
    "status --help",
    "status --output=yaml",
    "history",
    "history cp/it",
    "adopt myapp/web",
    "adopt --nonsense",
    "uninstall --purge --namespace=it",
    "uninstall --dry-run --yes",
];

/// Commands that need a cluster; `HERE` is the namespace of the test.
const WITH_CLUSTER: [&str; 5] = [
    "run",
    "status --namespace=HERE",
    "history it --namespace=HERE",
    "adopt --namespace=HERE",
    "uninstall --namespace=HERE --dry-run",
];

#[tokio::test]
async fn exit_codes_are_as_pinned() {
    let bed = bed("codes").await;
    let (cluster, nowhere) = (bed.plane.admin_kubeconfig(), Path::new("/nowhere"));
    let mut codes = BTreeMap::new();
    for line in WITHOUT_CLUSTER {
        let arguments: Vec<_> = line.split_whitespace().collect();
        codes.insert(
            format!("quartermaster {line}"),
            code(&arguments, nowhere).await,
        );
    }
    for line in WITH_CLUSTER {
        let typed = line.replace("HERE", &bed.namespace);
        let arguments: Vec<_> = typed.split(' ').collect();
        let title = format!("quartermaster {line}");
        codes.insert(
            format!("{title} (no cluster)"),
            code(&arguments, nowhere).await,
        );
        // The operator does not end by itself.
        if line != "run" {
            codes.insert(title, code(&arguments, &cluster).await);
        }
    }
    run_with_objects(&bed, &cluster, &mut codes).await;

    let mut operator = Operator::start(&bed, Settings::default()).await;
    operator.child().terminate().unwrap();
    let ended = operator.child().wait(SOON).await.unwrap();
    codes.insert("quartermaster run (SIGTERM)".into(), ended.code().unwrap());
    assert_pinned!("exit_codes", codes);
}

/// Runs commands on a namespace with a `TrackedField`.
async fn run_with_objects(bed: &Bed, cluster: &Path, codes: &mut BTreeMap<String, i32>) {
    bed.track("it", "Deployment", "web", "replicas", "none")
        .await;
    for line in [
        "status --namespace=HERE",
        "history it --namespace=HERE",
        "uninstall --namespace=HERE",
        "uninstall --namespace=HERE --yes",
    ] {
        let typed = line.replace("HERE", &bed.namespace);
        let arguments: Vec<_> = typed.split(' ').collect();
        let title = format!("quartermaster {line} (with a TrackedField)");
        codes.insert(title, code(&arguments, cluster).await);
    }
}
