//! The bundle for `OperatorHub`, against the schema that the Operator Lifecycle Manager (OLM) publishes.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use testbed::Options;
use testbed::process::Folder;
use testbed::wait::until;
use tokio::process::Command;

use crate::support::{Bed, SOON};

/// The Go module that has OLM's CRDs.
const MODULE: &str = "github.com/operator-framework/api@v0.9.1";
/// Checksum of the module.
const SUM: &str = "h1:coepSkZf/hSyT0An/fEwHSaM0n3Wyds2fwuvlWZHxls=";
const KIND: &str = "clusterserviceversions.operators.coreos.com";

/// Downloads the module; returns its CRD of `ClusterServiceVersion`.
async fn crd_of_olm() -> PathBuf {
    let elsewhere = Folder::new().unwrap();
    let download = Command::new("go")
        .args(["mod", "download", "-json", MODULE])
        .envs([("GOTOOLCHAIN", "local"), ("GOFLAGS", "")])
        .current_dir(elsewhere.path())
        .output();
    let output = download.await.unwrap();
    let module: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    assert_eq!(module["Sum"], SUM, "{module}");
    let folder = Path::new(module["Dir"].as_str().unwrap());
    folder.join("crds/operators.coreos.com_clusterserviceversions.yaml")
}

#[tokio::test]
async fn apiserver_accepts_the_bundle_with_the_schema_of_olm() {
    let bed = Bed::on_own_plane_with(Options::apiserver_only(), "bundle").await;
    let crd = crd_of_olm().await;
    bed.kubectl(&["create", "-f", crd.to_str().unwrap()]).await;
    let name = format!("crd/{KIND}");
    // kubectl fails while the CRD has no conditions.
    until("the CRD is established", SOON, async || {
        let wait = ["wait", "--for=condition=Established", &name];
        bed.plane.run_kubectl(&wait, "").await.map(Some)
    })
    .await
    .unwrap();
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("bundle/manifests");
    let mut services = 0;
    for file in fs::read_dir(manifests)
        .unwrap()
        .map(|file| file.unwrap().path())
    {
        let mut object: Value =
            serde_saphyr::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        // The bed has installed these already.
        if object["kind"] == "CustomResourceDefinition" {
            continue;
        }
        if object["kind"] == "ClusterServiceVersion" {
            services += 1;
            object["metadata"]["namespace"] = bed.namespace.clone().into();
            // The module's schema of a Deployment is older than this field.
            let pod = &mut object["spec"]["install"]["spec"]["deployments"][0]["spec"]["template"]
                ["spec"];
            let spread = pod["topologySpreadConstraints"][0].as_object_mut().unwrap();
            spread.remove("matchLabelKeys").unwrap();
        }
        let arguments = [
            "-n",
            &bed.namespace,
            "apply",
            "--validate=strict",
            "--server-side",
            "--dry-run=server",
            "--force-conflicts",
            "-f",
            "-",
        ];
        let applied = bed.plane.run_kubectl(&arguments, &object.to_string()).await;
        applied.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
    assert_eq!(services, 1);
}
