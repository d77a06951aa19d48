//! The runtime without Quartermaster: its example operator against the real control plane.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, PostParams};
use kube::{CustomResourceExt as _, ResourceExt as _};
use serde_json::{Value, json};
use testbed::process::{Folder, Program};
use testbed::{ControlPlane, Options};

use self::greetings::Greeting;
use crate::support::{Bed, Plane};

// The example is part of this binary, so that every build of the tests has it: cargo builds the examples of another
// package only if asked.
#[path = "../../crates/runtime/examples/greetings.rs"]
mod greetings;

/// Set in the process of the example operator.
const IS_OPERATOR: &str = "TEST_IS_EXAMPLE_OPERATOR";

/// The example operator: the test below runs this test in a process of its own. Elsewhere there is nothing to do.
#[test]
fn operator_process() {
    if std::env::var_os(IS_OPERATOR).is_some() {
        greetings::main().unwrap();
    }
}

fn text(map: &ConfigMap) -> Option<&str> {
    map.data.as_ref()?.get("text").map(String::as_str)
}

/// Returns status, reason and observed generation of the condition `Ready`.
fn ready(greeting: &Greeting) -> Option<Value> {
    let status = serde_json::to_value(greeting.status.as_ref()?).unwrap();
    let ready = &status["conditions"][0];
    assert_eq!(ready["type"], "Ready");
    Some(json!([
        ready["status"],
        ready["reason"],
        ready["observedGeneration"]
    ]))
}

#[tokio::test]
async fn example_reconciles_corrects_drift_and_writes_its_status() {
    // No part of Quartermaster is installed here.
    let plane = ControlPlane::start(Options::apiserver_only())
        .await
        .unwrap();
    let bed = Bed::on(Plane::Own(Arc::new(plane)), "example").await;
    let client = bed.plane.client().await.unwrap();
    let crds: Api<CustomResourceDefinition> = Api::all(client);
    crds.create(&PostParams::default(), &Greeting::crd())
        .await
        .unwrap();
    bed.kubectl(&[
        "wait",
        "--for=condition=Established",
        &format!("crd/{}", Greeting::crd_name()),
    ])
    .await;
    let folder = Folder::new().unwrap();
    let mut operator = Program::new(std::env::current_exe().unwrap())
        .args(["--exact", "example::operator_process"])
        .env(IS_OPERATOR, "1")
        .env("KUBECONFIG", bed.plane.admin_kubeconfig())
        .spawn(folder.path().join("log"))
        .unwrap();

    bed.create::<Greeting>("hello", json!({ "spec": { "text": "good morning" } }))
        .await;
    let map = bed
        .until::<ConfigMap>("hello", "has the text", |map| {
            text(map) == Some("good morning")
        })
        .await;
    let greeting = bed
        .until::<Greeting>("hello", "is ready", |greeting| {
            ready(greeting) == Some(json!(["True", "Ready", 1]))
        })
        .await;
    let owner = &map.owner_references()[0];
    assert_eq!(Some(&owner.uid), greeting.metadata.uid.as_ref());
    assert_eq!(map.labels()["example.com/owner-uid"], owner.uid);

    // Drift: another client changes the child, then deletes it.
    bed.patch::<ConfigMap>("hello", json!({ "data": { "text": "good night" } }))
        .await;
    let corrected = bed
        .until::<ConfigMap>("hello", "is corrected", |map| {
            text(map) == Some("good morning")
        })
        .await;
    assert_eq!(corrected.uid(), map.uid());
    bed.delete::<ConfigMap>("hello").await;
    let recreated = bed
        .until::<ConfigMap>("hello", "is created again", |it| it.uid() != map.uid())
        .await;
    assert_eq!(text(&recreated), Some("good morning"));

    // A change of the spec reaches the child and the status.
    bed.patch::<Greeting>("hello", json!({ "spec": { "text": "good evening" } }))
        .await;
    bed.until::<ConfigMap>("hello", "has the new text", |map| {
        text(map) == Some("good evening")
    })
    .await;
    bed.until::<Greeting>("hello", "reports the new generation", |greeting| {
        ready(greeting) == Some(json!(["True", "Ready", 2]))
    })
    .await;

    operator.terminate().unwrap();
    let ended = operator.wait(Duration::from_secs(30)).await.unwrap();
    assert!(ended.success(), "{}", operator.log_tail());
}
