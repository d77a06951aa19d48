//! Document 002's install as printed, on a cluster without Quartermaster, with the example of every kind; and then the
//! Makefile's targets, on its result.

use std::sync::Arc;

use quartermaster::controllers;
use testbed::Options;
use testbed::aws::Aws;
use testbed::wait::until;

use super::*;
use crate::support::{Bed, Operator, Plane, SOON, SYSTEM, bot_api};

#[tokio::test]
async fn document_002_installs_as_printed() {
    let plane = Plane::Own(Arc::new(
        ControlPlane::start(Options::default()).await.unwrap(),
    ));
    let bed = Bed {
        client: plane.client().await.unwrap(),
        plane,
        namespace: "default".into(),
    };
    let (telegram, aws) = (bot_api(), Aws::start().await.unwrap());
    let kubectl = async |arguments: &[&str]| bed.plane.run_kubectl(arguments, "").await.unwrap();
    let file = |name: &str| format!("{ROOT}/{name}");

    // The CRDs alone, then everything.
    let output = kubectl(&["apply", "-f", &file("deploy/crd.yaml")]).await;
    assert!(
        output.contains(
            "customresourcedefinition.apiextensions.k8s.io/appservices.kosmos.io created"
        ),
        "{output}"
    );
    let output = kubectl(&["apply", "-f", &file("deploy/")]).await;
    assert!(
        output.contains(&format!("deployment.apps/{DEPLOYMENT} created")),
        "{output}"
    );
    assert_eq!(
        output.lines().count(),
        objects(&folder("deploy")).len(),
        "{output}"
    );
    let again = kubectl(&["apply", "-k", &file("config/default")]).await;
    // kubectl replaces a budget's selector as a whole, and always takes that for a change; it also gives policies a
    // namespace, which the apiserver drops.
    let taken_for_a_change = [
        "poddisruptionbudget.policy/",
        "validatingadmissionpolicy.admissionregistration.k8s.io/",
    ];
    let same = |line: &str| {
        line.ends_with(" unchanged") || taken_for_a_change.iter().any(|what| line.starts_with(what))
    };
    assert!(again.lines().all(same), "{again}");
    assert_eq!(again.lines().count(), output.lines().count(), "{again}");

    // The fakes outside of this cluster, as a user sets them.
    let mut outside = vec![format!("QUARTERMASTER_TELEGRAM_API_URL={}", telegram.url())];
    outside.extend(
        aws.env()
            .into_iter()
            .map(|(name, value)| format!("{name}={value}")),
    );
    let deployment = format!("deployment/{DEPLOYMENT}");
    let mut set = vec!["-n", SYSTEM, "set", "env", &deployment];
    set.extend(outside.iter().map(String::as_str));
    kubectl(&set).await;
    let mut operators = Operator::installed(&bed.plane, SYSTEM, DEPLOYMENT).await;
    assert_eq!(operators.len(), 2);
    let ready = kubectl(&["-n", SYSTEM, "get", "deploy", DEPLOYMENT]).await;
    assert!(ready.contains(" 2/2 "), "{ready}");
    shaped(&bed).await;

    wait_for_examples(&bed).await;

    let output = kubectl(&["delete", "-f", &file("example/example_appservice.yaml")]).await;
    assert!(
        output.starts_with("appservice.kosmos.io \"appservice-sample\" deleted"),
        "{output}"
    );

    // The CRDs stay while only the operator can clean up their objects.
    let (done, output) = make(&bed.plane, &["uninstall"]).await;
    assert!(!done, "{output}");
    for expected in [
        "  configmapsyncs.apps.bixbite.io default/configmapsync-sample (finalizer quartermaster.dev/copies)\n",
        "  myingresses.demo.rtfm.co.ua default/myapp (finalizer quartermaster.dev/load-balancer)\n",
        "  quartermaster uninstall\n",
    ] {
        assert!(output.contains(expected), "{output}");
    }
    assert_eq!(
        kubectl(&["get", "crd", "-o", "name"]).await.lines().count(),
        controllers::KINDS.len()
    );
    for operator in &mut operators {
        operator.child().check_running().unwrap();
    }
    super::makefile::undeploy(&bed).await;
    assert_eq!(aws.balancers().await.unwrap(), []);
    assert_eq!(
        kubectl(&[
            "-n",
            "shop",
            "get",
            "configmap",
            "settings",
            "--ignore-not-found"
        ])
        .await,
        ""
    );
    drop(operators);
    super::makefile::all_targets(&bed).await;
}

/// A user who applies the same manifests again must see that nothing has changed.
#[tokio::test]
async fn second_apply_of_the_same_manifests_changes_nothing() {
    let plane = ControlPlane::start(Options::default()).await.unwrap();
    let deploy = format!("{ROOT}/deploy/");
    plane
        .run_kubectl(&["apply", "-f", &format!("{deploy}crd.yaml")], "")
        .await
        .unwrap();
    plane
        .run_kubectl(&["apply", "-f", &deploy], "")
        .await
        .unwrap();
    let again = plane
        .run_kubectl(&["apply", "-f", &deploy], "")
        .await
        .unwrap();
    assert_eq!(
        again.lines().count(),
        objects(&folder("deploy")).len(),
        "{again}"
    );
    // kubectl replaces a budget's selector as a whole, and always takes that for a change.
    let is_same = |line: &&str| {
        line.ends_with(" unchanged") || line.starts_with("poddisruptionbudget.policy/")
    };
    let changed: Vec<_> = again.lines().filter(|line| !is_same(line)).collect();
    assert!(changed.is_empty(), "{changed:#?}");
}

/// Checks the shape of the installation on a cluster.
async fn shaped(bed: &Bed) {
    let at = async |what: &[&str], path: &str| {
        let path = format!("jsonpath={{{path}}}");
        bed.plane
            .run_kubectl(&[&["-n", SYSTEM, "get"], what, &["-o", &path]].concat(), "")
            .await
            .unwrap()
    };
    // A node can be drained.
    let budget = ["pdb", DEPLOYMENT];
    until("one may be evicted", SOON, async || {
        Ok((at(&budget, ".status.disruptionsAllowed").await == "1").then_some(()))
    })
    .await
    .unwrap();
    // Prometheus reaches both replicas.
    let slices = [
        "endpointslices",
        "-l",
        &format!("kubernetes.io/service-name={DEPLOYMENT}-metrics-service"),
    ];
    until("both have an address for metrics", SOON, async || {
        let ready = at(&slices, ".items[*].endpoints[*].conditions.ready").await;
        let port = at(&slices, ".items[*].ports[*].port").await;
        Ok((ready == "true true" && port == "8443").then_some(()))
    })
    .await
    .unwrap();
    // Other Pods under the account have no token by default.
    assert_eq!(
        at(
            &["serviceaccount", DEPLOYMENT],
            ".automountServiceAccountToken"
        )
        .await,
        "false"
    );
}
