//! `kubectl delete -f deploy/` while objects of every kind exist, and the one command that frees the remaining objects.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt as _;
use kube::api::{Api, DynamicObject};
use qm_api::{ConfigMapSync, MyIngress};
use quartermaster::controllers;
use testbed::ControlPlane;
use testbed::wait::until;

use super::Run;
use super::uninstall::Scene;
use crate::support::{Operator, Plane, SOON, SYSTEM};

const DEPLOYMENT: &str = "quartermaster-controller-manager";

#[tokio::test]
async fn without_operator_frees_objects_after_kubectl_delete_of_deploy() {
    let plane = Plane::Own(Arc::new(
        ControlPlane::start(testbed::Options::default())
            .await
            .unwrap(),
    ));
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/");
    let kubectl = async |arguments: &[&str]| plane.run_kubectl(arguments, "").await;
    kubectl(&["apply", "-f", folder]).await.unwrap();
    let client = plane.client().await.unwrap();
    for kind in controllers::KINDS {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &kind.resource());
        let served = async || Ok(Some(api.list(&Default::default()).await?));
        until(format!("{} are served", kind.crd_name()), SOON, served)
            .await
            .unwrap();
    }
    let scene = Scene::on(plane.clone(), "deployed").await;
    let deployment = format!("deployment/{DEPLOYMENT}");
    let mut set = vec![
        "-n",
        SYSTEM,
        "set",
        "env",
        &deployment,
        "QUARTERMASTER_WEBHOOK_ALLOW_LOOPBACK=true",
    ];
    let outside: Vec<_> = scene
        .aws
        .env()
        .into_iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    set.extend(outside.iter().map(String::as_str));
    kubectl(&set).await.unwrap();
    let mut operators = Operator::installed(&plane, SYSTEM, DEPLOYMENT).await;
    scene.all_ready().await;
    assert_eq!(scene.remaining().await.len(), controllers::KINDS.len());

    // kubectl deletes everything at once, and then waits for finalizers that nobody removes: the operators are frozen.
    for operator in &mut operators {
        operator.child().freeze().unwrap();
    }
    // The operators lose their permissions before they end.
    plane.audit().expect_refusals().unwrap();
    let output = async {
        let output = kubectl(&["delete", "-f", folder, "--timeout=10s"]).await;
        output.unwrap_err().to_string()
    };
    let ended = async {
        let pods: Api<Pod> = Api::namespaced(scene.bed.client.clone(), SYSTEM);
        // The equivalent of a kubelet's work.
        until("the Pods end", SOON, async || {
            let all = pods.list(&Default::default()).await?;
            Ok(all
                .iter()
                .all(|pod| pod.metadata.deletion_timestamp.is_some())
                .then_some(()))
        })
        .await
        .unwrap();
        drop(operators);
    };
    let (output, ()) = tokio::join!(output, ended);
    // The message depends on the request that failed.
    assert!(
        ["timed out waiting for the condition", "context deadline"]
            .iter()
            .any(|it| output.contains(it)),
        "{output}"
    );
    until(
        "two objects are left, and the namespace is deleted",
        SOON,
        async || {
            let mut left = scene.remaining().await;
            left.sort();
            let there = kubectl(&["get", "namespace", SYSTEM, "--ignore-not-found"]).await?;
            Ok(
                (left == ["configmapsyncs/sync", "myingresses/web"] && there.is_empty())
                    .then_some(()),
            )
        },
    )
    .await
    .unwrap();

    // Without flags, uninstall prints the one command.
    let run = Run::on(&scene.bed);
    let output = run
        .ends(1, &["uninstall", "--yes", "--stalled-after=1s"])
        .await;
    let (_, command) = output
        .split_once("remove its finalizers: ")
        .unwrap_or_else(|| panic!("{output}"));
    let command = command
        .split(" (NAMESPACE is")
        .next()
        .unwrap()
        .replace("=NAMESPACE", &format!("={SYSTEM}"));
    assert_eq!(
        command,
        "quartermaster uninstall --without-operator --operator-namespace=quartermaster-system"
    );
    let uid = scene
        .bed
        .api::<ConfigMapSync>()
        .get("sync")
        .await
        .unwrap()
        .uid()
        .unwrap();
    let arn = scene
        .bed
        .api::<MyIngress>()
        .get("web")
        .await
        .unwrap()
        .status
        .unwrap()
        .alb
        .unwrap()
        .arn
        .unwrap();
    let shell = Run::on(&scene.bed).shell(&scene.bed);
    let output = shell.ends(0, &["-c", &format!("{command} --yes")]).await;
    for named in [
        format!("quartermaster.dev/owner-uid={uid}"),
        format!("--load-balancer-arn {arn}"),
    ] {
        assert!(output.contains(&named), "{output}");
    }
    assert_eq!(kubectl(&["get", "crds", "-o", "name"]).await.unwrap(), "");
    assert_eq!(scene.remaining().await, [""; 0]);
    let everything = "clusterroles,clusterrolebindings,validatingadmissionpolicies,namespaces";
    assert!(
        !kubectl(&["get", everything, "-o", "name"])
            .await
            .unwrap()
            .contains("quartermaster")
    );
}
