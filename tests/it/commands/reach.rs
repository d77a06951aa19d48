//! Unreachable clusters, and permissions for some namespaces only.

use testbed::process::Folder;
use testbed::receiver::{Receiver, Reply};

use super::{Run, user_with};
use crate::support::Bed;

/// Writes a kubeconfig of a server.
async fn leads_to(bed: &Bed, folder: &Folder, server: &str) -> std::path::PathBuf {
    let file = folder.path().join("kubeconfig");
    let name = file.to_str().unwrap();
    for arguments in [
        &["set-cluster", "there", &format!("--server={server}")][..],
        &["set-context", "there", "--cluster=there"],
        &["use-context", "there"],
    ] {
        bed.plane
            .run_kubectl(&[&["config", "--kubeconfig", name], arguments].concat(), "")
            .await
            .unwrap();
    }
    file
}

#[tokio::test]
async fn unreachable_cluster_is_named_with_the_cause() {
    let bed = Bed::shared("reach").await;
    let folder = Folder::new().unwrap();
    let shut = leads_to(&bed, &folder, "http://127.0.0.1:1").await;
    for command in [
        &["status"][..],
        &["history", "tf/x", "-n", "a"],
        &["history", "tfs/x", "-n", "a"],
        &["matches", "tfs/x", "-n", "a"],
        &["test", "cp/x", "-n", "a"],
        &["adopt"],
        &["uninstall", "--yes"],
    ] {
        let output = Run::on(&bed)
            .kubeconfig(shut.clone())
            .ends(1, command)
            .await;
        let cause = "http://127.0.0.1:1 cannot be reached: Connection refused (os error 111)\n";
        assert!(
            output.starts_with("error: ") && output.ends_with(cause),
            "{command:?}: {output}"
        );
    }
    // A server that is no apiserver must not pass for a cluster without Quartermaster's kinds.
    let receiver = Receiver::start().unwrap();
    receiver.always(Reply::status(http::StatusCode::NOT_FOUND));
    let other = leads_to(&bed, &folder, &receiver.url()).await;
    for command in [&["status"][..], &["uninstall", "--yes"]] {
        let output = Run::on(&bed)
            .kubeconfig(other.clone())
            .ends(1, command)
            .await;
        assert!(
            output.contains("the server is not a Kubernetes apiserver"),
            "{command:?}: {output}"
        );
    }
    // A missing file is skipped, as in kubectl.
    let list = format!("/no/such/file:{}", bed.plane.admin_kubeconfig().display());
    let run = Run::on(&bed).kubeconfig(list.into());
    for arguments in [
        &["status", "-n", &bed.namespace][..],
        &["status", "-n", &bed.namespace, "--context=testbed"],
    ] {
        run.ends(0, arguments).await;
    }
}

#[tokio::test]
async fn forbidden_kinds_are_named_and_the_others_shown() {
    let bed = Bed::shared("few").await;
    let here = bed.namespace.as_str();
    bed.webhook("hook", "http://127.0.0.1:1").await;
    let user = user_with(&bed, "list", "contactpoints.tg.azamaton.ru").await;
    let run = Run::on(&bed).kubeconfig(user);
    let output = run.ends(1, &["status", "-n", here]).await;
    assert!(
        output.contains("contactpoint/hook") && output.contains("\n1 object: "),
        "{output}"
    );
    let missing = output
        .lines()
        .filter(|line| line.starts_with("Not shown: "))
        .collect::<Vec<_>>();
    assert_eq!(missing.len(), 6, "{output}");
    assert!(
        missing[0].contains("cannot list resource \"") && !missing[0].contains("contactpoints"),
        "{output}"
    );
    let output = run.ends(1, &["status", "-n", here, "-o", "json"]).await;
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&output).unwrap()["forbiddenKinds"]
            .as_array()
            .unwrap()
            .len(),
        6
    );

    // The message names the flag for a user with permissions in one namespace.
    for command in [&["status"][..], &["adopt"], &["uninstall"]] {
        let output = run.ends(1, command).await;
        assert!(
            output.ends_with("at the cluster scope; for one namespace: -n NAMESPACE\n"),
            "{command:?}: {output}"
        );
    }
}
