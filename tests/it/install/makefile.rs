//! The Makefile's targets.

use std::os::unix::fs::PermissionsExt;

use quartermaster::controllers;

use super::*;
use crate::support::{Bed, SYSTEM};

async fn done(bed: &Bed, arguments: &[&str]) {
    let (done, printed) = make(&bed.plane, arguments).await;
    assert!(done, "{arguments:?}: {printed}");
}

async fn crds(bed: &Bed) -> usize {
    bed.plane
        .run_kubectl(&["get", "crd", "-o", "name"], "")
        .await
        .unwrap()
        .lines()
        .count()
}

async fn nothing_left(bed: &Bed) {
    assert_eq!(crds(bed).await, 0);
    let names = "clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,namespaces";
    let left = bed
        .plane
        .run_kubectl(&["get", names, "-o", "name"], "")
        .await
        .unwrap();
    assert!(!left.contains("quartermaster"), "{left}");
}

/// Removes the installation while its operator runs.
pub async fn undeploy(bed: &Bed) {
    // The permissions are deleted while the operator runs.
    bed.plane.audit().expect_refusals().unwrap();
    done(bed, &["undeploy"]).await;
    nothing_left(bed).await;
    done(bed, &["undeploy"]).await; // nothing is installed, which is not a failure
    done(bed, &["uninstall"]).await;
}

/// Runs `install`, `deploy`, `undeploy` and `uninstall` in turn, on a cluster without any installation.
pub async fn all_targets(bed: &Bed) {
    let config = || {
        [
            folder("config/default"),
            folder("config/manager"),
            folder("deploy"),
        ]
    };
    let before = config();
    let done = async |arguments: &[&str]| done(bed, arguments).await;

    done(&["install"]).await;
    assert_eq!(crds(bed).await, controllers::KINDS.len());
    let (is_deployed, printed) = make(&bed.plane, &["deploy"]).await;
    assert!(
        !is_deployed && printed.contains("make deploy IMG=YOUR.REGISTRY/quartermaster:TAG\n"),
        "{printed}"
    );
    let image = "registry.example.com/quartermaster:1.2.3";
    done(&["deploy", &format!("IMG={image}")]).await;
    let path = "jsonpath={.spec.template.spec.containers[0].image}";
    let runs = bed
        .plane
        .run_kubectl(&["-n", SYSTEM, "get", "deploy", DEPLOYMENT, "-o", path], "")
        .await
        .unwrap();
    assert_eq!(runs, image);
    // The CRD of another program.
    let foreign = ["crd", "myapps.demo.rtfm.co.ua"];
    bed.kubectl(&[&["annotate"], &foreign[..], &["quartermaster.dev/schema-"]].concat())
        .await;
    done(&["undeploy"]).await;
    assert_eq!(crds(bed).await, 1);
    done(&["uninstall"]).await;
    assert_eq!(crds(bed).await, 1);
    bed.kubectl(&[&["delete"], &foreign[..]].concat()).await;
    nothing_left(bed).await;

    done(&["install"]).await;
    done(&["uninstall"]).await;
    nothing_left(bed).await;
    assert!(config() == before, "the checkout is unchanged");
}

#[tokio::test]
async fn placeholder_is_no_image() {
    let targets = ["deploy", "build-installer", "docker-push", "docker-buildx"];
    for (target, image) in targets
        .into_iter()
        .flat_map(|target| [(target, None), (target, Some("IMG="))])
    {
        // None of these programs exists: a target that runs one before its own check prints the program's name.
        let unused = [
            "KUBECTL=/no/kubectl",
            "CONTAINER_TOOL=/no/docker",
            "DIST=/no/dist",
        ];
        let output = tree_command("make")
            .arg(target)
            .args(image)
            .args(unused)
            .output()
            .await
            .unwrap();
        let (done, printed) = result_of(&output);
        assert!(!done, "{target}: {printed}");
        assert!(
            printed.contains(&format!(
                "make {target}: IMG is still the placeholder quartermaster:latest"
            )),
            "{printed}"
        );
        assert!(
            printed.contains(&format!(
                "  make {target} IMG=YOUR.REGISTRY/quartermaster:TAG\n"
            )),
            "{printed}"
        );
        assert!(!printed.contains("/no/"), "{printed}");
    }
}

#[tokio::test]
async fn undeploy_deletes_nothing_without_its_programs() {
    // kubectl does not exist: a target that runs it prints its name.
    let absent = ["QUARTERMASTER=/no/quartermaster", "KUBECTL=/no/kubectl"];
    let (done, printed) = result_of(
        &tree_command("make")
            .arg("undeploy")
            .args(absent)
            .output()
            .await
            .unwrap(),
    );
    assert!(
        !done && printed.contains("make undeploy QUARTERMASTER=/path/to/quartermaster\n"),
        "{printed}"
    );
    assert!(!printed.contains("/no/kubectl"), "{printed}");
}

/// No container engine exists on this machine, so the test can only show the commands.
#[tokio::test]
async fn container_tools_get_the_right_arguments() {
    let folder = Folder::new().unwrap();
    let (tool, log) = (folder.path().join("tool"), folder.path().join("log"));
    std::fs::write(
        &tool,
        format!("#!/bin/sh\necho \"$@\" >>'{}'\n", log.display()),
    )
    .unwrap();
    std::fs::set_permissions(&tool, PermissionsExt::from_mode(0o755)).unwrap();
    let tools =
        ["CONTAINER_TOOL", "KIND", "MINIKUBE"].map(|name| format!("{name}={}", tool.display()));
    let asked = async |arguments: &[&str]| {
        let output = tree_command("make")
            .args(&tools)
            .args(arguments)
            .output()
            .await
            .unwrap();
        let (done, printed) = result_of(&output);
        assert!(done, "{arguments:?}: {printed}");
        let asked = std::fs::read_to_string(&log).unwrap();
        std::fs::remove_file(&log).unwrap();
        // The archive's folder has another name each time.
        let words = |line: &str| {
            let masked = line.split(' ').map(|word| {
                if word.ends_with("/image.tar") {
                    "ARCHIVE"
                } else {
                    word
                }
            });
            masked.collect::<Vec<_>>().join(" ")
        };
        asked.lines().map(words).collect::<Vec<_>>()
    };
    assert_eq!(
        asked(&["docker-build", "IMG=r/q:1"]).await,
        ["build --tag r/q:1 ."]
    );
    assert_eq!(asked(&["docker-push", "IMG=r/q:1"]).await, ["push r/q:1"]);
    let loaded = asked(&["kind-load", "IMG=q:1", "KIND_CLUSTER=two"]).await;
    assert_eq!(
        loaded,
        [
            "save --output ARCHIVE q:1",
            "load image-archive ARCHIVE --name two"
        ]
    );
    let loaded = asked(&["minikube-load", "IMG=q:1"]).await;
    assert_eq!(loaded, ["save --output ARCHIVE q:1", "image load ARCHIVE"]);
    let built = asked(&["docker-buildx", "IMG=r/q:1"]).await;
    assert!(
        built[1].contains("--push --platform linux/arm64,linux/amd64 --tag r/q:1 ."),
        "{built:?}"
    );
    let built = asked(&["docker-buildx", "IMG=r/q:1", "PLATFORMS=linux/amd64"]).await;
    assert!(built[1].contains("--platform linux/amd64 "), "{built:?}");
}
