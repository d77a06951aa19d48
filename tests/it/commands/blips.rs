//! Short outages of the apiserver.

use std::time::Duration;

use http::StatusCode;
use qm_api::ContactPoint;
use quartermaster::controllers;
use serde_json::json;
use testbed::process::Folder;
use testbed::proxy::{ApiErrorResponse, Fault, Match, Proxy, Times, Verb};
use testbed::wait::until;
use tokio::time::Instant;

use super::Run;
use crate::support::{Bed, SOON};

#[tokio::test]
async fn outage_ends_neither_a_watch_nor_a_purge() {
    let options = testbed::Options {
        controller_manager: true,
        ..testbed::Options::apiserver_only()
    };
    let bed = Bed::on_own_plane_with(options, "blip").await;
    // The proxy needs a client with a token.
    bed.kubectl(&["create", "serviceaccount", "boss"]).await;
    let account = format!("--serviceaccount={}:boss", bed.namespace);
    bed.kubectl(&[
        "create",
        "clusterrolebinding",
        "boss",
        "--clusterrole=cluster-admin",
        &account,
    ])
    .await;
    let direct = bed
        .plane
        .kubeconfig_for_service_account(&bed.namespace, "boss")
        .await
        .unwrap();
    let proxy = Proxy::for_kubeconfig(&std::fs::read_to_string(&direct).unwrap()).unwrap();
    let folder = Folder::new().unwrap();
    let file = folder.path().join("kubeconfig");
    proxy.write_kubeconfig(&direct, &file).unwrap();
    let run = Run::on(&bed).kubeconfig(file);
    let away = || Fault::status(StatusCode::INTERNAL_SERVER_ERROR);

    bed.webhook("first", "http://127.0.0.1:1").await;
    let mut watch = run.start(&["status", "--watch", "--interval=50ms"]);
    watch.prints("contactpoint/first").await;
    proxy.inject(
        Match::verb(Verb::List).resource("trackedfields"),
        Times::First(2),
        away(),
    );
    watch
        .prints("the cluster does not answer; will retry: the trackedfields could not be listed")
        .await;
    bed.webhook("second", "http://127.0.0.1:1").await;
    watch.prints("contactpoint/second").await;
    drop(watch);

    // The command retries while the apiserver is busy, until --timeout, whatever Retry-After says.
    let busy = || {
        Fault::Answer(ApiErrorResponse {
            retry_after: Some(3600),
            ..StatusCode::SERVICE_UNAVAILABLE.into()
        })
    };
    let lists = || Match::verb(Verb::List).resource("trackedfields");
    let bound = ["uninstall", "--yes", "--timeout=5s"];
    for (fault, expected) in [
        (busy(), "the cluster does not answer; will retry: "),
        (Fault::Hang, ""),
    ] {
        let began = Instant::now();
        let order = proxy.inject(lists(), Times::Always, fault);
        let output = run.ends(1, &bound).await;
        assert!(
            output.contains(expected) && output.contains("the apiserver did not answer within 5s"),
            "{output}"
        );
        assert!(
            began.elapsed() < SOON && order.hits() > 0,
            "{:?}: {output}",
            began.elapsed()
        );
        order.cancel();
    }
    let began = Instant::now();
    let order = proxy.inject(lists(), Times::First(1), busy());
    let output = run.ends(1, &["status"]).await;
    assert!(
        output.contains("the trackedfields could not be listed") && began.elapsed() < SOON,
        "{output}"
    );
    assert_eq!(order.hits(), 1);
    // The pause after a slow attempt, twice as long as the attempt, ends at --timeout, too.
    let with_finalizers = |all: &[&str]| json!({ "metadata": { "finalizers": all } });
    bed.patch::<ContactPoint>("first", with_finalizers(&["example.com/theirs"]))
        .await;
    let slow = proxy.inject(
        lists(),
        Times::Nth(2),
        Fault::Delay(Duration::from_secs(20)),
    );
    let began = Instant::now();
    let output = run.ends(1, &["uninstall", "--yes", "--timeout=30s"]).await;
    assert!(
        output.contains("1 object remains") && began.elapsed() < Duration::from_secs(58),
        "{output}"
    );
    assert_eq!(slow.hits(), 1);
    // An interrupt before the question is no confirmation.
    let hangs = proxy.inject(lists(), Times::Always, Fault::Hang);
    let asked = run.start(&["uninstall"]);
    until("the command reads the cluster", SOON, async || {
        Ok((hangs.hits() > 0).then_some(()))
    })
    .await
    .unwrap();
    asked.signal("INT").await;
    assert!(
        asked
            .ends(2)
            .await
            .ends_with("Interrupted: nothing was deleted.\n")
    );
    hangs.cancel();
    bed.patch::<ContactPoint>("first", with_finalizers(&[]))
        .await;
    let order = proxy.inject(lists(), Times::First(2), busy());

    // The command reads each CRD once before it begins.
    let kinds = u64::try_from(controllers::KINDS.len()).unwrap();
    let crds = "customresourcedefinitions";
    let read = proxy.inject(
        Match::verb(Verb::Get).resource(crds),
        Times::Nth(kinds + 1),
        away(),
    );
    let delete = proxy.inject(
        Match::verb(Verb::Delete).resource(crds),
        Times::First(1),
        away(),
    );
    let output = run.ends(0, &["uninstall", "--yes", "--purge"]).await;
    assert!(
        output.contains("the cluster does not answer; will retry: "),
        "{output}"
    );
    assert!(
        output.contains("\nCluster: context ") && output.contains(&proxy.url()),
        "{output}"
    );
    assert!(output.ends_with("Everything is deleted.\n"), "{output}");
    assert_eq!((order.hits(), read.hits(), delete.hits()), (2, 1, 1));
    assert_eq!(bed.kubectl(&["get", "crds", "-o", "name"]).await, "");
}
